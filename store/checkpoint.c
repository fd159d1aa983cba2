/* Checkpoints are saved and loaded by all ranks together: phase by phase, and only while every rank
 * succeeds. As threads or processes they agree by their communicator; in lockstep there is one
 * thread that sees all of them.
 */

ZF_API zf_status zf_save(zf_program *p, const char *path, const zf_save_desc *desc)
{
    zfi_saving s = {.program = p, .path = path, .lock = -1};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if (desc) s.d = *desc;
    zfi_clear_error(p);
    status = zfi_agree(p);
    if (!status) status = zfi_compare(p);
    for (int k = 0; k < ZFI_COUNT(zfi_save_phases) && !status; k++) {
        (void)zfi_save_phases[k](&s);
        status = zfi_comm_agree(p->comm, &p->error);
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
    zf_program *p = l->program;
    int64_t mine = zfi_manifest_sum(l), *sums = p->same.records;
    const zf_collective c = {
        .op = ZF_OP_all_gather, .dtype = ZF_I64, .count = 1, .in = &mine, .out = sums};
    if (!sums) return ZF_OK;
    if (p->comm->run(p->comm->self, &c, &p->error)) return p->error.status;
    return zfi_same_manifests(sums, p->run.world, &p->error);
}

ZF_API zf_status zf_load(zf_program *p, const char *path, const zf_load_desc *desc)
{
    zfi_loading l = {.program = p,
                     .path = path,
                     .params_only = desc && desc->params_only,
                     .masters = desc && desc->params_only && desc->masters};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    status = zfi_agree(p);
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        (void)zfi_load_phases[k](&l);
        status = zfi_comm_agree(p->comm, &p->error);
        if (!k && !status) status = zfi_compare_manifests(&l);
    }
    zfi_load_end(&l, status);
    return status;
}

ZF_API zf_status zf_lockstep_save(const zf_lockstep_desc *desc, const char *path,
                                  const zf_save_desc *save, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    zfi_memory memory;
    zfi_saving *all;
    if (!status) status = zfi_lockstep_compare(desc, error);
    if (status) return status;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r].program = desc->programs[r];
        all[r].path = path;
        all[r].lock = -1;
        if (save) all[r].d = *save;
        zfi_clear_error(desc->programs[r]);
    }
    for (int k = 0; k < ZFI_COUNT(zfi_save_phases) && !status; k++) {
        for (int32_t r = 0; r < desc->count; r++) (void)zfi_save_phases[k](&all[r]);
        status = zfi_lockstep_agree(desc, error);
    }
    for (int32_t r = 0; r < desc->count; r++) zfi_save_end(&all[r]);
    zfi_free(&memory, all, (size_t)desc->count * sizeof *all);
    return status;
}

ZF_API zf_status zf_lockstep_load(const zf_lockstep_desc *desc, const char *path,
                                  const zf_load_desc *load, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    int64_t *sums;
    zfi_memory memory;
    zfi_loading *all;
    if (status) return status;
    sums = desc->programs[0]->same.records;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r].program = desc->programs[r];
        all[r].path = path;
        all[r].params_only = load && load->params_only;
        all[r].masters = load && load->params_only && load->masters;
        zfi_clear_error(desc->programs[r]);
    }
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        for (int32_t r = 0; r < desc->count; r++) (void)zfi_load_phases[k](&all[r]);
        status = zfi_lockstep_agree(desc, error);
        for (int32_t r = 0; r < desc->count && sums && !k && !status; r++)
            sums[r] = zfi_manifest_sum(&all[r]);
        if (sums && !k && !status) status = zfi_same_manifests(sums, desc->count, error);
    }
    for (int32_t r = 0; r < desc->count; r++) zfi_load_end(&all[r], status);
    zfi_free(&memory, all, (size_t)desc->count * sizeof *all);
    return status;
}
