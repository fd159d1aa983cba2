/* The BERT tokenizer against ids of the `tokenizers` package (tests/golden/tokenizer/make.py), its
 * messages, the training of vocabularies, and all of it when memory runs out. */
#include "test.h"

#include <errno.h>
#include <stdio.h>

/* The sources once more, under other names, over an allocator that refuses request `refuse_at`. */
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

#define malloc                 refusing_malloc
#define calloc                 refusing_calloc
#define realloc                refusing_realloc
#define free                   counting_free
#define bert_special_tokens    refusing_special_tokens
#define bert_vocab_load        refusing_vocab_load
#define bert_vocab_parse       refusing_vocab_parse
#define bert_vocab_free        refusing_vocab_free
#define bert_vocab_size        refusing_vocab_size
#define bert_vocab_token       refusing_vocab_token
#define bert_vocab_id          refusing_vocab_id
#define bert_vocab_starts_word refusing_vocab_starts_word
#define bert_encode            refusing_encode
#define bert_words             refusing_words
#define bert_vocab_train       refusing_vocab_train
#define bert_vocab_new         refusing_vocab_new
#define bert_vocab_options     refusing_vocab_options
#define bert_vocab_source      refusing_vocab_source
#define bert_cased_options     refusing_cased_options
#define bert_tokenizer_resolve refusing_tokenizer_resolve
#define bert_decode            refusing_decode
#define bert_is_space          refusing_is_space
#include "../examples/bert/tokenizer.c"
#include "../examples/bert/vocabfile.c"
#include "../examples/bert/vocab.c"
#undef malloc
#undef calloc
#undef realloc
#undef free

#define GOLDEN "tests/golden/tokenizer/"

/* The whole file, terminated; freed with the test. NULL when it cannot be read. */
static char *read_file(test *t, const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 22);
    if (text) test_defer(t, free, text);
    *bytes = f && text ? fread(text, 1, (1 << 22) - 1, f) : 0;
    if (f) fclose(f);
    if (!f || !text) return NULL;
    text[*bytes] = 0;
    return text;
}

static bool write_file(const char *path, const char *text, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text, 1, bytes, f) == bytes;
    return f && !fclose(f) && ok;
}

static void free_vocab(void *v) { bert_vocab_free(v); }

static bert_vocab *golden_vocab(test *t, bool lower_case)
{
    bert_vocab *v = bert_vocab_load(GOLDEN "vocab.txt", bert_cased(!lower_case), NULL, 0);
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
    bert_vocab *v = golden_vocab(t, lower_case);
    CHECK(t, text && expected && v);
    for (size_t at = 0; at < text_bytes;) {
        char *end = memchr(text + at, '\n', text_bytes - at);
        char *expected_end = strchr(expected, '\n');
        int64_t n;
        size_t used = 0;
        CHECK(t, end && expected_end);
        n = bert_encode(v, text + at, (size_t)(end - text) - at, flags, ids, ROOM);
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
    compare_ids(t, GOLDEN "ids-special.txt", true, BERT_SPECIAL_TOKENS);
}

typedef struct hash_state {
    uint64_t hash;
    bool first;
} hash_state;

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

/* The hash of what "xCy" becomes for all C of a block; the UTF-8 is made here, without the
 * tokenizer. */
static uint64_t hash_block(uint32_t block, bool lower_case)
{
    hash_state s = {0xCBF29CE484222325u, true};
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
        bert_words(text, (size_t)n, bert_cased(!lower_case), hash_word, &s);
        hash_bytes(&s.hash, "\n\n", 2);
    }
    return s.hash;
}

TEST_ONCE(tokenizer_every_code_point)
{
    size_t bytes;
    char *expected = read_file(t, GOLDEN "codepoints.txt", &bytes), got[64];
    CHECK(t, expected);
    for (uint32_t block = 0; block < 0x110000; block += 4096) {
        char *end = strchr(expected, '\n');
        CHECK(t, end);
        *end = 0;
        snprintf(got, sizeof got, "%06x %016llx %016llx", (unsigned)block,
                 (unsigned long long)hash_block(block, true),
                 (unsigned long long)hash_block(block, false));
        CHECK_TEXT(t, got, expected);
        expected = end + 1;
    }
    CHECK(t, !*expected);
}

/* --------------------------------------------------------------------------------------- encode */

#define FIVE "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"

static bert_vocab *small_vocab(test *t, const char *text, bool lower_case)
{
    bert_vocab *v = bert_vocab_parse(text, strlen(text), "small", bert_cased(!lower_case), NULL, 0);
    if (v) test_defer(t, free_vocab, v);
    return v;
}

