#include "config.h"

#include <string.h>

void llm_set_rope(llm_config *c, const zf_rope_desc *rope)
{
    c->theta = rope->theta, c->scaling = rope->scaling, c->factor = rope->factor;
    c->low = rope->low_factor, c->high = rope->high_factor, c->original = rope->original;
    c->attention = rope->attention, c->unrounded = rope->unrounded;
}

void llm_set_full(llm_config *c, int64_t layer)
{
    if (layer < LLM_LAYERS) c->full[layer / 64] |= (int64_t)((uint64_t)1 << layer % 64);
}

void llm_read_types(llm_config *c, const zf_json *types, zf_error *error)
{
    int64_t layer = 0, sliding = 0;
    for (const zf_json *v = zf_json_first(types); v && !error->status; v = zf_json_next(v)) {
        const char *text = "";
        bool full;
        zf_json_to_string(v, &text, error);
        full = !strcmp(text, "full_attention");
        if (!error->status && !full && strcmp(text, "sliding_attention"))
            zf_json_expected(v, error, "full_attention or sliding_attention");
        if (full) llm_set_full(c, layer);
        sliding += !full, layer++;
    }
    if (error->status) return;
    if (layer != c->layers)
        zf_json_expected(types, error, "a list of num_hidden_layers (%lld)", (long long)c->layers);
    else if (sliding && !c->window)
        zf_json_fail(types, error, "names sliding layers, and there is no sliding_window%s",
                     c->family == LLM_LLAMA ? " in a llama" : "");
    if (!sliding) c->window = 0;
}
