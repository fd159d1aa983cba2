/* api/passes.h - what rewrites a graph: each pass, and zf_passes, which runs them in their order.
 *
 * Passes in their order: zf_name_training; zf_lora; zf_param_groups; zf_fuse; zf_divide;
 * zf_precision; zf_tile; zf_autograd; zf_simplify; zf_clip; one of zf_adamw, zf_lamb, zf_sgd,
 * zf_lion, zf_onebit_adam, zf_onebit_lamb, zf_zero_one_adam; zf_ema; zf_delay; zf_cut; zf_context;
 * zf_experts; zf_fuse again; zf_stages; zf_order; zf_recompute; zf_zero; zf_offload; zf_prefetch.
 * zf_passes runs them all by one description (zf_training). zf_graph_print shows the graph between
 * any two of them, one node per line:
 *
 *     %7  = matmul %1, %4 : f32[16,32]
 *           gradient %4, %45
 *     update:
 *           adamw %4, %45, %53, %54, %3, %51 {beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01}
 *
 * Nodes above `update:` run once per micro-batch, nodes below it once per step. Where updates run
 * during the backward pass (zf_offload), that pass is below it as well, with its nodes marked
 * `micro`.
 */

/* --------------------------------------------------------------------------------------- PASSES
 *
 * A pass checks that it is called in its order, rewrites the graph, and verifies the result. Node
 * ids are never renumbered. All return ZF_OK or the graph's first error. */

/* Names the training whose step the graph becomes: at most 63 letters, digits and underscores. Its
 * step count (zf_store_step_of), loss scale, skipped steps and states belong to the name, as
 * "critic:adamw.step" and "critic:adamw.m/w". So do its random numbers: dropout of two trainings
 * differs. Several trainings over one store, as those of a generator and of its critic, need a name
 * each, or one may have none. Master weights belong to the parameter. NULL or "": it has no name.
 * Requires: before zf_precision and zf_autograd. */
ZF_API zf_status zf_name_training(zf_graph *graph, const char *name);

/* A group of parameters, which are trained in a way of their own. A member that is 0 leaves what
 * the optimizer's desc, or an earlier group, says. */
typedef struct zf_param_group {
    /* Names of parameters: patterns in which * stands for any text and ? for one character, with |
     * between them: "*.bias|embeddings.*". Each must match a parameter. NULL: none */
    const char *params;
    const zf_tensor *tensors; /* parameters too; NULL: none */
    int32_t tensor_count;
    double rate;         /* factor of the learning rate, above 0 */
    bool constant;       /* rate is the learning rate itself, the same in all steps */
    double weight_decay; /* of parameters of any rank; ZF_ZERO: as no_decay */
    bool no_decay;
    double beta1, beta2; /* of an optimizer that has them */
    const char *optimizer; /* "adamw", "lamb", "sgd" or "lion" updates them; NULL: the graph's */
    bool frozen;         /* not trained: no gradient, no states */
    /* Tables that zf_gather_rows and zf_embedding read, and nothing else: gradient, clipping and
     * update are of the rows that a step has read, on all ranks, and take the time and the memory
     * of these. adamw and sgd can. Moments of other rows do not decay, nor do other rows by weight
     * decay: numbers are not those of the dense update, except of sgd without momentum and decay.
     * Not with zf_cut, zf_context, zf_experts and zf_stages over several ranks or in sections,
     * zf_tile, zf_ema, zf_delay, zf_offload of parameters, gradients or states, several nodes,
     * quantized_gradients. docs/lazy-rows.md */
    bool lazy_rows;
} zf_param_group;

/* Puts parameters into groups. Where a parameter is in several, each sets what it gives, and of two
 * that give the same the later one counts. A group that gives nothing, or that only frozen
 * parameters match, is an error.
 *
 * The groups are attributes of the parameters ("rate=0.1"). zf_zero cuts buckets so that all
 * parameters of a bucket have one rate and one pair of betas; other programs over the store get
 * these buckets from it (zf_zero_desc.store). A program without an optimizer that is compiled first
 * needs the same groups, else zf_zero of the training is ZF_ERR_ARGUMENT. 1-bit Adam and 1-bit LAMB
 * take groups without constant rates, 0/1 Adam only weight decay and frozen ones: its sums are made of one rate. SGD has
 * no betas.
 *
 * Parameters whose group has an optimizer are left out by the others: that optimizer's pass is
 * called as well, before or after that of all other parameters. zf_passes calls all, with the descs
 * of zf_training. Each keeps states and a count of its own; clipping, loss scale and EMA are those
 * of all parameters. 1-bit Adam, 1-bit LAMB and 0/1 Adam are the only optimizer of a graph.
 *
 * As a text, for zf_training.param_groups and --param-groups, a group is PATTERNS:MEMBER=VALUE,...,
 * with ; between: "layer.0.*:rate=0.25;layer.1.*:rate=0.5;*.bias|*norm*:no_decay". Requires: before
 * zf_tile and zf_autograd; after zf_lora, for its parameters. */
ZF_API zf_status zf_param_groups(zf_graph *graph, const zf_param_group *groups, int32_t count);

/* LoRA (Hu et al. 2021): all parameters of the graph are frozen, and a trained product of low rank
 * is added to products with the weights of target modules. With a weight [out, in] of module M, x
 * weight^T becomes
 *
 *     x weight^T + alpha / rank (dropout(x) A^T) B^T
 *
 * A is the parameter M.lora_A.weight [rank, in], uniform within 1 / sqrt(in); B is M.lora_B.weight
 * [out, rank], zeros, so that training begins with the results of the base. An adapter with a name
 * has it in the names of its parameters, before the last part: M.lora_A.critic.weight. Then
 * programs over one store may have different adapters, or none, over one base: each has parameters
 * of its own, and the base is there once. A name changes no first values. A graph has one adapter.
 * The module of a parameter "M.weight" is M; of any other parameter it is the whole name. A weight
 * may also be [in, out] (zf_matmul). A bias stays with its product. Frozen parameters have no
 * gradients and no states, and are not reduced; zf_zero and zf_offload shard, gather and move them
 * like other parameters.
 *
 * Of a target that is a table of rows (zf_embedding) the rows get the product:
 *
 *     table[id] + alpha / rank A[id] B^T
 *
 * A is M.lora_embedding_A.weight [rows, rank], zeros; B is M.lora_embedding_B.weight [width, rank],
 * normal with deviation 1. There is no dropout. Products with the same parameter, as those of a
 * head that is tied to it, stay those of the base.
 *
 * Of a target with a matrix for each expert (zf_grouped_linear, [experts, out, in]) A is [experts,
 * rank, in] and B [experts, out, rank]: the rows of an expert get its own product. dropout and dora
 * are ZF_ERR_ARGUMENT then.
 *
 * With dora (Liu et al. 2024) rows of the sum W of a weight and its product have trained lengths:
 * row r counts magnitude[r] / |row r| times, of a table each column. The length of a row has no
 * gradient. The magnitudes are M.lora_magnitude_vector.weight [out]; zf_lora_magnitudes gives them
 * their first values once the weights are there, or the program reads them from a file; before that
 * they are zeros. What is dropped is left out of the sum, and not of the base. A weight [in, out]
 * must not be square.
 *
 * A weight may hold records (zf_param_desc.quantized), for zf_quantized_linear (QLoRA, Dettmers et
 * al. 2023): it is converted to floats a tile at a time, forward and backward.
 *
 * Parameters that `keep` names are not frozen: they belong to the adapter, as the score head of a
 * reward model does. With a name, "score.weight" becomes "score.critic.weight". The base without
 * the adapter then reads "score.weight", which is another parameter, or which the store lacks.
 *
 * A program that evaluates or generates runs the same pass over its graph. Where the weights are
 * floats, the products can be added to them instead (zf_lora_merge).
 *
 * Requires: the forward graph, before zf_fuse. desc NULL: defaults. */
