#define _GNU_SOURCE
#include "processors.h"

#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

int processors_of_machine(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int processors_available(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    return processors_of_machine();
}

bool processors_multiply_bf16(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return false;
#endif
}
