/* Nodes, and the only function that appends them to a graph.
 *
 *     nodes[id]   the node; id 0 is invalid; an id is never used again for another node
 *     order[i]    ids in the order of execution; nodes marked `update` come last
 *     params[i]   the parameters, as declared; later in the order of ir/settle.c; after zf_tile
 *                 pieces instead of those that it has cut, which then are not in `order`
 *     names       input, param, state and output names -> id
 *
 * Text, operands and lists are in the graph's text arena; they never move. */

/* How ranks along the axes besides data have a value (graph/spread.c). */
typedef struct zfi_spread {
    /* The axes over which a dimension is cut, the outermost first: zf_over, 4 bits for each */
    uint16_t at[ZF_MAX_RANK];
    /* Elements of a cut dimension that are neighbours in the whole as well; 0: all of the rank's */
    int64_t run[ZF_MAX_RANK];
    /* Of how many equal sections of a rank's part it is one, and which; of 0: it is all of the
     * part */
    struct {
        int32_t of, at;
    } section[ZF_MAX_RANK];
    /* Elements of the whole dimension, where the last part has padding at its end; 0: none has */
    int64_t whole[ZF_MAX_RANK];
    uint8_t sum, differs; /* sets of axes: each rank has an addend; each has another value */
} zfi_spread;

typedef struct zfi_node {
    zf_op op;
    zf_dtype dtype;
    zf_shape shape;
    zfi_spread spread;
    int32_t *args; /* operands, by id */
    int32_t arg_count;
    int32_t number; /* its place in the order, from 1 on, outside passes */
    bool update;   /* of the update section: runs once per step, not once per micro-batch */
    bool below;    /* of the micro section, but below `update:`; the step has one micro-batch */
    uint8_t queue; /* the queue on which it runs, an index into zfi_queue_names */
    uint8_t space; /* zf_space: where its value lies, and where it runs */
    uint8_t role;  /* zfi_role: what the library has made it for; */
    int16_t stage; /* of a pipeline: 1 + that at which it is; 0: at all */
    uint8_t task;  /* of a pipeline: its section of the micro section, ZFI_TASK_F and so on */
    uint8_t shared; /* dimensions of which ranks along tensor have a part, as a mask, on one rank too */
    int32_t of;    /* the parameter of a state with a role; 0: none */
    int32_t shown; /* an output: the tensor that it was made of, whatever passes made of that; */
    bool sums;     /* which was a sum over examples then (graph/parts.c) */
    bool untold;   /* or of which was not known what the values of several parts make */
    bool recompute; /* recomputes another node's value; not counted as work of the model */
    bool dealt;     /* several ranks exchange it before a reader; of one rank too (deal.c) */
    bool layer;     /* of a layer that ranks along tensor share, which takes whole sequences */
    bool completes; /* adds what these have of a sum; of one rank it is the sum itself */
    bool later;     /* zf_context has left what it sums over tokens to those ranks (sequence.c) */
    zf_attribute attributes[ZF_MAX_ATTRIBUTES];
    const char *name;  /* of an operator with NAMED, else NULL */
    const char *scope; /* where it was built; "" at the top */
    const char *file;  /* the user's source; NULL: unknown */
    int line;
    int32_t same_as;             /* op none: the node that replaces it; 0: none */
    int32_t held;                /* the bucket in which this leaf lies; 0: it has its own storage */
    int32_t saved[ZF_MAX_SAVED]; /* its saved nodes; 0: none */
    bool placed;                 /* the memory pass has given it bytes: */
    int64_t offset, bytes;
    int64_t scratch_offset, scratch_bytes; /* in use while it runs */
    int32_t slots; /* of a pipeline's rank: copies of its value, for micro-batches in turn; 0: one */
    int64_t apart; /* bytes from one of these copies to the next */
} zfi_node;

typedef struct zfi_infer zfi_infer;
struct zfi_cut_text; /* graph/cuts.c */

/* How an operator's result depends on the rank (used by ir/ranks.c). */
typedef enum zfi_among_ranks {
    ZFI_RANKS_OPERANDS, /* as its operands; a shard if all are shards and it is elementwise */
    ZFI_RANKS_ALIKE,    /* the same on all ranks */
    ZFI_RANKS_KNOWN,    /* the same in every plan */
    ZFI_RANKS_BATCH,    /* this rank's part of the batch, unless it is one element */
    ZFI_RANKS_BUCKET,   /* this rank's shard, where the bucket is sharded */
    ZFI_RANKS_VIEW,     /* elements of operand 0 */
    ZFI_RANKS_FORM,     /* all elements of operand 0 in another form */
    ZFI_RANKS_SUM,      /* their sum over the ranks with which parts were exchanged */
    ZFI_RANKS_SHARD,    /* this rank's shard of operand 0 */
    ZFI_RANKS_PIECE,    /* as its operand, of which it has some elements */
    ZFI_RANKS_PACK,     /* the operands, side by side */
    ZFI_RANKS_BLOCKS,   /* sums over blocks: a shard if the operand is a shard */
    ZFI_RANKS_GRADIENT, /* as operand 1, the gradient */
    ZFI_RANKS_PARTS,    /* as operand 0, of all micro-batches */
    ZFI_RANKS_SIGNS     /* as operand 0; a sum over the ranks where it adds parts */
} zfi_among_ranks;

