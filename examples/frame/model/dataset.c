#include "dataset.h"
#include "../../../zeroflow_llm.h"
#include "../options/fail.h"
#include "settings.h"

static int64_t encode(const void *user, const char *text, size_t bytes, int32_t *ids, int64_t cap)
{
    return zf_wordpiece_encode(user, text, bytes, 0, ids, cap);
}

static bool read_text(dataset *d, const settings *o, zf_error *error)
{
    zf_wordpiece_options options = tokenizing_options(&o->words);
    bert_corpus_desc desc = {.encode = encode, .threads = (int)o->threads};
    char err[512] = "out of memory";
    const bert_corpus *c;
    if (!(d->vocab = zf_folder_vocab(o->vocab, &options, error))) return false;
    desc.user = d->vocab, desc.vocab_size = zf_wordpiece_size(d->vocab);
    if (!(c = d->corpus = bert_corpus_load(o->corpus, &desc, err, sizeof err)))
        return fail(error, ZF_ERR_FORMAT, "%s", err);
    d->tokens = c->tokens, d->documents = c->documents, d->held_out = c->held_out.count;
    d->digest = c->digest, d->unigram_nats = c->unigram_nats;
    return true;
}

/* Gives the vocabulary's size to the model, or checks that the vocabulary fits the model's. */
static bool adopt(const dataset *d, const settings *o, const zf_config_facts *facts,
                  zf_error *error)
{
    bool named = !zf_config_is_path(o->model);
    int64_t tokens = zf_wordpiece_size(d->vocab);
    if (named) *facts->vocab = tokens;
    if (named && facts->pad) *facts->pad = zf_wordpiece_id(d->vocab, "[PAD]");
    if (facts->end) *facts->end = zf_wordpiece_id(d->vocab, "[SEP]");
    if (facts->begin) *facts->begin = *facts->end;
    return tokens <= *facts->vocab ||
           fail(error, ZF_ERR_ARGUMENT, "%.200s: vocab_size is %lld, but %.200s has %lld tokens",
                o->model, (long long)*facts->vocab, o->vocab, (long long)tokens);
}

bool dataset_open(dataset *d, const sample_model *sample, settings *o, void *config,
                  zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(sample->config, config);
    bool good;
    *d = (dataset){.vocab = NULL};
    if (o->batch_file)
        good = zf_digest_path(o->batch_file, &d->digest, error) &&
               sample->objective->open_file(d, o, &facts, config, error);
    else if (o->data) good = sample->objective->open_data(d, o, &facts, config, error);
    else
        good = read_text(d, o, error) && sample->objective->open_text(d, o, config, error) &&
               adopt(d, o, &facts, error);
    if (!good) dataset_close(d, sample);
    return good;
}

void dataset_tell(const dataset *d, const settings *o)
{
    if (!d->cut && !d->left_out) return;
    printf("%s: of %lld examples, %lld are cut to the %lld tokens of --seq, and %lld are left out, "
           "which have no label within them\n",
           o->data, (long long)(d->documents + d->left_out), (long long)d->cut, (long long)o->seq,
           (long long)d->left_out);
}

void dataset_close(dataset *d, const sample_model *sample)
{
    sample->objective->close(d);
    bert_corpus_free(d->corpus);
    zf_wordpiece_free(d->vocab);
    zf_folder_texts_free(&d->texts);
    *d = (dataset){.vocab = NULL};
}
