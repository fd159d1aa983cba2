/* Attention over the blocks that a block mask lists (block_mask.c).
 *
 *                keys              Forward: a block of queries has one row of the mask. The keys
 *              # . . #             that it lists are gathered, up to 128 at a time, into one tile
 *     queries  # # . .    ->       of scores, so that small blocks make whole tiles too.
 *              . # # .             Backward: dQ in the same way. dK and dV of a block of keys take
 *                                  a column of the mask, whose queries are gathered.
 *
 * Where heads are enough for all threads and blocks are not small, a task takes the columns of a
 * head one after the other and adds to dQ too. Otherwise scores are computed twice, by the rows and
 * by the columns. Every sum has the order of its list, whatever the threads are. Within listed
 * blocks, what a query sees ends at the diagonal, at the edges of its window and its document, and
 * at the last token: these scores are -inf. */

/* Tokens of blocks: those of the list, in its order. */
typedef struct zfi_listed {
    const int32_t *at;
    int64_t count, block, tokens; /* blocks; tokens of a block; those that are listed */
} zfi_listed;

/* `count` blocks of a list, from number k on. The last block of all may be short. */
static zfi_listed zfi_listed_of(const zfi_attention *a, zfi_block_list list, int64_t k,
                                int64_t count)
{
    zfi_listed x = {list.at + k, zfi_min(count, list.count - k), a->block, 0};
    x.tokens = x.count * a->block;
    if (x.at[x.count - 1] == a->blocks - 1) x.tokens -= a->blocks * a->block - a->n;
    return x;
}

/* The token that is number i of them. */
static int64_t zfi_listed_token(const zfi_listed *x, int64_t i)
{
    return x->at[i / x->block] * x->block + i % x->block;
}

/* Rows of an array, row after row. */
typedef struct zfi_token_rows {
    zf_array of;
    int64_t at, row;
} zfi_token_rows;

/* The rows of the tokens of an array, where token 0 begins at element `at`: in place where the
 * blocks are neighbours, else copied to scratch. */
static zfi_token_rows zfi_gather_rows(const zfi_attention_worker *w, int part, const zf_array *x,
                                      int64_t at, int64_t row, const zfi_listed *tokens)
{
    const int64_t d = w->c->a.d;
    const size_t bytes = (size_t)d * zf_dtype_size(x->dtype);
    zfi_token_rows to = {*x, at + zfi_listed_token(tokens, 0) * row, row};
    char *out = (char *)zfi_part_of(w, part);
    if (tokens->at[tokens->count - 1] - tokens->at[0] == tokens->count - 1) return to;
    to = (zfi_token_rows){*x, 0, d};
    to.of.data = out;
    for (int64_t i = 0; i < tokens->tokens; i++, out += bytes)
        memcpy(out, zfi_array_at(x, at + zfi_listed_token(tokens, i) * row), bytes);
    return to;
}

/* A tile of scores: the queries of some blocks by the keys of others, of a head of q. */
typedef struct zfi_block_tile {
    int64_t head;
    zfi_listed queries, keys;
} zfi_block_tile;

/* Sets the bias of a row of a tile, 0 beyond its keys. */
static void zfi_block_bias(const zfi_attention_worker *w, const zfi_block_tile *b, int64_t m,
                           int64_t width, float *to)
{
    const zfi_attention *a = &w->c->a;
    const int64_t *step = a->bias_step;
    const int64_t at = b->head / a->heads * step[0] + b->head % a->heads * step[1] + m * step[2];
    for (int64_t k = 0; k < b->keys.tokens; k += a->block) {
        const int64_t n = zfi_listed_token(&b->keys, k),
                      some = zfi_min(a->block, b->keys.tokens - k);
        zfi_load_row(w->c->isa, to + k, step[3] ? some : 1, a->bias, at + n * step[3],
                     step[3] ? some : 1);
        for (int64_t i = 1; i < some && !step[3]; i++) to[k + i] = to[k];
    }
    for (int64_t k = b->keys.tokens; k < width; k++) to[k] = 0;
}