typedef struct zf_lora_desc {
    const char *name; /* at most 63 letters, digits and underscores; NULL or "": it has none */
    int64_t rank; /* 0: 8 */
    double alpha; /* 0: rank */
    /* Other ranks and alphas of modules, "MODULE:NUMBER,...": modules by their names as those of
     * `targets`; the first that fits a module counts, and each must fit one that is adapted. NULL
     * or "": none */
    const char *ranks, *alphas;
    bool rslora;  /* alpha / sqrt(rank) instead (Kalajdzievski 2023) */
    bool dora;    /* lengths of rows are trained as well */
    double dropout;
    /* Modules, by their whole names or by the part after a dot in them, separated by commas; each
     * must be found. NULL, or "all-linear": all weights of products, except tables, those of experts
     * and those of the last product, which only losses and outputs read */
    const char *targets;
    /* Parameters that stay trained, separated by commas: names of parameters, names of modules as
     * those of targets, with all parameters below them, and patterns of either with * and ?
     * (zf_param_group.params). Each must match a parameter, which is not frozen; targets leave
     * them out, and must have another module. NULL or "": none */
    const char *keep;
} zf_lora_desc;
ZF_API zf_status zf_lora(zf_graph *graph, const zf_lora_desc *desc);

/* Mixed precision (Micikevicius et al. 2018): a graph of f32 computes in bf16 or f16. Parameters
 * and activations get that dtype, and the optimizers update f32 master weights. Losses and their
 * weights, statistics, and all that the program writes and reads except parameters stay f32.
 * Products always add in f32.
 *
 * With a loss scale, the loss is multiplied by the scale before the backward pass, which keeps
 * small gradients from being rounded to zero in f16. zf_clip and the optimizers divide by it, in
 * f32. A step in which a gradient is non-finite, on any rank, is skipped: parameters and optimizer
 * states do not change. From the hysteresis-th overflow on, each overflow divides the scale by
 * `factor`; an overflow at min_scale is the step's error, ZF_ERR_NAN. When `window` finite steps
 * have followed the first one after the last overflow, the scale is multiplied by `factor` and the
 * hysteresis is restored. Outputs "loss_scale" and "skipped_steps" (i64) are states, which
 * checkpoints hold. zf_gradient's values are multiplied by the scale.
 *
 * Requires: zf_autograd not run yet; before or after zf_fuse. desc NULL: nothing. */
typedef struct zf_precision_desc {
    zf_dtype dtype;     /* ZF_BF16 or ZF_F16; ZF_F32: dtypes stay */
    double scale;       /* the first loss scale; 0: 65536 of f16, else none; ZF_ZERO: none */
    double factor;      /* 0: 2; 1: the scale is constant, and steps are only skipped */
    int64_t window;     /* 0: 1000 */
    int32_t hysteresis; /* the overflow that first divides the scale; 0: 2 */
    double min_scale;   /* 0: 1 */
    bool consecutive_hysteresis; /* any finite step restores the hysteresis */
} zf_precision_desc;
ZF_API zf_status zf_precision(zf_graph *graph, const zf_precision_desc *desc);

/* Tiling of large operators (ZeRO-Infinity, Rajbhandari et al., SC'21, section 5.1.3): a linear
 * layer whose weight takes more than `bytes` becomes several over ranges of its output features,
 * forward and backward. Each range of the weight's rows is a piece, with a gradient, states and a
 * bucket of its own, so that zf_zero (stage 3) and zf_offload bring one piece at a time. Weights
 * are [features, inputs], as zf_linear, zf_nn_linear and zf_matmul_ex with transpose_b take them.
 * The table of an embedding is cut too, also where the output layer uses it again; what anything
 * else reads stays whole. Weights of experts (zf_grouped_linear) are cut into ranges of experts,
 * whose products are added, with equal bits. Pieces have a multiple of 1024 elements, whatever the
 * limit.
 *
 * A layer of logits in pieces keeps all logits of a micro-batch, and their gradient, which
 * the fused loss does not: tiling it pays where a micro-batch has fewer labels than half the width.
 *
 * The gradient with respect to the layer's input is added in another order; in 16 bits it is
 * rounded once for each piece. On the CPU no other bits change, and those of a tiled graph are the
 * same at every stage and with every offload. passes/rewrite/tile.c derives it.
 *
 * The weight keeps its name for zf_graph_find, zf_param_at, zf_read, zf_write and stores;
 * checkpoints with and without tiling are the same. In the text its pieces are "NAME[FIRST:LAST]",
 * by rows. zf_gradient has no gradient of a weight in pieces. All programs over one store must be
 * tiled alike. Requires: zf_autograd not run yet; after zf_fuse and zf_precision. desc NULL:
 * nothing. */
typedef struct zf_tile_desc {
    size_t bytes; /* of a weight, or a piece, at most; 0: nothing is tiled */
} zf_tile_desc;
ZF_API zf_status zf_tile(zf_graph *graph, const zf_tile_desc *desc);

/* Appends the gradient of `loss` (a scalar) with respect to every parameter that is not frozen and
 * that it depends on, one `gradient param, value` node each. An output of `loss` gets the role
 * `loss`, whatever it is called. Where there is none, and where the name is free, an output "loss"
 * is made; where another node has this name, "autograd.loss". Requires: not run before. */
ZF_API zf_status zf_autograd(zf_graph *graph, zf_tensor loss);
/* After zf_autograd: the gradient of a parameter as the passes so far have made it, or the invalid
 * tensor where it has none, without making it an error. Of a table whose group has lazy_rows it is
 * that of some of its rows, in as many as there are lookups. */
ZF_API zf_tensor zf_gradient(zf_graph *graph, zf_tensor param);

/* Sections of sums over what the ranks along an axis share. */
typedef struct zf_sections {
    int32_t tensor;  /* 0: the number of ranks along it */
    int32_t context; /* the same */
    int32_t expert;  /* the same; of neighbours along data, whose number is a multiple of it */
} zf_sections;

/* What ranks along tensor have between the layers that they share. */
typedef enum zf_cut_tokens {
    ZF_TOKENS_FIT,  /* as CUT, where sections divide the tokens; else as WHOLE */
    ZF_TOKENS_CUT,  /* a part each of the tokens of every sequence: sequence parallelism */
    ZF_TOKENS_WHOLE /* all tokens each */
} zf_cut_tokens;

/* Cuts layers over ranks along the axis tensor: of two products with parameters, one after the
 * other, the first by its columns, the second by what it sums over; attention by heads. Gradients
 * and updates are cut with them. What lies between is cut over tokens, dimension 1 of inputs. Sums
 * over what is cut are made of `sections`, a balanced tree, and have the bits of any number of
 * ranks with as many sections. docs/axes.md has the types. By zf_passes with zero.store, parameters
 * that the store has are cut as there; where the graph keeps one whole that is cut there, that is
 * ZF_ERR_ARGUMENT. Requires: not zf_zero yet; after zf_autograd and the optimizer, where the step
 * trains. */
typedef struct zf_cut_desc {
    int32_t parts;    /* ranks along tensor; 0: 1 */
    int32_t sections; /* divided by `parts`; 0: `parts` */
    zf_cut_tokens tokens;
    /* zf_context, which follows, deals tokens first: `tokens` is of what a rank along context has of
     * a sequence, in equal sections of each section of zf_context */
    bool later;
} zf_cut_desc;
ZF_API zf_status zf_cut(zf_graph *graph, const zf_cut_desc *desc);
/* Makes what zf_cut cannot cut as it is of nodes that it can, in so many sections: the head of a
 * loss, by its classes, and products that join layers. 0 or 1: nothing. zf_passes runs it after
 * zf_fuse; with zero.store a product whose weight the store has whole stays one. Requires: before
 * zf_precision and zf_autograd. */
ZF_API zf_status zf_divide(zf_graph *graph, int32_t sections);

/* What attention does where ranks share sequences. */
typedef enum zf_context_kind {
    /* Exchanges tokens for heads: each rank has some heads of whole sequences (DeepSpeed Ulysses).
     * `sections` must divide heads and key-value heads */
    ZF_CONTEXT_ULYSSES,
    /* Gathers keys and values: each rank has its queries, of all heads. The gradients of keys and
     * values are sums over sections of queries, of which each rank gets its part */
    ZF_CONTEXT_GATHER,
    /* The same; of twice as many pieces as ranks, rank r of C has number r and 2C-1-r. Under a
     * causal mask ranks then have equal work. `sections` is a multiple of 2C, by default 2C */
    ZF_CONTEXT_ZIGZAG,
    /* Keys and values of one rank at a time are on all ranks, in ascending order, and what a rank's
     * queries make of each is joined to what they made of those before. So are the gradients: those
     * of a rank's keys and values are summed for that rank. Block masks are ZF_ERR_ARGUMENT */
    ZF_CONTEXT_RING
} zf_context_kind;

