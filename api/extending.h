/* api/extending.h - operators, backends and communicators of a program's own.
 *
 * For programs with operators, a device or a communicator of their own, and for changes of the
 * library.
 *
 * ADDING AN OPERATOR
 *
 * One row in ZF_OPS: name, operands, attributes. One file ops/NAME.c, in the list of includes at
 * the end of this header, with the functions of the operator and, at its end, its record, which has
 * all that passes and backends ask of it: ZFI_OPERATOR(NAME, .infer = ..., .grad = ..., .cpu = ...,
 * .traits = ...). graph/graph.c explains the fields (zfi_record), zf_op_traits below the traits. No
 * pass keeps a list of operators. For CUDA one file ops/NAME.cu, in the list of zeroflow_cuda.cu,
 * that ends with ZFD_KERNEL(NAME, run, scratch). A builder: its declaration in api/core.h, which
 * begins with ZF_BUILDER; `make lines` then makes its macro. B in the row makes its function; one
 * with attributes has its function in graph/build.c. One row in tests/ops/op_cases.h runs every
 * test of operators: values, gradient, threads, writing in place, CUDA, and each claim of the
 * record. What is forgotten does not compile, or fails a test that names it. ops/softplus.c is a
 * short example. An optimizer's update is an operator with trait ZF_OP_UPDATE and attributes world
 * and blocks (for zf_zero), perhaps weight_decay with decays, and scaled (for zf_fuse and the loss
 * scale); passes/optimizers/optimizer.c appends it.
 *
 * OPERATORS OF YOUR OWN
 *
 * A program needs no change of the library for an operator. A zf_operator has its name, operands,
 * attributes, traits (elementwise, by rows, in place) and functions: infer gives the shape of the
 * result, grad appends the gradient as nodes, cpu and perhaps cuda are its kernels. zf_graph_desc
 * lists them, zf_apply appends one. examples/own_op.c is a whole program, api/extending.h the
 * reference. They cannot be leaves, effects, updates or collectives, and draw no random numbers.
 *
 * ADDING A PASS
 *
 * One file passes/NAME.c, in the list of includes, that begins with what it requires, ensures, and
 * how text looks before and after. Its function enters by zfi_enter, which says which passes must
 * and must not have been run, and leaves by zfi_leave, which verifies the graph. What it needs to
 * know of a node it asks of the node's record; if nothing says it yet, the record gets a field, and
 * tests/ops/records.c a check that runs the operators. Its declaration is in api/passes.h, a row in
 * passes/training.c puts the pass among those of a training step, a row in tools/pass.c makes it
 * known to zf-opt, and tests/passes/NAME.zf has a graph before and after it, whose numbers are
 * compared as well.
 */

/* ----------------------------------------------------------------------------------- OPERATORS */

/* One row per operator: name, least and most operands, attributes. An attribute is A(operator,
 * name, kind), kind one of i (int64), f (double), b (bool), d (dtype), l (list of int64), v (list
 * of double) and e(names) (one of the names). One that is absent is 0, false, the first name or the
 * empty list. The order of rows has no meaning. Everything else about an operator is in its record,
 * in its file of ops/.
 *
 * B(operator, UNARY or BINARY) makes its builder, zf_OPERATOR(x) or zf_OPERATOR(a, b), which api/
 * must declare. C(operator, code, kind, form, activation) makes it an instruction of chains: `code`
 * is its number in their programs, a new one for a new operator; `kind` is a zf_chain_kind, `form`
 * the value of its attribute of that name, else 0. `activation` is the place of the operator among
 * the names of linear's attribute `activation`, 0 where it is none of them. */
