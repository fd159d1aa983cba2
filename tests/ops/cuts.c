/* What records say of cuts is true: each operator runs whole, and cut into 2 and 4 along each
 * letter of its string. Slices of the whole result are compared with the results of the parts, by
 * bits; sums over a letter with the sum of the parts, by bits where sections are divided. */
#include "cuts.h"
#include "op_cases.h"
#include "records.h"

/* Cases that op_cases.h lacks: without dropout or with it, and with heads and sections that can be
 * cut in 4. */
static const op_case more[] = {
    {"matmul", "f[N,R] f[N,M]", "matmul %1, %2 {transpose_a=true sections=4 wide=true} : g[R,M]",
     EXACT, 0, 0, 0},
    {"matmul", "f[2,R,N] f[M,N]",
     "matmul %1, %2 {transpose_b=true sections=4 wide=true} : g[2,R,M]", EXACT, 0, 0, 0},
    {"matmul", "f[4,R,N] f[N,M]", "matmul %1, %2 {sections=4 wide=true} : g[4,R,M]", EXACT, 0, 0,
     0},
    {"matmul", "f[4,N,R] f[4,M,N]",
     "matmul %1, %2 {transpose_a=true transpose_b=true sections=4 wide=true} : g[4,R,M]", EXACT, 0,
     0, 0},
    {"matmul", "f[4,N,R] f[4,M,N]", "matmul %1, %2 {transpose_a=true transpose_b=true} : f[4,R,M]",
     EXACT, 0, 0, 0},
    {"matmul", "f[4,N,R] f[4,N,M]", "matmul %1, %2 {transpose_a=true} : f[4,R,M]", EXACT, 0, 0, 0},
    {"matmul", "f[4,R,N] f[4,N,M] f[4,R,M]", "matmul %1, %2, %3 : f[4,R,M]", EXACT, 0, 0, 0},
    {"matmul", "f[4,N,R] f[4,N,M]",
     "matmul %1, %2 {transpose_a=true sections=4 wide=true} : g[4,R,M]", EXACT, 0, 0, 0},
    {"matmul", "f[4,R,N] f[4,M,N]",
     "matmul %1, %2 {transpose_b=true sections=4 wide=true} : g[4,R,M]", EXACT, 0, 0, 0},
    {"matmul", "f[4,R,N] f[M,N]", "matmul %1, %2 {transpose_b=true} : f[4,R,M]", EXACT, 0, 0, 0},
    {"head_loss", "f[R,M] f[N,M] l[R] v[R] f[N]",
     "head_loss %1, %2, %3, %4, %5 {ignore=-100} : g[]", EXACT, 0, 0, 0},
    {"head_part_grad", "f[R,M] f[N,M] l[R] v[R] f[N]",
     "head_part %1, %2, %3, %5 {ignore=-100 temperature=0.7 sections=4 entropy=true} : g[R,4,5]\n"
     "head_join_grad %4, %6, %3 {ignore=-100} : g[R,4,5]\n"
     "head_part_grad %1, %2, %3, %7, %6, %5 "
     "{ignore=-100 temperature=0.7 sections=4 entropy=true} : g[R,M]",
     EXACT, 0, 0, 0},
    {"dropout", "f[R,N]", "dropout %1 : f[R,N]", EXACT, 0, 0, 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {sections=4 wide=true} : g[R,M]", EXACT, 0, 0, 0},
    {"grouped_linear", "f[T,N] f[N,K,N] x[R,2]",
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
     "grouped_linear %1, %2, %5 {sections=4 wide=true} : g[T,K]",
     EXACT, 0, 0, NEEDS_N},
    {"grouped_linear", "f[T,N] f[N,N,K] x[R,2]",
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
     "grouped_linear %1, %2, %5 {transpose=true sections=4 wide=true} : g[T,K]",
     EXACT, 0, 0, NEEDS_N},
    {"grouped_linear", "f[H,N] f[N,K,N] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_linear %1, %2, %5 {sections=4 wide=true parts=R} : g[H,K]",
     EXACT, 0, 0, NEEDS_N},
    {"grouped_linear", "f[H,N] f[N,N,K] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_linear %1, %2, %5 {transpose=true sections=4 wide=true parts=R} : g[H,K]",
     EXACT, 0, 0, NEEDS_N},
    {"grouped_linear", "f[T,128] f[N,K,128] x[R,2]",
     "quantize %2 {bits=8 block=64} : u8[N,K,136]\n"
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %5 : i32[N,2]\n"
     "grouped_linear %1, %4, %6 {bits=8 block=64} : f[T,K]",
     EXACT, 0, 0, NEEDS_N},
    {"attention", "f[4,R,W] f[4,1,1,R]", "attention %1, %2 {heads=1 scale=0.5} : f[4,R,N]", EXACT,
     0, 0, 0},
    {"attention", "f[4,R,W] i[4,R]",
     "documents %2 : i32[4,R,2]\nattention %1, %3 {heads=1 scale=0.5 documents=true} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,N] f[4,R,N] f[4,R,N] f[4,1,1,R]",
     "attention %1, %2, %3, %4 {heads=4 scale=0.5} : f[4,R,N]", EXACT, 0, 0, 0},
    {"attention", "f[4,R,D] f[4,R,N] f[4,R,N]",
     "attention %1, %2, %3 {heads=8 scale=0.5 causal=true kv_heads=4} : f[4,R,D]", EXACT, 0, 0, 0},
    {"attention", "f[4,R,N] f[4,R,N] f[4,R,N] i[4,R]",
     "documents %4 : i32[4,R,2]\n"
     "attention %1, %2, %3, %5 {heads=4 scale=0.5 causal=true documents=true} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,N] f[4,R,N] f[4,R,N]",
     "attention %1, %2, %3 {heads=4 scale=0.5 p=0.25 stream=7} : f[4,R,N]", EXACT, 0, 0, 0},
    {"attention", "f[4,R,D] f[4,R,N] f[4,R,N]",
     "attention %1, %2, %3 {heads=8 scale=0.5 causal=true kv_heads=4 p=0.25 stream=7} : f[4,R,D]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,D] f[4,R,D] f[4,R,N] f[4,R,N]",
     "attention %2, %3, %4 {heads=8 scale=0.5 kv_heads=4 p=0.25 stream=7} : f[4,R,D]\n"
     "saved %5 {index=0} : g[4,8,R]\n"
     "attention_grad %1, %5, %6, %2, %3, %4 {heads=8 scale=0.5 kv_heads=4 p=0.25 stream=7} : f[Z]",
     EXACT, 0, 0, 0},
    {"masked_softmax", "f[2,4,R,N]", "masked_softmax %1 {scale=1 p=0.25 stream=7} : f[2,4,R,N]",
     EXACT, 0, 0, 0},
    {"masked_softmax_grad", "f[4,R,N] f[4,R,N]",
     "softmax %2 : f[4,R,N]\nmasked_softmax_grad %1, %3 {scale=0.5 p=0.25 stream=7} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"dropout", "f[4,R,N]", "dropout %1 {p=0.25 stream=7} : f[4,R,N]", EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,W] f[4,1,1,R]",
     "attention %2, %3 {heads=1 scale=0.5} : f[4,R,N]\nsaved %4 {index=0} : g[4,1,R]\n"
     "attention_grad %1, %4, %5, %2, %3 {heads=1 scale=0.5} : f[4,R,W]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,W] i[4,R]",
     "documents %3 : i32[4,R,2]\n"
     "attention %2, %4 {heads=1 scale=0.5 documents=true} : f[4,R,N]\n"
     "saved %5 {index=0} : g[4,1,R]\n"
     "attention_grad %1, %5, %6, %2, %4 {heads=1 scale=0.5 documents=true} : f[4,R,W]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,D] f[4,R,D] f[4,R,N] f[4,R,N] f[4,8,1,R]",
     "attention %2, %3, %4, %5 {heads=8 scale=0.5 causal=true kv_heads=4} : f[4,R,D]\n"
     "saved %6 {index=0} : g[4,8,R]\n"
     "attention_grad %1, %6, %7, %2, %3, %4, %5 {heads=8 scale=0.5 causal=true kv_heads=4} : f[Z]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,D] f[4,R,D] f[4,R,N] f[4,R,N] i[4,R]",
     "documents %5 : i32[4,R,2]\n"
     "attention %2, %3, %4, %6 {heads=8 scale=0.5 kv_heads=4 documents=true} : f[4,R,D]\n"
     "saved %7 {index=0} : g[4,8,R]\n"
     "attention_grad %1, %7, %8, %2, %3, %4, %6 {heads=8 scale=0.5 kv_heads=4 documents=true} "
     ": f[Z]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,W]",
     "constant {values=[16,1,0,1,0,1,0,0]} : i32[8]\n"
     "attention %2, %3 {heads=1 scale=0.5 block=16 layouts=1} : f[4,R,N]\n"
     "saved %4 {index=0} : g[4,1,R]\n"
     "attention_grad %1, %4, %5, %2, %3 {heads=1 scale=0.5 block=16 layouts=1} : f[4,R,W]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,D] f[4,R,D] f[4,R,N] f[4,R,N]",
     "constant {values=[16,1,0,1,0,1,0,0]} : i32[8]\n"
     "attention %2, %3, %4, %5 {heads=8 scale=0.5 kv_heads=4 block=16 layouts=1} : f[4,R,D]\n"
     "saved %6 {index=0} : g[4,8,R]\n"
     "attention_grad %1, %6, %7, %2, %3, %4, %5 {heads=8 scale=0.5 kv_heads=4 block=16 layouts=1} "
     ": f[Z]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,W] i[4,R]",
     "documents %2 : i32[4,R,2]\n"
     "attention %1, %3 {heads=4 scale=0.5 documents=true} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,D]",
     "attention %1 {heads=4 kv_heads=2 scale=0.5} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,D] i[4,R]",
     "documents %2 : i32[4,R,2]\n"
     "attention %1, %3 {heads=4 kv_heads=2 scale=0.5 documents=true} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,N] f[4,16,N] f[4,16,N]",
     "constant {values=[16,1,0,1,0,1,0,0]} : i32[8]\n"
     "attention %1, %2, %3, %4 {heads=4 scale=0.5 block=16 layouts=1 first=8 of=16} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,W] i[4,R]",
     "documents %3 : i32[4,R,2]\n"
     "attention %2, %4 {heads=4 scale=0.5 documents=true} : f[4,R,N]\n"
     "saved %5 {index=0} : g[4,4,R]\n"
     "attention_grad %1, %5, %6, %2, %4 {heads=4 scale=0.5 documents=true} : f[4,R,W]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,D]",
     "attention %2 {heads=4 kv_heads=2 scale=0.5} : f[4,R,N]\n"
     "saved %3 {index=0} : g[4,4,R]\n"
     "attention_grad %1, %3, %4, %2 {heads=4 kv_heads=2 scale=0.5} : f[4,R,D]",
     EXACT, 0, 0, 0},
    {"attention_grad", "f[4,R,N] f[4,R,D] i[4,R]",
     "documents %3 : i32[4,R,2]\n"
     "attention %2, %4 {heads=4 kv_heads=2 scale=0.5 documents=true} : f[4,R,N]\n"
     "saved %5 {index=0} : g[4,4,R]\n"
     "attention_grad %1, %5, %6, %2, %4 {heads=4 kv_heads=2 scale=0.5 documents=true} : "
     "f[4,R,D]",
     EXACT, 0, 0, 0},
    {"attention_backward", "f[4,R,N] f[4,R,N] f[4,R,N] f[4,R,N]",
     "attention %2, %3, %4 {heads=4 scale=0.5 causal=true of=R} : f[4,R,N]\n"
     "saved %5 {index=0} : g[4,4,R]\n"
     "attention_backward %1, %5, %6, %2, %3, %4 {heads=4 scale=0.5 causal=true of=R} : "
     "f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention_backward", "f[4,R,N] f[4,R,N] f[4,R,N] f[4,R,N] i[4,R]",
     "documents %5 : i32[4,R,2]\n"
     "attention %2, %3, %4, %6 {heads=4 scale=0.5 documents=true of=R} : f[4,R,N]\n"
     "saved %7 {index=0} : g[4,4,R]\n"
     "attention_backward %1, %7, %8, %2, %3, %4, %6 {heads=4 scale=0.5 documents=true of=R} : "
     "f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention_backward", "f[4,R,N] f[4,R,N] f[4,16,N] f[4,16,N]",
     "constant {values=[16,1,0,1,0,1,0,0]} : i32[8]\n"
     "attention %2, %3, %4, %5 {heads=4 scale=0.5 block=16 layouts=1 first=8 of=16} : "
     "f[4,R,N]\n"
     "saved %6 {index=0} : g[4,4,R]\n"
     "attention_backward %1, %6, %7, %2, %3, %4, %5 {heads=4 scale=0.5 block=16 layouts=1 "
     "first=8 of=16} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"attention", "f[4,R,N] f[4,4,N] f[4,4,N]",
     "attention %1, %2, %3 {heads=4 scale=0.5 causal=true of=16 key=2 keys=16} : g[4,R,N]", EXACT, 0,
     0, 0},
    {"attention_join", "g[4,R,N] g[4,4,R] g[4,R,N] g[4,4,R]",
     "attention_join %1, %2, %3, %4 {heads=4} : g[4,R,N]", EXACT, 0, 0, 0},
    {"cached_attention", "f[4,R,N] f[4,R,N] f[4,R,N] x[4] r[4] c[4,J,N] c[4,J,N]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=4 scale=0.5 kv_heads=4} : f[4,R,N]", EXACT,
     0, 0, 0},
    {"documents", "i[4,R]", "documents %1 : i32[4,R,2]", EXACT, 0, 0, 0},
    {"rope", "f[2,R,D] i[R]", "rope %1, %2 {heads=4 theta=100} : f[2,R,D]", EXACT, 0, 0, 0},
    {"rope", "f[4,R,D]", "rope %1 {heads=4 theta=100} : f[4,R,D]", EXACT, 0, 0, 0},
    {"embed_norm", "f[N,K] x[R,4] f[N,K] y[R,4] f[4,K] f[K] f[K]",
     "embed_norm %1, %2, %3, %4, %5, %6, %7 {eps=1e-05} : f[R,4,K]", EXACT, 0, 0, 0},
    {"masked_softmax", "f[2,4,R,N] w[2,1,1,N]", "masked_softmax %1, %2 {scale=1} : f[2,4,R,N]",
     EXACT, 0, 0, 0},
    {"masked_softmax_grad", "f[R,N] f[R,N]",
     "softmax %2 : f[R,N]\nmasked_softmax_grad %1, %3 {scale=0.5} : f[R,N]", EXACT, 0, 0, 0},
    {"gather_rows", "f[N,M] x[R]", "gather_rows %1, %2 {padded=true padding=1} : f[R,M]", EXACT, 0,
     0, 0},
    {"quantized_linear", "f[4,R,128] f[N,128] f[N]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "quantized_linear %1, %4, %3 {bits=8 block=64} : f[4,R,N]",
     EXACT, 0, 0, 0},
    {"quantized_linear", "f[4,R,N] f[N,128]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "quantized_linear %1, %3 {bits=8 block=64 transposed=true} : f[4,R,128]",
     EXACT, 0, 0, 0},
    {"reshape", "f[R,N]", "reshape %1 {shape=[S]} : f[S]", EXACT, 0, 0, 0},
    {"reshape", "f[4,R,D]", "reshape %1 {shape=[4,1,R,2,N]} : f[4,1,R,2,N]", EXACT, 0, 0, 0},
    {"reshape", "f[4,R,N]", "reshape %1 {shape=[2,H,N]} : f[2,H,N]", EXACT, 0, 0, 0},
    {"slice", "f[R,4,N]", "slice %1 {axis=1 start=1 stop=3} : f[R,2,N]", EXACT, 0, 0, 0},
    {"concat", "f[R,4,N] f[R,3,N]", "concat %1, %2 {axis=1} : f[R,7,N]", EXACT, 0, 0, 0},
};

enum { MORE = sizeof more / sizeof more[0], NODES = 24, ARENA = 1 << 22, FORMS = 16 };

static struct state {
    test *t;
    const op_case *c;
    const sizes *z;
    const zf_graph *graph;
    const zf_backend *cpu;
    zf_error *error;
    zf_dtype dtype;
    unsigned char *at; /* in the arena */
    zf_array value[NODES], saved[NODES][ZF_MAX_SAVED];
    /* By operator, form and number of parts, 2 or 4: the letters that were cut, 26 for those of
     * "..." */
    uint32_t cut[ZF_OP_COUNT][FORMS][2];
} state;

static unsigned char arena[ARENA];
/* Parts of several elements, and of one. */
static const sizes several = {8, 8, 4}, few = {4, 4, 4};

static void *room(size_t bytes)
{
    unsigned char *p = state.at;
    state.at += (bytes + 127) / 64 * 64;
    return state.at <= arena + ARENA ? p : NULL;
}

static size_t size_in_bytes(const zf_array *a)
{
    return (size_t)zf_shape_count(a->shape) * zf_dtype_size(a->dtype);
}

/* The array with memory of its own, that of `from` or 0xa5. */
static bool make(zf_array *a, const void *from)
{
    const size_t bytes = size_in_bytes(a);
    a->data = room(bytes);
    if (!a->data) return false;
    if (from) memcpy(a->data, from, bytes);
    else memset(a->data, 0xa5, bytes);
    return true;
}

/* ---------------------------------------------------------------------------------- parts */

/* A value that is cut: letter `letter` of it into `parts`. */
typedef struct cutting {
    const int8_t *at; /* the letter of each dimension; NULL: the value is not cut */
    const int8_t *runs;
    int letter;
    int64_t parts, part;
} cutting;

/* The cutting of a value. */
static void set_value(cutting *by, const cuts *c, int value)
{
    by->at = c->at[value], by->runs = c->runs[value];
}

static bool is_cut(const cutting *c, int d) { return c->at && c->at[d] == c->letter; }

static zf_shape shape_of_part(zf_shape s, const cutting *c)
{
    for (int d = 0; d < s.rank; d++)
        if (is_cut(c, d)) s.dims[d] /= c->parts;
    return s;
}

/* Copies a part of a value of that shape. */
static void copy_part(unsigned char *to, const unsigned char *from, size_t size, zf_shape s,
                      const cutting *c)
{
    const zf_shape its = shape_of_part(s, c);
    const int64_t count = zf_shape_count(its);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, step = 1, offset = 0;
        for (int d = s.rank - 1; d >= 0; d--) {
            const int64_t runs = is_cut(c, d) && c->runs[d] ? c->runs[d] : 1,
                          each = its.dims[d] / runs, at = rest % its.dims[d],
                          first = is_cut(c, d) ? each * c->part : 0;
            offset += (at / each * (s.dims[d] / runs) + first + at % each) * step;
            rest /= its.dims[d], step *= s.dims[d];
        }
        memcpy(to + (size_t)i * size, from + (size_t)offset * size, size);
    }
}

