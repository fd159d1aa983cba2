#!/bin/sh
# What the machine code of CUDA's kernels contains, by kernel: products of warpgroups (HGMMA) and of
# warps (HMMA), and accesses to local memory (LDL, STL), where registers go that do not fit.
#
#     sh bench/cuda/sass.sh [OBJECT]      build/cuda/obj/zeroflow_cuda.o
#
# It fails where no kernel has HGMMA though code for 9.0a is there. CUOBJDUMP: another one than that
# on the path or beside nvcc.
set -eu
export LC_ALL=C
object=${1:-$(dirname "$0")/../../build/cuda/obj/zeroflow_cuda.o}
dump=${CUOBJDUMP:-$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)}
[ -f "$object" ] || { echo "sass.sh: there is no $object" >&2; exit 1; }
[ -x "$dump" ] || { echo "sass.sh: there is no $dump; CUOBJDUMP=... names one" >&2; exit 1; }
"$dump" -sass "$object" | awk '
    /arch = sm_/ { arch = $3; hopper = hopper || arch == "sm_90a" }
    $1 == "Function" { of = arch " " $3; kernels++ }
    / HGMMA/ { groups[of]++ }
    / HMMA/ { warps[of]++ }
    / (LDL|STL)[. ]/ { local_memory[of]++ }
    END {
        for (k in groups) all[k]; for (k in warps) all[k]; for (k in local_memory) all[k]
        row = "%-7s %6s %6s %8s  %s\n"
        printf row, "for", "HGMMA", "HMMA", "LDL, STL", "kernel"
        for (k in all) {
            split(k, name, " ")
            printf row, name[1], groups[k] + 0, warps[k] + 0, local_memory[k] + 0, name[2] | "sort"
            if (groups[k]) found++
            if (groups[k] && local_memory[k]) spill++
        }
        close("sort")
        printf "%d kernels; %d multiply by warpgroups, %d of these access local memory\n", kernels,
            found, spill
        exit hopper && !found
    }'
