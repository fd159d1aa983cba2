/* DeepSpeed's configuration: three batch sizes, of which two give the third. */

typedef struct zfi_ds_batch {
    int64_t train, micro, parts, world; /* 0: not said */
} zfi_ds_batch;

enum { ZFI_DS_TRAIN, ZFI_DS_MICRO, ZFI_DS_PARTS };
static const char *const zfi_ds_batch_keys[] = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};

/* A size: that of the file, else of an option that was given, else 0. *place: in the file. */
static zf_status zfi_ds_size(zfi_ds_reader *r, int which, int64_t *size, const zf_json **place)
{
    const int row = zfi_ds_row("", zfi_ds_batch_keys[which]);
    zfi_option_walk w;
    *place = r->given[row], *size = 0;
    if (*place && !zfi_ds_is_auto(*place))
        return zf_json_to_int(*place, 1, INT64_MAX / 4, size, r->error);
    if (zfi_ds_given_option(r, zfi_ds_keys[row].to, &w))
        *size = zfi_option_integer(zfi_option_row(&w), zfi_option_member(&w));
    return ZF_OK;
}

/* The size of a step is not a product of the others; `by`: what it must be a multiple of, in
 * words. */
static zf_status zfi_ds_uneven(zfi_ds_reader *r, const zf_json *place, const zfi_ds_batch *b,
                               int64_t by)
{
    const int64_t below = b->train / by * by;
    const bool all = b->micro && b->parts;
    char factors[200] = "", nearest[60];
    size_t at = 0;
    if (b->micro)
        at += (size_t)snprintf(factors, sizeof factors, "%s %lld x ",
                               zfi_ds_batch_keys[ZFI_DS_MICRO], (long long)b->micro);
    if (b->parts)
        at += (size_t)snprintf(factors + at, sizeof factors - at, "%s %lld x ",
                               zfi_ds_batch_keys[ZFI_DS_PARTS], (long long)b->parts);
    snprintf(factors + at, sizeof factors - at, "%lld rank%s = %lld", (long long)b->world,
             b->world > 1 ? "s" : "", (long long)by);
    if (all) snprintf(nearest, sizeof nearest, "%lld", (long long)by);
    else
        snprintf(nearest, sizeof nearest, below ? "%lld or %lld" : "%lld",
                 (long long)(below ? below : by), (long long)(below + by));
    return zf_json_fail(
        place, r->error, "does not fit: the batch of a step, %lld, %s %s; %s would do",
        (long long)b->train, all ? "is not" : "is no multiple of", factors, nearest);
}

/* The third of two sizes; train_batch_size alone is one micro-batch of each rank. */
static zf_status zfi_ds_third(zfi_ds_reader *r, const zf_json *place, zfi_ds_batch *b)
{
    const bool all = b->train && b->micro && b->parts;
    const int64_t micro = b->micro ? b->micro : 1, parts = b->parts ? b->parts : 1;
    if (micro > INT64_MAX / 8 / b->world / parts)
        return zf_json_fail(place, r->error,
                            "does not fit: %lld x %lld x %lld examples are too many",
                            (long long)micro, (long long)parts, (long long)b->world);
    const int64_t by = micro * parts * b->world;
    if (!b->train) b->train = by;
    if (all ? b->train != by : b->train % by) return zfi_ds_uneven(r, place, b, by);
    if (b->micro) b->parts = b->train / (micro * b->world);
    else b->micro = b->train / (parts * b->world), b->parts = parts;
    return ZF_OK;
}

/* Sets the three sizes. */
static zf_status zfi_ds_settle_batch(zfi_ds_reader *r)
{
    zfi_ds_batch b = {.world = r->out->world > 0 ? r->out->world : 1};
    int64_t *const sizes[] = {&b.train, &b.micro, &b.parts};
    const zf_json *place[3], *first = r->out->json;
    zf_status status = ZF_OK;
    for (int k = 0; k < 3 && !status; k++) status = zfi_ds_size(r, k, sizes[k], &place[k]);
    for (int k = 2; k >= 0; k--) first = place[k] ? place[k] : first;
    if (status) return status;
    for (int k = 0; k < 2; k++) /* without a size */
        if (!b.train && !b.micro && zfi_ds_is_auto(place[k])) {
            zf_json_where(place[k], &r->line, NULL);
            return zfi_ds_add_auto(r, &zfi_ds_keys[zfi_ds_row("", zfi_ds_batch_keys[k])]);
        }
    if (!b.train && !b.micro)
        return zf_json_fail(r->out->json, r->error,
                            "has neither train_batch_size nor train_micro_batch_size_per_gpu, "
                            "and no option gives the batch of a step");
    status = zfi_ds_third(r, first, &b);
    for (int k = 0; k < 3 && !status; k++) {
        const zfi_ds_key *key = &zfi_ds_keys[zfi_ds_row("", zfi_ds_batch_keys[k])];
        char text[32];
        int64_t line = 0;
        zf_json_where(place[k], &line, NULL);
        r->line = line;
        r->origin = line && !zfi_ds_is_auto(place[k]) ? ZF_DEEPSPEED_FILE : ZF_DEEPSPEED_OPTION;
        snprintf(text, sizeof text, "%lld", (long long)*sizes[k]);
        status = zfi_ds_put(r, key, key->to, place[k] ? place[k] : r->out->json, text);
    }
    return status;
}
