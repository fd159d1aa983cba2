/* The fast kernels of attention (ops/attention.c).
 *
 * They split the scores of a head into blocks. A worker computes one at a time:
 *
 *                 keys
 *              +---+---+    Forward: along the keys for a block of queries, with the maximum and
 *      queries | S |   |    the sum of each row so far; y is scaled when the maximum grows.
 *              +---+---+    Backward: along the queries for a block of keys, whose dK and dV it
 *              |   |   |    adds up, while all of dQ is there. Where heads are too few for the
 *              +---+---+    threads, dK and dV of a block of keys are one task, and dQ of a block
 *                           of queries another. Every sum has one order, whichever it is.
 */

enum {
    ZFI_SCORE_BLOCK = 128,            /* elements of a block of q, k or v, about */
    ZFI_HEAD_BLOCK = 128 * 128,       /* from so many queries on, keys are packed */
    ZFI_RING_BLOCK = 64,              /* keys of a block where they are in a ring, at most */
    ZFI_QUERIES_APART = 32,           /* elements of a head's dQ in scratch, at most */
    ZFI_BLOCK_TOGETHER = 64,          /* tokens of a mask's block with all gradients in one task */
    ZFI_GRADIENT_IN_SCRATCH = 1 << 22 /* maximum number of elements of a head's dQ that stay in
                                       * scratch */
};

/* Parts of a worker's scratch. Tokens are stored in three forms: as the left operand of a product;
 * as the right operand with k along the tokens; and transposed (T) as the right operand with the
 * tokens along the columns. */
enum {
    ZFI_AT_Q,
    ZFI_AT_Q_RIGHT,
    ZFI_AT_DY,
    ZFI_AT_DY_RIGHT,
    ZFI_AT_K_RIGHT, /* or v */
    ZFI_AT_KT,
    ZFI_AT_VT,
    ZFI_AT_S,
    ZFI_AT_DS,
    ZFI_AT_P_HALF, /* s and ds in 16 bits, and packed as the left operand of a sum over queries */
    ZFI_AT_DS_HALF,
    ZFI_AT_TURNED,
    ZFI_AT_Y, /* or dQ */
    ZFI_AT_DK,
    ZFI_AT_DV,
    ZFI_AT_MOST, /* or lse */
    ZFI_AT_SUM,  /* or D */
    ZFI_AT_FIX,
    ZFI_AT_DRAW, /* dropout's draws for ZFI_SCORE_ROWS rows of scores */
    ZFI_AT_BIAS, /* the bias of the same rows */
    ZFI_AT_CAP,  /* tanh of the same rows, where scores are capped */
    ZFI_AT_ZERO, /* zeros: no bias, no dropout */
    ZFI_AT_ROWS, /* two rows of tokens */
    ZFI_AT_TOKENS, /* of a block mask: tokens of several blocks */
    ZFI_AT_MORE_TOKENS,
    ZFI_AT_END
};

/* How a launch is split into blocks. The bits depend on tiles and key blocks, in the backward pass
 * on query blocks too. None of these depends on the number of threads. Sizes are in elements. */
typedef struct zfi_attention_cut {
    zfi_attention a;
    const zf_launch *launch;
    zfi_attention_out to; /* backward */
    zfi_isa isa;
    const zfi_tile *tile;
    zf_dtype dtype;
    bool half;              /* tiles read bf16 */
    int64_t rows, key_rows; /* rows of a tile of queries, and of a tile of keys */
    int64_t queries, keys;  /* of a block */
    int64_t query_blocks, key_blocks;
    int64_t columns, words, width; /* columns of a tile; words of d; width of a row of f32 in
                                    * scratch */
    bool direct;                   /* d is whole vectors of f32: gradients are computed in place */
    bool apart;                    /* backward: dK and dV in one task, dQ in another */
    size_t part[ZFI_AT_END + 1];
} zfi_attention_cut;

/* Tiles are those of blocks that a block mask lists (attention_blocks.c). */
static bool zfi_goes_by_blocks(const zfi_attention *a) { return a->block && !a->by_element; }

/* The size of equal blocks of n, at most `most` before it is rounded up to a multiple of `unit`. */
static int64_t zfi_attention_block(int64_t n, int64_t most, int64_t unit)
{
    return zfi_round_up(zfi_div_up(n, zfi_div_up(n, most)), unit);
}

static void zfi_attention_parts(zfi_attention_cut *c, bool backward)
{
    size_t m = (size_t)c->a.m, keys = (size_t)c->keys, queries = (size_t)c->queries;
    size_t width = (size_t)c->width, s = queries * keys, size[ZFI_AT_END] = {0};
    size_t tall = (size_t)zfi_round_up(c->a.d, c->columns); /* rows of a right operand along
                                                             * tokens */
    size_t group = (size_t)c->a.group;
    size[ZFI_AT_Q] = queries * width;
    size[ZFI_AT_K_RIGHT] = keys * tall;
    size[ZFI_AT_KT] = (size_t)zfi_round_up(c->keys, c->columns) * (size_t)c->words;
    size[ZFI_AT_S] = s;
    size[ZFI_AT_P_HALF] = c->half ? s / 2 : 0;
    size[ZFI_AT_BIAS] = ZFI_SCORE_ROWS * keys;
    size[ZFI_AT_DRAW] = size[ZFI_AT_BIAS] / 2;
    size[ZFI_AT_CAP] = c->a.cap > 0 ? size[ZFI_AT_BIAS] : 0;
    size[ZFI_AT_ZERO] = keys;
    size[ZFI_AT_ROWS] = 2 * width;
    size[ZFI_AT_MOST] = size[ZFI_AT_SUM] =
        backward && !zfi_goes_by_blocks(&c->a) ? m * group : queries;
    if (zfi_goes_by_blocks(&c->a))
        size[ZFI_AT_TOKENS] = (backward && queries > keys ? queries : keys) * width;
    if (zfi_goes_by_blocks(&c->a) && backward) size[ZFI_AT_MORE_TOKENS] = size[ZFI_AT_TOKENS];
    if (backward) {
        size[ZFI_AT_DY] = size[ZFI_AT_Q];
        size[ZFI_AT_Q_RIGHT] = size[ZFI_AT_DY_RIGHT] =
            (size_t)(c->tile->per_word * zfi_tile_words(c->tile, c->queries)) * tall;
        size[ZFI_AT_VT] = size[ZFI_AT_KT];
        size[ZFI_AT_DS] = s;
        size[ZFI_AT_DS_HALF] = size[ZFI_AT_P_HALF];
        size[ZFI_AT_TURNED] =
            c->half ? (keys + ZFI_TILE_ROWS) * (size_t)zfi_tile_words(c->tile, c->queries) : 0;
        if (!c->direct) {
            size[ZFI_AT_Y] = (c->apart ? queries : m * group) * width;
            size[ZFI_AT_DK] = size[ZFI_AT_DV] = keys * width;
        }
    } else {
        size[ZFI_AT_Y] = queries * width;
        size[ZFI_AT_FIX] = queries;
    }
    for (int part = 0; part < ZFI_AT_END; part++)
        c->part[part + 1] = c->part[part] + (size[part] + 15) / 16 * 16;
}

