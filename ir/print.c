/* The text of a graph, one node per line, generic over the table:
 *
 *     %4  = matmul %1, %2 {transpose_b=true} : f32[4,32] @4096+512
 *     %9  = param "h0.fc1.w" {init=normal b=0.02} : f32[8,32]
 *           gradient %9, %31
 *     update:
 *           adamw %9, %31, %40, %41, %7, %42 {beta1=0.9 beta2=0.999 eps=1e-08}
 *     peak 8192 %4 live=8064
 *
 * Attributes that are 0, false, the first choice or empty are not printed. Effects have no id.
 * After the type come, where they apply: the space, if it is not the device; the role, and the
 * parameter that it is of (graph/role.c); the stage of a pipeline (ir/stages.c); the value's place,
 * @offset+bytes, and its scratch, after the memory pass; the queue, if it is not compute;
 * `recompute`; `micro`, if a node of the micro section is below `update:` (overlap/early.c).
 * Where a value has copies for several micro-batches, `slots` is their number (plan/course.c).
 * The step of a training with a name begins with "training NAME" (zf_name_training), and a graph
 * whose adapter has a name (zf_lora) with "adapter NAME". Where ranks have other axes than data,
 * there is a line "mesh data=4 tensor=2", whose last axis is the fastest (base/mesh.c). Steps of
 * stages have a line "schedule: zb-v chunks=2", and the micro section has sections of its own, under
 * `forward:`, `backward:`, `weights:` and `outputs:` (ir/sections.c). After
 * zf_zero there is a line "zero stage=3 world=4 micro_batches=1", with " nodes=2" where these ranks
 * are a mesh, and " shards=2" where each of two nodes has all shards. The last line has the size of
 * the arena, the node at which the most bytes are live, and their number where it is smaller than
 * the arena. Further lines, "peak host 4096 %5", are for the other spaces that the graph uses. */

static void zfi_print_attribute(zfi_writer *w, const zfi_field *field, const zf_attribute *a)
{
    char number[ZFI_NUMBER_TEXT];
    int length = 0;
    const char *choice;
    zfi_print_bytes(w, field->name, (size_t)field->name_length), zfi_print_text(w, "=");
    switch (field->kind) {
    case 'i': zfi_print_integer(w, "", a->i); break;
    case 'f': zfi_print_text(w, zfi_double_text(number, a->f)); break;
    case 'b': zfi_print_text(w, a->i ? "true" : "false"); break;
    case 'd': zfi_print_text(w, zf_dtype_name((zf_dtype)a->i)); break;
    case 'e':
        choice = zfi_choice(field->choices, a->i, &length);
        if (choice) zfi_print_bytes(w, choice, (size_t)length);
        break;
    default:
        zfi_print_text(w, "[");
        for (int64_t i = 0; i < a->list.count; i++) {
            if (i) zfi_print_text(w, ",");
            if (field->kind == 'l')
                zfi_print_integer(w, "", ((const int64_t *)a->list.data)[i]);
            else
                zfi_print_text(w, zfi_double_text(number, ((const double *)a->list.data)[i]));
        }
        zfi_print_text(w, "]");
    }
}

static bool zfi_attribute_absent(char kind, const zf_attribute *a)
{
    if (kind == 'l' || kind == 'v') return a->list.count == 0;
    return kind == 'f' ? a->f == 0 && !signbit(a->f) : a->i == 0;
}

static int zfi_number_of(const zfi_writer *w, const zf_graph *g, int32_t id)
{
    return (int)(w->by_place ? g->nodes[id].number : id);
}

static void zfi_print_spaces(zfi_writer *w, int count)
{
    for (; count > 0; count--) zfi_print_text(w, " ");
}

/* "%12 = ", where ids have a width. */
static void zfi_print_id(zfi_writer *w, const zf_graph *g, int32_t id, int width)
{
    const size_t from = w->length + 1;
    zfi_print_integer(w, "%", zfi_number_of(w, g, id));
    zfi_print_spaces(w, width - (int)(w->length - from));
    zfi_print_text(w, " = ");
}

/* What passes have noted of a node. */
static void zfi_print_marks(zfi_writer *w, const zf_graph *g, const zfi_node *node)
{
    if (node->role) zfi_print_text(w, " role="), zfi_print_text(w, zfi_roles[node->role].text);
    if (node->of) zfi_print_integer(w, " of=%", zfi_number_of(w, g, node->of));
    if (node->stage) zfi_print_integer(w, " stage=", node->stage - 1);
    if (node->placed)
        zfi_print_integer(w, " @", node->offset), zfi_print_integer(w, "+", node->bytes);
    if (node->placed && node->slots)
        zfi_print_integer(w, " slots=", node->slots), zfi_print_integer(w, " apart=", node->apart);
    if (node->scratch_bytes)
        zfi_print_integer(w, " scratch=", node->scratch_offset),
            zfi_print_integer(w, "+", node->scratch_bytes);
    if (node->queue) zfi_print_text(w, " queue="), zfi_print_text(w, zfi_queue_names[node->queue]);
    if (node->recompute) zfi_print_text(w, " recompute");
    if (node->below) zfi_print_text(w, " micro");
}

