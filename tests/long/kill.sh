#!/bin/sh
# A run that is killed at random moments: sh tests/long/kill.sh [PROGRAM [COUNT [WHAT]]] (make kill:
# 100 times)
#
# WHAT: disk (default), a pretraining by build/bert with values on a disk; layouts, one by
# build/llm, whose ranks are another mesh at each turn; dpo, grpo or ppo by build/llm, saved amid
# the steps of iterations. Each time the run is resumed from its last
# checkpoint, with other values on the disk, or begun again where it had none. Its parameters in the
# end are those of a run that nothing has stopped, byte for byte, and of the files on the disk none
# is left.
set -u
export LC_ALL=C
program=${1:-build/bert}
count=${2:-100}
what=${3:-disk}
. "$(dirname "$0")/../cli/text.sh"
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 $pid 2> /dev/null; rm -rf "$work"' EXIT INT TERM
mkdir "$work/offload"

# run_WHAT NAME TURN OPTIONS...: one that saves at every third step.

# What is offloaded depends on the turn. Gradients go to the disk where the prefetch has no room for
# them in host memory.
run_disk() {
    name=$work/$1
    prefetch=1000000
    case $(($2 % 3)) in
    0) kinds=optimizer=disk ;;
    1) kinds=optimizer=disk,parameters=disk,gradients=disk,activations=disk prefetch=200000 ;;
    *) kinds=optimizer=host,parameters=disk ;;
    esac
    shift 2
    exec "$program" pretrain --model tiny --corpus "$work/text" --vocab "$work/vocab" --seq 32 \
        --batch 4 --steps 30 --clip 0 --eval-batches 0 --quiet --offload $kinds \
        --offload-dir "$work/offload" --prefetch $prefetch --save "$name" --save-every 3 \
        --dump "$name.p" "$@" > "$name.out" 2>&1
}
# Ranks along pipe, data and tensor: always eight parts of the batch, and two sections.
run_layouts() {
    name=$work/$1
    case $(($2 % 6)) in
    0) how='--micro-batches 8' ;;
    1) how='--ranks 8 --pipe 2 --tensor 2 --micro-batches 4 --zero 3' ;;
    2) how='--ranks 4 --micro-batches 2 --zero 2' ;;
    3) how='--ranks 4 --pipe 4 --micro-batches 8' ;;
    4) how='--ranks 8 --pipe 2 --pipe-layers 3,1 --micro-batches 2 --zero 1' ;;
    *) how='--ranks 4 --tensor 2 --micro-batches 4 --zero 3' ;;
    esac
    shift 2
    # shellcheck disable=SC2086 # words
    exec "$program" pretrain --model "$work/four.json" --corpus docs/data/stories.txt \
        --vocab docs/data/vocab.txt --seq 32 --batch 8 --steps 30 --precision f32 --eval-batches 0 --threads 1 \
        --sections tensor=2 --sum parts --quiet --save "$name" --save-every 3 $how "$@" > "$name.out" 2>&1
}
# What a run has in the end, as NAME.p: checkpoints of ranks are those of one rank when they are
# exported.
ends() {
    [ "$what" != layouts ] ||
        { "$program" export --load "$work/$1" "$work/$1.safetensors" && mv "$work/$1.safetensors" "$work/$1.p"; }
}
# rewards COMMAND NAME TURN OPTIONS...: ranks and stages depend on the turn.
rewards() {
    command=$1
    name=$work/$2
    case $(($3 % 3)) in
    0) how='--micro-batches 4' ;;
    1) how='--ranks 2 --micro-batches 2 --zero 3' ;;
    *) how='--ranks 4 --zero 1' ;;
    esac
    shift 3
    # shellcheck disable=SC2086 # words
    exec "$program" "$command" --model "$work/model" --seq 24 --batch 16 --precision f32 --lr 1e-3 \
        --threads 1 --quiet --save "$name" --save-every 3 $how "$@" > "$name.out" 2>&1
}
run_dpo() { rewards dpo "$@" --data docs/data/pairs.jsonl --steps 30 --dump "$work/$1.p"; }
run_grpo() {
    rewards grpo "$@" --data docs/data/pairs.jsonl --reward length --tokens 6 --group 4 --answers 32 \
        --epochs 2 --redraws 1 --kl-beta 0.1 --steps 22 --dump "$work/$1.p"
}
run_ppo() {
    rewards ppo "$@" --data docs/data/pairs.jsonl --reward length --tokens 6 --answers 32 --epochs 2 \
        --ema 0.9 --ptx docs/data/stories.txt --ptx-rows 4 --kl-target 0.1 --critic-every 2 \
        --critic-warmup 1 --steps 22 --dump "$work/$1.p"
}
load() { [ ! -d "$work/killed" ] || echo "--load $work/killed"; }

if [ "$what" = layouts ]; then
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' docs/data/llama.json > "$work/four.json"
elif [ "$what" = disk ]; then
    small_text 40 9 > "$work/text"
    "$program" vocab --corpus "$work/text" --vocab "$work/vocab" --size 600 > /dev/null || exit 1
else
    "$program" pretrain --model docs/data/llama.json --corpus docs/data/stories.txt --vocab docs/data/vocab.txt \
        --seq 32 --batch 16 --steps 50 --lr 5e-3 --precision f32 --eval-batches 0 --quiet --save "$work/model" \
        > /dev/null || exit 1
fi
begun=$(date +%s%N)
(run_$what whole 0) && ends whole || { cat "$work/whole.out"; exit 1; }
most=$((($(date +%s%N) - begun) / 1000)) # microseconds
seed=$(date +%s)
echo "seed $seed, $most microseconds without a kill"
killed=0
left=0
while [ $killed -lt "$count" ]; do
    run_$what killed $killed $(load) &
    pid=$!
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    sleep "$(awk "BEGIN { print $seed / 2147483648 * $most / 1000000 }")"
    kill -9 $pid 2> /dev/null && killed=$((killed + 1))
    wait $pid 2> /dev/null
    status=$?
    pid=
    [ $status -eq 137 ] || [ $status -eq 0 ] || { cat "$work/killed.out"; exit 1; }
    left=$((left + $(ls "$work/offload" | wc -l)))
    [ $status -ne 0 ] || rm -rf "$work"/killed*
done
(run_$what killed 0 $(load)) && ends killed || { cat "$work/killed.out"; exit 1; }
cmp "$work/whole.p" "$work/killed.p" || exit 1
# A process that is killed with requests in the kernel holds its lock a little longer than it lives.
# The run after it may leave its file then; the next one removes it.
[ -z "$(ls "$work/offload")" ] || (run_$what again 0) || { cat "$work/again.out"; exit 1; }
[ -z "$(ls "$work/offload")" ] || { ls "$work/offload"; exit 1; }
echo "killed $killed times, $left files left after and removed: the same bits"
