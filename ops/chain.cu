/* chain: an elementwise program in one kernel, which runs it for 16 bytes of the result at a time.
 * The program is a parameter of the launch.
 *
 * The latest result stays in registers, where the next instruction mostly needs it. Operands, and
 * results that are needed later, are in slots of shared memory, in a column for each thread:
 *
 *     operands -> slots        r3 = add r0, r1      slot 0, slot 1
 *                              r4 = dropout r3      the last
 *                              y  = add r2, r4      slot 2, the last      -> out
 */

enum { ZFD_CHAIN_OPERANDS = 8, ZFD_CHAIN_LONGEST = 16, ZFD_CHAIN_SHARED = 48 << 10 };

/* What C of a row in ZF_OPS says of its operator. */
typedef struct zfd_instruction {
    zf_op op;
    zf_chain_kind kind;
    int form;
} zfd_instruction;

static zfd_instruction zfd_instruction_of(int64_t code)
{
    zfd_instruction none = {ZF_OP_none, ZF_CHAIN_UNARY, 0};
    switch (code) {
#define ZFD_NOTHING(...)
#define ZFD_ROW(name, least, most, attributes) attributes
#define ZFD_CODE(op, code, kind, form, activation)                                                 \
    case code: return zfd_instruction{ZF_OP_##op, ZF_CHAIN_##kind, form};
        ZF_OPS(ZFD_ROW, ZFD_NOTHING, ZFD_NOTHING, ZFD_CODE)
#undef ZFD_NOTHING
#undef ZFD_ROW
#undef ZFD_CODE
    default: return none;
    }
}

typedef enum zfd_chain_shape { ZFD_CHAIN_WHOLE, ZFD_CHAIN_VECTOR, ZFD_CHAIN_ONE } zfd_chain_shape;

/* a, b: a slot, or -1 for the latest result. to: a slot that also stores the result, or -1. */
typedef struct zfd_chain_step {
    zfd_unary unary;
    zf_chain_kind kind;
    int a, b, to;
    uint32_t threshold, stream; /* of an instruction dropout */
    float scale;
    bool none;
} zfd_chain_step;

typedef struct zfd_chain {
    int operands, count, slots;
    zfd_divisor last; /* the last dimension */
    struct zfd_chain_operand {
        const void *data;
        zfd_chain_shape shape;
    } operand[ZFD_CHAIN_OPERANDS];
    zfd_chain_step steps[ZFD_CHAIN_LONGEST];
    bool drops;
    zfd_dropout dropout; /* what all dropouts of the chain share */
} zfd_chain;

/* N numbers of this thread, as packs of at most 4, each pack next to those of the other threads. */
template <int N> struct zfd_slots {
    static const int some = N < 4 ? N : 4;
    typedef zfd_pack<float, some> pack;
    pack *shared;

    __device__ __forceinline__ pack *at(int slot, int k) const
    {
        return shared + (slot * (N / some) + k / some) * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ __forceinline__ void read(int slot, float (&x)[N]) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = at(slot, k)->at[k % some];
    }
    __device__ __forceinline__ void write(int slot, const float (&x)[N]) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) at(slot, k)->at[k % some] = x[k];
    }
};

/* y = the instruction for elements i to i + N of a and b; y may be either. */
template <int N>
__device__ __forceinline__ void zfd_chain_values(const zfd_chain_step &s, const zfd_dropper &drop,
                                                 int64_t i, const float (&a)[N],
                                                 const float (&b)[N], float (&y)[N])
{
    if (s.kind == ZF_CHAIN_BINARY) {
        zfd_binary_values(s.unary.op, a, b, y);
    } else if (s.kind == ZF_CHAIN_DROPOUT) {
        zfd_dropper d = drop;
        d.off = drop.off || s.none;
        d.threshold = s.threshold, d.stream = s.stream, d.scale = s.scale;
        zfd_dropped(d, i, a, y);
    } else {
        float z[N];
        zfd_unary_values(s.unary, a, b, y, z);
    }
}

template <class T, int N>
__global__ void zfd_chain_kernel(int64_t start, int64_t count, zfd_chain c, T *out)
{
    ZFD_SHARED(typename zfd_slots<N>::pack, shared);
    zfd_slots<N> slots = {shared};
    zfd_dropper drop = zfd_dropper();
    if (c.drops) drop = zfd_dropper_of(c.dropout);
    for (int64_t i = start + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        int64_t column = i - zfd_divide(i, c.last) * c.last.by;
        float y[N] = {0};
        for (int k = 0; k < c.operands; k++) {
            const zfd_chain_shape shape = c.operand[k].shape;
            int64_t at = shape == ZFD_CHAIN_WHOLE ? i : shape == ZFD_CHAIN_ONE ? 0 : column;
            zfd_fetch(y, static_cast<const T *>(c.operand[k].data) + at, shape != ZFD_CHAIN_ONE);
            slots.write(k, y);
        }
        for (int k = 0; k < c.count; k++) {
            const zfd_chain_step &s = c.steps[k];
            float a[N], b[N];
#pragma unroll
            for (int j = 0; j < N; j++) a[j] = b[j] = y[j];
            if (s.a >= 0) slots.read(s.a, a);
            if (s.b >= 0) slots.read(s.b, b);
            zfd_chain_values(s, drop, i, a, b, y);
            if (s.to >= 0) slots.write(s.to, y);
        }
        zfd_put_pack(out + i, y);
    }
}

/* Gives slots to operands, and to results that an instruction after the next one reads. A slot is
 * free again after its last reader. */
