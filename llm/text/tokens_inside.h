/* The parts of a tokenizer: tokens_file.c fills them in, tokens.c uses them. */
#ifndef TOKENS_INSIDE_H
#define TOKENS_INSIDE_H

#include "bpe.h"
#include "steps.h"
#include "tokens.h"

/* Finds the longest added token that begins at a place. */
typedef struct trie_node {
    int32_t child, sibling; /* 0: none; node 0 is the root */
    int32_t added;          /* token that ends here; -1: none */
    char byte;
} trie_node;

typedef struct trie {
    trie_node *nodes;
    size_t count, room;
} trie;

typedef struct added_token {
    char *text;
    size_t bytes;
    char *form; /* normalized tokens: the text that is searched for and decoded; else NULL */
    size_t form_bytes;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} added_token;

struct tokens {
    bpe bpe;
    added_token *added;
    size_t added_count, added_room;
    int32_t *added_of; /* by id; -1: none */
    int32_t size;
    trie raw, normalized; /* found before normalization; found after it */
    regex *word;          /* a character of a word; NULL: not needed */
    steps normalize, split, decode;
    bool decodes;           /* there is a decoder; else tokens are joined with spaces */
    id_list before, behind; /* tokens added around a text */
};

/* False out of memory. */
bool trie_add(trie *, const char *text, size_t bytes, int32_t added);

#endif
