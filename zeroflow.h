/* zeroflow.h - train transformers from C.
 *
 * WHAT IT IS
 *
 * A program builds a static graph with zf_ operators. Passes rewrite that graph until it is one
 * complete training step: forward, backward, clipping, optimizer, with every byte placed. Then it
 * runs. There is one kind of thing, a list of nodes, and one text for it, which can be printed
 * after any pass, read back, compared and tested.
 *
 * EIGHT LINES
 *
 *     zf_graph *g = zf_graph_new(NULL);
 *     zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(32, 2));
 *     zf_tensor y = zf_input(g, "y", ZF_I32, ZF_SHAPE(32));
 *     zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
 *     zf_tensor h = zf_relu(zf_nn_linear(x, "hidden", 64, NULL));
 *     zf_tensor loss = zf_cross_entropy(zf_nn_linear(h, "out", 2, NULL), y, ZF_NONE);
 *     zf_autograd(g, loss), zf_adamw(g, lr, NULL);
 *     zf_program *p = zf_compile(g, NULL);
 *
 * and then, for each step, zf_write(p, x, ...), zf_step(p), zf_read(p, loss, ...).
 *
 * USE
 *
 * In one C file, and in as many others without the first line:
 *
 *     #define ZEROFLOW_IMPLEMENTATION
 *     #include "zeroflow.h"
 *
 * C11 with gcc or clang, -lm -lpthread, on a POSIX system; the declarations are C++17 as well.
 * dist/zeroflow.h (`make dist`) is this header as one file. The header of the source tree includes
 * the files beside it, and stb_ds (Debian: libstb-dev). No machine flags are needed: AMX, AVX-512,
 * AVX2 or NEON is chosen when it runs. Options, by #define before the implementation: ZF_API
 * (decorates the functions; `static` makes them private), ZEROFLOW_CBLAS (products by a linked
 * BLAS), ZF_NO_LINES (builders do not note the line that calls them).
 *
 * WHAT IT DOES NOT DO (YET)
 *
 * It runs on the CPU, in f32, bf16 and f16 (f64 by slow reference kernels), and on one GPU
 * (zeroflow_cuda.cu; f32, bf16, f16). Ranks by NCCL (zeroflow_nccl.c) are tested on the CPU; they
 * have not been run on several GPUs. There are no convolutions, no dynamic shapes, and no control
 * flow in a graph: another shape is another graph over the same parameters (zf_store).
 *
 * CONTENTS
 *
 *     training     1 status, memory     2 dtypes, shapes     3 graphs      4 builders    5 passes
 *                  6 devices, ranks     7 stores             8 plans, programs
 *                  9 checkpoints       10 layers, loops
 *     files       11 JSON              12 safetensors
 *     extending   13 operators         14 backends          15 communicators
 *
 * A program that trains needs the first part, and no more.
 *
 * STEP BY STEP
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
 * Rewrite. Passes in their order: zf_lora; zf_fuse; zf_precision; zf_tile; zf_autograd;
 * zf_simplify; zf_clip; one of zf_adamw, zf_lamb, zf_sgd, zf_lion, zf_onebit_adam, zf_onebit_lamb,
 * zf_zero_one_adam; zf_delay; zf_fuse again; zf_recompute; zf_zero; zf_offload; zf_prefetch.
 * zf_passes runs them all by one description (zf_training). zf_graph_print shows the graph between
 * any two of them, one node per line:
 *
 *     %7  = matmul %1, %4 : f32[16,32]
 *           gradient %4, %45
 *     update:
 *           adamw %4, %45, %53, %54, %3, %51 {beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01}
 *
 * Nodes above `update:` run once per micro-batch, nodes below it once per step. Where updates run
 * beside the backward pass (zf_offload), that pass stands below it as well, its nodes marked
 * `micro`.
 *
 * Compile. zf_compile places every value in one arena (zf_memory), allocates exactly those bytes,
 * draws the first values of the parameters, and returns a program. Its peak is known before
 * (zf_program_info_of), and a plan over zf_compile_desc.memory_limit is an error that says by how
 * much and where.
 *
 * Run. zf_write the inputs, zf_step, zf_read what zf_output keeps. A step allocates nothing. The
 * same seed gives the same bits on any number of threads, and after zf_save and zf_load. Between
 * instruction sets, bits differ by rounding.
 *
 * Ranks. zf_zero turns the step of one rank into that of each of several, at a ZeRO stage, and
 * zf_prefetch lays communication beside computation:
 *
 *     zf_passes(g, &(zf_training){.loss = loss,
 *                                 .zero = {.stage = 3, .world = comm->world},
 *                                 .prefetch.bytes = 128 << 20});
 *     zf_program *p = zf_compile(g, &(zf_compile_desc){.comm = comm, .seed = 1});
 *
 * comm is this rank's communicator: zf_local_comm for threads of one process, zf_mpi_comm
 * (zeroflow_mpi.c) for processes, zf_nccl_comm (zeroflow_nccl.c) for GPUs, or a table of functions
 * of one's own (zf_comm). Every rank builds the same graph; before the first step they compare
 * their plans, seeds and parameters (zf_compare_ranks). Each writes its part of the global batch
 * (zf_zero_desc says which) and all call zf_step. Losses, gradients and parameters are the same to
 * the last bit at every stage, with any prefetch, on any number of ranks that share the batch in as
 * many parts, and after zf_save and zf_load at another stage and world. When a rank fails or does
 * not arrive, all ranks get the error.
 *
 * Own. A graph owns its nodes; a program borrows graph and backend; free in the reverse order of
 * making: program, backend, graph. NULL may be freed. A store of parameters that several programs
 * work with (section 7) lives as long as one of them. One graph, its programs and their store
 * belong to one thread at a time; others are independent. No function prints, exits, aborts or
 * reads the environment, and there are no global variables. Threads are those that a CPU backend is
 * asked for, and one more for each queue that a plan with zf_prefetch uses.
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
 *     bucket        parameters that lie side by side in memory; collectives move whole buckets
 *     shard         the elements of a bucket that one rank holds: 1 of `world` equal ranges
 *     piece         elements of a bucket or shard that are updated at one time (zf_offload)
 *     queue         nodes that run in order, beside other queues: compute, gather, reduce
 *     lifetime      the nodes from the first that writes a value to the last that reads it
 *     peak          the bytes that a program and its store allocate together
 *     fused         one node with the result of several
 *     saved         a value that a node leaves for its gradient
 *     recompute     to compute a value of the forward pass a second time, in the backward pass
 *     non-finite    infinity or NaN
 */
#ifndef ZEROFLOW_H
#define ZEROFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the declarations; zf_version is that of the implementation. */
#define ZF_VERSION_MAJOR 0
#define ZF_VERSION_MINOR 1
#define ZF_VERSION_PATCH 0
#define ZF_VERSION       ZFI_VERSION(ZF_VERSION_MAJOR, ZF_VERSION_MINOR, ZF_VERSION_PATCH)

#define ZFI_VERSION(major, minor, patch)      ZFI_VERSION_TEXT(major, minor, patch)
#define ZFI_VERSION_TEXT(major, minor, patch) #major "." #minor "." #patch

#ifndef ZF_API
/* Decorates every public function; -DZF_API=static keeps the library in one file. Functions of
 * zeroflow_cuda.cu, zeroflow_mpi.c and zeroflow_nccl.c are `extern` instead. */
#define ZF_API
#elif defined(__GNUC__)
#define ZFI_API_OF_PROGRAM
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* a program calls some of the functions */
#endif
#define ZF_BUILDER ZF_API /* a function that notes the line that calls it (api/lines.h) */

/* ======================================================================================== TRAINING
 *
 * All that a program needs which trains a model: sections 1 to 10.
 */

/* ----------------------------------------------------------------------------- 1 STATUS, MEMORY */

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

/* A field of a desc that is 0 has its default; where that is another number, comments say so: "0:
 * 0.02". ZF_ZERO in a field of type double is the number 0. */
#define ZF_ZERO (-1e-300)

/* One function allocates, resizes and frees (new_size 0); it returns NULL when it cannot, and then
 * `ptr` is still valid. `fn` NULL means the C library's realloc and free. A graph and all that is
 * made from it use the graph's allocator. */
