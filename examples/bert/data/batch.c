/* From tokenised documents to batches.
 *
 *     document  s0 s1 s2 s3 s4 s5 s6 s7 s8      sentences
 *     windows   |--------|--------|             whole sentences that fill a sequence; the last
 *                              |-----------|    one overlaps the one before until it is full
 *     example   [CLS] s3 [SEP] s4 s5 [SEP]      a window split in two at random, or
 *               [CLS] s3 s4 [SEP] x7 x8 [SEP]   its first part and a piece of another document x
 *
 * The recipe is that of the original BERT: a target of T - 3 tokens, 10% of the examples shorter, a
 * random cut, the longer part trimmed at a random end, 15% of the words chosen, of these 80%
 * masked, 10% replaced, 10% kept. It differs where an example must be a function of its number:
 *
 * - The original walks a document and draws as it goes, so that an example depends on all before
 *   it. Here the windows are fixed when the examples are made, and epoch e visits each of them once
 *   in an order given by a keyed permutation; everything else is drawn afresh at every visit.
 * - The original moves sentences that a random second segment displaces to the next example. Here
 *   they wait for the next visit of their window.
 * - In the original the last window of a document may be short, and a window of one sentence always
 *   gets a random second segment, so that more than half of the pairs are random. Here a last
 *   window overlaps the one before it, and a single sentence is joined by its neighbour; only a
 *   document of one sentence always gives a random pair.
 * - The original stores ten maskings of each text. Here every visit has its own. */
#define _POSIX_C_SOURCE 200809L
#include "batch.h"

#include <pthread.h>
#include <string.h>

enum {
    specials = 3, /* [CLS], [SEP], [SEP] */
    least_sequence = 8,
    most_sequence = 65536,
    most_ahead = 64,
    masked_percent = 15,
};

static const int64_t most_first = INT64_MAX / 2;

typedef struct window {
    int64_t start, end; /* sentences */
    int64_t document;   /* index in the split */
} window;

struct bert_examples {
    bert_examples_desc desc;
    const bert_split *split;
    window *windows;
    int64_t count, room;
    int64_t *rows; /* with `pack`: the first window of each example, and the number of windows */
    int64_t packed, rows_room;
    uint64_t key;
};

/* ---------- random numbers ---------- */

/* Draw n of a stream depends only on its key and n. */
typedef struct draws {
    uint64_t state;
} draws;

static const uint64_t golden = 0x9E3779B97F4A7C15u;

/* The key of stream `number` of a key. */
static uint64_t key_of(uint64_t key, uint64_t number)
{
    return bert_mix(bert_mix(key) + number * golden);
}

static uint64_t draw(draws *d) { return bert_mix(d->state += golden); }

/* Uniform in [0, n), n at most 2^32. */
static int64_t below(draws *d, int64_t n)
{
    return (int64_t)(((draw(d) >> 32) * (uint64_t)n) >> 32);
}

/* The place of x in a permutation of [0, n) that depends on the key: a Feistel network on the next
 * even number of bits, repeated until the result is below n. */
static int64_t permute(uint64_t key, int64_t n, int64_t x)
{
    unsigned half = 1;
    uint64_t mask, left, right;
    while (half < 31 && (int64_t)1 << 2 * half < n) half++;
    mask = ((uint64_t)1 << half) - 1;
    do {
        left = (uint64_t)x >> half;
        right = (uint64_t)x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (key_of(key + round, right) & mask);
            left = right;
            right = next;
        }
        x = (int64_t)(left << half | right);
    } while (x >= n);
    return x;
}

/* ---------- windows ---------- */

static int64_t tokens_of(const bert_corpus *c, int64_t start, int64_t end)
{
    return c->sentence[end] - c->sentence[start];
}

/* Adds a neighbour to a single sentence, if its document [first, last) has one. */
static void pair_up(int64_t first, int64_t last, int64_t *start, int64_t *end)
{
    if (*end - *start > 1) return;
    if (*end < last) ++*end;
    else if (*start > first) --*start;
}

/* Makes room for one more element in a growing array. Returns the array, which may have moved; NULL
 * when memory runs out, and then the old array is unchanged. */
static void *more_room(const bert_examples *x, void *array, int64_t count, int64_t *room,
                       size_t element)
{
    const int64_t wanted = *room ? 2 * *room : 256;
    if (count < *room) return array;
    array = bert_resize(&x->desc.allocator, array, (size_t)*room * element,
                        (size_t)wanted * element);
    if (array) *room = wanted;
    return array;
}

