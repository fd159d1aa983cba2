/* lora: freezes the parameters that are there, except those that are kept, and puts trained
 * products of low rank added to products with them, and to rows of tables (Hu et al. 2021).
 *
 * requires: the forward graph, before zf_fuse, which joins weights
 * ensures:  each module that a target names has two trained parameters, lora_A.weight [rank, in] and
 *           lora_B.weight [out, rank]; lora_B begins as zeros, so that results are what they were;
 *           all other parameters are frozen, except those that `keep` names. The sum has the id of
 *           the product (or of the bias added to it), so that its readers do not change. With a
 *           name, these parameters have it in theirs; they and the kept ones have the role adapter
 * before:   %2 = param "q.weight" : f32[8,16]   %3 = linear %1, %2 : f32[4,8]
 * after:    %2 = param "q.weight" {frozen=true} : f32[8,16]
 *           %4 = linear %1, %2 : f32[4,8]
 *           %5 = param "q.lora_A.weight" {init=uniform a=-0.25 b=0.25} : f32[2,16] role=adapter
 *           %6 = dropout %1 {p=0.1}           %7 = linear %6, %5 : f32[4,2]
 *           %8 = scale %7 {by=2} : f32[4,2]   %9 = param "q.lora_B.weight" : f32[8,2] role=adapter
 *           %10 = matmul %8, %9 {transpose_b=true} : f32[4,8]
 *           %3 = add %4, %10 : f32[4,8]
 *
 * Of a table [rows, width] that gather_rows reads, lora_embedding_A.weight [rows, rank] begins as
 * zeros, and lora_embedding_B.weight [width, rank] is random:
 *
 * before:   %3 = gather_rows %1, %2 : f32[4,8]
 * after:    %4 = gather_rows %1, %2 : f32[4,8]
 *           %6 = gather_rows %5, %2 : f32[4,2]    %7 = scale %6 {by=2} : f32[4,2]
 *           %9 = matmul %7, %8 {transpose_b=true} : f32[4,8]
 *           %3 = add %4, %9 : f32[4,8]
 *
 * Products with such a table, as those of a head that is tied to it, stay as they are.
 *
 * Of a weight that has a matrix for each expert, A and B have one each too:
 *
 * before:   %3 = grouped_linear %1, %2, %4 : f32[12,8]      of w [4,8,16]
 * after:    %5 = grouped_linear %1, %2, %4 : f32[12,8]
 *           %7 = grouped_linear %1, %6, %4 : f32[12,2]      of A [4,2,16]
 *           %8 = scale %7 {by=2} : f32[12,2]
 *           %10 = grouped_linear %8, %9, %4 : f32[12,8]     of B [4,8,2]
 *           %3 = add %5, %10 : f32[12,8]
 *
 * With dora each module also has lora_magnitude_vector.weight [out], and the sum of base and product,
 * without the bias, is multiplied by a ratio (dora.c). A dropout is of what both read, and the base
 * stays: base + ratio (base' + product) - base', where base' is computed from the dropped values.
 *
 * The number alpha / rank, of the module, scales the narrow product, which costs least. The frozen
 * weight may be one of records, of a quantized_linear: of the sum only its part reads these (QLoRA,
 * Dettmers et al. 2023). */

static const char zfi_magnitude_name[] = ".lora_magnitude_vector.weight";

/* The ends of the names of trained parameters: of products, and of tables. */
typedef struct zfi_low_names {
    const char *a, *b;
} zfi_low_names;

static const zfi_low_names zfi_lora_names = {".lora_A.weight", ".lora_B.weight"},
                           zfi_table_names = {".lora_embedding_A.weight",
                                              ".lora_embedding_B.weight"};

typedef struct zfi_lora {
    zf_graph *graph;
    zf_lora_desc d;
    /* By node, of those that were there: */
    int32_t *uses;    /* how often it is an operand */
    int32_t *reader;  /* its last reader */
    int32_t *product; /* of a parameter: the first product with it as a weight; 0: none */
    int32_t *lookup;  /* of a parameter: the first node that reads rows of it; 0: none */
    int32_t *other;   /* of a parameter: the first other reader; 0: none */
    bool *adapted;    /* of a parameter: a target names its module */
    bool *kept;       /* of a parameter: it stays trained */
    bool *goes_on;    /* others than losses, guesses and the program read it */
    int32_t *a, *b;   /* of a parameter: lora_A and lora_B; 0: not made yet */
    int32_t *ratio; /* of a parameter, with dora: by what results are multiplied; 0: not made yet */
} zfi_lora;

static const zfi_node *zfi_lora_node(const zfi_lora *l, int32_t id) { return &l->graph->nodes[id]; }

