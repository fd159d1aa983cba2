/* Element types, shapes and spaces: sizes, names, products with overflow checks, broadcasting. */

static const struct {
    const char *name;
    size_t size;
} zfi_dtypes[] = {
    [ZF_F32] = {"f32", 4}, [ZF_BF16] = {"bf16", 2}, [ZF_F16] = {"f16", 2}, [ZF_F64] = {"f64", 8},
    [ZF_I32] = {"i32", 4}, [ZF_I64] = {"i64", 8},   [ZF_U8] = {"u8", 1},   [ZF_BOOL] = {"bool", 1},
};

ZF_API size_t zf_dtype_size(zf_dtype dtype)
{
    return (unsigned)dtype < (unsigned)ZFI_COUNT(zfi_dtypes) ? zfi_dtypes[dtype].size : 0;
}

ZF_API const char *zf_dtype_name(zf_dtype dtype)
{
    return (unsigned)dtype < (unsigned)ZFI_COUNT(zfi_dtypes) ? zfi_dtypes[dtype].name : "?";
}

ZF_API const char *zf_space_name(zf_space space)
{
    static const char *const names[ZF_SPACES] = {"device", "host", "disk"};
    return (unsigned)space < ZF_SPACES ? names[space] : "?";
}

static bool zfi_is_float(zf_dtype dtype) { return dtype <= ZF_F64; }

static bool zfi_is_integer(zf_dtype dtype) { return dtype == ZF_I32 || dtype == ZF_I64; }

ZF_API zf_shape zf_shape_of(int32_t rank, const int64_t *dims)
{
    zf_shape shape = {-1, {0}};
    if (rank < 0 || rank > ZF_MAX_RANK || (rank && !dims)) return shape;
    shape.rank = rank;
    for (int axis = 0; axis < rank; axis++) shape.dims[axis] = dims[axis];
    return shape;
}

ZF_API int64_t zf_shape_count(zf_shape shape)
{
    int64_t count = 1;
    bool empty = false;
    if (shape.rank < 0 || shape.rank > ZF_MAX_RANK) return -1;
    for (int axis = 0; axis < shape.rank; axis++) {
        if (shape.dims[axis] < 0) return -1;
        if (shape.dims[axis] == 0) empty = true;
        else if (count > INT64_MAX / shape.dims[axis]) return -1;
        else count *= shape.dims[axis];
    }
    return empty ? 0 : count;
}

/* The number of elements in dims[from..to) of a valid shape. */
static int64_t zfi_span(const zf_shape *shape, int from, int to)
{
    int64_t count = 1;
    for (int axis = from; axis < to; axis++) count *= shape->dims[axis];
    return count;
}

static bool zfi_same_shape(const zf_shape *a, const zf_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int axis = 0; axis < a->rank; axis++)
        if (a->dims[axis] != b->dims[axis]) return false;
    return true;
}

/* The last dimension, 1 for a scalar; and the number of rows of this length. */
static int64_t zfi_last(const zf_shape *shape)
{
    return shape->rank ? shape->dims[shape->rank - 1] : 1;
}

static int64_t zfi_row_count(const zf_shape *shape)
{
    return zfi_span(shape, 0, shape->rank ? shape->rank - 1 : 0);
}

static zf_shape zfi_without_axis(zf_shape shape, int axis, bool keep)
{
    if (keep) {
        shape.dims[axis] = 1;
    } else {
        shape.rank--;
        for (int i = axis; i < shape.rank; i++) shape.dims[i] = shape.dims[i + 1];
    }
    return shape;
}

/* Broadcasts as numpy does: aligned at the last dimension, sizes equal or 1. */
static bool zfi_broadcast_shape(const zf_shape *a, const zf_shape *b, zf_shape *out)
{
    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 1; i <= out->rank; i++) {
        int64_t of_a = i <= a->rank ? a->dims[a->rank - i] : 1,
                of_b = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1) return false;
        out->dims[out->rank - i] = of_a == 1 ? of_b : of_a;
    }
    return true;
}

/* `small` broadcasts to exactly `large`. */
static bool zfi_broadcasts_to(const zf_shape *small, const zf_shape *large)
{
    zf_shape both;
    return zfi_broadcast_shape(small, large, &both) && zfi_same_shape(&both, large);
}

enum { ZFI_TYPE_TEXT = 160 };

/* Writes "f32[4,8]" to text[ZFI_TYPE_TEXT]. Returns text. */
static const char *zfi_type_text(char *text, zf_dtype dtype, const zf_shape *shape)
{
    zfi_writer w = zfi_writer_of(NULL, text, ZFI_TYPE_TEXT);
    zfi_print_text(&w, zf_dtype_name(dtype)), zfi_print_text(&w, "[");
    for (int axis = 0; axis < shape->rank; axis++)
        zfi_print_integer(&w, axis ? "," : "", shape->dims[axis]);
    zfi_print_text(&w, "]"), zfi_print_end(&w);
    return text;
}
