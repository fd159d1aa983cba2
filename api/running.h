/* api/running.h - devices, ranks, stores, plans, programs, layers and loops.
 *
 * Compile. zf_compile places every value in one arena (zf_memory), allocates exactly those bytes,
 * draws the first values of the parameters, and returns a program. Its peak is known before
 * (zf_program_info_of), and a plan over zf_compile_desc.memory_limit is an error that says by how
 * much and where.
 *
 * Run. zf_write the inputs, zf_step, zf_read what zf_output keeps. A step allocates nothing. The
 * same seed gives the same bits on any number of threads, and after zf_save and zf_load. Between
 * instruction sets, bits differ by rounding.
 *
 * Ranks. zf_zero turns the step of one rank into that of each of several, at a ZeRO stage, and
 * zf_prefetch runs communication concurrently with computation:
 *
 *     zf_passes(g, &(zf_training){.loss = loss,
 *                                 .zero = {.stage = 3, .world = comm->world},
 *                                 .prefetch.bytes = 128 << 20});
 *     zf_program *p = zf_compile(g, &(zf_compile_desc){.comm = comm, .seed = 1});
 *
 * comm is this rank's communicator: zf_local_comm for threads of one process, zf_mpi_comm
 * (zeroflow_mpi.c) for processes, zf_nccl_comm (zeroflow_nccl.c) for GPUs, or a table of functions
 * of one's own (zf_comm). Every rank builds the same graph; before the first step they compare
 * their plans, seeds and parameters (zf_compare_ranks). Each writes its part of the global batch
 * (zf_zero_desc says which) and all call zf_step. Losses, gradients and parameters are the same to
 * the last bit at every stage, with any prefetch, on any number of ranks that share the batch in as
 * many parts, and after zf_save and zf_load at another stage and world. When a rank fails or does
 * not arrive, all ranks get the error.
 */

/* ------------------------------------------------------------------------------- DEVICES, RANKS
 *
 * Backends compute, communicators connect ranks. Both are tables of functions (zf_backend,
 * zf_comm). A program may write its own: api/extending.h. */

ZF_API void zf_backend_free(zf_backend *backend); /* NULL: nothing */

typedef struct zf_cpu_desc {
    int32_t threads; /* workers, the calling thread among them; 0: 1 */
    /* Run the reference kernels (slow, in double precision) instead of the fast ones */
    bool reference;
    /* The instruction set: "portable", "avx2", "avx512", "amx" (avx512, and products of bf16 on the
     * tiles of Intel's AMX) or "neon"; ZF_ERR_BACKEND if the machine lacks it; NULL: the best that
     * the machine has. Each has bits of its own: ranks on machines of several kinds name one. For
     * "amx", also by NULL, the process asks Linux for the tiles; its alternate signal stacks
     * (sigaltstack) must then have AT_MINSIGSTKSZ bytes (getauxval), some 11 KiB, and where one
     * is smaller the machine counts as one without AMX. */
    const char *isa;
    zf_allocator allocator;
} zf_cpu_desc;

/* The built-in CPU backend. NULL with *error (which may be NULL) for lack of memory or threads. */
ZF_API zf_backend *zf_cpu_backend(const zf_cpu_desc *desc, zf_error *error);

typedef struct zf_cuda_desc {
    int32_t device; /* the number that CUDA gives the device, from 0 on */
    /* Launch node by node in every step, and not the step as a CUDA graph: slower, to find
     * faults */
    bool no_graphs;
    bool tf32; /* products of f32 in TF32: fast, with 10 bits of mantissa */
    /* A file of algorithms for matrix products. Those in the file are used; for other products
     * zf_compile measures which is fastest and adds it to the file. NULL: cuBLASLt's own choice.
     * Another algorithm gives other bits: runs and ranks that must have equal bits need the same
     * complete file */
    const char *tuning;
    /* Multiprocessors that matrix products leave free for NCCL's kernels (zf_nccl_desc.ctas on each
     * channel): a product on all of them makes a collective wait for its end. cuBLASLt then may
     * choose another algorithm, with other bits. 0: none */
    int32_t spare_processors;
    /* Seconds that the device may take to finish its work after other ranks are lost; 0: 60. After
     * them all calls are ZF_ERR_BACKEND, and its memory is not freed */
    double deadline_seconds;
    zf_allocator allocator; /* of host memory */
} zf_cuda_desc;

/* A device of compute capability 8.0 or newer: zeroflow_cuda.cu, compiled by nvcc. It runs f32,
 * bf16 and f16. Where a block has less than 160 KiB of shared memory (8.6, 8.9, 12.x), attention
 * over heads of more than 64 elements, or its gradient, may be ZF_ERR_BACKEND. One thread at a time
 * may use it, as the CPU backend. zf_step returns when the step is on the device's queues; its
 * errors are reported when the host waits for it. NULL with *error (which may be NULL):
 * ZF_ERR_BACKEND where there is no driver or no such device. */
extern zf_backend *zf_cuda_backend(const zf_cuda_desc *desc, zf_error *error);
/* The cudaStream_t of a queue of such a backend, for events of one's own; NULL where it has
 * none. */
extern void *zf_cuda_stream(const zf_backend *cuda, int32_t queue);

ZF_API void zf_comm_free(zf_comm *comm); /* NULL: nothing */

/* Ranks within one process: communicators for as many threads. Each belongs to one rank; the group
 * frees them, when no store uses one of them any more. */
typedef struct zf_local zf_local;

typedef struct zf_local_desc {
    int32_t world;           /* ranks; 0: 1 */
    double deadline_seconds; /* that ranks wait for one another; 0: 60 */
    zf_allocator allocator;
} zf_local_desc;
/* NULL with *error (which may be NULL) for a value out of range or lack of memory. */
ZF_API zf_local *zf_local_new(const zf_local_desc *desc, zf_error *error);
ZF_API void zf_local_free(zf_local *group); /* NULL: nothing */
/* The communicator of rank 0 <= rank < world; NULL outside. It is the group's: not to be freed. */
ZF_API zf_comm *zf_local_comm(zf_local *group, int32_t rank);

/* Ranks in processes, by MPI: zeroflow_mpi.c, compiled with mpicc. */
typedef struct zf_mpi_desc {
    double deadline_seconds; /* that ranks wait for one another; 0: 60 */
    const void *comm;        /* where the MPI_Comm to duplicate is; NULL: MPI_COMM_WORLD */
} zf_mpi_desc;
/* The calling process's communicator. MPI must have been initialised with MPI_THREAD_MULTIPLE, and
 * all ranks must call. NULL with *error (which may be NULL). zf_comm_free frees it, before
 * MPI_Finalize. */
extern zf_comm *zf_mpi_comm(const zf_mpi_desc *desc, zf_error *error);

enum { ZF_NCCL_ID_BYTES = 512 };

/* Ranks with a GPU each, in processes or in threads, by NCCL: zeroflow_nccl.c, linked with
 * zeroflow_cuda.cu. How they find one another is one of `host`, `file` and `id`. */
