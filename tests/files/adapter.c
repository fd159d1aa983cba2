/* Fine-tuning against PEFT and torch (tests/golden/lora/make.py), adapters in PEFT's files, and the
 * commands around them. */
#define _POSIX_C_SOURCE 200809L
#include "../support/golden.h"
#include "../support/words.h"

#include "../../zeroflow_llm.h"
#include "../../examples/frame/data/causal_batch.h"
#include "../../examples/frame/commands/frame.h"
#include "../../examples/llm/model.h"

#include <sys/stat.h>

#define MODELS "tests/golden/llm/"
#define GOLDEN "tests/golden/lora/"

enum { VOCAB = 37, BATCH = 2, TOKENS = 11, STEPS = 20 };

/* What a golden run trains. */
typedef struct tuned {
    const char *name, *model; /* name: of an adapter's folder; NULL: all parameters are trained */
    bool masked;
    double lr;
    const char *no_fuse;
    int64_t weights; /* of ZF_CONFIG_WEIGHTS; not 0: the model is that of make_wide */
} tuned;

/* A tensor of the model that lora/make.py calls "wide". */
static float wide_value(const char *name, int64_t i)
{
    uint32_t x = 0;
    for (; *name; name++) x += (unsigned char)*name;
    x = x * 100003u + (uint32_t)i;
    x = x * 2654435761u, x ^= x >> 15;
    x = x * 2246822519u, x ^= x >> 13;
    return ((float)(x % 4001) - 2000) / 16384;
}

enum { WIDE_HIDDEN = 64, WIDE_KEYS = 32, WIDE_INSIDE = 128 };

#define WIDE_SPARSE "model.layers.0.block_sparse_moe."

/* Writes a folder with a Llama, or a Mixtral of two experts, whose rows have whole blocks. */
static bool make_wide(const char *folder, bool of_experts)
{
    static const char llama[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n",
        mixtral[] = "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\",\n"
                    " \"num_local_experts\": 2, \"num_experts_per_tok\": 2,\n",
        config[] =
        " \"vocab_size\": 37, \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 1,\n"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64,\n"
        " \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}\n";
    static const struct {
        const char *name;
        int64_t rows, columns; /* columns 0: a vector, of a norm */
        int only;              /* 1: of a Llama; 2: of a Mixtral */
    } tensors[] = {{"model.embed_tokens.weight", VOCAB, WIDE_HIDDEN, 0},
                   {"model.layers.0.input_layernorm.weight", WIDE_HIDDEN, 0, 0},
                   {"model.layers.0.self_attn.q_proj.weight", WIDE_HIDDEN, WIDE_HIDDEN, 0},
                   {"model.layers.0.self_attn.k_proj.weight", WIDE_KEYS, WIDE_HIDDEN, 0},
                   {"model.layers.0.self_attn.v_proj.weight", WIDE_KEYS, WIDE_HIDDEN, 0},
                   {"model.layers.0.self_attn.o_proj.weight", WIDE_HIDDEN, WIDE_HIDDEN, 0},
                   {"model.layers.0.post_attention_layernorm.weight", WIDE_HIDDEN, 0, 0},
                   {"model.layers.0.mlp.gate_proj.weight", WIDE_INSIDE, WIDE_HIDDEN, 1},
                   {"model.layers.0.mlp.up_proj.weight", WIDE_INSIDE, WIDE_HIDDEN, 1},
                   {"model.layers.0.mlp.down_proj.weight", WIDE_HIDDEN, WIDE_INSIDE, 1},
                   {WIDE_SPARSE "gate.weight", 2, WIDE_HIDDEN, 2},
                   {WIDE_SPARSE "experts.0.w1.weight", WIDE_INSIDE, WIDE_HIDDEN, 2},
                   {WIDE_SPARSE "experts.0.w3.weight", WIDE_INSIDE, WIDE_HIDDEN, 2},
                   {WIDE_SPARSE "experts.0.w2.weight", WIDE_HIDDEN, WIDE_INSIDE, 2},
                   {WIDE_SPARSE "experts.1.w1.weight", WIDE_INSIDE, WIDE_HIDDEN, 2},
                   {WIDE_SPARSE "experts.1.w3.weight", WIDE_INSIDE, WIDE_HIDDEN, 2},
                   {WIDE_SPARSE "experts.1.w2.weight", WIDE_HIDDEN, WIDE_INSIDE, 2},
                   {"model.norm.weight", WIDE_HIDDEN, 0, 0},
                   {"lm_head.weight", VOCAB, WIDE_HIDDEN, 0}};
    enum { TENSORS = sizeof tensors / sizeof *tensors };
    static float x[WIDE_HIDDEN * WIDE_INSIDE];
    char path[400];
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *w;
    FILE *file;
    bool good;
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (!(file = fopen(path, "wb"))) return false;
    good = fputs(of_experts ? mixtral : llama, file) >= 0 && fputs(config, file) >= 0;
    good = !fclose(file) && good;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    w = zf_safetensors_writer_new(path, NULL, &error);
    for (int k = 0; k < TENSORS && w; k++)
        if (tensors[k].only != 2 - of_experts) zf_safetensors_declare(w, tensors[k].name, ZF_F32,
                               tensors[k].columns ? ZF_SHAPE(tensors[k].rows, tensors[k].columns)
                                                  : ZF_SHAPE(tensors[k].rows));
    for (int32_t k = 0, at = 0; k < TENSORS && w && good; k++) {
        const bool norm = !tensors[k].columns;
        const int64_t count = tensors[k].rows * (norm ? 1 : tensors[k].columns);
        if (tensors[k].only == 2 - of_experts) continue;
        for (int64_t i = 0; i < count; i++)
            x[i] = (norm ? 1.0f : 0.0f) + wide_value(tensors[k].name, i);
        good = !zf_safetensors_write(w, at++, x, (size_t)count * sizeof *x);
    }
    good = w && good && !zf_safetensors_finish(w, &error);
    zf_safetensors_writer_free(w);
    return good;
}

static void close_session(void *s) { session_close(s); }
static void free_batches(void *f) { causal_batch_file_free(f); }

/* Opens a session with the first values of a golden run, and its batch. */
static bool open_tuned(test *t, const tuned *of, session *s, causal_batch_file *f)
{
    static zf_causal_config config; /* outlives what the test defers */
    char base[300], path[100];
    zf_error error = {ZF_OK, ""};
    zf_weights_report report;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &config,
                      .shape = {.batch = BATCH, .sequence = TOKENS, .rows = of->masked},
                      .threads = 1,
                      .training = {.adamw = {.weight_decay = 0.1},
                                   .clip = 1,
                                   .fuse.without = of->no_fuse}};
    struct zf_adapter *a = NULL;
    bool good;
    snprintf(base, sizeof base, MODELS "%s", of->model);
    if (of->weights) snprintf(base, sizeof base, "%s", test_path("adapter-wide"));
    snprintf(path, sizeof path, GOLDEN "%s", of->name ? of->name : "");
    good = (!of->weights || make_wide(base, false)) &&
           session_config(&llm_sample, base, NULL, &config, &error) &&
           zf_config_set_weights(llm_sample.config(), &config, of->weights, &error) &&
           causal_batch_file_load(f, of->masked ? MODELS "batch-masked.safetensors"
                                                : MODELS "batch.safetensors",
                                  VOCAB, &error);
    if (good) test_defer(t, free_batches, f);
    if (good && of->name) good = (a = zf_adapter_open(path, &error)) != NULL;
    if (a) d.training.lora = *zf_adapter_desc(a);
    good = good && session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_session, s);
        s->adapter = a;
        good = session_take(s, base, &report, &error) && !report.fresh && !report.unused &&
               (!a || zf_adapter_take(a, s->program, s->graph, llm_sample.exchange(), &error));
    } else {
        zf_adapter_close(a);
    }
    if (!good) test_unwind(t, __FILE__, __LINE__, of->model, error.status, error.text);
    return good;
}