/* The cut of a block mask: rows of it are cut into blocks, and tiles hold several of them. A task
 * that computes all gradients has one block of keys in a tile: small blocks would waste it. */
static void zfi_attention_cut_blocks(zfi_attention_cut *c, bool backward)
{
    const int64_t block = c->a.block, rows = c->tile->rows;
    c->queries = backward ? ZFI_SCORE_BLOCK : block;
    c->keys = ZFI_SCORE_BLOCK;
    c->rows = c->key_rows = zfi_div_up(block, zfi_div_up(block, rows));
    c->query_blocks = c->key_blocks = c->a.blocks;
    c->apart = c->apart || block < ZFI_BLOCK_TOGETHER;
}

static zfi_attention_cut zfi_attention_cut_of(const zf_launch *l, zfi_attention a, bool backward)
{
    zfi_attention_cut c = {.a = a, .launch = l};
    int64_t threads = zfi_pool_threads(zfi_cpu_of(l)->pool);
    int64_t heads = c.a.batch * (backward ? c.a.kv_heads : c.a.heads);
    int64_t m = c.a.m, n = c.a.kept, most, wanted;
    c.isa = zfi_cpu_of(l)->isa;
    c.dtype = c.a.q->dtype;
    c.tile = zfi_tile_of_product(c.isa, c.dtype);
    c.half = c.tile->per_word > 1;
    c.columns = 2 * c.tile->lanes;
    c.words = zfi_tile_words(c.tile, c.a.d);
    c.rows = zfi_div_up(m, zfi_div_up(m, c.tile->rows));
    most = zfi_max(32, zfi_min(ZFI_SCORE_BLOCK, ZFI_HEAD_BLOCK / c.a.d));
    c.keys = zfi_attention_block(n, most, ZFI_SCORE_LANES);
    if (c.a.past) c.keys = zfi_round_up(zfi_min(n, most), ZFI_SCORE_LANES); /* of any context alike */
    if (n < c.a.n) c.keys = zfi_min(most, ZFI_RING_BLOCK) / 32 * 32; /* no block crosses the end */
    c.key_rows = zfi_div_up(c.keys, zfi_div_up(c.keys, c.tile->rows));
    c.queries = zfi_attention_block(m, most, c.rows);
    if (!backward && threads > 1) { /* a row has the same bits in every block of queries */
        wanted = zfi_min(zfi_div_up(4 * threads, heads), zfi_div_up(m, ZFI_QUERIES_APART));
        c.queries = zfi_min(c.queries, zfi_round_up(zfi_div_up(m, wanted), c.rows));
    }
    c.query_blocks = zfi_div_up(m, c.queries);
    c.key_blocks = zfi_div_up(n, c.keys);
    c.width = zfi_round_up(c.a.d, c.tile->lanes);
    c.direct = c.a.d == c.width && c.dtype == ZF_F32 && l->op != ZF_OP_attention_backward;
    if (backward) c.to = zfi_attention_out_of(&c.a, l);
    /* Two separate tasks compute seven products, one task for all computes five. */
    c.apart = 5 * zfi_round_up(heads, threads) > 7 * heads + 4 * threads / c.key_blocks ||
              (!c.direct && m > ZFI_GRADIENT_IN_SCRATCH / (c.width * c.a.group));
    if (zfi_goes_by_blocks(&a)) zfi_attention_cut_blocks(&c, backward);
    zfi_attention_parts(&c, backward);
    return c;
}

/* The block kernels take f32, bf16 and f16, and no empty tensors. */
static bool zfi_attention_fast(const zf_launch *l, const zfi_attention *a)
{
    return zfi_fast_or_half(l) && a->d > 0 && a->m > 0 && a->n > 0;
}

static size_t zfi_attention_scratch(const zf_launch *l, zfi_attention a, bool backward)
{
    size_t threads = (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool), n = (size_t)a.kept;
    if (!a.batch) return 0;
    if (zfi_attention_fast(l, &a))
        return threads * zfi_attention_cut_of(l, a, backward).part[ZFI_AT_END] * sizeof(float);
    return threads * (backward ? 2 * n + 2 * n * (size_t)a.d : n) * sizeof(double);
}

static size_t zfi_scratch_attention(const zf_launch *l)
{
    return zfi_attention_scratch(l, zfi_attention_of(l, 0), false);
}

static size_t zfi_scratch_attention_grad(const zf_launch *l)
{
    return zfi_attention_scratch(l, zfi_attention_of(l, 3), true);
}

/* What a task knows: the blocks, its worker's scratch, and the rows to prefetch. */
typedef struct zfi_attention_worker {
    const zfi_attention_cut *c;
    float *scratch;
    zfi_soon soon;
} zfi_attention_worker;

static zfi_attention_worker zfi_attention_worker_of(const zfi_attention_cut *c, int worker)
{
    zfi_attention_worker w = {
        .c = c, .scratch = (float *)c->launch->scratch + (size_t)worker * c->part[ZFI_AT_END]};
    memset(w.scratch + c->part[ZFI_AT_ZERO], 0, (size_t)c->keys * sizeof(float));
    return w;
}

static float *zfi_part_of(const zfi_attention_worker *w, int part)
{
    return w->scratch + w->c->part[part];
}