typedef struct zf_nccl_desc {
    int32_t rank, world; /* world 0: 1, which needs none of the three */
    int32_t device;      /* as zf_cuda_desc.device: the one whose memory the calls are about */
    /* Maximum time that ranks wait for one another, also at creation; 0: 60. For calls on a stream,
     * the time that the stream spends in one call. */
    double deadline_seconds;
    /* NCCL's own reductions: reduce_scatter and all_reduce in f32, f64, bf16, f16, i32 and i64 add
     * in an order that may change from run to run, and 16-bit sums round at each addition. Other
     * calls, and reductions that add to `out`, do not change */
    bool fast;
    /* Device memory that sums pass through in pieces, for each of four channels; 0: 32 MiB. The
     * same on all ranks, like `fast` */
    size_t staging_bytes;
    /* Maximum blocks of NCCL's kernels on each of the four channels, a power of two; a block
     * occupies a multiprocessor. 0: 16, or fewer, so that all channels together occupy at most half
     * of the device: NCCL guarantees progress only if their kernels can run at the same time. The
     * same on all ranks.
     *
     * NCCL's device memory grows with it: zf_comm.memory, measured when ranks are connected, of
     * which 4 (staging_bytes + 2 MiB) are for staging. For NCCL 2.28, without its environment
     * variables and without NVLS, the rest is at most about 4 * ctas * world * 12 MiB: for each
     * block and channel a connection in the ring and one to each other rank, of 4 MiB
     * (NCCL_BUFFSIZE), 4.7 MiB (NCCL_LL128_BUFFSIZE) and 0.5 MiB (NCCL_LL_BUFFSIZE), in whole pages
     * of 2 MiB. `fast` may open more connections later */
    int32_t ctas;
    /* Rank 0 listens at host:port, the other ranks connect to it, and the connections stay open: a
     * rank that ends or fails is reported to the ranks that wait, and a rank that does not arrive
     * is named. The host must be an address of rank 0's machine: at no other one it listens.
     * Connections are not encrypted: use it in trusted networks only */
    const char *host;
    int32_t port;
    /* A path in a folder that all ranks share, where no file is needed otherwise. The ranks make
     * this file and others whose names begin with it, and remove them when all ranks have arrived.
     * Files of an earlier run are recognised. A rank that fails writes FILE.failed, which stays */
    const char *file;
    /* ZF_NCCL_ID_BYTES from zf_nccl_id, which one rank calls; the program sends them to all ranks.
     * The other ranks notice a failed rank only by their deadline */
    const void *id;
    /* A name of the run, such as a job's number, the same on all ranks. At the host, or in the
     * file, ranks of runs with other names are not let in; who does not know the name cannot take a
     * rank's place. NULL: "" */
    const char *run;
} zf_nccl_desc;
/* The calling rank's communicator; all ranks must call within the deadline. Calls on a stream (a
 * cudaStream_t; device memory) return once they are enqueued, and may be captured into a graph.
 * Calls without a stream take host or device memory, and run after the calls on streams of the same
 * channel. Sums have the bits of zf_add_ranks unless `fast`. NULL with *error (which may be NULL).
 * zf_comm_free frees it, after the programs that use it. */
extern zf_comm *zf_nccl_comm(const zf_nccl_desc *desc, zf_error *error);
extern zf_status zf_nccl_id(void *id, zf_error *error);

/* --------------------------------------------------------------------------------------- STORES
 *
 * Parameters and states live in a store: named tensors in the memory of a backend, whole or
 * sharded. A program binds those that its graph names, and adds those that the store lacks: their
 * first values follow from the store's seed and the name. Any number of programs work over one
 * store: training and evaluation (below), two batch sizes, an adapter of a frozen base, two models
 * that learn from each other.
 *
 *     zf_program *train = zf_compile(g, &(zf_compile_desc){.seed = 1});
 *     zf_store *store = zf_program_store(train);
 *     zf_program *eval =
 *         zf_compile(h, &(zf_compile_desc){.store = store, .must_exist = true, .evaluate = true});
 *     zf_step(train), zf_step(eval), zf_step(train);
 *     zf_save(store, "checkpoint", NULL);
 *
 * An adapter of a saved base: g has the base's parameters, frozen, and new ones.
 *
 *     zf_store *store = zf_store_new(&(zf_store_desc){.backend = cpu, .seed = 1}, &error);
 *     zf_load(store, "base", &(zf_load_desc){.params_only = true});
 *     zf_program *p = zf_compile(g, &(zf_compile_desc){.store = store});
 *     ... zf_step(p) ...
 *     zf_save(store, "adapter", &(zf_save_desc){.select = is_of_adapter});
 *
 * and later "base" as above, and zf_load(store, "adapter", &(zf_load_desc){.merge = true}).
 *
 * The seed belongs to the store, and so does the count of training steps, one for each name of a
 * training (zf_training.name): programs of one training share its count. With several ranks each
 * has a store of its own, and all are sharded alike; a later graph's zf_zero takes the layout from
 * zf_zero_desc.store. A store lives until its maker and all its programs have freed it. It and its
 * programs belong to one thread at a time. */

typedef struct zf_store_desc {
    zf_backend *backend; /* NULL: a single-threaded CPU backend of the store's own */
    /* A CPU backend, for what lies in host memory; NULL: `backend`, if its memory is the host's,
     * else a single-threaded one of the store's own */
    zf_backend *host;
    /* A folder for values on the disk. They lie in files that are removed with the store, and whose
     * space is allocated when a program is compiled (ZF_ERR_LIMIT where the disk is full).
     * Checksums of their blocks are kept in memory: damage is ZF_ERR_FORMAT of the step. NULL: no
     * disk */
    const char *offload_dir;
    /* The ranks among which this store is one; NULL: there is one rank. It must outlive the
     * store */
    const zf_comm *comm;
    uint64_t seed; /* of first values, and of dropout in all programs */
    /* Bytes, of the store and all its programs together; 0: none. A program that does not fit is
     * ZF_ERR_LIMIT of zf_compile */
    size_t memory_limit;
    zf_allocator allocator; /* of host memory */
    /* Nothing is allocated: programs over the store are compiled for their plans and layouts
     * (zf_program_info_of, zf_zero_desc.store). What would read or write values is ZF_ERR_STAGE */
    bool plan_only;
} zf_store_desc;

/* An empty store, or NULL with *error (which may be NULL). desc NULL: defaults. A program without
 * one gets its own from zf_compile. */
ZF_API zf_store *zf_store_new(const zf_store_desc *desc, zf_error *error);
/* Of stores made by zf_store_new. NULL: nothing. */
ZF_API void zf_store_free(zf_store *store);
/* The last call's error; "" when it succeeded. */
ZF_API const char *zf_store_error(const zf_store *store);
/* Steps done by the training without a name, in all its programs: 0 at first, kept by
 * checkpoints. */
ZF_API int64_t zf_store_step(const zf_store *store);
/* Steps done by the training of this name (zf_training.name). NULL or "": zf_store_step. */
ZF_API int64_t zf_store_step_of(const zf_store *store, const char *training);

/* A tensor of a store, and its layout. */
typedef struct zf_stored {
    const char *name; /* lives as long as the store */
    bool state;       /* else it is a parameter */
    /* Of a parameter of an adapter (zf_lora), also one that it keeps: the adapter's name, "" where
     * it has none. NULL: no program has named it as such */
    const char *adapter;
    zf_dtype dtype;
    zf_shape shape;
    const char *master_of; /* the parameter whose master weights these are; NULL: none */
    /* The number of its bucket, in which it begins at element `at`. -1: the tensor was loaded, and
     * no program has named it yet; it lies in host memory */
    int32_t bucket;
    int64_t at, bucket_size; /* elements, with padding */
    int32_t world;           /* ranks that share the bucket; 1: each has all of it */
    int64_t first, count;    /* elements of the tensor that this rank has */
    /* For a piece of a tensor that zf_tile has cut: the name of that tensor, which is listed too,
     * with bucket -1 and count 0. `from` is the piece's first element in it. NULL: it is no
     * piece */
    const char *piece_of;
    int64_t from;
} zf_stored;

/* The tensors in the order in which programs added them: 0 <= index < zf_store_count. The name is
 * NULL for an index outside. */
ZF_API int32_t zf_store_count(const zf_store *store);
ZF_API zf_stored zf_store_at(const zf_store *store, int32_t index);
/* The index of a name, or -1. */
ZF_API int32_t zf_store_find(const zf_store *store, const char *name);

typedef struct zf_store_info {
    size_t bytes;         /* device memory of tensors that programs name */
    size_t program_bytes; /* device memory of all programs for everything else */
    size_t host_bytes;    /* host memory of tensors that no program has named yet */
    /* Host memory of tensors that programs name, and of what reads and writes those on the disk */
    size_t offloaded_bytes;
    size_t host_program_bytes; /* host memory of all programs for everything else */
    size_t disk_bytes; /* of files: tensors that programs name, and values of their steps */
    int64_t param_count, state_count; /* elements */
} zf_store_info;
ZF_API zf_store_info zf_store_info_of(const zf_store *store);

