/* Tokens: how zf_context has each value on the ranks along context, or zf_cut between two layers on
 * those along tensor, and how each node is cut. All shapes are those of the whole sequences; the
 * graph does not change here.
 *
 *     cut at its tokens       what rows of tokens are computed by: most of a model
 *     cut at another one      attention of ZF_CONTEXT_ULYSSES: heads, of all tokens
 *     whole                   parameters, and what no letter allows to be cut
 *
 * A dimension of tokens follows from the inputs by the letters of operators (graph/cuts.c); a
 * reshape may make it one of several sequences, one after the other. */

enum { ZFI_UNDEALT = -1 };

/* Of how many ranks before and after its own a rank gets something; 0 and 0: of all. */
typedef struct zfi_nearby {
    int32_t before, after;
} zfi_nearby;

typedef struct zfi_tokens {
    zf_shape shape;
    int8_t one;       /* 1 + the dimension of one element that is cut, over tensor; 0: none is */
    int64_t run;      /* elements of dimension `dim` that are one sequence's */
    int8_t dim;       /* the dimension of tokens; -1: it has none */
    int8_t cut;       /* the dimension of which a rank has a part; ZFI_UNDEALT */
    bool by_letter;   /* the node is cut by a letter: `wants`, `divided` and `shaped` are set */
    bool sums;        /* its value is a part of a sum */
    bool wide, narrow; /* some readers make f32 of it; some do not */
    bool counted;     /* it adds up the sections of a rank by itself */
    bool bare;        /* it is a product that sums over tokens, which becomes one with sections */
    bool light;       /* it is made of inputs alone: each rank has all of it */
    bool completes;   /* it adds what ranks have of a sum, and gives each its tokens */
    bool later;       /* sections of its sum are made between layers of ranks along tensor */
    int32_t wants;    /* where c->wants has the dimensions of its operands, as `cut` */
    uint32_t divided; /* attributes that are those of a part */
    int32_t shaped;   /* the attribute that is the shape of its result; -1 */
    int8_t first, all; /* attributes: the number of its first row, and all rows; -1: it has none */
    int64_t rows;      /* that are all */
    bool scattered;    /* its sum is cut at its tokens: each rank makes a part of it */
    int32_t of;       /* what it is a reshape of; 0: it is none */
    int32_t flat;     /* an operand that it has all values of; 0 */
    /* On a rank: */
    int32_t id;       /* the node that has it as `cut` says; 0: its own */
    int32_t as[2];    /* nodes that have it in other ways */
    int8_t as_cut[2];
    bool as_back[2];  /* for the backward pass */
    zfi_nearby as_near[2];
    int32_t pieces, piece; /* of a node in sections: how many, and where c->pieces has them */
    zfi_nearby sees;       /* the ranks of whose keys its queries, of attention, see some */
} zfi_tokens;

typedef struct zfi_dealing {
    zf_graph *graph;
    zf_context_desc d;
    int32_t over;     /* the axis */
    int64_t sequence; /* its tokens */
    bool between;  /* layers that ranks along tensor share; or, of zf_context: */
    int32_t shares; /* sections of tokens there, of each of its own, that are dealt later; 0.
                     * Between layers: zf_context has dealt tokens before */
    bool *forward;        /* by node: the loss depends on it; NULL: where `between` is not set */
    bool back; /* what is dealt now is for the backward pass */
    zfi_nearby near; /* and is seen by queries so far */
    bool rows; /* rows that are counted are cut, each with its number */
    zfi_tokens *at;   /* by node */
    int8_t *wants;
    int32_t *pieces;
    int32_t count; /* of nodes */
} zfi_dealing;

/* A rank's part is two halves of it. */
static bool zfi_deals_zigzag(const zfi_dealing *c) { return c->d.kind == ZF_CONTEXT_ZIGZAG; }

/* In how many runs a rank's part lies in the whole. */
static int32_t zfi_runs_of_part(const zfi_dealing *c)
{
    return zfi_deals_zigzag(c) && c->d.parts > 1 ? 2 : 1;
}

/* The node is a product that may sum in sections: in one section now, perhaps since zf_context has
 * left it so. */
static bool zfi_may_be_bare(const zfi_dealing *c, const zfi_node *node)
{
    const zf_attribute *sections = zfi_attribute_of(c->graph, node, "sections");
    return node->arg_count <= 2 && (zfi_may_have_sections(c->graph, node) ||
                                    (c->between && node->later && sections));
}

