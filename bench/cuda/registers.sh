#!/bin/sh
# What CUDA's kernels take, as nvcc says: registers of a thread, bytes of its stack, and bytes that
# registers are spilled to and read again from; a line for each kernel, by architecture. Needs no GPU,
# and two minutes of a processor for each architecture.
#
#     sh bench/cuda/registers.sh [WORD...]      kernels whose names have a word; all
#     SOURCE=bench/cuda/attention.cu sh bench/cuda/registers.sh      those of attention alone
#
# ARCH="80 90a": architectures. NVCC: the compiler.
set -eu
export LC_ALL=C
root=$(cd "$(dirname "$0")/../.." && pwd)
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "registers.sh: there is no $nvcc; NVCC=... names one" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for arch in ${ARCH:-80 90a}; do
    "$nvcc" -std=c++17 -O3 -I"$root" -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v \
        -diag-suppress 177 -c "$root/${SOURCE:-zeroflow_cuda.cu}" -o "$work/object" \
        >"$work/$arch" 2>&1 ||
        { cat "$work/$arch" >&2; exit 1; }
    cat "$work/$arch" >>"$work/all"
done
words=$(IFS='|'; echo "$*")
c++filt <"$work/all" | awk -v words="$words" '
    /Compiling entry function/ {
        split($0, part, "\047")
        name = part[2]
        arch = part[4]
        sub(/^void /, "", name)
        if (!sub(/>\(.*/, ">", name)) sub(/\(.*/, "", name)
        wanted = words == "" || name ~ words
    }
    /bytes stack frame/ {
        for (i = 1; i < NF; i++)
            if ($i == "bytes") numbers[$(i + 1) " " $(i + 2)] = $(i - 1)
    }
    /Used [0-9]+ registers/ && wanted {
        for (i = 1; i < NF; i++) if ($i == "Used") used = $(i + 1)
        spills = numbers["spill stores,"] + numbers["spill loads"]
        printf "%-7s %4d %6d %7d %6d  %s\n", arch, used, numbers["stack frame,"],
            numbers["spill stores,"], numbers["spill loads"], name | "sort"
        if (spills) spilling++
        kernels++
        if (used > most) most = used
    }
    BEGIN { printf "%-7s %4s %6s %7s %6s  %s\n", "for", "regs", "stack", "spilled", "read", "kernel" }
    END {
        close("sort")
        printf "%d kernels; at most %d registers; %d spill\n", kernels, most, spilling
    }'
