/* Rows of experts: a row for each choice of a token, in the order of experts (mixture of experts).
 *
 *     %3 = expert_rows %1 {experts=4 rows=12} : i32[12]       of the experts of choices i32[6,2]
 *     %4 = saved %3 : i32[4,2]                                the first row of each expert, its end
 *     %5 = saved %3 {index=1} : i32[6,2]                      the row of each choice; 12: none
 *     %6 = saved %3 {index=2} : i32[4]                        choices of each expert
 *
 * A row has the number of its choice, token * k + place; a row without one has tokens * k. Rows of
 * an expert are in the order of choices. Without a capacity, experts follow one another, and more
 * choices than rows are an error of the step. With capacity=C, expert e has the rows from e C on,
 * `rows` is experts * C, and the choices beyond C are dropped: all first choices come before second
 * ones, and among these earlier tokens first, or with operand 1, priorities [6,2], larger ones.
 *
 *     %3 = expert_rows %1 {experts=4 rows=12 blocks=2} : i32[12]
 *
 * The experts of block b of two, 0 and 1 or 2 and 3, have rows in block b of two equal ones, for
 * the rank that has them; their first rows and ends count from its first row. More choices of them
 * than rows are an error of the step.
 *
 *     %3 = expert_rows %1 {experts=4 rows=12 parts=2} : i32[12]
 *     %4 = saved %3 : i32[8,2]              of the 4 experts in part 0, then in part 1
 *
 * Tokens are two equal parts, and each part has its rows in one of two equal runs of rows, in which
 * bounds count; with blocks, in each block. runs=3: tokens are those of three sequences, of each of
 * which a part has its part. zigzag: rows are those of the first part, of the last one, of the
 * second, ... Choice `experts` has no row. So ranks that share sequences have rows of their own.
 *
 *     %8  = dispatch %7, %3, %5 : f32[12,16]             y[r] = x[token of r]; 0: it has none
 *     %10 = combine %9, %3, %5, %2 : f32[6,16]           y[t] = sum of weight[t,j] x[row of (t,j)]
 *     %12 = choice_dots %9, %11, %3, %5 : f32[6,2]       y[t,j] = sum over x[row of (t,j)] z[t]
 *
 * Operand 3 of dispatch and of combine, weights [tokens, k], may be absent. combine adds a token's
 * rows in ascending order, which is that of experts, in f32, and rounds once. The gradient of each
 * is made of the others. Sources: Lepikhin et al. 2020; Gale et al. 2022. */

enum { ZFI_ROWS_BOUNDS, ZFI_ROWS_SLOTS, ZFI_ROWS_COUNTS };

static zf_status zfi_infer_expert_capacity(const zfi_infer *c, int64_t choices)
{
    const int64_t experts = ZF_INT(c, expert_rows, experts), rows = ZF_INT(c, expert_rows, rows),
                  capacity = ZF_INT(c, expert_rows, capacity),
                  parts = zfi_max(ZF_INT(c, expert_rows, parts), 1),
                  blocks = zfi_max(ZF_INT(c, expert_rows, blocks), 1) * parts,
                  runs = zfi_max(ZF_INT(c, expert_rows, runs), 1),
                  tokens = c->args[0]->shape.dims[0];
    if (experts < 1 || rows < 0 || rows > INT32_MAX || choices > INT32_MAX)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "experts = %lld, rows = %lld for %lld choices: experts must be 1 or "
                              "more, and rows and choices fewer than 2^31",
                              (long long)experts, (long long)rows, (long long)choices);
    if (capacity < 0 || (capacity && (rows % capacity || rows / capacity != experts)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "capacity = %lld for %lld experts needs so many rows of each, not "
                              "rows = %lld",
                              (long long)capacity, (long long)experts, (long long)rows);
    if (c->arg_count > 1 && !capacity)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "priorities are only for a capacity");
    if (ZF_INT(c, expert_rows, parts) && capacity)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "parts have no capacity: it is of all tokens");
    if (parts > 1 && (parts > tokens || runs > tokens || tokens % (parts * runs) || rows % parts))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "parts = %lld do not divide each of runs = %lld of %lld tokens, and "
                              "%lld rows",
                              (long long)parts, (long long)runs, (long long)tokens,
                              (long long)rows);
    if (ZF_INT(c, expert_rows, blocks) < 0 || ZF_INT(c, expert_rows, parts) < 0 ||
        ZF_INT(c, expert_rows, runs) < 0 ||
        (blocks > 1 && (experts % (blocks / parts) || rows % blocks)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "blocks = %lld do not divide %lld experts and %lld rows",
                              (long long)(blocks / parts), (long long)experts, (long long)rows);
    return ZF_OK;
}

