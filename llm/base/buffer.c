#include "buffer.h"
#include "../text/wordpiece.h"

#include <stdlib.h>
#include <string.h>

void buffer_add(buffer *b, const void *bytes, size_t count)
{
    if (b->failed) return;
    if (b->room - b->count <= count) {
        size_t room = b->room > 32 ? b->room : 32;
        char *more;
        while (room - b->count <= count) room *= 2;
        more = realloc(b->at, room);
        if (!more) {
            b->failed = true;
            return;
        }
        b->at = more, b->room = room;
    }
    if (count) memcpy(b->at + b->count, bytes, count);
    b->count += count;
    b->at[b->count] = 0;
}

void buffer_add_text(buffer *b, const char *text) { buffer_add(b, text, strlen(text)); }

void buffer_add_character(buffer *b, uint32_t c)
{
    char out[4];
    int bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = bytes - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(bytes == 1 ? c : (0xF00 >> bytes & 0xFF) | c);
    buffer_add(b, out, (size_t)bytes);
}

void buffer_clear(buffer *b)
{
    b->count = 0;
    if (b->at) b->at[0] = 0;
}

void buffer_free(buffer *b)
{
    free(b->at);
    *b = (buffer){.at = NULL};
}

void id_list_add(id_list *l, int32_t id)
{
    int32_t *at = l->failed ? NULL : list_grow(l->at, l->count, &l->room, sizeof *at);
    if (!at) {
        l->failed = true;
        return;
    }
    l->at = at;
    l->at[l->count++] = id;
}

void id_list_free(id_list *l)
{
    free(l->at);
    *l = (id_list){.at = NULL};
}

void *list_grow(void *list, size_t count, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 16;
    if (count < *room) return list;
    list = realloc(list, more * size);
    if (list) *room = more;
    return list;
}

size_t utf8_valid(const char *text, size_t count)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t c;
    size_t at = 0;
    while (at < count) {
        int bytes = bert_decode(p + at, count - at, &c);
        if (!bytes) break;
        at += (size_t)bytes;
    }
    return at;
}