/* The cuts of a node; `bare`: those of a product that sums in sections, with nothing after it. */
static bool zfi_tokens_cuts(const zfi_dealing *c, int32_t id, bool bare, zfi_cuts *cuts)
{
    zfi_node node = c->graph->nodes[id];
    const zfi_record *record = c->graph->records[node.op];
    zf_attribute *of = zfi_attribute_in(record, node.attributes, "of");
    if (of && !of->i && c->rows) of->i = c->sequence; /* as it becomes */
    if (!bare) return zfi_cut_of(c->graph, &node, cuts);
    if (!zfi_may_be_bare(c, &node)) return false;
    zfi_attribute_in(record, node.attributes, "sections")->i = c->d.sections;
    zfi_attribute_in(record, node.attributes, "wide")->i = 1;
    return zfi_cut_of(c->graph, &node, cuts);
}

/* ------------------------------------------------------------------------------------- letters */

/* A value has the letter. */
static bool zfi_has_letter(const zfi_cuts *cuts, int32_t value, int32_t l)
{
    for (int32_t d = 0; d < ZF_MAX_RANK; d++)
        if (cuts->given[value] && cuts->at[value][d] == l) return true;
    return false;
}

/* The letter may be cut into sections. Of rows that are counted each has a row of the result, which
 * those of a table have not. */
static bool zfi_letter_fits(const zfi_dealing *c, const zfi_cuts *cuts, int32_t l)
{
    return l >= 0 && !cuts->letter[l].whole && !(c->between && cuts->letter[l].counted) &&
           (cuts->letter[l].first < 0 ||
            (c->rows && zfi_has_letter(cuts, ZFI_CUT_RESULT, l))) &&
           zfi_cut_fits(&cuts->letter[l], c->d.sections);
}

/* The letter of tokens, where it is that of all operands that have tokens; -1: it is not, or not to
 * be cut. */
static int32_t zfi_letter_of_tokens(const zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts)
{
    int32_t l = -1;
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++) {
        const int8_t dim = c->at[node->args[k]].dim;
        if (dim < 0) continue;
        if (!cuts->given[k] || cuts->at[k][dim] < 0) return -1;
        if (l >= 0 && cuts->at[k][dim] != l) return -1;
        l = cuts->at[k][dim];
    }
    return zfi_letter_fits(c, cuts, l) ? l : -1;
}

/* Sections of a dimension of a value that ranks along tensor have besides: those of a rank, whose
 * heads are fewer with more ranks. What is cut does not depend on their number. */
static int64_t zfi_shares_of(const zfi_dealing *c, int32_t id, int32_t d)
{
    return c->graph->nodes[id].shared >> d & 1 ? zfi_max(c->graph->shares, 1) : 1;
}

/* The letter may be cut into sections of each of `shares` parts. */
static bool zfi_letter_is_shared(const zfi_dealing *c, const zfi_cuts *cuts, int32_t l,
                                 int64_t shares)
{
    return zfi_cut_fits(&cuts->letter[l], shares * c->d.sections);
}

/* The letter along which all operands that are cut are cut already, and the result would be; -1. */
static int32_t zfi_letter_of_all(const zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts)
{
    int32_t l = -1;
    int64_t shares = 1;
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++) {
        const zfi_tokens *x = &c->at[node->args[k]];
        if (x->cut == ZFI_UNDEALT) continue;
        if (x->cut == x->dim || !cuts->given[k]) return -1;
        if (l >= 0 && cuts->at[k][x->cut] != l) return -1;
        l = cuts->at[k][x->cut];
        shares = zfi_max(shares, zfi_shares_of(c, node->args[k], x->cut));
    }
    return zfi_letter_fits(c, cuts, l) && zfi_has_letter(cuts, ZFI_CUT_RESULT, l) &&
                   zfi_letter_is_shared(c, cuts, l, shares)
               ? l
               : -1;
}

/* The letter of the first operand's tokens, where the result has it: rows of attention, for which
 * other operands are whole; -1: it is not to be cut. */
