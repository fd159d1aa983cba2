/* Each step is a command with a folder of its own. One that has ended leaves a file with its
 * command line, by which it is known to be done; one that was interrupted leaves a checkpoint, from
 * which it goes on. */
#define _POSIX_C_SOURCE 200809L
#include "rlhf.h"
#include "../commands/frame.h"
#include "../model/causal.h"
#include "../options/command.h"
#include "../options/fail.h"
#include "../ppo/ppo.h"
#include "../ranks/ranks.h"
#include "../score/reward.h"
#include "split.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS = 400, PATH_ROOM = 1200, DONE_ROOM = 1 << 16 };

typedef struct rlhf_options {
    const char *model, *data, *save, *split, *own[SPLIT_STEPS];
    int64_t step, seed;
} rlhf_options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(rlhf_options, kind, member, default_, range, __VA_ARGS__)
#define BASIC ZF_OPTION_BASIC

static const zf_option rows[] = {
    ROW(TEXT, model, 0, NULL, .unit = "DIR", .topic = "steps", .traits = BASIC,
        .help = "a folder with weights and a tokenizer"),
    ROW(TEXT, data, 0, NULL, .unit = "FILE", .traits = BASIC,
        .help = "pairs, JSON Lines {\"prompt\", \"chosen\", \"rejected\"}"),
    ROW(TEXT, save, 0, NULL, .unit = "DIR", .traits = BASIC,
        .help =
            "DIR/sft, DIR/reward and DIR/ppo, the models of the steps; what is done there is not "
            "done again, and what was interrupted goes on"),
    ROW(COUNT, step, 0, "[0,3]", .unit = "N", .traits = BASIC,
        .help = "run this step alone, anew: 1 fine-tunes on chosen answers, 2 trains the reward "
                "model, 3 is PPO; 0: all"),
    ROW(TEXT, split, 0, NULL, .unit = "A,B,C",
        .help = "proportions of the lines of --data that the steps have; else 2,4,4"),
    ROW(COUNT, seed, 1, "[0,9000000000000000]", .help = "seed of all steps and of the split"),
    ROW(TEXT, own[0], 0, NULL, .flag = "sft", .unit = "OPTIONS", .traits = BASIC,
        .help = "options of finetune, as one text of words: --sft '--steps 500 --lr 1e-5'. Other "
                "options, as --lora r=16, are those of all steps"),
    ROW(TEXT, own[1], 0, NULL, .flag = "reward", .unit = "OPTIONS", .traits = BASIC,
        .help = "options of reward, likewise"),
    ROW(TEXT, own[2], 0, NULL, .flag = "ppo", .unit = "OPTIONS", .traits = BASIC,
        .help = "options of ppo, likewise"),
    {.name = NULL}};

/* A command. */
typedef struct rlhf_step {
    const char *name, *command;
    int (*run)(const sample_model *sample, int argc, char **argv);
} rlhf_step;
static const rlhf_step steps[SPLIT_STEPS] = {{"sft", "finetune", causal_finetune},
                                             {"reward", "reward", reward_command},
                                             {"ppo", "ppo", ppo_command}};

typedef struct rlhf {
    const sample_model *sample;
    rlhf_options o;
    char *program;
    char *common[WORDS]; /* options of all steps */
    int common_count;
    char *own[SPLIT_STEPS]; /* copies of the texts, cut into words */
    uint64_t digest;        /* of --data */
} rlhf;

/* -------------------------------------------------------------------------------- command lines */

typedef struct line {
    int count;
    char *word[WORDS + 1];
    char model[PATH_ROOM], data[PATH_ROOM], save[PATH_ROOM], reward[PATH_ROOM], seed[32];
} line;

static void add(line *l, const char *word)
{
    if (l->count < WORDS) l->word[l->count++] = (char *)(uintptr_t)word;
    l->word[l->count] = NULL;
}

static void add_two(line *l, const char *option, const char *value)
{
    add(l, option), add(l, value);
}

/* The words of all steps, and of one. own: is cut. */
static void add_options(line *l, const rlhf *r, int step, char *own)
{
    char *rest = NULL;
    for (int k = 0; k < r->common_count; k++) add(l, r->common[k]);
    if (r->o.own[step]) strcpy(own, r->o.own[step]);
    for (char *at = r->o.own[step] ? strtok_r(own, " \t\n", &rest) : NULL; at;
         at = strtok_r(NULL, " \t\n", &rest))
        add(l, at);
}

static bool has(const line *l, const char *option)
{
    for (int k = 0; k < l->count; k++)
        if (!strcmp(l->word[k], option) ||
            (!strncmp(l->word[k], option, strlen(option)) && l->word[k][strlen(option)] == '='))
            return true;
    return false;
}