/* Parameter values are near the golden ones: within 1e-8 of normalised squared error. */
static void check_param(test *t, const tuned *of, session *s, zf_tensor param,
                        zf_safetensors *golden)
{
    char name[300], why[500];
    int64_t count;
    double *truth, off = 0, all = 0;
    float *own = malloc(zf_tensor_bytes(param) + 1);
    zf_error error = {ZF_OK, ""};
    snprintf(name, sizeof name, "%s%s", of->name ? "base_model.model." : "", zf_tensor_name(param));
    truth = values_of(golden, name, &count);
    if (truth && own && count == zf_shape_count(zf_tensor_shape(param)) &&
        !zf_weights_get(s->program, param, own, &error)) {
        for (int64_t i = 0; i < count; i++)
            off += (own[i] - truth[i]) * (own[i] - truth[i]), all += truth[i] * truth[i];
    } else {
        off = 1;
    }
    if (off > 1e-8 * all) {
        snprintf(why, sizeof why, "%s: %s is off by %g", of->model, name, off / all);
        test_fail(t, __FILE__, __LINE__, "a trained parameter is that of PEFT or torch", why);
    }
    free(own);
    free(truth);
}

/* Twenty steps: each loss within 1e-5, and the parameters after them. */
static void check_tuned(test *t, const tuned *of)
{
    static session s; /* outlive what the test defers */
    static causal_batch_file f;
    char path[140];
    zf_safetensors *golden;
    double *losses;
    int64_t count;
    float lr = (float)of->lr;
    if (of->name) snprintf(path, sizeof path, GOLDEN "%s/trained.safetensors", of->name);
    else snprintf(path, sizeof path, GOLDEN "full-%s.safetensors", of->model);
    golden = open_file(t, path);
    CHECK(t, golden && open_tuned(t, of, &s, &f));
    losses = values_of(golden, "losses", &count);
    CHECK(t, losses && count == STEPS + 1);
    test_defer(t, free, losses);
    OK(t, zf_write(s.program, s.lr, &lr, sizeof lr), zf_program_error(s.program));
    for (int k = 0; k < STEPS; k++) {
        OK(t, session_feed(&s, &f.batch[0], false), zf_program_error(s.program));
        OK(t, zf_step(s.program), zf_program_error(s.program));
        CHECK_NEAR(t, session_scalar(&s, "loss"), losses[k], 1e-5 * losses[k]);
    }
    for (int32_t i = 0; i < zf_param_count(s.graph); i++) {
        zf_tensor param = zf_param_at(s.graph, i);
        const char *name = zf_tensor_name(param);
        if ((!of->name || zf_param_adapter(param)) && !strstr(name, "k_proj.bias"))
            check_param(t, of, &s, param, golden);
    }
    session_close(&s); /* the next one may have these places */
    causal_batch_file_free(&f);
}

TEST_ONCE(adapter_of_some_products_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"qv", "llama3", true, 1e-2, NULL, 0});
}

TEST_ONCE(adapter_of_all_products_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"all", "qwen2", false, 3e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){"all", "qwen2", false, 3e-3, "all", 0});
}

/* With weights of few bits, as PEFT trains with the floats that these stand for. */
TEST_ONCE(adapter_over_8_bits_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"int8", "wide", true, 3e-3, NULL, 1});
}

