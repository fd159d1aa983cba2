/* The checkpoints that a run of the samples keeps. */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "../support/disk.h"
#include "../support/kill.h"
#include "../support/test.h"

#include "../../examples/frame/output/saving.h"

#include <dirent.h>

/* A run of a model with one parameter, which keeps two checkpoints. */
typedef struct run_of_one {
    zf_backend *cpu;
    zf_graph *graph;
    zf_program *program;
    char folder[260], place[300], load[300];
} run_of_one;

static void run_free(void *user)
{
    run_of_one *r = user;
    zf_program_free(r->program);
    zf_graph_free(r->graph);
    zf_backend_free(r->cpu);
    disk_remove(r->folder);
}

/* In memory, where files can lie there: a save waits for the disk many times. */
static bool run_new(test *t, run_of_one *r)
{
    bool memory = !access("/dev/shm", W_OK);
    zf_tensor w, lr;
    *r = (run_of_one){.cpu = zf_cpu_backend(NULL, NULL), .graph = zf_graph_new(NULL)};
    test_defer(t, run_free, r);
    if (memory) snprintf(r->folder, sizeof r->folder, "/dev/shm/zeroflow-%ld", (long)getpid());
    else snprintf(r->folder, sizeof r->folder, "%s", test_path("saving"));
    snprintf(r->place, sizeof r->place, "%s/run", r->folder);
    w = zf_param(r->graph, "w", ZF_SHAPE(4), NULL);
    lr = zf_input(r->graph, "lr", ZF_F32, ZF_SCALAR);
    zf_autograd(r->graph, zf_sum(zf_mul(w, w)));
    zf_sgd(r->graph, lr, NULL);
    r->program = zf_compile(r->graph, &(zf_compile_desc){.backend = r->cpu});
    return r->program && !mkdir(r->folder, 0700);
}

static bool step(run_of_one *r)
{
    static const float lr = 0.1f;
    return !zf_write(r->program, zf_graph_find(r->graph, "lr"), &lr, sizeof lr) &&
           !zf_step(r->program);
}

static bool open_place(const run_of_one *r, saving *s, zf_error *error)
{
    saving_desc d = {.path = r->place, .load = *r->load ? r->load : NULL, .keep = 2};
    return saving_open(s, &d, error);
}

/* Goes on for a step from r->load. */
static bool save_once(void *user)
{
    run_of_one *r = user;
    zf_error error = {ZF_OK, ""};
    saving s;
    bool good = open_place(r, &s, &error);
    if (!good) return fprintf(stderr, "%s\n", error.text), false;
    good = (!*r->load || !zf_load(zf_program_store(r->program), r->load, NULL)) && step(r) &&
           saving_save(&s, true, r->program, &(zf_save_desc){.notes = NULL}, &error);
    saving_close(&s);
    return good;
}

/* The step of a checkpoint; -1: there is none that can be loaded. */
static int64_t step_of(const run_of_one *r, const char *path)
{
    zf_store *store = zf_program_store(r->program);
    return zf_load(store, path, NULL) ? -1 : zf_program_step(r->program);
}

static int count_of(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = -2; /* . and .. */
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

/* kill -9 at every system call from opening the place to closing it: the newest checkpoint is
 * complete, and a run resumed from it at the same place goes on as if nothing had happened. */
TEST_ONCE(saving_survives_kill)
{
    static run_of_one r;
    char older[320];
    int killed = 1;
    CHECK(t, run_new(t, &r) && save_once(&r));
    snprintf(r.load, sizeof r.load, "%s", r.place);
    snprintf(older, sizeof older, "%s.previous-1", r.place);
    CHECK(t, save_once(&r));
    for (long stop = 1 + 2 * TEST_TURN; killed; stop += 2 * TEST_ONE_IN) {
        int64_t before = step_of(&r, r.place), after;
        killed = kill_at(stop, save_once, &r);
        after = step_of(&r, r.place);
        CHECK(t, killed >= 0 && before > 0 && (after == before || after == before + 1));
        if (save_once(&r) && step_of(&r, r.place) == after + 1 && step_of(&r, older) == after &&
            count_of(r.folder) == 2)
            continue;
        printf("    killed at stop %ld\n", stop);
        test_fail(t, __FILE__, __LINE__, "a run that was killed goes on", "");
        return;
    }
}

/* What only has the name of a leftover next to the place stays, and is named. */
TEST_ONCE(saving_leftovers_are_not_known_by_name)
{
    static const char *const ends[] = {"zf-kept", "zf-gone", "zf-lock"};
    static run_of_one r; /* until it is freed */
    CHECK(t, run_new(t, &r));
    for (int k = 0; k < 3; k++) {
        char path[400], inside[500], text[8] = "";
        zf_error error = {ZF_OK, ""};
        saving s;
        FILE *f;
        snprintf(path, sizeof path, "%s.%s", r.place, ends[k]);
        snprintf(inside, sizeof inside, "%s%s", path, k < 2 ? "/letter" : "");
        CHECK(t, k == 2 || !mkdir(path, 0700));
        CHECK(t, (f = fopen(inside, "w")) && fputs("dear", f) >= 0 && !fclose(f));
        CHECK(t, !open_place(&r, &s, &error));
        if (!strstr(error.text, " is there, and ")) CHECK_TEXT(t, error.text, ends[k]);
        CHECK(t, strstr(error.text, ends[k]));
        CHECK(t, (f = fopen(inside, "r")) && fgets(text, sizeof text, f) && !fclose(f));
        CHECK_TEXT(t, text, "dear");
        CHECK(t, !remove(inside) && (k == 2 || !rmdir(path)));
    }
    CHECK(t, save_once(&r));
}

/* A run is killed amid the copying or removing of a checkpoint: the next one goes on. */
TEST_ONCE(saving_leftovers_have_a_manifest)
{
    static const char *const ends[] = {"zf-kept", "zf-gone"};
    static run_of_one r; /* until it is freed */
    CHECK(t, run_new(t, &r) && save_once(&r));
    snprintf(r.load, sizeof r.load, "%s", r.place);
    for (int k = 0; k < 4; k++) {
        char path[400], inside[500];
        FILE *f;
        snprintf(path, sizeof path, "%s.%s", r.place, ends[k % 2]);
        snprintf(inside, sizeof inside, "%s/manifest.json", path);
        CHECK(t, !mkdir(path, 0700));
        CHECK(t, k > 1 || ((f = fopen(inside, "w")) && !fclose(f)));
        CHECK(t, save_once(&r) && access(path, F_OK));
    }
}
