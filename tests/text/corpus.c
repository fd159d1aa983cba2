/* The corpus of the sample BERT: splitting text into sentences, reading it, and its two splits. */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"

#include "../../examples/frame/data/corpus.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define SENTENCES_NO_MAIN
#include "../../examples/bert/data/sentences.c"

/* ---------- help ---------- */

/* Ids of a text of numbers: each word is its own id, other words give no id. */
static int64_t encode_numbers(const void *user, const char *text, size_t bytes, int32_t *ids,
                              int64_t cap)
{
    int64_t n = 0;
    (void)user;
    for (size_t i = 0; i < bytes;) {
        long id = 0;
        if (text[i] < '0' || text[i] > '9') {
            i++;
            continue;
        }
        while (i < bytes && text[i] >= '0' && text[i] <= '9') id = 10 * id + (text[i++] - '0');
        if (n < cap) ids[n] = (int32_t)id;
        n++;
    }
    return n;
}

static int64_t encode_too_many(const void *user, const char *text, size_t bytes, int32_t *ids,
                               int64_t cap)
{
    (void)user, (void)text, (void)ids, (void)cap;
    return (int64_t)bytes + 1;
}

static bert_corpus_desc numbers(test *t, int32_t vocab_size, int threads)
{
    return (bert_corpus_desc){.encode = encode_numbers,
                              .vocab_size = vocab_size,
                              .threads = threads,
                              .allocator = t->allocator};
}

/* Reports a corpus that could not be made; after a refused allocation the message must say so. */
static bool have(test *t, int line, const void *object, const char *err)
{
    if (object) return true;
    test_unwind(t, __FILE__, line, "an object was made", test_status_of(err), err);
    return false;
}

#define HAVE(t, object, err)                                                                       \
    do {                                                                                           \
        if (!have((t), __LINE__, (object), (err))) return;                                         \
    } while (0)

static void free_corpus(void *corpus) { bert_corpus_free(corpus); }

/* Checks that a text is refused with exactly this message. */
static bool refused(test *t, const char *text, size_t bytes, bert_corpus_desc desc,
                    const char *message)
{
    char err[512] = "";
    bert_corpus *c = bert_corpus_parse(text, bytes, "x.txt", &desc, err, sizeof err);
    bert_corpus_free(c);
    if (!c && !strcmp(err, message)) return true;
    if (c) test_fail(t, __FILE__, __LINE__, message, "the corpus was accepted");
    else test_unwind(t, __FILE__, __LINE__, message, test_status_of(err), err);
    return false;
}

#define REFUSED(t, text, desc, message)                                                            \
    do {                                                                                           \
        if (!refused((t), (text), sizeof(text) - 1, (desc), (message))) return;                    \
    } while (0)

#define FORM "; a corpus has one sentence per line and a blank line between documents"

/* ---------- reading ---------- */

TEST(corpus_reads_lines_and_documents)
{
    static const char text[] = "\xEF\xBB\xBF"
                               "1 2 3\r\n4\r\n \t\r\n\r\nno number here\r\n5 6\n\n7\n\n\n8 9";
    static const int64_t sentence[] = {0, 3, 4, 6, 7, 9}, document[] = {0, 2, 3, 4, 5};
    bert_corpus_desc desc = numbers(t, 10, 1);
    char err[256] = "";
    bert_corpus *c = bert_corpus_parse(text, sizeof text - 1, "x.txt", &desc, err, sizeof err);
    HAVE(t, c, err);
    test_defer(t, free_corpus, c);
    CHECK(t, c->tokens == 9 && c->sentences == 5 && c->documents == 4);
    CHECK(t, !memcmp(c->sentence, sentence, sizeof sentence));
    CHECK(t, !memcmp(c->document, document, sizeof document));
    for (int64_t i = 0; i < 9; i++) CHECK(t, bert_corpus_id(c, i) == i + 1);
}

