#define _POSIX_C_SOURCE 200809L
/* zf_offload of weights of experts: those with rows alone are fetched, and steps have the bits of
 * steps without offload; what is copied is what the router's counts say. */
#include "expert_model.h"
#include "../support/mistake.h"
#include "../support/numbers.h"

#include <sys/stat.h>
#include <unistd.h>

/* The passes make the numbers that they make with kinds offloaded, and experts are fetched: with
 * `first` before, which may cut weights into pieces. What a fetch leaves out is NaN from the second
 * step on. */
static void check_offloaded(test *t, const char *dtype, const char *first, const char *before,
                            const char *kinds, const char *after)
{
    char text[TEXT], line[600], why[600] = "", fetch[20];
    numbers with = {0}, without = {0};
    zf_error error = {ZF_OK, ""};
    const char *folder = test_path("fetched");
    const numbers_desc d = {.steps = 3,
                            .fast = true,
                            .no_gradients = true,
                            .seed = 7,
                            .poison = true,
                            .offload_dir = folder};
    char *plain, *other;
    mkdir(folder, 0700);
    write_model(text, dtype);
    snprintf(fetch, sizeof fetch, " each=%d", 32 * (bits ? 64 * bits / 8 + 4 : width));
    snprintf(line, sizeof line, "%s; memory threads=1", before);
    plain = text_after(t, text, line);
    snprintf(line, sizeof line, "%s%s experts_apart; offload %s; %s; memory threads=1; verify",
             first, before, kinds, after);
    other = plain ? text_after(t, text, line) : NULL;
    if (!other || !strstr(other, fetch) || !numbers_of(&without, plain, &d, &error) ||
        !numbers_of(&with, other, &d, &error) ||
        numbers_compare(&without, &with, "", why, sizeof why) < 9)
        test_fail(t, __FILE__, __LINE__, line, *why ? why : *error.text ? error.text : "no fetch");
    numbers_free(&with);
    numbers_free(&without);
    free(plain);
    free(other);
    rmdir(folder);
}

#define TRAINS "autograd loss; simplify; clip 0.5; adamw lr; "

TEST_ONCE(fetched_experts_have_the_bits)
{
    static const char *const dtypes[] = {"f32", "bf16", "f64"};
    static const char *const afters[] = {"prefetch bytes=0", "prefetch bytes=40000",
                                         "prefetch bytes=1000000"};
    static const struct {
        const char *first, *before, *kinds;
    } list[] = {
        {"", "zero", "parameters=host"},
        {"", "zero micro_batches=2", "parameters=disk"},
        {"", "recompute layers; zero", "parameters=disk optimizer=host gradients=host"},
        {"", "recompute layers; zero micro_batches=3", "parameters=host activations=host"},
        {"", "zero world=2", "parameters=disk activations=disk optimizer=disk"},
        {"", "recompute layers; zero world=4 stage=3 micro_batches=2",
         "parameters=host gradients=host"},
        {"", "experts parts=2; zero world=4 stage=3 micro_batches=2",
         "parameters=disk optimizer=disk"},
        {"", "experts parts=2; zero world=2", "parameters=disk"},
        {"", "experts parts=2 sections=4; zero world=4", "parameters=host"},
        {"tile 9000; ", "zero micro_batches=2", "parameters=disk optimizer=disk"},
        {"tile 4096; ", "recompute layers; zero world=2 stage=3", "parameters=host"}};
    for (size_t k = 0; k < sizeof list / sizeof *list && !t->failed; k++) {
        char before[200];
        snprintf(before, sizeof before, TRAINS "%s", list[k].before);
        check_offloaded(t, dtypes[k % 3 == 1 ? k / 3 % 2 + 1 : 0], list[k].first, before,
                        list[k].kinds, afters[k % 3]);
    }
}

