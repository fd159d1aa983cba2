/* Products on CUDA: ops/matmul.c; and the products of linear and head_loss.
 *
 *     c[m,n] = (added ? added[m,n] : 0) + alpha (sum over k of a[m,k] b[k,n]) + bias[n]
 *
 * by cuBLASLt, whose matrices lie column by column. A matrix that lies row by row is, so read, its
 * transpose; hence operands change places:
 *
 *     c [m,n] = a [m,k] b [k,n]    is    c^T = b^T a^T    with what lies in memory for c, b, a
 *
 * Sums are in f32, where k is split also in the workspace, and rounded once. f32 is f32, TF32 only
 * where the backend was asked for it. Bits depend on the shape, the alignment of operands and the
 * version of cuBLASLt; with a search also on the file of its results.
 *
 * What is known of a shape, descriptors and algorithm, is a plan, made when its scratch is asked
 * for and kept for the device's life. What cuBLASLt does not offer goes to a kernel of our own.
 */

/* A product, and its key in plans and files. All are int64_t, so that it is compared as bytes. */
typedef struct zfi_gemm {
    int64_t m, n, k, batch;
    int64_t a_row, b_row, c_row; /* elements from row to row, as they lie */
    int64_t a_batch, b_batch, c_batch;
    int64_t turn_a, turn_b; /* lie as [k,m], [n,k] */
    int64_t from, to;       /* dtypes of a, b and bias, and of c */
    int64_t bias, tf32;
    int64_t lies; /* all matrices begin at multiples of so many bytes, 16 at most */
} zfi_gemm;

enum {
    ZFI_GEMM_FIELDS = sizeof(zfi_gemm) / sizeof(int64_t),
    ZFI_ALGO_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
    ZFI_PLANS = 512, /* kept; of more shapes each is looked up every time */
    ZFI_CANDIDATES = 16,
    ZFI_SEARCH_ROUNDS = 4,
    ZFI_SEARCH_RUNS = 4,
    ZFI_WORKSPACE = 32 << 20, /* at most, for one product, */
    ZFI_WORK_LIES = 256,      /* at a multiple of this, as cuBLASLt wants it; scratch is at 64 */
    ZFI_TILE_ROWS = ZF_TENSOR_CORES ? 128 : 4 /* zfi_tile_rows gives multiples of these */
};

typedef struct zfi_plan {
    zfi_gemm gemm;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace; /* bytes */
    bool able;          /* cuBLASLt has something for it; else the plain kernel */
    bool searched;      /* the algorithm is the result of a search */
    bool described;     /* these are set: */
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} zfi_plan;

typedef struct zfi_products {
    bool tf32;
    int target;         /* multiprocessors that products may take; 0: all */
    const char *file;   /* of searched algorithms; NULL: none are searched for */
    const char *device; /* its name: what was found holds for this one */
    bool fresh;         /* something was found that the file lacks */
    int plain;          /* shapes that go to the plain kernel for want of another, */
    char first[128];    /* and the first of them */
    char remark[256];   /* zf_program_info.remark */
    int count;
    zfi_plan plans[ZFI_PLANS];
} zfi_products;

/* ---------------------------------------------------------------------------- the file of a search
 *
 *     zeroflow-products 1 130000 NVIDIA H200       (" on 120": products may take 120 of its
 *                                                  multiprocessors)
 *     M N K BATCH ... LIES WORKSPACE ALGORITHM     17 numbers of zfi_gemm, bytes, 8 words (hex)
 *
 * Of another version or device, it counts for nothing, and is replaced. */

static void zfi_products_head(const zfi_products *p, char *text, size_t size)
{
    char on[32] = "";
    if (p->target) snprintf(on, sizeof on, " on %d", p->target);
    snprintf(text, size, "zeroflow-products 1 %llu %.200s%s\n",
             (unsigned long long)cublasLtGetVersion(), p->device, on);
}

