#!/bin/sh
# The command line of the sample BERT to the letter: sh tests/cli/bert.sh [PROGRAM]
#
# Messages for mistakes, the output and files of runs, and that an interrupted run can be resumed
# with the same bits by the command that it printed. One line per check, and
# "N passed, N failed" at the end. Works in a folder whose name has a space in it.
set -u
export LC_ALL=C

bert=${1:-build/bert}
. tests/cli/cli.sh

# misused TEXT COMMAND OPTIONS...: a bad command line ends with this error.
misused() {
    text=$1
    shift
    fails 2 "bert: $1: $text; 'bert $1 --help' lists the options" "$bert" "$@" &&
        [ ! -s "$work/out" ]
}

# ------------------------------------------------------------------------------ bad command lines

no_command() { run "$bert" && [ $status = 2 ] && grep -q '^usage: bert COMMAND' "$work/err"; }
check 'no command' no_command
check 'unknown command' \
    fails 2 "bert: there is no command 'train'; 'bert --help' lists them" "$bert" train
check 'unknown option' misused "there is no option '--learning-rate=1'" pretrain --learning-rate=1
check 'ambiguous option' misused "'--sec' is ambiguous: --seconds or --sections" pretrain --sec 1
check 'bad number' misused "--seq takes a whole number from 8 to 65536, not '7'" pretrain --seq 7
check 'bad choice' misused "--precision takes one of f32, bf16 or f16, not 'f8'" \
    pretrain --precision f8
check 'no value' misused '--corpus needs a value' eval --corpus
check 'stray argument' misused "'text' is one argument too many" pretrain text
check 'second text to fill' misused "'b' is one argument too many" fill --load x a b
check 'pretrain without a text' \
    misused 'a text to train on is needed: --corpus FILE, or batches: --batch-file FILE' pretrain
check 'pretrain with text and batches' misused '--corpus and --batch-file exclude each other' \
    pretrain --corpus c --vocab v --batch-file b
check 'seconds without a text' \
    misused '--seconds and --batch-file exclude each other' \
    pretrain --seconds 9 --batch-file b
check 'two first values' \
    misused '--init has the first values: without --first-positions and --first-bias' \
    pretrain --corpus c --vocab v --init f --first-positions sinusoids
check 'shares without a text' misused '--first-bias unigrams needs a text: --corpus FILE' \
    pretrain --batch-file b --first-bias unigrams
check 'pretrain without a vocabulary' \
    misused '--corpus requires --vocab' \
    pretrain --corpus c
check 'save-every without save' \
    misused '--save-every requires --save' \
    pretrain --corpus c --vocab v --save-every 5
check 'shards of nodes at stage 0' \
    misused '--mics requires --zero 1, 2 or 3; it is 0' \
    pretrain --corpus c --vocab v --ranks 4 --mics 2
check 'parameters inside nodes at stage 2' \
    misused '--zero-hpz requires --zero 3; it is 2' \
    pretrain --corpus c --vocab v --zero 2 --zero-hpz
check 'quantised gathers at stage 2' \
    misused '--zero-quantized-weights requires --zero 3; it is 2' \
    pretrain --corpus c --vocab v --zero 2 --zero-quantized-weights
check 'quantised gradients at stage 0' \
    misused '--zero-quantized-gradients requires --zero 1, 2 or 3; it is 0' \
    pretrain --corpus c --vocab v --zero-quantized-gradients
for optimizer in onebit_adam onebit_lamb; do
    check "$optimizer without a warm-up" misused "--optimizer onebit_adam and onebit_lamb need \
--freeze-step N, the last step of the warm-up: 15 to 25% of all" \
        pretrain --corpus c --vocab v --optimizer $optimizer
done
for optimizer in onebit_adam onebit_lamb zero_one_adam; do
    check "$optimizer at stage 3" misused "--optimizer onebit_adam, onebit_lamb and zero_one_adam are \
for --zero 0, 1 and 2: each rank compresses the whole gradient" \
        pretrain --corpus c --vocab v --optimizer $optimizer --freeze-step 5 --zero 3
done
check '0/1 Adam without a last refresh' misused "--optimizer zero_one_adam needs --freeze-step N, \
the last step that may refresh the variance" pretrain --corpus c --vocab v --optimizer zero_one_adam
check '0/1 Adam at stage 1' misused "--optimizer zero_one_adam makes local steps with all of what \
--zero 1 and 2 shard: give --local-step-clipper 1, which makes none, or --zero 0" \
    pretrain --corpus c --vocab v --optimizer zero_one_adam --freeze-step 5 --zero 1
check 'a warm-up of LAMB' \
    misused '--freeze-step requires --optimizer onebit_adam, zero_one_adam or onebit_lamb; it is lamb' \
    pretrain --corpus c --vocab v --optimizer lamb --freeze-step 5
check 'intervals of 1-bit Adam' misused "--local-step-clipper requires --optimizer \
zero_one_adam; it is onebit_adam" \
    pretrain --corpus c --vocab v --optimizer onebit_adam --freeze-step 5 --local-step-clipper 2
check '1-bit LAMB delayed' misused "--delay-update requires --optimizer other than \
onebit_adam, zero_one_adam or onebit_lamb; it is onebit_lamb" \
    pretrain --corpus c --vocab v --optimizer onebit_lamb --freeze-step 5 --delay-update 0
check '1-bit Adam in pieces' misused "--tile requires --optimizer other than onebit_adam, \
zero_one_adam or onebit_lamb; it is onebit_adam" \
    pretrain --corpus c --vocab v --optimizer onebit_adam --freeze-step 5 --tile 4K
check 'error feedback of nothing' \
    misused '--zero-loco requires --zero-quantized-gradients' \
    pretrain --corpus c --vocab v --ranks 2 --zero 2 --zero-loco
check 'errors of 16 bits' misused "--loco-bits takes 8 or 32, not '16'" pretrain --corpus c --vocab v \
    --loco-bits 16
check 'cost without prefetch' \
    misused '--cost requires --prefetch, --memory, --report-html or --trace' \
    pretrain --corpus c --vocab v --cost measure
check 'offload of something' \
    misused \
    "--offload: optimizer takes one of device, host or disk, not 'tape'" \
    pretrain --corpus c --vocab v --offload parameters=host,optimizer=tape
check 'offload without a folder' \
    misused '--offload to disk and --offload-dir DIR, for its files, go together' \
    pretrain --corpus c --vocab v --offload optimizer=host,parameters=disk
check 'a memory of no bytes' \
    misused "--memory takes a number of bytes of 0 or more, not 'much'" \
    pretrain --corpus c --vocab v --memory much
check 'offload of parameters that ranks gather' \
    misused '--offload parameters is for --zero 3, where each rank has a shard, or --zero 0' \
    pretrain --corpus c --vocab v --offload parameters=host --zero 2
check 'save-cost without a measurement' \
    misused '--save-cost requires --cost measure; it is c' \
    pretrain --corpus c --vocab v --prefetch 1 --cost c --save-cost d
check 'recompute of something' \
    misused "--recompute takes off|layers|BYTES, not '2X'" \
    pretrain --corpus c --vocab v --recompute 2X
check 'a table of costs that is not there' \
    fails 1 'bert: cannot open none: No such file or directory' \
    "$bert" pretrain --corpus c --vocab v --prefetch 1 --cost none
check 'scaled gradients' \
    misused '--dump-grads requires --precision f32 or bf16; it is f16' \
    pretrain --corpus c --vocab v --precision f16 --dump-grads g
check 'gradients without a step' misused '--dump-grads needs a step, and --steps 0 makes none' \
    pretrain --corpus c --vocab v --steps 0 --dump-grads g
check 'nothing to evaluate' \
    misused '--steps 0 only evaluates, and --eval-batches 0 leaves nothing to evaluate' \
    pretrain --corpus c --vocab v --steps 0 --eval-batches 0
check 'vocab without a text' misused 'a text is needed: --corpus FILE' vocab
check 'vocab without a file' misused 'a file to write is needed: --vocab FILE' vocab --corpus c
check 'tokenize without a vocabulary' misused 'a vocabulary is needed: --vocab FILE|DIR' tokenize a
check 'eval without a checkpoint' misused 'a checkpoint is needed: --load DIR' eval
check 'eval without a text' misused 'a text is needed: --corpus FILE' eval --load x
check 'fill without a checkpoint' misused 'a checkpoint is needed: --load DIR' fill '[MASK]'
check 'fill without a text' misused 'a text with [MASK] in it is needed' fill --load x
check 'export without a checkpoint' misused 'a checkpoint is needed: --load DIR' export f
check 'export without a file' misused 'a folder or a file to write is needed' export --load x

# ---------------------------------------------------------------------------------------- bad files

corpus="$work/corpus.txt"
vocab="$work/vocab.txt"
config="$work/config.json"

# 40 documents of six sentences, some with capitals.
awk 'function draw(n) { seed = (seed * 16807) % 2147483647; return seed % n + 1 }
    BEGIN {
        split("cat Dog bird King ship", who); split("sees likes finds holds follows", does)
        split("river house bread gold Sea", what); seed = 1
        for (d = 0; d < 40; d++) {
            for (s = 0; s < 6; s++)
                printf "The %s %s the %s near the %s that the %s %s .\n", who[draw(5)],
                    does[draw(5)], what[draw(5)], what[draw(5)], who[draw(5)], does[draw(5)]
            print ""
        }
    }' > "$corpus"
cat > "$config" << 'END'
{"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
 "intermediate_size": 64, "max_position_embeddings": 32}