static zf_status zfi_infer_expert_rows(zfi_infer *c)
{
    const zf_shape *x = &c->args[0]->shape;
    zf_status status;
    if (!zfi_is_integer(c->args[0]->dtype) || x->rank != 2)
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "experts of choices, i32 or i64 [tokens, k], are needed");
    if (c->arg_count > 1 &&
        (!zfi_is_float(c->args[1]->dtype) || !zfi_same_shape(&c->args[1]->shape, x)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "priorities must be float, of the choices' shape");
    status = zfi_infer_expert_capacity(c, zfi_span(x, 0, 2));
    if (status) return status;
    c->dtype = ZF_I32;
    c->shape = ZF_SHAPE(ZF_INT(c, expert_rows, rows));
    return ZF_OK;
}

static bool zfi_saved_expert_rows(const zf_graph *g, const zfi_node *node, int64_t index,
                                  zf_dtype *dtype, zf_shape *shape)
{
    const int64_t parts = zfi_max(ZF_INT(node, expert_rows, parts), 1),
                  experts = ZF_INT(node, expert_rows, experts) * parts;
    *dtype = ZF_I32;
    *shape = index == ZFI_ROWS_BOUNDS  ? ZF_SHAPE(experts, 2)
             : index == ZFI_ROWS_SLOTS ? g->nodes[node->args[0]].shape
                                       : ZF_SHAPE(experts);
    return index >= ZFI_ROWS_BOUNDS && index <= ZFI_ROWS_COUNTS;
}

/* Checks operands `at` and after it: rows i32 [F], slots i32 [tokens, k], perhaps weights. */
static zf_status zfi_infer_choices(const zfi_infer *c, int32_t at, int64_t rows, int64_t tokens)
{
    const zfi_node *r = c->args[at], *slots = c->args[at + 1];
    if (r->dtype != ZF_I32 || r->shape.rank != 1 || (rows >= 0 && r->shape.dims[0] != rows))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must be the rows, i32 [rows]", (int)at);
    if (slots->dtype != ZF_I32 || slots->shape.rank != 2 || !slots->shape.dims[1] ||
        (tokens >= 0 && slots->shape.dims[0] != tokens))
        return zfi_infer_fail(c, ZF_ERR_SHAPE,
                              "operand %d must be the rows of choices, i32 [tokens, k]",
                              (int)at + 1);
    if (c->arg_count > at + 2 && (!zfi_is_float(c->args[at + 2]->dtype) ||
                                  !zfi_same_shape(&c->args[at + 2]->shape, &slots->shape)))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the weights must be float, of the choices' shape");
    return ZF_OK;
}

/* Checks that operand k is float [n, width]. */
static zf_status zfi_infer_rows_of(const zfi_infer *c, int32_t k)
{
    if (zfi_is_float(c->args[k]->dtype) && c->args[k]->shape.rank == 2) return ZF_OK;
    return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must be float, of two dimensions", (int)k);
}

static zf_status zfi_infer_dispatch(zfi_infer *c)
{
    zf_status status = zfi_infer_rows_of(c, 0);
    if (!status) status = zfi_infer_choices(c, 1, -1, c->args[0]->shape.dims[0]);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(c->args[1]->shape.dims[0], c->args[0]->shape.dims[1]);
    return ZF_OK;
}

