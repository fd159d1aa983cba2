/* Options: ranges of values, and the rule that an option without an effect is an error. */

/* A range: low to high, or one of the numbers of `set`. */
typedef struct zfi_interval {
    double low, high;
    bool above, below; /* low, high itself is outside */
    int64_t by;        /* multiples of it; 0: any */
    const char *set;   /* "8|32"; NULL: none */
} zfi_interval;

static zfi_interval zfi_interval_of(const char *text)
{
    zfi_interval r = {.high = INFINITY};
    const char *end, *stop;
    if (!text) return r;
    if (*text != '[' && *text != '(') {
        r.set = text;
        return r;
    }
    stop = text + strlen(text);
    r.above = *text == '(';
    end = zfi_double_read(text + 1, stop, &r.low);
    end = zfi_double_read(end + 1, stop, &r.high);
    r.below = *end == ')';
    if (!strncmp(end + 1, " by ", 4)) r.by = strtoll(end + 5, NULL, 10);
    return r;
}

static bool zfi_in_set(const char *set, double value)
{
    for (const char *at = set; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strtod(at, NULL) == value) return true;
    return false;
}

static bool zfi_interval_has(const zfi_interval *r, double value)
{
    if (r->set) return zfi_in_set(r->set, value);
    if (r->by && fmod(value, (double)r->by) != 0) return false;
    return (r->above ? value > r->low : value >= r->low) &&
           (r->below ? value < r->high : value <= r->high);
}

/* "8, 16 or 32" of "8|16|32", and the same of names. */
static void zfi_list_words(const char *set, char *words, size_t size)
{
    size_t at = 0, length = 0;
    *words = '\0';
    for (int64_t k = 0; *zfi_choice_at(set, k, &length) && at < size; k++) {
        const char *name = zfi_choice_at(set, k, &length);
        const bool last = !name[length];
        at += (size_t)snprintf(words + at, size - at, "%s%.*s",
                               k == 0 ? ""
                               : last ? " or "
                                      : ", ",
                               (int)length, name);
    }
}

/* "a whole number from 4 to 65536", for messages and --help. */
static const char *zfi_range_words(const zf_option *row, char words[ZFI_OPTION_NAME])
{
    const zfi_interval r = zfi_interval_of(row->kind == ZF_OPTION_CHOICE ? NULL : row->range);
    char what[40], low[ZFI_NUMBER_TEXT], high[ZFI_NUMBER_TEXT];
    if (row->kind == ZF_OPTION_CHOICE || r.set) {
        zfi_list_words(row->range, words, ZFI_OPTION_NAME);
        return words;
    }
    if (r.by) snprintf(what, sizeof what, "a multiple of %lld", (long long)r.by);
    else
        snprintf(what, sizeof what, "%s",
                 row->kind == ZF_OPTION_NUMBER  ? "a number"
                 : row->kind == ZF_OPTION_BYTES ? "a number of bytes"
                                                : "a whole number");
    zfi_double_text(low, r.low), zfi_double_text(high, r.high);
    if (isinf(r.high) && r.above) snprintf(words, ZFI_OPTION_NAME, "%s above %s", what, low);
    else if (isinf(r.high)) snprintf(words, ZFI_OPTION_NAME, "%s of %s or more", what, low);
    else
        snprintf(words, ZFI_OPTION_NAME, "%.22s %.5s %.22s %.8s %.22s", what,
                 r.above ? "above" : "from", low, r.below ? "to below" : "to", high);
    return words;
}

/* Whether a member that has been given has a value of its range. */
static bool zfi_option_in_range(const zf_option *row, const void *member, bool resolved)
{
    zfi_interval r;
    size_t length;
    if (row->kind == ZF_OPTION_CHOICE)
        return zfi_option_whole(row, member, resolved) >= 0 &&
               *zfi_choice_at(row->range, zfi_option_whole(row, member, resolved), &length);
    if (!zfi_option_is_integer(row) && row->kind != ZF_OPTION_NUMBER) return true;
    r = zfi_interval_of(row->range);
    return zfi_interval_has(&r, zfi_option_number(row, member, resolved));
}

/* ---------------------------------------------------------------------------------- conditions */

/* The row called name[0..length) in a table; NULL: none. */
static const zf_option *zfi_option_in(const zf_option *table, const char *name, size_t length)
{
    for (; table->name; table++)
        if (!strncmp(table->name, name, length) && !table->name[length]) return table;
    return NULL;
}

/* Goes to the option of a path below level `depth`; false: there is none. */
static bool zfi_option_goto(zfi_option_walk *w, int depth, const char *path, size_t length)
{
    const size_t first = strcspn(path, ".");
    const size_t part = first < length ? first : length;
    const zf_option *row = zfi_option_in(w->level[depth].table, path, part);
    if (!row) return false;
    w->level[depth].row = row, w->depth = depth;
    if (part == length) return true;
    if (row->kind != ZF_OPTION_DESC || depth + 1 == ZFI_OPTION_DEPTH) return false;
    zfi_option_enter(w, depth + 1, row->rows, zfi_option_member(w));
    return zfi_option_goto(w, depth + 1, path + part + 1, length - part - 1);
}

