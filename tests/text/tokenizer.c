/* The BERT tokenizer against ids of the `tokenizers` package (tests/golden/tokenizer/make.py), its
 * messages, the training of vocabularies, and all of it when memory runs out. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* The library once more, for this file alone, over an allocator that refuses request `refuse_at`. */
static long refuse_at = -1, allocations, live;

static bool refused(void) { return allocations++ == refuse_at; }

static void *refusing_realloc(void *block, size_t bytes)
{
    void *moved = refused() ? NULL : realloc(block, bytes);
    if (moved && !block) live++;
    return moved;
}

static void *refusing_malloc(size_t bytes) { return refusing_realloc(NULL, bytes); }

static void *refusing_calloc(size_t n, size_t bytes)
{
    void *block = refused() ? NULL : calloc(n, bytes);
    if (block) live++;
    return block;
}

static void counting_free(void *block)
{
    if (block) live--;
    free(block);
}

#define malloc  refusing_malloc
#define calloc  refusing_calloc
#define realloc refusing_realloc
#define free    counting_free
#undef ZF_API
#define ZF_API static __attribute__((unused))
#define ZEROFLOW_LLM_IMPLEMENTATION
#include "../../zeroflow_llm.h"
#undef malloc
#undef calloc
#undef realloc
#undef free

#define GOLDEN "tests/golden/tokenizer/"
#define FIVE   "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"

/* The whole file, terminated, to be freed. NULL when it cannot be read. */
static char *load_whole(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(1 << 22) : NULL;
    if (text) text[ *bytes = fread(text, 1, (1 << 22) - 1, f)] = 0;
    if (f) fclose(f);
    return text;
}

/* The same, freed with the test. */
static char *read_file(test *t, const char *path, size_t *bytes)
{
    char *text = load_whole(path, bytes);
    if (text) test_defer(t, free, text);
    return text;
}

static bool write_file(const char *path, const char *text, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text, 1, bytes, f) == bytes;
    return f && !fclose(f) && ok;
}

static void free_vocab(void *v) { zf_wordpiece_free(v); }

static zf_wordpiece *golden_vocab(test *t, bool lower_case)
{
    zf_wordpiece *v =
        zf_wordpiece_open(GOLDEN "vocab.txt", zf_wordpiece_cased(!lower_case), NULL);
    if (v) test_defer(t, free_vocab, v);
    return v;
}

/* Encodes each line of the difficult text and prints the ids as the golden file has them. */
static void compare_ids(test *t, const char *golden, bool lower_case, unsigned flags)
{
    enum { ROOM = 4096 };
    static int32_t ids[ROOM];
    size_t text_bytes, expected_bytes;
    char *text = read_file(t, GOLDEN "difficult.txt", &text_bytes), got[8 * ROOM];
    char *expected = read_file(t, golden, &expected_bytes);
    zf_wordpiece *v = golden_vocab(t, lower_case);
    CHECK(t, text && expected && v);
    for (size_t at = 0; at < text_bytes;) {
        char *end = memchr(text + at, '\n', text_bytes - at);
        char *expected_end = strchr(expected, '\n');
        int64_t n;
        size_t used = 0;
        CHECK(t, end && expected_end);
        n = zf_wordpiece_encode(v, text + at, (size_t)(end - text) - at, flags, ids, ROOM);
        CHECK(t, n <= ROOM);
        got[0] = 0;
        for (int64_t i = 0; i < n; i++)
            used += (size_t)sprintf(got + used, i ? " %d" : "%d", (int)ids[i]);
        *expected_end = 0;
        CHECK_TEXT(t, got, expected);
        expected = expected_end + 1;
        at = (size_t)(end - text) + 1;
    }
    CHECK(t, !*expected);
}

TEST_ONCE(tokenizer_difficult_uncased) { compare_ids(t, GOLDEN "ids-uncased.txt", true, 0); }

TEST_ONCE(tokenizer_difficult_cased) { compare_ids(t, GOLDEN "ids-cased.txt", false, 0); }

TEST_ONCE(tokenizer_difficult_special_tokens)
{
    compare_ids(t, GOLDEN "ids-special.txt", true, ZF_WORDPIECE_SPECIAL);
}

/* The option sets, counted as tests/golden/tokenizer/make.py does. */
enum { OPTION_SETS = 16 };
static zf_wordpiece_options option_set(int index)
{
    return (zf_wordpiece_options){.lower_case = index & 8 ? ZF_WORDPIECE_NO : ZF_WORDPIECE_YES,
                                  .strip_accents = index & 4 ? ZF_WORDPIECE_NO : ZF_WORDPIECE_YES,
                                  .chinese_chars = index & 2 ? ZF_WORDPIECE_NO : ZF_WORDPIECE_YES,
                                  .clean_text = index & 1 ? ZF_WORDPIECE_NO : ZF_WORDPIECE_YES};
}

typedef struct hash_state {
    uint64_t hash;
    bool first;
} hash_state;

static const uint64_t hash_start = 0xCBF29CE484222325u;

static unsigned short_hash(uint64_t hash) { return (unsigned)(hash ^ hash >> 32); }

static void hash_bytes(uint64_t *hash, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) *hash = (*hash ^ (unsigned char)text[i]) * 0x100000001B3u;
}

static void hash_word(void *user, const char *word, size_t bytes)
{
    hash_state *s = user;
    if (!s->first) hash_bytes(&s->hash, "\n", 1);
    hash_bytes(&s->hash, word, bytes);
    s->first = false;
}

/* Under the name of its options, so that a failure tells them. */
static void name_options(char out[80], int index)
{
    snprintf(out, 80, "lower %d, strip %d, chinese %d, clean %d", !(index & 8), !(index & 4),
             !(index & 2), !(index & 1));
}

