#!/bin/sh
# The command line of the sample GPT-2: sh tests/cli/gpt.sh [PROGRAM]
#
# Messages for mistakes; that a small language, in which the words of a sentence follow from each
# other, is learned and generated; that a resumed run has the same bits; that exported weights
# can be read again. One line per check, and "N passed, N failed" at the end. Works in a
# folder whose name has a space in it.
set -u
export LC_ALL=C

gpt=${1:-build/gpt}
golden=tests/golden/gpt
. tests/cli/cli.sh

# ------------------------------------------------------------------------------ bad command lines

list="'gpt pretrain --help' lists the options"
check 'a command of others' fails 2 "gpt: dpo is a command of llm and opt, for the models that these know" \
    "$gpt" dpo
check 'unknown command' fails 2 "gpt: there is no command 'train'; 'gpt --help' lists them" \
    "$gpt" train
check 'bad number' fails 2 "gpt: pretrain: --batch takes a whole number from 1 to 1048576, not '0'; \
$list" "$gpt" pretrain --batch 0
check 'no text' fails 2 "gpt: pretrain: a text to train on is needed: --corpus FILE, or batches: \
--batch-file FILE; $list" "$gpt" pretrain
check 'no vocabulary' fails 2 "gpt: pretrain: --corpus requires --vocab; $list" "$gpt" pretrain --corpus c
check 'a place that is not there' fails 2 "gpt: pretrain: --save-every requires --save; $list" "$gpt" pretrain --corpus c --vocab v --save-every 1
check 'no checkpoint' fails 2 "gpt: generate: a checkpoint is needed: --load DIR; 'gpt generate \
--help' lists the options" "$gpt" generate
check 'help' ends 0 "$gpt" pretrain --help

# ------------------------------------------------------------------------------------ a language

awk -v vocab="$work/vocab.txt" 'BEGIN {
    split("cat dog bird fish horse", who); split("runs sleeps sings swims eats", does)
    split("house garden river forest field", where); seed = 1
    print "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nin\nnear\n." > vocab
    for (k = 1; k <= 5; k++) print who[k] "\n" does[k] "\n" where[k] > vocab
    for (d = 0; d < 60; d++) {
        for (s = 0; s < 8; s++) {
            seed = (seed * 16807) % 2147483647; k = seed % 5 + 1
            printf "The %s %s in the %s near the %s.\n", who[k], does[k], where[k], where[k % 5 + 1]
        }
        print ""
    }
}' > "$work/text"
cat > "$work/config.json" << 'END'
{"vocab_size": 24, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40, "embd_pdrop": 0.05,
 "attn_pdrop": 0.05, "resid_pdrop": 0.05}
END

# pretrain OPTIONS...: trains the small model on the small language.
pretrain() {
    ends 0 "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" \
        --vocab "$work/vocab.txt" --seq 32 --batch 4 --lr 3e-3 --quiet "$@"
}

learns() {
    pretrain --steps 1000 --report "$work/report.json" --log "$work/log.csv" --save "$work/learned" \
        --dump "$work/learned.safetensors" && [ "$(wc -l < "$work/log.csv")" = 1001 ] &&
        awk -F '[:,]' '
            /"held_out_loss"/ { loss = $2 }
            /"unigram_entropy"/ { entropy = $2 }
            END { exit !(loss > 0 && loss < entropy / 2) }' "$work/report.json"
}
check 'learns a small language' learns
grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/held out"
evaluated() {
    ends 0 "$gpt" eval --load "$work/learned" --corpus "$work/text" --seq 32 --batch 4 &&
        cmp "$work/out" "$work/held out"
}
check 'evaluation is what the run said' evaluated

writes() {
    ends 0 "$gpt" generate --load "$work/learned" --temperature 0 --tokens 4 'The bird' &&
        [ "$(cat "$work/out")" = 'The bird sings in the river' ]
}
check 'writes it' writes

# Longer than the window of the model.
draws() {
    for seed in 7 7 8; do
        ends 0 "$gpt" generate --load "$work/learned" --seed $seed --tokens 50 || return 1
        cp "$work/out" "$work/text$seed.$((draw = ${draw:-0} + 1))"
    done
    cmp -s "$work/text7.1" "$work/text7.2" && ! cmp -s "$work/text7.1" "$work/text8.3"
}
check 'draws a text by its seed' draws

weights() {
    ends 0 "$gpt" export --load "$work/learned" "$work/weights.safetensors" &&
        cmp -s "$work/weights.safetensors" "$work/learned.safetensors" &&
        pretrain --steps 0 --init "$work/weights.safetensors" --report "$work/again.json" &&
        [ "$(grep held_out "$work/report.json")" = "$(grep held_out "$work/again.json")" ]
}
check 'weights go out and in' weights

