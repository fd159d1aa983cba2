/* The loss scale, which keeps small gradients from being rounded to zero (Micikevicius et al.
 * 2018): loss_scale, loss_scale_update.
 *
 *     loss_scale %4, %5, %6, %7, %8 {factor=2 window=1000 hysteresis=2 least=1}
 *         a mark: gradients are those of the loss times %4
 *     loss_scale_update %4, %5, %6, %7, %8, %30 {factor=2 window=1000 hysteresis=2 least=1}
 *         updates the states after a step; its gradients were finite unless %30 < 0
 *
 * The states are scale f32[]; hysteresis left, iteration, last overflow and skipped steps, i64[].
 * After a step with finite gradients:
 *
 *     good = iteration - last overflow - 1     steps from the last overflow to this step
 *     consecutive:                             hysteresis left = hysteresis
 *     good is a positive multiple of window:   hysteresis left = hysteresis, scale *= factor
 *
 * After a step with non-finite gradients, which is skipped:
 *
 *     hysteresis left > 1:   hysteresis left -= 1
 *     otherwise:             scale = max(scale / factor, least); an error if it was `least` before
 *     last overflow = iteration, skipped += 1
 *
 * Then iteration += 1. The scale does not grow beyond the maximum of f32. With factor 1 it never
 * changes, and no error is reported. */

enum { ZFI_SCALER_STATES = 5 };

static zf_status zfi_infer_loss_scale(zfi_infer *c)
{
    static const char *const names[ZFI_SCALER_STATES] = {"the scale", "the hysteresis left",
                                                         "the iteration", "the last overflow",
                                                         "the skipped steps"};
    double factor = ZF_FLOAT(c, loss_scale, factor), least = ZF_FLOAT(c, loss_scale, least);
    int64_t window = ZF_INT(c, loss_scale, window), hysteresis = ZF_INT(c, loss_scale, hysteresis);
    for (int32_t k = 0; k < ZFI_SCALER_STATES; k++) {
        zf_dtype dtype = k ? ZF_I64 : ZF_F32;
        if (c->args[k]->op != ZF_OP_state || c->args[k]->dtype != dtype || c->args[k]->shape.rank)
            return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand %d, %s, must be a state %s[]",
                                  (int)k, names[k], zf_dtype_name(dtype));
        for (int32_t other = 0; other < k; other++)
            if (c->args[other] == c->args[k])
                return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                                      "operands %d and %d, %s and %s, must be two states",
                                      (int)other, (int)k, names[other], names[k]);
    }
    if (!(factor >= 1) || isinf(factor))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "factor = %g must be finite and at least 1",
                              factor);
    if (window < 1 || hysteresis < 1)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "window = %lld, hysteresis = %lld: both must be "
                              "at least 1",
                              (long long)window, (long long)hysteresis);
    if (!(least > 0) || isinf(least))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "least = %g must be finite and above 0", least);
    return zfi_infer_like(c, 0);
}

static zf_status zfi_infer_loss_scale_update(zfi_infer *c)
{
    zf_status status = zfi_infer_loss_scale(c);
    const zfi_node *good = c->args[ZFI_SCALER_STATES];
    if (!status && (!zfi_is_float(good->dtype) || zfi_node_count(good) != 1))
        status =
            zfi_infer_fail(c, ZF_ERR_SHAPE,
                           "operand 5, which is below 0 where gradients are not finite, must be "
                           "one float");
    return status;
}

/* a + b, with wrapping: a program can write any number to a counter. */
static int64_t zfi_wrapped_sum(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static zf_status zfi_cpu_loss_scale_update(const zf_launch *l)
{
    const zf_array *state = l->args;
    double factor = ZF_FLOAT(l, loss_scale_update, factor),
           least = ZF_FLOAT(l, loss_scale_update, least), scale = zfi_get(state, 0);
    int64_t window = ZF_INT(l, loss_scale_update, window),
            hysteresis = ZF_INT(l, loss_scale_update, hysteresis);
    int64_t left = zfi_get_integer(&state[1], 0), iteration = zfi_get_integer(&state[2], 0),
            last = zfi_get_integer(&state[3], 0), skipped = zfi_get_integer(&state[4], 0);
    if (!(zfi_get(&state[ZFI_SCALER_STATES], 0) < 0)) {
        int64_t good = zfi_wrapped_sum(iteration, ~last);
        bool due = good > 0 && good % window == 0;
        if (due || ZF_INT(l, loss_scale_update, consecutive)) left = hysteresis;
        if (due && isfinite((float)(scale * factor))) scale *= factor;
    } else {
        if (left <= 1 && factor > 1 && scale <= least)
            return zfi_fail(l->error, ZF_ERR_NAN,
                            "step %lld: gradients are not finite at the least loss scale, %g; "
                            "parameters and states are as they were before the step",
                            (long long)l->run->step, least);
        if (left > 1) left--;
        else scale = scale / factor > least || factor == 1 ? scale / factor : least;
        last = iteration;
        skipped = zfi_wrapped_sum(skipped, 1);
    }
    zfi_set(state, 0, scale);
    zfi_set_integer(&state[1], 0, left);
    zfi_set_integer(&state[2], 0, zfi_wrapped_sum(iteration, 1));
    zfi_set_integer(&state[3], 0, last);
    zfi_set_integer(&state[4], 0, skipped);
    return ZF_OK;
}

/* The node of the graph that is `op`, loss_scale or loss_scale_update; 0: none. */
static int32_t zfi_scaler_node(const zf_graph *g, zf_op op)
{
    for (int32_t i = zfi_len(g->order); zfi_down(i);)
        if (g->nodes[g->order[i]].op == op) return g->order[i];
    return 0;
}

static uint32_t zfi_writes_scaler(const zfi_node *node)
{
    (void)node;
    return (1u << ZFI_SCALER_STATES) - 1;
}

/* ------------------------------------------------------------------------------- records */

ZFI_SAME_ATTRIBUTE(loss_scale_update, loss_scale, factor)
ZFI_SAME_ATTRIBUTE(loss_scale_update, loss_scale, window)
ZFI_SAME_ATTRIBUTE(loss_scale_update, loss_scale, hysteresis)
ZFI_SAME_ATTRIBUTE(loss_scale_update, loss_scale, least)
ZFI_SAME_ATTRIBUTE(loss_scale_update, loss_scale, consecutive)
ZFI_OPERATOR(loss_scale, .infer = zfi_infer_loss_scale, .grad = zfi_grad_none,
             .traits = ZF_OP_EFFECT)
ZFI_OPERATOR(loss_scale_update, .infer = zfi_infer_loss_scale_update, .grad = zfi_grad_none,
             .cpu = zfi_cpu_loss_scale_update, .writes = zfi_writes_scaler,
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES)
