#!/bin/sh
# Over a real link: processes in two network namespaces, joined by a veth pair whose ends send no
# faster than a token bucket lets them.
#
#     make build/bert build/zf-plan && sudo sh bench/netns.sh methods [STEPS [RATE...]]
#
# The time of a step of BERT-mini in bf16, for each method of sending less and each RATE of the link
# (1gbit 100mbit): two nodes of two ranks. Beside it, what zf-plan foretells by the rates that the
# ranks measure, its bytes between nodes, and the time against plain stage 3. STEPS (12) are taken,
# and the median counts. Options for all methods are in METHOD_OPTIONS ("--model tiny --batch 8").
#
#     make build/bench/overlap && sudo sh bench/netns.sh [ROUNDS [overlap's options...]]
#
# How much of the communication is hidden, of one process in each. A round takes the step on the fast pair (compute), sets the rate at which the plan's bytes take
# half of that, and takes the steps on the slow pair without and with prefetch. Medians of rounds.
# Needs root, ip and tc (Debian: iproute2) and Open MPI.
set -eu
export LC_ALL=C

mode=overlap
[ "${1:-}" != methods ] || mode=methods
[ $mode = overlap ] || shift
rounds=${1:-5}
steps=${1:-12}
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

# mpirun stands in the first namespace; its agent for the second host is a command in the other.
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

# step_ms FILE: the median of the steps of a log, without the first two.
step_ms() {
    awk -F, -v tokens="$tokens" 'NR == 1 { for (k = 1; k <= NF; k++) if ($k == "tokens_per_s") at = k }
        NR > 3 { print 1000 * tokens / $at }' "$1" | sort -n | awk '{ x[NR] = $1 }
        END { print x[int((NR + 1) / 2)] }'
}

# train NAME OPTIONS...: the log of a run on both.
train() {
    log=$scratch/$1.csv
    shift
    # shellcheck disable=SC2086 # lists of options
    on_both 2 "$program" pretrain --corpus "$scratch/text" --vocab "$scratch/vocab.txt" --quiet \
        --eval-batches 1 --precision bf16 --seq 32 --batch 8 --ranks-per-node 2 --steps "$steps" \
        --model mini --prefetch 67108864 $METHOD_OPTIONS --log "$log" "$@" > "$scratch/out" 2>&1 ||
        stop "$(tail -3 "$scratch/out")"
}

# plan KEY OPTIONS...: of zf-plan's JSON; BERT-mini is 4 layers of 256.
plan() {
    key=$1
    shift
    "$PWD/build/zf-plan" --json --layers 4 --hidden 256 --heads 4 --seq 32 --batch 2 --world 4 \
        --vocab "$(wc -l < "$scratch/vocab.txt")" --precision bf16 --clip 1 --ranks-per-node 2 \
        --prefetch 64M --cost "$scratch/cost" "$@" > "$scratch/plan" || exit 1
    case $key in
        ms) sed -n 's/^    "seconds": \([0-9.e+-]*\),$/\1/p' "$scratch/plan" |
            awk '{ print 1000 * $1 }' ;;
        *) sed -n '/"between_nodes"/,/}/s/^    "[a-z_]*": \([0-9]*\),*$/\1/p' "$scratch/plan" |
            awk '{ s += $1 } END { printf "%d", s }' ;;
    esac
}

# method NAME OPTIONS...: a row of the table.
method() {
    name=$1
    shift
    train "$name" "$@"
    ms=$(step_ms "$scratch/$name.csv")
    [ "$name" != stage3 ] || plain=$ms
    echo "$rate $name $ms $(plan ms "$@") $(plan bytes "$@") ${plain:-$ms}" | awk '
        { printf "%-10s%-20s%12.1f%12.1f%16d%9.2f\n", $1, $2, $3, $4, $5, $6 / $3 }'
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
    printf '%-10s%-20s%12s%12s%16s%9s\n' link method 'ms a step' 'foretold' 'between nodes' 'times'
    for rate in "$@"; do
        shape "$rate"
        train measure --zero 3 --cost measure --save-cost "$scratch/cost"
        plain=
        method stage3 --zero 3
        method stage1 --zero 1
        method hpz --zero 3 --zero-hpz
        method qwz --zero 3 --zero-quantized-weights
        method qgz --zero 3 --zero-quantized-gradients
        method zero++ --zero 3 --zero-hpz --zero-quantized-weights --zero-quantized-gradients
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
