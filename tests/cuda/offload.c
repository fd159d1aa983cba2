/* Offload on CUDA: values in pinned host memory and on a disk, updates by the CPU backend while the
 * device goes on. The numbers are the same in every order in which the device takes its work and
 * the disk does its own; a step is two graphs; each space takes what its plan says; and an error of
 * the disk ends the step. Without EMULATION it runs on a GPU. */
#define _POSIX_C_SOURCE 200809L
#include "../../tools/pass.h"
#include "../support/test.h"

#include <cuda_runtime_api.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_seed(seed) ((void)(seed))
#define emulation_report()   ""
#endif

enum { X = 6 * 48, IMAGE = 1 << 18, HELD = 64, STEPS = 5 };

/* Three layers with a dropout, the first of which runs twice; parameters of several blocks of 1024
 * elements, and of less than one. */
static const char model[] = "%1 = input \"x\" : f32[6,48]\n"
                            "%2 = input \"lr\" : f32[]\n"
                            "%3 = param \"layer.0.w\" {init=normal b=0.3} : f32[48,56]\n"
                            "%4 = param \"layer.0.b\" : f32[56]\n"
                            "%5 = param \"layer.1.w\" {init=normal b=0.3} : f32[56,48]\n"
                            "%6 = param \"layer.2.w\" {init=normal b=0.3} : f32[48,48]\n"
                            "%7 = param \"frozen\" {init=normal b=0.3 frozen=true} : f32[48]\n"
                            "%8 = matmul %1, %3 : f32[6,56]\n"
                            "%9 = add %8, %4 : f32[6,56]\n"
                            "%10 = tanh %9 : f32[6,56]\n"
                            "%11 = dropout %10 {p=0.25 stream=3} : f32[6,56]\n"
                            "%12 = matmul %11, %5 : f32[6,48]\n"
                            "%13 = tanh %12 : f32[6,48]\n"
                            "%14 = matmul %13, %6 : f32[6,48]\n"
                            "%15 = add %14, %7 : f32[6,48]\n"
                            "%16 = matmul %15, %3 : f32[6,56]\n"
                            "%17 = add %16, %4 : f32[6,56]\n"
                            "%18 = tanh %17 : f32[6,56]\n"
                            "%19 = mul %18, %18 : f32[6,56]\n"
                            "%20 = reshape %19 {shape=[336]} : f32[336]\n"
                            "%21 = sum %20 : f32[]\n"
                            "      output %21 \"loss\"\n";

/* A layer of 8 experts of an odd number of elements, of which at most 6 have rows. */
static const char experts[] = "%1 = input \"x\" : f32[6,48]\n"
                              "%2 = input \"lr\" : f32[]\n"
                              "%3 = param \"gate\" {init=normal b=0.5} : f32[8,48]\n"
                              "%4 = linear %1, %3 : f32[6,8]\n"
                              "%5 = route %4 {k=1} : f32[6,1]\n"
                              "%6 = saved %5 : i32[6,1]\n"
                              "%7 = expert_rows %6 {experts=8 rows=6} : i32[6]\n"
                              "%8 = saved %7 : i32[8,2]\n"
                              "%9 = saved %7 {index=1} : i32[6,1]\n"
                              "%10 = dispatch %1, %7, %9 : f32[6,48]\n"
                              "%11 = param \"up\" {init=normal b=0.3} : f32[8,40,48]\n"
                              "%12 = grouped_linear %10, %11, %8 : f32[6,40]\n"
                              "%13 = tanh %12 : f32[6,40]\n"
                              "%14 = param \"down\" {init=normal b=0.3} : f32[8,3,40]\n"
                              "%15 = grouped_linear %13, %14, %8 : f32[6,3]\n"
                              "%16 = combine %15, %7, %9, %5 : f32[6,3]\n"
                              "%17 = mul %16, %16 : f32[6,3]\n"
                              "%18 = reshape %17 {shape=[18]} : f32[18]\n"
                              "%19 = sum %18 : f32[]\n"
                              "      output %19 \"loss\"\n";

/* ----------------------------------------------------------------------------------- backends */

/* The host's backend. What is launched on its queues, which are copies of a disk, it does at once,
 * at the wait for it, or at any time between, as `random` says. Number fail_at of them, from 1 on,
 * is an error. */
