/* The name of the training whose step a graph is. Its step count and states in the store belong to
 * that name, so that several trainings work over one store.
 *
 * requires: nothing of a training's step is there yet
 * after:    training critic
 *           %30 = state "critic:adamw.step" : i64[]
 */

ZF_API zf_status zf_name_training(zf_graph *g, const char *name)
{
    zf_status status = zfi_enter(g, "zf_name_training", 0, ZFI_STAGE_GRADIENTS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (zfi_scaler_node(g, ZF_OP_loss_scale))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_name_training: must come before zf_precision, whose loss scale belongs "
                        "to the training");
    status = zfi_take_name(g, "zf_name_training", name ? name : "", &g->training);
    return status ? status : zfi_leave(g, 0);
}
