#include "session.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void session_set(zf_training *t, const char *option, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    (void)zf_options_set(&(zf_options){.rows = zf_training_options(), .desc = t}, 1, option, text, NULL);
}

static bool leaves_device(const zf_offload_desc *d)
{
    return d->optimizer || d->parameters || d->gradients || d->activations;
}

/* Fits the step into memory: all its variants by the choice that was made for the first, and stages
 * by layers that fit. With one rank and one micro-batch, parameters are in buckets only where
 * values leave the device. */
static void fit_step(session *s, const session_desc *d, zf_training *t)
{
    if (t->stages.ranks > 1) t->memory_limit = (size_t)d->fit;
    if (s->choice.tried) {
        t->offload = s->choice.offload, t->recompute = s->choice.recompute;
        return;
    }
    t->zero.bucket_bytes = d->training.zero.bucket_bytes;
    t->fit.choice = &s->choice;
    if (s->own->host_memory) t->fit.memory = (size_t)d->fit;
    else t->fit.device = (size_t)d->fit, t->fit.host = device_host_memory();
    if (d->offload_dir) t->fit.disk = INT64_MAX;
}

static const char first_adapter[] = "ref"; /* of SESSION_FIRST */

/* Each step would gather or copy parameters. */
static bool brings_parameters(const zf_training *t, int32_t world)
{
    return (t->zero.stage == 3 && world > 1) || t->offload.parameters != ZF_DEVICE;
}

/* The description of a step that shares the parameters of another session. */
static zf_training sharing_training(const session *s, const session_desc *d)
{
    zf_training t = d->training;
    const zf_training *from = &d->share->training;
    if (d->with != SESSION_NEXT) t.lora = from->lora;
    t.precision = from->precision, t.tile = from->tile;
    if (d->with == SESSION_BASE) t.lora = (zf_lora_desc){.rank = 0};
    if (d->with == SESSION_FIRST) t.lora.name = first_adapter;
    t.tensor = from->tensor, t.context = from->context, t.sections = from->sections;
    t.expert = from->expert, t.expert_rows = from->expert_rows;
    t.expert_dispatch = from->expert_dispatch;
    t.context_kind = from->context_kind;
    t.stages = from->stages, t.order = from->order;
    t.zero = from->zero, t.zero.micro_batches = s->micro_batches;
    t.zero.hold |= d->hold && brings_parameters(from, s->world);
    t.prefetch = from->prefetch, t.cost = from->cost;
    t.offload = from->offload;
    if (d->purpose != SAMPLE_TRAIN)
        t.offload = (zf_offload_desc){.parameters = from->offload.parameters};
    t.delay = false, t.delay_from = 0;
    return t;
}

/* The description of a variant of the step of one rank; with ZeRO, that of each rank. store: of the
 * session that this one shares parameters with, or of the first variant; NULL: none. */
static zf_training step_training(session *s, const session_desc *d, int32_t variant,
                                 const zf_store *store)
{
    zf_training t = d->share ? sharing_training(s, d) : d->training;
    const zf_zero_desc whole = {.store = store};
    t.loss = t.lr = ZF_NONE;
    if (d->purpose == SAMPLE_TRAIN)
        t.loss = zf_graph_find(s->graph, "loss"), t.lr = zf_graph_find(s->graph, "lr");
    if (t.clip == 0 || t.clip == ZF_ZERO) t.clip = INFINITY;
    t.variant = variant;
    t.zero.world = s->world, t.zero.store = store;
    if (!s->buckets) t.zero = whole;
    if (d->measure) t.cost = &s->cost;
    t.backend = d->turns ? s->backend : s->own;
    return t;
}

static void run_passes(session *s, const session_desc *d, int32_t variant, const zf_store *store)
{
    zf_training t = step_training(s, d, variant, store);
    /* One GPU is faster without `invert`; several ranks would have to agree on leaving it out. */
    if (s->world == 1 && !d->share && !t.fuse.without &&
        (t.memory_limit = device_memory(&d->device)))
        t.fuse.invert = ZF_INVERT_AS_NEEDED;
    if (d->fit && d->purpose == SAMPLE_TRAIN) fit_step(s, d, &t);
    s->training = t;
    if (!zf_passes(s->graph, &t) && t.fit.choice) {
        s->training.offload = s->choice.offload;
        s->buckets |= leaves_device(&s->choice.offload) || t.zero.bucket_bytes;
    }
}

