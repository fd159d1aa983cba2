/* Collectives along dimensions on several devices: all_gather and reduce_scatter with `dim`,
 * all_to_all with `dim` and `from`, of each dtype, in steps that are launched, captured and
 * replayed. Each value has the bits that the CPU gives with the communicator of the process. */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

enum { LEAST = 2, WORLDS = 3, STEPS = 4, MOST_BYTES = 8 * 3 * 4 * 8 * WORLDS * WORLDS };

typedef struct call {
    const char *op;
    int dim, from; /* from: of all_to_all alone */
    const char *more;
} call;

static const call parts[] = {
    {"all_gather", 1, -1, ""},     {"all_gather", 2, -1, ""},
    {"all_gather", 0, -1, ""},     {"reduce_scatter", 1, -1, ""},
    {"reduce_scatter", 2, -1, ""}, {"reduce_scatter", 1, -1, " order=tree"},
    {"reduce_scatter", 0, -1, ""},
};
static const call exchanges[] = {
    {"all_to_all", 1, 0, ""}, {"all_to_all", 0, 1, ""}, {"all_to_all", 2, 1, ""},
    {"all_to_all", 1, 2, ""}, {"all_to_all", 0, 2, ""}, {"all_to_all", 2, 0, ""},
};

/* What all ranks of a case do; `inner`: elements of the last dimension. */
typedef struct course {
    const call *calls;
    int count;
    zf_dtype dtype;
    int inner;
} course;

/* The shapes of the operand and of the result. */
static void shapes_of(const call *k, int inner, int world, int from[3], int to[3])
{
    const int dims[3] = {3, 4, inner};
    memcpy(from, dims, sizeof dims), memcpy(to, dims, sizeof dims);
    if (!strcmp(k->op, "all_gather")) to[k->dim] *= world;
    else from[k->dim] *= world;
    if (k->from >= 0) to[k->from] *= world;
}

/* The type, of which ranks share dimension `cut`; -1: none. */
static const char *type_text(char text[80], zf_dtype dtype, const int dims[3], int cut)
{
    size_t at = (size_t)snprintf(text, 80, "%s", zf_dtype_name(dtype));
    for (int d = 0; d < 3; d++)
        at += (size_t)snprintf(text + at, 80 - at, "%c%d%s", d ? ',' : '[', dims[d],
                               d == cut ? "@context" : "");
    snprintf(text + at, 80 - at, "]");
    return text;
}

/* Appends the line of node `id`, of the one before. */
static size_t write_call(char *text, size_t size, const course *c, const call *k, int id, int world,
                         const char *type)
{
    char from[40] = "";
    if (c->calls == exchanges) snprintf(from, sizeof from, " from=%d over=context", k->from);
    return (size_t)snprintf(text, size, "%%%d = %s %%%d {world=%d dim=%d%s%s} : %s\n", id, k->op,
                            id - 1, world, k->dim, from, k->more, type);
}

/* Each call has an input and an output. What was scattered is gathered again, since an output is no
 * shard. */
static void write_text(char *text, size_t size, const course *c, int world)
{
    const bool exchanged = c->calls == exchanges;
    size_t at = (size_t)snprintf(
        text, size, exchanged ? "mesh context=%d\n" : "zero stage=0 world=%d micro_batches=1\n",
        world);
    for (int n = 0, id = 0; n < c->count; n++) {
        const call *k = &c->calls[n], again = {"all_gather", k->dim, -1, ""};
        const bool scattered = !strcmp(k->op, "reduce_scatter");
        char type[80], flat[80];
        int x[3], y[3];
        shapes_of(k, c->inner, world, x, y);
        type_text(type, c->dtype, x, k->from);
        at += (size_t)snprintf(text + at, size - at, "%%%d = input \"x%d\" : %s\n", ++id, n, type);
        snprintf(flat, sizeof flat, "%s[%d]", zf_dtype_name(c->dtype), y[0] * y[1] * y[2]);
        type_text(type, c->dtype, y, exchanged ? k->dim : -1);
        at +=
            write_call(text + at, size - at, c, k, ++id, world, exchanged || k->dim ? type : flat);
        snprintf(flat, sizeof flat, "%s[%d]", zf_dtype_name(c->dtype), x[0] * x[1] * x[2]);
        type_text(type, c->dtype, x, -1);
        if (scattered)
            at += write_call(text + at, size - at, c, &again, ++id, world, k->dim ? type : flat);
        at += (size_t)snprintf(text + at, size - at, "output %%%d \"y%d\"\n", id, n);
    }
}

