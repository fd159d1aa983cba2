/* zeroflow.h - train transformers from C: a static autograd graph, rewritten by passes, run as one plan. */
#ifndef ZEROFLOW_H
#define ZEROFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ZF_API
#define ZF_API /* decorates every public function; -DZF_API=static makes the library private to one file */
#endif

/* ----------------------------------------------------------------------- 1 STATUS, MEMORY */

typedef enum zf_status {
    ZF_OK = 0,
    ZF_ERR_NOMEM,    /* the allocator returned NULL */
    ZF_ERR_ARGUMENT, /* a value outside its documented range */
    ZF_ERR_SHAPE,    /* operands whose dimensions do not fit together */
    ZF_ERR_DTYPE,    /* operands whose element types do not fit together */
    ZF_ERR_STAGE,    /* a pass or call out of order */
    ZF_ERR_PARSE,    /* text that is not IR */
    ZF_ERR_VERIFY,   /* a graph or plan that breaks a rule of the IR */
    ZF_ERR_LIMIT,    /* a plan that does not fit the memory it was given */
    ZF_ERR_IO,       /* the operating system refused */
    ZF_ERR_FORMAT,   /* a damaged or foreign file */
    ZF_ERR_MISMATCH, /* state that belongs to another model, graph or plan */
    ZF_ERR_BACKEND   /* a device or its library failed */
} zf_status;

/* The name of a status: "ok", "out of memory", ... Never NULL. */
ZF_API const char *zf_status_name(zf_status status);

/* What went wrong, for a person: `text` is one line, terminated, at most 511 bytes, "" when status is ZF_OK. */
typedef struct zf_error {
    zf_status status;
    char text[512];
} zf_error;

/* One function allocates, resizes and frees (new_size 0); it returns NULL when it cannot, and then `ptr` is still valid.
 * `fn` NULL means the C library's realloc and free. A graph and all that is made from it use the graph's allocator. */
