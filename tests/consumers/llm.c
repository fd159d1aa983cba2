/* Reads the tokenizer of a folder, loads its weights and writes an answer: llm DIR. The model is an
 * embedding and a head, which are enough to show that the parts fit together. */
#include <zeroflow_llm.h>

#include <stddef.h>
#include <string.h>

typedef struct words {
    int64_t vocab, positions, layers, hidden, heads, inner, tied;
} words;

static void build(zf_graph *g, const void *config, const zf_decode_shape *shape)
{
    const words *c = config;
    const zf_decode_inputs in = zf_decode_begin(g, shape);
    const zf_shape rows = ZF_SHAPE(shape->texts * shape->tokens, c->hidden);
    zf_push(g, "model");
    zf_tensor x = zf_nn_embedding_table(g, "embed_tokens", c->vocab, c->hidden, NULL);
    x = zf_reshape(zf_embedding(x, in.input_ids), rows);
    zf_pop(g);
    zf_decode_end(x, zf_nn_embedding_table(g, "lm_head", c->vocab, c->hidden, NULL), &in);
}

/* Of a whole Llama; this one has no layers. */
static const char *const left_out[] = {
    "attention_bias", "attention_dropout", "head_dim", "hidden_act", "initializer_range", "mlp_bias",
    "num_key_value_heads", "rms_norm_eps", "rope_parameters", NULL};

#define COUNT(key, member)                                                                         \
    {                                                                                              \
        key, ZF_CONFIG_COUNT, .at = offsetof(words, member), .most = 1e9                           \
    }

int main(int argc, char **argv)
{
    const zf_config_table keys = {
        .types = {"llama"},
        .bytes = sizeof(words),
        .defaults = &(const words){.vocab = 0},
        .rows = {COUNT("vocab_size", vocab),
                 COUNT("max_position_embeddings", positions),
                 COUNT("num_hidden_layers", layers),
                 COUNT("hidden_size", hidden),
                 COUNT("num_attention_heads", heads),
                 COUNT("intermediate_size", inner),
                 {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = offsetof(words, tied)}},
        .keys = left_out,
        .vocab = offsetof(words, vocab),
        .positions = offsetof(words, positions),
        .layers = offsetof(words, layers),
        .hidden = offsetof(words, hidden),
        .heads = offsetof(words, heads),
        .intermediate = offsetof(words, inner),
        .tied = offsetof(words, tied)};
    const zf_model model = {.config = &keys,
                            .build = build,
                            .exchange = {.prefix = "model.",
                                         .words = "model.embed_tokens.weight",
                                         .head = "lm_head.weight",
                                         .heads = {"lm_head."},
                                         .buffers = {"proj.weight", "norm.weight"}}};
    zf_error error = {ZF_OK, ""};
    zf_generator g = {.graphs = {NULL}};
    zf_generator_desc desc = {.model = &model, .folder = argc > 1 ? argv[1] : "."};
    zf_text answer = {.at = NULL};
    zf_tokenizer *tokenizer = zf_tokenizer_open(desc.folder, &error);
    desc.backend = zf_cpu_backend(NULL, &error);
    if (!tokenizer || !desc.backend || !zf_generator_open(&g, &desc, &error) ||
        !zf_generate(&g, tokenizer, "a bird", &(zf_generate_desc){.tokens = 8}, &answer, &error))
        return fprintf(stderr, "llm: %s\n", error.text), 1;
    printf("a bird|%s\n", answer.at);
    zf_text_free(&answer);
    zf_generator_close(&g);
    zf_tokenizer_free(tokenizer);
    zf_backend_free(desc.backend);
    return 0;
}
