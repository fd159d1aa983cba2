/* The head of a language model whose classes ranks share: head_part of the classes that a rank has,
 * head_join of all of them, and their gradients. Logits are in memory a tile at a time
 * (ops/head.c).
 *
 *     %5 = head_part %1, %2, %3, %4 {ignore=-100 temperature=1 sections=4} : f32[P,4,4]
 *     %6 = head_join %5, %3 {ignore=-100} : f32[P]
 *     %8 = head_join_grad %7, %5, %3 {ignore=-100} : f32[P,4,4]
 *     %9 = head_part_grad %1, %2, %3, %8, %5, %4 {...} : f32[P,H]
 *
 *     z[r,:] = (w x[r,:] + b) / temperature       x [P,H], w [V,H], labels [P], b [V] or none
 *     part[r,s,:] of the classes v of section s, of V / sections classes:
 *         0: m = max z[r,v]     1: sum of e^(z[r,v] - m)   2: z[r,label[r]], if the label is there
 *         3: the first v that has m                        4, with entropy: sum of e^d d, d = z - m
 *     join[r] = z[r,label[r]] - log sum over v of e^z[r,v], the log-probability of the label
 *
 * Sums over sections are balanced trees (base/tree.c). With of=n, w and b have the rows from
 * `first` on of n, whole sections: numbers of others are -0, so that the sum over ranks has each
 * section's bits. Of a row whose label is `ignore` they are -0 as well; join gives 0 there. Where
 * sections do not divide the classes, the last section has fewer. Rows from class n on are padding:
 * no sum has them, and their gradients are 0.
 *
 *     saved 0 of head_join: f32[P], the entropy of each row: part has 5 numbers
 *     saved 1: i32[P], of each row the first of its largest logits; -1 without a label
 *     saved 0, 1 of head_part_grad: dw, db, of the dtype of dx
 *
 * join does not depend on m but for rounding, so m has no gradient:
 *
 *     dpart[r,s,1] = -dy[r] e^(m[r,s] - lse[r])      dpart[r,s,2] = dy[r]
 *     dz[r,v] = (dpart[r,s,1] e^(z[r,v] - m[r,s]) + dpart[r,s,2] (v = label[r])) / temperature
 *
 * Results are f32, or f64 for f64 operands. */

/* Elements of a section of so many; the last one may have fewer. 0: a section has none. */
static int64_t zfi_section_size(int64_t all, int64_t sections)
{
    const int64_t size = sections > 0 ? zfi_div_up(all, sections) : 0;
    return size * (sections - 1) < all ? size : 0;
}

/* Rows of w of one section; 0: the attributes do not fit `rows` rows. */
static int64_t zfi_head_section(const zf_attribute *attributes, int64_t rows)
{
    const int64_t sections = attributes[ZF_AT_head_part_sections].i,
                  of = attributes[ZF_AT_head_part_of].i ? attributes[ZF_AT_head_part_of].i : rows,
                  size = zfi_section_size(of, sections);
    return size && (rows % size == 0 || rows == of) && attributes[ZF_AT_head_part_first].i % size == 0 ? size : 0;
}

/* Classes among the rows of w that are here. */
static int64_t zfi_head_own_classes(const zf_launch *l)
{
    const int64_t rows = l->args[1].shape.dims[0], of = ZF_INT(l, head_part, of);
    return of ? zfi_min(rows, of - ZF_INT(l, head_part, first)) : rows;
}

/* Sections that are here. */
static int64_t zfi_head_own_sections(const zf_launch *l)
{
    const int64_t rows = l->args[1].shape.dims[0];
    return zfi_div_up(rows, zfi_head_section(l->attributes, rows));
}

/* Numbers of a row and section. */
static int64_t zfi_head_numbers(const zf_attribute *attributes)
{
    return attributes[ZF_AT_head_part_entropy].i ? 5 : 4;
}

