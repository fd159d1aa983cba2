#define _XOPEN_SOURCE 700
/* The files that options name: what is written is nothing that is read, or written by another. */
#include "../../examples/frame/model/settings.h"
#include "../../examples/frame/options/files.h"
#include "../../examples/gpt/model.h"
#include "../support/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static bool touch(const char *path)
{
    FILE *f = fopen(path, "w");
    return f && !fclose(f);
}

TEST_ONCE(apart_files)
{
    static const struct {
        const char *option, *path;
        bool writes;
        const char *other, *other_path;
        bool other_writes;
        const char *says; /* NULL: they are apart */
    } cases[] = {
        {"log", "text", true, "corpus", "text", false, "--log text: it is the file of --corpus"},
        {"log", "link", true, "corpus", "text", false, "--log link: it is the file of --corpus"},
        {"log", "hard", true, "corpus", "text", false, "--log hard: it is the file of --corpus"},
        {"log", "new", true, "svg", "./new", true, "--log new: it is the file of --svg"},
        {"log", "new", true, "svg", "folder/../new", true, "--log new: it is the file of --svg"},
        {"log", "new", true, "svg", "folder/new", true, NULL},
        {"log", "/dev/null", true, "svg", "/dev/null", true, NULL},
        {"corpus", "text", false, "data", "text", false, NULL},
        {"", "folder", true, "load", "folder/", false, "folder: it is the folder of --load"},
        {"output", "text", true, "", "folder/../text", false,
         "--output text: it is the file of folder/../text"},
        {"save", "folder", true, "load", "folder/", false, NULL},
        {"save", "folder", true, "init", "folder", false, "--save folder: it is the folder of --init"},
        {"save", "none/", true, "dump", "none", true, "--save none/: it is the file of --dump"},
        {"log", "folder/log", true, "save", "folder", true,
         "--log folder/log: it lies in the folder that is written by --save"},
        {"log", "folder/log", true, "init", "folder", false, NULL},
        {"log", "folder/config.json", true, "init", "folder", false,
         "--log folder/config.json: it is a file in the folder of --init"},
        {"dump", "folder/new.safetensors", true, "init", "folder", false, NULL},
        {"save", "folder", true, "corpus", "folder/text", false,
         "--save folder: this folder is replaced, and it holds the file of --corpus"},
        {"dump", "saved/params.safetensors", true, "corpus", "text", false,
         "--dump saved/params.safetensors: it is a file of a checkpoint"},
        {"log", "saved/log", true, "corpus", "text", false, NULL},
    };
    const char *top = test_path("apart");
    char here[4096];
    CHECK(t, !mkdir(top, 0777) && getcwd(here, sizeof here) && !chdir(top));
    CHECK(t, !mkdir("folder", 0777) && !mkdir("saved", 0777) && touch("text") &&
                 touch("folder/config.json") && touch("folder/text") &&
                 touch("saved/manifest.json") && touch("saved/params.safetensors") &&
                 !symlink("text", "link") && !link("text", "hard"));
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        named_files f = {.count = 0};
        zf_error error = {ZF_OK, ""};
        char want[300] = "";
        bool apart;
        files_add(&f, cases[k].option, cases[k].path, cases[k].writes);
        files_add(&f, cases[k].other, cases[k].other_path, cases[k].other_writes);
        files_add(&f, "report", NULL, true);
        apart = files_apart(&f, &error);
        if (cases[k].says) snprintf(want, sizeof want, "%s; name another place", cases[k].says);
        if (apart != !cases[k].says || strcmp(error.text, want)) {
            if (chdir(here)) CHECK(t, false);
            CHECK_TEXT(t, error.text, want);
        }
    }
    CHECK(t, !chdir(here));
}

/* Each option that names a file or a folder says what becomes of it. */
static void look(void *user, const zf_option_value *v)
{
    test *t = user;
    const char *unit = v->row->unit ? v->row->unit : "";
    const uint32_t does = v->row->traits & (ZF_OPTION_READS | ZF_OPTION_WRITES);
    const bool names = strstr(unit, "FILE") || strstr(unit, "DIR");
    if (v->row->kind != ZF_OPTION_TEXT || strstr(unit, "HOST:PORT")) return;
    if (names != (does == ZF_OPTION_READS || does == ZF_OPTION_WRITES))
        CHECK_TEXT(t, v->flag, "an option whose file is read or written");
}

TEST_ONCE(apart_options)
{
    settings o = {.model = NULL};
    const settings_desc desc = {.tunes = true};
    const settings_tables tables = settings_tables_of(&o, &gpt_sample, &desc);
    named_files f = {.count = 0};
    zf_options_each(tables.all, tables.count, look, t);
    o.model = "mini", o.cost = "measure", o.log = "log", o.corpus = "text";
    files_add_options(&f, tables.all, tables.count);
    CHECK(t, f.count == 2 && !f.at[0].writes && f.at[1].writes);
    CHECK_TEXT(t, f.at[0].option, "corpus");
    CHECK_TEXT(t, f.at[1].path, "log");
    o.model = "./mini", o.cost = "measured";
    f.count = 0;
    files_add_options(&f, tables.all, tables.count);
    CHECK(t, f.count == 4);
    o.chat = "chatml", f.count = 0;
    files_add_options(&f, tables.all, tables.count);
    CHECK(t, f.count == 4);
    o.chat = "own.jinja", f.count = 0;
    files_add_options(&f, tables.all, tables.count);
    CHECK(t, f.count == 5);
    o.log = "own.jinja", f.count = 0;
    files_add_options(&f, tables.all, tables.count);
    zf_error error;
    CHECK(t, !files_apart(&f, &error));
    CHECK_TEXT(t, error.text, "--log own.jinja: it is the file of --chat; name another place");
}