/* The element of q or y at which token t of head `head` begins. */
static int64_t zfi_attention_at(const zfi_attention *a, int64_t head, int64_t tokens, int64_t t,
                                int64_t row)
{
    return (head / a->heads * tokens + t) * row + head % a->heads * a->d;
}

/* Tokens as the left operand: in place where their layout is good, else copied. */
static zfi_left zfi_left_of(const zfi_attention_worker *w, int part, const zf_array *x, int64_t at,
                            int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *aside = zfi_part_of(w, part);
    /* rows that are 4 KiB apart share one set of the cache */
    bool apart = row % 1024 || rows <= 6 || c->tile->column;
    if (c->half && c->a.d % (2 * c->tile->k_unit) == 0 && row % 2 == 0 && apart)
        return (zfi_left){zfi_array_at(x, at), row / 2, row / 2, 1};
    if (c->half) {
        uint16_t *to = (uint16_t *)(void *)aside;
        for (int64_t r = 0; r < rows; r++, to += 2 * c->words) {
            memcpy(to, zfi_array_at(x, at + r * row), (size_t)c->a.d * sizeof *to);
            for (int64_t i = c->a.d; i < 2 * c->words; i++) to[i] = 0;
        }
        return (zfi_left){aside, c->words, c->words, 1};
    }
    if (x->dtype == ZF_F32 && apart) return (zfi_left){zfi_array_at(x, at), row, row, 1};
    zfi_load_rows(c->isa, aside, c->width, x, at, row, rows, c->a.d);
    return (zfi_left){aside, c->width, c->width, 1};
}

/* Tokens as the right operand with k along the tokens. */
static zfi_right zfi_right_of(const zfi_attention_worker *w, int part, const zf_array *x,
                              int64_t at, int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *aside = zfi_part_of(w, part);
    if (c->half) {
        c->tile->pack(aside, c->columns, zfi_array_at(x, at), 1, row, c->a.d, rows);
        return (zfi_right){aside, c->columns, c->columns * zfi_tile_words(c->tile, rows)};
    }
    if (c->direct && zfi_short_rows(row, rows))
        return (zfi_right){zfi_array_at(x, at), row, c->columns};
    zfi_load_rows(c->isa, aside, c->width, x, at, row, rows, c->a.d);
    return (zfi_right){aside, c->width, c->columns};
}

/* Tokens transposed, as the right operand: scores are the queries times this. */
static zfi_right zfi_turned_of(const zfi_attention_worker *w, int part, const zf_array *x,
                               int64_t at, int64_t row, int64_t rows)
{
    const zfi_attention_cut *c = w->c;
    float *to = zfi_part_of(w, part);
    const void *from = zfi_array_at(x, at);
    if (c->half || x->dtype == ZF_F32) c->tile->pack(to, c->columns, from, row, 1, rows, c->a.d);
    else zfi_pack_widened(c->isa, x->dtype, to, c->columns, from, row, 1, rows, c->a.d);
    return (zfi_right){to, c->columns, c->columns * c->words};
}

/* A block of scores: queries m..m+rows-1 and keys n..n+keys-1 of a head of q. With causal masking,
 * row i sees the first `seen` + i of these keys, at most all; without the first `seen` + i - window
 * of them, if there is a window; and none outside of its document. */
typedef struct zfi_scores {
    int64_t head, m, rows, n, keys, seen, window;
    const int32_t *documents; /* of these queries (documents.c), or NULL */
    int64_t place;            /* of key n among those of documents */
    int64_t row, column;      /* where it begins within the scores in scratch */
} zfi_scores;

static zfi_scores zfi_scores_of(const zfi_attention_cut *c, int64_t head, int64_t m, int64_t n)
{
    const zfi_attention *a = &c->a;
    int64_t b = head / a->heads;
    return (zfi_scores){head,
                        m,
                        zfi_min(c->queries, zfi_attention_queries(a, b) - m),
                        n,
                        zfi_min(c->keys, a->n - n),
                        a->causal ? zfi_attention_reaches(a, b, m) - n : INT64_MAX / 4,
                        a->window < a->all + a->ahead ? a->window : INT64_MAX / 2,
                        a->documents ? a->documents + 2 * (b * a->m + m) : NULL,
                        a->key + n, 0, 0};
}

/* The first key of a block that its row r sees. */
static int64_t zfi_row_first(const zfi_scores *b, int64_t r)
{
    int64_t first = b->seen + r - b->window;
    if (b->documents) first = zfi_max(first, b->documents[2 * r] - b->place);
    return zfi_max(0, zfi_min(b->keys, first));
}

/* The number of keys of a block up to the last that its row r sees. */
static int64_t zfi_row_sees(const zfi_scores *b, int64_t r)
{
    int64_t seen = b->seen + r;
    if (b->documents) seen = zfi_min(seen, b->documents[2 * r + 1] - b->place);
    return zfi_max(0, zfi_min(b->keys, seen));
}

/* Whether any row sees any key of the block: the last row has the last key, the first the first. */
static bool zfi_block_is_seen(const zfi_scores *b)
{
    bool seen = b->seen + b->rows > 1 && b->seen - b->window < b->keys;
    if (!b->documents || !seen) return seen;
    seen = false;
    for (int64_t r = 0; r < b->rows && !seen; r++) seen = zfi_row_first(b, r) < zfi_row_sees(b, r);
    return seen;
}

/* The most and the least of zfi_row_sees of some rows. */
static int64_t zfi_rows_see(const zfi_scores *b, int64_t r, int64_t rows)
{
    int64_t most = zfi_row_sees(b, r + rows - 1);
    for (int64_t i = r; i < r + rows && b->documents; i++) most = zfi_max(most, zfi_row_sees(b, i));
    return most;
}

static int64_t zfi_rows_all_see(const zfi_scores *b, int64_t r, int64_t rows)
{
    int64_t least = zfi_row_sees(b, r);
    for (int64_t i = r; i < r + rows && b->documents; i++) least = zfi_min(least, zfi_row_sees(b, i));
    return least;
}

/* The keys, from the first of a block on, that the queries m..m+rows-1 of an example see. */
typedef struct zfi_key_span {
    int64_t first, end;
} zfi_key_span;

