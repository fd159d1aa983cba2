/* A text that a policy goes on predicting while it learns from rewards (PPO-ptx, Ouyang et al.
 * 2022): documents, between which are blank lines, as one line of tokens. */
#include "policy_data.h"
#include "../options/fail.h"

#include <stdlib.h>
#include <string.h>

/* The bytes up to the next blank line. */
static size_t document(const char *text, size_t bytes)
{
    for (size_t k = 0; k < bytes; k++) {
        size_t next = k + 1;
        if (text[k] != '\n') continue;
        while (next < bytes && (text[next] == ' ' || text[next] == '\t' || text[next] == '\r'))
            next++;
        if (next == bytes || text[next] == '\n') return k;
    }
    return bytes;
}

/* Appends a document and its end. One that begins with the end of the one before has it once. */
static bool add(zf_ids *all, const char *text, size_t bytes, const zf_answer_desc *how,
                zf_error *error)
{
    zf_ids ids = {.at = NULL};
    bool good = zf_answer_prompt(how, text, bytes, &ids, error);
    for (size_t k = 0; k < ids.count && good; k++)
        if (k || ids.at[k] != how->ends[0]) zf_ids_add(all, ids.at[k]);
    if (how->ends[0] >= 0) zf_ids_add(all, how->ends[0]);
    zf_ids_free(&ids);
    return good && (!all->failed || fail(error, ZF_ERR_NOMEM, "out of memory"));
}

bool ptx_read(causal_tokens *out, const char *path, const zf_answer_desc *how, int64_t row,
              zf_error *error)
{
    zf_text text = {.at = NULL};
    zf_ids ids = {.at = NULL};
    bool good = zf_text_read_plain(path, &text, error);
    size_t at = good ? strspn(text.at, " \t\r\n") : 0;
    while (good && at < text.count) {
        const size_t bytes = document(text.at + at, text.count - at);
        good = add(&ids, text.at + at, bytes, how, error);
        at += bytes;
        if (at < text.count) at += strspn(text.at + at, " \t\r\n");
    }
    zf_text_free(&text);
    if (good && (int64_t)ids.count <= row)
        good = fail(error, ZF_ERR_ARGUMENT,
                    "--ptx %s has %lld tokens; a row of %lld and the token after it are needed",
                    path, (long long)ids.count, (long long)row);
    if (good) *out = (causal_tokens){ids.at, (int64_t)ids.count, how->ends[0]};
    else zf_ids_free(&ids);
    return good;
}
