/* bf16 and f16 for operators whose fast kernels take f32: operands are converted to f32 in scratch,
 * the f32 kernel runs on them, and its results are rounded once.
 *
 *     bf16 operands -> f32 scratch -> kernel -> f32 scratch -> bf16 result
 *
 * Elementwise operators, and operators BY_ROWS (over rows of the last dimension), run in pieces.
 * The scratch of a worker holds a few pieces and stays in its cache:
 *
 *     x [rows | row]   rows first..last, converted   | gamma: shared by all rows, converted before
 *
 * All others run as a whole: conversion, kernel, conversion, each on all workers. Operators that
 * write operands, move bytes, or read 16 bits themselves run unconverted, and so does everything on
 * a reference backend. */
enum {
    ZFI_WIDEN_ARGS = 16,        /* with more operands it runs unconverted */
    ZFI_WIDEN_PIECE = 2048,     /* elements of a piece, or one row if that is longer */
    ZFI_WIDEN_LONGEST = 1 << 16 /* longest row that runs in pieces */
};

typedef enum zfi_widening { ZFI_AS_IT_IS, ZFI_WHOLE, ZFI_ELEMENTWISE, ZFI_BY_ROWS } zfi_widening;

static bool zfi_has_half(const zf_launch *l)
{
    bool half = zfi_is_half(l->out.dtype);
    for (int32_t k = 0; k < l->arg_count; k++) half |= zfi_is_half(l->args[k].dtype);
    return half;
}

static zfi_widening zfi_widening_of(const zf_launch *l)
{
    const uint32_t apart = ZF_OP_LEAF | ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_VIEW |
                           ZF_OP_COLLECTIVE | ZF_OP_READS_HALF;
    const zfi_record *record = zfi_record_for(l);
    uint32_t traits = record->traits;
    bool reference = zfi_cpu_of(l)->reference && !l->own; /* own operators have one */
    if (reference || (traits & apart) || l->arg_count > ZFI_WIDEN_ARGS ||
        !zfi_has_half(l))
        return ZFI_AS_IT_IS;
    return record->scratch              ? ZFI_WHOLE /* pieces have no scratch for the kernel */
           : traits & ZF_OP_ELEMENTWISE ? ZFI_ELEMENTWISE
           : traits & ZF_OP_BY_ROWS     ? ZFI_BY_ROWS
                                        : ZFI_WHOLE;
}

/* ------------------------------------------------------------------------------- scratch */

/* Adds room for `count` floats to *bytes, SIZE_MAX at most, and returns where the room begins. */
static size_t zfi_reserve(size_t *bytes, int64_t count)
{
    size_t at = *bytes, size;
    if (!zfi_mul_size((size_t)count, sizeof(float), &size) ||
        !zfi_add_size(size, ZFI_ALIGN - 1, &size) ||
        !zfi_add_size(at, size / ZFI_ALIGN * ZFI_ALIGN, bytes))
        *bytes = SIZE_MAX / ZFI_ALIGN * ZFI_ALIGN;
    return at;
}

/* If *a is of 16 bits, makes it an array of f32 in scratch, at l->scratch + *bytes, and returns
 * true. Without scratch it only counts the bytes. */
static bool zfi_widen_array(const zf_launch *l, zf_array *a, size_t *bytes)
{
    size_t at;
    if (!zfi_is_half(a->dtype)) return false;
    at = zfi_reserve(bytes, zfi_count(a));
    a->dtype = ZF_F32;
    a->data = l->scratch ? (char *)l->scratch + at : NULL;
    return true;
}

/* --------------------------------------------------------------------------------- whole */

/* A launch over converted arrays of f32. */
typedef struct zfi_widened {
    zf_launch launch;
    zf_array args[ZFI_WIDEN_ARGS], saved[ZF_MAX_SAVED];
    size_t bytes; /* of scratch, without the kernel's own */
} zfi_widened;

