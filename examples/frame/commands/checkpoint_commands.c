/* The commands eval, export and merge, which read a checkpoint. */
#include "../../../zeroflow_llm.h"
#include "../options/command.h"
#include "../model/dataset.h"
#include "../options/fail.h"
#include "../options/files.h"
#include "../folder/folder.h"
#include "frame.h"
#include "../model/session.h"

#include <stdlib.h>
#include <string.h>

/* Rounds the values of a parameter to few bits; they stay floats. */
static bool round_param(session *s, zf_tensor param, const zf_quantize_desc *blocks,
                        zf_error *error)
{
    const size_t count = (size_t)zf_shape_count(zf_param_shape(param));
    float *values = malloc(2 * count * sizeof *values + 1); /* and the integers with their scales */
    bool good;
    if (!values) return fail(error, ZF_ERR_NOMEM, "out of memory");
    good = !zf_weights_get(s->program, param, values, error);
    if (good) {
        zf_quantize_values(values + count, values, count, blocks);
        zf_dequantize_values(values, values + count, count, blocks);
        good = !zf_weights_put(s->program, param, values, error);
    }
    free(values);
    return good;
}

/* Rounds the weights of an open session to few bits, as an adapter over these has met them. */
static bool round_weights(session *s, const session_desc *desc, int64_t rounding, zf_error *error)
{
    zf_config_any config;
    session_desc d = *desc;
    zf_graph *few;
    bool good;
    if (!rounding) return true;
    memcpy(&config, desc->config, s->sample->config()->bytes);
    d.config = &config;
    if (!zf_config_set_weights(s->sample->config(), &config, rounding, error)) return false;
    if (!(few = zf_graph_new(NULL))) return fail(error, ZF_ERR_NOMEM, "out of memory");
    s->sample->build(few, &config, &d.shape, d.purpose);
    good = zf_graph_status(few) ? fail(error, zf_graph_status(few), "%s", zf_graph_error(few))
                                : session_has_blocks(few, &d, error);
    for (int32_t k = 0; k < zf_param_count(few) && good; k++) {
        const zf_tensor of_few = zf_param_at(few, k);
        const zf_quantize_desc blocks = zf_param_blocks(of_few);
        if (blocks.bits)
            good = round_param(s, zf_graph_find(s->graph, zf_tensor_name(of_few)), &blocks, error);
    }
    zf_graph_free(few);
    return good;
}

/* Adds the adapter to the weights of an open session. */
static bool merge(session *s, zf_error *error)
{
    zf_store *store = zf_program_store(s->program);
    zf_status status;
    if (!zf_adapter_can_merge(s->graph, s->sample->exchange(), error)) return false;
    status = zf_lora_merge(store, &s->training.lora);
    if (status) fail(error, status, "%s", zf_store_error(store));
    return !status;
}

/* What other programs do not read. */
static void print_unlike(const sample_model *sample, const zf_config_any *config, const char *out)
{
    const char *layout = zf_config_layout(sample->config(), config);
    const char *unlike = sample->unlike ? sample->unlike(config) : NULL;
    if (unlike) printf("%s: %s\n", out, unlike);
    if (*layout)
        printf("%s: this model was trained with --attention %s, which its config.json calls "
               "zeroflow_attention; programs that do not read that let tokens see all keys\n",
               out, layout);
}

typedef struct write_options {
    folder_options from;
    int64_t dtype;
} write_options;

static const zf_option write_rows[] = {
    ZF_OPTION(
        write_options, CHOICE, dtype, 0, "f32|bf16|f16", .topic = "files",
        .help =
            "dtype of the weights that are written; f32 are the master weights of runs in 16 bits"),
    {.name = NULL}};

static const zf_option merge_rows[] = {
    ZF_OPTION(folder_options, CHOICE, weights, 0, ZF_CONFIG_WEIGHTS, .topic = "files",
              .help = "int8, int4: those of products are rounded first, as when the adapter was "
                      "trained; float: it is added to the folder's own"),
    {.name = NULL}};

/* Says what was written of a model of several parts. */
static void print_part(const sample_model *sample, const void *config, const char *from,
                       const char *out)
{
    char type[ZF_CONFIG_TYPE];
    zf_error error = {ZF_OK, ""};
    if (zf_config_text_part(sample->config(), from, type, &error))
        printf("%s: the text part of %s (%s), as %s; its other parts are not written\n", out, from,
               type, sample->config()->architecture_of(config));
}

/* What is written of an open session, and where to. */
typedef struct written {
    session *session;
    const session_desc *desc;
    const folder_options *from;
    zf_checkpoint *checkpoint; /* whose parameters are written one by one; NULL: those in memory */
    const char *out;
    zf_dtype dtype;
} written;

