/* Types along axes: how the ranks of a mesh have a value, for each axis besides data.
 *
 *     f32[8,1024]              equal on all of them
 *     f32[8,512@tensor]        cut: each has a part of the dimension, which is of 1024 over two
 *     f32[8,1024]+tensor       each has an addend of the value, which is their sum
 *     f32[8,1024]~tensor       each has another one
 *     f32[4096@context/512,8]  cut in runs: of each 1024 a rank has 512 that lie together. So is a
 *                              dimension that a reshape has made of several, of which one is cut
 *     f32[64@context:1/4,8]    each has section 1 of its part, one of four
 *     f32[13@tensor<50,8]      50 rows in all: the last part has padding, of zeros, at its end
 *
 * Dimensions are those of this rank. Where several axes cut one, the outermost is first:
 * 512@context@tensor. A leaf has the type that it is given. That of any other value follows from
 * its operands, for each axis alone:
 *
 *   - a dimension is cut by its letter (graph/cuts.c): at all places of the letter, or nowhere.
 *     What lacks a letter over which it sums is an addend. A part of the rows of a table gives -0
 *     for others, an addend too
 *   - a reshape keeps what lies together in the whole, and a letter may be in runs; nothing else
 *     makes or gathers runs. It says which dimension of one element is a part of more: [8@tensor]
 *     is [1,8@tensor], and with cut=1 [1@tensor,8]. A product that sums over runs in sections has
 *     as many, each section a part of each
 *   - a slice of a part makes a section of it, and a concat of all sections the part; what is
 *     computed of sections is of equal ones. A slice of whole runs is a slice of the whole; a concat
 *     of parts of equal values has a run of each
 *   - addends reach what is linear in them alone, in f32 or f64: added to addends, times what is
 *     equal, in another form. Elsewhere the sum must be made before
 *   - all_gather takes what is cut and gives what is equal; reduce_scatter takes addends and gives
 *     what is cut; all_reduce takes addends and gives what is equal; all_to_all takes what is cut
 *     at `from` and gives what is cut at `dim`; bcast gives what the root has, and reduce takes
 *     addends and gives what is cut at `dim`, of which the root alone has more than -0
 *   - rows of experts lie together in the part of a rank, also where its tokens are in runs
 *   - with `sources`, rows are those of all ranks along expert: a matrix of each expert, letter e,
 *     is cut over that axis, and rows are as ranks along data have them
 *   - a send takes what is equal or differs, and gives the same
 *   - copies of heads that ranks have together (repeat with `over`) are cut over all of them, and
 *     the sum of the copies is an addend over these
 *   - what is made of a value that differs, differs
 *   - an update, and the gradient of a parameter, have the type of the parameter: what is equal is
 *     updated equally. What else an update reads is equal
 *   - a number that the host looks at is equal; no output is an addend
 *   - a bucket differs if one of its parameters is cut; a view of it has the parameter's type
 *
 * A value of one number (a constant, broadcast) fits any type but that of addends. How ranks along
 * data have a value is not in its type: ir/ranks.c derives it. */

enum { ZFI_SPREAD_TEXT = 120, ZFI_SPREAD_WHY = 240 };

/* How a node's type is found. */
typedef struct zfi_spreading {
    const zf_graph *graph;
    const zfi_node *node;
    zfi_spread out;
    uint8_t owned; /* the axes over which one rank has each element of a sum, and others -0 */
    uint8_t shared; /* the axis expert, where the node has rows of all ranks along it */
    char why[ZFI_SPREAD_WHY]; /* what is wrong; "": nothing */
} zfi_spreading;

ZFI_FAILS(2, 3)
static void zfi_spread_fail(zfi_spreading *c, const char *format, ...)
{
    va_list args;
    if (*c->why) return;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
}

static uint8_t zfi_axis_bit(int64_t over) { return (uint8_t)(1u << (over - ZF_OVER_TENSOR)); }

/* The set of axes, with tensor where it has a part of tensor, and with both parts where it has
 * tensor. */
static uint8_t zfi_axes_met(uint8_t axes)
{
    const uint8_t whole = zfi_axis_bit(ZF_OVER_TENSOR),
                  parts = zfi_axis_bit(ZF_OVER_GROUP) | zfi_axis_bit(ZF_OVER_COPIES);
    return (uint8_t)(axes | (axes & whole ? parts : 0) | (axes & parts ? whole : 0));
}

/* The name of the first axis of a set. */
static const char *zfi_axis_in(uint8_t axes)
{
    int over = ZF_OVER_TENSOR;
    while (over < ZF_OVERS - 1 && !(axes & zfi_axis_bit(over))) over++;
    return zfi_axis_names[over];
}

/* ------------------------------------------------------------------------ axes of a dimension */

enum { ZFI_AXIS_BITS = 4 }; /* of zfi_spread.at, for each axis */

/* The axes of a dimension, as a set. */
static uint8_t zfi_axes_in(uint16_t list)
{
    uint8_t axes = 0;
    for (; list; list >>= ZFI_AXIS_BITS) axes |= zfi_axis_bit(list & 15);
    return axes;
}

static uint16_t zfi_axes_add(uint16_t list, int64_t over)
{
    int at = 0;
    while (list >> at & 15) at += ZFI_AXIS_BITS;
    return (uint16_t)(list | over << at);
}

/* The list without the axes of a set. */
static uint16_t zfi_axes_less(uint16_t list, uint8_t axes)
{
    uint16_t left = 0;
    for (; list; list >>= ZFI_AXIS_BITS)
        if (!(axes & zfi_axis_bit(list & 15))) left = zfi_axes_add(left, list & 15);
    return left;
}

/* The last axis of a list, the innermost; 0: it is empty. */
static int64_t zfi_axes_last(uint16_t list)
{
    while (list >> ZFI_AXIS_BITS) list >>= ZFI_AXIS_BITS;
    return list;
}

/* The axes over which it is cut. */
static uint8_t zfi_spread_cut(const zfi_spread *s)
{
    uint8_t axes = 0;
    for (int d = 0; d < ZF_MAX_RANK; d++) axes |= zfi_axes_in(s->at[d]);
    return axes;
}

/* 1 + the dimension of one element of which each rank has another: what a reshape says (`cut`); 0:
 * there is none. */
static int32_t zfi_cut_to_one(const zf_shape *shape, const zfi_spread *spread)
{
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dims[d] == 1 && spread->at[d]) return 1 + d;
    return 0;
}

/* The shape of the whole value of which a rank has this. */
static zf_shape zfi_whole_of(zfi_mesh mesh, zf_shape shape, const zfi_spread *spread)
{
    for (int32_t d = 0; d < shape.rank; d++) {
        for (uint16_t list = spread->at[d]; list; list >>= ZFI_AXIS_BITS)
            shape.dims[d] *= zfi_mesh_size(mesh, list & 15);
        shape.dims[d] *= spread->section[d].of ? spread->section[d].of : 1;
        if (spread->whole[d]) shape.dims[d] = spread->whole[d];
    }
    return shape;
}

static bool zfi_is_spread(const zfi_spread *s)
{
    return zfi_spread_cut(s) || s->sum || s->differs;
}

