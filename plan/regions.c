/* Regions: the nodes that a step leaves out, by the coins of layer_drop (ops/layer_drop.c).
 *
 *     %5 = rms_norm ...            needless where coin 0 is off: %8 alone reads it
 *     %7 = linear %5, ...          needless
 *     %8 = layer_drop %7 {coin=0}  0
 *     %9 = add %1, %8              runs, and reads the zeros of %8
 *     ...
 *     %20 = layer_drop %19 {coin=0}   0: the gradient of the branch
 *     %21 = matmul %20, %7            0, and so are all gradients of the region,
 *     %22 = rms_norm_grad ...         by which its values are needless
 *
 * A node is left out where all coins of its set are off. There are two reasons. It vanishes: it is
 * linear in operands that vanish (the set: theirs together). Or it is needless: all that read it
 * are left out (theirs together), as it is with the gathers of the region's parameters. Of a value
 * that vanishes, zeros are stored where a node that may run reads it. The places of a plan are
 * those of a step that runs everything, so they hold for each.
 *
 * There is no mark on nodes: the sets follow from the operators (zfi_record.linear_in), after all
 * passes. */

enum { ZFI_RUNS, ZFI_LEFT_OUT, ZFI_LEFT_ZERO };

/* Nothing in it: no node is left out in any step. */
typedef struct zfi_regions {
    int32_t *coins; /* a layer_drop of each coin; a growing array */
    size_t words;   /* of a set */
    uint64_t *sets; /* by node, of coins */
    uint8_t *how;   /* by node: ZFI_RUNS, or what happens where all coins of its set are off */
    size_t nodes;
} zfi_regions;

/* What finds them, by node. */
typedef struct zfi_regioning {
    zfi_regions *r;
    const zf_graph *graph;
    uint64_t *vanish, *needless; /* sets, */
    bool *vanishes;              /* and whether there is one */
    bool *wanted;                /* a node that always runs reads it */
    bool *zeroed;                /* an alias of it is read where it vanishes */
} zfi_regioning;

static uint64_t *zfi_set_of(const zfi_regions *r, uint64_t *sets, int32_t id)
{
    return sets + (size_t)id * r->words;
}

static void zfi_set_add(const zfi_regions *r, uint64_t *to, const uint64_t *from)
{
    for (size_t w = 0; w < r->words; w++) to[w] |= from[w];
}

static bool zfi_set_within(const zfi_regions *r, const uint64_t *part, const uint64_t *whole)
{
    for (size_t w = 0; w < r->words; w++)
        if (part[w] & ~whole[w]) return false;
    return true;
}

/* The two layer_drops are of one coin, with one probability. */
static bool zfi_same_coin(const zfi_node *a, const zfi_node *b)
{
    return ZF_INT(a, layer_drop, coin) == ZF_INT(b, layer_drop, coin) &&
           ZF_FLOAT(a, layer_drop, share) == ZF_FLOAT(b, layer_drop, share) &&
           ZF_FLOAT(a, layer_drop, theta) == ZF_FLOAT(b, layer_drop, theta) &&
           ZF_FLOAT(a, layer_drop, gamma) == ZF_FLOAT(b, layer_drop, gamma);
}

/* The number of the coin of a layer_drop, a new one if it is the first. */
static int32_t zfi_coin_of(zf_graph *g, zfi_regions *r, int32_t id)
{
    for (int32_t k = 0; k < zfi_len(r->coins); k++)
        if (zfi_same_coin(&g->nodes[id], &g->nodes[r->coins[k]])) return k;
    zfi_push(&g->memory, r->coins, id);
    return zfi_len(r->coins) - 1;
}

/* ------------------------------------------------------------------------------- vanishing */

/* How a result depends on operands that vanish. `of`: their sets, NULL where one does not vanish.
 * */
typedef struct zfi_vanishing {
    const uint64_t *const *of;
    int32_t count;
    zfi_linear linear; /* EACH: of the first two, and the others are added */
    uint32_t in;       /* zfi_record.linear_in */
} zfi_vanishing;

static bool zfi_operand_vanishes(const zfi_regions *r, const zfi_vanishing *v, int32_t k,
                                 uint64_t *set)
{
    if (v->of[k]) zfi_set_add(r, set, v->of[k]);
    return v->of[k] != NULL;
}

/* The result vanishes; adds its coins to an empty set. */
static bool zfi_result_vanishes(const zfi_regions *r, const zfi_vanishing *v, uint64_t *set)
{
    int32_t from = 0, end = v->count;
    if (!v->count) return false;
    if (v->linear == ZFI_LINEAR_NOT && !v->in) return false;
    if (v->linear == ZFI_LINEAR_FIRST) end = 1;
    if (v->linear == ZFI_LINEAR_EACH) {
        if (!zfi_operand_vanishes(r, v, 0, set) && !zfi_operand_vanishes(r, v, 1, set))
            return false;
        from = 2;
    }
    for (int32_t k = from; k < end; k++) {
        const bool in = v->linear != ZFI_LINEAR_NOT || v->in >> (k < 31 ? k : 31) & 1;
        if (in && !zfi_operand_vanishes(r, v, k, set)) return false;
    }
    return true;
}