/* Cuts sequences over ranks along the axis context: each rank has a piece of every sequence, that
 * is of dimension 1 of inputs. Attention is as `kind` says. Parameters are equal on these ranks,
 * and their gradients are summed over them. Sums over tokens are made of `sections`, a balanced
 * tree, and have the bits of any number of ranks with as many sections. docs/axes.md has an
 * example. Requires: no axis but tensor, of zf_cut with ZF_TOKENS_WHOLE or `later`; not zf_zero
 * yet; after zf_autograd and the optimizer, where the step trains. */
typedef struct zf_context_desc {
    int32_t parts;    /* ranks along context; 0: 1 */
    int32_t sections; /* divided by `parts`; 0: `parts` */
    zf_context_kind kind;
} zf_context_desc;
ZF_API zf_status zf_context(zf_graph *graph, const zf_context_desc *desc);
/* Orders the axes of the ranks, the slowest first: "data,pipe,tensor". Ranks that follow one
 * another differ in the last axis; launchers put them on one node. Each axis that the ranks have is
 * named, and data; others may be. Without it the order is pipe, data, context, tensor. Bits are
 * those of any order. Requires: after zf_cut, zf_context and zf_stages; not zf_zero yet. */
ZF_API zf_status zf_order(zf_graph *graph, const char *axes);
/* The number of a rank along an axis (ZF_OVER_DATA, ...) of the graph; 0: it has no such axis. */
ZF_API int32_t zf_rank_along(const zf_graph *graph, int32_t over, int32_t rank);

/* In which form rows of tokens go to the ranks of experts, and back. */
typedef enum zf_expert_dispatch {
    ZF_DISPATCH_FLOAT, /* their own dtype */
    /* 8 bits with an f32 scale for each block of a row, of the largest power of two up to 256
     * that divides it, at least 64: rows and their gradients are rounded by at most half a 127th of the largest
     * number of a block, as often as they are sent (ZeRO++, Wang et al. 2023) */
    ZF_DISPATCH_INT8
} zf_expert_dispatch;

/* Ranks along the axis expert, a part of data, share experts: neighbours along data have batches of
 * their own, and each the matrices of other experts. Rows of tokens go to the ranks of their
 * experts and back. Gradients of experts are sums of `sections`, one for each of as many neighbours
 * along data, a balanced tree, and have the bits of any number of ranks that divides these. After
 * zf_context, ranks with the same part of the tokens share experts, up to 64 of them. zf_zero
 * shards experts over the ranks that have the same. docs/experts.md has an example. Requires: not
 * zf_zero yet; after zf_autograd and the optimizer, where the step trains. */
typedef struct zf_experts_desc {
    int32_t parts;    /* ranks along expert: a divisor of the number of experts; 0: 1 */
    int32_t sections; /* divided by `parts`; 0: `parts` */
    /* Rows for which there is room on the rank of an expert, from each of these ranks: this times
     * the mean, choices / parts. More are an error of the step. 0: as many as there can be. It is
     * not for capacities, which say how many there are */
    double rows;
    /* With ZF_DISPATCH_INT8 rows are rounded with one part too, so that bits are those of others */
    zf_expert_dispatch dispatch;
} zf_experts_desc;
ZF_API zf_status zf_experts(zf_graph *graph, const zf_experts_desc *desc);

/* Which of several orders it is. Idle is the time that each rank waits in a step, where its tasks
 * take F, B and W for a micro-batch, with p ranks. A rank r keeps what the backward pass needs of
 * so many micro-batches of m (PIPELINES, below). */
typedef enum zf_pipe_kind {
    ZF_PIPE_1F1B,        /* idle (p-1)(F+B+W), keeps p-r */
    ZF_PIPE_GPIPE,       /* idle (p-1)(F+B+W), keeps m */
    /* idle (p-1)(F+B+W)/v, keeps 2(p-1-r) + (v-1)p + 1 of one of its v chunks; m is a multiple of
     * p */
    ZF_PIPE_INTERLEAVED,
    ZF_PIPE_ZB_H1,       /* idle (p-1)(F+B-W), keeps p */
    /* Two chunks: rank r has r and 2p-1-r. Idle (p-1)F/2, at the ends of the step alone, where m is
     * 2p-1 or more and F, B and W are equal; keeps 2p of one chunk */
    ZF_PIPE_ZB_V
} zf_pipe_kind;
/* "1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"; NULL after the last */
ZF_API const char *zf_pipe_kind_name(zf_pipe_kind kind);

/* What the ranks along pipe do in a step of several micro-batches. */
typedef struct zf_pipe_schedule {
    zf_pipe_kind kind;
    int32_t chunks; /* stages of each rank; 0: 2 of zb-v and of interleaved, 1 of others */
} zf_pipe_schedule;

/* Gives each rank along the axis pipe some of the layers: a stage. A layer is the nodes of one
 * numbered scope ("layer.7"), or those that use parameters of such names; gradients, updates and
 * states are where their layer is. What comes before the first layer is with it, what comes after
 * the last with that. Layers stay in their order. A value that another stage reads is sent there,
 * and outputs are made equal on all ranks. docs/pipelines.md has the text. Requires: not zf_zero
 * yet; after zf_autograd, the optimizer and zf_cut. */
typedef struct zf_stages_desc {
    int32_t ranks; /* along pipe, at most as many as there are layers; 0: 1 */
    /* The number of layers of each stage: "3,3,2". NULL: dealt so that the stage with the most
     * FLOPs has as few as possible; by zf_passes with zero.store, as in that store, and with a
     * limit, recompute.bytes or memory_limit, so that the plan of each rank fits, if that can be.
     * Programs of one store must deal alike, which a graph that trains and one that does not need
     * not do by themselves */
    const char *layers;
    /* Of a step that trains; with several chunks a stage is one of them, and a rank has several.
     * It is run where the step has several micro-batches, as many as ranks or more
     * (zf_zero_desc.micro_batches): tasks of different micro-batches overlap, and zf_step runs them
     * all. Numbers do not depend on it */
    zf_pipe_schedule schedule;
} zf_stages_desc;
ZF_API zf_status zf_stages(zf_graph *graph, const zf_stages_desc *desc);
/* Leaves out what other stages have, as zf_compile does for its rank. For the plan of each stage:
 *
 *     zf_graph *one = zf_graph_copy(graph);
 *     zf_keep_stage(one, 0), zf_memory(one, NULL), zf_graph_plan(one, &plan);
 *
 * The result is a part of a graph, whose text does not read back; of passes zf_memory alone may
 * follow. Requires: zf_stages, and what else rewrites the graph, such as zf_zero. */
ZF_API zf_status zf_keep_stage(zf_graph *graph, int32_t stage);

/* Removes nodes that no output, gradient or update needs, merges equal nodes, folds constants, and
 * removes pairs of inverse operators. Requires: after zf_autograd, unless the loss is an output.
 */
ZF_API zf_status zf_simplify(zf_graph *graph);

/* Scales every gradient by 1 / max(1, (norm + 1e-6) / max_norm), norm over all of them, and adds an
 * output "grad_norm" (before the scaling). max_norm <= 0 or infinite: the output alone. Requires:
 * zf_autograd; no optimizer yet. */
ZF_API zf_status zf_clip(zf_graph *graph, double max_norm);

/* Optimizers: one update per parameter that has a gradient. `lr` is a scalar f32. Weight decay is
 * decoupled (added to the update; for SGD to the gradient) and applies to parameters of rank >= 2,
 * so not to biases and norms, unless decay_all. A bf16 or f16 parameter is updated in f32: its
 * master weights are a state, which starts as the first value in f32; the parameter is the master
 * weights, rounded. A graph has one optimizer, and others for the groups that name them
 * (zf_param_group.optimizer). Requires: zf_autograd. desc NULL: defaults. */
typedef struct zf_sgd_desc {
    double momentum; /* 0 */
    bool nesterov;
    double weight_decay; /* 0 */
    bool decay_all;
} zf_sgd_desc;
ZF_API zf_status zf_sgd(zf_graph *graph, zf_tensor lr, const zf_sgd_desc *desc);

/* AdamW (Loshchilov & Hutter 2019): p -= lr (m^ / (sqrt(v^) + eps) + wd p). A member that is 0 has
 * the default in its comment; ZF_ZERO is the number 0. */
typedef struct zf_adamw_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
    bool no_bias_correction; /* m and v in the place of m^ and v^ */
} zf_adamw_desc;
ZF_API zf_status zf_adamw(zf_graph *graph, zf_tensor lr, const zf_adamw_desc *desc);

