#!/bin/sh
# Sees to what a target needs: sh tools/needs.sh build|test|test-all|docs|hip
#
# A need is tried out, not looked up by its package, so a compiler of one's own counts. What is
# missing is installed where the rights are there (root, apt-get), else named, and the status is 1.
# What a target can do without (a wish) is installed as well, but never asked for. CC: the compiler.
#
# Lists, and CC, are split into words on purpose.
# shellcheck disable=SC2086
set -eu

target=${1:-}
case $target in
build | test | test-all | docs | hip) ;;
*)
    echo "usage: sh tools/needs.sh build|test|test-all|docs|hip" >&2
    exit 2
    ;;
esac
cc=${CC:-gcc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# need PACKAGE COMMAND...: the package is needed where the command fails; wish likewise.
need() {
    package=$1
    shift
    "$@" > /dev/null 2>&1 || needed="$needed $package"
}
wish() {
    package=$1
    shift
    "$@" > /dev/null 2>&1 || wished="$wished $package"
}

# compiles COMPILER HEADER [FLAGS]: a program that includes the header compiles and links.
compiles() {
    compiler=$1
    printf '#include <%s>\nint main(void) { return 0; }\n' "$2" > "$scratch/program.c"
    shift 2
    $compiler "$scratch/program.c" -o "$scratch/program" "$@"
}

fuzzes() {
    echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' > "$scratch/fuzz.c"
    clang -fsanitize=fuzzer,address,undefined "$scratch/fuzz.c" -o "$scratch/fuzz"
}

# Sets needed and wished to what is missing now.
examine() {
    needed=
    wished=
    case $cc in
    *clang*) package=clang ;;
    *) package=build-essential ;;
    esac
    need "$package" compiles "$cc" pthread.h -lm -lpthread
    need make command -v make
    need libstb-dev compiles "$cc" stb/stb_ds.h
    [ "$target" = docs ] || wish libpcre2-dev compiles "$cc -DPCRE2_CODE_UNIT_WIDTH=8" pcre2.h -lpcre2-8
    case $target in test*)
        need build-essential compiles gcc stdio.h
        need build-essential command -v g++
        need clang compiles clang stdio.h
        need cmake command -v cmake
        need pkg-config command -v pkg-config
        wish libopenmpi-dev compiles mpicc mpi.h
        wish openmpi-bin command -v mpirun
        ;;
    esac
    if [ "$target" = hip ]; then
        need 'clang-19 clang-tools-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs' sh tools/hip.sh --there
    fi
    if [ "$target" = docs ]; then need doxygen command -v doxygen; fi
    if [ "$target" = test-all ]; then
        need libclang-rt-dev fuzzes
        wish doxygen command -v doxygen
        wish libopenblas-dev compiles "$cc" cblas.h -lopenblas
        wish 'gcc-aarch64-linux-gnu libc6-dev-arm64-cross' compiles aarch64-linux-gnu-gcc stdio.h
        wish qemu-user command -v qemu-aarch64
    fi
    needed=$(once $needed)
    wished=$(once $wished)
}
once() { [ $# = 0 ] || printf '%s\n' "$@" | sort -u | paste -s -d ' '; }

# apt ARGUMENTS...: apt-get, which is heard only when it fails.
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qy "$@" > "$scratch/apt.log" 2>&1 || {
        cat "$scratch/apt.log" >&2
        return 1
    }
}

install() {
    [ -n "$needed$wished" ] || return 0
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return 0
    echo "installing the packages" $needed $wished
    apt update || return 0
    [ -z "$needed" ] || apt install --no-install-recommends $needed || return 0
    [ -z "$wished" ] || apt install --no-install-recommends $wished ||
        echo "going on without $wished"
    examine
}

examine
install
[ -z "$needed" ] || {
    echo "Something is missing (the compiler is '$cc'). On Debian, as root:" >&2
    echo "    apt-get install $needed" >&2
    exit 1
}