static int32_t zfi_letter_of_rows(const zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts)
{
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++) {
        const int8_t dim = c->at[node->args[k]].dim;
        const int32_t l = dim >= 0 && cuts->given[k] ? cuts->at[k][dim] : -1;
        if (dim < 0) continue;
        return zfi_letter_fits(c, cuts, l) && zfi_has_letter(cuts, ZFI_CUT_RESULT, l) ? l : -1;
    }
    return -1;
}

/* A letter of the first operand that is cut, which has tokens, other than these and examples, that
 * the result has too: heads; -1: there is none. Attention has no other choice. */
static int32_t zfi_letter_of_heads(const zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts)
{
    const bool product = c->graph->records[node->op]->traits & ZF_OP_PRODUCT;
    int32_t k = 0;
    while (k < node->arg_count && c->at[node->args[k]].cut == ZFI_UNDEALT) k++;
    if (k == node->arg_count || k >= ZFI_CUT_RESULT || !cuts->given[k] ||
        c->at[node->args[k]].dim < 0)
        return -1;
    for (int32_t d = c->at[node->args[k]].shape.rank; zfi_down(d) && d;) {
        const int32_t l = cuts->at[k][d];
        if (d != c->at[node->args[k]].dim && zfi_letter_fits(c, cuts, l) &&
            (product || zfi_letter_is_shared(c, cuts, l, zfi_shares_of(c, node->args[k], d))) &&
            (cuts->flat[ZFI_CUT_RESULT][0] || zfi_has_letter(cuts, ZFI_CUT_RESULT, l)))
            return l;
    }
    return -1;
}

/* ---------------------------------------------------------------------------------- the result */

/* Notes the shape of a node's value. */
static void zfi_tokens_shape(zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    c->at[id].shape = node->shape;
    c->at[id].one = (int8_t)zfi_cut_to_one(&node->shape, &node->spread);
}

/* Where a value of the node has tokens: by the letter that an operand has them by. What lies
 * together in the part of a rank, as rows of experts do, is as one sequence. */
static void zfi_tokens_label(const zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts,
                             int32_t value, zfi_tokens *y)
{
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT && y->dim < 0; k++) {
        const zfi_tokens *x = &c->at[node->args[k]];
        if (x->dim < 0 || !cuts->given[k] || cuts->at[k][x->dim] < 0) continue;
        for (int32_t d = 0; d < y->shape.rank; d++) {
            const bool together = cuts->given[value] && cuts->together[value][d];
            if (!cuts->given[value] || cuts->at[value][d] != cuts->at[k][x->dim]) continue;
            if (together && !c->between) y->dim = (int8_t)d, y->run = y->shape.dims[d];
            else if (!together && !cuts->together[k][x->dim] &&
                     y->shape.dims[d] == x->shape.dims[x->dim])
                y->dim = (int8_t)d, y->run = x->run;
        }
    }
}

/* A sum of ranks that has tokens of its own: keys, of sums over queries. Not of the first
 * dimension, along which a collective is flat. */
static bool zfi_is_scattered(const zfi_tokens *y)
{
    return y->dim > 0 || (!y->dim && y->run != y->shape.dims[0] && y->shape.rank < ZF_MAX_RANK);
}

/* How a value of the node is, where the node is cut by a letter; -1: it is whole. */
static void zfi_tokens_cut(const zfi_dealing *c, const zfi_cuts *cuts, int32_t l, int32_t value,
                           zfi_tokens *y)
{
    for (int32_t d = 0; d < y->shape.rank && l >= 0; d++)
        if (cuts->given[value] && cuts->at[value][d] == l) y->cut = (int8_t)d;
    y->sums = l >= 0 && y->cut == ZFI_UNDEALT && zfi_cut_sums(cuts, l, value);
    y->scattered = y->sums && c->d.kind != ZF_CONTEXT_ULYSSES && zfi_is_scattered(y);
    if (y->scattered) y->cut = y->dim;
}

/* Notes how the node wants its operands: those that have the letter are cut along it. */
static void zfi_tokens_wants(zfi_dealing *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    c->at[id].wants = (int32_t)zfi_len(c->wants);
    for (int32_t k = 0; k < node->arg_count; k++) {
        zfi_tokens *x = &c->at[node->args[k]];
        int8_t want = ZFI_UNDEALT;
        for (int32_t d = 0; d < x->shape.rank && k < ZFI_CUT_RESULT; d++)
            if (cuts->given[k] && cuts->at[k][d] == l)
                want = (int8_t)d;
        zfi_push(&g->memory, c->wants, want);
    }
}

