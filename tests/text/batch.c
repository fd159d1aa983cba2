/* Pretraining batches: pairs, masks, purity, and the feeder. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include "../../examples/bert/data/batch.h"

#include <stdio.h>

/* ---------- a corpus in which every token is one of a kind ---------- */

enum { PAD, UNK, CLS, SEP, MASK, WORDS };

/* The id of the token at index i of the corpus is WORDS + i, so a batch shows the origin of each of
 * its tokens. */
static int64_t encode_numbers(const void *user, const char *text, size_t bytes, int32_t *ids,
                              int64_t cap)
{
    int64_t n = 0;
    (void)user, (void)bytes;
    for (char *end; n < cap; n++, text = end) {
        long id = strtol(text, &end, 10);
        if (end == text || *text == '\n') break;
        ids[n] = (int32_t)id;
        while (*end == ' ') end++;
        if (*end == '\n' || !*end) {
            n++;
            break;
        }
    }
    return n;
}

typedef struct shape {
    int64_t documents;
    int most_sentences, most_words; /* of a document, of a sentence: 1 to this, random */
} shape;

static bert_corpus *make_corpus(const zf_allocator *allocator, shape s, char *err, size_t err_size)
{
    size_t room = (size_t)s.documents * (size_t)s.most_sentences * (size_t)s.most_words * 8 + 64;
    char *text = malloc(room);
    int32_t next = WORDS;
    uint64_t state = 1;
    size_t n = 0;
    bert_corpus_desc desc = {.encode = encode_numbers, .allocator = *allocator};
    bert_corpus *c;
    if (!text) abort();
    for (int64_t d = 0; d < s.documents; d++) {
        uint64_t sentences = 1 + bert_mix(state++) % (uint64_t)s.most_sentences;
        for (uint64_t k = 0; k < sentences; k++) {
            uint64_t words = 1 + bert_mix(state++) % (uint64_t)s.most_words;
            for (uint64_t w = 0; w < words; w++)
                n += (size_t)sprintf(text + n, "%d%c", next++, w + 1 < words ? ' ' : '\n');
        }
        text[n++] = '\n';
    }
    text[n] = 0;
    desc.vocab_size = next;
    c = bert_corpus_parse(text, n, "x.txt", &desc, err, err_size);
    free(text);
    return c;
}

typedef struct source {
    bert_corpus *corpus;
    bert_examples *examples;
} source;

static void free_corpus(void *corpus) { bert_corpus_free(corpus); }
static void free_examples(void *examples) { bert_examples_free(examples); }

static bert_examples_desc describe(test *t, const bert_corpus *corpus, int32_t sequence)
{
    return (bert_examples_desc){.corpus = corpus,
                                .seed = 7,
                                .sequence = sequence,
                                .pad = PAD,
                                .unk = UNK,
                                .cls = CLS,
                                .sep = SEP,
                                .mask = MASK,
                                .allocator = t->allocator};
}

/* Reports an object that could not be made; after a refused allocation the message must say so. */
static bool have(test *t, int line, const void *object, const char *err)
{
    if (object) return true;
    test_unwind(t, __FILE__, line, "an object was made", test_status_of(err), err);
    return false;
}

#define HAVE(t, object, err)                                                                       \
    do {                                                                                           \
        if (!have((t), __LINE__, (object), (err))) return;                                         \
    } while (0)

static bert_examples *make_examples(test *t, bert_examples_desc desc)
{
    char err[256] = "";
    bert_examples *x = bert_examples_new(&desc, err, sizeof err);
    if (!have(t, __LINE__, x, err)) return NULL;
    test_defer(t, free_examples, x);
    return x;
}

/* A corpus of this shape and its examples, freed with the test. */
static bool make_source(test *t, source *s, shape corpus, int32_t sequence, bool held_out)
{
    char err[256] = "";
    bert_examples_desc desc;
    s->corpus = make_corpus(&t->allocator, corpus, err, sizeof err);
    if (!have(t, __LINE__, s->corpus, err)) return false;
    test_defer(t, free_corpus, s->corpus);
    desc = describe(t, s->corpus, sequence);
    desc.held_out = held_out;
    s->examples = make_examples(t, desc);
    return s->examples;
}

static void free_batch(void *batch) { bert_batch_free(batch); }

static bert_batch *make_batch(test *t, const bert_examples *x, int32_t examples)
{
    char err[256] = "";
    bert_batch *b = bert_batch_new(x, examples, err, sizeof err);
    if (!have(t, __LINE__, b, err)) return NULL;
    test_defer(t, free_batch, b);
    return b;
}

