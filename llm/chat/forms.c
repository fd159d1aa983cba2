/* Conversations of data sets in other forms, as messages. */

/* Whether a member says something: it is there, and neither null nor empty. */
static const zf_json *zfl_said(const zf_json *object, const char *key)
{
    const zf_json *v = zf_json_member(object, key);
    return zfl_is_empty(v) ? NULL : v;
}

static bool zfl_is_list(const zf_json *v) { return zf_json_type_of(v) == ZF_JSON_ARRAY; }

static bool zfl_expect_string(const zf_json *v, zf_error *error)
{
    if (!v || zf_json_string(v, NULL)) return !error->status;
    return zf_json_expected(v, error, "a string"), false;
}

/* ---------------------------------------------------------------------------------- messages */

/* What begins a message, after those that are there. */
static void zfl_begin_message(zf_text *out, const char *role)
{
    const char last = out->count ? out->at[out->count - 1] : '[';
    zf_text_add_string(out, last == '[' ? "{\"role\": " : ", {\"role\": ");
    zfl_add_json_string(out, role, strlen(role));
}

static void zfl_add_content(zf_text *out, const zf_json *v)
{
    zf_text_add_string(out, ", \"content\": ");
    zf_text_add_json(out, v);
}

/* A message of a string. */
static bool zfl_add_message(zf_text *out, const char *role, const zf_json *v, zf_error *error)
{
    if (!v || !zfl_expect_string(v, error)) return !error->status;
    zfl_begin_message(out, role);
    zfl_add_content(out, v);
    zf_text_add_string(out, "}");
    return true;
}

/* The members of an object, but for those with these keys. */
static void zfl_add_others(zf_text *out, const zf_json *object, const char *const *keys)
{
    for (const zf_json *v = zf_json_first(object); v; v = zf_json_next(v)) {
        if (zfl_is_listed(keys, zf_json_key(v, NULL))) continue;
        zf_text_add_string(out, ", ");
        zf_text_add_json_member(out, v);
    }
}

/* ---------------------------------------------------------------------------------- ShareGPT */

static const char *zfl_role_of(const zf_json *from, zf_error *error)
{
    static const char *const roles[][2] = {{"human", "user"},    {"user", "user"},
                                           {"gpt", "assistant"}, {"assistant", "assistant"},
                                           {"system", "system"}, {"developer", "developer"},
                                           {"tool", "tool"}};
    const char *name = zf_json_string(from, NULL);
    for (size_t k = 0; name && k < sizeof roles / sizeof *roles; k++)
        if (!strcmp(name, roles[k][0])) return roles[k][1];
    zf_json_expected(from, error, "human, user, gpt, assistant, system, developer or tool");
    return NULL;
}

static bool zfl_add_turn(zf_text *out, const zf_json *turn, zf_error *error)
{
    static const char *const keys[] = {"from", "value", "role", "content", NULL};
    const bool named = zf_json_member(turn, "from") != NULL;
    const zf_json *role, *value;
    const char *name;
    if (zf_json_type_of(turn) != ZF_JSON_OBJECT)
        return zf_json_expected(turn, error, "an object"), false;
    role = zf_json_require(turn, named ? "from" : "role", error);
    value = role ? zf_json_require(turn, named ? "value" : "content", error) : NULL;
    name = !value ? NULL : named ? zfl_role_of(role, error) : zf_json_string(role, NULL);
    if (value && !named) zfl_expect_string(role, error);
    if (!name || error->status) return false;
    zfl_begin_message(out, name);
    zfl_add_content(out, value);
    zfl_add_others(out, turn, keys);
    zf_text_add_string(out, "}");
    return true;
}

/* {"conversations": [{"from": "human", "value": "..."}, ...], "system": "..."} */
static bool zfl_add_turns(zf_text *out, const zf_json *line, zf_error *error)
{
    const zf_json *turns = zf_json_member(line, "conversations");
    if (!zfl_is_list(turns)) return zf_json_expected(turns, error, "an array of messages"), false;
    if (!zfl_add_message(out, "system", zfl_said(line, "system"), error)) return false;
    for (const zf_json *v = zf_json_first(turns); v; v = zf_json_next(v))
        if (!zfl_add_turn(out, v, error)) return false;
    return true;
}

/* ------------------------------------------------------------------------------------ Alpaca */

/* Earlier turns: [["question", "answer"], ...]. */
static bool zfl_add_history(zf_text *out, const zf_json *history, zf_error *error)
{
    if (history && !zfl_is_list(history))
        return zf_json_expected(history, error, "a list of pairs"), false;
    for (const zf_json *v = zf_json_first(history); v; v = zf_json_next(v)) {
        if (!zfl_is_list(v) || zf_json_length(v) != 2)
            return zf_json_expected(v, error, "a question and an answer"), false;
        if (!zfl_add_message(out, "user", zf_json_element(v, 0), error) ||
            !zfl_add_message(out, "assistant", zf_json_element(v, 1), error))
            return false;
    }
    return true;
}

