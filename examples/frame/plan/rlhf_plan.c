#include "rlhf_plan.h"
#include "../ppo/ppo.h"
#include "human.h"
#include "iteration_plan.h"

#include <string.h>

enum { GOOD, BAD, MISUSED }; /* exit status */
enum { TABLES = 2 };

typedef struct options {
    const char *model, *reward, *critic;
    int64_t texts;
    bool ppo;
    int64_t group, prompt, answer, batch, world, nodes, threads, memory;
    bool reference, json;
    zf_training t;
} options;

#define ROW(kind, member, ...) ZF_OPTION(options, kind, member, __VA_ARGS__)
#define BASIC                  .traits = ZF_OPTION_BASIC
#define MANY                   "[1,1048576]"

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "DIR", .topic = "model", BASIC,
        .help = "the folder of the model, or its config.json"),
    ROW(TEXT, reward, 0, NULL, .unit = "DIR", .flag = "reward-model", BASIC,
        .help = "the folder of a reward model (--reward model:DIR of a run)"),
    ROW(FLAG, reference, 0, NULL, BASIC,
        .help = "answers are compared with the first weights; without --lora these are a copy"),
    ROW(FLAG, ppo, 0, NULL, .topic = "ppo", BASIC,
        .help = "plan ppo: with a critic, and with --reference"),
    ROW(TEXT, critic, 0, NULL, .unit = "DIR", .with = "ppo",
        .help =
            "the reward model that the critic begins as; else that of --reward-model, or a new one "
            "over the weights of --model"),
    ROW(COUNT, texts, 0, "[0,1048576]", .flag = "ptx-rows", .with = "ppo", .unit = "N",
        .help = "rows of --ptx in a step, over all ranks"),
    ROW(COUNT, group, 0, "[0,65536]", .topic = "answers", BASIC,
        .help = "answers to each prompt; 0: 8, or 1 of ppo"),
    ROW(COUNT, prompt, 256, "[1,65535]", .unit = "TOKENS", BASIC,
        .help = "maximum number of tokens of a prompt"),
    ROW(COUNT, answer, 256, "[1,65535]", .unit = "TOKENS", BASIC,
        .help = "maximum number of tokens of an answer"),
    ROW(COUNT, batch, 64, MANY, BASIC, .help = "answers of a step, over all ranks"),
    ROW(COUNT, world, 1, MANY, .topic = "ranks", BASIC, .help = "ranks"),
    ROW(COUNT, nodes, 1, MANY, .unit = "M", .help = "nodes, each with the same number of ranks"),
    ROW(COUNT, threads, 1, "[1,1024]", .help = "threads of a rank; kernels need room for each"),
    ROW(BYTES, memory, 0, NULL, .topic = "memory", BASIC,
        .help = "memory of a rank; the status is 1 when the plan does not fit"),
    ROW(FLAG, json, 0, NULL, BASIC, .help = "print JSON, with exact bytes"),
    {.name = NULL}};

static int misuse(const char *text)
{
    fprintf(stderr, "zf-plan: rlhf: %s\nTry 'zf-plan rlhf --help'.\n", text);
    return MISUSED;
}

static int help(const zf_options all[TABLES], const char *topic)
{
    zf_error error;
    fputs("Usage: zf-plan rlhf --model DIR [OPTION]...\n"
          "Print what an iteration of 'llm grpo' or 'llm ppo' takes on each of N ranks: bytes of "
          "every phase, and\n"
          "of all together, as a run allocates them on this machine. Nothing is computed.\n\n",
          stdout);
    return zf_options_help(all, TABLES, topic, stdout, &error) ? misuse(error.text) : GOOD;
}

/* Returns 0 if the options are good; a status + 1 where the program ends. */
static int read_options(int argc, char **argv, options *o)
{
    const zf_options all[TABLES] = {{.rows = rows, .desc = o},
                                    {.rows = zf_training_options(), .desc = &o->t}};
    zf_error error = {ZF_OK, ""};
    *o = (options){.model = NULL};
    for (int k = 1; k < argc; k++)
        if (!strcmp(argv[k], "--help")) return help(all, k + 1 < argc ? argv[k + 1] : NULL) + 1;
    if (zf_options_take(all, TABLES, &argc, argv, &error) ||
        zf_options_check(all, TABLES, true, &error))
        return misuse(error.text) + 1;
    if (argc > 1) return misuse("a word is no option") + 1;
    if (!o->model) return misuse("a model is needed: --model DIR") + 1;
    zf_options_resolve(all, 1);
    if (!o->group) o->group = o->ppo ? 1 : 8;
    if (!o->ppo && o->group < 2) return misuse("a --group of grpo has at least 2 answers") + 1;
    if (o->world % o->nodes) return misuse("--nodes must divide --world") + 1;
    return 0;
}

/* ------------------------------------------------------------------------------------- printing */

