/* Characters of UTF-8. */

/* The length of the UTF-8 sequence at p, and its character in *c; 0 if the n > 0 bytes begin with
 * none (incomplete, overlong, a surrogate, beyond U+10FFFF). */
static int zfl_utf8_decode(const unsigned char *p, size_t n, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    *c = p[0];
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4 || (size_t)length > n) return 0;
    *c &= 0x7Fu >> length;
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        *c = *c << 6 | (p[i] & 0x3Fu);
    }
    return *c < least[length] || *c > 0x10FFFF || (*c >= 0xD800 && *c < 0xE000) ? 0 : length;
}

/* The offset of the first byte that is not UTF-8, or `count`. */
static size_t zfl_utf8_valid(const char *text, size_t count)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t c;
    size_t at = 0;
    while (at < count) {
        int bytes = zfl_utf8_decode(p + at, count - at, &c);
        if (!bytes) break;
        at += (size_t)bytes;
    }
    return at;
}
