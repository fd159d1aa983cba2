# Programs compiled by gcc, which is slower; run.sh compiles one with the implementation in it. Part
# of tests/run.sh.
# shellcheck shell=sh disable=SC2086,SC2154
. tests/consumers/common.sh

installs > "$work/said" 2>&1 # run.sh checks it
check 'the implementation in a file of its own, gcc' \
    gcc $strict -O0 "$include" -c $here/unit.c -o "$work/unit.o"
check 'two files of one program, gcc' builds gcc $strict "$include" $here/app.c "$work/unit.o"
check 'an example by the command that it names, gcc' builds gcc -I. examples/mlp.c
check 'private to a file, gcc' gcc $strict -O0 "$include" -DZF_API=static -DZEROFLOW_IMPLEMENTATION -fsyntax-only $here/app.c
