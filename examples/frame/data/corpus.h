/* The text of a pretraining run: tokenised sentences in documents, split into training and held-out
 * documents.
 *
 *     file     One sentence per line.  \n  Another. \n\n  A new document. \n ...
 *     ids      | 12 7 903 4 | 88 3 | 51 6 2 4 | ...
 *     sentence   0            4      6          10 ...      first token of each sentence
 *     document   0                   2              ...      first sentence of each document
 *
 * No function prints or exits. One that fails writes one line of text to `err` (terminated, at most
 * err_size bytes; may be NULL and 0). A loaded corpus never changes, so any number of threads may
 * read it. */
#ifndef BERT_CORPUS_H
#define BERT_CORPUS_H

#include "../../../zeroflow.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    /* A line of more tokens is stored as several sentences of about equal length, so that a text
     * with a paragraph per line trains as well, and no sentence is longer than a sequence. */
    BERT_SENTENCE_TOKENS = 256
};

typedef struct bert_corpus_desc {
    /* Writes the first `cap` ids of the text and returns how many it has: at most one for each
     * byte. Several threads call it at a time. */
    int64_t (*encode)(const void *user, const char *text, size_t bytes, int32_t *ids, int64_t cap);
    const void *user;
    int32_t vocab_size;     /* every id is below it */
    int threads;            /* 0: one; the corpus does not depend on it */
    zf_allocator allocator; /* {0}: the C library's; only used by the calling thread */
} bert_corpus_desc;

typedef struct bert_split {
    const int64_t *documents; /* the numbers of its documents, ascending */
    int64_t count, tokens;
} bert_split;

typedef struct bert_corpus {
    int64_t tokens, sentences, documents;
    const uint16_t *ids16;   /* [tokens] if the vocabulary has at most 65536 tokens, else NULL */
    const int32_t *ids32;    /* [tokens] otherwise */
    const int64_t *sentence; /* [sentences + 1] */
    const int64_t *document; /* [documents + 1] */
    bert_split train, held_out;
    double unigram_nats; /* see bert_corpus_load */
    uint64_t digest;     /* differs, almost surely, for other tokens, sentences or documents */
    int32_t vocab_size;
    zf_allocator allocator;
} bert_corpus;

/* Reads a regular file, a text with one sentence per line and blank lines between documents; lines
 * may end in CRLF, the last one in nothing. Lines that give no token are passed over.
 *
 * About 1% of the documents, and two at least, are held out; which ones depends on a document's
 * number alone. unigram_nats is the unigram entropy of the corpus, the loss of a model that knows
 * how frequent each token is and nothing else: the mean over the held-out tokens (those that masked
 * positions are drawn from) of -ln p(token), where p is the token's share of the training split
 * with one added to the count of every token of the vocabulary.
 *
 * NULL when the file cannot be read, holds a NUL byte, has no sentence, or has fewer than four
 * documents (two to train on, two held out); when an id is outside the vocabulary;
 * when memory runs out. */
bert_corpus *bert_corpus_load(const char *path, const bert_corpus_desc *, char *err,
                              size_t err_size);

/* The same from memory, which is not kept; `name` stands for the path in messages. */
bert_corpus *bert_corpus_parse(const char *text, size_t bytes, const char *name,
                               const bert_corpus_desc *, char *err, size_t err_size);

void bert_corpus_free(bert_corpus *);

/* -ln p of every token, as unigram_nats takes it: to an array of vocab_size. */
void bert_corpus_unigrams(const bert_corpus *, double *nats);

/* The token at index i of the corpus. */
static inline int32_t bert_corpus_id(const bert_corpus *c, int64_t i)
{
    return c->ids16 ? c->ids16[i] : c->ids32[i];
}

/* Prints into err, which may be NULL where err_size is 0; returns false. */
__attribute__((format(printf, 3, 4))) bool bert_fail(char *err, size_t err_size, const char *format,
                                                     ...);

/* A block through the allocator: new (ptr NULL), resized, or freed (new_size 0). */
void *bert_resize(const zf_allocator *, void *ptr, size_t old_size, size_t new_size);

/* A well-mixed 64-bit number: different inputs give different numbers. */
static inline uint64_t bert_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

#endif