END
# tokenizes FOLDER: with it, the lines of the probes have the golden ids.
golden=tests/golden/tokenizer/folders
tokenizes() {
    "$bert" tokenize --bare --vocab "$1" < $golden/probes.txt > "$work/out" 2> "$work/err" &&
        cmp "$work/out" "$1/ids.txt"
}
for folder in "$golden"/*/; do check "ids of ${folder%/}" tokenizes "${folder%/}"; done
check 'ids of a text' fails 0 '' "$bert" tokenize --vocab $golden/cased "cat's [MASK]"
check 'between [CLS] and [SEP]' test "$(cat "$work/out")" = '2 7 11 55 4 3'
check 'tokens of a text' fails 0 '' "$bert" tokenize --tokens --vocab $golden/cased "cat's [MASK]"
check 'with ##' test "$(cat "$work/out")" = "[CLS] cat ' s [MASK] [SEP]"
check 'against its options' \
    fails 1 "bert: $golden/uncased: do_lower_case is true there, but false was asked for" \
    "$bert" tokenize --vocab $golden/uncased --cased a
check 'makes a vocabulary' ends 0 "$bert" vocab --corpus "$corpus" --vocab "$vocab" --size 100

# The command after the words in $launch.
launch=
precision=f32
# shellcheck disable=SC2086
pretrain() {
    run $launch "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" --seq 32 \
        --batch 4 --precision $precision "$@"
}
# spoils TEXT OPTIONS...: pretrain with these options ends with this error.
spoils() {
    text=$1
    shift
    pretrain "$@"
    [ $status = 1 ] && [ "$(cat "$work/err")" = "bert: $text" ]
}

form='a corpus has one sentence per line and a blank line between documents'
other='a pipe or a device; a regular file is needed'
mkfifo "$work/pipe"
check 'endless corpus' spoils "corpus '/dev/zero': cannot open: $other; $form" --corpus /dev/zero
check 'a pipe as vocabulary' spoils "$work/pipe: $other" --vocab "$work/pipe"
check 'a vocabulary of a pipe' \
    fails 1 "bert: $work/pipe: $other" "$bert" vocab --corpus "$work/pipe" --vocab "$work/v"
check 'missing corpus' \
    spoils "corpus 'none.txt': cannot open: No such file or directory; $form" --corpus none.txt
: > "$work/empty"
check 'empty corpus' spoils "corpus '$work/empty': the file is empty; $form" --corpus "$work/empty"
printf 'text\nELF\000\001\n' > "$work/binary"
check 'binary corpus' \
    spoils "corpus '$work/binary', line 2: a NUL byte, so this is no text; $form" \
    --corpus "$work/binary"
sed '/^$/d' "$corpus" > "$work/single"
check 'corpus of one document' \
    spoils "corpus '$work/single': 1 document, and at least 4 are needed: whole documents are held\
 out, two of them, and two are left to train on; $form" \
    --corpus "$work/single"
grep -v MASK "$vocab" > "$work/maskless"
check 'vocabulary without [MASK]' \
    spoils "$work/maskless: no [MASK]: [PAD], [UNK], [CLS], [SEP] and [MASK] must be there" \
    --vocab "$work/maskless"
check 'missing vocabulary' spoils 'none.txt: No such file or directory' --vocab none.txt

# config SED: the configuration, changed.
change() { sed "$1" "$config" > "$work/changed.json"; }
change 's/"hidden_size": 32/"hidden_size": "32"/'
check 'size as a string' \
    spoils "$work/changed.json:1:36: hidden_size must be an integer from 1 to 1048576, not \"32\"" \
    --model "$work/changed.json"
change 's/"num_attention_heads": 2/"num_attention_heads": 3/'
check 'heads that do not divide' \
    spoils "$work/changed.json:1:87: num_attention_heads must be a divisor of hidden_size (32),\
 not 3" --model "$work/changed.json"
change 's/"vocab_size": 100/"vocab_size": 20/'
check 'vocabulary larger than the model' \
    spoils "$work/changed.json: vocab_size is 20, but $vocab has $(grep -c '' "$vocab") tokens" \
    --model "$work/changed.json"
check 'unknown model' \
    spoils 'model "huge" is none of tiny, mini, small, medium, base, large, and no config.json' \
    --model huge
check 'sequences too long' \
    spoils "sequences of 64 tokens are too long for the model's 32 positions" --seq 64
check 'no CUDA' \
    spoils 'this program was built without CUDA; make CUDA=1 builds those with it, in build/cuda' \
    --device cuda
check 'no HIP' \
    spoils 'this program was built without HIP; make HIP=1 builds those with it, in build/hip' \
    --device hip

check 'no place for the checkpoint' \
    spoils "--save $work/none/check/: No such file or directory" \
    --save "$work/none/check/"

# ------------------------------------------------------------------------------------ a short run

kept() { # a run of 30 steps that leaves everything
    pretrain --steps 30 --save "$work/check point" --log "$work/log.csv" --svg "$work/loss.svg" \
        --report "$work/report.json" --dump "$work/dump" --dump-grads "$work/grads"
    [ $status = 0 ] && [ ! -s "$work/err" ]
}
check 'thirty steps' kept
line='step 30/30  loss [0-9.]*  MLM accuracy [0-9.]*%  [0-9]* tokens/s  [0-9]* MiB  ETA 0:00'
plain() { [ "$(grep -c "^$line\$" "$work/out")" = 1 ] && ! grep -q "$(printf '\r')" "$work/out"; }
check 'plain lines' plain
check 'five sentences with guesses' \
    awk '/^  [^ ].*\[MASK\]/ { n++ } /^    .* [0-9]+\.[0-9]%.*\(was: [a-z]+\)$/ { m++ }
        END { exit n != 5 || m != 5 }' "$work/out"
grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/held out"
check 'CSV' awk -F, '
    NR == 1 { good = $0 == "step,loss,mlm_loss,nsp_loss,lr,grad_norm,tokens_per_s" }
    NR > 1 { good = good && NF == 7 && $1 == NR - 1 && $2 - $3 - $4 < 1e-6 && $4 + $3 - $2 < 1e-6 }
    END { exit !(good && NR == 31) }' "$work/log.csv"
check 'SVG' grep -q '</svg>' "$work/loss.svg"
number() { sed -n "s/^  \"$1\": \([0-9.e+]*\),*\$/\1/p" "$work/report.json"; }
reported() {
    for key in predicted_peak_bytes allocated_peak_bytes tokens_per_s flops_per_step parameters; do
        case $(number $key) in '' | 0 | 0.0) return 1 ;; esac
    done
    [ "$(number predicted_peak_bytes)" = "$(number allocated_peak_bytes)" ]
}
check 'report' reported
check 'its vocabulary' cmp "$vocab" "$work/check point/vocab.txt"

# What is written of a run changes none of its numbers.
sinks() {
    pretrain --steps 5 --threads 1 --dump "$work/plain" && [ $status = 0 ] &&
        pretrain --steps 5 --threads 1 --dump "$work/watched" --report-html "$work/page.html" \
            --tensorboard "$work/events" --trace "$work/trace.json:steps=2-3" && [ $status = 0 ] &&
        cmp "$work/plain" "$work/watched" && ls "$work"/events/events.out.tfevents.* > "$work/out" &&
        [ "$(wc -l < "$work/out")" = 1 ] && grep -q '</html>' "$work/page.html" &&
        grep -q '<tr><td>--steps</td><td>5</td><td class="soft">command line</td>' "$work/page.html" &&
        ! grep -qE '<script|https?:|src=' "$work/page.html" &&
        [ "$(grep -c '"name":"rank 0, measured"' "$work/trace.json")" = 2 ] &&
        grep -q '"name":"adamw"' "$work/trace.json"
}
check 'page, event files and trace' sinks
check 'steps of a trace' fails 1 "bert: --trace t:steps=3-2: the steps must be A-B, 1 or more and at most \
1000 of them, as in FILE:steps=10-12" \
    "$bert" pretrain --corpus "$corpus" --vocab "$vocab" --seq 32 --batch 4 --trace t:steps=3-2

# A run that goes on names what its DeepSpeed configuration sets otherwise; what changes numbers is an
# error.
configure() { # STAGE MORE
    printf '{"train_batch_size": 4, "gradient_clipping": 1, "optimizer": {"type": "Adam"},
"zero_optimization": {"stage": %s}%s}' "$1" "${2:-}" > "$work/ds.json"
}
by_file() {
    pretrain --eval-batches 0 --quiet --deepspeed-config "$work/ds.json" "$@"
}
reconfigured() {
    configure 1 && by_file --steps 2 --save "$work/by file" && [ $status = 0 ] &&
        grep -q '^  "zero.stage": "1",' "$work/by file/deepspeed.json" &&
        configure 2 && by_file --steps 3 --load "$work/by file" --report-html "$work/page.html" &&
        [ $status = 0 ] &&
        grep -q "^$work/by file was trained with zero.stage = 1, not 2\$" "$work/out" &&
        grep -q '<td>--zero</td><td>2</td><td class="soft">ds.json:2</td>' "$work/page.html" &&
        configure 2 ', "scheduler": {"type": "WarmupLR"}' &&
        by_file --steps 3 --load "$work/by file" && [ $status = 1 ] &&
        grep -q 'was trained with schedule = linear, not warmup_lr' "$work/err" &&
        configure 1 ', "steps_per_print": 3' && by_file --steps 3 --load "$work/by file" &&
        [ $status = 0 ] && ! grep -q 'was trained with' "$work/out"
}
check 'another configuration of DeepSpeed' reconfigured

# A model without next sentences has no head for them; it can be resumed and evaluated.
words_alone() {
    pretrain --steps 10 --no-nsp --save "$work/alone" && [ $status = 0 ] &&
        ! grep -q NSP "$work/out" && grep -q '"BertForMaskedLM"' "$work/alone/config.json" &&
        grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/alone score" &&
        ends 0 "$bert" eval --load "$work/alone" --corpus "$corpus" --seq 32 --batch 4 &&
        cmp "$work/out" "$work/alone score"
}
check 'masked words alone' words_alone

# Several documents in an example: two ranks see the same rows; eval packs as training did.
packed() {
    pretrain --steps 6 --no-nsp --pack --micro-batches 2 --save "$work/packed" && [ $status = 0 ] &&
        grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/packed score" &&
        pretrain --steps 6 --no-nsp --pack --ranks 2 --save "$work/packed two" && [ $status = 0 ] &&
        cmp "$work/packed/params.safetensors" "$work/packed two/params.safetensors" &&
        ends 0 "$bert" eval --load "$work/packed" --corpus "$corpus" --seq 32 --batch 4 --pack &&
        cmp "$work/out" "$work/packed score" &&
        ends 0 "$bert" eval --load "$work/packed" --corpus "$corpus" --seq 32 --batch 4 &&
        ! cmp -s "$work/out" "$work/packed score" &&
        pretrain --steps 7 --no-nsp --load "$work/packed" && [ $status = 1 ] &&
        grep -q 'was trained with --pack: give it' "$work/err"
}
check 'documents packed into examples' packed
check 'next sentences packed into examples' spoils \
    '--pack is for examples of masked words alone: with --no-nsp' --steps 6 --pack

# rates OPTIONS...: the learning rates of four steps, one of them warm-up.
rates() {
    pretrain --steps 4 --warmup 1 --lr 1 --clip 0.001 --eval-batches 0 --log "$work/rates.csv" "$@" &&
        [ $status = 0 ] && awk -F, 'NR > 1 { line = line " " $5 } END { print line }' \
            "$work/rates.csv" > "$work/rates"
}
counts() {
    rates && [ "$(cat "$work/rates")" = ' 1 0.666666687 0.333333343 0' ] &&
        rates --first-rate 0 && [ "$(cat "$work/rates")" = ' 0 1 0.666666687 0.333333343' ]
}
check 'steps counted from one, or as transformers counts' counts
# updates OPTIONS...: these change the weights after three steps.
updates() {
    pretrain --steps 3 --eval-batches 0 --dump "$work/default" --optimizer "$1" && [ $status = 0 ] ||
        return 1
    optimizer=$1
    shift
    pretrain --steps 3 --eval-batches 0 --dump "$work/changed" --optimizer "$optimizer" "$@" &&
        [ $status = 0 ] && ! cmp -s "$work/default" "$work/changed"
}
check 'beta1 of AdamW' updates adamw --beta1 0.5
check 'beta2 of AdamW' updates adamw --beta2 0.5
check 'eps of AdamW' updates adamw --eps 1e-3
check 'beta1 of LAMB' updates lamb --beta1 0.5
check 'ratio of LAMB, at least' updates lamb --min-ratio 5
check 'ratio of LAMB, at most' updates lamb --max-ratio 0.02
check 'momentum of SGD' updates sgd --momentum 0

# On a terminal the line is rewritten.
on_terminal() {
    script -qec "'$bert' pretrain --model '$config' --corpus '$corpus' --vocab '$vocab' --seq 32 \
        --batch 4 --steps 5" /dev/null > "$work/out" 2> "$work/err" < /dev/null &&
        awk '/\r\033\[K\[#+\] step 5\/5  loss/ { n++ } END { exit n != 1 }' "$work/out"
}
check 'one line on a terminal' on_terminal
quiet() { pretrain --steps 5 --quiet && [ $status = 0 ] && ! grep -q '^step' "$work/out"; }
check 'no line when quiet' quiet

# --seconds: no step is so short that 200 fit into a nanosecond, or so long that 30 fill a month.
fewest() {
    pretrain --steps 210 --seconds 1e-9 --save "$work/paced" --dump "$work/paced dump" &&
        grep -q 's on this machine (.*): 200 steps, about .* s (the least with --seconds)$' \
            "$work/out" && grep -q '^step 200/200' "$work/out"
}
check 'at least 200 steps' fewest
same_as_given() {
    pretrain --steps 200 --dump "$work/given dump" && cmp "$work/paced dump" "$work/given dump"
}
check 'the same bits as of 200 steps' same_as_given
goes_on_to_its_steps() {
    pretrain --steps 500 --seconds 1e6 --load "$work/paced"
    ! grep -q '/500' "$work/out"
}
check 'goes on to the steps that it chose' goes_on_to_its_steps
most() {
    pretrain --steps 30 --seconds 1e6 && grep -q ': 30 steps, about .* (all --steps)$' "$work/out"
}
check 'at most all steps' most
check 'seconds of several ranks' \
    spoils '--seconds measures the step of one rank; for 2, say --steps' --seconds 9 --ranks 2

# The loss of a new model with a unigram bias is the unigram entropy.
knows_shares() {
    pretrain --steps 0 --eval-batches 16 --first-bias unigrams --first-positions sinusoids &&
        sed -n 's/.*unigram entropy \([0-9.]*\).*/\1/p; s/^held out: MLM loss \([0-9.]*\),.*/\1/p' \
            "$work/out" | awk '{ x[NR] = $1 }
            END { off = x[1] - x[2]; exit !(NR == 2 && off < 0.1 && off > -0.1) }'
}
check 'first bias' knows_shares

