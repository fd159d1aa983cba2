#!/bin/sh
# The commands ppo and rlhf: sh tests/cli/ppo.sh [PROGRAM]
#
# A small model learns from rewards of its answers, with a critic that is an adapter, or has parameters
# of its own. Messages for mistakes. One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

llm=${1:-build/llm}
. tests/cli/cli.sh

# What the others begin with: a model of a small language, reward models, prompts.
first() {
    cp docs/data/vocab.txt "$work" &&
        "$llm" pretrain --model docs/data/llama.json --corpus docs/data/stories.txt --vocab "$work/vocab.txt" \
            --seq 32 --batch 16 --steps 300 --lr 5e-3 --precision f32 --threads 1 --quiet --eval-batches 0 \
            --save "$work/writer" > "$work/out" 2> "$work/err" || return 1
    for rank in 0 8; do
        "$llm" reward --model "$work/writer" --data docs/data/pairs.jsonl --seq 20 --batch 8 --lr 3e-3 \
            --steps 300 --precision f32 --threads 1 --quiet --save "$work/rm$rank" \
            $([ $rank = 0 ] || echo "--lora r=$rank") > "$work/out" 2> "$work/err" || return 1
    done
    sed 's/"chosen".*/"answer": "mice"}/' docs/data/pairs.jsonl | head -n 40 > "$work/prompts.jsonl"
}
check 'a model and reward models' first

# ppo OPTIONS...: some steps; the columns of the log are in $work/log.csv, and in $work/columns without
# what belongs to parts.
ppo() {
    ends 0 "$llm" ppo --model "$work/writer" --data "$work/prompts.jsonl" --tokens 3 --seq 24 --batch 16 \
        --lr 2e-3 --critic-lr 3e-3 --quiet --threads 1 --log "$work/log.csv" "$@" &&
        cut -d, -f1-7,10-19 "$work/log.csv" > "$work/columns"
}
# column NAME: its values.
column() {
    awk -F, -v name="$1" 'NR == 1 { for (k = 1; k <= NF; k++) if ($k == name) at = k }
                          NR > 1 { print $at }' "$work/log.csv"
}

learns() {
    ppo --reward "model:$work/rm8" --steps 40 --batch 32 --precision f32 --lora r=4 &&
        column reward | awk 'NR <= 5 { first += $1 } NR > 35 { last += $1 } END { exit !(last > first + 1.5) }' &&
        column value_loss | awk 'NR <= 5 { first += $1 } NR > 35 { last += $1 } END { exit !(last < first / 4) }' &&
        column explained_variance | awk 'NR == 1 { first = $1 } END { exit !(first < 0 && $1 > 0.3) }' &&
        column ratio_low | awk '$1 != 1 { exit 1 }' && column kl1 | awk 'NR == 1 && $1 != 0 { exit 1 }' &&
        column kl3 | awk 'NR > 1 && $1 <= 0 { exit 1 }' && column reward_deviation | awk '$1 <= 0 { exit 1 }'
}
check 'rewards rise, and values come to predict them' learns

# Answers are worth 1, except for few, and so are their tokens, of gamma 1 and lambda 1.
values_become_rewards() {
    ppo --reward length --steps 60 --precision f32 --kl-reward 0 --lambda 1 --lr 1e-9 --critic-lr 1e-2 &&
        column reward | awk '$1 < 0.9 { exit 1 }' && column kl1 | awk '$1 != "nan" { exit 1 }' &&
        column value_loss | awk 'NR == 1 { first = $1 } END { exit !($1 < 0.01 && first > 0.1) }'
}
check 'values become the rewards that follow' values_become_rewards

# The first step has the start of the warm-up: at 0 the critic stays as it is for the second batch.
critic_follows_the_schedule() {
    for start in 0 1e-3; do
        ppo --reward length --steps 2 --answers 32 --precision f32 --lora r=4 --schedule warmup_lr \
            --warmup 4 --start-lr $start && column value_loss > "$work/losses.$start" || return
    done
    [ "$(head -n 1 "$work/losses.0")" = "$(head -n 1 "$work/losses.1e-3")" ] &&
        [ "$(tail -n 1 "$work/losses.0")" != "$(tail -n 1 "$work/losses.1e-3")" ]
}
check 'the critic follows all of the schedule' critic_follows_the_schedule