/* As zfi_linear_of; also of a product that adds its last operand. */
static zfi_linear zfi_linear_with_addend(const zf_graph *g, const zfi_node *node)
{
    const zfi_record *record = g->records[node->op];
    if (record->linear == ZFI_LINEAR_EACH && !zfi_attribute_of(g, node, "activation"))
        return ZFI_LINEAR_EACH;
    return zfi_linear_of(g, node);
}

/* The chain vanishes: each instruction by its own record, from one register to the next. */
static bool zfi_chain_vanishes(const zfi_regioning *c, const zfi_node *node,
                               const uint64_t *const *of, uint64_t *set)
{
    enum { MOST = ZFI_CHAIN_OPERANDS + ZFI_CHAIN_LONGEST };
    const int64_t *program = ZF_LIST(node, chain, program).data;
    const int32_t count = (int32_t)ZF_LIST(node, chain, program).count / 3;
    const uint64_t *registers[MOST];
    memcpy(registers, of, (size_t)node->arg_count * sizeof *of);
    for (int32_t k = 0; k < count; k++) {
        const zfi_instruction *code = &zfi_instructions[program[3 * k]];
        const zfi_node as = {.op = code->op, .arg_count = zfi_chain_registers(code)};
        const uint64_t *two[] = {registers[program[3 * k + 1]], NULL};
        const zfi_vanishing v = {two, as.arg_count, zfi_linear_of(c->graph, &as),
                                 zfi_records[code->op]->linear_in};
        if (as.arg_count > 1) two[1] = registers[program[3 * k + 2]];
        /* The set of all instructions that vanish: as safe, and never smaller than theirs */
        registers[node->arg_count + k] = zfi_result_vanishes(c->r, &v, set) ? set : NULL;
    }
    return registers[node->arg_count + count - 1] != NULL;
}

/* The value of the node is 0 where all coins of `set` are off. of: room for its operands. */
static bool zfi_node_vanishes(const zfi_regioning *c, int32_t id, const uint64_t **of,
                              uint64_t *set)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const zfi_record *record = g->records[node->op];
    zfi_vanishing v = {of, node->arg_count, zfi_linear_with_addend(g, node), record->linear_in};
    for (int32_t k = 0; k < node->arg_count; k++)
        of[k] = c->vanishes[node->args[k]] ? zfi_set_of(c->r, c->vanish, node->args[k]) : NULL;
    if (node->op == ZF_OP_saved) {
        record = g->records[g->nodes[node->args[0]].op];
        v.in = record->linear_saved >> ZF_INT(node, saved, index) & 1, v.linear = ZFI_LINEAR_NOT;
    }
    if (!zfi_is_float(node->dtype) || record->traits & (ZF_OP_EFFECT | ZF_OP_LEAF)) return false;
    if (node->op == ZF_OP_chain) return zfi_chain_vanishes(c, node, of, set);
    return zfi_result_vanishes(c->r, &v, set);
}

/* Sets vanish of all nodes, along their order. */
static void zfi_find_vanishing(zfi_regioning *c, const uint64_t **of)
{
    zfi_regions *r = c->r;
    const zf_graph *g = c->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const int32_t id = g->order[i];
        uint64_t *set = zfi_set_of(r, c->vanish, id);
        if (g->nodes[id].op == ZF_OP_layer_drop) {
            const int32_t coin = zfi_coin_of((zf_graph *)(uintptr_t)g, r, id);
            set[coin / 64] |= (uint64_t)1 << coin % 64, c->vanishes[id] = true;
        } else {
            c->vanishes[id] = zfi_node_vanishes(c, id, of, set);
        }
    }
}

/* --------------------------------------------------------------------------------- needless */

/* It shows bytes of its operand and is no node that writes into it. */
static bool zfi_is_alias(const zf_graph *g, int32_t id)
{
    int64_t at;
    const int32_t k = zfi_viewed(g, &g->nodes[id], &at);
    return g->nodes[id].op == ZF_OP_saved || (k >= 0 && !zfi_writes_into(g, id, k));
}

/* A node that vanishes may be left out: also its saved values are 0, or needless then. */
static bool zfi_may_vanish(const zfi_regioning *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    if (!c->vanishes[id] || node->space == ZF_DISK) return false;
    if (zfi_written_args(g, node) && !zfi_writes_into(g, id, 1)) return false;
    for (int k = 0; k < ZF_MAX_SAVED; k++) {
        const int32_t saved = node->saved[k];
        if (!saved || c->r->how[saved] == ZFI_LEFT_ZERO) continue;
        if (c->wanted[saved] || !zfi_set_within(c->r, zfi_set_of(c->r, c->needless, saved),
                                                zfi_set_of(c->r, c->vanish, id)))
            return false;
    }
    return true;
}

/* A node whose value is not read may be left out. What goes over pipe is not: its other end, in the
 * part of another stage, does not know who reads it. */
