/* Mistakes in texts of graphs, and in the file of a disk. */
#ifndef MISTAKE_H
#define MISTAKE_H
#include "test.h"

#include <dirent.h>
#include <fcntl.h>

/* The text with `to` in place of `from` is refused with this error; NULL: it is good. */
static void check_mistake(test *t, const char *good, const char *from, const char *to,
                          const char *error_text)
{
    const char *const at = strstr(good, from);
    zf_error error = {ZF_OK, ""};
    char text[4000];
    zf_graph *g;
    CHECK(t, at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    g = zf_graph_parse(text, strlen(text), NULL, &error);
    zf_graph_free(g);
    if (!error_text) CHECK_TEXT(t, error.text, "");
    else if (g || !strstr(error.text, error_text))
        test_fail(t, __FILE__, __LINE__, error_text, g ? "no error" : error.text);
}

/* The one file in a folder, open for reading and writing; -1 where there are others. */
static int only_file(const char *folder, char path[800])
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while (directory && (entry = readdir(directory)))
        if (entry->d_name[0] != '.') count++, snprintf(path, 800, "%s/%s", folder, entry->d_name);
    if (directory) closedir(directory);
    return count == 1 ? open(path, O_RDWR) : -1;
}

#endif
