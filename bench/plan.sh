#!/bin/sh
# The cost of planning: from the loss to a verified plan, milliseconds (the best of RUNS), by node,
# and the bytes that all of it takes.
#
#     make build/zf-plan && sh bench/plan.sh [RUNS]
set -eu
export LC_ALL=C

runs=${1:-5}

# plan NAME OPTIONS...
plan() {
    name=$1
    shift
    yes | head -n "$runs" | while read -r _; do build/zf-plan --json "$@"; done |
        awk -F '[:, ]+' -v name="$name" '
            $2 == "\"nodes\"" { nodes = $3 }
            $2 == "\"plan_ms\"" && (!best || $3 < best) { best = $3 }
            $2 == "\"plan_peak_bytes\"" { bytes = $3 }
            END { printf "%-34s%8d nodes%9.1f ms%8.2f us a node%8.1f MB\n", name, nodes, best,
                         1000 * best / nodes, bytes / 1e6 }'
}

large='--model bert --layers 24 --hidden 1024 --heads 16 --seq 512 --world 1024 --clip 1'
huge='--model gpt --layers 128 --hidden 25600 --heads 160 --seq 2048 --batch 1 --precision bf16
      --world 1024'
# shellcheck disable=SC2086 # lists of options
{
    for stage in 0 1 2 3; do plan "BERT-large, stage $stage" $large --zero $stage; done
    plan 'BERT-large, stage 3, prefetch' $large --zero 3 --prefetch 256M
    plan 'BERT-large, 128 nodes, stage 3' $large --zero 3 --nodes 128
    plan 'BERT-large, 128 nodes, ZeRO++' $large --zero 3 --nodes 128 --precision bf16 --zero-hpz \
        --zero-quantized-weights --zero-quantized-gradients --prefetch 256M
    plan 'BERT-large, 128 nodes, LoCo' $large --zero 3 --nodes 128 --precision bf16 --zero-hpz \
        --zero-quantized-weights --zero-quantized-gradients --zero-loco --prefetch 256M
    plan '10^12 parameters, stage 3' $huge --zero 3
    plan '10^12 parameters, stage 3, clip' $huge --zero 3 --clip 1
    plan '10^12 parameters, all on disk' $huge --zero 3 --prefetch 8G \
        --offload optimizer=disk,parameters=disk
    for layers in 2 8 32 128 512; do
        plan "GPT of $layers layers, stage 3" --model gpt --layers $layers --zero 3 --world 64
    done
}
