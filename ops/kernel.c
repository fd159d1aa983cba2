/* What kernels share: access to elements of any dtype, strides of broadcasting, work split over
 * threads.
 *
 * A reference kernel reads and writes one element at a time in double (or int64), with zfi_get and
 * zfi_set. It defines the operator for every dtype. A fast kernel takes f32 and must agree with the
 * reference within rounding. For bf16 and f16 its operands are converted (run/compile/widen.c),
 * unless it reads 16 bits itself. Work is split into pieces whose size does not depend on the
 * number of threads, so the order of additions does not depend on it either. */

/* The element of a whole value that is element `i` of a share of this shape; *run: how many follow
 * it in both, itself counted. */
static int64_t zfi_whole_element(const zf_share *share, const zf_shape *shape, int64_t i,
                                 int64_t *run)
{
    int64_t at = 0, step = 1, inner = 1, rest = i;
    *run = 0;
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        const int64_t dim = shape->dims[d], all = share->whole.dims[d], k = rest % dim,
                      together = share->run[d] ? share->run[d] : dim,
                      half = share->fold[d] ? together / 2 : together;
        at += (k / together * (all / dim) * together + share->at[d] + k % together) * step;
        if (k % together >= half) at += share->fold[d] * step;
        if (dim != all && !*run) *run = inner * half - i % (inner * half);
        inner *= dim, rest /= dim, step *= all;
    }
    if (!*run) *run = inner - i;
    return at;
}

static double zfi_bf16_to_f64(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static double zfi_f16_to_f64(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31  ? (fraction ? NAN : INFINITY)
                   : exponent == 0 ? ldexp(fraction, -24)
                                   : ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* The nearest f16, ties to even, overflow to infinity. */
static uint16_t zfi_f64_to_f16(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value), unit;
    int exponent;
    if (isnan(value)) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 65520.0) return (uint16_t)(sign | 0x7c00);
    (void)frexp(magnitude, &exponent);
    if (exponent < -13) exponent = -13; /* subnormal: unit of the smallest normal */
    /* 1024..2048 when normal, so a carry increments the exponent */
    unit = nearbyint(ldexp(magnitude, 11 - exponent));
    return (uint16_t)(sign |
                      (magnitude == 0.0 ? 0 : (unsigned)((exponent + 13) * 1024 + (int)unit)));
}

/* Rounds a double to bf16 as if in one step: the float in between is rounded to odd, so that the
 * second rounding meets no false tie. */
static uint16_t zfi_f64_to_bf16(double value)
{
    float near = (float)value;
    if (isfinite(near) && (double)near != value) {
        uint32_t bits;
        float toward = near;
        if (fabs((double)near) > fabs(value)) toward = nextafterf(near, 0.0f);
        memcpy(&bits, &toward, sizeof bits);
        bits |= 1;
        memcpy(&near, &bits, sizeof near);
    }
    return zfi_f32_to_bf16(near);
}

/* Element i as a double; exact except for i64 beyond 2^53. */
static double zfi_get(const zf_array *a, int64_t i)
{
    switch (a->dtype) {
    case ZF_F32: return ((const float *)a->data)[i];
    case ZF_F64: return ((const double *)a->data)[i];
    case ZF_BF16: return zfi_bf16_to_f64(((const uint16_t *)a->data)[i]);
    case ZF_F16: return zfi_f16_to_f64(((const uint16_t *)a->data)[i]);
    case ZF_I32: return ((const int32_t *)a->data)[i];
    case ZF_I64: return (double)((const int64_t *)a->data)[i];
    case ZF_U8:
    case ZF_BOOL: return ((const uint8_t *)a->data)[i];
    }
    return 0;
}

/* value truncated towards zero and clamped to [low, high]; NaN gives 0. */
static int64_t zfi_to_integer(double value, int64_t low, int64_t high)
{
    if (isnan(value)) return 0;
    return value <= (double)low ? low : value >= (double)high ? high : (int64_t)value;
}

/* Element i as an integer; floats are truncated. */
static int64_t zfi_get_integer(const zf_array *a, int64_t i)
{
    if (a->dtype == ZF_I64) return ((const int64_t *)a->data)[i];
    if (a->dtype == ZF_I32) return ((const int32_t *)a->data)[i];
    return zfi_to_integer(zfi_get(a, i), INT64_MIN, INT64_MAX);
}

