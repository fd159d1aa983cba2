#!/bin/sh
# What a machine with a GPU has to show: builds for it, runs the tests on it, compares with the CPU,
# measures, and writes a table. What fails or takes too long is left out of it, and named.
#
#     sh bench/cuda.sh [quick] [FILE]          FILE: bench/results/DATE-GPU.md
#
# Nothing is fetched. Needs nvcc, a C compiler, make, and python3 with torch and transformers for the
# comparison (without: none). Where there is no stb_ds (libstb-dev), dist/zeroflow.h is taken for the
# library: `make dist` elsewhere, and bring dist/. Takes ten minutes at most; quick, three: the
# tests of a few operators, one length, PyTorch in eager mode. Logs and JSON are in build/cuda/bench-out.
#
# PYTHON, CC, NVCC: other ones. SECONDS_LEFT: of the ten minutes (600) or three (180); what does not
# fit is left out, and the table says so.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

quick=
if [ "${1:-}" = quick ]; then
    quick=yes
    shift
fi
python=${PYTHON:-python3}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
out=build/cuda/bench-out
begin=$(date +%s)
limit=${SECONDS_LEFT:-$([ "$quick" ] && echo 180 || echo 600)}

left() { echo $((limit - $(date +%s) + begin)); }
say() { printf '%4d s  %s\n' $(($(date +%s) - begin)) "$*"; }

# run NAME SECONDS COMMAND...: its output into NAME.log, its last line into NAME.json where that is
# JSON; not for longer, and not at all where less time is left than a quarter of that.
run() {
    name=$1
    most=$2
    shift 2
    rest=$(left)
    if [ "$rest" -lt $((most / 4 + 1)) ]; then
        say "$name: left out, for lack of time"
        return 1
    fi
    [ "$rest" -lt "$most" ] && most=$rest
    timeout -k 5 "$most" "$@" > "$out/$name.log" 2>&1
    status=$?
    tail -n 1 "$out/$name.log" | grep '^{' > "$out/$name.json" || rm -f "$out/$name.json"
    if [ $status = 0 ]; then
        say "$name"
    else
        say "$name: ended with status $status: $(tail -n 1 "$out/$name.log" | cut -c 1-200)"
        echo "$status" > "$out/$name.failed"
    fi
    return $status
}

rm -rf "$out"
mkdir -p "$out"
nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader \
    > "$out/gpu" 2> /dev/null || {
    echo "bench/cuda.sh: nvidia-smi sees no GPU here" >&2
    exit 1
}
gpu=$(head -n 1 "$out/gpu" | cut -d , -f 1)
arch=$(head -n 1 "$out/gpu" | awk -F ', *' '{ gsub(/\./, "", $4); print $4 }')
{
    "$nvcc" --version | grep release
    git log -1 --format='commit %h' 2> /dev/null
    date -u '+%Y-%m-%d %H:%M UTC'
} > "$out/what"
result=${1:-bench/results/$(date +%Y-%m-%d)-$(echo "$gpu" | tr 'A-Z ' 'a-z-').md}
say "$gpu, compute capability $arch; $limit s in all; the table: $result"

# ------------------------------------------------------------------------------------------ build

# Beside PyTorch's turn, which leaves the processor's cores alone. What can be made is, where other
# things cannot; warnings of other compilers are none of ours; and no package is looked for.
build() {
    mkdir -p build/cuda/obj
    touch build/.needs-build build/.needs-test
    if ! echo '#include <stb/stb_ds.h>' | ${CC:-gcc} -fsyntax-only -x c - 2> /dev/null; then
        [ -f dist/zeroflow.h ] || { echo 'neither stb_ds nor dist/zeroflow.h'; return 1; }
        ${CC:-gcc} -std=c11 -O2 -DZEROFLOW_IMPLEMENTATION -x c -c dist/zeroflow.h \
            -o build/cuda/obj/zeroflow.o || return 1
    fi
    nccl= # its header alone makes no program
    echo 'int main(void) { return 0; }' |
        ${CC:-gcc} -x c - -o "$out/linked" -L"${nvcc%/bin/nvcc}/lib64" -lnccl || nccl=NCCL_HEADER=
    timeout -k 5 "$limit" make -k -j "$(getconf _NPROCESSORS_ONLN)" NVCC="$nvcc" \
        CUDA_ARCHS="$arch" MPICC= WERROR= $nccl \
        build/cuda/tests build/cuda/bench/step build/cuda/bench/gpt build/cuda/matmul
}
build > "$out/build.log" 2>&1 &
building=$!