# ---------------------------------------------------------------------------------- its checkpoint

evaluated() {
    run "$bert" eval --load "$work/check point" --corpus "$corpus" --seq 32 --batch 4 --batches 16 \
        --threads 2
    [ $status = 0 ] && cmp "$work/out" "$work/held out"
}
check 'evaluation is what the run said' evaluated
filled() {
    run "$bert" fill --load "$work/check point" "The [MASK] sees the [MASK] ."
    [ $status = 0 ] && awk 'NR == 1 { good = $0 == "  The [MASK] sees the [MASK] ." }
        NR > 1 { good = good && /^    -> / && gsub(/ [^ ]+ [0-9]+\.[0-9]%/, "") == 5 }
        END { exit !(good && NR == 3) }' "$work/out"
}
check 'fills two words' filled
filled_json() {
    ends 0 "$bert" fill --json --load "$work/check point" "The [MASK] sees the [MASK] ." &&
        awk '/"text": "The \[MASK\] sees the \[MASK\] \."/ { text++ }
            /"probability": 0\.[0-9]*/ { n++ } END { exit !(text == 1 && n == 10) }' "$work/out"
}
check 'fills two words as JSON' filled_json
unfilled() { fails 1 "bert: $1" "$bert" fill --load "$work/check point" "$2"; }
check 'no [MASK]' unfilled 'the text has no [MASK] to fill in' 'The cat sees the king .'
check 'text too long' unfilled 'the text has more than 30 tokens' \
    "$(printf 'the cat sees the king . %.0s' 1 2 3 4 5 6) [MASK]"
exported() {
    run "$bert" export --load "$work/check point" "$work/exported.safetensors"
    [ $status = 0 ] && cmp "$work/exported.safetensors" "$work/dump"
}
check 'exports what was dumped' exported
begun() {
    pretrain --steps 0 --init "$work/exported.safetensors" --report "$work/report.json"
    [ $status = 0 ] && number held_out_mlm_loss | cat - "$work/held out" |
        awk 'NR == 1 { loss = $1 } NR == 2 { off = loss - $3 }
            END { exit !(NR == 2 && off < 1e-4 && off > -1e-4) }'
}
check 'starts from it, and evaluates alone' begun

scores() { # FOLDER OPTIONS...: the line of eval
    "$bert" eval --load "$@" --corpus "$corpus" --seq 32 --batch 4
}
averages() { # those of a run are other weights, which eval and export take
    pretrain --steps 30 --ema 0.9 --save "$work/averaged" &&
        weights=$(scores "$work/averaged") && of_them=$(scores "$work/averaged" --average) &&
        [ "$weights" != "$of_them" ] &&
        "$bert" export --load "$work/averaged" --average "$work/average" &&
        [ "$(scores "$work/average")" = "$of_them" ] &&
        "$bert" export --load "$work/averaged" "$work/averaged.safetensors" &&
        ! cmp -s "$work/averaged.safetensors" "$work/average/model.safetensors"
}
check 'averages of weights are evaluated and exported' averages
check 'averages that a run has not kept' fails 1 "bert: $work/check point has no averages: it was \
trained without --ema" "$bert" eval --load "$work/check point" --average --corpus "$corpus"
check 'averages of a folder of Hugging Face' fails 1 "bert: $work/average has no averages: only a \
checkpoint of a run with --ema has" "$bert" eval --load "$work/average" --average --corpus "$corpus"

# Runs and commands on a folder of Hugging Face print what those on the checkpoint printed.
same_score() { cmp "$work/out" "$work/held out"; }
folder() {
    run "$bert" export --load "$work/check point" "$work/folder" && [ $status = 0 ] &&
        cmp "$work/folder/vocab.txt" "$vocab" &&
        cmp "$work/folder/model.safetensors" "$work/dump" || return 1
    for file in config.json tokenizer.json tokenizer_config.json special_tokens_map.json; do
        [ -s "$work/folder/$file" ] || return 1
    done
    ends 0 "$bert" eval --load "$work/folder" --corpus "$corpus" --seq 32 --batch 4 && same_score &&
        ends 0 "$bert" fill --load "$work/folder" "The [MASK] sees the king ." &&
        cp "$work/out" "$work/filled" &&
        ends 0 "$bert" fill --load "$work/check point" "The [MASK] sees the king ." &&
        cmp "$work/out" "$work/filled"
}
check 'a folder for transformers, and of it' folder
# Without --model and --vocab, those of the folder are used; with 0 steps it becomes a checkpoint.
taken() {
    for from in "$work/folder" "$work/check point"; do
        rm -rf "$work/taken"
        ends 0 "$bert" pretrain --corpus "$corpus" --seq 32 --batch 4 --steps 0 --precision f32 --init "$from" \
            --eval-batches 0 --save "$work/taken" &&
            ends 0 "$bert" eval --load "$work/taken" --corpus "$corpus" --seq 32 --batch 4 &&
            same_score || return 1
    done
}
check 'a checkpoint of weights without a step' taken
# adapt STEPS DIR OPTIONS...: trains an adapter of the folder.
adapt() {
    steps=$1
    to=$2
    shift 2
    ends 0 "$bert" pretrain --init "$work/folder" --corpus "$corpus" --seq 32 --batch 4 --lr 0.05 --precision f32 \
        --schedule constant --warmup 0 --lora r=2,alpha=4,targets=query,value --steps "$steps" \
        --save "$to" "$@"
}
adapted() { # resumed with the same bits; with the base, it has the loss that the run printed
    adapt 6 "$work/adapter" --micro-batches 2 && grep -q '^LoRA: .*, of rank 2$' "$work/out" &&
        [ ! -e "$work/adapter/model.safetensors" ] &&
        grep -q '"task_type": null' "$work/adapter/adapter_config.json" &&
        sed -n 's/^held out: //p' "$work/out" > "$work/adapted" &&
        adapt 3 "$work/halves" --micro-batches 2 --eval-batches 0 &&
        adapt 6 "$work/halves" --load "$work/halves" --eval-batches 0 --zero 3 --ranks 2 &&
        cmp "$work/adapter/adapter_model.safetensors" "$work/halves/adapter_model.safetensors" &&
        ends 0 "$bert" eval --load "$work/folder" --adapter "$work/adapter" --corpus "$corpus" \
            --seq 32 --batch 4 && cmp "$work/out" "$work/adapted" && ! cmp -s "$work/out" \
            "$work/held out"
}
check 'an adapter' adapted
check 'an adapter of products that are not there' fails 1 'bert: zf_lora: the target "q_proj" is no '\
'module of the graph, nor the end of one after a dot; products are in word_embeddings, query, key, '\
'value, dense, seq_relationship' "$bert" pretrain --init "$work/folder" --corpus "$corpus" --seq 32 \
    --lora r=2,targets=q_proj --steps 1

# narrow PRECISION: trains in it, prints it, ends near the run in f32, can be resumed and evaluated.
narrow() {
    pretrain --steps 30 --precision "$1" --save "$work/$1" --log "$work/$1.csv" \
        --report "$work/report.json" &&
        [ $status = 0 ] && grep -q "\"precision\": \"$1\"" "$work/report.json" || return 1
    awk -F, 'FNR == 31 { loss[++n] = $2 } END { off = loss[1] - loss[2]
        exit !(n == 2 && off < 0.05 && off > -0.05) }' "$work/log.csv" "$work/$1.csv" || return 1
    pretrain --steps 30 --precision "$1" --load "$work/$1" && [ $status = 0 ] || return 1
    grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/narrow"
    run "$bert" eval --load "$work/$1" --corpus "$corpus" --seq 32 --batch 4 --batches 16
    [ $status = 0 ] && cmp "$work/out" "$work/narrow" || return 1
    # It exports its master weights; rounded, they are the weights that it computed with.
    pretrain --steps 30 --precision "$1" --load "$work/$1" --dump "$work/masters" &&
        ends 0 "$bert" export --load "$work/$1" "$work/f32.safetensors" &&
        cmp "$work/f32.safetensors" "$work/masters" &&
        ends 0 "$bert" export --load "$work/$1" --dtype "$1" "$work/rounded" &&
        [ "$(wc -c < "$work/rounded/model.safetensors")" -lt "$(wc -c < "$work/masters")" ] &&
        cp "$work/$1/vocab.txt" "$work/rounded" &&
        ends 0 "$bert" eval --load "$work/rounded" --dtype "$1" --corpus "$corpus" --seq 32 \
            --batch 4 && cmp "$work/out" "$work/narrow" &&
        ends 0 "$bert" eval --load "$work/$1" --dtype f32 --corpus "$corpus" --seq 32 --batch 4 &&
        { [ "$1" = f16 ] || ! cmp -s "$work/out" "$work/narrow"; } # of f16 the digits are the same
}
check 'bf16' narrow bf16
check 'f16' narrow f16

