/* The mesh of the ranks: its axes, the groups along them, and who has which shard.
 *
 *     2 nodes of 3 ranks       local ->          a group over local: 0 1 2, or 3 4 5
 *                    node   0   1   2            a group over node:  0 3, or 1 4, or 2 5
 *                      |    3   4   5
 *
 *     shards of a bucket, by the rank that has them    0 3 1 4 2 5
 *
 * What the ranks at one place of all nodes have is one piece of a bucket, so that a gather over
 * node gives the piece, and one over local all pieces, each in its place; sums go the other way.
 * One node, or nodes of one rank, are no mesh: then collectives are over all ranks.
 */

/* Sets of axes: what a sum has been made over, or a value is sharded over. */
enum { ZFI_AXIS_NODE = 1, ZFI_AXIS_LOCAL = 2, ZFI_AXES = 3 };

typedef struct zfi_mesh {
    int32_t world, nodes;
} zfi_mesh;

static bool zfi_is_mesh(zfi_mesh m) { return m.nodes > 1 && m.nodes < m.world; }

/* Ranks in a node. */
static int32_t zfi_mesh_local(zfi_mesh m) { return m.world / m.nodes; }

/* Ranks in a group. */
static int32_t zfi_mesh_size(zfi_mesh m, int64_t over)
{
    if (over == ZF_OVER_NODE) return m.nodes;
    return over == ZF_OVER_LOCAL ? zfi_mesh_local(m) : m.world;
}

static uint8_t zfi_mesh_axes(int64_t over)
{
    if (over == ZF_OVER_NODE) return ZFI_AXIS_NODE;
    return over == ZF_OVER_LOCAL ? ZFI_AXIS_LOCAL : ZFI_AXES;
}

/* The group of a rank; count 0: it is all ranks. */
static zf_group zfi_mesh_group(zfi_mesh m, int64_t over, int32_t rank)
{
    const int32_t local = zfi_mesh_local(m);
    if (over == ZF_OVER_NODE) return (zf_group){rank % local, local, m.nodes};
    if (over == ZF_OVER_LOCAL) return (zf_group){rank / local * local, 1, local};
    return (zf_group){0, 0, 0};
}

/* How many ranks of a group are in other nodes than one of them. */
static int32_t zfi_mesh_far(zfi_mesh m, int64_t over)
{
    return zfi_mesh_size(m, over) - (over == ZF_OVER_NODE ? 1 : zfi_mesh_local(m));
}

/* Which shard a rank has of what is sharded over all ranks, or over those of a node. */
static int32_t zfi_mesh_shard(zfi_mesh m, int64_t shards, int32_t rank)
{
    const int32_t local = zfi_mesh_local(m);
    if (shards < m.world) return rank % local;
    return rank % local * m.nodes + rank / local;
}
