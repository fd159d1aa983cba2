#!/bin/sh
# What the kernels of a code object for AMD take: sh tests/hip.sh ARCHITECTURE FILE
# Whether zeroflow_nccl.c compiles for RCCL: sh tests/hip.sh rccl (with nccl.h where there is no rccl.h)
#
# The wave has as many lanes as cuda/hip/device.cu says; no kernel takes more than 64 KiB of local
# memory (what launches ask for is checked by tests in the emulation); and none uses private memory, to
# which registers are spilled, but for those in `private`. Scalars are spilled to registers.
set -eu
export LC_ALL=C
architecture=$1
if [ "$architecture" = rccl ]; then
    include=$(sh tools/hip.sh --include)
    nccl=/usr/local/cuda/include
    if [ -e "$include/rccl/rccl.h" ]; then shim=; else shim="-Itests/hip -idirafter $nccl"; fi
    [ -z "$shim" ] || [ -e $nccl/nccl.h ] || {
        echo 'rccl: skipped, there is neither rccl.h nor nccl.h'
        exit 0
    }
    [ "$include" = /usr/include ] || shim="$shim -isystem $include"
    # shellcheck disable=SC2086 # words
    ${CC:-gcc} -std=c11 -Wall -Wextra -pedantic -Wshadow -Werror -D__HIP_PLATFORM_AMD__ -I. $shim \
        -fsyntax-only zeroflow_nccl.c
    exit
fi
object=$2
case $architecture in
gfx9*) wave=64 ;;
*) wave=32 ;;
esac
# Parts of names of kernels, and the bytes of private memory that these may use: open sums by depth,
# and kernels for any width with blocks of 1024 threads, which have 128 registers.
private='sum_ranks_by_tree 272  norm_grad_kernel 64  fused_norm_kernelI.*Li0E 400
         sum_columns_kernelI19zfd_activation_rows 64'

sh tools/hip.sh --tool readelf --notes "$object" | awk -v wave=$wave -v may="$(echo "$private" | tr '\n' ' ')" -v of="$architecture" '
    BEGIN { parts = split(may, part, " ") }
    function allowed(name,   i) {
        for (i = 1; i < parts; i += 2) if (name ~ part[i]) return part[i + 1]
        return 0
    }
    function end() {
        if (name == "") return
        kernels++
        if (lanes != wave) { print name ": " lanes " lanes, not " wave; bad = 1 }
        if (local > 65536) { print name ": " local " bytes of local memory"; bad = 1 }
        if (private > allowed(name)) { print name ": " private " bytes of private memory"; bad = 1 }
        if (registers > most) most = registers
        name = ""
    }
    /^ *- \.(agpr_count|args):/ { end(); private = local = registers = lanes = 0 }
    $1 == ".name:" && $2 ~ /^_Z/ { name = $2 }
    $1 == ".private_segment_fixed_size:" { private = $2 }
    $1 == ".group_segment_fixed_size:" { local = $2 }
    $1 == ".vgpr_count:" { registers = $2 }
    $1 == ".wavefront_size:" { lanes = $2 }
    END {
        end()
        print of ": " kernels " kernels, waves of " wave ", at most " most " registers"
        exit bad || kernels < 100
    }'
