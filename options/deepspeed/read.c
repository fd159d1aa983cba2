/* DeepSpeed's configuration: from its text to options.
 *
 *     text -> tree -> given[row]   types and ranges, unknown keys
 *                  -> options      in the order of the table, with defaults of DeepSpeed
 */

/* ---------------------------------------------------------------------------------- the tree */

static bool zfi_ds_has_type(const zfi_ds_key *key, const zf_json *value)
{
    static const zf_json_type types[] = {
        [ZFI_DS_flag] = ZF_JSON_BOOL,     [ZFI_DS_int] = ZF_JSON_NUMBER,
        [ZFI_DS_number] = ZF_JSON_NUMBER, [ZFI_DS_text] = ZF_JSON_STRING,
        [ZFI_DS_choice] = ZF_JSON_STRING, [ZFI_DS_numbers] = ZF_JSON_ARRAY,
        [ZFI_DS_list] = ZF_JSON_ARRAY,    [ZFI_DS_block] = ZF_JSON_OBJECT};
    return key->kind == ZFI_DS_any || zf_json_type_of(value) == types[key->kind];
}

static const char *zfi_ds_kind_words(const zfi_ds_key *key, char words[ZFI_OPTION_NAME])
{
    static const char *const names[] = {[ZFI_DS_flag] = "true or false",
                                        [ZFI_DS_text] = "a text",
                                        [ZFI_DS_list] = "a list",
                                        [ZFI_DS_block] = "an object",
                                        [ZFI_DS_numbers] = "a list of numbers",
                                        [ZFI_DS_any] = ""};
    const zf_option row = zfi_ds_option(key);
    if (key->kind != ZFI_DS_int && key->kind != ZFI_DS_number && key->kind != ZFI_DS_choice)
        return names[key->kind];
    if (!key->range) return "a number";
    return zfi_range_words(&row, words);
}

/* Whether a number or a name is of the row's range. */
static bool zfi_ds_in_range(const zfi_ds_key *key, const zf_json *value)
{
    const zfi_interval range = zfi_interval_of(zfi_ds_option(key).range);
    char text[80];
    int64_t whole;
    double number = 0;
    if (key->kind == ZFI_DS_choice) {
        zfi_ds_text(value, text, sizeof text);
        return zfi_choice_of(key->range, text, strlen(text)) >= 0;
    }
    if (key->kind != ZFI_DS_int && key->kind != ZFI_DS_number) return true;
    if (key->kind == ZFI_DS_int && zf_json_to_int(value, INT64_MIN, INT64_MAX, &whole, NULL))
        return false;
    (void)zf_json_to_double(value, -INFINITY, INFINITY, &number, NULL);
    return zfi_interval_has(&range, number);
}

static zf_status zfi_ds_check(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    char words[ZFI_OPTION_NAME];
    const zfi_ds_key each = {.path = key->path, .kind = ZFI_DS_number, .range = key->range};
    if (zf_json_type_of(value) == ZF_JSON_NULL &&
        (!key->otherwise || !strcmp(key->otherwise, "null")))
        return ZF_OK;
    if (zfi_ds_is_auto(value) && key->kind != ZFI_DS_block) return ZF_OK;
    if (!zfi_ds_has_type(key, value) || !zfi_ds_in_range(key, value))
        return zf_json_expected(value, r->error, "%s", zfi_ds_kind_words(key, words));
    if (key->kind != ZFI_DS_numbers) return ZF_OK;
    for (const zf_json *v = zf_json_first(value); v; v = zf_json_next(v))
        if (!zfi_ds_has_type(&each, v) || !zfi_ds_in_range(&each, v))
            return zf_json_expected(v, r->error, "%s", zfi_ds_kind_words(&each, words));
    return ZF_OK;
}

/* A key without a row: an error, or with `loose` a warning. */
static zf_status zfi_ds_stranger(zfi_ds_reader *r, const char *block, const zf_json *value)
{
    static const char words[] = "no key of DeepSpeed; it is ignored";
    char text[300], path[96], shown[80];
    const char *key = zf_json_key(value, NULL);
    zfi_ds_unknown(block, key, text, sizeof text);
    if (!r->out->loose) return zf_json_fail(value, r->error, "%s", text);
    snprintf(path, sizeof path, "%s%s%.40s", block, *block ? "." : "", key);
    zfi_ds_text(value, shown, sizeof shown);
    r->origin = ZF_DEEPSPEED_UNKNOWN;
    zf_json_where(value, &r->line, NULL);
    zf_status status = zfi_ds_note(r, path, "", shown, words);
    if (!status) r->out->settings[r->out->count - 1].warns = true;
    return status;
}

