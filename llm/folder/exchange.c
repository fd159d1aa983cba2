/* The parameters of a program from and to files of weights. */
#include <stdlib.h>
#include <string.h>

/* Whether `holds` is true of one name of the list. */
static bool zfl_any(const char *const *list, bool (*holds)(const char *, const char *),
                    const char *name)
{
    for (; *list; list++)
        if (holds(name, *list)) return true;
    return false;
}

bool zf_exchange_is_head(const zf_exchange *x, const char *param)
{
    return zfl_any(x->heads, zfl_begins, param);
}

/* ------------------------------------------------------------------------------------- names */

enum { ZFL_PARAM_NAME = 320 }; /* bytes of a text; more than a name has */

/* The ends of the names of an adapter's parameters, and of their tensors in files. */
static const struct zfl_low {
    const char *param, *file;
    bool first;  /* there is one for each module */
    bool turned; /* [a, b] in files, where the graph has [b, a] */
} zfl_lows[] = {{".lora_A.weight", ".lora_A.weight", true, false},
                {".lora_B.weight", ".lora_B.weight", false, false},
                {".lora_embedding_A.weight", ".lora_embedding_A", true, true},
                {".lora_embedding_B.weight", ".lora_embedding_B", false, false},
                {".lora_magnitude_vector.weight", ".lora_magnitude_vector", false, false}};
enum { ZFL_LOWS = sizeof zfl_lows / sizeof *zfl_lows };

/* The one of which a parameter's name is; NULL: of none. */
static const struct zfl_low *zfl_low_of(const char *param)
{
    for (int k = 0; k < ZFL_LOWS; k++)
        if (zfl_ends_in(param, zfl_lows[k].param)) return &zfl_lows[k];
    return NULL;
}

/* The same of a parameter of a graph; NULL: it is of no product. */
static const struct zfl_low *zfl_low_of_param(zf_tensor param)
{
    char name[ZFL_PARAM_NAME];
    if (!zf_param_adapter(param)) return NULL;
    return zfl_low_of(zf_param_plain_name(param, name, sizeof name));
}

bool zf_adapter_is_product(zf_tensor param) { return zfl_low_of_param(param) != NULL; }

zf_tensor zf_exchange_find(zf_graph *g, const char *name)
{
    char plain[ZFL_PARAM_NAME];
    for (int32_t i = 0; i < zf_param_count(g); i++)
        if (!strcmp(zf_param_plain_name(zf_param_at(g, i), plain, sizeof plain), name))
            return zf_param_at(g, i);
    return ZF_NONE;
}

/* A parameter that files lack has its first values; false: it must not. */
static bool zfl_may_lack(const zf_exchange *x, zf_tensor param, const char *name,
                         zf_weights_report *report)
{
    const bool kept = zf_param_adapter(param) != NULL;
    if (!kept && !zf_exchange_is_head(x, name) && !(x->fresh && zfl_ends_in(name, x->fresh)))
        return false;
    report->kept += kept;
    zf_weights_fresh(report, name);
    return true;
}

static const char *zfl_bare(const zf_exchange *x, const char *name)
{
    return x->prefix && zfl_begins(name, x->prefix) ? name + strlen(x->prefix) : name;
}

/* The tensor of this name in a model of several parts; -1. */
static int32_t zfl_find_within(const zf_exchange *x, const zf_weights *w, const char *name)
{
    char other[ZFL_PARAM_NAME];
    const char *bare = zfl_bare(x, name);
    int32_t at;
    if (!x->within) return -1;
    snprintf(other, sizeof other, "%s%s", x->within, name);
    if ((at = zf_weights_find(w, other)) >= 0 || bare == name) return at;
    snprintf(other, sizeof other, "%s%s%s", x->prefix, x->within, bare);
    return zf_weights_find(w, other);
}