# Alone before the first step, which leaves the policy as it is; then at each second step.
critic_has_its_own_steps() {
    ppo --reward length --steps 4 --precision f32 --lora r=4 --critic-every 2 --critic-lr 1e-2 &&
        column value_loss | awk '(NR % 2 == 1) != ($1 == "nan") { exit 1 }' &&
        ppo --reward length --steps 1 --precision f32 --lora r=4 --critic-lr 1e-2 &&
        column value_loss > "$work/a" &&
        ppo --reward length --steps 1 --precision f32 --lora r=4 --critic-lr 1e-2 --critic-warmup 6 &&
        column value_loss | paste - "$work/a" | awk '{ exit !($1 < 0.5 * $2) }' &&
        [ "$(column kl1)" = 0 ]
}
check 'the critic has steps of its own' critic_has_its_own_steps

# All of a run, for the bits: two passes over two batches, an average, KL that is adapted, a text.
all="--ptx docs/data/stories.txt --ptx-rows 4 --ptx-coefficient 0.5 --reward exact --reward -0.1*length --group 2 --answers 32 --epochs 2 --steps 8 --ema 0.9
     --kl-target 0.1 --kl-horizon 64 --critic-every 2 --critic-warmup 1"
# same MODE: what is trained has the same numbers for any stage, ranks, threads, and where it goes on.
# shellcheck disable=SC2086 # words
same() {
    ppo $all $1 --micro-batches 4 && cp "$work/columns" "$work/columns.first" &&
        column kl_reward | awk 'NR == 1 { first = $1 } END { exit $1 == first }' &&
        ppo $all $1 --micro-batches 2 --ranks 2 --zero 1 --threads 2 &&
        cmp "$work/columns.first" "$work/columns" &&
        ppo $all $1 --ranks 4 --zero 3 --prefetch 4000 --offload optimizer=disk,parameters=disk \
            --offload-dir "$top/work" && cmp "$work/columns.first" "$work/columns" &&
        ppo $all $1 --micro-batches 4 --steps 3 --overwrite --save "$work/half" &&
        ppo $all $1 --micro-batches 2 --ranks 2 --zero 2 --load "$work/half" &&
        tail -n 5 "$work/columns.first" > "$work/a" && tail -n 5 "$work/columns" | cmp - "$work/a"
}
ln -s "$work" "$top/work" # without a space in its name
check 'an adapter has the same bits everywhere' same "--lora r=4 --precision bf16 --reward 0.1*model:$top/work/rm8"
check 'all parameters have the same bits everywhere' same "--precision f32 --critic $top/work/rm0"

# The values of the first answers, by a reward model that is an adapter: over the base of the policy, or
# over a base of its own.
begins_as() {
    ppo --reward exact "$@" --steps 1 --precision f32 --tokens 6 --batch 32 && column value_loss
}
begins_as_reward_model() {
    begins_as --critic "$work/rm8" --lora r=4 > "$work/shared" &&
        begins_as --critic "$work/rm8" > "$work/own" && begins_as > "$work/new" &&
        begins_as --reward "0.00001*model:$work/rm0" > "$work/named" &&
        begins_as --critic "$work/rm0" --lora r=2 > "$work/adapted" &&
        paste "$work/shared" "$work/own" "$work/named" "$work/adapted" "$work/new" | awk '
            function near(a, b) { return a - b < 1e-4 * a && b - a < 1e-4 * a }
            { exit !(near($1, $2) && near($3, $4) && !near($1, $3) && !near($1, $5) && $1 > 0.1) }'
}
check 'the critic begins as the reward model' begins_as_reward_model

# The values of what follows an answer are other numbers.
score_may_be_after() {
    begins_as > "$work/a" && begins_as --score-after | paste - "$work/a" | awk '{ exit $1 == $2 }'
}
check 'the score of an action after the answer' score_may_be_after

# Rewards by an adapter over the base of the policy are those by the same model with a base of its own.
rewards_over_the_base() {
    for base in '--lora r=4' ''; do
        # shellcheck disable=SC2086 # words or none
        ppo --reward "model:$work/rm8" $base --steps 1 --precision f32 --tokens 6 && column reward > "$work/b$base" ||
            return 1
    done
    paste "$work/b--lora r=4" "$work/b" | awk '{ d = $1 - $2; exit !(d < 1e-5 && d > -1e-5 && $1 != 0) }'
}
check 'a reward model over the base of the policy' rewards_over_the_base

