/* api/options.h - the options of a program: members of descs by name, as text, JSON and flags.
 *
 * A table describes the members of one desc, a row each. From it come command lines and --help,
 * text and JSON in both directions, ranges, and the rule that an option without an effect is an
 * error. zf_training has such a table, so a program offers the flags of all passes with one call:
 *
 *     zf_training t = {.loss = loss};
 *     zf_options all[] = {{.rows = zf_training_options(), .desc = &t}};
 *     if (zf_options_take(all, 1, &argc, argv, &error) || zf_options_check(all, 1, true, &error))
 *         fprintf(stderr, "%s\n", error.text);
 *
 * takes `--optimizer lamb --weight-decay 0.01 --zero 3 --prefetch 128M` out of argv. A program's
 * own options are one more table of one more struct:
 *
 *     typedef struct mine { int64_t batch; const char *corpus; } mine;
 *     static const zf_option rows[] = {
 *         ZF_OPTION(mine, COUNT, batch, 16, "[1,1048576]", .unit = "B", .help = "of a step"),
 *         ZF_OPTION(mine, TEXT, corpus, 0, NULL, .unit = "FILE", .help = "what to train on"),
 *         {.name = NULL}};
 */

/* What a member is. */
typedef enum zf_option_kind {
    ZF_OPTION_FLAG,   /* bool */
    ZF_OPTION_COUNT,  /* int32_t or int64_t */
    ZF_OPTION_BYTES,  /* size_t or int64_t; the text may end in K, M, G or T: 2^10 to 2^40 */
    ZF_OPTION_NUMBER, /* double */
    ZF_OPTION_CHOICE, /* an enum, int32_t or int64_t: the index of a name of `range` */
    ZF_OPTION_TEXT,   /* const char *, which is not copied */
    ZF_OPTION_TEXTS,  /* zf_option_texts: it may be given several times */
    ZF_OPTION_DESC,   /* a desc, which `rows` describes */
    ZF_OPTION_CODE    /* a pointer, a function or a tensor, which only C sets */
} zf_option_kind;

/* The values of an option that may be given several times. */
enum { ZF_OPTION_TIMES = 16 };
typedef struct zf_option_texts {
    const char *at[ZF_OPTION_TIMES];
    int32_t count;
} zf_option_texts;

/* Traits of an option, combined by |. */
enum {
    ZF_OPTION_CHANGES = 1, /* it changes numbers: a resumed run and all ranks need the same value */
    ZF_OPTION_LOCAL = 2,   /* each rank may have its own value */
    ZF_OPTION_PATH = 4,    /* it names a file or folder, whose name may differ between ranks */
    ZF_OPTION_BASIC = 8,   /* the short --help shows it */
    ZF_OPTION_GIVEN_0 = 16, /* a 0 that is given is more than the default 0 */
    ZF_OPTION_READS = 32,   /* the file or folder that it names is read */
    ZF_OPTION_WRITES = 64   /* it is written */
};

/* One member of a desc. A member that is 0 has not been given, and has its default. */
typedef struct zf_option {
    const char *name; /* of the member; NULL ends a table */
    zf_option_kind kind;
    size_t at, size;  /* of the member in the desc: bytes */
    double otherwise; /* the default; ignored for a desc, text or code */
    /* COUNT, BYTES, NUMBER: "[0,1)", "(0,inf)", "[64,2048] by 64" (multiples of 64), "8|32" (one of
     * these). CHOICE: the names, "f32|bf16|f16". NULL: any value from 0 on */
    const char *range;
    /* When it has an effect: conditions with ", " between. "loco": that option is given. "!tile":
     * it is not given. "stage=1|2": it has one of these values. A name is a member of this desc, of
     * one that contains it, or a path ("zero.stage"). NULL: always */
    const char *with;
    const char *unit; /* of the value, as --help shows it: "STEPS", "FILE"; NULL: by the kind */
    const char *help; /* one sentence without a full stop */
    /* The flag on the command line, without dashes. NULL: the name with '-' for '_'; members of a
     * desc that has a flag are given as --FLAG NAME=VALUE,... instead. "": no flag */
    const char *flag;
    const char *topic; /* the group of --help; NULL: that of the desc, else of the row before */
    const struct zf_option *rows; /* DESC: its table */
    uint32_t traits;
} zf_option;

/* ZF_OPTION(desc type, kind, member, default, range, .help = "...", ...): a row of a table. */
#define ZF_OPTION(desc, which, member, default_, range_, ...)                                      \
    {                                                                                              \
        .name = #member, .kind = ZF_OPTION_##which, .at = offsetof(desc, member),                  \
        .size = sizeof(((desc *)0)->member), .otherwise = default_, .range = range_, __VA_ARGS__   \
    }