static zf_status zfi_infer_head_sections(zfi_infer *c, int32_t bias)
{
    const int64_t sections = ZF_INT(c, head_part, sections);
    zf_status status = zfi_infer_head(c, bias);
    if (!status) status = zfi_infer_temperature(c, ZF_FLOAT(c, head_part, temperature));
    if (!status) status = zfi_infer_part(c, ZF_AT_head_part_first, c->args[1]->shape.dims[0]);
    if (status) return status;
    if (!zfi_head_section(c->attributes, c->args[1]->shape.dims[0]))
        return zfi_infer_fail(c, ZF_ERR_ARGUMENT,
                              "%lld rows of w are not whole sections of %lld, each with a row",
                              (long long)c->args[1]->shape.dims[0], (long long)sections);
    c->shape = ZF_SHAPE(c->args[0]->shape.dims[0], sections, zfi_head_numbers(c->attributes));
    return ZF_OK;
}

static zf_status zfi_infer_head_part(zfi_infer *c) { return zfi_infer_head_sections(c, 3); }

static zf_status zfi_infer_head_part_grad(zfi_infer *c)
{
    const zf_status status = zfi_infer_head_sections(c, 5);
    for (int32_t k = 3; k < 5 && !status; k++)
        if (c->args[k]->dtype != c->dtype || !zfi_same_shape(&c->args[k]->shape, &c->shape))
            return zfi_infer_fail(c, ZF_ERR_SHAPE,
                                  "operand %d must be as the result of head_part is", (int)k);
    c->shape = c->args[0]->shape;
    return status;
}

/* Checks parts, operand `x`, and the labels that follow them. */
static zf_status zfi_infer_join(zfi_infer *c, int32_t x)
{
    const zfi_node *parts = c->args[x], *labels = c->args[x + 1];
    if (parts->shape.rank != 3 || parts->shape.dims[1] < 1 || parts->shape.dims[2] < 4 ||
        parts->shape.dims[2] > 5 || (parts->dtype != ZF_F32 && parts->dtype != ZF_F64))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "operand %d must be a result of head_part", (int)x);
    if (!zfi_is_integer(labels->dtype) || labels->shape.rank != 1 ||
        labels->shape.dims[0] != parts->shape.dims[0])
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "the labels must be integers, [%lld]",
                              (long long)parts->shape.dims[0]);
    c->dtype = parts->dtype, c->shape = labels->shape;
    return ZF_OK;
}

static zf_status zfi_infer_head_join(zfi_infer *c) { return zfi_infer_join(c, 0); }

static zf_status zfi_infer_head_join_grad(zfi_infer *c)
{
    const zf_status status = zfi_infer_join(c, 1);
    if (status) return status;
    if (c->args[0]->dtype != c->dtype || !zfi_same_shape(&c->args[0]->shape, &c->shape))
        return zfi_infer_fail(c, ZF_ERR_SHAPE, "dy must be %s[%lld]", zf_dtype_name(c->dtype),
                              (long long)c->shape.dims[0]);
    c->shape = c->args[1]->shape;
    return ZF_OK;
}

static bool zfi_saved_head_join(const zf_graph *g, const zfi_node *node, int64_t index,
                                zf_dtype *dtype, zf_shape *shape)
{
    if (index != ZFI_LOGP_BEST &&
        (index != ZFI_LOGP_ENTROPY || g->nodes[node->args[0]].shape.dims[2] < 5))
        return false;
    *dtype = index == ZFI_LOGP_BEST ? ZF_I32 : node->dtype;
    *shape = node->shape;
    return true;
}

static bool zfi_saved_head_part_grad(const zf_graph *g, const zfi_node *node, int64_t index,
                                     zf_dtype *dtype, zf_shape *shape)
{
    const int32_t operand = index == ZFI_LOGP_DW ? 1 : 5;
    if (index < 0 || index > ZFI_LOGP_DB || operand >= node->arg_count) return false;
    if (index == ZFI_LOGP_DW && ZF_INT(node, head_part_grad, bits)) return false;
    *dtype = node->dtype;
    *shape = g->nodes[node->args[operand]].shape;
    return true;
}

static void zfi_grad_head_join(zf_grad *c)
{
    if (c->need[0]) c->dx[0] = zfi_op(head_join_grad, c->attributes, c->dy, c->x[0], c->x[1]);
}

