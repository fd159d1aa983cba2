/* The configuration of a model: a struct of int64_t, double and char[], and a table
 * that maps keys of config.json to its members, and names those that the frame reads and sets. */

typedef enum zf_config_kind {
    ZF_CONFIG_COUNT,      /* an int64_t from least to most */
    ZF_CONFIG_NUMBER,     /* a double from least to most */
    ZF_CONFIG_TRUTH,      /* an int64_t, 0 or 1 */
    ZF_CONFIG_ACTIVATION, /* an int64_t, a zf_activation */
    ZF_CONFIG_TOKEN,      /* an int64_t, an id; -1: null */
    ZF_CONFIG_TOKENS,     /* int64_t[ends]: an id or a list of them; -1 after the last */
    ZF_CONFIG_BLOCKS, /* char[ZF_CONFIG_LAYOUT], zf_config_facts.layout; written if there is one */
    /* Keys without a member that would change what a model computes, in ways that this code does
     * not support. They must be absent, or have the value that changes nothing: */
    ZF_CONFIG_TRUE,
    ZF_CONFIG_FALSE,
    ZF_CONFIG_TEXT
} zf_config_kind;

/* Properties of a row's key, combined with |. */
enum {
    ZF_CONFIG_NEEDED = 1,  /* the file must have it; otherwise it has a default */
    ZF_CONFIG_WRITTEN = 2, /* it is written, and not read */
    ZF_CONFIG_RARE = 4     /* it is written only where it is true */
};

typedef struct zf_config_row {
    const char *key;
    zf_config_kind kind;
    size_t at; /* the member's offset */
    double least, most;
    int use;
    const char *other[2]; /* names that other models have for it, read as well */
    /* Of ZF_CONFIG_TEXT; of ZF_CONFIG_ACTIVATION how the tanh form of GELU is written; NULL:
     * gelu_new */
    const char *text;
} zf_config_row;

/* A named size of a model. */
typedef struct zf_config_size {
    const char *name;
    int64_t layers, hidden, heads;
    int64_t vocab;        /* 0: the default */
    int64_t intermediate; /* 0: 4 * hidden */
} zf_config_size;

enum {
    ZF_CONFIG_ROWS = 32,
    ZF_CONFIG_SIZES = 8,
    ZF_CONFIG_TYPES = 24,
    ZF_CONFIG_DROPOUTS = 4,
    ZF_CONFIG_ENDS = 8,
    ZF_CONFIG_LAYOUT = 256,
    ZF_CONFIG_BYTES = 12288
};

/* What one of several types of models has of its own; {0}: nothing. */
typedef struct zf_config_family {
    const zf_config_row *rows; /* further ones; key NULL after the last; NULL: none */
    const char *const *keys;   /* as zf_config_table.keys; NULL: none */
    /* Keys of the table's rows, NULL after the last: those that files of this type may lack though
     * they are needed in others, and those that are not written; NULL: none */
    const char *const *optional, *const *unwritten;
    const void *defaults;      /* a struct, but for the type; NULL: that of the table */
} zf_config_family;

enum { ZF_CONFIG_TYPE = 64 };

/* A model of several parts, of which that of text is read: from the member text_config of its
 * config.json, or from the file's own members. */
typedef struct zf_config_nest {
    const char *type, *inner;  /* model_type of the file, and that by which the part is read */
    const char *const *others; /* keys of the file that are of other parts; NULL after the last */
    const char *defaults;      /* a JSON object: members where the file has none */
    /* tie_word_embeddings of the file where it has none; that of text_config counts if it is true,
     * or not at all, as in transformers */
    bool tied, either;
} zf_config_nest;

