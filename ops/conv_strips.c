/* Strips of planes, which the fast kernels of convolutions read. */

enum {
    ZFI_CONV_ROOM = 1 << 16, /* words of a strip, 256 KiB, where the least strip has fewer */
    ZFI_CONV_LEAST = 64,     /* columns that are not cut further */
    ZFI_CONV_BEYOND = 128,   /* words that tiles read beyond a strip */
    ZFI_CONV_LINE = 16       /* words of a cache line */
};

/* Rows of `bytes`, so many bytes apart. Those of pictures are short: a call for each takes longer. */
ZFI_BODY void zfi_copy_rows_body(zfi_isa isa, char *to, int64_t to_row, const char *from,
                                 int64_t from_row, int64_t bytes, int64_t rows)
{
    (void)isa;
    for (int64_t r = 0; r < rows; r++, to += to_row, from += from_row) {
        int64_t i = 0;
        for (; i + 64 <= bytes; i += 64) memcpy(to + i, from + i, 64);
        if (i < bytes && bytes >= 64) {
            memcpy(to + bytes - 64, from + bytes - 64, 64);
        } else if (bytes >= 16) {
            for (; i + 16 <= bytes; i += 16) memcpy(to + i, from + i, 16);
            memcpy(to + bytes - 16, from + bytes - 16, 16);
        } else {
            for (; i + 2 <= bytes; i += 2) memcpy(to + i, from + i, 2);
        }
    }
}
ZFI_KERNEL(zfi_copy_rows,
           (char *to, int64_t to_row, const char *from, int64_t from_row, int64_t bytes,
            int64_t rows),
           (to, to_row, from, from_row, bytes, rows))

/* Rows of n elements, so many elements apart; both are of one dtype, or `to` is f32. */
static void zfi_strips_copy(zfi_isa isa, zf_dtype to_dtype, void *to, int64_t to_row,
                            zf_dtype from_dtype, const void *from, int64_t from_row, int64_t n,
                            int64_t rows)
{
    const int64_t each = (int64_t)zf_dtype_size(to_dtype);
    if (n < 1) return;
    if (to_dtype == from_dtype)
        zfi_copy_rows(isa, to, to_row * each, from, from_row * each, n * each, rows);
    else
        for (int64_t r = 0; r < rows; r++)
            zfi_widen(isa, (float *)to + r * to_row, from_dtype,
                      zfi_element(from, from_dtype, r * from_row), n);
}

/* How strips are cut from planes. A plane is read as if its elements were `gap` apart, with `pad`
 * zeros before them; tap i of place p reads element stride p + dilation i of that. Elements that
 * have one remainder by the stride lie together: a strip of a channel is
 *
 *     [phases of rows][phases of columns][deep][pitch], then zeros up to element `channel`
 *
 * so that what a tap sees of neighbouring places are neighbours. Places of a strip are counted with
 * the same pitch. */
typedef struct zfi_strips {
    int64_t source[2], gap[2], pad[2], stride[2], dilation[2], taps[2], all[2];
    int64_t phases[2], size[2]; /* rows and columns of places of a strip */
    int64_t deep, pitch, channel;
    bool turned;    /* the first tap is the last element that a place sees */
    zf_dtype dtype; /* f32, or bf16 */
} zfi_strips;

/* Elements between the first one and the last one that a place sees. */
static int64_t zfi_strips_reach(const zfi_strips *s, int axis)
{
    return (s->taps[axis] - 1) * s->dilation[axis];
}

/* Sets what follows from the size. Rows of the whole width share the zeros between them. */
static void zfi_strips_lay(zfi_strips *s)
{
    const int64_t seen = (s->size[1] - 1) * s->stride[1] + zfi_strips_reach(s, 1) + 1;
    int64_t tail = 0;
    s->pitch = zfi_div_up(seen, s->stride[1]);
    if (s->stride[1] == 1 && s->size[1] == s->all[1]) {
        const int64_t zeros = zfi_max(s->pad[1], 0),
                      filled = s->pad[1] + (s->source[1] - 1) * s->gap[1] + 1;
        s->pitch = zfi_max(zfi_max(s->size[1], seen - zeros), zfi_min(seen, filled));
        tail = seen - s->pitch;
    }
    s->deep = s->size[0] + zfi_strips_reach(s, 0) / s->stride[0];
    s->channel = s->phases[0] * s->phases[1] * s->deep * s->pitch + tail;
    /* an odd number of runs: the same place of many channels is in many sets of a cache */
    s->channel = (zfi_div_up(s->channel, ZFI_CONV_LINE) | 1) * ZFI_CONV_LINE;
}

