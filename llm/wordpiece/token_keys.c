/* The members of tokenizer_config.json and special_tokens_map.json. */
#include <string.h>

/* It names a special token: bos_token, eos_token, or one that only this folder has. */
static bool zfl_is_token_key(const char *key)
{
    const size_t n = strlen(key);
    return n > 6 && !strcmp(key + n - 6, "_token") && strcmp(key, "add_bos_token") &&
           strcmp(key, "add_eos_token");
}

/* Members of tokenizer_config.json and special_tokens_map.json that are read elsewhere, or that
 * change no ids and no text where there is a tokenizer.json: what transformers 5 does not read
 * then, padding, truncation and frames of batches. */
/* clang-format off */
static const char *const zfl_config_keys[] = {
    "add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens",
    "auto_map", "backend", "chat_control_tokens", "chat_template", "clean_up_tokenization_spaces",
    "device_map", "errors", "extra_special_tokens", "files_loaded", "from_slow", "is_local",
    "legacy", "local_files_only", "max_len", "max_length", "model_input_names",
    "model_max_length", "model_specific_special_tokens", "name_or_path", "pad_to_multiple_of",
    "pad_token_type_id", "padding", "padding_side", "processor_class", "response_schema",
    "response_template", "return_token_type_ids", "sp_model_kwargs",
    "spaces_between_special_tokens", "special_tokens_map_file", "stride", "tokenizer_class",
    "tokenizer_file", "truncation", "truncation_side", "truncation_strategy", "trust_remote_code",
    "unk_id", "use_default_system_prompt", "use_fast", "verbose", "vocab_file", "vocab_size", NULL};
/* clang-format on */

/* Whether a list of strings has no other one than this. */
static bool zfl_lists_only(const zf_json *list, const char *text)
{
    for (const zf_json *v = zf_json_first(list); v; v = zf_json_next(v)) {
        const char *is = zf_json_string(v, NULL);
        if (!is || strcmp(is, text)) return false;
    }
    return true;
}

/* own: further members that are read, NULL after the last. A member that is neither read nor known
 * to change nothing is an error. */
static void zfl_expect_token_config(const zf_json *top, const char *const *own, zf_error *error)
{
    static const char *const off[] = {
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "do_lower_case",
        "fix_mistral_regex", "split_special_tokens", NULL};
    for (const zf_json *v = zf_json_first(top); v && !error->status; v = zf_json_next(v)) {
        const char *key = zf_json_key(v, NULL);
        bool on = false;
        if (zf_json_type_of(v) == ZF_JSON_NULL || zfl_is_token_key(key) || zfl_is_listed(own, key))
            continue;
        if (zfl_is_listed(off, key)) {
            if (!zf_json_to_bool(v, &on, error) && on) zf_json_expected(v, error, "false");
        } else if (!strcmp(key, "init_inputs")) {
            if (zf_json_length(v)) zf_json_fail(v, error, "is not empty, which is not read");
        } else if (!strcmp(key, "fast_tokenizer_files")) {
            if (!zfl_lists_only(v, "tokenizer.json"))
                zf_json_fail(v, error, "names other files than tokenizer.json");
        } else if (!zfl_is_listed(zfl_config_keys, key)) {
            zf_json_fail(v, error, "is not read, and may change the text");
        }
    }
}
