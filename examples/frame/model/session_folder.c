/* Models of folders: checkpoints of zf_save, and those of Hugging Face, perhaps with an adapter. */
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

/* Reads `count` parameters of `whole` from number `first` on, those that the session has, as f32,
 * in a program that has no others. */
static bool take_part(session *s, zf_graph *whole, int32_t first, int32_t count, const char *path,
                      zf_backend *cpu, zf_error *error)
{
    zf_graph *part = zf_graph_new(NULL);
    zf_program *from;
    bool good;
    if (!part) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t i = first; i < first + count; i++) {
        const zf_tensor param = zf_param_at(whole, i);
        if (zf_valid(zf_exchange_find(s->graph, zf_tensor_name(param))))
            (void)zf_param(part, zf_tensor_name(param), zf_param_shape(param), NULL);
    }
    from = zf_compile(part, &(zf_compile_desc){.backend = cpu, .evaluate = true});
    good = from ? zf_folder_load(from, path, true, false, error) &&
                      zf_exchange_copy_part(s->program, s->graph, from, part, path, error)
                : fail(error, zf_graph_status(part), "%s", zf_graph_error(part));
    zf_program_free(from);
    zf_graph_free(part);
    return good;
}

/* Reads a checkpoint in f32, so many bytes or one parameter at a time. */
static bool take_checkpoint(session *s, const char *path, zf_weights_report *report,
                            zf_error *error)
{
    enum { PART = 16 << 20 };
    const device_desc cpu = {.kind = DEVICE_CPU};
    zf_config_any config;
    zf_graph *whole;
    zf_backend *backend;
    bool good;
    if (!zf_config_load(s->sample->config(), path, &config, error)) return false;
    if (!(whole = zf_graph_new(NULL))) return fail(error, ZF_ERR_NOMEM, "out of memory");
    s->sample->build(whole, &config,
                     &(sample_shape){.batch = 1, .sequence = 1, .predictions = 1}, SAMPLE_EVALUATE);
    backend = device_open(&cpu, 1, error);
    good = backend && (!zf_graph_status(whole) ||
                       fail(error, zf_graph_status(whole), "%s", zf_graph_error(whole)));
    good = good && zf_exchange_match(s->sample->exchange(), s->graph, whole, path, report, error);
    for (int32_t first = 0, count; good && first < zf_param_count(whole); first += count) {
        size_t bytes = 0;
        for (count = 0; first + count < zf_param_count(whole); count++) {
            bytes += zf_tensor_bytes(zf_param_at(whole, first + count));
            if (count && bytes > PART) break;
        }
        good = take_part(s, whole, first, count, path, backend, error);
    }
    zf_graph_free(whole);
    zf_backend_free(backend);
    return good;
}

bool session_take(session *s, const char *path, zf_weights_report *report, zf_error *error)
{
    if (zf_folder_is_checkpoint(path)) return take_checkpoint(s, path, report, error);
    return zf_exchange_import(s->sample->exchange(), s->program, s->graph, path, report, error);
}

/* What the weights of Hugging Face say; whole: the model is theirs, with the heads that they
 * have. */
static bool fit(const sample_model *sample, void *config, const char *path, bool whole,
                zf_error *error)
{
    zf_weights *w = zf_weights_open(path, error);
    if (!w) return false;
    if (!zf_exchange_is_tied(sample->exchange(), w, error))
        *zf_config_facts_of(sample->config(), config).tied = 0;
    if (whole && sample->fit) sample->fit(config, w);
    zf_weights_close(w);
    return !error->status;
}

bool session_config_take(const sample_model *sample, void *config, const char *path,
                         zf_error *error)
{
    zf_config_any own;
    if (!zf_folder_is_checkpoint(path)) return fit(sample, config, path, false, error);
    if (!zf_config_load(sample->config(), path, &own, error)) return false;
    *zf_config_facts_of(sample->config(), config).tied =
        *zf_config_facts_of(sample->config(), &own).tied;
    return true;
}

