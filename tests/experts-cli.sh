#!/bin/sh
# Ranks that share experts, on the command line: sh tests/experts-cli.sh [PROGRAM]
#
# What is refused; weights that go in and out, adapters and interruptions in any layout: the bits are
# those of ranks that have all experts.
#
# One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

llm=${1:-build/llm} data=docs/data
. tests/cli.sh

# experts OPTIONS...: a mixture of four experts on four ranks.
before=
experts() {
    $before "$llm" pretrain --model $data/moe.json --corpus $data/stories.txt --vocab $data/vocab.txt --seq 16 --batch 4 \
        --steps 1 --quiet --eval-batches 0 --ranks 4 "$@"
}
refuses 'ranks that do not divide experts' '3 ranks do not divide the 4 experts of' experts --ranks 3 --expert 3 --batch 3
refuses 'experts on ranks that they do not divide' \
    '--expert 3 must divide the 4 ranks along data, whose neighbours share experts' experts --expert 3
refuses 'sections on ranks that they do not divide' \
    '--sections expert=8 must divide the 4 ranks along data, whose neighbours share experts' experts --expert 4 \
    --sections expert=8
refuses 'sections that experts do not divide' '--sections expert=S: S must be a multiple of --expert' experts --expert 2 \
    --sections expert=3
refuses 'experts and sequences' '--expert and --context exclude each other' experts --expert 2 --context 2
refuses 'experts and gradients in a file' '--expert excludes --dump-grads: ranks have parts of gradients' experts \
    --expert 2 --dump-grads "$work/d"
refuses 'experts and memory' '--expert and --memory exclude each other' experts --expert 2 --memory 64M
refuses 'shared experts of a model without any' 'there are no experts that ranks can share' "$llm" pretrain --model \
    $data/llama.json --corpus $data/stories.txt --vocab $data/vocab.txt --seq 16 --batch 4 --steps 1 --quiet \
    --eval-batches 0 --ranks 2 --expert 2
refuses 'experts that pairs cannot share' '--expert is for pretrain and finetune' "$llm" dpo --model $data/moe.json \
    --tokenizer "$work" --data $data/pairs.jsonl --seq 20 --expert 2 --ranks 2
refuses 'more rows than planned' ' in model.layers.0.block_sparse_moe: ' experts --expert 4 --expert-rows 0.3
check 'a run of experts' ends 0 experts --expert 4 --aux-loss 0.1 --save "$work/experts"
check 'that goes on with its losses' ends 0 experts --expert 2 --aux-loss 0.1 --steps 2 --load "$work/experts"


# ------------------------------------------------------------------------- weights, interruptions

# many DUMP OPTIONS...: two steps of two micro-batches; the parameters go to DUMP.
many() {
    to=$1
    shift
    ends 0 experts --batch 8 --micro-batches 2 --steps 2 --precision f32 --aux-loss 0.1 --sections expert=4 --dump "$to" "$@"
}
# alike OPTIONS...: ranks in this layout and those that have all experts begin with the weights of a
# folder, and end with the same bits.
alike() {
    many "$work/all" --sum "$sum" --init "$work/folder" && many "$work/some" --init "$work/folder" "$@" &&
        cmp "$work/all" "$work/some"
}
check 'a folder of weights' ends 0 "$llm" export --load "$work/experts" "$work/folder"
sum=parts
check 'experts of a folder' alike --expert 4 --zero 3
sum=micro
check 'experts of a folder in stages' alike --ranks 8 --pipe 2 --expert 2 --zero 1
# adapts: the same with an adapter, which any layout goes on with.
adapted() {
    to=$1
    shift
    ends 0 experts --batch 8 --precision f32 --sections expert=4 --init "$work/folder" --lora r=2 --save "$to" "$@"
}
adapts() {
    adapted "$work/adapter" && adapted "$work/other" --expert 4 --zero 3 &&
        adapted "$work/adapter" --steps 2 --load "$work/adapter" && adapted "$work/other" --steps 2 --expert 2 --zero 1 \
        --load "$work/other" && cmp "$work/adapter/adapter_model.safetensors" "$work/other/adapter_model.safetensors"
}
check 'an adapter' adapts

# interrupted: a run that is stopped saves, and ranks in another layout go on to the bits of one that
# was not.
interrupted() {
    endless="--schedule constant --warmup 2 --batch 8 --precision f32 --sections expert=4"
    # shellcheck disable=SC2086 # words
    (before=exec && experts $endless --steps 100000 --expert 4 --zero 3 --save "$work/cut" --log "$work/log") \
        > "$work/out" 2> "$work/err" < /dev/null &
    while kill -0 $! && ! [ "$(grep -c '' "$work/log")" -gt 3 ]; do sleep 0.05; done 2> "$work/waits"
    kill -INT $!
    wait $!
    [ $? = 130 ] || return
    steps=$(($(sed -n 's/^  "step": \([0-9]*\),$/\1/p' "$work/cut/manifest.json") + 2))
    # shellcheck disable=SC2086 # words
    ends 0 experts $endless --steps $steps --expert 2 --zero 2 --load "$work/cut" --dump "$work/on" &&
        ends 0 experts $endless --steps $steps --dump "$work/straight" && cmp "$work/on" "$work/straight"
}
check 'an interruption' interrupted
total
