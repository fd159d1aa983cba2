#!/bin/sh
# How much a step slows down when a foreign process keeps one of two cores busy.
#
#     make build/bench/step && sh bench/contention.sh [ROUNDS [step's options...]]
#
# A round takes the step alone, then concurrent with a loop that is bound to the last core. Printed are the
# medians of the rounds' median steps, in ms, and the ratio. Needs taskset (Debian: util-linux).
set -eu
export LC_ALL=C

rounds=${1:-5}
[ $# -eq 0 ] || shift
step=build/bench/step
last=$(($(getconf _NPROCESSORS_ONLN) - 1))
work=$(mktemp -d)
busy=
trap '[ -z "$busy" ] || kill $busy 2> /dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

ms() {
    "$step" --threads 2 --steps 15 --json "$@" | sed 's/.*"step_ms": \([0-9.]*\).*/\1/'
}

median() {
    sort -n "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

while [ "$rounds" -gt 0 ]; do
    ms "$@" >> "$work/alone"
    taskset -c "$last" sh -c 'while :; do :; done' &
    busy=$!
    ms "$@" >> "$work/busy"
    kill "$busy"
    wait "$busy" 2> /dev/null || :
    busy=
    rounds=$((rounds - 1))
done
alone=$(median "$work/alone")
busy=$(median "$work/busy")
awk -v a="$alone" -v b="$busy" \
    'BEGIN { printf "alone %.1f ms, next to a busy process %.1f ms: %.2f times\n", a, b, b / a }'
