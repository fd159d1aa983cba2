/* Every public function with NULL, 0, negative, huge and non-finite arguments, and with valid ones:
 * it returns, and reports what is wrong. build/arguments.h, made of the declarations by
 * tests/graph/arguments.awk, has a call of each. Under sanitizers these find more. */
#include "../support/test.h"

#include <unistd.h>

enum { ROOM = 64, BYTES = 4096 };

/* What calls are about, and the numbers that choose arguments. */
typedef struct world {
    test *t;
    uint64_t random;
    zf_graph *graph, *compiled;
    zf_tensor tensors[8];
    zf_program *program;
    zf_store *store;
    zf_backend *backend;
    zf_local *local;
    zf_json *json;
    zf_json_writer *json_writer;
    zf_checkpoint *checkpoint; /* NULL: no call has asked for it */
    zf_safetensors *safetensors;
    zf_safetensors_writer *safetensors_writer;
    zf_report *report;
    zf_trace *trace;
    zf_block_mask *block_mask;
    FILE *file;
} world;

static uint64_t one_of(world *w, uint64_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % n;
}

/* --------------------------------------------------------------------------------- the world */

static zf_graph *small_model(zf_tensor *out)
{
    zf_graph *g = zf_graph_new(NULL);
    out[0] = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 8));
    out[1] = zf_param(g, "w", ZF_SHAPE(8, 8), &(zf_param_desc){.init = ZF_ONES});
    out[2] = zf_matmul(out[0], out[1]);
    out[3] = zf_mean(out[2]);
    out[4] = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    out[5] = zf_input(g, "labels", ZF_I32, ZF_SHAPE(4));
    return g;
}

static void world_open(world *w)
{
    static const char file[] = "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                               "\"data_offsets\":[0,8]}}    12345678";
    static const char json[] = "{\"a\": [1, 2.5, {\"b\": null}], \"c\": \"x\", \"d\": true}";
    zf_tensor x[6];
    w->graph = small_model(w->tensors);
    if (one_of(w, 4) == 0) zf_autograd(w->graph, w->tensors[3]);
    if (one_of(w, 4) == 0) zf_adamw(w->graph, w->tensors[4], NULL);
    if (one_of(w, 4) == 0) zf_zero(w->graph, NULL);
    if (one_of(w, 8) == 0) zf_memory(w->graph, NULL);
    w->compiled = small_model(x);
    zf_output(x[3], "y");
    w->program = zf_compile(w->compiled, NULL);
    w->tensors[6] = x[0], w->tensors[7] = x[3];
    w->backend = zf_cpu_backend(NULL, NULL);
    w->local = zf_local_new(NULL, NULL);
    w->store = zf_store_new(&(zf_store_desc){.backend = w->backend}, NULL);
    w->json = zf_json_parse(json, sizeof json - 1, NULL, NULL);
    w->json_writer = zf_json_writer_new(1, NULL);
    w->safetensors = zf_safetensors_parse(file, sizeof file - 1, NULL, NULL);
    w->safetensors_writer =
        zf_safetensors_writer_new(test_path("arguments.safetensors"), NULL, NULL);
    w->report = zf_report_new(NULL, NULL), w->trace = zf_trace_new(NULL);
    w->block_mask = zf_block_mask_new(&(zf_block_mask_desc){.tokens = 40}, NULL);
    w->file = fopen("/dev/null", "w+");
}

static void world_close(world *w)
{
    zf_program_free(w->program);
    zf_graph_free(w->graph), zf_graph_free(w->compiled);
    zf_store_free(w->store), zf_backend_free(w->backend), zf_local_free(w->local);
    zf_json_free(w->json), zf_json_writer_free(w->json_writer);
    zf_checkpoint_close(w->checkpoint);
    zf_safetensors_close(w->safetensors), zf_safetensors_writer_free(w->safetensors_writer);
    zf_report_free(w->report), zf_trace_free(w->trace);
    zf_block_mask_free(w->block_mask);
    if (w->file) fclose(w->file);
}

