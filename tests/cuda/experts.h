/* Rows of experts in blocks, those of a rank each, and gradients of the rows of several parts
 * (tests/cuda/ops.c); experts without rows. */
{{"expert_rows", "x[R,2]", "expert_rows %1 {experts=6 rows=600 blocks=3} : i32[600]", EXACT, 0, 0,
  NO_GRADIENT},
 {100, 6, 1}},
{{"saved", "x[R,2]",
  "expert_rows %1 {experts=6 rows=600 blocks=3} : i32[600]\nsaved %2 : i32[6,2]", EXACT, 0, 0,
  NO_GRADIENT},
 {100, 5, 1}},
{{"saved", "x[R,2]",
  "expert_rows %1 {experts=6 rows=72 blocks=3 capacity=12} : i32[72]\nsaved %2 : i32[6,2]", EXACT, 0,
  0, NO_GRADIENT},
 {100, 6, 1}},
{{"grouped_outer", "f[120,M] f[120,7] x[R,2]",
  "expert_rows %3 {experts=2 rows=120 parts=3} : i32[120]\nsaved %4 : i32[6,2]\n"
  "grouped_outer %1, %2, %5 {parts=3} : g[2,M,7]",
  TERMS, 1, 'R', NO_GRADIENT},
 {60, 2, 70}},
{{"grouped_outer", "f[R,M] f[R,7] x[R,1]",
  "expert_rows %3 {experts=4 rows=R} : i32[R]\nsaved %4 : i32[4,2]\n"
  "grouped_outer %1, %2, %5 {sections=2} : g[4,M,7]",
  TERMS, 1, 'R', NO_GRADIENT},
 {100, 4, 5}},
