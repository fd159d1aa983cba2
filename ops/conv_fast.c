/* The fast kernels of convolutions: products with strips for y and dx, and sums over all places of
 * all strips for dw. */

enum {
    ZFI_CONV_PLACES = 1024,     /* places of a strip, at most */
    ZFI_CONV_PLACES_ONE = 2048, /* the same where the result has one channel */
    ZFI_CONV_WORDS_W = 1024,    /* words of places of a strip of dw */
    ZFI_CONV_ROWS = 96,         /* channels of the result that go over a tile before the next */
    ZFI_CONV_RUN = 256,
    ZFI_CONV_OUTPUTS = 64, /* channels of dy that a task of dw has at most */
    ZFI_CONV_TAPS = 576,   /* taps of all its channels of x, about */
    ZFI_CONV_TAPS_DOTS = 72,
    ZFI_CONV_FEW = 8 /* channels of dy for which dw is made of dots */
};

/* A launch in strips. */
typedef struct zfi_conv_job {
    zfi_conv v;
    const zf_array *of[3];
    zfi_strips strips;
    zfi_isa isa;
    bool back;
    int64_t places; /* of a strip, in whole tiles */
    int64_t *at;    /* where each term is in strips */
    char *scratch;  /* of workers, `room` bytes each */
    /* floats of a worker's parts, in their order; bytes; bytes before them */
    size_t line, pair, strip, out, panels, sums, room, shared;
    /* of products */
    const zfi_strip_tile *tile; /* or that of dots */
    int64_t m, k, words;        /* rows, terms of a sum, and those of a tap, in words */
    int64_t row, padded;        /* words of a packed row, and how many rows there are */
    float *w;                   /* packed, of each group */
    /* of dw */
    const zfi_tile *product; /* NULL: dots */
    int64_t inputs, outputs; /* channels of x and of dy of a task */
} zfi_conv_job;

/* The scratch of a worker, taken apart. */
typedef struct zfi_conv_parts {
    float *line, *pair, *strip, *out, *panels, *sums, *row; /* pair: two strips of bf16 */
} zfi_conv_parts;

static zfi_conv_parts zfi_conv_parts_of(const zfi_conv_job *j, int worker)
{
    zfi_conv_parts p;
    p.line = (float *)(void *)(j->scratch + (size_t)worker * j->room);
    p.pair = p.line + j->line, p.strip = p.pair + j->pair, p.out = p.strip + j->strip;
    p.panels = p.out + j->out, p.sums = p.panels + j->panels, p.row = p.sums + j->sums;
    return p;
}

static size_t zfi_conv_floats(int64_t count) { return (size_t)zfi_round_up(count, 16); }

/* Sets the pointers, where there is scratch: `each` words of packed weights for each group. */
static void zfi_conv_lay(zfi_conv_job *j, const zf_launch *l, int64_t terms, int64_t each,
                         int64_t row)
{
    const size_t at = zfi_round_bytes((size_t)terms * sizeof *j->at);
    j->line = zfi_conv_floats(zfi_strips_aside(&j->strips));
    j->room = (j->line + j->pair + j->strip + j->out + j->panels + j->sums + zfi_conv_floats(row)) *
              sizeof(float);
    j->shared = at + zfi_round_bytes((size_t)(j->v.groups * each) * sizeof(float));
    if (!l->scratch) return;
    j->at = l->scratch;
    j->w = (float *)(void *)((char *)l->scratch + at);
    j->scratch = (char *)l->scratch + j->shared;
}

/* ------------------------------------------------------------------------------ y and dx */

/* Rows of a tile that begins at row m: a power of two. */
static int64_t zfi_conv_tile_rows(const zfi_conv_job *j, int64_t m)
{
    int64_t rows = 1;
    if (j->tile->blocks) return zfi_min(j->m - m, j->tile->rows);
    while (rows < j->tile->rows && rows < j->m - m) rows *= 2;
    return j->m > 1 ? zfi_max(rows, 2) : 1;
}

static int64_t zfi_conv_rows_tiles(const zfi_conv_job *j)
{
    return zfi_div_up(j->m, j->tile->rows);
}

/* Places of a tile. */
static int64_t zfi_conv_columns(const zfi_conv_job *j)
{
    if (j->tile->blocks) return 2 * j->tile->lanes;
    return j->tile->lanes * (j->m == 1 ? ZFI_STRIP_VECTORS : ZFI_STRIP_WIDE);
}

