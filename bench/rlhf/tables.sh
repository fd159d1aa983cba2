# What the reports of bench/rlhf.sh have in common: `what`, `seeds` and WORK are set.
# shellcheck shell=sh
# shellcheck disable=SC2154 # of the files that read this one

kept() { sed -n "s/^$2 //p" "$WORK/$what-$1/kept" | tail -n 1; }
line() { sed -n "$2p" "$WORK/$what-$1/$3"; }
# row TITLE NAME FORM: a row of the table, and the mean over the seeds.
row() {
    printf '| %s |' "$1"
    for seed in $seeds; do printf ' %s |' "$(kept "$seed" "$2")"; done
    for seed in $seeds; do kept "$seed" "$2"; done |
        awk -v form="$3" '{ sum += $1 } END { printf " " form " |\n", sum / NR }'
}
# head_of_rows: the first two lines of that table.
head_of_rows() {
    echo "| seed | $(echo "$seeds" | sed 's/ / | /g') | mean |"
    echo "|---|$(echo "$seeds" | sed 's/[^ ]*/---|/g; s/ //g')---|"
}
# drawn SEED OF: ten numbers of 1 to OF, that the seed draws.
drawn() {
    awk -v seed="$1" -v of="$2" 'BEGIN {
        for (state = seed * 7919 + 1; n < 10 && n < of; n += !seen[at]++) {
            state = state * 48271 % 2147483647
            at = state % of + 1
            if (!seen[at]) print at
        }
    }'
}
# conditions PRECISION: of the machine and of training, for the first lines.
conditions() {
    echo "$(date -u +%Y-%m-%d), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)," \
        "$(getconf _NPROCESSORS_ONLN) processors, THREADS=$THREADS, $1."
}
# curve NAME SVG LOG...: a column of logs over steps, as a picture.
curve() {
    name=$1
    picture=$2
    shift 2
    build/zf-report "$@" > "$WORK/curves.html"
    awk -f bench/rlhf/curve.awk -v name="$name" "$WORK/curves.html" > "$picture"
}
