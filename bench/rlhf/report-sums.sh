#!/bin/sh
# The report of sums, as Markdown: sh bench/rlhf/report-sums.sh OUT.md, for bench/rlhf.sh
set -eu
export LC_ALL=C
out=$1
what=sums
seeds=${SEEDS:-1 2 3}
. bench/rlhf/tables.sh

{
    echo "# A small model learns sums from rewards"
    echo
    echo "\`sh bench/rlhf.sh sums\`, $(conditions f32)"
    echo
    echo "$(grep -ho '[0-9.]* million parameters' "$WORK/sums-${seeds%% *}/base.log" | head -n 1);" \
        "7600 additions of two numbers of two digits, and 500 held-out ones. Shares of the held-out" \
        "ones that are answered right with the most likely tokens:"
    echo
    head_of_rows
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
        for k in $(drawn "$seed" 500); do
            printf '| %s | %s | %s | %s | %s |\n' "$seed" "$(line "$seed" "$k" prompts)" \
                "$(line "$seed" "$k" base.answers | sed 's/.*= *//')" \
                "$(line "$seed" "$k" grpo.answers | sed 's/.*= *//')" \
                "$(line "$seed" "$k" right | sed 's/.*= *//')"
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
curve held_out "${out%.md}.svg" $logs