/* Sets element i, rounding to nearest even; integers truncate and saturate; bool is value != 0. */
static void zfi_set(const zf_array *a, int64_t i, double value)
{
    switch (a->dtype) {
    case ZF_F32: ((float *)a->data)[i] = (float)value; break;
    case ZF_F64: ((double *)a->data)[i] = value; break;
    case ZF_BF16: ((uint16_t *)a->data)[i] = zfi_f64_to_bf16(value); break;
    case ZF_F16: ((uint16_t *)a->data)[i] = zfi_f64_to_f16(value); break;
    case ZF_I32:
        ((int32_t *)a->data)[i] = (int32_t)zfi_to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case ZF_I64: ((int64_t *)a->data)[i] = zfi_to_integer(value, INT64_MIN, INT64_MAX); break;
    case ZF_U8: ((uint8_t *)a->data)[i] = (uint8_t)zfi_to_integer(value, 0, 255); break;
    case ZF_BOOL: ((uint8_t *)a->data)[i] = value != 0.0; break;
    }
}

/* Sets element i to an integer: exact for i64, and for i32 in its range. */
static void zfi_set_integer(const zf_array *a, int64_t i, int64_t value)
{
    if (a->dtype == ZF_I64) ((int64_t *)a->data)[i] = value;
    else if (a->dtype == ZF_I32) ((int32_t *)a->data)[i] = (int32_t)value;
    else zfi_set(a, i, (double)value);
}

static int64_t zfi_count(const zf_array *a) { return zf_shape_count(a->shape); }

static int64_t zfi_array_bytes(const zf_array *a)
{
    return zfi_count(a) * (int64_t)zf_dtype_size(a->dtype);
}

/* `count` elements of x from `first` on, as f32: in place, or of 16 bits converted into `aside`. */
static const float *zfi_read_floats(zfi_isa isa, float *aside, const zf_array *x, int64_t first,
                                    int64_t count)
{
    const void *from = zfi_element(x->data, x->dtype, first);
    if (x->dtype == ZF_F32) return from;
    zfi_widen(isa, aside, x->dtype, from, count);
    return aside;
}

/* Where to compute elements of `to` from `first` on: in place, or in `aside`, from which
 * zfi_write_floats converts them. */
static float *zfi_place_floats(float *aside, const zf_array *to, int64_t first)
{
    return to->dtype == ZF_F32 ? (float *)to->data + first : aside;
}

static void zfi_write_floats(zfi_isa isa, const zf_array *to, int64_t first, const float *x,
                             int64_t count)
{
    if (to->dtype != ZF_F32)
        zfi_narrow(isa, zfi_element_of(to->data, to->dtype, first), to->dtype, x, count);
}

/* The node `id` has the dtype and shape of `x`. */
static bool zfi_same_type(const zf_graph *g, int32_t x, int32_t id)
{
    return g->nodes[x].dtype == g->nodes[id].dtype &&
           zfi_same_shape(&g->nodes[x].shape, &g->nodes[id].shape);
}

ZF_API void zf_convert(void *to, zf_dtype to_dtype, const void *from, zf_dtype from_dtype,
                       size_t count)
{
    zf_array out = {to, to_dtype, {0, {0}}}, in = {(void *)(uintptr_t)from, from_dtype, {0, {0}}};
    if (!to || !from || !zf_dtype_size(to_dtype) || !zf_dtype_size(from_dtype)) return;
    if (zfi_is_float(to_dtype) && zfi_is_float(from_dtype)) {
        zfi_convert_floats(zfi_isa_best(), to, to_dtype, from, from_dtype, (int64_t)count);
        return;
    }
    for (int64_t i = 0; i < (int64_t)count; i++) {
        if (zfi_is_integer(from_dtype)) zfi_set_integer(&out, i, zfi_get_integer(&in, i));
        else zfi_set(&out, i, zfi_get(&in, i));
    }
}

