/* Block masks: which blocks of keys each block of queries sees, for all heads or each of them.
 *
 *     #...      fixed, local 2, causal: within windows of `local` blocks, and the last `global`
 *     ##..      blocks of each window are seen from everywhere
 *     .##.
 *     .###
 *
 * A mask is bits on the host. A graph has it as a constant i32, its lists, which attention takes as
 * an operand (ops/attention_blocks.c). With H layouts of R rows of blocks and E blocks that are
 * seen:
 *
 *     block, H
 *     H (R + 1)  where the list of each row begins, and the last one ends, from 0 on
 *     H (R + 1)  the same of the lists of columns
 *     E          of each row the columns that it sees, ascending
 *     E          of each column the rows by which it is seen, ascending
 *
 * The layouts fixed, variable, bigbird, longformer and window are those of DeepSpeed's
 * sparsity_config.py. There some causal ones have columns after the row; here none has.
 *
 * Sources: Child et al. 2019 (fixed); Zaheer et al. 2020 (BigBird); Beltagy et al. 2020
 * (Longformer). */

enum {
    ZFI_MASK_BLOCKS_MOST = 1 << 14, /* of a side */
    ZFI_MASK_HEADS_MOST = 1 << 16,
    ZFI_MASK_LIST = 16 /* windows and globals, at most */
};
static const size_t ZFI_MASK_FILE_LIMIT = (size_t)1 << 30;

/* Blocks first..end-1. */
typedef struct zfi_block_range {
    int64_t first, end;
} zfi_block_range;

struct zf_block_mask {
    zfi_memory memory;
    zf_block_mask_desc desc; /* with its defaults filled in */
    int64_t layouts, rows;   /* rows: of blocks, of the whole length */
    int64_t blocks;          /* those of the tokens */
    int64_t windows[ZFI_MASK_LIST];
    zfi_block_range globals[ZFI_MASK_LIST];
    int32_t window_count, global_count;
    int64_t digest;          /* of the file */
    size_t line, bytes;      /* of a row of a layout; of all bits */
    uint64_t draws;
    unsigned char *bits;
};

/* ------------------------------------------------------------------------------- bits */

static unsigned char *zfi_mask_byte(const zf_block_mask *m, int64_t layout, int64_t row,
                                    int64_t column)
{
    return m->bits + (size_t)(layout * m->rows + row) * m->line + column / 8;
}

static bool zfi_mask_has(const zf_block_mask *m, int64_t layout, int64_t row, int64_t column)
{
    return *zfi_mask_byte(m, layout, row, column) >> column % 8 & 1;
}

/* Adds the columns from..end-1 to the rows top..bottom-1. */
static void zfi_mask_add(zf_block_mask *m, int64_t layout, int64_t top, int64_t bottom,
                         int64_t from, int64_t end)
{
    bottom = zfi_min(bottom, m->rows);
    for (int64_t row = top; row < bottom; row++) {
        int64_t stop = zfi_min(end, m->desc.causal ? row + 1 : m->rows);
        for (int64_t column = zfi_max(0, from); column < stop; column++)
            *zfi_mask_byte(m, layout, row, column) |= (unsigned char)(1 << column % 8);
    }
}

/* Blocks from..end-1 are seen by all rows, and with `see` see all columns. */
static void zfi_mask_global(zf_block_mask *m, int64_t layout, int64_t from, int64_t end, bool see)
{
    zfi_mask_add(m, layout, 0, m->rows, from, end);
    if (see) zfi_mask_add(m, layout, from, end, 0, m->rows);
}

/* Blocks of a window see one another. */
static void zfi_mask_window(zf_block_mask *m, int64_t layout, int64_t from, int64_t end)
{
    zfi_mask_add(m, layout, from, end, from, end);
}

static void zfi_mask_sliding(zf_block_mask *m, int64_t layout)
{
    const int64_t side = m->desc.width / 2;
    for (int64_t row = 0; row < m->rows; row++)
        zfi_mask_add(m, layout, row, row + 1, row - side, row + side + 1);
}