/* It was freed. */
static void forget(world *w, const void *freed)
{
    void **all[] = {
        (void **)&w->graph,       (void **)&w->program,     (void **)&w->store,
        (void **)&w->backend,     (void **)&w->local,       (void **)&w->json,
        (void **)&w->json_writer, (void **)&w->safetensors, (void **)&w->safetensors_writer,
        (void **)&w->report,      (void **)&w->trace,
        (void **)&w->block_mask,  (void **)&w->checkpoint};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (*all[k] == freed) *all[k] = NULL;
}

/* The checkpoint of a small program. */
static zf_checkpoint *opened(world *w)
{
    static char path[300];
    if (!*path) {
        snprintf(path, sizeof path, "%s", test_path("arguments-checkpoint"));
        zf_save(zf_program_store(w->program), path, NULL);
    }
    if (!w->checkpoint) w->checkpoint = zf_checkpoint_open(path, NULL, NULL, NULL);
    return w->checkpoint;
}

/* ---------------------------------------------------------------------------------- arguments */

#define CALL_ARGUMENT(name, value) __typeof__(value) name = value;
#define OR_NULL(w, pointer)        (one_of((w), 3) ? (pointer) : NULL)
#define PICK(type, name, pointer)                                                                  \
    static type pick_##name(world *w) { return OR_NULL(w, pointer); }

PICK(zf_graph *, zf_graph_at, w->graph)
PICK(zf_program *, zf_program_at, w->program)
PICK(zf_store *, zf_store_at, one_of(w, 2) ? w->store : zf_program_store(w->program))
PICK(zf_backend *, zf_backend_at, w->backend)
PICK(zf_local *, zf_local_at, w->local)
PICK(zf_comm *, zf_comm_at, zf_local_comm(w->local, 0))
PICK(zf_json *, top, w->json)
PICK(zf_json_writer *, zf_json_writer_at, w->json_writer)
PICK(zf_checkpoint *, zf_checkpoint_at, opened(w))
PICK(zf_safetensors *, zf_safetensors_at, w->safetensors)
PICK(zf_safetensors_writer *, zf_safetensors_writer_at, w->safetensors_writer)
PICK(zf_report *, zf_report_at, w->report)
PICK(zf_trace *, zf_trace_at, w->trace)
PICK(zf_block_mask *, zf_block_mask_at, w->block_mask)
PICK(FILE *, FILE_at, w->file)
PICK(FILE *, FILE, w->file)

static const zf_json *pick_zf_json_at(world *w)
{
    const zf_json *a = zf_json_member(w->json, "a");
    const zf_json *all[] = {w->json,
                            a,
                            zf_json_element(a, 0),
                            zf_json_element(a, 1),
                            zf_json_element(a, 2),
                            zf_json_member(w->json, "c"),
                            NULL};
    return all[one_of(w, 7)];
}

static zf_tensor pick_zf_tensor(world *w)
{
    const zf_tensor odd[] = {{NULL, 0},      {NULL, -1},          {w->graph, 0},
                             {w->graph, -1}, {w->graph, 1 << 30}, {w->graph, INT32_MIN}};
    return one_of(w, 3) ? w->tensors[one_of(w, 8)] : odd[one_of(w, 6)];
}

static double pick_double(world *w)
{
    static const double all[] = {0,      1,      -1,  0.5,      1e-5,      1e300,
                                 -1e300, 1e-310, NAN, INFINITY, -INFINITY, ZF_ZERO};
    return all[one_of(w, sizeof all / sizeof *all)];
}

static int64_t pick_int64_t(world *w)
{
    static const int64_t all[] = {0,
                                  1,
                                  2,
                                  3,
                                  8,
                                  64,
                                  -1,
                                  -2,
                                  INT32_MAX,
                                  INT32_MIN,
                                  INT64_MAX,
                                  INT64_MIN,
                                  (int64_t)1 << 40,
                                  1000003};
    return all[one_of(w, sizeof all / sizeof *all)];
}