static zfi_key_span zfi_key_span_of(const zfi_attention_cut *c, int64_t b, int64_t m, int64_t rows)
{
    const zfi_attention *a = &c->a;
    zfi_key_span span = {zfi_attention_first(a, b, m), zfi_attention_seen(a, b, m + rows - 1)};
    if (a->documents) span = (zfi_key_span){a->n, 0};
    for (int64_t r = m; r < m + rows && a->documents; r++) {
        const int64_t first = zfi_attention_first(a, b, r), end = zfi_attention_seen(a, b, r);
        if (first >= end) continue; /* it sees none */
        span.first = zfi_min(span.first, first), span.end = zfi_max(span.end, end);
    }
    span.first = span.first / c->keys * c->keys;
    return span;
}

/* The bias of the rows from `first` on, x->n elements each; 0 where there is no key, or where the
 * row does not see it. */
static void zfi_bias_of(const zfi_attention_worker *w, const zfi_scores *b, int64_t first,
                        zfi_score_rows *x)
{
    const zfi_attention_cut *c = w->c;
    const int64_t *step = c->a.bias_step;
    int64_t rows = x->rows, at = b->head / c->a.heads * step[0] + b->head % c->a.heads * step[1] +
                                 (b->m + first) * step[2] + b->n * step[3];
    bool all = zfi_rows_all_see(b, first, rows) == b->keys;
    float *to = zfi_part_of(w, ZFI_AT_BIAS);
    if (!c->a.bias) return;
    x->bias_row = step[2];
    x->bias = zfi_array_at(c->a.bias, at);
    if (all && step[3] && b->keys == x->n && c->dtype == ZF_F32) return;
    if (all && !step[2]) rows = 1;
    x->bias = to;
    x->bias_row = rows == 1 ? 0 : c->keys;
    for (int64_t r = 0; r < rows; r++, at += step[2], to += c->keys) {
        int64_t has = zfi_row_sees(b, first + r), there = step[3] ? has : zfi_min(has, 1);
        zfi_load_rows(c->isa, to, x->n, c->a.bias, at, 0, 1, there);
        for (int64_t i = 1; i < has && !step[3]; i++) to[i] = to[0];
    }
}

/* Dropout's draws for the same rows. */
static void zfi_draws_of(const zfi_attention_worker *w, const zfi_scores *b, int64_t first,
                         zfi_score_rows *x)
{
    const zfi_attention *a = &w->c->a;
    const zfi_drop *d = &a->drop;
    uint16_t *draw = (uint16_t *)(void *)zfi_part_of(w, ZFI_AT_DRAW);
    uint64_t at = d->element;
    int64_t rows = x->rows, n = x->n;
    if (!a->drops) return;
    at += (uint64_t)(zfi_attention_drop_at(a, b->head, b->m + first) + b->n);
    x->draw = draw;
    x->draw_row = n;
    x->threshold = d->threshold;
    if (n == a->all)
        n *= rows, rows = 1; /* the rows are neighbours in the tensor: draw them as
                                         * one */
    for (int64_t r = 0; r < rows; r++, at += (uint64_t)a->all, draw += n)
        zfi_random_halves(w->c->isa, draw, at, n, d->stream, d->step, d->seed);
}

/* Rows of a block, converted to bf16 where tiles read bf16. */
static void zfi_halve_rows(const zfi_attention_worker *w, int part, int64_t first, int64_t rows,
                           const float *s)
{
    int64_t line = w->c->keys;
    if (w->c->half)
        zfi_narrow_bf16(w->c->isa, (uint16_t *)(void *)zfi_part_of(w, part) + first * line, s,
                        rows * line);
}

/* Sets elements from..end-1 of row i of the scores to `score`, and those of ds to 0. */
static void zfi_hide(const zfi_score_rows *x, int64_t i, int64_t from, int64_t end, float score)
{
    float *s = x->s + i * x->line;
    for (int64_t k = from; k < end; k++) s[k] = score;
    if (x->ds && from < end)
        memset(x->ds + i * x->line + from, 0, (size_t)(end - from) * sizeof *x->ds);
}

/* Rows r.. of a block or tile, n elements each, without bias and dropout. */
static zfi_score_rows zfi_score_rows_of(const zfi_attention_worker *w, int64_t r, int64_t rows,
                                        int64_t n, float *s, float *ds, float *most, float *sum,
                                        float *fix)
{
    const zfi_attention_cut *c = w->c;
    return (zfi_score_rows){
        .s = s + r * c->keys,
        .ds = ds ? ds + r * c->keys : NULL,
        .rows = rows,
        .n = n,
        .line = c->keys,
        .bias = zfi_part_of(w, ZFI_AT_ZERO),
        .draw = (const uint16_t *)(const void *)zfi_part_of(w, ZFI_AT_ZERO),
        .threshold = 1,
        .scale = (float)c->a.scale,
        .keep = (float)c->a.keep,
        .most = most + r,
        .sum = sum + r,
        .fix = ds ? NULL : fix + r,
        .lse = most + r,
        .delta = sum + r};
}

/* Sets the scores of row r, row i of x, that its query does not see for the block mask. */
static void zfi_hide_unlisted(const zfi_attention_worker *w, const zfi_scores *b,
                              const zfi_score_rows *x, int64_t r, int64_t i, float score)
{
    const zfi_attention *a = &w->c->a;
    const int64_t end = zfi_row_sees(b, r),
                  row = zfi_attention_past(a, b->head / a->heads) + b->m + r;
    zfi_block_list list;
    if (!a->by_element) return;
    list = zfi_attention_list(a, b->head, row / a->block, false);
    for (int64_t n = zfi_row_first(b, r), k = 0, until; n < end; n = until) {
        const int64_t block = (b->n + n) / a->block;
        until = zfi_min(end, (block + 1) * a->block - b->n);
        while (k < list.count && list.at[k] < block) k++;
        if (k == list.count || list.at[k] != block) zfi_hide(x, i, n, until, score);
    }
}