static bool zfi_ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* The length of the name of a parameter's module: "q" of "q.weight". */
static size_t zfi_module_length(const char *name)
{
    static const char weight[] = ".weight";
    return strlen(name) - (zfi_ends_in(name, weight) ? sizeof weight - 1 : 0);
}

/* The name's module is called target[0..length), or ends in it after a dot. */
static bool zfi_is_target(const char *name, const char *target, size_t length)
{
    size_t n = zfi_module_length(name);
    return length && n >= length && !memcmp(name + n - length, target, length) &&
           (n == length || name[n - length - 1] == '.');
}

/* The next "MODULE:NUMBER" of a list: the length of the module's name, and the number. False after
 * the last; a number that is none is NAN. */
static bool zfi_next_number(const char **list, const char **module, size_t *length, double *number)
{
    size_t whole;
    const char *colon, *end;
    char text[40];
    if (!(*module = zfi_next_name(list, &whole))) return false;
    colon = memchr(*module, ':', whole);
    *length = colon ? (size_t)(colon - *module) : whole;
    snprintf(text, sizeof text, "%.*s", (int)zfi_min((int64_t)(whole - *length), 39),
             *module + *length);
    end = *text ? zfi_double_read(text + 1, text + strlen(text), number) : NULL;
    if (!end || *end) *number = NAN;
    return true;
}

/* The number of the parameter's module in a list of ranks or alphas, or `otherwise`. */
static double zfi_module_number(const char *list, const char *name, double otherwise)
{
    const char *module;
    size_t length;
    double number;
    while (zfi_next_number(&list, &module, &length, &number))
        if (zfi_is_target(name, module, length)) return number;
    return otherwise;
}

static int64_t zfi_rank_of(const zf_lora_desc *d, const char *name)
{
    return (int64_t)zfi_module_number(d->ranks, name, (double)d->rank);
}

/* What a product of low rank is multiplied by. */
static double zfi_scale_of(const zf_lora_desc *d, const char *name, double rank)
{
    return zfi_module_number(d->alphas, name, d->alpha) / (d->rslora ? sqrt(rank) : rank);
}

/* ------------------------------------------------------------------------------- products */

/* The parameter that is the weight of the product `id`; 0: it is no product with a matrix. */
static int32_t zfi_weight_of(const zfi_lora *l, int32_t id)
{
    const zfi_node *node = zfi_lora_node(l, id), *w;
    w = zfi_weight_kind(node) ? zfi_lora_node(l, node->args[1]) : NULL;
    return w && w->op == ZF_OP_param && w->shape.rank == 2 && node->args[0] != node->args[1]
               ? node->args[1]
               : 0;
}

/* The parameter that has the matrices of experts of the product `id`; 0: it is no such product. */
static int32_t zfi_adapted_experts(const zfi_lora *l, int32_t id)
{
    const zfi_node *node = zfi_lora_node(l, id);
    if (node->op != ZF_OP_grouped_linear) return 0;
    return zfi_lora_node(l, node->args[1])->op == ZF_OP_param ? node->args[1] : 0;
}

/* The parameter of which node `id` reads rows; 0: it reads none. */
static int32_t zfi_table_of(const zfi_lora *l, int32_t id)
{
    const zfi_node *node = zfi_lora_node(l, id), *table;
    if (node->op != ZF_OP_gather_rows) return 0;
    table = zfi_lora_node(l, node->args[0]);
    return table->op == ZF_OP_param && table->shape.rank == 2 && zfi_is_float(table->dtype)
               ? node->args[0]
               : 0;
}

/* The product of which node `id` is the result: itself, or one that nothing else reads and to which
 * it adds a bias; 0: none. */
static int32_t zfi_result_of(const zfi_lora *l, int32_t id)
{
    const zfi_node *node = zfi_lora_node(l, id);
    for (int k = 0; k < 2 && node->op == ZF_OP_add; k++) {
        const zfi_node *bias = zfi_lora_node(l, node->args[1 - k]);
        if (bias->op == ZF_OP_param && bias->shape.rank == 1 && l->uses[node->args[k]] == 1 &&
            zfi_weight_of(l, node->args[k]) &&
            zfi_same_shape(&zfi_lora_node(l, node->args[k])->shape, &node->shape))
            return node->args[k];
    }
    return zfi_weight_of(l, id) ? id : 0;
}

/* The node is a product to which a bias is added: the sum is its result. */
static bool zfi_has_bias_after(const zfi_lora *l, int32_t id)
{
    return l->uses[id] == 1 && zfi_result_of(l, l->reader[id]) == id;
}