/* One plan of the file; false at its end, or where it is none. */
static bool zfi_plan_read(zfi_plan *plan, FILE *file)
{
    int64_t fields[ZFI_GEMM_FIELDS];
    long long value;
    unsigned long long word;
    memset(plan, 0, sizeof *plan);
    for (int i = 0; i < ZFI_GEMM_FIELDS; i++) {
        if (fscanf(file, "%lld", &value) != 1) return false;
        fields[i] = value;
    }
    memcpy(&plan->gemm, fields, sizeof fields);
    if (fscanf(file, "%llu", &word) != 1 || word > ZFI_WORKSPACE) return false;
    plan->workspace = word;
    for (int i = 0; i < ZFI_ALGO_WORDS; i++) {
        if (fscanf(file, "%llx", &word) != 1) return false;
        plan->algo.data[i] = word;
    }
    plan->able = plan->searched = true;
    return true;
}

static void zfi_plan_write(const zfi_plan *plan, FILE *file)
{
    int64_t fields[ZFI_GEMM_FIELDS];
    memcpy(fields, &plan->gemm, sizeof fields);
    for (int i = 0; i < ZFI_GEMM_FIELDS; i++) fprintf(file, "%lld ", (long long)fields[i]);
    fprintf(file, "%llu", (unsigned long long)plan->workspace);
    for (int i = 0; i < ZFI_ALGO_WORDS; i++)
        fprintf(file, " %llx", (unsigned long long)plan->algo.data[i]);
    fprintf(file, "\n");
}

/* Begins with what is in the file; of *p the settings are there, else it is 0. `file` (or NULL) and
 * `device` must live as long as *p. */
static void zfi_products_open(zfi_products *p)
{
    char head[256], line[256];
    FILE *from = p->file ? fopen(p->file, "r") : NULL;
    if (!from) return;
    zfi_products_head(p, head, sizeof head);
    if (fgets(line, sizeof line, from) && !strcmp(line, head))
        while (p->count < ZFI_PLANS && zfi_plan_read(&p->plans[p->count], from)) p->count++;
    fclose(from);
}

/* Writes what searches have found since; the file appears when it is complete, also where several
 * processes write it: it is the last one's then. */
static zf_status zfi_products_save(zfi_products *p, zf_error *error)
{
    char head[256], part[1024];
    FILE *to = NULL;
    bool bad;
    if (!p->file || !p->fresh) return ZF_OK;
    for (int n = 0; n < 1000 && !to; n++) { /* a name that nobody has */
        if (snprintf(part, sizeof part, "%s.part%d", p->file, n) >= (int)sizeof part) break;
        to = fopen(part, "wx");
    }
    bad = !to;
    if (to) {
        zfi_products_head(p, head, sizeof head);
        fputs(head, to);
        for (int i = 0; i < p->count; i++)
            if (p->plans[i].searched) zfi_plan_write(&p->plans[i], to);
        bad = ferror(to) != 0;
        bad |= fclose(to) != 0;
        bad = bad || rename(part, p->file) != 0;
        if (bad) remove(part);
    }
    p->fresh = bad;
    if (!bad) return ZF_OK;
    return zfi_cuda_fail(error, ZF_ERR_IO,
                         "%.400s: the algorithms found for products cannot be written there",
                         p->file);
}

/* ------------------------------------------------------------------------------------- plans */

static cudaDataType_t zfi_blas_type(int64_t dtype)
{
    return dtype == ZF_BF16 ? CUDA_R_16BF : dtype == ZF_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static bool zfi_layout_set(cublasLtMatrixLayoutOpaque_t *layout, int64_t dtype, int64_t rows,
                           int64_t cols, int64_t ld, int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    return !cublasLtMatrixLayoutInit(layout, zfi_blas_type(dtype), (uint64_t)rows, (uint64_t)cols,
                                     ld) &&
           (batch == 1 ||
            (!cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof count) &&
             !cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &step, sizeof step)));
}

static bool zfi_operation_set(cublasLtMatmulDescOpaque_t *operation,
                              cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return !cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
}

/* Of the bias. */
static bool zfi_operation_bias(cublasLtMatmulDescOpaque_t *operation, const void *bias)
{
    return !cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                           sizeof bias);
}

