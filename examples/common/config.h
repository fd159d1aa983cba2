/* The configuration of a model: a struct of int64_t and double without pointers, and a table that
 * says which keys of config.json its members are, and which the frame reads and sets. */
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
    /* Keys without a member, that change what a model computes in ways that it does not know. They
     * must be absent, or have the value for which nothing changes: */
    CONFIG_TRUE,
    CONFIG_FALSE,
    CONFIG_TEXT
} config_kind;

/* What a row's key is, to be or'ed. */
enum {
    CONFIG_NEEDED = 1,  /* the file must have it; else the default stands */
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

/* A model that has a name. */
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
    CONFIG_BYTES = 512
};

typedef struct config_table {
    const char *types[CONFIG_TYPES]; /* model_type; NULL behind the last */
    size_t type;          /* of several: the offset of a member that has the number of one */
    size_t bytes;         /* of the struct, at most CONFIG_BYTES */
    const void *defaults; /* a struct; sizes set layers, hidden, heads and intermediate */
    config_size sizes[CONFIG_SIZES]; /* name NULL behind the last */
    config_row rows[CONFIG_ROWS];    /* as they are written; key NULL behind the last */
    /* Offsets of members. Those of the second and third line may be 0: there are none. */
    size_t vocab, positions, layers, hidden, heads, intermediate, tied;
    size_t end, pad; /* ids of [SEP] and [PAD] */
    size_t width;    /* of a head, whose row is before that of heads; 0 in it: hidden / heads */
    size_t dropouts[CONFIG_DROPOUTS]; /* the first is what a checkpoint notes */
    const char *architecture; /* of transformers */
    /* Where there are several: that of a configuration, and what one says about it. Else NULL. */
    const char *(*architecture_of)(const void *config);
    void (*read_architecture)(void *config, const char *architecture);
    /* What rows cannot say; NULL: nothing. Behind the rows of a file, or with json NULL for a size:
     * false with *error. And behind those that are written. */
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
/* The same as a config.json: a writer whose text it is, to be freed; NULL out of memory. */
zf_json_writer *config_json(const config_table *table, const void *config);

/* Members that all models have. */
typedef struct config_facts {
    int64_t *vocab, *positions;
    int64_t *tied;      /* 0: the head has a weight of its own, not that of the word embedding */
    int64_t *end, *pad; /* NULL: there is none */
    double *dropouts[CONFIG_DROPOUTS]; /* NULL behind the last */
} config_facts;
config_facts config_facts_of(const config_table *table, void *config);
int64_t config_positions(const config_table *table, const void *config);

/* The value of a key; NULL where it is absent or null, for which the default stands. */
const zf_json *config_member(const zf_json *json, const char *key);

/* Whether a name is a path: it has a '/' or a '.' in it, as names of sizes have not, or is a folder
 * with a config.json. */
bool config_is_path(const char *name);

#endif
