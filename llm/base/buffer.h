/* Growing lists. A failed allocation is remembered: later additions are lost, and `failed` is
 * true. */
#ifndef BUFFER_H
#define BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes. */
typedef struct buffer {
    char *at; /* terminated, unless it is NULL */
    size_t count, room;
    bool failed;
} buffer;

void buffer_add(buffer *, const void *bytes, size_t count);
void buffer_add_text(buffer *, const char *text);
void buffer_add_character(buffer *, uint32_t character); /* as UTF-8 */
void buffer_clear(buffer *);                             /* keeps its room */
void buffer_free(buffer *);

/* Ids of tokens; the same. */
typedef struct id_list {
    int32_t *at;
    size_t count, room;
    bool failed;
} id_list;

void id_list_add(id_list *, int32_t id);
void id_list_free(id_list *);

/* Makes room for one more element of `size` bytes in a list of `count`. Returns the list, which may
 * have moved, or NULL. */
void *list_grow(void *list, size_t count, size_t *room, size_t size);

/* The offset of the first byte that is not UTF-8, or `count`. */
size_t utf8_valid(const char *text, size_t count);

#endif