/* Goes to the option that a condition of the row at `level` names: of its desc, of a desc that
 * contains it, or of any table. */
static bool zfi_option_goto_named(zfi_option_walk *w, int level, const char *name, size_t length)
{
    const zfi_option_walk from = *w;
    for (int k = level; k >= 0; k--, *w = from)
        if (zfi_option_goto(w, k, name, length)) return true;
    for (w->set = 0; w->set < w->count; w->set++) {
        zfi_option_enter(w, 0, w->all[w->set].rows, w->all[w->set].desc);
        if (zfi_option_goto(w, 0, name, length)) return true;
    }
    *w = from;
    return false;
}

/* One condition of a row. */
typedef struct zfi_condition {
    zfi_option_walk
        at; /* the option that it names: of several the one that meets it, or the first */
    bool not ;
    int others; /* conditions so far that are met by another option than the first that they name */
    char names[ZFI_OPTION_NAME];  /* "a|b": one of these is given */
    char values[ZFI_OPTION_NAME]; /* "1|2": it has one of these values; "": that it is given */
} zfi_condition;

/* Reads the condition at *text; *text is then the next one. */
static void zfi_condition_read(zfi_condition *c, const char **text)
{
    const char *at = *text;
    const size_t whole = strcspn(at, ","), name = strcspn(at, "=,");
    *text += whole + (at[whole] ? strspn(at + whole, ", ") : 0);
    c->not = *at == '!';
    snprintf(c->names, sizeof c->names, "%.*s", (int)name - c->not, at + c->not );
    *c->values = '\0';
    if (at[name] == '=')
        snprintf(c->values, sizeof c->values, "%.*s", (int)(whole - name - 1), at + name + 1);
}

/* A text is one of these values, or has settings with one of them:
 * "head.*:rate=0.1,optimizer=sgd". */
static bool zfi_text_has(const char *text, const char *values)
{
    if (text && zfi_choice_of(values, text, strlen(text)) >= 0) return true;
    for (; text && (text = strchr(text, '=')); text++)
        if (zfi_choice_of(values, text + 1, strcspn(text + 1, ",;")) >= 0) return true;
    return false;
}

/* Whether the option at *at is given, or has one of the values of a condition. */
static bool zfi_condition_met(const zfi_condition *c, const zfi_option_walk *at)
{
    const zf_option *row = zfi_option_row(at);
    char text[ZFI_OPTION_VALUE];
    const char *value;
    if (!*c->values) return zfi_option_given(row, zfi_option_member(at));
    if (row->kind == ZF_OPTION_TEXT)
        return zfi_text_has(*(const char *const *)zfi_option_member(at), c->values);
    value = zfi_option_value(row, zfi_option_member(at), zfi_option_resolved(at), text);
    return zfi_choice_of(c->values, value, strlen(value)) >= 0;
}

/* Names that are not in these tables count as met: the desc is used by itself. */
static bool zfi_condition_holds(zfi_condition *c, const zfi_option_walk *w, int level)
{
    size_t length;
    bool found = false, met = false;
    for (int64_t k = 0; *zfi_choice_at(c->names, k, &length) && !met; k++) {
        const char *name = zfi_choice_at(c->names, k, &length);
        zfi_option_walk at = *w;
        if (!zfi_option_goto_named(&at, level, name, length)) continue;
        met = zfi_condition_met(c, &at);
        if (!found || met) c->at = at;
        c->others += met && k > 0;
        found = true;
    }
    return !found || met != c->not ;
}

/* "--zero-quantized-weights or --zero-quantized-gradients": the options that a condition names. */
static void zfi_condition_names(const zfi_condition *c, const zfi_option_walk *w, int level,
                                bool flags, char *words, size_t size)
{
    char all[ZFI_OPTION_NAME] = "", name[ZFI_OPTION_NAME];
    size_t length, at = 0;
    for (int64_t k = 0; *zfi_choice_at(c->names, k, &length) && at < sizeof all; k++) {
        zfi_option_walk of = *w;
        if (!zfi_option_goto_named(&of, level, zfi_choice_at(c->names, k, &length), length))
            continue;
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", at ? "|" : "",
                               zfi_option_called(&of, flags, name));
    }
    zfi_list_words(all, words, size);
}

/* The values that options of the same flag require, in c->values: "adamw|lamb". */
static void zfi_condition_join(zfi_condition *c, const zfi_option_walk *row)
{
    char flag[ZFI_OPTION_NAME], other[ZFI_OPTION_NAME];
    zfi_option_walk w = zfi_option_walk_of(row->all, row->count);
    zfi_condition of;
    size_t at = 0;
    if (!zfi_option_flag(row, flag)) return;
    while (zfi_option_next(&w) && at < sizeof c->values) {
        const char *with = w.depth ? w.level[w.depth - 1].row->with : NULL;
        if (!with || !zfi_option_flag(&w, other) || strcmp(flag, other)) continue;
        zfi_condition_read(&of, &with);
        if (strcmp(of.names, c->names)) continue;
        at += (size_t)snprintf(c->values + at, sizeof c->values - at, "%s%s", at ? "|" : "",
                               of.values);
    }
}

