/* zero: one rank's graph becomes that of `world` ranks at a ZeRO stage (Rajbhandari et al. 2020).
 *
 * requires: not run before; where there are gradients, an optimizer
 * ensures:  parameters and their states lie in buckets (buckets.c), of which a parameter is a view;
 *           the sum over all ranks and micro-batches is made once for each bucket; numbers are
 *           those of one rank that runs world * micro_batches micro-batches, to the last bit
 *
 *     stage 0   reduced: all_reduce of each bucket's gradient as soon as it is complete
 *     stage 1   states and update on this rank's shard: reduce_scatter when all gradients are
 *               there, all_gather of the updated parameters
 *     stage 2   reduce_scatter as soon as complete; the full gradient ends there
 *     stage 3   parameters are shards too: all_gather before a run of uses, release after it
 *
 * before:   %2 = param "w" : f32[8,32]   %4 = matmul %1, %2   ...   gradient %2, %9
 *           update:   adamw %2, %9, %10, %11, %3, %12 {weight_decay=0.01}
 * after (stage 3, world 4):
 *           %20 = bucket %2 {at=[0] size=4096 world=4} : f32[1024]
 *           %21 = all_gather %20 {world=4} : f32[4096]    %22 = view %21 {shape=[8,32]} : f32[8,32]
 *           %4 = matmul %1, %22     release %21     ...
 *           %30 = pack %9 {at=[0] size=4096} : f32[4096]
 *           %31 = reduce_scatter %30 {world=4} : f32[1024]     gradient %20, %31
 *           update:   adamw %20, %31, %32, %33, %3, %12 {world=4 blocks=[0,1] decays=[0.01]}
 *
 * With quantized_weights a rank quantises its shards, gathers go over the quantised ones, and what
 * they give is dequantised. With quantized_gradients a reduce_scatter is an exchange of quantised
 * parts and their sum in f32:
 *
 *           %21 = quantize %20 {bits=8 block=256} : u8[1040]   %22 = all_gather %21 ...
 *           %23 = dequantize %22 {bits=8 block=256} : f32[4096]
 *           %31 = quantize %30 {bits=4 block=256} : u8[2112]   %32 = all_to_all %31 ...
 *           %33 = dequantize_sum %32 {bits=4 block=256 parts=4} : f32[1024]
 *
 * With hold the micro section reads parameters that another program has gathered (passes/hold.c):
 *
 *           %21 = cache "held/w" {held=true} : f32[4096]    %22 = view %21 {shape=[8,32]} : f32[8,32]
 *
 * With loco what a quantisation has rounded off stays in states, whole on each rank, and in a mesh,
 * for the exchange between nodes, of the part of a node's sum that a rank sends:
 *
 *           %34 = state "loco.error/w" {ranks=each} : f32[8,32]
 *           %35 = bucket %34 {at=[0] size=4096 each=true} : f32[4096]
 *           %31 = quantize_feedback %30, %35 {bits=4 block=256 beta=0.8 reset=1024} : u8[2112]
 *
 * In every stage, sums start at 0 and add slot 0, 1, 2, ... of the global batch: the ranks of a
 * micro-batch in their order, micro-batch after micro-batch. Therefore each micro-batch is reduced,
 * in stages 0 and 1 too. With ZF_SUM_MICRO a rank adds the gradients of its micro-batches, from 0
 * on, in f32 at least; then the ranks are added in their order, once a step, in the update section.
 * So gradients are whole on each rank until then. All other sums are as before.
 *
 *           %31 = all_reduce %30, %7 {world=1} : f32[4096]     onto an accumulator
 *           update:
 *           %32 = reduce_scatter %31 {world=4} : f32[1024]     gradient %20, %32
 *
 * In the update section, a value with one element for each element of a parameter is lifted to its
 * bucket: elementwise operators and updates run once for a bucket, from stage 1 on only on this
 * rank's shard. Block norms are gathered; nodes that read them do not change.
 *
 * Of a table whose group has lazy_rows each rank has a list of rows and their gradients. These are
 * gathered, in the order of the parts of the batch, and added once a step, on each rank:
 *
 *           %30 = all_gather %7 {world=4} : i32[24]     %31 = collect %30, %29 {parts=2} : i32[48]
 *           %32 = all_gather %8 {world=4} : f32[192]    %34 = collect %32, %33 {parts=2} : f32[384]
 *           update:
 *           %35 = distinct_rows %31 {rows=1000}         %36 = view %34 {shape=[48,8]}
 *           %37 = sum_rows %36, %31, %35 : f32[48,8]    gradient %20, %37, %35
 *           sgd %20, %37, %3, %35 {world=4 blocks=[0,8] decays=[0] lazy=true}
 *
 * Scalar float outputs of the micro section, and others that are said to be sums, become those of
 * the global batch (reduction.c). */

