/* zeroflow on CUDA: zf_cuda_backend (zeroflow.h), for the operators that training uses, in f32, bf16
 * and f16.
 *
 *     nvcc -O3 -c zeroflow_cuda.cu        cc ... zeroflow_cuda.o -lcublasLt -lcudart -lstdc++
 *
 * Sees the public header alone. A kernel stands beside its operator, ops/NAME.cu beside ops/NAME.c,
 * and says in what order it adds: the same bits come out in every run. A launcher zfi_cuda_OP has
 * the signature of a CPU kernel, and puts its kernels on the stream of the launch's queue.
 */
#include "zeroflow.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/launch.cu"
#include "cuda/element.cu"
#include "cuda/reduce.cu"
#include "cuda/random.cu"
#include "ops/binary.cu"
#include "ops/unary.cu"
#include "ops/move.cu"
#include "ops/reduce.cu"
#include "ops/rows.cu"
#include "ops/norm.cu"
#include "ops/loss.cu"
#include "ops/unit.cu"
#include "ops/collective.cu"
#include "ops/scaler.cu"
#include "ops/update.cu"
#include "ops/matmul.cu"
#include "ops/linear.cu"
#include "ops/head.cu"
#include "ops/fused_norm.cu"
#include "ops/fused_softmax.cu"
#include "ops/attention.cu"
#include "ops/chain.cu"
#include "ops/table.cu"
