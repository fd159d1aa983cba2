/* delay: keeps a value for the next step (passes/rewrite/delay.c).
 *
 *     delay %30, %9     state = x
 *
 * %30 is a state, or a bucket of states, of the type of %9. What reads it above has the value of
 * the step before. */

static zf_status zfi_infer_delay(zfi_infer *c)
{
    const zf_op op = c->args[0]->op;
    if (op != ZF_OP_state && op != ZF_OP_bucket)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "operand 0 must be a state or a bucket of states");
    if (c->args[0]->dtype != c->args[1]->dtype ||
        !zfi_same_shape(&c->args[0]->shape, &c->args[1]->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand 1 must be of the type of operand 0");
    return zfi_infer_like(c, 0);
}

static zf_status zfi_cpu_delay(const zf_launch *l)
{
    zfi_move_bytes(l, l->args[0].data, l->args[1].data, zfi_array_bytes(&l->args[1]));
    return ZF_OK;
}

static double zfi_bytes_of_delay(const zf_launch *l)
{
    return 2 * (double)zfi_array_bytes(&l->args[1]);
}

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(delay, .infer = zfi_infer_delay, .grad = zfi_grad_none, .cpu = zfi_cpu_delay,
             .writes = zfi_writes_first, .bytes = zfi_bytes_of_delay, .cuts = "..., ... ->",
             .traits = ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_READS_HALF)
