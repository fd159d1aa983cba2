/* A sink of metrics that writes an event file (event_file.c), by the names of others. */

typedef struct zfi_event_sink {
    zfi_memory memory;
    zfi_event_file *file;
    zf_metric_names names;
    int64_t lost; /* numbers that could not be written */
    zf_error error;
} zfi_event_sink;

enum { ZFI_TAG = 256 };

ZF_API const char *zf_metric_names_name(zf_metric_names names)
{
    static const char *const all[] = {"hf", "deepspeed"};
    return (unsigned)names < 2 ? all[names] : NULL;
}

/* The tag of a metric, cut to the room. */
static const char *zfi_event_tag(char tag[ZFI_TAG], zf_metric_names names, const char *name)
{
    if (names == ZF_NAMES_DEEPSPEED)
        snprintf(tag, ZFI_TAG, "Train/Samples/%.200s",
                 !strcmp(name, "loss")            ? "train_loss"
                 : !strcmp(name, "learning_rate") ? "lr"
                                                  : name);
    else if (!strncmp(name, "eval_", 5)) snprintf(tag, ZFI_TAG, "eval/%.200s", name + 5);
    else snprintf(tag, ZFI_TAG, "train/%.200s", name);
    return tag;
}

static zf_status zfi_event_put(void *self, const zf_metric *list, int32_t count, zf_error *error)
{
    zfi_event_sink *s = self;
    char tag[ZFI_TAG];
    const int64_t at = s->names == ZF_NAMES_DEEPSPEED ? list->samples : list->step;
    zfi_event_record *r = zfi_event_begin(s->file, list->wall_time, at);
    size_t bytes = 0;
    zf_status status;
    for (int32_t k = 0; k < count; k++) {
        const size_t of = zfi_event_value_bytes(zfi_event_tag(tag, s->names, list[k].name));
        bytes += 1 + zfi_varint_bytes(of) + of;
    }
    zfi_event_key(r, 5, ZFI_WIRE_BYTES), zfi_event_varint(r, bytes);
    for (int32_t k = 0; k < count; k++)
        zfi_event_value(r, zfi_event_tag(tag, s->names, list[k].name), list[k].value);
    status = zfi_event_end(s->file, error);
    if (status && !s->lost && error) s->error = *error;
    if (status) s->lost += count;
    return status;
}

static zf_status zfi_event_sink_close(void *self, zf_error *error)
{
    zfi_event_sink *s = self;
    zfi_memory memory = s->memory;
    zf_status status = ZF_OK;
    if (s->lost)
        status = zfi_fail(error, s->error.status, "%.380s; %lld numbers are not in the event file",
                          s->error.text, (long long)s->lost);
    zfi_event_close(s->file);
    zfi_free(&memory, s, sizeof *s);
    return status;
}

ZF_API zf_status zf_event_sink(const zf_event_desc *desc, zf_sink *sink, zf_error *error)
{
    zf_error none = {ZF_OK, ""};
    zfi_memory memory;
    zfi_event_sink *s;
    if (!error) error = &none;
    if (!desc || !desc->directory || !sink)
        return zfi_fail(
            error, ZF_ERR_ARGUMENT,
            "zf_event_sink: a desc with a directory, and a place for the sink, are needed");
    if (!zf_metric_names_name(desc->names) || desc->resumed < 0)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "zf_event_sink: names is %d and resumed %lld; names must be ZF_NAMES_HF or "
                        "ZF_NAMES_DEEPSPEED, and resumed at least 0",
                        (int)desc->names, (long long)desc->resumed);
    memory = zfi_memory_of(&desc->allocator);
    if (!(s = zfi_calloc(&memory, 1, sizeof *s))) return zfi_nomem(error);
    s->memory = memory, s->names = desc->names;
    if (!(s->file = zfi_event_open(desc->directory, desc->resumed, &desc->allocator, error))) {
        zfi_free(&memory, s, sizeof *s);
        return error->status;
    }
    *sink = (zf_sink){.self = s, .put = zfi_event_put, .close = zfi_event_sink_close};
    return ZF_OK;
}