static void zfi_widen_whole(const zf_launch *l, zfi_widened *w)
{
    w->launch = *l, w->bytes = 0;
    for (int32_t k = 0; k < l->arg_count; k++) {
        w->args[k] = l->args[k];
        zfi_widen_array(l, &w->args[k], &w->bytes);
    }
    w->launch.args = w->args;
    zfi_widen_array(l, &w->launch.out, &w->bytes);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++) {
        w->saved[k] = l->saved[k];
        zfi_widen_array(l, &w->saved[k], &w->bytes);
        if (!l->saved[k].data) w->saved[k].data = NULL; /* it has no saved node */
    }
    if (l->saved) w->launch.saved = w->saved;
    w->launch.scratch = l->scratch ? (char *)l->scratch + w->bytes : NULL;
}

typedef struct zfi_array_conversion {
    zfi_isa isa;
    const zf_array *to, *from;
    int64_t count;
} zfi_array_conversion;

static void zfi_convert_piece(void *context, int64_t index, int worker)
{
    const zfi_array_conversion *c = context;
    int64_t at = index * ZFI_GRAIN, n = c->count - at < ZFI_GRAIN ? c->count - at : ZFI_GRAIN;
    (void)worker;
    zfi_convert_floats(c->isa, (char *)c->to->data + (size_t)at * zf_dtype_size(c->to->dtype),
                       c->to->dtype,
                       (const char *)c->from->data + (size_t)at * zf_dtype_size(c->from->dtype),
                       c->from->dtype, n);
}

/* *to = *from, on all workers; nothing where they are the same array. */
static void zfi_convert_array(const zf_launch *l, const zf_array *to, const zf_array *from)
{
    zfi_array_conversion c = {zfi_cpu_of(l)->isa, to, from, 0};
    if (to->dtype == from->dtype || !to->data) return;
    c.count = zfi_count(to);
    zfi_pool_run(zfi_cpu_of(l)->pool, (c.count + ZFI_GRAIN - 1) / ZFI_GRAIN, zfi_convert_piece, &c);
}

static zf_status zfi_run_whole(const zf_launch *l)
{
    zfi_widened w;
    zf_status status;
    zfi_widen_whole(l, &w);
    for (int32_t k = 0; k < l->arg_count; k++) zfi_convert_array(l, &w.args[k], &l->args[k]);
    status = zfi_record_for(l)->cpu(&w.launch);
    if (status) return status;
    zfi_convert_array(l, &l->out, &w.launch.out);
    for (int k = 0; l->saved && k < ZF_MAX_SAVED; k++)
        if (l->saved[k].data) zfi_convert_array(l, &l->saved[k], &w.saved[k]);
    return ZF_OK;
}

/* -------------------------------------------------------------------------------- pieces */

enum { ZFI_WIDEN_ARRAYS = ZFI_WIDEN_ARGS + 1 + ZF_MAX_SAVED };

/* The split of a launch into pieces. The first dimensions of the result (or of the operand that has
 * the rows) are taken as one, of size `rows`. Each array either steps with them, `unit` elements
 * for each, which are its last `inner` dimensions, or is whole. The arrays are the operands, the
 * result, and the saved values. */
typedef struct zfi_cutting {
    const zf_launch *launch;
    int64_t rows, grain, count; /* rows in all, and of a piece; number of pieces */
    int arrays;
    bool steps[ZFI_WIDEN_ARRAYS];
    int inner[ZFI_WIDEN_ARRAYS];
    int64_t unit[ZFI_WIDEN_ARRAYS];
    size_t shared, own;     /* bytes of scratch: shared, for whole operands; own, of each worker */
    _Atomic int64_t failed; /* the first piece whose kernel has failed; INT64_MAX: none */
} zfi_cutting;

static const zf_array *zfi_piece_array(const zf_launch *l, int k)
{
    return k < l->arg_count    ? &l->args[k]
           : k == l->arg_count ? &l->out
                               : &l->saved[k - l->arg_count - 1];
}

/* How x, aligned at the last dimension, has the first `cut` dimensions of `out`: *steps where it
 * has them too, not where it is repeated along them; false: neither. */
static bool zfi_steps_along(const zf_shape *x, const zf_shape *out, int cut, bool *steps)
{
    bool all = true, none = true;
    for (int axis = 0; axis < cut; axis++) {
        int at = axis - (out->rank - x->rank);
        int64_t n = at < 0 ? 1 : x->dims[at];
        all &= n == out->dims[axis];
        none &= n == 1;
    }
    *steps = all;
    return all || none;
}

