#!/bin/sh
# zf-plan: its numbers against the formulas of ZeRO (Rajbhandari et al. 2020, table 1), and messages
# for mistakes: sh tests/cli/zfplan.sh [PROGRAM]
#
# One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

plan=${1:-build/zf-plan}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0

# is NAME GOT WANTED
is() {
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok      $1"
    else
        failed=$((failed + 1))
        echo "FAILED  $1: $2, not $3"
    fi
}

# holds NAME CONDITION: arithmetic that is not 0
holds() { is "$1" $(($2)) 1; }

# of KEY: a top-level integer of the JSON in $work/json; of traffic KEY: the bytes sent
of() { sed -n "s/^  \"$1\": \([0-9]*\),*\$/\1/p" "$work/json"; }
sent() { sed -n "/\"traffic\"/,/}/s/^    \"$1\": \([0-9]*\),*\$/\1/p" "$work/json"; }
calls() { sed -n "/\"calls\"/,/}/s/^    \"$1\": \([0-9]*\),*\$/\1/p" "$work/json"; }

planned() { "$plan" --json "$@" > "$work/json" 2> "$work/err" || cat "$work/err"; }

# gigabytes DIGITS: of parameters, gradients and optimizer states
gigabytes() {
    echo $(($(of parameters) + $(of gradients) + $(of optimizer))) |
        awk -v digits="$1" '{ printf "%.*f", digits, $1 / 1e9 }'
}

# --------------------------------------------------------------------- 7.5e9 parameters, 64 ranks

ranks=64
hidden=4096
vocab=59392
layers=36
seq=1024
block=$((12 * hidden * hidden + 13 * hidden))
count=$((vocab * hidden + seq * hidden + layers * block + 2 * hidden))
gpt="--model gpt --layers $layers --hidden $hidden --heads 32 --vocab $vocab --seq $seq --batch 1
     --world $ranks"

# stage N PRECISION BYTES OPTIMIZER: bytes of each parameter. Shards are multiples of 1024 elements,
# so that the division is even.
# shellcheck disable=SC2086 # a list of options
stage() {
    what="stage $1 in $2"
    planned $gpt --zero "$1" --precision "$2"
    padded=$(of padded_count)
    part=$((padded / ranks))
    is "$what: parameters" "$(of parameter_count)" "$count"
    case $1 in
    0) p=$padded g=$padded o=$padded ;;
    # The word embedding's sum comes first, while all gradients are still live.
    1) p=$padded g=$((padded + vocab * hidden / ranks)) o=$part ;;
    2) p=$padded g=$part o=$part ;;
    *) p=$part g=$part o=$part ;;
    esac
    is "$what: bytes of parameters" "$(of parameters)" $((p * $3))
    is "$what: bytes of gradients" "$(of gradients)" $((g * $3))
    is "$what: bytes of the optimizer, and its clock" "$(of optimizer)" $((o * $4 + 64))
    holds "$what: all of it, and the rest, is the peak" \
        "$(of live) <= $(of peak) && $(of live) >= $(of parameters) + $(of optimizer)"

    # One shard is sent to each other rank; so is the sum of the losses, a float that is reduced.
    all=$((part * (ranks - 1) * $3))
    loss=$((2 * (ranks - 1) * 4))
    if [ "$1" = 0 ]; then
        is "$what: reduced" "$(sent all_reduce)" $((2 * all + loss))
        is "$what: nothing else" "$(sent all_gather) $(sent reduce_scatter)" '0 0'
    else
        is "$what: scattered" "$(sent reduce_scatter)" $all
        is "$what: the loss" "$(sent all_reduce)" $loss
        # Padding is less than a block of each rank for each bucket.
        holds "$what: padding" "$padded - $count < $(calls reduce_scatter) * 1024 * $ranks"
        [ "$1" = 3 ] || is "$what: gathered" "$(sent all_gather)" $all
    fi
    if [ "$1" = 3 ]; then
        # Forward and backward, except the positions, which the backward pass does not read.
        holds "$what: gathered twice" \
            "$(sent all_gather) <= 2 * $all && $(sent all_gather) > 2 * $all - $all / 1000"
    fi
}

for n in 0 1 2 3; do
    stage $n f32 4 8
    stage $n bf16 2 12
    case $n in
    0) is 'bf16, stage 0: the paper' "$(gigabytes 0)" 120 ;;
    1) is 'bf16, stage 1: the paper' "$(gigabytes 1)" 31.4 ;;
    2) is 'bf16, stage 2: the paper' "$(gigabytes 1)" 16.6 ;;
    3) is 'bf16, stage 3: the paper' "$(gigabytes 1)" 1.9 ;;
    esac
done

planned --model gpt --layers 128 --hidden 25600 --heads 160 --seq 2048 --batch 1 --precision bf16 \
    --world 1024 --zero 3
is '10^12 parameters' "$(of parameter_count)" $((50257 * 25600 + 2048 * 25600 + 2 * 25600 + 128 * (
    12 * 25600 * 25600 + 13 * 25600)))
is '10^12 parameters on 1024 ranks: the paper' "$(gigabytes 0)" 16

# --------------------------------------------------------------------------------------- the rest

planned
is 'BERT-base by default' "$(of parameter_count) $(of layers) $(of world)" '110106428 12 1'
is 'one rank sends nothing' "$(sent all_reduce) $(of nccl_at_most)" '0 0'
planned --model bert --layers 24 --hidden 1024 --heads 16 --zero 2 --world 16 --micro-batches 4 \
    --precision bf16 --optimizer lamb --clip 1 --prefetch 64M --bucket 32M
is 'BERT-large, everything on' "$(of parameter_count) $(of micro_batches)" '336226108 4'
holds 'a reduction of each micro-batch' "$(calls reduce_scatter) % 4 == 0"
planned --world 8
is 'buffers of NCCL: 3 (32 + 2) MiB, and 12 MiB for each of 3 x 16 blocks and 8 ranks' \
    "$(of nccl_at_most)" $(((3 * 34 + 3 * 16 * 8 * 12) * 1048576))
planned --model gpt
is 'GPT-2 small' "$(of parameter_count)" 124439808
holds 'FLOPs: six for each parameter and token, and more' \
    "$(sed -n 's/^  "flops": \([0-9.e+]*\),$/\1/p' "$work/json" | awk '{ printf "%.0f", $1 }') >
     6 * 8 * 1024 * $(of parameter_count)"

"$plan" --model gpt --zero 3 --world 8 > "$work/table"
kinds='parameters|gradients|optimizer|activations|communication|workspace'
is 'a table' "$(grep -Ec "^($kinds|peak|all_gather) " "$work/table")" 8

# fails STATUS TEXT OPTIONS...
fails() {
    wanted=$1
    text=$2
    shift 2
    said=$("$plan" "$@" 2>&1 > "$work/out")
    is "zf-plan $*" "$?: $(echo "$said" | head -n 1)" "$wanted: $text"
}

misused() {
    text=$1
    shift
    fails 2 "zf-plan: $text" "$@"
}

