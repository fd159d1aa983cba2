/* A graph as a picture: nodes in layers, from operands down to results.
 *
 *     consecutive nodes of one scope   a band, framed where the scope has a name
 *     the update section               one band
 *     a parameter, input or state      in the band of the first node that reads it
 *     layer                            in a band, one below the lowest operand of that band
 *     place in a layer                 at the mean of the operands' places, where there is room
 *
 * A graph that was read from text has no scopes. There a node has that of the parameter it reads
 * ("layer.0" of "layer.0.fc.weight"), else that of its first operand.
 * The same bands are the clusters of the text for `dot`. */
#include "picture.h"

#include <stdlib.h>
#include <string.h>

enum { BOX = 132, TALL = 36, GAP = 18, BAND = 14, ROW = 64, MARGIN = 24, HEAD = 48, SWEEPS = 6 };

enum look { INPUT, PARAM, STATE, CONSTANT, COMPUTE, COMMUNICATION, COPY, UPDATE, LOOKS };

static const picture_colour looks[LOOKS] = {
    {"input", "#ddf4ff"},         {"parameter", "#dafbe1"}, {"state", "#fff8c5"},
    {"constant", "#eaeef2"},      {"compute", "#ffffff"},   {"communication", "#fbefff"},
    {"copy between spaces", "#d2f4ea"}, {"update", "#ffe7d1"},
};

typedef struct box {
    zf_node node;
    const char *scope;
    int scope_length;
    int band, layer;
    double x, y; /* of its middle */
    int32_t first_reader; /* an index; -1: none */
    int32_t turn;         /* its number in its layer */
} box;

typedef struct drawing {
    box *boxes;
    int32_t count;
    int32_t *at;       /* by id: its index + 1 */
    int32_t ids;       /* ids are below this */
    int bands, layers; /* layers are numbered over all bands */
    double width, height;
    bool seen[LOOKS];
    int32_t new_from; /* ids from this on are new; 0: it is not said */
} drawing;

static enum look look_of(const zf_node *n)
{
    if (n->op == ZF_OP_param) return PARAM;
    if (n->op == ZF_OP_input) return INPUT;
    if (n->op == ZF_OP_constant) return CONSTANT;
    if (n->leaf) return STATE;
    if (n->collective) return COMMUNICATION;
    if (n->op == ZF_OP_copy) return COPY;
    return n->update ? UPDATE : COMPUTE;
}

static box *box_of(const drawing *d, int32_t id)
{
    return id > 0 && id < d->ids && d->at[id] ? &d->boxes[d->at[id] - 1] : NULL;
}

/* ----------------------------------------------------------------------------------- the layout */

static bool read_nodes(drawing *d, const zf_graph *g)
{
    zf_node n;
    while (zf_graph_node(g, d->count, &n)) {
        if (n.id >= d->ids) d->ids = n.id + 1;
        d->count++;
    }
    d->boxes = calloc((size_t)d->count + 1, sizeof *d->boxes);
    d->at = calloc((size_t)d->ids + 1, sizeof *d->at);
    if (!d->boxes || !d->at) return false;
    for (int32_t k = 0; k < d->count; k++) {
        zf_graph_node(g, k, &d->boxes[k].node);
        d->boxes[k].first_reader = -1;
        d->at[d->boxes[k].node.id] = k + 1;
        d->seen[look_of(&d->boxes[k].node)] = true;
    }
    return true;
}

static void find_readers(drawing *d)
{
    for (int32_t k = d->count - 1; k >= 0; k--)
        for (int32_t n = 0; n < d->boxes[k].node.operand_count; n++) {
            box *x = box_of(d, d->boxes[k].node.operands[n]);
            if (x) x->first_reader = k;
        }
}

/* The length of the name up to a number in it, else up to its last component. */
static int scope_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    for (const char *at = name; at && *at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        const size_t digits = strspn(at, "0123456789");
        if (digits && (at[digits] == '.' || !at[digits])) return (int)(at - name) + (int)digits;
    }
    return dot ? (int)(dot - name) : 0;
}

