/* Fuzzes the reading of DeepSpeed's configuration: any text sets options or is an error with a text.
 * Options that were set are in their ranges, and what the reader says of them is JSON. The first two
 * bytes say how many ranks there are, and whether unknown keys are errors.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/deepspeed.c IMPLEMENTATION.o -lm \
 *         -o build/fuzz-deepspeed && build/fuzz-deepspeed -runs=1000000 CORPUS \
 *         tests/fuzz/seeds/deepspeed
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow.h"

#include <stdlib.h>
#include <string.h>

static void insist(bool condition)
{
    if (!condition) abort();
}

/* What was set is of its range and has a text that reads back. */
static void check(zf_training *t, const zf_deepspeed *d)
{
    static char text[1 << 16];
    zf_training again = {.clip = 0};
    zf_options all = {.rows = zf_training_options(), .desc = t};
    zf_error error;
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    insist(d->run.batch >= 1 && d->run.micro_batch >= 1 && d->run.batch % d->run.micro_batch == 0);
    insist(zf_options_text(&all, 1, text, sizeof text) < sizeof text);
    all.desc = &again;
    insist(!zf_options_words(&all, text, &error));
    insist(!memcmp(&t->adamw, &again.adamw, sizeof again.adamw) && t->clip == again.clip);
    zf_json_begin_object(w), zf_deepspeed_put_json(d, w), zf_json_end(w);
    (void)zf_json_text(w, NULL, &error);
    insist(!error.status || error.status == ZF_ERR_ARGUMENT); /* a path that is not UTF-8 */
    zf_json_writer_free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    zf_training t = {.clip = 0};
    zf_deepspeed d = {.file = ""};
    zf_error error = {ZF_OK, ""};
    if (size < 2) return 0;
    char *text = malloc(size - 1);
    insist(text != NULL);
    memcpy(text, data + 2, size - 2), text[size - 2] = '\0';
    d.world = data[0] % 9, d.loose = data[1] & 1;
    const zf_status status = zf_deepspeed_read(text, &t, &d, &error);
    insist(!status == !*error.text);
    if (!status) check(&t, &d);
    zf_deepspeed_free(&d);
    insist(!d.settings && !d.json);
    free(text);
    return 0;
}
