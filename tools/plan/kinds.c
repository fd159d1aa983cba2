/* Which stages of a graph are alike: they have nodes of the same operators, types and shapes, in the
 * same order, and send and receive alike. The memory of one is that of the others. */
#include "plan.h"

#include <stdlib.h>

static uint64_t mixed(uint64_t digest, int64_t value)
{
    return (digest ^ (uint64_t)value) * 0x100000001b3u;
}

static void mix_node(uint64_t *digest, const zf_node *node, int tag)
{
    *digest = mixed(mixed(mixed(*digest, tag), node->op), node->dtype);
    for (int k = 0; k < node->shape.rank; k++) *digest = mixed(*digest, node->shape.dims[k]);
    *digest = mixed(*digest, node->update);
}

/* The stage of each node by its id, -1: of all; NULL: memory is lacking. */
static int32_t *stages_by_id(const zf_graph *g)
{
    int32_t most = 0, *of;
    zf_node node;
    for (int32_t at = 0; zf_graph_node(g, at, &node); at++)
        if (node.id > most) most = node.id;
    of = calloc((size_t)most + 1, sizeof *of);
    for (int32_t at = 0; of && zf_graph_node(g, at, &node); at++) of[node.id] = node.stage;
    return of;
}

/* The rank of a stage. */
static int32_t rank_of(const zf_pipe *p, int32_t stage)
{
    if (p->kind == ZF_PIPE_ZB_V && stage >= p->ranks) return 2 * p->ranks - 1 - stage;
    return stage % p->ranks;
}

bool plan_kinds(const zf_graph *g, const zf_pipe *pipe, int32_t *kind)
{
    int32_t *const of = stages_by_id(g);
    uint64_t *const digest = calloc((size_t)pipe->ranks, sizeof *digest);
    zf_node node;
    for (int32_t at = 0; of && digest && zf_graph_node(g, at, &node); at++) {
        const int32_t from = node.op == ZF_OP_send ? of[node.operands[0]] : -1;
        if (node.stage >= 0) mix_node(&digest[rank_of(pipe, node.stage)], &node, from > node.stage);
        if (from >= 0) mix_node(&digest[rank_of(pipe, from)], &node, 2 + (from > node.stage));
    }
    for (int32_t k = 0; of && digest && k < pipe->ranks; k++)
        for (kind[k] = 0; digest[kind[k]] != digest[k];) kind[k]++;
    free(digest);
    free(of);
    return of && digest;
}
