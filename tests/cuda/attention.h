/* Shapes for the tiles of attention (tests/cuda.c). */
{{"attention", "f[2,R,W]", "attention %1 {heads=2 scale=0.125} : f[2,R,N]", NORM, 96, 'N', 0},
 {70, 64, 1}},
{{"attention_grad", "f[2,R,N] f[2,R,W]",
  "attention %2 {heads=2 scale=0.125} : f[2,R,N]\nsaved %3 {index=0} : g[2,2,R]\n"
  "attention_grad %1, %3, %4, %2 {heads=2 scale=0.125} : f[2,R,W]",
  NORM, 320, 'N', REFUSED},
 {70, 64, 1}},