static zfi_conv_job zfi_conv_job_of(const zf_launch *l)
{
    zfi_conv_job j = {.isa = zfi_cpu_of(l)->isa, .back = l->op == ZF_OP_conv_grad_x};
    int64_t channels, last;
    bool pairs;
    j.v = zfi_conv_of(l, j.of);
    channels = j.back ? j.v.o : j.v.c;
    j.m = j.back ? j.v.c : j.v.o;
    j.tile = zfi_strip_tile_for(j.isa, l->args[0].dtype, j.m, channels);
    pairs = j.tile->per_word == 2;
    j.words = zfi_div_up(channels, j.tile->per_word);
    if (j.tile->blocks) j.words = zfi_round_up(j.words, j.tile->lanes);
    j.row = j.k = j.words * zfi_conv_area(j.v.taps);
    if (j.tile->blocks) j.row = (j.k / ZFI_CONV_LINE | 1) * ZFI_CONV_LINE;
    j.strips = zfi_strips_of(&j.v, j.back, pairs, j.words,
                             j.m == 1 ? ZFI_CONV_PLACES_ONE : ZFI_CONV_PLACES);
    j.places = zfi_round_up(zfi_strips_places(&j.strips, j.strips.size), zfi_conv_columns(&j));
    last = zfi_max(0, zfi_conv_rows_tiles(&j) - 1) * j.tile->rows;
    j.padded = last + zfi_conv_tile_rows(&j, last);
    if (zfi_is_half(l->args[0].dtype))
        j.pair = zfi_conv_floats(zfi_max(j.strips.channel, j.places));
    j.strip = zfi_conv_floats(j.words * j.strips.channel) + ZFI_CONV_BEYOND;
    j.out = zfi_conv_floats(zfi_min(j.padded, ZFI_CONV_ROWS) * j.places);
    zfi_conv_lay(&j, l, j.k, j.padded * j.row, 0);
    return j;
}

/* The place of a tap of a channel among the terms, in words: those of a tap lie together where tiles
 * are blocks, those of a word elsewhere. */
static int64_t zfi_conv_term(const zfi_conv_job *j, int64_t word, int64_t tap)
{
    return j->tile->blocks ? tap * j->words + word : word * zfi_conv_area(j->v.taps) + tap;
}

static void zfi_conv_set_at(zfi_conv_job *j)
{
    const int64_t taps = zfi_conv_area(j->v.taps), words = j->words ? j->words : j->inputs;
    for (int64_t word = 0; word < words; word++)
        for (int64_t tap = 0; tap < taps; tap++)
            j->at[zfi_conv_term(j, word, tap)] =
                word * j->strips.channel + zfi_strips_tap(&j->strips, tap);
}

/* Packs the weights of a tile of rows: [k][rows], or [rows][k] of blocks; beyond the last row and the
 * last channel 0. */
static void zfi_conv_pack(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zf_array *w = j->of[ZFI_CONV_W];
    const int64_t tiles = zfi_conv_rows_tiles(j), g = index / tiles,
                  first = index % tiles * j->tile->rows, rows = zfi_conv_tile_rows(j, first),
                  taps = zfi_conv_area(j->v.taps), half = j->tile->per_word - 1,
                  all = (j->back ? j->v.o : j->v.c) * taps, row = j->tile->blocks ? j->row : 1,
                  column = j->tile->blocks ? 1 : rows;
    float *to = j->w + (g * j->padded + first) * j->row, run[ZFI_CONV_RUN];
    uint16_t *halves = (uint16_t *)(void *)to;
    (void)worker;
    memset(to, 0, (size_t)(rows * j->row) * sizeof *to);
    for (int64_t r = 0; r < rows && first + r < j->m; r++)
        for (int64_t k = 0, c = 0, tap = 0, n; k < all; k += n) {
            const int64_t m = first + r;
            /* those of a row lie together, but for dx only those of a channel of dy */
            const int64_t from =
                j->back ? ((g * j->v.o + c) * j->v.c + m) * taps + tap : (g * j->v.o + m) * all + k;
            const float *of = run;
            const uint16_t *of_halves = zfi_element(w->data, w->dtype, from);
            n = zfi_min(ZFI_CONV_RUN, j->back ? taps - tap : all - k);
            if (!half) of = zfi_read_floats(j->isa, run, w, from, n);
            for (int64_t i = 0; i < n; i++) {
                const int64_t at = r * row + zfi_conv_term(j, c >> half, tap) * column;
                if (half) halves[2 * at + (c & 1)] = of_halves[i];
                else to[at] = of[i];
                if (++tap == taps) tap = 0, c++;
            }
        }
}

/* Rows m0 to m1 of the product of a group's weights with a strip: out[m - m0][place]. What a tile of
 * places reads of the strip stays in the nearest cache for all rows. */