/* `width`: the width of ids. 0 prints only the node, for messages. */
static void zfi_print_node(zfi_writer *w, const zf_graph *g, int32_t id, int width)
{
    const zfi_node *node = &g->nodes[id];
    const zfi_record *record = g->records[node->op];
    const char *fields = record->attributes, *open = " {";
    zfi_field field;

    if (!(record->traits & ZF_OP_EFFECT)) zfi_print_id(w, g, id, width);
    else if (width) zfi_print_spaces(w, width + 4);
    zfi_print_text(w, record->name);
    for (int32_t k = 0; k < node->arg_count; k++)
        zfi_print_integer(w, k ? ", %" : " %", zfi_number_of(w, g, node->args[k]));
    if (node->name) zfi_print_text(w, " \""), zfi_print_text(w, node->name), zfi_print_text(w, "\"");
    for (int k = 0; zfi_next_field(&fields, &field); k++) {
        if (zfi_attribute_absent(field.kind, &node->attributes[k])) continue;
        zfi_print_text(w, open);
        zfi_print_attribute(w, &field, &node->attributes[k]);
        open = " ";
    }
    if (open[1] == '\0') zfi_print_text(w, "}");
    if (!(record->traits & ZF_OP_EFFECT)) {
        zfi_print_text(w, " : ");
        zfi_print_type(w, node->dtype, &node->shape, &node->spread);
        if (node->space) zfi_print_text(w, " "), zfi_print_text(w, zf_space_name((zf_space)node->space));
    }
    zfi_print_marks(w, g, node);
}

static void zfi_print_graph(zfi_writer *w, const zf_graph *g)
{
    bool once = false;
    char mesh[ZFI_MESH_TEXT];
    int last = 0, section = -1, width; /* last: the largest id that is printed */
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (!zfi_has(g, g->order[i], ZF_OP_EFFECT) && zfi_number_of(w, g, g->order[i]) > last)
            last = zfi_number_of(w, g, g->order[i]);
    width = snprintf(NULL, 0, "%d", last);
    if (*g->training) zfi_print(w, "training %s\n", g->training);
    if (*g->adapter) zfi_print(w, "adapter %s\n", g->adapter);
    if (g->axes.count) zfi_print(w, "mesh %s\n", zfi_mesh_text(mesh, zfi_mesh_of(g)));
    if (g->schedule) {
        zfi_print(w, "schedule: %s", zfi_pipe_names[g->schedule - 1]);
        if (g->chunks > 1) zfi_print(w, " chunks=%d", (int)g->chunks);
        zfi_print(w, "\n");
    }
    if (g->stages & ZFI_STAGE_RANKS) {
        zfi_print(w, "zero stage=%d world=%d micro_batches=%lld", (int)g->zero, (int)g->world,
                  (long long)g->micro_batches);
        if (g->mesh_nodes > 1) zfi_print(w, " nodes=%d", (int)g->mesh_nodes);
        if (g->shards != g->world) zfi_print(w, " shards=%d", (int)g->shards);
        zfi_print(w, "\n");
    }
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        int32_t id = g->order[i];
        if (g->schedule && !zfi_runs_once(&g->nodes[id]) && g->nodes[id].task != section)
            zfi_print(w, "%s:\n", zfi_section_names[section = g->nodes[id].task]);
        if (zfi_runs_once(&g->nodes[id]) && !once) zfi_print(w, "update:\n");
        once = zfi_runs_once(&g->nodes[id]);
        zfi_print_node(w, g, id, width);
        zfi_print_text(w, "\n");
    }
    if (!(g->stages & ZFI_STAGE_PLACED)) return;
    for (int space = 0; space < ZF_SPACES; space++) {
        const zfi_peak *peak = &g->peaks[space];
        if (space && !peak->bytes) continue;
        zfi_print(w, "peak %s%s%lld %%%d", space ? zf_space_name((zf_space)space) : "",
                  space ? " " : "", (long long)peak->bytes, zfi_number_of(w, g, peak->node));
        if (peak->live != peak->bytes) zfi_print(w, " live=%lld", (long long)peak->live);
        zfi_print(w, "\n");
    }
}

ZF_API zf_status zf_graph_print(const zf_graph *g, FILE *file)
{
    zfi_writer w = zfi_writer_of(file, NULL, 0);
    if (!g || !file) return ZF_ERR_ARGUMENT;
    zfi_print_graph(&w, g);
    return w.failed ? ZF_ERR_IO : ZF_OK;
}

ZF_API size_t zf_graph_text(const zf_graph *g, char *text, size_t size)
{
    zfi_writer w = zfi_writer_of(NULL, text, text ? size : 0);
    if (!g) return 0;
    zfi_print_graph(&w, g);
    zfi_print_end(&w);
    return w.length;
}

/* Ids follow the order in which a program calls the builders, which compilers choose for nested
 * calls. So nodes are numbered by their place. */
ZF_API uint64_t zf_graph_hash(const zf_graph *g)
{
    zfi_writer w = zfi_writer_of(NULL, NULL, 0);
    w.by_place = true;
    if (g) zfi_print_graph(&w, g);
    return w.hash;
}

ZF_API bool zf_graph_node(const zf_graph *g, int32_t place, zf_node *node)
{
    const zfi_node *n;
    if (!g || !node || place < 0 || place >= zfi_len(g->order)) return false;
    n = &g->nodes[g->order[place]];
    *node = (zf_node){.id = g->order[place],
                      .op = n->op,
                      .op_name = zfi_record_of(g, g->order[place])->name,
                      .name = n->name ? n->name : "",
                      .scope = n->scope,
                      .queue = zfi_queue_names[n->queue],
                      .dtype = n->dtype,
                      .shape = n->shape,
                      .space = (zf_space)n->space,
                      .operands = n->args,
                      .operand_count = n->arg_count,
                      .effect = zfi_has(g, g->order[place], ZF_OP_EFFECT),
                      .leaf = zfi_has(g, g->order[place], ZF_OP_LEAF),
                      .collective = zfi_has(g, g->order[place], ZF_OP_COLLECTIVE),
                      .recompute = n->recompute,
                      .update = zfi_runs_once(n),
                      .stage = n->stage - 1};
    return true;
}