/* Whether the block mask lists any key of a block of scores for any of its rows. */
static bool zfi_block_is_listed(const zfi_attention *a, const zfi_scores *b)
{
    const int64_t first = zfi_attention_past(a, b->head / a->heads) + b->m,
                  last = first + b->rows - 1;
    if (!a->by_element) return true;
    for (int64_t row = first / a->block; row <= last / a->block; row++) {
        const zfi_block_list list = zfi_attention_list(a, b->head, row, false);
        for (int64_t k = 0; k < list.count; k++)
            if (list.at[k] >= b->n / a->block && list.at[k] <= (b->n + b->keys - 1) / a->block)
                return true;
    }
    return false;
}

/* Caps the scaled scores of some rows. */
static void zfi_cap_rows(const zfi_attention_worker *w, zfi_score_rows *x)
{
    const float cap = (float)w->c->a.cap, by = x->scale / cap;
    float *t = zfi_part_of(w, ZFI_AT_CAP), *s = x->s;
    if (!(w->c->a.cap > 0)) return;
    for (int64_t i = 0; i < x->rows; i++, s += x->line, t += x->n) {
        for (int64_t k = 0; k < x->n; k++) s[k] *= by;
        zfi_vtanh(w->c->isa, t, s, x->n);
        for (int64_t k = 0; k < x->n; k++) s[k] = cap * t[k];
    }
    x->scale = 1;
}

/* Their gradients become those of products. */
static void zfi_cap_grad_rows(const zfi_attention_worker *w, const zfi_score_rows *x)
{
    const float scale = (float)w->c->a.scale, *t = zfi_part_of(w, ZFI_AT_CAP);
    float *ds = x->ds;
    if (!(w->c->a.cap > 0)) return;
    for (int64_t i = 0; i < x->rows; i++, ds += x->line, t += x->n)
        for (int64_t k = 0; k < x->n; k++) ds[k] *= scale * (1 - t[k] * t[k]);
}

/* Turns a block of products into what the next product reads. ds is NULL in the forward pass. */
static void zfi_attend_block(const zfi_attention_worker *w, const zfi_scores *b, float *s,
                             float *ds, float *most, float *sum, float *fix)
{
    const zfi_attention_cut *c = w->c;
    for (int64_t r = 0; r < b->rows; r += ZFI_SCORE_ROWS) {
        int64_t rows = zfi_min(ZFI_SCORE_ROWS, b->rows - r);
        int64_t n = zfi_round_up(zfi_rows_see(b, r, rows), ZFI_SCORE_LANES);
        zfi_score_rows x = zfi_score_rows_of(w, r, rows, n, s, ds, most, sum, fix);
        zfi_bias_of(w, b, r, &x);
        zfi_draws_of(w, b, r, &x);
        zfi_cap_rows(w, &x);
        for (int64_t i = 0; i < rows; i++) {
            zfi_hide(&x, i, 0, zfi_row_first(b, r + i), -INFINITY);
            zfi_hide(&x, i, zfi_row_sees(b, r + i), x.n, -INFINITY);
            zfi_hide_unlisted(w, b, &x, r + i, i, -INFINITY);
        }
        if (ds) zfi_attend_grad_rows(c->isa, &x), zfi_cap_grad_rows(w, &x);
        else zfi_attend_rows(c->isa, &x);
        for (int64_t i = 0; i < rows; i++) {
            zfi_hide(&x, i, 0, zfi_row_first(b, r + i), 0);
            zfi_hide(&x, i, zfi_row_sees(b, r + i), c->keys, 0);
        }
        zfi_halve_rows(w, ZFI_AT_P_HALF, r, rows, x.s);
        if (ds) zfi_halve_rows(w, ZFI_AT_DS_HALF, r, rows, x.ds);
    }
}

/* s = a k^T for a block; a: its queries, turned: its keys transposed. */
static void zfi_score_product(zfi_attention_worker *w, const zfi_scores *b, float *s, zfi_left a,
                              zfi_right turned)
{
    const zfi_attention_cut *c = w->c;
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_SCORES,
                                          .m = b->rows,
                                          .n = b->keys,
                                          .k = c->a.d,
                                          .rows = c->rows,
                                          .a = a,
                                          .b = turned,
                                          .c = s,
                                          .c_row = c->keys,
                                          .seen = b->seen},
                      &w->soon);
}

/* y (+)= s x, summed over the keys of a block; x: the keys' rows; half: s in bf16. */
static void zfi_keys_product(zfi_attention_worker *w, const zfi_scores *b, float *y, int64_t y_row,
                             const float *s, int half, zfi_right x, bool add)
{
    const zfi_attention_cut *c = w->c;
    int64_t line = c->keys / c->tile->per_word;
    const float *from = c->half ? zfi_part_of(w, half) : s;
    from += b->row * line + b->column / c->tile->per_word;
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_OVER_KEYS,
                                          .m = b->rows,
                                          .n = c->a.d,
                                          .k = b->keys,
                                          .rows = c->rows,
                                          .a = {from, line, line, 1},
                                          .b = x,
                                          .c = y,
                                          .c_row = y_row,
                                          .add = add,
                                          .seen = b->seen},
                      &w->soon);
}

/* y (+)= s^T x, summed over the queries of a block. */
static void zfi_queries_product(zfi_attention_worker *w, const zfi_scores *b, float *y,
                                int64_t y_row, const float *s, int half, zfi_right x, bool add)
{
    const zfi_attention_cut *c = w->c;
    zfi_left a = {s, 1, 1, c->keys};
    if (c->half) {
        float *turned = zfi_part_of(w, ZFI_AT_TURNED);
        const int64_t words = zfi_tile_words(c->tile, b->rows);
        zfi_pack *pack = c->tile->pack_a ? c->tile->pack_a : c->tile->pack;
        pack(turned, c->key_rows, zfi_part_of(w, half), 1, c->keys, b->keys, b->rows);
        a = (zfi_left){turned, words, 1, c->key_rows};
        if (c->tile->pack_a) a.row = words, a.col = 1;
    }
    zfi_multiply_part(c->tile,
                      &(zfi_part_product){.form = ZFI_OVER_QUERIES,
                                          .m = b->keys,
                                          .n = c->a.d,
                                          .k = b->rows,
                                          .rows = c->key_rows,
                                          .a = a,
                                          .b = x,
                                          .c = y,
                                          .c_row = y_row,
                                          .add = add,
                                          .seen = b->seen},
                      &w->soon);
}

