/* Options: walking over the rows of tables, and the values of members. */

enum { ZFI_OPTION_DEPTH = 4, ZFI_OPTION_NAME = 96, ZFI_OPTION_VALUE = 72 };

/* A place in tables: level[depth] has the current row, the levels above it the descs that contain
 * it. */
typedef struct zfi_option_walk {
    const zf_options *all;
    int32_t count, set; /* set: the one that the row belongs to */
    bool begun;
    int depth;
    struct zfi_option_level {
        const zf_option *table, *row;
        char *desc;
        const char *topic; /* of --help; NULL: none yet */
    } level[ZFI_OPTION_DEPTH];
} zfi_option_walk;

static zfi_option_walk zfi_option_walk_of(const zf_options *all, int32_t count)
{
    return (zfi_option_walk){.all = all, .count = all ? count : 0};
}

/* Checks that each has rows and a desc. */
static zf_status zfi_options_given(const zf_options *all, int32_t count, const char *call,
                                   zf_error *error)
{
    if (error) *error = (zf_error){ZF_OK, ""};
    if (!all && count > 0) return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: NULL", call);
    for (int32_t k = 0; k < count; k++)
        if (!all[k].rows || !all[k].desc)
            return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: options %d have no %s", call, (int)k,
                            all[k].rows ? "desc" : "rows");
    return ZF_OK;
}

static const zf_option *zfi_option_row(const zfi_option_walk *w) { return w->level[w->depth].row; }

static void *zfi_option_member(const zfi_option_walk *w)
{
    return w->level[w->depth].desc + zfi_option_row(w)->at;
}

static void zfi_option_enter(zfi_option_walk *w, int depth, const zf_option *table, void *desc)
{
    static const zf_option none[] = {{.name = NULL}};
    if (!table || !desc) table = none;
    w->depth = depth;
    w->level[depth].table = w->level[depth].row = table;
    w->level[depth].desc = desc;
    w->level[depth].topic = depth ? w->level[depth - 1].topic : NULL;
}

/* Goes to the next row, from a desc to its first member; false after the last. */
static bool zfi_option_next(zfi_option_walk *w)
{
    if (w->count < 1) return false;
    if (!w->begun) {
        w->begun = true;
        zfi_option_enter(w, 0, w->all[0].rows, w->all[0].desc);
    } else if (zfi_option_row(w)->kind == ZF_OPTION_DESC && w->depth + 1 < ZFI_OPTION_DEPTH) {
        zfi_option_enter(w, w->depth + 1, zfi_option_row(w)->rows, zfi_option_member(w));
    } else {
        w->level[w->depth].row++;
    }
    while (!zfi_option_row(w)->name) {
        if (w->depth) w->level[--w->depth].row++;
        else if (++w->set < w->count)
            zfi_option_enter(w, 0, w->all[w->set].rows, w->all[w->set].desc);
        else return false;
    }
    if (zfi_option_row(w)->topic) w->level[w->depth].topic = zfi_option_row(w)->topic;
    return true;
}

/* "zero.loco_bits" */
static const char *zfi_option_path(const zfi_option_walk *w, char path[ZFI_OPTION_NAME])
{
    size_t at = 0;
    for (int k = 0; k <= w->depth && at < ZFI_OPTION_NAME; k++)
        at += (size_t)snprintf(path + at, ZFI_OPTION_NAME - at, "%s%s", k ? "." : "",
                               w->level[k].row->name);
    return path;
}

/* The option's name on the command line, or NULL where it has none. */
static const char *zfi_option_flag(const zfi_option_walk *w, char flag[ZFI_OPTION_NAME])
{
    const zf_option *row = zfi_option_row(w);
    for (int k = 0; k < w->depth; k++)
        if (w->level[k].row->flag)
            return NULL; /* it is given with the desc's flag, or not at all */
    if (row->kind == ZF_OPTION_CODE || (row->flag && !*row->flag)) return NULL;
    if (row->kind == ZF_OPTION_DESC && !row->flag) return NULL;
    snprintf(flag, ZFI_OPTION_NAME, "%s", row->flag ? row->flag : row->name);
    for (char *at = flag; !row->flag && *at; at++)
        if (*at == '_') *at = '-';
    return flag;
}

/* How messages name it: "--zero" where it is `flags` that are read, else "zero.stage". */
static const char *zfi_option_called(const zfi_option_walk *w, bool flags,
                                     char name[ZFI_OPTION_NAME])
{
    char flag[ZFI_OPTION_NAME];
    if (!flags || !zfi_option_flag(w, flag)) return zfi_option_path(w, name);
    snprintf(name, ZFI_OPTION_NAME, "--%.90s", flag);
    return name;
}

