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

enum { ZFI_CHAIN_OPERANDS = 8, ZFI_CHAIN_LONGEST = 16, ZFI_CHAIN_SHARED = 48 << 10 };

/* What a code stands for: the operator, the function that computes it, and its attribute `form`. */
static const struct zfi_chain_code {
    zf_op op;
    zf_chain_kind kind;
    int form;
} zfi_chain_codes[] = {
#define ZFI_CODE(op, kind, form) {ZF_OP_##op, ZF_CHAIN_##kind, form},
    ZF_CHAIN_CODES(ZFI_CODE)
#undef ZFI_CODE
};

typedef enum zfi_chain_shape { ZFI_CHAIN_WHOLE, ZFI_CHAIN_VECTOR, ZFI_CHAIN_ONE } zfi_chain_shape;

/* a, b: a slot, or -1 for the latest result. to: a slot that also stores the result, or -1. */
typedef struct zfi_chain_step {
    zfi_unary unary;
    zf_chain_kind kind;
    int a, b, to;
    uint32_t threshold, stream; /* of an instruction dropout */
    float scale;
    bool none;
} zfi_chain_step;

typedef struct zfi_chain {
    int operands, count, slots;
    zfi_divisor last; /* the last dimension */
    struct zfi_chain_operand {
        const void *data;
        zfi_chain_shape shape;
    } operand[ZFI_CHAIN_OPERANDS];
    zfi_chain_step steps[ZFI_CHAIN_LONGEST];
    bool drops;
    zfi_dropout dropout; /* what all dropouts of the chain share */
} zfi_chain;