/* The product is the model's head: only losses, guesses and the program read it. */
static bool zfi_is_head(const zfi_lora *l, int32_t product)
{
    return !l->goes_on[zfi_has_bias_after(l, product) ? l->reader[product] : product];
}

static bool zfi_is_loss_or_guess(zf_op op)
{
    return op == ZF_OP_output || op == ZF_OP_cross_entropy || op == ZF_OP_logsumexp ||
           op == ZF_OP_argmax || op == ZF_OP_softmax;
}

static void zfi_find_products(zfi_lora *l)
{
    const zf_graph *g = l->graph;
    for (int32_t i = 0; i < zfi_len(g->order); i++) {
        const zfi_node *node = &g->nodes[g->order[i]];
        for (int32_t k = 0; k < node->arg_count; k++) {
            int32_t x = node->args[k];
            const bool weight = k == 1 && (zfi_weight_of(l, g->order[i]) == x ||
                                           zfi_adapted_experts(l, g->order[i]) == x),
                       table = k == 0 && zfi_table_of(l, g->order[i]) == x;
            l->uses[x]++;
            l->reader[x] = g->order[i];
            l->goes_on[x] |= !zfi_is_loss_or_guess(node->op);
            if (weight && !l->product[x]) l->product[x] = g->order[i];
            if (table && !l->lookup[x]) l->lookup[x] = g->order[i];
            if (!weight && !table && !l->other[x]) l->other[x] = g->order[i];
        }
    }
}

/* -------------------------------------------------------------------------------- targets */

/* The last components of the modules of products, each once, with commas between. */
static void zfi_list_modules(const zfi_lora *l, char *text, size_t size)
{
    const zf_graph *g = l->graph;
    size_t at = 0;
    *text = '\0';
    for (int32_t i = 0; i < zfi_len(g->params); i++) {
        const char *name = g->nodes[g->params[i]].name;
        size_t end = zfi_module_length(name), begin = end, length;
        if (!l->product[g->params[i]]) continue;
        while (begin && name[begin - 1] != '.') begin--;
        length = end - begin;
        for (const char *was = text; was; was = strchr(was, ','), was = was ? was + 2 : NULL)
            if (strcspn(was, ",") == length && !memcmp(was, name + begin, length)) length = 0;
        if (!length) continue;
        if (at + length + 8 > size) {
            snprintf(text + at, size - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%.*s", at ? ", " : "", (int)length,
                               name + begin);
    }
}

/* Marks the weights of one target. */
static void zfi_mark_target(zfi_lora *l, const char *target, size_t length)
{
    zf_graph *g = l->graph;
    char modules[200];
    bool any = false, adapted = false;
    const char *kept = NULL;
    for (int32_t i = 0; i < zfi_len(g->params) && !g->error.status; i++) {
        int32_t id = g->params[i];
        const char *name = g->nodes[id].name;
        if (!zfi_is_target(name, target, length)) continue;
        any = true;
        if (l->kept[id] && (kept = name)) continue;
        adapted = true;
        if (l->other[id])
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_lora: \"%.100s\" is of the target \"%.*s\", but %%%d = %s reads it; only "
                     "weights of products and tables of rows can be adapted%s",
                     name, (int)length, target, (int)l->other[id],
                     zfi_record_of(g, l->other[id])->name,
                     g->nodes[l->other[id]].op == ZF_OP_concat ? ", and before zf_fuse" : "");
        else if (!l->product[id] && !l->lookup[id])
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_lora: \"%.100s\" is of the target \"%.*s\", but nothing reads it", name,
                     (int)length, target);
        l->adapted[id] = true;
    }
    if (kept && !adapted && !g->error.status)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_lora: \"%.100s\" is of the target \"%.*s\", and keep has it as well: it is "
                 "either adapted or trained itself",
                 kept, (int)length, target);
    if (any || g->error.status) return;
    zfi_list_modules(l, modules, sizeof modules);
    zfi_fail(&g->error, ZF_ERR_ARGUMENT,
             "zf_lora: the target \"%.*s\" is no module of the graph, nor the end of one after a "
             "dot; products are in %s",
             (int)(length < 100 ? length : 100), target, *modules ? modules : "none");
}

/* Marks all weights of products but those of heads and of experts. */
static void zfi_mark_all(zfi_lora *l)
{
    zf_graph *g = l->graph;
    bool any = false;
    for (int32_t i = 0; i < zfi_len(g->params); i++) {
        int32_t id = g->params[i];
        if (!l->product[id] || l->lookup[id] || l->other[id] || l->kept[id] ||
            zfi_adapted_experts(l, l->product[id]) || zfi_is_head(l, l->product[id]))
            continue;
        l->adapted[id] = any = true;
    }
    if (!any)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_lora: the graph has no product with a weight that is a parameter of its own");
}

