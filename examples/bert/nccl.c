/* Ranks with a GPU each, where the program is built with NCCL (-DBERT_NCCL): make CUDA=1 NCCL=1
 * links it into build/cuda/bert. Threads have an id in common, processes a rendezvous. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

#ifndef BERT_NCCL

bool bert_nccl_open(bert_ranks *r, const char *rendezvous, zf_error *error)
{
    (void)rendezvous;
    error->status = ZF_ERR_COMM;
    snprintf(error->text, sizeof error->text,
             "%d ranks with GPUs need NCCL, and this program was built without: make CUDA=1 NCCL=1 "
             "builds build/cuda/bert with it",
             (int)r->world);
    return false;
}

void bert_nccl_close(bert_ranks *r) { (void)r; }

zf_comm *bert_nccl_comm(const bert_ranks *r, int32_t rank, zf_error *error)
{
    (void)r, (void)rank, (void)error;
    return NULL;
}

#else

/* What the processes' or threads' descs share, and the texts in it. */
typedef struct common {
    zf_nccl_desc desc;
    char host[256], id[ZF_NCCL_ID_BYTES];
} common;

/* HOST:PORT, or a file. */
static bool rendezvous_at(common *c, const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || strchr(colon, '/')) {
        c->desc.file = text;
        return *text != '\0';
    }
    if (end == colon + 1 || *end || port < 1 || port > 65535 || colon == text ||
        colon - text >= (long)sizeof c->host)
        return false;
    memcpy(c->host, text, (size_t)(colon - text));
    c->desc.host = c->host, c->desc.port = (int32_t)port;
    return true;
}

static bool open_processes(common *c, const bert_ranks *r, const char *rendezvous, zf_error *error)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    char both[300];
    if (!rendezvous && host && port) {
        snprintf(both, sizeof both, "%s:%s", host, port);
        rendezvous = both;
    }
    if (rendezvous && rendezvous_at(c, rendezvous)) return true;
    error->status = ZF_ERR_ARGUMENT;
    if (rendezvous)
        snprintf(error->text, sizeof error->text,
                 "the rendezvous is '%s', which is neither HOST:PORT nor a file", rendezvous);
    else
        snprintf(error->text, sizeof error->text,
                 "%s started %d processes, which need a place to find one another: --rendezvous "
                 "HOST:PORT (rank 0's, a port that is free there) or a file in a folder that all "
                 "see, or MASTER_ADDR and MASTER_PORT in the environment",
                 r->launcher, (int)r->world);
    return false;
}

bool bert_nccl_open(bert_ranks *r, const char *rendezvous, zf_error *error)
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

void bert_nccl_close(bert_ranks *r)
{
    free(r->nccl); /* the first member of what was allocated */
    r->nccl = NULL;
}

zf_comm *bert_nccl_comm(const bert_ranks *r, int32_t rank, zf_error *error)
{
    zf_nccl_desc d = *r->nccl;
    d.rank = rank, d.device = r->device + rank - r->first;
    return zf_nccl_comm(&d, error);
}

#endif
