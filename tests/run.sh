#!/bin/sh
# Runs the tests (make test, make test-all): sh tests/run.sh test|all|GROUP
#
# `test` has make build and run the groups of make test, `all` these and those that make test-all
# adds, on every core. The last line is "N passed, N failed", with ", N skipped" after it where the
# machine lacks something; the status is 1 when anything failed. A group is what `make test-GROUP`
# runs once its programs are built: it prints one line, and the output of what failed. All that it
# said, with the processor's time of each body, command and script, is in build/test/GROUP.log.
#
# A test is counted once. What runs the same tests in another build, or on another number of ranks,
# counts its passes apart, as runs again; a failure there is a failure.
#
# Lists are split into words on purpose.
# shellcheck disable=SC2046,SC2086
set -u
export LC_ALL=C

logs=build/test
mkdir -p "$logs"

# In an order that keeps two cores busy to the end: what takes longest, to build and to run, goes first.
groups_of_test='unit more-unit consumers gpt bert plan mpi opt examples'
groups_of_rest='cuda-check emulated-asan asan more-asan tsan clang neon more-emulated docs emulated install fuzz nccl
                blas more-mpi more-consumers dist'

# made TARGET...: by make, on every core.
made() {
    case ${MAKEFLAGS:-} in
    *jobserver*) jobs= ;; # make -j was asked for, and says how many
    *) jobs=-j$((cores + 1)) ;; # ranks and threads often wait for each other
    esac
    QUIET=yes ALL_GROUPS=yes ${MAKE:-make} --no-print-directory -s -k -O $jobs "$@" 2>&1
}

# run_all GROUP...: builds and runs these, and prints the closing lines; the status. All is built before
# the first group runs, since make runs each group whose programs it happens to find built, and would
# leave the longest to the end; for the same reason the single files, which take seconds, are made
# before what is compiled from them. What cannot be built says so when its group has its turn.
run_all() {
    cores=$(getconf _NPROCESSORS_ONLN)
    echo "building and running $# groups of tests on $cores cores; logs: $logs/"
    rm -f "$logs"/*.counts
    made dist > "$logs/build.log"
    made $(printf 'ready-%s ' "$@") >> "$logs/build.log"
    made $(printf 'test-%s ' "$@") |
        grep --line-buffered -Ev '^make(\[[0-9]+\])?: (\*\*\* \[.*\] Error|Target .* not remade)'
    passed=0
    failed=0
    skipped=0
    repeated=0
    for group; do
        [ -s "$logs/$group.counts" ] || {
            echo "$group: FAILED, it could not be built or run"
            echo '0 1 0 0' > "$logs/$group.counts"
        }
        read -r p f s r < "$logs/$group.counts"
        passed=$((passed + p))
        failed=$((failed + f))
        skipped=$((skipped + s))
        repeated=$((repeated + r))
    done
    [ $repeated = 0 ] || echo "in other builds and on other numbers of ranks: $repeated runs passed"
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    [ $failed = 0 ]
}

# ------------------------------------------------------------------------- what groups are made of

# A command that hangs is ended; some take SIGTERM for a wish to end after the current step.
limit='timeout -k 10'

# What the shell has waited for so far, in seconds of user and system time: $used.
uses() {
    times > "$work/times" # in a pipe, it would be that of another shell
    used=$(awk -F '[ms ]+' 'NR == 2 { print 60 * ($1 + $3) + $2 + $4 }' "$work/times")
}

# timed NAME COMMAND...: what it says is in $work/said and in the log, there with its time; $status.
timed() {
    name=$1
    shift
    uses
    since=$used
    "$@" > "$work/said" 2>&1
    status=$?
    uses
    cat "$work/said" >> "$log"
    awk "BEGIN { printf \"%7.2f s  \", $used - $since }" >> "$log"
    echo "$name" >> "$log"
}

# suite COMMAND...: a test program, which prints "N passed, N failed" and perhaps ", N skipped". One
# that crashes, hangs, runs no test, or has a sanitizer complain at its end counts as one more
# failure. suite_again: its tests were counted before.
suite() {
    timed "$*" $limit 1200 "$@"
    counts=$(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 0\4/p' \
        "$work/said" | tail -n 1)
    p=0
    f=0
    s=0
    [ -z "$counts" ] || read -r p f s << END
$counts
END
    s=$((${s#0} + 0))
    if [ $((p + f + s)) = 0 ] || { [ $status != 0 ] && [ "$f" = 0 ]; }; then
        echo "FAILED $* (exit status $status, $p tests passed)" | tee -a "$work/said" >> "$log"
        f=$((f + 1))
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    [ "$f" = 0 ] || grep -Ev '^ok |^ *[0-9.]+ s  ' "$work/said" >> "$work/failures"
}
suite_again() {
    were=$passed
    left=$skipped
    suite "$@"
    repeated=$((repeated + passed - were))
    passed=$were
    skipped=$left
}

# skip WHAT WHY: for want of something on this machine.
skip() {
    skipped=$((skipped + 1))
    note="${note:+$note; }skipped: $1, $2"
    echo "skipped: $1, $2" >> "$log"
}

# check NAME COMMAND...: the command succeeds.
check() {
    timed "$@" < /dev/null
    if [ $status = 0 ]; then
        passed=$((passed + 1))
    else
        echo "FAILED $name (exit status $status)" | tee -a "$work/said" >> "$log"
        cat "$work/said" >> "$work/failures"
        failed=$((failed + 1))
    fi
}

# gives STATUS PATTERN COMMAND...: for check: the command ends with that status, and a line of what
# it prints matches the pattern (an extended regular expression).
gives() {
    wanted=$1
    pattern=$2
    shift 2
    case $(command -v "$1") in
    */*) output=$($limit 600 "$@" 2>&1) ;;
    *) output=$("$@" 2>&1) ;; # a function
    esac
    status=$?
    printf '%s\n' "$output"
    [ $status = "$wanted" ] || {
        echo "'$*' ended with status $status, not $wanted"
        return 1
    }
    printf '%s\n' "$output" | grep -Eq -e "$pattern" || {
        echo "'$*' printed no line like '$pattern'"
        return 1
    }
}