typedef struct zf_config_table {
    const char *types[ZF_CONFIG_TYPES]; /* model_type; NULL after the last */
    size_t type;          /* with several types: the offset of the member with the type's index */
    size_t bytes;         /* of the struct, at most ZF_CONFIG_BYTES */
    const void *defaults; /* a struct; a size sets layers, hidden, heads and intermediate */
    zf_config_size sizes[ZF_CONFIG_SIZES]; /* name NULL after the last */
    int64_t size_types[ZF_CONFIG_SIZES];   /* the type of each, by its index, for its defaults */
    zf_config_row rows[ZF_CONFIG_ROWS];    /* in the order of writing; key NULL after the last */
    /* Other keys of these files, which read_more reads or which change nothing in this family; NULL
     * after the last. A key that is neither here nor in a row is an error, unless its value is null
     * or it changes nothing in any family (transformers_version, use_cache, id2label, ...). */
    const char *const *keys;
    const zf_config_nest *nests; /* type NULL after the last; NULL: there are none */
    /* Offsets of members. Those of the second and third line may be 0: no such member. */
    size_t vocab, positions, layers, hidden, heads, intermediate, tied;
    size_t begin, end, pad; /* ids: of [SEP] twice, of [PAD] */
    int64_t ends;    /* from `end` on, at most ZF_CONFIG_ENDS; -1: none; 0: 1 */
    size_t width;    /* of a head, whose row is before that of heads; the value 0: hidden / heads */
    size_t dropouts[ZF_CONFIG_DROPOUTS]; /* the first is noted in checkpoints */
    size_t bits;                         /* of weights (zf_config_facts); 0: no such member */
    size_t window;            /* tokens that a token sees in some layers; 0: no such member */
    size_t scores;            /* zf_config_facts.scores; 0: no such member */
    size_t layout;            /* zf_config_facts.layout; 0: no such member */
    /* Of transformers; of a model that scores, the end of it is ForSequenceClassification. */
    const char *architecture;
    /* With several architectures: that of a configuration, and a phrase about it. Else NULL. */
    const char *(*architecture_of)(const void *config);
    void (*read_architecture)(void *config, const char *architecture);
    /* That of a configuration's type. A key of another one is an error. NULL: types differ in
     * nothing that rows say */
    const zf_config_family *(*family_of)(const void *config);
    /* Further reading and writing that rows cannot express; NULL: none. Called after the rows; json
     * NULL: the configuration is a named size. False with *error. */
    bool (*read_more)(void *config, const zf_json *json, zf_error *error);
    void (*write_more)(const void *config, zf_json_writer *writer);
} zf_config_table;

/* A config of any model. */
typedef union zf_config_any {
    char bytes[ZF_CONFIG_BYTES];
    double number; /* aligned for what is in it */
    int64_t integer;
} zf_config_any;

/* One of the sizes, the path of a config.json, or of a folder with one. False with *error. */
ZF_API bool zf_config_load(const zf_config_table *table, const char *name_or_path, void *config,
                           zf_error *error);

/* The same as a config.json: a writer with its text, which the caller frees; NULL out of memory. */
ZF_API zf_json_writer *zf_config_json(const zf_config_table *table, const void *config);

/* Members that all models have. */
typedef struct zf_config_facts {
    int64_t *vocab, *positions;
    int64_t *tied;      /* 0: the head has a weight of its own, not tied to the word embedding */
    int64_t *begin, *end, *pad; /* NULL: there is none */
    int64_t ends;       /* ids that end a text from *end on, -1 where there are fewer */
    double *dropouts[ZF_CONFIG_DROPOUTS]; /* NULL after the last */
    /* 8 or 4: weights of products are of so many bits (zf_param_desc.quantized), which no file
     * says; NULL: they cannot be */
    int64_t *bits;
    /* 1: a text gets a score, and no token is predicted. In files the architecture is
     * ...ForSequenceClassification with one label (num_labels), and score.weight takes the place of
     * the head. NULL: such models are not read */
    int64_t *scores;
    /* Blocks of keys that tokens see, as zf_block_mask_parse reads them, with a length: the tokens
     * that a text has at most; "": all keys. NULL: all models of this kind see all keys */
    char *layout;
} zf_config_facts;
ZF_API zf_config_facts zf_config_facts_of(const zf_config_table *table, void *config);

/* Sets the dropouts that files of the configuration's type have; others stay. */
ZF_API void zf_config_set_dropout(const zf_config_table *table, void *config, double p);
/* Tokens that a text has, at most: the model's positions, or fewer where its layout has fewer. */
ZF_API int64_t zf_config_positions(const zf_config_table *table, const void *config);

