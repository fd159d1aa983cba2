#!/bin/sh
# Draws the pictures of docs/: sh docs/pictures/make.sh [FOLDER], in the root of the tree
set -eu
out=${1:-docs/pictures}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# draw NAME PASSES: what these passes make of the last graph, which is the next one's first.
draw() {
    build/zf-opt --svg="$out/$1.svg" "$2" "$work/graph.zf" > "$work/next.zf"
    mv "$work/next.zf" "$work/graph.zf"
}
cp docs/data/net.zf "$work/graph.zf"
draw fuse fuse
loss=$(sed -n 's/^\(%[0-9]*\) = head_loss.*/\1/p' "$work/graph.zf")
draw autograd "autograd $loss; simplify"
draw adamw 'adamw lr'
draw zero 'zero stage=3 world=4'
build/zf-plan --model=gpt --layers=2 --hidden=128 --heads=2 --vocab=8192 --seq=128 \
    --svg="$out/memory.svg" > "$work/plan"
