/* A text that grows, for pages. */

typedef struct zfi_markup {
    zf_allocator allocator;
    char *data;
    size_t bytes, room;
    bool lacks_memory; /* what followed is missing */
} zfi_markup;

static void zfi_markup_add(zfi_markup *t, const char *data, size_t bytes)
{
    if (t->lacks_memory) return;
    if (bytes >= t->room - t->bytes) {
        const size_t room = 2 * (t->bytes + bytes) + 4096;
        char *more = t->allocator.fn(t->allocator.user, t->data, t->room, room);
        if (!more) {
            t->lacks_memory = true;
            return;
        }
        t->data = more, t->room = room;
    }
    memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
    t->data[t->bytes] = 0;
}

static void zfi_markup_put(zfi_markup *t, const char *text)
{
    zfi_markup_add(t, text, strlen(text));
}

/* At most 500 characters. */
ZFI_FAILS(2, 3)
static void zfi_markup_print(zfi_markup *t, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    zfi_markup_put(t, line);
}

/* With the characters of HTML replaced; other control characters, which HTML lacks, become
 * spaces. */
static void zfi_markup_escaped(zfi_markup *t, const char *text)
{
    for (; *text; text++) {
        const char *as = *text == '&'    ? "&amp;"
                         : *text == '<'  ? "&lt;"
                         : *text == '>'  ? "&gt;"
                         : *text == '"'  ? "&quot;"
                         : *text == '\'' ? "&#39;"
                                         : NULL;
        const char one = (unsigned char)*text < 32 ? ' ' : *text;
        if (as) zfi_markup_put(t, as);
        else zfi_markup_add(t, &one, 1);
    }
}

static void zfi_markup_free(zfi_markup *t)
{
    if (t->data) t->allocator.fn(t->allocator.user, t->data, t->room, 0);
    t->data = NULL, t->bytes = t->room = 0;
}

/* "17.84 MB" */
static void zfi_markup_bytes(zfi_markup *t, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    for (; bytes >= 1000 && unit < 4; unit++) bytes /= 1000;
    zfi_markup_print(t, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
}

/* "1.234 ms" */
static void zfi_markup_seconds(zfi_markup *t, double seconds)
{
    if (seconds == 0) zfi_markup_put(t, "0");
    else if (fabs(seconds) >= 1) zfi_markup_print(t, "%.4g s", seconds);
    else if (fabs(seconds) >= 1e-3) zfi_markup_print(t, "%.4g ms", 1e3 * seconds);
    else zfi_markup_print(t, "%.4g \xC2\xB5s", 1e6 * seconds);
}
