#!/bin/sh
# What methods of sending less learn: BERT-mini on 4 ranks, each method from the same first values
# and on the same examples as the optimizer that it approximates.
#
#     make build/bert && sh bench/onebit.sh [STEPS [MODEL [METHOD...]]]          2000 mini, all methods
#
#     adamw            onebit_adam
#                      zero_one_adam        intervals as by default, which double every 32768 steps
#                      zero_one_adam_often  more refreshes: their distance doubles after STEPS / 20 of
#                                           them instead of 16, which are meant for 100,000 steps
#                      zero_one_adam_local  intervals that double every FREEZE steps, up to 4
#                      zero++     two nodes of two ranks: stage 3, hpZ, qwZ, qgZ
#                      loco       the same with errors of gradients kept
#     lamb             onebit_lamb
#
# It writes build/onebit/: a log and a report of each run, and table.txt, the held-out losses of all
# reports that are there, with their distance from AdamW's or LAMB's. So methods can be run one at a
# time, with the same settings: STEPS, MODEL and, taken from the environment, CORPUS (one sentence a
# line, a blank line between documents; else that of make pretrain), SEED, RANKS (4), SEQ (32),
# BATCH (64), MASKED (percent of the words; 60), PRECISION (bf16), LR (1e-3), LAMB_LR (1e-2), FREEZE
# (steps of the warm-up; a fifth of all), BLOCK (of zero++ and loco: --quantized-block; 256). These,
# no dropout and first values that are not drawn are the settings of make pretrain, which teach a
# small model most in a few minutes. A run of 2000 steps of BERT-mini takes about 10 minutes on two
# idle cores that multiply bf16.
set -eu
export LC_ALL=C

steps=${1:-2000}
model=${2:-mini}
[ $# -lt 2 ] || shift
[ $# -lt 1 ] || shift
bert=build/bert
out=build/onebit
corpus=${CORPUS:-build/pretrain/corpus.txt}
seed=${SEED:-1}
ranks=${RANKS:-4}
freeze=${FREEZE:-$(((steps + 4) / 5))}
all='adamw onebit_adam zero_one_adam zero_one_adam_often zero_one_adam_local zero++ loco lamb onebit_lamb'
[ $# -gt 0 ] || eval "set -- $all"

stop() {
    echo "onebit.sh: $*" >&2
    exit 1
}

for method in "$@"; do
    case " $all " in *" $method "*) ;; *) stop "there is no method $method; methods are $all" ;; esac
done
mkdir -p "$out"
if [ ! -s "$corpus" ]; then
    mkdir -p build/pretrain
    sh examples/bert/data/corpus.sh "$corpus" build/pretrain/work
fi
batch=${BATCH:-64}
seq=${SEQ:-32}
masked=${MASKED:-60}
precision=${PRECISION:-bf16}
rate=${LR:-1e-3}
lamb_rate=${LAMB_LR:-1e-2}
block=${BLOCK:-256}
settings="$model, $steps steps of $batch x $seq tokens in $precision on $ranks ranks, $masked% masked, \
warm-up $freeze, rate $rate, of LAMB $lamb_rate, seed $seed, blocks of $block, corpus $(cksum < "$corpus")"
if [ -e "$out/settings" ] && [ "$(cat "$out/settings")" != "$settings" ]; then
    stop "$out has runs with other settings ($(cat "$out/settings")): move it away"
fi
echo "$settings" > "$out/settings"
[ -s "$out/vocab.txt" ] || $bert vocab --corpus "$corpus" --vocab "$out/vocab.txt" --size 8192

# learn NAME OPTIONS...: a run. Its report stands for the whole of it.
learn() {
    name=$1
    shift
    rm -f "$out/$name.json"
    $bert pretrain --model "$model" --corpus "$corpus" --vocab "$out/vocab.txt" \
        --ranks "$ranks" --threads "$(getconf _NPROCESSORS_ONLN)" --steps "$steps" \
        --seq "$seq" --batch "$batch" --masked "$masked" --precision "$precision" --lr "$rate" \
        --first-positions sinusoids --first-bias unigrams --dropout 0 --seed "$seed" \
        --log "$out/$name.csv" --report "$out/$name.json" --quiet "$@"
}

# run METHOD
run() {
    case $1 in
        adamw) learn adamw --optimizer adamw ;;
        onebit_adam) learn onebit_adam --optimizer onebit_adam --freeze-step "$freeze" ;;
        zero_one_adam) learn zero_one_adam --optimizer zero_one_adam --freeze-step "$freeze" ;;
        zero_one_adam_often)
            learn zero_one_adam_often --optimizer zero_one_adam --freeze-step "$freeze" \
                --var-update-scaler $(((steps + 19) / 20))
            ;;
        zero_one_adam_local)
            learn zero_one_adam_local --optimizer zero_one_adam --freeze-step "$freeze" \
                --local-step-scaler "$freeze" --local-step-clipper 4
            ;;
        zero++)
            learn zero++ --optimizer adamw --zero 3 --nodes 2 --zero-hpz --zero-quantized-weights \
                --zero-quantized-gradients --quantized-block "$block"
            ;;
        loco)
            learn loco --optimizer adamw --zero 3 --nodes 2 --zero-hpz --zero-quantized-weights \
                --zero-quantized-gradients --zero-loco --quantized-block "$block"
            ;;
        lamb) learn lamb --optimizer lamb --lr "$lamb_rate" ;;
        onebit_lamb)
            learn onebit_lamb --optimizer onebit_lamb --freeze-step "$freeze" \
                --lr "$lamb_rate"
            ;;
    esac
}

# loss NAME: the held-out loss of a report, or nothing.
loss() {
    [ ! -s "$out/$1.json" ] ||
        sed -n 's/^ *"held_out_mlm_loss": *\([-0-9.e+]*\).*/\1/p' "$out/$1.json" | head -n 1
}

for method in "$@"; do run "$method"; done
{
    echo "$settings"
    for name in $all; do
        case $name in *lamb) base=lamb ;; *) base=adamw ;; esac
        [ -z "$(loss "$name")" ] ||
            echo "$name $(loss "$name") $(loss $base)" | awk '{
                printf "%-19s held-out loss %.4f", $1, $2
                if ($3) printf "  %+.2f%%", 100 * ($2 - $3) / $3
                print "" }'
    done
} | tee "$out/table.txt"
