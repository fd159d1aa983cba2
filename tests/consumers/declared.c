/* A file that calls nothing of the library. */
#include <zeroflow_llm.h>

int main(void) { return 0; }