TEST_ONCE(tokenizer_difficult_options)
{
    size_t text_bytes, bytes;
    char *text = read_file(t, GOLDEN "difficult.txt", &text_bytes);
    char *expected = read_file(t, GOLDEN "ids-options.txt", &bytes), got[160], wanted[160];
    zf_wordpiece *v[OPTION_SETS];
    CHECK(t, text && expected);
    for (int k = 0; k < OPTION_SETS; k++) {
        zf_wordpiece_options options = option_set(k);
        CHECK(t, (v[k] = zf_wordpiece_open(GOLDEN "vocab.txt", &options, NULL)));
        test_defer(t, free_vocab, v[k]);
    }
    for (size_t at = 0, line = 1; at < text_bytes; line++) {
        size_t n = (size_t)((char *)memchr(text + at, '\n', text_bytes - at) - text) - at;
        for (int k = 0; k < OPTION_SETS; k++) {
            enum { ROOM = 4096 };
            int32_t ids[ROOM];
            uint64_t hash = hash_start;
            int64_t count = zf_wordpiece_encode(v[k], text + at, n, 0, ids, ROOM);
            char about[80];
            CHECK(t, count <= ROOM);
            for (int64_t i = 0; i < count; i++) {
                snprintf(got, sizeof got, i ? " %d" : "%d", (int)ids[i]);
                hash_bytes(&hash, got, strlen(got));
            }
            name_options(about, k);
            snprintf(got, sizeof got, "line %zu: %s: %08x", line, about, short_hash(hash));
            snprintf(wanted, sizeof wanted, "line %zu: %s: %.8s", line, about, expected);
            CHECK_TEXT(t, got, wanted);
            expected += 9;
        }
        at += n + 1;
    }
    CHECK(t, !*expected);
}

/* The hash of what "xCy" becomes for all C of a block; the UTF-8 is made here, without the
 * tokenizer. */
static unsigned hash_block(uint32_t block, const zf_wordpiece_options *options)
{
    hash_state s = {hash_start, true};
    for (uint32_t c = block; c < block + 4096; c++) {
        char text[8] = "x";
        int n = 1;
        if (c >= 0xD800 && c < 0xE000) continue;
        if (c < 0x80) text[n++] = (char)c;
        if (c >= 0x80 && c < 0x800) text[n++] = (char)(0xC0 + c / 64);
        if (c >= 0x800 && c < 0x10000) text[n++] = (char)(0xE0 + c / 4096);
        if (c >= 0x10000) text[n++] = (char)(0xF0 + c / 262144);
        if (c >= 0x10000) text[n++] = (char)(0x80 + c / 4096 % 64);
        if (c >= 0x800) text[n++] = (char)(0x80 + c / 64 % 64);
        if (c >= 0x80) text[n++] = (char)(0x80 + c % 64);
        text[n++] = 'y';
        s.first = true;
        zf_wordpiece_words(text, (size_t)n, options, hash_word, &s);
        hash_bytes(&s.hash, "\n\n", 2);
    }
    return short_hash(s.hash);
}

TEST_ONCE(tokenizer_every_code_point)
{
    size_t bytes;
    char *expected = read_file(t, GOLDEN "codepoints.txt", &bytes), got[160], wanted[160];
    CHECK(t, expected);
    for (uint32_t block = 0; block < 0x110000; block += 4096) {
        /* of the planes that Unicode leaves empty, every eighth block */
        const bool all = block < 0x33000 || block == 0xe0000 || block / 4096 % 8 == 0;
        expected += 6;
        if (!all) expected += 9 * OPTION_SETS;
        for (int k = 0; k < OPTION_SETS && all; k++) {
            zf_wordpiece_options options = option_set(k);
            char about[80];
            name_options(about, k);
            snprintf(got, sizeof got, "%06x: %s: %08x", (unsigned)block, about,
                     hash_block(block, &options));
            snprintf(wanted, sizeof wanted, "%06x: %s: %.8s", (unsigned)block, about, expected + 1);
            CHECK_TEXT(t, got, wanted);
            expected += 9;
        }
        expected++;
    }
    CHECK(t, !*expected);
}

/* -------------------------------------------------------------------------------------- folders */

static const char *const folder_names[] = {"uncased", "cased", "accents", "capitals", "joined",
                                           "added",   "alone", "any",     "other",    "controls",
                                           "plain",   "lines", "older"};
enum { FOLDERS = sizeof folder_names / sizeof folder_names[0] };

/* Encodes the probes and compares with what the folder's golden file says. */
static bool encodes_probes(test *t, const zf_wordpiece *v, const char *name)
{
    char path[200], got[2048], *text, *expected, *line;
    size_t bytes = 0, expected_bytes = 0;
    bool good;
    snprintf(path, sizeof path, GOLDEN "folders/%s/ids.txt", name);
    text = load_whole(GOLDEN "folders/probes.txt", &bytes);
    line = expected = load_whole(path, &expected_bytes);
    good = text && expected;
    for (size_t at = 0; good && at < bytes;) {
        size_t n = (size_t)((char *)memchr(text + at, '\n', bytes - at) - text) - at, used = 0;
        char *end = strchr(line, '\n');
        int32_t ids[200];
        int64_t count = zf_wordpiece_encode(v, text + at, n, ZF_WORDPIECE_SPECIAL, ids, 200);
        got[0] = 0;
        for (int64_t i = 0; i < count && count <= 200; i++)
            used += (size_t)sprintf(got + used, i ? " %d" : "%d", (int)ids[i]);
        if (end) *end = 0;
        good = end && !strcmp(got, line);
        if (!good) test_fail(t, __FILE__, __LINE__, line, got);
        line = end + 1;
        at += n + 1;
    }
    good = good && !*line;
    free(text);
    free(expected);
    if (!good) test_fail(t, __FILE__, __LINE__, name, "");
    return good;
}