static void zfi_grad_head_part(zf_grad *c)
{
    const bool biased = c->count > 3;
    const zf_tensor args[] = {c->x[0], c->x[1], c->x[2], c->dy, c->y, biased ? c->x[3] : c->dy};
    if (!c->need[0] && !c->need[1] && !(biased && c->need[3])) return;
    const zf_tensor dx = zfi_build(ZF_OP_head_part_grad, biased ? 6 : 5, args, c->attributes);
    if (c->need[0]) c->dx[0] = zf_cast(dx, zf_tensor_dtype(c->x[0]));
    if (c->need[1]) c->dx[1] = zf_cast(zfi_saved(dx, ZFI_LOGP_DW), zf_tensor_dtype(c->x[1]));
    if (biased && c->need[3])
        c->dx[3] = zf_cast(zfi_saved(dx, ZFI_LOGP_DB), zf_tensor_dtype(c->x[3]));
}

/* --------------------------------------------------------------------------------- sections */

static zfi_head_values zfi_head_part_values(const zf_launch *l)
{
    return (zfi_head_values){.bias = l->arg_count > 3 ? &l->args[3] : NULL,
                             .scale = 1 / ZF_FLOAT(l, head_part, temperature),
                             .labelled = true,
                             .makes_entropy = ZF_INT(l, head_part, entropy) != 0,
                             .parts = &l->out};
}

static zfi_head_values zfi_head_part_grad_values(const zf_launch *l)
{
    const double scale = 1 / ZF_FLOAT(l, head_part_grad, temperature);
    return (zfi_head_values){.bias = l->arg_count > 5 ? &l->args[5] : NULL,
                             .factor = scale,
                             .scale = scale,
                             .labelled = true,
                             .makes_dx = true,
                             .slopes = &l->args[3],
                             .tops = &l->args[4],
                             .dx = &l->out,
                             .dw = zfi_saved_out(l, ZFI_LOGP_DW),
                             .db = zfi_saved_out(l, ZFI_LOGP_DB)};
}

/* A launch of one section of the classes that are here, and its operands and results. */
typedef struct zfi_head_of_section {
    zf_launch launch;
    zfi_head_values of;
    zf_array args[6], bias, dw, db;
} zfi_head_of_section;

/* Rows [first, first + count) of an array. */
static zf_array zfi_array_rows(const zf_array *a, int64_t first, int64_t count)
{
    zf_array rows = *a;
    const int64_t each = a->shape.dims[0] ? zfi_count(a) / a->shape.dims[0] : 0;
    rows.shape.dims[0] = count;
    if (a->data)
        rows.data = (char *)a->data + (size_t)(first * each) * zf_dtype_size(a->dtype);
    return rows;
}

/* Section `section` of those that are here. */
static void zfi_head_take_section(zfi_head_of_section *s, const zf_launch *l,
                                  const zfi_head_values *of, int64_t section)
{
    const int64_t most = zfi_head_section(l->attributes, l->args[1].shape.dims[0]),
                  first = section * most, size = zfi_min(most, zfi_head_own_classes(l) - first);
    s->launch = *l, s->of = *of;
    memcpy(s->args, l->args, (size_t)l->arg_count * sizeof *l->args);
    s->args[1] = zfi_array_rows(&l->args[1], first, size);
    s->launch.args = s->args;
    if (of->bias) s->bias = zfi_array_rows(of->bias, first, size), s->of.bias = &s->bias;
    if (of->dw) s->dw = zfi_array_rows(of->dw, first, size), s->of.dw = &s->dw;
    if (of->db) s->db = zfi_array_rows(of->db, first, size), s->of.db = &s->db;
    s->of.class = ZF_INT(l, head_part, first) + first;
    s->of.section = section, s->of.of = zfi_head_own_sections(l);
    s->of.place = s->of.class / most;
}

