/* Every operator, driven by one table: what a row computes against the same graph in f64, its
 * gradient against central differences, equal bits for every number of threads, odd and empty
 * shapes, results written over operands.
 *
 * A case is IR. Operands are %1, %2, ... in the order of their types; lines of `text` are numbered
 * on from there, and the value of the last one is checked. Capital letters are sizes (size_of), `f`
 * is the dtype under test, `g` the one of sums (f32, f64 for f64). A type's first letter is also
 * what the operand holds:
 *
 *     f  -2..2, not near 0      p  0.5..2        u  -1..1          s  0..1       h  -300..300
 *     q  -1, -0.5, 0, 0.5, 1    b  bool          k  u8             i  i32        j  i64, 62 bits
 *     x  i32 row of N           y  i64 row of N  l  i64 class of N or -100
 *     w  a param                m  a state g     v  a state g, 0.5..2            t  a state i64, 3
 */
#include "test.h"

#include <stdarg.h>

/* The error that a result may have: `units` of 2^-24 of its ... */
enum scale {
    EXACT,    /* none at all */
    RELATIVE, /* magnitude */
    TERMS,    /* terms' magnitudes: the same graph over the operands' magnitudes */
    GROWTH,   /* 1 + |x|, times |dy| for a gradient of (dy, x) */
    NORM      /* max(1, largest magnitude): terms cancel, values on the way are of the order of 1 */
};

enum flags {
    NO_GRADIENT = 1, /* the result is no float, or has a gradient of 0 everywhere */
    REFUSED = 2,     /* a row that gradients are made of: autograd says so */
    MUTATES = 4,     /* operands w, m, v change */
    RANDOM = 8,      /* another mask every step */
    NEEDS_N = 16,    /* N = 0 has no meaning */
    NEEDS_R = 32,
    WIDE = 64 /* N = 1 and N = 2 cancel to nothing */
};

typedef struct op_case {
    const char *row, *operands, *text;
    enum scale scale;
    double units;
    char per; /* a size whose value is added to the units; 0: none */
    int flags;
} op_case;

/* Units are roundings to 24 bits: each operation of a fast kernel costs 1, a function what
 * cpu/vmath.c states (1 ulp is 2 units), a sum in lanes of at most 1024 elements 16 + 6, a product
 * one for each of its terms. A softmax whose row spans 4 has 6.2 in each exponential, the same in
 * their sum and 22 of adding, and 2 in the division. */