typedef struct zf_allocator {
    void *(*fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} zf_allocator;

/* ------------------------------------------------------------------- 2 DTYPES AND SHAPES */

typedef enum zf_dtype { ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8, ZF_BOOL } zf_dtype;

ZF_API size_t zf_dtype_size(zf_dtype dtype);      /* bytes of an element; 0 when dtype is none */
ZF_API const char *zf_dtype_name(zf_dtype dtype); /* "f32", "bf16", ...; "?" when it is none */

#define ZF_MAX_RANK 6

/* Dimensions, outermost first; rank 0 is a scalar. Tensors are row-major and contiguous. */
typedef struct zf_shape {
    int32_t rank;
    int64_t dims[ZF_MAX_RANK];
} zf_shape;

/* ZF_SHAPE(4, 8) is f32[4,8]'s shape; ZF_SCALAR is []. */
#define ZF_SHAPE(...)                                                                              \
    ((zf_shape){(int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define ZF_SCALAR ((zf_shape){0, {0}})

/* The same from an array, for C++ and for ranks known only at run time. A rank outside 0..ZF_MAX_RANK gives rank -1,
 * which every builder refuses. */
ZF_API zf_shape zf_shape_of(int32_t rank, const int64_t *dims);
ZF_API int64_t zf_shape_count(zf_shape shape); /* number of elements; -1 when it does not fit int64 */

/* -------------------------------------------------------------------------- 3 OPERATORS */

/* One row per operator: name, least and most operands, attributes, flags.
 * An attribute is name:kind, kind one of i (int64), f (double), b (bool), d (dtype), l (list of int64),
 * v (list of double) and e(names) (one of the names). One that is absent is 0, false, the first name or the empty list. */
#define ZF_OPS(X)                                                                                  \
    /* leaves */                                                                                   \
    X(input, 0, 0, "", ZF_OP_LEAF | ZF_OP_NAMED)                                                   \
    X(param, 0, 0, "init:e(zeros|ones|constant|normal|truncated|uniform) a:f b:f frozen:b",        \
      ZF_OP_LEAF | ZF_OP_NAMED)                                                                    \
    X(state, 0, 0, "value:f", ZF_OP_LEAF | ZF_OP_NAMED)                                            \
    X(constant, 0, 0, "values:v", ZF_OP_LEAF)                                                      \
    /* elementwise, broadcasting */                                                                \
    X(add, 2, 2, "", ZF_OP_INPLACE)                                                                \
    X(sub, 2, 2, "", ZF_OP_INPLACE)                                                                \
    X(mul, 2, 2, "", ZF_OP_INPLACE)                                                                \
    X(div, 2, 2, "", ZF_OP_INPLACE)                                                                \
    X(maximum, 2, 2, "", ZF_OP_INPLACE)                                                            \
    X(minimum, 2, 2, "", ZF_OP_INPLACE)                                                            \
    X(equal, 2, 2, "", 0)                                                                          \
    X(less, 2, 2, "", 0)                                                                           \
    X(where, 3, 3, "", ZF_OP_INPLACE)                                                              \
    /* elementwise, one operand */                                                                 \
    X(neg, 1, 1, "", ZF_OP_INPLACE)                                                                \
    X(scale, 1, 1, "by:f", ZF_OP_INPLACE)                                                          \
    X(exp, 1, 1, "", ZF_OP_INPLACE)                                                                \
    X(log, 1, 1, "", ZF_OP_INPLACE)                                                                \
    X(sqrt, 1, 1, "", ZF_OP_INPLACE)                                                               \
    X(rsqrt, 1, 1, "", ZF_OP_INPLACE)                                                              \
    X(tanh, 1, 1, "", ZF_OP_INPLACE)                                                               \
    X(tanh_grad, 2, 2, "", ZF_OP_INPLACE)                                                          \
    X(sigmoid, 1, 1, "", ZF_OP_INPLACE)                                                            \
    X(sigmoid_grad, 2, 2, "", ZF_OP_INPLACE)                                                       \
    X(relu, 1, 1, "", ZF_OP_INPLACE)                                                               \
    X(relu_grad, 2, 2, "", ZF_OP_INPLACE)                                                          \
    X(gelu, 1, 1, "form:e(erf|tanh)", ZF_OP_INPLACE)                                               \
    X(gelu_grad, 2, 2, "form:e(erf|tanh)", ZF_OP_INPLACE)                                          \
    X(silu, 1, 1, "", ZF_OP_INPLACE)                                                               \
    X(silu_grad, 2, 2, "", ZF_OP_INPLACE)                                                          \
    X(cast, 1, 1, "to:d", ZF_OP_INPLACE)                                                           \
    X(dropout, 1, 1, "p:f stream:i", ZF_OP_INPLACE)                                                \
    /* shape */                                                                                    \
    X(reshape, 1, 1, "shape:l", ZF_OP_VIEW)                                                        \
    X(slice, 1, 1, "axis:i start:i stop:i", ZF_OP_VIEW)                                            \
    X(pad, 1, 1, "axis:i before:i after:i", 0)                                                     \
    X(transpose, 1, 1, "order:l", 0)                                                               \
    X(concat, 1, ZF_MAX_OPERANDS, "axis:i", 0)                                                     \
    X(broadcast, 1, 1, "shape:l", 0)                                                               \
    X(sum_to, 1, 1, "shape:l", 0)                                                                  \
    /* products */                                                                                 \
    X(matmul, 2, 2, "transpose_a:b transpose_b:b", 0)                                              \
    /* reductions */                                                                               \
    X(sum, 1, 1, "axis:i keep:b", 0)                                                               \
    X(max, 1, 1, "axis:i keep:b", 0)                                                               \
    X(argmax, 1, 1, "axis:i keep:b", 0)                                                            \
    X(logsumexp, 1, 1, "", 0)                                                                      \
    X(square_sums, 1, 1, "", 0)                                                                    \
    X(total, 1, ZF_MAX_OPERANDS, "", 0)                                                            \
    /* rows */                                                                                     \
    X(softmax, 1, 1, "", ZF_OP_INPLACE)                                                            \
    X(softmax_grad, 2, 2, "", ZF_OP_INPLACE)                                                       \
    X(moments, 1, 1, "eps:f", 0)                                                                   \
    X(layer_norm, 4, 4, "", ZF_OP_INPLACE)                                                         \
    X(layer_norm_grad, 4, 4, "", ZF_OP_INPLACE)                                                    \
    X(rms, 1, 1, "eps:f", 0)                                                                       \
    X(rms_norm, 3, 3, "", ZF_OP_INPLACE)                                                           \
    X(rms_norm_grad, 4, 4, "", ZF_OP_INPLACE)                                                      \
    X(norm_gamma_grad, 3, 3, "", 0)                                                                \
    X(gather_rows, 2, 2, "", 0)                                                                    \
    X(scatter_rows, 2, 2, "rows:i", 0)                                                             \
    X(cross_entropy, 3, 3, "ignore:i", 0)                                                          \
    X(cross_entropy_grad, 4, 4, "ignore:i", ZF_OP_INPLACE)                                         \
    /* effects */                                                                                  \
    X(output, 1, 1, "", ZF_OP_EFFECT | ZF_OP_NAMED)                                                \
    X(gradient, 2, 2, "", ZF_OP_EFFECT)                                                            \
    X(advance, 1, 1, "", ZF_OP_EFFECT | ZF_OP_MUTATES)                                             \
    X(sgd, 3, 4, "momentum:f nesterov:b weight_decay:f", ZF_OP_EFFECT | ZF_OP_MUTATES)             \
    X(adamw, 6, 6, "beta1:f beta2:f eps:f weight_decay:f", ZF_OP_EFFECT | ZF_OP_MUTATES)           \
    X(lamb_update, 5, 5, "beta1:f beta2:f eps:f weight_decay:f", ZF_OP_MUTATES)                    \
    X(lamb_apply, 5, 5, "least:f most:f", ZF_OP_EFFECT | ZF_OP_MUTATES)

#define ZF_MAX_OPERANDS   65535
#define ZF_MAX_ATTRIBUTES 6

typedef enum zf_op_flags {
    ZF_OP_LEAF = 1,     /* has storage of its own that outlives a step, or is known beforehand */
    ZF_OP_NAMED = 2,    /* carries a name */
    ZF_OP_EFFECT = 4,   /* has no value, is never dead */
    ZF_OP_MUTATES = 8,  /* writes into its leaf operands */
    ZF_OP_VIEW = 16,    /* may be the same bytes as operand 0 */
    ZF_OP_INPLACE = 32  /* may write over an operand of the same shape and element size that dies here */
} zf_op_flags;

typedef enum zf_op {
    ZF_OP_none,
#define X(name, least, most, attributes, flags) ZF_OP_##name,
    ZF_OPS(X)
#undef X
    ZF_OP_COUNT
} zf_op;

typedef union zf_attribute {
    int64_t i; /* i, b, d, e */
    double f;
    struct {
        const void *data; /* l: int64_t, v: double */
        int64_t count;
    } list;
} zf_attribute;

#ifdef __cplusplus
}
#endif
#endif /* ZEROFLOW_H */

#if defined(ZEROFLOW_IMPLEMENTATION) && !defined(ZEROFLOW_IMPLEMENTED)
#define ZEROFLOW_IMPLEMENTED
#include "graph/alloc.c"
#include "cpu/isa.c"
#include "cpu/threads.c"
#include "cpu/random.c"
#include "cpu/vmath.c"
#include "cpu/matmul.c"
#include "graph/shape.c"
#endif