/* ---------------------------------------------------------------------------------- launches */

static bool launch(zf_launch *l)
{
    static const zf_run run = {.seed = 5, .step = 1, .world = 1, .nodes = 1};
    size_t scratch;
    l->run = &run, l->error = state.error, l->backend = state.cpu->self;
    scratch = state.cpu->scratch(state.cpu->self, l);
    l->scratch = scratch ? room(scratch) : NULL;
    if (scratch && !l->scratch) return false;
    return !state.cpu->launch(state.cpu->self, l);
}

/* What a node leaves: its result, what it saves, and the operands that it writes. */
typedef struct left {
    zf_array args[CUT_RESULT], out, saved[ZF_MAX_SAVED];
} left;

/* Runs the launch over copies of its operands. */
static bool run_over(const zf_launch *l, left *x)
{
    zf_launch over = *l;
    for (int k = 0; k < l->arg_count; k++) {
        x->args[k] = l->args[k];
        for (int j = 0; j < k; j++) /* one operand twice */
            if (l->args[j].data == l->args[k].data) x->args[k].data = x->args[j].data;
        if (x->args[k].data == l->args[k].data && !make(&x->args[k], l->args[k].data)) return false;
    }
    x->out = l->out;
    if (l->out.data && !make(&x->out, NULL)) return false;
    for (int k = 0; k < ZF_MAX_SAVED; k++) {
        x->saved[k] = l->saved[k];
        if (l->saved[k].data && !make(&x->saved[k], NULL)) return false;
    }
    over.args = x->args, over.out = x->out, over.saved = x->saved;
    return launch(&over);
}

