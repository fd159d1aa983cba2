/* Shapes for the tiles of head (tests/cuda/ops.c), and of products. In saved gradients of the head,
 * dz was rounded for products; the line of `scale` counts for that. */
#define HEAD_TYPES "f[R,M] f[N,M] l[R] v[] f[N]"
#define HEAD       "head_loss %1, %2, %3, %4, %5 {ignore=-100} : g[]"
#define HEAD_SAVED                                                                                 \
    "scale %1 {by=1} : f[R,M]\nhead_loss %6, %2, %3, %4, %5 {ignore=-100} : g[]\nsaved %7 "
#define HEAD_RECORDS_TYPES "f[R,128] f[N,128] l[R] v[] f[N]"
#define HEAD_RECORDS                                                                               \
    "quantize %2 {bits=4 block=64} : u8[N,72]\n"                                                   \
    "head_loss %1, %6, %3, %4, %5 {ignore=-100 bits=4 block=64} : g[]"
{{"head_loss", HEAD_TYPES, HEAD, NORM, 160, 0, NEEDS_N}, {170, 40, 16}},
{{"head_loss", HEAD_TYPES, HEAD, NORM, 160, 0, NEEDS_N}, {23, 131, 9}},
{{"head_loss", HEAD_TYPES, HEAD, NORM, 160, 0, NEEDS_N}, {5, 4500, 3}},
{{"head_loss", HEAD_RECORDS_TYPES, HEAD_RECORDS, NORM, 400, 0, NEEDS_N | NO_GRADIENT},
 {23, 40, 0}},
{{"saved", HEAD_RECORDS_TYPES, HEAD_RECORDS "\nsaved %7 {index=0} : g[R,128]", NORM, 400, 0,
  NEEDS_N | REFUSED},
 {170, 19, 0}},
{{"saved", HEAD_TYPES, HEAD_SAVED "{index=0} : g[R,M]", NORM, 160, 0, NEEDS_N | REFUSED},
 {170, 40, 16}},
{{"saved", HEAD_TYPES, HEAD_SAVED "{index=1} : g[N,M]", NORM, 160, 0, NEEDS_N | REFUSED},
 {170, 40, 16}},
{{"saved", HEAD_TYPES, HEAD_SAVED "{index=1} : g[N,M]", NORM, 160, 0, NEEDS_N | REFUSED},
 {181, 67, 7}},
{{"saved", HEAD_TYPES, HEAD_SAVED "{index=2} : g[N]", NORM, 160, 0, NEEDS_N | REFUSED},
 {181, 67, 7}},
{{"saved", HEAD_TYPES, HEAD "\nsaved %6 {index=3} : i32[R]", EXACT, 0, 0, NEEDS_N | REFUSED},
 {41, 67, 1}},