static bool same(const bert_batch *a, const bert_batch *b)
{
    size_t cells = (size_t)a->examples * (size_t)a->sequence, predictions = (size_t)a->predictions;
    return a->first == b->first && a->examples == b->examples && a->sequence == b->sequence &&
           a->predictions == b->predictions && a->labelled == b->labelled &&
           a->tokens == b->tokens && !memcmp(a->input_ids, b->input_ids, cells * 4) &&
           !memcmp(a->token_type_ids, b->token_type_ids, cells * 4) &&
           !memcmp(a->attention_mask, b->attention_mask, cells) &&
           !memcmp(a->positions, b->positions, predictions * 4) &&
           !memcmp(a->labels, b->labels, predictions * 4) &&
           !memcmp(a->next_sentence_label, b->next_sentence_label, (size_t)a->examples * 4);
}

/* ---------- one example, taken apart ---------- */

typedef struct parsed {
    int64_t a, b, in_a, in_b; /* first token in the corpus and number of each segment */
    int64_t document_a, document_b;
    int labels, masked, replaced, kept;
    bool first_word_chosen, last_word_chosen;
} parsed;

static int64_t document_of(const bert_corpus *c, int64_t token)
{
    int64_t low = 0, high = c->documents;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (c->sentence[c->document[middle]] <= token) low = middle;
        else high = middle;
    }
    return low;
}

static bool in_split(const bert_split *split, int64_t document)
{
    for (int64_t k = 0; k < split->count; k++)
        if (split->documents[k] == document) return true;
    return false;
}

/* Splits example `row` after putting the labels back; false where it breaks a rule of batch.h. *at
 * is the current place among the labels, for rows in order. */
static bool parse(const bert_batch *batch, const bert_corpus *c, int32_t row, int32_t *at,
                  parsed *p)
{
    int32_t sequence = batch->sequence, begin = row * sequence, ids[1024], t = 0;
    int64_t words;
    *p = (parsed){0};
    memcpy(ids, batch->input_ids + begin, (size_t)sequence * 4);
    for (; *at < batch->labelled && batch->positions[*at] < begin + sequence; ++*at) {
        int32_t place = batch->positions[*at] - begin, label = batch->labels[*at];
        if (place < 0 || (p->labels && place + begin <= batch->positions[*at - 1])) return false;
        if (label < WORDS || label >= c->vocab_size) return false;
        p->masked += ids[place] == MASK;
        p->kept += ids[place] == label;
        p->replaced += ids[place] != MASK && ids[place] != label;
        if (ids[place] != MASK && ids[place] < WORDS) return false;
        ids[place] = label;
        p->labels++;
        p->first_word_chosen |= place == 1;
    }
    if (ids[t++] != CLS) return false;
    p->a = ids[t] - WORDS;
    for (; ids[t] >= WORDS; t++, p->in_a++)
        if (ids[t] != WORDS + p->a + p->in_a) return false;
    if (!p->in_a || ids[t] != SEP) return false;
    for (int32_t k = 0; k <= t; k++)
        if (batch->token_type_ids[begin + k]) return false;
    p->b = ids[++t] - WORDS;
    for (; ids[t] >= WORDS; t++, p->in_b++)
        if (ids[t] != WORDS + p->b + p->in_b || batch->token_type_ids[begin + t] != 1) return false;
    if (!p->in_b || ids[t] != SEP || batch->token_type_ids[begin + t] != 1) return false;
    for (int32_t k = 0; k < sequence; k++) {
        if (batch->attention_mask[begin + k] != (k <= t)) return false;
        if (k > t && (ids[k] != PAD || batch->token_type_ids[begin + k])) return false;
    }
    for (int32_t k = *at - p->labels; k < *at; k++)
        p->last_word_chosen |= batch->positions[k] == begin + t - 1;
    words = p->in_a + p->in_b;
    p->document_a = document_of(c, p->a);
    p->document_b = document_of(c, p->b);
    return document_of(c, p->a + p->in_a - 1) == p->document_a &&
           document_of(c, p->b + p->in_b - 1) == p->document_b &&
           p->labels == (words < 7 ? 1 : (15 * words + 50) / 100);
}

/* |count - n p| within five standard deviations of a binomial count. */
static bool plausible(int64_t count, int64_t n, double p)
{
    return fabs((double)count - (double)n * p) <= 5 * sqrt((double)n * p * (1 - p));
}

/* ---------- examples ---------- */

