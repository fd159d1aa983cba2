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

/* ---------------------------------------------------------------------------- 4 GRAPHS */

typedef struct zf_graph zf_graph;

/* A value of a graph. {0} (ZF_NONE) is "no tensor", where a builder documents one as optional. A tensor of a graph with
 * id 0 is invalid: a builder failed, the graph holds the error, and every builder passes it on. */
typedef struct zf_tensor {
    zf_graph *graph;
    int32_t id;
} zf_tensor;

#define ZF_NONE ((zf_tensor){NULL, 0})

typedef struct zf_graph_desc {
    zf_allocator allocator; /* {0}: the C library's */
} zf_graph_desc;

/* An empty graph, or NULL when there is no memory. desc NULL: defaults. */
ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc);
ZF_API void zf_graph_free(zf_graph *graph); /* NULL: nothing */

/* The first error of the graph: ZF_OK and "" while there is none. The text lives as long as the graph. */
ZF_API zf_status zf_graph_status(const zf_graph *graph);
ZF_API const char *zf_graph_error(const zf_graph *graph);

/* Writes the graph as text, one node per line. */
ZF_API zf_status zf_graph_print(const zf_graph *graph, FILE *file);
/* The same into text[0..size), terminated when size > 0; returns the length that the whole text has. */
ZF_API size_t zf_graph_text(const zf_graph *graph, char *text, size_t size);
/* The graph that `text` describes, or NULL with *error (which may be NULL) naming line and column. */
ZF_API zf_graph *zf_graph_parse(const char *text, size_t bytes, const zf_graph_desc *desc, zf_error *error);
/* A 64-bit hash of the text: equal graphs have equal hashes on every machine. */
ZF_API uint64_t zf_graph_hash(const zf_graph *graph);

/* The input, param, state or output of that name, or the invalid tensor, without making it an error. */
ZF_API zf_tensor zf_graph_find(zf_graph *graph, const char *name);
/* The parameters in the order of their declaration: 0 <= index < zf_param_count; an index outside gives the invalid
 * tensor, without making it an error. */
ZF_API int32_t zf_param_count(const zf_graph *graph);
ZF_API zf_tensor zf_param_at(zf_graph *graph, int32_t index);

ZF_API bool zf_valid(zf_tensor tensor);
ZF_API zf_dtype zf_tensor_dtype(zf_tensor tensor); /* ZF_F32 for an invalid one */
ZF_API zf_shape zf_tensor_shape(zf_tensor tensor); /* rank -1 for an invalid one */
ZF_API size_t zf_tensor_bytes(zf_tensor tensor);   /* 0 for an invalid one */
ZF_API const char *zf_tensor_name(zf_tensor tensor); /* of an input, param or state; "" for any other */