TEST_ONCE(adapter_over_4_bits_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"int4", "wide", false, 3e-3, NULL, 2});
}

/* With modules that stay trained next to it, and with a word embedding to which the head is tied. */
TEST_ONCE(adapter_that_keeps_modules_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"kept", "llama2", false, 3e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){"tied", "qwen2", false, 3e-3, NULL, 0});
}

/* Of a word embedding and of the head, and of a word embedding to which the head is tied. */
TEST_ONCE(adapter_of_words_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"words", "llama2", false, 3e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){"tied-words", "llama3", true, 3e-3, NULL, 0});
}

/* With magnitudes: of products, of which some have biases, of tables, and over weights of few bits. */
TEST_ONCE(adapter_with_magnitudes_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"dora", "qwen2", false, 3e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){"dora-words", "llama2", false, 3e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){"dora8", "wide", true, 3e-3, NULL, 1});
}

TEST_ONCE(adapter_of_several_ranks_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"uneven", "qwen2", false, 3e-3, NULL, 0});
}

/* Of the products of experts, with a module for each expert in PEFT. */
TEST_ONCE(adapter_of_experts_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"experts", "mixtral", false, 3e-3, NULL, 0});
}

TEST_ONCE(adapter_with_biases_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"biases", "qwen2", false, 3e-3, NULL, 0});
}

TEST_ONCE(full_tuning_is_that_of_torch)
{
    check_tuned(t, &(tuned){NULL, "llama3", true, 1e-3, NULL, 0});
    if (!t->failed) check_tuned(t, &(tuned){NULL, "qwen2", false, 1e-3, NULL, 0});
}

/* -------------------------------------------------------------------------------- references */

/* Opens a session that evaluates over the parameters of another, and is closed with the test. */
static bool open_reference(test *t, session *s, session *of, const void *config,
                           session_adapter with)
{
    zf_error error = {ZF_OK, ""};
    const session_desc d = {.sample = &llm_sample,
                            .purpose = SAMPLE_EVALUATE,
                            .config = config,
                            .shape = of->shape,
                            .threads = 1,
                            .share = of,
                            .with = with};
    if (session_open(s, &d, &error)) return test_defer(t, close_session, s), true;
    test_unwind(t, __FILE__, __LINE__, "session_open", error.status, error.text);
    return false;
}

/* The loss of a batch; NAN after a failed check. */
static double loss_over(test *t, session *s, causal_batch_file *f)
{
    if (session_feed(s, &f->batch[0], false) || zf_step(s->program))
        test_unwind(t, __FILE__, __LINE__, "a step", ZF_ERR_BACKEND, zf_program_error(s->program));
    return session_scalar(s, "loss");
}

/* Next to a training, its base and its adapter as it was loaded give the losses that they gave
 * before; the adapter, before it was trained, gives that of its first values, to the last bit. */
TEST_ONCE(adapter_has_references_over_its_base)
{
    static session train, base, first, again, own;
    static causal_batch_file f;
    const tuned of = {"qv", "llama3", true, 1e-2, NULL, 0};
    zf_causal_config config;
    zf_error error = {ZF_OK, ""};
    double was[3], lr = 0.01;
    float rate = (float)lr;
    CHECK(t, open_tuned(t, &of, &train, &f) &&
                 session_config(&llm_sample, MODELS "llama3", NULL, &config, &error));
    CHECK(t, open_reference(t, &own, &train, &config, SESSION_OWN) &&
                 open_reference(t, &base, &train, &config, SESSION_BASE) &&
                 open_reference(t, &first, &train, &config, SESSION_FIRST));
    was[0] = loss_over(t, &own, &f), was[1] = loss_over(t, &base, &f);
    was[2] = loss_over(t, &first, &f);
    CHECK(t, was[0] == was[2] && fabs(was[0] - was[1]) > 1e-3);
    OK(t, zf_write(train.program, train.lr, &rate, sizeof rate), zf_program_error(train.program));
    for (int k = 0; k < 3; k++) loss_over(t, &train, &f);
    CHECK(t, open_reference(t, &again, &train, &config, SESSION_FIRST));
    CHECK(t, loss_over(t, &own, &f) < was[0] - 1e-3);
    CHECK(t, loss_over(t, &base, &f) == was[1] && loss_over(t, &first, &f) == was[2]);
    CHECK(t, loss_over(t, &again, &f) == was[2]);
    CHECK(t, zf_program_info_of(base.program).store_bytes == 0 &&
                 zf_program_info_of(again.program).store_bytes == 0);
    for (int32_t k = 0; k < zf_param_count(own.graph); k++) {
        const zf_tensor param = zf_param_at(own.graph, k);
        const float zeros[30 * 30] = {0};
        if (zf_param_adapter(param) && strstr(zf_tensor_name(param), "lora_B"))
            OK(t, zf_write(own.program, param, zeros, zf_tensor_bytes(param)),
               zf_program_error(own.program));
    }
    CHECK(t, loss_over(t, &own, &f) == was[1]);
}

