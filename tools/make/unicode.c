/* Writes llm/wordpiece/wordpiece_unicode.h, the character data of the BERT tokenizer. No build runs
 * it:
 *
 *     cc tools/make/unicode.c -licuuc -o build/unicode && build/unicode > llm/wordpiece/wordpiece_unicode.h
 *
 * The data come from ICU 72 (Unicode 15). The usual tokenizer for BERT (Hugging Face `tokenizers`,
 * as of 0.23) uses a different edition of Unicode for each step, and the ids of a text are equal
 * only if we do the same:
 *
 *     step                                     edition
 *     spaces, controls, marks, punctuation     8 (later characters count as letters)
 *     decomposition, combining order           9
 *     lower case                               17
 *     ideographs as words of their own         8, less U+2B820..2B91F of Extension E
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

enum { LETTER, SPACE, DROP, PUNCT, CJK, MARK };
enum { LIMIT = 0x110000, PARTS = 8, POOL = 256 };

typedef struct run {
    UChar32 first, to;
    int count, mode;
} run;

static uint8_t classes[LIMIT], ranks[256];
/* The replacement of a character. -1: itself; from LIMIT on: a place in the pool. */
static UChar32 bare[LIMIT], lower_case[LIMIT];
static UChar32 pool[POOL];
static int pool_size;

static void stop(const char *why, UChar32 c)
{
    fprintf(stderr, "unicode: U+%04X %s\n", (unsigned)c, why);
    exit(1);
}

static bool newer_than(UChar32 c, int edition)
{
    UVersionInfo age;
    u_charAge(c, age);
    return age[0] > edition || (age[0] == edition && (age[1] || age[2] || age[3]));
}

/* The general category in Unicode 8. */
static int category(UChar32 c)
{
    switch (c) { /* characters that later editions moved */
    case 0x166D:
    case 0x111C9: return U_OTHER_PUNCTUATION;
    case 0x1734: return U_NON_SPACING_MARK;
    case 0x1885:
    case 0x1886: return U_OTHER_LETTER;
    case 0xA9BD: return U_COMBINING_SPACING_MARK;
    default: return newer_than(c, 8) ? U_UNASSIGNED : u_charType(c);
    }
}

static int combining(UChar32 c) { return newer_than(c, 9) ? 0 : u_getCombiningClass(c); }

