#define _POSIX_C_SOURCE 200809L
#include "../base/fail.h"
#include "../base/file.h"
#include "weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* SPAN: values that are read at a time, whole blocks of each quantisation. */
enum { PATH = 1024, SPAN = 8192 };

/* An open file. */
typedef struct shard {
    char path[PATH];
    zf_safetensors *file;
} shard;

typedef struct item {
    const char *name; /* without prefixes of wrappers */
    int32_t shard, at;
    bool taken;
} item;

struct weights {
    char path[PATH];
    shard *shards;
    item *items;
    int32_t shard_count, count;
};

static zf_status no_memory(zf_error *error)
{
    return fail_with(error, ZF_ERR_NOMEM, "out of memory");
}

const char *shape_text(char text[SHAPE_TEXT], zf_shape shape)
{
    int at = snprintf(text, SHAPE_TEXT, "[");
    for (int axis = 0; axis < shape.rank; axis++)
        at += snprintf(text + at, (size_t)(SHAPE_TEXT - at), "%s%lld", axis ? "," : "",
                       (long long)shape.dims[axis]);
    snprintf(text + at, (size_t)(SHAPE_TEXT - at), "]");
    return text;
}

/* ---------------------------------------------------------------------------------- opening */

/* PyTorch's own files are Zip archives or pickle streams: programs, not data. The length at the
 * start of a safetensors file may look like a pickle. */
static bool is_pickle(const char *path)
{
    unsigned char head[4] = {0};
    const char *why;
    size_t bytes, n;
    FILE *file = file_open(path, &bytes, &why);
    if (!file) return false;
    n = fread(head, 1, sizeof head, file);
    fclose(file);
    return n == 4 && (!memcmp(head, "PK\3\4", 4) || (head[0] == 0x80 && head[1] <= 5));
}

static zf_status fail_as_pickle(zf_error *error, const char *path)
{
    return fail_with(
        error, ZF_ERR_FORMAT,
        "%s is a pickle of PyTorch, which is a program and is not run here: in Python, "
        "from_pretrained(\"DIR\").save_pretrained(\"NEW\") writes a model.safetensors",
        path);
}

/* Adds a file; its number, or -1 with *error. */
static int32_t add_shard(weights *w, const char *path, zf_error *error)
{
    shard *grown;
    for (int32_t i = 0; i < w->shard_count; i++)
        if (!strcmp(w->shards[i].path, path)) return i;
    grown = realloc(w->shards, (size_t)(w->shard_count + 1) * sizeof *grown);
    if (!grown) return no_memory(error), -1;
    w->shards = grown;
    snprintf(grown[w->shard_count].path, PATH, "%s", path);
    grown[w->shard_count].file = zf_safetensors_open(path, NULL, error);
    if (grown[w->shard_count].file) return w->shard_count++;
    if (is_pickle(path)) fail_as_pickle(error, path);
    return -1;
}

static const char *unwrapped(const char *name)
{
    static const char *const wrappers[] = {"module.", "_orig_mod."};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(wrappers[i]);
        if (!strncmp(name, wrappers[i], n)) return unwrapped(name + n);
    }
    return name;
}

/* Lists the tensors of all files. */
static zf_status list_items(weights *w, zf_error *error)
{
    int32_t count = 0;
    for (int32_t s = 0; s < w->shard_count; s++) count += zf_safetensors_count(w->shards[s].file);
    w->items = malloc((size_t)(count + 1) * sizeof *w->items);
    if (!w->items) return no_memory(error);
    for (int32_t s = 0; s < w->shard_count; s++)
        for (int32_t i = 0; i < zf_safetensors_count(w->shards[s].file); i++) {
            const char *name = unwrapped(zf_safetensors_at(w->shards[s].file, i)->name);
            if (weights_find(w, name) >= 0)
                return fail_with(error, ZF_ERR_FORMAT, "%s: there are two tensors %s",
                                 w->shards[s].path, name);
            w->items[w->count++] = (item){name, s, i, false};
        }
    return ZF_OK;
}