/* The base reads what the adapter keeps under the same name. */
TEST_ONCE(adapter_keeps_what_the_reference_reads)
{
    static session train, base, first;
    static causal_batch_file f;
    const tuned of = {"kept", "llama2", false, 1e-2, NULL, 0};
    zf_causal_config config;
    zf_error error = {ZF_OK, ""};
    double was;
    float rate = 0.01f;
    session_desc d = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .threads = 1,
                      .with = SESSION_BASE};
    CHECK(t, open_tuned(t, &of, &train, &f) &&
                 session_config(&llm_sample, MODELS "llama2", NULL, &config, &error));
    d.shape = train.shape, d.share = &train;
    CHECK(t, !session_open(&base, &d, &error) && error.status == ZF_ERR_MISMATCH);
    CHECK(t, strstr(error.text, "weight, which stays trained next to the adapter: take the adapter's "
                                "first values as the reference"));
    CHECK(t, open_reference(t, &first, &train, &config, SESSION_FIRST));
    was = loss_over(t, &first, &f);
    OK(t, zf_write(train.program, train.lr, &rate, sizeof rate), zf_program_error(train.program));
    CHECK_NEAR(t, loss_over(t, &train, &f), was, 0);
    for (int k = 0; k < 4; k++) loss_over(t, &train, &f);
    CHECK_NEAR(t, loss_over(t, &first, &f), was, 0);
    CHECK(t, loss_over(t, &train, &f) < was - 1e-2);
}

/* A reference without a copy needs something that is not trained. */
TEST_ONCE(adapter_of_which_there_is_no_reference)
{
    static session train, other;
    static causal_batch_file f;
    const tuned of = {NULL, "llama3", true, 1e-2, NULL, 0};
    zf_causal_config config;
    zf_error error = {ZF_OK, ""};
    session_desc d = {.sample = &llm_sample, .config = &config, .purpose = SAMPLE_EVALUATE};
    CHECK(t, open_tuned(t, &of, &train, &f) &&
                 session_config(&llm_sample, MODELS "llama3", NULL, &config, &error));
    d.shape = train.shape, d.threads = 1, d.share = &train;
    for (d.with = SESSION_BASE; d.with <= SESSION_FIRST; d.with++) {
        error = (zf_error){ZF_OK, ""};
        CHECK(t, !session_open(&other, &d, &error) && error.status == ZF_ERR_ARGUMENT);
        CHECK_TEXT(t, error.text,
                   "all parameters are trained, and none is left as it was: a reference without a "
                   "copy of them needs an adapter (--lora)");
    }
}

/* --------------------------------------------------------------------------------- commands */

static int finetune(int argc, char **argv)
{
    static const settings_default defaults[] = {{"warmup", "0"}, {NULL, NULL}};
    return pretrain_command(&llm_sample, &(settings_desc){.defaults = defaults, .tunes = true}, argc,
                            argv);
}
static int merge(int argc, char **argv) { return merge_command(&llm_sample, argc, argv); }
static int export(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }

static const command commands[] = {
    {"finetune", "", finetune}, {"merge", "", merge}, {"export", "", export}, {NULL, NULL, NULL}};

static int run_line(const char *line) { return run_words(commands, line); }

#define TUNE                                                                                       \
    "finetune --batch-file " MODELS                                                                \
    "batch-masked.safetensors --lr 0.01 --schedule constant --quiet "

#define ADAPT "--lora r=3,alpha=5,dropout=0.2 "

/* Opens a session of a folder's model with an adapter, or none. rounding: of ZF_CONFIG_WEIGHTS. */
static bool open_adapted(session *s, const char *folder, const char *adapter, int64_t rounding,
                         zf_error *error)
{
    zf_causal_config config;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &config,
                      .shape = {.batch = BATCH, .sequence = TOKENS},
                      .threads = 1,
                      .adapter = adapter};
    return session_config(&llm_sample, folder, NULL, &config, error) &&
           zf_config_set_weights(llm_sample.config(), &config, rounding, error) &&
           session_open_folder(s, folder, &d, 1 + ZF_F32, error);
}

/* The logits of a session over the golden batch, which follow from all parameters. */
static bool logits_of(const char *folder, const char *adapter, int64_t rounding,
                      float out[BATCH * VOCAB])
{
    int32_t ids[BATCH * TOKENS], last[BATCH] = {TOKENS - 1, 2 * TOKENS - 1};
    zf_error error = {ZF_OK, ""};
    session s;
    bool good;
    for (int i = 0; i < BATCH * TOKENS; i++) ids[i] = 5 * i % VOCAB;
    if (!open_adapted(&s, folder, adapter, rounding, &error)) {
        printf("    %s\n", error.text);
        return false;
    }
    good = !session_write(&s, "input_ids", ids, sizeof ids) &&
           !session_write(&s, "last", last, sizeof last) && !zf_step(s.program) &&
           !zf_read(s.program, zf_graph_find(s.graph, "logits"), out,
                    BATCH * VOCAB * sizeof *out);
    session_close(&s);
    return good;
}

static double most_off(const float *a, const float *b)
{
    double off = 0;
    for (int i = 0; i < BATCH * VOCAB; i++) off = fmax(off, fabs((double)a[i] - b[i]));
    return off;
}

/* The target_modules of a config, of which there are some, are there once each. */
static bool lists_once(const char *path)
{
    zf_error error = {ZF_OK, ""};
    zf_json *config = zf_json_read(path, NULL, &error);
    const zf_json *list = zf_json_member(config, "target_modules");
    const int64_t count = zf_json_length(list);
    bool good = count > 0;
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < i; k++)
            good = good && strcmp(zf_json_string(zf_json_element(list, i), NULL),
                                  zf_json_string(zf_json_element(list, k), NULL));
    zf_json_free(config);
    return good;
}

/* A run's --save is an adapter: with it the base answers as the merged model does. Interrupted and
 * resumed, on other ranks, it ends with the same files. rounding: of ZF_CONFIG_WEIGHTS. */
