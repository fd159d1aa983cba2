/* The text of a small language model of two layers of experts. */
#ifndef EXPERT_MODEL_H
#define EXPERT_MODEL_H
#include "../support/test.h"

enum { TOKENS = 16, WORDS = 11, WIDTH = 16, EXPERTS = 8, TEXT = 6000 };

/* A layer of 8 experts, of which each token has 2: nodes from `a` to `o`. `$`: a float dtype, `@`:
 * that of its sums, `#`: the width of rows; `<`, `~`, `^`, `>`: how one weight is held. */
#define LAYER(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, in, rows, capacity, name)               \
    "%" a " = param \"" name ".gate\" {init=normal b=0.5} : $[8,#]\n"                             \
    "%" b " = linear %" in ", %" a " : $[16,8]\n"                                                  \
    "%" c " = route %" b " {k=2 normalize=true} : @[16,2]\n%" d " = saved %" c " : i32[16,2]\n"    \
    "%" e " = expert_rows %" d " {experts=8 rows=" rows capacity "} : i32[" rows "]\n"             \
    "%" f " = saved %" e " : i32[8,2]\n%" g " = saved %" e " {index=1} : i32[16,2]\n"              \
    "%" h " = dispatch %" in ", %" e ", %" g " : $[" rows ",#]\n"                                 \
    "%" i " = param \"" name ".up\" {init=normal b=0.3<} : ~[8,32,^]\n"                           \
    "%" j " = grouped_linear %" h ", %" i ", %" f "> : $[" rows ",32]\n"                           \
    "%" k " = gelu %" j " : $[" rows ",32]\n"                                                      \
    "%" l " = param \"" name ".down\" {init=normal b=0.3} : $[8,#,32]\n"                          \
    "%" m " = grouped_linear %" k ", %" l ", %" f " : $[" rows ",#]\n"                            \
    "%" n " = combine %" m ", %" e ", %" g ", %" c " : $[16,#]\n"                                 \
    "%" o " = add %" n ", %" in " : $[16,#]\n"

/* The second layer has a capacity. */
static const char model[] =
    "%1 = param \"e\" {init=normal b=0.5} : $[11,#]\n%2 = input \"tokens\" : i32[2,8]\n"
    "%3 = gather_rows %1, %2 : $[2,8,#]\n%4 = reshape %3 {shape=[16,#]} : $[16,#]\n" LAYER(
        "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "4",
        "32", "", "h.0")
        LAYER("20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33",
              "34", "19", "40", " capacity=5",
              "h.1") "%35 = input \"labels\" : i32[2,8]\n%36 = reshape %35 {shape=[16]} : i32[16]\n"
                     "%37 = input \"weight\" : @[]\n"
                     "%38 = head_loss %34, %1, %36, %37 {ignore=-100} : @[]\noutput %38 \"loss\" "
                     "role=loss\n"
                     "%39 = input \"lr\" : @[]\n";

static int width = WIDTH; /* of the model's rows: # */
static int bits;          /* of the first weights of experts, in blocks of 64 numbers; 0: floats */

static void write_model(char text[TEXT], const char *dtype)
{
    const char *const wide = strcmp(dtype, "bf16") ? dtype : "f32";
    char few[40] = "", alike[40] = "", number[12], bytes[12];
    static const char marks[] = "$@#<~^>";
    const char *const as[] = {dtype, wide, number, few, bits ? "u8" : dtype, bytes, alike};
    size_t at = 0;
    snprintf(number, sizeof number, "%d", width);
    snprintf(bytes, sizeof bytes, "%d", bits ? width / 64 * (bits * 8 + 4) : width);
    if (bits) {
        snprintf(few, sizeof few, " frozen=true bits=%d block=64", bits);
        snprintf(alike, sizeof alike, " {bits=%d block=64}", bits);
    }
    for (const char *c = model; *c && at + 40 < TEXT; c++) {
        const char *const mark = strchr(marks, *c);
        if (mark) at += (size_t)snprintf(text + at, TEXT - at, "%s", as[mark - marks]);
        else text[at++] = *c;
    }
    text[at] = '\0';
}

#endif