static struct {
    zf_backend backend, *cpu; /* self is the CPU's, since kernels expect that */
    uint64_t random;
    const zf_launch *held[HELD];
    int count;
    int copies, fail_at;
    bool silent; /* and that error has no text */
    size_t pinned; /* bytes that the device was asked for, and has pinned */
    int sections;  /* that the device has run */
    int shared;    /* tasks that its threads were given */
} host;

static bool at_random(void)
{
    host.random = host.random * 6364136223846793005u + 1442695040888963407u;
    return host.random >> 63;
}

/* Does the copies that are held, up to `last`; all of them if that is NULL. */
static zf_status do_held(const zf_launch *last)
{
    zf_status status = ZF_OK;
    int n = 0;
    while (n < host.count && !status) {
        zf_launch l = *host.held[n++];
        l.queue = 0;
        if (++host.copies == host.fail_at) {
            status = ZF_ERR_IO;
            if (!host.silent) {
                l.error->status = status;
                snprintf(l.error->text, sizeof l.error->text, "the disk is on fire");
            }
        } else {
            status = host.cpu->launch(host.cpu->self, &l);
        }
        if (host.held[n - 1] == last) break;
    }
    memmove(host.held, host.held + n, (size_t)(host.count - n) * sizeof *host.held);
    host.count -= n;
    return status;
}

static zf_status host_launch(void *self, const zf_launch *l)
{
    if (!l->disk) return host.cpu->launch(self, l);
    if (host.count == HELD) (void)do_held(NULL);
    host.held[host.count++] = l;
    return !l->queue || at_random() ? do_held(NULL) : ZF_OK;
}

static zf_status host_wait(void *self, const zf_launch *l)
{
    (void)self;
    for (int n = 0; n < host.count; n++)
        if (host.held[n] == l) return do_held(at_random() ? NULL : l);
    return ZF_OK;
}

static zf_status host_synchronize(void *self, zf_error *error)
{
    host.count = 0; /* after an error some are left */
    return host.cpu->synchronize(self, error);
}

static void host_share(void *self, int64_t count, void (*task)(void *, int64_t), void *context)
{
    host.shared += (int)count;
    host.cpu->share(self, count, task, context);
}

/* NULL out of memory. */
static zf_backend *open_host(test *t, uint64_t random)
{
    memset(&host, 0, sizeof host);
    host.cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2, .allocator = t->allocator}, NULL);
    if (!host.cpu) return NULL;
    test_defer(t, (test_cleanup *)zf_backend_free, host.cpu);
    host.backend = *host.cpu;
    host.backend.launch = host_launch;
    host.backend.wait = host_wait;
    host.backend.synchronize = host_synchronize;
    host.backend.share = host_share;
    host.random = random;
    return &host.backend;
}

/* The device, whose calls are counted. */
static zf_backend device, *cuda;

static void *device_allocate_host(void *self, size_t bytes, zf_error *error)
{
    struct cudaPointerAttributes about = {.type = cudaMemoryTypeUnregistered};
    void *memory = cuda->allocate_host(self, bytes, error);
    if (memory && !cudaPointerGetAttributes(&about, memory) && about.type == cudaMemoryTypeHost)
        host.pinned += bytes;
    return memory;
}

static zf_status device_run(void *self, zf_section *s, zf_error *error)
{
    host.sections++;
    return cuda->run(self, s, error);
}

/* ----------------------------------------------------------------------------------- programs */

/* What a program has made: losses, then all that is in its store. */
typedef struct image {
    unsigned char bytes[IMAGE];
    size_t size;
} image;

typedef struct setup {
    const char *passes;
    int64_t micro_batches;
    bool alone; /* launch by launch: the host's are done when the next begins; */
    uint64_t seed;
    bool poison; /* and what is no longer needed is filled with NaN */
    bool experts; /* of the layer of experts */
} setup;

static zf_graph *graph_of(test *t, const setup *s)
{
    const char *const text = s->experts ? experts : model;
    char message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    if (g && !pass_run(g, s->passes, NULL, message, sizeof message)) return g;
    test_fail(t, __FILE__, __LINE__, s->passes, g ? message : error.text);
    zf_graph_free(g);
    return NULL;
}