static void zfi_conv_rows(const zfi_conv_job *j, int64_t g, int64_t m0, int64_t m1, int64_t places,
                          const float *strip, float *out)
{
    const int64_t columns = zfi_conv_columns(j);
    const int64_t block = zfi_max(1, zfi_matmul_k_block(zfi_tile_of(j->isa), zfi_max(1, j->k)));
    const float *w = j->w + g * j->padded * j->row;
    int64_t k0 = 0;
    if (j->tile->blocks) {
        j->tile->blocks(m1 - m0, places, j->k, w + m0 * j->row, j->row, strip, j->strips.channel,
                        j->at, out, j->places);
        return;
    }
    do {
        const int64_t k = zfi_min(block, j->k - k0);
        for (int64_t x = 0; x < places; x += columns)
            for (int64_t m = m0, rows; m < m1; m += rows) {
                int size = 0;
                rows = zfi_conv_tile_rows(j, m);
                while (1 << size < rows) size++;
                j->tile->product[size](k, w + m * j->k + k0 * rows, strip + x, j->at + k0,
                                       out + (m - m0) * j->places + x, j->places, k0 > 0);
            }
        k0 += k;
    } while (k0 < j->k);
}

/* The strip of a word: of a channel, or of two. */
static void zfi_conv_fill(const zfi_conv_job *j, int64_t its, int64_t word, const int64_t first[2],
                          const zfi_conv_parts *parts)
{
    const zfi_strips *s = &j->strips;
    const zf_array *from = j->of[j->back ? ZFI_CONV_Y : ZFI_CONV_X];
    const int64_t channels = j->back ? j->v.o : j->v.c, per = j->tile->per_word;
    float *to = parts->strip + word * s->channel;
    uint16_t *halves = (uint16_t *)(void *)parts->pair;
    for (int64_t h = 0; h < per; h++) {
        const int64_t c = word * per + h;
        void *at = per > 1 ? (void *)(halves + h * s->channel) : (void *)to;
        if (c < channels)
            zfi_strips_fill(s, j->isa, from, (its * channels + c) * zfi_conv_area(s->source), first,
                            at, parts->line);
        else memset(at, 0, (size_t)s->channel * sizeof *halves);
    }
    if (per > 1)
        zfi_strips_pair(j->isa, (uint32_t *)(void *)to, halves, halves + s->channel, s->channel);
}

/* A strip of places of a group of an image. */
static void zfi_conv_task(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_strips *s = &j->strips;
    const zfi_conv_parts parts = zfi_conv_parts_of(j, worker);
    const zf_array *to = j->of[j->back ? ZFI_CONV_X : ZFI_CONV_Y];
    const int64_t strips = zfi_strips_count(s), its = index / strips;
    int64_t first[2], size[2], places;
    zfi_strips_at(s, index % strips, first, size);
    places = zfi_strips_places(s, size);
    for (int64_t w = 0; w < j->words; w++) zfi_conv_fill(j, its, w, first, &parts);
    memset(parts.strip + j->words * s->channel, 0, ZFI_CONV_BEYOND * sizeof *parts.strip);
    for (int64_t m = 0; m < j->m; m += ZFI_CONV_ROWS) {
        const int64_t end = zfi_min(m + ZFI_CONV_ROWS, j->m);
        zfi_conv_rows(j, its % j->v.groups, m, end, places, parts.strip, parts.out);
        for (int64_t r = m; r < end; r++) {
            const void *row = parts.out + (r - m) * j->places;
            if (to->dtype != ZF_F32) {
                zfi_narrow(j->isa, parts.pair, to->dtype, row, places);
                row = parts.pair;
            }
            zfi_strips_copy(
                j->isa, to->dtype,
                zfi_element_of(to->data, to->dtype,
                               ((its * j->m + r) * s->all[0] + first[0]) * s->all[1] + first[1]),
                s->all[1], to->dtype, row, s->pitch, size[1], size[0]);
        }
    }
}

/* ----------------------------------------------------------------------------------- dw */

/* Columns of the sums that lie together: channels of dy, or with dots lanes. */
static int64_t zfi_conv_columns_w(const zfi_conv_job *j)
{
    return j->product ? 2 * j->product->lanes : j->tile->lanes;
}

