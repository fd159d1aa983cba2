# What only gcc's compilation of the implementation can show, which takes long: with all kernels and
# without optimization, and where it is private to a file. run.sh does the rest with clang. Part of
# tests/run.sh.
# shellcheck shell=sh disable=SC2086,SC2154
. tests/consumers/common.sh

check 'an example by the command that it names, gcc' builds gcc $strict -I. examples/mlp.c
check 'private to a file, gcc' gcc $strict -O0 -Idist -DZF_API=static -DZEROFLOW_IMPLEMENTATION -fsyntax-only $here/app.c