list="; 'llm ppo --help' lists the options"
# refuses STATUS TEXT OPTIONS...
refuses() {
    wanted=$1
    text=$2
    shift 2
    ends "$wanted" "$llm" ppo --model "$work/writer" --data "$work/prompts.jsonl" --tokens 3 --seq 24 \
        --batch 16 --steps 1 --quiet --threads 1 "$@" && grep -qxF "$text" "$work/err"
}
text_loss() {
    ppo --reward -1*length --steps 30 --precision f32 --lr 4e-3 --ptx docs/data/stories.txt "$@" &&
        column ptx_loss | tail -n 10 | awk '{ sum += $1 } END { print sum / 10 }'
}
# One that hardly counts is forgotten.
keeps_text() {
    text_loss --ptx-coefficient 1e-7 > "$work/a" && text_loss > "$work/b" &&
        paste "$work/a" "$work/b" | awk '{ exit !($2 < 0.9 && $1 > 1.3 * $2) }'
}
check 'a text is still predicted' keeps_text
check 'rows that cannot be split' refuses 1 "llm: --ptx-rows 6 cannot be split into 4 equal parts (ranks x \
micro-batches)" --reward exact --ptx docs/data/stories.txt --ptx-rows 6 --micro-batches 4
echo 'a cat' > "$work/short.txt"
check 'a text shorter than a row' refuses 1 "llm: --ptx $work/short.txt has 3 tokens; a row of 12 and the \
token after it are needed" --reward exact --ptx "$work/short.txt"
check 'no rows without a text' refuses 2 "llm: ppo: --ptx-rows requires --ptx$list" --reward exact --ptx-rows 4
check 'no target without KL' refuses 2 "llm: ppo: --kl-target adapts --kl-reward, which must not be 0$list" \
    --reward exact --kl-target 1 --kl-reward 0
check 'no horizon without a target' refuses 2 "llm: ppo: --kl-horizon requires --kl-target$list" \
    --reward exact --kl-horizon 5
check 'a critic that is no reward model' refuses 1 "llm: $work/writer is no reward model: it has no head that \
scores (score.weight)" --reward exact --critic "$work/writer"
check 'a critic of another vocabulary' refuses 1 "llm: tests/golden/reward/llama is a reward model of another \
vocabulary: it has 37 ids, the other model 176" --reward exact --critic tests/golden/reward/llama
for name in critic reward0; do
    check "two adapters called $name" refuses 1 "llm: two adapters of one base have the name \"$name\": give the \
first one another (--lora name=NAME)" --reward "model:$work/rm8" --lora "r=4,name=$name"
done
random() {
    ends 2 "$llm" ppo --model docs/data/llama.json --tokenizer "$work" --data "$work/prompts.jsonl" \
        --reward exact && grep -qxF "llm: ppo: --kl-reward compares with the first weights, and these are \
random: --model DIR, or --kl-reward 0$list" "$work/err"
}
check 'no first weights to compare with' random
other_first_weights() {
    ppo $all --precision f32 --overwrite --save "$work/half" --steps 4 &&
        refuses 1 "llm: $work/half began with other weights than those of --model: name the folder that it was \
trained with" $all --precision f32 --batch 16 --lr 2e-3 --critic-lr 3e-3 --steps 4 --load "$work/half" --model "$work/half"
}
check 'goes on with the first weights alone' other_first_weights

help_shows() {
    ends 0 "$llm" "$1" --help all && grep -qF 'how losses of tokens make one [grpo]' "$work/out" &&
        ends 0 "$llm" ppo --help all && grep -qF 'how losses of tokens make one [bnpo]' "$work/out" &&
        grep -qF 'highest learning rate [1e-06]' "$work/out"
}
check 'help shows the defaults of the command' help_shows grpo

# ------------------------------------------------------------------------------------------ rlhf

