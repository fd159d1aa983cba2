#include "rehearsal.h"
#include "../options/fail.h"

static zf_status refuse(void *self, const zf_collective *call, zf_error *error)
{
    (void)self, (void)call;
    return fail_with(error, ZF_ERR_STAGE, "a plan exchanges nothing");
}

static bool opens(void *self) { return self != NULL; }

bool rehearsal_open(rehearsal *r, const experience_desc *about, const session_desc *train,
                    zf_error *error)
{
    session_desc d = *train;
    *r = (rehearsal){.comm = {.run = refuse, .groups = opens(r)}};
    if (train->comm) r->comm.rank = train->comm->rank, r->comm.world = train->comm->world;
    d.comm = train->comm ? &r->comm : NULL;
    d.plan_only = true, d.measure = false;
    if (!session_open(&r->train, &d, error)) return false;
    if (experience_new(&r->e, about, error) && experience_open(&r->e, &r->train, error)) return true;
    rehearsal_close(r);
    return false;
}

void rehearsal_close(rehearsal *r)
{
    experience_close(&r->e);
    session_close(&r->train);
}

static void take_largest(size_t *most, const zf_program *program)
{
    const size_t bytes = program ? experience_turn_bytes(program) : 0;
    if (bytes > *most) *most = bytes;
}

size_t rehearsal_reserve(const rehearsal *r)
{
    experience_part parts[EXPERIENCE_PARTS];
    const int count = experience_parts(&r->e, parts);
    size_t most = 0;
    for (int k = 0; k < count; k++) {
        for (int32_t v = 0; v < parts[k].session->variants; v++)
            take_largest(&most, parts[k].session->programs[v]);
        take_largest(&most, parts[k].session->gather);
    }
    return most;
}

bool rehearse(const experience_desc *about, const session_desc *train, size_t *reserve,
              zf_error *error)
{
    rehearsal r;
    if (!rehearsal_open(&r, about, train, error)) return false;
    *reserve = rehearsal_reserve(&r);
    rehearsal_close(&r);
    return true;
}
