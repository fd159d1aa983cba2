#!/bin/sh
# The same bits on any ranks: sh tests/bits.sh [PROGRAM]   (make bits; some minutes)
#
# Twenty steps of BERT-tiny and BERT-mini, dropout and clipping on, with AdamW and LAMB, and of tiny
# in bf16: four parts of the global batch on one, two and four ranks, at every ZeRO stage, with five
# bucket sizes, with and without prefetch, as threads and, where the program has MPI, as processes;
# with the optimizer's states in host memory and on a disk, beside the backward pass where nothing is
# clipped; of tiny with every kind of offload, also of a batch in one part, with delayed updates, and
# in f16 with skipped steps.
# Parameters after the last step, its gradients and the log's losses are compared byte for byte with
# one rank's.
set -u
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
program=${1:-build/bert}
. "$(dirname "$0")/text.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
passed=0
failed=0
clip=0.5
grads=yes
dir="--offload-dir $work/offload"
disk="optimizer=disk $dir"
mkdir "$work/offload"

small_text 60 12 > "$work/text"
"$program" vocab --corpus "$work/text" --vocab "$work/vocab" --size 600 > /dev/null || exit 1

# run NAME COMMAND...: writes NAME.p, NAME.g and NAME.l
run() {
    name=$work/$1
    shift
    "$@" --corpus "$work/text" --vocab "$work/vocab" --seq 32 --batch 8 --steps 20 --clip $clip \
        --eval-batches 0 --quiet --dump "$name.p" ${grads:+--dump-grads "$name.g"} \
        --log "$name.csv" > "$name.out" 2>&1 || { cat "$name.out"; return 1; }
    cut -d, -f1-6 "$name.csv" > "$name.l"
}

same() {
    what="$*"
    if run other "$@" && cmp -s "$work/one.p" "$work/other.p" &&
        { [ -z "$grads" ] || cmp -s "$work/one.g" "$work/other.g"; } &&
        cmp -s "$work/one.l" "$work/other.l"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $what"
    fi
}

processes= # a command that starts four
[ -z "$(command -v mpirun)" ] || ! ldd "$program" | grep -q libmpi || processes='mpirun -np 4'

for model in tiny mini; do
    for optimizer in adamw lamb; do
        base="$program pretrain --model $model --optimizer $optimizer"
        run one $base --micro-batches 4 || exit 1
        for stage in 0 1 2 3; do
            buckets='1 40000 300000 2000000 100000000'
            [ $model = tiny ] || buckets='40000 4000000'
            for bucket in $buckets; do
                for prefetch in 0 10000000; do
                    same $base --ranks 4 --zero $stage --bucket $bucket --prefetch $prefetch
                done
            done
            same $base --ranks 2 --micro-batches 2 --zero $stage --prefetch 2000000
            if [ "$processes" ]; then
                same $processes $base --zero $stage --prefetch 2000000
                same $processes $base --zero $stage --prefetch 2000000 --offload $disk
            fi
            same $base --ranks 4 --zero $stage --prefetch 2000000 --offload optimizer=host
            same $base --ranks 2 --micro-batches 2 --zero $stage --offload $disk
        done
        echo "$model $optimizer: $passed passed, $failed failed so far"
    done
done
base="$program pretrain --model tiny --precision bf16"
run one $base --micro-batches 4 || exit 1
for stage in 0 1 2 3; do
    same $base --ranks 4 --zero $stage --prefetch 2000000
    same $base --ranks 2 --micro-batches 2 --zero $stage
done
clip=0
for precision in f32 bf16; do
    base="$program pretrain --model tiny --precision $precision"
    run one $base --micro-batches 4 || exit 1
    for stage in 0 1 2 3; do
        for prefetch in 20000 10000000; do
            same $base --ranks 4 --zero $stage --prefetch $prefetch --offload optimizer=host
            same $base --ranks 4 --zero $stage --prefetch $prefetch --offload $disk
        done
    done
done

all=optimizer=disk,parameters=disk,gradients=disk,activations=disk
# at_of KINDS: the folder, where it is needed
at_of() { case $1 in *disk*) echo "$dir" ;; esac; }

# Each kind of offload, alone and together, on one rank, on two with two micro-batches, and on four.
# At stages 1 and 2 parameters stay on the device.
offloaded() {
    for stage in 0 1 2 3; do
        kinds="gradients=host gradients=disk activations=host optimizer=host,gradients=host"
        case $stage in
        0 | 3) kinds="$kinds parameters=host parameters=disk $all" ;;
        *) kinds="$kinds optimizer=disk,gradients=disk,activations=disk" ;;
        esac
        for kind in $kinds; do
            at=$(at_of $kind)
            same "$@" --ranks 2 --micro-batches 2 --zero $stage --offload $kind $at
            same "$@" --ranks 4 --zero $stage --prefetch 2000000 --offload $kind $at
            [ $stage != 0 ] || same "$@" --micro-batches 4 --offload $kind $at
        done
        [ -z "$processes" ] || same $processes "$@" --zero $stage --offload $kind $at
    done
}
for clip in 0 0.5; do
    base="$program pretrain --model tiny --recompute layers"
    [ $clip = 0 ] || base="$program pretrain --model tiny --optimizer lamb --precision bf16"
    run one $base --micro-batches 4 || exit 1
    offloaded $base
done
base="$program pretrain --model tiny --precision bf16"
run one $base || exit 1
for kind in $all optimizer=disk parameters=disk activations=host; do
    for prefetch in 0 10000000; do same $base --prefetch $prefetch --offload $kind $(at_of $kind); done
done
echo "kinds of offload: $passed passed, $failed failed so far"
for base in "$program pretrain --model tiny --delay-update 3" \
    "$program pretrain --model tiny --delay-update 0 --precision bf16"; do
    run one $base --micro-batches 4 || exit 1
    for stage in 0 1 2 3; do
        same $base --ranks 4 --zero $stage --prefetch 2000000 --offload optimizer=host,gradients=host
        same $base --ranks 2 --micro-batches 2 --zero $stage --offload $disk
    done
done
grads=
base="$program pretrain --model tiny --precision f16 --lr 0.1 --warmup 0 --schedule constant"
base="$base --report $work/report.json"
run one $base --micro-batches 4 || exit 1
grep -q '"skipped_steps": *[1-9]' "$work/report.json" || { echo "no step was skipped"; exit 1; }
for stage in 0 1 2 3; do
    same $base --ranks 4 --zero $stage --prefetch 2000000
    same $base --ranks 4 --zero $stage --prefetch 2000000 --offload optimizer=host
    same $base --ranks 2 --micro-batches 2 --zero $stage --offload optimizer=disk,gradients=host $dir
    same $base --ranks 2 --micro-batches 2 --zero $stage --offload gradients=disk $dir
    case $stage in 0 | 3) same $base --ranks 4 --zero $stage --prefetch 2000000 --offload $all $dir ;; esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
