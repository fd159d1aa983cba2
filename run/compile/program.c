/* Programs: a placed graph bound to memory, and the step that runs it.
 *
 * Compiling turns every node into a zf_launch with final pointers, so that a step is a loop over
 * launches and allocates nothing. Each space has three allocations: one for the parameters and
 * states that the store did not have, which the store then owns; one for what else outlives a step;
 * one for the values of a step, which programs that run in turns share
 * (zf_compile_desc.shares_memory_with).
 *
 *     plan      | inputs | buckets, parameters, states | constants | values of a step |
 *                        stored_at                   stored_end
 *     store              |===========================|
 *     arena     |========|                           |===========|
 *     work                                                       |==================|
 *                                                                work_at
 *
 * Caches lie between constants and the values of a step; temporary ones are the first of these.
 *
 *     launches | micro section, once per micro-batch | update section, once per step |
 *              0                                 micro_end                    launch_count
 *
 * Where a rank runs a schedule, the micro section is there several times, once for each slot of
 * values that have several; a task is a part of each (tasks.c). */

/* Memory for the values of a step. */
typedef struct zfi_work {
    zf_store *store; /* which has asked for it, and lives as long */
    void *memory;
    size_t bytes;
    int32_t owners;   /* programs */
    const void *last; /* the program whose values are there; NULL: none has run; this: it is gone */
    const zf_program *caches; /* the program whose temporary caches are there; NULL: none */
    const zf_program *held;   /* the program whose held parameters are there; NULL: none */
} zfi_work;

typedef struct zfi_arena {
    void *memory;
    size_t bytes; /* that the program asked for, those of `work` included, */
    zfi_work *work;
    size_t shared;   /* and those of its values that lie in the work of another */
    int64_t work_at; /* where the values of a step begin in the plan */
    char *stored;                  /* memory of tensors that the program has added to the store */
    int64_t stored_at, stored_end; /* their place in the plan */
} zfi_arena;

struct zf_program {
    zfi_memory memory;
    int32_t owners; /* whoever compiled it, and programs that use its caches */
    zf_graph *graph;
    zf_store *store;
    zf_program *caches; /* zf_compile_desc.caches */
    bool temporary;     /* its caches lie among the values of a step */
    bool has_caches;    /* it reads or writes caches other than held parameters */
    int32_t held;       /* a node that is held parameters; 0: it has none */
    bool gathers;       /* it gathers them: zf_hold runs it */
    bool holds;         /* those that lie in its memory are there, as they were when the store */
    int64_t held_at;    /* had changed so many times */
    zf_backend *backend; /* the store's */
    zfi_arena arenas[ZF_SPACES];
    size_t reserved;    /* bytes of the device that zf_compile_desc.reserve has added */
    size_t overhead[ZF_SPACES]; /* bytes that the store has besides tensors, for the disk */
    size_t bound_bytes;  /* bytes of tensors that the store had before */
    int32_t first_added; /* tensors of the store from this one on were added */
    int32_t *tensor_of;  /* by node: the store's tensor of a parameter or state; -1: none */
    void **data; /* by node */
    size_t nodes;
    struct zfi_program_tasks *tasks; /* of a rank that runs a schedule (tasks.c); else NULL */
    zf_launch *launches;
    bool *begins; /* by launch: it is the first of a task */
    int32_t *waits_for;   /* by launch: the launch for which a `wait` waits; else -1 */
    bool *sums_outputs; /* by launch: it sums outputs over the ranks, for zfi_check_outputs */
    zf_section *sections; /* launches run at once: up to such a sum, or a section's end */
    int32_t section_count, section_room;
    int32_t launch_count, launch_room, micro_end, arg_count;
    zf_array *args;      /* the operands of all launches */
    struct zfi_own_of_launch *own; /* what some have of their own (share.c) */
    int32_t own_count, own_used;
    const zf_comm *comm; /* NULL: one rank */
    uint64_t *hashes;    /* of the ranks' plans; this rank's first */
    bool agreed;         /* all ranks have the same plan */
    zfi_regions regions; /* what steps leave out, in the memory of the graph; */
    uint64_t *off;       /* the coins by which this one does */
    bool one_by_one; /* launches of a program with coins and several queues have no sections: they
                        would wait for each other at the end of each */
    int32_t *unwritten;  /* inputs that are read and not yet written; growing arrays: */
    int32_t *rates;      /* inputs that are learning rates, known before the update section */
    zfi_same same;       /* the values that ranks compare */
    bool compared;       /* the ranks have compared the values with which they begin */
    bool ran;            /* it has run a micro-batch, so there are outputs */
    bool changed;        /* it has run steps, so what it writes no longer has its first values */
    zf_run run;
    zf_plan plan;
    zf_traffic counted, counted_over[ZF_OVERS]; /* of the current step */
    double counted_flops;
    int64_t fetched[2]; /* bytes of experts with rows so far: uploads, reads */
    bool writes; /* it changes values of the store; */
    bool trains; /* by updates: it counts the steps of its training; */
    int32_t training;   /* that, in the store's list; -1: the one without a name */
    uint64_t salt;      /* of its random numbers: 0 of the training without a name */
    int64_t runs;       /* else: the steps it has run */
    int64_t micro;      /* micro-batches run in the current step, */
    int64_t micro_step; /* which began when the store had done so many */
    int64_t loads;      /* the store's count of zf_load when last seen */
    bool poison, allow_nan;
    bool nonfinite; /* this rank's terms of these sums in this step were not all finite */
    zf_span *spans; /* of the launches of a step (zf_measure); NULL: they are not noted */
    int32_t span_count, span_room;
    zf_error error;
    zf_error host_error; /* of launches in host memory, with a device, until the next wait for it */
};

ZF_API const char *zf_program_error(const zf_program *p)
{
    return p ? p->error.text : "there is no program";
}
ZF_API zf_store *zf_program_store(const zf_program *p) { return p ? p->store : NULL; }

/* What counts its steps. */
static int64_t *zfi_steps_of(zf_program *p)
{
    if (!p->trains) return &p->runs;
    return p->training < 0 ? &p->store->step : &p->store->trained[p->training].step;
}

ZF_API int64_t zf_program_step(const zf_program *p)
{
    return p ? *zfi_steps_of((zf_program *)(uintptr_t)p) : 0;
}

static void zfi_clear_error(zf_program *p)
{
    p->error = p->host_error = (zf_error){ZF_OK, ""};
}
