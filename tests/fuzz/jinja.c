/* Fuzzes templates of chats: any bytes are a template or an error that names its line, and a
 * template ends, with a text in UTF-8 or an error. It is run with a conversation, and with limits
 * that are small, so that inputs are fast.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/jinja.c LIBRARIES \
 *         -lpcre2-8 -lm -o build/fuzz-jinja && build/fuzz-jinja -runs=1000000 CORPUS tests/fuzz/seeds/jinja
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow_llm.h"

#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\n\"}, {\"role\": \"user\", "
    "\"content\": \"\\u00e9\\ud83d\\udc26 <b>\"}, {\"role\": \"assistant\", \"content\": null, "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": [2.5, true]}}}]}, "
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}], "
    "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true, \"n\": -3, "
    "\"enable_thinking\": false}";

static void check_text(const zf_text *text, const zf_jinja_spans *marks)
{
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    zf_error error = {ZF_OK, ""};
    REQUIRE(w);
    if (!memchr(text->at, 0, text->count)) { /* JSON is written of UTF-8 alone */
        zf_json_put_string(w, text->at);
        REQUIRE(zf_json_text(w, NULL, &error));
    }
    zf_json_writer_free(w);
    for (size_t i = 0; i < marks->count; i++)
        REQUIRE(marks->at[i].begin <= marks->at[i].end && marks->at[i].end <= text->count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static zf_json *given;
    zf_error error = {ZF_OK, ""};
    zf_text out = {.at = NULL};
    zf_jinja_spans marks = {.at = NULL};
    zf_jinja *t;
    if (!given) REQUIRE((given = zf_json_parse(variables, strlen(variables), NULL, &error)));
    t = zf_jinja_parse((const char *)data, size, "fuzz", &error);
    REQUIRE(t || !strncmp(error.text, "fuzz: line ", 11));
    if (!t) return 0;
    (void)zf_jinja_mentions(t, "tools");
    if (zf_jinja_run(t, &(zf_jinja_desc){given, 1721995200, 20000, (size_t)1 << 20}, &out, &marks,
                     &error))
        check_text(&out, &marks);
    else REQUIRE(!strncmp(error.text, "fuzz: line ", 11) && !out.count && !marks.count);
    zf_jinja_free(t);
    zf_text_free(&out);
    zf_jinja_spans_free(&marks);
    return 0;
}