static const op_case cases[] = {
    {"input", "f[R,N]", "scale %1 {by=1} : f[R,N]", EXACT, 0, 0, 0},
    {"output", "f[R,N]", "scale %1 {by=1} : f[R,N]", EXACT, 0, 0, 0},
    {"gradient", "f[R,N]", "scale %1 {by=1} : f[R,N]", EXACT, 0, 0, 0},
    {"param", "", "param \"w\" {init=uniform a=-1 b=3} : f[R,N]", RELATIVE, 1, 0, NO_GRADIENT},
    {"state", "", "state \"s\" {value=0.1} : f[R,N]", RELATIVE, 1, 0, NO_GRADIENT},
    {"constant", "", "constant {values=[0.1]} : f[R,N]", RELATIVE, 1, 0, NO_GRADIENT},
    {"constant", "", "constant {values=[1,2.5,-3,0.1]} : f[2,2]", RELATIVE, 1, 0, NO_GRADIENT},
    {"advance", "t[]", "update:\nadvance %1", EXACT, 0, 0, MUTATES},
    {"advance", "t[] p[]", "update:\nadvance %1, %2", EXACT, 0, 0, MUTATES},

    {"add", "f[R,N] f[R,N]", "add %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"add", "f[R,N] f[N]", "add %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"add", "f[R,1] f[N]", "add %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"add", "f[] f[]", "add %1, %2 : f[]", RELATIVE, 1, 0, 0},
    {"add", "f[] f[R,N]", "add %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"add", "f[2,1,R,1,2,N] f[R,3,1,1]", "add %1, %2 : f[2,1,R,3,2,N]", RELATIVE, 1, 0, 0},
    {"add", "f[2,3,1,N] f[3,R,1]", "add %1, %2 : f[2,3,R,N]", RELATIVE, 1, 0, 0},
    {"add", "f[R,N]", "add %1, %1 : f[R,N]", RELATIVE, 1, 0, 0},
    {"add", "i[R,N] i[N]", "add %1, %2 : i32[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"sub", "f[R,N] f[R,N]", "sub %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"sub", "f[R,1] f[R,N]", "sub %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"sub", "j[R,N] j[R,N]", "sub %1, %2 : i64[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"mul", "f[R,N] f[R,N]", "mul %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"mul", "f[N] f[R,N]", "mul %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"mul", "f[R,N] f[]", "mul %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"div", "f[R,N] p[R,N]", "div %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"div", "f[R,N] p[R,1]", "div %1, %2 : f[R,N]", RELATIVE, 1, 0, 0},
    {"div", "i[R,N] i[R,N]", "div %1, %2 : i32[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"maximum", "f[R,N] f[R,N]", "maximum %1, %2 : f[R,N]", EXACT, 0, 0, 0},
    {"maximum", "f[R,1] f[N]", "maximum %1, %2 : f[R,N]", EXACT, 0, 0, 0},
    {"minimum", "f[R,N] f[R,N]", "minimum %1, %2 : f[R,N]", EXACT, 0, 0, 0},
    {"minimum", "f[R,N] f[]", "minimum %1, %2 : f[R,N]", EXACT, 0, 0, 0},
    {"equal", "q[R,N] q[R,N]", "equal %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"equal", "q[R,1] q[N]", "equal %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"equal", "j[R,N] j[1]", "equal %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"less", "q[R,N] q[R,N]", "less %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"less", "q[] q[R,N]", "less %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"less", "i[R,N] i[N]", "less %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"where", "b[R,N] f[R,N] f[R,N]", "where %1, %2, %3 : f[R,N]", EXACT, 0, 0, 0},
    {"where", "b[R,1] f[R,N] f[N]", "where %1, %2, %3 : f[R,N]", EXACT, 0, 0, 0},
    {"where", "b[N] f[] f[R,1]", "where %1, %2, %3 : f[R,N]", EXACT, 0, 0, 0},
    {"where", "b[R,N] f[] f[]", "where %1, %2, %3 : f[R,N]", EXACT, 0, 0, 0},
    {"where", "b[] f[R,N] f[N]", "where %1, %2, %3 : f[R,N]", EXACT, 0, 0, 0},
    {"where", "k[R,N] j[R,N] j[N]", "where %1, %2, %3 : i64[R,N]", EXACT, 0, 0, NO_GRADIENT},

    {"neg", "f[R,N]", "neg %1 : f[R,N]", EXACT, 0, 0, 0},
    {"scale", "f[R,N]", "scale %1 {by=-0.1} : f[R,N]", RELATIVE, 2, 0, 0},
    {"exp", "f[R,N]", "exp %1 : f[R,N]", RELATIVE, 2.2, 0, 0},
    {"log", "p[R,N]", "log %1 : f[R,N]", RELATIVE, 2, 0, 0},
    {"sqrt", "p[R,N]", "sqrt %1 : f[R,N]", RELATIVE, 1, 0, 0},
    {"rsqrt", "p[R,N]", "rsqrt %1 : f[R,N]", RELATIVE, 2.01, 0, 0},
    {"tanh", "f[R,N]", "tanh %1 : f[R,N]", RELATIVE, 5.2, 0, 0},
    {"tanh_grad", "f[R,N] u[R,N]", "tanh_grad %1, %2 : f[R,N]", RELATIVE, 4.01, 0, REFUSED},
    {"sigmoid", "f[R,N]", "sigmoid %1 : f[R,N]", RELATIVE, 5, 0, 0},
    {"sigmoid_grad", "f[R,N] s[R,N]", "sigmoid_grad %1, %2 : f[R,N]", RELATIVE, 3.01, 0, REFUSED},
    {"relu", "f[R,N]", "relu %1 : f[R,N]", EXACT, 0, 0, 0},
    {"relu_grad", "f[R,N] f[R,N]", "relu_grad %1, %2 : f[R,N]", EXACT, 0, 0, REFUSED},
    {"gelu", "f[R,N]", "gelu %1 : f[R,N]", GROWTH, 2.5, 0, 0},
    {"gelu", "f[R,N]", "gelu %1 {form=tanh} : f[R,N]", GROWTH, 2.5, 0, 0},
    {"gelu_grad", "f[R,N] f[R,N]", "gelu_grad %1, %2 : f[R,N]", GROWTH, 3.7, 0, REFUSED},
    {"gelu_grad", "f[R,N] f[R,N]", "gelu_grad %1, %2 {form=tanh} : f[R,N]", GROWTH, 3.7, 0,
     REFUSED},
    {"silu", "f[R,N]", "silu %1 : f[R,N]", GROWTH, 2.5, 0, 0},
    {"saved", "f[R,N] f[R,N]", "gelu_grad %1, %2 : f[R,N]\nsaved %3 {index=0} : f[R,N]", NORM, 6, 0,
     REFUSED},
    {"saved", "f[R,N] f[R,N]", "silu_grad %1, %2 : f[R,N]\nsaved %3 {index=0} : f[R,N]", NORM, 6, 0,
     REFUSED},
    {"silu_grad", "f[R,N] f[R,N]", "silu_grad %1, %2 : f[R,N]", GROWTH, 3.7, 0, REFUSED},
    {"cast", "f[R,N]", "cast %1 {to=f64} : f64[R,N]", EXACT, 0, 0, 0},
    {"cast", "f[R,N]", "cast %1 {to=bf16} : bf16[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "h[R,N]", "cast %1 {to=f16} : f16[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "h[R,N]", "cast %1 {to=i32} : i32[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "h[R,N]", "cast %1 {to=i64} : i64[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "h[R,N]", "cast %1 {to=u8} : u8[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "q[R,N]", "cast %1 {to=bool} : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "j[R,N]", "cast %1 {to=i32} : i32[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "i[R,N]", "cast %1 {to=i64} : i64[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cast", "b[R,N]", "cast %1 {to=bf16} : bf16[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"dropout", "f[R,N]", "dropout %1 {p=0.25 stream=7} : f[R,N]", RELATIVE, 2, 0, RANDOM},

    {"reshape", "f[R,N]", "reshape %1 {shape=[S]} : f[S]", EXACT, 0, 0, 0},
    {"reshape", "f[1,1]", "reshape %1 : f[]", EXACT, 0, 0, 0},
    {"reshape", "b[R,N]", "reshape %1 {shape=[1,N,1,R]} : bool[1,N,1,R]", EXACT, 0, 0, NO_GRADIENT},
    {"view", "f[R,N]", "view %1 {shape=[S]} : f[S]", EXACT, 0, 0, REFUSED},
    {"view", "f[7]", "view %1 {at=2 shape=[2,2]} : f[2,2]", EXACT, 0, 0, REFUSED},
    {"pack", "f[R,N]", "pack %1 {at=[0] size=S} : f[S]", EXACT, 0, 0, REFUSED},
    {"pack", "f[3,5] f[2]", "pack %1, %2 {at=[1,20] size=24} : f[24]", EXACT, 0, 0, REFUSED},
    {"slice", "f[R,N]", "slice %1 {axis=1 start=A stop=B} : f[R,C]", EXACT, 0, 0, 0},
    {"slice", "f[R,N]", "slice %1 {axis=0 start=E stop=F} : f[G,N]", EXACT, 0, 0, 0},
    {"slice", "f[2,R,N]", "slice %1 {axis=1 start=E stop=F} : f[2,G,N]", EXACT, 0, 0, 0},
    {"slice", "f[1,R,N]", "slice %1 {axis=1 start=E stop=F} : f[1,G,N]", EXACT, 0, 0, 0},
    {"slice", "f[R,N,1]", "slice %1 {axis=2 start=1 stop=1} : f[R,N,0]", EXACT, 0, 0, NO_GRADIENT},
    {"slice", "j[R,N]", "slice %1 {axis=1 start=A stop=B} : i64[R,C]", EXACT, 0, 0, NO_GRADIENT},
    {"pad", "f[R,N]", "pad %1 {axis=1 before=2 after=3} : f[R,P]", EXACT, 0, 0, 0},
    {"pad", "f[R,N]", "pad %1 {axis=0 before=2 after=3} : f[V,N]", EXACT, 0, 0, 0},
    {"pad", "f[2,R,N]", "pad %1 {axis=1 before=0 after=5} : f[2,V,N]", EXACT, 0, 0, 0},
    {"pad", "b[R,N]", "pad %1 {axis=1 before=5} : bool[R,P]", EXACT, 0, 0, NO_GRADIENT},
    {"transpose", "f[R,N]", "transpose %1 {order=[1,0]} : f[N,R]", EXACT, 0, 0, 0},
    {"transpose", "f[2,R,3,N]", "transpose %1 {order=[0,2,1,3]} : f[2,3,R,N]", EXACT, 0, 0, 0},
    {"transpose", "f[2,R,3,N]", "transpose %1 {order=[0,2,3,1]} : f[2,3,N,R]", EXACT, 0, 0, 0},
    {"transpose", "f[R,2,N]", "transpose %1 {order=[2,1,0]} : f[N,2,R]", EXACT, 0, 0, 0},
    {"transpose", "f[2,1,R,2,1,N]", "transpose %1 {order=[5,3,2,0,1,4]} : f[N,2,R,2,1,1]", EXACT, 0,
     0, 0},
    {"transpose", "f[]", "transpose %1 : f[]", EXACT, 0, 0, 0},
    {"transpose", "j[R,N]", "transpose %1 {order=[1,0]} : i64[N,R]", EXACT, 0, 0, NO_GRADIENT},
    {"transpose", "b[R,N,2]", "transpose %1 {order=[2,1,0]} : bool[2,N,R]", EXACT, 0, 0,
     NO_GRADIENT},
    {"concat", "f[R,N] f[2,N] f[R,N]", "concat %1, %2, %3 : f[T,N]", EXACT, 0, 0, 0},
    {"concat", "f[R,N] f[R,1]", "concat %1, %2 {axis=1} : f[R,U]", EXACT, 0, 0, 0},
    {"concat", "f[2,R,N] f[2,5,N]", "concat %1, %2 {axis=1} : f[2,V,N]", EXACT, 0, 0, 0},
    {"concat", "f[R,N]", "concat %1, %1, %1 {axis=1} : f[R,W]", EXACT, 0, 0, 0},
    {"concat", "j[R,N] j[R,5]", "concat %1, %2 {axis=1} : i64[R,P]", EXACT, 0, 0, NO_GRADIENT},
    {"broadcast", "f[N]", "broadcast %1 {shape=[R,N]} : f[R,N]", EXACT, 0, 0, 0},
    {"broadcast", "f[R,1]", "broadcast %1 {shape=[R,N]} : f[R,N]", EXACT, 0, 0, 0},
    {"broadcast", "f[]", "broadcast %1 {shape=[R,N]} : f[R,N]", EXACT, 0, 0, 0},
    {"broadcast", "f[1,R,1,N]", "broadcast %1 {shape=[2,2,R,3,N]} : f[2,2,R,3,N]", EXACT, 0, 0, 0},
    {"broadcast", "k[1,N]", "broadcast %1 {shape=[R,N]} : u8[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"sum_to", "f[R,N]", "sum_to %1 {shape=[N]} : f[N]", TERMS, 1, 0, 0},
    {"sum_to", "f[R,N]", "sum_to %1 {shape=[R,1]} : f[R,1]", TERMS, 23, 0, 0},
    {"sum_to", "f[R,N]", "sum_to %1 : f[]", TERMS, 23, 0, 0},
    {"sum_to", "f[R,N]", "sum_to %1 {shape=[R,N]} : f[R,N]", EXACT, 0, 0, 0},
    {"sum_to", "f[2,3,R,N]", "sum_to %1 {shape=[2,1,1,N]} : f[2,1,1,N]", TERMS, 1, 0, 0},
    {"sum_to", "f[2,3,R,N]", "sum_to %1 {shape=[3,1,N]} : f[3,1,N]", TERMS, 1, 0, 0},
    {"sum_to", "f[2,R,3,N]", "sum_to %1 {shape=[R,1,1]} : f[R,1,1]", TERMS, 23, 0, 0},
    {"sum_to", "f[2,R,2,N,2,1]", "sum_to %1 {shape=[2,1,2,1,2,1]} : f[2,1,2,1,2,1]", TERMS, 1, 0,
     0},

    {"matmul", "f[R,N] f[N,M]", "matmul %1, %2 : f[R,M]", TERMS, 1, 'N', 0},
    {"matmul", "f[R,N] f[M,N]", "matmul %1, %2 {transpose_b=true} : f[R,M]", TERMS, 1, 'N', 0},
    {"matmul", "f[N,R] f[N,M]", "matmul %1, %2 {transpose_a=true} : f[R,M]", TERMS, 1, 'N', 0},
    {"matmul", "f[N,R] f[M,N]", "matmul %1, %2 {transpose_a=true transpose_b=true} : f[R,M]", TERMS,
     1, 'N', 0},
    {"matmul", "f[2,R,N] f[N,M]", "matmul %1, %2 : f[2,R,M]", TERMS, 1, 'N', 0},
    {"matmul", "f[2,1,R,N] f[3,N,M]", "matmul %1, %2 : f[2,3,R,M]", TERMS, 1, 'N', 0},
    {"matmul", "f[2,3,N,R] f[2,3,M,N]",
     "matmul %1, %2 {transpose_a=true transpose_b=true} : f[2,3,R,M]", TERMS, 1, 'N', 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 : f[R,M]", TERMS, 1, 'N', 0},
    {"linear", "f[2,R,N] f[M,N] f[M]", "linear %1, %2, %3 : f[2,R,M]", TERMS, 2, 'N', 0},
    {"linear", "f[N] f[M,N] f[M]", "linear %1, %2, %3 {activation=relu} : f[M]", TERMS, 2, 'N', 0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=gelu} : f[R,M]", TERMS, 8, 'N',
     0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=gelu_tanh} : f[R,M]", TERMS, 8,
     'N', 0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=silu} : f[R,M]", TERMS, 8, 'N',
     0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {activation=tanh} : f[R,M]", TERMS, 8, 'N', 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {activation=sigmoid} : f[R,M]", TERMS, 8, 'N', 0},
    {"head_loss", "f[R,M] f[N,M] l[R] v[] f[N]", "head_loss %1, %2, %3, %4, %5 {ignore=-100} : g[]",
     NORM, 160, 0, NEEDS_N},
    {"head_loss", "f[R,M] f[N,M] l[R] p[]",
     "scale %4 {by=1} : f[]\nhead_loss %1, %2, %3, %5 {ignore=-100} : f[]", NORM, 160, 0, NEEDS_N},
    {"saved", "f[R,N] f[M,N] f[M]",
     "linear %1, %2, %3 {activation=gelu} : f[R,M]\nsaved %4 {index=0} : f[R,M]", TERMS, 2, 'N',
     REFUSED},
    {"attention", "f[2,R,W]", "attention %1 {heads=1 scale=0.01} : f[2,R,N]", NORM, 96, 'N', 0},
    {"attention", "f[2,R,W] f[1,1,R]", "attention %1, %2 {heads=1 scale=0.01} : f[2,R,N]", NORM, 96,
     'N', NO_GRADIENT},
    {"attention", "f[2,R,6] f[2,N,6] f[2,N,6]",
     "attention %1, %2, %3 {heads=2 scale=0.5 causal=true} : f[2,R,6]", NORM, 160, 0, 0},
    {"attention", "f[2,R,6] f[2,N,6] f[2,N,6] b[2,2,R,1] b[2,1,1,N]",
     "constant {values=[-inf]} : f[]\nconstant {values=[0]} : f[]\nwhere %4, %7, %6 : f[2,2,R,1]\n"
     "where %5, %7, %6 : f[2,1,1,N]\nadd %8, %9 : f[2,2,R,N]\n"
     "attention %1, %2, %3, %10 {heads=2 scale=0.5} : f[2,R,6]",
     NORM, 160, 0, 0},
    {"attention", "f[2,R,W]", "attention %1 {heads=1 scale=0.01 p=0.25 stream=7} : f[2,R,N]", NORM,
     96, 'N', RANDOM},
    {"attention", "f[1,R,12] b[R]",
     "constant {values=[-1]} : f[]\nconstant {values=[0.5]} : f[]\nwhere %2, %3, %4 : f[R]\n"
     "attention %1, %5 {heads=4 scale=1 p=0.5 stream=3 causal=true} : f[1,R,4]",
     NORM, 160, 0, RANDOM},
    {"saved", "f[2,R,W]",
     "attention %1 {heads=1 scale=0.01} : f[2,R,N]\nsaved %2 {index=0} : g[2,1,R]", NORM, 96, 'N',
     REFUSED},
    {"attention_grad", "f[2,R,N] f[2,R,W]",
     "attention %2 {heads=1 scale=0.01} : f[2,R,N]\nsaved %3 {index=0} : g[2,1,R]\n"
     "attention_grad %1, %3, %4, %2 {heads=1 scale=0.01} : f[2,R,W]",
     NORM, 320, 'N', REFUSED},
    {"attention_grad", "f[1,R,4] f[1,R,12] f[R]",
     "attention %2, %3 {heads=4 scale=1 p=0.5 stream=3 causal=true} : f[1,R,4]\n"
     "saved %4 {index=0} : g[1,4,R]\n"
     "attention_grad %1, %4, %5, %2, %3 {heads=4 scale=1 p=0.5 stream=3 causal=true} : f[1,R,12]",
     NORM, 320, 0, REFUSED | RANDOM},

    {"sum", "f[R,N]", "sum %1 {axis=1} : f[R]", TERMS, 23, 0, 0},
    {"sum", "f[R,N]", "sum %1 {axis=0 keep=true} : f[1,N]", TERMS, 1, 0, 0},
    {"sum", "f[2,R,N]", "sum %1 {axis=1} : f[2,N]", TERMS, 1, 0, 0},
    {"sum", "f[S]", "sum %1 : f[]", TERMS, 23, 0, 0},
    {"max", "f[R,N]", "max %1 {axis=1} : f[R]", EXACT, 0, 0, 0},
    {"max", "f[R,N]", "max %1 {axis=0 keep=true} : f[1,N]", EXACT, 0, 0, 0},
    {"max", "f[2,R,N]", "max %1 {axis=1} : f[2,N]", EXACT, 0, 0, 0},
    {"max", "f[S]", "max %1 : f[]", EXACT, 0, 0, 0},
    {"argmax", "f[R,N]", "argmax %1 {axis=1} : i32[R]", EXACT, 0, 0, NO_GRADIENT | NEEDS_N},
    {"argmax", "q[R,N]", "argmax %1 {axis=1 keep=true} : i32[R,1]", EXACT, 0, 0,
     NO_GRADIENT | NEEDS_N},
    {"argmax", "q[R,N]", "argmax %1 : i32[N]", EXACT, 0, 0, NO_GRADIENT | NEEDS_R},
    {"logsumexp", "f[R,N]", "logsumexp %1 : f[R]", TERMS, 44, 0, 0},
    {"square_sums", "f[R,N]", "square_sums %1 : g[Q]", RELATIVE, 24, 0, REFUSED},
    {"totals", "f[7]", "totals %1 {blocks=[0,1,2,7]} : f[2]", TERMS, 1, 0, REFUSED},
    {"total", "f[R,N] f[N] f[]", "total %1, %2, %3 : f[]", TERMS, 1, 0, 0},

    {"softmax", "f[R,N]", "softmax %1 : f[R,N]", RELATIVE, 37, 0, 0},
    {"softmax_grad", "f[R,N] f[R,N]", "softmax %2 : f[R,N]\nsoftmax_grad %1, %3 : f[R,N]", NORM,
     128, 0, REFUSED},
    {"moments", "f[R,N]", "moments %1 {eps=1e-05} : g[R,2]", NORM, 64, 0, REFUSED | WIDE},
    {"layer_norm", "f[R,N] f[N] f[N]",
     "moments %1 {eps=1e-05} : g[R,2]\nlayer_norm %1, %4, %2, %3 : f[R,N]", NORM, 96, 0, WIDE},
    {"layer_norm_grad", "f[R,N] f[R,N] f[N]",
     "moments %2 {eps=1e-05} : g[R,2]\nlayer_norm_grad %1, %2, %4, %3 : f[R,N]", NORM, 160, 0,
     REFUSED | WIDE},
    {"rms", "f[R,N]", "rms %1 {eps=1e-05} : g[R,2]", NORM, 64, 0, REFUSED | WIDE},
    {"rms_norm", "f[R,N] f[N]", "rms %1 {eps=1e-05} : g[R,2]\nrms_norm %1, %3, %2 : f[R,N]", NORM,
     96, 0, WIDE},
    {"rms_norm_grad", "f[R,N] f[R,N] f[N]",
     "rms %2 {eps=1e-05} : g[R,2]\nrms_norm_grad %1, %2, %4, %3 : f[R,N]", NORM, 160, 0,
     REFUSED | WIDE},
    {"norm_gamma_grad", "f[R,N] f[R,N]",
     "moments %2 {eps=1e-05} : g[R,2]\nnorm_gamma_grad %1, %2, %3 : f[N]", NORM, 160, 'R',
     REFUSED | WIDE},
    {"residual_norm", "f[R,N] f[R,N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4 {eps=1e-05} : f[R,N]", NORM, 96, 0, WIDE},
    {"residual_norm", "f[2,R,N] f[2,R,N] f[N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4, %5 {p=0.25 stream=7 eps=1e-05} : f[2,R,N]", NORM, 96, 0,
     WIDE | RANDOM},
    {"residual_norm", "f[N] f[N] f[N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4, %5 {eps=1e-05} : f[N]", NORM, 96, 0, WIDE},
    {"saved", "f[R,N] f[R,N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4 {eps=1e-05} : f[R,N]\nsaved %5 {index=0} : f[R,N]", NORM, 96, 0,
     REFUSED | WIDE},
    {"saved", "f[R,N] f[R,N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4 {eps=1e-05} : f[R,N]\nsaved %5 {index=1} : g[R]", NORM, 96, 0,
     REFUSED | WIDE},
    {"embed_norm", "f[N,K] x[R,3] f[N,K] y[R,3] f[3,K] f[K] f[K]",
     "embed_norm %1, %2, %3, %4, %5, %6, %7 {p=0.25 stream=7 eps=1e-05} : f[R,3,K]", NORM, 96, 0,
     NEEDS_N | RANDOM},
    {"residual_norm_grad", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 {p=0.25 stream=7} : f[R,N]", NORM, 160, 0,
     REFUSED | RANDOM},
    {"saved", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 {p=0.25 stream=7} : f[R,N]\nsaved %5 {index=0} : f[R,N]",
     NORM, 160, 0, REFUSED | RANDOM},
    {"saved", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 : f[R,N]\nsaved %5 {index=1} : f[N]", TERMS, 1, 'R',
     REFUSED},
    {"saved", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 : f[R,N]\nsaved %5 {index=2} : f[N]", TERMS, 1, 'R',
     REFUSED},
    {"saved", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 {p=0.25 stream=7} : f[R,N]\nsaved %5 {index=3} : f[N]",
     NORM, 160, 'R', REFUSED | RANDOM},
    {"affine", "f[R,N] f[N] f[N]", "affine %1, %2, %3 : f[R,N]", TERMS, 2, 0, 0},

    {"masked_softmax", "f[R,N]", "masked_softmax %1 {scale=0.5} : f[R,N]", RELATIVE, 40, 0, 0},
    {"masked_softmax", "f[2,3,R,N] w[2,1,1,N]", "masked_softmax %1, %2 {scale=1} : f[2,3,R,N]",
     RELATIVE, 48, 0, NO_GRADIENT},
    {"masked_softmax", "f[R,N]", "masked_softmax %1 {p=0.25 stream=7 scale=0.5} : f[R,N]", RELATIVE,
     42, 0, RANDOM},
    {"saved", "f[R,N]",
     "masked_softmax %1 {p=0.25 stream=7 scale=0.5} : f[R,N]\nsaved %2 {index=0} : f[R,N]",
     RELATIVE, 40, 0, REFUSED},
    {"masked_softmax_grad", "f[R,N] f[R,N]",
     "softmax %2 : f[R,N]\nmasked_softmax_grad %1, %3 {p=0.25 stream=7 scale=0.5} : f[R,N]", NORM,
     128, 0, REFUSED | RANDOM},

    {"chain", "f[R,N] f[N] f[]", "chain %1, %2, %3 {program=[0,0,1,2,3,2]} : f[R,N]", TERMS, 2, 0,
     REFUSED},
    {"chain", "f[2,R,N] f[2,R,N] f[N]",
     "chain %1, %2, %3 {program=[0,1,2,24,3,0,0,0,4] values=[0.25,7]} : f[2,R,N]", TERMS, 4, 0,
     REFUSED | RANDOM},
    {"chain", "f[2,R,N]",
     "chain %1 {program=[7,0,1,15,1,0,1,2,0,0,2,2] values=[0,0.5]} : f[2,R,N]", NORM, 8, 0,
     REFUSED},
    {"chain", "p[R,N] f[1] p[N]",
     "chain %1, %2, %3 {program=[9,0,0,10,2,0,3,3,4,4,5,1,5,6,0,6,7,0,11,0,0,0,8,9,8,10,0,"
     "16,11,0,17,12,0,14,13,0]} : f[R,N]",
     NORM, 64, 0, REFUSED},
    {"chain", "f[2,R,N] f[2,R,N]",
     "chain %1, %2 {program=[12,1,0,18,0,2,13,1,0,19,3,4,20,5,1,21,6,1,22,7,1,23,8,1]} : f[2,R,N]",
     NORM, 64, 0, REFUSED},

    {"gather_rows", "f[N,M] x[R]", "gather_rows %1, %2 : f[R,M]", EXACT, 0, 0, NEEDS_N},
    {"gather_rows", "f[N,M] y[R,2]", "gather_rows %1, %2 : f[R,2,M]", EXACT, 0, 0, NEEDS_N},
    {"scatter_rows", "f[R,M] x[R]", "scatter_rows %1, %2 {rows=N} : f[N,M]", TERMS, 0, 'R',
     NEEDS_N},
    {"scatter_rows", "f[R,2,M] y[R,2]", "scatter_rows %1, %2 {rows=N} : f[N,M]", TERMS, 0, 'H',
     NEEDS_N},
    {"cross_entropy", "f[R,N] l[R]",
     "logsumexp %1 : f[R]\ncross_entropy %1, %3, %2 {ignore=-100} : f[R]", NORM, 72, 0, NEEDS_N},
    {"cross_entropy_grad", "f[R] f[R,N] l[R]",
     "logsumexp %2 : f[R]\ncross_entropy_grad %1, %2, %4, %3 {ignore=-100} : f[R,N]", NORM, 160, 0,
     REFUSED | NEEDS_N},

    {"sgd", "w[R,N] f[R,N] p[]", "update:\nsgd %1, %2, %3 {weight_decay=0.1}", NORM, 8, 0, MUTATES},
    {"sgd", "w[R,N] f[R,N] p[] m[R,N]",
     "update:\nsgd %1, %2, %3, %4 {momentum=0.9 weight_decay=0.1}", NORM, 16, 0, MUTATES},
    {"sgd", "w[R,N] f[R,N] p[] m[R,N]", "update:\nsgd %1, %2, %3, %4 {momentum=0.9 nesterov=true}",
     NORM, 16, 0, MUTATES},
    {"adamw", "w[R,N] f[R,N] m[R,N] v[R,N] p[] t[]",
     "update:\nadamw %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-08 weight_decay=0.1}",
     NORM, 64, 0, MUTATES},
    {"sgd", "w[R,N] f[R,N] p[] p[]", "update:\nsgd %1, %2, %3, %4 {weight_decay=0.1 scaled=true}",
     NORM, 8, 0, MUTATES},
    {"sgd", "w[R,N] f[R,N] p[] m[R,N] p[]",
     "update:\nsgd %1, %2, %3, %4, %5 {momentum=0.9 nesterov=true scaled=true}", NORM, 16, 0,
     MUTATES},
    {"adamw", "w[R,N] f[R,N] m[R,N] v[R,N] p[] t[] p[]",
     "update:\nadamw %1, %2, %3, %4, %5, %6, %7 {beta1=0.9 beta2=0.99 eps=1e-08 scaled=true}", NORM,
     64, 0, MUTATES},
    {"lamb_update", "w[R,N] f[R,N] m[R,N] v[R,N] t[] p[]",
     "update:\nlamb_update %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-06 "
     "weight_decay=0.1 scaled=true} : g[R,N]",
     NORM, 64, 0, MUTATES},
    {"lamb_update", "w[R,N] f[R,N] m[R,N] v[R,N] t[]",
     "update:\nlamb_update %1, %2, %3, %4, %5 {beta1=0.9 beta2=0.99 eps=1e-06 weight_decay=0.1} : "
     "g[R,N]",
     NORM, 64, 0, MUTATES},
    {"lamb_apply", "w[R,N] f[R,N] p[] p[] p[]",
     "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}", NORM, 16, 0, MUTATES},
};

enum { CASES = sizeof cases / sizeof cases[0], OPERANDS = 8, MOST = 1 << 19, TEXT = 2048 };

/* -------------------------------------------------------------------------------- sizes */

typedef struct sizes {
    int64_t R, N, M;
} sizes;

static int64_t size_of(char letter, const sizes *z)
{
    switch (letter) {
    case 'R': return z->R;
    case 'N': return z->N;
    case 'M': return z->M;
    case 'A': return z->N / 3; /* a slice A..B of C of N */
    case 'B': return z->N - z->N / 4;
    case 'C': return z->N - z->N / 4 - z->N / 3;
    case 'E': return z->R / 3; /* a slice E..F of G of R */
    case 'F': return z->R - z->R / 4;
    case 'G': return z->R - z->R / 4 - z->R / 3;
    case 'H': return 2 * z->R;
    case 'K': return z->M + 4;
    case 'P': return z->N + 5;
    case 'Q': return (z->R * z->N + 1023) / 1024;
    case 'S': return z->R * z->N;
    case 'T': return 2 * z->R + 2;
    case 'U': return z->N + 1;
    case 'V': return z->R + 5;
    case 'W': return 3 * z->N;
    default: return 0;
    }
}

static bool fits(const op_case *c, const sizes *z)
{
    if ((c->flags & NEEDS_N) && z->N == 0) return false;
    if ((c->flags & NEEDS_R) && z->R == 0) return false;
    return !((c->flags & WIDE) && (z->N == 1 || z->N == 2));
}

static bool word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

/* Copies text[0..length) with sizes and dtypes put in; returns how long that is. */
static int expand(char *to, const char *text, int length, const sizes *z, zf_dtype dtype)
{
    int at = 0;
    for (int i = 0; i < length; i++) {
        bool type = i + 1 < length && text[i + 1] == '[' && (i == 0 || !word(text[i - 1]));
        if (text[i] >= 'A' && text[i] <= 'Z')
            at += sprintf(to + at, "%lld", (long long)size_of(text[i], z));
        else if (type && text[i] == 'f') at += sprintf(to + at, "%s", zf_dtype_name(dtype));
        else if (type && text[i] == 'g')
            at += sprintf(to + at, "%s", dtype == ZF_F64 ? "f64" : "f32");
        else to[at++] = text[i];
    }
    to[at] = '\0';
    return at;
}

static const char *operand_type(char kind, zf_dtype dtype)
{
    switch (kind) {
    case 'b': return "bool";
    case 'k': return "u8";
    case 'i':
    case 'x': return "i32";
    case 'j':
    case 'y':
    case 'l':
    case 't': return "i64";
    case 'm':
    case 'v': return dtype == ZF_F64 ? "f64" : "f32";
    default: return zf_dtype_name(dtype);
    }
}

static bool is_float_kind(char kind) { return strchr("fpushqw", kind) != NULL; }
static bool is_mutable(char kind) { return strchr("wmvt", kind) != NULL; }

/* The letter of operand k, 0 behind the last. */
static char kind_of(const op_case *c, int k)
{
    const char *at = c->operands;
    for (; k > 0; k--) {
        at = strchr(at, ' ');
        if (!at) return 0;
        at++;
    }
    return *at;
}

static int operand_count(const op_case *c)
{
    int count = 0;
    while (kind_of(c, count)) count++;
    return count;
}

/* The case as IR. `trained`: float operands are parameters. `copied`: a mask of operands that run
 * through a node of their own first, so that the row may write over them. Returns the id of the
 * last line's value, 0 for an effect. */
static int case_text(char *to, const op_case *c, const sizes *z, zf_dtype dtype, bool trained,
                     unsigned copied)
{
    int at = 0, id = 0, count = operand_count(c), copy = 100, last = 0;
    const char *type = c->operands, *line = c->text;
    for (; id < count; id++) {
        char kind = *type;
        int length = (int)strcspn(type, " ");
        const char *leaf = kind == 'w' || (trained && is_float_kind(kind)) ? "param"
                           : is_mutable(kind)                              ? "state"
                                                                           : "input";
        at +=
            sprintf(to + at, "%%%d = %s \"x%d\" : %s", id + 1, leaf, id, operand_type(kind, dtype));
        at += expand(to + at, type + 1, length - 1, z, dtype);
        if (copied >> id & 1) {
            at += sprintf(to + at, "\n%%%d = scale %%%d {by=1} : %s", copy + id, id + 1,
                          operand_type(kind, dtype));
            at += expand(to + at, type + 1, length - 1, z, dtype);
        }
        at += sprintf(to + at, "\n");
        type += length + (type[length] == ' ');
    }
    while (*line) {
        int length = (int)strcspn(line, "\n");
        bool value = memchr(line, ' ', (size_t)length) && strstr(line, " : ") &&
                     strstr(line, " : ") < line + length;
        char body[TEXT];
        last = value ? ++id : 0;
        if (value) at += sprintf(to + at, "%%%d = ", id);
        expand(body, line, length, z, dtype);
        for (const char *b = body; *b; b++) {
            int operand = *b == '%' ? atoi(b + 1) : 0;
            if (operand && operand <= count && (copied >> (operand - 1) & 1)) {
                at += sprintf(to + at, "%%%d", copy + operand - 1);
                b += operand > 9 ? 2 : 1;
            } else {
                to[at++] = *b;
            }
        }
        to[at++] = '\n';
        line += length + (line[length] == '\n');
    }
    to[at] = '\0';
    return last;
}

/* ------------------------------------------------------------------------------- values */

static double operand[OPERANDS][MOST]; /* what the operands hold */
static unsigned char raw[MOST * 8];

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double value_of(char kind, uint64_t bits, int64_t n)
{
    double u = (double)(bits >> 11) * 0x1p-53, sign = bits & 1 ? -1 : 1; /* 0 <= u < 1 */
    switch (kind) {
    case 'f':
    case 'w':
    case 'm': return sign * (0.02 + 1.98 * u);
    case 'p':
    case 'v': return 0.5 + 1.5 * u;
    case 'u': return sign * u;
    case 's': return u;
    case 'h': return sign * 300 * u;
    case 'q': return (double)(bits % 5) * 0.5 - 1;
    case 'b': return (double)(bits & 1);
    case 'k': return (double)(bits % 3);
    case 'i': return (double)(bits % 7) - 3;
    case 'j': return floor(sign * 0x1p62 * u);
    case 'x':
    case 'y': return n ? (double)(bits % (uint64_t)n) : 0;
    case 'l': return n && bits >> 62 ? (double)(bits % (uint64_t)n) : -100;
    case 't': return 3;
    default: return 0;
    }
}

/* A float's bits of exponent and fraction that `dtype` keeps: x rounded to nearest even. */
static double rounded(double x, zf_dtype dtype)
{
    int digits = dtype == ZF_F16 ? 11 : dtype == ZF_BF16 ? 8 : dtype == ZF_F32 ? 24 : 53, exponent;
    if (x == 0 || !isfinite(x)) return x;
    (void)frexp(x, &exponent);
    if (dtype == ZF_F16 && exponent < -13) exponent = -13;
    return ldexp(nearbyint(ldexp(x, digits - exponent)), exponent - digits);
}

static void encode(void *to, zf_dtype dtype, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits;
        int exponent;
        memcpy(&bits, &f, 4);
        switch (dtype) {
        case ZF_F32: ((float *)to)[i] = f; break;
        case ZF_F64: ((double *)to)[i] = x[i]; break;
        case ZF_BF16: ((uint16_t *)to)[i] = (uint16_t)(bits >> 16); break;
        case ZF_F16:
            (void)frexp(x[i], &exponent);
            if (exponent < -13) exponent = -13;
            bits = (unsigned)(int)(fabs(x[i]) == 0
                                       ? 0
                                       : (exponent + 13) * 1024 + ldexp(fabs(x[i]), 11 - exponent));
            ((uint16_t *)to)[i] = (uint16_t)(bits | (signbit(x[i]) ? 0x8000 : 0));
            break;
        case ZF_I32: ((int32_t *)to)[i] = (int32_t)x[i]; break;
        case ZF_I64: ((int64_t *)to)[i] = (int64_t)x[i]; break;
        case ZF_U8:
        case ZF_BOOL: ((uint8_t *)to)[i] = (uint8_t)x[i]; break;
        }
    }
}

static void decode(double *x, zf_dtype dtype, const void *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = dtype == ZF_BF16 || dtype == ZF_F16 ? ((const uint16_t *)from)[i] : 0;
        float f;
        switch (dtype) {
        case ZF_F32: x[i] = ((const float *)from)[i]; break;
        case ZF_F64: x[i] = ((const double *)from)[i]; break;
        case ZF_BF16:
            bits <<= 16;
            memcpy(&f, &bits, 4);
            x[i] = f;
            break;
        case ZF_F16:
            x[i] = (bits >> 10 & 31) == 31 ? (bits & 1023 ? NAN : INFINITY)
                   : bits >> 10 & 31 ? ldexp((bits & 1023) + 1024, (int)(bits >> 10 & 31) - 25)
                                     : ldexp(bits & 1023, -24);
            if (bits & 0x8000) x[i] = -x[i];
            break;
        case ZF_I32: x[i] = ((const int32_t *)from)[i]; break;
        case ZF_I64: x[i] = (double)((const int64_t *)from)[i]; break;
        case ZF_U8:
        case ZF_BOOL: x[i] = ((const uint8_t *)from)[i]; break;
        }
    }
}

/* Fills the operands of a case as `dtype` holds them, or with their magnitudes. */
static void fill(const op_case *c, const sizes *z, zf_dtype dtype, bool magnitudes)
{
    int64_t count = z->R * z->N * 8 + (z->N + z->R) * z->M * 6 + 64; /* no operand has more */
    for (int k = 0; kind_of(c, k); k++) {
        char kind = kind_of(c, k);
        bool state = kind == 'm' || kind == 'v', is_float = state || is_float_kind(kind);
        zf_dtype of = state && dtype != ZF_F64 ? ZF_F32 : dtype;
        for (int64_t i = 0; i < count; i++) {
            double x = value_of(kind, mix((uint64_t)k << 40 | (uint64_t)i), z->N);
            if (is_float) x = rounded(x, of);
            operand[k][i] = magnitudes && is_float ? fabs(x) : x;
        }
    }
}

/* ----------------------------------------------------------------------------- sessions */

typedef struct session {
    zf_graph *graph;
    zf_backend *cpu;
    zf_program *program;
    zf_error error;
} session;

static void session_close(void *object)
{
    session *s = object;
    zf_program_free(s->program);
    zf_backend_free(s->cpu);
    zf_graph_free(s->graph);
    *s = (session){.graph = NULL};
}

static zf_status session_failed(session *s)
{
    if (!s->error.status && s->graph && zf_graph_status(s->graph)) {
        s->error.status = zf_graph_status(s->graph);
        snprintf(s->error.text, sizeof s->error.text, "%s", zf_graph_error(s->graph));
    }
    return s->error.status;
}

static zf_status session_parse(test *t, session *s, const char *text)
{
    s->error = (zf_error){ZF_OK, ""};
    s->graph =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &s->error);
    return s->error.status;
}

/* The graph of a case, its value under the output "y". */
static zf_status session_graph(test *t, session *s, const op_case *c, const sizes *z,
                               zf_dtype dtype, bool trained, unsigned copied)
{
    char text[TEXT];
    int value = case_text(text, c, z, dtype, trained, copied);
    if (value) sprintf(text + strlen(text), "output %%%d \"y\"\n", value);
    return session_parse(t, s, text);
}

static zf_status session_compile(test *t, session *s, zf_cpu_desc cpu, zf_compile_desc d)
{
    cpu.allocator = t->allocator;
    if (!s->cpu) s->cpu = zf_cpu_backend(&cpu, &s->error);
    if (!s->cpu) return s->error.status;
    d.backend = s->cpu;
    s->program = zf_compile(s->graph, &d);
    return s->program ? ZF_OK : session_failed(s);
}

static zf_status session_check(session *s, zf_status status)
{
    if (status && !s->error.status) {
        s->error.status = status;
        snprintf(s->error.text, sizeof s->error.text, "%s", zf_program_error(s->program));
    }
    return status;
}

static zf_status session_write(session *s, const char *name, const double *x)
{
    zf_tensor to = zf_graph_find(s->graph, name);
    encode(raw, zf_tensor_dtype(to), x, zf_shape_count(zf_tensor_shape(to)));
    return session_check(s, zf_write(s->program, to, raw, zf_tensor_bytes(to)));
}

static const char *operand_name(int k)
{
    static char name[16];
    snprintf(name, sizeof name, "x%d", k);
    return name;
}

/* Writes the operands and runs a step. */
static zf_status session_step(session *s, const op_case *c)
{
    zf_status status = ZF_OK;
    for (int k = 0; kind_of(c, k) && !status; k++)
        status = session_write(s, operand_name(k), operand[k]);
    return status ? status : session_check(s, zf_step(s->program));
}

/* What a step leaves: the value, then the mutable operands one behind the other. */
typedef struct result {
    int64_t count;
    bool complete;
    size_t bytes;
    double *values;
    unsigned char *raw; /* or NULL */
} result;

static zf_status session_result(session *s, const op_case *c, result *r)
{
    r->count = 0;
    r->bytes = 0;
    for (int k = -1; k < 0 || kind_of(c, k); k++) {
        zf_tensor from = zf_graph_find(s->graph, k < 0 ? "y" : operand_name(k));
        int64_t count = zf_shape_count(zf_tensor_shape(from));
        if (!zf_valid(from) || (k >= 0 && !is_mutable(kind_of(c, k)))) continue;
        if (session_check(s, zf_read(s->program, from, raw, zf_tensor_bytes(from))))
            return s->error.status;
        decode(r->values + r->count, zf_tensor_dtype(from), raw, count);
        if (r->raw && count) memcpy(r->raw + r->bytes, raw, zf_tensor_bytes(from));
        r->count += count;
        r->bytes += zf_tensor_bytes(from);
    }
    return ZF_OK;
}

/* Parses, compiles, steps, reads and closes: all of a case. */
static zf_status run_case(test *t, session *s, const op_case *c, const sizes *z, zf_dtype dtype,
                          zf_cpu_desc cpu, unsigned copied, result *r)
{
    zf_status status = session_graph(t, s, c, z, dtype, false, copied);
    if (!status) status = session_compile(t, s, cpu, (zf_compile_desc){.seed = 5});
    if (!status) status = session_step(s, c);
    return status ? status : session_result(s, c, r);
}

/* Reports what is wrong with a case. */
static void wrong(test *t, int line, const op_case *c, const sizes *z, const char *format, ...)
{
    static char text[4096];
    int at = case_text(text, c, z, ZF_F32, false, 0);
    va_list args;
    (void)at;
    for (char *newline = text; (newline = strchr(newline, '\n')) && newline[1];) *newline = ';';
    text[strcspn(text, "\n")] = '\0';
    strcat(text, "\n    ");
    va_start(args, format);
    vsnprintf(text + strlen(text), sizeof text - strlen(text), format, args);
    va_end(args);
    test_fail(t, __FILE__, line, c->row, text);
}

/* NOMEM in the out-of-memory run is as it should be; anything else is a failure. */
static void stopped(test *t, int line, const op_case *c, const sizes *z, session *s)
{
    if (t->refused && s->error.status == ZF_ERR_NOMEM) return;
    t->refused = false;
    wrong(t, line, c, z, "%s", s->error.text);
}

static double kept[3][MOST];
static unsigned char kept_raw[2][MOST * 8];

static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};

static bool has_isa(const char *isa)
{
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.isa = isa}, NULL);
    zf_backend_free(cpu);
    return cpu != NULL;
}

/* -------------------------------------------------------------------------------- tests */

/* What zf_zero makes of a graph takes several ranks: tests/comm.c, tests/zero.c and
 * tests/passes/zero_*.zf run these. tests/precision.c has a table of the loss scale. */
static const char *const elsewhere[] = {
    "loss_scale",     "loss_scale_update", "unit",       "accumulator", "part",    "all_gather",
    "reduce_scatter", "all_reduce",        "all_to_all", "bcast",       "release", "wait"};

/* A row without a case fails. */
TEST_ONCE(operators_have_cases)
{
    static const char *const rows[] = {
#define X(name, least, most, attributes, flags) #name,
        ZF_OPS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool found = false;
        for (int n = 0; n < CASES; n++) found |= !strcmp(cases[n].row, rows[i]);
        for (size_t n = 0; n < sizeof elsewhere / sizeof elsewhere[0]; n++)
            found |= !strcmp(elsewhere[n], rows[i]);
        if (!found) test_fail(t, __FILE__, __LINE__, rows[i], "this row of ZF_OPS has no case");
    }
}

static double growth_of(const op_case *c, int64_t i)
{
    return kind_of(c, 1) ? fabs(operand[0][i]) * (1 + fabs(operand[1][i]))
                         : 1 + fabs(operand[0][i]);
}

/* How far the result may be from the reference: units of 2^-24 of the scale, and half a unit of a
 * 16-bit result, which the reference rounds from double and all others from f32. */
static double bound_of(const op_case *c, const sizes *z, zf_dtype dtype, bool reference,
                       double exact, double terms, double largest)
{
    double units = c->units + (c->per ? (double)size_of(c->per, z) : 0);
    double scale = c->scale == TERMS || c->scale == GROWTH ? terms
                   : c->scale == NORM                      ? fmax(1, largest)
                                                           : fabs(exact);
    const char *type = strrchr(c->text, ':');
    double bound = (reference ? 0x1.01p-24 * fabs(exact) : units * 0x1p-24 * scale) + 0x1p-149;
    if (c->scale == EXACT) return 0;
    if (type && type[2] == 'g') return bound;
    if (dtype == ZF_BF16) return bound + 0x1.01p-8 * (fabs(exact) + bound) + 0x1p-134;
    if (dtype == ZF_F16) return bound + 0x1.01p-11 * (fabs(exact) + bound) + 0x1p-25;
    return bound;
}

/* Compares kept[0], of `dtype`, with kept[1] in f64. */
static void compare(test *t, int line, const op_case *c, const sizes *z, zf_dtype dtype,
                    const char *kernel, int64_t count)
{
    bool reference = !strcmp(kernel, "reference");
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabs(kept[1][i]) > largest) largest = fabs(kept[1][i]);
    for (int64_t i = 0; i < count; i++) {
        double got = kept[0][i], exact = kept[1][i];
        double bound = bound_of(c, z, dtype, reference, exact, kept[2][i], largest);
        if (got == exact || (isnan(got) && isnan(exact)) || fabs(got - exact) <= bound) continue;
        wrong(t, line, c, z,
              "%s, %s: element %lld is %.9g, exactly %.17g, %.3g times the bound off",
              zf_dtype_name(dtype), kernel, (long long)i, got, exact, fabs(got - exact) / bound);
        return;
    }
}

