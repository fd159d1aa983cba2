/* Block masks: which blocks of keys each block of queries sees, for all heads or each of them.
 *
 *     #...      fixed, local 2, causal: within windows of `local` blocks, and the last `global`
 *     ##..      blocks of each window are seen from everywhere
 *     .##.
 *     .###
 *
 * A mask is bits on the host. A graph has it as a constant i32, its lists, which attention takes as
 * an operand (ops/attention_blocks.c). With H layouts of R rows of blocks and E blocks that are seen:
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
    ZFI_MASK_BLOCK = 16, /* the default, and the least */
    ZFI_MASK_BLOCK_MOST = 128,
    ZFI_MASK_BLOCKS_MOST = 1 << 14, /* of a side */
    ZFI_MASK_HEADS_MOST = 1 << 16
};
static const size_t ZFI_MASK_FILE_LIMIT = (size_t)1 << 30;

struct zf_block_mask {
    zfi_memory memory;
    zf_block_mask_desc desc; /* with its defaults filled in */
    int64_t layouts, rows;   /* of blocks */
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
    const uint64_t word = (uint64_t)zfi_random_word(at, 0, 0, m->desc.seed) << 32 |
                          zfi_random_word(at + 1, 0, 0, m->desc.seed);
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
    for (int32_t k = 0; k < m->desc.global_count; k++)
        if (m->desc.globals[k].first < m->rows)
            zfi_mask_global(m, layout, m->desc.globals[k].first, m->desc.globals[k].end, see);
}