/* Of experts that adapters leave as they are, and of the adapters' own. */
TEST_ONCE(fetched_experts_have_the_bits_with_adapters)
{
    check_offloaded(t, "f32", "", "lora rank=2 targets=up,down; " TRAINS "zero micro_batches=2",
                    "parameters=disk", "prefetch bytes=40000");
}

/* Of experts of 8 and 4 bits: frozen below adapters, or in pieces. */
TEST_ONCE(fetched_experts_have_the_bits_in_few_bits)
{
    static const struct {
        const char *first, *before, *kinds;
    } list[] = {
        {"", "zero micro_batches=2", "parameters=disk"},
        {"", "recompute layers; zero world=2 stage=3", "parameters=host optimizer=host"},
        {"tile 9000; ", "zero", "parameters=disk"}};
    width = 64;
    for (size_t k = 0; k < sizeof list / sizeof *list && !t->failed; k++) {
        char before[200];
        bits = k ? 4 : 8;
        snprintf(before, sizeof before, "%s" TRAINS "%s",
                 *list[k].first ? "" : "lora rank=2 targets=up,down; ", list[k].before);
        check_offloaded(t, k == 1 ? "bf16" : "f32", list[k].first, before, list[k].kinds,
                        "prefetch bytes=40000");
    }
    width = WIDTH, bits = 0;
}

/* ---------------------------------------------------------------------------- what is copied */

static const char counts[] = "%90 = saved %9 {index=2} : i32[8]\noutput %90 \"counts0\"\n"
                             "%91 = saved %24 {index=2} : i32[8]\noutput %91 \"counts1\"\n";

typedef struct fetching {
    char *text; /* after passes */
    zf_graph *graph;
    zf_program *program;
} fetching;

static void end_fetching(void *object)
{
    fetching *f = object;
    zf_program_free(f->program);
    zf_graph_free(f->graph);
    free(f->text);
    *f = (fetching){.text = NULL};
}

/* A program of the model after the passes, with parameters on a disk. */
static bool start_fetching(test *t, fetching *f, const char *line)
{
    char text[TEXT];
    const char *folder = test_path("fetched");
    zf_error error = {ZF_OK, ""};
    zf_store *store;
    mkdir(folder, 0700);
    write_model(text, "f32");
    snprintf(text + strlen(text), TEXT - strlen(text), "%s", counts);
    if (!(f->text = text_after(t, text, line))) return false;
    f->graph = zf_graph_parse(f->text, strlen(f->text), NULL, &error);
    store = zf_store_new(&(zf_store_desc){.offload_dir = folder, .seed = 3}, &error);
    if (f->graph && store)
        f->program = zf_compile(f->graph, &(zf_compile_desc){.store = store, .poison = true});
    if (!f->program)
        test_fail(t, __FILE__, __LINE__, line, f->graph ? zf_graph_error(f->graph) : error.text);
    zf_store_free(store);
    return f->program;
}

/* Makes a step whose tokens are `words` different ones. */
static zf_status step_of_words(const fetching *f, int words)
{
    int32_t tokens[TOKENS], labels[TOKENS];
    const float lr = 0.01f, weight = 1;
    const zf_tensor rate = zf_graph_find(f->graph, "lr");
    for (int i = 0; i < TOKENS; i++) tokens[i] = 3 + i % words, labels[i] = i % WORDS;
    zf_write(f->program, zf_graph_find(f->graph, "tokens"), tokens, sizeof tokens);
    zf_write(f->program, zf_graph_find(f->graph, "labels"), labels, sizeof labels);
    zf_write(f->program, zf_graph_find(f->graph, "weight"), &weight, sizeof weight);
    if (rate.id) zf_write(f->program, rate, &lr, sizeof lr);
    return zf_step(f->program);
}

/* Experts without rows, of both layers. */
static int without_rows(const fetching *f)
{
    int none = 0;
    for (int layer = 0; layer < 2; layer++) {
        int32_t of[EXPERTS] = {0};
        char name[8];
        snprintf(name, sizeof name, "counts%d", layer);
        zf_read(f->program, zf_graph_find(f->graph, name), of, sizeof of);
        for (int e = 0; e < EXPERTS; e++) none += of[e] == 0;
    }
    return none;
}

