/* Options: all of them as text, as JSON and as --help. */

/* Whether a value is shown: it has an effect, and differs from 0. */
static bool zfi_option_shows(const zfi_option_walk *w)
{
    const zf_option *row = zfi_option_row(w);
    return row->kind != ZF_OPTION_CODE && zfi_option_given(row, zfi_option_member(w)) &&
           zfi_option_has_effect(w);
}

/* Text that grows in a buffer, or is only measured. */
typedef struct zfi_text_out {
    char *text;
    size_t size, length;
    char between; /* options */
} zfi_text_out;

static void zfi_out_char(zfi_text_out *out, char c)
{
    if (out->length + 1 < out->size) out->text[out->length] = c, out->text[out->length + 1] = '\0';
    out->length++;
}

static void zfi_out(zfi_text_out *out, const char *text)
{
    while (*text) zfi_out_char(out, *text++);
}

/* A text as a word's value: in quotes if it must be. */
static void zfi_out_value(zfi_text_out *out, const char *text)
{
    const bool plain = *text && !text[strcspn(text, " \t\r\n\"\\,")];
    if (plain) {
        zfi_out(out, text);
        return;
    }
    zfi_out_char(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') zfi_out_char(out, '\\');
        zfi_out_char(out, *text);
    }
    zfi_out_char(out, '"');
}

static void zfi_out_option(zfi_text_out *out, const char *path, const char *value)
{
    if (out->length) zfi_out_char(out, out->between);
    zfi_out(out, path), zfi_out_char(out, '='), zfi_out_value(out, value);
}

static size_t zfi_options_text(const zf_options *all, int32_t count, char between, char *text,
                               size_t size)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    zfi_text_out out = {.text = text, .size = text ? size : 0, .between = between};
    if (out.size) *text = '\0';
    while (zfi_option_next(&w)) {
        char path[ZFI_OPTION_NAME], value[ZFI_OPTION_VALUE];
        const zf_option *row = zfi_option_row(&w);
        if (row->kind == ZF_OPTION_DESC || !zfi_option_shows(&w)) continue;
        zfi_option_path(&w, path);
        if (row->kind != ZF_OPTION_TEXTS)
            zfi_out_option(
                &out, path,
                zfi_option_value(row, zfi_option_member(&w), zfi_option_resolved(&w), value));
        const zf_option_texts *texts = zfi_option_member(&w);
        for (int32_t k = 0; row->kind == ZF_OPTION_TEXTS && k < texts->count; k++)
            zfi_out_option(&out, path, texts->at[k]);
    }
    return out.length;
}

ZF_API size_t zf_options_text(const zf_options *all, int32_t count, char *text, size_t size)
{
    return zfi_options_text(all, count, ' ', text, size);
}

static void zfi_json_put_option(const zf_option *row, const void *member, bool resolved,
                                zf_json_writer *writer)
{
    char text[ZFI_OPTION_VALUE];
    const double number =
        row->kind == ZF_OPTION_NUMBER ? zfi_option_number(row, member, resolved) : 0;
    if (row->kind == ZF_OPTION_FLAG) zf_json_put_bool(writer, *(const bool *)member);
    else if (row->kind == ZF_OPTION_COUNT || row->kind == ZF_OPTION_BYTES)
        zf_json_put_int(writer, zfi_option_whole(row, member, resolved));
    else if (row->kind == ZF_OPTION_NUMBER && isfinite(number)) zf_json_put_double(writer, number);
    else zf_json_put_string(writer, zfi_option_value(row, member, resolved, text));
}

static void zfi_json_put_texts(const zf_option_texts *texts, zf_json_writer *writer)
{
    zf_json_begin_array(writer);
    for (int32_t k = 0; k < texts->count; k++) zf_json_put_string(writer, texts->at[k]);
    zf_json_end(writer);
}