/* Copies a whole tensor out of the store, or into it; `bytes` are exactly the tensor's. Of a
 * sharded tensor a read is collective: all ranks must call it; a write keeps this rank's elements,
 * so all ranks must write the same data. Writing a parameter writes its master weights as well. A
 * tensor in pieces that ranks along tensor share (zf_divide) is ZF_ERR_ARGUMENT: zf_read_whole and
 * zf_write_whole. */
ZF_API zf_status zf_store_read(zf_store *store, const char *name, void *data, size_t bytes);
ZF_API zf_status zf_store_write(zf_store *store, const char *name, const void *data, size_t bytes);
/* Copies the values of all tensors that both stores have, whatever their shards. ZF_ERR_MISMATCH,
 * before anything is changed, where they differ in kind, dtype or shape, or where one has pieces of
 * a tensor that ranks along tensor share (zf_divide), and the other has others. Both stores have the
 * same ranks, all of which must call. The error is kept in `to`. */
ZF_API zf_status zf_store_copy(zf_store *to, zf_store *from);

/* Parameters of `to` take the averages that a training has made of them in `from` (zf_ema),
 * rounded to their dtype, whatever the shards; those without an average take the parameter's
 * values. So a second store evaluates or exports the averages while the first one is trained.
 * `to` may be `from`: then training goes on from the averages. training NULL or "": that without
 * a name. Collective, and errors, as zf_store_copy; ZF_ERR_ARGUMENT where there is no average. */
ZF_API zf_status zf_ema_copy(zf_store *to, zf_store *from, const char *training);

/* Adds the products of zf_lora to the weights: weight += scale B A, for each parameter
 * M.lora_A.weight of the store; with a name in the desc, for each M.lora_A.NAME.weight; of a table
 * weight += scale A B^T, for M.lora_embedding_A.weight; of experts each matrix for itself. B becomes zeros, of a table A, so programs
 * with the adapter compute the same results, except for the rounding of the weight, and where a
 * table is a weight of products as well (a tied head): these read the sum. With magnitudes (dora)
 * the weight becomes that with these lengths, and the magnitudes its own. The desc gives name,
 * alpha, alphas and rslora; its rank and ranks, where rank is not 0, must be those of all these;
 * other members are ignored. Kept parameters are not changed. A square weight is [out, in]. Master
 * weights become those of the rounded weight. All ranks must call it where tensors are sharded.
 * desc NULL: defaults. */
ZF_API zf_status zf_lora_merge(zf_store *store, const zf_lora_desc *desc);

/* The adapter `to` takes the values of the adapter `from`, those of kept parameters too: both by
 * their names in zf_lora_desc, "" or NULL for that without one. Programs over the store have made
 * both. So a reference stays as it is while the other is trained. ZF_ERR_ARGUMENT where the store
 * has no such adapter, ZF_ERR_MISMATCH, before anything is changed, where a parameter of `to` is
 * not in `from`, or of another type. Master weights of `to` follow. All ranks must call it. */
ZF_API zf_status zf_lora_copy(zf_store *store, const char *to, const char *from);

/* ------------------------------------------------------------------------------ PLANS, PROGRAMS */

typedef struct zf_program zf_program;

typedef struct zf_memory_desc {
    zf_backend *backend; /* whose scratch is counted; NULL: none */
    bool no_reuse;       /* every value its own bytes */
    /* The store whose parameters and states the program will use: they have no place in this plan.
     * NULL: none */
    const zf_store *store;
    /* The backend of values in host memory, whose scratch is counted; NULL: `backend`, if its
     * memory is the host's */
    zf_backend *host;
    /* A graph whose program holds the caches: they have no place in this plan. NULL: none */
    const zf_graph *caches;
} zf_memory_desc;

/* Gives every value its offset in the arena: first the values that outlive a step (inputs,
 * parameters, states, constants), then the others. Nothing can be added to the graph afterwards.
 * zf_compile runs it when it has not been run. It refuses a plan with less scratch than its backend
 * needs, or one made for a store that had other tensors. desc NULL: defaults. */
ZF_API zf_status zf_memory(zf_graph *graph, const zf_memory_desc *desc);

/* What bytes of the arena hold. */
typedef enum zf_kind {
    ZF_PARAMETERS, /* parameters, and the buckets that hold them */
    /* Gradients of parameters as the micro section leaves them, packed, and their sums over ranks
     * and micro-batches; at stages 2 and 3 only the sums, which are this rank's shards */
    ZF_GRADIENTS,
    ZF_OPTIMIZER,     /* states */
    ZF_ACTIVATIONS,   /* other values of the micro section */
    ZF_COMMUNICATION, /* gathered values; at stages 2 and 3 also the gradients to be summed */
    ZF_WORKSPACE,     /* other values of the update section, and scratch */
    ZF_INPUTS,        /* inputs and constants */
    ZF_CACHES,        /* zf_cache */
    ZF_KINDS
} zf_kind;
/* "parameters", ...; NULL after the last */
ZF_API const char *zf_kind_name(zf_kind kind);

/* Collectives of one step: their number, and the bytes that one rank sends for them in a group of n
 * ranks. all_gather, reduce_scatter and all_to_all send (n-1) b, b being the bytes of one rank's
 * part (of reduce_scatter: of the result). all_reduce sends 2 (n-1) b, b being 1/n of the buffer,
 * rounded up to elements. The root of a bcast sends the buffer to n-1 others, which send nothing; of
 * a reduce, which is counted with reduce_scatter, each but the root sends it once; so does the one
 * rank of a send. INT64_MAX means that number or more. */
typedef struct zf_moved {
    int64_t calls;
    size_t bytes;
    size_t between; /* the part of `bytes` to ranks of other nodes (zf_zero_desc.nodes) */
} zf_moved;

typedef struct zf_traffic {
    zf_moved all_gather, reduce_scatter, all_reduce, all_to_all, bcast, send;
    /* Copies of zf_offload and the bytes of their values: device to host memory, host memory to
     * device, disk to host memory, host memory to disk. Of experts those with rows are copied,
     * which a plan does not know: it has the bytes of all */
    zf_moved download, upload, read, write;
} zf_traffic;

/* The ranks of a collective, as its attribute `over` names them. */
typedef enum zf_over {
    ZF_OVER_ALL,
    ZF_OVER_NODE,  /* the ranks at one place of all nodes */
    ZF_OVER_LOCAL, /* the ranks of one node */
    /* Where ranks have other axes than data, those that differ in one axis alone */
    ZF_OVER_DATA,
    ZF_OVER_TENSOR,
    ZF_OVER_CONTEXT,
    ZF_OVER_EXPERT, /* neighbours along data, which share experts */
    ZF_OVER_PIPE,
    /* The axis tensor in two: ranks that have other key-value heads, and those that have copies of
     * one, where there are more ranks than key-value heads */
    ZF_OVER_GROUP,
    ZF_OVER_COPIES,
    ZF_OVER_OWNERS, /* ranks along data that have the same experts */
    ZF_OVERS
} zf_over;

/* What a step of one rank takes of one space; members as in zf_plan. The buffers that read and
 * write the disk (5 MiB, and 8 bytes for each MiB there) are workspace of host memory. The first
 * page of the file is workspace of the disk. The operating system's own memory, and stacks of
 * threads, are not in the plan. */
typedef struct zf_space_plan {
    size_t peak_bytes, live_bytes;
    int32_t peak_node;
    const char *peak_op, *peak_scope;
    size_t most[ZF_KINDS], at_peak[ZF_KINDS];
} zf_space_plan;

/* What a step of one rank takes. Members about memory are those of the device; `spaces` has all
 * spaces. */
