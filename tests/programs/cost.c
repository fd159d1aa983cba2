#define _POSIX_C_SOURCE 200809L
/* Cost tables: measured, equal on all ranks; as files, and their errors. Whether the rates are
 * right is not tested. */
#include "../support/test.h"

#include <float.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A table of these four. */
#define TABLE(flops, bytes, rate, latency)                                                         \
    {                                                                                              \
        .device = {.flops_per_s = (flops), .bytes_per_s = (bytes)}, .link = {                      \
            .bytes_per_s = (rate),                                                                 \
            .latency_s = (latency)                                                                 \
        }                                                                                          \
    }

enum { RANKS = 4 };

enum {
    MEMBERS = sizeof(zf_cost) / sizeof(double),
    APART = offsetof(zf_cost, host.apart) / sizeof(double),
    RATES = MEMBERS - 3 /* and latencies, and APART; the rest are parts, from 0 to 1 */
};

/* Member k in the order of the declaration. */
static double member_of(const zf_cost *c, int k)
{
    double all[MEMBERS];
    memcpy(all, c, sizeof all);
    return all[k];
}

/* Rates of a CPU, whose host memory has no processors of its own. */
static bool is_table(const zf_cost *c)
{
    bool good = c->host.apart == 0;
    for (int k = 0; k < MEMBERS; k++) {
        const double x = member_of(c, k);
        good &= k == APART || k >= RATES ? x >= 0 && x <= 1 : x > 0 && x < DBL_MAX;
    }
    return good;
}

static bool same(const zf_cost *a, const zf_cost *b) { return !memcmp(a, b, sizeof *a); }

/* Takes long enough to be measured at the first size, and no processor. */
static zf_status idle_launch(void *self, const zf_launch *l)
{
    const struct timespec some = {.tv_nsec = 12 * 1000 * 1000};
    (void)self;
    if (l->op != ZF_OP_copy) nanosleep(&some, NULL);
    return ZF_OK;
}

