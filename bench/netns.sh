#!/bin/sh
# How much of the communication is hidden over a real link: two processes in two network namespaces,
# joined by a veth pair whose ends send no faster than a token bucket lets them.
#
#     make build/bench/overlap && sudo sh bench/netns.sh [ROUNDS [overlap's options...]]
#
# A round takes the step on the fast pair (compute), sets the rate at which the plan's bytes take
# half of that, and takes the steps on the slow pair without and with prefetch. Medians of rounds.
# Needs root, ip and tc (Debian: iproute2) and Open MPI.
set -eu
export LC_ALL=C

rounds=${1:-5}
[ $# -eq 0 ] || shift
program=$PWD/build/bench/overlap
one=zf-bench-$$-0
two=zf-bench-$$-1

stop() {
    echo "netns.sh: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || stop 'namespaces need root: sudo sh bench/netns.sh'
[ -x "$program" ] || stop 'make build/bench/overlap builds what this measures'
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

# overlap OPTIONS...: runs it on both.
overlap() {
    ip netns exec "$one" mpirun --allow-run-as-root --bind-to none --host 10.77.0.1,10.77.0.2 \
        --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include 10.77.0.0/24 \
        --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 \
        -x LC_ALL "$program" --real --json "$@" < /dev/null
}

# field NAME: of the JSON that is read.
field() {
    sed -n "s/.*\"$1\": \([-0-9.]*\).*/\1/p"
}

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