# refuses TEXT OPTIONS...: the checkpoint cannot be resumed with these.
refuses() {
    text=$1
    shift
    spoils "$text" --steps 40 --load "$work/check point" "$@"
}
# differs NAME HAD HAS OPTIONS...: the error names a setting that differs from the checkpoint's.
differs() {
    had="$work/check point was trained with $1 = $2, not $3: give the same --$1, or start anew from\
 its weights with --init $work/check point"
    shift 3
    refuses "$had" "$@"
}
check 'another precision' differs precision f32 bf16 --precision bf16
check 'another learning rate' differs lr 0.001 0.01 --lr 0.01
check 'another batch' differs batch 4 8 --batch 8
check 'another sequence' differs seq 32 16 --seq 16
check 'another optimizer' differs optimizer adamw lamb --optimizer lamb
check 'another schedule' differs schedule linear cosine --schedule cosine
check 'another seed' differs seed 1 2 --seed 2
check 'another dropout' differs dropout 0.1 0 --dropout 0
check 'another beta1' differs beta1 0.9 0.8 --beta1 0.8
check 'another first rate' differs first-rate 1 0 --first-rate 0
check 'other capitals' refuses "$work/check point was trained without --cased: leave it out, or start \
anew from its weights with --init $work/check point" --cased
{ cat "$corpus"; echo 'The gold .'; } > "$work/longer"
change 's/"num_attention_heads": 2/"num_attention_heads": 4/'
# Another vocabulary with as many tokens.
awk 'NR == 6 { held = $0; next } { print } NR == 7 { print held }' "$vocab" > "$work/swapped"
check 'another vocabulary' refuses "$work/check point was trained with another vocabulary than\
 $work/swapped: without --vocab the checkpoint's is taken; or start anew from its weights with\
 --init $work/check point" --vocab "$work/swapped"
awk 'NR == 1 { held = $0; next } { print } NR == 2 { print held }' "$corpus" > "$work/reordered"
# other_text FILE: the checkpoint cannot be resumed with this corpus.
other_text() {
    refuses "$work/check point was trained on another text than $1, or with its sentences in\
 another order: give the same one, or start anew from its weights with --init\
 $work/check point" --corpus "$1"
}
check 'another corpus' other_text "$work/longer"
check 'another order of sentences' other_text "$work/reordered"
check 'another model' \
    refuses "$work/check point was trained with another model than --model $work/changed.json:\
 give the same" --model "$work/changed.json"
# Without --vocab, it is the checkpoint's, with its options.
own_vocabulary() {
    run "$bert" pretrain --model "$config" --corpus "$corpus" --seq 32 --batch 4 --steps 30 \
        --load "$work/$1" --dump "$work/own.params"
    [ $status = 0 ] && cmp "$work/own.params" "$work/$2"
}
check 'its own vocabulary' own_vocabulary 'check point' dump
# The options of the tokenizer: these words have accents and capitals of some sentences' first.
sed 's/Dog/Dòg/g; s/bread/bréad/g' "$corpus" > "$work/accented"
check 'a vocabulary with accents' ends 0 "$bert" vocab --corpus "$work/accented" \
    --vocab "$work/accents.txt" --size 100 --strip-accents no
keeps_accents() {
    pretrain --corpus "$work/accented" --vocab "$work/accents.txt" --strip-accents no --steps 30 \
        --save "$work/accents" --dump "$work/accents.params"
    [ $status = 0 ] && grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/held" &&
        run "$bert" eval --load "$work/accents" --corpus "$work/accented" --seq 32 --batch 4 \
            --batches 16 && cmp "$work/out" "$work/held" &&
        run "$bert" tokenize --tokens --vocab "$work/accents" 'The Dòg finds BRÉAD .' &&
        [ "$(cat "$work/out")" = '[CLS] the dòg finds bréad . [SEP]' ]
}
check 'keeps accents' keeps_accents
goes_on_with_accents() {
    corpus="$work/accented" own_vocabulary accents accents.params
}
check 'goes on with accents' goes_on_with_accents
check 'other accents' spoils "$work/accents was trained with strip-accents = no, not yes: give the\
 same --strip-accents, or start anew from its weights with --init $work/accents" \
    --corpus "$work/accented" --vocab "$work/accents.txt" --steps 30 --load "$work/accents"
check 'accents of the checkpoint and of the command line' \
    spoils "$work/accents: strip_accents is false there, but true was asked for" \
    --corpus "$work/accented" --vocab "$work/accents" --strip-accents yes

longer() {
    pretrain --steps 40 --load "$work/check point"
    [ $status = 0 ] && grep -q '^step 40/40' "$work/out"
}
check 'more steps' longer

# damages FILE: truncates it; the error of loading names it.
damages() {
    rm -rf "$work/damaged"
    cp -r "$work/check point" "$work/damaged"
    head -c 5000 "$work/check point/$1" > "$work/damaged/$1"
    pretrain --steps 40 --load "$work/damaged"
    [ $status = 1 ] && [ "$(grep -c '' "$work/err")" = 1 ] &&
        grep -q "^bert: .*damaged/$1" "$work/err"
}
for file in params.safetensors state.safetensors manifest.json; do
    check "checkpoint with $file cut off" damages $file
done
check 'no checkpoint' \
    spoils "cannot open $work/none: No such file or directory" --load "$work/none"

# ------------------------------------------------------------------------------ resumed, bit by bit

# A constant schedule does not depend on the number of steps: so a run interrupted after any number
# can be compared with one of a few more.
endless='--schedule constant --warmup 5 --steps 100000'

# begins FILE OPTIONS...: trains in the background, until FILE has more than six lines.
begins() {
    file=$1
    shift
    # shellcheck disable=SC2086
    "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" --seq 32 --batch 4 --precision f32 \
        $endless "$@" > "$work/out" 2> "$work/err" < /dev/null &
    while kill -0 $! && ! [ "$(grep -c '' "$file")" -gt 6 ]; do sleep 0.1; done 2> /dev/null
}
interrupted() {
    begins "$work/part.csv" --save "$work/part" --log "$work/part.csv"
    kill -INT $!
    wait $!
    [ $? = 130 ] && [ ! -s "$work/err" ]
}
check 'interrupted' interrupted
said="interrupted after step \([0-9]*\); the checkpoint is in .*/a b/part\. To continue:"
steps=$(sed -n "s|^$said\$|\1|p" "$work/out")
command=$(tail -n 1 "$work/out")
check 'says where it is' test "${steps:-0}" -ge 6
check 'says how to go on' \
    test "$command" = "  $bert pretrain --model '$config' --corpus '$corpus' --vocab '$vocab'\
 --seq 32 --batch 4 --precision f32 $endless --save '$work/part' --log '$work/part.csv' --load '$work/part'"
check 'keeps a row for every step' test "$(grep -c '' "$work/part.csv")" = $((${steps:-0} + 1))

# The printed command, with fewer steps.
total=$((${steps:-0} + 10))
# whole STEPS: the same without interruption.
whole() {
    pretrain --schedule constant --warmup 5 --steps "$1" --threads 2 --log "$work/whole.csv" \
        --dump "$work/whole"
    [ $status = 0 ]
}
continued() {
    run eval "$command --steps $total --dump \"\$work/continued\""
    [ $status = 0 ] && whole $total && cmp "$work/continued" "$work/whole"
}
check 'the same parameters' continued
same_log() {
    for log in part whole; do cut -d, -f1-6 "$work/$log.csv" > "$work/$log.cut"; done
    cmp "$work/part.cut" "$work/whole.cut" && [ "$(grep -c '' "$work/part.cut")" = $((total + 1)) ]
}
check 'the same log' same_log

# After SIGKILL it can be resumed from the last checkpoint that it has written.
killed() {
    begins "$work/way/manifest.json" --save "$work/way" --save-every 7
    kill -KILL $!
    wait $! 2> /dev/null
    steps=$(sed -n 's/^  "step": \([0-9]*\),$/\1/p' "$work/way/manifest.json")
    [ "${steps:-0}" -gt 0 ] && [ $((steps % 7)) = 0 ]
}
check 'saves on the way' killed
# shellcheck disable=SC2086
recovered() {
    pretrain $endless --steps $((steps + 5)) --load "$work/way" --dump "$work/recovered"
    [ $status = 0 ] && whole $((steps + 5)) && cmp "$work/recovered" "$work/whole"
}
check 'goes on from there' recovered

# Phases and curricula: a run that goes on from inside of a phase has the bits of the whole run.
phased() {
    rm -rf "$work"/phased* "$work"/whole*.csv "$work"/part*.csv
    pretrain --save "$work/phased" --save-every 7 --log "$work/whole.csv" --dump "$work/whole" \
        --eval-batches 1 "$@"
    [ $status = 0 ] || return 1
    pretrain --load "$work/phased.previous-1" --threads 2 --log "$work/part.csv" \
        --dump "$work/part of it" --eval-batches 1 "$@"
    [ $status = 0 ] && cmp "$work/part of it" "$work/whole" || return 1
    for log in part whole; do cut -d, -f1-6 "$work/$log.csv" > "$work/$log.cut"; done
    tail -n 7 "$work/whole.cut" > "$work/whole.end"
    tail -n 7 "$work/part.cut" | cmp - "$work/whole.end" && [ "$(grep -c '' "$work/part.cut")" = 8 ]
}
check 'a curriculum' phased --curriculum min=16,steps=12 --steps 14
check 'phases' phased --phase seq=16,batch=8,steps=9,lr=2e-3 --phase steps=5,warmup=2
check 'says its phases' grep -q '^steps 10 to 14: 4 x 32 tokens, learning rate up to 0.001 after 2 steps$' \
    "$work/out"
check 'other phases' spoils "$work/phased was trained with other phases (steps x batch x tokens): \
9x8x16@0.002:0:0 5x4x32@0.001:0:2, not 14x4x32@0.001:0:1; give the same --phase or --curriculum, \
or start anew from its weights with --init" --load "$work/phased" --phase steps=14
exports_unlike() {
    run "$bert" export --load "$work/phased" "$work/pre-norm" && [ $status = 0 ] && \
        grep -q 'pre-norm: zeroflow_pre_layer_norm in config.json: its layers begin with' "$work/out"
}
spoils_layers() { # of a checkpoint without them
    pretrain --steps 3 --save "$work/post" && pretrain --steps 6 --load "$work/post" --pre-norm
    [ $status = 1 ] && grep -q 'pre-norm' "$work/err" && cat "$work/err"
}
check 'a recipe' phased --recipe bert44 --steps 42 --batch 8
check 'says its phases by the rule' grep -q \
    '^steps 1 to 38: 8 x 8 tokens, learning rate up to 0.000121534 after 1 steps$' "$work/out"
check 'half of the batch and all tokens' grep -q \
    '^steps 39 to 42: 4 x 32 tokens, learning rate up to 2.20971e-05 after 1 steps$' "$work/out"
check 'the model is noted' grep -q '"zeroflow_pre_layer_norm": true' "$work/phased/config.json"
check 'and said to who exports it' exports_unlike
check 'a recipe without a batch' fails 2 "bert: pretrain: --recipe bert44 needs --batch B, the examples \
of a step of phase 1: 65536 in the recipe; its rates follow from B; 'bert pretrain --help' lists the \
options" "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" --recipe bert44
check 'a recipe with phases' \
    misused '--recipe has phases of its own: without --phase and --curriculum' pretrain \
    --corpus "$corpus" --vocab "$vocab" --recipe bert44 --batch 8 --phase steps=4
check 'a recipe of few steps' \
    misused '--recipe bert44 needs at least 2 examples a step and 20 steps, for two phases' pretrain \
    --corpus "$corpus" --vocab "$vocab" --recipe bert44 --batch 8 --steps 19
check 'layers of another model' misused \
    '--pre-norm is for a new model: that of --init has its layers already' pretrain \
    --corpus "$corpus" --vocab "$vocab" --init "$work/phased" --pre-norm
check 'layers that changed' spoils_layers
check 'every of a schedule that has none' \
    spoils '--phase number 1: every requires --schedule exponential' --phase steps=4,every=2
