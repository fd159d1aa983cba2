/* DeepSpeed's configuration: "auto", which is an option of the program. */

/* What Hugging Face's TrainingArguments calls an option. */
static const char *zfi_ds_trainer_name(const char *key)
{
    static const char *const names[][2] = {
        {"lr", "learning_rate"},
        {"warmup_max_lr", "learning_rate"},
        {"betas", "adam_beta1 and adam_beta2"},
        {"eps", "adam_epsilon"},
        {"weight_decay", "weight_decay"},
        {"warmup_num_steps", "warmup_steps"},
        {"gradient_clipping", "max_grad_norm"},
        {"train_batch_size", "per_device_train_batch_size"},
        {"train_micro_batch_size_per_gpu", "per_device_train_batch_size"}};
    const char *leaf = zfi_ds_leaf(key);
    for (int k = 0; k < ZFI_COUNT(names); k++)
        if (!strcmp(names[k][0], leaf)) return names[k][1];
    return NULL;
}

/* The name of an option on the program's command line, or its path. */
static const char *zfi_ds_called(const zfi_ds_reader *r, const char *to, char name[ZFI_OPTION_NAME])
{
    char path[ZFI_OPTION_NAME];
    zfi_option_walk w;
    zfi_ds_path(r, to, path);
    for (int32_t k = r->count - 1; k >= 0; k--)
        if (k != 1 && zfi_ds_goto(&w, &r->all[k], path)) return zfi_option_called(&w, true, name);
    snprintf(name, ZFI_OPTION_NAME, "%s", path);
    return name;
}

/* Adds a key to the list of those for which no option has a value. */
static zf_status zfi_ds_add_auto(zfi_ds_reader *r, const zfi_ds_key *key)
{
    char path[ZFI_OPTION_NAME];
    const char *trainer = zfi_ds_trainer_name(key->path);
    const size_t at = strlen(r->autos);
    snprintf(r->autos + at, sizeof r->autos - at, "%s%s (%s%s%s), line %lld", at ? "; " : "",
             key->path, key->to ? zfi_ds_called(r, key->to, path) : "a value",
             trainer ? "; TrainingArguments: " : "", trainer ? trainer : "", (long long)r->line);
    return ZF_OK;
}

/* "auto" is the option that was given, the default where there is one, or an error later. */
static zf_status zfi_ds_auto(zfi_ds_reader *r, const zfi_ds_key *key)
{
    zfi_option_walk w;
    char shown[ZFI_OPTION_VALUE], path[ZFI_OPTION_NAME];
    if (key->verdict != ZFI_DS_MAP || key->set == zfi_ds_later) return ZF_OK;
    if (key->to && zfi_ds_given_option(r, key->to, &w)) {
        r->origin = ZF_DEEPSPEED_OPTION;
        return zfi_ds_note(
            r, key->path, zfi_ds_path(r, key->to, path),
            zfi_option_value(zfi_option_row(&w), zfi_option_member(&w), false, shown), key->words);
    }
    return key->traits & ZFI_DS_AUTO ? ZF_OK : zfi_ds_add_auto(r, key);
}