/* Those of `channels` planes at a time: of x, or with `back` of dy for dx. Elements of the strips of
 * bf16 are bf16 or, as those of others, f32. */
static zfi_strips zfi_strips_of(const zfi_conv *v, bool back, bool halves, int64_t channels,
                                int64_t places)
{
    zfi_strips s = {.turned = back, .dtype = halves ? ZF_BF16 : ZF_F32};
    for (int k = 0; k < 2; k++) {
        const int64_t reach = (v->taps[k] - 1) * v->dilation[k];
        s.source[k] = back ? v->places[k] : v->image[k];
        s.all[k] = s.size[k] = back ? v->image[k] : v->places[k];
        s.gap[k] = back ? v->stride[k] : 1, s.stride[k] = back ? 1 : v->stride[k];
        s.pad[k] = back ? reach - v->pad[k] : v->pad[k];
        s.taps[k] = v->taps[k], s.dilation[k] = v->dilation[k];
        s.phases[k] = zfi_min(s.stride[k], reach + 1);
    }
    for (zfi_strips_lay(&s); s.channel * channels > ZFI_CONV_ROOM || s.size[0] * s.pitch > places;
         zfi_strips_lay(&s)) {
        if (s.size[0] > 1) s.size[0] = zfi_div_up(s.size[0], 2);
        else if (s.size[1] > ZFI_CONV_LEAST) s.size[1] = zfi_div_up(s.size[1], 2);
        else break;
    }
    return s;
}

/* Strips of a plane. */
static int64_t zfi_strips_count(const zfi_strips *s)
{
    return zfi_div_up(s->all[0], s->size[0]) * zfi_div_up(s->all[1], s->size[1]);
}

/* The first place of strip `index`, and how many rows and columns it has. */
static void zfi_strips_at(const zfi_strips *s, int64_t index, int64_t first[2], int64_t size[2])
{
    const int64_t wide = zfi_div_up(s->all[1], s->size[1]);
    first[0] = index / wide * s->size[0], first[1] = index % wide * s->size[1];
    for (int k = 0; k < 2; k++) size[k] = zfi_min(s->size[k], s->all[k] - first[k]);
}

/* Places of a strip, with those between its rows. */
static int64_t zfi_strips_places(const zfi_strips *s, const int64_t size[2])
{
    return (size[0] - 1) * s->pitch + size[1];
}

/* Where a tap is in the strip of a channel, from place 0 on. */
static int64_t zfi_strips_tap(const zfi_strips *s, int64_t tap)
{
    int64_t far[2] = {tap / s->taps[1], tap % s->taps[1]};
    for (int a = 0; a < 2; a++)
        far[a] = (s->turned ? s->taps[a] - 1 - far[a] : far[a]) * s->dilation[a];
    return far[1] / s->stride[1] +
           ((far[0] % s->stride[0] * s->phases[1] + far[1] % s->stride[1]) * s->deep +
            far[0] / s->stride[0]) *
               s->pitch;
}

/* Rows of a strip, or elements of a row: number i is first + i stride of the plane, or with a gap
 * (first + i) / gap. Those from low up to high are there; the others are 0. */
typedef struct zfi_strips_run {
    int64_t first, low, high;
} zfi_strips_run;

/* Those of a phase, of a strip from place `first` on. */
static zfi_strips_run zfi_strips_run_of(const zfi_strips *s, int axis, int64_t first, int64_t phase)
{
    const int64_t step = s->stride[axis], n = axis ? s->pitch : s->deep,
                  from = first * step + phase - s->pad[axis],
                  low = zfi_min(n, from < 0 ? zfi_div_up(-from, step) : 0),
                  last = (s->source[axis] - 1) * s->gap[axis] - from; /* the last is last / step */
    return (zfi_strips_run){from, low, last < 0 ? low : zfi_max(low, zfi_min(n, last / step + 1))};
}

/* A row whose elements are not neighbours. The line is of the plane's dtype; `aside` has room for it
 * and for a row. */