static zf_status zfi_infer_combine(zfi_infer *c)
{
    zf_status status = zfi_infer_rows_of(c, 0);
    if (!status) status = zfi_infer_choices(c, 1, c->args[0]->shape.dims[0], -1);
    if (status) return status;
    c->dtype = c->args[0]->dtype;
    c->shape = ZF_SHAPE(c->args[2]->shape.dims[0], c->args[0]->shape.dims[1]);
    return ZF_OK;
}

static zf_status zfi_infer_choice_dots(zfi_infer *c)
{
    zf_status status = zfi_infer_rows_of(c, 0);
    if (!status) status = zfi_infer_rows_of(c, 1);
    if (status) return status;
    if (c->args[0]->dtype != c->args[1]->dtype ||
        c->args[0]->shape.dims[1] != c->args[1]->shape.dims[1])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "rows and tokens must have one dtype and width");
    status = zfi_infer_choices(c, 2, c->args[0]->shape.dims[0], c->args[1]->shape.dims[0]);
    c->dtype = zfi_wide(c->args[0]->dtype);
    c->shape = c->args[3]->shape;
    return status;
}

/* --------------------------------------------------------------------------- gradients */

/* dispatch or combine of x, with weights where there are any. */
static zf_tensor zfi_by_choices(zf_op op, zf_tensor x, zf_tensor rows, zf_tensor slots,
                                zf_tensor weights)
{
    return zfi_build(op, zfi_is_operand(weights) ? 4 : 3,
                     (zf_tensor[]){x, rows, slots, weights}, NULL);
}

static void zfi_grad_weights_of(zf_grad *c, zf_tensor rows, zf_tensor tokens)
{
    if (c->count > 3 && c->need[3])
        c->dx[3] = zf_cast(zfi_op(choice_dots, NULL, rows, tokens, c->x[1], c->x[2]),
                           zf_tensor_dtype(c->x[3]));
}

static void zfi_grad_dispatch(zf_grad *c)
{
    const zf_tensor weights = c->count > 3 ? c->x[3] : ZF_NONE;
    if (c->need[0]) c->dx[0] = zfi_by_choices(ZF_OP_combine, c->dy, c->x[1], c->x[2], weights);
    zfi_grad_weights_of(c, c->dy, c->x[0]);
}

static void zfi_grad_combine(zf_grad *c)
{
    const zf_tensor weights = c->count > 3 ? c->x[3] : ZF_NONE;
    if (c->need[0]) c->dx[0] = zfi_by_choices(ZF_OP_dispatch, c->dy, c->x[1], c->x[2], weights);
    zfi_grad_weights_of(c, c->x[0], c->dy);
}

static void zfi_grad_choice_dots(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_by_choices(ZF_OP_dispatch, c->x[1], c->x[2], c->x[3], c->dy);
    if (c->need[1]) c->dx[1] = zfi_by_choices(ZF_OP_combine, c->x[0], c->x[2], c->x[3], c->dy);
}

/* ------------------------------------------------------------------------- expert_rows */

/* What expert_rows computes, in scratch where no node reads it. The experts of each part are
 * experts of their own here. */
typedef struct zfi_expert_plan {
    int64_t tokens, k, experts, rows, capacity, blocks, parts, run; /* run: tokens of a sequence */
    bool zigzag;
    int32_t *bounds, *slots, *counts, *of; /* of: the choices of an expert, by the order of drops */
} zfi_expert_plan;

static int32_t *zfi_expert_part(const zf_launch *l, int index, int64_t count, int32_t **free)
{
    const zf_array *saved = zfi_saved_out(l, index);
    int32_t *at = saved ? saved->data : *free;
    if (!saved) *free += count;
    return at;
}