/* Sets descriptors, with the operands in cuBLASLt's places; false where they cannot be. */
static bool zfi_plan_describe(const zfi_products *kept, zfi_plan *p)
{
    const zfi_gemm *g = &p->gemm;
    cublasComputeType_t compute = g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    bool good = g->batch <= INT32_MAX &&
                !cublasLtMatmulDescInit(&p->operation, compute, CUDA_R_32F) &&
                zfi_operation_set(&p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                  g->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N) &&
                zfi_operation_set(&p->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                  g->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (good && kept->target)
        good = zfi_operation_set(&p->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                 kept->target);
    if (good && g->bias) /* any pointer so aligned, for the heuristic */
        good = zfi_operation_set(&p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                 CUBLASLT_EPILOGUE_BIAS) &&
               zfi_operation_bias(&p->operation, reinterpret_cast<void *>((uintptr_t)g->lies));
    p->described = good &&
                   zfi_layout_set(&p->b, g->from, g->turn_b ? g->k : g->n, g->turn_b ? g->n : g->k,
                                  g->b_row, g->batch, g->b_batch) &&
                   zfi_layout_set(&p->a, g->from, g->turn_a ? g->m : g->k, g->turn_a ? g->k : g->m,
                                  g->a_row, g->batch, g->a_batch) &&
                   zfi_layout_set(&p->c, g->to, g->n, g->m, g->c_row, g->batch, g->c_batch);
    return p->described;
}

/* What cuBLASLt recommends, best first, with that much workspace at most; returns how many. */
static int zfi_plan_recommended(const zfi_device *d, zfi_plan *p, uint64_t workspace,
                                cublasLtMatmulHeuristicResult_t *results, int most)
{
    static const cublasLtMatmulPreferenceAttributes_t lie[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreferenceOpaque_t want;
    /* The other ways to add up a split k round what they have added. */
    uint32_t lies = (uint32_t)p->gemm.lies, adding = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int found = 0, good = 0;
    bool set = !cublasLtMatmulPreferenceInit(&want) &&
               !cublasLtMatmulPreferenceSetAttribute(&want,
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace, sizeof workspace) &&
               !cublasLtMatmulPreferenceSetAttribute(&want,
                                                     CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                     &adding, sizeof adding);
    for (int i = 0; i < 4 && set; i++)
        set = !cublasLtMatmulPreferenceSetAttribute(&want, lie[i], &lies, sizeof lies);
    if (!set || cublasLtMatmulAlgoGetHeuristic(d->blas, &p->operation, &p->b, &p->a, &p->c, &p->c,
                                               &want, most, results, &found))
        return 0;
    for (int i = 0; i < found; i++)
        if (!results[i].state) results[good++] = results[i];
    return good;
}

static size_t zfi_gemm_bytes(int64_t rows, int64_t row, int64_t batch, int64_t step, int64_t dtype)
{
    return (size_t)(rows * row + (batch - 1) * step) * zf_dtype_size((zf_dtype)dtype);
}

static cublasStatus_t zfi_plan_multiply(const zfi_device *d, cudaStream_t stream,
                                        const zfi_plan *p, const cublasLtMatmulAlgo_t *algo,
                                        const void *a, const void *b, void *c,
                                        const void *added, float alpha, void *scratch,
                                        size_t bytes)
{
    /* cuBLASLt takes pointers to descriptors that it does not change. */
    zfi_plan *q = const_cast<zfi_plan *>(p);
    const float beta = added ? 1.0f : 0.0f;
    return cublasLtMatmul(d->blas, &q->operation, &alpha, b, &q->b, a, &q->a, &beta,
                          added ? added : c, &q->c, c, &q->c, algo, scratch, bytes, stream);
}

/* Bits of small numbers, in every float dtype. */
static __global__ void zfi_search_fill(uint32_t *to, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = zfi_random_word(i, 0, 0, 0) & 0xbfffbfffu;
}

/* The fastest of the candidates by trial, in memory of its own; -1 where that is not to be had. */
static int zfi_plan_trial(const zfi_device *d, zfi_plan *p,
                          const cublasLtMatmulHeuristicResult_t *results, int count)
{
    const zfi_gemm *g = &p->gemm;
    size_t a = zfi_gemm_bytes(g->turn_a ? g->k : g->m, g->a_row, g->batch, g->a_batch, g->from);
    size_t b = zfi_gemm_bytes(g->turn_b ? g->n : g->k, g->b_row, g->batch, g->b_batch, g->from);
    size_t c = zfi_gemm_bytes(g->m, g->c_row, g->batch, g->c_batch, g->to);
    size_t bias = (size_t)g->n * sizeof(float), part[4], all = 0;
    size_t sizes[4] = {a, b, c, bias};
    cudaStream_t stream = d->streams[0];
    cudaEvent_t begin = NULL, end = NULL;
    unsigned char *memory = NULL, *work;
    float least = INFINITY, time;
    int best = -1;
    for (int i = 0; i < 4; i++) part[i] = all, all += (sizes[i] + 255) / 256 * 256;
    if (cudaMalloc(reinterpret_cast<void **>(&memory), all + ZFI_WORKSPACE) ||
        cudaEventCreate(&begin) || cudaEventCreate(&end))
        goto done;
    work = memory + all;
    ZF_LAUNCH(zfi_search_fill, (unsigned)d->processors * 8, ZFI_THREADS, 0, stream,
              reinterpret_cast<uint32_t *>(memory), all / 4);
    if (g->bias) zfi_operation_bias(&p->operation, memory + part[3]);
    for (int round = 0; round < ZFI_SEARCH_ROUNDS; round++) /* all in turn: clocks change */
        for (int i = 0; i < count; i++) {
            bool good = !cudaEventRecord(begin, stream);
            for (int run = 0; run < ZFI_SEARCH_RUNS && good; run++)
                good = !zfi_plan_multiply(d, stream, p, &results[i].algo, memory + part[0],
                                          memory + part[1], memory + part[2], NULL, 1, work,
                                          results[i].workspaceSize);
            if (good && !cudaEventRecord(end, stream) && !cudaEventSynchronize(end) &&
                !cudaEventElapsedTime(&time, begin, end) && time < least)
                least = time, best = i;
        }
done:
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    if (memory) cudaFree(memory);
    cudaGetLastError(); /* what a candidate has met is no error of a launch */
    return best;
}

/* The plan's product goes to the plain kernel; that is remarked once for a shape that is kept. */
static void zfi_plan_is_plain(const zf_launch *l, zfi_products *kept, zfi_plan *p)
{
    const zfi_gemm *g = &p->gemm;
    const bool is_kept = p >= kept->plans && p < kept->plans + ZFI_PLANS;
    p->able = false;
    if (!is_kept && kept->plain) return;
    if (!kept->plain++)
        snprintf(kept->first, sizeof kept->first, "%s %%%d [%lld,%lld] x [%lld,%lld] %s",
                 zf_op_name(l->op), (int)l->node, (long long)g->m, (long long)g->k,
                 (long long)g->k, (long long)g->n, zf_dtype_name((zf_dtype)g->from));
    snprintf(kept->remark, sizeof kept->remark,
             "products of %d shape%s run by a plain kernel, which is slow: cuBLASLt has none for "
             "%s%s",
             kept->plain, kept->plain > 1 ? "s" : "", kept->first,
             kept->plain > 1 ? " and others" : "");
}

/* The plan of g, from what is kept, or made, and kept where there is room; else *aside is it. A
 * search is made where the backend was asked for it and `search` allows. */
static const zfi_plan *zfi_plan_of(const zf_launch *l, const zfi_gemm *g, uint64_t workspace,
                                   bool search, zfi_plan *aside)
{
    const zfi_device *d = zfi_device_of(l);
    zfi_products *kept = d->products;
    cublasLtMatmulHeuristicResult_t results[ZFI_CANDIDATES];
    zfi_plan *p = aside;
    int found, best = -1;
    for (int i = 0; i < kept->count; i++)
        if (!memcmp(&kept->plans[i].gemm, g, sizeof *g)) {
            p = &kept->plans[i];
            if (p->able && !p->described && !zfi_plan_describe(kept, p))
                zfi_plan_is_plain(l, kept, p);
            return p;
        }
    if (kept->count < ZFI_PLANS) p = &kept->plans[kept->count];
    search = search && kept->file && p != aside;
    memset(p, 0, sizeof *p);
    p->gemm = *g;
    found = zfi_plan_describe(kept, p) ? zfi_plan_recommended(d, p, workspace, results,
                                                              search ? ZFI_CANDIDATES : 1)
                                       : 0;
    if (search && found > 0) best = found > 1 ? zfi_plan_trial(d, p, results, found) : 0;
    p->able = found > 0;
    p->searched = best >= 0;
    if (best < 0) best = 0; /* the one that is recommended */
    if (p->able) p->algo = results[best].algo, p->workspace = results[best].workspaceSize;
    else zfi_plan_is_plain(l, kept, p);
    kept->fresh |= p->searched;
    if (p != aside) kept->count++;
    return p;
}

/* ------------------------------------------------------------------------------- the plain kernel
 *
 * A block makes 32 x 32 of c, k ascending, 32 at a time through shared memory:
 *
 *     a [32,32 of k]   b [32 of k,32]     a thread has column x and rows y, y + 8, y + 16, y + 24
 */

enum { ZFI_PLAIN = 32, ZFI_PLAIN_ROWS = ZFI_THREADS / ZFI_PLAIN, ZFI_PLAIN_PITCH = ZFI_PLAIN + 1 };

template <class T, class U>
static __global__ void zfi_gemm_plain(zfi_gemm g, const T *a, const T *b, U *c, const U *added,
                                      const T *bias, float alpha)
{
    ZF_SHARED(float, part_a);
    float *part_b = part_a + ZFI_PLAIN * ZFI_PLAIN_PITCH;
    const int x = (int)threadIdx.x % ZFI_PLAIN, y = (int)threadIdx.x / ZFI_PLAIN;
    const int64_t down = (g.m + ZFI_PLAIN - 1) / ZFI_PLAIN;
    const int64_t right = (g.n + ZFI_PLAIN - 1) / ZFI_PLAIN;
    for (int64_t tile = blockIdx.x; tile < down * right * g.batch; tile += gridDim.x) {
        const int64_t batch = tile / (down * right);
        const int64_t m = tile / right % down * ZFI_PLAIN, n = tile % right * ZFI_PLAIN;
        const T *of_a = a + batch * g.a_batch, *of_b = b + batch * g.b_batch;
        float sum[ZFI_PLAIN / ZFI_PLAIN_ROWS] = {0};
        for (int64_t k = 0; k < g.k; k += ZFI_PLAIN) {
            for (int i = y; i < ZFI_PLAIN; i += ZFI_PLAIN_ROWS) { /* neighbours read neighbours */
                const int at_m = g.turn_a ? x : i, a_k = g.turn_a ? i : x;
                const int at_n = g.turn_b ? i : x, b_k = g.turn_b ? x : i;
                const int64_t row_a = m + at_m, col_b = n + at_n;
                float of = 0;
                if (row_a < g.m && k + a_k < g.k)
                    of = zfi_to_f32(of_a[g.turn_a ? (k + a_k) * g.a_row + row_a
                                                  : row_a * g.a_row + k + a_k]);
                part_a[at_m * ZFI_PLAIN_PITCH + a_k] = of;
                of = 0;
                if (col_b < g.n && k + b_k < g.k)
                    of = zfi_to_f32(of_b[g.turn_b ? col_b * g.b_row + k + b_k
                                                  : (k + b_k) * g.b_row + col_b]);
                part_b[b_k * ZFI_PLAIN_PITCH + at_n] = of;
            }
            __syncthreads();
            for (int i = 0; i < ZFI_PLAIN; i++) {
                const float of = part_b[i * ZFI_PLAIN_PITCH + x];
#pragma unroll
                for (int r = 0; r < ZFI_PLAIN / ZFI_PLAIN_ROWS; r++)
                    sum[r] = fmaf(part_a[(y + r * ZFI_PLAIN_ROWS) * ZFI_PLAIN_PITCH + i], of,
                                  sum[r]);
            }
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < ZFI_PLAIN / ZFI_PLAIN_ROWS; r++) {
            const int64_t row = m + y + r * ZFI_PLAIN_ROWS, col = n + x;
            if (row < g.m && col < g.n) {
                const int64_t at = batch * g.c_batch + row * g.c_row + col;
                float value = alpha * sum[r];
                if (bias) value += zfi_to_f32(bias[col]);
                if (added) value += zfi_to_f32(added[at]);
                c[at] = zfi_from_f32<U>(value);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------- products */

/* A product of contiguous matrices, a [m,k] or [k,m], b [k,n] or [n,k]. */
static zfi_gemm zfi_gemm_of(const zf_launch *l, int64_t m, int64_t n, int64_t k, bool turn_a,
                            bool turn_b)
{
    zfi_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.batch = 1;
    g.a_row = turn_a ? m : k, g.b_row = turn_b ? k : n, g.c_row = n;
    g.turn_a = turn_a, g.turn_b = turn_b;
    g.from = g.to = l->args[0].dtype;
    return g;
}

/* As it is looked up, with operands at addresses that have no bits but these. TF32 is a setting of
 * the device's. */
static void zfi_gemm_settle(const zf_launch *l, zfi_gemm *g, uintptr_t addresses)
{
    const uint64_t all = addresses | 16 |
                         (uint64_t)(g->a_batch | g->b_batch) * zf_dtype_size((zf_dtype)g->from) |
                         (uint64_t)g->c_batch * zf_dtype_size((zf_dtype)g->to);
    g->tf32 = g->from == ZF_F32 && zfi_device_of(l)->products->tf32;
    g->lies = (int64_t)(all & (0 - all));
}

/* Nothing to add up, or nowhere to put it. */
static bool zfi_gemm_empty(const zfi_gemm *g) { return !g->m || !g->n || !g->k || !g->batch; }

/* Scratch of the product, in bytes: its workspace, wherever scratch begins. The algorithm is chosen
 * with it. */
static size_t zfi_gemm_scratch(const zf_launch *l, zfi_gemm g)
{
    zfi_plan aside;
    size_t bytes;
    if (zfi_gemm_empty(&g)) return 0;
    zfi_gemm_settle(l, &g, 0);
    bytes = zfi_plan_of(l, &g, ZFI_WORKSPACE, true, &aside)->workspace;
    return bytes ? bytes + ZFI_WORK_LIES : 0;
}

/* Where in scratch that begins. */
static void *zfi_work_in(void *scratch)
{
    const uintptr_t lies = ZFI_WORK_LIES, at = reinterpret_cast<uintptr_t>(scratch);
    return reinterpret_cast<void *>((at + lies - 1) / lies * lies);
}

/* The product in its plain form. */
static zf_status zfi_gemm_by_hand(const zf_launch *l, const zfi_gemm *g, const void *a,
                                  const void *b, void *c, const void *added, const void *bias,
                                  float alpha)
{
    const size_t shared = 2 * ZFI_PLAIN * ZFI_PLAIN_PITCH * sizeof(float);
    const unsigned grid =
        zfi_grid(l, zfi_div_up(g->m, ZFI_PLAIN) * zfi_div_up(g->n, ZFI_PLAIN) * g->batch);
    ZFI_FLOATS(l, (zf_dtype)g->from, T, {
        const T *of_a = static_cast<const T *>(a), *of_b = static_cast<const T *>(b);
        const T *of_bias = static_cast<const T *>(bias);
        if (g->to == g->from)
            ZF_LAUNCH((zfi_gemm_plain<T, T>), grid, ZFI_THREADS, shared, zfi_stream(l), *g, of_a,
                      of_b, static_cast<T *>(c), static_cast<const T *>(added), of_bias, alpha);
        else
            ZF_LAUNCH((zfi_gemm_plain<T, float>), grid, ZFI_THREADS, shared, zfi_stream(l), *g,
                      of_a, of_b, static_cast<float *>(c), static_cast<const float *>(added),
                      of_bias, alpha);
    })
    return zfi_launched(l);
}

/* Rows of a tile of f32 results, of `cols` columns and about `bytes`, where these are worked on
 * before the next come; tiles are about equal. */
static int64_t zfi_tile_rows(int64_t rows, int64_t cols, int64_t bytes)
{
    int64_t most = bytes / (int64_t)sizeof(float) / cols / ZFI_TILE_ROWS * ZFI_TILE_ROWS;
    if (most < ZFI_TILE_ROWS) most = ZFI_TILE_ROWS;
    if (rows <= most) return rows;
    rows = zfi_div_up(rows, zfi_div_up(rows, most));
    return zfi_div_up(rows, ZFI_TILE_ROWS) * ZFI_TILE_ROWS;
}

/* Puts the product on the launch's stream. added: NULL, or what is added to the product, which may
 * be c. bias: NULL, unless g.bias. c is what g.to says: the dtype of a and b, or f32. scratch has
 * what zfi_gemm_scratch asked for. */
static zf_status zfi_gemm_run(const zf_launch *l, zfi_gemm g, const void *a, const void *b, void *c,
                              const void *added, const void *bias, float alpha, void *scratch)
{
    const uintptr_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                          reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(added) |
                          reinterpret_cast<uintptr_t>(bias);
    const zfi_plan *p;
    zfi_plan aside, other;
    cublasStatus_t code = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!g.m || !g.n || !g.batch) return ZF_OK;
    if (g.from != ZF_F32 && g.from != ZF_BF16 && g.from != ZF_F16)
        return zfi_no_dtype(l, (zf_dtype)g.from);
    if (!g.k) return zfi_gemm_by_hand(l, &g, a, b, c, added, bias, alpha);
    zfi_gemm_settle(l, &g, 0);
    p = zfi_plan_of(l, &g, ZFI_WORKSPACE, false, &aside);
    if (all % (uintptr_t)g.lies) {
        zfi_gemm_settle(l, &g, all);
        p = zfi_plan_of(l, &g, p->workspace, false, &other);
    }
    if (p->able && (!bias || zfi_operation_bias(&const_cast<zfi_plan *>(p)->operation, bias)))
        code = zfi_plan_multiply(zfi_device_of(l), zfi_stream(l), p, &p->algo, a, b, c, added,
                                 alpha, zfi_work_in(scratch), p->workspace);
    if (code == CUBLAS_STATUS_SUCCESS) return ZF_OK;
    if (code == CUBLAS_STATUS_NOT_SUPPORTED) {
        if (p->able) zfi_plan_is_plain(l, zfi_device_of(l)->products, const_cast<zfi_plan *>(p));
        return zfi_gemm_by_hand(l, &g, a, b, c, added, bias, alpha);
    }
    return zfi_cuda_fail(l->error, ZF_ERR_BACKEND, "%s %%%d: cuBLASLt: %s", zf_op_name(l->op),
                         (int)l->node, cublasLtGetStatusString(code));
}

/* ------------------------------------------------------------------------------------ matmul */

/* The launch as a loop over products: how far apart they lie. */
typedef struct zfi_product {
    zfi_gemm gemm;
    int rank; /* leading dimensions that are not in gemm.batch */
    int64_t dims[ZF_MAX_RANK], step_a[ZF_MAX_RANK], step_b[ZF_MAX_RANK], step_c[ZF_MAX_RANK];
} zfi_product;

/* Leading dimension `axis` of out as x has it: 1 where x is repeated along it. */
static int64_t zfi_lead(const zf_shape *x, const zf_shape *out, int axis)
{
    int at = axis - (out->rank - x->rank);
    return at >= 0 ? x->dims[at] : 1;
}

static zfi_product zfi_product_of(const zf_launch *l)
{
    const zf_shape *a = &l->args[0].shape, *b = &l->args[1].shape, *out = &l->out.shape;
    const bool turn_a = ZF_INT(l, matmul, transpose_a) != 0,
               turn_b = ZF_INT(l, matmul, transpose_b) != 0;
    int64_t size_a = a->dims[a->rank - 2] * a->dims[a->rank - 1], rows = 1, axes[ZF_MAX_RANK];
    int64_t size_b = b->dims[b->rank - 2] * b->dims[b->rank - 1], size_c, b_count = 1;
    int64_t step_a[ZF_MAX_RANK], step_b[ZF_MAX_RANK], step_c[ZF_MAX_RANK];
    zfi_product p;
    zfi_gemm *g = &p.gemm;
    p.rank = 0;
    *g = zfi_gemm_of(l, out->dims[out->rank - 2], out->dims[out->rank - 1],
                     a->dims[a->rank - (turn_a ? 2 : 1)], turn_a, turn_b);
    size_c = g->m * g->n;
    for (int axis = out->rank - 3; axis >= 0; axis--) {
        int64_t of_a = zfi_lead(a, out, axis), of_b = zfi_lead(b, out, axis);
        axes[axis] = out->dims[axis];
        step_a[axis] = of_a == 1 ? 0 : size_a, step_b[axis] = of_b == 1 ? 0 : size_b;
        step_c[axis] = size_c;
        size_a *= of_a, size_b *= of_b, size_c *= out->dims[axis];
        rows *= out->dims[axis], b_count *= of_b;
    }
    for (int axis = 0; axis < out->rank - 2; axis++) /* those of 1 are no loop */
        if (axes[axis] != 1) {
            p.dims[p.rank] = axes[axis], p.step_a[p.rank] = step_a[axis];
            p.step_b[p.rank] = step_b[axis], p.step_c[p.rank++] = step_c[axis];
        }
    /* One b for every a: the batch is a taller matrix. */
    if (!turn_a && b_count == 1) g->m *= rows, p.rank = 0;
    /* Inner dimensions that are evenly spaced in all three are one batch. */
    for (int axis = p.rank - 1; axis >= 0; axis--, p.rank--) {
        if (g->batch > 1 && (p.step_a[axis] != g->a_batch * g->batch ||
                             p.step_b[axis] != g->b_batch * g->batch ||
                             p.step_c[axis] != g->c_batch * g->batch))
            break;
        if (g->batch == 1)
            g->a_batch = p.step_a[axis], g->b_batch = p.step_b[axis], g->c_batch = p.step_c[axis];
        g->batch *= p.dims[axis];
    }
    return p;
}

static size_t zfi_cuda_scratch_matmul(const zf_launch *l)
{
    return zfi_count(&l->out) ? zfi_gemm_scratch(l, zfi_product_of(l).gemm) : 0;
}

static zf_status zfi_cuda_matmul(const zf_launch *l)
{
    const size_t size = zf_dtype_size(l->out.dtype);
    int64_t count = 1;
    zfi_product p;
    if (!zfi_count(&l->out)) return ZF_OK;
    p = zfi_product_of(l);
    for (int axis = 0; axis < p.rank; axis++) count *= p.dims[axis];
    for (int64_t outer = 0; outer < count; outer++) {
        int64_t at_a = 0, at_b = 0, at_c = 0, rest = outer;
        zf_status status;
        for (int axis = p.rank - 1; axis >= 0; rest /= p.dims[axis--]) {
            int64_t i = rest % p.dims[axis];
            at_a += i * p.step_a[axis], at_b += i * p.step_b[axis], at_c += i * p.step_c[axis];
        }
        status = zfi_gemm_run(l, p.gemm,
                              static_cast<const char *>(l->args[0].data) + (size_t)at_a * size,
                              static_cast<const char *>(l->args[1].data) + (size_t)at_b * size,
                              static_cast<char *>(l->out.data) + (size_t)at_c * size,
                              l->arg_count > 2 ? static_cast<const char *>(l->args[2].data) +
                                                     (size_t)at_c * size
                                               : NULL,
                              NULL, 1, l->scratch);
        if (status) return status;
    }
    return ZF_OK;
}

ZFI_KERNEL(matmul, zfi_cuda_matmul, zfi_cuda_scratch_matmul)