typedef struct zf_plan {
    zf_space_plan spaces[ZF_SPACES]; /* [ZF_DEVICE] has the values of the members below */
    size_t peak_bytes; /* all bytes allocated for it, those that it adds to the store included */
    size_t live_bytes; /* the largest sum of bytes alive at one time */
    /* The node at which live_bytes is reached, as the text numbers nodes, its operator and its
     * scope; "" where there is none */
    int32_t peak_node;
    const char *peak_op, *peak_scope;
    size_t most[ZF_KINDS];    /* of each kind, the maximum that is alive at one time */
    size_t at_peak[ZF_KINDS]; /* of each kind, the bytes alive at peak_node, in sum live_bytes */
    zf_traffic traffic; /* of all collectives */
    zf_traffic traffic_over[ZF_OVERS]; /* of the collectives of each kind of group */
    zf_moved scales;  /* the part of traffic that is scales of quantised values */
    zf_moved padding; /* the part of traffic that is padding of buckets, a mean over the ranks */
    size_t loco_bytes; /* the part of ZF_OPTIMIZER that is errors of LoCo (zf_zero_desc.loco) */
    /* FLOPs of the model's matrix products in a step; a multiply-add is two. Products that
     * zf_recompute repeats are not counted */
    double flops;
    double recomputed_flops; /* FLOPs of the matrix products that zf_recompute repeats */
    int32_t nodes;
    int32_t inverted; /* values that the backward pass recomputes by zf_fuse's rewrite `invert` */
    int64_t parameter_count; /* elements of parameters */
    int64_t padded_count;    /* elements of parameters and of the padding of their buckets */
    /* Parameters of two dimensions or more, factors of adapters apart, that each rank along tensor
     * has whole, and their bytes: what zf_cut could not cut. 0 without such ranks */
    int32_t whole_weights;
    size_t whole_bytes;
} zf_plan;

/* The plan of the graph; its bytes are 0 before zf_memory. Of what ranks of a group send differently
 * it is that of rank 0, of a stage (zf_keep_stage) of its first rank; that of a program is of its
 * own rank. The graph's error, if there is one. */
ZF_API zf_status zf_graph_plan(zf_graph *graph, zf_plan *plan);
/* Memory over time: bytes[place][kind] is what is alive in the space while the node at that place
 * runs (zf_graph_node), for all zf_plan.nodes places. The largest sum of a row is the space's
 * live_bytes. Requires: zf_memory. */
ZF_API zf_status zf_graph_alive(zf_graph *graph, zf_space space, size_t (*bytes)[ZF_KINDS]);
/* ZF_ERR_LIMIT where the arena is larger than `limit` bytes (0: none); the error says by how much,
 * at which node, and which values are alive there. Requires: zf_memory. */
ZF_API zf_status zf_plan_fits(zf_graph *graph, size_t limit);

/* The resources of a rank's step. Each does one thing at a time, in the order of the plan. */
typedef enum zf_resource {
    ZF_RESOURCE_COMPUTE, /* the device */
    ZF_RESOURCE_HOST,    /* what computes in host memory */
    ZF_RESOURCE_LINK,    /* to other ranks: all collectives */
    ZF_RESOURCE_DOWNLOAD, /* copies from the device to host memory */
    ZF_RESOURCE_UPLOAD,   /* copies from host memory to the device */
    ZF_RESOURCE_READ,     /* from the disk to host memory */
    ZF_RESOURCE_WRITE,    /* from host memory to the disk */
    ZF_RESOURCES
} zf_resource;
/* "compute", "host", "link", "download", "upload", "read", "write"; NULL after the last */
ZF_API const char *zf_resource_name(zf_resource resource);

/* Seconds of a step, by a cost table. */
typedef struct zf_estimate {
    double seconds; /* of the step: the sum of `exposed` */
    double busy[ZF_RESOURCES];    /* the time of work on each */
    /* The time in which the step waits for each: queue compute is idle or does the work itself */
    double exposed[ZF_RESOURCES];
} zf_estimate;

/* Simulates the step on its queues. A node on queue compute begins when the one before it ends, a
 * node on another queue when it is issued, each when its resource is free; a wait ends with what it
 * waits for. With zf_cost.host.apart, updates in host memory run concurrently with queue compute,
 * which waits for them only where it needs their results. Of the hidden time of a copy, the part
 * that it takes from computing (copy_load, disk.load) counts as exposed. The time of a node follows
 * from its FLOPs, bytes, 16-bit values and functions (zf_launch_functions). Without zf_prefetch all
 * except these updates is on queue compute, and exposed. The plan is final after zf_memory. cost
 * NULL: the default. ZF_ERR_ARGUMENT for rates that are not above 0. */
ZF_API zf_status zf_graph_estimate(zf_graph *graph, const zf_cost *cost, zf_estimate *estimate);

/* A node that takes a resource for some time, in seconds from the beginning of the step. */
typedef struct zf_span {
    int32_t node;
    zf_resource resource;
    double from, to;
} zf_span;
/* The spans of the estimate, in the order of the plan, of the first micro-batch and of the update.
 * *count is the capacity of `spans` (NULL: none), and afterwards the number of all spans; those
 * that fit are written. */
ZF_API zf_status zf_graph_timeline(zf_graph *graph, const zf_cost *cost, zf_span *spans,
                                   int32_t *count);

/* Notes when each launch of the following steps runs, or no longer. It changes no number. It takes
 * memory of the host for a zf_span of each launch, until it is off. ZF_ERR_BACKEND where the
 * backend cannot (zf_backend.measures): the CPU's can. */
ZF_API zf_status zf_measure(zf_program *program, bool on);
/* The spans of the last step with zf_measure, of all its micro-batches, in the order in which they
 * were launched, in seconds from the beginning of the first; a launch on another queue may end
 * later than the next begins. *count as in zf_graph_timeline. */
ZF_API zf_status zf_measured(const zf_program *program, zf_span *spans, int32_t *count);

typedef struct zf_compile_desc {
    /* The store of its parameters and states; NULL: a new one, of backend, comm and seed */
    zf_store *store;
    zf_backend *backend;  /* NULL: the store's; of a new one, a single-threaded CPU backend */
    zf_backend *host;        /* zf_store_desc.host of a new store */
    const char *offload_dir; /* zf_store_desc.offload_dir of a new store */
    uint64_t seed;           /* of a new store; of another one 0, or its seed */
    /* bytes; 0: none. A larger plan is ZF_ERR_LIMIT; the error says by how much and where */
    size_t memory_limit;
    bool must_exist; /* a parameter or state that the store lacks is an error */
    /* A program on the same backend, over any store, that never runs at the same time as this
     * one, as evaluation never does while a step is trained. The values of a step of this program
     * lie in that one's memory where they fit, so of several programs the largest is compiled
     * first. An output of one can be read until another has run. No other program may run between
     * the micro-batches of a step. A call that breaks either rule fails with ZF_ERR_STAGE. The
     * program that is named need not outlive this one. NULL: all memory is this program's own */
    const struct zf_program *shares_memory_with;
    /* The least bytes of the device for the values of a step, so that larger programs, which are
     * compiled later, have room there (shares_memory_with). They are part of its predicted bytes.
     * Ignored where the values lie in the memory of another program */
    size_t reserve;
    /* A program of this store whose caches (zf_cache), and held parameters (zf_hold), are also this
     * one's, by name; it lives as long as this program; NULL: none */
    const zf_program *caches;
    /* The caches, and held parameters, of this program lie among the values of a step, in memory
     * that shares_memory_with lends: so caches of generation are where activations of training are.
     * They hold what steps of this program, and of those that name it in `caches`, have added since
     * zf_clear_caches, until another program runs in that memory; a step that would read them
     * afterwards is ZF_ERR_STAGE. So a generation begins with zf_hold, if it holds parameters,
     * zf_clear_caches and its prompt */
    bool temporary_caches;
    bool evaluate;        /* dropout passes through */
    bool no_reuse;        /* as zf_memory_desc.no_reuse */
    bool poison;          /* fill values with NaN after their lifetime: finds late reads; slow */
    /* Of a new store: this rank's communicator; NULL: there is one rank. It must outlive the
     * program, and have zf_zero_desc.world ranks. */
    const zf_comm *comm;
    bool allow_nan;       /* update also when a scalar output of the micro section is not finite */
    bool verify;          /* check the rules of graph and plan once more: ZF_ERR_VERIFY */
} zf_compile_desc;