/* "requires --zero 3; it is 0" */
static void zfi_condition_words(zfi_condition *c, const zfi_option_walk *w, int level, bool flags,
                                char *words, size_t size)
{
    char name[ZFI_OPTION_NAME], list[ZFI_OPTION_NAME], value[ZFI_OPTION_VALUE];
    const zf_option *row = zfi_option_row(&c->at);
    if (flags && *c->values && level < w->depth) zfi_condition_join(c, w);
    zfi_option_called(&c->at, flags, name);
    if (*c->values) zfi_list_words(c->values, list, sizeof list);
    else zfi_condition_names(c, w, level, flags, list, sizeof list);
    if (*c->values)
        snprintf(
            words, size, "requires %s%s%s%s; it is %s", name, flags ? " " : "=",
            c->not ? "other than " : "", list,
            zfi_option_value(row, zfi_option_member(&c->at), zfi_option_resolved(&c->at), value));
    else if (c->not ) snprintf(words, size, "and %s exclude each other", list);
    else snprintf(words, size, "requires %s", list);
}

/* The level of the first condition that does not hold, of the row and of the descs that contain it;
 * -1: all hold. */
static int zfi_option_fails(const zfi_option_walk *w, zfi_condition *failed)
{
    failed->others = 0;
    for (int level = 0; level <= w->depth; level++)
        for (const char *with = w->level[level].row->with; with && *with;) {
            zfi_condition_read(failed, &with);
            if (!zfi_condition_holds(failed, w, level)) return level;
        }
    return -1;
}

static bool zfi_option_has_effect(const zfi_option_walk *w)
{
    zfi_condition failed;
    return zfi_option_fails(w, &failed) < 0;
}

/* How much of an effect an option has: 0, none; 1, where it is that of a group, for example the
 * weight decay of an optimizer that a group has; 2. */
static int zfi_option_effect(const zfi_option_walk *w)
{
    zfi_condition failed;
    return zfi_option_fails(w, &failed) >= 0 ? 0 : failed.others ? 1 : 2;
}

/* --------------------------------------------------------------------------------------- check */

/* Checks one member that has been given. `who`: what the message begins with, "zf_zero: ". */
static zf_status zfi_option_check(const zfi_option_walk *w, bool flags, const char *who,
                                  zf_error *error)
{
    const zf_option *row = zfi_option_row(w);
    char name[ZFI_OPTION_NAME], words[3 * ZFI_OPTION_NAME], value[ZFI_OPTION_VALUE];
    zfi_condition failed;
    int level;
    zfi_option_called(w, flags, name);
    if (!zfi_option_in_range(row, zfi_option_member(w), zfi_option_resolved(w)))
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s%s is %s; it must be %s", who, name,
                        zfi_option_value(row, zfi_option_member(w), zfi_option_resolved(w), value),
                        zfi_range_words(row, words));
    level = zfi_option_fails(w, &failed);
    if (level < 0) return ZF_OK;
    zfi_condition_words(&failed, w, level, flags, words, sizeof words);
    return zfi_fail(error, ZF_ERR_ARGUMENT, "%s%s %s", who, name, words);
}

static zf_status zfi_options_check(const zf_options *all, int32_t count, bool flags,
                                   const char *who, zf_error *error)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    zf_status status = ZF_OK;
    while (!status && zfi_option_next(&w))
        if (zfi_option_row(&w)->kind != ZF_OPTION_DESC &&
            zfi_option_given(zfi_option_row(&w), zfi_option_member(&w)))
            status = zfi_option_check(&w, flags, who, error);
    return status;
}

ZF_API zf_status zf_options_check(const zf_options *all, int32_t count, bool flags, zf_error *error)
{
    zf_status status = zfi_options_given(all, count, "zf_options_check", error);
    return status ? status : zfi_options_check(all, count, flags, "", error);
}

ZF_API void zf_options_resolve(const zf_options *all, int32_t count)
{
    zfi_option_walk w = zfi_option_walk_of(all, count);
    while (zfi_option_next(&w)) {
        const zf_option *row = zfi_option_row(&w);
        const bool resolved = zfi_option_resolved(&w);
        void *member = zfi_option_member(&w);
        if (row->kind == ZF_OPTION_NUMBER)
            *(double *)member = zfi_option_number(row, member, resolved);
        else if (zfi_option_is_integer(row))
            zfi_option_put_integer(row, member, zfi_option_whole(row, member, resolved));
    }
}

/* For a pass: checks a desc, and fills in its defaults. The error is that of the pass. */
static zf_status zfi_settle_desc(const char *pass, const zf_option *rows, void *desc,
                                 zf_error *error)
{
    const zf_options one = {.rows = rows, .desc = desc};
    char who[ZFI_OPTION_NAME];
    zf_status status;
    snprintf(who, sizeof who, "%s: ", pass);
    status = zfi_options_check(&one, 1, false, who, error);
    if (!status) zf_options_resolve(&one, 1);
    return status;
}
