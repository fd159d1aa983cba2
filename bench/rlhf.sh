#!/bin/sh
# What models learn from rewards, on this machine: sh bench/rlhf.sh [sums|definitions]...
#
# Three seeds of an experiment, next to one another; without a name of both experiments. Writes for
# each bench/results/DATE-NAME.md: a table before and after and of controls, ten answers before and
# after, which each seed draws, and curves next to it. A second call goes on with what WORK has.
#
#   sums          a Llama of two million parameters, by tests of its answers (bench/rlhf/sums.sh)
#   definitions   the Llama of bench/finetune.sh, which is pretrained first, by a reward model and by
#                 pairs (bench/rlhf/definitions.sh)
#
# From the environment: SEEDS ("1 2 3"), WORK (build/learning), RESULTS (bench/results), THREADS of
# each seed (1), and the settings of the experiments.
set -eu
export LC_ALL=C
export WORK="${WORK:-build/learning}" THREADS="${THREADS:-1}" SEEDS="${SEEDS:-1 2 3}"
results=${RESULTS:-bench/results}
[ $# -gt 0 ] || set -- sums definitions
mkdir -p "$WORK" "$results"

# learn NAME: all seeds.
learn() {
    running=
    failed=0
    for seed in $SEEDS; do
        sh "bench/rlhf/$1.sh" "$seed" &
        running="$running $!"
    done
    for each in $running; do wait "$each" || failed=1; done
    return $failed
}

for what in "$@"; do
    out=$results/$(date -u +%Y-%m-%d)-$what.md
    if [ "$what" = definitions ] && [ ! -d "${DICTIONARY:=$WORK/dictionary}/base" ]; then
        PRETRAIN_STEPS="${PRETRAIN_STEPS:-7200}" THREADS=$(getconf _NPROCESSORS_ONLN) \
            sh bench/dictionary.sh "$DICTIONARY" > "$WORK/dictionary.log" 2>&1
    fi
    learn "$what" || exit 1
    sh "bench/rlhf/report-$what.sh" "$out"
    cat "$out"
done
