/* DeepSpeed's configuration: what a row of its table of keys is, and what readers of rows share. */

typedef enum zfi_ds_kind {
    ZFI_DS_flag,
    ZFI_DS_int,
    ZFI_DS_number,
    ZFI_DS_text,
    ZFI_DS_choice,  /* a text of `range`, in any case */
    ZFI_DS_numbers, /* a list of them */
    ZFI_DS_list,
    ZFI_DS_block, /* an object, whose keys have rows */
    ZFI_DS_any    /* an object or a list that is not looked into */
} zfi_ds_kind;

typedef enum zfi_ds_verdict {
    ZFI_DS_MAP,    /* it sets an option */
    ZFI_DS_SAME,   /* it is always so here, or needs no setting */
    ZFI_DS_REFUSE, /* it would change numbers or memory, and is not there */
    ZFI_DS_IGNORED /* DeepSpeed ignores it too */
} zfi_ds_verdict;

enum {
    ZFI_DS_FILL = 1, /* MAP: DeepSpeed's default is set where the key is missing in its block */
    ZFI_DS_AUTO = 2, /* "auto" is the default of zf_training */
    ZFI_DS_WARN = 4  /* its words are for the user */
};

typedef struct zfi_ds_reader zfi_ds_reader;
typedef struct zfi_ds_key zfi_ds_key;

/* Sets options by a value that has the type of its row. */
typedef zf_status zfi_ds_set(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value);

struct zfi_ds_key {
    const char *path; /* "zero_optimization.stage" */
    zfi_ds_kind kind;
    const char *range;     /* as of zf_option; NULL: any */
    const char *otherwise; /* DeepSpeed's default as JSON; NULL: none */
    const char *since;     /* version; the oldest that was looked at: "0.3" */
    zfi_ds_verdict verdict;
    const char *to;  /* MAP: the path of an option, "*." of the optimizer's; REFUSE: the values that
                      * are accepted, "false|none"; NULL: none */
    zfi_ds_set *set; /* MAP: NULL: the value as it is */
    const char *words;
    int traits;
};

enum { ZFI_DS_KEYS = 512, ZFI_DS_TABLES = 8 };

struct zfi_ds_reader {
    zf_options all[ZFI_DS_TABLES + 2]; /* of the training, of the run, and the program's */
    int32_t count;
    zf_training *training;
    zf_deepspeed *out;
    zfi_memory memory;
    const zf_json *given[ZFI_DS_KEYS];
    bool off[ZFI_DS_KEYS];      /* it is in a block that is not enabled */
    zf_deepspeed_origin origin; /* of what is set now */
    int64_t line;
    double bytes; /* of an element that ranks send */
    char autos[400];
    zf_error *error;
};

/* The last part of a path. */
static const char *zfi_ds_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The row as an option, for ranges. */
static zf_option zfi_ds_option(const zfi_ds_key *key)
{
    return (zf_option){.name = key->path,
                       .kind = key->kind == ZFI_DS_int      ? ZF_OPTION_COUNT
                               : key->kind == ZFI_DS_choice ? ZF_OPTION_CHOICE
                                                            : ZF_OPTION_NUMBER,
                       .range = key->range ? key->range : "[-1e308,inf)"};
}

/* A scalar as text: true, 3, 0.1, or a text in small letters. */
static void zfi_ds_text(const zf_json *value, char *text, size_t size)
{
    bool yes = false;
    double number = 0;
    int64_t whole = 0;
    char digits[ZFI_NUMBER_TEXT];
    const char *string = zf_json_string(value, NULL);
    *text = '\0';
    switch (zf_json_type_of(value)) {
    case ZF_JSON_BOOL:
        (void)zf_json_to_bool(value, &yes, NULL);
        snprintf(text, size, "%s", yes ? "true" : "false");
        break;
    case ZF_JSON_NUMBER:
        (void)zf_json_to_double(value, -INFINITY, INFINITY, &number, NULL);
        if (!zf_json_to_int(value, INT64_MIN, INT64_MAX, &whole, NULL))
            snprintf(text, size, "%lld", (long long)whole);
        else snprintf(text, size, "%s", zfi_double_text(digits, number));
        break;
    case ZF_JSON_STRING:
        snprintf(text, size, "%s", string);
        for (char *at = text; *at; at++)
            if (*at >= 'A' && *at <= 'Z') *at = (char)(*at + 'a' - 'A');
        break;
    case ZF_JSON_NULL: snprintf(text, size, "null"); break;
    default: snprintf(text, size, zf_json_type_of(value) == ZF_JSON_ARRAY ? "[...]" : "{...}");
    }
}

static bool zfi_ds_is_auto(const zf_json *value)
{
    const char *text = zf_json_string(value, NULL);
    return text && !strcmp(text, "auto");
}

/* ------------------------------------------------------------------------------------ settings */

/* Adds what became of a key. */
static zf_status zfi_ds_note(zfi_ds_reader *r, const char *key, const char *option,
                             const char *value, const char *words)
{
    zf_deepspeed_setting s = {.origin = r->origin, .line = r->line, .words = words ? words : ""};
    snprintf(s.key, sizeof s.key, "%s", key);
    snprintf(s.option, sizeof s.option, "%s", option);
    snprintf(s.value, sizeof s.value, "%s", value);
    if (!zfi_push(&r->memory, r->out->settings, s)) return zfi_nomem(r->error);
    r->out->count = zfi_len(r->out->settings);
    return ZF_OK;
}