/* A number below n, which depends on the seed and on how many were drawn before. */
static int64_t zfi_mask_draw(zf_block_mask *m, int64_t n)
{
    const uint64_t at = 2 * m->draws++;
    const uint64_t word = (uint64_t)zfi_random_word(at, 0, 0, (uint64_t)m->desc.seed) << 32 |
                          zfi_random_word(at + 1, 0, 0, (uint64_t)m->desc.seed);
    return (int64_t)(word % (uint64_t)n); /* n is below 2^15: of 2^64 numbers none is likelier */
}

/* `random` different columns of each row, all sets of them equally likely (Floyd's algorithm); of a
 * causal row with fewer columns, all. The rows must be empty. */
static void zfi_mask_random(zf_block_mask *m, int64_t layout)
{
    for (int64_t row = 0; row < m->rows; row++) {
        const int64_t columns = m->desc.causal ? row + 1 : m->rows;
        for (int64_t last = zfi_max(0, columns - m->desc.random); last < columns; last++) {
            const int64_t drawn = zfi_mask_draw(m, last + 1);
            const int64_t column = zfi_mask_has(m, layout, row, drawn) ? last : drawn;
            zfi_mask_add(m, layout, row, row + 1, column, column + 1);
        }
    }
}

/* ---------------------------------------------------------------------------- layouts */

static void zfi_mask_fixed(zf_block_mask *m, int64_t layout)
{
    const int64_t local = m->desc.local, global = m->desc.global;
    const int64_t first = local - (1 + layout % m->desc.patterns) * global;
    for (int64_t at = 0; at < m->rows; at += local) {
        /* A last window that is short has its globals at most at its end */
        const int64_t from =
            at + local <= m->rows ? at + first : zfi_min(at + first, m->rows - global);
        zfi_mask_window(m, layout, at, at + local);
        zfi_mask_global(m, layout, from, from + global, m->desc.horizontal);
    }
}

static void zfi_mask_globals(zf_block_mask *m, int64_t layout, bool see)
{
    for (int32_t k = 0; k < m->global_count; k++)
        if (m->globals[k].first < m->rows)
            zfi_mask_global(m, layout, m->globals[k].first, m->globals[k].end, see);
}

static void zfi_mask_variable(zf_block_mask *m, int64_t layout)
{
    int64_t at = 0;
    zfi_mask_random(m, layout);
    for (int32_t k = 0; at < m->rows; k++) {
        const int64_t width = m->windows[zfi_min(k, m->window_count - 1)];
        zfi_mask_window(m, layout, at, at + width);
        at += width;
    }
    zfi_mask_globals(m, layout, m->desc.horizontal);
}

static void zfi_mask_bigbird(zf_block_mask *m, int64_t layout)
{
    zfi_mask_random(m, layout);
    zfi_mask_sliding(m, layout);
    zfi_mask_global(m, layout, 0, m->desc.global, true);
}

static void zfi_mask_longformer(zf_block_mask *m, int64_t layout)
{
    zfi_mask_sliding(m, layout);
    zfi_mask_globals(m, layout, true);
}

static void zfi_mask_all(zf_block_mask *m, int64_t layout)
{
    zfi_mask_add(m, layout, 0, m->rows, 0, m->rows);
}

/* How a layout is made; NULL: it is read. */
static void (*const zfi_layouts[])(zf_block_mask *, int64_t layout) = {
    [ZF_LAYOUT_ALL] = zfi_mask_all,
    [ZF_LAYOUT_FIXED] = zfi_mask_fixed,
    [ZF_LAYOUT_VARIABLE] = zfi_mask_variable,
    [ZF_LAYOUT_BIGBIRD] = zfi_mask_bigbird,
    [ZF_LAYOUT_LONGFORMER] = zfi_mask_longformer,
    [ZF_LAYOUT_WINDOW] = zfi_mask_sliding,
    [ZF_LAYOUT_FILE] = NULL,
};

