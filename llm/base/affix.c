/* How a text begins and ends. */
#include <string.h>

static bool zfl_begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static bool zfl_ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}
