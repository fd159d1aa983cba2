/* Normalization forms of Unicode (UAX 15), from the tables of normal_tables.h. */
#include <stdlib.h>
#include <string.h>
#include "normal_tables.h"

/* Hangul syllables are computed: a leading consonant, a vowel, an optional trailing consonant. */
enum {
    ZFL_SYLLABLE = 0xAC00,
    ZFL_LEAD = 0x1100,
    ZFL_VOWEL = 0x1161,
    ZFL_TRAIL = 0x11A7,
    ZFL_LEADS = 19,
    ZFL_VOWELS = 21,
    ZFL_TRAILS = 28,
    ZFL_SYLLABLES = ZFL_LEADS * ZFL_VOWELS * ZFL_TRAILS
};

/* A character, its place, and its combining class. */
typedef struct zfl_mark {
    uint32_t c;
    size_t at;
    uint8_t class;
} zfl_mark;

typedef struct zfl_marks {
    zfl_mark *list;
    size_t count, room;
    bool failed;
} zfl_marks;

static uint8_t zfl_class_of(uint32_t c)
{
    size_t low = 0, high = sizeof zfl_normal_classes / sizeof zfl_normal_classes[0];
    while (high - low > 1) { /* zfl_normal_classes[low] <= key < zfl_normal_classes[high] */
        size_t middle = (low + high) / 2;
        if (zfl_normal_classes[middle] <= (c << 8 | 0xFF)) low = middle;
        else high = middle;
    }
    return (uint8_t)zfl_normal_classes[low];
}

/* The row that begins with a and, if `columns` is 2, b. */
static const uint32_t *zfl_normal_find(const uint32_t table[][3], size_t rows, int columns,
                                       uint32_t a, uint32_t b)
{
    size_t low = 0, high = rows;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint32_t *row = table[middle];
        if (row[0] < a || (row[0] == a && columns == 2 && row[1] < b)) low = middle + 1;
        else high = middle;
    }
    if (low == rows || table[low][0] != a || (columns == 2 && table[low][1] != b)) return NULL;
    return table[low];
}

static void zfl_normal_put(zfl_marks *m, uint32_t c)
{
    zfl_mark *list = zfl_list_grow(m->list, m->count, &m->room, sizeof *list);
    if (!list) {
        m->failed = true;
        return;
    }
    m->list = list;
    m->list[m->count] = (zfl_mark){c, m->count, c < 0x300 ? 0 : zfl_class_of(c)};
    m->count++;
}

/* Never decomposes the second of two parts further. */
static void zfl_decompose_fully(zfl_marks *m, uint32_t c)
{
    const uint32_t *row;
    uint32_t at = c - ZFL_SYLLABLE, after[4];
    int count = 0;
    if (at < ZFL_SYLLABLES) {
        zfl_normal_put(m, ZFL_LEAD + at / (ZFL_VOWELS * ZFL_TRAILS));
        zfl_normal_put(m, ZFL_VOWEL + at / ZFL_TRAILS % ZFL_VOWELS);
        if (at % ZFL_TRAILS) zfl_normal_put(m, ZFL_TRAIL + at % ZFL_TRAILS);
        return;
    }
    while (c >= 0xC0 &&
           (row = zfl_normal_find(zfl_normal_parts,
                                  sizeof zfl_normal_parts / sizeof zfl_normal_parts[0], 1, c, 0))) {
        if (row[2] && count < 4) after[count++] = row[2];
        c = row[1];
    }
    zfl_normal_put(m, c);
    while (count) zfl_normal_put(m, after[--count]);
}

/* The run of characters with likenesses that c is in; NULL: none. */
static const uint32_t *zfl_like_of(uint32_t c)
{
    size_t low = 0, high = sizeof zfl_normal_likes / sizeof zfl_normal_likes[0];
    while (high - low > 1) { /* zfl_normal_likes[low] <= key < zfl_normal_likes[high] */
        const size_t middle = (low + high) / 2;
        if (zfl_normal_likes[middle][0] <= (c << 11 | 0x7FF)) low = middle;
        else high = middle;
    }
    return c - (zfl_normal_likes[low][0] >> 11) < (zfl_normal_likes[low][0] & 0x7FF)
               ? zfl_normal_likes[low]
               : NULL;
}