static bool zfi_same_spread(const zfi_spread *a, const zfi_spread *b)
{
    return !memcmp(a->at, b->at, sizeof a->at) && !memcmp(a->run, b->run, sizeof a->run) &&
           !memcmp(a->section, b->section, sizeof a->section) &&
           !memcmp(a->whole, b->whole, sizeof a->whole) && a->sum == b->sum &&
           a->differs == b->differs;
}

/* It has no dimensions: over what these were cut, it differs. */
static void zfi_spread_flatten(zfi_spread *s)
{
    s->differs |= zfi_spread_cut(s);
    memset(s->at, 0, sizeof s->at), memset(s->run, 0, sizeof s->run);
    memset(s->section, 0, sizeof s->section), memset(s->whole, 0, sizeof s->whole);
}

/* Dimensions of two values are the same section of a rank's part. */
static bool zfi_same_section(const zfi_spread *a, int32_t d, const zfi_spread *b, int32_t e)
{
    return a->whole[d] == b->whole[e] &&
           !memcmp(&a->section[d], &b->section[e], sizeof a->section[d]);
}

/* A dimension is cut as that of another value is. */
static void zfi_spread_put(zfi_spread *s, int32_t d, uint16_t axes, const zfi_spread *of, int32_t e)
{
    s->at[d] = axes, s->run[d] = of->run[e], s->section[d] = of->section[e];
    s->whole[d] = of->whole[e];
}

static void zfi_spread_drop(zfi_spread *s, uint8_t axes)
{
    for (int d = 0; d < ZF_MAX_RANK; d++)
        if (!(s->at[d] = zfi_axes_less(s->at[d], axes)))
            s->run[d] = 0, s->section[d].of = s->section[d].at = 0, s->whole[d] = 0;
    s->sum &= (uint8_t)~axes, s->differs &= (uint8_t)~axes;
}

/* One dimension and how it is cut: "512@context/64<500:1/4". */
static void zfi_print_cut(zfi_writer *w, int64_t size, const zfi_spread *s, int d)
{
    zfi_print_integer(w, d ? "," : "", size);
    for (uint16_t list = s->at[d]; list; list >>= ZFI_AXIS_BITS)
        zfi_print_text(w, "@"), zfi_print_text(w, zfi_axis_names[list & 15]);
    if (s->run[d]) zfi_print_integer(w, "/", s->run[d]);
    if (s->whole[d]) zfi_print_integer(w, "<", s->whole[d]);
    if (!s->section[d].of) return;
    zfi_print_integer(w, ":", s->section[d].at), zfi_print_integer(w, "/", s->section[d].of);
}

/* "f32[8,512@context@tensor]+pipe". */
static void zfi_print_type(zfi_writer *w, zf_dtype dtype, const zf_shape *shape, const zfi_spread *s)
{
    zfi_print_text(w, zf_dtype_name(dtype)), zfi_print_text(w, "[");
    for (int d = 0; d < shape->rank; d++) zfi_print_cut(w, shape->dims[d], s, d);
    zfi_print_text(w, "]");
    for (int differs = 0; differs < 2; differs++)
        for (int over = ZF_OVER_TENSOR; over < ZF_OVERS; over++)
            if ((differs ? s->differs : s->sum) & zfi_axis_bit(over))
                zfi_print_text(w, differs ? "~" : "+"), zfi_print_text(w, zfi_axis_names[over]);
}

/* The same. Returns text[0..ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT). */
static const char *zfi_spread_text(char *text, zf_dtype dtype, const zf_shape *shape,
                                   const zfi_spread *s)
{
    zfi_writer w = zfi_writer_of(NULL, text, ZFI_TYPE_TEXT + ZFI_SPREAD_TEXT);
    zfi_print_type(&w, dtype, shape, s), zfi_print_end(&w);
    return text;
}

/* ------------------------------------------------------------------------------------ operands */

static const zfi_spread *zfi_spread_arg(const zfi_spreading *c, int32_t k)
{
    return &c->graph->nodes[c->node->args[k]].spread;
}

/* An operand of one number, which is how ever its node likes. */
static bool zfi_fits_any(const zfi_spreading *c, int32_t k)
{
    double value;
    return zfi_uniform(c->graph, c->node->args[k], &value);
}

static void zfi_spread_open_sum(zfi_spreading *c, int32_t arg, uint8_t axes)
{
    zfi_spread_fail(c,
                    "%%%d is a sum over %s that is still to be made: an all_reduce or a "
                    "reduce_scatter must be above",
                    (int)arg, zfi_axis_in(axes));
}

/* ------------------------------------------------------------------------------------- addends */

/* How an operator is linear. */
static zfi_linear zfi_linear_of(const zf_graph *g, const zfi_node *node)
{
    const zfi_record *record = g->records[node->op];
    const zf_attribute *activation = zfi_attribute_of(g, node, "activation");
    if (record->linear)
        return record->linear == ZFI_LINEAR_EACH &&
                       (node->arg_count > 2 || (activation && activation->i))
                   ? ZFI_LINEAR_NOT
                   : record->linear;
    switch (record->parts) {
    case ZFI_PARTS_MOVED:
    case ZFI_PARTS_SCALED:
    case ZFI_PARTS_ADDED:
    case ZFI_PARTS_SUMMED:
    case ZFI_PARTS_SUMMED_TO: return ZFI_LINEAR_TOGETHER;
    case ZFI_PARTS_MULTIPLIED: return ZFI_LINEAR_EACH;
    case ZFI_PARTS_DIVIDED: return ZFI_LINEAR_FIRST;
    default: return ZFI_LINEAR_NOT;
    }
}

/* Operands that are addends over an axis reach a result that is one too. */
static void zfi_spread_addends(zfi_spreading *c, uint8_t axis)
{
    const zfi_node *node = c->node;
    const zfi_linear linear = zfi_linear_of(c->graph, node);
    int32_t addends = 0, first = -1, other = -1;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const bool is = zfi_spread_arg(c, k)->sum & axis;
        if (is && first < 0) first = k;
        if (!is && other < 0) other = k;
        addends += is;
    }
    if (!addends) return;
    if (linear == ZFI_LINEAR_NOT || (linear == ZFI_LINEAR_FIRST && (first || addends > 1)))
        zfi_spread_open_sum(c, node->args[first], axis);
    else if (linear == ZFI_LINEAR_TOGETHER && other >= 0)
        zfi_spread_fail(c,
                        "%%%d is a sum over %s that is still to be made, and %%%d is not: each "
                        "rank would add it",
                        (int)node->args[first], zfi_axis_in(axis), (int)node->args[other]);
    else if (linear == ZFI_LINEAR_EACH && addends > 1)
        zfi_spread_fail(c, "both operands are sums over %s that are still to be made",
                        zfi_axis_in(axis));
    else if (linear != ZFI_LINEAR_TOGETHER && other >= 0 &&
             (zfi_spread_cut(zfi_spread_arg(c, other)) | zfi_spread_arg(c, other)->differs) & axis)
        zfi_spread_fail(c, "%%%d is a sum over %s that is still to be made, and %%%d is not equal",
                        (int)node->args[first], zfi_axis_in(axis), (int)node->args[other]);
    c->out.sum |= axis;
}