/* How many of the first dimensions of an elementwise result can be split. */
static int zfi_cut_elements(const zf_launch *l, zfi_cutting *p)
{
    for (int cut = l->out.shape.rank; cut > 0; cut--) {
        bool fits = true;
        for (int k = 0; k < l->arg_count; k++)
            fits &= zfi_steps_along(&l->args[k].shape, &l->out.shape, cut, &p->steps[k]);
        if (fits) return cut;
    }
    return 0;
}

/* Splits the launch; false where it should run as a whole. */
static bool zfi_cut(const zf_launch *l, zfi_widening how, zfi_cutting *p)
{
    bool by_rows = how == ZFI_BY_ROWS;
    const zfi_record *record = zfi_record_for(l);
    const zf_shape *over = by_rows ? &l->args[record->rows].shape : &l->out.shape;
    int64_t longest = 1;
    int cut;
    *p = (zfi_cutting){.launch = l,
                       .failed = INT64_MAX,
                       .arrays = l->arg_count + 1 + (l->saved ? ZF_MAX_SAVED : 0)};
    cut = by_rows ? over->rank - 1 : zfi_cut_elements(l, p);
    p->rows = zfi_span(over, 0, cut);
    for (int k = 0; k < p->arrays; k++) {
        const zf_array *a = zfi_piece_array(l, k);
        int rest = by_rows ? a->shape.rank - cut : over->rank - cut;
        bool half = zfi_is_half(a->dtype);
        if (half && !zfi_count(a)) return false;
        if (k > l->arg_count) { /* a saved value is like the result, or absent */
            p->steps[k] = zfi_same_shape(&a->shape, &l->out.shape);
            if (!p->steps[k] && (half || a->shape.rank)) return false;
        } else if (k == l->arg_count) {
            p->steps[k] = true;
        } else if (by_rows) {
            p->steps[k] = !(record->whole >> k & 1);
        }
        if (p->steps[k]) {
            p->unit[k] = p->rows ? zfi_count(a) / p->rows : 0;
            p->inner[k] = rest < a->shape.rank ? rest : a->shape.rank;
        } else if (half) {
            zfi_reserve(&p->shared, zfi_count(a));
        }
        if (p->unit[k] > longest) longest = p->unit[k];
    }
    if (cut < 1 || longest > ZFI_WIDEN_LONGEST) return false;
    p->grain = ZFI_WIDEN_PIECE / longest > 1 ? ZFI_WIDEN_PIECE / longest : 1;
    p->count = (p->rows + p->grain - 1) / p->grain;
    for (int k = 0; k < p->arrays; k++)
        if (p->steps[k] && zfi_is_half(zfi_piece_array(l, k)->dtype))
            zfi_reserve(&p->own, p->grain * p->unit[k]);
    return true;
}