/* Scopes name what is built inside them: zf_push(g, "layer.%d", i) ... zf_pop(g); names are joined by dots. */
ZF_API void zf_push(zf_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
ZF_API void zf_pop(zf_graph *graph);

/* -------------------------------------------------------------------------- 5 BUILDERS
 *
 * Every builder returns the new tensor, or the invalid tensor after recording the graph's first error. f32, bf16, f16
 * and f64 are "float"; operands of one operator have one dtype unless the comment says otherwise. "Broadcasting" is
 * numpy's: shapes are aligned at the last dimension, a dimension 1 is repeated. An axis counts from 0, or from -1
 * backwards. Saved: what the gradient keeps alive. */

/* Values that the program writes before a step (zf_write); they stay until written again. */
ZF_API zf_tensor zf_input(zf_graph *graph, const char *name, zf_dtype dtype, zf_shape shape);

typedef enum zf_init { ZF_ZEROS, ZF_ONES, ZF_FILL, ZF_NORMAL, ZF_TRUNCATED_NORMAL, ZF_UNIFORM } zf_init;

typedef struct zf_param_desc {
    zf_dtype dtype; /* float */
    zf_init init;
    double mean, std; /* ZF_NORMAL; ZF_TRUNCATED_NORMAL draws within mean +- 2 std */
    double low, high; /* ZF_UNIFORM: [low, high) */
    double value;     /* ZF_FILL */
    bool frozen;      /* no gradient, no update */
} zf_param_desc;

/* A trained tensor. Its first value depends on seed, name and the element's index alone, so that it is the same however
 * the tensor is cut. desc NULL: f32 zeros. */
ZF_API zf_tensor zf_param(zf_graph *graph, const char *name, zf_shape shape, const zf_param_desc *desc);
/* A tensor that steps change and checkpoints hold, but that is not trained: counters, moments. Starts as `value`. */
ZF_API zf_tensor zf_state(zf_graph *graph, const char *name, zf_dtype dtype, zf_shape shape, double value);
ZF_API zf_tensor zf_constant(zf_graph *graph, zf_dtype dtype, zf_shape shape, double value); /* one value everywhere */
/* values[0..zf_shape_count(shape)) are copied. */
ZF_API zf_tensor zf_values(zf_graph *graph, zf_dtype dtype, zf_shape shape, const double *values);

/* Elementwise, broadcasting. add sub mul div maximum minimum: float or integer; equal less: any -> bool. */
ZF_API zf_tensor zf_add(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_sub(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_mul(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_div(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_maximum(zf_tensor a, zf_tensor b); /* at a tie the gradient goes to a */
ZF_API zf_tensor zf_minimum(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_equal(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_less(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_where(zf_tensor condition, zf_tensor a, zf_tensor b); /* condition: bool or u8, a and b: any */

/* Elementwise, float. */
ZF_API zf_tensor zf_neg(zf_tensor x);
ZF_API zf_tensor zf_scale(zf_tensor x, double by);
ZF_API zf_tensor zf_exp(zf_tensor x);
ZF_API zf_tensor zf_log(zf_tensor x);
ZF_API zf_tensor zf_sqrt(zf_tensor x);
ZF_API zf_tensor zf_rsqrt(zf_tensor x); /* 1 / sqrt(x) */
ZF_API zf_tensor zf_tanh(zf_tensor x);
ZF_API zf_tensor zf_sigmoid(zf_tensor x);
ZF_API zf_tensor zf_relu(zf_tensor x);
ZF_API zf_tensor zf_gelu(zf_tensor x);      /* x Phi(x), by erf (Hendrycks & Gimpel 2016) */
ZF_API zf_tensor zf_gelu_tanh(zf_tensor x); /* its tanh approximation (ibid., section 2) */
ZF_API zf_tensor zf_silu(zf_tensor x);      /* x sigmoid(x) */
ZF_API zf_tensor zf_cast(zf_tensor x, zf_dtype to); /* any to any; rounds to nearest even, float to integer truncates */
/* Zeroes each element with probability p, 0 <= p < 1, and scales the others by 1/(1-p). The mask is a function of seed,
 * step, this node and the element's global index (Philox4x32-10, Salmon et al. 2011): it is computed again for the
 * gradient and never stored. A program compiled with `.evaluate` passes x through. p = 0 gives x itself. */
ZF_API zf_tensor zf_dropout(zf_tensor x, double p);

/* Shape. */
ZF_API zf_tensor zf_reshape(zf_tensor x, zf_shape shape); /* one dimension may be -1: what remains */
ZF_API zf_tensor zf_transpose(zf_tensor x, int32_t axis_a, int32_t axis_b);
ZF_API zf_tensor zf_permute(zf_tensor x, const int32_t *order); /* out.dims[i] = x.dims[order[i]], rank entries */
ZF_API zf_tensor zf_slice(zf_tensor x, int32_t axis, int64_t start, int64_t stop); /* x[start..stop) */
ZF_API zf_tensor zf_pad(zf_tensor x, int32_t axis, int64_t before, int64_t after); /* with zeros */
ZF_API zf_tensor zf_concat(const zf_tensor *tensors, int32_t count, int32_t axis);
ZF_API zf_tensor zf_broadcast(zf_tensor x, zf_shape shape);
ZF_API zf_tensor zf_sum_to(zf_tensor x, zf_shape shape); /* the transpose of broadcast: sums what was repeated */

typedef struct zf_matmul_desc {
    bool transpose_a, transpose_b; /* of the last two dimensions */
} zf_matmul_desc;

/* out[...,m,n] = sum over k of a[...,m,k] b[...,k,n]; float, ranks >= 2, leading dimensions broadcast; accumulates in
 * f32 (f64 for f64). */
ZF_API zf_tensor zf_matmul(zf_tensor a, zf_tensor b);
ZF_API zf_tensor zf_matmul_ex(zf_tensor a, zf_tensor b, const zf_matmul_desc *desc);

typedef struct zf_reduce_desc {
    int32_t axis;
    bool keep; /* keep the axis as a dimension 1 */
} zf_reduce_desc;

/* Reductions over every element, to a scalar; _ex over one axis. Float. The order of additions is fixed. */
ZF_API zf_tensor zf_sum(zf_tensor x);
ZF_API zf_tensor zf_sum_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_API zf_tensor zf_mean(zf_tensor x);
ZF_API zf_tensor zf_mean_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_API zf_tensor zf_max(zf_tensor x); /* equal maxima share the gradient */
ZF_API zf_tensor zf_max_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_API zf_tensor zf_argmax_ex(zf_tensor x, const zf_reduce_desc *desc); /* i32, the first of equal ones; no gradient */

/* Over the last dimension, float. */
ZF_API zf_tensor zf_softmax(zf_tensor x);     /* saved: the output alone */
ZF_API zf_tensor zf_logsumexp(zf_tensor x);   /* drops the dimension */
ZF_API zf_tensor zf_log_softmax(zf_tensor x);
/* gamma (x - mean) / sqrt(var + eps) + beta; gamma, beta [n] (Ba et al. 2016). */
ZF_API zf_tensor zf_layer_norm(zf_tensor x, zf_tensor gamma, zf_tensor beta, double eps);
/* gamma x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019). */
ZF_API zf_tensor zf_rms_norm(zf_tensor x, zf_tensor gamma, double eps);

/* out[i...,:] = table[index[i...],:]; table [rows,n] float, index i32 or i64 of any shape. An index outside 0..rows-1
 * is an error of the step. The gradient adds in the order of the index: deterministic. */
ZF_API zf_tensor zf_gather_rows(zf_tensor table, zf_tensor index);
ZF_API zf_tensor zf_embedding(zf_tensor table, zf_tensor ids); /* the same, by its usual name */

/* weight * sum over rows of -log softmax(logits)[label]; rows whose label is -100 count nothing. logits [n,classes]
 * float, labels [n] i32 or i64, weight a scalar f32: 1 / (labelled rows of the global batch) makes the loss, however
 * the batch is cut, the mean over all labelled rows. weight ZF_NONE: 1 / max(1, labelled rows of these labels). */
ZF_API zf_tensor zf_cross_entropy(zf_tensor logits, zf_tensor labels, zf_tensor weight);

/* Keeps the value readable (zf_read) after each step, under `name`. Returns x. */
ZF_API zf_tensor zf_output(zf_tensor x, const char *name);

/* Used by the macros at the end of this header: they note where a builder was called, for error messages. */
ZF_API zf_tensor zf_at(zf_tensor x, const char *file, int line);
ZF_API zf_graph *zf_graph_at(zf_graph *graph, const char *file, int line);

/* ---------------------------------------------------------------------------- 6 PASSES
 *
 * A pass rewrites the graph, checks that it comes at its turn, and verifies what it made. Node ids are never renumbered.
 * All return ZF_OK or the graph's first error. */

/* Appends the gradient of `loss` (a scalar) with respect to every parameter that is not frozen and that it depends on,
 * one `gradient param, value` node each, and an output "loss". Requires: not run before. */
ZF_API zf_status zf_autograd(zf_graph *graph, zf_tensor loss);
/* After zf_autograd: the gradient of a parameter as the passes so far have made it, or the invalid tensor where it has
 * none, without making it an error. */
ZF_API zf_tensor zf_gradient(zf_graph *graph, zf_tensor param);

/* Removes what nothing needs, merges equal nodes, folds what is known, and undoes what undoes itself. */
ZF_API zf_status zf_simplify(zf_graph *graph);

/* Scales every gradient by 1 / max(1, (norm + 1e-6) / max_norm), norm over all of them, and adds an output "grad_norm"
 * (before the scaling). max_norm <= 0 or infinite: the output alone. Requires: zf_autograd; no optimizer yet. */
ZF_API zf_status zf_clip(zf_graph *graph, double max_norm);

/* Optimizers: one update per parameter that has a gradient. `lr` is a scalar f32. Weight decay is decoupled (added to
 * the update; for SGD to the gradient) and applies to parameters of rank >= 2, so not to biases and norms, unless
 * decay_all. Requires: zf_autograd; one optimizer per graph. desc NULL: defaults. */
typedef struct zf_sgd_desc {
    double momentum; /* 0 */
    bool nesterov;
    double weight_decay; /* 0 */
    bool decay_all;
} zf_sgd_desc;
ZF_API zf_status zf_sgd(zf_graph *graph, zf_tensor lr, const zf_sgd_desc *desc);

/* AdamW (Loshchilov & Hutter 2019), with bias correction. A field of 0 means its default. */
typedef struct zf_adamw_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
} zf_adamw_desc;
ZF_API zf_status zf_adamw(zf_graph *graph, zf_tensor lr, const zf_adamw_desc *desc);

/* LAMB (You et al. 2020): u = m^/(sqrt(v^) + eps) + wd p; r = |p| / |u|, clamped, 1 where a norm is 0; p -= lr r u. */
typedef struct zf_lamb_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-6 */
    double weight_decay; /* 0 */
    double min_coeff; /* 0.01 */
    double max_coeff; /* 10 */
    bool decay_all;
} zf_lamb_desc;
ZF_API zf_status zf_lamb(zf_graph *graph, zf_tensor lr, const zf_lamb_desc *desc);

/* -------------------------------------------------------------------------- 7 BACKENDS
 *
 * What a device must offer. The core is handed a table of functions and knows no device by name. */

/* A tensor in memory. */
typedef struct zf_array {
    void *data;
    zf_dtype dtype;
    zf_shape shape;
} zf_array;

/* What changes from step to step and is no tensor. */
typedef struct zf_run {
    uint64_t seed;
    int64_t step;  /* 1, 2, ... */
    int64_t slot;  /* which part of the global batch this is: counts micro-batches over all ranks */
    bool evaluate; /* dropout passes through */
} zf_run;

/* One node, ready to run. Operands of MUTATES operators are written through their data pointers. */
typedef struct zf_launch {
    zf_op op;
    int32_t node; /* its id, for messages */
    int32_t arg_count;
    const zf_array *args;
    zf_array out; /* data NULL for an effect */
    const zf_attribute *attributes;
    void *scratch; /* as many bytes as backend->scratch asked for */
    const zf_run *run;
    void *backend; /* zf_backend.self */
    zf_error *error;
} zf_launch;

typedef enum zf_copy { ZF_HOST_TO_DEVICE, ZF_DEVICE_TO_HOST, ZF_DEVICE_TO_DEVICE } zf_copy;

typedef struct zf_backend {
    const char *name;
    void *self;
    /* 64-byte aligned, or NULL with *error. */
    void *(*allocate)(void *self, size_t bytes, zf_error *error);
    void (*release)(void *self, void *memory, size_t bytes);
    zf_status (*copy)(void *self, void *to, const void *from, size_t bytes, zf_copy kind, zf_error *error);
    /* Bytes of scratch that this node needs while it runs; data pointers are not set. */
    size_t (*scratch)(void *self, const zf_launch *launch);
    zf_status (*launch)(void *self, const zf_launch *launch);
    zf_status (*synchronize)(void *self, zf_error *error);
    void (*destroy)(void *self);
} zf_backend;

ZF_API void zf_backend_free(zf_backend *backend); /* NULL: nothing */

typedef struct zf_cpu_desc {
    int32_t threads; /* workers, the calling thread among them; 0: 1 */
    bool reference;  /* run the reference kernels (slow, in double precision) instead of the fast ones */
    const char *isa; /* "portable", "avx2", "avx512", "neon": no better than that; NULL: the best there is */
    zf_allocator allocator;
} zf_cpu_desc;

/* The built-in CPU backend. NULL with *error (which may be NULL) for lack of memory or threads. */
ZF_API zf_backend *zf_cpu_backend(const zf_cpu_desc *desc, zf_error *error);

/* -------------------------------------------------------------------------- 8 PROGRAMS */

typedef struct zf_program zf_program;

typedef struct zf_memory_desc {
    zf_backend *backend; /* whose scratch is counted; NULL: none */
    bool no_reuse;       /* every value its own bytes */
} zf_memory_desc;

/* Gives every value its place: an offset in one arena, first what outlives a step (parameters, state, inputs,
 * constants), then what does not. zf_compile runs it when it has not been run. desc NULL: defaults. */
ZF_API zf_status zf_memory(zf_graph *graph, const zf_memory_desc *desc);

typedef struct zf_compile_desc {
    zf_backend *backend;  /* NULL: a single-threaded CPU backend of the program's own */
    uint64_t seed;        /* of parameters and dropout */
    size_t memory_limit;  /* bytes; 0: none. A plan over it is ZF_ERR_LIMIT, saying by how much and where */
    zf_program *share;    /* parameters and state are those of this program, matched by name; it must outlive this one */
    bool evaluate;        /* dropout passes through */
    bool no_reuse;        /* as zf_memory_desc.no_reuse */
    bool poison;          /* fill bytes whose value died with NaN: finds reads of the dead; slow */
} zf_compile_desc;

/* A program that runs the graph, or NULL: the graph has the error. It borrows graph, backend and share, and the graph
 * must not change while it lives. desc NULL: defaults. */
ZF_API zf_program *zf_compile(zf_graph *graph, const zf_compile_desc *desc);
ZF_API void zf_program_free(zf_program *program); /* NULL: nothing */

/* The last call's error; "" when it was good. */
ZF_API const char *zf_program_error(const zf_program *program);

/* Copies `bytes` (exactly the tensor's) into an input, param or state; out of a param, state, input or output. */
ZF_API zf_status zf_write(zf_program *program, zf_tensor tensor, const void *data, size_t bytes);
ZF_API zf_status zf_read(zf_program *program, zf_tensor tensor, void *data, size_t bytes);

/* Runs the graph once: one training step where it has an optimizer. After an error (an index out of range, say) the
 * values of this step are undefined; parameters and state are untouched if it arose before the update section. */
ZF_API zf_status zf_step(zf_program *program);

/* Steps done: 0 at first, kept by checkpoints. */
ZF_API int64_t zf_program_step(const zf_program *program);

typedef struct zf_program_info {
    size_t peak_bytes;      /* predicted: the arena's size */
    size_t allocated_bytes; /* what the backend was asked for */
    size_t param_bytes, state_bytes, input_bytes, constant_bytes, work_bytes;
    size_t live_bytes;      /* the largest sum of bytes alive at one time */
    int32_t peak_node;      /* where that is, as the text numbers nodes */
    int64_t param_count;    /* elements of parameters */
    double flops;           /* of the matrix products of a step, a multiply-add being two */
    int32_t nodes;
} zf_program_info;
ZF_API zf_program_info zf_program_info_of(const zf_program *program);

#ifdef __cplusplus
}
#endif
#endif /* ZEROFLOW_H */

#if defined(ZEROFLOW_IMPLEMENTATION) && !defined(ZEROFLOW_IMPLEMENTED)
#define ZEROFLOW_IMPLEMENTED
#include "graph/alloc.c"
#include "graph/shape.c"
#include "cpu/isa.c"
#include "cpu/threads.c"
#include "cpu/random.c"
#include "cpu/vmath.c"
#include "cpu/matmul.c"
#include "graph/graph.c"
#include "graph/build.c"
#include "ops/kernel.c"
#include "ops/leaf.c"
#include "ops/binary.c"
#include "ops/unary.c"
#include "ops/move.c"
#include "ops/matmul.c"
#include "ops/reduce.c"
#include "ops/rows.c"
#include "ops/norm.c"
#include "ops/loss.c"
#include "ops/update.c"
#include "ops/table.c"
#endif
