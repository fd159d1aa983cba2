/* Tensors of one or several safetensors files, and the values of parameters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* SPAN: values that are read at a time, whole blocks of each quantisation. */
enum { ZFL_PATH = 1024, ZFL_SPAN = 8192 };

/* An open file. */
typedef struct zfl_shard {
    char path[ZFL_PATH];
    zf_safetensors *file;
} zfl_shard;

typedef struct zfl_item {
    const char *name; /* without prefixes of wrappers */
    int32_t shard, at;
    bool taken;
} zfl_item;

/* A name and the index of its item. */
typedef struct zfl_named_item {
    const char *name;
    int32_t item;
} zfl_named_item;

struct zf_weights {
    char path[ZFL_PATH];
    zfl_shard *shards;
    zfl_item *items;
    zfl_named_item *names; /* by name */
    int32_t shard_count, count;
    zf_weights_report index; /* how an index differs from the files: absent, unlisted */
};

static zf_status zfl_no_memory(zf_error *error)
{
    return zfl_fail_with(error, ZF_ERR_NOMEM, "out of memory");
}

const char *zf_shape_text(char text[ZF_SHAPE_TEXT], zf_shape shape)
{
    int at = snprintf(text, ZF_SHAPE_TEXT, "[");
    for (int axis = 0; axis < shape.rank; axis++)
        at += snprintf(text + at, (size_t)(ZF_SHAPE_TEXT - at), "%s%lld", axis ? "," : "",
                       (long long)shape.dims[axis]);
    snprintf(text + at, (size_t)(ZF_SHAPE_TEXT - at), "]");
    return text;
}

/* ----------------------------------------------------------------------------------- reports */

static void zfl_add_name(char names[ZF_WEIGHTS_NAMES], const char *name)
{
    static const char more[] = ", ...";
    size_t at = strlen(names), n = strlen(name);
    if (zfl_ends_in(names, more)) return;
    if (at + n + 2 + sizeof more > ZF_WEIGHTS_NAMES) memcpy(names + at, more, sizeof more);
    else snprintf(names + at, ZF_WEIGHTS_NAMES - at, "%s%s", at ? ", " : "", name);
}

void zf_weights_fresh(zf_weights_report *report, const char *name)
{
    report->fresh++;
    zfl_add_name(report->fresh_names, name);
}

void zf_weights_unused(zf_weights_report *report, const char *name)
{
    report->unused++;
    zfl_add_name(report->unused_names, name);
}

bool zf_weights_whole(const zf_weights_report *r, const char *path, zf_error *error)
{
    if (r->fresh)
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%.200s lacks tensors of the model (%d), which only training could set: %s",
                        path, (int)r->fresh, r->fresh_names);
    return !r->unused ||
           zfl_fail(
               error, ZF_ERR_MISMATCH,
               "%.200s has tensors that the model does not use (%d), so it is another model: %s",
               path, (int)r->unused, r->unused_names);
}

/* ---------------------------------------------------------------------------------- opening */

/* PyTorch's own files are Zip archives or pickle streams: programs, not data. The length at the
 * start of a safetensors file may look like a pickle. */
static bool zfl_is_pickle(const char *path)
{
    unsigned char head[4] = {0};
    const char *why;
    size_t bytes, n;
    FILE *file = zf_file_open(path, &bytes, &why);
    if (!file) return false;
    n = fread(head, 1, sizeof head, file);
    fclose(file);
    return n == 4 && (!memcmp(head, "PK\3\4", 4) || (head[0] == 0x80 && head[1] <= 5));
}

static zf_status zfl_fail_as_pickle(zf_error *error, const char *path)
{
    return zfl_fail_with(
        error, ZF_ERR_FORMAT,
        "%s is a pickle of PyTorch, which is a program and is not run here: in Python, "
        "from_pretrained(\"DIR\").save_pretrained(\"NEW\") writes a model.safetensors",
        path);
}

