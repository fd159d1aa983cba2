/* Runs a graph's text and keeps its numbers. Names are found in the text, so the public interface
 * is enough. */
#include "../../tools/pass.h"
#include "numbers.h"

#include <stdio.h>

double seeded(const char *name, int64_t i)
{
    uint64_t x = 0xcbf29ce484222325u;
    for (; *name; name++) x = (x ^ (unsigned char)*name) * 0x100000001b3u;
    x += ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) / 4503599627370496.0 - 1; /* 53 bits over 2^52 */
}

/* Rounds to nearest even, as bf16 and f16 have it; for values within [-1, 1]. */
static uint16_t narrow(zf_dtype dtype, double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (dtype == ZF_BF16) return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (fabs(value) < 0.000061035156250)
        return value < 0 ? 0x8000 : 0; /* no subnormals needed here */
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)((bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - (112u << 23)) >> 13);
}

static void set(unsigned char *data, zf_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case ZF_F32: ((float *)data)[i] = (float)value; break;
    case ZF_F64: ((double *)data)[i] = value; break;
    case ZF_BF16:
    case ZF_F16: ((uint16_t *)data)[i] = narrow(dtype, value); break;
    case ZF_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case ZF_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    case ZF_U8:
    case ZF_BOOL: data[i] = value != 0; break;
    }
}

