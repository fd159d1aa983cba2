/* Templates and their runs, for the library's users. */

struct zf_jinja {
    zfj_block *blocks;
    char *name;
    const zfj_token *tokens;
    zfj_nodes body;
    bool marked; /* it has a generation block */
};

/* ----------------------------------------------------------------------------------- parsing */

static bool zfj_parse_guarded(zfj_machine *m, zf_jinja *t, zfj_string source)
{
    zfj_parser p = {.m = m};
    if (setjmp(m->leave)) return false;
    p.at = t->tokens = zfj_tokens_of(m, source);
    m->line = 1;
    zfj_parse_body(&p, &t->body, NULL);
    t->marked = p.marked;
    return true;
}

zf_jinja *zf_jinja_parse(const char *text, size_t bytes, const char *name, zf_error *error)
{
    zf_jinja *t = calloc(1, sizeof *t);
    zfj_machine m = {.error = error,
                     .name = name,
                     .most = (size_t)64 << 20,
                     .steps = INT64_MAX,
                     .exceeds = "the template"};
    bool good = t && (t->name = malloc(strlen(name) + 1));
    if (!good) zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    else strcpy(t->name, name);
    good = good && zfj_parse_guarded(&m, t, (zfj_string){text, bytes});
    if (t) t->blocks = m.blocks;
    if (good) return t;
    zf_jinja_free(t);
    return NULL;
}

void zf_jinja_free(zf_jinja *t)
{
    if (!t) return;
    zfj_free_blocks(t->blocks);
    free(t->name);
    free(t);
}

bool zf_jinja_mentions(const zf_jinja *t, const char *word)
{
    for (const zfj_token *token = t->tokens; token->kind != ZFJ_END; token++)
        if ((token->kind == ZFJ_NAME || token->kind == ZFJ_TEXT) && zfj_is(token->text, word))
            return true;
    return false;
}

/* ----------------------------------------------------------------------------------- running */

/* Sets the variables of a run. */
typedef void zfj_set_up(zfj_run *r, const void *user);

static bool zfj_run_guarded(zfj_run *r, const zf_jinja *t, zfj_set_up *set_up, const void *user)
{
    if (setjmp(r->m.leave)) return false;
    r->m.line = 1;
    r->globals = zfj_scope_new(r, NULL);
    set_up(r, user);
    (void)zfj_exec_all(r, zfj_scope_new(r, r->globals), &t->body);
    return true;
}

static bool zfj_give_marks(const zf_jinja_spans *from, zf_jinja_spans *to, size_t before)
{
    for (size_t i = 0; i < from->count; i++) {
        zf_jinja_span *at = zfl_list_grow(to->at, to->count, &to->room, sizeof *at);
        if (!at) return false;
        to->at = at;
        at[to->count++] = (zf_jinja_span){from->at[i].begin + before, from->at[i].end + before};
    }
    return true;
}

/* Runs a template with the variables that `set_up` sets. */
static bool zfj_render(const zf_jinja *t, const zf_jinja_desc *d, zfj_set_up *set_up,
                       const void *user, zf_text *out, zf_jinja_spans *marks, zf_error *error)
{
    zf_jinja_spans found = {.at = NULL};
    zfj_out text = {.at = NULL};
    zfj_run r = {.m = {.error = error,
                       .name = t->name,
                       .most = d->memory ? d->memory : (size_t)256 << 20,
                       .steps = d->steps ? d->steps : 20000000,
                       .now = d->now ? d->now : (int64_t)time(NULL),
                       .exceeds = "the template"},
                 .out = &text,
                 .top = &text,
                 .marks = marks ? &found : NULL};
    const size_t before = out->count;
    bool good = zfj_run_guarded(&r, t, set_up, user);
    if (good) {
        zf_text_add(out, text.at ? text.at : "", text.count);
        if (out->failed || (marks && !zfj_give_marks(&found, marks, before)))
            good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    }
    zfj_free_blocks(r.m.blocks);
    return good;
}

static void zfj_set_members(zfj_run *r, const void *user)
{
    zfj_string name;
    for (const zf_json *v = zf_json_first(user); v; v = zf_json_next(v)) {
        name.at = zf_json_key(v, &name.bytes);
        zfj_set_variable(r, r->globals, name, zfj_from_json(&r->m, v));
    }
}

bool zf_jinja_run(const zf_jinja *t, const zf_jinja_desc *d, zf_text *out, zf_jinja_spans *marks,
                  zf_error *error)
{
    const zf_jinja_desc none = {.variables = NULL};
    if (!d) d = &none;
    if (d->variables && zf_json_type_of(d->variables) != ZF_JSON_OBJECT)
        return zfl_fail(error, ZF_ERR_ARGUMENT, "the variables of a template are an object");
    return zfj_render(t, d, zfj_set_members, d->variables, out, marks, error);
}

void zf_jinja_spans_free(zf_jinja_spans *spans)
{
    free(spans->at);
    *spans = (zf_jinja_spans){.at = NULL};
}