/* Sets what is shared from the desc, or from the session whose parameters are shared. */
static void set_sharing(session *s, const session_desc *d)
{
    const zf_zero_desc *zero = &d->training.zero;
    const zf_comm *comm = d->share ? d->share->comm : d->comm;
    s->comm = comm;
    const zf_training *t = d->share ? &d->share->training : &d->training;
    s->world = comm ? comm->world / sample_sharing(t) : 1; /* along data */
    s->micro_batches = zero->micro_batches ? zero->micro_batches : 1;
    s->buckets = d->share ? d->share->buckets
                          : comm || zero->stage || s->micro_batches > 1 ||
                                leaves_device(&d->training.offload);
    if (d->share) s->cost = d->share->cost;
}

static bool open_backend(session *s, const session_desc *d, zf_error *error)
{
    const device_desc cpu = {.kind = DEVICE_CPU};
    if (d->share || d->turns) {
        s->backend = (d->share ? d->share : d->turns)->backend;
        return true;
    }
    s->backend = s->own = device_open(&d->device, d->threads, error);
    if (s->own && !s->own->host_memory && !(s->host = device_open(&cpu, d->threads, error)))
        return false;
    return s->own &&
           (!d->measure ||
            !zf_calibrate(&(zf_calibrate_desc){.backend = s->own,
                                               .nodes = d->training.zero.nodes,
                                               .host = s->host,
                                               .comm = s->comm,
                                               .offload_dir = d->offload_dir},
                          &s->cost, error));
}

static int32_t shapes_of(const session_desc *d) { return d->shapes ? d->phases->shapes : 1; }

static bool fits_positions(const session_desc *d, zf_error *error)
{
    const int64_t positions = zf_config_positions(d->sample->config(), d->config);
    int64_t longest = d->shape.sequence;
    for (int32_t k = 0; d->shapes && k < shapes_of(d); k++)
        if (d->shapes[k].sequence > longest) longest = d->shapes[k].sequence;
    return longest <= positions ||
           fail(error, ZF_ERR_ARGUMENT,
                "sequences of %lld tokens are too long for the model's %lld positions",
                (long long)longest, (long long)positions);
}

bool session_has_blocks(zf_graph *g, const session_desc *d, zf_error *error)
{
    if (!zf_config_bits(d->sample->config(), d->config)) return true;
    for (int32_t k = 0; k < zf_param_count(g); k++)
        if (zf_param_blocks(zf_param_at(g, k)).bits) return true;
    return fail(error, ZF_ERR_ARGUMENT,
                "weights of few bits are in blocks of 64 numbers, and no product of this model "
                "has rows of a multiple of 64");
}

const char *session_floats(zf_graph *g, char *text, size_t bytes)
{
    char all[400] = ",", layer[100];
    bool some = false;
    for (int32_t k = 0; k < zf_param_count(g); k++) {
        const zf_tensor param = zf_param_at(g, k);
        const zf_shape shape = zf_param_shape(param);
        const char *name = zf_tensor_name(param), *end = strrchr(name, '.'), *begin = end;
        const size_t used = strlen(all);
        some = some || zf_param_blocks(param).bits;
        if (zf_param_adapter(param) || zf_param_blocks(param).bits || shape.rank < 2 ||
            shape.dims[shape.rank - 1] % 64 == 0 || !end)
            continue;
        while (begin > name && begin[-1] != '.') begin--;
        snprintf(layer, sizeof layer, " %.*s,", (int)(end - begin), begin);
        if (!strstr(all, layer)) snprintf(all + used, sizeof all - used, "%s", layer);
    }
    *text = 0;
    if (some && all[1])
        snprintf(text, bytes, ", but for those of%.*s, whose rows are no multiple of 64 numbers",
                 (int)strlen(all) - 2, all + 1);
    return text;
}

void session_tell_floats(const session *s)
{
    char text[500];
    if (*session_floats(s->graph, text, sizeof text))
        fprintf(stderr, "%s: weights are of few bits%s\n", s->sample->title, text);
}

