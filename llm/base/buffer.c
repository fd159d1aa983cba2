/* Lists of bytes and of ids that grow. */
#include <stdlib.h>
#include <string.h>

/* Makes room for one more element of `size` bytes in a list of `count`. Returns the list, which may
 * have moved, or NULL. */
static void *zfl_list_grow(void *list, size_t count, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 16;
    if (count < *room) return list;
    list = realloc(list, more * size);
    if (list) *room = more;
    return list;
}

void zf_text_add(zf_text *b, const void *bytes, size_t count)
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

void zf_text_add_string(zf_text *b, const char *text) { zf_text_add(b, text, strlen(text)); }

void zf_text_add_character(zf_text *b, uint32_t c)
{
    char out[4];
    int bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = bytes - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(bytes == 1 ? c : (0xF00 >> bytes & 0xFF) | c);
    zf_text_add(b, out, (size_t)bytes);
}

void zf_text_clear(zf_text *b)
{
    b->count = 0;
    if (b->at) b->at[0] = 0;
}

void zf_text_free(zf_text *b)
{
    free(b->at);
    *b = (zf_text){.at = NULL};
}

void zf_ids_add(zf_ids *l, int32_t id)
{
    int32_t *at = l->failed ? NULL : zfl_list_grow(l->at, l->count, &l->room, sizeof *at);
    if (!at) {
        l->failed = true;
        return;
    }
    l->at = at;
    l->at[l->count++] = id;
}

void zf_ids_free(zf_ids *l)
{
    free(l->at);
    *l = (zf_ids){.at = NULL};
}
