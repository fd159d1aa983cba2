/* cuBLASLt (cuda/products.cu). */

typedef struct zfd_descriptors {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} zfd_descriptors;

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(uint64_t) * ZFD_ALGO_WORDS, "an algorithm");

static zf_status zfd_cublas_open(zfd_device *d, zf_error *error)
{
    cublasLtHandle_t handle;
    const cublasStatus_t made = cublasLtCreate(&handle);
    if (made != CUBLAS_STATUS_SUCCESS)
        return zfd_cuda_fail(error, ZF_ERR_BACKEND, "zf_cuda_backend: cublasLtCreate: %s",
                             cublasLtGetStatusString(made));
    d->blas = handle;
    return ZF_OK;
}

static cublasLtHandle_t zfd_cublas_of(const zfd_device *d)
{
    return static_cast<cublasLtHandle_t>(d->blas);
}

static void zfd_cublas_close(zfd_device *d) { (void)cublasLtDestroy(zfd_cublas_of(d)); }

static unsigned long long zfd_cublas_version(const zfd_device *) { return cublasLtGetVersion(); }

static const char *zfd_cublas_remark(const zfd_device *) { return ""; }

static cudaDataType_t zfd_blas_type(int64_t dtype)
{
    return dtype == ZF_BF16 ? CUDA_R_16BF : dtype == ZF_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static bool zfd_layout_set(cublasLtMatrixLayoutOpaque_t *layout, int64_t dtype, int64_t rows,
                           int64_t cols, int64_t ld, int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    return !cublasLtMatrixLayoutInit(layout, zfd_blas_type(dtype), (uint64_t)rows, (uint64_t)cols,
                                     ld) &&
           (batch == 1 ||
            (!cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof count) &&
             !cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &step, sizeof step)));
}

static bool zfd_operation_set(cublasLtMatmulDescOpaque_t *operation,
                              cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return !cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
}

/* Sets the bias; false where that fails. */
static bool zfd_operation_bias(cublasLtMatmulDescOpaque_t *operation, const void *bias)
{
    return !cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                           sizeof bias);
}

static bool zfd_cublas_describe(const zfd_gemm *g, int target, zfd_descriptors *to)
{
    const cublasComputeType_t compute =
        g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    bool good = g->batch <= INT32_MAX &&
                !cublasLtMatmulDescInit(&to->operation, compute, CUDA_R_32F) &&
                zfd_operation_set(&to->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                  g->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N) &&
                zfd_operation_set(&to->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                  g->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (good && target)
        good = zfd_operation_set(&to->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, target);
    if (good && g->bias) /* the heuristic needs any pointer of the same alignment */
        good = zfd_operation_set(&to->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                 CUBLASLT_EPILOGUE_BIAS) &&
               zfd_operation_bias(&to->operation, reinterpret_cast<void *>((uintptr_t)g->lies));
    return good &&
           zfd_layout_set(&to->b, g->from, g->turn_b ? g->k : g->n, g->turn_b ? g->n : g->k,
                          g->b_row, g->batch, g->b_batch) &&
           zfd_layout_set(&to->a, g->from, g->turn_a ? g->m : g->k, g->turn_a ? g->k : g->m,
                          g->a_row, g->batch, g->a_batch) &&
           zfd_layout_set(&to->c, g->to, g->n, g->m, g->c_row, g->batch, g->c_batch);
}

static int zfd_cublas_recommend(const zfd_device *d, const zfd_gemm *g, zfd_descriptors *of,
                                uint64_t workspace, zfd_algo *results, int most)
{
    static const cublasLtMatmulPreferenceAttributes_t lie[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    enum { MOST = 16 };
    cublasLtMatmulHeuristicResult_t found[MOST];
    cublasLtMatmulPreferenceOpaque_t want;
    /* The other reductions of a split k round partial sums. */
    uint32_t lies = (uint32_t)g->lies, adding = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int count = 0, good = 0;
    bool set = !cublasLtMatmulPreferenceInit(&want) &&
               !cublasLtMatmulPreferenceSetAttribute(&want,
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace, sizeof workspace) &&
               !cublasLtMatmulPreferenceSetAttribute(&want,
                                                     CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                     &adding, sizeof adding);
    for (int i = 0; i < 4 && set; i++)
        set = !cublasLtMatmulPreferenceSetAttribute(&want, lie[i], &lies, sizeof lies);
    if (!set || cublasLtMatmulAlgoGetHeuristic(zfd_cublas_of(d), &of->operation, &of->b, &of->a,
                                               &of->c, &of->c, &want, most < MOST ? most : MOST,
                                               found, &count))
        return 0;
    for (int i = 0; i < count; i++) {
        if (found[i].state) continue;
        memcpy(results[good].words, found[i].algo.data, sizeof found[i].algo.data);
        results[good++].workspace = found[i].workspaceSize;
    }
    return good;
}

static const char *zfd_cublas_multiply(const zfd_device *d, cudaStream_t stream, const zfd_gemm *,
                                       zfd_descriptors *of, const zfd_algo *algo, const void *a,
                                       const void *b, void *c, const void *added, const void *bias,
                                       float alpha, void *workspace, size_t bytes)
{
    const float beta = added ? 1.0f : 0.0f;
    cublasLtMatmulAlgo_t by;
    cublasStatus_t code = CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(by.data, algo->words, sizeof by.data);
    if (!bias || zfd_operation_bias(&of->operation, bias))
        code = cublasLtMatmul(zfd_cublas_of(d), &of->operation, &alpha, b, &of->b, a, &of->a, &beta,
                              added ? added : c, &of->c, c, &of->c, &by, workspace, bytes, stream);
    if (code == CUBLAS_STATUS_NOT_SUPPORTED) return zfd_unable;
    return code == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString(code);
}

static const zfd_library zfd_blas = {"cuBLASLt",           zfd_cublas_open,
                                     zfd_cublas_close,     zfd_cublas_version,
                                     zfd_cublas_remark,    zfd_cublas_describe,
                                     zfd_cublas_recommend, zfd_cublas_multiply};
