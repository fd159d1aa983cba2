/* What tests of communicators call, and how out may lie. */
#ifndef COLLECTIVE_H
#define COLLECTIVE_H

#include "../support/test.h"

typedef enum place { APART, IN_PLACE, ADDED, PLACES } place;

static const zf_op ops[] = {ZF_OP_all_gather, ZF_OP_reduce_scatter, ZF_OP_all_reduce,
                            ZF_OP_all_to_all, ZF_OP_bcast, ZF_OP_reduce};

enum { OPS = sizeof ops / sizeof *ops };

/* The case is possible: only sums have an accumulator, and only lengths that fit can be in
 * place. */
static inline bool possible(zf_op op, place how)
{
    bool sums = op == ZF_OP_reduce_scatter || op == ZF_OP_all_reduce;
    return how == APART || (how == ADDED ? sums : op != ZF_OP_reduce_scatter);
}

#endif
