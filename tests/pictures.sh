#!/bin/sh
# Pictures of zf-opt and zf-plan: sh tests/pictures.sh BUILD [--bless]. They are XML, a small
# graph's are those of tests/golden/pictures/, and numbers are those of the plan. Prints "N passed, N
# failed", and ", N skipped" where xmllint (Debian: libxml2-utils) is missing.
set -u
build=$1
golden=tests/golden/pictures
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
skipped=0

# check NAME COMMAND...
check() {
    name=$1
    shift
    if "$@" > "$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        cat "$work/said"
    fi
}
is_xml() {
    if command -v xmllint > /dev/null; then check "$1 is XML" xmllint --noout "$1"
    else skipped=$((skipped + 1)); fi
}
has() { grep -qF -e "$2" "$1" || { echo "$1 lacks '$2'"; return 1; }; }

check 'zf-opt draws' "$build/zf-opt" -q --svg="$work/graph.svg" --dot="$work/graph.dot" \
    'fuse; autograd loss; sgd lr' "$golden/graph.zf"
[ "${2:-}" != --bless ] || cp "$work/graph.svg" "$work/graph.dot" "$golden"
check 'the picture is that of before' cmp "$work/graph.svg" "$golden/graph.svg"
check 'the text for dot is that of before' cmp "$work/graph.dot" "$golden/graph.dot"
is_xml "$work/graph.svg"
check 'without passes there is one graph' \
    "$build/zf-opt" -q --check --svg="$work/one.svg" "$golden/graph.zf"
check 'with a box for each node' test "$(grep -c 'rx="5"' "$work/one.svg")" = \
    "$(grep -c . "$golden/graph.zf")"
check 'a file that cannot be written is an error' \
    sh -c '! "$0" -q --check --svg=/nonesuch/a.svg "$1"' "$build/zf-opt" "$golden/graph.zf"

# number KEY: of the plan.
number() { sed -n "s/^  \"$1\": \([0-9.e+-]*\),*$/\1/p" "$work/plan.json"; }
"$build/zf-plan" --layers=2 --hidden=128 --heads=2 --seq=32 --vocab=512 --world=4 --zero=2 \
    --prefetch=1M --json --svg="$work/plan.svg" > "$work/plan.json"
is_xml "$work/plan.svg"
check 'the peak is that of the plan' has "$work/plan.svg" "peak: $(number live) bytes"
check 'so are the bytes that are allocated' \
    has "$work/plan.svg" "device memory: $(number peak) bytes are allocated"
for kind in parameters gradients optimizer activations communication; do
    check "$kind" has "$work/plan.svg" "$kind: at most $(number $kind) bytes"
done
for lane in compute link; do check "a lane of $lane" has "$work/plan.svg" ">$lane</text>"; done

echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
