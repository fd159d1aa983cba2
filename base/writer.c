/* Text as it is made, and its hash. Graphs are printed for messages, for equal nodes and for their
 * hash, so short pieces do not go through printf. */

#define ZFI_HASH_START 0xcbf29ce484222325u

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t zfi_hash_bytes(uint64_t hash, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return hash;
}

/* Where text goes: a file, a buffer, or nowhere. It is counted and hashed in every case. */
typedef struct zfi_writer {
    FILE *file;
    char *text;
    size_t size, length;
    uint64_t hash;
    bool by_place; /* nodes are numbered by their place in the order, not by their ids */
    bool failed;
} zfi_writer;

static zfi_writer zfi_writer_of(FILE *file, char *text, size_t size)
{
    return (zfi_writer){.file = file, .text = text, .size = size, .hash = ZFI_HASH_START};
}

/* The text up to here as a string: as much as fits. */
static void zfi_print_end(zfi_writer *w)
{
    if (w->size) w->text[w->length < w->size ? w->length : w->size - 1] = '\0';
}

static void zfi_print_bytes(zfi_writer *w, const char *bytes, size_t count)
{
    const size_t room = w->length + 1 < w->size ? w->size - 1 - w->length : 0;
    w->hash = zfi_hash_bytes(w->hash, bytes, count);
    if (w->file && fwrite(bytes, 1, count, w->file) != count) w->failed = true;
    if (room) memcpy(w->text + w->length, bytes, count < room ? count : room);
    w->length += count;
}

static void zfi_print_text(zfi_writer *w, const char *text)
{
    zfi_print_bytes(w, text, strlen(text));
}

/* `before`, and an integer. */
static void zfi_print_integer(zfi_writer *w, const char *before, int64_t number)
{
    char digits[20], *at = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--at = '-';
    zfi_print_text(w, before);
    zfi_print_bytes(w, at, (size_t)(digits + sizeof digits - at));
}

/* At most 639 bytes. */
ZFI_PRINTF(2, 3)
static void zfi_print(zfi_writer *w, const char *format, ...)
{
    char line[640];
    int written;
    va_list args;
    va_start(args, format);
    written = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (written > 0)
        zfi_print_bytes(w, line, (size_t)written < sizeof line ? (size_t)written : sizeof line - 1);
}
