#include "model.h"
#include "options.h"
#include "../frame/score/score.h"

static const zf_config_table *table(void) { return zf_causal_model()->config; }

static const zf_exchange *exchange(void) { return &zf_causal_model()->exchange; }

bool llm_config_load(const char *name, zf_causal_config *c, zf_error *error)
{
    return zf_config_load(table(), name, c, error);
}

zf_tensor llm_build(zf_graph *g, const zf_causal_config *c, const sample_shape *s,
                    sample_purpose purpose)
{
    sample_shape rows = *s;
    causal_inputs in = c->scores ? score_begin(g, &rows, purpose) : causal_begin(g, &rows, purpose);
    zf_causal_outputs out;
    in.model.trains = purpose == SAMPLE_TRAIN;
    in.model.penalized = zf_valid(in.loss_weight);
    in.cap = c->last_cap, in.moved = c->experts > 0;
    out = zf_causal_body(c, &in.model);
    in.penalty = out.penalty;
    return c->scores ? score_end(out.x, &rows, purpose) : causal_end(out.x, out.words, &in);
}

static void build(zf_graph *g, const void *config, const sample_shape *shape,
                  sample_purpose purpose)
{
    llm_build(g, config, shape, purpose);
}

const sample_model llm_sample = {
    .program = "llm",
    .title = "Llama",
    .models = "15m 110m 160m moe-15m, or a config.json, perhaps of a folder; else that of\n"
              "                                    --load or --init, else 15m",
    .otherwise = "15m",
    .config = table,
    .exchange = exchange,
    .build = build,
    .configure = llm_configure,
    .wrong = llm_wrong,
    .unlike = llm_unlike,
    .rows = llm_rows,
    .objective = &causal_objective,
};
