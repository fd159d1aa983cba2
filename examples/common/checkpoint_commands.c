/* The commands eval, export and merge, which read a checkpoint. */
#include "adapter.h"
#include "command.h"
#include "dataset.h"
#include "fail.h"
#include "frame.h"
#include "session.h"

/* Adds the adapter to the weights of an open session. */
static bool merge(session *s, zf_error *error)
{
    zf_store *store = zf_program_store(s->program);
    zf_status status = zf_lora_merge(store, &s->lora);
    if (status) fail(error, status, "%s", zf_store_error(store));
    return !status;
}

/* export, or merge, which adds an adapter to what is exported. */
static int write_model(const sample_model *sample, bool merges, int argc, char **argv)
{
    const char *load = NULL, *out;
    int64_t dtype = ZF_F32;
    config_any config = {{0}};
    session_desc d = {.sample = sample,
                      .purpose = SAMPLE_EVALUATE,
                      .config = &config,
                      .shape = {1, 1, 1, false},
                      .threads = 1};
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"model", OPTION_TEXT, "DIR", &load, 0, 0, "the same"},
        {"dtype", OPTION_CHOICE, "f32|bf16|f16", &dtype, 0, 0,
         "of the weights that are written; f32 are the master weights of runs in 16 bits"},
        {merges ? "adapter" : NULL, OPTION_TEXT, "DIR", &d.adapter, 0, 0,
         "an adapter of its weights (--lora, PEFT)"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    session s;
    zf_error error = {ZF_OK, ""};
    char file[FOLDER_PATH];
    int status;
    bool good;
    if (!command_options(argc, argv,
                         merges ? "merge --model DIR --adapter DIR [OPTIONS] DIR|FILE.safetensors"
                                : "export --load DIR [OPTIONS] DIR|FILE.safetensors",
                         rows, &out, &status))
        return status;
    if (!load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (merges && !d.adapter) return command_usage_error(argv, "an adapter is needed: --adapter DIR");
    if (!out) return command_usage_error(argv, "a folder or a file to write is needed");
    good = session_config(sample, load, &config, &error) &&
           session_open_folder(&s, load, &d, 1 + ZF_F32, &error);
    if (good) {
        good =
            (!merges || merge(&s, &error)) &&
            folder_export(out, load, config_json(sample->config, &config), sample->objective->frame,
                          config_positions(sample->config, &config), file, &error) &&
            exchange_export(&sample->exchange, s.program, s.graph, file, false, (zf_dtype)dtype,
                            &error);
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

int evaluate_command(const sample_model *sample, int argc, char **argv)
{
    const objective *of = sample->objective;
    settings o = {.seq = 128, .batch = 16, .threads = 1, .model = "."};
    int64_t batches = 16, dtype = 0;
    config_any config = {{0}};
    session_desc d = {.sample = sample, .purpose = SAMPLE_EVALUATE, .config = &config};
    const option_row rows[] = {
        {"load", OPTION_TEXT, "DIR", &o.load, 0, 0, "a checkpoint, or a folder of Hugging Face"},
        {"model", OPTION_TEXT, "DIR", &o.load, 0, 0, "the same"},
        {"adapter", OPTION_TEXT, "DIR", &d.adapter, 0, 0, "an adapter of its weights (--lora, PEFT)"},
        {"corpus", OPTION_TEXT, "FILE", &o.corpus, 0, 0, "the text, whose held-out part is used"},
        {"seq", OPTION_COUNT, "T", &o.seq, (double)of->least_sequence, 65536,
         "tokens of an example"},
        {"batch", OPTION_COUNT, "B", &o.batch, 1, 1 << 20, "examples at a time"},
        {"batches", OPTION_COUNT, "N", &batches, 1, 1e6, "how many of them"},
        {"dtype", OPTION_CHOICE, SESSION_DTYPES, &dtype, 0, 0,
         "it computes in; auto: as the checkpoint was trained, else f32"},
        {"threads", OPTION_COUNT, "N", &o.threads, 1, 1024, "workers"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    dataset data;
    session s;
    sample_score score;
    zf_error error = {ZF_OK, ""};
    int status;
    bool good;
    if (!command_options(argc, argv, "eval --load DIR --corpus FILE [OPTIONS]", rows, NULL,
                         &status))
        return status;
    if (!o.load) return command_usage_error(argv, "a checkpoint is needed: --load DIR");
    if (!o.corpus) return command_usage_error(argv, "a text is needed: --corpus FILE");
    o.vocab = o.model = o.load;
    if (!session_config(sample, o.load, &config, &error) ||
        !dataset_open(&data, sample, &o, &config, &error))
        return command_error("%s", error.text);
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
