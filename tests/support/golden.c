#include "golden.h"

double *values_of(zf_safetensors *file, const char *name, int64_t *count)
{
    zf_error error = {ZF_OK, ""};
    int32_t at = zf_safetensors_find(file, name);
    const zf_safetensors_entry *e = zf_safetensors_at(file, at);
    void *data = e ? malloc(e->bytes + 1) : NULL;
    double *values = e ? malloc(((size_t)zf_shape_count(e->shape) + 1) * sizeof *values) : NULL;
    if (data && values && !zf_safetensors_read(file, at, data, e->bytes, &error)) {
        *count = zf_shape_count(e->shape);
        zf_convert(values, ZF_F64, data, e->dtype, (size_t)*count);
    } else {
        free(values);
        values = NULL;
    }
    free(data);
    return values;
}

double square_sum(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

double error_of(zf_safetensors *file, zf_safetensors *golden, const char *name)
{
    int64_t count = 0, golden_count = 0;
    double *x = values_of(file, name, &count), *y = values_of(golden, name, &golden_count);
    double result = INFINITY, size;
    if (x && y && count == golden_count) {
        size = square_sum(y, count);
        for (int64_t i = 0; i < count; i++) x[i] -= y[i];
        result = square_sum(x, count) / (size > 0 ? size : 1);
    }
    free(x);
    free(y);
    return result;
}

static void close_file(void *file) { zf_safetensors_close(file); }

zf_safetensors *open_file(test *t, const char *path)
{
    zf_error error = {ZF_OK, ""};
    zf_safetensors *file = zf_safetensors_open(path, NULL, &error);
    if (!file) test_fail(t, __FILE__, __LINE__, "a file can be opened", error.text);
    else test_defer(t, close_file, file);
    return file;
}

/* A whole file; NULL when it cannot be read. */
static char *bytes_of(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *data = malloc(1 << 22);
    *bytes = file && data ? fread(data, 1, 1 << 22, file) : 0;
    if (file) fclose(file);
    return data;
}

bool same_files(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    char *x = bytes_of(a, &a_bytes), *y = bytes_of(b, &b_bytes);
    bool same = x && y && a_bytes && a_bytes == b_bytes && !memcmp(x, y, a_bytes);
    free(x);
    free(y);
    return same;
}
