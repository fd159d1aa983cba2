# What the experiments of bench/rlhf.sh have in common; `at` is the folder of a run.
# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # of the files that read this one
work=${WORK:-build/learning}
threads=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
llm=${LLM:-build/llm}
here=bench/rlhf

say() { echo "rlhf: $*" >&2; }
# keep NAME VALUE: of this run, for its tables.
keep() { echo "$1 $2" >> "$at/kept"; }
kept() { sed -n "s/^$1 //p" "$at/kept" | tail -n 1; }
# timed COMMAND...: runs it, and sets $took to the seconds of processors that it has used.
timed() {
    times > "$at/times"
    "$@"
    times >> "$at/times"
    took=$(awk 'NR % 2 == 0 {
        gsub(/[ms]/, " ")
        used = $1 * 60 + $2 + $3 * 60 + $4 - used
    }
    END { printf "%.1f", used }' "$at/times")
}