/* An operand without tokens of its own has them where others do: positions, losses' labels. */
static void zfi_tokens_give(zfi_dealing *c, const zfi_node *node, const zfi_cuts *cuts, int32_t l)
{
    int64_t run = 0;
    for (int32_t k = 0; k < node->arg_count; k++)
        if (c->at[node->args[k]].dim >= 0) run = c->at[node->args[k]].run;
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++) {
        zfi_tokens *x = &c->at[node->args[k]];
        for (int32_t d = 0; d < x->shape.rank && x->dim < 0 && x->cut == ZFI_UNDEALT; d++)
            if (cuts->given[k] && cuts->at[k][d] == l) x->dim = (int8_t)d, x->run = run;
    }
}

/* The node adds up more over the letter than it reads: to gather that is less. */
static bool zfi_sum_is_larger(const zfi_dealing *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    int64_t most = 0;
    for (int32_t k = 0; k < node->arg_count && k < ZFI_CUT_RESULT; k++)
        if (zfi_has_letter(cuts, k, l))
            most = zfi_max(most, zfi_node_count(&g->nodes[node->args[k]]));
    for (int32_t v = ZFI_CUT_RESULT; v < ZFI_CUT_VALUES; v++) {
        const int32_t value = zfi_parallel_value(g, id, v);
        if (value && zfi_cut_sums(cuts, l, v) && zfi_node_count(&g->nodes[value]) > most)
            return true;
    }
    return false;
}

/* The node adds up over the letter of tokens all that a rank has: zf_context has made the sections,
 * or the sum is larger than what it reads. */
static bool zfi_sums_whole(const zfi_dealing *c, int32_t id, const zfi_cuts *cuts, int32_t l)
{
    bool sums = false;
    if (!c->shares) return zfi_sum_is_larger(c, id, cuts, l);
    for (int32_t v = ZFI_CUT_RESULT; v < ZFI_CUT_VALUES; v++)
        sums |= zfi_parallel_value(c->graph, id, v) && zfi_cut_sums(cuts, l, v);
    return sums && !c->graph->nodes[id].later;
}

/* ---------------------------------------------------------------------------------- each node */

/* The letter of counted rows, where there are too few heads: of a rotation. */
static int32_t zfi_choose_rows(zfi_dealing *c, int32_t id, zfi_cuts *cuts)
{
    int32_t l;
    c->rows = true;
    l = zfi_tokens_cuts(c, id, false, cuts)
            ? zfi_letter_of_rows(c, &c->graph->nodes[id], cuts)
            : -1;
    c->rows = false;
    return l;
}

/* Chooses the letter by which the node is cut. */
static int32_t zfi_tokens_choose(zfi_dealing *c, int32_t id, zfi_cuts *cuts)
{
    const zfi_node *node = &c->graph->nodes[id];
    const bool plain = zfi_tokens_cuts(c, id, false, cuts);
    int32_t l = plain && !c->between ? zfi_letter_of_all(c, node, cuts) : -1;
    if (l >= 0) return l;
    l = plain ? zfi_letter_of_tokens(c, node, cuts) : -1;
    if (l < 0 && zfi_tokens_cuts(c, id, true, cuts)) {
        l = zfi_letter_of_tokens(c, node, cuts);
        c->at[id].bare = l >= 0;
    }
    if (l >= 0 && c->between && zfi_sums_whole(c, id, cuts, l)) l = -1, c->at[id].bare = false;
    if (l >= 0) zfi_tokens_give(c, node, cuts, l);
    if (l >= 0 || c->between) return l;
    if (!zfi_tokens_cuts(c, id, false, cuts)) return -1;
    if (c->rows) return zfi_letter_of_rows(c, node, cuts);
    l = zfi_letter_of_heads(c, node, cuts);
    return l >= 0 || zfi_has(c->graph, id, ZF_OP_PRODUCT) ? l : zfi_choose_rows(c, id, cuts);
}

/* ----------------------------------------------------------------------------- between layers */

/* A value of inputs and constants alone. */
static bool zfi_is_light(const zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    bool light = node->op != ZF_OP_param && node->op != ZF_OP_state && !node->update;
    for (int32_t k = 0; k < node->arg_count; k++) light = light && c->at[node->args[k]].light;
    return light;
}

