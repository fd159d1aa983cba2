/* What a step needs: nodes on which no output, update, gradient or change of a state depends are
 * removed before a graph is compiled. Inputs, parameters and states stay; an input that nothing
 * reads any more has no place in the plan (plan/memory.c), and a step does not ask for it. */

/* The node is needed, whatever reads it. */
static bool zfi_is_needed(const zf_graph *g, int32_t id)
{
    /* A bucket is where its leaves lie, which can be written and read. */
    return zfi_has(g, id, ZF_OP_EFFECT | ZF_OP_MUTATES | ZF_OP_NAMED) ||
           g->nodes[id].op == ZF_OP_bucket;
}

/* Removes them. Returns how many. */
static int32_t zfi_remove_dead(zf_graph *g)
{
    size_t count = (size_t)zfi_len(g->nodes);
    bool *live = zfi_calloc(&g->memory, count, sizeof *live);
    int32_t kept = 0, all = zfi_len(g->order);
    if (!live) return 0;
    for (int32_t i = all; zfi_down(i);) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_none) continue;
        if (zfi_is_needed(g, g->order[i])) live[g->order[i]] = true;
        for (int32_t k = 0; k < node->arg_count && live[g->order[i]]; k++)
            live[node->args[k]] = true;
    }
    for (int32_t i = 0; i < all; i++) {
        int32_t id = g->order[i];
        if (live[id]) g->order[kept++] = id;
        else if (g->nodes[id].op != ZF_OP_none) zfi_replace(g, id, 0);
    }
    if (g->order) stbds_header(g->order)->length = (size_t)kept;
    zfi_free(&g->memory, live, count * sizeof *live);
    return all - kept;
}

/* Names the inputs that nothing reads: "labels, mask". */
static void zfi_name_unread(zf_graph *g)
{
    char names[400] = "";
    size_t length = 0, count = (size_t)zfi_len(g->nodes);
    bool *read = zfi_calloc(&g->memory, count, sizeof *read);
    if (!read) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t k = 0; k < g->nodes[g->order[i]].arg_count; k++)
            read[g->nodes[g->order[i]].args[k]] = true;
    for (int32_t i = 0; i < zfi_len(g->order) && length < sizeof names - 1; i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        if (node->op == ZF_OP_input && !read[g->order[i]])
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                       length ? ", " : "", node->name);
    }
    g->unread = zfi_text_copy(&g->memory, &g->text, names, strlen(names));
    zfi_free(&g->memory, read, count * sizeof *read);
}

/* Leaves out of a step what it does not need. */
static void zfi_leave_out(zf_graph *g)
{
    g->left_out = zfi_remove_dead(g);
    if (!g->memory.failed) zfi_name_unread(g);
}
