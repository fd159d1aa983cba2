#!/bin/sh
# What a machine with a GPU has to show: the tests on the device, the rate of matrix products,
# training steps next to PyTorch's, generation, single operators, offload, compute-sanitizer; and a
# table of it all.
#
#     sh bench/cuda.sh [only=PART,...] [quick] [FILE]      FILE: bench/results/DATE-GPU.md
#     sh bench/cuda.sh build                               only builds, into build/gpu
#     sh bench/cuda.sh run [only=PART,...] [quick] [FILE]  only runs what is in build/gpu
#
# The parts, in the order in which they run:
#
#     matmul      the products of BERT-large by every algorithm of cuBLASLt
#     steps       steps of BERT-large, BERT-mini and GPT-2 124M; time by operator
#     eager       PyTorch on BERT-large, GPT-2 and the Llama, which needs python3 with torch,
#                 transformers and (for LoRA) peft
#     tests       the tests of CUDA, on the device, several processes at once
#     losses      twenty steps of BERT-tiny: CPU against GPU, and two runs on the GPU
#     llama       steps of a Llama of 160 million parameters, all trained, LoRA, and LoRA over weights
#                 of 4 bits
#     generate    prompts and generation of that Llama, with weights of 16, 8 and 4 bits
#     ops         single operators compared with a copy: quantised blocks, signs, caches, rope, ...
#     offload     a GPT with parameters and optimizer in host memory
#     sanitizer   memcheck and racecheck over tests, several processes at once
#     compile     as `eager` by torch.compile: last, since compiling takes the longest
#     largest     the largest GPT that trains with each kind of offload; only if it is named
#
# The table is written anew after each part, so that a run that is stopped leaves what it has found.
# With OUT in the environment the table lies in that folder, and all logs and the JSON of each
# program in OUT/logs.tar.gz; without, the logs lie in build/cuda/bench-out. A part that fails or
# takes too long is named.
#
# Building needs nvcc, a C compiler, and stb_ds (libstb-dev) or dist/zeroflow.h. It uses make where
# that is installed. Programs that were built on another machine for the same GPU run as well: build
# there, bring build/gpu, and use `run`. Nothing is fetched.
#
# OFFLOAD: the GPT of `offload`, LAYERS:WIDTH:HEADS:BATCH:TOKENS[:VOCABULARY] (12:2048:16:16:1024,
# quick: 12:768:12:8:512). OFFLOAD_DIR: a folder on a fast disk, for states and parameters there.
# PYTHON, CC, NVCC: other ones. ARCHS: compute capabilities to build for, "90" or "80 90"; without,
# that of the GPU here. SECONDS_LEFT: of 540 in all (quick: 180); a part that does not fit is left out.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

only= quick= mode=all result=
for word in "$@"; do
    case $word in
    only=*) only=$(echo "${word#only=}" | tr , ' ') ;;
    quick) quick=yes ;;
    build | run) mode=$word ;;
    -*) echo "bench/cuda.sh: $word is no option; its head says what there is" >&2; exit 2 ;;
    *) result=$word ;;
    esac
done
parts='matmul steps eager tests losses llama generate ops offload sanitizer compile'
for part in $only; do
    case " $parts largest " in
    *" $part "*) ;;
    *) echo "bench/cuda.sh: there is no part '$part'; there are: $parts largest" >&2; exit 2 ;;
    esac
done

python=${PYTHON:-python3}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
cc=${CC:-gcc}
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc" 2> /dev/null || echo "$nvcc")")")
programs=build/gpu
benches='step gpt generate ops'
out=build/cuda/bench-out
begin=$(date +%s)
limit=${SECONDS_LEFT:-$([ "$quick" ] && echo 180 || echo 540)}

left() { echo $((limit - $(date +%s) + begin)); }
say() { printf '%4d s  %s\n' $(($(date +%s) - begin)) "$*"; }

# ------------------------------------------------------------------------------------------ build

