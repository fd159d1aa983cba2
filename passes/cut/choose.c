/* Choose: which classes zf_cut cuts. A class is cut if it may be at each of its places, if a product
 * sums over it with a parameter (the second layer of two), and if no value has a dimension of
 * another class that is cut. */

static bool zfi_is_chosen(zfi_parallel *c, int32_t node, int32_t d)
{
    return c->at[zfi_class_of(c, node, d)].chosen;
}

/* The value is flat, and has those of an operand that is cut. */
static bool zfi_is_flat_and_cut(zfi_parallel *c, int32_t node)
{
    bool cut = false;
    for (int32_t d = 0; c->flat[node] && d < c->graph->nodes[c->flat[node]].shape.rank; d++)
        cut |= zfi_is_chosen(c, c->flat[node], d);
    return cut;
}

/* Chains the places of each class. */
static void zfi_parallel_chain(zfi_parallel *c)
{
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        for (int32_t d = 0; d < g->nodes[g->order[i]].shape.rank; d++) {
            const int32_t root = zfi_class_of(c, g->order[i], d);
            c->next[g->order[i] * ZF_MAX_RANK + d] = c->at[root].first;
            c->at[root].first = 1 + g->order[i] * ZF_MAX_RANK + d;
        }
}

/* A value has a dimension of the class and one of another that is cut, or two of the class. */
static bool zfi_parallel_meets(zfi_parallel *c, int32_t root)
{
    for (int32_t place = c->at[root].first; place; place = c->next[place - 1]) {
        const int32_t node = (place - 1) / ZF_MAX_RANK;
        int32_t cut = 0;
        for (int32_t d = 0; d < c->graph->nodes[node].shape.rank; d++) {
            const int32_t its = zfi_class_of(c, node, d);
            cut += its == root || c->at[its].chosen;
        }
        if (cut > 1) return true;
    }
    return false;
}

static int32_t zfi_parallel_choose(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    int32_t chosen = 0;
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++) {
            const int32_t root = zfi_class_of(c, g->params[k], d);
            zfi_cut_class *its = &c->at[root];
            if (its->chosen || its->why || !its->second || zfi_parallel_meets(c, root)) continue;
            if (its->most % c->d.parts)
                zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                         "zf_cut: dimension %d of \"%.200s\" may be cut into divisors of %lld, and "
                         "there are %d ranks",
                         (int)d, g->nodes[g->params[k]].name, (long long)its->most,
                         (int)c->d.parts);
            its->chosen = true;
            chosen++;
        }
    return chosen;
}

/* The error that nothing can be cut, with what keeps the first candidate. */
static zf_status zfi_parallel_none(zfi_parallel *c)
{
    zf_graph *g = c->graph;
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        for (int32_t d = 0; d < g->nodes[g->params[k]].shape.rank; d++) {
            const zfi_cut_class *its = &c->at[zfi_class_of(c, g->params[k], d)];
            if (its->second && its->why)
                return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                                "zf_cut: no layer can be cut: dimension %d of \"%.200s\" is kept "
                                "by %s %%%d",
                                (int)d, g->nodes[g->params[k]].name,
                                g->records[g->nodes[its->why].op]->name, (int)its->why);
        }
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_cut: no layer can be cut: no product with a parameter follows another");
}