# ------------------------------------------------------------------------------------- the groups

# Two halves, for two cores.
run_more_unit() { suite build/tests --times --part=2/2; }
run_unit() {
    suite build/tests --times --part=1/2
    check 'a word that selects no test' gives 2 'near are softmax,' build/tests sofmax
    check 'objects depend on what was found' \
        gives 0 'zeroflow_llm\.o' env MAKEFLAGS= make -n PCRE2=-lother build/libparts.a
    check 'words that leave no test' gives 2 'no test is selected' build/tests json.c -json
    for name in operators_agree_with_f64 tests/passes/fuse_causal.zf; do
        check "tests of an operator, $name" gives 0 "^$name " build/tests --list softmax
    done
}
# Each test also runs with its allocations refused in turn, or with a sample of them.
# ALL=1: with all of them.
in_refusals() {
    suite_again "$@" --times --oom${ALL:+=all}
    note=$(grep 'refused in turn' "$log")
}
run_oom() { in_refusals build/tests; }
# The single header is, token for token, the header and the files that it includes, so the tests of
# these are its own; those of consumers compile it.
run_dist() {
    check 'declarations of the single header' same_tokens ''
    check 'implementation of the single header' same_tokens -DZEROFLOW_IMPLEMENTATION
}
same_tokens() {
    for header in zeroflow.h dist/zeroflow.h; do
        ${CC:-gcc} -std=c11 -E -P $1 -x c $header | grep -v '^#pragma GCC diagnostic' |
            tr -s '[:space:]' '\n' > "$work/$(echo $header | tr / -)"
    done
    [ "$(wc -l < "$work/zeroflow.h")" -gt 1000 ] && cmp "$work/zeroflow.h" "$work/dist-zeroflow.h"
}
# What only plans gives the same from any compiler, and large models go the way of small ones. Some tests
# measure how fast large products are, which takes long under a sanitizer.
large='-bert_plan_small -bert_plan_medium -bert_plan_base'
measured='-cost_alone -cost_of_ranks'
# Wrong arguments are for AddressSanitizer. Layouts are drawn, of which there are more here.
run_clang() {
    export DRAWN_RUNS=40
    suite_again build/clang/tests --times $large $measured -arguments_of_every_function
}
# Two halves, for two cores.
run_asan() { in_refusals build/asan/tests --part=1/2 $large $measured; }
run_more_asan() { in_refusals build/asan/tests --part=2/2 $large $measured; }
run_ubsan() { suite_again build/ubsan/tests --times $large; }