/* Adds a file; its number, or -1 with *error. */
static int32_t zfl_add_shard(zf_weights *w, const char *path, zf_error *error)
{
    zfl_shard *grown;
    for (int32_t i = 0; i < w->shard_count; i++)
        if (!strcmp(w->shards[i].path, path)) return i;
    grown = realloc(w->shards, (size_t)(w->shard_count + 1) * sizeof *grown);
    if (!grown) return zfl_no_memory(error), -1;
    w->shards = grown;
    snprintf(grown[w->shard_count].path, ZFL_PATH, "%s", path);
    grown[w->shard_count].file = zf_safetensors_open(path, NULL, error);
    if (grown[w->shard_count].file) return w->shard_count++;
    if (zfl_is_pickle(path)) zfl_fail_as_pickle(error, path);
    return -1;
}

static const char *zfl_unwrapped(const char *name)
{
    static const char *const wrappers[] = {"module.", "_orig_mod."};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(wrappers[i]);
        if (!strncmp(name, wrappers[i], n)) return zfl_unwrapped(name + n);
    }
    return name;
}

static int zfl_by_item_name(const void *left, const void *right)
{
    const zfl_named_item *a = left, *b = right;
    const int order = strcmp(a->name, b->name);
    return order ? order : (a->item > b->item) - (a->item < b->item);
}

/* Sorts the names; one that two tensors have is an error. */
static zf_status zfl_sort_names(zf_weights *w, zf_error *error)
{
    w->names = malloc((size_t)(w->count + 1) * sizeof *w->names);
    if (!w->names) return zfl_no_memory(error);
    for (int32_t i = 0; i < w->count; i++) w->names[i] = (zfl_named_item){w->items[i].name, i};
    qsort(w->names, (size_t)w->count, sizeof *w->names, zfl_by_item_name);
    for (int32_t i = 1; i < w->count; i++)
        if (!strcmp(w->names[i - 1].name, w->names[i].name))
            return zfl_fail_with(error, ZF_ERR_FORMAT, "%s: there are two tensors %s",
                                 w->shards[w->items[w->names[i].item].shard].path,
                                 w->names[i].name);
    return ZF_OK;
}

/* Lists the tensors of all files. */
static zf_status zfl_list_items(zf_weights *w, zf_error *error)
{
    int32_t count = 0;
    for (int32_t s = 0; s < w->shard_count; s++) count += zf_safetensors_count(w->shards[s].file);
    w->items = malloc((size_t)(count + 1) * sizeof *w->items);
    if (!w->items) return zfl_no_memory(error);
    for (int32_t s = 0; s < w->shard_count; s++)
        for (int32_t i = 0; i < zf_safetensors_count(w->shards[s].file); i++) {
            const char *name = zfl_unwrapped(zf_safetensors_at(w->shards[s].file, i)->name);
            w->items[w->count++] = (zfl_item){name, s, i, false};
        }
    return zfl_sort_names(w, error);
}

/* A name of the index, without a tensor in any file. */
static bool zfl_is_absent(const zf_weights *w, const char *name)
{
    for (int32_t s = 0; s < w->shard_count; s++)
        if (zf_safetensors_find(w->shards[s].file, name) >= 0) return false;
    return true;
}

/* Notes what the index and the files do not have in common. */
static void zfl_compare_index(zf_weights *w, const zf_json *map)
{
    for (const zf_json *v = zf_json_first(map); v; v = zf_json_next(v))
        if (zfl_is_absent(w, zf_json_key(v, NULL)))
            w->index.absent++, zfl_add_name(w->index.absent_names, zf_json_key(v, NULL));
    for (int32_t s = 0; s < w->shard_count; s++)
        for (int32_t i = 0; i < zf_safetensors_count(w->shards[s].file); i++) {
            const char *name = zf_safetensors_at(w->shards[s].file, i)->name;
            if (zf_json_member(map, name)) continue;
            w->index.unlisted++;
            zfl_add_name(w->index.unlisted_names, name);
        }
}