/* How an operator acts on values of one part of a batch (graph/parts.c). */
typedef enum zfi_of_parts {
    ZFI_PARTS_OPAQUE, /* in a way of its own */
    ZFI_PARTS_MOVED,  /* operand 0 in another form */
    ZFI_PARTS_SCALED,
    ZFI_PARTS_ADDED,
    ZFI_PARTS_MULTIPLIED,
    ZFI_PARTS_DIVIDED,
    ZFI_PARTS_BOUNDED, /* the larger operand */
    ZFI_PARTS_SUMMED,
    ZFI_PARTS_SUMMED_TO,
    ZFI_PARTS_WEIGHTED, /* a weighted sum over rows */
    ZFI_PARTS_SAVED
} zfi_of_parts;

/* Whether a node that draws random numbers may be cut over ranks, each of which draws those of its
 * share of a whole value (zf_launch.share). */
typedef enum zfi_drawing {
    ZFI_DRAWS_WHOLE,     /* it is not to be cut */
    ZFI_DRAWS_AS_RESULT, /* its share is that of the result, */
    ZFI_DRAWS_AS_FIRST   /* or of operand 0 */
} zfi_drawing;

/* The last dimension of operand 0 and of the result is heads; one has each head several times. */
typedef enum zfi_head_copies {
    ZFI_COPIES_NONE,
    ZFI_COPIES_MADE, /* the result has copies of the operand's heads */
    ZFI_COPIES_ADDED /* the operand has copies of the result's heads, which are added */
} zfi_head_copies;

/* In which operands an operator is linear, the others being as they are. */
typedef enum zfi_linear {
    ZFI_LINEAR_AS_PARTS, /* as zfi_record.parts says */
    ZFI_LINEAR_NOT,
    ZFI_LINEAR_TOGETHER, /* in all of them together */
    ZFI_LINEAR_EACH,     /* in each of two */
    ZFI_LINEAR_FIRST     /* in the first */
} zfi_linear;

/* Kinds of leaves that outlive a step, in the order of their places in a plan. */
typedef enum zfi_lies {
    ZFI_NO_PLACE, /* no place, or one among the values of a step */
    ZFI_PLACE_OF_INPUTS,
    ZFI_PLACE_OF_BUCKETS,
    ZFI_PLACE_OF_PARAMS,
    ZFI_PLACE_OF_STATES,
    ZFI_PLACE_OF_CONSTANTS,
    ZFI_PLACE_OF_CACHES, /* the last, next to the values of a step: they may be temporary */
    ZFI_PLACES
} zfi_lies;

/* How the matrix of a product lies. */
typedef enum zfi_weight { ZFI_NO_WEIGHT, ZFI_WEIGHT_IN_OUT, ZFI_WEIGHT_OUT_IN } zfi_weight;

/* All that can be asked of an operator: one record for each row of ZF_OPS, at the end of the
 * operator's file. Members that are not set are 0 or NULL. */