/* Sets dropout's draws of a row of a tile. */
static void zfi_block_draws(const zfi_attention_worker *w, const zfi_block_tile *b, int64_t m,
                            int64_t width, uint16_t *to)
{
    const zfi_attention *a = &w->c->a;
    const zfi_drop *d = &a->drop;
    const uint64_t at = d->element + (uint64_t)zfi_attention_drop_at(a, b->head, m);
    for (int64_t k = 0; k < b->keys.tokens; k += a->block)
        zfi_random_halves(w->c->isa, to + k, at + (uint64_t)zfi_listed_token(&b->keys, k),
                          zfi_min(a->block, b->keys.tokens - k), d->stream, d->step, d->seed);
    memset(to + b->keys.tokens, 0, (size_t)(width - b->keys.tokens) * sizeof *to);
}

/* Sets the scores of row i, query m, that it does not see, up to column `width`. */
static void zfi_block_hide(const zfi_attention_worker *w, const zfi_block_tile *b,
                           const zfi_score_rows *x, int64_t i, int64_t m, int64_t width,
                           float score)
{
    const zfi_attention *a = &w->c->a;
    const int64_t example = b->head / a->heads, first = zfi_attention_first(a, example, m),
                  end = zfi_attention_seen(a, example, m);
    const bool all = first <= 0 && end >= a->n; /* of the listed blocks */
    for (int64_t k = all ? b->keys.tokens : 0; k < b->keys.tokens; k += a->block) {
        const int64_t n = zfi_listed_token(&b->keys, k),
                      some = zfi_min(a->block, b->keys.tokens - k);
        const int64_t from = zfi_max(0, zfi_min(some, first - n));
        const int64_t until = zfi_max(from, zfi_min(some, end - n));
        zfi_hide(x, i, k, k + from, score);
        zfi_hide(x, i, k + until, k + some, score);
    }
    zfi_hide(x, i, b->keys.tokens, width, score);
}

/* As zfi_attend_block, of a tile. */
static void zfi_attend_tile(const zfi_attention_worker *w, const zfi_block_tile *b, float *s,
                            float *ds, float *most, float *sum, float *fix)
{
    const zfi_attention_cut *c = w->c;
    float *bias = zfi_part_of(w, ZFI_AT_BIAS);
    uint16_t *draw = (uint16_t *)(void *)zfi_part_of(w, ZFI_AT_DRAW);
    const int64_t width = zfi_round_up(b->keys.tokens, ZFI_SCORE_LANES);
    for (int64_t r = 0; r < b->queries.tokens; r += ZFI_SCORE_ROWS) {
        const int64_t m = zfi_listed_token(&b->queries, r);
        zfi_score_rows x = zfi_score_rows_of(w, r, zfi_min(ZFI_SCORE_ROWS, b->queries.tokens - r),
                                             width, s, ds, most, sum, fix);
        for (int64_t i = 0; i < x.rows && c->a.bias; i++)
            zfi_block_bias(w, b, m + i, width, bias + i * c->keys);
        for (int64_t i = 0; i < x.rows && c->a.drops; i++)
            zfi_block_draws(w, b, m + i, width, draw + i * c->keys);
        if (c->a.bias) x.bias = bias, x.bias_row = c->keys;
        if (c->a.drops) x.draw = draw, x.draw_row = c->keys, x.threshold = c->a.drop.threshold;
        zfi_cap_rows(w, &x);
        for (int64_t i = 0; i < x.rows; i++) zfi_block_hide(w, b, &x, i, m + i, width, -INFINITY);
        if (ds) zfi_attend_grad_rows(c->isa, &x), zfi_cap_grad_rows(w, &x);
        else zfi_attend_rows(c->isa, &x);
        for (int64_t i = 0; i < x.rows; i++) zfi_block_hide(w, b, &x, i, m + i, c->keys, 0);
        zfi_halve_rows(w, ZFI_AT_P_HALF, r, x.rows, x.s);
        if (ds) zfi_halve_rows(w, ZFI_AT_DS_HALF, r, x.rows, x.ds);
    }
}

