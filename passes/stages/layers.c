/* Which layer each node of a step belongs to, so that layers can be dealt to stages.
 *
 *     forward    by the name of its scope or parameter, if that has a number; else the last layer
 *                that it reads, or the first that reads it where it reads parameters and inputs
 *                alone: an embedding
 *     backward   by the name of the scope, which is that of its forward node; else the first layer
 *                of the gradients that it reads; of no layer before those of its readers, since
 *                gradients go from the last stage to the first
 *     update     that of the parameter or state that it writes; else that of most of what it reads
 *
 * A parameter is of the first layer that reads it, and so are its gradient and its states. What
 * reads inputs and constants alone is of all layers. */

enum { ZFI_LAYER_ALL = -1, ZFI_LAYER_FIRST_READER = -2 };

/* A numbered prefix of names: "h.3". */
typedef struct zfi_numbered_layer {
    const char *name;
    size_t length;
    double flops; /* of both passes */
} zfi_numbered_layer;

typedef struct zfi_layers {
    zf_graph *graph;
    int32_t nodes;            /* of the graph when layers were found */
    zfi_numbered_layer *list; /* growing */
    int32_t *of;              /* by node: its layer, or one of the above */
    bool *forward;            /* by node: the loss depends on it */
    int32_t *home; /* by node, of a gradient that another layer saves: 1 + that of its parameter */
} zfi_layers;

static void zfi_mark_forward(zfi_layers *l)
{
    const zf_graph *g = l->graph;
    bool some = false;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_output && node->role == ZFI_ROLE_LOSS)
            l->forward[node->args[0]] = some = true;
    }
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (!some) l->forward[g->order[i]] = true; /* nothing is trained */
        for (int32_t k = 0; k < node->arg_count && l->forward[g->order[i]]; k++)
            l->forward[node->args[k]] = true;
    }
}

/* The layer of that name, which a forward node adds; -1: there is none. */
static int32_t zfi_layer_called(zfi_layers *l, const char *name, bool add)
{
    const size_t length = name ? zfi_numbered(name) : 0;
    if (!length) return -1;
    for (int32_t k = zfi_len(l->list); k-- > 0;)
        if (l->list[k].length == length && !memcmp(l->list[k].name, name, length)) return k;
    if (!add || !zfi_push(&l->graph->memory, l->list, ((zfi_numbered_layer){name, length, 0})))
        return -1;
    return zfi_len(l->list) - 1;
}

/* The layer of a node by what it reads: the last, or, of the gradients that a node of the backward
 * pass reads, the first. */
static int32_t zfi_layer_of_operands(const zfi_layers *l, int32_t id)
{
    const zfi_node *node = &l->graph->nodes[id];
    int32_t last = ZFI_LAYER_ALL, first = INT32_MAX;
    bool waits = false;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t of = l->of[node->args[k]];
        waits |= of == ZFI_LAYER_FIRST_READER;
        if (of > last) last = of;
        if (of >= 0 && of < first && !l->forward[node->args[k]]) first = of;
    }
    if (first < INT32_MAX && !l->forward[id]) return first;
    return last < 0 && waits ? ZFI_LAYER_FIRST_READER : last;
}

/* The layer where the update section reads a value. */
static int32_t zfi_layer_read(const zfi_layers *l, int32_t id)
{
    return l->home[id] ? l->home[id] - 1 : l->of[id];
}

/* The operand of a layer that has the most elements, of equal ones that of the first layer; -1:
 * none has a layer. */
static int32_t zfi_largest_operand(const zfi_layers *l, const zfi_node *node)
{
    const zf_graph *g = l->graph;
    int32_t largest = -1;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t id = node->args[k], of = zfi_layer_read(l, id);
        const int64_t count = zfi_node_count(&g->nodes[id]),
                      most = largest < 0 ? -1 : zfi_node_count(&g->nodes[largest]);
        if (of >= 0 && (count > most || (count == most && of < zfi_layer_read(l, largest))))
            largest = id;
    }
    return largest;
}

/* The same of an update: that of what it writes, or of most of what it reads. */
static int32_t zfi_layer_of_update(const zfi_layers *l, int32_t id)
{
    const zf_graph *g = l->graph;
    const zfi_node *node = &g->nodes[id];
    const uint32_t written = zfi_written_args(g, node);
    const int32_t largest = zfi_largest_operand(l, node);
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if (written >> k & 1) return l->of[node->args[k]];
    return largest < 0 ? ZFI_LAYER_ALL : zfi_layer_read(l, largest);
}

static int32_t zfi_layer_of_leaf(const zfi_layers *l, const zfi_node *leaf)
{
    if (leaf->op == ZF_OP_param) return ZFI_LAYER_FIRST_READER;
    return leaf->of ? l->of[leaf->of] : leaf->arg_count ? l->of[leaf->args[0]] : ZFI_LAYER_ALL;
}