/* The adapter of SESSION_FIRST is in the store. */
static bool has_first(zf_graph *g, const zf_store *store)
{
    for (int32_t k = 0; k < zf_param_count(g); k++)
        if (zf_param_adapter(zf_param_at(g, k)))
            return zf_store_find(store, zf_tensor_name(zf_param_at(g, k))) >= 0;
    return false;
}

static const char *adapter_name(const zf_training *t)
{
    const char *name = zf_training_resolved(t).lora.name;
    return name ? name : "";
}

bool session_is_judge(const session *s, const char *adapter)
{
    return adapter && !strncmp(adapter, SESSION_JUDGE, sizeof SESSION_JUDGE - 1) &&
           strcmp(adapter, adapter_name(&s->training)) != 0;
}

char *session_keep(const char *head, const char *keep, const char *scope, zf_error *error)
{
    const char *at = keep ? keep : "";
    const size_t each = (scope ? strlen(scope) : 0) + 2;
    size_t room = strlen(head) + 1 + strlen(at), length;
    char *out;
    for (const char *c = at; *c; c++) room += (c == at || *c == ',') * each;
    if (!(out = malloc(room))) return fail(error, ZF_ERR_NOMEM, "out of memory"), NULL;
    length = (size_t)snprintf(out, room, "%s", head);
    while (*at) {
        const size_t bytes = strcspn(at, ",");
        length += (size_t)snprintf(out + length, room - length, ",%s%s%.*s", scope ? scope : "",
                                   scope ? "." : "", (int)bytes, at);
        at += bytes + (at[bytes] == ',');
    }
    return out;
}

/* The adapter of a session that shares parameters has another name than that of the other
 * session. */
static bool fits_name(const session *s, const session_desc *d, zf_error *error)
{
    if (!d->share || d->with == SESSION_OWN || d->with == SESSION_BASE || !s->training.lora.rank ||
        !d->share->training.lora.rank ||
        strcmp(adapter_name(&s->training), adapter_name(&d->share->training)) != 0)
        return true;
    return fail(error, ZF_ERR_ARGUMENT,
                "two adapters of one base have the name \"%s\": give the first one another "
                "(--lora name=NAME)",
                adapter_name(&s->training));
}

/* What a session that shares parameters reads without their adapter, or with its first values, is
 * there and is not trained. */
static bool fits_adapter(session *s, const session_desc *d, const zf_store *store, zf_error *error)
{
    if (!d->share || d->with == SESSION_OWN || d->with == SESSION_NEXT ||
        zf_graph_status(s->graph))
        return true;
    if (zf_valid(d->share->lr) && !zf_training_resolved(&d->share->training).lora.rank)
        return fail(error, ZF_ERR_ARGUMENT,
                    "all parameters are trained, and none is left as it was: a reference without a "
                    "copy of them needs an adapter (--lora)");
    for (int32_t k = 0; k < zf_param_count(s->graph); k++) {
        const zf_tensor param = zf_param_at(s->graph, k);
        const char *name = zf_tensor_name(param);
        const int32_t at = zf_store_find(store, name);
        if (!zf_param_adapter(param) && at >= 0 && zf_store_at(store, at).adapter)
            return fail(error, ZF_ERR_MISMATCH,
                        "the reference reads %.200s, which stays trained next to the adapter: take "
                        "the adapter's first values as the reference",
                        name);
    }
    return true;
}

/* The session generates in the memory of one that does not: its caches may lie there too, since a
 * generation begins with its prompt. */
static bool lends_caches(const session_desc *d)
{
    return d->purpose == SAMPLE_GENERATE && d->share && !d->share->keeps &&
           !zf_program_info_of(d->share->program).cache_bytes;
}

/* The program that gathers what the session reads, if it holds parameters in its own memory. */
static bool open_gather(session *s, const zf_compile_desc *with, zf_error *error)
{
    zf_compile_desc how = *with;
    if (!s->gathers) return true;
    how.caches = s->program, how.temporary_caches = false;
    s->gather = zf_compile(s->gathers, &how);
    return s->gather ||
           fail(error, zf_graph_status(s->gathers), "%s", zf_graph_error(s->gathers));
}