#define ZFI_NOTHING(...)
#define ZF_OPS(X, A, B, C)                                                                         \
    /* leaves */                                                                                   \
    X(input, 0, 0, )                                                                               \
    X(param, 0, 0, A(param, init, e(zeros|ones|constant|normal|truncated|uniform))                 \
      A(param, a, f) A(param, b, f) A(param, frozen, b) A(param, row, i) A(param, rows, i)         \
      A(param, bits, i) A(param, block, i) A(param, scale, d) A(param, rate, f)                    \
      A(param, decay, f) A(param, no_decay, b) A(param, beta1, f) A(param, beta2, f)               \
      A(param, optimizer, e(any|adamw|lamb|sgd|lion)) A(param, lazy, b) A(param, constant, b))     \
    X(state, 0, 1, A(state, value, f) A(state, row, i) A(state, rows, i)                           \
      A(state, ranks, e(stage|whole|each|cut|node)))                                               \
    X(cache, 0, 0, A(cache, held, b) A(cache, bits, i) A(cache, block, i) A(cache, scale, d))      \
    X(constant, 0, 0, A(constant, values, v))                                                      \
    /* elementwise, broadcasting */                                                                \
    X(add, 2, 2, B(add, BINARY) C(add, 0, BINARY, 0, 0))                                           \
    X(sub, 2, 2, B(sub, BINARY) C(sub, 1, BINARY, 0, 0))                                           \
    X(mul, 2, 2, B(mul, BINARY) C(mul, 2, BINARY, 0, 0))                                           \
    X(div, 2, 2, B(div, BINARY) C(div, 3, BINARY, 0, 0))                                           \
    X(maximum, 2, 2, B(maximum, BINARY) C(maximum, 4, BINARY, 0, 0))                               \
    X(minimum, 2, 2, B(minimum, BINARY) C(minimum, 5, BINARY, 0, 0))                               \
    X(pow, 2, 2, B(pow, BINARY))                                                                   \
    X(equal, 2, 2, A(equal, negated, b) B(equal, BINARY))                                          \
    X(less, 2, 2, A(less, or_equal, b) B(less, BINARY))                                            \
    X(where, 3, 3, )                                                                               \
    /* elementwise, one operand */                                                                 \
    X(neg, 1, 1, B(neg, UNARY) C(neg, 6, UNARY, 0, 0))                                             \
    X(scale, 1, 1, A(scale, by, f) C(scale, 7, SCALE, 0, 0))                                       \
    X(exp, 1, 1, B(exp, UNARY) C(exp, 8, UNARY, 0, 0))                                             \
    X(log, 1, 1, B(log, UNARY) C(log, 9, UNARY, 0, 0))                                             \
    X(sqrt, 1, 1, B(sqrt, UNARY) C(sqrt, 10, UNARY, 0, 0))                                         \
    X(rsqrt, 1, 1, B(rsqrt, UNARY) C(rsqrt, 11, UNARY, 0, 0))                                      \
    X(abs, 1, 1, B(abs, UNARY))                                                                    \
    X(sin, 1, 1, B(sin, UNARY))                                                                    \
    X(cos, 1, 1, B(cos, UNARY))                                                                    \
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
    X(quantize, 1, 1, A(quantize, bits, i) A(quantize, block, i) A(quantize, scale, d)             \
      A(quantize, once, b))                                                                        \
    X(dequantize, 1, 1, A(dequantize, bits, i) A(dequantize, block, i) A(dequantize, scale, d)     \
      A(dequantize, to, d))                                                                        \
    X(dropout, 1, 1, A(dropout, p, f) A(dropout, stream, i) C(dropout, 24, DROPOUT, 0, 0))         \
    X(draw, 1, 1, A(draw, form, e(uniform|normal)) A(draw, stream, i))                             \
    X(layer_drop, 1, 1, A(layer_drop, coin, i) A(layer_drop, share, f) A(layer_drop, theta, f)     \
      A(layer_drop, gamma, f))                                                                     \
    /* shape */                                                                                    \
    X(reshape, 1, 1, A(reshape, shape, l) A(reshape, cut, i))                                      \
    X(stop_gradient, 1, 1, B(stop_gradient, UNARY))                                                \
    X(gather_examples, 1, 1, A(gather_examples, ranks, i))                                         \
    X(scatter_examples, 1, 1, A(scatter_examples, ranks, i))                                       \
    X(slice, 1, 1, A(slice, axis, i) A(slice, start, i) A(slice, stop, i))                         \
    X(pad, 1, 1, A(pad, axis, i) A(pad, before, i) A(pad, after, i))                               \
    X(transpose, 1, 1, A(transpose, order, l))                                                     \
    X(concat, 1, ZF_MAX_OPERANDS, A(concat, axis, i))                                              \
    X(broadcast, 1, 1, A(broadcast, shape, l))                                                     \
    X(sum_to, 1, 1, A(sum_to, shape, l))                                                           \
    X(repeat, 1, 1, A(repeat, heads, i) A(repeat, copies, i)                                       \
      A(repeat, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners)))      \
    X(repeat_grad, 1, 1, A(repeat_grad, heads, i) A(repeat_grad, copies, i)                        \
      A(repeat_grad, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))) \
    /* products */                                                                                 \
    X(matmul, 2, 3, A(matmul, transpose_a, b) A(matmul, transpose_b, b) A(matmul, sections, i)     \
      A(matmul, wide, b) A(matmul, runs, i))                                                       \
    X(conv, 2, 2, A(conv, stride, l) A(conv, pad, l) A(conv, dilation, l) A(conv, groups, i))      \
    X(conv_grad_x, 2, 2, A(conv_grad_x, stride, l) A(conv_grad_x, pad, l)                          \
      A(conv_grad_x, dilation, l) A(conv_grad_x, groups, i) A(conv_grad_x, size, l))               \
    X(conv_grad_w, 2, 2, A(conv_grad_w, stride, l) A(conv_grad_w, pad, l)                          \
      A(conv_grad_w, dilation, l) A(conv_grad_w, groups, i) A(conv_grad_w, taps, l))               \
    /* reductions */                                                                               \
    X(sum, 1, 1, A(sum, axis, i) A(sum, keep, b))                                                  \
    X(max, 1, 1, A(max, axis, i) A(max, keep, b))                                                  \
    X(argmax, 1, 1, A(argmax, axis, i) A(argmax, keep, b))                                         \
    X(logsumexp, 1, 1, B(logsumexp, UNARY))                                                        \
    X(cumsum, 1, 1, A(cumsum, axis, i) A(cumsum, reverse, b))                                      \
    X(top_k, 1, 1, A(top_k, k, i))                                                                 \
    X(gather, 2, 2, A(gather, axis, i))                                                            \
    X(scatter_add, 2, 2, A(scatter_add, axis, i) A(scatter_add, size, i))                          \
    X(one_hot, 1, 1, A(one_hot, classes, i) A(one_hot, to, d))                                     \
    X(total, 1, ZF_MAX_OPERANDS, )                                                                 \
    X(block_norms, 1, 1, )                                                                         \
    X(norm, 1, ZF_MAX_OPERANDS, )                                                                  \
    X(squares, 1, 1, A(squares, unit, i) A(squares, world, i) A(squares, blocks, l))               \
    X(norm_of_squares, 1, ZF_MAX_OPERANDS, A(norm_of_squares, wide, b))                            \
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
      A(scatter_rows, padding, i) A(scatter_rows, first, i) A(scatter_rows, of, i)                 \
      A(scatter_rows, over,                                                                        \
        e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners)))                    \
    X(distinct_rows, 1, 1, A(distinct_rows, rows, i) A(distinct_rows, padded, b)                   \
      A(distinct_rows, padding, i))                                                                \
    X(sum_rows, 3, 3, )                                                                            \
    X(cross_entropy, 3, 3, A(cross_entropy, ignore, i))                                            \
    X(cross_entropy_grad, 4, 4, A(cross_entropy_grad, ignore, i))                                  \
    X(rope, 1, 2, A(rope, heads, i) A(rope, theta, f) A(rope, scaling, e(none|linear|llama3|yarn)) \
      A(rope, factor, f) A(rope, low, f) A(rope, high, f) A(rope, original, i)                     \
      A(rope, inverse, b) A(rope, unrounded, b) A(rope, by, f) A(rope, first, i) A(rope, of, i))   \
    /* fused */                                                                                    \
    X(saved, 1, 1, A(saved, index, i))                                                             \
    X(linear, 2, 4, A(linear, activation, e(none|gelu|gelu_tanh|relu|silu|tanh|sigmoid))           \
      A(linear, sections, i) A(linear, wide, b))                                                   \
    X(quantized_linear, 2, 3, A(quantized_linear, bits, i) A(quantized_linear, block, i)           \
      A(quantized_linear, scale, d) A(quantized_linear, transposed, b))                            \
    X(head_loss, 4, 5, A(head_loss, ignore, i) A(head_loss, bits, i) A(head_loss, block, i)        \
      A(head_loss, scale, d))                                                                      \
    X(head_logp, 3, 4, A(head_logp, ignore, i) A(head_logp, bits, i) A(head_logp, block, i)        \
      A(head_logp, scale, d) A(head_logp, temperature, f))                                         \
    X(head_logp_grad, 4, 5, A(head_logp_grad, ignore, i) A(head_logp_grad, bits, i)                \
      A(head_logp_grad, block, i) A(head_logp_grad, scale, d) A(head_logp_grad, temperature, f))   \
    X(head_part, 3, 4, A(head_part, ignore, i) A(head_part, bits, i) A(head_part, block, i)        \
      A(head_part, scale, d) A(head_part, temperature, f) A(head_part, sections, i)                \
      A(head_part, first, i) A(head_part, of, i) A(head_part, entropy, b))                         \
    X(head_part_grad, 5, 6, A(head_part_grad, ignore, i) A(head_part_grad, bits, i)                \
      A(head_part_grad, block, i) A(head_part_grad, scale, d) A(head_part_grad, temperature, f)    \
      A(head_part_grad, sections, i) A(head_part_grad, first, i) A(head_part_grad, of, i)          \
      A(head_part_grad, entropy, b))                                                               \
    X(head_join, 2, 2, A(head_join, ignore, i))                                                    \
    X(head_join_grad, 3, 3, A(head_join_grad, ignore, i))                                          \
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
    X(documents, 1, 1, B(documents, UNARY))                                                        \
    X(route, 1, 2, A(route, form, e(softmax|sigmoid)) A(route, k, i) A(route, normalize, b)        \
      A(route, groups, i) A(route, kept, i) A(route, scale, f) A(route, balance, b))               \
    X(expert_rows, 1, 2, A(expert_rows, experts, i) A(expert_rows, rows, i)                        \
      A(expert_rows, capacity, i) A(expert_rows, blocks, i) A(expert_rows, parts, i)               \
      A(expert_rows, runs, i) A(expert_rows, zigzag, b))                                           \
    X(dispatch, 3, 4, A(dispatch, parts, i))                                                       \
    X(combine, 3, 4, A(combine, parts, i))                                                         \
    X(choice_dots, 4, 4, A(choice_dots, parts, i))                                                 \
    X(grouped_linear, 3, 3, A(grouped_linear, transpose, b) A(grouped_linear, sources, i)          \
      A(grouped_linear, sections, i) A(grouped_linear, wide, b) A(grouped_linear, bits, i)         \
      A(grouped_linear, block, i) A(grouped_linear, scale, d) A(grouped_linear, alone, b)          \
      A(grouped_linear, parts, i))                                                                 \
    X(grouped_outer, 3, 3, A(grouped_outer, sources, i) A(grouped_outer, sections, i)              \
      A(grouped_outer, parts, i) A(grouped_outer, apart, b))                                       \
    X(attention, 1, 6, A(attention, p, f) A(attention, stream, i) A(attention, heads, i)           \
      A(attention, scale, f) A(attention, causal, b) A(attention, kv_heads, i)                     \
      A(attention, window, i) A(attention, documents, b) A(attention, block, i)                    \
      A(attention, layouts, i) A(attention, cap, f) A(attention, first, i) A(attention, of, i)     \
      A(attention, key, i) A(attention, keys, i))                                                  \
    X(attention_grad, 4, 9, A(attention_grad, p, f) A(attention_grad, stream, i)                   \
      A(attention_grad, heads, i) A(attention_grad, scale, f) A(attention_grad, causal, b)         \
      A(attention_grad, kv_heads, i) A(attention_grad, window, i)                                  \
      A(attention_grad, documents, b) A(attention_grad, block, i) A(attention_grad, layouts, i)    \
      A(attention_grad, cap, f) A(attention_grad, first, i) A(attention_grad, of, i)               \
      A(attention_grad, key, i) A(attention_grad, keys, i))                                        \
    X(attention_backward, 6, 9, A(attention_backward, p, f) A(attention_backward, stream, i)       \
      A(attention_backward, heads, i) A(attention_backward, scale, f)                              \
      A(attention_backward, causal, b) A(attention_backward, kv_heads, i)                          \
      A(attention_backward, window, i) A(attention_backward, documents, b)                         \
      A(attention_backward, block, i) A(attention_backward, layouts, i)                            \
      A(attention_backward, cap, f) A(attention_backward, first, i) A(attention_backward, of, i)   \
      A(attention_backward, key, i) A(attention_backward, keys, i))                                \
    X(attention_join, 4, 4, A(attention_join, heads, i))                                           \
    X(cached_attention, 7, 9, A(cached_attention, heads, i) A(cached_attention, scale, f)          \
      A(cached_attention, kv_heads, i) A(cached_attention, window, i)                              \
      A(cached_attention, ring, b) A(cached_attention, block, i) A(cached_attention, layouts, i)   \
      A(cached_attention, cap, f) A(cached_attention, biased, b))                                  \
    X(chain, 1, 8, A(chain, program, l) A(chain, values, v))                                       \
    /* ranks: made by zf_zero */                                                                   \
    X(bucket, 1, ZF_MAX_OPERANDS, A(bucket, at, l) A(bucket, size, i) A(bucket, world, i)          \
      A(bucket, each, b))                                                                          \
    X(accumulator, 0, 0, )                                                                         \
    X(collect, 2, 2, A(collect, parts, i))                                                         \
    X(view, 1, 1, A(view, at, i) A(view, shape, l))                                                \
    X(shard, 1, 1, A(shard, world, i))                                                             \
    X(piece, 1, 1, A(piece, at, i) A(piece, size, i))                                              \
    X(pack, 1, ZF_MAX_OPERANDS, A(pack, at, l) A(pack, size, i))                                   \
    X(norms, 1, 1, A(norms, blocks, l))                                                            \
    X(all_gather, 1, 2, A(all_gather, world, i)                                                    \
      A(all_gather, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))   \
      A(all_gather, dim, i) A(all_gather, once, b) A(all_gather, zigzag, b)                        \
      A(all_gather, before, i) A(all_gather, after, i))                                            \
    X(reduce_scatter, 1, 2, A(reduce_scatter, world, i)                                            \
      A(reduce_scatter, over,                                                                      \
        e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))                     \
      A(reduce_scatter, order, e(ranks|tree))                                                      \
      A(reduce_scatter, dim, i) A(reduce_scatter, examples, b) A(reduce_scatter, run, i)           \
      A(reduce_scatter, zigzag, b) A(reduce_scatter, before, i) A(reduce_scatter, after, i))       \
    X(all_reduce, 1, 2, A(all_reduce, world, i)                                                    \
      A(all_reduce, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))   \
      A(all_reduce, order, e(ranks|tree)) A(all_reduce, run, i))                                   \
    X(all_to_all, 1, 1, A(all_to_all, world, i)                                                    \
      A(all_to_all, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))   \
      A(all_to_all, dim, i) A(all_to_all, from, i))                                                \
    X(part, 1, 1, A(part, world, i)                                                                \
      A(part, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))         \
      A(part, dim, i) A(part, zigzag, b))                                                          \
    X(bcast, 1, 1, A(bcast, world, i)                                                              \
      A(bcast, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))        \
      A(bcast, root, i))                                                                           \
    X(reduce, 1, 1, A(reduce, world, i)                                                            \
      A(reduce, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))       \
      A(reduce, order, e(ranks|tree)) A(reduce, root, i) A(reduce, dim, i))                        \
    X(send, 1, 1, A(send, world, i)                                                                \
      A(send, over, e(all|node|local|data|tensor|context|expert|pipe|group|copies|owners))         \
      A(send, from, i)                                                                             \
      A(send, to, i) A(send, once, b))                                                             \
    X(quantize_feedback, 2, 5, A(quantize_feedback, bits, i) A(quantize_feedback, block, i)        \
      A(quantize_feedback, scale, d) A(quantize_feedback, beta, f)                                 \
      A(quantize_feedback, reset, i))                                                              \
    X(dequantize_sum, 1, 2, A(dequantize_sum, bits, i) A(dequantize_sum, block, i)                 \
      A(dequantize_sum, scale, d) A(dequantize_sum, to, d) A(dequantize_sum, parts, i))            \
    /* effects */                                                                                  \
    X(output, 1, 3, A(output, reduction, e(derived|sum|mean|none)))                                \
    X(gradient, 2, 3, )                                                                            \
    X(set, 2, 2, A(set, parts, e(one|mean|sum)))                                                   \
    X(copy, 1, 2, A(copy, to, e(device|host|disk)) A(copy, experts, i) A(copy, each, i)            \
      A(copy, world, i))                                                                           \
    X(release, 1, 1, )                                                                             \
    X(wait, 1, 1, )                                                                                \
    X(loss_scale, 5, 5, A(loss_scale, factor, f) A(loss_scale, window, i)                          \
      A(loss_scale, hysteresis, i) A(loss_scale, least, f) A(loss_scale, consecutive, b))          \
    X(loss_scale_update, 6, 6, A(loss_scale_update, factor, f) A(loss_scale_update, window, i)     \
      A(loss_scale_update, hysteresis, i) A(loss_scale_update, least, f)                           \
      A(loss_scale_update, consecutive, b))                                                        \
    X(advance, 1, 2, )                                                                             \
    X(delay, 2, 2, )                                                                               \
    X(sgd, 3, 7, A(sgd, momentum, f) A(sgd, nesterov, b) A(sgd, weight_decay, f)                   \
      A(sgd, piece, l) A(sgd, world, i) A(sgd, blocks, l) A(sgd, decays, v) A(sgd, scaled, b)      \
      A(sgd, lazy, b))                                                                             \
    X(adamw, 6, 9, A(adamw, beta1, f) A(adamw, beta2, f) A(adamw, eps, f)                          \
      A(adamw, weight_decay, f) A(adamw, piece, l) A(adamw, world, i) A(adamw, blocks, l)          \
      A(adamw, decays, v) A(adamw, scaled, b) A(adamw, uncorrected, b) A(adamw, lazy, b))          \
    X(lamb_update, 5, 7, A(lamb_update, beta1, f) A(lamb_update, beta2, f)                         \
      A(lamb_update, eps, f) A(lamb_update, weight_decay, f) A(lamb_update, piece, l)              \
      A(lamb_update, world, i) A(lamb_update, blocks, l) A(lamb_update, decays, v)                 \
      A(lamb_update, scaled, b) A(lamb_update, uncorrected, b))                                    \
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
#define ZF_MAX_ATTRIBUTES 17
#define ZF_MAX_SAVED      4 /* values that a node leaves for its gradient, without its result */

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

