/* generation_config.json: what ends an answer, and how its tokens are chosen. */
#include <string.h>
#include <unistd.h>

/* A member that is not read, and the number or truth that changes nothing. */
typedef struct zfl_generation_row {
    const char *key;
    double plain;
} zfl_generation_row;

static const zfl_generation_row zfl_generation_rows[] = {
    {"assistant_early_exit", 0},
    {"diversity_penalty", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"guidance_scale", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"min_p", 0},
    {"no_repeat_ngram_size", 0},
    {"num_beam_groups", 1},
    {"num_beams", 1},
    {"num_return_sequences", 1},
    {"penalty_alpha", 0},
    {"prompt_lookup_num_tokens", 0},
    {"remove_invalid_values", 0},
    {"token_healing", 0},
    {"typical_p", 1},
    {"use_mtp", 0},
};

/* Members that are read, or that change no text: ids that only transformers asks for, outputs, how
 * it computes, what counts for beams alone, and lengths, which are the caller's. */
static const char *const zfl_generation_keys[] = {"_from_model_config",
                                                  "assistant_confidence_threshold",
                                                  "assistant_lookbehind",
                                                  "bos_token_id",
                                                  "cache_implementation",
                                                  "compile_config",
                                                  "decoder_start_token_id",
                                                  "disable_compile",
                                                  "do_sample",
                                                  "early_stopping",
                                                  "eos_token_id",
                                                  "is_assistant",
                                                  "length_penalty",
                                                  "low_memory",
                                                  "max_cache_len",
                                                  "max_length",
                                                  "max_matching_ngram_size",
                                                  "max_new_tokens",
                                                  "num_assistant_tokens",
                                                  "num_assistant_tokens_schedule",
                                                  "output_attentions",
                                                  "output_hidden_states",
                                                  "output_logits",
                                                  "output_scores",
                                                  "pad_token_id",
                                                  "prefill_chunk_size",
                                                  "renormalize_logits",
                                                  "repetition_penalty",
                                                  "return_dict_in_generate",
                                                  "target_lookbehind",
                                                  "temperature",
                                                  "top_k",
                                                  "top_p",
                                                  "transformers_version",
                                                  "trust_remote_code",
                                                  "use_cache",
                                                  NULL};

/* A value of a member that is not read: it must be that of its row, or empty. */
static void zfl_expect_generation_plain(const zf_json *v, zf_error *error)
{
    const size_t count = sizeof zfl_generation_rows / sizeof *zfl_generation_rows;
    const char *key = zf_json_key(v, NULL);
    double number = 0;
    bool truth = false;
    size_t k = 0;
    while (k < count && strcmp(key, zfl_generation_rows[k].key)) k++;
    if (k == count) {
        if (zf_json_type_of(v) < ZF_JSON_ARRAY || zf_json_length(v))
            zf_json_fail(v, error,
                         "is not done here, and may change the text; remove it if it does not");
        return;
    }
    if (zf_json_type_of(v) != ZF_JSON_BOOL) zf_json_to_double(v, -1e300, 1e300, &number, error);
    else if (!zf_json_to_bool(v, &truth, error)) number = truth;
    if (!error->status && number != zfl_generation_rows[k].plain)
        zf_json_expected(v, error, "%g: another value is not done here",
                         zfl_generation_rows[k].plain);
}

static void zfl_expect_generation_known(const zf_json *top, zf_error *error)
{
    const zf_json *cache = zf_config_member(top, "cache_implementation");
    const char *kind = "";
    if (!zf_json_to_string(cache, &kind, error) && !strcmp(kind, "quantized"))
        zf_json_expected(cache, error, "another kind: caches are not rounded");
    for (const zf_json *v = zf_json_first(top); v && !error->status; v = zf_json_next(v))
        if (zf_json_type_of(v) != ZF_JSON_NULL &&
            !zfl_is_listed(zfl_generation_keys, zf_json_key(v, NULL)))
            zfl_expect_generation_plain(v, error);
}

static void zfl_read_generation_ends(zf_folder_generation *g, const zf_json *top, zf_error *error)
{
    const zf_json *v = zf_config_member(top, "eos_token_id");
    const zf_config_table t = {.ends = ZF_CONFIG_ENDS};
    int64_t ids[ZF_CONFIG_ENDS];
    if (!v || error->status) return;
    zfl_config_read_ids(&t, v, ids, error);
    for (int k = 0; k < ZF_CONFIG_ENDS && !error->status; k++) g->ends[k] = (int32_t)ids[k];
    g->has_ends = true;
}

/* Whether tokens are drawn, and from which. Without do_sample, transformers reads no more than the
 * penalty. */
static void zfl_read_generation_sampling(zf_folder_generation *g, const zf_json *top,
                                         zf_error *error)
{
    const zf_json *v = zf_config_member(top, "do_sample"),
                  *penalty = zf_config_member(top, "repetition_penalty");
    zf_sampling *how = &g->how;
    bool draws = false;
    zf_json_to_bool(v, &draws, error);
    g->has_sampling = v != NULL, g->has_penalty = penalty != NULL;
    zf_json_to_double(penalty, 0.01, 100, &how->repetition, error);
    if (!draws) return;
    how->temperature = 1, how->top_k = 50;
    zf_json_to_double(zf_config_member(top, "temperature"), 1e-6, 100, &how->temperature, error);
    zf_json_to_int(zf_config_member(top, "top_k"), 0, 1000000000, &how->top_k, error);
    zf_json_to_double(zf_config_member(top, "top_p"), 0, 1, &how->top_p, error);
}

bool zf_folder_generation_read(zf_folder_generation *g, const char *folder, zf_error *error)
{
    char file[ZF_FOLDER_PATH];
    zf_json *top;
    *g = (zf_folder_generation){.how = {.top_p = 1, .repetition = 1}};
    for (int k = 0; k < ZF_CONFIG_ENDS; k++) g->ends[k] = -1;
    snprintf(file, sizeof file, "%s/generation_config.json", folder);
    if (access(file, F_OK)) return true;
    if (!(top = zf_json_read(file, NULL, error))) return false;
    if (zf_json_type_of(top) != ZF_JSON_OBJECT) zf_json_expected(top, error, "an object");
    zfl_expect_generation_known(top, error);
    zfl_read_generation_ends(g, top, error);
    if (!error->status) zfl_read_generation_sampling(g, top, error);
    zf_json_free(top);
    return !error->status;
}

void zf_folder_generation_ends(const zf_folder_generation *g, const zf_config_facts *facts,
                               int32_t ends[ZF_CONFIG_ENDS])
{
    for (int k = 0; k < ZF_CONFIG_ENDS; k++)
        ends[k] = g->has_ends ? g->ends[k] : k < facts->ends ? (int32_t)facts->end[k] : -1;
}