static size_t zfi_scratch_parts(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head_of_section s;
    if (zfi_fast_or_half(l)) {
        size_t most = 0;
        for (int64_t section = 0; section < 2; section++) {
            size_t bytes;
            zfi_head_take_section(&s, l, of, section * (zfi_head_own_sections(l) - 1));
            bytes = zfi_head_of(&s.launch, &s.of).bytes;
            most = bytes > most ? bytes : most;
        }
        return most;
    }
    return (size_t)zfi_pool_threads(zfi_cpu_of(l)->pool) * (size_t)l->args[1].shape.dims[0] *
           sizeof(double);
}

static size_t zfi_scratch_head_part(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_part_values(l);
    return zfi_scratch_parts(l, &of);
}

static size_t zfi_scratch_head_part_grad(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_part_grad_values(l);
    return zfi_scratch_parts(l, &of);
}

/* Rows of an array from `first` on become 0; NULL: there is none. */
static void zfi_head_clear_rows(const zf_array *a, int64_t first)
{
    const zf_array rest = a ? zfi_array_rows(a, first, a->shape.dims[0] - first)
                            : (zf_array){.data = NULL};
    if (rest.data) memset(rest.data, 0, zfi_array_bytes(&rest));
}

/* All tiles of rows, each with all sections that are here. */
static void zfi_head_parts_fast(const zf_launch *l, const zfi_head_values *of)
{
    zfi_head_of_section s;
    int64_t rows = 0;
    zfi_head_take_section(&s, l, of, 0);
    zfi_head h = zfi_head_begin(&s.launch, &s.of, &rows);
    zfi_head_clear_rows(of->dw, rows ? zfi_head_own_classes(l) : 0);
    zfi_head_clear_rows(of->db, rows ? zfi_head_own_classes(l) : 0);
    for (int64_t first = 0; first < rows; first += h.tile)
        for (int64_t section = 0; section < s.of.of; section++) {
            int64_t labelled;
            zfi_head_take_section(&s, l, of, section);
            zfi_head each = zfi_head_begin(&s.launch, &s.of, &labelled);
            each.first = first;
            zfi_head_rows(&each, zfi_min(h.tile, rows - first));
            zfi_head_tile(&each);
        }
}

/* -------------------------------------------------------------------------------- reference */

typedef struct zfi_parts_plain {
    zfi_head_plain head;
    int64_t size, own, classes; /* classes of a section; sections and classes here */
} zfi_parts_plain;

static zfi_parts_plain zfi_parts_plain_of(const zf_launch *l, const zfi_head_values *of)
{
    const int64_t size = zfi_head_section(l->attributes, l->args[1].shape.dims[0]);
    return (zfi_parts_plain){zfi_head_plain_of(l, of), size, zfi_head_own_sections(l),
                             zfi_head_own_classes(l)};
}

static bool zfi_parts_counts(const zf_launch *l, int64_t row)
{
    return zfi_get_integer(&l->args[2], row) != ZF_INT(l, head_part, ignore);
}

/* The element of parts of a row that is number 0 of section `section` of those that are here. */
static int64_t zfi_parts_at(const zf_launch *l, const zf_array *parts, int64_t row, int64_t section)
{
    const int64_t size = zfi_head_section(l->attributes, l->args[1].shape.dims[0]);
    return (row * parts->shape.dims[1] + ZF_INT(l, head_part, first) / size + section) *
           parts->shape.dims[2];
}

static void zfi_parts_row(void *context, int64_t row, int worker)
{
    const zfi_parts_plain *p = context;
    const zf_launch *l = p->head.launch;
    double *z = (double *)l->scratch + worker * p->head.classes;
    const int64_t first = ZF_INT(l, head_part, first),
                  label = zfi_get_integer(&l->args[2], row) - first;
    if (!zfi_parts_counts(l, row)) return;
    for (int64_t s = 0; s < p->own; s++) {
        const int64_t at = zfi_parts_at(l, &l->out, row, s), begin = s * p->size,
                      end = zfi_min(begin + p->size, p->classes);
        double most = -INFINITY, base, sum = 0, spread = 0;
        int64_t best = begin;
        for (int64_t v = begin; v < end; v++) {
            z[v] = zfi_head_logit(&p->head, row, v);
            if (z[v] > most || (isnan(z[v]) && !isnan(most))) most = z[v], best = v;
        }
        base = most == -INFINITY ? 0 : most;
        for (int64_t v = begin; v < end; v++) {
            const double d = z[v] - base, e = exp(d);
            sum += e, spread += e == 0 ? 0 : e * d;
        }
        zfi_set(&l->out, at + ZFI_SECTION_TOP, most);
        zfi_set(&l->out, at + ZFI_SECTION_SUM, sum);
        if (label >= begin && label < end) zfi_set(&l->out, at + ZFI_SECTION_LABEL, z[label]);
        zfi_set(&l->out, at + ZFI_SECTION_BEST, (double)(first + best));
        if (ZF_INT(l, head_part, entropy)) zfi_set(&l->out, at + ZFI_SECTION_SPREAD, spread);
    }
}