/* What an operator is. Every claim is tested by running it (tests/ops/ops.c). */
typedef enum zf_op_traits {
    ZF_OP_LEAF = 1,     /* has storage that outlives a step, or a value known before the step */
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
    ZF_OP_UPDATE = 1 << 11,   /* an optimizer's update of operand 0 by the gradient, operand 1 */
    ZF_OP_FOLDABLE = 1 << 12, /* exact except for one rounding, so that constants can be folded */
    ZF_OP_WANTS_F32 = 1 << 13,  /* 16 bits lack the range or precision for it */
    ZF_OP_COMPARES = 1 << 14,   /* its operands are not to be rounded */
    ZF_OP_READS_HALF = 1 << 15, /* its CPU kernel takes bf16 and f16 as they are */
    ZF_OP_ONCE = 1 << 16,       /* makes gradients in the forward pass, so it is not recomputed */
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
    int32_t stage;   /* of zf_stages, from 0 on; a send is where it is received; -1: of all */
} zf_node;
/* The node at a place of the order, from 0 on; false after the last. */
ZF_API bool zf_graph_node(const zf_graph *graph, int32_t place, zf_node *node);
/* Writes to text[0..size) how the node at a place may be cut over ranks, "... k!, n k! -> ... n: 0
 * 8, n 16", at most into 8 parts along the last of "...", and into 16 along n (docs/axes.md).
 * False, and "", where it is not to be cut or there is none. */
