/* Lists that grow. Lack of memory sticks: what is added then is lost, and `failed` says so. */
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

/* Ids of tokens; likewise. */
typedef struct id_list {
    int32_t *at;
    size_t count, room;
    bool failed;
} id_list;

void id_list_add(id_list *, int32_t id);
void id_list_free(id_list *);

/* Room for one more of `size` bytes in a list of `count`: the list, moved or not, or NULL. */
void *list_grow(void *list, size_t count, size_t *room, size_t size);

/* The offset of the first byte that is not UTF-8, or `count`. */
size_t utf8_valid(const char *text, size_t count);

#endif
