/* Fuzzes the reader of tokenizer.json: any bytes are a tokenizer or an error. A tokenizer encodes
 * its own file, or says why it cannot; ids are in range, and decode, at once and one by one.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/tokens.c LIBRARIES \
 *         -lpcre2-8 -lm -o build/fuzz-tokens && build/fuzz-tokens -runs=1000000 CORPUS tests/fuzz/seeds/tokens
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../llm/text/tokens.h"

#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stream(const tokens *t, const id_list *ids)
{
    zf_error error = {ZF_OK, ""};
    token_stream s;
    size_t bytes;
    REQUIRE(token_stream_open(&s, t, TOKENS_NO_SPECIAL, NULL, 0, &error));
    for (size_t i = 0; i < ids->count && i < 64; i++) {
        const char *part = token_stream_put(&s, ids->at[i], &bytes, &error);
        if (part) REQUIRE(!part[bytes]);
    }
    (void)token_stream_end(&s, &bytes, &error);
    token_stream_close(&s);
}

static void use(const tokens *t, const char *text, size_t bytes, unsigned flags)
{
    zf_error error = {ZF_OK, ""};
    id_list ids = {.at = NULL};
    buffer back = {.at = NULL};
    if (tokens_encode(t, text, bytes, flags, &ids, &error)) {
        for (size_t i = 0; i < ids.count; i++)
            REQUIRE(ids.at[i] >= 0 && ids.at[i] < tokens_size(t));
        if (!tokens_decode(t, ids.at, ids.count, 0, &back, &error)) REQUIRE(error.text[0]);
        stream(t, &ids);
    } else {
        REQUIRE(error.text[0]);
    }
    buffer_free(&back);
    id_list_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    zf_error error = {ZF_OK, ""};
    tokens *t = tokens_parse(text, size, "fuzz", &error);
    REQUIRE(t || !strncmp(error.text, "fuzz:", 5));
    if (!t) return 0;
    use(t, text, size < 4096 ? size : 4096, 0);
    use(t, text, size < 256 ? size : 256, TOKENS_FRAME | TOKENS_LITERAL);
    tokens_free(t);
    return 0;
}
