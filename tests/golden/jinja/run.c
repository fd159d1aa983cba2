/* Runs templates for public.py: a line {"template": ..., "variables": {...}, "now": ...} gives its
 * text as JSON, or null, and what is wrong to stderr.
 *
 *     cc -I. -DZEROFLOW_IMPLEMENTATION -DZEROFLOW_LLM_IMPLEMENTATION tests/golden/jinja/run.c \
 *         -lpcre2-8 -lm -lpthread -o run */
#include "zeroflow_llm.h"

#include <stdlib.h>
#include <string.h>

static bool run(const zf_json *line, zf_text *out, zf_error *error)
{
    size_t bytes = 0;
    const char *text = zf_json_string(zf_json_member(line, "template"), &bytes);
    zf_jinja_desc d = {.variables = zf_json_member(line, "variables")};
    zf_jinja *t = text ? zf_jinja_parse(text, bytes, "template", error) : NULL;
    bool good;
    zf_json_to_int(zf_json_member(line, "now"), 0, INT64_MAX, &d.now, NULL);
    good = t && zf_jinja_run(t, &d, out, NULL, error);
    zf_jinja_free(t);
    return good;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
        zf_error error = {ZF_OK, ""};
        zf_json *json = zf_json_parse(line, (size_t)n, NULL, &error);
        zf_json_writer *w = zf_json_writer_new(0, NULL);
        zf_text out = {.at = NULL};
        bool good = json && run(json, &out, &error);
        if (!good) fprintf(stderr, "%s\n", error.text);
        zf_json_put_string(w, good ? out.at : NULL);
        printf("%s\n", zf_json_text(w, NULL, &error));
        fflush(stdout);
        zf_json_writer_free(w);
        zf_json_free(json);
        zf_text_free(&out);
    }
    free(line);
    return 0;
}