/* The command line of a step; `first`: with the model of the first step. */
static void make_line(line *l, const rlhf *r, int step, bool first)
{
    const char *dir = r->o.save;
    *l = (line){.count = 0};
    snprintf(l->data, sizeof l->data, "%s/%s.jsonl", dir, steps[step].name);
    snprintf(l->model, sizeof l->model, "%s/sft", dir);
    snprintf(l->reward, sizeof l->reward, "model:%s/reward", dir);
    snprintf(l->seed, sizeof l->seed, "%lld", (long long)r->o.seed);
    add(l, r->program), add(l, steps[step].command);
    add_two(l, "--model", step && !first ? l->model : r->o.model);
    add_two(l, "--data", l->data);
    if (step == 2) add_two(l, "--reward", l->reward);
    add_two(l, "--seed", l->seed);
    add_options(l, r, step, r->own[step]);
    snprintf(l->save, sizeof l->save, "%s/%s%s", dir, steps[step].name,
             !step && has(l, "--lora") ? ".adapter" : "");
    add_two(l, "--save", l->save);
}

static void print_line(const line *l, int step)
{
    printf("step %d of 3:", step + 1);
    for (int k = 0; k < l->count; k++)
        printf(strpbrk(l->word[k], " \t'\"") ? " '%s'" : " %s", l->word[k]);
    printf("\n");
    fflush(stdout);
}

/* --------------------------------------------------------------------------------- what is done */

static void done_path(char path[PATH_ROOM], const rlhf *r, int step)
{
    snprintf(path, PATH_ROOM, "%s/%s.done", r->o.save, steps[step].name);
}

/* How many words an option has that changes no number of the result; 0: it may change them. */
static int is_local(const char *word)
{
    static const char *const with_value[] = {"--threads", "--log",      "--svg",       "--report",
                                             "--keep",    "--deadline", "--save-every"};
    for (size_t k = 0; k < sizeof with_value / sizeof *with_value; k++) {
        const size_t length = strlen(with_value[k]);
        if (strncmp(word, with_value[k], length)) continue;
        if (!word[length] || word[length] == '=') return word[length] ? 1 : 2;
    }
    return !strcmp(word, "--quiet");
}

/* What the file of a step that is done has: the data, and the options that may change its
 * result. */
static void done_text(char *text, const rlhf *r, const line *l)
{
    size_t at = (size_t)snprintf(text, DONE_ROOM, "data %016llx\n", (unsigned long long)r->digest);
    for (int k = 2, words; k < l->count && at < DONE_ROOM; k += words ? words : 1) {
        words = is_local(l->word[k]);
        if (!words) at += (size_t)snprintf(text + at, DONE_ROOM - at, "%s\n", l->word[k]);
    }
}

/* 0: it is not done; 1: it is; -1: with other options, *error. */
static int is_done(const rlhf *r, const line *l, int step, zf_error *error)
{
    char path[PATH_ROOM];
    char *wanted = malloc(DONE_ROOM);
    zf_text text = {.at = NULL};
    int done = 0;
    done_path(path, r, step);
    if (!wanted) return fail(error, ZF_ERR_NOMEM, "out of memory"), -1;
    done_text(wanted, r, l);
    if (!access(path, F_OK)) {
        if (!zf_text_read(path, &text, error)) done = -1;
        else if (text.count == strlen(wanted) && !memcmp(text.at, wanted, text.count)) done = 1;
        else
            fail(error, ZF_ERR_MISMATCH,
                 "%s: step %d was done with other options or data: give the same, do it anew with "
                 "--step %d, or name another --save",
                 path, step + 1, step + 1),
                done = -1;
    }
    zf_text_free(&text);
    free(wanted);
    return done;
}