/* dz of one logit. */
static double zfi_parts_slope(const zfi_parts_plain *p, int64_t row, int64_t class)
{
    const zf_launch *l = p->head.launch;
    const zf_array *slopes = &l->args[3], *tops = &l->args[4];
    const int64_t at = zfi_parts_at(l, slopes, row, class / p->size),
                  label = zfi_get_integer(&l->args[2], row) - ZF_INT(l, head_part, first);
    const double factor = zfi_get(slopes, at + ZFI_SECTION_SUM),
                 top = zfi_get(tops, at + ZFI_SECTION_TOP);
    double slope = 0;
    if (!zfi_parts_counts(l, row) || class >= p->classes) return 0;
    if (factor != 0)
        slope = factor * exp(zfi_head_logit(&p->head, row, class) - (top == -INFINITY ? 0 : top));
    if (class == label) slope += zfi_get(slopes, at + ZFI_SECTION_LABEL);
    return slope * p->head.of.factor;
}

static void zfi_parts_grad_row(void *context, int64_t row, int worker)
{
    const zfi_parts_plain *p = context;
    const zf_launch *l = p->head.launch;
    double *dz = (double *)l->scratch + worker * p->head.classes;
    for (int64_t v = 0; v < p->head.classes; v++) dz[v] = zfi_parts_slope(p, row, v);
    for (int64_t i = 0; i < p->head.width; i++) {
        zfi_tree sum = {.sections = p->own};
        for (int64_t s = 0; s < p->own; s++) {
            double of = 0;
            for (int64_t v = s * p->size; v < zfi_min((s + 1) * p->size, p->classes); v++)
                of += dz[v] * zfi_head_weight(&p->head, v, i);
            zfi_tree_put(&sum, of);
        }
        zfi_set(&l->out, row * p->head.width + i, sum.sums[0]);
    }
}

static void zfi_parts_grad_class(void *context, int64_t class, int worker)
{
    const zfi_parts_plain *p = context;
    const zf_launch *l = p->head.launch;
    const zfi_head_values *of = &p->head.of;
    double bias = 0;
    (void)worker;
    for (int64_t row = 0; row < p->head.rows; row++) bias += zfi_parts_slope(p, row, class);
    if (of->db) zfi_set(of->db, class, bias);
    for (int64_t i = 0; i < p->head.width && of->dw; i++) {
        double sum = 0;
        for (int64_t row = 0; row < p->head.rows; row++)
            sum += zfi_parts_slope(p, row, class) *
                   zfi_get(&l->args[0], row * p->head.width + i);
        zfi_set(of->dw, class * p->head.width + i, sum);
    }
}

/* ---------------------------------------------------------------------------------- kernels */

/* Labels are classes of all ranks. */
static zf_status zfi_check_part_labels(const zf_launch *l, const char *name)
{
    const int64_t of = ZF_INT(l, head_part, of);
    zf_array logits = {NULL, l->args[0].dtype, ZF_SHAPE(of ? of : l->args[1].shape.dims[0])};
    zf_launch labelled = *l;
    labelled.arg_count = 3; /* so that the labels are the last operand */
    return zfi_check_labels(&labelled, name, &logits);
}