static void zfi_mark_targets(zfi_lora *l)
{
    const char *list = l->d.targets;
    size_t length;
    if (!list || !strcmp(list, "all-linear")) {
        zfi_mark_all(l);
        return;
    }
    if (!*list)
        zfi_fail(&l->graph->error, ZF_ERR_ARGUMENT,
                 "zf_lora: no target is named; all-linear names all products");
    for (const char *at; !l->graph->error.status && (at = zfi_next_name(&list, &length)) != NULL;)
        zfi_mark_target(l, at, length);
}

/* Checks a list of ranks or alphas: its numbers, and that each is of a module that is adapted. */
static void zfi_check_numbers(const zfi_lora *l, const char *list, const char *what, bool rank)
{
    zf_graph *g = l->graph;
    const char *module;
    size_t length;
    double number;
    while (!g->error.status && zfi_next_number(&list, &module, &length, &number)) {
        const int shown = (int)zfi_min((int64_t)length, 100);
        bool any = false;
        if (!isfinite(number) || fabs(number) > 1e300 ||
            (rank && (number < 1 || number > INT32_MAX || number != floor(number))))
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_lora: %s has \"%.*s\" without %s: MODULE:NUMBER,... is needed", what, shown,
                     module, rank ? "a rank above 0" : "a number");
        for (int32_t i = 0; i < zfi_len(g->params); i++)
            any |= l->adapted[g->params[i]] &&
                   zfi_is_target(g->nodes[g->params[i]].name, module, length);
        if (!any && !g->error.status)
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_lora: %s has \"%.*s\", which is no module that is adapted", what, shown,
                     module);
    }
}

/* ------------------------------------------------------------------------------- kept
 * parameters */

/* The parameter's name, or that of a module around it, matches a pattern: a module's from the
 * beginning or from a dot on. */
static bool zfi_keeps(const char *pattern, size_t length, const char *name)
{
    char module[ZFI_ADAPTER_NAME], *dot;
    if (zfi_matches(pattern, length, name)) return true;
    snprintf(module, sizeof module, "%s", name);
    while ((dot = strrchr(module, '.')) != NULL) {
        *dot = '\0';
        for (const char *at = module; at; at = strchr(at, '.'), at = at ? at + 1 : NULL)
            if (zfi_matches(pattern, length, at)) return true;
    }
    return false;
}

/* Marks the parameters of one pattern. */
static void zfi_mark_kept(zfi_lora *l, const char *pattern, size_t length)
{
    zf_graph *g = l->graph;
    const int shown = (int)zfi_min((int64_t)length, 100);
    bool any = false;
    for (int32_t i = 0; i < zfi_len(g->params) && !g->error.status; i++) {
        const int32_t id = g->params[i];
        if (!zfi_keeps(pattern, length, g->nodes[id].name)) continue;
        if (zfi_is_frozen(&g->nodes[id]))
            zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                     "zf_lora: keep has \"%.*s\", but \"%.100s\" is frozen: it is not trained%s",
                     shown, pattern, g->nodes[id].name,
                     ZF_INT(&g->nodes[id], param, bits) ? ", as its numbers have few bits" : "");
        l->kept[id] = any = true;
    }
    if (!any && !g->error.status)
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_lora: keep has \"%.*s\", which matches no parameter of the graph and no module",
                 shown, pattern);
}

static void zfi_mark_all_kept(zfi_lora *l)
{
    const char *list = l->d.keep;
    size_t length;
    for (const char *at; !l->graph->error.status && (at = zfi_next_name(&list, &length)) != NULL;)
        zfi_mark_kept(l, at, length);
}

/* The parameter belongs to the adapter: it has its name in its own. */
static void zfi_keep_param(zfi_lora *l, int32_t id)
{
    zf_graph *g = l->graph;
    zfi_node *node = &g->nodes[id];
    char name[ZFI_ADAPTER_NAME];
    node->role = ZFI_ROLE_ADAPTER;
    if (!*g->adapter) return;
    zfi_adapter_name(name, g->adapter, node->name);
    if (zfi_map_get(g->names, name, 0) || !zfi_valid_name(name)) {
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_lora: \"%.100s\" would be called \"%.270s\", which is %s", node->name, name,
                 zfi_valid_name(name) ? "the name of another value" : "too long for a name");
        return;
    }
    g->names = zfi_map_put(&g->memory, g->names, node->name, 0);
    node->name = zfi_text_copy(&g->memory, &g->text, name, strlen(name));
    if (node->name) g->names = zfi_map_put(&g->memory, g->names, node->name, id);
}

