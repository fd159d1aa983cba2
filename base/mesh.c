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
 * other way. One node, or nodes of one rank, are no mesh: then collectives are over all ranks.
 *
 * The axis `data` is the one that node and local are parts of. Ranks may have other axes too; the
 * last is the fastest:
 *
 *     mesh data=2 tensor=3       tensor ->       a group over tensor: 0 1 2, or 3 4 5
 *                     data   0   1   2           a group over data:   0 3, or 1 4, or 2 5
 *                      |     3   4   5
 *
 * With context=2:zigzag what ranks along context have of a dimension is two quarters: the first and
 * the last, or the two between them. Under a causal mask these have equal work.
 *
 *     context=2          0 0 1 1
 *     context=2:zigzag   0 1 1 0
 *
 * Then collectives name their axis, data as well. Ranks that differ in another axis alone have the
 * same part of the batch, and the same shards.
 *
 * The axis tensor may have two parts, for heads of keys of which there are fewer than ranks:
 *
 *     mesh tensor=2x3       copies ->       a group over copies: 0 1 2, which have the same heads
 *                    group   0   1   2      of keys; one over group: 0 3; one over tensor: all
 *
 * The axis `expert` is a part of data: neighbours along data share experts, and have batches of
 * their own. Ranks with the same experts are a group over `owners`:
 *
 *     mesh data=4 expert=2       a group over expert: 0 1, or 2 3
 *                                a group over owners: 0 2, or 1 3
 *
 * What is cut over expert is sharded over owners. */

/* Sets of axes, over which a sum has been made or a value is sharded. */
enum { ZFI_AXIS_NODE = 1, ZFI_AXIS_LOCAL = 2, ZFI_AXES = 3 };

enum { ZFI_OTHER_AXES = ZF_OVERS - ZF_OVER_TENSOR, ZFI_MESH_TEXT = 100 };

static const char *const zfi_axis_names[ZF_OVERS] = {"all",    "node",    "local",  "data",
                                                     "tensor", "context", "expert", "pipe",
                                                     "group",  "copies",  "owners"};

/* An axis besides data. */
typedef struct zfi_other_axis {
    int32_t over; /* zf_over */
    int32_t ranks;
} zfi_other_axis;

typedef struct zfi_other_axes {
    zfi_other_axis axis[ZFI_OTHER_AXES]; /* the slowest first */
    int32_t count;
    int32_t slower; /* how many of them are slower than data */
    int32_t groups; /* of the ranks along tensor; 0: it has no parts */
    bool zigzag; /* over context, dimensions are dealt in halves: rank r of n has r and 2n-1-r */
} zfi_other_axes;

typedef struct zfi_mesh {
    int32_t world, nodes; /* ranks along data, and the nodes in which these are */
    zfi_other_axes axes;
} zfi_mesh;

/* How a state of a parameter is laid out over the ranks, the attribute `ranks` of state: sharded
 * from stage 1 on; whole on each rank, the same everywhere; each rank has one of its own; sharded
 * at all stages; each node has one of its own, sharded over its ranks. */
enum { ZFI_STATE_STAGE, ZFI_STATE_WHOLE, ZFI_STATE_EACH, ZFI_STATE_CUT, ZFI_STATE_NODE };

/* The mesh of one axis, data. */
static zfi_mesh zfi_mesh_along_data(int32_t world, int32_t nodes)
{
    return (zfi_mesh){.world = world, .nodes = nodes};
}

/* Several nodes of several ranks along data. */
static bool zfi_is_mesh(zfi_mesh m) { return m.nodes > 1 && m.nodes < m.world; }

/* The number of ranks along data in a node. */
static int32_t zfi_mesh_local(zfi_mesh m) { return m.world / m.nodes; }

/* What names the ranks along data. */
static int64_t zfi_mesh_data(zfi_mesh m) { return m.axes.count ? ZF_OVER_DATA : ZF_OVER_ALL; }