TEST_ONCE(tokenizer_reads_folders)
{
    for (int k = 0; k < FOLDERS; k++) {
        char path[200];
        zf_error why = {ZF_OK, ""};
        zf_wordpiece *v;
        snprintf(path, sizeof path, GOLDEN "folders/%s", folder_names[k]);
        v = zf_wordpiece_open(path, NULL, &why);
        CHECK_TEXT(t, why.text, "");
        CHECK(t, v);
        test_defer(t, free_vocab, v);
        if (!encodes_probes(t, v, folder_names[k])) return;
    }
}

/* The files that a checkpoint of BERT or GPT keeps make the same tokenizer again; so does an
 * exported folder, whose vocab.txt is written again. */
TEST_ONCE(tokenizer_survives_a_folder)
{
    for (int k = 0; k < 3 * FOLDERS; k++) {
        char path[400];
        zf_error why = {ZF_OK, ""};
        const char *folder = test_path("folder"), *name = folder_names[k / 3];
        zf_folder_frame frame = k % 3 ? ZF_FOLDER_BERT : ZF_FOLDER_GPT;
        zf_error error = {ZF_OK, ""};
        zf_folder_tokenizer kept;
        zf_wordpiece *v, *again;
        bool good = true;
        snprintf(path, sizeof path, GOLDEN "folders/%s", name);
        CHECK(t, (v = zf_wordpiece_open(path, NULL, &why)));
        CHECK(t, zf_folder_make(folder, &error));
        if (k % 3 == 2) {
            good = zf_folder_put_tokenizer(folder, v, frame, 512, &error);
        } else {
            CHECK(t, zf_folder_tokenizer_open(&kept, v, frame, 512, &error));
            for (int i = 0; i < 2; i++) {
                snprintf(path, sizeof path, "%s/%s", folder, kept.files[i].name);
                good = good && write_file(path, kept.files[i].data, kept.files[i].bytes);
            }
            zf_folder_tokenizer_close(&kept);
        }
        CHECK_TEXT(t, error.text, "");
        CHECK(t, good);
        again = zf_wordpiece_open(folder, NULL, &why);
        CHECK_TEXT(t, why.text, "");
        CHECK(t, again);
        CHECK(t, zf_wordpiece_digest(v) == zf_wordpiece_digest(again));
        if (!encodes_probes(t, again, name)) return;
        snprintf(path, sizeof path, "%s/tokenizer.json", folder);
        remove(path);
        zf_wordpiece_free(v);
        zf_wordpiece_free(again);
    }
}