/* ---------------------------------------------------------------------------------- comparing */

static void complain(int32_t id, const cuts *c, const cutting *by, const char *what, int value)
{
    zf_node node;
    char text[200];
    for (int32_t k = 0; zf_graph_node(state.graph, k, &node) && node.id != id; k++) continue;
    snprintf(text, sizeof text, "%s, form %d, %s, cut into %d along %c: value %d %s", node.op_name,
             c->form, zf_dtype_name(state.dtype), (int)by->parts, c->name[by->letter], value, what);
    wrong(state.t, __LINE__, state.c, state.z, "%s", text);
}

static double largest(const double *x, int64_t n)
{
    double most = 1;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most) most = fabs(x[i]);
    return most;
}

/* The sum of the values of all parts, by a balanced tree, is the whole one. */
static bool sums_are(const zf_array *whole, const zf_array *parts, int64_t count, bool exact)
{
    const int64_t n = zf_shape_count(whole->shape);
    double *sums[4], *expected = kept[0], most;
    const double units = whole->dtype == ZF_F64    ? 0x1p-44
                         : whole->dtype == ZF_F32  ? 0x1p-18
                         : whole->dtype == ZF_BF16 ? 0x1p-4
                                                   : 0x1p-7;
    for (int64_t k = 0; k < count; k++) {
        sums[k] = room((size_t)n * 8);
        if (!sums[k]) return false;
        decode(sums[k], whole->dtype, parts[k].data, n);
    }
    for (int64_t far = 1; far < count; far *= 2)
        for (int64_t k = 0; k < count; k += 2 * far)
            for (int64_t i = 0; i < n; i++)
                sums[k][i] = exact ? rounded(sums[k][i] + sums[k + far][i], whole->dtype)
                                   : sums[k][i] + sums[k + far][i];
    decode(expected, whole->dtype, whole->data, n);
    most = largest(expected, n);
    for (int64_t i = 0; i < n; i++)
        if (exact ? sums[0][i] != expected[i] : !(fabs(sums[0][i] - expected[i]) <= units * most))
            return false;
    return true;
}