/* The tile as a block of which every score is computed. */
static zfi_scores zfi_whole_tile(const zfi_block_tile *b)
{
    return (zfi_scores){.head = b->head,
                        .rows = b->queries.tokens,
                        .keys = b->keys.tokens,
                        .seen = INT64_MAX / 4,
                        .window = INT64_MAX / 2};
}

/* Keys or values of a tile. */
static zfi_token_rows zfi_tile_keys(const zfi_attention_worker *w, int part, const zf_array *x,
                                    int64_t at, const zfi_block_tile *b)
{
    const zfi_attention *a = &w->c->a;
    return zfi_gather_rows(w, part, x, zfi_attention_kv(a, at, b->head, 0), a->kv_row, &b->keys);
}

/* A task: one block of queries of one head. */
static void zfi_blocks_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    const zfi_attention *a = &c->a;
    const zf_array *lse = zfi_saved_out(c->launch, 0), *out = &c->launch->out;
    zfi_attention_worker w = zfi_attention_worker_of(c, worker);
    const int64_t head = index / a->blocks, hidden = a->heads * a->d;
    const int32_t own = (int32_t)(index % a->blocks);
    const int64_t m = own * a->block, out_at = zfi_attention_at(a, head, a->m, m, hidden);
    const zfi_block_list list = zfi_attention_list(a, head, own, false);
    zfi_block_tile b = {head, zfi_listed_of(a, (zfi_block_list){&own, 1}, 0, 1), {.at = NULL}};
    const int64_t rows = b.queries.tokens;
    float *s = zfi_part_of(&w, ZFI_AT_S), *y = zfi_part_of(&w, ZFI_AT_Y);
    float *most = zfi_part_of(&w, ZFI_AT_MOST), *sum = zfi_part_of(&w, ZFI_AT_SUM);
    float *fix = zfi_part_of(&w, ZFI_AT_FIX);
    zfi_left q = zfi_left_of(&w, ZFI_AT_Q, a->q,
                             a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row, rows);
    for (int64_t i = 0; i < rows; i++) most[i] = -INFINITY, sum[i] = 0;
    for (int64_t k = 0; k < list.count; k += c->keys / a->block) {
        zfi_token_rows x;
        zfi_scores whole;
        b.keys = zfi_listed_of(a, list, k, c->keys / a->block), whole = zfi_whole_tile(&b);
        x = zfi_tile_keys(&w, ZFI_AT_TOKENS, a->k, a->k_at, &b);
        zfi_score_product(&w, &whole, s, q,
                          zfi_turned_of(&w, ZFI_AT_KT, &x.of, x.at, x.row, whole.keys));
        zfi_attend_tile(&w, &b, s, NULL, most, sum, fix);
        if (k) zfi_scale_rows(c->isa, y, c->width, y, c->width, rows, c->width, fix, 1);
        x = zfi_tile_keys(&w, ZFI_AT_TOKENS, a->v, a->v_at, &b);
        zfi_keys_product(&w, &whole, y, c->width, s, ZFI_AT_P_HALF,
                         zfi_right_of(&w, ZFI_AT_K_RIGHT, &x.of, x.at, x.row, whole.keys), k > 0);
    }
    zfi_attention_finish(&w, out, out_at, rows, lse, head * a->m + m);
}

/* ------------------------------------------------------------------------------- gradients */

/* The scores of a tile and what they add to gradients: P in s, dS in ds. kt, vt: its keys. */
static void zfi_block_grad_scores(zfi_attention_worker *w, const zfi_block_tile *b, zfi_left q,
                                  zfi_left dy, zfi_right kt, zfi_right vt)
{
    const zfi_scores whole = zfi_whole_tile(b);
    float *s = zfi_part_of(w, ZFI_AT_S), *ds = zfi_part_of(w, ZFI_AT_DS);
    zfi_score_product(w, &whole, s, q, kt);
    zfi_score_product(w, &whole, ds, dy, vt);
    zfi_attend_tile(w, b, s, ds, zfi_part_of(w, ZFI_AT_MOST), zfi_part_of(w, ZFI_AT_SUM), NULL);
}

