/* Names: lists of them in one text, with commas between, "norm,head"; patterns; those that
 * trainings and adapters have, and those of an adapter's parameters. */

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

/* The name matches a pattern of `length` bytes, in which * stands for any text, ? for a
 * character. */
static bool zfi_matches(const char *pattern, size_t length, const char *name)
{
    const char *star = NULL, *from = name, *end = pattern + length;
    while (*name) {
        if (pattern < end && *pattern == '*') star = ++pattern, from = name;
        else if (pattern < end && (*pattern == '?' || *pattern == *name)) pattern++, name++;
        else if (star) pattern = star, name = ++from;
        else return false;
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

static bool zfi_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

enum { ZFI_SHORT_NAME = 63 }; /* bytes at most */

/* Letters, digits and underscores, so that it ends where the name of a state or of a parameter goes
 * on. */
static bool zfi_is_short_name(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if (!zfi_is_word(name[i])) return false;
    return length <= ZFI_SHORT_NAME;
}

enum { ZFI_ADAPTER_NAME = 640 }; /* bytes of a text; more than a name has */

/* The name that a parameter has in an adapter: "score.critic.weight" of "score.weight". */
static const char *zfi_adapter_name(char out[ZFI_ADAPTER_NAME], const char *adapter,
                                    const char *name)
{
    const char *dot = strrchr(name, '.');
    const int module = dot ? (int)(dot + 1 - name) : 0;
    snprintf(out, ZFI_ADAPTER_NAME, "%.*s%s%s%s", module, name, adapter, *adapter ? "." : "",
             name + module);
    return out;
}

/* The same name without the adapter. */
static const char *zfi_plain_name(char out[ZFI_ADAPTER_NAME], const char *adapter,
                                  const char *name)
{
    const size_t length = strlen(adapter);
    const char *last = strrchr(name, '.'), *module = last ? last : name;
    while (module > name && module[-1] != '.') module--;
    if (length && last && (size_t)(last - module) == length && !memcmp(module, adapter, length))
        snprintf(out, ZFI_ADAPTER_NAME, "%.*s%s", (int)(module - name), name, last + 1);
    else snprintf(out, ZFI_ADAPTER_NAME, "%s", name);
    return out;
}