/* The part of the whole value is `part`. */
static bool part_is(const zf_array *whole, const zf_array *part, const cutting *by)
{
    const size_t bytes = size_in_bytes(part);
    unsigned char *expected = kept_raw[0];
    copy_part(expected, whole->data, zf_dtype_size(whole->dtype), whole->shape, by);
    return !memcmp(expected, part->data, bytes);
}

/* The same of a flat value, which has those of operands one after the other. */
static bool flat_is(const left *whole, const left *part, const cuts *c, const int8_t *operands,
                    const cutting *by)
{
    const size_t size = zf_dtype_size(whole->out.dtype);
    size_t from = 0, at = 0;
    for (int k = 0; k < 4 && operands[k]; k++) {
        const int o = operands[k] - 1;
        zf_array all = whole->out, its = part->out;
        cutting piece = *by;
        set_value(&piece, c, o);
        all.data = (unsigned char *)all.data + from, all.shape = whole->args[o].shape;
        its.data = (unsigned char *)its.data + at, its.shape = part->args[o].shape;
        if (!part_is(&all, &its, &piece)) return false;
        from += size * (size_t)zf_shape_count(all.shape),
            at += size * (size_t)zf_shape_count(its.shape);
    }
    return true;
}

static const zf_array *value_in(const left *x, int value)
{
    if (value < CUT_RESULT) return &x->args[value];
    return value == CUT_RESULT ? &x->out : &x->saved[value - CUT_RESULT - 1];
}

