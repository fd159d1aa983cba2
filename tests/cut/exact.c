/* Gradients of a Llama in f64 are those of transformers, on one rank and on two that share its
 * layers. tests/golden/llm/exact.py has written them. */
#include "../ranks/team.h"

#include "../../examples/llm/model.h"

#define FOLDER "tests/golden/llm/llama2/"

enum { SEQUENCES = 2, TOKENS = 11, MOST = 1 << 10 };

/* The text of the model in f64, but for the learning rate; the caller frees it. */
static char *model_text(void)
{
    static const char rate[] = "\"lr\" : ";
    zf_graph *g = zf_graph_new(NULL);
    zf_error error = {ZF_OK, ""};
    zf_causal_config c;
    char *text;
    size_t size;
    if (!g || !llm_config_load(FOLDER "config.json", &c, &error)) abort();
    llm_build(g, &c, &(sample_shape){.batch = SEQUENCES, .sequence = TOKENS}, SAMPLE_TRAIN);
    size = zf_graph_text(g, NULL, 0) + 1;
    if (!(text = malloc(size))) abort();
    zf_graph_text(g, text, size);
    zf_graph_free(g);
    for (char *at = text; (at = strstr(at, "f32")); at++)
        if (strncmp(at - strlen(rate), rate, strlen(rate))) memcpy(at, "f64", 3);
    return text;
}

static int32_t ranks;

static zf_status change(zf_graph *g)
{
    return zf_passes(g, &(zf_training){.loss = zf_graph_find(g, "loss"),
                                       .lr = zf_graph_find(g, "lr"),
                                       .keep_gradients = true,
                                       .tensor = ranks,
                                       .optimizer = ZF_SGD});
}

/* Numbers of a file, which are f32 or f64, or integers of 64 bits. */
static int64_t read_numbers(test *t, const char *path, const char *name, double *out)
{
    zf_error error = {ZF_OK, ""};
    static float halves[MOST];
    static int64_t integers[MOST];
    zf_safetensors *file = zf_safetensors_open(path, NULL, &error);
    const int32_t at = file ? zf_safetensors_find(file, name) : -1;
    int64_t count = 0;
    if (at < 0) {
        test_fail(t, __FILE__, __LINE__, path, name);
    } else {
        const zf_dtype dtype = zf_safetensors_at(file, at)->dtype;
        void *to = dtype == ZF_F64 ? (void *)out : dtype == ZF_F32 ? (void *)halves : integers;
        count = zf_shape_count(zf_safetensors_at(file, at)->shape);
        if (count > MOST) abort();
        zf_safetensors_read(file, at, to, (size_t)count * zf_dtype_size(dtype), &error);
        for (int64_t i = 0; i < count && dtype != ZF_F64; i++)
            out[i] = dtype == ZF_F32 ? (double)halves[i] : (double)integers[i];
    }
    zf_safetensors_close(file);
    return count;
}

/* Writes the weights of the folder, and the batch: the label of a token is the next one. */
static void feed(test *t, const member *m)
{
    double values[MOST], ids[SEQUENCES * TOKENS], all[SEQUENCES * TOKENS], weight, labelled = 0;
    int32_t input[SEQUENCES * TOKENS], labels[SEQUENCES * TOKENS];
    const float lr = 0;
    for (int k = 0; k < zf_param_count(m->graph) && !t->failed; k++) {
        const zf_tensor param = zf_param_at(m->graph, k);
        const int64_t count =
            read_numbers(t, FOLDER "model.safetensors", zf_tensor_name(param), values);
        OK(t, zf_write_whole(m->program, param, 0, values, (size_t)count * sizeof *values),
           zf_program_error(m->program));
    }
    read_numbers(t, FOLDER "../batch.safetensors", "input_ids", ids);
    read_numbers(t, FOLDER "../batch.safetensors", "labels", all);
    for (int i = 0; i < SEQUENCES * TOKENS; i++) {
        input[i] = (int32_t)ids[i];
        labels[i] = i % TOKENS + 1 < TOKENS ? (int32_t)all[i + 1] : -100;
        labelled += labels[i] >= 0;
    }
    weight = 1 / labelled;
    zf_write(m->program, zf_graph_find(m->graph, "input_ids"), input, sizeof input);
    zf_write(m->program, zf_graph_find(m->graph, "labels"), labels, sizeof labels);
    zf_write(m->program, zf_graph_find(m->graph, "lr"), &lr, sizeof lr);
    OK(t, zf_write(m->program, zf_graph_find(m->graph, "loss_weight"), &weight, sizeof weight),
       zf_program_error(m->program));
}

typedef struct reading {
    const member *of;
    pthread_t thread;
    const char *name;
    double values[MOST];
} reading;

static void *read_one(void *object)
{
    reading *r = object;
    const zf_tensor x = zf_graph_find(r->of->graph, r->name);
    if (zf_whole_bytes(x) <= sizeof r->values)
        zf_read_whole(r->of->program, x, r->values, zf_whole_bytes(x));
    return NULL;
}

/* Compares a value of all ranks, which call the output `output`. */
static void compare(test *t, const team *all, const char *output, const char *name)
{
    static reading rank[2];
    double want[MOST], most = 0, off = 0;
    const int64_t count = read_numbers(t, FOLDER "exact.safetensors", name, want);
    for (int r = 0; r < all->world; r++) {
        rank[r].of = &all->members[r], rank[r].name = output;
        if (pthread_create(&rank[r].thread, NULL, read_one, &rank[r])) abort();
    }
    for (int r = 0; r < all->world; r++) pthread_join(rank[r].thread, NULL);
    for (int r = 0; r < all->world; r++) {
        CHECK_TEXT(t, zf_program_error(all->programs[r]), "");
        for (int64_t i = 0; i < count; i++) {
            most = fmax(most, fabs(want[i]));
            off = fmax(off, fabs(want[i] - rank[r].values[i]));
        }
    }
    if (!(most > 0 && off <= 1e-11 * most)) {
        char said[100];
        snprintf(said, sizeof said, "off by %.3g of %.3g", off, most);
        test_fail(t, __FILE__, __LINE__, name, said);
    }
}

/* Each number within 1e-11 of the largest one of its tensor. */
TEST_ONCE(exact_gradients_of_a_llama)
{
    static team all;
    char *text = model_text();
    test_defer(t, free, text);
    test_defer(t, team_end, &all);
    for (ranks = 1; ranks <= 2 && !t->failed; ranks++) {
        const zf_allocator counts = t->allocator; /* which one thread may call */
        bool made;
        t->allocator = (zf_allocator){.user = NULL};
        made = team_new(t, &all, text, ranks, false, change);
        t->allocator = counts;
        if (!made) return;
        for (int r = 0; r < ranks; r++) feed(t, &all.members[r]);
        team_step(t, &all);
        compare(t, &all, "loss", "loss");
        for (int k = 0; k < zf_param_count(all.members[0].graph) && !t->failed; k++) {
            const char *name = zf_tensor_name(zf_param_at(all.members[0].graph, k));
            char output[300];
            snprintf(output, sizeof output, "gradient/%.250s", name);
            compare(t, &all, output, name);
        }
        team_end(&all);
    }
}