/* Writes the files. */
static bool write_files(const written *w, zf_error *error)
{
    const sample_model *sample = w->desc->sample;
    session *s = w->session;
    char file[ZF_FOLDER_PATH];
    if (!zf_folder_export(w->out, w->from->load,
                          zf_config_json(sample->config(), w->desc->config),
                          sample->objective->frame,
                          zf_config_positions(sample->config(), w->desc->config), file, error))
        return false;
    if (w->checkpoint)
        return zf_exchange_export_from(sample->exchange(), w->checkpoint, s->graph, file, w->dtype,
                                       error);
    return zf_exchange_export(sample->exchange(), s->program, s->graph, file, false, w->dtype,
                              error);
}

/* The session of a checkpoint only plans: it says which parameters there are. */
static bool write_session(written *w, bool merges, zf_error *error)
{
    session *s = w->session;
    bool good = true;
    if (w->desc->plan_only)
        good = (w->checkpoint = zf_exchange_open(w->from->load, w->from->average, s->graph, NULL,
                                                 error)) != NULL;
    if (merges) good = round_weights(s, w->desc, w->from->weights, error) && merge(s, error);
    good = good && write_files(w, error);
    zf_checkpoint_close(w->checkpoint);
    return good;
}

/* export, or merge, which adds an adapter to what is exported. */
static int write_model(const sample_model *sample, bool merges, int argc, char **argv)
{
    write_options o = {.dtype = ZF_F32};
    const char *out;
    zf_config_any config = {{0}};
    session_desc d = {.sample = sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {.batch = 1, .sequence = 1, .predictions = 1},
                      .threads = 1};
    command_tables tables = {.count = 0};
    named_files files = {.count = 0};
    session s;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    command_add(&tables, folder_load_rows, &o.from);
    command_add(&tables, merges ? folder_adapter_rows : NULL, &o.from);
    command_add(&tables, write_rows, &o);
    command_add(&tables, merges && sample->config()->bits ? merge_rows : NULL, &o.from);
    if (!command_options(argc, argv,
                         merges ? "merge --model DIR --adapter DIR [OPTIONS] DIR|FILE.safetensors"
                                : "export --load DIR [OPTIONS] DIR|FILE.safetensors",
                         &tables, &out, &status))
        return status;
    if (!o.from.load) return command_usage_error(argv, folder_is_missing);
    if (merges && !o.from.adapter)
        return command_usage_error(argv, "an adapter is needed: --adapter DIR");
    if (!out) return command_usage_error(argv, "a folder or a file to write is needed");
    d.adapter = o.from.adapter, d.average = o.from.average;
    files_add(&files, "", out, true);
    files_add_options(&files, tables.all, tables.count);
    good = files_apart(&files, &error) &&
           session_config(sample, o.from.load, o.from.adapter, &config, &error);
    d.plan_only = good && !merges && zf_folder_is_checkpoint(o.from.load) &&
                  !zf_config_bits(sample->config(), &config);
    good = good && session_open_folder(&s, o.from.load, &d, 1 + ZF_F32, &error);
    if (good) {
        written w = {.session = &s,
                     .desc = &d,
                     .from = &o.from,
                     .out = out,
                     .dtype = (zf_dtype)o.dtype};
        good = write_session(&w, merges, &error);
        session_close(&s);
        if (good) print_unlike(sample, &config, out);
        if (good) print_part(sample, &config, o.from.load, out);
    }
    return good ? EXIT_GOOD : command_error("%s", error.text);
}

int export_command(const sample_model *sample, int argc, char **argv)
{
    return write_model(sample, false, argc, argv);
}

int merge_command(const sample_model *sample, int argc, char **argv)
{
    return write_model(sample, true, argc, argv);
}

typedef struct evaluate_options {
    folder_options from;
    settings o; /* of the data */
    int64_t batches;
} evaluate_options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(settings, kind, member, default_, range, __VA_ARGS__)

static const zf_option data_rows[] = {
    ROW(TEXT, corpus, 0, NULL, .unit = "FILE", .topic = "data", .with = "!data, !batch_file",
        .traits = ZF_OPTION_READS,
        .help = "the text, whose held-out part is used"),
    ROW(FLAG, pack, 0, NULL, .with = "corpus",
        .help = "a token sees its own document of --corpus alone, as in training with --pack"),
    ROW(TEXT, batch_file, 0, NULL, .unit = "FILE", .with = "!data", .traits = ZF_OPTION_READS,
        .help = "evaluate these batches instead (safetensors)"),
    ROW(COUNT, seq, 0, "[0,65536]", .unit = "T",
        .help = "tokens of an example; 0: 128 of --corpus, 1024 of --data, or the model's if "
                "fewer"),
    ROW(COUNT, batch, 16, "[1,1048576]", .unit = "B", .help = "examples at a time"),
    {.name = NULL}};