/* LAMB (You et al. 2020): u = m^/(sqrt(v^) + eps) + wd p; r = |p| / |u|, clamped, 1 where a norm is
 * 0; p -= lr r u. */
typedef struct zf_lamb_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-6 */
    double weight_decay; /* 0 */
    double min_coeff; /* 0.01 */
    double max_coeff; /* 10 */
    bool decay_all;
    bool no_bias_correction; /* m and v in the place of m^ and v^ */
} zf_lamb_desc;
ZF_API zf_status zf_lamb(zf_graph *graph, zf_tensor lr, const zf_lamb_desc *desc);

/* Lion (Chen et al. 2023): p -= lr (sign(beta1 m + (1 - beta1) g) + wd p); m = beta2 m + (1 -
 * beta2) g. Its lr is about a tenth of AdamW's, and its weight_decay ten times. */
typedef struct zf_lion_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.99 */
    double weight_decay; /* 0 */
    bool decay_all;
} zf_lion_desc;
ZF_API zf_status zf_lion(zf_graph *graph, zf_tensor lr, const zf_lion_desc *desc);

/* 1-bit Adam (Tang et al. 2021). Steps up to freeze_step, the warm-up, are AdamW's to the last bit.
 * After it the variance v is constant, and the ranks average momentum as signs instead of
 * gradients:
 *
 *     c = beta1 m + (1 - beta1) g_r + e    g_r is the gradient of rank r's part of the batch
 *     m = mean of compressed c             signs, and one scale for each block of 1024 elements
 *     e = c - compressed c                 the error, a state of each rank
 *     p -= lr (a + wd p)                   a = m^ / (sqrt(v^) + eps), within [-limit, limit]
 *
 * A block of 1024 elements is sent in 132 bytes. After the warm-up each rank clips its own
 * gradient, and "grad_norm" is |g_r| / sqrt(ranks). An element whose variance is 0 is moved by
 * weight decay only. Bits depend on the number of ranks, and on which examples each has.
 *
 * Requires: ZeRO stage 0, 1 or 2 with nodes = 1, no zf_offload, no loss scale; anything else is an
 * error. docs/onebit-optimizers.md has all formulas, what checkpoints hold, and how the paper and
 * DeepSpeed differ. */
typedef struct zf_onebit_adam_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
    /* The last step of the warm-up, for example a fifth of all; 0: 100000 */
    int64_t freeze_step;
    /* The maximum by which a compressed step moves an element, in multiples of lr. AdamW moves by 1
     * where gradients are all equal, and by less elsewhere. 0: 1; INFINITY: no limit, as in the
     * paper */
    double limit;
    /* Which of the two steps the pass appends (zf_variant_count): 0: that of the warm-up; 1: the
     * compressed one */
    int32_t variant;
} zf_onebit_adam_desc;
ZF_API zf_status zf_onebit_adam(zf_graph *graph, zf_tensor lr, const zf_onebit_adam_desc *desc);

/* 1-bit LAMB (Li et al. 2021). Steps up to freeze_step, the warm-up, are LAMB's to the last bit.
 * They also average the ratio r of each tensor: c = coeff_beta c + (1 - coeff_beta) r. After the
 * warm-up momentum is averaged as signs, as by zf_onebit_adam, and v and c are constant:
 *
 *     p -= lr c^ k (a + wd p)    a as for zf_onebit_adam; c^ is c, corrected as AdamW's moments are
 *     k = max of (sqrt(v^) + eps) / (sqrt(f^) + eps) over the tensor, within [min_factor,
 *         max_factor], and within 1 +- factor_change times the k of the step before
 *
 * f begins as v and goes on with the gradients of which the averaged momentum is made.
 * Bytes, "grad_norm", elements without variance, bits and requirements are those of zf_onebit_adam.
 * docs/onebit-optimizers.md has all formulas, and how the paper and DeepSpeed differ. */
typedef struct zf_onebit_lamb_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-6 */
    double weight_decay; /* 0 */
    double min_coeff; /* 0.01 */
    double max_coeff; /* 10 */
    bool decay_all;
    double coeff_beta; /* 0.9 */
    double min_factor; /* 0.5 */
    double max_factor; /* 4 */
    double factor_change; /* 0.1 */
    int64_t freeze_step; /* as in zf_onebit_adam_desc */
    double limit;        /* likewise */
    int32_t variant;     /* likewise */
} zf_onebit_lamb_desc;
ZF_API zf_status zf_onebit_lamb(zf_graph *graph, zf_tensor lr, const zf_onebit_lamb_desc *desc);

/* 0/1 Adam (Lu et al. 2022). It has no warm-up. A step is one of three variants:
 *
 *     refresh   the gradient is averaged in full, and renews momentum and variance
 *     sync      each rank adds lr times its own momentum to its sum u_r; the u_r are averaged as
 *               signs (zf_onebit_adam), the parameters move by the average, and u_r becomes 0
 *     local     each rank adds to u_r; nothing is sent but the losses
 *
 * Refreshes become rarer until var_freeze_step; other steps until then are syncs. After it each
 * interval of steps, of 1, 2, 4, ... up to local_step_clipper, ends with a sync. Inside an interval
 * each rank computes with p - u_r / (sqrt(v) + eps); checkpoints and evaluation have p. Blocks,
 * "grad_norm", elements without variance and bits are as for zf_onebit_adam. Checkpoints of runs
 * with local steps and of runs without are ZF_ERR_MISMATCH for one another.
 *
 * Requires: as zf_onebit_adam, but stages 1 and 2 only with local_step_clipper = 1, which makes no
 * local steps and has two variants; anything else is an error. docs/onebit-optimizers.md has all
 * formulas, and how the paper and DeepSpeed differ. */
typedef struct zf_zero_one_adam_desc {
    double beta1; /* 0.9 */
    double beta2; /* 0.999 */
    double eps;   /* 1e-8 */
    double weight_decay; /* 0 */
    bool decay_all;
    int64_t var_freeze_step;    /* 0: 100000 */
    int64_t var_update_scaler;  /* 0: 16, for some 100,000 steps; a short run learns more with a
                                 * twentieth of its steps */
    int64_t local_step_scaler;  /* 0: 32768 */
    int64_t local_step_clipper; /* 0: 16; 1: no local steps, as stages 1 and 2 need */
    double limit; /* as in zf_onebit_adam_desc */
    int32_t variant; /* which step is appended: 0 refresh, 1 sync, 2 local (zf_variant_count) */
} zf_zero_one_adam_desc;
ZF_API zf_status zf_zero_one_adam(zf_graph *graph, zf_tensor lr, const zf_zero_one_adam_desc *desc);

/* Delayed updates (ZeRO-Offload, Ren et al., ATC'21): from the program's second step on, a step
 * updates by the gradients of the step before, which states "delay.gradient/PARAM" keep, with its
 * own learning rate; its first step makes no update. So updates need not wait for gradients, and
 * run concurrently with the computation of the next ones (zf_offload, zf_prefetch). This changes
 * what is learned, to the same bits with zf_offload and without it. The gradients of the last step
 * are left unused. Requires: an optimizer of this library; before zf_zero. */
ZF_API zf_status zf_delay(zf_graph *graph);

/* An exponential moving average of each trained parameter (Polyak & Juditsky 1992): after each
 * update, average = decay average + (1 - decay) parameter. It begins as the parameter, also when
 * that is written (zf_write, zf_load without states). It is f32 for a parameter of 16 bits, the
 * average of its master weights, and stays where a loss scale skips a step. It is a state
 * "ema.average/PARAM", which zf_zero shards, zf_offload moves and checkpoints hold as they do
 * master weights; zf_ema_copy makes parameters of it, for evaluation and export. Requires: an
 * optimizer; before zf_zero. desc NULL: defaults. */
typedef struct zf_ema_desc {
    double decay; /* 0: 0.999 */
} zf_ema_desc;
ZF_API zf_status zf_ema(zf_graph *graph, const zf_ema_desc *desc);

/* When the rewrite `invert` is applied. */
typedef enum zf_invert {
    ZF_INVERT_ALWAYS,
    /* By zf_passes where the plan without it exceeds zf_training.memory_limit (never where that is
     * 0), since it saves memory and costs time. zf_fuse called by itself always applies it */
    ZF_INVERT_AS_NEEDED
} zf_invert;