static bool add_window(bert_examples *x, window w)
{
    window *grown = more_room(x, x->windows, x->count, &x->room, sizeof *grown);
    if (!grown) return false;
    x->windows = grown;
    x->windows[x->count++] = w;
    return true;
}

/* How many of n words are chosen: the given percentage, rounded, and at least one. */
static int64_t wanted_labels(const bert_examples_desc *desc, int64_t n)
{
    int64_t wanted = (n * desc->masked_percent + 50) / 100;
    return wanted ? wanted : 1;
}

/* The maximum number of text tokens in an example. */
static int64_t most_tokens(const bert_examples *x)
{
    return x->desc.sequence - specials + x->desc.single;
}

static bool cut_windows(bert_examples *x)
{
    const bert_corpus *c = x->desc.corpus;
    int64_t target = most_tokens(x);
    for (int64_t d = 0; d < x->split->count; d++) {
        const int64_t *document = c->document + x->split->documents[d];
        int64_t first = document[0], last = document[1];
        for (int64_t start = first, end; start < last; start = end) {
            window w;
            end = start + 1;
            while (end < last && tokens_of(c, start, end) < target) end++;
            w = (window){start, end, d};
            while (w.start > first && tokens_of(c, w.start, end) < target) w.start--;
            if (!x->desc.single) pair_up(first, last, &w.start, &w.end);
            if (!add_window(x, w)) return false;
        }
    }
    return true;
}

static bool add_row(bert_examples *x)
{
    int64_t *grown = more_room(x, x->rows, x->packed, &x->rows_room, sizeof *grown);
    if (!grown) return false;
    x->rows = grown;
    x->rows[x->packed++] = x->count;
    return true;
}

/* The text tokens of a window of a packed example: a sentence may be longer than an example. */
static int64_t packed_tokens(const bert_examples *x, const window *w)
{
    const int64_t tokens = tokens_of(x->desc.corpus, w->start, w->end), most = most_tokens(x);
    return tokens < most ? tokens : most;
}

/* Fills examples with documents in their order. A sentence that does not fit begins the next. */
static bool pack_windows(bert_examples *x)
{
    const bert_corpus *c = x->desc.corpus;
    int64_t left = 0; /* text tokens that a further document of the example may have */
    for (int64_t d = 0; d < x->split->count; d++) {
        const int64_t *document = c->document + x->split->documents[d];
        for (int64_t start = document[0], end; start < document[1]; start = end) {
            window w;
            for (end = start; end < document[1] && tokens_of(c, start, end + 1) <= left;) end++;
            if (end == start) {
                if (!add_row(x)) return false;
                left = most_tokens(x), end = start + 1;
                while (end < document[1] && tokens_of(c, start, end + 1) <= left) end++;
            }
            w = (window){start, end, d};
            if (!add_window(x, w)) return false;
            left -= packed_tokens(x, &w) + 2; /* [CLS], [SEP] */
        }
    }
    return add_row(x);
}

