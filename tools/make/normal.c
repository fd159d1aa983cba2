/* Writes llm/text/normal_tables.h, the data of normalization forms. No build runs it:
 *
 *     cc tools/make/normal.c -licuuc -o build/normal && build/normal > llm/text/normal_tables.h
 *
 * The data come from ICU 72, of characters that Unicode 9 has: the edition by which Hugging Face's
 * `tokenizers` (as of 0.23) normalizes. What came later is an ordinary character.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

/* Private names of the second library begin so. */
#define PREFIX "zf" "l_"

enum { LIMIT = 0x110000, FIRST_HANGUL = 0xAC00, LAST_HANGUL = 0xD7A3, EDITION = 9 };

static bool is_there(UChar32 c)
{
    UVersionInfo age;
    u_charAge(c, age);
    return age[0] && (age[0] < EDITION || (age[0] == EDITION && !age[1]));
}

typedef struct pair {
    UChar32 first, second, whole;
} pair;

static pair composed[LIMIT];
static int pairs;

static int order(const void *a, const void *b)
{
    const pair *p = a, *q = b;
    if (p->first != q->first) return p->first < q->first ? -1 : 1;
    return (p->second > q->second) - (p->second < q->second);
}

static void row(int *column, const char *format, unsigned a, unsigned b, unsigned c)
{
    char text[64];
    int n = snprintf(text, sizeof text, format, a, b, c);
    if (*column + n > 98) printf("\n    "), *column = 4;
    printf("%s", text);
    *column += n;
}

/* ------------------------------------------------------------------- compatibility characters */

enum { PARTS = 20, MOST = 4000, POOL = 16000 };

/* A character, and what it is in full for forms of compatibility. */
typedef struct likeness {
    UChar32 c, to[PARTS];
    int count, place; /* place: of `to` in the pool, if it has several */
} likeness;

static likeness like[MOST];
static int likes;
static UChar32 pool[POOL];
static int pooled;

static void find_likenesses(UErrorCode *code)
{
    const UNormalizer2 *nfkc = unorm2_getNFKCInstance(code), *nfc = unorm2_getNFCInstance(code);
    for (UChar32 c = 0; c < LIMIT; c++) {
        UChar text[64], plain[64];
        likeness *x = &like[likes];
        int n = is_there(c) ? unorm2_getDecomposition(nfkc, c, text, 64, code) : -1, at = 0;
        int m = n > 0 ? unorm2_getDecomposition(nfc, c, plain, 64, code) : -1;
        if (n <= 0 || (c >= FIRST_HANGUL && c <= LAST_HANGUL)) continue;
        if (n == m && !memcmp(text, plain, (size_t)n * sizeof *text)) continue;
        for (x->c = c; at < n; x->count++) U16_NEXT(text, at, n, x->to[x->count]);
        likes++;
    }
}

/* Puts the sequences of `count` characters into the pool, unless they are in it. */
static void fill_pool(int count)
{
    for (int k = 0; k < likes; k++) {
        const size_t bytes = (size_t)count * sizeof *pool;
        int at = 0;
        if (like[k].count != count) continue;
        while (at + count <= pooled && memcmp(pool + at, like[k].to, bytes)) at++;
        if (at + count > pooled) memcpy(pool + (at = pooled), like[k].to, bytes), pooled += count;
        like[k].place = at;
    }
}

/* Characters from like[k] on that follow each other, and become others that do. */
static int run_of(int k)
{
    int n = 1;
    while (like[k].count == 1 && k + n < likes && like[k + n].count == 1 &&
           like[k + n].c == like[k].c + n && like[k + n].to[0] == like[k].to[0] + n)
        n++;
    return n;
}

static void write_likenesses(UErrorCode *code)
{
    int column = 4;
    find_likenesses(code);
    for (int count = PARTS; count > 1; count--) fill_pool(count);
    printf(
        "\n};\n\n/* first << 11 | how many: characters that become others for forms of "
        "compatibility. Next to it\n * the first one's, and the others' follow; or length << 24 | "
        "its place in the pool. */\n"
        "static const uint32_t " PREFIX "normal_likes[][2] = {\n    ");
    for (int k = 0, n; k < likes; k += n) {
        const likeness *x = &like[k];
        n = run_of(k);
        row(&column, "{0x%X,0x%X},", (unsigned)x->c << 11 | (unsigned)n,
            x->count == 1 ? (unsigned)x->to[0] : (unsigned)x->count << 24 | (unsigned)x->place, 0);
    }
    printf("\n};\n\nstatic const uint32_t " PREFIX "normal_pool[] = {\n    ");
    column = 4;
    for (int k = 0; k < pooled; k++) row(&column, "0x%X,", (unsigned)pool[k], 0, 0);
}

int main(void)
{
    UErrorCode code = U_ZERO_ERROR;
    const UNormalizer2 *nfc = unorm2_getNFCInstance(&code);
    int column = 4, last = 0;
    if (U_FAILURE(code)) return 1;
    printf("/* Data of normalization forms (Unicode %d). Not to be edited: written by "
           "tools/make/normal.c. "
           "*/\n#ifndef NORMAL_TABLES_H\n#define NORMAL_TABLES_H\n\n#include <stdint.h>\n\n"
           "/* A character and what it decomposes into, once: two characters, or one and 0. */\n"
           "static const uint32_t " PREFIX "normal_parts[][3] = {\n    ",
           EDITION);
    for (UChar32 c = 0; c < LIMIT; c++) {
        UChar text[8];
        UChar32 a, b = 0;
        int at = 0, n;
        if (!is_there(c) || (c >= FIRST_HANGUL && c <= LAST_HANGUL)) continue;
        n = unorm2_getRawDecomposition(nfc, c, text, 8, &code);
        if (n <= 0) continue;
        U16_NEXT(text, at, n, a);
        if (at < n) U16_NEXT(text, at, n, b);
        row(&column, "{0x%X,0x%X,0x%X},", (unsigned)c, (unsigned)a, (unsigned)b);
        if (b && unorm2_composePair(nfc, a, b) == c) composed[pairs++] = (pair){a, b, c};
    }
    qsort(composed, (size_t)pairs, sizeof *composed, order);
    printf("\n};\n\n/* Two characters and the one that they compose. */\n"
           "static const uint32_t " PREFIX "normal_pairs[][3] = {\n    ");
    column = 4;
    for (int i = 0; i < pairs; i++)
        row(&column, "{0x%X,0x%X,0x%X},", (unsigned)composed[i].first, (unsigned)composed[i].second,
            (unsigned)composed[i].whole);
    printf(
        "\n};\n\n/* first << 8 | combining class, for each stretch of characters of one class. */\n"
        "static const uint32_t " PREFIX "normal_classes[] = {\n    0x0,");
    column = 8;
    for (UChar32 c = 1; c < LIMIT; c++) {
        int class = is_there(c) ? u_getCombiningClass(c) : 0;
        if (class != last) row(&column, "0x%X,", (unsigned)c << 8 | (unsigned)class, 0, 0);
        last = class;
    }
    write_likenesses(&code);
    printf("\n};\n\n#endif\n");
    return U_FAILURE(code);
}