/* ------------------------------------------------------------------------------------- letters */

/* How a letter is cut. */
typedef struct zfi_letter_spread {
    uint16_t axes;
    const zfi_spread *of; /* the operand that says so, */
    int32_t from, d;      /* its node, and the dimension */
    int64_t run;          /* elements that lie together, of runs of the letter; 0: all */
    int64_t whole;        /* of rows: those of all ranks, where the last ones have padding; 0 */
} zfi_letter_spread;

/* The run of a dimension that has so many runs of a letter; -1: it is cut otherwise. */
static int64_t zfi_run_of_letter(const zfi_spread *s, int32_t d, int64_t size, int8_t runs)
{
    if (!runs) return s->run[d];
    return s->run[d] == size / runs ? 0 : -1;
}

/* The letter is that of matrices of experts. */
static bool zfi_is_of_experts(const zfi_cuts *cuts, int32_t l)
{
    return l >= 0 && cuts->letter[l].name == 'e';
}

/* Operand k of the node has a matrix for each expert at dimension d, and not bounds of its rows. */
static bool zfi_is_matrices(const zf_graph *g, const zfi_node *node, const zfi_cuts *cuts,
                            int32_t k, int32_t d)
{
    return cuts->given[k] && zfi_is_of_experts(cuts, cuts->at[k][d]) &&
           g->nodes[node->args[k]].dtype != ZF_I32;
}

/* Rows of all ranks along expert: the matrices of experts are cut over it, and so are those that
 * are made of the rows. */
static void zfi_spread_experts(zfi_spreading *c, const zfi_cuts *cuts, int32_t value)
{
    const zfi_node *node = c->node;
    for (int32_t k = 0; k < node->arg_count && c->shared; k++)
        for (int32_t d = 0; d < c->graph->nodes[node->args[k]].shape.rank; d++)
            if (zfi_is_matrices(c->graph, node, cuts, k, d) &&
                zfi_spread_arg(c, k)->at[d] != zfi_axes_add(0, ZF_OVER_EXPERT))
                zfi_spread_fail(c,
                                "%%%d must be cut over expert at dimension %d: its rows are those "
                                "of all ranks along that",
                                (int)node->args[k], (int)d);
    for (int32_t d = 0; d < ZF_MAX_RANK && c->shared; d++)
        if (cuts->given[value] && zfi_is_of_experts(cuts, cuts->at[value][d]))
            c->out.at[d] = zfi_axes_add(c->out.at[d], ZF_OVER_EXPERT);
}

/* Sets whether the node has rows of all ranks along expert. */
static void zfi_spread_sources(zfi_spreading *c)
{
    const zf_attribute *sources = zfi_attribute_of(c->graph, c->node, "sources");
    const int32_t ranks = zfi_mesh_size(zfi_mesh_of(c->graph), ZF_OVER_EXPERT);
    if (!sources || sources->i < 2) return;
    c->shared = zfi_axis_bit(ZF_OVER_EXPERT);
    if (sources->i != ranks)
        zfi_spread_fail(c, "its rows are those of sources=%lld ranks, and %d share experts",
                        (long long)sources->i, (int)(ranks > 1 ? ranks : 1));
}

/* Operand k has one element at dimension d, in the whole as well, which fits all of others, of an
 * operator that broadcasts. */
static bool zfi_is_broadcast_along(const zf_graph *g, const zfi_node *node, const zfi_cuts *cuts,
                                   int32_t k, int32_t d)
{
    const zfi_node *x = &g->nodes[node->args[k]];
    if (!cuts->broadcast[k] && !(g->records[node->op]->traits & ZF_OP_ELEMENTWISE)) return false;
    return zfi_cut_broadcasts(cuts, k, d) && x->shape.dims[d] == 1 && !x->spread.at[d];
}

/* Those of each letter, from the operands that are cut; axes over which the result differs are left
 * out. */
static void zfi_spread_letters(zfi_spreading *c, const zfi_cuts *cuts,
                               zfi_letter_spread letters[ZFI_CUT_LETTERS])
{
    const zfi_node *node = c->node;
    for (int32_t k = 0; k < node->arg_count; k++)
        for (int32_t d = 0; d < c->graph->nodes[node->args[k]].shape.rank; d++) {
            const int8_t l = k < ZFI_CUT_RESULT && cuts->given[k] ? cuts->at[k][d] : -1;
            const uint16_t list =
                zfi_axes_less(zfi_spread_arg(c, k)->at[d],
                              c->out.differs | (zfi_is_of_experts(cuts, l) ? c->shared : 0));
            if (!list) continue;
            if (l < 0 || cuts->letter[l].whole) {
                zfi_spread_fail(c,
                                "%%%d is cut over %s at dimension %d, along which %s is not to be "
                                "cut",
                                (int)node->args[k], zfi_axis_in(zfi_axes_in(list)), (int)d,
                                c->graph->records[node->op]->name);
                return;
            }
            if (!letters[l].axes && !cuts->together[k][d])
                letters[l] = (zfi_letter_spread){
                    list, zfi_spread_arg(c, k), node->args[k], d,
                    zfi_run_of_letter(zfi_spread_arg(c, k), d,
                                      c->graph->nodes[node->args[k]].shape.dims[d],
                                      cuts->runs[k][d]),
                    0};
        }
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++)
        for (int32_t d = 0; d < c->graph->nodes[node->args[k]].shape.rank; d++) {
            const int8_t l = cuts->given[k] ? cuts->at[k][d] : -1;
            const int64_t run = l >= 0 && !cuts->together[k][d] ? letters[l].run : 0;
            if (l < 0 || !letters[l].axes || zfi_fits_any(c, k) ||
                zfi_is_broadcast_along(c->graph, node, cuts, k, d))
                continue;
            if (zfi_axes_less(zfi_spread_arg(c, k)->at[d], c->out.differs) != letters[l].axes ||
                !zfi_same_section(zfi_spread_arg(c, k), d, letters[l].of, letters[l].d) ||
                run < 0 ||
                zfi_run_of_letter(zfi_spread_arg(c, k), d,
                                  c->graph->nodes[node->args[k]].shape.dims[d],
                                  cuts->runs[k][d]) != run)
                zfi_spread_fail(c, "%%%d is cut over %s, and %%%d is not cut alike at dimension %d",
                                (int)letters[l].from, zfi_axis_in(zfi_axes_in(letters[l].axes)),
                                (int)node->args[k], (int)d);
        }
}

/* The dimension of a reshaped value in which `count` elements that lie together end, and those of
 * one dimension do; -1: there is none. *run: how many of that dimension they are; 0: all. */
static int32_t zfi_spread_place(const zf_shape *shape, int64_t count, int64_t *run)
{
    for (int32_t d = 0; d < shape->rank; d++) {
        const int64_t inner = zfi_span(shape, d + 1, shape->rank), size = shape->dims[d];
        if (size < 2 || inner < 1 || count % inner || count / inner > size || count / inner < 2)
            continue;
        if (size % (count / inner)) continue;
        *run = count / inner == size ? 0 : count / inner;
        return d;
    }
    return -1;
}

