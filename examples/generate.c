/* Continues a text with a Llama: its graph, its keys in config.json, and an answer, on one page.
 *
 *     cc -I. examples/generate.c -o generate -lm -lpthread -lpcre2-8
 *     ./generate DIR "The bird"          DIR: config.json, model.safetensors, tokenizer.json
 */
#define ZEROFLOW_IMPLEMENTATION /* in one file of a program */
#define ZEROFLOW_LLM_IMPLEMENTATION
#include "zeroflow_llm.h"

#include <stddef.h>

typedef struct llama {
    int64_t vocab, positions, hidden, layers, heads, kv_heads, width, inner, tied, ends[4];
    double eps, theta; /* the file's other members must change nothing, or reading is an error */
} llama;

static zf_tensor linear(zf_tensor x, const char *name, int64_t out)
{
    return zf_nn_linear(x, name, out, &(zf_nn_linear_desc){.no_bias = true});
}

static zf_tensor attend(zf_tensor x, const llama *c, const zf_decode_inputs *in)
{
    const int64_t wide = c->kv_heads * c->width;
    zf_rope_desc rope = {.theta = c->theta, .positions = in->positions, .heads = c->heads};
    zf_attention_desc a = {.heads = c->heads, .kv_heads = c->kv_heads, .causal = true};
    zf_tensor q = zf_rope(linear(x, "q_proj", c->heads * c->width), &rope);
    rope.heads = c->kv_heads;
    zf_tensor k = zf_rope(linear(x, "k_proj", wide), &rope), v = linear(x, "v_proj", wide);
    zf_decode_caches(&a, in, wide);
    return linear(zf_attention(q, k, v, &a), "o_proj", c->hidden);
}

static void build(zf_graph *g, const void *config, const zf_decode_shape *shape)
{
    const llama *c = config;
    zf_decode_inputs in = zf_decode_begin(g, shape);
    zf_push(g, "model");
    zf_tensor words = zf_nn_embedding_table(g, "embed_tokens", c->vocab, c->hidden, NULL);
    zf_tensor x = zf_embedding(words, in.input_ids);
    for (int64_t i = 0; i < c->layers; i++) {
        zf_push(g, "layers.%lld", (long long)i);
        zf_tensor y = zf_nn_rms_norm(x, "input_layernorm", c->eps);
        zf_push(g, "self_attn");
        x = zf_add(x, attend(y, c, &in));
        zf_pop(g);
        y = zf_nn_rms_norm(x, "post_attention_layernorm", c->eps);
        zf_push(g, "mlp");
        zf_tensor gate = linear(y, "gate_proj", c->inner), up = linear(y, "up_proj", c->inner);
        x = zf_add(x, linear(zf_swiglu(gate, up), "down_proj", c->hidden));
        zf_pop(g);
        zf_pop(g);
    }
    x = zf_nn_rms_norm(x, "norm", c->eps);
    zf_pop(g);
    if (!c->tied) words = zf_nn_embedding_table(g, "lm_head", c->vocab, c->hidden, NULL);
    zf_decode_end(zf_reshape(x, ZF_SHAPE(shape->texts * shape->tokens, c->hidden)), words, &in);
}

/* What rows cannot express. False with *error. */
static bool read_more(void *config, const zf_json *json, zf_error *error)
{
    llama *c = config;
    zf_rope_desc rope = {.theta = 0};
    if (!zf_config_read_rope(json, c->positions, &rope, error)) return false;
    c->theta = rope.theta;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->width) c->width = c->hidden / c->heads;
    if (rope.scaling) zf_json_fail(json, error, "has scaled rope, which this example leaves out");
    return !rope.scaling; /* dynamic: plain up to the positions of the model */
}

#define COUNT(key, member, ...)                                                                    \
    {                                                                                              \
        key, ZF_CONFIG_COUNT, .at = offsetof(llama, member), .least = 1, .most = 1 << 24,          \
                              __VA_ARGS__                                                          \
    }
static const zf_config_table keys = {
    .types = {"llama"},
    .bytes = sizeof(llama),
    .defaults = &(const llama){.eps = 1e-6, .theta = 10000, .ends = {-1, -1, -1, -1}},
    .rows = {COUNT("vocab_size", vocab, .use = ZF_CONFIG_NEEDED),
             COUNT("max_position_embeddings", positions, .use = ZF_CONFIG_NEEDED),
             COUNT("hidden_size", hidden, .use = ZF_CONFIG_NEEDED),
             COUNT("num_hidden_layers", layers, .use = ZF_CONFIG_NEEDED),
             COUNT("head_dim", width, .use = 0),
             COUNT("num_attention_heads", heads, .use = ZF_CONFIG_NEEDED),
             COUNT("num_key_value_heads", kv_heads, .use = 0),
             COUNT("intermediate_size", inner, .use = ZF_CONFIG_NEEDED),
             {"rms_norm_eps", ZF_CONFIG_NUMBER, .at = offsetof(llama, eps), .most = 1},
             {"rope_theta", ZF_CONFIG_NUMBER, .at = offsetof(llama, theta), .most = 1e12},
             {"eos_token_id", ZF_CONFIG_TOKENS, .at = offsetof(llama, ends)},
             {"hidden_act", ZF_CONFIG_TEXT, .text = "silu"},
             {"attention_bias", ZF_CONFIG_FALSE, .at = 0},
             {"mlp_bias", ZF_CONFIG_FALSE, .at = 0},
             {"tie_word_embeddings", ZF_CONFIG_TRUTH, .at = offsetof(llama, tied)}},
    .keys = (const char *const[]){"rope_parameters", "rope_scaling", "partial_rotary_factor",
                                  "attention_dropout", "initializer_range", NULL},
    .vocab = offsetof(llama, vocab),
    .positions = offsetof(llama, positions),
    .layers = offsetof(llama, layers),
    .hidden = offsetof(llama, hidden),
    .heads = offsetof(llama, heads),
    .intermediate = offsetof(llama, inner),
    .tied = offsetof(llama, tied),
    .end = offsetof(llama, ends),
    .ends = 4,
    .width = offsetof(llama, width),
    .read_more = read_more,
};
static const zf_model model = {.config = &keys,
                               .build = build,
                               .exchange = {.prefix = "model.",
                                            .words = "model.embed_tokens.weight",
                                            .head = "lm_head.weight",
                                            .inside = {"layers.", "embed_tokens.", "norm."},
                                            .heads = {"lm_head."}}};

static void print(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout), fflush(stdout);
}

int main(int argc, char **argv)
{
    zf_error error = {ZF_OK, ""};
    zf_generator g = {.graphs = {NULL}};
    zf_text answer = {.at = NULL};
    if (argc != 3) return fprintf(stderr, "usage: generate DIR TEXT\n"), 2;
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, &error);
    zf_tokenizer *tokenizer = cpu ? zf_tokenizer_open(argv[1], &error) : NULL;
    bool good =
        tokenizer &&
        zf_generator_open(
            &g, &(zf_generator_desc){.model = &model, .folder = argv[1], .backend = cpu}, &error);
    if (good) fputs(argv[2], stdout);
    good = good && zf_generate(&g, tokenizer, argv[2],
                               &(zf_generate_desc){.tokens = 20, .show = print}, &answer, &error);
    puts(good ? "" : "\n");
    if (!good) fprintf(stderr, "generate: %s\n", error.text);
    zf_text_free(&answer);
    zf_generator_close(&g);
    zf_tokenizer_free(tokenizer);
    zf_backend_free(cpu);
    return !good;
}