/* The tensor of this name, with or without the prefix, by its newer or older name; -1. */
static int32_t zfl_find_name(const zf_exchange *x, const zf_weights *w, const char *name)
{
    char older[300];
    int32_t at = zf_weights_find(w, name);
    if (at < 0) at = zf_weights_find(w, zfl_bare(x, name));
    if (at < 0) at = zfl_find_within(x, w, name);
    if (at >= 0 || !x->older || !x->older(name, older, sizeof older)) return at;
    at = zf_weights_find(w, older);
    return at < 0 ? zf_weights_find(w, zfl_bare(x, older)) : at;
}

/* The name is that of a word embedding. */
static bool zfl_is_words(const zf_exchange *x, const char *name)
{
    bool is = !strcmp(name, x->words);
    for (int k = 0; k < ZF_EXCHANGE_NAMES && x->other_words[k]; k++)
        is = is || !strcmp(name, x->other_words[k]);
    return is;
}

/* The names of the kind of model that the graph is. */
static const zf_exchange *zfl_exchange_of(const zf_exchange *x, zf_graph *g)
{
    const zf_exchange *first = x;
    while (x && !zf_valid(zf_exchange_find(g, x->words))) x = x->next;
    return x ? x : first;
}

/* The name of the graph's word embedding. */
static const char *zfl_words_of(const zf_exchange *x, zf_graph *g)
{
    for (int k = 0; k < ZF_EXCHANGE_NAMES && x->other_words[k]; k++)
        if (zf_valid(zf_exchange_find(g, x->other_words[k]))) return x->other_words[k];
    return x->words;
}

/* The tensor of a parameter; -1. If it has two names and the file has both, the other one is
 * ignored if it is equal. */
static int32_t zfl_find_param(const zf_exchange *x, zf_weights *w, const char *name, bool tied,
                              zf_error *error)
{
    int32_t at = zfl_find_name(x, w, name), other = -1;
    if (x->bias && !strcmp(name, x->bias)) other = at, at = zf_weights_find(w, x->head_bias);
    if (tied && zfl_is_words(x, name)) other = zfl_find_name(x, w, x->head);
    if (at < 0) return other;
    if (other >= 0 && zf_weights_equal(w, at, other, error)) zf_weights_pass(w, other);
    return at;
}

bool zf_exchange_is_tied(const zf_exchange *x, zf_weights *w, zf_error *error)
{
    int32_t words = zfl_find_name(x, w, x->words);
    for (int k = 0; k < ZF_EXCHANGE_NAMES && words < 0 && x->other_words[k]; k++)
        words = zfl_find_name(x, w, x->other_words[k]);
    return zf_weights_equal(w, words, zfl_find_name(x, w, x->head), error) &&
           (!x->next || zf_exchange_is_tied(x->next, w, error));
}

/* ----------------------------------------------------------------------------------- shapes */

static bool zfl_is_turned(const zf_exchange *x, zf_tensor param)
{
    const struct zfl_low *low = zfl_low_of_param(param);
    return low ? low->turned : x && x->turned && x->turned(param);
}

/* A tensor's shape in files. */
static zf_shape zfl_file_shape(const zf_exchange *x, zf_tensor param)
{
    zf_shape s = zf_param_shape(param);
    return zfl_is_turned(x, param) ? ZF_SHAPE(s.dims[1], s.dims[0]) : s;
}

/* Elements first..first + count - 1, of `size` bytes, of [columns, rows], where `from` is [rows,
 * columns]. */
static void zfl_turn_span(char *to, const char *from, zf_shape shape, size_t first, size_t count,
                          size_t size)
{
    const size_t rows = (size_t)shape.dims[0], columns = (size_t)shape.dims[1];
    for (size_t k = first; k < first + count; k++, to += size)
        memcpy(to, from + (k % rows * columns + k / rows) * size, size);
}

/* The same of all elements. */
static void zfl_turn(char *to, const char *from, zf_shape shape, size_t size)
{
    zfl_turn_span(to, from, shape, 0, (size_t)zf_shape_count(shape), size);
}