/* Sets the blocks that tokens see to those of an adapter, if it says which, and what else it says of
 * the model. */
static bool adapt(const sample_model *sample, const char *adapter, void *config, zf_error *error)
{
    char layout[ZF_CONFIG_LAYOUT];
    bool there;
    return zf_config_read_layout(adapter, layout, &there, error) &&
           (!there ||
            zf_config_set_layout(sample->config(), config, *layout ? layout : "off", 0, error)) &&
           (!sample->adapt || sample->adapt(config, adapter, error));
}

bool session_config(const sample_model *sample, const char *path, const char *adapter, void *config,
                    zf_error *error)
{
    if (zf_adapter_is_at(path))
        return fail(error, ZF_ERR_MISMATCH,
                    "%s is an adapter, without its base: name the base's folder, and this one with "
                    "--adapter; 'merge' writes them as one model",
                    path);
    return zf_config_load(sample->config(), path, config, error) &&
           (zf_folder_is_checkpoint(path) || fit(sample, config, path, true, error)) &&
           (!adapter || adapt(sample, adapter, config, error));
}

bool session_fits_base(const char *adapter, const char *base, zf_error *error)
{
    char saved[20], own[20];
    uint64_t digest;
    zf_error none = {ZF_OK, ""};
    if (!zf_folder_is_checkpoint(adapter) ||
        zf_checkpoint_note(adapter, "base", saved, sizeof saved, &none) ||
        !strcmp(saved, "0000000000000000"))
        return true;
    if (!zf_digest_path(base, &digest, error)) return false;
    snprintf(own, sizeof own, "%016llx", (unsigned long long)digest);
    return !strcmp(saved, own) || fail(error, ZF_ERR_MISMATCH,
                                       "%s is an adapter of other weights than those of %s: name "
                                       "the folder of the base that "
                                       "it was trained with",
                                       adapter, base);
}

/* The averages of a checkpoint as parameters in a store. False with *error. */
static bool average(zf_store *averages, zf_store *from, const char *path, zf_error *error)
{
    const zf_status status = zf_ema_copy(averages, from, NULL);
    if (status == ZF_ERR_ARGUMENT)
        return fail(error, status, "%s has no averages: it was trained without --ema", path);
    return !status || fail(error, status, "%s: %s", path, zf_store_error(averages));
}

/* The parameters of the session's adapter take those of a store. */
static bool take_stored_adapter(session *s, zf_store *store, const char *path, zf_error *error)
{
    zf_graph *part = zf_graph_new(NULL);
    zf_program *from;
    bool good;
    if (!part) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int32_t k = 0; k < zf_param_count(s->graph); k++) {
        const zf_tensor param = zf_param_at(s->graph, k);
        if (zf_param_adapter(param)) (void)zf_param(part, zf_tensor_name(param), zf_param_shape(param), NULL);
    }
    from = zf_compile(part, &(zf_compile_desc){.store = store, .must_exist = true, .evaluate = true});
    good = from != NULL;
    if (!good) fail(error, zf_graph_status(part), "%s: %.400s", path, zf_graph_error(part));
    for (int32_t k = 0; good && k < zf_param_count(part); k++) {
        const zf_tensor source = zf_param_at(part, k);
        const zf_tensor to = zf_graph_find(s->graph, zf_tensor_name(source));
        float *values = malloc((size_t)zf_shape_count(zf_param_shape(to)) * sizeof *values + 1);
        good = values ? !zf_weights_get(from, source, values, error) &&
                            !zf_weights_put(s->program, to, values, error)
                      : fail(error, ZF_ERR_NOMEM, "out of memory");
        free(values);
    }
    zf_program_free(from);
    zf_graph_free(part);
    return good;
}

