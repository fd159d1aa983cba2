#!/bin/sh
# What the programs refuse, one wrong input for each that no other test has: sh tests/cli/refused.sh
#
# One line per check, and "N passed, N failed" at the end.
set -u
export LC_ALL=C

bert=build/bert gpt=build/gpt llm=build/llm
golden=tests/golden data=docs/data
. tests/cli/cli.sh

# words: a folder with a tokenizer without merges; bpe: one with them, and random weights. rm: a reward
# model; base: a model that predicts.
mkdir "$work/words" "$work/bpe"
cp $data/vocab.txt "$work/words"
cp $golden/llm/llama2/config.json $golden/llm/llama2/model.safetensors "$work/bpe"
echo '{}' > "$work/bpe/tokenizer_config.json"
awk 'BEGIN {
    printf "{\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {"
    for (i = 0; i < 37; i++)
        printf "%s\"%c\": %d", i ? ", " : "", i < 26 ? 97 + i : i == 26 ? 32 : 21 + i, i
    print "}}}"
}' > "$work/bpe/tokenizer.json"
trains() { ends 0 "$llm" "$@" --steps 1 --batch 4 --precision f32 --threads 1 --quiet; }
reward() { trains reward --model $data/llama.json --tokenizer "$work/words" --data $data/pairs.jsonl --seq 20 "$@"; }
pretrain() {
    trains pretrain --model $data/llama.json --corpus $data/stories.txt --vocab $data/vocab.txt --seq 16 \
        --eval-batches 0 "$@"
}
check 'a reward model' reward --save "$work/rm"
check 'a model that predicts' pretrain --save "$work/base"
check 'and an adapter of it' trains finetune --model "$work/base" --tokenizer "$work/words" \
    --data $data/chats.jsonl --seq 64 --lora r=2 --save "$work/adapter"

# ----------------------------------------------------------------------------------- training

lm() { refuses "$1" "$2" "$llm" pretrain --model $data/llama.json --corpus $data/stories.txt --vocab \
    $data/vocab.txt --seq 16 --quiet "$3" "$4"; }
lm 'a curriculum without an end' '--curriculum needs steps=N, after which its length is max' --curriculum min=8
lm 'a block mask of many numbers' '--attention has more than 255 characters' --attention \
    "variable,globals=$(awk 'BEGIN { for (k = 0; k < 16; k++) printf "%s%d:%d", k ? "+" : "", 9e14 + k, 9e15 + k }')"
sed 's/"max_position_embeddings": 64/"max_position_embeddings": 8192/' $data/llama.json > "$work/long.json"
refuses 'a phase of more tokens than the text' 'part must each have more than 4000 tokens; one has' "$llm" pretrain \
    --model "$work/long.json" --corpus $data/stories.txt --vocab $data/vocab.txt --seq 16 --quiet \
    --phase steps=1 --phase seq=4000,batch=1,steps=1 --phase steps=1
refuses 'a phase of few tokens' 'a phase has 4 tokens; 8 is the least' "$bert" pretrain --corpus $data/stories.txt \
    --vocab $data/vocab.txt --seq 16 --curriculum min=4,round=4,steps=8