# Ranks along tensor and pipe: the bits of one rank with as many sections, which go on on other ranks.
# Checkpoints are compared as one rank saves them again.
one='--eval-batches 1 --micro-batches 4 --sections tensor=2'
same_values() { # STEPS A B
    for name in "$2" "$3"; do
        pretrain --steps "$1" $one --load "$work/$name" --save "$work/$name again" --overwrite || return
    done
    for file in params state; do
        cmp "$work/$2 again/$file.safetensors" "$work/$3 again/$file.safetensors" || return
    done
}
shared() {
    pretrain --steps 3 $one --save "$work/of one" &&
        grep '^held out: ' "$work/out" > "$work/of one.held" &&
        pretrain --steps 3 --ranks 4 --tensor 2 --micro-batches 2 --zero 2 --save "$work/shared" \
            --eval-batches 1 &&
        same_values 3 'of one' shared &&
        pretrain --steps 3 --ranks 8 --tensor 2 --pipe 2 --pipe-layers 1,1 --micro-batches 2 --zero 3 \
            --sum parts --save "$work/piped" --eval-batches 1 && grep '^held out: ' "$work/out" > "$work/piped.held" &&
        cmp "$work/of one.held" "$work/piped.held" && same_values 3 'of one' piped &&
        pretrain --steps 4 --ranks 2 --tensor 2 --micro-batches 4 --load "$work/piped" \
            --save "$work/goes on" --eval-batches 1 &&
        pretrain --steps 4 $one --load "$work/shared" --save "$work/one goes on" &&
        pretrain --steps 4 --ranks 2 --pipe 2 --pipe-schedule zb-h1 $one --load "$work/of one" \
            --save "$work/pipe goes on" &&
        same_values 4 'goes on' 'one goes on' && same_values 4 'goes on' 'pipe goes on' &&
        pretrain --steps 4 --load "$work/shared" --micro-batches 4 &&
        grep -q 'was trained with 2 sections of sums, not 1: bits differ (--sections tensor=2)' \
            "$work/out" &&
        pretrain --steps 4 --ranks 8 --tensor 2 --pipe 2 --micro-batches 2 --load "$work/piped" &&
        grep -q 'added one part after the other (--sum parts), not those of a rank.s 2 micro-batches first' \
            "$work/out" && grep -q ' in 4 parts, of which each rank adds 2 first (--sum micro)' "$work/out"
}
check 'ranks share layers' shared
# Axes in another order: other neighbours, and the same bits.
ordered() {
    for order in tensor,data,pipe data,pipe,tensor; do
        pretrain --steps 3 --ranks 8 --tensor 2 --pipe 2 --micro-batches 2 --zero 3 --eval-batches 1 \
            --order $order --sum parts --save "$work/ordered" --overwrite &&
            grep '^held out: ' "$work/out" | cmp - "$work/of one.held" && same_values 3 'of one' ordered || return
    done
}
check 'axes in another order' ordered
# Ranks with several chunks each: any layout goes on with their checkpoints, and they with others'.
chunks() {
    sed 's/"n_layer": [0-9]*/"n_layer": 4/' "$work/config.json" > "$work/four.json"
    four() { pretrain --model "$work/four.json" --eval-batches 0 --schedule constant "$@"; }
    four --micro-batches 4 --steps 4 --save "$work/unchunked" &&
        four --micro-batches 4 --steps 1 --save "$work/chunks" &&
        four --micro-batches 4 --steps 2 --ranks 2 --pipe 2 --pipe-schedule zb-v \
            --load "$work/chunks" --save "$work/chunks" --overwrite &&
        four --steps 3 --ranks 4 --pipe 2 --zero 3 --micro-batches 2 --sum parts --load "$work/chunks" \
            --save "$work/chunks" --overwrite &&
        four --micro-batches 4 --steps 4 --ranks 2 --pipe 2 --pipe-schedule interleaved \
            --load "$work/chunks" --save "$work/chunks" --overwrite || return
    for name in unchunked chunks; do "$gpt" export --load "$work/$name" "$work/$name.safetensors"; done
    cmp "$work/unchunked.safetensors" "$work/chunks.safetensors"
}
check 'ranks with several stages' chunks
# The plan of later steps has the buckets of the store, which each stage fills in its own order.
delayed() {
    late() {
        pretrain --steps 3 --micro-batches 2 --sum parts --tile 500 --delay-update 1 \
            --eval-batches 0 "$@"
    }
    late --dump "$work/late" && late --ranks 2 --pipe 2 --dump "$work/later" &&
        cmp "$work/late" "$work/later"
}
check 'stages with pieces of weights and delayed updates' delayed
# Each rank plans within --memory: a byte less than the first one takes, with the same bits.
layers() { # LAYERS OPTIONS...: a step of so many layers, and a byte less than it takes
    sed "s/\"n_layer\": [0-9]*/\"n_layer\": $1/" "$work/config.json" > "$work/layers.json"
    shift
    pretrain --model "$work/layers.json" --batch 16 --steps 1 --eval-batches 0 --micro-batches 2 --sum micro \
        --context-kind gather --sections tensor=2,context=2 --report "$work/report.json" "$@" &&
        limit=$(($(sed -n 's/^  "predicted_peak_bytes": \(.*\),$/\1/p' "$work/report.json") - 1))
}
within_memory() {
    layers 4 --dump "$work/unlimited" || return
    for how in '' '--ranks 2 --tensor 2' '--ranks 2 --context 2' '--ranks 2 --pipe 2' \
        '--ranks 8 --tensor 2 --context 2 --pipe 2'; do
        # shellcheck disable=SC2086
        layers 4 $how && least=$limit && layers 4 $how --memory "$least" --dump "$work/limited" &&
            grep -q "^within $least bytes: .*recompute;" "$work/out" && cmp "$work/unlimited" "$work/limited" ||
            return
    done
}
dealt() { # a stage with more micro-batches in flight gives a layer to the other
    layers 8 --ranks 2 --pipe 2 && least=$limit && layers 8 --ranks 2 --pipe 2 --memory "$least" &&
        grep -q "^within $least bytes: all on the device, nothing recomputed;" "$work/out"
}
check 'layers of stages that fit' dealt
check 'memory of ranks that share layers, sequences or have stages' within_memory
refused() {
    "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" --vocab "$work/vocab.txt" \
        --quiet "$@"
}
check 'ranks that tensor does not divide' fails 1 'gpt: --tensor 3 does not divide the 4 ranks' \
    refused --ranks 4 --tensor 3
check 'sections that tensor does not divide' fails 2 "gpt: pretrain: --sections tensor=S: S must be \
a multiple of --tensor; $list" refused --ranks 2 --tensor 2 --sections tensor=3
check 'ranks that pipe does not divide' fails 1 'gpt: --tensor 2 times --pipe 2 does not divide the 6 ranks' \
    refused --ranks 6 --tensor 2 --pipe 2 --micro-batches 2
check 'stages without micro-batches' fails 2 "gpt: pretrain: --pipe P keeps P stages busy with \
--micro-batches of P or more; $list" refused --ranks 2 --pipe 2
check 'more stages than layers' fails 1 "gpt: zf_stages: 3 ranks along pipe, and the graph has 2 layers; \
each rank has one or more" refused --seq 32 --batch 6 --ranks 3 --pipe 3 --micro-batches 3
check 'layers of stages' fails 1 'gpt: zf_stages: layers is "2,1", 3 in all, and the graph has 2 layers' \
    refused --seq 32 --ranks 2 --pipe 2 --micro-batches 2 --pipe-layers 2,1
check 'layers without stages' fails 2 "gpt: pretrain: --pipe-layers requires --pipe; $list" \
    refused --pipe-layers 1,1
check 'a schedule without stages' fails 2 "gpt: pretrain: --pipe-schedule requires --pipe; $list" \
    refused --pipe-schedule gpipe
check 'more chunks than layers' fails 1 "gpt: zf_stages: 4 chunks of the ranks along pipe, and the graph \
has 2 layers; each chunk has one or more" refused --seq 32 --ranks 2 --pipe 2 --micro-batches 2 --pipe-chunks 2 \
    --pipe-schedule interleaved
refuses 'memory that a stage needs' 'zf_passes: nothing fits rank 0 along pipe; what comes nearest (recompute) takes ' \
    refused --seq 32 --ranks 2 --pipe 2 --micro-batches 2 --memory 1K
check 'sections that context does not divide' fails 2 "gpt: pretrain: --sections context=S: S must be \
a multiple of --context; $list" refused --ranks 2 --context 2 --sections context=3
check 'halves and parts of tokens' fails 2 "gpt: pretrain: --sequence tensor excludes --context-kind zigzag, which deals \
halves: leave it out; $list" refused --ranks 4 --context 2 --context-kind zigzag --tensor 2 --sequence tensor
check 'a form of attention of whole sequences' fails 2 "gpt: pretrain: --context-kind is for ranks that share \
sequences: --context C, or --sections context=S; $list" refused --context-kind gather
check 'ranks that context does not divide' fails 1 'gpt: --context 3 does not divide the 4 ranks' \
    refused --ranks 4 --context 3
# Ranks that share layers begin with weights of a folder, and write theirs, as one rank does.
begins_with() {
    from() { pretrain --steps 2 --eval-batches 1 --init "$work/folder" "$@"; }
    pretrain --steps 0 --ranks 4 --tensor 2 --pipe 2 --micro-batches 4 --eval-batches 0 --save "$work/taken by 4" \
        --init "$work/learned" --dump "$work/dumped" && cmp "$work/dumped" "$work/learned.safetensors" &&
        "$gpt" export --load "$work/taken by 4" "$work/exported.safetensors" &&
        cmp "$work/exported.safetensors" "$work/learned.safetensors" &&
        from --micro-batches 4 --sections tensor=2 --dump "$work/dump of one" --dump-grads "$work/grads of one" || return
    grep '^held out: ' "$work/out" > "$work/held of one"
    for how in '--ranks 8 --tensor 2 --pipe 2 --micro-batches 2 --zero 3 --sum parts' \
        '--ranks 2 --pipe 2 --micro-batches 4 --pipe-schedule zb-h1 --sections tensor=2 --eval-every 1'; do
        from $how --sum parts --dump "$work/dumped" --dump-grads "$work/grads" && grep '^held out: ' "$work/out" | cmp - "$work/held of one" &&
            cmp "$work/dumped" "$work/dump of one" && cmp "$work/grads" "$work/grads of one" || return
    done
    from --ranks 4 --tensor 2 --micro-batches 2 --zero 3 --dump-grads "$work/grads" &&
        cmp "$work/grads" "$work/grads of one"
}