/* Merges nodes into fused ones, with less memory and memory traffic. Before zf_autograd it fuses
 * the forward pass, whose gradients are then fused too; called a second time after the optimizer it
 * fuses gradients and updates. Each rewrite has a name and can be left out:
 *
 *     linear     product, bias, activation
 *     swiglu     silu of one value times another
 *     qkv        projections of one input, as one product; the weights are neighbours in memory
 *     attention  products, mask, softmax and dropout, online: no matrix of tokens by tokens
 *     softmax    scale, mask, softmax and dropout, where `attention` does not apply
 *     norm       bias, dropout, residual and LayerNorm or RMSNorm
 *     embedding  word, type and position embeddings, LayerNorm and dropout
 *     head       logits, cross-entropy and argmax, in tiles: the whole logits are never in memory
 *     accumulate a product that is added to a value starts from that value
 *     sums       gradients of biases before `norm`, gelu, silu and packed attention, computed by
 *                the gradients of these
 *     invert     the backward pass recomputes activations and inputs of LayerNorm from results
 *     update     clipping and update
 *     chain      elementwise nodes one after the other, as one loop
 *
 * passes/fuse/fuse.c gives for each the nodes before and after, and whether bits change. Before
 * zf_autograd it also reports near misses: nodes that only one thing keeps from being rewritten,
 * and what that is (passes/fuse/miss.c). desc NULL: all, and no reports. */
typedef struct zf_fuse_miss {
    const char *rewrite;    /* "attention" */
    int32_t node;           /* as the text numbers nodes, after the pass */
    const char *op, *scope; /* the node's; scope "" at the top */
    const char *file;       /* where it was built, NULL: not known */
    int line;
    const char *text; /* what is in the way; lives until the call returns, as the rest */
} zf_fuse_miss;
/* Writes "# near miss: REWRITE in SCOPE (FILE:LINE): %NODE = OP: TEXT" and a line end to a FILE:
 * for zf_fuse_desc.miss, with .user the file. */
ZF_API void zf_fuse_miss_print(void *file, const zf_fuse_miss *miss);

typedef struct zf_fuse_desc {
    /* Names of rewrites to leave out, separated by commas; "all": every one; NULL: none */
    const char *without;
    zf_invert invert;
    /* Embeddings and output layers with tables and weights of more bytes are left as they are, so
     * that zf_tile can cut these; 0: all are fused. zf_passes takes zf_tile_desc.bytes for 0 */
    size_t tile_bytes;
    /* Of a graph that is not trained: the rewrite `accumulate` is made as it is after zf_autograd,
     * so that in bf16 and f16 products with an adapter have the bits that they have in training.
     * zf_passes does so after the other passes; `chain` is left out, whose bits depend on what a
     * backward pass reads */
    bool as_trained;
    /* Called for each near miss; it must not touch the graph. NULL: none. zf_passes with
     * zf_training.print uses zf_fuse_miss_print */
    void (*miss)(void *user, const zf_fuse_miss *miss);
    void *user;
} zf_fuse_desc;
ZF_API zf_status zf_fuse(zf_graph *graph, const zf_fuse_desc *desc);
/* The name of a rewrite, index 0 and up; NULL after the last */
ZF_API const char *zf_fuse_name(int32_t index);

/* In which order the gradients of a step's parts are added. Both have defined bits, which depend on
 * no stage of ZeRO, no number of ranks along pipe, no bucket and no prefetch. */
typedef enum zf_sum_order {
    /* ZF_SUM_MICRO where ranks along pipe have stages (zf_stages), else ZF_SUM_PARTS */
    ZF_SUM_AUTO,
    /* From 0 on part after part of the global batch: of each micro-batch those of rank 0, 1, ... So
     * each micro-batch is summed over the ranks. Equal bits: all worlds in which world *
     * micro_batches is the same */
    ZF_SUM_PARTS,
    /* Each rank adds its micro-batches, from 0 on in f32 at least, and the ranks' sums are added in
     * the order of ranks, once a step: micro_batches times fewer bytes are sent. The gradients of a
     * rank are whole until then, in f32 at least, at all stages. With one rank, or one micro-batch,
     * it is the order of parts. Else bits are equal where world and micro_batches both are. Only
     * gradients: a loss, and other outputs of one float, have the order of parts */
    ZF_SUM_MICRO
} zf_sum_order;

/* How often stage 3 gathers parameters. Bits do not change. */
typedef enum zf_gather_when {
    ZF_GATHER_USE, /* for each run of uses in each micro-batch, after which they are released */
    /* Once a step: what is gathered in the first micro-batch stays on the device until the last one
     * has run. All parameters that a rank uses are there whole, besides its shards; of those that
     * are quantised (zf_zero_desc.quantized_weights) the integers are. The same with one
     * micro-batch as ZF_GATHER_USE */
    ZF_GATHER_STEP
} zf_gather_when;

/* ZeRO (Rajbhandari et al., SC'20): the step of one rank becomes that of each of `world` ranks. The
 * global batch is world * micro_batches equal parts; rank r runs part k * world + r as its
 * micro-batch k. The ranks hold equal shards of:
 *
 *     stage 0   nothing; gradients are summed over the ranks
 *     stage 1   optimizer states
 *     stage 2   optimizer states and gradients
 *     stage 3   optimizer states, gradients and parameters, which are gathered for each run of uses
 *
 * Losses, gradients, parameters and states are those of stage 0 to the last bit, and, with
 * ZF_SUM_PARTS, those of any other world in which world * micro_batches is the same.
 *
 * The loss, its gradients, and other outputs of one float are those of the global batch, as the
 * operators say that compute them. The first dimension of inputs has the examples; a scalar input
 * is the same for all parts.
 *
 *     mean    zf_mean; a sum of examples times 1 / its terms or 1 / examples; means added, or times
 *             what no example decides: the mean over the parts
 *     sum     zf_sum; sums added, or times what no example decides: the sum over the parts. Times a
 *             constant below 1 it is not said, since it may be part of a mean
 *     ratio   a sum (at least a number, or plus one) divides a sum, as in zf_cross_entropy without
 *             a weight: the sum over the parts divided by that over the parts. No parameter that is
 *             trained decides the divisor
 *     same    no example decides it: as it is; may be added to a mean
 *
 * Any other is ZF_ERR_ARGUMENT, unless zf_output_desc.reduction says what it is: a product,
 * maximum or function of these, two ratios with different divisors added. Other outputs, of several
 * elements or of integers, are those of a rank's last micro-batch.
 *
 * With several nodes, collectives run inside nodes and between them one after the other, so that
 * world / nodes times fewer bytes go between nodes. Gradients are added inside nodes first: bits
 * depend on the number of ranks in a node, but not on the number of nodes. docs/zeropp.md has the
 * order of sums, and the formulas of what is quantised.
 *
 * Requires: where there are gradients, an optimizer; not run before. desc NULL: one rank. */
