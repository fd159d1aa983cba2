/* A program with an stb_ds of its own, which must not meet the one inside the library. */
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>

#define main app
#include "app.c"
#undef main

int main(void)
{
    int *numbers = NULL;
    struct {
        char *key;
        int value;
    } *names = NULL;
    bool good;
    for (int i = 0; i < 100; i++) arrput(numbers, i);
    shdefault(names, -1);
    shput(names, "two", 2);
    good = arrlen(numbers) == 100 && numbers[99] == 99 && shget(names, "two") == 2;
    good = good && shget(names, "three") == -1;
    arrfree(numbers);
    shfree(names);
    return good ? app() : 1;
}
