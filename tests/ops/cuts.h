/* How a node may be cut over ranks (graph/cuts.c), seen from outside the library. */
#ifndef CUTS_H
#define CUTS_H

#include "../support/test.h"

enum { CUT_LETTERS = 16, CUT_RESULT = 16, CUT_VALUES = CUT_RESULT + 1 + ZF_MAX_SAVED };

typedef struct cuts {
    int letters, form;
    char name[CUT_LETTERS];
    int64_t most[CUT_LETTERS];  /* parts are divisors of this, */
    int64_t upto[CUT_LETTERS];  /* up to this one */
    bool sections[CUT_LETTERS]; /* of its sums, the attribute `sections` is divided */
    bool given[CUT_VALUES];
    int8_t at[CUT_VALUES][ZF_MAX_RANK]; /* the letter of each dimension; -1: none */
    int8_t runs[CUT_VALUES][ZF_MAX_RANK]; /* of the letter in the dimension; 0: 1 */
    int8_t flat[CUT_VALUES][4];         /* 1 + operands that it has one after the other */
} cuts;

/* False: the node is not to be cut. */
bool cuts_of(const zf_graph *graph, int32_t node, cuts *c);
/* Elements of the value lack the letter, along which operands are cut. */
bool cut_sums(const zf_graph *graph, int32_t node, int letter, int value);
/* Changes the attributes to those of a part, of which the result has that shape. `list` has room
 * for ZF_MAX_RANK. */
void cut_attributes(const zf_graph *graph, int32_t node, int letter, int64_t parts, int64_t part,
                    const zf_shape *result, zf_attribute *attributes, int64_t *list);
/* The value by which the random numbers of a share are counted: 0: none, 1: the result, 2: operand
 * 0. */
int draws_by(int op);
/* The string of the operator's record; NULL: it has none. */
const char *cuts_text(int op);
/* Writes what is wrong with the text as that of the operator; NULL: nothing is. */
const char *cuts_wrong(int op, const char *text);
/* Cuts follow from its traits, or from attributes. */
bool cuts_derived(int op);
/* Dtype and shape of a value that the node can save. */
bool can_save(const zf_graph *graph, int32_t node, int index, zf_dtype *dtype, zf_shape *shape);

#endif