/* The node is computed where the tokens are: it is of no layer that ranks share, and reads a part
 * of them, or has inputs meet something else; or its sections are made here. */
static bool zfi_is_on_tokens(const zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    bool cut = false, input = false, other = false;
    double value;
    if (c->between && (node->layer || node->later)) return node->later;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_tokens *x = &c->at[node->args[k]];
        cut |= x->cut != ZFI_UNDEALT, input |= x->light && x->dim >= 0;
        other |= !x->light && !zfi_uniform(c->graph, node->args[k], &value);
    }
    return cut || (input && other);
}

/* Where the values of a node that is whole have tokens. */
static void zfi_tokens_whole(zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    zfi_cuts cuts;
    if (!zfi_tokens_cuts(c, id, false, &cuts)) return;
    zfi_tokens_label(c, node, &cuts, ZFI_CUT_RESULT, &c->at[id]);
    for (int32_t k = 0; k < ZF_MAX_SAVED; k++) {
        zfi_tokens *s = &c->at[node->saved[k]];
        if (!node->saved[k]) continue;
        zfi_tokens_shape(c, node->saved[k]);
        zfi_tokens_label(c, node, &cuts, ZFI_CUT_RESULT + 1 + k, s);
    }
}

/* A sum that is complete: of its tokens each rank takes a part. */
static void zfi_tokens_complete(zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    zfi_tokens *y = &c->at[id];
    if (c->d.parts > 1) y->dim = c->at[node->args[0]].dim, y->run = c->at[node->args[0]].run;
    if (y->dim < 0 || y->cut != ZFI_UNDEALT || y->run % c->d.sections ||
        y->run <= c->d.sections)
        return;
    y->cut = y->dim, y->completes = c->d.parts > 1;
}

/* An operand is cut at its tokens. */
static bool zfi_reads_tokens(const zfi_dealing *c, const zfi_node *node)
{
    for (int32_t k = 0; k < node->arg_count; k++) {
        const zfi_tokens *x = &c->at[node->args[k]];
        if (x->cut != ZFI_UNDEALT && x->cut == x->dim) return true;
    }
    return false;
}

/* Heads of which there are too few for the sections that share them. */
static void zfi_tokens_refuse_heads(zfi_dealing *c, int32_t id, int64_t heads)
{
    zf_graph *g = c->graph;
    const int32_t ranks = zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_TENSOR),
                  all = ranks > 1 ? ranks : 1, shares = all * (g->shares > 1 ? g->shares : 1);
    const zf_attribute *few = zfi_attribute_of(g, &g->nodes[id], "kv_heads");
    char of_keys[60] = "", tensor[60] = "";
    if (few && few->i && few->i != heads)
        snprintf(of_keys, sizeof of_keys, " and %lld of keys", (long long)(few->i * all));
    if (shares > 1) snprintf(tensor, sizeof tensor, " times %d along tensor", (int)shares);
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "zf_context: %s %%%d has %lld heads%s, which %d sections along context%s do not "
             "divide: fewer sections do, or kind=gather, zigzag or ring, which share tokens",
             g->records[g->nodes[id].op]->name, (int)id, (long long)(heads * all), of_keys,
             (int)c->d.sections, tensor);
}

/* What draws random numbers, or multiplies heads of which there are too few, is refused: whole, it
 * would be computed by each rank. */
static void zfi_tokens_refuse(zfi_dealing *c, int32_t id)
{
    zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const char *name = g->records[node->op]->name;
    const zf_attribute *p = zfi_attribute_of(g, node, "p"),
                       *block = zfi_attribute_of(g, node, "block"),
                       *heads = zfi_attribute_of(g, node, "heads");
    const bool draws = p ? p->f > 0 : zfi_node_stream(g, node) >= 0,
               multiplies = zfi_has(g, id, ZF_OP_PRODUCT) && zfi_reads_tokens(c, node);
    if (c->d.kind == ZF_CONTEXT_ULYSSES && block && block->i && zfi_reads_tokens(c, node))
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_context: %s %%%d has a block mask, which is not cut by heads: kind=gather or "
                 "kind=zigzag cuts it by its queries",
                 name, (int)id);
    else if (c->d.kind == ZF_CONTEXT_ULYSSES && heads && (multiplies || draws))
        zfi_tokens_refuse_heads(c, id, heads->i);
    else if (multiplies)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_context: %s %%%d is not to be cut by the tokens of its first operand, into %d "
                 "parts",
                 name, (int)id, (int)c->d.sections);
    else if (draws)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_context: %s %%%d draws random numbers, which are those of a whole tensor: it "
                 "is not cut over context",
                 name, (int)id);
}

