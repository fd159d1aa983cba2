/* The files of checkpoints, which tests read and change. */
#ifndef CHECKPOINT_FILES_H
#define CHECKPOINT_FILES_H
#include "../support/test.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 1 << 16 };

/* "PATH/NAME"; valid until the eighth call after this one. */
static const char *join(const char *path, const char *name)
{
    static char paths[8][512];
    static unsigned turn;
    char *out = paths[turn++ % 8];
    snprintf(out, sizeof paths[0], "%s%s%s", path, *name && *name != '.' ? "/" : "", name);
    return out;
}

/* The bytes of a file, terminated; -1 when it cannot be read. */
static long get_file(const char *path, const char *name, char out[TEXT])
{
    FILE *file = fopen(join(path, name), "rb");
    long bytes = file ? (long)fread(out, 1, TEXT - 1, file) : -1;
    if (file) fclose(file);
    if (bytes >= 0) out[bytes] = '\0';
    return bytes;
}

static bool put_file(const char *path, const char *name, const char *data, long bytes)
{
    FILE *file = fopen(join(path, name), "wb");
    bool good = file && fwrite(data, 1, (size_t)bytes, file) == (size_t)bytes;
    return file && fclose(file) == 0 && good;
}

/* By a table of bytes that is made one bit at a time: the definition, not what the library does. */
static uint32_t crc32c(const char *data, long bytes)
{
    static uint32_t of_byte[256];
    uint32_t crc = ~0u;
    for (uint32_t k = 1; k < 256 && !of_byte[255]; k++) {
        of_byte[k] = k;
        for (int bit = 0; bit < 8; bit++)
            of_byte[k] = of_byte[k] >> 1 ^ (of_byte[k] & 1 ? 0x82f63b78u : 0);
    }
    for (long i = 0; i < bytes; i++) crc = crc >> 8 ^ of_byte[(crc ^ (unsigned char)data[i]) & 255];
    return ~crc;
}

/* Replaces the first `from` of a file (NULL: nothing) by `to`, and corrects the checksum at the
 * manifest's end. */
static bool edit_file(const char *path, const char *name, const char *from, const char *to)
{
    static char text[TEXT], edited[TEXT + 512];
    long bytes = get_file(path, name, text);
    char *at = from && bytes > 0 ? strstr(text, from) : NULL, *sum = NULL;
    int length;
    if (bytes < 0 || (from && !at)) return false;
    if (at)
        length = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to,
                          at + strlen(from));
    else length = snprintf(edited, sizeof edited, "%s", text);
    for (char *next = edited; (next = strstr(next, "\n  \"crc32c\": \"")); next++) sum = next + 14;
    if (sum && strlen(sum) > 8) {
        char digits[16];
        snprintf(digits, sizeof digits, "%08x", (unsigned)crc32c(edited, sum - 1 - edited));
        memcpy(sum, digits, 8);
    }
    return put_file(path, name, edited, length);
}

/* The same of the list of a rank, whose checksum in the manifest is corrected. */
static inline bool edit_list(const char *path, const char *name, const char *from, const char *to)
{
    static char text[TEXT], sum[2][200];
    for (int k = 0; k < 2; k++) {
        const long bytes = get_file(path, name, text);
        if (bytes < 0) return false;
        snprintf(sum[k], sizeof sum[k], "\"%s\": \"%08x\"", name, (unsigned)crc32c(text, bytes));
        if (!k && !edit_file(path, name, from, to)) return false;
    }
    return edit_file(path, "manifest.json", sum[0], sum[1]);
}
#endif
