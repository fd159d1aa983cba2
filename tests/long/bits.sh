#!/bin/sh
# The same bits on any ranks: sh tests/long/bits.sh [PROGRAM [drawn COUNT SEED]]   (make bits; some
# minutes)
#
# Twenty steps of BERT-tiny and BERT-mini, dropout and clipping on, with AdamW and LAMB, and of tiny
# in bf16: four parts of the global batch on one, two and four ranks, at every ZeRO stage, with five
# bucket sizes, with and without prefetch, as threads and, where the program has MPI, as processes;
# with the optimizer's states in host memory and on a disk, concurrent with the backward pass where
# nothing is clipped; of tiny with every kind of offload, also of a batch in one part, with delayed
# updates, and in f16 with skipped steps.
# Then 300 pairs of runs that are drawn at random (tests/long/bits.awk): model, optimizer,
# precision, what is quantised; and stage, ranks in nodes, micro-batches, buckets, prefetch,
# offload, recompute, where the second run is interrupted and goes on with others of these. With
# `drawn` only COUNT of these, from SEED on; the samples are those in the folder of PROGRAM. A
# failure prints its seed. Parameters after the last step, its gradients and the log's losses are
# compared byte for byte.
set -u
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
program=${1:-build/bert}
here=$(dirname "$0")
data=$here/../../docs/data
. "$here/../cli/text.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
passed=0
failed=0
clip=0.5
grads=yes
dir="--offload-dir $work/offload"
disk="optimizer=disk $dir"
mkdir "$work/offload"

# part NAME OPTIONS...: five steps of the sample that is drawn; NAME.p, .g and .l. The log of a run
# that goes on has the rest of the steps.
part() {
    name=$work/$1
    shift
    "${program%/*}/$sample" pretrain $from --corpus "$data/stories.txt" \
        --vocab "$data/vocab.txt" --eval-batches 0 --quiet \
        ${whole:+--dump "$name.p"} ${gradients:+--dump-grads "$name.g"} --log "$name.csv" $both "$@" \
        > "$name.out" 2>&1 || { cat "$name.out"; return 1; }
    tail -n 1 "$name.csv" | sed 's/,[^,]*$//' > "$name.l" # without tokens_per_s
}

# alike: what `part` has written twice.
alike() {
    for file in ${whole:+p} ${gradients:+g} l; do
        cmp "$work/one.$file" "$work/other.$file" || return 1
    done
}

# drawn SEED: the runs of this seed.
drawn() {
    awk -v seed="$1" -f "$here/bits.awk" > "$work/drawn"
    { IFS='|' read -r sample layers width both one && IFS='|' read -r other rest; } < "$work/drawn"
    other=$(echo "$other" | sed "s|DISK|$work/offload|")
    rest=$(echo "$rest" | sed "s|DISK|$work/offload|")
    case $sample in llm) model=llama ;; *) model=$sample ;; esac
    sed "s/\(n_layer\|num_hidden_layers\)\": 2/\1\": $layers/
         s/\(n_embd\|hidden_size\)\": 32/\1\": $width/" "$data/$model.json" > "$work/model.json"
    case $both in *'--precision f16'*) gradients= ;; *) gradients=yes ;; esac
    from="--model $work/model.json"
    whole=yes
    case $both in *lora*)
        options=$both
        both='--steps 1 --seq 24'
        whole= gradients= # of an adapter losses and norms of gradients are compared
        part base --save "$work/base" || return 1
        both=$options
        from="--init $work/base"
        ;;
    esac
    part one $one && part other $other ${rest:+--save "$work/run" --save-every 2 --keep 3} &&
        alike || return 1
    [ -z "$rest" ] || { part other $rest --load "$work/run.previous-2" && alike; }
}

# all_drawn COUNT SEED: so many, from this seed on.
all_drawn() {
    seed=$2
    while [ "$seed" -lt $(($2 + $1)) ]; do
        if said=$(drawn "$seed"); then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf 'FAILED sh tests/long/bits.sh %s drawn 1 %s\n%s\n' "$program" "$seed" "$said"
            sed 's/^/  /' "$work/drawn"
        fi
        rm -rf "$work"/run* "$work"/one* "$work"/other* "$work"/base*
        seed=$((seed + 1))
    done
}
if [ "${2:-}" = drawn ]; then
    all_drawn "$3" "$4"
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
fi

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
all_drawn 300 "${SEED:-1}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