static void check_saved(test *t, const char *model, const char *adapt, int64_t rounding)
{
    static const char *const files[] = {"adapter_model.safetensors", "adapter_config.json"},
                             *const names[] = {"float", "int8", "int4"};
    char once[300], twice[300], merged[300], first[800], line[1600];
    float base[BATCH * VOCAB], with[BATCH * VOCAB], of_merged[BATCH * VOCAB];
    snprintf(once, sizeof once, "%s", test_path("adapter-once"));
    snprintf(twice, sizeof twice, "%s", test_path("adapter-twice"));
    snprintf(merged, sizeof merged, "%s", test_path("adapter-merged"));
    snprintf(first, sizeof first, TUNE "%s --model %s --weights %s", adapt, model, names[rounding]);
    snprintf(line, sizeof line, "%s --micro-batches 2 --threads 2 --steps 6 --save %s --overwrite", first, once);
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line, "%s --ranks 2 --zero 3 --steps 4 --save %s --overwrite", first, twice);
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line, "%s --ranks 2 --zero 1 --steps 6 --save %s --load %s", first, twice,
             twice);
    CHECK(t, run_line(line) == EXIT_GOOD);
    for (int k = 0; k < 2; k++) {
        char a[400], b[400];
        snprintf(a, sizeof a, "%s/%s", once, files[k]);
        snprintf(b, sizeof b, "%s/%s", twice, files[k]);
        CHECK(t, same_files(a, b) && (k == 0 || lists_once(a)));
    }
    snprintf(line, sizeof line, "merge --model %s --adapter %s --weights %s %s", model, once,
             names[rounding], merged);
    CHECK(t, run_line(line) == EXIT_GOOD);
    CHECK(t, logits_of(model, NULL, rounding, base) && logits_of(model, once, rounding, with) &&
                 logits_of(merged, NULL, 0, of_merged));
    CHECK(t, most_off(base, with) > 1e-2 && most_off(with, of_merged) < 1e-5);
    CHECK(t, !rounding || (logits_of(model, once, 0, base) && most_off(base, with) > 1e-4));
}

TEST_ONCE(adapter_is_saved_resumed_and_merged) { check_saved(t, MODELS "llama3", ADAPT, 0); }

/* The same of an adapter with a name, and of modules that it keeps: those of a head, of a norm, of
 * which a tied model has the head's weights in its embedding. */
TEST_ONCE(adapter_with_kept_modules_is_saved_resumed_and_merged)
{
    check_saved(t, MODELS "llama2", "--lora r=3,name=actor,keep=lm_head,model.norm,dropout=0.2", 0);
    if (!t->failed) check_saved(t, MODELS "qwen2", "--lora targets=q_proj,keep=embed_tokens", 0);
    if (!t->failed) check_saved(t, MODELS "qwen2", "--lora targets=v_proj,keep=*.q_proj.bias", 0);
}

/* The same of magnitudes. */
TEST_ONCE(adapter_with_magnitudes_is_saved_resumed_and_merged)
{
    check_saved(t, MODELS "qwen2", "--lora r=3,alpha=5,dora,dropout=0.2", 0);
    if (!t->failed)
        check_saved(t, MODELS "llama2", "--lora targets=embed_tokens,v_proj,dora,name=actor", 0);
}

/* The same of products of experts, of which files have a tensor each. */
TEST_ONCE(adapter_of_experts_is_saved_resumed_and_merged)
{
    check_saved(t, MODELS "mixtral",
                "--lora r=3,alpha=5,targets=q_proj,w1,experts.w2,ranks=experts.w2:2", 0);
}

/* The same of models whose parts have other names, and whose q, k and v are one product. */
TEST_ONCE(adapter_of_joined_heads_is_saved_resumed_and_merged)
{
    check_saved(t, MODELS "neox", ADAPT, 0);
    check_saved(t, MODELS "falcon40b", ADAPT, 0);
}

/* The same of products of a word embedding and of the head. Where these are one parameter, the sum
 * would be another model. */
TEST_ONCE(adapter_of_words_is_saved_resumed_and_merged)
{
    char line[900];
    zf_error error = {ZF_OK, ""};
    session s;
    bool can;
    check_saved(t, MODELS "llama2", "--lora r=3,targets=embed_tokens,lm_head,q_proj,dropout=0.2",
                0);
    snprintf(line, sizeof line, "merge --model " MODELS "llama3 --adapter " GOLDEN "tied-words %s",
             test_path("adapter-tied-merged"));
    CHECK(t, run_line(line) == EXIT_FAILED);
    if (!open_adapted(&s, MODELS "llama3", GOLDEN "tied-words", 0, &error))
        OK(t, error.status, error.text);
    can = zf_adapter_can_merge(s.graph, llm_sample.exchange(), &error);
    session_close(&s);
    CHECK(t, !can);
    CHECK_TEXT(t, error.text,
               "the adapter changes model.embed_tokens.weight where tokens are read and not in the "
               "head, which is tied to it: the sum would change both; use the adapter as it is");
    /* A word embedding of another name. */
    snprintf(line, sizeof line,
             TUNE "--model " MODELS "falcon7b --lora r=2,targets=word_embeddings --steps 1 --save %s",
             test_path("adapter-falcon"));
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line, "merge --model " MODELS "falcon7b --adapter %s %s-merged",
             test_path("adapter-falcon"), test_path("adapter-falcon"));
    CHECK(t, run_line(line) == EXIT_FAILED);
    snprintf(line, sizeof line, "merge --model " MODELS "llama2 --adapter " GOLDEN "words %s",
             test_path("adapter-words-merged"));
    CHECK(t, run_line(line) == EXIT_GOOD);
}

/* All parameters of a model with windows, grouped heads and a tied head: ranks, stages, prefetch,
 * offload, recomputing and an interruption leave the same bits. */