TEST(batch_examples_are_what_they_should_be)
{
    enum { batches = 1500, rows = 16, sequence = 64 };
    source s;
    int64_t elsewhere = 0, labels = 0, masked = 0, replaced = 0, kept = 0, words = 0;
    int64_t first_words = 0, last_words = 0, full = 0, short_ones = 0, replaced_low = 0, late = 0;
    bert_batch *batch;
    if (!make_source(t, &s, (shape){2000, 30, 25}, sequence, false)) return;
    batch = make_batch(t, s.examples, rows);
    if (!batch) return;
    CHECK(t, batch->predictions == rows * 9); /* 0.15 * 61 rounded */
    for (int64_t k = 0; k < batches; k++) {
        int32_t at = 0, tokens = 0;
        bert_batch_fill(batch, s.examples, k * rows);
        for (int32_t row = 0; row < rows; row++) {
            parsed p;
            int32_t before = at;
            CHECK(t, parse(batch, s.corpus, row, &at, &p));
            CHECK(t, in_split(&s.corpus->train, p.document_a));
            CHECK(t, in_split(&s.corpus->train, p.document_b));
            if (batch->next_sentence_label[row]) {
                const int64_t *document = s.corpus->document + p.document_b;
                int64_t begin = s.corpus->sentence[document[0]];
                int64_t end = s.corpus->sentence[document[1]];
                CHECK(t, p.document_a != p.document_b);
                elsewhere++;
                late += 2 * (p.b - begin) > end - begin;
            } else {
                CHECK(t, batch->next_sentence_label[row] == 0);
                CHECK(t, p.document_a == p.document_b && p.a + p.in_a <= p.b);
                /* Only trimming comes between them. */
                CHECK(t, p.a + p.in_a == p.b || p.in_a + p.in_b == sequence - 3);
            }
            for (int32_t i = before; i < at; i++) {
                int32_t id = batch->input_ids[batch->positions[i]];
                if (id != MASK && id != batch->labels[i])
                    replaced_low += id - WORDS < (s.corpus->vocab_size - WORDS) / 2;
            }
            full += p.in_a + p.in_b == sequence - 3;
            short_ones += p.in_a + p.in_b < 30;
            tokens += (int32_t)(p.in_a + p.in_b) + 3;
            words += p.in_a + p.in_b;
            labels += p.labels, masked += p.masked, replaced += p.replaced, kept += p.kept;
            first_words += p.first_word_chosen, last_words += p.last_word_chosen;
        }
        CHECK(t, at == batch->labelled && tokens == batch->tokens);
        for (; at < batch->predictions; at++)
            CHECK(t, batch->positions[at] == 0 && batch->labels[at] == -100);
    }
    /* Single-sentence documents, 1 in 30 here, only give random pairs, and have one window where
     * others have several; so slightly more than half are random. */
    CHECK(t, elsewhere > batches * rows * 0.49 && elsewhere < batches * rows * 0.53);
    /* Their second segments begin anywhere in a document. */
    CHECK(t, late > elsewhere * 0.3 && late < elsewhere * 0.7);
    CHECK(t, plausible(masked, labels, 0.8));
    CHECK(t, plausible(replaced, labels, 0.1));
    CHECK(t, plausible(kept, labels, 0.1));
    CHECK(t, plausible(replaced_low, replaced, 0.5));
    /* Every place has the same probability, also the first and the last. */
    CHECK(t, plausible(first_words, batches * rows, (double)labels / (double)words));
    CHECK(t, plausible(last_words, batches * rows, (double)labels / (double)words));
    CHECK(t, labels > words * 0.145 && labels < words * 0.155);
    CHECK(t, full > batches * rows * 0.6);
    CHECK(t, short_ones > batches * rows * 0.03 && short_ones < batches * rows * 0.2);
}

/* However a batch is split: the parts' tokens and labels are the batch's, in its order and at the
 * same tokens, and the rest of their arrays is empty. */
TEST(batch_parts_are_the_batch)
{
    enum { rows = 24, sequence = 32 };
    static const int64_t cuts[] = {1, 2, 3, 4, 6, 8, 12, 24};
    source s;
    bert_batch *whole;
    if (!make_source(t, &s, (shape){200, 30, 25}, sequence, false)) return;
    whole = make_batch(t, s.examples, rows);
    if (!whole) return;
    for (int64_t k = 0; k < 40; k++) {
        int64_t parts = cuts[k % 8];
        int32_t positions[rows * sequence], labels[rows * sequence], at = 0;
        bert_batch_fill(whole, s.examples, k * rows);
        for (int64_t n = 0; n < parts; n++) {
            int64_t each = rows / parts, begin = n * each * sequence;
            int32_t room = (int32_t)(each * sequence);
            bert_batch part = bert_batch_part(whole, n, parts, positions, labels, room);
            CHECK(t,
                  part.examples == each && part.sequence == sequence && part.predictions == room);
            CHECK(t, part.first == whole->first + n * each);
            CHECK(t, part.input_ids == whole->input_ids + begin &&
                         part.token_type_ids == whole->token_type_ids + begin &&
                         part.attention_mask == whole->attention_mask + begin &&
                         part.next_sentence_label == whole->next_sentence_label + n * each);
            for (int32_t p = 0; p < part.labelled; p++, at++) {
                CHECK(t, part.positions[p] >= 0 && part.positions[p] < room);
                CHECK(t, part.positions[p] + begin == whole->positions[at]);
                CHECK(t, part.labels[p] == whole->labels[at]);
            }
            for (int32_t p = part.labelled; p < room; p++)
                CHECK(t, part.positions[p] == 0 && part.labels[p] == -100);
        }
        CHECK(t, at == whole->labelled);
    }
}

