/* Regular expressions of tokenizer.json, by PCRE2 (Debian: libpcre2-dev).
 *
 * They are written for Oniguruma. Syntax with another meaning in PCRE2 is rewritten (\s, \w, \v,
 * scripts in \p{...}, {,n}) or is an error that names it (sets within sets, &&, \h, \b, possessive
 * intervals, options other than i). The edition of Unicode is PCRE2's. */
#ifndef REGEX_H
#define REGEX_H

#include "../../zeroflow.h"

/* False: the program was built without PCRE2, and regex_new is an error that says so. */
extern const bool regex_there;

typedef struct regex regex;

/* NULL with *error. */
regex *regex_new(const char *pattern, size_t bytes, zf_error *error);
void regex_free(regex *);

/* Calls `found` for each match in order, with its begin and end; an empty match directly after
 * another one does not count. text: UTF-8. False with *error when the search needs more steps or
 * memory than PCRE2 allows. */
typedef void regex_found(void *user, size_t begin, size_t end);
bool regex_each(const regex *, const char *text, size_t bytes, regex_found *found, void *user,
                zf_error *error);

#endif