ZF_API bool zf_graph_cuts(const zf_graph *graph, int32_t place, char *text, size_t size);

/* A tensor in memory. */
typedef struct zf_array {
    void *data;
    zf_dtype dtype;
    zf_shape shape;
} zf_array;

/* Values of a step that are not tensors. */
typedef struct zf_run {
    uint64_t seed;
    int64_t step;  /* 1, 2, ... */
    int64_t micro; /* micro-batch of the step: 0, 1, ... */
    /* Which part of the global batch this is: micro * world + rank, of the ranks along data */
    int64_t slot;
    int32_t rank, world; /* of all ranks */
    int32_t nodes; /* of the ranks along data, with as many in each (zf_zero_desc.nodes) */
    int32_t shard; /* the number of this rank's shards: 0, 1, ... */
    bool evaluate; /* dropout passes through */
    const char *task; /* of a pipeline's schedule, for messages: "F 1 3 of stage 1"; NULL: none */
    /* How many shards a value has that all ranks along data share; one that is cut over experts has
     * fewer, of which this rank has number shard / (shards / its own) */
    int32_t shards;
} zf_run;

/* The ranks first, first + stride, ...: `count` of them; count 0: all. */
typedef struct zf_group {
    int32_t first, stride, count;
} zf_group;

/* What a rank has of a value that ranks along an axis share: elements from `at` on of a whole one,
 * as many of each dimension as the rank's value has. With a run of r in a dimension in which the
 * rank has n of N elements: r from `at` on of each r N / n. */