/* So many percent of the words are masked; of held-out examples as many as they are given. */
TEST(batch_masks_a_share)
{
    enum { rows = 400, sequence = 64 };
    static const int32_t shares[] = {1, 40, 60, 100};
    source s;
    if (!make_source(t, &s, (shape){2000, 30, 25}, sequence, false)) return;
    for (int k = 0; k < 4; k++) {
        bert_examples_desc desc = describe(t, s.corpus, sequence);
        bert_examples *examples;
        bert_batch *batch;
        desc.masked_percent = shares[k];
        examples = make_examples(t, desc);
        batch = examples ? make_batch(t, examples, rows) : NULL;
        if (!batch) return;
        CHECK(t, batch->predictions == rows * ((61 * shares[k] + 50) / 100));
        bert_batch_fill(batch, examples, 0);
        double words = batch->tokens - 3.0 * rows, share = shares[k] / 100.0;
        CHECK(t, fabs(batch->labelled - words * share) < 0.5 * rows + 0.01 * words);
    }
}

/* Every word of an example is masked with the same probability: the mean place of masked words is
 * the middle, within four standard deviations. */
TEST(batch_masks_every_place_alike)
{
    enum { rows = 400, sequence = 64 };
    double sum = 0;
    source s;
    bert_batch *b;
    if (!make_source(t, &s, (shape){2000, 30, 25}, sequence, false)) return;
    b = make_batch(t, s.examples, rows);
    if (!b) return;
    bert_batch_fill(b, s.examples, 0);
    for (int32_t p = 0; p < b->labelled; p++) {
        int32_t first = b->positions[p] / sequence * sequence, before = 0, words = 0;
        for (int32_t i = first + 1; i < first + sequence && b->attention_mask[i]; i++) {
            if (b->input_ids[i] == SEP) continue;
            before += i < b->positions[p];
            words++;
        }
        sum += (before + 0.5) / words;
    }
    CHECK(t, b->labelled > 3000);
    CHECK_NEAR(t, sum / b->labelled, 0.5, 4 / sqrt(12.0 * b->labelled));
}

TEST(batch_pairs_are_even)
{
    /* Without single sentences the labels are a fair coin. */
    enum { rows = 20000 };
    source s;
    static const char line[] = "5 6 7 8 9\n";
    static char text[40 * (7 * (sizeof line - 1) + 1)];
    char err[256] = "";
    bert_corpus_desc corpus = {
        .encode = encode_numbers, .vocab_size = 10, .allocator = t->allocator};
    bert_batch *batch;
    int64_t elsewhere = 0, again = 0, epoch;
    size_t n = 0;
    for (int d = 0; d < 40; d++) {
        for (int k = 0; k < 7; k++, n += sizeof line - 1) memcpy(text + n, line, sizeof line - 1);
        text[n++] = '\n';
    }
    s.corpus = bert_corpus_parse(text, n, "x.txt", &corpus, err, sizeof err);
    HAVE(t, s.corpus, err);
    test_defer(t, free_corpus, s.corpus);
    s.examples = make_examples(t, describe(t, s.corpus, 16));
    batch = s.examples ? make_batch(t, s.examples, rows) : NULL;
    if (!batch) return;
    bert_batch_fill(batch, s.examples, 0);
    for (int32_t row = 0; row < rows; row++) elsewhere += batch->next_sentence_label[row];
    CHECK(t, plausible(elsewhere, rows, 0.5));
    /* The same place in the next epoch is drawn again. */
    epoch = bert_examples_epoch(s.examples);
    CHECK(t, epoch < rows / 2);
    for (int64_t row = epoch; row < rows; row++)
        again += batch->next_sentence_label[row] == batch->next_sentence_label[row - epoch];
    CHECK(t, plausible(again, rows - epoch, 0.5));
}

TEST(batch_handles_sentences_longer_than_a_sequence)
{
    enum { rows = 512 };
    source s;
    bert_batch *batch;
    int32_t at = 0;
    if (!make_source(t, &s, (shape){40, 4, 200}, 8, false)) return;
    batch = make_batch(t, s.examples, rows);
    if (!batch) return;
    bert_batch_fill(batch, s.examples, 0);
    for (int32_t row = 0; row < rows; row++) {
        parsed p;
        CHECK(t, parse(batch, s.corpus, row, &at, &p));
        CHECK(t, p.labels == 1 && p.in_a + p.in_b <= 5);
    }
}

