/* Ranks with a GPU each, if the program is built with NCCL (-DWITH_NCCL): `make CUDA=1 NCCL=1` does
 * that for build/cuda, and `make HIP=1 RCCL=1`, with RCCL, for build/hip. Threads share an id;
 * processes use a rendezvous. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

#ifdef WITH_HIP
#define NEEDED "RCCL", "HIP=1 RCCL=1", "hip"
#else
#define NEEDED "NCCL", "CUDA=1 NCCL=1", "cuda"
#endif

#ifndef WITH_NCCL

bool ranks_nccl_open(rank_group *r, const char *rendezvous, zf_error *error)
{
    (void)rendezvous;
    error->status = ZF_ERR_COMM;
    snprintf(error->text, sizeof error->text,
             "%d ranks with GPUs need %s, and this program was built without: make %s builds "
             "build/%s/%s with it",
             (int)r->world, NEEDED, r->program);
    return false;
}

void ranks_nccl_close(rank_group *r) { (void)r; }

zf_comm *ranks_nccl_comm(const rank_group *r, int32_t rank, zf_error *error)
{
    (void)r, (void)rank, (void)error;
    return NULL;
}

#else

/* What the descs of processes and threads share, and the texts to which they point. */
typedef struct common {
    zf_nccl_desc desc;
    char host[256], id[ZF_NCCL_ID_BYTES], run[256];
} common;

/* Checks a host name of this length, and a port. */
static bool host_and_port(common *c, const char *host, size_t length, const char *port)
{
    char *end;
    long number = strtol(port, &end, 10);
    if (end == port || *end || number < 1 || number > 65535 || !length || length >= sizeof c->host)
        return false;
    memcpy(c->host, host, length);
    c->desc.host = c->host, c->desc.port = (int32_t)number;
    return true;
}

/* HOST:PORT, HOST:PORT#RUN, or a file. */
static bool rendezvous_at(common *c, const char *text)
{
    char place[512];
    const char *run = strchr(text, '#'), *colon;
    const size_t length = run ? (size_t)(run - text) : strlen(text);
    if (length >= sizeof place) return false;
    snprintf(place, sizeof place, "%.*s", (int)length, text);
    colon = strrchr(place, ':');
    if (!colon || strchr(colon, '/')) {
        c->desc.file = text;
        return *text != '\0';
    }
    if (run && (!run[1] || strlen(run + 1) >= sizeof c->run)) return false;
    if (run) snprintf(c->run, sizeof c->run, "%s", run + 1);
    return host_and_port(c, place, (size_t)(colon - place), colon + 1);
}

static bool open_processes(common *c, const rank_group *r, const char *rendezvous, zf_error *error)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    bool given = host && port;
    snprintf(c->run, sizeof c->run, "%s", rank_launch_of().run);
    c->desc.run = c->run;
    if (rendezvous ? rendezvous_at(c, rendezvous)
                   : given && host_and_port(c, host, strlen(host), port))
        return true;
    error->status = ZF_ERR_ARGUMENT;
    if (rendezvous)
        snprintf(error->text, sizeof error->text,
                 "the rendezvous is '%s', which is neither HOST:PORT, HOST:PORT#RUN nor a file",
                 rendezvous);
    else if (given)
        snprintf(error->text, sizeof error->text,
                 "MASTER_ADDR is '%s' and MASTER_PORT '%s', which is no host with a port", host,
                 port);
    else
        snprintf(error->text, sizeof error->text,
                 "%s started %d processes, which need a place to find one another: --rendezvous "
                 "HOST:PORT (rank 0's, a port that is free there) or a file in a folder that all "
                 "see, or MASTER_ADDR and MASTER_PORT in the environment",
                 r->launcher, (int)r->world);
    return false;
}

bool ranks_nccl_open(rank_group *r, const char *rendezvous, zf_error *error)
{
    common *c = calloc(1, sizeof *c);
    bool good = c != NULL;
    if (!c) {
        *error = (zf_error){ZF_ERR_NOMEM, "out of memory"};
    } else if (r->launcher) {
        good = open_processes(c, r, rendezvous, error);
    } else {
        c->desc.id = c->id;
        good = !zf_nccl_id(c->id, error);
    }
    if (!good) {
        free(c);
        return false;
    }
    c->desc.world = r->world, c->desc.deadline_seconds = r->deadline;
    r->nccl = &c->desc;
    return true;
}

void ranks_nccl_close(rank_group *r)
{
    free(r->nccl); /* the first member of the allocated struct */
    r->nccl = NULL;
}

zf_comm *ranks_nccl_comm(const rank_group *r, int32_t rank, zf_error *error)
{
    zf_nccl_desc d = *r->nccl;
    d.rank = rank, d.device = ranks_device(r, rank);
    return zf_nccl_comm(&d, error);
}

#endif
