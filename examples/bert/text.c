/* Text for the commands: vocabulary, corpus, examples; sentences with a masked word. */
#include "../common/folder.h"
#include "commands.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int64_t encode(const void *user, const char *text, size_t bytes, int32_t *ids, int64_t cap)
{
    return bert_encode(user, text, bytes, 0, ids, cap);
}

int64_t bert_predictions(int64_t batch, int64_t sequence, int64_t masked_percent)
{
    int64_t percent = masked_percent > 15 ? masked_percent : 15;
    return batch * (((sequence - 3) * percent + 50) / 100);
}

static bool examples(bert_examples **out, const bert_text *t, bool held_out, bool pairs,
                     int64_t sequence, int64_t masked_percent, uint64_t seed, char *err,
                     size_t size)
{
    bert_examples_desc d = {.corpus = t->corpus,
                            .held_out = held_out,
                            .single = !pairs,
                            .seed = seed,
                            .sequence = (int32_t)sequence,
                            .masked_percent = (int32_t)masked_percent};
    d.pad = bert_vocab_id(t->vocab, "[PAD]"), d.unk = bert_vocab_id(t->vocab, "[UNK]");
    d.cls = bert_vocab_id(t->vocab, "[CLS]"), d.sep = bert_vocab_id(t->vocab, "[SEP]");
    d.mask = bert_vocab_id(t->vocab, "[MASK]");
    return (*out = bert_examples_new(&d, err, size)) != NULL;
}

bool bert_text_open(bert_text *t, const char *corpus, const char *vocab,
                    const bert_tokenizer_options *options, bool pairs, int64_t sequence,
                    int64_t masked_percent, uint64_t seed, int64_t threads, zf_error *error)
{
    bert_corpus_desc d = {.encode = encode, .threads = (int)threads};
    char err[512] = "out of memory";
    bool good;
    *t = (bert_text){NULL, NULL, NULL, NULL};
    t->vocab = folder_vocab(vocab, options, error);
    if (!t->vocab) return false;
    d.user = t->vocab, d.vocab_size = bert_vocab_size(t->vocab);
    good = (t->corpus = bert_corpus_load(corpus, &d, err, sizeof err)) != NULL;
    good = good &&
           examples(&t->train, t, false, pairs, sequence, masked_percent, seed, err, sizeof err) &&
           examples(&t->held_out, t, true, pairs, sequence, 0, seed, err, sizeof err);
    if (good) return true;
    error->status = ZF_ERR_FORMAT;
    snprintf(error->text, sizeof error->text, "%s", err);
    bert_text_close(t);
    return false;
}

void bert_text_close(bert_text *t)
{
    bert_examples_free(t->train);
    bert_examples_free(t->held_out);
    bert_corpus_free(t->corpus);
    bert_vocab_free(t->vocab);
    *t = (bert_text){NULL, NULL, NULL, NULL};
}

/* Appends a token to a line of text, after a space unless it continues a word. */
static void append_token(char *line, size_t size, const char *token)
{
    size_t at = strlen(line);
    bool continues = !strncmp(token, "##", 2);
    snprintf(line + at, size - at, "%s%s", at && !continues ? " " : "",
             continues ? token + 2 : token);
}

static void print_guesses(const bert_vocab *vocab, const char *text, const bert_guess *guesses,
                          int64_t masks, const char *truth)
{
    printf("  %s\n", text);
    for (int64_t m = 0; m < masks; m++) {
        printf("    %s", masks > 1 ? "-> " : "");
        for (int n = 0; n < BERT_GUESSES; n++)
            printf("%s%s %.1f%%", n ? ", " : "", bert_vocab_token(vocab, guesses[m].token[n]),
                   100 * guesses[m].probability[n]);
        printf("%s%s%s\n", truth ? "   (was: " : "", truth ? truth : "", truth ? ")" : "");
    }
}

/* {"text": ..., "masks": [[{"token": ..., "id": ..., "probability": ...}, ...], ...]} */
static bool print_json(const bert_vocab *vocab, const char *text, const bert_guess *guesses,
                       int64_t masks, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    const char *json;
    zf_json_begin_object(w);
    zf_json_put_key(w, "text"), zf_json_put_string(w, text);
    zf_json_put_key(w, "masks"), zf_json_begin_array(w);
    for (int64_t m = 0; m < masks; m++) {
        zf_json_begin_array(w);
        for (int n = 0; n < BERT_GUESSES; n++) {
            int32_t id = guesses[m].token[n];
            zf_json_begin_object(w);
            zf_json_put_key(w, "token"), zf_json_put_string(w, bert_vocab_token(vocab, id));
            zf_json_put_key(w, "id"), zf_json_put_int(w, id);
            zf_json_put_key(w, "probability");
            zf_json_put_double(w, guesses[m].probability[n]);
            zf_json_end(w);
        }
        zf_json_end(w);
    }
    zf_json_end(w), zf_json_end(w);
    json = zf_json_text(w, NULL, error);
    if (json) printf("%s", json);
    zf_json_writer_free(w);
    return json != NULL;
}