/* {"weight_map": {NAME: FILE next to the index, ...}}: opens the files. All of their tensors count,
 * as transformers has it, whatever the index says of each. */
static zf_status zfl_open_index(zf_weights *w, const char *path, zf_error *error)
{
    zf_json *json = zf_json_read(path, NULL, error);
    const zf_json *map = zf_json_require(json, "weight_map", error);
    const char *slash = strrchr(path, '/');
    for (const zf_json *v = zf_json_first(map); v && !error->status; v = zf_json_next(v)) {
        const char *file = NULL;
        char shard_path[ZFL_PATH];
        if (zf_json_to_string(v, &file, error)) break;
        if (!*file || strchr(file, '/')) {
            zf_json_expected(v, error, "the name of a file in the folder of the index");
            break;
        }
        snprintf(shard_path, sizeof shard_path, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path,
                 file);
        (void)zfl_add_shard(w, shard_path, error);
    }
    if (!error->status) zfl_compare_index(w, map);
    zf_json_free(json);
    return error->status;
}

static bool zfl_is_folder(const char *path)
{
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

/* The file to open in a folder. */
static zf_status zfl_look_into(char file[ZFL_PATH], const char *folder, zf_error *error)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char pickle[ZFL_PATH];
    for (int i = 0; i < 2; i++) {
        snprintf(file, ZFL_PATH, "%s/%s", folder, names[i]);
        if (!access(file, F_OK)) return ZF_OK;
    }
    snprintf(pickle, sizeof pickle, "%s/pytorch_model.bin", folder);
    if (!access(pickle, F_OK)) return zfl_fail_as_pickle(error, pickle);
    snprintf(pickle, sizeof pickle, "%s/pytorch_model.bin.index.json", folder);
    if (!access(pickle, F_OK)) return zfl_fail_as_pickle(error, pickle);
    return zfl_fail_with(
        error, ZF_ERR_IO,
        "%s has no weights: neither model.safetensors nor model.safetensors.index.json", folder);
}

zf_weights *zf_weights_open(const char *path, zf_error *error)
{
    zf_weights *w = calloc(1, sizeof *w);
    char file[ZFL_PATH];
    if (!w) return zfl_no_memory(error), NULL;
    error->status = ZF_OK;
    snprintf(file, sizeof file, "%s", path);
    snprintf(w->path, sizeof w->path, "%s", path);
    if (zfl_is_folder(path)) (void)zfl_look_into(file, path, error);
    if (!error->status && zfl_ends_in(file, ".json")) (void)zfl_open_index(w, file, error);
    else if (!error->status) (void)zfl_add_shard(w, file, error);
    if (!error->status) (void)zfl_list_items(w, error);
    if (!error->status) return w;
    zf_weights_close(w);
    return NULL;
}

void zf_weights_close(zf_weights *w)
{
    if (!w) return;
    for (int32_t s = 0; s < w->shard_count; s++) zf_safetensors_close(w->shards[s].file);
    free(w->shards);
    free(w->items);
    free(w->names);
    free(w);
}

/* ---------------------------------------------------------------------------------- tensors */

int32_t zf_weights_count(const zf_weights *w) { return w->count; }
const char *zf_weights_name(const zf_weights *w, int32_t index) { return w->items[index].name; }
void zf_weights_pass(zf_weights *w, int32_t index) { w->items[index].taken = true; }
bool zf_weights_taken(const zf_weights *w, int32_t index) { return w->items[index].taken; }

int32_t zf_weights_find(const zf_weights *w, const char *name)
{
    const zfl_named_item key = {name, 0};
    int32_t first = 0, end = w->count;
    while (first < end) {
        const int32_t middle = first + (end - first) / 2;
        if (zfl_by_item_name(&w->names[middle], &key) < 0) first = middle + 1;
        else end = middle;
    }
    return first < w->count && !strcmp(w->names[first].name, name) ? w->names[first].item : -1;
}