# A model of blocks generates with them, as a checkpoint and as a folder; its weights do not become those
# of a model that sees all by an oversight.
blocks='layout=window,length=32,width=1'
sees_blocks() {
    pretrain --steps 40 --attention window,width=1 --save "$work/blocks" --eval-batches 1 &&
        grep -q "\"zeroflow_attention\": \"$blocks\"" "$work/blocks/config.json" &&
        ends 0 "$gpt" export --load "$work/blocks" "$work/blocks folder" &&
        grep -q "was trained with --attention $blocks" "$work/out" || return 1
    for from in "$work/blocks" "$work/blocks folder"; do
        ends 0 "$gpt" generate --load "$from" --temperature 0 --tokens 24 'The bird' || return 1
        cp "$work/out" "$work/text of $(basename "$from")"
    done
    cmp "$work/text of blocks" "$work/text of blocks folder" &&
        pretrain --steps 42 --load "$work/blocks" --attention window,width=1 --eval-batches 0
}
check 'a model of blocks generates with them' sees_blocks
check 'weights of blocks as those of all' fails 1 "gpt: $work/blocks was trained with --attention $blocks: \
give it, or --attention off" "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" --vocab \
    "$work/vocab.txt" --seq 32 --init "$work/blocks"
check 'blocks of another width' fails 1 "gpt: $work/blocks was trained with --attention $blocks, not \
layout=window,length=32,width=2: give the same, or start anew from its weights with --init $work/blocks" \
    "$gpt" pretrain --corpus "$work/text" --vocab "$work/vocab.txt" --seq 32 --batch 4 --lr 3e-3 \
    --load "$work/blocks" --attention window,width=2

# What is drawn for a prompt depends on no other one: the first of a file, the second, or alone.
rows_alike() {
    printf 'the cat\nthe dog sings in\nthe cat\n' > "$work/prompts"
    draws() { ends 0 "$gpt" generate --load "$work/learned" --temperature 3 --tokens 12 "$@"; }
    draws --prompts "$work/prompts" && cp "$work/out" "$work/rows" &&
        draws 'the cat' && [ "$(cat "$work/out")" = "$(sed -n 1p "$work/rows")" ] &&
        draws 'the dog sings in' && [ "$(cat "$work/out")" = "$(sed -n 2p "$work/rows")" ] &&
        [ "$(sed -n 1p "$work/rows")" != "$(sed -n 3p "$work/rows")" ]
}
check 'a text does not depend on its row' rows_alike

# More prompts than go on together: rows are filled again, and lines come in their order.
many_rows() {
    awk 'BEGIN { for (k = 0; k < 100; k++) print k % 3 ? "the cat" : "the dog sings in" }' \
        > "$work/prompts"
    draws --prompts "$work/prompts" && cp "$work/out" "$work/many" && [ "$(wc -l < "$work/many")" = 100 ] &&
        awk '(NR % 3 == 1) != /^the dog sings in/ { exit 1 }' "$work/many" &&
        [ "$(sed -n 2p "$work/many")" = "$(sed -n 1p "$work/rows")" ] &&
        [ "$(sed -n 1p "$work/many")" = "$(sed -n 2p "$work/rows")" ] &&
        [ "$(sed -n 3p "$work/many")" = "$(sed -n 3p "$work/rows")" ]
}
check 'more prompts than rows' many_rows

# A folder of Hugging Face generates the text of the checkpoint; a run can start from it, and with 0
# steps it becomes a checkpoint again.
folder() {
    ends 0 "$gpt" export --load "$work/learned" "$work/folder" &&
        cmp "$work/folder/model.safetensors" "$work/learned.safetensors" &&
        cmp "$work/folder/vocab.txt" "$work/vocab.txt" &&
        grep -q '"eos_token_id": 3' "$work/folder/config.json" || return 1
    for from in "$work/folder" "$work/learned"; do
        rm -rf "$work/taken"
        ends 0 "$gpt" generate --load "$from" --temperature 0 --tokens 4 'The bird' &&
            [ "$(cat "$work/out")" = 'The bird sings in the river' ] &&
            ends 0 "$gpt" pretrain --corpus "$work/text" --seq 32 --init "$from" --steps 0 \
                --eval-batches 0 --save "$work/taken" &&
            ends 0 "$gpt" export --load "$work/taken" "$work/taken.safetensors" &&
            cmp "$work/taken.safetensors" "$work/learned.safetensors" || return 1
    done
}
check 'a folder for transformers, and of it' folder
check 'ranks that share layers begin with it' begins_with
# An adapter of ranks that share layers is that of one rank, and so is what it is worth.
adapter_of_ranks() {
    lora() { pretrain --steps 2 --eval-batches 1 --init "$work/folder" --lora r=2,dora "$@"; }
    lora --micro-batches 4 --sections tensor=2 --save "$work/adapter of 1" &&
        grep '^held out: ' "$work/out" > "$work/held of one" &&
        lora --ranks 4 --tensor 2 --pipe 2 --micro-batches 4 --zero 2 --sum parts --save "$work/adapter of 4" &&
        grep '^held out: ' "$work/out" | cmp - "$work/held of one" &&
        cmp "$work/adapter of 1/adapter_model.safetensors" "$work/adapter of 4/adapter_model.safetensors"
}
check 'an adapter of ranks that share layers' adapter_of_ranks
goes_on() {
    pretrain --steps 20 --schedule constant --warmup 4 --dump "$work/all" --eval-batches 0 &&
        pretrain --steps 12 --schedule constant --warmup 4 --save "$work/half" --eval-batches 0 &&
        pretrain --steps 20 --schedule constant --warmup 4 --load "$work/half" \
            --dump "$work/halves" --eval-batches 0 --threads 2 && cmp -s "$work/all" "$work/halves"
}
check 'goes on with the same bits' goes_on
check 'goes on with other settings' fails 1 "gpt: $work/half was trained with batch = 4, not 5: give \
the same --batch, or start anew from its weights with --init $work/half" "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" --vocab "$work/vocab.txt" \
    --seq 32 --batch 5 --lr 3e-3 --quiet --schedule constant --warmup 4 --load "$work/half"

# Flags that differ are named as what they are, and a schedule that is stretched is said.
go_on() {
    pretrain --schedule linear --warmup 4 --load "$work/linear" "$@"
}
flags() {
    pretrain --schedule linear --warmup 4 --steps 10 --save "$work/linear" &&
        ! go_on --steps 12 --cased && [ "$(cat "$work/err")" = "gpt: $work/linear was trained without \
--cased: leave it out, or start anew from its weights with --init $work/linear" ] &&
        ! go_on --steps 12 --no-fuse all && [ "$(cat "$work/err")" = "gpt: $work/linear was trained \
without --no-fuse: leave it out, or start anew from its weights with --init $work/linear" ]
}
check 'goes on with another flag' flags
stretched() {
    go_on --steps 20 && grep -Fqx "$work/linear was trained for --steps 10, not 20: its learning rate \
goes on as that of 20 steps, 0.00169 after 0" "$work/out" &&
        go_on --steps 10 && ! grep -q 'learning rate' "$work/out"
}
check 'goes on with another number of steps' stretched
check 'evaluates as many tokens as the model has' \
    ends 0 "$gpt" eval --load "$work/linear" --corpus "$work/text"

# Without --vocab, the checkpoint's is used; another one, or another text, is an error.
run_on() {
    corpus=$1
    shift
    ends "$@" "$gpt" pretrain --model "$work/config.json" --corpus "$corpus" --seq 32 --batch 4 \
        --lr 3e-3 --quiet --steps 20 --schedule constant --warmup 4 --load "$work/half" \
        --dump "$work/alone" --eval-batches 0 $vocab
}
alone() { vocab='' run_on "$work/text" 0 && cmp -s "$work/all" "$work/alone"; }
check 'goes on with its own vocabulary' alone
tac "$work/vocab.txt" > "$top/vocab.txt"
another_vocabulary() {
    vocab="--vocab $top/vocab.txt" run_on "$work/text" 1 &&
        grep -q "^gpt: $work/half was trained with another vocabulary than $top/vocab.txt: " \
            "$work/err"
}
check 'another vocabulary' another_vocabulary
tac "$work/text" > "$work/tacit"
another_text() {
    vocab='' run_on "$work/tacit" 1 &&
        grep -q "^gpt: $work/half was trained on another text than $work/tacit, or with its \
sentences in another order: " "$work/err"
}
check 'another order of sentences' another_text

