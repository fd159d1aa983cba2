#!/bin/sh
# The command grpo: sh tests/cli/grpo.sh [PROGRAM]
#
# A small model learns from rewards of its answers, for any ranks, stages and interruptions. Messages for
# mistakes. One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

llm=${1:-build/llm}
. tests/cli/cli.sh

# A Llama with random weights and a tokenizer of characters, and eight prompts.
mkdir "$work/rewarded"
cp tests/golden/llm/llama2/config.json tests/golden/llm/llama2/model.safetensors "$work/rewarded"
echo '{}' > "$work/rewarded/tokenizer_config.json"
awk 'BEGIN {
    printf "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {"
    for (i = 0; i < 37; i++)
        printf "%s\"%c\": %d", i ? ", " : "", i < 26 ? 97 + i : i == 26 ? 32 : 21 + i, i
    print "}}}"
}' > "$work/rewarded/tokenizer.json"
for letter in a b c d e f g h; do
    echo "{\"prompt\": \"$letter\", \"answer\": \"x\"}"
done > "$work/prompts.jsonl"

# grpo OPTIONS...: some steps; the columns of the log but the speed are in $work/columns.
grpo() {
    ends 0 "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --tokens 8 --seq 24 \
        --batch 32 --lr 1e-2 --quiet --threads 1 --log "$work/log.csv" "$@" &&
        cut -d, -f1-18 "$work/log.csv" > "$work/columns"
}
# column NAME: its values.
column() {
    awk -F, -v name="$1" 'NR == 1 { for (k = 1; k <= NF; k++) if ($k == name) at = k }
                          NR > 1 { print $at }' "$work/log.csv"
}
has_a='cmd:awk -F\" "{ print \$4 ~ /a/ }"'
learns_rewards() {
    grpo --steps 30 --precision f32 --batch 64 --reward "$has_a" &&
        column reward | awk 'NR == 1 { first = $1 } END { exit !(first < 0.4 && $1 > 0.9) }' &&
        column ratio_low | awk '$1 != 1 { exit 1 }' && column ratio_high | awk '$1 != 1 { exit 1 }' &&
        column mismatch | awk '$1 > 1e-5 { exit 1 }' && column kl3 | awk '$1 != "nan" { exit 1 }'
}
check 'answers are rewarded by a command' learns_rewards

# The first pass over answers has the log p with which they were scored, in all precisions, with an
# adapter as well, whose base is the reference.
ratios_are_1() {
    for precision in f32 bf16 f16; do
        grpo --steps 3 --precision $precision --lora r=4 --kl-beta 0.1 --reward length &&
            column ratio_low | awk '$1 != 1 { exit 1 }' &&
            column ratio_high | awk '$1 != 1 { exit 1 }' &&
            column kl1 | awk 'NR == 1 ? $1 != 0 : $1 == 0 { exit 1 }' || return 1
    done
}
check 'ratios of the first pass are 1' ratios_are_1
several_passes() {
    grpo --steps 8 --answers 64 --epochs 2 --loss gspo --advantage rloo --reward length &&
        column ratio_high | awk '(NR % 4 == 1) != ($1 == 1) { exit 1 }' &&
        column reward | awk 'NR % 4 != 1 && $1 != last { exit 1 } { last = $1 }' &&
        column clipped | awk '{ sum += $1 } END { exit !(sum > 0) }'
}
check 'several passes over the answers of an iteration' several_passes

# Answers, rewards and steps are the same for any stage and ranks with equal parts.
same_on_ranks() {
    grpo --steps 4 --precision f32 --micro-batches 2 --reward "$has_a" --reward -0.1*length &&
        cp "$work/columns" "$work/columns.before" || return 1
    for stage in 0 3; do
        grpo --steps 4 --precision f32 --ranks 2 --zero $stage --reward "$has_a" \
            --reward -0.1*length && cmp "$work/columns.before" "$work/columns" || return 1
    done
}
check 'the same rewards on every number of ranks' same_on_ranks

