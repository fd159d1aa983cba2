/* Tokenizers of tokenizer.json against the package `tokenizers` (tests/golden/tokens/make.py): ids
 * and texts of many kinds, texts in pieces, messages. */
#include "../../zeroflow_llm.h"
#include "../support/test.h"

#include <stdio.h>
#include <sys/stat.h>

#define GOLDEN "tests/golden/tokens/"

/* Of a static buffer, which then is empty for the next test. */
static void free_buffer(void *b) { zf_text_free(b); }
static void free_json(void *json) { zf_json_free(json); }

static void add_file(zf_text *out, const char *path)
{
    char part[4096];
    size_t n;
    FILE *file = fopen(path, "rb");
    while (file && (n = fread(part, 1, sizeof part, file))) zf_text_add(out, part, n);
    if (file) fclose(file);
    else out->failed = true;
}

/* The template of a kind with the parts that it names; *hashes: the lines after it. */
static bool whole_of(const char *kind, zf_text *out, zf_text *hashes)
{
    char path[128];
    const char *at, *end, *part, *close;
    zf_text file = {.at = NULL};
    snprintf(path, sizeof path, GOLDEN "%s.txt", kind);
    add_file(&file, path);
    if (!file.at || file.failed) return zf_text_free(&file), false;
    at = file.at, end = strchr(at, '\n');
    part = strchr(strstr(at, "\"model\""), '@'), close = strchr(part + 1, '@');
    zf_text_add(out, at, (size_t)(part - at));
    snprintf(path, sizeof path, GOLDEN "%.*s.part", (int)(close - part - 1), part + 1);
    add_file(out, path);
    zf_text_add(out, close + 1, (size_t)(end - close - 1));
    zf_text_add_string(hashes, end + 1);
    zf_text_free(&file);
    return !out->failed && !hashes->failed;
}

/* A tokenizer of a kind, with `from` in its text replaced by `to`. NULL with *error. */
static zf_tokenizer *tokens_of(const char *kind, const char *from, const char *to, zf_text *hashes,
                               zf_error *error)
{
    zf_text text = {.at = NULL}, changed = {.at = NULL};
    zf_tokenizer *t = NULL;
    const char *place;
    *error = (zf_error){ZF_ERR_NOMEM, "out of memory"};
    if (whole_of(kind, &text, hashes)) {
        place = from ? strstr(text.at, from) : NULL;
        if (from && !place) snprintf(error->text, sizeof error->text, "there is no %s", from);
        if (place) {
            zf_text_add(&changed, text.at, (size_t)(place - text.at));
            zf_text_add_string(&changed, to);
            zf_text_add_string(&changed, place + strlen(from));
        }
        if (place && !changed.failed)
            t = zf_tokenizer_parse(changed.at, changed.count, kind, error);
        if (!from) t = zf_tokenizer_parse(text.at, text.count, kind, error);
    }
    zf_text_free(&text);
    zf_text_free(&changed);
    return t;
}

static void free_tokens(void *t) { zf_tokenizer_free(t); }

static uint32_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint32_t h = 0x811C9DC5u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x01000193u;
    return h;
}

/* Hashes of the ids of a text, and of what they decode to. */
static bool hash_text(const zf_tokenizer *t, const char *text, size_t bytes, uint32_t out[3],
                      zf_error *error)
{
    zf_ids ids = {.at = NULL};
    bool good = zf_tokenizer_encode(t, text, bytes, ZF_TOKENIZER_FRAME, &ids, error);
    out[0] = hash_of(ids.at, ids.count * sizeof *ids.at);
    for (unsigned flags = 0; flags < 2 && good; flags++) {
        zf_text back = {.at = NULL};
        good = zf_tokenizer_decode(t, ids.at, ids.count, flags, &back, error);
        out[2 - flags] = hash_of(back.at, back.count);
        zf_text_free(&back);
    }
    zf_ids_free(&ids);
    return good;
}

