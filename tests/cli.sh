# For tests of command lines, which include it: a folder $work, whose name has a space in it and
# which goes at the end, and how checks are made and counted.
top=$(mktemp -d)
work="$top/a b"
mkdir "$work"
trap 'rm -rf "$top"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0

# check NAME COMMAND...: it succeeds; what it and `run` printed is shown where it does not.
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

# run COMMAND...: leaves what it prints in out and err, and its status in $status; is good itself.
run() {
    "$@" > "$work/out" 2> "$work/err" < /dev/null
    status=$?
    return 0
}

# ends STATUS COMMAND...: it ends so; the rest as of `run`.
ends() {
    wanted=$1
    shift
    run "$@"
    [ $status = "$wanted" ]
}

# fails STATUS TEXT COMMAND...: it ends so and prints nothing but that line, to the standard error.
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
