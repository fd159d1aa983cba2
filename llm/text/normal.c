#include "normal.h"
#include "normal_tables.h"
#include "wordpiece.h"

#include <stdlib.h>
#include <string.h>

/* Hangul syllables are computed: a leading consonant, a vowel, an optional trailing consonant. */
enum {
    SYLLABLE = 0xAC00,
    LEAD = 0x1100,
    VOWEL = 0x1161,
    TRAIL = 0x11A7,
    LEADS = 19,
    VOWELS = 21,
    TRAILS = 28,
    SYLLABLES = LEADS * VOWELS * TRAILS
};

/* A character, its place, and its combining class. */
typedef struct mark {
    uint32_t c;
    size_t at;
    uint8_t class;
} mark;

typedef struct marks {
    mark *list;
    size_t count, room;
    bool failed;
} marks;

static uint8_t class_of(uint32_t c)
{
    size_t low = 0, high = sizeof normal_classes / sizeof normal_classes[0];
    while (high - low > 1) { /* normal_classes[low] <= key < normal_classes[high] */
        size_t middle = (low + high) / 2;
        if (normal_classes[middle] <= (c << 8 | 0xFF)) low = middle;
        else high = middle;
    }
    return (uint8_t)normal_classes[low];
}

/* The row that begins with a and, if `columns` is 2, b. */
static const uint32_t *find(const uint32_t table[][3], size_t rows, int columns, uint32_t a,
                            uint32_t b)
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

static void put(marks *m, uint32_t c)
{
    mark *list = list_grow(m->list, m->count, &m->room, sizeof *list);
    if (!list) {
        m->failed = true;
        return;
    }
    m->list = list;
    m->list[m->count] = (mark){c, m->count, c < 0x300 ? 0 : class_of(c)};
    m->count++;
}

/* Never decomposes the second of two parts further. */
static void decompose(marks *m, uint32_t c)
{
    const uint32_t *row;
    uint32_t at = c - SYLLABLE, behind[4];
    int count = 0;
    if (at < SYLLABLES) {
        put(m, LEAD + at / (VOWELS * TRAILS));
        put(m, VOWEL + at / TRAILS % VOWELS);
        if (at % TRAILS) put(m, TRAIL + at % TRAILS);
        return;
    }
    while (c >= 0xC0 &&
           (row = find(normal_parts, sizeof normal_parts / sizeof normal_parts[0], 1, c, 0))) {
        if (row[2] && count < 4) behind[count++] = row[2];
        c = row[1];
    }
    put(m, c);
    while (count) put(m, behind[--count]);
}

static int by_class(const void *a, const void *b)
{
    const mark *p = a, *q = b;
    if (p->class != q->class) return p->class < q->class ? -1 : 1;
    return (p->at > q->at) - (p->at < q->at);
}

/* Sorts each run of marks by class; those of one class keep their order. */
static void put_in_order(marks *m)
{
    for (size_t i = 0; i < m->count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < m->count && m->list[end].class; end++)
            sorted = sorted && (end == i || m->list[end - 1].class <= m->list[end].class);
        if (!sorted) qsort(m->list + i, end - i, sizeof *m->list, by_class);
        i = end > i ? end : i + 1;
    }
}

/* The composition of two characters; 0: none. */
static uint32_t pair(uint32_t a, uint32_t b)
{
    const uint32_t *row;
    if (a - LEAD < LEADS && b - VOWEL < VOWELS)
        return SYLLABLE + ((a - LEAD) * VOWELS + b - VOWEL) * TRAILS;
    if (a - SYLLABLE < SYLLABLES && (a - SYLLABLE) % TRAILS == 0 && b - TRAIL - 1 < TRAILS - 1)
        return a + b - TRAIL;
    if (b < 0x300) return 0;
    row = find(normal_pairs, sizeof normal_pairs / sizeof normal_pairs[0], 2, a, b);
    return row ? row[2] : 0;
}

/* Composes each character with the starter before it, unless one of its class or a higher one is
 * between them. */
static void join(marks *m)
{
    size_t starter = SIZE_MAX, to = 0;
    for (size_t i = 0; i < m->count; i++) {
        mark x = m->list[i];
        bool near = starter != SIZE_MAX && to == starter + 1;
        uint32_t whole = 0;
        if (starter != SIZE_MAX && (near || m->list[to - 1].class < x.class))
            whole = pair(m->list[starter].c, x.c);
        if (whole) {
            m->list[starter].c = whole;
            continue;
        }
        if (!x.class) starter = to;
        m->list[to++] = x;
    }
    m->count = to;
}

void normal_form(const char *text, size_t bytes, bool compose, buffer *out)
{
    marks m = {.list = NULL};
    size_t plain = 0;
    uint32_t c;
    while (plain < bytes && (unsigned char)text[plain] < 0x80) plain++;
    if (plain == bytes) {
        buffer_add(out, text, bytes);
        return;
    }
    for (size_t at = 0; at < bytes;) {
        int n = bert_decode((const unsigned char *)text + at, bytes - at, &c);
        at += n ? (size_t)n : 1;
        if (n) decompose(&m, c);
    }
    put_in_order(&m);
    if (compose) join(&m);
    for (size_t i = 0; i < m.count; i++) buffer_add_character(out, m.list[i].c);
    out->failed |= m.failed;
    free(m.list);
}