/* ----------------------------------------------------------------------------------- options */

#define ZFI_ROW(kind, member, default_, range, ...)                                                \
    ZF_OPTION(zf_block_mask_desc, kind, member, default_, range, __VA_ARGS__)
#define ZFI_BLOCKS       "[1,16384]"
#define ZFI_SPARSE       "layout=fixed|variable|bigbird|longformer|window|file"
#define ZFI_LAYOUT_NAMES "off|fixed|variable|bigbird|longformer|window|file"
static const zf_option zfi_block_mask_rows[] = {
    ZFI_ROW(CHOICE, layout, 0, ZFI_LAYOUT_NAMES, .traits = ZF_OPTION_GIVEN_0,
            .help = "which blocks of keys a block of queries sees"),
    ZFI_ROW(COUNT, length, 0, "[0,2097152]", .unit = "TOKENS", .with = ZFI_SPARSE,
            .help =
                "the layout is that of so many tokens, and shorter sequences have its beginning; "
                "0: of the sequence"),
    ZFI_ROW(COUNT, block, 16, "16|32|64|128", .unit = "TOKENS", .with = ZFI_SPARSE,
            .help = "tokens of a block"),
    ZFI_ROW(FLAG, per_head, 0, NULL, .with = "layout=fixed|variable|bigbird|file",
            .help = "each head has a layout of its own"),
    ZFI_ROW(COUNT, local, 4, ZFI_BLOCKS, .with = "layout=fixed", .help = "blocks of a window"),
    ZFI_ROW(COUNT, global, 1, ZFI_BLOCKS, .with = "layout=fixed|bigbird",
            .help = "blocks that all see: the last ones of each window of fixed, the first ones of "
                    "bigbird"),
    ZFI_ROW(COUNT, patterns, 1, ZFI_BLOCKS, .with = "layout=fixed",
            .help = "heads take turns in so many places of these blocks"),
    ZFI_ROW(FLAG, horizontal, 0, NULL, .with = "layout=fixed|variable",
            .help = "global blocks see all blocks"),
    ZFI_ROW(COUNT, random, 0, "[0,16384]", .with = "layout=variable|bigbird",
            .traits = ZF_OPTION_GIVEN_0,
            .help = "blocks of a row that are drawn; by default 1 of bigbird, none of variable"),
    ZFI_ROW(COUNT, seed, 0, "[0,9000000000000000]", .with = "layout=variable|bigbird",
            .help = "of these blocks"),
    ZFI_ROW(COUNT, width, 3, ZFI_BLOCKS, .with = "layout=bigbird|longformer|window",
            .help = "blocks around the row: width / 2 to each side"),
    ZFI_ROW(TEXT, windows, 0, NULL, .unit = "4+2+8", .with = "layout=variable",
            .help = "widths of the windows in blocks, the last one repeats; by default 4"),
    ZFI_ROW(TEXT, globals, 0, NULL, .unit = "0+5:7", .with = "layout=variable|longformer",
            .help = "blocks, and ranges FIRST:END of them, that all see; by default 0"),
    ZFI_ROW(TEXT, path, 0, NULL, .unit = "FILE", .with = "layout=file", .traits = ZF_OPTION_READS,
            .help = "a row of 0 and 1 for each block"),
    ZFI_ROW(COUNT, digest, 0, "[0,4294967295]", .with = "layout=file",
            .help = "of the file, which must be the same; 0: any file"),
    {.name = NULL}};
#undef ZFI_ROW

static const zf_option zfi_attention_rows[] = {
    {.name = "attention",
     .kind = ZF_OPTION_DESC,
     .size = sizeof(zf_block_mask_desc),
     .unit = ZFI_LAYOUT_NAMES "[,NAME=VALUE,...]",
     .flag = "attention",
     .topic = "attention",
     .help = "tokens see the blocks of keys of this layout (docs/block-masks.md)",
     .rows = zfi_block_mask_rows},
    {.name = NULL}};

