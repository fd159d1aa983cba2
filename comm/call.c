/* Communicators: the name of a call in messages, and whether it can be done. */

ZF_API const char *zf_collective_name(char text[64], const zf_collective *c)
{
    if (!c) return strcpy(text, "no collective");
    snprintf(text, 64, "%s %%%d",
             c->op >= ZF_OP_none && c->op < ZF_OP_COUNT ? zfi_records[c->op]->name : "?", (int)c->node);
    return text;
}

ZF_API const char *zf_collective_text(char text[128], const zf_collective *c)
{
    char name[64], root[32] = "";
    if (!c) return zf_collective_name(text, c);
    if (c->op == ZF_OP_bcast) snprintf(root, sizeof root, " from rank %d", (int)c->root);
    snprintf(text, 128, "%s of %lld %s%s%s", zf_collective_name(name, c), (long long)c->count,
             zf_dtype_name(c->dtype), root, c->add ? " added to out" : "");
    return text;
}

ZF_API zf_status zf_collective_check(const zf_collective *c, const zf_comm *comm, int32_t channels,
                                     zf_error *error)
{
    const int32_t world = comm ? comm->world : 0;
    size_t size;
    char name[64];
    if (world < 1) return zfi_fail(error, ZF_ERR_ARGUMENT, "a collective without a communicator");
    if (!c || c->op <= ZF_OP_none || c->op >= ZF_OP_COUNT ||
        !(zfi_records[c->op]->traits & ZF_OP_COLLECTIVE))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "a communicator was called with no collective");
    zf_collective_name(name, c);
    if (c->channel < 0 || c->channel >= channels)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: channel %d; it must be 0 to %d", name,
                        (int)c->channel, (int)channels - 1);
    if (!(size = zf_dtype_size(c->dtype)))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: %d is no dtype", name, (int)c->dtype);
    if (c->count < 0 || (uint64_t)c->count > PTRDIFF_MAX / size / (size_t)world)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: count is %lld; it must be 0 to %lld", name,
                        (long long)c->count, (long long)(PTRDIFF_MAX / size / (size_t)world));
    if (c->op == ZF_OP_bcast && (c->root < 0 || c->root >= world))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: root %d is no rank of a world of %d", name,
                        (int)c->root, (int)world);
    if (c->count && (!c->out || (!c->in && (c->op != ZF_OP_bcast || c->root == comm->rank))))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: %s is NULL", name, c->out ? "in" : "out");
    return ZF_OK;
}

ZF_API void zf_comm_free(zf_comm *comm)
{
    if (comm && comm->destroy) comm->destroy(comm->self);
}
