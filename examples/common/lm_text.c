#include "lm_text.h"
#include "../bert/corpus.h"
#include "fail.h"
#include "folder.h"

#include <stdlib.h>
#include <string.h>

static int64_t encode(const void *user, const char *text, size_t bytes, int32_t *ids, int64_t cap)
{
    return bert_encode(user, text, bytes, 0, ids, cap);
}

/* The documents of a split, one behind the other. */
static bool join(lm_tokens *out, const bert_corpus *c, const bert_split *split, int32_t end,
                 int64_t sequence, const char *path, zf_error *error)
{
    out->id = malloc((size_t)(split->tokens + split->count) * sizeof *out->id);
    if (!out->id) return fail(error, ZF_ERR_NOMEM, "out of memory");
    for (int64_t d = 0; d < split->count; d++) {
        const int64_t *sentence = c->document + split->documents[d];
        for (int64_t i = c->sentence[sentence[0]]; i < c->sentence[sentence[1]]; i++)
            out->id[out->count++] = bert_corpus_id(c, i);
        out->id[out->count++] = end;
    }
    return out->count > sequence ||
           fail(error, ZF_ERR_ARGUMENT,
                    "%s: the training part and the held-out part must each have more than %lld "
                    "tokens; one has %lld",
                    path, (long long)sequence, (long long)out->count);
}

bool lm_text_open(lm_text *t, const char *path, const char *vocab,
                   const bert_tokenizer_options *options, int64_t sequence, int64_t threads,
                   zf_error *error)
{
    bert_corpus_desc d = {.encode = encode, .threads = (int)threads};
    bert_corpus *corpus;
    char err[512];
    int32_t end;
    bool good;
    *t = (lm_text){.vocab = folder_vocab(vocab, options, error)};
    if (!t->vocab) return false;
    d.user = t->vocab, d.vocab_size = bert_vocab_size(t->vocab);
    corpus = bert_corpus_load(path, &d, err, sizeof err);
    if (!corpus) {
        lm_text_close(t);
        return fail(error, ZF_ERR_FORMAT, "%s", err);
    }
    end = bert_vocab_id(t->vocab, "[SEP]");
    t->unigram_nats = corpus->unigram_nats;
    t->digest = corpus->digest;
    good = join(&t->train, corpus, &corpus->train, end, sequence, path, error) &&
           join(&t->held_out, corpus, &corpus->held_out, end, sequence, path, error);
    bert_corpus_free(corpus);
    if (!good) lm_text_close(t);
    return good;
}

void lm_text_close(lm_text *t)
{
    bert_vocab_free(t->vocab);
    free(t->train.id);
    free(t->held_out.id);
    *t = (lm_text){.vocab = NULL};
}

void lm_print_token(const bert_vocab *vocab, int32_t id)
{
    const char *token = bert_vocab_token(vocab, id);
    if (!strncmp(token, "##", 2) && !bert_vocab_starts_word(vocab, id)) printf("%s", token + 2);
    else printf("%s%s", strlen(token) == 1 && strchr(".,;:!?)", *token) ? "" : " ", token);
}
