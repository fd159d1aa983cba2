#!/bin/sh
# Runs the unit tests that a change touches: sh tests/house/touched.sh PROGRAM [--list]
#
# The change is what differs from the merge base of HEAD and main, committed or not, and files that
# git does not know. Of each changed file these tests are run; where there are none, all are:
#
#     tests/FOLDER/X.c                those of the file
#     tests/passes/X.zf               that case
#     tests/golden/X/...              those of the files that name the folder
#     tests/FOLDER/X.h                those of the files that include it
#     FOLDER/A_B.c, FOLDER/A.h        those whose name or file contains A_B or A, without a plural's
#                                     s; those of the test files that call a public function of the
#                                     file, or, if it has none, of FOLDER/A.c; and those of the
#                                     operators that are defined in it. Callers that take long
#                                     without optimisation ($slow) are left to make unit
#     *.md, *.sh, docs/, bench/         none
#
# --list prints the words that select them.
# shellcheck disable=SC2086
set -eu

slow='tests/(attention/attention|inside/matmul|models/bert|ops/head|programs/cost|rewrites/random).c'
slow_tests='-bert_plan_base -bert_plan_medium'

program=$1
units="$(sh tests/house/units.sh) $(ls tests/inside/*.c)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

base=$(git merge-base HEAD main 2> /dev/null || git merge-base HEAD origin/main 2> /dev/null ||
    echo HEAD)
{
    git diff --name-only "$base"
    git ls-files --others --exclude-standard
} | sort -u > "$work/changed"

# callers FILE: the test files that call a public function which it defines.
callers() {
    [ -f "$1" ] || return 0
    sed -n 's/^ZF_API .*[ *]\(zf_[a-z0-9_]*\)(.*/\1(/p' "$1" > "$work/functions"
    [ ! -s "$work/functions" ] || grep -lF -f "$work/functions" $units |
        grep -Evx "$slow" || true
}

# of_source FILE: the words for a source of the library, its tools or its samples.
of_source() {
    stem=$(basename "$1")
    stem=${stem%.*}
    first=${stem%%_*}
    called=$(callers "$1")
    [ -n "$called" ] || called=$(callers "$(dirname "$1")/$first.c")
    operators=
    [ ! -f "$1" ] || operators=$(sed -n 's/^ZFI_OPERATOR(\([a-z0-9_]*\),.*/\1/p' "$1")
    for word in "$stem" "${first%s}" $operators $called; do
        [ -z "$("$program" --list "$word" 2> /dev/null)" ] || echo "$word"
    done
}

# run WORD...: the tests, on every processor; the last line is that of a test program.
run() {
    parts=$(getconf _NPROCESSORS_ONLN)
    for part in $(seq "$parts"); do
        "$program" --part="$part/$parts" "$@" > "$work/said.$part" 2>&1 || touch "$work/failed" &
    done
    wait
    cat "$work"/said.* | grep -v '^[0-9]* passed, [0-9]* failed' || true
    cat "$work"/said.* | awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5 }
        END { printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : "" }'
    [ ! -e "$work/failed" ]
}

while read -r file; do
    case $file in
    *.md | *.sh | *.py | docs/* | bench/* | .*) ;;
    tests/consumers/* | tests/docs/* | tests/fuzz/* | tests/hip/* | tests/house/*) ;;
    tests/mpi/* | tests/mutants/*) ;;
    *.cu | tests/cuda* | tests/emulation/* | zeroflow_*.c) echo "$file" >> "$work/elsewhere" ;;
    zeroflow.h | api/* | tests/inside/unit.c) echo all ;;
    tests/support/main.c | tests/support/test.h | tests/support/select.h) echo all ;;
    tests/golden/*/*) grep -l "$(echo "$file" | cut -d/ -f3)/" $units || echo all ;;
    tests/*.h) grep -lE "[\"/]$(basename "$file")\"" $units || echo all ;;
    tests/*.c | tests/passes/*.zf) [ ! -f "$file" ] || echo "$file" ;;
    *.c | *.h)
        of_source "$file" > "$work/of"
        if [ -s "$work/of" ]; then cat "$work/of"; else echo all; fi
        ;;
    Makefile | compile_commands.json) ;;
    *) echo all ;;
    esac
done < "$work/changed" | sort -u | grep . > "$work/words" || true

[ ! -s "$work/elsewhere" ] ||
    echo "not tested here: $(paste -s -d ' ' "$work/elsewhere") (make emulated cuda-check)"
if [ ! -s "$work/words" ]; then
    echo "no unit test: $(wc -l < "$work/changed") files differ from $base"
elif grep -qx all "$work/words"; then
    echo 'all unit tests, in some minutes: a change that every test depends on'
    [ "${2:-}" = --list ] || run
else
    echo "tests of: $(paste -s -d ' ' "$work/words")"
    [ "${2:-}" = --list ] || run $(cat "$work/words") $slow_tests
fi