misused "--model takes one of bert or gpt, not 'elmo'" --model elmo
misused "--layers takes a whole number from 1 to 65536, not '0'" --layers 0
misused "--hidden takes a whole number from 1 to 1048576, not '12x'" --hidden 12x
misused "--heads must divide --hidden, 768, not be 7" --heads 7
misused "--zero takes a whole number from 0 to 3, not '4'" --zero 4
misused "--world takes a whole number from 1 to 1048576, not '-1'" --world -1
misused "--precision takes one of f32, bf16 or f16, not 'f8'" --precision f8
misused "--local-step-clipper requires --optimizer zero_one_adam; it is adamw" --local-step-clipper 1
misused "--clip takes a number of 0 or more, not 'nan'" --clip nan
misused "--memory takes a number of bytes of 0 or more, not '1X'" --memory 1X
misused "--memory takes a number of bytes of 0 or more, not '8388608T'" \
    --memory 8388608T
misused "--recompute takes off|layers|BYTES, not 'all'" --recompute all
misused "--recompute takes off|layers|BYTES, not '1X'" --recompute 1X
misused "--mics does not divide the 8 ranks into nodes of as many" --world 8 --mics 3
misused "--ranks-per-node does not divide the 8 ranks into nodes of as many" \
    --world 8 --ranks-per-node 3
misused "--nodes does not divide the 8 ranks into nodes of as many" --world 8 --nodes 3
misused '--nodes and --ranks-per-node exclude each other' --world 8 --nodes 2 --ranks-per-node 4
misused '--mics Z shards over the ranks of a node: --ranks-per-node must be Z as well' \
    --world 8 --ranks-per-node 2 --mics 4
misused "'more' is no option" more
misused "there is no option '--nonesuch'" --nonesuch

# One link of 1 MB/s and 1 s of latency, 10^9 FLOPs a second.
echo '{"flops_per_s": 1e9, "bytes_per_s": 1e9, "link_bytes_per_s": 1e6, "link_latency_s": 1}' \
    > "$work/cost"
# seconds busy|exposed RESOURCE: of the estimate
seconds() { sed -n "/^    \"$1\"/,/}/s/^      \"$2\": \([0-9.e+-]*\),*\$/\1/p" "$work/json"; }
whole() { awk '{ printf "%.0f", $1 * 1e6 }'; }
planned --world 4 --zero 2 --cost "$work/cost"
sum() { echo "$(sent all_gather) $(sent reduce_scatter) $(sent all_reduce)"; }
all=$(($(sum | tr ' ' +)))
times=$(($(calls all_gather) + $(calls reduce_scatter) + $(calls all_reduce)))
is 'estimate: the link' "$(seconds busy link | whole)" $((all + times * 1000000))
is 'estimate: all of it is exposed' "$(seconds exposed link | whole)" "$(seconds busy link | whole)"
planned --world 4 --zero 2 --prefetch 64M --cost "$work/cost"
holds 'estimate: prefetch hides a part of it' \
    "$(seconds exposed link | whole) < $(seconds busy link | whole)"
is 'estimate: the step is what is exposed' \
    "$(sed -n 's/^    "seconds": \([0-9.e+]*\),$/\1/p' "$work/json" | whole)" \
    "$(for k in compute link; do seconds exposed $k; done | awk '{ s += $1 } END { printf "%.6f", s }' |
        whole)"
"$plan" --world 4 --zero 2 --cost "$work/cost" > "$work/table"
is 'estimate: in the table' "$(grep -Ec "^seconds .* by $work/cost|^(compute|link) |^a step " \
    "$work/table")" 4

# Two links: between nodes 1 kB/s without latency, inside nodes so fast that nothing remains.
echo '{"flops_per_s": 1e24, "bytes_per_s": 1e24, "link_bytes_per_s": 1e24, "link_latency_s": 0,
    "between_bytes_per_s": 1e3, "between_latency_s": 0}' > "$work/cost"
far() { sed -n "/\"between_nodes\"/,/}/s/^    \"$1\": \([0-9]*\),*\$/\1/p" "$work/json"; }
all_far() { for k in all_gather reduce_scatter all_reduce all_to_all; do far $k; done; }
between() { all_far | awk '{ s += $1 } END { printf "%d", s }'; }
spent() { sed -n 's/^    "seconds": \([0-9.e+]*\),$/\1/p' "$work/json" | whole; }
less='--zero-hpz --zero-quantized-weights --zero-quantized-gradients'
small="--layers 2 --hidden 128 --heads 2 --vocab 1000 --precision bf16 --world 8 --zero 3
    --cost $work/cost"
# shellcheck disable=SC2086 # a list of options
planned $small --ranks-per-node 4
plain=$(between) plain_spent=$(spent)
is 'two links: seconds are those of bytes between nodes' "$plain_spent" $((plain * 1000))
# shellcheck disable=SC2086
planned $small --nodes 2
is 'two links: --nodes 2 is --ranks-per-node 4 of 8' "$(between)" "$plain"
# shellcheck disable=SC2086
planned $small --nodes 2 $less
is 'ZeRO++: seconds are those of fewer bytes' "$(spent)" $(($(between) * 1000))
holds 'ZeRO++: about a quarter of the bytes between nodes' \
    "$(between) * 100 < $plain * 30 && $(between) * 100 > $plain * 20"
is 'ZeRO++: the plain step next to it' \
    "$(sed -n 's/^  "plain_seconds": \([0-9.e+]*\),$/\1/p' "$work/json" | whole)" "$plain_spent"
# shellcheck disable=SC2086
"$plan" $small --nodes 2 $less > "$work/table"
is 'ZeRO++: in the table' "$(grep -Ec '^plain ZeRO .* s \([0-9.]+%\) are saved$|inside nodes between' \
    "$work/table")" 2
# In blocks of 256, records of 8 bits have 4 of 260 bytes for a scale, and those of 4 bits 4 of 132.
# shellcheck disable=SC2086
planned $small --nodes 2 $less
is 'ZeRO++: scales between nodes' "$(of scales_between_nodes)" \
    $(($(far all_gather) / 65 + $(far all_to_all) / 33))
sends=$(between)
# shellcheck disable=SC2086
planned $small --nodes 2 $less --zero-loco
is 'LoCo: it sends nothing more' "$(between)" "$sends"
is 'LoCo: errors of all elements, and between nodes of a quarter, in f32' "$(of loco)" \
    $(($(of padded_count) * 5))
# shellcheck disable=SC2086
planned $small --nodes 2 $less --zero-loco --loco-bits 8
is 'LoCo: errors in records of 260 bytes for 256 elements' "$(of loco)" \
    $(($(of padded_count) * 5 / 4 * 260 / 256))
# shellcheck disable=SC2086
"$plan" $small --nodes 2 $less --zero-loco > "$work/table"
is 'LoCo: scales, padding and errors in the table' \
    "$(grep -Ec '^(of it scales|of it padding|loco) ' "$work/table")" 3
misused '--zero-quantized-weights requires --zero 3; it is 2' \
    --world 4 --zero 2 --zero-quantized-weights

