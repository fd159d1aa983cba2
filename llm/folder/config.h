/* The configuration of a model: a struct of int64_t and double without pointers, and a table that
 * maps keys of config.json to its members, and names the members that the frame reads and sets. */
#ifndef CONFIG_H
#define CONFIG_H

#include "../../zeroflow.h"

#include <stddef.h>

typedef enum config_kind {
    CONFIG_COUNT,      /* an int64_t from least to most */
    CONFIG_NUMBER,     /* a double from least to most */
    CONFIG_TRUTH,      /* an int64_t, 0 or 1 */
    CONFIG_ACTIVATION, /* an int64_t, a zf_activation */
    CONFIG_TOKEN,      /* an int64_t, an id of the vocabulary; -1: null */
    /* Keys without a member that would change what a model computes, in ways that this code does
     * not support. They must be absent, or have the value that changes nothing: */
    CONFIG_TRUE,
    CONFIG_FALSE,
    CONFIG_TEXT
} config_kind;

/* Properties of a row's key, combined with |. */
enum {
    CONFIG_NEEDED = 1,  /* the file must have it; otherwise it has a default */
    CONFIG_WRITTEN = 2, /* it is written, and not read */
    CONFIG_RARE = 4     /* it is written only where it is true */
};

typedef struct config_row {
    const char *key;
    config_kind kind;
    size_t at; /* the member's offset */
    double least, most;
    int use;
    const char *other[2]; /* names that other models have for it, read as well */
    const char *text;     /* of CONFIG_TEXT */
} config_row;

/* A named size of a model. */
typedef struct config_size {
    const char *name;
    int64_t layers, hidden, heads;
    int64_t vocab;        /* 0: the default */
    int64_t intermediate; /* 0: 4 * hidden */
} config_size;

enum {
    CONFIG_ROWS = 32,
    CONFIG_SIZES = 8,
    CONFIG_TYPES = 6,
    CONFIG_DROPOUTS = 4,
    CONFIG_ENDS = 8,
    CONFIG_BYTES = 512
};

typedef struct config_table {
    const char *types[CONFIG_TYPES]; /* model_type; NULL behind the last */
    size_t type;          /* with several types: the offset of the member with the type's index */
    size_t bytes;         /* of the struct, at most CONFIG_BYTES */
    const void *defaults; /* a struct; a size sets layers, hidden, heads and intermediate */
    config_size sizes[CONFIG_SIZES]; /* name NULL behind the last */
    config_row rows[CONFIG_ROWS];    /* in the order of writing; key NULL after the last */
    /* Offsets of members. Those of the second and third line may be 0: no such member. */
    size_t vocab, positions, layers, hidden, heads, intermediate, tied;
    size_t end, pad; /* ids of [SEP] and [PAD] */
    int64_t ends;    /* of `end` and behind it, at most CONFIG_ENDS; -1: none; 0: 1 */
    size_t width;    /* of a head, whose row is before that of heads; the value 0: hidden / heads */
    size_t dropouts[CONFIG_DROPOUTS]; /* the first is noted in checkpoints */
    size_t bits;     /* of weights (config_facts); 0: no such member */
    size_t window;   /* tokens that a token sees in some layers; 0: no such member */
    const char *architecture; /* of transformers */
    /* With several architectures: that of a configuration, and a phrase about it. Else NULL. */
    const char *(*architecture_of)(const void *config);
    void (*read_architecture)(void *config, const char *architecture);
    /* Further reading and writing that rows cannot express; NULL: none. Called after the rows; json
     * NULL: the configuration is a named size. False with *error. */
    bool (*read_more)(void *config, const zf_json *json, zf_error *error);
    void (*write_more)(const void *config, zf_json_writer *writer);
} config_table;

/* A config of any model. */
typedef union config_any {
    char bytes[CONFIG_BYTES];
    double number; /* aligned for what is in it */
    int64_t integer;
} config_any;

/* One of the sizes, the path of a config.json, or of a folder with one. False with *error. */
bool config_load(const config_table *table, const char *name_or_path, void *config,
                 zf_error *error);
/* The same as a config.json: a writer with its text, which the caller frees; NULL out of memory. */
zf_json_writer *config_json(const config_table *table, const void *config);

/* Members that all models have. */
typedef struct config_facts {
    int64_t *vocab, *positions;
    int64_t *tied;      /* 0: the head has a weight of its own, not tied to the word embedding */
    int64_t *end, *pad; /* NULL: there is none */
    int64_t ends;       /* ids that end a text from *end on, -1 where there are fewer */
    double *dropouts[CONFIG_DROPOUTS]; /* NULL behind the last */
    /* 8 or 4: weights of products are of so many bits (causal_linear), which no file says; NULL: they
     * cannot be */
    int64_t *bits;
} config_facts;
config_facts config_facts_of(const config_table *table, void *config);
int64_t config_positions(const config_table *table, const void *config);
/* Tokens that a token sees, at most, in some layers; 0: all. */
int64_t config_window(const config_table *table, const void *config);

/* Weights of products, as options of commands name them; the choice sets *config_facts.bits. False
 * with *error, where they cannot be. */
#define CONFIG_WEIGHTS "float|int8|int4"
bool config_set_weights(const config_table *table, void *config, int64_t choice, zf_error *error);
/* 8 or 4; 0: they are floats. */
int64_t config_bits(const config_table *table, const void *config);

/* The value of a key; NULL where it is absent or null, so that the default applies. */
const zf_json *config_member(const zf_json *json, const char *key);

/* Whether a name is a path: it contains '/' or '.', which names of sizes do not, or is a folder
 * with a config.json. */
bool config_is_path(const char *name);

#endif
