/* DeepSpeed's configuration: what became of each key, and the table of keys. */

/* "ds.json:12", "--lr", "DeepSpeed's default". */
static const char *zfi_ds_from(const zf_deepspeed *d, const zf_deepspeed_setting *s, char *text,
                               size_t size)
{
    if (s->origin == ZF_DEEPSPEED_DEFAULT) snprintf(text, size, "DeepSpeed's default");
    else if (s->origin == ZF_DEEPSPEED_OPTION) snprintf(text, size, "option");
    else
        snprintf(text, size, "%s%s%lld", *d->file ? d->file : "line", *d->file ? ":" : " ",
                 (long long)s->line);
    return text;
}

ZF_API void zf_deepspeed_explain(const zf_deepspeed *resolved, FILE *file)
{
    if (!resolved || !resolved->settings || !file) return;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t k = 0; k < resolved->count; k++) {
            const zf_deepspeed_setting *s = &resolved->settings[k];
            char from[140], left[180];
            if ((*s->option == '\0') != pass) continue;
            snprintf(left, sizeof left, "%s%s%s", *s->option ? s->option : s->key,
                     *s->value ? " = " : "", s->value);
            fprintf(file, "%-46s %-22s %s%s%s\n", left, zfi_ds_from(resolved, s, from, sizeof from),
                    *s->option ? s->key : "", *s->option && *s->words ? ": " : "", s->words);
        }
}

ZF_API void zf_deepspeed_put_json(const zf_deepspeed *resolved, zf_json_writer *writer)
{
    for (int32_t k = 0; resolved && resolved->settings && k < resolved->count; k++) {
        const zf_deepspeed_setting *s = &resolved->settings[k];
        bool before = false;
        for (int32_t i = 0; i < k; i++) before |= !strcmp(resolved->settings[i].option, s->option);
        if (!*s->option || before) continue;
        zf_json_put_key(writer, s->option);
        zf_json_put_string(writer, s->value);
    }
}

ZF_API void zf_deepspeed_keys(FILE *file)
{
    static const char *const kinds[] = {"bool",    "int",  "number", "text", "choice",
                                        "numbers", "list", "block",  "any"};
    for (int k = 0; file && k < zfi_ds_count(); k++) {
        const zfi_ds_key *key = &zfi_ds_keys[k];
        const char *to = key->to && *key->to ? key->to : NULL;
        fprintf(file, "%s %s%s%s", key->path, kinds[key->kind], key->range ? " " : "",
                key->range ? key->range : "");
        if (key->otherwise) fprintf(file, " [%s]", key->otherwise);
        fprintf(file, " since %s\n    ", key->since);
        switch (key->verdict) {
        case ZFI_DS_MAP: fprintf(file, "sets%s%s: ", to ? " " : "", to ? to : ""); break;
        case ZFI_DS_SAME: fprintf(file, "same: "); break;
        case ZFI_DS_REFUSE:
            fprintf(file, "refused%s%s: ", to ? " unless " : "", to ? to : "");
            break;
        default: fprintf(file, "ignored: ");
        }
        fprintf(file, "%s\n", key->words);
    }
}