# The same programs as the Makefile's, without make: one object per file, as many at once as there
# are cores.
build_plainly() {
    objects=build/cuda/plain
    library=zeroflow.h
    sources="$(ls examples/bert/*.c examples/bert/*/*.c examples/gpt/*.c examples/llm/*.c \
        examples/frame/*/*.c tools/pass.c | grep -Ev '/(main|sentences)\.c$')"
    for name in $benches; do sources="$sources bench/$name.c"; done
    [ "$nccl" ] && tests=$(ls tests/support/main.c tests/cuda/*.c zeroflow_nccl.c) ||
        tests=$(ls tests/support/main.c tests/cuda/*.c | grep -v nccl)
    mkdir -p $objects
    echo '#include <stb/stb_ds.h>' | $cc -fsyntax-only -x c - 2> /dev/null || library=dist/zeroflow.h
    [ -f $library ] || { echo 'neither stb_ds (libstb-dev) nor dist/zeroflow.h is here'; return 1; }
    {
        echo "$nvcc -std=c++17 -O3 -I. $codes -c zeroflow_cuda.cu -o $objects/zeroflow_cuda.o"
        echo "$cc -std=c11 -O2 -DZEROFLOW_IMPLEMENTATION -x c -c $library -o $objects/zeroflow.o"
        echo "$cc -std=c11 -O2 -DZEROFLOW_LLM_IMPLEMENTATION -I. -x c -c zeroflow_llm.h" \
            "-o $objects/zeroflow_llm.o"
        for source in $sources $tests; do
            echo "$cc -std=c11 -O2 -DWITH_CUDA -isystem $cuda/include -I. -c $source" \
                "-o $objects/$(echo "${source%.c}" | tr / -).o"
        done
    } | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I COMMAND sh -c COMMAND || return 1
    objects_of() { for source in "$@"; do echo "$objects/$(echo "${source%.c}" | tr / -).o"; done; }
    common="$(objects_of $(echo "$sources" | tr ' ' '\n' | grep -v '^bench/'))
            $objects/zeroflow_llm.o $objects/zeroflow_cuda.o $objects/zeroflow.o"
    libraries="-L$cuda/lib64 -Wl,-rpath,$cuda/lib64 -lcublasLt -lcudart -lstdc++ $pcre2"
    libraries="$libraries -lm -lpthread"
    $cc -std=c11 -O2 -I. -c tools/zf-plan.c -o $objects/tools-zf-plan.o &&
        $cc -o $programs/zf-plan $objects/tools-zf-plan.o $common $libraries &&
        for name in $benches; do
            $cc -o $programs/$name $(objects_of bench/$name.c) $common $libraries || return 1
        done &&
        $cc -o $programs/tests $(objects_of $tests) $common ${nccl:+-lnccl} $libraries &&
        $cc -O2 -isystem "$cuda/include" bench/cuda/matmul.c -o $programs/matmul $libraries
}

# Warnings of other compilers stop nothing, and no package is looked for. Kernels are compressed:
# without, five programs take 50 MB, which is too much for some ways to the machine with the GPU.
build() {
    export NVCC_APPEND_FLAGS="-Xfatbin=-compress-all ${NVCC_APPEND_FLAGS:-}"
    mkdir -p $programs
    rm -f $programs/* 2> /dev/null
    nccl=
    echo 'int main(void) { return 0; }' | $cc -x c - -o $programs/linked -L"$cuda/lib64" -lnccl \
        2> /dev/null && nccl=yes
    # The machine with the GPU may lack PCRE2, which tokenizers use: its archive, if there is one.
    pcre2=
    for flag in -lpcre2-8 -l:libpcre2-8.a; do
        echo 'int main(void) { return 0; }' | $cc -x c - -o $programs/linked $flag 2> /dev/null &&
            pcre2=$flag
    done
    rm -f $programs/linked
    codes=
    for a in $archs; do
        [ "$a" != 90 ] || a=90a # wgmma is in 90a alone
        codes="$codes -gencode arch=compute_$a,code=sm_$a"
    done
    if ! command -v make > /dev/null || ! echo '#include <stb/stb_ds.h>' |
        $cc -fsyntax-only -x c - 2> /dev/null; then
        build_plainly
        return
    fi
    mkdir -p build
    touch build/.needs-build build/.needs-test
    # shellcheck disable=SC2086
    make -k -j "$(getconf _NPROCESSORS_ONLN)" NVCC="$nvcc" CC="$cc" CUDA_CODE="$codes" MPICC= \
        WERROR= PCRE2="$pcre2" $([ "$nccl" ] || echo NCCL_HEADER=) \
        build/cuda/tests build/cuda/matmul build/zf-plan \
        $(for name in $benches; do echo "build/cuda/bench/$name"; done) || return 1
    cp build/cuda/tests build/cuda/matmul build/zf-plan \
        $(for name in $benches; do echo "build/cuda/bench/$name"; done) $programs
}

gpu=$(nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader \
    2> /dev/null | head -n 1)
archs=${ARCHS:-$(echo "$gpu" | awk -F ', *' '{ gsub(/\./, "", $4); print $4 }')}
if [ $mode != run ]; then
    [ "$archs" ] || { echo 'bench/cuda.sh: no GPU is seen here; ARCHS=90 says for which to build' >&2; exit 1; }
    [ -x "$nvcc" ] || { echo "bench/cuda.sh: there is no $nvcc (CUDA Toolkit); NVCC=... names one" >&2; exit 1; }
    mkdir -p build/cuda
    if build > build/cuda/build.log 2>&1; then
        size=$(du -sk $programs | cut -f 1)
        say "built, for compute capability $archs: $((size / 1024)) MiB in $programs"
    else
        tail -n 20 build/cuda/build.log >&2
        say 'the build failed: build/cuda/build.log'
        exit 1
    fi
    [ $mode = all ] || exit 0
fi
[ "$gpu" ] || { echo 'bench/cuda.sh: nvidia-smi sees no GPU here' >&2; exit 1; }
[ -x $programs/step ] || { echo "bench/cuda.sh: $programs is empty; build it first" >&2; exit 1; }

# ------------------------------------------------------------------------------------- to run it

name=$(echo "$gpu" | cut -d , -f 1)
memory=$(echo "$gpu" | awk -F ', *' '{ print int($2) }') # MiB
file=$(date +%Y-%m-%d)-$(echo "$name" | tr 'A-Z ' 'a-z-').md
if [ "${OUT:-}" ]; then result=$OUT/${result:-$file}; else result=${result:-bench/results/$file}; fi
rm -rf "$out"
mkdir -p "$out" "$(dirname "$result")"
echo "$gpu" > "$out/gpu"
{
    "$nvcc" --version 2> /dev/null | grep release
    git log -1 --format='commit %h' 2> /dev/null
    date -u '+%Y-%m-%d %H:%M UTC'
} > "$out/what"
asked="sh bench/cuda.sh${only:+ only=$(echo "$only" | tr ' ' ,)}${quick:+ quick}"
say "$gpu; $limit s in all; the table: $result"

# Libraries of CUDA may lie next to PyTorch alone.
for folder in "$cuda/lib64" $("$python" -c 'import nvidia, glob
for p in nvidia.__path__: print(*glob.glob(p + "/*/lib"))' 2> /dev/null); do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH

# run NAME SECONDS COMMAND...: its output into NAME.log, the JSON object of the last line that has one
# into NAME.json, wherever in the line it begins (progress may stand before it);
# not for longer, and not at all where less time is left than a quarter of that.
run() {
    name=$1
    most=$2
    shift 2
    rest=$(left)
    rm -f "$out/$name.json" "$out/$name.failed"
    if [ "$rest" -lt $((most / 4 + 1)) ]; then
        say "$name: left out, for lack of time"
        return 1
    fi
    [ "$rest" -lt "$most" ] && most=$rest
    timeout -k 5 "$most" "$@" > "$out/$name.log" 2>&1
    status=$?
    sed -n 's/^[^{]*\({".*}\)[^}]*$/\1/p' "$out/$name.log" | tail -n 1 > "$out/$name.json"
    [ -s "$out/$name.json" ] || rm -f "$out/$name.json"
    if [ $status = 0 ]; then
        say "$name"
    else
        say "$name: ended with status $status: $(tail -n 1 "$out/$name.log" | cut -c 1-300)"
        echo "$status" > "$out/$name.failed"
    fi
    return $status
}

table() {
    "$python" bench/peers/cuda_table.py "$out" "$asked" > "$out/table.part" &&
        mv "$out/table.part" "$result"
    [ ! "${OUT:-}" ] || tar -czf "$OUT/logs.tar.gz" -C "$out" .
}

# ------------------------------------------------------------------------------------- the parts

lengths='128:256 512:64'
[ "$quick" ] && lengths=128:256

# Their processor's time is most of what they take. The last line of tests.log is that of all.
do_tests() {
    some=
    [ "$quick" ] && some='cuda/backend cuda_layer_norm cuda_attention cuda_adamw'
    processes=8
    for k in $(seq $processes); do
        # shellcheck disable=SC2086
        (run "tests-$k" 200 $programs/tests --part="$k/$processes" $some) &
    done
    wait
    cat "$out"/tests-*.log > "$out/tests.log"
    sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 \4/p' "$out/tests.log" |
        awk -v of=$processes '{ p += $1; f += $2; s += $3 } END {
            printf "%d passed, %d failed%s%s\n", p, f, s ? ", " s " skipped" : "",
                NR < of ? "; of " of " processes " of - NR " did not end" : "" }' >> "$out/tests.log"
    tail -n 1 "$out/tests.log"
}

do_matmul() { run matmul 40 $programs/matmul --rounds 5; }

# step NAME PROGRAM OPTIONS...: the step of a model.
step() {
    label=$1
    program=$2
    shift 2
    run "$label" 75 "$programs/$program" --device cuda --precision bf16 --json --threads 8 \
        --tuning "$out/tuning" "$@"
}
# The best rate of any product, for the floors of a profile.
best_rate() {
    rate=$(awk '$1 == "most" { print 1000 * $2 }' "$out/matmul.log" 2> /dev/null)
    echo "${rate:-0}"
}
do_steps() {
    rate=$(best_rate)
    for at in $lengths; do
        large="--model large --vocab 30522 --seq ${at%:*} --batch ${at#*:}"
        # Memory is ample: nothing is computed again in the backward pass to save it.
        # shellcheck disable=SC2086 # a list of options
        {
            step "step-${at%:*}" step $large --steps 20 --no-fuse invert
            step "invert-${at%:*}" step $large --steps 10 --no-fuse ""
            step "launches-${at%:*}" step $large --steps 10 --no-fuse invert --no-graphs
            step "profile-${at%:*}" step $large --steps 5 --no-fuse invert --profile \
                --roof-gflops "$rate"
        }
    done
    [ "$quick" ] && return
    # Where kernels are short, a graph is worth the most.
    step small-graph step --model mini --vocab 8192 --batch 16 --seq 128 --steps 200
    step small-launches step --model mini --vocab 8192 --batch 16 --seq 128 --steps 200 --no-graphs
    step gpt gpt --model 124m --batch 32 --seq 1024 --steps 10 --no-fuse invert
    step gpt-profile gpt --model 124m --batch 32 --seq 1024 --steps 4 --no-fuse invert --profile \
        --roof-gflops "$rate"
}

# Adapters of rank 16 on all products, compared with training of all parameters.
do_llama() {
    llama='--llama --model 160m --batch 32 --seq 1024 --no-fuse invert'
    # shellcheck disable=SC2086 # a list of options
    {
        step llama gpt $llama --steps 10
        step llama-lora gpt $llama --lora 16 --steps 10
        step llama-qlora gpt $llama --lora 16 --weights int4 --steps 10
        [ "$quick" ] && return
        step llama-profile gpt $llama --steps 4 --profile --roof-gflops "$(best_rate)"
        step llama-lora-profile gpt $llama --lora 16 --steps 4 --profile --roof-gflops "$(best_rate)"
    }
}

# Prompts of 1024 tokens; then the texts go on together, a token each at a time.
do_generate() {
    for weights in float int8 int4; do
        for streams in $([ "$quick" ] && echo 1 || echo 1 32); do
            run "generate-$weights-$streams" 45 $programs/generate --device cuda --precision bf16 \
                --model 160m --prompt 1024 --tokens 64 --streams $streams --weights $weights \
                --threads 8 --tuning "$out/tuning" --json
        done
    done
}

do_ops() { run ops 90 $programs/ops --device cuda --threads "$(getconf _NPROCESSORS_ONLN)" --json; }

# imports MODULE...: python has them. The first time this takes seconds.
imports() { timeout -k 5 60 "$python" -c "import $(echo "$*" | tr ' ' ,)" > /dev/null 2>&1; }

# torch MODE SECONDS: BERT-large as in the table, GPT-2, the Llama.
torch() {
    if [ "$(left)" -lt 30 ]; then
        say "torch-$1: left out, for lack of time"
        return
    fi
    if ! imports torch transformers; then
        say 'no PyTorch with transformers here: nothing to compare with'
        return
    fi
    for at in $lengths; do
        # It takes 92 GiB for 512 tokens there, minutes after it has begun.
        if [ "$1-${at%:*}" = compile-512 ] && [ "$memory" -lt 98304 ]; then
            say "torch-$1-512: left out, for lack of memory"
            continue
        fi
        run "torch-$1-${at%:*}" "$2" "$python" bench/peers/torch_bert.py --device cuda --model large \
            --dtype bf16 --seq "${at%:*}" --batch "${at#*:}" --steps 10 --mode "$1"
    done
    [ "$quick" ] && return
    run "torch-gpt-$1" "$2" "$python" bench/peers/torch_gpt.py --mode "$1"
    run "torch-llama-$1" "$2" "$python" bench/peers/torch_gpt.py --mode "$1" --llama
    [ "$(left)" -gt 30 ] && imports peft || return
    run "torch-llama-lora-$1" "$2" "$python" bench/peers/torch_gpt.py --mode "$1" --llama --lora 16
}
do_eager() { torch eager 60; }
do_compile() { torch compile 150; }

# losses WHERE OPTIONS...: of twenty steps of BERT-tiny in f32.
losses() {
    where=$1
    shift
    run "losses-$where" 60 $programs/step --model tiny --vocab 1000 --batch 4 --seq 32 --steps 17 \
        --losses "$out/$where.losses" --json "$@"
}
do_losses() {
    losses cpu --device cpu
    losses cuda --device cuda
    losses again --device cuda
}

# gpt_config NAME LAYERS WIDTH HEADS TOKENS VOCAB
gpt_config() {
    printf '{"n_layer": %d, "n_embd": %d, "n_head": %d, "n_positions": %d, "vocab_size": %d}\n' \
        "$2" "$3" "$4" "$5" "$6" > "$out/$1.config.json"
}
# offload NAME SECONDS CONFIG BATCH TOKENS WAY: steps of a GPT; WAY is as in --offload.
offload() {
    where=
    case $6 in *=disk*) where="--offload-dir $OFFLOAD_DIR" ;; esac
    # shellcheck disable=SC2086
    run "offload-$1" "$2" $programs/gpt --device cuda --precision bf16 --json --steps 3 --clip 0 \
        --recompute layers --prefetch 1000000000 --threads "$(getconf _NPROCESSORS_ONLN)" \
        --tuning "$out/tuning" --model "$out/$3.config.json" --batch "$4" --seq "$5" --offload "$6" \
        $where
}
# The largest GPTs, by their plans, within nine tenths of the memory that is free.
do_largest() {
    device=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -n 1)
    host=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
    disk=$([ "${OFFLOAD_DIR:-}" ] && df -Pk "$OFFLOAD_DIR" | awk 'NR == 2 { print $4 }')
    run largest 60 $programs/zf-plan --fit --seq 1024 --device $((device * 9 / 10))M \
        --host $((host * 9 / 10))K ${disk:+--disk $((disk * 9 / 10))K} || return
    for way in optimizer=host optimizer=host,parameters=host \
        ${disk:+optimizer=disk,parameters=disk}; do
        # shellcheck disable=SC2046 # words of a row: layers and width
        set -- $(awk -v way="$way" '$1 == "GPT" && $4 == way && $5 != "none:" { print $6, $7 }' \
            "$out/largest.log")
        [ $# = 2 ] || continue
        gpt_config "largest-$way" "$1" "$2" $(($2 / 128)) 1024 50257
        offload "largest-$way" 150 "largest-$way" 1 1024 "$way"
    done
}
do_offload() {
    IFS=: read -r layers width heads batch tokens vocab <<END
${OFFLOAD:-$([ "$quick" ] && echo 12:768:12:8:512 || echo 12:2048:16:16:1024)}
END
    gpt_config offload "$layers" "$width" "$heads" "$tokens" "${vocab:-50257}"
    offload plain 60 offload "$batch" "$tokens" off
    offload optimizer 60 offload "$batch" "$tokens" optimizer=host
    offload both 60 offload "$batch" "$tokens" optimizer=host,parameters=host
    offload all 60 offload "$batch" "$tokens" \
        optimizer=host,parameters=host,gradients=host,activations=host
    [ ! "${OFFLOAD_DIR:-}" ] || offload disk 90 offload "$batch" "$tokens" \
        optimizer=disk,parameters=disk
}

