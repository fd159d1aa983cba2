/* Made by `make lines` (tools/make/lines.c) of the declarations that begin with ZF_BUILDER.
 * Included once, it defines their macros; included again, it removes them. A macro is not
 * expanded within itself: the name on the right is the function. */
#ifndef zf_push
#define zf_push(g, ...) zf_push(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_push_shared(g, ...) zf_push_shared(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_pop(g) zf_pop(zf_graph_at((g), __FILE__, __LINE__))
#define zf_input(g, ...) zf_input(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_param(g, ...) zf_param(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_state(g, ...) zf_state(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_cache(g, ...) zf_cache(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_constant(g, ...) zf_constant(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_values(g, ...) zf_values(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_add(x, ...) zf_add(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_sub(x, ...) zf_sub(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_mul(x, ...) zf_mul(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_div(x, ...) zf_div(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_maximum(x, ...) zf_maximum(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_minimum(x, ...) zf_minimum(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_pow(x, ...) zf_pow(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_equal(x, ...) zf_equal(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_not_equal(x, ...) zf_not_equal(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_less(x, ...) zf_less(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_less_equal(x, ...) zf_less_equal(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_greater(x, ...) zf_greater(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_greater_equal(x, ...) zf_greater_equal(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_not(x) zf_not(zf_at((x), __FILE__, __LINE__))
#define zf_where(x, ...) zf_where(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_neg(x) zf_neg(zf_at((x), __FILE__, __LINE__))
#define zf_scale(x, ...) zf_scale(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_exp(x) zf_exp(zf_at((x), __FILE__, __LINE__))
#define zf_log(x) zf_log(zf_at((x), __FILE__, __LINE__))
#define zf_sqrt(x) zf_sqrt(zf_at((x), __FILE__, __LINE__))
#define zf_rsqrt(x) zf_rsqrt(zf_at((x), __FILE__, __LINE__))
#define zf_abs(x) zf_abs(zf_at((x), __FILE__, __LINE__))
#define zf_sin(x) zf_sin(zf_at((x), __FILE__, __LINE__))
#define zf_cos(x) zf_cos(zf_at((x), __FILE__, __LINE__))
#define zf_tanh(x) zf_tanh(zf_at((x), __FILE__, __LINE__))
#define zf_sigmoid(x) zf_sigmoid(zf_at((x), __FILE__, __LINE__))
#define zf_relu(x) zf_relu(zf_at((x), __FILE__, __LINE__))
#define zf_gelu(x) zf_gelu(zf_at((x), __FILE__, __LINE__))
#define zf_gelu_tanh(x) zf_gelu_tanh(zf_at((x), __FILE__, __LINE__))
#define zf_silu(x) zf_silu(zf_at((x), __FILE__, __LINE__))
#define zf_softplus(x) zf_softplus(zf_at((x), __FILE__, __LINE__))
#define zf_cast(x, ...) zf_cast(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_quantize(x, ...) zf_quantize(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_dequantize(x, ...) zf_dequantize(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_dropout(x, ...) zf_dropout(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_random_uniform(x, ...) zf_random_uniform(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_random_normal(x, ...) zf_random_normal(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_layer_drop(x, ...) zf_layer_drop(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_reshape(x, ...) zf_reshape(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_stop_gradient(x) zf_stop_gradient(zf_at((x), __FILE__, __LINE__))
#define zf_transpose(x, ...) zf_transpose(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_permute(x, ...) zf_permute(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_slice(x, ...) zf_slice(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_pad(x, ...) zf_pad(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_split(x, ...) zf_split(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_unstack(x, ...) zf_unstack(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_broadcast(x, ...) zf_broadcast(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_sum_to(x, ...) zf_sum_to(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_all_gather(x, ...) zf_all_gather(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_matmul(x, ...) zf_matmul(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_matmul_ex(x, ...) zf_matmul_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_conv2d(x, ...) zf_conv2d(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_conv1d(x, ...) zf_conv1d(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_sum(x) zf_sum(zf_at((x), __FILE__, __LINE__))
#define zf_sum_ex(x, ...) zf_sum_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_mean(x) zf_mean(zf_at((x), __FILE__, __LINE__))
#define zf_mean_ex(x, ...) zf_mean_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_max(x) zf_max(zf_at((x), __FILE__, __LINE__))
#define zf_max_ex(x, ...) zf_max_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_min(x) zf_min(zf_at((x), __FILE__, __LINE__))
#define zf_min_ex(x, ...) zf_min_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_argmax_ex(x, ...) zf_argmax_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_argmin_ex(x, ...) zf_argmin_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_cumsum(x, ...) zf_cumsum(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_gather(x, ...) zf_gather(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_scatter_add(x, ...) zf_scatter_add(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_top_k(x, ...) zf_top_k(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_one_hot(x, ...) zf_one_hot(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_softmax(x) zf_softmax(zf_at((x), __FILE__, __LINE__))
#define zf_logsumexp(x) zf_logsumexp(zf_at((x), __FILE__, __LINE__))
#define zf_log_softmax(x) zf_log_softmax(zf_at((x), __FILE__, __LINE__))
#define zf_layer_norm(x, ...) zf_layer_norm(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_rms_norm(x, ...) zf_rms_norm(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_gather_rows(x, ...) zf_gather_rows(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_embedding(x, ...) zf_embedding(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_embedding_ex(x, ...) zf_embedding_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_distinct_rows(x, ...) zf_distinct_rows(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_sum_rows(x, ...) zf_sum_rows(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_cross_entropy(x, ...) zf_cross_entropy(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_head_logp(x, ...) zf_head_logp(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_head_entropy(x) zf_head_entropy(zf_at((x), __FILE__, __LINE__))
#define zf_head_argmax(x) zf_head_argmax(zf_at((x), __FILE__, __LINE__))
#define zf_linear(x, ...) zf_linear(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_quantized_linear(x, ...) zf_quantized_linear(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_swiglu(x, ...) zf_swiglu(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_block_mask_lists(g, ...)                                                                \
    zf_block_mask_lists(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#define zf_documents(x) zf_documents(zf_at((x), __FILE__, __LINE__))
#define zf_route(x, ...) zf_route(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_expert_rows(x, ...) zf_expert_rows(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_dispatch(x, ...) zf_dispatch(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_combine(x, ...) zf_combine(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_grouped_linear(x, ...) zf_grouped_linear(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_grouped_linear_ex(x, ...)                                                               \
    zf_grouped_linear_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_attention(x, ...) zf_attention(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_residual_layer_norm(x, ...)                                                             \
    zf_residual_layer_norm(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_residual_rms_norm(x, ...)                                                               \
    zf_residual_rms_norm(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_rope(x, ...) zf_rope(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_output(x, ...) zf_output(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_output_ex(x, ...) zf_output_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_output_gradient(x, ...) zf_output_gradient(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_assign(x, ...) zf_assign(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_assign_ex(x, ...) zf_assign_ex(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_fail(x, ...) zf_fail(zf_at((x), __FILE__, __LINE__), __VA_ARGS__)
#define zf_apply(g, ...) zf_apply(zf_graph_at((g), __FILE__, __LINE__), __VA_ARGS__)
#else
#undef zf_push
#undef zf_push_shared
#undef zf_pop
#undef zf_input
#undef zf_param
#undef zf_state
#undef zf_cache
#undef zf_constant
#undef zf_values
#undef zf_add
#undef zf_sub
#undef zf_mul
#undef zf_div
#undef zf_maximum
#undef zf_minimum
#undef zf_pow
#undef zf_equal
#undef zf_not_equal
#undef zf_less
#undef zf_less_equal
#undef zf_greater
#undef zf_greater_equal
#undef zf_not
#undef zf_where
#undef zf_neg
#undef zf_scale
#undef zf_exp
#undef zf_log
#undef zf_sqrt
#undef zf_rsqrt
#undef zf_abs
#undef zf_sin
#undef zf_cos
#undef zf_tanh
#undef zf_sigmoid
#undef zf_relu
#undef zf_gelu
#undef zf_gelu_tanh
#undef zf_silu
#undef zf_softplus
#undef zf_cast
#undef zf_quantize
#undef zf_dequantize
#undef zf_dropout
#undef zf_random_uniform
#undef zf_random_normal
#undef zf_layer_drop
#undef zf_reshape
#undef zf_stop_gradient
#undef zf_transpose
#undef zf_permute
#undef zf_slice
#undef zf_pad
#undef zf_split
#undef zf_unstack
#undef zf_broadcast
#undef zf_sum_to
#undef zf_all_gather
#undef zf_matmul
#undef zf_matmul_ex
#undef zf_conv2d
#undef zf_conv1d
#undef zf_sum
#undef zf_sum_ex
#undef zf_mean
#undef zf_mean_ex
#undef zf_max
#undef zf_max_ex
#undef zf_min
#undef zf_min_ex
#undef zf_argmax_ex
#undef zf_argmin_ex
#undef zf_cumsum
#undef zf_gather
#undef zf_scatter_add
#undef zf_top_k
#undef zf_one_hot
#undef zf_softmax
#undef zf_logsumexp
#undef zf_log_softmax
#undef zf_layer_norm
#undef zf_rms_norm
#undef zf_gather_rows
#undef zf_embedding
#undef zf_embedding_ex
#undef zf_distinct_rows
#undef zf_sum_rows
#undef zf_cross_entropy
#undef zf_head_logp
#undef zf_head_entropy
#undef zf_head_argmax
#undef zf_linear
#undef zf_quantized_linear
#undef zf_swiglu
#undef zf_block_mask_lists
#undef zf_documents
#undef zf_route
#undef zf_expert_rows
#undef zf_dispatch
#undef zf_combine
#undef zf_grouped_linear
#undef zf_grouped_linear_ex
#undef zf_attention
#undef zf_residual_layer_norm
#undef zf_residual_rms_norm
#undef zf_rope
#undef zf_output
#undef zf_output_ex
#undef zf_output_gradient
#undef zf_assign
#undef zf_assign_ex
#undef zf_fail
#undef zf_apply
#endif
