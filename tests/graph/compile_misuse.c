/* What zf_compile refuses of a second program: a store, or caches, that are those of another. */
#include "../support/test.h"

#define SUM(n)   "%8 = sum %" #n " : f32[]\noutput %8 \"y\"\n"
#define ALONE(a) "zero stage=0 world=1 micro_batches=1\n%1 = param \"" a "\" : f32[1024]\n"
#define TWO      ALONE("a") "%2 = param \"b\" : f32[1024]\n"
#define JOINED                                                                                     \
    "%1 = param \"a\" : f32[1024]\n%2 = param \"b\" : f32[1024]\n"                                 \
    "%3 = concat %1, %2 : f32[2048]\n" SUM(3)
/* Attention over caches, and where their plan has them. */
#define CACHED_AT(k, v, x)                                                                                                                                                                                                                                                    \
    "%1 = input \"q\" : f32[2,4,8]" x(8192, 256) "%2 = input \"k\" : f32[2,4,8]" x(                                                                                                                                                                                           \
        8448,                                                                                                                                                                                                                                                                 \
        256) "%3 = input \"v\" : f32[2,4,8]" x(8704,                                                                                                                                                                                                                          \
                                               256) "%4 = input \"past\" : i32[2]" x(8960,                                                                                                                                                                                    \
                                                                                     8) "%5 = "                                                                                                                                                                               \
                                                                                        "input "                                                                                                                                                                              \
                                                                                        "\"count"                                                                                                                                                                             \
                                                                                        "\" : "                                                                                                                                                                               \
                                                                                        "i32["                                                                                                                                                                                \
                                                                                        "2]" x(9024,                                                                                                                                                                          \
                                                                                               8) "%6 = cache \"c\" : f32[2,64,8]" x(k,                                                                                                                                       \
                                                                                                                                     4096) "%7 = cache \"d\" : f32[2,64,8]" x(v,                                                                                              \
                                                                                                                                                                              4096) "%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=1 scale=1} : f32[2,4,8]" x(9088, \
                                                                                                                                                                                                                                                                        256) "output %8 \"y\"\n"
#define NOWHERE(at, bytes) "\n"
#define AT(at, bytes)      " @" #at "+" #bytes "\n"
#define CACHED             CACHED_AT(0, 0, NOWHERE)
#define TURNED                                                                                     \
    "%1 = param \"b\" : f32[1024]\n%2 = param \"a\" : f32[1024]\n"                                 \
    "output %1 \"y\"\noutput %2 \"z\"\n"

/* How the plan of the second graph is made before it is compiled: if at all, with caches or the
 * store of the first. With the store, it is compiled over another one, that of TURNED. */
enum { NOT, BY_ITSELF, WITH_CACHES, WITH_STORE };

static const struct {
    const char *first, *second;
    int plan;
    bool caches, temporary; /* it is compiled with the first as caches; with temporary_caches */
    const char *error;
} cases[] = {
    {TWO
     "%3 = bucket %1 {at=[0] size=2048} : f32[2048]\n"
     "%4 = bucket %2 {at=[0] size=1024} : f32[1024]\n%5 = sum %4 : f32[]\noutput %5 \"z\"\n" SUM(3),
     TWO "%3 = bucket %1, %2 {at=[0,1024] size=2048} : f32[2048]\n" SUM(3), NOT, false, false,
     "zf_compile: \"b\" is to be element 1024 of a bucket of 2048, whole on each rank, and in the "
     "store it is element 0 of a bucket of 1024, whole on each rank, apart from others of its "
     "bucket: give zf_zero the same stage"},
    {ALONE("a") SUM(1),
     "%1 = param \"w[0:4]\" {rows=8} : f32[4,256]\n"
     "%2 = param \"w[4:8]\" {row=4 rows=16} : f32[4,256]\noutput %1 \"y\"\noutput %2 \"z\"\n",
     NOT, false, false,
     "zf_compile: \"w[4:8]\" is a piece of a param f32[16,256], and the store has a param "
     "f32[8,256]"},
    {"%1 = state \"s\" : f32[4]\n%2 = sum %1 : f32[]\noutput %2 \"y\"\n",
     "%1 = state \"s\" : f32[4] host\n%2 = copy %1 {to=device} : f32[4]\n" SUM(2), NOT, false,
     false,
     "zf_compile: \"s\" is to lie in the space host, and the store has it in device: give "
     "zf_offload the same placement, or zf_store_copy the values to a store of another one"},
    {JOINED, JOINED, WITH_STORE, false, false,
     "zf_compile: zf_memory found operands of %3 concat side by side in the store "
     "(zf_memory_desc.store), which they are not"},
    {CACHED, CACHED, BY_ITSELF, true, false,
     "zf_compile: zf_memory gave the cache \"c\" a place of its own (zf_memory_desc.caches), and "
     "zf_compile_desc.caches has it"},
    {CACHED, CACHED, WITH_CACHES, false, false,
     "zf_compile: zf_memory found the cache \"c\" in another graph (zf_memory_desc.caches), and "
     "zf_compile_desc.caches lacks it"},
    {CACHED, CACHED_AT(4096, 0, AT) "peak 9344 %8\n", NOT, false, true,
     "zf_compile: temporary_caches: the plan has the cache \"c\" at another place than zf_memory "
     "gives it"},
    {CACHED,
     "%1 = param \"a\" : f32[4] @0+16\n%2 = constant {values=[1]} : f32[4] @64+16\n"
     "%3 = param \"b\" : f32[4] @128+16\n%4 = add %1, %2 : f32[4] @192+16\n"
     "%5 = add %4, %3 : f32[4] @256+16\noutput %5 \"y\"\npeak 320 %5\n",
     NOT, false, false,
     "zf_compile: the plan has %2 constant among parameters and states, which are one piece of "
     "memory"},
};

