#!/bin/sh
# Over a real link: processes in two network namespaces, joined by a veth pair whose ends send no
# faster than a token bucket lets them.
#
#     make build/bert build/zf-plan && sudo sh bench/netns.sh methods [STEPS [RATE...]]
#
# The time of a step of BERT-mini in bf16, for each method of sending less and each RATE of the link
# (1gbit 100mbit): two nodes of two ranks. Next to it: what zf-plan predicts by the rates that the
# ranks measure, its bytes between nodes, and how many times as fast it is as plain stage 3 and
# stage 1 (of LAMB for 1-bit LAMB). STEPS (14) are taken. The median counts, without the first two;
# of 0/1 Adam, where three of four steps are local, the mean of the last eight. Of 1-bit optimizers
# compressed steps count. They exchange signs between all ranks alike, so that two of the three
# ranks to which a rank sends are in the other node. Options for all methods are in METHOD_OPTIONS
# ("--model tiny --batch 8"), and names of methods, where not all are wanted, in METHODS.
#
#     make build/bench/overlap && sudo sh bench/netns.sh [ROUNDS [overlap's options...]]
#
# How much of the communication is hidden, of one process in each. A round takes the step on the
# fast pair (compute), sets the rate at which the plan's bytes take half of that, and takes the
# steps on the slow pair without and with prefetch. Medians of rounds. Needs root, ip and tc
# (Debian: iproute2) and Open MPI.
set -eu
export LC_ALL=C

mode=overlap
[ "${1:-}" != methods ] || mode=methods
[ $mode = overlap ] || shift
rounds=${1:-5}
steps=${1:-14}
[ $# -eq 0 ] || shift
program=$PWD/build/bench/overlap
[ $mode = overlap ] || program=$PWD/build/bert
one=zf-bench-$$-0
two=zf-bench-$$-1

stop() {
    echo "netns.sh: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || stop 'namespaces need root: sudo sh bench/netns.sh'
[ -x "$program" ] || stop "make ${program#"$PWD/"} builds what this measures"
for command in ip tc mpirun; do
    command -v "$command" > /dev/null || stop "there is no $command (Debian: iproute2, openmpi-bin)"
done

scratch=$(mktemp -d)
clean() {
    ip netns del "$one" 2> "$scratch/error" || :
    ip netns del "$two" 2> "$scratch/error" || :
    rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 1' HUP INT TERM

# try COMMAND...: says what fails.
try() {
    "$@" 2> "$scratch/error" || stop "$*: $(cat "$scratch/error")"
}

try ip netns add "$one"
try ip netns add "$two"
try ip link add zf0 netns "$one" type veth peer name zf1 netns "$two"
for side in 0 1; do
    space=zf-bench-$$-$side
    try ip -n "$space" address add 10.77.0.$((side + 1))/24 dev zf$side
    try ip -n "$space" link set lo up
    try ip -n "$space" link set zf$side up
done

# mpirun runs in the first namespace; its agent for the second host is a command in the other.
cat > "$scratch/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $two sh -c "\$*"
AGENT
chmod +x "$scratch/agent"

# shape RATE: bits per second of both ends, or none.
shape() {
    for side in 0 1; do
        space=zf-bench-$$-$side
        tc -n "$space" qdisc del dev zf$side root 2> "$scratch/error" || :
        [ "$1" = none ] || try tc -n "$space" qdisc add dev zf$side root tbf rate "$1" \
            burst 128k latency 400ms
    done
}

# on_both RANKS COMMAND...: so many processes in each namespace; inside one, TCP is not slowed.
on_both() {
    each=$1
    shift
    ip netns exec "$one" mpirun --allow-run-as-root --bind-to none -np $((2 * each)) \
        --host 10.77.0.1:"$each",10.77.0.2:"$each" --map-by ppr:"$each":node \
        --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include 10.77.0.0/24 \
        --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 \
        -x LC_ALL "$@" < /dev/null
}

# overlap OPTIONS...: runs it on both.
overlap() { on_both 1 "$program" --real --json "$@"; }

# field NAME: of the JSON that is read.
field() {
    sed -n "s/.*\"$1\": \([-0-9.]*\).*/\1/p"
}

# ---------------------------------------------------------------------------------- methods

# step_ms FILE: the median of the steps of a log, without the first two; with local steps in turns
# of four, the mean of the last eight.
step_ms() {
    awk -F, -v tokens="$tokens" 'NR == 1 { for (k = 1; k <= NF; k++) if ($k == "tokens_per_s") at = k }
        NR > 3 { print 1000 * tokens / $at }' "$1" > "$scratch/steps"
    case $1 in
        */zero_one_adam.csv) tail -n 8 "$scratch/steps" | awk '{ s += $1 } END { print s / NR }' ;;
        *) sort -n "$scratch/steps" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }' ;;
    esac
}