/* The dimension of a reshape's result in which `count` elements that lie together end: of several
 * elements, or the one that the reshape says is cut, which has one; -1: there is none. */
static int32_t zfi_spread_formed(const zfi_node *node, int64_t count, int64_t *run)
{
    const int32_t cut = (int32_t)ZF_INT(node, reshape, cut);
    if (cut && zfi_span(&node->shape, cut, node->shape.rank) == count) return cut - 1;
    return zfi_spread_place(&node->shape, count, run);
}

/* A reshape: what lies together in the whole does so in another form. */
static void zfi_spread_reshape(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const zf_shape *from = &c->graph->nodes[node->args[0]].shape;
    for (int32_t d = 0; d < from->rank; d++) {
        const int64_t of = x->run[d] ? x->run[d] : from->dims[d];
        int64_t run = 0;
        const uint16_t list = zfi_axes_less(x->at[d], c->out.differs);
        const int32_t to =
            list ? zfi_spread_formed(node, of * zfi_span(from, d + 1, from->rank), &run) : 0;
        if (!list) continue;
        if (to < 0 || c->out.at[to] || (x->whole[d] && node->shape.dims[to] != from->dims[d]))
            zfi_spread_fail(c,
                            "%%%d is cut over %s at dimension %d, along which reshape is not to be "
                            "cut",
                            (int)node->args[0], zfi_axis_in(zfi_axes_in(list)), (int)d);
        else zfi_spread_put(&c->out, to, list, x, d), c->out.run[to] = run;
    }
}

/* The dimension along which a slice takes a section of a part, or a concat puts sections together;
 * -1: neither. */
static int32_t zfi_section_axis(const zfi_spreading *c)
{
    const zf_attribute *axis = zfi_attribute_of(c->graph, c->node, "axis");
    const bool either = c->node->op == ZF_OP_slice || c->node->op == ZF_OP_concat;
    return either && axis && axis->i < c->node->shape.rank && zfi_spread_arg(c, 0)->at[axis->i]
               ? (int32_t)axis->i
               : -1;
}

/* One of equal sections of each rank's part, or whole runs of it: those of q, k or v. */
static void zfi_spread_slice(zfi_spreading *c, int32_t axis)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const zfi_mesh mesh = zfi_mesh_of(c->graph);
    const int64_t start = ZF_INT(node, slice, start), size = node->shape.dims[axis],
                  all = c->graph->nodes[node->args[0]].shape.dims[axis], run = x->run[axis];
    c->out = *x;
    if (run && size && size % run == 0 && start % run == 0) {
        if (size == run) c->out.run[axis] = 0;
        return;
    }
    if (!size || all % size || start % size || x->section[axis].of || x->run[axis] ||
        x->whole[axis] ||
        (size < all && all / size % 2 && zfi_is_zigzag(mesh, zfi_axes_last(x->at[axis]))))
        zfi_spread_fail(c,
                        "%%%d is cut over %s at dimension %d: a slice along it is one of equal "
                        "sections of the part in one run",
                        (int)node->args[0], zfi_axis_in(zfi_axes_in(x->at[axis])), (int)axis);
    else if (size < all)
        c->out.section[axis].of = (int32_t)(all / size),
        c->out.section[axis].at = (int32_t)(start / size);
}

/* Parts of several values: each is a run. False: some are sections, or not cut alike. */
static bool zfi_spread_concat_runs(zfi_spreading *c, int32_t axis)
{
    const zfi_spread *first = zfi_spread_arg(c, 0);
    const int64_t size = c->graph->nodes[c->node->args[0]].shape.dims[axis];
    if (c->node->arg_count < 2 || first->section[axis].of || first->run[axis] || first->whole[axis])
        return false;
    for (int32_t k = 1; k < c->node->arg_count; k++)
        if (!zfi_same_spread(first, zfi_spread_arg(c, k)) ||
            c->graph->nodes[c->node->args[k]].shape.dims[axis] != size)
            return false;
    c->out = *first, c->out.run[axis] = size;
    return true;
}

/* All sections of each rank's part. */
static void zfi_spread_concat(zfi_spreading *c, int32_t axis)
{
    zfi_spread first = *zfi_spread_arg(c, 0);
    if (zfi_spread_concat_runs(c, axis)) return;
    c->out = first, c->out.section[axis].of = c->out.section[axis].at = 0;
    for (int32_t k = 0; k < c->node->arg_count; k++) {
        first.section[axis].of = c->node->arg_count, first.section[axis].at = k;
        if (!zfi_same_spread(&first, zfi_spread_arg(c, k)))
            zfi_spread_fail(c, "%%%d is not section %d of a part that is cut over %s",
                            (int)c->node->args[k], (int)k,
                            zfi_axis_in(zfi_axes_in(first.at[axis])));
    }
}

/* The axis over which ranks make parts of the rows of a result, from whole operands; 0: none. */
static int32_t zfi_rows_over(const zf_graph *g, const zfi_node *node)
{
    const zf_attribute *over = zfi_attribute_of(g, node, "over");
    const bool exchanges = g->records[node->op]->traits & ZF_OP_COLLECTIVE;
    return over && !exchanges && zfi_is_other_axis(over->i) ? (int32_t)over->i : 0;
}

/* Rows of which each rank has a part, those of a letter with `first`: an operand's that is cut, or
 * those of the result, over an axis that the node names. The text has the first part of them. */
static void zfi_spread_rows(zfi_spreading *c, const zfi_cuts *cuts, int32_t l,
                            zfi_letter_spread *letter)
{
    static const zfi_spread in_one = {.sum = 0};
    const zfi_mesh mesh = zfi_mesh_of(c->graph);
    const zfi_cut_letter *rows = &cuts->letter[l];
    const zf_attribute *attributes = c->node->attributes;
    const int32_t over = zfi_rows_over(c->graph, c->node);
    const int64_t of = attributes[rows->of].i;
    int64_t full = rows->size;
    if (over) *letter = (zfi_letter_spread){.axes = zfi_axes_add(0, over), .of = &in_one};
    for (uint16_t list = letter->axes; list; list >>= ZFI_AXIS_BITS)
        full *= zfi_mesh_size(mesh, list & 15);
    if (letter->axes && letter->of->section[letter->d].of)
        full *= letter->of->section[letter->d].of;
    else if (letter->axes && zfi_is_zigzag(mesh, zfi_axes_last(letter->axes)))
        zfi_spread_fail(c, "its rows are dealt zig-zag over %s: it is to be one of two sections or "
                           "more of a rank's part",
                        zfi_axis_in(zfi_axes_in(letter->axes)));
    if (of > full - rows->size && of < full) letter->whole = of;
    if (letter->axes && (attributes[rows->first].i || (of != full && !letter->whole) ||
                         (!over && letter->of->whole[letter->d] != letter->whole)))
        zfi_spread_fail(c, "its rows are cut over %s: first must be 0, and of %lld",
                        zfi_axis_in(zfi_axes_in(letter->axes)), (long long)full);
}