static void zfi_find_gradients(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int32_t m, value;
        if (zfi_updates_param(g, node) && z->member_of[node->args[0]] >= 0) {
            z->updated[z->member_of[node->args[0]]] = true;
            z->buckets[z->bucket_of[node->args[0]]].updated++;
        }
        if (node->op != ZF_OP_gradient || z->member_of[node->args[0]] < 0) continue;
        m = z->member_of[node->args[0]];
        value = zfi_raw_gradient(g, node->args[1]);
        if (node->arg_count > 2) {
            zfi_push(&g->memory, z->lazy, ((zfi_lazy){m, value, node->args[2], 0, 0}));
            continue;
        }
        z->gradient[m] = z->packed[m] = value;
        z->next_same[m] = z->first_same[value];
        z->first_same[value] = m;
        z->buckets[z->bucket_of[node->args[0]]].pending++;
        z->buckets[z->bucket_of[node->args[0]]].gradients++;
    }
}

/* The node that adds up rows of experts, before what adds ranks along context and along expert to
 * it (passes/experts.c), and rounds. */
static const zfi_node *zfi_sum_of_rows(const zf_graph *g, const zfi_node *sum)
{
    while (sum->op == ZF_OP_cast || sum->op == ZF_OP_all_reduce || sum->op == ZF_OP_sum ||
           sum->op == ZF_OP_add || sum->op == ZF_OP_chain || sum->op == ZF_OP_slice ||
           sum->op == ZF_OP_send)
        sum = &g->nodes[sum->args[0]];
    return sum;
}

/* Notes of which parameters the gradients are sums of sections (ops/grouped_linear.c). */
static void zfi_find_sections(zfi_zero *z)
{
    zf_graph *g = z->graph;
    const int32_t experts = zfi_mesh_experts(zfi_mesh_of(g));
    for (int32_t i = 0; i < zfi_len(g->order) && !g->error.status; i++) {
        const zfi_node *node = &g->nodes[g->order[i]], *sum, *param;
        const zf_attribute *sections;
        if (node->op != ZF_OP_gradient) continue;
        param = &g->nodes[node->args[0]], sum = &g->nodes[zfi_raw_gradient(g, node->args[1])];
        sum = zfi_sum_of_rows(g, sum);
        sections =
            zfi_attribute_of(g, sum, "sources") ? zfi_attribute_of(g, sum, "sections") : NULL;
        if (sections) z->cut.sections[node->args[0]] = (int32_t)sections->i;
        if (zfi_is_of_expert(param) && (!sections || sections->i < 1))
            zfi_zero_fail(z, g->order[i], "it is cut over experts, and its gradient is no sum over "
                                          "the rows of all ranks along that axis");
        else if (sections && sections->i > 1 && z->d.world % sections->i)
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_zero: sums over %d ranks that share experts are made in sections of %lld: "
                     "world, of ranks along data, is %d, and must be a multiple of that",
                     (int)experts, (long long)sections->i, (int)z->d.world);
    }
}

