/* Signals that end a run after the current step: Ctrl-C, SIGTERM, SIGHUP, SIGUSR1; and a closed
 * standard output. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* Catches them from here on. A second Ctrl-C ends the process at once, unless a launcher started
 * it, since launchers also pass on a signal that came from the terminal. A SIGHUP that is ignored
 * (nohup) stays ignored; SIGPIPE is ignored. Flushes, as interrupt_flush does. */
void interrupt_catch(bool launched);

/* Whether one of them has come. */
bool interrupt_came(void);

/* Flushes the standard output. A closed reader counts as a signal; command_main reports other
 * errors. */
void interrupt_flush(void);

#endif