# 1-bit Adam: each rank has a shard of n elements; it sends 132 bytes for 1024 of these to each of 7
# servers, and its own to 7 ranks.
onebit='--layers 2 --hidden 128 --heads 2 --vocab 1000 --precision bf16 --world 8
    --optimizer onebit_adam'
# shellcheck disable=SC2086
planned $onebit
shard=$(($(of padded_count | tail -n 1) / 8))
signs=$((7 * shard * 132 / 1024))
is '1-bit Adam: what each variant exchanges' \
    "$({ sent all_to_all; sent all_gather; sent reduce_scatter; } | tr '\n' ' ')" \
    "0 $signs 0 $signs 0 0 "
is '1-bit Adam: gradients of 16 bits in the warm-up alone' "$(sent all_reduce | tr '\n' ' ')" \
    "$((2 * 7 * shard * 2 + 56)) 56 "
# shellcheck disable=SC2086
"$plan" $onebit > "$work/table"
is '1-bit Adam: a plan of each variant' "$(grep -Ec '^variant (1 of 2: warm-up|2 of 2: compressed)$' \
    "$work/table")" 2
# shellcheck disable=SC2086
fails 1 'zf-plan: zf_zero: 1-bit optimizers exchange signs between all ranks alike; nodes must be 1, not 2' \
    $onebit --nodes 2

echo '{"flops_per_s": 1}' > "$work/cost"
fails 1 "zf-plan: $work/cost:1:1: the top value lacks \"bytes_per_s\"" --cost "$work/cost"
fails 1 "zf-plan: cannot open $work/none: No such file or directory" --cost "$work/none"

"$plan" --memory 1G > "$work/out" 2> "$work/err"
is 'a plan that does not fit' "$?" 1
what='the plan takes [0-9]+ bytes, [0-9]+ more than the limit of 1073741824; most is alive at'
what="$what %[0-9]+ [a-z_]+; the largest there are .*bucket with [0-9]+"
is 'says by how much, where, and what is there' "$(grep -Ec "^zf-plan: .*$what" "$work/err")" 1
"$plan" --memory 16G > /dev/null
is 'a plan that fits' "$?" 0
# Recomputation: the model's FLOPs do not change, the peak is lower.
planned
flops=$(sed -n 's/^  "flops": \(.*\),$/\1/p' "$work/json") peak=$(of peak)
planned --recompute layers
is 'recompute layers: the FLOPs of the model' \
    "$(sed -n 's/^  "flops": \(.*\),$/\1/p' "$work/json")" "$flops"
least=$(of peak)
holds 'recompute layers: the peak falls' "$least < $peak"
limit=$(((least + peak) / 2))
planned --recompute $limit
holds 'recompute BYTES: the peak is within' "$(of peak) <= $limit"
holds 'recompute BYTES: no more than that asks for' "$(of peak) > $least"
"$plan" --recompute layers > "$work/table"
is 'recompute: in the table' \
    "$(grep -Ec ' FLOPs and .* more \(.*%\) recomputed, ' "$work/table")" 1
"$plan" --recompute 1G > "$work/out" 2> "$work/err"
is 'recompute BYTES: a limit that cannot be kept to' "$?: $(sed 's/[0-9][0-9]*/N/g' "$work/err")" \
    '1: zf-plan: zf_recompute: parameters, gradients, states and inputs alone take N bytes, N more than the limit of N'

# --------------------------------------------------------------------- models by their config.json

type_of() { # FILE MODEL_TYPE: as another kind of model
    sed "s/\"model_type\": \"[a-z0-9]*\"/\"model_type\": \"$2\"/" "$1" > "$work/config.json"
}
for kind in bert gpt llama; do
    planned --config docs/data/$kind.json
    is "config: $kind" "$(of layers) $(of hidden) $(of vocab)" '2 32 176'
done
is 'config: its parameters' "$(of parameter_count)" \
    $((176 * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)))
type_of docs/data/llama.json qwen2
planned --config "$work"
is 'config: the biases of another family, of a folder' "$(of parameter_count)" \
    $((176 * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32 + 32 + 2 * 16)))
cat > "$work/opt.json" << 'END'
{"model_type": "opt", "vocab_size": 176, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
END
planned --config "$work/opt.json"
is 'config: OPT has two more positions' "$(of parameter_count)" \
    $((176 * 32 + 66 * 32 + 2 * 32 + 2 * (4 * 32 * 33 + 2 * 2 * 32 + 2 * 64 * 32 + 64 + 32)))
type_of docs/data/llama.json elmo
"$plan" --config "$work" 2>&1 | grep -q '^zf-plan: .*config.json:1:16: model_type must be one of bert, '
is 'config: another kind' "$?" 0
echo '{"hidden_size": 32}' > "$work/config.json"
misused "$work/config.json has no model_type, by which a kind of model is known" --config "$work/config.json"
misused '--layers and --config exclude each other' --config docs/data/llama.json --layers 3
misused "sequences of 65 tokens are too long for the model's 64 positions" --config docs/data/llama.json --seq 65

# ------------------------------------------------------------------------------- stages and axes

stage_of() { # STAGE KEY: a number of a stage, or SENT of sent
    awk -v n="$1" -v key="\"$2\":" '/"layers": / && stages { k++ } /"stages": \[/ { stages = 1; k = -1 }
        /^  \],/ { stages = 0 } stages && k == n && $1 == key { gsub(/,/, "", $2); print $2; exit }' "$work/json"
}

# GPT, 12 layers of h, V words, b x s tokens, on t ranks along tensor, p along pipe, d along data, m
# micro-batches. A sum over t ranks of a value of n bytes sends 2 n (t-1)/t of each, what gathers or
# scatters it half as much; x is the value between layers, of which a rank has its part of the tokens.
h=64 V=512 b=2 s=16 t=4 p=3 d=2 m=6
x=$((4 * b * s * h))
gpt12="--model gpt --layers 12 --hidden $h --heads 4 --vocab $V --batch $b --seq $s --dropout 0
    --world $((t * p * d)) --tensor $t --pipe $p --micro-batches $m --pipe-layers 4,4,4 --zero 1"
# shellcheck disable=SC2086 # a list of options
planned $gpt12
# Of a rank: of a layer norms, its heads, the MLP's part, two biases; its part of the words, and the
# positions; the last norm.
layer=$((4 * h + (4 * h * h + 3 * h) / t + h + (2 * 4 * h * h + 4 * h) / t + h))
is 'GPT: parameters of stages' "$(for k in 0 1 2; do stage_of $k parameter_count; done | tr '\n' ' ')" \
    "$((4 * layer + V * h / t + s * h)) $((4 * layer)) $((4 * layer + 2 * h)) "
# A layer gathers its two inputs and scatters its two sums; backward it gathers gradients of both results
# and both inputs again, and scatters two sums; gradients of two norms and two biases are summed. Rows of
# words are scattered, and their gradients gathered, as are those of positions. The head gathers its input
# twice and scatters its gradient; four numbers of each row and of each of t sections of the vocabulary are
# scattered, and gathered twice; the gradients of the last norm and the loss are summed.
part() { echo $(($1 * (t - 1) / t)); } # BYTES: what gathers or scatters them sends
four=$((4 * (10 * $(part $x) + 2 * $(part $((4 * 6 * h))))))
is 'GPT: stage 0, along tensor' "$(stage_of 0 tensor)" \
    $((m * (four + 2 * $(part $x) + $(part $((4 * s * h))))))
