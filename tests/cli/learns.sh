#!/bin/sh
# The sample BERT learns: sh tests/cli/learns.sh [PROGRAM]
#
# It learns a small language, in which the words of a sentence follow from each other, until the loss
# of masked words is less than half of their unigram entropy.
set -eu

bert=${1:-build/bert}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

awk 'BEGIN {
    split("cat dog bird fish horse", who); split("runs sleeps sings swims eats", does)
    split("house garden river forest field", where); seed = 1
    for (d = 0; d < 60; d++) {
        for (s = 0; s < 8; s++) {
            seed = (seed * 16807) % 2147483647; k = seed % 5 + 1
            printf "The %s %s in the %s near the %s.\n", who[k], does[k], where[k], where[k % 5 + 1]
        }
        print ""
    }
}' > "$work/text"
cat > "$work/config.json" << 'END'
{"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
 "intermediate_size": 64, "max_position_embeddings": 32}
END
"$bert" vocab --corpus "$work/text" --vocab "$work/vocab.txt" --size 120
"$bert" pretrain --model "$work/config.json" --corpus "$work/text" --vocab "$work/vocab.txt" \
    --seq 32 --batch 4 --steps 600 --lr 5e-3 --quiet --report "$work/report.json"
awk -F '[:,]' '
    /"held_out_mlm_loss"/ { loss = $2 }
    /"unigram_entropy"/ { entropy = $2 }
    END { exit !(loss > 0 && loss < entropy / 2) }' "$work/report.json"