bert_examples *bert_examples_new(const bert_examples_desc *desc, char *err, size_t err_size)
{
    const bert_corpus *c = desc->corpus;
    const bert_split *split = desc->held_out ? &c->held_out : &c->train;
    const int32_t ids[] = {desc->pad, desc->unk, desc->cls, desc->sep, desc->mask};
    bert_examples *x;
    if (desc->sequence < least_sequence || desc->sequence > most_sequence) {
        bert_fail(err, err_size, "a sequence of %d tokens; %d to %d are possible", desc->sequence,
                  least_sequence, most_sequence);
        return NULL;
    }
    if (desc->pack && !desc->single) {
        bert_fail(err, err_size, "packed examples have one segment, without next-sentence labels");
        return NULL;
    }
    if (desc->masked_percent < 0 || desc->masked_percent > 100) {
        bert_fail(err, err_size, "%d%% of the words are to be masked; 1 to 100 are possible",
                  desc->masked_percent);
        return NULL;
    }
    if (desc->max_predictions < 0 || desc->max_predictions > desc->sequence - specials) {
        bert_fail(err, err_size, "at most %d predictions in a sequence of %d; 1 to %d are possible",
                  desc->max_predictions, desc->sequence, desc->sequence - specials);
        return NULL;
    }
    if (split->count < 2) {
        bert_fail(err, err_size, "the split has %lld documents; next-sentence pairs take two",
                  (long long)split->count);
        return NULL;
    }
    for (int k = 0; k < 5; k++)
        if (ids[k] < 0 || ids[k] >= c->vocab_size) {
            bert_fail(err, err_size, "the id %d of %s is outside the vocabulary of %d tokens",
                      ids[k],
                      (const char *const[]){"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}[k],
                      c->vocab_size);
            return NULL;
        }
    if (c->vocab_size < 6) {
        bert_fail(err, err_size, "a vocabulary of %d tokens has no word besides the special tokens",
                  c->vocab_size);
        return NULL;
    }
    if (c->sentences > UINT32_MAX) { /* the limit of below() */
        bert_fail(err, err_size, "the corpus has more than %lld sentences", (long long)UINT32_MAX);
        return NULL;
    }
    x = bert_resize(&desc->allocator, NULL, 0, sizeof *x);
    if (x) {
        *x = (bert_examples){.desc = *desc, .split = split};
        x->key = desc->held_out ? 0 : bert_mix(desc->seed + golden);
        if (!desc->masked_percent) x->desc.masked_percent = masked_percent;
        if (!desc->max_predictions)
            x->desc.max_predictions = (int32_t)wanted_labels(&x->desc, desc->sequence - specials);
        if (desc->pack ? pack_windows(x) : cut_windows(x)) return x;
        bert_examples_free(x);
    }
    bert_fail(err, err_size, "out of memory");
    return NULL;
}

void bert_examples_free(bert_examples *x)
{
    zf_allocator a;
    if (!x) return;
    a = x->desc.allocator;
    bert_resize(&a, x->windows, (size_t)x->room * sizeof *x->windows, 0);
    bert_resize(&a, x->rows, (size_t)x->rows_room * sizeof *x->rows, 0);
    bert_resize(&a, x, sizeof *x, 0);
}

int64_t bert_examples_epoch(const bert_examples *x)
{
    return x->rows ? x->packed - 1 : x->count;
}

/* ---------- batches ---------- */

/* The arrays follow the struct in one block: those of int32, then the mask. */
static size_t batch_bytes(const bert_batch *b)
{
    size_t cells = (size_t)b->examples * (size_t)b->sequence;
    size_t words =
        (b->segments ? 4 : 2) * cells + 2 * (size_t)b->predictions + (size_t)b->examples;
    return sizeof *b + words * sizeof(int32_t) + cells;
}

bert_batch *bert_batch_new(const bert_examples *x, int32_t examples, char *err, size_t err_size)
{
    int32_t sequence = x->desc.sequence;
    bert_batch shape = {.examples = examples, .sequence = sequence, .allocator = x->desc.allocator};
    bert_batch *b;
    int32_t *words;
    size_t cells;
    if (examples < 1 || examples > INT32_MAX / sequence) {
        bert_fail(err, err_size, "a batch of %d sequences of %d tokens; 1 to %d are possible",
                  examples, sequence, INT32_MAX / sequence);
        return NULL;
    }
    shape.predictions = examples * x->desc.max_predictions;
    shape.segments = x->desc.pack ? &sequence : NULL; /* there are some */
    b = bert_resize(&shape.allocator, NULL, 0, batch_bytes(&shape));
    if (!b) {
        bert_fail(err, err_size, "out of memory");
        return NULL;
    }
    *b = shape;
    words = (int32_t *)(b + 1);
    cells = (size_t)examples * (size_t)sequence;
    b->input_ids = words;
    b->token_type_ids = words + cells;
    b->positions = words + 2 * cells;
    b->labels = b->positions + b->predictions;
    b->next_sentence_label = b->labels + b->predictions;
    words = b->next_sentence_label + examples;
    if (x->desc.pack) b->segments = words, b->places = words + cells, words += 2 * cells;
    b->attention_mask = (uint8_t *)words;
    return b;
}

void bert_batch_free(bert_batch *b)
{
    zf_allocator a;
    if (!b) return;
    a = b->allocator;
    bert_resize(&a, b, batch_bytes(b), 0);
}

/* A range of the corpus' tokens. */
typedef struct segment {
    int64_t start, end;
} segment;

static int64_t length(segment s) { return s.end - s.start; }

/* The sentences of a visit to window w: sometimes fewer, so that the model sees short sequences
 * too. Returns the maximum of their tokens. */
static int64_t draw_sentences(const bert_examples *x, const window *w, draws *d, int64_t *start,
                              int64_t *end)
{
    const bert_corpus *c = x->desc.corpus;
    const int64_t *document = c->document + x->split->documents[w->document];
    int64_t most = most_tokens(x), target = most;
    *start = w->start, *end = w->end;
    if (below(d, 10)) return target;
    target = 2 + below(d, most - 1);
    *start += below(d, *end - *start);
    *end = *start + 1;
    while (*end < document[1] && tokens_of(c, *start, *end) < target) ++*end;
    if (!x->desc.single) pair_up(document[0], document[1], start, end);
    return target;
}

/* Removes tokens from the longer of two segments, at a random end each time, until both together
 * have at most `most`. */
static void trim(segment *a, segment *b, int64_t most, draws *d)
{
    for (uint64_t coins = 0; length(*a) + length(*b) > most; coins >>= 1) {
        segment *longer = length(*a) > length(*b) ? a : b;
        if (coins < 2) coins = draw(d) | (uint64_t)1 << 63; /* the top bit marks the end */
        if (coins & 1) longer->start++;
        else longer->end--;
    }
}

/* Draws the only segment of a visit to window w. */
static void draw_single(const bert_examples *x, const window *w, draws *d, segment *a, segment *b)
{
    const bert_corpus *c = x->desc.corpus;
    int64_t start, end;
    (void)draw_sentences(x, w, d, &start, &end);
    *a = (segment){c->sentence[start], c->sentence[end]}, *b = (segment){0, 0};
    trim(a, b, most_tokens(x), d);
}

/* Draws the two segments of a visit to window w; returns the next-sentence label. */
static int32_t draw_pair(const bert_examples *x, const window *w, draws *d, segment *a, segment *b)
{
    const bert_corpus *c = x->desc.corpus;
    const int64_t *document;
    int64_t start, end, cut, target = draw_sentences(x, w, d, &start, &end);
    int32_t elsewhere = below(d, 2) == 1;
    if (end - start < 2) {
        cut = end;
        elsewhere = 1;
    } else {
        cut = start + 1 + below(d, end - start - 1);
    }
    if (elsewhere) {
        int64_t others = x->split->count - 1;
        int64_t other = (w->document + 1 + below(d, others)) % x->split->count, from;
        *a = (segment){c->sentence[start], c->sentence[cut]};
        document = c->document + x->split->documents[other];
        from = document[0] + below(d, document[1] - document[0]);
        end = from + 1;
        while (end < document[1] && tokens_of(c, from, end) < target - length(*a)) end++;
        *b = (segment){c->sentence[from], c->sentence[end]};
    } else {
        *a = (segment){c->sentence[start], c->sentence[cut]};
        *b = (segment){c->sentence[cut], c->sentence[end]};
    }
    trim(a, b, most_tokens(x), d);
    return elsewhere;
}

static bool is_special(const bert_examples_desc *desc, int32_t id)
{
    return id == desc->pad || id == desc->unk || id == desc->cls || id == desc->sep ||
           id == desc->mask;
}

/* Makes the token at a place a label, and masks, replaces or keeps it. */
static void choose(bert_batch *batch, int32_t row, int32_t t, const bert_examples_desc *desc,
                   draws *d)
{
    int32_t *id = batch->input_ids + (int64_t)row * batch->sequence + t;
    const int64_t kind = below(d, 10);
    batch->positions[batch->labelled] = row * batch->sequence + t;
    batch->labels[batch->labelled++] = *id;
    if (kind < 8) {
        *id = desc->mask;
    } else if (kind < 9) {
        do *id = (int32_t)below(d, desc->corpus->vocab_size);
        while (is_special(desc, *id));
    }
}

/* A word of a packed row, neither [CLS] nor [SEP]. */
static bool is_packed_word(const bert_batch *batch, int32_t row, int32_t t)
{
    const int64_t at = (int64_t)row * batch->sequence + t;
    return batch->places[at] && batch->segments[at + 1] == batch->segments[at];
}

/* Chooses some of the `left` words of a row and masks them. Each place in order is chosen with
 * probability (still to choose) / (places left), so all sets of places have the same probability.
 * separator: the place of the [SEP] between two segments. */
static void hide(bert_batch *batch, int32_t row, int64_t left, int64_t separator,
                 const bert_examples_desc *desc, draws *d)
{
    int64_t wanted = wanted_labels(desc, left);
    if (wanted > desc->max_predictions) wanted = desc->max_predictions;
    for (int32_t t = 1; wanted; t++) {
        if (desc->pack ? !is_packed_word(batch, row, t) : t == separator) continue;
        if (below(d, left--) >= wanted) continue;
        wanted--;
        choose(batch, row, t, desc, d);
    }
}

/* Row `row` with example e of an epoch. */
static void fill_packed(bert_batch *batch, const bert_examples *x, int32_t row, int64_t e, draws *d)
{
    const bert_examples_desc *desc = &x->desc;
    const int64_t at = (int64_t)row * batch->sequence;
    int32_t *ids = batch->input_ids + at, *segments = batch->segments + at,
            *places = batch->places + at, t = 0, number = 0;
    int64_t words = 0;
    memset(batch->token_type_ids + at, 0, (size_t)batch->sequence * sizeof(int32_t));
    for (int64_t k = x->rows[e]; k < x->rows[e + 1]; k++, number++) {
        const int64_t first = desc->corpus->sentence[x->windows[k].start],
                      count = packed_tokens(x, &x->windows[k]);
        const int32_t begin = t;
        ids[t++] = desc->cls;
        for (int64_t i = 0; i < count; i++) ids[t++] = bert_corpus_id(desc->corpus, first + i);
        ids[t++] = desc->sep;
        for (int32_t i = begin; i < t; i++) segments[i] = number, places[i] = i - begin;
        words += count;
    }
    batch->tokens += t;
    memset(batch->attention_mask + at, 1, (size_t)t);
    memset(batch->attention_mask + at + t, 0, (size_t)(batch->sequence - t));
    for (int32_t begin = t; t < batch->sequence; t++)
        ids[t] = desc->pad, segments[t] = number, places[t] = t - begin;
    hide(batch, row, words, 0, desc, d);
}

void bert_batch_fill(bert_batch *batch, const bert_examples *x, int64_t first)
{
    const bert_examples_desc *desc = &x->desc;
    const bert_corpus *c = desc->corpus;
    int32_t sequence = batch->sequence;
    batch->first = first;
    batch->labelled = 0;
    batch->tokens = 0;
    batch->pairs = x->desc.single ? 0 : batch->examples;
    for (int32_t row = 0; row < batch->examples; row++) {
        int64_t number = first + row, count = bert_examples_epoch(x), epoch = number / count;
        uint64_t epoch_key = key_of(x->key ^ golden, (uint64_t)epoch);
        const int64_t e = permute(epoch_key, count, number % count);
        const window *w = &x->windows[e];
        draws d = {key_of(x->key, (uint64_t)number)};
        int32_t *ids = batch->input_ids + (int64_t)row * sequence, t = 0, used;
        int32_t *types = batch->token_type_ids + (int64_t)row * sequence;
        uint8_t *mask = batch->attention_mask + (int64_t)row * sequence;
        segment a, b;
        if (desc->pack) {
            batch->next_sentence_label[row] = -100;
            fill_packed(batch, x, row, e, &d);
            continue;
        }
        if (desc->single) draw_single(x, w, &d, &a, &b);
        batch->next_sentence_label[row] = desc->single ? -100 : draw_pair(x, w, &d, &a, &b);
        ids[t++] = desc->cls;
        for (int64_t i = a.start; i < a.end; i++) ids[t++] = bert_corpus_id(c, i);
        ids[t++] = desc->sep;
        for (int64_t i = b.start; i < b.end; i++) ids[t++] = bert_corpus_id(c, i);
        if (!desc->single) ids[t++] = desc->sep;
        used = t;
        for (; t < sequence; t++) ids[t] = desc->pad;
        for (t = 0; t < sequence; t++) {
            types[t] = t > length(a) + 1 && t < used;
            mask[t] = t < used;
        }
        batch->tokens += used;
        hide(batch, row, length(a) + length(b), 1 + length(a), desc, &d);
    }
    for (int32_t p = batch->labelled; p < batch->predictions; p++) {
        batch->positions[p] = 0;
        batch->labels[p] = -100;
    }
}

bert_batch bert_batch_part(const bert_batch *whole, int64_t part, int64_t parts, int32_t *positions,
                           int32_t *labels, int32_t predictions)
{
    bert_batch b = *whole;
    int64_t row, begin, end;
    int32_t p = 0;
    b.examples = (int32_t)(whole->examples / parts);
    row = part * b.examples;
    begin = row * b.sequence, end = begin + (int64_t)b.examples * b.sequence;
    b.first += row;
    b.input_ids += begin, b.token_type_ids += begin, b.attention_mask += begin;
    if (b.segments) b.segments += begin, b.places += begin;
    b.next_sentence_label += row;
    b.positions = positions, b.labels = labels;
    b.predictions = predictions;
    b.labelled = b.tokens = 0;
    while (p < whole->labelled && whole->positions[p] < begin) p++;
    for (; p < whole->labelled && whole->positions[p] < end; p++) {
        positions[b.labelled] = whole->positions[p] - (int32_t)begin;
        labels[b.labelled++] = whole->labels[p];
    }
    for (p = b.labelled; p < predictions; p++) positions[p] = 0, labels[p] = -100;
    return b;
}

/* ---------- the feeder ---------- */

/* A ring of ahead + 1 batches. `made` counts those that the thread has filled, `taken` those that
 * the user has taken; the last of these is still in use. */
struct bert_feeder {
    bert_feeder_desc desc;
    zf_allocator allocator;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* each side only waits for the other */
    int64_t made, taken, waits;
    bool stop;
    bert_batch *ring[most_ahead + 1];
};

static void *feed(void *argument)
{
    bert_feeder *f = argument;
    int slots = f->desc.ahead + 1;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        int64_t given_back = f->taken ? f->taken - 1 : 0, k = f->made;
        if (f->stop) break;
        if (k - given_back >= slots) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        bert_batch_fill(f->ring[k % slots], f->desc.examples, f->desc.first + k * f->desc.stride);
        pthread_mutex_lock(&f->lock);
        f->made++;
        pthread_cond_signal(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void free_feeder(bert_feeder *f)
{
    zf_allocator a = f->allocator;
    for (int k = 0; k <= f->desc.ahead; k++) bert_batch_free(f->ring[k]);
    bert_resize(&a, f, sizeof *f, 0);
}

bert_feeder *bert_feeder_start(const bert_feeder_desc *desc, char *err, size_t err_size)
{
    zf_allocator a = desc->examples->desc.allocator;
    bert_feeder *f;
    if (desc->ahead < 0 || desc->ahead > most_ahead) {
        bert_fail(err, err_size, "%d batches ahead; 1 to %d are possible", desc->ahead, most_ahead);
        return NULL;
    }
    /* Limits that keep numbers of examples from overflowing. */
    if (desc->first < 0 || desc->first > most_first || desc->stride < 0 ||
        desc->stride > UINT32_MAX) {
        bert_fail(err, err_size,
                  "batches from example %lld on, %lld apart; 0 to %lld and 0 to %lld are possible",
                  (long long)desc->first, (long long)desc->stride, (long long)most_first,
                  (long long)UINT32_MAX);
        return NULL;
    }
    f = bert_resize(&a, NULL, 0, sizeof *f);
    if (!f) {
        bert_fail(err, err_size, "out of memory");
        return NULL;
    }
    *f = (bert_feeder){.desc = *desc, .allocator = a};
    if (!desc->ahead) f->desc.ahead = 2;
    if (!desc->stride) f->desc.stride = desc->batch;
    for (int k = 0; k <= f->desc.ahead; k++) {
        f->ring[k] = bert_batch_new(desc->examples, desc->batch, err, err_size);
        if (!f->ring[k]) {
            free_feeder(f);
            return NULL;
        }
    }
    if (pthread_mutex_init(&f->lock, NULL)) goto no_lock;
    if (pthread_cond_init(&f->changed, NULL)) goto no_condition;
    if (!pthread_create(&f->thread, NULL, feed, f)) return f;
    pthread_cond_destroy(&f->changed);
no_condition:
    pthread_mutex_destroy(&f->lock);
no_lock:
    free_feeder(f);
    bert_fail(err, err_size, "the system gives no thread for the batches");
    return NULL;
}

const bert_batch *bert_feeder_next(bert_feeder *f)
{
    const bert_batch *batch;
    pthread_mutex_lock(&f->lock);
    if (f->made == f->taken) f->waits++;
    while (f->made == f->taken) pthread_cond_wait(&f->changed, &f->lock);
    batch = f->ring[f->taken++ % (f->desc.ahead + 1)];
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return batch;
}

int64_t bert_feeder_waits(bert_feeder *f)
{
    int64_t waits;
    pthread_mutex_lock(&f->lock);
    waits = f->waits;
    pthread_mutex_unlock(&f->lock);
    return waits;
}

void bert_feeder_stop(bert_feeder *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free_feeder(f);
}