static void zfi_mask_variable(zf_block_mask *m, int64_t layout)
{
    int64_t at = 0;
    zfi_mask_random(m, layout);
    for (int32_t k = 0; at < m->rows; k++) {
        const int64_t width = m->desc.windows[zfi_min(k, m->desc.window_count - 1)];
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

/* What the parameters of a layout are: bits of zfi_mask_uses. */
enum {
    ZFI_MASK_LOCAL = 1,
    ZFI_MASK_GLOBAL = 2,
    ZFI_MASK_PATTERNS = 4,
    ZFI_MASK_HORIZONTAL = 8,
    ZFI_MASK_RANDOM = 16,
    ZFI_MASK_WIDTH = 32,
    ZFI_MASK_WINDOWS = 64,
    ZFI_MASK_GLOBALS = 128,
    ZFI_MASK_SEED = 256,
    ZFI_MASK_PATH = 512,
    ZFI_MASK_HEADS = 1024
};

static const struct {
    const char *name;
    int uses;
    void (*fill)(zf_block_mask *, int64_t layout);
} zfi_layouts[] = {
    [ZF_LAYOUT_FIXED] = {"fixed",
                         ZFI_MASK_LOCAL | ZFI_MASK_GLOBAL | ZFI_MASK_PATTERNS |
                             ZFI_MASK_HORIZONTAL | ZFI_MASK_HEADS,
                         zfi_mask_fixed},
    [ZF_LAYOUT_VARIABLE] = {"variable",
                            ZFI_MASK_RANDOM | ZFI_MASK_SEED | ZFI_MASK_WINDOWS | ZFI_MASK_GLOBALS |
                                ZFI_MASK_HORIZONTAL | ZFI_MASK_HEADS,
                            zfi_mask_variable},
    [ZF_LAYOUT_BIGBIRD] = {"bigbird",
                           ZFI_MASK_RANDOM | ZFI_MASK_SEED | ZFI_MASK_WIDTH | ZFI_MASK_GLOBAL |
                               ZFI_MASK_HEADS,
                           zfi_mask_bigbird},
    [ZF_LAYOUT_LONGFORMER] = {"longformer", ZFI_MASK_WIDTH | ZFI_MASK_GLOBALS, zfi_mask_longformer},
    [ZF_LAYOUT_WINDOW] = {"window", ZFI_MASK_WIDTH, zfi_mask_sliding},
    [ZF_LAYOUT_FILE] = {"file", ZFI_MASK_PATH | ZFI_MASK_HEADS, NULL},
};

/* --------------------------------------------------------------------- parameters and errors */

/* How a parameter is written, `key=value`, and which member of the desc it is; `flag`: without a
 * value. */
static const struct {
    const char *key;
    int use; /* 0: all layouts have it */
    size_t at;
    bool flag;
} zfi_mask_keys[] = {
    {"block", 0, offsetof(zf_block_mask_desc, block), false},
    {"local", ZFI_MASK_LOCAL, offsetof(zf_block_mask_desc, local), false},
    {"global", ZFI_MASK_GLOBAL, offsetof(zf_block_mask_desc, global), false},
    {"patterns", ZFI_MASK_PATTERNS, offsetof(zf_block_mask_desc, patterns), false},
    {"random", ZFI_MASK_RANDOM, offsetof(zf_block_mask_desc, random), false},
    {"width", ZFI_MASK_WIDTH, offsetof(zf_block_mask_desc, width), false},
    {"seed", ZFI_MASK_SEED, offsetof(zf_block_mask_desc, seed), false},
    {"horizontal", ZFI_MASK_HORIZONTAL, offsetof(zf_block_mask_desc, horizontal), true},
    {"per_head", ZFI_MASK_HEADS, offsetof(zf_block_mask_desc, per_head), true},
    {"windows", ZFI_MASK_WINDOWS, 0, false},
    {"globals", ZFI_MASK_GLOBALS, 0, false},
    {"path", ZFI_MASK_PATH, 0, false},
};

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

static const void *zfi_mask_member(const zf_block_mask_desc *d, int k)
{
    return (const char *)d + zfi_mask_keys[k].at;
}

/* The parameter is not 0. */
static bool zfi_mask_given(const zf_block_mask_desc *d, int k)
{
    switch (zfi_mask_keys[k].use) {
    case ZFI_MASK_WINDOWS: return d->window_count != 0;
    case ZFI_MASK_GLOBALS: return d->global_count != 0;
    case ZFI_MASK_PATH: return d->path != NULL;
    default: break;
    }
    if (zfi_mask_keys[k].flag) return *(const bool *)zfi_mask_member(d, k);
    return *(const int64_t *)zfi_mask_member(d, k) != 0;
}

static zf_status zfi_mask_lists_check(const zf_block_mask_desc *d, zf_error *error)
{
    if (d->window_count < 0 || d->window_count > ZF_BLOCK_LIST || d->global_count < 0 ||
        d->global_count > ZF_BLOCK_LIST)
        return zfi_mask_fail(error, "there are 0 to %d windows and 0 to %d globals, not %d and %d",
                             ZF_BLOCK_LIST, ZF_BLOCK_LIST, (int)d->window_count,
                             (int)d->global_count);
    for (int32_t k = 0; k < d->window_count; k++)
        if (d->windows[k] < 1)
            return zfi_mask_fail(error, "a window has 1 block or more, not %lld",
                                 (long long)d->windows[k]);
    for (int32_t k = 0; k < d->global_count; k++)
        if (d->globals[k].first < 0 || d->globals[k].end <= d->globals[k].first)
            return zfi_mask_fail(error,
                                 "global blocks %lld:%lld are no range: START:END, END after START",
                                 (long long)d->globals[k].first, (long long)d->globals[k].end);
    return ZF_OK;
}

static zf_status zfi_mask_numbers_check(const zf_block_mask_desc *d, zf_error *error)
{
    const int64_t numbers[] = {d->local, d->global, d->patterns, d->width};
    for (size_t k = 0; k < ZFI_COUNT(numbers); k++)
        if (numbers[k] < 0)
            return zfi_mask_fail(error, "local, global, patterns and width must not be negative");
    if (d->random < ZF_NO_BLOCKS)
        return zfi_mask_fail(error, "random must not be negative, unless it is ZF_NO_BLOCKS");
    if ((unsigned)d->layout >= ZFI_COUNT(zfi_layouts))
        return zfi_mask_fail(error, "layout %d is none of zf_layout", (int)d->layout);
    for (int k = 0; k < (int)ZFI_COUNT(zfi_mask_keys); k++)
        if (zfi_mask_keys[k].use && !(zfi_layouts[d->layout].uses & zfi_mask_keys[k].use) &&
            zfi_mask_given(d, k))
            return zfi_mask_fail(error, "the layout %s has no parameter %s",
                                 zfi_layouts[d->layout].name, zfi_mask_keys[k].key);
    if (d->layout == ZF_LAYOUT_FILE && !d->path)
        return zfi_mask_fail(error, "the layout file needs a path");
    return zfi_mask_lists_check(d, error);
}

static void zfi_mask_defaults(zf_block_mask_desc *d)
{
    if (!d->block) d->block = ZFI_MASK_BLOCK;
    if (!d->heads) d->heads = 1;
    if (!d->local) d->local = 4;
    if (!d->global) d->global = 1;
    if (!d->patterns) d->patterns = 1;
    if (!d->width) d->width = 3;
    if (!d->random) d->random = d->layout == ZF_LAYOUT_BIGBIRD ? 1 : 0;
    if (d->random == ZF_NO_BLOCKS) d->random = 0;
    if (!d->window_count) d->windows[d->window_count++] = 4;
    if (!d->global_count) d->globals[d->global_count++] = (zf_block_range){0, 1};
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
    const int uses = zfi_layouts[d->layout].uses;
    const struct {
        const char *name;
        int64_t has;
        bool matters;
    } parts[] = {{"random", d->random, uses & ZFI_MASK_RANDOM},
                 {"width", d->width, uses & ZFI_MASK_WIDTH},
                 {"global", d->global, uses & ZFI_MASK_GLOBAL}};
    for (size_t k = 0; k < ZFI_COUNT(parts); k++)
        if (parts[k].matters && parts[k].has > m->rows)
            return zfi_mask_fail(error, "%s = %lld is more than the %lld blocks of %lld tokens",
                                 parts[k].name, (long long)parts[k].has, (long long)m->rows,
                                 (long long)d->tokens);
    return ZF_OK;
}

static zf_status zfi_mask_check(const zf_block_mask_desc *d, zf_error *error)
{
    if (d->block != 16 && d->block != 32 && d->block != 64 && d->block != 128)
        return zfi_mask_fail(error, "block = %lld must be 16, 32, 64 or 128", (long long)d->block);
    if (d->tokens < 1 || d->tokens > d->block * ZFI_MASK_BLOCKS_MOST)
        return zfi_mask_fail(error, "tokens = %lld must be 1 to %lld for blocks of %lld",
                             (long long)d->tokens, (long long)(d->block * ZFI_MASK_BLOCKS_MOST),
                             (long long)d->block);
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
                                     (long long)line, (long long)column, (long long)m->desc.tokens,
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
    status = zfi_mask_take(m, text, bytes, error);
    zfi_free(&m->memory, text, bytes + 1);
    return status;
}

/* ---------------------------------------------------------------------------- public functions */

ZF_API const char *zf_layout_name(zf_layout layout)
{
    return (unsigned)layout < ZFI_COUNT(zfi_layouts) ? zfi_layouts[layout].name : "?";
}

static zf_status zfi_mask_fill(zf_block_mask *m, zf_error *error)
{
    zf_status status = zfi_mask_size_check(m, error);
    if (status) return status;
    m->bits = zfi_calloc(&m->memory, m->bytes, 1);
    if (!m->bits) return zfi_nomem(error);
    if (m->desc.layout == ZF_LAYOUT_FILE) return zfi_mask_file(m, error);
    for (int64_t layout = 0; layout < m->layouts; layout++)
        zfi_layouts[m->desc.layout].fill(m, layout);
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
    if (zfi_mask_numbers_check(&d, error)) return NULL;
    zfi_mask_defaults(&d);
    if (zfi_mask_check(&d, error)) return NULL;
    m = zfi_calloc(&memory, 1, sizeof *m);
    if (!m) return zfi_nomem(error), NULL;
    *m = (zf_block_mask){.memory = memory, .desc = d};
    m->layouts = d.per_head ? d.heads : 1;
    m->rows = zfi_div_up(d.tokens, d.block);
    m->line = (size_t)zfi_div_up(m->rows, 8);
    m->bytes = (size_t)(m->layouts * m->rows) * m->line;
    if (zfi_mask_fill(m, error)) {
        zf_block_mask_free(m);
        return NULL;
    }
    m->desc.path = NULL;
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
    if (!m || head < 0 || row < 0 || column < 0 || row >= m->rows || column >= m->rows)
        return false;
    return zfi_mask_has(m, head % m->layouts, row, column);
}

static int64_t zfi_mask_seen(const zf_block_mask *m)
{
    int64_t seen = 0;
    for (size_t i = 0; i < m->bytes; i++)
        for (unsigned char byte = m->bits[i]; byte; byte &= (unsigned char)(byte - 1)) seen++;
    return seen;
}

ZF_API zf_block_mask_info zf_block_mask_info_of(const zf_block_mask *m)
{
    if (!m) return (zf_block_mask_info){.block = 0};
    return (zf_block_mask_info){.tokens = m->desc.tokens,
                                .block = m->desc.block,
                                .layouts = m->layouts,
                                .blocks = m->rows,
                                .seen = zfi_mask_seen(m),
                                .causal = m->desc.causal};
}

/* ----------------------------------------------------------------------- parameters as text */

/* A whole number of `length` characters at `text`; false: it is none, or negative. */
static bool zfi_mask_number(const char *text, size_t length, int64_t *number)
{
    *number = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || *number > (INT64_MAX - 9) / 10) return false;
        *number = *number * 10 + text[i] - '0';
    }
    return length > 0;
}

