/* The name of the training whose step a graph is. Its step count and states in the store belong to
 * that name, so that several trainings work over one store.
 *
 * requires: nothing of a training's step is there yet
 * after:    training critic
 *           %30 = state "critic:adamw.step" : i64[]
 */

/* Letters, digits and underscores, so that it ends where the name of a state goes on. */
static bool zfi_is_training_name(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if (!zfi_is_word(name[i])) return false;
    return length <= ZFI_TRAINING_NAME;
}

ZF_API zf_status zf_name_training(zf_graph *g, const char *name)
{
    char quoted[ZFI_QUOTE];
    const char *copy;
    zf_status status = zfi_enter(g, "zf_name_training", 0, ZFI_STAGE_GRADIENTS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (!name) name = "";
    if (!zfi_is_training_name(name))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_name_training: %s: a name has at most %d letters, digits and "
                        "underscores",
                        zfi_quote(quoted, name, strlen(name)), (int)ZFI_TRAINING_NAME);
    if (zfi_scaler_node(g, ZF_OP_loss_scale))
        return zfi_fail(&g->error, ZF_ERR_STAGE,
                        "zf_name_training: must come before zf_precision, whose loss scale belongs "
                        "to the training");
    copy = zfi_text_copy(&g->memory, &g->text, name, strlen(name));
    if (!copy) return zfi_graph_nomem(g);
    g->training = copy;
    return zfi_leave(g, 0);
}
