#!/bin/sh
# Compiles for AMD's devices: sh tools/hip.sh ARCHITECTURES ARGUMENT...
#
#     sh tools/hip.sh gfx90a,gfx942 -O3 -c -o zeroflow_cuda.o zeroflow_cuda.cu
#     sh tools/hip.sh --include          the folder of HIP's headers
#     sh tools/hip.sh --libraries        what a program is linked with
#     sh tools/hip.sh --tool readelf     LLVM's tool of that compiler
#     sh tools/hip.sh --there            only whether there is a compiler
#
# By ROCm's own compiler where ROCM_PATH (/opt/rocm) has one; else by Debian's clang-19
# (tools/needs.sh hip). Products are not contracted to fma, so that bits do not depend on
# the compiler. All functions are inlined: a call takes private memory.
set -eu

rocm=${ROCM_PATH:-/opt/rocm}
# Debian's libraries of device code do not know newer architectures. What they know of one is a number.
bitcode=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode
known=${HIP_BITCODE:-build/hip/bitcode}

if [ -x "$rocm/llvm/bin/clang++" ]; then
    compiler=$rocm/llvm/bin/clang++ include=$rocm/include libraries="-L$rocm/lib -Wl,-rpath,$rocm/lib"
    tools=$rocm/llvm/bin/llvm- suffix='' options="--rocm-path=$rocm" more=''
else
    compiler=clang++-19 include=/usr/include libraries=''
    tools=llvm- suffix=-19 more="/usr/lib/llvm-19/bin/clang-offload-bundler llvm-as-19 $bitcode/ocml.bc"
    options="--rocm-path=/usr --hip-path=/usr --rocm-device-lib-path=$known -mcode-object-version=4"
fi
for needed in "$compiler" "$include/hip/hip_runtime.h" $more; do
    [ -e "$needed" ] || command -v "$needed" > /dev/null || {
        echo "tools/hip.sh: there is no $needed; Debian: clang-19 clang-tools-19 lld-19 llvm-19" \
            'libamdhip64-dev rocm-device-libs' >&2
        exit 1
    }
done

# The library's file for an architecture that it does not know: gfx942 is 9402, gfx1100 is 11000.
know() {
    version=$(echo "$1" | sed 's/^gfx//; s/\(.*\)\(.\)\(.\)$/\1 \2 \3/' |
        awk '{ printf "%d%d%02d", $1, $2, index("0123456789abcdef", $3) - 1 }')
    "${tools}dis$suffix" -o - "$bitcode/oclc_isa_version_90a.bc" | sed "s/i32 9010,/i32 $version,/" |
        "${tools}as$suffix" -o "$known/oclc_isa_version_${1#gfx}.bc.$$" -
    mv "$known/oclc_isa_version_${1#gfx}.bc.$$" "$known/oclc_isa_version_${1#gfx}.bc"
}

case ${1:-} in
--there) exit 0 ;;
--include) echo "$include" ;;
--libraries) echo "$libraries -lamdhip64 -ldl -lstdc++" ;;
--tool)
    shift
    tool=$1
    shift
    exec "$tools$tool$suffix" "$@"
    ;;
gfx*)
    architectures=$(echo "$1" | tr , ' ')
    shift
    offload=
    for a in $architectures; do
        offload="$offload --offload-arch=$a"
        if [ -z "$suffix" ]; then continue; fi
        mkdir -p "$known"
        for file in "$bitcode"/*.bc; do
            [ -e "$known/${file##*/}" ] || ln -sf "$file" "$known"
        done
        [ -e "$known/oclc_isa_version_${a#gfx}.bc" ] || know "$a"
    done
    # clang 19 sometimes crashes where it structures control flow, by the addresses that it has in that
    # run (StructurizeCFG; SSAUpdater); then it is run again.
    said=$(mktemp)
    trap 'rm -f "$said"' EXIT
    for try in 1 2 3 4 5; do
        status=0
        # shellcheck disable=SC2086 # words
        "$compiler" $offload $options -std=c++17 -ffp-contract=off \
            -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false "$@" \
            2> "$said" || status=$?
        grep -q 'clang frontend command failed due to signal' "$said" || break
        echo "tools/hip.sh: the compiler crashed (try $try of 5)" >&2
    done
    cat "$said" >&2
    exit $status
    ;;
*)
    echo 'usage: sh tools/hip.sh ARCHITECTURES ARGUMENT... | --include | --libraries | --tool NAME ...' >&2
    exit 2
    ;;
esac
