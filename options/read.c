/* Options: values from text, words, command lines and JSON. */

/* ---------------------------------------------------------------------------------- near names */

/* The nearest flag, or with `flags` false the nearest path, into near; false where none is near. */
static bool zfi_option_near(const zf_options *all, int32_t count, bool flags, const char *name,
                            char near[ZFI_OPTION_NAME])
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    int least = 2 + (int)strlen(name) / 4;
    *near = '\0';
    while (zfi_option_next(&w)) {
        char text[ZFI_OPTION_NAME];
        const char *other = flags ? zfi_option_flag(&w, text) : zfi_option_path(&w, text);
        const int distance = other ? zfi_edit_distance(name, other, false) : least;
        if (distance < least) least = distance, memcpy(near, text, ZFI_OPTION_NAME);
    }
    return *near;
}

/* -------------------------------------------------------------------------------------- values */

static zf_status zfi_value_wrong(const zf_option *row, const char *called, const char *text,
                                 zf_error *error)
{
    char words[ZFI_OPTION_NAME];
    if (row->kind == ZF_OPTION_FLAG)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s takes true or false, not '%.100s'", called,
                        text);
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s takes %s%s, not '%.100s'", called,
                    row->kind == ZF_OPTION_CHOICE ? "one of " : "", zfi_range_words(row, words),
                    text);
}

/* Reads a whole number: digits, or a number such as 1e6. */
static bool zfi_read_whole(const char *text, const char *end, int64_t *value)
{
    char *stop;
    double number;
    errno = 0;
    *value = strtoll(text, &stop, 10);
    if (stop == end && stop != text) return !errno;
    if (zfi_double_read(text, end, &number) != end || number != floor(number) ||
        fabs(number) > 9007199254740992.0)
        return false;
    *value = (int64_t)number;
    return true;
}

/* The same, of bytes, which may end in K, M, G or T. */
static bool zfi_read_bytes(const char *text, int64_t *value)
{
    static const char suffixes[] = "KMGT";
    const size_t length = strlen(text);
    const char *suffix = length ? strchr(suffixes, text[length - 1]) : NULL;
    const int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    if (!zfi_read_whole(text, text + length - (suffix != NULL), value)) return false;
    if (*value > INT64_MAX >> shift || *value < 0) return shift == 0;
    *value <<= shift;
    return true;
}

static zf_status zfi_put_integer(const zf_option *row, void *member, const char *called,
                                 const char *text, zf_error *error)
{
    const zfi_interval r = zfi_interval_of(row->range);
    int64_t value;
    const bool read = row->kind == ZF_OPTION_BYTES
                          ? zfi_read_bytes(text, &value)
                          : zfi_read_whole(text, text + strlen(text), &value);
    if (!read || !zfi_interval_has(&r, (double)value) ||
        (row->size == sizeof(int32_t) && value != (int32_t)value))
        return zfi_value_wrong(row, called, text, error);
    if (!value && (row->otherwise != 0 || row->traits & ZF_OPTION_GIVEN_0))
        value = zfi_option_zero(row);
    zfi_option_put_integer(row, member, value);
    return ZF_OK;
}

static zf_status zfi_put_number(const zf_option *row, void *member, const char *called,
                                const char *text, zf_error *error)
{
    const zfi_interval r = zfi_interval_of(row->range);
    const char *end = text + strlen(text);
    double value;
    if (zfi_double_read(text, end, &value) != end || !zfi_interval_has(&r, value))
        return zfi_value_wrong(row, called, text, error);
    *(double *)member = value == 0 ? ZF_ZERO : value;
    return ZF_OK;
}

static zf_status zfi_put_choice(const zf_option *row, void *member, const char *called,
                                const char *text, zf_error *error)
{
    const int64_t index = zfi_choice_of(row->range, text, strlen(text));
    if (index < 0) return zfi_value_wrong(row, called, text, error);
    if (!index && (row->otherwise != 0 || row->traits & ZF_OPTION_GIVEN_0))
        zfi_option_put_integer(row, member, zfi_option_zero(row));
    else zfi_option_put_integer(row, member, index);
    return ZF_OK;
}

static zf_status zfi_put_flag(const zf_option *row, void *member, const char *called,
                              const char *text, zf_error *error)
{
    if (text && strcmp(text, "true") && strcmp(text, "false"))
        return zfi_value_wrong(row, called, text, error);
    *(bool *)member = !text || *text == 't';
    return ZF_OK;
}