/* Rows, and the rows of choices, are numbers within the part of a rank. */
static bool counts_within_part(const zf_launch *l, int value)
{
    return l->op == ZF_OP_expert_rows && (value == CUT_RESULT || value == CUT_RESULT + 2);
}

/* Compares what the whole launch left with what its parts did. */
static void compare(int32_t id, const cuts *c, const cutting *by, const zf_launch *l,
                    const left *whole, const left *parts)
{
    for (int v = 0; v < CUT_VALUES; v++) {
        zf_array all[4];
        cutting its = *by;
        if (v < CUT_RESULT ? v >= l->arg_count : !value_in(whole, v)->data) continue;
        if (counts_within_part(l, v)) continue;
        if (v < CUT_RESULT &&
            !memcmp(whole->args[v].data, l->args[v].data, size_in_bytes(&l->args[v])))
            continue; /* it does not write the operand */
        if (!c->given[v]) {
            complain(id, c, by, "is not in the form", v);
            continue;
        }
        set_value(&its, c, v);
        for (int64_t k = 0; k < by->parts; k++) all[k] = *value_in(&parts[k], v);
        if (cut_sums(state.graph, id, by->letter, v)) {
            const bool masked = c->name[by->letter] == 'v';
            if (!sums_are(value_in(whole, v), all, by->parts, c->sections[by->letter] || masked))
                complain(id, c, by, "is not the sum of the parts", v);
            continue;
        }
        for (its.part = 0; its.part < by->parts; its.part++)
            if (c->flat[v][0] ? !flat_is(whole, &parts[its.part], c, c->flat[v], &its)
                              : !part_is(value_in(whole, v), &all[its.part], &its))
                complain(id, c, by, "has other bits", v);
    }
}

