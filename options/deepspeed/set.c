/* DeepSpeed's configuration: how values that are not those of an option become one. */

#define ZFI_DS_RUN(kind, member, range_, with_)                                                    \
    ZF_OPTION(zf_deepspeed_run, kind, member, 0, range_, .with = with_)
#define ZFI_DS_SCHEDULES                                                                           \
    "constant|linear|cosine|polynomial|exponential|one_cycle|warmup_lr|warmup_decay_lr|"           \
    "warmup_cosine_lr|cycle_lr|range_test_lr"
#define ZFI_DS_WARMUPS "schedule=warmup_lr|warmup_decay_lr|warmup_cosine_lr"

/* What a file says of a run. A program's options of these names say more. */
static const zf_option zfi_ds_run_options[] = {
    ZFI_DS_RUN(COUNT, batch, "[1,inf)", NULL),
    ZFI_DS_RUN(COUNT, micro_batch, "[1,inf)", NULL),
    ZFI_DS_RUN(NUMBER, lr, "[0,inf)", NULL),
    ZFI_DS_RUN(NUMBER, start_lr, "[0,inf)", ZFI_DS_WARMUPS "|cycle_lr"),
    ZFI_DS_RUN(NUMBER, end_lr, "[0,inf)", "schedule=warmup_cosine_lr"),
    ZFI_DS_RUN(CHOICE, schedule, ZFI_DS_SCHEDULES, NULL),
    ZFI_DS_RUN(COUNT, warmup, "[1,inf)", ZFI_DS_WARMUPS "|cycle_lr"),
    ZFI_DS_RUN(COUNT, schedule_steps, "[1,inf)", "schedule=warmup_decay_lr|warmup_cosine_lr"),
    ZFI_DS_RUN(CHOICE, warmup_form, "linear|log", ZFI_DS_WARMUPS),
    ZFI_DS_RUN(COUNT, lr_every, "[0,inf)", "schedule=cycle_lr|range_test_lr"),
    ZFI_DS_RUN(COUNT, lr_fall, "[1,inf)", "schedule=cycle_lr"),
    ZFI_DS_RUN(NUMBER, lr_rate, "[0,inf)", "schedule=cycle_lr|range_test_lr"),
    ZFI_DS_RUN(FLAG, lr_stairs, NULL, "schedule=range_test_lr"),
    ZFI_DS_RUN(COUNT, ranks_per_node, "[1,inf)", NULL),
    ZFI_DS_RUN(COUNT, mics, "[1,inf)", NULL),
    ZFI_DS_RUN(TEXT, offload_dir, NULL, NULL),
    {.name = NULL}};

/* Batch sizes are settled together (zfi_ds_settle_batch). */
static zf_status zfi_ds_later(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    (void)r, (void)key, (void)value;
    return ZF_OK;
}

/* A value as it is; a text is that of the tree. */
static zf_status zfi_ds_plain(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    char text[80];
    if (zf_json_type_of(value) == ZF_JSON_NULL) return ZF_OK;
    if (key->kind == ZFI_DS_text)
        return zfi_ds_put(r, key, key->to, value, zf_json_string(value, NULL));
    zfi_ds_text(value, text, sizeof text);
    return zfi_ds_put(r, key, key->to, value, text);
}

/* One of DeepSpeed's names, in "theirs=ours|...". */
static zf_status zfi_ds_renamed(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value,
                                const char *names)
{
    char text[80];
    zfi_ds_text(value, text, sizeof text);
    for (const char *at = names; *at; at += strcspn(at, "|"), at += *at == '|') {
        const size_t length = strcspn(at, "=");
        if (strlen(text) != length || strncmp(text, at, length)) continue;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(at + length + 1, "|"), at + length + 1);
        return zfi_ds_put(r, key, key->to, value, text);
    }
    return zf_json_fail(value, r->error, "%s: %s", text, key->words);
}

static zf_status zfi_ds_optimizer(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    return zfi_ds_renamed(r, key, value,
                          "adam=adamw|adamw=adamw|lamb=lamb|lion=lion|sgd=sgd|onebitadam="
                          "onebit_adam|zerooneadam=zero_one_adam|onebitlamb=onebit_lamb");
}