/* N numbers of this thread, as packs of at most 4, each pack beside those of the other threads. */
template <int N> struct zfi_slots {
    static const int some = N < 4 ? N : 4;
    typedef zfi_pack<float, some> pack;
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
__device__ __forceinline__ void zfi_chain_values(const zfi_chain_step &s, const zfi_dropper &drop,
                                                 int64_t i, const float (&a)[N],
                                                 const float (&b)[N], float (&y)[N])
{
    if (s.kind == ZF_CHAIN_BINARY) {
        zfi_binary_values(s.unary.op, a, b, y);
    } else if (s.kind == ZF_CHAIN_DROPOUT) {
        zfi_dropper d = drop;
        d.off = drop.off || s.none;
        d.threshold = s.threshold, d.stream = s.stream, d.scale = s.scale;
        zfi_dropped(d, i, a, y);
    } else {
        float z[N];
        zfi_unary_values(s.unary, a, b, y, z);
    }
}

template <class T, int N>
__global__ void zfi_chain_kernel(int64_t start, int64_t count, zfi_chain c, T *out)
{
    ZF_SHARED(typename zfi_slots<N>::pack, shared);
    zfi_slots<N> slots = {shared};
    zfi_dropper drop = zfi_dropper();
    if (c.drops) drop = zfi_dropper_of(c.dropout);
    for (int64_t i = start + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * blockDim.x * N) {
        int64_t column = i - zfi_divide(i, c.last) * c.last.by;
        float y[N] = {0};
        for (int k = 0; k < c.operands; k++) {
            const zfi_chain_shape shape = c.operand[k].shape;
            int64_t at = shape == ZFI_CHAIN_WHOLE ? i : shape == ZFI_CHAIN_ONE ? 0 : column;
            zfi_fetch(y, static_cast<const T *>(c.operand[k].data) + at, shape != ZFI_CHAIN_ONE);
            slots.write(k, y);
        }
        for (int k = 0; k < c.count; k++) {
            const zfi_chain_step &s = c.steps[k];
            float a[N], b[N];
#pragma unroll
            for (int j = 0; j < N; j++) a[j] = b[j] = y[j];
            if (s.a >= 0) slots.read(s.a, a);
            if (s.b >= 0) slots.read(s.b, b);
            zfi_chain_values(s, drop, i, a, b, y);
            if (s.to >= 0) slots.write(s.to, y);
        }
        zfi_put_pack(out + i, y);
    }
}

/* Gives slots to operands, and to results that an instruction after the next one reads. A slot is
 * free again after its last reader. */
static void zfi_chain_slots(zfi_chain *c, const int *a, const int *b)
{
    int last[ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST], slot[ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST];
    uint32_t taken = (1u << c->operands) - 1;
    for (int r = 0; r < c->operands + c->count; r++) last[r] = slot[r] = -1;
    for (int k = 0; k < c->operands; k++) slot[k] = k;
    for (int k = 0; k < c->count; k++) { /* the final result needs none */
        if (a[k] != c->operands + k - 1) last[a[k]] = k;
        if (b[k] != c->operands + k - 1) last[b[k]] = k;
    }
    c->slots = c->operands;
    for (int k = 0; k < c->count; k++) {
        zfi_chain_step *s = &c->steps[k];
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

static zfi_chain zfi_chain_of(const zf_launch *l)
{
    const int64_t *program = static_cast<const int64_t *>(ZF_LIST(l, chain, program).data);
    const double *values = static_cast<const double *>(ZF_LIST(l, chain, values).data);
    int64_t count = zfi_count(&l->out);
    const zf_shape *shape = &l->out.shape;
    int a[ZFI_CHAIN_LONGEST], b[ZFI_CHAIN_LONGEST];
    zfi_chain c;
    memset(&c, 0, sizeof c);
    c.operands = l->arg_count, c.count = (int)(ZF_LIST(l, chain, program).count / 3);
    c.last = zfi_divisor_of(shape->rank ? shape->dims[shape->rank - 1] : 1, count);
    for (int k = 0; k < c.operands; k++) {
        int64_t n = zfi_count(&l->args[k]);
        c.operand[k].data = l->args[k].data;
        c.operand[k].shape = n == count ? ZFI_CHAIN_WHOLE
                             : n == 1   ? ZFI_CHAIN_ONE
                                        : ZFI_CHAIN_VECTOR;
    }
    for (int k = 0; k < c.count; k++, program += 3) {
        const struct zfi_chain_code *code = &zfi_chain_codes[program[0]];
        zfi_chain_step *s = &c.steps[k];
        const bool two = code->kind == ZF_CHAIN_BINARY || code->kind == ZF_CHAIN_GRADIENT;
        s->unary.op = code->op, s->kind = code->kind;
        s->unary.way = zfi_gelu_way_of(code->form != 0, l->out.dtype);
        a[k] = (int)program[1], b[k] = two ? (int)program[2] : a[k];
        if (code->op == ZF_OP_scale) s->unary.by = (float)values[program[2]];
        if (code->kind != ZF_CHAIN_DROPOUT) continue;
        c.dropout = zfi_dropout_of(l, values[program[2]], (int64_t)values[program[2] + 1], count);
        c.drops = true;
        s->threshold = c.dropout.threshold, s->stream = c.dropout.stream;
        s->scale = c.dropout.scale, s->none = c.dropout.none;
    }
    c.dropout.none = false;
    zfi_chain_slots(&c, a, b);
    return c;
}

/* Whether N elements of every operand can be read at once, from each multiple of N on. */
static bool zfi_chain_lies_well(const zf_launch *l, const zfi_chain *c, int64_t n)
{
    bool well = zfi_lies_well(0, 1, l->out.data);
    for (int k = 0; k < c->operands; k++) {
        if (c->operand[k].shape == ZFI_CHAIN_ONE) continue;
        well = well && zfi_lies_well(0, 1, c->operand[k].data);
        if (c->operand[k].shape == ZFI_CHAIN_VECTOR) well = well && c->last.by % n == 0;
    }
    return well;
}

template <class T> static void zfi_chain_launch(const zf_launch *l)
{
    const int n = zfi_wide<T>::count;
    zfi_chain c = zfi_chain_of(l);
    int64_t all = zfi_count(&l->out), whole = zfi_chain_lies_well(l, &c, n) ? all / n * n : 0;
    T *out = static_cast<T *>(l->out.data);
    size_t column = (size_t)c.slots * sizeof(float); /* bytes of one element's slots */
    int threads = ZFI_THREADS;
    while (column * n * threads > ZFI_CHAIN_SHARED) threads /= 2;
    if (whole)
        ZF_LAUNCH((zfi_chain_kernel<T, n>), zfi_grid(l, zfi_div_up(whole / n, threads)), threads,
                  column * n * threads, zfi_stream(l), (int64_t)0, whole, c, out);
    if (whole < all)
        ZF_LAUNCH((zfi_chain_kernel<T, 1>), zfi_grid(l, zfi_div_up(all - whole, threads)), threads,
                  column * threads, zfi_stream(l), whole, all, c, out);
}

static zf_status zfi_cuda_chain(const zf_launch *l)
{
    if (!zfi_count(&l->out)) return ZF_OK;
    ZFI_FLOATS(l, l->out.dtype, T, zfi_chain_launch<T>(l);)
    return zfi_launched(l);
}

ZFI_KERNEL(chain, zfi_cuda_chain, NULL)
