/* A copy of a graph, with nodes, names and texts of its own. Node ids are the same.
 *
 *     text arena of the graph   [chunk 2][chunk 1][chunk 0]
 *     of the copy               [       one chunk         ]   pointers are adjusted
 */

/* Where the bytes of one chunk are in the copy. */
typedef struct zfi_moved_chunk {
    const char *from;
    size_t bytes;
    char *to;
} zfi_moved_chunk;

typedef struct zfi_copier {
    zf_graph *to;
    zfi_moved_chunk *chunks; /* growing array, by address */
    int32_t last;            /* the chunk of the last pointer, which the next one mostly shares */
} zfi_copier;

/* The address in the copy of text that the graph owns. Text that it does not own (names of source
 * files, "") is shared. */
static const void *zfi_copied_text(zfi_copier *c, const void *text)
{
    int32_t low = 0, high = zfi_len(c->chunks) - 1, at = c->last;
    while (text && low <= high) {
        const zfi_moved_chunk *chunk = &c->chunks[at];
        if ((uintptr_t)text < (uintptr_t)chunk->from) high = at - 1;
        else if ((uintptr_t)text - (uintptr_t)chunk->from >= chunk->bytes) low = at + 1;
        else return c->last = at, chunk->to + ((const char *)text - chunk->from);
        at = low + (high - low) / 2;
    }
    return text;
}

static int zfi_by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const zfi_moved_chunk *)a)->from,
                    y = (uintptr_t)((const zfi_moved_chunk *)b)->from;
    return x < y ? -1 : x > y;
}

static void zfi_copy_text(zfi_copier *c, const zf_graph *from)
{
    zfi_memory *memory = &c->to->memory;
    size_t bytes = 0;
    char *to;
    for (const zfi_chunk *chunk = from->text.chunks; chunk; chunk = chunk->next)
        bytes += chunk->used;
    to = zfi_text_room(memory, &c->to->text, bytes);
    for (const zfi_chunk *chunk = from->text.chunks; chunk && to; chunk = chunk->next) {
        zfi_push(memory, c->chunks,
                 ((zfi_moved_chunk){(const char *)(chunk + 1), chunk->used, to}));
        memcpy(to, chunk + 1, chunk->used);
        to += chunk->used;
    }
    if (c->chunks) qsort(c->chunks, (size_t)zfi_len(c->chunks), sizeof *c->chunks, zfi_by_address);
}

/* Copies the records of the program's own operators. */
static void zfi_copy_own(zfi_copier *c, const zf_graph *from)
{
    zf_graph *to = c->to;
    if (!from->all_records || !zfi_own_room(to, from->own_count)) return;
    for (int32_t k = 0; k < to->own_count; k++) {
        zf_operator *o = &to->own[k].op;
        *o = from->own[k].op;
        o->name = zfi_copied_text(c, o->name);
        o->attributes = zfi_copied_text(c, o->attributes);
        o->cuts = zfi_copied_text(c, o->cuts);
    }
    zfi_make_records(to, from->records);
}

static void zfi_copy_nodes(zfi_copier *c, const zf_graph *from)
{
    zf_graph *to = c->to;
    to->nodes = zfi_grow(&to->memory, NULL, sizeof *to->nodes, (size_t)zfi_len(from->nodes));
    for (int32_t id = 0; id < zfi_len(from->nodes) && !to->memory.failed; id++) {
        zfi_node node = from->nodes[id];
        const char *fields = from->records[node.op]->attributes;
        zfi_field field;
        node.args = (int32_t *)(uintptr_t)zfi_copied_text(c, node.args);
        node.name = zfi_copied_text(c, node.name);
        node.scope = zfi_copied_text(c, node.scope);
        for (int k = 0; fields && zfi_next_field(&fields, &field); k++)
            if (field.kind == 'l' || field.kind == 'v')
                node.attributes[k].list.data = zfi_copied_text(c, node.attributes[k].list.data);
        zfi_push(&to->memory, to->nodes, node);
    }
}

static int32_t *zfi_copy_ids(zfi_memory *memory, const int32_t *ids)
{
    int32_t *copy = zfi_grow(memory, NULL, sizeof *copy, (size_t)zfi_len(ids));
    for (int32_t k = 0; k < zfi_len(ids) && !memory->failed; k++) zfi_push(memory, copy, ids[k]);
    return copy;
}

ZF_API zf_graph *zf_graph_copy(const zf_graph *from)
{
    zfi_memory memory;
    zfi_copier c = {.last = 0};
    zf_graph *to;
    if (!from) return NULL;
    memory = zfi_memory_of(&from->memory.allocator);
    if (!(c.to = to = zfi_calloc(&memory, 1, sizeof *to))) return NULL;
    *to = *from;
    to->memory = memory;
    to->owners = 1, to->freed = false, to->pass = NULL;
    to->text = (zfi_text){NULL};
    to->nodes = NULL, to->order = NULL, to->params = NULL, to->names = NULL, to->scopes = NULL;
    to->streams = NULL, to->declared = NULL, to->away = NULL;
    to->own = NULL, to->own_count = 0, to->all_records = NULL;
    to->had = NULL, to->had_count = 0, to->noted = false, to->unread = NULL;
    if (from->had && (to->had = zfi_calloc(&to->memory, from->had_count, 1)))
        memcpy(to->had, from->had, to->had_count = from->had_count);
    zfi_copy_text(&c, from);
    if (!to->memory.failed) zfi_copy_own(&c, from);
    if (!to->memory.failed) zfi_copy_nodes(&c, from);
    to->scope = zfi_copied_text(&c, from->scope);
    to->shared = zfi_copied_text(&c, from->shared);
    to->training = zfi_copied_text(&c, from->training);
    to->adapter = zfi_copied_text(&c, from->adapter);
    to->order = zfi_copy_ids(&to->memory, from->order);
    to->params = zfi_copy_ids(&to->memory, from->params);
    to->declared = from->declared ? zfi_copy_ids(&to->memory, from->declared) : NULL;
    to->away = zfi_copy_ids(&to->memory, from->away);
    for (int32_t k = 0; k < zfi_len(from->streams) && !to->memory.failed; k++)
        zfi_push(&to->memory, to->streams, from->streams[k]);
    for (int32_t k = 0; k < zfi_len(from->scopes) && !to->memory.failed; k++)
        zfi_push(&to->memory, to->scopes,
                 ((zfi_scope){zfi_copied_text(&c, from->scopes[k].around),
                              zfi_copied_text(&c, from->scopes[k].around_params),
                              from->scopes[k].file, from->scopes[k].line}));
    for (int32_t k = 0; k < zfi_map_count(from->names) && !to->memory.failed; k++)
        to->names = zfi_map_put(&to->memory, to->names, zfi_copied_text(&c, from->names[k].key),
                                from->names[k].value);
    zfi_array_free(&to->memory, c.chunks);
    if (!to->memory.failed) return to;
    zf_graph_free(to);
    return NULL;
}
