#!/bin/sh
# Questions made from the dictionary GCIDE (a word, its definition), and a small Llama that was
# pretrained on its text: sh bench/dictionary.sh WORK
#
# Leaves in WORK corpus.txt, vocab.txt, tune.jsonl and held.jsonl ({"prompt", "response"}), and the
# checkpoint base with pretraining.svg and pretraining.json. A second call goes on with what is there.
#
# From the environment: SECONDS_OF_PRETRAINING (1800) or PRETRAIN_STEPS, MODEL (15m), VOCAB (16384
# tokens), BATCH (16), SEQ (128), THREADS, PRECISION (bf16 where the processor multiplies it, else
# f32).
set -eu
export LC_ALL=C

work=$1
llm=build/llm
threads=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
precision=f32
if grep -qw avx512_bf16 /proc/cpuinfo 2> /dev/null; then precision=bf16; fi
steps=${PRETRAIN_STEPS:+--steps $PRETRAIN_STEPS}

mkdir -p "$work"
sh examples/bert/data/corpus.sh "$work/corpus.txt" "$work/package"
[ -s "$work/vocab.txt" ] ||
    build/bert vocab --corpus "$work/corpus.txt" --vocab "$work/vocab.txt" \
        --size "${VOCAB:-16384}"

# Entries as "Lark \Lark\ (l[aum]rk), n. ..." and their first sense, up to its first stop. Kept are
# definitions of 4 to 20 plain words of words of at least four letters, the first of each word,
# unless they end in the middle of a phrase; of these every hundredth word is held out.
if [ ! -s "$work/pairs.jsonl" ]; then
    deb=$(ls "$work"/package/dict-gcide_*.deb)
    dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/share/dictd/gcide.dict.dz | zcat | awk '
        function finish(   n, plain) {
            sub(/^ *1\. /, "", text)
            sub(/^ *\([A-Za-z. ,&]*\) */, "", text)
            gsub(/[{}]/, "", text)
            sub(/[.;:].*/, "", text)
            sub(/ *--.*/, "", text)
            gsub(/  */, " ", text)
            sub(/^ /, "", text)
            sub(/ $/, "", text)
            n = split(text, plain, " ")
            if (word != "" && !(word in seen) && n >= 4 && n <= 20 &&
                text ~ /^[A-Z][A-Za-z, -]*$/ &&
                text !~ / (esp|etc|cf|viz|as|of|to|the|a|an|or|and)$/) {
                seen[word] = 1
                printf "{\"prompt\": \"what is %s ?\", \"response\": \" %s .\"}\n", word,
                    tolower(text)
            }
            word = text = ""
        }
        /^[A-Z][a-z][a-z][a-z]+ \\/ { finish(); word = tolower($1); header = 1; next }
        /^[^ ]/ { finish(); next }
        word == "" { next }
        /^ *$/ || /^ *\[/ { finish(); next }
        header && /^   [^ ]/ && (/^   1\. / || /^   [A-Z(]/) { header = 0; text = $0; next }
        !header { sub(/^ */, " "); text = text $0 }
        END { finish() }' > "$work/pairs.jsonl.part"
    awk -v held="$work/held.jsonl" -v tune="$work/tune.jsonl" \
        '{ print > (NR % 100 ? tune : held) }' "$work/pairs.jsonl.part"
    mv "$work/pairs.jsonl.part" "$work/pairs.jsonl"
fi
if [ ! -d "$work/base" ]; then
    # shellcheck disable=SC2086 # words
    $llm pretrain --model "${MODEL:-15m}" --corpus "$work/corpus.txt" --vocab "$work/vocab.txt" \
        --seq "${SEQ:-128}" --batch "${BATCH:-16}" --lr 1e-3 --precision "${PRECISION:-$precision}" --threads "$threads" \
        ${steps:---steps 1000000 --seconds "${SECONDS_OF_PRETRAINING:-1800}"} \
        --save "$work/base" --svg "$work/pretraining.svg" --report "$work/pretraining.json"
fi