TEST(corpus_cuts_long_lines)
{
    /* 1000 tokens give four sentences of 250; 257 give 128 and 129; 256 stay whole. */
    static const int64_t expected[] = {0, 250, 500, 750, 1000, 1128, 1257, 1513};
    static char text[8192];
    bert_corpus_desc desc = numbers(t, 10, 1);
    char err[256] = "";
    size_t n = 0;
    bert_corpus *c;
    for (int line = 0; line < 3; line++) {
        for (int i = 0; i < (const int[]){1000, 257, 256}[line]; i++)
            text[n++] = '7', text[n++] = ' ';
        text[n++] = '\n';
    }
    memcpy(text + n, "\n1\n\n1\n\n1\n", 10);
    c = bert_corpus_parse(text, n + 9, "x.txt", &desc, err, sizeof err);
    HAVE(t, c, err);
    test_defer(t, free_corpus, c);
    CHECK(t, !memcmp(c->sentence, expected, sizeof expected));
    CHECK(t, c->document[1] == 7 && c->sentences == 10);
}

/* Lines of random length, blank ones, and one longer than several chunks. */
static char *make_text(size_t *bytes)
{
    size_t room = 4 << 20, n = 0;
    char *text = malloc(room);
    if (!text) abort();
    for (uint64_t i = 0; n < room - (1 << 20); i++) {
        uint64_t words = bert_mix(i) % 40;
        if (i == 5000) words = 200000;
        for (uint64_t k = 0; k < words; k++)
            n += (size_t)sprintf(text + n, "%u ", (unsigned)(bert_mix(i << 20 | k) % 60000));
        text[n++] = '\n';
    }
    *bytes = n;
    return text;
}

TEST_ONCE(corpus_is_the_same_for_any_threads)
{
    size_t bytes;
    char *text = make_text(&bytes), err[256] = "";
    bert_corpus *first = NULL;
    test_defer(t, free, text);
    for (int k = 0; k < 5; k++) {
        bert_corpus_desc desc = numbers(t, 60000, (const int[]){1, 2, 3, 7, 16}[k]);
        bert_corpus *c = bert_corpus_parse(text, bytes, "x.txt", &desc, err, sizeof err);
        HAVE(t, c, err);
        test_defer(t, free_corpus, c);
        if (!first) first = c;
        CHECK(t, c->tokens > 500000 && c->tokens == first->tokens && c->ids16);
        CHECK(t, c->sentences == first->sentences && c->documents == first->documents);
        CHECK(t, !memcmp(c->ids16, first->ids16, (size_t)c->tokens * sizeof *c->ids16));
        CHECK(t, !memcmp(c->sentence, first->sentence, (size_t)(c->sentences + 1) * 8));
        CHECK(t, !memcmp(c->document, first->document, (size_t)(c->documents + 1) * 8));
        CHECK(t, c->held_out.count == first->held_out.count);
        CHECK(t, c->unigram_nats == first->unigram_nats);
        CHECK(t, c->digest == first->digest);
    }
}

/* The digest depends on all that a run can read: ids, their order, the bounds of sentences and
 * documents; and on nothing else. */
TEST(corpus_digests)
{
    static const char *const texts[] = {
        "1 2 3\n4\n\n5\n\n6\n\n7\n", "1 3 2\n4\n\n5\n\n6\n\n7\n",   "4\n1 2 3\n\n5\n\n6\n\n7\n",
        "1 2 3\n4\n\n6\n\n5\n\n7\n", "1 2\n3 4\n\n5\n\n6\n\n7\n",   "1 2 3\n\n4\n5\n\n6\n\n7\n",
        "1 2 3\n4\n\n5\n\n6\n\n8\n", "1 2 3\n4\n\n5\n\n6\n\n7 7\n", "1 2 3\r\n4\n\n5\n \n\n6\n\n7",
    };
    enum { TEXTS = sizeof texts / sizeof texts[0] };
    uint64_t digests[TEXTS];
    for (int k = 0; k < 2 * TEXTS; k++) { /* with ids of 16 bits, then of 32 */
        bert_corpus_desc desc = numbers(t, k < TEXTS ? 100 : 70000, 1);
        const char *text = texts[k % TEXTS];
        char err[256] = "";
        bert_corpus *c = bert_corpus_parse(text, strlen(text), "x.txt", &desc, err, sizeof err);
        HAVE(t, c, err);
        if (k < TEXTS) digests[k] = c->digest;
        else CHECK(t, c->digest == digests[k - TEXTS]);
        bert_corpus_free(c);
    }
    CHECK(t, digests[0] == digests[TEXTS - 1]);
    for (int k = 1; k < TEXTS - 1; k++)
        for (int i = 0; i < k; i++) CHECK(t, digests[i] != digests[k]);
}