/* Channels of a task of dw: as few as keep threads busy. */
static void zfi_conv_cut_w(zfi_conv_job *j, int threads)
{
    const int64_t taps = zfi_conv_area(j->v.taps),
                  least = j->product ? zfi_conv_columns_w(j) : ZFI_STRIP_DOTS,
                  least_inputs = j->product ? j->product->rows : 1,
                  tasks = (j->product ? 2 : 4) * (int64_t)threads;
    const int64_t most = j->product ? ZFI_CONV_TAPS : ZFI_CONV_TAPS_DOTS;
    j->inputs = zfi_min(j->v.c, zfi_max(1, most / taps));
    j->outputs = zfi_min(j->v.o, ZFI_CONV_OUTPUTS);
    while (j->v.groups * zfi_div_up(j->v.c, j->inputs) * zfi_div_up(j->v.o, j->outputs) < tasks) {
        if (j->outputs > least && j->product) j->outputs = zfi_round_up(j->outputs / 2, least);
        else if (j->inputs > least_inputs) j->inputs = zfi_div_up(j->inputs, 2);
        else if (j->outputs > least) j->outputs = zfi_round_up(j->outputs / 2, least);
        else break;
    }
}

static zfi_conv_job zfi_conv_job_w_of(const zf_launch *l)
{
    zfi_conv_job j = {.isa = zfi_cpu_of(l)->isa};
    int64_t taps, columns, outputs, halves = 0;
    j.v = zfi_conv_of(l, j.of);
    taps = zfi_conv_area(j.v.taps);
    j.tile = zfi_strip_tile_of(j.isa);
    if (j.v.o >= ZFI_CONV_FEW) {
        j.product = zfi_tile_of_product(j.isa, l->args[0].dtype);
        halves = j.product->per_word - 1;
    }
    zfi_conv_cut_w(&j, zfi_pool_threads(zfi_cpu_of(l)->pool));
    /* one for any number of channels: bits depend on the strips */
    j.strips = zfi_strips_of(&j.v, false, halves, 1, (halves + 1) * ZFI_CONV_WORDS_W);
    columns = zfi_conv_columns_w(&j);
    outputs = zfi_round_up(j.outputs, j.product ? columns : ZFI_STRIP_DOTS);
    j.places = zfi_round_up(zfi_strips_places(&j.strips, j.strips.size),
                            j.product ? j.product->per_word * j.product->k_unit : columns);
    j.strip =
        zfi_conv_floats(zfi_div_up(j.inputs * j.strips.channel, halves + 1)) + ZFI_CONV_BEYOND;
    j.out = zfi_conv_floats(zfi_div_up(outputs * j.places, halves + 1));
    if (j.product) j.panels = j.out, j.sums = zfi_conv_floats(outputs * taps * j.inputs);
    else
        j.sums = zfi_conv_floats(outputs * zfi_round_up(j.inputs * taps, ZFI_STRIP_TAPS) * columns);
    zfi_conv_lay(&j, l, taps * j.inputs, 0, j.inputs * taps);
    return j;
}

/* Some channels of x and of dy of a group. */
typedef struct zfi_conv_part {
    int64_t g, c0, o0, c, o, k; /* k: taps of its channels of x */
} zfi_conv_part;

static zfi_conv_part zfi_conv_part_of(const zfi_conv_job *j, int64_t index)
{
    const zfi_conv *v = &j->v;
    const int64_t inputs = zfi_div_up(v->c, j->inputs), outputs = zfi_div_up(v->o, j->outputs);
    zfi_conv_part p = {.g = index / outputs / inputs,
                       .c0 = index / outputs % inputs * j->inputs,
                       .o0 = index % outputs * j->outputs};
    p.c = zfi_min(j->inputs, v->c - p.c0), p.o = zfi_min(j->outputs, v->o - p.o0);
    p.k = p.c * zfi_conv_area(v->taps);
    return p;
}

static int64_t zfi_conv_dots(const zfi_conv_job *j) { return j->v.o == 1 ? 1 : ZFI_STRIP_DOTS; }

/* sums [dots of dy][three taps][those of dy][the taps][lane] += a strip's. */
static void zfi_conv_add_dots(const zfi_conv_job *j, const zfi_conv_part *p, int64_t places,
                              const zfi_conv_parts *parts)
{
    const int64_t dots = zfi_conv_dots(j), tiles = zfi_div_up(p->k, ZFI_STRIP_TAPS),
                  each = dots * ZFI_STRIP_TAPS * j->tile->lanes;
    for (int64_t i = 0; i < p->o; i += dots)
        for (int64_t t = 0; t < tiles; t++) {
            int64_t at[ZFI_STRIP_TAPS];
            for (int64_t q = 0; q < ZFI_STRIP_TAPS; q++)
                at[q] = j->at[zfi_min(t * ZFI_STRIP_TAPS + q, p->k - 1)];
            j->tile->dots[dots > 1](places, parts->out + i * j->places, j->places, parts->strip, at,
                                    parts->sums + (i / dots * tiles + t) * each);
        }
}

