/* Communicators: the ranks that take part in a call, its name in messages, and checks of calls. */

ZF_API zf_group zf_collective_group(const zf_collective *c, const zf_comm *comm)
{
    return c && c->group.count ? c->group : (zf_group){0, 1, comm ? comm->world : 0};
}

/* " over ranks 2 to 3", " over ranks 1, 3", " over ranks 1, 3, ..., 7"; "" of all. */
static void zfi_group_text(char text[64], const zf_group *group)
{
    const long long first = group->first, second = first + group->stride,
                    last = first + ((long long)group->count - 1) * group->stride;
    if (!group->count) *text = '\0';
    else if (group->count == 1) snprintf(text, 64, " over rank %lld", first);
    else if (group->count == 2) snprintf(text, 64, " over ranks %lld, %lld", first, last);
    else if (group->stride == 1) snprintf(text, 64, " over ranks %lld to %lld", first, last);
    else snprintf(text, 64, " over ranks %lld, %lld, ..., %lld", first, second, last);
}

ZF_API const char *zf_collective_name(char text[64], const zf_collective *c)
{
    char group[64];
    if (!text) return "";
    if (!c) return strcpy(text, "no collective");
    zfi_group_text(group, &c->group);
    snprintf(text, 64, "%s %%%d%.40s",
             c->op >= ZF_OP_none && c->op < ZF_OP_COUNT ? zfi_records[c->op]->name : "?",
             (int)c->node, group);
    return text;
}

ZF_API const char *zf_collective_text(char text[128], const zf_collective *c)
{
    char name[64], root[32] = "";
    if (!c || !text) return zf_collective_name(text, c);
    if (c->op == ZF_OP_bcast) snprintf(root, sizeof root, " from rank %d", (int)c->root);
    if (c->op == ZF_OP_reduce) snprintf(root, sizeof root, " to rank %d", (int)c->root);
    if (c->op == ZF_OP_send)
        snprintf(root, sizeof root, " from rank %lld",
                 c->group.first + (long long)c->root * c->group.stride);
    snprintf(text, 128, "%s of %lld %s%s%s%s", zf_collective_name(name, c), (long long)c->count,
             zf_dtype_name(c->dtype), root, c->run ? " by trees" : c->tree ? " by tree" : "",
             c->add ? " added to out" : "");
    return text;
}

/* The group consists of ranks of the communicator, including its own. */
static bool zfi_is_group(const zf_group *group, const zf_comm *comm)
{
    const int64_t from = (int64_t)comm->rank - group->first,
                  last = group->first + ((int64_t)group->count - 1) * group->stride;
    return group->first >= 0 && group->stride >= 1 && group->count >= 1 && last < comm->world &&
           from >= 0 && from % group->stride == 0 && comm->rank <= last;
}

ZF_API zf_status zf_collective_check(const zf_collective *c, const zf_comm *comm, int32_t channels,
                                     zf_error *error)
{
    zf_group group;
    int32_t world;
    size_t size;
    bool reads, writes;
    char name[64];
    if (!comm || comm->world < 1)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "a collective without a communicator");
    if (!c || c->op <= ZF_OP_none || c->op >= ZF_OP_COUNT ||
        !(zfi_records[c->op]->traits & ZF_OP_COLLECTIVE))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "a communicator was called with no collective");
    zf_collective_name(name, c);
    group = zf_collective_group(c, comm), world = group.count;
    if (!zfi_is_group(&group, comm))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: the group {%d, %d, %d} (first, stride, count) must be of ranks 0 to "
                        "%d, rank %d among them",
                        name, (int)group.first, (int)group.stride, (int)group.count,
                        (int)comm->world - 1, (int)comm->rank);
    if (c->channel < 0 || c->channel >= channels)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: channel %d; it must be 0 to %d", name,
                        (int)c->channel, (int)channels - 1);
    if (!(size = zf_dtype_size(c->dtype)))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: %d is no dtype", name, (int)c->dtype);
    if (c->count < 0 || (uint64_t)c->count > PTRDIFF_MAX / size / (size_t)world)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: count is %lld; it must be 0 to %lld", name,
                        (long long)c->count, (long long)(PTRDIFF_MAX / size / (size_t)world));
    if (c->op == ZF_OP_send && world != 2)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: a send is between two ranks, not %d", name,
                        (int)world);
    if (zfi_has_root(c->op) && (c->root < 0 || c->root >= world))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: root %d is no rank of a %s of %d", name,
                        (int)c->root, c->group.count ? "group" : "world", (int)world);
    if ((c->before || c->after) &&
        (c->before < 0 || c->after < 0 || (int64_t)c->before + c->after >= world ||
         (c->op != ZF_OP_all_gather && (c->op != ZF_OP_reduce_scatter || !c->tree))))
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "%s: from %d ranks before and %d after a rank of %d: fewer than all, of an "
                        "all_gather or a reduce_scatter by a tree",
                        name, (int)c->before, (int)c->after, (int)world);
    reads = !zfi_is_from_root(c->op) || c->root == zfi_number_in(&group, comm->rank);
    writes = c->op != ZF_OP_send || !reads;
    if (c->count && ((writes && !c->out) || (reads && !c->in)))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: %s is NULL", name,
                        !writes || c->out ? "in" : "out");
    return ZF_OK;
}

ZF_API void zf_comm_free(zf_comm *comm)
{
    if (!comm || !comm->destroy) return;
    if (comm->stores) comm->freed = true;
    else comm->destroy(comm->self);
}