static zfi_expert_plan zfi_expert_plan_of(const zf_launch *l)
{
    int32_t *free = l->scratch;
    zfi_expert_plan p = {.tokens = l->args[0].shape.dims[0],
                         .k = l->args[0].shape.dims[1],
                         .rows = ZF_INT(l, expert_rows, rows),
                         .capacity = ZF_INT(l, expert_rows, capacity),
                         .parts = zfi_max(ZF_INT(l, expert_rows, parts), 1),
                         .zigzag = ZF_INT(l, expert_rows, zigzag) != 0};
    p.experts = ZF_INT(l, expert_rows, experts) * p.parts;
    p.blocks = zfi_max(ZF_INT(l, expert_rows, blocks), 1) * p.parts;
    p.run = p.tokens / zfi_max(ZF_INT(l, expert_rows, runs), 1);
    p.bounds = zfi_expert_part(l, ZFI_ROWS_BOUNDS, 2 * p.experts, &free);
    p.slots = zfi_expert_part(l, ZFI_ROWS_SLOTS, p.tokens * p.k, &free);
    p.counts = zfi_expert_part(l, ZFI_ROWS_COUNTS, p.experts, &free);
    p.of = free;
    return p;
}

static size_t zfi_scratch_expert_rows(const zf_launch *l)
{
    size_t bytes;
    const size_t parts = (size_t)zfi_max(ZF_INT(l, expert_rows, parts), 1),
                 experts = (size_t)ZF_INT(l, expert_rows, experts) * parts;
    const bool fits = zfi_mul_size(2, (size_t)zfi_count(&l->args[0]), &bytes) &&
                      zfi_add_size(bytes, 3 * experts, &bytes) &&
                      zfi_mul_size(bytes, sizeof(int32_t), &bytes);
    return fits ? bytes : SIZE_MAX;
}

/* Where rows of part `at` lie, dealt zig-zag: after the first of the parts comes the last one. */
static int64_t zfi_part_zigzag(int64_t at, int64_t parts)
{
    return 2 * at < parts ? 2 * at : 2 * (parts - 1 - at) + 1;
}

/* The expert of choice i, in its part; -1: none. */
static int64_t zfi_expert_of(const zf_launch *l, const zfi_expert_plan *p, int64_t i)
{
    const int64_t e = zfi_get_integer(&l->args[0], i), each = p->experts / p->blocks;
    int64_t part;
    if (p->parts < 2) return p->experts == e && ZF_INT(l, expert_rows, parts) ? -1 : e;
    if (e == p->experts / p->parts) return -1;
    part = i / p->k % p->run / (p->run / p->parts);
    if (p->zigzag) part = zfi_part_zigzag(part, p->parts);
    return (e / each * p->parts + part) * each + e % each;
}

/* Counts the choices of each expert. */
static zf_status zfi_expert_count(const zf_launch *l, const zfi_expert_plan *p)
{
    const int64_t experts = p->experts / p->parts, none = ZF_INT(l, expert_rows, parts) ? 1 : 0;
    memset(p->counts, 0, (size_t)p->experts * sizeof *p->counts);
    for (int64_t i = 0; i < p->tokens * p->k; i++) {
        const int64_t e = zfi_get_integer(&l->args[0], i);
        if (e < 0 || e >= experts + none)
            return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                            "expert_rows %%%d: choice %lld is expert %lld; it must be at least 0 "
                            "and less than %lld",
                            (int)l->node, (long long)i, (long long)e, (long long)experts);
        if (e < experts) p->counts[zfi_expert_of(l, p, i)]++;
    }
    return ZF_OK;
}

/* The first row of the block of expert e. */
static int64_t zfi_expert_block(const zfi_expert_plan *p, int64_t e)
{
    return e / (p->experts / p->blocks) * (p->rows / p->blocks);
}

