# All that `make install` writes: programs are built from it as a user does, and nothing of it is left
# by `make uninstall`. Part of tests/run.sh.
# shellcheck shell=sh disable=SC2086,SC2154
. tests/consumers/common.sh

makes() {
    MAKEFLAGS='' make -s --no-print-directory "$@" STAGE="$work/stage" DESTDIR="$work/root" \
        PREFIX=/usr LIBDIR=/usr/lib/triplet PROGRAM_PREFIX=zf_
}
lib=$root/usr/lib/triplet
man=$root/usr/share/man/man1
PKG_CONFIG_PATH=$lib/pkgconfig:$root/usr/share/pkgconfig
LD_LIBRARY_PATH=$lib
export PKG_CONFIG_PATH LD_LIBRARY_PATH
series=$(sed -n 's/^#define ZF_VERSION_M[AI][JN]OR //p' zeroflow.h | paste -s -d .)

# symbols LIBRARY FLAGS-OF-NM HEADERS: each function of the headers is there, and nothing that does
# not begin with zf_.
symbols() {
    nm -g --defined-only $2 "$lib/$1" | awk 'NF > 2 { print $3 }' | sort -u > "$work/symbols"
    grep -hE '^ZF_(API|BUILDER) ' $3 | grep -oE '\bzf_[a-z0-9_]+\(' | tr -d '(' |
        sort -u > "$work/declared"
    [ "$(wc -l < "$work/declared")" -gt 20 ] && ! grep -v '^zf_' "$work/symbols" &&
        ! comm -23 "$work/declared" "$work/symbols" | grep .
}

soname() { objdump -p "$lib/$1" | grep -E "SONAME +$1\$"; }

with_shared() {
    flags=$(pkg-config --cflags --libs libzeroflow) && link=$flags builds "$@" &&
        ldd "$work/app" | grep 'libzeroflow\.so'
}
with_static() {
    flags=$(pkg-config --cflags libzeroflow) &&
        link="$lib/libzeroflow.a -lm -lpthread" builds "$@" $flags
}
llm_with_shared() {
    flags=$(pkg-config --cflags --libs libzeroflow_llm) &&
        gcc $strict $here/llm.c -o "$work/llm" $flags &&
        ldd "$work/llm" | grep 'libzeroflow_llm\.so'
}

# Programs run; the page of each has its name and what --help says.
programs() {
    for p in bert gpt llm opt zf-opt zf-plan; do
        "$root/usr/bin/zf_$p" --help > "$work/help" && [ -s "$work/help" ] &&
            [ "$(grep -c '^\.SH' "$man/zf_$p.1")" -ge 3 ] &&
            grep -q "^zf_$(echo $p | sed 's/-/\\\\-/') " "$man/zf_$p.1" || return
    done
    grep -q '\\-\\-optimizer' "$man/zf_bert.1" && [ -s "$root/usr/share/doc/zeroflow/LICENSE" ]
}

with_cmake() { # COMPONENTS...
    rm -rf "$work/cmake"
    cmake -S $here/components -B "$work/cmake" -DCMAKE_PREFIX_PATH="$root/usr" \
        -DCMAKE_C_COMPILER=clang \
        "-DCOMPONENTS=$(echo "$*" | tr ' ' ';')" && cmake --build "$work/cmake"
}

uninstalled() {
    makes uninstall && ! find "$root" ! -type d | grep . && [ ! -e "$root/usr/share/zeroflow" ]
}

check 'make install' makes install
check 'symbols of the shared library' symbols libzeroflow.so -D 'zeroflow.h api/*.h'
check 'symbols of the static library' symbols libzeroflow.a '' 'zeroflow.h api/*.h'
check 'symbols of the shared llm library' symbols libzeroflow_llm.so -D 'llm/api/*/*.h'
check 'symbols of the static llm library' symbols libzeroflow_llm.a '' 'llm/api/*/*.h'
for l in zeroflow zeroflow_llm; do check "soname of lib$l" soname "lib$l.so.$series"; done
check 'programs, manual pages and the licence' programs
check 'C, shared' with_shared gcc $strict $here/app.c
check 'C, static' with_static gcc $strict $here/app.c
check 'C++, shared' with_shared g++ $strict_cxx $here/app.cpp
check 'C++, static' with_static g++ $strict_cxx $here/app.cpp
check 'llm library, shared' llm_with_shared
check 'CMake: libraries' with_cmake
check 'CMake: a component that is none' \
    gives 1 'components are MPI, CUDA and NCCL' with_cmake FORTRAN
if command -v mpicc > /dev/null; then check 'CMake: MPI' with_cmake MPI
else skip 'CMake: MPI' 'there is no mpicc (libopenmpi-dev)'; fi
if cmake -S $here/components/nvcc -B "$work/nvcc" > /dev/null 2>&1; then
    nccl=$(find /usr/local/include /usr/include /usr/local/cuda/include -name nccl.h | head -n 1)
    check "CMake: CUDA${nccl:+ and NCCL}" with_cmake CUDA ${nccl:+NCCL}
    [ -n "$nccl" ] || skip 'CMake: NCCL' 'there is no nccl.h'
else
    skip 'CMake: CUDA and NCCL' 'there is no nvcc'
fi
check 'make uninstall' uninstalled