static zf_status feed(zf_program *p, zf_graph *g, int64_t at)
{
    float x[X], lr = 0.01f;
    zf_status status;
    for (int i = 0; i < X; i++) x[i] = (float)((i * 7 + at * 13) % 31 - 15) / 16;
    status = zf_write(p, zf_graph_find(g, "x"), x, sizeof x);
    return status ? status : zf_write(p, zf_graph_find(g, "lr"), &lr, sizeof lr);
}

/* One step. */
static zf_status step(zf_program *p, zf_graph *g, const setup *s, int64_t number)
{
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < s->micro_batches && !status; micro++)
        if (!(status = feed(p, g, number * s->micro_batches + micro)))
            status = micro + 1 < s->micro_batches ? zf_micro(p) : zf_step(p);
    return status;
}

static zf_status keep_all(zf_program *p, image *to)
{
    zf_store *s = STORE(p);
    zf_status status = ZF_OK;
    for (int32_t k = 0; k < zf_store_count(s) && !status; k++) {
        const zf_stored of = zf_store_at(s, k);
        const size_t bytes = (size_t)zf_shape_count(of.shape) * zf_dtype_size(of.dtype);
        if (to->size + bytes > IMAGE) return ZF_ERR_LIMIT;
        status = zf_store_read(s, of.name, to->bytes + to->size, bytes);
        to->size += bytes;
    }
    return status;
}

/* A program of the passes on the device; NULL: the test is over. */
static zf_program *program_of(test *t, const setup *s, zf_graph *g, const char *folder)
{
    zf_program *p;
    device = *cuda;
    device.allocate_host = device_allocate_host;
    device.run = s->alone ? NULL : device_run;
    host.pinned = 0, host.sections = 0, host.copies = 0, host.fail_at = 0, host.silent = false;
    p = zf_compile(g, &(zf_compile_desc){.backend = &device,
                                         .host = &host.backend,
                                         .offload_dir = folder,
                                         .seed = 3,
                                         .poison = s->poison,
                                         .verify = true});
    if (!p) test_fail(t, __FILE__, __LINE__, s->passes, zf_graph_error(g));
    return p;
}

/* Trains; false: the test is over. */
static bool train(test *t, const setup *s, image *to)
{
    const char *folder = test_path("offload");
    zf_graph *g = graph_of(t, s);
    zf_program *p;
    zf_program_info info;
    zf_status status = ZF_OK;
    bool planned = true;
    to->size = 0;
    if (!g) return false;
    mkdir(folder, 0700);
    emulation_seed(s->seed);
    if ((p = program_of(t, s, g, folder))) {
        info = zf_program_info_of(p);
        for (int space = 0; space < ZF_SPACES; space++)
            planned &= info.allocated[space] == info.plan.spaces[space].peak_bytes;
        planned &= info.allocated[ZF_HOST] == host.pinned;
        for (int64_t n = 0; n < STEPS && !status; n++) {
            status = step(p, g, s, n);
            if (!status && !(status = zf_read(p, zf_graph_find(g, "loss"), to->bytes + to->size,
                                              sizeof(float))))
                to->size += sizeof(float);
        }
        if (!status) status = keep_all(p, to);
        if (status) test_fail(t, __FILE__, __LINE__, s->passes, zf_program_error(p));
        if (!planned) test_fail(t, __FILE__, __LINE__, s->passes, "predicted = allocated bytes");
        /* One graph for the micro section, one for the update section */
        if (!status && !s->alone && host.sections != STEPS * (s->micro_batches + 1))
            test_fail(t, __FILE__, __LINE__, s->passes, "the step is in more than two graphs");
    }
    zf_program_free(p);
    zf_graph_free(g);
    if (*emulation_report()) test_fail(t, __FILE__, __LINE__, s->passes, emulation_report());
    if (rmdir(folder)) test_fail(t, __FILE__, __LINE__, s->passes, "there are files left");
    return !t->failed;
}

/* Opens device and host; false: the test is over. */
static bool open_all(test *t, uint64_t random)
{
    zf_error error = {ZF_OK, ""};
    if (!open_host(t, random)) return test_fail(t, __FILE__, __LINE__, "host", ""), false;
    cuda = zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &error);
    if (!cuda) return test_fail(t, __FILE__, __LINE__, "cuda", error.text), false;
    test_defer(t, (test_cleanup *)zf_backend_free, cuda);
    return true;
}

/* -------------------------------------------------------------------------------------- tests */