/* The program in whose memory the values of a step lie; NULL: none. `sharing`: another variant. */
static const zf_program *memory_of(const session_desc *d, const zf_program *sharing)
{
    const session *other = d->share ? d->share : d->turns;
    if (!other || (d->turns && sharing)) return sharing;
    return other->keeps ? NULL : other->program;
}

/* The one with most tokens. */
static int32_t largest_shape(const session_desc *d)
{
    int32_t largest = 0;
    for (int32_t k = 1; k < shapes_of(d); k++)
        if (d->shapes[k].batch * d->shapes[k].sequence >
            d->shapes[largest].batch * d->shapes[largest].sequence)
            largest = k;
    return largest;
}

/* Builds and compiles variant k of the step, over the store, if there is one. `sharing`: a variant
 * that has been compiled, or NULL. */
static bool open_variant(session *s, const session_desc *d, int32_t k, zf_store *store,
                         const zf_program *sharing, zf_error *error)
{
    const sample_shape *shape = d->shapes ? &d->shapes[k % shapes_of(d)] : &d->shape;
    zf_compile_desc with;
    bool copies;
    s->graph = s->graphs[k] = zf_graph_new(NULL);
    if (!s->graph) return fail(error, ZF_ERR_NOMEM, "out of memory");
    d->sample->build(s->graph, d->config, shape, d->purpose);
    if (!zf_graph_status(s->graph) && !session_has_blocks(s->graph, d, error)) return false;
    run_passes(s, d, k / shapes_of(d), store);
    s->lr = zf_graph_find(s->graph, "lr");
    if (!fits_name(s, d, error) || !fits_adapter(s, d, store, error)) return false;
    copies = d->share && d->with == SESSION_FIRST && !has_first(s->graph, store);
    if (d->hold && s->training.zero.hold && !(s->gathers = zf_hold_graph(s->graph)))
        return fail(error, ZF_ERR_NOMEM, "out of memory");
    with = (zf_compile_desc){.backend = s->backend,
                             .host = s->host,
                             .seed = d->share && d->with != SESSION_NEXT ? 0 : d->seed,
                             .store = store,
                             .must_exist = d->share && !copies && d->with != SESSION_NEXT,
                             .shares_memory_with = memory_of(d, sharing),
                             .reserve = d->reserve,
                             .caches = d->share ? d->share->program : NULL,
                             .temporary_caches = lends_caches(d),
                             .comm = s->comm,
                             .offload_dir = store ? NULL : d->offload_dir,
                             .evaluate = d->purpose != SAMPLE_TRAIN};
    s->program = s->programs[k] = zf_compile(s->graph, &with);
    if (!s->program)
        return fail(error, zf_graph_status(s->graph), "%s", zf_graph_error(s->graph));
    if (!open_gather(s, &with, error)) return false;
    return !copies || s->plans || !zf_lora_copy(store, first_adapter, d->share->training.lora.name) ||
           fail(error, ZF_ERR_BACKEND, "%s", zf_store_error(store));
}

static void close_variants(session *s)
{
    zf_program_free(s->gather), zf_graph_free(s->gathers);
    s->gather = NULL, s->gathers = NULL;
    for (int32_t k = 0; k < SESSION_VARIANTS; k++) {
        zf_program_free(s->programs[k]), zf_graph_free(s->graphs[k]);
        s->programs[k] = NULL, s->graphs[k] = NULL;
    }
    s->program = NULL, s->graph = NULL;
}

/* Compiles all variants of the step, `first` before the others, which lie in its memory if they
 * have room there. */
static bool open_variants(session *s, const session_desc *d, int32_t first, zf_error *error)
{
    zf_store *store = d->share ? zf_program_store(d->share->program) : s->planned;
    bool good = open_variant(s, d, first, store, NULL, error);
    if (good && !store) store = zf_program_store(s->program);
    s->variants = good ? zf_variant_count(&s->training) * shapes_of(d) : 0;
    for (int32_t k = 0; k < s->variants && good; k++)
        if (k != first) good = open_variant(s, d, k, store, s->programs[first], error);
    return good;
}