bool bert_fill_text(bert_session *with, const bert_config *config, const bert_vocab *vocab,
                    int64_t sequence, const char *text, const char *truth, bool json,
                    zf_error *error)
{
    enum { MASKS = 16 };
    bert_session_desc d = {
        .config = *config, .shape = {1, sequence, MASKS}, .keep_logits = true, .share = with};
    bert_guess guesses[MASKS];
    bert_session s;
    int64_t masks = 0;
    bert_batch batch = {.examples = 1, .sequence = (int32_t)sequence, .predictions = MASKS};
    int32_t positions[MASKS], labels[MASKS], next[1];
    bool good;
    if (!bert_session_open(&s, &d, error)) return false;
    batch.input_ids = calloc((size_t)sequence, sizeof *batch.input_ids);
    batch.token_type_ids = calloc((size_t)sequence, sizeof *batch.token_type_ids);
    batch.attention_mask = calloc((size_t)sequence, sizeof *batch.attention_mask);
    batch.positions = positions, batch.labels = labels, batch.next_sentence_label = next;
    good = batch.input_ids && batch.token_type_ids && batch.attention_mask;
    if (!good) {
        error->status = ZF_ERR_NOMEM;
        snprintf(error->text, sizeof error->text, "out of memory");
    } else if ((masks = bert_fill_batch(&batch, vocab, text)) <= 0) {
        error->status = ZF_ERR_ARGUMENT;
        if (masks < 0)
            snprintf(error->text, sizeof error->text, "the text has more than %lld tokens",
                     (long long)sequence - 2);
        else snprintf(error->text, sizeof error->text, "the text has no [MASK] to fill in");
        good = false;
    } else {
        error->status = bert_session_feed(&s, &batch, 1, 1);
        if (error->status)
            snprintf(error->text, sizeof error->text, "%s", zf_program_error(s.program));
        good =
            !error->status && bert_session_guess(&s, masks, bert_vocab_size(vocab), guesses, error);
    }
    if (good && s.rank == 0 && json) good = print_json(vocab, text, guesses, masks, error);
    else if (good && s.rank == 0) print_guesses(vocab, text, guesses, masks, truth);
    free(batch.input_ids);
    free(batch.token_type_ids);
    free(batch.attention_mask);
    bert_session_close(&s);
    return good;
}

static bool is_word(const char *token)
{
    for (; *token; token++)
        if (!isalpha((unsigned char)*token) && (unsigned char)*token < 0x80) return false;
    return true;
}

/* The sentence's longest whole word of letters, as an index into its tokens; -1 when it has none of
 * four and more. */
static int64_t word_to_mask(const bert_text *t, int64_t first, int64_t last)
{
    int64_t best = -1;
    size_t length = 3;
    for (int64_t i = first; i < last; i++) {
        const char *token = bert_vocab_token(t->vocab, bert_corpus_id(t->corpus, i));
        bool ends =
            i + 1 == last || bert_vocab_starts_word(t->vocab, bert_corpus_id(t->corpus, i + 1));
        if (!bert_vocab_starts_word(t->vocab, bert_corpus_id(t->corpus, i)) || !ends) continue;
        if (strlen(token) > length && is_word(token)) best = i, length = strlen(token);
    }
    return best;
}

/* Shows sentence `s` with a word masked, if it is one to show; false with *error. */
static bool show_sentence(bert_session *with, const bert_config *config, const bert_text *t,
                          int64_t sequence, int64_t s, bool *shown, zf_error *error)
{
    int64_t first = t->corpus->sentence[s], last = t->corpus->sentence[s + 1], mask = -1;
    char line[2048] = "";
    if (last - first >= 6 && last - first <= 24 && last - first <= sequence - 2)
        mask = word_to_mask(t, first, last);
    *shown = mask >= 0;
    if (!*shown) return true;
    for (int64_t i = first; i < last; i++)
        append_token(line, sizeof line,
                     i == mask ? "[MASK]"
                               : bert_vocab_token(t->vocab, bert_corpus_id(t->corpus, i)));
    return bert_fill_text(with, config, t->vocab, sequence, line,
                          bert_vocab_token(t->vocab, bert_corpus_id(t->corpus, mask)), false,
                          error);
}

/* The first sentence of every document, then the second, ... until there are enough. */
bool bert_show_guesses(bert_session *with, const bert_config *config, const bert_text *t,
                       int64_t sequence, int count, zf_error *error)
{
    const bert_split *split = &t->corpus->held_out;
    bool more = true, shown;
    for (int64_t n = 0; more && count > 0; n++) {
        more = false;
        for (int64_t d = 0; d < split->count && count > 0; d++) {
            int64_t s = t->corpus->document[split->documents[d]] + n;
            if (s >= t->corpus->document[split->documents[d] + 1]) continue;
            more = true;
            if (!show_sentence(with, config, t, sequence, s, &shown, error)) return false;
            count -= shown;
        }
    }
    return true;
}
