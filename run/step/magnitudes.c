/* The magnitudes with which an adapter begins (passes/rewrite/dora.c): the lengths of the
 * weights. */

/* The parameter of a module, with this end of its name; invalid: none. */
static zf_tensor zfi_of_module(zf_graph *g, const char *module, const char *end)
{
    char name[ZFI_ADAPTER_NAME], adapted[ZFI_ADAPTER_NAME];
    snprintf(name, sizeof name, "%.*s%s", ZFI_ADAPTER_NAME / 2, module, end);
    if (!strcmp(end, zfi_table_names.a))
        return zf_graph_find(g, zfi_adapter_name(adapted, g->adapter, name));
    return zf_graph_find(g, name);
}

/* A weight, and what is computed of it. */
typedef struct zfi_lengths {
    zf_tensor weight, magnitude;
    bool columns;   /* [in, out] */
    void *data;     /* as the program has it */
    float *values;  /* a row */
    double *length; /* of each row or column */
    size_t bytes;   /* of all of them */
} zfi_lengths;

/* The numbers of row r as f32. */
static void zfi_lengths_row(const zfi_lengths *l, int64_t r, int64_t columns)
{
    const zf_quantize_desc blocks = zf_param_blocks(l->weight);
    const size_t row = zf_whole_bytes(l->weight) / (size_t)zf_param_shape(l->weight).dims[0];
    const char *from = (const char *)l->data + (size_t)r * row;
    if (blocks.bits) zf_dequantize_values(l->values, from, (size_t)columns, &blocks);
    else zf_convert(l->values, ZF_F32, from, zf_tensor_dtype(l->weight), (size_t)columns);
}

static void zfi_lengths_sum(const zfi_lengths *l)
{
    const zf_shape s = zf_param_shape(l->weight);
    const int64_t count = s.dims[l->columns ? 1 : 0];
    memset(l->length, 0, (size_t)count * sizeof *l->length);
    for (int64_t r = 0; r < s.dims[0]; r++) {
        zfi_lengths_row(l, r, s.dims[1]);
        for (int64_t c = 0; c < s.dims[1]; c++)
            l->length[l->columns ? c : r] += (double)l->values[c] * l->values[c];
    }
    for (int64_t k = 0; k < count; k++) l->length[k] = sqrt(l->length[k]);
}

/* Writes the lengths of a weight to its magnitudes. */
static zf_status zfi_lengths_write(zf_program *p, zfi_lengths *l)
{
    const zf_shape s = zf_param_shape(l->weight);
    const int64_t count = s.dims[l->columns ? 1 : 0];
    const size_t size = (zf_whole_bytes(l->weight) + 7) / 8 * 8;
    zf_status status;
    l->bytes = size + (size_t)count * sizeof(double) + (size_t)s.dims[1] * sizeof(float) + 8;
    if (!(l->data = zfi_realloc(&p->memory, NULL, 0, l->bytes))) {
        p->memory.failed = false;
        return zfi_nomem(&p->error);
    }
    l->length = (double *)(void *)((char *)l->data + size);
    l->values = (float *)(void *)(l->length + count);
    status = zf_read_whole(p, l->weight, l->data, zf_whole_bytes(l->weight));
    if (!status) {
        zfi_lengths_sum(l);
        zf_convert(l->data, zf_tensor_dtype(l->magnitude), l->length, ZF_F64, (size_t)count);
        status = zf_write_whole(p, l->magnitude, 0, l->data, zf_whole_bytes(l->magnitude));
    }
    zfi_free(&p->memory, l->data, l->bytes);
    return status;
}

/* The weight of a parameter that is a magnitude; false: it is none. */
static bool zfi_lengths_of(zf_tensor param, zfi_lengths *l)
{
    char plain[ZFI_ADAPTER_NAME];
    zf_graph *g = param.graph;
    zfi_plain_name(plain, g->adapter, zf_tensor_name(param));
    if (!zf_param_adapter(param) || !zfi_ends_in(plain, zfi_magnitude_name)) return false;
    plain[strlen(plain) - (sizeof zfi_magnitude_name - 1)] = '\0';
    *l = (zfi_lengths){.magnitude = param, .weight = zfi_of_module(g, plain, ".weight")};
    if (!zf_valid(l->weight)) l->weight = zfi_of_module(g, plain, "");
    if (!zf_valid(l->weight)) return false;
    l->columns = zf_valid(zfi_of_module(g, plain, zfi_table_names.a)) ||
                 zf_param_shape(l->weight).dims[0] != zf_param_shape(param).dims[0];
    return true;
}

ZF_API zf_status zf_lora_magnitudes(zf_program *p)
{
    zf_status status = ZF_OK;
    if (!p) return ZF_ERR_ARGUMENT;
    zfi_clear_error(p);
    for (int32_t k = 0; k < zf_param_count(p->graph) && !status; k++) {
        zfi_lengths l;
        if (zfi_lengths_of(zf_param_at(p->graph, k), &l)) status = zfi_lengths_write(p, &l);
    }
    return status;
}