/* ------------------------------------------------------------------------------------- parts */

/* How many tensors files have of a parameter; 0: one, of its name. */
static int64_t zfl_parts_of(const zf_exchange *x, zf_tensor param)
{
    const zf_shape shape = zf_param_shape(param);
    const bool several = x && x->parts && shape.rank == 3 && strstr(zf_tensor_name(param), x->parts);
    return several ? shape.dims[0] : 0;
}

/* The name of part i of the parameter `name`. */
static void zfl_part_name(const zf_exchange *x, const char *name, int64_t i,
                          char part[ZFL_PARAM_NAME])
{
    const char *after = strstr(name, x->parts) + strlen(x->parts);
    snprintf(part, ZFL_PARAM_NAME, "%.*s%lld.%s", (int)(after - name), name, (long long)i, after);
}

static zf_shape zfl_part_shape(zf_tensor param)
{
    const zf_shape shape = zf_param_shape(param);
    return ZF_SHAPE(shape.dims[1], shape.dims[2]);
}

/* Reads all parts of a parameter. */
static bool zfl_import_parts(const zf_exchange *x, zf_program *p, zf_weights *w, zf_tensor param,
                             const char *path, zf_error *error)
{
    const zf_shape shape = zfl_part_shape(param);
    bool good = true;
    for (int64_t i = 0; good && i < zfl_parts_of(x, param); i++) {
        char name[ZFL_PARAM_NAME];
        int32_t at;
        zfl_part_name(x, zf_tensor_name(param), i, name);
        at = zfl_find_name(x, w, name);
        good = at >= 0
                   ? zfl_move_to(w, at, p, param, (size_t)(i * zf_shape_count(shape)), shape, error)
                   : zfl_fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    return good;
}

/* ---------------------------------------------------------------------------------------- in */

static bool zfl_import_param(const zf_exchange *x, zf_program *p, zf_weights *w, int32_t at,
                             zf_tensor param, zf_error *error)
{
    zf_shape shape = zfl_file_shape(x, param);
    float *values, *turned;
    bool good;
    if (!zfl_is_turned(x, param)) return zf_weights_move(w, at, p, param, error);
    values = zf_weights_take(w, at, shape, error);
    turned = values ? malloc((size_t)zf_shape_count(shape) * sizeof *values + 1) : NULL;
    if (turned) zfl_turn((char *)turned, (const char *)values, shape, sizeof *values);
    else if (values) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    good = turned && !zf_weights_put(p, param, turned, error);
    free(values);
    free(turned);
    return good;
}

/* The name of a tensor without what models of several parts have before it. */
static const char *zfl_inner(const zf_exchange *x, const char *name)
{
    if (!x->within) return zfl_bare(x, name);
    if (zfl_begins(name, x->within)) name += strlen(x->within);
    name = zfl_bare(x, name);
    return zfl_begins(name, x->within) ? name + strlen(x->within) : name;
}

/* Reports a tensor that was not used, or makes it an error. predicts: the model has a head. score:
 * the head of a model that scores; where an adapter keeps it, the base is a language model. */
static bool zfl_check_unused(const zf_exchange *x, const char *name, zf_tensor score, bool predicts,
                             zf_weights_report *report, const char *path, zf_error *error)
{
    const bool scores = zf_valid(score), is_head = !strcmp(zfl_inner(x, name), x->head);
    if (zfl_any(x->buffers, zfl_ends_in, name)) return true;
    if (zfl_any(x->others, zfl_begins, zfl_bare(x, name))) return report->others++, true;
    if (is_head && scores && zf_param_adapter(score)) return true;
    if (zfl_any(x->inside, zfl_begins, zfl_inner(x, name)) ||
        (scores && !strncmp(name, x->score, strcspn(x->score, ".") + 1)))
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%s: the model has no tensor %.200s; do the sizes of --model fit?", path,
                        name);
    if (is_head && !scores && predicts)
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%s: %s differs from the word embedding, to which the model ties it: its "
                        "config.json must have \"tie_word_embeddings\": false",
                        path, name);
    zf_weights_unused(report, name);
    return true;
}

