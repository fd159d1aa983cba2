#!/bin/sh
# What 1-bit optimizers learn: BERT-mini on 4 ranks, each method from the same first values and on the
# same examples as the optimizer that it approximates, AdamW.
#
#     make build/bert && sh bench/onebit.sh [STEPS [MODEL]]          2000 mini
#
# It writes build/onebit/: a log and a report of each run, and table.txt, the held-out losses with
# their distance from AdamW's. Taken from the environment: CORPUS (one sentence a line, a blank line
# between documents; else that of make pretrain), SEED, RANKS (4), SEQ (64), BATCH (64), LR (1e-3),
# FREEZE (steps of the warm-up; a fifth of all). A run of 2000 steps of BERT-mini takes about 20
# minutes on two idle cores.
set -eu

steps=${1:-2000}
model=${2:-mini}
bert=build/bert
out=build/onebit
corpus=${CORPUS:-build/pretrain/corpus.txt}
seed=${SEED:-1}
ranks=${RANKS:-4}
freeze=${FREEZE:-$(((steps + 4) / 5))}

mkdir -p "$out"
if [ ! -s "$corpus" ]; then
    mkdir -p build/pretrain
    sh examples/bert/corpus.sh "$corpus" build/pretrain/work
fi
if [ ! -s "$out/vocab.txt" ] || [ "$(cat "$out/vocab.from" 2> /dev/null)" != "$(cksum < "$corpus")" ]; then
    $bert vocab --corpus "$corpus" --vocab "$out/vocab.txt" --size 8192
    cksum < "$corpus" > "$out/vocab.from"
fi

# NAME OPTIONS...
learn() {
    name=$1
    shift
    $bert pretrain --model "$model" --corpus "$corpus" --vocab "$out/vocab.txt" \
        --ranks "$ranks" --threads "$(getconf _NPROCESSORS_ONLN)" --steps "$steps" \
        --seq "${SEQ:-64}" --batch "${BATCH:-64}" --lr "${LR:-1e-3}" --seed "$seed" \
        --log "$out/$name.csv" --report "$out/$name.json" --quiet "$@"
}

# The first number under the key of a report.
value() { sed -n "s/^ *\"$2\": *\([-0-9.e+]*\).*/\1/p" "$out/$1.json" | head -n 1; }

learn adamw --optimizer adamw
learn onebit_adam --optimizer onebit_adam --freeze-step "$freeze"
learn zero_one_adam --optimizer zero_one_adam --freeze-step "$freeze" --local-step-scaler "$freeze" \
    --local-step-clipper 4

base=$(value adamw held_out_mlm_loss)
{
    echo "$model, $steps steps on $ranks ranks, warm-up $freeze, seed $seed"
    for name in adamw onebit_adam zero_one_adam; do
        loss=$(value $name held_out_mlm_loss)
        awk -v n="$name" -v l="$loss" -v b="$base" \
            'BEGIN { printf "%-14s held-out loss %.4f  %+.2f%%\n", n, l, 100 * (l - b) / b }'
    done
} | tee "$out/table.txt"