/* sums [columns of dy][tap][channel of x][column] += a strip's: a product of x, as each tap sees it,
 * with dy. */
static void zfi_conv_add_products(const zfi_conv_job *j, const zfi_conv_part *p, int64_t places,
                                  const zfi_conv_parts *parts)
{
    const zfi_tile *tile = j->product;
    const int64_t per = tile->per_word, words = zfi_tile_words(tile, places),
                  taps = zfi_conv_area(j->v.taps), columns = zfi_conv_columns_w(j),
                  row = j->strips.channel / per;
    const zfi_matmul_plan plan = {.tile = tile,
                                  .rows = zfi_div_up(p->c, zfi_div_up(p->c, tile->rows))};
    tile->pack(parts->panels, columns, parts->out, j->places, 1, p->o, words * per);
    for (int64_t i = 0; i < p->o; i += columns)
        for (int64_t t = 0; t < taps; t++)
            zfi_matmul_column(&plan, p->c, zfi_min(columns, zfi_round_up(p->o - i, tile->lanes)),
                              words, zfi_element(parts->strip, j->strips.dtype, j->at[t]), row, row,
                              1, parts->panels + i * words, columns,
                              parts->sums + (i * taps + t * columns) * p->c, columns, true);
}

/* The sum of dot k of row i. */
static float zfi_conv_sum_of(const zfi_conv_job *j, const zfi_conv_part *p, const float *sums,
                             int64_t i, int64_t k)
{
    const int64_t columns = zfi_conv_columns_w(j), taps = zfi_conv_area(j->v.taps),
                  dots = zfi_conv_dots(j), tiles = zfi_div_up(p->k, ZFI_STRIP_TAPS);
    float sum;
    if (j->product)
        return sums[((i / columns * taps + k % taps) * p->c + k / taps) * columns + i % columns];
    sums += (((i / dots * tiles + k / ZFI_STRIP_TAPS) * dots + i % dots) * ZFI_STRIP_TAPS +
             k % ZFI_STRIP_TAPS) *
            columns;
    sum = sums[0];
    for (int64_t lane = 1; lane < columns; lane++) sum += sums[lane];
    return sum;
}

/* dw of some channels of x and some of dy of a group: over all strips of all images in their order. */
static void zfi_conv_task_w(void *context, int64_t index, int worker)
{
    const zfi_conv_job *j = context;
    const zfi_conv *v = &j->v;
    const zfi_strips *s = &j->strips;
    const zf_array *x = j->of[ZFI_CONV_X], *dy = j->of[ZFI_CONV_Y], *dw = j->of[ZFI_CONV_W];
    const zfi_conv_part p = zfi_conv_part_of(j, index);
    const zfi_conv_parts parts = zfi_conv_parts_of(j, worker);
    const int64_t unit = j->product ? j->product->per_word * j->product->k_unit : j->tile->lanes,
                  taps = zfi_conv_area(v->taps);
    memset(parts.sums, 0, j->sums * sizeof *parts.sums);
    memset(zfi_element_of(parts.strip, s->dtype, p.c * s->channel), 0,
           ZFI_CONV_BEYOND * zf_dtype_size(s->dtype));
    for (int64_t n = 0; n < v->batch * zfi_strips_count(s); n++) {
        const int64_t its = n / zfi_strips_count(s) * v->groups + p.g;
        int64_t first[2], size[2], places;
        zfi_strips_at(s, n % zfi_strips_count(s), first, size);
        places = zfi_round_up(zfi_strips_places(s, size), unit);
        for (int64_t i = 0; i < p.c; i++)
            zfi_strips_fill(s, j->isa, x, (its * v->c + p.c0 + i) * zfi_conv_area(s->source), first,
                            zfi_element_of(parts.strip, s->dtype, i * s->channel), parts.line);
        for (int64_t i = 0; i < p.o; i++)
            zfi_strips_spread(s, j->isa, dy, (its * v->o + p.o0 + i) * zfi_conv_area(s->all), first,
                              size, places, zfi_element_of(parts.out, s->dtype, i * j->places));
        if (j->product) zfi_conv_add_products(j, &p, places, &parts);
        else zfi_conv_add_dots(j, &p, places, &parts);
    }
    for (int64_t i = 0; i < p.o; i++) {
        for (int64_t k = 0; k < p.k; k++) parts.row[k] = zfi_conv_sum_of(j, &p, parts.sums, i, k);
        zfi_narrow(
            j->isa,
            zfi_element_of(dw->data, dw->dtype, ((p.g * v->o + p.o0 + i) * v->c + p.c0) * taps),
            dw->dtype, parts.row, p.k);
    }
}
