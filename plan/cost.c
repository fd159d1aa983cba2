/* Times by a cost table: seconds of a computation, a collective or a copy.
 *
 *     a computation                  FLOPs / flops_per_s, of 16-bit values / half_flops_per_s; +
 *                                    bytes / bytes_per_s, or what is longer, 16-bit values /
 *                                    half_values_per_s; + functions / functions_per_s
 *     an update in host memory       bytes / host.bytes_per_s
 *     a collective                   latency + bytes that a rank sends inside its node /
 *                                    link.bytes_per_s + to other nodes / between.bytes_per_s
 *     a copy between spaces          latency + bytes / the rate of its direction
 */

/* The members of a table, by their keys in a file, which requires those that are not optional. A
 * latency is right after its rate. */
static const struct {
    const char *name;
    size_t at; /* offset in zf_cost */
    double least, most;
    bool optional;
} zfi_cost_members[] = {
#define ZFI_MEMBER(name, member, least, most, optional)                                            \
    {                                                                                              \
        name, offsetof(zf_cost, member), least, most, optional                                     \
    }
#define ZFI_RATE(name, member, optional)  ZFI_MEMBER(name, member, 1, 1e24, optional)
#define ZFI_DELAY(name, member, optional) ZFI_MEMBER(name, member, 0, 1e6, optional)
#define ZFI_PART(name, member)            ZFI_MEMBER(name, member, 0, 1, true)
    ZFI_RATE("flops_per_s", device.flops_per_s, false),
    ZFI_RATE("half_flops_per_s", device.half_flops_per_s, true),
    ZFI_RATE("bytes_per_s", device.bytes_per_s, false),
    ZFI_RATE("half_values_per_s", device.half_values_per_s, true),
    ZFI_RATE("functions_per_s", device.functions_per_s, true),
    ZFI_RATE("link_bytes_per_s", link.bytes_per_s, false),
    ZFI_DELAY("link_latency_s", link.latency_s, false),
    ZFI_RATE("between_bytes_per_s", between.bytes_per_s, true),
    ZFI_DELAY("between_latency_s", between.latency_s, true),
    ZFI_RATE("host_bytes_per_s", host.bytes_per_s, true),
    ZFI_RATE("download_bytes_per_s", download.bytes_per_s, true),
    ZFI_DELAY("download_latency_s", download.latency_s, true),
    ZFI_RATE("upload_bytes_per_s", upload.bytes_per_s, true),
    ZFI_DELAY("upload_latency_s", upload.latency_s, true),
    ZFI_RATE("read_bytes_per_s", read.bytes_per_s, true),
    ZFI_DELAY("read_latency_s", read.latency_s, true),
    ZFI_RATE("write_bytes_per_s", write.bytes_per_s, true),
    ZFI_DELAY("write_latency_s", write.latency_s, true),
    ZFI_PART("copy_load", copy_load),
    ZFI_PART("disk_load", disk.load),
    ZFI_PART("disk_shared", disk.shared),
    ZFI_PART("host_apart", host.apart),
#undef ZFI_MEMBER
#undef ZFI_RATE
#undef ZFI_DELAY
#undef ZFI_PART
};

enum { ZFI_COST_MEMBERS = ZFI_COUNT(zfi_cost_members) };

static double *zfi_cost_member(zf_cost *cost, int k)
{
    return (double *)(void *)((char *)cost + zfi_cost_members[k].at);
}

ZF_API zf_cost zf_cost_default(void)
{
    return (zf_cost){.device = {.flops_per_s = 1e11,
                                .half_flops_per_s = 1e11,
                                .bytes_per_s = 1e10,
                                .half_values_per_s = 5e9,
                                .functions_per_s = 1.25e9},
                     .link = {.bytes_per_s = 1e9, .latency_s = 2e-5},
                     .between = {.bytes_per_s = 1e9, .latency_s = 2e-5},
                     .host = {.bytes_per_s = 1e10},
                     .download = {.bytes_per_s = 1e10, .latency_s = 1e-5},
                     .upload = {.bytes_per_s = 1e10, .latency_s = 1e-5},
                     .read = {.bytes_per_s = 2e9, .latency_s = 1e-4},
                     .write = {.bytes_per_s = 1e9, .latency_s = 1e-4}};
}

/* The table with defaults for optional rates that are 0, and for their latencies: for products of
 * 16-bit values those of others, for 16-bit values and functions a part of bytes_per_s, for the
 * link between nodes the link's own. NULL: the default table. */