# rlhf STEPS OPTIONS...: all three steps into $work/$place, of which the last has STEPS.
rlhf() {
    ppo_steps=$1
    shift
    ends 0 "$llm" rlhf --model "$work/writer" --data docs/data/pairs.jsonl --save "$work/$place" --seq 24 \
        --threads 1 --quiet --precision f32 --lora r=4 --sft '--steps 10 --lr 1e-3 --batch 8' \
        --reward '--steps 20 --lr 3e-3 --batch 8' \
        --ppo "--steps $ppo_steps --lr 1e-3 --critic-lr 1e-3 --batch 16 --tokens 4 --ema 0.9" "$@"
}
says() { grep -qF -- "$1" "$work/out"; }
three_steps() {
    place=whole && rlhf 8 && says 'step 3 of 3: ' && [ "$(cat "$work/whole"/*.jsonl | wc -l)" = 152 ] &&
        grep -q '"base_model_name_or_path": ".*/whole/sft"' "$work/whole/ppo/adapter_config.json" &&
        [ "$(head -n 1 "$work/whole/sft.jsonl")" = \
            '{"prompt":"what eats the owl ?","response":" the owl eats moths ."}' ] &&
        rlhf 8 --threads 2 && says "step 1 of 3: $work/whole/sft.adapter is done" && says 'ppo is done' && ! says LoRA
}
check 'three steps, each of which is done once' three_steps
# The last model is an adapter with averages. They are other weights, which answer and can be merged.
averages() {
    for which in '' --average; do
        # shellcheck disable=SC2086 # a word or none
        ends 0 "$llm" merge --load "$work/whole/sft" --adapter "$work/whole/ppo" $which --dtype f32 \
            "$work/merged$which.safetensors" || return 1
    done
    ! cmp -s "$work/merged.safetensors" "$work/merged--average.safetensors" &&
        ends 0 "$llm" generate --load "$work/whole/sft" --adapter "$work/whole/ppo" --average --tokens 2 cat
}
check 'averages of an adapter are merged' averages
check 'averages that an adapter does not have' fails 1 "llm: $work/whole/sft.adapter has no averages: it was \
trained without --ema" "$llm" generate --load "$work/writer" --adapter "$work/whole/sft.adapter" --average cat
# A checkpoint without the file of what is done is that of a run that was interrupted.
steps_go_on() {
    place=parts && rlhf 4 && rm "$work/parts/ppo.done" && rlhf 8 && says 'reward is done' &&
        says " --load '$work/parts/ppo'" && cmp "$work/whole/ppo/params.safetensors" \
            "$work/parts/ppo/params.safetensors"
}
check 'a step that was interrupted goes on' steps_go_on
one_step() {
    place=parts && rlhf 2 --step 3 && ! says 'step 1' && says ' --overwrite' && rlhf 2 && says 'ppo is done' &&
        rlhf 2 --step 2 && ends 1 "$llm" rlhf --model "$work/writer" --data docs/data/pairs.jsonl --save \
            "$work/none" --step 3 && grep -qx "llm: --step 3 needs step 1, which is not done in $work/none" \
            "$work/err"
}
check 'one step alone, anew' one_step
other_options() {
    ends 1 "$llm" rlhf --model "$work/writer" --data docs/data/pairs.jsonl --save "$work/whole" --threads 1 &&
        grep -qx "llm: $work/whole/sft.done: step 1 was done with other options or data: give the same, do it \
anew with --step 1, or name another --save" "$work/err"
}
check 'other options than those of what is done' other_options
# refused STATUS TEXT OPTIONS...: and nothing is written.
refused() {
    wanted=$1
    text=$2
    shift 2
    ends "$wanted" "$llm" rlhf --model "$work/writer" --save "$work/refused" "$@" &&
        [ "$(cat "$work/err")" = "$text" ]
}
rlhf_list="; 'llm rlhf --help' lists the options"
check 'no pairs' refused 2 "llm: rlhf: pairs are needed: --data FILE$rlhf_list"
check 'a mistake in the options of the last step' refused 2 "llm: ppo: there is no option '--kl-rewards'; \
is it --kl-reward?$list" --data docs/data/pairs.jsonl --ppo '--kl-rewards 1'
check 'proportions' refused 1 "llm: --split takes three numbers above 0, as 2,4,4, not '1,2'" \
    --data docs/data/pairs.jsonl --split 1,2
echo '{"chosen": "a", "rejected": "b"}' > "$work/bad.jsonl"
check 'a pair without a prompt' refused 1 "llm: $work/bad.jsonl: line 1: 1:1: the top value lacks \"prompt\"" \
    --data "$work/bad.jsonl"
echo '{"prompt": "a", "chosen": [], "rejected": "b"}' > "$work/bad.jsonl"
check 'an answer of another type' refused 1 "llm: $work/bad.jsonl: line 1: 1:27: chosen must be of the type of \
the prompt, not an array" --data "$work/bad.jsonl"

total
