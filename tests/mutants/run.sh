#!/bin/sh
# Plants mistakes, one at a time, each of which a test must notice (make mutants):
# sh tests/mutants/run.sh [WORD], of those mistakes whose test or file has the word in it.
# sh tests/mutants/run.sh --list only checks that each line of the list is in its file exactly once.
#
# `list` has the mistakes: the test, the file, the line as it `is`, and as it should `not` be (may
# be empty). The line is in the file once; spaces around it do not count. A copy of the tree in
# build/mutants gets them, compiled without optimization. A mistake passes when its test fails. The
# last line is "N passed, N failed".
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
        test) test=$value ;;
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

builds() {
    make -s --no-print-directory -C $tree QUIET=yes CC=clang CFLAGS=-O0 WERROR= MPICC= \
        -j"$(getconf _NPROCESSORS_ONLN)" build/tests > build/mutants.log 2>&1
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
    case "$test $file" in *"$word"*) ;; *) return ;; esac
    if ! changed > "$tree/$file"; then
        survives 'the line is not there, or more than once'
    elif ! builds; then
        survives 'it does not compile with it'
        tail -n 5 build/mutants.log
    elif (cd $tree && timeout 300 build/tests $test) > build/mutants.log 2>&1; then
        survives "$test does not notice"
    else
        passed=$((passed + 1))
        echo "ok $test: $file"
    fi
    cp "$file" "$tree/$file"
}

# Without mistakes every test passes, and there is one of that name.
named() {
    case "$test $file" in *"$word"*) ;; *) return ;; esac
    (cd $tree && build/tests $test) 2>&1 | tail -n 1 | grep -q '^[1-9][0-9]* passed, 0 failed' &&
        return
    failed=$((failed + 1))
    echo "FAILED $test without a mistake"
}
if builds; then
    each named
    [ $failed != 0 ] || each plant
else
    cat build/mutants.log
    failed=1
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