/* How often the text has the words. */
static int times_in(const char *text, const char *words)
{
    int times = 0;
    while ((text = strstr(text, words))) times++, text++;
    return times;
}

/* A plan has the bytes of all experts; a step reads and uploads those of experts with rows, of two
 * matrices of 32 x 16 numbers in each layer, forward and, where it trains, backward. */
TEST_ONCE(fetched_experts_are_those_with_rows)
{
    static const char *const lines[] = {
        "zero experts_apart; offload parameters=disk; memory threads=1",
        "autograd loss; sgd lr; zero experts_apart; offload parameters=disk; prefetch bytes=30000; "
        "memory threads=1"};
    for (int k = 0; k < 2 && !t->failed; k++) {
        static fetching f;
        test_defer(t, end_fetching, &f);
        if (!start_fetching(t, &f, lines[k])) return;
        CHECK(t, times_in(f.text, "{to=host experts=8 each=512}") == 4 * (k + 1));
        for (int words = 1; words <= 7 && !t->failed; words += 2) {
            zf_program_info info;
            size_t left;
            OK(t, step_of_words(&f, words), zf_program_error(f.program));
            info = zf_program_info_of(f.program);
            left = (size_t)without_rows(&f) * 2 * 32 * WIDTH * 4 * (size_t)(k + 1);
            CHECK(t, words > 1 || left >= 12 * 2 * 32 * WIDTH * 4);
            CHECK(t, info.counted.read.bytes + left == info.plan.traffic.read.bytes);
            CHECK(t, info.counted.upload.bytes + left == info.plan.traffic.upload.bytes);
            CHECK(t, info.counted.read.calls == info.plan.traffic.read.calls);
        }
        end_fetching(&f);
    }
}

/* The place of the weight's bucket on the disk; -1: it is not there. */
static long place_of(const char *text, const char *name)
{
    char called[60], bucket[60];
    const char *at = text;
    int id = 0;
    long place = -1;
    snprintf(called, sizeof called, "= param \"%s\"", name);
    if (!(at = strstr(text, called))) return -1;
    while (at > text && at[-1] != '\n') at--;
    if (sscanf(at, "%%%d", &id) != 1) return -1;
    snprintf(bucket, sizeof bucket, "= bucket %%%d {", id);
    at = strstr(text, bucket);
    at = at ? strstr(at, " disk @") : NULL;
    return at && sscanf(at, " disk @%ld", &place) == 1 ? place : -1;
}