# Examples, and batches of a file: what is dropped is counted, and a run goes on with the same only.
few() {
    file=$1
    shift
    ends 0 "$gpt" pretrain --model "$work/config.json" --tokenizer "$work" --data "$file" --seq 9 \
        --batch 2 --quiet "$@"
}
awk 'BEGIN {
    for (k = 0; k < 20; k++) print "{\"prompt\": \"the cat\", \"response\": \" runs in the house .\"}"
    print "{\"prompt\": \"the cat in the house near the forest\", \"response\": \" runs\"}"
    print "{\"prompt\": \"the cat\", \"response\": \" runs in the house near the river in the forest .\"}"
}' > "$work/few"
dropped="$work/few: of 22 examples, 1 are cut to the 9 tokens of --seq, and 1 are left out, which \
have no label within them"
counts() {
    few "$work/few" --steps 2 --save "$work/counted" && grep -Fqx "$dropped" "$work/out" &&
        ends 0 "$gpt" eval --load "$work/counted" --data "$work/few" --seq 9 &&
        grep -Fqx "$dropped" "$work/out"
}
check 'examples that are cut or left out are counted' counts
other_few() {
    sed 's/runs in/sleeps in/' "$work/few" > "$work/others"
    ! few "$work/others" --steps 4 --load "$work/counted" && grep -q \
        "^gpt: $work/counted was trained on another text than $work/others, or " "$work/err"
}
check 'other examples of that number' other_few
batches() {
    file=$1
    shift
    ends 0 "$gpt" pretrain --model $golden/config.json --batch-file "$file" --quiet "$@"
}
other_batches() {
    cp $golden/batch.safetensors "$work/batches"
    printf '\1' | dd of="$work/batches" bs=1 seek=$(($(wc -c < "$work/batches") - 8)) conv=notrunc 2> "$work/err"
    batches $golden/batch.safetensors --steps 2 --save "$work/batched" &&
        batches $golden/batch.safetensors --steps 3 --load "$work/batched" &&
        ! batches "$work/batches" --steps 3 --load "$work/batched" && grep -q \
        "^gpt: $work/batched was trained on another text than $work/batches, or " "$work/err"
}
check 'another file of batches' other_batches
not_text() {
    { cat "$work/few"; head -c 9 /dev/zero; } > "$work/zeros"
    ! few "$work/zeros" --steps 1 &&
        [ "$(cat "$work/err")" = "gpt: $work/zeros: line 23: a NUL byte, so this is no text" ]
}
check 'zero bytes after the examples' not_text

# A checkpoint has the vocabulary as it was read, even if its file has changed since.
edited() {
    cp "$work/vocab.txt" "$work/edited"
    "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" --vocab "$work/edited" \
        --seq 32 --batch 4 --steps 1000000 --quiet --log "$work/edited.csv" --save "$work/unedited" \
        > "$work/out" 2> "$work/err" < /dev/null &
    while kill -0 $! && ! [ "$(grep -c '' "$work/edited.csv")" -gt 2 ]; do sleep 0.1; done \
        2> "$work/waits"
    tac "$work/vocab.txt" > "$work/edited"
    kill -INT $!
    wait $!
    [ $? = 130 ] && cmp "$work/vocab.txt" "$work/unedited/vocab.txt"
}
check 'a vocabulary that was edited meanwhile' edited

narrow() {
    pretrain --steps 5 --precision bf16 --save "$work/narrow" --dump "$work/masters" &&
        ends 0 "$gpt" generate --load "$work/narrow" --tokens 3 'The cat' &&
        ends 0 "$gpt" generate --load "$work/narrow" --dtype f32 --tokens 3 'The cat' &&
        ends 0 "$gpt" export --load "$work/narrow" "$work/f32.safetensors" &&
        cmp "$work/f32.safetensors" "$work/masters" &&
        ends 0 "$gpt" export --load "$work/narrow" --dtype bf16 "$work/bf16.safetensors" &&
        [ "$(wc -c < "$work/bf16.safetensors")" -lt "$(wc -c < "$work/masters")" ]
}
check 'trains and writes in bf16' narrow

# ------------------------------------------------------------------------------------------ ranks

# ranked RUN OPTIONS...: a short run; writes its parameters and losses.
ranked() {
    leaves=$1
    shift
    pretrain --steps 6 --dropout 0.2 --clip 0.5 --bucket 20000 --eval-batches 4 \
        --log "$work/ranks.csv" --dump "$work/$leaves.params" "$@" && {
        cut -d, -f1-4 "$work/ranks.csv"
        grep '^held out: ' "$work/out"
    } > "$work/$leaves.losses"
}
like() { # like RUN OPTIONS...: another run leaves the same.
    model=$1
    shift
    ranked other "$@" && cmp "$work/$model.params" "$work/other.params" &&
        cmp "$work/$model.losses" "$work/other.losses"
}
for optimizer in adamw lamb; do
    check "four ranks, $optimizer" ranked $optimizer --optimizer $optimizer --ranks 4
    for zero in 0 1 2 3; do
        check "stage $zero, 2 ranks x 2 micro-batches, $optimizer: the same bits" like $optimizer \
            --optimizer $optimizer --zero $zero --ranks 2 --micro-batches 2 --prefetch 20000
    done
done
check 'another optimizer has others' eval '! cmp -s "$work/adamw.params" "$work/lamb.params"'
check 'layers recomputed: the same bits' like adamw --micro-batches 4 --recompute layers
drawn() {
    pretrain --steps 3 --seconds 1e6 --svg "$work/loss.svg" --report "$work/report.json" &&
        grep -q ': 3 steps, about .* (all --steps)$' "$work/out" &&
        grep -q '>loss (nats)<' "$work/loss.svg" && grep -q '"tokens_per_s": [1-9]' "$work/report.json"
}
check 'measures a step, and draws the loss' drawn

# --------------------------------------------------------------------------------------- examples

# A tokenizer without regular expressions, and animals with what they do.
mkdir "$work/tokenizer"
template=$(head -n 1 tests/golden/tokens/llama2.txt)
printf '%s%s%s' "${template%%@spm@*}" "$(cat tests/golden/tokens/spm.part)" \
    "${template#*@spm@}" > "$work/tokenizer/tokenizer.json"
cp tests/golden/chat/mistral-v3/tokenizer_config.json "$work/tokenizer"
awk 'BEGIN {
    split("cat dog bird fish horse", who); split("runs sleeps sings swims eats", does)
    for (k = 0; k < 60; k++)
        printf "{\"prompt\": \"the %s\", \"response\": \"%s\"}\n", who[k % 5 + 1], does[k % 5 + 1]
}' > "$work/examples"
sed 's/"vocab_size": 24/"vocab_size": 420/' "$work/config.json" > "$work/tuned.json"

# tune OPTIONS...: on these examples.
tune() {
    ends 0 "$gpt" pretrain --model "$work/tuned.json" --data "$work/examples" \
        --tokenizer "$work/tokenizer" --seq 40 --batch 4 --lr 3e-3 --quiet --schedule constant \
        --warmup 0 "$@"
}
tuned() {
    tune --steps 120 --dump "$work/all" --save "$work/tuned" && grep -q ', 3 of them held out$' "$work/out" &&
        grep -q '^held out: loss 0\.[01][0-9]*, perplexity 1\.[0-9]$' "$work/out"
}
check 'examples are learned' tuned
tuned_on() {
    tune --steps 80 --save "$work/begun" --eval-batches 0 &&
        tune --steps 120 --load "$work/begun" --dump "$work/halves" --eval-batches 0 --threads 2 &&
        cmp -s "$work/all" "$work/halves"
}
check 'examples go on with the same bits' tuned_on

