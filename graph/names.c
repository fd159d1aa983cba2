/* Lists of names in one text, with commas between: "norm,head". */

/* The next name of a list separated by commas, and its length; NULL after the last. */
static const char *zfi_next_name(const char **list, size_t *length)
{
    const char *name = *list;
    if (!name || !*name) return NULL;
    *length = strcspn(name, ",");
    *list = name + *length + (name[*length] == ',');
    return name;
}

static bool zfi_names(const char *list, const char *name)
{
    size_t length;
    for (const char *at; (at = zfi_next_name(&list, &length)) != NULL;)
        if (strlen(name) == length && !memcmp(at, name, length)) return true;
    return false;
}