TEST(batch_of_single_sentences_has_random_pairs_only)
{
    enum { rows = 256 };
    source s;
    bert_batch *batch;
    int32_t at = 0;
    if (!make_source(t, &s, (shape){60, 1, 9}, 32, false)) return;
    batch = make_batch(t, s.examples, rows);
    if (!batch) return;
    bert_batch_fill(batch, s.examples, 0);
    for (int32_t row = 0; row < rows; row++) {
        parsed p;
        CHECK(t, parse(batch, s.corpus, row, &at, &p));
        CHECK(t, batch->next_sentence_label[row] == 1 && p.document_a != p.document_b);
    }
}

TEST(batch_labels_are_limited)
{
    source s;
    bert_examples_desc desc;
    bert_batch *batch;
    int32_t at = 0;
    if (!make_source(t, &s, (shape){20, 30, 25}, 64, false)) return;
    desc = describe(t, s.corpus, 64);
    desc.max_predictions = 4;
    s.examples = make_examples(t, desc);
    batch = s.examples ? make_batch(t, s.examples, 8) : NULL;
    if (!batch) return;
    CHECK(t, batch->predictions == 32);
    bert_batch_fill(batch, s.examples, 0);
    for (int32_t row = 0; row < 8; row++) {
        int32_t labels = 0;
        for (; at < batch->labelled && batch->positions[at] < 64 * (row + 1); at++) labels++;
        CHECK(t, labels >= 1 && labels <= 4);
    }
    CHECK(t, at == batch->labelled && at > 24);
}

/* ---------- what an example depends on ---------- */

TEST(batch_is_a_function_of_its_number)
{
    source s, other;
    bert_batch *whole, *part, *one;
    int32_t sequence = 32;
    if (!make_source(t, &s, (shape){60, 12, 10}, sequence, false)) return;
    if (!make_source(t, &other, (shape){60, 12, 10}, sequence, false)) return;
    whole = make_batch(t, s.examples, 12);
    part = whole ? make_batch(t, s.examples, 12) : NULL;
    one = part ? make_batch(t, other.examples, 1) : NULL;
    if (!one) return;
    /* Again, after other batches, from equal examples made a second time. */
    bert_batch_fill(whole, s.examples, 1000);
    bert_batch_fill(part, s.examples, 0);
    CHECK(t, !same(whole, part));
    bert_batch_fill(part, other.examples, 1000);
    CHECK(t, same(whole, part));
    /* One by one, from the last to the first. */
    for (int32_t row = 11; row >= 0; row--) {
        int32_t at = 0;
        bert_batch_fill(one, other.examples, 1000 + row);
        CHECK(t, !memcmp(one->input_ids, whole->input_ids + row * sequence, (size_t)sequence * 4));
        CHECK(t, one->next_sentence_label[0] == whole->next_sentence_label[row]);
        while (whole->positions[at] < row * sequence) at++;
        for (int32_t k = 0; k < one->labelled; k++, at++) {
            CHECK(t, one->positions[k] + row * sequence == whole->positions[at]);
            CHECK(t, one->labels[k] == whole->labels[at]);
        }
        CHECK(t, at == whole->labelled || whole->positions[at] >= (row + 1) * sequence);
    }
}

/* How many rows of two batches hold the same words and masks. */
static int equal_rows(const bert_batch *a, const bert_batch *b)
{
    int equal = 0;
    for (int32_t row = 0; row < a->examples; row++)
        equal += !memcmp(a->input_ids + row * a->sequence, b->input_ids + row * b->sequence,
                         (size_t)a->sequence * 4);
    return equal;
}

TEST(batch_depends_on_the_seed_unless_held_out)
{
    source s;
    if (!make_source(t, &s, (shape){60, 12, 10}, 32, false)) return;
    for (int held_out = 0; held_out < 2; held_out++) {
        bert_batch *batches[2];
        for (int k = 0; k < 2; k++) {
            bert_examples_desc desc = describe(t, s.corpus, 32);
            bert_examples *x;
            desc.seed = (uint64_t)k;
            desc.held_out = held_out;
            x = make_examples(t, desc);
            batches[k] = x ? make_batch(t, x, 16) : NULL;
            if (!batches[k]) return;
            bert_batch_fill(batches[k], x, 0);
        }
        CHECK(t, equal_rows(batches[0], batches[1]) == (held_out ? 16 : 0));
    }
}

TEST(batch_held_out_is_apart_from_training)
{
    enum { rows = 400 };
    for (int held_out = 0; held_out < 2; held_out++) {
        source s;
        const bert_split *split;
        bert_batch *batch;
        int32_t at = 0;
        if (!make_source(t, &s, (shape){900, 9, 9}, 32, held_out)) return;
        split = held_out ? &s.corpus->held_out : &s.corpus->train;
        CHECK(t, bert_examples_epoch(s.examples) >= split->count);
        batch = make_batch(t, s.examples, rows);
        if (!batch) return;
        bert_batch_fill(batch, s.examples, 0);
        for (int32_t row = 0; row < rows; row++) {
            parsed p;
            CHECK(t, parse(batch, s.corpus, row, &at, &p));
            CHECK(t, in_split(split, p.document_a) && in_split(split, p.document_b));
        }
    }
}

