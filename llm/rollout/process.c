/* A command that reads a text and prints another: its standard input and output are pipes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

typedef struct zfl_process {
    pid_t pid;   /* -1: none */
    int in, out; /* the ends of the pipes that this program has; -1: closed */
    double until;
} zfl_process;

static void zfl_close_end(int *end)
{
    if (*end >= 0) close(*end);
    *end = -1;
}

/* A pipe that no other command gets. */
static bool zfl_pipe(int ends[2])
{
    ends[0] = ends[1] = -1;
    if (pipe(ends)) return false;
    for (int k = 0; k < 2; k++)
        if (fcntl(ends[k], F_SETFD, FD_CLOEXEC)) return false;
    return true;
}

/* Starts sh -c in a group of its own, in which all signals are as usual. */
static int zfl_spawn(zfl_process *p, const char *command, int in, int out)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, usual;
    int failed;
    if ((failed = posix_spawn_file_actions_init(&files))) return failed;
    if ((failed = posix_spawnattr_init(&how)))
        return posix_spawn_file_actions_destroy(&files), failed;
    sigemptyset(&none), sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE), sigaddset(&usual, SIGXFSZ);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &usual);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    failed = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    if (!failed) failed = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (!failed) failed = posix_spawn(&p->pid, "/bin/sh", &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

static bool zfl_process_open(zfl_process *p, const char *command, double deadline, zf_error *error)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, failed = 0;
    *p = (zfl_process){.pid = -1, .in = -1, .out = -1, .until = zfl_now() + deadline};
    if (!zfl_pipe(in) || !zfl_pipe(out) || fcntl(in[1], F_SETFL, O_NONBLOCK) ||
        fcntl(out[0], F_SETFL, O_NONBLOCK))
        failed = errno;
    if (!failed && (failed = zfl_spawn(p, command, in[0], out[1]))) p->pid = -1;
    zfl_close_end(&in[0]), zfl_close_end(&out[1]);
    p->in = in[1], p->out = out[0];
    if (!failed) return true;
    zfl_close_end(&p->in), zfl_close_end(&p->out);
    return zfl_fail(error, ZF_ERR_IO, "cannot be started: %s", strerror(failed));
}

/* write without SIGPIPE, which belongs to the thread that wrote. */
static ssize_t zfl_write_quietly(int file, const char *data, size_t bytes)
{
    sigset_t signal, before, waits;
    ssize_t n;
    int why, number;
    bool waited;
    sigemptyset(&signal), sigaddset(&signal, SIGPIPE);
    sigpending(&waits);
    waited = sigismember(&waits, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal, &before);
    n = write(file, data, bytes), why = errno;
    sigpending(&waits);
    if (n < 0 && why == EPIPE && !waited && sigismember(&waits, SIGPIPE)) sigwait(&signal, &number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return n;
}

/* Writes what the pipe takes; at the end, or when nobody reads, closes it. */
static void zfl_process_feed(zfl_process *p, const zf_text *text, size_t *written)
{
    const ssize_t n = *written < text->count
                          ? zfl_write_quietly(p->in, text->at + *written, text->count - *written)
                          : 0;
    if (n > 0) *written += (size_t)n;
    if (*written == text->count || (n < 0 && errno != EAGAIN && errno != EINTR))
        zfl_close_end(&p->in);
}

/* Reads what there is; at the end closes the pipe. */
static void zfl_process_drain(zfl_process *p, zf_text *out)
{
    char part[1 << 14];
    const ssize_t n = read(p->out, part, sizeof part);
    if (n > 0) zf_text_add(out, part, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) zfl_close_end(&p->out);
}

/* Gives the command a text, and takes all that it prints. False: the deadline has passed. */
static bool zfl_process_talk(zfl_process *p, const zf_text *text, zf_text *out)
{
    size_t written = 0;
    while (p->out >= 0) {
        struct pollfd ends[2] = {{.fd = p->out, .events = POLLIN},
                                 {.fd = p->in, .events = POLLOUT}};
        const double left = p->until - zfl_now();
        if (left <= 0) return false;
        if (poll(ends, 2, left < 3600 ? (int)(1000 * left) + 1 : 3600000) < 0 && errno != EINTR)
            return false;
        if (p->in >= 0 && ends[1].revents) zfl_process_feed(p, text, &written);
        if (ends[0].revents) zfl_process_drain(p, out);
    }
    return true;
}

/* Waits for the end of the command. False: the deadline has passed. */
static bool zfl_process_wait(zfl_process *p, int *status)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    pid_t ended;
    *status = 0;
    while (!(ended = waitpid(p->pid, status, WNOHANG)) || (ended < 0 && errno == EINTR)) {
        if (zfl_now() > p->until) return false;
        nanosleep(&pause, NULL);
    }
    p->pid = -1;
    return true;
}

/* Kills what has not ended, with its group. */
static void zfl_process_close(zfl_process *p)
{
    zfl_close_end(&p->in), zfl_close_end(&p->out);
    if (p->pid < 0) return;
    kill(-p->pid, SIGKILL);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) continue;
    p->pid = -1;
}

/* Runs a command to its end: `text` in, *out what it printed. False with *error. */
static bool zfl_process_run(const char *command, double deadline, const zf_text *text, zf_text *out,
                            zf_error *error)
{
    zfl_process p;
    int status = 0;
    bool good = zfl_process_open(&p, command, deadline, error);
    if (good && (!zfl_process_talk(&p, text, out) || !zfl_process_wait(&p, &status)))
        good = zfl_fail(error, ZF_ERR_IO, "did not end within %g s", deadline);
    if (good && WIFSIGNALED(status))
        good = zfl_fail(error, ZF_ERR_IO, "was ended by signal %d", WTERMSIG(status));
    else if (good && WEXITSTATUS(status))
        good = zfl_fail(error, ZF_ERR_IO, "failed with status %d", WEXITSTATUS(status));
    zfl_process_close(&p);
    if (good && out->failed) good = zfl_fail(error, ZF_ERR_NOMEM, "out of memory");
    return good;
}
