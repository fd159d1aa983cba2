/* Runs a graph's text and keeps its numbers. Names are found in the text, so that the public
 * interface is enough. */
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

double number_at(const number *n, int64_t i)
{
    switch (n->dtype) {
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

zf_status write_seeded(zf_program *program, zf_tensor x)
{
    size_t bytes = zf_tensor_bytes(x);
    unsigned char *data = malloc(bytes + 1);
    zf_status status;
    if (!data) return ZF_ERR_NOMEM;
    for (int64_t i = 0; i < (int64_t)(bytes / zf_dtype_size(zf_tensor_dtype(x))); i++)
        set(data, zf_tensor_dtype(x), i, value_of(zf_tensor_name(x), zf_tensor_dtype(x), i));
    status = zf_write(program, x, data, bytes);
    free(data);
    return status;
}

char *text_of(const zf_graph *graph)
{
    size_t length = zf_graph_text(graph, NULL, 0);
    char *text = malloc(length + 1);
    if (text) zf_graph_text(graph, text, length + 1);
    return text;
}

/* ------------------------------------------------------------------------------------- names */

/* The next name in the text that stands on a line of `op`; *at moves behind it. */
static bool next_name(const char **at, const char *op, char name[256])
{
    const char *line = *at;
    while (*line) {
        const char *end = strchr(line, '\n'), *word = line + strspn(line, " "), *quote;
        if (!end) end = line + strlen(line);
        if (*word == '%') word = strstr(word, "= ") ? strstr(word, "= ") + 2 : end;
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

static bool keep(numbers *out, zf_program *p, int step, const char *kind, const char *name,
                 zf_tensor x, zf_error *error)
{
    number *list = realloc(out->list, (size_t)(out->count + 1) * sizeof *list), *n;
    if (!list) return error->status = ZF_ERR_NOMEM, false;
    out->list = list;
    n = &list[out->count++];
    *n = (number){.dtype = zf_tensor_dtype(x), .bytes = zf_tensor_bytes(x)};
    snprintf(n->name, sizeof n->name, "%d %s %.255s", step, kind, name);
    n->data = malloc(n->bytes + 1);
    if (!n->data) return error->status = ZF_ERR_NOMEM, false;
    error->status = zf_read(p, x, n->data, n->bytes);
    if (!error->status) return true;
    snprintf(error->text, sizeof error->text, "%s", zf_program_error(p));
    return false;
}

static bool keep_all(numbers *out, zf_graph *g, zf_program *p, const char *text, int step,
                     zf_error *error)
{
    static const char *const kinds[] = {"output", "param", "state"};
    char name[256];
    for (int k = 0; k < 3; k++)
        for (const char *at = text; next_name(&at, kinds[k], name);) {
            bool gradient = !strncmp(name, "gradient:", 9);
            if (!keep(out, p, step, gradient ? "gradient" : kinds[k], gradient ? name + 9 : name,
                      zf_graph_find(g, name), error))
                return false;
        }
    return true;
}

static bool step_all(numbers *out, zf_graph *g, zf_program *p, const char *text, int steps,
                     zf_error *error)
{
    char name[256];
    for (int k = 0; k < 2 && !error->status; k++)
        for (const char *at = text; next_name(&at, k ? "param" : "input", name) && !error->status;)
            error->status = write_seeded(p, zf_graph_find(g, name));
    for (int step = 1; step <= steps && !error->status; step++) {
        error->status = zf_step(p);
        if (!error->status && (step == 1 || step == steps)) keep_all(out, g, p, text, step, error);
    }
    if (error->status && !*error->text)
        snprintf(error->text, sizeof error->text, "%s", zf_program_error(p));
    return !error->status;
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

bool numbers_of(numbers *out, const char *text, const numbers_desc *desc, zf_error *error)
{
    const numbers_desc none = {0}, *d = desc ? desc : &none;
    zf_backend *cpu =
        zf_cpu_backend(&(zf_cpu_desc){.reference = !d->fast, .threads = d->threads}, error);
    zf_graph *g = cpu ? zf_graph_parse(text, strlen(text), NULL, error) : NULL;
    zf_graph *donor =
        g && d->donor ? zf_graph_parse(d->donor, strlen(d->donor), NULL, error) : NULL;
    zf_compile_desc compile = {.backend = cpu,
                               .seed = 7,
                               .evaluate = d->evaluate,
                               .no_reuse = d->no_reuse,
                               .poison = d->poison};
    zf_program *p = NULL;
    char *full = NULL;
    bool good = false;
    *out = (numbers){0};
    if (donor) compile.share = zf_compile(donor, &(zf_compile_desc){.backend = cpu, .seed = 7});
    if (g && !d->no_gradients && !strstr(text, "\npeak ")) add_gradients(g);
    if (g && (!d->donor || compile.share)) p = zf_compile(g, &compile);
    if (p && (full = text_of(g))) good = step_all(out, g, p, full, d->steps ? d->steps : 1, error);
    if (!good && !error->status) {
        error->status = g ? zf_graph_status(g) : ZF_ERR_NOMEM;
        if (g) snprintf(error->text, sizeof error->text, "%s", zf_graph_error(g));
    }
    free(full);
    zf_program_free(p);
    zf_program_free(compile.share);
    zf_graph_free(donor);
    zf_graph_free(g);
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

int numbers_compare(const numbers *a, const numbers *b, const char *prefix, char *why, size_t size)
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
        for (int64_t i = 0; i < number_count(x); i++) {
            size_t element = zf_dtype_size(x->dtype);
            double p = number_at(x, i), q = number_at(y, i);
            if (!memcmp(x->data + (size_t)i * element, y->data + (size_t)i * element, element))
                continue;
            if (isnan(p) && isnan(q) && element >= 4) continue;
            snprintf(why, size, "%s: element %lld is %.9g and %.9g", x->name, (long long)i, p, q);
            return -1;
        }
    }
    return compared;
}
