/* The command classify: the labels of texts by a model that finetune has trained, or transformers. */
#include "classify.h"
#include "../commands.h"
#include "../../frame/folder/folder.h"
#include "../../frame/options/command.h"
#include "../../frame/options/fail.h"

#include <math.h>
#include <stdlib.h>

typedef struct options {
    folder_options from;
    settings o; /* of the data */
    const char *text, *pair;
} options;

static const zf_option own_rows[] = {
    ZF_OPTION(options, TEXT, o.data, 0, NULL, .flag = "data", .unit = "FILE", .topic = "data",
              .traits = ZF_OPTION_READS, .help = "texts: CSV with a header line, TSV, or JSON Lines"),
    ZF_OPTION(options, TEXT, text, 0, NULL, .unit = "COLUMN",
              .help = "column with the text; else text"),
    ZF_OPTION(options, TEXT, pair, 0, NULL, .unit = "COLUMN", .help = "column with a second text"),
    ZF_OPTION(options, TEXT, o.tokenizer, 0, NULL, .flag = "tokenizer", .unit = "DIR",
              .traits = ZF_OPTION_READS, .help = "tokenizer; without this option that of --load"),
    ZF_OPTION(options, COUNT, o.seq, 0, "[0,65536]", .flag = "seq", .unit = "T",
              .help = "tokens at which texts are cut; 0: those of the model, at most 512"),
    ZF_OPTION(options, COUNT, o.batch, 16, "[1,1048576]", .flag = "batch", .unit = "B",
              .help = "texts at a time"),
    {.name = NULL}};

static void put_scores(zf_json_writer *w, const float *score, const bert_config *c)
{
    double most = -INFINITY, sum = 0;
    int64_t best = 0;
    int bytes;
    const char *name;
    char label[BERT_NAMES];
    for (int64_t k = 0; k < c->labels; k++)
        if (score[k] > most) most = score[k], best = k;
    for (int64_t k = 0; k < c->labels; k++) sum += exp(score[k] - most);
    name = texts_name(c, best, &bytes);
    snprintf(label, sizeof label, "%.*s", bytes, name);
    zf_json_put_text_member(w, "label", label);
    zf_json_put_double_member(w, "probability", 1 / sum);
    zf_json_put_key(w, "scores"), zf_json_begin_array(w);
    for (int64_t k = 0; k < c->labels; k++) zf_json_put_double(w, (double)score[k]);
    zf_json_end(w);
}

/* A line of JSON. False with *error. */
static bool print_text(const float *score, const bert_config *c, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    const char *json;
    zf_json_begin_object(w);
    if (c->task == BERT_REGRESSES) zf_json_put_double_member(w, "number", (double)*score);
    else put_scores(w, score, c);
    zf_json_end(w);
    if ((json = zf_json_text(w, NULL, error))) printf("%s\n", json);
    zf_json_writer_free(w);
    return json != NULL;
}

/* Runs a step of texts from `first` on, and prints them. */
static bool print_step(session *s, classify_batch *b, const texts *t, int64_t first, float *scores,
                       const bert_config *c, zf_error *error)
{
    const zf_tensor from = zf_graph_find(s->graph, "scores");
    zf_status status;
    for (int64_t row = 0; row < b->rows; row++)
        classify_batch_put(b, t, row, first + row < t->count ? first + row : -1);
    status = classify_feed(s, b, 0, b->rows, 1);
    if (!status) status = zf_step(s->program);
    if (!status) status = zf_read(s->program, from, scores, zf_tensor_bytes(from));
    if (status) return fail(error, status, "%s", zf_program_error(s->program));
    for (int64_t row = 0; row < b->rows && first + row < t->count; row++)
        if (!print_text(scores + row * c->labels, c, error)) return false;
    return true;
}

static bool print_all(session *s, const texts *t, int64_t rows, const bert_config *c,
                      zf_error *error)
{
    classify_batch b;
    float *scores = malloc((size_t)(rows * c->labels) * sizeof *scores);
    bool good = scores || fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good && (good = classify_batch_new(&b, rows, t->longest, c->pad < 0 ? 0 : c->pad, error))) {
        for (int64_t first = 0; first < t->count && good; first += rows)
            good = print_step(s, &b, t, first, scores, c, error);
        classify_batch_free(&b);
    }
    free(scores);
    return good;
}

static bool run(options *x, bert_config *c, zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(bert_sample.config(), c);
    const int64_t most = zf_config_positions(bert_sample.config(), c), usual = most < 512 ? most : 512;
    const texts_desc desc = {.text = x->text ? x->text : "text",
                             .pair = x->pair,
                             .two_separators = bert_family_of(c)->two_separators};
    session_desc d = {.sample = &bert_sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = c,
                      .threads = folder_threads(&x->from),
                      .adapter = x->from.adapter,
                      .average = x->from.average};
    dataset data = {.vocab = NULL};
    texts t = {.count = 0};
    session s;
    bool good;
    if (x->o.seq > most)
        return fail(error, ZF_ERR_ARGUMENT,
                    "sequences of %lld tokens are too long for the model's %lld positions",
                    (long long)x->o.seq, (long long)most);
    if (!x->o.seq) x->o.seq = usual;
    x->o.evaluates = true;
    if (!x->o.tokenizer) x->o.tokenizer = x->from.load;
    good = classify_load(&data, &t, &x->o, &facts, &desc, error);
    d.shape = (sample_shape){.batch = x->o.batch, .sequence = t.longest, .predictions = x->o.batch};
    if (good && (good = session_open_folder(&s, x->from.load, &d, x->from.dtype, error))) {
        good = print_all(&s, &t, x->o.batch, c, error);
        session_close(&s);
    }
    texts_free(&t);
    zf_wordpiece_free(data.vocab);
    zf_folder_texts_free(&data.texts);
    return good;
}

int bert_command_classify(int argc, char **argv)
{
    static options x;
    static bert_config c;
    command_tables tables = {.count = 0};
    zf_error error = {ZF_OK, ""};
    int status;
    x = (options){.text = NULL};
    command_add(&tables, folder_load_rows, &x.from);
    command_add(&tables, folder_adapter_rows, &x.from);
    command_add(&tables, own_rows, &x);
    command_add(&tables, folder_compute_rows, &x.from);
    if (!command_options(argc, argv, "classify --load DIR --data FILE [OPTIONS]", &tables, NULL,
                         &status))
        return status;
    if (!x.from.load) return command_usage_error(argv, folder_is_missing);
    if (!x.o.data) return command_usage_error(argv, "texts are needed: --data FILE");
    if (!session_config(&bert_sample, x.from.load, x.from.adapter, &c, &error))
        return command_error("%s", error.text);
    if (!c.task)
        return command_error("%s has no labels: finetune trains a model for them", x.from.load);
    return run(&x, &c, &error) ? EXIT_GOOD : command_error("%s", error.text);
}