static int32_t pick_int32_t(world *w)
{
    static const int32_t all[] = {0, 1, 2, 3, 8, -1, -2, INT32_MAX, INT32_MIN, 1 << 30, 1000};
    return all[one_of(w, sizeof all / sizeof *all)];
}

static int pick_int(world *w) { return pick_int32_t(w); }
static int pick_enum(world *w) { return one_of(w, 3) ? (int)one_of(w, 8) : pick_int32_t(w); }
static bool pick_bool(world *w) { return one_of(w, 2); }
static uint64_t pick_uint64_t(world *w) { return (uint64_t)pick_int64_t(w); }
static size_t pick_size_t(world *w) { return (size_t)pick_int64_t(w); }
static int64_t pick_room(world *w) { return (int64_t)one_of(w, 4) * 20; }

/* A number of elements, which lie at the pointers of the call if it has some. */
static int64_t pick_count(world *w, int pointers)
{
    return pointers ? (int64_t)one_of(w, 4) - 1 : pick_int32_t(w);
}

static zf_shape pick_small_shape(world *w)
{
    zf_shape s = {(int32_t)one_of(w, 4), {2, 3, 4}};
    if (one_of(w, 4) == 0) s.dims[0] = -1;
    if (one_of(w, 8) == 0) s.rank = pick_int32_t(w);
    return s;
}

static zf_shape pick_zf_shape(world *w)
{
    zf_shape s = pick_small_shape(w);
    if (one_of(w, 3) == 0) s.dims[one_of(w, 3)] = pick_int64_t(w);
    return s;
}

static char *pick_path(world *w)
{
    static char none[] = "", missing[] = "/nonexistent/folder/file", here[1024];
    snprintf(here, sizeof here, "%s", test_path("arguments"));
    return one_of(w, 2) ? one_of(w, 2) ? here : missing : OR_NULL(w, none);
}

static char *pick_name(world *w)
{
    static char all[][ROOM + 1] = { /* whole where a call says that it has ROOM bytes */
        "", "x", "w", "a name", "{\"a\": 1}", "optimizer", "%1 = input \"q\" : f32[2]"};
    static char longest[2000];
    if (one_of(w, 8) == 0) return memset(longest, 'n', sizeof longest - 1);
    return OR_NULL(w, all[one_of(w, 7)]);
}

/* Memory that a function reads or writes. */
static char bytes[4][BYTES];

static void *pick_void_at(world *w) { return OR_NULL(w, bytes[one_of(w, 4)]); }
static char *pick_text(world *w)
{
    bytes[3][BYTES - 1] = '\0';
    return OR_NULL(w, bytes[3]);
}
static float *pick_float_at(world *w) { return (float *)(void *)pick_void_at(w); }
static double *pick_double_at(world *w) { return (double *)(void *)pick_void_at(w); }
static bool *pick_bool_at(world *w) { return OR_NULL(w, (bool *)bytes[3]); }
static const void *const *pick_parts(world *w)
{
    static const void *const parts[] = {bytes[0], bytes[1], bytes[2]};
    return OR_NULL(w, parts);
}

#define PICK_LIST(type)                                                                            \
    static type *pick_##type##_at(world *w)                                                        \
    {                                                                                              \
        static type list[ROOM];                                                                    \
        for (int k = 0; k < ROOM; k++) list[k] = (type)pick_int64_t(w);                            \
        return OR_NULL(w, list);                                                                   \
    }
PICK_LIST(int32_t)
PICK_LIST(int64_t)
PICK_LIST(size_t)

static int *pick_int_at(world *w)
{
    static int one;
    one = 1;
    return OR_NULL(w, &one);
}

static char **pick_argv(world *w)
{
    static char name[] = "program", *argv[] = {name, NULL};
    return OR_NULL(w, argv);
}

