#!/bin/sh
# Ranks that share experts, on the command line: sh tests/cli/experts.sh [PROGRAM]
#
# What is refused; weights that go in and out, adapters and interruptions in any layout: the bits are
# those of ranks that have all experts.
#
# One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

llm=${1:-build/llm} data=docs/data
. tests/cli/cli.sh

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
fitted() {
    ends 0 experts --expert 2 --dump "$work/unlimited" --report "$work/report.json" &&
        limit=$(($(sed -n 's/^  "predicted_peak_bytes": \(.*\),$/\1/p' "$work/report.json") - 1)) &&
        ends 0 experts --expert 2 --memory $limit --dump "$work/limited" &&
        grep -q "^within $limit bytes: .*recompute" "$work/out" && cmp "$work/unlimited" "$work/limited"
}
check 'ranks that share experts plan within a limit' fitted
refuses 'a limit that they exceed' 'zf_passes: nothing fits; what comes nearest (recompute) takes ' experts --expert 2 \
    --memory 64K
refuses 'shared experts of a model without any' 'there are no experts that ranks can share' "$llm" pretrain --model \
    $data/llama.json --corpus $data/stories.txt --vocab $data/vocab.txt --seq 16 --batch 4 --steps 1 --quiet \
    --eval-batches 0 --ranks 2 --expert 2
refuses 'experts that pairs cannot share' '--expert is for pretrain and finetune' "$llm" dpo --model $data/moe.json \
    --tokenizer "$work" --data $data/pairs.jsonl --seq 20 --expert 2 --ranks 2
refuses 'more rows than planned' ' in model.layers.0.block_sparse_moe: ' experts --expert 4 --expert-rows 0.3
# Gradients in a file are those of ranks that have all experts.
gradients() {
    ends 0 experts --sections expert=4 --batch 8 --micro-batches 2 --dump-grads "$work/gradients" || return
    for how in '--expert 4 --zero 3' '--expert 2 --zero 1' '--expert 2'; do
        # shellcheck disable=SC2086
        ends 0 experts --sections expert=4 --batch 8 --micro-batches 2 $how --dump-grads "$work/d" &&
            cmp "$work/d" "$work/gradients" || return
    done
}
check 'gradients in a file' gradients
check 'a run of experts' ends 0 experts --expert 4 --aux-loss 0.1 --save "$work/experts"
check 'that goes on with its losses' ends 0 experts --expert 2 --aux-loss 0.1 --steps 2 --load "$work/experts"

# one OPTIONS...: the same model on one rank.
one() { experts --ranks 1 "$@"; }
check 'a bias of routers and an MLP for all' ends 0 one --balance-bias 0.25 --residual-moe --save "$work/balanced"
refuses 'a run that goes on without its MLP' 'was trained with --residual-moe' one --balance-bias 0.25 --load "$work/balanced"
refuses 'a run that goes on without its bias' 'was trained with balance-bias = 0.25, not 0' one --residual-moe \
    --load "$work/balanced"
refuses 'layers that a folder has not' '--residual-moe is for a new model' one --init "$work/experts" --residual-moe
check 'a bias that a folder has not' ends 0 one --init "$work/experts" --balance-bias 0.25
refuses 'a bias and an adapter' '--balance-bias trains the bias of routers, which --lora leaves as it is' one \
    --init "$work/experts" --balance-bias 0.25 --lora r=2
run "$llm" export --load "$work/balanced" "$work/balanced.hf"
check 'what others compute without' grep -q 'zeroflow_residual_experts in config.json: layers of experts have an MLP' "$work/out"
sed 's/"mixtral"/"llama"/; s/"num_local.*/"zeroflow_router_bias": true}/' $data/moe.json > "$work/none.json"
refuses 'a bias of no router' 'zeroflow_router_bias is of layers of experts, and this model has none' one --model "$work/none.json"


# ------------------------------------------------------------------------- what a folder has

sed 's/"num_local_experts": 4/"num_local_experts": 8/' $data/moe.json > "$work/eight.json"
sed 's/"num_local_experts": 4/"num_local_experts": 3/' $data/moe.json > "$work/three.json"
run "$llm" export --load "$work/experts" "$work/four.safetensors"
refuses 'more experts than a file has' "block_sparse_moe.gate.weight is [4,48], the model's is [8,48]; do the sizes of" one \
    --init "$work/four.safetensors" --model "$work/eight.json"
refuses 'fewer experts than a file has' "block_sparse_moe.gate.weight is [4,48], the model's is [3,48]; do the sizes of" one \
    --init "$work/four.safetensors" --model "$work/three.json"
sed 's/layers\.1\.block_sparse_moe\.experts\.3\.w1/layers.1.block_sparse_moe.experts.9.w1/' "$work/four.safetensors" \
    > "$work/lacks.safetensors"