/* {"weight_map": {NAME: FILE beside the index, ...}}: opens the files, and checks that each has the
 * tensors that the index lists. */
static zf_status open_index(weights *w, const char *path, zf_error *error)
{
    zf_json *json = zf_json_read(path, NULL, error);
    const zf_json *map = zf_json_require(json, "weight_map", error);
    const char *slash = strrchr(path, '/');
    int32_t listed = 0, held = 0;
    for (const zf_json *v = zf_json_first(map); v && !error->status; v = zf_json_next(v)) {
        const char *file = NULL;
        char shard_path[PATH];
        int32_t s;
        if (zf_json_to_string(v, &file, error)) break;
        if (!*file || strchr(file, '/')) {
            zf_json_expected(v, error, "the name of a file beside the index");
            break;
        }
        snprintf(shard_path, sizeof shard_path, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path,
                 file);
        if ((s = add_shard(w, shard_path, error)) < 0) break;
        if (zf_safetensors_find(w->shards[s].file, zf_json_key(v, NULL)) < 0)
            fail_with(error, ZF_ERR_FORMAT, "%s: there is no tensor %s, which %s says is in it",
                      shard_path, zf_json_key(v, NULL), path);
        listed++;
    }
    for (int32_t s = 0; s < w->shard_count; s++) held += zf_safetensors_count(w->shards[s].file);
    if (!error->status && held != listed)
        fail_with(error, ZF_ERR_FORMAT, "%s: its files have %d tensors, the index lists %d", path,
                  (int)held, (int)listed);
    zf_json_free(json);
    return error->status;
}

static bool is_folder(const char *path)
{
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* The file to open in a folder. */
static zf_status look_into(char file[PATH], const char *folder, zf_error *error)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char pickle[PATH];
    for (int i = 0; i < 2; i++) {
        snprintf(file, PATH, "%s/%s", folder, names[i]);
        if (!access(file, F_OK)) return ZF_OK;
    }
    snprintf(pickle, sizeof pickle, "%s/pytorch_model.bin", folder);
    if (!access(pickle, F_OK)) return fail_as_pickle(error, pickle);
    snprintf(pickle, sizeof pickle, "%s/pytorch_model.bin.index.json", folder);
    if (!access(pickle, F_OK)) return fail_as_pickle(error, pickle);
    return fail_with(
        error, ZF_ERR_IO,
        "%s has no weights: neither model.safetensors nor model.safetensors.index.json", folder);
}

weights *weights_open(const char *path, zf_error *error)
{
    weights *w = calloc(1, sizeof *w);
    char file[PATH];
    if (!w) return no_memory(error), NULL;
    error->status = ZF_OK;
    snprintf(file, sizeof file, "%s", path);
    snprintf(w->path, sizeof w->path, "%s", path);
    if (is_folder(path)) (void)look_into(file, path, error);
    if (!error->status && ends_in(file, ".json")) (void)open_index(w, file, error);
    else if (!error->status) (void)add_shard(w, file, error);
    if (!error->status) (void)list_items(w, error);
    if (!error->status) return w;
    weights_close(w);
    return NULL;
}

void weights_close(weights *w)
{
    if (!w) return;
    for (int32_t s = 0; s < w->shard_count; s++) zf_safetensors_close(w->shards[s].file);
    free(w->shards);
    free(w->items);
    free(w);
}

/* ---------------------------------------------------------------------------------- tensors */

int32_t weights_count(const weights *w) { return w->count; }
const char *weights_name(const weights *w, int32_t index) { return w->items[index].name; }
void weights_pass(weights *w, int32_t index) { w->items[index].taken = true; }
bool weights_taken(const weights *w, int32_t index) { return w->items[index].taken; }

int32_t weights_find(const weights *w, const char *name)
{
    for (int32_t i = 0; i < w->count; i++)
        if (!strcmp(w->items[i].name, name)) return i;
    return -1;
}