# The final norm multiplies by 8e37: the loss is below 1e38, the norm of the gradients is not.
ends 0 "$llm" export --load "$work/base" "$work/steep"
header=$(od -An -tu8 -N8 "$work/steep/model.safetensors")
norm=$(head -c $((header + 8)) "$work/steep/model.safetensors" |
    tr -d '\000' | sed 's/.*"model\.norm\.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
# shellcheck disable=SC2059
printf "$(awk 'BEGIN { for (k = 0; k < 32; k++) printf "\\1\\1\\160\\176" }')" |
    dd of="$work/steep/model.safetensors" bs=1 seek=$((header + 8 + norm)) conv=notrunc 2> /dev/null
refuses 'gradients that are too large' ', gradient norm inf; the run has diverged' "$llm" pretrain --model \
    "$work/steep" --init "$work/steep" --corpus $data/stories.txt --vocab $data/vocab.txt --seq 2 --batch 1 --steps 1 \
    --precision f32 --threads 1 --eval-batches 0 --quiet
lm 'a page without a name' ': it names no file' --report-html "$work/none/"
lm 'a picture without a name' ': it names no file' --svg "$work/none/"
refuses 'ranks of a launcher that are threads' \
    'makes threads of one: start one process, or leave --ranks out' env WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$llm" pretrain --model $data/llama.json --corpus $data/stories.txt --vocab \
    $data/vocab.txt --ranks 2

# ---------------------------------------------------------------------------------- commands

refuses 'no first model' 'a model to begin with is needed: --model DIR' "$llm" rlhf
refuses 'nowhere to work' 'a folder is needed: --save DIR' "$llm" rlhf --model "$work/base" --data $data/pairs.jsonl
refuses 'no adapter' 'an adapter is needed: --adapter DIR' "$llm" merge --load "$work/base" "$work/merged"
refuses 'messages without a style' 'messages need a style: --chat auto, or its name' "$llm" chat --load "$work/bpe" \
    --chat none
refuses 'a chat of words' '--chat needs a tokenizer with a BPE model;' "$llm" generate --load "$work/base" \
    --tokenizer "$work/words" --chat chatml ba
refuses 'chats of words' '--chat, --chat-vars and --date need a tokenizer with a BPE model;' "$llm" finetune --model \
    "$work/base" --tokenizer "$work/words" --data $data/chats.jsonl --seq 64 --chat chatml
refuses 'a folder without a template' 'has no chat_template: name a style, --chat' "$llm" generate --load \
    "$work/bpe" --chat auto ba
cp -r "$work/bpe" "$work/chats"
sed 's/"a": 0, /"<|im_start|>": 0, /; s/"b": 1, /"<|im_end|>": 1, /' "$work/bpe/tokenizer.json" > "$work/chats/tokenizer.json"
# run COMMAND...: as in cli.sh, and it reads $stdin.
run() {
    "$@" > "$work/out" 2> "$work/err" < "${stdin:-/dev/null}"
    status=$?
    return 0
}
printf 'a\0b\n' > "$work/nul"
stdin=$work/nul
refuses 'a message with NUL' 'a line has a NUL byte' "$llm" chat --load "$work/chats" --chat chatml
awk 'BEGIN { for (k = 0; k < 500; k++) printf "cd"; print "" }' > "$work/long"
stdin=$work/long
long() {
    ends 0 "$llm" chat --load "$work/chats" --chat chatml &&
        grep -q 'more than the context of 64: /new begins another one' "$work/err"
}
check 'a message that is too long' long
# Messages of no tokens: any number of them fits.
cat > "$work/chats/silent.jinja" << 'END'
{% for m in messages %}{% if loop.last %}c{% endif %}{% endfor %}
END
awk 'BEGIN { for (k = 0; k < 130; k++) print "c" }' > "$work/long"
many() {
    ends 0 "$llm" chat --load "$work/chats" --chat "$work/chats/silent.jinja" --tokens 1 --threads 1 &&
        [ "$(grep -c '^> 8$' "$work/out")" = 130 ]
}
check 'many messages' many
stdin=
refuses 'settings of no chat' 'is for chats: --chat auto, or a style' "$llm" generate --load "$work/bpe" \
    --chat none --no-thinking cd
refuses 'averages of a model' 'has no averages: only a checkpoint of a run with --ema has' "$llm" export --load \
    "$work/bpe" --average "$work/exported"
refuses 'averages of few bits' '--average is for weights that are floats' "$llm" generate --load "$work/base" \
    --weights int8 --average ba
refuses 'text for which there is no room' 'leaves no room for the text' "$llm" selftest --load "$work/base" \
    --tokens 4096 --text $data/stories.txt
echo > "$work/empty"
refuses 'no text to be tested' 'the text has fewer than two tokens' "$llm" selftest --load "$work/base" \
    --text "$work/empty"
# ------------------------------------------------------------------------------------- rewards

pairs() { refuses "$1" "$2" "$llm" reward --model $data/llama.json --tokenizer "$work/words" --data "$work/pairs" \
    --seq 20 --quiet; }
head -n 1 $data/pairs.jsonl > "$work/pairs"
pairs 'one pair' 'one to train on and one to be held out are needed'
: > "$work/pairs"
refuses 'no pair' 'there is nothing to evaluate' "$llm" eval --load "$work/base" --tokenizer "$work/words" \
    --data "$work/pairs" --seq 20
grpo() { refuses "$1" "$2" "$llm" grpo --model "$work/bpe" --data "$work/prompts" --reward length --batch 8 --steps 1 \
    --quiet "$3" "$4" "$5" "$6"; }
echo '{"prompt": "ab"}' > "$work/prompts"
grpo 'no room for a prompt' 'has no room for a prompt and an answer of --tokens' --seq 8 --tokens 8
refuses 'a model that predicts no tokens' 'is a reward model, which predicts no tokens: reward trains it, score uses it' \
    "$llm" finetune --model "$work/rm" --tokenizer "$work/words" --data $data/chats.jsonl --seq 64
refuses 'a model that continues nothing' 'is a reward model: it scores texts (score), and continues none' \
    "$llm" generate --load "$work/rm" --tokens 2 ba
sed 's/"deviation": [^,}]*/"deviation": 0/' "$work/rm/reward.json" > "$work/reward.json"
ends 0 "$llm" export --load "$work/rm" "$work/flat"
cp "$work/reward.json" "$work/flat"
refuses 'scores without a deviation' 'the deviation in its reward.json is 0: --standardize needs more held-out pairs' \
    "$llm" score --model "$work/flat" --data $data/pairs.jsonl --standardize
refuses 'and as a reward' 'has no reward.json with a deviation, which --reward-standardize reads' "$llm" grpo --model \
    "$work/base" --tokenizer "$work/words" --data "$work/prompts" --reward "model:$work/flat" --reward-standardize \
    --tokens 4 --seq 16
sed 's/"base_model_name_or_path": "[^"]*"/"base_model_name_or_path": null/' "$work/adapter/adapter_config.json" \
    > "$work/config" && cp -r "$work/adapter" "$work/baseless" && cp "$work/config" "$work/baseless/adapter_config.json"
refuses 'an adapter without a base' \
    'names no base (base_model_name_or_path): give its folder, and this one with --adapter' "$llm" score --model \
    "$work/baseless" --data $data/pairs.jsonl

cp -r "$work/bpe" "$work/turned"
sed 's/"a": 0, "b": 1/"b": 0, "a": 1/' "$work/bpe/tokenizer.json" > "$work/turned/tokenizer.json"
echo '{"prompt": "a", "chosen": "b", "rejected": "c"}' > "$work/letters"
cat "$work/letters" "$work/letters" > "$work/pairs"
check 'a reward model of letters' trains reward --model "$work/bpe" --data "$work/pairs" --seq 8 --save "$work/of letters"
refuses 'a reward model of other letters' 'is a reward model of another vocabulary: id 0 is another token than in' \
    "$llm" grpo --model "$work/turned" --data "$work/letters" --reward "model:$work/of letters" --tokens 4 --seq 8 \
    --batch 8 --steps 1 --quiet
# --------------------------------------------------------------------------------------- bert

stdin=/
refuses 'words of a folder' 'standard input: ' "$bert" tokenize --vocab $data/vocab.txt
stdin=
refuses 'a recipe without a batch' '--recipe bert44 needs --batch B, the examples of a step of phase 1:' "$bert" \
    pretrain --model $data/bert.json --corpus $data/stories.txt --vocab $data/vocab.txt --recipe bert44

# --------------------------------------------------------------------------------------- files

lm 'a text without enough to train on' 'the training part and the held-out part must each have more than' --seq 128
echo something > "$work/locked.zf-lock"
pretrain_to() {
    refuses "$1" "$2" "$llm" pretrain --model $data/llama.json --corpus $data/stories.txt --vocab $data/vocab.txt \
        --seq 16 --batch 4 --steps 1 --threads 1 --quiet --save "$3"
}
pretrain_to 'a lock that is another file' 'is there, and is no lock: move it, or name another place' "$work/locked"
mkdir "$work/left.zf-kept" && echo > "$work/left.zf-kept/note"
pretrain_to 'a folder that nobody left' 'is there, and no run that saved has left it: move it, or name another place' \
    "$work/left"

head='{"input_ids":{"dtype":"I64","shape":[0,4,16],"data_offsets":[0,0]}}'
{ printf '%b' "\\0$(printf %o ${#head})\\0\\0\\0\\0\\0\\0\\0" && printf %s "$head"; } > "$work/none.safetensors"
refuses 'batches of nothing' 'input_ids is empty' "$gpt" pretrain --model $data/gpt.json --batch-file \
    "$work/none.safetensors" --steps 1

# ------------------------------------------------------------------------------------ adapters

tune() { refuses "$1" "$2" "$llm" finetune --tokenizer "$work/words" --data $data/chats.jsonl --seq 64 --batch 4 \
    --steps 2 --threads 1 --quiet "$3" "$4" "$5" "$6" --lora r=2; }
check 'another model' pretrain --seed 7 --save "$work/base2"
tune 'an adapter and its description' \
    '--adapter and --lora exclude each other: an adapter has its rank, scale and targets' \
    --model "$work/base" --adapter "$work/adapter"
tune 'an adapter of other weights' ': name the folder of the base that it was trained with' --model "$work/base2" \
    --load "$work/adapter"
refuses 'an adapter of other first weights' \
    'is an adapter of other weights than those of --init: name the folder of the base that it was trained with' \
    "$llm" finetune --tokenizer "$work/words" --data $data/chats.jsonl --seq 64 --batch 4 --steps 2 --threads 1 --quiet \
    --init "$work/base2" --load "$work/adapter" --lora r=2
refuses 'layers that pairs cannot share' '--tensor is for pretrain and finetune' "$llm" dpo --model "$work/base" \
    --tokenizer "$work/words" --data $data/pairs.jsonl --seq 20 --tensor 2 --ranks 2
check 'an adapter that keeps many names' reward --init "$work/base" --lora \
    "r=2,keep=$(awk 'BEGIN { for (k = 0; k < 60; k++) printf "%sinput_layernorm", k ? "," : "" }')" --save "$top/judge"
judges() {
    "$llm" grpo --model "$work/base" --tokenizer "$work/words" --data "$work/prompts" --batch 8 --steps 1 --tokens 4 \
        --seq 16 --quiet --lora r=2 "$@"
}
# shellcheck disable=SC2046 # words
refuses 'many rewards by adapters' 'more than 8 reward models are adapters of one base' judges \
    $(for _ in 1 2 3 4 5 6 7 8 9; do echo --reward "model:$top/judge"; done)
# Numbers of the first parameters, of which some were cut off, with the checksums that they and the manifest have.
pairs_again() {
    "$llm" dpo --model "$work/base" --tokenizer "$work/words" --data $data/pairs.jsonl --seq 20 --steps 2 --batch 4 \
        --threads 1 --quiet --lora r=2 "$@"
}
check 'numbers of a reference' ends 0 pairs_again --steps 1 --save "$work/dpo"
cp "$work/dpo/reference.f32" "$work/whole" && head -c 4 "$work/whole" > "$work/dpo/reference.f32"
for file in reference manifest; do
    run pairs_again --load "$work/dpo"
    sed "$(sed -n 's/.*checksum \([0-9a-f]*\), .* \([0-9a-f]\{8\}\);.*/s=\2=\1=/p' "$work/err")" \
        "$work/dpo/manifest.json" > "$work/$file" && cp "$work/$file" "$work/dpo/manifest.json"
done
refuses 'numbers of a reference of other examples' 'belongs to other examples of --data' pairs_again --load "$work/dpo"
refuses 'dropout of what is compared' 'what is compared must be computed without dropout' "$llm" dpo --model \
    "$work/base" --tokenizer "$work/words" --data $data/pairs.jsonl --seq 20 --lora r=2,dropout=0.1

# ---------------------------------------------------------------------------- chats and families

cp -r "$work/chats" "$work/counts"
cat > "$work/counts/tokenizer_config.json" << 'END'
{"chat_template": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"}
END
echo '{"chosen": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
"rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "e"}]}' | tr -d '\n' > "$work/two"
{ cat "$work/two" && echo && cat "$work/two" && echo; } > "$work/pairs"
refuses 'a template that counts messages' 'changes what the template writes before it: give another one (--chat)' \
    "$llm" reward --model "$work/counts" --data "$work/pairs" --seq 20
cat > "$work/counts/tokenizer_config.json" << 'END'
{"chat_template": "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}"}
END
echo '{"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 0},
{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}' | tr -d '\n' > "$work/weights"
refuses 'a block of no message' \
    'has a weight of 0, and which generation block of the template is its own is not known' "$llm" finetune --model \
    "$work/counts" --data "$work/weights" --seq 20
gemma() {
    sed "$2" $golden/llm/gemma3/config.json > "$work/gemma.json"
    refuses "$1" "$3" "$llm" pretrain --model "$work/gemma.json" --batch-file $golden/llm/batch.safetensors --quiet
}
gemma 'too many layers' 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 9999/; /layer_types/,/]/d' \
    'config.json: num_hidden_layers must be at most'
gemma 'rope of no layers' '1,/{/s/{/{"rope_parameters": {"global": {}},/' \
    'is not read: rope of this family is in full_attention and sliding_attention'

# ---------------------------------------------------------------------------------------- rlhf

head -n 2 $data/pairs.jsonl > "$work/pairs"
rlhf() { refuses "$1" "$2" env "$3" "$llm" rlhf --model "$work/base" --tokenizer "$work/words" --data "$work/pairs" \
    --save "$work/rlhf" --seq 20; }
rlhf 'too few pairs' '.jsonl: there must be more of them' A=B
refuses 'several processes' 'rlhf is one process: give --ranks N, or run the commands of its steps by' env \
    WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$llm" rlhf --model "$work/base" --tokenizer \
    "$work/words" --data $data/pairs.jsonl --save "$work/rlhf" --seq 20
rlhf_words() { "$llm" rlhf --model "$work/base" --tokenizer "$work/words" --data $data/pairs.jsonl --save "$work/rlhf" \
    --seq 20 --sft "$(awk 'BEGIN { for (k = 0; k < 400; k++) printf "--quiet " }')"; }
refuses 'many words' 'more than 400 words of options' rlhf_words
ppo() { refuses "$1" "$2" "$llm" ppo --model "$work/base" --tokenizer "$work/words" --data "$work/prompts" --reward \
    length --tokens 4 --seq 8 --batch 4 --steps 1 --quiet --ptx "$3" --ptx-rows "$4" --micro-batches 2; }
echo '{"prompt": "the"}' > "$work/prompts"
printf 'ba\n' > "$work/short"
ppo 'a text of one word' 'and the token after it are needed' "$work/short" 4
ppo 'rows that are not even' 'equal parts (ranks x micro-batches)' $data/stories.txt 3
total