TEST_ONCE(full_tuning_keeps_the_bits)
{
    static const char *const ways[] = {
        "--micro-batches 2", "--ranks 2 --zero 3 --prefetch 3000 --bucket 1000",
        "--micro-batches 2 --recompute layers --offload optimizer=host,parameters=host",
        "--ranks 2 --zero 2 --steps 2", "--ranks 2 --zero 1 --prefetch 3000"};
    char line[1000], first[300], dump[300], saved[300];
    snprintf(first, sizeof first, "%s", test_path("tuned-first.safetensors"));
    snprintf(dump, sizeof dump, "%s", test_path("tuned.safetensors"));
    snprintf(saved, sizeof saved, "%s", test_path("tuned"));
    for (int k = 0; k < 5; k++) {
        const bool half = k == 3, resumes = k == 4;
        int n = snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 4 %s ", ways[k]);
        if (half || resumes) n += snprintf(line + n, sizeof line - (size_t)n, "--save %s --overwrite ", saved);
        if (resumes) n += snprintf(line + n, sizeof line - (size_t)n, "--load %s ", saved);
        if (!half) snprintf(line + n, sizeof line - (size_t)n, "--dump %s", k ? dump : first);
        CHECK(t, run_line(line) == EXIT_GOOD);
        if (k && !half && !same_files(first, dump))
            test_fail(t, __FILE__, __LINE__, "the same parameters", ways[k]);
    }
}

TEST_ONCE(adapter_over_few_bits_is_saved_resumed_and_merged)
{
    char model[300];
    snprintf(model, sizeof model, "%s", test_path("adapter-wide"));
    CHECK(t, make_wide(model, false));
    check_saved(t, model, ADAPT, 1);
    if (!t->failed) check_saved(t, model, ADAPT, 2);
}

TEST_ONCE(adapter_over_experts_of_few_bits)
{
    char model[300];
    snprintf(model, sizeof model, "%s", test_path("adapter-wide-experts"));
    CHECK(t, make_wide(model, true));
    check_saved(t, model, "--lora r=3,alpha=5,targets=q_proj,w1,w2,w3 ", 1);
    if (!t->failed) check_saved(t, model, "--lora r=3,alpha=5,targets=w2 ", 2);
}

/* No row of the model is a block. */
TEST_ONCE(adapter_over_few_bits_of_narrow_rows)
{
    zf_causal_config config;
    session_desc d = {.sample = &llm_sample,
                      .config = &config,
                      .purpose = SAMPLE_EVALUATE,
                      .shape = {.batch = 1, .sequence = 2},
                      .threads = 1};
    session s;
    zf_error error = {ZF_OK, ""};
    CHECK(t, session_config(&llm_sample, MODELS "llama3", NULL, &config, &error));
    CHECK(t, zf_config_set_weights(llm_sample.config(), &config, 1, &error));
    CHECK(t, !session_open(&s, &d, &error));
    CHECK_TEXT(t, error.text,
               "weights of few bits are in blocks of 64 numbers, and no product of this model has "
               "rows of a multiple of 64");
}

/* Writes a copy of an adapter's config with `from` replaced by `to`, next to its tensors. */
static bool vary(const char *folder, const char *name, const char *from, const char *to)
{
    char path[400];
    zf_text text = {.at = NULL}, tensors = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    const char *at;
    FILE *out;
    bool good;
    snprintf(path, sizeof path, GOLDEN "%s/adapter_config.json", name);
    good = zf_text_read(path, &text, &error);
    snprintf(path, sizeof path, GOLDEN "%s/adapter_model.safetensors", name);
    good = good && zf_text_read(path, &tensors, &error);
    mkdir(folder, 0777);
    at = good ? strstr(text.at, from) : NULL;
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    if ((out = at ? fopen(path, "wb") : NULL)) {
        good = fprintf(out, "%.*s%s%s", (int)(at - text.at), text.at, to, at + strlen(from)) > 0;
        good = !fclose(out) && good;
    }
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    if (out && (out = fopen(path, "wb"))) {
        good = fwrite(tensors.at, 1, tensors.count, out) == tensors.count && good;
        good = !fclose(out) && good;
    }
    zf_text_free(&text);
    zf_text_free(&tensors);
    return good && out;
}

/* What a session says of an adapter. */
static const char *refusal(const char *model, const char *adapter)
{
    static zf_error error;
    char base[100];
    session s;
    error = (zf_error){ZF_OK, ""};
    snprintf(base, sizeof base, MODELS "%s", model);
    if (open_adapted(&s, base, adapter, 0, &error)) session_close(&s);
    return error.text;
}