/* lse and D of the queries of a tile. */
static void zfi_tile_row_sums(const zfi_attention_worker *w, const zfi_block_tile *b)
{
    const int64_t block = b->queries.block;
    for (int64_t r = 0; r < b->queries.tokens; r += block)
        zfi_row_sums(w, b->head, zfi_listed_token(&b->queries, r),
                     zfi_min(block, b->queries.tokens - r), zfi_part_of(w, ZFI_AT_MOST) + r,
                     zfi_part_of(w, ZFI_AT_SUM) + r);
}

static void zfi_zero_rows(const zfi_gradient_rows *x, int64_t rows, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) memset(x->at + r * x->row, 0, (size_t)d * sizeof *x->at);
}

/* What a tile of gradients of scores adds to dQ: block after block of keys, as a task for all
 * gradients does, unless blocks are too small for such tasks. */
static void zfi_tile_add_queries(zfi_attention_worker *w, const zfi_block_tile *b,
                                 zfi_token_rows keys, zfi_gradient_rows dq, bool add)
{
    const zfi_attention *a = &w->c->a;
    const int64_t step = a->block < ZFI_BLOCK_TOGETHER ? b->keys.tokens : a->block;
    zfi_scores some = zfi_whole_tile(b);
    for (int64_t k = 0; k < b->keys.tokens; k += step) {
        some.column = k, some.keys = zfi_min(step, b->keys.tokens - k);
        zfi_keys_product(
            w, &some, dq.at, dq.row, zfi_part_of(w, ZFI_AT_DS), ZFI_AT_DS_HALF,
            zfi_right_of(w, ZFI_AT_K_RIGHT, &keys.of, keys.at + k * keys.row, keys.row, some.keys),
            add || k > 0);
    }
}

/* dQ of one block of queries of a head. */
static void zfi_block_grad_queries(zfi_attention_worker *w, int64_t head, int32_t own)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0];
    const zfi_attention_out to = c->to;
    const zfi_block_list list = zfi_attention_list(a, head, own, false);
    const int64_t m = own * a->block, hidden = a->heads * a->d;
    const int64_t dq_at = to.q_at + zfi_attention_at(a, head, a->m, m, to.row);
    const zfi_gradient_rows dq = zfi_gradient_rows_of(w, ZFI_AT_Y, &to.q, dq_at, to.row);
    zfi_block_tile b = {head, zfi_listed_of(a, (zfi_block_list){&own, 1}, 0, 1), {.at = NULL}};
    const int64_t rows = b.queries.tokens;
    const zfi_left q = zfi_left_of(
        w, ZFI_AT_Q, a->q, a->q_at + zfi_attention_at(a, head, a->m, m, a->row), a->row, rows);
    const zfi_left of_dy =
        zfi_left_of(w, ZFI_AT_DY, dy, zfi_attention_at(a, head, a->m, m, hidden), hidden, rows);
    zfi_tile_row_sums(w, &b);
    for (int64_t k = 0; k < list.count; k += c->keys / a->block) {
        zfi_token_rows keys, v;
        zfi_scores whole;
        b.keys = zfi_listed_of(a, list, k, c->keys / a->block), whole = zfi_whole_tile(&b);
        keys = zfi_tile_keys(w, ZFI_AT_TOKENS, a->k, a->k_at, &b);
        v = zfi_tile_keys(w, ZFI_AT_MORE_TOKENS, a->v, a->v_at, &b);
        zfi_block_grad_scores(w, &b, q, of_dy,
                              zfi_turned_of(w, ZFI_AT_KT, &keys.of, keys.at, keys.row, whole.keys),
                              zfi_turned_of(w, ZFI_AT_VT, &v.of, v.at, v.row, whole.keys));
        zfi_tile_add_queries(w, &b, keys, dq, k > 0);
    }
    if (!list.count) zfi_zero_rows(&dq, rows, a->d);
    zfi_gradient_done(w, &dq, &to.q, dq_at, to.row, rows);
}

