/* First values of persistent tensors. They depend on seed, name and element of the whole tensor
 * alone, so neither sharding nor cutting changes them. */

/* The random stream of a name. It differs from those of dropout by the step, which is 0 here and
 * never 0 there. */
static uint32_t zfi_stream_of(const char *name, size_t length)
{
    uint64_t hash = zfi_hash_bytes(ZFI_HASH_START, name, length);
    return (uint32_t)(hash ^ hash >> 32);
}

/* The same of a param; a piece has that of the whole. The name of an adapter changes no values. */
static uint32_t zfi_stream_of_param(const zf_graph *g, const zfi_node *param)
{
    const bool piece = zfi_cut_rows_of(param).rows != 0;
    const size_t length = piece ? zfi_whole_name(param->name) : strlen(param->name);
    char whole[ZFI_ADAPTER_NAME], plain[ZFI_ADAPTER_NAME];
    if (param->role != ZFI_ROLE_ADAPTER) return zfi_stream_of(param->name, length);
    snprintf(whole, sizeof whole, "%.*s", (int)length, param->name);
    return zfi_stream_of(plain, strlen(zfi_plain_name(plain, g->adapter, whole)));
}

/* Computes elements [first, first + n) of a param, state or constant, in its dtype, into out[0..n).
 * work: n floats. */
static void zfi_first_numbers(const zf_graph *g, const zfi_node *node, uint64_t seed, int64_t first,
                             int64_t n, float *work, void *out)
{
    zf_array to = {out, node->dtype, {1, {n}}};
    const zf_attribute *a;
    double value = 0;
    if (node->op == ZF_OP_state && node->arg_count) node = &g->nodes[node->args[0]];
    if (node->op == ZF_OP_param) first += zfi_elements_before(node);
    a = node->attributes;
    if (node->op == ZF_OP_constant) {
        const double *values = a[0].list.data;
        for (int64_t i = 0; i < n; i++)
            zfi_set(&to, i, values[a[0].list.count == 1 ? 0 : first + i]);
        return;
    }
    if (node->op == ZF_OP_param && (a[0].i == ZF_NORMAL || a[0].i == ZF_TRUNCATED_NORMAL)) {
        zfi_random_normal(zfi_isa_best(), work, (uint64_t)first, n, (float)a[1].f, (float)a[2].f,
                          a[0].i == ZF_TRUNCATED_NORMAL, zfi_stream_of_param(g, node), 0, seed);
        for (int64_t i = 0; i < n; i++) zfi_set(&to, i, work[i]);
        return;
    }
    if (node->op == ZF_OP_param && a[0].i == ZF_UNIFORM) {
        zfi_random_uniform(zfi_isa_best(), work, (uint64_t)first, n, zfi_stream_of_param(g, node),
                           0, seed);
        for (int64_t i = 0; i < n; i++) zfi_set(&to, i, a[1].f + (a[2].f - a[1].f) * work[i]);
        return;
    }
    if (node->op == ZF_OP_state) value = a[0].f;
    if (node->op == ZF_OP_param) value = a[0].i == ZF_ONES ? 1 : a[0].i == ZF_FILL ? a[1].f : 0;
    for (int64_t i = 0; i < n; i++) zfi_set(&to, i, value);
}

/* The same of a param of records, whose elements are bytes. */
static void zfi_first_records(const zf_graph *g, const zfi_node *node, uint64_t seed, int64_t first,
                              int64_t n, uint8_t *out)
{
    const zfi_blocks b = zfi_blocks_by(ZF_INT(node, param, bits), ZF_INT(node, param, block),
                                       ZF_INT(node, param, scale));
    float work[ZFI_BLOCK_MOST], numbers[ZFI_BLOCK_MOST];
    uint8_t record[sizeof(float) + ZFI_BLOCK_MOST];
    zfi_node floats = *node;
    floats.dtype = ZF_F32;
    for (int64_t at = first, count; at < first + n; at += count) {
        const int64_t from = at % b.record;
        count = zfi_min(b.record - from, first + n - at);
        zfi_first_numbers(g, &floats, seed, at / b.record * b.block, b.block, work, numbers);
        zfi_quantize_blocks(zfi_isa_best(), &b, record, ZF_F32, numbers, 1);
        memcpy(out + (at - first), record + from, (size_t)count);
    }
}

/* The same of any of them, as this rank has it: of a tensor that is cut, those of its part. */
static void zfi_first_values(const zf_graph *g, const zfi_node *node, uint64_t seed, int32_t rank,
                             int64_t first, int64_t n, float *work, void *out)
{
    const zfi_rank_box box = zfi_box_of(zfi_mesh_of(g), &node->shape, &node->spread, rank);
    const bool cut = zfi_box_is_part(&box);
    for (int64_t at = 0, count = n; at < n; at += count) {
        const int64_t whole = cut ? zfi_box_to_whole(&box, first + at, &count) : first,
                      left = zf_shape_count(box.shape) - first - at;
        void *to = (char *)out + (size_t)at * zf_dtype_size(node->dtype);
        if (left <= 0) { /* padding */
            memset(to, 0, (size_t)(n - at) * zf_dtype_size(node->dtype));
            return;
        }
        count = zfi_min(zfi_min(count, n - at), left);
        if (node->op == ZF_OP_param && ZF_INT(node, param, bits))
            zfi_first_records(g, node, seed, whole, count, to);
        else zfi_first_numbers(g, node, seed, whole, count, work, to);
    }
}
