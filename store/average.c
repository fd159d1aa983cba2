/* The averages of parameters (zf_ema) as parameters. */

/* The tensor of `from` whose values the parameter `name` takes: its average in a training, or the
 * parameter; -1: there is neither. *average: it is an average. */
static int32_t zfi_averaged(const zf_store *from, const char *training, const char *name,
                            bool *average)
{
    char text[ZFI_STATE_NAME];
    int32_t k;
    snprintf(text, sizeof text, "%s%sema.average/%s", training, *training ? ":" : "", name);
    k = zfi_store_find(from, text);
    *average = k >= 0;
    return k < 0 ? zfi_store_find(from, name) : k;
}

/* Parameter k takes the values of tensor `other`, which has as many. */
static zf_status zfi_take_average(zf_store *to, int32_t k, zf_store *from, int32_t other)
{
    const zfi_stored *t = &to->tensors[k], *x = &from->tensors[other];
    const size_t count = (size_t)zfi_stored_count(t), most = 8 * (count + 1), bytes = 2 * most;
    zf_status status;
    char *room;
    if (!zfi_same_shape(&t->shape, &x->shape) || !zfi_is_float(x->dtype))
        return zfi_fail(&to->error, ZF_ERR_MISMATCH,
                        "zf_ema_copy: \"%.200s\" has another shape in "
                        "the other store",
                        t->name);
    if (!(room = zfi_realloc(&to->memory, NULL, 0, bytes))) {
        to->memory.failed = false;
        return zfi_nomem(&to->error);
    }
    status = zfi_store_get(from, other, room, 0, "zf_ema_copy", &to->error);
    if (!status) zf_convert(room + most, t->dtype, room, x->dtype, count);
    if (!status) status = zfi_store_put(to, k, room + most, &to->error);
    zfi_free(&to->memory, room, bytes);
    return status;
}

ZF_API zf_status zf_ema_copy(zf_store *to, zf_store *from, const char *training)
{
    zf_status status;
    bool some = false;
    if (!to) return ZF_ERR_ARGUMENT;
    to->error = (zf_error){ZF_OK, ""};
    if (!from) return zfi_fail(&to->error, ZF_ERR_ARGUMENT, "zf_ema_copy: no store to copy from");
    if (!training) training = "";
    if ((status = zfi_check_defined(from, "zf_ema_copy", &to->error))) return status;
    if ((status = to->backend->synchronize(to->backend->self, &to->error))) return status;
    if ((status = from->backend->synchronize(from->backend->self, &to->error))) return status;
    for (int32_t k = 0; k < zfi_len(to->tensors) && !status; k++) {
        const zfi_stored *t = &to->tensors[k];
        bool average = false;
        const bool takes = t->op == ZF_OP_param && zfi_is_copied(to, t) &&
                           zfi_is_float(t->dtype) && !zfi_is_away(to, t);
        const int32_t other = takes ? zfi_averaged(from, training, t->name, &average) : -1;
        if (takes && (status = zfi_check_same_pieces(to, t, from, "zf_ema_copy"))) return status;
        some |= average;
        if (other >= 0 && (average || to != from)) status = zfi_take_average(to, k, from, other);
    }
    if (status || some) return status;
    return zfi_fail(&to->error, ZF_ERR_ARGUMENT,
                    "zf_ema_copy: the store has no averages of the training \"%.63s\" (zf_ema)",
                    training);
}