static void *resize_small(void *user, void *block, size_t old_size, size_t new_size)
{
    (void)user, (void)old_size;
    if (new_size) return new_size > 1 << 20 ? NULL : realloc(block, new_size);
    free(block);
    return NULL;
}

/* A file without an end, or one that would block, is refused at once. */
TEST_ONCE(corpus_is_a_regular_file)
{
    static const char why[] = "a pipe or a device; a regular file is needed";
    const char *pipe = test_path("pipe"), *huge = test_path("huge");
    bert_corpus_desc desc = numbers(t, 100, 1);
    char err[512], expected[512];
    FILE *file;
    remove(pipe);
    CHECK(t, !mkfifo(pipe, 0600));
    CHECK(t, !bert_corpus_load(pipe, &desc, err, sizeof err));
    snprintf(expected, sizeof expected, "corpus '%s': cannot open: %s" FORM, pipe, why);
    CHECK_TEXT(t, err, expected);
    CHECK(t, !bert_corpus_load("/dev/zero", &desc, err, sizeof err));
    snprintf(expected, sizeof expected, "corpus '/dev/zero': cannot open: %s" FORM, why);
    CHECK_TEXT(t, err, expected);
    /* larger than the machine's memory */
    desc.allocator = (zf_allocator){.fn = resize_small};
    CHECK(t, (file = fopen(huge, "wb")) && !fclose(file));
    if (!truncate(huge, (off_t)1 << 40)) {
        CHECK(t, !bert_corpus_load(huge, &desc, err, sizeof err));
        CHECK_TEXT(t, err, "out of memory");
    }
    remove(huge);
}

TEST(corpus_keeps_ids_beyond_16_bits)
{
    static const char text[] = "65535 65536\n\n65537\n\n0\n\n1\n";
    char err[256] = "";
    for (int k = 0; k < 2; k++) {
        bert_corpus_desc desc = numbers(t, 65538, 1);
        bert_corpus *c;
        if (k) desc.vocab_size = 65537;
        c = bert_corpus_parse(text, sizeof text - 1, "x.txt", &desc, err, sizeof err);
        if (k) {
            CHECK(t, !c);
            CHECK_TEXT(
                t, err,
                "corpus 'x.txt', line 3: id 65537 is outside the vocabulary of 65537 tokens");
            break;
        }
        HAVE(t, c, err);
        test_defer(t, free_corpus, c);
        CHECK(t, c->ids32 && !c->ids16);
        CHECK(t, bert_corpus_id(c, 1) == 65536 && bert_corpus_id(c, 2) == 65537);
    }
}