TEST_ONCE(cost_alone)
{
    zf_cost cost = {0}, plain = zf_cost_default();
    zf_error error = {ZF_OK, ""};
    const char *folder = test_path("measured");
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error), idle;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    idle = *cpu, idle.launch = idle_launch;
    CHECK(t, is_table(&plain));
    mkdir(folder, 0700);
    for (int k = 0; k < 2; k++) {
        OK(t,
           zf_calibrate(k ? &(zf_calibrate_desc){.backend = &idle, .offload_dir = folder} : NULL,
                        &cost, &error),
           error.text);
        CHECK(t, is_table(&cost));
        for (int n = 0; n < RATES; n++) { /* links, and without a folder the disk */
            const bool left = (n >= 5 && n < 9) || n == APART || (!k && n >= RATES - 4);
            CHECK(t, (member_of(&cost, n) == member_of(&plain, n)) == left);
        }
    }
    CHECK(t, rmdir(folder) == 0); /* its file was removed */
    CHECK(t, zf_calibrate(NULL, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_calibrate: cost is NULL");
    error.status = ZF_OK;
    plain = cost;
    GIVES(t, zf_calibrate(&(zf_calibrate_desc){.offload_dir = folder}, &cost, &error), ZF_ERR_IO,
          error.text);
    CHECK(t, strstr(error.text, "zf_calibrate: cannot open ") && same(&cost, &plain));
}

/* ---------------------------------------------------------------------------------------- ranks
 */

typedef struct member {
    const zf_comm *comm;
    zf_backend *backend;
    bool none; /* it has no room for the answer */
    int32_t nodes;
    zf_cost cost;
    zf_error error;
    zf_status status;
    pthread_t thread;
} member;

static void *member_main(void *object)
{
    member *m = object;
    m->status = zf_calibrate(
        &(zf_calibrate_desc){.backend = m->backend, .comm = m->comm, .nodes = m->nodes},
        m->none ? NULL : &m->cost, &m->error);
    return NULL;
}

/* All ranks measure; those without a backend get one that computes nothing. */
static bool run(zf_local *group, member members[RANKS], const zf_backend *cpu)
{
    zf_backend idle = *cpu;
    int started = 0;
    idle.launch = idle_launch;
    for (int r = 0; r < RANKS; r++)
        if (!members[r].backend) members[r].backend = &idle;
    for (; started < RANKS; started++) {
        members[started].comm = zf_local_comm(group, started);
        if (pthread_create(&members[started].thread, NULL, member_main, &members[started])) break;
    }
    for (int r = 0; r < started; r++) pthread_join(members[r].thread, NULL);
    return started == RANKS;
}

TEST_ONCE(cost_of_ranks)
{
    const zf_cost plain = zf_cost_default();
    zf_error error = {ZF_OK, ""};
    member members[RANKS] = {{.comm = NULL}};
    zf_backend *cpu = zf_cpu_backend(NULL, &error);
    zf_local *group = zf_local_new(&(zf_local_desc){.world = RANKS}, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    NEED(t, cpu && group, &error);
    for (int r = 0; r < RANKS; r++) members[r].nodes = 2;
    CHECK(t, run(group, members, cpu));
    for (int r = 0; r < RANKS; r++) {
        const zf_cost *c = &members[r].cost;
        CHECK(t, !members[r].status && is_table(c));
        CHECK(t, same(c, &members[0].cost));
        for (int n = 0; n < RATES - 4; n++)
            CHECK(t, n == APART || member_of(c, n) != member_of(&plain, n));
        CHECK(t, c->between.bytes_per_s != c->link.bytes_per_s);
    }
    for (int r = 0; r < RANKS; r++) members[r].nodes = 3;
    CHECK(t, run(group, members, cpu));
    for (int r = 0; r < RANKS; r++) {
        CHECK(t, members[r].status == ZF_ERR_ARGUMENT);
        CHECK(t, strstr(members[r].error.text,
                        "zf_calibrate: nodes is 3; it must divide the world of 4"));
    }
}

static zf_status full_launch(void *self, const zf_launch *l)
{
    (void)self;
    snprintf(l->error->text, sizeof l->error->text, "the device is gone");
    return l->error->status = ZF_ERR_BACKEND;
}

static void *full_allocate(void *self, size_t bytes, zf_error *error)
{
    (void)self;
    snprintf(error->text, sizeof error->text, "no %d bytes left", bytes > 0);
    error->status = ZF_ERR_NOMEM;
    return NULL;
}

/* A failure on one rank, at any point, is a failure on all. The table does not change, and the
 * ranks can try again. */
TEST_ONCE(cost_that_cannot_be_measured)
{
    zf_error error = {ZF_OK, ""};
    zf_backend *cpu = zf_cpu_backend(NULL, &error), lost, full;
    zf_local *group = zf_local_new(&(zf_local_desc){.world = RANKS}, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    test_defer(t, (test_cleanup *)zf_local_free, group);
    CHECK(t, cpu && group);
    lost = full = *cpu;
    lost.launch = full_launch;
    full.allocate = full_allocate;
    for (int k = 0; k < 4; k++) {
        if (!TEST_TAKES(k)) continue;
        static const char *const texts[] = {"rank 1: zf_calibrate: the device is gone",
                                            "rank 1: no 1 bytes left",
                                            "rank 1: zf_calibrate: cost is NULL", ""};
        static const zf_status statuses[] = {ZF_ERR_BACKEND, ZF_ERR_NOMEM, ZF_ERR_ARGUMENT, ZF_OK};
        const zf_cost before = TABLE(1, 2, 3, 4);
        member members[RANKS] = {{.comm = NULL}};
        for (int r = 0; r < RANKS; r++) members[r].cost = before;
        members[1].backend = k == 0 ? &lost : k == 1 ? &full : NULL;
        members[1].none = k == 2;
        CHECK(t, run(group, members, cpu));
        for (int r = 0; r < RANKS; r++) {
            CHECK(t, members[r].status == statuses[k]);
            CHECK_TEXT(t, members[r].error.text, texts[k]);
            CHECK(t, same(&members[r].cost, &before) == (k < 3));
        }
    }
}

/* ---------------------------------------------------------------------------------------- files
 */

static bool put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    bool good = file && fputs(text, file) >= 0;
    return file && !fclose(file) && good;
}

TEST(cost_files)
{
    const char *path = test_path("cost.json");
    const zf_cost tables[] = {
        zf_cost_default(),
        {{1, 1, 1, 1, 1}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 1}, 0},
        {{1e24, 1e24, 1e24, 1e24, 1e24},
         {1e24, 1e6},
         {1e24, 1e6},
         {1e24, 1},
         {1e24, 1e6},
         {1e24, 1e6},
         {1e24, 1e6},
         {1e24, 1e6},
         {0, 0},
         1},
        {{123456789.125, 16, 1.0 / 3 + 1, 17, 18},
         {0x1.23456789abcdep40, 0x1p-60},
         {14, 15},
         {5, 0.75},
         {6, 7},
         {8, 9},
         {10, 11},
         {12, 13},
         {0.5, 0.125},
         0.25}};
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++) {
        zf_error error = {ZF_OK, ""};
        zf_cost cost = {0};
        OK(t, zf_cost_save(&tables[k], path, &t->allocator, &error), error.text);
        OK(t, zf_cost_read(path, &cost, &t->allocator, &error), error.text);
        CHECK(t, same(&cost, &tables[k]));
    }
    CHECK(t, put(path, "{\"link_latency_s\":0,\"flops_per_s\":2e9,\n\"link_bytes_per_s\":3,"
                       "\"read_bytes_per_s\":7,\"bytes_per_s\":40}"));
    { /* what lies between spaces has defaults */
        zf_error error = {ZF_OK, ""};
        zf_cost cost = {0}, want = zf_cost_default();
        want.device.flops_per_s = want.device.half_flops_per_s = 2e9;
        want.device.bytes_per_s = 40;
        want.device.half_values_per_s = 20, want.device.functions_per_s = 5;
        want.link = want.between = (zf_cost_link){.bytes_per_s = 3};
        want.read.bytes_per_s = 7;
        OK(t, zf_cost_read(path, &cost, &t->allocator, &error), error.text);
        CHECK(t, same(&cost, &want));
    }
    { /* so it has where a rate is 0, with the latency that comes with it */
        zf_error error = {ZF_OK, ""};
        zf_cost cost = {.device = {.flops_per_s = 1, .bytes_per_s = 24},
                        .link.bytes_per_s = 3,
                        .read.bytes_per_s = 8,
                        .write.latency_s = 5},
                want = zf_cost_default();
        want.device.flops_per_s = want.device.half_flops_per_s = 1;
        want.device.bytes_per_s = 24;
        want.device.half_values_per_s = 12, want.device.functions_per_s = 3;
        want.link = want.between = (zf_cost_link){.bytes_per_s = 3};
        want.read = (zf_cost_link){.bytes_per_s = 8};
        OK(t, zf_cost_save(&cost, path, &t->allocator, &error), error.text);
        OK(t, zf_cost_read(path, &cost, &t->allocator, &error), error.text);
        CHECK(t, same(&cost, &want));
    }
}