/* A program that runs the graph, or NULL: the graph has the error, and the store is unchanged.
 * Nodes on which no output, update, gradient or state depends are left out, unless zf_memory was
 * run; a step does not ask for inputs that nothing reads, and zf_write ignores them. The program
 * keeps the graph, which must not change while it lives. Tensors that graph and store both name
 * must have the same kind, dtype, shape and shards (zf_zero_desc.store), else it is
 * ZF_ERR_MISMATCH. desc NULL: defaults. */
ZF_API zf_program *zf_compile(zf_graph *graph, const zf_compile_desc *desc);
/* The store of a program; not to be freed, and valid as long as a program over it lives. */
ZF_API zf_store *zf_program_store(const zf_program *program);
ZF_API void zf_program_free(zf_program *program); /* NULL: nothing */

/* The last call's error; "" when it succeeded. */
ZF_API const char *zf_program_error(const zf_program *program);

/* Magnitudes of the program's adapter (zf_lora_desc.dora) become the lengths of their weights, as
 * they are without products: the program then computes what it computes without the adapter. To be
 * called after the weights are written or loaded, where no magnitudes are. All ranks must call it.
 * Nothing without magnitudes. */
ZF_API zf_status zf_lora_magnitudes(zf_program *program);

/* zf_write copies `bytes`, exactly the tensor's size, into an input, param, state or cache; zf_read
 * copies them out of one of these or an output. Of a sharded param or state a write keeps this
 * rank's elements, so all ranks must write the same data, and a read is collective: all ranks must
 * call it. Writing a parameter writes its master weights as well. A param or state in pieces that
 * ranks along tensor share (zf_divide) is ZF_ERR_ARGUMENT: zf_write_whole and zf_read_whole. */
ZF_API zf_status zf_write(zf_program *program, zf_tensor tensor, const void *data, size_t bytes);
ZF_API zf_status zf_read(zf_program *program, zf_tensor tensor, void *data, size_t bytes);
/* Writes `bytes` of a param or state from byte `offset` on. Ranges must be whole elements, and
 * follow one another from the first element to the last. So a file becomes a parameter without a
 * copy of it in memory. */
ZF_API zf_status zf_write_range(zf_program *program, zf_tensor tensor, size_t offset,
                                const void *data, size_t bytes);
/* The same of a param or state that ranks share (zf_cut, zf_stages): `offset` and `bytes` are of
 * the value that one rank would have (zf_whole_shape). A rank keeps the elements that it has, of
 * another stage none. All ranks must write the same data. */
ZF_API zf_status zf_write_whole(zf_program *program, zf_tensor tensor, size_t offset,
                                const void *data, size_t bytes);
/* Copies a param, a state or an output out as one rank would have it: `bytes` is all of it
 * (zf_whole_bytes). Collective: all ranks must call it, those of other stages as well. An output
 * that ranks have no parts of, but other values, is ZF_ERR_ARGUMENT. It needs memory for two parts
 * of the value besides `data`; without it all ranks end with an error. */
ZF_API zf_status zf_read_whole(zf_program *program, zf_tensor tensor, void *data, size_t bytes);

/* Runs the graph once: one training step where it has an optimizer. A non-finite learning rate is
 * ZF_ERR_ARGUMENT. After an error (such as an index out of range) the values of this step are
 * undefined; parameters and states do not change if it arose before the update section (below
 * `update:` in the text). Where there is an optimizer, a non-finite scalar float output of the
 * micro section (a loss) is such an error, ZF_ERR_NAN. After an error in the update section (a disk
 * fails, a rank is lost) parameters and states are undefined: steps, zf_save, and zf_store_copy
 * from this store are ZF_ERR_STAGE until zf_load has restored all of them. With several ranks an
 * error on one rank is an error on all, which names that rank; after ZF_ERR_NAN training can go
 * on. */
ZF_API zf_status zf_step(zf_program *program);

/* The same of an input of micro-batch 0, 1, ... of the step. A step of stages with a schedule
 * (zf_stages) runs its micro-batches together: their inputs have a value for each of them. When one
 * of the last micro-batch is written, zf_step can be called, without zf_micro; inputs that were not
 * written are those of the micro-batch before. In other steps `micro` is the next one: zf_write. */
ZF_API zf_status zf_write_micro(zf_program *program, zf_tensor input, int64_t micro,
                                const void *data, size_t bytes);
/* Runs one micro-batch of a step of several (zf_zero_desc.micro_batches): for each but the last,
 * zf_write and zf_micro; for the last, zf_write and zf_step. After an error the step starts anew.
 */
ZF_API zf_status zf_micro(zf_program *program);

/* Fills with 0 the caches (zf_cache) that the program uses, its own or those of
 * zf_compile_desc.caches. Of temporary ones it takes the memory back from the program that ran
 * there last, whose outputs are lost. */
ZF_API zf_status zf_clear_caches(zf_program *program);
/* Whether the caches hold what steps have added: false of temporary ones before zf_clear_caches,
 * and after another program has run in their memory. True without caches; false without a
 * program. */
ZF_API bool zf_has_caches(const zf_program *program);

/* Held parameters. zf_hold runs a program of zf_hold_graph: it gathers the parameters as they are
 * now into the memory of the program that holds them, for all that read them there, in one step
 * (zf_program_info.counted). Collective; ranks compare plans and values as in zf_step. Of temporary
 * memory (zf_compile_desc.temporary_caches) it takes the place of what ran there last. Steps of
 * readers are ZF_ERR_STAGE before it, after zf_release, after the store has changed, and after
 * another program has run in temporary memory. Readers at stage 3 exchange nothing but their plans,
 * in their first step or in zf_compare_ranks: after that, ranks may make different numbers of
 * steps. ZF_ERR_ARGUMENT for another program; zf_step of this one is ZF_ERR_STAGE. Errors as of
 * zf_step. */
ZF_API zf_status zf_hold(zf_program *program);
/* The held parameters that the program gathers or reads are needed no more. Others may use
 * temporary memory without this call. ZF_ERR_ARGUMENT of a program that has none. */
ZF_API zf_status zf_release(zf_program *program);

/* One of several programs that run in turns, as training and generation do. */
typedef struct zf_turn {
    const zf_graph *graph; /* after its passes, before zf_memory */
    int32_t store;         /* programs with one number have one store; from 0 to count - 1 */
    int32_t caches; /* the number, from 1 on, of an earlier turn that lends its caches; 0: none */
    bool temporary_caches; /* zf_compile_desc.temporary_caches */
} zf_turn;

typedef struct zf_together_desc {
    zf_backend *backend, *host; /* of the stores */
    const zf_comm *comm;        /* this rank; NULL: there is one */
    size_t memory_limit;        /* bytes of the device; 0: none */
    zf_allocator allocator;
} zf_together_desc;

typedef struct zf_together {
    size_t bytes[ZF_SPACES];  /* that all programs and their stores will have allocated */
    size_t shared[ZF_SPACES]; /* of these, where values of a step are, of all in turns */
    /* The turn to compile first, counted from 0. The others name it in shares_memory_with, or the
     * one that lends them caches */
    int32_t first;
} zf_together;

/* Plans several graphs before any is compiled: what outlives a step is summed, and values of a step
 * lie in the memory of the turn that takes most. The graphs do not change. Programs that are then
 * compiled as `first` says allocate exactly these bytes. With parameters in shards, the passes of a
 * later graph need the layout of an earlier one (zf_zero_desc.store), which a store of plan_only
 * can give. ZF_ERR_LIMIT above the limit: *out then has the bytes. The error of a graph is that of
 * the call. desc NULL: defaults. error may be NULL. */
ZF_API zf_status zf_plan_together(const zf_turn *turns, int32_t count, const zf_together_desc *desc,
                                  zf_together *out, zf_error *error);

/* Collective: compares what must be the same on all ranks: seed, step, `evaluate` and `allow_nan`,
 * and the values of parameters, states, and inputs that updates read (the learning rate); of a
 * sharded parameter or state, the value last written (zf_write). ZF_ERR_MISMATCH on all ranks names
 * the first difference. zf_step does it before the first step and before the first step after
 * zf_load, and zf_save does it. It reads all values once, and moves a few bytes. One rank has
 * nothing to compare. */
