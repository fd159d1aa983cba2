/* Reading a checkpoint tensor by tensor: its tensors are those of a store of one rank, of which at
 * most one has memory. */

struct zf_checkpoint {
    zf_store *store;
    zfi_loading loading;
    int32_t read; /* the tensor that has memory; -1: none */
};

ZF_API zf_checkpoint *zf_checkpoint_open(const char *path, const char *role,
                                         const zf_allocator *allocator, zf_error *error)
{
    const zfi_role states = role ? zfi_role_called(role, strlen(role)) : ZFI_ROLE_NONE;
    const zf_load_desc d = {.params_only = true};
    zfi_memory memory = zfi_memory_of(allocator);
    zf_checkpoint *c = NULL;
    zf_store *store;
    if (!path || (role && zfi_op_of_role(states) != ZF_OP_state)) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "zf_checkpoint_open: no %s",
                 path ? "state has this role" : "path");
        return NULL;
    }
    store = zf_store_new(&(zf_store_desc){.allocator = memory.allocator}, error);
    if (!store) return NULL;
    path = zfi_text_copy(&store->memory, &store->text, path, strlen(path));
    if (path) c = zfi_calloc(&memory, 1, sizeof *c);
    if (!c) zfi_nomem(&store->error);
    else {
        *c = (zf_checkpoint){.store = store, .loading = zfi_load_of(store, path, &d), .read = -1};
        c->loading.states = states;
        (void)zfi_load_look_through(&c->loading);
    }
    if (!store->error.status) return c;
    zfi_fail(error, store->error.status, "%s", store->error.text);
    if (c) zf_checkpoint_close(c);
    else zf_store_free(store);
    return NULL;
}

/* The tensor that was read last has no memory afterwards. */
static void zfi_checkpoint_forget(zf_checkpoint *c)
{
    zfi_stored *t = c->read < 0 ? NULL : &c->store->tensors[c->read];
    if (t) zfi_free(&c->store->memory, t->host, zfi_stored_bytes(t)), t->host = NULL;
    c->read = -1;
}

ZF_API void zf_checkpoint_close(zf_checkpoint *c)
{
    zfi_memory memory;
    if (!c) return;
    memory = c->store->memory;
    zfi_checkpoint_forget(c);
    zfi_load_free(&c->loading);
    zf_store_free(c->store);
    zfi_free(&memory, c, sizeof *c);
}

ZF_API const char *zf_checkpoint_path(const zf_checkpoint *c) { return c ? c->loading.path : ""; }

ZF_API int32_t zf_checkpoint_count(const zf_checkpoint *c)
{
    return c ? zf_store_count(c->store) : 0;
}

ZF_API zf_stored zf_checkpoint_at(const zf_checkpoint *c, int32_t index)
{
    return zf_store_at(c ? c->store : NULL, index);
}

ZF_API int32_t zf_checkpoint_find(const zf_checkpoint *c, const char *param, bool state)
{
    int32_t k = 0;
    if (!c || !param) return -1;
    if (!state && (k = zfi_store_find(c->store, param)) >= 0)
        return c->store->tensors[k].op == ZF_OP_param ? k : -1;
    for (k = zfi_len(c->store->tensors); zfi_down(k);) {
        const zfi_stored *t = &c->store->tensors[k];
        if (state && t->op == ZF_OP_state && t->param && !strcmp(t->param, param)) return k;
    }
    return -1;
}

ZF_API const void *zf_checkpoint_read(zf_checkpoint *c, int32_t index, zf_error *error)
{
    zf_store *s = c ? c->store : NULL;
    zfi_stored *t;
    if (index < 0 || index >= zf_checkpoint_count(c)) {
        zfi_fail(error, ZF_ERR_ARGUMENT, "zf_checkpoint_read: there is no tensor %d", (int)index);
        return NULL;
    }
    t = &s->tensors[index];
    zfi_checkpoint_forget(c); /* so that one has memory at a time */
    s->error = (zf_error){ZF_OK, ""};
    if (!(t->host = zfi_calloc(&s->memory, zfi_stored_bytes(t), 1))) {
        s->memory.failed = false;
        zfi_nomem(error);
        return NULL;
    }
    c->read = index;
    c->loading.piece_bytes = 0;
    if (!zfi_load_parts(&c->loading, index, true)) return t->host;
    zfi_fail(error, s->error.status, "%s", s->error.text);
    return NULL;
}
