/* Products by the maker's library, through a table of functions: cuBLASLt (cuda/cublas.cu), or
 * hipBLASLt (cuda/hip/blas.cu).
 *
 * Their matrices are column-major. A row-major matrix read as column-major is its transpose, so the
 * operands are swapped:
 *
 *     c [m,n] = a [m,k] b [k,n]    is    c^T = b^T a^T    with the same memory of c, b, a */

/* A product, which is also the key in plans and files. All members are int64_t, so that keys are
 * compared as bytes. */
typedef struct zfd_gemm {
    int64_t m, n, k, batch;
    int64_t a_row, b_row, c_row; /* elements from one row to the next, in memory */
    int64_t a_batch, b_batch, c_batch;
    int64_t turn_a, turn_b; /* stored as [k,m], [n,k] */
    int64_t from, to;       /* from: dtype of a, b and bias; to: of c */
    int64_t bias, tf32;
    int64_t lies; /* all matrices begin at multiples of this number of bytes, 16 at most */
} zfd_gemm;

/* An algorithm: what the library knows it by, and the bytes of workspace that it takes. */
enum { ZFD_ALGO_WORDS = 8 };
typedef struct zfd_algo {
    uint64_t words[ZFD_ALGO_WORDS];
    uint64_t workspace;
} zfd_algo;

/* What a product returns for which the library has no algorithm. */
static const char zfd_unable[] = "not supported";

/* Partial sums of a split k are f32: an algorithm for which that is not known is not offered. */
typedef struct zfd_library {
    const char *name;
    zf_status (*open)(zfd_device *d, zf_error *error); /* sets d->blas */
    void (*close)(zfd_device *d);
    unsigned long long (*version)(const zfd_device *d);
    const char *(*remark)(const zfd_device *d); /* for zf_program_info.remark; "": there is none */
    /* Sets the descriptors of a product on `target` multiprocessors (0: all); false: it cannot
     * be. */
    bool (*describe)(const zfd_gemm *g, int target, struct zfd_descriptors *to);
    /* The algorithms that the library recommends, best first, with at most so much workspace.
     * Returns their number. */
    int (*recommend)(const zfd_device *d, const zfd_gemm *g, struct zfd_descriptors *of,
                     uint64_t workspace, zfd_algo *results, int most);
    /* Puts c = alpha a b + added + bias on the stream, NULL being 0. Returns NULL, zfd_unable, or
     * what failed. */
    const char *(*multiply)(const zfd_device *d, cudaStream_t stream, const zfd_gemm *g,
                            struct zfd_descriptors *of, const zfd_algo *algo, const void *a,
                            const void *b, void *c, const void *added, const void *bias,
                            float alpha, void *workspace, size_t bytes);
} zfd_library;