TEST_ONCE(adapter_that_does_not_fit_is_refused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"r\": 3", "\"r\": 4", "lora_A.weight is [3,18], the model's is [4,18]"},
        {"\"LORA\"", "\"IA3\"", "peft_type must be \"LORA\", not \"IA3\""},
        {"\"bias\": \"none\"", "\"bias\": \"some\"", "bias must be none, all or lora_only, not"},
        {"\"use_dora\": false", "\"use_dora\": true", "there is no tensor base_model.model.model."},
        {"\"lora_bias\": false", "\"lora_bias\": true",
         "lora_bias is true, which is not supported"},
        {"\"loftq_config\": {}", "\"loftq_config\": {\"a\": 1}",
         "loftq_config is not empty, which is not supported"},
        {"\"rank_pattern\": {}", "\"rank_pattern\": {\"v_proj\": 4}",
         "lora_A.weight is [3,18], the model's is [4,18]"},
        {"\"rank_pattern\": {}", "\"rank_pattern\": {\"v_proj\": 0}",
         "rank_pattern.v_proj must be an integer from 1 to"},
        {"\"rank_pattern\": {}", "\"rank_pattern\": [3]",
         "rank_pattern must be an object of modules and numbers, not"},
        {"\"alpha_pattern\": {}", "\"alpha_pattern\": {\"(v_proj\": 0}",
         "alpha_pattern.\"(v_proj\" cannot be used: "},
        {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"",
         "init_lora_weights must be true, false, gaussian, orthogonal or eva, not \"pissa\""},
        {"\"r\": 3", "\"r\": 3, \"scale_by\": 2",
         "scale_by is not read, and may change what the adapter computes"},
        {"\"r\"", "\"r_of_all\": null, \"s\"", "s is not read"},
        {"\"r\": 3", "\"task\": null", "lacks \"r\""},
        {"\"modules_to_save\": null", "\"modules_to_save\": \"norm\"",
         "modules_to_save must be null or a list of modules, not \"norm\""},
        {"\"modules_to_save\": null", "\"modules_to_save\": [\"norm\", 3]",
         "modules_to_save[1] must be the name of a module, not 3"},
    };
    const char *folder = test_path("adapter-varied");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        CHECK(t, vary(folder, "qv", cases[k].from, cases[k].to));
        if (!strstr(refusal("llama3", folder), cases[k].says))
            CHECK_TEXT(t, refusal("llama3", folder), cases[k].says);
    }
    CHECK(t, strstr(refusal("llama3", GOLDEN "all"),
                    "all is an adapter of another model: ") ||
                 strstr(refusal("llama3", GOLDEN "all"), "model's is"));
    CHECK(t, strstr(refusal("mistral", GOLDEN "qv"),
                    "lora_A.weight is [3,18], the model's is [3,16]"));
    CHECK_TEXT(t, refusal("llama3", MODELS "llama3"),
               MODELS "llama3 is no adapter: it has no adapter_config.json");
    CHECK_TEXT(t, refusal("../lora/qv", NULL),
               MODELS "../lora/qv is an adapter, without its base: name the base's folder, and "
                      "this one with --adapter; 'merge' writes them as one model");
}

/* The tensors of a folder have another name, of the same length. */
static bool rename_tensor(const char *folder, const char *from, const char *to)
{
    char path[400];
    zf_text text = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    FILE *out;
    bool good;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    good = zf_text_read(path, &text, &error) && (out = fopen(path, "wb")) != NULL;
    for (size_t i = 0; good && i + strlen(from) <= text.count; i++)
        if (!memcmp(text.at + i, from, strlen(from))) memcpy(text.at + i, to, strlen(to));
    if (good) good = fwrite(text.at, 1, text.count, out) == text.count;
    if (good) good = !fclose(out);
    zf_text_free(&text);
    return good;
}

TEST_ONCE(adapter_whose_kept_modules_do_not_fit_is_refused)
{
    static const struct {
        const char *name, *model, *from, *to, *says;
    } cases[] = {
        {"kept", "llama2", "\"model.norm\"", "\"model.embed_tokens\"",
         "base_model.model.model.norm.weight is neither a lora_A.weight nor a lora_B.weight, nor of "
         "modules_to_save: it is no adapter of this kind"},
        {"tied", "qwen2", "\"ensure_weight_tying\": true", "\"ensure_weight_tying\": null",
         "base_model.model.lm_head.weight is neither a lora_A.weight nor a lora_B.weight, nor of "
         "modules_to_save"},
        {"kept", "qwen2", "\"r\": 2", "\"r\": 2",
         "zf_lora: keep has \"lm_head.weight\", which matches no parameter of the graph"},
    };
    const char *folder = test_path("adapter-kept-varied");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        CHECK(t, vary(folder, cases[k].name, cases[k].from, cases[k].to));
        if (!strstr(refusal(cases[k].model, folder), cases[k].says))
            CHECK_TEXT(t, refusal(cases[k].model, folder), cases[k].says);
    }
    CHECK(t, vary(folder, "tied", "\"ensure_weight_tying\": true", "\"ensure_weight_tying\": false") &&
                 rename_tensor(folder, "model.lm_head.weight", "modelx.lora_B.weight"));
    CHECK(t, strstr(refusal("qwen2", folder),
                    "keeps model.embed_tokens.weight, to which the model ties its head: "
                    "adapter_config.json must have \"ensure_weight_tying\": true"));
}

/* Changes the last bits of the first number of a folder's tensors. */
static bool change_number(const char *folder)
{
    char path[400];
    unsigned char *bytes;
    zf_text text = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    bool good;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    good = zf_text_read(path, &text, &error);
    bytes = (unsigned char *)text.at;
    if (good) bytes[8 + bytes[0] + 256 * bytes[1]] ^= 1;
    good = good && zf_file_save(path, text.at, text.count, &error);
    zf_text_free(&text);
    return good;
}

/* Weights of the embedding and of the head, which PEFT repeats, are those of the model. */
TEST_ONCE(adapter_of_other_words_is_refused)
{
    const char *folder = test_path("adapter-words-varied");
    CHECK_TEXT(t, refusal("llama2", GOLDEN "words"), "");
    CHECK_TEXT(t, refusal("llama3", GOLDEN "tied-words"), "");
    CHECK(t, vary(folder, "words", "\"r\": 2", "\"r\": 2") && change_number(folder));
    CHECK(t,
          strstr(refusal("llama2", folder),
                 "base_model.model.lm_head.base_layer.weight differs from that of the model: it is "
                 "an adapter of another one"));
    CHECK(t, vary(folder, "words", "\"r\": 2", "\"r\": 2") &&
                 rename_tensor(folder, "lm_head.base_layer.weight", "lm_heat.base_layer.weight"));
    CHECK(t, strstr(refusal("llama2", folder),
                    "lm_heat.base_layer.weight fits no weight of the model"));
}