static zf_status zfi_cpu_head_part(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_part_values(l);
    const zf_status status = zfi_check_part_labels(l, "head_part");
    if (status) return status;
    for (int64_t i = 0; i < zfi_count(&l->out); i++) zfi_set(&l->out, i, -0.0);
    if (zfi_fast_or_half(l)) {
        zfi_head_parts_fast(l, &of);
    } else {
        zfi_parts_plain p = zfi_parts_plain_of(l, &of);
        zfi_pool_run(zfi_cpu_of(l)->pool, p.head.rows, zfi_parts_row, &p);
    }
    return ZF_OK;
}

static zf_status zfi_cpu_head_part_grad(const zf_launch *l)
{
    const zfi_head_values of = zfi_head_part_grad_values(l);
    const zf_status status = zfi_check_part_labels(l, "head_part_grad");
    if (status) return status;
    if (zfi_fast_or_half(l)) {
        zfi_head_parts_fast(l, &of);
    } else {
        zfi_parts_plain p = zfi_parts_plain_of(l, &of);
        zfi_pool_run(zfi_cpu_of(l)->pool, p.head.rows, zfi_parts_grad_row, &p);
        if (of.dw || of.db)
            zfi_pool_run(zfi_cpu_of(l)->pool, p.head.classes, zfi_parts_grad_class, &p);
    }
    return ZF_OK;
}

/* What the sections of a row are together. */
typedef struct zfi_joined {
    double top, sum, label, spread; /* sum and spread: of e^(z - top) */
    int64_t best;
} zfi_joined;

/* e^(top of a section - top); 1 where both are infinite. */
static double zfi_join_factor(double top, double most)
{
    return top == most ? 1 : top == -INFINITY ? 0 : exp(top - most);
}

static zfi_joined zfi_join_row(const zf_array *parts, int64_t row)
{
    const int64_t sections = parts->shape.dims[1], numbers = parts->shape.dims[2];
    zfi_joined j = {.top = -INFINITY, .label = -0.0};
    zfi_tree sum = {.sections = sections}, spread = {.sections = sections};
    for (int64_t s = 0; s < sections; s++) {
        const int64_t at = (row * sections + s) * numbers;
        const double top = zfi_get(parts, at + ZFI_SECTION_TOP);
        if (!s || top > j.top || (isnan(top) && !isnan(j.top)))
            j.top = top, j.best = (int64_t)zfi_get(parts, at + ZFI_SECTION_BEST);
        j.label += zfi_get(parts, at + ZFI_SECTION_LABEL);
    }
    for (int64_t s = 0; s < sections; s++) {
        const int64_t at = (row * sections + s) * numbers;
        const double top = zfi_get(parts, at + ZFI_SECTION_TOP), e = zfi_join_factor(top, j.top),
                     of = zfi_get(parts, at + ZFI_SECTION_SUM);
        zfi_tree_put(&sum, e * of);
        if (numbers > ZFI_SECTION_SPREAD)
            zfi_tree_put(&spread, e == 0 ? 0
                                         : e * (zfi_get(parts, at + ZFI_SECTION_SPREAD) +
                                                (top - j.top) * of));
    }
    j.sum = sum.sums[0], j.spread = spread.sums[0];
    return j;
}

/* log of the sum of e^z; an infinite or undefined largest logit is it. */
static double zfi_join_lse(const zfi_joined *j)
{
    return j->top - j->top == 0 ? j->top + log(j->sum) : j->top;
}

static bool zfi_join_counts(const zf_launch *l, const zf_array *labels, int64_t row)
{
    return zfi_get_integer(labels, row) != ZF_INT(l, head_join, ignore);
}

static void zfi_join_rows(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *entropy = zfi_saved_out(l, ZFI_LOGP_ENTROPY),
                   *best = zfi_saved_out(l, ZFI_LOGP_BEST);
    for (int64_t row = first; row < last; row++) {
        const bool counts = zfi_join_counts(l, &l->args[1], row);
        const zfi_joined j = zfi_join_row(&l->args[0], row);
        zfi_set(&l->out, row, counts ? j.label - zfi_join_lse(&j) : 0);
        if (best) zfi_set_integer(best, row, counts ? j.best : -1);
        if (entropy) zfi_set(entropy, row, counts ? log(j.sum) - j.spread / j.sum : 0);
    }
}

