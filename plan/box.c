/* Boxes: what a rank has of a tensor that ranks along axes share.
 *
 *     f32[4@tensor,8] of [8,8]    rank 0: |########|    rank 1: |........|
 *                                        |........|            |########|
 *
 * A box has no padding: its elements are the first ones of what the rank has, of a tensor that is
 * padded along its first dimension. */

/* The dimension is dealt zig-zag. */
static bool zfi_is_folded(zfi_mesh mesh, const zfi_spread *spread, int32_t d)
{
    return spread->at[d] && zfi_is_zigzag(mesh, zfi_axes_last(spread->at[d]));
}

/* Of a dimension that is dealt zig-zag: rank `place` has two halves, each with half of the
 * sections. */
static void zfi_fold_share(zf_share *share, const zf_shape *shape, const zfi_spread *spread,
                           int32_t d, int64_t place)
{
    const int64_t each = spread->run[d] ? spread->run[d] : shape->dims[d],
                  ranks = share->whole.dims[d] / shape->dims[d] /
                          (spread->section[d].of ? spread->section[d].of : 1),
                  own = spread->section[d].of / 2, at = spread->section[d].at;
    if (!own) {
        share->at[d] = place * each / 2;
        share->fold[d] = (zfi_zigzag_half(place, ranks, 1) - place - 1) * each / 2;
    } else share->at[d] = (zfi_zigzag_half(place, ranks, at / own) * own + at % own) * each;
}

/* The share of the rank of a value of this shape and type. A section is as the part of one of more
 * ranks. */
static zf_share zfi_share_of(zfi_mesh mesh, const zf_shape *shape, const zfi_spread *spread,
                             int32_t rank)
{
    zf_share share = {.whole = zfi_whole_of(mesh, *shape, spread)};
    for (int32_t d = 0; d < shape->rank; d++) {
        const int32_t sections = spread->section[d].of ? spread->section[d].of : 1;
        int64_t place = 0;
        for (uint16_t list = spread->at[d]; list; list >>= ZFI_AXIS_BITS) {
            const int32_t ranks = zfi_mesh_size(mesh, list & 15);
            place = place * ranks + zfi_mesh_place(mesh, list & 15, rank);
        }
        share.run[d] = spread->run[d];
        share.at[d] = (place * sections + spread->section[d].at) *
                      (spread->run[d] ? spread->run[d] : shape->dims[d]);
        if (zfi_is_folded(mesh, spread, d)) zfi_fold_share(&share, shape, spread, d, place);
    }
    return share;
}

typedef struct zfi_rank_box {
    zf_shape shape;
    zf_share share;
} zfi_rank_box;

static zfi_rank_box zfi_box_of(zfi_mesh mesh, const zf_shape *shape, const zfi_spread *spread,
                               int32_t rank)
{
    zfi_rank_box box = {*shape, zfi_share_of(mesh, shape, spread, rank)};
    for (int32_t d = 0; d < shape->rank; d++)
        if (spread->whole[d])
            box.shape.dims[d] = zfi_min(shape->dims[d], spread->whole[d] - box.share.at[d]);
    return box;
}

/* It is a part of the tensor. */
static bool zfi_box_is_part(const zfi_rank_box *b)
{
    return !zfi_same_shape(&b->shape, &b->share.whole);
}

static bool zfi_same_box(const zfi_rank_box *a, const zfi_rank_box *b)
{
    return zfi_same_shape(&a->shape, &b->shape) &&
           zfi_same_shape(&a->share.whole, &b->share.whole) &&
           !memcmp(a->share.at, b->share.at, sizeof a->share.at) &&
           !memcmp(a->share.run, b->share.run, sizeof a->share.run);
}

/* Elements of a dimension that lie together in the whole, and from each such run to the next. */
static int64_t zfi_box_run(const zfi_rank_box *b, int32_t d, int64_t *stride)
{
    const int64_t run = b->share.run[d], all = b->share.whole.dims[d];
    *stride = run ? run * (all / b->shape.dims[d]) : zfi_max(all, 1);
    return run ? run : b->shape.dims[d];
}

/* They have a place of the dimension in common. */
static bool zfi_boxes_meet_at(const zfi_rank_box *a, const zfi_rank_box *b, int32_t d)
{
    int64_t step_a, step_b;
    const int64_t run_a = zfi_box_run(a, d, &step_a), run_b = zfi_box_run(b, d, &step_b);
    for (int64_t i = 0; run_a && run_b && i < a->shape.dims[d] / run_a; i++)
        for (int64_t j = 0; j < b->shape.dims[d] / run_b; j++) {
            const int64_t at_a = a->share.at[d] + i * step_a, at_b = b->share.at[d] + j * step_b;
            if (at_a < at_b + run_b && at_b < at_a + run_a) return true;
        }
    return false;
}

/* They have an element in common. */
static bool zfi_boxes_meet(const zfi_rank_box *a, const zfi_rank_box *b)
{
    for (int32_t d = 0; d < a->shape.rank; d++)
        if (!zfi_boxes_meet_at(a, b, d)) return false;
    return true;
}

/* The element of the whole tensor that is element `i` of the box; *run: how many follow it in both,
 * itself counted. */
static int64_t zfi_box_to_whole(const zfi_rank_box *b, int64_t i, int64_t *run)
{
    return zfi_whole_element(&b->share, &b->shape, i, run);
}

/* The element of the box that is element `i` of the whole tensor; -1: it is not in the box. *run:
 * for how many elements from there on this goes on, itself counted. */
static int64_t zfi_box_of_whole(const zfi_rank_box *b, int64_t i, int64_t *run)
{
    int64_t at = 0, step = 1, inner = 1, rest = i;
    bool inside = true;
    *run = 0;
    for (int32_t d = b->shape.rank - 1; d >= 0; d--) {
        int64_t stride;
        const int64_t all = b->share.whole.dims[d], k = rest % all, size = zfi_box_run(b, d, &stride),
                      from = k / stride * stride + b->share.at[d], until = from + size;
        const int64_t end = k < from ? from : k < until ? until : zfi_min(from + stride, all);
        if (b->shape.dims[d] < all && !*run) *run = (end - k) * inner - i % inner;
        inside &= k >= from && k < until;
        at += (k / stride * size + k - from) * step;
        step *= b->shape.dims[d], inner *= all, rest /= all;
    }
    if (!*run) *run = inner - i;
    return inside ? at : -1;
}