/* dQ of all queries of the heads of q from h0 on, where a task computes all gradients. */
static zfi_gradient_rows zfi_block_dq(const zfi_attention_worker *w, int64_t h0, int64_t h,
                                      int64_t m)
{
    return zfi_dq_of(w, &(zfi_attention_range){.h0 = h0}, h, m, 0, w->c->a.m);
}

/* What a tile of one block of keys adds to dQ of its blocks of queries, whose first block of keys
 * sets it. */
static void zfi_column_add_queries(zfi_attention_worker *w, const zfi_block_tile *b,
                                   const zfi_attention_keys *of, int64_t h0)
{
    const zfi_attention *a = &w->c->a;
    zfi_scores some = zfi_whole_tile(b);
    for (int64_t k = 0; k < b->queries.count; k++) {
        const int32_t own = b->queries.at[k];
        const zfi_gradient_rows dq = zfi_block_dq(w, h0, b->head, own * a->block);
        some.row = k * a->block, some.rows = zfi_min(a->block, b->queries.tokens - some.row);
        zfi_keys_product(w, &some, dq.at, dq.row, zfi_part_of(w, ZFI_AT_DS), ZFI_AT_DS_HALF, of->k,
                         zfi_attention_list(a, b->head, own, false).at[0] != b->keys.at[0]);
    }
}

/* What the blocks of queries that head `head` lists for a block of keys add to dK and dV, and, if
 * tasks are not apart, to dQ. h0: the first of the heads that read these keys. */
static void zfi_block_grad_column(zfi_attention_worker *w, zfi_block_tile *b, zfi_block_list list,
                                  zfi_attention_keys *of, int64_t h0)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zf_array *dy = &c->launch->args[0];
    const int64_t hidden = a->heads * a->d, dy_at = zfi_attention_at(a, b->head, a->m, 0, hidden),
                  q_at = a->q_at + zfi_attention_at(a, b->head, a->m, 0, a->row);
    for (int64_t k = 0; k < list.count; k += c->queries / a->block) {
        zfi_token_rows q, of_dy;
        zfi_scores whole;
        int64_t rows;
        b->queries = zfi_listed_of(a, list, k, c->queries / a->block);
        whole = zfi_whole_tile(b), rows = whole.rows;
        q = zfi_gather_rows(w, ZFI_AT_TOKENS, a->q, q_at, a->row, &b->queries);
        of_dy = zfi_gather_rows(w, ZFI_AT_MORE_TOKENS, dy, dy_at, hidden, &b->queries);
        zfi_tile_row_sums(w, b);
        zfi_block_grad_scores(w, b, zfi_left_of(w, ZFI_AT_Q, &q.of, q.at, q.row, rows),
                              zfi_left_of(w, ZFI_AT_DY, &of_dy.of, of_dy.at, of_dy.row, rows),
                              of->kt, of->vt);
        zfi_queries_product(
            w, &whole, of->dv.at, of->dv.row, zfi_part_of(w, ZFI_AT_S), ZFI_AT_P_HALF,
            zfi_right_of(w, ZFI_AT_DY_RIGHT, &of_dy.of, of_dy.at, of_dy.row, rows), of->add);
        zfi_queries_product(w, &whole, of->dk.at, of->dk.row, zfi_part_of(w, ZFI_AT_DS),
                            ZFI_AT_DS_HALF,
                            zfi_right_of(w, ZFI_AT_Q_RIGHT, &q.of, q.at, q.row, rows), of->add);
        of->add = true;
        if (!c->apart) zfi_column_add_queries(w, b, of, h0);
    }
}

