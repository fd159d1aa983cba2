/* api/core.h - status, memory, element types, shapes, graphs and the builders of their nodes.
 *
 * Build. Each builder checks its operands and returns a tensor, a small value. On a mistake the
 * graph keeps the first error, which names operator, scope, source line and operands, and the
 * invalid tensor flows through all later calls: nothing needs checking until zf_compile returns
 * NULL. Then zf_graph_error says why:
 *
 *     matmul in bert.pooler (model.c:41): the inner dimensions differ: 32 of a, 16 of b; they must
 *     be equal; %4 = f32[4,32], %7 = f32[16,8]
 *
 * Scopes (zf_push, zf_pop) name parameters: "bert.encoder.layer.0.attention.self.query.weight".
 *
 * Own. Graphs, programs, stores, backends and communicators are freed in any order: each lives as
 * long as what uses it (processes end MPI after all of them). NULL may be freed. One graph, its
 * programs and their store belong to one thread at a time; others are independent. No function
 * prints, exits, aborts or reads the environment, and there are no global variables. The library
 * starts the threads that a CPU backend is asked for, and one more for each queue that a plan with
 * zf_prefetch uses.
 *
 * WORDS
 *
 *     leaf          an input, parameter, state or constant: a node that computes nothing
 *     pass          a function that rewrites a graph
 *     plan          a graph with all bytes placed (offsets in the arena), as zf_compile makes it
 *     program       a plan with its memory on a backend: zf_step runs it
 *     store         the tensors that outlive a program: parameters, optimizer states, their step
 *     micro-batch   the examples that one rank computes at a time; world * micro_batches of them
 *                   are the global batch of one step
 *     bucket        parameters that are neighbours in memory; collectives move whole buckets
 *     shard         the elements of a bucket that one rank holds: 1 of `world` equal ranges
 *     piece         elements of a bucket or shard that are updated at one time (zf_offload)
 *     queue         nodes that run in order, concurrently with other queues: compute, gather, ...
 *     lifetime      the nodes from the first that writes a value to the last that reads it
 *     peak          the bytes that a program and its store allocate together
 *     fused         one node with the result of several
 *     saved         a value that a node leaves for its gradient
 *     recompute     to compute a value of the forward pass a second time, in the backward pass
 *     non-finite    infinity or NaN
 */

/* ------------------------------------------------------------------------------- STATUS, MEMORY */

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
    ZF_ERR_IO,       /* the operating system refused, here or on a rank that gave up for it */
    ZF_ERR_FORMAT,   /* a damaged or foreign file */
    ZF_ERR_MISMATCH, /* state that belongs to another model, graph or plan */
    ZF_ERR_BACKEND,  /* a device or its library failed */
    ZF_ERR_COMM,     /* ranks that do not come, or do not agree */
    ZF_ERR_NAN       /* a loss, or gradients at the least scale, that are not finite */
} zf_status;

/* The version of the implementation, ZF_VERSION where it was compiled: "0.1.0". */
ZF_API const char *zf_version(void);

/* The name of a status: "ok", "out of memory", ... Never NULL. */
ZF_API const char *zf_status_name(zf_status status);

/* What went wrong, for a person: `text` is one line, terminated, at most 511 bytes, "" when status
 * is ZF_OK. */
typedef struct zf_error {
    zf_status status;
    char text[512];
} zf_error;

/* A field of a desc that is 0 has its default. Where the default is another number, the comment
 * names it: "0: 0.02". ZF_ZERO in a field of type double is the number 0. */
#define ZF_ZERO (-1e-300)
/* A number for such a field that may be 0, and is then 0 and not the default. */
#define ZF_GIVEN(x) ((x) == 0 ? ZF_ZERO : (x))

/* One function allocates, resizes and frees (new_size 0); it returns NULL when it cannot, and then
 * `ptr` is still valid. `fn` NULL means the C library's realloc and free. A graph and all that is
 * made from it use the graph's allocator. */