static bool same(const image *a, const image *b)
{
    return a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

/* Each kind in host memory and on a disk. In every order the bits are those without offload, and of
 * launches that are done one by one. (The CPU rounds updates as the device does, but adds the
 * elements of norms in another order.) */
TEST_ONCE(cuda_offload_keeps_the_bits)
{
    static const struct {
        const char *before, *offload, *after;
        int64_t micro_batches;
        bool experts;
    } list[] = {
        {"autograd loss; adamw lr; zero experts_apart micro_batches=2", "parameters=host",
         "prefetch bytes=20000", 2, true},
        {"precision bf16; autograd loss; adamw lr; zero experts_apart",
         "parameters=disk optimizer=disk", "prefetch bytes=100000", 1, true},
        {"autograd loss; adamw lr weight_decay=0.1; zero bucket=1", "parameters=host",
         "prefetch bytes=20000", 1, false},
        {"autograd loss; adamw lr weight_decay=0.1; zero bucket=1", "parameters=disk",
         "prefetch bytes=20000 host_bytes=40000", 1, false},
        {"autograd loss; adamw lr; zero bucket=1 micro_batches=2",
         "gradients=host activations=host", "prefetch bytes=20000", 2, false},
        {"autograd loss; adamw lr; zero bucket=1 micro_batches=2", "gradients=disk",
         "prefetch bytes=20000 host_bytes=40000", 2, false},
        {"autograd loss; adamw lr; zero bucket=1", "gradients=disk optimizer=host",
         "prefetch bytes=20000 host_bytes=5000", 1, false},
        {"autograd loss; adamw lr; zero bucket=1", "optimizer=host", "prefetch bytes=100000", 1,
         false},
        {"autograd loss; adamw lr; zero bucket=1", "optimizer=disk", "prefetch bytes=100000", 1,
         false},
        {"precision bf16; autograd loss; lamb lr weight_decay=0.1; zero bucket=1",
         "optimizer=disk parameters=disk activations=host", "prefetch bytes=30000", 1, false},
        {"precision f16 scale=200000 hysteresis=1; autograd loss; clip 0.5; adamw lr; "
         "zero bucket=1 micro_batches=2",
         "optimizer=disk gradients=host", "prefetch bytes=30000", 2, false},
        {"autograd loss; clip 0.5; sgd lr momentum=0.9; zero bucket=20000",
         "optimizer=host parameters=host", "prefetch bytes=0", 1, false},
        {"autograd loss; lion lr; zero bucket=1", "optimizer=disk", "", 1, false},
    };
    static image expected, got;
    if (!open_all(t, 1)) return;
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char line[600];
        setup s = {line, list[k].micro_batches, true, 1, false, list[k].experts};
        const bool norms = strstr(list[k].before, "clip") || strstr(list[k].before, "lamb"),
                   plain = !norms || !strstr(list[k].offload, "optimizer");
        snprintf(line, sizeof line, "%s; %s", list[k].before, list[k].after);
        if (plain && !train(t, &s, &expected)) return;
        snprintf(line, sizeof line, "%s; offload %s; %s", list[k].before, list[k].offload,
                 list[k].after);
        if (!plain && !train(t, &s, &expected)) return;
        for (s.seed = 1; s.seed < 6; s.seed++) {
            s.alone = s.seed < 3, s.poison = s.seed == 1;
            if (!train(t, &s, &got)) return;
            if (!same(&expected, &got)) {
                test_fail(t, __FILE__, __LINE__, line, "other bits");
                return;
            }
        }
    }
}

/* Rates of copies between pinned memory and the device are measured, and of updates. */
TEST_ONCE(cuda_offload_is_measured)
{
    const zf_cost plain = zf_cost_default();
    zf_cost cost = plain;
    zf_error error = {ZF_OK, ""};
    if (!open_all(t, 1)) return;
    OK(t, zf_calibrate(&(zf_calibrate_desc){.backend = cuda, .host = &host.backend}, &cost, &error),
       error.text);
    CHECK(t, cost.upload.bytes_per_s > 0 && cost.upload.bytes_per_s != plain.upload.bytes_per_s);
    CHECK(t, cost.download.latency_s > 0 && cost.download.latency_s != plain.download.latency_s);
    CHECK(t, cost.host.bytes_per_s > 0 && cost.host.bytes_per_s != plain.host.bytes_per_s);
    CHECK_TEXT(t, emulation_report(), "");
}