evaluated_on() { # all of them
    ends 0 "$gpt" eval --load "$work/tuned" --data "$work/examples" --tokenizer "$work/tokenizer" \
        --batch 5 && grep -q '^loss 0\.[01][0-9]*, perplexity 1\.[0-9]$' "$work/out" &&
        cp "$work/out" "$work/whole" &&
        ends 0 "$gpt" eval --model "$work/tuned" --data "$work/examples" --alone \
            --tokenizer "$work/tokenizer" && cmp -s "$work/whole" "$work/out"
}
check 'examples are evaluated, packed and alone' evaluated_on
# best DIR OPTIONS...: the checkpoint with the lowest held-out loss, which the report has.
best() {
    dir=$1
    shift
    tune --eval-every 4 --save "$dir" --report "$work/report.json" "$@" && [ -d "$dir.best" ] &&
        grep -q '"best_step": [0-9]*' "$work/report.json"
}
kept_best() {
    best "$work/whole-run" --steps 16 &&
        [ "$(grep -c '^held out after step' "$work/out")" = 4 ] &&
        best "$work/parts" --steps 8 && best "$work/parts" --steps 16 --load "$work/parts" &&
        cmp -s "$work/whole-run.best/params.safetensors" "$work/parts.best/params.safetensors" &&
        ! tune --eval-every 4 --save "$work/new" --overwrite --steps 4 --batch-file x &&
        mv "$work/parts.best" "$work/other.best" && ! best "$work/other" --steps 4 &&
        grep -q 'other.best: it holds the checkpoint of another run' "$work/err"
}
check 'the best checkpoint is kept' kept_best

# answers TEXT OPTIONS...: what it writes, most likely tokens first.
answers() {
    text=$1
    shift
    ends 0 "$gpt" generate --load "$work/tuned" --tokenizer "$work/tokenizer" --temperature 0 \
        --tokens 9 "$@" && [ "$(cat "$work/out")" = "$text" ]
}
check 'answers' answers ' sings' --chat auto 'the bird'
thinks_not() { # TEXT OPTIONS...: only chats of one style
    text=$1 && shift
    ! "$gpt" generate --load "$work/tuned" --no-thinking "$@" 'the bird' 2> "$work/err" &&
        grep -q "^gpt: $text" "$work/err"
}
check '--no-thinking of other styles' eval 'thinks_not "--no-thinking is for chats" --chat auto &&
    thinks_not "generate: --no-thinking requires --chat"'
check 'a style whose tokens the tokenizer lacks' fails 1 "gpt: chats of the style mistral-v3 need the \
token [INST], which the tokenizer lacks" "$gpt" generate --load "$work/tuned" --tokenizer "$work/tokenizer" \
    --chat mistral-v3 'the bird'
# shellcheck disable=SC2016 # Jinja
echo '{{ bos_token }}[INST] {{ messages[0].content ~ end }}' > "$work/chat.jinja"
check 'answers by a template and its variables' answers ' sings' --chat "$work/chat.jinja" \
    --chat-vars '{"end": "[/INST]"}' --prompt 'the bird'
check 'a variable that the template does not read' fails 1 "gpt: 1:8: nd is not read by the template of \
these chats" "$gpt" generate --load "$work/tuned" --tokenizer "$work/tokenizer" \
    --chat "$work/chat.jinja" --chat-vars '{"nd": ""}' 'the bird'
check 'variables without a chat' fails 2 "gpt: generate: --chat-vars requires --chat; 'gpt generate \
--help' lists the options" "$gpt" generate --load "$work/tuned" --chat-vars '{}' 'the bird'
check 'two prompts' fails 2 "gpt: generate: a prompt, --prompt and --prompts exclude one another; 'gpt \
generate --help' lists the options" "$gpt" generate --load "$work/tuned" --prompt a b
answers_itself() { # by the checkpoint's own tokenizer, or that of its export
    for from in "$work/tuned" "$work/exported"; do
        ends 0 "$gpt" generate --load "$from" --temperature 0 --tokens 9 --chat auto 'the bird' &&
            [ "$(cat "$work/out")" = ' sings' ] || return 1
        [ "$from" = "$work/exported" ] || ends 0 "$gpt" export --load "$from" "$work/exported" ||
            return 1
    done
    cmp "$work/tokenizer/tokenizer.json" "$work/exported/tokenizer.json"
}
check 'answers by the tokenizer that it has kept' answers_itself
# An adapter learns other answers; the model that it adapts stays what it was.
sed 's/bird/x/; s/fish/bird/; s/x/fish/' "$work/examples" > "$work/others"
adapted() {
    tune --init "$work/tuned" --data "$work/others" --lora r=4,alpha=8,targets=c_attn,c_fc,c_proj \
        --lr 1e-2 --steps 40 --save "$work/adapter" --eval-batches 0 &&
        grep -q '^LoRA: 0.0[0-9]* million of them are trained, of rank 4$' "$work/out" &&
        answers ' swims' --chat auto --adapter "$work/adapter" 'the bird' &&
        answers ' sings' --chat auto 'the bird' &&
        ends 0 "$gpt" merge --load "$work/tuned" --adapter "$work/adapter" "$work/merged" &&
        answers ' swims' --chat auto --load "$work/merged" 'the bird'
}
check 'an adapter answers otherwise, and can be merged' adapted
nothing_added() {
    mkdir "$work/zeroed" && cp "$work/adapter/adapter_model.safetensors" "$work/zeroed" &&
        sed 's/"lora_alpha": 8/"lora_alpha": 0/' "$work/adapter/adapter_config.json" \
            > "$work/zeroed/adapter_config.json" &&
        answers ' sings' --chat auto --adapter "$work/zeroed" 'the bird' &&
        ends 0 "$gpt" merge --load "$work/tuned" --adapter "$work/zeroed" "$work/merged0" &&
        answers ' sings' --chat auto --load "$work/merged0" 'the bird'
}
check 'an adapter with alpha 0 adds nothing' nothing_added
# Weights of products are [in, out] in the files of GPT-2. One that an adapter keeps is so in its file,
# which is as a model with this adapter added.
# shape FILE TENSOR: its dimensions.
shape() { head -c 20000 "$1" | tr -d '\0' | grep -ao "$2\": *{[^}]*" | grep -o '"shape": *\[[^]]*\]' | head -n 1; }
keeps_turned() {
    c_fc=transformer.h.0.mlp.c_fc.weight
    tune --init "$work/tuned" --data "$work/others" --lora r=2,targets=c_attn,keep=c_fc --lr 1e-2 \
        --steps 40 --save "$work/keeping" --eval-batches 0 &&
        answers ' swims' --chat auto --adapter "$work/keeping" 'the bird' &&
        ends 0 "$gpt" merge --load "$work/tuned" --adapter "$work/keeping" "$work/merged-keeping" &&
        answers ' swims' --chat auto --load "$work/merged-keeping" 'the bird' &&
        shape "$work/merged-keeping/model.safetensors" "$c_fc" > "$work/a" && [ -s "$work/a" ] &&
        shape "$work/keeping/adapter_model.safetensors" "base_model.model.$c_fc" | cmp - "$work/a" &&
        tune --init "$work/tuned" --data "$work/others" --adapter "$work/keeping" --lr 0 --steps 1 \
            --save "$work/keeping-again" --eval-batches 0 &&
        cmp "$work/keeping/adapter_model.safetensors" "$work/keeping-again/adapter_model.safetensors"
}
check 'an adapter of GPT-2 keeps a weight' keeps_turned
check 'an adapter is no model' fails 1 "gpt: $work/adapter is an adapter, without its base: name \
the base's folder, and this one with --adapter; 'merge' writes them as one model" "$gpt" export --load "$work/adapter" "$work/x"
other_base() {
    ! tune --init "$work/begun" --data "$work/others" --lora r=4,alpha=8,targets=c_attn,c_fc,c_proj \
        --lr 1e-2 --steps 50 --load "$work/adapter" --eval-batches 0 &&
        grep -q "^gpt: $work/adapter is an adapter of other weights than those of --init: " "$work/err"
}
check 'an adapter of other weights' other_base
other_base_of() {
    said="gpt: $work/adapter is an adapter of other weights than those of $work/merged: "
    command=$1
    shift
    ends 1 "$gpt" "$command" --load "$work/merged" --adapter "$work/adapter" "$@" &&
        grep -Fq "$said" "$work/err"
}
check 'generates by an adapter of other weights' other_base_of generate --tokens 3 a
check 'evaluates an adapter of other weights' other_base_of eval --data "$work/others"
check 'merges an adapter of other weights' other_base_of merge "$work/x"
check 'an adapter without weights to adapt' fails 2 "gpt: pretrain: --lora adapts the weights of a \
folder: --init DIR, or of finetune, --model DIR; $list" "$gpt" pretrain --data d --tokenizer t \
    --lora r=4
