/* What tokenizer.json has texts go through: normalizers, pre_tokenizers and decoders, as a list of
 * steps. Each turns pieces of text into pieces of text.
 *
 *     Metaspace    ["the bird"]  replace ["the_bird"]  lead ["_the_bird"]  split ["_the", "_bird"]
 *     ByteLevel    ["der Vögel"] split   ["der", " Vögel"]  bytes ["der", "ĠVÃ¶gel"]
 */
#ifndef STEPS_H
#define STEPS_H

#include "../base/buffer.h"
#include "regex.h"

typedef struct piece {
    size_t begin, end; /* in the text */
    bool first;        /* it begins where the whole text does */
} piece;

typedef struct pieces {
    buffer text;
    piece *list;
    size_t count, room;
} pieces;

void pieces_clear(pieces *);
void pieces_free(pieces *);
/* Appends a piece. Out of memory: text.failed. */
void pieces_add(pieces *, const char *text, size_t bytes, bool first);

typedef enum step_kind {
    STEP_PREPEND,  /* content before each piece that is not empty */
    STEP_LEAD,     /* the same, unless the piece begins with it */
    STEP_REPLACE,  /* content in place of each match */
    STEP_FORM,     /* a normalization form of Unicode */
    STEP_SPLIT,    /* at matches */
    STEP_BYTES,    /* each byte becomes the character that stands for it */
    STEP_UNBYTES,  /* the other way; all pieces become one; what is not UTF-8, U+FFFD */
    STEP_FALLBACK, /* pieces <0x00> .. <0xFF> become the characters that they are the bytes of */
    STEP_FUSE,     /* all pieces become one */
    STEP_TRIM      /* spaces, or content up to `left` and `right` times, are taken off the ends */
} step_kind;

typedef enum step_split {
    SPLIT_REMOVE,
    SPLIT_ISOLATE,
    SPLIT_BEFORE,
    SPLIT_BEHIND,
    SPLIT_RUNS
} step_split; /* matches go; are pieces; end the piece before; begin the one behind; as ISOLATE, but
                   adjacent ones are one piece */

typedef struct step {
    step_kind kind;
    char *content;
    size_t bytes;
    bool first_only; /* LEAD: the first piece alone; REPLACE: the piece number 0 alone */
    regex *regex;    /* REPLACE, SPLIT: what matches; NULL: literal */
    char *literal;
    size_t literal_bytes;
    step_split split;
    bool invert;         /* SPLIT: what is between matches is the match */
    bool compose;        /* FORM: composed at the end: NFC, not NFD */
    bool spaces;         /* TRIM: white space, as often as it stands there */
    int64_t left, right; /* TRIM */
} step;

enum { STEPS = 16 };
typedef struct steps {
    step list[STEPS];
    int count;
} steps;

void steps_free(steps *);
/* Puts *p through all steps; *q is room. False with *error. */
bool steps_run(const steps *, pieces *p, pieces *q, zf_error *error);

/* The character that stands for a byte in the vocabularies of ByteLevel. */
uint32_t byte_character(unsigned char byte);

#endif