# Before version 14, gcc's ThreadSanitizer cannot live with all the randomness of newer kernels.
# Where there are threads: of the tests of operators and of fusion, which take long under it, those
# that compare numbers of threads; none of those that only plan, nor the one that knows how much
# scratch the kernels that are left out there have. What threads do for one optimizer, dtype of
# parameters, order of sums or value of a fault they do for another; damaged files and refused
# memory are met by one thread.
threaded='thread programs/account text/batch ranks/comm text/corpus ranks/faults inside/threads
          inside/fuse_update training/nn programs/program files/shards models/bert models/gpt
          rewrites/random -bert_plan -program_memory_limit -shards_go_on_lamb
          -shards_take_little_memory -bert_twenty_lamb -bert_reuse_of_memory -comm_sums_are_in_order -faults_nan_lockstep
          -faults_other_values -faults_another_seed -shards_of_master_weights -shards_of_quantized
          -shards_any_damage -shards_survive_a_refusing_allocator'

run_tsan() {
    fixed="setarch $(uname -m) -R"
    if $fixed true 2> /dev/null; then suite_again $fixed build/tsan/tests --times $threaded
    else suite_again build/tsan/tests --times $threaded; fi
}

# With a BLAS a plan has other scratch: only what is about numbers can be the same.
run_blas() {
    if [ -x build/blas/tests ]; then
        suite_again build/blas/tests --times inside/matmul ops.c nn.c optim.c bert.c gpt.c -bert_plan
    else
        skip BLAS 'there is no cblas.h (libopenblas-dev)'
    fi
}

# Open MPI runs as root only when asked to, has to be informed that there are more ranks than cores, and
# ends all ranks when one is killed unless asked to recover. That goes by shared memory; TCP is how
# ranks on several hosts talk; there, once a rank was killed, Open MPI 4.1 itself may hang.
has_mpi() {
    [ -x build/mpi/comm ] && mpirun --version 2> /dev/null | grep -q 'Open MPI' || {
        skip MPI 'there is no Open MPI (libopenmpi-dev openmpi-bin)'
        return 1
    }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
}
run_mpi() {
    has_mpi || return
    suite mpirun -np 3 build/mpi/comm < /dev/null
    suite mpirun -np 1 build/mpi/comm thread < /dev/null
    suite mpirun --enable-recovery -np 3 build/mpi/comm killed < /dev/null
    suite mpirun -np 2 build/mpi/faults < /dev/null
    suite mpirun -np 4 build/mpi/faults meshes < /dev/null
    suite mpirun --enable-recovery -np 2 build/mpi/faults killed 1 < /dev/null
}
run_more_mpi() {
    has_mpi || return
    for world in 1 2 4; do suite_again mpirun -np $world build/mpi/comm < /dev/null; done
    for world in 3 4; do
        suite_again mpirun -np $world build/mpi/faults < /dev/null
        suite_again mpirun --enable-recovery -np $world build/mpi/faults killed $((world - 1)) \
            < /dev/null
    done
    suite_again mpirun --enable-recovery -np 4 build/mpi/faults killed 3 2 < /dev/null
    for way in '0 5 0' '1 0 0' '2 3 1' '3 7 4'; do # shellcheck disable=SC2086 # words
        suite mpirun --enable-recovery -np 4 build/mpi/stages $way < /dev/null
    done
    suite sh tests/mpi/stages.sh
    for world in 2 4; do
        suite_again mpirun --enable-recovery -np $world build/mpi/comm killed < /dev/null
    done
    export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    suite_again mpirun -np 3 build/mpi/comm < /dev/null
    suite_again mpirun -np 3 build/mpi/faults < /dev/null
    check 'compiles with clang' env OMPI_CC=clang mpicc -std=c11 -Wall -Wextra -pedantic -Wshadow \
        -Werror -O2 -c zeroflow_mpi.c -o "$work/mpi.o"
}