static zf_status zfi_ds_scheduler(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    return zfi_ds_renamed(r, key, value,
                          "warmuplr=warmup_lr|warmupdecaylr=warmup_decay_lr|warmupcosinelr="
                          "warmup_cosine_lr|onecycle=cycle_lr|lrrangetest=range_test_lr");
}

static zf_status zfi_ds_device(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    const char *text = zf_json_string(value, NULL);
    if (!text || !strcmp(text, "none")) return ZF_OK;
    return zfi_ds_renamed(r, key, value, "cpu=host|nvme=disk");
}

/* fp16.enabled, bf16.enabled. */
static zf_status zfi_ds_precision(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    bool yes = false;
    if (zf_json_to_bool(value, &yes, r->error) || !yes) return r->error->status;
    return zfi_ds_put(r, key, key->to, value, *key->path == 'f' ? "f16" : "bf16");
}

/* A loss scale above 0 does not change. */
static zf_status zfi_ds_loss_scale(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    double scale = 0;
    zf_status status = zf_json_to_double(value, 0, INFINITY, &scale, r->error);
    if (status || scale == 0) return status;
    status = zfi_ds_plain(r, key, value);
    return status ? status : zfi_ds_put(r, key, "precision.factor", value, "1");
}

/* 2^p, where the loss scale changes. */
static zf_status zfi_ds_scale_power(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    int64_t power = 16;
    char text[ZFI_NUMBER_TEXT];
    const zf_status status = zf_json_to_int(value, 0, 126, &power, r->error);
    if (status || r->training->precision.factor == 1) return status;
    return zfi_ds_put(r, key, key->to, value, zfi_double_text(text, ldexp(1, (int)power)));
}

/* Elements as bytes of what ranks send. */
static zf_status zfi_ds_elements(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    int64_t elements = 0;
    char text[32];
    const zf_status status = zf_json_to_int(value, 0, INT64_MAX / 8, &elements, r->error);
    if (status) return status;
    snprintf(text, sizeof text, "%lld", (long long)(elements * (int64_t)r->bytes));
    return zfi_ds_put(r, key, key->to, value, text);
}

/* Buckets of gradients, which stage 3 has by layers. */
static zf_status zfi_ds_bucket(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    const int stage = r->training->zero.stage > 0 ? (int)r->training->zero.stage : 0;
    if (stage == 1 || stage == 2) return zfi_ds_elements(r, key, value);
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", "",
                       "stages 1 and 2 have such buckets; others those of "
                       "a layer");
}

/* What is read ahead at stage 3. */
static zf_status zfi_ds_prefetch(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    if (r->training->zero.stage == 3) return zfi_ds_elements(r, key, value);
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", "", "stage 3 alone gathers parameters");
}

static zf_status zfi_ds_betas(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    static const char *const to[] = {"*.beta1", "*.beta2"};
    zf_status status = ZF_OK;
    if (zf_json_length(value) != 2)
        return zf_json_expected(value, r->error, "two numbers, [beta1, beta2]");
    for (int k = 0; k < 2 && !status; k++) {
        char text[80];
        zfi_ds_text(zf_json_element(value, k), text, sizeof text);
        status = zfi_ds_put(r, key, to[k], zf_json_element(value, k), text);
    }
    return status;
}

/* adam_w_mode: "Adam" without it is another optimizer, unless nothing decays. */
static zf_status zfi_ds_adam_mode(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    bool yes = true;
    zf_status status = zf_json_to_bool(value, &yes, r->error);
    const double decay = r->training->adamw.weight_decay;
    if (status || yes || decay == 0 || decay == ZF_ZERO) return status;
    return zf_json_fail(value, r->error, "is false: %s", key->words);
}

/* bias_correction, the opposite of an option of AdamW and LAMB. */
static zf_status zfi_ds_correction(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    char path[ZFI_OPTION_NAME];
    zfi_option_walk w;
    bool yes = true;
    const zf_status status = zf_json_to_bool(value, &yes, r->error);
    if (status) return status;
    if (zfi_ds_goto(&w, &r->all[0], zfi_ds_path(r, key->to, path)))
        return zfi_ds_put(r, key, key->to, value, yes ? "false" : "true");
    if (!yes) return zf_json_fail(value, r->error, "is false: %s", key->words);
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", "true", "what is always so here");
}

