/* Normalization forms of Unicode (UAX 15): NFD and NFC. */
#ifndef NORMAL_H
#define NORMAL_H

#include "../base/buffer.h"

/* Appends the canonical decomposition of a text in UTF-8, or with `compose` its composition. */
void normal_form(const char *text, size_t bytes, bool compose, buffer *out);

#endif