const zf_option frame_examples_rows[] = {
    ROW(TEXT, data, 0, NULL, .unit = "FILE", .topic = "data", .traits = ZF_OPTION_READS,
        .help = "evaluate all of these examples instead (JSON Lines)"),
    ROW(TEXT, tokenizer, 0, NULL, .unit = "DIR", .with = "data", .traits = ZF_OPTION_READS,
        .help = "tokenizer of --data; without this option that of --load"),
    ROW(TEXT, chat, 0, NULL, .unit = "STYLE|FILE", .with = "data", .traits = ZF_OPTION_READS,
        .help = "how messages are written; else as the tokenizer's chat_template says"),
    ROW(TEXT, chat_vars, 0, NULL, .unit = "JSON", .with = "data",
        .help = "variables of the template, as {\"enable_thinking\": false}"),
    ROW(TEXT, date, 0, NULL, .unit = "DAY", .with = "data",
        .help = "the day that the template shows; else \"" ZF_CHAT_DATE "\""),
    {.name = NULL}};

static const zf_option documents_rows[] = {
    ROW(FLAG, alone, 0, NULL, .with = "data",
        .help = "each example of --data has a row of its own"),
    {.name = NULL}};

static const zf_option batches_rows[] = {
    ZF_OPTION(evaluate_options, COUNT, batches, 0, "[0,1000000]", .topic = "data",
              .help = "maximum number of batches; 0: 16 of --corpus, else all"),
    {.name = NULL}};

static command_tables evaluate_tables(evaluate_options *e, const sample_model *sample,
                                      zf_options own)
{
    command_tables t = {.count = 0};
    command_add(&t, folder_load_rows, &e->from);
    command_add(&t, folder_adapter_rows, &e->from);
    command_add(&t, data_rows, &e->o);
    command_add(&t, sample->objective->open_data ? frame_examples_rows : NULL, &e->o);
    command_add(&t, sample->objective->open_data ? documents_rows : NULL, &e->o);
    command_add(&t, own.rows, own.desc);
    command_add(&t, batches_rows, e);
    command_add(&t, folder_compute_rows, &e->from);
    command_add(&t, sample->config()->bits ? folder_weights_rows : NULL, &e->from);
    return t;
}

/* What eval needs; NULL: all is given. */
static const char *missing(const evaluate_options *e, const sample_model *sample)
{
    if (!e->from.load) return folder_is_missing;
    if (e->o.corpus || e->o.data || e->o.batch_file) return NULL;
    return sample->objective->open_data
               ? "a text, examples or batches are needed: --corpus, --data or --batch-file"
               : "a text is needed: --corpus FILE";
}

/* Sets what the options of eval leave open. */
static void complete(evaluate_options *e, int64_t positions)
{
    settings *o = &e->o;
    const int64_t usual = o->corpus ? 128 : 1024;
    if (!o->seq) o->seq = positions < usual ? positions : usual;
    if (!e->batches) e->batches = o->corpus ? 16 : INT64_MAX;
    o->load = o->vocab = e->from.load;
    if (!o->tokenizer) o->tokenizer = o->load;
    o->threads = folder_threads(&e->from);
    o->model = ".", o->evaluates = true;
}

int evaluate_command(const sample_model *sample, int argc, char **argv)
{
    return evaluate_command_with(sample, (zf_options){.rows = NULL}, argc, argv);
}

int evaluate_command_with(const sample_model *sample, zf_options own, int argc, char **argv)
{
    const objective *of = sample->objective;
    evaluate_options e = {.o = {.own = own.desc}};
    const command_tables tables = evaluate_tables(&e, sample, own);
    zf_config_any config = {{0}};
    session_desc d = {.sample = sample, .purpose = SAMPLE_EVALUATE, .config = &config};
    dataset data;
    session s;
    sample_score score;
    zf_error error = {ZF_OK, ""};
    const char *wrong;
    int status;
    bool good;
    if (!command_options(argc, argv, "eval --load DIR --corpus FILE [OPTIONS]", &tables, NULL,
                         &status))
        return status;
    if ((wrong = missing(&e, sample))) return command_usage_error(argv, wrong);
    if (!session_config(sample, e.from.load, e.from.adapter, &config, &error) ||
        !zf_config_set_weights(sample->config(), &config, e.from.weights, &error))
        return command_error("%s", error.text);
    complete(&e, zf_config_positions(sample->config(), &config));
    if (!dataset_open(&data, sample, &e.o, &config, &error)) return command_error("%s", error.text);
    d.shape = (sample_shape){.batch = e.o.batch, .sequence = e.o.seq};
    d.threads = e.o.threads, d.adapter = e.from.adapter;
    d.average = e.from.average;
    of->fit_shape(&data, &e.o, 1, &d.shape);
    good = session_open_folder(&s, e.from.load, &d, e.from.dtype, &error);
    if (good) {
        session_tell_floats(&s);
        good = session_score(&s, &data, e.batches, &score, &error);
        session_close(&s);
    }
    if (good) dataset_tell(&data, &e.o);
    if (good) of->print(&score, &config, data.unigram_nats, false);
    dataset_close(&data, sample);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