/* The text after the path, which depends on the build. */
static const char *after(const char *text, const char *path)
{
    const char *at = strstr(text, path);
    return at ? at + strlen(path) : text;
}

TEST_ONCE(cost_bad_files)
{
#define ALL "\"flops_per_s\":1,\"bytes_per_s\":1,\"link_bytes_per_s\":1,\"link_latency_s\":1"
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", ":1:1: expected a value, found the end of the text"},
        {"[1, 2, 3, 4]", ":1:1: the top value must be an object of rates, not an array"},
        {"1e9", ":1:1: the top value must be an object of rates, not 1e9"},
        {"{" ALL,
         ":1:73: expected ',' or '}' in the object that began on line 1, found the end of the "
         "text"},
        {"{" ALL ",\n \"flops\": 1}",
         ":2:11: flops is no rate; there are flops_per_s, half_flops_per_s, bytes_per_s, half_values_per_s, "
         "functions_per_s, link_bytes_per_s, link_latency_s, between_bytes_per_s, between_latency_s, host_bytes_per_s, download_bytes_per_s, download_latency_s, "
         "upload_bytes_per_s, upload_latency_s, read_bytes_per_s, read_latency_s, "
         "write_bytes_per_s, write_latency_s, copy_load, disk_load, disk_shared and host_apart"},
        {"{" ALL ", \"flops_per_s\": 2}",
         ":1:75: the key \"flops_per_s\" is already there, on line 1"},
        {"{}", ":1:1: the top value lacks \"flops_per_s\""},
        {"{\"flops_per_s\":1,\"bytes_per_s\":1,\"link_bytes_per_s\":1}",
         ":1:1: the top value lacks \"link_latency_s\""},
        {"{\"flops_per_s\": \"1\",\"bytes_per_s\":1,\"link_bytes_per_s\":1,\"link_latency_s\":1}",
         ":1:17: flops_per_s must be a number from 1.0 to 1e24, not \"1\""},
        {"{\"flops_per_s\":1,\"bytes_per_s\":0,\"link_bytes_per_s\":1,\"link_latency_s\":1}",
         ":1:32: bytes_per_s must be a number from 1.0 to 1e24, not 0"},
        {"{\"flops_per_s\":1,\"bytes_per_s\":1,\"link_bytes_per_s\":1e25,\"link_latency_s\":1}",
         ":1:53: link_bytes_per_s must be a number from 1.0 to 1e24, not 1e25"},
        {"{" ALL ",\n \"disk_load\": 1.5}",
         ":2:15: disk_load must be a number from 0.0 to 1.0, not 1.5"},
        {"{" ALL ",\n \"write_bytes_per_s\": 0}",
         ":2:23: write_bytes_per_s must be a number from 1.0 to 1e24, not 0"},
        {"{\"flops_per_s\":1,\"bytes_per_s\":1,\"link_bytes_per_s\":1,\"link_latency_s\":-1}",
         ":1:72: link_latency_s must be a number from 0.0 to 1000000.0, not -1"},
    };