static void find_scope(const drawing *d, box *b)
{
    const box *first = NULL;
    b->scope = b->node.update && !b->node.leaf ? "update" : b->node.scope;
    b->scope_length = (int)strlen(b->scope);
    if (b->scope_length || b->node.leaf) return;
    for (int32_t n = 0; n < b->node.operand_count; n++) {
        const box *x = box_of(d, b->node.operands[n]);
        if (!x) continue;
        if (x->node.op == ZF_OP_param) {
            b->scope = x->node.name;
            b->scope_length = scope_length(b->scope);
            return;
        }
        if (!first && !x->node.leaf && x->scope) first = x;
    }
    if (!first) return;
    b->scope = first->scope;
    b->scope_length = first->scope_length;
}

static bool same_scope(const box *a, const box *b)
{
    return a->scope_length == b->scope_length &&
           !strncmp(a->scope, b->scope, (size_t)a->scope_length);
}

/* Bands of what computes, in order; then each leaf is in the band of its reader. */
static void find_bands(drawing *d)
{
    const box *last = NULL;
    for (int32_t k = 0; k < d->count; k++) {
        box *b = &d->boxes[k];
        find_scope(d, b);
        if (b->node.leaf) continue;
        if (last && !same_scope(last, b)) d->bands++;
        b->band = d->bands;
        last = b;
    }
    d->bands++;
    for (int32_t k = 0; k < d->count; k++) {
        box *b = &d->boxes[k];
        if (b->node.leaf) b->band = b->first_reader >= 0 ? d->boxes[b->first_reader].band : 0;
    }
}

static void find_layers(drawing *d)
{
    for (int band = 0; band < d->bands; band++) {
        int last = d->layers;
        for (int32_t k = 0; k < d->count; k++) {
            box *b = &d->boxes[k];
            if (b->band != band) continue;
            b->layer = d->layers;
            for (int32_t n = 0; n < b->node.operand_count; n++) {
                const box *x = box_of(d, b->node.operands[n]);
                if (x && x->band == band && x->layer >= b->layer) b->layer = x->layer + 1;
            }
            if (b->layer > last) last = b->layer;
        }
        for (int32_t k = 0; k < d->count; k++) { /* leaves stand right above their readers */
            box *b = &d->boxes[k];
            if (b->band == band && b->node.leaf && b->first_reader >= 0 &&
                d->boxes[b->first_reader].layer > b->layer)
                b->layer = d->boxes[b->first_reader].layer - 1;
        }
        d->layers = last + 1;
    }
}

/* The mean of its neighbours' places: of operands, or, on the way up, of readers. */
static double wanted_x(const drawing *d, const box *b, bool up)
{
    double sum = 0;
    int count = 0;
    if (up || !b->node.operand_count)
        return b->first_reader >= 0 ? d->boxes[b->first_reader].x : b->x;
    for (int32_t n = 0; n < b->node.operand_count; n++) {
        const box *x = box_of(d, b->node.operands[n]);
        if (!x) continue;
        sum += x->x;
        count++;
    }
    return count ? sum / count : b->x;
}

typedef struct wish {
    double x;
    int32_t index;
} wish;

static int by_x(const void *a, const void *b)
{
    const wish *p = a, *q = b;
    if (p->x != q->x) return p->x < q->x ? -1 : 1;
    return p->index < q->index ? -1 : p->index > q->index;
}

/* Places the boxes of a layer in the order of their wishes, the row around the mean wish. */
static void place_layer(drawing *d, int layer, bool up, wish *wishes)
{
    double wanted = 0, placed = 0, x = 0;
    int32_t count = 0;
    for (int32_t k = 0; k < d->count; k++)
        if (d->boxes[k].layer == layer)
            wishes[count++] = (wish){wanted_x(d, &d->boxes[k], up), k};
    qsort(wishes, (size_t)count, sizeof *wishes, by_x);
    for (int32_t k = 0; k < count; k++) {
        box *b = &d->boxes[wishes[k].index];
        b->x = k && wishes[k].x < x + BOX + GAP ? x + BOX + GAP : wishes[k].x;
        x = b->x;
        wanted += wishes[k].x;
        placed += b->x;
    }
    for (int32_t k = 0; k < count; k++)
        d->boxes[wishes[k].index].x += (wanted - placed) / count;
}