/* A dimension of a value of the node is cut as its letter. */
static void zfi_spread_letter(zfi_spreading *c, const zfi_cuts *cuts, int32_t value, int32_t d,
                              const zfi_letter_spread *letter)
{
    zf_shape shape;
    zfi_spread_put(&c->out, d, letter->axes, letter->of, letter->d);
    c->out.run[d] = cuts->together[value][d] ? 0 : letter->run;
    if (cuts->runs[value][d] && zfi_cut_shape(c->graph, c->node, value, &shape))
        c->out.run[d] = shape.dims[d] / cuts->runs[value][d];
    if (letter->whole) c->out.whole[d] = letter->whole;
}

/* What sums in sections over a letter that is cut in runs has its part of each in each section. */
static void zfi_spread_sums_runs(zfi_spreading *c, const zfi_cut_letter *of,
                                 const zfi_letter_spread *letter)
{
    const int at = zfi_attribute_index(c->graph->records[c->node->op], "sections");
    const zf_attribute *sections = at >= 0 && of->divided >> at & 1 ? &c->node->attributes[at] : NULL,
                       *runs = zfi_attribute_of(c->graph, c->node, "runs");
    const int64_t size = letter->axes ? c->graph->nodes[letter->from].shape.dims[letter->d] : 0,
                  need = size && letter->run > 0 ? size / letter->run : 1,
                  have = runs && runs->i > 1 ? runs->i : 1;
    if (letter->axes && sections && sections->i > 1 && need != have)
        zfi_spread_fail(c, "it sums over runs of %%%d, of which there are %lld: runs must be that",
                        (int)letter->from, (long long)need);
}

/* The type of a value of the node: its result, or a saved one. */
static void zfi_spread_cuts(zfi_spreading *c, int32_t value)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = c->node;
    zfi_letter_spread letters[ZFI_CUT_LETTERS] = {{.axes = 0}};
    uint8_t cut = 0, seen = c->out.sum;
    zfi_cuts cuts;
    for (int32_t k = 0; k < node->arg_count; k++) cut |= zfi_spread_cut(zfi_spread_arg(c, k));
    zfi_spread_sources(c);
    if (!(cut & ~c->out.differs) && !zfi_rows_over(g, node) && !c->shared) return;
    if (node->op == ZF_OP_reshape || zfi_section_axis(c) >= 0) {
        const int32_t axis = zfi_section_axis(c);
        if (axis < 0) zfi_spread_reshape(c);
        else if (node->op == ZF_OP_slice) zfi_spread_slice(c, axis);
        else zfi_spread_concat(c, axis);
        return;
    }
    if (!zfi_cut_of(g, node, &cuts)) {
        zfi_spread_fail(c, "%s is not to be cut, and an operand is cut over %s",
                        g->records[node->op]->name, zfi_axis_in(cut));
        return;
    }
    zfi_spread_letters(c, &cuts, letters);
    zfi_spread_experts(c, &cuts, value);
    for (int32_t l = 0; l < cuts.letters && !*c->why; l++) {
        uint8_t axes;
        if (cuts.letter[l].first >= 0) zfi_spread_rows(c, &cuts, l, &letters[l]);
        axes = zfi_axes_in(letters[l].axes);
        if (cuts.flat[value][0]) c->out.differs |= axes;
        else if (zfi_cut_sums(&cuts, l, value)) {
            c->out.sum |= axes;
            zfi_spread_sums_runs(c, &cuts.letter[l], &letters[l]);
        }
        if (cuts.letter[l].first >= 0) c->owned |= axes;
        if (zfi_axes_met(seen) & axes)
            zfi_spread_fail(c, "it is cut over %s along two dimensions, or a sum as well",
                            zfi_axis_in(zfi_axes_met(seen) & axes));
        seen |= axes;
        for (int32_t d = 0; d < ZF_MAX_RANK; d++)
            if (axes && !cuts.flat[value][0] && cuts.given[value] && cuts.at[value][d] == l)
                zfi_spread_letter(c, &cuts, value, d, &letters[l]);
    }
}

static void zfi_spread_operands(zfi_spreading *c, int32_t value)
{
    const zfi_node *node = c->node;
    for (int32_t k = 0; k < node->arg_count; k++)
        c->out.differs |= zfi_spread_arg(c, k)->differs;
    for (int over = ZF_OVER_TENSOR; over < ZF_OVERS && !*c->why; over++)
        zfi_spread_addends(c, zfi_axis_bit(over));
    if (!*c->why) zfi_spread_cuts(c, value);
}

/* --------------------------------------------------------------------------------- collectives */

/* The dimension along which a collective is; 0: it is flat. */
static int64_t zfi_collective_dim(zf_op op, const zf_attribute *attributes)
{
    return op == ZF_OP_all_gather       ? attributes[ZF_AT_all_gather_dim].i
           : op == ZF_OP_reduce_scatter ? attributes[ZF_AT_reduce_scatter_dim].i
                                        : 0;
}

/* The dimension that a collective cuts: of a sum, or in exchange for another one. */
static int64_t zfi_cut_dim(zf_op op, const zf_attribute *attributes)
{
    return op == ZF_OP_all_to_all ? attributes[ZF_AT_all_to_all_dim].i
                                  : zfi_collective_dim(op, attributes);
}

/* The dimension that a collective gathers. */
static int64_t zfi_gathered_dim(zf_op op, const zf_attribute *attributes)
{
    return op == ZF_OP_all_to_all ? attributes[ZF_AT_all_to_all_from].i
                                  : zfi_collective_dim(op, attributes);
}

/* What it gathers, or scatters, is dealt zig-zag. */
static bool zfi_goes_zigzag(zf_op op, const zf_attribute *attributes)
{
    return op == ZF_OP_all_gather       ? attributes[ZF_AT_all_gather_zigzag].i
           : op == ZF_OP_reduce_scatter ? attributes[ZF_AT_reduce_scatter_zigzag].i
                                        : 0;
}

/* How many ranks before and after its own a rank gets from; false: from all. */
static bool zfi_neighbours_of(zf_op op, const zf_attribute *attributes, int32_t *before,
                              int32_t *after)
{
    const bool gathers = op == ZF_OP_all_gather;
    *before = *after = 0;
    if (!gathers && op != ZF_OP_reduce_scatter) return false;
    *before =
        (int32_t)attributes[gathers ? ZF_AT_all_gather_before : ZF_AT_reduce_scatter_before].i;
    *after = (int32_t)attributes[gathers ? ZF_AT_all_gather_after : ZF_AT_reduce_scatter_after].i;
    return *before || *after;
}

/* The collective is along dimensions, rather than of flat values. */
static bool zfi_is_along(zf_op op, const zf_attribute *attributes)
{
    return zfi_collective_dim(op, attributes) || zfi_goes_zigzag(op, attributes) ||
           (op == ZF_OP_all_to_all && zfi_cut_dim(op, attributes) != zfi_gathered_dim(op, attributes));
}

/* It is cut at a dimension other than the first, in runs, or into parts with padding. */
static bool zfi_is_cut_within(const zfi_spread *s)
{
    bool within = s->run[0] || s->whole[0];
    for (int d = 1; d < ZF_MAX_RANK; d++) within |= s->at[d] != 0;
    return within;
}

