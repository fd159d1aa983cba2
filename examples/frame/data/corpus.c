/* Loads a text file: tokenises it on several threads, keeps the ids, splits the documents into
 * training and held-out ones.
 *
 *     text  |--chunk--|--chunk--|--chunk--|--chunk--| ...   whole lines, about 256 KiB each
 *              job 0     job 1  |  job 0     job 1  |       one round: a thread for each job,
 *                               v                   v       then the caller appends in order
 *
 * Jobs write into buffers of the caller, so that only the caller allocates. */
#define _POSIX_C_SOURCE 200809L
#include "corpus.h"
#include "../../../zeroflow_llm.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    chunk_bytes = 1 << 18,
    most_threads = 1024,
    held_out_share = 100, /* one document of this number is held out */
    least_held_out = 2,   /* a pair with a random second segment needs two documents */
    line_blank = -1,      /* in the list of lengths: a blank line */
};

#define FORM "; a corpus has one sentence per line and a blank line between documents"

typedef struct job {
    const bert_corpus_desc *desc;
    const char *text; /* whole lines */
    size_t bytes;
    int32_t *block;   /* the block of both arrays */
    size_t room;      /* elements of the block */
    int32_t *ids;     /* [bytes] ids of all lines */
    int32_t *lengths; /* [bytes] number of tokens of each line, or line_blank */
    int64_t lines;
    int64_t bad_line; /* number within the job of the first line with an invalid id; -1: none */
    int64_t bad_id;
    bool too_many; /* the bad line has more ids than bytes */
} job;

typedef struct loader {
    bert_corpus *corpus;
    const bert_corpus_desc *desc;
    const char *name;
    char *err;
    size_t err_size;
    job *jobs;
    int threads;
    /* The arrays of the corpus, while they grow. */
    void *ids;
    int64_t *sentence, *document, *split;
    size_t ids_room, sentence_room, document_room; /* elements */
    size_t id_size;
} loader;

void *bert_resize(const zf_allocator *a, void *ptr, size_t old_size, size_t new_size)
{
    if (a->fn) return new_size || ptr ? a->fn(a->user, ptr, old_size, new_size) : NULL;
    if (new_size) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

bool bert_fail(char *err, size_t err_size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err_size) vsnprintf(err, err_size, format, args);
    va_end(args);
    return false;
}

static bool out_of_memory(loader *l) { return bert_fail(l->err, l->err_size, "out of memory"); }

/* Makes room for `need` elements in a growing array. Returns the array, which may have moved; NULL,
 * with the message, when memory runs out, and then the old array is unchanged. */
static void *reserve(loader *l, void *array, size_t *room, size_t need, size_t element)
{
    size_t wanted = *room ? *room : 1024;
    if (need <= *room) return array;
    while (wanted < need && wanted <= SIZE_MAX / 2 / element) wanted *= 2;
    array = wanted < need
                ? NULL
                : bert_resize(&l->desc->allocator, array, *room * element, wanted * element);
    if (array) *room = wanted;
    else out_of_memory(l);
    return array;
}

/* ---------- tokenising ---------- */

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') return false;
    return true;
}

/* One chunk: fills ids and lengths, and stops at the first invalid line. */
static void *tokenise(void *argument)
{
    job *j = argument;
    const char *s = j->text, *end = j->text + j->bytes;
    size_t used = 0;
    j->ids = j->block;
    j->lengths = j->block + j->bytes;
    j->lines = 0;
    j->bad_line = -1;
    while (s < end) {
        const char *newline = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((newline ? newline : end) - s);
        int64_t got = line_blank;
        bool bad;
        if (n && s[n - 1] == '\r') n--;
        if (!is_blank(s, n)) {
            /* A byte gives at most one id, so there is room for the rest of the chunk. */
            got = j->desc->encode(j->desc->user, s, n, j->ids + used, (int64_t)(j->bytes - used));
            bad = j->too_many = got < 0 || got > (int64_t)n;
            j->bad_id = got;
            for (int64_t i = 0; !bad && i < got; i++) {
                j->bad_id = j->ids[used + (size_t)i];
                bad = j->bad_id < 0 || j->bad_id >= j->desc->vocab_size;
            }
            if (bad) {
                j->bad_line = j->lines;
                break;
            }
            used += (size_t)got;
        }
        j->lengths[j->lines++] = (int32_t)got;
        s = newline ? newline + 1 : end;
    }
    return NULL;
}