/* The choices of block b; *most: its expert with the most of them. */
static int64_t zfi_block_choices(const zfi_expert_plan *p, int64_t b, int64_t *most)
{
    const int64_t each = p->experts / p->blocks;
    int64_t choices = 0;
    *most = b * each;
    for (int64_t e = b * each; e < (b + 1) * each; e++) {
        choices += p->counts[e];
        if (p->counts[e] > p->counts[*most]) *most = e;
    }
    return choices;
}

/* The error that block b has more choices than rows: its largest expert, and for how many times the
 * mean of blocks there would have to be rows. */
static zf_status zfi_block_overflow(const zf_launch *l, const zfi_expert_plan *p, int64_t b)
{
    const int64_t each = p->experts / p->blocks;
    int64_t most;
    const int64_t choices = zfi_block_choices(p, b, &most);
    const double mean = (double)(p->tokens * p->k) / (double)p->blocks;
    const int64_t first = b / p->parts * each; /* of experts, whatever the part */
    return zfi_fail(
        l->error, ZF_ERR_ARGUMENT,
        "expert_rows %%%d: %lld choices of experts %lld to %lld on rank %d, %lld of them "
        "of expert %lld, and there are %lld rows; %.2f times the mean of %g would do",
        (int)l->node, (long long)choices, (long long)first, (long long)(first + each - 1),
        (int)l->run->rank, (long long)p->counts[most], (long long)(first + most - b * each),
        (long long)(p->rows / p->blocks), ceil((double)choices / mean * 100) / 100, mean);
}

/* The error that there are more choices than rows: the largest expert, and the rows that would
 * do. */
static zf_status zfi_expert_overflow(const zf_launch *l, const zfi_expert_plan *p)
{
    int64_t most;
    for (int64_t b = 0; b < p->blocks && p->blocks > 1; b++)
        if (zfi_block_choices(p, b, &most) > p->rows / p->blocks)
            return zfi_block_overflow(l, p, b);
    if (p->blocks > 1 || p->tokens * p->k <= p->rows) return ZF_OK;
    (void)zfi_block_choices(p, 0, &most);
    return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                    "expert_rows %%%d: %lld choices need as many rows, and there are %lld; expert "
                    "%lld has %lld of them",
                    (int)l->node, (long long)(p->tokens * p->k), (long long)p->rows,
                    (long long)most, (long long)p->counts[most]);
}

/* Choice a goes before b where an expert drops some. */
static bool zfi_choice_before(const zf_launch *l, int64_t k, int64_t a, int64_t b)
{
    if (a % k != b % k) return a % k < b % k;
    if (l->arg_count > 1) {
        const double x = zfi_get(&l->args[1], a), y = zfi_get(&l->args[1], b);
        if (x > y || x < y) return x > y;
    }
    return a < b;
}

/* Moves of[at] down the heap of the first n, whose top goes last. */
static void zfi_choice_sift(const zf_launch *l, int64_t k, int32_t *of, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        const int32_t here = of[at];
        if (child + 1 < n && zfi_choice_before(l, k, of[child], of[child + 1])) child++;
        if (!zfi_choice_before(l, k, here, of[child])) return;
        of[at] = of[child], of[child] = here;
    }
}

/* Leaves the first `capacity` of n choices in front. */
static void zfi_choices_kept(const zf_launch *l, const zfi_expert_plan *p, int32_t *of, int64_t n)
{
    for (int64_t i = p->capacity / 2; i-- > 0;) zfi_choice_sift(l, p->k, of, p->capacity, i);
    for (int64_t i = p->capacity; i < n; i++) {
        const int32_t last = of[0];
        if (!zfi_choice_before(l, p->k, of[i], last)) continue;
        of[0] = of[i], of[i] = last;
        zfi_choice_sift(l, p->k, of, p->capacity, 0);
    }
}