ZF_API void zf_options_put_json(const zf_options *all, int32_t count, zf_json_writer *writer)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    int open = 0; /* objects */
    while (zfi_option_next(&w)) {
        const zf_option *row = zfi_option_row(&w);
        for (; open > w.depth; open--) zf_json_end(writer);
        if (open < w.depth || !zfi_option_shows(&w)) continue; /* of a desc that is not shown */
        zf_json_put_key(writer, row->name);
        if (row->kind == ZF_OPTION_DESC) zf_json_begin_object(writer), open++;
        else if (row->kind == ZF_OPTION_TEXTS) zfi_json_put_texts(zfi_option_member(&w), writer);
        else zfi_json_put_option(row, zfi_option_member(&w), zfi_option_resolved(&w), writer);
    }
    for (; open; open--) zf_json_end(writer);
}

ZF_API void zf_options_each(const zf_options *all, int32_t count,
                            void (*fn)(void *user, const zf_option_value *value), void *user)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    while (fn && zfi_option_next(&w)) {
        char flag[ZFI_OPTION_NAME], path[ZFI_OPTION_NAME], text[ZFI_OPTION_VALUE];
        const zf_option *row = zfi_option_row(&w);
        if (row->kind == ZF_OPTION_DESC || row->kind == ZF_OPTION_CODE) continue;
        fn(user, &(zf_option_value){.row = row,
                                    .flag = zfi_option_flag(&w, flag),
                                    .path = zfi_option_path(&w, path),
                                    .text = zfi_option_value(row, zfi_option_member(&w),
                                                             zfi_option_resolved(&w), text),
                                    .given = zfi_option_given(row, zfi_option_member(&w)),
                                    .has_effect = zfi_option_has_effect(&w)});
    }
}

/* ---------------------------------------------------------------------------------------- help */

enum { ZFI_HELP_COLUMN = 32, ZFI_HELP_WIDTH = 100, ZFI_TOPICS = 24 };

/* "FILE", "a|b|c", ... */
static const char *zfi_option_unit(const zf_option *row)
{
    if (row->unit) return row->unit;
    switch (row->kind) {
    case ZF_OPTION_CHOICE: return row->range;
    case ZF_OPTION_BYTES: return "BYTES";
    case ZF_OPTION_NUMBER: return "X";
    case ZF_OPTION_COUNT: return "N";
    case ZF_OPTION_DESC: return "NAME=VALUE,...";
    default: return "TEXT";
    }
}

/* Prints words from `column` on, in lines of ZFI_HELP_WIDTH. */
static void zfi_print_words(FILE *file, const char *text, int column)
{
    int at = column;
    while (*text) {
        const int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > ZFI_HELP_WIDTH)
            fprintf(file, "\n%*s", column, ""), at = column;
        else if (at > column) fputc(' ', file), at++;
        fprintf(file, "%.*s", length, text);
        at += length, text += length, text += strspn(text, " ");
    }
    fputc('\n', file);
}

/* Adds "beta1 (adamw, lamb)": the descs of options that have this one's flag, where there are
 * several. */
static void zfi_add_owners(const zfi_option_walk *row, const char *flag, char *text, size_t size)
{
    zfi_option_walk w = zfi_option_walk_of(row->all, row->count);
    char other[ZFI_OPTION_NAME];
    size_t at = strlen(text);
    int owners = 0;
    while (zfi_option_next(&w)) {
        const char *name = zfi_option_flag(&w, other);
        if (!name || strcmp(name, flag) || !w.depth || at >= size) continue;
        at += (size_t)snprintf(text + at, size - at, "%s%s", owners++ ? ", " : " (of ",
                               w.level[w.depth - 1].row->name);
    }
    if (at < size) snprintf(text + at, size - at, "%s", owners ? ")" : "");
}

/* Another option of this flag comes before it. */
static bool zfi_is_repeated(const zfi_option_walk *row, const char *flag)
{
    zfi_option_walk w = zfi_option_walk_of(row->all, row->count);
    char other[ZFI_OPTION_NAME];
    while (zfi_option_next(&w) && zfi_option_row(&w) != zfi_option_row(row)) {
        const char *name = zfi_option_flag(&w, other);
        if (name && !strcmp(name, flag)) return true;
    }
    return false;
}

