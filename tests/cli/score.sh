#!/bin/sh
# The commands reward and score: sh tests/cli/score.sh [PROGRAM]
#
# A small model learns to prefer answers; a process that loads it scores as the one that saved it. Messages for
# mistakes. One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

llm=${1:-build/llm}
golden=tests/golden
. tests/cli/cli.sh

list="'llm reward --help' lists the options"
cp docs/data/vocab.txt "$work"
pairs=docs/data/pairs.jsonl

# reward OPTIONS...: trains a small model.
reward() {
    ends 0 "$llm" reward --model docs/data/llama.json --tokenizer "$work" --seq 20 --batch 8 \
        --precision f32 --threads 1 --quiet "$@"
}
held_out() { sed -n 's/^held out: accuracy \([0-9.]*\)% of \([0-9]*\) pairs, .*/\1 \2/p' "$work/out"; }

learns() {
    reward --data $pairs --lr 3e-3 --steps 1000 --save "$work/rm" --report "$work/report.json" &&
        held_out | awk '{ exit !($1 > 80 && $2 == 7) }' && grep -q '"held_out_accuracy"' "$work/report.json"
}
check 'learns which answers are chosen' learns

# The chosen and the rejected answers of the first pairs, as texts.
head -n 40 $pairs | sed 's/"chosen": \(".*"\), "rejected": .*/"response": \1}/' > "$work/chosen"
head -n 40 $pairs | sed 's/"chosen": .*, "rejected": /"completion": /' > "$work/rejected"
scores() { ends 0 "$llm" score --model "$work/$1" --data "$work/$2" --threads 1 && cp "$work/out" "$work/$3"; }
prefers() {
    scores rm chosen a && scores rm rejected b && [ "$(wc -l < "$work/a")" = 40 ] &&
        paste "$work/a" "$work/b" | tr -d '}' | awk '$2 > $4 { n++ } END { exit n < 38 }'
}
check 'chosen answers have the higher scores' prefers

# Other texts of the step, and batches of another size, leave the same scores.
same_scores() {
    sed -n 7p "$work/chosen" > "$work/one" && scores rm one c && sed -n 7p "$work/a" > "$work/d" &&
        awk 'NR == FNR { x = $2; next } { exit !(x - $2 < 1e-4 && $2 - x < 1e-4) }' "$work/c" "$work/d"
}
check 'a text alone has the score that it has among others' same_scores

exported() {
    ends 0 "$llm" export --load "$work/rm" "$work/hf" && cp "$work/a" "$work/e" &&
        scores hf chosen f && cmp "$work/e" "$work/f" && cmp "$work/rm/reward.json" "$work/hf/reward.json"
}
check 'what is exported scores alike' exported

# GRPO by the reward model: the rewards that are logged are scores of the answers, of which there are
# more that it prefers after some steps.
rewards_answers() {
    sed 's/"chosen".*/"x": 0}/' $pairs | head -n 40 > "$work/questions" &&
        ends 0 "$llm" grpo --model docs/data/llama.json --tokenizer "$work" --data "$work/questions" \
            --reward "model:$work/rm" --reward-standardize --tokens 6 --seq 24 --batch 64 --lr 1e-2 \
            --steps 30 --precision f32 --threads 1 --quiet --log "$work/log.csv" &&
        awk -F, 'NR > 1 && NR < 7 { first += $3 } NR > 26 { last += $3 } END { exit !(last > first + 1) }' \
            "$work/log.csv"
}
check 'a reward model rewards answers' rewards_answers
check 'a reward model without a folder' fails 1 'llm: the reward "model:" names no folder: model:DIR' \
    "$llm" grpo --model docs/data/llama.json --tokenizer "$work" --data "$work/questions" --reward model: \
    --tokens 6 --seq 24

standard() {
    ends 0 "$llm" score --model "$work/rm" --data "$work/chosen" --standardize --threads 1 &&
        paste "$work/a" "$work/out" | tr -d '}' | awk -v about="$work/rm/reward.json" '
            BEGIN { while ((getline line < about) > 0) { split(line, p, /[:,]/)
                    if (p[1] ~ /mean/) m = p[2]; if (p[1] ~ /deviation/) d = p[2] } }
            { e = ($2 - m) / d - $4; if (e > 1e-4 || e < -1e-4) exit 1 }'
}
check 'the mean and the deviation of held-out answers are taken out' standard

goes_on() {
    ends 0 "$llm" reward --model "$work/rm" --data $pairs --seq 20 --steps 2 --lr 0 --quiet --threads 1 &&
        held_out | awk '{ exit !($1 > 80) }' && ! grep -q lacks "$work/out"
}
check 'a reward model is trained on' goes_on