typedef struct zfi_record {
    const char *name; /* the record: */
    int32_t least, most;
    const char *attributes; /* "p:f stream:i" */
    uint32_t traits;        /* zf_op_traits */
    /* Infers dtype and shape of the result, or reports an error */
    zf_status (*infer)(zfi_infer *);
    /* Appends its gradient; NULL: differentiating it is an error */
    void (*grad)(zf_grad *);
    /* Runs it, by a reference or a fast kernel; NULL: there is nothing to run */
    zf_status (*cpu)(const zf_launch *);
    /* Bytes of scratch for cpu; NULL: 0 */
    size_t (*scratch)(const zf_launch *);
    /* The check by which cpu may fail, for launches that run in pieces; NULL: none */
    zf_status (*check)(const zf_launch *);
    /* Dtype and shape of saved value `index`; false: there is none. NULL: it saves nothing */
    bool (*saved)(const zf_graph *, const zfi_node *, int64_t index, zf_dtype *, zf_shape *);
    /* A mask of the saved values that other nodes may read as results: grad gets their gradients */
    uint32_t saved_grads;
    /* Appends nodes that recompute its result from saved value 0: the same bits in f32 and f64.
     * Called where that is saved. NULL: not possible */
    int32_t (*remake)(zf_graph *, int32_t id, int32_t left);
    /* `node`, which reads saved value 0 of `of`, is the result of `of` as remake computes it;
     * `alike`: its other operands are the same. NULL: never */
    bool (*remade)(const zf_graph *, const zfi_node *of, const zfi_node *node, bool alike);
    /* The saved value that holds the sum of its first two operands, and what appends the node that
     * recomputes it and its other saved values from that sum: the same bits. NULL: not possible */
    int32_t sum;
    int32_t (*remake_from_sum)(zf_graph *, int32_t id, int32_t sum);
    /* A gradient: the operand from which it can recompute an activation, as saved value 0; 0:
     * none */
    int32_t activates;
    /* FLOPs, NULL: 0; bytes read and written, NULL: operands and results, once each; functions
     * (zf_launch_functions), NULL: 0; the values between its own products, once each time that one
     * of them writes or reads them, NULL: 0 */
    double (*flops)(const zf_launch *);
    double (*bytes)(const zf_launch *);
    double (*functions)(const zf_launch *);
    double (*between)(const zf_launch *);
    /* An instruction of chains and an activation of linear. `value` is an element of the result
     * from those of its operands; b is a, if it has one. `piece` computes elements [first, last) in
     * f32; its operands have the shape of the result, which may be one of them */
    double (*value)(const zf_launch *, double a, double b);
    void (*piece)(const zf_launch *, int64_t first, int64_t last);
    /* How operand 1 lies, if the node is a product of the rows of operand 0 with that matrix; NULL:
     * ZFI_NO_WEIGHT */
    zfi_weight (*weight)(const zfi_node *);
    /* The number of operands after which it takes one more, which it adds; NULL: none */
    int32_t (*addend)(const zfi_node *);
    /* The saved value that is the sum over rows of saved value `of`, or of the result (`of` -1);
     * -1: there is none. NULL: -1 */
    int32_t (*row_sums)(const zfi_node *, int64_t of);
    /* The operand [experts, ...] of which it reads only the experts that have rows by the next
     * operand, bounds i32 [parts experts, 2]; 0: none */
    int32_t by_expert;
    bool grad_reads_x; /* an activation: its gradient is made of x, not of the result alone */
    /* The operand of which the result is a view, from byte *at on, which is 0 before the call (-1:
     * the rank decides where); -1: the result has its own bytes. NULL: -1 */
    int32_t (*views)(const zf_graph *, const zfi_node *, int64_t *at);
    /* A mask of the operands that it writes; NULL: none */
    uint32_t (*writes)(const zfi_node *);
    /* ZF_OP_INPLACE: a mask of the operands over which its result may be placed; 0: all */
    uint32_t over;
    /* An update: the operands that hold master weights (-1: none) and the learning rate (0:
     * none) */
    int32_t (*master)(const zfi_node *);
    int32_t rate;
    /* An update: a mask of the operands that it only reads, and that have an element for each of
     * the parameter */
    uint32_t elementwise;
    /* The last random stream that it draws from; NULL: the attribute `stream` */
    int64_t (*stream)(const zfi_node *);
    /* A node above with the same value, or `id`; `written` as in zfi_identity. NULL: id */
    int32_t (*same)(zf_graph *, int32_t id, bool written);
    /* The space of its result; NULL: that of its operands */
    zf_space (*space)(const zf_attribute *);
    zf_kind holds;         /* the kind of its bytes in accounts, if not by where it is computed */
    zfi_lies place;        /* a leaf: where they are placed */
    zfi_among_ranks ranks; /* how its value depends on the rank */
    zfi_of_parts parts;
    zfi_linear linear;
    /* Masks of the operands in all of which together the result is linear, where `linear` and
     * `parts` do not say so, and of the saved values that are too: these vanish with them */
    uint32_t linear_in, linear_saved;
    /* BY_ROWS: a mask of the operands that all rows share, and the operand that has the rows */
    uint32_t whole;
    int32_t rows;
    /* How it may be cut over ranks (graph/cuts.c), or what writes that for a node; both NULL: by
     * its traits */
    const char *cuts;
    void (*cut)(const zf_graph *, const zfi_node *, struct zfi_cut_text *);
    zfi_head_copies copies; /* of heads, the attributes heads, copies and over */
    zfi_drawing draws; /* whether a node that draws random numbers may be cut */
    const zf_operator *own; /* the definition of a program's own operator; else NULL */
} zfi_record;

/* By zf_op, at the end of ops/ (ops/table.c). */
static const zfi_record *const zfi_records[ZF_OP_COUNT];

/* A program's own operator. Launches point to `op`, by which zfi_record_for finds the record. */
typedef struct zfi_own_operator {
    zf_operator op;
    zfi_record record;
} zfi_own_operator;

/* Constants from each row: ZFI_LEAST_add, ZFI_MOST_add, zfi_attributes_add. */
enum {
#define ZFI_ROW(name, least, most, attributes) ZFI_LEAST_##name = (least), ZFI_MOST_##name = (most),
#define ZFI_ATTRIBUTE(op, name, kind)
    ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING) ZFI_LEAST_AND_MOST
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE
};
#define ZFI_ROW(name, least, most, attributes)                                                     \
    static const char zfi_attributes_##name[] = "" attributes;
#define ZFI_ATTRIBUTE(op, name, kind) " " #name ":" #kind
ZF_OPS(ZFI_ROW, ZFI_ATTRIBUTE, ZFI_NOTHING, ZFI_NOTHING)
#undef ZFI_ROW

/* The most operands of a row that does not take a list of them (ZF_MAX_OPERANDS). Arrays of this
 * size hold the operands of every update. A program's own operators may have more. */
