#define _POSIX_C_SOURCE 200809L
#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t came;

static void on_signal(int number)
{
    (void)number;
    came = 1;
}

static void on_ctrl_c(int number)
{
    if (came) {
        signal(number, SIG_DFL);
        raise(number);
    }
    came = 1;
}

void interrupt_flush(void)
{
    if (fflush(stdout) && (errno == EPIPE || errno == EIO)) came = 1;
}

void interrupt_catch(bool launched)
{
    struct sigaction noted = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, was;
    struct sigaction ctrl_c = {.sa_handler = launched ? on_signal : on_ctrl_c,
                               .sa_flags = SA_RESTART};
    sigaction(SIGINT, &ctrl_c, NULL);
    sigaction(SIGTERM, &noted, NULL);
    sigaction(SIGUSR1, &noted, NULL);
    if (!sigaction(SIGHUP, NULL, &was) && was.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &noted, NULL);
    signal(SIGPIPE, SIG_IGN);
    interrupt_flush();
}

bool interrupt_came(void) { return came != 0; }