/* The rate of the optimizer, which a scheduler with a rate of its own replaces. */
static zf_status zfi_ds_rate(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    zfi_option_walk w;
    const bool given = r->out->run.lr != 0;
    if (!given || !zfi_ds_given_option(r, "lr", &w)) return zfi_ds_plain(r, key, value);
    if (r->origin == ZF_DEEPSPEED_DEFAULT) return ZF_OK;
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", "", "the scheduler has a rate of its own");
}

/* The highest rate of a warm-up; null: the optimizer's. */
static zf_status zfi_ds_warmup_max(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    if (r->out->run.schedule != ZF_WARMUP_LR && r->out->run.schedule != ZF_WARMUP_DECAY_LR)
        return ZF_OK; /* zfi_ds_is_strange refuses it in a file */
    if (r->origin == ZF_DEEPSPEED_DEFAULT)
        return r->out->run.schedule == ZF_WARMUP_DECAY_LR
                   ? zfi_ds_put(r, key, key->to, value, "0.001")
                   : ZF_OK;
    return zfi_ds_plain(r, key, value);
}

/* zero_hpz_partition_size: ranks that together have a second copy; 1: none. */
static zf_status zfi_ds_hpz(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    int64_t ranks = 1;
    zf_status status = zf_json_to_int(value, 0, INT32_MAX, &ranks, r->error);
    if (status || ranks <= 1) return status;
    status = zfi_ds_put(r, key, "zero.hpz", value, "true");
    return status ? status : zfi_ds_plain(r, key, value);
}

/* mics_shard_size: ranks that share; -1: all. */
static zf_status zfi_ds_mics(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    int64_t ranks = -1;
    zf_status status = zf_json_to_int(value, -1, INT32_MAX, &ranks, r->error);
    if (status || ranks <= 0) return status;
    return zfi_ds_plain(r, key, value);
}

/* zeropp_loco_param: {err_beta, reset_T}, or null. */
static zf_status zfi_ds_loco(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    return zfi_ds_put(r, key, key->to, value, "true");
}

/* A flag for host memory. */
static zf_status zfi_ds_cpu(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    bool yes = false;
    const zf_status status = zf_json_to_bool(value, &yes, r->error);
    return status || !yes ? status : zfi_ds_put(r, key, key->to, value, "host");
}

/* nvme_path, where something lies on the disk. */
static zf_status zfi_ds_nvme(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    const zf_offload_desc *d = &r->training->offload;
    const bool optimizer = strstr(key->path, "optimizer.") != NULL;
    if ((optimizer ? d->optimizer : d->parameters) == ZF_DISK) return zfi_ds_plain(r, key, value);
    r->origin = ZF_DEEPSPEED_NOTED;
    return zfi_ds_note(r, key->path, "", "", "the device is not nvme");
}

/* cycle_momentum. */
static zf_status zfi_ds_momentum(zfi_ds_reader *r, const zfi_ds_key *key, const zf_json *value)
{
    bool yes = false;
    const zf_status status = zf_json_to_bool(value, &yes, r->error);
    if (status || !yes) return status;
    return zf_json_fail(r->origin == ZF_DEEPSPEED_DEFAULT ? r->out->json : value, r->error,
                        "%s is true by default: %s", key->path, key->words);
}

/* Whether a key of scheduler.params is one of this schedule's. */
static bool zfi_ds_of_schedule(const char *path, int64_t schedule)
{
    static const char *const names[] = {"warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type",
                                        "|total_num_steps",
                                        ("warmup_num_steps|warmup_type|total_num_steps|"
                                         "warmup_min_ratio|cos_min_ratio"),
                                        "cycle_|decay_", "lr_range_"};
    const char *leaf = zfi_ds_leaf(path), *list;
    if (schedule < ZF_WARMUP_LR || schedule > ZF_RANGE_TEST_LR) return false;
    list = names[schedule - ZF_WARMUP_LR];
    if (schedule >= ZF_CYCLE_LR) {
        return !strncmp(leaf, list, strcspn(list, "|")) ||
               (schedule == ZF_CYCLE_LR && !strncmp(leaf, "decay_", 6));
    }
    return zfi_choice_of(list, leaf, strlen(leaf)) >= 0 ||
           (schedule == ZF_WARMUP_DECAY_LR && zfi_choice_of(names[0], leaf, strlen(leaf)) >= 0);
}