TEST(batch_epochs_visit_every_window_once)
{
    /* Documents of less than a sequence are one window each, and A is always of the window. */
    source s;
    bert_batch *batch;
    static int visits[3][500], order[3][500];
    int64_t epoch;
    int same_place = 0;
    if (!make_source(t, &s, (shape){500, 4, 8}, 64, false)) return;
    epoch = bert_examples_epoch(s.examples);
    CHECK(t, epoch == s.corpus->train.count);
    batch = make_batch(t, s.examples, (int32_t)epoch);
    if (!batch) return;
    memset(visits, 0, sizeof visits);
    for (int e = 0; e < 3; e++) {
        int32_t at = 0;
        bert_batch_fill(batch, s.examples, e * epoch);
        for (int32_t row = 0; row < (int32_t)epoch; row++) {
            parsed p;
            CHECK(t, parse(batch, s.corpus, row, &at, &p));
            visits[e][p.document_a]++;
            order[e][row] = (int)p.document_a;
        }
        for (int64_t k = 0; k < epoch; k++) CHECK(t, visits[e][s.corpus->train.documents[k]] == 1);
        for (int32_t row = 0; row < (int32_t)epoch; row++)
            same_place += order[e][row] == order[0][row] && e;
    }
    /* Two permutations agree in one place on average. */
    CHECK(t, same_place < 12);
}

/* Adds the visits of tokens. Returns whether the words of a packed row are runs of the corpus, each
 * between [CLS] and [SEP], in a segment of its own. */
static bool parse_packed(const bert_batch *b, int32_t row, int32_t *at, int *visits)
{
    const int64_t begin = (int64_t)row * b->sequence;
    int32_t ids[64], segment = -1, before = 0;
    bool good = b->next_sentence_label[row] == -100;
    memcpy(ids, b->input_ids + begin, (size_t)b->sequence * sizeof *ids);
    for (; *at < b->labelled && b->positions[*at] < begin + b->sequence; ++*at)
        ids[b->positions[*at] - begin] = b->labels[*at];
    for (int32_t t = 0; t < b->sequence && good; before = ids[t++]) {
        const int64_t i = begin + t;
        const bool starts = !b->places[i], there = b->attention_mask[i];
        if (starts) segment++;
        good = b->segments[i] == segment && !b->token_type_ids[i] &&
               b->places[i] == (starts ? 0 : b->places[i - 1] + 1);
        if (!there) good = good && ids[t] == PAD && (!t || before == SEP || before == PAD);
        else if (starts) good = good && ids[t] == CLS && (!t || before == SEP);
        else if (ids[t] == SEP) good = good && before >= WORDS;
        else good = good && ids[t] >= WORDS && (before == CLS || ids[t] == before + 1);
        if (good && ids[t] >= WORDS) visits[ids[t] - WORDS]++;
    }
    return good && (ids[b->sequence - 1] == SEP || ids[b->sequence - 1] == PAD);
}

TEST(batch_packed_examples_have_each_sentence_once)
{
    enum { sequence = 32, most = 20000 };
    static int visits[most];
    source s;
    bert_examples_desc desc;
    bert_examples *packed;
    bert_batch *batch, part;
    int32_t rows, at = 0, positions[3 * sequence], labels[3 * sequence];
    if (!make_source(t, &s, (shape){300, 4, 12}, sequence, false)) return;
    desc = describe(t, s.corpus, sequence), desc.single = desc.pack = true;
    packed = make_examples(t, desc);
    if (!packed) return;
    rows = (int32_t)bert_examples_epoch(packed);
    batch = make_batch(t, packed, rows);
    if (!batch) return;
    for (int epoch = 0; epoch < 2; epoch++) {
        memset(visits, 0, sizeof visits), at = 0;
        bert_batch_fill(batch, packed, (int64_t)epoch * rows);
        for (int32_t row = 0; row < rows; row++) CHECK(t, parse_packed(batch, row, &at, visits));
        CHECK(t, at == batch->labelled && batch->pairs == 0);
        CHECK(t, batch->tokens > 0.8 * rows * sequence);
        for (int64_t k = 0; k < s.corpus->train.count; k++) {
            const int64_t *document = s.corpus->document + s.corpus->train.documents[k];
            for (int64_t i = s.corpus->sentence[document[0]]; i < s.corpus->sentence[document[1]];
                 i++)
                CHECK(t, i < most && visits[i] == 1);
        }
    }
    part = bert_batch_part(batch, 1, rows, positions, labels, 3 * sequence);
    CHECK(t, part.segments == batch->segments + sequence);
    CHECK(t, part.places == batch->places + sequence);
}