/* dK and dV of one block of keys, of the heads of q from h on that read it. */
static void zfi_block_grad_keys(zfi_attention_worker *w, int64_t h, int32_t own)
{
    const zfi_attention_cut *c = w->c;
    const zfi_attention *a = &c->a;
    const zfi_attention_out to = c->to;
    const int64_t n = own * a->block;
    const int64_t dk_at = zfi_gradient_at(a, &to, to.k_at, h, n),
                  dv_at = zfi_gradient_at(a, &to, to.v_at, h, n);
    zfi_block_tile b = {.head = h, .keys = zfi_listed_of(a, (zfi_block_list){&own, 1}, 0, 1)};
    zfi_attention_keys of = {.n = n, .keys = b.keys.tokens};
    of.kt =
        zfi_turned_of(w, ZFI_AT_KT, a->k, zfi_attention_kv(a, a->k_at, h, n), a->kv_row, of.keys);
    of.vt =
        zfi_turned_of(w, ZFI_AT_VT, a->v, zfi_attention_kv(a, a->v_at, h, n), a->kv_row, of.keys);
    if (!c->apart)
        of.k = zfi_right_of(w, ZFI_AT_K_RIGHT, a->k, zfi_attention_kv(a, a->k_at, h, n), a->kv_row,
                            of.keys);
    of.dk = zfi_gradient_rows_of(w, ZFI_AT_DK, &to.k, dk_at, to.kv_row);
    of.dv = zfi_gradient_rows_of(w, ZFI_AT_DV, &to.v, dv_at, to.kv_row);
    for (b.head = h; b.head < h + a->group; b.head++)
        zfi_block_grad_column(w, &b, zfi_attention_list(a, b.head, own, true), &of, h);
    if (!of.add) zfi_zero_rows(&of.dk, of.keys, a->d), zfi_zero_rows(&of.dv, of.keys, a->d);
    zfi_gradient_done(w, &of.dk, &to.k, dk_at, to.kv_row, of.keys);
    zfi_gradient_done(w, &of.dv, &to.v, dv_at, to.kv_row, of.keys);
}

/* All gradients of the heads of q from h on that read one head of k and v. */
static void zfi_block_grad_all(zfi_attention_worker *w, int64_t h)
{
    const zfi_attention *a = &w->c->a;
    const zfi_attention_out to = w->c->to;
    for (int64_t i = h; i < h + a->group; i++)
        for (int64_t own = 0; own < a->blocks; own++) {
            const int64_t m = own * a->block;
            const zfi_gradient_rows dq = zfi_block_dq(w, h, i, m);
            if (!zfi_attention_list(a, i, own, false).count)
                zfi_zero_rows(&dq, zfi_min(a->block, a->m - m), a->d);
        }
    for (int64_t own = 0; own < a->blocks; own++) zfi_block_grad_keys(w, h, (int32_t)own);
    for (int64_t i = h; i < h + a->group; i++) {
        const zfi_gradient_rows dq = zfi_block_dq(w, h, i, 0);
        zfi_gradient_done(w, &dq, &to.q, to.q_at + zfi_attention_at(a, i, a->m, 0, to.row), to.row,
                          a->m);
    }
}

/* A task: all gradients of a head of k and v. Apart, dK and dV of one block of keys, or dQ of one
 * block of queries of a head. */
static void zfi_blocks_grad_task(void *context, int64_t index, int worker)
{
    const zfi_attention_cut *c = context;
    const int64_t blocks = c->a.blocks, group = c->a.group, parts = zfi_attention_grad_parts(c);
    const int64_t h = index / parts * group, part = index % parts;
    zfi_attention_cut narrow = *c; /* rows of scores are no longer than a block of keys needs */
    zfi_attention_worker w;
    if (part < blocks) narrow.keys = zfi_round_up(c->a.block, ZFI_SCORE_LANES);
    w = zfi_attention_worker_of(&narrow, worker);
    if (!c->apart) zfi_block_grad_all(&w, h);
    else if (part < blocks) zfi_block_grad_keys(&w, h, (int32_t)part);
    else
        zfi_block_grad_queries(&w, h + (part - blocks) / blocks,
                               (int32_t)((part - blocks) % blocks));
}
