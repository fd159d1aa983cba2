/* DeepSpeed's configuration: rows by name, and the nearest of a name that is none. */

static int zfi_ds_count(void) { return ZFI_COUNT(zfi_ds_keys); }

/* The row of block[0..length) "." key; -1: none. */
static int zfi_ds_row(const char *block, const char *key)
{
    const size_t length = strlen(block);
    for (int k = 0; k < zfi_ds_count(); k++) {
        const char *path = zfi_ds_keys[k].path;
        if (length && (strncmp(path, block, length) || path[length] != '.')) continue;
        if (!strcmp(path + length + (length > 0), key)) return k;
    }
    return -1;
}

/* Changes between two words, of one letter or of two neighbours that are swapped. Words of more
 * than 60 letters are far from all. */
static int zfi_ds_distance(const char *word, const char *name)
{
    enum { MOST = 60 };
    int rows[3][MOST + 1], *row = rows[0], *last = rows[1], *before = rows[2], *spare;
    const int n = (int)strlen(word), m = (int)strlen(name);
    if (n > MOST || m > MOST) return MOST;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        spare = before, before = last, last = row, row = spare;
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            const int changed = last[j - 1] + (word[i - 1] != name[j - 1]);
            row[j] = last[j] < row[j - 1] ? last[j] + 1 : row[j - 1] + 1;
            if (changed < row[j]) row[j] = changed;
            if (i > 1 && j > 1 && word[i - 1] == name[j - 2] && word[i - 2] == name[j - 1] &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
    }
    return row[m];
}

/* The row whose last name is nearest, in this block rather than in another; -1: none is near. */
static int zfi_ds_nearest(const char *block, const char *key)
{
    const size_t length = strlen(block);
    int nearest = -1, least = 2 * (2 + (int)strlen(key) / 4);
    for (int k = 0; k < zfi_ds_count(); k++) {
        const char *path = zfi_ds_keys[k].path, *leaf = zfi_ds_leaf(path);
        const bool here = !strncmp(path, block, length) && leaf == path + length + (length > 0);
        const int distance = 2 * zfi_ds_distance(key, leaf) + !here;
        if (distance < least) least = distance, nearest = k;
    }
    return nearest;
}

/* What is wrong with a key that has no row, to be said after its path. */
static void zfi_ds_unknown(const char *block, const char *key, char *text, size_t size)
{
    const int near = zfi_ds_nearest(block, key);
    const char *path = near < 0 ? "" : zfi_ds_keys[near].path, *leaf = zfi_ds_leaf(path);
    char place[120], where[96];
    snprintf(where, sizeof where, "%.*s", (int)(leaf > path ? leaf - path - 1 : 0), path);
    snprintf(place, sizeof place, *where ? "in \"%s\"" : "at the top", where);
    if (near < 0) snprintf(text, size, "is no key of DeepSpeed's");
    else if (!strcmp(leaf, key)) snprintf(text, size, "is a key %s, not here", place);
    else if (!strcmp(where, block))
        snprintf(text, size, "is no key of DeepSpeed's; is it \"%s\"?", leaf);
    else snprintf(text, size, "is no key of DeepSpeed's; is it \"%s\" %s?", leaf, place);
}
