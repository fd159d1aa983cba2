/* What operators refuse, as text, one wrong input for each. */
#include "../support/test.h"

#define IN(n, type)    "%" #n " = input \"i" #n "\" : " type "\n"
#define PARAM(n, type) "%" #n " = param \"p" #n "\" : " type "\n"
#define STATE(n, type) "%" #n " = state \"s" #n "\" : " type "\n"
#define CACHE(n, type) "%" #n " = cache \"c" #n "\" : " type "\n"

/* Operands of cached_attention of one head, and of updates of a bucket of 1024 elements. */
#define CACHED                                                                                     \
    IN(1, "f32[2,4,8]") IN(2, "f32[2,4,8]") IN(3, "f32[2,4,8]") IN(4, "i32[2]") IN(5, "i32[2]")
#define CACHES CACHED CACHE(6, "f32[2,64,8]") CACHE(7, "f32[2,64,8]")
#define ATTEND "%9 = cached_attention %1, %2, %3, %4, %5, %6, %7"
#define BUCKET PARAM(1, "f32[8]") "%2 = bucket %1 {at=[0] size=1024} : f32[1024]\n"
#define SGD    BUCKET IN(3, "f32[1024]") IN(4, "f32[]") "update:\nsgd %2, %3, %4"
#define STATES STATE(1, "f32[8]") IN(2, "f32[8]") IN(3, "f32[8]")
#define COUNTS STATE(5, "i64[]") STATE(6, "i64[]") "update:\n%7 = variance_ratio "
#define SCALES IN(1, "f32[2,64]") STATE(2, "f32[2,64]") STATE(3, "f32[]") STATE(4, "i64[]")

