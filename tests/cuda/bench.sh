#!/bin/sh
# How bench/cuda.sh runs its parts and what it keeps: sh tests/cuda/bench.sh
#
# The programs that it runs, Python, nvidia-smi and compute-sanitizer are stubs, and the GPU an H100
# with 80 GB. The table is a list of what was measured. Works in a copy of bench/.
set -u
export LC_ALL=C

. tests/cli/cli.sh

tree="$work/tree"
mkdir -p "$tree/build/gpu" "$work/bin"
cp -R bench "$tree"

# Prints JSON amid other output, and what a part says at its end. FAILS: the program that fails.
cat > "$work/bin/stub" << 'END'
#!/bin/sh
name=${0##*/}
case $name in
nvidia-smi) echo 'NVIDIA H100 80GB HBM3, 81559 MiB, 580.1, 9.0'; exit ;;
python3)
    case $1 in
    -c) exit ;;
    */cuda_table.py)
        echo >> "$TABLES"
        (cd "$2" && ls | grep -E '\.(json|failed)$')
        exit ;;
    esac
    name=${1##*/} ;;
esac
echo "$name $*" >> "$CALLS"
[ "$name" != ops ] || grep -q '^step-128.json' "$RESULT" || exit 5 # not written after `steps`
while [ $# -gt 1 ]; do
    [ "$1" != --losses ] || echo 1.5 > "$2"
    shift
done
echo 'starts {here}'
printf 'compiling: 99%%\rdone {"tokens_per_s": 7, "rows": {"a": 1}}, with a remark\n'
echo "{'not': 'JSON'}"
case $name in
matmul) echo 'most 700.5 TFLOP/s' ;;
tests) echo '3 passed, 1 failed, 2 skipped' ;;
compute-sanitizer) echo 'ERROR SUMMARY: 0 errors' ;;
esac
[ "$name" != "${FAILS:-}" ] || exit 3
END
chmod +x "$work/bin/stub"
for name in nvidia-smi python3 compute-sanitizer; do ln -s stub "$work/bin/$name"; done
for name in step gpt generate ops tests matmul zf-plan; do cp "$work/bin/stub" "$tree/build/gpu/$name"; done

# runs STATUS OPTIONS...: the table is $RESULT; output in out, programs called in calls.
runs() {
    wanted=$1
    shift
    rm -f "$RESULT" "$CALLS" "$TABLES"
    ends "$wanted" env PATH="$work/bin:$PATH" OUT="$OUT" PYTHON=python3 sh "$tree/bench/cuda.sh" run "$@"
}
export RESULT="$work/results/table.md" CALLS="$work/calls" TABLES="$work/tables" OUT="$work/results"
has() { grep -q -- "$1" "$work/out"; }
measured() { grep -qx "$1.json" "$RESULT"; }
without() { ! "$@"; }
in_order() { # the first calls of these, each after the one before
    last=0
    for call; do
        at=$(grep -n -m 1 -- "^$call" "$CALLS" | cut -d : -f 1)
        [ "${at:-0}" -gt "$last" ] || return 1
        last=$at
    done
}

whole() { runs 0 table.md && in_order matmul step torch_bert.py tests generate ops compute-sanitizer; }
check 'all parts, products and steps first' whole
check 'JSON anywhere in the output' grep -qx '{"tokens_per_s": 7, "rows": {"a": 1}}' \
    "$tree/build/cuda/bench-out/torch-eager-128.json"
check 'PyTorch is compiled last' eval '[ "$(grep -c "mode compile" "$CALLS")" -gt 0 ] &&
    tail -n 1 "$CALLS" | grep -q "mode compile"'
check 'steps are profiled next to the best rate' grep -q 'profile.*--roof-gflops 700500' "$CALLS"
check 'a table after each part' eval '[ "$(wc -l < "$TABLES")" -ge 11 ]'
check 'the logs' eval 'tar -tzf "$OUT/logs.tar.gz" | grep -q "step-128.log"'
check 'what 80 GB cannot hold is left out' has 'torch-compile-512: left out, for lack of memory'
check 'the rest is compiled there' measured torch-compile-128
check 'tests of all processes are added' has '^24 passed, 8 failed, 16 skipped$'

chosen() { runs 0 only=matmul,losses table.md && without measured step-128 && measured losses-cuda; }
check 'chosen parts' chosen
unknown() {
    runs 2 only=matmul,tset table.md && grep -q "there is no part 'tset'; there are: matmul" "$work/err"
}
check 'a part that is not there' unknown
late() { SECONDS_LEFT=0 runs 0 table.md && without measured matmul && has 'step-128: left out, for lack'; }
check 'no time is left' late
failing() {
    FAILS=gpt runs 1 table.md && grep -qx 'gpt.failed' "$RESULT" && measured step-512 &&
        has 'gpt: ended with status 3'
}
check 'a program that fails is named, and the others run' failing
check 'quick' runs 0 quick table.md
check 'quick leaves out most' eval 'without measured step-512 && without measured gpt'
rm "$work/bin/nvidia-smi"
check 'without a GPU' eval '[ -e /dev/nvidia0 ] || { runs 1 table.md &&
    grep -q "nvidia-smi sees no GPU here" "$work/err"; }'

total