enum { ZFI_OPERANDS = 9 };
#define ZFI_ROW(name, least, most, attributes)                                                     \
    _Static_assert((most) <= ZFI_OPERANDS || (most) == ZF_MAX_OPERANDS,                            \
                   #name " takes more than ZFI_OPERANDS operands");
ZF_OPS(ZFI_ROW, ZFI_NOTHING, ZFI_NOTHING, ZFI_NOTHING)
#undef ZFI_ROW
#undef ZFI_ATTRIBUTE

/* Checks at compile time that two operators have an attribute at the same index, for code that they
 * share. */
#define ZFI_SAME_ATTRIBUTE(op, other, name)                                                        \
    _Static_assert((int)ZF_AT_##op##_##name == (int)ZF_AT_##other##_##name,                        \
                   #op " and " #other " have " #name " at two places");

/* ZFI_OPERATOR(neg, .infer = zfi_infer_alike, ...) is the record of a row. */
#define ZFI_OPERATOR(op, ...)                                                                      \
    static const zfi_record zfi_record_##op = {                                                    \
        .name = #op,                                                                               \
        .least = ZFI_LEAST_##op,                                                                   \
        .most = ZFI_MOST_##op,                                                                     \
        .attributes = zfi_attributes_##op + (sizeof zfi_attributes_##op > 1),                      \
        __VA_ARGS__};

/* Stages: the passes that have been run. Each pass requires some stages and ensures others. */
enum {
    ZFI_STAGE_GRADIENTS = 1, /* autograd */
    ZFI_STAGE_UPDATES = 2,   /* an optimizer */
    ZFI_STAGE_CLIPPED = 4,   /* clip */
    ZFI_STAGE_RECOMPUTE = 8, /* recompute */
    ZFI_STAGE_RANKS = 16,    /* zero */
    ZFI_STAGE_OFFLOAD = 32,  /* offload */
    ZFI_STAGE_OVERLAP = 64,  /* prefetch */
    ZFI_STAGE_PLACED = 128   /* memory */
};

/* Queues run at the same time, each in the order of its nodes. */
enum {
    ZFI_QUEUE_COMPUTE,
    ZFI_QUEUE_GATHER,
    ZFI_QUEUE_REDUCE,
    ZFI_QUEUE_PIPE, /* sends between stages */
    ZFI_QUEUE_DOWNLOAD, /* device to host */
    ZFI_QUEUE_UPLOAD,   /* host to device */
    ZFI_QUEUE_READ,     /* disk to host */
    ZFI_QUEUE_WRITE,    /* host to disk */
    ZFI_QUEUES
};
static const char *const zfi_queue_names[ZFI_QUEUES] = {
    "compute", "gather", "reduce", "pipe", "download", "upload", "read", "write"};

/* The number of channels of a communicator: the queues on which ranks communicate, compute among
 * them. */
enum { ZFI_CHANNELS = ZFI_QUEUE_PIPE + 1 };

/* Sections of the micro section of a step of stages: one for each kind of task, then what follows
 * all tasks. */
enum { ZFI_TASK_OUTPUTS = ZFI_TASK_KINDS, ZFI_SECTIONS };
static const char *const zfi_section_names[ZFI_SECTIONS] = {"forward", "backward", "weights",
                                                            "outputs"};

/* The result of the memory pass for one space. */
typedef struct zfi_peak {
    int64_t bytes; /* bytes of its arena */
    int64_t live;  /* the largest sum of live bytes at any node */
    int32_t node;  /* that node */
} zfi_peak;

enum { ZFI_MISSES = 8 };

/* An open scope: the one around it, also as parameters are named there, and where it was opened. */
typedef struct zfi_scope {
    const char *around, *around_params, *file;
    int line;
} zfi_scope;

struct zf_graph {
    zfi_memory memory;
    int32_t owners; /* whoever made it, and programs over it */
    bool freed;     /* zf_graph_free was called */
    const char *pass; /* the pass that is calling a function of the program's own; NULL: none */
    zf_error error;
    const zfi_record *const *records; /* by zf_op: those of ZF_OPS, then `own` */
    const zfi_record **all_records;   /* the list, if there are own operators; else NULL */
    zfi_own_operator *own;            /* own_count of them */
    int32_t own_count;
    zfi_text text;
    zfi_node *nodes;
    int32_t *order, *params;
    int32_t *declared; /* with zf_tile: the parameters before it, whole ones; NULL: `params` */
    zfi_name *names;
    const char *scope;
    const char *shared; /* with zf_push_shared: the scope of parameters; else NULL */
    zfi_scope *scopes;  /* those that are open */
    const char *training; /* the name of the training whose step it is; "": it has none */
    const char *adapter;  /* that of its adapter (zf_lora); "": the adapter has none */
    const char *file;    /* of the current call */
    int line;
    bool in_update;   /* new nodes belong to the update section, which comes last */
    uint8_t in_task;  /* those of the micro section belong to this section of it, or a later one, */
    int16_t in_stage; /* and to this stage, if its rank has those of their operands */
    bool in_layer;    /* they are of a layer that ranks along tensor share */
    bool trial;       /* a copy for a trial: passes do not verify it */
    uint64_t whole;   /* the hash of all stages' graph, of which this is a rank's part; 0: none */
    int32_t kept;     /* of which stage that part is */
    int32_t *away;    /* parameters, states and buckets of other stages, which it lacks */
    int64_t *streams; /* random streams that nodes use, ascending */
    bool repeats;     /* a scope has several dropouts (ir/settle.c) */
    char missed[ZFI_MISSES][64]; /* the last names that zf_graph_find did not find, */
    int32_t misses;              /* and the number of all */
    int32_t settled;  /* the number of parameters when their order was settled */
    uint32_t stages;
    zfi_other_axes axes;         /* of the ranks, besides data */
    int32_t shares;              /* sections of what ranks along tensor share, of each rank; 0: 1 */
    bool shares_tokens;          /* these sections are of tokens too, */
    uint8_t shares_later;        /* 1 + zf_cut_tokens, once zf_context has dealt the tokens; 0: not */
    int32_t schedule, chunks; /* of stages: 1 + zf_pipe_kind, and of each rank; schedule 0: none */
    int32_t zero, world;   /* ZeRO stage and ranks along data; 0 and 1 without zf_zero */
    int64_t micro_batches; /* of a step, on each rank: 1 without zf_zero */
    int32_t mesh_nodes;    /* in which the ranks are; 1 where they are no mesh */
    int32_t shards;        /* of what is sharded: those of all ranks, or of a node's */
    zfi_peak peaks[ZF_SPACES]; /* once placed */
    uint8_t *had;              /* by node: noted when the pass began (ir/complete.c) */
    size_t had_count;
    /* Bytes of temporary caches (zf_compile_desc), which are the first values of a step: those of
     * its own program, and those of another one, above which its values lie */
    int64_t temporary, above;
    int32_t left_out;   /* nodes that zf_compile has removed, since nothing needs them, */
    const char *unread; /* and the names of inputs that nothing reads; NULL: before that */
    bool noted; /* the last pass noted it when it ended, and nothing was appended since */
};

struct zfi_infer {
    zf_graph *graph;
    const zfi_record *record;
    const zfi_node *const *args;
    int32_t arg_count;
    const zf_attribute *attributes;
    zf_dtype dtype; /* in for leaves, out for others */
    zf_shape shape;
};

static zfi_mesh zfi_mesh_of(const zf_graph *g)
{
    return (zfi_mesh){g->world, g->mesh_nodes, g->axes};
}

/* The pipeline of a graph with stages. */
static zf_pipe zfi_pipe_of(const zf_graph *g)
{
    return (zf_pipe){.kind = g->schedule ? (zf_pipe_kind)(g->schedule - 1) : ZF_PIPE_1F1B,
                     .ranks = zfi_mesh_size(zfi_mesh_of(g), ZF_OVER_PIPE),
                     .micro_batches = (int32_t)g->micro_batches,
                     .chunks = g->schedule ? g->chunks : 1};
}

/* The rank along pipe that has a stage, counted from 0. */
static int32_t zfi_rank_of_stage(const zf_graph *g, int32_t stage)
{
    return g->schedule ? zfi_pipe_rank(zfi_pipe_of(g), stage) : stage;
}

/* The same of a node's stage, both counted from 1; 0: of all. */
static int32_t zfi_rank_at(const zf_graph *g, int16_t stage)
{
    return stage ? zfi_rank_of_stage(g, stage - 1) + 1 : 0;
}

static const zfi_record *zfi_record_of(const zf_graph *g, int32_t id)
{
    return g->records[g->nodes[id].op];
}

static bool zfi_has(const zf_graph *g, int32_t id, uint32_t flag)
{
    return (zfi_record_of(g, id)->traits & flag) != 0;
}

/* The node's result may be placed over operand k, if shape and bytes are equal. */
static bool zfi_may_overwrite(const zf_graph *g, int32_t id, int32_t k)
{
    const zfi_record *record = zfi_record_of(g, id);
    return (record->traits & ZF_OP_INPLACE) && (!record->over || record->over >> k & 1);
}

/* Steps may write the results of the operator. */
static bool zfi_is_written(const zf_graph *g, zf_op op)
{
    return (g->records[op]->traits & ZF_OP_WRITABLE) != 0;
}

/* A mask of the operands that the node writes. */
static uint32_t zfi_written_args(const zf_graph *g, const zfi_node *node)
{
    const zfi_record *record = g->records[node->op];
    return record->writes ? record->writes(node) : 0;
}

/* The node is memory for a gathered bucket (passes/hold.c). */
static bool zfi_is_held(const zfi_node *node)
{
    return node->op == ZF_OP_cache && ZF_INT(node, cache, held);
}

enum { ZFI_HELD_NAME = 320 }; /* more than a name has */

static const char zfi_held_prefix[] = "held/";

/* The name of the memory for a bucket whose first parameter has this name. */
static const char *zfi_held_name(char out[ZFI_HELD_NAME], const char *param)
{
    snprintf(out, ZFI_HELD_NAME, "%s%.255s", zfi_held_prefix, param);
    return out;
}

/* The node writes, and nothing but caches. */
static bool zfi_writes_only_caches(const zf_graph *g, const zfi_node *node)
{
    const uint32_t written = zfi_written_args(g, node);
    for (int32_t k = 0; k < node->arg_count && k < 31; k++)
        if (written >> k & 1 && g->nodes[node->args[k]].op != ZF_OP_cache) return false;
    return written != 0;
}

/* The node updates a parameter, not only states. */
static bool zfi_updates_param(const zf_graph *g, const zfi_node *node)
{
    return (g->records[node->op]->traits & ZF_OP_UPDATE) && (zfi_written_args(g, node) & 1);
}

/* The operand that holds an update's master weights; -1: none. */
static int32_t zfi_master_arg(const zf_graph *g, const zfi_node *node)
{
    const zfi_record *record = g->records[node->op];
    return record->master ? record->master(node) : -1;
}

/* The operand of which the node is a view, from byte *at on (-1: the rank decides where); -1: the
 * node has its own bytes. */
static int32_t zfi_viewed(const zf_graph *g, const zfi_node *node, int64_t *at)
{
    const zfi_record *record = g->records[node->op];
    *at = 0;
    return record->views ? record->views(g, node, at) : -1;
}

/* The node writes its result into operand k. */
static bool zfi_writes_into(const zf_graph *g, int32_t id, int32_t k)
{
    int64_t at;
    return zfi_viewed(g, &g->nodes[id], &at) == k && zfi_written_args(g, &g->nodes[id]) >> k & 1;
}

/* The root of a view: the node that owns the bytes. */
static int32_t zfi_bytes_of(const zf_graph *g, int32_t id)
{
    int64_t at;
    for (int32_t k; (k = zfi_viewed(g, &g->nodes[id], &at)) >= 0;) id = g->nodes[id].args[k];
    return id;
}

/* The piece of a value to which the bytes of the node belong; 0: it may have all of them. Pieces of
 * a value are disjoint. */
static int32_t zfi_piece_of(const zf_graph *g, int32_t id)
{
    int64_t at;
    while (g->nodes[id].op != ZF_OP_piece) {
        const int32_t k = zfi_viewed(g, &g->nodes[id], &at);
        if (k < 0) return 0;
        id = g->nodes[id].args[k];
    }
    return id;
}

/* The node is a part of a leaf, through which it is written: a shard or a piece. */
static bool zfi_is_part(const zfi_node *node)
{
    return node->op == ZF_OP_shard || node->op == ZF_OP_piece;
}

/* The node is below `update:`. */
static bool zfi_runs_once(const zfi_node *node) { return node->update || node->below; }

/* The node of which a copy in another space was made; the node itself where it is no copy. */
static const zfi_node *zfi_copied(const zf_graph *g, const zfi_node *node)
{
    while (node->op == ZF_OP_copy) node = &g->nodes[node->args[0]];
    return node;
}

/* The same, also seen through pieces. */
static const zfi_node *zfi_home_of(const zf_graph *g, const zfi_node *node)
{
    while (node->op == ZF_OP_copy || node->op == ZF_OP_piece) node = &g->nodes[node->args[0]];
    return node;
}

/* The node is a copy of the experts with rows alone, whose bounds are operand 1 (ops/copy.c). */
static bool zfi_fetches_experts(const zfi_node *node)
{
    return node->op == ZF_OP_copy && ZF_INT(node, copy, experts);
}

/* The node is a copy into operand 1. */
static bool zfi_copies_into(const zfi_node *node)
{
    return node->op == ZF_OP_copy && node->arg_count > 1 && !zfi_fetches_experts(node);
}

/* The accumulator that the node is, or of which it is a copy; 0: neither. */
static int32_t zfi_accumulator_of(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].op == ZF_OP_copy && g->nodes[id].arg_count == 1) id = g->nodes[id].args[0];
    return g->nodes[id].op == ZF_OP_accumulator ? id : 0;
}

