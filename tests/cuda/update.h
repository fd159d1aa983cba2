/* Several tiles, and ranges of blocks with gaps, for ops/update.cu (tests/cuda/ops.c). */
{{"sgd", "w[R,N] f[R,N] p[] m[R,N]",
  "update:\nsgd %1, %2, %3, %4 {momentum=0.9 nesterov=true weight_decay=0.1}", NORM, 16, 0,
  MUTATES},
 {11, 1001, 0}},
{{"sgd", "w[R,N] f[R,N] p[]", "update:\nsgd %1, %2, %3 {blocks=[1,2,2,3] decays=[0.1,0.5]}", NORM,
  8, 0, MUTATES},
 {5, 1001, 0}},
{{"adamw", "w[R,N] f[R,N] m[R,N] v[R,N] p[] t[]",
  "update:\nadamw %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-08 "
  "blocks=[0,1,1,1,3,5] decays=[0.1,9,0.3]}",
  NORM, 64, 0, MUTATES},
 {5, 1001, 0}},
{{"lion", "w[R,N] f[R,N] m[R,N] p[]",
  "update:\nlion %1, %2, %3, %4 {beta1=0.9 beta2=0.99 blocks=[0,1,1,1,3,5] decays=[0.1,9,0.3]}", NORM,
  16, 0, MUTATES},
 {5, 1001, 0}},
{{"lamb_update", "w[R,N] f[R,N] m[R,N] v[R,N] t[]",
  "update:\nlamb_update %1, %2, %3, %4, %5 {beta1=0.9 beta2=0.99 eps=1e-06 "
  "blocks=[1,2,4,5] decays=[0.1,0.3] uncorrected=true} : g[R,N]",
  NORM, 64, 0, MUTATES},
 {6, 1001, 0}},
{{"lamb_apply", "w[R,N] m[R,N] p[] p[2] p[2]",
  "update:\nlamb_apply %1, %2, %3, %4, %5 {least=0.01 most=10 blocks=[0,2,3,5]}", NORM, 16, 0,
  MUTATES},
 {5, 1001, 0}},
{{"adam_apply", "w[R,N] m[R,N] v[R,N] p[3] t[] t[]",
  "update:\nadam_apply %1, %2, %3, %4, %5, %6 {beta1=0.9 beta2=0.99 eps=1e-08 limit=0.2 "
  "blocks=[0,1,1,1,3,5] decays=[0.1,9,0.3]}",
  NORM, 64, 0, MUTATES},
 {5, 1001, 0}},
{{"variance_ratio", "t[] t[]",
  "param \"m\" {init=uniform a=-1 b=3} : f32[4096]\nparam \"x\" {init=uniform a=-1 b=3} : f32[4096]\n"
  "state \"f\" {value=0.25} : f32[4096]\nstate \"v\" {value=4} : f32[4096]\nupdate:\n"
  "variance_ratio %5, %3, %4, %6, %1, %2 {at=[0,3072] count=[1100,37] beta1=0.9 beta2=0.99 "
  "eps=1e-06} : f32[4]",
  RELATIVE, 64, 0, MUTATES},
 {1, 1, 0}},
{{"sign_expand", "",
  "param \"x\" {init=uniform a=-1 b=3} : f32[4096]\nstate \"e\" {value=0.5} : f32[4096]\nupdate:\n"
  "sign_compress %1, %2 {at=[0,3072] count=[1100,37]} : u8[4,132]\n"
  "sign_expand %3 {at=[0,3072] count=[1100,37] parts=1 shape=[4096]} : f32[4096]",
  RELATIVE, 32, 0, MUTATES},
 {1, 1, 0}},
{{"sign_expand", "", /* squares underflow */
  "param \"x\" {init=uniform a=-1e-30 b=3e-30} : f32[1500]\nstate \"e\" : f32[1500]\nupdate:\n"
  "sign_compress %1, %2 : u8[2,132]\nsign_expand %3 {parts=1 shape=[1500]} : f32[1500]",
  RELATIVE, 32, 0, MUTATES},
 {1, 1, 0}},
