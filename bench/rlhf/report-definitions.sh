#!/bin/sh
# The report of definitions, as Markdown: sh bench/rlhf/report-definitions.sh OUT.md, for bench/rlhf.sh
set -eu
export LC_ALL=C
out=$1
what=definitions
seeds=${SEEDS:-1 2 3}
first=${seeds%% *}
. bench/rlhf/tables.sh

held=$(wc -l < "$WORK/$what-$first/held.jsonl")
# gain NAME: how many deviations of SFT its score is above that of SFT.
gain() {
    for seed in $seeds; do
        echo "gain_$1 $(awk -v a="$(kept "$seed" "$1")" -v b="$(kept "$seed" sft)" \
            -v d="$(kept "$seed" sft_deviation)" 'BEGIN { printf "%.3f", (a - b) / d }')" \
            >> "$WORK/$what-$seed/kept"
    done
}
# What the dictionary itself scores, with the deviations of SFT that this is above SFT.
for seed in $seeds; do
    echo "dictionary $(awk '{ s += $1 } END { printf "%.3f", s / NR }' \
        "$WORK/$what-$seed/chosen.scores")" >> "$WORK/$what-$seed/kept"
done
# of POLICY TITLE: its rows.
of() {
    row "$2: score of sampled answers" "$1" %.3f
    if [ "$1" = sft ]; then row "deviation of these" sft_deviation %.3f
    else gain "$1" && row "gain, in deviations of SFT" "gain_$1" %.2f; fi
    row "tokens of an answer" "$1_length" %.2f
    row "share that ended" "$1_ended" %.3f
    [ "$1" = sft ] || row "KL divergence to SFT, nats of an answer" "$1_kl" %.2f
    row "perplexity of held-out definitions" "$1_perplexity" %.2f
}

{
    echo "# A small model learns from judgements of definitions"
    echo
    echo "\`sh bench/rlhf.sh definitions\`, $(conditions "$(kept "$first" precision)")"
    echo
    pairs=$WORK/$what-$first/pairs.jsonl
    words=$(awk -F '"' '{ print $4 }' "$pairs" | sort -u | wc -l)
    echo "$(grep -ho '[0-9.]* million parameters' "$WORK/$what-$first/rlhf.out" | head -n 1);" \
        "$words words of the dictionary GCIDE, $(($(wc -l < "$pairs") / words)) pairs of each: two" \
        "tenths of the pairs for SFT, six tenths for the reward model and DPO, and two tenths as" \
        "questions for PPO. A rejected answer is the definition of another word. Figures are of $held" \
        "words that are held out of all, and of two sampled answers to each."
    echo
    head_of_rows
    row "reward model: held-out pairs whose chosen answer has the higher score" accuracy %.3f
    row "the dictionary: score of its definitions" dictionary %.3f
    gain dictionary
    row "above SFT, in deviations of SFT" gain_dictionary %.2f
    of sft "SFT"
    of dpo "DPO"
    of ppo "PPO"
    row "processor seconds of SFT, reward model and PPO" rlhf_seconds %.0f
    row "of DPO" dpo_training_seconds %.0f
    echo
    echo "Words that each seed draws, and the most likely answers:"
    echo
    echo "| seed | question | SFT | DPO | PPO | dictionary |"
    echo "|---|---|---|---|---|---|"
    for seed in $seeds; do
        for k in $(drawn "$seed" "$held"); do
            printf '| %s | %s | %s | %s | %s | %s |\n' "$seed" "$(line "$seed" "$k" questions)" \
                "$(line "$seed" "$k" sft.answers)" "$(line "$seed" "$k" dpo.answers)" \
                "$(line "$seed" "$k" ppo.answers)" \
                "$(line "$seed" "$k" held.jsonl | awk -F '"' '{ print $8 }')"
        done
    done
} > "$out"

for run in ppo dpo; do
    logs=
    for seed in $seeds; do
        cp "$WORK/$what-$seed/$run.steps.csv" "$WORK/$run-$seed.csv"
        logs="$logs $WORK/$run-$seed.csv"
    done
    column=reward
    [ $run = ppo ] || column=margin
    # shellcheck disable=SC2086 # words
    curve $column "${out%.md}-$run.svg" $logs
done
