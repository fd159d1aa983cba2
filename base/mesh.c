/* The mesh of the ranks: its axes, the groups along them, and who has which shard.
 *
 *     2 nodes of 3 ranks       local ->          a group over local: 0 1 2, or 3 4 5
 *                    node   0   1   2            a group over node:  0 3, or 1 4, or 2 5
 *                      |    3   4   5
 *
 *     shards of a bucket, by the rank that has them    0 3 1 4 2 5
 *
 * The shards of the ranks at one place of all nodes are a contiguous piece of a bucket. So a gather
 * over node gives this piece, and a gather over local all pieces, each at its place. Sums go the
 * other way. One node, or nodes of one rank, are no mesh: then collectives are over all ranks. */

/* Sets of axes, over which a sum has been made or a value is sharded. */
enum { ZFI_AXIS_NODE = 1, ZFI_AXIS_LOCAL = 2, ZFI_AXES = 3 };

typedef struct zfi_mesh {
    int32_t world, nodes;
} zfi_mesh;

/* How a state of a parameter is laid out over the ranks, the attribute `ranks` of state: sharded
 * from stage 1 on; whole on each rank, the same everywhere; each rank has one of its own; sharded
 * at all stages; each node has one of its own, sharded over its ranks. */
enum { ZFI_STATE_STAGE, ZFI_STATE_WHOLE, ZFI_STATE_EACH, ZFI_STATE_CUT, ZFI_STATE_NODE };

static bool zfi_is_mesh(zfi_mesh m) { return m.nodes > 1 && m.nodes < m.world; }

/* The number of ranks in a node. */
static int32_t zfi_mesh_local(zfi_mesh m) { return m.world / m.nodes; }

/* The number of ranks in a group. */
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

/* The group of a rank; count 0: all ranks. */
static zf_group zfi_mesh_group(zfi_mesh m, int64_t over, int32_t rank)
{
    const int32_t local = over == ZF_OVER_ALL ? 1 : zfi_mesh_local(m);
    if (over == ZF_OVER_NODE) return (zf_group){rank % local, local, m.nodes};
    if (over == ZF_OVER_LOCAL) return (zf_group){rank / local * local, 1, local};
    return (zf_group){0, 0, 0};
}

/* For one rank of a group, how many others of it are in other nodes. */
static int32_t zfi_mesh_far(zfi_mesh m, int64_t over)
{
    return zfi_mesh_size(m, over) - (over == ZF_OVER_NODE ? 1 : zfi_mesh_local(m));
}

/* The number of a rank's shard of a value that is sharded over all ranks, or over those of a
 * node. */
static int32_t zfi_mesh_shard(zfi_mesh m, int64_t shards, int32_t rank)
{
    const int32_t local = zfi_mesh_local(m);
    if (shards < m.world) return rank % local;
    return rank % local * m.nodes + rank / local;
}