TEST(batch_windows_cover_the_text)
{
    /* In an epoch of true pairs every sentence is seen: over many epochs every token is. */
    source s;
    bert_batch *batch;
    static bool seen[40000];
    int64_t missing = 0;
    if (!make_source(t, &s, (shape){60, 30, 12}, 48, false)) return;
    batch = make_batch(t, s.examples, (int32_t)bert_examples_epoch(s.examples));
    if (!batch) return;
    CHECK(t, s.corpus->tokens < 40000);
    memset(seen, 0, sizeof seen);
    for (int e = 0; e < 30; e++) {
        int32_t at = 0;
        bert_batch_fill(batch, s.examples, e * bert_examples_epoch(s.examples));
        for (int32_t row = 0; row < batch->examples; row++) {
            parsed p;
            CHECK(t, parse(batch, s.corpus, row, &at, &p));
            for (int64_t i = 0; i < p.in_a; i++) seen[p.a + i] = true;
            for (int64_t i = 0; i < p.in_b; i++) seen[p.b + i] = true;
        }
    }
    for (int64_t k = 0; k < s.corpus->train.count; k++) {
        const int64_t *document = s.corpus->document + s.corpus->train.documents[k];
        for (int64_t i = s.corpus->sentence[document[0]]; i < s.corpus->sentence[document[1]]; i++)
            missing += !seen[i];
    }
    CHECK(t, missing == 0);
}

TEST(batch_draws_anew_at_each_visit)
{
    /* A document of one window has its first label at another place in the next epoch. */
    source s;
    bert_batch *batch;
    int64_t by_document = 0, epoch;
    int32_t place[2][60];
    if (!make_source(t, &s, (shape){60, 3, 9}, 64, false)) return;
    epoch = bert_examples_epoch(s.examples);
    CHECK(t, epoch == s.corpus->train.count);
    batch = make_batch(t, s.examples, (int32_t)epoch);
    if (!batch) return;
    for (int e = 0; e < 2; e++) {
        int32_t at = 0;
        bert_batch_fill(batch, s.examples, e * epoch);
        for (int32_t row = 0; row < (int32_t)epoch; row++) {
            parsed p;
            int32_t first = batch->positions[at] - row * 64;
            CHECK(t, parse(batch, s.corpus, row, &at, &p));
            place[e][p.document_a] = first;
        }
    }
    for (int64_t row = 0; row < epoch; row++) {
        int64_t d = s.corpus->train.documents[row];
        by_document += place[0][d] == place[1][d];
    }
    CHECK(t, by_document < epoch / 2);
}

/* ---------- mistakes ---------- */

static bool rejected(test *t, bert_examples_desc desc, const char *message)
{
    char err[256] = "";
    bert_examples *x = bert_examples_new(&desc, err, sizeof err);
    bert_examples_free(x);
    if (!x && !strcmp(err, message)) return true;
    test_fail(t, __FILE__, __LINE__, message, x ? "the examples were made" : err);
    return false;
}

TEST(batch_refuses_what_cannot_be)
{
    source s;
    bert_examples_desc good, bad;
    bert_feeder_desc feeder;
    bert_corpus one;
    char err[256] = "", expected[256];
    if (!make_source(t, &s, (shape){6, 3, 9}, 32, false)) return;
    good = describe(t, s.corpus, 32);
    bad = good, bad.sequence = 7;
    CHECK(t, rejected(t, bad, "a sequence of 7 tokens; 8 to 65536 are possible"));
    bad = good, bad.pack = true;
    CHECK(t, rejected(t, bad,
                      "packed examples have one segment, without next-sentence labels"));
    bad = good, bad.masked_percent = 101;
    CHECK(t, rejected(t, bad, "101% of the words are to be masked; 1 to 100 are possible"));
    bad = good, bad.max_predictions = 30;
    CHECK(t, rejected(t, bad, "at most 30 predictions in a sequence of 32; 1 to 29 are possible"));
    bad = good, one = *s.corpus, one.train.count = 1, bad.corpus = &one;
    CHECK(t, rejected(t, bad, "the split has 1 documents; next-sentence pairs take two"));
    bad = good, bad.mask = -1;
    snprintf(expected, sizeof expected,
             "the id -1 of [MASK] is outside the vocabulary of %d tokens", s.corpus->vocab_size);
    CHECK(t, rejected(t, bad, expected));
    bad = good, bad.pad = s.corpus->vocab_size;
    snprintf(expected, sizeof expected, "the id %d of [PAD] is outside the vocabulary of %d tokens",
             s.corpus->vocab_size, s.corpus->vocab_size);
    CHECK(t, rejected(t, bad, expected));
    CHECK(t, !bert_batch_new(s.examples, 0, err, sizeof err));
    CHECK_TEXT(t, err, "a batch of 0 sequences of 32 tokens; 1 to 67108863 are possible");
    CHECK(t, !bert_batch_new(s.examples, INT32_MAX, NULL, 0));
    feeder = (bert_feeder_desc){.examples = s.examples, .batch = 2, .ahead = 65};
    CHECK(t, !bert_feeder_start(&feeder, err, sizeof err));
    CHECK_TEXT(t, err, "65 batches ahead; 1 to 64 are possible");
    feeder = (bert_feeder_desc){.examples = s.examples, .batch = 2, .first = -1, .stride = 5};
    CHECK(t, !bert_feeder_start(&feeder, err, sizeof err));
    CHECK_TEXT(t, err,
               "batches from example -1 on, 5 apart; 0 to 4611686018427387903 and 0 to 4294967295 "
               "are possible");
    feeder = (bert_feeder_desc){.examples = s.examples, .batch = -3};
    CHECK(t, !bert_feeder_start(&feeder, err, sizeof err));
    CHECK_TEXT(t, err, "a batch of -3 sequences of 32 tokens; 1 to 67108863 are possible");
}

