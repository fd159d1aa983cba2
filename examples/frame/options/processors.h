/* What the processors of this machine are good for, as defaults of programs. */
#ifndef PROCESSORS_H
#define PROCESSORS_H

#include <stdbool.h>

int processors_of_machine(void); /* that are online */
int processors_available(void);  /* that the process may use */
/* They multiply bf16 by instructions of their own. */
bool processors_multiply_bf16(void);

#endif