/* One case in one size against f64, by every instruction set and by the reference: in f32, and
 * where nothing on the way to the result is rounded to 16 bits in bf16 and f16, the reference in
 * small sizes. */
static void check_values(test *t, session *s, const op_case *c, const sizes *z)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    const char *second = strchr(c->text, '\n');
    bool one_row = !second, wide_start = second && strstr(c->text, ": g[R,2]\n") == second - 8;
    bool narrow =
        (one_row || wide_start) && is_float_kind(c->operands[0]) && strcmp(c->row, "cast") &&
        strcmp(c->row, "attention"); /* rounds on the way: tests/attention.c has its bounds */
    zf_cpu_desc plain = {.threads = 2};
    result got = {.values = kept[0]}, exact = {.values = kept[1]}, terms = {.values = kept[2]};
    for (int d = 0; d < (narrow ? 3 : 1); d++) {
        fill(c, z, dtypes[d], true);
        if (c->scale == TERMS && run_case(t, s, c, z, ZF_F64, plain, 0, &terms)) goto stop;
        session_close(s);
        fill(c, z, dtypes[d], false);
        for (int64_t i = 0; i < z->R * z->N && c->scale == GROWTH; i++)
            kept[2][i] = growth_of(c, i);
        if (run_case(t, s, c, z, ZF_F64, plain, 0, &exact)) goto stop;
        session_close(s);
        for (int k = one_row && (d == 0 || z->N < 100) ? -1 : 0; k < 4; k++) {
            zf_cpu_desc cpu = {.threads = 2, .reference = k < 0, .isa = k < 0 ? NULL : isas[k]};
            if (k >= 0 && !has_isa(isas[k])) continue;
            if (run_case(t, s, c, z, dtypes[d], cpu, 0, &got)) goto stop;
            session_close(s);
            if (got.count != exact.count)
                wrong(t, __LINE__, c, z, "the f64 graph has another shape");
            else compare(t, __LINE__, c, z, dtypes[d], k < 0 ? "reference" : isas[k], got.count);
        }
    }
    return;