TEST(corpus_reads_a_file)
{
    size_t bytes;
    char *text = make_text(&bytes), err[512] = "", expected[512];
    const char *path = test_path("corpus.txt"), *missing = test_path("missing.txt");
    const char *folder = test_path("folder");
    FILE *file = fopen(path, "wb");
    bert_corpus_desc desc = numbers(t, 60000, 2);
    bert_corpus *from_file, *from_memory;
    test_defer(t, free, text);
    CHECK(t, file);
    CHECK(t, fwrite(text, 1, bytes, file) == bytes);
    CHECK(t, !fclose(file));
    from_memory = bert_corpus_parse(text, bytes, path, &desc, err, sizeof err);
    HAVE(t, from_memory, err);
    test_defer(t, free_corpus, from_memory);
    from_file = bert_corpus_load(path, &desc, err, sizeof err);
    HAVE(t, from_file, err);
    test_defer(t, free_corpus, from_file);
    CHECK(t, from_file->tokens == from_memory->tokens);
    CHECK(t, !memcmp(from_file->ids16, from_memory->ids16, (size_t)from_file->tokens * 2));

    CHECK(t, !bert_corpus_load(missing, &desc, err, sizeof err));
    snprintf(expected, sizeof expected, "corpus '%s': cannot open: No such file or directory" FORM,
             missing);
    CHECK_TEXT(t, err, expected);
    mkdir(folder, 0700);
    CHECK(t, !bert_corpus_load(folder, &desc, err, sizeof err));
    snprintf(expected, sizeof expected, "corpus '%s': cannot open: Is a directory" FORM, folder);
    CHECK_TEXT(t, err, expected);
    CHECK(t, !bert_corpus_load(missing, &desc, NULL, 0));
}

TEST(corpus_load_without_memory)
{
    const char *path = test_path("small.txt");
    bert_corpus_desc desc = numbers(t, 10, 3);
    FILE *file = fopen(path, "wb");
    char err[256] = "";
    bert_corpus *c;
    CHECK(t, file);
    fputs("1 2\n3\n\n4\n\n5\n\n6\n", file);
    CHECK(t, !fclose(file));
    c = bert_corpus_load(path, &desc, err, sizeof err);
    HAVE(t, c, err);
    test_defer(t, free_corpus, c);
    CHECK(t, c->tokens == 6);
}

TEST(corpus_refuses_what_is_no_corpus)
{
    bert_corpus_desc desc = numbers(t, 10, 1), bad = desc;
    REFUSED(t, "", desc, "corpus 'x.txt': the file is empty" FORM);
    REFUSED(t, "\n  \n\t\r\n", desc, "corpus 'x.txt': no sentence, only blank lines" FORM);
    REFUSED(t, "words without an id\n", desc, "corpus 'x.txt': no sentence, only blank lines" FORM);
    REFUSED(t, "1\n2\n\n\0 3\n", desc,
            "corpus 'x.txt', line 4: a NUL byte, so this is no text" FORM);
    REFUSED(t, "1\n2\n3\n", desc,
            "corpus 'x.txt': 1 document, and at least 4 are needed: whole documents are held "
            "out, two of them, and two are left to train on" FORM);
    REFUSED(t, "1\n\n2\n\n3\n", desc,
            "corpus 'x.txt': 3 documents, and at least 4 are needed: whole documents are held "
            "out, two of them, and two are left to train on" FORM);
    REFUSED(t, "1\n\n2\n\n3\n\n4 11 5\n", desc,
            "corpus 'x.txt', line 7: id 11 is outside the vocabulary of 10 tokens");
    bad.encode = encode_too_many;
    REFUSED(t, "1\n\n2\n", bad,
            "corpus 'x.txt', line 1: the tokenizer gives 2 ids, more than bytes");
    bad = desc, bad.threads = -1;
    REFUSED(t, "1\n", bad, "corpus 'x.txt': -1 threads; 1 to 1024 are possible");
    bad = desc, bad.vocab_size = 0;
    REFUSED(t, "1\n", bad, "corpus 'x.txt': a tokenizer and the size of its vocabulary are needed");
}

/* ---------- splits ---------- */

static bert_corpus *parse_documents(test *t, int64_t documents, char *err, size_t err_size)
{
    bert_corpus_desc desc = numbers(t, 3000, 1);
    char *text = malloc((size_t)documents * 32);
    bert_corpus *c;
    size_t n = 0;
    if (!text) abort();
    for (int64_t d = 0; d < documents; d++)
        n += (size_t)sprintf(text + n, "%d %d\n7\n\n", (int)(d % 1000), (int)(2 * d % 999));
    c = bert_corpus_parse(text, n, "x.txt", &desc, err, err_size);
    free(text);
    return c;
}