ZF_API zf_status zf_compare_ranks(zf_program *program);

/* Steps done. For a program that trains these are its training's (zf_store_step_of), for another
 * program its own. */
ZF_API int64_t zf_program_step(const zf_program *program);

typedef struct zf_program_info {
    size_t peak_bytes;      /* predicted bytes of the device; plan.spaces has all spaces */
    size_t allocated_bytes; /* what the backend was asked for */
    size_t allocated[ZF_SPACES]; /* the same of each space; [ZF_DEVICE] is allocated_bytes */
    /* Predicted bytes of each space that lie in memory of zf_compile_desc.shares_memory_with.
     * shared[k] and allocated[k] together are the predicted bytes of space k. A program that reads
     * temporary caches of another one counts them again */
    size_t shared[ZF_SPACES];
    size_t store_bytes;     /* the part of peak_bytes that it has added to the store */
    size_t bound_bytes;     /* of tensors that the store had before */
    size_t param_bytes, state_bytes, input_bytes, constant_bytes, work_bytes;
    size_t held_bytes;  /* of held parameters (zf_hold) that lie in this program's memory */
    size_t cache_bytes; /* of zf_cache; those of zf_compile_desc.caches are not counted again */
    size_t live_bytes;      /* the largest sum of bytes alive at one time */
    int32_t peak_node;      /* the node at which live_bytes is reached, as the text numbers nodes */
    int64_t param_count;    /* elements of parameters */
    double flops;           /* of the matrix products of a step, a multiply-add being two */
    int32_t nodes;
    /* Nodes of the graph that zf_compile has left out, since no output, update, gradient or state
     * depends on them, and the inputs that nothing reads: "labels, mask"; "": none */
    int32_t left_out;
    const char *unread;
    zf_plan plan;           /* predicted */
    /* Of the last step or the one in progress; in the end plan.traffic and flops, or less where it
     * leaves out layers (zf_layer_drop) */
    zf_traffic counted;
    double counted_flops;
    zf_traffic counted_over[ZF_OVERS]; /* the same by kind of group, as plan.traffic_over */
    size_t comm_bytes;      /* of the device, taken by the communicator: zf_comm.memory */
    /* "", or a line about slow kernels: "products of 7 shapes run by a plain kernel, which is slow:
     * cuBLASLt has none for matmul %12 [128,768] x [768,2] bf16 and others". It covers all programs
     * of the backend, and changes as they run */
    const char *remark;
} zf_program_info;
ZF_API zf_program_info zf_program_info_of(const zf_program *program);

/* ------------------------------------------------------------------------------- LAYERS, LOOPS
 *
 * Conveniences in nn/, which use only the calls above, to be used or copied. Parameters have the
 * names and shapes that PyTorch and Hugging Face give them, inside the scopes that are open. */

/* Sets the first values of a weight [out, in, taps...] by a name of PyTorch's nn.init, leaving the
 * rest of the desc: xavier_uniform, xavier_normal (Glorot & Bengio 2010), kaiming_uniform,
 * kaiming_normal (He et al. 2015; for relu), linear (as nn.Linear and nn.Conv2d begin: uniform
 * within 1 / sqrt(in taps)), truncated_normal (of deviation 0.02), zeros, ones. False, with the
 * desc as it was, for another name, or a shape of fewer than two dimensions or without elements. */
ZF_API bool zf_nn_init(const char *name, zf_shape shape, zf_param_desc *desc);

typedef struct zf_nn_linear_desc {
    double std; /* of the weight's truncated normal; 0: 0.02; ZF_ZERO: all are 0 */
    bool no_bias;
} zf_nn_linear_desc;

/* x [..., in] -> [..., out]: x weight^T + bias; parameters NAME.weight [out, in] and NAME.bias
 * [out]. */
ZF_API zf_tensor zf_nn_linear(zf_tensor x, const char *name, int64_t out,
                              const zf_nn_linear_desc *desc);
/* Parameters NAME.weight (ones) and NAME.bias (zeros), [n] for x [..., n]. */
ZF_API zf_tensor zf_nn_layer_norm(zf_tensor x, const char *name, double eps);
/* The parameter NAME.weight (ones), [n] for x [..., n]. */
ZF_API zf_tensor zf_nn_rms_norm(zf_tensor x, const char *name, double eps);

typedef struct zf_nn_embedding_desc {
    double std; /* of the truncated normal; 0: 0.02 */
    zf_dtype dtype;
} zf_nn_embedding_desc;

/* The parameter NAME.weight [rows, width], for zf_embedding. */
ZF_API zf_tensor zf_nn_embedding_table(zf_graph *graph, const char *name, int64_t rows,
                                       int64_t width, const zf_nn_embedding_desc *desc);
/* softmax(q k^T / sqrt(d) + bias) v, dropout on the softmax; q [..., m, d], k and v [..., n, d];
 * bias broadcasts to [..., m, n] and may be ZF_NONE (Vaswani et al. 2017). */
ZF_API zf_tensor zf_nn_attention(zf_tensor q, zf_tensor k, zf_tensor v, zf_tensor bias,
                                 double dropout);

typedef enum zf_activation {
    ZF_ACTIVATION_GELU,
    ZF_ACTIVATION_GELU_TANH,
    ZF_ACTIVATION_RELU,
    ZF_ACTIVATION_SILU
} zf_activation;
/* zf_gelu, zf_gelu_tanh, zf_relu or zf_silu of x. */
ZF_API zf_tensor zf_nn_activation(zf_tensor x, zf_activation activation);

/* The lists of a block mask (zf_attention_desc.blocks) whose layout is a text, as
 * zf_block_mask_parse takes it; NULL, "" and "off": ZF_NONE. heads: of q. */
ZF_API zf_tensor zf_nn_blocks(zf_graph *graph, const char *layout, int64_t tokens, int64_t heads,
                              bool causal);

typedef struct zf_nn_encoder_desc {
    int64_t heads;        /* 0: one for every 64 of hidden */
    int64_t intermediate; /* 0: 4 hidden */
    zf_activation activation; /* between the two products of its second half */
    double dropout, attention_dropout;
    double eps; /* of LayerNorm; 0: 1e-12 */
    double std; /* of the weights; 0: 0.02 */
    /* LayerNorm before each half and not after it; a model then ends with a LayerNorm of its own */
    bool pre_norm;
    zf_tensor blocks; /* keys are seen in blocks (zf_attention_desc.blocks); ZF_NONE: all are */
    zf_tensor documents; /* the result of zf_documents: a token sees its own; ZF_NONE: one */
    zf_layer_drop_desc layer_drop; /* of both halves; `half` is set here */
    /* The second half is a layer of experts (zf_moe), named "experts", in place of its two products;
     * NULL: it is not */
    const struct zf_moe_desc *experts;
} zf_nn_encoder_desc;

/* One transformer encoder block, x [batch, tokens, hidden] -> the same; parameters named as in
 * BERT's encoder.layer.{i} (attention.self.query.weight, ...). bias: as in zf_nn_attention, over
 * [batch, heads, tokens, tokens]. */
ZF_API zf_tensor zf_nn_encoder_block(zf_tensor x, zf_tensor bias, const zf_nn_encoder_desc *desc);

/* Names of the parameters of a block, each with .weight and .bias; NULL: those given here. */
typedef struct zf_nn_block_names {
    const char *norm, *q, *k, *v, *out; /* "self.norm", "self.q", ... */
    const char *cross_norm, *cross_q, *cross_k, *cross_v, *cross_out; /* "cross.norm", ... */
    const char *feed_norm, *up, *gate, *down; /* "mlp.norm", "mlp.up", ... */
} zf_nn_block_names;