stop:
    stopped(t, __LINE__, c, z, s);
    session_close(s);
}

TEST_ONCE(operators_agree_with_f64)
{
    static const sizes some[] = {{1, 1, 1}, {3, 5, 2},  {0, 4, 3},    {4, 0, 2},
                                 {2, 3, 0}, {7, 33, 3}, {33, 257, 5}, {17, 1027, 3}};
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++)
        for (size_t z = 0; z < sizeof some / sizeof some[0]; z++)
            if (fits(&cases[n], &some[z])) check_values(t, &s, &cases[n], &some[z]);
}

/* Pieces of work are cut alike for any number of threads, so every instruction set has one result
 * to the last bit. */
TEST_ONCE(operators_do_not_depend_on_threads)
{
    static const sizes big = {19, 1027, 3}, tall = {1027, 19, 3};
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++)
        for (int k = 0; k < 4; k++)
            for (int threads = 1; threads <= 3 && has_isa(isas[k]); threads++) {
                const op_case *c = &cases[n];
                const sizes *z = n % 2 ? &big : &tall;
                result r = {.values = kept[0], .raw = kept_raw[threads > 1]};
                if (threads == 1) fill(c, z, ZF_F32, false);
                if (run_case(t, &s, c, z, ZF_F32, (zf_cpu_desc){.threads = threads, .isa = isas[k]},
                             0, &r)) {
                    stopped(t, __LINE__, c, z, &s);
                    return;
                }
                session_close(&s);
                if (threads > 1 && memcmp(kept_raw[0], kept_raw[1], r.bytes))
                    wrong(t, __LINE__, c, z, "%s: %d threads give other bits than 1", isas[k],
                          threads);
            }
}