ZF_API const zf_option *zf_block_mask_options(void) { return zfi_attention_rows; }

ZF_API zf_status zf_block_mask_parse(char *text, zf_block_mask_desc *d, zf_error *error)
{
    zf_error unread = {ZF_OK, ""};
    if (!error) error = &unread;
    *error = (zf_error){ZF_OK, ""};
    if (!text || !d)
        return zfi_fail(error, ZF_ERR_ARGUMENT, "zf_block_mask_parse needs a text and a desc");
    return zfi_put_words(&(zf_options){.rows = zfi_block_mask_rows, .desc = d}, "block mask",
                         zfi_attention_rows->unit, text, ",", error);
}

ZF_API size_t zf_block_mask_text(const zf_block_mask_desc *d, char *text, size_t size)
{
    zf_block_mask_desc copy = d ? *d : (zf_block_mask_desc){.tokens = 0};
    return zfi_options_text(&(zf_options){.rows = zfi_block_mask_rows, .desc = &copy}, 1, ',', text,
                            size);
}

/* ------------------------------------------------------------------------------------- errors */

ZFI_FAILS(2, 3)
static zf_status zfi_mask_fail(zf_error *error, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zfi_fail(error, ZF_ERR_ARGUMENT, "block mask: %s", text);
}

/* A whole number of digits at *text, which is then after it; false: it is none, or above 2^31. */
static bool zfi_mask_number(const char **text, int64_t *number)
{
    const char *from = *text;
    *number = 0;
    for (; **text >= '0' && **text <= '9'; ++*text)
        if (*number <= INT32_MAX) *number = *number * 10 + **text - '0';
    return *text > from && *number <= INT32_MAX;
}

/* One of "4+2" (ranges false), or of "2+5:7". */
static bool zfi_mask_range(const char **text, bool ranges, zfi_block_range *range)
{
    if (!zfi_mask_number(text, &range->first)) return false;
    range->end = range->first + 1;
    if (!ranges || **text != ':') return true;
    ++*text;
    return zfi_mask_number(text, &range->end);
}

static zf_status zfi_mask_read_windows(zf_block_mask *m, const char *text, zf_error *error)
{
    const char *at = text;
    zfi_block_range range;
    for (; m->window_count < ZFI_MASK_LIST && zfi_mask_range(&at, false, &range); at++) {
        if (range.first < 1)
            return zfi_mask_fail(error, "windows=%.80s: a window has 1 block or more", text);
        m->windows[m->window_count++] = range.first;
        if (*at != '+') break;
    }
    if (m->window_count && !*at && at[-1] != '+') return ZF_OK;
    return zfi_mask_fail(error, "windows=%.80s: windows are up to %d numbers of blocks, 4+2+8",
                         text, ZFI_MASK_LIST);
}

static zf_status zfi_mask_read_globals(zf_block_mask *m, const char *text, zf_error *error)
{
    const char *at = text;
    zfi_block_range range;
    for (; m->global_count < ZFI_MASK_LIST && zfi_mask_range(&at, true, &range); at++) {
        if (range.end <= range.first)
            return zfi_mask_fail(error, "globals=%.80s: a range is FIRST:END, END after FIRST",
                                 text);
        m->globals[m->global_count++] = range;
        if (*at != '+') break;
    }
    if (m->global_count && !*at && at[-1] != '+') return ZF_OK;
    return zfi_mask_fail(error,
                         "globals=%.80s: globals are up to %d blocks and ranges of them, 0+5:7",
                         text, ZFI_MASK_LIST);
}

static zf_status zfi_mask_read_lists(zf_block_mask *m, zf_error *error)
{
    zf_status status = zfi_mask_read_windows(m, m->desc.windows ? m->desc.windows : "4", error);
    return status ? status
                  : zfi_mask_read_globals(m, m->desc.globals ? m->desc.globals : "0", error);
}

