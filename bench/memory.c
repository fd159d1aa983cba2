/* Bytes of each rank by ZeRO stage and world, next to the formula.
 *
 *     build/bench/memory [--model base] [--batch 1] [--memory GIB] [--json]
 *
 * A plan is made for 1, 2, 4 and 8 ranks at each stage, AdamW in f32. Its parameters, gradients and
 * optimizer states are printed next to the paper's formulas (Rajbhandari et al. 2020), in bytes per
 * parameter:
 *
 *     stage 0   4 + 4 + 8     stage 1   4 + 4 + 8/N     stage 2   4 + 4/N + 8/N     stage 3   16/N
 *
 * If all ranks of a world fit --memory together, they are also run for a step, as threads:
 * `measured` is all that each has allocated, which must equal the plan. */
#define _POSIX_C_SOURCE 200809L
#include "../examples/frame/ranks/ranks.h"
#include "bench.h"
#include "session.h"

typedef struct choices {
    bert_config config;
    session_desc session; /* but for comm */
    const char *model;
    int64_t vocab;
    double memory; /* GiB */
    bool json;
} choices;

typedef struct row {
    int32_t world, stage;
    zf_plan plan;
    size_t measured[8]; /* by rank; 0: not made */
} row;

static bool failed(zf_error *error, zf_status status, const char *text)
{
    *error = (zf_error){.status = status};
    snprintf(error->text, sizeof error->text, "%s", text);
    return false;
}

/* The plan alone: the passes of session_open. */
static bool make_plan(const choices *set, row *r, zf_error *error)
{
    const session_desc *d = &set->session;
    zf_backend *backend = zf_cpu_backend(&(zf_cpu_desc){.threads = (int32_t)d->threads}, error);
    zf_graph *g = backend ? zf_graph_new(NULL) : NULL;
    zf_training training;
    bool good;
    if (!g) {
        zf_backend_free(backend);
        return backend ? failed(error, ZF_ERR_NOMEM, "out of memory") : false;
    }
    bert_build(g, &set->config, &d->shape, false);
    training = d->training;
    training.loss = zf_graph_find(g, "loss"), training.lr = zf_graph_find(g, "lr");
    if (r->world > 1 || r->stage)
        training.zero = (zf_zero_desc){.stage = r->stage, .world = r->world};
    zf_passes(g, &training);
    zf_memory(g, &(zf_memory_desc){.backend = backend});
    good = !zf_graph_plan(g, &r->plan);
    if (!good) failed(error, zf_graph_status(g), zf_graph_error(g));
    zf_graph_free(g);
    zf_backend_free(backend);
    return good;
}

typedef struct making {
    const choices *set;
    row *row;
} making;

/* A rank, for one step. */
static bool make_rank(void *user, const zf_comm *comm, zf_error *error)
{
    const making *m = user;
    session_desc d = m->set->session;
    bert_batch *batch = bench_batch(&d.shape, m->set->config.vocab, 1);
    session s;
    float lr = 1e-4f;
    bool good;
    d.comm = comm, d.training.zero.stage = m->row->stage;
    if (!batch) return failed(error, ZF_ERR_NOMEM, "out of memory");
    if (!session_open(&s, &d, error)) return false;
    good = !masked_feed(&s, batch, (double)batch->labelled * m->row->world,
                        (double)d.shape.batch * m->row->world) &&
           !zf_write(s.program, s.lr, &lr, sizeof lr) && !zf_step(s.program);
    if (!good) failed(error, ZF_ERR_BACKEND, zf_program_error(s.program));
    m->row->measured[s.rank] = zf_program_info_of(s.program).allocated_bytes;
    session_close(&s);
    return good;
}

static double formula(const row *r)
{
    double n = r->world, bytes[] = {16, 8 + 8 / n, 4 + 12 / n, 16 / n};
    return bytes[r->stage] * (double)r->plan.parameter_count;
}