# Kernels for Arm, run by an emulator: those tests that take no minutes in it.
run_neon() {
    if ! [ -x build/neon/tests ]; then
        skip NEON 'there is no aarch64-linux-gnu-gcc (gcc-aarch64-linux-gnu libc6-dev-arm64-cross)'
    elif ! command -v qemu-aarch64 > /dev/null; then
        skip NEON 'there is no qemu-aarch64 (qemu-user)'
    else
        suite_again qemu-aarch64 build/neon/tests --times inside/vmath inside/random \
            inside/threads crc32c matmul_random_shapes matmul_not_finite half.c rows.c attention_has_one_result \
            operators_agree_with_f64
    fi
}

# CUDA's kernels on the CPU (tests/emulation/), in two halves. Of the tests, those of private
# functions are there only because they carry the library. NCCL's ranks are a group of their own.
run_emulated() {
    has_emulation build/emulated/tests || return
    suite build/emulated/tests --times --part=1/2 tests/cuda tests/emulation -nccl.c
    suite sh tests/cli/cuda.sh build/emulated/bert
    suite sh tests/cuda/bench.sh
}
run_nccl() {
    has_emulation build/emulated/tests || return
    if build/emulated/tests --list nccl.c | grep -q .; then suite build/emulated/tests --times nccl.c
    else skip NCCL 'there is no nccl.h (libnccl-dev)'; fi
}
run_more_emulated() {
    has_emulation build/emulated/tests &&
        suite build/emulated/tests --times --part=2/2 tests/cuda tests/emulation -nccl.c
}
# Without those that take longest there.
run_emulated_asan() {
    has_emulation build/emulated/asan/tests &&
        suite_again build/emulated/asan/tests --times tests/cuda tests/emulation \
            -nccl_stages_have_the_same_bits_in_bf16 -nccl_quantized -nccl_onebit -nccl_rank_stops \
            -nccl_rank_has_a_bad_label -nccl_fast -nccl_groups -nccl_memory -nccl_large -nccl_faults_of_groups \
            -cuda_saved -cuda_offload_keeps_the_bits -cuda_left_out_layers -cuda_gathered_keys \
            -cuda_stages_have_the_bits
}
has_emulation() {
    [ -x "$1" ] || {
        skip 'CUDA emulated' 'there is no cuda_runtime.h (CUDA Toolkit 12 or newer)'
        return 1
    }
}

# in_registers FILE: what ptxas says of the kernels with products of warpgroups for 9.0a. They are not
# empty, no product waits for the one before (C75..), and nothing is spilled but in the forward pass
# with a bias of each query's own (Li2), where it is little.
in_registers() {
    ! grep -E 'C75[0-9]{2}|serializ' "$1" && awk '
        /Compiling entry function/ { kernel = $0 ~ /sm_90a/ && $0 ~ /_sm90I/ ? $7 : "" }
        kernel == "" { next }
        / bytes spill stores/ { spilled = $5 + $9; most = kernel ~ /Li2/ ? 200 : 0 }
        / Used [0-9]+ registers/ {
            kernels++
            if (spilled > most || $5 < 96) { print kernel ": " $5 " registers, " spilled; bad = 1 }
        }
        END { print kernels + 0 " kernels with products of warpgroups"; exit bad || kernels != 20 }' "$1"
}

