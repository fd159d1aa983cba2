/* Adapters of low rank (passes/rewrite/lora.c): one takes the values of another; they are added to
 * their weights, one weight at a time:
 *
 *     M.weight [out, in] += scale  M.lora_B.weight [out, rank]  M.lora_A.weight [rank, in]
 *
 * and B becomes zeros; of a table
 *
 *     M.weight [rows, width] += scale  lora_embedding_A [rows, rank]  lora_embedding_B [width, rank]^T
 *
 * and A becomes zeros. Where a weight has a matrix for each expert, A and B have one each too.
 *
 * With magnitudes the rows of M.weight, of a table its columns, are then multiplied by magnitude /
 * length, and magnitudes become the lengths of what is stored. Products are computed in f64 and
 * rounded once. */

/* --------------------------------------------------------------------------------------- copies */

/* The tensor from which tensor k of the adapter `to` takes its values; -1 with the store's
 * error. */
static int32_t zfi_copied_from(zf_store *s, int32_t k, const char *to, const char *from)
{
    const zfi_stored *t = &s->tensors[k];
    char plain[ZFI_ADAPTER_NAME], name[ZFI_ADAPTER_NAME], type[2][ZFI_TYPE_TEXT];
    const int32_t at =
        zfi_store_find(s, zfi_adapter_name(name, from, zfi_plain_name(plain, to, t->name)));
    const zfi_stored *x = at < 0 ? NULL : &s->tensors[at];
    if (x && x->dtype == t->dtype && zfi_same_shape(&x->shape, &t->shape)) return at;
    zfi_fail(&s->error, ZF_ERR_MISMATCH,
             x ? "zf_lora_copy: \"%.200s\" is %s and \"%.200s\" %s"
               : "zf_lora_copy: for \"%.200s\", %s, the store has no \"%.200s\"",
             t->name, zfi_type_text(type[0], t->dtype, &t->shape), name,
             x ? zfi_type_text(type[1], x->dtype, &x->shape) : "");
    return -1;
}

/* Copies tensor k of the adapter. */
static zf_status zfi_copy_one(zf_store *s, int32_t k, const char *to, const char *from)
{
    const size_t bytes = zfi_stored_bytes(&s->tensors[k]);
    const int32_t at = zfi_copied_from(s, k, to, from);
    char *room = zfi_realloc(&s->memory, NULL, 0, bytes + 1);
    zf_status status = room ? zfi_store_get(s, at, room, 0, "zf_lora_copy", &s->error)
                            : zfi_nomem(&s->error);
    if (!status) status = zfi_store_put(s, k, room, &s->error);
    s->memory.failed = false;
    zfi_free(&s->memory, room, bytes + 1);
    return status;
}

ZF_API zf_status zf_lora_copy(zf_store *s, const char *to, const char *from)
{
    bool some[2] = {false, false};
    const char *const names[2] = {to ? to : "", from ? from : ""};
    zf_status status = ZF_OK;
    if (!s) return ZF_ERR_ARGUMENT;
    s->error = (zf_error){ZF_OK, ""};
    if (!strcmp(names[0], names[1]))
        return zfi_fail(&s->error, ZF_ERR_ARGUMENT,
                        "zf_lora_copy: the adapter \"%.63s\" is both the one that changes and the one "
                        "that is copied",
                        names[0]);
    for (int32_t k = 0; k < zfi_len(s->tensors); k++)
        for (int n = 0; n < 2; n++)
            some[n] |= s->tensors[k].adapter && !strcmp(s->tensors[k].adapter, names[n]);
    for (int n = 0; n < 2; n++)
        if (!some[n])
            return zfi_fail(&s->error, ZF_ERR_ARGUMENT,
                            "zf_lora_copy: the store has no adapter \"%.63s\"; a program that has "
                            "been compiled over it must have one (zf_lora_desc.name)",
                            names[n]);
    if ((status = s->backend->synchronize(s->backend->self, &s->error))) return status;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t k = 0; k < zfi_len(s->tensors) && !status; k++) {
            const zfi_stored *t = &s->tensors[k];
            if (!t->adapter || strcmp(t->adapter, names[0]) || t->whole >= 0 ||
                zfi_is_away(s, t))
                continue;
            if (pass) status = zfi_copy_one(s, k, names[0], names[1]);
            else if (zfi_copied_from(s, k, names[0], names[1]) < 0) status = s->error.status;
        }
    return status;
}

/* -------------------------------------------------------------------------------------- merging */

/* A kind of pairs: the ends of the names of A and B, with the adapter's name, and what the shapes of
 * the weight, A and B must be. */