typedef struct zf_nn_block_desc {
    /* Of x to itself, as zf_attention: heads and kv_heads (heads 0: one for every 64 of hidden),
     * causal, window, mask, dropout, caches for generation */
    zf_attention_desc attention;
    zf_tensor memory; /* [batch, N, M], which x attends to after itself; ZF_NONE: there is none */
    zf_attention_desc cross; /* of x to memory; heads 0: those of attention */
    const zf_rope_desc *rope; /* of q and k of x; heads are set here; NULL: they are not rotated */
    int64_t width;            /* of a head; 0: hidden / heads */
    int64_t intermediate;     /* 0: 4 hidden */
    zf_activation activation; /* of the second half: down(activation(up(x))), */
    bool gated;               /* or down(activation(gate(x)) up(x)): with SILU it is SwiGLU */
    bool rms_norm;            /* norms are RMS norms, else layer norms */
    /* A norm after each part, of the sum with x; else one before each part, and a model then ends
     * with a norm of its own */
    bool post_norm;
    bool no_bias;   /* products have no biases */
    double dropout; /* of what a part adds to x */
    double eps;     /* of norms; 0: 1e-5 */
    double std;     /* of the weights; 0: 0.02 */
    zf_layer_drop_desc layer_drop;  /* of what attention adds, and of the second half, whose `half`
                                     * is set here */
    const zf_nn_block_names *names; /* NULL: all as said there */
} zf_nn_block_desc;

/* A transformer block, x [batch, tokens, hidden] -> the same: attention of x to itself, attention
 * to `memory` if there is one, and two products with an activation between them (Vaswani et al.
 * 2017). It is an encoder's, a decoder's (attention.causal) or one with cross-attention. desc NULL:
 * defaults. */
ZF_API zf_tensor zf_nn_block(zf_tensor x, const zf_nn_block_desc *desc);

/* Names of the parameters of a layer of experts, each with .weight but the bias; NULL: those given
 * here. */
typedef struct zf_moe_names {
    const char *router, *bias;            /* "gate", "gate.e_score_correction_bias" */
    const char *experts;                  /* "experts", before those of their three products, */
    const char *gate, *up, *down;         /* "gate_proj", "up_proj", "down_proj": [experts, n, k] */
    const char *dense, *mix; /* of `residual`: "mlp" before its products, "coefficient" */
} zf_moe_names;

/* What a layer of experts makes besides its result: for losses and logs. */
typedef struct zf_moe_parts {
    zf_tensor logits, scores; /* [tokens, experts], of the router and of zf_route */
    zf_tensor experts;        /* i32 [tokens, k]: of each token */
    zf_tensor slots, bounds, counts; /* of zf_expert_rows */
    int64_t most;             /* rows of an expert, at most; 0: there is no limit */
    bool sigmoid;             /* scores are sigmoids, which do not add up to 1 */
} zf_moe_parts;

typedef struct zf_moe_desc {
    int64_t experts;      /* 1 or more */
    int64_t k;            /* experts of a token; 0: 2 */
    int64_t intermediate; /* of an expert; 0: 4 hidden */
    zf_activation activation;
    bool gated; /* an expert is down(activation(gate(x)) up(x)), else down(activation(up(x))) */
    /* As in zf_route_desc; with a capacity weights are normalized after drops */
    bool sigmoid, normalize;
    int64_t groups, kept;
    double scale;
    /* Each expert has at most ceil(capacity tokens k / experts) rows, and no fewer than `least`,
     * and drops further choices: those of later tokens, or by chance. Tokens are those of this
     * graph: a micro-batch of a rank. Less than one row on average is an error without `least`. 0:
     * nothing is dropped */
    double capacity;
    int64_t least;
    bool random;
    int64_t rows; /* of all experts, without a capacity; 0: a row for each choice */
    /* There is a bias for the choice; with `balance` it is trained by how often experts are chosen
     * (zf_route_desc.balance), for which it needs a group of its own: zf_param_group with Lion, a
     * constant rate, no decay and beta1 = 1e-45, so that it has no memory, adds the rate to the bias
     * of experts below the mean of the global batch, and takes it from those above, once a step */
    bool biased, balance;
    /* y = c[0] mlp(x) + c[1] experts(x), c = softmax(x mix^T + bias), mlp of the same form */
    bool residual;
    double std;                /* of the weights; 0: 0.02 */
    /* How weights of experts are quantised and frozen, those with rows of whole blocks; bits 0: all
     * are floats. The router is floats */
    zf_quantize_desc quantized;
    const zf_moe_names *names; /* NULL: all as said there */
    zf_moe_parts *parts;       /* NULL: not wanted */
} zf_moe_desc;

/* A layer of experts (mixture of experts), x [..., hidden] -> the same: each token is given to the
 * k experts that its router chooses, whose results are added, weighted by their scores. */
ZF_API zf_tensor zf_moe(zf_tensor x, const zf_moe_desc *desc);

typedef enum zf_moe_balance {
    ZF_BALANCE_POOLED, /* experts sum over experts of f P, f and P over the tokens of all layers, as
                        * transformers has it for Mixtral; the shares f add up to k */
    ZF_BALANCE_LAYERS  /* of each layer, f / k, and the sum over layers, as Switch has it */
} zf_moe_balance;

/* The loss that is least where tokens are spread evenly: f, the share of tokens that choose an
 * expert, times P, its mean score. Of tokens for which the mask [tokens], of the dtype of scores,
 * is 1, not 0; ZF_NONE: of all. */
ZF_API zf_tensor zf_moe_balance_loss(const zf_moe_parts *layers, int64_t count, zf_tensor mask,
                                     zf_moe_balance form);
/* The mean over tokens of (log sum exp logits)^2, summed over layers: it keeps logits small. */
ZF_API zf_tensor zf_moe_z_loss(const zf_moe_parts *layers, int64_t count, zf_tensor mask);
/* How often tokens of the mask choose each expert of a layer, then how many choices of all tokens are
 * dropped, and how many have rows: f32 [experts + 2]. For an output whose reduction is a sum. */
ZF_API zf_tensor zf_moe_load(const zf_moe_parts *layer, zf_tensor mask);

typedef struct zf_check_gradient_desc {
    zf_allocator allocator; /* {0}: the C library's */
    double step;      /* an element is changed by it both ways; 0: 2^-7, of f64 2^-17 */
    double tolerance; /* of the largest element of a gradient; 0: 2e-3, of f64 1e-7 */
    int64_t most;     /* elements of a parameter that are compared, spread evenly; 0: 64 */
    uint64_t seed;    /* of the parameters' first values */
    /* Writes inputs, and parameters whose first values do not suit, which it finds in the graph of
     * the program, a copy (zf_graph_find); NULL: there is nothing to write */
    zf_status (*write)(void *user, zf_program *program, zf_graph *graph);
    void *user;
} zf_check_gradient_desc;

/* Compares the gradient of a loss with differences of it, for each trained parameter: to test
 * operators and layers of one's own. The loss is a scalar float before zf_autograd; its graph does
 * not change. Dropout passes through. ZF_ERR_MISMATCH names the first parameter and element that
 * differ. Parameters of f64 give the sharper comparison. error may be NULL. desc NULL: defaults. */
ZF_API zf_status zf_check_gradient(zf_tensor loss, const zf_check_gradient_desc *desc,
                                   zf_error *error);

typedef enum zf_schedule_kind {
    ZF_CONSTANT,
    ZF_LINEAR,      /* from peak to end at `steps` */
    ZF_COSINE,      /* the same along half a cosine */
    ZF_POLYNOMIAL,  /* the same along (1 - t)^power */
    ZF_EXPONENTIAL, /* peak * rate^floor(steps after the warm-up / every), not below end */
    ZF_ONE_CYCLE,   /* cosines: up from peak/25 in the warm-up (0: 30% of steps), down to end */
    /* Those of DeepSpeed's lr_schedules.py, to the bit where log and cos agree. Step 1 has the rate
     * of t = -1, step 2 that of t = 0, as there; `from_zero` is for the others. A warm-up has N =
     * max(2, warmup) steps and goes from start at t = 0 to peak at t = N, along t/N, or with
     * `logarithmic` along ln(t + 1)/ln(N) */
    ZF_WARMUP_LR,        /* then peak */
    ZF_WARMUP_DECAY_LR,  /* then peak to start along (steps - t)/(steps - N) */
    ZF_WARMUP_COSINE_LR, /* then half a cosine to end; start and end are factors of peak */
    /* From start to peak in `warmup` steps, back in `fall`, then start / (1 + rate t'/every) after
     * t' further steps; every 0: then start */
    ZF_CYCLE_LR,
    ZF_RANGE_TEST_LR /* peak (1 + rate (t + 1)/every), with `stairs` its whole part */
} zf_schedule_kind;

