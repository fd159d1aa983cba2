/* Fine-tuning by one rank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ZFL_TUNER_ROWS = 8, ZFL_TUNER_TOKENS = 512 };

static bool zfl_tuner_adapts(const zf_tuner *t)
{
    static const zf_lora_desc none = {.rank = 0};
    return memcmp(&t->training.lora, &none, sizeof none) != 0;
}

static bool zfl_tuner_alone(const zf_training *t, zf_error *error)
{
    return (t->zero.world <= 1 && t->zero.micro_batches <= 1 && t->tensor <= 1 && t->context <= 1 &&
            t->expert <= 1 && t->stages.ranks <= 1 && !t->delay && !t->delay_from &&
            zf_variant_count(t) == 1) ||
           zfl_fail(error, ZF_ERR_ARGUMENT,
                    "a tuner has one rank, one micro-batch and one kind of step");
}

/* The configuration, as config.json and the weights say it. */
static bool zfl_read_tuner_config(zf_tuner *t, zf_error *error)
{
    const zf_model *model = zf_causal_model();
    zf_weights *w;
    if (!zf_config_load(model->config, t->folder, &t->config, error)) return false;
    if (!(w = zf_weights_open(t->folder, error))) return false;
    if (!zf_exchange_is_tied(&model->exchange, w, error)) t->config.tied = 0;
    zf_weights_close(w);
    return !error->status;
}

static bool zfl_load_examples(zf_tuner *t, const zf_tuner_desc *d, zf_error *error)
{
    const int64_t positions = t->config.positions,
                  usual = positions < ZFL_TUNER_TOKENS ? positions : ZFL_TUNER_TOKENS,
                  rows = d->batch ? d->batch : ZFL_TUNER_ROWS;
    const zf_examples_desc how = {.tokens = d->tokenizer,
                                  .chat = d->chat && d->chat->plain ? d->chat : NULL,
                                  .end = d->chat && *d->chat->end
                                             ? zf_tokenizer_id(d->tokenizer, d->chat->end)
                                             : (int32_t)t->config.ends[0],
                                  .vocab = t->config.vocab,
                                  .sequence = d->sequence ? d->sequence : usual};
    if (rows < 1 || how.sequence < 1 || how.sequence > positions)
        return zfl_fail(error, ZF_ERR_ARGUMENT,
                        "a tuner's batch of %lld rows of %lld tokens must have at least 1 of each, "
                        "and rows at most the model's %lld positions",
                        (long long)rows, (long long)how.sequence, (long long)positions);
    return zf_tuning_load(&t->data, d->data, &how, error) &&
           zf_causal_batch_new(&t->batch, rows, how.sequence, true, error);
}

static bool zfl_compile_tuner(zf_tuner *t, zf_error *error)
{
    const zf_causal_shape shape = {t->batch.examples, t->batch.sequence, true};
    zf_training training = t->training;
    zf_weights_report report;
    if (!(t->graph = zf_graph_new(NULL))) return zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    training.loss = zf_causal_train(t->graph, &t->config, &shape);
    zf_passes(t->graph, &training);
    t->program = zf_compile(t->graph, &(zf_compile_desc){.backend = t->backend, .seed = t->seed});
    if (!t->program)
        return zfl_fail(error, zf_graph_status(t->graph), "%s", zf_graph_error(t->graph));
    return zf_exchange_import(&zf_causal_model()->exchange, t->program, t->graph, t->folder,
                              &report, error) &&
           (!zf_lora_magnitudes(t->program) ||
            zfl_fail(error, ZF_ERR_BACKEND, "%s", zf_program_error(t->program)));
}

bool zf_tuner_open(zf_tuner *t, const zf_tuner_desc *d, zf_error *error)
{
    *t = (zf_tuner){
        .training = d->training, .folder = d->folder, .backend = d->backend, .seed = d->seed};
    *error = (zf_error){ZF_OK, ""};
    if (zfl_tuner_alone(&d->training, error) && zfl_read_tuner_config(t, error) &&
        zfl_load_examples(t, d, error) && zfl_compile_tuner(t, error))
        return true;
    zf_tuner_close(t);
    return false;
}

void zf_tuner_close(zf_tuner *t)
{
    zf_program_free(t->program);
    zf_graph_free(t->graph);
    zf_causal_batch_free(&t->batch);
    zf_tuning_free(&t->data);
    *t = (zf_tuner){.steps = 0};
}

/* ------------------------------------------------------------------------------------- a step */

static zf_status zfl_write_of(zf_tuner *t, const char *name, const void *data, size_t bytes)
{
    return zf_write(t->program, zf_graph_find(t->graph, name), data, bytes);
}

static zf_status zfl_write_rows(zf_tuner *t)
{
    const zf_causal_batch *b = &t->batch;
    const size_t bytes = (size_t)(b->examples * b->sequence) * sizeof *b->ids;
    const float weight = 1 / (float)(b->labelled ? b->labelled : 1);
    zf_status status = zfl_write_of(t, "input_ids", b->ids, bytes);
    if (!status) status = zfl_write_of(t, "labels", b->labels, bytes);
    if (!status) status = zfl_write_of(t, "segments", b->segments, bytes);
    if (!status) status = zfl_write_of(t, "positions", b->positions, bytes);
    return status ? status : zfl_write_of(t, "loss_weight", &weight, sizeof weight);
}

bool zf_tuner_step(zf_tuner *t, double lr, double *loss, zf_error *error)
{
    const float rate = (float)lr;
    float value = 0;
    zf_status status;
    *error = (zf_error){ZF_OK, ""};
    zf_tuning_read(&t->data, &t->batch, false, t->seed, t->steps * t->batch.examples);
    status = zfl_write_rows(t);
    if (!status) status = zfl_write_of(t, "lr", &rate, sizeof rate);
    if (!status) status = zf_step(t->program);
    if (!status)
        status = zf_read(t->program, zf_graph_find(t->graph, "loss"), &value, sizeof value);
    if (status) return zfl_fail(error, status, "%s", zf_program_error(t->program));
    if (loss) *loss = (double)value;
    t->steps++;
    return true;
}

/* ------------------------------------------------------------------------------------- saving */

static bool zfl_save_adapter(zf_tuner *t, const char *folder, zf_error *error)
{
    const zf_adapter_about about = {.desc = &t->training.lora,
                                    .base = t->folder,
                                    .exchange = &zf_causal_model()->exchange,
                                    .task = "CAUSAL_LM"};
    char path[ZF_FOLDER_PATH];
    zf_adapter_files files = {.config = {.at = NULL}};
    bool good = zf_folder_make(folder, error) &&
                zf_adapter_write(&files, t->program, t->graph, &about, error);
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    good = good && zf_file_save(path, files.config.at, files.config.count, error);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    good = good && zf_file_save(path, files.model.at, files.model.count, error);
    zf_adapter_files_free(&files);
    return good;
}

bool zf_tuner_save(zf_tuner *t, const char *folder, zf_error *error)
{
    const zf_model *model = zf_causal_model();
    char weights[ZF_FOLDER_PATH];
    *error = (zf_error){ZF_OK, ""};
    if (zfl_tuner_adapts(t)) return zfl_save_adapter(t, folder, error);
    return zf_folder_export(folder, t->folder, zf_config_json(model->config, &t->config),
                            ZF_FOLDER_GPT, t->config.positions, weights, error) &&
           zf_exchange_export(&model->exchange, t->program, t->graph, weights, false, ZF_F32,
                              error);
}