typedef struct zf_allocator {
    void *(*fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} zf_allocator;

/* -------------------------------------------------------------------------- 2 DTYPES AND SHAPES */

typedef enum zf_dtype { ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8, ZF_BOOL } zf_dtype;

ZF_API size_t zf_dtype_size(zf_dtype dtype);      /* bytes of an element; 0 when dtype is none */
ZF_API const char *zf_dtype_name(zf_dtype dtype); /* "f32", "bf16", ...; "?" when it is none */

/* Where a value lies. */
typedef enum zf_space {
    ZF_DEVICE, /* memory of the backend */
    ZF_HOST,   /* memory of the host, where a CPU backend computes */
    ZF_DISK,   /* a file; what lies there is copied and nothing else */
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

/* ------------------------------------------------------------------------------------- 3 GRAPHS */

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

typedef struct zf_operator zf_operator; /* section 13 */

typedef struct zf_graph_desc {
    zf_allocator allocator; /* {0}: the C library's */
    const zf_operator *operators; /* of the program's own; they are copied */
    int32_t operator_count;
} zf_graph_desc;

/* An empty graph, or NULL when there is no memory. What is wrong with an operator of one's own is
 * the graph's first error. desc NULL: defaults. */
ZF_API zf_graph *zf_graph_new(const zf_graph_desc *desc);
ZF_API void zf_graph_free(zf_graph *graph); /* NULL: nothing */
/* A copy that shares nothing with the graph: the same nodes with the same ids, the same scopes,
 * stage and error, by the same allocator. A tensor of the graph is in the copy {copy, tensor.id}.
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

/* The input, param, state or output of that name, or the invalid tensor, without making it an
 * error. */
ZF_API zf_tensor zf_graph_find(zf_graph *graph, const char *name);
/* The parameters as they were declared, and after zf_fuse or zf_autograd as the program reads them,
 * scope by scope: 0 <= index < zf_param_count; an index outside
 * gives the invalid tensor, without making it an error. */
ZF_API int32_t zf_param_count(const zf_graph *graph);
ZF_API zf_tensor zf_param_at(zf_graph *graph, int32_t index);

ZF_API bool zf_valid(zf_tensor tensor);
ZF_API zf_dtype zf_tensor_dtype(zf_tensor tensor); /* ZF_F32 for an invalid one */
ZF_API zf_shape zf_tensor_shape(zf_tensor tensor); /* rank -1 for an invalid one */
ZF_API size_t zf_tensor_bytes(zf_tensor tensor);   /* 0 for an invalid one */
/* Of an input, param or state; "" for any other */
ZF_API const char *zf_tensor_name(zf_tensor tensor);

/* Scopes name what is built inside them: zf_push(g, "layer.%d", i) ... zf_pop(g); names are joined
 * by dots. */
ZF_BUILDER void zf_push(zf_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
ZF_BUILDER void zf_pop(zf_graph *graph);

/* ----------------------------------------------------------------------------------- 4 BUILDERS
 *
 * Every builder returns the new tensor, or the invalid tensor after recording the graph's first
 * error. f32, bf16, f16 and f64 are "float"; operands of one operator have one dtype unless the
 * comment says otherwise. "Broadcasting" is numpy's: shapes are aligned at the last dimension, a
 * dimension 1 is repeated. An axis counts from 0, or from -1 backwards. Saved: what the gradient
 * keeps alive. */

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
    /* bits 8 or 4: it holds such records instead, of dtype u8, and is frozen: a weight of
     * zf_quantized_linear. `shape` is that of the numbers. bits 0: floats */
    zf_quantize_desc quantized;
} zf_param_desc;

/* A trained tensor. Its first value depends on seed, name and the element's index alone, so that it
 * is the same however the tensor is cut. desc NULL: f32 zeros. */
ZF_BUILDER zf_tensor zf_param(zf_graph *graph, const char *name, zf_shape shape,
                              const zf_param_desc *desc);
/* How the numbers of such a parameter are quantised; bits 0: it has floats. */
ZF_API zf_quantize_desc zf_param_blocks(zf_tensor param);
/* The shape of a parameter's numbers. */
ZF_API zf_shape zf_param_shape(zf_tensor param);
/* Numbers to records, as zf_quantize makes them, and back; they are written and read as any values of
 * the parameter. ZF_ERR_ARGUMENT where count is no multiple of the block. */
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
/* One value everywhere */
ZF_BUILDER zf_tensor zf_constant(zf_graph *graph, zf_dtype dtype, zf_shape shape, double value);
/* values[0..zf_shape_count(shape)) are copied. */
ZF_BUILDER zf_tensor zf_values(zf_graph *graph, zf_dtype dtype, zf_shape shape,
                               const double *values);

/* Elementwise, broadcasting. add sub mul div maximum minimum: float or integer; equal less: any ->
 * bool. */
ZF_BUILDER zf_tensor zf_add(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_sub(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_mul(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_div(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_maximum(zf_tensor a, zf_tensor b); /* at a tie the gradient goes to a */
ZF_BUILDER zf_tensor zf_minimum(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_equal(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_less(zf_tensor a, zf_tensor b);
/* condition: bool or u8, a and b: any */
ZF_BUILDER zf_tensor zf_where(zf_tensor condition, zf_tensor a, zf_tensor b);

/* Elementwise, float. */
ZF_BUILDER zf_tensor zf_neg(zf_tensor x);
ZF_BUILDER zf_tensor zf_scale(zf_tensor x, double by);
ZF_BUILDER zf_tensor zf_exp(zf_tensor x);
ZF_BUILDER zf_tensor zf_log(zf_tensor x);
ZF_BUILDER zf_tensor zf_sqrt(zf_tensor x);
ZF_BUILDER zf_tensor zf_rsqrt(zf_tensor x); /* 1 / sqrt(x) */
ZF_BUILDER zf_tensor zf_tanh(zf_tensor x);
ZF_BUILDER zf_tensor zf_sigmoid(zf_tensor x);
ZF_BUILDER zf_tensor zf_relu(zf_tensor x);
ZF_BUILDER zf_tensor zf_gelu(zf_tensor x);      /* x Phi(x), by erf (Hendrycks & Gimpel 2016) */
ZF_BUILDER zf_tensor zf_gelu_tanh(zf_tensor x); /* its tanh approximation (ibid., section 2) */
ZF_BUILDER zf_tensor zf_silu(zf_tensor x);      /* x sigmoid(x) */
ZF_BUILDER zf_tensor zf_softplus(zf_tensor x);  /* log(1 + e^x) */
/* Any to any; rounds to nearest even, float to integer truncates */
ZF_BUILDER zf_tensor zf_cast(zf_tensor x, zf_dtype to);

/* Symmetric quantisation, and the way back; neither has a gradient. x [..., n], n a multiple of the
 * block -> u8 [..., n / block * (bytes of a scale + block bits / 8)] */
ZF_BUILDER zf_tensor zf_quantize(zf_tensor x, const zf_quantize_desc *desc);
/* The same way back, of what has been quantised by the same desc; `to` is a float dtype. */
ZF_BUILDER zf_tensor zf_dequantize(zf_tensor x, zf_dtype to, const zf_quantize_desc *desc);
/* Zeroes each element with probability p, 0 <= p < 1, and scales the others by 1/(1-p). Both use p
 * rounded to a multiple of 2^-16 (if p > 0, from 2^-16 to 1 - 2^-16), so that the expectation is x.
 * The mask is a function of seed, step, the scope, the number of this dropout in it, and the
 * element's global index (16 bits of Philox4x32-10, Salmon et al. 2011): it is computed again for
 * the gradient and never stored. Dropouts of a scope are counted along the operands of what the
 * program shows, as soon as a pass runs, so that the order of calls does not matter. A program
 * compiled with `.evaluate` passes x through. p = 0 gives x itself. */
ZF_BUILDER zf_tensor zf_dropout(zf_tensor x, double p);

/* Shape. */
/* One dimension may be -1: what remains */
ZF_BUILDER zf_tensor zf_reshape(zf_tensor x, zf_shape shape);
ZF_BUILDER zf_tensor zf_transpose(zf_tensor x, int32_t axis_a, int32_t axis_b);
/* out.dims[i] = x.dims[order[i]], rank entries */
ZF_BUILDER zf_tensor zf_permute(zf_tensor x, const int32_t *order);
/* x[start..stop) */
ZF_BUILDER zf_tensor zf_slice(zf_tensor x, int32_t axis, int64_t start, int64_t stop);
/* With zeros */
ZF_BUILDER zf_tensor zf_pad(zf_tensor x, int32_t axis, int64_t before, int64_t after);
ZF_API zf_tensor zf_concat(const zf_tensor *tensors, int32_t count, int32_t axis); /* count >= 1 */
ZF_BUILDER zf_tensor zf_broadcast(zf_tensor x, zf_shape shape);
/* The transpose of broadcast: sums what was repeated */
ZF_BUILDER zf_tensor zf_sum_to(zf_tensor x, zf_shape shape);

typedef struct zf_matmul_desc {
    bool transpose_a, transpose_b; /* of the last two dimensions */
} zf_matmul_desc;

/* out[...,m,n] = sum over k of a[...,m,k] b[...,k,n]; float, ranks >= 2, leading dimensions
 * broadcast; accumulates in f32 (f64 for f64). */
ZF_BUILDER zf_tensor zf_matmul(zf_tensor a, zf_tensor b);
ZF_BUILDER zf_tensor zf_matmul_ex(zf_tensor a, zf_tensor b, const zf_matmul_desc *desc);

typedef struct zf_reduce_desc {
    int32_t axis;
    bool keep; /* keep the axis as a dimension 1 */
} zf_reduce_desc;

/* Reductions over every element, to a scalar; _ex over one axis. Float. The order of additions is
 * fixed. */
ZF_BUILDER zf_tensor zf_sum(zf_tensor x);
ZF_BUILDER zf_tensor zf_sum_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_mean(zf_tensor x);
ZF_BUILDER zf_tensor zf_mean_ex(zf_tensor x, const zf_reduce_desc *desc);
ZF_BUILDER zf_tensor zf_max(zf_tensor x); /* equal maxima share the gradient */
ZF_BUILDER zf_tensor zf_max_ex(zf_tensor x, const zf_reduce_desc *desc);
/* i32, the first of equal ones; no gradient */
ZF_BUILDER zf_tensor zf_argmax_ex(zf_tensor x, const zf_reduce_desc *desc);

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

/* weight * sum over rows of -log softmax(logits)[label]; rows with label -100 are ignored. logits
 * [n,classes] float, labels [n] i32 or i64, weight a scalar f32. With the weight 1 / (labelled rows
 * of the global batch), the loss is the mean over all labelled rows, whatever the number of ranks
 * and micro-batches. weight ZF_NONE: 1 / max(1, labelled rows of these labels). */
ZF_BUILDER zf_tensor zf_cross_entropy(zf_tensor logits, zf_tensor labels, zf_tensor weight);

/* Layers that are one node each, with gradients of their own. zf_fuse makes some of them of plain
 * nodes, where it recognises these; the builders say what is meant. */

/* x weight^T + bias, as PyTorch's functional.linear: x [..., in], weight [out, in], bias [out] or
 * ZF_NONE. zf_fuse joins projections of one x, and takes an activation behind it into the node. */
ZF_BUILDER zf_tensor zf_linear(zf_tensor x, zf_tensor weight, zf_tensor bias);

/* The same with a frozen weight that is the result of zf_quantize of [out, in] by the same desc: u8.
 * Only a tile of it at a time is floats. Its gradient is that of x and of the bias. zf_fuse takes
 * it, as the head of a model, together with the loss. */
ZF_BUILDER zf_tensor zf_quantized_linear(zf_tensor x, zf_tensor weight, zf_tensor bias,
                                         const zf_quantize_desc *desc);

/* silu(gate) * up (Shazeer 2020), of one shape. up ZF_NONE: the rows of gate [..., 2 n] hold both,
 * gate first; the result is [..., n]. Saved: gate and up. */
ZF_BUILDER zf_tensor zf_swiglu(zf_tensor gate, zf_tensor up);

typedef struct zf_attention_desc {
    int64_t heads; /* of q; 0: 1 */
    /* Heads of k and v, a divisor of heads: head j of q reads head j / (heads / kv_heads)
     * (Ainslie et al. 2023). 0: heads */
    int64_t kv_heads;
    double scale;   /* of the scores; 0: 1 / sqrt(width of a head) */
    double dropout; /* of the probabilities */
    /* Query m of M sees key n of N where n <= m + N - M: for M = N, itself and what is before it.
     * What is not seen is not computed */
    bool causal;
    /* Of causal attention: query m sees the last `window` keys of these alone. 0: all */
    int64_t window;
    /* Broadcasts to [B, heads, M, N], and gets no gradient. bool or u8: a key that is 0 is not
     * seen; else it is of q's dtype and added to the scaled scores. ZF_NONE: none */
    zf_tensor mask;
    /* Generation: two zf_cache [B, C, width of k], which hold keys and values of `past` earlier
     * tokens of each example (i32 or i64 [B]). Of the M tokens of q, k and v the first `count` (the
     * same) are new, and those behind padding, whose result is 0. New keys and values are added to
     * the caches; then new query m sees the keys 0 to past + m of these. More than C tokens of an
     * example are an error of the step. Causal; without mask, dropout and gradient. ZF_NONE: none
     * of the four */
    zf_tensor k_cache, v_cache, past, count;
    /* Of caches with a window W: token t of an example is in their row t mod C, so that texts may be
     * longer than C, a multiple of 64 and at least W - 1 + M */
    bool ring;
} zf_attention_desc;

/* softmax(scale q k^T + mask) v of each head (Vaswani et al. 2017), of which no [M,N] matrix is
 * ever in memory (Dao et al. 2022). q [B, M, H], k and v [B, N, H kv_heads / heads], heads side by
 * side in the last dimension; the result is [B, M, H]. k and v ZF_NONE: q holds all three, [B, T, H
 * + 2 H kv_heads / heads], of each token first q, then k, then v. A query that sees no key gives 0.
 * Saved: the result, and a number for each row of scores. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_attention(zf_tensor q, zf_tensor k, zf_tensor v,
                                  const zf_attention_desc *desc);

typedef struct zf_residual_desc {
    double dropout; /* of x + bias */
    zf_tensor bias; /* [n], or ZF_NONE */
    double eps;     /* 0: 1e-5; ZF_ZERO: 0 */
    /* Gets residual + dropout(x + bias) as a value of its own: the next residual in a pre-norm
     * model. In 16 bits the norm is then of that rounded value. NULL: not needed */
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
    /* Those of a wavelength 2 pi / f above original / low_factor are f / factor, those below
     * original / high_factor stay, and between them they go from one to the other (Llama 3.1) */
    ZF_ROPE_LLAMA3
} zf_rope_scaling;

typedef struct zf_rope_desc {
    int64_t heads; /* 0: 1 */
    double theta;  /* 0: 10000 */
    zf_rope_scaling scaling;
    double factor;                  /* 0: 8 */
    double low_factor, high_factor; /* 0: 1 and 4 */
    int64_t original; /* tokens that the model was trained with before; 0: 8192 */
    /* i32 or i64, [T], or x's shape without H; ZF_NONE: 0, 1, ... T - 1 */
    zf_tensor positions;
} zf_rope_desc;

/* Rotary positions (Su et al. 2021) of x [..., T, H], heads side by side, in the form of Llama: of
 * a head's halves (a, b), (a cos - b sin, b cos + a sin), the angle of element i being position *
 * theta^(-2 i / d), d the width of a head, in f32. desc NULL: defaults. */
ZF_BUILDER zf_tensor zf_rope(zf_tensor x, const zf_rope_desc *desc);
/* Frequency i of heads of `width`, 0 <= i < width / 2, scaled. */
ZF_API double zf_rope_frequency(const zf_rope_desc *desc, int64_t width, int64_t i);

/* Keeps the value readable (zf_read) after each step, under `name`. Returns x. */
ZF_BUILDER zf_tensor zf_output(zf_tensor x, const char *name);

/* For layers of one's own: records a misuse as the graph's error, with scope and line; returns the
 * invalid tensor. */
ZF_BUILDER zf_tensor zf_fail(zf_tensor x, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Used by the macros at the end of this header: they note where a builder was called, for error
 * messages. */
ZF_API zf_tensor zf_at(zf_tensor x, const char *file, int line);
ZF_API zf_graph *zf_graph_at(zf_graph *graph, const char *file, int line);

/* ------------------------------------------------------------------------------------- 5 PASSES
 *
 * A pass checks that it is called in its order, rewrites the graph, and verifies the result. Node
 * ids are never renumbered. All return ZF_OK or the graph's first error. */

/* LoRA (Hu et al. 2021): the parameters that are there are frozen, and products with the weights of
 * target modules get a trained product of low rank beside them: with a weight [out, in] of module M,
 * x weight^T becomes
 *
 *     x weight^T + alpha / rank (dropout(x) A^T) B^T
 *
 * A is the parameter M.lora_A.weight [rank, in], uniform within 1 / sqrt(in); B is M.lora_B.weight
 * [out, rank], zeros, so that training begins with the results of the base. The module of a
 * parameter "M.weight" is M; of any other parameter it is the whole name. A weight may also be [in,
 * out] (zf_matmul). A bias stays with its product. Frozen parameters have no gradients and no states,
 * and are not reduced; zf_zero and zf_offload shard, gather and move them as others.
 *
 * A weight may be one of records (zf_param_desc.quantized), of zf_quantized_linear (QLoRA, Dettmers
 * et al. 2023): of such, a tile at a time is floats, forward and backward.
 *
 * A program that evaluates, or generates, runs the same pass over its graph, or has the products
 * added to the weights (zf_lora_merge), if these are floats.
 *
 * Requires: the forward graph, before zf_fuse. desc NULL: defaults. */
typedef struct zf_lora_desc {
    int64_t rank; /* 0: 8 */
    double alpha; /* 0: rank */
    bool rslora;  /* alpha / sqrt(rank) instead (Kalajdzievski 2023) */
    double dropout;
    /* Modules, by their whole names or by what stands behind a dot in them, with commas between;
     * each must be found. NULL, or "all-linear": all that are weights of products, but not those of
     * the last product, which only losses and outputs read */
    const char *targets;
} zf_lora_desc;
ZF_API zf_status zf_lora(zf_graph *graph, const zf_lora_desc *desc);

/* Mixed precision (Micikevicius et al. 2018): a graph of f32 computes in bf16 or f16. Parameters
 * and activations get that dtype, and the optimizers update f32 master weights beside it. Losses
 * and their weights, statistics, and what the program writes and reads besides parameters stay f32.
 * Products add in f32 in any case.
 *
 * With a loss scale, the loss is multiplied by the scale before the backward pass, which keeps
 * small gradients from being rounded to zero in f16. zf_clip and the optimizers divide by it, in
 * f32. A step in which a gradient is non-finite, on any rank, is skipped: parameters and optimizer
 * states do not change. From the hysteresis-th overflow on, each overflow divides the scale by
 * `factor`; an overflow at min_scale is the step's error, ZF_ERR_NAN. When `window` finite steps
 * have followed the first one after the last overflow, the scale is multiplied by `factor` and the
 * hysteresis is restored. Outputs "loss_scale" and "skipped_steps" (i64) are states, which
 * checkpoints hold. zf_gradient's values are multiplied by the scale.
 *
 * Requires: zf_autograd not run yet; before or after zf_fuse. desc NULL: nothing. */
typedef struct zf_precision_desc {
    zf_dtype dtype;     /* ZF_BF16 or ZF_F16; ZF_F32: dtypes stay */
    double scale;       /* the first loss scale; 0: 65536 of f16, else none; ZF_ZERO: none */
    double factor;      /* 0: 2; 1: the scale is constant, and steps are only skipped */
    int64_t window;     /* 0: 1000 */
    int32_t hysteresis; /* the overflow that first divides the scale; 0: 2 */
    double min_scale;   /* 0: 1 */
    bool consecutive_hysteresis; /* any finite step restores the hysteresis */
} zf_precision_desc;
ZF_API zf_status zf_precision(zf_graph *graph, const zf_precision_desc *desc);

/* Tiling of large operators (ZeRO-Infinity, Rajbhandari et al., SC'21, section 5.1.3): a linear layer
 * whose weight takes more than `bytes` becomes several over ranges of its output features, forward
 * and backward. Each range of the weight's rows is a piece, with a gradient, states and a bucket of
 * its own, so that zf_zero (stage 3) and zf_offload bring one piece at a time. Weights are [features,
 * inputs], as zf_linear, zf_nn_linear and zf_matmul_ex with transpose_b take them. The table of an
 * embedding is cut too, also where the output layer uses it again; what anything else reads stays
 * whole. Pieces have a multiple of 1024 elements, whatever the limit.
 *
 * A layer of logits in pieces keeps all logits of a micro-batch, and their gradient, which
 * the fused loss does not: tiling it pays where a micro-batch has fewer labels than half the width.
 *
 * The gradient with respect to the layer's input is added in another order; in 16 bits it is rounded
 * once for each piece. On the CPU no other bits change, and those of a tiled graph are the same at
 * every stage and with every offload. passes/tile.c derives it.
 *
 * The weight keeps its name for zf_graph_find, zf_param_at, zf_read, zf_write and stores; checkpoints
 * with and without tiling are the same. In the text its pieces are "NAME[FIRST:LAST]", by rows.
 * zf_gradient has no gradient of a weight in pieces. All programs over one store must be tiled
 * alike. Requires: zf_autograd not run yet; after zf_fuse and zf_precision. desc NULL: nothing. */
typedef struct zf_tile_desc {
    size_t bytes; /* of a weight, or a piece, at most; 0: nothing is tiled */
} zf_tile_desc;
ZF_API zf_status zf_tile(zf_graph *graph, const zf_tile_desc *desc);

/* Appends the gradient of `loss` (a scalar) with respect to every parameter that is not frozen and
 * that it depends on, one `gradient param, value` node each, and an output "loss". Requires: not
 * run before. */
ZF_API zf_status zf_autograd(zf_graph *graph, zf_tensor loss);
/* After zf_autograd: the gradient of a parameter as the passes so far have made it, or the invalid
 * tensor where it has none, without making it an error. */
ZF_API zf_tensor zf_gradient(zf_graph *graph, zf_tensor param);

/* Removes nodes that no output, gradient or update needs (so it comes after zf_autograd, unless the
 * loss is an output), merges equal nodes, folds constants, and removes pairs of inverse operators.
 */
ZF_API zf_status zf_simplify(zf_graph *graph);

/* Scales every gradient by 1 / max(1, (norm + 1e-6) / max_norm), norm over all of them, and adds an
 * output "grad_norm" (before the scaling). max_norm <= 0 or infinite: the output alone. Requires:
 * zf_autograd; no optimizer yet. */
ZF_API zf_status zf_clip(zf_graph *graph, double max_norm);

/* Optimizers: one update per parameter that has a gradient. `lr` is a scalar f32. Weight decay is
 * decoupled (added to the update; for SGD to the gradient) and applies to parameters of rank >= 2,
 * so not to biases and norms, unless decay_all. A bf16 or f16 parameter is updated in f32: its
 * master weights are a state, which starts as the first value in f32; the parameter is the master
 * weights, rounded. Requires: zf_autograd; one optimizer per graph. desc NULL: defaults. */
typedef struct zf_sgd_desc {
    double momentum; /* 0 */
    bool nesterov;
    double weight_decay; /* 0 */
    bool decay_all;
} zf_sgd_desc;
ZF_API zf_status zf_sgd(zf_graph *graph, zf_tensor lr, const zf_sgd_desc *desc);

/* AdamW (Loshchilov & Hutter 2019), with bias correction. Defaults of 0; ZF_ZERO: 0. */
typedef struct zf_adamw_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
} zf_adamw_desc;
ZF_API zf_status zf_adamw(zf_graph *graph, zf_tensor lr, const zf_adamw_desc *desc);

/* LAMB (You et al. 2020): u = m^/(sqrt(v^) + eps) + wd p; r = |p| / |u|, clamped, 1 where a norm is
 * 0; p -= lr r u. */
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

/* Lion (Chen et al. 2023): p -= lr (sign(beta1 m + (1 - beta1) g) + wd p); m = beta2 m + (1 -
 * beta2) g. Its lr is about a tenth of AdamW's, and its weight_decay ten times. */
typedef struct zf_lion_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.99 */
    double weight_decay; /* 0 */
    bool decay_all;
} zf_lion_desc;
ZF_API zf_status zf_lion(zf_graph *graph, zf_tensor lr, const zf_lion_desc *desc);

/* 1-bit Adam (Tang et al. 2021). Steps up to freeze_step, the warm-up, are AdamW's to the last bit.
 * Behind it the variance v stays as it is, and instead of gradients the ranks average momentum, as
 * signs. With g_r, the gradient of rank r's part of the batch, on each rank, and for the shard of
 * which it is the server:
 *
 *     c = beta1 m + (1 - beta1) g_r + e       q = sign(c), s = |c| / sqrt(n); e = c - s q
 *     C = mean of s q over the ranks + E      Q = sign(C), S = |C| / sqrt(n); E = C - S Q
 *     m = S Q of all servers                  p -= lr (a + wd p)
 *     a = m^ / (sqrt(v^) + eps), within [-limit, limit]
 *
 * There is one scale s for each block of 1024 elements of a tensor, n of them in its last block, so
 * that a block is sent in 132 bytes, and bits depend neither on buckets nor on the stage. sign(0)
 * is 1. m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^freeze_step) are AdamW's corrections; the
 * paper's formulas have none. Of w ranks each sends 2 (w - 1) / w * 132 / 1024 bytes an element, at
 * stages 1 and 2 updated parameters as well, and in the warm-up m, which each rank has whole. Bits
 * depend on the number of ranks, and on which examples each has.
 *
 * The errors are states: e of each rank, and E in shards at every stage. A checkpoint that is loaded
 * by another number of ranks: each begins with the mean of all e, which keeps their mean, and E is
 * cut anew. ZeRO stages 0 to 2 with nodes = 1, no zf_offload and no loss scale: all else is an error.
 *
 * Behind the warm-up no rank has the mean of the gradients, so that zf_clip cannot have its norm.
 * Each rank clips its own gradient, and takes |g_r| / sqrt(w) for the norm, which "grad_norm" is
 * too: that of the mean if the g_r are orthogonal, as the noise of different examples is nearly. It
 * is less where they agree: down to 1 / sqrt(w) of the norm. |g_r| itself would be up to sqrt(w)
 * times the norm that v has been made with, and shorten all steps as much.
 *
 * All elements of a block have one scale, and their variances differ: those of a word that is rare
 * or has not been seen, beside one that is common. Without the limit, which the paper does not
 * have, S / sqrt(v^) moves the first by many times lr, back and forth, and the loss rises. An
 * element whose variance is 0 had no gradient in the warm-up; it is not updated, but for weight
 * decay.
 *
 * DeepSpeed's implementation (0.19) has no corrections and no limit, as the paper, one scale for all
 * of a tensor that a rank or server has, padding counted, and refuses ZeRO. It differs from the paper: its
 * first step makes no update; errors are 0 after a checkpoint is loaded; elements without variance
 * are moved by s / eps, unless the program gives a mask of them. */
typedef struct zf_onebit_adam_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
    /* The last step of the warm-up, for example a fifth of all; 0: 100000 */
    int64_t freeze_step;
    /* The most by which a compressed step moves an element, in multiples of lr. AdamW moves by 1
     * where gradients are all equal, and by less elsewhere. 0: 1; INFINITY: no limit, as in the
     * paper */
    double limit;
    /* Which of the two steps the pass appends (zf_variant_count): 0 that of the warm-up, 1 the
     * compressed one */
    int32_t variant;
} zf_onebit_adam_desc;
ZF_API zf_status zf_onebit_adam(zf_graph *graph, zf_tensor lr, const zf_onebit_adam_desc *desc);

/* 1-bit LAMB (Li et al. 2021). Steps up to freeze_step, the warm-up, are LAMB's to the last bit.
 * They also average the ratio r of each tensor: c = coeff_beta c + (1 - coeff_beta) r. Behind it
 * momentum is averaged as signs, as by zf_onebit_adam; v and c stay as they are, and c is scaled by
 * the change of the variance since then:
 *
 *     g = (m - beta1 m_before) / (1 - beta1)   the gradient of which the averaged momentum is made
 *     f = beta2 f + (1 - beta2) g^2            the fresh variance, which begins as v
 *     k = max of (sqrt(v^) + eps) / (sqrt(f^) + eps) over the tensor's elements, within
 *         [min_factor, max_factor], and within (1 - factor_change) and (1 + factor_change) times
 *         the k of the step before, which begins as 1
 *     p -= lr c^ k (a + wd p), a as for zf_onebit_adam
 *
 * c^ is c without the 0 from which it begins: c / (1 - coeff_beta^freeze_step). v^, f^ and m^ are
 * corrected as AdamW's are; the paper's formulas have no corrections. The paper sends all tensors
 * as one with one scale, and so multiplies the momentum of each, before compression, by the
 * tensors' mean RMS / its own RMS, and divides it afterwards. Here each block of 1024 elements has
 * a scale of its own, and no block belongs to two tensors, so that this factor would cancel: it is
 * left out. What zf_onebit_adam says of bytes, errors, clip, other worlds, elements without
 * variance and what is refused is true here.
 *
 * DeepSpeed's implementation (0.19) differs from the paper as that of 1-bit Adam does, and: a ratio
 * that is exactly 1 is not averaged; a checkpoint that is loaded in the warm-up begins the averages
 * anew; k of tensors with weight decay is moved towards 1, by the share of the decay in the
 * update's norm; a tensor whose momentum is 0 at the end of the warm-up gets an infinite factor
 * before compression. */
typedef struct zf_onebit_lamb_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-6 */
    double weight_decay; /* 0 */
    double min_coeff; /* 0.01 */
    double max_coeff; /* 10 */
    bool decay_all;
    double coeff_beta; /* 0.9 */
    double min_factor; /* 0.5 */
    double max_factor; /* 4 */
    double factor_change; /* 0.1 */
    int64_t freeze_step; /* as in zf_onebit_adam_desc */
    double limit;        /* likewise */
    int32_t variant;     /* likewise */
} zf_onebit_lamb_desc;
ZF_API zf_status zf_onebit_lamb(zf_graph *graph, zf_tensor lr, const zf_onebit_lamb_desc *desc);

/* 0/1 Adam (Lu et al. 2022), at ZeRO stage 0, without local steps also at 1 and 2. It has no
 * warm-up. A step is one of three variants:
 *
 *     refresh   g is averaged in full, m = beta1 m + (1 - beta1) g, and v by g^2 likewise
 *     sync      each rank adds lr m_r, m_r of its own gradient, to u_r; the u_r are averaged as signs
 *               (zf_onebit_adam) to u; m = u / (sum of these lr), within limit (sqrt(v) + eps);
 *               p -= (sum of these lr) m / (sqrt(v) + eps), m_r = m, u_r = 0
 *     local     each rank adds to u_r, which stays within limit (sqrt(v) + eps) times the sum of the
 *               interval's lr; nothing is sent but the losses
 *
 * The first step is a refresh; the distance to the next is 1, var_update_scaler times, then as often
 * 2, 4, ..., until var_freeze_step. Between these are syncs, and behind it every interval of
 * steps ends with one: those that begin in local_step_scaler steps have 1, in as many 2, 4, ... up to
 * local_step_clipper. In an interval each rank computes with p - u_r / (sqrt(v) + eps), a value of
 * the step; p itself, m and v stay equal on all ranks, and are what checkpoints and evaluation have.
 * Weight decay is that of p, with the sum of the interval's rates, at its end. v is corrected for the
 * 0 from which it begins, as AdamW's is: v += (g^2 - v) (1 - beta2) / (1 - beta2^k) in refresh k. The
 * paper's is not, so that steps are 1 / sqrt(1 - beta2^k) times as large, 3.6 after 80 refreshes. m
 * is not corrected, and the paper's eps is inside the root. What zf_onebit_adam says of scales,
 * errors, clip, other worlds, elements without variance and what is refused is true here.
 *
 * Without local steps (local_step_clipper = 1) there are two variants. u_r is 0 and m_r is m where a
 * step begins, so neither is a state, and each rank computes with p. The limit is then that of
 * zf_onebit_adam: of what p moves by, while m itself is not within it. ZeRO stages 1 and 2 shard v and
 * the master weights, and the update of p, as for zf_onebit_adam. Checkpoints of runs with local
 * steps have u_r and m_r too, so they are not loaded by runs without, nor the other way round.
 *
 * With local steps, stages 1 and 2 are an error. They shard what is equal on all ranks and read by
 * the update alone. Here each rank computes with p - u_r / (sqrt(v) + eps), and so reads all of p (or
 * of its master weights) and of v in every micro-batch; u_r, m_r and its errors are its own. Only m
 * would be left to shard.
 *
 * DeepSpeed's implementation (0.19) refuses ZeRO, and differs from the paper: its first step makes
 * no update; it refreshes at steps that the distance divides; between refreshes it averages
 * gradients as signs, and not sums of updates; at var_freeze_step errors begin anew, since they
 * were those of gradients; averages come at steps that the interval divides; weight decay is in the
 * sums that are averaged, and so in the momentum made of them; p is brought back by adding what was
 * subtracted, with rounding; a checkpoint that is loaded loses errors and the sums of an open
 * interval. */
typedef struct zf_zero_one_adam_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
    int64_t var_freeze_step;    /* 0: 100000 */
    int64_t var_update_scaler;  /* 0: 16, for some 100,000 steps; a short run learns more with a
                                 * twentieth of its steps */
    int64_t local_step_scaler;  /* 0: 32768 */
    int64_t local_step_clipper; /* 0: 16; 1: no local steps, as stages 1 and 2 need */
    double limit; /* as in zf_onebit_adam_desc */
    int32_t variant; /* which step is appended: 0 refresh, 1 sync, 2 local (zf_variant_count) */
} zf_zero_one_adam_desc;
ZF_API zf_status zf_zero_one_adam(zf_graph *graph, zf_tensor lr, const zf_zero_one_adam_desc *desc);

/* Delayed updates (ZeRO-Offload, Ren et al., ATC'21): from the program's second step on, a step
 * updates by the gradients of the step before, which states "delay.gradient/PARAM" keep, with its
 * own learning rate; its first step makes no update. So updates need not wait for gradients, and run
 * beside the computation of the next ones (zf_offload, zf_prefetch). This changes what is learned,
 * but with zf_offload and without it in the same way, to the last bit. The gradients of the last
 * step are left unused. Requires: an optimizer of this library; before zf_zero. */
ZF_API zf_status zf_delay(zf_graph *graph);

/* When the rewrite `invert` is applied. */
typedef enum zf_invert {
    ZF_INVERT_ALWAYS,
    /* By zf_passes where the plan without it exceeds zf_training.memory_limit (never where that is
     * 0), since it saves memory and costs time. By zf_fuse itself, always */
    ZF_INVERT_AS_NEEDED
} zf_invert;

/* Merges nodes into fused ones, with less memory and memory traffic. Before zf_autograd it fuses
 * the forward pass, whose gradients are then fused too; called a second time after the optimizer it
 * fuses gradients and updates. Each rewrite has a name and can be left out:
 *
 *     linear     product, bias, activation
 *     swiglu     silu of one value times another
 *     qkv        projections of one input, as one product; the weights are neighbours in memory
 *     attention  products, mask, softmax and dropout, online: no matrix of tokens by tokens
 *     softmax    scale, mask, softmax and dropout, where `attention` does not apply
 *     norm       bias, dropout, residual and LayerNorm or RMSNorm
 *     embedding  word, type and position embeddings, LayerNorm and dropout
 *     head       logits, cross-entropy and argmax, in tiles: the whole logits are never in memory
 *     accumulate a product that is added to a value starts from that value
 *     sums       gradients of biases before `norm`, gelu, silu and packed attention, computed by
 *                the gradients of these
 *     invert     the backward pass recomputes activations and inputs of LayerNorm from results
 *     update     clipping and update
 *     chain      elementwise nodes one after the other, as one loop
 *
 * passes/fuse.c gives for each the nodes before and after, and whether bits change. Before
 * zf_autograd it also reports near misses: nodes that a rewrite would take but for one thing, and
 * what that is (passes/fuse_miss.c). desc NULL: all, and no reports. */
typedef struct zf_fuse_miss {
    const char *rewrite;    /* "attention" */
    int32_t node;           /* as the text numbers nodes, after the pass */
    const char *op, *scope; /* the node's; scope "" at the top */
    const char *file;       /* where it was built, NULL: not known */
    int line;
    const char *text; /* what is in the way; lives until the call returns, as the rest */
} zf_fuse_miss;
/* Writes "# near miss: REWRITE in SCOPE (FILE:LINE): %NODE = OP: TEXT" and a line end to a FILE:
 * for zf_fuse_desc.miss, with .user the file. */
ZF_API void zf_fuse_miss_print(void *file, const zf_fuse_miss *miss);

typedef struct zf_fuse_desc {
    /* Names of rewrites to leave out, separated by commas; "all": every one; NULL: none */
    const char *without;
    zf_invert invert;
    /* Embeddings and output layers with tables and weights of more bytes are left as they are, so
     * that zf_tile can cut these; 0: all are fused. By zf_passes, if it is 0, zf_tile_desc.bytes */
    size_t tile_bytes;
    /* Called for each near miss; it must not touch the graph. NULL: not; by zf_passes with
     * zf_training.print, zf_fuse_miss_print */
    void (*miss)(void *user, const zf_fuse_miss *miss);
    void *user;
} zf_fuse_desc;
ZF_API zf_status zf_fuse(zf_graph *graph, const zf_fuse_desc *desc);
/* The name of a rewrite, 0 and up; NULL behind the last */
ZF_API const char *zf_fuse_name(int32_t index);

/* ZeRO (Rajbhandari et al., SC'20): the step of one rank becomes that of each of `world` ranks. The
 * global batch is world * micro_batches equal parts; rank r runs part k * world + r as its
 * micro-batch k. The ranks hold equal shards of:
 *
 *     stage 0   nothing; gradients are summed over the ranks
 *     stage 1   optimizer states
 *     stage 2   and gradients
 *     stage 3   and parameters, which are gathered before each run of uses
 *
 * Losses, gradients, parameters and states are those of stage 0 to the last bit, and those of any
 * other world in which world * micro_batches is the same. Scalar floats that zf_output keeps of
 * what the micro section computes are sums over the global batch: weight a loss with 1 / (examples
 * of the global batch). Requires: where there are gradients, an optimizer; not run before. desc
 * NULL: one rank.
 *
 * Several nodes. With `nodes` the ranks are a mesh of two axes, node and local: rank r is place r %
 * local of node r / local. Collectives then run over one axis after the other, so that between
 * nodes go world / nodes times fewer bytes than where each rank sends to each:
 *
 *     all_gather       over node, then over local
 *     reduce_scatter   over local, then over node
 *     all_reduce       reduce_scatter over local, all_reduce over node, all_gather over local
 *
 * Rank r has shard (r % local) * nodes + r / local, so that what each gather gives lies in one
 * piece. Sums have one order for each number of ranks in a node: in each micro-batch the ranks of a
 * node are added in their order, and these sums, rounded to the dtype of the gradients, are added in
 * the order of nodes to what the micro-batches before left. Where there is one node, or one rank in
 * each, the order is that of ranks, and everything is as without `nodes`. So with several nodes the
 * bits are those of any other number of nodes and micro-batches of the same product, with as many
 * ranks in a node. */
typedef struct zf_store zf_store; /* section 7 */
typedef struct zf_zero_desc {
    int32_t stage; /* 0, 1, 2 or 3 */
    int32_t world; /* ranks; 0: 1 */
    int64_t micro_batches; /* of a step, on each rank; 0: 1 */
    int32_t nodes; /* in which the ranks are, world / nodes in each; 0: 1 */
    /* Stage 3 (ZeRO++, Wang et al. 2023): the ranks of a node together keep a copy of the
     * parameters from the forward to the backward pass, whose gathers then stay inside the node.
     * No bit changes; the copies are in the plan, 1 / (ranks in a node) of the parameters on each
     * rank */
    bool hpz;
    /* Stages 1 to 3 (MiCS, Zhang et al. 2022): what the stage shards is sharded over the ranks of a
     * node, and each node has all of it. Gathers stay inside the node; of sums each rank sends its
     * shard to other nodes. No bit changes */
    bool mics;
    /* Stage 3 (ZeRO++, qwZ): parameters are gathered as integers of 8 bits (zf_quantize_desc), 1 /
     * 2 of the bytes of bf16. Each rank quantises its shards at the beginning of a micro-batch, so
     * that forward and backward pass use the same values; what the optimizer updates is not
     * rounded */
    bool quantized_weights;
    /* Stages 1 to 3 (ZeRO++, qgZ): gradients are sent as integers of 4 bits, 1 / 4 of the bytes of
     * bf16, and added in f32 in the order of ranks: inside a node, then, quantised again, between
     * nodes. With mics the nodes add a part of each shard each, and once in a step send each other
     * the sums in 8 bits. The loss and other scalars are not quantised */
    bool quantized_gradients;
    /* With quantized_gradients (LoCo, Xie et al. 2024): what a rank rounds off a gradient it adds to
     * its next gradient, that of the next micro-batch or step. For each exchange h = gradient + e is
     * quantised, r is what that rounds off h, and e = loco_beta e + (1 - loco_beta) r. e is a state,
     * "loco.error/w", f32 of each rank for all elements of a parameter; with several nodes also
     * "loco.between/w", for the exchange between them, of each node, sharded over its ranks. A block
     * with a non-finite number keeps its e. Before step 1 and every loco_reset steps, and after a
     * step that failed or began anew, e is 0. A checkpoint of another number of ranks or nodes gives
     * each an equal part of the sum of e; e is 0 where it has none, and is left out where the new
     * run has none. So bits depend on how a batch is split into ranks and micro-batches. With a loss
     * scale e is that of gradients without it, and is 0 behind a step that was skipped. Not with
     * zf_tile.
     *
     * With loco_bits=8 e is kept in records of 8 bits (zf_quantize_desc), in blocks as the gradients
     * and with scales of f32: a byte of each element and a scale of each block. e is then 0 after a
     * checkpoint of another number of ranks or nodes, of another quantized_block or other bits.
     *
     * The paper keeps e in 8 bits. DeepSpeed (0.16; later releases have removed it) does so too, and
     * computes it in f16; it has it for stage 3 on several nodes alone; it sends gradients of one
     * dimension, and those whose elements 2 x ranks does not divide, as they are; and for the reset
     * it counts tensors instead of steps, and resets one of them */
    bool loco;
    double loco_beta;   /* in [0, 1); 0: 0.8; ZF_ZERO: 0, which loses nothing */
    int64_t loco_reset; /* 0: 1024; -1: never */
    int32_t loco_bits;  /* 32 or 8, of an element of e; 0: 32 */
    int32_t quantized_block;  /* as zf_quantize_desc.block; shards are padded to it; 0: 256 */
    zf_dtype quantized_scale; /* as zf_quantize_desc.scale */
    /* Maximum bytes of a bucket, which ends where a scope ends; 0: the size of the largest numbered
     * scope ("layer.7"), from 1 to 256 MiB */
    size_t bucket_bytes;
    /* Parameters that this store holds keep their buckets; NULL: none */
    const zf_store *store;
} zf_zero_desc;
ZF_API zf_status zf_zero(zf_graph *graph, const zf_zero_desc *desc);

/* ZeRO-Offload (Ren et al., ATC'21), ZeRO-Infinity (Rajbhandari et al., SC'21): parameters, states,
 * gradients and values of the forward pass lie in host memory or on a disk, and are copied to the
 * device while it uses them. Losses, gradients, parameters and states stay the same, to the last
 * bit where the device is a CPU. ZF_DISK: in a file (zf_store_desc.offload_dir), from which values are read by way of host memory.
 * Requires: zf_zero; before zf_prefetch. desc NULL: everything stays on the device.
 *
 * With zf_prefetch and one micro-batch, updates run during the backward pass: states are read while
 * gradients are computed, and a bucket is updated as soon as its gradient is in host memory;
 * parameters that the backward pass has read from a disk are not read again for that. The
 * update section then begins after the forward pass, when all scalar outputs of the micro section
 * (the loss) have been checked; without such an output nothing overlaps. The norm of zf_clip, and
 * the check for a skipped step of f16, need all gradients, so they end with the backward pass; with
 * these only reads overlap it. The norm is computed where gradients are summed.
 *
 * On CUDA the host memory is pinned, and zf_store_desc.host updates while the device goes on: both
 * in the step's CUDA graphs, as many as without offload. */
typedef struct zf_offload_desc {
    /* The states of the optimizer, master weights among them. Updates are computed in host memory:
     * gradients go there, and updated parameters come back */
    zf_space optimizer;
    /* Parameters: a bucket is copied to the device for each run of its uses, and released after it.
     * At stage 3 each rank copies its shard. Not possible at stages 1 and 2 with several ranks */
    zf_space parameters;
    /* ZF_HOST: gradients go to host memory when they are summed. With several micro-batches their
     * sums lie there: of each bucket what the stage leaves to this rank, its shard or the whole. On
     * one rank they are added there; on several a sum is on the device while the ranks add to it.
     * ZF_DISK: from there they go to the disk, and come back for the next micro-batch's sum and for
     * the update, which reads them in pieces. With one micro-batch zf_prefetch leaves in host memory
     * those for which its budget host_bytes has room until they are updated: where updates run
     * during the backward pass, that is most of them, and nothing is written. With zf_delay the
     * gradients kept for the next step lie in host memory if the states are offloaded, else on the
     * device */
    zf_space gradients;
    /* What the backward pass reads of the forward pass: it goes to host memory, and from there to the
     * disk, after its last use in the forward pass, and comes back before its first use in the
     * backward pass. With zf_recompute that is what enters each layer. The disk space that a program
     * takes for that is the store's until this is freed */
    zf_space activations;
    /* Of parameters and activations: buckets and values of at most so many bytes stay on the
     * device */
    size_t keep_bytes;
    /* Updates of buckets with copies of parameters or states run in pieces: a copy has at most so
     * many bytes as f32, but at least 4096. 0: 16 MiB where states or parameters lie on a disk, else
     * no pieces. With zf_prefetch pieces are read and written while others are updated, within its
     * budgets */
    size_t piece_bytes;
} zf_offload_desc;
ZF_API zf_status zf_offload(zf_graph *graph, const zf_offload_desc *desc);

typedef struct zf_backend zf_backend; /* section 6 */
typedef struct zf_comm zf_comm;       /* section 6 */

/* The speeds of a machine, by which passes choose between plans, and zf_graph_estimate foretells
 * the time of a step. */
typedef struct zf_cost {
    double flops_per_s;      /* of matrix products, on one rank; */
    double half_flops_per_s; /* where operands have 16 bits; 0: the same */
    double bytes_per_s;      /* of memory, by everything; */
    /* 16-bit values, which are converted or packed. The longer of the two times counts; 0:
     * bytes_per_s / 2 */
    double half_values_per_s;
    double functions_per_s;  /* exponentials and others (zf_launch_functions); 0: bytes_per_s / 8 */
    double link_bytes_per_s; /* that a rank sends, */
    double link_latency_s;   /* of a collective: inside a node, or where there is only one */
    /* The same between nodes; where bytes per second are 0, both are those of the link */
    double between_bytes_per_s, between_latency_s;
    /* Of zf_offload: bytes read and written by updates in host memory; copies from the device to
     * host memory and back, from the disk to host memory and back. Where bytes per second are 0,
     * they and the latency are those of zf_cost_default */
    double host_bytes_per_s;
    double download_bytes_per_s, download_latency_s; /* device to host */
    double upload_bytes_per_s, upload_latency_s;     /* host to device */
    double read_bytes_per_s, read_latency_s;         /* disk to host */
    double write_bytes_per_s, write_latency_s;       /* host to disk */
    /* The part of computing on the device, 0 to 1, that is lost while such a copy runs beside it: on
     * a CPU they share processors and memory. Between device and host memory, and of the disk */
    double copy_load, disk_load;
    /* How far reads and writes of the disk share its rate, 0 to 1: 0: neither slows the other down;
     * 1: both at a time take as long as one after the other */
    double disk_shared;
    /* 1: what computes in host memory has processors of its own, as beside a GPU; 0: updates there
     * take the device's time */
    double host_apart;
} zf_cost;
/* Of a small CPU, a 10 Gbit/s network, copies at 10 GB/s, and an SSD that reads 2 and writes 1
 * GB/s */
ZF_API zf_cost zf_cost_default(void);

typedef struct zf_calibrate_desc {
    zf_backend *backend; /* NULL: a CPU backend of one thread */
    zf_backend *host;    /* what updates in host memory run on; NULL: as in zf_store_desc.host */
    const zf_comm *comm; /* NULL: the link is the default */
    int32_t nodes;       /* as zf_zero_desc.nodes: with several, both links are measured */
    const char *offload_dir; /* a folder on the disk; NULL: the disk is the default */
} zf_calibrate_desc;
/* Measures it, in about a second, and one or two more for a disk: products and sums of f32 and bf16,
 * gelu, copies between the spaces, alone and beside products, an update in host memory, all_gathers,
 * and a file of 256 MiB in the folder, which it removes. All ranks must call, and all get rank 0's
 * values, so that their plans are the same. On an error *cost does not change; an error on one rank
 * is the error on all. desc NULL: defaults. */
ZF_API zf_status zf_calibrate(const zf_calibrate_desc *desc, zf_cost *cost, zf_error *error);
/* A table as a JSON file: an object of members of zf_cost in the units above; bytes, values, functions
 * and FLOPs from 1 to 1e24 per second, seconds from 0 to 1e6. flops_per_s, bytes_per_s,
 * link_bytes_per_s and link_latency_s are required; others that are not there are what 0 stands for
 * above, or those of zf_cost_default. On an error *cost, or the file at `path`, does not change.
 * allocator NULL: the C library's. */
ZF_API zf_status zf_cost_read(const char *path, zf_cost *cost, const zf_allocator *allocator,
                              zf_error *error);
ZF_API zf_status zf_cost_save(const zf_cost *cost, const char *path, const zf_allocator *allocator,
                              zf_error *error);

typedef struct zf_prefetch_desc {
    /* The maximum bytes of parameters gathered ahead, of gradients that wait to be reduced, of
     * operands kept for gradients that are computed later, and of copies in one direction that are
     * on their way or made ahead; 0: no overlap */
    size_t bytes;
    /* Of host memory: what is read from a disk ahead for the device, and as much for updates; the
     * largest gradient that is kept longer so that its update can wait for the disk; and gradients
     * that so need not go to the disk; 0: as `bytes` */
    size_t host_bytes;
    /* Stage 3, and parameters that zf_offload brings: buckets stay on the device between forward
     * and backward pass, which saves bringing them again, as far as the plan stays within
     * zf_training.memory_limit */
    bool keep_gathered;
} zf_prefetch_desc;

typedef enum zf_recompute_mode {
    ZF_RECOMPUTE_OFF,      /* nothing; with a limit: as ZF_RECOMPUTE_AS_NEEDED */
    ZF_RECOMPUTE_LAYERS,   /* each layer keeps its inputs only, and recomputes the rest */
    ZF_RECOMPUTE_AS_NEEDED /* as much as the limit `bytes` requires, with the fewest FLOPs */
} zf_recompute_mode;

typedef struct zf_recompute_desc {
    zf_recompute_mode mode;
    /* The limit of the plan's peak. Where no plan keeps to it: ZF_ERR_LIMIT, which names the
     * smallest limit that a plan keeps to. 0: zf_training.memory_limit for ZF_RECOMPUTE_AS_NEEDED,
     * none for ZF_RECOMPUTE_LAYERS */
    size_t bytes;
} zf_recompute_desc;

/* What zf_passes has chosen by zf_training.fit. */
typedef struct zf_choice {
    zf_recompute_desc recompute;
    zf_offload_desc offload;
    size_t bytes[ZF_SPACES]; /* of the plan */
    double seconds;          /* of a step, estimated; */
    double free_seconds;     /* and of one without limits */
    int32_t tried;           /* plans */
} zf_choice;
/* "optimizer=disk,parameters=disk, recompute" into text[0..size), terminated when size > 0; returns
 * the length of the whole text. */
ZF_API size_t zf_choice_text(const zf_choice *choice, char *text, size_t size);

/* Limits within which zf_passes fits a step: it chooses what is recomputed (zf_recompute_desc) and
 * what leaves the device (zf_offload_desc), by exact plans of copies of the graph and by their
 * estimated time (zf_graph_estimate, by zf_training.cost): the fastest that fits. What
 * zf_training.recompute and .offload ask for anyway is where it begins, and nothing comes back from
 * there. Where nothing fits: ZF_ERR_LIMIT, by how much the nearest choice misses the limits. */
typedef struct zf_fit_desc {
    size_t memory; /* bytes of device and host memory together, which on a CPU are one; 0: any */
    size_t device; /* of the device; 0: any. With `memory` and `device` 0 nothing is chosen */
    /* Of host memory; 0: nothing leaves the device to stay there, but what is on its way to a disk
     * passes it */
    size_t host;
    size_t disk; /* of a disk (zf_store_desc.offload_dir); 0: nothing goes there */
    zf_choice *choice; /* NULL, or where to tell what was chosen */
} zf_fit_desc;

/* The optimizers: X(NAME, name) for ZF_NAME, zf_name_desc and zf_name. */
#define ZF_OPTIMIZERS(X)                                                                           \
    X(ADAMW, adamw)                                                                                \
    X(LAMB, lamb)                                                                                  \
    X(SGD, sgd)                                                                                    \
    X(LION, lion)                                                                                  \
    X(ONEBIT_ADAM, onebit_adam)                                                                    \
    X(ZERO_ONE_ADAM, zero_one_adam)                                                                \
    X(ONEBIT_LAMB, onebit_lamb)

typedef enum zf_optimizer {
#define ZFI_VALUE(NAME, name) ZF_##NAME,
    ZF_OPTIMIZERS(ZFI_VALUE)
#undef ZFI_VALUE
        ZF_OPTIMIZER_COUNT
} zf_optimizer;
/* "adamw", ...; NULL behind the last */
ZF_API const char *zf_optimizer_name(zf_optimizer optimizer);

/* One description of a training step: the desc of each pass, and what all plans are made for. {0}
 * is valid, and so is each member that is {0}. */
typedef struct zf_training {
    /* A scalar; ZF_NONE: nothing is trained. Then all that is about gradients is left out, and the
     * passes make a step that evaluates */
    zf_tensor loss;
    zf_tensor lr; /* a scalar f32; ZF_NONE: the input "lr", which is made where there is none */
    zf_lora_desc lora; /* {0}: not run */
    zf_fuse_desc fuse;
    zf_precision_desc precision;
    zf_tile_desc tile;   /* {0}: not run */
    bool keep_gradients; /* each is an output "gradient/PARAM", as it is before zf_clip */
    /* As in zf_clip, INFINITY: the output "grad_norm" alone; 0: zf_clip is not run */
    double clip;
    zf_optimizer optimizer;
    /* A desc for each optimizer, under its name: `zf_adamw_desc adamw`, and so on. That of `optimizer`
     * is used; in another one anything but 0 is an error */
#define ZFI_DESC(NAME, name) zf_##name##_desc name;
    ZF_OPTIMIZERS(ZFI_DESC)
#undef ZFI_DESC
    /* Which variant of the step this is (zf_variant_count), for an optimizer that has several */
    int32_t variant;
    bool delay; /* zf_delay is run */
    /* zf_delay is run from the step after this one on; above 0 the step has two variants */
    int64_t delay_from;
    zf_recompute_desc recompute;
    zf_zero_desc zero; /* {0}: neither zf_zero nor zf_prefetch is run */
    zf_offload_desc offload;   /* {0}: not run; else zf_zero is, also where `zero` is {0} */
    zf_prefetch_desc prefetch; /* {0}: not run */
    zf_fit_desc fit; /* {0}: recompute and offload are as they stand here */
    /* zf_recompute and zf_prefetch choose between plans by these: */
    size_t memory_limit; /* bytes; 0: none */
    zf_backend *backend; /* its scratch is counted in plans; NULL: none */
    /* NULL: gathers and copies of zf_offload are issued as early as prefetch.bytes allow; else only
     * as early as needed to hide their time */
    const zf_cost *cost;
    /* NULL: nothing is printed; else the graph after each pass that changes it, under "# after
     * PASS" */
    FILE *print;
    /* NULL, or called after each pass that succeeded, with its name without "zf_"; it may add
     * outputs to the graph */
    void (*after)(void *user, zf_graph *graph, const char *pass);
    void *user;
} zf_training;

/* Runs the passes of a training step, each as it is described, in their order:
 *
 *     lora, fuse, precision, tile, autograd, simplify, clip, an optimizer, delay, fuse,
 *     recompute, zero, offload, prefetch
 *
 * Each can be called by itself as well. zf_compile comes next, on the same backend. training NULL:
 * {0}. */
ZF_API zf_status zf_passes(zf_graph *graph, const zf_training *training);
/* The same with defaults filled in, where they are known without a graph: all but
 * zero.bucket_bytes. To be read, and not to be passed on: a 0 in it is 0. */
ZF_API zf_training zf_training_resolved(const zf_training *training);
/* Runs the optimizer of a description alone, with its lr. */
ZF_API zf_status zf_optimize(zf_graph *graph, const zf_training *training);

/* Variants of a step. A step of some optimizers is one of several, by its number: 1-bit Adam has
 * steps of a warm-up, then compressed ones. Each variant is a graph of its own, built and compiled
 * like any other, and all their programs work over one store, which counts their steps:
 *
 *     for (t.variant = 0; t.variant < zf_variant_count(&t); t.variant++) {
 *         zf_graph *g = zf_graph_new(NULL);
 *         t.loss = build(g), t.zero.store = store, zf_passes(g, &t);
 *         p[t.variant] = zf_compile(g, &(zf_compile_desc){.store = store, .beside = p[0]});
 *         store = zf_program_store(p[0]);
 *     }
 *     zf_program *now = p[zf_variant_at(&t, zf_store_step(store) + 1)];
 *
 * Compile all before zf_load: a checkpoint has the states of all variants. The number of the step
 * decides, so that a run goes on from a checkpoint as it would have without it, and all ranks take
 * the same. Updates that are delayed from some step on (delay_from) make two variants too. Other
 * descriptions have one. */
ZF_API int32_t zf_variant_count(const zf_training *training);
/* "warm-up", "compressed"; "direct", "delayed"; NULL for a number outside */
ZF_API const char *zf_variant_name(const zf_training *training, int32_t variant);
/* That of step 1, 2, ... */
ZF_API int32_t zf_variant_at(const zf_training *training, int64_t step);

/* Activation checkpointing (Chen et al. 2016): the backward pass recomputes values of the forward
 * pass instead of keeping them. Numbers do not change, to the last bit. Recomputed nodes are marked
 * `recompute` in the text. A layer is the nodes of one numbered scope ("layer.7"), or those that
 * use parameters of such names. Byte limits are compared with the final plan, after zf_zero and
 * zf_prefetch as `training` describes them. Requires: zf_autograd; after the optimizer and the last
 * zf_fuse, before zf_zero. training NULL: nothing. */
ZF_API zf_status zf_recompute(zf_graph *graph, const zf_training *training);

/* Overlaps communication with computation, on queues of their own: gathers, copies to the device
 * and reads of a disk are issued ahead of their use; reductions are waited for where their result
 * is read; the last large reduction, mostly an embedding's, is issued before the gradients that it
 * does not need; small gathers are joined; copies of zf_offload run beside the updates, and these
 * beside the backward pass (zf_offload_desc). Numbers do not change. Each but the fourth costs at
 * most prefetch.bytes of memory. Requires: zf_zero. training NULL: nothing overlaps. */
ZF_API zf_status zf_prefetch(zf_graph *graph, const zf_training *training);

/* ----------------------------------------------------------------------------- 6 DEVICES, RANKS
 *
 * Backends compute, communicators connect ranks. Both are tables of functions (zf_backend,
 * zf_comm). A program may write its own: sections 14 and 15. */

ZF_API void zf_backend_free(zf_backend *backend); /* NULL: nothing */

typedef struct zf_cpu_desc {
    int32_t threads; /* workers, the calling thread among them; 0: 1 */
    /* Run the reference kernels (slow, in double precision) instead of the fast ones */
    bool reference;
    /* The instruction set: "portable", "avx2", "avx512", "amx" (avx512, and products of bf16 on the
     * tiles of Intel's AMX) or "neon"; ZF_ERR_BACKEND if the machine lacks it; NULL: the best that
     * the machine has. Each has bits of its own: ranks on machines of several kinds name one. For
     * "amx", also by NULL, the process asks Linux for the tiles; its alternate signal stacks
     * (sigaltstack) must then have AT_MINSIGSTKSZ bytes (getauxval), some 11 KiB, and where one
     * is smaller the machine counts as one without AMX. */
    const char *isa;
    zf_allocator allocator;
} zf_cpu_desc;

/* The built-in CPU backend. NULL with *error (which may be NULL) for lack of memory or threads. */
ZF_API zf_backend *zf_cpu_backend(const zf_cpu_desc *desc, zf_error *error);

typedef struct zf_cuda_desc {
    int32_t device; /* which one, as CUDA numbers those that it sees */
    /* Launch node by node in every step, and not the step as a CUDA graph: to look for faults */
    bool no_graphs;
    bool tf32; /* products of f32 in TF32: fast, with 10 bits of mantissa */
    /* A file of algorithms for matrix products. Those in the file are used; for other products
     * zf_compile measures which is fastest and adds it to the file. NULL: cuBLASLt's own choice.
     * Another algorithm gives other bits: runs and ranks that must have equal bits need the same
     * complete file */
    const char *tuning;
    /* Multiprocessors that matrix products leave free for NCCL's kernels (zf_nccl_desc.ctas on each
     * channel): a product on all of them makes a collective wait for its end. cuBLASLt then may
     * choose another algorithm, with other bits. 0: none */
    int32_t spare_processors;
    /* How long the device may take to finish its work after other ranks are lost; 0: 60. After that
     * all calls are ZF_ERR_BACKEND, and its memory is not freed */
    double deadline_seconds;
    zf_allocator allocator; /* of host memory */
} zf_cuda_desc;

/* A device of compute capability 8.0 or newer: zeroflow_cuda.cu, compiled by nvcc. It runs f32,
 * bf16 and f16. Where a block has less than 160 KiB of shared memory (8.6, 8.9, 12.x), attention
 * over heads of more than 64 elements, or its gradient, may be ZF_ERR_BACKEND. One thread at a time
 * may use it, as the CPU backend. zf_step returns when the step is on the device's queues; its
 * errors are reported when the host waits for it. NULL with *error (which may be NULL):
 * ZF_ERR_BACKEND where there is no driver or no such device. */
extern zf_backend *zf_cuda_backend(const zf_cuda_desc *desc, zf_error *error);
/* The cudaStream_t of a queue of such a backend, for events of one's own; NULL where it has
 * none. */
extern void *zf_cuda_stream(const zf_backend *cuda, int32_t queue);

ZF_API void zf_comm_free(zf_comm *comm); /* NULL: nothing */

/* Ranks within one process: communicators for as many threads. Each belongs to one rank; the group
 * must outlive them and what uses them, and frees them. */
typedef struct zf_local zf_local;

typedef struct zf_local_desc {
    int32_t world;           /* ranks; 0: 1 */
    double deadline_seconds; /* that ranks wait for one another; 0: 60 */
    zf_allocator allocator;
} zf_local_desc;
/* NULL with *error (which may be NULL) for a value out of range or lack of memory. */
ZF_API zf_local *zf_local_new(const zf_local_desc *desc, zf_error *error);
ZF_API void zf_local_free(zf_local *group); /* NULL: nothing */
/* The communicator of rank 0 <= rank < world; NULL outside. It is the group's: not to be freed. */
ZF_API zf_comm *zf_local_comm(zf_local *group, int32_t rank);

/* Ranks in processes, by MPI: zeroflow_mpi.c, compiled with mpicc. */
typedef struct zf_mpi_desc {
    double deadline_seconds; /* that ranks wait for one another; 0: 60 */
    const void *comm;        /* where the MPI_Comm to duplicate is; NULL: MPI_COMM_WORLD */
} zf_mpi_desc;
/* The calling process's communicator. MPI must have been initialised with MPI_THREAD_MULTIPLE, and
 * all ranks must call. NULL with *error (which may be NULL). zf_comm_free frees it, before
 * MPI_Finalize. */
extern zf_comm *zf_mpi_comm(const zf_mpi_desc *desc, zf_error *error);

enum { ZF_NCCL_ID_BYTES = 384 };

/* Ranks with a GPU each, in processes or in threads, by NCCL: zeroflow_nccl.c, linked with
 * zeroflow_cuda.cu. How they find one another is one of `host`, `file` and `id`. */
typedef struct zf_nccl_desc {
    int32_t rank, world; /* world 0: 1, which needs none of the three */
    int32_t device;      /* as zf_cuda_desc.device: the one whose memory the calls are about */
    /* Maximum time that ranks wait for one another, also at creation; 0: 60. For calls on a stream,
     * the time that the stream spends in one call. */
    double deadline_seconds;
    /* NCCL's own reductions: reduce_scatter and all_reduce in f32, f64, bf16, f16, i32 and i64 add
     * in an order that may change from run to run, and 16-bit sums round at each addition. Other
     * calls, and reductions that add to `out`, do not change */
    bool fast;
    /* Device memory that sums pass through in pieces, for each of three channels; 0: 32 MiB. The
     * same on all ranks, like `fast` */
    size_t staging_bytes;
    /* Maximum blocks of NCCL's kernels on each of the three channels, a power of two; a block
     * occupies a multiprocessor. 0: 16, or fewer, so that all channels together occupy at most half
     * of the device: NCCL guarantees progress only if their kernels can run at the same time. The
     * same on all ranks.
     *
     * NCCL's device memory grows with it: zf_comm.memory, measured when ranks are connected, of
     * which 3 (staging_bytes + 2 MiB) are for staging. For NCCL 2.28, without its environment
     * variables and without NVLS, the rest is at most about 3 * ctas * world * 12 MiB: for each
     * block and channel a connection in the ring and one to each other rank, of 4 MiB
     * (NCCL_BUFFSIZE), 4.7 MiB (NCCL_LL128_BUFFSIZE) and 0.5 MiB (NCCL_LL_BUFFSIZE), in whole pages
     * of 2 MiB. `fast` may open more connections later */
    int32_t ctas;
    /* Rank 0 listens at host:port, the other ranks connect to it, and the connections stay open: a
     * rank that ends or fails is reported to the ranks that wait, and a rank that does not arrive
     * is named. Connections are not authenticated: use it in trusted networks only */
    const char *host;
    int32_t port;
    /* A path in a folder that all ranks share, where no file is needed otherwise. The ranks make
     * this file and others whose names begin with it, and remove them when all ranks have arrived.
     * Files of an earlier run are recognised. A rank that fails writes FILE.failed, which stays */
    const char *file;
    /* ZF_NCCL_ID_BYTES from zf_nccl_id, which one rank calls; the program sends them to all ranks.
     * The other ranks notice a failed rank only by their deadline */
    const void *id;
} zf_nccl_desc;
/* The calling rank's communicator; all ranks must call within the deadline. Calls on a stream (a
 * cudaStream_t; device memory) return once they are enqueued, and may be captured into a graph.
 * Calls without a stream take host or device memory, and run after the calls on streams of the same
 * channel. Sums have the bits of zf_add_ranks unless `fast`. NULL with *error (which may be NULL).
 * zf_comm_free frees it, after the programs that use it. */
extern zf_comm *zf_nccl_comm(const zf_nccl_desc *desc, zf_error *error);
extern zf_status zf_nccl_id(void *id, zf_error *error);

/* ------------------------------------------------------------------------------------- 7 STORES
 *
 * Parameters and states live in a store: named tensors in the memory of a backend, whole or
 * sharded. A program binds those that its graph names, and adds those that the store lacks: their
 * first values follow from the store's seed and the name. Any number of programs work over one
 * store: training and evaluation (below), two batch sizes, an adapter beside a frozen base, two
 * models that learn from each other.
 *
 *     zf_program *train = zf_compile(g, &(zf_compile_desc){.seed = 1});
 *     zf_store *store = zf_program_store(train);
 *     zf_program *eval =
 *         zf_compile(h, &(zf_compile_desc){.store = store, .bound = true, .evaluate = true});
 *     zf_step(train), zf_step(eval), zf_step(train);
 *     zf_save(store, "checkpoint", NULL);
 *
 * An adapter beside a base that was saved: g has the base's parameters, frozen, and new ones.
 *
 *     zf_store *store = zf_store_new(&(zf_store_desc){.backend = cpu, .seed = 1}, &error);
 *     zf_load(store, "base", &(zf_load_desc){.params_only = true});
 *     zf_program *p = zf_compile(g, &(zf_compile_desc){.store = store});
 *     ... zf_step(p) ...
 *     zf_save(store, "adapter", &(zf_save_desc){.select = is_of_adapter});
 *
 * and later "base" as above, and zf_load(store, "adapter", &(zf_load_desc){.merge = true}).
 *
 * The seed and the count of training steps belong to the store: programs that train in turns share
 * one count. With several ranks each has a store of its own, and all are sharded alike; a later
 * graph's zf_zero takes the layout from zf_zero_desc.store. A store lives until its maker and all
 * its programs have freed it; backend and communicator must outlive it. It and its programs belong
 * to one thread at a time. */

typedef struct zf_store_desc {
    zf_backend *backend; /* NULL: a single-threaded CPU backend of the store's own */
    /* A CPU backend, for what lies in host memory; NULL: `backend`, if its memory is the host's,
     * else a single-threaded one of the store's own */
    zf_backend *host;
    /* A folder for values on the disk. They lie in files that are removed with the store, and whose
     * space is allocated when a program is compiled (ZF_ERR_LIMIT where the disk is full).
     * Checksums of their blocks are kept in memory: damage is ZF_ERR_FORMAT of the step. NULL: no
     * disk */
    const char *offload_dir;
    /* The ranks among which this store is one; NULL: there is one rank. It must outlive the
     * store */
    const zf_comm *comm;
    uint64_t seed; /* of first values, and of dropout in all programs */
    /* Bytes, of the store and all its programs together; 0: none. A program that does not fit is
     * ZF_ERR_LIMIT of zf_compile */
    size_t memory_limit;
    zf_allocator allocator; /* of host memory */
} zf_store_desc;

/* An empty store, or NULL with *error (which may be NULL). desc NULL: defaults. A program without
 * one gets its own from zf_compile. */
ZF_API zf_store *zf_store_new(const zf_store_desc *desc, zf_error *error);
/* Of stores made by zf_store_new. NULL: nothing. */
ZF_API void zf_store_free(zf_store *store);
/* The last call's error; "" when it succeeded. */
ZF_API const char *zf_store_error(const zf_store *store);
/* Training steps done, by all programs: 0 at first, kept by checkpoints. */
ZF_API int64_t zf_store_step(const zf_store *store);

/* A tensor, and how it is laid out: */
typedef struct zf_stored {
    const char *name; /* lives as long as the store */
    bool state;       /* else it is a parameter */
    zf_dtype dtype;
    zf_shape shape;
    const char *master_of; /* the parameter whose master weights these are; NULL */
    /* Tensors of one number lie in one bucket, this one from element `at` on. -1: the tensor was
     * loaded, and no program has named it yet; it lies in host memory */
    int32_t bucket;
    int64_t at, bucket_size; /* elements, with padding */
    int32_t world;           /* ranks that share the bucket; 1: each has all of it */
    int64_t first, count;    /* elements of the tensor that this rank has */
    /* A piece of a tensor that zf_tile has cut: that tensor, and the piece's first element there.
     * The tensor itself is listed too, with bucket -1 and count 0. NULL: it is no piece */
    const char *piece_of;
    int64_t from;
} zf_stored;

/* The tensors in the order in which programs added them: 0 <= index < zf_store_count. The name is
 * NULL for an index outside. */
ZF_API int32_t zf_store_count(const zf_store *store);
ZF_API zf_stored zf_store_at(const zf_store *store, int32_t index);
/* The index of a name, or -1. */
ZF_API int32_t zf_store_find(const zf_store *store, const char *name);

typedef struct zf_store_info {
    size_t bytes;         /* of the backend, for tensors that programs name */
    size_t program_bytes; /* of the backend, for all else of all programs */
    size_t host_bytes;    /* of tensors that no program has named yet */
    /* of host memory, for tensors that programs name and what reads and writes those on the disk,
     * and for all else of all programs */
    size_t offloaded_bytes, host_program_bytes;
    size_t disk_bytes; /* of files, for tensors that programs name and values of their steps */
    int64_t param_count, state_count; /* elements */
} zf_store_info;
ZF_API zf_store_info zf_store_info_of(const zf_store *store);

/* Copies a whole tensor out of the store, or into it; `bytes` are exactly the tensor's. Of a
 * sharded tensor a read is collective: all ranks must call it; a write keeps this rank's elements,
 * so all ranks must write the same data. Writing a parameter writes its master weights as well. */
ZF_API zf_status zf_store_read(zf_store *store, const char *name, void *data, size_t bytes);
ZF_API zf_status zf_store_write(zf_store *store, const char *name, const void *data, size_t bytes);
/* Copies the values of all tensors that both stores have, whatever their shards. ZF_ERR_MISMATCH,
 * before anything is changed, where they differ in kind, dtype or shape. Both stores have the same
 * ranks, all of which must call. The error is kept in `to`. */
ZF_API zf_status zf_store_copy(zf_store *to, zf_store *from);

/* Adds what zf_lora has put beside weights to them: weight += scale B A, for each parameter
 * NAME.lora_A.weight of the store; B becomes zeros, so that programs with the adapter compute what
 * they did, but for the rounding of the weight. Of the desc alpha and rslora count, and rank, where
 * it is not 0, must be that of all. A square weight is [out, in]. Master weights become those of
 * the rounded weight. All ranks must call it where tensors are sharded. desc NULL: defaults. */
ZF_API zf_status zf_lora_merge(zf_store *store, const zf_lora_desc *desc);

/* ---------------------------------------------------------------------------- 8 PLANS, PROGRAMS */

typedef struct zf_program zf_program;

typedef struct zf_memory_desc {
    zf_backend *backend; /* whose scratch is counted; NULL: none */
    bool no_reuse;       /* every value its own bytes */
    /* Parameters and states that it has will be bound: they have no place in this plan; NULL:
     * none */
    const zf_store *store;
    /* The same for values in host memory; NULL: `backend`, if its memory is the host's */
    zf_backend *host;
    /* Caches that this graph has will lie in the memory of its program: they have no place in this
     * plan; NULL: none */
    const zf_graph *caches;
} zf_memory_desc;

/* Gives every value its offset in the arena: first the values that outlive a step (inputs,
 * parameters, states, constants), then the others. Nothing can be added to the graph afterwards.
 * zf_compile runs it when it has not been run. It refuses a plan with less scratch than its backend
 * needs, or one made for a store that had other tensors. desc NULL: defaults. */
ZF_API zf_status zf_memory(zf_graph *graph, const zf_memory_desc *desc);

/* What bytes of the arena hold: */
typedef enum zf_kind {
    ZF_PARAMETERS, /* and the buckets that hold them */
    /* of parameters: as the micro section leaves them, packed, their sums over ranks and
     * micro-batches; at stages 2 and 3 the sums alone, which are this rank's shards */
    ZF_GRADIENTS,
    ZF_OPTIMIZER,     /* states */
    ZF_ACTIVATIONS,   /* what else the micro section makes */
    ZF_COMMUNICATION, /* what is gathered; at stages 2 and 3 also what gradients are summed from */
    ZF_WORKSPACE,     /* what else the update section makes, and scratch */
    ZF_INPUTS,        /* and constants */
    ZF_CACHES,        /* zf_cache */
    ZF_KINDS
} zf_kind;
/* "parameters", ...; NULL behind the last */
ZF_API const char *zf_kind_name(zf_kind kind);

/* Collectives of one step: how many, and the bytes that one rank of n sends for them, by a ring or
 * directly: for a part of b bytes, (n-1) b of all_gather, reduce_scatter (of its result's) and
 * all_to_all; 2 (n-1) b of all_reduce, b being 1/n of the buffer, rounded up to elements; the
 * buffer of bcast, which goes along a chain. In a group of ranks, n is theirs. INT64_MAX bytes
 * stand for that or more. */
typedef struct zf_moved {
    int64_t calls;
    size_t bytes;
    size_t between; /* of these, to ranks of other nodes (zf_zero_desc.nodes) */
} zf_moved;

typedef struct zf_traffic {
    zf_moved all_gather, reduce_scatter, all_reduce, all_to_all, bcast;
    /* Copies of zf_offload, device to host memory and back, disk to host memory and back, and the
     * bytes of the values */
    zf_moved download, upload, read, write;
} zf_traffic;

/* The ranks of a collective, as its attribute `over` names them. */
typedef enum zf_over {
    ZF_OVER_ALL,
    ZF_OVER_NODE,  /* those at one place of all nodes */
    ZF_OVER_LOCAL, /* those of one node */
    ZF_OVERS
} zf_over;

/* What a step of one rank takes of one space. What reads and writes the disk (5 MiB, and 8 bytes
 * for each MiB there) is workspace of host memory, and the first page of its file workspace of the
 * disk; the system's own memory for that, and stacks of threads, are not in the plan. */
typedef struct zf_space_plan {
    size_t peak_bytes, live_bytes;
    int32_t peak_node;
    const char *peak_op, *peak_scope;
    size_t most[ZF_KINDS], at_peak[ZF_KINDS];
} zf_space_plan;

/* What a step of one rank takes; of memory, that of the device, and of each space: */
typedef struct zf_plan {
    zf_space_plan spaces[ZF_SPACES]; /* [ZF_DEVICE] is what stands below: */
    size_t peak_bytes; /* all bytes allocated for it, those that it adds to the store included */
    size_t live_bytes; /* the largest sum of bytes alive at one time */
    /* where that is, as the text numbers nodes, its operator and scope; "" where there is none */
    int32_t peak_node;
    const char *peak_op, *peak_scope;
    size_t most[ZF_KINDS];    /* of each kind, the maximum that is alive at one time */
    size_t at_peak[ZF_KINDS]; /* of each kind, the bytes alive at the peak: in sum live_bytes */
    zf_traffic traffic; /* of all collectives, and of each kind of group: */
    zf_traffic traffic_over[ZF_OVERS];
    /* Of the bytes to other ranks: scales of quantised values; and of the others, padding of buckets,
     * on average over the ranks */
    zf_moved scales, padding;
    size_t loco_bytes; /* of ZF_OPTIMIZER: what quantised gradients have left to send */
    double flops; /* of the matrix products of a step, a multiply-add being two; the model's: */
    double recomputed_flops; /* without the products of zf_recompute, which are these */
    int32_t nodes;
    int32_t inverted; /* values that the backward pass recomputes by zf_fuse's `invert` */
    int64_t parameter_count; /* elements; */
    int64_t padded_count;    /* with the padding of buckets */
} zf_plan;

/* The plan of the graph; its bytes are 0 before zf_memory. The graph's error, if there is one. */
ZF_API zf_status zf_graph_plan(zf_graph *graph, zf_plan *plan);
/* Memory over time: bytes[place][kind] is what is alive in the space while the node at that place
 * runs (zf_graph_node), for all zf_plan.nodes places. The largest sum of a row is the space's
 * live_bytes. Requires: zf_memory. */
ZF_API zf_status zf_graph_alive(zf_graph *graph, zf_space space, size_t (*bytes)[ZF_KINDS]);
/* ZF_ERR_LIMIT where the arena is larger than `limit` bytes (0: none); the error says by how much,
 * at which node, and which values are alive there. Requires: zf_memory. */
ZF_API zf_status zf_plan_fits(zf_graph *graph, size_t limit);

/* The resources of a rank's step. Each does one thing at a time, in the order of the plan. */
typedef enum zf_resource {
    ZF_RESOURCE_COMPUTE, /* the device */
    ZF_RESOURCE_HOST,    /* what computes in host memory */
    ZF_RESOURCE_LINK,    /* to other ranks: all collectives */
    ZF_RESOURCE_DOWNLOAD, /* copies from the device to host memory; */
    ZF_RESOURCE_UPLOAD,   /* from there to the device; */
    ZF_RESOURCE_READ,     /* from the disk to host memory; */
    ZF_RESOURCE_WRITE,    /* from there to the disk */
    ZF_RESOURCES
} zf_resource;
/* "compute", "host", "link", "download", "upload", "read", "write"; NULL behind the last */
ZF_API const char *zf_resource_name(zf_resource resource);

/* Seconds of a step by a cost table. */
typedef struct zf_estimate {
    double seconds; /* of the step: the sum of `exposed` */
    double busy[ZF_RESOURCES];    /* of work on each */
    double exposed[ZF_RESOURCES]; /* in which the step waits for it, and queue compute is idle or
                                     does it itself */
} zf_estimate;

/* Plays the step on its queues: a node on queue compute begins where the one before it ends, one on
 * another queue where it is issued, each when its resource is free, and a wait ends with what it
 * waits for. With zf_cost.host_apart, updates in host memory run beside queue compute, which waits
 * for them only where it needs what they give. Of the time of a copy that is hidden, the part that
 * it takes from computing (copy_load, disk_load) counts as exposed. Nodes take what the table says
 * of their FLOPs, bytes, 16-bit values and functions (zf_launch_functions). Without zf_prefetch all
 * but these updates is on queue compute, and exposed. Requires: nothing, but the plan is final
 * behind zf_memory. cost NULL: the default. ZF_ERR_ARGUMENT for rates that are not above 0. */
ZF_API zf_status zf_graph_estimate(zf_graph *graph, const zf_cost *cost, zf_estimate *estimate);

/* A node that takes a resource for some time, in seconds from the begin of the step. */
typedef struct zf_span {
    int32_t node;
    zf_resource resource;
    double from, to;
} zf_span;
/* The spans of the estimate, in the order of the plan, of the first micro-batch and of the update.
 * *count is the room in `spans` (NULL: none), and afterwards the number of spans that there are:
 * those that have room are written. */
ZF_API zf_status zf_graph_timeline(zf_graph *graph, const zf_cost *cost, zf_span *spans,
                                   int32_t *count);

typedef struct zf_compile_desc {
    /* The store of its parameters and states; NULL: a new one, of backend, comm and seed */
    zf_store *store;
    zf_backend *backend;  /* NULL: the store's; of a new one, a single-threaded CPU backend */
    zf_backend *host;     /* of a new store: zf_store_desc.host, */
    const char *offload_dir; /* and its folder */
    uint64_t seed;        /* of a new store; else 0, or the store's */
    /* bytes; 0: none. A larger plan is ZF_ERR_LIMIT; the error says by how much and where */
    size_t memory_limit;
    bool bound;           /* parameters and states that the store lacks are an error */
    /* A program of this store that never runs at the same time, evaluation beside training: where the
     * values of a step fit into its memory for them, they lie there. So of several programs the
     * largest is compiled first. What zf_output keeps of one can be read until another has run, and
     * micro-batches of one step do not enclose a step of another: ZF_ERR_STAGE. It need not outlive
     * this one. NULL: all memory is the program's own */
    const struct zf_program *beside;
    /* A program of this store whose caches (zf_cache) are also this one's, by name; it must outlive
     * this program; NULL: none */
    const zf_program *caches;
    bool evaluate;        /* dropout passes through */
    bool no_reuse;        /* as zf_memory_desc.no_reuse */
    bool poison;          /* fill values with NaN after their lifetime: finds late reads; slow */
    /* Of a new store: this rank's communicator; NULL: there is one rank. It must outlive the
     * program, and have zf_zero_desc.world ranks. */
    const zf_comm *comm;
    bool allow_nan;       /* update also when a scalar output of the micro section is not finite */
    bool verify;          /* check the rules of graph and plan once more: ZF_ERR_VERIFY */
} zf_compile_desc;

/* A program that runs the graph, or NULL: the graph has the error, and the store is unchanged. It
 * borrows graph and backend, and the graph must not change while it lives. Tensors that graph and
 * store both name must have the same kind, dtype, shape and shards (zf_zero_desc.store), else it is
 * ZF_ERR_MISMATCH. desc NULL: defaults. */
ZF_API zf_program *zf_compile(zf_graph *graph, const zf_compile_desc *desc);
/* The store of a program; not to be freed, and valid as long as a program over it lives. */
ZF_API zf_store *zf_program_store(const zf_program *program);
ZF_API void zf_program_free(zf_program *program); /* NULL: nothing */

/* The last call's error; "" when it succeeded. */
ZF_API const char *zf_program_error(const zf_program *program);

/* Copies `bytes` (exactly the tensor's) into an input, param, state or cache; out of one of these or
 * an output. Of a sharded param or state a write keeps this rank's elements, so all ranks must
 * write the same data, and a read is collective: all ranks must call it. Writing a parameter writes
 * its master weights as well. */
ZF_API zf_status zf_write(zf_program *program, zf_tensor tensor, const void *data, size_t bytes);
ZF_API zf_status zf_read(zf_program *program, zf_tensor tensor, void *data, size_t bytes);
/* Writes `bytes` from byte `offset` of a param or state on: whole elements, one range behind the other
 * from the first to the last, so that a file becomes a parameter without a copy of it in memory. */
ZF_API zf_status zf_write_range(zf_program *program, zf_tensor tensor, size_t offset,
                                const void *data, size_t bytes);

/* Runs the graph once: one training step where it has an optimizer. A non-finite learning rate is
 * ZF_ERR_ARGUMENT. After an error (such as an index out of range) the values of this step are
 * undefined; parameters and states do not change if it arose before the update section (below
 * `update:` in the text). Where there is an optimizer, a non-finite scalar float output of the
 * micro section (a loss) is such an error, ZF_ERR_NAN. After an error in the update section (a disk
 * fails, a rank is lost) parameters and states are undefined: steps, zf_save, and zf_store_copy
 * from this store are ZF_ERR_STAGE until zf_load has restored all of them. With several ranks an
 * error on one rank is an error on all, which names that rank; after ZF_ERR_NAN training can go
 * on. */
ZF_API zf_status zf_step(zf_program *program);

/* Runs one micro-batch of a step of several (zf_zero_desc.micro_batches): for each but the last,
 * zf_write and zf_micro; for the last, zf_write and zf_step. After an error the step starts anew.
 */
ZF_API zf_status zf_micro(zf_program *program);

/* Collective: compares what must be the same on all ranks: seed, step, `evaluate` and `allow_nan`,
 * and the values of parameters, states, and inputs that updates read (the learning rate); of a
 * sharded parameter or state, the value last written (zf_write). ZF_ERR_MISMATCH on all ranks names
 * the first difference. zf_step does it before the first step and before the first step after
 * zf_load, and zf_save does it. It reads all values once, and moves a few bytes. One rank has
 * nothing to compare. */
ZF_API zf_status zf_compare_ranks(zf_program *program);

/* Steps done: of a program that trains, those of its store (zf_store_step); of another, its own. */
ZF_API int64_t zf_program_step(const zf_program *program);

typedef struct zf_program_info {
    size_t peak_bytes;      /* predicted: all that is allocated of the device; plan.spaces has all */
    size_t allocated_bytes; /* what the backend was asked for */
    size_t allocated[ZF_SPACES]; /* the same of each space; [ZF_DEVICE] is allocated_bytes */
    size_t shared[ZF_SPACES]; /* predicted bytes that lie in memory of zf_compile_desc.beside: of each
                               * space, both are the predicted bytes together */
    size_t store_bytes;     /* of these, what it has added to the store; the rest is its own */
    size_t bound_bytes;     /* of tensors that the store had before */
    size_t param_bytes, state_bytes, input_bytes, constant_bytes, work_bytes;
    size_t cache_bytes; /* of zf_cache; those of zf_compile_desc.caches are not counted again */
    size_t live_bytes;      /* the largest sum of bytes alive at one time */
    int32_t peak_node;      /* where that is, as the text numbers nodes */
    int64_t param_count;    /* elements of parameters */
    double flops;           /* of the matrix products of a step, a multiply-add being two */
    int32_t nodes;
    zf_plan plan;           /* predicted */
    zf_traffic counted;     /* in the last step or the one in progress; at its end plan.traffic */
    zf_traffic counted_over[ZF_OVERS]; /* the same of plan.traffic_over */
    size_t comm_bytes;      /* of the device, taken by the communicator: zf_comm.memory */
    /* "", or a line about slow kernels: "products of 7 shapes run by a plain kernel, which is slow:
     * cuBLASLt has none for matmul %12 [128,768] x [768,2] bf16 and others". It covers all programs
     * of the backend, and changes as they run */
    const char *remark;
} zf_program_info;
ZF_API zf_program_info zf_program_info_of(const zf_program *program);

/* -------------------------------------------------------------------------------- 9 CHECKPOINTS */

/* Checkpoints of a store: a directory with params.safetensors, state.safetensors, manifest.json
 * (step, seed, the caller's notes, and checksums that together cover every byte) and the caller's
 * files. It is written to a temporary directory, which is then renamed: a crash leaves the old
 * checkpoint or the new one, complete.
 *
 * With several ranks both calls are collective: all ranks call, with one directory that all of them
 * share, and an error on one rank is an error on all, which names that rank. Of sharded parameters
 * and states each rank writes its own elements, to files of its own, and holds no others in memory:
 *
 *     params.rank-00001-of-00004.safetensors, state.rank-00001-of-00004.safetensors
 *     rank-00001-of-00004.json    what is in them: of which tensor, from which element on
 *
 * The other files are as above. At stage 0 a checkpoint is the same as one rank's; at stages 1 and
 * 2 params.safetensors is whole; at stage 3 there is none. Any stage and world can load it, with or
 * without zf_zero: a rank reads the pieces (of 4 MiB) that have its elements. */
typedef struct zf_note {
    const char *key, *value; /* UTF-8 */
} zf_note;

typedef struct zf_attachment {
    const char *name; /* of the file in the checkpoint: letters, digits, '.', '-', '_' */
    const void *data;
    size_t bytes;
} zf_attachment;

typedef struct zf_save_desc {
    const zf_note *notes;
    int32_t note_count;
    const zf_attachment *attachments;
    int32_t attachment_count;
    bool finite; /* non-finite parameters or states are an error (ZF_ERR_NAN) */
    /* Which tensors are saved, the same on all ranks: an adapter without its base; NULL: all */
    bool (*select)(void *user, const zf_stored *tensor);
    void *user;
} zf_save_desc;

/* Saves parameters, states, step and seed; notes and attachments are those of rank 0. desc NULL:
 * nothing else. An error leaves the old checkpoint unchanged. One process at a time may save to a
 * path: a second one gets an error, where the file system has locks. Do not load from it meanwhile.
 * The error is kept in the store, as that of zf_load. */
ZF_API zf_status zf_save(zf_store *store, const char *path, const zf_save_desc *desc);

typedef struct zf_load_desc {
    /* For evaluation: states, step and seed do not change, but master weights are set to the
     * parameters; the checkpoint may lack states, and may have parameters that the store lacks. */
    bool params_only;
    /* With params_only: f32 parameters of the store take the master weights of those that the
     * checkpoint has in bf16 or f16. */
    bool masters;
    /* Tensors that the checkpoint lacks do not change (but master weights are set to the parameters
     * that it has), and tensors that the store lacks are added: a base and an adapter are
     * joined. */
    bool merge;
} zf_load_desc;

/* Restores parameters, states, step and seed, so that training goes on with the same bits, from the
 * beginning of a step. The checkpoint must have exactly the tensors of the store, each with its
 * dtype and shape (ZF_ERR_MISMATCH names the first difference), and every checksum must match
 * (ZF_ERR_FORMAT names file and tensor). Everything is checked before anything is changed. Only if
 * a device fails or a file changes after that, parameters and states are undefined, and the error
 * says so. desc NULL: all.
 *
 * A store without tensors takes all that the checkpoint has. They lie in host memory, whole on each
 * rank, until a program is compiled that names them; so where memory matters, compile first. */
ZF_API zf_status zf_load(zf_store *store, const char *path, const zf_load_desc *desc);

/* Reads one note of a checkpoint into value[0..size), terminated. ZF_ERR_ARGUMENT when there is
 * none of that key, or it does not fit; on an error value does not change. */
ZF_API zf_status zf_checkpoint_note(const char *path, const char *key, char *value, size_t size,
                                    zf_error *error);

/* ----------------------------------------------------------------------------- 10 LAYERS, LOOPS
 *
 * Conveniences, written with the calls above alone (nn/), to be used or copied. Parameters have the
 * names and shapes that PyTorch and Hugging Face give them, inside the scopes that are open. */

typedef struct zf_nn_linear_desc {
    double std; /* of the weight's truncated normal; 0: 0.02; ZF_ZERO: all are 0 */
    bool no_bias;
} zf_nn_linear_desc;

/* x [..., in] -> [..., out]: x weight^T + bias; parameters NAME.weight [out, in] and NAME.bias
 * [out]. */
ZF_API zf_tensor zf_nn_linear(zf_tensor x, const char *name, int64_t out,
                              const zf_nn_linear_desc *desc);
/* Parameters NAME.weight (ones) and NAME.bias (zeros), [n] for x [..., n]. */
ZF_API zf_tensor zf_nn_layer_norm(zf_tensor x, const char *name, double eps);
/* The parameter NAME.weight (ones), [n] for x [..., n]. */
ZF_API zf_tensor zf_nn_rms_norm(zf_tensor x, const char *name, double eps);

typedef struct zf_nn_embedding_desc {
    double std; /* of the truncated normal; 0: 0.02 */
    zf_dtype dtype;
} zf_nn_embedding_desc;

/* The parameter NAME.weight [rows, width], for zf_embedding. */
ZF_API zf_tensor zf_nn_embedding_table(zf_graph *graph, const char *name, int64_t rows,
                                       int64_t width, const zf_nn_embedding_desc *desc);
/* softmax(q k^T / sqrt(d) + bias) v, dropout on the softmax; q [..., m, d], k and v [..., n, d];
 * bias broadcasts to [..., m, n] and may be ZF_NONE (Vaswani et al. 2017). */
ZF_API zf_tensor zf_nn_attention(zf_tensor q, zf_tensor k, zf_tensor v, zf_tensor bias,
                                 double dropout);

typedef enum zf_activation {
    ZF_ACTIVATION_GELU,
    ZF_ACTIVATION_GELU_TANH,
    ZF_ACTIVATION_RELU,
    ZF_ACTIVATION_SILU
} zf_activation;
/* zf_gelu, zf_gelu_tanh, zf_relu or zf_silu of x. */
ZF_API zf_tensor zf_nn_activation(zf_tensor x, zf_activation activation);

typedef struct zf_nn_encoder_desc {
    int64_t heads;        /* 0: one for every 64 of hidden */
    int64_t intermediate; /* 0: 4 hidden */
    zf_activation activation; /* between the two products of its second half */
    double dropout, attention_dropout;
    double eps; /* of LayerNorm; 0: 1e-12 */
    double std; /* of the weights; 0: 0.02 */
    /* LayerNorm before each half and not after it; a model then ends with a LayerNorm of its own */
    bool pre_norm;
} zf_nn_encoder_desc;

/* One transformer encoder block, x [batch, tokens, hidden] -> the same; parameters named as in
 * BERT's encoder.layer.{i} (attention.self.query.weight, ...). bias: as in zf_nn_attention, over
 * [batch, heads, tokens, tokens]. */
ZF_API zf_tensor zf_nn_encoder_block(zf_tensor x, zf_tensor bias, const zf_nn_encoder_desc *desc);

typedef enum zf_schedule_kind {
    ZF_CONSTANT,
    ZF_LINEAR,      /* from peak to end at `steps` */
    ZF_COSINE,      /* the same along half a cosine */
    ZF_POLYNOMIAL,  /* the same along (1 - t)^power */
    ZF_EXPONENTIAL, /* peak * rate^floor(steps after the warm-up / every), not below end */
    ZF_ONE_CYCLE    /* cosines: up from peak/25 in the warm-up (0: 30% of steps), down to end */
} zf_schedule_kind;

/* The learning rate of step 1, 2, ...: all but ZF_ONE_CYCLE rise linearly, step/warmup of peak, for
 * `warmup` steps. */
typedef struct zf_schedule {
    zf_schedule_kind kind;
    double peak, end;
    int64_t warmup, steps; /* of ZF_ONE_CYCLE warmup -1: none */
    double power; /* 0: 1 */
    double rate;  /* 0: 0.9; ZF_ZERO: `end` after `every` steps */
    int64_t every; /* 0: 1 */
    /* Of zf_nn_train: the first step has the rate of step 0 (0 where there is a warm-up), as in
     * Hugging Face's transformers; else that of step 1, so that the last one has that of `steps` */
    bool from_zero;
} zf_schedule;
ZF_API double zf_schedule_at(const zf_schedule *schedule, int64_t step);
/* "constant", ...; NULL behind the last */
ZF_API const char *zf_schedule_name(zf_schedule_kind kind);

typedef struct zf_nn_train_desc {
    zf_program *program;
    int64_t steps; /* trains until zf_program_step is this */
    zf_tensor lr;  /* written before each step; ZF_NONE: not */
    zf_schedule schedule;
    void *user;
    /* The program of the next step, when `done` have been made, with its lr in *lr: one of several
     * variants over the store of `program` (zf_variant_at). NULL: always `program` and `lr` */
    zf_program *(*turn)(void *user, int64_t done, zf_tensor *lr);
    /* Writes the inputs of step `step` (0, 1, ...); may be NULL. A bad status ends the training
     * with it. */
    zf_status (*feed)(void *user, zf_program *program, int64_t step);
    /* After `done` steps; false ends the training. May be NULL. */
    bool (*report)(void *user, zf_program *program, int64_t done, double lr);
} zf_nn_train_desc;
ZF_API zf_status zf_nn_train(const zf_nn_train_desc *desc);

/* An input of a model, and the array of its values for all examples: data [examples, ...], of the
 * input's dtype. */
typedef struct zf_nn_field {
    const char *input;
    const void *data;
} zf_nn_field;

/* How far a fit is. */
typedef struct zf_nn_progress {
    int64_t epoch, step; /* 1, 2, ...; the step is the store's (zf_store_step) */
    double lr;
    double loss;       /* of this step's batch */
    double epoch_loss; /* mean over the examples that this call has trained on in this epoch */
    bool epoch_done;   /* this step was its last one: */
    double held_out;   /* mean loss of the held-out examples, without dropout; else NAN */
} zf_nn_progress;

enum { ZF_NN_FIELDS = 8 };

typedef struct zf_nn_fit_desc {
    /* Builds the model for so many examples, the first dimension of its inputs; returns the loss, a
     * scalar f32, the mean over them. It is called for each number of examples that there is */
    zf_tensor (*build)(void *user, zf_graph *graph, int64_t examples);
    void *user;
    zf_nn_field fields[ZF_NN_FIELDS]; /* behind the last one input is NULL */
    int64_t examples; /* in the arrays */
    int64_t held_out; /* the last held_out of them are only evaluated, after each epoch */
    int64_t batch;    /* examples of a step; 0: 32. The last step of an epoch has the rest */
    int64_t epochs;   /* 0: 1 */
    bool in_order;    /* examples in the order of the arrays; else shuffled in each epoch */
    uint64_t seed;    /* of the shuffles */
    zf_schedule schedule; /* peak 0: 1e-3, ZF_ZERO: 0; steps 0: those of all epochs */
    zf_training training; /* loss and lr aside; for one rank and without micro-batches */
    /* After each step; false ends the fit. May be NULL */
    bool (*report)(void *user, zf_store *store, const zf_nn_progress *progress);
    zf_allocator allocator; /* of graphs and of a batch; {0}: the C library's */
    const zf_operator *operators; /* of the model's own, as zf_graph_desc.operators */
    int32_t operator_count;
} zf_nn_fit_desc;

/* Trains the store's parameters, which it adds where the store lacks them. Every step depends on
 * its number only, so a store that has done some steps (zf_load) goes on with the same bits. After
 * an error (*error may be NULL) the store is as after the last step that succeeded. */
ZF_API zf_status zf_nn_fit(zf_store *store, const zf_nn_fit_desc *desc, zf_error *error);
/* The same with defaults filled in, but for schedule.steps. To be read, as zf_training_resolved. */
ZF_API zf_nn_fit_desc zf_nn_fit_resolved(const zf_nn_fit_desc *desc);

/* =========================================================================================== FILES
 *
 * JSON and safetensors, read strictly and written so that others read them. A file appears under
 * its name when it is complete and on the disk, or not at all. Sections 11 and 12.
 */

/* -------------------------------------------------------------------------------------- 11 JSON
 *
 * JSON (RFC 8259) is read into a tree that does not change. Whatever asks a value accepts NULL, "no
 * such value", so look-ups nest; the zf_json_to_ functions leave *out alone then, so a default
 * stays. They and all that takes an error keep the first one, which names file, line, column, the
 * path of the value, what it must be and what it is:
 *
 *     int64_t hidden = 0, heads = 12;
 *     double dropout = 0.1;
 *     zf_error error = {0};
 *     zf_json *config = zf_json_read("config.json", NULL, &error);
 *     const zf_json *v = zf_json_require(config, "hidden_size", &error);
 *     zf_json_to_int(v, 1, INT64_MAX, &hidden, &error);
 *     v = zf_json_member(config, "hidden_dropout_prob");
 *     zf_json_to_double(v, 0, 1, &dropout, &error);
 *     v = zf_json_member(config, "num_attention_heads");
 *     zf_json_to_int(v, 1, 1024, &heads, &error);
 *     if (!error.status && hidden % heads)
 *         zf_json_expected(v, &error, "a divisor of hidden_size (%lld)", (long long)hidden);
 *     if (error.status) fprintf(stderr, "bert: %s\n", error.text);
 *     zf_json_free(config);
 *
 *     bert: config.json:12:7: hidden_size must be a positive integer, not "768"
 *     bert: config.json:4:26: num_attention_heads must be a divisor of hidden_size (768), not 11
 *     bert: config.json:1:1: the top value lacks "hidden_size"
 */

typedef enum zf_json_type {
    ZF_JSON_MISSING, /* of NULL */
    ZF_JSON_NULL,
    ZF_JSON_BOOL,
    ZF_JSON_NUMBER,
    ZF_JSON_STRING,
    ZF_JSON_ARRAY,
    ZF_JSON_OBJECT
} zf_json_type;

typedef struct zf_json zf_json; /* a value; the one at the top owns the tree */

/* The tree of text[0..bytes), which is not needed afterwards, or NULL with *error (which may be
 * NULL). Refused are, as by the RFC, trailing commas, comments, NaN, lone surrogates, bytes that
 * are not UTF-8 and control characters in strings; and also two members of one name, numbers beyond
 * a double, more than 128 levels, and 2^31 bytes or more. Takes time in proportion to the text. */
ZF_API zf_json *zf_json_parse(const char *text, size_t bytes, const zf_allocator *allocator,
                              zf_error *error);
/* The same of a file of at most 64 MiB, whose name then stands in messages. */
ZF_API zf_json *zf_json_read(const char *path, const zf_allocator *allocator, zf_error *error);
/* Frees a tree by what zf_json_parse or zf_json_read returned; NULL: nothing. */
ZF_API void zf_json_free(zf_json *top);

ZF_API zf_json_type zf_json_type_of(const zf_json *value);
/* Elements of an array, members of an object, bytes of a string; 0 of anything else. */
ZF_API int64_t zf_json_length(const zf_json *value);
/* Where it begins: both count from 1, columns in characters; 0 for NULL. */
ZF_API void zf_json_where(const zf_json *value, int64_t *line, int64_t *column);

/* A member's value, or NULL. */
ZF_API const zf_json *zf_json_member(const zf_json *object, const char *key);
/* The same; that an object lacks it is an error. Nothing is required of NULL. */
ZF_API const zf_json *zf_json_require(const zf_json *object, const char *key, zf_error *error);
/* An element, 0 <= index < length, or NULL. Takes time in proportion to index in an array of arrays
 * or objects. */
ZF_API const zf_json *zf_json_element(const zf_json *array, int64_t index);
/* for (v = zf_json_first(c); v; v = zf_json_next(v)): elements or members, as the text has them. */
ZF_API const zf_json *zf_json_first(const zf_json *container);
ZF_API const zf_json *zf_json_next(const zf_json *value);
/* The key of a member; NULL for an element and for the top. It is terminated, and lives as long as
 * the tree; *bytes (which may be NULL) is its length. zf_json_string likewise: the value of a
 * string, NULL for anything else. */
ZF_API const char *zf_json_key(const zf_json *value, size_t *bytes);
ZF_API const char *zf_json_string(const zf_json *value, size_t *bytes);

/* *out, when the value is of that type and least <= value <= most; else ZF_ERR_FORMAT. An integer
 * may be written as 5e8 or 1.0: it is the exact value that counts. A string with a zero byte in it
 * is refused: ask zf_json_string. */
ZF_API zf_status zf_json_to_bool(const zf_json *value, bool *out, zf_error *error);
ZF_API zf_status zf_json_to_int(const zf_json *value, int64_t least, int64_t most, int64_t *out,
                                zf_error *error);
ZF_API zf_status zf_json_to_double(const zf_json *value, double least, double most, double *out,
                                   zf_error *error);
ZF_API zf_status zf_json_to_string(const zf_json *value, const char **out, zf_error *error);

/* Records "FILE:LINE:COLUMN: PATH " and the text, and returns ZF_ERR_FORMAT: for rules of the
 * caller's own. zf_json_expected writes "must be TEXT, not VALUE". */
ZF_API zf_status zf_json_fail(const zf_json *value, zf_error *error, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
ZF_API zf_status zf_json_expected(const zf_json *value, zf_error *error, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* Writes JSON: commas, nesting and escapes are the writer's business. The first mistake or lack of
 * memory sticks, and zf_json_text or zf_json_save reports it. That no two members of an object have
 * one name is up to the caller. */
typedef struct zf_json_writer zf_json_writer;

/* indent: spaces per level; 0: all on one line. NULL when there is no memory; what follows accepts
 * that. */
ZF_API zf_json_writer *zf_json_writer_new(int32_t indent, const zf_allocator *allocator);
ZF_API void zf_json_writer_free(zf_json_writer *writer);
ZF_API void zf_json_begin_object(zf_json_writer *writer);
ZF_API void zf_json_begin_array(zf_json_writer *writer);
ZF_API void zf_json_end(zf_json_writer *writer); /* of the innermost object or array */
ZF_API void zf_json_put_key(zf_json_writer *writer, const char *key); /* then its value; UTF-8 */
ZF_API void zf_json_put_string(zf_json_writer *writer, const char *string); /* UTF-8; NULL: null */
ZF_API void zf_json_put_int(zf_json_writer *writer, int64_t value);
/* The shortest digits that read back as the same double; NaN and the infinities, which JSON lacks,
 * are null. */
ZF_API void zf_json_put_double(zf_json_writer *writer, double value);
ZF_API void zf_json_put_bool(zf_json_writer *writer, bool value);
ZF_API void zf_json_put_null(zf_json_writer *writer);
/* The whole text, terminated, *bytes long (which may be NULL); it lives until the next call on the
 * writer. NULL with *error when it is not complete. */
ZF_API const char *zf_json_text(zf_json_writer *writer, size_t *bytes, zf_error *error);
/* Writes the text and a line end to a file, which replaces what `path` names. */
ZF_API zf_status zf_json_save(zf_json_writer *writer, const char *path, zf_error *error);

#include "api/options.h"

/* ------------------------------------------------------------------------------- 12 SAFETENSORS */

/* Safetensors: named tensors in one file. Reading checks every rule of the format and believes no
 * number of the file; the data are read when asked for, by any threads at the same time, and a file
 * that shrinks meanwhile is an error. */
typedef struct zf_safetensors zf_safetensors;

typedef struct zf_safetensors_entry {
    const char *name;       /* UTF-8, terminated; lives as long as the file is open */
    const char *dtype_name; /* as the file says it: "F32" */
    zf_dtype dtype;
    /* false: this library lacks the element type (U16, F8_E4M3, ...); dtype is void */
    bool readable;
    zf_shape shape;
    size_t bytes;
} zf_safetensors_entry;

/* NULL with *error (which may be NULL) when it cannot be read or breaks a rule. */
ZF_API zf_safetensors *zf_safetensors_open(const char *path, const zf_allocator *allocator,
                                           zf_error *error);
/* The same of bytes in memory, which must stay until it is closed. */
ZF_API zf_safetensors *zf_safetensors_parse(const void *data, size_t bytes,
                                            const zf_allocator *allocator, zf_error *error);
ZF_API void zf_safetensors_close(zf_safetensors *file); /* NULL: nothing */

ZF_API int32_t zf_safetensors_count(const zf_safetensors *file);
/* 0 <= index < count, in the order of the data; NULL outside. */
ZF_API const zf_safetensors_entry *zf_safetensors_at(const zf_safetensors *file, int32_t index);
/* The index of a name, or -1. */
ZF_API int32_t zf_safetensors_find(const zf_safetensors *file, const char *name);
/* An object of strings, or NULL when the file has no metadata. It is the file's. */
ZF_API const zf_json *zf_safetensors_metadata(const zf_safetensors *file);
/* Copies a tensor's data, `bytes` being its size; or `bytes` of them from `offset` on. */
ZF_API zf_status zf_safetensors_read(zf_safetensors *file, int32_t index, void *out, size_t bytes,
                                     zf_error *error);
ZF_API zf_status zf_safetensors_read_range(zf_safetensors *file, int32_t index, size_t offset,
                                           void *out, size_t bytes, zf_error *error);

/* Writes a file: declare every tensor, write the data of each (in any order, each in as many pieces
 * as one likes), finish. Until then, and after any error, what `path` names stays as it was. The
 * first error sticks. Data are stored with wide element types first, so that all are aligned, else
 * in the order of declaration. The metadata "format" is "pt", which transformers asks for. */
typedef struct zf_safetensors_writer zf_safetensors_writer;

ZF_API zf_safetensors_writer *
zf_safetensors_writer_new(const char *path, const zf_allocator *allocator, zf_error *error);
ZF_API zf_status zf_safetensors_put_metadata(zf_safetensors_writer *writer, const char *key,
                                             const char *value);
/* The tensors have the indices 0, 1, ... in the order of these calls. */
ZF_API zf_status zf_safetensors_declare(zf_safetensors_writer *writer, const char *name,
                                        zf_dtype dtype, zf_shape shape);
ZF_API zf_status zf_safetensors_write(zf_safetensors_writer *writer, int32_t index,
                                      const void *data, size_t bytes);
ZF_API zf_status zf_safetensors_finish(zf_safetensors_writer *writer, zf_error *error);
/* Unfinished: leaves no trace. NULL: nothing. */
ZF_API void zf_safetensors_writer_free(zf_safetensors_writer *writer);

/* ======================================================================================= EXTENDING
 *
 * What a program needs that brings operators, a device or a communicator of its own, and what
 * stands where in the library: sections 13 to 15.
 *
 * ADDING AN OPERATOR
 *
 * One row in ZF_OPS: name, operands, attributes. One file ops/NAME.c, in the list of includes at
 * the end of this header, with the functions of the operator and, at its end, one record of all
 * that anybody may ask of it: ZFI_OPERATOR(NAME, .infer = ..., .grad = ..., .cpu = ..., .traits =
 * ...). graph/graph.c explains the fields (zfi_record), zf_op_traits below the traits. No pass
 * keeps a list of operators. For CUDA one file ops/NAME.cu, in the list of zeroflow_cuda.cu, that
 * ends with ZFD_KERNEL(NAME, run, scratch). A builder: its declaration in section 4, which begins
 * with ZF_BUILDER; `make lines` then makes its macro. B in the row makes its function; one with
 * attributes has its function in graph/build.c. One row in tests/op_cases.h runs every test of
 * operators: values, gradient, threads, writing in place, CUDA, and each claim of the record. What
 * is forgotten does not compile, or fails a test that names it. ops/softplus.c is a short example.
 * An optimizer's update is an operator with trait ZF_OP_UPDATE and attributes world and blocks (for
 * zf_zero), perhaps weight_decay with decays, and scaled (for zf_fuse and the loss scale);
 * passes/optimizer.c appends it.
 *
 * OPERATORS OF YOUR OWN
 *
 * A program needs no change of the library for an operator: a zf_operator names it, its operands
 * and attributes, its traits (elementwise, by rows, in place), and its functions: infer for the
 * shape of the result, grad, which appends the gradient as nodes, cpu and perhaps cuda, its
 * kernels. zf_graph_desc lists them, zf_apply appends one. examples/own_op.c is a whole program,
 * section 13 the reference. They cannot be leaves, effects, updates or collectives, and draw no
 * random numbers.
 *
 * ADDING A PASS
 *
 * One file passes/NAME.c, in the list of includes, that begins with what it requires, ensures, and
 * how text looks before and after. Its function enters by zfi_enter, which says which passes must
 * and must not have been run, and leaves by zfi_leave, which verifies the graph. What it needs to
 * know of a node it asks of the node's record; if nothing says it yet, the record gets a field, and
 * tests/records.c a check that runs the operators. The declaration stands in section 5, a row in
 * passes/training.c puts the pass among those of a training step, a row in tools/pass.c makes it
 * known to zf-opt, and tests/passes/NAME.zf has a graph before and after it, whose numbers are
 * compared as well.
 */

/* --------------------------------------------------------------------------------- 13 OPERATORS */

/* One row per operator: name, least and most operands, attributes. An attribute is A(operator,
 * name, kind), kind one of i (int64), f (double), b (bool), d (dtype), l (list of int64), v (list
 * of double) and e(names) (one of the names). One that is absent is 0, false, the first name or the
 * empty list. The order of rows means nothing. All else that is known of an operator is its record,
 * in its file of ops/.
 *
 * B(operator, UNARY or BINARY) makes its builder, zf_OPERATOR(x) or zf_OPERATOR(a, b), which api/ must
 * declare. C(operator, code, kind, form, activation) makes it an instruction of chains: `code` is its
 * number in their programs, a new one for a new operator; `kind` is a zf_chain_kind, `form` the value
 * of its attribute of that name, else 0. `activation` is the place of the operator among the names of
 * linear's attribute `activation`, 0 where it is none of them. */
#define ZFI_NOTHING(...)
#define ZF_OPS(X, A, B, C)                                                                         \
    /* leaves */                                                                                   \
    X(input, 0, 0, )                                                                               \
    X(param, 0, 0, A(param, init, e(zeros|ones|constant|normal|truncated|uniform))                 \
      A(param, a, f) A(param, b, f) A(param, frozen, b) A(param, row, i) A(param, rows, i)         \
      A(param, bits, i) A(param, block, i) A(param, scale, d))                                     \
    X(state, 0, 1, A(state, value, f) A(state, row, i) A(state, rows, i)                           \
      A(state, ranks, e(stage|whole|each|cut|node)))                                               \
    X(cache, 0, 0, )                                                                               \
    X(constant, 0, 0, A(constant, values, v))                                                      \
    /* elementwise, broadcasting */                                                                \
    X(add, 2, 2, B(add, BINARY) C(add, 0, BINARY, 0, 0))                                           \
    X(sub, 2, 2, B(sub, BINARY) C(sub, 1, BINARY, 0, 0))                                           \
    X(mul, 2, 2, B(mul, BINARY) C(mul, 2, BINARY, 0, 0))                                           \
    X(div, 2, 2, B(div, BINARY) C(div, 3, BINARY, 0, 0))                                           \
    X(maximum, 2, 2, B(maximum, BINARY) C(maximum, 4, BINARY, 0, 0))                               \
    X(minimum, 2, 2, B(minimum, BINARY) C(minimum, 5, BINARY, 0, 0))                               \
    X(equal, 2, 2, B(equal, BINARY))                                                               \
    X(less, 2, 2, B(less, BINARY))                                                                 \
    X(where, 3, 3, )                                                                               \
    /* elementwise, one operand */                                                                 \
    X(neg, 1, 1, B(neg, UNARY) C(neg, 6, UNARY, 0, 0))                                             \
    X(scale, 1, 1, A(scale, by, f) C(scale, 7, SCALE, 0, 0))                                       \
    X(exp, 1, 1, B(exp, UNARY) C(exp, 8, UNARY, 0, 0))                                             \
    X(log, 1, 1, B(log, UNARY) C(log, 9, UNARY, 0, 0))                                             \
    X(sqrt, 1, 1, B(sqrt, UNARY) C(sqrt, 10, UNARY, 0, 0))                                         \
    X(rsqrt, 1, 1, B(rsqrt, UNARY) C(rsqrt, 11, UNARY, 0, 0))                                      \
    X(tanh, 1, 1, B(tanh, UNARY) C(tanh, 12, UNARY, 0, 5))                                         \
    X(tanh_grad, 2, 2, C(tanh_grad, 18, GRADIENT, 0, 0))                                           \
    X(sigmoid, 1, 1, B(sigmoid, UNARY) C(sigmoid, 13, UNARY, 0, 6))                                \
    X(sigmoid_grad, 2, 2, C(sigmoid_grad, 19, GRADIENT, 0, 0))                                     \
    X(relu, 1, 1, B(relu, UNARY) C(relu, 14, UNARY, 0, 3))                                         \
    X(relu_grad, 2, 2, C(relu_grad, 20, GRADIENT, 0, 0))                                           \
    X(gelu, 1, 1, A(gelu, form, e(erf|tanh)) B(gelu, UNARY) C(gelu, 15, UNARY, 0, 1)               \
      C(gelu, 16, UNARY, 1, 2))                                                                    \
    X(gelu_grad, 2, 2, A(gelu_grad, form, e(erf|tanh)) C(gelu_grad, 21, GRADIENT, 0, 0)            \
      C(gelu_grad, 22, GRADIENT, 1, 0))                                                            \
    X(silu, 1, 1, B(silu, UNARY) C(silu, 17, UNARY, 0, 4))                                         \
    X(silu_grad, 2, 2, C(silu_grad, 23, GRADIENT, 0, 0))                                           \
    X(softplus, 1, 1, B(softplus, UNARY))                                                          \
    X(swiglu, 1, 2, )                                                                              \
    X(swiglu_grad, 2, 3, )                                                                         \
    X(cast, 1, 1, A(cast, to, d))                                                                  \
    X(quantize, 1, 1, A(quantize, bits, i) A(quantize, block, i) A(quantize, scale, d))            \
    X(dequantize, 1, 1, A(dequantize, bits, i) A(dequantize, block, i) A(dequantize, scale, d)     \
      A(dequantize, to, d))                                                                        \
    X(dropout, 1, 1, A(dropout, p, f) A(dropout, stream, i) C(dropout, 24, DROPOUT, 0, 0))         \
    /* shape */                                                                                    \
    X(reshape, 1, 1, A(reshape, shape, l))                                                         \
    X(slice, 1, 1, A(slice, axis, i) A(slice, start, i) A(slice, stop, i))                         \
    X(pad, 1, 1, A(pad, axis, i) A(pad, before, i) A(pad, after, i))                               \
    X(transpose, 1, 1, A(transpose, order, l))                                                     \
    X(concat, 1, ZF_MAX_OPERANDS, A(concat, axis, i))                                              \
    X(broadcast, 1, 1, A(broadcast, shape, l))                                                     \
    X(sum_to, 1, 1, A(sum_to, shape, l))                                                           \
    /* products */                                                                                 \
    X(matmul, 2, 3, A(matmul, transpose_a, b) A(matmul, transpose_b, b))                           \
    /* reductions */                                                                               \
    X(sum, 1, 1, A(sum, axis, i) A(sum, keep, b))                                                  \
    X(max, 1, 1, A(max, axis, i) A(max, keep, b))                                                  \
    X(argmax, 1, 1, A(argmax, axis, i) A(argmax, keep, b))                                         \
    X(logsumexp, 1, 1, B(logsumexp, UNARY))                                                        \
    X(total, 1, ZF_MAX_OPERANDS, )                                                                 \
    X(block_norms, 1, 1, )                                                                         \
    X(norm, 1, ZF_MAX_OPERANDS, )                                                                  \
    /* rows */                                                                                     \
    X(softmax, 1, 1, B(softmax, UNARY))                                                            \
    X(softmax_grad, 2, 2, )                                                                        \
    X(moments, 1, 1, A(moments, eps, f))                                                           \
    X(layer_norm, 4, 4, )                                                                          \
    X(layer_norm_grad, 4, 5, )                                                                     \
    X(rms, 1, 1, A(rms, eps, f))                                                                   \
    X(rms_norm, 3, 3, )                                                                            \
    X(rms_norm_grad, 4, 5, )                                                                       \
    X(norm_gamma_grad, 3, 3, )                                                                     \
    X(gather_rows, 2, 2, A(gather_rows, padded, b) A(gather_rows, padding, i)                      \
      A(gather_rows, first, i) A(gather_rows, of, i) B(gather_rows, BINARY))                       \
    X(scatter_rows, 2, 2, A(scatter_rows, rows, i) A(scatter_rows, padded, b)                      \
      A(scatter_rows, padding, i) A(scatter_rows, first, i) A(scatter_rows, of, i))                \
    X(cross_entropy, 3, 3, A(cross_entropy, ignore, i))                                            \
    X(cross_entropy_grad, 4, 4, A(cross_entropy_grad, ignore, i))                                  \
    X(rope, 1, 2, A(rope, heads, i) A(rope, theta, f) A(rope, scaling, e(none|linear|llama3))      \
      A(rope, factor, f) A(rope, low, f) A(rope, high, f) A(rope, original, i)                     \
      A(rope, inverse, b))                                                                         \
    /* fused */                                                                                    \
    X(saved, 1, 1, A(saved, index, i))                                                             \
    X(linear, 2, 4, A(linear, activation, e(none|gelu|gelu_tanh|relu|silu|tanh|sigmoid)))          \
    X(quantized_linear, 2, 3, A(quantized_linear, bits, i) A(quantized_linear, block, i)           \
      A(quantized_linear, scale, d) A(quantized_linear, transposed, b))                            \
    X(head_loss, 4, 5, A(head_loss, ignore, i) A(head_loss, bits, i) A(head_loss, block, i)        \
      A(head_loss, scale, d))                                                                      \
    X(residual_norm, 3, 5, A(residual_norm, p, f) A(residual_norm, stream, i)                      \
      A(residual_norm, eps, f) A(residual_norm, form, e(layer|rms))                                \
      A(residual_norm, sum, e(none|saved|given)))                                                  \
    X(embed_norm, 7, 7, A(embed_norm, p, f) A(embed_norm, stream, i) A(embed_norm, eps, f)         \
      A(embed_norm, padded, b) A(embed_norm, padding, i))                                          \
    X(residual_norm_grad, 4, 5, A(residual_norm_grad, p, f) A(residual_norm_grad, stream, i)       \
      A(residual_norm_grad, form, e(layer|rms)))                                                   \
    X(masked_softmax, 1, 2, A(masked_softmax, p, f) A(masked_softmax, stream, i)                   \
      A(masked_softmax, scale, f))                                                                 \
    X(masked_softmax_grad, 2, 2, A(masked_softmax_grad, p, f)                                      \
      A(masked_softmax_grad, stream, i) A(masked_softmax_grad, scale, f))                          \
    X(affine, 2, 3, )                                                                              \
    X(attention, 1, 4, A(attention, p, f) A(attention, stream, i) A(attention, heads, i)           \
      A(attention, scale, f) A(attention, causal, b) A(attention, kv_heads, i)                     \
      A(attention, window, i))                                                                     \
    X(attention_grad, 4, 7, A(attention_grad, p, f) A(attention_grad, stream, i)                   \
      A(attention_grad, heads, i) A(attention_grad, scale, f) A(attention_grad, causal, b)         \
      A(attention_grad, kv_heads, i) A(attention_grad, window, i))                                 \
    X(cached_attention, 7, 7, A(cached_attention, heads, i) A(cached_attention, scale, f)          \
      A(cached_attention, kv_heads, i) A(cached_attention, window, i)                              \
      A(cached_attention, ring, b))                                                                \
    X(chain, 1, 8, A(chain, program, l) A(chain, values, v))                                       \
    /* ranks: made by zf_zero */                                                                   \
    X(bucket, 1, ZF_MAX_OPERANDS, A(bucket, at, l) A(bucket, size, i) A(bucket, world, i)          \
      A(bucket, each, b))                                                                          \
    X(accumulator, 0, 0, )                                                                         \
    X(view, 1, 1, A(view, at, i) A(view, shape, l))                                                \
    X(shard, 1, 1, A(shard, world, i))                                                             \
    X(piece, 1, 1, A(piece, at, i) A(piece, size, i))                                              \
    X(pack, 1, ZF_MAX_OPERANDS, A(pack, at, l) A(pack, size, i))                                   \
    X(norms, 1, 1, A(norms, blocks, l))                                                            \
    X(all_gather, 1, 2, A(all_gather, world, i) A(all_gather, over, e(all|node|local)))            \
    X(reduce_scatter, 1, 2, A(reduce_scatter, world, i)                                            \
      A(reduce_scatter, over, e(all|node|local)))                                                  \
    X(all_reduce, 1, 2, A(all_reduce, world, i) A(all_reduce, over, e(all|node|local)))            \
    X(all_to_all, 1, 1, A(all_to_all, world, i) A(all_to_all, over, e(all|node|local)))            \
    X(bcast, 1, 1, A(bcast, world, i) A(bcast, over, e(all|node|local)) A(bcast, root, i))         \
    X(quantize_feedback, 2, 5, A(quantize_feedback, bits, i) A(quantize_feedback, block, i)        \
      A(quantize_feedback, scale, d) A(quantize_feedback, beta, f)                                 \
      A(quantize_feedback, reset, i))                                                              \
    X(dequantize_sum, 1, 2, A(dequantize_sum, bits, i) A(dequantize_sum, block, i)                 \
      A(dequantize_sum, scale, d) A(dequantize_sum, to, d) A(dequantize_sum, parts, i))            \
    /* effects */                                                                                  \
    X(output, 1, 1, )                                                                              \
    X(gradient, 2, 2, )                                                                            \
    X(copy, 1, 2, A(copy, to, e(device|host|disk)))                                                \
    X(release, 1, 1, )                                                                             \
    X(wait, 1, 1, )                                                                                \
    X(loss_scale, 5, 5, A(loss_scale, factor, f) A(loss_scale, window, i)                          \
      A(loss_scale, hysteresis, i) A(loss_scale, least, f) A(loss_scale, consecutive, b))          \
    X(loss_scale_update, 6, 6, A(loss_scale_update, factor, f) A(loss_scale_update, window, i)     \
      A(loss_scale_update, hysteresis, i) A(loss_scale_update, least, f)                           \
      A(loss_scale_update, consecutive, b))                                                        \
    X(advance, 1, 2, )                                                                             \
    X(delay, 2, 2, )                                                                               \
    X(sgd, 3, 6, A(sgd, momentum, f) A(sgd, nesterov, b) A(sgd, weight_decay, f)                   \
      A(sgd, piece, l) A(sgd, world, i) A(sgd, blocks, l) A(sgd, decays, v) A(sgd, scaled, b))     \
    X(adamw, 6, 8, A(adamw, beta1, f) A(adamw, beta2, f) A(adamw, eps, f)                          \
      A(adamw, weight_decay, f) A(adamw, piece, l) A(adamw, world, i) A(adamw, blocks, l)          \
      A(adamw, decays, v) A(adamw, scaled, b))                                                     \
    X(lamb_update, 5, 7, A(lamb_update, beta1, f) A(lamb_update, beta2, f)                         \
      A(lamb_update, eps, f) A(lamb_update, weight_decay, f) A(lamb_update, piece, l)              \
      A(lamb_update, world, i) A(lamb_update, blocks, l) A(lamb_update, decays, v)                 \
      A(lamb_update, scaled, b))                                                                   \
    X(lamb_apply, 5, 6, A(lamb_apply, least, f) A(lamb_apply, most, f) A(lamb_apply, piece, l)     \
      A(lamb_apply, world, i) A(lamb_apply, blocks, l))                                            \
    X(lion, 4, 6, A(lion, beta1, f) A(lion, beta2, f) A(lion, weight_decay, f) A(lion, piece, l)   \
      A(lion, world, i) A(lion, blocks, l) A(lion, decays, v) A(lion, scaled, b))                  \
    X(adam_apply, 6, 7, A(adam_apply, beta1, f) A(adam_apply, beta2, f) A(adam_apply, eps, f)      \
      A(adam_apply, weight_decay, f) A(adam_apply, limit, f) A(adam_apply, piece, l)               \
      A(adam_apply, world, i) A(adam_apply, blocks, l) A(adam_apply, decays, v))                   \
    /* 1-bit optimizers */                                                                         \
    X(sign_compress, 2, 2, A(sign_compress, at, l) A(sign_compress, count, l)                      \
      A(sign_compress, world, i) A(sign_compress, server, b))                                      \
    X(sign_expand, 1, 1, A(sign_expand, at, l) A(sign_expand, count, l) A(sign_expand, world, i)   \
      A(sign_expand, parts, i) A(sign_expand, shape, l))                                           \
    X(assign, 2, 2, )                                                                              \
    X(momentum, 2, 3, A(momentum, beta, f) A(momentum, scaled, b))                                 \
    X(local_sum, 4, 5, A(local_sum, beta, f) A(local_sum, scaled, b))                              \
    X(adam_drift, 3, 4, A(adam_drift, eps, f))                                                     \
    X(variance_ratio, 6, 6, A(variance_ratio, at, l) A(variance_ratio, count, l)                   \
      A(variance_ratio, world, i) A(variance_ratio, beta1, f) A(variance_ratio, beta2, f)          \
      A(variance_ratio, eps, f))                                                                   \
    X(maxima, 1, 1, A(maxima, blocks, l))

#define ZF_MAX_OPERANDS   65535
#define ZF_MAX_ATTRIBUTES 9
#define ZF_MAX_SAVED      4 /* values that a node leaves for its gradient, beside its result */

typedef enum zf_op {
    ZF_OP_none,
#define ZFI_ROW(name, least, most, attributes) ZF_OP_##name,
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
    ZF_OP_COUNT,
    ZF_OP_OWN = ZF_OP_COUNT, /* and up: a program's own operators (zf_operator) */
    ZF_OP_LAST = ZF_OP_OWN + 255
} zf_op;

/* What an operator is. Every claim is tested by running it (tests/ops.c). */
typedef enum zf_op_traits {
    ZF_OP_LEAF = 1,     /* has storage of its own that outlives a step, or is known beforehand */
    ZF_OP_NAMED = 2,    /* carries a name */
    ZF_OP_EFFECT = 4,   /* has no value, is never dead */
    ZF_OP_MUTATES = 8,  /* writes into its leaf operands */
    ZF_OP_VIEW = 16,    /* may be the same bytes as operand 0 */
    ZF_OP_INPLACE = 32, /* may write over an operand of its shape and element size that dies here */
    ZF_OP_COLLECTIVE = 64, /* all ranks take part in it, or groups of them */
    /* Element i of the result is made of elements i of the operands, broadcast to its shape */
    ZF_OP_ELEMENTWISE = 1 << 7,
    ZF_OP_BY_ROWS = 1 << 8,   /* each row over the last dimension is made of rows of the operands */
    ZF_OP_RANDOM = 1 << 9,    /* draws from a stream of random numbers */
    ZF_OP_PRODUCT = 1 << 10,  /* a matrix product: adds in f32 whatever its operands are */
    ZF_OP_UPDATE = 1 << 11,   /* an optimizer's: of operand 0 by the gradient, operand 1 */
    ZF_OP_FOLDABLE = 1 << 12, /* exact but for one rounding, so that constants can be folded */
    ZF_OP_WANTS_F32 = 1 << 13,  /* 16 bits have not its range or precision */
    ZF_OP_COMPARES = 1 << 14,   /* its operands are not to be rounded */
    ZF_OP_READS_HALF = 1 << 15, /* its CPU kernel takes bf16 and f16 as they are */
    ZF_OP_ONCE = 1 << 16,       /* leaves gradients in the forward pass: is not recomputed */
    ZF_OP_WRITABLE = 1 << 17,   /* a leaf that steps may write */
    ZF_OP_ANYWHERE = 1 << 18    /* its operands may lie in several spaces */
} zf_op_traits;
ZF_API const char *zf_op_name(zf_op op); /* "add", ...; "none"; "?" for any other */
ZF_API uint32_t zf_op_traits_of(zf_op op); /* 0 where there is no such operator */

typedef union zf_attribute {
    int64_t i; /* i, b, d, e */
    double f;
    struct {
        const void *data; /* l: int64_t, v: double */
        int64_t count;
    } list;
} zf_attribute;

/* Attributes by the names that their rows give them: ZF_INT(launch, matmul, transpose_a),
 * ZF_FLOAT(launch, dropout, p), ZF_LIST(launch, pack, at).data; another kind than the row's does
 * not compile. ZF_ATTRIBUTE is the union itself, and ZF_AT_pack_size is the index of `size` among
 * the attributes of pack. */
#define ZFI_ROW(name, least, most, attributes) enum { attributes ZF_ATTRIBUTES_OF_##name };
#define ZFI_ATTRIBUTE(op, name, kind)          ZF_AT_##op##_##name,
ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE

#define ZFI_KIND_i    1
#define ZFI_KIND_b    1
#define ZFI_KIND_d    1
#define ZFI_KIND_e(_) 1
#define ZFI_KIND_f    2
#define ZFI_KIND_l    3
#define ZFI_KIND_v    3
enum {
#define ZFI_ROW(name, least, most, attributes) attributes
#define ZFI_ATTRIBUTE(op, name, kind)          ZFI_KIND_OF_##op##_##name = ZFI_KIND_##kind,
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING) ZFI_KINDS
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
};
#define ZFI_AT(x, at, same) ((x)->attributes[(at) + 0 * sizeof(char[(same) ? 1 : -1])])
#define ZF_ATTRIBUTE(x, op, name) ((x)->attributes[ZF_AT_##op##_##name])
#define ZF_INT(x, op, name) ZFI_AT(x, ZF_AT_##op##_##name, ZFI_KIND_OF_##op##_##name == 1).i
#define ZF_FLOAT(x, op, name)                                                                      \
    ZFI_AT(x, ZF_AT_##op##_##name, ZFI_KIND_OF_##op##_##name == 2).f
#define ZF_LIST(x, op, name)                                                                       \
    ZFI_AT(x, ZF_AT_##op##_##name, ZFI_KIND_OF_##op##_##name == 3).list

/* A node of a graph, for programs that draw or list it. Texts and operands live until the graph is
 * changed. */
typedef struct zf_node {
    int32_t id; /* as the text numbers it */
    zf_op op;
    const char *op_name, *name, *scope; /* "": it has none */
    const char *queue;                  /* "compute", "gather", "reduce", "download", ... */
    zf_dtype dtype;
    zf_shape shape;
    zf_space space;
    const int32_t *operands; /* ids */
    int32_t operand_count;
    bool effect;     /* it has no value: dtype and shape have no meaning */
    bool leaf;       /* an input, parameter, state or constant */
    bool collective; /* of several ranks */
    bool recompute;  /* it computes a value a second time */
    bool update;     /* it runs once per step, not once per micro-batch */
} zf_node;
/* The node at a place of the order, from 0 on; false after the last. */
ZF_API bool zf_graph_node(const zf_graph *graph, int32_t place, zf_node *node);

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
    int64_t micro; /* micro-batch of the step: 0, 1, ... */
    int64_t slot;  /* which part of the global batch this is: micro * world + rank */
    int32_t rank, world;
    int32_t nodes; /* in which the ranks are, as many in each (zf_zero_desc.nodes) */
    int32_t shard; /* which shard of what is sharded is this rank's: 0, 1, ... */
    bool evaluate; /* dropout passes through */
} zf_run;

/* One node, ready to run. Operands of MUTATES operators are written through their data pointers. */
typedef struct zf_launch {
    zf_op op;
    int32_t node; /* its id, for messages */
    const zf_operator *own; /* one of the program's own, kept by the graph; NULL: a row of ZF_OPS */
    int32_t arg_count;
    const zf_array *args;
    zf_array out; /* data NULL for an effect */
    /* What it leaves for its gradient: data NULL and rank 0 where no `saved` node asks for it;
     * NULL: none does */
    const zf_array *saved;
    const zf_attribute *attributes;
    void *scratch; /* as many bytes as backend->scratch asked for */
    void *disk; /* of a copy from or to the disk, where values have no memory; else NULL */
    int32_t disk_value; /* of such a copy: which value there, from 1 on; 0: that at the address */
    bool sums;  /* of a copy from the disk: of a sum over micro-batches; not done in the first one */
    zf_space space; /* where its operands lie; of a copy, where its result does */
    const zf_run *run;
    void *backend; /* zf_backend.self */
    /* 0: the order of the list. Others run beside it, each in its own order, a launch after all
     * that were launched on queue 0 before it. */
    int32_t queue;
    const zf_comm *comm; /* of a collective */
    zf_error *error;
} zf_launch;

/* The name of its operator. */
ZF_API const char *zf_launch_name(const zf_launch *launch);

/* For kernels of operators of one's own (zf_operator). */
/* Records "NAME %NODE: " and the text as the step's error; returns `status`. */
ZF_API zf_status zf_launch_fail(const zf_launch *launch, zf_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
/* From zf_operator.cpu: task(launch, first, last) for the pieces, of `grain`, of [0, count), on the
 * workers of the CPU backend; returns when all are done. */
ZF_API void zf_launch_split(const zf_launch *launch, int64_t count, int64_t grain,
                            void (*task)(const zf_launch *launch, int64_t first, int64_t last));

/* What an instruction of a chain (ops/chain.c) reads. */
typedef enum zf_chain_kind {
    ZF_CHAIN_BINARY,   /* two registers */
    ZF_CHAIN_UNARY,    /* one */
    ZF_CHAIN_SCALE,    /* one, and a value of the chain: its attribute `by` */
    ZF_CHAIN_GRADIENT, /* two: dy, and what the unary operator saves */
    ZF_CHAIN_DROPOUT   /* one, and two values: p and stream */
} zf_chain_kind;

/* FLOPs of the products of a launch, a multiply-add being two, and the bytes that it reads and
 * writes, each value once. Data pointers are not looked at. */
ZF_API double zf_launch_flops(const zf_launch *launch);
ZF_API double zf_launch_bytes(const zf_launch *launch);
/* Functions of elements that a launch computes, in exponentials that take about as long. One are an
 * exponential, a logarithm, tanh, sigmoid, silu and its gradient, gelu's tanh form, and a random
 * number; two are softplus, gelu, and the gradient of its tanh form; three is the gradient of gelu. */
ZF_API double zf_launch_functions(const zf_launch *launch);

/* Operators of a program's own. One that zf_graph_desc lists is appended by zf_apply; it prints,
 * parses and is verified as a built-in one, passes treat it by its traits, and it runs where the
 * others do. examples/own_op.c has two. A name and a kernel are enough:
 *
 *     static zf_status cube(const zf_launch *l)
 *     {
 *         const float *x = l->args[0].data;
 *         float *y = l->out.data;
 *         for (int64_t i = 0; i < zf_shape_count(l->out.shape); i++) y[i] = x[i] * x[i] * x[i];
 *         return ZF_OK;
 *     }
 *
 *     const zf_operator own[] = {{.name = "cube", .cpu = cube}};
 *     zf_graph *g = zf_graph_new(&(zf_graph_desc){.operators = own, .operator_count = 1});
 *     zf_tensor y = zf_apply(g, "cube", 1, &x, NULL);
 */

/* Operands and attributes of a node; infer sets dtype and shape of its result. */
typedef struct zf_infer {
    const zf_operator *own;
    int32_t arg_count;
    const zf_array *args; /* data NULL */
    const zf_attribute *attributes;
    zf_dtype dtype; /* of the result; operand 0's at first, like the shape */
    zf_shape shape;
    void *node; /* the library's */
} zf_infer;
/* Records what is wrong, and what would be right, as the graph's error; returns `status`. */
ZF_API zf_status zf_infer_fail(zf_infer *infer, zf_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* A node whose gradient is asked for. For every operand k with need[k], grad sets dx[k] to a tensor
 * of the dtype and shape of x[k], appended by any builders, or leaves ZF_NONE where it is zero. */
typedef struct zf_grad {
    zf_graph *graph;
    const zf_attribute *attributes;
    zf_tensor y, dy; /* the node's result, and its gradient */
    int32_t count;
    const zf_tensor *x; /* operands */
    const bool *need;
    zf_tensor *dx; /* ZF_NONE at first */
    /* Of saved values that others read; ZF_NONE: 0. The library's operators alone have them */
    zf_tensor dsaved[ZF_MAX_SAVED];
} zf_grad;

struct zf_operator {
    const char *name;    /* letters a to z, digits, _; at most 63; none that ZF_OPS has */
    int32_t least, most; /* operands, at most ZF_OWN_OPERANDS; 0: 1, and as many as `least` */
    /* Names and kinds, "p:f axis:i form:e(erf|tanh)", at most ZF_MAX_ATTRIBUTES; kinds are those of
     * ZF_OPS. NULL: none */
    const char *attributes;
    /* Any of ZF_OP_INPLACE, ZF_OP_ELEMENTWISE, ZF_OP_BY_ROWS, ZF_OP_PRODUCT, ZF_OP_WANTS_F32,
     * ZF_OP_COMPARES and ZF_OP_READS_HALF. They are believed */
    uint32_t traits;
    uint32_t over;  /* INPLACE: the operands over which its result may lie, as a mask; 0: all */
    uint32_t whole; /* BY_ROWS: the operands that belong to all rows, as a mask, */
    int32_t rows;   /* and the one that has the rows */
    /* Dtype and shape of the result, from operands and attributes alone. NULL: all operands are
     * f32, bf16 or f16, of one dtype and one shape, and so is the result */
    zf_status (*infer)(zf_infer *infer);
    /* Appends its gradient; NULL: to differentiate it is an error */
    void (*grad)(zf_grad *grad);
    /* The kernel. Without ZF_OP_READS_HALF it is given f32 in place of bf16 and f16, and with
     * ELEMENTWISE or BY_ROWS some of the rows at a time, on several threads. Data pointers and what
     * they point to change from step to step; it must do the same work with the same values */
    zf_status (*cpu)(const zf_launch *launch);
    size_t (*scratch)(const zf_launch *launch); /* bytes that cpu needs while it runs; NULL: none */
    /* The kernel for a CUDA backend, or NULL: puts its work on `stream`, a cudaStream_t. Operands
     * are of any dtype that infer lets pass but f64. It is called once or twice for each node, and
     * what it has put there runs again in every step: it must not look at what launch->run points
     * to */
    zf_status (*cuda)(const zf_launch *launch, void *stream);
    size_t (*cuda_scratch)(const zf_launch *launch);
    double (*flops)(const zf_launch *launch); /* of its products; a multiply-add is two; NULL: 0 */
    double (*functions)(const zf_launch *launch); /* as zf_launch_functions; NULL: 0 */
    void *user; /* launch->own->user, infer->own->user */
};

enum { ZF_MAX_OPERATORS = ZF_OP_LAST - ZF_OP_OWN + 1, ZF_OWN_OPERANDS = 16 };

/* Appends one of the graph's own operators (zf_graph_desc.operators) over x[0..count). It reads as
 * many attributes as the operator has, in their order; NULL: all are absent. */
ZF_BUILDER zf_tensor zf_apply(zf_graph *graph, const char *name, int32_t count, const zf_tensor *x,
                              const zf_attribute *attributes);

/* What the nodes of an operator do in a step: how often they run, and what zf_launch_flops and
 * zf_launch_bytes say of that. Leaves, marks and views do nothing; behind zf_memory, only views
 * that it has put onto their operand are views. ZF_OP_none: all operators together. */
typedef struct zf_work {
    int64_t launches;
    double flops, bytes;
} zf_work;
ZF_API zf_status zf_graph_work(zf_graph *graph, zf_op op, zf_work *work);

/* ---------------------------------------------------------------------------------- 14 BACKENDS
 *
 * What a device must offer. The core is handed a table of functions and knows no device by name. */

typedef enum zf_copy { ZF_HOST_TO_DEVICE, ZF_DEVICE_TO_HOST, ZF_DEVICE_TO_DEVICE } zf_copy;

/* Launches [first, last) of a program in their order, each on its queue, among which those with
 * waits_for[n] >= 0 are waits for launch waits_for[n]. The same list comes again in every step with
 * other values in what launch->run points to. */
typedef struct zf_section {
    const zf_launch *launches;
    const int32_t *waits_for;
    int32_t first, last;
    void *kept; /* what the backend keeps for the next time; NULL at first */
    /* Where the backend has allocate_host, the section has launches in host memory too, and copies
     * from and to a disk: those whose `backend` is host->self. The backend calls host->launch for
     * them, and host->wait for a wait for one, in their order on one thread at a time, each when
     * what stands above it and uses the same host memory is done. Their `error` is not that of
     * other launches; after the first error none of them needs to run. NULL: there are none */
    zf_backend *host;
} zf_section;

struct zf_backend {
    const char *name;
    void *self;
    /* 64-byte aligned, or NULL with *error. */
    void *(*allocate)(void *self, size_t bytes, zf_error *error);
    void (*release)(void *self, void *memory, size_t bytes);
    /* After what was launched on queue 0 before it, and before what is launched there later. When
     * it returns, the host may use its memory. */
    zf_status (*copy)(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                      zf_error *error);
    /* Bytes of scratch that this node needs while it runs; data pointers are not set. */
    size_t (*scratch)(void *self, const zf_launch *launch);
    /* Makes queues 1 to count - 1 ready; called before anything is launched on them. */
    zf_status (*queues)(void *self, int32_t count, zf_error *error);
    /* The launch must stay as it is until it is done. */
    zf_status (*launch)(void *self, const zf_launch *launch);
    /* What is launched on queue 0 from now on comes after this launch of another queue. */
    zf_status (*wait)(void *self, const zf_launch *launch);
    zf_status (*synchronize)(void *self, zf_error *error); /* with every queue */
    void (*destroy)(void *self);
    /* NULL, or: whether the node can run here, else ZF_ERR_BACKEND in launch->error, saying what
     * can. Asked by zf_compile; data pointers are not set. */
    zf_status (*check)(void *self, const zf_launch *launch);
    /* NULL (then launch and wait are called), or: runs them all. What it makes for that it may
     * keep; then `forget` frees it, and sets `kept` to NULL. */
    zf_status (*run)(void *self, zf_section *section, zf_error *error);
    void (*forget)(void *self, zf_section *section);
    /* NULL, or: what those who wonder about its speed should know, as zf_program_info.remark. */
    const char *(*remark)(void *self);
    /* NULL (then they run one after the other), or: task(context, k) for every k in [0, count), on
     * several threads of the host; returns when all are done. Called while nothing is launched. */
    void (*share)(void *self, int64_t count, void (*task)(void *context, int64_t index),
                  void *context);
    /* Its memory is the host's: what lies in ZF_HOST can be computed here as well */
    bool host_memory;
    /* NULL (then it is that of the CPU backend), or: host memory that the device copies from and to
     * without the host; as allocate and release. Such a device runs sections with launches in host
     * memory (zf_section.host) */
    void *(*allocate_host)(void *self, size_t bytes, zf_error *error);
    void (*release_host)(void *self, void *memory, size_t bytes);
};

/* ----------------------------------------------------------------------------- 15 COMMUNICATORS */

/* The ranks first, first + stride, ...: `count` of them; count 0: all. */
typedef struct zf_group {
    int32_t first, stride, count;
} zf_group;

/* One collective of one rank. Elements of in and out, n ranks in its group: count and n count of
 * all_gather; n count and count of reduce_scatter; n count each of all_to_all; count each of
 * all_reduce and bcast. out may be in where both have one length; they never overlap otherwise,
 * except that in may be this rank's own part of all_gather's out. With add, all_reduce's out is the
 * same on all ranks. */
typedef struct zf_collective {
    zf_op op;
    int32_t node;    /* its id, for messages */
    /* Calls on one channel are in one order on all ranks of a group; channels overlap */
    int32_t channel;
    zf_dtype dtype;
    int64_t count;   /* elements, as above */
    const void *in;
    void *out;
    bool add;     /* reductions: out += instead of out = */
    int32_t root; /* bcast: which one of the group, from 0 on */
    zf_group group; /* who calls it, this rank among them; a rank may be in several groups */
    void *stream; /* the device queue to do it on; NULL: it is done when the call returns */
} zf_collective;

/* The ranks that run one plan, as one of them sees it. A reduction adds rank 0, 1, 2, ... in that
 * order, to what `add` finds, in f32 (f64 of f64, integers of integers) and rounds once, so that
 * the bits are the same on every communicator (zf_add_ranks). */
struct zf_comm {
    void *self;
    int32_t rank, world;
    /* Blocks until this rank's part is done. ZF_ERR_COMM, naming node and rank, when another rank
     * does not come within the deadline, asks for something else, or has given up (then ZF_ERR_IO,
     * if that is why: see abort); then all later calls fail as well. Calls on different channels
     * may come from different threads. */
    zf_status (*run)(void *self, const zf_collective *call, zf_error *error);
    /* This rank will not come any more, because of an error with this status: the others' calls
     * fail with "rank R gave up: REASON", and with ZF_ERR_IO where that is the status, else with
     * ZF_ERR_COMM. Does nothing after a failure, of this rank or another. */
    void (*abort)(void *self, zf_status status, const char *reason);
    void (*destroy)(void *self);
    /* NULL, or, where calls are put on a stream: how they fare, asked by a device that has been
     * waiting for them for `seconds`. After an error soon nothing on the stream waits for
     * them. */
    zf_status (*check)(void *self, double seconds, zf_error *error);
    /* Bytes of the device that it has taken for itself, which no plan counts; 0: of the host's */
    size_t memory;
    /* It can do calls of a group (zf_collective.group). Where one fails, the calls of all ranks
     * fail */
    bool groups;
};

/* What a node of trait ZF_OP_COLLECTIVE asks of the communicator; on no stream. */
ZF_API zf_collective zf_collective_of(const zf_launch *launch);
/* For those who write a communicator: whether a call is one that can be done there, on channels 0
 * to channels - 1; ZF_ERR_ARGUMENT says what is wrong, and what would be right. */
ZF_API zf_status zf_collective_check(const zf_collective *call, const zf_comm *comm,
                                     int32_t channels, zf_error *error);
/* The group of the call: where it names none, all ranks. The rank itself is number
 * (comm->rank - group.first) / group.stride of it. */
ZF_API zf_group zf_collective_group(const zf_collective *call, const zf_comm *comm);
/* "all_gather %59", and "bcast %59 of 1024 f32 from rank 1"; the text is given back. */
ZF_API const char *zf_collective_name(char text[64], const zf_collective *call);
ZF_API const char *zf_collective_text(char text[128], const zf_collective *call);

/* out[i] = (add ? out[i] : 0) + parts[0][i] + parts[1][i] + ..., in that order; what communicators
 * reduce with. out may be one of the parts. */
ZF_API void zf_add_ranks(void *out, const void *const *parts, int32_t world, int64_t count,
                         zf_dtype dtype, bool add);

/* For communicators that work on CUDA's streams (zeroflow_cuda.cu): zf_add_ranks on the current
 * device. */
typedef struct zf_cuda_sum {
    void *out;
    const void *parts; /* rank r's is at parts + r * stride */
    size_t stride;     /* bytes */
    const void *own;   /* where that of `rank` is instead; NULL: with the others */
    int32_t rank, world;
    int64_t count;
    zf_dtype dtype;
    bool add;
} zf_cuda_sum;
extern zf_status zf_cuda_add_ranks(const zf_cuda_sum *sum, void *stream, zf_error *error);

/* Where a stream is, in host memory that the device sees. */
typedef struct zf_cuda_place {
    int64_t turn;       /* grows by one at each of these: */
    zf_collective call; /* what began last; op ZF_OP_none: it has ended */
} zf_cuda_place;
/* When the stream comes here, `place` says so; call NULL: what began has ended. */
extern zf_status zf_cuda_tell(zf_cuda_place *place, const zf_collective *call, void *stream,
                              zf_error *error);

/* zf_step and others for all ranks at once, on one thread, in lockstep: programs[r] is that of rank
 * r, made with a communicator of that rank. Each runs up to its next collective, which must be the
 * same on all; then it is done for all. A difference is an error that names both sides' nodes. For
 * tests: launches of other queues are done as late as the plan allows, or, by `seed`, sooner. */
typedef struct zf_lockstep_desc {
    zf_program *const *programs;
    int32_t count;
    uint64_t seed; /* 0: at the wait for it */
} zf_lockstep_desc;
ZF_API zf_status zf_lockstep_step(const zf_lockstep_desc *desc, zf_error *error);
ZF_API zf_status zf_lockstep_micro(const zf_lockstep_desc *desc, zf_error *error);
/* zf_compare_ranks of all ranks. */
ZF_API zf_status zf_lockstep_compare(const zf_lockstep_desc *desc, zf_error *error);
/* zf_read of a param or state, by name, that may be cut over the ranks. */
ZF_API zf_status zf_lockstep_read(const zf_lockstep_desc *desc, const char *name, void *data,
                                  size_t bytes, zf_error *error);
/* zf_save and zf_load of the stores of all ranks. */
ZF_API zf_status zf_lockstep_save(const zf_lockstep_desc *desc, const char *path,
                                  const zf_save_desc *save, zf_error *error);
ZF_API zf_status zf_lockstep_load(const zf_lockstep_desc *desc, const char *path,
                                  const zf_load_desc *load, zf_error *error);

#ifdef ZFI_API_OF_PROGRAM
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#endif /* ZEROFLOW_H */

#if defined(ZEROFLOW_IMPLEMENTATION) && defined(__cplusplus)
#error "ZEROFLOW_IMPLEMENTATION must be compiled as C: put it in one .c file"
#elif defined(ZEROFLOW_IMPLEMENTATION) && !defined(ZEROFLOW_IMPLEMENTED)
#define ZEROFLOW_IMPLEMENTED
#ifdef ZFI_API_OF_PROGRAM /* as above */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#ifdef zf_add /* the header was included before: its macros would expand in the functions below */
#include "api/lines.h"
#endif
#include "graph/error.c"
#include "graph/alloc.c"
#include "graph/number.c"
#include "graph/shape.c"
#include "graph/mesh.c"
#include "graph/blocks.c"
#include "cpu/isa.c"
#include "cpu/threads.c"
#include "cpu/random.c"
#include "cpu/vmath.c"
#include "cpu/convert.c"
#include "cpu/tile.c"
#include "cpu/tile16.c"
#include "cpu/tile_amx.c"
#include "cpu/matmul.c"
#include "io/crc32c.c"
#include "io/files.c"
#include "io/system.c"
#include "io/ring.c"
#include "io/offload.c"
#include "io/disk.c"
ZFI_PLAIN_BEGINS
#include "io/json.c"
#include "io/safetensors.c"
#include "options/walk.c"
#include "options/rules.c"
#include "options/read.c"
#include "options/show.c"
#include "graph/graph.c"
#include "graph/build.c"
#include "graph/own.c"
#include "graph/new.c"
#include "graph/copy.c"
#include "ops/kernel.c"
#include "ops/leaf.c"
#include "ops/binary.c"
#include "ops/unary.c"
#include "ops/softplus.c"
#include "ops/swiglu.c"
#include "ops/move.c"
#include "ops/sum_to.c"
#include "ops/activation_grad.c"
#include "ops/matmul.c"
#include "ops/reduce.c"
#include "ops/rows.c"
#include "ops/rope.c"
#include "ops/norm.c"
#include "ops/loss.c"
#include "ops/bucket.c"
#include "ops/collective.c"
#include "ops/scaler.c"
#include "ops/quantize_block.c"
#include "ops/quantize.c"
#include "ops/copy.c"
#include "ops/optimizer.c"
#include "ops/update.c"
#include "ops/sgd.c"
#include "ops/adamw.c"
#include "ops/lamb.c"
#include "ops/lion.c"
#include "ops/sign.c"
#include "ops/variance.c"
#include "ops/linear.c"
#include "ops/quantized_dot.c"
#include "ops/quantized_linear.c"
#include "ops/head.c"
#include "ops/fused_norm.c"
#include "ops/fused_softmax.c"
#include "ops/attention_heads.c"
#include "ops/attention_block.c"
#include "ops/attention_fast.c"
#include "ops/attention.c"
#include "ops/cache.c"
#include "ops/chain.c"
#include "ops/saved.c"
#include "ops/delay.c"
#include "ops/table.c"
#include "ir/print.c"
#include "ir/verify.c"
#include "ir/queues.c"
#include "ir/ranks.c"
#include "ir/complete.c"
#include "ir/gate.c"
#include "ir/settle.c"
#include "ir/plan.c"
#include "ir/parse.c"
#include "store/layout.c"
#include "passes/autograd.c"
#include "passes/simplify.c"
#include "passes/clip.c"
#include "passes/onebit.c"
#include "passes/onebit_lamb.c"
#include "passes/zero_one.c"
#include "passes/optimizer.c"
#include "passes/delay.c"
#include "passes/precision.c"
#include "passes/tile.c"
#include "passes/buckets.c"
#include "passes/runs.c"
#include "passes/zero_micro.c"
#include "passes/zero_update.c"
#include "passes/zero.c"
#include "passes/offload_copies.c"
#include "passes/offload_parameters.c"
#include "passes/offload_activations.c"
#include "passes/offload_gradients.c"
#include "passes/offload_optimizer.c"
#include "passes/offload_pieces.c"
#include "passes/offload.c"
#include "passes/fuse_update.c"
#include "passes/fuse_chain.c"
#include "passes/fuse_miss.c"
#include "passes/lora.c"
#include "passes/fuse.c"
#include "passes/memory.c"
#include "passes/cost.c"
#include "passes/account.c"
#include "passes/estimate.c"
#include "passes/beside.c"
#include "passes/reuse.c"
#include "passes/reuse_gradients.c"
#include "passes/prefetch_join.c"
#include "passes/prefetch_put_off.c"
#include "passes/prefetch_fetches.c"
#include "passes/prefetch_waits.c"
#include "passes/prefetch_updates.c"
#include "passes/prefetch.c"
#include "passes/recompute_alive.c"
#include "passes/recompute_order.c"
#include "passes/recompute.c"
#include "passes/invert.c"
#include "passes/fit.c"
#include "passes/training.c"
#include "comm/clock.c"
#include "comm/ranks.c"
#include "comm/call.c"
#include "comm/local.c"
#include "comm/agree.c"
#include "store/same.c"
#include "store/store.c"
#include "store/lora.c"
#include "store/manifest.c"
#include "store/save.c"
#include "store/load.c"
#include "store/checkpoint.c"
#include "run/queue.c"
#include "run/widen.c"
#include "run/cpu.c"
#include "run/init.c"
#include "run/program.c"
#include "run/bind.c"
#include "run/launches.c"
#include "run/fill.c"
#include "run/compile.c"
#include "run/access.c"
#include "run/step.c"
#include "run/info.c"
#include "run/cost.c"
#include "comm/lockstep.c"
#include "nn/schedule.c"
#include "nn/layers.c"
#include "nn/train.c"
#include "nn/fit.c"
ZFI_PLAIN_ENDS
#if defined(__clang__)
#pragma clang diagnostic pop /* cpu/isa.c */
#pragma STDC FP_CONTRACT DEFAULT
#endif
#ifdef ZFI_API_OF_PROGRAM
#pragma GCC diagnostic pop
#endif
#endif

/* Every builder notes the line that calls it, so that an error names it. */
#if !defined(ZF_NO_LINES) && !defined(zf_add)
#include "api/lines.h"
#endif