/* Parameters take the averages that a checkpoint has of them: all, or those of the adapter. */
static bool take_averages(session *s, const char *path, bool adapts, zf_error *error)
{
    const device_desc cpu = {.kind = DEVICE_CPU};
    zf_backend *backend = device_open(&cpu, 1, error);
    zf_store *store = backend ? zf_store_new(&(zf_store_desc){.backend = backend}, error) : NULL;
    const zf_status status = store ? zf_load(store, path, NULL) : ZF_OK;
    bool good = store && (!status || fail(error, status, "%s", zf_store_error(store)));
    good = good && average(adapts ? store : zf_program_store(s->program), store, path, error) &&
           (!adapts || take_stored_adapter(s, store, path, error));
    zf_store_free(store);
    zf_backend_free(backend);
    return good;
}

/* --average needs a checkpoint. */
static bool may_average(const session_desc *d, const char *path, zf_error *error)
{
    if (!d->average) return true;
    if (zf_config_bits(d->sample->config(), d->config) && !d->adapter)
        return fail(error, ZF_ERR_ARGUMENT, "--average is for weights that are floats");
    return zf_folder_is_checkpoint(path) ||
           fail(error, ZF_ERR_ARGUMENT,
                "%s has no averages: only a checkpoint of a run with --ema has", path);
}

/* The adapter has a head in place of that of its base, of which the report lists what is not used:
 * other tensors have been an error. */
static void replace_head(const session *s, zf_weights_report *report)
{
    char name[300];
    for (int32_t k = 0; k < zf_param_count(s->graph); k++) {
        const zf_tensor param = zf_param_at(s->graph, k);
        if (zf_param_adapter(param) && !zf_adapter_is_product(param) &&
            zf_exchange_is_head(s->sample->exchange(), zf_param_plain_name(param, name, sizeof name)))
            report->unused = 0;
    }
}

bool session_open_folder(session *s, const char *path, session_desc *d, int64_t dtype,
                         zf_error *error)
{
    bool checkpoint = zf_folder_is_checkpoint(path), good;
    zf_weights_report report;
    zf_dtype saved = checkpoint ? zf_folder_precision(path) : ZF_F32;
    const bool adapts = d->adapter != NULL;
    struct zf_adapter *adapter;
    if (!may_average(d, adapts ? d->adapter : path, error)) return false;
    if (adapts && !session_fits_base(d->adapter, path, error)) return false;
    adapter = adapts ? zf_adapter_open(d->adapter, error) : NULL;
    if (adapts && !adapter) return false;
    if (adapter) d->training.lora = *zf_adapter_desc(adapter);
    d->training.precision.dtype = dtype ? (zf_dtype)(dtype - 1) : saved;
    if (!session_open(s, d, error)) {
        const zf_error why = *error;
        zf_adapter_close(adapter);
        if (strncmp(why.text, "zf_lora: ", 9)) return false;
        return fail(error, ZF_ERR_MISMATCH, "%.100s is an adapter of another model: %.370s",
                    d->adapter, why.text);
    }
    s->adapter = adapter;
    if (s->plans) return true;
    if (checkpoint && !zf_config_bits(d->sample->config(), d->config) &&
        (d->training.precision.dtype == saved || d->training.precision.dtype == ZF_F32))
        good =
            zf_folder_load(s->program, path, d->training.precision.dtype != saved, adapts, error);
    else {
        good = session_take(s, path, &report, error);
        if (good && report.others)
            fprintf(stderr, "%s: the text part is read; %d tensors of other parts are not\n", path,
                    (int)report.others);
        if (good && adapts) report.fresh -= report.kept; /* the adapter has them */
        if (good && adapts) replace_head(s, &report);
        good = good && zf_weights_whole(&report, path, error);
    }
    good = good && (!s->adapter || zf_adapter_take(s->adapter, s->program, s->graph,
                                               s->sample->exchange(), error));
    good = good && (!d->average || take_averages(s, adapts ? d->adapter : path, adapts, error));
    if (!good) session_close(s);
    return good;
}