/* Appends a line of n ids as sentences of at most BERT_SENTENCE_TOKENS. */
static bool append_line(loader *l, const int32_t *ids, int64_t n)
{
    bert_corpus *c = l->corpus;
    int64_t pieces = (n + BERT_SENTENCE_TOKENS - 1) / BERT_SENTENCE_TOKENS, *sentence;
    void *grown = reserve(l, l->ids, &l->ids_room, (size_t)(c->tokens + n), l->id_size);
    if (!grown) return false;
    l->ids = grown;
    sentence = reserve(l, l->sentence, &l->sentence_room, (size_t)(c->sentences + pieces + 1),
                       sizeof *sentence);
    if (!sentence) return false;
    l->sentence = sentence;
    if (l->id_size == sizeof(uint16_t)) {
        uint16_t *out = (uint16_t *)l->ids + c->tokens;
        for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)ids[i];
    } else {
        memcpy((int32_t *)l->ids + c->tokens, ids, (size_t)n * sizeof *ids);
    }
    for (int64_t piece = 0; piece < pieces; piece++)
        sentence[c->sentences++] = c->tokens + n * piece / pieces;
    c->tokens += n;
    sentence[c->sentences] = c->tokens;
    return true;
}

/* Appends the results of a job. *line counts the lines of the file; *open: the last document still
 * takes sentences. */
static bool append(loader *l, const job *j, int64_t *line, bool *open)
{
    bert_corpus *c = l->corpus;
    const int32_t *ids = j->ids;
    for (int64_t i = 0; i < j->lines; i++) {
        int32_t n = j->lengths[i];
        if (n == line_blank) {
            *open = false;
        } else if (n > 0) {
            if (!*open) {
                int64_t *grown = reserve(l, l->document, &l->document_room,
                                         (size_t)c->documents + 2, sizeof *grown);
                if (!grown) return false;
                l->document = grown;
                l->document[c->documents++] = c->sentences;
                *open = true;
            }
            if (!append_line(l, ids, n)) return false;
            l->document[c->documents] = c->sentences;
            ids += n;
        }
    }
    if (j->bad_line >= 0) {
        long long at = (long long)(*line + j->bad_line + 1);
        if (j->too_many)
            return bert_fail(
                l->err, l->err_size,
                "corpus '%s', line %lld: the tokenizer gives %lld ids, more than bytes", l->name,
                at, (long long)j->bad_id);
        return bert_fail(l->err, l->err_size,
                         "corpus '%s', line %lld: id %lld is outside the vocabulary of %d tokens",
                         l->name, at, (long long)j->bad_id, (int)l->desc->vocab_size);
    }
    *line += j->lines;
    return true;
}

/* Runs jobs[0 .. count), each on a thread, the last on this one. A job for which there is no thread
 * runs here too. */
static void run_round(job *jobs, int count)
{
    pthread_t threads[most_threads];
    bool running[most_threads];
    for (int k = 0; k < count; k++) {
        running[k] = k + 1 < count && !pthread_create(&threads[k], NULL, tokenise, &jobs[k]);
        if (!running[k]) tokenise(&jobs[k]);
    }
    for (int k = 0; k < count; k++)
        if (running[k]) pthread_join(threads[k], NULL);
}

static bool tokenise_all(loader *l, const char *text, size_t bytes)
{
    int64_t line = 0;
    bool open = false;
    for (size_t at = 0; at < bytes;) {
        int count = 0;
        for (; count < l->threads && at < bytes; count++) {
            job *j = &l->jobs[count];
            size_t n = bytes - at;
            void *block;
            if (n > chunk_bytes) {
                const char *newline = memchr(text + at + chunk_bytes, '\n', n - chunk_bytes);
                if (newline) n = (size_t)(newline - text) + 1 - at;
            }
            if (n > INT32_MAX)
                return bert_fail(l->err, l->err_size, "corpus '%s': a line is longer than 2 GB",
                                 l->name);
            block = reserve(l, j->block, &j->room, 2 * n, sizeof *j->block);
            if (!block) return false;
            j->desc = l->desc;
            j->text = text + at;
            j->bytes = n;
            j->block = block;
            at += n;
        }
        run_round(l->jobs, count);
        for (int k = 0; k < count; k++)
            if (!append(l, &l->jobs[k], &line, &open)) return false;
    }
    return true;
}

/* ---------- the splits ---------- */

/* Held-out documents are those with the lowest hashes: below a fixed limit, or the first
 * least_held_out if these are more. Of four documents at most two are below the limit, and every
 * further document adds at most one, so at least two are left for training. */