/* The elements of a value, one after the other: what is cut by rows is cut so too. */
static void zfi_spread_in_order(zfi_spread *out, bool differs)
{
    if (differs || out->section[0].of || zfi_is_cut_within(out)) zfi_spread_flatten(out);
}

/* Over data: what the ranks have of each element along other axes does not change. Ranks along
 * expert exchange rows. */
static void zfi_spread_over_data(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    const bool moves = node->op == ZF_OP_all_gather || node->op == ZF_OP_reduce_scatter,
               rows = node->op == ZF_OP_all_to_all && node->shape.rank > 1 &&
                      ZF_INT(node, all_to_all, over) == ZF_OVER_EXPERT &&
                      node->shape.dims[0] % ZF_INT(node, all_to_all, world) == 0;
    c->out = *zfi_spread_arg(c, 0);
    if ((moves || node->op == ZF_OP_all_to_all) && !rows &&
        !zfi_is_along(node->op, node->attributes))
        zfi_spread_flatten(&c->out);
}

/* What is cut over an axis is dealt as the axis is. */
static void zfi_spread_dealt(zfi_spreading *c, int64_t over, bool zigzag)
{
    if (zigzag != zfi_is_zigzag(zfi_mesh_of(c->graph), over))
        zfi_spread_fail(c, zigzag ? "%s is not dealt zig-zag" : "%s is dealt zig-zag: zigzag=true",
                        zfi_axis_names[over]);
}

static void zfi_spread_gather(zfi_spreading *c, int64_t over, int64_t dim)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const uint8_t axis = zfi_axis_bit(over);
    if (x->differs & axis) c->out.differs &= (uint8_t)~axis;
    else if (!(zfi_spread_cut(x) & axis))
        zfi_spread_fail(c, "%%%d is equal on all ranks along %s: there is nothing to gather",
                        (int)node->args[0], zfi_axis_names[over]);
    else if (zfi_axes_last(x->at[dim]) != over)
        zfi_spread_fail(c, "at dimension %lld of %%%d the innermost axis is not %s",
                        (long long)dim, (int)node->args[0], zfi_axis_names[over]);
    else if (x->section[dim].of)
        zfi_spread_fail(c, "dimension %lld of %%%d is a section of a rank's part", (long long)dim,
                        (int)node->args[0]);
    else if (x->whole[dim])
        zfi_spread_fail(c, "dimension %lld of %%%d has padding at its end", (long long)dim,
                        (int)node->args[0]);
    else if (x->run[dim])
        zfi_spread_fail(c, "dimension %lld of %%%d is cut in runs of %lld: it is gathered in the "
                           "form in which it was cut",
                        (long long)dim, (int)node->args[0], (long long)x->run[dim]);
    else {
        zfi_spread_dealt(c, over, zfi_goes_zigzag(node->op, node->attributes));
        c->out.at[dim] = zfi_axes_less(x->at[dim], axis);
    }
}

/* A dimension is gathered in exchange for another one, which is cut. */
static void zfi_spread_exchange(zfi_spreading *c, int64_t over)
{
    const zfi_node *node = c->node;
    const uint8_t axis = zfi_axis_bit(over);
    const int64_t dim = zfi_cut_dim(node->op, node->attributes);
    zfi_spread_gather(c, over, zfi_gathered_dim(node->op, node->attributes));
    if (zfi_spread_arg(c, 0)->differs & axis) c->out.differs |= axis;
    else c->out.at[dim] = zfi_axes_add(c->out.at[dim], over);
}

static void zfi_spread_collective(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const int64_t over = ZF_INT(node, all_gather, over);
    const bool moves = node->op == ZF_OP_all_gather || node->op == ZF_OP_reduce_scatter,
               sums = node->op == ZF_OP_reduce_scatter || node->op == ZF_OP_all_reduce ||
                      node->op == ZF_OP_reduce,
               exchanges =
                   node->op == ZF_OP_all_to_all && zfi_is_along(node->op, node->attributes);
    const int64_t dim = zfi_collective_dim(node->op, node->attributes);
    uint8_t axis;
    if (!zfi_is_other_axis(over) && !(over == ZF_OVER_EXPERT && sums)) {
        zfi_spread_over_data(c);
        return;
    }
    axis = zfi_axis_bit(over);
    c->out = *x;
    if (sums && !(x->sum & axis))
        zfi_spread_fail(c, "%%%d is no sum over %s that is still to be made", (int)node->args[0],
                        zfi_axis_names[over]);
    else if (!sums && x->sum & axis) zfi_spread_open_sum(c, node->args[0], axis);
    else if (node->op == ZF_OP_all_gather) zfi_spread_gather(c, over, dim);
    else if (exchanges) zfi_spread_exchange(c, over);
    else if (node->op == ZF_OP_send) {
        if (zfi_spread_cut(x) & axis)
            zfi_spread_fail(c, "%%%d is cut over %s: a rank has a part of it, and none to send",
                            (int)node->args[0], zfi_axis_names[over]);
    } else zfi_spread_drop(&c->out, axis);
    if (moves && !dim && c->graph->nodes[node->args[0]].shape.rank > 1)
        zfi_spread_in_order(&c->out, x->differs & axis);
    if (node->op == ZF_OP_reduce_scatter) {
        zfi_spread_dealt(c, over, zfi_goes_zigzag(node->op, node->attributes));
        c->out.at[dim] = zfi_axes_add(c->out.at[dim], over);
    }
    if (node->op == ZF_OP_reduce) {
        const int64_t of = ZF_INT(node, reduce, dim);
        zfi_spread_dealt(c, over, false);
        c->out.at[of] = zfi_axes_add(c->out.at[of], over);
    }
    if (node->op == ZF_OP_all_to_all && !exchanges) c->out.differs |= axis;
}

/* A dimension in which ranks along `over` have the same becomes one in which each has its own. */
static uint16_t zfi_axes_with_copies(uint16_t list, int64_t over)
{
    if (over != ZF_OVER_COPIES) return zfi_axes_add(list, over);
    return zfi_axes_add(zfi_axes_less(list, zfi_axis_bit(ZF_OVER_GROUP)), ZF_OVER_TENSOR);
}

/* Heads of which ranks along the node's axis have other copies. */
static void zfi_spread_copies(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const int64_t over = ZF_INT(node, repeat, over);
    const int32_t d = node->shape.rank - 1;
    const bool adds = c->graph->records[node->op]->copies == ZFI_COPIES_ADDED;
    const uint16_t heads = over == ZF_OVER_COPIES ? zfi_axes_add(0, ZF_OVER_GROUP) : 0,
                   copies = zfi_axes_with_copies(heads, over);
    c->out = *x;
    if (x->sum & zfi_axes_met(zfi_axis_bit(over))) zfi_spread_open_sum(c, node->args[0], x->sum);
    else if (x->at[d] != (adds ? copies : heads) || x->run[d] || x->section[d].of)
        zfi_spread_fail(c, "the heads of %%%d are not cut as those of copies over %s are",
                        (int)node->args[0], zfi_axis_names[over]);
    c->out.at[d] = adds ? heads : copies;
    if (adds) c->out.sum |= zfi_axis_bit(over);
}