/* The tensors of a module come in twos. */
TEST_ONCE(adapter_without_one_of_its_tensors_is_refused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"layers.1.self_attn.q_proj.lora_A", "layers.1.self_attn.x_proj.lora_B",
         "layers.1.self_attn.x_proj.lora_B.weight fits no weight of the model: it is an adapter of "
         "another one"},
        {"_proj.lora_A.weight", "_xxxx.lora_B.weight",
         " has no lora_A.weight and no lora_embedding_A"},
        {"layers.1.self_attn.q_proj.lora_B", "layers.1.self_attn.x_proj.lora_B",
         "there is no tensor base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"}};
    const char *folder = test_path("adapter-halved");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *says;
        CHECK(t, vary(folder, "qv", "\"r\": 3", "\"r\": 3") &&
                     rename_tensor(folder, cases[k].from, cases[k].to));
        says = refusal("llama3", folder);
        if (!strstr(says, cases[k].says)) CHECK_TEXT(t, says, cases[k].says);
    }
}

/* Adapters of experts have a tensor for each one, of one rank and alpha, and not one of all. */
TEST_ONCE(adapter_of_experts_that_does_not_fit_is_refused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"rank_pattern\": {", "\"rank_pattern\": {\"experts.2.w1\": 4,",
         ".layers.0.block_sparse_moe.experts.2.w1 has another rank or alpha than model.layers.0."
         "block_sparse_moe.experts.0.w1: all experts of a layer must have the same"},
        {"\"alpha_pattern\": {", "\"alpha_pattern\": {\"experts.3.w2\": 3,",
         "experts.3.w2 has another rank or alpha than"},
        {"\"target_parameters\": null", "\"target_parameters\": [\"experts.gate_up_proj\"]",
         "target_parameters is not empty, which is not supported"}};
    const char *folder = test_path("adapter-experts-varied");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        CHECK(t, vary(folder, "experts", cases[k].from, cases[k].to));
        if (!strstr(refusal("mixtral", folder), cases[k].says))
            CHECK_TEXT(t, refusal("mixtral", folder), cases[k].says);
    }
    CHECK(t, vary(folder, "experts", "\"r\": 2", "\"r\": 2") &&
                 rename_tensor(folder, "experts.2.w3.lora_B", "experts.9.w3.lora_B"));
    CHECK(t, strstr(refusal("mixtral", folder),
                    "there is no tensor base_model.model.model.layers.0.block_sparse_moe.experts.2.w3"
                    ".lora_B.weight"));
}

/* What PEFT's files cannot hold is refused before the first step. */
TEST_ONCE(adapter_that_peft_cannot_keep_is_refused)
{
    char line[900];
    snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 1 --save %s --lora "
             "targets=q_proj,keep=model.layers.0.self_attn.q_proj.bias", test_path("adapter-unkept"));
    CHECK(t, run_line(line) == EXIT_FAILED);
    snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 1 --lora keep=of_no_module");
    CHECK(t, run_line(line) == EXIT_FAILED);
    snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 1 --lora ranks=k:3");
    CHECK(t, run_line(line) == EXIT_FAILED);
    snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 1 --lora ranks=k_proj:1.5");
    CHECK(t, run_line(line) == EXIT_FAILED);
    snprintf(line, sizeof line, TUNE "--model " MODELS "qwen2 --steps 1 --lora alphas=k_proj");
    CHECK(t, run_line(line) == EXIT_FAILED);
}

/* --lora: false where it is refused. */
static bool read_lora(zf_training *t, const char *text)
{
    static char copy[100];
    snprintf(copy, sizeof copy, "%s", text);
    *t = (zf_training){.clip = 0};
    return !zf_options_set(&(zf_options){.rows = zf_training_options(), .desc = t}, 1, "lora", copy, NULL);
}

TEST_ONCE(adapter_options_are_read)
{
    static const char *const bad[] = {"r=0",     "r=1.5",    "alpha=x",   "dropout=1",
                                      "rang=3",  "r=4,q_proj", "rslora=1"};
    zf_training o = {.clip = 0};
    char text[64], plain[64];
    CHECK_TEXT(t, zf_adapter_note(text, &o), "none");
    CHECK(t, read_lora(&o, "r=16,alpha=32,targets=q_proj,v_proj,dropout=0.05,rslora"));
    CHECK(t, o.lora.rank == 16 && o.lora.alpha == 32 && o.lora.dropout == 0.05 && o.lora.rslora);
    CHECK_TEXT(t, o.lora.targets, "q_proj,v_proj");
    CHECK(t, !strncmp(zf_adapter_note(text, &o), "r=16,alpha=32,dropout=0.05,rslora,", 34));
    CHECK(t, read_lora(&o, "ranks=q_proj:2,v_proj:3,alphas=q_proj:0.5"));
    CHECK_TEXT(t, o.lora.ranks, "q_proj:2,v_proj:3");
    CHECK_TEXT(t, o.lora.alphas, "q_proj:0.5");
    CHECK(t, read_lora(&o, "r=2") && !o.lora.dora);
    snprintf(plain, sizeof plain, "%s", zf_adapter_note(text, &o));
    CHECK(t, read_lora(&o, "r=2,dora") && o.lora.dora && strcmp(zf_adapter_note(text, &o), plain));
    CHECK(t, read_lora(&o, "rslora"));
    CHECK(t, !strncmp(zf_adapter_note(text, &o), "r=8,alpha=8,dropout=0,rslora,", 29));
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        if (read_lora(&o, bad[k])) test_fail(t, __FILE__, __LINE__, "it is refused", bad[k]);
}
