/* The implementation in a file of its own. */
#define ZEROFLOW_IMPLEMENTATION
#include <zeroflow.h>