typedef struct zfi_low_kind {
    char a[ZFI_ADAPTER_NAME], b[ZFI_ADAPTER_NAME], magnitude[ZFI_ADAPTER_NAME];
    bool table;
} zfi_low_kind;

enum { ZFI_LOW_KINDS = 2 };

static void zfi_name_kinds(zfi_low_kind kinds[ZFI_LOW_KINDS], const char *adapter)
{
    static const zfi_low_names *const names[ZFI_LOW_KINDS] = {&zfi_lora_names, &zfi_table_names};
    for (int k = 0; k < ZFI_LOW_KINDS; k++) {
        zfi_adapter_name(kinds[k].a, adapter, names[k]->a);
        zfi_adapter_name(kinds[k].b, adapter, names[k]->b);
        zfi_adapter_name(kinds[k].magnitude, adapter, zfi_magnitude_name);
        kinds[k].table = k == 1;
    }
}

/* The kind of which tensor k is an A; NULL: of none. */
static const zfi_low_kind *zfi_low_kind_of(const zfi_low_kind kinds[ZFI_LOW_KINDS],
                                           const zfi_stored *t)
{
    for (int k = 0; t->op == ZF_OP_param && k < ZFI_LOW_KINDS; k++)
        if (zfi_ends_in(t->name, kinds[k].a)) return &kinds[k];
    return NULL;
}

/* One adapter: its tensors, and the room that it needs. */
typedef struct zfi_merged {
    int32_t weight, a, b;
    int32_t magnitude; /* -1: none */
    int64_t in, out, rank;
    int64_t experts; /* of which each has a matrix; else 1 */
    int64_t a_rank, a_in;     /* from one number of A to the next along its axes */
    bool turned;              /* the weight is [in, out] */
    int32_t begins;           /* that of A and B that begins as zeros */
    size_t bytes;             /* of room: */
    char *raw;                /* a whole tensor as it is stored, */
    double *low[2], *row;     /* A and B, and a row of the weight; */
    double *factor, *squares; /* by number of the row, of turned weights of the column */
} zfi_merged;

/* The parameter of which M.lora_A.weight, with the end `end`, is tensor k: M.weight, or M; -1. */
static int32_t zfi_adapted(const zf_store *s, int32_t k, const char *end, char *name, size_t size)
{
    size_t length = strlen(s->tensors[k].name) - strlen(end);
    int32_t at;
    snprintf(name, size, "%.*s.weight", (int)length, s->tensors[k].name);
    if ((at = zfi_store_find(s, name)) >= 0) return at;
    name[length] = '\0';
    return zfi_store_find(s, name);
}

/* The sizes that the shapes have, or false: they do not fit. */
static bool zfi_merge_sizes(zfi_merged *m, const zf_shape *w, const zf_shape *a, const zf_shape *b,
                            bool table)
{
    const int at = w->rank == 3 && !table ? 1 : 0; /* of the matrix' axes */
    if (a->rank != 2 + at || b->rank != 2 + at || w->rank != 2 + at) return false;
    m->experts = at ? w->dims[0] : 1;
    if (at && (a->dims[0] != m->experts || b->dims[0] != m->experts)) return false;
    m->rank = a->dims[at + (table ? 1 : 0)], m->in = a->dims[at + (table ? 0 : 1)];
    m->out = b->dims[at];
    m->a_rank = table ? 1 : m->in, m->a_in = table ? m->rank : 1;
    m->turned = table || w->dims[at] != m->out || w->dims[at + 1] != m->in;
    return m->rank && b->dims[at + 1] == m->rank && w->dims[at + (m->turned ? 0 : 1)] == m->in &&
           w->dims[at + (m->turned ? 1 : 0)] == m->out;
}