static zf_status zfi_put_one_more(zf_option_texts *all, const char *called, const char *text,
                                  zf_error *error)
{
    if (all->count == ZF_OPTION_TIMES)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s is given more than %d times", called,
                        ZF_OPTION_TIMES);
    all->at[all->count++] = text;
    return ZF_OK;
}

static zf_status zfi_put_words(const zf_options *one, const char *called, const char *unit,
                               char *text, const char *between, zf_error *error);

/* Sets a member. text: NULL for a flag. */
static zf_status zfi_put_value(const zf_option *row, void *member, const char *called, char *text,
                               zf_error *error)
{
    switch (row->kind) {
    case ZF_OPTION_FLAG: return zfi_put_flag(row, member, called, text, error);
    case ZF_OPTION_COUNT:
    case ZF_OPTION_BYTES: return zfi_put_integer(row, member, called, text, error);
    case ZF_OPTION_NUMBER: return zfi_put_number(row, member, called, text, error);
    case ZF_OPTION_CHOICE: return zfi_put_choice(row, member, called, text, error);
    case ZF_OPTION_TEXT: *(const char **)member = text; return ZF_OK;
    case ZF_OPTION_TEXTS: return zfi_put_one_more(member, called, text, error);
    case ZF_OPTION_DESC:
        return zfi_put_words(&(zf_options){.rows = row->rows, .desc = member}, called, row->unit,
                             text, ",", error);
    default: return zfi_fail(error, ZF_ERR_ARGUMENT, "%s is set in C, and not by text", called);
    }
}

/* --------------------------------------------------------------------------------------- words */

/* Words in a text: NAME=VALUE or a value alone, between separators. A value may be in quotes, with
 * \ before quotes and \ in it. */
typedef struct zfi_words {
    char *at;            /* after the last word */
    const char *between; /* the separators */
    char *name, *value;  /* of the current word; name NULL: a value alone */
    char *cut; /* the separator before it, which is now the end of the word before; NULL */
} zfi_words;

/* Takes the quotes off a value; returns what follows it. */
static char *zfi_unquote(char *value)
{
    char *to = value, *from = value + 1;
    for (; *from && *from != '"'; from++) {
        if (*from == '\\' && from[1]) from++;
        *to++ = *from;
    }
    from += *from == '"';
    *to = '\0';
    return from;
}

static bool zfi_next_word(zfi_words *w)
{
    const size_t gap = strspn(w->at, w->between);
    char *end, *equals;
    w->cut = gap ? w->at : w->cut;
    w->at += gap;
    if (!*w->at) return false;
    equals = w->at + strcspn(w->at, "=");
    end = w->at + strcspn(w->at, w->between);
    w->name = equals < end ? w->at : NULL;
    w->value = w->name ? equals + 1 : w->at;
    if (w->name) *equals = '\0';
    if (*w->value == '"') end = zfi_unquote(w->value);
    w->at = end + (*end != '\0');
    w->cut = end;
    *end = '\0';
    return true;
}

/* The row for a value without a name: a flag, a choice, or the first number of bytes. */
static const zf_option *zfi_row_of_value(const zf_option *rows, const char *value)
{
    int64_t bytes;
    for (const zf_option *row = rows; row->name; row++)
        if (row->kind == ZF_OPTION_FLAG && !strcmp(row->name, value)) return row;
        else if (row->kind == ZF_OPTION_CHOICE &&
                 zfi_choice_of(row->range, value, strlen(value)) >= 0)
            return row;
    for (const zf_option *row = rows; row->name && zfi_read_bytes(value, &bytes); row++)
        if (row->kind == ZF_OPTION_BYTES) return row;
    return NULL;
}

/* Goes to the option of a word's name: a path, or another name that the row gives as its flag. */
static bool zfi_goto_word(zfi_option_walk *w, const zf_options *one, const char *name)
{
    *w = zfi_option_walk_of(one, 1);
    zfi_option_enter(w, 0, one->rows, one->desc);
    if (zfi_option_goto(w, 0, name, strlen(name))) return true;
    for (w->depth = 0, w->level[0].row = one->rows; zfi_option_row(w)->name; w->level[0].row++)
        if (zfi_option_row(w)->flag && !strcmp(zfi_option_row(w)->flag, name)) return true;
    return false;
}

static zf_status zfi_word_unknown(const zf_options *one, const char *called, const char *name,
                                  zf_error *error)
{
    char near[ZFI_OPTION_NAME], all[300] = "";
    if (zfi_option_near(one, 1, false, name, near))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s%sthere is no option '%.100s'; is it %s?",
                        called, *called ? ": " : "", name, near);
    for (const zf_option *row = one->rows; row->name && strlen(all) < sizeof all - 40; row++)
        if (row->kind != ZF_OPTION_CODE)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "",
                     row->name);
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s%sthere is no option '%.100s'; there are %s", called,
                    *called ? ": " : "", name, all);
}