/* ---------------------------------------------------------------------------------- cutting */

/* The operand has numbers of choices, or of rows, which count from those of the part. There are as
 * many of both. */
static void count_from_part(const zf_launch *l, int k, const cutting *its, const zf_array *x)
{
    const int rows = l->op == ZF_OP_choice_dots                               ? 2
                     : l->op == ZF_OP_dispatch || l->op == ZF_OP_combine ? 1
                                                                          : CUT_RESULT;
    const int64_t count = zf_shape_count(x->shape);
    if ((k != rows && k != rows + 1) || !is_cut(its, 0)) return;
    for (int64_t i = 0; i < count; i++) ((int32_t *)x->data)[i] -= (int32_t)(count * its->part);
}

/* Runs a part of the launch. */
static bool run_part(int32_t id, const cuts *c, const cutting *by, const zf_launch *l, left *x)
{
    zf_launch part = *l;
    zf_array args[CUT_RESULT], saved[ZF_MAX_SAVED];
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    int64_t list[ZF_MAX_RANK];
    zf_share share;
    cutting its = *by;
    for (int k = 0; k < l->arg_count; k++) {
        args[k] = l->args[k];
        set_value(&its, c, k);
        if (!c->given[k]) its.at = NULL;
        args[k].shape = shape_of_part(l->args[k].shape, &its);
        if (!make(&args[k], NULL)) return false;
        for (int j = 0; j < k; j++)
            if (l->args[j].data == l->args[k].data && args[j].shape.rank == args[k].shape.rank &&
                !memcmp(&args[j].shape, &args[k].shape, sizeof args[k].shape))
                args[k].data = args[j].data;
        copy_part(args[k].data, l->args[k].data, zf_dtype_size(args[k].dtype), l->args[k].shape,
                  &its);
        count_from_part(l, k, &its, &args[k]);
    }
    set_value(&its, c, CUT_RESULT);
    part.out.shape = shape_of_part(l->out.shape, &its);
    for (int k = 0; k < 4 && c->flat[CUT_RESULT][k]; k++)
        part.out.shape.dims[0] = (k ? part.out.shape.dims[0] : 0) +
                                 zf_shape_count(args[c->flat[CUT_RESULT][k] - 1].shape);
    for (int k = 0; k < ZF_MAX_SAVED; k++) {
        saved[k] = l->saved[k];
        set_value(&its, c, CUT_RESULT + 1 + k);
        if (saved[k].data) saved[k].shape = shape_of_part(saved[k].shape, &its);
    }
    memcpy(attributes, l->attributes, sizeof attributes);
    cut_attributes(state.graph, id, by->letter, by->parts, by->part, &part.out.shape, attributes,
                   list);
    if (draws_by(l->op)) {
        const int of = draws_by(l->op) == 2 ? 0 : CUT_RESULT;
        set_value(&its, c, of);
        share = (zf_share){.whole = of ? l->out.shape : l->args[0].shape};
        for (int d = 0; d < share.whole.rank; d++)
            if (is_cut(&its, d)) share.at[d] = share.whole.dims[d] / by->parts * by->part;
        part.share = &share;
    }
    part.attributes = attributes, part.args = args, part.saved = saved;
    return run_over(&part, x);
}

static void cut_node(int32_t id, const zf_launch *l, const left *whole)
{
    cuts c;
    left parts[4];
    if (!cuts_of(state.graph, id, &c)) return;
    for (int letter = 0; letter < c.letters; letter++)
        for (int64_t n = 2; n <= 4; n += 2) {
            cutting by = {NULL, NULL, letter, n, 0};
            unsigned char *at = state.at;
            const int bit = c.name[letter] < 'a' ? 26 : c.name[letter] - 'a';
            bool ran = true;
            if (c.most[letter] % n || n > c.upto[letter]) continue;
            for (; by.part < n && ran; by.part++) ran = run_part(id, &c, &by, l, &parts[by.part]);
            if (ran) compare(id, &c, &by, l, whole, parts);
            else complain(id, &c, &by, "does not run", 0);
            if (state.error->status)
                snprintf(state.error->text, 4, "-"), state.error->status = ZF_OK;
            state.cut[l->op][c.form][n / 4] |= 1u << bit;
            state.at = at;
        }
}