/* The lower case in Unicode 17, except U+0130, the only one with two characters. */
static UChar32 lower(UChar32 c)
{
    static const struct {
        UChar32 first, last, to;
    } later[] = {
        {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x0264}, {0xA7CC, 0xA7CC, 0xA7CD},
        {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
        {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x019B}, {0x10D50, 0x10D65, 0x10D70},
        {0x16EA0, 0x16EB8, 0x16EBB},
    };
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (c >= later[i].first && c <= later[i].last) return later[i].to + c - later[i].first;
    return u_tolower(c);
}

static bool ideograph(UChar32 c)
{
    return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

static int kind(UChar32 c)
{
    if (c == '\t' || c == '\n' || c == '\r') return SPACE;
    if (c == 0xFFFD) return DROP;
    if (ideograph(c)) return CJK;
    if (c > ' ' && c < 0x7F && !u_isalnum(c)) return PUNCT; /* includes symbols such as $ and + */
    switch (category(c)) {
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR: return SPACE;
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE: return DROP;
    case U_NON_SPACING_MARK: return MARK;
    case U_CONNECTOR_PUNCTUATION:
    case U_DASH_PUNCTUATION:
    case U_START_PUNCTUATION:
    case U_END_PUNCTUATION:
    case U_INITIAL_PUNCTUATION:
    case U_FINAL_PUNCTUATION:
    case U_OTHER_PUNCTUATION: return PUNCT;
    default: return LETTER;
    }
}

/* The canonical decomposition; c itself where it has none. The lookup handles Hangul. */
static int decompose(const UNormalizer2 *nfd, UChar32 c, UChar32 out[PARTS])
{
    UErrorCode error = U_ZERO_ERROR;
    UChar text[2 * PARTS];
    int n = 0, length = -1;
    if (!newer_than(c, 9) && !(c >= 0xAC00 && c < 0xAC00 + 11172))
        length = unorm2_getDecomposition(nfd, c, text, 2 * PARTS, &error);
    if (U_FAILURE(error)) stop("decomposes into too much", c);
    if (length < 0) {
        out[0] = c;
        return 1;
    }
    for (int i = 0; i < length;) {
        if (n == PARTS) stop("decomposes into too much", c);
        U16_NEXT(text, i, length, out[n]);
        n++;
    }
    return n;
}

/* The replacement to store for n characters. */
static UChar32 target(UChar32 c, const UChar32 *parts, int n)
{
    UChar32 at = LIMIT + pool_size;
    if (n == 1) return parts[0] == c ? -1 : parts[0];
    if (n > 3) stop("becomes more than three", c);
    if (pool_size + n + 1 > POOL) stop("does not fit the pool", c);
    pool[pool_size++] = n;
    for (int i = 0; i < n; i++) pool[pool_size++] = parts[i];
    return at;
}

/* Computes the class and the replacements of every character. The lookup orders the characters that
 * stripping leaves by rank, and it recognises a dropped mark only if the mark is alone. So
 * stripping must not drop a starter next to a kept combining character; the program stops if it
 * does. */
static void fill(const UNormalizer2 *nfd)
{
    UChar32 parts[PARTS];
    int used = 0;
    for (UChar32 c = 0; c < LIMIT; c++)
        if (kind(c) != MARK && combining(c)) ranks[combining(c)] = 1;
    for (int i = 1; i < 256; i++)
        if (ranks[i]) ranks[i] = (uint8_t)++used;
    if (used > 31) stop("is beyond the last rank", 0);
    for (UChar32 c = 0; c < LIMIT; c++) {
        int n = decompose(nfd, c, parts), kept = 0;
        bool barrier = false, combines = false;
        if (kind(c) == PUNCT && combining(c)) stop("is punctuation that combines", c);
        classes[c] = (uint8_t)(kind(c) | ranks[combining(c)] << 3);
        bare[c] = lower_case[c] = -1;
        if (kind(c) == SPACE || kind(c) == DROP) continue;
        if (c == 0x130) lower_case[c] = target(c, (UChar32[]){'i', 0x307}, 2);
        else if (lower(c) != c) lower_case[c] = lower(c);
        if (lower(c) != c && kind(c) == MARK) stop("is a mark with a lower case", c);
        for (int i = 0; i < n; i++) {
            if (kind(parts[i]) == MARK) {
                barrier |= !combining(parts[i]);
            } else {
                combines |= combining(parts[i]) != 0;
                parts[kept++] = parts[i];
            }
        }
        if (barrier && combines) stop("hides a starter next to a combining character", c);
        if (kind(c) == MARK) {
            if (kept) stop("is a mark that leaves something", c);
            classes[c] = (uint8_t)(MARK | (barrier ? 0 : 1) << 3);
        } else if (!kept) {
            stop("is no mark and leaves nothing", c);
        } else {
            bare[c] = target(c, parts, kept);
        }
    }
}

/* The length of the run that begins at c. mode +1: replacements ascend; +2: every other
 * character. */
static int run_length(const UChar32 *targets, UChar32 c, int mode)
{
    int step = mode & 2 ? 2 : 1, slope = mode & 1 ? step : 0, n = 1;
    if (targets[c] >= LIMIT) return 1;
    while (c + n * step < LIMIT && n < 1000 && targets[c + n * step] == targets[c] + n * slope) {
        if (step == 2 && targets[c + n * step - 1] != -1) break;
        n++;
    }
    return n;
}

static void print_runs(const UChar32 *targets)
{
    int column = 0;
    for (UChar32 c = 0; c < LIMIT;) {
        run best = {c, targets[c], 0, 0};
        if (targets[c] < 0) {
            c++;
            continue;
        }
        for (int mode = 0; mode < 4; mode++)
            if (run_length(targets, c, mode) > best.count)
                best.count = run_length(targets, c, best.mode = mode);
        column += printf("%s{0x%X,0x%X,%d,%d},", column ? "" : "    ", (unsigned)best.first,
                         (unsigned)best.to, best.count, best.mode);
        if (column > 78) column = 0, putchar('\n');
        c += best.mode & 2 ? 2 * best.count - 1 : best.count;
    }
    if (column) putchar('\n');
}

/* One entry for each range of characters of one class: its first character, and its class in the
 * low byte. */
static void print_classes(void)
{
    int column = 0;
    for (UChar32 c = 0; c < LIMIT; c++) {
        if (c && classes[c] == classes[c - 1]) continue;
        column += printf("%s0x%X,", column ? "" : "    ", (unsigned)c << 8 | classes[c]);
        if (column > 88) column = 0, putchar('\n');
    }
    if (column) putchar('\n');
}

static void print_ascii(void)
{
    for (int c = 0; c < 128; c++)
        printf("%s%d,%s", c % 32 ? "" : "    ", classes[c], c % 32 == 31 ? "\n" : "");
}

static void print_pool(void)
{
    int column = 0;
    for (int i = 0; i < pool_size; i++) {
        column += printf("%s0x%X,", column ? "" : "    ", (unsigned)pool[i]);
        if (column > 88) column = 0, putchar('\n');
    }
    if (column) putchar('\n');
}

static const char head[] =
    "/* Character data of the BERT tokenizer, and their lookups. Not to be edited: written by\n"
    " * tools/make/unicode.c, which tells the editions of Unicode. */\n"
    "#ifndef BERT_UNICODE_H\n"
    "#define BERT_UNICODE_H\n"
    "\n"
    "#include <stdint.h>\n"
    "\n"
    "enum { UNI_LETTER, UNI_SPACE, UNI_DROP, UNI_PUNCT, UNI_CJK, UNI_MARK };\n"
    "\n"
    "/* first << 8 | rank << 3 | kind, for each stretch of characters of one class. */\n"
    "static const uint32_t uni_classes[] = {\n";

static const char ascii[] = "};\n"
                            "\n"
                            "/* The same for ASCII, the common case. */\n"
                            "static const uint8_t uni_ascii[128] = {\n";

static const char middle[] =
    "};\n"
    "\n"
    "/* `count` characters from `first` on become `to`. Mode +1: the targets ascend with them;\n"
    " * +2: every other character. A target from 0x110000 on is a place in the pool. */\n"
    "typedef struct uni_run {\n"
    "    uint32_t first, to;\n"
    "    uint16_t count, mode;\n"
    "} uni_run;\n"
    "\n"
    "/* Decomposed, without the nonspacing marks. Hangul syllables are computed. */\n"
    "static const uni_run uni_bare_runs[] = {\n";

static const char between[] = "};\n"
                              "\n"
                              "/* In lower case. */\n"
                              "static const uni_run uni_lower_runs[] = {\n";

static const char before_pool[] = "};\n"
                                  "\n"
                                  "/* Targets of several characters: how many, then these. */\n"
                                  "static const uint32_t uni_pool[] = {\n";

static const char tail[] =
    "};\n"
    "\n"
    "/* The kind in the low three bits. Above them the rank: 0 for a starter, otherwise the place\n"
    " * of the combining class among those that survive accent stripping (1 for all marks). */\n"
    "static inline unsigned uni_class(uint32_t c)\n"
    "{\n"
    "    uint32_t low = 0, high = sizeof uni_classes / sizeof uni_classes[0];\n"
    "    uint32_t key = c << 8 | 0xFF;\n"
    "    if (c < 128) return uni_ascii[c];\n"
    "    while (high - low > 1) { /* uni_classes[low] <= key < uni_classes[high] */\n"
    "        uint32_t middle = (low + high) / 2;\n"
    "        if (uni_classes[middle] <= key) low = middle;\n"
    "        else high = middle;\n"
    "    }\n"
    "    return uni_classes[low] & 0xFF;\n"
    "}\n"
    "\n"
    "/* What c becomes by one of the tables of n runs, into `out`; returns how many, 1 to 3. */\n"
    "static inline int uni_find(const uni_run *runs, uint32_t n, uint32_t c, uint32_t out[3])\n"
    "{\n"
    "    uint32_t low = 0, high = n, at, to;\n"
    "    out[0] = c;\n"
    "    while (high - low > 1) {\n"
    "        uint32_t middle = (low + high) / 2;\n"
    "        if (runs[middle].first <= c) low = middle;\n"
    "        else high = middle;\n"
    "    }\n"
    "    at = c - runs[low].first; /* wraps for what precedes the first run */\n"
    "    if (runs[low].mode & 2) {\n"
    "        if (at % 2 || at / 2 >= runs[low].count) return 1;\n"
    "    } else if (at >= runs[low].count) {\n"
    "        return 1;\n"
    "    }\n"
    "    to = runs[low].to + (runs[low].mode & 1 ? at : 0);\n"
    "    out[0] = to;\n"
    "    if (to < 0x110000) return 1;\n"
    "    to -= 0x110000;\n"
    "    for (uint32_t i = 0; i < uni_pool[to]; i++) out[i] = uni_pool[to + 1 + i];\n"
    "    return (int)uni_pool[to];\n"
    "}\n"
    "\n"
    "/* Decomposes c and drops the nonspacing marks. Not for a mark. */\n"
    "static inline int uni_strip(uint32_t c, uint32_t out[3])\n"
    "{\n"
    "    uint32_t at = c - 0xAC00;\n"
    "    if (at >= 11172)\n"
    "        return uni_find(uni_bare_runs, sizeof uni_bare_runs / sizeof *uni_bare_runs, c, "
    "out);\n"
    "    out[0] = 0x1100 + at / 588; /* Hangul: leading consonant, vowel, trailing consonant */\n"
    "    out[1] = 0x1161 + at % 588 / 28;\n"
    "    out[2] = 0x11A7 + at % 28;\n"
    "    return at % 28 ? 3 : 2;\n"
    "}\n"
    "\n"
    "/* The lower case of c: one character, but for U+0130. */\n"
    "static inline int uni_lower(uint32_t c, uint32_t out[3])\n"
    "{\n"
    "    return uni_find(uni_lower_runs, sizeof uni_lower_runs / sizeof *uni_lower_runs, c, out);\n"
    "}\n"
    "\n"
    "#endif\n";

int main(void)
{
    UErrorCode error = U_ZERO_ERROR;
    const UNormalizer2 *nfd = unorm2_getNFDInstance(&error);
    if (U_FAILURE(error)) {
        fprintf(stderr, "unicode: ICU has no normalization data: %s\n", u_errorName(error));
        return 1;
    }
    fill(nfd);
    fputs(head, stdout);
    print_classes();
    fputs(ascii, stdout);
    print_ascii();
    fputs(middle, stdout);
    print_runs(bare);
    fputs(between, stdout);
    print_runs(lower_case);
    fputs(before_pool, stdout);
    print_pool();
    fputs(tail, stdout);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