/* A sum over micro-batches that lies on a disk. */
static bool zfi_is_sum_on_disk(const zf_graph *g, int32_t id)
{
    return g->nodes[id].op == ZF_OP_accumulator && g->nodes[id].space == ZF_DISK;
}

/* The node reads such a sum, which the first micro-batch has not: it does nothing there. */
static bool zfi_reads_sum(const zf_graph *g, const zfi_node *node)
{
    return node->op == ZF_OP_copy && node->arg_count == 1 && zfi_is_sum_on_disk(g, node->args[0]);
}

/* The node of the micro section runs in the first micro-batch alone; its value stays for the
 * others. */
static bool zfi_runs_first(const zfi_node *node)
{
    return (node->op == ZF_OP_all_gather && ZF_INT(node, all_gather, once)) ||
           (node->op == ZF_OP_send && ZF_INT(node, send, once)) ||
           (node->op == ZF_OP_quantize && ZF_INT(node, quantize, once));
}

/* How often the node runs in a step. */
static int64_t zfi_times_in_step(const zf_graph *g, const zfi_node *node)
{
    return node->update || zfi_runs_first(node) ? 1 : g->micro_batches - zfi_reads_sum(g, node);
}

/* The single value of a constant; false where it has several. */
static bool zfi_splat(const zfi_node *node, double *value)
{
    if (node->op != ZF_OP_constant || ZF_LIST(node, constant, values).count != 1) return false;
    *value = *(const double *)ZF_LIST(node, constant, values).data;
    return true;
}