# What is sampled from is gathered once for all tokens, whatever holds it; phases add up to the iteration.
# iterations OPTIONS...: the lines of the iterations, in $work/lines.
iterations() {
    ends 0 "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --seq 24 --batch 32 --steps 2 \
        --reward length --threads 1 --precision f32 "$@" &&
        grep '^iteration' "$work/out" > "$work/lines"
}
# phase NAME: its seconds, and its bytes.
phase() { sed -n "s/.* $1 \([^,]*\).*/\1/p" "$work/lines"; }
gathers_once() {
    iterations --tokens 2 --ranks 4 --zero 3 --group 4 && phase gather | awk '{ print $(NF - 1), $NF }' \
        > "$work/two" && grep -q MiB "$work/two" &&
        iterations --tokens 12 --ranks 4 --zero 3 --group 4 && phase gather | awk '{ print $(NF - 1), $NF }' |
        cmp - "$work/two" && iterations --tokens 2 --ranks 4 --zero 2 --group 4 && ! phase gather | grep MiB
}
check 'what is sampled from is gathered once' gathers_once
adds_up() {
    iterations --tokens 8 --ranks 2 --zero 3 && [ "$(wc -l < "$work/lines")" = 2 ] &&
        awk '{ sum = 0; gsub(":", "")
               for (k = 4; k < NF; k++) if ($(k + 1) == "s" && $k + 0 == $k) sum += $k
               if (sum < 0.97 * $3 || sum > 1.03 * $3) exit 1 }' "$work/lines" &&
        for part in prompt decode score train; do phase $part | grep -q tokens/s || return 1; done
}
check 'an iteration says where its time goes' adds_up
# held COLUMNS OPTIONS...: what does not belong to parts.
held() {
    to=$work/$1
    shift
    grpo --steps 3 --precision bf16 --group 4 --lora r=4 --reward length "$@" &&
        cut -d, -f1-8,12-14 "$work/columns" > "$to"
}
same_when_held() {
    held one --micro-batches 4 && held nodes --ranks 4 --nodes 2 || return 1
    for how in '--zero 3 --prefetch 4000' '--zero 1' '--zero 3 --offload parameters=host' \
        "--zero 3 --offload optimizer=disk,parameters=disk --offload-dir $top"; do
        # shellcheck disable=SC2086 # words
        held now --ranks 4 $how && cmp "$work/now" "$work/one" || return 1
    done
    held now --ranks 4 --nodes 2 --zero 3 --zero-hpz && cmp "$work/now" "$work/nodes"
}
check 'the same rewards where parameters are gathered' same_when_held

# goes_on OPTIONS...: the last two steps of four are the same after an interruption.
goes_on() {
    rm -rf "$work/halfway"
    grpo --steps 4 --reward length "$@" && tail -n 2 "$work/columns" > "$work/columns.before" &&
        grpo --steps 2 --reward length --save "$work/halfway" "$@" &&
        grpo --steps 4 --reward length --load "$work/halfway" "$@" &&
        tail -n 2 "$work/columns" | cmp - "$work/columns.before"
}
check 'training on rewards goes on' goes_on
# A checkpoint amid the four steps on the answers of an iteration has them.
goes_on_amid() {
    head -n 2 "$work/prompts.jsonl" > "$work/held.jsonl"
    set -- --answers 64 --epochs 2 --loss gspo --reward "$has_a" --reward length --precision f32 \
        --held-out "$work/held.jsonl" --held-out-every 1 --samples "$work/samples"
    rm -rf "$work/halfway" "$work/whole"
    grpo --steps 7 "$@" --micro-batches 2 --save "$work/whole" && tail -n 1 "$work/columns" > "$work/columns.one" &&
        cp "$work/samples" "$work/samples.one" && [ "$(wc -l < "$work/samples")" = 6 ] &&
        grpo --steps 3 "$@" --micro-batches 2 --save "$work/halfway" &&
        grpo --steps 6 "$@" --ranks 2 --zero 3 --load "$work/halfway" --save "$work/halfway" &&
        grpo --steps 7 "$@" --micro-batches 2 --load "$work/halfway" --save "$work/halfway" &&
        tail -n 1 "$work/columns" | cmp - "$work/columns.one" && cmp "$work/samples" "$work/samples.one" &&
        cmp "$work/whole/params.safetensors" "$work/halfway/params.safetensors" &&
        cmp "$work/whole/answers.bin" "$work/halfway/answers.bin"
}
check 'training goes on amid the steps of an iteration' goes_on_amid

# Groups without a signal are replaced, at most as often as asked for, alike on all ranks and after an
# interruption.
begins_with_a='cmd:awk -F\" "{ print \$4 ~ /^[a-d]/ }"'
redraws() {
    grpo --steps 3 --precision f32 --group 2 --micro-batches 2 --reward "$begins_with_a" &&
        column no_signal > "$work/without" && column redrawn | awk '$1 != 0 { exit 1 }' &&
        grpo --steps 3 --precision f32 --group 2 --micro-batches 2 --reward "$begins_with_a" --redraws 2 &&
        column no_signal | paste - "$work/without" | awk '$1 >= $2 { exit 1 }' &&
        column redrawn > "$work/redrawn" && column no_signal | paste - "$work/redrawn" |
        awk '$2 < 2 * $1 || $2 > 2 { exit 1 }' && cp "$work/columns" "$work/columns.one" &&
        grpo --steps 3 --precision f32 --group 2 --ranks 2 --zero 3 --reward "$begins_with_a" --redraws 2 &&
        cmp "$work/columns" "$work/columns.one" &&
        grpo --steps 1 --precision f32 --redraws 3 --reward regex:^#nothing && [ "$(column redrawn)" = 3 ] &&
        [ "$(column no_signal)" = 1 ] && goes_on --redraws 2 --group 2 --reward "$begins_with_a"
}
check 'groups with equal rewards are drawn anew' redraws

