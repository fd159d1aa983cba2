#!/bin/sh
# What the machine code of CUDA's kernels contains, by kernel: products of warpgroups (HGMMA) and of
# warps (HMMA), and accesses to local memory (LDL, STL), where registers go that do not fit: all of
# them, and those in innermost loops.
#
#     sh bench/cuda/sass.sh [OBJECT]      build/cuda/obj/zeroflow_cuda.o
#
# It fails where no kernel has HGMMA though code for 9.0a is there. CUOBJDUMP: another one than that
# on the path or next to nvcc; PyTorch's Triton brings one (triton/backends/nvidia/bin).
set -eu
export LC_ALL=C
object=${1:-$(dirname "$0")/../../build/cuda/obj/zeroflow_cuda.o}
dump=${CUOBJDUMP:-$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)}
[ -f "$object" ] || { echo "sass.sh: there is no $object" >&2; exit 1; }
[ -x "$dump" ] || { echo "sass.sh: there is no $dump; CUOBJDUMP=... names one" >&2; exit 1; }
names=$(command -v c++filt || echo cat)
"$dump" -sass "$object" | awk '
    function number(hex,  i, n) {
        for (i = 1; i <= length(hex); i++) n = 16 * n + index("0123456789abcdef", substr(hex, i, 1)) - 1
        return n
    }
    # A loop goes from the target of a branch back to the branch; innermost: none is within it.
    function finish(  i, k, inner) {
        for (i = 0; i < loops; i++) {
            inner = 1
            for (k = 0; k < loops; k++)
                if (k != i && from[k] >= from[i] && to[k] <= to[i] &&
                    to[k] - from[k] < to[i] - from[i]) inner = 0
            if (!inner) continue
            for (k = 0; k < accesses; k++)
                if (at[k] >= from[i] && at[k] <= to[i]) in_loops[of]++
        }
        loops = accesses = 0
    }
    /arch = sm_/ { arch = $3; hopper = hopper || arch == "sm_90a" }
    $1 == "Function" { finish(); of = arch " " $3; kernels++ }
    !/^ *\/\*[0-9a-f]+\*\/ / { next }
    { here = $1; gsub(/[^0-9a-f]/, "", here) }
    / HGMMA/ { groups[of]++ }
    / HMMA/ { warps[of]++ }
    / (LDL|STL)[. ]/ { local_memory[of]++; at[accesses++] = number(here) }
    / BRA[. ]/ && match($0, /0x[0-9a-f]+ ;/) {
        target = number(substr($0, RSTART + 2, RLENGTH - 4))
        if (target < number(here)) { from[loops] = target; to[loops++] = number(here) }
    }
    END {
        finish()
        for (k in groups) all[k]; for (k in warps) all[k]; for (k in local_memory) all[k]
        row = "%-7s %6s %6s %8s %8s  %s\n"
        printf row, "for", "HGMMA", "HMMA", "LDL, STL", "in loops", "kernel"
        for (k in all) {
            split(k, name, " ")
            printf row, name[1], groups[k] + 0, warps[k] + 0, local_memory[k] + 0, in_loops[k] + 0,
                name[2] | "sort"
            if (groups[k]) found++
            if (in_loops[k]) spill++
        }
        close("sort")
        printf "%d kernels; %d multiply by warpgroups; %d access local memory in innermost loops\n",
            kernels, found, spill
        exit hopper && !found
    }' | "$names"