/* ------------------------------------------------------------------------------- rewriting */

/* A parameter of an adapter, and its first values. */
typedef struct zfi_low {
    const char *end; /* of its name, after the module of the weight */
    zf_shape shape;
    zf_init init;
    double a, b;
} zfi_low;

/* The parameter of weight w, in a dtype, with the adapter's name before the last part of its own. */
static int32_t zfi_lora_param(zfi_lora *l, int32_t w, zf_dtype dtype, const zfi_low *low)
{
    zf_graph *g = l->graph;
    const char *weight = zfi_lora_node(l, w)->name;
    char plain[ZFI_ADAPTER_NAME], name[ZFI_ADAPTER_NAME];
    zfi_new n = {.op = ZF_OP_param,
                 .dtype = dtype,
                 .shape = low->shape,
                 .name = name,
                 .role = ZFI_ROLE_ADAPTER};
    snprintf(plain, sizeof plain, "%.*s%s", (int)zfi_module_length(weight), weight, low->end);
    zfi_adapter_name(name, g->adapter, plain);
    ZF_INT(&n, param, init) = low->init;
    ZF_FLOAT(&n, param, a) = low->a, ZF_FLOAT(&n, param, b) = low->b;
    return zfi_append(g, &n);
}

/* A matrix, or one for each expert where the weight has these. */
static zf_shape zfi_low_shape(const zf_shape *weight, int64_t rows, int64_t columns)
{
    return weight->rank == 3 ? ZF_SHAPE(weight->dims[0], rows, columns) : ZF_SHAPE(rows, columns);
}

/* lora_A and lora_B of weight w, once for all products with it. lora_A is uniform as PyTorch's
 * kaiming_uniform_ with a = sqrt(5) makes it: bound 1 / sqrt(in). */
static void zfi_make_pair(zfi_lora *l, int32_t w, bool turned)
{
    const zf_shape s = zf_param_shape((zf_tensor){l->graph, w});
    const zf_dtype dtype = zfi_lora_node(l, l->product[w])->dtype;
    const int64_t in = s.dims[s.rank - (turned ? 2 : 1)], out = s.dims[s.rank - (turned ? 1 : 2)],
                  rank = zfi_rank_of(&l->d, zfi_lora_node(l, w)->name);
    const double bound = 1 / sqrt(in > 0 ? (double)in : 1);
    const zfi_low a = {zfi_lora_names.a, zfi_low_shape(&s, rank, in), ZF_UNIFORM, -bound, bound},
                  b = {zfi_lora_names.b, zfi_low_shape(&s, out, rank), ZF_ZEROS, 0, 0};
    if (l->a[w]) return;
    l->a[w] = zfi_lora_param(l, w, dtype, &a);
    l->b[w] = zfi_lora_param(l, w, dtype, &b);
}

/* The same of table w. */
static void zfi_make_table_pair(zfi_lora *l, int32_t w)
{
    const zf_shape s = zfi_lora_node(l, w)->shape;
    const zf_dtype dtype = zfi_lora_node(l, w)->dtype;
    const int64_t rank = zfi_rank_of(&l->d, zfi_lora_node(l, w)->name);
    const zfi_low a = {zfi_table_names.a, ZF_SHAPE(s.dims[0], rank), ZF_ZEROS, 0, 0},
                  b = {zfi_table_names.b, ZF_SHAPE(s.dims[1], rank), ZF_NORMAL, 0, 1};
    if (l->a[w]) return;
    l->a[w] = zfi_lora_param(l, w, dtype, &a);
    l->b[w] = zfi_lora_param(l, w, dtype, &b);
}

/* Appends a node like `node`, over these operands. */
static zf_tensor zfi_append_like(zf_graph *g, const zfi_node *node, const int32_t *args)
{
    zfi_new n = {.op = node->op, .args = args, .arg_count = node->arg_count};
    memcpy(n.attributes, node->attributes, sizeof n.attributes);
    return (zf_tensor){g, zfi_append(g, &n)};
}

/* Node `id` becomes a node of two operands. */
static void zfi_become(zf_graph *g, int32_t id, zf_op op, zf_tensor a, zf_tensor b)
{
    zfi_node *node = &g->nodes[id];
    if (g->error.status) return;
    node->op = op;
    memset(node->attributes, 0, sizeof node->attributes);
    node->args[0] = a.id, node->args[1] = b.id;
    node->arg_count = 2;
}

