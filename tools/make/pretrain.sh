#!/bin/sh
# Pretrains a BERT from nothing (make pretrain): text, vocabulary, training. Results: build/pretrain/.
#
# Without STEPS the program measures a step and makes as many as fit into 150 seconds, between 200
# and 1500. Taken from the environment: STEPS MODEL THREADS CORPUS SEQ BATCH (64, or about 2048 tokens
# where SEQ is above 32) MASKED (percent of the words: 60, or 30 where SEQ is above 32) DROPOUT SEED
# PRECISION (bf16 where the processor multiplies it, else f32) VOCAB (its size). CORPUS is a file
# with one sentence a line and a blank line between documents. Short sequences with most words
# masked, no dropout and first values that are not drawn are what teaches a small model most in a
# few minutes (bench/results/). Interrupted (Ctrl-C), the training saves a checkpoint and prints the
# command that continues it.
set -eu

bert=build/bert
out=build/pretrain
corpus=${CORPUS:-$out/corpus.txt}
vocab=$out/vocab.txt
size=${VOCAB:-8192}
steps=${STEPS:+--steps $STEPS}
seq=${SEQ:-32}
batch=64
masked=60
if [ "$seq" -gt 32 ] 2> /dev/null; then
    batch=$((seq < 2048 ? 2048 / seq : 1))
    masked=30
fi
precision=f32
if grep -qw avx512_bf16 /proc/cpuinfo 2> /dev/null; then precision=bf16; fi

mkdir -p "$out"
if [ -z "${CORPUS:-}" ]; then
    sh examples/bert/data/corpus.sh "$corpus" "$out/work"
elif [ ! -r "$corpus" ]; then
    echo "CORPUS=$corpus cannot be read" >&2
    exit 1
fi

# The vocabulary is kept for the next run on the same text.
made_from="$size $(cksum < "$corpus")"
if [ ! -s "$vocab" ] || [ "$(cat "$vocab.from" 2> /dev/null)" != "$made_from" ]; then
    $bert vocab --corpus "$corpus" --vocab "$vocab" --size "$size"
    echo "$made_from" > "$vocab.from"
fi

# Ctrl-C reaches this shell and make as well. Both wait for the program to save; the status is then
# good, because make ends by the signal itself and has nothing to add.
interrupted=
trap 'interrupted=yes' INT
status=0
# shellcheck disable=SC2086 # words
$bert pretrain --model "${MODEL:-mini}" --corpus "$corpus" --vocab "$vocab" \
    --seq "$seq" --batch "${BATCH:-$batch}" --masked "${MASKED:-$masked}" \
    --first-positions sinusoids --first-bias unigrams --dropout "${DROPOUT:-0}" \
    ${steps:---steps 1500 --seconds 150} --seed "${SEED:-1}" \
    --precision "${PRECISION:-$precision}" \
    --threads "${THREADS:-$(getconf _NPROCESSORS_ONLN)}" --save "$out/checkpoint" \
    --overwrite \
    --log "$out/log.csv" --svg "$out/loss.svg" --report "$out/report.json" || status=$?
[ -z "$interrupted" ] || exit 0
[ $status != 0 ] || echo "results: $out/ (log.csv, loss.svg, report.json, checkpoint/)"
exit $status
