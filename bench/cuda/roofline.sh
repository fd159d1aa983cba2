#!/bin/sh
# What a step takes at least, by operator, from its plan: bytes at the rate of memory, FLOPs at that
# of products, whichever is more; to be compared with a profile (bench/step --profile).
#
#     sh bench/cuda/roofline.sh [-t TFLOPS] [-b TBYTES] [-p PROFILE] [OPTIONS OF zf-plan ...]
#
#     sh bench/cuda/roofline.sh --layers 24 --hidden 1024 --heads 16 --batch 256 --seq 128 \
#         --precision bf16 --no-fuse invert
#
# -t: TFLOP/s (696: an H200 over the products of BERT-large in bf16); -b: TB/s (3.9: what its memory
# gave to an add); -p: the output of bench/step --profile, whose milliseconds are next to the
# estimate. Needs build/zf-plan and awk.
# PLAN: another zf-plan than build/zf-plan.
set -eu
export LC_ALL=C
plan=${PLAN:-$(dirname "$0")/../../build/zf-plan}
tflops=696 tbytes=3.9 profile=/dev/null
while [ $# -gt 1 ]; do
    case $1 in
    -t) tflops=$2 ;;
    -b) tbytes=$2 ;;
    -p) profile=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ -x "$plan" ] || { echo "roofline.sh: there is no $plan; make build/zf-plan makes it" >&2; exit 1; }
"$plan" --json "$@" | awk -v tflops="$tflops" -v tbytes="$tbytes" -v profile="$profile" '
    BEGIN {
        while ((getline line < profile) > 0)
            if (split(line, f) >= 8 && f[2] ~ /^[0-9]+$/) took[f[1]] = f[4]
    }
    { gsub(/[",]/, "") }
    $1 == "operators:" { inside = 1; next }
    !inside { next }
    $2 == "{" { sub(/:$/, "", $1); name = $1; next }
    $1 == "launches:" { launches[name] = $2 }
    $1 == "bytes:" { bytes[name] = $2 }
    $1 == "flops:" { flops[name] = $2 }
    $1 == "}" { if (name == "") exit; name = "" }
    END {
        for (op in bytes) {
            by_bytes = 1e-9 * bytes[op] / tbytes; by_flops = 1e-9 * flops[op] / tflops
            least[op] = by_bytes > by_flops ? by_bytes : by_flops
            all += least[op]; moved += bytes[op]; made += flops[op]; count += launches[op]
            if (op in took) known += took[op]
        }
        row = "%-20s %8s %10s %10s %9s %6s %9s\n"
        printf row, "operator", "launches", "GB", "TFLOP", "least ms", "%", profile == "/dev/null" ? "" : "took ms"
        while (1) {
            best = ""
            for (op in least) if (best == "" || least[op] > least[best]) best = op
            if (best == "" || least[best] < 0.001 * all) break
            printf row, best, launches[best], sprintf("%.2f", 1e-9 * bytes[best]),
                sprintf("%.2f", 1e-12 * flops[best]), sprintf("%.3f", least[best]),
                sprintf("%.1f", 100 * least[best] / all), best in took ? took[best] : ""
            delete least[best]
        }
        printf row, "in all", count, sprintf("%.2f", 1e-9 * moved), sprintf("%.2f", 1e-12 * made),
            sprintf("%.3f", all), "", known ? sprintf("%.3f", known) : ""
    }'