/* Prefetches what follows block b of a task: the next keys, or the first of the next task. */
static void zfi_attention_soon(zfi_attention_worker *w, int64_t index, const zfi_scores *b,
                               int64_t end)
{
    const zfi_attention_cut *c = w->c;
    zfi_soon *soon = &w->soon;
    const zfi_attention *a = &c->a;
    int64_t head = b->head, n = b->n + c->keys, m, rows, keys;
    *soon = (zfi_soon){.bytes = (size_t)a->d * zf_dtype_size(a->q->dtype)};
    if (n >= end) {
        zfi_soon_add(soon, &c->launch->out, zfi_attention_at(a, head, a->m, b->m, a->heads * a->d),
                     a->heads * a->d, b->rows);
        head = (index + 1) / c->query_blocks, n = 0;
        if (head >= a->batch * a->heads) return;
        m = (index + 1) % c->query_blocks * c->queries;
        rows = zfi_min(c->queries, a->m - m);
        zfi_soon_add(soon, a->q, a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row,
                     rows);
        if (head == b->head) return;
    } else if (b->m > 0) {
        return; /* already prefetched with earlier queries */
    }
    keys = zfi_min(c->keys, a->n - n);
    zfi_soon_add(soon, a->k, zfi_attention_kv(a, a->k_at, head, n), a->kv_row, keys);
    zfi_soon_add(soon, a->v, zfi_attention_kv(a, a->v_at, head, n), a->kv_row, keys);
}

/* Divides rows of y by their sums, and stores them from element out_at on, and lse from lse_at
 * on. */
static void zfi_attention_finish(const zfi_attention_worker *w, const zf_array *out, int64_t out_at,
                                 int64_t rows, const zf_array *lse, int64_t lse_at)
{
    const zfi_attention_cut *c = w->c;
    const int64_t width = c->width, d = c->a.d, hidden = c->a.heads * d;
    float *y = zfi_part_of(w, ZFI_AT_Y), *most = zfi_part_of(w, ZFI_AT_MOST);
    float *sum = zfi_part_of(w, ZFI_AT_SUM), *fix = zfi_part_of(w, ZFI_AT_FIX);
    for (int64_t i = 0; i < rows; i++) {
        if (sum[i] == 0) memset(y + i * width, 0, (size_t)width * sizeof *y);
        fix[i] = sum[i] == 0 ? 0 : (float)c->a.keep / sum[i];
    }
    if (c->direct) {
        zfi_scale_rows(c->isa, zfi_array_at(out, out_at), hidden, y, width, rows, d, fix, 1);
    } else {
        zfi_scale_rows(c->isa, y, width, y, width, rows, width, fix, 1);
        zfi_store_rows(c->isa, out, out_at, hidden, y, width, rows, d);
    }
    if (!lse) return;
    zfi_vlog(c->isa, sum, sum, rows);
    for (int64_t i = 0; i < rows; i++) ((float *)lse->data)[lse_at + i] = most[i] + sum[i];
}

/* A task: one block of queries of one head, over all keys. */
static void zfi_attention_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    const zfi_attention *a = &c->a;
    const zf_array *lse = zfi_saved_out(c->launch, 0);
    zfi_attention_worker w = zfi_attention_worker_of(c, worker);
    int64_t head = index / c->query_blocks, m = index % c->query_blocks * c->queries;
    int64_t b = head / a->heads, hidden = a->heads * a->d;
    int64_t rows = zfi_min(c->queries, zfi_attention_queries(a, b) - m);
    zfi_key_span span;
    bool begun = false; /* y has sums of keys */
    int64_t out_at = zfi_attention_at(a, head, a->m, m, hidden);
    float *s = zfi_part_of(&w, ZFI_AT_S), *y = zfi_part_of(&w, ZFI_AT_Y);
    float *most = zfi_part_of(&w, ZFI_AT_MOST), *sum = zfi_part_of(&w, ZFI_AT_SUM);
    float *fix = zfi_part_of(&w, ZFI_AT_FIX);
    zfi_left q = zfi_left_of(&w, ZFI_AT_Q, a->q,
                             a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row, rows);
    if (rows <= 0) return;
    span = zfi_key_span_of(c, b, m, rows);
    for (int64_t i = 0; i < rows; i++) most[i] = -INFINITY, sum[i] = 0;
    for (int64_t n = span.first; n < span.end; n += c->keys) {
        zfi_scores block = zfi_scores_of(c, head, m, n);
        if (!zfi_block_is_listed(a, &block)) continue;
        zfi_right kt = zfi_turned_of(&w, ZFI_AT_KT, a->k, zfi_attention_kv(a, a->k_at, head, n),
                                     a->kv_row, block.keys);
        zfi_right v = zfi_right_of(&w, ZFI_AT_K_RIGHT, a->v, zfi_attention_kv(a, a->v_at, head, n),
                                   a->kv_row, block.keys);
        zfi_attention_soon(&w, index, &block, span.end);
        zfi_score_product(&w, &block, s, q, kt);
        zfi_attend_block(&w, &block, s, NULL, most, sum, fix);
        if (begun) zfi_scale_rows(c->isa, y, c->width, y, c->width, rows, c->width, fix, 1);
        zfi_keys_product(&w, &block, y, c->width, s, ZFI_AT_P_HALF, v, begun);
        begun = true;
    }
    zfi_attention_finish(&w, &c->launch->out, out_at, rows, lse, head * a->m + m);
}

/* Blocks of scores in the backward pass: key blocks j0..j1-1 by query blocks i0..i1-1 of heads
 * h0..h1-1 of q, which read one head of k and v. */
typedef struct zfi_attention_range {
    int64_t h0, h1, i0, i1, j0, j1;
    bool dq, dkv; /* which gradients to compute */
} zfi_attention_range;

/* Rows of a gradient: the address where they are computed, and the distance between rows. */
typedef struct zfi_gradient_rows {
    float *at;
    int64_t row;
} zfi_gradient_rows;

static zfi_gradient_rows zfi_gradient_rows_of(const zfi_attention_worker *w, int part,
                                              const zf_array *to, int64_t at, int64_t row)
{
    if (!w->c->direct) return (zfi_gradient_rows){zfi_part_of(w, part), w->c->width};
    return (zfi_gradient_rows){zfi_array_at(to, at), row};
}