static void print_bytes(const char *name, const size_t *bytes, int count, const char *note)
{
    printf("%-14s", name);
    for (int k = 0; k < count; k++) {
        char text[32];
        printf("%12s", bytes[k] ? human(text, (double)bytes[k]) : "-");
    }
    printf("%s\n", note);
}

static void print_table(const options *o, const iteration_plan *p)
{
    printf(
        "%.4g million parameters; %lld answers of %lld + %lld tokens in groups of %lld, stage %d, "
        "%lld ranks\n\n%-14s%12s%12s%12s%12s\n",
        1e-6 * (double)p->parameter_count, (long long)p->answers, (long long)o->prompt,
        (long long)o->answer, (long long)o->group, (int)o->t.zero.stage, (long long)o->world,
        "bytes of a rank", "gathered", "caches", "values", "kept");
    for (int k = 0; k < ITERATION_PHASES; k++) {
        const iteration_phase *f = &p->phases[k];
        if (!f->name) continue;
        print_bytes(f->name, (const size_t[]){f->held, f->caches, f->values, f->kept}, 4,
                    f->apart ? "   apart" : "");
    }
    printf("\n");
    print_bytes("parameters", &p->parameters, 1, "");
    print_bytes("optimizer", &p->states, 1, "");
    print_bytes("in turns", &p->shared, 1, "   the memory of phases that run in turns");
    print_bytes("all", &p->total, 1, "   allocated");
    if (p->host) print_bytes("host memory", &p->host, 1, "");
    if (p->disk) print_bytes("disk", &p->disk, 1, "");
    if (p->moved) print_bytes("gathered", &p->moved, 1, "   sent or copied, once for all answers");
}

static void put(zf_json_writer *w, const char *key, size_t bytes)
{
    zf_json_put_key(w, key);
    zf_json_put_int(w, (int64_t)bytes);
}

static int print_json(const iteration_plan *p)
{
    zf_json_writer *w = zf_json_writer_new(2, NULL);
    zf_error error = {ZF_OK, ""};
    const char *text;
    zf_json_begin_object(w);
    zf_json_put_key(w, "phases"), zf_json_begin_array(w);
    for (int k = 0; k < ITERATION_PHASES; k++) {
        const iteration_phase *f = &p->phases[k];
        if (!f->name) continue;
        zf_json_begin_object(w);
        zf_json_put_key(w, "phase"), zf_json_put_string(w, f->name);
        put(w, "gathered", f->held), put(w, "caches", f->caches), put(w, "values", f->values);
        put(w, "kept", f->kept);
        zf_json_put_key(w, "apart"), zf_json_put_bool(w, f->apart);
        zf_json_end(w);
    }
    zf_json_end(w);
    put(w, "parameters", p->parameters), put(w, "optimizer", p->states);
    put(w, "in_turns", p->shared), put(w, "all", p->total);
    put(w, "host", p->host), put(w, "disk", p->disk), put(w, "moved", p->moved);
    zf_json_end(w);
    if ((text = zf_json_text(w, NULL, &error))) puts(text);
    else fprintf(stderr, "zf-plan: rlhf: %s\n", error.text);
    zf_json_writer_free(w);
    return text ? GOOD : BAD;
}

/* ---------------------------------------------------------------------------------- the command */

static int plan(const sample_model *sample, const options *o)
{
    zf_config_any config;
    iteration_plan p;
    zf_error error = {ZF_OK, ""};
    iteration_desc d = {.sample = sample,
                        .config = &config,
                        .training = o->t,
                        .group = o->group,
                        .prompt = o->prompt,
                        .answer = o->answer,
                        .batch = o->batch,
                        .world = (int32_t)o->world,
                        .nodes = (int32_t)o->nodes,
                        .threads = o->threads,
                        .reference = o->reference,
                        .reward = o->reward,
                        .ppo = o->ppo ? &ppo_kind : NULL,
                        .critic = o->critic ? o->critic : o->reward,
                        .folder = zf_folder_is(o->model) ? o->model : NULL,
                        .texts = o->texts};
    int end;
    if (!d.training.fuse.without) d.training.fuse.without = "accumulate"; /* as the commands do */
    if (!zf_config_load(sample->config(), o->model, &config, &error) ||
        !iteration_plan_of(&p, &d, &error)) {
        fprintf(stderr, "zf-plan: rlhf: %s\n", error.text);
        return BAD;
    }
    end = o->json ? print_json(&p) : (print_table(o, &p), GOOD);
    if (!o->memory || p.total <= (size_t)o->memory) return end;
    fflush(stdout);
    fprintf(stderr, "zf-plan: rlhf: the phases take %zu bytes, %zu more than the limit of %lld\n",
            p.total, p.total - (size_t)o->memory, (long long)o->memory);
    return BAD;
}

int rlhf_plan_command(const sample_model *sample, int argc, char **argv)
{
    options o;
    const int end = read_options(argc, argv, &o);
    return end ? end - 1 : plan(sample, &o);
}