typedef struct zf_store zf_store; /* api/running.h */
typedef struct zf_zero_desc {
    int32_t stage; /* 0, 1, 2 or 3 */
    int32_t world; /* ranks; 0: 1 */
    int64_t micro_batches; /* of a step, on each rank; 0: 1 */
    zf_sum_order sum; /* the order in which gradients are added */
    /* Of stage 3. ZF_GATHER_STEP not with hpz, and not with offloaded parameters */
    zf_gather_when gather;
    int32_t nodes; /* of the ranks, world / nodes in each; 0: 1 */
    /* Stage 3 (ZeRO++, Wang et al. 2023): the ranks of a node together keep a copy of the
     * parameters from the forward to the backward pass, whose gathers then stay inside the node. It
     * takes 1 / (ranks in a node) of the parameters on each rank. Bits do not change */
    bool hpz;
    /* Stages 1 to 3 (MiCS, Zhang et al. 2022): what the stage shards is sharded over the ranks of a
     * node, and each node has all of it. Gathers stay inside the node; of sums each rank sends its
     * shard to other nodes. Bits do not change */
    bool mics;
    /* Stage 3 (ZeRO++, qwZ): parameters are gathered as integers of 8 bits (zf_quantize_desc), half
     * of the bytes of bf16. What the optimizer updates is not rounded */
    bool quantized_weights;
    /* Stages 1 to 3 (ZeRO++, qgZ): gradients are sent as integers of 4 bits, a quarter of the bytes
     * of bf16, and added in f32 in the order of ranks. Scalars are not quantised */
    bool quantized_gradients;
    /* With quantized_gradients (LoCo, Xie et al. 2024): what a rank rounds off a gradient it adds
     * to its next gradient, that of the next micro-batch or step. With h = gradient + e quantised,
     * and r what that rounds off: e = loco_beta e + (1 - loco_beta) r. e is a state for all
     * elements of a parameter on each rank. Bits depend on how a batch is split into ranks and
     * micro-batches. Not with zf_tile. docs/zeropp.md: when e is 0, what checkpoints hold, and how
     * DeepSpeed differs */
    bool loco;
    double loco_beta;   /* in [0, 1); 0: 0.8; ZF_ZERO: 0, which loses nothing */
    int64_t loco_reset; /* 0: 1024; -1: never */
    /* Of an element of e: 32, or 8 with a scale for each block (zf_quantize_desc); 0: 32 */
    int32_t loco_bits;
    int32_t quantized_block;  /* as zf_quantize_desc.block; shards are padded to it; 0: 256 */
    zf_dtype quantized_scale; /* as zf_quantize_desc.scale */
    /* Of a step that only evaluates: it reads parameters whole from memory into which zf_hold has
     * gathered them (zf_hold_graph), and gathers nothing itself. So a generation of many tokens
     * gathers once, and its ranks may make different numbers of steps. At every stage: of
     * parameters that are whole on each rank, or offloaded, it makes a copy on the device */
    bool hold;
    /* Maximum number of bytes of a bucket. A bucket ends where a scope ends. 0: the size of the
     * largest numbered scope ("layer.7"), from 1 to 256 MiB */
    size_t bucket_bytes;
    /* Each weight of experts (zf_grouped_linear) has a bucket of its own, so that zf_offload can
     * bring the experts with rows alone. zf_passes sets it where parameters are offloaded */
    bool experts_apart;
    /* Parameters that this store holds keep the buckets they have there; NULL: none */
    const zf_store *store;
} zf_zero_desc;
ZF_API zf_status zf_zero(zf_graph *graph, const zf_zero_desc *desc);

/* A new graph, whose step gathers the parameters that `reader` reads from held memory
 * (zf_zero_desc.hold), with the quantisation and the nodes of its desc: for zf_hold. The reader's
 * passes have been run, and zf_memory has not. Its program holds the memory, and that of this graph
 * names it:
 *
 *     zf_zero_desc zero = {.stage = 3, .world = comm->world, .store = store, .hold = true};
 *     zf_passes(g, &(zf_training){.zero = zero});
 *     h = zf_hold_graph(g);
 *     reader = zf_compile(g, &(zf_compile_desc){.store = store, .shares_memory_with = train,
 *                                               .temporary_caches = true, .evaluate = true});
 *     gather = zf_compile(h, &(zf_compile_desc){.store = store, .shares_memory_with = train,
 *                                               .caches = reader, .evaluate = true});
 *     zf_hold(gather), zf_step(reader), zf_step(reader), ...
 *
 * NULL without memory. ZF_ERR_ARGUMENT of the new graph where the reader holds nothing,
 * ZF_ERR_STAGE after zf_memory, and the reader's error is that of the new graph too. */
ZF_API zf_graph *zf_hold_graph(const zf_graph *reader);

/* ZeRO-Offload (Ren et al., ATC'21), ZeRO-Infinity (Rajbhandari et al., SC'21): parameters, states,
 * gradients and values of the forward pass lie in host memory or on a disk, and are copied to the
 * device while it uses them. Losses, gradients, parameters and states stay the same, to the last
 * bit where the device is a CPU. ZF_DISK is a file (zf_store_desc.offload_dir), from which values
 * are read by way of host memory. Requires: zf_zero; before zf_prefetch. desc NULL: everything
 * stays on the device.
 *
 * With zf_prefetch and one micro-batch, updates run during the backward pass: states are read while
 * gradients are computed, and a bucket is updated as soon as its gradient is in host memory;
 * parameters that the backward pass has read from a disk are not read again for that. The update
 * section then begins after the forward pass, when all scalar outputs of the micro section (the
 * loss) have been checked; without such an output nothing overlaps. The norm of zf_clip, and the
 * check for a skipped step of f16, require all gradients; with these only reads overlap the
 * backward pass. The norm is computed where gradients are summed.
 *
 * On CUDA the host memory is pinned, and zf_store_desc.host updates while the device goes on. Both
 * are part of the step's CUDA graphs, whose number is the same without offload. */
typedef struct zf_offload_desc {
    /* Optimizer states, with the master weights. Their updates are computed in host memory:
     * gradients go there, and updated parameters come back */
    zf_space optimizer;
    /* Parameters: a bucket is copied to the device for each run of its uses, and released after it.
     * At stage 3 each rank copies its shard. Of weights of experts with a bucket of their own
     * (zf_zero_desc.experts_apart) those with rows in the micro-batch are copied; plans have the
     * bytes of all. Not possible at stages 1 and 2 with several ranks */
    zf_space parameters;
    /* ZF_HOST: gradients go to host memory when they are summed. With several micro-batches their
     * sums lie there: of each bucket the shard or the whole, by the stage. One rank adds them
     * there; with several ranks a sum is on the device while they add to it. ZF_DISK: from there
     * gradients go to the disk, and come back for the next micro-batch's sum and for the update,
     * which reads them in pieces. With one micro-batch zf_prefetch leaves those in host memory for
     * which its budget host_bytes has room: where updates run during the backward pass, these are
     * most of them, and they are not written. With zf_delay the gradients kept for the next step
     * lie in host memory if the states are offloaded, else on the device */
    zf_space gradients;
    /* Values of the forward pass that the backward pass reads. Each goes to host memory, and from
     * there to the disk, after its last use in the forward pass, and comes back before its first
     * use in the backward pass. With zf_recompute these are the inputs of layers. The store keeps
     * the disk space for them until the store is freed */
    zf_space activations;
    /* Buckets of parameters, and activations, of at most so many bytes stay on the device */
    size_t keep_bytes;
    /* Updates of buckets with copies of parameters or states run in pieces. This is the maximum
     * number of bytes of a copy as f32, at least 4096. 0: 16 MiB where states or parameters lie on
     * a disk, else no pieces. With zf_prefetch pieces are read and written while others are
     * updated, within its budgets */
    size_t piece_bytes;
} zf_offload_desc;
ZF_API zf_status zf_offload(zf_graph *graph, const zf_offload_desc *desc);

typedef struct zf_backend zf_backend; /* api/running.h */
typedef struct zf_comm zf_comm;       /* api/running.h */

/* The speed of a link, or of copies in one direction. */
typedef struct zf_cost_link {
    double bytes_per_s;
    double latency_s; /* seconds of a collective or copy of no bytes */
} zf_cost_link;

/* The speeds of a machine, by which passes choose between plans, and zf_graph_estimate predicts the
 * time of a step. Each is of one rank. */
typedef struct zf_cost {
    /* Computing on the device. The time of an operation is that of its FLOPs, its functions, and
     * either its bytes or its 16-bit values, whichever take longer */
    struct {
        double flops_per_s;      /* of products of matrices; a multiply-add is two FLOPs */
        double half_flops_per_s; /* of products whose operands have 16 bits; 0: flops_per_s */
        double bytes_per_s;      /* bytes of memory that any operation reads and writes */
        /* 16-bit values that are converted or packed; 0: bytes_per_s / 2 */
        double half_values_per_s;
        double functions_per_s; /* exp and the like (zf_launch_functions); 0: bytes_per_s / 8 */
    } device;
    /* Collectives inside a node, and all collectives where there is only one node. Bytes are those
     * that a rank sends */
    zf_cost_link link;
    /* Collectives between nodes. Where bytes_per_s is 0, both members are those of `link` */
    zf_cost_link between;
    /* Updates that zf_offload makes in host memory */
    struct {
        double bytes_per_s; /* bytes read and written; 0: that of zf_cost_default */
        /* 1: host memory has processors of its own, as it has where the device is a GPU; 0: what is
         * computed in host memory takes the device's time */
        double apart;
    } host;
    /* Copies of zf_offload. Where bytes_per_s is 0, both members are those of zf_cost_default */
    zf_cost_link download; /* from the device to host memory */
    zf_cost_link upload;   /* from host memory to the device */
    zf_cost_link read;     /* from the disk to host memory */
    zf_cost_link write;    /* from host memory to the disk */
    struct {
        /* The part of computing on the device, 0 to 1, that is lost while the disk is read or
         * written. On a CPU both take processors and memory */
        double load;
        /* How much reads and writes share the disk's rate, 0 to 1. 0: neither slows the other down;
         * 1: both at the same time take as long as one after the other */
        double shared;
    } disk;
    /* The part of computing on the device, 0 to 1, that is lost while a copy between the device and
     * host memory runs. On a CPU both take processors and memory */
    double copy_load;
} zf_cost;
/* The table of a small CPU, a 10 Gbit/s network, copies at 10 GB/s, and an SSD that reads 2 and
 * writes 1 GB/s. */