bool zf_exchange_import(const zf_exchange *x, zf_program *p, zf_graph *g, const char *path,
                        zf_weights_report *report, zf_error *error)
{
    zf_weights *w = zf_weights_open(path, error);
    bool tied, predicts, good = w != NULL;
    zf_tensor score;
    x = zfl_exchange_of(x, g);
    tied = !zf_valid(zf_exchange_find(g, x->head));
    predicts = !x->bias || zf_valid(zf_exchange_find(g, x->bias));
    score = x->score ? zf_exchange_find(g, x->score) : ZF_NONE;
    *report = good ? w->index : (zf_weights_report){.fresh = 0};
    for (int32_t i = 0; good && i < zf_param_count(g); i++) {
        zf_tensor param = zf_param_at(g, i);
        char name[ZFL_PARAM_NAME];
        int32_t at;
        if (zf_adapter_is_product(param)) continue;
        if (zfl_parts_of(x, param)) {
            good = zfl_import_parts(x, p, w, param, path, error);
            continue;
        }
        zf_param_plain_name(param, name, sizeof name);
        at = zfl_find_param(x, w, name, tied, error);
        if (error->status) good = false;
        else if (at >= 0) good = zfl_import_param(x, p, w, at, param, error);
        else if (!zfl_may_lack(x, param, name, report))
            good = zfl_fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    for (int32_t i = 0; good && i < zf_weights_count(w); i++)
        good = zf_weights_taken(w, i) ||
               zfl_check_unused(x, zf_weights_name(w, i), score, predicts, report, path, error);
    zf_weights_close(w);
    return good;
}

/* --------------------------------------------------------------------------------------- out */

/* What is exported for the parameter: its value, or with `gradients` the output that keeps its
 * gradient. */
static zf_tensor zfl_exported(zf_graph *g, zf_tensor param, bool gradients)
{
    char name[300];
    if (!gradients && zf_adapter_is_product(param)) return ZF_NONE;
    snprintf(name, sizeof name, "gradient/%s", zf_tensor_name(param));
    return gradients ? zf_graph_find(g, name) : param;
}

static bool zfl_is_twice(const zf_exchange *x, zf_tensor param, bool gradient)
{
    return x->bias && !gradient && !strcmp(zf_tensor_name(param), x->bias) &&
           zf_valid(zf_graph_find(param.graph, x->head));
}

/* Declares the tensors of the file. */
static void zfl_declare(const zf_exchange *x, zf_safetensors_writer *w, zf_graph *g, bool gradients,
                        zf_dtype dtype)
{
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        zf_tensor t = zf_param_at(g, i), from = zfl_exported(g, t, gradients);
        zf_shape shape = zfl_file_shape(x, t);
        char name[ZFL_PARAM_NAME];
        if (!zf_valid(from)) continue;
        for (int64_t k = 0; k < zfl_parts_of(x, t) && !gradients; k++) {
            zfl_part_name(x, zf_tensor_name(t), k, name);
            zf_safetensors_declare(w, name, dtype, zfl_part_shape(t));
        }
        if (zfl_parts_of(x, t) && !gradients) continue;
        if (gradients) snprintf(name, sizeof name, "%s", zf_tensor_name(t));
        else zf_param_plain_name(t, name, sizeof name);
        zf_safetensors_declare(w, name, gradients ? zf_tensor_dtype(from) : dtype, shape);
        if (zfl_is_twice(x, t, gradients)) zf_safetensors_declare(w, x->head_bias, dtype, shape);
    }
}

/* Where the values that are written come from: a program, or else a checkpoint. */
typedef struct zfl_source {
    zf_program *program;
    zf_checkpoint *checkpoint;
} zfl_source;