/* Sets the value of a leaf. */
static bool fill_leaf(const zf_launch *l, const zf_node *node)
{
    zf_array *a = &state.value[node->id];
    const int64_t count = zf_shape_count(a->shape);
    const zf_attribute *values = &l->attributes[0];
    if (!make(a, NULL)) return false;
    if (node->name[0] == 'x' && node->name[1] && !node->name[2]) {
        encode(a->data, a->dtype, operand[node->name[1] - '0'], count);
        return true;
    }
    for (int64_t i = 0; i < count; i++) {
        const double x = l->op == ZF_OP_constant
                             ? ((const double *)values->list.data)[values->list.count > 1 ? i : 0]
                         : l->op == ZF_OP_state ? values->f
                                                : 0.5;
        encode((unsigned char *)a->data + (size_t)i * zf_dtype_size(a->dtype), a->dtype, &x, 1);
    }
    return true;
}

/* Runs the index-th node, and cut. */
static bool run_node(int32_t index, const zf_node *node)
{
    zf_array args[64], saved[ZF_MAX_SAVED] = {{.data = NULL}};
    zf_launch l;
    left whole;
    if (node->id >= NODES || !launch_at(state.graph, index, &l, args)) return false;
    state.value[node->id] = l.out;
    if (node->leaf) return fill_leaf(&l, node);
    if (l.op == ZF_OP_saved) {
        state.value[node->id] = state.saved[node->operands[0]][ZF_INT(&l, saved, index)];
        return true;
    }
    if (l.op == ZF_OP_output || l.arg_count > CUT_RESULT) return true;
    for (int k = 0; k < l.arg_count; k++) args[k] = state.value[node->operands[k]];
    for (int k = 0; k < ZF_MAX_SAVED; k++) {
        saved[k].data =
            can_save(state.graph, node->id, k, &saved[k].dtype, &saved[k].shape) ? arena : NULL;
        if (!saved[k].data) saved[k].shape.rank = 0;
    }
    l.saved = saved;
    l.out.data = node->effect ? NULL : arena;
    if (!run_over(&l, &whole)) return false;
    state.value[node->id] = whole.out;
    memcpy(state.saved[node->id], whole.saved, sizeof whole.saved);
    cut_node(node->id, &l, &whole);
    return true;
}

static void run_cut_case(test *t, session *s, const op_case *c)
{
    zf_node node;
    bool ran = true;
    if (!fits(c, state.z)) return;
    state.c = c, state.at = arena + 64;
    if (session_graph(t, s, c, state.z, state.dtype, false, 0)) {
        /* of 16 bits, an operand that must be f32 */
        if (zf_dtype_size(state.dtype) == 2 && !t->refused) return;
        stopped(t, __LINE__, c, state.z, s);
        return;
    }
    state.graph = s->graph;
    fill(c, state.z, state.dtype, false);
    for (int32_t k = 0; ran && zf_graph_node(s->graph, k, &node); k++) ran = run_node(k, &node);
    if (!ran) wrong(t, __LINE__, c, state.z, "it does not run: %s", s->error.text);
    session_close(s);
}

/* Every letter of every form was cut into 2 and 4. delay has no value that could be compared;
 * tests/cut/tensor.c runs it cut. all_reduce needs several ranks; tests/cut/drawn.c has it cut by
 * tokens. */
static void check_all_cut(test *t, int op, const char *text)
{
    for (int form = 0; *text; form++) {
        const int length = (int)strcspn(text, "|");
        uint32_t letters = 0, never = 0;
        const char *at = memchr(text, ':', (size_t)length), *end = text + length;
        for (at = at ? at : text; at < end && *at != '{'; at++) {
            if (at[0] == '.') letters |= 1u << 26;
            else if (*at >= 'a' && *at <= 'z') letters |= 1u << (*at - 'a');
            if (at[1] == '!' && *at >= 'a' && *at <= 'z') never |= 1u << (*at - 'a');
        }
        for (int n = 0; n < 2; n++) {
            const uint32_t missing = letters & ~never & ~state.cut[op][form][n];
            char what[80];
            snprintf(what, sizeof what, "form %d: no case cuts %#x into %d", form, missing,
                     2 + 2 * n);
            if (missing) test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op), what);
        }
        text += length + (text[length] == '|');
    }
}

TEST_ONCE(operators_can_be_cut_as_their_records_say)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_F32};
    static session s;
    memset(&state, 0, sizeof state);
    state.t = t, state.error = &s.error;
    test_defer(t, session_end, &s);
    state.cpu = session_cpu(t, &s, (zf_cpu_desc){.threads = 1});
    if (!state.cpu) return;
    for (int d = 0; d < 5; d++)
        for (int k = 0; k < CASES + MORE; k++) {
            /* what no case cuts is found in f32 */
            if (!(TEST_LARGE && !d) && !TEST_TAKES(k + d)) continue;
            state.dtype = dtypes[d], state.z = d < 4 ? &several : &few;
            run_cut_case(t, &s, k < CASES ? &cases[k] : &more[k - CASES]);
        }
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT && TEST_LARGE; op++) {
        if (op == ZF_OP_delay || op == ZF_OP_all_reduce) continue;
        if (cuts_text(op)) check_all_cut(t, op, cuts_text(op));
        else if (cuts_derived(op) && !(state.cut[op][0][0] && state.cut[op][0][1]))
            test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)op), "no case cuts it");
    }
}