static bool zfi_option_is_integer(const zf_option *row)
{
    return row->kind == ZF_OPTION_COUNT || row->kind == ZF_OPTION_BYTES ||
           row->kind == ZF_OPTION_CHOICE;
}

/* What stands for a 0 that was given, in a member of integers. */
static int64_t zfi_option_zero(const zf_option *row)
{
    return row->size == sizeof(int32_t) ? INT32_MIN : INT64_MIN;
}

static int64_t zfi_option_integer(const zf_option *row, const void *member)
{
    return row->size == sizeof(int32_t) ? *(const int32_t *)member : *(const int64_t *)member;
}

static void zfi_option_put_integer(const zf_option *row, void *member, int64_t value)
{
    if (row->size == sizeof(int32_t)) *(int32_t *)member = (int32_t)value;
    else *(int64_t *)member = value;
}

/* Whether a member has a value of its own. */
static bool zfi_option_given(const zf_option *row, const void *member)
{
    switch (row->kind) {
    case ZF_OPTION_FLAG: return *(const bool *)member;
    case ZF_OPTION_NUMBER: return *(const double *)member != 0;
    case ZF_OPTION_TEXT: return *(const char *const *)member != NULL;
    case ZF_OPTION_TEXTS: return ((const zf_option_texts *)member)->count > 0;
    case ZF_OPTION_CODE: return false;
    case ZF_OPTION_DESC:
        for (const zf_option *in = row->rows; in->name; in++)
            if (zfi_option_given(in, (const char *)member + in->at)) return true;
        return false;
    default: return zfi_option_integer(row, member) != 0;
    }
}

/* The integer that a member stands for: the default for 0, unless the desc is resolved. */
static int64_t zfi_option_whole(const zf_option *row, const void *member, bool resolved)
{
    const int64_t value = zfi_option_integer(row, member);
    if (value == zfi_option_zero(row)) return 0;
    return value || resolved ? value : (int64_t)row->otherwise;
}

/* The same of any number, and of a flag. */
static double zfi_option_number(const zf_option *row, const void *member, bool resolved)
{
    if (row->kind == ZF_OPTION_NUMBER)
        return zfi_or(*(const double *)member, resolved ? 0 : row->otherwise);
    if (row->kind == ZF_OPTION_FLAG) return *(const bool *)member;
    return (double)zfi_option_whole(row, member, resolved);
}

/* Whether the desc of the row is resolved. */
static bool zfi_option_resolved(const zfi_option_walk *w)
{
    return w->set >= 0 && w->set < w->count && w->all[w->set].resolved;
}

/* The name number `index` of "a|b|c", not terminated; *length of it, 0 where there is none. */
static const char *zfi_choice_at(const char *choices, int64_t index, size_t *length)
{
    for (; index > 0 && *choices; index--) {
        choices += strcspn(choices, "|");
        choices += *choices == '|';
    }
    *length = strcspn(choices, "|");
    return choices;
}

/* The index of text[0..length) among "a|b|c", -1 where it is none of them. */
static int64_t zfi_choice_of(const char *choices, const char *text, size_t length)
{
    size_t found;
    for (int64_t k = 0; choices && *zfi_choice_at(choices, k, &found); k++)
        if (found == length && !strncmp(zfi_choice_at(choices, k, &found), text, length)) return k;
    return -1;
}

/* A member's value as text, the default included. Numbers have as few digits as read back the
 * same. */
static const char *zfi_option_value(const zf_option *row, const void *member, bool resolved,
                                    char text[ZFI_OPTION_VALUE])
{
    size_t length;
    const char *name;
    char number[ZFI_NUMBER_TEXT];
    *text = '\0';
    switch (row->kind) {
    case ZF_OPTION_FLAG: return *(const bool *)member ? "true" : "false";
    case ZF_OPTION_TEXT: name = *(const char *const *)member; return name ? name : "";
    case ZF_OPTION_TEXTS:
        snprintf(text, ZFI_OPTION_VALUE, "%d", (int)((const zf_option_texts *)member)->count);
        break;
    case ZF_OPTION_CHOICE:
        name = zfi_choice_at(row->range, zfi_option_whole(row, member, resolved), &length);
        if (!length) break;
        snprintf(text, ZFI_OPTION_VALUE, "%.*s", (int)length, name);
        return text;
    case ZF_OPTION_NUMBER:
        snprintf(text, ZFI_OPTION_VALUE, "%s",
                 zfi_double_text(number, zfi_option_number(row, member, resolved)));
        break;
    default: break;
    }
    if (zfi_option_is_integer(row))
        snprintf(text, ZFI_OPTION_VALUE, "%lld",
                 (long long)zfi_option_whole(row, member, resolved));
    return text;
}