static int32_t zfi_layer_of_node(zfi_layers *l, int32_t id)
{
    const zf_graph *g = l->graph;
    const zfi_node *node = &g->nodes[id];
    int32_t layer;
    if (zfi_has(g, id, ZF_OP_LEAF)) return zfi_layer_of_leaf(l, node);
    if (node->op == ZF_OP_output) return ZFI_LAYER_ALL;
    if (node->op == ZF_OP_saved || node->op == ZF_OP_gradient) return l->of[node->args[0]];
    if (node->update ||
        (!(g->records[node->op]->traits & ZF_OP_COLLECTIVE) && zfi_written_args(g, node)))
        return zfi_layer_of_update(l, id);
    layer = zfi_layer_called(l, zfi_layer_name(g, node), l->forward[id]);
    return layer < 0 ? zfi_layer_of_operands(l, id) : layer;
}

/* What waits for its first reader gets its layer; readers come after it. */
static void zfi_settle_readers(zfi_layers *l)
{
    const zf_graph *g = l->graph;
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (l->of[id] == ZFI_LAYER_FIRST_READER) l->of[id] = 0; /* nothing reads it */
        if (l->of[id] < ZFI_LAYER_FIRST_READER) l->of[id] = ZFI_LAYER_FIRST_READER - l->of[id] - 1;
        if (l->of[id] < 0 || node->update || node->op == ZF_OP_gradient) continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t *of = &l->of[node->args[k]];
            const int32_t known = ZFI_LAYER_FIRST_READER - l->of[id] - 1; /* until its own turn */
            if (*of == ZFI_LAYER_FIRST_READER || (*of < ZFI_LAYER_FIRST_READER && *of < known))
                *of = known;
        }
    }
}

/* The gradient of a parameter, before the update section scales it, is made where the parameter
 * is. What a node of another layer saves is sent there. */
static void zfi_settle_gradients(zfi_layers *l)
{
    const zf_graph *g = l->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *mark = &g->nodes[g->order[i]];
        int32_t x = mark->op == ZF_OP_gradient ? mark->args[1] : -1;
        while (x > 0 && g->nodes[x].update) x = zfi_largest_operand(l, &g->nodes[x]);
        if (x <= 0 || l->forward[x]) continue;
        if (g->nodes[x].op == ZF_OP_saved) l->home[x] = l->of[mark->args[0]] + 1;
        else l->of[x] = l->of[mark->args[0]];
    }
}

/* A value of the backward pass is of no layer before those of its readers there: an activation in
 * another shape, of which the gradient of a weight is made, is where that is. */
static void zfi_settle_backward(zfi_layers *l)
{
    const zf_graph *g = l->graph;
    for (int32_t i = zfi_len(g->order); i-- > 0;) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        if (node->update || l->forward[id] || node->op == ZF_OP_gradient) continue;
        for (int32_t k = 0; k < node->arg_count; k++) {
            const int32_t x = node->args[k];
            if (l->of[x] >= 0 && l->of[x] < l->of[id] && !l->forward[x] &&
                !zfi_has(g, x, ZF_OP_LEAF))
                l->of[x] = l->of[id];
        }
    }
}

/* Finds all layers, in the order of the forward pass, and the layer of each node. */
static void zfi_find_numbered_layers(zfi_layers *l)
{
    const zf_graph *g = l->graph;
    const int32_t end = zfi_len(g->order);
    int32_t update = 0;
    zfi_mark_forward(l);
    while (update < end && !g->nodes[g->order[update]].update) update++;
    for (int32_t i = 0; i < update; i++) l->of[g->order[i]] = zfi_layer_of_node(l, g->order[i]);
    for (int32_t i = update; i < end; i++) l->of[g->order[i]] = ZFI_LAYER_ALL;
    if (!zfi_len(l->list)) return;
    zfi_settle_readers(l);
    zfi_settle_gradients(l);
    zfi_settle_backward(l);
    for (int32_t i = 0; i < end; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        const bool leaf = zfi_has(g, id, ZF_OP_LEAF) && node->op != ZF_OP_param;
        if (node->update || leaf || node->op == ZF_OP_gradient || node->op == ZF_OP_saved)
            l->of[id] = zfi_layer_of_node(l, id);
        if (!node->update && l->of[id] >= 0) l->list[l->of[id]].flops += zfi_node_flops(g, node);
    }
}

static bool zfi_layers_begin(zfi_layers *l, zf_graph *g)
{
    const size_t count = (size_t)zfi_len(g->nodes);
    *l = (zfi_layers){.graph = g, .nodes = (int32_t)count};
    l->of = zfi_calloc(&g->memory, count, sizeof *l->of);
    l->forward = zfi_calloc(&g->memory, count, sizeof *l->forward);
    l->home = zfi_calloc(&g->memory, count, sizeof *l->home);
    return l->of && l->forward && l->home;
}

static void zfi_layers_end(zfi_layers *l)
{
    const size_t count = (size_t)l->nodes;
    zfi_free(&l->graph->memory, l->of, count * sizeof *l->of);
    zfi_free(&l->graph->memory, l->forward, count * sizeof *l->forward);
    zfi_free(&l->graph->memory, l->home, count * sizeof *l->home);
    zfi_array_free(&l->graph->memory, l->list);
}