is 'GPT: stage 1, along tensor' "$(stage_of 1 tensor)" $((m * four))
is 'GPT: stage 2, along tensor' "$(stage_of 2 tensor)" \
    $((m * (four + 3 * $(part $x) + 3 * $(part $((4 * b * s * t * 4))) + 2 * $(part $((4 * 2 * h))) + 2 * (t - 1) * 4)))
for k in 0 1 2; do
    # What is packed, and what is computed over an operand, is counted once in each slot.
    holds "GPT: stage $k: all kinds are the peak at most" "$(stage_of $k live) <= $(stage_of $k peak) &&
        $(stage_of $k gradients) + $(stage_of $k parameters) <= $(stage_of $k peak)"
    # The gradients of all micro-batches are scattered once, parameters gathered once; and the losses.
    is "GPT: stage $k, along data" "$(stage_of $k data)" \
        $((2 * 4 * $(stage_of $k padded_count) * (d - 1) / d + m * 2 * (d - 1) * 4))
done
is 'GPT: the table of positions is whole' \
    "$(for k in 0 1 2; do stage_of $k whole_weights; stage_of $k whole_bytes; done | tr '\n' ' ')" \
    "1 $((4 * s * h)) 0 0 0 0 "
is 'GPT: the order of sums' "$(sed -n 's/^  "sum": "\(.*\)",$/\1/p' "$work/json")" micro
# shellcheck disable=SC2086
planned $gpt12 --sum parts
for k in 0 1 2; do # those of each micro-batch
    is "GPT: stage $k, along data, --sum parts" "$(stage_of $k data)" \
        $(((m + 1) * 4 * $(stage_of $k padded_count) * (d - 1) / d + m * 2 * (d - 1) * 4))
done
# shellcheck disable=SC2086
planned $gpt12
# Of a rank's tokens, forward the sum so far; backward its gradient; the part of the embedding, which is
# the head as well, once, and its gradient; the loss, which the last stage sends to the others.
is 'GPT: stage 0, along pipe' "$(stage_of 0 pipe)" $((m * (x / t) + 4 * V * h / t))
is 'GPT: stage 1, along pipe' "$(stage_of 1 pipe)" $((m * (x / t + x / t)))
is 'GPT: stage 2, along pipe' "$(stage_of 2 pipe)" $((m * (x / t + 4 * V * h / t + (p - 1) * 4)))
is 'GPT: micro-batches in flight' "$(for k in 0 1 2; do stage_of $k in_flight; done | tr '\n' ' ')" '3 2 1 '
# shellcheck disable=SC2086
"$plan" $gpt12 > "$work/table"
is 'GPT: a picture of the schedule' "$(grep -c '^rank [012] ' "$work/table")" 3
is 'GPT: idle' "$(sed -n 's/^1f1b: a rank is idle \(.*\)% of a step;.*/\1/p' "$work/table")" \
    "$(awk "BEGIN { printf \"%.1f\", 100 * ($p - 1) / ($m + $p - 1) }")"
# shellcheck disable=SC2086
planned $gpt12
peak=$(stage_of 0 peak)
# shellcheck disable=SC2086
planned $gpt12 --schedule gpipe
# Of each further micro-batch at least the inputs of the four layers.
holds 'gpipe: three more micro-batches in flight' "$(stage_of 0 peak) - $peak >= 3 * 4 * $x"
is 'gpipe: micro-batches in flight' "$(for k in 0 1 2; do stage_of $k in_flight; done | tr '\n' ' ')" '6 6 6 '

# shellcheck disable=SC2086
planned $gpt12 --schedule interleaved=2 --pipe-layers 2,2,2,2,2,2
is 'interleaved: chunks in flight' "$(for k in 0 1 2; do stage_of $k in_flight; done | tr '\n' ' ')" '8 6 4 '
is 'interleaved: idle' "$(sed -n 's/^  "idle": \(0.[0-9]\{4\}\).*/\1/p' "$work/json")" \
    "$(awk "BEGIN { printf \"%.4f\", ($p - 1) / 2 / ($m + ($p - 1) / 2) - 0.00005 }")"
# shellcheck disable=SC2086
planned $gpt12 --schedule zb-v --pipe-layers 2,2,2,2,2,2
is 'zb-v: chunks in flight' "$(for k in 0 1 2; do stage_of $k in_flight; done | tr '\n' ' ')" '6 6 6 '
is 'zb-v: embedding and head are on one rank' \
    "$(for k in 0 1 2; do stage_of $k parameter_count; done | tr '\n' ' ')" \
    "$((4 * layer + V * h / t + s * h + 2 * h)) $((4 * layer)) $((4 * layer)) "
table='--model gpt --layers 12 --hidden 64 --heads 4 --vocab 8192 --batch 1 --seq 32 --dropout 0
    --world 3 --pipe 3 --micro-batches 6'
# shellcheck disable=SC2086
planned $table
holds 'a table: the first stage takes most' "$(stage_of 0 peak) > (21 << 20)"
# shellcheck disable=SC2086
planned $table --memory 21M
for k in 0 1 2; do
    holds "a table: stage $k within --memory" "$(stage_of $k peak) <= (21 << 20)"
done
is 'a table: all layers are dealt' \
    $(($(stage_of 0 layers) + $(stage_of 1 layers) + $(stage_of 2 layers))) 12
large='--layers 128 --hidden 25600 --heads 200 --seq 2048 --batch 1 --precision bf16 --dropout 0
    --world 1024 --tensor 8 --pipe 16 --zero 1'
# shellcheck disable=SC2086
planned --model gpt $large --micro-batches 64
# Of a table with fewer rows than twice its columns each rank has all: the head takes as long as a rank's
# part of 1.3 layers.
is '10^12 parameters: stages' "$(for k in 0 13 14 15 16; do stage_of $k layers; done | tr '\n' ' ')" '8 8 9 7 '
holds '10^12 parameters: planned in 100 MB' "$(of plan_peak_bytes) < 100000000"
# shellcheck disable=SC2086
fails 1 "zf-plan: stage 0 takes $(of peak) bytes, $(($(of peak) - 1048576)) more than the limit of 1048576" \
    --model gpt $large --micro-batches 64 --memory 1M

# Experts over p ranks: rows both ways, forward and backward, for each token min(k, E/p) rows to each
# rank, and where those of E experts are.
moe='--config docs/data/moe.json --seq 32 --batch 4 --world 4'
# shellcheck disable=SC2086
planned $moe --expert 4 --zero 3
is 'experts: what a rank exchanges' "$(sent all_to_all)" \
    $((2 * (4 * (4 * 4 * 32 * 1) * 48 * 4 + 4 * 8) * 3 / 4))