/* The variant whose values of a step take most memory of the device; of several, `first`. */
static int32_t largest_variant(const session *s, int32_t first)
{
    int32_t largest = first;
    for (int32_t k = 0; k < s->variants; k++)
        if (zf_program_info_of(s->programs[k]).work_bytes >
            zf_program_info_of(s->programs[largest]).work_bytes)
            largest = k;
    return largest;
}

/* All variants share the memory of the largest, which is known when all have been compiled: if that
 * is not the first, they are compiled again. */
static bool open_step(session *s, const session_desc *d, zf_error *error)
{
    const int32_t first = largest_shape(d);
    int32_t largest;
    if (!open_variants(s, d, first, error)) return false;
    largest = largest_variant(s, first);
    if (largest != first) close_variants(s);
    return largest == first || open_variants(s, d, largest, error);
}

/* The store of a session that plans. */
static bool open_planned(session *s, const session_desc *d, zf_error *error)
{
    if (!d->plan_only || d->share) return true;
    s->planned = zf_store_new(&(zf_store_desc){.backend = s->backend,
                                               .host = s->host,
                                               .comm = s->comm,
                                               .seed = d->seed,
                                               .plan_only = true},
                              error);
    return s->planned != NULL;
}

/* Labelled positions of a part, at most. */
static int64_t predictions_of(const session_desc *d)
{
    int64_t most = d->shape.predictions;
    for (int32_t k = 0; d->shapes && k < shapes_of(d); k++)
        if (d->shapes[k].predictions > most) most = d->shapes[k].predictions;
    return most;
}

bool session_open(session *s, const session_desc *d, zf_error *error)
{
    *s = (session){.sample = d->sample,
                   .shape = d->shape,
                   .shapes = d->shapes,
                   .phases = d->phases,
                   .keeps = d->training.keep_gradients,
                   .device = d->device,
                   .threads = d->threads,
                   .dtype = d->share ? d->share->dtype : d->training.precision.dtype};
    set_sharing(s, d);
    s->plans = d->share ? d->share->plans : d->plan_only;
    if (!fits_positions(d, error)) return false;
    s->labelled = malloc((size_t)(2 * predictions_of(d)) * sizeof *s->labelled + 1);
    if (!s->labelled) {
        fail(error, ZF_ERR_NOMEM, "out of memory");
    } else if (open_backend(s, d, error) && open_planned(s, d, error)) {
        const bool good = open_step(s, d, error);
        s->rank = good && s->comm ? zf_rank_along(s->graph, ZF_OVER_DATA, s->comm->rank) : 0;
        if (good) session_turn(s, zf_program_step(s->program));
        if (good) return true;
    }
    session_close(s);
    return false;
}

void session_turn(session *s, int64_t done)
{
    int32_t k = zf_variant_at(&s->training, done + 1);
    if (s->shapes) {
        const int32_t shape = shape_phases_at(s->phases, done)->shape;
        k = k * s->phases->shapes + shape;
        s->shape = s->shapes[shape];
    }
    if (s->variants < 2) return;
    s->graph = s->graphs[k], s->program = s->programs[k];
    s->lr = zf_graph_find(s->graph, "lr");
}

void session_close(session *s)
{
    close_variants(s);
    zf_store_free(s->planned);
    zf_backend_free(s->own);
    zf_backend_free(s->host);
    zf_adapter_close(s->adapter);
    free(s->labelled);
    *s = (session){.graph = NULL};
}

bool session_hold(session *s, zf_error *error)
{
    const zf_status status = s->gather ? zf_hold(s->gather) : ZF_OK;
    return !status || fail(error, status, "%s", zf_program_error(s->gather));
}

zf_status session_write(session *s, const char *input, const void *data, size_t bytes)
{
    zf_tensor t = zf_graph_find(s->graph, input);
    return zf_valid(t) ? zf_write(s->program, t, data, bytes) : ZF_OK;
}

zf_status session_feed(session *s, const void *batch, bool sums)
{
    int64_t micro_batches = s->micro_batches, parts = s->world * micro_batches;
    zf_status status = ZF_OK;
    for (int64_t micro = 0; micro < micro_batches && !status; micro++) {
        status = s->sample->objective->feed(s, batch, micro * s->world + s->rank, parts, sums);
        if (!status && micro + 1 < micro_batches) status = zf_micro(s->program);
    }
    return status;
}

