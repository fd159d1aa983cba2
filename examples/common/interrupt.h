/* What ends a run in good order, after the step under way: Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, or a
 * reader of the standard output that is gone. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* From here on these are noted. A second Ctrl-C ends the process at once, unless a launcher started
 * it: launchers pass on a signal that has come from the terminal already. SIGHUP that is ignored
 * (nohup) stays so; SIGPIPE is ignored. Flushes, as below. */
void interrupt_catch(bool launched);

/* Whether one of them has come. */
bool interrupt_came(void);

/* Flushes the standard output. That its reader is gone counts as a signal; other errors are
 * command_main's to tell. */
void interrupt_flush(void);

#endif