typedef struct zf_allocator {
    void *(*fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} zf_allocator;

/* ---------------------------------------------------------------------------- DTYPES AND SHAPES */

typedef enum zf_dtype { ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8, ZF_BOOL } zf_dtype;

ZF_API size_t zf_dtype_size(zf_dtype dtype);      /* bytes of an element; 0 when dtype is none */
ZF_API const char *zf_dtype_name(zf_dtype dtype); /* "f32", "bf16", ...; "?" when it is none */

/* Where a value lies. */
typedef enum zf_space {
    ZF_DEVICE, /* memory of the backend */
    ZF_HOST,   /* memory of the host, where a CPU backend computes */
    ZF_DISK,   /* a file, from and to which values are copied */
    ZF_SPACES
} zf_space;
ZF_API const char *zf_space_name(zf_space space); /* "device", "host", "disk"; "?" for any other */

#define ZF_MAX_RANK 6

/* Dimensions, outermost first; rank 0 is a scalar. Tensors are row-major and contiguous. */
typedef struct zf_shape {
    int32_t rank;
    int64_t dims[ZF_MAX_RANK];
} zf_shape;

/* ZF_SHAPE(4, 8) is f32[4,8]'s shape; ZF_SCALAR is []. */
#ifndef __cplusplus
#define ZF_SHAPE(...)                                                                              \
    ((zf_shape){(int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define ZF_SCALAR ((zf_shape){0, {0}})
#else /* which has no compound literals */
extern "C++" {
template <typename... dim> constexpr zf_shape zfi_shape_of_dims(dim... dims)
{
    static_assert(sizeof...(dim) <= ZF_MAX_RANK, "a shape has ZF_MAX_RANK dimensions at most");
    return zf_shape{static_cast<int32_t>(sizeof...(dim)), {static_cast<int64_t>(dims)...}};
}
}
#define ZF_SHAPE(...) (zfi_shape_of_dims(__VA_ARGS__))
#define ZF_SCALAR     (zf_shape{0, {0}})
#endif

/* The same from an array, for ranks known only at run time. A rank outside 0..ZF_MAX_RANK, or no
 * array, gives rank -1, which every builder refuses. */
ZF_API zf_shape zf_shape_of(int32_t rank, const int64_t *dims);
/* Number of elements; -1 when it does not fit int64 */
ZF_API int64_t zf_shape_count(zf_shape shape);

/* Converts count elements as zf_cast does: to nearest even, float to integer truncated and
 * saturated. */
ZF_API void zf_convert(void *to, zf_dtype to_dtype, const void *from, zf_dtype from_dtype,
                       size_t count);

/* --------------------------------------------------------------------------------------- GRAPHS */

typedef struct zf_graph zf_graph;

/* A value of a graph. {0} (ZF_NONE) is "no tensor", where a builder documents one as optional. A
 * tensor of a graph with id 0 is invalid: a builder failed, the graph holds the error, and every
 * builder passes it on. A builder that is given no graph to hold it (zf_relu(ZF_NONE), zf_concat of
 * nothing) returns {NULL, -1}, which is the error of the next one that has a graph. */
typedef struct zf_tensor {
    zf_graph *graph;
    int32_t id;
} zf_tensor;

#ifndef __cplusplus
#define ZF_NONE ((zf_tensor){NULL, 0})
#else
#define ZF_NONE (zf_tensor{nullptr, 0})
#endif

typedef struct zf_operator zf_operator; /* api/extending.h */

typedef struct zf_graph_desc {
    zf_allocator allocator; /* {0}: the C library's */
    const zf_operator *operators; /* the program's own operators, which are copied; NULL: none */
    int32_t operator_count;
} zf_graph_desc;

/* An empty graph, or NULL when there is no memory. A mistake in an operator of the program's own is
 * the graph's first error. desc NULL: defaults. */
ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc);
ZF_API void zf_graph_free(zf_graph *graph); /* NULL: nothing */
/* A copy that shares nothing with the graph: the same nodes with the same ids, the same scopes,
 * stage and error, by the same allocator. A tensor of the graph is {copy, tensor.id} in the copy.
 * NULL without a graph or memory. */
ZF_API zf_graph *zf_graph_copy(const zf_graph *graph);

/* The first error of the graph: ZF_OK and "" while there is none. The text lives as long as the
 * graph. */
ZF_API zf_status zf_graph_status(const zf_graph *graph);
ZF_API const char *zf_graph_error(const zf_graph *graph);

/* Writes the graph as text, one node per line. */
ZF_API zf_status zf_graph_print(const zf_graph *graph, FILE *file);
/* The same into text[0..size), terminated when size > 0; returns the length that the whole text
 * has. */
ZF_API size_t zf_graph_text(const zf_graph *graph, char *text, size_t size);
/* The graph that `text` describes, or NULL with *error (which may be NULL) naming line and
 * column. */
ZF_API zf_graph *zf_graph_parse(const char *text, size_t bytes, const zf_graph_desc *desc,
                                zf_error *error);
/* A 64-bit hash of the text, with nodes numbered by their place: equal graphs have equal hashes on
 * every machine and with every compiler. */
ZF_API uint64_t zf_graph_hash(const zf_graph *graph);

/* The input, param, state or output of that name, or an invalid tensor (zf_valid), without an
 * error. What is given that tensor later says the name in its error, and which names are near. */
ZF_API zf_tensor zf_graph_find(zf_graph *graph, const char *name);
/* The parameters, 0 <= index < zf_param_count, in the order of their declarations; after zf_fuse or
 * zf_autograd in the order in which the program reads them, scope by scope. An index outside gives
 * the invalid tensor, without making it an error. */
ZF_API int32_t zf_param_count(const zf_graph *graph);
ZF_API zf_tensor zf_param_at(zf_graph *graph, int32_t index);

ZF_API bool zf_valid(zf_tensor tensor);
ZF_API zf_dtype zf_tensor_dtype(zf_tensor tensor); /* ZF_F32 for an invalid one */
ZF_API zf_shape zf_tensor_shape(zf_tensor tensor); /* rank -1 for an invalid one */
ZF_API size_t zf_tensor_bytes(zf_tensor tensor);   /* 0 for an invalid one */
/* The name of an input, param or state; "" for any other tensor */
ZF_API const char *zf_tensor_name(zf_tensor tensor);

/* Scopes name what is built inside them: zf_push(g, "layer.%d", i) ... zf_pop(g); names are joined
 * by dots. */
ZF_BUILDER void zf_push(zf_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* Opens a scope in which zf_param declares nothing: it returns the parameter that the graph has by
 * the name without this scope. So a model is built a second time over the same parameters, for
 * another row length or other texts, and gradients are the sum of those of both:
 *
 *     zf_tensor loss = model(g, rows);
 *     zf_push_shared(g, "pretraining");
 *     zf_tensor other = model(g, more_rows);
 *     zf_pop(g);
 *
 * Names of inputs, states and caches begin with the scope ("pretraining.ids"), and its dropout
 * draws numbers of its own. A parameter that the graph does not have is an error, and one
 * whose dtype, shape, first values, quantisation or `frozen` differ is ZF_ERR_MISMATCH. zf_pop
 * closes the scope. */
ZF_BUILDER void zf_push_shared(zf_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
ZF_BUILDER void zf_pop(zf_graph *graph);

/* ------------------------------------------------------------------------------------- BUILDERS
 *
 * Every builder returns the new tensor, or the invalid tensor after recording the graph's first
 * error. f32, bf16, f16 and f64 are "float"; operands of one operator have one dtype unless the
 * comment says otherwise. "Broadcasting" is numpy's: shapes are aligned at the last dimension, a
 * dimension 1 is repeated. An axis counts from 0, or from -1 backwards. "Saved" names the values
 * that a builder keeps alive for its gradient. */

/* Values that the program writes before a step (zf_write); they stay until written again. A step
 * that reads one which has never been written is ZF_ERR_STAGE. */
ZF_BUILDER zf_tensor zf_input(zf_graph *graph, const char *name, zf_dtype dtype, zf_shape shape);

typedef enum zf_init {
    ZF_ZEROS,
    ZF_ONES,
    ZF_FILL,
    ZF_NORMAL,
    ZF_TRUNCATED_NORMAL,
    ZF_UNIFORM
} zf_init;

/* Symmetric quantisation: along the last dimension, each `block` elements become a record of u8: a
 * scale s = max |x| / 127 (4 bits: 7), and integers x / s, to nearest even. A block that has a
 * non-finite number becomes NaN. ops/quantize.c has the layout and the bound of the error. */
typedef struct zf_quantize_desc {
    int32_t bits;   /* 8 or 4; 0: 8 */
    int64_t block;  /* a multiple of 64, at most 2048; 0: 256 */
    zf_dtype scale; /* of the scales: ZF_F32 or ZF_BF16 */
} zf_quantize_desc;

typedef struct zf_param_desc {
    zf_dtype dtype; /* float */
    zf_init init;
    double mean, std; /* ZF_NORMAL; ZF_TRUNCATED_NORMAL draws within mean +- 2 std */
    double low, high; /* ZF_UNIFORM: [low, high) */
    double value;     /* ZF_FILL */
    bool frozen;      /* no gradient, no update */
    /* With bits 8 or 4 the parameter holds records (zf_quantize_desc) of dtype u8 and is frozen: a
     * weight of zf_quantized_linear. `shape` is that of the numbers. bits 0: floats */
    zf_quantize_desc quantized;
} zf_param_desc;

/* A trained tensor. Its first value depends on seed, name and the element's index only, so sharding
 * and tiling do not change it. desc NULL: f32 zeros. */
ZF_BUILDER zf_tensor zf_param(zf_graph *graph, const char *name, zf_shape shape,
                              const zf_param_desc *desc);
/* How the numbers of a parameter are quantised (zf_param_desc.quantized); bits 0: it has floats. */
ZF_API zf_quantize_desc zf_param_blocks(zf_tensor param);
/* The name of the adapter that the parameter belongs to (zf_lora), "" where that has none; NULL: it
 * belongs to no adapter, or the tensor is no parameter. Lives as long as the graph. */
ZF_API const char *zf_param_adapter(zf_tensor param);
/* The parameter's name without its adapter's: "score.weight" of "score.critic.weight". Written to
 * text, which has room for `size` bytes and is returned. */
ZF_API const char *zf_param_plain_name(zf_tensor param, char *text, size_t size);
/* The shape of the value that one rank would have, where ranks share it (zf_cut, zf_context,
 * zf_experts); for others zf_tensor_shape. */
ZF_API zf_shape zf_whole_shape(zf_tensor tensor);
ZF_API size_t zf_whole_bytes(zf_tensor tensor); /* of that value; 0 for an invalid one */
/* The shape of a parameter's numbers, of all ranks together. */
ZF_API zf_shape zf_param_shape(zf_tensor param);
/* Converts numbers to records, as zf_quantize does, and back. Records are written and read like any
 * values of a parameter. ZF_ERR_ARGUMENT where count is no multiple of the block. */
ZF_API zf_status zf_quantize_values(void *records, const float *values, size_t count,
                                    const zf_quantize_desc *desc);
ZF_API zf_status zf_dequantize_values(float *values, const void *records, size_t count,
                                      const zf_quantize_desc *desc);
/* A tensor that steps change and checkpoints hold, but that is not trained: counters, moments.
 * Starts as `value`. */
ZF_BUILDER zf_tensor zf_state(zf_graph *graph, const char *name, zf_dtype dtype, zf_shape shape,
                              double value);
/* Memory of programs for the keys and values of earlier tokens, which zf_attention_desc.k_cache
 * fills: float [batch, tokens, width], 0 at first. It is in no store and no checkpoint. Programs
 * share caches of one name by zf_compile_desc.caches. */
ZF_BUILDER zf_tensor zf_cache(zf_graph *graph, const char *name, zf_dtype dtype, zf_shape shape);
/* A constant with the same value in every element */
ZF_BUILDER zf_tensor zf_constant(zf_graph *graph, zf_dtype dtype, zf_shape shape, double value);
/* A constant with a value for each element: values[0..zf_shape_count(shape)), which are copied. */
ZF_BUILDER zf_tensor zf_values(zf_graph *graph, zf_dtype dtype, zf_shape shape,
                               const double *values);

/* Elementwise, broadcasting. add sub mul div: float or integer; maximum minimum: any, of bool "or"
 * and "and"; pow: float; comparisons: any -> bool, false where one is NaN, but for not_equal. */
ZF_BUILDER zf_tensor zf_add(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_sub(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_mul(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_div(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_maximum(zf_tensor a, zf_tensor b); /* at a tie the gradient goes to a */
ZF_BUILDER zf_tensor zf_minimum(zf_tensor a, zf_tensor b);
/* a^b, NaN for a < 0 with a b that is no integer. The gradient of a is 0 where b is 0, that of b is
 * 0 where a is 0. */
ZF_BUILDER zf_tensor zf_pow(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_equal(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_not_equal(zf_tensor a, zf_tensor b); /* of bool: exclusive or */
ZF_BUILDER zf_tensor zf_less(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_less_equal(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_greater(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_greater_equal(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_not(zf_tensor x); /* any -> bool: x is 0 */
/* condition: bool or u8, a and b: any */
ZF_BUILDER zf_tensor zf_where(zf_tensor condition, zf_tensor a, zf_tensor b);

/* Elementwise, float. */
ZF_BUILDER zf_tensor zf_neg(zf_tensor x);
ZF_BUILDER zf_tensor zf_scale(zf_tensor x, double by);
ZF_BUILDER zf_tensor zf_exp(zf_tensor x);
ZF_BUILDER zf_tensor zf_log(zf_tensor x);
ZF_BUILDER zf_tensor zf_sqrt(zf_tensor x);
ZF_BUILDER zf_tensor zf_rsqrt(zf_tensor x); /* 1 / sqrt(x) */
ZF_BUILDER zf_tensor zf_abs(zf_tensor x);   /* its gradient at 0 is 0 */
ZF_BUILDER zf_tensor zf_sin(zf_tensor x);   /* of radians */
ZF_BUILDER zf_tensor zf_cos(zf_tensor x);
ZF_BUILDER zf_tensor zf_tanh(zf_tensor x);
ZF_BUILDER zf_tensor zf_sigmoid(zf_tensor x);
ZF_BUILDER zf_tensor zf_relu(zf_tensor x);
ZF_BUILDER zf_tensor zf_gelu(zf_tensor x);      /* x Phi(x), by erf (Hendrycks & Gimpel 2016) */
ZF_BUILDER zf_tensor zf_gelu_tanh(zf_tensor x); /* its tanh approximation (ibid.) */
ZF_BUILDER zf_tensor zf_silu(zf_tensor x);      /* x sigmoid(x) */
ZF_BUILDER zf_tensor zf_softplus(zf_tensor x);  /* log(1 + e^x) */
/* Any to any; rounds to nearest even, float to integer truncates */
ZF_BUILDER zf_tensor zf_cast(zf_tensor x, zf_dtype to);

/* Symmetric quantisation (zf_quantize_desc); it has no gradient. x [..., n], n a multiple of the
 * block -> u8 [..., n / block * (bytes of a scale + block bits / 8)] */
ZF_BUILDER zf_tensor zf_quantize(zf_tensor x, const zf_quantize_desc *desc);
/* The inverse of zf_quantize with the same desc; it has no gradient. `to` is a float dtype. */
ZF_BUILDER zf_tensor zf_dequantize(zf_tensor x, zf_dtype to, const zf_quantize_desc *desc);
/* Zeroes each element with probability p, 0 <= p < 1, and scales the others by 1/(1-p). The
 * probability and the factor use p rounded to a multiple of 2^-16 (if p > 0, from 2^-16 to 1 -
 * 2^-16), so that the expectation is x. The mask is a function of seed, step, the scope, the number
 * of this dropout in it, and the element's global index (16 bits of Philox4x32-10, Salmon et al.
 * 2011): it is computed again for the gradient and never stored. When the first pass runs, the
 * dropouts of a scope are numbered along the operands of the outputs, so the order of calls does
 * not matter. A program compiled with `.evaluate` passes x through. p = 0 gives x itself. */
ZF_BUILDER zf_tensor zf_dropout(zf_tensor x, double p);

/* Random numbers of the dtype and shape of `like`, a float, which is not read: uniform in [low,
 * high), and normal. They are a function of seed, step, the scope, the number of this call and of
 * dropouts in it, and the element's global index, as those of zf_dropout. A program compiled with
 * `.evaluate` draws too. They have no gradient. Rounded to the dtype, a uniform one may be high. */
ZF_BUILDER zf_tensor zf_random_uniform(zf_tensor like, double low, double high);
ZF_BUILDER zf_tensor zf_random_normal(zf_tensor like, double mean, double deviation);

/* Which steps leave a branch out: of layer i = `layer`, with theta(t) = theta + (1 - theta)
 * exp(-gamma t) after t steps, the share (1 - theta(t)) (i + 1)/layers of them. */
typedef struct zf_layer_drop_desc {
    double theta; /* the share of steps that keep the last layer in the end; 0: 1, all */
    double gamma; /* how fast it comes to that; 0: 0.001 */
    bool halves; /* the halves of a layer, `half` 0 and 1, have coins of their own */
    bool first_kept; /* i/layers in the place of (i + 1)/layers: the first is always kept */
    int64_t layer, layers; /* 0 to layers - 1 */
    int64_t half;
} zf_layer_drop_desc;
/* x, the branch that a layer adds to its input: times 1/p in a step that keeps the layer, of which
 * p is the probability, and 0 in one that leaves it out (progressive layer dropping, Zhang & He
 * 2020). So the mean is x. The coin depends on the seed, the step and the layer alone. A step runs
 * no node whose value is then 0, or that nothing else reads, forward and backward, with its
 * gathers, reductions and copies; the plan holds for all steps. A program compiled with `.evaluate`
 * passes x through. theta 0 or 1 gives x itself. */
ZF_BUILDER zf_tensor zf_layer_drop(zf_tensor x, const zf_layer_drop_desc *desc);

/* Shape. */
/* x with another shape; one dimension may be -1: what remains */
ZF_BUILDER zf_tensor zf_reshape(zf_tensor x, zf_shape shape);
/* x, through which zf_autograd passes no gradient: a constant for what reads it */
ZF_BUILDER zf_tensor zf_stop_gradient(zf_tensor x);
ZF_BUILDER zf_tensor zf_transpose(zf_tensor x, int32_t axis_a, int32_t axis_b);
/* out.dims[i] = x.dims[order[i]], rank entries */
ZF_BUILDER zf_tensor zf_permute(zf_tensor x, const int32_t *order);
/* x[start..stop) */
ZF_BUILDER zf_tensor zf_slice(zf_tensor x, int32_t axis, int64_t start, int64_t stop);
/* Adds zeros before and after x along the axis */
ZF_BUILDER zf_tensor zf_pad(zf_tensor x, int32_t axis, int64_t before, int64_t after);
ZF_API zf_tensor zf_concat(const zf_tensor *tensors, int32_t count, int32_t axis); /* count >= 1 */
/* The same along a new axis, which has `count` elements: the inverse of zf_unstack. */
ZF_API zf_tensor zf_stack(const zf_tensor *tensors, int32_t count, int32_t axis);
/* parts[0..count) = slices of equal size along the axis, of which x has a multiple of `count`
 * elements; all are invalid after an error. zf_autograd makes one zf_concat of the gradients of
 * slices that do not overlap. */
ZF_BUILDER void zf_split(zf_tensor x, int32_t axis, int32_t count, zf_tensor *parts);
/* parts[i] = element i along the axis, without it, for each of its `count` elements: the steps of a
 * sequence. */
ZF_BUILDER void zf_unstack(zf_tensor x, int32_t axis, int32_t count, zf_tensor *parts);
ZF_BUILDER zf_tensor zf_broadcast(zf_tensor x, zf_shape shape);
/* The transpose of broadcast: sums the elements that it repeats */
ZF_BUILDER zf_tensor zf_sum_to(zf_tensor x, zf_shape shape);
/* The rows of all `ranks` ranks along data for the same micro-batch, [ranks * dims[0], ...], those
 * of rank 0 first: for losses over the global batch. A row's gradient is the sum of those by the
 * losses of all ranks. 1: x itself. zf_zero with this world must follow, on ranks that are no mesh
 * of nodes. Any dtype; rank 1 or more. */
ZF_BUILDER zf_tensor zf_all_gather(zf_tensor x, int64_t ranks);

typedef struct zf_matmul_desc {
    bool transpose_a, transpose_b; /* of the last two dimensions */
    /* k is cut into so many equal sections, each a sum of its own; their sums are added by a
     * balanced tree (zf_add_ranks_by_tree). So products of parts of k, with a power of two of its
     * sections each, add up to the same bits, if each is `wide`. Gradients have one section. 0:
     * 1 */
    int64_t sections;
    bool wide; /* the result has the dtype of sums: f32, or f64 of f64 */
    /* k is so many equal runs, one after the other, and a section has its part of each: with 3, of
     * q, k and v of packed attention. runs times `sections` must divide k. 0: 1 */
    int64_t runs;
} zf_matmul_desc;

/* out[...,m,n] = sum over k of a[...,m,k] b[...,k,n]; float, ranks >= 2, leading dimensions
 * broadcast; accumulates in f32 (f64 for f64). */
ZF_BUILDER zf_tensor zf_matmul(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_matmul_ex(zf_tensor a, zf_tensor b, const zf_matmul_desc *desc);

/* Of height and width; zf_conv1d takes the first of each. */
typedef struct zf_conv_desc {
    int64_t stride[2];   /* 0: 1 */
    int64_t padding[2];  /* zeros before and after x */
    int64_t dilation[2]; /* the distance of taps; 0: 1 */
    int64_t groups;      /* in which channels are taken apart; 0: 1 */
} zf_conv_desc;

/* As PyTorch's functional.conv2d: x [batch, channels, height, width], weight [out, channels /
 * groups, height, width], bias [out] or ZF_NONE; float, sums in f32. Columns (im2col) are made a
 * tile at a time within the product. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_conv2d(zf_tensor x, zf_tensor weight, zf_tensor bias,
                               const zf_conv_desc *desc);
/* The same of x [batch, channels, length] and weight [out, channels / groups, taps]. */
ZF_BUILDER zf_tensor zf_conv1d(zf_tensor x, zf_tensor weight, zf_tensor bias,
                               const zf_conv_desc *desc);

typedef struct zf_reduce_desc {
    int32_t axis;
    bool keep; /* keep the axis as a dimension 1 */
} zf_reduce_desc;

/* Reductions over every element, to a scalar; _ex over one axis. Float; a sum also integer, which
 * wraps. The order of additions is fixed. */
ZF_BUILDER zf_tensor zf_sum(zf_tensor x);
ZF_BUILDER zf_tensor zf_sum_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_mean(zf_tensor x);
ZF_BUILDER zf_tensor zf_mean_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_max(zf_tensor x); /* equal maxima share the gradient */
ZF_BUILDER zf_tensor zf_max_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_min(zf_tensor x); /* equal minima share the gradient */
ZF_BUILDER zf_tensor zf_min_ex(zf_tensor x, const zf_reduce_desc *desc);
/* i32, the first of equal ones; no gradient */
ZF_BUILDER zf_tensor zf_argmax_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_argmin_ex(zf_tensor x, const zf_reduce_desc *desc);

/* Along an axis. */
/* y[n] = x[0] + ... + x[n], float or integer; floats are added in double. */
ZF_BUILDER zf_tensor zf_cumsum(zf_tensor x, int32_t axis);
/* y[..n..] = x[..index[..n..]..]: index, i32 or i64, has the dimensions of x but for the axis. An
 * index outside the axis is an error of the step. */
ZF_BUILDER zf_tensor zf_gather(zf_tensor x, zf_tensor index, int32_t axis);
/* y[..r..] = the sum of x[..n..] for which index[..n..] is r, r < size: x is float and of the shape
 * of the index. It adds in the order of n. */
ZF_BUILDER zf_tensor zf_scatter_add(zf_tensor x, zf_tensor index, int32_t axis, int64_t size);
/* The k largest of each row over the last dimension, the largest first, of equal ones the first;
 * NaN is larger than every number. *places, which may be NULL, is where they are, i32 [..., k]. */
ZF_BUILDER zf_tensor zf_top_k(zf_tensor x, int64_t k, zf_tensor *places);
/* [..., classes] of dtype `to`: 1 at the class that the index, i32 or i64, names, else 0; zeros
 * alone for an index outside 0..classes-1. */
ZF_BUILDER zf_tensor zf_one_hot(zf_tensor index, int64_t classes, zf_dtype to);

/* Over the last dimension, float. */
ZF_BUILDER zf_tensor zf_softmax(zf_tensor x);   /* saved: the output alone */
ZF_BUILDER zf_tensor zf_logsumexp(zf_tensor x); /* drops the dimension */
ZF_BUILDER zf_tensor zf_log_softmax(zf_tensor x);
/* gamma (x - mean) / sqrt(var + eps) + beta; gamma, beta [n] (Ba et al. 2016). */
ZF_BUILDER zf_tensor zf_layer_norm(zf_tensor x, zf_tensor gamma, zf_tensor beta, double eps);
/* gamma x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019). */
ZF_BUILDER zf_tensor zf_rms_norm(zf_tensor x, zf_tensor gamma, double eps);

/* out[i...,:] = table[index[i...],:]; table [rows,n] float, index i32 or i64 of any shape. An index
 * outside 0..rows-1 is an error of the step. The gradient adds in the order of the index:
 * deterministic. */
ZF_BUILDER zf_tensor zf_gather_rows(zf_tensor table, zf_tensor index);
ZF_BUILDER zf_tensor zf_embedding(zf_tensor table, zf_tensor ids); /* the same, by its usual name */
typedef struct zf_embedding_desc {
    bool padded; /* lookups of the row `padding` leave it without a gradient */
    int64_t padding;
} zf_embedding_desc;
ZF_BUILDER zf_tensor zf_embedding_ex(zf_tensor table, zf_tensor ids, const zf_embedding_desc *desc);

/* The numbers of an index once each, ascending, and -1 in what is left: [n] for an index of n
 * elements, i32 or i64 of any shape, from -1, which is no row, to rows - 1; another one is an error
 * of the step. The result is i32, of 2^31 rows and more i64. */
ZF_BUILDER zf_tensor zf_distinct_rows(zf_tensor index, int64_t rows);
/* out[k,:] = sum of x[i...,:] where index[i...] = rows[k], in the order of the index; 0 where there
 * is none. rows [m], i32 or i64: ascending, then -1, as zf_distinct_rows gives them; x float, with
 * the index's dimensions first, in whose place the result has m. It has no gradient. */
ZF_BUILDER zf_tensor zf_sum_rows(zf_tensor x, zf_tensor index, zf_tensor rows);

/* weight * sum over rows of -log softmax(logits)[label]; rows with label -100 are ignored. logits
 * [n,classes] float, labels [n] i32 or i64, weight a scalar f32. weight ZF_NONE: 1 / max(1,
 * labelled rows); with zf_zero the labelled rows of the global batch, so that the loss is the mean
 * over them whatever the number of ranks and micro-batches. An input to which the program writes
 * this number does the same; it is required where several such losses are added. */
ZF_BUILDER zf_tensor zf_cross_entropy(zf_tensor logits, zf_tensor labels, zf_tensor weight);

typedef struct zf_head_desc {
    double temperature; /* that logits are divided by; 0: 1 */
    /* How the weight is quantised: it is u8, as zf_quantized_linear takes it, and frozen. bits 0:
     * it is floats */
    zf_quantize_desc blocks;
} zf_head_desc;

/* The log-probability of each row's label, log softmax(x weight^T + bias)[label]: f32 [n] (f64 for
 * f64), 0 for rows with label -100. x [n,width], weight [classes,width] (the weight of an output
 * layer, or a tied embedding), bias [classes] or ZF_NONE, labels [n] i32 or i64. It is computed in
 * tiles, and so is its gradient: nothing of size n x classes is in memory. desc NULL: the
 * defaults. */
ZF_BUILDER zf_tensor zf_head_logp(zf_tensor x, zf_tensor weight, zf_tensor bias, zf_tensor labels,
                                  const zf_head_desc *desc);
/* Of a result of zf_head_logp: the entropy of each row's distribution, in nats, f32 [n], 0 for rows
 * with label -100. It has no gradient. */
ZF_BUILDER zf_tensor zf_head_entropy(zf_tensor logp);
/* The most likely class of each row, i32 [n], -1 for rows with label -100. */
ZF_BUILDER zf_tensor zf_head_argmax(zf_tensor logp);

/* Layers that are one node each, with gradients of their own. zf_fuse makes some of them from plain
 * nodes where it recognises them; these builders do not depend on that. */

/* x weight^T + bias, as PyTorch's functional.linear: x [..., in], weight [out, in], bias [out] or
 * ZF_NONE. zf_fuse joins projections of one x, and takes an activation after it into the node. */
ZF_BUILDER zf_tensor zf_linear(zf_tensor x, zf_tensor weight, zf_tensor bias);

/* zf_linear with a frozen weight of u8, the result of zf_quantize of [out, in] with the same desc.
 * It is converted to floats a tile at a time; x [rows, in] of up to 16 rows, and x [..., 1, in], to
 * integers, each row for itself. x and bias have gradients. As the head of a model, zf_fuse joins
 * it with the loss. */
ZF_BUILDER zf_tensor zf_quantized_linear(zf_tensor x, zf_tensor weight, zf_tensor bias,
                                         const zf_quantize_desc *desc);

/* silu(gate) * up (Shazeer 2020), of one shape. up ZF_NONE: the rows of gate [..., 2 n] hold both,
 * gate first; the result is [..., n]. Saved: gate and up. */
ZF_BUILDER zf_tensor zf_swiglu(zf_tensor gate, zf_tensor up);

/* Block masks: attention that looks at some blocks of keys. */
typedef enum zf_layout {
    ZF_LAYOUT_ALL,      /* all blocks; its name is "off" */
    ZF_LAYOUT_FIXED,    /* windows of `local` blocks, of which the last `global` are seen by all */
    ZF_LAYOUT_VARIABLE, /* `random` blocks of a row, windows of given widths, given globals */
    ZF_LAYOUT_BIGBIRD,  /* `random` blocks, `width` around the row, the first `global` */
    ZF_LAYOUT_LONGFORMER, /* `width` around the row, given globals */
    ZF_LAYOUT_WINDOW,   /* `width` around the row */
    ZF_LAYOUT_FILE        /* a text of rows of 0 and 1, as many as blocks; blanks are skipped */
} zf_layout;
ZF_API const char *zf_layout_name(zf_layout layout); /* "off", ...; "?" when it is none */

#define ZF_NO_BLOCKS INT64_MIN /* in `random`: the number 0 */

/* The layouts are those of DeepSpeed's sparsity_config.py (its names in parentheses), without
 * columns after the row where they are causal. Parameters that a layout does not have must be 0. */
typedef struct zf_block_mask_desc {
    zf_allocator allocator; /* {0}: the C library's */
    zf_layout layout;
    int64_t tokens; /* of a sequence; the last block may be shorter than others */
    /* The layout is that of so many tokens, and the sequence is their beginning; 0: tokens */
    int64_t length;
    int64_t block;  /* 16, 32, 64 or 128 tokens; 0: 16 */
    bool causal;    /* (attention = unidirectional) */
    bool per_head;  /* a layout for each head (different_layout_per_head) */
    int64_t heads;  /* of q, where layouts are per head; 0: 1 */
    int64_t local;  /* (num_local_blocks) 0: 4 */
    int64_t global; /* (num_global_blocks) fixed: a divisor of local; 0: 1 */
    /* Of fixed, per head: the global blocks of head h lie (h % patterns) * global blocks earlier in
     * their window (num_different_global_patterns). 0: 1 */
    int64_t patterns;
    bool horizontal; /* globals see all blocks too (horizontal_global_attention); not causal */
    int64_t random;  /* of each row (num_random_blocks); 0: 1 of bigbird, none of variable */
    int64_t seed;    /* of these: the same layout on all ranks and machines */
    int64_t width;   /* width / 2 blocks to each side (num_sliding_window_blocks); 0: 3 */
    /* Widths of the windows of `variable`, "4+2+8", the last one repeats (local_window_blocks), at
     * most 16; NULL: "4" */
    const char *windows;
    /* Blocks and ranges of them, "0+5:7" (global_block_indices, global_block_end_indices), at most
     * 16; NULL: "0" */
    const char *globals;
    const char *path; /* of ZF_LAYOUT_FILE; with per_head the rows of one head after the other */
    int64_t digest; /* of this file (zf_block_mask_info), which then must be the same; 0: any */
} zf_block_mask_desc;

/* Sets layout and parameters by a text, "bigbird,random=2,width=5", which is cut in place and must
 * outlive the desc. Programs have it as the option --attention (zf_block_mask_options). */
ZF_API zf_status zf_block_mask_parse(char *text, zf_block_mask_desc *desc, zf_error *error);
/* Writes what zf_block_mask_parse reads, of what was given, into text[0..size), terminated when
 * size > 0; returns the length of the whole text. */
ZF_API size_t zf_block_mask_text(const zf_block_mask_desc *desc, char *text, size_t size);

/* Which blocks see which. NULL with an error when parameters are wrong, or memory or the file is
 * missing. It belongs to the caller; graphs copy what they need. */
typedef struct zf_block_mask zf_block_mask;
ZF_API zf_block_mask *zf_block_mask_new(const zf_block_mask_desc *desc, zf_error *error);
ZF_API void zf_block_mask_free(zf_block_mask *mask);

typedef struct zf_block_mask_info {
    int64_t tokens, block;
    int64_t layouts; /* 1, or the number of heads */
    int64_t blocks;  /* of a side */
    int64_t seen;    /* blocks that are seen, of all layouts */
    int64_t digest;  /* of the file; 0: of another layout */
    bool causal;
} zf_block_mask_info;
ZF_API zf_block_mask_info zf_block_mask_info_of(const zf_block_mask *mask); /* of NULL: zeros */
/* The block in `row` (of queries) sees the one in `column`; false outside the mask. */
ZF_API bool zf_block_mask_sees(const zf_block_mask *mask, int64_t head, int64_t row,
                               int64_t column);

/* The mask as a constant of a graph, for zf_attention_desc.blocks of all its layers: i32, 2 + 2
 * layouts (blocks + 1) + 2 seen numbers (ops/block_mask.c). */
ZF_BUILDER zf_tensor zf_block_mask_lists(zf_graph *graph, const zf_block_mask *mask);

typedef struct zf_attention_desc {
    int64_t heads; /* of q; 0: 1 */
    /* Heads of k and v, a divisor of heads: head j of q reads head j / (heads / kv_heads)
     * (Ainslie et al. 2023). 0: heads */
    int64_t kv_heads;
    double scale;   /* of the scores; 0: 1 / sqrt(width of a head) */
    double cap;     /* scaled scores become cap tanh(score / cap), before a mask; 0: they stay */
    double dropout; /* of the probabilities */
    /* Query m of M sees key n of N where n <= m + N - M: for M = N, itself and the keys before it.
     * Scores of other keys are not computed */
    bool causal;
    /* With `causal` query m sees only the last `window` of these keys, without it key n where |n -
     * (m + N - M)| < window. 0: all */
    int64_t window;
    /* Broadcasts to [B, heads, M, N], and gets no gradient. bool or u8: a key that is 0 is not
     * seen; else it is of q's dtype and added to the scaled scores. With caches: [1, heads or 1, 1,
     * C], not with a ring. ZF_NONE: none */
    zf_tensor mask;
    /* The result of zf_documents: a token sees those of its own document. M = N. ZF_NONE: one */
    zf_tensor documents;
    /* The result of zf_block_mask_lists: keys are seen in blocks. M = N, or with caches a mask of C
     * tokens, whose row is that of the token's place. ZF_NONE: all are. `causal`, `window`, `mask`
     * and `documents` hold within the blocks too */
    zf_tensor blocks;
    /* Generation: two zf_cache [B, C, width of k], which hold keys and values of `past` earlier
     * tokens of each example (i32 or i64 [B]). Of the M tokens of q, k and v the first `count` (i32
     * or i64 [B] too) are new; the others are padding, whose result is 0. New keys and values are
     * added to the caches; then new query m sees the keys 0 to past + m of these. More than C
     * tokens of an example are an error of the step. Causal; without dropout and gradient.
     * ZF_NONE: none of the four */
    zf_tensor k_cache, v_cache, past, count;
    /* For caches with a window W: token t of an example is in row t mod C of the caches, so texts
     * may be longer than C. Requires: C a multiple of 64 and at least W - 1 + M */
    bool ring;
} zf_attention_desc;

/* Several documents in a row of tokens: segments [B, T], i32 or i64, numbers of documents. Equal
 * numbers that follow one another are one document. The result is i32 [B, T, 2], for each token the
 * first of its document and the one after the last. */
ZF_BUILDER zf_tensor zf_documents(zf_tensor segments);

typedef struct zf_route_desc {
    int64_t k;      /* experts of a token; 0: 2 */
    bool sigmoid;   /* scores are sigmoid(logits), not softmax(logits) */
    bool normalize; /* weights are divided by their sum */
    /* Experts form groups of neighbours, of which `kept` are chosen from: those whose two largest
     * scores have the largest sum. 0: there are none */
    int64_t groups, kept;
    double scale;   /* weights are multiplied by it; 0: 1 */
    zf_tensor bias; /* [experts], added to scores for the choice alone; ZF_NONE: none */
    /* The gradient of the bias is 2^-40 (choices of an expert - their mean over experts), by whose
     * sign an optimizer balances experts; else it has none */
    bool balance;
    /* Receive the experts of each token, i32 [tokens, k], the one with the largest score first, and
     * the scores of all, [tokens, experts], through which gradients flow. NULL: not wanted */
    zf_tensor *experts, *scores;
} zf_route_desc;

/* Mixture of experts: the weights [tokens, k] of the k experts that each token is given to, from
 * the router's logits [tokens, experts]; of equal scores that of the lowest expert is first.
 * Weights and scores are f32, of f64 f64. A NaN is an error of the step. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_route(zf_tensor logits, const zf_route_desc *desc);

typedef struct zf_expert_rows_desc {
    int64_t experts;      /* how many there are */
    int64_t rows;         /* how many there may be; 0: tokens k, or experts capacity */
    int64_t capacity;     /* rows of each expert, which drops choices beyond it; 0: it drops none */
    /* With a capacity: float [tokens, k]; the largest stay. ZF_NONE: the first. First choices of
     * tokens stay before second ones */
    zf_tensor priority;
    /* Receive the first row of each expert and its end, i32 [experts, 2]; the row of each choice,
     * i32 [tokens, k], the number of rows where it was dropped; and the choices of each expert, i32
     * [experts], also those that are dropped. NULL: not wanted */
    zf_tensor *bounds, *slots, *counts;
} zf_expert_rows_desc;

/* A row for each choice [tokens, k] of an expert, i32 or i64: i32 [rows], in the order of experts,
 * then of choices. A row has the number of its choice, token k + place, or tokens k if it is free.
 * More choices than rows are an error of the step, which says how many there are. */
ZF_BUILDER zf_tensor zf_expert_rows(zf_tensor experts, const zf_expert_rows_desc *desc);

/* The rows of experts, [rows, n], of x [tokens, n]; free ones are 0. `rows`, `slots`: of
 * zf_expert_rows. */
ZF_BUILDER zf_tensor zf_dispatch(zf_tensor x, zf_tensor rows, zf_tensor slots);
/* The sum of each token's rows times its weights [tokens, k], [tokens, n]: in ascending order of
 * experts, in f32. weights ZF_NONE: 1. */
ZF_BUILDER zf_tensor zf_combine(zf_tensor x, zf_tensor rows, zf_tensor slots, zf_tensor weights);
/* y[r] = x[r] w[e]^T of the rows x [rows, k] of each expert e by its matrix, w [experts, n, k];
 * `bounds`: of zf_expert_rows. Rows of no expert are 0. */
ZF_BUILDER zf_tensor zf_grouped_linear(zf_tensor x, zf_tensor w, zf_tensor bounds);

/* {0}: zf_grouped_linear. */
typedef struct zf_grouped_linear_desc {
    /* How w, u8, is quantised: the result of zf_quantize of [experts, n, k], frozen, as that of
     * zf_quantized_linear. bits 0: as zf_param_blocks(w) says, else w is floats */
    zf_quantize_desc quantized;
    /* With quantised matrices: each row of x is converted to integers, which is fast for few rows;
     * else matrices become floats a tile at a time. Both ways the bits of a row do not depend on
     * other rows */
    bool alone;
} zf_grouped_linear_desc;
ZF_BUILDER zf_tensor zf_grouped_linear_ex(zf_tensor x, zf_tensor w, zf_tensor bounds,
                                          const zf_grouped_linear_desc *desc);

/* softmax(scale q k^T + mask) v of each head (Vaswani et al. 2017), of which no [M,N] matrix is
 * ever in memory (Dao et al. 2022). q [B, M, H], k and v [B, N, H kv_heads / heads], heads one
 * after the other in the last dimension; the result is [B, M, H]. k and v ZF_NONE: q holds all
 * three, [B, T, H + 2 H kv_heads / heads], of each token first q, then k, then v. A query that sees
 * no key gives 0. Saved: the result, and a number for each row of scores. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_attention(zf_tensor q, zf_tensor k, zf_tensor v,
                                  const zf_attention_desc *desc);

typedef struct zf_residual_desc {
    double dropout; /* of x + bias */
    zf_tensor bias; /* [n], or ZF_NONE */
    double eps;     /* 0: 1e-5; ZF_ZERO: 0 */
    /* Receives residual + dropout(x + bias) as a value of its own: the next residual in a pre-norm
     * model. In 16 bits the norm is then that of the rounded value. NULL: not wanted */
    zf_tensor *sum;
} zf_residual_desc;

/* zf_layer_norm or zf_rms_norm of residual + dropout(x + bias). x and residual are of one shape
 * [..., n]; gamma and beta [n]. Saved: xhat, which the gradient is made of, and a number for each
 * row. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_residual_layer_norm(zf_tensor x, zf_tensor residual, zf_tensor gamma,
                                            zf_tensor beta, const zf_residual_desc *desc);
ZF_BUILDER zf_tensor zf_residual_rms_norm(zf_tensor x, zf_tensor residual, zf_tensor gamma,
                                          const zf_residual_desc *desc);

typedef enum zf_rope_scaling {
    ZF_ROPE_PLAIN,
    ZF_ROPE_LINEAR, /* all frequencies f are f / factor (Chen et al. 2023) */
    /* Frequencies f with a wavelength 2 pi / f above original / low_factor become f / factor; those
     * with one below original / high_factor stay; between them they go from one to the other (Llama
     * 3.1) */
    ZF_ROPE_LLAMA3,
    /* Frequency i stays below l = b(high_factor), becomes f / factor above h = b(low_factor), and
     * goes from one to the other between them, where b(n) = d log(original / (2 pi n)) / (2 log
     * theta) is the frequency that turns n times in the original tokens. l is rounded down and h up
     * unless `unrounded` (Peng et al. 2023) */
    ZF_ROPE_YARN
} zf_rope_scaling;

typedef struct zf_rope_desc {
    int64_t heads; /* 0: 1 */
    double theta;  /* 0: 10000 */
    zf_rope_scaling scaling;
    double factor;                  /* 0: 8 */
    double low_factor, high_factor; /* 0: 1 and 4; of YARN 1 and 32 (beta_slow, beta_fast) */
    bool unrounded;                 /* YARN */
    double attention; /* YARN: cosines and sines are multiplied by it; 0: 0.1 log(factor) + 1 */
    int64_t original; /* tokens that the model was trained with before; 0: 8192 */
    /* i32 or i64, [T], or x's shape without H; ZF_NONE: 0, 1, ... T - 1 */
    zf_tensor positions;
} zf_rope_desc;

/* Rotary positions (Su et al. 2021) of x [..., T, H], heads one after the other, in the form of
 * Llama: the halves (a, b) of a head become (a cos - b sin, b cos + a sin). The angle of element i
 * is position * theta^(-2 i / d), with d the width of a head, in f32. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_rope(zf_tensor x, const zf_rope_desc *desc);
/* Frequency i of heads of `width`, 0 <= i < width / 2, scaled. */
ZF_API double zf_rope_frequency(const zf_rope_desc *desc, int64_t width, int64_t i);

/* How the values that a scalar float has for the parts of a global batch (zf_zero_desc) make one.
 * ZF_REDUCTION_SUM is also that of f32 and f64 with any number of elements; such outputs without it
 * are of a rank's last micro-batch. */
typedef enum zf_reduction {
    ZF_REDUCTION_DERIVED, /* by the operators that compute it; zf_zero fails if they decide none */
    ZF_REDUCTION_SUM,
    ZF_REDUCTION_MEAN,
    /* Each rank keeps that of its last micro-batch; not of a loss. With several ranks zf_step does
     * not ask whether it is finite */
    ZF_REDUCTION_NONE
} zf_reduction;

typedef struct zf_output_desc {
    zf_reduction reduction;
} zf_output_desc;

/* Keeps the value readable (zf_read) after each step, under `name`. Returns x, by which the value
 * can be read whatever passes make of it. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_output(zf_tensor x, const char *name);
ZF_BUILDER zf_tensor zf_output_ex(zf_tensor x, const char *name, const zf_output_desc *desc);
/* Keeps readable, under `name`, the gradient of the loss with respect to x, a float: an input, a
 * frozen parameter or any value that the loss depends on; of the dtype and shape of x. With several
 * ranks or micro-batches it is that of a rank's last part of the batch, whose loss is not yet
 * divided by the number of parts or by their sum. A loss scale multiplies it, as zf_gradient.
 * Returns x. Requires: before zf_autograd. */
ZF_BUILDER zf_tensor zf_output_gradient(zf_tensor x, const char *name);

/* Whether x is a ratio of sums over examples (zf_zero), as zf_cross_entropy is without a weight.
 * Then *divisor is what it is divided by, and *sum the sum in that: the number of labelled rows.
 * Else, and for lack of memory, both are ZF_NONE. Either may be NULL. */
ZF_API bool zf_ratio_of(zf_tensor x, zf_tensor *divisor, zf_tensor *sum);

/* What a state takes where a step has several parts of the batch: those of its ranks and
 * micro-batches (zf_zero_desc). */
typedef enum zf_parts {
    ZF_PARTS_ONE,  /* the value is the same in all parts; one that is not is zf_zero's error */
    ZF_PARTS_MEAN, /* the mean over the parts, of floats */
    ZF_PARTS_SUM   /* the sum over the parts, of floats */
} zf_parts;

typedef struct zf_assign_desc {
    zf_parts parts;
} zf_assign_desc;

/* state = value, once at the end of each step of the program: running statistics, queues, counters,
 * target networks. The graph reads the state as it was before the step. A step that fails before
 * its updates changes no state; one that a loss scale skips does. A program compiled with
 * `.evaluate` assigns nothing. The value has the state's dtype and shape; each state is assigned
 * once in a graph. Returns value. Requires: before the optimizer. */
ZF_BUILDER zf_tensor zf_assign(zf_tensor state, zf_tensor value);
/* desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_assign_ex(zf_tensor state, zf_tensor value, const zf_assign_desc *desc);

/* For layers of the program's own: records a misuse as the graph's error, with scope and line;
 * returns the invalid tensor. */
ZF_BUILDER zf_tensor zf_fail(zf_tensor x, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Used by the macros at the end of this header: they note where a builder was called, for error
 * messages. */
ZF_API zf_tensor zf_at(zf_tensor x, const char *file, int line);
ZF_API zf_graph *zf_graph_at(zf_graph *graph, const char *file, int line);