TEST_ONCE(tokenizer_looks_up)
{
    bert_vocab *v = small_vocab(t, FIVE "un\r\n##aff\n##able\n##\n#", true);
    CHECK(t, v && bert_vocab_size(v) == 10);
    CHECK_TEXT(t, bert_vocab_token(v, 5), "un");
    CHECK_TEXT(t, bert_vocab_token(v, 6), "##aff");
    CHECK_TEXT(t, bert_vocab_token(v, 9), "#");
    CHECK(t, !bert_vocab_token(v, -1) && !bert_vocab_token(v, 10));
    for (int32_t id = 0; id < 10; id++) CHECK(t, bert_vocab_id(v, bert_vocab_token(v, id)) == id);
    CHECK(t, bert_vocab_id(v, "aff") == -1 && bert_vocab_id(v, "##un") == -1);
    CHECK(t, bert_vocab_id(v, "") == -1);
    CHECK(t, bert_vocab_id(v, bert_special_tokens[BERT_MASK]) == 4);
    CHECK(t, bert_vocab_starts_word(v, 5) && !bert_vocab_starts_word(v, 6));
    CHECK(t, bert_vocab_starts_word(v, 8) && bert_vocab_starts_word(v, BERT_MASK));
    CHECK(t, !bert_vocab_starts_word(v, -1) && !bert_vocab_starts_word(v, 10));
}

TEST_ONCE(tokenizer_counts_beyond_cap)
{
    static const char text[] = "unaffable un [MASK] unable unx";
    bert_vocab *v = small_vocab(t, FIVE "un\n##aff\n##able\n[\n]\nmask\n", true);
    int32_t ids[16], few[4] = {-7, -7, -7, -7};
    static const int32_t plain[] = {5, 6, 7, 5, 8, 10, 9, 5, 7, 1};
    static const int32_t special[] = {5, 6, 7, 5, 4, 5, 7, 1};
    CHECK(t, v);
    CHECK(t, bert_encode(v, text, strlen(text), 0, ids, 16) == 10);
    CHECK(t, !memcmp(ids, plain, sizeof plain));
    CHECK(t, bert_encode(v, text, strlen(text), BERT_SPECIAL_TOKENS, ids, 16) == 8);
    CHECK(t, !memcmp(ids, special, sizeof special));
    CHECK(t, bert_encode(v, text, strlen(text), BERT_SPECIAL_TOKENS, few, 2) == 8);
    CHECK(t, few[0] == 5 && few[1] == 6 && few[2] == -7 && few[3] == -7);
    CHECK(t, bert_encode(v, text, strlen(text), 0, NULL, 0) == 10);
    CHECK(t, bert_encode(v, NULL, 0, 0, NULL, 0) == 0);
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
    bert_vocab *v = small_vocab(t,
                                FIVE "\nthe\nthe\nand \nof\t\r\n\n\u3000x\u3000\n##\nlast\x0B\n"
                                     "q\xC2\x85\nr\x1F\ns\uFEFF\n\n",
                                true);
    int32_t ids[8];
    CHECK(t, v && bert_vocab_size(v) == 18);
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        CHECK(t, bert_vocab_id(v, tokens[i].token) == tokens[i].id);
        CHECK_TEXT(t, bert_vocab_token(v, tokens[i].id), tokens[i].token);
    }
    for (int32_t id = 5; id < 7; id++) {
        CHECK_TEXT(t, bert_vocab_token(v, id), "");
        CHECK(t, !bert_vocab_starts_word(v, id));
    }
    CHECK_TEXT(t, bert_vocab_token(v, 10), "");
    CHECK(t, bert_encode(v, "the and of last", 15, 0, ids, 8) == 4);
    CHECK(t, !memcmp(ids, expected, sizeof expected));
}

