/* Whole models, for training and for generation. */
#include <stdlib.h>
#include <string.h>

zf_causal_outputs zf_causal_body(const zf_causal_config *c, const zf_causal_inputs *in)
{
    zf_causal_outputs out = {.penalty = ZF_NONE};
    zfl_routers routers = {.trains = in->trains};
    zf_causal_inputs with = *in;
    zf_causal_blocks(&with, c->layout, c->heads);
    if (in->trains && c->experts) routers.layer = calloc((size_t)c->layers, sizeof *routers.layer);
    out.x = zfl_layers(c, &with, &routers, &out.words);
    if (routers.layer && in->penalized) out.penalty = zfl_penalty(&routers, c, in);
    if (routers.layer && c->of.watched) zfl_watch_experts(&routers, c, in);
    out.x = zfl_check_routers(out.x, &routers, c);
    free(routers.layer);
    return out;
}

zf_tensor zf_causal_train(zf_graph *g, const zf_causal_config *c, const zf_causal_shape *s)
{
    const zf_shape rows = ZF_SHAPE(s->batch, s->sequence);
    const zf_output_desc sum = {.reduction = ZF_REDUCTION_SUM};
    zf_causal_inputs in = {.trains = true, .penalized = true};
    zf_causal_outputs out;
    zf_tensor labels, weight, loss;
    in.input_ids = zf_input(g, "input_ids", ZF_I32, rows);
    labels = zf_input(g, "labels", ZF_I32, rows);
    weight = zf_input(g, "loss_weight", ZF_F32, ZF_SCALAR);
    if (s->packed) {
        in.documents = zf_documents(zf_input(g, "segments", ZF_I32, rows));
        in.positions = zf_input(g, "positions", ZF_I32, rows);
    }
    if (c->scores) return zf_fail(in.input_ids, "a model that scores texts predicts no token");
    out = zf_causal_body(c, &in);
    loss = zf_causal_loss(&out, labels, weight, c->last_cap);
    return zf_output_ex(loss, "loss", &sum);
}

static void zfl_build_causal_step(zf_graph *g, const void *config, const zf_decode_shape *shape)
{
    const zf_causal_config *c = config;
    const zf_decode_inputs decode = zf_decode_begin(g, shape);
    const zf_causal_inputs in = zf_causal_of_decode(&decode);
    zf_causal_outputs out;
    if (c->scores) {
        (void)zf_fail(in.input_ids, "a model that scores texts continues none");
        return;
    }
    out = zf_causal_body(c, &in);
    zf_output(zf_causal_logits(zf_gather_rows(out.x, decode.last), out.words, c->last_cap),
              "logits");
}

/* Bloom's files may lack the prefix. */
static bool zfl_older_causal_name(const char *name, char *older, size_t size)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1)) return false;
    snprintf(older, size, "%s", name + sizeof prefix - 1);
    return true;
}

const zf_model *zf_causal_model(void)
{
    static const zf_model model = {
        .config = &zfl_members,
        .build = zfl_build_causal_step,
        .exchange = {
            .prefix = "model.",
            .parts = ".experts.",
            .fresh = ".gate.e_score_correction_bias",
            .older = zfl_older_causal_name,
            .within = "language_model.",
            .others = {"vision_tower.", "multi_modal_projector.", "visual."},
            .words = "model.embed_tokens.weight",
            .other_words = {"transformer.word_embeddings.weight", "transformer.wte.weight"},
            .head = "lm_head.weight",
            .score = "score.weight",
            .inside = {"layers.", "embed_tokens.", "norm.", "gpt_neox.", "transformer."},
            .heads = {"lm_head.", "embed_out.", "score."},
            .buffers = {".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"}}};
    return &model;
}