/* Values of a parameter, in its order. */
typedef struct zfl_values {
    const char *data;
    char *own; /* memory of them, to be freed; NULL: it is another's */
    zf_dtype dtype;
    zf_shape shape;
    bool turned; /* files have them as [in, out] */
} zfl_values;

/* The tensor of a checkpoint that has the values of a parameter; -1 with *error. */
static int32_t zfl_find_stored(const zf_checkpoint *c, zf_tensor param, zf_error *error)
{
    const char *name = zf_tensor_name(param), *path = zf_checkpoint_path(c);
    char here[ZF_SHAPE_TEXT], wanted[ZF_SHAPE_TEXT];
    int32_t at = zf_checkpoint_find(c, name, true);
    zf_stored stored;
    if (at < 0) at = zf_checkpoint_find(c, name, false);
    stored = zf_checkpoint_at(c, at);
    if (at < 0)
        zfl_fail(error, ZF_ERR_MISMATCH,
                 "%s: the checkpoint lacks the param \"%s\": it is of another model", path, name);
    else if (stored.dtype > ZF_F64)
        zfl_fail(error, ZF_ERR_DTYPE, "%s: %s is %s; F32, F64, BF16 or F16 is needed", path, name,
                 zf_dtype_name(stored.dtype));
    else if (strcmp(zf_shape_text(here, stored.shape),
                    zf_shape_text(wanted, zf_param_shape(param))))
        zfl_fail(error, ZF_ERR_MISMATCH, "%s: %s is %s, the model's is %s", path, name, here,
                 wanted);
    else return at;
    return -1;
}

/* The values of a parameter, or those that an output of a program keeps of its gradient. */
static bool zfl_values_of(const zfl_source *s, zf_tensor param, zf_tensor from, zfl_values *v,
                          zf_error *error)
{
    const bool gradient = from.id != param.id;
    const int32_t at = s->checkpoint ? zfl_find_stored(s->checkpoint, param, error) : -1;
    const size_t count = (size_t)zf_shape_count(v->shape);
    zf_status status;
    if (s->checkpoint) {
        v->dtype = zf_checkpoint_at(s->checkpoint, at).dtype;
        return at >= 0 && (v->data = zf_checkpoint_read(s->checkpoint, at, error)) != NULL;
    }
    v->dtype = gradient ? zf_tensor_dtype(from) : ZF_F32;
    v->data = v->own = malloc(count * zf_dtype_size(v->dtype) + 1);
    if (!v->own) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (!gradient) return !zf_weights_get(s->program, param, (float *)(void *)v->own, error);
    status = zf_read_whole(s->program, from, v->own, count * zf_dtype_size(v->dtype));
    return !status || zfl_fail(error, status, "%s", zf_program_error(s->program));
}

/* Writes values first..first + count - 1 of those that a file has, at most SPAN. */
static zf_status zfl_write_span(zf_safetensors_writer *w, int32_t index, const zfl_values *v,
                                size_t first, size_t count, zf_dtype dtype)
{
    double turned[ZFL_SPAN], rounded[ZFL_SPAN]; /* wide enough for each dtype */
    const size_t size = zf_dtype_size(v->dtype);
    const void *from = v->data + first * size;
    if (v->turned) {
        zfl_turn_span((char *)turned, v->data, v->shape, first, count, size);
        from = turned;
    }
    if (dtype != v->dtype) zf_convert(rounded, dtype, from, v->dtype, count);
    return zf_safetensors_write(w, index, dtype == v->dtype ? from : rounded,
                                count * zf_dtype_size(dtype));
}

/* Writes values to a tensor, or to the parts of one, of which *index is the first. */
static zf_status zfl_write_tensor(zf_safetensors_writer *w, int32_t *index, const zfl_values *v,
                                  int64_t parts, zf_dtype dtype)
{
    const size_t count = parts ? (size_t)parts : 1, each = (size_t)zf_shape_count(v->shape) / count;
    zf_status status = ZF_OK;
    for (size_t i = 0; i < count && !status; i++, (*index)++)
        for (size_t at = 0; at < each && !status; at += ZFL_SPAN)
            status = zfl_write_span(w, *index, v, i * each + at, zfl_span_at(at, each), dtype);
    return status;
}

