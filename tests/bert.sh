# The command line of build/bert. Part of tests/run.sh: $work is a scratch folder.
# shellcheck shell=sh disable=SC2154,SC2317

text=$work/corpus.txt
vocab=$work/vocab.txt

bert() { timeout 300 build/bert "$@"; }

# A small language: 60 documents of eight sentences in which the words of a place follow each other.
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
}' > "$text"

cat > "$work/config.json" << 'JSON'
{"model_type": "bert", "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64,
 "type_vocab_size": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
 "hidden_act": "gelu", "layer_norm_eps": 1e-12, "initializer_range": 0.02}
JSON

# pretrain OPTIONS...: on the small text. pretrain_with names the program as well.
pretrain_with() {
    "$@" --model "$work/config.json" --corpus "$text" --vocab "$vocab" --seq 32 --batch 4 \
        --eval-batches 2 --quiet
}
pretrain() { pretrain_with bert pretrain "$@"; }

# ---------------------------------------------------------------------------------- bad and helpful

check 'no command' gives 2 '^usage: bert COMMAND' bert
check 'help' gives 0 '^usage: bert COMMAND' bert --help
for command in pretrain vocab eval fill export; do
    check "help of $command" gives 0 "^usage: bert $command " bert "$command" --help
    check "an option that $command lacks" \
        gives 2 "^bert: $command: there is no option '--nonesuch'" bert "$command" --nonesuch
    check "$command without what it needs" gives 2 "^bert: $command" bert "$command"
done
check 'an unknown command' gives 2 "^bert: there is no command 'prtrain'" bert prtrain
check 'a number that is none' \
    gives 2 "^bert: pretrain: --steps takes a whole number from 0 .* not 'many'" \
    bert pretrain --steps many
check 'a number out of range' \
    gives 2 "^bert: pretrain: --dropout takes a number .* not '2'" bert pretrain --dropout 2
check 'an unknown choice' \
    gives 2 "^bert: pretrain: --optimizer is one of adamw\|lamb\|sgd, not 'adam'" \
    bert pretrain --optimizer adam
check 'a value that is missing' gives 2 '^bert: vocab: --size needs a value' bert vocab --size
check 'a text that is not there' gives 1 '^bert: .*none.txt.*No such file' \
    bert vocab --corpus "$work/none.txt" --vocab "$vocab"
check 'an unknown model' gives 1 '^bert: .*huge' \
    bert pretrain --model huge --corpus "$text" --vocab "$text"

# ------------------------------------------------------------------------------------------ training

check 'makes a vocabulary' gives 0 'vocab.txt: [0-9]+ tokens' \
    bert vocab --corpus "$text" --vocab "$vocab" --size 120

trains() {
    pretrain --steps 20 --threads 2 --save "$work/twenty" --dump "$work/twenty.safetensors" \
        --dump-grads "$work/grads.safetensors" --log "$work/log.csv" --svg "$work/loss.svg" \
        --report "$work/report.json"
}
check 'trains twenty steps' gives 0 '^held out: MLM loss [0-9.]+, accuracy' trains
check 'a log of them' awk -F , '
    NR == 1 { good = $0 == "step,loss,mlm_loss,nsp_loss,lr,grad_norm,tokens_per_s" }
    NR > 1 { good = good && $1 == NR - 1 && NF == 7 && $2 > 0 && $2 < 20 }
    END { exit !(good && NR == 21) }' "$work/log.csv"
check 'a curve' grep -q '^<svg' "$work/loss.svg"

# The report is one object; its plan is what was allocated.
reports() {
    cat "$work/report.json"
    for key in predicted_peak_bytes allocated_peak_bytes tokens_per_s flops_per_step parameters \
        held_out_mlm_loss unigram_entropy; do
        grep -Eq "\"$key\": [0-9.e+]+" "$work/report.json" || return 1
    done
    sed -n 's/.*"[a-z]*ed_peak_bytes": \([0-9]*\).*/\1/p' "$work/report.json" | uniq | wc -l |
        grep -q '^1$'
}
check 'a report' reports

# The words of this language follow from each other, so it can be learned far below its entropy.
learns() {
    pretrain --steps 600 --lr 5e-3 --report "$work/learned.json" || return
    awk -F '[:,]' '
        /"held_out_mlm_loss"/ { loss = $2 }
        /"unigram_entropy"/ { entropy = $2 }
        END { exit !(loss > 0 && loss < entropy / 2) }' "$work/learned.json"
}
check 'learns' learns

# The same training on one thread, and the same in two parts, have the same bits.
on_one_thread() {
    pretrain --steps 20 --threads 1 --dump "$work/one.safetensors" &&
        cmp "$work/one.safetensors" "$work/twenty.safetensors"
}
check 'one thread, the same bits' on_one_thread

# Interrupted at whatever step it has come to, continued for ten more: as if nothing had happened.
interrupted() {
    pretrain_with exec build/bert pretrain --steps 1000000 --schedule constant --warmup 0 \
        --save "$work/part" --save-every 1 --threads 2 --log "$work/part.csv" > "$work/said" 2>&1 &
    while kill -0 $! 2> /dev/null && [ ! -e "$work/part/manifest.json" ]; do sleep 0.1; done
    kill -INT $!
    wait $!
    status=$?
    cat "$work/said"
    return $status
}
continued() {
    at=$(sed -n 's/^interrupted after step \([0-9]*\);.*/\1/p' "$work/said")
    [ -n "$at" ] || return 1
    pretrain --steps $((at + 10)) --schedule constant --warmup 0 --threads 2 --load "$work/part" \
        --log "$work/part.csv" --dump "$work/continued.safetensors" &&
        pretrain --steps $((at + 10)) --schedule constant --warmup 0 --threads 1 \
            --log "$work/whole.csv" --dump "$work/whole.safetensors" &&
        cmp "$work/continued.safetensors" "$work/whole.safetensors" || return 1
    for part in part whole; do cut -d , -f 1-6 "$work/$part.csv" > "$work/$part.cut"; done
    cmp "$work/part.cut" "$work/whole.cut"
}
check 'interrupted, it saves and says how to continue' gives 130 '--load .*/part' interrupted
check 'continued, it has the same bits' continued

# ------------------------------------------------------------------------------------ what was saved

check 'evaluates' gives 0 '^MLM loss [0-9.]+, accuracy [0-9.]+% of [0-9]+ masked words' \
    bert eval --load "$work/twenty" --corpus "$text" --seq 32 --batch 4 --batches 2
check 'fills in' gives 0 '\[MASK\]|[0-9]%' \
    bert fill --load "$work/twenty" 'The cat [MASK] in the house.'
check 'exports' bert export --load "$work/twenty" "$work/exported.safetensors"
check 'which is what it had' cmp "$work/exported.safetensors" "$work/twenty.safetensors"
check 'starts from exported weights' gives 0 '^held out: MLM loss' \
    pretrain --steps 0 --init "$work/exported.safetensors"

check 'another learning rate is another run' gives 1 '^bert: .*twenty.*--lr' \
    pretrain --steps 30 --load "$work/twenty" --lr 0.5
check 'no checkpoint' gives 1 '^bert: .*none' pretrain --load "$work/none"
damaged() {
    cp -r "$work/twenty" "$work/damaged" || return
    file=$(find "$work/damaged" -name '*.safetensors' | sort | head -n 1)
    head -c 20000 "$file" > "$work/cut" && mv "$work/cut" "$file" &&
        gives 1 "^bert: .*damaged/$(basename "$file")" \
            bert eval --load "$work/damaged" --corpus "$text" --seq 32
}
check 'a checkpoint that was cut off is named' damaged
