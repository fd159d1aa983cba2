/* Text that others have written, as it can be printed. Communicators that are compiled separately
 * include this file too. */
#ifndef ZFI_PRINTABLE
#define ZFI_PRINTABLE

#include <string.h>

/* Bytes of the UTF-8 character at s[0..left), left > 0; 0 where there is none: incomplete,
 * overlong, a surrogate, or above U+10FFFF. */
static int zfi_utf8_bytes(const unsigned char *s, size_t left)
{
    int bytes = 1 + (s[0] >= 0xc2) + (s[0] >= 0xe0) + (s[0] >= 0xf0);
    if ((s[0] >= 0x80 && s[0] < 0xc2) || s[0] > 0xf4 || (size_t)bytes > left) return 0;
    for (int i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (bytes == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (bytes == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return bytes;
}

/* Copies as much of the text as fits. Bytes that are not UTF-8 and control characters, which would
 * command a terminal, become \xNN. */
static const char *zfi_printable(char *out, size_t size, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0, left = strlen(text);
    while (left) {
        const int good = zfi_utf8_bytes(s, left);
        const bool control = *s < 0x20 || *s == 0x7f || (*s == 0xc2 && good && s[1] < 0xa0);
        const size_t bytes = good ? (size_t)good : 1;
        if (at + 4 * bytes >= size) break;
        for (size_t k = 0; k < bytes; k++) {
            if (good && !control) out[at++] = (char)s[k];
            else out[at++] = '\\', out[at++] = 'x', out[at++] = digits[s[k] >> 4],
                 out[at++] = digits[s[k] & 15];
        }
        s += bytes, left -= bytes;
    }
    out[at] = '\0';
    return out;
}

#endif