/* Finds the tensors of the adapter whose A is tensor k, and checks their shapes. */
static zf_status zfi_merge_look(zf_store *s, int32_t k, const zf_lora_desc *d,
                                const zfi_low_kind *kind, zfi_merged *m)
{
    const zfi_stored *a = &s->tensors[k], *b, *w;
    char name[600 + ZFI_ADAPTER_NAME];
    *m = (zfi_merged){.a = k, .b = -1, .magnitude = -1};
    if ((m->weight = zfi_adapted(s, k, kind->a, name, sizeof name)) < 0)
        return zfi_fail(&s->error, ZF_ERR_MISMATCH,
                        "zf_lora_merge: \"%.200s\" is of \"%.200s\", which the store does not have",
                        a->name, name);
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(a->name) - strlen(kind->a)), a->name,
             kind->b);
    if ((m->b = zfi_store_find(s, name)) < 0)
        return zfi_fail(&s->error, ZF_ERR_MISMATCH,
                        "zf_lora_merge: there is \"%.200s\", and no \"%.200s\"", a->name, name);
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(a->name) - strlen(kind->a)), a->name,
             kind->magnitude);
    m->magnitude = zfi_store_find(s, name);
    w = &s->tensors[m->weight], b = &s->tensors[m->b];
    m->begins = kind->table ? m->a : m->b;
    if (w->dtype == ZF_U8)
        return zfi_fail(&s->error, ZF_ERR_DTYPE,
                        "zf_lora_merge: \"%.200s\" is quantised: merge into a store that has it as "
                        "floats",
                        w->name);
    if (!zfi_merge_sizes(m, &w->shape, &a->shape, &b->shape, kind->table) ||
        (m->magnitude >= 0 &&
         (w->shape.rank != 2 || zfi_stored_count(&s->tensors[m->magnitude]) != m->out)) ||
        (d->rank && zfi_rank_of(d, w->name) != m->rank)) {
        char type[3][ZFI_TYPE_TEXT];
        return zfi_fail(&s->error, ZF_ERR_MISMATCH,
                        "zf_lora_merge: %.120s is %s, A %s and B %s; they must be %s%s%s", w->name,
                        zfi_type_text(type[0], w->dtype, &w->shape),
                        zfi_type_text(type[1], a->dtype, &a->shape),
                        zfi_type_text(type[2], b->dtype, &b->shape),
                        kind->table ? "[rows, width], [rows, rank] and [width, rank]"
                        : w->shape.rank == 3
                            ? "[experts, out, in], [experts, rank, in] and [experts, out, rank]"
                            : "[out, in], [rank, in] and [out, rank]",
                        m->magnitude >= 0 ? ", with a magnitude for each result" : "",
                        d->rank ? ", of the rank that is given" : "");
    }
    m->bytes = zfi_stored_bytes(w);
    if (zfi_stored_bytes(a) > m->bytes) m->bytes = zfi_stored_bytes(a);
    if (zfi_stored_bytes(b) > m->bytes) m->bytes = zfi_stored_bytes(b);
    m->bytes = (m->bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
    m->bytes += (size_t)(m->experts * m->rank * (m->in + m->out) + (m->turned ? m->out : m->in) + 2 * m->out) *
                sizeof(double);
    return ZF_OK;
}

/* Adds the product to row i of the weight, in m->row. */
static void zfi_merge_row(const zfi_merged *m, int64_t i, double scale)
{
    const double *a = m->low[0], *b = m->low[1];
    int64_t n = m->turned ? m->out : m->in;
    for (int64_t p = 0; p < m->rank; p++) {
        const double x = scale * (m->turned ? a[p * m->a_rank + i * m->a_in] : b[i * m->rank + p]);
        for (int64_t k = 0; k < n; k++)
            m->row[k] += x * (m->turned ? b[k * m->rank + p] : a[p * m->a_rank + k * m->a_in]);
    }
}

/* Reads a tensor as f64. */
static zf_status zfi_merge_read(zf_store *s, zfi_merged *m, int32_t k, double *to)
{
    const zfi_stored *t = &s->tensors[k];
    const zf_status status = zfi_store_get(s, k, m->raw, 0, "zf_lora_merge", &s->error);
    if (!status) zf_convert(to, ZF_F64, m->raw, t->dtype, (size_t)zfi_stored_count(t));
    return status;
}

/* Adds the squares of the row to those of its results. */
static void zfi_add_squares(const zfi_merged *m, int64_t i, int64_t n)
{
    for (int64_t k = 0; k < n; k++) m->squares[m->turned ? k : i] += m->row[k] * m->row[k];
}

/* The sum, in m->raw, row by row, of one matrix. `stores`: multiplied by its factors, it takes the
 * place of the weight; else it is only measured. */
static void zfi_merge_rows(const zfi_merged *m, const zfi_stored *w, double scale, bool stores)
{
    const int64_t rows = m->turned ? m->in : m->out, n = m->turned ? m->out : m->in;
    const size_t size = zf_dtype_size(w->dtype);
    memset(m->squares, 0, (size_t)m->out * sizeof *m->squares);
    for (int64_t i = 0; i < rows; i++) {
        char *row = m->raw + (size_t)(i * n) * size;
        zf_convert(m->row, ZF_F64, row, w->dtype, (size_t)n);
        zfi_merge_row(m, i, scale);
        for (int64_t k = 0; stores && m->magnitude >= 0 && k < n; k++)
            m->row[k] *= m->factor[m->turned ? k : i];
        if (stores) zf_convert(row, w->dtype, m->row, ZF_F64, (size_t)n);
        if (stores) zf_convert(m->row, ZF_F64, row, w->dtype, (size_t)n);
        zfi_add_squares(m, i, n);
    }
}