check 'a phase that is too long' \
    spoils "sequences of 64 tokens are too long for the model's 32 positions" --phase seq=64,steps=1 \
    --phase steps=1

# A checkpoint has the vocabulary as it was read, even if its file has changed since.
edited() {
    cp "$vocab" "$work/edited"
    begins "$work/$1.csv" --vocab "$work/edited" --save "$work/$1" --log "$work/$1.csv"
    "$@" "$work/edited"
    kill -INT $!
    wait $!
    [ $? = 130 ] && [ ! -s "$work/err" ] && cmp "$vocab" "$work/$1/vocab.txt"
}
check 'a vocabulary that was removed meanwhile' edited rm
check 'a vocabulary that was emptied meanwhile' edited truncate -s 0

complete() {
    pretrain --steps 30 --load "$work/check point" --dump "$work/again"
    [ $status = 0 ] && cmp "$work/dump" "$work/again" && grep -q '^held out' "$work/out"
}
check 'a run that is complete stays as it is' complete
check 'but has no gradients' spoils "--dump-grads $work/none: the checkpoint had all 30 steps, so\
 there was none to take gradients of" \
    --steps 30 --load "$work/check point" --dump-grads "$work/none"

# ------------------------------------------------------------------------------- what all runs do

self=bert
reading="$corpus"
train() {
    $before "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" --seq 32 \
        --batch 4 --precision f32 "$@"
}
. tests/cli/runs.sh
check '--svg in no folder' fails_as "--svg $work/none/file: No such file or directory" \
    --svg "$work/none/file"
check '--save-cost in no folder' \
    fails_as "--save-cost $work/none/file: No such file or directory" \
    --prefetch 1 --cost measure --save-cost "$work/none/file"

# ------------------------------------------------------------------------------------------ ranks

# ranked RUN OPTIONS...: a short run with everything that ranks could change; its parameters,
# gradients and losses are written to files named after RUN.
ranked() {
    leaves=$1
    shift
    pretrain --batch 8 --steps 8 --dropout 0.2 --clip 0.5 --bucket 20000 --eval-batches 4 \
        --dump "$work/$leaves.params" --dump-grads "$work/$leaves.grads" --log "$work/$leaves.csv" \
        --report "$work/report.json" "$@"
    [ $status = 0 ] && [ ! -s "$work/err" ] && {
        cut -d, -f1-6 "$work/$leaves.csv"
        grep '^held out: ' "$work/out"
    } > "$work/$leaves.losses"
}
# like RUN OPTIONS...: another run writes the same files.
like() {
    model=$1
    shift
    ranked other "$@" || return
    for what in params grads losses; do
        cmp "$work/$model.$what" "$work/other.$what" || return
    done
}
for optimizer in adamw lamb; do
    check "four ranks, $optimizer" ranked $optimizer --optimizer $optimizer --ranks 4
    for zero in 0 1 2 3; do
        for split in '4 1' '2 2' '1 4'; do
            ranks=${split% *}
            micro=${split#* }
            check "stage $zero, $ranks ranks x $micro micro-batches, $optimizer: the same bits" \
                like $optimizer --optimizer $optimizer --zero $zero --ranks "$ranks" \
                --micro-batches "$micro"
        done
    done
done
traffic() { # predicted|counted: the bytes by kind that the report has
    sed -n "/\"$1_traffic_bytes\"/,/}/p" "$work/report.json" | sed 1d
}
counts_traffic() { # what a step moves is what was predicted, in the report too
    like adamw --zero 3 --ranks 4 --offload optimizer=host && traffic counted | grep -q upload &&
        traffic counted | grep -q all_gather &&
        [ "$(traffic counted)" = "$(traffic predicted)" ]
}
check 'bytes moved, predicted and counted' counts_traffic
check 'another optimizer has others' eval '! cmp -s "$work/adamw.params" "$work/lamb.params"'
for bytes in 0 20000 1000000000; do
    check "gathered $bytes bytes ahead: the same bits" like adamw --zero 3 --ranks 4 \
        --prefetch $bytes
done
measures_cost() {
    like adamw --zero 3 --ranks 4 --prefetch 1000000 --cost measure --save-cost "$work/cost" &&
        [ "$(grep -Ec '^  "(flops|bytes|link_bytes)_per_s": |^  "link_latency_s": ' \
            "$work/cost")" = 4 ]
}
check 'gathered by measured costs: the same bits' measures_cost
check 'gathered by costs from a file: the same bits' like adamw --zero 3 --ranks 4 \
    --prefetch 1000000 --cost "$work/cost"
check 'buckets of another size: the same bits' like adamw --zero 3 --ranks 4 --bucket 0
check 'layers recomputed: the same bits' like adamw --ranks 4 --recompute layers
check 'layers recomputed at stage 3: the same bits' like adamw --zero 3 --ranks 4 \
    --prefetch 20000 --recompute layers
check 'a peak that needs no recomputation: the same bits' like adamw --ranks 4 --recompute 1G
# offloads KINDS RUN OPTIONS...: that lies in host memory, as the report says.
offloads() {
    kinds=$1
    shift
    like "$@" --offload "$kinds" && [ "$(number host_bytes)" -gt 0 ]
}
offloads_to_disk() {
    mkdir -p "$work/offload" && offloads "$@" --offload-dir "$work/offload" &&
        [ "$(number disk_bytes)" -gt 0 ] && [ -z "$(ls "$work/offload")" ]
}
check 'optimizer in host memory: the same bits' offloads optimizer=host adamw --zero 2 --ranks 4
check 'all in host memory, one rank: the same bits' offloads \
    optimizer=host,parameters=host,gradients=host,activations=host adamw --micro-batches 4 --prefetch 100000
check 'all on a disk, one rank: the same bits' offloads_to_disk \
    optimizer=disk,parameters=disk,gradients=disk,activations=disk adamw --micro-batches 4 --prefetch 100000
check 'LAMB on a disk: the same bits' offloads_to_disk optimizer=disk,parameters=disk \
    lamb --optimizer lamb --zero 3 --ranks 2 --micro-batches 2
check 'optimizer on disks of four ranks, read ahead: the same bits' offloads_to_disk \
    optimizer=disk adamw --zero 2 --ranks 4 --prefetch 100000
printf 'ulimit -f 32\nexec "$@"\n' > "$top/limited" # files of at most 16 or 32 KiB
full_disk() {
    mkdir -p "$work/offload"
    launch="sh $top/limited"
    pretrain --steps 2 --ranks 2 --offload optimizer=disk --offload-dir "$work/offload"
    launch=
    [ $status = 1 ] && [ "$(grep -c ^bert: "$work/err")" = 1 ] && [ -z "$(ls "$work/offload")" ] &&
        grep -Eq '^bert: rank 0: .* needs [0-9]+ bytes of disk space: File too large$' "$work/err"
}
check 'no room for offload: an error of all ranks, and no files' full_disk
check 'updates delayed from the third step on' ranked delayed --ranks 2 --delay-update 3 \
    --save "$work/late" --save-every 3 --keep 3
check 'which learns otherwise' eval '! cmp -s "$work/adamw.params" "$work/delayed.params"'
check 'delayed, with states on a disk in pieces: the same bits' offloads_to_disk \
    optimizer=disk,piece=16K delayed --micro-batches 2 --prefetch 100000 --delay-update 3
goes_on_delayed() { # after the third step and the sixth
    for saved in "$work/late.previous-2" "$work/late.previous-1"; do
        ranked other --zero 1 --ranks 2 --delay-update 3 --offload optimizer=host \
            --load "$saved" && cmp "$work/delayed.params" "$work/other.params" || return
    done
}
check 'resumed before and after that, elsewhere: the same bits' goes_on_delayed
# signs RUN OPTIONS...: 1-bit LAMB, with four steps of each variant.
signs() {
    leaves=$1
    shift
    pretrain --batch 8 --steps 8 --dropout 0.2 --clip 0.5 --bucket 20000 --eval-batches 1 \
        --optimizer onebit_lamb --freeze-step 4 --dump "$work/$leaves.params" "$@"
    [ $status = 0 ] && [ ! -s "$work/err" ]
}
same_signs() { signs other "$@" && cmp "$work/signs.params" "$work/other.params"; }
check '1-bit LAMB, four ranks' signs signs --ranks 4 --save "$work/signs" --save-every 3 --keep 3
check '1-bit LAMB, stage 2, ahead: the same bits' same_signs --ranks 4 --zero 2 --prefetch 100000
goes_on_with_signs() { # after the third step and the sixth
    same_signs --ranks 4 --zero 1 --load "$work/signs.previous-2" &&
        same_signs --ranks 4 --load "$work/signs.previous-1"
}
check '1-bit LAMB resumed in each variant: the same bits' goes_on_with_signs
# rounds RUN N OPTIONS...: 0/1 Adam, with intervals of up to N steps.
rounds() {
    leaves=$1
    shift
    pretrain --batch 8 --steps 9 --dropout 0.2 --clip 0.5 --bucket 20000 --eval-batches 1 \
        --optimizer zero_one_adam --freeze-step 3 --local-step-scaler 2 --dump "$work/$leaves.params" \
        --local-step-clipper "$@"
    [ $status = 0 ] && [ ! -s "$work/err" ]
}
same_rounds() { rounds other 4 "$@" && cmp "$work/rounds.params" "$work/other.params"; }
check '0/1 Adam, four ranks' rounds rounds 4 --ranks 4
check '0/1 Adam without local steps' rounds together 1 --ranks 4 --save "$work/together" \
    --save-every 3 --keep 3
check 'which has other bits' eval '! cmp -s "$work/rounds.params" "$work/together.params"'
same_together() { rounds other 1 "$@" && cmp "$work/together.params" "$work/other.params"; }
check '0/1 Adam, stage 2, ahead: the same bits' same_together --ranks 4 --zero 2 --prefetch 100000
check '0/1 Adam resumed at stage 1: the same bits' same_together --ranks 4 --zero 1 \
    --load "$work/together.previous-2"
check 'killed at any moment with its states on a disk, and resumed: the same bits' \
    sh tests/long/kill.sh "$bert" 3
check 'weights in pieces' ranked tiled --ranks 4 --tile 5K
check 'which have other bits' eval '! cmp -s "$work/adamw.params" "$work/tiled.params"'
check 'pieces gathered at stage 3: the same bits' like tiled --zero 3 --ranks 2 --micro-batches 2 \
    --tile 5K --prefetch 100000
check 'pieces on a disk: the same bits' offloads_to_disk optimizer=disk,parameters=disk tiled \
    --micro-batches 4 --tile 5K
# A byte less than the step takes: something is recomputed.
fits_memory() {
    like "$@" && limit=$(($(number predicted_peak_bytes) - 1)) && like "$@" --memory $limit &&
        [ "$(number allocated_peak_bytes)" -le $limit ]
}
check 'fitted into less memory: the same bits' fits_memory adamw --micro-batches 4
# One rank and one micro-batch: a step that is not fitted fits into what it takes; into a byte less
# when something is recomputed.
fits_alone() {
    for leaves in alone fitted less; do
        case $leaves in
        alone) set -- ;;
        fitted) limit=$(number predicted_peak_bytes) && set -- --memory "$limit" ;;
        less) limit=$((limit - 1)) && set -- --memory $limit ;;
        esac
        pretrain --batch 8 --steps 2 --dropout 0.2 --eval-batches 1 --dump "$work/$leaves.params" \
            --report "$work/report.json" "$@"
        [ $status = 0 ] && cmp "$work/alone.params" "$work/$leaves.params" || return
        [ $leaves = alone ] || [ "$(number allocated_peak_bytes)" -le "$limit" ] || return
        [ $leaves != fitted ] || grep -q '^within .*: all on the device, nothing recomputed; ' \
            "$work/out" || return
    done
}
check 'one micro-batch fitted: the same bits' fits_alone
# The limit is of the kind of step that takes more.
fits_both() {
    like delayed --micro-batches 2 --delay-update 3 && limit=$(number predicted_peak_bytes) &&
        like delayed --micro-batches 2 --delay-update 3 --memory "$limit" &&
        [ "$(number allocated_peak_bytes)" = "$limit" ] || return
    pretrain --batch 8 --steps 8 --dropout 0.2 --clip 0.5 --bucket 20000 --micro-batches 2 \
        --delay-update 3 --memory $((limit - 1))
    [ $status = 1 ] && grep -q "takes $limit bytes of memory, 1 more than" "$work/err"
}
check 'both kinds of steps of delayed updates fitted: the same bits' fits_both
precision=bf16 # whose sums of nodes are rounded
check 'two nodes of two ranks' ranked nodes --ranks 4 --nodes 2
check 'which have other bits' eval '! cmp -s "$work/adamw.params" "$work/nodes.params"'
check 'parameters kept inside nodes: the same bits' like nodes --zero 3 --ranks 4 \
    --ranks-per-node 2 --zero-hpz --prefetch 100000