static const char **pick_char_list(world *w)
{
    static const char *list[ROOM];
    return OR_NULL(w, list);
}

static zf_tensor *pick_zf_tensor_at(world *w)
{
    static zf_tensor list[ROOM];
    for (int k = 0; k < ROOM; k++) list[k] = pick_zf_tensor(w);
    return OR_NULL(w, list);
}

/* Structs of which a caller promises more than numbers. */
#define PICK_ZEROS(type)                                                                           \
    static type *pick_##type##_at(world *w)                                                        \
    {                                                                                              \
        static type list[ROOM];                                                                    \
        memset(list, 0, sizeof list);                                                              \
        return OR_NULL(w, list);                                                                   \
    }
PICK_ZEROS(zf_attribute)
PICK_ZEROS(zf_launch)
PICK_ZEROS(zf_infer)
PICK_ZEROS(zf_allocator)
PICK_ZEROS(zf_fuse_miss)
PICK_ZEROS(zf_span)
PICK_ZEROS(zf_error)

static zf_options *pick_zf_options_at(world *w)
{
    static zf_training training;
    static zf_options list[ROOM];
    memset(list, 0, sizeof list), memset(&training, 0, sizeof training);
    for (int k = 0; k < ROOM && one_of(w, 2); k++)
        list[k].rows = zf_training_options(), list[k].desc = &training;
    return OR_NULL(w, list);
}

/* ------------------------------------------------------------------------------------- calls */

static void free_made(void *made, const char *maker)
{
    if (!strncmp(maker, "zf_graph", 8) || !strncmp(maker, "zf_hold_graph(", 14)) zf_graph_free(made);
    else if (!strncmp(maker, "zf_cpu_backend(", 15)) zf_backend_free(made);
    else if (!strncmp(maker, "zf_local_new(", 13)) zf_local_free(made);
    else if (!strncmp(maker, "zf_block_mask_new(", 18)) zf_block_mask_free(made);
    else if (!strncmp(maker, "zf_store_new(", 13)) zf_store_free(made);
    else if (!strncmp(maker, "zf_checkpoint_open(", 19)) zf_checkpoint_close(made);
    else if (!strncmp(maker, "zf_compile(", 11)) zf_program_free(made);
    else if (!strncmp(maker, "zf_report_new(", 14)) zf_report_free(made);
    else if (!strncmp(maker, "zf_trace_new(", 13)) zf_trace_free(made);
    else if (!strncmp(maker, "zf_json_writer_new(", 19)) zf_json_writer_free(made);
    else if (!strncmp(maker, "zf_json", 7)) zf_json_free(made);
    else if (!strncmp(maker, "zf_safetensors_writer_new(", 26)) zf_safetensors_writer_free(made);
    else zf_safetensors_close(made);
}

#define CALL_MADE(call) free_made(call, #call)

typedef struct callee {
    const char *name;
    void (*call)(world *w);
} callee;

#pragma GCC diagnostic ignored "-Wformat-security" /* a name is a format */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "build/arguments.h"

/* Calls of each function, but of zf_calibrate, which measures, those that fail at once. */
TEST_ONCE(arguments_of_every_function)
{
    const int each = TEST_LARGE ? 60 : 40;
    const size_t all = sizeof callees / sizeof *callees;
    CHECK(t, all > 250);
    CHECK(t, zf_calibrate(NULL, NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_calibrate(&(zf_calibrate_desc){.nodes = -1}, &(zf_cost){.copy_load = 0}, NULL));
    for (size_t f = 0; f < all; f++)
        for (int k = 0; k < each && strcmp(callees[f].name, "zf_calibrate"); k++) {
            world w = {.t = t, .random = (uint64_t)f << 32 | (uint64_t)k};
            if (getenv("ARGUMENTS")) fprintf(stderr, "%s %d\n", callees[f].name, k);
            world_open(&w);
            callees[f].call(&w);
            world_close(&w);
        }
}
