/* recompute, live bytes: a tree over positions, in which ranges are added, and which finds the
 * position with the most live bytes among those that some candidate covers.
 *
 *     bytes   | 64 positions | 64 positions | 64 positions |   by position
 *     covers  |              |              |              |   candidates that are idle there
 *                     \            /               |
 *                      node: the maximum where covers are fewest, and the maximum elsewhere
 *
 * A node keeps what was added to all of its positions and not to its children, so that an addition
 * changes few nodes. Bytes are integers in double, so the order of additions does not matter. */

enum { ZFI_ALIVE_BLOCK = 64 };

/* The maximum of bytes, at its first position; none: -INFINITY. */
typedef struct zfi_alive_most {
    double bytes;
    int32_t position;
} zfi_alive_most;

typedef struct zfi_alive_node {
    double add;                 /* added to all positions below, kept in this node alone */
    int32_t cover, covers;      /* the same for covers; the minimum of covers below */
    zfi_alive_most least, more; /* of positions with the minimum of covers; of the others */
} zfi_alive_node;

typedef struct zfi_alive {
    zfi_memory *memory;
    int32_t count;
    double *bytes;   /* by position, without what nodes add; */
    int32_t *covers; /* the same for covers */
    zfi_alive_node *nodes;
} zfi_alive;

static int32_t zfi_alive_blocks(const zfi_alive *a)
{
    return (a->count + ZFI_ALIVE_BLOCK - 1) / ZFI_ALIVE_BLOCK;
}

static zfi_alive_most zfi_alive_better(zfi_alive_most x, zfi_alive_most y)
{
    if (x.bytes != y.bytes) return x.bytes > y.bytes ? x : y;
    return x.position < y.position ? x : y;
}

/* Recomputes node `at` of blocks [low, high), from its children or its positions. */
static void zfi_alive_sum(zfi_alive *a, int32_t at, int32_t low, int32_t high)
{
    const zfi_alive_most none = {-INFINITY, INT32_MAX};
    zfi_alive_node *n = &a->nodes[at];
    n->covers = INT32_MAX, n->least = n->more = none;
    if (high - low > 1) {
        const zfi_alive_node *child = &a->nodes[2 * at + 1];
        n->covers = child[0].covers < child[1].covers ? child[0].covers : child[1].covers;
        for (int k = 0; k < 2; k++) {
            zfi_alive_most *to = child[k].covers == n->covers ? &n->least : &n->more;
            *to = zfi_alive_better(*to, child[k].least);
            n->more = zfi_alive_better(n->more, child[k].more);
        }
    } else {
        int32_t first = low * ZFI_ALIVE_BLOCK, last = first + ZFI_ALIVE_BLOCK;
        if (last > a->count) last = a->count;
        for (int32_t i = first; i < last; i++)
            if (a->covers[i] < n->covers) n->covers = a->covers[i];
        for (int32_t i = first; i < last; i++) {
            zfi_alive_most *to = a->covers[i] == n->covers ? &n->least : &n->more;
            if (a->bytes[i] > to->bytes) *to = (zfi_alive_most){a->bytes[i], i};
        }
    }
    n->covers += n->cover;
    n->least.bytes += n->add, n->more.bytes += n->add;
}

static void zfi_alive_build(zfi_alive *a, int32_t at, int32_t low, int32_t high)
{
    if (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        zfi_alive_build(a, 2 * at + 1, low, middle);
        zfi_alive_build(a, 2 * at + 2, middle, high);
    }
    zfi_alive_sum(a, at, low, high);
}

/* Makes `count` positions without bytes. The caller fills a->bytes and a->covers, then calls
 * zfi_alive_build. False with memory->failed. */
static bool zfi_alive_open(zfi_alive *a, zfi_memory *memory, int32_t count)
{
    *a = (zfi_alive){.memory = memory, .count = count};
    a->bytes = zfi_calloc(memory, (size_t)count, sizeof *a->bytes);
    a->covers = zfi_calloc(memory, (size_t)count, sizeof *a->covers);
    a->nodes = zfi_calloc(memory, 4 * (size_t)zfi_alive_blocks(a), sizeof *a->nodes);
    return a->bytes && a->covers && a->nodes;
}

static void zfi_alive_close(zfi_alive *a)
{
    zfi_free(a->memory, a->bytes, (size_t)a->count * sizeof *a->bytes);
    zfi_free(a->memory, a->covers, (size_t)a->count * sizeof *a->covers);
    zfi_free(a->memory, a->nodes, 4 * (size_t)zfi_alive_blocks(a) * sizeof *a->nodes);
}

/* An addition to positions [from, until). */
typedef struct zfi_alive_change {
    int32_t from, until;
    double bytes;
    int32_t covers;
} zfi_alive_change;

static void zfi_alive_add(zfi_alive *a, const zfi_alive_change *c, int32_t at, int32_t low,
                          int32_t high)
{
    int32_t first = low * ZFI_ALIVE_BLOCK, last = high * ZFI_ALIVE_BLOCK;
    if (c->until <= first || last <= c->from) return;
    if (c->from <= first && last <= c->until) {
        a->nodes[at].add += c->bytes, a->nodes[at].cover += c->covers;
    } else if (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        zfi_alive_add(a, c, 2 * at + 1, low, middle);
        zfi_alive_add(a, c, 2 * at + 2, middle, high);
    } else {
        if (first < c->from) first = c->from;
        if (last > c->until) last = c->until;
        for (int32_t i = first; i < last; i++) a->bytes[i] += c->bytes, a->covers[i] += c->covers;
    }
    zfi_alive_sum(a, at, low, high);
}

static void zfi_alive_change_by(zfi_alive *a, int32_t from, int32_t until, double bytes,
                                int32_t covers)
{
    zfi_alive_add(a, &(zfi_alive_change){from, until, bytes, covers}, 0, 0, zfi_alive_blocks(a));
}

/* The maximum over all positions, or over covered ones, of which there may be none. */
static zfi_alive_most zfi_alive_peak(const zfi_alive *a, bool covered)
{
    const zfi_alive_node *root = &a->nodes[0];
    return covered && !root->covers ? root->more : zfi_alive_better(root->least, root->more);
}