/* Notes the values of an object's keys; `off`: it is not enabled. */
static zf_status zfi_ds_gather(zfi_ds_reader *r, const char *block, const zf_json *object, bool off)
{
    zf_status status = ZF_OK;
    for (const zf_json *v = zf_json_first(object); v && !status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        const int row = zfi_ds_row(block, !*block && !strcmp(key, "bfloat16") ? "bf16" : key);
        if (row < 0) {
            status = zfi_ds_stranger(r, block, v);
            continue;
        }
        if (r->given[row])
            return zf_json_fail(v, r->error,
                                "bf16 and bfloat16 are the same: leave one of them out");
        status = zfi_ds_check(r, &zfi_ds_keys[row], v);
        r->given[row] = v, r->off[row] = off;
        if (status || zfi_ds_keys[row].kind != ZFI_DS_block) continue;
        const bool switched = zfi_ds_row(zfi_ds_keys[row].path, "enabled") >= 0;
        const zf_json *enabled = zf_json_member(v, "enabled");
        bool on = enabled && zfi_ds_is_auto(enabled);
        (void)zf_json_to_bool(enabled, &on, NULL);
        if (zf_json_type_of(v) == ZF_JSON_OBJECT)
            status = zfi_ds_gather(r, zfi_ds_keys[row].path, v, off || (switched && !on));
    }
    return status;
}

/* --------------------------------------------------------------------------------- the options */

/* A value that would change numbers or memory. */
static zf_status zfi_ds_refuse(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    char text[80];
    zfi_ds_text(value, text, sizeof text);
    if (key->to && zfi_choice_of(key->to, text, strlen(text)) >= 0) {
        r->origin = ZF_DEEPSPEED_NOTED;
        return zfi_ds_note(r, key->path, "", text, "what is always so here");
    }
    return zf_json_fail(value, r->error, "is %s: %s", text, key->words);
}

/* The parameter is not of the scheduler; *error where the file has it. */
static bool zfi_ds_is_strange(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    if (strncmp(key->path, "scheduler.params.", 17) ||
        !strcmp(zfi_ds_leaf(key->path), "last_batch_iteration"))
        return false;
    if (zfi_ds_of_schedule(key->path, r->out->run.schedule)) return false;
    if (r->origin != ZF_DEEPSPEED_DEFAULT)
        (void)zf_json_fail(value, r->error, "is no parameter of the scheduler");
    return true;
}

static zf_status zfi_ds_apply(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    char text[80];
    zf_json_where(value, &r->line, NULL);
    r->origin = ZF_DEEPSPEED_FILE;
    if (zfi_ds_is_auto(value) && key->kind != ZFI_DS_text) return zfi_ds_auto(r, key);
    if (zfi_ds_is_strange(r, key, value)) return r->error->status;
    if (key->verdict == ZFI_DS_MAP)
        return key->kind == ZFI_DS_block && zf_json_type_of(value) == ZF_JSON_NULL
                   ? ZF_OK
                   : key->set(r, key, value);
    if (key->verdict == ZFI_DS_REFUSE) return zfi_ds_refuse(r, key, value);
    if (key->kind == ZFI_DS_block) return ZF_OK;
    zfi_ds_text(value, text, sizeof text);
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", text, key->words);
}

/* The block of a key is in the file, or it is at the top. */
static bool zfi_ds_in_block(const zfi_ds_reader *r, const zfi_ds_key *key)
{
    char block[96];
    const char *leaf = zfi_ds_leaf(key->path);
    if (leaf == key->path) return true;
    snprintf(block, sizeof block, "%.*s", (int)(leaf - key->path - 1), key->path);
    int row = zfi_ds_row("", block);
    /* Without params an optimizer or scheduler has its defaults. */
    if (row >= 0 && !r->given[row] && strchr(block, '.') && !strcmp(zfi_ds_leaf(block), "params"))
        *strchr(block, '.') = '\0', row = zfi_ds_row("", block);
    return row >= 0 && r->given[row] && !r->off[row];
}

