/* The table of cases of every operator, and what runs one: for tests/ops/ops.c, on the CPU, and
 * tests/cuda/ops.c.
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
 *     c  a cache                r  i32 0..R      o  i32 0 or 1
 */
#ifndef OP_CASES_H
#define OP_CASES_H

#include "../support/test.h"

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
    NO_GRADIENT = 1, /* the result is no float, or its gradient is 0 everywhere or refused on the way */
    REFUSED = 2,     /* a row that gradients are made of: autograd says so */
    MUTATES = 4,     /* operands w, m, v, c change */
    RANDOM = 8,      /* another mask every step */
    NEEDS_N = 16,    /* N = 0 has no meaning */
    NEEDS_R = 32,
    WIDE = 64,    /* N = 1 and N = 2 cancel to nothing */
    EXPERTS = 128 /* N experts, each of which has weights: no more than 300 */
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
    {"set", "f[R,N]", "scale %1 {by=1} : f[R,N]", EXACT, 0, 0, 0},
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
    {"maximum", "b[R,N] b[N]", "maximum %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"minimum", "b[R,1] b[R,N]", "minimum %1, %2 : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"pow", "p[R,N] f[R,N]", "pow %1, %2 : f[R,N]", RELATIVE, 8, 0, 0},
    {"pow", "p[R,1] f[N]", "pow %1, %2 : f[R,N]", RELATIVE, 8, 0, 0},
    {"pow", "f[R,N]", "constant {values=[3]} : f[]\npow %1, %2 : f[R,N]", RELATIVE, 8, 0, 0},
    {"equal", "q[R,N] q[R,N]", "equal %1, %2 {negated=true} : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"equal", "j[R,N] j[1]", "equal %1, %2 {negated=true} : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"less", "q[R,N] q[N]", "less %1, %2 {or_equal=true} : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"less", "i[R,N] i[]", "less %1, %2 {or_equal=true} : bool[R,N]", EXACT, 0, 0, NO_GRADIENT},
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
    {"abs", "f[R,N]", "abs %1 : f[R,N]", EXACT, 0, 0, 0},
    {"sin", "f[R,N]", "sin %1 : f[R,N]", RELATIVE, 4, 0, 0},
    {"cos", "f[R,N]", "cos %1 : f[R,N]", NORM, 4, 0, 0},
    {"sin", "h[R,N]", "sin %1 : f[R,N]", NORM, 4, 0, NO_GRADIENT},
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
    {"softplus", "f[R,N]", "softplus %1 : f[R,N]", RELATIVE, 6, 0, 0},
    {"swiglu", "f[R,N] f[R,N]", "swiglu %1, %2 : f[R,N]", NORM, 8, 0, 0},
    {"swiglu", "f[R,D]", "swiglu %1 : f[R,N]", NORM, 8, 0, 0},
    {"swiglu_grad", "f[R,N] f[R,N] f[R,N]", "swiglu_grad %1, %2, %3 : f[R,N]", NORM, 12, 0,
     REFUSED},
    {"swiglu_grad", "f[R,N] f[R,D]", "swiglu_grad %1, %2 : f[R,D]", NORM, 12, 0, REFUSED},
    {"saved", "f[R,N] f[R,N]", "gelu_grad %1, %2 : f[R,N]\nsaved %3 {index=0} : f[R,N]", NORM, 6, 0,
     REFUSED},
    {"saved", "f[R,N] f[R,N]", "silu_grad %1, %2 : f[R,N]\nsaved %3 {index=0} : f[R,N]", NORM, 6, 0,
     REFUSED},
    {"silu_grad", "f[R,N] f[R,N]", "silu_grad %1, %2 : f[R,N]", GROWTH, 3.7, 0, REFUSED},
    {"saved", "f[R,N] f[R,N]", "gelu_grad %1, %2 : f[R,N]\nsaved %3 {index=1} : f[N]", TERMS, 24,
     'R', REFUSED},
    {"saved", "f[R,3,N] f[R,3,N]",
     "silu_grad %1, %2 : f[R,3,N]\nsaved %3 {index=0} : f[R,3,N]\nsaved %3 {index=1} : f[N]\n"
     "sum_to %3 {shape=[N]} : f[N]\nsub %5, %6 : f[N]\nadd %4, %7 : f[R,3,N]",
     NORM, 24, 0, NO_GRADIENT},
    {"saved", "f[R,40] f[R,40]", /* the bits of sum_to */
     "gelu_grad %1, %2 {form=tanh} : f[R,40]\nsaved %3 {index=1} : f[40]\n"
     "sum_to %3 {shape=[40]} : f[40]\nsub %4, %5 : f[40]",
     EXACT, 0, 0, NO_GRADIENT},
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
    {"quantize", "f[R,128]", "quantize %1 {bits=8 block=64} : u8[R,136]", EXACT, 0, 0, NO_GRADIENT},
    {"quantize", "f[R,256]", "quantize %1 {bits=4 block=128 scale=bf16} : u8[R,132]", EXACT, 0, 0,
     NO_GRADIENT},
    {"quantize_feedback", "f[R,128]",
     "state \"e\" {value=0.25} : f32[R,128]\n"
     "quantize_feedback %1, %2 {bits=8 block=64 beta=0.75} : u8[R,136]",
     EXACT, 0, 0, NO_GRADIENT | MUTATES},
    {"quantize_feedback", "f[R,256]",
     "state \"e\" {value=-0.5} : f32[R,256]\n"
     "quantize_feedback %1, %2 {bits=4 block=128 scale=bf16} : u8[R,132]",
     EXACT, 0, 0, NO_GRADIENT | MUTATES},
    {"quantize_feedback", "f[R,128]",
     "state \"e\" : u8[R,136]\nstate \"s\" {value=8} : f32[]\nstate \"i\" {value=2} : i64[]\n"
     "state \"o\" : i64[]\n"
     "quantize_feedback %1, %2, %3, %4, %5 {bits=4 block=64 beta=0.5} : u8[R,72]",
     EXACT, 0, 0, NO_GRADIENT | MUTATES},
    {"dequantize", "f[R,192]",
     "quantize %1 {bits=8 block=192 scale=bf16} : u8[R,194]\n"
     "dequantize %2 {bits=8 block=192 scale=bf16} : f32[R,192]",
     EXACT, 0, 0, NO_GRADIENT},
    {"dequantize", "f[R,128]",
     "quantize %1 {bits=4 block=64} : u8[R,72]\n"
     "dequantize %2 {bits=4 block=64 to=bf16} : bf16[R,128]",
     EXACT, 0, 0, NO_GRADIENT},
    {"dequantize_sum", "f[3,R,64]",
     "quantize %1 {bits=8 block=64} : u8[3,R,68]\n"
     "dequantize_sum %2 {bits=8 block=64 parts=3} : f32[X]",
     EXACT, 0, 0, NO_GRADIENT | MUTATES},
    {"dequantize_sum", "f[2,R,128]",
     "quantize %1 {bits=4 block=128 scale=bf16} : u8[2,R,66]\n"
     "dequantize_sum %2 {bits=4 block=128 scale=bf16 to=f16 parts=2} : f16[Y]",
     EXACT, 0, 0, NO_GRADIENT | MUTATES},
    {"draw", "f[R,N]", "draw %1 {stream=7} : f[R,N]", RELATIVE, 1, 0, NO_GRADIENT | RANDOM},
    {"draw", "f[R,N]", "draw %1 {form=normal stream=7} : f[R,N]", RELATIVE, 4, 0,
     NO_GRADIENT | RANDOM},
    {"dropout", "f[R,N]", "dropout %1 {p=0.25 stream=7} : f[R,N]", RELATIVE, 2, 0, RANDOM},
    {"layer_drop", "f[R,N]", "layer_drop %1 {coin=3 share=0.5 theta=0.5 gamma=0.001} : f[R,N]",
     RELATIVE, 2, 0, RANDOM},

    {"reshape", "f[R,N]", "reshape %1 {shape=[S]} : f[S]", EXACT, 0, 0, 0},
    {"reshape", "f[1,1]", "reshape %1 : f[]", EXACT, 0, 0, 0},
    {"stop_gradient", "f[R,N]", "stop_gradient %1 : f[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"reshape", "b[R,N]", "reshape %1 {shape=[1,N,1,R]} : bool[1,N,1,R]", EXACT, 0, 0, NO_GRADIENT},
    {"view", "f[R,N]", "view %1 {shape=[S]} : f[S]", EXACT, 0, 0, REFUSED},
    {"view", "f[7]", "view %1 {at=2 shape=[2,2]} : f[2,2]", EXACT, 0, 0, REFUSED},
    {"pack", "f[R,N]", "pack %1 {at=[0] size=S} : f[S]", EXACT, 0, 0, REFUSED},
    {"pack", "f[3,5] f[2]", "pack %1, %2 {at=[1,20] size=24} : f[24]", EXACT, 0, 0, REFUSED},
    {"gather_examples", "f[R,N]", "gather_examples %1 {ranks=1} : f[R,N]", EXACT, 0, 0, 0},
    {"scatter_examples", "f[R,N]", "scatter_examples %1 {ranks=1} : f[R,N]", EXACT, 0, 0, 0},
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
    {"matmul", "f[R,N] f[N,M] f[R,M]", "matmul %1, %2, %3 : f[R,M]", TERMS, 2, 'N', 0},
    {"matmul", "f[2,R,N] f[M,N] f[2,R,M]", "matmul %1, %2, %3 {transpose_b=true} : f[2,R,M]", TERMS,
     2, 'N', 0},
    {"matmul", "f[2,1,R,N] f[3,N,M] f[2,3,R,M]", "matmul %1, %2, %3 : f[2,3,R,M]", TERMS, 2, 'N',
     0},
    {"matmul", "f[9,9] f[9,9]", "matmul %1, %2, %1 : f[9,9]", TERMS, 2, 0, 0},
    {"matmul", "f[R,24] f[24,M]", "matmul %1, %2 {sections=8} : f[R,M]", TERMS, 24, 0, 0},
    {"matmul", "f[2,R,15] f[M,15] f[2,R,M]",
     "matmul %1, %2, %3 {transpose_b=true sections=5} : f[2,R,M]", TERMS, 16, 0, 0},
    {"matmul", "f[24,R] f[24,M]", "matmul %1, %2 {transpose_a=true sections=3 wide=true} : g[R,M]",
     TERMS, 24, 0, 0},
    {"matmul", "f[2,3,N,R] f[2,3,M,N]",
     "matmul %1, %2 {transpose_a=true transpose_b=true} : f[2,3,R,M]", TERMS, 1, 'N', 0},
    {"conv", "f[2,4,7,3] f[4,2,3,3]",
     "conv %1, %2 {stride=[2,1] pad=[1,2] dilation=[1,2] groups=2} : f[2,4,4,3]", TERMS, 18, 0, 0},
    {"conv", "f[1,3,2,3] f[4,3,1,1]",
     "conv %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1} : f[1,4,2,3]", TERMS, 3, 0, 0},
    {"conv", "f[4,3,1,9] f[3,1,1,4]",
     "conv %1, %2 {stride=[1,2] pad=[0,1] dilation=[1,2] groups=3} : f[4,3,1,3]", TERMS, 4, 0, 0},
    /* strips of a part of a row; blocks of k, and of rows; a channel alone */
    {"conv", "f[1,2,1,1100] f[3,2,1,3]",
     "conv %1, %2 {stride=[1,1] pad=[0,3] dilation=[1,2] groups=1} : f[1,3,1,1102]", TERMS, 6, 0,
     NO_GRADIENT},
    {"conv", "f[1,1,2,2300] f[2,1,2,3]",
     "conv %1, %2 {stride=[1,2] pad=[1,0] dilation=[1,1] groups=1} : f[1,2,3,1149]", TERMS, 6, 0,
     NO_GRADIENT},
    {"conv", "f[1,70,3,4] f[75,70,3,3]",
     "conv %1, %2 {stride=[1,1] pad=[1,1] dilation=[1,1] groups=1} : f[1,75,3,4]", TERMS, 630, 0,
     NO_GRADIENT},
    {"conv", "f[2,3,40,70] f[3,1,3,3]",
     "conv %1, %2 {stride=[1,1] pad=[1,1] dilation=[1,1] groups=3} : f[2,3,40,70]", TERMS, 9, 0,
     NO_GRADIENT},
    /* many channels: registers of 16 words, the last half word and the last words of which are 0 */
    {"conv", "f[2,9,6,11] f[20,9,3,2]",
     "conv %1, %2 {stride=[2,3] pad=[1,2] dilation=[1,1] groups=1} : f[2,20,3,5]", TERMS, 54, 0,
     NO_GRADIENT},
    {"conv", "f[2,5,3,9] f[1,5,2,3]",
     "conv %1, %2 {stride=[1,1] pad=[0,1] dilation=[1,1] groups=1} : f[2,1,2,9]", TERMS, 30, 0,
     NO_GRADIENT},
    {"conv_grad_x", "f[2,70,3,5] f[70,20,2,3]",
     "conv_grad_x %1, %2 {stride=[1,2] pad=[0,1] dilation=[1,1] groups=1 size=[4,10]} : "
     "f[2,20,4,10]",
     TERMS, 420, 0, REFUSED},
    {"conv_grad_x", "f[1,3,5,130] f[3,7,2,4]",
     "conv_grad_x %1, %2 {stride=[2,3] pad=[0,5] dilation=[1,3] groups=1 size=[11,389]} : "
     "f[1,7,11,389]",
     TERMS, 24, 0, REFUSED},
    {"conv_grad_x", "f[1,3,4,6] f[3,2,1,1]",
     "conv_grad_x %1, %2 {stride=[1,1] pad=[1,2] dilation=[1,1] groups=1 size=[2,2]} : f[1,2,2,2]",
     TERMS, 3, 0, REFUSED},
    {"conv_grad_x", "f[R,6,4,6] f[6,2,3,3]",
     "conv_grad_x %1, %2 {stride=[2,1] pad=[1,2] dilation=[1,2] groups=2 size=[7,6]} : f[R,4,7,6]",
     TERMS, 27, 0, REFUSED},
    {"conv_grad_x", "f[1,2,30,30] f[2,3,3,3]",
     "conv_grad_x %1, %2 {stride=[1,1] pad=[1,1] dilation=[1,1] groups=1 size=[30,30]} : "
     "f[1,3,30,30]",
     TERMS, 18, 0, REFUSED},
    {"conv_grad_x", "f[2,4,5,5] f[4,3,2,3]",
     "conv_grad_x %1, %2 {stride=[1,2] pad=[0,1] dilation=[1,1] groups=1 size=[6,10]} : "
     "f[2,3,6,10]",
     TERMS, 24, 0, REFUSED},
    {"conv_grad_w", "f[R,4,7,6] f[R,6,4,6]",
     "conv_grad_w %1, %2 {stride=[2,1] pad=[1,2] dilation=[1,2] groups=2 taps=[3,3]} : f[6,2,3,3]",
     TERMS, 24, 'X', REFUSED},
    {"conv_grad_w", "f[2,3,20,70] f[2,3,20,70]",
     "conv_grad_w %1, %2 {stride=[1,1] pad=[1,1] dilation=[1,1] groups=3 taps=[3,3]} : f[3,1,3,3]",
     TERMS, 700, 0, REFUSED},
    {"conv_grad_w", "f[1,5,2,1300] f[1,70,1,1299]",
     "conv_grad_w %1, %2 {stride=[1,1] pad=[0,0] dilation=[1,1] groups=1 taps=[2,2]} : f[70,5,2,2]",
     TERMS, 700, 0, REFUSED},
    {"conv_grad_w", "f[3,36,5,9] f[3,20,3,3]",
     "conv_grad_w %1, %2 {stride=[2,3] pad=[1,0] dilation=[1,1] groups=2 taps=[3,2]} : "
     "f[20,18,3,2]",
     TERMS, 27, 0, REFUSED},
    {"rope", "f[2,R,8]", "rope %1 {heads=2 theta=100} : f[2,R,8]", NORM, 6, 0, 0},
    {"rope", "f[2,R,8]", "rope %1 {heads=2 theta=100 first=3 of=100000} : f[2,R,8]", NORM, 6, 0, 0},
    {"rope", "f[R,6] i[R]", "rope %1, %2 {heads=1 theta=10000 scaling=linear factor=4} : f[R,6]",
     NORM, 6, 0, 0},
    {"rope", "f[2,R,12] i[2,R]",
     "rope %1, %2 {heads=1 theta=500000 scaling=llama3 factor=8 low=1 high=4 original=64 "
     "inverse=true} : f[2,R,12]",
     NORM, 6, 0, 0},
    {"rope", "f[2,R,16] i[R]",
     "rope %1, %2 {heads=1 theta=100 scaling=yarn factor=4 low=1 high=8 original=32 by=1.5} : "
     "f[2,R,16]",
     NORM, 9, 0, 0},
    {"rope", "f[R,12] i[R]",
     "rope %1, %2 {heads=1 theta=100 scaling=yarn factor=4 low=1 high=8 original=32 inverse=true "
     "unrounded=true by=1.5} : f[R,12]",
     NORM, 9, 0, 0},
    {"rope", "f[3,R,10]", "rope %1 {heads=1 theta=10000} : f[3,R,10]", NORM, 6, 0, 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 : f[R,M]", TERMS, 1, 'N', 0},
    {"linear", "f[2,R,N] f[M,N] f[M]", "linear %1, %2, %3 : f[2,R,M]", TERMS, 2, 'N', 0},
    {"linear", "f[N] f[M,N] f[M]", "linear %1, %2, %3 {activation=relu} : f[M]", TERMS, 2, 'N', 0},
    {"linear", "f[R,24] f[M,24] f[M]", "linear %1, %2, %3 {activation=relu sections=4} : f[R,M]",
     TERMS, 25, 0, 0},
    {"linear", "f[R,24] f[M,24] f[M] f[R,M]", "linear %1, %2, %3, %4 {sections=6} : f[R,M]", TERMS,
     26, 0, 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {wide=true} : g[R,M]", TERMS, 1, 'N', 0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=gelu} : f[R,M]", TERMS, 8, 'N',
     0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=gelu_tanh} : f[R,M]", TERMS, 8,
     'N', 0},
    {"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=silu} : f[R,M]", TERMS, 8, 'N',
     0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {activation=tanh} : f[R,M]", TERMS, 8, 'N', 0},
    {"linear", "f[R,N] f[M,N]", "linear %1, %2 {activation=sigmoid} : f[R,M]", TERMS, 8, 'N', 0},
    {"linear", "f[R,N] f[M,N] f[M] f[R,M]", "linear %1, %2, %3, %4 : f[R,M]", TERMS, 3, 'N', 0},
    {"head_loss", "f[R,M] f[N,M] l[R] v[] f[N]", "head_loss %1, %2, %3, %4, %5 {ignore=-100} : g[]",
     NORM, 160, 0, NEEDS_N},
    {"head_loss", "f[R,M] f[N,M] l[R] p[]",
     "scale %4 {by=1} : f[]\nhead_loss %1, %2, %3, %5 {ignore=-100} : f[]", NORM, 160, 0, NEEDS_N},
    {"head_loss", "f[R,128] f[N,128] l[R] v[] f[N]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "head_loss %1, %6, %3, %4, %5 {ignore=-100 bits=8 block=64} : g[]",
     NORM, 400, 0, NEEDS_N | NO_GRADIENT},
    {"head_logp", "f[R,M] f[N,M] l[R] f[N]",
     "head_logp %1, %2, %3, %4 {ignore=-100 temperature=0.7} : g[R]", NORM, 160, 0, NEEDS_N},
    {"head_logp", "f[R,M] f[N,M] l[R]", "head_logp %1, %2, %3 {ignore=-100 temperature=1} : g[R]",
     NORM, 160, 0, NEEDS_N},
    {"head_logp", "f[R,128] f[N,128] l[R] f[N]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "head_logp %1, %5, %3, %4 {ignore=-100 bits=8 block=64 temperature=2} : g[R]",
     NORM, 400, 0, NEEDS_N | NO_GRADIENT},
    {"head_logp_grad", "f[R,M] f[N,M] l[R] v[R] f[N]",
     "head_logp_grad %1, %2, %3, %4, %5 {ignore=-100 temperature=0.7} : g[R,M]", NORM, 160, 0,
     NEEDS_N | REFUSED},
    {"head_part", "f[R,M] f[N,M] l[R] f[N]",
     "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=1} : g[R,1,4]", NORM, 160, 0,
     NEEDS_N | NO_GRADIENT},
    {"head_join", "f[R,M] f[D,M] l[R] f[D]",
     "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=2 entropy=true} : g[R,2,5]\n"
     "head_join %5, %3 {ignore=-100} : g[R]",
     NORM, 160, 0, NEEDS_N},
    {"head_join", "f[R,M] f[N,M] l[R]",
     "head_part %1, %2, %3 {ignore=-100 temperature=1 sections=1} : g[R,1,4]\n"
     "head_join %4, %3 {ignore=-100} : g[R]",
     NORM, 160, 0, NEEDS_N},
    {"head_join_grad", "f[R,M] f[D,M] l[R] v[R]",
     "head_part %1, %2, %3 {ignore=-100 temperature=1 sections=2} : g[R,2,4]\n"
     "head_join_grad %4, %5, %3 {ignore=-100} : g[R,2,4]",
     NORM, 160, 0, NEEDS_N | REFUSED},
    {"head_part_grad", "f[R,M] f[D,M] l[R] v[R] f[D]",
     "head_part %1, %2, %3, %5 {ignore=-100 temperature=0.7 sections=2} : g[R,2,4]\n"
     "head_join_grad %4, %6, %3 {ignore=-100} : g[R,2,4]\n"
     "head_part_grad %1, %2, %3, %7, %6, %5 {ignore=-100 temperature=0.7 sections=2} : g[R,M]",
     NORM, 160, 0, NEEDS_N | REFUSED},
    {"saved", "f[R,N] f[M,N] f[M]",
     "linear %1, %2, %3 {activation=gelu} : f[R,M]\nsaved %4 {index=0} : f[R,M]", TERMS, 2, 'N',
     REFUSED},
    {"documents", "o[R,N]", "documents %1 : i32[R,N,2]", EXACT, 0, 0, NO_GRADIENT},
    {"documents", "l[2,R]", "documents %1 : i32[2,R,2]", EXACT, 0, 0, NO_GRADIENT},
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
    {"attention", "f[2,R,12] f[2,1200,6] f[2,1200,6]", /* some of the queries */
     "attention %1, %2, %3 {heads=4 kv_heads=2 scale=0.5 causal=true window=7 first=100 of=1200} : "
     "f[2,R,12]",
     NORM, 160, 0, NO_GRADIENT},
    {"attention", "f[1,R,6] f[1,1100,6] f[1,1100,6]",
     "attention %1, %2, %3 {heads=2 scale=0.5 p=0.25 stream=3 window=9 first=17 of=1100} : f[1,R,6]",
     NORM, 160, 0, RANDOM | NO_GRADIENT},
    {"attention_backward", "f[2,R,6] f[2,R,6] f[2,N,6] f[2,N,6]",
     "attention %2, %3, %4 {heads=2 scale=0.5 causal=true} : f[2,R,6]\nsaved %5 {index=0} : g[2,2,R]\n"
     "attention_backward %1, %5, %6, %2, %3, %4 {heads=2 scale=0.5 causal=true} : f[2,R,6]",
     NORM, 320, 0, REFUSED},
    {"attention_backward", "f[1,R,12] f[1,R,12] f[1,1200,6] f[1,1200,6]",
     "attention %2, %3, %4 {heads=4 kv_heads=2 scale=0.5 causal=true p=0.25 stream=3 first=100 "
     "of=1200} : f[1,R,12]\nsaved %5 {index=0} : g[1,4,R]\n"
     "attention_backward %1, %5, %6, %2, %3, %4 {heads=4 kv_heads=2 scale=0.5 causal=true p=0.25 "
     "stream=3 first=100 of=1200} : f[1,R,12]",
     NORM, 320, 0, REFUSED | RANDOM},
    {"saved", "f[2,R,6] f[2,R,6] f[2,N,6] f[2,N,6]",
     "attention %2, %3, %4 {heads=2 scale=0.5} : f[2,R,6]\nsaved %5 {index=0} : g[2,2,R]\n"
     "attention_backward %1, %5, %6, %2, %3, %4 {heads=2 scale=0.5} : f[2,R,6]\n"
     "saved %7 {index=0} : g[2,N,6]",
     NORM, 320, 'R', REFUSED},
    {"saved", "f[2,R,6] f[2,R,6] f[2,N,6] f[2,N,6]",
     "attention %2, %3, %4 {heads=2 scale=0.5} : f[2,R,6]\nsaved %5 {index=0} : g[2,2,R]\n"
     "attention_backward %1, %5, %6, %2, %3, %4 {heads=2 scale=0.5} : f[2,R,6]\n"
     "saved %7 {index=1} : g[2,N,6]",
     NORM, 320, 'R', REFUSED},
    {"attention", "f[2,R,12] f[2,40,6] f[2,40,6]", /* some of the keys */
     "attention %1, %2, %3 {heads=4 kv_heads=2 scale=0.5 causal=true window=50 first=100 of=1200 key=60 "
     "keys=1200} : g[2,R,12]",
     NORM, 160, 0, NO_GRADIENT},
    {"attention", "f[1,R,6] f[1,33,6] f[1,33,6]",
     "attention %1, %2, %3 {heads=2 scale=0.5 p=0.25 stream=3 window=1100 first=17 of=1100 key=9 "
     "keys=1100} : g[1,R,6]",
     NORM, 160, 0, RANDOM | NO_GRADIENT},
    {"attention_backward", "f[1,R,6] f[1,R,6] f[1,R,6] f[1,40,6]",
     "attention %2, %4, %4 {heads=2 scale=0.5 causal=true p=0.25 stream=3 window=70 first=100 of=1200 "
     "key=60 keys=1200} : g[1,R,6]\nsaved %5 {index=0} : g[1,2,R]\n"
     "attention_backward %1, %3, %6, %2, %4, %4 {heads=2 scale=0.5 causal=true p=0.25 stream=3 "
     "window=70 first=100 of=1200 key=60 keys=1200} : g[1,R,6]",
     NORM, 320, 0, REFUSED | RANDOM},
    {"attention_join", "g[2,R,6] g[2,2,R] g[2,R,6] g[2,2,R]",
     "attention_join %1, %2, %3, %4 {heads=2} : g[2,R,6]", NORM, 20, 0, NO_GRADIENT},
    {"saved", "g[2,R,6] g[2,2,R] g[2,R,6] g[2,2,R]",
     "attention_join %1, %2, %3, %4 {heads=2} : g[2,R,6]\nsaved %5 {index=0} : g[2,2,R]", NORM, 20,
     0, NO_GRADIENT},
    {"saved", "f[2,R,8] f[2,R,24]", /* the bits of sum_to */
     "attention %2 {heads=2 scale=0.5 causal=true} : f[2,R,8]\nsaved %3 {index=0} : g[2,2,R]\n"
     "attention_grad %1, %3, %4, %2 {heads=2 scale=0.5 causal=true} : f[2,R,24]\n"
     "saved %5 {index=0} : f[24]\nsum_to %5 {shape=[24]} : f[24]\nsub %6, %7 : f[24]",
     EXACT, 0, 0, NO_GRADIENT},
    {"saved", "f[2,R,8] f[2,R,16]",
     "attention %2 {heads=4 kv_heads=2 scale=0.5} : f[2,R,8]\nsaved %3 {index=0} : g[2,4,R]\n"
     "attention_grad %1, %3, %4, %2 {heads=4 kv_heads=2 scale=0.5} : f[2,R,16]\n"
     "saved %5 {index=0} : f[16]",
     NORM, 320, 'R', REFUSED},

    {"sum", "i[R,N]", "sum %1 {axis=1} : i32[R]", EXACT, 0, 0, NO_GRADIENT},
    {"sum", "j[R,3,N]", "sum %1 {axis=0 keep=true} : i64[1,3,N]", EXACT, 0, 0, NO_GRADIENT},
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
    {"block_norms", "f[R,N]", "block_norms %1 : g[Q]", RELATIVE, 24, 0, REFUSED},
    {"squares", "f[R,N]", "squares %1 {unit=1} : f64[34]", TERMS, 4, 0, REFUSED},
    {"norm_of_squares", "f[R,N] f[7]",
     "squares %1 {unit=1} : f64[34]\nsquares %2 {unit=2} : f64[34]\nnorm_of_squares %3, %4 {wide=true} : f64[]",
     RELATIVE, 1, 0, REFUSED},
    {"norm", "f[R,N] f[7]", "norm %1, %2 : f[]", RELATIVE, 1, 0, REFUSED},
    {"norms", "f[7]", "norms %1 {blocks=[0,1,2,7]} : f[2]", RELATIVE, 1, 0, REFUSED},
    {"maxima", "f[7]", "maxima %1 {blocks=[0,1,2,7]} : f[2]", EXACT, 0, 0, REFUSED},
    {"total", "f[R,N] f[N] f[]", "total %1, %2, %3 : f[]", TERMS, 1, 0, 0},

    {"cumsum", "f[R,N]", "cumsum %1 {axis=1} : f[R,N]", TERMS, 1, 0, 0},
    {"cumsum", "f[R,3,N]", "cumsum %1 {axis=0 reverse=true} : f[R,3,N]", TERMS, 1, 0, 0},
    {"cumsum", "i[R,N]", "cumsum %1 {axis=1 reverse=true} : i32[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cumsum", "j[2,R,N]", "cumsum %1 {axis=1} : i64[2,R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"gather", "f[2,N,M] x[2,R,M]", "gather %1, %2 {axis=1} : f[2,R,M]", EXACT, 0, 0, NEEDS_N},
    {"gather", "f[R,N] y[R,3]", "gather %1, %2 {axis=1} : f[R,3]", EXACT, 0, 0, NEEDS_N},
    {"gather", "j[N,3] x[R,3]", "gather %1, %2 {axis=0} : i64[R,3]", EXACT, 0, 0,
     NEEDS_N | NO_GRADIENT},
    {"scatter_add", "f[R,M] x[R,M]", "scatter_add %1, %2 {axis=0 size=N} : f[N,M]", TERMS, 0, 'R',
     NEEDS_N},
    {"scatter_add", "f[2,R] y[2,R]", "scatter_add %1, %2 {axis=1 size=N} : f[2,N]", TERMS, 0, 'R',
     NEEDS_N},
    {"top_k", "f[R,K]", "top_k %1 {k=3} : i32[R,3]", EXACT, 0, 0, NO_GRADIENT},
    {"top_k", "q[R,K]", "top_k %1 {k=4} : i32[R,4]", EXACT, 0, 0, NO_GRADIENT},
    {"one_hot", "x[R]", "one_hot %1 {classes=N to=f32} : f32[R,N]", EXACT, 0, 0,
     NEEDS_N | NO_GRADIENT},
    {"one_hot", "l[2,R]", "one_hot %1 {classes=4 to=i32} : i32[2,R,4]", EXACT, 0, 0,
     NEEDS_N | NO_GRADIENT},
    {"one_hot", "i[R]", "one_hot %1 {classes=2 to=bf16} : bf16[R,2]", EXACT, 0, 0, NO_GRADIENT},
    {"softmax", "f[R,N]", "softmax %1 : f[R,N]", RELATIVE, 37, 0, 0},
    {"softmax_grad", "f[R,N] f[R,N]", "softmax %2 : f[R,N]\nsoftmax_grad %1, %3 : f[R,N]", NORM,
     128, 0, REFUSED},
    {"moments", "f[R,N]", "moments %1 {eps=1e-05} : g[R,2]", NORM, 64, 0, REFUSED | WIDE},
    {"layer_norm", "f[R,N] f[N] f[N]",
     "moments %1 {eps=1e-05} : g[R,2]\nlayer_norm %1, %4, %2, %3 : f[R,N]", NORM, 96, 0, WIDE},
    {"layer_norm_grad", "f[R,N] f[R,N] f[N]",
     "moments %2 {eps=1e-05} : g[R,2]\nlayer_norm_grad %1, %2, %4, %3 : f[R,N]", NORM, 160, 0,
     REFUSED | WIDE},
    {"layer_norm_grad", "f[R,N] f[R,N] f[N] f[R,N]",
     "moments %2 {eps=1e-05} : g[R,2]\nlayer_norm_grad %1, %2, %5, %3, %4 : f[R,N]", NORM, 160, 0,
     REFUSED | WIDE},
    {"rms", "f[R,N]", "rms %1 {eps=1e-05} : g[R,2]", NORM, 64, 0, REFUSED | WIDE},
    {"rms_norm", "f[R,N] f[N]", "rms %1 {eps=1e-05} : g[R,2]\nrms_norm %1, %3, %2 : f[R,N]", NORM,
     96, 0, WIDE},
    {"rms_norm_grad", "f[R,N] f[R,N] f[N]",
     "rms %2 {eps=1e-05} : g[R,2]\nrms_norm_grad %1, %2, %4, %3 : f[R,N]", NORM, 160, 0,
     REFUSED | WIDE},
    {"rms_norm_grad", "f[R,N] f[R,N] f[N] f[R,N]",
     "rms %2 {eps=1e-05} : g[R,2]\nrms_norm_grad %1, %2, %5, %3, %4 : f[R,N]", NORM, 160, 0,
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
    {"residual_norm", "f[R,N] f[R,N] f[N]",
     "residual_norm %1, %2, %3 {eps=1e-05 form=rms} : f[R,N]", NORM, 96, 0, WIDE},
    {"residual_norm", "f[2,R,N] f[2,R,N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4 {p=0.25 stream=7 eps=1e-05 form=rms} : f[2,R,N]", NORM, 96, 0,
     WIDE | RANDOM},
    {"residual_norm", "f[R,N] f[R,N] f[N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4, %5 {p=0.25 stream=7 eps=1e-05 sum=saved} : f[R,N]\n"
     "saved %6 {index=2} : f[R,N]\nmul %6, %7 : f[R,N]",
     NORM, 192, 0, WIDE | RANDOM},
    {"residual_norm", "f[R,N] f[R,N] f[N]",
     "residual_norm %1, %2, %3 {eps=1e-05 form=rms sum=saved} : f[R,N]\n"
     "saved %4 {index=2} : f[R,N]\nmul %4, %5 : f[R,N]",
     NORM, 192, 0, WIDE},
    {"saved", "f[R,N] f[R,N] f[N] f[N] f[N]",
     "residual_norm %1, %2, %3, %4, %5 {p=0.25 stream=7 eps=1e-05 sum=saved} : f[R,N]\n"
     "saved %6 {index=2} : f[R,N]",
     TERMS, 4, 0, RANDOM},
    {"saved", "f[R,N] f[R,N] f[N]",
     "residual_norm %1, %2, %3 {eps=1e-05 form=rms} : f[R,N]\nsaved %4 {index=0} : f[R,N]", NORM,
     96, 0, REFUSED | WIDE},
    {"residual_norm", "f[R,N] f[N] f[N]",
     "residual_norm %1, %1, %2, %3 {eps=1e-05 sum=given} : f[R,N]", NORM, 96, 0, WIDE},
    {"residual_norm", "f[2,R,N] f[N]",
     "residual_norm %1, %1, %2 {eps=1e-05 form=rms sum=given} : f[2,R,N]", NORM, 96, 0, WIDE},
    {"embed_norm", "f[N,K] x[R,3] f[N,K] y[R,3] f[3,K] f[K] f[K]",
     "embed_norm %1, %2, %3, %4, %5, %6, %7 {p=0.25 stream=7 eps=1e-05} : f[R,3,K]", NORM, 96, 0,
     NEEDS_N | RANDOM},
    {"residual_norm_grad", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 {p=0.25 stream=7} : f[R,N]", NORM, 160, 0,
     REFUSED | RANDOM},
    {"residual_norm_grad", "f[R,N] f[R,N] v[R] f[N]",
     "residual_norm_grad %1, %2, %3, %4 {form=rms} : f[R,N]", NORM, 160, 0, REFUSED},
    {"residual_norm_grad", "f[R,N] f[R,N] v[R] f[N] f[R,N]",
     "residual_norm_grad %1, %2, %3, %4, %5 : f[R,N]", NORM, 160, 0, REFUSED},
    {"saved", "f[R,N] f[R,N] v[R] f[N] f[R,N]",
     "residual_norm_grad %1, %2, %3, %4, %5 {p=0.25 stream=7 form=rms} : f[R,N]\n"
     "saved %6 {index=0} : f[R,N]",
     NORM, 160, 0, REFUSED | RANDOM},
    {"saved", "f[R,N] f[R,N] v[R] f[N] f[R,N]",
     "residual_norm_grad %1, %2, %3, %4, %5 {p=0.25 stream=7} : f[R,N]\nsaved %6 {index=3} : f[N]",
     NORM, 160, 'R', REFUSED | RANDOM},
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
    {"quantized_linear", "f[R,128] f[N,128] f[N]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "quantized_linear %1, %4, %3 {bits=8 block=64} : f[R,N]",
     NORM, 300, 0, NO_GRADIENT},
    {"quantized_linear", "f[R,256] f[N,256]",
     "quantize %2 {bits=4 block=128 scale=bf16} : u8[N,132]\n"
     "quantized_linear %1, %3 {bits=4 block=128 scale=bf16} : f[R,N]",
     NORM, 600, 0, NO_GRADIENT},
    {"quantized_linear", "f[1,256] f[N,256] f[N]",
     "quantize %2 {bits=4 block=64} : u8[N,144]\n"
     "quantized_linear %1, %4, %3 {bits=4 block=64} : f[1,N]",
     NORM, 600, 0, NO_GRADIENT},
    {"quantized_linear", "f[1,128] f[N,128]",
     "quantize %2 {bits=8 block=128 scale=bf16} : u8[N,130]\n"
     "quantized_linear %1, %3 {bits=8 block=128 scale=bf16} : f[1,N]",
     NORM, 300, 0, NO_GRADIENT},
    {"quantized_linear", "f[R,N] f[N,128]",
     "quantize %2 {bits=8 block=64} : u8[N,136]\n"
     "quantized_linear %1, %3 {bits=8 block=64 transposed=true} : f[R,128]",
     TERMS, 20, 'N', NO_GRADIENT},
    {"cache", "", "cache \"c\" : f[R,N]", EXACT, 0, 0, NO_GRADIENT},
    {"cached_attention", "f[2,R,12] f[2,R,6] f[2,R,6] x[2] r[2] c[2,J,6] c[2,J,6]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=4 scale=0.5 kv_heads=2} : f[2,R,12]", NORM,
     128, 'J', MUTATES | NEEDS_N},
    {"cached_attention", "f[2,R,70] f[2,R,70] f[2,R,70] x[2] r[2] c[2,J,70] c[2,J,70]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=1 scale=0.1 window=5} : f[2,R,70]", NORM,
     128, 'J', MUTATES | NEEDS_N},
    {"cached_attention", "f[3,1,210] f[3,1,70] f[3,1,70] x[3] o[3] c[3,U,70] c[3,U,70]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=3 scale=0.1 kv_heads=1} : f[3,1,210]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"cached_attention", "f[3,1,12] f[3,1,6] f[3,1,6] x[3] o[3] c[3,U,6] c[3,U,6]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=4 scale=0.5 kv_heads=2 window=70} : "
     "f[3,1,12]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"cached_attention", "f[2,33,70] f[2,33,70] f[2,33,70] x[2] o[2] c[2,64,70] c[2,64,70]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=1 scale=0.1 window=5 ring=true} : "
     "f[2,33,70]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"cached_attention", "f[3,1,12] f[3,1,6] f[3,1,6] x[3] o[3] c[3,64,6] c[3,64,6]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=4 scale=0.5 kv_heads=2 window=20 "
     "ring=true} : f[3,1,12]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"cached_attention", "f[2,R,12] f[2,R,6] f[2,R,6] x[2] r[2] c[2,J,6] c[2,J,6] f[1,4,1,J]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7, %8 {heads=4 scale=0.5 kv_heads=2 biased=true} : "
     "f[2,R,12]",
     NORM, 128, 'J', MUTATES | NEEDS_N},
    {"cached_attention", "f[3,1,12] f[3,1,6] f[3,1,6] x[3] o[3] c[3,U,6] c[3,U,6] f[1,4,1,U]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7, %8 {heads=4 scale=0.5 kv_heads=2 biased=true} : "
     "f[3,1,12]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"cached_attention", "f[3,1,12] f[3,1,6] f[3,1,6] x[3] o[3] c[3,U,6] c[3,U,6] f[1,1,1,U]",
     "cached_attention %1, %2, %3, %4, %5, %6, %7, %8 {heads=4 scale=0.5 kv_heads=2 biased=true} : "
     "f[3,1,12]",
     NORM, 128, 'N', MUTATES | NEEDS_N},
    {"affine", "f[R,N] f[N] f[N]", "affine %1, %2, %3 : f[R,N]", TERMS, 2, 0, 0},
    {"affine", "f[R,N] f[N]", "affine %1, %2 : f[R,N]", TERMS, 1, 0, 0},

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
    {"chain", "f[2,R,N]", "chain %1 {program=[7,0,1,15,1,0,1,2,0,0,2,2] values=[0,0.5]} : f[2,R,N]",
     NORM, 8, 0, REFUSED},
    {"chain", "p[R,N] f[1] p[N]",
     "chain %1, %2, %3 {program=[9,0,0,10,2,0,3,3,4,4,5,1,5,6,0,6,7,0,11,0,0,0,8,9,8,10,0,"
     "16,11,0,17,12,0,14,13,0]} : f[R,N]",
     NORM, 64, 0, REFUSED},
    {"chain", "f[2,R,N] f[2,R,N]",
     "chain %1, %2 {program=[12,1,0,18,0,2,13,1,0,19,3,4,20,5,1,21,6,1,22,7,1,23,8,1]} : f[2,R,N]",
     NORM, 64, 0, REFUSED},

    {"repeat", "f[R,D]", "repeat %1 {heads=2 copies=1} : f[R,D]", EXACT, 0, 0, 0},
    {"repeat", "f[R,N]", "repeat %1 {heads=1 copies=3} : f[R,W]", EXACT, 0, 0, 0},
    {"repeat", "f[2,3,X]", "repeat %1 {heads=32 copies=2} : f[2,3,Y]", EXACT, 0, 0, 0},
    {"repeat_grad", "f[R,W]", "repeat_grad %1 {heads=1 copies=3} : g[R,N]", TERMS, 2, 0, REFUSED},
    {"repeat_grad", "f[2,3,Y]", "repeat_grad %1 {heads=32 copies=2} : g[2,3,X]", TERMS, 4, 0,
     REFUSED},
    {"gather_rows", "f[N,M] x[R]", "gather_rows %1, %2 : f[R,M]", EXACT, 0, 0, NEEDS_N},
    {"gather_rows", "f[N,M] y[R,2]", "gather_rows %1, %2 : f[R,2,M]", EXACT, 0, 0, NEEDS_N},
    {"gather_rows", "f[N,M] x[R]", "gather_rows %1, %2 {first=2 of=100000} : f[R,M]", EXACT, 0, 0,
     NEEDS_N},
    {"scatter_rows", "f[R,M] x[R]", "scatter_rows %1, %2 {rows=N} : f[N,M]", TERMS, 0, 'R',
     NEEDS_N},
    {"scatter_rows", "f[R,M] x[R]",
     "scatter_rows %1, %2 {rows=N padded=true padding=3 first=2 of=100000} : f[N,M]", TERMS, 0, 'R',
     NEEDS_N},
    {"scatter_rows", "f[R,M] x[R]", "scatter_rows %1, %2 {rows=N padded=true padding=0} : f[N,M]",
     TERMS, 0, 'R', NEEDS_N},
    {"scatter_rows", "f[R,2,M] y[R,2]", "scatter_rows %1, %2 {rows=N} : f[N,M]", TERMS, 0, 'H',
     NEEDS_N},
    {"distinct_rows", "x[R]", "distinct_rows %1 {rows=N} : i32[R]", EXACT, 0, 0,
     NO_GRADIENT | NEEDS_N},
    {"distinct_rows", "y[R,2]", "distinct_rows %1 {rows=3000000000 padded=true} : i64[H]", EXACT, 0,
     0, NO_GRADIENT | NEEDS_N},
    {"sum_rows", "f[R,M] x[R]",
     "distinct_rows %2 {rows=N} : i32[R]\nsum_rows %1, %2, %3 : f[R,M]", TERMS, 0, 'R',
     NEEDS_N | REFUSED},
    {"sum_rows", "f[R,2,M] y[R,2] x[3]", /* some rows are left out, and some have no terms */
     "distinct_rows %3 {rows=N padded=true padding=0} : i32[3]\nsum_rows %1, %2, %4 : f[3,M]",
     TERMS, 0, 'H', NEEDS_N | REFUSED},
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
     "update:\nadamw %1, %2, %3, %4, %5, %6, %7 {beta1=0.9 beta2=0.99 eps=1e-08 scaled=true "
     "uncorrected=true}",
     NORM, 64, 0, MUTATES},
    {"sgd", "w[N,M] f[R,M] p[] x[R]",
     "distinct_rows %4 {rows=N} : i32[R]\nupdate:\nsgd %1, %2, %3, %5 {weight_decay=0.1 lazy=true}",
     NORM, 8, 0, MUTATES | NEEDS_N},
    {"sgd", "w[N,M] f[R,M] p[] m[N,M] p[] x[R]",
     "distinct_rows %6 {rows=N} : i32[R]\nupdate:\n"
     "sgd %1, %2, %3, %4, %5, %7 {momentum=0.9 scaled=true lazy=true}",
     NORM, 16, 0, MUTATES | NEEDS_N},
    {"adamw", "w[N,M] f[R,M] m[N,M] v[N,M] p[] t[] p[] y[R]",
     "distinct_rows %8 {rows=N} : i32[R]\nupdate:\nadamw %1, %2, %3, %4, %5, %6, %7, %9 "
     "{beta1=0.9 beta2=0.99 eps=1e-08 weight_decay=0.1 scaled=true lazy=true}",
     NORM, 64, 0, MUTATES | NEEDS_N},
    {"lion", "w[R,N] f[R,N] m[R,N] p[]",
     "update:\nlion %1, %2, %3, %4 {beta1=0.9 beta2=0.99 weight_decay=0.1}", NORM, 16, 0, MUTATES},
    {"lion", "w[R,N] f[R,N] m[R,N] p[] p[]",
     "update:\nlion %1, %2, %3, %4, %5 {beta1=0.5 beta2=0.9 scaled=true}", NORM, 16, 0, MUTATES},
    {"adam_apply", "w[R,N] m[R,N] v[R,N] p[] t[] t[]",
     "update:\nadam_apply %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-08 weight_decay=0.1}",
     NORM, 64, 0, MUTATES},
    {"adam_apply", "w[R,N] m[R,N] v[R,N] p[] t[] t[]",
     "update:\nadam_apply %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-08 limit=0.2}", NORM,
     64, 0, MUTATES},
    {"adam_drift", "", "param \"w\" {init=constant a=3} : f32[5]\nstate \"u\" {value=0.5} : f32[5]\n"
     "state \"v\" {value=4} : f32[5]\nupdate:\nadam_drift %1, %2, %3 : f32[5]",
     EXACT, 0, 0, MUTATES},
    {"momentum", "m[R,N] f[R,N]", "momentum %1, %2 {beta=0.9} : g[R,N]", NORM, 8, 0, REFUSED},
    {"momentum", "m[R,N] f[R,N] p[]", "momentum %1, %2, %3 {beta=0.9 scaled=true} : g[R,N]", NORM, 8,
     0, REFUSED},
    {"local_sum", "m[R,N] f[R,N] m[R,N] p[]", "update:\nlocal_sum %1, %2, %3, %4 {beta=0.9} : g[R,N]",
     NORM, 16, 0, MUTATES},
    {"local_sum", "m[R,N] f[R,N] m[R,N] p[] p[]",
     "update:\nlocal_sum %1, %2, %3, %4, %5 {beta=0.5 scaled=true} : g[R,N]", NORM, 16, 0, MUTATES},
    {"assign", "m[R,N] m[R,N]", "update:\nassign %1, %2 : g[R,N]", EXACT, 0,
     0, MUTATES},
    {"sign_compress", "",
     "constant {values=[1,-1,-7,7]} : f32[4]\nstate \"e\" : f32[4]\nupdate:\n"
     "sign_compress %1, %2 : u8[1,132]",
     EXACT, 0, 0, MUTATES},
    {"sign_expand", "",
     "constant {values=[1,-1,-7,7]} : f32[4]\nstate \"e\" : f32[4]\nupdate:\n"
     "sign_compress %1, %2 : u8[1,132]\nsign_expand %3 {parts=1 shape=[4]} : f32[4]",
     EXACT, 0, 0, MUTATES},
    {"variance_ratio", "t[] t[]",
     "state \"f\" {value=0.25} : f32[5]\nstate \"m\" {value=0.5} : f32[5]\n"
     "constant {values=[1,-2,0.5,3,0.1]} : f32[5]\nstate \"v\" {value=4} : f32[5]\nupdate:\n"
     "variance_ratio %3, %4, %5, %6, %1, %2 {beta1=0.9 beta2=0.99 eps=1e-06} : f32[1]",
     RELATIVE, 32, 0, MUTATES},
    {"lamb_update", "w[R,N] f[R,N] m[R,N] v[R,N] t[] p[]",
     "update:\nlamb_update %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-06 "
     "weight_decay=0.1 scaled=true} : g[R,N]",
     NORM, 64, 0, MUTATES},
    {"lamb_update", "w[R,N] f[R,N] m[R,N] v[R,N] t[]",
     "update:\nlamb_update %1, %2, %3, %4, %5 {beta1=0.9 beta2=0.99 eps=1e-06 weight_decay=0.1} : "
     "g[R,N]",
     NORM, 64, 0, MUTATES},
    {"route", "u[R,K]", "route %1 {k=3} : g[R,3]", NORM, 24, 0, 0},
    {"route", "u[R,K]", "route %1 {k=2 normalize=true scale=2.5} : g[R,2]", NORM, 24, 0, 0},
    {"route", "u[R,12] v[12]",
     "route %1, %2 {form=sigmoid k=3 normalize=true groups=4 kept=2} : g[R,3]", NORM, 24, 0, 0},
    {"saved", "u[R,12] v[12]",
     "route %1, %2 {form=sigmoid k=3 groups=3 kept=2} : g[R,3]\nsaved %3 : i32[R,3]", EXACT, 0, 0,
     NO_GRADIENT},
    {"saved", "q[R,K]", "route %1 {k=4} : g[R,4]\nsaved %2 : i32[R,4]", EXACT, 0, 0, NO_GRADIENT},
    {"saved", "u[R,K]", "route %1 {k=2} : g[R,2]\nsaved %2 {index=1} : g[R,K]", NORM, 24, 0, 0},
    {"expert_rows", "x[R,2]", "expert_rows %1 {experts=N rows=T} : i32[T]", EXACT, 0, 0,
     NO_GRADIENT | NEEDS_N},
    {"expert_rows", "y[R,3]", "expert_rows %1 {experts=N rows=W capacity=3} : i32[W]", EXACT, 0, 0,
     NO_GRADIENT | NEEDS_N},
    {"expert_rows", "x[R,2] u[R,2]",
     "expert_rows %1, %2 {experts=N rows=W capacity=3} : i32[W]\nsaved %3 {index=1} : i32[R,2]",
     EXACT, 0, 0, NO_GRADIENT | NEEDS_N},
    {"saved", "x[R,2]", "expert_rows %1 {experts=N rows=T} : i32[T]\nsaved %2 : i32[N,2]", EXACT, 0,
     0, NO_GRADIENT | NEEDS_N},
    {"saved", "x[R,2]", "expert_rows %1 {experts=N rows=T} : i32[T]\nsaved %2 {index=2} : i32[N]",
     EXACT, 0, 0, NO_GRADIENT | NEEDS_N},
    {"expert_rows", "x[R,2]", "expert_rows %1 {experts=N rows=H parts=R} : i32[H]", EXACT, 0, 0,
     NO_GRADIENT | NEEDS_N | NEEDS_R},
    {"dispatch", "f[R,M] x[R,2]",
     "expert_rows %2 {experts=N rows=T} : i32[T]\nsaved %3 {index=1} : i32[R,2]\n"
     "dispatch %1, %3, %4 : f[T,M]",
     EXACT, 0, 0, NEEDS_N},
    {"dispatch", "f[R,M] x[R,2] s[R,2]",
     "expert_rows %2 {experts=N rows=W capacity=3} : i32[W]\nsaved %4 {index=1} : i32[R,2]\n"
     "dispatch %1, %4, %5, %3 : f[W,M]",
     RELATIVE, 1, 0, NEEDS_N},
    {"dispatch", "f[R,M] x[R,2]",
     "expert_rows %2 {experts=N rows=H parts=R} : i32[H]\nsaved %3 {index=1} : i32[R,2]\n"
     "dispatch %1, %3, %4 {parts=R} : f[H,M]",
     EXACT, 0, 0, NO_GRADIENT | NEEDS_N | NEEDS_R},
    {"combine", "f[T,M] x[R,2]",
     "expert_rows %2 {experts=N rows=T} : i32[T]\nsaved %3 {index=1} : i32[R,2]\n"
     "combine %1, %3, %4 : f[R,M]",
     TERMS, 2, 0, NEEDS_N},
    {"combine", "f[W,M] x[R,3] s[R,3]",
     "expert_rows %2 {experts=N rows=W capacity=3} : i32[W]\nsaved %4 {index=1} : i32[R,3]\n"
     "combine %1, %4, %5, %3 : f[R,M]",
     TERMS, 6, 0, NEEDS_N},
    {"combine", "f[H,M] x[R,2]",
     "expert_rows %2 {experts=N rows=H parts=R} : i32[H]\nsaved %3 {index=1} : i32[R,2]\n"
     "combine %1, %3, %4 {parts=R} : f[R,M]",
     TERMS, 2, 0, NO_GRADIENT | NEEDS_N | NEEDS_R},
    {"choice_dots", "f[W,M] f[R,M] x[R,2]",
     "expert_rows %3 {experts=N rows=W capacity=3} : i32[W]\nsaved %4 {index=1} : i32[R,2]\n"
     "choice_dots %1, %2, %4, %5 : g[R,2]",
     TERMS, 24, 'M', NEEDS_N},
    {"choice_dots", "f[H,M] f[R,M] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 {index=1} : i32[R,2]\n"
     "choice_dots %1, %2, %4, %5 {parts=R} : g[R,2]",
     TERMS, 24, 'M', NO_GRADIENT | NEEDS_N | NEEDS_R},
    {"grouped_linear", "f[T,M] f[N,K,M] x[R,2]",
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
     "grouped_linear %1, %2, %5 : f[T,K]",
     TERMS, 1, 'M', NEEDS_N | EXPERTS},
    {"grouped_linear", "f[W,M] f[N,M,K] x[R,2]",
     "expert_rows %3 {experts=N rows=W capacity=3} : i32[W]\nsaved %4 : i32[N,2]\n"
     "grouped_linear %1, %2, %5 {transpose=true} : f[W,K]",
     TERMS, 1, 'M', NEEDS_N | EXPERTS},
    {"grouped_linear", "f[H,M] f[N,K,M] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_linear %1, %2, %5 {parts=R} : f[H,K]",
     TERMS, 1, 'M', NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
    {"grouped_linear", "f[H,M] f[N,M,K] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_linear %1, %2, %5 {transpose=true parts=R} : f[H,K]",
     TERMS, 1, 'M', NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
    {"grouped_linear", "f[H,128] f[N,3,128] x[R,2]",
     "quantize %2 {bits=8 block=64} : u8[N,3,136]\n"
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %5 : i32[S,2]\n"
     "grouped_linear %1, %4, %6 {bits=8 block=64 parts=R} : f[H,3]",
     NORM, 300, 0, NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
    {"grouped_linear", "f[H,3] f[N,3,128] x[R,2]",
     "quantize %2 {bits=8 block=128} : u8[N,3,132]\n"
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %5 : i32[S,2]\n"
     "grouped_linear %1, %4, %6 {transpose=true bits=8 block=128 parts=R} : f[H,128]",
     TERMS, 24, 0, NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
    {"grouped_linear", "f[T,128] f[N,3,128] x[R,2]",
     "quantize %2 {bits=8 block=64 scale=bf16} : u8[N,3,132]\n"
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %5 : i32[N,2]\n"
     "grouped_linear %1, %4, %6 {bits=8 block=64 scale=bf16} : f[T,3]",
     NORM, 300, 0, NO_GRADIENT | NEEDS_N | EXPERTS},
    {"grouped_linear", "f[T,128] f[N,3,128] x[R,2]",
     "quantize %2 {bits=4 block=64} : u8[N,3,72]\n"
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %5 : i32[N,2]\n"
     "grouped_linear %1, %4, %6 {bits=4 block=64 alone=true} : f[T,3]",
     NORM, 600, 0, NO_GRADIENT | NEEDS_N | EXPERTS},
    {"grouped_linear", "f[W,3] f[N,3,128] x[R,2]",
     "quantize %2 {bits=8 block=128} : u8[N,3,132]\n"
     "expert_rows %3 {experts=N rows=W capacity=3} : i32[W]\nsaved %5 : i32[N,2]\n"
     "grouped_linear %1, %4, %6 {transpose=true bits=8 block=128} : f[W,128]",
     TERMS, 24, 0, NO_GRADIENT | NEEDS_N | EXPERTS},
    {"grouped_outer", "f[T,M] f[T,K] x[R,2]",
     "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
     "grouped_outer %1, %2, %5 : f[N,M,K]",
     TERMS, 1, 'T', NEEDS_N | EXPERTS},
    {"grouped_outer", "f[H,M] f[H,K] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_outer %1, %2, %5 {parts=R} : g[N,M,K]",
     TERMS, 1, 'H', NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
    {"grouped_outer", "f[H,M] f[H,K] x[R,2]",
     "expert_rows %3 {experts=N rows=H parts=R} : i32[H]\nsaved %4 : i32[S,2]\n"
     "grouped_outer %1, %2, %5 {parts=R apart=true} : g[1,N,M,K]",
     TERMS, 1, 'H', NO_GRADIENT | NEEDS_N | NEEDS_R | EXPERTS},
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
    case 'D': return 2 * z->N;
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
    case 'J': return z->R + z->N;
    case 'W': return 3 * z->N;
    case 'X': return 64 * z->R;
    case 'Y': return 128 * z->R;
    case 'Z': return 16 * z->R * z->N;
    default: return 0;
    }
}

static bool fits(const op_case *c, const sizes *z)
{
    if ((c->flags & NEEDS_N) && z->N == 0) return false;
    if ((c->flags & NEEDS_R) && z->R == 0) return false;
    if ((c->flags & EXPERTS) && z->N > 300) return false;
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
    case 'r':
    case 'o':
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

static bool is_float_kind(char kind) { return strchr("fpushqwc", kind) != NULL; }
static bool is_mutable(char kind) { return strchr("wmvtc", kind) != NULL; }

/* The letter of operand k, 0 after the last. */
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
        const char *leaf = kind == 'c'                                       ? "cache"
                           : kind == 'w' || (trained && is_float_kind(kind)) ? "param"
                           : is_mutable(kind)                                ? "state"
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
    case 'c':
    case 'm': return sign * (0.02 + 1.98 * u);
    case 'p':
    case 'v': return 0.5 + 1.5 * u;
    case 'u': return sign * u;
    case 's': return u;
    case 'h': return sign * 300 * u;
    case 'q': return (double)(bits % 5) * 0.5 - 1;
    case 'o':
    case 'b': return (double)(bits & 1);
    case 'k': return (double)(bits % 3);
    case 'i': return (double)(bits % 7) - 3;
    case 'j': return floor(sign * 0x1p62 * u);
    case 'r':
    case 'x':
    case 'y': return n ? (double)(bits % (uint64_t)n) : 0;
    case 'l': return n && bits >> 62 ? (double)(bits % (uint64_t)n) : -100;
    case 't': return 3;
    default: return 0;
    }
}

/* x rounded to nearest even, to the bits of exponent and fraction that `dtype` keeps. */
static double rounded(double x, zf_dtype dtype)
{
    int dropped = dtype == ZF_F16 ? 42 : dtype == ZF_BF16 ? 45 : dtype == ZF_F32 ? 29 : 0;
    uint64_t bits;
    if (!dropped || !isfinite(x)) return x;
    if (dtype == ZF_F16 && fabs(x) < 0x1p-14) return nearbyint(x * 0x1p24) * 0x1p-24;
    memcpy(&bits, &x, 8);
    bits += ((uint64_t)1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
    bits = bits >> dropped << dropped;
    memcpy(&x, &bits, 8);
    return x;
}

/* Of a number that f16 holds. */
static uint16_t f16_bits(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;
    uint64_t bits;
    if (!isfinite(x)) return (uint16_t)(sign | (isnan(x) ? 0x7e00 : 0x7c00));
    if (fabs(x) < 0x1p-14) return (uint16_t)(sign | (unsigned)(fabs(x) * 0x1p24));
    memcpy(&bits, &x, 8);
    return (uint16_t)(sign | ((unsigned)(bits >> 42 & 0x1fffff) - ((1023 - 15) << 10)));
}

static void encode(void *to, zf_dtype dtype, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, 4);
        switch (dtype) {
        case ZF_F32: ((float *)to)[i] = f; break;
        case ZF_F64: ((double *)to)[i] = x[i]; break;
        case ZF_BF16: ((uint16_t *)to)[i] = (uint16_t)(bits >> 16); break;
        case ZF_F16: ((uint16_t *)to)[i] = f16_bits(x[i]); break;
        case ZF_I32: ((int32_t *)to)[i] = (int32_t)x[i]; break;
        case ZF_I64: ((int64_t *)to)[i] = (int64_t)x[i]; break;
        case ZF_U8:
        case ZF_BOOL: ((uint8_t *)to)[i] = (uint8_t)x[i]; break;
        }
    }
}

static double f16_value(uint32_t bits)
{
    uint32_t wide = (bits & 0x7fff) << 13; /* the exponent's offset is 112 less */
    float f;
    double magnitude;
    memcpy(&f, &wide, 4);
    magnitude = (bits >> 10 & 31) == 31 ? (bits & 1023 ? NAN : INFINITY) : f * 0x1p112;
    return bits & 0x8000 ? -magnitude : magnitude;
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
        case ZF_F16: x[i] = f16_value(bits); break;
        case ZF_I32: x[i] = ((const int32_t *)from)[i]; break;
        case ZF_I64: x[i] = (double)((const int64_t *)from)[i]; break;
        case ZF_U8:
        case ZF_BOOL: x[i] = ((const uint8_t *)from)[i]; break;
        }
    }
}

/* Elements of the operand whose type begins there. */
static int64_t elements_of(const char *type, const sizes *z)
{
    int64_t count = 1;
    for (const char *at = strchr(type, '[') + 1; *at != ']'; at++)
        if (*at >= 'A' && *at <= 'Z') count *= size_of(*at, z);
        else if (*at != ',') {
            char *end;
            count *= strtol(at, &end, 10);
            at = end - 1;
        }
    return count < MOST ? count : MOST;
}

/* Fills the operands of a case as `dtype` holds them, or with their magnitudes. */
static void fill(const op_case *c, const sizes *z, zf_dtype dtype, bool magnitudes)
{
    const char *type = c->operands;
    for (int k = 0; *type; k++, type += *type == ' ') {
        char kind = *type;
        bool state = kind == 'm' || kind == 'v', is_float = state || is_float_kind(kind);
        zf_dtype of = state && dtype != ZF_F64 ? ZF_F32 : dtype;
        int64_t count = elements_of(type, z);
        for (int64_t i = 0; i < count; i++) {
            double x = value_of(kind, mix((uint64_t)k << 40 | (uint64_t)i),
                                kind == 'r' ? z->R + 1 : z->N);
            if (is_float) x = rounded(x, of);
            operand[k][i] = magnitudes && is_float ? fabs(x) : x;
        }
        type += strcspn(type, " ");
    }
}

/* ----------------------------------------------------------------------------- sessions */

enum { CPUS = 16 };

typedef struct session {
    zf_graph *graph;
    zf_program *program;
    zf_error error;
    struct {
        zf_cpu_desc desc;
        zf_backend *backend;
    } cpus[CPUS]; /* that were asked for, until the end: to begin threads takes time */
} session;

/* Between one graph and the next. */
static void session_close(session *s)
{
    zf_program_free(s->program);
    zf_graph_free(s->graph);
    s->program = NULL, s->graph = NULL;
    s->error = (zf_error){ZF_OK, ""};
}

static void session_end(void *object)
{
    session *s = object;
    session_close(s);
    for (int i = 0; i < CPUS; i++) zf_backend_free(s->cpus[i].backend);
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

/* The backend of that description, which has no allocator. */
static zf_backend *session_cpu(test *t, session *s, zf_cpu_desc cpu)
{
    int i = 0;
    for (; i < CPUS && s->cpus[i].backend; i++) {
        const zf_cpu_desc *d = &s->cpus[i].desc;
        if (d->threads == cpu.threads && d->reference == cpu.reference && d->isa == cpu.isa)
            return s->cpus[i].backend;
    }
    if (i == CPUS) zf_backend_free(s->cpus[--i].backend);
    cpu.allocator = t->allocator;
    s->cpus[i].desc = cpu;
    return s->cpus[i].backend = zf_cpu_backend(&cpu, &s->error);
}

static zf_status session_compile(test *t, session *s, zf_cpu_desc cpu, zf_compile_desc d)
{
    d.backend = session_cpu(t, s, cpu);
    if (!d.backend) return s->error.status;
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
    for (int k = 0; kind_of(c, k) && !status; k++) {
        zf_tensor to = zf_graph_find(s->graph, operand_name(k));
        if (zf_shape_count(zf_tensor_shape(to)) > MOST) {
            snprintf(s->error.text, sizeof s->error.text, "operand %d has over %d elements", k,
                     MOST);
            return s->error.status = ZF_ERR_ARGUMENT;
        }
        status = session_write(s, operand_name(k), operand[k]);
    }
    return status ? status : session_check(s, zf_step(s->program));
}

/* The results of a step: the value, then the mutable operands in order. */
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
static inline zf_status run_case(test *t, session *s, const op_case *c, const sizes *z,
                                 zf_dtype dtype, zf_cpu_desc cpu, unsigned copied, result *r)
{
    zf_status status = session_graph(t, s, c, z, dtype, false, copied);
    if (!status) status = session_compile(t, s, cpu, (zf_compile_desc){.seed = 5});
    if (!status) status = session_step(s, c);
    return status ? status : session_result(s, c, r);
}

/* Reports what is wrong with a case. */
#define wrong(t, line, c, z, ...) wrong_in((t), __FILE__, (line), (c), (z), __VA_ARGS__)
static void wrong_in(test *t, const char *file, int line, const op_case *c, const sizes *z,
                     const char *format, ...)
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
    test_fail(t, file, line, c->row, text);
}

/* ZF_ERR_NOMEM is expected in the out-of-memory run; anything else is a failure. */
#define stopped(t, line, c, z, s) stopped_in((t), __FILE__, (line), (c), (z), (s))
static void stopped_in(test *t, const char *file, int line, const op_case *c, const sizes *z,
                       session *s)
{
    if (t->refused && s->error.status == ZF_ERR_NOMEM) return;
    t->refused = false;
    wrong_in(t, file, line, c, z, "%s", s->error.text);
}

static double kept[3][MOST];
static unsigned char kept_raw[2][MOST * 8];

#endif