/* Sets the option that a word names. *is_text: its value is a text, to which the next words may
 * belong. */
static zf_status zfi_put_word(const zf_options *one, const char *called, const char *unit,
                              const zfi_words *words, bool *is_text, zf_error *error)
{
    zfi_option_walk w;
    char name[2 * ZFI_OPTION_NAME];
    const zf_option *row = NULL;
    const char *said = words->name ? words->name : words->value;
    *is_text = false;
    if (!words->name && !(row = zfi_row_of_value(one->rows, words->value)))
        return unit ? zfi_fail(error, ZF_ERR_ARGUMENT, "%s takes %s, not '%.100s'", called, unit,
                               said)
                    : zfi_word_unknown(one, called, said, error);
    if (!zfi_goto_word(&w, one, row ? row->name : words->name))
        return zfi_word_unknown(one, called, said, error);
    row = zfi_option_row(&w);
    snprintf(name, sizeof name, "%s%s%s", called, *called ? ": " : "", row->name);
    *is_text = row->kind == ZF_OPTION_TEXT;
    return zfi_put_value(row, zfi_option_member(&w), name,
                         !words->name && row->kind == ZF_OPTION_FLAG ? NULL : words->value, error);
}

static bool zfi_is_flag_of(const zf_option *rows, const char *value)
{
    const zf_option *row = zfi_option_in(rows, value, strlen(value));
    return row && row->kind == ZF_OPTION_FLAG;
}

/* unit: what the words are as a whole, for messages; NULL: options of the desc. */
static zf_status zfi_put_words(const zf_options *one, const char *called, const char *unit,
                               char *text, const char *between, zf_error *error)
{
    zfi_words words = {.at = text, .between = between};
    zf_status status = ZF_OK;
    bool is_text = false;
    if (!strcmp(text, "off") && !zfi_row_of_value(one->rows, text)) return ZF_OK;
    while (!status) {
        char *const cut = words.cut;
        if (!zfi_next_word(&words)) break;
        if (is_text && !words.name && cut && *between == ',' &&
            !zfi_is_flag_of(one->rows, words.value))
            *cut = ','; /* a list goes on */
        else status = zfi_put_word(one, called, unit, &words, &is_text, error);
    }
    return status;
}

ZF_API zf_status zf_options_words(const zf_options *one, char *text, zf_error *error)
{
    zf_status status = zfi_options_given(one, 1, "zf_options_words", error);
    if (status) return status;
    if (!text) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_words: NULL");
    return zfi_put_words(one, "", NULL, text, " \t\r\n", error);
}

/* ------------------------------------------------------------------------------- command lines */

/* Goes to the option of a flag[0..length): exactly, or the only one that begins so. Of several with
 * one flag, to the one that has most effect, else the first. *other: a second one that begins
 * so. */
static bool zfi_goto_flag(zfi_option_walk *found, const zf_options *all, int32_t count,
                          const char *flag, size_t length, char other[ZFI_OPTION_NAME])
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    char name[ZFI_OPTION_NAME], first[ZFI_OPTION_NAME] = "";
    int effect = -1;
    *other = '\0';
    while (zfi_option_next(&w)) {
        if (!zfi_option_flag(&w, name) || strncmp(name, flag, length)) continue;
        if (!name[length]) {
            const int its = zfi_option_effect(&w);
            if (its <= effect) continue;
            *found = w, effect = its;
        } else if (effect < 0 && !*first) {
            *found = w, memcpy(first, name, sizeof first);
        } else if (effect < 0 && strcmp(first, name)) {
            memcpy(other, name, sizeof name);
        }
    }
    if (effect >= 0) *other = '\0';
    return effect >= 0 || *first;
}

/* Goes from the first of several options with one flag to the one that has an effect. */
static void zfi_goto_active(zfi_option_walk *w)
{
    char flag[ZFI_OPTION_NAME], other[ZFI_OPTION_NAME];
    zfi_option_walk found;
    if (zfi_option_flag(w, flag) &&
        zfi_goto_flag(&found, w->all, w->count, flag, strlen(flag), other))
        *w = found;
}