/* A block mask is of all keys, and a ring has some at a time. */
static void zfi_tokens_refuse_blocks(zfi_dealing *c, int32_t id)
{
    const zf_attribute *block = zfi_attribute_of(c->graph, &c->graph->nodes[id], "block");
    if (c->d.kind == ZF_CONTEXT_RING && block && block->i)
        zfi_fail(&c->graph->error, ZF_ERR_ARGUMENT,
                 "zf_context: %s %%%d has a block mask, of which a ring has no pieces: kind=gather or "
                 "kind=zigzag has them",
                 c->graph->records[c->graph->nodes[id].op]->name, (int)id);
}

/* A sequence, or each of `pieces` of it, does not make sections of several tokens. */
static void zfi_refuse_tokens(zf_graph *g, int64_t sequence, int32_t pieces, int32_t sections)
{
    char of[60] = "";
    if (pieces > 1) snprintf(of, sizeof of, " each of %d sections along context,", (int)pieces);
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "zf_cut: sequences of %lld tokens, dimension 1 of the first input that has one,%s are "
             "not cut into %d sections of 2 tokens or more: tokens=whole leaves them whole",
             (long long)sequence, of, (int)sections);
}

static void zfi_tokens_decide(zfi_dealing *c, int32_t id)
{
    const zfi_node *node = &c->graph->nodes[id];
    zfi_tokens *y = &c->at[id];
    zfi_cuts cuts;
    int32_t l;
    if (node->update || zfi_has(c->graph, id, ZF_OP_EFFECT)) return;
    const bool on = zfi_is_on_tokens(c, id);
    if (!on && !c->between) return;
    l = on ? zfi_tokens_choose(c, id, &cuts) : -1;
    if (l < 0 && c->between) {
        zfi_tokens_whole(c, id);
        if (node->later) zfi_refuse_tokens(c->graph, c->sequence, 1, c->d.sections);
        return;
    }
    if (l < 0) zfi_tokens_refuse(c, id);
    else zfi_tokens_refuse_blocks(c, id);
    y->counted = l >= 0 && cuts.letter[l].counted;
    if (!c->between && l < 0 && node->op == ZF_OP_expert_rows && ZF_INT(node, expert_rows, parts))
        zfi_fail(&c->graph->error, ZF_ERR_ARGUMENT,
                 "zf_context: expert_rows %%%d has choices that are not of the tokens of sequences",
                 (int)id);
    y->later = c->between ? node->later
                          : c->shares && !node->layer && !y->counted &&
                                l == zfi_letter_of_tokens(c, node, &cuts) &&
                                !zfi_sum_is_larger(c, id, &cuts, l);
    if (l < 0 && !zfi_tokens_cuts(c, id, false, &cuts)) return;
    zfi_tokens_label(c, node, &cuts, ZFI_CUT_RESULT, y);
    if (l < 0) return;
    zfi_tokens_wants(c, id, &cuts, l);
    zfi_tokens_cut(c, &cuts, l, ZFI_CUT_RESULT, y);
    y->by_letter = true, y->divided = cuts.letter[l].divided, y->shaped = cuts.shape;
    y->first = cuts.letter[l].first, y->all = cuts.letter[l].of, y->rows = cuts.letter[l].size;
    for (int32_t k = 0; k < ZF_MAX_SAVED; k++) {
        zfi_tokens *s = &c->at[node->saved[k]];
        if (!node->saved[k]) continue;
        zfi_tokens_shape(c, node->saved[k]);
        s->later = y->later;
        zfi_tokens_label(c, node, &cuts, ZFI_CUT_RESULT + 1 + k, s);
        zfi_tokens_cut(c, &cuts, l, ZFI_CUT_RESULT + 1 + k, s);
    }
}

/* The dimension of v that begins where `count` elements lie together, of which each section has as
 * many; -1: there is none. */