static const zf_safetensors_entry *zfl_entry_of(const zf_weights *w, int32_t index)
{
    const zfl_item *x = &w->items[index];
    return zf_safetensors_at(w->shards[x->shard].file, x->at);
}

static size_t zfl_span_at(size_t at, size_t count)
{
    return count - at < ZFL_SPAN ? count - at : ZFL_SPAN;
}

/* Values first..first + count - 1, at most SPAN, as f32. */
static bool zfl_read_span(zf_weights *w, int32_t index, size_t first, size_t count, float *values,
                          zf_error *error)
{
    const zf_safetensors_entry *e = zfl_entry_of(w, index);
    const zfl_shard *from = &w->shards[w->items[index].shard];
    double data[ZFL_SPAN]; /* wide enough for each dtype */
    size_t size;
    if (!e->readable || e->dtype > ZF_F64) {
        zfl_fail_with(error, ZF_ERR_DTYPE, "%s: %s is %s; F32, F64, BF16 or F16 is needed",
                      from->path, e->name, e->dtype_name);
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
static float *zfl_read_values(zf_weights *w, int32_t index, zf_error *error)
{
    size_t count = (size_t)zf_shape_count(zfl_entry_of(w, index)->shape), at = 0;
    float *values = malloc((count + 1) * sizeof *values);
    if (!values) {
        zfl_no_memory(error);
        return NULL;
    }
    for (; at < count; at += ZFL_SPAN)
        if (!zfl_read_span(w, index, at, zfl_span_at(at, count), values + at, error)) break;
    if (at >= count) return values;
    free(values);
    return NULL;
}

/* Marks a tensor as taken; false with *error where it has another shape. */
static bool zfl_begin_taking(zf_weights *w, int32_t index, zf_shape shape, zf_error *error)
{
    const zf_safetensors_entry *e = zfl_entry_of(w, index);
    char here[ZF_SHAPE_TEXT], wanted[ZF_SHAPE_TEXT];
    w->items[index].taken = true;
    return !strcmp(zf_shape_text(here, e->shape), zf_shape_text(wanted, shape)) ||
           zfl_fail(error, ZF_ERR_MISMATCH,
                    "%s: %s is %s, the model's is %s; do the sizes of --model fit?",
                    w->shards[w->items[index].shard].path, e->name, here, wanted);
}

float *zf_weights_take(zf_weights *w, int32_t index, zf_shape shape, zf_error *error)
{
    return zfl_begin_taking(w, index, shape, error) ? zfl_read_values(w, index, error) : NULL;
}

bool zf_weights_equal(zf_weights *w, int32_t a, int32_t b, zf_error *error)
{
    const zf_safetensors_entry *x, *y;
    float left[ZFL_SPAN], right[ZFL_SPAN];
    size_t count;
    bool equal = true;
    if (a < 0 || b < 0) return true;
    x = zfl_entry_of(w, a), y = zfl_entry_of(w, b);
    if (x->shape.rank != y->shape.rank ||
        memcmp(x->shape.dims, y->shape.dims, (size_t)x->shape.rank * sizeof *x->shape.dims))
        return false;
    count = (size_t)zf_shape_count(x->shape);
    for (size_t at = 0; at < count && equal; at += ZFL_SPAN) {
        const size_t n = zfl_span_at(at, count);
        equal = zfl_read_span(w, a, at, n, left, error) &&
                zfl_read_span(w, b, at, n, right, error) && !memcmp(left, right, n * sizeof *left);
    }
    return equal;
}

/* ---------------------------------------------------------------------------------- programs */

/* The master weights of a parameter; the invalid tensor if it has none. */
static zf_tensor zfl_master_of(zf_tensor param)
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

/* Values first..first + count - 1, at most SPAN and of whole blocks, into a parameter and its
 * master weights. */
static zf_status zfl_put_span(zf_program *p, zf_tensor param, zf_tensor master, size_t first,
                              size_t count, const float *values, zf_error *error)
{
    const zf_quantize_desc blocks = zf_param_blocks(param);
    const size_t unit = blocks.bits ? (size_t)blocks.block : 1,
                 units = (size_t)zf_shape_count(zf_param_shape(param)) / unit,
                 size = units ? zf_whole_bytes(param) / units : 0;
    double rounded[ZFL_SPAN]; /* wide enough for each dtype */
    zf_status status;
    if (blocks.bits) zf_quantize_values(rounded, values, count, &blocks);
    else zf_convert(rounded, zf_tensor_dtype(param), values, ZF_F32, count);
    status = zf_write_whole(p, param, first / unit * size, rounded, count / unit * size);
    if (!status && zf_valid(master))
        status = zf_write_whole(p, master, first * sizeof *values, values, count * sizeof *values);
    return status ? zfl_fail_with(error, status, "%s", zf_program_error(p)) : ZF_OK;
}

zf_status zf_weights_put(zf_program *p, zf_tensor param, const float *values, zf_error *error)
{
    const zf_tensor master = zfl_master_of(param);
    const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
    zf_status status = ZF_OK;
    for (size_t at = 0; at < count && !status; at += ZFL_SPAN)
        status = zfl_put_span(p, param, master, at, zfl_span_at(at, count), values + at, error);
    return status;
}

/* The tensor, of this shape, into a parameter, from its value number `first` on. */
static bool zfl_move_to(zf_weights *w, int32_t index, zf_program *p, zf_tensor param, size_t first,
                        zf_shape shape, zf_error *error)
{
    const zf_tensor master = zfl_master_of(param);
    const size_t count = (size_t)zf_shape_count(shape);
    float values[ZFL_SPAN];
    bool good = zfl_begin_taking(w, index, shape, error);
    for (size_t at = 0; at < count && good; at += ZFL_SPAN) {
        const size_t n = zfl_span_at(at, count);
        good = zfl_read_span(w, index, at, n, values, error) &&
               !zfl_put_span(p, param, master, first + at, n, values, error);
    }
    return good;
}

bool zf_weights_move(zf_weights *w, int32_t index, zf_program *p, zf_tensor param, zf_error *error)
{
    return zfl_move_to(w, index, p, param, 0, zf_param_shape(param), error);
}

zf_status zf_weights_get(zf_program *p, zf_tensor param, float *values, zf_error *error)
{
    zf_tensor from = zf_valid(zfl_master_of(param)) ? zfl_master_of(param) : param;
    const zf_quantize_desc blocks = zf_param_blocks(from);
    const size_t count = (size_t)zf_shape_count(zf_param_shape(from));
    const bool plain = !blocks.bits && zf_tensor_dtype(from) == ZF_F32;
    void *data = plain ? NULL : malloc(zf_whole_bytes(from) + 1);
    zf_status status;
    if (!plain && !data) return zfl_no_memory(error);
    if (plain) status = zf_read_whole(p, from, values, count * sizeof *values);
    else status = zf_read_whole(p, from, data, zf_whole_bytes(from));
    if (!status && blocks.bits) zf_dequantize_values(values, data, count, &blocks);
    else if (!status && !plain) zf_convert(values, ZF_F32, data, zf_tensor_dtype(from), count);
    free(data);
    return status ? zfl_fail_with(error, status, "%s", zf_program_error(p)) : ZF_OK;
}

zf_tensor zf_weights_not_finite(zf_program *p, zf_graph *g, zf_error *error)
{
    for (int32_t k = 0; k < zf_param_count(g); k++) {
        const zf_tensor param = zf_param_at(g, k);
        const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
        float *values = malloc(count * sizeof *values + 1);
        size_t i = 0;
        if (values) (void)zf_weights_get(p, param, values, error);
        else (void)zfl_no_memory(error);
        while (!error->status && i < count && isfinite(values[i])) i++;
        free(values);
        if (error->status) break;
        if (i < count) return param;
    }
    return (zf_tensor){g, 0};
}
