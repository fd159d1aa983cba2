#!/bin/sh
# Runs the tests (make test): sh tests/run.sh [GROUP]
#
# Without a group: has make build and run every group, on every core, and adds up; the last line is
# "N passed, N failed", the status 1 when anything failed. A group is what `make test-GROUP` runs
# once its programs are built: it prints one line, and the output of what failed. All that it said
# is in build/test/GROUP.log.
#
# Lists are split into words on purpose.
# shellcheck disable=SC2086
set -u
export LC_ALL=C

logs=build/test
mkdir -p "$logs"

# In an order that keeps two cores busy to the end: what takes longest goes first.
groups='tsan oom-asan emulated-asan cuda-check asan emulated unit dist clang blas mpi bert gpt consumers fuzz examples opt
        plan neon'

run_all() {
    rm -f "$logs"/*.counts
    targets=
    for group in $groups; do targets="$targets test-$group"; done
    jobs=$(getconf _NPROCESSORS_ONLN)
    echo "building and running $(echo "$groups" | wc -w) groups of tests on $jobs cores; logs: $logs/"
    case ${MAKEFLAGS:-} in
    *jobserver*) jobs= ;; # make -j was asked for, and says how many
    *) jobs=-j$jobs ;;
    esac
    QUIET=yes ALL_GROUPS=yes ${MAKE:-make} --no-print-directory -s -k -O $jobs $targets 2>&1 |
        grep --line-buffered -Ev '^make(\[[0-9]+\])?: (\*\*\* \[.*\] Error|Target .* not remade)'
    passed=0
    failed=0
    for group in $groups; do
        p=0
        f=1
        if [ -s "$logs/$group.counts" ]; then read -r p f < "$logs/$group.counts"
        else echo "$group: FAILED, it could not be built or run"; fi
        passed=$((passed + p))
        failed=$((failed + f))
    done
    echo "$passed passed, $failed failed" | tee "$logs/total"
    [ $failed = 0 ]
}

# ------------------------------------------------------------------------- what groups are made of

# suite COMMAND...: a test program, which prints "N passed, N failed". One that crashes, hangs, or
# has a sanitizer complain at its end counts as one more failure.
suite() {
    timeout 1200 "$@" > "$work/said" 2>&1
    status=$?
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/said" | tail -n 1)
    p=${counts% *}
    f=${counts#* }
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-0}))
    if [ -z "$counts" ] || { [ $status != 0 ] && [ "$f" = 0 ]; }; then
        echo "FAILED $* (exit status $status)" >> "$work/said"
        failed=$((failed + 1))
        f=1
    fi
    cat "$work/said" >> "$log"
    [ "$f" = 0 ] || grep -v '^ok ' "$work/said" >> "$work/failures"
}

# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    echo "--- $name" >> "$log"
    "$@" > "$work/said" 2>&1 < /dev/null
    status=$?
    cat "$work/said" >> "$log"
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
    output=$("$@" 2>&1)
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

run_unit() { suite build/tests; }
run_oom() { suite build/tests --oom; }
# The single header is, token for token, the header and the files that it includes. So what includes
# it for its declarations is compiled once for both, and it is the one that runs out of memory.
run_dist() {
    check 'declarations of the single header' same_tokens ''
    check 'implementation of the single header' same_tokens -DZEROFLOW_IMPLEMENTATION
    suite build/dist/tests --oom
}
same_tokens() {
    for header in zeroflow.h dist/zeroflow.h; do
        ${CC:-gcc} -std=c11 -E -P $1 -x c $header | grep -v '^#pragma GCC diagnostic' |
            tr -s '[:space:]' '\n' > "$work/$(echo $header | tr / -)"
    done
    [ "$(wc -l < "$work/zeroflow.h")" -gt 1000 ] && cmp "$work/zeroflow.h" "$work/dist-zeroflow.h"
}
run_clang() { suite build/clang/tests; }
run_asan() { suite build/asan/tests; }
run_oom_asan() { suite build/asan/tests --oom; }
run_ubsan() { suite build/ubsan/tests; }

# Before version 14, gcc's ThreadSanitizer cannot live with all the randomness of newer kernels.
# Where there are threads: of the tests of operators and of fusion, which take long under it, those
# that compare numbers of threads; none of those that only plan.
threaded='thread tests/account tests/batch tests/comm tests/corpus tests/faults inside/threads
          inside/fuse_update tests/nn tests/program tests/shards tests/bert tests/gpt tests/random
          -bert_plan'

run_tsan() {
    fixed="setarch $(uname -m) -R"
    if $fixed true 2> /dev/null; then suite $fixed build/tsan/tests $threaded
    else suite build/tsan/tests $threaded; fi
}

# With a BLAS a plan has other scratch: only what is about numbers can be the same.
run_blas() {
    if [ -x build/blas/tests ]; then
        suite build/blas/tests inside/matmul ops.c nn.c optim.c bert.c gpt.c
    else
        note='skipped: there is no cblas.h (libopenblas-dev)'
    fi
}

# Open MPI runs as root only when told so, has to be told that there are more ranks than cores, and
# ends all ranks when one is killed unless asked to recover. That goes by shared memory; TCP is how
# ranks on several hosts talk; there, once a rank was killed, Open MPI 4.1 itself may hang.
run_mpi() {
    if ! [ -x build/mpi/comm ] || ! mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
        note='skipped: there is no Open MPI (libopenmpi-dev openmpi-bin)'
        return
    fi
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    for world in 1 2 3 4; do suite mpirun -np $world build/mpi/comm < /dev/null; done
    for world in 2 3 4; do
        suite mpirun -np $world build/mpi/faults < /dev/null
        suite mpirun --enable-recovery -np $world build/mpi/comm killed < /dev/null
        suite mpirun --enable-recovery -np $world build/mpi/faults killed $((world - 1)) < /dev/null
    done
    export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    suite mpirun -np 3 build/mpi/comm < /dev/null
    suite mpirun -np 3 build/mpi/faults < /dev/null
    check 'compiles with clang' env OMPI_CC=clang mpicc -std=c11 -Wall -Wextra -pedantic -Wshadow \
        -Werror -O2 -c zeroflow_mpi.c -o "$work/mpi.o"
}

run_neon() {
    cross=aarch64-linux-gnu-gcc
    if command -v $cross > /dev/null; then
        check 'compiles for Arm' $cross -std=c11 -Wall -Wextra -pedantic -Wshadow -Werror -O2 \
            -DZEROFLOW_IMPLEMENTATION -x c -c dist/zeroflow.h -o "$work/neon.o"
    else
        note="skipped: there is no $cross (gcc-aarch64-linux-gnu)"
    fi
}

# CUDA's kernels on the CPU (tests/emulation/). Of the tests, those of private functions are there
# only because they carry the library.
run_emulated() {
    run_emulation build/emulated/tests
    if [ -x build/emulated/bert ]; then suite sh tests/cuda-cli.sh build/emulated/bert; fi
}
run_emulated_asan() { run_emulation build/emulated/asan/tests; }
run_emulation() {
    if [ -x "$1" ]; then suite "$1" tests/cuda tests/emulation
    else note='skipped: there is no cuda_runtime.h (CUDA Toolkit 12 or newer)'; fi
}

# Compiled and linked by make; run here. A device is asked for that no machine has, and then the
# first one.
run_cuda_check() {
    device=build/cuda-check/device
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    if ! [ -x $device ]; then
        note='skipped: there is no nvcc (CUDA Toolkit 12 or newer)'
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
            check "$target" timeout 600 "build/fuzz/$target" -runs=5000 -seed=1 \
            -artifact_prefix="$logs/fuzz-$target-" "$work/$target" $seeds
    done
}

run_examples() {
    check 'hello finds the line' gives 0 '^y = 2.000 x \+ 1.000, ' build/hello
    check 'hello prints its graph' gives 0 '^ +sgd %3, %[0-9]+, %[0-9]+$' build/hello
    check 'mlp learns the spirals' gives 0 '^(9[5-9]|100)\.[0-9]% of 500 unseen points' build/mlp
}

run_bert() {
    suite sh tests/bert-cli.sh build/bert
    check 'learns a small language' timeout 300 sh tests/learns.sh build/bert
}

run_gpt() { suite sh tests/gpt-cli.sh build/gpt; }

run_opt() {
    printf '%%1 = param "w" : f32[4]\n%%2 = mul %%1, %%1 : f32[4]\n%%3 = sum %%2 : f32[]\n' \
        > "$work/graph.zf"
    check 'runs passes' gives 0 '^ +gradient %1, %[0-9]+' \
        build/zf-opt 'autograd %3; simplify' "$work/graph.zf"
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
}

run_plan() { suite sh tests/zfplan.sh build/zf-plan; }

run_consumers() { . tests/consumers/run.sh; }

# ------------------------------------------------------------------------------------ one of them

run_group() {
    log=$logs/$1.log
    passed=0
    failed=0
    note=
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    started=$(date +%s)
    : > "$log"
    "run_$(echo "$1" | tr - _)"
    if [ $failed != 0 ]; then
        tail -n 100 "$log" | sed 's/^/    /'
    fi
    printf '%-10s %4d passed, %d failed  %4d s  %s\n' "$1" $passed $failed \
        $(($(date +%s) - started)) "$note"
    echo "$passed $failed" > "$logs/$1.counts"
    [ $failed = 0 ] || [ -n "${ALL_GROUPS:-}" ]
}

if [ $# = 0 ]; then run_all; else run_group "$1"; fi