/* The value that all elements of a node have, seen through reshape and broadcast; false where they
 * differ. */
static bool zfi_uniform(const zf_graph *g, int32_t id, double *value)
{
    while (g->nodes[id].op == ZF_OP_reshape || g->nodes[id].op == ZF_OP_broadcast)
        id = g->nodes[id].args[0];
    return zfi_splat(&g->nodes[id], value);
}

static int64_t zfi_node_count(const zfi_node *node) { return zf_shape_count(node->shape); }

static size_t zfi_node_bytes(const zfi_node *node)
{
    return (size_t)zfi_node_count(node) * zf_dtype_size(node->dtype);
}

static bool zfi_is_number(const zfi_node *node)
{
    return zfi_is_float(node->dtype) && zfi_node_count(node) == 1;
}

/* An output of it may be a sum over parts of the batch, element by element. */
static bool zfi_is_summed(const zfi_node *node)
{
    return node->dtype == ZF_F32 || node->dtype == ZF_F64;
}

/* The mark is an output of a scalar float of the micro section, as that of the loss: a number that
 * is looked at before the updates. All ranks see the same. */
static bool zfi_marks_number(const zf_graph *g, const zfi_node *mark)
{
    const zfi_node *node = &g->nodes[mark->op == ZF_OP_output ? mark->args[0] : 0];
    return mark->op == ZF_OP_output && !mark->update && zfi_is_number(node) &&
           (g->world == 1 || mark->role == ZFI_ROLE_LOSS ||
            ZF_INT(mark, output, reduction) != ZF_REDUCTION_NONE);
}

/* The all_reduce of whose result the value is a part, seen through views, casts and factors, or the
 * first of several over one axis after the other, which reads what this rank gives; 0: none. */
static int32_t zfi_sum_after(const zf_graph *g, int32_t id)
{
    for (int32_t sum = 0;;) {
        const zfi_node *node = &g->nodes[id];
        const bool sums = node->op == ZF_OP_all_reduce;
        int64_t at;
        const bool seen = sums || node->op == ZF_OP_cast || node->op == ZF_OP_scale ||
                          node->op == ZF_OP_mul;
        int32_t k = seen ? 0 : zfi_viewed(g, node, &at);
        if (sums) sum = id;
        if (k < 0) return sum;
        id = node->args[k];
    }
}

