#!/bin/sh
# Private names have one meaning in all units (make test): sh tests/house/names.sh
#
# The library's begin with zfi_ or ZFI_, those of the CUDA unit with zfd_ or ZFD_, but for tables that
# both include. Communicators that are compiled on their own share files with the library; what those
# do not define, they name otherwise than the library does.
set -u
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

public="zeroflow.h $(find api -name '*.h' 2> /dev/null)"
device="zeroflow_cuda.cu $(find cuda ops -name '*.cu')"
processes='zeroflow_mpi.c zeroflow_nccl.c comm/process.c comm/rendezvous.c'
tables='cpu/normal.c'
shared='base/error.c base/printable.c comm/clock.c comm/ranks.c'
library=$(find base graph cpu io ops ir passes plan comm store run nn -name '*.c' 2> /dev/null |
    grep -v -e '^comm/process.c$' -e '^comm/rendezvous.c$')

# The names in these files that begin with zf; the table of operators makes ZF_OP_... of its rows.
names() { cat "$@" | grep -oE '\b(zf|ZF)[A-Za-z]?_\w+' | grep -Ev '^ZF_(OP|AT)_|_$' | sort -u; }
# shellcheck disable=SC2086
{
    names $public > "$work/public"
    names $tables > "$work/tables"
    names $device | comm -23 - "$work/tables" > "$work/device"
    names $library > "$work/library"
    names $processes > "$work/processes"
    names $shared > "$work/shared"
}
[ -s "$work/public" ] && [ -s "$work/device" ] && [ -s "$work/library" ] || {
    echo 'FAILED: there are no sources'
    exit 1
}

# rule TEXT FILES: each line that is read is a name that these files should not have.
rule() {
    while read -r name; do
        failed=1
        # shellcheck disable=SC2086
        echo "FAILED $(grep -nwm 1 -- "$name" $2 | head -n 1 | cut -d : -f 1,2): $name: $1"
    done
}
comm -23 "$work/device" "$work/public" | grep -Ev '^(zfd|ZFD)_' > "$work/bad"
rule 'a private name of the CUDA unit begins with zfd_ or ZFD_' "$device" < "$work/bad"
sort -u "$work/library" "$work/processes" | grep -E '^(zfd|ZFD)_' > "$work/bad"
rule 'zfd_ and ZFD_ belong to the CUDA unit' "$library $processes" < "$work/bad"
sort -u "$work/public" "$work/shared" | comm -13 - "$work/processes" |
    comm -12 - "$work/library" > "$work/bad"
rule 'the library has another of this name' "$processes" < "$work/bad"
kernels=$(find cuda ops -name '*.cu' ! -name gpu.cu ! -path 'cuda/hip/*')
# shellcheck disable=SC2086
grep -ohE '__(shfl|ballot|any|all|match|reduce|syncwarp|activemask|builtin_amdgcn_(ds|mb|ba|wave))\w*|0xffffffffu\b|emulation::' $kernels |
    sort -u > "$work/bad"
rule 'operations of a warp are those of cuda/gpu.cu' "$kernels" < "$work/bad"
[ $failed = 0 ] && echo "$(wc -l < "$work/device") names of the CUDA unit, $(
    wc -l < "$work/library") of the library"
exit $failed