typedef struct zf_share {
    zf_shape whole;
    int64_t at[ZF_MAX_RANK];
    int64_t run[ZF_MAX_RANK]; /* 0: all of the dimension */
    /* The second half of each run lies so many elements further than the first one goes on */
    int64_t fold[ZF_MAX_RANK];
} zf_share;

/* One node, ready to run. Operands of MUTATES operators are written through their data pointers. */
typedef struct zf_launch {
    zf_op op;
    int32_t node; /* its id, for messages */
    const zf_operator *own; /* of the program's own, kept by the graph; NULL: a row of ZF_OPS */
    int32_t arg_count;
    const zf_array *args;
    zf_array out; /* data NULL for an effect */
    /* Values that it leaves for its gradient: data NULL and rank 0 where no `saved` node asks for
     * one. NULL: none is asked for */
    const zf_array *saved;
    const zf_attribute *attributes;
    /* Of an operator that draws random numbers, which are those of a whole value: this rank's share
     * of its result, of the gradient of attention that of y; NULL: it is whole */
    const zf_share *share;
    void *scratch; /* as many bytes as backend->scratch asked for */
    void *disk; /* the library's handle of the disk, in a copy from or to it; else NULL */
    int32_t disk_value; /* of such a copy: the value there, from 1 on; 0: that at the address */
    /* A copy from the disk of a sum over micro-batches, which the first micro-batch leaves out */
    bool sums;
    /* Of a copy of the experts with rows, which the CPU makes: adds the bytes that it copies; else
     * NULL */
    int64_t *fetched;
    zf_space space; /* where its operands lie; of a copy, where its result does */
    const zf_run *run;
    void *backend; /* zf_backend.self */
    /* 0: launches run in the order of the list. Other queues run concurrently, each in its own
     * order; a launch there comes after all that were launched on queue 0 before it. */
    int32_t queue;
    const zf_comm *comm; /* of a collective, */
    zf_group group;      /* and who calls it; count 0: all ranks of the communicator */
    zf_error *error;
    /* Where a backend that `measures` notes when the launch began and ended, in seconds of one
     * clock; NULL: nobody asks */
    zf_span *span;
} zf_launch;

/* The name of the launch's operator. */
ZF_API const char *zf_launch_name(const zf_launch *launch);

