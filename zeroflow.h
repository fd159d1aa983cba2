/* zeroflow.h - train transformers from C.
 *
 * WHAT IT IS
 *
 * A program builds a static graph with zf_ operators. Passes rewrite that graph until it is one
 * complete training step: forward, backward, clipping, optimizer, with every byte placed. Then it
 * runs. There is one kind of thing, a list of nodes, and one text for it, which can be printed
 * after any pass, read back, compared and tested.
 *
 * EIGHT LINES
 *
 *     zf_graph *g = zf_graph_new(NULL);
 *     zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(32, 2));
 *     zf_tensor y = zf_input(g, "y", ZF_I32, ZF_SHAPE(32));
 *     zf_tensor lr = zf_input(g, "lr", ZF_F32, ZF_SCALAR);
 *     zf_tensor h = zf_relu(zf_nn_linear(x, "hidden", 64, NULL));
 *     zf_tensor loss = zf_cross_entropy(zf_nn_linear(h, "out", 2, NULL), y, ZF_NONE);
 *     zf_autograd(g, loss), zf_adamw(g, lr, NULL);
 *     zf_program *p = zf_compile(g, NULL);
 *
 * and then, for each step, zf_write(p, x, ...), zf_step(p), zf_read(p, loss, ...).
 *
 * USE
 *
 * In one C file, and in as many others without the first line:
 *
 *     #define ZEROFLOW_IMPLEMENTATION
 *     #include "zeroflow.h"
 *
 * C11 with gcc or clang, -lm -lpthread, on a POSIX system; the declarations are C++17 as well.
 * dist/zeroflow.h (`make dist`) is this header as one file. The header of the source tree includes
 * the other files of the tree, and stb_ds (Debian: libstb-dev). No machine flags are needed: AMX,
 * AVX-512, AVX2 or NEON is chosen when it runs. Options, by #define before the implementation:
 * ZF_API (decorates the functions; `static` makes them private), ZEROFLOW_CBLAS (products by a
 * linked BLAS), ZF_NO_LINES (builders do not note the line that calls them).
 *
 * WHAT IT DOES NOT DO (YET)
 *
 * It runs on the CPU, in f32, bf16 and f16 (f64 by slow reference kernels), and on one GPU
 * (zeroflow_cuda.cu; f32, bf16, f16). Ranks by NCCL (zeroflow_nccl.c) are tested on the CPU; they
 * have not been run on several GPUs. There are no dynamic shapes, and no control flow in a graph:
 * another shape is another graph over the same parameters (zf_store).
 *
 * THE REST OF THE MANUAL
 *
 *     api/core.h        status, memory, dtypes, shapes, graphs, builders; words that are used
 *     api/passes.h      passes, their descs, zf_training
 *     api/running.h     devices, ranks, stores, plans, programs, layers, loops
 *     api/files.h       checkpoints, JSON, safetensors
 *     api/options.h     options by name: command lines, text, JSON
 *     api/deepspeed.h   DeepSpeed's configuration file
 *     api/reports.h     metrics of a run, TensorBoard's event files, progress
 *     api/extending.h   operators, backends, communicators of a program's own
 *
 * A program that trains needs the first three. docs/ has a page for each purpose.
 */
#ifndef ZEROFLOW_H
#define ZEROFLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the declarations; zf_version is that of the implementation. */
#define ZF_VERSION_MAJOR 0
#define ZF_VERSION_MINOR 1
#define ZF_VERSION_PATCH 0
#define ZF_VERSION       ZFI_VERSION(ZF_VERSION_MAJOR, ZF_VERSION_MINOR, ZF_VERSION_PATCH)

#define ZFI_VERSION(major, minor, patch)      ZFI_VERSION_TEXT(major, minor, patch)
#define ZFI_VERSION_TEXT(major, minor, patch) #major "." #minor "." #patch

#ifndef ZF_API
/* Decorates every public function; -DZF_API=static keeps the library in one file. Functions of
 * zeroflow_cuda.cu, zeroflow_mpi.c and zeroflow_nccl.c are `extern` instead. */
#define ZF_API
#elif defined(__GNUC__)
#define ZFI_API_OF_PROGRAM
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* a program calls some of the functions */
#endif
#define ZF_BUILDER ZF_API /* a function that notes the line that calls it (api/lines.h) */

#include "api/core.h"
#include "api/passes.h"
#include "api/running.h"
#include "api/files.h"
#include "api/options.h"
#include "api/deepspeed.h"
#include "api/reports.h"
#include "api/extending.h"

/* gcc looks at the end of a file whether it has to warn of declarations that are never defined. */
#if defined(ZFI_API_OF_PROGRAM) && (defined(ZEROFLOW_IMPLEMENTATION) || defined(__clang__))
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#endif /* ZEROFLOW_H */

