/* Normalization forms of Unicode (UAX 15): NFD and NFC. */
#ifndef NORMAL_H
#define NORMAL_H

#include "buffer.h"

/* Appends the canonical decomposition of a text, UTF-8; composed, if that is asked for. */
void normal_form(const char *text, size_t bytes, bool compose, buffer *out);

#endif
