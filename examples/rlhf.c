/* Trains a model on rewards by a function of this program: GRPO, with answers that are sampled over
 * the parameters that are trained. The model is small and knows nothing at first; the reward is the
 * share of an answer's letters that are the letter of its prompt.
 *
 *     cc -I. examples/rlhf.c -o rlhf -lm -lpthread -lpcre2-8
 *     ./rlhf prompts.jsonl          lines {"prompt": "a"}, of letters from a to h
 */
#define ZEROFLOW_IMPLEMENTATION /* in one file of a program */
#define ZEROFLOW_LLM_IMPLEMENTATION
#include "zeroflow_llm.h"

#include <stdlib.h>

enum { PROMPTS = 8, GROUP = 8, TEXTS = PROMPTS * GROUP, ANSWER = 8, ROW = 10, VOCAB = 9, END = 8 };
enum { WIDTH = 32, HEADS = 2 };

static const char letters[] = "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"vocab\": {\"a\": "
                              "0, \"b\": 1, \"c\": 2, \"d\": 3, "
                              "\"e\": 4, \"f\": 5, \"g\": 6, \"h\": 7, \"$\": 8}, \"merges\": []}}";

static zf_tensor linear(zf_tensor x, const char *name, int64_t out)
{
    return zf_nn_linear(x, name, out, &(zf_nn_linear_desc){.no_bias = true});
}

/* What predicts the next token: [texts * tokens, WIDTH]. `in`: of a step of generation; NULL: ids
 * are whole texts. *words: the embedding, which is the head as well. */
static zf_tensor body(zf_graph *g, zf_tensor ids, const zf_decode_inputs *in, zf_tensor *words)
{
    zf_rope_desc rope = {.positions = in ? in->positions : ZF_NONE, .heads = HEADS};
    zf_attention_desc a = {.heads = HEADS, .causal = true};
    zf_tensor x = zf_embedding(*words = zf_nn_embedding_table(g, "words", VOCAB, WIDTH, NULL), ids);
    zf_tensor y = zf_nn_rms_norm(x, "norm1", 1e-5);
    zf_tensor q = zf_rope(linear(y, "q", WIDTH), &rope), k = zf_rope(linear(y, "k", WIDTH), &rope);
    if (in) zf_decode_caches(&a, in, WIDTH);
    x = zf_add(x, linear(zf_attention(q, k, linear(y, "v", WIDTH), &a), "o", WIDTH));
    y = zf_nn_rms_norm(x, "norm2", 1e-5);
    x = zf_add(
        x, linear(zf_nn_activation(linear(y, "up", 4 * WIDTH), ZF_ACTIVATION_SILU), "down", WIDTH));
    return zf_reshape(zf_nn_rms_norm(x, "norm3", 1e-5), ZF_SHAPE(-1, WIDTH));
}

static zf_program *train_program(zf_graph *g, zf_backend *cpu)
{
    zf_tensor ids = zf_input(g, "ids", ZF_I32, ZF_SHAPE(TEXTS, ROW)), words, x;
    zf_policy_rows rows = {.labels = zf_input(g, "labels", ZF_I32, ZF_SHAPE(TEXTS, ROW)),
                           .advantage = zf_input(g, "advantage", ZF_F32, ZF_SHAPE(TEXTS, 1)),
                           .weight = zf_input(g, "weight", ZF_F32, ZF_SHAPE(TEXTS, 1))};
    x = body(g, ids, NULL, &words);
    rows.logp = zf_head_logp(x, words, ZF_NONE, zf_reshape(rows.labels, ZF_SHAPE(-1)), NULL);
    zf_passes(g, &(zf_training){.loss = zf_output(zf_policy_loss(&rows, NULL).loss, "loss"),
                                .lr = zf_constant(g, ZF_F32, ZF_SCALAR, 1e-2)});
    return zf_compile(g, &(zf_compile_desc){.backend = cpu, .seed = 1});
}

/* A step that continues texts by `tokens` tokens, over the trained parameters. */
static zf_program *decode_program(zf_graph *g, int64_t tokens, zf_program *trained,
                                  zf_program *caches)
{
    zf_decode_inputs in = zf_decode_begin(g, &(zf_decode_shape){TEXTS, tokens, ROW, 2});
    zf_tensor words, x = body(g, in.input_ids, &in, &words);
    zf_decode_end(x, words, &in);
    zf_fuse(g, NULL);
    return zf_compile(g, &(zf_compile_desc){.store = zf_program_store(trained),
                                            .must_exist = true,
                                            .shares_memory_with = trained,
                                            .caches = caches,
                                            .evaluate = true});
}

static bool repeats_the_prompt(void *user, const zf_reward_item *items, int64_t n, double *out,
                               zf_error *error)
{
    (void)user, (void)error;
    for (int64_t k = 0; k < n; k++) {
        const char letter = *zf_json_string(zf_json_member(items[k].prompt->data, "prompt"), NULL);
        out[k] = 0;
        for (size_t i = 0; i < items[k].bytes; i++) out[k] += items[k].text[i] == letter;
        out[k] /= ANSWER;
    }
    return true;
}