/* A copy from or to the disk fails, in a step that is launched, captured or replayed, and in either
 * section: the step fails with its error, and the next one runs. */
TEST_ONCE(cuda_offload_ends_with_an_error_of_the_disk)
{
    static const setup s = {"autograd loss; adamw lr; zero bucket=1; offload optimizer=disk "
                            "parameters=disk; prefetch bytes=30000",
                            1, false, 1, false, false};
    const char *folder = test_path("offload");
    int in_a_step = 0, undefined = 0;
    if (!open_all(t, 1)) return;
    mkdir(folder, 0700);
    for (int k = 0; k < 5; k++) {
        zf_graph *g;
        zf_program *p;
        zf_status status = ZF_OK;
        int64_t n = 0;
        NEED(t, g = graph_of(t, &s), NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        NEED(t, p = program_of(t, &s, g, folder), NULL);
        /* The first of a step, the last one of the next, and some in those that are replayed */
        host.fail_at = k ? 1 + (k - 1) * in_a_step + (k - 1) * in_a_step / 3 : 0;
        host.silent = k == 4; /* in a graph */
        while (n < STEPS && !(status = step(p, g, &s, n))) {
            n++;
            if (!in_a_step) in_a_step = host.copies;
        }
        if (!k) OK(t, status, zf_program_error(p));
        else {
            CHECK(t, status == ZF_ERR_IO && n == (host.fail_at - 1) / in_a_step);
            if (!host.silent) CHECK_TEXT(t, zf_program_error(p), "the disk is on fire");
            else CHECK(t, strstr(zf_program_error(p), " failed in host memory"));
            /* The next step is a step again where no update can have been made. */
            status = step(p, g, &s, n);
            CHECK(t, !status || status == ZF_ERR_STAGE);
            undefined += status == ZF_ERR_STAGE;
        }
        zf_program_free(p);
    }
    CHECK(t, undefined > 0);
    CHECK(t, in_a_step > 8 && !rmdir(folder));
    CHECK_TEXT(t, emulation_report(), "");
}

/* The one file in a folder, open for writing; -1 where there are others. */
static int only_file(const char *folder)
{
    char path[800];
    DIR *directory = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.')
            count++, snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (directory) closedir(directory);
    return count == 1 ? open(path, O_RDWR) : -1;
}

/* The file is cut while a graph is replayed: the engine's own error is the step's. */
TEST_ONCE(cuda_offload_names_what_is_damaged)
{
    static const setup s = {"autograd loss; adamw lr; zero bucket=1; offload optimizer=disk", 1,
                            false, 1, false, false};
    const char *folder = test_path("offload");
    zf_graph *g;
    zf_program *p;
    int file;
    if (!open_all(t, 1)) return;
    mkdir(folder, 0700);
    NEED(t, g = graph_of(t, &s), NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    NEED(t, p = program_of(t, &s, g, folder), NULL);
    for (int64_t n = 0; n < 3; n++) OK(t, step(p, g, &s, n), zf_program_error(p));
    CHECK(t, (file = only_file(folder)) >= 0 && !ftruncate(file, 8192) && !close(file));
    GIVES(t, step(p, g, &s, 3), ZF_ERR_FORMAT, zf_program_error(p));
    CHECK(t, strstr(zf_program_error(p), "adamw.m/layer."));
    CHECK(t, strstr(zf_program_error(p), "the file ends: it has 8192 bytes"));
    zf_program_free(p);
    CHECK(t, !rmdir(folder));
}

/* First values are made by the workers of the host, also where nothing leaves the device. */
TEST_ONCE(cuda_first_values_by_workers)
{
    static float made[2][40000];
    if (!open_all(t, 1)) return;
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_new(NULL);
        zf_tensor w =
            zf_param(g, "w", ZF_SHAPE(40000), &(zf_param_desc){.init = ZF_NORMAL, .std = 0.2});
        zf_program *p;
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        zf_output(zf_sum(w), "sum");
        NEED(t,
             p = zf_compile(g, &(zf_compile_desc){.backend = k ? cuda : NULL,
                                                  .host = k ? &host.backend : NULL}),
             NULL);
        OK(t, zf_read(p, w, made[k], sizeof made[k]), zf_program_error(p));
        zf_program_free(p);
    }
    CHECK(t, host.shared == 3 && !memcmp(made[0], made[1], sizeof made[0]));
}
