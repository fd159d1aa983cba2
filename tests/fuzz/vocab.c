/* Fuzzes the BERT tokenizer: the input is a vocabulary file, a text, and sometimes a corpus.
 *
 *     make fuzz-vocab
 *
 * As a vocabulary it is read twice: as it is, and after the five special tokens, with which it
 * passes far more often. What passes then encodes the input itself.
 */
#include "../../zeroflow_llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The ids of a text are in range, as many as announced, and the same whatever the room for them. */
static void encode(const zf_wordpiece *v, const char *text, size_t bytes, unsigned flags)
{
    int64_t n = zf_wordpiece_encode(v, text, bytes, flags, NULL, 0);
    int32_t *all, *half;
    REQUIRE(n >= 0 && (uint64_t)n <= bytes); /* no character gives more ids than it has bytes */
    all = malloc((size_t)n * sizeof *all);
    half = malloc((size_t)(n / 2) * sizeof *half);
    if (n && all && half) {
        REQUIRE(zf_wordpiece_encode(v, text, bytes, flags, all, n) == n);
        REQUIRE(zf_wordpiece_encode(v, text, bytes, flags, half, n / 2) == n);
        REQUIRE(!memcmp(all, half, (size_t)(n / 2) * sizeof *half));
        for (int64_t i = 0; i < n; i++) REQUIRE(all[i] >= 0 && all[i] < zf_wordpiece_size(v));
    }
    free(all);
    free(half);
}

/* Refused with a message, or every token has its id and the subject encodes. */
static void read_vocab(const char *text, size_t bytes, const char *subject, size_t subject_bytes)
{
    zf_error error = {ZF_OK, ""};
    for (int lower_case = 0; lower_case < 2; lower_case++) {
        zf_wordpiece *v = zf_wordpiece_parse(text, bytes, "fuzz", zf_wordpiece_cased(!lower_case),
                                             &error);
        REQUIRE(v || !strncmp(error.text, "fuzz:", 5));
        if (!v) continue;
        for (int32_t id = 0; id < zf_wordpiece_size(v); id++) {
            const char *token = zf_wordpiece_token(v, id);
            REQUIRE(!*token || zf_wordpiece_id(v, token) == id);
        }
        encode(v, subject, subject_bytes, 0);
        encode(v, subject, subject_bytes, ZF_WORDPIECE_SPECIAL);
        zf_wordpiece_free(v);
    }
}

/* Training fails for a reason or writes what can be read. */
static void train(const char *text, size_t bytes)
{
    char corpus[64], out[64];
    zf_error error = {ZF_OK, ""};
    int32_t n = -1;
    FILE *f;
    snprintf(corpus, sizeof corpus, "/tmp/zeroflow-fuzz-%ld.txt", (long)getpid());
    snprintf(out, sizeof out, "/tmp/zeroflow-fuzz-%ld.vocab", (long)getpid());
    f = fopen(corpus, "wb");
    if (!f) return;
    fwrite(text, 1, bytes, f);
    fclose(f);
    n = zf_wordpiece_train(corpus, 5 + (int32_t)(bytes % 300), NULL, out, &error);
    REQUIRE(n > 0 || !strncmp(error.text, corpus, strlen(corpus)));
    if (n > 0) {
        zf_wordpiece *v = zf_wordpiece_open(out, NULL, &error);
        REQUIRE(v && zf_wordpiece_size(v) == n && n <= 5 + (int32_t)(bytes % 300));
        encode(v, text, bytes, 0);
        zf_wordpiece_free(v);
    }
    remove(corpus);
    remove(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char five[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    const size_t head = sizeof five - 1;
    const char *text = (const char *)data;
    char *after = malloc(head + size);
    if (!after) return 0;
    memcpy(after, five, head);
    if (size) memcpy(after + head, data, size);
    read_vocab(text, size, text, size);
    read_vocab(after, head + size, text, size);
    free(after);
    if (size % 16 == 1 && data[0] == 'T') train(text + 1, size - 1); /* slow, so seldom */
    return 0;
}