static zf_cost zfi_cost_resolved(const zf_cost *cost)
{
    zf_cost all = zf_cost_default(), mine = cost ? *cost : all;
    all.device.half_flops_per_s = mine.device.flops_per_s;
    all.device.half_values_per_s = fmax(1, mine.device.bytes_per_s / 2);
    all.device.functions_per_s = fmax(1, mine.device.bytes_per_s / 8);
    all.between = mine.link;
    for (int k = 0; k < ZFI_COST_MEMBERS; k++) {
        const bool rate = zfi_cost_members[k].least > 0;
        if (!zfi_cost_members[k].optional || !rate || *zfi_cost_member(&mine, k) != 0) continue;
        *zfi_cost_member(&mine, k) = *zfi_cost_member(&all, k);
        if (k + 1 < ZFI_COST_MEMBERS && zfi_cost_members[k + 1].least <= 0)
            *zfi_cost_member(&mine, k + 1) = *zfi_cost_member(&all, k + 1);
    }
    return mine;
}

/* Checks that rates are above 0, latencies at least 0, and parts from 0 to 1. */
static zf_status zfi_check_cost(zf_graph *g, const char *call, const zf_cost *cost)
{
    zf_cost all = zfi_cost_resolved(cost);
    for (int k = 0; k < ZFI_COST_MEMBERS; k++) {
        const double x = *zfi_cost_member(&all, k);
        const bool part = zfi_cost_members[k].most <= 1;
        if (zfi_cost_members[k].least > 0 ? x > 0 : x >= 0 && (!part || x <= 1)) continue;
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "%s: %s of the cost table is %g; it must be %s",
                        call, zfi_cost_members[k].name, x,
                        zfi_cost_members[k].least > 0 ? "above 0"
                        : part                        ? "from 0 to 1"
                                                      : "0 or more");
    }
    return ZF_OK;
}

/* The node runs, and moves or computes something. */
static bool zfi_works(const zf_graph *g, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    if (zfi_has(g, id, ZF_OP_LEAF) || node->op == ZF_OP_saved || node->held) return false;
    if (zfi_has(g, id, ZF_OP_MUTATES | ZF_OP_COLLECTIVE)) return true; /* into an operand, too */
    return !zfi_has(g, id, ZF_OP_EFFECT) && !zfi_lies_in_operand(g, node) &&
           !zfi_is_joined(g, node);
}

/* What a node does: FLOPs of its products (a multiply-add is two), bytes and 16-bit values that it
 * reads and writes, and functions of elements. */
typedef struct zfi_amount {
    double flops, bytes, halves, functions;
} zfi_amount;

static zfi_amount zfi_node_work(const zf_graph *g, const zfi_node *node)
{
    const int32_t id = (int32_t)(node - g->nodes);
    zf_array args[ZF_OWN_OPERANDS + ZF_MAX_SAVED];
    zfi_amount work = {0};
    if (node->arg_count <= ZF_OWN_OPERANDS) {
        const zf_launch l = zfi_launch_of(g, id, args);
        work.flops = zf_launch_flops(&l), work.bytes = zf_launch_bytes(&l);
        work.halves = zfi_launch_halves(&l), work.functions = zf_launch_functions(&l);
        return work;
    }
    work.bytes = zfi_has(g, id, ZF_OP_EFFECT) ? 0 : (double)zfi_node_bytes(node);
    for (int32_t k = 0; k < node->arg_count; k++)
        work.bytes += (double)zfi_node_bytes(&g->nodes[node->args[k]]);
    return work;
}

static double zfi_node_flops(const zf_graph *g, const zfi_node *node)
{
    return g->records[node->op]->flops ? zfi_node_work(g, node).flops : 0;
}

/* Seconds of a node where it is computed; 0 for nodes that move values. */
static double zfi_node_seconds(const zf_graph *g, const zf_cost *cost, int32_t id)
{
    const zfi_node *node = &g->nodes[id];
    zfi_amount work;
    double rate;
    bool half;
    if (!zfi_works(g, id) || zfi_has(g, id, ZF_OP_COLLECTIVE) || node->op == ZF_OP_copy) return 0;
    work = zfi_node_work(g, node);
    half = node->arg_count && zf_dtype_size(g->nodes[node->args[0]].dtype) == 2;
    rate = node->space == ZF_HOST ? cost->host.bytes_per_s : cost->device.bytes_per_s;
    return work.flops / (half ? cost->device.half_flops_per_s : cost->device.flops_per_s) +
           fmax(work.halves / cost->device.half_values_per_s, work.bytes / rate) +
           work.functions / cost->device.functions_per_s;
}

/* Seconds of a copy of so many bytes on its queue. */
static double zfi_copy_seconds(const zf_cost *cost, uint8_t queue, int64_t bytes)
{
    const zf_cost_link *link = queue == ZFI_QUEUE_DOWNLOAD ? &cost->download
                               : queue == ZFI_QUEUE_UPLOAD ? &cost->upload
                               : queue == ZFI_QUEUE_READ   ? &cost->read
                                                           : &cost->write;
    return link->latency_s + (double)bytes / link->bytes_per_s;
}
