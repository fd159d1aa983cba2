# The ways to use the library, each built and run. Where the compiler does not matter, it is clang,
# which compiles the library at -O0 in a sixth of gcc's time, and after the first time with the kernels
# of one instruction set ($own); more.sh uses gcc. Part of tests/run.sh.
# shellcheck shell=sh disable=SC2086,SC2154
. tests/consumers/common.sh

# Leaves the implementation in unit.o, which the others link.
with_pkg_config() {
    PKG_CONFIG_PATH=$root/usr/share/pkgconfig
    export PKG_CONFIG_PATH
    flags=$(pkg-config --cflags 'zeroflow >= 0.1') && echo "flags: $flags" &&
        clang $strict -O0 $flags -c $here/unit.c -o "$work/unit.o" &&
        link=$(pkg-config --libs 'zeroflow >= 0.1') &&
        builds clang $strict $flags $here/app.c "$work/unit.o"
}

with_cmake() {
    cmake -S $here/cmake -B "$work/cmake" -DCMAKE_PREFIX_PATH="$root/usr" \
        -DCMAKE_C_COMPILER=clang &&
        cmake --build "$work/cmake" && "$work/cmake/app" && "$work/cmake/llm" "$work/model" | grep -x "$answer"
}

llm_with_pkg_config() {
    PKG_CONFIG_PATH=$root/usr/share/pkgconfig
    export PKG_CONFIG_PATH
    flags=$(pkg-config --cflags --libs 'zeroflow_llm >= 0.1') && echo "flags: $flags" &&
        clang $strict -O0 -DZEROFLOW_LLM_IMPLEMENTATION $here/llm.c "$work/unit.o" \
            -o "$work/llm" $flags &&
        "$work/llm" "$work/model" | grep -x "$answer"
}

answer='a bird| y 6 5 l z 7 6 5'

# A folder with a small Llama and a tokenizer of characters, for what zeroflow_llm.h reads.
makes_model() {
    mkdir -p "$work/model" && cp tests/golden/llm/llama2/config.json \
        tests/golden/llm/llama2/model.safetensors "$work/model" &&
        awk 'BEGIN {
            printf "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, "
            printf "\"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": null, "
            printf "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
            printf "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
            printf "\"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], \"vocab\": {"
            for (i = 0; i < 37; i++)
                printf "%s\"%c\": %d", i ? ", " : "", i < 26 ? 97 + i : i == 26 ? 32 : 21 + i, i
            print "}}}"
        }' > "$work/model/tokenizer.json" &&
        printf '%s' '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}' \
            > "$work/model/tokenizer_config.json"
}

# Every file that was installed, and nothing else.
installed_files() {
    (cd "$root" && find . -type f | sort) | tee "$work/files"
    printf './usr/%s\n' include/zeroflow.h include/zeroflow_llm.h share/cmake/zeroflow/zeroflow-config-version.cmake \
        share/cmake/zeroflow/zeroflow-config.cmake share/pkgconfig/zeroflow.pc share/pkgconfig/zeroflow_llm.pc \
        share/zeroflow/zeroflow_cuda.cu share/zeroflow/zeroflow_mpi.c \
        share/zeroflow/zeroflow_nccl.c |
        cmp - "$work/files"
}

# The installed header, its implementation and the package have one version.
one_version() {
    printf '#include <zeroflow.h>\n#include <string.h>\nint main(void) {%s}\n' \
        'return puts(zf_version()) < 0 || strcmp(zf_version(), ZF_VERSION);' > "$work/version.c"
    PKG_CONFIG_PATH=$root/usr/share/pkgconfig pkg-config --modversion zeroflow > "$work/version" &&
        clang $strict -O0 "$include" "$work/version.c" "$work/unit.o" -o "$work/app" $link &&
        "$work/app" | cmp - "$work/version"
}

# One error, which says what to do.
refuses_cxx() {
    file=$2
    cxx=$1
    shift 2
    ! $cxx $strict_cxx "$include" "$@" -fsyntax-only $file > "$work/errors" 2>&1 &&
        cat "$work/errors" && grep -q 'put it in one .c file' "$work/errors" &&
        [ "$(grep -c 'error:' "$work/errors")" = 1 ]
}

# An implementation that is private to a file has no symbol for the linker.
private() {
    clang $strict -O0 "$include" -DZF_API=static -DZFI_PORTABLE -c $here/unit.c -o "$work/private.o" &&
        ! nm -g --defined-only "$work/private.o" | grep .
}
# So another may be linked with it.
private_twice() {
    clang $strict -O0 "$include" -DZF_API=static $own -DZEROFLOW_LLM_IMPLEMENTATION \
        -DZF_WITHOUT_PCRE2 $here/llm.c "$work/private.o" -o "$work/llm" $link
}

