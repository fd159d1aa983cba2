#define _POSIX_C_SOURCE 200809L
#include "config.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const zf_json *config_member(const zf_json *config, const char *key)
{
    const zf_json *v = zf_json_member(config, key);
    return zf_json_type_of(v) == ZF_JSON_NULL ? NULL : v;
}

void config_expect(const zf_json *config, const char *key, const char *wanted, zf_error *error)
{
    const zf_json *v = config_member(config, key);
    const char *text = NULL;
    zf_json_to_string(v, &text, error);
    if (!error->status && text && strcmp(text, wanted))
        zf_json_expected(v, error, "\"%s\"", wanted);
}

void config_expect_bool(const zf_json *config, const char *key, bool wanted, zf_error *error)
{
    const zf_json *v = config_member(config, key);
    bool is = wanted;
    zf_json_to_bool(v, &is, error);
    if (!error->status && is != wanted) zf_json_expected(v, error, wanted ? "true" : "false");
}

void config_expect_plain(const zf_json *config, const char *model_type, zf_error *error)
{
    const zf_json *quantized = config_member(config, "quantization_config"),
                  *pruned = config_member(config, "pruned_heads");
    config_expect(config, "model_type", model_type, error);
    if (quantized && !error->status)
        zf_json_fail(quantized, error, "says that the weights are quantised, which is not read");
    if (zf_json_length(pruned) > 0 && !error->status)
        zf_json_fail(pruned, error, "removes heads; all layers must have all of them");
}

static const struct {
    const char *name;
    zf_activation activation;
} activations[] = {
    /* The first name of each is the one that is written. */
    {"gelu", ZF_ACTIVATION_GELU},           {"gelu_python", ZF_ACTIVATION_GELU},
    {"gelu_new", ZF_ACTIVATION_GELU_TANH},  {"gelu_pytorch_tanh", ZF_ACTIVATION_GELU_TANH},
    {"gelu_fast", ZF_ACTIVATION_GELU_TANH}, {"relu", ZF_ACTIVATION_RELU},
    {"silu", ZF_ACTIVATION_SILU},           {"swish", ZF_ACTIVATION_SILU},
};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

void config_activation(const zf_json *config, const char *key, int64_t *activation, zf_error *error)
{
    const zf_json *v = config_member(config, key);
    const char *text = NULL;
    zf_json_to_string(v, &text, error);
    if (error->status || !text) return;
    for (int i = 0; i < ACTIVATIONS; i++)
        if (!strcmp(text, activations[i].name)) {
            *activation = activations[i].activation;
            return;
        }
    zf_json_expected(v, error, "one of gelu, gelu_new, gelu_pytorch_tanh, relu and silu");
}

const char *config_activation_name(int64_t activation)
{
    for (int i = 0; i < ACTIVATIONS; i++)
        if ((int64_t)activations[i].activation == activation) return activations[i].name;
    return NULL;
}

bool config_is_path(const char *name)
{
    char file[1024];
    if (strpbrk(name, "./")) return true;
    snprintf(file, sizeof file, "%s/config.json", name);
    return !access(file, F_OK);
}

zf_json *config_read(const char *path, zf_error *error)
{
    struct stat about;
    char file[1024];
    if (stat(path, &about) || !S_ISDIR(about.st_mode)) return zf_json_read(path, NULL, error);
    snprintf(file, sizeof file, "%s/config.json", path);
    return zf_json_read(file, NULL, error);
}
