/* For tests of files of examples: a tokenizer of letters, and files of lines. */
#ifndef LETTERS_H
#define LETTERS_H

#include "../../zeroflow_llm.h"

#include <stdio.h>

static void free_tokens(void *t) { zf_tokenizer_free(t); }

/* A tokenizer of letters: a is 3, b is 4, ...; <s> 0, </s> 1, [ 29, ] 30; ab is 31 */
static zf_tokenizer *letters(zf_error *error)
{
    char text[1200];
    int n = snprintf(text, sizeof text,
                     "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}, "
                     "{\"id\": 1, \"content\": \"</s>\", \"special\": true}], \"post_processor\": "
                     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                     "\"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": "
                     "{\"ids\": [0]}}}, \"model\": {\"vocab\": {\"\\n\": 2");
    for (int k = 0; k < 26; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", \"%c\": %d", 'a' + k, 3 + k);
    n += snprintf(text + n, sizeof text - (size_t)n,
                  ", \"[\": 29, \"]\": 30, \"ab\": 31}, \"merges\": [\"a b\"]}}");
    return zf_tokenizer_parse(text, (size_t)n, "letters", error);
}

static bool write_lines(const char *path, const char *lines)
{
    FILE *f = fopen(path, "wb");
    bool good = f && fputs(lines, f) >= 0;
    return f && !fclose(f) && good;
}

#endif
