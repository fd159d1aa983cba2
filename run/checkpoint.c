/* Checkpoints are saved and loaded by all ranks together: phase by phase, and only while every rank
 * succeeds. As threads or processes they agree by their communicator; in lockstep there is one
 * thread that sees all of them.
 */

ZF_API zf_status zf_save(zf_program *p, const char *path, const zf_save_desc *desc)
{
    zfi_saving s = {.program = p, .path = path};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    if (desc) s.d = *desc;
    zfi_clear_error(p);
    status = zfi_agree(p);
    for (int k = 0; k < ZFI_COUNT(zfi_save_phases) && !status; k++) {
        (void)zfi_save_phases[k](&s);
        status = zfi_comm_agree(p->comm, &p->error);
    }
    zfi_save_end(&s);
    return status;
}

ZF_API zf_status zf_load(zf_program *p, const char *path, const zf_load_desc *desc)
{
    zfi_loading l = {.program = p, .path = path, .params_only = desc && desc->params_only};
    zf_status status;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    status = zfi_agree(p);
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        (void)zfi_load_phases[k](&l);
        status = zfi_comm_agree(p->comm, &p->error);
    }
    zfi_load_end(&l, status);
    return status;
}

/* The error of the lowest rank that has one is that of all, and of the call. */
static zf_status zfi_lockstep_agree(const zf_lockstep_desc *d, zf_error *error)
{
    zf_error first = {ZF_OK, ""};
    for (int32_t r = d->count; r-- > 0;)
        if (d->programs[r]->error.status) {
            if (d->count > 1) zfi_rank_error(&first, r, &d->programs[r]->error);
            else first = d->programs[r]->error;
        }
    if (!first.status) return ZF_OK;
    for (int32_t r = 0; r < d->count; r++) d->programs[r]->error = first;
    return zfi_fail(error, first.status, "%s", first.text);
}

ZF_API zf_status zf_lockstep_save(const zf_lockstep_desc *desc, const char *path,
                                  const zf_save_desc *save, zf_error *error)
{
    zf_status status = zfi_lockstep_check(desc, error);
    zfi_memory memory;
    zfi_saving *all;
    if (status) return status;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r].program = desc->programs[r];
        all[r].path = path;
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
    zfi_memory memory;
    zfi_loading *all;
    if (status) return status;
    memory = zfi_memory_of(&desc->programs[0]->memory.allocator);
    all = zfi_calloc(&memory, (size_t)desc->count, sizeof *all);
    if (!all) return zfi_nomem(error);
    for (int32_t r = 0; r < desc->count; r++) {
        all[r].program = desc->programs[r];
        all[r].path = path;
        all[r].params_only = load && load->params_only;
        zfi_clear_error(desc->programs[r]);
    }
    for (int k = 0; k < ZFI_COUNT(zfi_load_phases) && !status; k++) {
        for (int32_t r = 0; r < desc->count; r++) (void)zfi_load_phases[k](&all[r]);
        status = zfi_lockstep_agree(desc, error);
    }
    for (int32_t r = 0; r < desc->count; r++) zfi_load_end(&all[r], status);
    zfi_free(&memory, all, (size_t)desc->count * sizeof *all);
    return status;
}
