/* The commands eval, export and merge, which read a checkpoint. */
#include "../../../zeroflow_llm.h"
#include "../options/command.h"
#include "../model/dataset.h"
#include "../options/fail.h"
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
    memcpy(&config, desc->config, s->sample->config->bytes);
    d.config = &config;
    if (!zf_config_set_weights(s->sample->config, &config, rounding, error)) return false;
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
    zf_status status = zf_lora_merge(store, &s->training.lora);
    if (status) fail(error, status, "%s", zf_store_error(store));
    return !status;
}

/* export, or merge, which adds an adapter to what is exported. */
static int write_model(const sample_model *sample, bool merges, int argc, char **argv)
{
    const char *load = NULL, *out;
    int64_t dtype = ZF_F32, rounding = 0;
    zf_config_any config = {{0}};
    session_desc d = {.sample = sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {1, 1, 1, false, 0},
                      .threads = 1};
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"model", OPTION_TEXT, "DIR", &load, 0, 0, "the same"},
        {"dtype", OPTION_CHOICE, "f32|bf16|f16", &dtype, 0, 0,
         "of the weights that are written; f32 are the master weights of runs in 16 bits"},
        {merges ? "adapter" : NULL, OPTION_TEXT, "DIR", &d.adapter, 0, 0,
         "an adapter of its weights (--lora, PEFT)"},
        {merges && sample->config->bits ? "weights" : NULL, OPTION_CHOICE, ZF_CONFIG_WEIGHTS,
         &rounding, 0, 0,
         "int8, int4: those of products are rounded first, as when the adapter was trained;\n"
         "                                    float: it is added to the folder's own"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    session s;
    zf_error error = {ZF_OK, ""};
    char file[ZF_FOLDER_PATH];
    int status;
    bool good;
    if (!command_options(argc, argv,
                         merges ? "merge --model DIR --adapter DIR [OPTIONS] DIR|FILE.safetensors"
                                : "export --load DIR [OPTIONS] DIR|FILE.safetensors",
                         rows, &out, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (merges && !d.adapter)
        return command_usage_error(argv, "an adapter is needed: --adapter DIR");
    if (!out) return command_usage_error(argv, "a folder or a file to write is needed");
    good = session_config(sample, load, &config, &error) &&
           session_open_folder(&s, load, &d, 1 + ZF_F32, &error);
    if (good) {
        good = (!merges || (round_weights(&s, &d, rounding, &error) && merge(&s, &error))) &&
               zf_folder_export(out, load, zf_config_json(sample->config, &config),
                                sample->objective->frame,
                                zf_config_positions(sample->config, &config), file, &error) &&
               zf_exchange_export(&sample->exchange, s.program, s.graph, file, false,
                                  (zf_dtype)dtype, &error);
        session_close(&s);
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

/* What the options of eval leave open; NULL, or a mistake in them. */
static const char *complete(settings *o, int64_t *batches, int64_t positions)
{
    if (!o->corpus && !o->data && !o->batch_file)
        return "a text, examples or batches are needed: --corpus, --data or --batch-file";
    if ((o->corpus != NULL) + (o->data != NULL) + (o->batch_file != NULL) > 1)
        return "--corpus, --data and --batch-file exclude one another";
    if ((o->tokenizer || o->chat || o->date || o->alone) && !o->data)
        return "--tokenizer, --chat, --date and --alone are for --data";
    if (!o->seq) o->seq = o->corpus ? 128 : positions < 1024 ? positions : 1024;
    if (!*batches) *batches = o->corpus ? 16 : INT64_MAX;
    if (!o->tokenizer) o->tokenizer = o->load;
    o->vocab = o->load;
    return NULL;
}

int evaluate_command(const sample_model *sample, int argc, char **argv)
{
    const objective *of = sample->objective;
    settings o = {.batch = 16, .threads = 1, .model = ".", .evaluates = true};
    int64_t batches = 0, dtype = 0, rounding = 0;
    zf_config_any config = {{0}};
    session_desc d = {.sample = sample, .purpose = SAMPLE_EVALUATE, .config = &config};
    const option_row all[] = {
        {"load", OPTION_TEXT, "DIR", &o.load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"model", OPTION_TEXT, "DIR", &o.load, 0, 0, "the same"},
        {"adapter", OPTION_TEXT, "DIR", &d.adapter, 0, 0,
         "an adapter of its weights (--lora, PEFT)"},
        {"corpus", OPTION_TEXT, "FILE", &o.corpus, 0, 0, "the text, whose held-out part is used"},
        {"seq", OPTION_COUNT, "T", &o.seq, 0, 65536,
         "tokens of an example; 0: 128 of --corpus, 1024 of --data, or the model's if fewer"},
        {"batch", OPTION_COUNT, "B", &o.batch, 1, 1 << 20, "examples at a time"},
        {"batches", OPTION_COUNT, "N", &batches, 0, 1e6,
         "how many of them, at most; 0: 16 of --corpus, else all"},
        {"dtype", OPTION_CHOICE, SESSION_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"threads", OPTION_COUNT, "N", &o.threads, 1, 1024, "workers"},
        {of->open_data ? "data" : NULL, OPTION_TEXT, "FILE", &o.data, 0, 0,
         "examples instead, JSON Lines, all of which are used"},
        {"tokenizer", OPTION_TEXT, "DIR", &o.tokenizer, 0, 0, "of --data; else that of --load"},
        {"chat", OPTION_TEXT, "STYLE", &o.chat, 0, 0,
         "how messages are written; else as the tokenizer's chat_template says"},
        {"date", OPTION_TEXT, "TEXT", &o.date, 0, 0,
         "today, in styles that show it; else \"" ZF_CHAT_DATE "\""},
        {"alone", OPTION_FLAG, NULL, &o.alone, 0, 0, "each example of --data has a row of its own"},
        {"batch-file", OPTION_TEXT, "FILE", &o.batch_file, 0, 0, "batches instead (safetensors)"},
        {sample->config->bits ? "weights" : NULL, OPTION_CHOICE, ZF_CONFIG_WEIGHTS, &rounding, 0, 0,
         "int8, int4: of products, rounded in blocks of 64"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    dataset data;
    session s;
    sample_score score;
    zf_error error = {ZF_OK, ""};
    const char *wrong;
    int status;
    bool good;
    if (!command_options(argc, argv, "eval --load DIR --corpus FILE [OPTIONS]", all, NULL, &status))
        return status;
    if (!o.load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!o.corpus && !of->open_data)
        return command_usage_error(argv, "a text is needed: --corpus FILE");
    if (!session_config(sample, o.load, &config, &error) ||
        !zf_config_set_weights(sample->config, &config, rounding, &error))
        return command_error("%s", error.text);
    if ((wrong = complete(&o, &batches, zf_config_positions(sample->config, &config))))
        return command_usage_error(argv, wrong);
    if (!dataset_open(&data, sample, &o, &config, &error)) return command_error("%s", error.text);
    d.shape = (sample_shape){.batch = o.batch, .sequence = o.seq}, d.threads = o.threads;
    of->fit_shape(&data, &o, 1, &d.shape);
    good = session_open_folder(&s, o.load, &d, dtype, &error);
    if (good) {
        good = session_score(&s, &data, batches, &score, &error);
        session_close(&s);
    }
    if (good) of->print(&score, &config, data.unigram_nats, false);
    dataset_close(&data, sample);
    return good ? EXIT_GOOD : command_error("%s", error.text);
}
