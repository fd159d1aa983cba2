#!/bin/sh
# Prints compile_commands.json, for clangd and other tools: sh tools/make/commands.sh 'COMPILER
# FLAGS'
#
# A part of the library, or of the tests of private functions, is no program text of its own: it is
# compiled after the parts that precede it in zeroflow.h (tests/inside/unit.c), which are included
# by a file in build/before/.
set -eu

compile=$1
folder=$(pwd)
mkdir -p build/before

# entry FILE FLAGS
entry() {
    printf '%s\n  {"directory": "%s", "file": "%s",\n   "command": "%s"}' \
        "$comma" "$folder" "$1" "$compile $2 -I. -c $1"
    comma=,
}

# parts UNIT FIRST FLAGS: one entry for each C file that the unit includes. FIRST is what precedes
# them all.
parts() {
    awk -v folder="$folder/$(dirname "$1")/" -v seen="$2" '
        /^#include "/ {
            split($0, quoted, "\"")
            $0 = "#include \"" folder quoted[2] "\""
        }
        /^#include ".*[.]c"$/ {
            before = "build/before/" ++count substr(FILENAME, 1, 1) ".h"
            print seen > before
            close(before)
            print folder quoted[2], before
        }
        /^(#include ".*[.]c"$|ZFI_PLAIN)/ || seen !~ /zeroflow[.]h/ { seen = seen "\n" $0 }' "$1" |
        while read -r file before; do
            entry "$(realpath --relative-to . "$file")" \
                "$3 -Wno-unused-function -Wno-unused-const-variable -include $before"
        done
}

comma=
echo '['
entry zeroflow.h '-DZEROFLOW_IMPLEMENTATION -x c'
comma=,
parts zeroflow.h "#include \"$folder/zeroflow.h\"" -DZF_NO_LINES
parts tests/inside/unit.c '' ''
for file in $(sh tests/house/units.sh) tests/cuda/ops.c llm/*/*.c examples/*.c examples/*/*.c examples/*/*/*.c tools/*.c tools/*/*.c \
            bench/*.c; do
    [ ! -f "$file" ] || entry "$file" ''
done
printf '\n]\n'