static bool zfi_is_frozen(const zfi_node *param) { return ZF_INT(param, param, frozen) != 0; }

/* The node is a trained parameter of which only rows that are read have gradients and updates. */
static bool zfi_is_lazy_table(const zfi_node *node)
{
    return node && node->op == ZF_OP_param && ZF_INT(node, param, lazy) && !zfi_is_frozen(node);
}

/* The value that autograd appended, before other passes changed it: they keep it as operand 0. */
static int32_t zfi_raw_gradient(const zf_graph *g, int32_t id)
{
    while (g->nodes[id].update && g->nodes[id].arg_count) id = g->nodes[id].args[0];
    return id;
}

/* The node that replaces `id` after rewrites; 0: none. */
static int32_t zfi_resolve(const zf_graph *g, int32_t id)
{
    if (id <= 0 || id >= zfi_len(g->nodes)) return 0;
    while (id && g->nodes[id].op == ZF_OP_none) id = g->nodes[id].same_as;
    return id;
}

/* Removes a node; its readers read `by` (0: there are none). */
static void zfi_replace(zf_graph *g, int32_t id, int32_t by)
{
    g->nodes[id].op = ZF_OP_none;
    g->nodes[id].same_as = by;
}

/* ----------------------------------------------------------------------------- pieces */

enum { ZFI_NORM_BLOCK = 1024 }; /* elements of a block of norms (ops/reduce.c) */

/* Rows [row, row + its own) of a tensor that zf_tile has cut: a param, or a state of one, with the
 * tensor's `rows`. Its name is the tensor's and these rows: "w[0:1024]". */
typedef struct zfi_cut_rows {
    int64_t row, rows; /* rows 0: the leaf is no piece */
} zfi_cut_rows;

static zfi_cut_rows zfi_cut_rows_of(const zfi_node *leaf)
{
    if (leaf->op == ZF_OP_param)
        return (zfi_cut_rows){ZF_INT(leaf, param, row), ZF_INT(leaf, param, rows)};
    if (leaf->op == ZF_OP_state)
        return (zfi_cut_rows){ZF_INT(leaf, state, row), ZF_INT(leaf, state, rows)};
    return (zfi_cut_rows){0, 0};
}

/* An error where some rows of a table are updated: `why` says what needs those of all. */
static zf_status zfi_check_dense(zf_graph *g, const char *pass, const char *why)
{
    for (int32_t k = 0; k < zfi_len(g->params); k++)
        if (zfi_is_lazy_table(&g->nodes[g->params[k]]))
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "%s: of the table \"%.200s\" only the rows that are read are updated "
                            "(zf_param_group.lazy_rows), and %s",
                            pass, g->nodes[g->params[k]].name, why);
    return ZF_OK;
}

/* Checks, for a pass whose states are of whole parameters, that zf_tile has cut none. */
static zf_status zfi_check_uncut(zf_graph *g, const char *pass)
{
    for (int32_t k = 0; k < zfi_len(g->params); k++) {
        const zfi_node *param = &g->nodes[g->params[k]];
        if (zfi_cut_rows_of(param).rows)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "%s: \"%s\" is a piece of a parameter; leave out zf_tile", pass,
                            param->name);
    }
    return ZF_OK;
}

enum { ZFI_PIECE_NAME = 320 }; /* more than a name has */

static const char *zfi_piece_name(char out[ZFI_PIECE_NAME], const char *whole, int64_t row,
                                  int64_t rows)
{
    snprintf(out, ZFI_PIECE_NAME, "%.255s[%lld:%lld]", whole, (long long)row,
             (long long)(row + rows));
    return out;
}

/* The length of the whole tensor's name in that of a piece. */
static size_t zfi_whole_name(const char *piece)
{
    const char *mark = strrchr(piece, '[');
    return mark ? (size_t)(mark - piece) : strlen(piece);
}

/* The elements of the whole tensor before the leaf's first. */
static int64_t zfi_elements_before(const zfi_node *leaf)
{
    const zfi_cut_rows cut = zfi_cut_rows_of(leaf);
    return cut.row ? cut.row * (zfi_node_count(leaf) / leaf->shape.dims[0]) : 0;
}

/* ----------------------------------------------------------------------------- errors */

/* "bert.encoder (model.c:41)", as far as it is known. */
static const char *zfi_where(char *text, size_t size, const char *scope, const char *file, int line)
{
    const char *base = file ? strrchr(file, '/') : NULL;
    char at[160] = "";
    if (file) snprintf(at, sizeof at, " (%.120s:%d)", base ? base + 1 : file, line);
    snprintf(text, size, "%s%.120s%s", *scope ? " in " : "", scope, at);
    return text;
}

/* Records an error of the current call: "what in scope (file:line): message". */
ZFI_FAILS(4, 5)
static zf_status zfi_graph_fail(zf_graph *g, zf_status status, const char *what, const char *format,
                                ...)
{
    char where[320], text[512];
    va_list args;
    if (g->error.status) return g->error.status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zfi_where(where, sizeof where, g->scope, g->file, g->line);
    return zfi_fail(&g->error, status, "%s%s: %s", what, where, text);
}

ZFI_COLD static zf_status zfi_graph_nomem(zf_graph *g) { return zfi_nomem(&g->error); }

