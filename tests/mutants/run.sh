#!/bin/sh
# Plants mistakes, one at a time, each of which a test must notice (make mutants):
# sh tests/mutants/run.sh [WORD], of those mistakes whose test or file has the word in it.
# sh tests/mutants/run.sh --list only checks that each line of the list is in its file exactly once.
#
# `list` has the mistakes: the test, the file, the line as it `is`, and as it should `not` be (may
# be empty). The line is in the file once; spaces around it do not count. `flag`: of /proc/cpuinfo,
# without which the processor does not run the line, and the mistake is left out. A copy of the tree in
# build/mutants gets them, compiled without optimization. A mistake passes when its test fails. The
# last line is "N passed, N failed".
#
# Tests of CUDA (cuda_..., nccl_..., emulation_...) are those of build/emulated; without CUDA's headers
# they are left out.
#
# What `test` names is split into words on purpose.
# shellcheck disable=SC2086
set -u
export LC_ALL=C

word=${1:-}
tree=build/mutants
list=tests/mutants/list
passed=0
failed=0

files() { find . \( -name build -o -name dist -o -name .git \) -prune -o -type f -print; }

each() { # COMMAND, for every mistake of the list
    while read -r key value; do
        case $key in
        test) test=$value flag= ;;
        flag) flag=$value ;;
        file) file=$value ;;
        is) is=$value ;;
        not) not=$value && "$@" < /dev/null ;;
        esac
    done < $list
}

# The file with `not` in the place of `is`; fails where that is not there, or more than once.
changed() {
    IS=$is NOT=$not awk '
        { line = $0; gsub(/^[ \t]+|[ \t]+$/, "", line) }
        line == ENVIRON["IS"] { n++; print ENVIRON["NOT"]; next }
        { print }
        END { exit n != 1 }' "$file"
}

is_there() {
    if changed > /dev/null; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $file: not there, or more than once: $is"
    fi
}
if [ "$word" = --list ]; then
    each is_there
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
fi

# The copy, as the tree is; what has not changed keeps its time.
mkdir -p $tree
files | while read -r file; do
    cmp -s "$file" "$tree/$file" || { mkdir -p "$tree/${file%/*}" && cp "$file" "$tree/$file"; }
done
(cd $tree && files) | while read -r file; do [ -e "$file" ] || rm "$tree/$file"; done

# The program that has the test.
program() {
    case $test in
    cuda_* | nccl_* | emulation_*) echo build/emulated/tests ;;
    *) echo build/tests ;;
    esac
}
builds() {
    make -s --no-print-directory -C $tree QUIET=yes CC=clang CFLAGS=-O0 WERROR= MPICC= \
        -j"$(getconf _NPROCESSORS_ONLN)" "$(program)" > build/mutants.log 2>&1
}
# The mistake that was read is wanted, and its test can be built.
asked() {
    case "$test $file" in *"$word"*) ;; *) return 1 ;; esac
    [ -z "$flag" ] || grep -qw "$flag" /proc/cpuinfo || return
    [ "$(program)" = build/tests ] || [ -f "${CUDA_HEADER:-/usr/local/cuda/include/cuda_runtime.h}" ]
}

# survives WHY: the mistake that was read.
survives() {
    failed=$((failed + 1))
    echo "FAILED $file: $1"
    echo "    is   $is"
    echo "    not  $not"
}

# Plants the mistake that was read, and takes it back.
plant() {
    asked || return
    if ! changed > "$tree/$file"; then
        survives 'the line is not there, or more than once'
    elif ! builds; then
        survives 'it does not compile with it'
        tail -n 5 build/mutants.log
    elif (cd $tree && timeout 300 "$(program)" $test) > build/mutants.log 2>&1; then
        survives "$test does not notice"
    else
        passed=$((passed + 1))
        echo "ok $test: $file"
    fi
    cp "$file" "$tree/$file"
}

# Without mistakes every test passes, and there is one of that name.
named() {
    asked || return
    if ! builds; then
        cat build/mutants.log
        failed=$((failed + 1))
        return
    fi
    (cd $tree && "$(program)" $test) 2>&1 | tail -n 1 | grep -q '^[1-9][0-9]* passed, 0 failed' &&
        return
    failed=$((failed + 1))
    echo "FAILED $test without a mistake"
}
each named
[ $failed != 0 ] || each plant
echo "$passed passed, $failed failed"
[ $failed = 0 ]