static bool lay_out(drawing *d, double left)
{
    wish *wishes = calloc((size_t)d->count + 1, sizeof *wishes);
    double least = 0, most = 0;
    if (!wishes) return false;
    find_readers(d);
    find_bands(d);
    find_layers(d);
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int k = 0; k < d->layers; k++)
            place_layer(d, sweep % 2 ? d->layers - 1 - k : k, sweep % 2, wishes);
    for (int32_t k = 0; k < d->count; k++) {
        if (!k || d->boxes[k].x < least) least = d->boxes[k].x;
        if (!k || d->boxes[k].x > most) most = d->boxes[k].x;
    }
    for (int32_t k = 0; k < d->count; k++) {
        box *b = &d->boxes[k];
        b->x += left - least + BOX / 2.0;
        b->y = HEAD + TALL / 2.0 + ROW * b->layer + BAND * b->band + GAP;
    }
    d->width = most - least + BOX;
    d->height = HEAD + ROW * d->layers + BAND * d->bands;
    free(wishes);
    return true;
}

/* -------------------------------------------------------------------------------------- writing */

/* The second line of a box: the type, or what is said of a node without a value. */
static const char *below_label(const zf_node *n, const char *type)
{
    return !n->effect ? type : *n->name ? n->op_name : n->queue;
}

static void type_text(const zf_node *n, char text[96])
{
    int at = snprintf(text, 96, "%s[", zf_dtype_name(n->dtype));
    for (int32_t k = 0; k < n->shape.rank; k++)
        at += snprintf(text + at, 96 - (size_t)at, k ? ",%lld" : "%lld",
                       (long long)n->shape.dims[k]);
    snprintf(text + at, 96 - (size_t)at, "]");
}

/* Whether a line down at x between the layers of two boxes crosses none between them. */
static bool is_free(const drawing *d, const box *from, const box *to, double x)
{
    for (int32_t k = 0; k < d->count; k++) {
        const box *b = &d->boxes[k];
        if (b->layer > from->layer && b->layer < to->layer && b->x - BOX / 2.0 - 4 < x &&
            x < b->x + BOX / 2.0 + 4)
            return false;
    }
    return true;
}

/* Where an edge passes the layers between two boxes: the free place nearest to their middle. */
static double find_lane(const drawing *d, const box *from, const box *to)
{
    const double middle = (from->x + to->x) / 2;
    double best = middle, far = 1e9;
    if (to->layer - from->layer < 2 || is_free(d, from, to, middle)) return middle;
    for (int32_t k = 0; k < d->count; k++) {
        const box *b = &d->boxes[k];
        if (b->layer <= from->layer || b->layer >= to->layer) continue;
        for (int side = -1; side <= 1; side += 2) {
            const double x = b->x + side * (BOX / 2.0 + GAP / 2.0);
            const double off = x < middle ? middle - x : x - middle;
            if (off >= far || !is_free(d, from, to, x)) continue;
            best = x;
            far = off;
        }
    }
    return best;
}

static void write_edge(const drawing *d, const box *x, const box *b, int32_t operand, FILE *file)
{
    const double end = b->x + (operand - (b->node.operand_count - 1) / 2.0) * 14;
    const double from = x->y + TALL / 2.0, to = b->y - TALL / 2.0;
    const double bend = ROW - TALL;
    if (b->layer - x->layer < 2) {
        fprintf(file, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\"/>\n", x->x, from, x->x,
                (from + to) / 2, end, (from + to) / 2, end, to);
        return;
    }
    const double lane = find_lane(d, x, b);
    fprintf(file,
            "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1fL%.1f %.1fC%.1f %.1f %.1f %.1f "
            "%.1f %.1f\"/>\n",
            x->x, from, x->x, from + bend / 2, lane, from + bend / 2, lane, from + bend, lane,
            to - bend, lane, to - bend / 2, end, to - bend / 2, end, to);
}