/* DeepSpeed before 0.19.3 did not clip where the file does not say. */
static const char *zfi_ds_otherwise(const zfi_ds_reader *r, const zfi_ds_key *key)
{
    int major = 0, minor = 0, patch = 0;
    if (strcmp(key->path, "gradient_clipping") || !r->out->version) return key->otherwise;
    (void)sscanf(r->out->version, "%d.%d.%d", &major, &minor, &patch);
    return major * 1000000 + minor * 1000 + patch < 19003 ? "0" : key->otherwise;
}

/* Sets DeepSpeed's default of a key that the file lacks. */
static zf_status zfi_ds_fill(zfi_ds_reader *r, const zfi_ds_key *key)
{
    static const char clipping[] =
        "the file does not say: DeepSpeed clips at 1.0 since 0.19.3, and did not before";
    const char *text = zfi_ds_otherwise(r, key);
    const int32_t before = r->out->count;
    zf_error none = {ZF_OK, ""};
    zf_json *tree;
    zf_status status;
    if (!(key->traits & ZFI_DS_FILL) || !text || !zfi_ds_in_block(r, key)) return ZF_OK;
    r->origin = ZF_DEEPSPEED_DEFAULT, r->line = 0;
    if (key->verdict == ZFI_DS_REFUSE)
        return zf_json_fail(r->out->json, r->error, "%s is %s by default: %s", key->path, text,
                            key->words);
    if (!(tree = zf_json_parse(text, strlen(text), &r->out->allocator, &none))) {
        if (r->error) *r->error = none;
        return none.status;
    }
    status = zfi_ds_is_strange(r, key, tree) ? ZF_OK : key->set(r, key, tree);
    zf_json_free(tree);
    if (status || strcmp(key->path, "gradient_clipping") || r->out->count == before ||
        r->out->version)
        return status;
    r->out->settings[before].warns = true, r->out->settings[before].words = clipping;
    return ZF_OK;
}

/* Without fp16 and bf16 DeepSpeed computes in the parameters' dtype, f32. */
static zf_status zfi_ds_settle_precision(zfi_ds_reader *r)
{
    static const zfi_ds_key none = {.path = "bf16.enabled", .words = "neither fp16 nor bf16"};
    zfi_option_walk w;
    zf_status status = ZF_OK;
    r->origin = ZF_DEEPSPEED_DEFAULT, r->line = 0;
    if (!zfi_ds_given_option(r, "precision.dtype", &w)) {
        const zf_option *row = NULL;
        if (zfi_ds_goto(&w, &r->all[0], "precision.dtype")) row = zfi_option_row(&w);
        if (row && r->training->precision.dtype != ZF_F32)
            zfi_option_put_integer(row, zfi_option_member(&w), ZF_F32);
        status = zfi_ds_note(r, none.path, "precision.dtype", "f32", none.words);
    }
    r->bytes = r->training->precision.dtype == ZF_F32 ? 4 : 2;
    return status;
}

/* What several keys must say together. */
static zf_status zfi_ds_settle(zfi_ds_reader *r)
{
    const int64_t schedule = r->out->run.schedule;
    const int steps = zfi_ds_row("scheduler.params", "total_num_steps");
    const int block = zfi_ds_row("", "scheduler"), type = zfi_ds_row("scheduler", "type");
    if (*r->autos)
        return zf_json_fail(r->out->json, r->error, "has auto for what no option gives: %s",
                            r->autos);
    if (r->given[block] && !r->given[type] && zf_json_length(r->given[block]))
        return zf_json_fail(r->given[block], r->error, "lacks \"type\"");
    if ((schedule == ZF_WARMUP_DECAY_LR || schedule == ZF_WARMUP_COSINE_LR) && r->given[type] &&
        !r->given[steps])
        return zf_json_fail(r->given[type], r->error, "needs params.total_num_steps");
    return ZF_OK;
}

static zf_status zfi_ds_options(zfi_ds_reader *r)
{
    const int first = zfi_ds_row("", "zero_optimization");
    zf_status status = zfi_ds_settle_batch(r);
    for (int k = 0; k < zfi_ds_count() && !status; k++) {
        if (k == first) status = zfi_ds_settle_precision(r);
        if (status) break;
        if (r->given[k] && !r->off[k]) status = zfi_ds_apply(r, &zfi_ds_keys[k], r->given[k]);
        else if (!r->given[k]) status = zfi_ds_fill(r, &zfi_ds_keys[k]);
    }
    return status ? status : zfi_ds_settle(r);
}

/* -------------------------------------------------------------------------------- public calls */

