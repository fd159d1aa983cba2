#include "../options/fail.h"
#include "integers.h"

#include <stdlib.h>
#include <string.h>

static bool is_integer(const zf_safetensors_entry *e)
{
    return e->readable &&
           (e->dtype == ZF_I64 || e->dtype == ZF_I32 || e->dtype == ZF_U8 || e->dtype == ZF_BOOL);
}

/* Converts integers of the file to int64. */
static void widen(int64_t *values, const void *data, zf_dtype dtype, int64_t count)
{
    const int64_t *wide = data;
    const int32_t *narrow = data;
    const uint8_t *bytes = data;
    for (int64_t i = 0; i < count; i++)
        values[i] = dtype == ZF_I64 ? wide[i] : dtype == ZF_I32 ? narrow[i] : bytes[i];
}

static bool in_range(const char *path, const integers_rule *rule, const int64_t *values,
                     int64_t count, zf_error *error)
{
    for (int64_t i = 0; i < count; i++) {
        if ((values[i] >= 0 && values[i] < rule->limit) || (rule->ignored && values[i] == -100))
            continue;
        return fail(error, ZF_ERR_FORMAT, "%s: %s: element %lld is %lld; it must be in [0, %lld)%s",
                    path, rule->name, (long long)i, (long long)values[i], (long long)rule->limit,
                    rule->ignored ? ", or -100" : "");
    }
    return true;
}

int64_t *integers_load(zf_safetensors *file, const char *path, const integers_rule *rule,
                       zf_shape *shape, zf_error *error)
{
    int32_t at = zf_safetensors_find(file, rule->name);
    const zf_safetensors_entry *e = at < 0 ? NULL : zf_safetensors_at(file, at);
    int64_t *values = NULL, count;
    void *data;
    if (!e && rule->optional) return NULL;
    if (!e || !is_integer(e) || e->shape.rank < rule->rank || e->shape.rank > rule->rank + 1) {
        fail(error, ZF_ERR_FORMAT, "%s: %s must be an I64, I32, U8 or BOOL tensor %s%s", path,
             rule->name, rule->rank == 1 ? "[S,B] or [B]" : "[S,B,T] or [B,T]",
             e ? "" : ", and is missing");
        return NULL;
    }
    *shape = e->shape;
    if (shape->rank == rule->rank) {
        memmove(shape->dims + 1, shape->dims, (size_t)rule->rank * sizeof *shape->dims);
        shape->dims[0] = 1;
        shape->rank++;
    }
    count = zf_shape_count(*shape);
    data = malloc(e->bytes + 1);
    values = malloc(((size_t)count + 1) * sizeof *values);
    if (!data || !values) fail(error, ZF_ERR_NOMEM, "out of memory");
    else if (!zf_safetensors_read(file, at, data, e->bytes, error)) {
        widen(values, data, e->dtype, count);
        (void)in_range(path, rule, values, count, error);
    }
    free(data);
    if (!error->status) return values;
    free(values);
    return NULL;
}

bool integers_all_known(const zf_safetensors *file, const char *path, const integers_rule *rules,
                        int count, zf_error *error)
{
    for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
        const char *name = zf_safetensors_at(file, i)->name;
        bool known = false;
        for (int k = 0; k < count; k++) known |= !strcmp(name, rules[k].name);
        if (!known)
            return fail(error, ZF_ERR_FORMAT, "%s: %.100s is nothing that the model takes", path,
                        name);
    }
    return true;
}
