/* Byte pair encoding: a word begins as its characters. Repeatedly, the pair of neighbours whose
 * merge comes first in the list of merges becomes one token; of equal pairs, the left one.
 *
 *     h u g s   -- u g: 1st -->   h ug s   -- h ug: 2nd -->   hug s
 *
 * A word of n characters takes time in proportion to n log n. */
#ifndef BPE_H
#define BPE_H

#include "../base/buffer.h"

typedef struct bpe_token {
    size_t at;     /* into the text */
    int32_t bytes; /* -1: no token has this id */
} bpe_token;

typedef struct bpe_merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: a free slot */
    int32_t id;    /* the token that they become */
} bpe_merge;

typedef struct bpe {
    buffer text;
    bpe_token *tokens; /* by id */
    int32_t size;      /* the largest id plus one */
    int32_t *slots;    /* ids by hash; -1: free */
    size_t mask;
    bpe_merge *merges;
    size_t merge_mask;
    char *prefix, *suffix; /* of characters but the first; of the last; may be NULL */
    int32_t unknown;       /* the token for a character without one; -1: none */
    bool fuse;             /* one such token for several in a row */
    bool fall_back;        /* its bytes replace it if all of them have tokens */
    bool whole;            /* a word that is a token is not split */
    int32_t bytes[256];    /* tokens <0x00> .. <0xFF>; -1: there is none */
} bpe;

/* Makes room for ids below `size` and for so many merges; false out of memory. */
bool bpe_open(bpe *, int32_t size, size_t merges);
void bpe_close(bpe *);

/* False: another token has the id, or out of memory (text.failed). */
bool bpe_add(bpe *, const char *text, size_t bytes, int32_t id);
int32_t bpe_find(const bpe *, const char *text, size_t bytes); /* -1: there is none */
void bpe_add_merge(bpe *, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Memory for splitting a word. */
typedef struct bpe_work {
    struct symbol *symbols;
    struct candidate *heap;
    size_t count, room, waiting, heap_room;
    buffer key;
} bpe_work;
void bpe_work_free(bpe_work *);

/* Appends the tokens of a word; false out of memory. text: UTF-8. */
bool bpe_word(const bpe *, bpe_work *, const char *text, size_t bytes, id_list *out);

#endif