/* Damage on the disk is an error of the step that names the weight and the expert. */
TEST_ONCE(fetched_experts_are_named_in_errors)
{
    static fetching f;
    char path[800];
    unsigned char byte;
    long at;
    int file;
    test_defer(t, end_fetching, &f);
    if (!start_fetching(t, &f, "zero experts_apart; offload parameters=disk; memory threads=1"))
        return;
    OK(t, step_of_words(&f, 1), zf_program_error(f.program));
    at = 4096 + place_of(f.text, "h.1.up") + 100;
    file = only_file(test_path("fetched"), path);
    CHECK(t, at > 4096 && file >= 0 && pread(file, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK(t, pwrite(file, &byte, 1, at) == 1 && fsync(file) == 0);
    close(file);
    GIVES(t, step_of_words(&f, 1), ZF_ERR_FORMAT, zf_program_error(f.program));
    if (!strstr(zf_program_error(f.program), ": expert ") ||
        !strstr(zf_program_error(f.program), " of h.1.up, byte ") ||
        !strstr(zf_program_error(f.program), "the disk gives back other bytes"))
        test_fail(t, __FILE__, __LINE__, "h.1.up", zf_program_error(f.program));
    end_fetching(&f);
}

/* ------------------------------------------------------------------------------------- texts */

static const char fetched[] = "zero stage=3 world=2 micro_batches=1\n"
                              "%2  = param \"w\" : f32[4,128,8] disk\n"
                              "%3  = bucket %2 {at=[0] size=4096 world=2} : f32[2048] disk\n"
                              "%1  = input \"x\" : f32[8,8]\n"
                              "%4  = input \"of\" : i32[4,2]\n"
                              "%5  = expert_rows %4 {experts=4 rows=8} : i32[8]\n"
                              "%6  = saved %5 : i32[4,2]\n"
                              "%7  = all_gather %6 {world=2} : i32[16]\n"
                              "%8  = copy %7 {to=host} : i32[16] host\n"
                              "%9  = copy %3, %8 {to=host experts=4 each=1024 world=2} : f32[2048] "
                              "host queue=read\n"
                              "      wait %9\n"
                              "%10 = copy %9, %7 {experts=4 each=1024 world=2} : f32[2048]\n"
                              "%11 = all_gather %10 {world=2} : f32[4096]\n"
                              "%12 = view %11 {shape=[4,128,8]} : f32[4,128,8]\n"
                              "%13 = grouped_linear %1, %12, %6 : f32[8,128]\n"
                              "      release %11\n"
                              "      output %13 \"y\"\n";

TEST_ONCE(fetched_experts_are_read_by_their_bounds)
{
    static const struct {
        const char *from, *to, *error; /* error NULL: it is none */
    } list[] = {
        {"", "", NULL},
        {"copy %3, %8 {to=host", "copy %3, %7 {to=host",
         "the bounds of rows lie in the space device, and the result in host"},
        {"      wait %9\n", "", "it reads %9 while copy %9 on queue read writes it"},
        {"queue=read\n", "queue=write\n", "on queue write there are copies of its direction"},
        {"{experts=4 each=1024 world=2} : f32[2048]\n%11", "{world=2} : f32[2048]\n%11",
         "0 experts of 0 elements each are no shard"},
        {"{experts=4 each=1024 world=2} : f32[2048]\n%11",
         "{experts=4 each=1025 world=2} : f32[2048]\n%11",
         "4 experts of 1025 elements each are no shard of 2048 elements, one of 2"},
        {"{experts=4 each=1024 world=2} : f32[2048]\n%11",
         "{experts=3 each=1024 world=2} : f32[2048]\n%11",
         "the bounds of rows must be i32 [parts 3, 2]"},
        {"copy %9, %7 {experts=4", "copy %9, %6 {experts=4",
         "it is one of 2 shards: the bounds must be those of all ranks"},
        {"%11 = all_gather %10",
         "%20 = copy %10, %8 {to=host experts=4 each=1024 world=2} : f32[2048] host\n"
         "%11 = all_gather %10",
         "experts with rows are copied from a disk to host memory, and from there to the device"},
        {"%13 = grouped_linear %1, %12, %6",
         "%20 = input \"other\" : i32[4,2]\n%13 = grouped_linear %1, %12, %20",
         "%12 has only the experts with rows by %6, and it reads others"},
        {"      release %11\n", "%20 = relu %12 : f32[4,128,8]\n",
         "%12 has only the experts with rows by %6, and it reads others"},
        {"      release %11\n", "      output %11 \"z\"\n",
         "%11 has only the experts with rows by %6, and it reads others"},
        {"%12 = view %11 {shape=[4,128,8]} : f32[4,128,8]\n%13 = grouped_linear %1, %12, %6 : "
         "f32[8,128]",
         "%12 = view %11 {shape=[4,64,8]} : f32[4,64,8]\n%13 = grouped_linear %1, %12, %6 : "
         "f32[8,64]",
         "%12 must be [4, ...] of 1024 elements each"},
    };
    for (size_t k = 0; k < sizeof list / sizeof *list && !t->failed; k++)
        check_mistake(t, fetched, list[k].from, list[k].to, list[k].error);
}
