/* Templates of chats against jinja2 as transformers sets it up (tests/golden/jinja/make.py): expressions
 * and statements one by one, and templates with conversations; what is not supported; limits. */
#include "../../zeroflow_llm.h"
#include "../support/test.h"

#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/golden/jinja/"

enum { NOW = 1721995200 };

static void free_json(void *json) { zf_json_free(json); }

/* The text of a template, or its error, which is then in *error too. */
static void render(const char *jinja, size_t bytes, const zf_json *variables, zf_text *out,
                   zf_jinja_spans *marks, zf_error *error)
{
    zf_jinja *template = zf_jinja_parse(jinja, bytes, "T", error);
    bool good = template && zf_jinja_run(template, &(zf_jinja_desc){variables, NOW, 0, 0}, out, marks,
                                         error);
    zf_jinja_free(template);
    if (!good) zf_text_add_string(out, error->text);
}

/* want NULL: an error. */
static void compare(test *t, const char *name, const zf_text *out, const zf_error *error,
                    const char *want)
{
    const bool same = want ? !error->status && out->at && !strcmp(out->at, want)
                           : error->status == ZF_ERR_FORMAT;
    if (same) return;
    if (error->status == ZF_ERR_NOMEM) OK(t, error->status, error->text);
    test_fail(t, __FILE__, __LINE__, "differs", name);
    CHECK_TEXT(t, out->at ? out->at : "", want ? want : "an error");
}

TEST_ONCE(jinja_expressions)
{
    zf_error error = {ZF_OK, ""};
    zf_json *all = zf_json_read(GOLDEN "expressions.json", NULL, &error);
    const zf_json *variables = zf_json_member(all, "variables");
    NEED(t, all, &error);
    test_defer(t, free_json, all);
    for (const zf_json *v = zf_json_first(zf_json_member(all, "pairs")); v && !t->failed;
         v = zf_json_next(v)) {
        size_t bytes = 0;
        const char *jinja = zf_json_string(zf_json_element(v, 0), &bytes);
        zf_text out = {.at = NULL};
        zf_error here = {ZF_OK, ""};
        render(jinja, bytes, variables, &out, NULL, &here);
        compare(t, jinja, &out, &here, zf_json_string(zf_json_element(v, 1), NULL));
        zf_text_free(&out);
    }
}

static void check_marks(test *t, const zf_json *want, const zf_jinja_spans *got)
{
    size_t i = 0;
    for (const zf_json *v = zf_json_first(want); v; v = zf_json_next(v), i++) {
        int64_t begin = -1, end = -1;
        zf_json_to_int(zf_json_element(v, 0), 0, INT64_MAX, &begin, NULL);
        zf_json_to_int(zf_json_element(v, 1), 0, INT64_MAX, &end, NULL);
        CHECK(t, i < got->count && got->at[i].begin == (size_t)begin && got->at[i].end == (size_t)end);
    }
    CHECK(t, i == got->count);
}

/* Each template with ten conversations and more: tools, thoughts, parts, errors. */
TEST_ONCE(jinja_templates)
{
    zf_error error = {ZF_OK, ""};
    zf_json *all = zf_json_read(GOLDEN "templates.json", NULL, &error);
    NEED(t, all, &error);
    test_defer(t, free_json, all);
    for (const zf_json *v = zf_json_first(all); v && !t->failed; v = zf_json_next(v)) {
        char path[100];
        zf_text jinja = {.at = NULL};
        snprintf(path, sizeof path, GOLDEN "%s", zf_json_key(v, NULL));
        if (!zf_text_read(path, &jinja, &error)) OK(t, error.status, error.text);
        for (const zf_json *c = zf_json_first(v); c && !t->failed; c = zf_json_next(c)) {
            zf_text out = {.at = NULL};
            zf_jinja_spans marks = {.at = NULL};
            zf_error here = {ZF_OK, ""};
            render(jinja.at, jinja.count, zf_json_member(c, "variables"), &out, &marks, &here);
            compare(t, path, &out, &here, zf_json_string(zf_json_member(c, "text"), NULL));
            if (!here.status) check_marks(t, zf_json_member(c, "marks"), &marks);
            zf_jinja_spans_free(&marks);
            zf_text_free(&out);
        }
        zf_text_free(&jinja);
    }
}