# train NAME OPTIONS...: the log of a run on both.
train() {
    log=$scratch/$1.csv
    shift
    # shellcheck disable=SC2086 # lists of options
    on_both 2 "$program" pretrain --corpus "$scratch/text" --vocab "$scratch/vocab.txt" --quiet \
        --eval-batches 1 --precision bf16 --seq 32 --batch 8 --steps "$steps" \
        --model mini --prefetch 67108864 $METHOD_OPTIONS --log "$log" "$@" > "$scratch/out" 2>&1 ||
        stop "$(tail -3 "$scratch/out")"
}

# plan OPTIONS...: zf-plan's JSON of each variant of the step; BERT-mini is 4 layers of 256.
plan() {
    "$PWD/build/zf-plan" --json --layers 4 --hidden 256 --heads 4 --seq 32 --batch 2 --world 4 \
        --vocab "$(wc -l < "$scratch/vocab.txt")" --precision bf16 --clip 1 \
        --prefetch 64M "$@" > "$scratch/plan" || exit 1
}

# flat FILE: measured rates for ranks that are one node to the plan: all send over the link between
# nodes, two thirds of their bytes.
flat() {
    awk '{ key = $1; gsub(/[":]/, "", key); value = $2; sub(/,/, "", value); end = $2 ~ /,/ ? "," : "" }
        NR == FNR { rates[key] = value; next }
        key == "link_bytes_per_s" { print "  \"" key "\": " 1.5 * rates["between_bytes_per_s"] end; next }
        key == "link_latency_s" { print "  \"" key "\": " rates["between_latency_s"] end; next }
        { print }' "$1" "$1"
}

# turns NAME: how often each variant of its step comes, of the numbers that are read.
turns() {
    case $1 in
        zero_one_adam) awk 'NR > 1 { s += $1 * (NR == 2 ? 1 : 3) } END { print s / 4 }' ;;
        *) awk '{ last = $1 } END { print last }' ;;
    esac
}

foretold_ms() {
    sed -n 's/^    "seconds": \([0-9.e+-]*\),$/\1/p' "$scratch/plan" | awk '{ print 1000 * $1 }' |
        turns "$1"
}

# foretold_bytes NAME OBJECT SHARE: of the bytes that stand in this object of the plan.
foretold_bytes() {
    sed -n "/^  \"$2\": {/,/^  }/p" "$scratch/plan" | awk -v share="$3" '
        /}/ { print s * share; s = 0 }
        /: [0-9]+,*$/ { gsub(/[^0-9]/, ""); s += $0 }' | turns "$1" | awk '{ printf "%d", $1 }'
}