# Compiled and linked by make; run here. A device is asked for that no machine has, and then the
# first one.
run_cuda_check() {
    if sh tools/hip.sh --there 2> /dev/null; then
        # Warnings and errors only: the code, which takes a minute, is that of make hip-check.
        check 'HIP compiles for gfx90a' sh tools/hip.sh gfx90a -fsyntax-only -Wall -Wextra -Werror \
            -x hip -I. zeroflow_cuda.cu
        check 'zeroflow_nccl.c compiles for HIP' sh tests/hip/run.sh rccl
        check 'texts of HIP name no CUDA' sh tests/hip/run.sh texts
    else
        skip 'HIP compiled' 'there is no clang-19 for it (sh tools/needs.sh hip)'
    fi
    device=build/cuda-check/device
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    if ! [ -x $device ]; then
        skip 'CUDA compiled' 'there is no nvcc (CUDA Toolkit 12 or newer)'
        return
    fi
    no_gpu='this machine has no NVIDIA driver; this program needs one for CUDA [0-9.]+ or newer'
    no_gpu="$no_gpu|CUDA sees no device|is the toolkit's stub|driver of this machine is for CUDA"
    check 'a device that is not there' gives 1 \
        "^device 999: zf_cuda_backend: ($no_gpu|device is 999; CUDA sees)" $device 999
    check 'the first device' gives "$([ -e /dev/nvidia0 ] && echo 0 || echo 1)" \
        "^device 0: (cuda|zf_cuda_backend: ($no_gpu))" $device 0
    nm -C $device | grep -q ' T zf_nccl_comm' && {
        check 'the one rank of a communicator' gives "$([ -e /dev/nvidia0 ] && echo 0 || echo 1)" \
            '^device 0: (cuda|zf_nccl_comm: device 0: )' $device 0 ranks
        check 'zeroflow_nccl.c compiles with clang' clang -std=c11 -Wall -Wextra -pedantic -Wshadow \
            -Werror -O2 -isystem "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include" \
            -c zeroflow_nccl.c -o "$work/nccl.o"
    }
    check 'kernels with products of warpgroups keep their values in registers' in_registers \
        build/cuda-check/zeroflow_cuda.ptxas
    stubs=$(dirname "$(ldd $device | sed -n 's/.*libcudart.* => \([^ ]*\) .*/\1/p')")/stubs
    [ -e "$stubs/libcuda.so" ] && ! [ -e /dev/nvidia0 ] && {
        ln -s "$stubs/libcuda.so" "$work/libcuda.so.1"
        check "the toolkit's stub" gives 1 "is the toolkit's stub" \
            env LD_LIBRARY_PATH="$work" $device 0
    }
}

run_fuzz() {
    for source in tests/fuzz/*.c; do
        target=$(basename "$source" .c)
        seeds=tests/fuzz/seeds/$target
        [ -d "$seeds" ] || seeds=
        mkdir "$work/$target"
            check "$target" $limit 600 "build/fuzz/$target" -runs=3000 -seed=1 \
            -artifact_prefix="$logs/fuzz-$target-" "$work/$target" $seeds
    done
}

learns_from_rewards() {
    for letter in a b c d e f g h; do echo "{\"prompt\": \"$letter\"}"; done > "$work/prompts"
    gives 0 '^iteration 200  reward (0\.9[0-9]|1\.00)  a: ' build/rlhf "$work/prompts"
}

run_examples() {
    check 'hello finds the line' gives 0 '^y = 2.000 x \+ 1.000, ' build/hello
    check 'hello prints its graph' gives 0 '^ +sgd %3, %[0-9]+, %[0-9]+$' build/hello
    check 'after each pass' gives 0 '^# after fuse: the same$' build/hello
    check 'own_op learns a sine' gives 0 ' of step 400 0\.00[0-9]*$' build/own_op
    check 'own_op prints its operators' gives 0 '^%[0-9]+ = snake_grad %[0-9]+, %19 \{a=1.5\} : ' \
        build/own_op
    for model in build/models/*; do
        [ -d "$model" ] || check "${model##*/} learns a batch by heart" \
            gives 0 ' step 100  loss 0\.' "$model" 100
    done
    check 'rlhf learns from its rewards' learns_from_rewards
    check 'mlp learns the spirals' gives 0 '^(9[5-9]|100)\.[0-9]% of 500 unseen points' build/mlp
}