static zf_status zfi_flag_unknown(const zf_options *all, int32_t count, const char *argument,
                                  zf_error *error)
{
    char near[ZFI_OPTION_NAME];
    const char *name = argument + strspn(argument, "-");
    if (zfi_option_near(all, count, true, name, near))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "there is no option '%.100s'; is it --%s?",
                        argument, near);
    return zfi_fail(error, ZF_ERR_ARGUMENT, "there is no option '%.100s'", argument);
}

/* Goes to the option that an argument names; *equals: after its '=', or NULL. */
static zf_status zfi_goto_argument(zfi_option_walk *w, const zf_options *all, int32_t count,
                                   char *argument, char **equals, zf_error *error)
{
    char name[ZFI_OPTION_NAME], other[ZFI_OPTION_NAME];
    *equals = strchr(argument, '=');
    const size_t length = *equals ? (size_t)(*equals - argument) : strlen(argument);
    if (*equals) ++*equals;
    if (length < 3 || argument[1] != '-' ||
        !zfi_goto_flag(w, all, count, argument + 2, length - 2, other))
        return zfi_flag_unknown(all, count, argument, error);
    if (!*other) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT, "'%.100s' is ambiguous: --%s or --%s", argument,
                    zfi_option_flag(w, name), other);
}

/* Takes the option at argv[*k], and its value, which may be the next argument; *k is then the last
 * that it took. With `choices` sets only choices, else only others. */
static zf_status zfi_take_argument(const zf_options *all, int32_t count, int argc, char **argv,
                                   int *k, bool choices, zf_error *error)
{
    zfi_option_walk w;
    char *value, name[ZFI_OPTION_NAME];
    zf_status status = zfi_goto_argument(&w, all, count, argv[*k], &value, error);
    if (status) return status;
    const zf_option *row = zfi_option_row(&w);
    zfi_option_called(&w, true, name);
    if (row->kind == ZF_OPTION_FLAG && value)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s takes no value", name);
    if (row->kind != ZF_OPTION_FLAG && !value) value = *k + 1 < argc ? argv[++*k] : NULL;
    if (row->kind != ZF_OPTION_FLAG && !value)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s needs a value", name);
    if ((row->kind == ZF_OPTION_CHOICE) != choices) return ZF_OK;
    if (!choices) zfi_goto_active(&w);
    return zfi_put_value(zfi_option_row(&w), zfi_option_member(&w), name, value, error);
}

/* Goes over the arguments once. left: NULL, or how many stay, at the front of argv. */
static zf_status zfi_take_arguments(const zf_options *all, int32_t count, int argc, char **argv,
                                    bool choices, int *left, zf_error *error)
{
    zf_status status = ZF_OK;
    int stays = 1;
    bool only_rest = false;
    for (int k = 1; k < argc && !status; k++) {
        char *const argument = argv[k];
        if (!only_rest && !strcmp(argument, "--")) only_rest = true;
        else if (only_rest || argument[0] != '-' || !argument[1]) {
            if (left) argv[stays++] = argument;
        } else {
            status = zfi_take_argument(all, count, argc, argv, &k, choices, error);
        }
    }
    if (left) *left = stays;
    return status;
}

ZF_API zf_status zf_options_take(const zf_options *all, int32_t count, int *argc, char **argv,
                                 zf_error *error)
{
    zf_status status = zfi_options_given(all, count, "zf_options_take", error);
    if (status) return status;
    if (!argc || !argv) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_take: NULL");
    status = zfi_take_arguments(all, count, *argc, argv, true, NULL, error);
    return status ? status : zfi_take_arguments(all, count, *argc, argv, false, argc, error);
}

/* Goes to the option of a flag or a path. */
static zf_status zfi_goto_option(zfi_option_walk *w, const zf_options *all, int32_t count,
                                 const char *name, zf_error *error)
{
    char other[ZFI_OPTION_NAME];
    for (int32_t k = 0; k < count; k++)
        if (zfi_goto_word(w, &all[k], name) && strchr(name, '.')) {
            w->all = all, w->count = count, w->set = k, w->begun = true;
            return ZF_OK;
        }
    if (zfi_goto_flag(w, all, count, name, strlen(name), other) && !*other) return ZF_OK;
    return zfi_flag_unknown(all, count, name, error);
}

ZF_API zf_status zf_options_set(const zf_options *all, int32_t count, const char *name, char *text,
                                zf_error *error)
{
    zfi_option_walk w;
    char called[ZFI_OPTION_NAME];
    if (zfi_options_given(all, count, "zf_options_set", error)) return ZF_ERR_ARGUMENT;
    if (!name) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_set: NULL");
    if (zfi_goto_option(&w, all, count, name, error)) return ZF_ERR_ARGUMENT;
    zfi_option_called(&w, !strchr(name, '.'), called);
    if (!text && zfi_option_row(&w)->kind != ZF_OPTION_FLAG)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s needs a value", called);
    return zfi_put_value(zfi_option_row(&w), zfi_option_member(&w), called, text, error);
}