# shellcheck disable=SC2086
planned $moe --expert 2
is 'experts: fewer ranks, more choices of each' "$(sent all_to_all)" \
    $((2 * (4 * (2 * 4 * 32 * 2) * 48 * 4 + 4 * 8) / 2))
# shellcheck disable=SC2086
misused '--expert is of a layout that is given: without --fit' --expert 2 --fit --device 1G --world 4
# shellcheck disable=SC2086
misused '--expert and its sections, 8, must divide the 4 ranks along data' $moe --expert 2 --sections expert=8
# shellcheck disable=SC2086
misused '--sections expert=3 is no multiple of --expert 2' $moe --expert 2 --sections expert=3

# Sequences over c ranks: q and what attention makes, k and v of half as many heads, forward and
# backward, each (c-1)/c of a piece.
planned --config docs/data/llama.json --seq 32 --batch 2 --world 4 --context 2
is 'context: what a rank exchanges' "$(sent all_to_all)" $((2 * 2 * (2 + 2 / 2) * (4 * 2 * 32 * 32 / 2) / 2))
is 'context: and gradients' "$(sed -n 's/^    "context": \([0-9]*\),$/\1/p' "$work/json")" \
    $(($(sent all_to_all) + $(sent all_reduce) - $(sed -n 's/^    "data": \([0-9]*\),$/\1/p' "$work/json")))
is 'context: the ranks' "$("$plan" --config docs/data/llama.json --world 4 --context 2 |
    sed -n 's/.* ranks (\(.*\)), .*/\1/p')" 'pipe 1, data 2, context 2, tensor 1'
misused '--world 6 is no multiple of --tensor 1 times --context 4 times --pipe 1: what is left of it are the ranks along data' \
    --world 6 --context 4
misused '--order is for runs: plans take pipe for the slowest axis and tensor for the fastest' --world 2 \
    --tensor 2 --order data,tensor
misused '--search finds ranks along tensor and pipe: without --context' --search --device 1G --context 2 --world 2
misused '--world 6 is no multiple of --tensor 2 times --context 1 times --pipe 2: what is left of it are the ranks along data' \
    --config docs/data/llama.json --world 6 --tensor 2 --pipe 2
misused "--tensor 3 does not divide the model's 4 heads" --config docs/data/llama.json --world 3 --tensor 3
misused '--sections tensor=3 is no multiple of --tensor 2' --config docs/data/llama.json --world 2 \
    --tensor 2 --sections tensor=3
misused 'schedule 1f1b: 1 micro-batches are fewer than the 2 ranks along pipe; 2 or more keep each of them busy' \
    --pipe 2 --world 2
misused 'schedule interleaved: 3 micro-batches are no multiple of the 2 ranks along pipe' --pipe 2 \
    --world 2 --micro-batches 3 --schedule interleaved
misused "--schedule takes 1f1b, gpipe, interleaved=V, zb-h1 or zb-v, with V of 2 or more, not '2f2b'" \
    --pipe 2 --world 2 --micro-batches 2 --schedule 2f2b
fails 1 'zf-plan: zf_stages: 4 chunks of the ranks along pipe, and the graph has 2 layers; each chunk has one or more' \
    --config docs/data/llama.json --pipe 2 --world 2 --micro-batches 4 --schedule zb-v
misused '--schedule and --picture are of the stages of --pipe P' --schedule gpipe
misused '--fit plans ranks that have all layers whole: without --tensor, --context and --pipe' --fit \
    --device 1G --world 2 --tensor 2
misused '--svg and --html are of a rank that has all layers: without --pipe and --search' \
    --pipe 2 --world 2 --micro-batches 2 --svg "$work/picture.svg"
fails 1 'zf-plan: zf_stages: 3 ranks along pipe, and the graph has 2 layers; each rank has one or more' \
    --config docs/data/llama.json --pipe 3 --world 3 --micro-batches 3
fails 1 'zf-plan: zf_stages: layers is "2,1", 3 in all, and the graph has 2 layers' \
    --config docs/data/llama.json --pipe 2 --world 2 --micro-batches 2 --pipe-layers 2,1

# ----------------------------------------------------------------------------------------- phases

# Parameters and states once, the inputs of all shapes, and the values of the larger step; of each
# stage where there are some. Parts of a step: 2 ranks along data times 2 micro-batches.
changing="--layers 4 --hidden 64 --heads 4 --vocab 512 --dropout 0 --zero 1 --micro-batches 2"
for ranks in '--world 2' '--world 4 --pipe 2 --schedule gpipe'; do
    # shellcheck disable=SC2086
    planned $changing $ranks --seq 16 --batch 8
    short=$(of peak) first=$(sed -n 's/^ *"inputs": \([0-9]*\),$/\1/p' "$work/json" | head -n 1)
    # shellcheck disable=SC2086
    planned $changing $ranks --seq 64 --batch 4
    long=$(of peak)
    # shellcheck disable=SC2086
    planned $changing $ranks --phase seq=16,batch=32,steps=5,lr=0.1 --phase seq=64,batch=16,steps=2 \
        --phase seq=16,batch=32,steps=3
    is "phases: $ranks: the peak of the run" "$(of peak)" $((long + first))
    is "phases: $ranks: each" "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' "$work/json" | tr '\n' ' ')" \
        "$short $long $short "
done
# shellcheck disable=SC2086
fails 1 "zf-plan: the phases take $((long + first)) bytes, 1 more than the limit of $((long + first - 1))" $changing \
    --world 4 --pipe 2 --schedule gpipe --phase seq=16,batch=32,steps=5 --phase seq=64,batch=16,steps=2 \
    --memory $((long + first - 1))
planned --model gpt --layers 1 --seq 64
parameters=$(of parameters)
planned --model gpt --layers 1 --phase seq=16,steps=1 --phase seq=64,steps=1
is 'phases: positions are those of the longest' "$(of parameters)" "$parameters"
planned --config docs/data/llama.json --curriculum min=8,round=16,steps=30 --steps 40
is 'curriculum: its lengths' "$(sed -n 's/^ *"tokens": \([0-9]*\),$/\1/p' "$work/json" | tr '\n' ' ')" \
    '16 32 48 64 '
"$plan" --layers 2 --hidden 128 --heads 2 --recipe bert44 --global-batch 64 --world 4 --steps 100 --seq 64 > "$work/table"
is 'recipe: its phases' "$(sed -n 's/^[12]  *\([0-9]*\)  *\([0-9]*\)  *\([0-9]*\) .*/\1x\2x\3/p' "$work/table" |
    tr '\n' ' ')" '91x64x16 9x32x64 '
is 'recipe: its optimizer' "$(sed -n '1s/.*, //p' "$work/table")" lamb
fails 1 'zf-plan: a batch of 30 examples cannot be split into 2 ranks along data times 2 micro-batches' \
    --phase batch=30,steps=2 --world 2 --micro-batches 2
fails 1 "zf-plan: sequences of 65 tokens are too long for the model's 64 positions" \
    --config docs/data/llama.json --phase seq=65,steps=2
