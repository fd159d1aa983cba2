/* Checkpoints are saved and loaded by all ranks together: phase by phase, and only while every rank
 * succeeds. As threads or processes they agree by their communicator; in lockstep there is one
 * thread that sees all of them.
 */

ZF_API zf_status zf_save(zf_store *store, const char *path, const zf_save_desc *desc)
{
    zfi_saving s = {.store = store, .path = path, .lock = -1};
    zf_status status;
    if (!store) return ZF_ERR_ARGUMENT;
    if (desc) s.d = *desc;
    store->error = (zf_error){ZF_OK, ""};
    status = zfi_same_compare(&(zfi_same){.store = store}, &store->error);
    for (int k = 0; k < ZFI_COUNT(zfi_save_phases) && !status; k++) {
        (void)zfi_save_phases[k](&s);
        status = zfi_comm_agree(store->comm, &store->error);
    }
    zfi_save_end(&s);
    return status;
}

/* All ranks load one checkpoint: their manifests, which have the checksums of all else, have one
 * checksum. The numbers are by rank. */
static zf_status zfi_same_manifests(const int64_t *sums, int32_t world, zf_error *error)
{
    int32_t r = zfi_same_other(sums, 1, world);
    if (!r) return ZF_OK;
    return zfi_fail(error, ZF_ERR_MISMATCH,
                    "zf_load: ranks 0 and %d load different checkpoints (%s with checksums %08x "
                    "and %08x)",
                    (int)r, zfi_manifest_name, (unsigned)sums[0], (unsigned)sums[r]);
}

static int64_t zfi_manifest_sum(const zfi_loading *l)
{
    return zfi_crc32c(0, l->manifest.text, l->manifest.bytes);
}

static zf_status zfi_compare_manifests(zfi_loading *l)
{
    zf_store *s = l->store;
    int64_t mine = zfi_manifest_sum(l);
    const zf_collective c = {
        .op = ZF_OP_all_gather, .dtype = ZF_I64, .count = 1, .in = &mine, .out = s->records};
    if (!s->records) return ZF_OK;
    if (s->comm->run(s->comm->self, &c, &s->error)) return s->error.status;
    return zfi_same_manifests(s->records, s->world, &s->error);
}

static zfi_loading zfi_load_of(zf_store *store, const char *path, const zf_load_desc *desc)
{
    zfi_loading l = {.store = store, .path = path};
    if (desc) l.d = *desc;
    l.d.masters &= l.d.params_only;
    l.memory = zfi_memory_of(&store->memory.allocator);
    l.mark = zfi_store_mark_of(store);
    return l;
}

ZF_API zf_status zf_load(zf_store *store, const char *path, const zf_load_desc *desc)
{
    zfi_loading l;
    zf_status status = ZF_OK;
    if (!store) return ZF_ERR_ARGUMENT;
    store->error = (zf_error){ZF_OK, ""};
    l = zfi_load_of(store, path, desc);
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        (void)zfi_load_phases[k](&l);
        status = zfi_comm_agree(store->comm, &store->error);
        if (!k && !status) status = zfi_compare_manifests(&l);
    }
    zfi_load_end(&l, status);
    return status;
}
