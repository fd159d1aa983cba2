/* Ranks as threads, each with a device of its own: emulated ones, or as many as there are. */
#ifndef RANKS_H
#define RANKS_H

#include "../support/test.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <time.h>

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_devices(count) ((void)(count))
#define emulation_seed(seed)     ((void)(seed))
#define emulation_report()       ""
#define emulation_clear()        ((void)0)
#define emulation_live()         0
#define emulation_sent()         (-1L) /* not known */
#endif

enum { MOST = 4 };

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)}, NULL);
}

/* ----------------------------------------------------------------------------------------- ranks
 */

typedef struct member member;

/* One rank. It reports a mistake in `said`. */
struct member {
    int rank, world;
    zf_nccl_desc desc;
    void (*body)(member *);
    void *context;
    bool absent;
    double late; /* seconds */
    zf_comm *comm, *local;
    zf_error error; /* of what failed first */
    char said[600];
    long differ; /* calls whose bits are others */
    pthread_t thread;
};

static void *member_main(void *object)
{
    member *m = object;
    if (m->late > 0) pause_for(m->late);
    m->comm = zf_nccl_comm(&m->desc, &m->error);
    if (m->comm && m->body) m->body(m);
    zf_comm_free(m->comm);
    return NULL;
}

/* Ranks of which each is to run `body`. */
static void set_members(member *members, int world, const zf_nccl_desc *desc,
                        void (*body)(member *), void *context)
{
    for (int r = 0; r < world; r++) {
        members[r] =
            (member){.rank = r, .world = world, .desc = *desc, .body = body, .context = context};
        members[r].desc.rank = members[r].desc.device = r;
        members[r].desc.world = world;
    }
}

static void run_members(test *t, member *members)
{
    const int world = members->world;
    bool running[MOST] = {false};
    for (int r = 0; r < world; r++)
        running[r] = !members[r].absent &&
                     !pthread_create(&members[r].thread, NULL, member_main, &members[r]);
    for (int r = 0; r < world; r++)
        if (running[r]) pthread_join(members[r].thread, NULL);
    for (int r = 0; r < world; r++) CHECK(t, running[r] || members[r].absent);
    CHECK_TEXT(t, emulation_report(), "");
}

/* The same, where all must succeed. */
static void run_well(test *t, member *members)
{
    run_members(t, members);
    for (int r = 0; r < members->world && !t->failed; r++) {
        CHECK_TEXT(t, members[r].error.text, "");
        CHECK_TEXT(t, members[r].said, "");
    }
}

/* Ids for ranks that need not look for one another. */
static const void *fresh_id(test *t)
{
    static unsigned char id[ZF_NCCL_ID_BYTES];
    zf_error error = {ZF_OK, ""};
    if (zf_nccl_id(id, &error)) test_fail(t, __FILE__, __LINE__, "zf_nccl_id", error.text);
    return id;
}

static void one_device(void *unused)
{
    (void)unused;
    emulation_clear();
    emulation_devices(2);
}

/* The number of possible ranks, at most `want`. */
static int ranks(test *t, int want)
{
    int count = 0;
    emulation_devices(MOST);
    test_defer(t, one_device, NULL);
    emulation_seed(1);
    if (cudaGetDeviceCount(&count)) count = 0;
    return count < want ? count : want;
}

#endif