/* Checks the parameters by themselves, and fills in defaults. */
static zf_status zfi_mask_settle(zf_block_mask_desc *d, zf_error *error)
{
    const bool none = d->random == ZF_NO_BLOCKS;
    const zf_status status = zfi_settle_desc("block mask", zfi_block_mask_rows, d, error);
    if (status) return status;
    if (!d->random && !none && d->layout == ZF_LAYOUT_BIGBIRD) d->random = 1;
    if (!d->heads) d->heads = 1;
    if (!d->length) d->length = d->tokens;
    if (d->layout == ZF_LAYOUT_FILE && !d->path)
        return zfi_mask_fail(error, "the layout file needs a path");
    return ZF_OK;
}

/* The parameters fit one another. */
static zf_status zfi_mask_fit_check(const zf_block_mask_desc *d, zf_error *error)
{
    if (d->layout == ZF_LAYOUT_FIXED && d->local % d->global)
        return zfi_mask_fail(error, "local = %lld must be a multiple of global = %lld",
                             (long long)d->local, (long long)d->global);
    if (d->layout == ZF_LAYOUT_FIXED && d->patterns > d->local / d->global)
        return zfi_mask_fail(error,
                             "patterns = %lld is more than the %lld places that %lld local and "
                             "%lld global blocks have",
                             (long long)d->patterns, (long long)(d->local / d->global),
                             (long long)d->local, (long long)d->global);
    if (d->patterns > 1 && !d->per_head)
        return zfi_mask_fail(error, "patterns = %lld needs per_head", (long long)d->patterns);
    if (d->horizontal && d->causal)
        return zfi_mask_fail(error, "horizontal globals see the future, and the mask is causal");
    return ZF_OK;
}

/* They fit the number of blocks. */
static zf_status zfi_mask_size_check(const zf_block_mask *m, zf_error *error)
{
    const zf_block_mask_desc *d = &m->desc;
    const bool bigbird = d->layout == ZF_LAYOUT_BIGBIRD;
    const struct {
        const char *name;
        int64_t has;
        bool matters;
    } parts[] = {{"random", d->random, true},
                 {"width", d->width, bigbird || d->layout >= ZF_LAYOUT_LONGFORMER},
                 {"global", d->global, bigbird || d->layout == ZF_LAYOUT_FIXED}};
    for (size_t k = 0; k < ZFI_COUNT(parts) && d->layout != ZF_LAYOUT_FILE; k++)
        if (parts[k].matters && parts[k].has > m->rows)
            return zfi_mask_fail(error, "%s = %lld is more than the %lld blocks of %lld tokens",
                                 parts[k].name, (long long)parts[k].has, (long long)m->rows,
                                 (long long)d->length);
    return ZF_OK;
}

static zf_status zfi_mask_check(const zf_block_mask_desc *d, zf_error *error)
{
    if (d->length < 1 || d->length > d->block * ZFI_MASK_BLOCKS_MOST)
        return zfi_mask_fail(error, "tokens = %lld must be 1 to %lld for blocks of %lld",
                             (long long)d->length, (long long)(d->block * ZFI_MASK_BLOCKS_MOST),
                             (long long)d->block);
    if (d->tokens < 1 || d->tokens > d->length)
        return zfi_mask_fail(error,
                             "the layout is of %lld tokens (length), and the sequence has %lld",
                             (long long)d->length, (long long)d->tokens);
    if (d->heads < 1 || d->heads > ZFI_MASK_HEADS_MOST)
        return zfi_mask_fail(error, "heads = %lld must be 1 to %d", (long long)d->heads,
                             ZFI_MASK_HEADS_MOST);
    return zfi_mask_fit_check(d, error);
}

/* ------------------------------------------------------------------------------- files */