/* The element of the result at which the gradient of key n begins, in k or v of head `head` of
 * q. */
static int64_t zfi_gradient_at(const zfi_attention *a, const zfi_attention_out *to, int64_t at,
                               int64_t head, int64_t n)
{
    return at + (head / a->heads * a->n + n) * to->kv_row + head % a->heads / a->group * a->d;
}

/* The number of tasks for each head of k and v. */
static int64_t zfi_attention_grad_parts(const zfi_attention_cut *c)
{
    return c->apart ? c->key_blocks + c->a.group * c->query_blocks : 1;
}

/* Stores the rows where they are asked for, unless they were computed there. */
static void zfi_gradient_done(const zfi_attention_worker *w, const zfi_gradient_rows *x,
                              const zf_array *to, int64_t at, int64_t row, int64_t rows)
{
    if (!w->c->direct && to->data)
        zfi_store_rows(w->c->isa, to, at, row, x->at, x->row, rows, w->c->a.d);
}

/* lse, with 0 for an empty row, and D, for the queries from m on of a head. */
static void zfi_row_sums(const zfi_attention_worker *w, int64_t head, int64_t m, int64_t rows,
                         float *lse, float *delta)
{
    const zfi_attention_cut *c = w->c;
    const zf_array *x = c->launch->args; /* dy, y, lse */
    int64_t hidden = c->a.heads * c->a.d;
    float *dy = zfi_part_of(w, ZFI_AT_ROWS), *y = dy + c->width;
    for (int64_t r = 0; r < rows; r++) {
        float of_row = ((const float *)x[2].data)[head * c->a.m + m + r];
        int64_t at = zfi_attention_at(&c->a, head, c->a.m, m + r, hidden);
        lse[r] = of_row == -INFINITY ? 0 : of_row;
        if (c->dtype == ZF_F32) {
            delta[r] = zfi_vdot(c->isa, zfi_array_at(&x[0], at), zfi_array_at(&x[1], at), c->a.d);
            continue;
        }
        zfi_widen(c->isa, dy, c->dtype, zfi_array_at(&x[0], at), c->a.d);
        zfi_widen(c->isa, y, c->dtype, zfi_array_at(&x[1], at), c->a.d);
        delta[r] = zfi_vdot(c->isa, dy, y, c->a.d);
    }
}

/* Prefetches what follows block i of head h and block j of a range: the next queries, the next
 * head, or the next keys, and the rows of their gradients. */
static void zfi_attention_grad_soon(zfi_attention_worker *w, const zfi_attention_range *x,
                                    int64_t h, int64_t i, int64_t j)
{
    zfi_soon *soon = &w->soon;
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0], *y = &c->launch->args[1];
    const zfi_attention_out to = c->to;
    int64_t hidden = a->heads * a->d, m, n, rows, keys, before = j;
    *soon = (zfi_soon){.bytes = (size_t)a->d * zf_dtype_size(a->q->dtype)};
    n = j * c->keys, keys = zfi_min(c->keys, a->n - n);
    m = i * c->queries, rows = zfi_min(c->queries, a->m - m);
    if (x->dkv && i == x->i0 && h == x->h0) {
        if (to.k.data)
            zfi_soon_add(soon, &to.k, zfi_gradient_at(a, &to, to.k_at, h, n), to.kv_row, keys);
        if (to.v.data)
            zfi_soon_add(soon, &to.v, zfi_gradient_at(a, &to, to.v_at, h, n), to.kv_row, keys);
    }
    if (x->dq && j == x->j0)
        zfi_soon_add(soon, &to.q, to.q_at + zfi_attention_at(a, h, a->m, m, to.row), to.row, rows);
    if (++i == x->i1) i = x->i0, h++;
    if (h == x->h1) h = x->h0, j++;
    if (j == x->j1) j = x->j0, h = x->h1;
    if (h >= a->batch * a->heads || (h == x->h1 && c->apart)) return;
    n = j * c->keys, keys = zfi_min(c->keys, a->n - n);
    m = i * c->queries, rows = zfi_min(c->queries, a->m - m);
    if (j != before || h == x->h1) {
        zfi_soon_add(soon, a->k, zfi_attention_kv(a, a->k_at, h, n), a->kv_row, keys);
        zfi_soon_add(soon, a->v, zfi_attention_kv(a, a->v_at, h, n), a->kv_row, keys);
    }
    if (h == x->h1) zfi_soon_add(soon, y, zfi_attention_at(a, h, a->m, m, hidden), hidden, rows);
    if (h < x->h1 && j > x->j0) return; /* already prefetched with earlier keys */
    zfi_soon_add(soon, a->q, a->q_at + zfi_attention_at(a, h, a->m, m, a->row), a->row, rows);
    zfi_soon_add(soon, dy, zfi_attention_at(a, h, a->m, m, hidden), hidden, rows);
}

/* The keys of one block, transposed and not, and the rows of their gradients. */
typedef struct zfi_attention_keys {
    int64_t n, keys;
    zfi_right kt, vt, k;
    zfi_gradient_rows dk, dv;
    bool add; /* dk and dv have the sums of earlier blocks of queries */
} zfi_attention_keys;

/* The gradients of one block of scores: of its keys, its queries, or both. lse, delta and dq are
 * those of its queries. */