/* It is an axis besides data, and no part of it. */
static bool zfi_is_other_axis(int64_t over)
{
    return over > ZF_OVER_DATA && over != ZF_OVER_EXPERT && over != ZF_OVER_OWNERS;
}

/* The place of an axis among those besides data; -1: the mesh does not have it. */
static int32_t zfi_axis_at(const zfi_other_axes *axes, int64_t over)
{
    for (int32_t k = 0; k < axes->count; k++)
        if (axes->axis[k].over == over) return k;
    return -1;
}

/* It is a part of the axis tensor. */
static bool zfi_is_part_of_tensor(int64_t over)
{
    return over == ZF_OVER_GROUP || over == ZF_OVER_COPIES;
}

/* The same of the axis that it is, or is a part of. */
static int32_t zfi_axis_with(const zfi_other_axes *axes, int64_t over)
{
    return zfi_axis_at(axes, zfi_is_part_of_tensor(over) ? ZF_OVER_TENSOR : over);
}

/* The ranks that share experts; 1: there is no such axis. */
static int32_t zfi_mesh_experts(zfi_mesh m)
{
    const int32_t k = zfi_axis_at(&m.axes, ZF_OVER_EXPERT);
    return k < 0 ? 1 : m.axes.axis[k].ranks;
}

/* The number of ranks in a group; 0: there is no such axis. */
static int32_t zfi_mesh_size(zfi_mesh m, int64_t over)
{
    const int32_t k = zfi_axis_with(&m.axes, over);
    if (zfi_is_part_of_tensor(over) && (k < 0 || !m.axes.groups)) return 0;
    if (over == ZF_OVER_GROUP) return m.axes.groups;
    if (over == ZF_OVER_COPIES) return m.axes.axis[k].ranks / m.axes.groups;
    if (zfi_is_other_axis(over) || over == ZF_OVER_EXPERT) return k < 0 ? 0 : m.axes.axis[k].ranks;
    if (over == ZF_OVER_OWNERS) return m.world / zfi_mesh_experts(m);
    if (over == ZF_OVER_NODE) return m.nodes;
    return over == ZF_OVER_LOCAL ? zfi_mesh_local(m) : m.world;
}

/* What is cut over the axis is dealt zig-zag. */
static bool zfi_is_zigzag(zfi_mesh m, int64_t over)
{
    return over == ZF_OVER_CONTEXT && m.axes.zigzag;
}

/* Number `half`, 0 or 1, of the two halves that rank `place` of `ranks` has of 2 `ranks`. */
static int64_t zfi_zigzag_half(int64_t place, int64_t ranks, int64_t half)
{
    return half ? 2 * ranks - 1 - place : place;
}

/* The product of the ranks along the axes from number `from` to before `until`. */
static int32_t zfi_axes_product(const zfi_other_axes *axes, int32_t from, int32_t until)
{
    int32_t ranks = 1;
    for (int32_t k = from; k < until; k++)
        if (zfi_is_other_axis(axes->axis[k].over)) ranks *= axes->axis[k].ranks;
    return ranks;
}

/* All ranks. */
static int32_t zfi_mesh_ranks(zfi_mesh m)
{
    return m.world * zfi_axes_product(&m.axes, 0, m.axes.count);
}

/* How far neighbours along an axis are from one another. */
static int32_t zfi_mesh_stride(zfi_mesh m, int64_t over)
{
    const int32_t k = zfi_is_other_axis(over) ? zfi_axis_with(&m.axes, over) : -1;
    const int32_t first = k < 0 ? m.axes.slower : k + 1;
    const int32_t inner = over == ZF_OVER_GROUP ? zfi_mesh_size(m, ZF_OVER_COPIES) : 1;
    const int32_t faster = inner * zfi_axes_product(&m.axes, first, m.axes.count);
    if (k >= 0) return k < m.axes.slower ? faster * m.world : faster;
    if (over == ZF_OVER_OWNERS) return faster * zfi_mesh_experts(m);
    return over == ZF_OVER_NODE ? faster * zfi_mesh_local(m) : faster;
}