refuses 'an expert that a file lacks' 'there is no tensor model.layers.1.block_sparse_moe.experts.3.w1.weight' one \
    --init "$work/lacks.safetensors" --model $data/moe.json
sed 's/"num_experts_per_tok": 2/"num_experts_per_tok": 5/' $data/moe.json > "$work/five.json"
refuses 'more experts of a token than there are' 'num_experts_per_tok must be at most the number of experts (4), not 5' \
    one --model "$work/five.json"
refuses 'a capacity below one row' 'zf_moe: capacity = 0.01 is below one row: 64 tokens with 2 of 4 experts each' one \
    --capacity 0.01
check 'shares of experts in a report' ends 0 one --capacity 0.5 --report "$work/report.json"
check 'of which some choices are dropped' grep -q '"dropped": 0\.[5-7]' "$work/report.json"

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
# adapts: the same with an adapter, of products of experts as well, which any layout goes on with.
adapted() {
    to=$1
    shift
    ends 0 experts --batch 8 --precision f32 --sections expert=4 --init "$work/folder" \
        --lora r=2,targets=v_proj,w1,w2,w3 --save "$to" "$@"
}
adapts() {
    adapted "$work/adapter" && adapted "$work/other" --expert 4 --zero 3 &&
        adapted "$work/adapter" --steps 2 --load "$work/adapter" && adapted "$work/other" --steps 2 --expert 2 --zero 1 \
        --load "$work/other" && cmp "$work/adapter/adapter_model.safetensors" "$work/other/adapter_model.safetensors"
}
check 'an adapter' adapts

# in8 DIR OPTIONS...: the same of a wider model, whose rows are sent in 8 bits.
sed 's/"hidden_size": 48/"hidden_size": 64/' $data/moe.json > "$work/wide.json"
check 'a wider folder' ends 0 experts --expert 4 --model "$work/wide.json" --save "$work/wide"
run "$llm" export --load "$work/wide" "$work/wide.hf"
in8() {
    to=$1
    shift
    ends 0 experts --batch 8 --precision f32 --sections expert=4 --model "$work/wide.json" --init "$work/wide.hf" --expert-dispatch int8 \
        --lora r=2,targets=v_proj,w1,w2,w3 --save "$to" "$@"
}
alike_in8() {
    in8 "$work/in8" --expert 4 --zero 3 && in8 "$work/in8-2" --expert 2 && in8 "$work/in8-1" &&
        cmp "$work/in8/adapter_model.safetensors" "$work/in8-2/adapter_model.safetensors" &&
        cmp "$work/in8/adapter_model.safetensors" "$work/in8-1/adapter_model.safetensors"
}
check 'rows in 8 bits and an adapter' alike_in8
refuses 'rows in 8 bits that are no blocks' 'rows of 48 numbers are no blocks of 64 to 256: dispatch int8 is for a multiple of 64' \
    experts --expert 4 --expert-dispatch int8
# few DIR OPTIONS...: two steps of adapters of experts of 4 bits.
few() {
    to=$1
    shift
    ends 0 experts --batch 8 --steps 2 --precision f32 --sections expert=4 --model "$work/wide.json" --init "$work/wide.hf" \
        --weights int4 --lora r=2,targets=v_proj,w1,w2,w3 --save "$to" "$@"
}
alike_in_few_bits() {
    few "$work/few-1" && few "$work/few-4" --expert 4 --zero 3 &&
        cmp "$work/few-1/adapter_model.safetensors" "$work/few-4/adapter_model.safetensors"
}
check 'experts of few bits that ranks share' alike_in_few_bits
for bits in int8 int4; do
    check "a text by experts of $bits" ends 0 "$llm" generate --load "$work/wide" --weights $bits --temperature 0 --tokens 4 'the owl'
    check "a loss by experts of $bits" ends 0 "$llm" selftest --load "$work/wide" --weights $bits --text $data/stories.txt --tokens 4
done
check 'shares of experts of stages' ends 0 experts --ranks 2 --pipe 2 --micro-batches 2 --report "$work/piped.json"
check 'which are those of one stage' ends 0 experts --ranks 1 --micro-batches 2 --report "$work/whole.json"
shares() { sed -n '/"experts": \[/,/^  \]/p' "$1"; }
check 'of each layer' test "$(shares "$work/piped.json")" = "$(shares "$work/whole.json")"
check 'of which there are two' test "$(shares "$work/piped.json" | grep -c '"layer"')" = 2
refuses 'experts that an adapter keeps' ', which has matrices of experts: an adapter can have products of these, as targets' \
    experts --init "$work/folder" --lora r=2,targets=q_proj,keep=experts.w1 --save "$work/kept"

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