/* Runs rows [first, first + n), with arrays of f32 in place of those of 16 bits. */
static zf_status zfi_run_rows(const zfi_cutting *p, int64_t index, int worker, zf_error *error)
{
    const zf_launch *l = p->launch;
    zf_status status;
    zfi_cpu alone = *zfi_cpu_of(l);
    zf_array arrays[ZFI_WIDEN_ARRAYS] = {{.data = NULL}};
    zf_launch piece = *l;
    int64_t first = index * p->grain, n = p->rows - first < p->grain ? p->rows - first : p->grain;
    size_t shared = 0, own = p->shared + (size_t)worker * p->own;
    char *from[ZFI_WIDEN_ARRAYS];
    for (int k = 0; k < p->arrays; k++) {
        const zf_array *whole = zfi_piece_array(l, k);
        zf_array *a = &arrays[k];
        int skipped = whole->shape.rank - p->inner[k];
        *a = *whole;
        from[k] = whole->data;
        if (p->steps[k]) {
            if (from[k]) from[k] += (size_t)(first * p->unit[k]) * zf_dtype_size(a->dtype);
            a->data = from[k];
            a->shape.rank = 1 + p->inner[k];
            a->shape.dims[0] = n;
            memcpy(a->shape.dims + 1, whole->shape.dims + skipped,
                   (size_t)p->inner[k] * sizeof *a->shape.dims);
        }
        if (!zfi_is_half(whole->dtype)) continue;
        a->dtype = ZF_F32;
        a->data = (char *)l->scratch + (p->steps[k] ? zfi_reserve(&own, p->grain * p->unit[k])
                                                    : zfi_reserve(&shared, zfi_count(a)));
        if (!from[k]) a->data = NULL; /* a saved value without saved node */
        else if (p->steps[k] && k < l->arg_count)
            zfi_widen(alone.isa, a->data, whole->dtype, from[k], n * p->unit[k]);
    }
    alone.pool = NULL;
    piece.args = arrays;
    piece.out = arrays[l->arg_count];
    if (l->saved) piece.saved = arrays + l->arg_count + 1;
    piece.scratch = NULL;
    piece.backend = &alone;
    piece.error = error;
    if ((status = zfi_record_for(l)->cpu(&piece))) return status;
    for (int k = l->arg_count; k < p->arrays; k++)
        if (zfi_is_half(zfi_piece_array(l, k)->dtype) && from[k])
            zfi_narrow(alone.isa, from[k], zfi_piece_array(l, k)->dtype, arrays[k].data,
                       n * p->unit[k]);
    return ZF_OK;
}

static void zfi_run_piece(void *context, int64_t index, int worker)
{
    zfi_cutting *p = context;
    zf_error error = {ZF_OK, ""};
    int64_t first = atomic_load(&p->failed);
    if (!zfi_run_rows(p, index, worker, &error)) return;
    while (index < first && !atomic_compare_exchange_weak(&p->failed, &first, index)) continue;
}

static zf_status zfi_run_pieces(const zf_launch *l, zfi_cutting *p)
{
    size_t shared = 0;
    zf_status status = ZF_OK;
    if (zfi_record_for(l)->check) status = zfi_record_for(l)->check(l);
    for (int k = 0; k < l->arg_count; k++) {
        zf_array wide = l->args[k];
        if (p->steps[k] || !zfi_is_half(wide.dtype)) continue;
        wide.dtype = ZF_F32;
        wide.data = (char *)l->scratch + zfi_reserve(&shared, zfi_count(&wide));
        zfi_convert_array(l, &wide, &l->args[k]);
    }
    if (status) return status;
    zfi_pool_run(zfi_cpu_of(l)->pool, p->count, zfi_run_piece, p);
    if (p->failed < p->count) /* so that the error does not depend on the number of threads */
        status = zfi_run_rows(p, p->failed, 0, l->error);
    return status;
}

/* --------------------------------------------------------------------------------- launches */

static size_t zfi_kernel_scratch(const zf_launch *l)
{
    return zfi_record_for(l)->scratch ? zfi_record_for(l)->scratch(l) : 0;
}

/* Bytes of scratch of a launch on the CPU. */
static size_t zfi_launch_scratch(const zf_launch *l)
{
    zfi_widening how = zfi_widening_of(l);
    zfi_cutting pieces;
    zfi_widened whole;
    size_t bytes, threads = (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool);
    if (how == ZFI_AS_IT_IS) return zfi_kernel_scratch(l);
    if (how != ZFI_WHOLE && zfi_cut(l, how, &pieces)) return pieces.shared + threads * pieces.own;
    zfi_widen_whole(l, &whole);
    bytes = zfi_kernel_scratch(&whole.launch);
    return zfi_add_size(bytes, whole.bytes, &bytes) ? bytes : SIZE_MAX;
}

/* Runs a launch on the workers. */
static zf_status zfi_run_launch(const zf_launch *l)
{
    zfi_widening how = zfi_widening_of(l);
    zfi_cutting pieces;
    if (how == ZFI_AS_IT_IS) return zfi_record_for(l)->cpu(l);
    if (how != ZFI_WHOLE && zfi_cut(l, how, &pieces)) return zfi_run_pieces(l, &pieces);
    return zfi_run_whole(l);
}
