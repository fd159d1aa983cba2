/* Trains a vocabulary on a text and encodes it, on one core: build/bench/tokenizer CORPUS [SIZE] */
#include "../zeroflow_llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC; /* of this process: what others take does not count */
}

int main(int argc, char **argv)
{
    char *text = NULL, *more;
    zf_error error = {ZF_OK, ""};
    size_t bytes = 0, room = 0;
    double start = seconds(), best = 1e30;
    zf_wordpiece *vocab;
    int64_t ids = 0;
    int32_t size = argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : 8192;
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!f) {
        fprintf(stderr, "usage: bench-tokenizer CORPUS [SIZE]\n");
        return 2;
    }
    size = zf_wordpiece_train(argv[1], size, NULL, "build/bench-vocab.txt", &error);
    start = seconds() - start;
    vocab = size < 0 ? NULL : zf_wordpiece_open("build/bench-vocab.txt", NULL, &error);
    if (!vocab) {
        fprintf(stderr, "bench-tokenizer: %s\n", error.text);
        return 1;
    }
    while (!feof(f) && !ferror(f)) {
        if (bytes == room) {
            more = realloc(text, room = room ? 2 * room : 1 << 20);
            if (!more) return 1;
            text = more;
        }
        bytes += fread(text + bytes, 1, room - bytes, f);
    }
    printf("train   %d tokens from %.1f MB: %.2f s\n", (int)size, (double)bytes / 1e6, start);
    for (int run = 0; run < 5; run++) {
        double took = seconds();
        ids = zf_wordpiece_encode(vocab, text, bytes, 0, NULL, 0);
        took = seconds() - took;
        if (took < best) best = took;
    }
    printf("encode  %lld ids: %.1f MB/s, %.1f million ids/s, best of 5\n", (long long)ids,
           (double)bytes / 1e6 / best, (double)ids / 1e6 / best);
    zf_wordpiece_free(vocab);
    free(text);
    fclose(f);
    return 0;
}
