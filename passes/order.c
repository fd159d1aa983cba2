/* order: which axes of the ranks are faster.
 *
 * requires: the axes are there (context, cut, stages); no zero yet
 * ensures:  the line mesh has the axes as they are named, the slowest first; nothing else changes
 * before:   mesh pipe=2 tensor=2      order data,tensor,pipe
 * after:    mesh tensor=2 pipe=2      ranks of data are the slowest axis, once zf_zero gives them a number
 *
 * Groups along an axis have the same values in any order, so bits do not depend on it. What is near to
 * what does: neighbours in the fastest axis are in one node. */

/* The axis of this name; ZF_OVER_ALL: there is none. */
static int32_t zfi_axis_called(const char *name, size_t length)
{
    for (int32_t over = ZF_OVER_DATA; over <= ZF_OVER_PIPE; over++)
        if (strlen(zfi_axis_names[over]) == length && !strncmp(zfi_axis_names[over], name, length))
            return over;
    return ZF_OVER_ALL;
}

/* Reads the axes of the text that the ranks have into *to; *data: how many times data is named. */
static zf_status zfi_read_order(zf_graph *g, const char *text, zfi_other_axes *to, int32_t *data)
{
    uint32_t named = 0;
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, ",");
        const int32_t over = zfi_axis_called(at, length), k = zfi_axis_at(&g->axes, over);
        if (!over || named >> over & 1)
            return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                            over ? "zf_order: \"%.100s\" names %.*s twice"
                                 : "zf_order: \"%.100s\": '%.*s' is none of data, tensor, context, "
                                   "expert and pipe",
                            text, (int)(length > 40 ? 40 : length), at);
        named |= 1u << over;
        if (over == ZF_OVER_DATA) ++*data, to->slower = to->count;
        else if (k >= 0) to->axis[to->count++] = g->axes.axis[k];
        at += length + (at[length] == ',');
    }
    return ZF_OK;
}

ZF_API zf_status zf_order(zf_graph *g, const char *axes)
{
    zfi_other_axes to;
    zf_status status = zfi_enter(g, "zf_order", 0, ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    int32_t data = 0;
    if (status) return status;
    if (!axes) return zfi_fail(&g->error, ZF_ERR_ARGUMENT, "zf_order: axes is NULL");
    to = g->axes, to.count = to.slower = 0;
    if ((status = zfi_read_order(g, axes, &to, &data))) return status;
    for (int32_t k = 0; k < g->axes.count; k++)
        if (zfi_axis_at(&to, g->axes.axis[k].over) < 0)
            return zfi_fail(
                &g->error, ZF_ERR_ARGUMENT,
                "zf_order: \"%.100s\" lacks %s: it must name each axis of the ranks, the "
                "slowest first",
                axes, zfi_axis_names[g->axes.axis[k].over]);
    if (!data)
        return zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                        "zf_order: \"%.100s\" lacks data: it must name each axis of the ranks, the "
                        "slowest first",
                        axes);
    g->axes = to;
    return zfi_leave(g, 0);
}

ZF_API int32_t zf_rank_along(const zf_graph *g, int32_t over, int32_t rank)
{
    const zfi_mesh mesh = g ? zfi_mesh_of(g) : zfi_mesh_along_data(1, 1);
    if (zfi_mesh_size(mesh, over) < 1) return 0;
    return zfi_mesh_place(mesh, over, rank);
}