static void print_row(const choices *set, const row *r)
{
    const size_t *most = r->plan.most;
    double states = (double)(most[ZF_PARAMETERS] + most[ZF_GRADIENTS] + most[ZF_OPTIMIZER]);
    size_t least = r->measured[0], largest = r->measured[0];
    for (int32_t k = 1; k < r->world; k++) {
        if (r->measured[k] < least) least = r->measured[k];
        if (r->measured[k] > largest) largest = r->measured[k];
    }
    if (set->json) {
        printf("{\"world\": %d, \"stage\": %d, \"parameters\": %zu, \"gradients\": %zu, "
               "\"optimizer\": %zu, \"formula\": %.0f, \"planned\": %zu, \"measured_least\": %zu, "
               "\"measured_most\": %zu}\n",
               (int)r->world, (int)r->stage, most[ZF_PARAMETERS], most[ZF_GRADIENTS],
               most[ZF_OPTIMIZER], formula(r), r->plan.peak_bytes, least, largest);
    } else {
        printf("%5d%7d%13.1f%11.1f%11.1f%11.1f%11.1f%9.2f%%%11.1f", (int)r->world, (int)r->stage,
               1e-6 * (double)most[ZF_PARAMETERS], 1e-6 * (double)most[ZF_GRADIENTS],
               1e-6 * (double)most[ZF_OPTIMIZER], 1e-6 * states, 1e-6 * formula(r),
               100 * (states / formula(r) - 1), 1e-6 * (double)r->plan.peak_bytes);
        if (!largest) printf("%11s\n", "-");
        else if (least == r->plan.peak_bytes && largest == least)
            printf("%11.1f\n", 1e-6 * (double)largest);
        else printf("  %zu to %zu: not as planned\n", least, largest);
    }
    fflush(stdout);
}

static bool measure(const choices *set, row *r, double memory, zf_error *error)
{
    rank_group ranks;
    making m = {set, r};
    bool good;
    if (!make_plan(set, r, error)) return false;
    if ((double)r->plan.peak_bytes * r->world > memory) return true;
    if (!ranks_open(&ranks, &(rank_group_desc){.count = r->world, .deadline = 600}, error))
        return false;
    good = ranks_run(&ranks, make_rank, &m, error);
    ranks_close(&ranks, good ? NULL : error);
    return good;
}

static const zf_option rows[] = {
    ZF_OPTION(choices, TEXT, model, 0, NULL, .unit = "NAME|FILE", .traits = ZF_OPTION_READS,
              .topic = "memory", .help = "model, as bert pretrain takes it"),
    ZF_OPTION(choices, COUNT, vocab, 0, "[0,1000000000]",
              .help = "tokens of the vocabulary; 0: the model's"),
    ZF_OPTION(choices, NUMBER, memory, 12, "[0,1000000]", .unit = "GIB",
              .help = "bytes that all ranks together may take"),
    ZF_OPTION(choices, FLAG, json, 0, NULL, .help = "print one JSON object for each row"),
    {.name = NULL}};

int main(int argc, char **argv)
{
    choices set = {.model = "base",
                   .session = {.sample = &bert_sample,
                               .training = {.clip = 1, .adamw.weight_decay = 0.01},
                               .seed = 1,
                               .threads = 1,
                               .shape = {.batch = 1, .sequence = 128}}};
    const zf_options all[] = {{.rows = rows, .desc = &set},
                              {.rows = bench_session_rows, .desc = &set.session}};
    int status;
    zf_error error = {ZF_OK, ""};
    if (!bench_options(argc, argv, all, 2, 2, NULL, &status)) return status;
    set.session.shape.predictions =
        bench_predictions(set.session.shape.batch, set.session.shape.sequence);
    if (!bert_config_load(set.model, &set.config, &error))
        return fprintf(stderr, "memory: %s\n", error.text), 1;
    if (set.vocab) set.config.vocab = set.vocab;
    set.session.config = &set.config;
    if (!set.json)
        printf("MB of a rank, BERT-%s, %lld x %lld\nranks  stage   parameters  gradients  optimizer"
               "        sum    formula          planned   measured\n",
               set.model, (long long)set.session.shape.batch,
               (long long)set.session.shape.sequence);
    for (int32_t world = 1; world <= 8 && !error.status; world *= 2)
        for (int32_t stage = 0; stage < 4 && !error.status; stage++) {
            row r = {.world = world, .stage = stage};
            if (measure(&set, &r, set.memory * 0x1p30, &error)) print_row(&set, &r);
        }
    if (error.status) fprintf(stderr, "memory: %s\n", error.text);
    return error.status ? 1 : 0;
}
