#!/bin/sh
# A run with values on a disk, killed at random moments: sh tests/kill.sh [PROGRAM [COUNT]]
# (make kill: 100 times)
#
# Each time the run is resumed from its last checkpoint, with other values on the disk, or begun
# again where it had none. Its parameters in the end are those of a run that nothing has stopped,
# byte for byte, and of the files on the disk none is left.
set -u
export LC_ALL=C
program=${1:-build/bert}
count=${2:-100}
. "$(dirname "$0")/text.sh"
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 $pid 2> /dev/null; rm -rf "$work"' EXIT INT TERM
mkdir "$work/offload"
small_text 40 9 > "$work/text"
"$program" vocab --corpus "$work/text" --vocab "$work/vocab" --size 600 > /dev/null || exit 1

# run NAME TURN OPTIONS...: one that saves at every third step; what is offloaded depends on the turn.
# Gradients go to the disk where the prefetch has no room for them in host memory.
run() {
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
load() { [ ! -d "$work/killed" ] || echo "--load $work/killed"; }

begun=$(date +%s%N)
(run whole 0) || { cat "$work/whole.out"; exit 1; }
most=$((($(date +%s%N) - begun) / 1000)) # microseconds
seed=$(date +%s)
echo "seed $seed, $most microseconds without a kill"
killed=0
left=0
while [ $killed -lt "$count" ]; do
    run killed $killed $(load) &
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
(run killed 0 $(load)) || { cat "$work/killed.out"; exit 1; }
cmp "$work/whole.p" "$work/killed.p" || exit 1
# A process that is killed with requests in the kernel holds its lock a little longer than it lives.
# The run after it may leave its file then; the next one removes it.
[ -z "$(ls "$work/offload")" ] || (run again 0) || { cat "$work/again.out"; exit 1; }
[ -z "$(ls "$work/offload")" ] || { ls "$work/offload"; exit 1; }
echo "killed $killed times, $left files left after and removed: the same bits"