static void zfi_join_grad_rows(const zf_launch *l, int64_t first, int64_t last)
{
    const zf_array *parts = &l->args[1];
    const int64_t sections = parts->shape.dims[1], numbers = parts->shape.dims[2];
    for (int64_t row = first; row < last; row++) {
        const bool counts = zfi_join_counts(l, &l->args[2], row);
        const zfi_joined j = zfi_join_row(parts, row);
        const double dy = counts ? zfi_get(&l->args[0], row) : 0,
                     by = j.top - j.top == 0 ? 1 / j.sum : 1;
        for (int64_t s = 0; s < sections; s++) {
            const int64_t at = (row * sections + s) * numbers;
            const double e = zfi_join_factor(zfi_get(parts, at + ZFI_SECTION_TOP), j.top);
            for (int64_t k = 0; k < numbers; k++)
                zfi_set(&l->out, at + k,
                        k == ZFI_SECTION_SUM     ? (dy == 0 ? 0 : -dy * e * by)
                        : k == ZFI_SECTION_LABEL ? dy
                                              : 0);
        }
    }
}

enum { ZFI_JOIN_GRAIN = 64 };

static zf_status zfi_cpu_head_join(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->out), ZFI_JOIN_GRAIN, zfi_join_rows);
    return ZF_OK;
}

static zf_status zfi_cpu_head_join_grad(const zf_launch *l)
{
    zfi_split(l, zfi_count(&l->args[0]), ZFI_JOIN_GRAIN, zfi_join_grad_rows);
    return ZF_OK;
}

static double zfi_flops_parts(const zf_launch *l)
{
    const int products = l->op == ZF_OP_head_part ? 1 : 2 + zfi_head_saves(l, ZFI_LOGP_DW);
    return 2.0 * (double)zfi_count(&l->args[0]) * (double)l->args[1].shape.dims[0] * products;
}

/* ---------------------------------------------------------------------------------- records */

ZFI_SAME_HEAD(head_part)
ZFI_SAME_HEAD(head_part_grad)
ZFI_SAME_ATTRIBUTE(head_part_grad, head_part, temperature)
ZFI_SAME_ATTRIBUTE(head_part_grad, head_part, sections)
ZFI_SAME_ATTRIBUTE(head_part_grad, head_part, first)
ZFI_SAME_ATTRIBUTE(head_part_grad, head_part, of)
ZFI_SAME_ATTRIBUTE(head_part_grad, head_part, entropy)
ZFI_SAME_ATTRIBUTE(head_join_grad, head_join, ignore)
ZFI_OPERATOR(head_part, .infer = zfi_infer_head_part, .grad = zfi_grad_head_part,
             .cpu = zfi_cpu_head_part, .scratch = zfi_scratch_head_part, .flops = zfi_flops_parts,
             .functions = zfi_functions_head,
             .cuts = "r h!, v h!, r, ?v -> r s! n! {sections%v first+v of=v}",
             .traits = ZF_OP_PRODUCT | ZF_OP_READS_HALF)
ZFI_OPERATOR(head_part_grad, .infer = zfi_infer_head_part_grad, .cpu = zfi_cpu_head_part_grad,
             .scratch = zfi_scratch_head_part_grad, .saved = zfi_saved_head_part_grad,
             .flops = zfi_flops_parts, .functions = zfi_functions_head,
             .cuts = "r h!, v h!, r, r s! n!, r s! n!, ?v -> r h!; v h!; v {sections%v first+v of=v}",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(head_join, .infer = zfi_infer_head_join, .grad = zfi_grad_head_join,
             .cpu = zfi_cpu_head_join, .saved = zfi_saved_head_join, .cuts = "r s! n!, r -> r; r; r",
             .traits = ZF_OP_READS_HALF)
ZFI_OPERATOR(head_join_grad, .infer = zfi_infer_head_join_grad, .cpu = zfi_cpu_head_join_grad,
             .cuts = "r, r s! n!, r -> r s! n!", .linear_in = 1, .traits = ZF_OP_READS_HALF)