static bool divide(loader *l)
{
    bert_corpus *c = l->corpus;
    uint64_t limit = UINT64_MAX / held_out_share, lowest[least_held_out] = {UINT64_MAX, UINT64_MAX};
    for (int64_t d = 0; d < c->documents; d++) {
        uint64_t hash = bert_mix((uint64_t)d + 1);
        if (hash < lowest[0]) lowest[1] = lowest[0], lowest[0] = hash;
        else if (hash < lowest[1]) lowest[1] = hash;
    }
    if (limit < lowest[1]) limit = lowest[1];
    l->split = bert_resize(&l->desc->allocator, NULL, 0, (size_t)c->documents * sizeof *l->split);
    if (!l->split) return out_of_memory(l);
    for (int pass = 0; pass < 2; pass++) {
        bert_split *split = pass ? &c->held_out : &c->train;
        int64_t *documents = l->split + (pass ? c->train.count : 0);
        split->documents = documents;
        for (int64_t d = 0; d < c->documents; d++) {
            if ((bert_mix((uint64_t)d + 1) <= limit) != pass) continue;
            documents[split->count++] = d;
            split->tokens += l->sentence[l->document[d + 1]] - l->sentence[l->document[d]];
        }
    }
    return true;
}

void bert_corpus_unigrams(const bert_corpus *c, double *nats)
{
    double all = (double)(c->train.tokens + c->vocab_size);
    for (int32_t id = 0; id < c->vocab_size; id++) nats[id] = 1;
    for (int64_t k = 0; k < c->train.count; k++) {
        const int64_t *document = c->document + c->train.documents[k];
        for (int64_t i = c->sentence[document[0]]; i < c->sentence[document[1]]; i++)
            nats[bert_corpus_id(c, i)]++;
    }
    for (int32_t id = 0; id < c->vocab_size; id++) nats[id] = -log(nats[id] / all);
}

static bool measure_unigrams(loader *l)
{
    bert_corpus *c = l->corpus;
    size_t bytes = (size_t)c->vocab_size * sizeof(double);
    double *nats = bert_resize(&l->desc->allocator, NULL, 0, bytes), sum = 0;
    if (!nats) return out_of_memory(l);
    bert_corpus_unigrams(c, nats);
    for (int64_t k = 0; k < c->held_out.count; k++) {
        const int64_t *document = c->document + c->held_out.documents[k];
        for (int64_t i = c->sentence[document[0]]; i < c->sentence[document[1]]; i++)
            sum += nats[bert_corpus_id(c, i)];
    }
    c->unigram_nats = sum / (double)c->held_out.tokens;
    bert_resize(&l->desc->allocator, nats, bytes, 0);
    return true;
}

static uint64_t digest_values(uint64_t digest, const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) digest = bert_mix(digest + (uint64_t)values[i] + 1);
    return digest;
}

/* Of the ids in order, and of the places where sentences and documents begin. */
static uint64_t digest_of(const bert_corpus *c)
{
    uint64_t digest = (uint64_t)c->tokens;
    for (int64_t i = 0; i < c->tokens; i++)
        digest = (digest ^ (uint64_t)bert_corpus_id(c, i)) * 0x9E3779B97F4A7C15u + 1;
    digest = digest_values(bert_mix(digest), c->sentence, c->sentences + 1);
    return digest_values(digest, c->document, c->documents + 1);
}

/* ---------- the whole ---------- */

/* Frees unused room of an array. Returns the array, or NULL if even that fails. */
static void *trim(loader *l, void *array, size_t *room, int64_t elements, size_t element)
{
    void *block =
        bert_resize(&l->desc->allocator, array, *room * element, (size_t)elements * element);
    if (block) *room = (size_t)elements;
    else out_of_memory(l);
    return block;
}

/* Moves the arrays, without unused room, to the corpus. */
static bool finish(loader *l)
{
    bert_corpus *c = l->corpus;
    void *ids = trim(l, l->ids, &l->ids_room, c->tokens, l->id_size);
    int64_t *block;
    if (!ids) return false;
    l->ids = ids;
    block = trim(l, l->sentence, &l->sentence_room, c->sentences + 1, sizeof *block);
    if (!block) return false;
    l->sentence = block;
    block = trim(l, l->document, &l->document_room, c->documents + 1, sizeof *block);
    if (!block) return false;
    l->document = block;
    if (l->id_size == sizeof(uint16_t)) c->ids16 = ids;
    else c->ids32 = ids;
    c->sentence = l->sentence;
    c->document = l->document;
    c->digest = digest_of(c);
    return true;
}

static bool build(loader *l, const char *text, size_t bytes)
{
    bert_corpus *c = l->corpus;
    size_t line = 1, mark;
    const char *why;
    if (!bytes)
        return bert_fail(l->err, l->err_size, "corpus '%s': the file is empty" FORM, l->name);
    if ((why = zf_text_wrong(text, bytes, true, &line)))
        return bert_fail(l->err, l->err_size, "corpus '%s', line %zu: %s" FORM, l->name, line, why);
    mark = zf_text_mark(text, bytes);
    if (!tokenise_all(l, text + mark, bytes - mark)) return false;
    if (!c->sentences)
        return bert_fail(l->err, l->err_size, "corpus '%s': no sentence, only blank lines" FORM,
                         l->name);
    if (c->documents < 2 * least_held_out)
        return bert_fail(
            l->err, l->err_size,
            "corpus '%s': %lld document%s, and at least %d are needed: whole documents are held "
            "out, two of them, and two are left to train on" FORM,
            l->name, (long long)c->documents, c->documents == 1 ? "" : "s", 2 * least_held_out);
    return divide(l) && finish(l) && measure_unigrams(l);
}

