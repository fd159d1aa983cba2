#include "policy_data.h"
#include "../options/fail.h"
#include "../score/model_reward.h"

#include <stdlib.h>

/* Either tokenizer of the folder. */
static bool open_tokenizer(dataset *d, policy_data *p, const settings *o, zf_error *error)
{
    const zf_wordpiece_options options = tokenizing_options(&o->words);
    if (!zf_folder_is(o->tokenizer) || zf_folder_has_bpe(o->tokenizer))
        return (p->how.tokenizer = p->tokens = zf_tokenizer_open(o->tokenizer, error)) != NULL;
    if (!(p->how.words = d->vocab = zf_folder_vocab(o->tokenizer, &options, error))) return false;
    p->how.begin = zf_wordpiece_id(d->vocab, "[SEP]");
    return true;
}

/* The tokens that end an answer: by the files of the model, and those of the chat. */
static bool read_ends(policy_data *p, const settings *o, const zf_config_facts *facts,
                      zf_error *error)
{
    char end[ZF_CHAT_TOKEN] = "";
    zf_folder_generation says;
    if (!zf_folder_generation_read(&says, o->init ? o->init : o->model, error)) return false;
    p->ends[POLICY_ENDS - 1] = p->ends[POLICY_ENDS - 2] = -1;
    zf_folder_generation_ends(&says, facts, p->ends);
    if (p->how.words && p->ends[0] < 0) p->ends[0] = p->how.begin;
    if (*p->chat.end) p->ends[POLICY_ENDS - 1] = zf_tokenizer_id(p->tokens, p->chat.end);
    if (!p->chat.plain) return true;
    if (!zf_chat_end(&p->chat, end, error)) return false;
    if (*end) p->ends[POLICY_ENDS - 2] = zf_tokenizer_id(p->tokens, end);
    return true;
}

static bool open_prompts(policy_data *p, const settings *o, const zf_config_facts *facts,
                         zf_error *error)
{
    const policy_options *own = o->own;
    if (o->seq <= own->tokens)
        return fail(error, ZF_ERR_ARGUMENT,
                    "--seq %lld has no room for a prompt and an answer of --tokens %lld",
                    (long long)o->seq, (long long)own->tokens);
    p->how.chat = p->chat.plain ? &p->chat : NULL;
    p->how.ends = p->ends, p->how.end_count = POLICY_ENDS;
    p->how.stops = own->stop.at, p->how.stop_count = own->stop.count;
    p->how.vocab = *facts->vocab;
    const zf_prompts_desc fits = {&p->how, o->seq - own->tokens};
    return zf_prompts_read(&p->prompts, o->data, &fits, error) &&
           (!own->held_out || zf_prompts_read(&p->held_out, own->held_out, &fits, error));
}

/* `sequence`: tokens of a prompt and its answer, at most. */
static bool open_rewards(policy_data *p, const settings *o, int64_t sequence, const void *config,
                         zf_error *error)
{
    const policy_options *own = o->own;
    model_reward_desc model = {.sample = own->sample,
                               .run = o,
                               .config = config,
                               .over = &p->models,
                               .vocab = p->how.vocab,
                               .tokens = sequence,
                               .folder = o->tokenizer,
                               .threads = o->threads,
                               .standardize = own->reward_standardize};
    const zf_reward_kind kind = {"model", model_reward_open, &model};
    p->rewards = zf_rewards_open(&(zf_rewards_desc){.specs = own->reward.at,
                                                    .spec_count = own->reward.count,
                                                    .kinds = &kind,
                                                    .kind_count = 1,
                                                    .tokens = own->tokens,
                                                    .deadline = own->reward_deadline},
                                 error);
    return p->rewards != NULL;
}

/* The desc of the loss, without what it does not have; a 0 is one that was given. */
static zf_policy_desc loss_of(const policy_options *own)
{
    zf_policy_desc d = own->loss;
    if (d.loss != ZF_POLICY_CISPO) d.cap = 0;
    else d.clip_low = d.clip_high = d.dual_clip = 0;
    if (d.loss != ZF_POLICY_CISPO && d.clip_low == 0) d.clip_low = ZF_ZERO;
    if (d.kl_beta == 0) d.kl = 0;
    return d;
}