/* A text from its ids one by one has the hash of the whole. */
static bool hash_stream(const zf_tokenizer *t, const char *text, size_t bytes, uint32_t *out,
                        zf_error *error)
{
    zf_ids ids = {.at = NULL};
    zf_text all = {.at = NULL};
    zf_token_stream s;
    bool good = zf_tokenizer_encode(t, text, bytes, ZF_TOKENIZER_FRAME, &ids, error);
    if (good && zf_token_stream_open(&s, t, 0, NULL, 0, error)) {
        for (size_t i = 0; i <= ids.count && good; i++) {
            size_t n;
            const char *part = i < ids.count ? zf_token_stream_put(&s, ids.at[i], &n, error)
                                             : zf_token_stream_end(&s, &n, error);
            good = part != NULL;
            if (good) zf_text_add(&all, part, n);
        }
        zf_token_stream_close(&s);
    }
    if (all.failed) error->status = ZF_ERR_NOMEM;
    *out = hash_of(all.at, all.count);
    zf_ids_free(&ids);
    zf_text_free(&all);
    return good && !error->status;
}

static void compare(test *t, const char *kind, const zf_tokenizer *tokenizer, const zf_json *texts,
                    const char *line)
{
    zf_error error = {ZF_OK, ""};
    for (const zf_json *v = zf_json_first(texts); v; v = zf_json_next(v), line += 27) {
        uint32_t got[3], streamed;
        char line_got[200], want[200];
        size_t bytes;
        const char *text = zf_json_string(v, &bytes);
        if (!hash_text(tokenizer, text, bytes, got, &error) ||
            !hash_stream(tokenizer, text, bytes, &streamed, &error)) {
            OK(t, error.status, error.text);
            return;
        }
        snprintf(line_got, sizeof line_got, "%s: %.80s: %08x %08x %08x %08x", kind, text, got[0],
                 got[1], got[2], streamed);
        snprintf(want, sizeof want, "%s: %.80s: %.26s %.8s", kind, text, line, line + 18);
        CHECK_TEXT(t, line_got, want);
    }
    CHECK(t, !*line);
}

static void compare_kind(test *t, const char *kind, const zf_json *texts)
{
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_tokenizer *tokenizer = tokens_of(kind, NULL, NULL, &hashes, &error);
    if (tokenizer) compare(t, kind, tokenizer, texts, hashes.at);
    else if (!zf_regex_there() && strstr(error.text, "PCRE2")) test_skip(t, "PCRE2");
    else test_unwind(t, __FILE__, __LINE__, kind, error.status, error.text);
    zf_tokenizer_free(tokenizer);
    zf_text_free(&hashes);
}