# Held-out prompts change no step, and are answered alike on all ranks.
held_out() {
    head -n 3 "$work/prompts.jsonl" > "$work/held.jsonl"
    grpo --steps 5 --precision f32 --micro-batches 2 --reward length &&
        cut -d, -f1-15 "$work/columns" > "$work/columns.one" &&
        grpo --steps 5 --precision f32 --micro-batches 2 --reward length --held-out "$work/held.jsonl" \
            --held-out-every 2 --samples "$work/samples" && cp "$work/samples" "$work/samples.one" &&
        cut -d, -f1-15 "$work/columns" | cmp - "$work/columns.one" &&
        column held_out | awk 'NR % 2 == 0 ? $1 != "nan" : !($1 > 0 && $1 <= 1) { exit 1 }' &&
        [ "$(grep -c '^{"iteration":[0245],"line":[123],"completion":".*","reward":[0-9.]*}$' \
            "$work/samples")" = 12 ] &&
        grep -qx 'held out: reward [0-9.]* of 3 prompts, [0-9.]* tokens an answer, [0-9.]*% of them ended' \
            "$work/out" &&
        grpo --steps 5 --precision f32 --ranks 2 --zero 3 --reward length --held-out "$work/held.jsonl" \
            --held-out-every 2 --samples "$work/samples" && cmp "$work/samples" "$work/samples.one" &&
        cut -d, -f1-15 "$work/columns" | cmp - "$work/columns.one"
}
check 'held-out prompts are answered' held_out
check 'samples without prompts' fails 2 "llm: grpo: --samples requires --held-out; 'llm grpo --help' lists the \
options" "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --reward length --samples "$work/x"
check 'held-out prompts that are missing' fails 1 "llm: $work/none: No such file or directory" \
    "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --seq 24 --tokens 8 --reward length \
    --held-out "$work/none"

# The reference is what training began with: the base of an adapter (above), an adapter as it was loaded,
# or a copy of the weights.
begins_at_0() { column kl3 | awk 'NR == 1 ? $1 != 0 : $1 <= 0 { exit 1 }'; }
reference_is_copied() {
    goes_on --kl-beta 0.1 --precision f32 && grpo --steps 3 --reward length --kl-beta 0.1 && begins_at_0
}
check 'the first weights are the reference' reference_is_copied
check 'other first weights' fails 1 "llm: $work/halfway began with other weights than those of --model: name \
the folder that it was trained with" "$llm" grpo --model docs/data/llama.json --init "$work/halfway" \
    --tokenizer "$work/rewarded" --data "$work/prompts.jsonl" --tokens 8 --seq 24 --batch 32 --lr 1e-2 \
    --quiet --kl-beta 0.1 --precision f32 --reward length --load "$work/halfway" --steps 4
reference_is_an_adapter() {
    grpo --steps 3 --reward length --lora r=4 --save "$work/adapter" || return 1
    set -- --adapter "$work/adapter" --kl-beta 0.1 --reward length
    grpo --steps 3 "$@" --micro-batches 4 --group 4 && begins_at_0 &&
        cut -d, -f1-8,12-14 "$work/columns" > "$work/columns.one" || return 1
    for stage in 0 3; do
        grpo --steps 3 "$@" --ranks 4 --group 4 --zero $stage && cut -d, -f1-8,12-14 "$work/columns" |
            cmp - "$work/columns.one" || return 1
    done
    goes_on --adapter "$work/adapter" --kl-beta 0.1 --ranks 2 --zero 3
}
check 'an adapter as it was loaded is the reference' reference_is_an_adapter

# refuses STATUS TEXT OPTIONS...: where a command line is wrong, that tells of --help too.
refuses() {
    wanted=$1
    text=$2
    shift 2
    fails "$wanted" "$text" "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --seq 24 \
        --tokens 8 "$@"
}
list="; 'llm grpo --help' lists the options"
check 'no reward' refuses 2 "llm: grpo: a reward is needed: --reward SPEC$list"
check 'a group of one' refuses 2 "llm: grpo: --group takes a whole number from 2 to 65536, not '1'$list" \
    --reward length --group 1