/* Marks the choices that experts drop: their slot is `rows`, that of others 0. */
static void zfi_expert_drop(const zf_launch *l, const zfi_expert_plan *p)
{
    int64_t at = 0;
    for (int64_t e = 0; e < p->experts; e++) p->bounds[2 * e] = (int32_t)at, at += p->counts[e];
    for (int64_t i = 0; i < p->tokens * p->k; i++)
        p->of[p->bounds[2 * zfi_get_integer(&l->args[0], i)]++] = (int32_t)i;
    memset(p->slots, 0, (size_t)(p->tokens * p->k) * sizeof *p->slots);
    for (int64_t e = 0; e < p->experts; e++) {
        const int64_t n = p->counts[e];
        int32_t *of = p->of + p->bounds[2 * e] - n;
        if (n <= p->capacity) continue;
        zfi_choices_kept(l, p, of, n);
        for (int64_t i = p->capacity; i < n; i++) p->slots[of[i]] = (int32_t)p->rows;
    }
}

static zf_status zfi_cpu_expert_rows(const zf_launch *l)
{
    const zfi_expert_plan p = zfi_expert_plan_of(l);
    const int64_t choices = p.tokens * p.k;
    int32_t *rows = l->out.data;
    int64_t at = 0;
    if (zfi_expert_count(l, &p)) return l->error->status;
    if (!p.capacity && zfi_expert_overflow(l, &p)) return l->error->status;
    if (p.capacity) zfi_expert_drop(l, &p);
    for (int64_t e = 0; e < p.experts; e++) {
        if (p.blocks > 1 && e % (p.experts / p.blocks) == 0) at = zfi_expert_block(&p, e);
        if (p.capacity) at = e * p.capacity;
        p.bounds[2 * e] = p.bounds[2 * e + 1] = (int32_t)at;
        at += p.counts[e];
    }
    for (int64_t r = 0; r < p.rows; r++) rows[r] = (int32_t)choices;
    for (int64_t i = 0; i < choices; i++) {
        const int64_t e = zfi_expert_of(l, &p, i);
        int32_t *end = p.bounds + 2 * e + 1;
        if (e < 0) p.slots[i] = (int32_t)p.rows;
        if (e < 0 || (p.capacity && p.slots[i])) continue;
        rows[*end] = (int32_t)i;
        p.slots[i] = (*end)++;
    }
    for (int64_t i = 0; i < 2 * p.experts && p.blocks > 1; i++)
        p.bounds[i] -= (int32_t)zfi_expert_block(&p, i / 2);
    return ZF_OK;
}

/* ---------------------------------------------------------------- dispatch and combine */

enum { ZFI_CHOICE_SPAN = 256 };

/* What dispatch, combine and choice_dots read. Rows and tokens have `width` elements. */
typedef struct zfi_choices {
    const int32_t *rows, *slots;
    const zf_array *weights; /* or NULL */
    int64_t count, tokens, k, width;
} zfi_choices;

static zfi_choices zfi_choices_of(const zf_launch *l, int32_t at)
{
    return (zfi_choices){.rows = l->args[at].data,
                         .slots = l->args[at + 1].data,
                         .weights = l->arg_count > at + 2 ? &l->args[at + 2] : NULL,
                         .count = l->args[at].shape.dims[0],
                         .tokens = l->args[at + 1].shape.dims[0],
                         .k = l->args[at + 1].shape.dims[1],
                         .width = l->args[0].shape.dims[1]};
}

/* Every row is a choice or none, and every slot a row or none. */
static zf_status zfi_check_choices(const zf_launch *l, int32_t at)
{
    const zfi_choices c = zfi_choices_of(l, at);
    const int64_t most[2] = {c.tokens * c.k, c.count}, counts[2] = {c.count, c.tokens * c.k};
    const int32_t *lists[2] = {c.rows, c.slots};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < counts[k]; i++)
            if (lists[k][i] < 0 || lists[k][i] > most[k])
                return zfi_fail(l->error, ZF_ERR_ARGUMENT,
                                "%s %%%d: element %lld of operand %d is %d; it must be at least 0 "
                                "and at most %lld",
                                zf_launch_name(l), (int)l->node, (long long)i, (int)at + k,
                                (int)lists[k][i], (long long)most[k]);
    return ZF_OK;
}