/* The sums of all matrices take the places of the weights. */
static void zfi_merge_matrices(const zfi_merged *m, const zfi_stored *w, double scale)
{
    zfi_merged one = *m;
    for (int64_t e = 0; e < m->experts; e++) {
        zfi_merge_rows(&one, w, scale, true);
        one.low[0] += m->rank * m->in, one.low[1] += m->rank * m->out;
        one.raw += (size_t)(m->in * m->out) * zf_dtype_size(w->dtype);
    }
}

/* Magnitudes become the lengths of the stored weight. */
static zf_status zfi_merge_magnitudes(zf_store *s, zfi_merged *m)
{
    if (m->magnitude < 0) return ZF_OK;
    for (int64_t k = 0; k < m->out; k++) m->squares[k] = sqrt(m->squares[k]);
    zf_convert(m->raw, s->tensors[m->magnitude].dtype, m->squares, ZF_F64, (size_t)m->out);
    return zfi_store_put(s, m->magnitude, m->raw, &s->error);
}

static zf_status zfi_merge_one(zf_store *s, zfi_merged *m, double scale)
{
    const zfi_stored *w = &s->tensors[m->weight];
    zf_status status = zfi_merge_read(s, m, m->a, m->low[0]);
    if (!status) status = zfi_merge_read(s, m, m->b, m->low[1]);
    if (!status && m->magnitude >= 0) status = zfi_merge_read(s, m, m->magnitude, m->factor);
    if (!status) status = zfi_store_get(s, m->weight, m->raw, 0, "zf_lora_merge", &s->error);
    if (status) return status;
    if (m->magnitude >= 0) {
        zfi_merge_rows(m, w, scale, false);
        for (int64_t k = 0; k < m->out; k++) m->factor[k] /= sqrt(m->squares[k]);
    }
    zfi_merge_matrices(m, w, scale);
    status = zfi_store_put(s, m->weight, m->raw, &s->error);
    if (!status) status = zfi_merge_magnitudes(s, m);
    if (status) return status;
    memset(m->raw, 0, zfi_stored_bytes(&s->tensors[m->begins]));
    return zfi_store_put(s, m->begins, m->raw, &s->error);
}

/* Where neither alpha nor rank is given, alpha is the rank of the pair. */
static double zfi_merge_scale(const zf_lora_desc *desc, const char *weight, int64_t rank)
{
    zf_lora_desc d = *desc;
    d.alpha = zfi_or(d.alpha, (double)(d.rank ? d.rank : rank));
    return zfi_scale_of(&d, weight, (double)rank);
}

ZF_API zf_status zf_lora_merge(zf_store *s, const zf_lora_desc *desc)
{
    zf_lora_desc d = desc ? *desc : (zf_lora_desc){.rank = 0};
    size_t most = 0;
    char *room = NULL;
    zf_status status = ZF_OK;
    zfi_low_kind kinds[ZFI_LOW_KINDS];
    if (!s) return ZF_ERR_ARGUMENT;
    s->error = (zf_error){ZF_OK, ""};
    if (!d.name) d.name = "";
    zfi_name_kinds(kinds, d.name);
    for (int pass = 0; pass < 2 && !status; pass++) {
        for (int32_t k = 0; k < zfi_len(s->tensors) && !status; k++) {
            const zfi_low_kind *kind = zfi_low_kind_of(kinds, &s->tensors[k]);
            zfi_merged m;
            if (!kind || (status = zfi_merge_look(s, k, &d, kind, &m))) continue;
            if (m.bytes > most) most = m.bytes;
            if (!pass) continue;
            m.low[0] = (double *)(void *)room, m.low[1] = m.low[0] + m.experts * m.rank * m.in;
            m.row = m.low[1] + m.experts * m.rank * m.out;
            m.factor = m.row + (m.turned ? m.out : m.in), m.squares = m.factor + m.out;
            m.raw = (char *)(m.squares + m.out);
            status = zfi_merge_one(s, &m, zfi_merge_scale(&d, s->tensors[m.weight].name, m.rank));
        }
        if (pass || status) continue;
        if (!most)
            status = zfi_fail(&s->error, ZF_ERR_MISMATCH,
                              "zf_lora_merge: the store has no parameter NAME%s", kinds[0].a);
        else if (!(room = zfi_realloc(&s->memory, NULL, 0, most))) status = zfi_nomem(&s->error);
        else status = s->backend->synchronize(s->backend->self, &s->error);
    }
    s->memory.failed = false;
    zfi_free(&s->memory, room, most);
    return status;
}