# An adapter over a model that predicts has the head: it scores by itself, since it names its base.
adapts() {
    ends 0 "$llm" pretrain --model docs/data/llama.json --corpus docs/data/stories.txt --vocab \
        "$work/vocab.txt" --seq 32 --batch 16 --steps 400 --lr 5e-3 --precision f32 --threads 1 --quiet --eval-batches 0 \
        --save "$work/base" &&
        ends 0 "$llm" reward --model "$work/base" --data $pairs --seq 20 --steps 600 --lr 5e-3 --lora r=8 \
            --precision f32 --threads 1 --quiet --save "$work/adapter" &&
        held_out | awk '{ exit !($1 > 70) }' && scores adapter chosen g && scores adapter rejected h &&
        paste "$work/g" "$work/h" | tr -d '}' | awk '$2 > $4 { n++ } END { exit n < 36 }' &&
        ends 0 "$llm" score --model "$work/base" --adapter "$work/adapter" --data "$work/chosen" \
            --threads 1 && cmp "$work/out" "$work/g" &&
        grep -q '"modules_to_save": \["score"\]' "$work/adapter/adapter_config.json"
}
check 'an adapter scores by its own head' adapts

# ---------------------------------------------------------------------------------- mistakes

check 'no pairs' fails 2 "llm: reward: pairs of answers are needed: --data FILE; $list" "$llm" reward
check 'a text' fails 2 "llm: reward: pairs of answers are needed: --data FILE; $list" "$llm" reward \
    --corpus a --vocab b
check 'batches' fails 2 "llm: reward: pairs of answers are needed: --data FILE; $list" "$llm" reward \
    --batch-file a
check 'rows of their own' fails 2 "llm: reward: --alone: each text of a pair has a row of its own \
already; $list" "$llm" reward --data a --tokenizer b --alone

# refused NAME LINE TEXT: a line of pairs is an error, which names it.
refused() {
    name=$1
    printf '%s\n' '{"prompt": "the", "chosen": " cat", "rejected": " dog"}' "$2" > "$work/bad"
    check "$name" says "$work/bad: line 2: $3"
}
says() {
    ends 1 "$llm" reward --model docs/data/llama.json --tokenizer "$work" --data "$work/bad" --seq 8 \
        --steps 1 --quiet && grep -Fq "$1" "$work/err"
}
refused 'equal answers' '{"prompt": "the", "chosen": " cat", "rejected": " cat"}' \
    '1:49: rejected equals "chosen"'
refused 'no prompt' '{"chosen": "cat", "rejected": "dog"}' '1:1: the top value has no prompt, and "chosen" and'
refused 'an empty answer' '{"prompt": "the", "chosen": "", "rejected": " dog"}' '1:29: chosen is an answer without'
refused 'a text that is too long' \
    '{"prompt": "the", "chosen": " cat", "rejected": " cat cat cat cat cat cat cat cat"}' \
    '1:49: rejected has 11 tokens, with those of the prompt: more than the 8 of --seq'
refused 'a margin that is no number' \
    '{"prompt": "the", "chosen": " cat", "rejected": " dog", "margin": "big"}' '1:67: margin must be a number'

check 'no model that scores' fails 1 "llm: $golden/llm/llama2 is no reward model: it has no head that \
scores (score.weight)" "$llm" score --model $golden/llm/llama2 --data "$work/chosen"
check 'nothing to score' fails 2 "llm: score: texts are needed: --data FILE; 'llm score --help' lists the \
options" "$llm" score --model "$work/rm"
check 'nothing to score with' fails 2 "llm: score: a reward model is needed: --model DIR; 'llm score \
--help' lists the options" "$llm" score --data "$work/chosen"
no_scale() {
    cp -r "$work/hf" "$work/bare" && rm "$work/bare/reward.json" &&
        fails 1 "llm: $work/bare has no reward.json, which --standardize reads" "$llm" score --model \
            "$work/bare" --data "$work/chosen" --standardize
}
check 'no scale' no_scale
: > "$work/empty"
check 'no text' fails 1 "llm: $work/empty has no text" "$llm" score --model "$work/rm" --data "$work/empty"
long() {
    ends 1 "$llm" score --model "$work/rm" --data "$work/chosen" --seq 4 &&
        grep -Fq 'more than the 4 of --seq' "$work/err"
}
check 'a text that is too long to be scored' long
for command in generate selftest eval finetune; do
    more='--load'
    [ $command != finetune ] || more='--model'
    predicts() {
        ! "$llm" $command $more "$work/rm" "$@" > "$work/out" 2> "$work/err" &&
            grep -Eq '(rm|the model) is a reward model' "$work/err"
    }
    case $command in
    generate) check 'a reward model generates nothing' predicts --tokens 2 the ;;
    selftest) check 'nor does it predict a text' predicts --text "$work/chosen" ;;
    eval) check 'nor is its loss evaluated' predicts --corpus docs/data/stories.txt ;;
    *) check 'nor is it trained to' predicts --data docs/data/chats.jsonl ;;
    esac
done

total