check 'stops before a text' answers ' si' --chat auto --stop ng 'the bird'
check 'a text that may begin to stop is written' answers ' sings' --chat auto --stop ngz 'the bird'
check 'stops before the first of several texts' answers ' s' --chat auto --stop ng --stop x --stop i \
    'the bird'
printf 'the bird\nthe fish\nthe\n' > "$work/prompts"
together() {
    : > "$work/each"
    for text in 'the bird' 'the fish' the; do
        run "$gpt" generate --load "$work/tuned" --tokenizer "$work/tokenizer" --tokens 9 \
            --temperature 0 --chat auto "$text"
        cat "$work/out" >> "$work/each"
    done
    answers "$(cat "$work/each")" --chat auto --prompts "$work/prompts"
}
check 'prompts of different lengths go on together' together
mkdir "$work/wordlevel"
sed 's/"type":"BPE"/"type":"WordLevel"/' "$work/tokenizer/tokenizer.json" > "$work/wordlevel/tokenizer.json"
another_kind() {
    ! "$gpt" generate --load "$work/tuned" --tokenizer "$work/wordlevel" a 2> "$work/err" &&
        grep -q 'wordlevel/tokenizer.json:.*: model.type must be one of BPE, Unigram, not "WordLevel"$' "$work/err"
}
check 'a tokenizer of another kind' another_kind
check 'a context that is too long' fails 1 "gpt: a prompt of 20 tokens and 30 more are too long for \
a context of 40: shorten it, or give fewer --tokens" "$gpt" generate --load "$work/tuned" \
    --tokenizer "$work/tokenizer" --tokens 30 'xxxxxxxxxxxxxxxxxx'
# chats LINES OPTIONS...: what it answers to lines, in $work/out.
chats() {
    printf "$1" > "$work/lines"
    shift
    "$gpt" chat --load "$work/tuned" --tokenizer "$work/tokenizer" --temperature 0 "$@" \
        < "$work/lines" > "$work/out" 2> "$work/err"
}
says() { [ "$(tr '\n' '|' < "$work/out")" = "$1" ]; }
check 'a chat' eval 'chats "the bird\n/new\nthe fish\n" --tokens 9 && says ">  sings|> >  swims|> |"'
longer_chat() { # the second one finds a part of its text in the caches, and answers alike
    chats 'the bird\nthe\n' --tokens 5 && first=$(tr '\n' '|' < "$work/out") &&
        chats 'the bird\nthe\n/new\nthe bird\nthe\n' --tokens 5 && says "${first%|}$first" &&
        [ "$(printf '%s' "$first" | tr -cd '>')" = '>>>' ]
}
check 'a chat of several messages' longer_chat
check 'a chat longer than the context' eval 'chats "the bird\n" --tokens 38 && says "> > |" &&
grep -q "^this chat has [0-9]* tokens, and with 38 for the answer there are more than the context of \
40: /new begins another one$" "$work/err"'
check 'a message longer than the context' eval 'chats "$(printf "%020000d" 0)\n" --tokens 5 && says "> > |" &&
grep -q "^this chat has 20[0-9]* tokens, and with 5 " "$work/err"'
tests_itself() {
    ends 0 "$gpt" selftest --load "$work/tuned" --tokenizer "$work/tokenizer" --text "$work/prompts" \
        --tokens 5 &&
        grep -q '^text: [0-9]* tokens, loss [0-9]*\.[0-9]*, perplexity [0-9.]*$' "$work/out" &&
        grep -q '^speed: prompt [0-9.]* tokens/s, generation [0-9.]* tokens/s, b*f[0-9]*, [1-9][0-9]* threads$' \
            "$work/out" &&
        grep -q '^memory: weights [0-9.]* MiB, caches for [0-9]* tokens 0\.[0-9], .* MiB$' "$work/out"
}
check 'tests itself' tests_itself
by_words() { # with a WordPiece vocabulary, which the checkpoint keeps
    sed 's/the /The /; s/"}/ in the garden ."}/' "$work/examples" > "$work/sentences" &&
        ends 0 "$gpt" pretrain --init "$work/learned" --data "$work/sentences" --seq 32 --batch 4 \
            --steps 3 --quiet --save "$work/by-words" && [ -s "$work/by-words/vocab.txt" ] &&
        grep -q ', 3 of them held out$' "$work/out" &&
        ends 0 "$gpt" eval --load "$work/by-words" --data "$work/sentences" --seq 32
}
check 'examples of a WordPiece vocabulary' by_words
other_examples() {
    tail -n 50 "$work/examples" > "$work/fewer"
    ! tune --data "$work/fewer" --steps 120 --load "$work/begun" --eval-batches 0 &&
        grep -q "^gpt: $work/begun was trained on another text than $work/fewer" "$work/err"
}
check 'other examples' other_examples
check 'a style of chats that is not there' fails 1 "gpt: there is no style of chats alpaca, only \
none, chatml, gemma, gemma3, llama2, llama3, llama3.1, llama3.2, mistral-v1, mistral-v2, mistral-v3, \
mistral-nemo, mistral, phi3, phi3.5, qwen2, qwen2.5, qwen3, smollm2, zephyr; a file of a template has a / in \
its path, or ends in .jinja" "$gpt" pretrain \
    --model "$work/tuned.json" --data "$work/examples" --tokenizer "$work/tokenizer" --chat alpaca
check 'examples without a tokenizer' fails 2 "gpt: pretrain: --data requires --tokenizer; $list" "$gpt" pretrain --data d
check 'more tokens than the model has' fails 1 "gpt: $work/examples: line 1: the token \
\"▁\" of the text has the id 314, and the model has only 24 ids: it needs the tokenizer that it \
was trained with" "$gpt" pretrain --model "$work/config.json" \
    --data "$work/examples" --tokenizer "$work/tokenizer"