static const char *const kinds[] = {"gpt2",
                                    "gpt2_prefix",
                                    "llama3",
                                    "qwen2",
                                    "cases",
                                    "digits",
                                    "runs_of_digits",
                                    "roberta",
                                    "nfd",
                                    "nfkc",
                                    "nfkd",
                                    "spaces",
                                    "odd_regex",
                                    "llama2",
                                    "mistral",
                                    "added",
                                    "first",
                                    "always",
                                    "never",
                                    "plain",
                                    "words",
                                    "unigram",
                                    "unigram_bytes",
                                    "unigram_first",
                                    "split_Removed",
                                    "split_Isolated",
                                    "split_MergedWithPrevious",
                                    "split_MergedWithNext",
                                    "split_Contiguous",
                                    "invert_Removed",
                                    "invert_Isolated",
                                    "invert_MergedWithPrevious",
                                    "invert_MergedWithNext",
                                    "invert_Contiguous"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static zf_json *texts_of(test *t, zf_error *error)
{
    zf_json *texts = zf_json_read(GOLDEN "texts.json", NULL, error);
    if (texts) test_defer(t, free_json, texts);
    return texts;
}

#define KINDS_FROM(first, last)                                                                    \
    zf_error error = {ZF_OK, ""};                                                                  \
    zf_json *texts = texts_of(t, &error);                                                          \
    NEED(t, texts, &error);                                                                        \
    for (int k = first; k < last && !t->failed && !t->unwound; k++) compare_kind(t, kinds[k], texts)

TEST_ONCE(tokens_of_bytes_equal_the_package) { KINDS_FROM(0, 13); }
TEST_ONCE(tokens_of_characters_equal_the_package) { KINDS_FROM(13, 24); }
TEST_ONCE(tokens_split_as_the_package) { KINDS_FROM(24, KINDS); }

/* What is between characters decides, so each is among others. */
TEST_ONCE(normal_forms_of_all_characters)
{
    static zf_text text, out, golden;
    const char *line;
    char got[16];
    add_file(&golden, GOLDEN "forms.txt");
    line = golden.at;
    test_defer(t, free_buffer, &text);
    test_defer(t, free_buffer, &out);
    test_defer(t, free_buffer, &golden);
    if (golden.failed) OK(t, ZF_ERR_NOMEM, "out of memory");
    static const struct {
        const char *name;
        zf_normal_form form;
    } forms[] = {{"NFC", ZF_NFC}, {"NFD", ZF_NFD}, {"NFKC", ZF_NFKC}, {"NFKD", ZF_NFKD}};
    for (int k = 0; k < 4; k++)
        for (uint32_t block = 0; block < 0x30000; block += 0x1000, line += 9) {
            zf_text_clear(&text);
            zf_text_clear(&out);
            zf_text_add_string(&out, "");
            for (uint32_t c = block; c < block + 0x1000; c++) {
                if (c >= 0xD800 && c < 0xE000) continue;
                zf_text_add_string(&text, "a\xCC\x81");
                zf_text_add_character(&text, c);
                zf_text_add_string(&text, "\xCC\xA3");
                zf_text_add_character(&text, c);
            }
            if (!text.failed) zf_text_normalize(text.at ? text.at : "", text.count, forms[k].form,
                                                &out);
            if (text.failed || out.failed) OK(t, ZF_ERR_NOMEM, "out of memory");
            snprintf(got, sizeof got, "%08x", hash_of(out.at, out.count));
            if (memcmp(got, line, 8)) {
                snprintf(got, sizeof got, "%s at %x", forms[k].name, block);
                test_fail(t, __FILE__, __LINE__, "a normalization form", got);
                return;
            }
        }
    CHECK(t, !*line);
}

/* -------------------------------------------------------------------------------- messages */

#define SEQUENCE "{\"type\":\"Sequence\",\"normalizers\":["
#define DEEP_SEQUENCE                                                                              \
    SEQUENCE SEQUENCE SEQUENCE SEQUENCE SEQUENCE SEQUENCE SEQUENCE SEQUENCE SEQUENCE "]}]}]}]}]}"  \
                                                                                     "]}]}]}]}"
#define FOUR_STEPS "{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},"
#define AROUND     "{\"type\":\"BertProcessing\",\"sep\":[\"a\",0],\"cls\":[\"b\",1]}"
#define MANY_STEPS SEQUENCE FOUR_STEPS FOUR_STEPS FOUR_STEPS FOUR_STEPS "{\"type\":\"NFC\"}]}"

TEST_ONCE(tokens_that_are_not_supported_are_named)
{
    static const struct {
        const char *kind, *from, *to, *says;
    } cases[] = {
        {"mistral", "\"type\":\"BPE\"", "\"type\":\"WordLevel\"",
         "model.type must be one of BPE, Unigram, not \"WordLevel\""},
        {"mistral", "\"type\":\"BPE\"", "\"type\":\"Unigram\"",
         "model.unk_token is not read, and may change the text"},
        {"unigram", "\"type\":\"Unigram\"", "\"type\":\"BPE\"", "model lacks \"merges\""},
        {"unigram", "\"unk_id\":0", "\"unk_id\":1000", "model.unk_id must be an integer from 0 to"},
        {"unigram", "[\"<unk>\",0.0]", "[\"<unk>\",\"0\"]", "model.vocab[0]"},
        {"unigram", "[\"<unk>\",0.0]", "[\"<unk>\"]",
         "model.vocab[0] must be a token and its score, [\"the\", -3.2], not"},
        {"unigram", "[\"<unk>\",0.0]", "[0.0,\"<unk>\"]", "model.vocab[0] must be a token and its"},
        {"mistral", "\"type\":\"Metaspace\"", "\"type\":\"BertPreTokenizer\"",
         "pre_tokenizer.type must be one of ByteLevel, Digits, Metaspace, Sequence, Split, "
         "WhitespaceSplit, not \"BertPreTokenizer\""},
        {"llama2", "\"type\":\"Prepend\"", "\"type\":\"Precompiled\"",
         "normalizer.normalizers[0].type must be one of Lowercase, NFC, NFD, NFKC, NFKD, "
         "Prepend, Replace, Sequence, Strip, not \"Precompiled\""},
        {"mistral", "\"type\":\"Fuse\"", "\"type\":\"CTC\"",
         "decoder.decoders[2].type must be one"},
        {"mistral", "\"type\":\"TemplateProcessing\"", "\"type\":\"Mine\"",
         "post_processor.type must be one of"},
        {"mistral", "\"dropout\":null", "\"dropout\":0.1", "model.dropout must be null"},
        {"mistral", "\"dropout\":null", "\"dropping\":0", "model.dropping is not read, and may"},
        {"mistral", "\"type\":\"Fuse\"", "\"type\":\"Fuse\",\"by\":\"\"",
         "decoder.decoders[2].by is not read, and may change the text"},
        {"mistral", "\"type\":\"Metaspace\"", "\"type\":\"Metaspace\",\"twice\":true",
         "pre_tokenizer.twice is not read, and may change the text"},
        {"mistral", "\"type\":\"Metaspace\"", "\"type\":\"Metaspace\",\"add_prefix_space\":false",
         "prepend_scheme must be never, since add_prefix_space is false, not \"first\""},
        {"llama2", "\"type\":\"Prepend\"", "\"type\":\"Prepend\",\"append\":\"x\"",
         "normalizer.normalizers[0].append is not read, and may change the text"},
        {"mistral", "\"type\":\"TemplateProcessing\"",
         "\"type\":\"TemplateProcessing\",\"triple\":[]",
         "post_processor.triple is not read, and may change the text"},
        {"mistral", "\"id\":2,", "\"id\":2,\"hidden\":true,",
         "added_tokens[2].hidden is not read, and may change the text"},
        {"mistral", "\"normalizer\":", "\"finalizer\":{},\"normalizer\":",
         "finalizer is not read, and may change the text"},
        {"mistral", "\"first\"", "\"second\"",
         "prepend_scheme must be one of always, first, never"},
        {"mistral", "\"unk_token\":\"<unk>\"", "\"unk_token\":\"<none>\"",
         "model.unk_token is not in vocab"},
        {"mistral", "\"merges\":[[", "\"merges\":[[\"q!\",\"a\"],[",
         "model.merges[0] has \"q!\", which is not in vocab"},
        {"mistral", "\"merges\":[[", "\"merges\":[[\"b\",\"q\"],[",
         "model.merges[0] has \"q\", which is not in vocab"},
        {"mistral", "\"merges\":[[", "\"merges\":[[\"s\",\"b\"],[",
         "model.merges[0] makes \"sb\", which is not in vocab"},
        {"mistral", "\"merges\":[[", "\"merges\":[\"a b c\",[",
         "model.merges[0] must be two tokens with a space between them, not \"a b c\""},
        {"mistral", "\"</s>\":2", "\"</s>\":1",
         "model.vocab.\"</s>\" has the id 1, as another token has"},
        {"mistral", "\"</s>\":2", "\"</s>\":-2", "must be an integer from 0 to 16777215, not -2"},
        {"mistral", "\"id\":2,\"content\":\"</s>\"", "\"id\":3,\"content\":\"</s>\"",
         "added_tokens[2].id must be 2, the id that the token has in model.vocab, not 3"},
        {"mistral", "\"id\":2,\"content\":\"</s>\"", "\"id\":3,\"content\":\"</end>\"",
         "added_tokens[2].id is the id of another token in model.vocab"},
        {"mistral", "\"id\":2,\"content\":\"</s>\"", "\"id\":2,\"content\":\"\"",
         "added_tokens[2].content must be a text, not \"\""},
        {"mistral", "\"ids\":[2]", "\"ids\":[2000]", "must be an integer from 0 to 419, not 2000"},
        {"gpt2", "\"id\":340", "\"id\":20", "added_tokens[0].id is the id of another token"},
        {"llama3", "\"id\":341", "\"id\":340", "added_tokens[1].id is the id of two added tokens"},
        {"split_Removed", "\"Removed\"", "\"Deleted\"",
         "pre_tokenizer.pretokenizers[0].behavior must be one of Removed, Isolated"},
        {"split_Removed", "\\\\p{P}", "[a[b]]",
         "the regular expression has [ at byte 3, a set within a set"},
        {"split_Removed", "\\\\p{P}", "a\\\\b", "has \\b at byte 2, an escape"},
        {"split_Removed", "\\\\p{P}", "(?<name>a)", "has (?<n at byte 1, a kind of group"},
        {"split_Removed", "\\\\p{P}", "a{1,2}+", "has {1,2}+ at byte 2, an interval with a sign after it"},
        {"split_Removed", "\\\\p{P}", "\\\\pP", "has \\p at byte 1, a property without {}"},
        {"split_Removed", "\\\\p{P}", "(a", "the regular expression (a is wrong at byte 3:"},
        {"mistral", "\"normalizer\":null", "\"normalizer\":" DEEP_SEQUENCE,
         "normalizers[0].normalizers[0] is a sequence too deep"},
        {"mistral", "\"normalizer\":null", "\"normalizer\":" MANY_STEPS,
         "makes more than 16 steps"},
        {"mistral", "\"Sequence\":{\"id\":\"A\",\"type_id\":0}}",
         "\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"}}",
         "post_processor.single[2] has a text for the second time"},
        {"mistral",
         ",\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]},"
         "\"</s>\":{\"id\":\"</s>\",\"ids\":[2],\"tokens\":[\"</s>\"]}}",
         "", "post_processor.single[0].SpecialToken is not among special_tokens"},
        {"words", "\"post_processor\":null",
         "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" AROUND "," AROUND "]}",
         "post_processor.processors[1] is the second one that puts tokens around a text"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        zf_text hashes = {.at = NULL};
        zf_error error;
        zf_tokenizer *tokenizer =
            tokens_of(cases[k].kind, cases[k].from, cases[k].to, &hashes, &error);
        char got[700];
        zf_text_free(&hashes);
        zf_tokenizer_free(tokenizer);
        if (!zf_regex_there() && strstr(error.text, "PCRE2")) continue;
        snprintf(got, sizeof got, "%s", tokenizer ? "read" : error.text);
        if (!strstr(got, cases[k].says)) CHECK_TEXT(t, got, cases[k].says);
        if (error.status != ZF_ERR_NOMEM)
            CHECK(t, !strncmp(got, cases[k].kind, strlen(cases[k].kind)));
    }
}

