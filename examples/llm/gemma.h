/* What Gemma 3 (Gemma Team 2025), its text part, has of its own.
 *
 *     x = embedding sqrt(H)
 *     x += norm(attend(norm(x)))    q and k normed by heads; of six layers five have a window, and a
 *     x += norm(ffn(norm(x)))       theta of their own
 *
 * norm: RMS norm by 1 + weight. Where activations are 16 bits wide, 1 + weight and sqrt(H) are
 * rounded to these. */
#ifndef LLM_GEMMA_H
#define LLM_GEMMA_H

#include "config.h"

/* The members of config.json that only Gemma has: with `gemma` read, else an error. False with
 * *error. */
bool llm_gemma_read(llm_config *config, const zf_json *json, zf_error *error);
void llm_gemma_write(const llm_config *config, zf_json_writer *w);

/* Keys that only it has; NULL after the last. */
extern const char *const llm_gemma_keys[];

/* RMS norm by 1 + weight, of rows of any width. */
zf_tensor llm_gemma_norm(zf_tensor x, const char *name, double eps);

#endif