TEST(corpus_splits_are_disjoint_and_stable)
{
    char err[256] = "";
    bert_corpus *small = parse_documents(t, 5000, err, sizeof err), *large;
    int64_t train = 0, held_out = 0, tokens = 0;
    HAVE(t, small, err);
    test_defer(t, free_corpus, small);
    large = parse_documents(t, 20000, err, sizeof err);
    HAVE(t, large, err);
    test_defer(t, free_corpus, large);
    CHECK(t, large->train.count + large->held_out.count == 20000);
    /* 1% of 20000 with a standard deviation of 14 */
    CHECK(t, large->held_out.count > 130 && large->held_out.count < 270);
    for (int64_t d = 0; d < 20000; d++) {
        bool in_train = train < large->train.count && large->train.documents[train] == d;
        bool in_held_out =
            held_out < large->held_out.count && large->held_out.documents[held_out] == d;
        CHECK(t, in_train != in_held_out);
        train += in_train;
        held_out += in_held_out;
    }
    CHECK(t, !memcmp(small->held_out.documents, large->held_out.documents,
                     (size_t)small->held_out.count * 8));
    CHECK(t, large->held_out.documents[small->held_out.count] >= 5000);
    for (int64_t k = 0; k < large->held_out.count; k++) {
        const int64_t *document = large->document + large->held_out.documents[k];
        tokens += large->sentence[document[1]] - large->sentence[document[0]];
    }
    CHECK(t, tokens == large->held_out.tokens);
    CHECK(t, tokens + large->train.tokens == large->tokens);
}

TEST_ONCE(corpus_splits_have_two_documents_at_least)
{
    char err[256] = "";
    for (int64_t documents = 4; documents < 400; documents++) {
        bert_corpus *c = parse_documents(t, documents, err, sizeof err);
        int64_t train, held_out;
        HAVE(t, c, err);
        train = c->train.count, held_out = c->held_out.count;
        bert_corpus_free(c);
        CHECK(t, train >= 2 && held_out >= 2 && train + held_out == documents);
    }
}

TEST(corpus_unigram_entropy)
{
    char err[256] = "";
    bert_corpus *c = parse_documents(t, 3000, err, sizeof err);
    double sum = 0;
    HAVE(t, c, err);
    test_defer(t, free_corpus, c);
    /* By the definition: for each held-out token, its share among the training tokens plus one of
     * each kind. */
    for (int64_t k = 0; k < c->held_out.count; k++) {
        const int64_t *document = c->document + c->held_out.documents[k];
        for (int64_t i = c->sentence[document[0]]; i < c->sentence[document[1]]; i++) {
            double equal = 1;
            for (int64_t m = 0; m < c->train.count; m++) {
                const int64_t *other = c->document + c->train.documents[m];
                for (int64_t j = c->sentence[other[0]]; j < c->sentence[other[1]]; j++)
                    equal += bert_corpus_id(c, i) == bert_corpus_id(c, j);
            }
            sum -= log(equal / (double)(c->train.tokens + 3000));
        }
    }
    CHECK_NEAR(t, c->unigram_nats, sum / (double)c->held_out.tokens, 1e-12);
}

/* ---------- cutting sentences ---------- */

/* The output of `cut`, in allocated memory. */
static char *cut_text(const char *mode, const char *text, size_t bytes)
{
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    if (!file) abort();
    if (!cut(mode, text, bytes, file)) fputs("unknown mode", file);
    fclose(file);
    return out;
}

static char *read_all(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(1 << 20);
    if (!text) abort();
    *bytes = file ? fread(text, 1, (1 << 20) - 1, file) : 0;
    text[*bytes] = 0;
    if (file) fclose(file);
    return text;
}