static double widen(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static double widen_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                   : exponent == 0 ? ldexp(fraction, -24)
                                   : ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

double number_at(const number *n, int64_t i)
{
    switch (n->dtype) {
    case ZF_F16: return widen_f16(((const uint16_t *)n->data)[i]);
    case ZF_BF16: return widen(((const uint16_t *)n->data)[i]);
    case ZF_F32: return ((const float *)n->data)[i];
    case ZF_F64: return ((const double *)n->data)[i];
    case ZF_I32: return ((const int32_t *)n->data)[i];
    case ZF_I64: return (double)((const int64_t *)n->data)[i];
    case ZF_U8:
    case ZF_BOOL: return n->data[i];
    default: return NAN;
    }
}

int64_t number_count(const number *n) { return (int64_t)(n->bytes / zf_dtype_size(n->dtype)); }

static double value_of(const char *name, zf_dtype dtype, int64_t i)
{
    double x = seeded(name, i);
    if (!strcmp(name, "lr")) return 0.01;
    if (dtype == ZF_U8 || dtype == ZF_BOOL) return x < 0;
    if (dtype != ZF_I32 && dtype != ZF_I64) return x;
    if (strstr(name, "label") && x > 0.5) return -100;
    return floor((x + 1) * 1.5);
}

/* The first row of a piece of a tensor (zf_tile), "w[32:64]"; *length: that of the whole's name. */
static int64_t piece_row(const char *name, size_t *length)
{
    const char *mark = strrchr(name, '[');
    long long row = 0, end = 0;
    *length = strlen(name);
    if (!mark || sscanf(mark, "[%lld:%lld]", &row, &end) != 2) return 0;
    *length = (size_t)(mark - name);
    return row;
}

/* The seeded values of one slot of the global batch; of a piece, those that its whole has there. */
static zf_status write_slot(zf_program *program, zf_tensor x, int64_t slot)
{
    char name[256];
    size_t bytes = zf_tensor_bytes(x), length;
    const int64_t row = piece_row(zf_tensor_name(x), &length);
    unsigned char *data = malloc(bytes + 1);
    int64_t count = (int64_t)(bytes / zf_dtype_size(zf_tensor_dtype(x)));
    zf_status status;
    int64_t at = row ? row * (count / zf_tensor_shape(x).dims[0]) : slot * count;
    if (!data) return ZF_ERR_NOMEM;
    snprintf(name, sizeof name, "%.*s", (int)length, zf_tensor_name(x));
    for (int64_t i = 0; i < count; i++)
        set(data, zf_tensor_dtype(x), i, value_of(name, zf_tensor_dtype(x), at + i));
    status = zf_write(program, x, data, bytes);
    free(data);
    return status;
}

zf_status write_seeded(zf_program *program, zf_tensor x) { return write_slot(program, x, 0); }

char *text_of(const zf_graph *graph)
{
    size_t length = zf_graph_text(graph, NULL, 0);
    char *text = malloc(length + 1);
    if (text) zf_graph_text(graph, text, length + 1);
    return text;
}

char *text_after(test *t, const char *graph, const char *passes)
{
    char message[600] = "", *out = NULL;
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_parse(graph, strlen(graph), NULL, &error);
    if (g && !pass_run(g, passes, NULL, message, sizeof message)) out = text_of(g);
    else test_fail(t, __FILE__, __LINE__, passes, g ? message : error.text);
    zf_graph_free(g);
    return out;
}

/* Also in "cast %1 : f32[4]" and "one_hot %1 {classes=4} : f32[2,4]", which leave to=f32 out. */
char *text_in_f64(const char *graph)
{
    size_t casts = 1;
    char *out, *to;
    for (const char *at = graph; (at = strstr(at, " cast %")) != NULL; at++) casts++;
    for (const char *at = graph; (at = strstr(at, " one_hot %")) != NULL; at++) casts++;
    out = to = malloc(strlen(graph) + 9 * casts + 1);
    for (; out && *graph; graph++) {
        if (!strncmp(graph, " one_hot %", 10)) {
            const size_t end = strcspn(graph, "}");
            const char *type = strstr(graph, " to=");
            memcpy(to, graph, end);
            to += end;
            if (!type || type > graph + end) memcpy(to, " to=f64", 7), to += 7;
            graph += end;
        }
        if (!strncmp(graph, " cast %", 7) && strcspn(graph, "{") > strcspn(graph, "\n")) {
            size_t operand = strcspn(graph, ":");
            memcpy(to, graph, operand);
            memcpy(to + operand, "{to=f64} ", 9);
            to += operand + 9, graph += operand;
        }
        *to++ = *graph;
        if (strncmp(graph, "f32", 3)) continue;
        *to++ = '6', *to++ = '4';
        graph += 2;
    }
    if (out) *to = '\0';
    return out;
}

/* ------------------------------------------------------------------------------------- names */

/* The next name in the text on a line of `op`; *at moves past it. */
static bool next_name(const char **at, const char *op, char name[256])
{
    const char *line = *at;
    while (*line) {
        const char *end = strchr(line, '\n'), *word = line + strspn(line, " "), *quote, *equals;
        if (!end) end = line + strlen(line);
        equals = *word == '%' ? memchr(word, '=', (size_t)(end - word)) : NULL;
        if (*word == '%') word = equals ? equals + 2 : end;
        quote = memchr(line, '"', (size_t)(end - line));
        if (quote && !strncmp(word, op, strlen(op)) && word[strlen(op)] == ' ') {
            size_t length = strcspn(quote + 1, "\"");
            if (length > 255) length = 255;
            memcpy(name, quote + 1, length);
            name[length] = '\0';
            *at = *end ? end + 1 : end;
            return true;
        }
        line = *end ? end + 1 : end;
    }
    return false;
}

/* ----------------------------------------------------------------------------------- running */

enum { MOST_RANKS = 8 };

/* A graph on as many ranks as it is for, in lockstep. */
typedef struct ranks {
    int32_t world;
    int64_t micro_batches;
    zf_comm comms[MOST_RANKS]; /* say who is who; lockstep needs no more */
    zf_graph *graphs[MOST_RANKS];
    zf_program *programs[MOST_RANKS];
    zf_lockstep_desc lockstep;
} ranks;

static bool failed(zf_error *error, zf_status status, const char *text)
{
    if (!error->status) {
        error->status = status;
        snprintf(error->text, sizeof error->text, "%s", text);
    }
    return false;
}

static void close_ranks(ranks *r)
{
    for (int32_t k = 0; k < MOST_RANKS; k++) zf_program_free(r->programs[k]);
    for (int32_t k = 0; k < MOST_RANKS; k++) zf_graph_free(r->graphs[k]);
}

/* Makes every gradient readable as "gradient:PARAM". */
static void add_gradients(zf_graph *g)
{
    for (int32_t k = 0; k < zf_param_count(g); k++) {
        char name[300];
        zf_tensor param = zf_param_at(g, k), gradient = zf_gradient(g, param);
        snprintf(name, sizeof name, "gradient:%s", zf_tensor_name(param));
        if (zf_valid(gradient)) zf_output(gradient, name);
    }
}

static bool open_ranks(ranks *r, const char *text, const numbers_desc *d,
                       const zf_compile_desc *compile, zf_error *error)
{
    int world = 1;
    long long micro = 1;
    const char *line = strstr(text, "zero stage=");
    *r = (ranks){.world = 1, .micro_batches = 1};
    if (line) sscanf(line, "zero stage=%*d world=%d micro_batches=%lld", &world, &micro);
    if (world < 1 || world > MOST_RANKS) return failed(error, ZF_ERR_LIMIT, "more than 8 ranks");
    r->world = world, r->micro_batches = micro;
    for (int32_t k = 0; k < world; k++) {
        zf_graph *g = r->graphs[k] = zf_graph_parse(text, strlen(text), NULL, error);
        zf_compile_desc c = *compile;
        if (!g) return false;
        if (!d->no_gradients && !line && !strstr(text, "\npeak ")) add_gradients(g);
        if (!line && d->slots > 1) {
            zf_zero(g, &(zf_zero_desc){.micro_batches = d->slots});
            r->micro_batches = d->slots;
        }
        r->comms[k] = (zf_comm){.rank = k, .world = world};
        if (world > 1) c.comm = &r->comms[k];
        if (!(r->programs[k] = zf_compile(g, &c)))
            return failed(error, zf_graph_status(g), zf_graph_error(g));
    }
    r->lockstep = (zf_lockstep_desc){r->programs, world, d->seed};
    return true;
}

/* Keeps the value called `name` as `kept`. Pieces of one tensor follow each other in one number. */
static bool keep(numbers *out, ranks *r, int step, const char *kind, const char *name,
                 const char *kept, zf_error *error)
{
    zf_tensor x = zf_graph_find(r->graphs[0], name);
    number *list = realloc(out->list, (size_t)(out->count + 1) * sizeof *list), *n = NULL;
    size_t bytes = zf_tensor_bytes(x), length;
    const int64_t row = piece_row(kept, &length);
    unsigned char *data;
    char full[300];
    if (!list) return error->status = ZF_ERR_NOMEM, false;
    out->list = list;
    snprintf(full, sizeof full, "%d %s %.*s", step, kind, (int)length, kept);
    for (int k = 0; row && k < out->count; k++)
        if (!strcmp(list[k].name, full)) n = &list[k];
    if (!n) {
        n = &list[out->count++];
        *n = (number){.dtype = zf_tensor_dtype(x)};
        memcpy(n->name, full, sizeof full);
    }
    if (!(data = realloc(n->data, n->bytes + bytes + 1))) return error->status = ZF_ERR_NOMEM, false;
    n->data = data, data += n->bytes, n->bytes += bytes;
    if (strcmp(kind, "param") && strcmp(kind, "state")) {
        error->status = zf_read(r->programs[0], x, data, bytes);
        if (error->status)
            snprintf(error->text, sizeof error->text, "%s", zf_program_error(r->programs[0]));
    } else {
        zf_lockstep_read(&r->lockstep, name, data, bytes, error);
    }
    return !error->status;
}

static bool keep_all(numbers *out, ranks *r, const char *text, int step, zf_error *error)
{
    static const char *const kinds[] = {"output", "param", "state"};
    char name[256];
    for (int k = 0; k < 3; k++)
        for (const char *at = text; next_name(&at, kinds[k], name);) {
            bool gradient = !strncmp(name, "gradient:", 9);
            if (!strncmp(name, "loco.", 5)) continue; /* each rank has its own */
            if (!keep(out, r, step, gradient ? "gradient" : kinds[k], name,
                      gradient ? name + 9 : name, error))
                return false;
        }
    return true;
}

/* Leaves of `kind` in `text` get the values of the slot that rank k runs as micro-batch m. */
static bool write_all(ranks *r, const char *text, const char *kind, int32_t k, int64_t m,
                      zf_error *error)
{
    char name[256];
    bool input = !strcmp(kind, "input");
    for (const char *at = text; next_name(&at, kind, name);) {
        const zf_tensor x = zf_graph_find(r->graphs[k], name);
        zf_status status = ZF_OK;
        if (zf_param_blocks(x).bits) continue; /* arbitrary bytes are no records */
        status = write_slot(r->programs[k], x, input ? m * r->world + k : 0);
        if (status) return failed(error, status, zf_program_error(r->programs[k]));
    }
    return true;
}

static bool one_step(ranks *r, const char *text, zf_error *error)
{
    for (int64_t m = 0; m < r->micro_batches; m++) {
        bool last = m == r->micro_batches - 1;
        zf_status status;
        for (int32_t k = 0; k < r->world; k++)
            if (!write_all(r, text, "input", k, m, error)) return false;
        if (r->world > 1) {
            status = last ? zf_lockstep_step(&r->lockstep, error)
                          : zf_lockstep_micro(&r->lockstep, error);
            if (status) return false;
        } else {
            status = last ? zf_step(r->programs[0]) : zf_micro(r->programs[0]);
            if (status) return failed(error, status, zf_program_error(r->programs[0]));
        }
    }
    return true;
}

static bool step_all(numbers *out, ranks *r, const char *text, const numbers_desc *d,
                     zf_error *error)
{
    const int steps = d->steps ? d->steps : 1;
    for (int32_t k = 0; k < r->world && !d->first_values; k++)
        if (!write_all(r, text, "param", k, 0, error)) return false;
    for (int step = 1; step <= steps; step++) {
        if (!one_step(r, text, error)) return false;
        if ((step == 1 || step == steps) && !keep_all(out, r, text, step, error)) return false;
    }
    return true;
}

bool numbers_of(numbers *out, const char *text, const numbers_desc *desc, zf_error *error)
{
    const numbers_desc none = {0}, *d = desc ? desc : &none;
    zf_backend *cpu =
        zf_cpu_backend(&(zf_cpu_desc){.reference = !d->fast, .threads = d->threads}, error);
    zf_graph *donor =
        cpu && d->donor ? zf_graph_parse(d->donor, strlen(d->donor), NULL, error) : NULL;
    zf_compile_desc compile = {.backend = cpu,
                               .seed = 7,
                               .offload_dir = d->offload_dir,
                               .allow_nan = true, /* numbers are compared, not judged */
                               .evaluate = d->evaluate,
                               .no_reuse = d->no_reuse,
                               .poison = d->poison};
    zf_program *first = NULL;
    ranks r = {0};
    char *full = NULL;
    bool good = false;
    *out = (numbers){0};
    if (donor) first = zf_compile(donor, &(zf_compile_desc){.backend = cpu, .seed = 7});
    compile.store = zf_program_store(first);
    if (cpu && (!d->donor || first) && open_ranks(&r, text, d, &compile, error) &&
        (full = text_of(r.graphs[0])))
        good = step_all(out, &r, full, d, error);
    if (!good && !error->status) error->status = ZF_ERR_NOMEM;
    free(full);
    close_ranks(&r);
    zf_program_free(first);
    zf_graph_free(donor);
    zf_backend_free(cpu);
    if (!good) numbers_free(out);
    return good;
}

void numbers_free(numbers *n)
{
    for (int k = 0; k < n->count; k++) free(n->list[k].data);
    free(n->list);
    *n = (numbers){0};
}

const number *numbers_find(const numbers *n, const char *name)
{
    for (int k = 0; k < n->count; k++)
        if (!strcmp(n->list[k].name, name)) return &n->list[k];
    return NULL;
}

static double largest(const number *x)
{
    double most = 0;
    for (int64_t i = 0; i < number_count(x); i++) most = fmax(most, fabs(number_at(x, i)));
    return most;
}

int numbers_compare(const numbers *a, const numbers *b, const char *prefix, char *why, size_t size)
{
    return numbers_compare_within(a, b, prefix, 0, why, size);
}

int numbers_compare_within(const numbers *a, const numbers *b, const char *prefix, double within,
                           char *why, size_t size)
{
    int compared = 0;
    for (int k = 0; k < a->count; k++) {
        const number *x = &a->list[k], *y = numbers_find(b, x->name);
        if (!y || strncmp(strchr(x->name, ' ') + 1, prefix, strlen(prefix))) continue;
        compared++;
        if (x->dtype != y->dtype || x->bytes != y->bytes) {
            snprintf(why, size, "%s is another type", x->name);
            return -1;
        }
        if (!memcmp(x->data, y->data, x->bytes)) continue;
        double bound = within > 0 ? within * largest(x) : 0;
        for (int64_t i = 0; i < number_count(x); i++) {
            size_t element = zf_dtype_size(x->dtype);
            double p = number_at(x, i), q = number_at(y, i);
            if (!memcmp(x->data + (size_t)i * element, y->data + (size_t)i * element, element))
                continue;
            if (isnan(p) && isnan(q) && element >= 4) continue;
            if (x->dtype <= ZF_F64 && fabs(p - q) <= bound && bound > 0) continue;
            snprintf(why, size, "%s: element %lld is %.9g and %.9g", x->name, (long long)i, p, q);
            return -1;
        }
    }
    return compared;
}

long long numbers_least_peak(const char *text)
{
    static const char *const messages[] = {
        "zf_recompute: parameters, gradients, states and inputs alone take ",
        "zf_recompute: the plan takes "};
    long long limit = 1;
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_parse(text, strlen(text), NULL, NULL);
        char passes[64], why[600] = "";
        pass_result status = PASS_FAILED;
        snprintf(passes, sizeof passes, "recompute memory=%lld", limit);
        if (g) status = pass_run(g, passes, NULL, why, sizeof why);
        zf_graph_free(g);
        if (k && status == PASS_DONE) return limit;
        if (status != PASS_FAILED || strncmp(why, messages[k], strlen(messages[k]))) return -1;
        limit = atoll(why + strlen(messages[k]));
    }
    return limit;
}