TEST_ONCE(cuts_of_records_are_read)
{
    static const char *const bad[][2] = {
        {"m k, n k", "a value, a comma or -> is expected"},
        {"m k, n k -> m n }", "a form ends with | or the text"},
        {"wide: m k -> m | widest: m -> m",
         "it names an attribute that the operator does not have"},
        {"wide $: m k -> m", "an attribute is expected"},
        {"m ... k -> m k", "... is at the start of a value"},
        {"a b c d e f g h -> a", "a value has too many dimensions"},
        {"m k, n k -> m n {sections/x}", "an effect names a letter that no value has"},
        {"m k, n k -> m n {sections/", "an effect names a letter that no value has"},
        {"m k -> m k; m; m; m; m; m", "it has too many values"},
        {"m k -> [3 x]", "[ ] has the numbers of at most 4 operands"},
        {"a b c d e f, g h i j k l, m n o p q r -> a", "it has too many letters"},
    };
    const int op = ZF_OP_linear;
    for (int k = ZF_OP_none + 1; k < ZF_OP_COUNT; k++)
        if (cuts_text(k) && cuts_wrong(k, cuts_text(k)))
            test_fail(t, __FILE__, __LINE__, zf_op_name((zf_op)k), cuts_wrong(k, cuts_text(k)));
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        const char *wrong = cuts_wrong(op, bad[k][0]);
        if (!wrong || strcmp(wrong, bad[k][1]))
            test_fail(t, __FILE__, __LINE__, bad[k][0], wrong ? wrong : "nothing is wrong");
    }
}

/* The kernel is never called. */
static zf_status no_kernel(const zf_launch *l)
{
    return zf_launch_fail(l, ZF_ERR_ARGUMENT, "it has no kernel");
}

static zf_graph *graph_with(test *t, const char *form)
{
    const zf_operator own = {
        .name = "both", .least = 2, .attributes = "heads:i", .cuts = form, .cpu = no_kernel};
    zf_graph *g = zf_graph_new(
        &(zf_graph_desc){.allocator = t->allocator, .operators = &own, .operator_count = 1});
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

TEST(cuts_of_own_operators_are_checked)
{
    zf_graph *g = graph_with(t, "b h, b h -> b h {head/h}");
    NEED(t, g, NULL);
    CHECK_TEXT(
        t, zf_graph_error(g),
        "zf_graph_new: operator 0, \"both\": cuts is \"b h, b h -> b h {head/h}\": it names an "
        "attribute that the operator does not have");
}

TEST(cuts_of_nodes_are_printed)
{
    static const char *const expected[] = {
        "", /* input */
        "",
        ("!transpose_a transpose_b sections wide: ... m k, ... n k -> ... m n {sections/k}: "
         "m 8, k 4 summed, n 6"),
        "... k!, n k!, ?n, ... n -> ... n; ... n: 0 8, n 6",
        "a b -> 1 b+ {shape}: a 8 summed, b 3",
        "a h! -> a {shape}: a 8",
        "heads: b h, b h -> b h {heads/h}: b 8, h 2",
        "... * -> ...: 1 8, 0 6",
        "... * -> ...: 1 8, 0 6",
    };
    zf_graph *g = graph_with(t, "heads: b h, b h -> b h {heads/h} | b h!, b h! -> b h!"), *copy;
    char text[120];
    zf_tensor x, w, y;
    NEED(t, g, NULL);
    x = zf_input(g, "x", ZF_F32, ZF_SHAPE(8, 24)), w = zf_input(g, "w", ZF_F32, ZF_SHAPE(6, 24));
    zf_matmul_ex(x, w, &(zf_matmul_desc){.transpose_b = true, .sections = 4, .wide = true});
    y = zf_linear(x, w, ZF_NONE);
    zf_sum_to(y, ZF_SHAPE(1, 6));
    zf_reshape(y, ZF_SHAPE(48));
    zf_apply(g, "both", 2, (zf_tensor[]){y, y}, &(zf_attribute){.i = 2});
    zf_exp(zf_dropout(y, 0.5));
    OK(t, zf_graph_status(g), zf_graph_error(g));
    copy = zf_graph_copy(g);
    NEED(t, copy, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, copy);
    for (int k = 0; k < (int)(sizeof expected / sizeof expected[0]); k++) {
        CHECK(t, zf_graph_cuts(copy, k, text, sizeof text) == (*expected[k] != '\0'));
        CHECK_TEXT(t, text, expected[k]);
    }
    CHECK(t, !zf_graph_cuts(g, 9, text, sizeof text) && !zf_graph_cuts(g, -1, text, sizeof text));
    CHECK(t, zf_graph_cuts(g, 8, text, 8));
    CHECK_TEXT(t, text, "... * -");
}