/* Writes tensor *index. w NULL: another rank writes. */
static bool zfl_export_tensor(const zf_exchange *x, const zfl_source *s, zf_safetensors_writer *w,
                              int32_t *index, zf_tensor param, zf_tensor from, zf_dtype dtype,
                              zf_error *error)
{
    const bool gradient = from.id != param.id;
    zfl_values v = {.shape = zf_param_shape(param), .turned = zfl_is_turned(x, param)};
    bool good = zfl_values_of(s, param, from, &v, error);
    for (int copy = 0; copy < 1 + zfl_is_twice(x, param, gradient) && good && w; copy++)
        good = !zfl_write_tensor(w, index, &v, gradient ? 0 : zfl_parts_of(x, param),
                                 gradient ? v.dtype : dtype);
    free(v.own);
    return good;
}

/* Writes all tensors to `path`. */
static bool zfl_export_all(const zf_exchange *x, const zfl_source *s, zf_graph *g, const char *path,
                           bool gradients, zf_dtype dtype, zf_error *error)
{
    zf_safetensors_writer *w = path ? zf_safetensors_writer_new(path, NULL, error) : NULL;
    bool good = !path || w;
    int32_t written = 0;
    if (w) zfl_declare(x, w, g, gradients, dtype);
    for (int32_t i = 0; good && i < zf_param_count(g); i++) {
        zf_tensor t = zf_param_at(g, i), from = zfl_exported(g, t, gradients);
        if (zf_valid(from)) good = zfl_export_tensor(x, s, w, &written, t, from, dtype, error);
    }
    /* zf_safetensors_finish reports the writer's own error. */
    if (w && (good || !error->status)) good = !zf_safetensors_finish(w, error);
    zf_safetensors_writer_free(w);
    return good;
}

/* The same, to a path that may be a link: the writer would follow it, and it is to be replaced. */
static bool zfl_export_to(const zf_exchange *x, const zfl_source *s, zf_graph *g, const char *path,
                          bool gradients, zf_dtype dtype, zf_error *error)
{
    char *made;
    bool good;
    x = zfl_exchange_of(x, g);
    if (!path || !zfl_is_link(path)) return zfl_export_all(x, s, g, path, gradients, dtype, error);
    if (!zfl_may_replace(path, error) || !(made = zfl_path_aside(path, error))) return false;
    good = zfl_export_all(x, s, g, made, gradients, dtype, error) &&
           zfl_file_rename(made, path, error);
    free(made);
    return good;
}

bool zf_exchange_export(const zf_exchange *x, zf_program *p, zf_graph *g, const char *path,
                        bool gradients, zf_dtype dtype, zf_error *error)
{
    return zfl_export_to(x, &(zfl_source){.program = p}, g, path, gradients, dtype, error);
}

bool zf_exchange_export_from(const zf_exchange *x, zf_checkpoint *from, zf_graph *g,
                             const char *path, zf_dtype dtype, zf_error *error)
{
    return zfl_export_to(x, &(zfl_source){.checkpoint = from}, g, path, false, dtype, error);
}

/* Every parameter of the graph is there, of those of 16 bits the master weights; with `average`
 * some have an average. */
static bool zfl_has_stored(const zf_checkpoint *c, zf_graph *g, bool average, zf_error *error)
{
    bool some = !average;
    for (int32_t i = 0; i < zf_param_count(g); i++) {
        const char *name = zf_tensor_name(zf_param_at(g, i));
        const int32_t at = zfl_find_stored(c, zf_param_at(g, i), error);
        const bool state = zf_checkpoint_at(c, at).state;
        if (at < 0) return false;
        if (!state && !average && zf_dtype_size(zf_checkpoint_at(c, at).dtype) == 2)
            return zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: the checkpoint lacks master weights of \"%s\"",
                            zf_checkpoint_path(c), name);
        some |= state;
    }
    return some || zfl_fail(error, ZF_ERR_ARGUMENT,
                            "%s has no averages: it was trained without --ema",
                            zf_checkpoint_path(c));
}