TEST(batch_needs_a_word_to_put_in)
{
    static const char text[] = "1\n\n2\n\n3\n\n4\n";
    char err[256] = "";
    bert_corpus_desc corpus = {
        .encode = encode_numbers, .vocab_size = 5, .allocator = t->allocator};
    bert_corpus *c = bert_corpus_parse(text, sizeof text - 1, "x", &corpus, err, sizeof err);
    HAVE(t, c, err);
    test_defer(t, free_corpus, c);
    CHECK(t, rejected(t, describe(t, c, 8),
                      "a vocabulary of 5 tokens has no word besides the special tokens"));
}

/* ---------- the feeder ---------- */

static void stop_feeder(void *feeder) { bert_feeder_stop(feeder); }

TEST(feeder_gives_the_batches_in_order)
{
    source s;
    bert_batch *expected;
    char err[256] = "";
    if (!make_source(t, &s, (shape){60, 12, 10}, 32, false)) return;
    expected = make_batch(t, s.examples, 4);
    if (!expected) return;
    for (int ahead = 1; ahead <= 5; ahead++) {
        /* The second of three ranks with a global batch of 12, from step 100 on. */
        bert_feeder_desc desc = {.examples = s.examples,
                                 .batch = 4,
                                 .first = 100 * 12 + 4,
                                 .stride = 12,
                                 .ahead = ahead};
        bert_feeder *f = bert_feeder_start(&desc, err, sizeof err);
        HAVE(t, f, err);
        test_defer(t, stop_feeder, f);
        for (int64_t k = 0; k < 20; k++) {
            const bert_batch *batch = bert_feeder_next(f);
            /* While this thread makes other batches, the feeder must not change `batch`. */
            for (int64_t other = 0; other < 10; other++)
                bert_batch_fill(expected, s.examples, 100 * 12 + 4 + (k + other) * 12);
            bert_batch_fill(expected, s.examples, 100 * 12 + 4 + k * 12);
            CHECK(t, same(batch, expected));
        }
        CHECK(t, bert_feeder_waits(f) >= 0 && bert_feeder_waits(f) <= 20);
    }
}

TEST(feeder_defaults)
{
    source s;
    bert_batch *expected;
    bert_feeder *f;
    char err[256] = "";
    if (!make_source(t, &s, (shape){20, 12, 10}, 32, true)) return;
    expected = make_batch(t, s.examples, 3);
    if (!expected) return;
    f = bert_feeder_start(&(bert_feeder_desc){.examples = s.examples, .batch = 3}, err, sizeof err);
    HAVE(t, f, err);
    test_defer(t, stop_feeder, f);
    for (int64_t k = 0; k < 4; k++) {
        bert_batch_fill(expected, s.examples, 3 * k);
        CHECK(t, same(bert_feeder_next(f), expected));
    }
}

TEST_ONCE(feeder_stops_in_any_state)
{
    source s;
    char err[256] = "";
    if (!make_source(t, &s, (shape){60, 12, 10}, 32, false)) return;
    bert_feeder_stop(NULL);
    for (int round = 0; round < 300; round++) {
        bert_feeder_desc desc = {
            .examples = s.examples, .batch = 1 + round % 7, .ahead = 1 + round % 3};
        bert_batch *pause = round % 2 ? make_batch(t, s.examples, 64) : NULL;
        bert_feeder *f = bert_feeder_start(&desc, err, sizeof err);
        HAVE(t, f, err);
        /* At once; after some batches; with the ring full, or being filled. */
        for (int k = 0; k < round % 5; k++) CHECK(t, bert_feeder_next(f)->first == k * desc.batch);
        if (pause) {
            for (int k = 0; k < round % 11; k++) bert_batch_fill(pause, s.examples, k);
            t->deferred_count--;
            bert_batch_free(pause);
        }
        bert_feeder_stop(f);
    }
}