static bool zfi_may_be_needless(const zfi_regioning *c, int32_t id)
{
    const zf_graph *g = c->graph;
    const zfi_node *node = &g->nodes[id];
    const uint64_t *set = zfi_set_of(c->r, c->needless, id);
    if (c->wanted[id] || c->zeroed[id] || zfi_written_args(g, node) || zfi_is_over_pipe(g, id) ||
        g->records[node->op]->traits & (ZF_OP_EFFECT | ZF_OP_LEAF))
        return false;
    for (size_t w = 0; w < c->r->words; w++)
        if (set[w]) return true;
    return false; /* nothing reads it: it is an effect of its own */
}

/* What happens to a node; all that read it are settled. */
static void zfi_settle_region(zfi_regioning *c, int32_t id)
{
    zfi_regions *r = c->r;
    uint64_t *set = zfi_set_of(r, r->sets, id), *vanish = zfi_set_of(r, c->vanish, id);
    uint64_t *needless = zfi_set_of(r, c->needless, id);
    const bool read = c->wanted[id] || c->zeroed[id] || !zfi_set_within(r, needless, vanish);
    if (zfi_may_vanish(c, id)) {
        r->how[id] = read ? ZFI_LEFT_ZERO : ZFI_LEFT_OUT;
        zfi_set_add(r, set, vanish);
    } else if (zfi_may_be_needless(c, id)) {
        r->how[id] = ZFI_LEFT_OUT;
        zfi_set_add(r, set, needless);
    }
}

/* Gives the operands of a node what became of it. */
static void zfi_note_reader(zfi_regioning *c, int32_t id)
{
    zfi_regions *r = c->r;
    const zfi_node *node = &c->graph->nodes[id];
    if (node->op == ZF_OP_release || node->op == ZF_OP_wait) return;
    for (int32_t k = 0; k < node->arg_count; k++) {
        const int32_t x = node->args[k];
        if (r->how[id] == ZFI_RUNS) c->wanted[x] = true;
        else zfi_set_add(r, zfi_set_of(r, c->needless, x), zfi_set_of(r, r->sets, id));
        if (r->how[id] == ZFI_LEFT_ZERO && zfi_is_alias(c->graph, id)) c->zeroed[x] = true;
    }
}

/* ---------------------------------------------------------------------------------- finding */

static void zfi_regions_free(zfi_memory *memory, zfi_regions *r)
{
    zfi_array_free(memory, r->coins);
    zfi_free(memory, r->sets, r->nodes * r->words * sizeof *r->sets);
    zfi_free(memory, r->how, r->nodes);
    *r = (zfi_regions){.words = 0};
}

/* Room for what finds the regions. */
static bool zfi_open_regioning(zfi_regioning *c, zfi_memory *memory)
{
    zfi_regions *r = c->r;
    r->sets = zfi_calloc(memory, r->nodes * r->words, sizeof *r->sets);
    r->how = zfi_calloc(memory, r->nodes, sizeof *r->how);
    c->vanish = zfi_calloc(memory, r->nodes * r->words, sizeof *c->vanish);
    c->needless = zfi_calloc(memory, r->nodes * r->words, sizeof *c->needless);
    c->vanishes = zfi_calloc(memory, r->nodes, sizeof *c->vanishes);
    c->wanted = zfi_calloc(memory, r->nodes, sizeof *c->wanted);
    c->zeroed = zfi_calloc(memory, r->nodes, sizeof *c->zeroed);
    return r->sets && r->how && c->vanish && c->needless && c->vanishes && c->wanted && c->zeroed;
}

static void zfi_close_regioning(zfi_regioning *c, zfi_memory *memory)
{
    const size_t nodes = c->r->nodes, words = c->r->words;
    zfi_free(memory, c->vanish, nodes * words * sizeof *c->vanish);
    zfi_free(memory, c->needless, nodes * words * sizeof *c->needless);
    zfi_free(memory, c->vanishes, nodes * sizeof *c->vanishes);
    zfi_free(memory, c->wanted, nodes * sizeof *c->wanted);
    zfi_free(memory, c->zeroed, nodes * sizeof *c->zeroed);
}

/* The regions of a graph after all passes, in its memory. None without layer_drop. */
static zf_status zfi_find_regions(zf_graph *g, zfi_regions *r)
{
    zfi_regioning c = {.r = r, .graph = g};
    const uint64_t **of = NULL;
    int32_t drops = 0, most = 1;
    bool there = true;
    *r = (zfi_regions){.nodes = (size_t)zfi_len(g->nodes)};
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        drops += node->op == ZF_OP_layer_drop;
        most = node->arg_count > most ? node->arg_count : most;
    }
    if (!drops) return ZF_OK;
    r->words = (size_t)zfi_div_up(drops, 64);
    of = zfi_calloc(&g->memory, (size_t)most, sizeof *of);
    there = zfi_open_regioning(&c, &g->memory) && of;
    if (there) zfi_find_vanishing(&c, of);
    for (int32_t i = zfi_len(g->order); there && i-- > 0;) {
        zfi_settle_region(&c, g->order[i]);
        zfi_note_reader(&c, g->order[i]);
    }
    zfi_free(&g->memory, of, (size_t)most * sizeof *of);
    zfi_close_regioning(&c, &g->memory);
    return there && !g->memory.failed ? ZF_OK : zfi_graph_nomem(g);
}
