#!/bin/sh
# The list of includes in zeroflow.h has each file of the library once, and goes through the folders
# once, from the lowest floor to the highest: sh tests/house/house.sh. Two files belong to the
# communicators of processes (zeroflow_mpi.c, zeroflow_nccl.c).
set -u
export LC_ALL=C

folders='base graph cpu io options ops ir passes plan store comm run nn'
listed=$(sed -n 's/^#include "\([a-z_0-9/]*\.c\)"$/\1/p' zeroflow.h | sort)
# shellcheck disable=SC2086 # words
there=$(find $folders -name '*.c' | grep -Ev "^comm/(process|rendezvous)\.c$" | sort)
[ "$listed" = "$there" ] || {
    echo 'zeroflow.h includes, and the folders have:'
    printf '%s\n%s\n' "$listed" "$there" | sort | uniq -c | grep -v '^ *2 '
    exit 1
}

twice=$(sed -n 's/^#include "\([a-z_0-9/]*\)\/[a-z_0-9]*\.c"$/\1/p' zeroflow.h | uniq | sort | uniq -d)
[ -z "$twice" ] || {
    echo "zeroflow.h enters more than once: $(echo $twice)"
    exit 1
}