/* A row for a member that only C sets. */
#define ZF_OPTION_CODED(desc, member)                                                              \
    {                                                                                              \
        .name = #member, .kind = ZF_OPTION_CODE, .at = offsetof(desc, member),                     \
        .size = sizeof(((desc *)0)->member)                                                        \
    }

/* A desc and its table. Functions take one or several of these. */
typedef struct zf_options {
    const zf_option *rows;
    void *desc;
    bool resolved; /* a 0 in the desc is a 0, not the default (zf_options_resolve) */
} zf_options;

/* The table of zf_training: the options of all passes. */
ZF_API const zf_option *zf_training_options(void);
/* The option --attention LAYOUT,NAME=VALUE,..., whose desc is a zf_block_mask_desc. */
ZF_API const zf_option *zf_block_mask_options(void);
/* layer_drop, of a zf_layer_drop_desc: theta, gamma, halves, first_kept. */
ZF_API const zf_option *zf_layer_drop_options(void);

/* Sets the option of this flag ("weight-decay") or path ("adamw.weight_decay"). A 0 in the text is
 * a 0, not the default. Where several have the flag, as the optimizers' weight decay, it is the one
 * that has an effect. `text` may be cut in place, and must outlive the desc. ZF_ERR_ARGUMENT with
 * *error: no such option (with the nearest one), or no such value (with its range). */
ZF_API zf_status zf_options_set(const zf_options *all, int32_t count, const char *name, char *text,
                                zf_error *error);
/* Sets an option only if it has an effect and has not been given. */
ZF_API zf_status zf_options_default(const zf_options *all, int32_t count, const char *name,
                                    char *text, zf_error *error);
/* Takes "--NAME VALUE", "--NAME=VALUE" and "--FLAG" out of argv[1..*argc), also by an unambiguous
 * beginning of the name; what does not begin with '-', and what follows "--", stays there. Choices
 * are taken first, so that the order does not matter. */
ZF_API zf_status zf_options_take(const zf_options *all, int32_t count, int *argc, char **argv,
                                 zf_error *error);
/* Sets options by words, "stage=3 world=8 loco": members of one desc by name. A choice, a flag or a
 * number of bytes needs no name. `text` is cut in place. */
ZF_API zf_status zf_options_words(const zf_options *one, char *text, zf_error *error);
/* Sets options by a JSON object with members of the same names; descs are objects. Texts live in
 * the tree of `object`. *error names the line. */
ZF_API zf_status zf_options_read_json(const zf_options *one, const zf_json *object,
                                      zf_error *error);

/* Checks the values, and that each option that has been given has an effect: ZF_ERR_ARGUMENT names
 * it and what it requires. flags: as on the command line ("--zero 3"), else as in C
 * ("zero.stage"). */
ZF_API zf_status zf_options_check(const zf_options *all, int32_t count, bool flags,
                                  zf_error *error);
/* Replaces what has not been given by its default. Then a 0 is a 0, so the desc must not be given
 * to a pass. */
ZF_API void zf_options_resolve(const zf_options *all, int32_t count);

/* "zero.stage=3 zero.world=8 optimizer=adamw ...", what zf_options_words reads, of all options that
 * differ from 0 and have an effect, into text[0..size), terminated when size > 0; returns the
 * length of the whole text. After zf_options_resolve it has the defaults too. */
ZF_API size_t zf_options_text(const zf_options *all, int32_t count, char *text, size_t size);
/* Writes the options of zf_options_text as members of the object that the writer has begun. */
ZF_API void zf_options_put_json(const zf_options *all, int32_t count, zf_json_writer *writer);

/* One option and its value, for programs that list options: notes in a checkpoint, comparisons
 * between ranks. */
typedef struct zf_option_value {
    const zf_option *row;
    const char *flag, *path; /* flag NULL: it is not on the command line */
    const char *text;        /* of the value; "" for a text that is not given */
    bool given, has_effect;
} zf_option_value;
/* Calls fn for each option of the kinds that have a text, in the order of the tables. */
ZF_API void zf_options_each(const zf_options *all, int32_t count,
                            void (*fn)(void *user, const zf_option_value *value), void *user);

/* Prints --help. topic NULL: options with the trait ZF_OPTION_BASIC, and the names of the topics.
 * "all": all options. Any other: the options of that topic; ZF_ERR_ARGUMENT with *error where there
 * is none of that name. */
ZF_API zf_status zf_options_help(const zf_options *all, int32_t count, const char *topic,
                                 FILE *file, zf_error *error);