bert_corpus *bert_corpus_parse(const char *text, size_t bytes, const char *name,
                               const bert_corpus_desc *desc, char *err, size_t err_size)
{
    const zf_allocator *a = &desc->allocator;
    loader l = {.desc = desc, .name = name, .err = err, .err_size = err_size};
    size_t jobs_size;
    bool good = false;
    l.threads = desc->threads ? desc->threads : 1;
    l.id_size = desc->vocab_size <= 65536 ? sizeof(uint16_t) : sizeof(int32_t);
    if (!desc->encode || desc->vocab_size <= 0) {
        bert_fail(err, err_size,
                  "corpus '%s': a tokenizer and the size of its vocabulary are needed", name);
        return NULL;
    }
    if (l.threads < 0 || l.threads > most_threads) {
        bert_fail(err, err_size, "corpus '%s': %d threads; 1 to %d are possible", name, l.threads,
                  most_threads);
        return NULL;
    }
    jobs_size = (size_t)l.threads * sizeof *l.jobs;
    l.corpus = bert_resize(a, NULL, 0, sizeof *l.corpus);
    l.jobs = bert_resize(a, NULL, 0, jobs_size);
    if (l.jobs) memset(l.jobs, 0, jobs_size);
    if (l.corpus) *l.corpus = (bert_corpus){.vocab_size = desc->vocab_size, .allocator = *a};
    if (l.corpus && l.jobs) good = build(&l, text, bytes);
    else out_of_memory(&l);
    for (int k = 0; l.jobs && k < l.threads; k++)
        bert_resize(a, l.jobs[k].block, l.jobs[k].room * sizeof *l.jobs[k].block, 0);
    bert_resize(a, l.jobs, l.jobs ? jobs_size : 0, 0);
    if (good) return l.corpus;
    bert_resize(a, l.ids, l.ids_room * l.id_size, 0);
    bert_resize(a, l.sentence, l.sentence_room * sizeof *l.sentence, 0);
    bert_resize(a, l.document, l.document_room * sizeof *l.document, 0);
    if (l.corpus && l.split)
        bert_resize(a, l.split, (size_t)l.corpus->documents * sizeof *l.split, 0);
    bert_resize(a, l.corpus, l.corpus ? sizeof *l.corpus : 0, 0);
    return NULL;
}

bert_corpus *bert_corpus_load(const char *path, const bert_corpus_desc *desc, char *err,
                              size_t err_size)
{
    bert_corpus *corpus = NULL;
    const char *why;
    size_t room, size;
    FILE *file = zf_file_open(path, &room, &why);
    char *text;
    if (!file) {
        bert_fail(err, err_size, "corpus '%s': cannot open: %s" FORM, path, why);
        return NULL;
    }
    text = bert_resize(&desc->allocator, NULL, 0, room + 1);
    if (!text) {
        bert_fail(err, err_size, "out of memory");
        fclose(file);
        return NULL;
    }
    errno = 0;
    size = fread(text, 1, room, file); /* ignores what is appended meanwhile */
    if (ferror(file))
        bert_fail(err, err_size, "corpus '%s': cannot read: %s", path, strerror(errno));
    else corpus = bert_corpus_parse(text, size, path, desc, err, err_size);
    fclose(file);
    bert_resize(&desc->allocator, text, room + 1, 0);
    return corpus;
}

void bert_corpus_free(bert_corpus *c)
{
    zf_allocator a;
    if (!c) return;
    a = c->allocator;
    bert_resize(&a, (void *)c->ids16, c->ids16 ? (size_t)c->tokens * sizeof *c->ids16 : 0, 0);
    bert_resize(&a, (void *)c->ids32, c->ids32 ? (size_t)c->tokens * sizeof *c->ids32 : 0, 0);
    bert_resize(&a, (void *)c->sentence, (size_t)(c->sentences + 1) * sizeof *c->sentence, 0);
    bert_resize(&a, (void *)c->document, (size_t)(c->documents + 1) * sizeof *c->document, 0);
    bert_resize(&a, (void *)c->train.documents, (size_t)c->documents * sizeof(int64_t), 0);
    bert_resize(&a, c, sizeof *c, 0);
}