/* The number of a rank along an axis. */
static int32_t zfi_mesh_place(zfi_mesh m, int64_t over, int32_t rank)
{
    return rank / zfi_mesh_stride(m, over) % zfi_mesh_size(m, over);
}

/* Sets of axes of data; 0: it is over another one. Owners and expert are as node and local, with
 * which they do not occur. */
static uint8_t zfi_mesh_axes(int64_t over)
{
    if (zfi_is_other_axis(over)) return 0;
    if (over == ZF_OVER_NODE || over == ZF_OVER_OWNERS) return ZFI_AXIS_NODE;
    return over == ZF_OVER_LOCAL || over == ZF_OVER_EXPERT ? ZFI_AXIS_LOCAL : ZFI_AXES;
}

/* The group of a rank; count 0: all ranks. */
static zf_group zfi_mesh_group(zfi_mesh m, int64_t over, int32_t rank)
{
    const int32_t stride = zfi_mesh_stride(m, over);
    if (over == ZF_OVER_ALL) return (zf_group){0, 0, 0};
    return (zf_group){rank - zfi_mesh_place(m, over, rank) * stride, stride,
                      zfi_mesh_size(m, over)};
}

/* For one rank of a group, how many others of it are in other nodes. */
static int32_t zfi_mesh_far(zfi_mesh m, int64_t over)
{
    const int32_t k = zfi_axis_with(&m.axes, over);
    if (zfi_is_other_axis(over))
        return m.nodes > 1 && k < m.axes.slower ? zfi_mesh_size(m, over) - 1 : 0;
    if (over == ZF_OVER_EXPERT || over == ZF_OVER_OWNERS) return 0; /* zf_zero wants one node */
    return zfi_mesh_size(m, over) - (over == ZF_OVER_NODE ? 1 : zfi_mesh_local(m));
}

/* The number of a rank's shard of a value that is sharded over all ranks along data, over those of
 * a node, or over owners. */
static int32_t zfi_mesh_shard(zfi_mesh m, int64_t shards, int32_t rank)
{
    const int32_t local = zfi_mesh_local(m), place = zfi_mesh_place(m, ZF_OVER_DATA, rank);
    if (zfi_mesh_experts(m) > 1) return place / (m.world / (int32_t)shards);
    if (shards < m.world) return place % local;
    return place % local * m.nodes + place / local;
}

/* "4", or of an axis that has parts "2x2": groups of copies. */
static const char *zfi_axis_text(char text[24], const zfi_other_axes *axes, int32_t k)
{
    const int32_t ranks = axes->axis[k].ranks, groups = axes->groups;
    if (axes->axis[k].over == ZF_OVER_TENSOR && groups)
        snprintf(text, 24, "%dx%d", (int)groups, (int)(ranks / groups));
    else
        snprintf(text, 24, "%d%s", (int)ranks,
                 axes->axis[k].over == ZF_OVER_CONTEXT && axes->zigzag ? ":zigzag" : "");
    return text;
}

/* "data=2 tensor=2", the slowest axis first. */
static const char *zfi_mesh_text(char text[ZFI_MESH_TEXT], zfi_mesh m)
{
    int at = 0;
    char ranks[24];
    for (int32_t k = 0; k <= m.axes.count; k++) {
        const zfi_other_axis *axis = &m.axes.axis[k];
        if (k == m.axes.slower && (m.world > 1 || !m.axes.count))
            at += snprintf(text + at, (size_t)(ZFI_MESH_TEXT - at), "%sdata=%d", at ? " " : "",
                           (int)m.world);
        if (k < m.axes.count)
            at += snprintf(text + at, (size_t)(ZFI_MESH_TEXT - at), "%s%s=%s", at ? " " : "",
                           zfi_axis_names[axis->over], zfi_axis_text(ranks, &m.axes, k));
    }
    return text;
}