/* The sentence of an option, its own options, and its default. */
static void zfi_help_text(const zfi_option_walk *w, const char *flag, char *text, size_t size)
{
    const zf_option *row = zfi_option_row(w);
    char value[ZFI_OPTION_VALUE];
    size_t at = (size_t)snprintf(text, size, "%s", row->help ? row->help : "");
    const bool number = zfi_option_is_integer(row) || row->kind == ZF_OPTION_NUMBER;
    if (w->depth && w->level[w->depth - 1].row->with) zfi_add_owners(w, flag, text, size);
    at = strlen(text);
    if (row->kind == ZF_OPTION_DESC && !row->unit)
        for (const zf_option *in = row->rows; in->name && at < size; in++)
            at += (size_t)snprintf(text + at, size - at, "%s%s%s%s", in == row->rows ? ": " : ", ",
                                   in->name, in->kind == ZF_OPTION_FLAG ? "" : "=",
                                   in->kind == ZF_OPTION_FLAG ? "" : zfi_option_unit(in));
    if (!number && !(row->kind == ZF_OPTION_TEXT && zfi_option_given(row, zfi_option_member(w))))
        return;
    if (at < size && (row->otherwise != 0 || row->kind == ZF_OPTION_CHOICE ||
                      zfi_option_given(row, zfi_option_member(w))))
        snprintf(text + at, size - at, " [%s]",
                 zfi_option_value(row, zfi_option_member(w), zfi_option_resolved(w), value));
}

static void zfi_help_option(const zfi_option_walk *w, const char *flag, FILE *file)
{
    const zf_option *row = zfi_option_row(w);
    char text[1200], left[200];
    snprintf(left, sizeof left, "  --%s %s", flag,
             row->kind == ZF_OPTION_FLAG ? "" : zfi_option_unit(row));
    if (strlen(left) + 1 < ZFI_HELP_COLUMN) fprintf(file, "%-*s", ZFI_HELP_COLUMN, left);
    else fprintf(file, "%s\n%*s", left, ZFI_HELP_COLUMN, "");
    zfi_help_text(w, flag, text, sizeof text);
    zfi_print_words(file, text, ZFI_HELP_COLUMN);
}

/* The topics in the order of the tables; returns how many. */
static int32_t zfi_find_topics(const zf_options *all, int32_t count, const char *topics[ZFI_TOPICS])
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    char flag[ZFI_OPTION_NAME];
    int32_t found = 0;
    while (zfi_option_next(&w)) {
        const char *topic = w.level[w.depth].topic;
        int32_t k = 0;
        if (!topic || !zfi_option_flag(&w, flag)) continue;
        while (k < found && strcmp(topics[k], topic)) k++;
        if (k == found && found < ZFI_TOPICS) topics[found++] = topic;
    }
    return found;
}

/* Prints the options of a topic, all or the basic ones, under its name; nothing where there are
 * none. */
static void zfi_help_topic(const zf_options *all, int32_t count, const char *topic, bool basic,
                           FILE *file)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    char flag[ZFI_OPTION_NAME];
    bool first = true;
    while (zfi_option_next(&w)) {
        const char *of = w.level[w.depth].topic;
        if (!of || strcmp(of, topic) || !zfi_option_flag(&w, flag)) continue;
        if (basic && !(zfi_option_row(&w)->traits & ZF_OPTION_BASIC)) continue;
        if (zfi_is_repeated(&w, flag)) continue;
        if (first) fprintf(file, "%s\n", topic);
        first = false;
        zfi_help_option(&w, flag, file);
    }
    if (!first) fputc('\n', file);
}

ZF_API zf_status zf_options_help(const zf_options *all, int32_t count, const char *topic,
                                 FILE *file, zf_error *error)
{
    const char *topics[ZFI_TOPICS];
    char names[400] = "";
    int32_t found = zfi_find_topics(all, count, topics), printed = 0;
    if (error) *error = (zf_error){ZF_OK, ""};
    if (!file) return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_options_help: file is NULL");
    for (int32_t k = 0; k < found; k++) {
        const size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", k ? ", " : "", topics[k]);
        if (topic && strcmp(topic, "all") && strcmp(topic, topics[k])) continue;
        zfi_help_topic(all, count, topics[k], !topic, file), printed++;
    }
    if (!topic)
        fprintf(file, "--help TOPIC shows all of one topic, --help all those of all: %s\n", names);
    if (printed) return ZF_OK;
    return zfi_fail(error, ZF_ERR_ARGUMENT, "there is no topic '%.60s'; there are %s, and all",
                    topic ? topic : "", names);
}
