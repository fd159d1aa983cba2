/* Bytes as people read them. */
#ifndef HUMAN_H
#define HUMAN_H

/* "12.34 GB", in powers of 1000. */
const char *human(char text[32], double bytes);

#endif