static void zfi_attention_grad_block(zfi_attention_worker *w, const zfi_attention_range *x,
                                     const zfi_scores *b, zfi_attention_keys *of, float *lse,
                                     float *delta, zfi_gradient_rows dq)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0];
    int64_t hidden = a->heads * a->d, dy_at = zfi_attention_at(a, b->head, a->m, b->m, hidden);
    int64_t q_at = a->q_at + zfi_attention_at(a, b->head, a->m, b->m, a->row);
    float *s = zfi_part_of(w, ZFI_AT_S), *ds = zfi_part_of(w, ZFI_AT_DS);
    zfi_score_product(w, b, s, zfi_left_of(w, ZFI_AT_Q, a->q, q_at, a->row, b->rows), of->kt);
    zfi_score_product(w, b, ds, zfi_left_of(w, ZFI_AT_DY, dy, dy_at, hidden, b->rows), of->vt);
    zfi_attend_block(w, b, s, ds, lse, delta, NULL);
    if (x->dkv) {
        zfi_queries_product(w, b, of->dv.at, of->dv.row, s, ZFI_AT_P_HALF,
                            zfi_right_of(w, ZFI_AT_DY_RIGHT, dy, dy_at, hidden, b->rows), of->add);
        zfi_queries_product(w, b, of->dk.at, of->dk.row, ds, ZFI_AT_DS_HALF,
                            zfi_right_of(w, ZFI_AT_Q_RIGHT, a->q, q_at, a->row, b->rows), of->add);
        of->add = true;
    }
    if (x->dq) {
        bool add = b->n > zfi_key_span_of(c, b->head / a->heads, b->m, b->rows).first;
        zfi_keys_product(w, b, dq.at, dq.row, ds, ZFI_AT_DS_HALF, of->k, add);
    }
}

/* The rows of dQ of queries m.. of head h. A range has `count` queries, from `first` on. */
static zfi_gradient_rows zfi_dq_of(const zfi_attention_worker *w, const zfi_attention_range *x,
                                   int64_t h, int64_t m, int64_t first, int64_t count)
{
    const zfi_attention *a = &w->c->a;
    const zfi_attention_out to = w->c->to;
    zfi_gradient_rows dq = zfi_gradient_rows_of(
        w, ZFI_AT_Y, &to.q, to.q_at + zfi_attention_at(a, h, a->m, m, to.row), to.row);
    if (!w->c->direct) dq.at += ((h - x->h0) * count + m - first) * dq.row;
    return dq;
}

static void zfi_attention_grad_range(zfi_attention_worker *w, const zfi_attention_range *x)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zfi_attention_out to = c->to;
    int64_t first = x->i0 * c->queries, last = zfi_min(x->i1 * c->queries, a->m);
    int64_t count = last - first;
    float *lse = zfi_part_of(w, ZFI_AT_MOST), *delta = zfi_part_of(w, ZFI_AT_SUM);
    for (int64_t h = x->h0; h < x->h1; h++) {
        zfi_gradient_rows dq = zfi_dq_of(w, x, h, first, first, count);
        int64_t at = (h - x->h0) * count;
        zfi_row_sums(w, h, first, count, lse + at, delta + at);
        for (int64_t m = first; m < last && x->dq; m++) /* those that see no key */
            if (zfi_attention_seen(a, h / a->heads, m) <= zfi_attention_first(a, h / a->heads, m))
                memset(dq.at + (m - first) * dq.row, 0, (size_t)a->d * sizeof *dq.at);
    }
    for (int64_t j = x->j0; j < x->j1; j++) {
        zfi_attention_keys of = {.n = j * c->keys, .keys = zfi_min(c->keys, a->n - j * c->keys)};
        int64_t k_at = zfi_attention_kv(a, a->k_at, x->h0, of.n),
                v_at = zfi_attention_kv(a, a->v_at, x->h0, of.n),
                dk_at = zfi_gradient_at(a, &to, to.k_at, x->h0, of.n),
                dv_at = zfi_gradient_at(a, &to, to.v_at, x->h0, of.n);
        of.vt = zfi_turned_of(w, ZFI_AT_VT, a->v, v_at, a->kv_row, of.keys);
        of.kt = zfi_turned_of(w, ZFI_AT_KT, a->k, k_at, a->kv_row, of.keys);
        if (x->dq) of.k = zfi_right_of(w, ZFI_AT_K_RIGHT, a->k, k_at, a->kv_row, of.keys);
        of.dk = zfi_gradient_rows_of(w, ZFI_AT_DK, &to.k, dk_at, to.kv_row);
        of.dv = zfi_gradient_rows_of(w, ZFI_AT_DV, &to.v, dv_at, to.kv_row);
        for (int64_t h = x->h0; h < x->h1; h++)
            for (int64_t i = x->i0; i < x->i1; i++) {
                zfi_scores b = zfi_scores_of(c, h, i * c->queries, of.n);
                int64_t at = (h - x->h0) * count + b.m - first;
                if (!zfi_block_is_seen(&b)) continue;
                zfi_attention_grad_soon(w, x, h, i, j);
                zfi_attention_grad_block(w, x, &b, &of, lse + at, delta + at,
                                         zfi_dq_of(w, x, h, b.m, first, count));
            }
        if (!x->dkv) continue;
        for (int64_t n = 0; n < of.keys && !of.add; n++) { /* no query sees them */
            memset(of.dk.at + n * of.dk.row, 0, (size_t)a->d * sizeof *of.dk.at);
            memset(of.dv.at + n * of.dv.row, 0, (size_t)a->d * sizeof *of.dv.at);
        }
        zfi_gradient_done(w, &of.dk, &to.k, dk_at, to.kv_row, of.keys);
        zfi_gradient_done(w, &of.dv, &to.v, dv_at, to.kv_row, of.keys);
    }
    for (int64_t h = x->h0; h < x->h1 && x->dq; h++) {
        zfi_gradient_rows dq = zfi_dq_of(w, x, h, first, first, count);
        zfi_gradient_done(w, &dq, &to.q, to.q_at + zfi_attention_at(a, h, a->m, first, to.row), to.row,
                          count);
    }
}

/* A task: all blocks of the heads of q that read one head of k and v. Apart, it is one block of
 * keys for all these heads, or one block of queries of one of them. */
static void zfi_attention_grad_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    zfi_attention_worker w = zfi_attention_worker_of(c, worker);
    int64_t parts = zfi_attention_grad_parts(c), part = index % parts, group = c->a.group;
    int64_t h = index / parts * group, query = part - c->key_blocks;
    zfi_attention_range x = {h, h + group, 0, c->query_blocks, 0, c->key_blocks, true, true};
    if (c->apart && query < 0) {
        x.j0 = part, x.j1 = part + 1, x.dq = false;
    } else if (c->apart) {
        x.h0 = h + query / c->query_blocks, x.h1 = x.h0 + 1;
        x.i0 = query % c->query_blocks, x.i1 = x.i0 + 1, x.dkv = false;
    }
    zfi_attention_grad_range(&w, &x);
}
