/* SmolLM3 (Hugging Face 2025): a Llama in which each fourth layer, or those that config.json lists,
 * has no rope. With a window, these layers have it. */
#include "../config.h"

static const char *const keys[] = {"no_rope_layers", "no_rope_layer_interval", NULL};

/* no_rope_layers: 1 for each layer with rope, 0 for one without. */
static void read_list(llm_config *c, const zf_json *list, zf_error *error)
{
    int64_t layer = 0;
    for (const zf_json *v = zf_json_first(list); v && !error->status;
         v = zf_json_next(v), layer++) {
        int64_t has = 1;
        zf_json_to_int(v, 0, 1, &has, error);
        if (!has && layer < c->layers) llm_mark(c->plain, layer);
    }
    if (layer < c->layers && !error->status)
        zf_json_expected(list, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
}

static void read_plain(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *list = zf_config_member(json, "no_rope_layers");
    int64_t interval = 4;
    if (c->layers > LLM_LAYERS)
        zf_json_expected(zf_json_member(json, "num_hidden_layers"), error, "at most %d",
                         LLM_LAYERS);
    zf_json_to_int(zf_config_member(json, "no_rope_layer_interval"), 1, INT32_MAX, &interval,
                   error);
    if (list) read_list(c, list, error);
    for (int64_t k = interval - 1; !list && !error->status && k < c->layers; k += interval)
        llm_mark(c->plain, k);
}

static void read(llm_config *c, const zf_json *json, zf_error *error)
{
    const zf_json *types = zf_config_member(json, "layer_types");
    zf_rope_desc rope = {.theta = 0};
    bool uses = false;
    double whole;
    if (!zf_config_read_rope_part(json, c->theta, c->positions, &rope, &whole, error)) return;
    if (whole != 1)
        zf_json_expected(zf_json_member(json, "partial_rotary_factor"), error,
                         "1: all of a head is rotated");
    llm_set_rope(c, &rope);
    read_plain(c, json, error);
    llm_read_window(c, json, 0, error);
    zf_json_to_bool(zf_config_member(json, "use_sliding_window"), &uses, error);
    if (types) llm_read_types(c, types, error);
    else if (!uses) c->window = 0;
    for (int64_t k = 0; !types && c->window && k < c->layers; k++)
        if (!llm_is_plain(c, k)) llm_mark(c->full, k);
}

static void write(const llm_config *c, zf_json_writer *w)
{
    zf_json_put_key(w, "no_rope_layers");
    zf_json_begin_array(w);
    for (int64_t k = 0; k < c->layers; k++) zf_json_put_int(w, !llm_is_plain(c, k));
    zf_json_end(w);
    zf_json_put_bool_member(w, "use_sliding_window", c->window > 0);
    llm_write_types(c, w);
}

const llm_family_desc llm_smollm3 = {
    .architecture = "SmolLM3ForCausalLM",
    .config = {.keys = keys,
               .defaults =
                   &(const llm_config){LLM_DEFAULTS(2e6, 1e-6, 128000, 128001, 128004), .tied = 1}},
    .kv_heads = 4,
    .read = read,
    .write = write,
    .reads_rope = true,
    .reads_windows = true,
    .norms = LLM_NORMS,
};