static void zfl_decompose(zfl_marks *m, uint32_t c, bool alike)
{
    const uint32_t *like = alike && c >= 0xA0 ? zfl_like_of(c) : NULL;
    const uint32_t count = like ? like[1] >> 24 : 0;
    for (uint32_t i = 0; i < count; i++)
        zfl_decompose_fully(m, zfl_normal_pool[(like[1] & 0xFFFFFF) + i]);
    if (!count) zfl_decompose_fully(m, like ? like[1] + c - (like[0] >> 11) : c);
}

static int zfl_by_class(const void *a, const void *b)
{
    const zfl_mark *p = a, *q = b;
    if (p->class != q->class) return p->class < q->class ? -1 : 1;
    return (p->at > q->at) - (p->at < q->at);
}

/* Sorts each run of marks by class; those of one class keep their order. */
static void zfl_put_in_order(zfl_marks *m)
{
    for (size_t i = 0; i < m->count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < m->count && m->list[end].class; end++)
            sorted = sorted && (end == i || m->list[end - 1].class <= m->list[end].class);
        if (!sorted) qsort(m->list + i, end - i, sizeof *m->list, zfl_by_class);
        i = end > i ? end : i + 1;
    }
}

/* The composition of two characters; 0: none. */
static uint32_t zfl_normal_pair(uint32_t a, uint32_t b)
{
    const uint32_t *row;
    if (a - ZFL_LEAD < ZFL_LEADS && b - ZFL_VOWEL < ZFL_VOWELS)
        return ZFL_SYLLABLE + ((a - ZFL_LEAD) * ZFL_VOWELS + b - ZFL_VOWEL) * ZFL_TRAILS;
    if (a - ZFL_SYLLABLE < ZFL_SYLLABLES && (a - ZFL_SYLLABLE) % ZFL_TRAILS == 0 &&
        b - ZFL_TRAIL - 1 < ZFL_TRAILS - 1)
        return a + b - ZFL_TRAIL;
    if (b < 0x300) return 0;
    row = zfl_normal_find(zfl_normal_pairs, sizeof zfl_normal_pairs / sizeof zfl_normal_pairs[0], 2,
                          a, b);
    return row ? row[2] : 0;
}

/* Composes each character with the starter before it, unless one of its class or a higher one is
 * between them. */
static void zfl_join(zfl_marks *m)
{
    size_t starter = SIZE_MAX, to = 0;
    for (size_t i = 0; i < m->count; i++) {
        zfl_mark x = m->list[i];
        bool near = starter != SIZE_MAX && to == starter + 1;
        uint32_t whole = 0;
        if (starter != SIZE_MAX && (near || m->list[to - 1].class < x.class))
            whole = zfl_normal_pair(m->list[starter].c, x.c);
        if (whole) {
            m->list[starter].c = whole;
            continue;
        }
        if (!x.class) starter = to;
        m->list[to++] = x;
    }
    m->count = to;
}

void zf_text_normalize(const char *text, size_t bytes, zf_normal_form form, zf_text *out)
{
    zfl_marks m = {.list = NULL};
    size_t plain = 0;
    uint32_t c;
    while (plain < bytes && (unsigned char)text[plain] < 0x80) plain++;
    if (plain == bytes) {
        zf_text_add(out, text, bytes);
        return;
    }
    for (size_t at = 0; at < bytes;) {
        int n = zfl_utf8_decode((const unsigned char *)text + at, bytes - at, &c);
        at += n ? (size_t)n : 1;
        if (n) zfl_decompose(&m, c, form >= ZF_NFKD);
    }
    zfl_put_in_order(&m);
    if (form == ZF_NFC || form == ZF_NFKC) zfl_join(&m);
    for (size_t i = 0; i < m.count; i++) zf_text_add_character(out, m.list[i].c);
    out->failed |= m.failed;
    free(m.list);
}
