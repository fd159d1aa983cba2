#!/bin/sh
# Definitions, with one seed: sh bench/rlhf/definitions.sh SEED
#
# The small Llama of bench/finetune.sh learns to define words in three steps (llm rlhf): from
# definitions of the dictionary (SFT); from pairs, in which the definition of another word is rejected
# (a reward model); and from the scores of its own answers (PPO, with the text of the first step as
# ptx). DPO learns from the same pairs as the reward model. Leaves answers, logs and figures of words
# that are in none of these in WORK/definitions-SEED, from which bench/rlhf.sh makes tables. A
# second call goes on with what is there.
#
# From the environment: DICTIONARY, what bench/dictionary.sh has left; RANK (32) of adapters;
# SFT_STEPS (800), REWARD_STEPS (8000), PPO_STEPS (500), ROWS of its step (128), DPO_STEPS (2400),
# DPO_RATE (2e-4), BETA (0.5),
# WORDS (all) of the dictionary, HELD (all) of those held out, BYTES (60) of the longest answer, EACH
# (6) pairs of a word; PRECISION of training (bf16 where the processor multiplies it, else f32); WORK
# (build/learning), THREADS, LLM (build/llm).
set -eu
export LC_ALL=C

seed=$1
. bench/rlhf/kept.sh
at=$work/definitions-$seed
dictionary=${DICTIONARY:-$work/dictionary}
rank=${RANK:-32}
tokens=24
most=64 # tokens of a question and its answer
precision=f32
if grep -qw avx512_bf16 /proc/cpuinfo 2> /dev/null; then precision=bf16; fi
precision=${PRECISION:-$precision}
mkdir -p "$at"
touch "$at/kept"
[ -n "$(kept precision)" ] || keep precision "$precision"

# short FILE N: the first N lines whose answers have at most BYTES.
short() {
    awk -F '"' -v most="$2" -v bytes="${BYTES:-60}" 'length($8) <= bytes && n++ < most' "$1"
}

# The data: pairs of the words that the steps share, and the held-out words as pairs and questions.
if [ ! -s "$at/held.jsonl" ]; then
    short "$dictionary/tune.jsonl" "${WORDS:-1000000}" |
        awk -f $here/pairs.awk -v seed="$seed" -v each="${EACH:-6}" > "$at/pairs.jsonl"
    short "$dictionary/held.jsonl" "${HELD:-1000000}" > "$at/held.jsonl.part"
    awk -f $here/pairs.awk -v seed="$seed" "$at/held.jsonl.part" > "$at/held.pairs.jsonl"
    awk -F '"' '{ print $4 }' "$at/held.jsonl.part" > "$at/questions"
    mv "$at/held.jsonl.part" "$at/held.jsonl"
fi
held=$(wc -l < "$at/held.jsonl")
rows=${ROWS:-128}

# score OF FILE: scores of a file's answers by the reward model, one a line, in OF.
score() {
    $llm score --model "$at/rlhf/reward" --data "$2" --threads "$threads" |
        sed 's/.*: \(.*\)}/\1/' > "$1"
}
# loss FILE [OPTIONS]: mean loss of a token of a file's answers.
loss() {
    of=$1
    shift
    $llm eval --load "$at/rlhf/sft" --data "$of" --seq $most --alone --dtype f32 \
        --threads "$threads" "$@" | sed -n 's/.*loss \([0-9.]*\),.*/\1/p' | tail -n 1
}