static zf_graph *parsed(test *t, const char *text, zf_error *error)
{
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, error);
    if (g) test_defer(t, (test_cleanup *)zf_graph_free, g);
    return g;
}

static zf_program *compiled(test *t, zf_graph *g, const zf_compile_desc *d)
{
    zf_program *p = zf_compile(g, d);
    if (p) test_defer(t, (test_cleanup *)zf_program_free, p);
    return p;
}

TEST(compile_misuse_of_stores_and_caches)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *a, *b, *c;
        zf_program *p, *q = NULL;
        NEED(t, a = parsed(t, cases[k].first, &error), &error);
        NEED(t, b = parsed(t, cases[k].second, &error), &error);
        p = compiled(t, a, NULL);
        OK(t, zf_graph_status(a), zf_graph_error(a));
        if (cases[k].plan == WITH_STORE) {
            NEED(t, c = parsed(t, TURNED, &error), &error);
            q = compiled(t, c, NULL);
            OK(t, zf_graph_status(c), zf_graph_error(c));
        }
        if (cases[k].plan)
            OK(t,
               zf_memory(b, &(zf_memory_desc){.caches = cases[k].plan == WITH_CACHES ? a : NULL,
                                              .store = cases[k].plan == WITH_STORE
                                                           ? zf_program_store(p)
                                                           : NULL}),
               zf_graph_error(b));
        CHECK(t, !compiled(t, b,
                           &(zf_compile_desc){.store = zf_program_store(q ? q : p),
                                              .caches = cases[k].caches ? p : NULL,
                                              .temporary_caches = cases[k].temporary}));
        if (zf_graph_status(b) == ZF_ERR_NOMEM) OK(t, zf_graph_status(b), zf_graph_error(b));
        if (!strstr(zf_graph_error(b), cases[k].error))
            CHECK_TEXT(t, zf_graph_error(b), cases[k].error);
    }
}

static zf_status no_call(void *self, const zf_collective *call, zf_error *error)
{
    (void)self, (void)call, (void)error;
    return ZF_ERR_COMM;
}

/* Whole master weights of a parameter of which this rank has a part. */
TEST(compile_misuse_of_masters)
{
#define SHARD                                                                                      \
    "zero stage=3 world=2 micro_batches=1\n%1 = param \"w\" : f32[2048]\n"                         \
    "%2 = bucket %1 {at=[0] size=2048 world=2} : f32[1024]\n"                                      \
    "%3 = all_gather %2 {world=2} : f32[2048]\noutput %3 \"y\"\n"
    static const char *const texts[] = {
        SHARD, SHARD "%4 = state %1 \"m\" : f32[2048] role=master of=%1\noutput %4 \"z\"\n"};
#undef SHARD
    static const float values[2048] = {1};
    zf_comm comm = {.rank = 1, .world = 2, .run = no_call, .groups = true};
    zf_error error = {ZF_OK, ""};
    zf_store *store =
        zf_store_new(&(zf_store_desc){.allocator = t->allocator, .comm = &comm}, &error);
    NEED(t, store, &error);
    test_defer(t, (test_cleanup *)zf_store_free, store);
    for (int k = 0; k < 2; k++) {
        zf_graph *g = parsed(t, texts[k], &error);
        NEED(t, g, &error);
        compiled(t, g, &(zf_compile_desc){.store = store});
        GIVES(t, zf_graph_status(g), k ? ZF_ERR_MISMATCH : ZF_OK, zf_graph_error(g));
        CHECK_TEXT(
            t, zf_graph_error(g),
            k ? "zf_compile: master weights of \"w\" are cut otherwise than the parameter in "
                "the store"
              : "");
        if (!k) OK(t, zf_store_write(store, "w", values, sizeof values), zf_store_error(store));
    }
}
