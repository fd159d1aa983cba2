/* Fine-tuning against PEFT and torch (tests/golden/lora/make.py), adapters in PEFT's files, and the
 * commands around them. */
#define _POSIX_C_SOURCE 200809L
#include "golden.h"

#include "../examples/common/adapter.h"
#include "../examples/common/causal_batch.h"
#include "../examples/common/command.h"
#include "../examples/common/file.h"
#include "../examples/common/frame.h"
#include "../examples/llm/model.h"

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
} tuned;

static void close_session(void *s) { session_close(s); }
static void free_batches(void *f) { causal_batch_file_free(f); }

/* Opens a session with the first values of a golden run, and its batch. */
static bool open_tuned(test *t, const tuned *of, session *s, causal_batch_file *f)
{
    static llm_config config; /* outlives what the test defers */
    char base[100], path[100];
    zf_error error = {ZF_OK, ""};
    weights_report report;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_TRAIN,
                      .config = &config,
                      .shape = {BATCH, TOKENS, 0, of->masked},
                      .threads = 1,
                      .weight_decay = 0.1,
                      .eps = 1e-8,
                      .clip = 1,
                      .no_fuse = of->no_fuse};
    struct adapter_reader *a = NULL;
    bool good;
    snprintf(base, sizeof base, MODELS "%s", of->model);
    snprintf(path, sizeof path, GOLDEN "%s", of->name ? of->name : "");
    good = session_config(&llm_sample, base, &config, &error) &&
           causal_batch_file_load(f, of->masked ? MODELS "batch-masked.safetensors"
                                                : MODELS "batch.safetensors",
                                  VOCAB, &error);
    if (good) test_defer(t, free_batches, f);
    if (good && of->name) good = (a = adapter_open(path, &error)) != NULL;
    if (a) d.lora = adapter_desc(a);
    good = good && session_open(s, &d, &error);
    if (good) {
        test_defer(t, close_session, s);
        s->adapter = a;
        good = session_take(s, base, &report, &error) && !report.fresh && !report.unused &&
               (!a || adapter_take(a, s->program, s->graph, &error));
    } else {
        adapter_close(a);
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
        !weights_get(s->program, param, own, &error)) {
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
        if (of->name ? adapter_is_param(name) : !strstr(name, "k_proj.bias"))
            check_param(t, of, &s, param, golden);
    }
    session_close(&s); /* the next one may have these places */
    causal_batch_file_free(&f);
}

TEST_ONCE(adapter_of_some_products_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"qv", "llama3", true, 1e-2, NULL});
}

TEST_ONCE(adapter_of_all_products_trains_as_by_peft)
{
    check_tuned(t, &(tuned){"all", "qwen2", false, 3e-3, NULL});
    if (!t->failed) check_tuned(t, &(tuned){"all", "qwen2", false, 3e-3, "all"});
}

TEST_ONCE(full_tuning_is_that_of_torch)
{
    check_tuned(t, &(tuned){NULL, "llama3", true, 1e-3, NULL});
    if (!t->failed) check_tuned(t, &(tuned){NULL, "qwen2", false, 1e-3, NULL});
}

/* --------------------------------------------------------------------------------- commands */

static int finetune(int argc, char **argv)
{
    settings o = settings_defaults();
    o.tunes = true, o.warmup = 0;
    return pretrain_command(&llm_sample, &o, NULL, argc, argv);
}
static int merge(int argc, char **argv) { return merge_command(&llm_sample, argc, argv); }
static int export(int argc, char **argv) { return export_command(&llm_sample, argc, argv); }

static const command commands[] = {
    {"finetune", "", finetune}, {"merge", "", merge}, {"export", "", export}, {NULL, NULL, NULL}};

/* Runs a command line of words between spaces. */
static int run_line(const char *line)
{
    char copy[1200], *argv[40] = {(char *)"llm"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && argc < 39; word = strtok(NULL, " "))
        argv[argc++] = word;
    return command_main(&(command_program){"llm", commands}, argc, argv);
}

#define TUNE                                                                                       \
    "finetune --model " MODELS "llama3 --batch-file " MODELS                                       \
    "batch-masked.safetensors --lr 0.01 --schedule constant --quiet --overwrite "

#define ADAPT "--lora r=3,alpha=5,dropout=0.2 "