quantized='--zero 3 --zero-quantized-weights --zero-quantized-gradients'
# shellcheck disable=SC2086 # a list of options
check 'quantised' ranked quantized --ranks 4 --nodes 2 $quantized
check 'which have other bits' eval '! cmp -s "$work/nodes.params" "$work/quantized.params"'
# shellcheck disable=SC2086
check 'quantised, kept inside nodes, ahead: the same bits' like quantized --ranks 4 \
    --ranks-per-node 2 --zero-hpz --prefetch 100000 $quantized
loco='--zero-quantized-gradients --zero-loco --loco-reset 4'
# shellcheck disable=SC2086
check 'quantised, with error feedback' ranked loco --zero 3 --ranks 4 --nodes 2 $loco
check 'which have other bits' eval '! cmp -s "$work/nodes.params" "$work/loco.params"'
# shellcheck disable=SC2086
check 'stage 1, ahead, states on the host: the same bits' like loco --zero 1 --ranks 4 --nodes 2 \
    --prefetch 100000 --offload optimizer=host $loco
# shellcheck disable=SC2086
check 'errors in 8 bits' ranked loco8 --zero 2 --ranks 4 --nodes 2 --loco-bits 8 $loco
check 'which have other bits' eval '! cmp -s "$work/loco.params" "$work/loco8.params"'
check 'shards of a node: the same bits' like nodes --zero 2 --ranks 4 --mics 2
check 'four nodes of two ranks' ranked eight --ranks 8 --nodes 4
check 'two nodes with twice the micro-batches: the same bits' \
    like eight --zero 1 --ranks 4 --nodes 2 --micro-batches 2
precision=f32
check 'nodes that do not divide the ranks' \
    spoils '--nodes 3 does not divide the 4 ranks' --ranks 4 --nodes 3
check 'nodes of other sizes than said' \
    spoils '--nodes 2 of --ranks-per-node 4 are not the 4 ranks there are' --ranks 4 --nodes 2 \
    --ranks-per-node 4
check 'threads to share: the same bits' like adamw --zero 2 --ranks 4 --threads 8
reports_ranks() {
    like adamw --zero 2 --ranks 2 --micro-batches 2 && [ "$(number ranks)" = 2 ] &&
        [ "$(number zero)" = 2 ] && [ "$(number micro_batches)" = 2 ]
}
check 'ranks in the report' reports_ranks
evaluates_alone() {
    pretrain --steps 0 --batch 8 --micro-batches 2
    grep '^held out' "$work/out" > "$work/one rank" || return
    pretrain --steps 0 --batch 8 --ranks 2 --zero 3
    grep '^held out' "$work/out" | cmp - "$work/one rank"
}
check 'ranks that only evaluate' evaluates_alone
check 'ranks with examples shorter than the position embedding' \
    ranked short --seq 16 --ranks 2 --zero 2

# Saved by some ranks, resumed by others.
# steps TO RUN OPTIONS...: trains to this step; writes parameters and losses as above.
steps() {
    to=$1
    leaves=$2
    shift 2
    pretrain --batch 8 --schedule constant --warmup 3 --eval-batches 4 --steps "$to" \
        --dump "$work/$leaves.params" "$@"
    [ $status = 0 ] && grep '^held out: ' "$work/out" > "$work/$leaves.losses"
}
saved_by() {
    rm -rf "$work/parts"
    steps 5 half --save "$work/parts" "$@" &&
        "$bert" export --load "$work/parts" "$work/parts.safetensors" &&
        cmp "$work/parts.safetensors" "$work/half.params"
}
goes_on() {
    steps 9 other --load "$work/parts" "$@" && [ "$(grep -c 'other bits' "$work/out")" = 0 ] &&
        cmp "$work/straight.params" "$work/other.params" &&
        cmp "$work/straight.losses" "$work/other.losses"
}
check 'four parts without a break' steps 9 straight --micro-batches 4
for options in '--ranks 4 --zero 3' '--ranks 2 --micro-batches 2 --zero 1' '--micro-batches 4'; do
    # shellcheck disable=SC2086
    check "saved by $options" saved_by $options
    for zero in 0 3; do
        check "then two ranks at stage $zero: the same bits" goes_on --ranks 2 --micro-batches 2 \
            --zero $zero
    done
    check 'then four ranks: the same bits' goes_on --ranks 4 --zero 2
    check 'then one: the same bits' goes_on --micro-batches 4
done
other_parts() {
    steps 9 other --load "$work/parts" --ranks 2 &&
        grep -qx "$work/parts was trained on batches in 4 parts (ranks times micro-batches), not 2:\
 it goes on, with other bits" "$work/out"
}
check 'then in another number of parts' other_parts
other_ranks() {
    options='--optimizer onebit_adam --freeze-step 2 --zero 1'
    # shellcheck disable=SC2086
    steps 5 half $options --ranks 2 --micro-batches 2 --save "$work/onebit" &&
        steps 9 other $options --ranks 4 --load "$work/onebit" && grep -qx \
        "$work/onebit was trained on 2 ranks, which have states of their own, not 4: it goes on with \
their mean, and other bits" "$work/out"
}
check 'states of ranks on another number of them' other_ranks
cut_weights() {
    said="$work/parts was trained with lr = 0.001, not 0.01: give the same --lr, or start anew from"
    said="$said its weights with --init $work/parts"
    saved_by --ranks 2 --zero 3 && spoils "$said" --batch 8 --schedule constant --warmup 3 \
        --steps 9 --lr 0.01 --load "$work/parts" --ranks 2 || return 1
    steps 5 other --steps 0 --init "$work/parts" --ranks 2 && cmp "$work/other.params" \
        "$work/half.params"
}
check 'another learning rate, and weights that are cut' cut_weights
ranks_interrupted() {
    rm -rf "$work/parts"
    begins "$work/part.csv" --ranks 4 --zero 3 --save "$work/parts" --log "$work/part.csv"
    kill -INT $!
    wait $!
    [ $? = 130 ] && [ ! -s "$work/err" ] && [ "$(grep -c ^interrupted "$work/out")" = 1 ]
}
rm -f "$work/part.csv"
check 'ranks are interrupted together' ranks_interrupted
ranks_continued() {
    total=$(($(grep -c '' "$work/part.csv") + 5))
    run eval "$(tail -n 1 "$work/out") --steps $total --dump \"\$work/continued\""
    [ $status = 0 ] && pretrain --schedule constant --warmup 5 --steps $total --micro-batches 4 \
        --dump "$work/whole" && [ $status = 0 ] && cmp "$work/continued" "$work/whole"
}
check 'and go on with the same bits' ranks_continued

check 'a batch that cannot be cut' \
    spoils "--batch 10 examples cannot be split into 4 equal parts (ranks 2 x micro-batches 2);\
 8 or 12 can" --batch 10 --ranks 2 --micro-batches 2
check 'a batch that is too small' \
    spoils "--batch 2 examples cannot be split into 4 equal parts (ranks 4 x micro-batches 1);\
 4 can" --batch 2 --ranks 4
check 'no such stage' misused "--zero takes a whole number from 0 to 3, not '4'" pretrain --zero 4
check 'one rank fails, all end' spoils '/dev/full: No space left on device' --ranks 4 --zero 3 \
    --steps 100 --log /dev/full
diverges() {
    pretrain --ranks 4 --zero 3 --steps 500 --lr 1000 --clip 0 --quiet
    [ $status = 1 ] && [ "$(grep -c '' "$work/err")" = 1 ] &&
        grep -q '^bert: rank [0-3]: step [0-9]*: the loss is not a finite number; the run has' \
            "$work/err"
}
check 'all diverge, one says so' diverges

# Launchers' environment variables count only in pairs.
launched() { run env "$@" "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" \
    --seq 32 --batch 4 --steps 2 --quiet; }
half() { launched WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 PMI_SIZE=4 && [ $status = 0 ]; }
check 'half a launcher is none' half
single() { launched RANK=0 WORLD_SIZE=1 && [ $status = 0 ]; }
check 'nor is one of a single process' single
foreign() {
    launched RANK=0 WORLD_SIZE=4
    [ $status = 1 ] && grep -q '^bert: torchrun started 4 processes, and ' "$work/err"
}
check 'a launcher that cannot be joined' foreign
mpi=$(command -v mpirun) && grep -q 'without MPI' "$work/err" && mpi=
alone() {
    run env RANK=1 WORLD_SIZE=2 "$bert" eval --load none --corpus "$corpus"
    [ $status = 1 ] && grep -q '^bert: ' "$work/err" || return
    launched RANK=1 WORLD_SIZE=2
    [ $status = 1 ] && grep -q '^bert: torchrun started 2 processes, and ' "$work/err"
}
check 'the environment silences nobody' alone
twice() {
    run env RANK=0 WORLD_SIZE=4 "$bert" pretrain --corpus c --vocab v --ranks 4
    said='torchrun started 4 processes, and --ranks 4 makes threads of one: start one process, or'
    [ $status = 1 ] && [ "$(cat "$work/err")" = "bert: $said leave --ranks out" ]
}
check 'threads of several processes' twice

