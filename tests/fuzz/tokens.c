/* Fuzzes the reader of tokenizer.json: any bytes are a tokenizer or an error. A tokenizer encodes
 * its own file, or says why it cannot; ids are in range, and decode, at once and one by one.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/tokens.c LIBRARIES \
 *         -lpcre2-8 -lm -o build/fuzz-tokens && build/fuzz-tokens -runs=1000000 CORPUS tests/fuzz/seeds/tokens
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow_llm.h"

#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stream(const zf_tokenizer *t, const zf_ids *ids)
{
    zf_error error = {ZF_OK, ""};
    zf_token_stream s;
    size_t bytes;
    REQUIRE(zf_token_stream_open(&s, t, ZF_TOKENIZER_NO_SPECIAL, NULL, 0, &error));
    for (size_t i = 0; i < ids->count && i < 64; i++) {
        const char *part = zf_token_stream_put(&s, ids->at[i], &bytes, &error);
        if (part) REQUIRE(!part[bytes]);
    }
    (void)zf_token_stream_end(&s, &bytes, &error);
    zf_token_stream_close(&s);
}

static void use(const zf_tokenizer *t, const char *text, size_t bytes, unsigned flags)
{
    zf_error error = {ZF_OK, ""};
    zf_ids ids = {.at = NULL};
    zf_text back = {.at = NULL};
    if (zf_tokenizer_encode(t, text, bytes, flags, &ids, &error)) {
        for (size_t i = 0; i < ids.count; i++)
            REQUIRE(ids.at[i] >= 0 && ids.at[i] < zf_tokenizer_size(t));
        if (!zf_tokenizer_decode(t, ids.at, ids.count, 0, &back, &error)) REQUIRE(error.text[0]);
        stream(t, &ids);
    } else {
        REQUIRE(error.text[0]);
    }
    zf_text_free(&back);
    zf_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    zf_error error = {ZF_OK, ""};
    zf_tokenizer *t = zf_tokenizer_parse(text, size, "fuzz", &error);
    REQUIRE(t || !strncmp(error.text, "fuzz:", 5));
    if (!t) return 0;
    use(t, text, size < 4096 ? size : 4096, 0);
    use(t, text, size < 256 ? size : 256, ZF_TOKENIZER_FRAME | ZF_TOKENIZER_LITERAL);
    zf_tokenizer_free(t);
    return 0;
}