static double zfi_choice_weight(const zfi_choices *c, int64_t choice)
{
    return c->weights ? zfi_get(c->weights, choice) : 1;
}

/* sum[0..n) += weight times n elements from `at` on, in f32. */
static void zfi_choice_add(zfi_isa isa, float *sum, const zf_array *x, int64_t at, double weight,
                           int64_t n)
{
    float room[ZFI_CHOICE_SPAN];
    const float by = (float)weight;
    zfi_widen(isa, room, x->dtype, zfi_element(x->data, x->dtype, at), n);
    for (int64_t i = 0; i < n; i++) sum[i] += by * room[i];
}

static void zfi_dispatch_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_choices c = zfi_choices_of(l, 1);
    const size_t size = zf_dtype_size(l->out.dtype), bytes = (size_t)c.width * size;
    const bool fast = zfi_fast_or_half(l);
    for (int64_t r = first; r < last; r++) {
        const int64_t choice = c.rows[r], from = choice / c.k * c.width, to = r * c.width;
        char *out = (char *)l->out.data + (size_t)r * bytes;
        if (choice == c.tokens * c.k) memset(out, 0, bytes);
        else if (!c.weights) memcpy(out, (const char *)l->args[0].data + (size_t)from * size, bytes);
        for (int64_t i = 0, n; i < c.width && c.weights && choice < c.tokens * c.k; i += n) {
            float sum[ZFI_CHOICE_SPAN] = {0};
            n = fast ? zfi_min(ZFI_CHOICE_SPAN, c.width - i) : 1;
            if (!fast)
                zfi_set(&l->out, to + i,
                        zfi_choice_weight(&c, choice) * zfi_get(&l->args[0], from + i));
            else
                zfi_choice_add(zfi_cpu_of(l)->isa, sum, &l->args[0], from + i,
                               zfi_choice_weight(&c, choice), n);
            if (fast)
                zfi_narrow(zfi_cpu_of(l)->isa, out + (size_t)i * size, l->out.dtype, sum, n);
        }
    }
}

static zf_status zfi_cpu_dispatch(const zf_launch *l)
{
    zf_status status = zfi_check_choices(l, 1);
    if (!status && zfi_count(&l->out))
        zfi_split(l, l->out.shape.dims[0], zfi_row_grain(l->out.shape.dims[1]), zfi_dispatch_range);
    return status;
}

/* The choice of a token with the next row after `before`; -1: there is none. */
static int64_t zfi_choice_after(const zfi_choices *c, int64_t token, int64_t before)
{
    int64_t best = -1;
    for (int64_t i = token * c->k; i < (token + 1) * c->k; i++)
        if (c->slots[i] > before && c->slots[i] < c->count &&
            (best < 0 || c->slots[i] < c->slots[best]))
            best = i;
    return best;
}

static void zfi_combine_span(const zf_launch *l, const zfi_choices *c, int64_t token, int64_t at,
                             int64_t n)
{
    float sum[ZFI_CHOICE_SPAN] = {0};
    double one = 0;
    for (int64_t i, row = -1; (i = zfi_choice_after(c, token, row)) >= 0;) {
        const double weight = zfi_choice_weight(c, i);
        row = c->slots[i];
        if (zfi_fast_or_half(l))
            zfi_choice_add(zfi_cpu_of(l)->isa, sum, &l->args[0], row * c->width + at, weight, n);
        else one += weight * zfi_get(&l->args[0], row * c->width + at);
    }
    if (!zfi_fast_or_half(l)) zfi_set(&l->out, token * c->width + at, one);
    else
        zfi_narrow(zfi_cpu_of(l)->isa,
                   zfi_element_of(l->out.data, l->out.dtype, token * c->width + at), l->out.dtype,
                   sum, n);
}