# Processes, if the program is built with MPI: on any number of cores, and also as root.
if [ -n "$mpi" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    launch='mpirun -np 4'
    for zero in 0 1 2 3; do
        check "stage $zero, four processes: the same bits" like adamw --zero $zero --prefetch 20000
    done
    check 'all offloaded, four processes: the same bits' offloads_to_disk \
        optimizer=disk,parameters=disk,gradients=disk,activations=host adamw --zero 3 --prefetch 20000
    precision=bf16 # as the runs above in two nodes
    check 'two nodes of two processes: the same bits' \
        like nodes --zero 3 --nodes 2 --zero-hpz --prefetch 20000
    # shellcheck disable=SC2086
    check 'quantised, four processes: the same bits' \
        like quantized --nodes 2 --prefetch 20000 $quantized
    # shellcheck disable=SC2086
    check 'error feedback, four processes: the same bits' \
        like loco --zero 2 --nodes 2 --prefetch 20000 $loco
    hosts() { # N: mpirun says that N processes are on each host
        printf 'export OMPI_COMM_WORLD_LOCAL_SIZE=%s\n' "$1"
        printf 'OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK %% %s))\n' "$1"
        printf 'export OMPI_COMM_WORLD_LOCAL_RANK\nexec "$@"\n'
    }
    hosts 2 > "$work/hosts"
    launch="mpirun -np 4 sh $(printf %s "$work/hosts" | sed 's/ /?/g')"
    check 'nodes that mpirun tells: the same bits' like nodes --zero 1
    precision=f32
    hosts 3 > "$work/hosts"
    uneven() {
        pretrain --steps 1
        [ $status = 1 ] && grep -q '^bert: rank 0: mpirun has 3 of the 4 ranks on this host, ' \
            "$work/err"
    }
    check 'hosts that are no equal nodes' uneven
    launch='mpirun -np 4'
    check 'stage 3, four processes, lamb: the same bits' like lamb --optimizer lamb --zero 3
    check '1-bit LAMB, four processes: the same bits' same_signs --zero 1
    check '0/1 Adam, four processes: the same bits' same_rounds
    launch='mpirun -np 2'
    check 'stage 3, two processes x 2 micro-batches: the same bits' \
        like adamw --zero 3 --micro-batches 2
    told_once() {
        pretrain --steps 10 --log /dev/full
        [ $status = 1 ] && [ "$(grep -c ^bert: "$work/err")" = 1 ] &&
            grep -qx 'bert: /dev/full: No space left on device' "$work/err"
    }
    check 'one process fails, all end' told_once

    # unlike TEXT OPTIONS...: rank 1 of three processes with other options or files than the others.
    # The error is printed once, or by this process and rank 0.
    # shellcheck disable=SC2086
    unlike() {
        said=$1
        shift
        run mpirun -np 1 "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" \
            --seq 32 --batch 6 --steps 3 --quiet $common : -np 1 "$bert" pretrain --model "$config" \
            --corpus "$corpus" --vocab "$vocab" --seq 32 --batch 6 --steps 3 --quiet $common "$@" : \
            -np 1 "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" \
            --seq 32 --batch 6 --steps 3 --quiet $common
        [ $status != 0 ] && [ "$(grep -c ^bert: "$work/err")" = "${tellers:-1}" ] &&
            [ "$(grep -cEx "bert: $said" "$work/err")" = "${tellers:-1}" ] && [ ! -s "$work/out" ]
    }
    common= tellers=
    other='all ranks must have the same'
    check 'another seed on a rank' unlike "--seed is 2 on rank 1 and 1 on rank 0: $other" --seed 2
    check 'another learning rate' unlike "--lr is 0.01[0-9]* on rank 1 and 0.001[0-9]* on rank 0:\
 $other" --lr 0.01
    check 'another schedule' unlike "--schedule is cosine on rank 1 and linear on rank 0: $other" \
        --schedule cosine
    check 'other steps, and so another warm-up' \
        unlike "--steps is 30 on rank 1 and 3 on rank 0: $other" --steps 30
    check 'other threads' unlike "--threads is 2 on rank 1 and 1 on rank 0: $other" --threads 2
    check 'another mesh' unlike "--nodes is 3 on rank 1 and 0 on rank 0: $other" --nodes 3
    common='--ranks-per-node 2'
    check 'nodes that do not divide the processes' \
        unlike '--ranks-per-node 2 does not divide the 3 ranks'
    mkdir "$top/offload"
    common="--offload optimizer=disk --offload-dir $top/offload" tellers=2
    check 'a folder for offload that one rank does not have' \
        unlike "rank 1: cannot open $top/none: No such file or directory" --offload-dir "$top/none"
    common= tellers=
    check 'a place to save on one rank' \
        unlike "--save is given on rank 1 and not given on rank 0: $other" --save "$work/unlike"
    digest='[0-9a-f]{16} on rank 1 and [0-9a-f]{16} on rank 0'
    sed 's/near the/of the/' "$corpus" > "$work/other corpus"
    check 'another corpus' unlike "the digest of the corpus is $digest: $other" \
        --corpus "$work/other corpus"
    sed 's/^ship$/shop/' "$vocab" > "$work/other vocab"
    check 'another vocabulary' unlike "the digest of the vocabulary is $digest: $other" \
        --vocab "$work/other vocab"
    # shellcheck disable=SC2034
    for k in 1 2; do
        pretrain --batch 6 --micro-batches 3 --steps $k --warmup 0 --dump "$work/init$k" \
            --save "$top/load$k"
        cp "$work/init$k" "$top"
    done
    common="--init $top/init1"
    check 'other weights to begin with' unlike "the digest of --init is $digest: $other" \
        --init "$top/init2"
    common="--warmup 0 --load $top/load1"
    check 'another checkpoint' unlike "the digest of --load is $digest: $other" --load "$top/load2"
    common= tellers=2
    check 'a file that one rank does not have' unlike "rank 1: corpus 'none.txt': cannot open: No\
 such file or directory; $form" --corpus none.txt
    common='--corpus none.txt' tellers=1
    check 'a file that none has' unlike "corpus 'none.txt': cannot open: No such file or directory;\
 $form"
    common=
    check 'an option that one rank does not know' unlike "pretrain: there is no option '--nonesuch';\
 'bert pretrain --help' lists the options" --nonesuch 1
    tellers=
    launch='mpirun -np 4'
    check 'saved by four processes' saved_by --zero 3
    launch='mpirun -np 2'
    check 'then two processes: the same bits' goes_on --zero 1 --micro-batches 2
    launch=
    check 'then one: the same bits' goes_on --micro-batches 4
    launch=
fi

# ------------------------------------------------------------------------------ capitals, batches

cased() {
    run "$bert" vocab --cased --corpus "$corpus" --vocab "$vocab" --size 100
    [ $status = 0 ] && grep -q '^The$' "$vocab" || return
    pretrain --cased --steps 5 --save "$work/cased"
    grep '^held out: ' "$work/out" | sed 's/^held out: //' > "$work/held out"
    run "$bert" eval --load "$work/cased" --corpus "$corpus" --seq 32 --batch 4
    [ $status = 0 ] && cmp "$work/out" "$work/held out"
}
check 'a vocabulary with capitals' cased

golden=tests/golden/bert
batches() {
    run "$bert" pretrain --model $golden/config.json --init $golden/init.safetensors --precision f32 \
        --batch-file $golden/batch.safetensors "$@"
}
evaluates() {
    batches --steps 0
    [ $status = 0 ] &&
        grep -Eq '^loss 6\.3835[0-9]*  mlm_loss 5\.7922[0-9]*  nsp_loss 0\.5912[0-9]*$' "$work/out"
}
check 'the loss of a batch' evaluates
trains() {
    batches --steps 3 --schedule constant --warmup 0 --dump-grads "$work/grads" \
        --log "$work/batch.csv"
    [ $status = 0 ] && [ -s "$work/grads" ] && awk -F, '
        NR == 2 { good = $2 > 6.3835 && $2 < 6.3836 }
        NR == 3 { good = good && $2 > 6.3349 && $2 < 6.3351 }
        END { exit !(good && NR == 4) }' "$work/batch.csv"
}
check 'steps on batches' trains
shared() {
    batches --steps 3 --micro-batches 4 --dump "$work/four" && [ $status = 0 ] &&
        batches --steps 3 --ranks 4 --zero 3 --dump "$work/ranks" && [ $status = 0 ] &&
        cmp "$work/four" "$work/ranks"
}
check 'ranks share batches' shared
check 'batches that cannot be cut' \
    fails 1 "bert: $golden/batch.safetensors: 4 examples cannot be split into 3 equal parts\
 (ranks 3 x micro-batches 1); 3 or 6 can" "$bert" pretrain --model $golden/config.json \
    --batch-file $golden/batch.safetensors --ranks 3

# What is written is nothing that is read, or written by another option.
meets() {
    message=$1
    shift
    cp "$work/meeting" "$work/meeting.kept" && ends 1 "$@" &&
        grep -Fqx "bert: $message; name another place" "$work/err" && cmp "$work/meeting.kept" "$work/meeting"
}
printf 'a b\n\nc d\n\na c\n\nb d\n' > "$work/meeting"
for option in log svg report dump dump-grads; do
    check "--$option over the corpus" meets "--$option $work/meeting: it is the file of --corpus" \
        "$bert" pretrain --corpus "$work/meeting" --vocab "$work/meeting2" --$option "$work/meeting"
done
check 'a vocabulary over the corpus' meets "--vocab $work/meeting: it is the file of --corpus" \
    "$bert" vocab --corpus "$work/meeting" --vocab "$work/meeting"
check 'two outputs on one file' meets "--log $work/both: it is the file of --report" \
    "$bert" pretrain --corpus "$work/meeting" --vocab "$work/meeting2" --log "$work/both" --report "$work/both"

# ------------------------------------------------------------------------------ texts with labels

small=tests/golden/hf/bert
awk 'BEGIN { printf "id,text,label\r\n"
    for (i = 0; i < 40; i++)
        printf "%d,\"the %s, \"\"%s\"\"\",%s\r\n", i, i % 2 ? "cat" : "bird", i % 3 ? "sings" : "saw",
            i % 2 ? "no \303\251" : "yes" }' > "$work/labels.csv"
awk 'BEGIN { for (i = 0; i < 40; i++)
    printf "{\"a\": \"the %s\", \"b\": \"saw\", \"y\": %s}\n", i % 2 ? "cat" : "bird",
        i % 2 ? "1.5" : "-1" }' > "$work/numbers.jsonl"
classified() { # DATA OPTIONS...
    data=$1
    shift
    run "$bert" finetune --model $small --data "$work/$data" --precision f32 --quiet "$@"
}
learns_labels() {
    classified labels.csv --steps 60 --lr 1e-2 --save "$work/labels" && [ $status = 0 ] &&
        grep -Fq 'held out: accuracy 100.0% of 2 texts' "$work/out" &&
        run "$bert" eval --load "$work/labels" --data "$work/labels.csv" && [ $status = 0 ] &&
        grep -Fq 'accuracy 100.0% of 40 texts' "$work/out"
}
check 'labels are learned' learns_labels
uses_labels() {
    printf 'text\nthe cat\nthe bird\n' > "$work/new.csv"
    run "$bert" export --load "$work/labels" "$work/exported" && [ $status = 0 ] &&
        run "$bert" classify --load "$work/exported" --data "$work/new.csv" --dtype f32 &&
        [ $status = 0 ] && [ "$(sed 's/,.*//' "$work/out" | tr '\n' ' ')" = \
        "$(printf '{"label":"no \303\251" {"label":"yes" ')" ] &&
        mv "$work/out" "$work/first" &&
        run "$bert" classify --load "$work/labels" --data "$work/new.csv" --dtype f32 --batch 1 &&
        cmp "$work/out" "$work/first"
}
check 'labels of an exported folder' uses_labels
learns_numbers() {
    classified numbers.jsonl --task regress --text a --pair b --label y --steps 60 --lr 1e-2 \
        --save "$work/numbers" && [ $status = 0 ] && grep -q 'held out: mean squared error .*, mean distance 0\.' "$work/out" &&
        run "$bert" classify --load "$work/numbers" --data "$work/numbers.jsonl" --text a --pair b &&
        [ $status = 0 ] && [ "$(sed -n '2s/^{"number":1\.[1-9].*/good/p' "$work/out")" = good ] &&
        run "$bert" eval --load "$work/numbers" --data "$work/numbers.jsonl" --text a --pair b \
            --label y && [ $status = 0 ] && grep -q 'mean distance 0\..* of 40 texts' "$work/out"
}
check 'numbers of pairs are learned' learns_numbers
shares_labels() {
    classified labels.csv --steps 4 --batch 8 --micro-batches 4 --dump "$work/four" && [ $status = 0 ] &&
        classified labels.csv --steps 4 --batch 8 --ranks 4 --zero 3 --dump "$work/ranks" &&
        [ $status = 0 ] && cmp "$work/four" "$work/ranks"
}
check 'ranks share texts with labels' shares_labels
resumes_labels() {
    classified labels.csv --steps 6 --warmup 1 --schedule constant --dump "$work/whole" && [ $status = 0 ] &&
        classified labels.csv --steps 3 --warmup 1 --schedule constant --save "$work/texts" &&
        [ $status = 0 ] &&
        classified labels.csv --steps 6 --warmup 1 --schedule constant --load "$work/texts" \
            --dump "$work/rest" && [ $status = 0 ] && cmp "$work/whole" "$work/rest"
}
check 'texts with labels go on' resumes_labels