static void write_edges(const drawing *d, FILE *file)
{
    fputs("<g fill=\"none\" stroke=\"#57606a\" stroke-opacity=\"0.55\">\n", file);
    for (int32_t k = 0; k < d->count; k++)
        for (int32_t n = 0; n < d->boxes[k].node.operand_count; n++) {
            const box *x = box_of(d, d->boxes[k].node.operands[n]);
            if (x) write_edge(d, x, &d->boxes[k], n, file);
        }
    fputs("</g>\n", file);
}

static void name_scope(const box *b, char name[64])
{
    snprintf(name, 64, "%.*s", b->scope_length, b->scope);
}

/* The frames of bands whose scope has a name. */
static void write_bands(const drawing *d, FILE *file)
{
    for (int band = 0; band < d->bands; band++) {
        double left = 1e9, right = 0, top = 1e9, bottom = 0;
        char scope[64] = "";
        for (int32_t k = 0; k < d->count; k++) {
            const box *b = &d->boxes[k];
            if (b->band != band) continue;
            if (!b->node.leaf) name_scope(b, scope);
            if (b->x < left) left = b->x;
            if (b->x > right) right = b->x;
            if (b->y < top) top = b->y;
            if (b->y > bottom) bottom = b->y;
        }
        if (!*scope) continue;
        fprintf(file,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"8\" "
                "fill=\"#f6f8fa\" stroke=\"#d0d7de\"/><text class=\"soft\" x=\"%.1f\" y=\"%.1f\">",
                left - BOX / 2.0 - 10, top - TALL / 2.0 - 16, right - left + BOX + 20,
                bottom - top + TALL + 24, left - BOX / 2.0 - 4, top - TALL / 2.0 - 5);
        picture_text(file, scope, 60);
        fputs("</text>\n", file);
    }
}

/* The operator, or the name, of a long one the end. */
static void write_label(const zf_node *n, FILE *file)
{
    enum { MOST = 13 };
    const char *name = *n->name ? n->name : n->op_name;
    const size_t length = strlen(name);
    if (!*n->name || length <= MOST + 1) {
        picture_text(file, name, 17);
        return;
    }
    fputs("\xE2\x80\xA6", file);
    picture_text(file, name + length - MOST, MOST);
}

static void write_box(const drawing *d, const box *b, FILE *file)
{
    const zf_node *n = &b->node;
    const bool is_new = d->new_from && n->id >= d->new_from;
    char type[96];
    type_text(n, type);
    fprintf(file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"5\" fill=\"%s\" "
            "stroke=\"#57606a\" stroke-width=\"%s\"%s/>\n",
            b->x - BOX / 2.0, b->y - TALL / 2.0, BOX, TALL, looks[look_of(n)].fill,
            is_new ? "2" : "0.8", n->recompute ? " stroke-dasharray=\"4 3\"" : "");
    fprintf(file, "<text class=\"mid\" x=\"%.1f\" y=\"%.1f\">", b->x, b->y - 3);
    if (!n->effect) fprintf(file, "%%%d ", (int)n->id);
    write_label(n, file);
    fprintf(file, "</text><text class=\"mid soft mono\" x=\"%.1f\" y=\"%.1f\">", b->x, b->y + 11);
    picture_text(file, below_label(n, type), 21);
    fputs("</text>\n", file);
}

static void write_drawing(const drawing *d, const char *head, FILE *file)
{
    double left = 1e9;
    for (int32_t k = 0; k < d->count; k++)
        if (d->boxes[k].x < left) left = d->boxes[k].x;
    fprintf(file, "<text class=\"head\" x=\"%.1f\" y=\"24\">", left - BOX / 2.0);
    picture_text(file, head, 80);
    fputs("</text>\n", file);
    write_bands(d, file);
    write_edges(d, file);
    for (int32_t k = 0; k < d->count; k++) write_box(d, &d->boxes[k], file);
}

static void free_drawing(drawing *d)
{
    free(d->boxes);
    free(d->at);
}

