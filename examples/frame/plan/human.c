#include "human.h"

#include <stdio.h>

const char *human(char text[32], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 6; unit++) bytes /= 1000;
    snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}