run_bert() {
    suite sh tests/cli/bert.sh build/bert
    check 'learns a small language' $limit 300 sh tests/cli/learns.sh build/bert
}

run_gpt() {
    suite sh tests/cli/gpt.sh build/gpt
    suite sh tests/cli/refused.sh
    suite sh tests/cli/experts.sh build/llm
    suite sh tests/cli/score.sh build/llm
    suite sh tests/cli/grpo.sh build/llm
    suite sh tests/cli/ppo.sh build/llm
    suite sh tests/long/bits.sh build/bert drawn 25 1
    check 'llm goes on from a folder of transformers' gives 0 '^step 3/3' build/llm pretrain \
        --init tests/golden/llm/qwen3 --batch-file tests/golden/llm/batch.safetensors --steps 3
}

# What differs names the builder.
lines_are_made() {
    # shellcheck disable=SC2046
    build/lines zeroflow.h $(find api -name '*.h' ! -name lines.h) > "$work/lines.h" &&
        diff api/lines.h "$work/lines.h"
}

run_opt() {
    check 'mistakes to plant are where they were' sh tests/mutants/run.sh --list
    check 'zeroflow.h includes each file once, and goes through the folders once' \
        sh tests/house/house.sh
    check 'private names have one meaning' sh tests/house/names.sh
    check 'each rule of the verifier and of passes has a wrong input' sh tests/house/rules.sh
    check 'the macros of builders are those of make lines' lines_are_made
    check 'files and folders are floors' sh tests/house/floors.sh
    printf '%%1 = param "w" : f32[4]\n%%2 = mul %%1, %%1 : f32[4]\n%%3 = sum %%2 : f32[]\n' \
        > "$work/graph.zf"
    check 'runs passes' gives 0 '^ +gradient %1, %[0-9]+' \
        build/zf-opt 'autograd %3; simplify' "$work/graph.zf"
    # hash_of PASSES: of what they make of the graph and an input "lr".
    hash_of() { build/zf-opt "$1; hash" "$work/step.zf" | grep '^# hash'; }
    { cat "$work/graph.zf"; echo '%4 = input "lr" : f32[]'; } > "$work/step.zf"
    check 'all passes of a step' test "$(hash_of 'passes %3 clip=1 zero.stage=3 zero.world=2 prefetch.bytes=99')" = \
        "$(hash_of 'fuse; autograd %3; simplify; clip 1; adamw %4; fuse; zero stage=3 world=2;
                    prefetch bytes=99')"
    check 'and the graph after each' gives 0 '^# after adamw$' \
        build/zf-opt 'passes %3 print' "$work/step.zf"
    check 'an unknown optimizer' gives 2 "optimizer takes one of adamw, .*, not 'adam'" \
        build/zf-opt 'passes %3 optimizer=adam' "$work/step.zf"
    check '0 can be said' gives 0 'adamw .*{beta2=0.999' build/zf-opt 'autograd %3; adamw %4 beta1=0' \
        "$work/step.zf"
    check 'prints the plan' gives 0 '^peak [0-9]+' build/zf-opt 'autograd %3; memory' "$work/graph.zf"
    check 'a graph is its own text' build/zf-opt --check -o "$work/again.zf" "$work/graph.zf"
    check 'which is equal' cmp "$work/graph.zf" "$work/again.zf"
    { cat "$work/graph.zf"; echo '%4 = nonesuch %1 : f32[4]'; } > "$work/bad.zf"
    check 'a bad graph is named' gives 1 "bad.zf:4:6: 'nonesuch' is no operator" \
        build/zf-opt --check "$work/bad.zf"
    check 'an unknown pass' gives 2 nonesuch build/zf-opt nonesuch "$work/graph.zf"
    check 'a missing file' gives 1 'none.zf: No such file' build/zf-opt simplify "$work/none.zf"
    check 'an unknown option' gives 2 nonesuch build/zf-opt --nonesuch
    check 'help' gives 0 '^Usage: zf-opt' build/zf-opt --help
    # What is written is nothing that is read, and whole or not at all.
    for option in output svg dot; do
        check "--$option over the graph" gives 2 "it is the file of $work/graph.zf; name another place" \
            build/zf-opt "--$option=$work/graph.zf" simplify "$work/graph.zf"
    done
    check 'two outputs on one file' gives 2 'it is the file of --dot' \
        build/zf-opt "--svg=$work/two" "--dot=$work/two" simplify "$work/graph.zf"
    # too_large FILE COMMAND...: the file is not written by a process whose files are small.
    too_large() {
        file=$1
        shift
        echo kept > "$file"
        (ulimit -f 1 && gives 1 'File too large' "$@") && echo kept | cmp - "$file"
    }
    for i in 1 2 3 4 5 6 7 8 9; do echo "%$i = input \"x$i\" : f32[4]"; done > "$work/long.zf"
    for i in 1 2 3 4 5 6 7 8 9; do
        for j in 1 2 3 4 5 6; do echo "      output %$i \"a_long_name_of_an_output_$i$j\""; done
    done >> "$work/long.zf"
    check 'an output that is too large' too_large "$work/out" build/zf-opt -o "$work/out" --check "$work/long.zf"
    check 'a picture that is too large' too_large "$work/out" \
        build/zf-opt -q "--svg=$work/out" --check "$work/long.zf"
    full() { "$@" > /dev/full; }
    check 'a text that cannot be written' gives 1 'No space left' full build/zf-opt --check "$work/long.zf"
}