/* Checks that each update reads the gradient of its parameter. */
static void zfi_check_updates(zfi_zero *z)
{
    const zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order) && !g->error.status; i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int32_t m = zfi_has(g, z->order[i], ZF_OP_UPDATE) ? z->member_of[node->args[0]] : -1;
        if (m < 0 || zfi_is_lazy(g, node)) continue;
        if (!z->gradient[m])
            zfi_zero_fail(z, z->order[i], "nothing says what the gradient of its parameter is");
        else if (!zfi_has(g, node->args[1], ZF_OP_UPDATE) && /* lamb_apply reads lamb_update */
                 z->member_of[zfi_raw_gradient(g, node->args[1])] >= 0)
            zfi_zero_fail(z, z->order[i], "it updates by a parameter, which is no gradient");
    }
}

/* The step is one of a 1-bit optimizer, also of its warm-up: it has states that no stage shards. */
static bool zfi_is_onebit(const zfi_zero *z)
{
    const zf_graph *g = z->graph;
    for (int32_t i = 0; i < zfi_len(z->order); i++)
        if (g->nodes[z->order[i]].op == ZF_OP_state &&
            ZF_INT(&g->nodes[z->order[i]], state, ranks) != ZFI_STATE_STAGE)
            return true;
    return false;
}

/* Checks that a step of a 1-bit optimizer can be laid out as the desc says: all of its variants, so
 * that a run does not end where its warm-up does. */
static void zfi_check_onebit_layout(zfi_zero *z)
{
    zf_graph *g = z->graph;
    char mesh[ZFI_MESH_TEXT];
    for (int32_t i = 0; i < zfi_len(z->order) && z->sharded && z->d.stage < 3; i++)
        if (g->nodes[z->order[i]].op == ZF_OP_state &&
            g->nodes[z->order[i]].role == ZFI_ROLE_OWN_MOMENT) {
            zfi_fail(
                &g->error, ZF_ERR_ARGUMENT,
                "zf_zero: local steps of zf_zero_one_adam are for stage 0: each rank makes them "
                "with all of the variance and the master weights; stage is %d, for which "
                "local_step_clipper must be 1",
                (int)z->d.stage);
            return;
        }
    if (g->error.status || !zfi_is_onebit(z)) return;
    if (z->d.stage == 3)
        zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "zf_zero: 1-bit optimizers are for stages 0, 1 and 2: each rank compresses the whole "
            "gradient; stage is 3");
    else if (z->d.quantized_gradients)
        zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "zf_zero: a 1-bit optimizer sends signs of its momentum; quantized_gradients has no "
            "meaning there");
    else if (g->axes.count)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_zero: 1-bit optimizers are for ranks along data alone, and these are a mesh "
                 "of %s",
                 zfi_mesh_text(mesh, zfi_zero_mesh(z)));
    else if (z->mesh)
        zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "zf_zero: 1-bit optimizers exchange signs between all ranks alike; nodes must be 1, "
            "not %d",
            (int)z->d.nodes);
}

/* Forgets nodes that are not in the new order. */
static void zfi_forget(zfi_zero *z)
{
    zf_graph *g = z->graph;
    bool *there = zfi_calloc(&g->memory, (size_t)zfi_len(g->nodes), sizeof *there);
    if (!there) return;
    for (int32_t i = 0; i < zfi_len(g->order); i++) there[g->order[i]] = true;
    for (int32_t i = 0; i < zfi_len(z->order); i++)
        if (!there[z->order[i]]) zfi_replace(g, z->order[i], 0);
    zfi_free(&g->memory, there, (size_t)zfi_len(g->nodes) * sizeof *there);
}