/* "2+5:7" of globals, "4+2" of windows. */
static bool zfi_mask_list(zf_block_mask_desc *d, bool globals, const char *text, size_t length)
{
    int32_t *count = globals ? &d->global_count : &d->window_count;
    for (size_t at = 0; at <= length;) {
        size_t end = at, colon;
        int64_t first, stop;
        while (end < length && text[end] != '+') end++;
        for (colon = at; colon < end && text[colon] != ':';) colon++;
        if (*count == ZF_BLOCK_LIST || (colon < end && !globals) ||
            !zfi_mask_number(text + at, colon - at, &first))
            return false;
        stop = first + 1;
        if (colon < end && !zfi_mask_number(text + colon + 1, end - colon - 1, &stop)) return false;
        if (globals) d->globals[*count] = (zf_block_range){first, stop};
        else d->windows[*count] = first;
        ++*count;
        at = end + 1;
    }
    return true;
}

static zf_status zfi_mask_value(zf_block_mask_desc *d, int k, const char *value, size_t length,
                                zf_error *error)
{
    const int use = zfi_mask_keys[k].use;
    int64_t number;
    bool good;
    if (use == ZFI_MASK_PATH) return d->path = value, ZF_OK;
    if (use == ZFI_MASK_WINDOWS || use == ZFI_MASK_GLOBALS) {
        good = zfi_mask_list(d, use == ZFI_MASK_GLOBALS, value, length);
    } else {
        good = zfi_mask_number(value, length, &number);
        if (good && use == ZFI_MASK_RANDOM && !number) number = ZF_NO_BLOCKS;
        if (good) *(int64_t *)((char *)d + zfi_mask_keys[k].at) = number;
    }
    if (good) return ZF_OK;
    return zfi_mask_fail(error, "%s=%.*s: %s", zfi_mask_keys[k].key,
                         (int)zfi_min((int64_t)length, 80), value,
                         use == ZFI_MASK_WINDOWS   ? "windows are numbers of blocks, 4+2+8"
                         : use == ZFI_MASK_GLOBALS ? "globals are blocks and ranges of them, 0+5:7"
                                                   : "it must be a whole number");
}

