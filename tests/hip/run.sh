#!/bin/sh
# What the kernels of a code object for AMD take: sh tests/hip/run.sh ARCHITECTURE FILE
# Whether zeroflow_nccl.c compiles for RCCL: sh tests/hip/run.sh rccl (by rccl.h, or its
# declarations in tests/hip where there is none; and by nccl.h, where there is one, whose calls are
# the same) Whether texts name what is NVIDIA's: sh tests/hip/run.sh texts
#
# The wave has as many lanes as cuda/hip/device.cu says; no kernel takes more than 64 KiB of local
# memory (what launches ask for is checked by tests in the emulation); and none uses private memory,
# to which registers are spilled. Scalars are spilled to registers. Matrix cores are used by kernels
# of the architectures that have them.
set -eu
export LC_ALL=C
architecture=$1
include=$(sh tools/hip.sh --include)
headers=$([ "$include" = /usr/include ] || echo "-isystem $include")
compiles() {
    # shellcheck disable=SC2086 # words
    ${CC:-gcc} -std=c11 -Wall -Wextra -pedantic -Wshadow -Werror -D__HIP_PLATFORM_AMD__ -DWITH_NCCL \
        -DWITH_HIP -I. "$@" $headers -fsyntax-only zeroflow_nccl.c examples/frame/ranks/nccl.c
}
if [ "$architecture" = rccl ]; then
    nccl=${NCCL_INCLUDE:-/usr/local/cuda/include}
    if [ -e "$include/rccl/rccl.h" ]; then compiles; else compiles -Itests/hip; fi
    [ ! -e "$nccl/nccl.h" ] || compiles -DHIP_BY_NCCL -Itests/hip -idirafter "$nccl"
    exit
fi
# Strings of our own files as a compiler for HIP sees them. Names of calls become HIP's when they
# are used (cuda/hip/device.cu).
if [ "$architecture" = texts ]; then
    sh tools/hip.sh gfx90a --cuda-host-only -E -x hip -I. zeroflow_cuda.cu | awk '
        /^# [0-9]+ "/ { file = $3; next }
        file !~ /^"\// {
            rest = $0
            while (match(rest, /"([^"\\]|\\.)*"/)) {
                text = substr(rest, RSTART, RLENGTH)
                strings++
                hip += text ~ /HIP|AMD/
                if (text ~ /CUDA|NVIDIA|cuBLAS|NCCL/) { print file ": " text; bad = 1 }
                rest = substr(rest, RSTART + RLENGTH)
            }
        }
        END { exit bad || strings < 100 || hip < 10 }'
    exit
fi
object=$2
case $architecture in
gfx9*) wave=64 ;;
*) wave=32 ;;
esac
case $architecture in
gfx90a | gfx942 | gfx950) cores=mfma ;;
gfx11*) cores=wmma ;;
*) cores=none ;;
esac
# Both types, of products and of both passes of attention.
sh tools/hip.sh --tool objdump -d "$object" | awk -v cores=$cores -v of="$architecture" '
    /^[0-9a-f]+ </ { kernel = $2 }
    match($0, /v_(mfma|wmma)_f32_16x16x16_?(bf16|f16)/) {
        kind = substr($0, RSTART + 2, 4)
        type = $0 ~ /bf16/ ? "bf16" : "f16"
        part = kernel ~ /gemm_plain/ ? "gemm" : kernel ~ /forward/ ? "forward" : "backward"
        if (kind == cores) has[part type]++
        else { print of ": " kind " in " kernel; bad = 1 }
    }
    END {
        for (i in has) kinds++
        if (kinds != (cores == "none" ? 0 : 6)) { print of ": " kinds + 0 " of 6 uses of " cores; bad = 1 }
        exit bad
    }'
sh tools/hip.sh --tool readelf --notes "$object" | awk -v wave=$wave -v of="$architecture" '
    function end() {
        if (name == "") return
        kernels++
        if (lanes != wave) { print name ": " lanes " lanes, not " wave; bad = 1 }
        if (local > 65536) { print name ": " local " bytes of local memory"; bad = 1 }
        if (private) { print name ": " private " bytes of private memory"; bad = 1 }
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