static void zfi_run_zero(zfi_zero *z)
{
    zf_graph *g = z->graph;
    for (size_t n = 0; n < z->nodes; n++) z->bucket_of[n] = z->member_of[n] = z->first_same[n] = -1;
    for (int32_t f = 0; f < zfi_len(z->cut.buckets); f++)
        for (int32_t m = z->cut.buckets[f].first;
             m < z->cut.buckets[f].first + z->cut.buckets[f].count; m++) {
            z->bucket_of[z->cut.members[m].param] = f;
            z->member_of[z->cut.members[m].param] = m;
            z->next_same[m] = -1;
        }
    z->order = g->order;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(z->order); i++) {
        const zfi_node *node = &g->nodes[z->order[i]];
        int64_t at;
        if (!node->update && (zfi_viewed(g, node, &at) == 0 || zfi_joins_members(z, node)) &&
            z->bucket_of[node->args[0]] >= 0)
            z->bucket_of[z->order[i]] = z->bucket_of[node->args[0]];
        if (!node->update && node->op == ZF_OP_adam_drift) {
            z->bucket_of[z->order[i]] = z->bucket_of[node->args[0]];
            z->member_of[z->order[i]] = z->member_of[node->args[0]];
        }
    }
    for (int32_t i = zfi_len(z->order); zfi_down(i);) {
        const int32_t id = z->order[i], of = g->nodes[id].op == ZF_OP_state ? g->nodes[id].of : 0,
                      m = of ? z->member_of[of] : -1;
        if (m >= 0) z->next_state[id] = z->state_of[m], z->state_of[m] = id;
    }
    for (int32_t i = 0; i < zfi_len(z->order); i++)
        z->local |= g->nodes[z->order[i]].op == ZF_OP_sign_compress ||
                    g->nodes[z->order[i]].op == ZF_OP_adam_drift;
    zfi_find_gradients(z);
    zfi_check_updates(z);
    zfi_check_onebit_layout(z);
    if (!g->error.status) zfi_micro_section(z);
    if (!g->error.status && !g->memory.failed) zfi_sum_sets(z);
    if (!g->error.status && !g->memory.failed) zfi_update_section(z);
    zfi_forget(z);
}