#if defined(ZEROFLOW_IMPLEMENTATION) && defined(__cplusplus)
#error "ZEROFLOW_IMPLEMENTATION must be compiled as C: put it in one .c file"
#elif defined(ZEROFLOW_IMPLEMENTATION) && !defined(ZEROFLOW_IMPLEMENTED)
#define ZEROFLOW_IMPLEMENTED
#ifdef ZFI_API_OF_PROGRAM /* as above */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#ifdef zf_add /* the header was included before: its macros would expand in the functions below */
#include "api/lines.h"
#endif
#include "base/error.c"
#include "base/alloc.c"
#include "base/number.c"
#include "base/writer.c"
#include "base/names.c"
#include "base/near.c"
#include "base/printable.c"
#include "base/shape.c"
#include "base/mesh.c"
#include "base/tree.c"
#include "base/blocks.c"
#include "base/tasks.c"
ZFI_PLAIN_BEGINS
#include "graph/role.c"
#include "graph/graph.c"
#include "graph/cuts.c"
#include "graph/spread.c"
#include "graph/append.c"
#include "graph/parts.c"
#include "graph/build.c"
#include "graph/own.c"
#include "graph/new.c"
#include "graph/copy.c"
ZFI_PLAIN_ENDS
#include "cpu/isa.c"
#include "cpu/threads.c"
#include "cpu/normal.c"
#include "cpu/random.c"
#include "cpu/vmath.c"
#include "cpu/convert.c"
#include "cpu/tile.c"
#include "cpu/tile16.c"
#include "cpu/tile_amx.c"
#include "cpu/tile_strip.c"
#include "cpu/row.c"
#include "cpu/matmul.c"
#include "io/crc32c.c"
#include "io/files.c"
#include "io/system.c"
#include "io/ring.c"
#include "io/offload.c"
#include "io/disk.c"
ZFI_PLAIN_BEGINS
#include "io/json.c"
#include "io/safetensors.c"
#include "io/event_file.c"
#include "io/event_sink.c"
#include "options/walk.c"
#include "options/rules.c"
#include "options/read.c"
#include "options/show.c"
#include "options/deepspeed/key.c"
#include "options/deepspeed/set.c"
#include "options/deepspeed/keys.c"
#include "options/deepspeed/find.c"
#include "options/deepspeed/auto.c"
#include "options/deepspeed/batch.c"
#include "options/deepspeed/read.c"
#include "options/deepspeed/show.c"
#include "ops/kernel.c"
#include "ops/leaf.c"
#include "ops/binary.c"
#include "ops/unary.c"
#include "ops/layer_drop.c"
#include "ops/softplus.c"
#include "ops/swiglu.c"
#include "ops/move.c"
#include "ops/sum_to.c"
#include "ops/activation_grad.c"
#include "ops/matmul.c"
#include "ops/reduce.c"
#include "ops/rows.c"
#include "ops/rope.c"
#include "ops/norm.c"
#include "ops/along.c"
#include "ops/draw.c"
#include "ops/loss.c"
#include "ops/bucket.c"
#include "ops/squares.c"
#include "ops/collective.c"
#include "ops/lazy_rows.c"
#include "ops/part.c"
#include "ops/repeat.c"
#include "ops/examples.c"
#include "ops/scaler.c"
#include "ops/quantize_block.c"
#include "ops/quantize.c"
#include "ops/copy.c"
#include "ops/optimizer.c"
#include "ops/update.c"
#include "ops/sgd.c"
#include "ops/adamw.c"
#include "ops/lamb.c"
#include "ops/lion.c"
#include "ops/sign.c"
#include "ops/variance.c"
#include "ops/set.c"
#include "ops/linear.c"
#include "ops/quantized_dot.c"
#include "ops/quantized_linear.c"
#include "ops/conv_shape.c"
#include "ops/conv_strips.c"
#include "ops/conv_fast.c"
#include "ops/conv.c"
#include "ops/head.c"
#include "ops/logp.c"
#include "ops/head_part.c"
#include "ops/fused_norm.c"
#include "ops/fused_softmax.c"
#include "ops/block_mask.c"
#include "ops/documents.c"
#include "ops/route.c"
#include "ops/experts.c"
#include "ops/grouped_linear.c"
#include "ops/attention_heads.c"
#include "ops/attention_block.c"
#include "ops/attention_fast.c"
#include "ops/attention_blocks.c"
#include "ops/attention.c"
#include "ops/attention_join.c"
#include "ops/cache.c"
#include "ops/chain.c"
#include "ops/saved.c"
#include "ops/delay.c"
#include "ops/table.c"
#include "ir/print.c"
#include "ir/verify.c"
#include "ir/queues.c"
#include "ir/neighbours.c"
#include "ir/fetched.c"
#include "ir/ranks.c"
#include "ir/stages.c"
#include "ir/sections.c"
#include "ir/complete.c"
#include "ir/gate.c"
#include "ir/live.c"
#include "ir/settle.c"
#include "ir/plan.c"
#include "ir/parse.c"
#include "plan/box.c"
#include "plan/layout.c"
#include "plan/course.c"
#include "plan/memory.c"
#include "plan/cost.c"
#include "plan/account.c"
#include "plan/estimate.c"
#include "plan/pipeline.c"
#include "plan/regions.c"
#include "passes/rewrite/autograd.c"
#include "passes/rewrite/simplify.c"
#include "passes/rewrite/clip.c"
#include "passes/rewrite/delay.c"
#include "passes/rewrite/precision.c"
#include "passes/rewrite/tile.c"
#include "passes/rewrite/dora.c"
#include "passes/rewrite/lora.c"
#include "passes/optimizers/named.c"
#include "passes/optimizers/groups.c"
#include "passes/optimizers/onebit.c"
#include "passes/optimizers/onebit_lamb.c"
#include "passes/optimizers/zero_one.c"
#include "passes/optimizers/optimizer.c"
#include "passes/optimizers/ema.c"
#include "passes/fuse/update.c"
#include "passes/fuse/chain.c"
#include "passes/fuse/miss.c"
#include "passes/fuse/fuse.c"
#include "passes/cut/divide.c"
#include "passes/cut/classes.c"
#include "passes/cut/choose.c"
#include "passes/cut/rewrite.c"
#include "passes/cut/norms.c"
#include "passes/cut/tokens.c"
#include "passes/cut/deal.c"
#include "passes/cut/apart.c"
#include "passes/cut/choices.c"
#include "passes/cut/drops.c"
#include "passes/cut/ring.c"
#include "passes/cut/context.c"
#include "passes/cut/sequence.c"
#include "passes/cut/cut.c"
#include "passes/zero/buckets.c"
#include "passes/zero/runs.c"
#include "passes/zero/reduction.c"
#include "passes/zero/micro.c"
#include "passes/zero/sets.c"
#include "passes/zero/update.c"
#include "passes/zero/examples.c"
#include "passes/zero/zero.c"
#include "passes/offload/copies.c"
#include "passes/offload/experts.c"
#include "passes/offload/parameters.c"
#include "passes/offload/activations.c"
#include "passes/offload/gradients.c"
#include "passes/offload/optimizer.c"
#include "passes/offload/pieces.c"
#include "passes/offload/offload.c"
#include "passes/overlap/early.c"
#include "passes/overlap/reuse.c"
#include "passes/overlap/reuse_gradients.c"
#include "passes/overlap/join.c"
#include "passes/overlap/put_off.c"
#include "passes/overlap/fetches.c"
#include "passes/overlap/waits.c"
#include "passes/overlap/updates.c"
#include "passes/overlap/prefetch.c"
#include "passes/recompute/alive.c"
#include "passes/recompute/order.c"
#include "passes/recompute/recompute.c"
#include "passes/recompute/invert.c"
#include "passes/stages/layers.c"
#include "passes/stages/tasks.c"
#include "passes/stages/boundary.c"
#include "passes/stages/stages.c"
#include "passes/stages/keep.c"
#include "passes/stages/deal.c"
#include "passes/experts.c"
#include "passes/order.c"
#include "passes/hold.c"
#include "passes/fit.c"
#include "passes/training.c"
#include "comm/clock.c"
#include "comm/ranks.c"
#include "comm/call.c"
#include "comm/local.c"
#include "comm/agree.c"
#include "store/same.c"
#include "store/store.c"
#include "store/whole.c"
#include "store/lora.c"
#include "store/average.c"
#include "store/manifest.c"
#include "store/save.c"
#include "store/load.c"
#include "store/checkpoint.c"
#include "store/reader.c"
#include "run/compile/queue.c"
#include "run/compile/widen.c"
#include "run/compile/cpu.c"
#include "run/compile/program.c"
#include "run/compile/share.c"
#include "run/compile/init.c"
#include "run/compile/project.c"
#include "run/compile/bind.c"
#include "run/compile/launches.c"
#include "run/compile/tasks.c"
#include "run/compile/fill.c"
#include "run/compile/compile.c"
#include "run/step/hold.c"
#include "run/step/micros.c"
#include "run/step/access.c"
#include "run/step/magnitudes.c"
#include "run/step/regions.c"
#include "run/step/launch.c"
#include "run/step/tasks.c"
#include "run/step/step.c"
#include "run/step/measure.c"
#include "run/step/info.c"
#include "run/step/together.c"
#include "run/step/cost.c"
#include "run/step/lockstep.c"
#include "nn/schedule.c"
#include "nn/layers.c"
#include "nn/block.c"
#include "nn/moe.c"
#include "nn/train.c"
#include "nn/watch.c"
#include "nn/fit.c"
#include "nn/check.c"
#include "nn/report/metrics.c"
#include "nn/report/progress.c"
#include "nn/report/markup.c"
#include "nn/report/series.c"
#include "nn/report/chart.c"
#include "nn/report/nodes.c"
#include "nn/report/plan.c"
#include "nn/report/page.c"
#include "nn/report/trace.c"
ZFI_PLAIN_ENDS
#if defined(__clang__)
#pragma clang diagnostic pop /* cpu/isa.c */
#pragma STDC FP_CONTRACT DEFAULT
#endif
#ifdef ZFI_API_OF_PROGRAM
#pragma GCC diagnostic pop
#endif
#endif

/* Every builder notes the line that calls it, so that an error names it. */
#if !defined(ZF_NO_LINES) && !defined(zf_add)
#include "api/lines.h"
#endif
