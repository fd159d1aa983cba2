/* Groups of parameters: rates, weight decay, betas, optimizers and freezing by the names of
 * parameters. They are attributes of the parameters, which the optimizer reads (optimizer.c) and by
 * which buckets are cut (zero/buckets.c).
 *
 * requires: no gradients yet; before zf_tile
 * before:   %2 = param "head.weight" : f32[8,32]
 * after:    %2 = param "head.weight" {rate=0.1 no_decay=true} : f32[8,32]
 */

static const zf_option zfi_group_options[] = {
    ZF_OPTION_CODED(zf_param_group, params),
    ZF_OPTION_CODED(zf_param_group, tensors),
    ZF_OPTION_CODED(zf_param_group, tensor_count),
    ZF_OPTION(zf_param_group, NUMBER, rate, 1, "(0,inf)", .help = "factor of the learning rate"),
    ZF_OPTION(zf_param_group, FLAG, constant, 0, NULL, .with = "rate",
              .help = "rate is the learning rate itself, in all steps"),
    ZF_OPTION(zf_param_group, NUMBER, weight_decay, 0, "[0,inf)", .traits = ZF_OPTION_GIVEN_0,
              .help = "weight decay instead of the optimizer's"),
    ZF_OPTION(zf_param_group, FLAG, no_decay, 0, NULL, .with = "!weight_decay",
              .help = "no weight decay"),
    ZF_OPTION(zf_param_group, NUMBER, beta1, 0, "(0,1)", .help = "the optimizer's beta1"),
    ZF_OPTION(zf_param_group, NUMBER, beta2, 0, "(0,1)", .help = "the optimizer's beta2"),
    ZF_OPTION(zf_param_group, TEXT, optimizer, 0, NULL, .help = "the optimizer, instead of that of "
                                                                "the others"),
    ZF_OPTION(zf_param_group, FLAG, frozen, 0, NULL, .help = "no training"),
    ZF_OPTION(zf_param_group, FLAG, lazy_rows, 0, NULL,
              .help = "of tables only the rows that are read are updated"),
    {.name = NULL}};

/* The name of optimizer `index` of a group, and its length; NULL after the last. Number 0 is that
 * of parameters whose group has none. */
static const char *zfi_group_optimizer(const zf_graph *g, int64_t index, int *length)
{
    const char *fields = g->records[ZF_OP_param]->attributes;
    zfi_field field = {.choices = NULL};
    for (int k = 0; k <= ZF_AT_param_optimizer; k++) zfi_next_field(&fields, &field);
    return zfi_choice(field.choices, index, length);
}

/* The number of the optimizer of this name; 0: there is none that a group can have. */
static int64_t zfi_group_optimizer_of(const zf_graph *g, const char *name)
{
    const char *found;
    int length;
    for (int64_t k = 1; name && (found = zfi_group_optimizer(g, k, &length)); k++)
        if (!strncmp(found, name, (size_t)length) && !name[length]) return k;
    return 0;
}

/* The parameter is updated by the optimizer of this name alone. */
static bool zfi_chooses(const zf_graph *g, int32_t param, const char *name)
{
    const int64_t chosen = ZF_INT(&g->nodes[param], param, optimizer);
    return chosen && chosen == zfi_group_optimizer_of(g, name);
}

/* Sets what a group gives. */
static void zfi_put_group(const zf_graph *g, zfi_node *param, const zf_param_group *d)
{
    const bool decays = d->weight_decay > 0, none = d->no_decay || d->weight_decay == ZF_ZERO;
    if (d->frozen) ZF_INT(param, param, frozen) = true;
    if (d->lazy_rows) ZF_INT(param, param, lazy) = true;
    if (d->rate != 0) ZF_FLOAT(param, param, rate) = d->rate;
    if (d->rate != 0) ZF_INT(param, param, constant) = d->constant;
    if (d->beta1 != 0) ZF_FLOAT(param, param, beta1) = d->beta1;
    if (d->beta2 != 0) ZF_FLOAT(param, param, beta2) = d->beta2;
    if (d->optimizer)
        ZF_INT(param, param, optimizer) = zfi_group_optimizer_of(g, d->optimizer);
    if (decays || none) ZF_FLOAT(param, param, decay) = none ? 0 : d->weight_decay;
    if (decays || none) ZF_INT(param, param, no_decay) = none;
}

/* What a group gives goes to the parameter, *trained: one that is not frozen. */
static void zfi_join_group(zf_graph *g, int32_t id, const zf_param_group *d, bool *trained)
{
    *trained |= !zfi_is_frozen(&g->nodes[id]);
    zfi_put_group(g, &g->nodes[id], d);
}

/* The parameters that one of the patterns matches; each must match one. */
static zf_status zfi_match_group(zf_graph *g, const zf_param_group *d, bool *trained)
{
    for (const char *at = d->params, *end; at && *at; at = end + (*end == '|')) {
        bool some = false;
        end = at + strcspn(at, "|");
        for (int32_t k = 0; k < zfi_len(g->params); k++) {
            if (!zfi_matches(at, (size_t)(end - at), g->nodes[g->params[k]].name)) continue;
            zfi_join_group(g, g->params[k], d, trained);
            some = true;
        }
        if (!some)
            return zfi_fail(
                &g->error, ZF_ERR_ARGUMENT,
                "zf_param_groups: the pattern '%.*s' matches no parameter of this graph",
                (int)zfi_min(end - at, 200), at);
    }
    return ZF_OK;
}