ZF_API void zf_deepspeed_free(zf_deepspeed *resolved)
{
    zfi_memory memory;
    if (!resolved) return;
    memory = zfi_memory_of(&resolved->allocator);
    zfi_array_free(&memory, resolved->settings);
    zf_json_free(resolved->json);
    resolved->settings = NULL, resolved->json = NULL, resolved->count = 0;
}

ZF_API zf_schedule zf_deepspeed_schedule(const zf_deepspeed_run *run)
{
    zf_deepspeed_run r = run ? *run : (zf_deepspeed_run){.batch = 0};
    zf_options_resolve(&(zf_options){.rows = zfi_ds_run_options, .desc = &r}, 1);
    return (zf_schedule){.kind = (zf_schedule_kind)r.schedule,
                         .peak = r.lr,
                         .start = r.start_lr,
                         .end = r.end_lr,
                         .warmup = r.warmup,
                         .steps = r.schedule_steps,
                         .rate = run && run->lr_rate == ZF_ZERO ? ZF_ZERO : r.lr_rate,
                         .every = r.lr_every,
                         .fall = r.lr_fall,
                         .logarithmic = r.warmup_form == 1,
                         .stairs = r.lr_stairs};
}

/* Reads the tree, which the result owns. */
static zf_status zfi_ds_read(zf_json *tree, zf_training *training, zf_deepspeed *out,
                             zf_error *error)
{
    zf_error none = {ZF_OK, ""};
    zfi_ds_reader r = {
        .training = training, .out = out, .error = error ? error : &none, .bytes = 4};
    zf_status status = ZF_OK;
    r.memory = zfi_memory_of(&out->allocator);
    out->json = tree, out->settings = NULL, out->count = 0;
    out->run = (zf_deepspeed_run){.batch = 0};
    r.all[r.count++] = (zf_options){.rows = zf_training_options(), .desc = training};
    r.all[r.count++] = (zf_options){.rows = zfi_ds_run_options, .desc = &out->run};
    for (int32_t k = 0; k < out->option_count && k < ZFI_DS_TABLES; k++)
        if (out->options[k].desc != training) r.all[r.count++] = out->options[k];
    if (zf_json_type_of(tree) != ZF_JSON_OBJECT)
        status = zf_json_expected(tree, r.error, "an object, DeepSpeed's configuration");
    if (!status) status = zfi_ds_gather(&r, "", tree, false);
    if (!status) status = zfi_ds_options(&r);
    if (status) zf_deepspeed_free(out);
    return status;
}

static zf_status zfi_ds_arguments(const void *text, const zf_training *training,
                                  zf_deepspeed *resolved, const char *call, zf_error *error)
{
    if (error) *error = (zf_error){ZF_OK, ""};
    if (!text || !training || !resolved) return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: NULL", call);
    if (resolved->option_count > ZFI_DS_TABLES)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "%s: %d tables of options, at most %d", call,
                        (int)resolved->option_count, (int)ZFI_DS_TABLES);
    return zfi_options_given(resolved->options, resolved->option_count, call, error);
}

ZF_API zf_status zf_deepspeed_read(const char *json, zf_training *training, zf_deepspeed *resolved,
                                   zf_error *error)
{
    zf_json *tree;
    zf_error wrong = {ZF_OK, ""};
    zf_status status = zfi_ds_arguments(json, training, resolved, "zf_deepspeed_read", error);
    if (status) return status;
    *resolved->file = '\0';
    tree = zfi_json_parse_as(json, strlen(json), "", true, &resolved->allocator, &wrong);
    if (!tree) return zfi_fail(error, wrong.status, "%s", wrong.text);
    return zfi_ds_read(tree, training, resolved, error);
}

ZF_API zf_status zf_deepspeed_load(const char *path, zf_training *training, zf_deepspeed *resolved,
                                   zf_error *error)
{
    zf_json *tree;
    zf_error wrong = {ZF_OK, ""};
    const char *name;
    zf_status status = zfi_ds_arguments(path, training, resolved, "zf_deepspeed_load", error);
    if (status) return status;
    name = strrchr(path, '/');
    snprintf(resolved->file, sizeof resolved->file, "%.90s", name ? name + 1 : path);
    tree = zfi_json_load(path, true, &resolved->allocator, &wrong);
    if (!tree) return zfi_fail(error, wrong.status, "%s", wrong.text);
    return zfi_ds_read(tree, training, resolved, error);
}
