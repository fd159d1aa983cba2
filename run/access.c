/* Reading and writing tensors of a program. */

/* Another program has run in the memory of this one's values since this one did. */
static bool zfi_was_overrun(const zf_program *p, zf_space space)
{
    const zfi_work *work = p->arenas[space].work;
    return work && work->last && work->last != p;
}

/* The node of `x`, after checking that a program may read or write its bytes. */
static int32_t zfi_accessible(zf_program *p, zf_tensor x, size_t bytes, const char *call,
                              bool writing)
{
    zf_graph *g = p->graph;
    int32_t id = x.graph == g ? zfi_resolve(g, x.id) : 0;
    const zfi_node *node = &g->nodes[id];
    char type[ZFI_TYPE_TEXT];
    zf_shape shape;
    size_t all;
    bool known;
    zfi_clear_error(p);
    if (!id)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        "%s: the tensor is not one of the program's graph", call),
               0;
    known = (zfi_is_persistent(g, node) || node->held) && node->op != ZF_OP_bucket &&
            !(writing && node->op == ZF_OP_constant);
    for (int32_t i = 0; i < zfi_len(g->order) && !known && !writing; i++)
        known = g->nodes[g->order[i]].op == ZF_OP_output && g->nodes[g->order[i]].args[0] == id;
    if (!known)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT,
                        writing ? "%s: %%%d %s is no input, param, state or cache"
                                : "%s: %%%d %s is not kept; zf_output keeps a value",
                        call, (int)id, g->records[node->op]->name),
               0;
    shape = zfi_stored_shape(node->shape, zfi_copies_of(p, node));
    all = (size_t)zf_shape_count(shape) * zf_dtype_size(node->dtype);
    if (bytes != all)
        return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "%s: %%%d %s is %s, %zu bytes, not %zu", call,
                        (int)id, node->name ? node->name : g->records[node->op]->name,
                        zfi_type_text(type, node->dtype, &shape), all, bytes),
               0;
    return id;
}

ZF_API zf_status zf_write(zf_program *p, zf_tensor x, const void *data, size_t bytes)
{
    int32_t id;
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_write", true);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_write: data is NULL");
    if (p->tensor_of[id] >= 0) return zfi_store_put(p->store, p->tensor_of[id], data, &p->error);
    status = zfi_put_bytes(p->store, (zf_space)p->graph->nodes[id].space, p->data[id], data, bytes,
                           &p->error);
    for (int32_t k = 0; k < zfi_len(p->unwritten) && !status; k++)
        if (p->unwritten[k] == id) {
            p->unwritten[k] = stbds_arrlast(p->unwritten);
            stbds_header(p->unwritten)->length--;
        }
    return status;
}

ZF_API zf_status zf_read(zf_program *p, zf_tensor x, void *data, size_t bytes)
{
    int32_t id;
    if (!p) return ZF_ERR_ARGUMENT;
    id = zfi_accessible(p, x, bytes, "zf_read", false);
    if (!id) return p->error.status;
    if (!data && bytes) return zfi_fail(&p->error, ZF_ERR_ARGUMENT, "zf_read: data is NULL");
    if (p->backend->synchronize(p->backend->self, &p->error)) return p->error.status;
    if (p->tensor_of[id] >= 0)
        return zfi_store_get(p->store, p->tensor_of[id], data, id, "zf_read", &p->error);
    if (!zfi_is_persistent(p->graph, &p->graph->nodes[id]) &&
        zfi_was_overrun(p, (zf_space)p->graph->nodes[id].space))
        return zfi_fail(&p->error, ZF_ERR_STAGE,
                        "zf_read: %%%d was overwritten by another program, which has run in the "
                        "same memory since (zf_compile_desc.beside)",
                        (int)id);
    return zfi_get_bytes(p->store, (zf_space)p->graph->nodes[id].space, data, p->data[id], bytes,
                         &p->error);
}