static const struct {
    const char *graph, *error;
} texts[] = {
    /* leaves */
    {PARAM(1, "f32[8]") "%2 = state %1 \"s\" : i32[8]\n",
     "it can start as a param of its shape does, and must be float then"},
    {"%1 = param \"p\" {bits=8 block=64} : u8[2,68]\n",
     "a parameter of 8 bits is frozen, and no piece of another"},
    {"%1 = param \"p\" {rate=-1} : f32[8]\n",
     "rate and decay are 0 or above and finite, betas from 0 to below 1"},
    {"%1 = param \"p\" {row=1 rows=4} : f32[4,8]\n",
     "4 rows from 1 on do not lie within 4 rows"},
    {"%1 = cache \"c\" : i32[4]\n", "a cache is f32, bf16, f16 or f64, not i32"},
    {"%1 = cache \"c\" {held=true bits=8 block=64 scale=f32} : i32[4]\n",
     "only floats are quantised on their way, not i32"},
    {"%1 = cache \"c\" {held=true bits=3 block=64 scale=f32} : f32[4]\n",
     "bits, block and scale are not those of zf_quantize"},
    {IN(1, "f32[2]") IN(2, "f32[]") "output %1, %2 \"y\"\n",
     "a ratio, its divisor and the sum in it are one float each"},

    /* reductions */
    {IN(1, "f32[4096]") "%2 = squares %1 {world=4611686018427387904} : f64[34]\n",
     "world is 4611686018427387904: a bucket of 2^63 blocks or more"},

    /* experts */
    {IN(1, "i32[4,8]") "%2 = route %1 {k=2} : f32[4,2]\n",
     "logits, float [tokens, experts], are needed"},
    {IN(1, "f32[4,8]") "%2 = route %1 {k=9} : f32[4,9]\n",
     "k = 9 of 8 experts; 1 to 8 of them are possible"},
    {IN(1, "f32[4,8]") IN(2, "f32[7]") "%3 = route %1, %2 {k=2} : f32[4,2]\n",
     "the bias must be f32[8]"},
    {IN(1, "f32[4,8]") "%2 = route %1 {k=2 balance=true} : f32[4,2]\n",
     "balance is for a bias, and there is none"},
    {IN(1, "f32[4,8]") "%2 = route %1 {k=2 scale=-1} : f32[4,2]\n",
     "scale = -1 must be finite and not negative; 0 means 1"},
    {IN(1, "f32[4,8]") "%2 = route %1 {k=2 groups=3 kept=1} : f32[4,2]\n",
     "groups = 3 of 8 experts: 1 to 64 groups of 2 experts or more are possible"},
    {IN(1, "f32[4,8]") "%2 = route %1 {k=3 groups=4 kept=1} : f32[4,3]\n",
     "kept = 1 of 4 groups of 2 experts; k = 3 experts must be among them"},
    {IN(1, "f32[4,2]") "%2 = expert_rows %1 {experts=2 rows=8} : i32[8]\n",
     "experts of choices, i32 or i64 [tokens, k], are needed"},
    {IN(1, "i32[4,2]") IN(2, "f32[4]") "%3 = expert_rows %1, %2 {experts=2 rows=4 capacity=2} : "
     "i32[4]\n",
     "priorities must be float, of the choices' shape"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {rows=8} : i32[8]\n",
     "experts = 0, rows = 8 for 8 choices: experts must be 1 or more, and rows and choices fewer "
     "than 2^31"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {experts=2 rows=8 capacity=3} : i32[8]\n",
     "capacity = 3 for 2 experts needs so many rows of each, not rows = 8"},
    {IN(1, "i32[4,2]") IN(2, "f32[4,2]") "%3 = expert_rows %1, %2 {experts=2 rows=8} : i32[8]\n",
     "priorities are only for a capacity"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {experts=4 rows=8 blocks=3} : i32[8]\n",
     "blocks = 3 do not divide 4 experts and 8 rows"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {experts=4 rows=8 parts=3} : i32[8]\n",
     "parts = 3 do not divide each of runs = 1 of 4 tokens, and 8 rows"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {experts=4 rows=8 parts=2 runs=4} : i32[8]\n",
     "parts = 2 do not divide each of runs = 4 of 4 tokens, and 8 rows"},
    {IN(1, "i32[4,2]") "%2 = expert_rows %1 {experts=4 rows=8 parts=2 capacity=2} : i32[8]\n",
     "parts have no capacity: it is of all tokens"},
    {IN(1, "f32[6,4]") IN(2, "f32[2,4,4]") IN(3, "i32[8,2]") "%4 = grouped_linear %1, %2, %3 "
     "{sources=2 parts=2} : f32[6,4]\n",
     "3 rows of a rank are not those of 2 parts"},
    {IN(1, "f32[8,4]") IN(2, "f32[2,4,4]") IN(3, "i32[4,2]") "%4 = grouped_linear %1, %2, %3 "
     "{sources=2 parts=2} : f32[8,4]\n",
     "the bounds must be i32 [sources parts experts, 2]"},
    {IN(1, "f32[7,4]") IN(2, "f32[2,4,4]") IN(3, "i32[4,2]") "%4 = grouped_linear %1, %2, %3 {sources=2} : "
     "f32[7,4]\n",
     "7 rows are not those of sources = 2 ranks"},
    {IN(1, "f32[8,4]") IN(2, "f32[2,4,4]") IN(3, "i32[2,2]") "%4 = grouped_linear %1, %2, %3 {sources=2} : "
     "f32[8,4]\n",
     "the bounds must be i32 [sources experts, 2]"},
    {IN(1, "f32[8,4]") IN(2, "i32[4,2]") "%3 = grouped_outer %1, %1, %2 {sources=2} : f32[2,4,4]\n",
     "sections = 0 must be a multiple of sources = 2"},
    {IN(1, "f32[8]") "%2 = all_reduce %1 {world=4 order=tree run=3} : f32[8]\n",
     "run=3: trees of f32 or f64 (order=tree) are of ranks that divide world=4"},
    {IN(1, "i32[4,8]") IN(2, "i32[8]") IN(3, "i32[4,2]") "%4 = dispatch %1, %2, %3 : i32[8,8]\n",
     "operand 0 must be float, of two dimensions"},
    {IN(1, "f32[4,8]") IN(2, "i64[8]") IN(3, "i32[4,2]") "%4 = dispatch %1, %2, %3 : f32[8,8]\n",
     "operand 1 must be the rows, i32 [rows]"},
    {IN(1, "f32[8,8]") IN(2, "i32[8]") IN(3, "i32[4]") "%4 = combine %1, %2, %3 : f32[4,8]\n",
     "operand 2 must be the rows of choices, i32 [tokens, k]"},
    {IN(1, "f32[8,8]") IN(2, "i32[8]") IN(3, "i32[4,2]") IN(4, "f32[4]")
     "%5 = combine %1, %2, %3, %4 : f32[4,8]\n",
     "the weights must be float, of the choices' shape"},
    {IN(1, "f32[8,8]") IN(2, "f32[4,7]") IN(3, "i32[8]") IN(4, "i32[4,2]")
     "%5 = choice_dots %1, %2, %3, %4 : f32[4,2]\n",
     "rows and tokens must have one dtype and width"},
    {IN(1, "f32[8,4]") IN(2, "f32[2,3,5]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 : f32[8,3]\n",
     "x [rows, k] and w [experts, n, k] are needed"},
    {IN(1, "f32[8,64]") IN(2, "u8[2,3,67]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 {bits=8 block=64} : f32[8,3]\n",
     "operand 1 must be u8 [experts, n, bytes], whole records of 68 bytes: the result of quantize"},
    {IN(1, "f32[8,64]") IN(2, "u8[2,3,68]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 {bits=8 block=64 sections=2} : f32[8,3]\n",
     "a product with matrices of 8 bits has one section"},
    {IN(1, "f32[8,64]") IN(2, "f32[2,3,64]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 {alone=true} : f32[8,3]\n",
     "alone is for matrices of records that are not transposed"},
    {IN(1, "f32[8,4]") IN(2, "f32[2,5,3]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 {transpose=true} : f32[8,3]\n",
     "x [rows, k] and w [experts, k, n] are needed"},
    {IN(1, "f32[8,4]") IN(2, "bf16[2,3,4]") IN(3, "i32[2,2]")
     "%4 = grouped_linear %1, %2, %3 : f32[8,3]\n",
     "operands 0 and 1 must be float, of one dtype"},
    {IN(1, "f32[8,4]") IN(2, "f32[2,3,4]") IN(3, "i32[2,3]")
     "%4 = grouped_linear %1, %2, %3 : f32[8,3]\n",
     "the bounds must be i32 [experts, 2]"},
    {IN(1, "f32[8,4]") IN(2, "f32[7,4]") IN(3, "i32[2,2]")
     "%4 = grouped_outer %1, %2, %3 : f32[2,4,4]\n",
     "a [rows, n] and b [rows, k] are needed"},

    /* rows and shapes */
    {IN(1, "f32[4,4]") "%2 = documents %1 : i32[4,4,2]\n",
     "operand 0 must be i32 or i64 [batch, tokens]"},
    {IN(1, "i32[1,2147483648]") "%2 = documents %1 : i32[1,2147483648,2]\n",
     "a row has 2^31 tokens or more"},
    {IN(1, "f32[4,8]") IN(2, "i32[3]") "%3 = gather_rows %1, %2 {padding=2} : f32[3,8]\n",
     "padding = 2 is only for padded=true"},
    {IN(1, "f32[4,8]") IN(2, "i32[3]") "%3 = gather_rows %1, %2 {first=7 of=9} : f32[3,8]\n",
     "4 rows from row 7 on are not in 9"},
    {IN(1, "f32[4,8]") IN(2, "i32[4]") IN(3, "i32[2,2]") "%4 = sum_rows %1, %2, %3 : f32[2,8]\n",
     "operand 2, the rows, must be i32 or i64 of one dimension"},
    {IN(1, "f32[4,8]") IN(2, "i32[3]") IN(3, "i32[3]") "%4 = sum_rows %1, %2, %3 : f32[3,8]\n",
     "operand 0 must have the index's dimensions first, and with one in their place at most 6"},
    {IN(1, "f32[4]") "%2 = accumulator : f32[4]\n%3 = collect %1, %2 {parts=0} : f32[4]\n",
     "parts is 0; it must be 1 or more"},
    {IN(1, "f32[2,8,4]") IN(2, "f32[2,4,4]")
     "%3 = attention %1, %2, %2 {heads=2 of=8 key=5 keys=8} : f32[2,8,4]\n",
     "4 keys from key 5 on are not in 8"},
    {IN(1, "f32[2,8,4]") IN(2, "f32[2,4,4]")
     "%3 = attention %1, %2, %2 {heads=2 keys=8} : f32[2,8,4]\n",
     "of some of the keys, q, k and v are operands of their own, of says how many queries there are, "
     "and there is no block mask"},
    {IN(1, "bf16[2,8,4]") IN(2, "bf16[2,2,8]")
     "%3 = attention_join %1, %2, %1, %2 {heads=2} : bf16[2,8,4]\n",
     "operand 0 must be f32 or f64"},
    {IN(1, "f32[2,8,4]") IN(2, "f32[2,2,8]")
     "%3 = attention_join %1, %2, %1, %2 {heads=3} : f32[2,8,4]\n",
     "hidden a multiple of the 3 heads"},
    {IN(1, "f32[2,8,4]") IN(2, "f32[2,2,8]")
     "%3 = attention_join %1, %2, %1, %1 {heads=2} : f32[2,8,4]\n",
     "operand 3 must be f32[2,2,8]"},
    {IN(1, "f32[4]") "%2 = reduce %1 {world=1 over=data} : f32[4]\n",
     "it is over tensor, context, expert or pipe, not over data"},
    {IN(1, "f32[4]") "%2 = reduce %1 {world=2 over=tensor root=2} : f32[4]\n",
     "root 2 is no rank of a world of 2"},
    {IN(1, "f32[4]") "%2 = reduce %1 {world=2 over=tensor dim=1} : f32[4]\n",
     "dim 1 of a tensor of rank 1"},
    {IN(1, "bf16[4]") "%2 = reduce %1 {world=2 over=tensor} : bf16[4]\n",
     "the operand must be f32 or f64"},
    {IN(1, "i32[4,8]") "%2 = repeat %1 {heads=2 copies=2} : i32[4,16]\n",
     "the operand must be float: f32, bf16, f16 or f64"},
    {IN(1, "f32[4,8]") "%2 = repeat %1 {copies=1} : f32[4,8]\n",
     "0 heads and 1 copies; 1 or more are needed"},
    {IN(1, "f32[4,8]") "%2 = repeat_grad %1 {heads=2 copies=3} : f32[4,8]\n",
     "the last dimension is not 6 equal heads"},
    {IN(1, "f32[2000000000]") "%2 = repeat %1 {heads=1 copies=2147483647} : f32[1]\n",
     "2147483647 copies are too many"},
    {IN(1, "f32[4,8]") "%2 = repeat %1 {heads=1 copies=1 over=data} : f32[4,8]\n",
     "copies are over tensor or copies, not over data"},
    {IN(1, "f32[4,8]") IN(2, "f32[6,8]") IN(3, "i32[4]")
     "%4 = head_part %1, %2, %3 {ignore=-100 temperature=1 sections=4 of=2} : f32[4,4,4]\n",
     "6 rows from row 0 on are not in 2"},
    {IN(1, "f32[4,8]") IN(2, "f32[6,8]") IN(3, "i32[4]")
     "%4 = head_part %1, %2, %3 {ignore=-100 temperature=1 sections=5} : f32[4,5,4]\n",
     "6 rows of w are not whole sections of 5, each with a row"},
    {IN(1, "f32[4,8]") IN(2, "f32[6,8]") IN(3, "i32[4]")
     "%4 = head_part %1, %2, %3 {ignore=-100 temperature=1 sections=4 of=24 first=3} : f32[4,4,4]\n",
     "6 rows of w are not whole sections of 4"},
    {IN(1, "f32[4,8]") IN(2, "f32[6,8]") IN(3, "i32[4]") IN(4, "f32[4,2,4]") IN(5, "f32[4,3,4]")
     "%6 = head_part_grad %1, %2, %3, %4, %5 {temperature=1 sections=2} : f32[4,8]\n",
     "operand 4 must be as the result of head_part is"},
    {IN(1, "f32[4,2,3]") IN(2, "i32[4]") "%3 = head_join %1, %2 : f32[4]\n",
     "operand 0 must be a result of head_part"},
    {IN(1, "f32[4,2,4]") IN(2, "i32[5]") "%3 = head_join %1, %2 : f32[4]\n",
     "the labels must be integers, [4]"},
    {IN(1, "f32[5]") IN(2, "f32[4,2,4]") IN(3, "i32[4]")
     "%4 = head_join_grad %1, %2, %3 : f32[4,2,4]\n",
     "dy must be f32[4]"},
    {IN(1, "i32[4]") IN(2, "i32[]") IN(3, "i32[]") "%4 = cross_entropy %1, %2, %3 : f32[]\n",
     "the logits must be float: f32, bf16, f16 or f64"},
    {IN(1, "f32[4,8]") IN(2, "bf16[4,8]") "%3 = swiglu %1, %2 : f32[4,8]\n",
     "the operands must be float, of one dtype"},
    {IN(1, "f32[4,8]") "%2 = rope %1 {heads=1 theta=100 unrounded=true} : f32[4,8]\n",
     "unrounded and by are of yarn alone"},
    {IN(1, "f32[4,4096]") "%2 = rope %1 {heads=1 theta=100} : f32[4,4096]\n",
     "a head has 4096 elements; at most 1024 are possible"},

    {IN(1, "i32[4]") "%2 = one_hot %1 {classes=0 to=f32} : f32[4,0]\n",
     "classes = 0 must be 1 or more, and the index has fewer than 6 dimensions"},
    {IN(1, "i32[1073741824]") "%2 = one_hot %1 {classes=9223372036854775807 to=f32} : f32[4]\n",
     "the result has more than 2^63 elements"},

    /* products */
    {IN(1, "f32[4,8]") IN(2, "f32[8,2]") IN(3, "f32[2,2]") "%4 = matmul %1, %2, %3 : f32[4,2]\n",
     "what the product is added to must be f32[4,2]"},
    {IN(1, "f32[4,8]")
         IN(2, "u8[16,68]") "%3 = quantized_linear %1, %2 {bits=8 block=64} : f32[4,16]\n",
     "the last dimension of operand 0 must be 64, as the weight is [16, 64]"},
    {IN(1, "f32[4,64]") IN(2, "u8[16,68]")
         IN(3, "f32[8]") "%4 = quantized_linear %1, %2, %3 {bits=8 block=64} : f32[4,16]\n",
     "operand 2, the bias, must be f32 [16], and the product not transposed"},

    /* records of few bits */
    {IN(1, "f32[2,64]") "%2 = dequantize %1 {bits=8 block=64} : f32[2,64]\n",
     "operand 0 must be u8, the result of a quantize"},
    {IN(1, "u8[2,68]") "%2 = dequantize %1 {bits=8 block=64 to=i32} : i32[2,64]\n",
     "to must be f32, bf16, f16 or f64"},
    {IN(1, "f32[72057594037927936]") "%2 = quantize %1 {bits=8 block=64} : u8[68]\n",
     "the result has too many elements"},
    {IN(1, "f32[2,64]")
         IN(2, "f32[2,64]") "%3 = quantize_feedback %1, %2 {bits=8 block=64} : u8[2,68]\n",
     "operand 1, the errors, must be a state f32 of 128 elements, or one u8 of their records, 136 "
     "bytes"},
    {SCALES "%5 = quantize_feedback %1, %2, %3, %4 {bits=8 block=64} : u8[2,68]\n",
     "operands 2 to 4, of a loss scale, must be its states: the scale f32[], the iteration and the "
     "last overflow, i64[]"},
    {SCALES "%5 = quantize_feedback %1, %2 {bits=8 block=64 beta=1} : u8[2,68]\n",
     "beta is 1; it must be in [0, 1)"},
    {SCALES "%5 = quantize_feedback %1, %2 {bits=8 block=64 reset=-1} : u8[2,68]\n",
     "reset is -1; it must be 0 or more"},

    /* attention */
    {IN(1, "f32[4,8]") IN(2, "bf16[8]") "%3 = masked_softmax %1, %2 {scale=1} : f32[4,8]\n",
     "the bias must have the dtype of x and broadcast to its shape"},
    {IN(1, "f32[4,8]") "%2 = masked_softmax %1 {scale=inf} : f32[4,8]\n", "scale must be finite"},
    {IN(1, "i32[4,8,2]") "%2 = attention %1 {heads=1 scale=1 documents=true} : f32[4,8,2]\n",
     "takes 1 to 4 floats before documents and blocks"},
    {IN(1, "f32[1,16,8]") IN(2, "f32[1,32,8]") IN(3, "f32[1,32,8]")
         IN(4, "i32[1,16,2]") "%5 = attention %1, %2, %3, %4 {heads=1 scale=1 documents=true} : "
                              "f32[1,16,8]\n",
     "documents and blocks need as many queries as keys, not 16 and 32"},
    {CACHED STATE(6, "f32[2,64,8]") CACHE(7, "f32[2,64,8]") ATTEND
     " {heads=1 scale=1} : f32[2,4,8]\n",
     "operand 5 must be a cache"},
    {CACHED CACHE(6, "f32[2,64,9]") CACHE(7, "f32[2,64,8]") ATTEND
     " {heads=1 scale=1} : f32[2,4,8]\n",
     "operand 5 must be a cache [2, tokens, 8], and both of one shape"},
    {CACHES ATTEND " {heads=1 scale=1 window=-1} : f32[2,4,8]\n",
     "window = -1 must not be negative, and scale = 1 be finite"},
    {CACHES ATTEND " {heads=1 scale=1 block=16} : f32[2,4,8]\n",
     "block = 16, and the lists of a block mask are not there"},
    {CACHES "%8 = constant {values=[16]} : i32[1]\n" ATTEND
            ", %8 {heads=1 scale=1 window=4 ring=true block=16 layouts=1} : f32[2,4,8]\n",
     "a ring has no block mask"},

    /* ranks */
    {IN(1, "f32[8]") "%2 = bucket %1 {at=[0] size=1024} : f32[1024]\n",
     "operand 0 is the result of input; a bucket holds params or states"},
    {PARAM(1, "f32[8]") "%2 = bucket %1 {at=[1] size=1024} : f32[1024]\n",
     "operand 0 lies at 1; it must be a multiple of 1024 from 0 on, and 8 elements must fit a size "
     "of 1024"},
    {PARAM(1, "f32[2048]") "%2 = piece %1 {at=8 size=1024} : f32[1024]\n",
     "1024 elements from 8 on are no piece of 2048; pieces begin at multiples of 1024"},
    {IN(1, "f32[8]") "%2 = norms %1 {blocks=[4,2]} : f32[1]\n",
     "blocks lists where ranges begin and end, ascending, within the 8 blocks"},
    {IN(1, "f32[8]") IN(2, "f32[16]") "%3 = all_gather %1, %2 {world=2} : f32[16]\n",
     "operand 1, the place of the result, must be: bucket f32[16]"},
    {IN(1, "f32[]") "%2 = gather_examples %1 {ranks=2} : f32[2]\n",
     "a scalar has no examples: they are the first dimension"},
    {IN(1, "f32[6]") "%2 = scatter_examples %1 {ranks=4} : f32[1]\n",
     "4 ranks do not divide the 6 examples"},
    {IN(1, "f32[1048576,1048576]") "%2 = gather_examples %1 {ranks=2147483647} : f32[2]\n",
     "elements are too many"},
    {IN(1, "f32[8]") "wait %1\n",
     "operand 0 must be a collective or a copy, not the result of input"},
    {IN(1, "f32[8]") "%2 = copy %1 {to=host} : f32[8] host\n" IN(
         3, "f32[8]") "%4 = copy %1, %3 {to=host} : f32[8] host\n",
     "operand 1 lies in the space device, not host"},

    /* updates */
    {SGD "\n", "blocks must list the parameters of the bucket that it updates"},
    {SGD " {piece=[1] blocks=[0,1]}\n",
     "piece must be two numbers, its place and the size of what it is a piece of"},
    {BUCKET IN(3, "f32[1024]")
         IN(4, "f32[]") "update:\nsgd %2, %3, %4 {blocks=[0,1] decays=[0,0.1]}\n",
     "2 decays for 1 ranges of blocks"},
    {IN(1, "bf16[8]") IN(2, "f32[8]") "%3 = momentum %1, %2 {beta=0.9} : bf16[8]\n",
     "operand 0, the momentum, must be f32"},
    {IN(1, "f32[8]") IN(2, "i32[8]") "%3 = momentum %1, %2 {beta=0.9} : f32[8]\n",
     "operand 1, the gradient, must be float"},
    {IN(1, "f32[8]") IN(2, "f32[9]") "%3 = momentum %1, %2 {beta=0.9} : f32[8]\n",
     "momentum and gradient must have one shape"},
    {IN(1, "f32[8]") STATE(2, "f32[8]")
         STATE(3, "f32[8]") "update:\n%4 = adam_drift %1, %2, %3 : f32[]\n",
     "operand 0 must be a param or a bucket, not the result of input"},
    {PARAM(1, "f64[8]") STATE(2, "f32[8]")
         STATE(3, "f32[8]") "update:\n%4 = adam_drift %1, %2, %3 : f32[]\n",
     "operand 0 must be f32, bf16 or f16"},

    /* signs */
    {STATES "%4 = sign_compress %2, %3 : u8[1,132]\n",
     "operand 1, the errors, must be a state of 8 elements"},
    {IN(1, "bf16[8]") STATE(2, "f32[8]") "%3 = sign_compress %1, %2 : u8[1,132]\n",
     "the value and its errors must be f32"},
    {STATES "%4 = sign_compress %2, %1 {at=[0] count=[8]} : u8[1,132]\n",
     "the 8 elements of a bucket must be a multiple of 1024"},
    {STATES "%4 = sign_expand %2 {parts=1 shape=[8]} : f32[8]\n",
     "what is expanded is u8, not f32"},
    {STATES IN(4, "f32[8]") COUNTS "%1, %2, %3, %4, %5, %6 : f32[1]\n",
     "operand 3, a variance, must be a state"},
    {STATES COUNTS "%1, %2, %3, %1, %5, %6 : f32[1]\n",
     "operands 0 and 3, the variances, must be two states"},
};

TEST(op_misuse_in_text)
{
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(texts[k].graph, strlen(texts[k].graph),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (error.status == ZF_ERR_NOMEM) OK(t, error.status, error.text);
        if (g || !strstr(error.text, texts[k].error))
            CHECK_TEXT(t, g ? "no error" : error.text, texts[k].error);
    }
}