/* The product of h [.., rank] of the module of weight w with B, scaled. */
static zf_tensor zfi_low_product(zfi_lora *l, int32_t w, zf_tensor h)
{
    const char *name = zfi_lora_node(l, w)->name;
    const double scale = zfi_scale_of(&l->d, name, (double)zfi_rank_of(&l->d, name));
    const zf_tensor b = {l->graph, l->b[w]};
    if (scale != 1) h = zf_scale(h, scale);
    /* zf_fuse adds a matmul to a sum without memory of its own. */
    return zf_tensor_shape(h).rank < 2 ? zf_linear(h, b, ZF_NONE)
                                       : zf_matmul_ex(h, b, &(zf_matmul_desc){.transpose_b = true});
}

/* The ratio of weight w, made once. */
static zf_tensor zfi_lora_ratio(zfi_lora *l, int32_t w, zf_dtype dtype, bool turned)
{
    zf_graph *g = l->graph;
    const char *name = zfi_lora_node(l, w)->name;
    const bool table = l->lookup[w] != 0;
    const zf_shape s = zf_param_shape((zf_tensor){g, w});
    const zfi_low low = {zfi_magnitude_name, ZF_SHAPE(s.dims[turned ? 1 : 0]), ZF_ZEROS, 0, 0};
    if (l->ratio[w]) return (zf_tensor){g, l->ratio[w]};
    if (turned && !table && s.dims[0] == s.dims[1])
        zfi_fail(
            &g->error, ZF_ERR_ARGUMENT,
            "zf_lora: with dora \"%.200s\" must be [out, in]: it is square, so nothing else says "
            "which lengths its magnitudes are",
            name);
    l->ratio[w] =
        zfi_dora_ratio(&(zfi_dora){
                           .weight = {g, w},
                           .a = {g, l->a[w]},
                           .b = {g, l->b[w]},
                           .magnitude = {g, zfi_lora_param(l, w, dtype, &low)},
                           .dtype = dtype,
                           .scale = zfi_scale_of(&l->d, name, (double)zfi_rank_of(&l->d, name)),
                           .turned = turned,
                           .table = table,
                       })
            .id;
    return (zf_tensor){g, l->ratio[w]};
}

/* The bias of which node `id` is a sum with the product, or that the product has; invalid: none. */
static zf_tensor zfi_lora_bias(const zfi_lora *l, int32_t id, int32_t product)
{
    const zfi_node *node = zfi_lora_node(l, id), *of = zfi_lora_node(l, product);
    if (id != product) return (zf_tensor){l->graph, node->args[node->args[0] == product]};
    return (zf_tensor){l->graph, of->arg_count > 2 ? of->args[2] : 0};
}

/* The product without its bias, of x. */
static zf_tensor zfi_bare_product(zf_graph *g, const zfi_node *of, zf_tensor x)
{
    zfi_node bare = *of;
    bare.arg_count = 2;
    return zfi_append_like(g, &bare, (const int32_t[]){x.id, of->args[1]});
}

/* Makes node `id`, the result of a product, that with the ratio; x: what was dropped of h, from
 * which `low` is. */
static void zfi_adapt_dora(zfi_lora *l, int32_t id, int32_t product, zf_tensor x, zf_tensor low)
{
    zf_graph *g = l->graph;
    const zfi_node of = g->nodes[product];
    const int32_t w = of.args[1];
    const bool turned = of.op == ZF_OP_matmul && !ZF_INT(&of, matmul, transpose_b);
    const zf_tensor ratio = zfi_lora_ratio(l, w, of.dtype, turned),
                    bias = zfi_lora_bias(l, id, product);
    const bool drops = x.id != of.args[0];
    const zf_tensor base = zfi_bare_product(g, &of, x);
    zf_tensor sum = zf_add(base, low);
    if (!drops && !zf_valid(bias)) {
        zfi_become(g, id, ZF_OP_mul, sum, ratio);
        return;
    }
    sum = zf_mul(sum, ratio);
    if (drops) {
        const zf_tensor more = zf_sub(sum, base),
                        plain = zfi_bare_product(g, &of, (zf_tensor){g, of.args[0]});
        if (!zf_valid(bias)) zfi_become(g, id, ZF_OP_add, plain, more);
        else zfi_become(g, id, ZF_OP_add, zf_add(plain, more), bias);
        return;
    }
    zfi_become(g, id, ZF_OP_add, sum, bias);
}

/* Makes node `id`, the result of a product, the sum of what it was and of the product of low
 * rank. */