# ---------------------------------------------------------------------------------------- PyTorch

# BERT-large as in the table: $1 tokens of a sequence, $2 sequences.
torch() {
    mode=$1
    run "torch-$mode-$2" "$4" "$python" bench/peers/torch_bert.py --device cuda --model large \
        --dtype bf16 --seq "$2" --batch "$3" --steps 10 --mode "$mode"
}
lengths='128:256 512:64'
[ "$quick" ] && lengths=128:256
if "$python" -c 'import torch, transformers' 2> /dev/null; then
    for at in $lengths; do torch eager "${at%:*}" "${at#*:}" 90; done
    [ "$quick" ] || for at in $lengths; do torch compile "${at%:*}" "${at#*:}" 150; done
else
    say 'no PyTorch with transformers here: nothing to compare with'
fi
if wait $building; then say built
else
    tail -n 20 "$out/build.log" >&2
    say 'the build failed, in part at least; what there is of it is run'
    echo 1 > "$out/build.failed"
fi

# ------------------------------------------------------------------------------------------ tests

if [ "$quick" ]; then run tests 40 build/cuda/tests cuda/backend cuda_layer_norm cuda_attention cuda_adamw
else run tests 150 build/cuda/tests; fi

# The losses of twenty steps of BERT-tiny in f32: near the CPU's, and twice the same.
losses() {
    where=$1
    shift
    run "losses-$where" 60 build/cuda/bench/step --model tiny --vocab 1000 --batch 4 --seq 32 --steps 17 \
        --losses "$out/$where.losses" --json "$@"
}
losses cpu --device cpu && losses cuda --device cuda && losses again --device cuda

sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
if [ -x "$sanitizer" ] && ! [ "$quick" ]; then
    for tool in memcheck racecheck; do
        run "sanitizer-$tool" 45 "$sanitizer" --tool $tool --error-exitcode 9 build/cuda/tests \
            cuda_residual_norm cuda_masked_softmax cuda_cross_entropy cuda_adamw
    done
fi

# --------------------------------------------------------------------------------------- measures

# Of a model's step: $1 name, $2 program, the rest its options.
step() {
    name=$1
    program=$2
    shift 2
    run "$name" 60 "build/cuda/bench/$program" --device cuda --precision bf16 --json \
        --tuning "$out/tuning" "$@"
}
run matmul 40 build/cuda/matmul --rounds 5
rate=$(awk '$1 == "most" { print 1000 * $2 }' "$out/matmul.log")
for at in $lengths; do
    large="--model large --vocab 30522 --seq ${at%:*} --batch ${at#*:}"
    # shellcheck disable=SC2086 # a list of options
    {
        step "step-${at%:*}" step $large --steps 20
        step "launches-${at%:*}" step $large --steps 10 --no-graphs
        step "profile-${at%:*}" step $large --steps 5 --profile --roof-gflops "${rate:-0}"
    }
done
if ! [ "$quick" ]; then
    # Where kernels are short, a graph is worth the most.
    step small-graph step --model mini --vocab 8192 --batch 16 --seq 128 --steps 200
    step small-launches step --model mini --vocab 8192 --batch 16 --seq 128 --steps 200 --no-graphs
    step gpt gpt --model 124m --batch 32 --seq 1024 --steps 10
fi

mkdir -p "$(dirname "$result")"
"$python" bench/peers/cuda_table.py "$out" "sh bench/cuda.sh${quick:+ quick}" > "$result" || exit 1
say "written: $result"
cat "$result"
! ls "$out"/*.failed > /dev/null 2>&1