/* A rank's part of what is equal on all. */
static void zfi_spread_part(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    const zfi_spread *x = zfi_spread_arg(c, 0);
    const int64_t over = ZF_INT(node, part, over), dim = ZF_INT(node, part, dim);
    const uint8_t axis = zfi_axis_bit(over);
    c->out = *x;
    if (x->sum & axis) zfi_spread_open_sum(c, node->args[0], axis);
    else if (zfi_axes_met(zfi_spread_cut(x) | x->differs) & axis)
        zfi_spread_fail(c, "%%%d is not equal along %s: a rank has a part of it already",
                        (int)node->args[0], zfi_axis_names[over]);
    else if (x->run[dim])
        zfi_spread_fail(c, "dimension %lld of %%%d is cut in runs", (long long)dim,
                        (int)node->args[0]);
    else {
        zfi_spread_dealt(c, over, ZF_INT(node, part, zigzag) != 0);
        c->out.at[dim] = zfi_axes_add(x->at[dim], over);
    }
}

/* ------------------------------------------------------------------------------ leaves, buckets */

static void zfi_spread_leaf(zfi_spreading *c)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = c->node;
    const char *name = g->records[node->op]->name;
    const uint8_t cut = zfi_spread_cut(&node->spread);
    const bool held = node->op == ZF_OP_param || node->op == ZF_OP_state;
    c->out = node->spread;
    for (int32_t d = 0; d < node->shape.rank && held; d++)
        if (c->out.section[d].of || (c->out.run[d] && node->shape.dims[d] % c->out.run[d]))
            zfi_spread_fail(c, "a %s is cut into whole runs for each rank, and not into sections", name);
    if (held && (c->out.sum | c->out.differs))
        zfi_spread_fail(c, "a %s is equal or cut", name);
    else if (!held && node->op != ZF_OP_input && zfi_is_spread(&c->out))
        zfi_spread_fail(c, "a %s is equal on all ranks", name);
    else if (node->op == ZF_OP_param && ZF_INT(node, param, bits) &&
             (cut & ~zfi_axis_bit(ZF_OVER_EXPERT) || zfi_is_cut_within(&c->out)))
        zfi_spread_fail(c, "quantised parameters are not cut over %s", zfi_axis_in(cut));
    else if (zfi_cut_rows_of(node).rows && zfi_is_cut_within(&c->out))
        zfi_spread_fail(c, "pieces of a %s are cut at their rows alone, in equal parts", name);
    else if (node->op == ZF_OP_state && node->arg_count &&
             !zfi_same_spread(zfi_spread_arg(c, 0), &c->out))
        zfi_spread_fail(c, "it begins with the values of %%%d, which has another type",
                        (int)node->args[0]);
}

/* The parameters or gradients, side by side, to which a view of this value belongs; NULL: none.
 * What ranks along data have scattered is theirs again where it is gathered. */
static const zfi_node *zfi_side_by_side(const zf_graph *g, const zfi_node *node)
{
    int32_t gathered = 0;
    while (node->op != ZF_OP_bucket && node->op != ZF_OP_pack) {
        gathered += node->op == ZF_OP_all_gather;
        if (!node->arg_count || zfi_is_part(node) ||
            (node->op == ZF_OP_reduce_scatter && gathered-- < 1))
            return NULL;
        node = &g->nodes[node->args[0]];
    }
    return node;
}

/* The type of elements [at, at + count) of a bucket or pack, in that shape. */
static zfi_spread zfi_spread_within(const zf_graph *g, const zfi_node *of, int64_t at,
                                    const zf_shape *shape)
{
    const int64_t *places = ZF_LIST(of, pack, at).data, count = zf_shape_count(*shape);
    zfi_spread out = {.sum = 0};
    for (int32_t k = 0; k < of->arg_count; k++) {
        const zfi_node *x = &g->nodes[of->args[k]];
        zfi_spread its = x->spread;
        const int64_t size = zfi_node_count(x);
        if (places[k] + size <= at || places[k] >= at + count) continue;
        if (places[k] == at && zfi_same_shape(&x->shape, shape)) return its;
        zfi_spread_flatten(&its);
        out.sum |= its.sum, out.differs |= its.differs;
    }
    return out;
}

static void zfi_spread_view(zfi_spreading *c)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = c->node;
    const zfi_node *of = zfi_side_by_side(g, &g->nodes[node->args[0]]);
    if (of) c->out = zfi_spread_within(g, of, ZF_INT(node, view, at), &node->shape);
    else c->out = *zfi_spread_arg(c, 0), zfi_spread_flatten(&c->out);
}

/* Values side by side: addends have been summed before. */
static void zfi_spread_pack(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    for (int32_t k = 0; k < node->arg_count; k++) {
        zfi_spread x = *zfi_spread_arg(c, k);
        if (x.sum) zfi_spread_open_sum(c, node->args[k], x.sum);
        zfi_spread_flatten(&x);
        c->out.differs |= x.differs;
    }
}

static int64_t zfi_whole_blocks(int64_t count)
{
    return count / ZFI_NORM_BLOCK + (count % ZFI_NORM_BLOCK != 0);
}

/* Elements [at, at + count) are in a block of 1024 that is listed. */
static bool zfi_spread_listed(const zf_attribute *blocks, int64_t at, int64_t count)
{
    const int64_t *ends = blocks->list.data, first = at / ZFI_NORM_BLOCK;
    for (int64_t k = 0; k < blocks->list.count; k += 2)
        if (ends[k] < first + zfi_whole_blocks(count) && ends[k + 1] > first) return true;
    return false;
}

/* Squares of blocks of a bucket, or of a shard: those of what is cut are addends, those of what is
 * equal are equal. */
static void zfi_spread_squares(zfi_spreading *c)
{
    const zf_graph *g = c->graph;
    const zf_attribute *blocks = &ZF_ATTRIBUTE(c->node, squares, blocks);
    const zfi_node *of = &g->nodes[c->node->args[0]];
    uint8_t all = 0, each = UINT8_MAX;
    while (of->op != ZF_OP_bucket && of->op != ZF_OP_pack && of->arg_count)
        of = &g->nodes[of->args[0]];
    for (int32_t k = 0; k < of->arg_count; k++) {
        const zfi_node *x = &g->nodes[of->args[k]];
        const int64_t *at = ZF_LIST(of, pack, at).data;
        const uint8_t cut = zfi_spread_cut(&x->spread);
        if (!zfi_spread_listed(blocks, at[k], zfi_node_count(x))) continue;
        all |= cut, each &= cut;
    }
    if (all & ~each)
        zfi_spread_fail(c, "blocks are of what is cut over %s and of what is equal",
                        zfi_axis_in((uint8_t)(all & ~each)));
    c->out.sum = all;
}

/* ------------------------------------------------------------------------------------- updates */

/* Operands of a set have the type of the first one, others are equal on all ranks. An accumulator has
 * the type of what is added to it. */