/* What the prompts say of the data; the tokens of the longest. */
static int64_t count_prompts(dataset *d, const policy_data *p)
{
    int64_t longest = 0;
    d->documents = p->prompts.count, d->digest = ZF_DIGEST_START, d->begins = 1;
    for (int64_t k = 0; k < p->prompts.count; k++) {
        const zf_prompt *at = &p->prompts.at[k];
        d->tokens += (int64_t)at->ids.count;
        d->digest = zf_digest_bytes(d->digest, at->text.at, at->text.count);
        if ((int64_t)at->ids.count > longest) longest = (int64_t)at->ids.count;
    }
    for (int64_t k = 0; k < p->held_out.count; k++)
        if ((int64_t)p->held_out.at[k].ids.count > longest)
            longest = (int64_t)p->held_out.at[k].ids.count;
    return longest;
}

static void describe(policy_data *p, const settings *o, int64_t sequence, const void *config)
{
    const policy_options *own = o->own;
    const bool copies = !settings_adapts(o) && (own->loss.kl_beta > 0 ||
                                                (own->kind->open && own->advantage.kl_reward > 0));
    p->graph = (policy_graph){.loss = loss_of(own), .temperature = own->how.temperature};
    p->experience = (experience_desc){.o = own,
                                      .run = o,
                                      .data = &p->prompts,
                                      .held_out = own->held_out ? &p->held_out : NULL,
                                      .how = &p->how,
                                      .rewards = p->rewards,
                                      .models = &p->models,
                                      .seed = (uint64_t)o->seed,
                                      .batch = o->batch,
                                      .sequence = sequence,
                                      .config = config,
                                      .no_fuse = o->training.fuse.without,
                                      .reference = settings_adapts(o) || copies,
                                      .first = o->adapter != NULL,
                                      .copy = copies};
}

/* The text of --ptx, if there is one. */
static bool open_text(dataset *d, policy_data *p, const settings *o, int64_t sequence,
                      zf_error *error)
{
    const ppo_options *own = &((const policy_options *)o->own)->ppo;
    causal_tokens *text = &p->experience.text;
    if (!own->ptx) return true;
    if (!ptx_read(text, own->ptx, &p->how, sequence, error)) return false;
    d->digest = zf_digest_bytes(d->digest, text->id, (size_t)text->count * sizeof *text->id);
    p->text_rows = own->ptx_rows ? own->ptx_rows : o->batch;
    p->graph.text_coefficient = own->ptx_coefficient;
    return true;
}

bool policy_data_open(dataset *d, const settings *o, const zf_config_facts *facts, void *config,
                      zf_error *error)
{
    policy_data *p = d->own = calloc(1, sizeof *p);
    int64_t sequence;
    if (!p) return fail(error, ZF_ERR_NOMEM, "out of memory");
    p->chat.style = -1;
    if (!open_tokenizer(d, p, o, error) || !dataset_open_chat(&p->chat, o, p->tokens, error) ||
        !read_ends(p, o, facts, error) || !open_prompts(p, o, facts, error))
        return false;
    sequence = count_prompts(d, p) + ((const policy_options *)o->own)->tokens;
    if (!open_rewards(p, o, sequence, config, error)) return false;
    describe(p, o, sequence, config);
    d->first = p->experience.copy;
    if (!open_text(d, p, o, sequence, error)) return false;
    return !p->tokens || zf_folder_texts_read(&d->texts, o->tokenizer, NULL, error);
}

void policy_data_close(dataset *d)
{
    policy_data *p = d->own;
    if (!p) return;
    free(p->experience.text.id);
    zf_rewards_close(p->rewards);
    zf_prompts_free(&p->prompts);
    zf_prompts_free(&p->held_out);
    zf_chat_close(&p->chat);
    zf_tokenizer_free(p->tokens);
    free(p);
}

void policy_data_fit(const dataset *d, const settings *o, int64_t parts, sample_shape *shape)
{
    policy_data *p = d->own;
    (void)o;
    p->parts = parts, p->graph.texts = p->text_rows / parts;
    shape->sequence = p->experience.sequence, shape->policy = &p->graph;
}