static const zf_safetensors_entry *entry_of(const weights *w, int32_t index)
{
    const item *x = &w->items[index];
    return zf_safetensors_at(w->shards[x->shard].file, x->at);
}

static size_t span_at(size_t at, size_t count) { return count - at < SPAN ? count - at : SPAN; }

/* Values first..first + count - 1, at most SPAN, as f32. */
static bool read_span(weights *w, int32_t index, size_t first, size_t count, float *values,
                      zf_error *error)
{
    const zf_safetensors_entry *e = entry_of(w, index);
    const shard *from = &w->shards[w->items[index].shard];
    double data[SPAN]; /* wide enough for each dtype */
    size_t size;
    if (!e->readable || e->dtype > ZF_F64) {
        fail_with(error, ZF_ERR_DTYPE, "%s: %s is %s; F32, F64, BF16 or F16 is needed", from->path,
                  e->name, e->dtype_name);
        return false;
    }
    size = zf_dtype_size(e->dtype);
    if (zf_safetensors_read_range(from->file, w->items[index].at, first * size, data, count * size,
                                  error))
        return false;
    zf_convert(values, ZF_F32, data, e->dtype, count);
    return true;
}

/* All values as f32, which the caller frees; NULL with *error. */
static float *read_values(weights *w, int32_t index, zf_error *error)
{
    size_t count = (size_t)zf_shape_count(entry_of(w, index)->shape), at = 0;
    float *values = malloc((count + 1) * sizeof *values);
    if (!values) {
        no_memory(error);
        return NULL;
    }
    for (; at < count; at += SPAN)
        if (!read_span(w, index, at, span_at(at, count), values + at, error)) break;
    if (at >= count) return values;
    free(values);
    return NULL;
}

/* Marks a tensor as taken; false with *error where it has another shape. */
static bool begin_taking(weights *w, int32_t index, zf_shape shape, zf_error *error)
{
    const zf_safetensors_entry *e = entry_of(w, index);
    char here[SHAPE_TEXT], wanted[SHAPE_TEXT];
    w->items[index].taken = true;
    return !strcmp(shape_text(here, e->shape), shape_text(wanted, shape)) ||
           fail(error, ZF_ERR_MISMATCH,
                "%s: %s is %s, the model's is %s; do the sizes of --model fit?",
                w->shards[w->items[index].shard].path, e->name, here, wanted);
}

float *weights_take(weights *w, int32_t index, zf_shape shape, zf_error *error)
{
    return begin_taking(w, index, shape, error) ? read_values(w, index, error) : NULL;
}

bool weights_equal(weights *w, int32_t a, int32_t b, zf_error *error)
{
    const zf_safetensors_entry *x, *y;
    float left[SPAN], right[SPAN];
    size_t count;
    bool equal = true;
    if (a < 0 || b < 0) return true;
    x = entry_of(w, a), y = entry_of(w, b);
    if (x->shape.rank != y->shape.rank ||
        memcmp(x->shape.dims, y->shape.dims, (size_t)x->shape.rank * sizeof *x->shape.dims))
        return false;
    count = (size_t)zf_shape_count(x->shape);
    for (size_t at = 0; at < count && equal; at += SPAN) {
        const size_t n = span_at(at, count);
        equal = read_span(w, a, at, n, left, error) && read_span(w, b, at, n, right, error) &&
                !memcmp(left, right, n * sizeof *left);
    }
    return equal;
}

/* ----------------------------------------------------------------------------------- reports */

static void add_name(char names[WEIGHTS_NAMES], const char *name)
{
    static const char more[] = ", ...";
    size_t at = strlen(names), n = strlen(name);
    if (ends_in(names, more)) return;
    if (at + n + 2 + sizeof more > WEIGHTS_NAMES) memcpy(names + at, more, sizeof more);
    else snprintf(names + at, WEIGHTS_NAMES - at, "%s%s", at ? ", " : "", name);
}

void weights_fresh(weights_report *report, const char *name)
{
    report->fresh++;
    add_name(report->fresh_names, name);
}