/* The logits of a session over the golden batch, which follow from all parameters. */
static bool logits_of(const char *folder, const char *adapter, float out[BATCH * VOCAB])
{
    llm_config config;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &config,
                      .shape = {BATCH, TOKENS, 0, false},
                      .threads = 1,
                      .adapter = adapter};
    int32_t ids[BATCH * TOKENS], last[BATCH] = {TOKENS - 1, 2 * TOKENS - 1};
    zf_error error = {ZF_OK, ""};
    session s;
    bool good;
    for (int i = 0; i < BATCH * TOKENS; i++) ids[i] = 5 * i % VOCAB;
    if (!session_config(&llm_sample, folder, &config, &error) ||
        !session_open_folder(&s, folder, &d, 1 + ZF_F32, &error)) {
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

/* A run's --save is an adapter: with it the base answers as the merged model does. Interrupted and
 * resumed, on other ranks, it ends with the same files. */
TEST_ONCE(adapter_is_saved_resumed_and_merged)
{
    static const char *const files[] = {"adapter_model.safetensors", "adapter_config.json"};
    char once[300], twice[300], merged[300], line[1200];
    float base[BATCH * VOCAB], with[BATCH * VOCAB], of_merged[BATCH * VOCAB];
    snprintf(once, sizeof once, "%s", test_path("adapter-once"));
    snprintf(twice, sizeof twice, "%s", test_path("adapter-twice"));
    snprintf(merged, sizeof merged, "%s", test_path("adapter-merged"));
    snprintf(line, sizeof line, TUNE ADAPT "--micro-batches 2 --steps 6 --save %s",
             once);
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line, TUNE ADAPT "--ranks 2 --zero 3 --steps 4 --save %s",
             twice);
    CHECK(t, run_line(line) == EXIT_GOOD);
    snprintf(line, sizeof line,
             TUNE ADAPT "--ranks 2 --zero 1 --steps 6 --save %s --load %s", twice,
             twice);
    CHECK(t, run_line(line) == EXIT_GOOD);
    for (int k = 0; k < 2; k++) {
        char a[400], b[400];
        snprintf(a, sizeof a, "%s/%s", once, files[k]);
        snprintf(b, sizeof b, "%s/%s", twice, files[k]);
        CHECK(t, same_files(a, b));
    }
    snprintf(line, sizeof line, "merge --model " MODELS "llama3 --adapter %s %s", once, merged);
    CHECK(t, run_line(line) == EXIT_GOOD);
    CHECK(t, logits_of(MODELS "llama3", NULL, base) && logits_of(MODELS "llama3", once, with) &&
                 logits_of(merged, NULL, of_merged));
    CHECK(t, most_off(base, with) > 1e-2 && most_off(with, of_merged) < 1e-5);
}

/* Writes a copy of an adapter's config with `from` replaced by `to`, beside its tensors. */
static bool vary(const char *folder, const char *from, const char *to)
{
    char path[400];
    buffer text = {.at = NULL}, tensors = {.at = NULL};
    zf_error error = {ZF_OK, ""};
    const char *at;
    FILE *out;
    bool good = file_read(GOLDEN "qv/adapter_config.json", &text, &error) &&
                file_read(GOLDEN "qv/adapter_model.safetensors", &tensors, &error);
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
    buffer_free(&text);
    buffer_free(&tensors);
    return good && out;
}

/* What a session says of an adapter. */
static const char *refusal(const char *model, const char *adapter)
{
    static zf_error error;
    char base[100];
    llm_config config;
    session_desc d = {.sample = &llm_sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = &config,
                      .shape = {BATCH, TOKENS, 0, false},
                      .threads = 1,
                      .adapter = adapter};
    session s;
    error = (zf_error){ZF_OK, ""};
    snprintf(base, sizeof base, MODELS "%s", model);
    if (session_config(&llm_sample, base, &config, &error) &&
        session_open_folder(&s, base, &d, 1 + ZF_F32, &error))
        session_close(&s);
    return error.text;
}

TEST_ONCE(adapter_that_does_not_fit_is_refused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"r\": 3", "\"r\": 4", "lora_A.weight is [3,18], the model's is [4,18]"},
        {"\"LORA\"", "\"IA3\"", "peft_type must be \"LORA\", not \"IA3\""},
        {"\"bias\": \"none\"", "\"bias\": \"all\"", "bias must be \"none\", not \"all\""},
        {"\"use_dora\": false", "\"use_dora\": true", "use_dora is true, which is not supported"},
        {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q\": 4}",
         "rank_pattern is not empty, which is not supported"},
        {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"",
         "init_lora_weights must be true, false, gaussian, orthogonal or eva, not \"pissa\""},
        {"\"r\"", "\"s\"", "lacks \"r\""},
    };
    const char *folder = test_path("adapter-varied");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        CHECK(t, vary(folder, cases[k].from, cases[k].to));
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
                      "this one with --adapter");
}

TEST_ONCE(adapter_options_are_read)
{
    static const char *const bad[] = {"",        "r=0",       "r=1.5",     "alpha=x",  "dropout=1",
                                      "rank=3",  "targets=",  "r=4,",      "r=4,q_proj",
                                      "targets=q_proj,,v",    "rslora=1"};
    adapter_options o;
    char text[64];
    CHECK(t, adapter_options_read(NULL, &o) && !o.desc.rank);
    CHECK_TEXT(t, adapter_options_text(text, &o), "none");
    CHECK(t, adapter_options_read("r=16,alpha=32,targets=q_proj,v_proj,dropout=0.05,rslora", &o));
    CHECK(t, o.desc.rank == 16 && o.desc.alpha == 32 && o.desc.dropout == 0.05 && o.desc.rslora);
    CHECK_TEXT(t, o.desc.targets, "q_proj,v_proj");
    CHECK(t, !strncmp(adapter_options_text(text, &o), "r=16,alpha=32,dropout=0.05,rslora,", 34));
    CHECK(t, adapter_options_read("rslora", &o) && o.desc.rank == 8 && o.desc.alpha == 8);
    CHECK_TEXT(t, o.desc.targets, "all-linear");
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        if (adapter_options_read(bad[k], &o))
            test_fail(t, __FILE__, __LINE__, "it is refused", bad[k]);
}