/* What jinja2 can and this cannot, and mistakes: the construct and its line are named. */
TEST_ONCE(jinja_errors_name_their_line)
{
    static const char *const cases[][2] = {
        {"a\n{% include 'x' %}", "T: line 2: the block {% include %} is not supported here"},
        {"{% block a %}{% endblock %}", "T: line 1: the block {% block %} is not supported here"},
        {"\n\n{% for x in [] recursive %}{% endfor %}",
         "T: line 3: a recursive loop is not supported"},
        {"{{ 'a'|urlize }}", "T: line 1: the filter urlize is not supported"},
        {"{{ 'a'|shout }}", "T: line 1: the filter shout is not known"},
        {"{% if true %}\n{{ 'a'|shout }}{% endif %}", "T: line 2: the filter shout is not known"},
        {"{{ 1 is huge }}", "T: line 1: the test huge is not known"},
        {"{{ lipsum() }}", "T: line 1: the function lipsum is not supported"},
        {"{{ 'a'.encode() }}", "T: line 1: the method encode of strings is not supported"},
        {"{{ 'a'.shout() }}",
         "T: line 1: an element 'shout' of a value of the kind str is undefined"},
        {"{{ 9223372036854775807 + 1 }}", "T: line 1: an integer of more than 64 bits"},
        {"{{ 9223372036854775808 }}", "T: line 1: an integer of more than 64 bits"},
        {"{{ 0x10 }}", "T: line 1: a number that is not decimal is not supported"},
        {"{{ '\xc3\x9f'|upper }}",
         "T: line 1: upper case of the character U+00DF is not supported"},
        {"{{ [1]|map('string') }}",
         "T: line 1: a value of the kind generator as text is not supported"},
        {"{{\nx.y }}", "T: line 2: x is undefined"},
        {"{{ 'a' + 1 }}", "T: line 1: + between a value of the kind str and one of the kind int"},
        {"{{ [].append(1) }}",
         "T: line 1: an element 'append' of a value of the kind list is undefined"},
        {"{% if true %}\n", "T: line 1: a block without {% elif %}"},
        {"a\n{{ 1", "T: line 2: a tag without }}"},
        {"{{ 'a }}", "T: line 1: a string without an end"},
        {"{# a", "T: line 1: a comment without #}"},
        {"{% raw %}a", "T: line 1: raw without endraw"},
        {"{{ (1] }}", "T: line 1: unexpected ]"},
        {"{{ a ? b }}", "T: line 1: unexpected character ?"},
        {"{{ 1 2 }}", "T: line 1: }} is expected, not 2"},
        {"{% break %}", "T: line 1: break outside of a loop"},
        {"\xff", "T: line 1: the template is not UTF-8"},
        {"{% set none = 1 %}", "T: line 1: a constant cannot be set"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
         "T: line 1: the macro m takes not more than 1 arguments"},
        {"{{ 'a'.strip(1, 2) }}",
         "T: line 1: strip has an argument that is not known: its arguments are chars"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_text out = {.at = NULL};
        render(cases[k][0], strlen(cases[k][0]), NULL, &out, NULL, &error);
        zf_text_free(&out);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK_TEXT(t, error.text, cases[k][1]);
    }
}

/* A template that does not end, or grows, is stopped; what was in the text stays there. */
TEST_ONCE(jinja_limits)
{
    static const struct {
        const char *jinja;
        int64_t steps;
        size_t memory;
        const char *want;
    } cases[] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 0, 0,
         "T: line 1: more than 600 levels in one another"},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", 100000, 0,
         "T: line 1: the template takes more steps than it may: does it end?"},
        {"{% set ns = namespace(s='abcdefgh') %}{% for a in range(99) %}"
         "{% set ns.s = ns.s + ns.s %}{% endfor %}", 0, (size_t)8 << 20,
         "T: line 1: the template takes more than 8 MiB of memory"},
        {"{{ 'a' * 99999999999 }}", 0, (size_t)8 << 20,
         "T: line 1: the template takes more than 8 MiB of memory"},
        {"{{ 'ab'.ljust(99999999999) }}", 10000, 0,
         "T: line 1: the template takes more steps than it may: does it end?"},
        {"{{ range(100001) }}", 0, 0, "T: line 1: a range of more than 100000 elements"},
        {"{{ '%99999d' % 1 }}", 0, 0, "T: line 1: a width of 99999 or precision of -1 in a format"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases && !t->failed; k++) {
        zf_error error = {ZF_OK, ""};
        zf_text out = {.at = NULL};
        zf_jinja *template = zf_jinja_parse(cases[k].jinja, strlen(cases[k].jinja), "T", &error);
        zf_text_add_string(&out, "before");
        if (template)
            (void)zf_jinja_run(template, &(zf_jinja_desc){NULL, NOW, cases[k].steps, cases[k].memory},
                               &out, NULL, &error);
        zf_jinja_free(template);
        if (error.status != ZF_ERR_NOMEM) CHECK(t, out.at && !strcmp(out.at, "before"));
        zf_text_free(&out);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        CHECK_TEXT(t, error.text, cases[k].want);
    }
}

/* Brackets in one another, and a template of too many bytes. */
TEST_ONCE(jinja_limits_of_parsing)
{
    zf_error error = {ZF_OK, ""};
    const size_t room = ((size_t)1 << 20) + 2;
    char *text = malloc(room);
    if (!text) OK(t, ZF_ERR_NOMEM, "out of memory");
    memset(text, 'a', room);
    CHECK(t, !zf_jinja_parse(text, room, "T", &error));
    if (error.status != ZF_ERR_NOMEM)
        CHECK_TEXT(t, error.text, "T: line 1: a template of more than 1048576 bytes");
    memset(text + 2, '(', 300);
    memcpy(text, "{{", 2);
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_jinja_parse(text, 302, "T", &error));
    if (error.status != ZF_ERR_NOMEM)
        CHECK_TEXT(t, error.text, "T: line 1: too many brackets in one another");
    for (size_t k = 0; k + 14 < 14000; k += 14) memcpy(text + k, "{% if true %}\n", 14);
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !zf_jinja_parse(text, 13986, "T", &error));
    if (error.status != ZF_ERR_NOMEM)
        CHECK_TEXT(t, error.text, "T: line 600: more than 600 levels in one another");
    free(text);
}