static int32_t zfi_begins_at(const zfi_dealing *c, int32_t v, int64_t count)
{
    int64_t run = 0;
    const int32_t d = zfi_spread_place(&c->at[v].shape, count, &run);
    if (d < 0 || run || c->at[v].shape.dims[d] % (zfi_shares_of(c, v, d) * c->d.sections))
        return -1;
    return d;
}

/* A reshape of x: what lies together does so in another form. */
static void zfi_tokens_reshape(const zfi_dealing *c, int32_t id, const zfi_tokens *x)
{
    zfi_tokens *y = &c->at[id];
    int64_t run = 0;
    int32_t to;
    if (x->dim >= 0) {
        to = zfi_spread_place(&y->shape, x->run * zfi_span(&x->shape, x->dim + 1, x->shape.rank),
                              &run);
        if (to >= 0) y->dim = (int8_t)to, y->run = run ? run : y->shape.dims[to];
    }
    if (x->cut == ZFI_UNDEALT) return;
    if (x->cut == x->dim) {
        y->cut = y->dim;
        return;
    }
    to = zfi_begins_at(c, id, zfi_span(&x->shape, x->cut, x->shape.rank));
    y->cut = to >= 0 ? (int8_t)to : y->dim;
}

/* All values of an operand of a flat value, cut as that operand is. */
static void zfi_tokens_flat(zfi_dealing *c, int32_t id, int32_t like)
{
    const zf_graph *g = c->graph;
    const zfi_node *slice = &g->nodes[g->nodes[id].args[0]], *of = &g->nodes[slice->args[0]];
    const zfi_tokens *flat = &c->at[slice->args[0]];
    zfi_tokens x = c->at[like];
    x.cut = ZFI_UNDEALT;
    for (int32_t k = 0; k < of->arg_count && flat->by_letter; k++)
        if (of->args[k] == like) x.cut = c->wants[flat->wants + k];
    zfi_tokens_reshape(c, id, &x);
}

/* The node is one that zf_context has put to move tokens: a piece of them, pieces one after the
 * other, or what ranks along context exchange. */
static bool zfi_moves_tokens(const zfi_dealing *c, const zfi_node *node)
{
    const int8_t dim = node->arg_count ? c->at[node->args[0]].dim : -1;
    if (!c->between || !c->shares || dim < 0) return false;
    if (node->op == ZF_OP_slice) return ZF_INT(node, slice, axis) == dim;
    if (node->op == ZF_OP_concat) return ZF_INT(node, concat, axis) == dim;
    return (node->op == ZF_OP_part || c->graph->records[node->op]->traits & ZF_OP_COLLECTIVE) &&
           ZF_INT(node, all_gather, over) == ZF_OVER_CONTEXT;
}

/* Its tokens. */
static void zfi_tokens_move(zfi_dealing *c, int32_t id)
{
    const zfi_tokens *x = &c->at[c->graph->nodes[id].args[0]];
    zfi_tokens *y = &c->at[id];
    if (x->shape.rank != y->shape.rank || !x->shape.dims[x->dim]) return;
    y->dim = x->dim, y->run = x->run * y->shape.dims[y->dim] / x->shape.dims[x->dim];
}

static void zfi_tokens_see(zfi_dealing *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const int32_t like = node->update ? 0 : zfi_flat_operand(g, node);
    zfi_tokens *y = &c->at[id];
    zfi_tokens_shape(c, id);
    if (node->op == ZF_OP_saved) return; /* with what saves it */
    if (zfi_has(g, id, ZF_OP_LEAF)) {
        if (node->op == ZF_OP_input && node->shape.rank > 1 && node->shape.dims[1] == c->sequence)
            y->dim = 1, y->cut = c->between ? ZFI_UNDEALT : 1, y->run = c->sequence;
    } else if (like && node->op == ZF_OP_slice) y->flat = like;
    else if (like) zfi_tokens_flat(c, id, like);
    else if (node->op == ZF_OP_reshape && !node->update) {
        y->of = node->args[0];
        zfi_tokens_reshape(c, id, &c->at[y->of]);
    } else if (zfi_moves_tokens(c, node)) zfi_tokens_move(c, id);
    else zfi_tokens_decide(c, id);
    y->light = c->between && zfi_is_light(c, id);
    if (c->between && node->completes) zfi_tokens_complete(c, id);
}
