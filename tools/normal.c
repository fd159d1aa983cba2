/* Writes llm/text/normal_tables.h, the data of normalization forms. No build runs it:
 *
 *     cc tools/normal.c -licuuc -o build/normal && build/normal > llm/text/normal_tables.h
 *
 * The data come from ICU 72, of characters that Unicode 9 has: the edition by which Hugging Face's
 * `tokenizers` (as of 0.23) normalizes. What came later is an ordinary character.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

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

int main(void)
{
    UErrorCode code = U_ZERO_ERROR;
    const UNormalizer2 *nfc = unorm2_getNFCInstance(&code);
    int column = 4, last = 0;
    if (U_FAILURE(code)) return 1;
    printf(
        "/* Data of normalization forms (Unicode %d). Not to be edited: written by tools/normal.c. "
        "*/\n#ifndef NORMAL_TABLES_H\n#define NORMAL_TABLES_H\n\n#include <stdint.h>\n\n"
        "/* A character and what it decomposes into, once: two characters, or one and 0. */\n"
        "static const uint32_t normal_parts[][3] = {\n    ",
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
           "static const uint32_t normal_pairs[][3] = {\n    ");
    column = 4;
    for (int i = 0; i < pairs; i++)
        row(&column, "{0x%X,0x%X,0x%X},", (unsigned)composed[i].first, (unsigned)composed[i].second,
            (unsigned)composed[i].whole);
    printf(
        "\n};\n\n/* first << 8 | combining class, for each stretch of characters of one class. */\n"
        "static const uint32_t normal_classes[] = {\n    0x0,");
    column = 8;
    for (UChar32 c = 1; c < LIMIT; c++) {
        int class = is_there(c) ? u_getCombiningClass(c) : 0;
        if (class != last) row(&column, "0x%X,", (unsigned)c << 8 | (unsigned)class, 0, 0);
        last = class;
    }
    printf("\n};\n\n#endif\n");
    return U_FAILURE(code);
}
