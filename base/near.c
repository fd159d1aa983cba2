/* Near names: the names that may be meant by a word that is none of them. tests/support/main.c
 * includes this file too. */
#ifndef ZFI_NEAR
#define ZFI_NEAR

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The least number of characters to insert, remove or change, or of neighbours to swap, in `word`
 * to make `name` of it or, with `part`, a part of `name`. The first 255 characters of `name`
 * count. */
static int zfi_edit_distance(const char *word, const char *name, bool part)
{
    enum { MOST = 255 };
    const size_t whole = strlen(name);
    const int length = whole < MOST ? (int)whole : MOST;
    int rows[3][MOST + 1], *row = rows[0], *last = rows[1], *before = rows[2], least;
    for (int j = 0; j <= length; j++) row[j] = part ? 0 : j;
    for (int i = 1; word[i - 1]; i++) {
        int *const spare = before;
        before = last, last = row, row = spare;
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            const int changed = last[j - 1] + (word[i - 1] != name[j - 1]);
            least = last[j] < row[j - 1] ? last[j] + 1 : row[j - 1] + 1;
            row[j] = changed < least ? changed : least;
            if (i > 1 && j > 1 && word[i - 1] == name[j - 2] && word[i - 2] == name[j - 1] &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
    }
    least = row[length];
    for (int j = 0; j < length && part; j++)
        if (row[j] < least) least = row[j];
    return least;
}

enum { ZFI_NEAR_NAMES = 4 };

/* The nearest names so far; of equally near ones the shorter. */
typedef struct zfi_near {
    const char *word;
    int most; /* distance of a name that is near */
    const char *name[ZFI_NEAR_NAMES];
    int far[ZFI_NEAR_NAMES];
} zfi_near;

static void zfi_near_add(zfi_near *near, const char *name)
{
    const int distance = zfi_edit_distance(near->word, name, true);
    int far = 256 * distance + (int)(strlen(name) & 255);
    if (distance > near->most) return;
    for (int k = 0; k < ZFI_NEAR_NAMES && name; k++) {
        const char *was = near->name[k];
        const int was_far = near->far[k];
        if (was && was_far <= far) continue;
        near->name[k] = name, near->far[k] = far;
        name = was, far = was_far;
    }
}

/* "; near are loss, lr"; "" where none is */
static const char *zfi_near_text(const zfi_near *near, char *text, size_t size)
{
    size_t at = 0;
    *text = '\0';
    for (int k = 0; k < ZFI_NEAR_NAMES && near->name[k] && at < size; k++)
        at += (size_t)snprintf(text + at, size - at, "%s %.80s", k ? "," : "; near are",
                               near->name[k]);
    return text;
}

#endif