/* The case over parameters, in another precision. */
static zf_status run_retyped(test *t, session *s, const op_case *c, const sizes *z, zf_dtype dtype,
                             result *r)
{
    zf_status status = session_graph(t, s, c, z, ZF_F32, true, 0);
    if (!status && zf_precision(s->graph, &(zf_precision_desc){.dtype = dtype, .scale = 1}))
        status = session_failed(s);
    if (!status)
        status =
            session_compile(t, s, (zf_cpu_desc){.reference = true}, (zf_compile_desc){.seed = 5});
    if (!status) status = session_step(s, c);
    return status ? status : session_result(s, c, r);
}

/* zf_precision takes every row: in bf16 its value, which keeps its dtype, is that of f32 within a
 * rounding for each line, of operands that bf16 holds. */
TEST_ONCE(operators_may_be_retyped)
{
    static const sizes z = {5, 12, 3};
    static session s;
    zf_dtype was = ZF_F32;
    int64_t count = 0;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++)
        for (int dtype = ZF_F32; dtype <= ZF_F16 && !(cases[n].flags & MUTATES); dtype++) {
            const op_case *c = &cases[n];
            result r = {.values = kept[dtype > 0]};
            double most = 1, lines = 2;
            zf_dtype is;
            for (const char *at = c->text; *at; at++) lines += *at == '\n';
            fill(c, &z, ZF_BF16, false);
            if (run_retyped(t, &s, c, &z, (zf_dtype)dtype, &r)) {
                stopped(t, __LINE__, c, &z, &s);
                return;
            }
            is = zf_tensor_dtype(zf_graph_find(s.graph, "y"));
            if (!dtype) was = is, count = r.count;
            session_close(&s);
            if (dtype && is != was && strcmp(c->row, "param"))
                wrong(t, __LINE__, c, &z, "%s of %s", zf_dtype_name(is), zf_dtype_name(was));
            if (dtype != ZF_BF16) continue;
            for (int64_t i = 0; i < count; i++)
                if (fabs(kept[0][i]) > most) most = fabs(kept[0][i]);
            for (int64_t i = 0; i < count; i++)
                if (!(fabs(kept[1][i] - kept[0][i]) <= lines * 0x1p-8 * most)) {
                    wrong(t, __LINE__, c, &z, "element %d is %g in bf16, %g in f32", (int)i,
                          kept[1][i], kept[0][i]);
                    break;
                }
        }
}

/* A case gives the same bits whichever operands it may write over, and leaves those alone that it
 * may not. */
static void check_in_place(test *t, session *s, const op_case *c, const sizes *z, zf_dtype dtype)
{
    unsigned floats = 0;
    for (int k = 0; kind_of(c, k); k++) floats |= (unsigned)is_float_kind(kind_of(c, k)) << k;
    fill(c, z, dtype, false);
    for (unsigned copied = 0; copied <= floats; copied++) {
        result r = {.values = kept[0], .raw = kept_raw[copied != 0]};
        if (copied & ~floats) continue;
        if (run_case(t, s, c, z, dtype, (zf_cpu_desc){.threads = 2}, copied, &r)) {
            stopped(t, __LINE__, c, z, s);
            return;
        }
        if (copied && memcmp(kept_raw[0], kept_raw[1], r.bytes))
            wrong(t, __LINE__, c, z, "%s: other bits when operands %#x may be written over",
                  zf_dtype_name(dtype), copied);
        for (int k = 0; kind_of(c, k); k++) {
            zf_tensor x = zf_graph_find(s->graph, operand_name(k));
            int64_t count = zf_shape_count(zf_tensor_shape(x));
            zf_read(s->program, x, raw, zf_tensor_bytes(x));
            decode(kept[1], zf_tensor_dtype(x), raw, count);
            for (int64_t i = 0; i < count; i++)
                if (kept[1][i] != operand[k][i]) {
                    wrong(t, __LINE__, c, z, "%s: the step changed its operand %d",
                          zf_dtype_name(dtype), k);
                    break;
                }
        }
        session_close(s);
    }
}

TEST_ONCE(operators_write_in_place)
{
    static const struct {
        const char *name;
        int flags;
    } rows[] = {
#define X(name, least, most, attributes, flags) {#name, flags},
        ZF_OPS(X)
#undef X
    };
    static const sizes small = {7, 33, 3}, pieces = {150, 64, 3}; /* of 4096 elements, in bf16 */
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++) {
        int flags = 0;
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            if (!strcmp(rows[i].name, cases[n].row)) flags = rows[i].flags;
        if (!(flags & (ZF_OP_INPLACE | ZF_OP_VIEW))) continue;
        check_in_place(t, &s, &cases[n], &small, ZF_F32);
        if (is_float_kind(cases[n].operands[0])) check_in_place(t, &s, &cases[n], &pieces, ZF_BF16);
    }
}

/* The loss with element i of operand k moved by `by`. */
static zf_status loss_at(test *t, session *s, const op_case *c, int k, int64_t i, double by,
                         double *loss)
{
    double old = operand[k][i];
    zf_status status = ZF_OK;
    if (c->flags & RANDOM) { /* the mask is the first step's */
        zf_program_free(s->program);
        s->program = NULL;
        status = session_compile(t, s, (zf_cpu_desc){.threads = 1}, (zf_compile_desc){.seed = 5});
        if (!status) status = session_write(s, "weights", operand[OPERANDS - 1]);
    }
    operand[k][i] = old + by;
    if (!status) status = session_step(s, c);
    operand[k][i] = old;
    if (status) return status;
    return session_check(s,
                         zf_read(s->program, zf_graph_find(s->graph, "loss"), loss, sizeof *loss));
}

/* The gradient of sum(weights * result) in f64 against the five-point central difference, whose
 * error with a step of 1e-3 is 1e-12 / 30 of the fifth derivative (at most some 1e4 here) and 1e-13
 * of rounding. */
static void check_gradient(test *t, session *s, const op_case *c, const sizes *z)
{
    const double h = 1e-3;
    static double gradient[OPERANDS][4096];
    zf_tensor y, loss;
    bool has[OPERANDS] = {false};
    if (session_graph(t, s, c, z, ZF_F64, true, 0)) goto stop;
    y = zf_graph_find(s->graph, "y");
    loss = zf_sum(
        zf_mul(zf_cast(y, ZF_F64), zf_input(s->graph, "weights", ZF_F64, zf_tensor_shape(y))));
    s->error.status = zf_autograd(s->graph, loss);
    if (c->flags & REFUSED) {
        char expected[128];
        bool told = s->error.status == ZF_ERR_ARGUMENT;
        snprintf(expected, sizeof expected, "autograd: %%%d = %s has no gradient of its own",
                 (int)y.id, c->row);
        if (!told || strcmp(zf_graph_error(s->graph), expected))
            wrong(t, __LINE__, c, z, "autograd must refuse, but says: %s",
                  zf_graph_error(s->graph));
        session_close(s);
        return;
    }
    for (int k = 0; kind_of(c, k) && !s->error.status; k++) {
        char name[16];
        zf_tensor dx = zf_gradient(s->graph, zf_graph_find(s->graph, operand_name(k)));
        snprintf(name, sizeof name, "d%d", k);
        has[k] = zf_valid(dx);
        if (has[k]) zf_output(dx, name);
        else if (is_float_kind(kind_of(c, k)))
            wrong(t, __LINE__, c, z, "operand %d has no gradient", k);
    }
    if (session_failed(s)) goto stop;
    if (session_compile(t, s, (zf_cpu_desc){.threads = 1},
                        (zf_compile_desc){.seed = 5, .poison = true}))
        goto stop;
    fill(c, z, ZF_F64, false);
    for (int64_t i = 0; i < 4096; i++)
        operand[OPERANDS - 1][i] = value_of('f', mix((uint64_t)i + 99), 0);
    if (session_write(s, "weights", operand[OPERANDS - 1]) || session_step(s, c)) goto stop;
    for (int k = 0; kind_of(c, k); k++) {
        char name[16];
        zf_tensor dx;
        snprintf(name, sizeof name, "d%d", k);
        dx = zf_graph_find(s->graph, name);
        if (has[k] && session_check(s, zf_read(s->program, dx, gradient[k], zf_tensor_bytes(dx))))
            goto stop;
    }
    for (int k = 0; kind_of(c, k); k++) {
        int64_t count = zf_shape_count(zf_tensor_shape(zf_graph_find(s->graph, operand_name(k))));
        for (int64_t i = 0; i < count && has[k]; i++) {
            double at[4], slope;
            for (int p = 0; p < 4; p++)
                if (loss_at(t, s, c, k, i, (double[]){-2 * h, -h, h, 2 * h}[p], &at[p])) goto stop;
            slope = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h);
            if (fabs(slope - gradient[k][i]) <= 1e-9 * fmax(1, fabs(slope))) continue;
            wrong(t, __LINE__, c, z, "d/dx%d[%lld] is %.12g, by differences %.12g", k, (long long)i,
                  gradient[k][i], slope);
            session_close(s);
            return;
        }
    }
    session_close(s);
    return;