run_plan() {
    suite sh tests/cli/zfplan.sh build/zf-plan
    suite sh tests/cli/pictures.sh build
}

run_docs() {
    suite sh tests/docs/run.sh
    ! command -v doxygen > /dev/null ||
        check 'the reference is made without a warning' ${MAKE:-make} -s --no-print-directory docs
}

run_consumers() { . tests/consumers/run.sh; }
run_more_consumers() { . tests/consumers/more.sh; }
run_install() { . tests/consumers/install.sh; }

# ------------------------------------------------------------------------------------ one of them

run_group() {
    log=$logs/$1.log
    passed=0
    failed=0
    skipped=0
    repeated=0
    note=
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    started=$(date +%s)
    : > "$log"
    : > "$work/failures"
    "run_$(echo "$1" | tr - _)"
    [ $((passed + failed + skipped + repeated)) != 0 ] || {
        echo 'FAILED: no test was run' | tee -a "$work/failures" >> "$log"
        failed=1
    }
    [ $failed = 0 ] || tail -n 100 "$work/failures" | sed 's/^/    /'
    uses
    printf '%-14s %4d passed, %d failed%s  %4d s (processor %.0f s)  %s\n' "$1" \
        $((passed + repeated)) $failed "$([ $skipped = 0 ] || echo ", $skipped skipped")" \
        $(($(date +%s) - started)) "$used" "$note"
    echo "$passed $failed $skipped $repeated" > "$logs/$1.counts"
    [ $failed = 0 ] || [ -n "${ALL_GROUPS:-}" ]
}

case ${1:-} in
test) run_all $groups_of_test ;;
all) run_all $groups_of_rest $groups_of_test ;;
?*) run_group "$1" ;;
*)
    echo 'usage: sh tests/run.sh test|all|GROUP' >&2
    exit 2
    ;;
esac
