/* Fuzzes the reading of options into a zf_training: any command line, words or JSON set options or
 * are an error with a text. What has been set is printed as words and as JSON; read again, both
 * print the same. The first byte says how the others are read.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/options.c IMPLEMENTATION.o -lm \
 *         -o build/fuzz-options && build/fuzz-options -runs=1000000 CORPUS tests/fuzz/seeds/options
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 64, TEXT = 1 << 16 };

static void insist(bool condition)
{
    if (!condition) abort();
}

static zf_options options_of(zf_training *t)
{
    return (zf_options){.rows = zf_training_options(), .desc = t};
}

/* As a command line, whose arguments are lines. */
static zf_status take(zf_training *t, char *text, zf_error *error)
{
    const zf_options all = options_of(t);
    char *argv[WORDS + 1] = {text};
    int argc = 1, before;
    for (char *at = strtok(text, "\n"); at && argc < WORDS; at = strtok(NULL, "\n"))
        argv[argc++] = at;
    before = argc;
    const zf_status status = zf_options_take(&all, 1, &argc, argv, error);
    insist(argc >= 1 && argc <= before);
    return status;
}

/* As the JSON that begins with `text`; *json must outlive the desc. */
static zf_status read_json(zf_training *t, const char *text, zf_json **json, zf_error *error)
{
    const zf_options all = options_of(t);
    *json = zf_json_parse(text, strlen(text), NULL, error);
    return *json ? zf_options_read_json(&all, *json, error) : error->status;
}

static void print(zf_training *t, char text[TEXT])
{
    const zf_options all = options_of(t);
    insist(zf_options_text(&all, 1, text, TEXT) < TEXT);
}

/* Words of the printed options set the same. */
static void check_words(const char *printed)
{
    static char copy[TEXT], again[TEXT];
    zf_training t = {.clip = 0};
    zf_error error;
    const zf_options all = options_of(&t);
    strcpy(copy, printed);
    insist(!zf_options_words(&all, copy, &error));
    print(&t, again);
    insist(!strcmp(printed, again));
}

/* So does their JSON. */
static void check_json(zf_training *t, const char *printed)
{
    static char again[TEXT];
    zf_training other = {.clip = 0};
    const zf_options all = options_of(t);
    zf_error error;
    zf_json *json;
    size_t bytes;
    zf_json_writer *writer = zf_json_writer_new(0, NULL);
    insist(writer != NULL);
    zf_json_begin_object(writer);
    zf_options_put_json(&all, 1, writer);
    zf_json_end(writer);
    const char *text = zf_json_text(writer, &bytes, &error);
    if (text) { /* NULL: a text is not UTF-8, which JSON does not have */
        insist(!read_json(&other, text, &json, &error));
        print(&other, again);
        insist(!strcmp(printed, again));
        zf_json_free(json);
    }
    zf_json_writer_free(writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char printed[TEXT];
    zf_training t = {.clip = 0};
    const zf_options all = options_of(&t);
    zf_error error = {ZF_OK, ""};
    zf_json *json = NULL;
    zf_status status;
    if (!size || size > TEXT / 16) return 0;
    char *text = malloc(size);
    insist(text != NULL);
    memcpy(text, data + 1, size - 1), text[size - 1] = '\0';
    switch (data[0] % 3) {
    case 0: status = take(&t, text, &error); break;
    case 1: status = zf_options_words(&all, text, &error); break;
    default: status = read_json(&t, text, &json, &error);
    }
    insist(!status == !*error.text);
    if (!status && !zf_options_check(&all, 1, data[0] & 64, &error)) {
        print(&t, printed);
        check_words(printed);
        check_json(&t, printed);
    }
    zf_json_free(json);
    free(text);
    return 0;
}