fails 1 'zf-plan: --phase number 1 needs its steps: steps=N' --phase seq=64
misused '--curriculum needs steps=N, after which its length is max' --curriculum min=8
misused '--recipe bert44 needs --global-batch B, the examples of a step of phase 1' --recipe bert44
misused '--recipe bert44 is for --model bert' --recipe bert44 --global-batch 64 --model gpt
misused '--recipe has phases of its own: without --phase and --curriculum' --recipe bert44 \
    --global-batch 64 --phase steps=2

# ----------------------------------------------------------------------------------------- search

search="--layers 8 --hidden 256 --heads 8 --vocab 4096 --seq 128 --dropout 0 --world 16 --precision bf16"
# shellcheck disable=SC2086
"$plan" $search --search --device 48M --global-batch 64 --json > "$work/search"
found() { sed -n "s/^ *\"$2\": \"*\([^\",]*\)\"*,*\$/\1/p" "$work/search" | sed -n "$1p"; }
is 'search: rows' "$(grep -c '"options"' "$work/search")" 10
is 'search: the fastest are first' "$(found '1,$' seconds)" "$(found '1,$' seconds | sort -g)"
is 'search: all fit' "$(found '1,$' peak | awk '$1 > 48 * 1048576 { n++ } END { print n + 0 }')" 0
is 'search: all are layouts of the world' \
    "$(for k in 1 2 3 4 5 6 7 8 9 10; do echo $(($(found $k tensor) * $(found $k pipe) * $(found $k data)));
    done | sort -u)" 16
for k in 1 10; do
    # shellcheck disable=SC2046,SC2086
    planned $search $(found $k options)
    is "search: row $k is a plan, to the byte" "$(of peak)" "$(found $k peak)"
done
# shellcheck disable=SC2046,SC2086
"$plan" $search $(found 1 options) --memory "$(found 1 peak)" > /dev/null
is 'search: its best layout fits' "$?" 0
# shellcheck disable=SC2046,SC2086
"$plan" $search $(found 1 options) --memory $(($(found 1 peak) - 1)) > /dev/null 2>&1
is 'search: into no byte less' "$?" 1
unsaid=${search% --precision bf16}
# shellcheck disable=SC2086
"$plan" $unsaid --search --device 48M --global-batch 64 --pipe 4 --zero 1 --json > "$work/search"
# shellcheck disable=SC2046,SC2086
planned $unsaid $(found 1 options)
is 'search: a row without --precision is a plan, to the byte' "$(of peak)" "$(found 1 peak)"
# shellcheck disable=SC2086
"$plan" $search --search --device 48M --global-batch 64 --pipe 4 --tensor 2 --zero 1 --json > "$work/search"
is 'search: of what is given' "$(found '1,$' options | sed 's/ --schedule [^ ]*//; s/ --batch.*//' |
    sort -u)" '--tensor 2 --pipe 4 --zero 1'
# With stages, the fastest layout of all is nearly that of the fastest schedule, which formulas choose.
staged="$search --search --device 48M --global-batch 64 --pipe 4 --tensor 2 --zero 1 --json"
# shellcheck disable=SC2086
"$plan" $staged > "$work/search"
fastest=$(found 1 seconds)
slower=
for kind in 1f1b gpipe interleaved=2 zb-h1 zb-v; do
    # shellcheck disable=SC2086
    "$plan" $staged --schedule $kind > "$work/search" 2>&1 || continue
    is "search: of schedule $kind" "$(found '1,$' options | grep -o 'schedule [^ ]*' | sort -u)" \
        "$(case $kind in 1f1b) ;; *) echo "schedule $kind" ;; esac)"
    slower="$slower $(awk "BEGIN { print ($fastest <= 1.01 * $(found 1 seconds)) }")"
done
is 'search: of all schedules one of the fastest' "$(echo $slower | tr -d ' ' | sed 's/^1\{4,5\}$/all/')" all
misused "--schedule takes 1f1b, gpipe, interleaved=V, zb-h1 or zb-v, with V of 2 or more, not 'fast'" \
    --search --device 1G --schedule fast
# shellcheck disable=SC2086
"$plan" $search --search --device 48M --global-batch 64 > "$work/table"
is 'search: reasons' "$(grep -Ec '^ .*B +[0-9.]+%  (traffic|idle|memory|computing) +--tensor ' "$work/table")" 11
# A stage that does not fit by FLOPs passes layers on.
of_table="${table% --batch*} --seq 32 --dropout 0 --world 3 --pipe 3 --precision f32"
# shellcheck disable=SC2086
"$plan" $of_table --micro-batches 6 --schedule 1f1b --search --device 19M --global-batch 6 --json > "$work/search"
is 'search: layers by bytes' "$(found 1 options)" \
    '--tensor 1 --pipe 3 --zero 0 --batch 1 --micro-batches 6 --memory 19922944'
is 'search: because of memory' "$(found 1 bound)" memory
holds 'search: into the device' "$(found 1 peak) <= (19 << 20)"
# shellcheck disable=SC2046,SC2086
planned $of_table $(found 1 options)
is 'search: layers by bytes are a plan, to the byte' "$(of peak)" "$(found 1 peak)"
# shellcheck disable=SC2086
"$plan" $of_table --micro-batches 6 --schedule 1f1b --search --device 19M --global-batch 6 --pipe-layers 4,4,4 \
    > /dev/null 2>&1
is 'search: layers that are given stay' "$?" 1
# shellcheck disable=SC2086
planned $of_table --batch 1 --micro-batches 6 --memory 21M --prefetch 1M
# Of a model with experts all numbers of ranks that can share them: each row is a plan.
mixture='--config docs/data/moe.json --seq 32 --world 4 --tensor 1 --pipe 1 --precision bf16'
# shellcheck disable=SC2086
"$plan" $mixture --search --device 2M --global-batch 16 --json > "$work/search"
is 'search: ranks that share experts' "$(found '1,$' expert | sort -u | tr '\n' ' ')" '1 2 4 '
k=$(found '1,$' options | grep -n 'expert 4' | head -n 1 | cut -d : -f 1)
# shellcheck disable=SC2046,SC2086
planned $mixture $(found "$k" options)
is 'search: with experts a row is a plan, to the byte' "$(of peak)" "$(found "$k" peak)"
is 'search: and its time is not endless' "$(found '$' seconds | awk '{ print $1 < 1 }')" 1
# shellcheck disable=SC2086
"$plan" $mixture --search --device 2M --global-batch 16 --expert 2 --json > "$work/search"
is 'search: of experts that are given' "$(found '1,$' expert | sort -u)" 2
fails 1 'zf-plan: no layout fits 1024 bytes: by formulas all take more' --search --device 1K
misused '--search requires --device' --search

# --------------------------------------------------------------------------------------- offload

planned --precision bf16
states=$(of optimizer)
planned --precision bf16 --offload optimizer=disk
space() { sed -n "/^    \"$1\": {/,/^    }/s/^      \"$2\": \([0-9]*\),*\$/\1/p" "$work/json"; }
is 'offload: the states left the device' "$(of optimizer)" 0
# The count of steps is in host memory; on the disk, places are multiples of pages.
is 'offload: to the disk' "$(space host optimizer)" 64
holds 'offload: all of them' "$(space disk optimizer) >= $states - 64 &&
    $(space disk optimizer) < $states + 4096 * $(calls read)"