static void zfi_strips_row(const zfi_strips *s, zfi_isa isa, zf_dtype dtype, void *to,
                           const void *line, const zfi_strips_run *run, float *aside)
{
    const int64_t width = s->source[1], step = s->stride[1], gap = s->gap[1], first = run->first,
                  low = run->low, high = run->high;
    const float *from = line;
    float *row = to;
    if (dtype != ZF_F32) {
        zfi_widen(isa, aside, dtype, line, width);
        from = aside;
    }
    if (s->dtype != ZF_F32) {
        row = aside + width;
        memset(row, 0, (size_t)high * sizeof *row);
    }
    if (gap > 1)
        for (int64_t i = zfi_div_up(first + low, gap); i * gap - first < high; i++)
            row[i * gap - first] = from[i];
    else
        for (int64_t i = low; i < high; i++) row[i] = from[first + i * step];
    if (row != to) zfi_narrow(isa, to, s->dtype, row, high);
}

/* A phase of rows and columns. */
static void zfi_strips_phase(const zfi_strips *s, zfi_isa isa, const zf_array *x, int64_t plane,
                             const zfi_strips_run *rows, const zfi_strips_run *columns, void *to,
                             float *aside)
{
    const int64_t step = s->stride[0], gap = s->gap[0], width = s->source[1];
    if (gap == 1 && s->gap[1] == 1 && s->stride[1] == 1) {
        zfi_strips_copy(isa, s->dtype,
                        zfi_element_of(to, s->dtype, rows->low * s->pitch + columns->low), s->pitch,
                        x->dtype,
                        zfi_element(x->data, x->dtype,
                                    plane + (rows->first + rows->low * step) * width +
                                        columns->first + columns->low),
                        step * width, columns->high - columns->low, rows->high - rows->low);
        return;
    }
    for (int64_t r = rows->low; r < rows->high; r++) {
        const int64_t y = rows->first + r * step;
        if (y % gap == 0)
            zfi_strips_row(s, isa, x->dtype, zfi_element_of(to, s->dtype, r * s->pitch),
                           zfi_element(x->data, x->dtype, plane + y / gap * width), columns, aside);
    }
}

/* The strip of a channel whose plane begins with element `plane` of x. */
static void zfi_strips_fill(const zfi_strips *s, zfi_isa isa, const zf_array *x, int64_t plane,
                            const int64_t first[2], void *to, float *aside)
{
    memset(to, 0, (size_t)s->channel * zf_dtype_size(s->dtype));
    for (int64_t i = 0; i < s->phases[0]; i++) {
        const zfi_strips_run rows = zfi_strips_run_of(s, 0, first[0], i);
        for (int64_t j = 0; j < s->phases[1]; j++) {
            const zfi_strips_run columns = zfi_strips_run_of(s, 1, first[1], j);
            zfi_strips_phase(
                s, isa, x, plane, &rows, &columns,
                zfi_element_of(to, s->dtype, (i * s->phases[1] + j) * s->deep * s->pitch), aside);
        }
    }
}

/* Floats of what it has aside. */
static int64_t zfi_strips_aside(const zfi_strips *s) { return s->source[1] + s->pitch; }

/* y of a channel, whose plane begins with element `plane`, at places of a strip; 0 at places between
 * rows, and up to place `places`. */
static void zfi_strips_spread(const zfi_strips *s, zfi_isa isa, const zf_array *y, int64_t plane,
                              const int64_t first[2], const int64_t size[2], int64_t places,
                              void *to)
{
    memset(to, 0, (size_t)places * zf_dtype_size(s->dtype));
    zfi_strips_copy(isa, s->dtype, to, s->pitch, y->dtype,
                    zfi_element(y->data, y->dtype, plane + first[0] * s->all[1] + first[1]),
                    s->all[1], size[1], size[0]);
}

/* to[i] = the word of two halves. */
ZFI_BODY void zfi_strips_pair_body(zfi_isa isa, uint32_t *to, const uint16_t *low,
                                   const uint16_t *high, int64_t n)
{
    (void)isa;
    ZFI_VECTOR
    for (int64_t i = 0; i < n; i++) to[i] = low[i] | (uint32_t)high[i] << 16;
}
ZFI_KERNEL(zfi_strips_pair, (uint32_t * to, const uint16_t *low, const uint16_t *high, int64_t n),
           (to, low, high, n))