static bool mark_done(const rlhf *r, const line *l, int step, zf_error *error)
{
    char path[PATH_ROOM];
    char *text = malloc(DONE_ROOM);
    FILE *file;
    bool good;
    done_path(path, r, step);
    if (!text) return fail(error, ZF_ERR_NOMEM, "out of memory");
    done_text(text, r, l);
    file = fopen(path, "wb");
    good = file && fputs(text, file) >= 0;
    if (file) good = !fclose(file) && good;
    free(text);
    return good || fail(error, ZF_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

/* ---------------------------------------------------------------------------------------- steps */

/* The weights with the adapter of the first step, on which the others build. */
static int merge(const rlhf *r, const line *l)
{
    char to[PATH_ROOM];
    char *argv[] = {r->program,
                    (char *)"merge",
                    (char *)"--load",
                    (char *)(uintptr_t)r->o.model,
                    (char *)"--adapter",
                    (char *)(uintptr_t)l->save,
                    to,
                    NULL};
    snprintf(to, sizeof to, "%s/sft", r->o.save);
    return merge_command(r->sample, 7, argv);
}

static int run_step(const rlhf *r, int step, bool anew)
{
    line l, full;
    zf_error error = {ZF_OK, ""};
    char path[PATH_ROOM];
    int status;
    make_line(&l, r, step, false);
    full = l;
    done_path(path, r, step);
    if (anew) {
        for (int k = step; k < SPLIT_STEPS; k++) done_path(path, r, k), (void)remove(path);
        add(&full, "--overwrite");
    } else {
        status = is_done(r, &l, step, &error);
        if (status < 0) return command_error("%s", error.text);
        if (status) return printf("step %d of 3: %s is done\n", step + 1, l.save), EXIT_GOOD;
        if (zf_folder_is_checkpoint(l.save)) add_two(&full, "--load", l.save);
    }
    print_line(&full, step);
    status = steps[step].run(r->sample, full.count, full.word);
    if (!status && !step && has(&l, "--lora")) status = merge(r, &l);
    if (!status && !mark_done(r, &l, step, &error)) return command_error("%s", error.text);
    return status;
}

/* The step before is done. */
static bool follows(const rlhf *r, int step, zf_error *error)
{
    char path[PATH_ROOM];
    for (int k = 0; k < step; k++) {
        done_path(path, r, k);
        if (access(path, F_OK))
            return fail(error, ZF_ERR_ARGUMENT, "--step %d needs step %d, which is not done in %s",
                        step + 1, k + 1, r->o.save);
    }
    return true;
}

/* Checks the options of all steps before the first one is run. */
static int check(const rlhf *r, int from, int to)
{
    for (int k = from; k < to; k++) {
        line l;
        int status;
        make_line(&l, r, k, true);
        add(&l, "--check");
        if (l.count == WORDS) return command_error("more than %d words of options", WORDS);
        if ((status = steps[k].run(r->sample, l.count, l.word))) return status;
    }
    return EXIT_GOOD;
}

static bool prepare(rlhf *r, zf_error *error)
{
    double parts[SPLIT_STEPS] = {2, 4, 4};
    char end = 0;
    if (r->o.split &&
        (sscanf(r->o.split, "%lf,%lf,%lf%c", parts, parts + 1, parts + 2, &end) != 3 ||
         !(parts[0] > 0 && parts[1] > 0 && parts[2] > 0) || parts[0] + parts[1] + parts[2] > 1e9))
        return fail(error, ZF_ERR_ARGUMENT,
                    "--split takes three numbers above 0, as 2,4,4, not '%.100s'", r->o.split);
    if (rank_launch_of().launcher)
        return fail(error, ZF_ERR_ARGUMENT,
                    "rlhf is one process: give --ranks N, or run the commands of its steps by %s",
                    rank_launch_of().launcher);
    if (mkdir(r->o.save, 0777) && errno != EEXIST)
        return fail(error, ZF_ERR_IO, "--save %s: %s", r->o.save, strerror(errno));
    return zf_digest_path(r->o.data, &r->digest, error) &&
           split_write(r->o.data, r->o.save, parts, (uint64_t)r->o.seed, error);
}

static int run(rlhf *r)
{
    const int from = r->o.step ? (int)r->o.step - 1 : 0, to = r->o.step ? from + 1 : SPLIT_STEPS;
    zf_error error = {ZF_OK, ""};
    int status = check(r, from, to);
    if (status) return status;
    if (!prepare(r, &error) || !follows(r, from, &error)) return command_error("%s", error.text);
    for (int k = from; k < to && !status; k++) status = run_step(r, k, r->o.step != 0);
    return status;
}

/* -------------------------------------------------------------------------------------- command */

/* Separates the options of this command from those of all steps: *count of argv stay. */
static void separate(rlhf *r, char **argv, int *count)
{
    int kept = 2;
    for (int k = 2; k < *count; k++) {
        const char *text = argv[k];
        const size_t length = strncmp(text, "--", 2) ? 0 : strcspn(text + 2, "=");
        bool help = !strcmp(text, "--help") || !strcmp(text, "-h"), own = help;
        for (const zf_option *at = rows; at->name && length && !own; at++) {
            char flag[40];
            snprintf(flag, sizeof flag, "%s", at->flag ? at->flag : at->name);
            own = strlen(flag) == length && !strncmp(flag, text + 2, length);
        }
        if (!own && r->common_count < WORDS) r->common[r->common_count++] = argv[k];
        if (!own) continue;
        argv[kept++] = argv[k];
        if ((help || text[2 + length] != '=') && k + 1 < *count) argv[kept++] = argv[++k];
    }
    *count = kept;
}

int rlhf_command(const sample_model *sample, int argc, char **argv)
{
    rlhf r = {.sample = sample, .program = argv[0]};
    command_tables t = {.count = 0};
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    int status = EXIT_FAILED;
    if (!copy) return command_error("out of memory");
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    separate(&r, copy, &argc);
    command_add(&t, rows, &r.o);
    if (command_options(argc, copy, "rlhf --model DIR --data FILE --save DIR [OPTIONS]", &t, NULL,
                        &status)) {
        if (!r.o.model || !zf_folder_is(r.o.model))
            status = command_usage_error(argv, "a model to begin with is needed: --model DIR");
        else if (!r.o.data) status = command_usage_error(argv, "pairs are needed: --data FILE");
        else if (!r.o.save) status = command_usage_error(argv, "a folder is needed: --save DIR");
        else {
            bool good = true;
            for (int k = 0; k < SPLIT_STEPS; k++)
                good &= (r.own[k] = malloc(r.o.own[k] ? strlen(r.o.own[k]) + 1 : 1)) != NULL;
            status = good ? run(&r) : command_error("out of memory");
            for (int k = 0; k < SPLIT_STEPS; k++) free(r.own[k]);
        }
    }
    free(copy);
    return status;
}