# method NAME STAGE1 SCHEDULE OPTIONS...: a row of the table, if it is wanted. STAGE1: the row of
# plain stage 1 with which it is compared. SCHEDULE: options that say which steps are of which kind.
method() {
    name=$1
    base=$2
    schedule=$3
    shift 3
    case " ${METHODS:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    nodes='--ranks-per-node 2' cost=$scratch/cost object=between_nodes share=1
    case $name in
        onebit_* | zero_one_*) nodes='--nodes 1' cost=$scratch/flat object=traffic share=0.6666667 ;;
    esac
    # shellcheck disable=SC2086
    train "$name" $nodes $schedule "$@"
    ms=$(step_ms "$scratch/$name.csv")
    echo "$ms" > "$scratch/$name.ms"
    # shellcheck disable=SC2086
    plan $nodes --cost "$cost" "$@"
    echo "$rate $name $ms $(foretold_ms "$name") $(foretold_bytes "$name" $object $share)" \
        "$(cat "$scratch/stage3.ms" 2> "$scratch/error" || echo 0)" \
        "$(cat "$scratch/$base.ms" 2> "$scratch/error" || echo 0)" | awk '
        function times(ms) { return ms ? sprintf("%10.2f", ms / $3) : sprintf("%10s", "-") }
        { printf "%-10s%-18s%12.1f%12.1f%16d%s%s\n", $1, $2, $3, $4, $5, times($6), times($7) }'
}

methods() {
    METHOD_OPTIONS=${METHOD_OPTIONS:-}
    tokens=$((8 * 32))
    awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) { n = 6 + int(rand() * 10)
        for (k = 0; k < n; k++) printf "%s%c%c%c", k ? " " : "", 97 + int(rand() * 26),
            97 + int(rand() * 5), 97 + int(rand() * 26)
        print ""; if (i % 12 == 11) print "" } }' > "$scratch/text"
    "$program" vocab --corpus "$scratch/text" --vocab "$scratch/vocab.txt" --size 2000 > "$scratch/out" 2>&1 ||
        stop "$(tail -3 "$scratch/out")"
    printf '%-10s%-18s%12s%12s%16s%10s%10s\n' link method 'ms a step' 'predicted' 'between nodes' \
        '/ stage3' '/ stage1'
    for rate in "$@"; do
        rm -f "$scratch"/*.ms
        shape "$rate"
        train measure --ranks-per-node 2 --zero 3 --cost measure --save-cost "$scratch/cost"
        flat "$scratch/cost" > "$scratch/flat"
        method stage3 stage1 '' --zero 3
        method stage1 stage1 '' --zero 1
        method hpz stage1 '' --zero 3 --zero-hpz
        method qwz stage1 '' --zero 3 --zero-quantized-weights
        method qgz stage1 '' --zero 3 --zero-quantized-gradients
        method zero++ stage1 '' --zero 3 --zero-hpz --zero-quantized-weights \
            --zero-quantized-gradients
        method onebit_adam stage1 '--freeze-step 2' --zero 0 --optimizer onebit_adam
        method zero_one_adam stage1 \
            '--freeze-step 1 --local-step-scaler 1 --local-step-clipper 4' \
            --zero 0 --optimizer zero_one_adam
        method lamb lamb '' --zero 1 --optimizer lamb
        method onebit_lamb lamb '--freeze-step 2' --zero 0 --optimizer onebit_lamb
    done
}

if [ $mode = methods ]; then
    [ $# -gt 0 ] || set -- 1gbit 100mbit
    methods "$@"
    exit 0
fi

# ---------------------------------------------------------------------------------- overlap

round=0
while [ "$round" -lt "$rounds" ]; do
    shape none
    line=$(overlap --stages 3 --rounds 1 --rate 1e9 "$@")
    compute=$(echo "$line" | field exposed_ms)
    bytes=$(echo "$line" | field sent_bytes)
    rate=$(awk "BEGIN { printf \"%.0f\", $bytes / (0.0005 * $compute) }")
    shape "$((rate * 8))bit"
    overlap --stages 3 --rounds 1 --latency 0 --rate "$rate" --compute "$compute" "$@" |
        tee -a "$scratch/rounds"
    round=$((round + 1))
done
for name in bytes_per_s compute_ms communication_ms exposed_ms prefetched_ms hidden; do
    field $name < "$scratch/rounds" | sort -n |
        awk -v name=$name '{ x[NR] = $1 } END { printf "%-18s%14s\n", name, x[int((NR + 1) / 2)] }'
done
