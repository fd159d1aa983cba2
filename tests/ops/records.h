/* What the record of a node's operator says of it, seen from outside the library. */
#ifndef RECORDS_H
#define RECORDS_H

#include "../support/test.h"

typedef struct claims {
    uint32_t writes; /* operands, as a mask */
    int32_t views;   /* the operand whose bytes it is, from `at` on; -1: none */
    int64_t at;
    int32_t rate;   /* the operand that is the learning rate; 0: none */
    uint32_t whole; /* by rows: the operands that belong to all rows, as a mask */
    int32_t rows;   /* by rows: the operand that has the rows */
} claims;

claims claims_of(const zf_graph *graph, int32_t node);
/* The launch of the index-th node of the order, data pointers unset; `args` has room for 64. False
 * after the last. */
bool launch_at(const zf_graph *graph, int32_t index, zf_launch *launch, zf_array *args);

#endif