/* An empty match directly after another one is none. */
TEST_ONCE(tokens_of_empty_matches)
{
    static const char *const changes[2] = {
        "\"normalizer\":null",
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"e*\"},\"content\":\"x\"}"};
    static const char *const texts[2] = {"xaxbx", "aeeb"};
    zf_text hashes = {.at = NULL};
    zf_ids ids[2] = {{.at = NULL}, {.at = NULL}};
    zf_error error = {ZF_OK, ""};
    bool same;
    for (int k = 0; k < 2 && zf_regex_there() && !error.status; k++) {
        zf_tokenizer *tokenizer = tokens_of("mistral", changes[0], changes[k], &hashes, &error);
        if (tokenizer) error = (zf_error){ZF_OK, ""};
        (void)(tokenizer &&
               zf_tokenizer_encode(tokenizer, texts[k], strlen(texts[k]), 0, &ids[k], &error));
        zf_tokenizer_free(tokenizer);
    }
    same = ids[0].count == ids[1].count &&
           (!ids[0].count || !memcmp(ids[0].at, ids[1].at, ids[0].count * sizeof *ids[0].at));
    zf_ids_free(&ids[0]), zf_ids_free(&ids[1]);
    zf_text_free(&hashes);
    OK(t, error.status, error.text);
    CHECK(t, same);
}