/* zf_config_facts.layout, "" where there is none. */
ZF_API const char *zf_config_layout(const zf_config_table *table, const void *config);
/* That of a folder's config.json, "" where it has none; *there: there is such a file. False with
 * *error. */
ZF_API bool zf_config_read_layout(const char *folder, char layout[ZF_CONFIG_LAYOUT], bool *there,
                                  zf_error *error);
/* Sets it by the text of an option: its length where it has none, the whole path and digest of a
 * file. "off": all keys are seen. False with *error: it is none, or the model cannot have one. */
ZF_API bool zf_config_set_layout(const zf_config_table *table, void *config, const char *text,
                                 int64_t length, zf_error *error);

/* Tokens that a token sees, at most, in some layers, whose caches may be rings; 0: all, or it sees
 * blocks (zf_config_layout). */
ZF_API int64_t zf_config_window(const zf_config_table *table, const void *config);

/* Weights of products, as options of commands name them; the choice sets *zf_config_facts.bits.
 * False with *error, where they cannot be. */
#define ZF_CONFIG_WEIGHTS "float|int8|int4"

ZF_API bool zf_config_set_weights(const zf_config_table *table, void *config, int64_t choice,
                                  zf_error *error);

/* 8 or 4; 0: they are floats. */
ZF_API int64_t zf_config_bits(const zf_config_table *table, const void *config);

/* Whether a text gets a score (zf_config_facts.scores). */
ZF_API bool zf_config_scores(const zf_config_table *table, const void *config);

/* Reads what config.json says about rotary positions, in transformers 5's order: the object
 * rope_scaling, else rope_parameters; in it rope_theta, else that of the file. Sets *rope but for
 * its heads and positions. Up to `positions`, those of the model, dynamic scaling changes nothing:
 * it is ZF_ROPE_PLAIN with a factor that is not 0, and longer texts must be refused. An object, a
 * member or a kind of scaling that is not read is an error that names it. False with *error. */
ZF_API bool zf_config_read_rope(const zf_json *json, int64_t positions, zf_rope_desc *rope,
                                zf_error *error);

/* The same of models of which a part of each head is rotated: *part, partial_rotary_factor of the
 * object, else of the file, else 1. otherwise: theta where none is said. */
ZF_API bool zf_config_read_rope_part(const zf_json *json, double otherwise, int64_t positions,
                                     zf_rope_desc *rope, double *part, zf_error *error);

/* The same of one object, as of the layers of one kind; NULL: there is none. theta: the file's,
 * which an object that has one must repeat; NULL: none. otherwise: theta where neither has one. */
ZF_API bool zf_config_read_rope_object(const zf_json *object, const zf_json *theta,
                                       double otherwise, int64_t positions, zf_rope_desc *rope,
                                       zf_error *error);

/* Whether a config.json, or that of a folder, is of a model of several parts, of which that of text
 * is read; its model_type, else "". Also false with *error. */
ZF_API bool zf_config_text_part(const zf_config_table *table, const char *path,
                                char type[ZF_CONFIG_TYPE], zf_error *error);

/* The value of a key; NULL where it is absent or null, so that the default applies. */
ZF_API const zf_json *zf_config_member(const zf_json *json, const char *key);

/* Whether a name is a path: it contains '/' or '.', which names of sizes do not, or is a folder
 * with a config.json. */
ZF_API bool zf_config_is_path(const char *name);

/* Writes a member of a JSON object: its key and its value. */
ZF_API void zf_json_put_text_member(zf_json_writer *w, const char *key, const char *value);
ZF_API void zf_json_put_bool_member(zf_json_writer *w, const char *key, bool value);
ZF_API void zf_json_put_int_member(zf_json_writer *w, const char *key, int64_t value);
ZF_API void zf_json_put_double_member(zf_json_writer *w, const char *key, double value);

/* Appends a value as JSON: the same strings, with every byte, and the same digits of numbers. The
 * second one has the key of the value before it, where it is a member. */
ZF_API void zf_text_add_json(zf_text *out, const zf_json *value);
ZF_API void zf_text_add_json_member(zf_text *out, const zf_json *value);