/* Takes the rows of 0 and 1 of a text: as many as blocks, with per_head as many for each head. */
static zf_status zfi_mask_take(zf_block_mask *m, const char *text, size_t bytes, zf_error *error)
{
    const char *name = zfi_path_tail(m->desc.path);
    int64_t row = 0, column = 0, line = 1;
    for (size_t i = 0; i <= bytes; i++) {
        const char c = i < bytes ? text[i] : '\n';
        if (c == '\n') {
            if (column && column != m->rows)
                return zfi_mask_fail(error,
                                     "%s:%lld has %lld columns; %lld tokens have %lld blocks", name,
                                     (long long)line, (long long)column, (long long)m->desc.length,
                                     (long long)m->rows);
            row += column != 0, column = 0, line++;
        } else if (c == '0' || c == '1') {
            if (row == m->layouts * m->rows || column == m->rows)
                return zfi_mask_fail(error, "%s:%lld is more than %lld rows of %lld columns", name,
                                     (long long)line, (long long)(m->layouts * m->rows),
                                     (long long)m->rows);
            if (c == '1')
                zfi_mask_add(m, row / m->rows, row % m->rows, row % m->rows + 1, column,
                             column + 1);
            column++;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return zfi_mask_fail(error, "%s:%lld has a character that is neither 0 nor 1", name,
                                 (long long)line);
        }
    }
    if (row == m->layouts * m->rows) return ZF_OK;
    return zfi_mask_fail(error, "%s has %lld rows; it must have %lld", name, (long long)row,
                         (long long)(m->layouts * m->rows));
}

static zf_status zfi_mask_file(zf_block_mask *m, zf_error *error)
{
    size_t bytes;
    zf_status status;
    char *text = zfi_file_load(&m->memory, m->desc.path, ZFI_MASK_FILE_LIMIT, &bytes, error);
    if (!text) return error->status;
    m->digest = (int64_t)zfi_crc32c(0, text, bytes);
    status = m->desc.digest && m->digest != m->desc.digest
                 ? zfi_mask_fail(error, "%s is another file than the one whose digest is %lld",
                                 zfi_path_tail(m->desc.path), (long long)m->desc.digest)
                 : zfi_mask_take(m, text, bytes, error);
    zfi_free(&m->memory, text, bytes + 1);
    return status;
}

/* ---------------------------------------------------------------------------- public functions */

ZF_API const char *zf_layout_name(zf_layout layout)
{
    static const char *const names[] = {"off",        "fixed",  "variable", "bigbird",
                                        "longformer", "window", "file"};
    return (unsigned)layout < ZFI_COUNT(names) ? names[layout] : "?";
}

static zf_status zfi_mask_fill(zf_block_mask *m, zf_error *error)
{
    zf_status status = zfi_mask_size_check(m, error);
    if (!status) status = zfi_mask_read_lists(m, error);
    if (status) return status;
    m->bits = zfi_calloc(&m->memory, m->bytes, 1);
    if (!m->bits) return zfi_nomem(error);
    if (m->desc.layout == ZF_LAYOUT_FILE) return zfi_mask_file(m, error);
    for (int64_t layout = 0; layout < m->layouts; layout++) zfi_layouts[m->desc.layout](m, layout);
    return ZF_OK;
}

ZF_API zf_block_mask *zf_block_mask_new(const zf_block_mask_desc *desc, zf_error *error)
{
    zf_block_mask_desc d = desc ? *desc : (zf_block_mask_desc){.tokens = 0};
    zfi_memory memory = zfi_memory_of(&d.allocator);
    zf_error unread = {ZF_OK, ""};
    zf_block_mask *m;
    if (!error) error = &unread;
    *error = (zf_error){ZF_OK, ""};
    if (zfi_mask_settle(&d, error) || zfi_mask_check(&d, error)) return NULL;
    m = zfi_calloc(&memory, 1, sizeof *m);
    if (!m) return zfi_nomem(error), NULL;
    *m = (zf_block_mask){.memory = memory, .desc = d};
    m->layouts = d.per_head ? d.heads : 1;
    m->rows = zfi_div_up(d.length, d.block), m->blocks = zfi_div_up(d.tokens, d.block);
    m->line = (size_t)zfi_div_up(m->rows, 8);
    m->bytes = (size_t)(m->layouts * m->rows) * m->line;
    if (zfi_mask_fill(m, error)) {
        zf_block_mask_free(m);
        return NULL;
    }
    m->desc.path = m->desc.windows = m->desc.globals = NULL;
    return m;
}