zf_status picture_graph_svg(const zf_graph *before, const zf_graph *after, const char *title,
                            FILE *file)
{
    drawing d[2] = {{0}};
    const bool good = (!before || (read_nodes(&d[0], before) && lay_out(&d[0], MARGIN + 10))) &&
                      read_nodes(&d[1], after) &&
                      lay_out(&d[1], before ? d[0].width + 4 * MARGIN + 10 : MARGIN + 10);
    double width = d[1].width + (before ? d[0].width + 3 * MARGIN : 0) + 2 * MARGIN + 20,
           height = (d[0].height > d[1].height ? d[0].height : d[1].height) + MARGIN, x = MARGIN;
    zf_status status = good ? ZF_OK : ZF_ERR_NOMEM;
    if (width < 420) width = 420;
    if (good) {
        d[1].new_from = before ? d[0].ids : 0;
        picture_begin(file, width, height + 30, title);
        if (before) write_drawing(&d[0], "before", file);
        write_drawing(&d[1], title, file);
        for (int k = 0; k < LOOKS; k++)
            if (d[0].seen[k] || d[1].seen[k]) x = picture_legend(file, x, height + 12, &looks[k]);
        if (before)
            fprintf(file,
                    "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\">thick border: new</text>\n", x,
                    height + 12);
        status = picture_end(file);
    }
    free_drawing(&d[0]);
    free_drawing(&d[1]);
    return status;
}

/* ------------------------------------------------------------------------------------------ dot */

/* Text in a quoted string of dot. */
static void dot_text(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        fputc(*text, file);
    }
}

static void write_dot(const drawing *d, const char *head, char prefix, FILE *file)
{
    char type[96];
    fprintf(file, "subgraph cluster_%c {\nlabel=\"", prefix);
    dot_text(file, head);
    fputs("\";\nstyle=invis;\n", file);
    for (int band = 0; band < d->bands; band++) {
        char scope[64] = "";
        for (int32_t k = 0; k < d->count; k++)
            if (d->boxes[k].band == band && !d->boxes[k].node.leaf)
                name_scope(&d->boxes[k], scope);
        if (*scope) {
            fprintf(file, "subgraph cluster_%c%d {\nlabel=\"", prefix, band);
            dot_text(file, scope);
            fputs("\";\nstyle=\"rounded,filled\";\nfillcolor=\"#f6f8fa\";\n", file);
        }
        for (int32_t k = 0; k < d->count; k++) {
            const zf_node *n = &d->boxes[k].node;
            if (d->boxes[k].band != band) continue;
            type_text(n, type);
            fprintf(file, "%c%d [label=\"%%%d ", prefix, (int)n->id, (int)n->id);
            dot_text(file, *n->name ? n->name : n->op_name);
            fprintf(file, "\\n%s\", fillcolor=\"%s\"%s];\n", below_label(n, type),
                    looks[look_of(n)].fill,
                    d->new_from && n->id >= d->new_from ? ", penwidth=2" : "");
        }
        if (*scope) fputs("}\n", file);
    }
    fputs("}\n", file);
    for (int32_t k = 0; k < d->count; k++)
        for (int32_t n = 0; n < d->boxes[k].node.operand_count; n++)
            fprintf(file, "%c%d -> %c%d;\n", prefix, (int)d->boxes[k].node.operands[n], prefix,
                    (int)d->boxes[k].node.id);
}

zf_status picture_graph_dot(const zf_graph *before, const zf_graph *after, const char *title,
                            FILE *file)
{
    drawing d[2] = {{0}};
    const bool good = (!before || (read_nodes(&d[0], before) && lay_out(&d[0], 0))) &&
                      read_nodes(&d[1], after) && lay_out(&d[1], 0);
    if (good) {
        d[1].new_from = before ? d[0].ids : 0;
        fputs("digraph zeroflow {\nnode [shape=box, style=\"rounded,filled\", fontsize=10];\n",
              file);
        if (before) write_dot(&d[0], "before", 'b', file);
        write_dot(&d[1], title, 'a', file);
        fputs("}\n", file);
    }
    free_drawing(&d[0]);
    free_drawing(&d[1]);
    if (!good) return ZF_ERR_NOMEM;
    return fflush(file) || ferror(file) ? ZF_ERR_IO : ZF_OK;
}