int64_t session_parameters(const session *s)
{
    int64_t count = 0;
    if (sample_sharing(&s->training) < 2) return zf_program_info_of(s->program).param_count;
    for (int32_t k = 0; k < zf_param_count(s->graph); k++)
        count += zf_shape_count(zf_whole_shape(zf_param_at(s->graph, k)));
    return count;
}

double session_scalar(session *s, const char *output)
{
    zf_tensor t = zf_graph_find(s->graph, output);
    float value = NAN;
    if (!zf_valid(t)) return 0;
    (void)zf_read(s->program, t, &value, sizeof value);
    return value;
}

int64_t session_skipped(session *s)
{
    int64_t steps = 0;
    zf_tensor skipped = zf_graph_find(s->graph, "skipped_steps");
    if (zf_valid(skipped)) (void)zf_read(s->program, skipped, &steps, sizeof steps);
    return steps;
}

/* Adds the scores of the batch that was fed. */
static void add_scores(session *s, sample_score *score)
{
    const objective *of = s->sample->objective;
    for (int k = 0; k < SAMPLE_SCORES && of->scores[k].name; k++)
        score->value[k] += session_scalar(s, of->scores[k].output);
}

/* Reads batches from number `first` on, and adds their scores. */
static bool add_batches(session *s, const dataset *d, bool held_out, int64_t first, int64_t batches,
                        sample_score *score, batch_counts *counts, zf_error *error)
{
    const objective *of = s->sample->objective;
    int64_t examples = s->shape.batch * s->world * s->micro_batches;
    void *reader = of->start(d, held_out, examples, first, error);
    zf_status status = ZF_OK;
    if (!reader) return false;
    for (int64_t k = 0; k < batches; k++) {
        const void *batch = of->read(reader, first + k);
        batch_counts here = of->count(batch);
        status = session_feed(s, batch, held_out);
        if (!status) status = zf_step(s->program);
        if (status) break; /* a read would clear the error */
        add_scores(s, score);
        counts->labelled += here.labelled, counts->pairs += here.pairs;
    }
    of->stop(reader);
    return !status || fail(error, status, "%s", zf_program_error(s->program));
}

/* Divides sums by their counts; where losses are means already, only sets the counts. */
static bool finish_scores(const objective *of, sample_score *score, const batch_counts *counts,
                          bool means)
{
    double labelled = (double)(counts->labelled ? counts->labelled : 1),
           pairs = (double)(counts->pairs ? counts->pairs : 1);
    score->labelled = counts->labelled;
    for (int k = 0; k < SAMPLE_SCORES && of->scores[k].name; k++) {
        if (!means || of->scores[k].counts)
            score->value[k] /= of->scores[k].of_pairs ? pairs : labelled;
        if (!of->scores[k].counts) score->loss += score->value[k];
    }
    return isfinite(score->loss);
}

bool session_score(session *s, const dataset *d, int64_t batches, sample_score *out,
                   zf_error *error)
{
    const objective *of = s->sample->objective;
    const int64_t most =
        of->batches ? of->batches(d, s->shape.batch * s->world * s->micro_batches) : 0;
    batch_counts counts = {0, 0};
    *out = (sample_score){.labelled = 0};
    if (most && batches > most) batches = most;
    return add_batches(s, d, true, 0, batches, out, &counts, error) &&
           (finish_scores(of, out, &counts, false) ||
            fail(error, ZF_ERR_NAN, "held out: the loss is not a finite number"));
}

bool session_score_step(session *s, const dataset *d, int64_t step, sample_score *out,
                        zf_error *error)
{
    batch_counts counts = {0, 0};
    *out = (sample_score){.labelled = 0};
    return add_batches(s, d, false, step, 1, out, &counts, error) &&
           (finish_scores(s->sample->objective, out, &counts, true) ||
            fail(error, ZF_ERR_NAN, "the batch of step %lld: the loss is not a finite number",
                 (long long)step + 1));
}