# refused TEXT CSV OPTIONS...: texts with labels that are an error.
refused() {
    text=$1
    printf "$2" > "$work/bad.csv"
    shift 2
    fails 1 "bert: $text" "$bert" finetune --model $small --data "$work/bad.csv" --steps 1 --quiet "$@"
}
check 'no such column' refused "$work/bad.csv:1: there is no column \"label\"" 'text,kind\na,b\n'
check 'an empty text' refused "$work/bad.csv:3: \"text\" is empty" 'text,label\na,b\n,c\n'
check 'an empty label' refused "$work/bad.csv:3: \"label\" is empty" 'text,label\na,b\nb,\n'
check 'one label' \
    refused "$work/bad.csv: all texts have the label \"x\"; two labels at least are needed" \
    'text,label\na,x\nb,x\n'
check 'one text' refused "$work/bad.csv has 1 texts, and 2 are needed" 'text,label\na,x\n'
check 'an open quote' refused "$work/bad.csv:3: a quote is not closed, or has text after it" \
    'text,label\na,x\n"b,x'
check 'a column too many' refused "$work/bad.csv:2: there are 3 columns, and 2 in the first line" \
    'text,label\na,b,c\n'
check 'many columns' refused "$work/bad.csv:1: there are more than 256 columns" \
    "$(awk 'BEGIN { for (i = 0; i < 300; i++) printf "a," }')"
check 'a long label' refused "$work/bad.csv: labels have at most 8191 bytes in all, and no line breaks;\
 is it a column of labels?" "$(awk 'BEGIN { printf "text,label\\na,"; for (i = 0; i < 9000; i++) printf "x" }')\\nb,c\\n"
check 'a label that is no number' \
    refused "$work/bad.csv: text 2 has the label \"x\", which is no number" 'text,label\na,1\nb,x\n' \
    --task regress
check 'rows without room' refused "$work/bad.csv:2: rows of 3 tokens have no room for a text" \
    'text,label,pair\na,1,b\nb,2,c\n' --seq 3 --pair pair
check 'a label that the model does not have' \
    fails 1 "bert: $work/labels.csv: text 1 has the label \"yes\", which is none of the model's:\
 bad, or worse, so \"so\", gut $(printf '\303\251')" "$bert" finetune --model tests/golden/encoders/bert-labels \
    --tokenizer $small --data "$work/labels.csv" --steps 1 --quiet
check 'labels of a model for numbers' \
    fails 1 'bert: the model gives a number already: --task regress' "$bert" finetune \
    --model "$work/numbers" --data "$work/labels.csv" --steps 1 --quiet
check 'words of a model with labels' \
    fails 1 "bert: $work/labels is a model with labels, which predicts no words: finetune trains it,\
 classify uses it" "$bert" fill --load "$work/labels" 'a [MASK]'
check 'labels of a model for words' \
    fails 1 "bert: $small has no labels: finetune trains a model for them" "$bert" classify \
    --load $small --data "$work/new.csv"
check 'texts longer than positions' \
    fails 1 "bert: sequences of 65536 tokens are too long for the model's $(sed -n \
        's/.*"max_position_embeddings": *\([0-9]*\).*/\1/p' "$work/exported/config.json") positions" \
    "$bert" classify --load "$work/exported" --data "$work/new.csv" --seq 65536
check 'labels without texts' misused 'texts with labels are needed: --data FILE' finetune --model $small \
    --corpus x --vocab y
adapts_labels() { # resumed and shared with the same bits; merged, it gives the same labels
    adapts='--lora r=2,alpha=4,targets=query,dense --lr 1e-2 --warmup 1 --schedule constant'
    classified labels.csv --steps 60 $adapts --micro-batches 2 --save "$work/adapts" && [ $status = 0 ] &&
        grep -Fq 'held out: accuracy 100.0% of 2 texts' "$work/out" &&
        [ ! -e "$work/adapts/model.safetensors" ] &&
        grep -q '"task_type": "SEQ_CLS"' "$work/adapts/adapter_config.json" &&
        tr -d '\n ' < "$work/adapts/adapter_config.json" |
        grep -Fq '"modules_to_save":["bert.pooler.dense","classifier"]' &&
        classified labels.csv --steps 30 $adapts --micro-batches 2 --save "$work/adapts half" &&
        classified labels.csv --steps 60 $adapts --load "$work/adapts half" --ranks 2 --zero 3 \
            --save "$work/adapts whole" && [ $status = 0 ] &&
        cmp "$work/adapts/adapter_model.safetensors" "$work/adapts whole/adapter_model.safetensors" &&
        run "$bert" classify --load $small --adapter "$work/adapts" --data "$work/new.csv" --dtype f32 &&
        [ $status = 0 ] && [ "$(grep -c '^{"label":.*"scores":\[.*,.*\]}$' "$work/out")" = 2 ] &&
        run "$bert" eval --load $small --adapter "$work/adapts" --data "$work/labels.csv" &&
        grep -Fq 'accuracy 100.0% of 40 texts' "$work/out" &&
        run "$bert" merge --model $small --adapter "$work/adapts" "$work/adapts merged" && [ $status = 0 ] &&
        run "$bert" eval --load "$work/adapts merged" --data "$work/labels.csv" &&
        grep -Fq 'accuracy 100.0% of 40 texts' "$work/out"
}
check 'an adapter with labels' adapts_labels
goes_on_with_labels() { # those of the adapter, also where data have one
    sed '2,${/yes/!d
}' "$work/labels.csv" > "$work/some.csv"
    run "$bert" finetune --model $small --adapter "$work/adapts" --data "$work/some.csv" --steps 1 --lr 0 \
        --quiet --save "$work/adapts on" && [ $status = 0 ] &&
        cmp "$work/adapts/adapter_model.safetensors" "$work/adapts on/adapter_model.safetensors"
}
check 'an adapter with labels goes on' goes_on_with_labels
check 'an adapter without labels' \
    fails 1 "bert: $work/adapter is an adapter of a model that predicts words: it has no head for the\
 labels of the model" "$bert" classify --load "$work/exported" --adapter "$work/adapter" --data "$work/new.csv"
check 'no adapter of labels' \
    fails 1 "bert: $work/labels is no adapter: it has no adapter_config.json" "$bert" classify \
    --load "$work/exported" --adapter "$work/labels" --data "$work/new.csv"
check 'an adapter of other labels' \
    fails 1 "bert: $work/labels.csv: text 1 has the label \"0\", which is none of the model's: no \
$(printf '\303\251'), yes" "$bert" finetune --model $small --adapter "$work/adapts" --data "$work/labels.csv" \
    --label id --steps 1 --quiet
check 'norms in front in another family' \
    fails 1 'bert: --pre-norm is for BERT; tests/golden/encoders/roberta is of another family' "$bert" \
    pretrain --model tests/golden/encoders/roberta --corpus docs/data/stories.txt \
    --vocab docs/data/vocab.txt --pre-norm --seq 16 --steps 1 --quiet

check 'experts in another family' fails 1 "bert: --experts is for a BERT of at most 256 layers, with an \
intermediate size that is a multiple of the experts of a token, at least one and at most all: not \
tests/golden/encoders/roberta" "$bert" pretrain --model tests/golden/encoders/roberta --corpus docs/data/stories.txt \
    --vocab docs/data/vocab.txt --experts 4 --seq 16 --steps 1 --quiet
check 'more experts of a token than there are' \
    misused '--top-k K: a token has at most all of --experts E' pretrain --corpus "$corpus" --vocab "$vocab" \
    --experts 2 --top-k 4
with_experts() {
    ends 0 "$bert" pretrain --model "$config" --corpus "$corpus" --vocab "$vocab" --batch 8 --seq 16 --steps 2 \
        --eval-batches 1 --experts 4 --top-k 1 --aux-loss 0.01 --balance-bias 0.25 --save "$work/sparse" "$@"
}
check 'layers of experts' with_experts
check 'which say how they are used' grep -q '^experts of layer 0: .*% of choices; 0.0% dropped' "$work/out"
check 'with a bias that balances them' grep -q '"zeroflow_router_bias": true' "$work/sparse/config.json"
check 'their loss' ends 0 "$bert" eval --load "$work/sparse" --corpus "$corpus" --seq 16
check 'experts of a model that has its layers' misused \
    '--experts is for a new model: that of --init has its layers already' pretrain --corpus "$corpus" --vocab "$vocab" \
    --init "$work/sparse" --experts 4
run "$bert" export --load "$work/sparse" "$work/sparse.hf"
check 'experts that others do not read' grep -q 'zeroflow_experts in config.json: its layers have experts' "$work/out"
check 'documents packed in another family' \
    fails 1 'bert: --pack is for BERT and RoBERTa; tests/golden/encoders/distilbert is of another family' \
    "$bert" pretrain --model tests/golden/encoders/distilbert --corpus docs/data/stories.txt \
    --vocab docs/data/vocab.txt --no-nsp --pack --seq 16 --steps 1 --quiet
check 'a number of a model with labels' \
    fails 1 'bert: the model has labels already: --task classify' "$bert" finetune --task regress \
    --model "$work/labels" --data "$work/labels.csv" --label id --steps 1 --quiet
check 'first values of another family' \
    fails 1 'bert: --first-positions and --first-bias are for BERT: this family has no'\
' bert.embeddings.position_embeddings.weight' "$bert" pretrain --model tests/golden/encoders/roberta/config.json \
    --batch-file tests/golden/encoders/batch.safetensors --first-positions sinusoids --steps 1 --quiet

mkdir "$work/bare"
echo '{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
 "post_processor": null, "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}' \
    > "$work/bare/tokenizer.json"
check 'a tokenizer without a frame' \
    fails 1 "bert: the tokenizer puts 0 tokens around a text; texts with labels need one before and\
 one after it" "$bert" finetune --model $small --tokenizer "$work/bare" --data "$work/labels.csv" --steps 1 --quiet

total