# sanitize NAME TOOL TEST...
sanitize() {
    label=$1
    tool=$2
    shift 2
    run "sanitizer-$label" 110 "$sanitizer" --tool "$tool" --error-exitcode 9 $programs/tests "$@"
}
do_sanitizer() {
    sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
    [ -x "$sanitizer" ] || { say 'no compute-sanitizer here'; return; }
    # Attention has the only asynchronous copies and tensor-core instructions of the library's own.
    # racecheck takes long: it has few cases at a time.
    (sanitize memcheck memcheck cuda_attention cuda_residual_norm cuda_masked_softmax \
        cuda_cross_entropy cuda_adamw) &
    (sanitize memcheck-new memcheck quantize rope swiglu cuda_sign cuda_lion cuda_adam_ \
        cuda_cached_attention cuda_delay cuda_assign) &
    (sanitize memcheck-offload memcheck cuda_offload_keeps_the_bits cuda_steps_as_graphs) &
    (sanitize racecheck racecheck cuda_masked_softmax cuda_cross_entropy cuda_cached_attention) &
    (sanitize racecheck-attention racecheck cuda_attention_with_little_shared_memory) &
    wait
}

[ "$only" ] || only=$parts
for part in $only; do
    do_"$part"
    table
done
say "written: $result"
cat "$result"
! ls "$out"/*.failed > /dev/null 2>&1
