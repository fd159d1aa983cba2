#include "training.h"

#include <stdlib.h>
#include <string.h>

void training_tell_beginning(const training *t, int64_t done)
{
    if (!t->load) return;
    if (t->init)
        printf("--init %s is not read: the weights are those of --load %s\n", t->init, t->load);
    if (t->steps && done >= t->steps)
        printf("%s has had %lld steps, and --steps %lld counts from the first: there is nothing to "
               "train\n",
               t->load, (long long)done, (long long)t->steps);
}

/* Prints an argument for a shell, in quotes if needed. */
static void print_argument(FILE *out, const char *text)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=:,./@%";
    bool quote = !*text || text[strspn(text, plain)];
    fputs(quote ? " '" : " ", out);
    for (; *text; text++) fprintf(out, *text == '\'' ? "'\\''" : "%c", *text);
    if (quote) fputc('\'', out);
}

void training_tell_interrupted(const training *t, int64_t done)
{
    FILE *out = ferror(stdout) ? stderr : stdout; /* its reader may be gone */
    fprintf(out, "interrupted after step %lld; ", (long long)done);
    if (!t->save) {
        fprintf(out, "without --save nothing is kept\n");
        return;
    }
    fprintf(out, "the checkpoint is in %s. To continue:\n ", t->save);
    if (t->launcher && !strcmp(t->launcher, "mpirun"))
        fprintf(out, " mpirun -np %lld", (long long)t->world);
    for (int i = 0; i < t->argc; i++) print_argument(out, t->argv[i]);
    if (!t->load || strcmp(t->load, t->save)) { /* the last --load counts */
        fprintf(out, " --load");
        print_argument(out, t->save);
    }
    fputc('\n', out);
}

void training_log(csv_file *log, const char *program, const char *row)
{
    if (csv_add(log, row)) return;
    fprintf(stderr, "%s: %s; the run goes on, without rows in its log until there is room again\n",
            program, log->error.text);
}

void training_tell_grace(const training *t, double step_seconds)
{
    /* The time that Open MPI's mpirun waits after Ctrl-C before SIGTERM, and again before SIGKILL.
     * It is in the environment of its processes. */
    const char *given = getenv("OMPI_MCA_odls_base_sigkill_timeout");
    double grace = given ? strtod(given, NULL) : 1;
    if (!t->save || !getenv("OMPI_COMM_WORLD_RANK") || step_seconds < grace / 2) return;
    printf(
        "a step takes %.1f s, and mpirun kills its processes %.0f s after Ctrl-C, perhaps before "
        "they have saved: send SIGUSR1 to mpirun to end the run, or start it with --mca "
        "odls_base_sigkill_timeout %.0f\n",
        step_seconds, 2 * grace, 10 + 2 * step_seconds);
}