/* The parameters that are given as tensors. */
static zf_status zfi_join_tensors(zf_graph *g, const zf_param_group *d, bool *trained)
{
    for (int32_t k = 0; k < d->tensor_count; k++) {
        const zf_tensor x = d->tensors ? d->tensors[k] : ZF_NONE;
        if (x.graph != g || !zf_valid(x) || g->nodes[x.id].op != ZF_OP_param)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            "zf_param_groups: tensors[%d] is no parameter of this graph", (int)k);
        zfi_join_group(g, x.id, d, trained);
    }
    return ZF_OK;
}

static zf_status zfi_group_optimizer_fail(zf_graph *g, const char *name)
{
    const char *other;
    char all[120] = "";
    int length;
    for (int64_t k = 1; (other = zfi_group_optimizer(g, k, &length)); k++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%.*s", *all ? ", " : "", length,
                 other);
    return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                    "zf_param_groups: '%.100s' is no optimizer that a group can have; there are %s",
                    name, all);
}

static zf_status zfi_add_group(zf_graph *g, const zf_param_group *d)
{
    const zf_options one = {.rows = zfi_group_options, .desc = (void *)(uintptr_t)d};
    bool given = false, trained = false;
    for (const zf_option *row = zfi_group_options; row->name; row++)
        given |= zfi_option_given(row, (const char *)d + row->at);
    if (zfi_options_check(&one, 1, false, "zf_param_groups: ", &g->error)) return g->error.status;
    if (!given || ((!d->params || !*d->params) && d->tensor_count <= 0))
        return zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            given ? "zf_param_groups: a group needs a pattern or tensors"
                  : "zf_param_groups: the group of '%.200s' gives nothing: rate, weight_decay, "
                    "no_decay, beta1, beta2, optimizer, frozen or lazy_rows",
            d->params ? d->params : "");
    if (d->optimizer && !zfi_group_optimizer_of(g, d->optimizer))
        return zfi_group_optimizer_fail(g, d->optimizer);
    if (zfi_match_group(g, d, &trained) || zfi_join_tensors(g, d, &trained)) return g->error.status;
    if (trained || d->frozen) return ZF_OK;
    return zfi_fail(
        &g->error, ZF_ERR_ARGUMENT,
        "zf_param_groups: all parameters of the group of '%.200s' are frozen, so it changes "
        "nothing",
        d->params ? d->params : "");
}

ZF_API zf_status zf_param_groups(zf_graph *g, const zf_param_group *groups, int32_t count)
{
    zf_status status = zfi_enter(g, "zf_param_groups", 0, ZFI_STAGE_GRADIENTS | ZFI_STAGE_PLACED);
    if (status) return status;
    if (g->declared)
        return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_param_groups: must come before zf_tile");
    if (count < 0 || (count && !groups))
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_param_groups: %d groups at NULL",
                        (int)count);
    for (int32_t k = 0; k < count && !status; k++) status = zfi_add_group(g, &groups[k]);
    return status ? status : zfi_leave(g, 0);
}

/* One of "PATTERN|PATTERN:OPTION,OPTION", which is cut in place. */
static zf_status zfi_read_group(zf_graph *g, char *text)
{
    char *colon = strrchr(text, ':');
    zf_param_group d = {.params = text};
    const zf_options one = {.rows = zfi_group_options, .desc = &d};
    zf_error error = {ZF_OK, ""};
    if (!colon)
        return zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "param_groups: '%.200s' has no ':' between a pattern and what it gives, as in "
            "'head.*:rate=0.1'",
            text);
    *colon = '\0';
    if (!zfi_put_words(&one, "param_groups", NULL, colon + 1, ",", &error))
        return zf_param_groups(g, &d, 1);
    return zfi_fail(&g->error, error.status, "param_groups: '%.200s': %.400s", text, error.text);
}

/* The groups of a text, with ';' between. */
static zf_status zfi_read_groups(zf_graph *g, const char *text)
{
    char *copy = zfi_text_copy(&g->memory, &g->text, text, strlen(text)), *next;
    if (!copy) return zfi_graph_nomem(g);
    for (; copy && *copy && !g->error.status; copy = next) {
        next = copy + strcspn(copy, ";");
        if (*next) *next++ = '\0';
        if (*copy) zfi_read_group(g, copy);
    }
    return g->error.status;
}

/* The parameters may have one update: their rates, betas and optimizers are the
 * same. */
static bool zfi_same_group(const zfi_node *a, const zfi_node *b)
{
    return ZF_FLOAT(a, param, rate) == ZF_FLOAT(b, param, rate) &&
           ZF_INT(a, param, constant) == ZF_INT(b, param, constant) &&
           ZF_FLOAT(a, param, beta1) == ZF_FLOAT(b, param, beta1) &&
           ZF_FLOAT(a, param, beta2) == ZF_FLOAT(b, param, beta2) &&
           ZF_INT(a, param, optimizer) == ZF_INT(b, param, optimizer) &&
           ZF_INT(a, param, lazy) == ZF_INT(b, param, lazy);
}