TEST_ONCE(sentences_of_a_dictionary)
{
    size_t bytes, expected_bytes;
    char *text = read_all("tests/golden/corpus/dictionary.txt", &bytes);
    char *expected = read_all("tests/golden/corpus/dictionary.out", &expected_bytes), *out;
    test_defer(t, free, text);
    test_defer(t, free, expected);
    CHECK(t, bytes > 1000 && expected_bytes > 500);
    out = cut_text("dictionary", text, bytes);
    test_defer(t, free, out);
    CHECK_TEXT(t, out, expected);
}

TEST_ONCE(sentences_of_prose)
{
    static const char text[] =
        "A TITLE\n"
        "=======\n\n"
        " 1. Permission is granted to read this\n"
        "    text aloud. It is granted (see above) to Dr. Reader and to these\n"
        "    2001 readers, and to J. R.\n"
        "    Listener, e.g. in a library.\n"
        " .\n"
        "# - Comment signs and bullets are taken away here.\n"
        "Copyright 2001\n"
        "No full stop at the end of this line\n\n"
        "this one does not begin with a capital.\n\n"
        "Permission is granted to read this text aloud.\n\n"
        "Caf\xC3\xA9s are not ASCII, so this sentence is dropped. Was it not dropped as it "
        "should?\n";
    char *out = cut_text("text", text, sizeof text - 1);
    test_defer(t, free, out);
    CHECK_TEXT(t, out,
               "Permission is granted to read this text aloud.\n"
               "It is granted (see above) to Dr. Reader and to these 2001 readers, and to J. R. "
               "Listener, e.g. in a library.\n"
               "Comment signs and bullets are taken away here.\n"
               "Was it not dropped as it should?\n");
}

TEST_ONCE(sentences_of_a_manual)
{
    static const char text[] = ".\\\" A comment is no sentence of the page.\n"
                               ".TH BROOK 1 2001\n"
                               ".SH NAME\n"
                               "brook \\- let water run down\n"
                               ".SH DESCRIPTION\n"
                               "The program\n"
                               ".B brook\n"
                               "lets \\fIwater\\fR run down the\n"
                               ".BR hill (7)\n"
                               "until it is told to stop.\n"
                               ".PP\n"
                               "It\\(aqs not to be used when the hill is dry.\n"
                               ".nf\n"
                               "This line is an example and is not kept.\n"
                               ".fi\n"
                               ".TP\n"
                               ".B \\-\\-cold This tag is dropped as well.\n"
                               "Let only the \"cold\" water run down\\&.\n"
                               ".Dd May 2001\n"
                               "An mdoc page is passed over until the next one.\n"
                               ".TH MILL 1\n"
                               "The mill turns when the water comes down.\n";
    char *out = cut_text("manual", text, sizeof text - 1);
    test_defer(t, free, out);
    CHECK_TEXT(t, out,
               "The program brook lets water run down the hill(7) until it is told to stop.\n"
               "It's not to be used when the hill is dry.\n"
               "Let only the \"cold\" water run down.\n"
               "The mill turns when the water comes down.\n");
}

TEST_ONCE(sentences_make_documents_of_twenty)
{
    char text[8192], *out;
    size_t n = 0;
    int sentences_now = 0, documents = 0;
    for (int i = 0; i < 50; i++)
        n += (size_t)sprintf(text + n,
                             "Paragraph number %c%c of this text has one.  And another "
                             "for %c%c as well.\n\n",
                             'A' + i / 26, 'A' + i % 26, 'A' + i / 26, 'A' + i % 26);
    out = cut_text("text", text, n);
    test_defer(t, free, out);
    for (char *line = out, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        CHECK(t, end);
        if (end > line) sentences_now++;
        else {
            CHECK(t, sentences_now == 20);
            sentences_now = 0;
            documents++;
        }
    }
    CHECK(t, documents == 5 && sentences_now == 0);
    CHECK(t,
          strstr(out, "Paragraph number AA of this text has one.\nAnd another for AA as well.\n"));
}

