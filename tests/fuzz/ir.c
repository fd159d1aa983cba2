/* Fuzzes the text of graphs: the reader, the verifiers, simplify, the memory planner and programs.
 *
 *     make fuzz-ir, or, from the root of the source,
 *     clang -g -O1 -fsanitize=fuzzer-no-link,address,undefined -DZEROFLOW_IMPLEMENTATION -x c
 * zeroflow.h -c -o lib.o clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/ir.c lib.o -lm
 * -o fuzz-ir
 *     ./fuzz-ir -runs=1000000 -max_len=2000 corpus tests/fuzz/seeds/ir
 *
 * What parses prints as text that parses to the same graph, also after simplify and after the
 * memory pass; and a graph of few elements runs two steps, with the same values after simplify as
 * before. Half of the inputs run the fast kernels, half the reference.
 *
 * Mutations know the text: operators, numbers, operands and whole lines are exchanged, and the
 * types that the parser then finds wrong are put right, so that many of the inputs are graphs.
 */
#include "../../zeroflow.h"

#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { IDS = 2000 }; /* graphs with larger ids are not run */

static char *text_of(const zf_graph *g)
{
    size_t length = zf_graph_text(g, NULL, 0);
    char *text = malloc(length + 1);
    REQUIRE(text && zf_graph_text(g, text, length + 1) == length && strlen(text) == length);
    return text;
}

/* The graph that the graph's text gives, which has the same text. */
static zf_graph *read_back(const zf_graph *g)
{
    zf_error error = {ZF_OK, ""};
    char *text = text_of(g), *exact = malloc(strlen(text)), *again;
    zf_graph *copy;
    memcpy(exact, text, strlen(text)); /* nothing is after its last byte */
    copy = zf_graph_parse(exact, strlen(text), NULL, &error);
    REQUIRE(copy && !error.status);
    again = text_of(copy);
    REQUIRE(!strcmp(text, again) && zf_graph_hash(copy) == zf_graph_hash(g));
    free(text);
    free(exact);
    free(again);
    return copy;
}

/* The graph has few ids and few bytes. */
static bool is_small(zf_graph *g)
{
    size_t total = 0;
    for (int32_t id = 1; id < 2 * IDS && total <= 1 << 16; id++) {
        size_t bytes = zf_tensor_bytes((zf_tensor){g, id});
        total = id < IDS && bytes <= 1 << 16            ? total + bytes
                : bytes || zf_valid((zf_tensor){g, id}) ? SIZE_MAX
                                                        : total;
    }
    return total <= 1 << 16;
}

/* A hash of the values, never 0; every NaN is the same. */
static uint64_t hash_values(zf_dtype dtype, const unsigned char *data, size_t bytes)
{
    uint64_t hash = 1;
    size_t size = zf_dtype_size(dtype);
    for (size_t i = 0; i < bytes; i += size) {
        uint64_t bits = 0;
        memcpy(&bits, data + i, size);
        if (dtype == ZF_F32 && (bits & 0x7fffffff) > 0x7f800000) bits = 0x7fc00000;
        if (dtype == ZF_BF16 && (bits & 0x7fff) > 0x7f80) bits = 0x7fc0;
        if (dtype == ZF_F16 && (bits & 0x7fff) > 0x7c00) bits = 0x7e00;
        if (dtype == ZF_F64 && (bits & INT64_MAX) > (uint64_t)0x7ff << 52)
            bits = (uint64_t)0x7ff8 << 48;
        hash = (hash ^ bits) * 0x100000001b3u + 1;
    }
    return hash | 1;
}

/* Runs two steps and hashes what can be read: 0 for the ids that cannot. False when it does not
 * compile or run. */
static bool run(zf_graph *g, zf_backend *cpu, bool no_reuse, uint64_t values[IDS])
{
    zf_program *p = zf_compile(
        g, &(zf_compile_desc){
               .backend = cpu, .memory_limit = 1 << 22, .seed = 5, .no_reuse = no_reuse});
    bool good = p && !zf_step(p) && !zf_step(p);
    REQUIRE(p || zf_graph_status(g));
    memset(values, 0, IDS * sizeof *values);
    for (int32_t id = 1; id < IDS && good; id++) {
        zf_tensor x = {g, id};
        unsigned char *copy = malloc(zf_tensor_bytes(x) + 1);
        if (zf_valid(x) && !zf_read(p, x, copy, zf_tensor_bytes(x)))
            values[id] = hash_values(zf_tensor_dtype(x), copy, zf_tensor_bytes(x));
        free(copy);
    }
    zf_program_free(p);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static zf_backend *cpus[2];
    static uint64_t before[IDS], after[IDS];
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse((const char *)data, size, NULL, &error), *placed, *simple;
    bool small, ran = false;
    for (int k = 0; k < 2; k++)
        if (!cpus[k]) cpus[k] = zf_cpu_backend(&(zf_cpu_desc){.reference = k}, NULL);
    REQUIRE(!g == (error.status != ZF_OK) && !*error.text == !error.status);
    if (!g) return 0;

    small = is_small(g);
    placed = read_back(g);
    simple = read_back(g);
    if (!zf_memory(placed, NULL)) zf_graph_free(read_back(placed));
    if (small) ran = run(g, cpus[size % 2], true, before);
    if (!zf_simplify(simple)) {
        zf_graph_free(read_back(simple));
        /* what simplify removes may have been what failed */
        if (small && run(simple, cpus[size % 2], false, after) && ran)
            for (int32_t id = 1; id < IDS; id++)
                REQUIRE(!before[id] || !after[id] || before[id] == after[id]);
    }
    zf_graph_free(g);
    zf_graph_free(placed);
    zf_graph_free(simple);
    return 0;
}

/* ----------------------------------------------------------------------------------- mutations */

