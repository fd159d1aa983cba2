/* Vocabularies from files. */
#include "tokenizer.h"
#include "unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 28 };

/* ----------------------------------------------------------------------------------- vocab.txt */

/* The length of a line without the spaces at its end; -1, with a message, when it cannot be a
 * token. */
static int64_t token_length(const char *line, size_t length, const char *name, int64_t number,
                            char *err, size_t err_size)
{
    size_t end = 0;
    uint32_t c;
    for (size_t i = 0; i < length;) {
        int bytes = bert_decode((const unsigned char *)line + i, length - i, &c);
        if (!bytes || !c) {
            snprintf(err, err_size, "%s:%lld: %s at byte %zu of the line", name, (long long)number,
                     bytes ? "a zero" : "invalid UTF-8", i + 1);
            return -1;
        }
        i += (size_t)bytes;
        if (!bert_is_space(c)) end = i;
    }
    if (end <= BERT_TOKEN_BYTES) return (int64_t)end;
    snprintf(err, err_size, "%s:%lld: a token of %zu bytes: it may have at most %d", name,
             (long long)number, end, BERT_TOKEN_BYTES);
    return -1;
}

/* The tokens of the lines, to be freed, their number to *count. */
static bert_token *cut_lines(const char *text, size_t bytes, const char *name, size_t *count,
                             char *err, size_t err_size)
{
    size_t lines = bytes && text[bytes - 1] != '\n';
    bert_token *tokens;
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    if (!bytes || lines > INT32_MAX) {
        snprintf(err, err_size, "%s: %s", name,
                 bytes ? "too many lines" : "empty file: a vocabulary has one token per line");
        return NULL;
    }
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
        snprintf(err, err_size, "%s:1: a byte order mark, which would be part of the first token",
                 name);
        return NULL;
    }
    tokens = malloc(lines * sizeof *tokens);
    if (!tokens) {
        snprintf(err, err_size, "%s: out of memory", name);
        return NULL;
    }
    *count = 0;
    for (size_t at = 0; at < bytes; *count += 1) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t next = end ? (size_t)(end - text) + 1 : bytes, line = next - at - (end != NULL);
        int64_t length = token_length(text + at, line, name, (int64_t)*count + 1, err, err_size);
        if (length < 0) {
            free(tokens);
            return NULL;
        }
        tokens[*count] = (bert_token){text + at, (size_t)length, (int32_t)*count, false};
        at = next;
    }
    return tokens;
}

bert_vocab *bert_vocab_parse(const char *text, size_t bytes, const char *name,
                             const bert_tokenizer_options *options, char *err, size_t err_size)
{
    bert_vocab_file source = {"vocab.txt", text, bytes};
    bert_vocab *v = NULL;
    size_t count;
    bert_token *tokens;
    if (bytes > FILE_LIMIT) {
        snprintf(err, err_size, "%s: too large for a vocabulary", name);
        return NULL;
    }
    tokens = cut_lines(text, bytes, name, &count, err, err_size);
    if (tokens) v = bert_vocab_new(tokens, count, options, &source, name, err, err_size);
    free(tokens);
    return v;
}

/* ---------------------------------------------------------------------------------------- files */

bert_vocab *bert_vocab_load(const char *path, const bert_tokenizer_options *options, char *err,
                            size_t err_size)
{
    FILE *f = fopen(path, "rb");
    const char *why = NULL;
    bert_vocab *v = NULL;
    char *text = NULL;
    size_t bytes = 0, room = 1 << 15; /* doubled at once: a pipe does not tell its size */
    if (!f) why = strerror(errno);
    while (!why && !feof(f)) {
        if (!text || bytes == room) {
            char *more = realloc(text, (room *= 2) + 1);
            if (!more) {
                why = "out of memory";
                break;
            }
            text = more;
        }
        bytes += fread(text + bytes, 1, room - bytes, f);
        if (ferror(f)) why = strerror(errno);
        else if (bytes > FILE_LIMIT) why = "too large for a vocabulary";
    }
    if (f) fclose(f);
    if (why) snprintf(err, err_size, "%s: %s", path, why);
    else v = bert_vocab_parse(text, bytes, path, options, err, err_size);
    free(text);
    return v;
}
