/* DeepSpeed's configuration: rows by name, and the nearest of a name that is none. */

enum { ZFI_DS_NAME = 60 }; /* more than any last name has */

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

/* The row whose last name is nearest, in this block rather than in another; -1: none is near, as of
 * keys that are longer than any row's. Names whose lengths differ by more are not compared. */
static int zfi_ds_nearest(const char *block, const char *key)
{
    const size_t length = strlen(block);
    const int letters = (int)strlen(key);
    int nearest = -1, least = 2 * (2 + letters / 4);
    if (letters > ZFI_DS_NAME) return -1;
    for (int k = 0; k < zfi_ds_count(); k++) {
        const char *path = zfi_ds_keys[k].path, *leaf = zfi_ds_leaf(path);
        const bool here = !strncmp(path, block, length) && leaf == path + length + (length > 0);
        int distance = 2 * abs((int)strlen(leaf) - letters) + !here;
        if (distance < least) distance = 2 * zfi_edit_distance(key, leaf, false) + !here;
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