/* What the files must tell transformers, since a BertTokenizer reads nothing else. */
TEST_ONCE(tokenizer_config_says)
{
    static const struct {
        const char *folder, *lower, *strip, *chinese, *class;
    } cases[] = {{"uncased", "true", "true", "true", "BertTokenizer"},
                 {"cased", "false", "false", "true", "BertTokenizer"},
                 {"accents", "true", "false", "true", "BertTokenizer"},
                 {"capitals", "false", "true", "true", "BertTokenizer"},
                 {"joined", "true", "true", "false", "BertTokenizer"},
                 {"any", "false", "false", "true", "BertTokenizer"},
                 {"controls", "true", "false", "true", "PreTrainedTokenizerFast"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char path[200], expected[512], got[512];
        zf_error error = {ZF_OK, ""};
        zf_folder_tokenizer kept;
        zf_wordpiece *v;
        snprintf(path, sizeof path, GOLDEN "folders/%s", cases[k].folder);
        CHECK(t, (v = zf_wordpiece_open(path, NULL, NULL)));
        test_defer(t, free_vocab, v);
        CHECK(t, zf_folder_tokenizer_open(&kept, v, ZF_FOLDER_BERT, 512, &error));
        CHECK_TEXT(t, kept.files[1].name, "tokenizer_config.json");
        snprintf(expected, sizeof expected,
                 "{\n  \"tokenizer_class\": \"%s\",\n  \"do_lower_case\": %s,\n"
                 "  \"strip_accents\": %s,\n  \"tokenize_chinese_chars\": %s,\n",
                 cases[k].class, cases[k].lower, cases[k].strip, cases[k].chinese);
        snprintf(got, sizeof got, "%.*s", (int)strlen(expected), (const char *)kept.files[1].data);
        zf_folder_tokenizer_close(&kept);
        CHECK_TEXT(t, got, expected);
    }
}

TEST_ONCE(tokenizer_options_of_files_and_callers)
{
    static const zf_wordpiece_options joined = {.chinese_chars = ZF_WORDPIECE_NO},
                                      keeps = {.strip_accents = ZF_WORDPIECE_NO};
    zf_error why = {ZF_OK, ""};
    zf_wordpiece *v;
    zf_wordpiece_options o;
    CHECK(t,
          !zf_wordpiece_open(GOLDEN "folders/uncased", zf_wordpiece_cased(true), &why));
    CHECK_TEXT(t, why.text,
               GOLDEN "folders/uncased: do_lower_case is true there, but false was asked for");
    CHECK(t, !zf_wordpiece_open(GOLDEN "folders/capitals", &keeps, &why));
    CHECK_TEXT(t, why.text,
               GOLDEN "folders/capitals: strip_accents is true there, but false was asked for");
    CHECK(t, !zf_wordpiece_open(GOLDEN "folders/cased/tokenizer.json", &joined, &why));
    CHECK_TEXT(t, why.text,
               GOLDEN "folders/cased/tokenizer.json: tokenize_chinese_chars is true there, "
                      "but false was asked for");
    /* of a file alone: that file; of a vocab.txt the caller's */
    CHECK(t, (v = zf_wordpiece_open(GOLDEN "folders/other/tokenizer.json", NULL, NULL)));
    test_defer(t, free_vocab, v);
    CHECK(t, zf_wordpiece_options_of(v).lower_case == ZF_WORDPIECE_NO);
    CHECK(t, (v = zf_wordpiece_open(GOLDEN "folders/lines", &keeps, NULL)));
    test_defer(t, free_vocab, v);
    o = zf_wordpiece_options_of(v);
    CHECK(t, o.lower_case == ZF_WORDPIECE_YES && o.strip_accents == ZF_WORDPIECE_NO &&
                 o.chinese_chars == ZF_WORDPIECE_YES);
    CHECK(t, (v = zf_wordpiece_open(GOLDEN "folders/joined", &joined, NULL)));
    test_defer(t, free_vocab, v);
}

/* Every token, id and option counts. */
TEST_ONCE(tokenizer_digests)
{
    static const char *const texts[] = {FIVE "a\nb\n",   FIVE "b\na\n",       FIVE "a\nc\n",
                                        FIVE "a\n\nb\n", FIVE "a\n\n\n\nb\n", FIVE "ab\n",
                                        FIVE "a\n"};
    enum { TEXTS = sizeof texts / sizeof texts[0] };
    uint64_t digests[TEXTS + OPTION_SETS];
    int n = 0;
    for (int k = 0; k < TEXTS + OPTION_SETS; k++) {
        zf_wordpiece_options o = option_set(k < TEXTS ? 0 : k - TEXTS);
        const char *text = texts[k < TEXTS ? k : 0];
        zf_wordpiece *v = zf_wordpiece_parse(text, strlen(text), "v", &o, NULL);
        CHECK(t, v);
        digests[n++] = zf_wordpiece_digest(v);
        zf_wordpiece_free(v);
    }
    CHECK(t, digests[0] == digests[TEXTS]);
    for (int k = 1; k < n; k++)
        for (int i = k == TEXTS ? k : 0; i < k; i++) CHECK(t, digests[i] != digests[k]);
}

/* --------------------------------------------------------------------------------------- encode */

static zf_wordpiece *small_vocab(test *t, const char *text, bool lower_case)
{
    zf_wordpiece *v =
        zf_wordpiece_parse(text, strlen(text), "small", zf_wordpiece_cased(!lower_case), NULL);
    if (v) test_defer(t, free_vocab, v);
    return v;
}

TEST_ONCE(tokenizer_looks_up)
{
    zf_wordpiece *v = small_vocab(t, FIVE "un\r\n##aff\n##able\n##\n#", true);
    CHECK(t, v && zf_wordpiece_size(v) == 10);
    CHECK_TEXT(t, zf_wordpiece_token(v, 5), "un");
    CHECK_TEXT(t, zf_wordpiece_token(v, 6), "##aff");
    CHECK_TEXT(t, zf_wordpiece_token(v, 9), "#");
    CHECK(t, !zf_wordpiece_token(v, -1) && !zf_wordpiece_token(v, 10));
    for (int32_t id = 0; id < 10; id++)
        CHECK(t, zf_wordpiece_id(v, zf_wordpiece_token(v, id)) == id);
    CHECK(t, zf_wordpiece_id(v, "aff") == -1 && zf_wordpiece_id(v, "##un") == -1);
    CHECK(t, zf_wordpiece_id(v, "") == -1);
    CHECK(t, zf_wordpiece_id(v, zf_wordpiece_special_token(ZF_WORDPIECE_MASK)) == 4);
    CHECK(t, zf_wordpiece_starts_word(v, 5) && !zf_wordpiece_starts_word(v, 6));
    CHECK(t, zf_wordpiece_starts_word(v, 8) && zf_wordpiece_starts_word(v, ZF_WORDPIECE_MASK));
    CHECK(t, !zf_wordpiece_starts_word(v, -1) && !zf_wordpiece_starts_word(v, 10));
}

TEST_ONCE(tokenizer_counts_beyond_cap)
{
    static const char text[] = "unaffable un [MASK] unable unx";
    zf_wordpiece *v = small_vocab(t, FIVE "un\n##aff\n##able\n[\n]\nmask\n", true);
    int32_t ids[16], few[4] = {-7, -7, -7, -7};
    static const int32_t plain[] = {5, 6, 7, 5, 8, 10, 9, 5, 7, 1};
    static const int32_t special[] = {5, 6, 7, 5, 4, 5, 7, 1};
    CHECK(t, v);
    CHECK(t, zf_wordpiece_encode(v, text, strlen(text), 0, ids, 16) == 10);
    CHECK(t, !memcmp(ids, plain, sizeof plain));
    CHECK(t, zf_wordpiece_encode(v, text, strlen(text), ZF_WORDPIECE_SPECIAL, ids, 16) == 8);
    CHECK(t, !memcmp(ids, special, sizeof special));
    CHECK(t, zf_wordpiece_encode(v, text, strlen(text), ZF_WORDPIECE_SPECIAL, few, 2) == 8);
    CHECK(t, few[0] == 5 && few[1] == 6 && few[2] == -7 && few[3] == -7);
    CHECK(t, zf_wordpiece_encode(v, text, strlen(text), 0, NULL, 0) == 10);
    CHECK(t, zf_wordpiece_encode(v, NULL, 0, 0, NULL, 0) == 0);
}

/* Lines as the `tokenizers` package takes them: without the spaces at their end; of equal ones the
 * last; an empty one is an empty token, which no text has. */
TEST_ONCE(tokenizer_reads_odd_lines)
{
    static const struct {
        const char *token;
        int32_t id;
    } tokens[] = {{"the", 7}, {"and", 8},      {"of", 9},     {"##", 12},      {"last", 13},
                  {"q", 14},  {"\u3000x", 11}, {"r\x1F", 15}, {"s\uFEFF", 16}, {"", 17}};
    static const int32_t expected[] = {7, 8, 9, 13};
    zf_wordpiece *v = small_vocab(t,
                                  FIVE "\nthe\nthe\nand \nof\t\r\n\n\u3000x\u3000\n##\nlast\x0B\n"
                                       "q\xC2\x85\nr\x1F\ns\uFEFF\n\n",
                                  true);
    int32_t ids[8];
    CHECK(t, v && zf_wordpiece_size(v) == 18);
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        CHECK(t, zf_wordpiece_id(v, tokens[i].token) == tokens[i].id);
        CHECK_TEXT(t, zf_wordpiece_token(v, tokens[i].id), tokens[i].token);
    }
    for (int32_t id = 5; id < 7; id++) {
        CHECK_TEXT(t, zf_wordpiece_token(v, id), "");
        CHECK(t, !zf_wordpiece_starts_word(v, id));
    }
    CHECK_TEXT(t, zf_wordpiece_token(v, 10), "");
    CHECK(t, zf_wordpiece_encode(v, "the and of last", 15, 0, ids, 8) == 4);
    CHECK(t, !memcmp(ids, expected, sizeof expected));
}

