/* delay: updates use the gradients of the step before (Ren et al. 2021, section 5.2).
 *
 * requires: an optimizer; before zf_zero
 * ensures:  an update reads its gradient, and the factor of gradients, from states, which the step
 *           then sets to its own. So of its step it needs the learning rate alone, and can run
 *           concurrent with the backward pass, which computes the next gradients
 *
 *     step       1            2            3
 *     gradient   g1 of p0     g2 of p0     g3 of p1
 *     update     none         p1 by g1     p2 by g2
 *
 * The state of the factor begins with -1, which tells updates to change nothing (ops/update.c), so
 * the first step makes no update.
 *
 * before:   advance %46     adamw %2, %9, %48, %49, %5, %46 {...}
 * after:    %60 = state "delay.scale" {value=-1} : f32[]
 *           %61 = state "delay.gradient/w" : f32[8,32]
 *           advance %46, %60
 *           adamw %2, %61, %48, %49, %5, %46, %60 {... scaled=true}
 *           delay %61, %9     delay %60, %62
 */

typedef struct zfi_delaying {
    zf_graph *graph;
    int32_t *order;  /* the order before */
    int32_t factor;  /* by which updates multiply gradients; 0: by 1 */
    int32_t scale;   /* its state */
    int32_t *delays; /* growing array: a state, a value, a state, ... */
} zfi_delaying;

/* The update reads a gradient, and not what another update has computed of one. */
static bool zfi_reads_gradient(const zf_graph *g, int32_t id)
{
    return zfi_has(g, id, ZF_OP_UPDATE) && !zfi_has(g, g->nodes[id].args[1], ZF_OP_UPDATE);
}

static void zfi_find_factor(zfi_delaying *d)
{
    zf_graph *g = d->graph;
    bool first = true;
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const int32_t id = g->order[i];
        const zfi_node *node = &g->nodes[id];
        int32_t k, factor;
        if (node->op == ZF_OP_delay)
            zfi_fail(&g->error, ZF_ERR_STAGE, "zf_delay: zf_delay has been run already");
        if (!zfi_reads_gradient(g, id)) continue;
        k = zfi_scale_arg(g, node);
        factor = k > 0 ? node->args[k] : 0;
        if (!k || (!first && factor != d->factor))
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     k ? "zf_delay: %s of \"%.100s\" multiplies gradients by another number than "
                         "the updates above"
                       : "zf_delay: %s of \"%.100s\" has no attribute scaled, by which the first "
                         "update is left out",
                     g->records[node->op]->name, g->nodes[node->args[0]].name);
        d->factor = factor;
        first = false;
    }
}

/* A new state that is set to `value`, the gradient of `param` if that is not 0, at the end of the
 * step. */
static int32_t zfi_delayed(zfi_delaying *d, const char *name, int32_t value, double begin,
                           int32_t param)
{
    zf_graph *g = d->graph;
    const zfi_node *node = &g->nodes[value];
    const int32_t state = zfi_state(g, name, node->dtype, node->shape, begin).id;
    if (state && param) g->nodes[state].role = ZFI_ROLE_GRADIENT, g->nodes[state].of = param;
    zfi_push(&g->memory, d->delays, state);
    zfi_push(&g->memory, d->delays, value);
    return state;
}

/* Lets the update read its gradient, and the factor, from states. */
static void zfi_delay_update(zfi_delaying *d, int32_t id)
{
    zf_graph *g = d->graph;
    char name[300];
    const int32_t *args = g->nodes[id].args;
    int32_t state;
    snprintf(name, sizeof name, "delay.gradient/%s", g->nodes[args[0]].name);
    state = zfi_delayed(d, name, args[1], 0, args[0]);
    if (state) zfi_scale_update(g, id, state, d->scale);
}

/* The node advances a count that an update reads. */
static bool zfi_counts_updates(const zfi_delaying *d, int32_t id)
{
    const zf_graph *g = d->graph;
    for (int32_t i = 0; i < zfi_len(d->order) && g->nodes[id].op == ZF_OP_advance; i++) {
        const zfi_node *node = &g->nodes[d->order[i]];
        for (int32_t k = 0; k < node->arg_count && zfi_has(g, d->order[i], ZF_OP_UPDATE); k++)
            if (node->args[k] == g->nodes[id].args[0]) return true;
    }
    return false;
}

/* The count of updates goes on when one is made. */
static void zfi_delay_count(zfi_delaying *d, int32_t id)
{
    zf_graph *g = d->graph;
    const int32_t args[2] = {g->nodes[id].args[0], d->scale};
    int32_t *list = zfi_bytes_copy(&g->memory, &g->text, args, sizeof args);
    if (!list) return;
    g->nodes[id].args = list;
    g->nodes[id].arg_count = 2;
}

static void zfi_run_delay(zfi_delaying *d)
{
    zf_graph *g = d->graph;
    d->order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(d->order) && !g->error.status && !g->memory.failed; i++) {
        const int32_t id = d->order[i];
        if (g->nodes[id].update && !g->in_update) {
            g->in_update = true;
            if (!d->factor) d->factor = zf_constant(g, ZF_F32, ZF_SCALAR, 1).id;
            if (d->factor) d->scale = zfi_delayed(d, "delay.scale", d->factor, -1, 0);
        }
        if (g->error.status || g->memory.failed) break;
        if (zfi_reads_gradient(g, id)) zfi_delay_update(d, id);
        else if (zfi_counts_updates(d, id)) zfi_delay_count(d, id);
        zfi_push(&g->memory, g->order, id);
    }
    for (int32_t k = 0; k < zfi_len(d->delays) && !g->error.status && !g->memory.failed; k += 2)
        zfi_append_nodes(g, delay, NULL, d->delays[k], d->delays[k + 1]);
}

ZF_API zf_status zf_delay(zf_graph *g)
{
    zfi_delaying d = {.graph = g};
    zf_status status =
        zfi_enter(g, "zf_delay", ZFI_STAGE_UPDATES, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    const char *scope;
    if (status) return status;
    if (zfi_check_dense(g, "zf_delay", "states of its size would keep their gradient"))
        return g->error.status;
    zfi_find_factor(&d);
    if (g->error.status) return g->error.status;
    scope = g->scope;
    g->scope = "";
    zfi_run_delay(&d);
    g->scope = scope;
    zfi_array_free(&g->memory, d.order);
    zfi_array_free(&g->memory, d.delays);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, 0);
}
