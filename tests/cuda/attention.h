/* Shapes for the tiles of attention (tests/cuda/ops.c): heads of all widths, lengths at and next to
 * the edges of tiles, so many heads that each is one task, and so few that tiles are.
 *
 * qkv packed: examples, tokens, hidden, 3 hidden, heads. */
#define PACKED(b, t, h, w, heads, how)                                                             \
    {{"attention", "f[" #b "," #t "," #w "]",                                                      \
      "attention %1 {heads=" #heads " " how "} : f[" #b "," #t "," #h "]", NORM, 0, 0, REFUSED},   \
     {1, 8000, 1}}
#define PACKED_GRAD(b, t, h, w, heads, how)                                                        \
    {{"attention_grad", "f[" #b "," #t "," #h "] f[" #b "," #t "," #w "]",                         \
      "attention %2 {heads=" #heads " " how "} : f[" #b "," #t "," #h "]\n"                        \
      "saved %3 {index=0} : g[" #b "," #heads "," #t "]\n"                                         \
      "attention_grad %1, %3, %4, %2 {heads=" #heads " " how "} : f[" #b "," #t "," #w "]",        \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
/* The sums of the gradient's rows. */
#define PACKED_SUMS(b, t, h, w, heads, how)                                                        \
    {{"saved", "f[" #b "," #t "," #h "] f[" #b "," #t "," #w "]",                                  \
      "attention %2 {heads=" #heads " " how "} : f[" #b "," #t "," #h "]\n"                        \
      "saved %3 {index=0} : g[" #b "," #heads "," #t "]\n"                                         \
      "attention_grad %1, %3, %4, %2 {heads=" #heads " " how "} : f[" #b "," #t "," #w "]\n"       \
      "saved %5 {index=0} : f[" #w "]",                                                            \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
/* Apart, with a bias: which rows and which keys are not to be seen. m queries, n keys; all:
 * hidden (m + 2 n). */
#define APART(m, n, h, heads, how)                                                                 \
    {{"attention",                                                                                 \
      "f[1," #m "," #h "] f[1," #n "," #h "] f[1," #n "," #h "] b[2," #m ",1] b[1,1," #n "]",      \
      "constant {values=[-inf]} : f[]\nconstant {values=[0.5]} : f[]\n"                            \
      "where %4, %7, %6 : f[2," #m ",1]\nwhere %5, %7, %6 : f[1,1," #n "]\n"                       \
      "add %8, %9 : f[2," #m "," #n "]\n"                                                          \
      "attention %1, %2, %3, %10 {heads=" #heads " " how "} : f[1," #m "," #h "]",                 \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
/* The same with a bias of keys, which all queries have. */
#define APART_KEYS(m, n, h, heads, how)                                                            \
    {{"attention", "f[1," #m "," #h "] f[1," #n "," #h "] f[1," #n "," #h "] b[1,1," #n "]",       \
      "constant {values=[-inf]} : f[]\nconstant {values=[0.5]} : f[]\n"                            \
      "where %4, %6, %5 : f[1,1," #n "]\n"                                                         \
      "attention %1, %2, %3, %7 {heads=" #heads " " how "} : f[1," #m "," #h "]",                  \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
#define APART_GRAD(m, n, h, heads, all, how)                                                       \
    {{"attention_grad",                                                                            \
      "f[1," #m "," #h "] f[1," #m "," #h "] f[1," #n "," #h "] f[1," #n "," #h "] b[1,1," #n "]", \
      "constant {values=[-inf]} : f[]\nconstant {values=[0.5]} : f[]\n"                            \
      "where %5, %7, %6 : f[1,1," #n "]\n"                                                         \
      "attention %2, %3, %4, %8 {heads=" #heads " " how "} : f[1," #m "," #h "]\n"                 \
      "saved %9 {index=0} : g[1," #heads "," #m "]\n"                                              \
      "attention_grad %1, %9, %10, %2, %3, %4, %8 {heads=" #heads " " how "} : f[" #all "]",       \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
/* Apart, where several heads of q (rows of h) read one of k and v (rows of w). */
#define APART_GROUPS(b, m, n, h, w, heads, how)                                                    \
    {{"attention", "f[" #b "," #m "," #h "] f[" #b "," #n "," #w "] f[" #b "," #n "," #w "]",      \
      "attention %1, %2, %3 {heads=" #heads " " how "} : f[" #b "," #m "," #h "]", NORM, 0, 0,     \
      REFUSED},                                                                                    \
     {1, 8000, 1}}
#define APART_GROUPS_GRAD(b, m, n, h, w, heads, all, how)                                          \
    {{"attention_grad",                                                                            \
      "f[" #b "," #m "," #h "] f[" #b "," #m "," #h "] f[" #b "," #n "," #w "] f[" #b "," #n ","   \
      #w "]",                                                                                      \
      "attention %2, %3, %4 {heads=" #heads " " how "} : f[" #b "," #m "," #h "]\n"                \
      "saved %5 {index=0} : g[" #b "," #heads "," #m "]\n"                                         \
      "attention_grad %1, %5, %6, %2, %3, %4 {heads=" #heads " " how "} : f[" #all "]",            \
      NORM, 0, 0, REFUSED},                                                                        \
     {1, 8000, 1}}
/* Some of the queries, or with `key` of the keys: T the dtype of y. m queries, n keys, rows of h
 * and w. */
#define SOME(m, n, h, w, heads, T, how)                                                            \
    {{"attention", "f[1," #m "," #h "] f[1," #n "," #w "] f[1," #n "," #w "]",                     \
      "attention %1, %2, %3 {heads=" #heads " " how "} : " #T "[1," #m "," #h "]",                 \
      NORM, 0, 0, NO_GRADIENT},                                                                    \
     {1, 8000, 1}}
/* Of documents of `all` tokens, of which these queries are those from `from` on, before `to`. */
#define SOME_OF_DOCUMENTS(m, n, h, heads, T, all, from, to, how)                                   \
    {{"attention", "f[1," #m "," #h "] f[1," #n "," #h "] f[1," #n "," #h "] l[1," #all "]",       \
      "documents %4 : i32[1," #all ",2]\nslice %5 {axis=1 start=" #from " stop=" #to "} : i32[1," #m \
      ",2]\nattention %1, %2, %3, %6 {heads=" #heads " documents=true first=" #from " of=" #all   \
      " " how "} : " #T "[1," #m "," #h "]",                                                       \
      NORM, 0, 0, NO_GRADIENT},                                                                    \
     {1, 8000, 1}}
/* The lists of four blocks of 16: 0, 0 1, 1 2, 0 3. */
#define SOME_OF_BLOCKS(m, h, heads, how)                                                           \
    {{"attention", "f[1," #m "," #h "] f[1,64," #h "] f[1,64," #h "]",                             \
      "constant {values=[16,1,0,1,3,5,7,0,3,5,6,7,0,0,1,1,2,0,3,0,1,3,1,2,2,3]} : i32[26]\n"       \
      "attention %1, %2, %3, %4 {heads=" #heads " block=16 layouts=1 of=64 " how "} : f[1," #m     \
      "," #h "]",                                                                                  \
      NORM, 0, 0, NO_GRADIENT},                                                                    \
     {1, 8000, 1}}
/* Their gradients, where log-sum-exp is that of more keys than these. */
#define SOME_GRAD_OF(row, m, n, h, w, heads, more, text, how, result)                              \
    {{row,                                                                                         \
      "f[1," #m "," #h "] f[1," #m "," #h "] g[1," #heads "," #m "] f[1," #m "," #h "] f[1," #n    \
      "," #w "] f[1," #n "," #w "]" more,                                                          \
      text " {heads=" #heads " " how "} : " result, NORM, 0, 0, REFUSED},                          \
     {1, 8000, 1}}
#define SOME_GRAD(m, n, h, w, heads, T, how)                                                       \
    SOME_GRAD_OF("attention_backward", m, n, h, w, heads, "",                                      \
                 "attention_backward %1, %2, %3, %4, %5, %6", how, #T "[1," #m "," #h "]")
/* dK (0) or dV (1). */
#define SOME_GRAD_LEFT(m, n, h, w, heads, T, index, how)                                           \
    SOME_GRAD_OF("saved", m, n, h, w, heads, "", "attention_backward %1, %2, %3, %4, %5, %6", how, \
                 #T "[1," #m "," #h "]\nsaved %7 {index=" #index "} : g[1," #n "," #w "]")
#define SOME_GRAD_OF_DOCUMENTS(m, n, h, heads, T, from, to, index, how)                            \
    SOME_GRAD_OF("saved", m, n, h, h, heads, " l[1,136]",                                          \
                 "documents %7 : i32[1,136,2]\nslice %8 {axis=1 start=" #from " stop=" #to          \
                 "} : i32[1," #m ",2]\nattention_backward %1, %2, %3, %4, %5, %6, %9",             \
                 "documents=true first=" #from " of=136 " how,                                     \
                 #T "[1," #m "," #h "]\nsaved %10 {index=" #index "} : g[1," #n "," #h "]")
#define SOME_GRAD_OF_BLOCKS(m, h, heads, index, how)                                               \
    SOME_GRAD_OF("saved", m, 64, h, h, heads, "",                                                  \
                 "constant {values=[16,1,0,1,3,5,7,0,3,5,6,7,0,0,1,1,2,0,3,0,1,3,1,2,2,3]} : "     \
                 "i32[26]\nattention_backward %1, %2, %3, %4, %5, %6, %7",                         \
                 "block=16 layouts=1 of=64 " how,                                                  \
                 "f[1," #m "," #h "]\nsaved %8 {index=" #index "} : g[1,64," #h "]")
PACKED(2, 64, 128, 384, 2, "scale=0.125"),
PACKED(1, 1, 32, 96, 2, "scale=0.25"),
PACKED(1, 65, 48, 144, 2, "scale=0.25 causal=true"),
PACKED(1, 130, 128, 384, 1, "scale=0.1 p=0.1 stream=5 causal=true"),
PACKED(1, 7, 200, 600, 1, "scale=-0.1 p=0.1 stream=5"),
PACKED(1, 72, 128, 384, 2, "scale=0.125 p=0.4 stream=6"),
PACKED(1, 40, 200, 600, 1, "scale=0.1 p=0.4 stream=6 causal=true"),
PACKED(1, 68, 64, 192, 1, "scale=0.1 p=0.4 stream=6"),
APART(65, 128, 64, 2, "scale=0.2"),
APART(1, 130, 160, 2, "scale=0.1 p=0.2 stream=4294967295"),
PACKED(1, 128, 192, 576, 3, "scale=0.125"),
PACKED(2, 136, 128, 384, 2, "scale=0.2 p=0.1 stream=5"),
PACKED(1, 203, 64, 192, 1, "scale=0.125 causal=true"),
PACKED(1, 264, 64, 192, 1, "scale=0.3 p=0.5 stream=2 causal=true"),
APART(70, 136, 128, 2, "scale=0.2 p=0.1 stream=5"),
APART(130, 72, 128, 2, "scale=0.2 causal=true"),
APART(3, 320, 128, 2, "scale=0.3 p=0.3 stream=7 causal=true"),
APART_KEYS(140, 200, 128, 2, "scale=0.3 p=0.3 stream=7"),
APART_KEYS(64, 192, 64, 1, "scale=0.3 causal=true"),
APART_KEYS(5, 12, 64, 1, "scale=0.3"),
PACKED_GRAD(1, 64, 128, 384, 2, "scale=0.125"),
PACKED_GRAD(1, 7, 32, 96, 2, "scale=0.25 p=0.5 stream=2 causal=true"),
PACKED_GRAD(1, 65, 48, 144, 2, "scale=0.25 p=0.1 stream=2"),
PACKED_GRAD(1, 128, 64, 192, 1, "scale=0.1 p=0.1 stream=5 causal=true"),
PACKED_GRAD(1, 18, 256, 768, 1, "scale=0.1 p=0.1 stream=5 causal=true"),
PACKED_GRAD(1, 72, 64, 192, 1, "scale=0.1 p=0.4 stream=6"),
PACKED_GRAD(1, 72, 128, 384, 1, "scale=0.1 p=0.4 stream=6"),
PACKED_GRAD(1, 68, 128, 384, 2, "scale=0.1 p=0.4 stream=6"),
PACKED_GRAD(1, 65, 256, 768, 2, "scale=0.1 p=0.1 stream=5 causal=true"),
APART_GRAD(130, 65, 64, 2, 16640, "scale=0.2 causal=true"),
APART_GRAD(1, 130, 80, 1, 20880, "scale=0.1 p=0.2 stream=5"),
APART_GRAD(70, 129, 64, 2, 20992, "scale=0.1 p=0.2 stream=5 causal=true"),
APART_GRAD(3, 18, 300, 1, 11700, "scale=0.1 p=0.2 stream=5 causal=true"),
PACKED_GRAD(1, 264, 128, 384, 2, "scale=0.125 p=0.1 stream=5"),
PACKED_GRAD(1, 300, 64, 192, 1, "scale=0.125 causal=true"),
PACKED_SUMS(2, 136, 128, 384, 2, "scale=0.125 p=0.1 stream=5"),
PACKED_SUMS(3, 23, 64, 192, 1, "scale=0.125 causal=true"),
PACKED_SUMS(1, 24, 64, 128, 4, "kv_heads=2 scale=0.25"),
APART_GRAD(130, 72, 64, 1, 17536, "scale=0.2 p=0.2 stream=5"),
APART_GRAD(70, 264, 64, 1, 38272, "scale=0.2 p=0.1 stream=5 causal=true"),
APART_GRAD(270, 129, 64, 1, 33792, "scale=-0.1 causal=true"),
/* Capped scores: all kernels, and those of cards with products of warpgroups, which leave them. */
PACKED(1, 65, 48, 144, 2, "scale=0.25 causal=true cap=0.5"),
PACKED(2, 136, 128, 384, 2, "scale=0.2 p=0.1 stream=5 cap=0.5"),
PACKED(1, 20, 600, 1200, 2, "kv_heads=1 scale=0.05 causal=true window=9 cap=0.5"),
APART(70, 136, 128, 2, "scale=0.2 cap=0.7"),
PACKED_GRAD(1, 64, 128, 384, 2, "scale=0.125 cap=0.5"),
PACKED_GRAD(1, 65, 48, 144, 2, "scale=0.25 p=0.1 stream=2 cap=0.5"),
PACKED_GRAD(1, 20, 600, 1200, 2, "kv_heads=1 scale=0.05 causal=true window=9 cap=0.5"),
APART_GRAD(70, 129, 64, 2, 20992, "scale=0.1 p=0.2 stream=5 causal=true window=40 cap=0.4"),
/* Fewer heads of k and v; windows. */
PACKED(1, 70, 64, 128, 4, "kv_heads=2 scale=0.25 causal=true window=20"),
PACKED(1, 200, 64, 192, 1, "scale=0.25 window=20"),
PACKED(2, 136, 128, 384, 2, "scale=0.2 p=0.1 stream=5 window=100"),
APART(70, 136, 128, 2, "scale=0.2 window=9"),
APART(130, 72, 128, 2, "scale=0.2 window=100"),
PACKED_GRAD(1, 264, 64, 192, 1, "scale=0.125 window=33"),
PACKED_GRAD(1, 65, 48, 144, 2, "scale=0.25 p=0.1 stream=2 window=40"),
APART_GRAD(70, 129, 64, 2, 20992, "scale=0.1 p=0.2 stream=5 window=40"),
PACKED(1, 136, 256, 384, 4, "kv_heads=1 scale=0.125 p=0.1 stream=5"),
PACKED(1, 20, 600, 1200, 2, "kv_heads=1 scale=0.05 causal=true window=9"),
APART(130, 72, 128, 2, "scale=0.2 causal=true window=30"),
APART_GROUPS(2, 70, 70, 256, 64, 4, "kv_heads=1 scale=0.125 causal=true"),
APART_GROUPS(1, 66, 136, 256, 128, 4, "kv_heads=2 scale=0.125 p=0.1 stream=5"),
APART_GROUPS(1, 20, 33, 64, 32, 4, "kv_heads=2 scale=0.25"),
APART_GROUPS(1, 5, 7, 600, 300, 2, "kv_heads=1 scale=0.05 causal=true window=4"),
PACKED_GRAD(1, 70, 64, 128, 4, "kv_heads=2 scale=0.25 causal=true window=20"),
PACKED_GRAD(1, 72, 256, 384, 4, "kv_heads=1 scale=0.125 p=0.1 stream=5"),
PACKED_GRAD(1, 20, 600, 1200, 2, "kv_heads=1 scale=0.05 causal=true window=9"),
APART_GRAD(70, 129, 64, 2, 20992, "scale=0.1 p=0.2 stream=5 causal=true window=40"),
APART_GROUPS_GRAD(2, 70, 70, 256, 64, 4, 53760, "kv_heads=1 scale=0.125 causal=true"),
APART_GROUPS_GRAD(1, 66, 136, 256, 128, 4, 51712, "kv_heads=2 scale=0.125 p=0.1 stream=5"),
APART_GROUPS_GRAD(1, 20, 33, 64, 32, 4, 3392, "kv_heads=2 scale=0.25 causal=true window=9"),
APART_GROUPS_GRAD(1, 5, 7, 600, 300, 2, 7200, "kv_heads=1 scale=0.05 p=0.1 stream=5"),
/* Some of the queries: the first of them on an edge of a tile, and not; heads that products of
 * warpgroups take. */
SOME(70, 136, 128, 128, 2, f, "scale=0.2 causal=true first=40 of=136"),
SOME(64, 200, 64, 64, 1, f, "scale=0.125 p=0.2 stream=5 causal=true first=64 of=200"),
SOME(70, 136, 256, 64, 4, f, "kv_heads=1 scale=0.125 causal=true window=30 first=33 of=136"),
SOME_OF_DOCUMENTS(70, 136, 80, 2, f, 136, 40, 110, "scale=0.2 causal=true"),
SOME_OF_BLOCKS(27, 70, 1, "scale=0.2 first=37"),
SOME_OF_BLOCKS(33, 300, 1, "scale=0.1 causal=true first=20"),
/* Some of the keys: before, of, and after the queries. */
SOME(70, 64, 128, 64, 2, g, "kv_heads=1 scale=0.2 p=0.2 stream=5 causal=true first=100 of=200 key=72 keys=200"),
SOME(70, 66, 54, 54, 2, g, "scale=0.2 p=0.2 stream=5 causal=true first=100 of=200 key=103 keys=200"),
SOME(70, 64, 64, 64, 1, g, "scale=0.125 causal=true window=60 first=96 of=256 key=64 keys=256"),
SOME(40, 130, 64, 64, 1, g, "scale=0.125 causal=true of=256 key=41 keys=256"),
SOME(20, 33, 600, 300, 2, g, "kv_heads=1 scale=0.05 p=0.1 stream=5 causal=true first=40 of=99 key=30 keys=99"),
SOME_OF_DOCUMENTS(70, 60, 48, 1, g, 136, 40, 110, "scale=0.2 key=30 keys=136"),
SOME_GRAD(70, 136, 128, 128, 2, f, "scale=0.2 causal=true first=40 of=136"),
SOME_GRAD_LEFT(70, 136, 256, 64, 4, f, 1, "kv_heads=1 scale=0.125 causal=true window=30 first=33 of=136"),
SOME_GRAD(70, 64, 128, 64, 2, g, "kv_heads=1 scale=0.2 p=0.2 stream=5 causal=true first=100 of=200 key=72 keys=200"),
SOME_GRAD_LEFT(70, 264, 54, 54, 2, g, 0, "scale=0.2 p=0.2 stream=5 causal=true first=100 of=400 key=103 keys=400"),
SOME_GRAD(40, 130, 64, 64, 1, g, "scale=0.125 causal=true of=256 key=41 keys=256"),
SOME_GRAD_LEFT(70, 64, 64, 64, 1, g, 0, "scale=0.125 causal=true window=60 cap=0.5 first=96 of=256 key=64 keys=256"),
SOME_GRAD_LEFT(20, 33, 600, 300, 2, g, 0, "kv_heads=1 scale=0.05 p=0.1 stream=5 causal=true first=40 of=99 key=30 keys=99"),
SOME_GRAD_OF_DOCUMENTS(70, 136, 64, 1, f, 40, 110, 0, "scale=0.2 causal=true"),
SOME_GRAD_OF_DOCUMENTS(70, 60, 48, 1, g, 40, 110, 1, "scale=0.2 key=30 keys=136"),
SOME_GRAD_OF_BLOCKS(27, 70, 1, 0, "scale=0.2 first=37"),
SOME_GRAD_OF_BLOCKS(33, 300, 1, 1, "scale=0.1 causal=true first=20"),
/* Caches whose keys a block mask lists, of 4 blocks: 0, 0 1, 1 2, 0 3; one layout, and one for each
 * of 2 heads, the second of the diagonal. At most 30 keys before. */
#define LISTED(m, h, lists, count, how)                                                            \
    {{"cached_attention",                                                                          \
      "f[2," #m "," #h "] f[2," #m "," #h "] f[2," #m "," #h "] x[2] r[2] c[2,64," #h "] c[2,64,"  \
      #h "]",                                                                                      \
      "constant {values=[" lists "]} : i32[" #count "]\n"                                          \
      "cached_attention %1, %2, %3, %4, %5, %6, %7, %8 {scale=0.2 block=16 " how "} : f[2," #m "," \
      #h "]",                                                                                      \
      NORM, 0, 0, MUTATES},                                                                        \
     {33, 30, 1}}
LISTED(33, 70, "16,1,0,1,3,5,7,0,3,5,6,7,0,0,1,1,2,0,3,0,1,3,1,2,2,3", 26, "heads=1 layouts=1"),
LISTED(33, 24, "16,2,0,1,3,5,7,7,8,9,10,11,0,3,5,6,7,7,8,9,10,11,0,0,1,1,2,0,3,0,1,2,3,"
               "0,1,3,1,2,2,3,0,1,2,3", 44, "heads=2 layouts=2"),
LISTED(33, 70, "16,1,0,1,3,5,7,0,3,5,6,7,0,0,1,1,2,0,3,0,1,3,1,2,2,3", 26,
       "heads=1 layouts=1 cap=0.6"),
#undef LISTED
#undef PACKED
#undef PACKED_GRAD
#undef PACKED_SUMS
#undef APART
#undef APART_KEYS
#undef APART_GRAD
#undef APART_GROUPS
#undef APART_GROUPS_GRAD
#undef SOME
#undef SOME_OF_DOCUMENTS
#undef SOME_OF_BLOCKS
#undef SOME_GRAD_OF
#undef SOME_GRAD
#undef SOME_GRAD_LEFT
#undef SOME_GRAD_OF_DOCUMENTS
#undef SOME_GRAD_OF_BLOCKS
