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

/* The elements of a list. */
static void add_all(zf_text *out, const zf_json *list)
{
    for (const zf_json *at = zf_json_first(list); at; at = zf_json_next(at)) {
        if (out->count && out->at[out->count - 1] != '[') zf_text_add_string(out, ",");
        zf_text_add_json(out, at);
    }
}

/* A prompt and its response, or all messages of both. */
static bool write_example(FILE *file, const zf_json *prompt, const zf_json *chosen, zf_error *error)
{
    const bool texts = zf_json_type_of(prompt) == ZF_JSON_STRING;
    zf_text line = {.at = NULL};
    bool good;
    zf_text_add_string(&line, texts ? "{\"prompt\":" : "{\"messages\":[");
    if (texts) {
        zf_text_add_json(&line, prompt);
        zf_text_add_string(&line, ",\"response\":");
        zf_text_add_json(&line, chosen);
    } else {
        add_all(&line, prompt), add_all(&line, chosen);
    }
    zf_text_add_string(&line, texts ? "}\n" : "]}\n");
    good = !line.failed || fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) fwrite(line.at, 1, line.count, file);
    zf_text_free(&line);
    return good;
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