TEST_ONCE(tokens_of_a_model_without_an_unknown_token)
{
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_tokenizer *tokenizer = tokens_of("unigram", "\"unk_id\":0", "\"unk_id\":null", &hashes, &error);
    zf_ids ids = {.at = NULL};
    bool good;
    zf_text_free(&hashes);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    good = zf_tokenizer_encode(tokenizer, "the birds", 9, 0, &ids, &error);
    if (good)
        good = !zf_tokenizer_encode(tokenizer, "the \xE6\x97\xA5\xE6\x97\xA5!", 11, 0, &ids, &error);
    zf_ids_free(&ids);
    CHECK_TEXT(t, error.text,
               "the tokenizer has no token for \"\xE6\x97\xA5\xE6\x97\xA5!\", and no unk_id");
    CHECK(t, good);
}

TEST_ONCE(tokens_of_a_folder)
{
    zf_error error = {ZF_OK, ""};
    CHECK(t, !zf_tokenizer_open(GOLDEN, &error));
    CHECK_TEXT(t, error.text, "cannot open " GOLDEN "/tokenizer.json: No such file or directory");
}

/* A folder with `count` added tokens in tokenizer.json, and as many in added_tokens.json, each of
 * which is named; how often names are compared. */
static long comparisons_of(test *t, int count)
{
    static const char *const names[] = {"tokenizer.json", "added_tokens.json",
                                        "tokenizer_config.json"};
    const char *folder = test_path("added");
    zf_text text[3] = {{.at = NULL}};
    zf_tokenizer *tokenizer = NULL;
    zf_error error = {ZF_OK, ""};
    long before;
    bool good = true;
    mkdir(folder, 0777);
    zf_text_add_string(&text[0], "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, "
                                 "\"added_tokens\": [");
    zf_text_add_string(&text[1], "{"), zf_text_add_string(&text[2], "{\"extra_special_tokens\": [");
    for (int k = 0; k < count; k++) {
        char one[3][100];
        const char *comma = k ? "," : "";
        snprintf(one[0], sizeof one[0], "%s{\"id\": %d, \"content\": \"<%d>\"}", comma, k + 1, k);
        snprintf(one[1], sizeof one[1], "%s\"[%d]\": %d", comma, k, count + k + 1);
        snprintf(one[2], sizeof one[2], "%s\"[%d]\"", comma, count - 1 - k);
        for (int n = 0; n < 3; n++) zf_text_add_string(&text[n], one[n]);
    }
    zf_text_add_string(&text[0], "]}"), zf_text_add_string(&text[1], "}");
    zf_text_add_string(&text[2], "]}");
    for (int n = 0; n < 3; n++) {
        char path[400];
        FILE *file;
        snprintf(path, sizeof path, "%s/%s", folder, names[n]);
        good &= !text[n].failed && (file = fopen(path, "wb")) &&
                fwrite(text[n].at, 1, text[n].count, file) == text[n].count && !fclose(file);
        zf_text_free(&text[n]);
    }
    before = test_comparisons();
    if (good) tokenizer = zf_tokenizer_open(folder, &error);
    before = test_comparisons() - before;
    if (!tokenizer) return test_fail(t, __FILE__, __LINE__, "zf_tokenizer_open", error.text), 0;
    good = zf_tokenizer_size(tokenizer) == 2 * count + 1 &&
           zf_tokenizer_id(tokenizer, "[7]") == count + 8 &&
           zf_tokenizer_is_special(tokenizer, count + 8) && !zf_tokenizer_is_special(tokenizer, 8);
    zf_tokenizer_free(tokenizer);
    return good ? before : 0;
}