is 'offload: read as often as written' "$(sent read) $(calls read)" "$(sent write) $(calls write)"
holds 'offload: what is read' "$(sent read) >= $states - 64 - 4096"
holds 'offload: parameters come back' "$(sent upload) == 2 * $(of padded_count)"
is 'offload: copies of disk and memory take time' "$(for k in download upload read write host; do
    seconds busy $k; done | awk '$1 > 0 { n++ } END { print n }')" 5
"$plan" --offload optimizer=disk > "$work/table"
is 'offload: in the table' "$(grep -Ec '^(bytes of (a rank|host|disk)|download|upload|read|write) ' \
    "$work/table")" 11
misused "--offload: optimizer takes one of device, host or disk, not 'moon'" --offload optimizer=moon

# Of a GPT-2 whose parameters are brought for their uses: the pieces save the larger part of the
# largest weight, 3072 x 768 of f32, in its bucket; the parameters are as many.
planned --model gpt --vocab 512 --batch 1 --seq 64 --offload parameters=host,gradients=host
plain=$(space device peak) count=$(of parameter_count)
planned --model gpt --vocab 512 --batch 1 --seq 64 --offload parameters=host,gradients=host \
    --tile 300K
is 'tile: as many parameters' "$(of parameter_count)" "$count"
holds 'tile: saves bytes of the device' "$plain - $(space device peak) > 3072 * 768 * 4"

# ------------------------------------------------------------------------------------------- fit

"$plan" --fit --device 1G --host 2G --disk 8G --world 2 --json > "$work/fit"
row() { awk -v n="$1" -v key="\"$2\":" '/"way"/ { k++ } k == n && $1 == key { gsub(/[",]/, "", $2)
    print $2 }' "$work/fit"; }
rows=$(grep -c '"way"' "$work/fit")
is 'fit: rows' "$rows" 48
# refit ROW LAYERS: the plan of a row, of so many layers
refit() {
    offload=$(sed -n 's/^ *"way": "stage [0-9],* *\(.*\)",$/\1/p' "$work/fit" | sed -n "$1p")
    planned --model "$(row "$1" model)" --layers "$2" --hidden "$(row "$1" hidden)" --heads \
        "$(row "$1" heads)" --seq "$(row "$1" seq)" --batch 1 --precision bf16 --recompute layers \
        --world 2 --zero "$(row "$1" zero)" --offload "${offload:-off}"
}
for n in 1 15 24 45; do
    layers=$(row $n layers)
    refit $n "$layers"
    is "fit: row $n is a plan" "$(of parameter_count) $(space device peak) $(space host peak)" \
        "$(row $n parameters) $(row $n device) $(row $n host)"
    holds "fit: row $n is within" "$(row $n device) <= 1 << 30 && $(row $n host) <= 2 << 30 &&
        $(row $n disk) <= 8 << 30"
    refit $n $((layers + 1))
    holds "fit: row $n has no room for a layer" "$(space device peak) > 1 << 30 ||
        $(space host peak) > 2 << 30 || $(space disk peak) > 8 << 30"
    heads=$(row $n heads)
    width=$(($(row $n hidden) / heads))
    is "fit: row $n is of the family" "$width" "$([ "$(row $n model)" = gpt ] && echo 128 || echo 64)"
done
holds 'fit: shards make room' "$(row 1 parameters) < $(row 8 parameters) &&
    $(row 8 parameters) < $(row 18 parameters)"
is 'fit: gradients and activations leave the device at stage 2 too' \
    "$(grep -c '"way": "stage 2, optimizer=host,gradients=host,activations=host"' "$work/fit")" 2
is 'fit: in a table' "$("$plan" --fit --device 1G | grep -Ec '^(GPT |BERT)  plain memory .*B  ')" 2
misused '--fit requires --device' --fit

# bench/cuda/roofline.sh makes a table of the same numbers: where memory is fast, products take
# the time, and where it is slow, reading and writing does; milliseconds of a profile are next to it.
roofline() {
    PLAN=$plan sh bench/cuda/roofline.sh "$@" --layers 2 --batch 2 > "$work/roofline" 2>&1
}
planned --layers 2 --batch 2
of_operators() { # KEY FACTOR DIGITS
    sed -n '/"operators"/,/^  }/p' "$work/json" | awk -v key="\"$1\":" -v by="$2" -v digits="$3" '
        $1 == key { sum += $2 } END { printf "%.*f", digits, by * sum }'
}
roofline -t 1e-3 -b 1e6
is 'roofline: bytes and FLOPs' "$(awk '/^in all/ { print $4, $5 }' "$work/roofline")" \
    "$(of_operators bytes 1e-9 2) $(of_operators flops 1e-12 2)"
is 'roofline: bound by FLOPs' "$(awk '/^in all/ { print $6 }' "$work/roofline")" \
    "$(of_operators flops 1e-6 3)"
echo 'linear 9 a 7.250 b c d e' > "$work/profile"
roofline -t 1e6 -b 1e-6 -p "$work/profile"
is 'roofline: bound by bytes' "$(awk '/^in all/ { print $6 }' "$work/roofline")" \
    "$(of_operators bytes 1e-3 3)"
is 'roofline: with a profile' "$(awk '$1 == "linear" || /^in all/ { print $NF }' "$work/roofline" |
    sort -u)" 7.250

# -------------------------------------------------------------------------- an iteration of grpo

