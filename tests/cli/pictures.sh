#!/bin/sh
# Pictures of zf-opt and zf-plan, and pages: sh tests/cli/pictures.sh BUILD [--bless]. Pictures are
# XML, a small graph's are those of tests/golden/pictures/, and numbers are those of the plan. Pages
# are opened in Chromium. Prints "N passed, N failed", and ", N skipped" where xmllint (Debian:
# libxml2-utils) or Chromium (Debian: chromium) is missing.
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

# ------------------------------------------------------------------------------------------ pages

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
# visit PAGE WIDTH OPTIONS...: with a profile of its own, and without what a browser asks for
# itself.
visit() {
    page=$1
    width=$2
    shift 2
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars \
        --disable-background-networking --disable-component-update --disable-sync \
        --disable-extensions --user-data-dir="$work/profile" --virtual-time-budget=1000 \
        --window-size="$width",1000 "$@" "file://$page" 2> "$work/console"
}
# quiet PAGE: no message on the console, and no request. What the browser asks for itself has no
# origin; what a page asks for has that of a file, which is null.
quiet() {
    visit "$1" 1600 --enable-logging=stderr --log-net-log="$work/net.json" \
        --screenshot="$work/page.png" > /dev/null && [ -s "$work/page.png" ] || return 1
    if grep -a CONSOLE "$work/console"; then return 1; fi
    grep -aq '"constants"' "$work/net.json" && ! grep -aoE '"initiator":"(null|file:)[^,]*' "$work/net.json"
}
# fits PAGE WIDTH: all lies in a page of this width, but for what scrolls by itself. A script in a
# copy of the page says where the last element ends; no window is narrower than 500.
fits() {
    cat > "$work/script" << END
<script>document.documentElement.style.width = "$2px"
var of = [...document.body.querySelectorAll("*")].filter(x => !x.closest(".wide"))
document.title = Math.ceil(Math.max(...of.map(x => x.getBoundingClientRect().right)))</script>
END
    sed "s/<meta http-equiv[^>]*>//; /<.body>/r $work/script" "$1" > "$work/wide.html"
    visit "$work/wide.html" 2000 --dump-dom > "$work/dom" || return 1
    found=$(sed -n 's/.*<title>\([0-9]*\)<.*/\1/p' "$work/dom")
    [ "${found:-99999}" -le "$2" ] || { echo "$found pixels"; return 1; }
}
if [ -n "$browser" ]; then
    "$build/zf-plan" --layers=2 --hidden=128 --heads=2 --seq=32 --vocab=512 --world=4 --zero=3 \
        --offload optimizer=host --html="$work/plan.html" > /dev/null
    awk 'BEGIN { print "step,loss,lr"; for (k = 1; k < 99; k++) print k "," 9 / k ",0.001" }' \
        > "$work/log.csv"
    "$build/zf-report" "$work/log.csv" > "$work/runs.html"
    for of in plan runs; do
        check "the page $of says nothing and asks for nothing" quiet "$work/$of.html"
        for wide in 320 2000; do
            check "the page $of fits $wide pixels" fits "$work/$of.html" $wide
        done
    done
    sed 's|<h1>|<img src="http://x.invalid/"><h1>|' "$work/plan.html" > "$work/asks.html"
    asks() { ! quiet "$work/asks.html"; }
    check 'a page that asks for a picture is noticed' asks
else
    skipped=$((skipped + 1))
fi

echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