/* Four times as many added tokens are four times as much to compare. */
TEST_ONCE(tokens_that_are_added_are_many)
{
    const long few = comparisons_of(t, 100), many = comparisons_of(t, 400);
    CHECK(t, few && many < 5 * few);
}

/* ------------------------------------------------------------------------------------ texts */

static bool ids_are(const zf_ids *ids, const int32_t *want, size_t count)
{
    return ids->count == count && !memcmp(ids->at, want, count * sizeof *want);
}

TEST_ONCE(tokens_special_and_literal)
{
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_ids ids = {.at = NULL};
    zf_tokenizer *tokenizer = tokens_of("mistral", NULL, NULL, &hashes, &error);
    size_t bytes;
    zf_text_free(&hashes);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    CHECK(t, zf_tokenizer_size(tokenizer) == 420 && zf_tokenizer_id(tokenizer, "</s>") == 2);
    CHECK(t, zf_tokenizer_is_special(tokenizer, 2) && !zf_tokenizer_is_special(tokenizer, 3));
    CHECK(t, zf_tokenizer_id(tokenizer, "no such token") == -1 &&
                 !zf_tokenizer_token(tokenizer, 420, &bytes) &&
                 !zf_tokenizer_token(tokenizer, -1, &bytes));
    CHECK_TEXT(t, zf_tokenizer_token(tokenizer, 3 + 65, &bytes), "<0x41>");
    error = (zf_error){ZF_OK, ""};
    if (!zf_tokenizer_encode(tokenizer, "</s>", 4, 0, &ids, &error))
        OK(t, error.status, error.text);
    CHECK(t, ids_are(&ids, (int32_t[]){2}, 1));
    ids.count = 0;
    if (!zf_tokenizer_encode(tokenizer, "</s>", 4, ZF_TOKENIZER_LITERAL, &ids, &error)) {
        zf_ids_free(&ids);
        OK(t, error.status, error.text);
    }
    bytes = ids.count;
    for (size_t i = 0; i < ids.count; i++) bytes += ids.at[i] == 2 ? 100 : 0;
    zf_ids_free(&ids);
    CHECK(t, bytes > 1 && bytes < 100);
}