/* {"instruction": "...", "input": "...", "output": "...", "system": "...", "history": [...]} */
static bool zfl_add_task(zf_text *out, const zf_json *line, zf_error *error)
{
    const zf_json *task = zf_json_member(line, "instruction"), *input = zfl_said(line, "input");
    zf_text whole = {.at = NULL};
    const char *text;
    size_t bytes;
    if (!zfl_expect_string(task, error) || !zfl_expect_string(input, error)) return false;
    if (!zfl_add_message(out, "system", zfl_said(line, "system"), error) ||
        !zfl_add_history(out, zfl_said(line, "history"), error))
        return false;
    text = zf_json_string(task, &bytes), zf_text_add(&whole, text, bytes);
    if (input) zf_text_add_string(&whole, "\n");
    if (input) text = zf_json_string(input, &bytes), zf_text_add(&whole, text, bytes);
    zfl_begin_message(out, "user");
    zf_text_add_string(out, ", \"content\": ");
    if (!whole.failed) zfl_add_json_string(out, whole.count ? whole.at : "", whole.count);
    zf_text_add_string(out, "}");
    out->failed = out->failed || whole.failed;
    zf_text_free(&whole);
    return zfl_add_message(out, "assistant", zf_json_member(line, "output"), error);
}

/* ------------------------------------------------------------------------ prompt, completion */

static bool zfl_add_list(zf_text *out, const zf_json *list, bool trained, zf_error *error)
{
    static const char *const none[] = {"role", NULL}, *const keys[] = {"role", "weight", "train",
                                                                       NULL};
    for (const zf_json *v = zf_json_first(list); v; v = zf_json_next(v)) {
        const bool off = !trained && zfl_is_assistant(v);
        const zf_json *role;
        if (zf_json_type_of(v) != ZF_JSON_OBJECT)
            return zf_json_expected(v, error, "an object"), false;
        role = zf_json_require(v, "role", error);
        if (!role || !zfl_expect_string(role, error)) return false;
        zfl_begin_message(out, zf_json_string(role, NULL));
        if (off) zf_text_add_string(out, ", \"weight\": 0");
        zfl_add_others(out, v, off ? keys : none);
        zf_text_add_string(out, "}");
    }
    return true;
}

/* {"prompt": [MESSAGE, ...], "completion": [MESSAGE, ...]}; no answer of the prompt is trained
 * on. */
static bool zfl_add_prompt(zf_text *out, const zf_json *line, zf_error *error)
{
    const zf_json *prompt = zf_json_member(line, "prompt"),
                  *rest = zf_json_member(line, "completion");
    if (!rest && !(rest = zf_json_require(line, "response", error))) return false;
    if (!zfl_is_list(rest))
        return zf_json_expected(rest, error, "a list of messages, as the prompt is"), false;
    if (!zf_json_length(rest)) return zf_json_fail(rest, error, "has no message"), false;
    return zfl_add_list(out, prompt, false, error) && zfl_add_list(out, rest, true, error);
}

/* ------------------------------------------------------------------------------------- lines */

/* A form, and the members of a line that become messages. */
typedef struct zfl_form {
    bool (*add)(zf_text *out, const zf_json *line, zf_error *error);
    const char *keys[7];
} zfl_form;

/* NULL: the line has messages, a prompt and an answer that are strings, or none of these. */
static const zfl_form *zfl_form_of(const zf_json *line)
{
    static const zfl_form turns = {zfl_add_turns, {"conversations", "system"}},
                          task = {zfl_add_task,
                                  {"instruction", "input", "output", "system", "history"}},
                          prompt = {zfl_add_prompt, {"prompt", "completion", "response"}};
    if (zf_json_member(line, "messages") || zf_json_member(line, "chosen")) return NULL;
    if (zfl_is_list(zf_json_member(line, "prompt"))) return &prompt;
    if (zf_json_member(line, "prompt")) return NULL;
    if (zf_json_member(line, "conversations")) return &turns;
    return zf_json_member(line, "instruction") && zf_json_member(line, "output") ? &task : NULL;
}

bool zf_chat_convert(const zf_json *line, zf_json **out, zf_error *error)
{
    const zfl_form *form = zfl_form_of(line);
    zf_text text = {.at = NULL};
    bool good;
    *out = NULL;
    if (!form) return true;
    zf_text_add_string(&text, "{\"messages\": [");
    good = form->add(&text, line, error);
    zf_text_add_string(&text, "]");
    zfl_add_others(&text, line, form->keys);
    zf_text_add_string(&text, "}");
    if (good && text.failed) good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    if (good) good = (*out = zf_json_parse(text.at, text.count, NULL, error)) != NULL;
    zf_text_free(&text);
    return good;
}
