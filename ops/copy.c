/* copy: a value in another space.
 *
 *     %9 = copy %8 {to=host} : f32[1024] host     y = x
 *     %9 = copy %8, %7 : f32[1024]                the same into %7, a leaf or a shard; y is %7 then
 *
 * Values lie on the device, in host memory or on a disk. Operators compute on the device and in
 * host memory. Copies go between device and host, and between host and disk. An update may write to
 * a copy of a parameter or state; a copy back must follow. In the first micro-batch of a step a sum
 * over micro-batches is not read from a disk: what is added first does not read the copy. */

static zf_space zfi_space_of_copy(const zf_attribute *attributes)
{
    return (zf_space)attributes[ZF_AT_copy_to].i;
}

static zf_status zfi_infer_copy(zfi_infer *c)
{
    const zfi_node *into = c->arg_count > 1 ? c->args[1] : NULL;
    const zf_space to = zfi_space_of_copy(c->attributes), from = (zf_space)c->args[0]->space;
    char type[ZFI_TYPE_TEXT];
    if (to == from)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 0 lies in the space %s already",
                              zf_space_name(to));
    if (to != ZF_HOST && from != ZF_HOST)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "values go between device and disk by way of host memory");
    if (into && (zf_space)into->space != to)
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1 lies in the space %s, not %s",
                              zf_space_name((zf_space)into->space), zf_space_name(to));
    zfi_infer_like(c, 0);
    if (into && (into->dtype != c->dtype || !zfi_same_shape(&into->shape, &c->shape)))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT, "operand 1 must be of type %s",
                              zfi_type_text(type, c->dtype, &c->shape));
    return ZF_OK;
}

enum { ZFI_LARGE_COPY = 1 << 20 }; /* bytes; smaller ones may be read from the caches */

/* Copies between device and host: on the CPU backend both are memory. A copy on a queue of its own
 * does not use the workers, which then compute. Copies from and to a disk are split into requests
 * that run at the same time (io/disk.c). */
static zf_status zfi_run_copy(const zf_launch *l)
{
    const int64_t bytes = zfi_array_bytes(&l->out);
    if (l->sums && !l->run->micro) return ZF_OK; /* nothing has been written there */
    if (l->disk)
        return zfi_disk_copy(l->disk, l->disk_value - 1, l->out.data, l->args[0].data,
                             (size_t)bytes, l->error);
    if (!l->queue) zfi_move_bytes(l, l->out.data, l->args[0].data, bytes);
    else if (bytes < ZFI_LARGE_COPY) memcpy(l->out.data, l->args[0].data, (size_t)bytes);
    else {
        zfi_copy_past_caches(zfi_cpu_of(l)->isa, l->out.data, l->args[0].data, bytes);
        zfi_end_past_caches();
    }
    return ZF_OK;
}

static double zfi_bytes_of_copy(const zf_launch *l) { return 2 * (double)zfi_array_bytes(&l->out); }

/* ------------------------------------------------------------------------------- records */

ZFI_OPERATOR(copy, .infer = zfi_infer_copy, .cpu = zfi_run_copy, .bytes = zfi_bytes_of_copy,
             .space = zfi_space_of_copy, .views = zfi_views_into, .writes = zfi_writes_into_1,
             .ranks = ZFI_RANKS_VIEW, .linear_in = 1,
             .traits = ZF_OP_MUTATES | ZF_OP_ANYWHERE | ZF_OP_READS_HALF)