/* The learning rate of step 1, 2, ...: those before ZF_ONE_CYCLE rise linearly, step/warmup of
 * peak, for `warmup` steps. */
typedef struct zf_schedule {
    zf_schedule_kind kind;
    double peak, end;
    int64_t warmup, steps; /* ZF_ONE_CYCLE: warmup -1 is none */
    double power; /* 0: 1 */
    double rate;  /* 0: 0.9, or 0 of ZF_CYCLE_LR, 1 of ZF_RANGE_TEST_LR; ZF_ZERO: 0 */
    int64_t every; /* 0: 1, or 2000 of ZF_RANGE_TEST_LR */
    double start;
    int64_t fall;  /* 0: as `warmup` */
    bool logarithmic, stairs;
    /* For zf_nn_train: the first step has the rate of step 0 (0 where there is a warm-up), as in
     * Hugging Face's transformers. false: it has that of step 1, and the last one that of
     * `steps` */
    bool from_zero;
} zf_schedule;
ZF_API double zf_schedule_at(const zf_schedule *schedule, int64_t step);
/* "constant", ...; NULL after the last */
ZF_API const char *zf_schedule_name(zf_schedule_kind kind);

typedef struct zf_nn_train_desc {
    zf_program *program;
    int64_t steps; /* training ends when zf_program_step is this */
    zf_tensor lr;  /* the rate is written here before each step; ZF_NONE: it is not */
    zf_schedule schedule;
    void *user;
    /* Returns the program of the next step, after `done` steps, and sets *lr to its rate's tensor:
     * one of several variants over the store of `program` (zf_variant_at). NULL: always `program`
     * and `lr` */
    zf_program *(*turn)(void *user, int64_t done, zf_tensor *lr);
    /* Writes the inputs of step `step` (0, 1, ...); may be NULL. A bad status ends the training
     * with it. */
    zf_status (*feed)(void *user, zf_program *program, int64_t step);
    /* After `done` steps; false ends the training. May be NULL. */
    bool (*report)(void *user, zf_program *program, int64_t done, double lr);
} zf_nn_train_desc;
ZF_API zf_status zf_nn_train(const zf_nn_train_desc *desc);

/* An input of a model, and the array of its values for all examples: data [examples, ...], of the
 * input's dtype. */
typedef struct zf_nn_field {
    const char *input;
    const void *data;
} zf_nn_field;

typedef enum zf_nn_metric_kind {
    ZF_NN_MEAN,
    ZF_NN_EXP /* the exponential of the mean: the perplexity, of a loss in nats */
} zf_nn_metric_kind;

/* A number that a fit reports besides the loss: of an output that the model makes (zf_output), a
 * scalar f32 that is a mean over the examples, or over labelled rows (zf_ratio_of). */
typedef struct zf_nn_metric {
    const char *name;   /* "accuracy" */
    const char *output; /* NULL: as `name`; "loss": the loss */
    zf_nn_metric_kind kind;
} zf_nn_metric;

enum { ZF_NN_METRICS = 4 };

/* The share of labelled rows whose largest logit is the label's: logits [..., classes], float, and
 * labels i32 or i64 [...], of which -100 is none. f32, a ratio of sums, without a gradient; 0 of no
 * rows. */
ZF_API zf_tensor zf_nn_accuracy(zf_tensor logits, zf_tensor labels);

/* The progress of a fit. */
typedef struct zf_nn_progress {
    int64_t epoch, step; /* 1, 2, ...; the step is the training's (zf_store_step_of) */
    double lr;
    double loss;       /* of this step's batch */
    /* Mean over what this call has trained on in this epoch: over its labelled rows where the loss
     * is a ratio (zf_ratio_of), else over its examples */
    double epoch_loss;
    bool epoch_done;   /* this step was the last of its epoch */
    /* After the last step of an epoch the mean loss of the held-out examples, without dropout, over
     * rows as epoch_loss, so that it does not depend on `batch`; else NAN */
    double held_out;
    double metrics[ZF_NN_METRICS];          /* of the epoch, as epoch_loss */
    double held_out_metrics[ZF_NN_METRICS]; /* as held_out */
    bool improved;      /* this epoch, which is done, is the best so far */
    int64_t best_epoch; /* the best of those that are done; 0: none */
} zf_nn_progress;

enum { ZF_NN_FIELDS = 8 };

typedef struct zf_nn_fit_desc {
    /* Builds the model for so many examples, the first dimension of its inputs; returns the loss, a
     * scalar f32, the mean over them. It is called for each number of examples that there is */
    zf_tensor (*build)(void *user, zf_graph *graph, int64_t examples);
    void *user;
    zf_nn_field fields[ZF_NN_FIELDS]; /* after the last one `input` is NULL */
    int64_t examples; /* in the arrays */
    int64_t held_out; /* the last held_out of them are only evaluated, after each epoch */
    int64_t batch;    /* examples of a step; 0: 32. The last step of an epoch has the rest */
    int64_t epochs;   /* 0: 1 */
    bool in_order;    /* examples in the order of the arrays; else shuffled in each epoch */
    uint64_t seed;    /* of the shuffles */
    zf_schedule schedule; /* peak 0: 1e-3, ZF_ZERO: 0; steps 0: those of all epochs */
    zf_training training; /* loss and lr aside; for one rank and without micro-batches */
    /* After each step; false ends the fit. May be NULL */
    bool (*report)(void *user, zf_store *store, const zf_nn_progress *progress);
    zf_nn_metric metrics[ZF_NN_METRICS]; /* after the last one `name` is NULL */
    /* The metric by which epochs are compared; NULL: the loss. Of the held-out examples, or where
     * there are none of what was trained on. The smallest is the best, or with `larger` the
     * largest; one that is better by no more than `least` is not. NaN never is */
    const char *watch;
    bool larger;
    double least;
    /* The fit ends after so many epochs without a better one; 0: it does not. A fit that goes on
     * after an epoch needs `best` for it */
    int64_t patience;
    /* A directory in which zf_save keeps the best epoch, with its value as a note
     * (zf_nn_fit.value), from which a fit that goes on knows it; NULL: none */
    const char *best;
    /* Returns the rate of the next step, instead of `rate`, which is the schedule's. last: the
     * progress of the last step of this call; its step is 0 before the first. May be NULL */
    double (*rate)(void *user, const zf_nn_progress *last, double rate);
    /* Takes a line without its end (zf_nn_progress_line), after each epoch and each line_every
     * steps (0: none), before `report`. May be NULL */
    void (*line)(void *user, const char *text);
    int64_t line_every;
    zf_allocator allocator; /* of graphs and of a batch; {0}: the C library's */
    const zf_operator *operators; /* of the model's own, as zf_graph_desc.operators */
    int32_t operator_count;
} zf_nn_fit_desc;

/* Trains the store's parameters, which it adds where the store lacks them. Every step depends on
 * its number only, so a store that has done some steps (zf_load) goes on with the same bits. After
 * an error (*error may be NULL) the store is as after the last step that succeeded. */
ZF_API zf_status zf_nn_fit(zf_store *store, const zf_nn_fit_desc *desc, zf_error *error);
/* Writes to `text`, which it returns: "epoch 2  step 64  rate 0.001  loss 0.1234  accuracy 0.9500
 * held out:  loss 0.1300  accuracy 0.9400  the best", cut to size - 1 bytes. */
ZF_API const char *zf_nn_progress_line(const zf_nn_fit_desc *desc, const zf_nn_progress *progress,
                                       char *text, size_t size);
/* The desc with all defaults filled in, except schedule.steps. It is to be read only, as that of
 * zf_training_resolved. */
ZF_API zf_nn_fit_desc zf_nn_fit_resolved(const zf_nn_fit_desc *desc);