typedef struct edit {
    char *text; /* terminated */
    size_t size, room;
    uint64_t state;
} edit;

static size_t pick(edit *e, size_t n)
{
    e->state = e->state * 6364136223846793005u + 1442695040888963407u;
    return n ? (size_t)(e->state >> 33) % n : 0;
}

/* text[at..at + old) becomes `with`, if there is room. */
static void replace(edit *e, size_t at, size_t old, const char *with)
{
    size_t length = strlen(with);
    if (at + old > e->size || e->size - old + length >= e->room) return;
    memmove(e->text + at + length, e->text + at + old, e->size - at - old + 1);
    memcpy(e->text + at, with, length);
    e->size += length - old;
}

/* The start of a line near a random place. */
static size_t pick_line(edit *e)
{
    size_t at = pick(e, e->size + 1);
    while (at > 0 && e->text[at - 1] != '\n') at--;
    return at;
}

static size_t line_length(const edit *e, size_t at) { return strcspn(e->text + at, "\n"); }

/* The next of `set` after a random place, or the end. */
static size_t pick_any(edit *e, const char *set)
{
    size_t at = pick(e, e->size + 1);
    return at + strcspn(e->text + at, set);
}

static void mutate_once(edit *e)
{
    static const char *const numbers[] = {"0",
                                          "1",
                                          "2",
                                          "3",
                                          "4",
                                          "5",
                                          "7",
                                          "8",
                                          "16",
                                          "17",
                                          "64",
                                          "100",
                                          "1000",
                                          "-1",
                                          "-2",
                                          "65536",
                                          "2147483648",
                                          "4611686018427387904",
                                          "9223372036854775807",
                                          "0.5",
                                          "1e308"};
    static const char *const types[] = {"f32[", "bf16[", "f16[", "f64[",
                                        "i32[", "i64[",  "u8[",  "bool["};
    char line[400], text[460];
    size_t at, length;
    switch (pick(e, 9)) {
    case 0: /* an operator */
        at = pick_line(e);
        length = line_length(e, at);
        if (strcspn(e->text + at, "=") < length) at += strcspn(e->text + at, "=") + 1;
        at += strspn(e->text + at, " ");
        replace(e, at, strspn(e->text + at, "abcdefghijklmnopqrstuvwxyz_"),
                zf_op_name((zf_op)(1 + pick(e, ZF_OP_COUNT - 1))));
        break;
    case 1: /* a number */
    case 2:
        at = pick_any(e, "0123456789");
        replace(e, at, strspn(e->text + at, "-0123456789."),
                numbers[pick(e, sizeof numbers / sizeof *numbers)]);
        break;
    case 3: /* an operand */
        at = pick_any(e, "%");
        if (!e->text[at]) break;
        snprintf(text, sizeof text, "%d", 1 + (int)pick(e, 30));
        replace(e, at + 1, strspn(e->text + at + 1, "0123456789"), text);
        break;
    case 4: /* a line less */
        at = pick_line(e);
        length = line_length(e, at);
        replace(e, at, length + (e->text[at + length] == '\n'), "");
        break;
    case 5: /* a line again, with another id, elsewhere */
        at = pick_line(e);
        snprintf(line, sizeof line, "%.*s", (int)line_length(e, at), e->text + at);
        if (*line == '%')
            snprintf(text, sizeof text, "%%%d%s\n", 31 + (int)pick(e, 40),
                     line + 1 + strspn(line + 1, "0123456789"));
        else snprintf(text, sizeof text, "%s\n", line);
        replace(e, pick_line(e), 0, text);
        break;
    case 6: /* a dtype */
        at = pick_any(e, ":");
        at += strcspn(e->text + at, " ") + 1;
        if (at < e->size)
            replace(e, at, strcspn(e->text + at, "[\n"),
                    types[pick(e, sizeof types / sizeof *types)]);
        break;
    case 7: /* something is read at the end */
        snprintf(text, sizeof text, "output %%%d \"o%d\"\n", 1 + (int)pick(e, 30),
                 (int)pick(e, 1000));
        replace(e, pick_line(e), 0, text);
        break;
    default: /* another operand more */
        at = pick_any(e, "%");
        snprintf(text, sizeof text, "%%%d, ", 1 + (int)pick(e, 30));
        if (e->text[at]) replace(e, at, 0, text);
    }
}

/* Puts right the types that the parser says are wrong: "LINE:COLUMN: the operands of NAME give
 * TYPE". */
static void repair(edit *e)
{
    for (int round = 0; round < 20; round++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(e->text, e->size, NULL, &error);
        const char *give = strstr(error.text, " give ");
        size_t at = 0, colon;
        long line = strtol(error.text, NULL, 10);
        zf_graph_free(g);
        if (!strstr(error.text, "the operands of ") || !give) return;
        while (--line > 0) at += line_length(e, at) + 1;
        colon = line_length(e, at);
        while (colon > 0 && e->text[at + colon] != ':') colon--;
        at += colon + 1;
        replace(e, at, strcspn(e->text + at, "]\n") + 1, give + 5);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    edit e = {.room = most, .state = seed * 0x9e3779b97f4a7c15u + 1};
    if (most < 2 || pick(&e, 6) == 0) return LLVMFuzzerMutate(data, size, most);
    e.text = malloc(most + 1);
    if (size >= most) size = most - 1;
    memcpy(e.text, data, size);
    for (size_t i = 0; i < size; i++)
        if (!e.text[i]) e.text[i] = ' ';
    e.text[e.size = size] = '\0';
    for (size_t n = 1 + pick(&e, 3); n > 0; n--) mutate_once(&e);
    repair(&e);
    memcpy(data, e.text, e.size);
    size = e.size;
    free(e.text);
    return size;
}