/* The strides, in elements, of `operand` broadcast to `out`: 0 along a repeated dimension. */
static void zfi_broadcast_strides(const zf_shape *operand, const zf_shape *out,
                                  int64_t strides[ZF_MAX_RANK])
{
    int64_t stride = 1;
    int shift = out->rank - operand->rank;
    for (int axis = out->rank - 1; axis >= 0; axis--) {
        int64_t extent = axis >= shift ? operand->dims[axis - shift] : 1;
        strides[axis] = extent == 1 ? 0 : stride;
        stride *= extent;
    }
}

/* The offset, under `strides`, of element number i of `shape` in row-major order. */
static int64_t zfi_offset(int64_t i, const zf_shape *shape, const int64_t strides[ZF_MAX_RANK])
{
    int64_t offset = 0;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        offset += i % shape->dims[axis] * strides[axis];
        i /= shape->dims[axis];
    }
    return offset;
}

/* ---------------------------------------------------------- the CPU backend, seen from a kernel */

typedef struct zfi_cpu {
    zf_backend backend;
    zfi_memory memory;
    zfi_pool *pool;
    struct zfi_queue *queues[ZFI_QUEUES]; /* the queues except queue 0; NULL: not in use */
    zfi_isa isa;
    bool reference;
} zfi_cpu;

static const zfi_cpu *zfi_cpu_of(const zf_launch *l) { return l->backend; }

/* The fast kernel may run: fast kernels are not switched off, and the result and all float operands
 * are f32. */
static bool zfi_fast(const zf_launch *l)
{
    if (zfi_cpu_of(l)->reference ||
        (l->out.data && zfi_is_float(l->out.dtype) && l->out.dtype != ZF_F32))
        return false;
    for (int32_t k = 0; k < l->arg_count; k++)
        if (zfi_is_float(l->args[k].dtype) && l->args[k].dtype != ZF_F32) return false;
    return true;
}

/* The same for a fast kernel that reads bf16 and f16 too. */
static bool zfi_fast_or_half(const zf_launch *l)
{
    if (zfi_cpu_of(l)->reference || l->out.dtype == ZF_F64) return false;
    for (int32_t k = 0; k < l->arg_count; k++)
        if (l->args[k].dtype == ZF_F64) return false;
    return true;
}

/* Where to write saved value `index`; NULL: there is no saved node for it. */
static const zf_array *zfi_saved_out(const zf_launch *l, int index)
{
    return l->saved && l->saved[index].data ? &l->saved[index] : NULL;
}

/* Runs task(launch, first, last) over [0, count), in pieces of `grain`, on all workers. */
typedef void zfi_range_task(const zf_launch *l, int64_t first, int64_t last);

typedef struct zfi_range {
    const zf_launch *launch;
    zfi_range_task *task;
    int64_t count, grain;
} zfi_range;

static void zfi_range_piece(void *context, int64_t index, int worker)
{
    const zfi_range *r = context;
    int64_t first = index * r->grain,
            last = first + r->grain < r->count ? first + r->grain : r->count;
    (void)worker;
    r->task(r->launch, first, last);
}

static void zfi_split(const zf_launch *l, int64_t count, int64_t grain, zfi_range_task *task)
{
    zfi_range range = {l, task, count, grain};
    if (count <= 0) return;
    if (count <= grain) task(l, 0, count);
    else zfi_pool_run(zfi_cpu_of(l)->pool, (count + grain - 1) / grain, zfi_range_piece, &range);
}

/* The number of rows of `length` elements that make a piece of about 16 thousand elements. */
static int64_t zfi_row_grain(int64_t length)
{
    int64_t rows = 16384 / (length > 0 ? length : 1);
    return rows > 1 ? rows : 1;
}

/* elements in a piece of an elementwise kernel */
enum { ZFI_GRAIN = 16384 };

/* ----------------------------------------------------------------- what infer functions share */

static zf_status zfi_infer_like(zfi_infer *c, int k)
{
    c->dtype = c->args[k]->dtype;
    c->shape = c->args[k]->shape;
    return ZF_OK;
}

