# Included by tests of command lines: makes a folder $work, whose name has a space in it and which
# is removed at the end, and defines checks, which are counted.
top=$(mktemp -d)
work="$top/a b"
mkdir "$work"
trap 'rm -rf "$top"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0

# check NAME COMMAND...: the command succeeds; if not, its output and that of `run` are shown.
check() {
    name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        cat "$work/out" "$work/err" | tail -n 20 | sed 's/^/        /'
    fi
}

# run COMMAND...: its output goes to out and err, its status to $status; `run` itself succeeds.
run() {
    "$@" > "$work/out" 2> "$work/err" < /dev/null
    status=$?
    return 0
}

# ends STATUS COMMAND...: it ends with this status; otherwise as `run`.
ends() {
    wanted=$1
    shift
    run "$@"
    [ $status = "$wanted" ]
}

# fails STATUS TEXT COMMAND...: it ends with this status and prints only this line, to stderr.
fails() {
    wanted=$1
    text=$2
    shift 2
    ends "$wanted" "$@" && [ "$(cat "$work/err")" = "$text" ]
}

# To be called last.
total() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}

# refuses NAME TEXT COMMAND...: it ends with 1 or 2, and the text is in its message.
refuses() {
    name=$1
    text=$2
    shift 2
    check "$name" refused_as "$@"
}
refused_as() {
    run "$@"
    { [ $status = 1 ] || [ $status = 2 ]; } && grep -Fq -- "$text" "$work/err"
}