/* a b waits when b becomes bc: then it is no pair any more, though a and bc are one. */
TEST_ONCE(tokens_merge_what_is_still_there)
{
    static const char text[] = "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, "
                               "\"bc\": 4, \"abc\": 5}, \"merges\": [\"b c\", \"a b\", \"a bc\"]}}";
    zf_error error = {ZF_OK, ""};
    zf_ids ids = {.at = NULL};
    zf_tokenizer *tokenizer = zf_tokenizer_parse(text, sizeof text - 1, "abc", &error);
    bool good;
    NEED(t, tokenizer, &error);
    (void)zf_tokenizer_encode(tokenizer, "abc", 3, 0, &ids, &error);
    good = ids_are(&ids, (int32_t[]){5}, 1);
    zf_ids_free(&ids);
    zf_tokenizer_free(tokenizer);
    OK(t, error.status, error.text);
    CHECK(t, good);
}

TEST_ONCE(tokens_of_what_is_not_utf8)
{
    static const char *const wrong[] = {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xC0\x80"};
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_tokenizer *tokenizer = tokens_of("mistral", NULL, NULL, &hashes, &error);
    zf_text_free(&hashes);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    for (int k = 0; k < 4; k++) {
        zf_ids ids = {.at = NULL};
        CHECK(t, !zf_tokenizer_encode(tokenizer, wrong[k], strlen(wrong[k]), 0, &ids, &error));
        zf_ids_free(&ids);
        CHECK_TEXT(t, error.text, "the text is not UTF-8 at byte 3");
    }
}

/* What a stream gives for ids of single bytes, a piece each, with | between them. */
static const char *pieces_of(const zf_tokenizer *tokenizer, const char *bytes,
                             const int32_t *context, size_t count, zf_error *error)
{
    static char out[200];
    zf_token_stream s;
    size_t n, used = 0;
    if (!zf_token_stream_open(&s, tokenizer, 0, context, count, error)) return error->text;
    for (const char *p = bytes;; p++) {
        const char *part = *p ? zf_token_stream_put(&s, 3 + (unsigned char)*p, &n, error)
                              : zf_token_stream_end(&s, &n, error);
        if (!part) break;
        used += (size_t)snprintf(out + used, sizeof out - used, "%s|", part);
        if (!*p) break;
    }
    zf_token_stream_close(&s);
    return error->status ? error->text : out;
}

TEST_ONCE(token_streams_wait_for_whole_characters)
{
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_tokenizer *tokenizer = tokens_of("mistral", NULL, NULL, &hashes, &error);
    int32_t space = 0;
    zf_text_free(&hashes);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    error = (zf_error){ZF_OK, ""};
    CHECK_TEXT(t, pieces_of(tokenizer, "aé🐦", NULL, 0, &error), "a||é||||🐦||");
    CHECK_TEXT(t, pieces_of(tokenizer, "a\xF0\x9F", NULL, 0, &error),
               "a|||\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|");
    /* A space is taken off the beginning of a text, but not of one that goes on. */
    CHECK_TEXT(t, pieces_of(tokenizer, " a", NULL, 0, &error), "|a||");
    space = zf_tokenizer_id(tokenizer, "▁the");
    CHECK_TEXT(t, pieces_of(tokenizer, " a", &space, 1, &error), " |a||");
    /* What never becomes a character does not wait for ever. */
    CHECK_TEXT(
        t,
        pieces_of(tokenizer,
                  "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
                  "\xFF\xFF",
                  NULL, 0, &error),
        "|||||||||||||||"
        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
        "\xEF\xBF\xBD\xEF\xBF\xBD||\xEF\xBF\xBD|");
}

/* A text without a pre_tokenizer is one word: it takes time in proportion to n log n. */
TEST_ONCE(tokens_of_a_long_word)
{
    enum { WORDS = 40000 };
    static const char word[] = "the birds ";
    static const int repeats[] = {2, 3, WORDS};
    size_t count[3] = {0};
    static zf_text text;
    zf_text hashes = {.at = NULL};
    zf_error error;
    zf_tokenizer *tokenizer = tokens_of("llama2", NULL, NULL, &hashes, &error);
    zf_text_free(&hashes);
    NEED(t, tokenizer, &error);
    test_defer(t, free_tokens, tokenizer);
    test_defer(t, free_buffer, &text);
    for (int i = 0; i < WORDS; i++) zf_text_add_string(&text, word);
    if (text.failed) OK(t, ZF_ERR_NOMEM, "out of memory");
    error = (zf_error){ZF_OK, ""};
    for (int k = 0; k < 3 && !error.status; k++) {
        zf_ids ids = {.at = NULL};
        (void)zf_tokenizer_encode(tokenizer, text.at, (size_t)repeats[k] * (sizeof word - 1), 0,
                                  &ids, &error);
        count[k] = ids.count;
        zf_ids_free(&ids);
    }
    OK(t, error.status, error.text);
    CHECK(t, count[1] > count[0]);
    CHECK(t, count[2] == count[1] + (WORDS - 3) * (count[1] - count[0]));
}