/* Where tokenizer_config.json has no added tokens, those of added_tokens.json count, as
 * transformers reads them (ids by its BertTokenizer 5.23). */
TEST_ONCE(vocab_added_tokens_of_their_own_file)
{
    static const char *const files[][2] = {
        {"vocab.txt", FIVE "a\nb\n##c\n"},
        {"tokenizer_config.json",
         "{\"do_lower_case\": true, \"additional_special_tokens\": [\"<s1>\"]}"},
        {"added_tokens.json", "{\"<s1>\": 8}"}};
    static const char plain[] = "{\"<s1>\": 8, \"New\": 9}";
    static const int32_t expected[] = {5, 8, 6, 6, 7};
    const char *folder = test_path("added-tokens");
    char path[600];
    zf_error why = {ZF_OK, ""};
    zf_error error = {ZF_OK, ""};
    int32_t ids[8];
    zf_wordpiece *v;
    CHECK(t, zf_folder_make(folder, &error));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
        CHECK(t, write_file(path, files[i][1], strlen(files[i][1])));
    }
    v = zf_wordpiece_open(folder, NULL, &why);
    CHECK(t, v);
    test_defer(t, free_vocab, v);
    CHECK(t, zf_wordpiece_size(v) == 9 && zf_wordpiece_is_added(v, 8));
    CHECK(t, zf_wordpiece_encode(v, "a <s1>b BC", 10, 0, ids, 8) == 5);
    CHECK(t, !memcmp(ids, expected, sizeof expected));
    CHECK(t, write_file(path, plain, sizeof plain - 1));
    CHECK(t, !zf_wordpiece_open(folder, NULL, &why));
    CHECK_TEXT(t, why.text + strlen(path),
               ":1:20: New is no special token of tokenizer_config.json "
               "(additional_special_tokens); added tokens must be special");
}

/* What a save writes is what was read, byte for byte. */
TEST_ONCE(vocab_keeps_its_file)
{
    static const char text[] = FIVE "the \r\nthe\n\n";
    const char *path = test_path("vocab.txt");
    zf_wordpiece_options o;
    zf_wordpiece_file file;
    zf_wordpiece *v;
    CHECK(t, write_file(path, text, sizeof text - 1));
    CHECK(t, (v = zf_wordpiece_open(path, zf_wordpiece_cased(true), NULL)));
    test_defer(t, free_vocab, v);
    CHECK(t, write_file(path, "another", 7));
    file = zf_wordpiece_source(v);
    CHECK_TEXT(t, file.name, "vocab.txt");
    CHECK(t, file.bytes == sizeof text - 1 && !memcmp(file.data, text, file.bytes));
    o = zf_wordpiece_options_of(v);
    CHECK(t, o.lower_case == ZF_WORDPIECE_NO && o.strip_accents == ZF_WORDPIECE_NO);
    CHECK(t, o.chinese_chars == ZF_WORDPIECE_YES && o.clean_text == ZF_WORDPIECE_YES);
}

/* ------------------------------------------------------------------------------------- mistakes */

TEST_ONCE(vocab_mistakes)
{
    static char longest[1100] = FIVE, zero[] = FIVE "a\0b\n";
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "v.txt: empty file: a vocabulary has one token per line"},
        {"\n", "v.txt: no [PAD]: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there"},
        {"a\nb\n", "v.txt: no [PAD]: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there"},
        {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[mask]\n",
         "v.txt: no [MASK]: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there"},
        {FIVE "ab\xC3\n", "v.txt:6: invalid UTF-8 at byte 3 of the line"},
        {FIVE "\xC0\xAF\n", "v.txt:6: invalid UTF-8 at byte 1 of the line"},
        {FIVE "x\xED\xA0\x80\n", "v.txt:6: invalid UTF-8 at byte 2 of the line"},
        {FIVE "x\xF4\x90\x80\x80\n", "v.txt:6: invalid UTF-8 at byte 2 of the line"},
        {"\xEF\xBB\xBF" FIVE, "v.txt:1: a byte order mark, which would be part of the first token"},
    };
    zf_error why = {ZF_OK, ""};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text;
        CHECK(t, !zf_wordpiece_parse(text, strlen(text), "v.txt", NULL, &why));
        CHECK_TEXT(t, why.text, cases[i].message);
    }
    CHECK(t, !zf_wordpiece_parse(zero, sizeof zero - 1, "v.txt", NULL, &why));
    CHECK_TEXT(t, why.text, "v.txt:6: a zero at byte 2 of the line");
    memset(longest + strlen(FIVE), 'a', 1001);
    CHECK(t, !zf_wordpiece_parse(longest, strlen(FIVE) + 1001, "v.txt", NULL, &why));
    CHECK_TEXT(t, why.text, "v.txt:6: a token of 1001 bytes: it may have at most 1000");
    CHECK(t, small_vocab(t, FIVE "the\r\n##the", true));
    longest[strlen(FIVE) + 1000] = 0;
    CHECK(t, small_vocab(t, longest, true));
    CHECK(t, !zf_wordpiece_open("no/such/vocab.txt", NULL, &why));
    CHECK_TEXT(t, why.text, "no/such/vocab.txt: No such file or directory");
    CHECK(t, !zf_wordpiece_open("tests", NULL, &why));
    CHECK_TEXT(t, why.text, "tests: a folder without tokenizer.json and vocab.txt");
    zf_wordpiece_free(NULL);
}

