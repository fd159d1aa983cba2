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

/* ----------------------------------------------------------------------------------- examples */

/* A model of a size becomes one of a tokenizer of `size` tokens. */
static void adopt_size(int64_t size, const settings *o, const zf_config_facts *facts, int32_t end)
{
    if (zf_config_is_path(o->model)) return;
    *facts->vocab = size;
    if (facts->end) *facts->end = end;
    if (facts->begin) *facts->begin = end;
}

bool dataset_open_chat(zf_chat *chat, const settings *o, const zf_tokenizer *tokenizer,
                       zf_error *error)
{
    if (!tokenizer && (o->chat || o->date || o->chat_vars))
        return fail(error, ZF_ERR_ARGUMENT,
                    "--chat, --chat-vars and --date need a tokenizer with a BPE model; %s has none",
                    o->tokenizer);
    if (!tokenizer) return true;
    return zf_chat_open(chat, o->tokenizer, o->chat, error) &&
           zf_chat_fits(chat, tokenizer, error) && zf_chat_set_date(chat, o->date, false, error) &&
           (!o->chat_vars || zf_chat_set_variables(chat, o->chat_vars, error));
}

/* tokenizer NULL: d->vocab is that of the examples. */
static bool load_examples(dataset *d, const settings *o, const zf_tokenizer *tokenizer,
                          const zf_chat *chat, const zf_config_facts *facts, dataset_load *load,
                          zf_error *error)
{
    zf_examples_desc desc = {.tokens = tokenizer,
                          .words = d->vocab,
                          .chat = chat->plain ? chat : NULL,
                          .sequence = o->seq,
                          .alone = o->alone,
                          .evaluates = o->evaluates};
    desc.end = *chat->end ? zf_tokenizer_id(tokenizer, chat->end) : -1;
    if (!tokenizer) desc.end = zf_wordpiece_id(d->vocab, "[SEP]");
    adopt_size(tokenizer ? zf_tokenizer_size(tokenizer) : zf_wordpiece_size(d->vocab), o, facts,
               desc.end);
    desc.vocab = *facts->vocab;
    if (!load(d, o, &desc, error)) return false;
    if (!d->digest) d->digest = 1;
    if (!d->begins) d->begins = 1;
    return true;
}

static bool load_chats(dataset *d, const settings *o, const zf_tokenizer *tokenizer,
                       const zf_config_facts *facts, dataset_load *load, zf_error *error)
{
    zf_chat chat = {.style = -1};
    bool good = dataset_open_chat(&chat, o, tokenizer, error) &&
                load_examples(d, o, tokenizer, &chat, facts, load, error);
    zf_chat_close(&chat);
    return good;
}

bool dataset_open_examples(dataset *d, const settings *o, const zf_config_facts *facts,
                           dataset_load *load, zf_error *error)
{
    zf_wordpiece_options options = tokenizing_options(&o->words);
    zf_tokenizer *tokenizer;
    bool good;
    if (zf_folder_is(o->tokenizer) && !zf_folder_has_bpe(o->tokenizer))
        return (d->vocab = zf_folder_vocab(o->tokenizer, &options, error)) &&
               load_chats(d, o, NULL, facts, load, error);
    if (!(tokenizer = zf_tokenizer_open(o->tokenizer, error))) return false;
    good = load_chats(d, o, tokenizer, facts, load, error) &&
           zf_folder_texts_read(&d->texts, o->tokenizer, NULL, error);
    zf_tokenizer_free(tokenizer);
    return good;
}

bool dataset_load_pairs(dataset *d, const settings *o, const zf_examples_desc *desc, pairs *p,
                        zf_error *error)
{
    if (!pairs_load(p, o->data, desc, error)) return false;
    d->tokens = p->tokens, d->documents = p->count, d->held_out = p->held_out;
    d->digest = p->digest, d->begins = p->begins;
    return true;
}

const char *dataset_wrong_for_pairs(const settings *o)
{
    if (o->corpus || o->batch_file || !o->data) return "pairs of answers are needed: --data FILE";
    return o->alone ? "--alone: each text of a pair has a row of its own already" : NULL;
}

/* ------------------------------------------------------------------------------------- opening */

/* A model of an objective that scores becomes one that does; others must predict. */
static bool take_scores(const sample_model *sample, const settings *o, const zf_config_facts *facts,
                        zf_error *error)
{
    if (sample->objective->scores_texts) *facts->scores = 1;
    return sample->objective->scores_texts || !facts->scores || !*facts->scores ||
           fail(error, ZF_ERR_MISMATCH,
                "%s is a reward model, which predicts no tokens: reward trains it, score uses it",
                o->evaluates ? o->load : o->model);
}

bool dataset_open(dataset *d, const sample_model *sample, settings *o, void *config,
                  zf_error *error)
{
    const zf_config_facts facts = zf_config_facts_of(sample->config(), config);
    bool good;
    *d = (dataset){.vocab = NULL};
    if (!take_scores(sample, o, &facts, error)) return false;
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