static void zfi_adapt(zfi_lora *l, int32_t id, int32_t product)
{
    zf_graph *g = l->graph;
    const zfi_node node = g->nodes[id], of = g->nodes[product];
    const int32_t w = of.args[1];
    zf_tensor base = {g, 0}, x, low;
    if (of.op == ZF_OP_linear && ZF_INT(&of, linear, activation)) {
        zfi_fail(&g->error, ZF_ERR_STAGE, "zf_lora: must come before zf_fuse, which has been run");
        return;
    }
    g->scope = node.scope, g->file = node.file, g->line = node.line;
    if (!l->d.dora) base = zfi_append_like(g, &node, node.args);
    zfi_make_pair(l, w, of.op == ZF_OP_matmul && !ZF_INT(&of, matmul, transpose_b));
    x = zf_dropout((zf_tensor){g, of.args[0]}, l->d.dropout);
    low = zfi_low_product(l, w, zf_linear(x, (zf_tensor){g, l->a[w]}, ZF_NONE));
    if (l->d.dora) zfi_adapt_dora(l, id, product, x, low);
    else zfi_become(g, id, ZF_OP_add, base, low);
}

/* Makes node `id`, which reads rows of table w, the sum of what it was and of the rows of the
 * product of low rank. */
static void zfi_adapt_lookup(zfi_lora *l, int32_t id, int32_t w)
{
    zf_graph *g = l->graph;
    const zfi_node node = g->nodes[id];
    zf_tensor base, low;
    g->scope = node.scope, g->file = node.file, g->line = node.line;
    base = zfi_append_like(g, &node, node.args);
    zfi_make_table_pair(l, w);
    low = zfi_append_like(g, &node, (const int32_t[]){l->a[w], node.args[1]});
    low = zfi_low_product(l, w, low);
    if (!l->d.dora) zfi_become(g, id, ZF_OP_add, base, low);
    else zfi_become(g, id, ZF_OP_mul, zf_add(base, low), zfi_lora_ratio(l, w, node.dtype, true));
}

/* Makes node `id`, a product of rows with the matrices of experts in w, the sum of what it was and of
 * the product of low rank of each expert. */
static void zfi_adapt_experts(zfi_lora *l, int32_t id, int32_t w)
{
    zf_graph *g = l->graph;
    const zfi_node node = g->nodes[id];
    const char *name = zfi_lora_node(l, w)->name;
    const double scale = zfi_scale_of(&l->d, name, (double)zfi_rank_of(&l->d, name));
    const zf_tensor bounds = {g, node.args[2]};
    zf_tensor base, low;
    if (l->d.dora || l->d.dropout > 0) {
        zfi_fail(&g->error, ZF_ERR_ARGUMENT,
                 "zf_lora: \"%.200s\" has matrices of experts, for which there is no %s: targets "
                 "must leave it out, or %s must be 0",
                 name, l->d.dora ? "dora" : "dropout", l->d.dora ? "dora" : "dropout");
        return;
    }
    g->scope = node.scope, g->file = node.file, g->line = node.line;
    base = zfi_append_like(g, &node, node.args);
    zfi_make_pair(l, w, ZF_INT(&node, grouped_linear, transpose) != 0);
    low = zf_grouped_linear((zf_tensor){g, node.args[0]}, (zf_tensor){g, l->a[w]}, bounds);
    if (scale != 1) low = zf_scale(low, scale);
    zfi_become(g, id, ZF_OP_add, base, zf_grouped_linear(low, (zf_tensor){g, l->b[w]}, bounds));
}

/* Adapts what node `id` computes, if it is of a target. */
static void zfi_adapt_node(zfi_lora *l, int32_t id)
{
    const int32_t product = zfi_result_of(l, id), table = zfi_table_of(l, id),
                  w = product ? zfi_weight_of(l, product) : 0, experts = zfi_adapted_experts(l, id);
    if (experts && l->adapted[experts]) zfi_adapt_experts(l, id, experts);
    else if (table && l->adapted[table]) zfi_adapt_lookup(l, id, table);
    else if (w && l->adapted[w] && !l->lookup[w] && !(product == id && zfi_has_bias_after(l, id)))
        zfi_adapt(l, id, product);
}

static void zfi_lora_rewrite(zfi_lora *l)
{
    zf_graph *g = l->graph;
    int32_t *order = g->order, params = zfi_len(g->params);
    const char *scope = g->scope;
    g->order = NULL;
    for (int32_t i = 0; i < zfi_len(order) && !g->memory.failed; i++) {
        if (!g->error.status) zfi_adapt_node(l, order[i]);
        zfi_push(&g->memory, g->order, order[i]);
    }
    for (int32_t i = 0; i < params; i++) {
        const int32_t id = g->params[i];
        if (!l->kept[id]) ZF_INT(&g->nodes[id], param, frozen) = true;
        else if (!g->error.status && !g->memory.failed) zfi_keep_param(l, id);
    }
    zfi_array_free(&g->memory, order);
    g->scope = scope;
}