ZF_API zf_cost zf_cost_default(void);

typedef struct zf_calibrate_desc {
    zf_backend *backend; /* NULL: a CPU backend of one thread */
    zf_backend *host;    /* what updates in host memory run on; NULL: as in zf_store_desc.host */
    const zf_comm *comm; /* NULL: the link is the default */
    int32_t nodes;       /* as zf_zero_desc.nodes: with several, both links are measured */
    const char *offload_dir; /* a folder on the disk; NULL: the disk is the default */
} zf_calibrate_desc;
/* Measures a table, in about a second, and one or two more for a disk: products and sums of f32 and
 * bf16, gelu, copies between the spaces, alone and while products run, an update in host memory,
 * all_gathers, and a file of 256 MiB in the folder, which it removes. All ranks must call, and all
 * get rank 0's values, so that their plans are the same. On an error *cost does not change; an
 * error on one rank is the error on all. desc NULL: defaults. */
ZF_API zf_status zf_calibrate(const zf_calibrate_desc *desc, zf_cost *cost, zf_error *error);
/* A table as a JSON file: an object with a number for each member. The key of a member is its path
 * with `_` for `.`, as "link_latency_s" of link.latency_s; members of `device` have no prefix:
 * "flops_per_s". Bytes, values, functions and FLOPs per second are from 1 to 1e24, seconds from 0
 * to 1e6, others from 0 to 1. flops_per_s, bytes_per_s, link_bytes_per_s and link_latency_s are
 * required. Another member that is not in the file is what 0 stands for (above), or else that of
 * zf_cost_default. On an error *cost, or the file at `path`, does not change. allocator NULL: the C
 * library's. */
ZF_API zf_status zf_cost_read(const char *path, zf_cost *cost, const zf_allocator *allocator,
                              zf_error *error);
ZF_API zf_status zf_cost_save(const zf_cost *cost, const char *path, const zf_allocator *allocator,
                              zf_error *error);

typedef struct zf_prefetch_desc {
    /* The maximum number of bytes of each of these: parameters gathered ahead; gradients that wait
     * to be reduced; operands kept for gradients that are computed later; copies in one direction
     * that are under way or made ahead. 0: no overlap */
    size_t bytes;
    /* The maximum number of bytes of host memory for each of these: reads of a disk ahead for the
     * device; reads of a disk ahead for updates; the largest gradient that is kept longer because
     * its update waits for the disk; gradients that are kept and so do not go to the disk. 0: the
     * value of `bytes` */
    size_t host_bytes;
    /* Gathered buckets (stage 3), and buckets that zf_offload copies to the device, stay there
     * between forward and backward pass, as far as the plan fits zf_training.memory_limit. They
     * need not be brought again */
    bool keep_gathered;
} zf_prefetch_desc;

typedef enum zf_recompute_mode {
    ZF_RECOMPUTE_OFF,      /* nothing; with a limit: as ZF_RECOMPUTE_AS_NEEDED */
    ZF_RECOMPUTE_LAYERS,   /* each layer keeps its inputs only, and recomputes the rest */
    ZF_RECOMPUTE_AS_NEEDED /* as much as the limit `bytes` requires, with the fewest FLOPs */
} zf_recompute_mode;

typedef struct zf_recompute_desc {
    zf_recompute_mode mode;
    /* The limit of the plan's peak. Where no plan fits: ZF_ERR_LIMIT, which names the smallest
     * limit that a plan fits. 0: zf_training.memory_limit for ZF_RECOMPUTE_AS_NEEDED, none for
     * ZF_RECOMPUTE_LAYERS */
    size_t bytes;
} zf_recompute_desc;

/* What zf_passes has chosen by zf_training.fit. */
typedef struct zf_choice {
    zf_recompute_desc recompute;
    zf_offload_desc offload;
    size_t bytes[ZF_SPACES]; /* of the plan; with stages the most of a rank along pipe, */
    double seconds;          /* and of a step, estimated */
    double free_seconds;     /* of a step without limits, estimated */
    int32_t tried;           /* plans */
} zf_choice;
/* "optimizer=disk,parameters=disk, recompute" into text[0..size), terminated when size > 0; returns
 * the length of the whole text. */
ZF_API size_t zf_choice_text(const zf_choice *choice, char *text, size_t size);

/* Limits within which zf_passes fits a step: it chooses what is recomputed (zf_recompute_desc) and
 * what leaves the device (zf_offload_desc), by exact plans of copies of the graph and by their
 * estimated time (zf_graph_estimate, by zf_training.cost): the fastest that fits. It begins with
 * what zf_training.recompute and .offload ask for, which stays as it is. Where nothing fits:
 * ZF_ERR_LIMIT, which says by how much the nearest choice exceeds the limits. With stages each rank
 * along pipe is to fit, by one choice for all: the error names the one that exceeds most. Layers
 * are dealt by zf_training.memory_limit, as without fit. */
typedef struct zf_fit_desc {
    /* Bytes of device and host memory together, which are one memory on a CPU; 0: no limit. With
     * `memory` and `device` 0 nothing is chosen */
    size_t memory;
    size_t device; /* bytes of the device; 0: no limit */
    /* Bytes of host memory. 0: nothing stays there; values on their way to a disk pass it */
    size_t host;
    size_t disk; /* bytes of a disk (zf_store_desc.offload_dir); 0: nothing goes there */
    zf_choice *choice; /* receives what was chosen; NULL: not wanted */
} zf_fit_desc;

/* The optimizers: X(NAME, name) for ZF_NAME, zf_name_desc and zf_name. */
#define ZF_OPTIMIZERS(X)                                                                           \
    X(ADAMW, adamw)                                                                                \
    X(LAMB, lamb)                                                                                  \
    X(SGD, sgd)                                                                                    \
    X(LION, lion)                                                                                  \
    X(ONEBIT_ADAM, onebit_adam)                                                                    \
    X(ZERO_ONE_ADAM, zero_one_adam)                                                                \
    X(ONEBIT_LAMB, onebit_lamb)

typedef enum zf_optimizer {
#define ZFI_VALUE(NAME, name) ZF_##NAME,
    ZF_OPTIMIZERS(ZFI_VALUE)
#undef ZFI_VALUE
        ZF_OPTIMIZER_COUNT
} zf_optimizer;
/* "adamw", ...; NULL after the last */
ZF_API const char *zf_optimizer_name(zf_optimizer optimizer);

/* One description of a training step: the desc of each pass, and what all plans are made for. {0}
 * is valid, and so is each member that is {0}. */