/* Writes the answers, left-aligned, with what they are worth, and makes a step. */
static zf_status learn(zf_program *p, zf_graph *g, const zf_rollouts *r, const double *advantage)
{
    int32_t ids[TEXTS][ROW] = {{0}}, labels[TEXTS][ROW];
    float worth[TEXTS], weights[TEXTS];
    double weight[TEXTS];
    for (int k = 0; k < TEXTS; k++) {
        const zf_answer *a = &r->answers[k];
        for (size_t t = 0; t < ROW; t++) {
            const bool answers = t + 1 >= a->given && t + 1 < a->ids.count;
            if (t < a->ids.count) ids[k][t] = a->ids.at[t];
            labels[k][t] = answers ? a->ids.at[t + 1] : -100;
        }
    }
    zf_policy_weights(&(zf_answers){TEXTS, ROW, labels[0]}, ZF_POLICY_GRPO, ANSWER, weight);
    for (int k = 0; k < TEXTS; k++) worth[k] = (float)advantage[k], weights[k] = (float)weight[k];
    zf_write(p, zf_graph_find(g, "ids"), ids, sizeof ids);
    zf_write(p, zf_graph_find(g, "labels"), labels, sizeof labels);
    zf_write(p, zf_graph_find(g, "advantage"), worth, sizeof worth);
    zf_write(p, zf_graph_find(g, "weight"), weights, sizeof weights);
    return zf_step(p); /* reports a failed zf_write as well */
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: rlhf FILE\n"), 2;
    zf_error error = {ZF_OK, ""};
    const int32_t end = END;
    zf_graph *g[3] = {zf_graph_new(NULL), zf_graph_new(NULL), zf_graph_new(NULL)};
    zf_backend *cpu = zf_cpu_backend(NULL, &error);
    zf_tokenizer *tokens = zf_tokenizer_parse(letters, sizeof letters - 1, "letters", &error);
    const zf_answer_desc how = {.tokenizer = tokens, .ends = &end, .end_count = 1, .vocab = VOCAB};
    const zf_reward own = {.name = "repeats", .fn = repeats_the_prompt};
    zf_rewards *rewards =
        zf_rewards_open(&(zf_rewards_desc){.own = &own, .own_count = 1, .tokens = ANSWER}, &error);
    zf_program *p = cpu ? train_program(g[0], cpu) : NULL;
    zf_program *prompt = p ? decode_program(g[1], 2, p, NULL) : NULL;
    zf_program *token = prompt ? decode_program(g[2], 1, p, prompt) : NULL;
    zf_prompts data = {.at = NULL};
    zf_decoder decoder = {.texts = 0};
    bool good =
        token && tokens && rewards &&
        zf_prompts_read(&data, argv[1], &(zf_prompts_desc){&how, ROW - ANSWER}, &error) &&
        zf_decoder_open(&decoder,
                        &(zf_decoder_desc){{g[1], prompt, 2}, {g[2], token, 1}, TEXTS, ROW, false},
                        &error);
    zf_rollout_desc rollout = {.decoder = &decoder,
                               .how = &how,
                               .sampling = {.temperature = 1},
                               .group = GROUP,
                               .tokens = ANSWER};
    for (; good && rollout.iteration <= 200; rollout.iteration++) {
        int64_t numbers[PROMPTS];
        int32_t group[TEXTS];
        double reward[TEXTS], advantage[TEXTS], mean = 0;
        zf_rollouts r;
        for (int k = 0; k < PROMPTS; k++)
            numbers[k] = (rollout.iteration * PROMPTS + k) % data.count;
        good = zf_rollouts_write(&r, &data, numbers, PROMPTS, &rollout, &error);
        good = good && zf_rewards_score(rewards, &r, reward, NULL, &error);
        for (int k = 0; good && k < TEXTS; k++) group[k] = k / GROUP, mean += reward[k] / TEXTS;
        if (good) zf_group_advantages(reward, group, TEXTS, ZF_ADVANTAGE_GROUP, advantage);
        if (good && rollout.iteration % 50 == 0)
            printf("iteration %3d  reward %.2f  %.1s: %s\n", (int)rollout.iteration, mean,
                   zf_json_string(zf_json_member(r.prompts[0]->data, "prompt"), NULL),
                   r.answers[0].text.at ? r.answers[0].text.at : "");
        if (good && learn(p, g[0], &r, advantage)) {
            good = false;
            snprintf(error.text, sizeof error.text, "%s", zf_program_error(p));
        }
        zf_rollouts_free(&r);
    }
    for (int k = 0; k < 3 && !*error.text && !good; k++)
        snprintf(error.text, sizeof error.text, "%s", zf_graph_error(g[k]));
    if (!good) fprintf(stderr, "rlhf: %s\n", error.text);
    zf_decoder_close(&decoder);
    zf_prompts_free(&data);
    zf_rewards_close(rewards);
    zf_tokenizer_free(tokens);
    zf_program_free(token), zf_program_free(prompt), zf_program_free(p);
    for (int k = 0; k < 3; k++) zf_graph_free(g[k]);
    zf_backend_free(cpu);
    return !good;
}