# A file of the unit, one of the tests of private functions and one of other tests, as
# compile_commands.json says.
by_their_entries() {
    sh tools/make/commands.sh "clang $strict" > "$work/commands.json" || return
    for file in nn/fit.c tests/inside/records.c tests/graph/calls.c; do
        command=$(grep -A 1 "\"$file\"" "$work/commands.json" |
            sed -n 's/.*"command": "\(.*\)"}.*/\1/p')
        [ -n "$command" ] && $command -fsyntax-only || return
    done
}

with_mpi() {
    PKG_CONFIG_PATH=$root/usr/share/pkgconfig
    export PKG_CONFIG_PATH
    source=$(pkg-config --variable=mpi_source zeroflow) &&
        mpicc $strict -I"$root/usr/include" -c "$source" -o "$work/mpi.o" &&
        nm "$work/mpi.o" | grep -q ' T zf_mpi_comm'
}

# Nested expressions give the same graph, losses, parameters and states with both.
evaluates_in_any_order() {
    for cc in gcc clang; do
        $cc $strict -O0 "$include" $here/nested.c "$work/unit.o" -o "$work/nested-$cc" $link &&
            "$work/nested-$cc" "$work/checkpoint-$cc" > "$work/losses-$cc" || return
    done
    cmp "$work/losses-gcc" "$work/losses-clang" &&
        diff -r "$work/checkpoint-gcc" "$work/checkpoint-clang"
}

check 'make install' installs
check 'what it installs' installed_files
check 'a small model' makes_model
check 'pkg-config' with_pkg_config
check 'zeroflow_llm.h, pkg-config' llm_with_pkg_config
check 'CMake package' with_cmake
check 'one version' one_version
if command -v mpicc > /dev/null; then
    check 'zeroflow_mpi.c with the installed header' with_mpi
else
    skip 'zeroflow_mpi.c with the installed header' 'there is no mpicc (libopenmpi-dev)'
fi

# The installed header alone, copied into a program.
for cc in gcc clang; do
    check "declarations as C++17, $cc" $cc -x c++ $strict_cxx -fsyntax-only dist/zeroflow.h
done
check 'dropped in, clang' builds clang $strict -O0 "$include" $own $here/app.c
check 'the header first, the implementation later' \
    clang $strict -O0 "$include" -fsyntax-only $here/late.c
check 'private to a file' private
check 'private to two files, with zeroflow_llm.h' private_twice
for cc in gcc clang; do
    check "private, and declared alone, $cc" \
        $cc $strict "$include" -DZF_API=static -c $here/declared.c -o "$work/declared.o"
done
for cc in g++ clang++; do
    check "no implementation in C++, $cc" refuses_cxx $cc $here/app.cpp $own
    check "none of zeroflow_llm.h either, $cc" \
        refuses_cxx $cc $here/declared.c -DZEROFLOW_LLM_IMPLEMENTATION -x c++
done
check 'arguments in the order of gcc and of clang' evaluates_in_any_order
check 'two files of one program' builds gcc $strict "$include" $here/app.c "$work/unit.o"
check 'C++17, g++' builds g++ $strict_cxx "$include" $here/app.cpp "$work/unit.o"
check 'C++17, clang++' builds clang++ $strict_cxx "$include" $here/app.cpp "$work/unit.o"
check 'in a program with its own stb_ds' \
    builds gcc -std=gnu11 -Wall "$include" $here/stb.c "$work/unit.o"
for cc in gcc clang; do
    check "declarations of zeroflow_llm.h as C++17, $cc" \
        $cc -x c++ $strict_cxx -Idist -fsyntax-only dist/zeroflow_llm.h
done
check 'an example by the command that it names' \
    builds clang $strict -O0 -DZFI_PORTABLE -I. examples/hello.c
check 'another one' clang $strict -O0 -DZFI_PORTABLE -I. examples/generate.c -DZF_WITHOUT_PCRE2 \
    -o "$work/generate" $link
check 'goes on with a text' gives 0 '^the bird   n w r v s 2 n n w r m s j j j 2 j z 6$' \
    "$work/generate" "$work/model" 'the bird'
check 'a third one, with the shipped headers' clang $strict -O0 -idirafter dist \
    -DZEROFLOW_IMPLEMENTED examples/chat.c "$work/unit.o" -DZF_WITHOUT_PCRE2 -o "$work/chat" $link
check 'which runs; gpt-cli.sh has it learn' gives 1 "^chat: $work/none: No such file or directory" \
    "$work/chat" "$work/model" "$work/none" 1e-2 "$work/adapter"
check 'compile_commands.json' by_their_entries
# Where processors have AMX, gdb 13 cannot.
if gdb -nx -batch -ex 'break exit' -ex run -ex 'print 41 + (int)abs(1)' true 2>&1 |
    grep -q '= 42$'; then
    check 'gdb shows graphs' sh tests/consumers/gdb.sh clang
else
    skip 'gdb shows graphs' 'gdb is missing, or cannot call functions of programs'
fi