/* ------------------------------------------------------------------------------- the pass */

static const zf_option zfi_lora_options[] = {
    ZF_OPTION(zf_lora_desc, TEXT, name, 0, NULL, .unit = "NAME", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, COUNT, rank, 8, "[1,2147483647]", .flag = "r",
              .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, NUMBER, alpha, 0, "[-1e300,1e300]", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, TEXT, ranks, 0, NULL, .unit = "MODULE:N,...",
              .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, TEXT, alphas, 0, NULL, .unit = "MODULE:X,...",
              .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, FLAG, rslora, 0, NULL, .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, FLAG, dora, 0, NULL, .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, NUMBER, dropout, 0, "[0,1)", .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, TEXT, targets, 0, NULL, .unit = "all-linear|NAME,...",
              .traits = ZF_OPTION_CHANGES),
    ZF_OPTION(zf_lora_desc, TEXT, keep, 0, NULL, .unit = "NAME|PATTERN,...",
              .traits = ZF_OPTION_CHANGES),
    {.name = NULL}};

/* alpha is the rank where it has not been given. */
static zf_lora_desc zfi_lora_resolved(const zf_lora_desc *desc)
{
    zf_lora_desc d = desc ? *desc : (zf_lora_desc){.rank = 0};
    const bool given = d.alpha != 0;
    zf_options_resolve(&(zf_options){.rows = zfi_lora_options, .desc = &d}, 1);
    if (!given) d.alpha = (double)d.rank;
    return d;
}

static zf_status zfi_lora_check(zf_graph *g)
{
    for (int32_t i = 0; i < zfi_len(g->params); i++)
        if (g->nodes[g->params[i]].role == ZFI_ROLE_ADAPTER)
            return zfi_fail(&g->error, ZF_ERR_STAGE,
                            "zf_lora: \"%.200s\" is there already: it has been run",
                            g->nodes[g->params[i]].name);
    for (int32_t i = 0; i < zfi_len(g->order); i++)
        if (g->nodes[g->order[i]].update || zfi_updates_param(g, &g->nodes[g->order[i]]))
            return zfi_fail(&g->error, ZF_ERR_STAGE, "zf_lora: must come before updates: %s",
                            zfi_record_of(g, g->order[i])->name);
    return ZF_OK;
}

ZF_API zf_status zf_lora(zf_graph *g, const zf_lora_desc *desc)
{
    zf_status status = zfi_enter(g, "zf_lora", 0,
                                 ZFI_STAGE_GRADIENTS | ZFI_STAGE_RANKS | ZFI_STAGE_PLACED);
    zfi_lora l = {.graph = g, .d = zfi_lora_resolved(desc)};
    size_t nodes;
    if (!status && desc)
        status = zfi_options_check(&(zf_options){.rows = zfi_lora_options, .desc = &l.d}, 1, false, "zf_lora: ",
                                   &g->error);
    if (status || (status = zfi_lora_check(g)) ||
        (status = zfi_take_name(g, "zf_lora", l.d.name ? l.d.name : "", &g->adapter)) ||
        (status = zfi_settle(g)))
        return status;
    nodes = (size_t)zfi_len(g->nodes);
    l.uses = zfi_calloc(&g->memory, 8 * nodes, sizeof *l.uses);
    l.adapted = zfi_calloc(&g->memory, 3 * nodes, sizeof *l.adapted);
    if (l.uses && l.adapted) {
        l.reader = l.uses + nodes, l.product = l.uses + 2 * nodes, l.other = l.uses + 3 * nodes;
        l.a = l.uses + 4 * nodes, l.b = l.uses + 5 * nodes, l.lookup = l.uses + 6 * nodes;
        l.ratio = l.uses + 7 * nodes;
        l.kept = l.adapted + nodes, l.goes_on = l.adapted + 2 * nodes;
        zfi_find_products(&l);
        zfi_mark_all_kept(&l);
        if (!g->error.status) zfi_mark_targets(&l);
        zfi_check_numbers(&l, l.d.ranks, "ranks", true);
        zfi_check_numbers(&l, l.d.alphas, "alphas", false);
        if (!g->error.status) zfi_lora_rewrite(&l);
    }
    zfi_free(&g->memory, l.uses, 8 * nodes * sizeof *l.uses);
    zfi_free(&g->memory, l.adapted, 3 * nodes * sizeof *l.adapted);
    if (g->memory.failed) return zfi_graph_nomem(g);
    return g->error.status ? g->error.status : zfi_leave(g, 0);
}
