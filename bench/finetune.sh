#!/bin/sh
# Pretrains a small Llama on the default corpus, fine-tunes it with LoRA on questions made from the
# dictionary (a word, its definition), and prints as Markdown what it answers to words that are held
# out, before and after: sh bench/finetune.sh [OUT.md]
#
# From the environment: SECONDS_OF_PRETRAINING (1800) or PRETRAIN_STEPS, TUNE_STEPS (1500), MODEL
# (15m), VOCAB (16384 tokens), BATCH (16), SEQ (128), THREADS, PRECISION (bf16 where the processor
# multiplies it, else f32), LORA (r=16,alpha=32), WORK (build/finetune). A second call goes on with
# what WORK has.
set -eu
export LC_ALL=C

work=${WORK:-build/finetune}
out=${1:-$work/results.md}
llm=build/llm
threads=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
lora=${LORA:-r=16,alpha=32}
batch=${BATCH:-16}
seq=${SEQ:-128}
tune_steps=${TUNE_STEPS:-1500}
precision=f32
if grep -qw avx512_bf16 /proc/cpuinfo 2> /dev/null; then precision=bf16; fi
precision=${PRECISION:-$precision}

say() { echo "finetune: $*" >&2; }

mkdir -p "$work"
sh bench/dictionary.sh "$work"
say "$(wc -l < "$work/tune.jsonl") pairs, and $(wc -l < "$work/held.jsonl") held out"
# Twelve of these, spread over the alphabet
awk -v all="$(wc -l < "$work/held.jsonl")" 'BEGIN { every = int(all / 12); if (!every) every = 1 }
    NR % every == 0 && n++ < 12' "$work/held.jsonl" > "$work/asked.jsonl"
sed 's/^{"prompt": "\([^"]*\)".*/\1/' "$work/asked.jsonl" > "$work/asked"

rm -rf "$work"/adapter "$work"/adapter.*
$llm finetune --model "$work/base" --data "$work/tune.jsonl" --lora "$lora" --lr 1e-3 \
    --seq "$seq" --batch "$batch" --steps "$tune_steps" --precision "$precision" \
    --eval-every "$(( (tune_steps + 9) / 10 ))" --threads "$threads" --save "$work/adapter" \
    --svg "$work/tuning.svg" --report "$work/tuning.json"

# asks DIR [OPTIONS]: its answers to the twelve questions, one a line.
asks() {
    $llm generate --load "$work/base" --prompts "$work/asked" --temperature 0 --tokens 24 \
        --repetition-penalty 1.2 --threads "$threads" "$@" | sed 's/^[^?]*? *//'
}
held_out() {
    $llm eval --load "$work/base" --data "$work/held.jsonl" --seq "$seq" \
        --threads "$threads" "$@"
}
value() { sed -n "s/^ *\"$2\": \([^,]*\),*$/\1/p" "$work/$1.json"; }
sed 's/.*"response": " \(.*\)"}$/\1/' "$work/asked.jsonl" > "$work/truth"
asks > "$work/before"
asks --adapter "$work/adapter.best" > "$work/after"
{
    echo "# A small Llama learns to define words"
    echo
    echo "\`sh bench/finetune.sh\`, $(date -u +%Y-%m-%d), $(sed -n 's/^model name.*: //p' /proc/cpuinfo |
        head -n 1), $threads threads, $precision."
    echo
    echo "- Pretraining: $(value pretraining parameters) parameters, $(value pretraining steps) steps" \
        "of $batch x $seq tokens" \
        "($(sed -n '1p' "$work/corpus.txt.source" 2> /dev/null || echo corpus)), held-out loss" \
        "$(value pretraining held_out_loss), $(value pretraining tokens_per_s) tokens/s."
    echo "- LoRA ($lora on all products): $(value tuning trained) parameters trained on $(wc -l < "$work/tune.jsonl")" \
        "questions in $(value tuning steps) steps, $(value tuning tokens_per_s) tokens/s; lowest held-out loss" \
        "$(value tuning best_held_out_loss) after step $(value tuning best_step)."
    echo "- $(wc -l < "$work/held.jsonl") words that are in no question of the training: before, $(held_out);" \
        "after, $(held_out --adapter "$work/adapter.best")."
    echo
    echo "| question | before | after | dictionary |"
    echo "|---|---|---|---|"
    paste -d '|' "$work/asked" "$work/before" "$work/after" "$work/truth" |
        sed 's/|/ | /g; s/^/| /; s/$/ |/'
} > "$out"
cat "$out"