ZF_API void zf_block_mask_free(zf_block_mask *m)
{
    zfi_memory memory;
    if (!m) return;
    memory = m->memory;
    zfi_free(&memory, m->bits, m->bytes);
    zfi_free(&memory, m, sizeof *m);
}

ZF_API bool zf_block_mask_sees(const zf_block_mask *m, int64_t head, int64_t row, int64_t column)
{
    if (!m || head < 0 || row < 0 || column < 0 || row >= m->blocks || column >= m->blocks)
        return false;
    return zfi_mask_has(m, head % m->layouts, row, column);
}

static int64_t zfi_mask_seen(const zf_block_mask *m)
{
    int64_t seen = 0;
    for (int64_t layout = 0; layout < m->layouts; layout++)
        for (int64_t row = 0; row < m->blocks; row++)
            for (int64_t column = 0; column < m->blocks; column++)
                seen += zfi_mask_has(m, layout, row, column);
    return seen;
}

ZF_API zf_block_mask_info zf_block_mask_info_of(const zf_block_mask *m)
{
    if (!m) return (zf_block_mask_info){.block = 0};
    return (zf_block_mask_info){.tokens = m->desc.tokens,
                                .block = m->desc.block,
                                .layouts = m->layouts,
                                .blocks = m->blocks,
                                .seen = zfi_mask_seen(m),
                                .digest = m->digest,
                                .causal = m->desc.causal};
}

/* ------------------------------------------------------------------------- lists of a graph */

/* Writes, for each layout, the lists of rows, or turned, of columns. Returns where they end. */
static double *zfi_mask_lists(const zf_block_mask *m, bool turned, double *begin, double *to)
{
    const double *start = to;
    for (int64_t layout = 0; layout < m->layouts; layout++)
        for (int64_t row = 0; row <= m->blocks; row++) {
            *begin++ = (double)(to - start);
            for (int64_t k = 0; k < m->blocks && row < m->blocks; k++)
                if (zfi_mask_has(m, layout, turned ? k : row, turned ? row : k)) *to++ = (double)k;
        }
    return to;
}

ZF_API zf_tensor zf_block_mask_lists(zf_graph *g, const zf_block_mask *m)
{
    const int64_t begins = m ? m->layouts * (m->blocks + 1) : 0;
    int64_t count = 2 * (1 + begins);
    zfi_memory memory;
    zf_tensor lists;
    double *values, *to;
    if (!m || !g) return zf_fail((zf_tensor){g, 0}, "zf_block_mask_lists: there is no block mask");
    if (count <= INT32_MAX) count += 2 * zfi_mask_seen(m);
    if (count > INT32_MAX)
        return zf_fail((zf_tensor){g, 0}, "zf_block_mask_lists: 2^31 or more blocks are seen");
    memory = m->memory;
    values = zfi_calloc(&memory, (size_t)count, sizeof *values);
    if (!values) {
        zfi_graph_fail(g, ZF_ERR_NOMEM, "zf_block_mask_lists", "out of memory");
        return (zf_tensor){g, 0};
    }
    values[0] = (double)m->desc.block, values[1] = (double)m->layouts;
    to = zfi_mask_lists(m, false, values + 2, values + 2 + 2 * begins);
    zfi_mask_lists(m, true, values + 2 + begins, to);
    lists = zf_values(g, ZF_I32, ZF_SHAPE(count), values);
    zfi_free(&memory, values, (size_t)count * sizeof *values);
    return lists;
}
