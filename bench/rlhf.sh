#!/bin/sh
# What models learn from rewards, on this machine: sh bench/rlhf.sh [OUT.md]
#
# Sums (bench/rlhf/sums.sh): three seeds, next to one another. Writes a table of what is
# right before and after, and of the controls; curves next to it, OUT.svg; and ten answers before and
# after, which each seed draws. A second call goes on with what WORK has.
#
# From the environment: SEEDS ("1 2 3"), WORK (build/learning), THREADS of each seed (1), and the
# settings of the experiment.
set -eu
export LC_ALL=C
export WORK="${WORK:-build/learning}" THREADS="${THREADS:-1}"
seeds=${SEEDS:-1 2 3}
out=${1:-$WORK/results.md}
mkdir -p "$WORK"

running=
for seed in $seeds; do
    sh bench/rlhf/sums.sh "$seed" &
    running="$running $!"
done
failed=0
for each in $running; do wait "$each" || failed=1; done
[ $failed = 0 ] || exit 1

kept() { sed -n "s/^$2 //p" "$WORK/sums-$1/kept" | tail -n 1; }
# row TITLE NAME NUMBER: a row of the table, and the mean over the seeds.
row() {
    printf '| %s |' "$1"
    for seed in $seeds; do printf ' %s |' "$(kept "$seed" "$2")"; done
    for seed in $seeds; do kept "$seed" "$2"; done |
        awk -v form="$3" '{ sum += $1 } END { printf " " form " |\n", sum / NR }'
}
# drawn SEED: ten numbers of held-out problems.
drawn() {
    awk -v seed="$1" 'BEGIN {
        for (state = seed * 7919 + 1; n < 10; n += !seen[at]++) {
            state = state * 48271 % 2147483647
            at = state % 500 + 1
            if (!seen[at]) print at
        }
    }'
}
line() { sed -n "$2p" "$WORK/sums-$1"; }

{
    echo "# A small model learns sums from rewards"
    echo
    echo "\`sh bench/rlhf.sh\`, $(date -u +%Y-%m-%d), $(sed -n 's/^model name.*: //p' /proc/cpuinfo |
        head -n 1), $(getconf _NPROCESSORS_ONLN) processors, THREADS=$THREADS, f32."
    echo
    echo "$(grep -ho '[0-9.]* million parameters' "$WORK/sums-${seeds%% *}/base.log" | head -n 1);" \
        "7600 additions of two numbers of two digits, and 500 held-out ones. Shares of the held-out" \
        "ones that are answered right with the most likely tokens:"
    echo
    echo "| seed | $(echo "$seeds" | sed 's/ / | /g') | mean |"
    echo "|---|$(echo "$seeds" | sed 's/[^ ]*/---|/g; s/ //g')---|"
    row "after the first steps on answers" base %.3f
    row "then GRPO with \`--reward exact\`" grpo %.3f
    row "the same, rewards of a group in a random order" shuffled %.3f
    row "in place of it more steps on answers" taught %.3f
    row "first steps" steps %.0f
    row "processor seconds of these" base_seconds %.0f
    row "of GRPO" grpo_seconds %.0f
    row "of the control" shuffled_seconds %.0f
    row "steps on answers in all" taught_steps %.0f
    row "processor seconds of those in place of GRPO" taught_seconds %.0f
    echo
    echo "Problems that each seed draws, and answers before and after GRPO:"
    echo
    echo "| seed | problem | before | after | right |"
    echo "|---|---|---|---|---|"
    for seed in $seeds; do
        for k in $(drawn "$seed"); do
            printf '| %s | %s | %s | %s | %s |\n' "$seed" "$(line "$seed/prompts" "$k")" \
                "$(line "$seed/base.answers" "$k" | sed 's/.*= *//')" \
                "$(line "$seed/grpo.answers" "$k" | sed 's/.*= *//')" \
                "$(line "$seed/right" "$k" | sed 's/.*= *//')"
        done
    done
} > "$out"

logs=
for run in grpo shuffled; do
    for seed in $seeds; do
        cp "$WORK/sums-$seed/$run.csv" "$WORK/$run-$seed.csv"
        logs="$logs $WORK/$run-$seed.csv"
    done
done
# shellcheck disable=SC2086 # words
build/zf-report $logs > "$WORK/curves.html"
awk -f bench/rlhf/curve.awk -v name=held_out "$WORK/curves.html" > "${out%.md}.svg"
cat "$out"