/* A tokenizer.json that is right, and one thing in it replaced. */
static void spoil(char out[4096], const char *what, const char *by)
{
    static const char right[] =
        "{\"added_tokens\": [{\"id\": 4, \"content\": \"[MASK]\", \"single_word\": false,\n"
        " \"normalized\": false}, {\"id\": 9, \"content\": \"<x>\"}],\n"
        "\"normalizer\": {\"type\": \"BertNormalizer\", \"lowercase\": true},\n"
        "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},\n"
        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\",\n"
        "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100,\n"
        "\"vocab\": {\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, \"[SEP]\": 3, \"[MASK]\": 4,\n"
        "\"a\": 5, \"##b\": 7}}}";
    const char *at = strstr(right, what);
    snprintf(out, 4096, "%.*s%s%s", (int)(at - right), right, by, at + strlen(what));
}

TEST_ONCE(tokenizer_json_mistakes)
{
    static const struct {
        const char *what, *by, *message;
    } cases[] = {
        {"\"added_tokens\": [{", "\"added_tokens\": [{,",
         ":1:20: expected a key in double quotes or '}', found ','"},
        {"WordPiece", "BPE", ":5:19: model.type must be \"WordPiece\", not \"BPE\""},
        {"\"unk_token\": \"[UNK]\"", "\"unk_token\": \"<unk>\"",
         ":5:45: model.unk_token must be \"[UNK]\", not \"<unk>\""},
        {"\"##\"", "\"@@\"", ":6:30: model.continuing_subword_prefix must be \"##\", not \"@@\""},
        {": 100", ": 50", ":6:64: model.max_input_chars_per_word must be 100, not 50"},
        {"BertNormalizer", "NFKC",
         ":3:24: normalizer.type must be \"BertNormalizer\", not \"NFKC\""},
        {"\"lowercase\": true", "\"lowercase\": 1",
         ":3:55: normalizer.lowercase must be true or false, not 1"},
        {"{\"type\": \"BertPreTokenizer\"}", "null",
         ":4:18: pre_tokenizer must be a BertPreTokenizer, not null"},
        {"BertPreTokenizer", "Whitespace",
         ":4:27: pre_tokenizer.type must be \"BertPreTokenizer\", not \"Whitespace\""},
        {"\"normalized\": false", "\"normalized\": true",
         ":2:16: added_tokens[0].normalized must be false, not true"},
        {"\"single_word\": false", "\"single_word\": true",
         ":1:65: added_tokens[0].single_word must be false, not true"},
        {"\"<x>\"", "\"\"", ":2:45: added_tokens[1].content must be a text, not \"\""},
        {"\"a\": 5", "\"a\": -5",
         ":8:6: model.vocab.a must be an integer from 0 to 16777215, not -5"},
        {"\"a\": 5", "\"a\": 2000000000",
         ":8:6: model.vocab.a must be an integer from 0 to 16777215, not 2000000000"},
        {"\"a\"", "\"\\u0000\"", ":8:11: model.vocab.\"\\u0000\" has a zero in its token"},
        {"\"a\": 5", "\"a\": 7", ": the tokens \"a\" and \"##b\" both have the id 7"},
        {"\"id\": 4", "\"id\": 5", ": the token \"[MASK]\" has the ids 4 and 5"},
        {", \"[MASK]\": 4", "", NULL},
        {"\"[SEP]\": 3, ", "", ": no [SEP]: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there"},
    };
    const char *path = test_path("tokenizer.json");
    char text[4096], expected[512];
    zf_error why = {ZF_OK, ""};
    zf_wordpiece *v;
    spoil(text, "100", "100");
    CHECK(t, write_file(path, text, strlen(text)));
    v = zf_wordpiece_open(path, NULL, &why);
    CHECK_TEXT(t, why.text, "");
    CHECK(t, v && zf_wordpiece_size(v) == 10);
    test_defer(t, free_vocab, v);
    CHECK_TEXT(t, zf_wordpiece_token(v, 6), "");
    CHECK_TEXT(t, zf_wordpiece_token(v, 9), "<x>");
    CHECK(t, zf_wordpiece_is_added(v, 9) && !zf_wordpiece_is_added(v, 5) &&
                 zf_wordpiece_is_added(v, 4));
    CHECK(t, zf_wordpiece_is_piece(v, 4) && zf_wordpiece_is_piece(v, 5) &&
                 !zf_wordpiece_is_piece(v, 9));
    CHECK(t, zf_wordpiece_is_special(v, 4) && !zf_wordpiece_is_special(v, 9));
    CHECK(t, zf_wordpiece_id(v, "<x>") == 9);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spoil(text, cases[i].what, cases[i].by);
        CHECK(t, write_file(path, text, strlen(text)));
        why = (zf_error){ZF_OK, ""};
        v = zf_wordpiece_open(path, NULL, &why);
        zf_wordpiece_free(v);
        if (!cases[i].message) continue;
        CHECK(t, !v);
        snprintf(expected, sizeof expected, "%s%s", path, cases[i].message);
        CHECK_TEXT(t, why.text, expected);
    }
}

/* ------------------------------------------------------------------------------------- training */