/* Records an error of shape inference: the message, then the operands in IR syntax. */
ZFI_FAILS(3, 4)
static zf_status zfi_infer_fail(const zfi_infer *c, zf_status status, const char *format, ...)
{
    char text[256], operands[512] = "", type[ZFI_TYPE_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int32_t k = 0, at = 0; k < c->arg_count && k < 4 && at < (int32_t)sizeof operands - 200;
         k++)
        at += snprintf(operands + at, sizeof operands - (size_t)at, "%s%%%d = %s", k ? ", " : "; ",
                       (int)(c->args[k] - c->graph->nodes),
                       zfi_type_text(type, c->args[k]->dtype, &c->args[k]->shape));
    return zfi_graph_fail(c->graph, status, c->record->name, "%s%s", text, operands);
}

/* -------------------------------------------------------------------------- attributes */

/* One attribute of a row's text: "name:kind" or "name:e(a|b)". */
typedef struct zfi_field {
    const char *name;
    int name_length;
    char kind;
    const char *choices; /* for kind e: the text after "(" */
} zfi_field;

/* Reads the next field of a row's attribute text; false at its end. */
static bool zfi_next_field(const char **text, zfi_field *field)
{
    const char *at = *text;
    while (*at == ' ') at++;
    if (!*at) return false;
    field->name = at;
    while (*at != ':') at++;
    field->name_length = (int)(at - field->name);
    field->kind = at[1];
    field->choices = at[1] == 'e' ? at + 3 : NULL;
    while (*at && *at != ' ') at++;
    *text = at;
    return true;
}

/* Name `index` of "a|b|c)", and its length; NULL after the last. */
static const char *zfi_choice(const char *choices, int64_t index, int *length)
{
    for (; index >= 0; index--) {
        *length = (int)strcspn(choices, "|)");
        if (index == 0) return choices;
        choices += *length;
        if (*choices == ')') break;
        choices++;
    }
    return NULL;
}

/* The index of the attribute called `name`; -1: there is none. */
static int zfi_attribute_index(const zfi_record *record, const char *name)
{
    const char *fields = record->attributes;
    zfi_field field;
    for (int k = 0; zfi_next_field(&fields, &field); k++)
        if (strlen(name) == (size_t)field.name_length &&
            !memcmp(name, field.name, (size_t)field.name_length))
            return k;
    return -1;
}

/* The attribute called `name` of an operator that has it. */
static zf_attribute *zfi_attribute_in(const zfi_record *record, zf_attribute *attributes,
                                      const char *name)
{
    return attributes + zfi_attribute_index(record, name);
}

/* The attribute called `name`; NULL where the operator has none. */
static const zf_attribute *zfi_attribute_of(const zf_graph *g, const zfi_node *node,
                                            const char *name)
{
    int k = zfi_attribute_index(g->records[node->op], name);
    return k < 0 ? NULL : node->attributes + k;
}

/* The last random stream that the node draws from; -1: none. */
static int64_t zfi_node_stream(const zf_graph *g, const zfi_node *node)
{
    const zfi_record *record = g->records[node->op];
    if (!(record->traits & ZF_OP_RANDOM)) return -1;
    return record->stream ? record->stream(node) : zfi_attribute_of(g, node, "stream")->i;
}

static int64_t zfi_last_stream(const zf_graph *g, int32_t id)
{
    return zfi_node_stream(g, &g->nodes[id]);
}

static bool zfi_draws(const zf_graph *g, int32_t id) { return zfi_last_stream(g, id) >= 0; }

/* ---------------------------------------------------------------------------- identity
 *
 * The numbers of a program follow from scopes, names and operands, not from the order in which
 * builders were called: C does not define the order in which arguments are evaluated. The stream of
 * a dropout follows from its scope and its number there (ir/settle.c). */

static uint64_t zfi_hash_number(uint64_t hash, uint64_t x)
{
    for (int i = 0; i < 64; i += 8) hash = (hash ^ (x >> i & 255)) * 0x100000001b3u;
    return hash;
}

/* The index of stream x, or where it belongs, among the graph's streams. */
static int32_t zfi_stream_at(const zf_graph *g, int64_t x)
{
    int32_t low = 0, high = zfi_len(g->streams);
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (g->streams[middle] < x) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool zfi_has_stream(const zf_graph *g, int64_t x)
{
    int32_t at = zfi_stream_at(g, x);
    return at < zfi_len(g->streams) && g->streams[at] == x;
}

/* The random stream of dropout number `nth` of a scope. */
static int64_t zfi_stream_of_scope(const char *scope, int64_t nth)
{
    uint64_t hash = zfi_hash_bytes(ZFI_HASH_START, scope, strlen(scope) + 1);
    hash = zfi_hash_number(hash, (uint64_t)nth);
    return (int64_t)((hash ^ hash >> 32) & UINT32_MAX);
}

/* Adds the stream that node `id` draws from to the graph's list. */
static void zfi_note_stream(zf_graph *g, int32_t id)
{
    int64_t stream = zfi_last_stream(g, id);
    int32_t at;
    if (stream < 0 || zfi_has_stream(g, stream)) return;
    at = zfi_stream_at(g, stream);
    zfi_push(&g->memory, g->streams, stream);
    if (g->memory.failed) return;
    for (int32_t k = zfi_len(g->streams) - 1; k > at; k--) g->streams[k] = g->streams[k - 1];
    g->streams[at] = stream;
}