/* One parameter, `length` characters. */
static zf_status zfi_mask_parameter(zf_block_mask_desc *d, const char *text, size_t length,
                                    zf_error *error)
{
    const char *equals = memchr(text, '=', length);
    const size_t name = equals ? (size_t)(equals - text) : length;
    for (int k = 0; k < (int)ZFI_COUNT(zfi_mask_keys); k++) {
        if (strlen(zfi_mask_keys[k].key) != name || memcmp(zfi_mask_keys[k].key, text, name))
            continue;
        if (zfi_mask_keys[k].use && !(zfi_layouts[d->layout].uses & zfi_mask_keys[k].use))
            return zfi_mask_fail(error, "the layout %s has no parameter %s",
                                 zfi_layouts[d->layout].name, zfi_mask_keys[k].key);
        if (zfi_mask_keys[k].flag && !equals)
            return *(bool *)((char *)d + zfi_mask_keys[k].at) = true, ZF_OK;
        if (!zfi_mask_keys[k].flag && equals)
            return zfi_mask_value(d, k, equals + 1, length - name - 1, error);
        return zfi_mask_fail(error, "%s is written %s", zfi_mask_keys[k].key,
                             equals ? "without a value" : "with one, as in block=16");
    }
    return zfi_mask_fail(error, "%.*s is no parameter of a layout", (int)zfi_min((int64_t)name, 80),
                         text);
}