/* The corpus of make.py, words of syllables; every eighth is followed by `blank`. Returns its
 * bytes. */
static size_t pseudo_corpus(char *out, const char *blank)
{
    static const char *const syllables[] = {"ka", "to", "mi",  "Re", "su", "no", "é", "la",
                                            "po", "in", "ter", "ra", "ch", "un", "st"};
    uint64_t state = 1;
    size_t n = 0;
#define DRAW(of)                                                                                   \
    (state = state * 6364136223846793005u + 1442695040888963407u, (unsigned)((state >> 33) % (of)))
    for (int line = 0; line < 2000; line++)
        for (int word = 0; word < 8; word++) {
            unsigned a = DRAW(5), b = DRAW(5), length = 1 + (a < b ? a : b);
            while (length--) {
                a = DRAW(15);
                b = DRAW(15);
                n += (size_t)sprintf(out + n, "%s", syllables[a < b ? a : b]);
            }
            n += (size_t)sprintf(out + n, "%s", word < 7 ? " " : blank);
        }
#undef DRAW
    return n;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

TEST_ONCE(vocab_trains_as_the_reference)
{
    size_t bytes, again_bytes, corpus_bytes;
    char *corpus = malloc(1 << 20), *trained, *again, *expected, *lines[512];
    zf_error why = {ZF_OK, ""};
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    int n = 0;
    zf_wordpiece *v;
    CHECK(t, corpus);
    test_defer(t, free, corpus);
    corpus_bytes = pseudo_corpus(corpus, ".\n");
    CHECK(t, write_file(path, corpus, corpus_bytes));
    CHECK(t, zf_wordpiece_train(path, 400, NULL, out, &why) == 400);
    CHECK(t, (v = zf_wordpiece_open(out, NULL, &why)));
    test_defer(t, free_vocab, v);
    CHECK(t, zf_wordpiece_size(v) == 400);
    for (int32_t id = 0; id < ZF_WORDPIECE_SPECIAL_COUNT; id++)
        CHECK_TEXT(t, zf_wordpiece_token(v, id), zf_wordpiece_special_token(id));
    CHECK_TEXT(t, zf_wordpiece_token(v, 5), ".");
    CHECK_TEXT(t, zf_wordpiece_token(v, 6), "a");

    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK(t, zf_wordpiece_train(path, 400, NULL, out, &why) == 400);
    CHECK(t, (again = read_file(t, out, &again_bytes)));
    CHECK(t, bytes == again_bytes && !memcmp(trained, again, bytes));

    CHECK(t, (expected = read_file(t, GOLDEN "trained.txt", &bytes)));
    for (char *line = strtok(trained, "\n"); line; line = strtok(NULL, "\n")) lines[n++] = line;
    CHECK(t, n == 400);
    qsort(lines, 400, sizeof lines[0], by_text);
    for (int i = 0; i < n; i++) {
        char *line = strtok(i ? NULL : expected, "\n");
        CHECK(t, line);
        CHECK_TEXT(t, lines[i], line);
    }
    CHECK(t, !strtok(NULL, "\n"));
}

TEST_ONCE(vocab_merges_by_frequency)
{
    /* b ##a 7 times, a ##b 5, ##b ##a 3, ##a ##b 1; after these two ab ##a 3, ba ##b 1 */
    static const char corpus[] = "ba ba ba ba ab ab aba aba aba bab z\nba ba";
    static const char expected[] = FIVE "a\nb\nz\n##a\n##b\nba\nab\naba\n";
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    size_t bytes;
    char *trained;
    zf_error why = {ZF_OK, ""};
    CHECK(t, write_file(path, corpus, strlen(corpus)));
    CHECK(t, zf_wordpiece_train(path, 100, NULL, out, &why) == 13);
    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK_TEXT(t, trained, expected);
    CHECK(t, zf_wordpiece_train(path, 11, NULL, out, &why) == 11);
    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK(t, bytes < strlen(expected) && !memcmp(trained, expected, bytes));
}

/* The corpus is read in blocks; where they end must not show, also where blanks are rare. */
TEST_ONCE(vocab_trains_over_blocks)
{
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    enum { COPIES = 24, LEAST = 3 << 19 };
    char *corpus = malloc(4 << 20), *lines, *blanks;
    zf_error why = {ZF_OK, ""};
    size_t bytes, lines_bytes, blanks_bytes;
    CHECK(t, corpus);
    test_defer(t, free, corpus);
    bytes = pseudo_corpus(corpus, ".\n");
    CHECK(t, bytes * COPIES < 4 << 20 && bytes * COPIES > LEAST);
    for (int i = 1; i < COPIES; i++) memcpy(corpus + (size_t)i * bytes, corpus, bytes);
    CHECK(t, write_file(path, corpus, bytes * COPIES));
    CHECK(t, zf_wordpiece_train(path, 500, NULL, out, &why) == 500);
    CHECK(t, (lines = read_file(t, out, &lines_bytes)));
    for (size_t i = 0; i < bytes * COPIES; i++)
        if (corpus[i] == '\n' || corpus[i] == ' ') corpus[i] = '\t';
    CHECK(t, write_file(path, corpus, bytes * COPIES));
    CHECK(t, zf_wordpiece_train(path, 500, NULL, out, &why) == 500);
    CHECK(t, (blanks = read_file(t, out, &blanks_bytes)));
    CHECK(t, lines_bytes == blanks_bytes && !memcmp(lines, blanks, lines_bytes));
}

TEST_ONCE(vocab_keeps_the_frequent_characters)
{
    /* 1200 ideographs, the first 1000 of them twice */
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char corpus[16384];
    zf_error why = {ZF_OK, ""};
    size_t n = 0;
    zf_wordpiece *v;
    for (int k = 0; k < 1200 + 1000; k++) {
        int c = 0x5000 + k % 1200;
        corpus[n++] = (char)(0xE0 + c / 4096);
        corpus[n++] = (char)(0x80 + c / 64 % 64);
        corpus[n++] = (char)(0x80 + c % 64);
    }
    CHECK(t, write_file(path, corpus, n));
    CHECK(t, zf_wordpiece_train(path, 5000, NULL, out, &why) == 1005);
    CHECK(t, (v = zf_wordpiece_open(out, NULL, &why)));
    test_defer(t, free_vocab, v);
    CHECK_TEXT(t, zf_wordpiece_token(v, 5), "\xE5\x80\x80");
    CHECK_TEXT(t, zf_wordpiece_token(v, 1004), "\xE5\x8F\xA7");
}

/* A file without an end, or one that would block, is refused at once. */
TEST_ONCE(vocab_is_a_regular_file)
{
    static const char reason[] = "a pipe or a device; a regular file is needed";
    const char *pipe = test_path("pipe.txt"), *huge = test_path("huge.txt");
    char expected[512];
    zf_error why = {ZF_OK, ""};
    FILE *file;
    remove(pipe);
    CHECK(t, !mkfifo(pipe, 0600));
    snprintf(expected, sizeof expected, "%s: %s", pipe, reason);
    CHECK(t, !zf_wordpiece_open(pipe, NULL, &why));
    CHECK_TEXT(t, why.text, expected);
    CHECK(t, zf_wordpiece_train(pipe, 100, NULL, huge, &why) == -1);
    CHECK_TEXT(t, why.text, expected);
    snprintf(expected, sizeof expected, "/dev/zero: %s", reason);
    CHECK(t, !zf_wordpiece_open("/dev/zero", NULL, &why));
    CHECK_TEXT(t, why.text, expected);
    CHECK(t, zf_wordpiece_train("/dev/zero", 100, NULL, huge, &why) == -1);
    CHECK_TEXT(t, why.text, expected);
    CHECK(t, (file = fopen(huge, "wb")) && !fclose(file));
    if (!truncate(huge, (off_t)1 << 40)) {
        CHECK(t, !zf_wordpiece_open(huge, NULL, &why));
        snprintf(expected, sizeof expected, "%s: too large for a vocabulary", huge);
        CHECK_TEXT(t, why.text, expected);
    }
    remove(huge);
}

TEST_ONCE(vocab_training_mistakes)
{
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char expected[512];
    zf_error why = {ZF_OK, ""};
    FILE *f;
    CHECK(t, zf_wordpiece_train("no/such/corpus.txt", 100, NULL, out, &why) == -1);
    CHECK_TEXT(t, why.text, "no/such/corpus.txt: No such file or directory");
    CHECK(t, write_file(path, " \n\xFF\n", 4));
    CHECK(t, zf_wordpiece_train(path, 100, NULL, out, &why) == -1);
    snprintf(expected, sizeof expected, "%s: no words in it", path);
    CHECK_TEXT(t, why.text, expected);
    CHECK(t, write_file(path, "ab cd ab\n", 9));
    CHECK(t, zf_wordpiece_train(path, 10, NULL, out, &why) == -1);
    snprintf(expected, sizeof expected, "%s: 10 tokens are too few: its characters alone need 11",
             path);
    CHECK_TEXT(t, why.text, expected);
    CHECK(t, zf_wordpiece_train(path, -1, NULL, out, &why) == -1);
    CHECK(t, zf_wordpiece_train(path, 11, NULL, out, &why) == 11);
    CHECK(t, zf_wordpiece_train(path, 12, NULL, "no/such/vocab.txt", &why) == -1);
    CHECK_TEXT(t, why.text, "cannot create no/such/vocab.txt.zf-new: No such file or directory");
    CHECK(t, zf_wordpiece_train(path, 12, NULL, "tests", &why) == -1);
    CHECK_TEXT(t, why.text, "cannot replace tests: it is not a regular file");
    f = fopen("tests.zf-new", "rb");
    if (f) fclose(f);
    CHECK(t, !f);
}

/* -------------------------------------------------------------------------------- out of memory */

TEST_ONCE(vocab_out_of_memory)
{
    static const char vocab[] = FIVE "a\n##b\n";
    static char corpus[1 << 20];
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char expected[512];
    zf_error why = {ZF_OK, ""};
    zf_wordpiece *v;
    size_t bytes = pseudo_corpus(corpus, ".\n");
    snprintf(expected, sizeof expected, "%s: out of memory", path);
    CHECK(t, write_file(path, vocab, sizeof vocab - 1));
    live = 0; /* of tests that a refusal has ended */
    for (long k = 0;; k++) {
        refuse_at = k, allocations = 0;
        v = zf_wordpiece_open(path, NULL, &why);
        if (v) zf_wordpiece_free(v);
        CHECK(t, !live);
        if (v) break;
        CHECK_TEXT(t, why.text, expected);
    }
    CHECK(t, refuse_at == 8);
    for (long k = 0;; k++) {
        refuse_at = k, allocations = 0;
        v = zf_wordpiece_parse(vocab, sizeof vocab - 1, path, NULL, &why);
        if (v) zf_wordpiece_free(v);
        CHECK(t, !live);
        if (v) break;
        CHECK_TEXT(t, why.text, expected);
    }
    CHECK(t, refuse_at == 7);
    CHECK(t, write_file(path, corpus, bytes / 50));
    for (long k = 0;; k++) {
        int32_t n;
        refuse_at = k, allocations = 0;
        n = zf_wordpiece_train(path, 60, NULL, out, &why);
        CHECK(t, !live);
        if (n > 0) {
            CHECK(t, n == 60 && k > 100);
            break;
        }
        if (strncmp(why.text, out, strlen(out))) CHECK_TEXT(t, why.text, expected);
    }
    refuse_at = -1;
}