zf_checkpoint *zf_exchange_open(const char *path, bool average, zf_graph *g,
                                const zf_allocator *allocator, zf_error *error)
{
    const char *role = average ? "average" : zf_folder_precision(path) != ZF_F32 ? "master" : NULL;
    zf_checkpoint *c = zf_checkpoint_open(path, role, allocator, error);
    if (c && zfl_has_stored(c, g, average, error)) return c;
    zf_checkpoint_close(c);
    return NULL;
}

/* ------------------------------------------------------------------------- between two programs */

static bool zfl_copy_param(zf_program *to, zf_tensor param, zf_program *from, zf_tensor source,
                           const char *path, zf_error *error)
{
    zf_shape shape = zf_param_shape(param);
    char here[ZF_SHAPE_TEXT], wanted[ZF_SHAPE_TEXT];
    float *values;
    bool good;
    if (strcmp(zf_shape_text(here, zf_param_shape(source)), zf_shape_text(wanted, shape)))
        return zfl_fail(error, ZF_ERR_MISMATCH,
                        "%s: %s is %s, the model's is %s; do the sizes of --model fit?", path,
                        zf_tensor_name(param), here, wanted);
    values = malloc((size_t)zf_shape_count(shape) * sizeof *values + 1);
    if (!values) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    good =
        !zf_weights_get(from, source, values, error) && !zf_weights_put(to, param, values, error);
    free(values);
    return good;
}

bool zf_exchange_match(const zf_exchange *x, zf_graph *to, zf_graph *from, const char *path,
                       zf_weights_report *report, zf_error *error)
{
    bool good = true;
    *report = (zf_weights_report){.fresh = 0};
    x = zfl_exchange_of(x, to);
    for (int32_t i = 0; i < zf_param_count(to) && good; i++) {
        const zf_tensor param = zf_param_at(to, i);
        char name[ZFL_PARAM_NAME];
        zf_param_plain_name(param, name, sizeof name);
        if (zf_adapter_is_product(param) || zf_valid(zf_graph_find(from, name))) continue;
        if (!zfl_may_lack(x, param, name, report))
            good = zfl_fail(error, ZF_ERR_MISMATCH, "%s: there is no tensor %s", path, name);
    }
    for (int32_t i = 0; i < zf_param_count(from) && good; i++) {
        const char *name = zf_tensor_name(zf_param_at(from, i));
        if (zf_valid(zf_exchange_find(to, name))) continue;
        if (zf_exchange_is_head(x, name)) zf_weights_unused(report, name);
        else
            good = zfl_fail(error, ZF_ERR_MISMATCH,
                            "%s: the model has no tensor %s; do the sizes of --model fit?", path,
                            name);
    }
    return good;
}

bool zf_exchange_copy_part(zf_program *to, zf_graph *to_graph, zf_program *from,
                           zf_graph *from_graph, const char *path, zf_error *error)
{
    bool good = true;
    for (int32_t i = 0; i < zf_param_count(from_graph) && good; i++) {
        zf_tensor source = zf_param_at(from_graph, i);
        zf_tensor param = zf_exchange_find(to_graph, zf_tensor_name(source));
        if (zf_valid(param) && !zf_adapter_is_product(param))
            good = zfl_copy_param(to, param, from, source, path, error);
    }
    return good;
}

bool zf_exchange_copy(const zf_exchange *x, zf_program *to, zf_graph *to_graph, zf_program *from,
                      zf_graph *from_graph, const char *path, zf_weights_report *report,
                      zf_error *error)
{
    return zf_exchange_match(x, to_graph, from_graph, path, report, error) &&
           zf_exchange_copy_part(to, to_graph, from, from_graph, path, error);
}