check 'a group larger than the batch' refuses 2 "llm: grpo: --batch must be a multiple of --group: a \
step has whole groups$list" --reward length --group 128
for option in '--top-k 5' '--top-p 0.9' '--repetition-penalty 1.2'; do
    # shellcheck disable=SC2086 # words
    check "sampling of some tokens alone, $option" refuses 2 "llm: grpo: ${option% *} requires --off-policy$list" \
        --reward length $option
done
check 'a group that does not divide the batch' refuses 2 "llm: grpo: --batch must be a multiple of --group: a \
step has whole groups$list" --reward length --group 24
sampling_of_some() {
    grpo --steps 1 --reward length --top-k 2 --off-policy --correction truncate &&
        column mismatch | awk '$1 < 0.5 { exit 1 }'
}
check 'sampling of some tokens is measured' sampling_of_some
# A penalty changes more, the surer the policy is.
comes_apart() {
    grpo --steps 25 --precision f32 --reward "$has_a" --repetition-penalty 1.1 --off-policy --quiet &&
        grep -q '^llm: iteration [0-9]*: log p of sampled tokens differ by [0-9.]* from .* at first: ' "$work/err"
}
check 'a mismatch that grows is said' comes_apart
# Each id that ends answers by the files of the model ends them, and is trained; others are cut, and may
# be left out.
several_ends() {
    grpo --steps 1 --precision f32 --reward length && column ended > "$work/ends.0" && awk '$1 > 0.5 { exit 1 }' \
        "$work/ends.0" && echo '{"eos_token_id": [2, 5, 7, 11, 13, 17, 19, 23]}' > \
        "$work/rewarded/generation_config.json" &&
        grpo --steps 20 --precision f32 --reward -1*length && column ended | awk 'NR == 1 { first = $1 } END {
            exit !(first > 0.5 && $1 > 0.9) }' &&
        grpo --steps 1 --precision f32 --reward length --leave-cut && column reward > "$work/a" &&
        grpo --steps 1 --precision f32 --reward length && column reward | paste - "$work/a" |
        awk '{ exit !($2 < $1) }'
}
check 'several ids end answers' several_ends
rm "$work/rewarded/generation_config.json"
check 'dropout of an adapter' refuses 1 "llm: --lora dropout=0.1: what is compared must be computed \
without dropout" --reward length --lora r=4,dropout=0.1
check 'dropout' refuses 1 "llm: $work/rewarded has a dropout of 0.1, and what is compared must be \
computed without: give --dropout 0" --reward length --dropout 0.1
check 'no room for an answer' refuses 1 "llm: --seq 8 has no room for a prompt and an answer of \
--tokens 8" --reward length --seq 8
echo '{"prompt": "longer"}' >> "$work/prompts.jsonl"
check 'a prompt longer than the row' refuses 1 "llm: $work/prompts.jsonl: line 9: the prompt has 6 tokens, \
at most 4 fit" --reward length --seq 12
check 'KL to random weights' fails 2 "llm: grpo: --kl-beta compares with the first weights, and these \
are random: --model DIR, or --init DIR$list" "$llm" grpo --model docs/data/llama.json --tokenizer \
    "$work/rewarded" --data "$work/prompts.jsonl" --seq 24 --tokens 8 --reward length --kl-beta 0.1
fails_with_line() {
    ends 1 "$llm" grpo --model "$work/rewarded" --data "$work/prompts.jsonl" --seq 24 --tokens 8 --quiet \
        --steps 1 "$@" && cat "$work/err" | grep -qx "llm: $text"
}
text='.*prompts.jsonl: the prompt of line 9: .*lacks "answer"' check 'a line without the answer' \
    fails_with_line --batch 96 --reward exact
text='.*prompts.jsonl: cmd:exit 3: failed with status 3, at answers to the prompts of lines 1 to 9' \
    check 'a command that fails' fails_with_line --reward 'cmd:exit 3'
text='.*prompts.jsonl: cmd:echo x: for an answer to the prompt of line [1-9]: printed "x", which is no number and not null' \
    check 'a command that prints text' fails_with_line --reward 'cmd:echo x'
text='.*prompts.jsonl: cmd:sleep 9: did not end within 0.1 s, at answers to the prompts of lines 1 to [89]' \
    check 'a command that hangs' fails_with_line --reward 'cmd:sleep 9' --reward-deadline 0.1

rm -r "$work/rewarded"

total