# rlhf KEY OPTIONS...: a number of the plan; of a phase, PHASE.KEY.
rlhf() {
    key=$1
    shift
    "$plan" rlhf --model docs/data/llama.json --prompt 16 --answer 16 --json "$@" | awk -v want="$key" '
        { gsub(/[",]/, "") }
        $1 == "phase:" { phase = $2 "." }
        $1 == "]" { phase = "" }
        phase $1 == want ":" { print $2 }'
}
is 'rlhf: what is gathered is all parameters' "$(rlhf sampling.gathered --zero 3 --world 8)" \
    "$(($(rlhf parameters --zero 3 --world 8) * 8))"
is 'rlhf: one copy is moved' "$(rlhf moved --zero 3 --world 8)" \
    "$(($(rlhf parameters --zero 3 --world 8) * 7))"
is 'rlhf: nothing is gathered' "$(rlhf sampling.gathered --zero 2 --world 8) $(rlhf moved --zero 2 --world 8)" '0 0'
most() {
    for phase in sampling scoring training; do
        echo $(($(rlhf $phase.gathered "$@") + $(rlhf $phase.caches "$@") + $(rlhf $phase.values "$@")))
    done | sort -n | tail -n 1
}
is 'rlhf: phases take turns' "$(rlhf in_turns --zero 3 --world 4)" "$(most --zero 3 --world 4)"
kept=0
for phase in sampling scoring training; do kept=$((kept + $(rlhf $phase.kept))); done
is 'rlhf: all is the sum' "$(rlhf all)" \
    "$(($(rlhf parameters) + $(rlhf optimizer) + $(rlhf in_turns) + kept))"
# Of ppo the critic is one of the phases; sampling may take most.
kept=0
for phase in sampling scoring reference values critic training; do
    kept=$((kept + $(rlhf $phase.kept --ppo --lora r=4)))
done
is 'rlhf: all of ppo is the sum' "$(rlhf all --ppo --lora r=4)" "$(($(rlhf parameters --ppo --lora r=4) +
    $(rlhf optimizer --ppo --lora r=4) + $(rlhf in_turns --ppo --lora r=4) + kept))"
# Policy, critic and reference over one base: it, two adapters with their states, the head, and the
# largest phase are all but the inputs of the phases.
over_one_base() {
    all=$(rlhf all --ppo --lora r=4 "$@")
    sum=$(($(rlhf parameters --ppo --lora r=4 "$@") + $(rlhf optimizer --ppo --lora r=4 "$@") +
        $(rlhf in_turns --ppo --lora r=4 "$@")))
    [ $((100 * all)) -le $((105 * sum)) ]
    echo $?
}
is 'rlhf: roles over one base take hardly more than it' "$(over_one_base)$(over_one_base --zero 3 --world 4)" 00
is 'rlhf: sampling takes most' "$(rlhf in_turns --batch 2 --group 2)" "$(most --batch 2 --group 2)"
is 'rlhf: nothing is apart' "$(rlhf sampling.apart --batch 2 --group 2) $([ "$(rlhf sampling.values --batch 2 --group 2)" -gt \
    "$(rlhf training.values --batch 2 --group 2)" ]; echo $?)" 'false 0'
is 'rlhf: a text is trained on too' "$([ "$(rlhf training.values --ppo --ptx-rows 64)" -gt \
    "$(rlhf training.values --ppo)" ]; echo $?)" 0
usage="
Try 'zf-plan rlhf --help'."
is 'rlhf: a critic of grpo' "$("$plan" rlhf --model docs/data/llama.json --critic docs/data 2>&1)" \
    "zf-plan: rlhf: --critic requires --ppo$usage"
is 'rlhf: a group of one' "$("$plan" rlhf --model docs/data/llama.json --group 1 2>&1)" \
    "zf-plan: rlhf: a --group of grpo has at least 2 answers$usage"
fails 1 'zf-plan: rlhf: 3 rows of a text cannot be split into 2 parts of a step' rlhf --ppo --ptx-rows 3 --world 2 \
    --model docs/data/llama.json --prompt 16 --answer 16
is 'rlhf without a model' "$("$plan" rlhf 2>&1)" "zf-plan: rlhf: a model is needed: --model DIR$usage"
is 'rlhf of uneven parts' "$("$plan" rlhf --model docs/data/llama.json --prompt 16 --answer 16 --world 3 2>&1)" \
    'zf-plan: rlhf: a batch of 64 answers is no multiple of the 3 parts of a step, or of the group of 8'
is 'rlhf of a long answer' "$("$plan" rlhf --model docs/data/llama.json --prompt 16 --answer 600 2>&1)" \
    "zf-plan: rlhf: sequences of 616 tokens are too long for the model's $(
        sed -n 's/.*"max_position_embeddings": \([0-9]*\).*/\1/p' docs/data/llama.json) positions"
fails 1 "zf-plan: rlhf: the phases take $(rlhf all) bytes, $(($(rlhf all) - 1000)) more than the limit of 1000" \
    rlhf --model docs/data/llama.json --prompt 16 --answer 16 --memory 1000
"$plan" rlhf --help | grep -q '^Usage: zf-plan rlhf'
is 'rlhf: help' "$?" 0

# A picture is nothing that is read, and whole or not at all.
echo '{}' > "$work/rates"
misused "--svg $work/rates: it is the file of --cost; name another place" \
    --cost "$work/rates" --svg "$work/rates"
echo kept > "$work/picture"
(ulimit -f 1 && "$plan" --layers 2 --svg "$work/picture") > /dev/null 2> "$work/err"
is 'a picture that is too large' "$? $(cat "$work/picture" "$work/err")" \
    "1 kept
zf-plan: cannot write $work/picture.zf-new: File too large"
"$plan" --layers 2 > /dev/full 2> "$work/err"
is 'a disk that is full' "$? $(cat "$work/err")" '1 zf-plan: cannot write: No space left on device'
# A layout is a picture; the plan counts the blocks of it.
is 'layout' "$("$plan" --model gpt --seq 80 --attention fixed,local=2 --layout)" '#....
##...
.##..
.###.
.#.##
11 of 25 blocks of 16 tokens, 44.0%'
is 'layout of each head' \
    "$("$plan" --seq 48 --hidden 128 --heads 2 --attention fixed,local=2,patterns=2,per_head --layout)" \
    'head 0
###
###
.##
head 1
###
###
#.#
16 of 18 blocks of 16 tokens, 88.9%'
is 'layout of no blocks' "$("$plan" --attention bird --layout 2>&1)" \
    "zf-plan: --attention takes off|fixed|variable|bigbird|longformer|window|file[,NAME=VALUE,...], \
not 'bird'
Try 'zf-plan --help'."

"$plan" --help | grep -q '^Usage: zf-plan'
is 'help' "$?" 0

# A page about the plan has its bytes; pages of runs have their numbers.
planned --layers 2 --hidden 128 --heads 2 --world 4 --zero 3 --html "$work/page.html"
grep -q "are allocated ($(of peak) bytes)" "$work/page.html"
is 'page' "$?" 0
"$plan" --layers 2 --hidden 128 --heads 2 --html "$work/none/page.html" > "$work/out" 2> "$work/err"
is 'page in no folder' "$? $(cat "$work/err")" \
    "1 zf-plan: --html: cannot create $work/none/page.html.zf-new: No such file or directory"
report=${plan%/*}/zf-report
printf 'step,loss\n1,4\n2,2.5\n3,2' > "$work/a.csv"
printf 'step,eval_loss\n2,3.25\n' > "$work/a.eval.csv"
mkdir "$work/run"
printf 'step,loss,lr\n1,5,0.1\n' > "$work/run/log.csv"
"$report" "$work/a.csv" "$work/run" > "$work/page.html"
is 'two runs' "$?" 0
grep -q "<td>loss</td><td>$work/a.csv</td><td>4</td><td>2.5</td><td>2</td>" "$work/page.html" &&
    grep -q "<td>eval_loss</td><td>$work/a.csv</td><td>3.25</td>" "$work/page.html" &&
    grep -q "<td>learning_rate</td><td>$work/run</td><td>0.1</td>" "$work/page.html"
is 'their numbers, without an incomplete row' "$?" 0
printf 'step,loss\n1,x\n' > "$work/a.csv"
is 'a log with a word in it' "$("$report" "$work/a.csv" 2>&1)" "zf-report: $work/a.csv:2: a field is not a number"
is 'no log' "$("$report" "$work/none.csv" 2>&1)" "zf-report: $work/none.csv: No such file or directory"
is 'no run' "$("$report" 2>&1 | head -1)" 'zf-report: which runs?'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