static void zfd_chain_slots(zfd_chain *c, const int *a, const int *b)
{
    int last[ZFD_CHAIN_OPERANDS + ZFD_CHAIN_LONGEST], slot[ZFD_CHAIN_OPERANDS + ZFD_CHAIN_LONGEST];
    uint32_t taken = (1u << c->operands) - 1;
    for (int r = 0; r < c->operands + c->count; r++) last[r] = slot[r] = -1;
    for (int k = 0; k < c->operands; k++) slot[k] = k;
    for (int k = 0; k < c->count; k++) { /* the final result needs none */
        if (a[k] != c->operands + k - 1) last[a[k]] = k;
        if (b[k] != c->operands + k - 1) last[b[k]] = k;
    }
    c->slots = c->operands;
    for (int k = 0; k < c->count; k++) {
        zfd_chain_step *s = &c->steps[k];
        int result = c->operands + k, free = 0;
        s->a = a[k] == result - 1 && k ? -1 : slot[a[k]];
        s->b = b[k] == result - 1 && k ? -1 : slot[b[k]];
        for (int r = 0; r < result; r++)
            if (last[r] == k) taken &= ~(1u << slot[r]);
        s->to = -1;
        if (last[result] < 0) continue;
        while (taken >> free & 1) free++;
        taken |= 1u << free;
        s->to = slot[result] = free;
        if (free >= c->slots) c->slots = free + 1;
    }
}

static zfd_chain zfd_chain_of(const zf_launch *l)
{
    const int64_t *program = static_cast<const int64_t *>(ZF_LIST(l, chain, program).data);
    const double *values = static_cast<const double *>(ZF_LIST(l, chain, values).data);
    int64_t count = zfd_count(&l->out);
    const zf_shape *shape = &l->out.shape;
    int a[ZFD_CHAIN_LONGEST], b[ZFD_CHAIN_LONGEST];
    zfd_chain c;
    memset(&c, 0, sizeof c);
    c.operands = l->arg_count, c.count = (int)(ZF_LIST(l, chain, program).count / 3);
    c.last = zfd_divisor_of(shape->rank ? shape->dims[shape->rank - 1] : 1, count);
    for (int k = 0; k < c.operands; k++) {
        int64_t n = zfd_count(&l->args[k]);
        c.operand[k].data = l->args[k].data;
        c.operand[k].shape = n == count ? ZFD_CHAIN_WHOLE
                             : n == 1   ? ZFD_CHAIN_ONE
                                        : ZFD_CHAIN_VECTOR;
    }
    for (int k = 0; k < c.count; k++, program += 3) {
        const zfd_instruction code = zfd_instruction_of(program[0]);
        zfd_chain_step *s = &c.steps[k];
        const bool two = code.kind == ZF_CHAIN_BINARY || code.kind == ZF_CHAIN_GRADIENT;
        s->unary.op = code.op, s->kind = code.kind;
        s->unary.way = zfd_gelu_way_of(code.form != 0, l->out.dtype);
        a[k] = (int)program[1], b[k] = two ? (int)program[2] : a[k];
        if (code.kind == ZF_CHAIN_SCALE) s->unary.by = (float)values[program[2]];
        if (code.kind != ZF_CHAIN_DROPOUT) continue;
        c.dropout = zfd_dropout_of(l, values[program[2]], (int64_t)values[program[2] + 1], count);
        c.drops = true;
        s->threshold = c.dropout.threshold, s->stream = c.dropout.stream;
        s->scale = c.dropout.scale, s->none = c.dropout.none;
    }
    c.dropout.none = false;
    zfd_chain_slots(&c, a, b);
    return c;
}

/* Whether N elements of every operand can be read at once, from each multiple of N on. */
static bool zfd_chain_lies_well(const zf_launch *l, const zfd_chain *c, int64_t n)
{
    bool well = zfd_lies_well(0, 1, l->out.data);
    for (int k = 0; k < c->operands; k++) {
        if (c->operand[k].shape == ZFD_CHAIN_ONE) continue;
        well = well && zfd_lies_well(0, 1, c->operand[k].data);
        if (c->operand[k].shape == ZFD_CHAIN_VECTOR) well = well && c->last.by % n == 0;
    }
    return well;
}

template <class T> static void zfd_chain_launch(const zf_launch *l)
{
    const int n = zfd_wide<T>::count;
    zfd_chain c = zfd_chain_of(l);
    int64_t all = zfd_count(&l->out), whole = zfd_chain_lies_well(l, &c, n) ? all / n * n : 0;
    T *out = static_cast<T *>(l->out.data);
    size_t column = (size_t)c.slots * sizeof(float); /* bytes of one element's slots */
    int threads = ZFD_THREADS;
    while (column * n * threads > ZFD_CHAIN_SHARED) threads /= 2;
    if (whole)
        ZFD_LAUNCH((zfd_chain_kernel<T, n>), zfd_grid(l, zfd_div_up(whole / n, threads)), threads,
                   column * n * threads, zfd_stream(l), (int64_t)0, whole, c, out);
    if (whole < all)
        ZFD_LAUNCH((zfd_chain_kernel<T, 1>), zfd_grid(l, zfd_div_up(all - whole, threads)), threads,
                   column * threads, zfd_stream(l), whole, all, c, out);
}

static zf_status zfd_cuda_chain(const zf_launch *l)
{
    if (!zfd_count(&l->out)) return ZF_OK;
    ZFD_FLOATS(l, l->out.dtype, T, zfd_chain_launch<T>(l);)
    return zfd_launched(l);
}

ZFD_KERNEL(chain, zfd_cuda_chain, NULL)