ZF_API zf_status zf_block_mask_parse(const char *text, zf_block_mask_desc *d, zf_error *error)
{
    zf_error unread = {ZF_OK, ""};
    size_t length = text ? strcspn(text, ",") : 0;
    int layout = 0, layouts = (int)ZFI_COUNT(zfi_layouts);
    if (!error) error = &unread;
    *error = (zf_error){ZF_OK, ""};
    if (!text || !d) return zfi_mask_fail(error, "zf_block_mask_parse needs a text and a desc");
    while (layout < layouts && (strlen(zfi_layouts[layout].name) != length ||
                                memcmp(zfi_layouts[layout].name, text, length)))
        layout++;
    if (layout == layouts)
        return zfi_mask_fail(error,
                             "%.*s is no layout: fixed, variable, bigbird, longformer, window, "
                             "file",
                             (int)zfi_min((int64_t)length, 80), text);
    d->layout = (zf_layout)layout;
    for (text += length; *text; text += length) {
        text++; /* the comma */
        length = !strncmp(text, "path=", 5) ? strlen(text) : strcspn(text, ",");
        if (zfi_mask_parameter(d, text, length, error)) return error->status;
    }
    return ZF_OK;
}

/* ------------------------------------------------------------------------- lists of a graph */

/* Writes, for each layout, the lists of rows, or turned, of columns. Returns where they end. */
static double *zfi_mask_lists(const zf_block_mask *m, bool turned, double *begin, double *to)
{
    const double *start = to;
    for (int64_t layout = 0; layout < m->layouts; layout++)
        for (int64_t row = 0; row <= m->rows; row++) {
            *begin++ = (double)(to - start);
            for (int64_t k = 0; k < m->rows && row < m->rows; k++)
                if (zfi_mask_has(m, layout, turned ? k : row, turned ? row : k)) *to++ = (double)k;
        }
    return to;
}

ZF_API zf_tensor zf_block_mask_lists(zf_graph *g, const zf_block_mask *m)
{
    const int64_t begins = m ? m->layouts * (m->rows + 1) : 0;
    const int64_t count = m ? 2 * (1 + begins + zfi_mask_seen(m)) : 0;
    zfi_memory memory;
    zf_tensor lists;
    double *values, *to;
    if (!m || !g) return zf_fail((zf_tensor){g, 0}, "zf_block_mask_lists: there is no block mask");
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