/* What a save writes is what was read, byte for byte. */
TEST_ONCE(vocab_keeps_its_file)
{
    static const char text[] = FIVE "the \r\nthe\n\n";
    const char *path = test_path("vocab.txt");
    bert_tokenizer_options o;
    bert_vocab_file file;
    bert_vocab *v;
    CHECK(t, write_file(path, text, sizeof text - 1));
    CHECK(t, (v = bert_vocab_load(path, bert_cased(true), NULL, 0)));
    test_defer(t, free_vocab, v);
    CHECK(t, write_file(path, "another", 7));
    file = bert_vocab_source(v);
    CHECK_TEXT(t, file.name, "vocab.txt");
    CHECK(t, file.bytes == sizeof text - 1 && !memcmp(file.data, text, file.bytes));
    o = bert_vocab_options(v);
    CHECK(t, o.lower_case == BERT_NO && o.strip_accents == BERT_NO);
    CHECK(t, o.chinese_chars == BERT_YES && o.clean_text == BERT_YES);
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
    char err[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text;
        CHECK(t, !bert_vocab_parse(text, strlen(text), "v.txt", NULL, err, sizeof err));
        CHECK_TEXT(t, err, cases[i].message);
    }
    CHECK(t, !bert_vocab_parse(zero, sizeof zero - 1, "v.txt", NULL, err, sizeof err));
    CHECK_TEXT(t, err, "v.txt:6: a zero at byte 2 of the line");
    memset(longest + strlen(FIVE), 'a', 1001);
    CHECK(t, !bert_vocab_parse(longest, strlen(FIVE) + 1001, "v.txt", NULL, err, sizeof err));
    CHECK_TEXT(t, err, "v.txt:6: a token of 1001 bytes: it may have at most 1000");
    CHECK(t, small_vocab(t, FIVE "the\r\n##the", true));
    longest[strlen(FIVE) + 1000] = 0;
    CHECK(t, small_vocab(t, longest, true));
    CHECK(t, !bert_vocab_load("no/such/vocab.txt", NULL, err, sizeof err));
    CHECK_TEXT(t, err, "no/such/vocab.txt: No such file or directory");
    CHECK(t, !bert_vocab_load("tests", NULL, err, sizeof err));
    CHECK_TEXT(t, err, "tests: Is a directory");
    CHECK(t, !bert_vocab_parse("a", 1, "v.txt", NULL, err, 12));
    CHECK_TEXT(t, err, "v.txt: no [");
    bert_vocab_free(NULL);
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
    char *corpus = malloc(1 << 20), *trained, *again, *expected, *lines[512], err[256] = "";
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    int n = 0;
    bert_vocab *v;
    CHECK(t, corpus);
    test_defer(t, free, corpus);
    corpus_bytes = pseudo_corpus(corpus, ".\n");
    CHECK(t, write_file(path, corpus, corpus_bytes));
    CHECK(t, bert_vocab_train(path, 400, NULL, out, err, sizeof err) == 400);
    CHECK(t, (v = bert_vocab_load(out, NULL, err, sizeof err)));
    test_defer(t, free_vocab, v);
    CHECK(t, bert_vocab_size(v) == 400);
    for (int32_t id = 0; id < BERT_SPECIAL_COUNT; id++)
        CHECK_TEXT(t, bert_vocab_token(v, id), bert_special_tokens[id]);
    CHECK_TEXT(t, bert_vocab_token(v, 5), ".");
    CHECK_TEXT(t, bert_vocab_token(v, 6), "a");

    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK(t, bert_vocab_train(path, 400, NULL, out, err, sizeof err) == 400);
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
    char *trained, err[256] = "";
    CHECK(t, write_file(path, corpus, strlen(corpus)));
    CHECK(t, bert_vocab_train(path, 100, NULL, out, err, sizeof err) == 13);
    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK_TEXT(t, trained, expected);
    CHECK(t, bert_vocab_train(path, 11, NULL, out, err, sizeof err) == 11);
    CHECK(t, (trained = read_file(t, out, &bytes)));
    CHECK(t, bytes < strlen(expected) && !memcmp(trained, expected, bytes));
}

/* The corpus is read in blocks; where they end must not show, also where blanks are rare. */
TEST_ONCE(vocab_trains_over_blocks)
{
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    enum { COPIES = 24, LEAST = 3 << 19 };
    char *corpus = malloc(4 << 20), *lines, *blanks, err[256] = "";
    size_t bytes, lines_bytes, blanks_bytes;
    CHECK(t, corpus);
    test_defer(t, free, corpus);
    bytes = pseudo_corpus(corpus, ".\n");
    CHECK(t, bytes * COPIES < 4 << 20 && bytes * COPIES > LEAST);
    for (int i = 1; i < COPIES; i++) memcpy(corpus + (size_t)i * bytes, corpus, bytes);
    CHECK(t, write_file(path, corpus, bytes * COPIES));
    CHECK(t, bert_vocab_train(path, 500, NULL, out, err, sizeof err) == 500);
    CHECK(t, (lines = read_file(t, out, &lines_bytes)));
    for (size_t i = 0; i < bytes * COPIES; i++)
        if (corpus[i] == '\n' || corpus[i] == ' ') corpus[i] = '\t';
    CHECK(t, write_file(path, corpus, bytes * COPIES));
    CHECK(t, bert_vocab_train(path, 500, NULL, out, err, sizeof err) == 500);
    CHECK(t, (blanks = read_file(t, out, &blanks_bytes)));
    CHECK(t, lines_bytes == blanks_bytes && !memcmp(lines, blanks, lines_bytes));
}