TEST_ONCE(sentences_know_their_modes)
{
    char *out = cut_text("verse", "x", 1);
    test_defer(t, free, out);
    CHECK_TEXT(t, out, "unknown mode");
}

/* ---------- the script ---------- */

/* Runs corpus.sh without the package, with the text under `root` as the machine's; returns its
 * status, and its output on both streams. */
static int run_script(const char *folder, const char *root, char *said, size_t said_size)
{
    char command[2048];
    FILE *pipe;
    int status;
    size_t n;
    snprintf(command, sizeof command,
             "mkdir -p '%s/bin' && printf '#!/bin/sh\\necho \"E: no network\"; exit 100\\n' > "
             "'%s/bin/apt-get' && chmod +x '%s/bin/apt-get' && PATH='%s/bin':\"$PATH\" "
             "CORPUS_ROOT='%s' sh examples/bert/data/corpus.sh '%s/corpus.txt' '%s/work' 2>&1",
             folder, folder, folder, folder, root, folder, folder);
    pipe = popen(command, "r");
    if (!pipe) return -1;
    n = fread(said, 1, said_size - 1, pipe);
    said[n] = 0;
    status = pclose(pipe);
    return status < 0 ? -1 : status / 256;
}

TEST_ONCE(corpus_script_without_the_package)
{
    char said[1024], expected[1024], root[300], path[400], command[400], *first, *again;
    const char *folder = test_path("script");
    size_t bytes, more;
    FILE *file;
    snprintf(root, sizeof root, "%s/root", folder);
    snprintf(command, sizeof command, "mkdir -p '%s/usr/share/common-licenses'", root);
    CHECK(t, !system(command));

    CHECK(t, run_script(folder, root, said, sizeof said) == 1);
    CHECK_TEXT(t, said,
               "corpus: fetching the Debian package dict-gcide (15 MB)\n"
               "corpus: the package dict-gcide cannot be had (no network); taking the English text "
               "of this machine\n"
               "corpus: this machine has 0 bytes of English text, and 200000 are needed: name a "
               "text with CORPUS=file (one sentence per line, a blank line between documents)\n");
    snprintf(path, sizeof path, "%s/corpus.txt", folder);
    CHECK(t, access(path, F_OK) != 0);

    snprintf(path, sizeof path, "%s/usr/share/common-licenses/long", root);
    file = fopen(path, "wb");
    CHECK(t, file);
    for (int i = 0; i < 5000; i++)
        fprintf(file, "Section %c%c%c says that nothing is\nlost by being said. \n\n", 'A' + i % 26,
                'A' + i / 26 % 26, 'A' + i / 676);
    CHECK(t, !fclose(file));
    CHECK(t, run_script(folder, root, said, sizeof said) == 0);
    snprintf(
        expected, sizeof expected,
        "corpus: fetching the Debian package dict-gcide (15 MB)\n"
        "corpus: the package dict-gcide cannot be had (no network); taking the English text "
        "of this machine\n"
        "corpus: licences, documentation and manual pages of this machine: 0.3 MB, 50000 words "
        "in %s/corpus.txt\n",
        folder);
    CHECK_TEXT(t, said, expected);
    snprintf(path, sizeof path, "%s/corpus.txt", folder);
    first = read_all(path, &bytes);
    test_defer(t, free, first);
    CHECK(t, bytes > 200000);
    CHECK(t, !strncmp(first, "Section AAA says that nothing is lost by being said.\n", 53));

    /* Existing files are not changed, and reported as before. */
    CHECK(t, run_script(folder, "/nowhere", said, sizeof said) == 0);
    CHECK_TEXT(t, said, strstr(expected, "corpus: licences"));
    again = read_all(path, &more);
    test_defer(t, free, again);
    CHECK(t, more == bytes && !memcmp(first, again, bytes));
}