static void zfi_combine_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_choices c = zfi_choices_of(l, 1);
    for (int64_t t = first; t < last; t++)
        for (int64_t i = 0, n; i < c.width; i += n) {
            n = zfi_fast_or_half(l) ? zfi_min(ZFI_CHOICE_SPAN, c.width - i) : 1;
            zfi_combine_span(l, &c, t, i, n);
        }
}

static zf_status zfi_cpu_combine(const zf_launch *l)
{
    zf_status status = zfi_check_choices(l, 1);
    if (!status && zfi_count(&l->out))
        zfi_split(l, l->out.shape.dims[0], zfi_row_grain(2 * l->out.shape.dims[1]),
                  zfi_combine_range);
    return status;
}

/* The sum of products of a row and a token. */
static double zfi_choice_dot(const zf_launch *l, int64_t row, int64_t token, int64_t width)
{
    const zf_array *x = &l->args[0], *z = &l->args[1];
    float rooms[2][ZFI_CHOICE_SPAN], sum = 0;
    double exact = 0;
    if (!zfi_fast_or_half(l)) {
        for (int64_t i = 0; i < width; i++)
            exact += zfi_get(x, row * width + i) * zfi_get(z, token * width + i);
        return exact;
    }
    for (int64_t i = 0, n; i < width; i += n) {
        const zfi_isa isa = zfi_cpu_of(l)->isa;
        n = zfi_min(ZFI_CHOICE_SPAN, width - i);
        sum += zfi_vdot(isa, zfi_read_floats(isa, rooms[0], x, row * width + i, n),
                        zfi_read_floats(isa, rooms[1], z, token * width + i, n), n);
    }
    return sum;
}

static void zfi_choice_dots_range(const zf_launch *l, int64_t first, int64_t last)
{
    const zfi_choices c = zfi_choices_of(l, 2);
    for (int64_t i = first; i < last; i++)
        zfi_set(&l->out, i,
                c.slots[i] < c.count ? zfi_choice_dot(l, c.slots[i], i / c.k, c.width) : 0);
}

static zf_status zfi_cpu_choice_dots(const zf_launch *l)
{
    zf_status status = zfi_check_choices(l, 2);
    if (!status)
        zfi_split(l, zfi_count(&l->out), zfi_row_grain(2 * l->args[0].shape.dims[1]),
                  zfi_choice_dots_range);
    return status;
}

static double zfi_flops_choice_dots(const zf_launch *l)
{
    return 2.0 * (double)zfi_count(&l->out) * (double)l->args[0].shape.dims[1];
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(expert_rows, .infer = zfi_infer_expert_rows, .grad = zfi_grad_none,
             .cpu = zfi_cpu_expert_rows, .scratch = zfi_scratch_expert_rows,
             .saved = zfi_saved_expert_rows,
             .cuts = "t k!, ?t k! -> t_; t_ b!; t k!; t_ {parts^t rows/t}",
             .traits = ZF_OP_WANTS_F32)
ZFI_OPERATOR(dispatch, .infer = zfi_infer_dispatch, .grad = zfi_grad_dispatch,
             .cpu = zfi_cpu_dispatch, .linear = ZFI_LINEAR_FIRST,
             .cuts = "t h, t_, t k!, ?t k! -> t_ h {parts^t}",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(combine, .infer = zfi_infer_combine, .grad = zfi_grad_combine, .cpu = zfi_cpu_combine,
             .linear = ZFI_LINEAR_FIRST, .cuts = "t_ h, t_, t k!, ?t k! -> t h {parts^t}",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(choice_dots, .infer = zfi_infer_choice_dots, .grad = zfi_grad_choice_dots,
             .cpu = zfi_cpu_choice_dots, .flops = zfi_flops_choice_dots, .linear = ZFI_LINEAR_FIRST,
             .cuts = "t_ h!, t h!, t_, t k! -> t k! {parts^t}", .traits = ZF_OP_READS_HALF)