#undef ALL
    const char *path = test_path("bad-cost.json");
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        zf_error error = {ZF_OK, ""};
        const zf_cost before = TABLE(1, 2, 3, 4);
        zf_cost cost = before;
        CHECK(t, put(path, rows[k].text));
        CHECK(t, zf_cost_read(path, &cost, NULL, &error) == ZF_ERR_FORMAT);
        CHECK_TEXT(t, after(error.text, path), rows[k].error);
        CHECK(t, same(&cost, &before));
        CHECK(t, zf_cost_read(path, &cost, NULL, NULL) == ZF_ERR_FORMAT);
    }
}

TEST_ONCE(cost_bad_calls)
{
    const zf_cost good = zf_cost_default();
    const struct {
        zf_cost cost;
        const char *error;
    } rows[] = {
        {TABLE(0, 1, 1, 1), "zf_cost_save: flops_per_s is 0; it must be from 1 to 1e+24"},
        {TABLE(1, NAN, 1, 1), "zf_cost_save: bytes_per_s is nan; it must be from 1 to 1e+24"},
        {TABLE(1, 1, INFINITY, 1),
         "zf_cost_save: link_bytes_per_s is inf; it must be from 1 to 1e+24"},
        {TABLE(1, 1, 1, -1), "zf_cost_save: link_latency_s is -1; it must be from 0 to 1e+06"},
        {{.device = {.flops_per_s = 1, .bytes_per_s = 1},
          .link.bytes_per_s = 1,
          .upload.bytes_per_s = -1},
         "zf_cost_save: upload_bytes_per_s is -1; it must be from 1 to 1e+24"},
    };
    char path[1000];
    zf_cost cost = good;
    zf_error error = {ZF_OK, ""};
    snprintf(path, sizeof path, "%s", test_path("no-cost.json"));
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        error.status = ZF_OK;
        CHECK(t, zf_cost_save(&rows[k].cost, path, NULL, &error) == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, error.text, rows[k].error);
    }
    error.status = ZF_OK;
    CHECK(t, zf_cost_read(path, &cost, NULL, &error) == ZF_ERR_IO); /* none was written */
    CHECK_TEXT(t, after(error.text, path), ": No such file or directory");
    error.status = ZF_OK;
    CHECK(t, zf_cost_read(NULL, &cost, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_cost_read: path is NULL");
    error.status = ZF_OK;
    CHECK(t, zf_cost_read(path, NULL, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_cost_read: cost is NULL");
    error.status = ZF_OK;
    CHECK(t, zf_cost_save(NULL, path, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_cost_save: cost is NULL");
    error.status = ZF_OK;
    CHECK(t, zf_cost_save(&good, NULL, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_cost_save: path is NULL");
    CHECK(t, same(&cost, &good));
}
