/* Sums over sections by a balanced tree, the same however many ranks share them.
 *
 * Neighbours are added, then neighbours of these sums, and so on; the last one of an odd number is
 * taken over as it is.
 *
 *     0   1   2   3   4   5   6          added in the order of the sections, with open sums
 *      \ /     \ /     \ /   /           aside: (01), 2, (0123), 4, (45), 6, ((45)6), all
 *       01      23      45  6
 *         \    /         \ /             A rank with sections 4 to 7 of 8 has one node of the
 *          0123          456             tree; a sum over ranks makes the rest, where each has
 *              \        /                the same number of sections, a power of two.
 *               0123456
 */

/* Sums that are open before section `index` is added: one for each subtree that is complete. */
static int zfi_tree_depth(int64_t index)
{
    int depth = 0;
    for (; index; index &= index - 1) depth++;
    return depth;
}

/* Sums that are added to the one before each, the last first, when section `index` of `sections`
 * has become the last of the open ones: those that it completes, or all at the end. */
static int zfi_tree_merges(int64_t index, int64_t sections)
{
    int merges = 0;
    if (index + 1 == sections) return zfi_tree_depth(index);
    for (; index & 1; index >>= 1) merges++;
    return merges;
}

/* A sum in double precision, of one section after the other. */
typedef struct zfi_tree {
    int64_t sections, index; /* of all, and of the next */
    double sums[64];         /* open ones; the first is the result */
} zfi_tree;

static void zfi_tree_put(zfi_tree *t, double x)
{
    int depth = zfi_tree_depth(t->index);
    t->sums[depth] = x;
    for (int k = zfi_tree_merges(t->index, t->sections); k > 0; k--, depth--)
        t->sums[depth - 1] += t->sums[depth];
    t->index++;
}

/* Open sums at most, the section that is being added among them. */
static int zfi_tree_depths(int64_t sections)
{
    int depths = 1;
    for (; sections > 1; sections = sections / 2 + (sections & 1)) depths++;
    return depths;
}