# Documents apart: other numbers, the same on several ranks, and no resume without it.
packs() {
    pretrain --steps 4 --batch 8 --micro-batches 2 --pack --dump "$work/packed" --save "$work/packing" &&
        pretrain --steps 4 --batch 8 --ranks 2 --zero 2 --pack --dump "$work/packed on 2" &&
        cmp "$work/packed" "$work/packed on 2" &&
        pretrain --steps 4 --batch 8 --micro-batches 2 --dump "$work/in rows" &&
        ! cmp -s "$work/packed" "$work/in rows"
}
check 'documents apart' packs
# eval has the loss of the held-out part that training printed, with --pack alone.
evaluates_packed() {
    held_out() {
        ends 0 "$gpt" eval --load "$work/packing" --corpus "$work/text" --seq 32 --batch 8 "$@" &&
            sed -n 's/^loss \([0-9.]*\),.*/\1/p' "$work/out"
    }
    pretrain --steps 4 --batch 8 --micro-batches 2 --pack --eval-batches 16 &&
        trained=$(sed -n 's/^held out: loss \([0-9.]*\),.*/\1/p' "$work/out") &&
        [ -n "$trained" ] && [ "$(held_out --pack)" = "$trained" ] && [ "$(held_out)" != "$trained" ]
}
check 'documents apart are evaluated' evaluates_packed
check 'eval: documents of examples' fails 2 "gpt: eval: --pack requires --corpus; 'gpt eval --help' \
lists the options" "$gpt" eval \
    --load "$work/packing" --data "$work/examples" --pack
check 'and no longer' fails 1 "gpt: $work/packing was trained with --pack: give it, or start anew from \
its weights with --init $work/packing" "$gpt" pretrain --model "$work/config.json" \
    --corpus "$work/text" --vocab "$work/vocab.txt" --seq 32 --batch 8 --lr 3e-3 --micro-batches 2 \
    --steps 6 --load "$work/packing"
check 'documents of examples' fails 2 "gpt: pretrain: --pack requires --corpus; $list" "$gpt" pretrain \
    --data "$work/examples" --tokenizer "$work/tokenizer" --pack

# ------------------------------------------------------------------------------- what all runs do

self=gpt
reading="$work/text"
train() {
    $before "$gpt" pretrain --model "$work/config.json" --corpus "$work/text" \
        --vocab "$work/vocab.txt" --seq 32 --batch 4 "$@"
}
. tests/cli/runs.sh

# ------------------------------------------------------------------------------------ batch files

given() {
    ends 0 "$gpt" pretrain --model $golden/config.json --batch-file $golden/batch.safetensors \
        --init $golden/init.safetensors --precision f32 --steps 0 && grep -q '^loss 4\.9685[0-9]*$' "$work/out"
}
check 'the loss of given batches' given
given_again() { # of a checkpoint and of a folder, the first of them and all
    ends 0 "$gpt" pretrain --model $golden/config.json --batch-file $golden/batch.safetensors \
        --init $golden/init.safetensors --precision f32 --steps 0 --save "$work/given" &&
        ends 0 "$gpt" export --load "$work/given" "$work/given-folder" || return 1
    for from in "$work/given" "$work/given-folder"; do
        ends 0 "$gpt" eval --load "$from" --batch-file $golden/batch.safetensors --batches 1 &&
            grep -q '^loss 4\.968[56], perplexity 143\.8$' "$work/out" &&
            ends 0 "$gpt" eval --load "$from" --batch-file $golden/batch.safetensors &&
            ! grep -q '^loss 4\.968[56]' "$work/out" && cat "$work/out" >> "$work/all batches" ||
            return 1
    done
    [ "$(sort -u "$work/all batches" | wc -l)" = 1 ]
}
check 'batches are evaluated' given_again
check 'two things to evaluate' fails 2 "gpt: eval: --corpus and --batch-file exclude each other; \
'gpt eval --help' lists the options" "$gpt" eval --load "$work/learned" --corpus c \
    --batch-file b
sed 's/"n_layer": 2/"n_layer": 1/' $golden/config.json > "$work/one.json"
check 'weights of another model' fails 1 "gpt: $golden/init.safetensors: the model has no tensor \
transformer.h.1.attn.c_attn.bias; do the sizes of --model fit?" "$gpt" pretrain \
    --model "$work/one.json" --batch-file $golden/batch.safetensors --init $golden/init.safetensors

# ------------------------------------------------------------------------ weights of few bits: llm

llm=$(dirname "$gpt")/llm
tells_usage() { ends 0 "$llm" "$1" --help && [ "$(head -n 1 "$work/out")" = "usage: llm $2" ]; }
check 'help of pretrain' tells_usage pretrain 'pretrain --corpus FILE --vocab FILE [OPTIONS]'
check 'help of finetune' tells_usage finetune 'finetune --model DIR --data FILE [OPTIONS]'
cat > "$work/llama.json" << 'END'
{"model_type": "llama", "vocab_size": 24, "hidden_size": 64, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 1024,
 "max_position_embeddings": 40}
