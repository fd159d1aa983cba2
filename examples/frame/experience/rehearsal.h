/* All programs of an iteration over stores that allocate nothing: what they take is known before
 * anything runs. */
#ifndef REHEARSAL_H
#define REHEARSAL_H

#include "experience.h"

typedef struct rehearsal {
    zf_comm comm; /* exchanges nothing */
    session train;
    experience e;
} rehearsal;

/* Opens the session that trains, and those of the experience. Both descs must live. False with
 * *error, and then there is nothing to close. */
bool rehearsal_open(rehearsal *r, const experience_desc *about, const session_desc *train,
                    zf_error *error);
void rehearsal_close(rehearsal *r);

/* Bytes of the largest step of a session besides the one that trains: where that one has so many
 * (session_desc.reserve), all lie in its memory. */
size_t rehearsal_reserve(const rehearsal *r);

/* The same of descs. False with *error. */
bool rehearse(const experience_desc *about, const session_desc *train, size_t *reserve,
              zf_error *error);

#endif