typedef struct zf_training {
    const char *name; /* of the training (zf_name_training); NULL: it has none */
    /* A scalar. ZF_NONE: nothing is trained; passes about gradients are left out, and the step
     * evaluates */
    zf_tensor loss;
    zf_tensor lr; /* a scalar f32; ZF_NONE: the input "lr", which is made if it is missing */
    zf_lora_desc lora; /* {0}: not run */
    const char *param_groups; /* as a text (zf_param_groups); NULL: none */
    zf_fuse_desc fuse;
    zf_precision_desc precision;
    zf_tile_desc tile;   /* {0}: not run */
    /* Each gradient before zf_clip is an output, "gradient/PARAM"; ranks have of it what they have
     * of the parameter (zf_read_whole), with stages ranks along pipe those of all stages */
    bool keep_gradients;
    /* The maximum norm of zf_clip. INFINITY: only the output "grad_norm" is made; 0: zf_clip is not
     * run */
    double clip;
    zf_optimizer optimizer;
    /* A desc for each optimizer, under its name: `zf_adamw_desc adamw`, and so on. That of
     * `optimizer` is used, and those that param_groups name as an optimizer=NAME; a value other
     * than 0 in another one is an error */
#define ZFI_DESC(NAME, name) zf_##name##_desc name;
    ZF_OPTIMIZERS(ZFI_DESC)
#undef ZFI_DESC
    /* Which variant of the step this is (zf_variant_count), for an optimizer that has several */
    int32_t variant;
    zf_ema_desc ema; /* {0}: not run */
    /* Ranks along the axis tensor, which share layers (zf_cut); 0: 1. zf_zero_desc.world is the
     * number of the other ones, those along data */
    int32_t tensor;
    /* Ranks along the axis context, which share sequences (zf_context); 0: 1 */
    int32_t context;
    /* What attention does where ranks share sequences; without them it must be 0. With
     * ZF_CONTEXT_ULYSSES ranks have copies of key-value heads where there are fewer than sections */
    zf_context_kind context_kind;
    /* "tensor" or "none": what ranks along tensor have between the layers that they share, a part
     * of the tokens each or all of them (zf_cut_desc.tokens); NULL: a part, where sections divide
     * the tokens. With context these are those of each of its sections, and with
     * ZF_CONTEXT_ZIGZAG "tensor" is an error */
    const char *sequence;
    /* Neighbours along data that share experts (zf_experts): a divisor of zf_zero_desc.world; 0:
     * 1 */
    int32_t expert;
    double expert_rows;   /* zf_experts_desc.rows, */
    zf_expert_dispatch expert_dispatch; /* and .dispatch, for `expert` or `sections.expert` */
    /* Of sums (zf_cut, zf_context, zf_experts). Where those of tensor or context are above 1,
     * zf_fuse leaves out rewrites, of which `qkv` is one (docs/axes.md) */
    zf_sections sections;
    zf_stages_desc stages; /* {0}: not run; of one rank it only checks that there are layers */
    const char *order; /* of the axes (zf_order); NULL: pipe, data, context, tensor */
    bool delay; /* each step updates by the gradients of the step before (zf_delay) */
    /* Steps after this one are delayed (zf_delay); steps up to it are not. Above 0 the step has two
     * variants */
    int64_t delay_from;
    zf_recompute_desc recompute;
    zf_zero_desc zero; /* {0}: neither zf_zero nor zf_prefetch is run */
    zf_offload_desc offload;   /* {0}: not run; else zf_zero is, also where `zero` is {0} */
    zf_prefetch_desc prefetch; /* {0}: not run */
    zf_fit_desc fit;           /* {0}: recompute and offload are used as given here */
    /* Bytes that plans of zf_stages, zf_recompute and zf_prefetch should fit; 0: no limit */
    size_t memory_limit;
    zf_backend *backend; /* its scratch is counted in plans; NULL: none */
    /* The speeds by which zf_prefetch issues gathers and copies only as early as needed to hide
     * their time. NULL: as early as prefetch.bytes allow */
    const zf_cost *cost;
    /* The graph is printed here after each pass that changes it, under "# after PASS". NULL:
     * nothing is printed */
    FILE *print;
    /* Called after each pass that succeeded, with its name without "zf_"; it may add outputs to the
     * graph. NULL: not called */
    void (*after)(void *user, zf_graph *graph, const char *pass);
    void *user;
} zf_training;

/* Runs the passes of a training step by their descriptions, in this order:
 *
 *     name_training, lora, param_groups, fuse, divide, precision, tile, autograd, simplify, clip,
 *     an optimizer, ema, delay, cut, context, experts, fuse, stages, order, recompute, zero,
 *     offload, prefetch
 *
 * Each can be called by itself as well. zf_compile comes next, on the same backend. training NULL:
 * {0}. */
ZF_API zf_status zf_passes(zf_graph *graph, const zf_training *training);
/* The description with all defaults filled in, except zero.bucket_bytes, which depends on the
 * graph. It is to be read only: a 0 in it is 0, so a pass must not be given it. */
ZF_API zf_training zf_training_resolved(const zf_training *training);
/* Runs the optimizer of a description alone, with its lr. */
ZF_API zf_status zf_optimize(zf_graph *graph, const zf_training *training);
/* Runs one pass of a description by its name, which is that of its desc in zf_training: "tile",
 * "zero", "ema". ZF_ERR_ARGUMENT: there is no such pass. training NULL: its defaults. */
ZF_API zf_status zf_pass(zf_graph *graph, const char *name, const zf_training *training);

/* Variants of a step. Some optimizers have several kinds of step, chosen by the step's number:
 * 1-bit Adam has steps of a warm-up, then compressed ones. Each variant is a graph of its own,
 * built and compiled like any other, and all their programs work over one store, which counts their
 * steps:
 *
 *     for (t.variant = 0; t.variant < zf_variant_count(&t); t.variant++) {
 *         zf_graph *g = zf_graph_new(NULL);
 *         t.loss = build(g), t.zero.store = store, zf_passes(g, &t);
 *         p[t.variant] =
 *             zf_compile(g, &(zf_compile_desc){.store = store, .shares_memory_with = p[0]});
 *         store = zf_program_store(p[0]);
 *     }
 *     zf_program *now = p[zf_variant_at(&t, zf_store_step_of(store, t.name) + 1)];
 *
 * Compile all before zf_load: a checkpoint has the states of all variants. The number of the step
 * decides, so that a run goes on from a checkpoint as it would have without it, and all ranks take
 * the same. Updates that are delayed from some step on (delay_from) make two variants too. Other
 * descriptions have one. */
ZF_API int32_t zf_variant_count(const zf_training *training);
/* The name of a variant, such as "warm-up", "compressed", "direct", "delayed"; NULL for a number
 * outside */
ZF_API const char *zf_variant_name(const zf_training *training, int32_t variant);
/* The variant of step 1, 2, ... */
ZF_API int32_t zf_variant_at(const zf_training *training, int64_t step);

/* Activation checkpointing (Chen et al. 2016): the backward pass recomputes values of the forward
 * pass instead of keeping them. Bits do not change. Recomputed nodes are marked `recompute` in the
 * text. A layer is the nodes of one numbered scope ("layer.7"), or those that use parameters of
 * such names. Byte limits are compared with the final plan, after zf_zero and zf_prefetch as
 * `training` describes them. Requires: zf_autograd; after the optimizer and the last zf_fuse,
 * before zf_zero. training NULL: nothing. */
ZF_API zf_status zf_recompute(zf_graph *graph, const zf_training *training);

/* Overlaps communication with computation, on queues of their own: gathers, copies to the device
 * and reads of a disk are issued ahead of their use; reductions are waited for where their result
 * is read; the last large reduction, mostly an embedding's, is issued before the gradients that it
 * does not need; small gathers are joined; copies of zf_offload run concurrently with the updates,
 * and these with the backward pass (zf_offload_desc). Numbers do not change. Each but the fourth
 * costs at most prefetch.bytes of memory. Requires: zf_zero. training NULL: nothing overlaps. */
ZF_API zf_status zf_prefetch(zf_graph *graph, const zf_training *training);

/* ------------------------------------------------------------------------------------ PIPELINES
 *
 * The layers of a model are cut into chunks, one after the other, and each rank along the axis pipe
 * has one or more of them. A schedule is what each rank does in a step, in its order:
 *
 *     F c m     chunk c computes micro-batch m forward
 *     B c m     and backward: the gradient of its input, and of its weights where there is no W
 *     W c m     the gradients of its weights
 */

typedef struct zf_pipe {
    zf_pipe_kind kind;
    int32_t ranks;         /* along the axis pipe; 0: 1 */
    int32_t micro_batches; /* of a step, as many as ranks or more; 0: as many */
    int32_t chunks;        /* of each rank; 0: 2 of zb-v and of interleaved, 1 of others */
} zf_pipe;
/* The schedule, a line for each rank: "rank 0: F 0 0, F 0 1, B 0 0, B 0 1". Written to
 * text[0..size), terminated when size > 0; returns the length of the whole text. 0: there is no
 * such schedule, and `error` says why. */
ZF_API size_t zf_pipe_text(const zf_pipe *pipe, char *text, size_t size, zf_error *error);
/* The same as a picture in time, where F, B and W take as long. Letters of a rank's later chunks
 * are small; where there is no W, B takes twice the time:
 *
 *     rank 0  F0 F1 .  .  B0 == B1 ==
 *     rank 1  .  F0 B0 == F1 B1 == .
 */
ZF_API size_t zf_pipe_picture(const zf_pipe *pipe, char *text, size_t size, zf_error *error);
/* The times that tasks of one chunk take, in any unit. Where there is no W, B takes both. */
typedef struct zf_pipe_times {
    int64_t forward, backward, weights;
} zf_pipe_times;
/* The time that each rank is idle in a step, idle[0..ranks), if sending takes none. */
ZF_API zf_status zf_pipe_idle(const zf_pipe *pipe, const zf_pipe_times *times, int64_t *idle,
                              zf_error *error);