#define LOGP_TYPES "f[R,M] f[N,M] l[R] f[N]"
#define LOGP       "head_logp %1, %2, %3, %4 {ignore=-100 temperature=0.7} : g[R]"
#define LOGP_GRAD                                                                                  \
    "scale %1 {by=1} : f[R,M]\nhead_logp_grad %6, %2, %3, %4, %5 {ignore=-100 temperature=0.7} : " \
    "g[R,M]"
{{"head_logp", LOGP_TYPES, LOGP, NORM, 160, 0, NEEDS_N}, {170, 40, 16}},
{{"head_logp", LOGP_TYPES, LOGP, NORM, 160, 0, NEEDS_N}, {5, 4500, 3}},
{{"saved", LOGP_TYPES, LOGP "\nsaved %5 {index=0} : g[R]", NORM, 160, 0, NEEDS_N | REFUSED},
 {41, 67, 7}},
{{"saved", LOGP_TYPES, LOGP "\nsaved %5 {index=1} : i32[R]", EXACT, 0, 0, NEEDS_N | REFUSED},
 {41, 67, 1}},
{{"head_logp_grad", "f[R,M] f[N,M] l[R] v[R] f[N]", LOGP_GRAD, NORM, 160, 0, NEEDS_N | REFUSED},
 {170, 40, 16}},
{{"saved", "f[R,M] f[N,M] l[R] v[R] f[N]", LOGP_GRAD "\nsaved %7 {index=0} : g[N,M]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {181, 67, 7}},
{{"saved", "f[R,M] f[N,M] l[R] v[R] f[N]", LOGP_GRAD "\nsaved %7 {index=1} : g[N]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {181, 67, 7}},
/* Sections: all of them, and some of a rank, of which it has the labels or not. */
#define PART_TYPES "f[R,M] f[N,M] l[R] f[N]"
{{"head_part", PART_TYPES,
  "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=4 entropy=true} : g[R,4,5]", NORM,
  160, 0, NEEDS_N | NO_GRADIENT},
 {170, 40, 16}},
{{"head_part", PART_TYPES,
  "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=6 first=0 of=120} : g[R,6,4]",
  NORM, 160, 0, NEEDS_N | NO_GRADIENT},
 {41, 40, 9}},
{{"head_part", PART_TYPES,
  "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=6 first=40 of=120 entropy=true} "
  ": g[R,6,5]",
  NORM, 160, 0, NEEDS_N | NO_GRADIENT},
 {41, 40, 9}},
{{"head_part", "f[R,128] f[N,128] l[R]",
  "quantize %2 {bits=4 block=64} : u8[N,72]\n"
  "head_part %1, %4, %3 {ignore=-100 temperature=2 bits=4 block=64 sections=2} : g[R,2,4]",
  NORM, 400, 0, NEEDS_N | NO_GRADIENT},
 {23, 40, 0}},
#define PART_GRAD                                                                                  \
    "scale %1 {by=1} : f[R,M]\n"                                                                   \
    "head_part %6, %2, %3, %5 {ignore=-100 temperature=0.7 sections=5} : g[R,5,4]\n"               \
    "head_join_grad %4, %7, %3 {ignore=-100} : g[R,5,4]\n"                                         \
    "head_part_grad %6, %2, %3, %8, %7, %5 {ignore=-100 temperature=0.7 sections=5} : g[R,M]"
#define PART_GRAD_TYPES "f[R,M] f[N,M] l[R] v[R] f[N]"
{{"head_part_grad", PART_GRAD_TYPES, PART_GRAD, NORM, 160, 0, NEEDS_N | REFUSED}, {170, 40, 16}},
{{"saved", PART_GRAD_TYPES, PART_GRAD "\nsaved %9 {index=0} : g[N,M]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {181, 65, 7}},
{{"saved", PART_GRAD_TYPES, PART_GRAD "\nsaved %9 {index=1} : g[N]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {181, 65, 7}},
{{"head_part_grad", PART_GRAD_TYPES,
  "scale %1 {by=1} : f[R,M]\n"
  "head_part %6, %2, %3, %5 {ignore=-100 temperature=0.7 sections=4 first=40 of=80} : g[R,4,4]\n"
  "head_join_grad %4, %7, %3 {ignore=-100} : g[R,4,4]\n"
  "head_part_grad %6, %2, %3, %8, %7, %5 "
  "{ignore=-100 temperature=0.7 sections=4 first=40 of=80} : g[R,M]",
  NORM, 160, 0, NEEDS_N | REFUSED},
 {23, 40, 16}},
/* The last section has fewer classes; ranks with rows of padding are in axes.c. */
{{"head_part", PART_TYPES,
  "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=6 entropy=true} : g[R,6,5]", NORM,
  160, 0, NEEDS_N | NO_GRADIENT},
 {41, 50, 9}},
{{"head_part", PART_TYPES,
  "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=6 entropy=true} : g[R,6,5]", NORM,
  160, 0, NEEDS_N | NO_GRADIENT},
 {23, 50, 16}},
{{"head_part_grad", PART_GRAD_TYPES, PART_GRAD, NORM, 160, 0, NEEDS_N | REFUSED}, {23, 41, 16}},
{{"head_part_grad", PART_GRAD_TYPES, PART_GRAD, NORM, 160, 0, NEEDS_N | REFUSED}, {41, 63, 7}},
{{"saved", PART_GRAD_TYPES, PART_GRAD "\nsaved %9 {index=0} : g[N,M]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {41, 63, 7}},
{{"saved", PART_GRAD_TYPES, PART_GRAD "\nsaved %9 {index=1} : g[N]", NORM, 160, 0,
  NEEDS_N | REFUSED},
 {41, 63, 7}},
#define JOIN "head_part %1, %2, %3, %4 {ignore=-100 temperature=0.7 sections=5 entropy=true} : g[R,5,5]\n"
{{"saved", PART_TYPES, JOIN "head_join %5, %3 {ignore=-100} : g[R]\nsaved %6 {index=0} : g[R]",
  NORM, 160, 0, NEEDS_N | REFUSED},
 {41, 65, 7}},
{{"saved", PART_TYPES, JOIN "head_join %5, %3 {ignore=-100} : g[R]\nsaved %6 {index=0} : g[R]",
  NORM, 160, 0, NEEDS_N | REFUSED},
 {41, 63, 7}},
{{"saved", PART_TYPES, JOIN "head_join %5, %3 {ignore=-100} : g[R]\nsaved %6 {index=1} : i32[R]",
  EXACT, 0, 0, NEEDS_N | REFUSED},
 {41, 65, 1}},
#undef PART_TYPES
#undef PART_GRAD
#undef PART_GRAD_TYPES
#undef JOIN
#undef LOGP_TYPES
#undef LOGP
#undef LOGP_GRAD
#undef HEAD_TYPES
#undef HEAD
#undef HEAD_SAVED
#undef HEAD_RECORDS_TYPES
#undef HEAD_RECORDS
{{"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=gelu} : f[R,M]", TERMS, 8, 'N', 0},
 {33, 16, 64}},
{{"linear", "f[R,N] f[M,N] f[M]", "linear %1, %2, %3 {activation=silu} : f[R,M]", TERMS, 8, 'N', 0},
 {21, 5, 65}},
{{"linear", "f[R,N] f[M,N]", "linear %1, %2 {activation=gelu_tanh} : f[R,M]", TERMS, 8, 'N', 0},
 {7, 8, 600}},
{{"saved", "f[R,N] f[M,N] f[M]",
  "linear %1, %2, %3 {activation=gelu} : f[R,M]\nsaved %4 {index=0} : f[R,M]", TERMS, 2, 'N',
  REFUSED},
 {33, 16, 64}},
{{"linear", "f[R,N] f[M,N] f[M] f[R,M]", "linear %1, %2, %3, %4 : f[R,M]", TERMS, 3, 'N', 0},
 {37, 16, 24}},
{{"quantized_linear", "f[R,128] f[N,128] f[N]",
  "quantize %2 {bits=8 block=64} : u8[N,136]\n"
  "quantized_linear %1, %4, %3 {bits=8 block=64} : f[R,N]",
  NORM, 300, 0, NO_GRADIENT},
 {37, 24, 0}},
{{"grouped_linear", "f[T,H] f[N,K,H] x[R,2]",
  "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
  "grouped_linear %1, %2, %5 {sections=4} : f[T,K]",
  TERMS, 3, 'H', NEEDS_N},
 {40, 5, 70}},
{{"grouped_linear", "f[T,H] f[N,H,K] x[R,2]",
  "expert_rows %3 {experts=N rows=T} : i32[T]\nsaved %4 : i32[N,2]\n"
  "grouped_linear %1, %2, %5 {transpose=true sections=2 wide=true} : g[T,K]",
  TERMS, 3, 'H', NEEDS_N},
 {21, 6, 66}},
{{"matmul", "f[R,N] f[M,N]", "matmul %1, %2 {transpose_b=true} : f[R,M]", TERMS, 1, 'N', 0},
 {40, 33, 70}},
{{"matmul", "f[2,3,N,R] f[2,1,N,M]", "matmul %1, %2 {transpose_a=true} : f[2,3,R,M]", TERMS, 1, 'N',
  0},
 {35, 37, 33}},
