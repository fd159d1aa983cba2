#!/bin/sh
# Sums, with one seed: sh bench/rlhf/sums.sh SEED
#
# A small Llama is trained on additions of two numbers of two digits until about half of 500 others
# are right, and then on the reward `exact` alone (GRPO). Controls: the rewards of each group in a
# random order; and more of the first training, for as many seconds of processors. Leaves
# accuracies, seconds, logs and answers in WORK/sums-SEED, from which bench/rlhf.sh makes tables. A
# second call goes on with what is there.
#
# From the environment: WIDTH (192), LAYERS (4), UPDATES (1000), RATE (1e-4), ANSWERS (128) of an
# update; WORK (build/learning), THREADS, LLM (build/llm).
set -eu
export LC_ALL=C

seed=$1
. bench/rlhf/kept.sh
at=$work/sums-$seed
width=${WIDTH:-192}
updates=${UPDATES:-1000}
half=0.45
mkdir -p "$at/tokens"
touch "$at/kept"

if [ ! -s "$at/model.json" ]; then
    awk -f $here/problems.awk -v seed="$seed" -v held=500 -v first="$at/held.jsonl" \
        -v rest="$at/train.jsonl"
    {
        printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' + =
        for before in '' '##'; do
            for digit in 0 1 2 3 4 5 6 7 8 9; do echo "$before$digit"; done
        done
    } > "$at/tokens/vocab.txt"
    awk -F '"' '{ print $4 }' "$at/held.jsonl" > "$at/prompts"
    awk -F '"' '{ print $4 " " $12 }' "$at/held.jsonl" > "$at/right"
    cat > "$at/model.json" << END
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 27,
 "hidden_size": $width, "num_hidden_layers": ${LAYERS:-4}, "num_attention_heads": 6,
 "num_key_value_heads": 6, "intermediate_size": $((3 * width)), "max_position_embeddings": 16,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 3}
END
fi

# answers NAME: the most likely answers of the model to the held-out problems.
answers() {
    $llm generate --load "$at/$1" --prompts "$at/prompts" --temperature 0 --tokens 5 \
        --threads "$threads" > "$at/$1.answers"
}

# accuracy NAME: the share of them that is right.
accuracy() {
    paste -d '|' "$at/$1.answers" "$at/right" |
        awk -F '|' '{ right += $1 == $2 } END { printf "%.3f\n", right / NR }'
}

# taught FROM TO STEPS: TO is FROM after more steps on right answers, STEPS in all.
taught() {
    from="--load $at/$1"
    [ -d "$at/$1" ] || from="--model $at/model.json --tokenizer $at/tokens"
    # shellcheck disable=SC2086 # words
    $llm pretrain $from --data "$at/train.jsonl" --alone --seq 12 --batch 64 --lr 1e-3 \
        --schedule constant --warmup 20 --weight-decay 0 --steps "$3" --seed "$seed" \
        --precision f32 --threads "$threads" --quiet --overwrite --save "$at/$2"
}

# rewarded REWARD TO: TO is the model `base` after GRPO.
rewarded() {
    $llm grpo --model "$at/base" --data "$at/train.jsonl" --held-out "$at/held.jsonl" \
        --reward "$1" --group 8 --batch "${ANSWERS:-128}" --tokens 4 --seq 12 \
        --steps "$updates" --lr "${RATE:-1e-4}" --schedule linear --warmup 10 --seed "$seed" --precision f32 \
        --threads "$threads" --quiet --log "$at/$2.csv" --overwrite --save "$at/$2"
}

# stage NAME COMMAND...: runs it and keeps the accuracy of the model NAME, unless it is there.
stage() {
    name=$1
    shift
    [ -z "$(kept "$name")" ] || return 0
    timed "$@" > "$at/$name.log" 2>&1
    answers "$name"
    keep "${name}_seconds" "$took"
    keep "$name" "$(accuracy "$name")"
    say "sums, seed $seed: $name $(kept "$name"), $took s of processors"
}

# The first training: its length is a number of pieces, after each of which it is examined.
below() { awk -v x="$(kept "$1")" -v most="$2" 'BEGIN { print x < most }'; }
steps=$(kept steps)
while [ "$(below base "$half")" = 1 ]; do
    steps=$((${steps:-0} + 50))
    timed taught base base "$steps" > "$at/base.log" 2>&1
    answers base
    keep base_seconds "$(awk -v a="$(kept base_seconds)" -v b="$took" 'BEGIN { print a + b }')"
    keep base "$(accuracy base)"
    keep steps "$steps"
    say "sums, seed $seed: $(kept base) after $steps steps on answers"
    [ "$steps" -lt 5000 ] || { say "this is not learned" && exit 1; }
done
stage grpo rewarded exact grpo
stage shuffled rewarded "cmd:awk -f $here/shuffled.awk" shuffled
more=$(awk -v s="$(kept grpo_seconds)" -v each="$(kept base_seconds)" -v n="$(kept steps)" \
    'BEGIN { printf "%d", n + s * n / each }')
stage taught taught base taught "$more"
keep taught_steps "$more"