static void zfi_spread_updates(zfi_spreading *c, uint32_t alike)
{
    const zfi_node *node = c->node;
    for (int32_t k = 1; k < node->arg_count; k++) {
        const zfi_spread *x = zfi_spread_arg(c, k);
        if (x->sum) zfi_spread_open_sum(c, node->args[k], x->sum);
        else if (!(k < 31 && alike >> k & 1) && zfi_is_spread(x))
            zfi_spread_fail(c, "%%%d is not equal along %s, so ranks would update differently",
                            (int)node->args[k], zfi_axis_in(zfi_spread_cut(x) | x->differs));
        else if (k < 31 && alike >> k & 1 && !zfi_same_spread(x, zfi_spread_arg(c, 0)) &&
                 !zfi_accumulator_of(c->graph, node->args[k]))
            zfi_spread_fail(c, "%%%d and %%%d have two types along axes", (int)node->args[0],
                            (int)node->args[k]);
    }
}

static void zfi_spread_output(zfi_spreading *c)
{
    const zfi_node *node = c->node;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_spread *x = zfi_spread_arg(c, k);
        if (x->sum) zfi_spread_open_sum(c, node->args[k], x->sum);
        else if (zfi_is_number(&c->graph->nodes[node->args[k]]) && zfi_is_spread(x))
            zfi_spread_fail(c, "%%%d, a number, is not equal on all ranks along %s",
                            (int)node->args[k], zfi_axis_in(zfi_spread_cut(x) | x->differs));
    }
}

/* The type of what writes into operands: that of the first, as all of its size. */
static void zfi_spread_written(zfi_spreading *c)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = c->node;
    const zfi_record *record = g->records[node->op];
    const int32_t master = zfi_master_arg(g, node);
    uint32_t alike = zfi_written_args(g, node) | record->elementwise | 2;
    if (master > 0 && master < 31) alike |= 1u << master;
    zfi_spread_updates(c, alike);
    c->out = *zfi_spread_arg(c, 0);
}

/* All values of one operand of a flat value: a reshape of it has the type of one of the operand. */
static void zfi_spread_flat(zfi_spreading *c, int32_t like)
{
    const uint8_t differs = zfi_spread_arg(c, 0)->differs;
    const zfi_node *node = c->node;
    zfi_node of = *node;
    const uint8_t cut = zfi_spread_cut(&c->graph->nodes[like].spread);
    of.args = &like, c->node = &of;
    zfi_spread_operands(c, ZFI_CUT_RESULT);
    c->out.sum = 0, c->out.differs = (uint8_t)(differs & ~cut);
    c->node = node;
}

/* ----------------------------------------------------------------------------------------- all */

/* Addends may be rounded to 16 bits where each is made, but not what adds them. */
static bool zfi_spread_rounds(const zfi_spreading *c, const zfi_node *node)
{
    const zfi_node *of =
        node->op == ZF_OP_saved ? &c->graph->nodes[node->args[0]] : node;
    bool sum = node->dtype != ZF_BF16 && node->dtype != ZF_F16;
    for (int32_t k = 0; k < of->arg_count; k++) sum |= c->graph->nodes[of->args[k]].spread.sum != 0;
    return sum && c->out.sum & ~c->owned && node->dtype != ZF_F32 && node->dtype != ZF_F64;
}

/* A reshape that says of a dimension of one element that it is cut has it cut. */
static void zfi_spread_one(zfi_spreading *c)
{
    const int64_t cut = c->node->op == ZF_OP_reshape ? ZF_INT(c->node, reshape, cut) : 0;
    if (cut && !c->out.at[cut - 1])
        zfi_spread_fail(c,
                        "cut is %lld, and along no axis does a part of %%%d become dimension %lld "
                        "of one element",
                        (long long)cut, (int)c->node->args[0], (long long)cut - 1);
}

static void zfi_spread_of_node(zfi_spreading *c)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = c->node;
    const uint32_t traits = g->records[node->op]->traits;
    const int32_t like = node->op == ZF_OP_reshape ? zfi_flat_operand(g, node) : 0;
    if (like) zfi_spread_flat(c, like);
    else if (node->op == ZF_OP_bucket || node->op == ZF_OP_pack) zfi_spread_pack(c);
    else if (traits & ZF_OP_LEAF) zfi_spread_leaf(c);
    else if (traits & ZF_OP_COLLECTIVE) zfi_spread_collective(c);
    else if (node->op == ZF_OP_part) zfi_spread_part(c);
    else if (g->records[node->op]->copies && ZF_INT(node, repeat, over)) zfi_spread_copies(c);
    else if (node->op == ZF_OP_view) zfi_spread_view(c);
    else if (node->op == ZF_OP_squares && ZF_LIST(node, squares, blocks).count)
        zfi_spread_squares(c);
    else if (node->op == ZF_OP_output) zfi_spread_output(c);
    else if (node->op == ZF_OP_gradient) zfi_spread_updates(c, 2);
    else if (traits & ZF_OP_UPDATE || (node->arg_count > 1 && zfi_written_args(g, node) &&
                                       node->op != ZF_OP_dequantize_sum))
        zfi_spread_written(c);
    else if (node->op == ZF_OP_shard || node->op == ZF_OP_piece)
        c->out = *zfi_spread_arg(c, 0), zfi_spread_flatten(&c->out);
    else if (node->op == ZF_OP_copy) c->out = *zfi_spread_arg(c, 0);
    else if (node->op == ZF_OP_saved) {
        c->node = &g->nodes[node->args[0]];
        zfi_spread_operands(c, ZFI_CUT_RESULT + 1 + (int32_t)ZF_INT(node, saved, index));
    } else if (!(traits & ZF_OP_EFFECT)) zfi_spread_operands(c, ZFI_CUT_RESULT);
    if (traits & ZF_OP_EFFECT) c->out = (zfi_spread){.sum = 0};
    zfi_spread_one(c);
    if (zfi_spread_rounds(c, node))
        zfi_spread_fail(c, "addends over %s are f32 or f64, and %s rounds each",
                        zfi_axis_in(c->out.sum), zf_dtype_name(node->dtype));
}

/* The type of a node's value along the axes, from its operands; a leaf's own. False: why says what
 * is wrong. */
static bool zfi_spread_find(const zf_graph *g, int32_t id, zfi_spread *out,
                            char why[ZFI_SPREAD_WHY])
{
    zfi_spreading c = {.graph = g, .node = &g->nodes[id]};
    const zfi_spread *given = &g->nodes[id].spread;
    const uint8_t used = zfi_spread_cut(given) | given->sum | given->differs;
    const zf_attribute *sources = zfi_attribute_of(g, &g->nodes[id], "sources");
    const int32_t over = zfi_rows_over(g, &g->nodes[id]);
    const bool one = c.node->op == ZF_OP_reshape && ZF_INT(c.node, reshape, cut);
    *out = c.out;
    if (!g->axes.count && !used && !over && !one && !(sources && sources->i > 1)) return true;
    for (int axis = ZF_OVER_TENSOR; axis < ZF_OVERS; axis++)
        if ((used & zfi_axis_bit(axis) || over == axis) && !zfi_mesh_size(zfi_mesh_of(g), axis))
            zfi_spread_fail(&c, "the ranks have no axis %s: the line mesh must name it",
                            zfi_axis_names[axis]);
    if (!*c.why) zfi_spread_of_node(&c);
    *out = c.out;
    memcpy(why, c.why, sizeof c.why);
    return !*c.why;
}