static const zf_option zfi_zero_options[] = {
    ZF_OPTION(zf_zero_desc, COUNT, stage, 0, "[0,3]", .flag = "zero", .unit = "STAGE",
              .traits = ZF_OPTION_BASIC,
              .help =
                  "what the ranks share: 1 optimizer states, 2 and gradients, 3 and parameters"),
    ZF_OPTION(zf_zero_desc, COUNT, world, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(
        zf_zero_desc, COUNT, micro_batches, 1, "[1,1048576]", .traits = ZF_OPTION_BASIC,
        .help =
            "micro-batches of a step on each rank; the batch is split into ranks times N parts"),
    ZF_OPTION(zf_zero_desc, CHOICE, sum, 0, "auto|parts|micro", .unit = "parts|micro",
              .help = "gradients are added part after part of the batch, or each rank adds its "
                      "micro-batches and ranks are summed once a step; auto: micro with --pipe, else "
                      "parts"),
    ZF_OPTION(zf_zero_desc, CHOICE, gather, 0, "use|step", .with = "stage=3, !hpz", .unit = "step",
              .help = "parameters are gathered for each run of uses, or once a step, and stay on the "
                      "device while its micro-batches run"),
    ZF_OPTION(zf_zero_desc, COUNT, nodes, 1, "[1,1048576]", .flag = ""),
    ZF_OPTION(zf_zero_desc, FLAG, hpz, 0, NULL, .flag = "zero-hpz", .with = "stage=3, !mics",
              .help =
                  "the ranks of a node together keep parameters for the backward pass (ZeRO++)"),
    ZF_OPTION(zf_zero_desc, FLAG, mics, 0, NULL, .flag = "", .with = "stage=1|2|3",
              .help = "the ranks of each node share all among themselves (MiCS)"),
    ZF_OPTION(zf_zero_desc, FLAG, quantized_weights, 0, NULL, .flag = "zero-quantized-weights",
              .with = "stage=3", .traits = ZF_OPTION_CHANGES,
              .help = "ranks send parameters as integers of 8 bits (ZeRO++)"),
    ZF_OPTION(zf_zero_desc, FLAG, quantized_gradients, 0, NULL, .flag = "zero-quantized-gradients",
              .with = "stage=1|2|3", .traits = ZF_OPTION_CHANGES,
              .help = "ranks send gradients as integers of 4 bits (ZeRO++)"),
    ZF_OPTION(zf_zero_desc, FLAG, loco, 0, NULL, .flag = "zero-loco", .with = "quantized_gradients",
              .traits = ZF_OPTION_CHANGES,
              .help = "a rank adds what it has rounded off a gradient to its next one (LoCo)"),
    ZF_OPTION(zf_zero_desc, NUMBER, loco_beta, 0.8, "[0,1)", .with = "loco",
              .traits = ZF_OPTION_CHANGES,
              .help = "share of the old errors in their moving average"),
    ZF_OPTION(zf_zero_desc, COUNT, loco_reset, 1024, "[-1,inf)", .with = "loco", .unit = "STEPS",
              .traits = ZF_OPTION_CHANGES,
              .help = "steps after which the errors are 0 again; -1: never"),
    ZF_OPTION(zf_zero_desc, COUNT, loco_bits, 32, "8|32", .with = "loco",
              .traits = ZF_OPTION_CHANGES,
              .help = "bits of an error; 8: with a scale for each block"),
    ZF_OPTION(zf_zero_desc, COUNT, quantized_block, 256, "[64,2048] by 64",
              .with = "quantized_weights|quantized_gradients", .traits = ZF_OPTION_CHANGES,
              .help = "number of these integers that share a scale"),
    ZF_OPTION(zf_zero_desc, CHOICE, quantized_scale, 0, "f32|bf16",
              .with = "quantized_weights|quantized_gradients", .traits = ZF_OPTION_CHANGES,
              .help = "dtype of these scales"),
    ZF_OPTION(zf_zero_desc, FLAG, hold, 0, NULL, .flag = ""),
    ZF_OPTION(zf_zero_desc, BYTES, bucket_bytes, 0, "[0,4611686018427387903]", .flag = "bucket",
              .help = "maximum of the parameters of one bucket; 0: those of a layer"),
    ZF_OPTION(zf_zero_desc, FLAG, experts_apart, 0, NULL, .flag = ""),
    ZF_OPTION_CODED(zf_zero_desc, store),
    {.name = NULL}};

/* The order of sums; `pipe`: ranks along pipe have stages. */
static zf_sum_order zfi_sum_of(bool pipe, zf_sum_order sum)
{
    return sum ? sum : pipe ? ZF_SUM_MICRO : ZF_SUM_PARTS;
}

/* A rank adds its micro-batches, and this differs from adding parts. */
static bool zfi_sums_once(const zf_graph *g, const zf_zero_desc *d)
{
    return zfi_sum_of(zfi_axis_at(&g->axes, ZF_OVER_PIPE) >= 0, d->sum) == ZF_SUM_MICRO &&
           d->world > 1 && d->micro_batches > 1;
}

/* Checks what the table of options does not. */
static zf_status zfi_check_zero(zf_graph *g, const zf_zero_desc *d)
{
    char mesh[ZFI_MESH_TEXT];
    if (d->world % d->nodes)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: nodes is %d; it must be 1 or more and divide the world of %d",
                        (int)d->nodes, (int)d->world);
    if ((d->hpz || d->mics) && !zfi_is_mesh(zfi_mesh_along_data(d->world, d->nodes)))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: %s needs several nodes of several ranks each; world is %d and "
                        "nodes is %d",
                        d->mics ? "mics" : "hpz", (int)d->world, (int)d->nodes);
    if ((d->quantized_weights || d->quantized_gradients) && d->world < 2)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: %s needs several ranks, which send less; world is %d",
                        d->quantized_weights ? "quantized_weights" : "quantized_gradients",
                        (int)d->world);
    if ((d->nodes > 1 || d->quantized_gradients) &&
        zfi_check_dense(g, "zf_zero",
                        d->nodes > 1 ? "their gradients are gathered from all ranks alike: nodes "
                                       "must be 1"
                                     : "their gradients are sent as they are, not as integers "
                                       "(quantized_gradients)"))
        return g->error.status;
    if (d->hold && g->stages & (ZFI_STAGE_GRADIENTS | ZFI_STAGE_UPDATES))
        return zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "zf_zero: hold is for steps that only evaluate: one that trains would go on "
            "with the parameters of zf_hold");
    if (d->loco && zfi_sums_once(g, d))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: loco adds what it has rounded off to the next micro-batch's "
                        "gradient: sum must be parts, not micro");
    if (zfi_mesh_experts(zfi_mesh_of(g)) > 1 &&
        (d->world % zfi_mesh_experts(zfi_mesh_of(g)) || d->nodes > 1 || d->hold ||
         d->quantized_weights || d->quantized_gradients))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: %d ranks share experts: that must divide world, which is %d, and "
                        "goes without nodes, hold and what is sent quantised",
                        (int)zfi_mesh_experts(zfi_mesh_of(g)), (int)d->world);
    if (d->loco && g->axes.count)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: loco is for ranks along data alone, and these are a mesh of %s",
                        zfi_mesh_text(mesh, zfi_mesh_of(g)));
    if ((int64_t)d->world * zfi_mesh_ranks(zfi_mesh_of(g)) > INT32_MAX)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_zero: world is %d, of ranks along data, and with the other axes (%s) "
                        "these are more than %d",
                        (int)d->world, zfi_mesh_text(mesh, zfi_mesh_of(g)), (int)INT32_MAX);
    if (g->schedule && d->micro_batches > 1) {
        zf_pipe pipe = zfi_pipe_of(g);
        zf_error why = {ZF_OK, ""};
        pipe.micro_batches = (int32_t)d->micro_batches;
        if (zfi_pipe_check(pipe, &why))
            return zfi_fail(&g->error, why.status, "zf_zero: %s", why.text);
    }
    if (d->loco && zfi_check_uncut(g, "zf_zero: loco")) return g->error.status;
    if ((g->stages & ZFI_STAGE_GRADIENTS) && !(g->stages & ZFI_STAGE_UPDATES))
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_zero: needs %s before it",
                        zfi_stage_advice(ZFI_STAGE_UPDATES));
    return ZF_OK;
}