TEST_ONCE(vocab_keeps_the_frequent_characters)
{
    /* 1200 ideographs, the first 1000 of them twice */
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char corpus[16384], err[256] = "";
    size_t n = 0;
    bert_vocab *v;
    for (int k = 0; k < 1200 + 1000; k++) {
        int c = 0x5000 + k % 1200;
        corpus[n++] = (char)(0xE0 + c / 4096);
        corpus[n++] = (char)(0x80 + c / 64 % 64);
        corpus[n++] = (char)(0x80 + c % 64);
    }
    CHECK(t, write_file(path, corpus, n));
    CHECK(t, bert_vocab_train(path, 5000, NULL, out, err, sizeof err) == 1005);
    CHECK(t, (v = bert_vocab_load(out, NULL, err, sizeof err)));
    test_defer(t, free_vocab, v);
    CHECK_TEXT(t, bert_vocab_token(v, 5), "\xE5\x80\x80");
    CHECK_TEXT(t, bert_vocab_token(v, 1004), "\xE5\x8F\xA7");
}

TEST_ONCE(vocab_training_mistakes)
{
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char err[512], expected[512];
    FILE *f;
    CHECK(t, bert_vocab_train("no/such/corpus.txt", 100, NULL, out, err, sizeof err) == -1);
    CHECK_TEXT(t, err, "no/such/corpus.txt: No such file or directory");
    CHECK(t, write_file(path, " \n\xFF\n", 4));
    CHECK(t, bert_vocab_train(path, 100, NULL, out, err, sizeof err) == -1);
    snprintf(expected, sizeof expected, "%s: no words in it", path);
    CHECK_TEXT(t, err, expected);
    CHECK(t, write_file(path, "ab cd ab\n", 9));
    CHECK(t, bert_vocab_train(path, 10, NULL, out, err, sizeof err) == -1);
    snprintf(expected, sizeof expected, "%s: 10 tokens are too few: its characters alone need 11",
             path);
    CHECK_TEXT(t, err, expected);
    CHECK(t, bert_vocab_train(path, -1, NULL, out, err, sizeof err) == -1);
    CHECK(t, bert_vocab_train(path, 11, NULL, out, err, sizeof err) == 11);
    CHECK(t, bert_vocab_train(path, 12, NULL, "no/such/vocab.txt", err, sizeof err) == -1);
    CHECK_TEXT(t, err, "no/such/vocab.txt: No such file or directory");
    CHECK(t, bert_vocab_train(path, 12, NULL, "tests", err, sizeof err) == -1);
    CHECK_TEXT(t, err, "tests: Is a directory");
    f = fopen("tests.tmp", "rb");
    if (f) fclose(f);
    CHECK(t, !f);
}

/* -------------------------------------------------------------------------------- out of memory */

TEST_ONCE(vocab_out_of_memory)
{
    static const char vocab[] = FIVE "a\n##b\n";
    static char corpus[1 << 20];
    const char *path = test_path("corpus.txt"), *out = test_path("vocab.txt");
    char err[512], expected[512];
    bert_vocab *v;
    size_t bytes = pseudo_corpus(corpus, ".\n");
    snprintf(expected, sizeof expected, "%s: out of memory", path);
    CHECK(t, write_file(path, vocab, sizeof vocab - 1));
    for (long k = 0;; k++) {
        refuse_at = k, allocations = 0;
        v = bert_vocab_load(path, NULL, err, sizeof err);
        if (v) bert_vocab_free(v);
        CHECK(t, !live);
        if (v) break;
        CHECK_TEXT(t, err, expected);
    }
    CHECK(t, refuse_at == 8);
    for (long k = 0;; k++) {
        refuse_at = k, allocations = 0;
        v = bert_vocab_parse(vocab, sizeof vocab - 1, path, NULL, err, sizeof err);
        if (v) bert_vocab_free(v);
        CHECK(t, !live);
        if (v) break;
        CHECK_TEXT(t, err, expected);
    }
    CHECK(t, refuse_at == 7);
    CHECK(t, write_file(path, corpus, bytes / 50));
    for (long k = 0;; k++) {
        int32_t n;
        refuse_at = k, allocations = 0;
        n = bert_vocab_train(path, 60, NULL, out, err, sizeof err);
        CHECK(t, !live);
        if (n > 0) {
            CHECK(t, n == 60 && k > 100);
            break;
        }
        if (strncmp(err, out, strlen(out))) CHECK_TEXT(t, err, expected);
    }
    refuse_at = -1;
}