stop:
    stopped(t, __LINE__, c, z, s);
    session_close(s);
}

TEST_ONCE(operators_have_the_gradient_of_differences)
{
    static const sizes some[] = {{3, 5, 2}, {5, 4, 3}, {1, 3, 1}};
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++)
        for (size_t z = 0; z < sizeof some / sizeof some[0]; z++)
            if (!(cases[n].flags & (NO_GRADIENT | MUTATES)))
                check_gradient(t, &s, &cases[n], &some[z]);
}

/* Every case once, small, forward and backward, for the out-of-memory run. */
TEST(operators_survive_refused_memory)
{
    static const sizes z = {3, 5, 2};
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++) {
        const op_case *c = &cases[n];
        bool trained = !(c->flags & (NO_GRADIENT | MUTATES | REFUSED));
        if (session_graph(t, &s, c, &z, ZF_F32, trained, 0)) break;
        if (trained && zf_autograd(s.graph, zf_sum(zf_graph_find(s.graph, "y"))) &&
            session_failed(&s))
            break;
        if (session_compile(t, &s, (zf_cpu_desc){.threads = 1}, (zf_compile_desc){.poison = true}))
            break;
        fill(c, &z, ZF_F32, false);
        if (session_step(&s, c)) break;
        session_close(&s);
    }
    if (s.error.status) test_unwind(t, __FILE__, __LINE__, "a case", s.error.status, s.error.text);
}

/* ----------------------------------------------------------------------------- examples */

/* Results worked out by hand, and what rows do with infinities, NaN and the ends of ranges.
 * Operands as above; their values are separated by ';'. What is compared is the value, then the
 * operands that change. */
typedef struct example {
    const char *operands, *text, *values, *expected;
    zf_dtype dtype;
} example;

static const example examples[] = {
    {"f[2,2] f[2]", "add %1, %2 : f[2,2]", "1 2 3 4; 10 20", "11 22 13 24", ZF_F32},
    {"i[2] i[2]", "add %1, %2 : i32[2]", "2147483647 5; 1 7", "-2147483648 12", ZF_F32},
    {"f[2,1] f[2]", "sub %1, %2 : f[2,2]", "1 2; 10 20", "-9 -19 -8 -18", ZF_F32},
    {"j[1] j[1]", "sub %1, %2 : i64[1]", "-9223372036854775808; -9223372036854775808", "0", ZF_F32},
    {"f[3] f[]", "mul %1, %2 : f[3]", "1 inf nan; 0", "0 nan nan", ZF_F32},
    {"f[4] f[]", "div %1, %2 : f[4]", "1 -1 0 nan; 0", "inf -inf nan nan", ZF_F32},
    {"i[5] i[5]", "div %1, %2 : i32[5]", "7 -7 7 -2147483648 9; 2 2 -2 -1 0",
     "3 -3 -3 -2147483648 0", ZF_F32},
    {"f[4] f[4]", "maximum %1, %2 : f[4]", "1 3 nan 1; 2 2 1 nan", "2 3 1 nan", ZF_F32},
    {"f[4] f[4]", "minimum %1, %2 : f[4]", "1 3 nan 1; 2 2 1 nan", "1 2 1 nan", ZF_F32},
    {"f[4] f[4]", "equal %1, %2 : bool[4]", "1 -0 nan inf; 2 0 nan inf", "0 1 0 1", ZF_F32},
    {"l[3] l[]", "equal %1, %2 : bool[3]", "-100 5 -100; -100", "1 0 1", ZF_F32},
    {"f[4] f[4]", "less %1, %2 : bool[4]", "1 2 nan -inf; 2 2 1 inf", "1 0 0 1", ZF_F32},
    {"k[4] f[4] f[]", "where %1, %2, %3 : f[4]", "0 1 2 255; 1 2 3 nan; 9", "9 2 3 nan", ZF_F32},
    {"f[3]", "neg %1 : f[3]", "1 -2 inf", "-1 2 -inf", ZF_F32},
    {"f[3]", "scale %1 {by=0.5} : f[3]", "1 -3 nan", "0.5 -1.5 nan", ZF_F32},
    {"f[6]", "exp %1 : f[6]", "0 inf -inf nan 1000 -1000", "1 inf 0 nan inf 0", ZF_F32},
    {"f[5]", "log %1 : f[5]", "1 0 -1 inf nan", "0 -inf nan inf nan", ZF_F32},
    {"f[5]", "sqrt %1 : f[5]", "4 0 -1 inf nan", "2 0 nan inf nan", ZF_F32},
    {"f[5]", "rsqrt %1 : f[5]", "4 0 -1 inf nan", "0.5 inf nan 0 nan", ZF_F32},
    {"f[6]", "tanh %1 : f[6]", "0 inf -inf nan 100 -100", "0 1 -1 nan 1 -1", ZF_F32},
    {"f[2] f[2]", "tanh_grad %1, %2 : f[2]", "8 3; 0.5 1", "6 0", ZF_F32},
    {"f[6]", "sigmoid %1 : f[6]", "0 inf -inf nan 1000 -1000", "0.5 1 0 nan 1 0", ZF_F32},
    {"f[2] f[2]", "sigmoid_grad %1, %2 : f[2]", "16 5; 0.25 1", "3 0", ZF_F32},
    {"f[5]", "relu %1 : f[5]", "-1 0 2 nan -inf", "0 0 2 nan 0", ZF_F32},
    {"f[3] f[3]", "relu_grad %1, %2 : f[3]", "5 6 7; 2 0 1e-30", "5 0 7", ZF_F32},
    {"f[5]", "gelu %1 : f[5]", "0 100 -100 inf nan", "0 100 0 inf nan", ZF_F32},
    {"f[5]", "gelu %1 {form=tanh} : f[5]", "0 100 -100 inf nan", "0 100 0 inf nan", ZF_F32},
    {"f[3] f[3]", "gelu_grad %1, %2 : f[3]", "2 3 3; 0 100 nan", "1 3 nan", ZF_F32},
    {"f[3] f[3]", "gelu_grad %1, %2 {form=tanh} : f[3]", "2 3 3; 0 100 nan", "1 3 nan", ZF_F32},
    {"f[4]", "silu %1 : f[4]", "0 100 inf nan", "0 100 inf nan", ZF_F32},
    {"f[3] f[3]", "silu_grad %1, %2 : f[3]", "4 3 3; 0 200 nan", "2 3 nan", ZF_F32},
    {"f[6] f[]", "chain %1, %2 {program=[0,0,1,14,2,0,3,3,0]} : f[6]", "1 -3 0 inf -inf nan; 2",
     "3 0 inf nan 0 nan", ZF_F32},
    {"f[2,3] f[3]", "chain %1, %2 {program=[2,0,1,5,0,2,4,2,0]} : f[2,3]",
     "1 2 nan inf -2 3; 2 -1 inf", "2 2 nan inf 2 inf", ZF_F32},
    {"f[1] f[1,1]", "chain %1, %2 {program=[8,0,0,1,2,1]} : f[1]", "0; 3", "-2", ZF_F32},
    {"f[] f[]", "chain %1, %2 {program=[6,0,0]} : f[]", "5; 3", "-5", ZF_F32},
    {"f[5]", "cast %1 {to=i32} : i32[5]", "1.9 -1.9 nan 1e20 -1e20",
     "1 -1 0 2147483647 -2147483648", ZF_F32},
    {"f[3]", "cast %1 {to=i64} : i64[3]", "-0.5 1e20 -inf",
     "0 9223372036854775807 -9223372036854775808", ZF_F32},
    {"f[4]", "cast %1 {to=u8} : u8[4]", "-5 255.9 300 7.99", "0 255 255 7", ZF_F32},
    {"f[3]", "cast %1 {to=bool} : bool[3]", "0.5 -0 nan", "1 0 1", ZF_F32},
    {"f[4]", "cast %1 {to=bf16} : bf16[4]", "1.00390625 1.01171875 3.4e38 nan",
     "1 1.015625 inf nan", ZF_F64},
    {"f[6]", "cast %1 {to=f16} : f16[6]", "65519 65520 0x1p-25 0x3p-25 0x1p-14 nan",
     "65504 inf 0 0x1p-23 0x1p-14 nan", ZF_F64},
    {"f[2]", "cast %1 {to=f32} : f32[2]", "0x1.000001p0 0x1.0000010000001p0", "1 0x1.000002p0",
     ZF_F64},
    {"j[2]", "cast %1 {to=i32} : i32[2]", "4294967296 -4294967296", "2147483647 -2147483648",
     ZF_F32},
    /* 2^60 + 2^36 is half way between two floats: a last bit beyond a double decides. */
    {"j[2] j[2]", "add %1, %2 : i64[2]\ncast %3 {to=f32} : f32[2]",
     "1152921573326323712 -1152921573326323712; 1 -1", "0x1.000002p60 -0x1.000002p60", ZF_F32},
    {"f[4]", "dropout %1 : f[4]", "1 2 3 nan", "1 2 3 nan", ZF_F32},
    {"f[2,3]", "reshape %1 {shape=[3,2]} : f[3,2]", "1 2 3 4 5 6", "1 2 3 4 5 6", ZF_F32},
    {"f[2,3]", "slice %1 {axis=1 start=1 stop=3} : f[2,2]", "1 2 3 4 5 6", "2 3 5 6", ZF_F32},
    {"f[2,3]", "slice %1 {axis=0 start=1 stop=2} : f[1,3]", "1 2 3 4 5 6", "4 5 6", ZF_F32},
    {"f[2,2]", "pad %1 {axis=1 before=1 after=2} : f[2,5]", "1 2 3 4", "0 1 2 0 0 0 3 4 0 0",
     ZF_F32},
    {"f[2,3]", "transpose %1 {order=[1,0]} : f[3,2]", "1 2 3 4 5 6", "1 4 2 5 3 6", ZF_F32},
    {"f[1,2,2,2]", "transpose %1 {order=[0,2,1,3]} : f[1,2,2,2]", "1 2 3 4 5 6 7 8",
     "1 2 5 6 3 4 7 8", ZF_F32},
    {"f[2,1] f[2,2]", "concat %1, %2 {axis=1} : f[2,3]", "1 2; 3 4 5 6", "1 3 4 2 5 6", ZF_F32},
    {"f[2,1]", "broadcast %1 {shape=[2,2,2]} : f[2,2,2]", "1 2", "1 1 2 2 1 1 2 2", ZF_F32},
    {"f[2,2,2]", "sum_to %1 {shape=[2,1]} : f[2,1]", "1 2 3 4 5 6 7 8", "14 22", ZF_F32},
    {"f[0,2]", "sum_to %1 {shape=[2]} : f[2]", "", "0 0", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 : f[2,2]", "1 2 3 4; 5 6 7 8", "19 22 43 50", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 {transpose_a=true} : f[2,2]", "1 2 3 4; 5 6 7 8",
     "26 30 38 44", ZF_F32},
    {"f[2,2] f[2,2]", "matmul %1, %2 {transpose_b=true} : f[2,2]", "1 2 3 4; 5 6 7 8",
     "17 23 39 53", ZF_F32},
    {"f[2,0] f[0,2]", "matmul %1, %2 : f[2,2]", "", "0 0 0 0", ZF_F32},
    {"f[2,3]", "sum %1 {axis=1} : f[2]", "1 2 3 4 5 nan", "6 nan", ZF_F32},
    {"f[2,3]", "sum %1 : f[3]", "1 2 3 4 5 inf", "5 7 inf", ZF_F32},
    {"f[3,3]", "max %1 {axis=1} : f[3]", "1 3 2 nan 1 2 1 nan -inf", "3 nan nan", ZF_F32},
    {"f[3,3]", "max %1 : f[3]", "1 3 2 nan 1 2 1 nan -inf", "nan nan 2", ZF_F32},
    {"f[2,0]", "max %1 {axis=1} : f[2]", "", "-inf -inf", ZF_F32},
    {"f[4,3]", "argmax %1 {axis=1} : i32[4]", "1 3 3 nan 1 2 5 nan nan -inf -inf -inf", "1 0 1 0",
     ZF_F32},
    {"f[3,2]", "argmax %1 : i32[2]", "1 3 nan 3 nan 2", "1 0", ZF_F32},
    {"f[4,2]", "logsumexp %1 : f[4]", "5 -inf -inf -inf inf 0 nan 0", "5 -inf inf nan", ZF_F32},
    {"f[3]", "square_sums %1 : f[1]", "1 -2 3", "14", ZF_F32},
    {"f[0]", "square_sums %1 : f[0]", "", "", ZF_F32},
    {"f[2] f[1,1] f[0]", "total %1, %2, %3 : f[]", "1 2; 4", "7", ZF_F32},
    {"f[3] f[]", "total %1, %2 : f[]", "0x1p60 1 -0x1p60; 1", "1",
     ZF_F32}, /* 2^60 + 1 is 2^60 in double */
    {"f[4,2]", "softmax %1 : f[4,2]", "7 7 -inf 3 -inf -inf nan 0", "0.5 0.5 0 1 0 0 nan nan",
     ZF_F32},
    {"f[2] f[2]", "softmax_grad %1, %2 : f[2]", "1 3; 0.5 0.5", "-0.5 0.5", ZF_F32},
    {"f[1,2]", "moments %1 : f[1,2]", "1 5", "3 0.5", ZF_F32},
    {"f[1,2]", "rms %1 : f[1,2]", "2 2", "0 0.5", ZF_F32},
    {"f[1,2] f[1,2] f[2] f[2]", "layer_norm %1, %2, %3, %4 : f[1,2]", "1 5; 3 0.5; 2 4; 1 -1",
     "-1 3", ZF_F32},
    {"f[1,2] f[1,2] f[2]", "rms_norm %1, %2, %3 : f[1,2]", "2 4; 0 0.5; 2 4", "2 8", ZF_F32},
    {"f[3,2] i[2]", "gather_rows %1, %2 : f[2,2]", "1 2 3 4 5 6; 2 0", "5 6 1 2", ZF_F32},
    {"f[3,2] i[3]", "scatter_rows %1, %2 {rows=4} : f[4,2]", "1 2 3 4 5 6; 2 0 2",
     "3 4 0 0 6 8 0 0", ZF_F32},
    {"f[2,2] f[2] l[2]", "cross_entropy %1, %2, %3 {ignore=-100} : f[2]", "1 2 3 4; 5 6; 1 -100",
     "3 0", ZF_F32},
    {"f[2] f[2,2] f[2] l[2]", "cross_entropy_grad %1, %2, %3, %4 {ignore=-100} : f[2,2]",
     "2 2; 1 1 3 3; 1 3; 1 -100", "2 0 0 0", ZF_F32},
    {"t[]", "update:\nadvance %1", "41", "42", ZF_F32},
    {"w[2] f[2] f[]", "update:\nsgd %1, %2, %3", "1 2; 4 -4; 0.5", "-1 4", ZF_F32},
    {"w[1] f[1] f[] m[1]", "update:\nsgd %1, %2, %3, %4 {momentum=0.5}", "1; 4; 0.5; 2", "-1.5 5",
     ZF_F32},
    {"w[1] f[1] f[] m[1]", "update:\nsgd %1, %2, %3, %4 {momentum=0.5 nesterov=true}",
     "1; 4; 0.5; 2", "-2.25 5", ZF_F32},
    {"w[2] f[2] f[] f[] f[]", "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}",
     "1 2; 4 8; 0.5; 4; 16", "0 0", ZF_F32},
    {"w[2] f[2] f[] f[] f[]", "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10}",
     "1 2; 4 8; 0.5; 0; 16", "-1 -2", ZF_F32},
};