/* Numbers of many magnitudes, so that another order of additions has other bits. */
static void fill(void *to, zf_dtype dtype, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0x94d049bb133111ebu;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = x ^ x >> 27;
        const double value = dtype > ZF_F64
                                 ? (double)(x % 60)
                                 : ldexp((double)(x % 2001) - 1000, (int)(x >> 40) % 12 - 16);
        zf_convert((char *)to + (size_t)i * zf_dtype_size(dtype), dtype, &value, ZF_F64, 1);
    }
}

/* A step of the CPU's program and of the device's, with the same operands; the results are
 * compared. */
static bool step(member *m, zf_program *const programs[2], zf_graph *const graphs[2], int number)
{
    const course *c = m->context;
    unsigned char bytes[2][MOST_BYTES];
    char name[16];
    for (int w = 0; w < 2; w++) {
        for (int n = 0; n < c->count; n++) {
            snprintf(name, sizeof name, "x%d", n);
            const zf_tensor x = zf_graph_find(graphs[w], name);
            fill(bytes[0], c->dtype, zf_shape_count(zf_tensor_shape(x)),
                 (uint64_t)(n + 100 * (number + STEPS * m->rank)));
            if (zf_write(programs[w], x, bytes[0], zf_tensor_bytes(x))) return false;
        }
        if (zf_step(programs[w])) return false;
    }
    for (int n = 0; n < c->count; n++) {
        size_t size = 0;
        snprintf(name, sizeof name, "y%d", n);
        for (int w = 0; w < 2; w++) {
            const zf_tensor y = zf_graph_find(graphs[w], name);
            size = zf_tensor_bytes(y);
            if (zf_read(programs[w], y, bytes[w], size)) return false;
        }
        if (memcmp(bytes[0], bytes[1], size) && !*m->said)
            snprintf(m->said, sizeof m->said, "rank %d of %d, step %d: %s dim=%d from=%d%s of %s",
                     m->rank, m->world, number, c->calls[n].op, c->calls[n].dim, c->calls[n].from,
                     c->calls[n].more, zf_dtype_name(c->dtype));
    }
    return true;
}

static void along_body(member *m)
{
    static const char *const names[2] = {"the CPU", "the device"};
    char text[4000];
    zf_graph *graphs[2] = {NULL};
    zf_program *programs[2] = {NULL};
    zf_backend *cuda = zf_cuda_backend(&(zf_cuda_desc){.device = m->rank}, &m->error);
    write_text(text, sizeof text, m->context, m->world);
    for (int w = 0; w < 2 && cuda; w++) {
        graphs[w] = zf_graph_parse(text, strlen(text), NULL, &m->error);
        if (graphs[w])
            programs[w] = zf_compile(graphs[w], &(zf_compile_desc){.backend = w ? cuda : NULL,
                                                                   .comm = w ? m->comm : m->local,
                                                                   .poison = true});
        if (graphs[w] && !programs[w])
            snprintf(m->said, sizeof m->said, "%.500s", zf_graph_error(graphs[w]));
    }
    for (int number = 0; number < STEPS && programs[0] && programs[1]; number++)
        if (!step(m, programs, graphs, number)) break;
    for (int w = 0; w < 2; w++) {
        if (programs[w] && *zf_program_error(programs[w]))
            snprintf(m->said, sizeof m->said, "%s: %.500s", names[w],
                     zf_program_error(programs[w]));
        zf_program_free(programs[w]);
        zf_graph_free(graphs[w]);
    }
    zf_backend_free(cuda);
}

static void run_world(test *t, course *c, int world)
{
    zf_error error = {ZF_OK, ""};
    member members[MOST];
    const zf_nccl_desc d = {.id = fresh_id(t), .staging_bytes = 4096};
    zf_local *group = zf_local_new(&(zf_local_desc){.world = world}, &error);
    NEED(t, group, &error);
    emulation_seed((uint64_t)world);
    set_members(members, world, &d, along_body, c);
    for (int r = 0; r < world; r++) members[r].local = zf_local_comm(group, r);
    run_well(t, members);
    zf_local_free(group);
}

/* Of each dtype; rows of an odd number of elements, and such as are copied 16 bytes at a time. */
static void check_calls(test *t, const call *calls, int count)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16, ZF_F64, ZF_I32, ZF_I64, ZF_U8};
    const int most = ranks(t, WORLDS);
    for (int world = LEAST; world <= most; world++)
        for (int k = 0; k < (int)(sizeof dtypes / sizeof *dtypes) && !t->failed; k++)
            run_world(t, &(course){calls, count, dtypes[k], (k + world) % 2 ? 7 : 8}, world);
}

TEST_ONCE(nccl_parts_along_dimensions) { check_calls(t, parts, sizeof parts / sizeof *parts); }

TEST_ONCE(nccl_exchanges_along_dimensions)
{
    check_calls(t, exchanges, sizeof exchanges / sizeof *exchanges);
}