/* Checks that all operands have operand 0's dtype, and with `floats` that it is a float. */
static zf_status zfi_infer_dtypes(const zfi_infer *c, bool floats)
{
    for (int32_t k = 1; k < c->arg_count; k++)
        if (c->args[k]->dtype != c->args[0]->dtype)
            return zfi_infer_fail(c, ZF_ERR_DTYPE,
                                  "the operands must have one dtype (zf_cast converts)");
    if (floats && !zfi_is_float(c->args[0]->dtype))
        return zfi_infer_fail(c, ZF_ERR_DTYPE, "the operand must be float: f32, bf16, f16 or f64");
    return ZF_OK;
}

/* Checks that all operands are float, of one dtype and one shape; so is the result. */
static zf_status zfi_infer_alike(zfi_infer *c)
{
    zf_status status = zfi_infer_dtypes(c, true);
    for (int32_t k = 1; k < c->arg_count && !status; k++)
        if (!zfi_same_shape(&c->args[k]->shape, &c->args[0]->shape))
            status = zfi_infer_fail(c, ZF_ERR_SHAPE, "the operands must have one shape");
    return status ? status : zfi_infer_like(c, 0);
}

/* The gradient function of an operator without gradient: every dx stays ZF_NONE. */
static void zfi_grad_none(zf_grad *c) { (void)c; }

/* ------------------------------------------------------------------------ instructions */

/* What C of a row in ZF_OPS says of its operator, by code. Two of one code do not compile. */
typedef struct zfi_instruction {
    zf_op op;
    zf_chain_kind kind;
    int form, activation;
} zfi_instruction;

static const zfi_instruction zfi_instructions[] = {
#define ZFI_ROW(name, least, most, attributes) attributes
#define ZFI_CODE(op, code, kind, form, activation)                                                 \
    [code] = {ZF_OP_##op, ZF_CHAIN_##kind, form, activation},
    ZF_OPS(ZFI_ROW, ZFI_NOTHING, ZFI_NOTHING, ZFI_CODE)
#undef ZFI_ROW
#undef ZFI_CODE
};

/* The attribute `form` of a node, which is the first; 0 where its operator has none. */
static int64_t zfi_form_of(const zfi_node *node)
{
    const char *names = node->op < ZF_OP_COUNT ? zfi_records[node->op]->attributes : NULL;
    return names && !strncmp(names, "form:", 5) ? node->attributes[0].i : 0;
}

/* The code of a node in chains; -1: it is no instruction. */
static int zfi_code_of(const zfi_node *node)
{
    for (int code = 0; code < ZFI_COUNT(zfi_instructions); code++)
        if (zfi_instructions[code].op == node->op &&
            zfi_instructions[code].form == zfi_form_of(node))
            return code;
    return -1;
}

/* The activation of linear that a node is; 0: none. */
static int zfi_activation_like(const zfi_node *node)
{
    int code = zfi_code_of(node);
    return code < 0 ? 0 : zfi_instructions[code].activation;
}

/* The instruction that is an activation of linear; NULL: there is none. */
static const zfi_instruction *zfi_activation(int64_t activation)
{
    for (int code = 0; code < ZFI_COUNT(zfi_instructions) && activation > 0; code++)
        if (zfi_instructions[code].activation == activation) return &zfi_instructions[code];
    return NULL;
}

/* Whether a node is a product with a matrix, and how that lies. */
static zfi_weight zfi_weight_kind(const zfi_node *node)
{
    const zfi_record *record = node->op < ZF_OP_COUNT ? zfi_records[node->op] : NULL;
    return record && record->weight ? record->weight(node) : ZFI_NO_WEIGHT;
}

/* An operator by its members `value` and `piece`. */
static void zfi_value_reference(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *a = &l->args[0], *b = &l->args[l->arg_count - 1];
    for (int64_t i = first; i < last; i++)
        zfi_set(&l->out, i, zfi_records[l->op]->value(l, zfi_get(a, i), zfi_get(b, i)));
}

static zf_status zfi_cpu_elements(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_GRAIN,
              zfi_fast(l) ? zfi_records[l->op]->piece : zfi_value_reference);
    return ZF_OK;
}

/* A function for each element of the result, and none: what .functions says. */
static double zfi_functions_each(const zf_launch *l) { return (double)zfi_count(&l->out); }
static double zfi_functions_none(const zf_launch *l) { return (void)l, 0; }