/* Reads numbers up to ';' or the end; returns how many. */
static int64_t read_numbers(const char **text, double *x)
{
    int64_t count = 0;
    for (char *end; **text && **text != ';'; count++) {
        x[count] = strtod(*text, &end);
        if (end == *text) break;
        *text = end;
    }
    *text += **text == ';';
    return count;
}

TEST_ONCE(operators_give_the_examples)
{
    static const sizes none = {0, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    for (size_t n = 0; n < sizeof examples / sizeof examples[0]; n++)
        for (int reference = 0; reference < 2; reference++) {
            const example *e = &examples[n];
            op_case c = {"example", e->operands, e->text, EXACT, 0, 0, 0};
            const char *values = e->values, *expected = e->expected;
            result r = {.values = kept[0]};
            int64_t count = read_numbers(&expected, kept[1]);
            for (int k = 0; kind_of(&c, k); k++) read_numbers(&values, operand[k]);
            if (run_case(t, &s, &c, &none, e->dtype, (zf_cpu_desc){.reference = reference}, 0,
                         &r)) {
                stopped(t, __LINE__, &c, &none, &s);
                return;
            }
            session_close(&s);
            if (r.count != count)
                wrong(t, __LINE__, &c, &none, "%lld numbers, not %lld", (long long)r.count,
                      (long long)count);
            for (int64_t i = 0; i < count; i++)
                if (kept[0][i] != kept[1][i] && !(isnan(kept[0][i]) && isnan(kept[1][i])))
                    wrong(t, __LINE__, &c, &none, "%s: number %lld is %.9g, not %.9g",
                          reference ? "reference" : "fast", (long long)i, kept[0][i], kept[1][i]);
        }
}

/* ------------------------------------------------------------------------------ goldens */

/* PyTorch's values in f64 (tests/golden/ops/make.py). `build` makes y of the float inputs x and the
 * integers. */
typedef struct golden {
    const char *name, *inputs[4], *integers;
    zf_tensor (*build)(const zf_tensor *x, zf_tensor integers, double eps);
    double units; /* of f32, as NORM */
} golden;

static zf_tensor golden_gelu(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_gelu(x[0]);
}
static zf_tensor golden_gelu_tanh(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_gelu_tanh(x[0]);
}
static zf_tensor golden_silu(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_silu(x[0]);
}
static zf_tensor golden_softmax(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_softmax(x[0]);
}
static zf_tensor golden_log_softmax(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, (void)eps, zf_log_softmax(x[0]);
}
static zf_tensor golden_layer_norm(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, zf_layer_norm(x[0], x[1], x[2], eps);
}
static zf_tensor golden_rms_norm(const zf_tensor *x, zf_tensor i, double eps)
{
    return (void)i, zf_rms_norm(x[0], x[1], eps);
}
static zf_tensor golden_cross_entropy(const zf_tensor *x, zf_tensor labels, double eps)
{
    return (void)eps, zf_reshape(zf_cross_entropy(x[0], labels, ZF_NONE), ZF_SHAPE(1));
}
static zf_tensor golden_embedding(const zf_tensor *x, zf_tensor ids, double eps)
{
    return (void)eps, zf_embedding(x[0], ids);
}

/* softmax(q k^T / sqrt(size), -inf where not seen) v */
static zf_tensor attend(const zf_tensor *x, zf_tensor seen)
{
    zf_tensor scores =
        zf_scale(zf_matmul_ex(x[0], x[1], &(zf_matmul_desc){.transpose_b = true}), 1 / sqrt(5));
    zf_tensor never = zf_constant(x[0].graph, zf_tensor_dtype(x[0]), ZF_SCALAR, -INFINITY);
    return zf_matmul(zf_softmax(zf_where(seen, scores, never)), x[2]);
}
static zf_tensor golden_attention(const zf_tensor *x, zf_tensor mask, double eps)
{
    return (void)eps, attend(x, zf_reshape(zf_cast(mask, ZF_BOOL), ZF_SHAPE(2, 1, 1, 7)));
}
static zf_tensor golden_causal(const zf_tensor *x, zf_tensor none, double eps)
{
    double seen[49];
    (void)none, (void)eps;
    for (int i = 0; i < 49; i++) seen[i] = i % 7 <= i / 7;
    return attend(x, zf_values(x[0].graph, ZF_BOOL, ZF_SHAPE(7, 7), seen));
}

/* Units: a row of softmax is shifted by 1000, one of layer_norm has a mean of 100 (24 roundings in
 * its sum), one of cross_entropy has logits near 500. gelu and silu run to 40. */
static const golden goldens[] = {
    {"gelu_erf", {"x"}, NULL, golden_gelu, 16},
    {"gelu_tanh", {"x"}, NULL, golden_gelu_tanh, 24},
    {"silu", {"x"}, NULL, golden_silu, 24},
    {"softmax", {"x"}, NULL, golden_softmax, 48},
    {"log_softmax", {"x"}, NULL, golden_log_softmax, 2000},
    {"layer_norm", {"x", "gamma", "beta"}, NULL, golden_layer_norm, 2400},
    {"rms_norm", {"x", "gamma"}, NULL, golden_rms_norm, 160},
    {"cross_entropy", {"x"}, "labels", golden_cross_entropy, 1000},
    {"embedding", {"weight"}, "ids", golden_embedding, 4},
    {"attention", {"q", "k", "v"}, "mask", golden_attention, 128},
    {"attention_causal", {"q", "k", "v"}, NULL, golden_causal, 128},
};

static zf_safetensors *golden_file;

static void golden_close(void *unused)
{
    (void)unused;
    zf_safetensors_close(golden_file);
    golden_file = NULL;
}

/* The entry NAME.PART (NAME.dPART where `d`), its data into `out`; NULL where there is none. */
static const zf_safetensors_entry *golden_part(const golden *g, bool d, const char *part, void *out,
                                               zf_error *error)
{
    char name[64];
    int32_t index;
    snprintf(name, sizeof name, "%s.%s%s", g->name, d ? "d" : "", part);
    index = zf_safetensors_find(golden_file, name);
    if (index < 0) return NULL;
    if (zf_safetensors_read(golden_file, index, out, zf_safetensors_at(golden_file, index)->bytes,
                            error))
        return NULL;
    return zf_safetensors_at(golden_file, index);
}

/* Reads the output `name` and compares it with the golden NAME.PART. */
static zf_status check_golden(test *t, session *s, const golden *g, const char *name, bool d,
                              const char *part, zf_dtype dtype)
{
    zf_tensor from = zf_graph_find(s->graph, name);
    int64_t count = zf_shape_count(zf_tensor_shape(from));
    double largest = 1, units = dtype == ZF_F64 ? 0x1p-53 * 32 * g->units : 0x1p-24 * g->units;
    if (!golden_part(g, d, part, kept[1], &s->error)) return s->error.status = ZF_ERR_ARGUMENT;
    if (session_check(s, zf_read(s->program, from, raw, zf_tensor_bytes(from))))
        return s->error.status;
    decode(kept[0], dtype, raw, count);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(kept[1][i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(kept[0][i] - kept[1][i]) <= units * largest)) {
            char text[200];
            snprintf(
                text, sizeof text,
                "%s.%s%s %s: element %lld is %.12g, PyTorch's is %.17g, %.3g times the bound off",
                g->name, d ? "d" : "", part, zf_dtype_name(dtype), (long long)i, kept[0][i],
                kept[1][i], fabs(kept[0][i] - kept[1][i]) / (units * largest));
            test_fail(t, __FILE__, __LINE__, "golden", text);
            break;
        }
    return ZF_OK;
}

static zf_status run_golden(test *t, session *s, const golden *g, zf_dtype dtype)
{
    zf_tensor x[4], integers = ZF_NONE, y;
    const zf_safetensors_entry *entry;
    double eps = 0;
    zf_status status;
    s->error = (zf_error){ZF_OK, ""};
    s->graph = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    if (!s->graph) return s->error.status = ZF_ERR_NOMEM;
    for (int k = 0; k < 4 && g->inputs[k]; k++) {
        entry = golden_part(g, false, g->inputs[k], operand[k], &s->error);
        if (!entry) return s->error.status = ZF_ERR_ARGUMENT;
        x[k] = zf_param(s->graph, g->inputs[k], entry->shape, &(zf_param_desc){.dtype = dtype});
    }
    if (g->integers) {
        entry = golden_part(g, false, g->integers, operand[5], &s->error);
        if (!entry) return s->error.status = ZF_ERR_ARGUMENT;
        integers = zf_input(s->graph, g->integers, ZF_I64, entry->shape);
    }
    golden_part(g, false, "eps", &eps, &s->error);
    y = zf_output(g->build(x, integers, eps), "y");
    zf_autograd(s->graph, zf_sum(zf_mul(y, zf_input(s->graph, "dy", dtype, zf_tensor_shape(y)))));
    for (int k = 0; k < 4 && g->inputs[k]; k++) {
        char name[32];
        snprintf(name, sizeof name, "d %s", g->inputs[k]);
        zf_output(zf_gradient(s->graph, x[k]), name);
    }
    if (session_failed(s) ||
        session_compile(t, s, (zf_cpu_desc){.threads = 2}, (zf_compile_desc){.poison = true}))
        return s->error.status;
    for (int k = 0; k < 4 && g->inputs[k]; k++)
        if (session_write(s, g->inputs[k], operand[k])) return s->error.status;
    if (g->integers &&
        session_check(s, zf_write(s->program, integers, operand[5], zf_tensor_bytes(integers))))
        return s->error.status;
    if (!golden_part(g, false, "dy", operand[6], &s->error))
        return s->error.status = ZF_ERR_ARGUMENT;
    if (session_write(s, "dy", operand[6]) || session_check(s, zf_step(s->program)))
        return s->error.status;
    status = check_golden(t, s, g, "y", false, "y", dtype);
    for (int k = 0; k < 4 && g->inputs[k] && !status; k++) {
        char name[32];
        snprintf(name, sizeof name, "d %s", g->inputs[k]);
        status = check_golden(t, s, g, name, true, g->inputs[k], dtype);
    }
    return status;
}

TEST(operators_agree_with_pytorch)
{
    static session s;
    zf_error error = {ZF_OK, ""};
    test_defer(t, golden_close, NULL);
    golden_file = zf_safetensors_open("tests/golden/ops/ops.safetensors", &t->allocator, &error);
    NEED(t, golden_file, &error);
    test_defer(t, session_close, &s);
    for (size_t n = 0; n < sizeof goldens / sizeof goldens[0]; n++)
        for (int wide = 0; wide < 2; wide++) {
            OK(t, run_golden(t, &s, &goldens[n], wide ? ZF_F64 : ZF_F32), s.error.text);
            session_close(&s);
        }
}

/* Every pair of special values goes through the elementwise kernels as through the reference. What
 * gradients are taken at is finite. */
TEST_ONCE(operators_treat_special_values_alike)
{
    static const double special[] = {NAN,
                                     0,
                                     -0.0,
                                     1,
                                     -1,
                                     0.5,
                                     -0.5,
                                     8,
                                     -8,
                                     0x1p-100,
                                     -0x1p-100,
                                     INFINITY,
                                     -INFINITY,
                                     0x1.fffffep127,
                                     -0x1.fffffep127};
    enum { ALL = sizeof special / sizeof special[0], FINITE = 11, BELOW_1 = 7, PAIRS = ALL * ALL };
    static const sizes z = {ALL, ALL, 1};
    static session s;
    test_defer(t, session_close, &s);
    for (int n = 0; n < CASES; n++) {
        const op_case *c = &cases[n];
        bool gradient = strstr(c->row, "_grad") != NULL;
        int second = kind_of(c, 1) == 'u' ? BELOW_1 : gradient ? FINITE : ALL;
        result exact = {.values = kept[1]}, got = {.values = kept[0]};
        char shape[16] = "f[R,N] f[R,N]";
        memcpy(shape, c->operands, 1);
        if (strlen(c->operands) > 7) shape[7] = c->operands[7];
        else shape[6] = '\0';
        if (!is_float_kind(*shape) || strcmp(c->operands, shape) || strchr(c->text, '\n') ||
            !strcmp(c->row, "softmax") || !strstr(c->text + strlen(c->text) - 6, "[R,N]"))
            continue;
        for (int i = 0; i < PAIRS; i++) {
            operand[0][i] = special[i % ALL];
            operand[1][i] = special[i / ALL % second];
        }
        if (run_case(t, &s, c, &z, ZF_F32, (zf_cpu_desc){.reference = true}, 0, &exact)) goto stop;
        session_close(&s);
        for (int k = 0; k < 4; k++) {
            if (!has_isa(isas[k])) continue;
            if (run_case(t, &s, c, &z, ZF_F32, (zf_cpu_desc){.isa = isas[k]}, 0, &got)) goto stop;
            session_close(&s);
            for (int i = 0; i < PAIRS; i++) {
                double a = kept[0][i], b = kept[1][i],
                       scale = c->scale == GROWTH ? growth_of(c, i) : fabs(b);
                if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= c->units * 0x1p-24 * scale)
                    continue;
                wrong(t, __LINE__, c, &z, "%s: of %g (and %g) it makes %.9g, the reference %.9g",
                      isas[k], operand[0][i], operand[1][i], a, b);
                break;
            }
        }
    }
    return;
stop:
    test_fail(t, __FILE__, __LINE__, "special values", s.error.text);
}

