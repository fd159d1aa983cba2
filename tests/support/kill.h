/* A process that is killed at any one of its system calls. */
#ifndef KILL_H
#define KILL_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/ptrace.h>
#endif

/* Runs work(user) in a child that is killed at stop number `stop`: each system call stops it twice,
 * on entry and on return. Where ptrace is not allowed, it is killed after a while instead. 1: it
 * was killed; 0: it had finished; -1: it failed. */
static int kill_at(long stop, bool (*work)(void *user), void *user)
{
    int state = 0;
    bool traced = false;
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
#if defined(__linux__)
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0) raise(SIGSTOP);
#endif
        _exit(!work(user));
    }
#if defined(__linux__)
    traced = waitpid(child, &state, WUNTRACED) == child && WIFSTOPPED(state);
    while (traced && stop-- > 0) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL)) break;
        if (waitpid(child, &state, 0) != child) return -1;
        if (!WIFSTOPPED(state)) return WIFEXITED(state) && WEXITSTATUS(state) == 0 ? 0 : -1;
    }
#endif
    if (!traced) usleep((useconds_t)stop * 50);
    kill(child, SIGKILL);
    if (waitpid(child, &state, 0) != child) return -1;
    return WIFEXITED(state) ? (WEXITSTATUS(state) == 0 ? 0 : -1) : 1;
}

#endif