# examine NAME [OPTIONS]: keeps what the policy answers to the held-out questions. Answers are sampled
# at a temperature of 1, twice to each, by a run of one step that changes nothing; their KL divergence
# to SFT is that of these answers. Those of the tables are the most likely ones.
examine() {
    name=$1
    shift
    base=--load
    [ $# = 0 ] || base=--model
    rm -f "$at/$name.items"
    $llm grpo --model "$at/rlhf/sft" "$@" --data "$at/held.jsonl" --tokens $tokens --seq $most \
        --group 2 --batch 2 --answers $((2 * held)) --steps 1 --lr 0 --precision f32 --seed "$seed" \
        --reward "cmd:tee $at/$name.items | awk '{ print 0 }'" --quiet --threads "$threads" \
        > "$at/$name.log" 2>&1
    sed 's/.*"completion": *\("[^"]*"\).*"prompt": *\("[^"]*"\).*/{"prompt": \2, "response": \1}/' \
        "$at/$name.items" | grep -v '"response": ""' > "$at/$name.jsonl"
    score "$at/$name.scores" "$at/$name.jsonl"
    $llm generate $base "$at/rlhf/sft" "$@" --prompts "$at/questions" --temperature 0 \
        --tokens $tokens --dtype f32 --threads "$threads" | sed 's/^[^?]*? *//' > "$at/$name.answers"
    awk '{ sum += $1; squares += $1 * $1 } END { m = sum / NR
        printf "%.4f %.4f\n", m, sqrt((squares - NR * m * m) / (NR - 1)) }' \
        "$at/$name.scores" > "$at/$name.score"
    read -r mean deviation < "$at/$name.score"
    own=$(loss "$at/$name.jsonl" "$@")
    of_sft=$(loss "$at/$name.jsonl")
    keep "${name}_deviation" "$deviation"
    awk '
        { n++; count = $0; sub(/.*"tokens": */, "", count); tokens += count + 0
          ended += /"finish": *"end"/ }
        END { printf "%.2f %.4f\n", tokens / n, ended / n }' "$at/$name.items" > "$at/$name.ends"
    read -r length ended < "$at/$name.ends"
    keep "${name}_length" "$length"
    keep "${name}_ended" "$ended"
    keep "${name}_kl" "$(awk -v a="$own" -v b="$of_sft" -v n="$length" \
        'BEGIN { printf "%.3f", (b - a) * n }')"
    keep "${name}_perplexity" "$(loss "$at/held.jsonl" "$@" | awk '{ printf "%.3f", exp($1) }')"
    keep "$name" "$mean"
    say "definitions, seed $seed: $name scores $mean +- $deviation, $length tokens an answer"
}

# three_steps: SFT, the reward model, PPO. The reward model has seen ended answers alone, and would
# have those that do not end: they cost something.
three_steps() {
    awk -F '"' '{ print $4 $8 }' "$dictionary/tune.jsonl" | head -n 20000 | sed 's/$/\n/' > "$at/text"
    $llm rlhf --model "$dictionary/base" --data "$at/pairs.jsonl" --save "$at/rlhf" --seed "$seed" \
        --seq $most --precision "$precision" --threads "$threads" --quiet --save-every 100 \
        --lora r="$rank" --split 2,6,2 \
        --sft "--steps ${SFT_STEPS:-800} --lr 1e-3 --batch 16" \
        --reward "--steps ${REWARD_STEPS:-8000} --lr 1e-3 --batch 16" \
        --ppo "--steps ${PPO_STEPS:-500} --lr 1e-3 --critic-lr 1e-3 --critic-warmup 4 --batch $rows
            --answers $((4 * rows)) --epochs 2 --tokens $tokens --lambda 1 --kl-reward 0.1
            --reward-clip 0 --reward 40*overlong:6
            --ptx $at/text --ptx-rows 16 --ptx-coefficient 0.3 --log $at/ppo.steps.csv"
}

# The log p of the reference is computed of all pairs of a file, so it has those of the steps alone.
dpo() {
    steps=${DPO_STEPS:-2400}
    head -n $((steps * 16)) "$at/rlhf/reward.jsonl" > "$at/dpo.jsonl"
    $llm dpo --model "$at/rlhf/sft" --data "$at/dpo.jsonl" --lora r="$rank" --beta "${BETA:-0.5}" \
        --steps "$steps" --lr "${DPO_RATE:-2e-4}" --batch 16 --seq $most --seed "$seed" \
        --precision "$precision" --threads "$threads" --quiet --log "$at/dpo.steps.csv" --overwrite \
        --save "$at/dpo"
}
# pair_accuracy: the share of held-out pairs whose chosen answer has the higher score.
pair_accuracy() {
    for which in chosen rejected; do
        sed "s/\"$which\"/\"response\"/; s/, \"\(chosen\|rejected\)\": \"[^\"]*\"//" \
            "$at/held.pairs.jsonl" > "$at/$which.jsonl"
        score "$at/$which.scores" "$at/$which.jsonl"
    done
    paste "$at/chosen.scores" "$at/rejected.scores" |
        awk '{ right += $1 > $2 } END { printf "%.3f\n", right / NR }'
}

# stage NAME COMMAND...: runs it, and keeps the seconds, unless they are there.
stage() {
    name=$1
    shift
    [ -z "$(kept "${name}_seconds")" ] || return 0
    timed "$@" > "$at/$name.out" 2>&1
    keep "${name}_seconds" "$took"
    say "definitions, seed $seed: $name took $took s of processors"
}
stage rlhf three_steps
[ -n "$(kept accuracy)" ] || keep accuracy "$(pair_accuracy)"
[ -n "$(kept sft)" ] || examine sft
[ -n "$(kept ppo)" ] || examine ppo --adapter "$at/rlhf/ppo"
stage dpo_training dpo
[ -n "$(kept dpo)" ] || examine dpo --adapter "$at/dpo"
