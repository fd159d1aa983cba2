/* The header is included for its declarations first, by the program, and later for the
 * implementation. */
#include "app.c"

#define ZEROFLOW_IMPLEMENTATION
#include <zeroflow.h>