/* Goes to the option of a path in one table. */
static bool zfi_ds_goto(zfi_option_walk *w, const zf_options *one, const char *path)
{
    *w = zfi_option_walk_of(one, 1);
    zfi_option_enter(w, 0, one->rows, one->desc);
    return zfi_option_goto(w, 0, path, strlen(path)) && zfi_option_row(w)->kind != ZF_OPTION_CODE;
}

/* An option that is given with a value of its range; a program may mark "not given" by another. */
static bool zfi_ds_is_given(const zfi_option_walk *w)
{
    return zfi_option_given(zfi_option_row(w), zfi_option_member(w)) &&
           zfi_option_in_range(zfi_option_row(w), zfi_option_member(w), false);
}

/* The path of an option, with the optimizer's name for "*". */
static const char *zfi_ds_path(const zfi_ds_reader *r, const char *to, char path[ZFI_OPTION_NAME])
{
    const char *name = zf_optimizer_name(r->training->optimizer);
    if (*to != '*') snprintf(path, ZFI_OPTION_NAME, "%s", to);
    else snprintf(path, ZFI_OPTION_NAME, "%s%s", name ? name : "", to + 1);
    return path;
}

/* The first table that has this option given; false: none has. */
static bool zfi_ds_given_option(const zfi_ds_reader *r, const char *to, zfi_option_walk *w)
{
    char path[ZFI_OPTION_NAME];
    zfi_ds_path(r, to, path);
    for (int32_t k = 0; k < r->count; k++)
        if (zfi_ds_goto(w, &r->all[k], path) && zfi_ds_is_given(w)) return true;
    return false;
}

/* The value of a key is refused; `place`: its value in the file, or NULL. */
static zf_status zfi_ds_fail(zfi_ds_reader *r, const zf_json *place, const char *text)
{
    return zf_json_fail(place ? place : r->out->json, r->error, "%s", text);
}

/* An option that is given and has no effect is an error; a default is taken back. */
static zf_status zfi_ds_check_effect(zfi_ds_reader *r, const zfi_option_walk *w,
                                     const zf_json *place)
{
    char words[3 * ZFI_OPTION_NAME];
    zfi_condition failed;
    const int level = zfi_option_given(zfi_option_row(w), zfi_option_member(w))
                          ? zfi_option_fails(w, &failed)
                          : -1;
    if (level < 0) return ZF_OK;
    if (r->origin == ZF_DEEPSPEED_DEFAULT) {
        memset(zfi_option_member(w), 0, zfi_option_row(w)->size);
        return ZF_OK;
    }
    zfi_condition_words(&failed, w, level, false, words, sizeof words);
    return zf_json_fail(place, r->error, "%s", words);
}

/* Sets the option of one table, or compares it with what was given. */
static zf_status zfi_ds_put_one(zfi_ds_reader *r, const zfi_option_walk *w, const zf_json *place,
                                char *text)
{
    const zf_option *row = zfi_option_row(w);
    char shown[ZFI_OPTION_VALUE], name[ZFI_OPTION_NAME], called[ZFI_OPTION_NAME + 20];
    union {
        double number;
        int64_t whole;
        const char *text;
        bool flag;
    } other = {.whole = 0};
    void *member = zfi_option_member(w);
    zf_error wrong = {ZF_OK, ""};
    zfi_option_called(w, true, name);
    snprintf(called, sizeof called, "sets %s, which", name);
    if (zfi_put_value(row, &other, called, text, &wrong)) return zfi_ds_fail(r, place, wrong.text);
    if (!zfi_ds_is_given(w)) {
        memcpy(member, &other, row->size);
        return zfi_ds_check_effect(r, w, place);
    }
    if (row->kind == ZF_OPTION_TEXT ? !strcmp(*(char **)member, other.text)
                                    : !memcmp(member, &other, row->size))
        return ZF_OK;
    if (r->origin == ZF_DEEPSPEED_DEFAULT) return ZF_OK;
    return zf_json_fail(place, r->error, "is %.60s, and %s is %s: leave one of them out", text,
                        name, zfi_option_value(row, member, false, shown));
}

/* Sets the option `to` in all tables that have it, and notes it. place: of the value. */
static zf_status zfi_ds_put(zfi_ds_reader *r, const zfi_ds_key *key, const char *to,
                            const zf_json *place, const char *value)
{
    char path[ZFI_OPTION_NAME], shown[ZFI_OPTION_VALUE];
    zfi_option_walk w;
    zf_status status = ZF_OK;
    bool found = false;
    const bool given = zfi_ds_given_option(r, to, &w);
    zfi_ds_path(r, to, path);
    if (given && r->origin == ZF_DEEPSPEED_DEFAULT) return ZF_OK;
    for (int32_t k = 0; k < r->count && !status; k++) {
        if (!zfi_ds_goto(&w, &r->all[k], path)) continue;
        found = true;
        status = zfi_ds_put_one(r, &w, place, (char *)(uintptr_t)value);
    }
    if (!found && r->origin == ZF_DEEPSPEED_DEFAULT) return ZF_OK;
    if (!found)
        return zf_json_fail(place, r->error, "is no parameter of the optimizer %s",
                            zf_optimizer_name(r->training->optimizer));
    if (status) return status;
    for (int32_t k = 0; k < r->count; k++)
        if (zfi_ds_goto(&w, &r->all[k], path)) break;
    if (!zfi_ds_is_given(&w) && r->origin == ZF_DEEPSPEED_DEFAULT) return ZF_OK;
    return zfi_ds_note(r, key->path, path,
                       zfi_option_value(zfi_option_row(&w), zfi_option_member(&w), false, shown),
                       key->words);
}