/* ----------------------------------------------------------------------------- messages */

static const struct {
    const char *operands, *text, *message;
} mistakes[] = {
    {"f[2,3] f[2]", "add %1, %2 : f[2,3]",
     "3: add: the shapes do not broadcast: dimensions, aligned at the last, must be equal or 1; %1 "
     "= f32[2,3], %2 = "
     "f32[2]"},
    {"f[2] i[2]", "mul %1, %2 : f[2]",
     "3: mul: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"b[2] b[2]", "sub %1, %2 : bool[2]",
     "3: sub: the operands must be float or integer; %1 = bool[2], %2 = bool[2]"},
    {"f[2] f[2] f[2]", "where %1, %2, %3 : f[2]",
     "4: where: the condition must be bool or u8; %1 = f32[2], %2 = f32[2], %3 = f32[2]"},
    {"i[2]", "tanh %1 : i32[2]",
     "2: tanh: the operand must be float: f32, bf16, f16 or f64; %1 = i32[2]"},
    {"f[2] f[3]", "tanh_grad %1, %2 : f[2]",
     "3: tanh_grad: the operands must have one shape; %1 = f32[2], %2 = f32[3]"},
    {"f[2]", "dropout %1 {p=1} : f[2]",
     "2: dropout: p = 1 must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "dropout %1 {p=nan} : f[2]",
     "2: dropout: p = nan must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "dropout %1 {p=0.5 stream=-1} : f[2]",
     "2: dropout: stream -1 must be 0 to 2^32 - 1; %1 = f32[2]"},
    {"f[2] i[2]", "chain %1, %2 {program=[0,0,1]} : f[2]",
     "3: chain: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"f[2,3] f[2,1]", "chain %1, %2 {program=[0,0,1]} : f[2,3]",
     "3: chain: operand 1 must have the shape of operand 0, one element, or be a vector over the "
     "last dimension; %1 = f32[2,3], %2 = f32[2,1]"},
    {"f[2]", "chain %1 : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 0; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,0,6]} : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 4; %1 = f32[2]"},
    {"f[2]",
     "chain %1 {program=[6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,6,0,0,"
     "6,0,0,6,0,0,6,0,0,6,0,0,6,0,0]} : f[2]",
     "2: chain: a program is 1 to 16 times 3 numbers (code, a, b), not 51; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[25,0,0]} : f[2]",
     "2: chain: instruction 0: there is no code 25; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[-1,0,0]} : f[2]",
     "2: chain: instruction 0: there is no code -1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,0,0,1,2]} : f[2]",
     "2: chain: instruction 1 reads registers 1 and 2, but there are 0 to 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,-1,0]} : f[2]",
     "2: chain: instruction 0 reads registers -1 and 0, but there are 0 to 0; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[6,0,1]} : f[2]",
     "2: chain: instruction 0: b must be 0, not 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[7,0,1] values=[1]} : f[2]",
     "2: chain: instruction 0: there is no value 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5]} : f[2]",
     "2: chain: instruction 0: p and stream are not values 0 and on; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,9223372036854775807] values=[0.5,1]} : f[2]",
     "2: chain: instruction 0: p and stream are not values 9223372036854775807 and on; %1 = "
     "f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[1,3]} : f[2]",
     "2: chain: instruction 0: p = 1 must be at least 0 and below 1; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5,1.5]} : f[2]",
     "2: chain: instruction 0: stream 1.5 must be 0 to 2^32 - 1, and whole; %1 = f32[2]"},
    {"f[2]", "chain %1 {program=[24,0,0] values=[0.5,nan]} : f[2]",
     "2: chain: instruction 0: stream nan must be 0 to 2^32 - 1, and whole; %1 = f32[2]"},
    {"f[2,3]", "reshape %1 {shape=[7]} : f[7]",
     "2: reshape: f32[7] has 7 elements, the operand 6; %1 = f32[2,3]"},
    {"f[2,3]", "reshape %1 {shape=[-2,-3]} : f[6]",
     "2: reshape: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements; %1 = "
     "f32[2,3]"},
    {"f[1]", "reshape %1 {shape=[1,1,1,1,1,1,1]} : f[1]",
     "2: reshape: a shape has 0 to 6 dimensions, none negative, and fewer than 2^63 elements; %1 = "
     "f32[1]"},
    {"f[2,3]", "slice %1 {axis=2 stop=1} : f[2,3]",
     "2: slice: axis 2 of a tensor of rank 2; 0 to 1 is possible; %1 = f32[2,3]"},
    {"f[]", "slice %1 : f[]", "2: slice: a scalar has no axis; %1 = f32[]"},
    {"f[2,3]", "slice %1 {axis=1 start=2 stop=4} : f[2,2]",
     "2: slice: start 2 and stop 4; 0 <= start <= stop <= 3 is possible; %1 = f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=-1} : f[2,2]",
     "2: pad: -1 before and 0 after; neither may be negative, nor their sum with 3 over 2^63 - 1; "
     "%1 = f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=9223372036854775806} : f[2,3]",
     "2: pad: 9223372036854775806 before and 0 after; neither may be negative, nor their sum with "
     "3 over 2^63 - 1; %1 = "
     "f32[2,3]"},
    {"f[2,3]", "pad %1 {axis=1 before=9223372036854775000} : f[2,3]",
     "2: pad: the result has a negative dimension, or 2^60 elements or more"},
    {"f[2,3]", "transpose %1 {order=[0]} : f[2,3]",
     "2: transpose: the order has 1 entries, the operand 2 dimensions; %1 = f32[2,3]"},
    {"f[2,3]", "transpose %1 {order=[1,1]} : f[3,3]",
     "2: transpose: the order must name each of the axes 0 to 1 once; %1 = f32[2,3]"},
    {"f[2,3] f[2,4]", "concat %1, %2 : f[4,3]",
     "3: concat: operand 1, f32[2,4], must have operand 0's dimensions but for axis 0; %1 = "
     "f32[2,3], %2 = f32[2,4]"},
    {"f[2] i[2]", "concat %1, %2 : f[4]",
     "3: concat: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
    {"f[2,3]", "broadcast %1 {shape=[3,3]} : f[3,3]",
     "2: broadcast: the operand does not broadcast to f32[3,3]: aligned at the last, each "
     "dimension must be equal or 1; %1 "
     "= f32[2,3]"},
    {"f[2,3]", "sum_to %1 {shape=[2]} : f[2]",
     "2: sum_to: f32[2] does not broadcast to the operand's shape: aligned at the last, each "
     "dimension must be equal or 1; "
     "%1 = f32[2,3]"},
    {"i[2,3]", "sum_to %1 {shape=[3]} : i32[3]",
     "2: sum_to: the operand must be float: f32, bf16, f16 or f64; %1 = i32[2,3]"},
    {"f[2,3]", "sum %1 {axis=-1} : f[2]",
     "2: sum: axis -1 of a tensor of rank 2; 0 to 1 is possible; %1 = f32[2,3]"},
    {"f[]", "max %1 : f[]", "2: max: a scalar has no axis; %1 = f32[]"},
    {"f[2,0]", "argmax %1 {axis=1} : i32[2]",
     "2: argmax: the axis has 0 elements; 1 to 2^31 - 1 is possible; %1 = f32[2,0]"},
    {"f[2] i[2]", "total %1, %2 : f[]",
     "3: total: the operands must have one dtype (zf_cast converts); %1 = f32[2], %2 = i32[2]"},
};

TEST(operators_explain_mistakes)
{
    static const sizes none = {0, 0, 0};
    static session s;
    test_defer(t, session_close, &s);
    for (size_t n = 0; n < sizeof mistakes / sizeof mistakes[0]; n++) {
        op_case c = {"mistake", mistakes[n].operands, mistakes[n].text, EXACT, 0, 0, 0};
        zf_status status = session_graph(t, &s, &c, &none, ZF_F32, false, 0);
        if (status == ZF_ERR_NOMEM) OK(t, status, s.error.text);
        CHECK_TEXT(t, s.error.text, mistakes[n].message);
        CHECK(t, status == ZF_ERR_PARSE);
        session_close(&s);
    }
}