/* Functions for kernels of the program's own operators (zf_operator). */
/* Records "NAME %NODE: " and the text as the step's error; returns `status`. */
ZF_API zf_status zf_launch_fail(const zf_launch *launch, zf_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
/* Called from zf_operator.cpu: runs task(launch, first, last) for the pieces of [0, count), each of
 * `grain`, on the workers of the CPU backend; returns when all are done. */
ZF_API void zf_launch_split(const zf_launch *launch, int64_t count, int64_t grain,
                            void (*task)(const zf_launch *launch, int64_t first, int64_t last));

/* What an instruction of a chain (ops/chain.c) reads. */
typedef enum zf_chain_kind {
    ZF_CHAIN_BINARY,   /* two registers */
    ZF_CHAIN_UNARY,    /* one register */
    ZF_CHAIN_SCALE,    /* a register, and a value of the chain: its attribute `by` */
    ZF_CHAIN_GRADIENT, /* two registers: dy, and what the unary operator saves */
    ZF_CHAIN_DROPOUT   /* a register, and two values: p and stream */
} zf_chain_kind;

/* FLOPs of the products of a launch; a multiply-add is two. Data pointers are ignored. */
ZF_API double zf_launch_flops(const zf_launch *launch);
/* The factor of a layer_drop in the step that launch->run is: 0 where it leaves the branch out. */
ZF_API double zf_layer_drop_factor(const zf_launch *launch);
/* The bytes that a launch reads and writes, each value once. Data pointers are ignored. */
ZF_API double zf_launch_bytes(const zf_launch *launch);
/* Functions of elements that a launch computes, counted in exponentials that take about as long. 1:
 * an exponential, a logarithm, tanh, sigmoid, silu and its gradient, gelu's tanh form, a random
 * number. 2: softplus, gelu, the gradient of its tanh form. 3: the gradient of gelu. */
ZF_API double zf_launch_functions(const zf_launch *launch);

/* Operators of a program's own. zf_apply appends one that zf_graph_desc lists. It prints, parses
 * and is verified like a built-in one; passes treat it by its traits; it runs on the same backends
 * if it has their kernel. examples/own_op.c has two. A name and a kernel are enough:
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

/* What zf_operator.infer is given, a node's operands and attributes, and what it sets: dtype and
 * shape of the result. */
typedef struct zf_infer {
    const zf_operator *own;
    int32_t arg_count;
    const zf_array *args; /* data NULL */
    const zf_attribute *attributes;
    zf_dtype dtype; /* of the result; before infer, dtype and shape of operand 0 */
    zf_shape shape;
    void *node; /* the library's */
} zf_infer;
/* Records what is wrong, and what would be right, as the graph's error; returns `status`. */
ZF_API zf_status zf_infer_fail(zf_infer *infer, zf_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* A node whose gradient is asked for. For each operand k with need[k], zf_operator.grad sets dx[k]
 * to a tensor of the dtype and shape of x[k], appended by any builders, or leaves ZF_NONE where it
 * is zero. */
typedef struct zf_grad {
    zf_graph *graph;
    const zf_attribute *attributes;
    zf_tensor y, dy; /* the node's result, and its gradient */
    int32_t count;
    const zf_tensor *x; /* operands */
    const bool *need;
    zf_tensor *dx; /* ZF_NONE at first */
    /* dx[0] is the gradient of a part of operand 0, of its elements from `start` on along `axis`;
     * the gradient of others is 0. Parts that lie side by side become one concatenation */
    bool part;
    int32_t axis;
    int64_t start;
    /* dx[0] is the gradient of some rows of operand 0, a parameter in a group with lazy_rows: it
     * has those of which this tensor has the numbers, as zf_distinct_rows gives them; others have
     * none. ZF_NONE: it is that of all */
    zf_tensor rows;
    /* Gradients of saved values that other nodes read; ZF_NONE: 0. Only the library's operators
     * have them */
    zf_tensor dsaved[ZF_MAX_SAVED];
} zf_grad;

struct zf_operator {
    const char *name;    /* letters a to z, digits, _; at most 63; none that ZF_OPS has */
    int32_t least, most; /* operands, at most ZF_OWN_OPERANDS; 0: 1, and as many as `least` */
    /* Names and kinds, "p:f axis:i form:e(erf|tanh)", at most ZF_MAX_ATTRIBUTES; kinds are those of
     * ZF_OPS. NULL: none */
    const char *attributes;
    /* Any of ZF_OP_INPLACE, ZF_OP_ELEMENTWISE, ZF_OP_BY_ROWS, ZF_OP_PRODUCT, ZF_OP_WANTS_F32,
     * ZF_OP_COMPARES and ZF_OP_READS_HALF. They are not checked */
    uint32_t traits;
    uint32_t over;  /* INPLACE: the operands over which its result may lie, as a mask; 0: all */
    uint32_t whole; /* BY_ROWS: the operands that belong to all rows, as a mask */
    int32_t rows;   /* BY_ROWS: the operand that has the rows */
    /* How it may be cut over ranks, in letters of dimensions: "m k!, n k! -> m n" (docs/axes.md).
     * NULL: ELEMENTWISE in each dimension, BY_ROWS in rows, another not at all */
    const char *cuts;
    /* Dtype and shape of the result, from operands and attributes alone. NULL: all operands are
     * f32, bf16 or f16, of one dtype and one shape, and so is the result */
    zf_status (*infer)(zf_infer *infer);
    /* Appends its gradient. NULL: zf_autograd through it is an error */
    void (*grad)(zf_grad *grad);
    /* The kernel. Without ZF_OP_READS_HALF it gets f32 in place of bf16 and f16. With ELEMENTWISE
     * or BY_ROWS it is called on several threads, each with some of the rows. Data pointers and
     * their values change from step to step; equal values must give equal results */
    zf_status (*cpu)(const zf_launch *launch);
    size_t (*scratch)(const zf_launch *launch); /* bytes that cpu needs while it runs; NULL: none */
    /* The kernel for a CUDA backend: enqueues its work on `stream`, a cudaStream_t. Operands have
     * any dtype that infer accepts, except f64. It is called once or twice for each node, and the
     * enqueued work runs again in every step: it must not read what launch->run points to. NULL:
     * none */
    zf_status (*cuda)(const zf_launch *launch, void *stream);
    size_t (*cuda_scratch)(const zf_launch *launch);
    double (*flops)(const zf_launch *launch); /* of its products; a multiply-add is 2; NULL: 0 */
    double (*functions)(const zf_launch *launch); /* as zf_launch_functions; NULL: 0 */
    void *user; /* launch->own->user, infer->own->user */
};

enum { ZF_MAX_OPERATORS = ZF_OP_LAST - ZF_OP_OWN + 1, ZF_OWN_OPERANDS = 16 };

/* Appends one of the graph's own operators (zf_graph_desc.operators) over x[0..count). It reads as
 * many attributes as the operator has, in their order; NULL: all are absent. */
ZF_BUILDER zf_tensor zf_apply(zf_graph *graph, const char *name, int32_t count, const zf_tensor *x,
                              const zf_attribute *attributes);

/* What the nodes of an operator do in a step: how often they run, and their zf_launch_flops and
 * zf_launch_bytes. Leaves, marks and views do nothing; after zf_memory, only views that it has
 * placed in their operand are views. ZF_OP_none: all operators together. */
typedef struct zf_work {
    int64_t launches;
    double flops, bytes;
} zf_work;
ZF_API zf_status zf_graph_work(zf_graph *graph, zf_op op, zf_work *work);

/* ------------------------------------------------------------------------------------ BACKENDS
 *
 * What a device must offer: a table of functions. The core knows no device by name. */

typedef enum zf_copy { ZF_HOST_TO_DEVICE, ZF_DEVICE_TO_HOST, ZF_DEVICE_TO_DEVICE } zf_copy;

/* Launches [first, last) of a program in their order, each on its queue. One with waits_for[n] >= 0
 * is a wait for launch waits_for[n]. Every step runs the same list, with other values in what
 * launch->run points to. */
typedef struct zf_section {
    const zf_launch *launches;
    const int32_t *waits_for;
    int32_t first, last;
    void *kept; /* the backend's own, kept from step to step; NULL at first */
    /* Where the backend has allocate_host, the section also has launches in host memory, and copies
     * from and to a disk: those whose `backend` is host->self. The backend calls host->launch for
     * them, and host->wait for a wait for one, in their order on one thread at a time, each when
     * earlier launches that use the same host memory are done. Their `error` is not that of other
     * launches; after the first error none of them needs to run. NULL: there are none */
    zf_backend *host;
} zf_section;

struct zf_backend {
    const char *name;
    void *self;
    /* Memory of the device, 64-byte aligned, or NULL with *error. */
    void *(*allocate)(void *self, size_t bytes, zf_error *error);
    void (*release)(void *self, void *memory, size_t bytes);
    /* Copies after all earlier launches of queue 0 and before all later ones. When it returns, the
     * host may use its memory. */
    zf_status (*copy)(void *self, void *to, const void *from, size_t bytes, zf_copy kind,
                      zf_error *error);
    /* Bytes of scratch that this node needs while it runs; data pointers are not set. */
    size_t (*scratch)(void *self, const zf_launch *launch);
    /* Makes queues 1 to count - 1 ready; called before anything is launched on them. */
    zf_status (*queues)(void *self, int32_t count, zf_error *error);
    /* The launch must stay as it is until it is done. */
    zf_status (*launch)(void *self, const zf_launch *launch);
    /* Later launches of queue 0 come after this launch of another queue. */
    zf_status (*wait)(void *self, const zf_launch *launch);
    zf_status (*synchronize)(void *self, zf_error *error); /* waits for every queue */
    void (*destroy)(void *self);
    /* Called by zf_compile: whether the node can run here, else ZF_ERR_BACKEND with launch->error,
     * which says what can. Data pointers are not set. NULL: every node can. */
    zf_status (*check)(void *self, const zf_launch *launch);
    /* Runs all launches of a section. It may keep data in section->kept; `forget` frees them, and
     * sets `kept` to NULL. NULL: launch and wait are called instead. */
    zf_status (*run)(void *self, zf_section *section, zf_error *error);
    void (*forget)(void *self, zf_section *section);
    /* A line about slow kernels (zf_program_info.remark). NULL: none. */
    const char *(*remark)(void *self);
    /* Runs task(context, k) for every k in [0, count), on several threads of the host; returns when
     * all are done. Called while nothing is launched. NULL: they run one after the other. */
    void (*share)(void *self, int64_t count, void (*task)(void *context, int64_t index),
                  void *context);
    bool measures; /* it notes when a launch runs (zf_launch.span) */
    /* Its memory is the host's, so it can compute with values in ZF_HOST as well */
    bool host_memory;
    /* As allocate and release: host memory that the device copies from and to without the host.
     * Such a device runs sections with launches in host memory (zf_section.host). NULL: host memory
     * is that of the CPU backend */
    void *(*allocate_host)(void *self, size_t bytes, zf_error *error);
    void (*release_host)(void *self, void *memory, size_t bytes);
    /* Of the library, 0 at first: the stores that use it, and that zf_backend_free was called,
     * which destroys it when there is none */
    int32_t stores;
    bool freed;
};

/* ------------------------------------------------------------------------------- COMMUNICATORS */

/* One collective of one rank. Elements of in and out, n ranks in its group: count and n count of
 * all_gather; n count and count of reduce_scatter; n count each of all_to_all; count each of
 * all_reduce, bcast, send and reduce, a sum that the root alone gets: what is in `out` of others
 * then has no meaning. out may be in where both have one length; they never overlap
 * otherwise, except that in may be this rank's own part of all_gather's out. With add, all_reduce's
 * out is the same on all ranks. A send is between the two ranks of a group: in is that of the one,
 * out that of the other. */
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
    bool tree;    /* reductions: by zf_add_ranks_by_tree rather than zf_add_ranks */
    int32_t run;  /* of a tree: each so many ranks are one, and trees are added in order; 0: all */
    int32_t root; /* bcast, send: which one of the group has the data, from 0 on; reduce: gets it */
    zf_group group; /* who calls it, this rank among them; a rank may be in several groups */
    void *stream; /* the device queue to do it on; NULL: it is done when the call returns */
    /* all_gather, and reduce_scatter by a tree: a rank gets from ranks so many before and after its
     * own alone; of others, out is left as it is, or 0 is added. 0, 0: from all */
    int32_t before, after;
} zf_collective;

/* The ranks that run one plan, as one of them sees it. A reduction adds rank 0, 1, 2, ... in that
 * order, to what `add` finds, in f32 (f64 of f64, integers of integers) and rounds once, so that
 * the bits are the same on every communicator (zf_add_ranks). With `tree` it adds by a balanced
 * tree (zf_add_ranks_by_tree), with `run` by several (zf_add_ranks_by_trees). */
struct zf_comm {
    void *self;
    int32_t rank, world;
    /* Blocks until this rank's part is done. ZF_ERR_COMM, naming node and rank, when another rank
     * does not arrive within the deadline, calls something else, or has given up (abort, which may
     * make it ZF_ERR_IO). Then all later calls fail as well. Calls on different channels may come
     * from different threads. */
    zf_status (*run)(void *self, const zf_collective *call, zf_error *error);
    /* This rank makes no more calls, because of an error with this status: the calls of other ranks
     * fail with "rank R gave up: REASON", and with ZF_ERR_IO where that is the status, else with
     * ZF_ERR_COMM. Does nothing after a failure, of this rank or another. */
    void (*abort)(void *self, zf_status status, const char *reason);
    void (*destroy)(void *self);
    /* For calls on a stream: their state, asked by a device that has waited for them for `seconds`.
     * Soon after an error nothing on the stream waits for them. NULL: no calls on streams. */
    zf_status (*check)(void *self, double seconds, zf_error *error);
    /* Bytes of the device that the communicator uses, which no plan counts; 0: it uses host memory
     * only */
    size_t memory;
    /* It can do calls of a group (zf_collective.group). Where one fails, the calls of all ranks
     * fail */
    bool groups;
    /* Of the library, 0 at first; used where there is a `destroy`: as zf_backend.stores and
     * .freed */
    int32_t stores;
    bool freed;
};

/* The call of a node of trait ZF_OP_COLLECTIVE, without a stream. With an attribute `dim`, its
 * rank's pieces lie one after the other in launch->scratch, as what a gather makes and a scatter
 * reads. */
ZF_API zf_collective zf_collective_of(const zf_launch *launch);
/* For writers of communicators: checks a call, and that its channel is below `channels`.
 * ZF_ERR_ARGUMENT says what is wrong, and what would be right. */
ZF_API zf_status zf_collective_check(const zf_collective *call, const zf_comm *comm,
                                     int32_t channels, zf_error *error);
/* The group of the call: where it names none, all ranks. The rank itself is number
 * (comm->rank - group.first) / group.stride of it. */
ZF_API zf_group zf_collective_group(const zf_collective *call, const zf_comm *comm);
/* "all_gather %59", and "bcast %59 of 1024 f32 from rank 1", written to `text`, which is
 * returned. */
ZF_API const char *zf_collective_name(char text[64], const zf_collective *call);
ZF_API const char *zf_collective_text(char text[128], const zf_collective *call);

/* out[i] = (add ? out[i] : 0) + parts[0][i] + parts[1][i] + ..., in that order. Communicators
 * reduce with it. out may be one of the parts. */
ZF_API void zf_add_ranks(void *out, const void *const *parts, int32_t world, int64_t count,
                         zf_dtype dtype, bool add);
/* out[i] = (add ? out[i] : 0) + the sum of all parts[r][i] by a balanced tree: neighbours are
 * added, then neighbours of these sums, ...; the last one of an odd number is taken over. So parts
 * that are such sums themselves, of equal powers of two of terms, give the bits of the tree of all
 * terms. */
ZF_API void zf_add_ranks_by_tree(void *out, const void *const *parts, int32_t world, int64_t count,
                                 zf_dtype dtype, bool add);
/* The same of each `run` neighbours, which divides world; these sums are added in their order. 0:
 * zf_add_ranks_by_tree. dtype: f32 or f64. */
ZF_API void zf_add_ranks_by_trees(void *out, const void *const *parts, int32_t world, int32_t run,
                                  int64_t count, zf_dtype dtype, bool add);

/* For communicators that work on CUDA's streams (zeroflow_cuda.cu): zf_add_ranks on the current
 * device. */
typedef struct zf_cuda_sum {
    void *out;
    const void *parts; /* rank r's is at parts + r * stride */
    size_t stride;     /* bytes */
    const void *own;   /* the part of `rank`, where it is elsewhere; NULL: with the others */
    int32_t rank, world;
    int64_t count;
    zf_dtype dtype;
    bool add, tree; /* tree: as zf_add_ranks_by_tree */
} zf_cuda_sum;
extern zf_status zf_cuda_add_ranks(const zf_cuda_sum *sum, void *stream, zf_error *error);

/* The collective that a stream has reached, in host memory that the device sees. */
typedef struct zf_cuda_place {
    int64_t turn;       /* the number of calls begun or ended so far */
    zf_collective call; /* the call that has begun; op ZF_OP_none: it has ended */
} zf_cuda_place;
/* Enqueues an update of `place` with a call that begins; call NULL: the call has ended. */
extern zf_status zf_cuda_tell(zf_cuda_place *place, const zf_collective *call, void *stream,
                              zf_error *error);

/* zf_step and other functions for all ranks at once, on one thread, in lockstep: programs[r] is
 * that of rank r, made with a communicator of that rank. Each runs up to its next collective, which
 * must be the same on all; then it is done for all. A difference is an error that names both sides'
 * nodes. For tests: launches of other queues run as late as the plan allows, or, by `seed`,
 * sooner. */
typedef struct zf_lockstep_desc {
    zf_program *const *programs;
    int32_t count;
    uint64_t seed; /* 0: a launch runs at the wait for it */
} zf_lockstep_desc;
ZF_API zf_status zf_lockstep_step(const zf_lockstep_desc *desc, zf_error *error);
ZF_API zf_status zf_lockstep_micro(const zf_lockstep_desc *desc, zf_error *error);
/* zf_compare_ranks of all ranks. */
ZF_API zf_status zf_lockstep_compare(const zf_lockstep_desc *desc, zf_error *error);
/* zf_read of a param or state, by name, that may be sharded over the ranks along data: as rank 0
 * has it, of a value that is cut along another axis its part. */
ZF_API zf_status zf_lockstep_read(const zf_lockstep_desc *desc, const char *name, void *data,
                                  size_t bytes, zf_error *error);
/* zf_save and zf_load of the stores of all ranks. */
ZF_API zf_status zf_lockstep_save(const zf_lockstep_desc *desc, const char *path,
                                  const zf_save_desc *save, zf_error *error);
ZF_API zf_status zf_lockstep_load(const zf_lockstep_desc *desc, const char *path,
                                  const zf_load_desc *load, zf_error *error);