ZF_API zf_status zf_options_default(const zf_options *all, int32_t count, const char *name,
                                    char *text, zf_error *error)
{
    zfi_option_walk w;
    if (zfi_options_given(all, count, "zf_options_default", error)) return ZF_ERR_ARGUMENT;
    if (!name) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_default: NULL");
    if (zfi_goto_option(&w, all, count, name, error)) return ZF_ERR_ARGUMENT;
    if (!text && zfi_option_row(&w)->kind != ZF_OPTION_FLAG)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s needs a value", name);
    if (!zfi_option_has_effect(&w) || zfi_option_given(zfi_option_row(&w), zfi_option_member(&w)))
        return ZF_OK;
    return zfi_put_value(zfi_option_row(&w), zfi_option_member(&w), name, text, error);
}

/* ---------------------------------------------------------------------------------------- JSON */

static zf_status zfi_json_option(const zf_options *one, const zf_json *value, zf_error *error);

static zf_status zfi_json_members(const zf_options *one, const zf_json *object, zf_error *error)
{
    zf_status status = ZF_OK;
    if (zf_json_type_of(object) != ZF_JSON_OBJECT)
        return zf_json_expected(object, error, "an object of options");
    for (const zf_json *v = zf_json_first(object); v && !status; v = zf_json_next(v))
        status = zfi_json_option(one, v, error);
    return status;
}

/* A number or a text of JSON as the text of an option: into buffer, or where the tree has it. */
static char *zfi_json_value_text(const zf_json *value, char buffer[ZFI_NUMBER_TEXT],
                                 zf_error *error)
{
    const char *text = NULL;
    double number;
    int64_t whole;
    if (zf_json_type_of(value) == ZF_JSON_STRING) {
        if (zf_json_to_string(value, &text, error)) return NULL;
        return (char *)(uintptr_t)text; /* texts are not cut: no desc is read from one */
    }
    if (!zf_json_to_int(value, INT64_MIN, INT64_MAX, &whole, NULL)) {
        snprintf(buffer, ZFI_NUMBER_TEXT, "%lld", (long long)whole);
        return buffer;
    }
    if (zf_json_to_double(value, -INFINITY, INFINITY, &number, error)) return NULL;
    return (char *)(uintptr_t)zfi_double_text(buffer, number);
}

static zf_status zfi_json_put(const zf_option *row, void *member, const char *key,
                              const zf_json *value, zf_error *error)
{
    char buffer[ZFI_NUMBER_TEXT], *text;
    zf_error wrong = {ZF_OK, ""};
    if (row->kind == ZF_OPTION_FLAG) return zf_json_to_bool(value, member, error);
    text = zfi_json_value_text(value, buffer, error);
    if (!text) return error ? error->status : ZF_ERR_FORMAT;
    if (text == buffer && (row->kind == ZF_OPTION_TEXT || row->kind == ZF_OPTION_TEXTS))
        return zf_json_expected(value, error, "a text");
    if (!zfi_put_value(row, member, key, text, &wrong)) return ZF_OK;
    return zf_json_fail(value, error, "%s", wrong.text);
}

static zf_status zfi_json_option(const zf_options *one, const zf_json *value, zf_error *error)
{
    size_t bytes;
    const char *key = zf_json_key(value, &bytes);
    const zf_option *row = zfi_option_in(one->rows, key, bytes);
    char near[ZFI_OPTION_NAME];
    if (!row || row->kind == ZF_OPTION_CODE) {
        const bool found = zfi_option_near(one, 1, false, key, near);
        return zf_json_fail(value, error, "there is no option \"%.80s\"%s%s%s", key,
                            found ? "; is it \"" : "", near, found ? "\"?" : "");
    }
    if (row->kind == ZF_OPTION_DESC)
        return zfi_json_members(
            &(zf_options){.rows = row->rows, .desc = (char *)one->desc + row->at}, value, error);
    return zfi_json_put(row, (char *)one->desc + row->at, row->name, value, error);
}

ZF_API zf_status zf_options_read_json(const zf_options *one, const zf_json *object, zf_error *error)
{
    zf_status status = zfi_options_given(one, 1, "zf_options_read_json", error);
    if (status) return status;
    if (!object) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_read_json: NULL");
    return zfi_json_members(one, object, error);
}