void weights_unused(weights_report *report, const char *name)
{
    report->unused++;
    add_name(report->unused_names, name);
}

void weights_print(const char *path, const weights_report *report)
{
    if (report->fresh)
        printf("%s lacks %d tensors, which start anew: %s\n", path, (int)report->fresh,
               report->fresh_names);
    if (report->unused)
        printf("%s has %d tensors that are not used: %s\n", path, (int)report->unused,
               report->unused_names);
}

/* ---------------------------------------------------------------------------------- programs */

/* The master weights of a parameter; the invalid tensor if it has none. */
static zf_tensor master_of(zf_tensor param)
{
    zf_tensor master = {param.graph, 0};
    const char *optimizer;
    for (int k = 0; (optimizer = zf_optimizer_name((zf_optimizer)k)) && !zf_valid(master); k++) {
        char name[400];
        snprintf(name, sizeof name, "%s.master/%s", optimizer, zf_tensor_name(param));
        master = zf_graph_find(param.graph, name);
    }
    return master;
}

/* Values first..first + count - 1, at most SPAN and of whole blocks, into a parameter and its master
 * weights. */
static zf_status put_span(zf_program *p, zf_tensor param, zf_tensor master, size_t first, size_t count,
                          const float *values, zf_error *error)
{
    const zf_quantize_desc blocks = zf_param_blocks(param);
    const size_t unit = blocks.bits ? (size_t)blocks.block : 1,
                 units = (size_t)zf_shape_count(zf_param_shape(param)) / unit,
                 size = units ? zf_tensor_bytes(param) / units : 0;
    double rounded[SPAN]; /* wide enough for each dtype */
    zf_status status;
    if (blocks.bits) zf_quantize_values(rounded, values, count, &blocks);
    else zf_convert(rounded, zf_tensor_dtype(param), values, ZF_F32, count);
    status = zf_write_range(p, param, first / unit * size, rounded, count / unit * size);
    if (!status && zf_valid(master))
        status = zf_write_range(p, master, first * sizeof *values, values, count * sizeof *values);
    return status ? fail_with(error, status, "%s", zf_program_error(p)) : ZF_OK;
}

zf_status weights_put(zf_program *p, zf_tensor param, const float *values, zf_error *error)
{
    const zf_tensor master = master_of(param);
    const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
    zf_status status = ZF_OK;
    for (size_t at = 0; at < count && !status; at += SPAN)
        status = put_span(p, param, master, at, span_at(at, count), values + at, error);
    return status;
}

bool weights_move(weights *w, int32_t index, zf_program *p, zf_tensor param, zf_error *error)
{
    const zf_tensor master = master_of(param);
    const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
    float values[SPAN];
    bool good = begin_taking(w, index, zf_param_shape(param), error);
    for (size_t at = 0; at < count && good; at += SPAN) {
        const size_t n = span_at(at, count);
        good = read_span(w, index, at, n, values, error) &&
               !put_span(p, param, master, at, n, values, error);
    }
    return good;
}

zf_status weights_get(zf_program *p, zf_tensor param, float *values, zf_error *error)
{
    zf_tensor from = zf_valid(master_of(param)) ? master_of(param) : param;
    const zf_quantize_desc blocks = zf_param_blocks(from);
    const size_t count = (size_t)zf_shape_count(zf_param_shape(from));
    const bool plain = !blocks.bits && zf_tensor_dtype(from) == ZF_F32;
    void *data = plain ? NULL : malloc(zf_tensor_bytes(from) + 1);
    zf_status status;
    if (!plain && !data) return no_memory(error);
    if (plain) status = zf_read(p, from, values, count * sizeof *values);
    else status = zf_read(p, from, data, zf_tensor_bytes(from));
    if (!status && blocks.bits) zf_dequantize_values(values, data, count, &blocks);
    else if (!status && !plain) zf_convert(values, ZF_F32, data, zf_tensor_dtype(from), count);
    free(data);
    return status ? fail_with(error, status, "%s", zf_program_error(p)) : ZF_OK;
}
