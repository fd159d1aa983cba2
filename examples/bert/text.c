/* Sentences with masked words, and what a model guesses. */
#include "../frame/options/fail.h"
#include "masked.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Appends a token to a line of text, after a space unless it continues a word. */
static void append_token(char *line, size_t size, const char *token)
{
    size_t at = strlen(line);
    bool continues = !strncmp(token, "##", 2);
    snprintf(line + at, size - at, "%s%s", at && !continues ? " " : "",
             continues ? token + 2 : token);
}

static void print_guesses(const zf_wordpiece *vocab, const char *text, const masked_guess *guesses,
                          int64_t masks, const char *truth)
{
    printf("  %s\n", text);
    for (int64_t m = 0; m < masks; m++) {
        printf("    %s", masks > 1 ? "-> " : "");
        for (int n = 0; n < MASKED_GUESSES; n++)
            printf("%s%s %.1f%%", n ? ", " : "", zf_wordpiece_token(vocab, guesses[m].token[n]),
                   100 * guesses[m].probability[n]);
        printf("%s%s%s\n", truth ? "   (was: " : "", truth ? truth : "", truth ? ")" : "");
    }
}

/* {"text": ..., "masks": [[{"token": ..., "id": ..., "probability": ...}, ...], ...]} */
static bool print_json(const zf_wordpiece *vocab, const char *text, const masked_guess *guesses,
                       int64_t masks, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    const char *json;
    zf_json_begin_object(w);
    zf_json_put_key(w, "text"), zf_json_put_string(w, text);
    zf_json_put_key(w, "masks"), zf_json_begin_array(w);
    for (int64_t m = 0; m < masks; m++) {
        zf_json_begin_array(w);
        for (int n = 0; n < MASKED_GUESSES; n++) {
            int32_t id = guesses[m].token[n];
            zf_json_begin_object(w);
            zf_json_put_key(w, "token"), zf_json_put_string(w, zf_wordpiece_token(vocab, id));
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

bool masked_fill_text(session *with, const void *config, const zf_wordpiece *vocab,
                      int64_t sequence, const char *text, const char *truth, bool json,
                      zf_error *error)
{
    enum { MASKS = 16 };
    session_desc d = {.sample = with->sample,
                      .purpose = SAMPLE_ANSWER,
                      .config = config,
                      .shape = {.batch = 1, .sequence = sequence, .predictions = MASKS},
                      .share = with};
    masked_guess guesses[MASKS];
    session s;
    int64_t masks = 0;
    bert_batch batch = {.examples = 1, .sequence = (int32_t)sequence, .predictions = MASKS};
    int32_t positions[MASKS], labels[MASKS], next[1];
    bool good;
    if (!session_open(&s, &d, error)) return false;
    batch.input_ids = calloc((size_t)sequence, sizeof *batch.input_ids);
    batch.token_type_ids = calloc((size_t)sequence, sizeof *batch.token_type_ids);
    batch.attention_mask = calloc((size_t)sequence, sizeof *batch.attention_mask);
    batch.positions = positions, batch.labels = labels, batch.next_sentence_label = next;
    good = batch.input_ids && batch.token_type_ids && batch.attention_mask;
    if (!good) {
        fail(error, ZF_ERR_NOMEM, "out of memory");
    } else if ((masks = masked_fill_batch(&batch, vocab, text)) < 0) {
        good = fail(error, ZF_ERR_ARGUMENT, "the text has more than %lld tokens",
                    (long long)sequence - 2);
    } else if (!masks) {
        good = fail(error, ZF_ERR_ARGUMENT, "the text has no [MASK] to fill in");
    } else {
        zf_status status = masked_feed(&s, &batch, 1, 1);
        good = status ? fail(error, status, "%s", zf_program_error(s.program))
                      : masked_guesses(&s, masks, zf_wordpiece_size(vocab), guesses, error);
    }
    if (good && s.rank == 0 && json) good = print_json(vocab, text, guesses, masks, error);
    else if (good && s.rank == 0) print_guesses(vocab, text, guesses, masks, truth);
    free(batch.input_ids);
    free(batch.token_type_ids);
    free(batch.attention_mask);
    session_close(&s);
    return good;
}

static bool is_word(const char *token)
{
    for (; *token; token++)
        if (!isalpha((unsigned char)*token) && (unsigned char)*token < 0x80) return false;
    return true;
}

/* The sentence's longest whole word of letters, as an index into its tokens; -1 if none has at
 * least four letters. */
static int64_t word_to_mask(const dataset *t, int64_t first, int64_t last)
{
    int64_t best = -1;
    size_t length = 3;
    for (int64_t i = first; i < last; i++) {
        const char *token = zf_wordpiece_token(t->vocab, bert_corpus_id(t->corpus, i));
        bool ends =
            i + 1 == last || zf_wordpiece_starts_word(t->vocab, bert_corpus_id(t->corpus, i + 1));
        if (!zf_wordpiece_starts_word(t->vocab, bert_corpus_id(t->corpus, i)) || !ends) continue;
        if (strlen(token) > length && is_word(token)) best = i, length = strlen(token);
    }
    return best;
}

/* Prints sentence `s` with a word masked, if it is suitable; false with *error. */
static bool show_sentence(session *with, const void *config, const dataset *t, int64_t sequence,
                          int64_t s, bool *shown, zf_error *error)
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
                               : zf_wordpiece_token(t->vocab, bert_corpus_id(t->corpus, i)));
    return masked_fill_text(with, config, t->vocab, sequence, line,
                            zf_wordpiece_token(t->vocab, bert_corpus_id(t->corpus, mask)), false,
                            error);
}

/* Takes the first sentence of every document, then the second, ... until there are enough. */
bool masked_show(session *with, const void *config, const dataset *t, int64_t sequence,
                 zf_error *error)
{
    int count = 5;
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
