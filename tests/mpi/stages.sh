#!/bin/sh
# Ranks along pipe, tensor, context and expert as processes: sh tests/mpi/stages.sh [PROGRAM [SEED]]
#
# The bits are those of as many threads, and of one rank: of two layouts, and of six that are drawn.
# Weights go in (--init) and out (--dump). Processes that were given different meshes, sections or
# schedules say which. The seed is printed.
set -u
export LC_ALL=C
llm=${1:-build/llm}
seed=${2:-$(date +%s)}
. tests/cli/cli.sh
echo "seed $seed"

sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' docs/data/llama.json > "$work/four.json"
model=$work/four.json
few="--corpus docs/data/stories.txt --vocab docs/data/vocab.txt --seq 16 --batch 8 --threads 1 --quiet"
# processes OUT OPTIONS..., threads OUT OPTIONS...: of four ranks.
processes() {
    out=$1
    shift
    # shellcheck disable=SC2086 # words
    ends 0 mpirun -np 4 "$llm" pretrain --model "$model" $few --steps 2 --eval-batches 1 --dump "$work/$out" \
        "$@" && grep '^held out' "$work/out" > "$work/$out.held"
}
threads() {
    out=$1
    shift
    # shellcheck disable=SC2086 # words
    ends 0 "$llm" pretrain --model "$model" $few --steps 2 --eval-batches 1 --dump "$work/$out" "$@" &&
        grep '^held out' "$work/out" > "$work/$out.held"
}
alike() { cmp "$work/$1" "$work/$2" && cmp "$work/$1.held" "$work/$2.held"; }

# same PARTS OPTIONS...: PARTS of the batch, of one rank that has $sections.
same() {
    parts=$1
    shift
    processes many "$@" && threads few --ranks 4 "$@" && alike many few &&
        threads one --micro-batches "$parts" --sections $sections --precision "$precision" && alike many one
}
sections=tensor=2
precision=f32
check 'one forward, one backward' same 4 --tensor 2 --pipe 2 --zero 2 --micro-batches 4 --precision f32
check 'two chunks of each rank' same 4 --tensor 2 --pipe 2 --zero 2 --micro-batches 4 --pipe-schedule zb-v \
    --precision f32

# draw MOST: 0 to MOST-1 as $n.
draw() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    n=$((seed / 65536 % $1))
}
word() {
    shift $n
    printf %s "$1"
}
for _ in 1 2 3 4; do
    draw 3 && layout=$(word '--tensor 2 --pipe 2' '--pipe 2' '--pipe 4')
    draw 5 && kind=$(word 1f1b gpipe interleaved zb-h1 zb-v)
    draw 4 && zero=$n
    draw 2 && precision=$(word f32 bf16)
    draw 2 && micro=$(word 4 8)
    case $layout$kind in *4interleaved | *4zb-v) kind=zb-h1 ;; esac
    case $layout in *'pipe 2') [ "$layout" = '--pipe 2' ] && data=2 || data=1 ;; *) data=1 ;; esac
    [ $((data * micro)) -le 8 ] || micro=4
    case $layout in --tensor*) how=$layout ;; *) how="$layout --sections tensor=2" ;; esac
    [ $data = 1 ] || how="$how --sum parts" # in the order of one rank
    # shellcheck disable=SC2086 # words
    check "$how $kind zero $zero $precision $micro" same $((data * micro)) $how --pipe-schedule $kind --zero $zero \
        --micro-batches $micro --precision $precision
done

for _ in 1 2; do
    draw 3 && layout=$(word '--context 2 --pipe 2' '--context 2 --tensor 2' '--context 4')
    draw 4 && kind=$(word ulysses gather zigzag ring)
    draw 4 && zero=$n
    draw 2 && precision=$(word f32 bf16)
    case $layout$kind in *4ulysses) kind=ring ;; esac
    case $layout$kind in *4zigzag) n=8 ;; *4* | *zigzag) n=4 ;; *) n=2 ;; esac
    sections="tensor=2,context=$n --context-kind $kind"
    # shellcheck disable=SC2086 # words
    check "$layout $kind zero $zero $precision" same 4 $layout --sections $sections --zero $zero \
        --micro-batches 4 --sum micro --precision $precision
done
sections=tensor=2

# A window over some of the ranks.
sed 's/"llama"/"mistral"/; s/"LlamaForCausalLM"/"MistralForCausalLM"/; s/"hidden_act"/"sliding_window": 5, &/' \
    docs/data/llama.json > "$work/window.json"
model=$work/window.json sections='context=4 --context-kind gather' precision=f32
# shellcheck disable=SC2086 # words
check 'a window over two of four ranks' same 2 --context 4 --sections $sections --micro-batches 2 --precision f32
model=$work/four.json sections=tensor=2

begins() {
    ends 0 "$llm" export --load "$work/saved" "$work/folder" &&
        processes taken --tensor 2 --pipe 2 --micro-batches 4 --precision f32 --init "$work/folder" &&
        threads one --micro-batches 4 --sections tensor=2 --precision f32 --init "$work/folder" && alike taken one
}
check 'a checkpoint of processes' processes some --tensor 2 --pipe 2 --micro-batches 4 --zero 2 --save "$work/saved"
check 'weights of a folder' begins

# Experts of four processes: the bits of threads, and of ranks that have all experts.
model=docs/data/moe.json
share() {
    processes many --precision f32 --sections expert=$most "$@" &&
        threads few --ranks 4 --precision f32 --sections expert=$most "$@" && alike many few &&
        threads all --ranks $most --precision f32 --sections expert=$most --micro-batches 2 --sum "$sum" && alike many all
}
most=4 sum=parts
check 'experts' share --expert 4 --zero 3 --micro-batches 2
most=2 sum=micro
check 'experts in two stages' share --expert 2 --pipe 2 --zero 1 --micro-batches 2
model=$work/four.json

# differ TEXT OPTIONS ODD: three processes have OPTIONS, and the last one ODD.
differ() {
    # shellcheck disable=SC2086 # words
    run mpirun -np 3 "$llm" pretrain --model "$work/four.json" $few --micro-batches 4 $2 : \
        -np 1 "$llm" pretrain --model "$work/four.json" $few --micro-batches 4 $3
    [ $status != 0 ] && grep -q -- "$1" "$work/err"
}
check 'another schedule' differ 'pipe-schedule' '--pipe 2' '--pipe 2 --pipe-schedule gpipe'
check 'another mesh' differ 'pipe' '--pipe 2' '--pipe 4'
check 'other sections' differ 'sections' '--tensor 2' '--tensor 2 --sections tensor=4'
total
