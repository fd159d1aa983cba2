#include "split.h"
#include "../data/corpus.h"
#include "../options/fail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SPLIT_STEPS] = {"sft", "reward", "ppo"};

typedef struct split {
    FILE *file[SPLIT_STEPS];
    int64_t lines[SPLIT_STEPS];
    char path[SPLIT_STEPS][ZF_FOLDER_PATH];
} split;

/* ----------------------------------------------------------------------------------- one line */

/* A value as it is. A mistake in it is kept in *error. */
static void put(zf_json_writer *w, const zf_json *v, zf_error *error)
{
    const zf_json_type type = zf_json_type_of(v);
    const char *text = NULL;
    double number = 0;
    bool truth = false;
    if (type == ZF_JSON_STRING) {
        if (!zf_json_to_string(v, &text, error)) zf_json_put_string(w, text);
    } else if (type == ZF_JSON_NUMBER) {
        if (!zf_json_to_double(v, -1e300, 1e300, &number, error)) zf_json_put_double(w, number);
    } else if (type == ZF_JSON_BOOL) {
        if (!zf_json_to_bool(v, &truth, error)) zf_json_put_bool(w, truth);
    } else if (type != ZF_JSON_ARRAY && type != ZF_JSON_OBJECT) {
        zf_json_put_null(w);
    } else {
        if (type == ZF_JSON_ARRAY) zf_json_begin_array(w);
        else zf_json_begin_object(w);
        for (const zf_json *at = zf_json_first(v); at && !error->status; at = zf_json_next(at)) {
            if (type == ZF_JSON_OBJECT) zf_json_put_key(w, zf_json_key(at, NULL));
            put(w, at, error);
        }
        zf_json_end(w);
    }
}

/* The elements of a list. */
static void put_all(zf_json_writer *w, const zf_json *list, zf_error *error)
{
    for (const zf_json *at = zf_json_first(list); at; at = zf_json_next(at)) put(w, at, error);
}

/* A prompt and its response, or all messages of both. */
static void put_example(zf_json_writer *w, const zf_json *prompt, const zf_json *chosen,
                        zf_error *error)
{
    zf_json_begin_object(w);
    if (zf_json_type_of(prompt) == ZF_JSON_STRING) {
        zf_json_put_key(w, "prompt"), put(w, prompt, error);
        zf_json_put_key(w, "response"), put(w, chosen, error);
    } else {
        zf_json_put_key(w, "messages"), zf_json_begin_array(w);
        put_all(w, prompt, error), put_all(w, chosen, error);
        zf_json_end(w);
    }
    zf_json_end(w);
}

static bool write_example(FILE *file, const zf_json *prompt, const zf_json *chosen, zf_error *error)
{
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    size_t bytes = 0;
    const char *text = NULL;
    put_example(w, prompt, chosen, error);
    if (!error->status) text = zf_json_text(w, &bytes, error);
    if (text) fprintf(file, "%.*s%s", (int)bytes, text, text[bytes - 1] == '\n' ? "" : "\n");
    zf_json_writer_free(w);
    return text != NULL;
}

/* Whether the prompt is a text or a list of messages, and so is the answer. */
static bool fit(const zf_json *prompt, const zf_json *chosen, zf_error *error)
{
    const zf_json_type type = zf_json_type_of(prompt);
    if (type != ZF_JSON_STRING && type != ZF_JSON_ARRAY)
        return zf_json_expected(prompt, error, "a text or a list of messages"), false;
    return zf_json_type_of(chosen) == type ||
           (zf_json_expected(chosen, error, "of the type of the prompt"), false);
}

static bool take_line(split *s, int step, const char *line, size_t bytes, zf_error *error)
{
    zf_json *object = zf_json_parse(line, bytes, NULL, error);
    const zf_json *prompt = NULL, *chosen = NULL;
    bool good = object != NULL;
    if (good && zf_json_type_of(object) != ZF_JSON_OBJECT)
        good = (zf_json_expected(object, error, "an object"), false);
    good = good && (prompt = zf_json_require(object, "prompt", error)) &&
           (chosen = zf_json_require(object, "chosen", error)) && fit(prompt, chosen, error);
    if (good && !step) good = write_example(s->file[0], prompt, chosen, error);
    else if (good) fprintf(s->file[step], "%.*s\n", (int)bytes, line);
    zf_json_free(object);
    s->lines[step]++;
    return good;
}

/* ----------------------------------------------------------------------------------- all lines */

/* The step of a line. */
static int step_of(int64_t line, const double parts[SPLIT_STEPS], uint64_t seed)
{
    const double all = parts[0] + parts[1] + parts[2],
                 at = (double)(bert_mix(bert_mix(seed + 1) + (uint64_t)line) >> 11) /
                      9007199254740992.0;
    return at * all < parts[0] ? 0 : at * all < parts[0] + parts[1] ? 1 : 2;
}

static bool take_lines(split *s, const char *from, const zf_text *text,
                       const double parts[SPLIT_STEPS], uint64_t seed, zf_error *error)
{
    int64_t number = 0;
    for (size_t at = 0; at < text->count;) {
        const char *line = text->at + at;
        const char *end = memchr(line, '\n', text->count - at);
        size_t bytes = end ? (size_t)(end - line) : text->count - at;
        at += bytes + 1, number++;
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (strspn(line, " \t\r") >= bytes) continue;
        if (!take_line(s, step_of(number, parts, seed), line, bytes, error)) {
            const zf_error why = *error;
            return fail(error, why.status, "%.300s: line %lld: %.600s", from, (long long)number,
                        why.text);
        }
    }
    for (int k = 0; k < SPLIT_STEPS; k++)
        if (!s->lines[k])
            return fail(error, ZF_ERR_ARGUMENT,
                        "%s: no line for %s.jsonl: there must be more of them", from, names[k]);
    return true;
}

static bool open_files(split *s, const char *dir, zf_error *error)
{
    for (int k = 0; k < SPLIT_STEPS; k++) {
        snprintf(s->path[k], sizeof s->path[k], "%s/%s.jsonl", dir, names[k]);
        if (!(s->file[k] = fopen(s->path[k], "wb")))
            return fail(error, ZF_ERR_IO, "cannot write %s: %s", s->path[k], strerror(errno));
    }
    return true;
}

bool split_write(const char *from, const char *dir, const double parts[SPLIT_STEPS], uint64_t seed,
                 zf_error *error)
{
    split s = {.lines = {0}};
    zf_text text = {.at = NULL};
    bool good = zf_text_read_plain(from, &text, error) && open_files(&s, dir, error) &&
                take_lines(&s, from, &text, parts, seed, error);
    for (int k = 0; k < SPLIT_STEPS; k++) {
        const bool lost = s.file[k] && ferror(s.file[k]), closed = !s.file[k] || !fclose(s.file[k]);
        if (good && (lost || !closed)) good = fail(error, ZF_ERR_IO, "cannot write %s", s.path[k]);
    }
    zf_text_free(&text);
    return good;
}