END
learns_llama() {
    ends 0 "$llm" pretrain --model "$work/llama.json" --corpus "$work/text" --vocab \
        "$work/vocab.txt" --seq 32 --batch 4 --lr 3e-3 --quiet --steps 150 --eval-batches 0 \
        --save "$work/llama"
}
check 'a llama learns the language' learns_llama
few_bits() { # the same text, from fewer bytes
    before=99
    for bits in float int8 int4; do
        ends 0 "$llm" generate --load "$work/llama" --weights $bits --temperature 0 --tokens 4 \
            'The bird' && [ "$(cat "$work/out")" = 'The bird sings in the river' ] &&
            ends 0 "$llm" selftest --load "$work/llama" --weights $bits --text "$work/prompts" \
                --tokens 2 || return 1
        now=$(sed -n 's/^memory: weights \([0-9.]*\) MiB.*/\1/p' "$work/out")
        awk -v before="$before" -v now="$now" 'BEGIN { exit !(now > 0 && now < before) }' || return 1
        before=$now
    done
}
check 'weights of few bits write it too' few_bits
of_16_bits() { # the same text in f16 and bf16, from half of the bytes
    for dtype in f32 f16 bf16; do
        ends 0 "$llm" generate --load "$work/llama" --dtype $dtype --temperature 0 --tokens 4 \
            'The bird' && [ "$(cat "$work/out")" = 'The bird sings in the river' ] &&
            ends 0 "$llm" selftest --load "$work/llama" --dtype $dtype --text "$work/prompts" \
                --tokens 2 && grep -q ", $dtype, [1-9][0-9]* threads$" "$work/out" || return 1
        sed -n 's/^memory: weights \([0-9.]*\) MiB.*/\1/p' "$work/out"
    done > "$work/sizes"
    awk '{ size[NR] = $1 } END { exit !(NR == 3 && size[2] > 0.45 * size[1] &&
        size[2] < 0.55 * size[1] && size[3] == size[2]) }' "$work/sizes"
}
check 'generates in 16 bits' of_16_bits
perplexity() { # of a text, by selftest, which also has a plan of memory that adds up
    echo "$1" > "$work/line" &&
        ends 0 "$llm" selftest --load "$work/llama" --text "$work/line" --tokens 3 &&
        grep -q '^speed: prompt [1-9][0-9.]* tokens/s, generation [1-9][0-9.]* tokens/s, b*f[0-9]*, ' \
            "$work/out" &&
        awk '/^memory/ { sub(/caches for [0-9]* tokens/, ""); sub(/prompts of [0-9]* tokens/, "")
            gsub(/[^0-9.]+/, " "); n = split($0, x, " ")
            exit !(n == 5 && (d = x[1] + x[2] + x[3] + x[4] - x[5]) < 0.25 && d > -0.25) }' \
            "$work/out" &&
        sed -n 's/^text: .* perplexity \([0-9.]*\)$/\1/p' "$work/out" > "$work/perplexity"
}
tests_llama() {
    perplexity 'The bird sings in the river near the forest.' && good=$(cat "$work/perplexity") &&
        perplexity 'River the in sings the bird forest the near.' &&
        awk -v good="$good" '{ exit !(good >= 1 && good < 6 && $1 > 4 * good) }' "$work/perplexity"
}
check 'a llama tests itself' tests_llama
ends_early() { # at a word that generation_config.json, or a list in config.json, calls an end
    ends 0 "$llm" export --load "$work/llama" "$work/ends" || return 1
    echo '{"eos_token_id": [8, 6]}' > "$work/ends/generation_config.json"
    ends 0 "$llm" generate --load "$work/ends" --temperature 0 --tokens 4 'The bird' &&
        [ "$(cat "$work/out")" = 'The bird sings' ] && rm "$work/ends/generation_config.json" &&
        sed 's/"eos_token_id": 3/"eos_token_id": [3, 5]/' "$work/ends/config.json" > "$work/listed" &&
        mv "$work/listed" "$work/ends/config.json" &&
        ends 0 "$llm" generate --load "$work/ends" --temperature 0 --tokens 4 'The bird' &&
        [ "$(cat "$work/out")" = 'The bird sings in' ]
}
check 'a text ends as the files of its model say' ends_early
# A program of 40 lines fine-tunes an adapter of a folder and talks by it; build/llm reads the adapter
# and says the same.
chat=$(dirname "$gpt")/chat
says_by() { # TEXT COMMAND...: what it answers to two messages, a line each
    text=$1
    shift
    printf 'the bird\nthe fish\n' | "$@" > "$work/out" 2> "$work/err" &&
        [ "$(grep -v '^loss 0\.[0-4]' "$work/out" | tr '\n' '|')" = "$text" ]
}
talks() { # of a base that has learned other answers
    sed 's/"vocab_size": 24/"vocab_size": 420/; s/: 40}/: 99}/' "$work/llama.json" > "$work/talks.json" &&
        sed 's/sings/SW/; s/swims/sings/; s/SW/swims/' "$work/examples" > "$work/others" &&
        ends 0 "$llm" pretrain --model "$work/talks.json" --data "$work/others" --tokenizer \
            "$work/tokenizer" --seq 40 --batch 4 --lr 3e-3 --quiet --steps 60 --eval-batches 0 \
            --save "$work/talks" && ends 0 "$llm" export --load "$work/talks" "$work/base" &&
        says_by ' sings| swims|' "$chat" "$work/base" "$work/examples" 3e-3 "$work/talk" &&
        says_by '>  sings|>  swims|> |' "$llm" chat --load "$work/base" --adapter "$work/talk" \
            --temperature 0 --tokens 9 &&
        ! says_by '>  sings|>  swims|> |' "$llm" chat --load "$work/base" --temperature 0 \
            --tokens 9 &&
        fails 1 "chat: $work/none: No such file or directory" "$chat" "$work/base" \
            "$work/none" 3e-3 "$work/talk"
}
check 'a program of the library fine-tunes and talks' talks
samples_as_said() { # by generation_config.json, unless the command line says otherwise
    ends 0 "$llm" export --load "$work/llama" "$work/said" || return 1
    ends 0 "$llm" generate --load "$work/said" --temperature 0 --tokens 9 'The bird' || return 1
    cp "$work/out" "$work/greedy"
    echo '{"do_sample": false, "temperature": 9}' > "$work/said/generation_config.json"
    ends 0 "$llm" generate --load "$work/said" --tokens 9 'The bird' &&
        cmp -s "$work/out" "$work/greedy" &&
        ends 0 "$llm" generate --load "$work/said" --temperature 50 --tokens 9 'The bird' &&
        ! cmp -s "$work/out" "$work/greedy" && cp "$work/out" "$work/hot" || return 1
    echo '{"do_sample": true, "temperature": 50, "top_k": 0}' > "$work/said/generation_config.json"
    ends 0 "$llm" generate --load "$work/said" --tokens 9 'The bird' &&
        cmp -s "$work/out" "$work/hot" &&
        ends 0 "$llm" generate --load "$work/said" --top-k 1 --tokens 9 'The bird' &&
        cmp -s "$work/out" "$work/greedy" || return 1
    echo '{"num_beams": 4}' > "$work/said/generation_config.json"
    ends 1 "$llm" generate --load "$work/said" --tokens 9 'The bird' &&
        grep -q 'num_beams must be 1' "$work/err"
}
check 'tokens are drawn as generation_config.json says' samples_as_said
keeps_generation() { # what a folder says about answers, through training and export
    echo '{"eos_token_id": [3, 6], "repetition_penalty": 1.5}' > "$work/said/generation_config.json"
    ends 0 "$llm" pretrain --model "$work/said" --init "$work/said" --corpus "$work/text" \
        --vocab "$work/vocab.txt" --seq 32 --batch 4 --steps 1 --eval-batches 0 --save "$work/on" &&
        cmp -s "$work/said/generation_config.json" "$work/on/generation_config.json" &&
        ends 0 "$llm" export --load "$work/on" "$work/off" &&
        cmp -s "$work/said/generation_config.json" "$work/off/generation_config.json"
}
check 'generation_config.json is kept' keeps_generation

# ------------------------------------------------------------------- files that are wrong: llm

broken="$work/broken folder"
# breaks TEXT: generating from $broken ends with this error.
breaks() {
    ends 1 "$llm" generate --model "$broken" --tokens 2 a && [ "$(cat "$work/err")" = "llm: $1" ]
}
mkdir "$broken"
cp "$work/ends/"* "$broken"
mv "$broken/model.safetensors" "$broken/model-00001-of-00002.safetensors"
echo '{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}' \
    > "$broken/model.safetensors.index.json"
check 'a missing shard' breaks \
    "cannot open $broken/model-00002-of-00002.safetensors: No such file or directory"
rm "$broken/model.safetensors.index.json"
check 'no weights' breaks \
    "$broken has no weights: neither model.safetensors nor model.safetensors.index.json"
head -c 100000 "$broken/model-00001-of-00002.safetensors" > "$broken/model.safetensors"
check 'a truncated file' breaks "$broken/model.safetensors: the tensors have 848640 bytes, but only \
98800 are there: it is cut short"
cp "$broken/model-00001-of-00002.safetensors" "$broken/model.safetensors"
sed 's/"intermediate_size": 1024/"intermediate_size": 1000/' "$work/ends/config.json" > "$broken/config.json"
check 'a wrong shape' breaks "$broken/model.safetensors: model.layers.0.mlp.gate_proj.weight is \
[1024,64], the model's is [1000,64]; do the sizes of --model fit?"

# ------------------------------------------------------------------------- one copy in memory: llm

# A model of 96 MiB in f32: what reads it has 127 MiB of address space, less than a second model,
# even of int8, would need.
cat > "$work/wide.json" << 'END'
{"model_type": "llama", "vocab_size": 24, "hidden_size": 256, "num_hidden_layers": 24,
 "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 1024,
 "max_position_embeddings": 40}
END
wide() {
    ends 0 "$llm" pretrain --corpus "$work/text" --vocab "$work/vocab.txt" --seq 32 --batch 1 \
        --steps 0 --eval-batches 0 --quiet --optimizer sgd "$@"
}
within() { # COMMAND...: it ends well in so much memory
    (ulimit -v 130000 && run "$@" && [ $status = 0 ])
}
one_copy() {
    wide --model "$work/wide.json" --save "$work/wide" &&
        wide --init "$work/wide" --lora r=1,targets=q_proj --save "$work/wide-adapter" || return 1
    for of in '--dtype f32' '--dtype bf16' '--dtype f16' '--weights int8' '--weights int4'; do
        within "$llm" generate --load "$work/wide" $of --tokens 2 'The bird' || return 1
    done
    for of in float int8; do
        within "$llm" merge --load "$work/wide" --adapter "$work/wide-adapter" --weights $of \
            "$work/wide-$of" || return 1
    done
}
check 'no second copy of a model is in memory' one_copy
rm -r "$work"/wide*

total