/* Shards and the places of parameters are multiples of this: of blocks of norms and, where they are
 * quantised, of blocks with a scale. So bits do not depend on how buckets are cut. */
static int64_t zfi_shard_unit(const zf_zero_desc *d)
{
    int64_t unit = ZFI_NORM_BLOCK;
    if (!d->quantized_weights && !d->quantized_gradients) return unit;
    while (unit % d->quantized_block) unit += ZFI_NORM_BLOCK;
    return unit;
}

ZF_API zf_status zf_zero(zf_graph *g, const zf_zero_desc *desc)
{
    zfi_zero z = {.graph = g, .cut = {.graph = g}};
    zf_status status =
        zfi_enter(g, "zf_zero", 0, ZFI_STAGE_RANKS | ZFI_STAGE_OVERLAP | ZFI_STAGE_PLACED);
    const char *scope;
    size_t members, buckets;
    if (status) return status;
    if (desc) z.d = *desc;
    if (zfi_settle_desc("zf_zero", zfi_zero_options, &z.d, &g->error) || zfi_check_zero(g, &z.d))
        return g->error.status;
    if (g->settled != zfi_len(g->params) && (status = zfi_settle(g))) return status;
    scope = g->scope;
    z.sharded = z.d.world > 1 && z.d.stage > 0;
    z.mesh = zfi_is_mesh(zfi_mesh_along_data(z.d.world, z.d.nodes));
    z.once = zfi_sums_once(g, &z.d);
    z.shards = z.d.mics ? z.d.world / z.d.nodes : z.d.world;
    zfi_gather_all_examples(&z);
    g->scope = scope;
    if (g->error.status || g->memory.failed)
        return g->error.status ? g->error.status : zfi_graph_nomem(g);
    z.scaler = zfi_scaler_node(g, ZF_OP_loss_scale);
    z.nodes = (size_t)zfi_len(g->nodes);
    z.cut.unit = zfi_shard_unit(&z.d);
    z.cut.sections = zfi_calloc(&g->memory, z.nodes, sizeof *z.cut.sections);
    if (z.d.experts_apart) z.cut.apart = zfi_calloc(&g->memory, z.nodes, sizeof *z.cut.apart);
    if (z.cut.sections) zfi_find_sections(&z);
    if (z.cut.apart) zfi_find_apart(&z.cut);
    if (g->memory.failed || g->error.status) {
        zfi_free(&g->memory, z.cut.sections, z.nodes * sizeof *z.cut.sections);
        zfi_free(&g->memory, z.cut.apart, z.nodes * sizeof *z.cut.apart);
        return g->error.status ? g->error.status : zfi_graph_nomem(g);
    }
    /* Nodes exchange parts of shards. */
    zfi_cut_buckets(&z.cut, (int64_t)z.d.bucket_bytes,
                    z.d.quantized_gradients ? z.d.world : (int32_t)z.shards, z.d.store);
    members = (size_t)zfi_len(z.cut.members);
    buckets = (size_t)zfi_len(z.cut.buckets);
    z.buckets = zfi_calloc(&g->memory, buckets, sizeof *z.buckets);
    z.lift = zfi_calloc(&g->memory, z.nodes, sizeof *z.lift);
    z.bucket_of = zfi_calloc(&g->memory, 6 * z.nodes, sizeof *z.bucket_of);
    z.gradient = zfi_calloc(&g->memory, 5 * members, sizeof *z.gradient);
    z.updated = zfi_calloc(&g->memory, members, sizeof *z.updated);
    zfi_find_reductions(&z.reductions, g, (double)z.d.world * (double)z.d.micro_batches);
    if (!g->error.status && !g->memory.failed && z.buckets && z.lift && z.bucket_of && z.gradient &&
        z.updated) {
        z.member_of = z.bucket_of + z.nodes, z.first_same = z.bucket_of + 2 * z.nodes;
        z.seen_as = z.bucket_of + 3 * z.nodes, z.seen_in = z.bucket_of + 4 * z.nodes;
        z.next_same = z.gradient + members, z.packed = z.gradient + 2 * members;
        z.state_of = z.gradient + 3 * members, z.next_state = z.bucket_of + 5 * z.nodes;
        z.squared = z.gradient + 4 * members;
        zfi_run_zero(&z);
    }
    zfi_free(&g->memory, z.buckets, buckets * sizeof *z.buckets);
    zfi_free(&g->memory, z.cut.sections, z.nodes * sizeof *z.cut.sections);
    zfi_free(&g->memory, z.cut.apart, z.nodes * sizeof *z.cut.apart);
    zfi_free(&g->memory, z.lift, z.nodes * sizeof *z.lift);
    zfi_free(&g->memory, z.bucket_of, 6 * z.nodes * sizeof *z.bucket_of);
    zfi_free(&g->memory, z.gradient, 5 * members * sizeof *z.gradient);
    zfi_free(&g->memory, z.updated, members * sizeof *z.updated);
    zfi_free_reductions(&z.reductions);
    zfi_array_free(&g->memory, z.cut.members);
    zfi_array_free(&g->memory, z.cut.buckets);
    zfi_array_free(&g->memory, z.cut.atoms);
    zfi_array_free(&g->memory, z.uses);
    zfi_array_free(&g->memory, z.lifted);
    zfi_array_free(&g->memory, z.outputs);
    zfi_array_free(&g->memory, z.kept);
    zfi_array_free(&g->memory, z.sets);
    zfi_array_free(&g->memory, z.lazy);
    zfi_array_free(&g->memory, z.order);
    g->scope = scope;
    g->zero = z.d.stage, g->world = z.d.world, g->micro_batches = z.d.micro_batches;
    g->mesh_nodes = z.mesh ? z.d.nodes : 1, g->shards = (int32_t)z.shards;
    if (g->memory.failed) return zfi_graph_nomem(g);
    return zfi_leave(g, ZFI_STAGE_RANKS);
}
