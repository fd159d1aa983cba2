#!/bin/sh
# What the documentation shows is true: sh tests/docs/run.sh [PAGE...]
#
# Pages are README.md, CONTRIBUTING.md, CHANGELOG.md and docs/*.md unless named. Blocks run in their
# order, those of all pages in one scratch folder, where the files of this tree are as well:
#
#     ```sh run              a script; it must end with status 0, or with N: ```sh run status=N
#     ```c run               a program; it is compiled and run
#     ```c part              statements; they are compiled and run inside tests/docs/part.c
#     ```c compile           declarations and functions; they are compiled
#     ```text output         what the block before prints, on both streams
#     needs=COMMAND          in the first line of a block: without that command it is skipped
#
# In an output each number stands for any number, runs of spaces for any run, a line "..." for any
# lines, and " ..." at the end of a line for its rest. Then the names in each page are checked:
# relative links and their anchors, files, the options of commands, targets of make, and zf_ names.
# The last line is "N passed, N failed".
#
# Lists are split into words on purpose.
# shellcheck disable=SC2086
set -u
export LC_ALL=C

tree=$(pwd)
cc=${CC:-gcc}
all=
[ $# != 0 ] || all=yes
[ $# != 0 ] || set -- README.md CONTRIBUTING.md CHANGELOG.md docs/*.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0
skipped=0

ok() { passed=$((passed + 1)) && echo "ok      $1"; }
bad() { # NAME FILE: what the file says is shown
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 30 "$2" | sed 's/^/        /'
}

# ------------------------------------------------------------------------------------- the blocks

# split PAGE FOLDER: FOLDER/NNN.{sh,run,part,compile,output}, and NNN.info with the page's line, the
# status and what is needed. An output has the number of its block.
split() {
    awk -v folder="$2" '
        /^```/ && inside { inside = 0; close(file); next }
        /^```/ {
            inside = 1; file = "/dev/null"
            kind = $1 == "```sh" && $2 == "run" ? "sh" : ""
            if ($1 == "```c" && $2 ~ /^(run|part|compile)$/) kind = $2
            if ($1 == "```text" && $2 == "output") {
                file = sprintf("%s/%03d.output", folder, n)
                printf "" > file
            } else if (kind) {
                file = sprintf("%s/%03d.%s", folder, ++n, kind)
                printf "" > file
                status = 0; needs = "sh"
                for (i = 3; i <= NF; i++) {
                    if ($i ~ /^status=/) status = substr($i, 8)
                    if ($i ~ /^needs=/) needs = substr($i, 7)
                }
                info = sprintf("%s/%03d.info", folder, n)
                print NR, status, needs > info
                close(info)
            }
            next
        }
        inside { print > file }' "$1"
}

# compile SOURCE: makes a program of it, or an object where it has no main.
compile() {
    flags="-std=c11 -Wall -Wextra -pedantic -Werror -O1 -I$tree -DZEROFLOW_IMPLEMENTED"
    if grep -q 'int main(' "$1"; then
        $cc $flags "$1" -o "${1%.c}.program" $tree/build/libzeroflow.a -lm -lpthread
    else
        $cc $flags -c "$1" -o "${1%.c}.o" 
    fi
}

# part FILE: tests/docs/part.c with these statements in the place of its line PART.
part() {
    echo '#line 1 "program.c"'
    awk -v file="$1" '
        /^ *PART$/ { while ((getline line < file) > 0) print line; next }
        { print }' tests/docs/part.c
}

# matches STATED PRINTED
matches() {
    for f in "$1" "$2"; do
        sed -E 's/\x1b\[[0-9;]*[A-Za-z]//g; s/[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/N/g
            s/[[:space:]]+/ /g; s/^ //; s/ $//; s/-N/N/g
            s/(N passed, N failed), N skipped$/\1/' "$f" > "$f.masked"
    done
    # A slow machine prints the line of a step more often.
    awk '
        /^step N\/N / && last[FILENAME] == $0 { next }
        { last[FILENAME] = $0 }
        NR == FNR { want[++wants] = $0; next }
        { have[++haves] = $0 }
        function like(w, h) {
            return w ~ / \.\.\.$/ ? index(h, substr(w, 1, length(w) - 3)) == 1 : w == h
        }
        # Where the stated lines from i on are those printed from j on.
        function same(i, j) {
            for (; i <= wants; i++) {
                if (want[i] == "...") {
                    if (i == wants) return 1
                    for (; j <= haves; j++)
                        if (like(want[i + 1], have[j]) && same(i + 1, j)) return 1
                    print "not printed: " want[i + 1]
                    return 0
                }
                if (j > haves || !like(want[i], have[j])) {
                    print "stated:  " want[i]
                    print "printed: " (j > haves ? "nothing more" : have[j])
                    return 0
                }
                j++
            }
            if (j <= haves) print "printed as well: " have[j]
            return j > haves
        }
        END { exit !same(1, 1) }' "$1.masked" "$2.masked"
}

# block NAME: runs it in the scratch folder.
block() {
    base=$1
    read -r line wanted needs < "$base.info"
    name="$page:$line"
    command -v "$needs" > /dev/null || {
        skipped=$((skipped + 1)) && echo "skipped $name, there is no $needs"
        return
    }
    said=$base.said
    for kind in sh run part compile; do [ -e "$base.$kind" ] && break; done
    case $kind in
    sh) (cd "$scratch" && exec sh -e "$base.sh") > "$said" 2>&1 < /dev/null ;;
    part) part "$base.part" > "$base.c" && compile "$base.c" > "$said" 2>&1 ;;
    compile) { echo '#include "zeroflow.h"' && cat "$base.compile"; } > "$base.c" &&
        compile "$base.c" > "$said" 2>&1 ;;
    run) cp "$base.run" "$base.c" && compile "$base.c" > "$said" 2>&1 ;;
    esac
    status=$?
    if [ $status = 0 ] && [ -x "$base.program" ]; then
        (cd "$scratch" && exec "$base.program") > "$said" 2>&1 < /dev/null
        status=$?
    fi
    if [ $status != "$wanted" ]; then
        echo "the status is $status, not $wanted" >> "$said" && bad "$name" "$said"
    elif [ -e "$base.output" ] && ! matches "$base.output" "$said" > "$base.differ"; then
        { cat "$said" && echo && cat "$base.differ"; } > "$base.both" && bad "$name" "$base.both"
    else
        ok "$name"
    fi
}

run_blocks() { # PAGE
    page=$1
    folder=$work/$(echo "$page" | tr / -)
    mkdir "$folder"
    split "$page" "$folder"
    for info in "$folder"/*.info; do
        [ -e "$info" ] && block "${info%.info}"
    done
}

# -------------------------------------------------------------------------------------- the names

# Options of programs that are not ours.
foreign='--mca --no-python --nproc-per-node --shutdown-timeout --signal --ff-only --cflags --libs
         --variable --enable-recovery --help --exclude --device-only --nnodes --logdir'

own_options() {
    for program in bert gpt llm; do
        build/$program --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' | while read -r command; do
            build/$program "$command" --help 
            build/$program "$command" --help all 2> /dev/null
        done
    done
    build/zf-opt --help
    build/zf-plan --help all
    build/zf-plan rlhf --help all
    cat bench/*.c bench/*.sh bench/peers/*.py tests/support/main.c tests/*.sh tests/*/*.sh
}
anchors() { # FILE: of its headings, as they are made on the web
    sed -n 's/^#\{1,6\} //p' "$1" | tr 'A-Z ' 'a-z-' | sed 's/[^-a-z0-9_]//g'
}
words() { grep -Eow -e "$1" "$2" | sort -u; }

names_of() { # PAGE: prints what is wrong
    page=$1
    dir=$(dirname "$page")
    grep -Eo '\]\([^)]*\)' "$1" | sed 's/^](//; s/)$//' | while read -r link; do
        case $link in http*) continue ;; esac
        file=${link%%#*}
        [ -z "$file" ] && file=$1 || file=$dir/$file
        [ -e "$file" ] || { echo "there is no $link" && continue; }
        case $link in
        *.md#* | '#'*) anchors "$file" | grep -qx -e "${link#*#}" || echo "no heading $link" ;;
        esac
    done
    grep -Eo -e '--[a-z][a-z0-9-]+' "$1" | sort -u | while read -r option; do
        { echo $foreign && cat "$work/options"; } | grep -Eq -e "$option([^a-z0-9-]|\$)" ||
            echo "no program has $option"
    done
    grep -Eo 'zf_[a-z0-9_]+|ZF_[A-Z0-9_]+' "$1" | sort -u | while read -r name; do
        grep -qw "$name" "$work/names" || grep -qw "#define $name" "$page" ||
            echo "no header has $name"
    done
    # Of a group of tests the Makefile names ready-GROUP.
    grep -Eo '`make [a-z][a-z-]*' "$1" | sed 's/ test-/ ready-/; s/ ready-all/ test-all/' | sort -u | while read -r _ target; do
        grep -Eq "^[a-z. -]*\b$target\b.*:|[ =]$target( |\$)" Makefile || echo "no make $target"
    done
    # shellcheck disable=SC2016 # the quotes of code
    grep -Eo '`[a-z]+/[A-Za-z0-9_./-]*`' "$1" | grep -v '`\(build\|dist\|try\|train\|eval\)/' |
        tr -d '`' | grep -v 'NAME\|GROUP\|PAGE' | sort -u | while read -r file; do
        [ -e "$file" ] || echo "there is no $file"
    done
}

scratch=$work/scratch
mkdir "$scratch"
for entry in *; do [ "$entry" = try ] || ln -s "$tree/$entry" "$scratch/$entry"; done
own_options > "$work/options" 2>&1
{
    cat zeroflow.h
    for header in zeroflow.h zeroflow_llm.h; do
        [ ! -e $header ] || $cc -std=c11 -E -dD -I. -x c $header
    done
} > "$work/names"

for page; do
    [ -e "$page" ] || continue
    run_blocks "$page"
    names_of "$page" > "$work/wrong"
    if [ -s "$work/wrong" ]; then bad "$page: names" "$work/wrong"; else ok "$page: names"; fi
done
if [ "$all" ]; then
    size=$(wc -c < README.md)
    if [ "$size" -le 6144 ]; then ok 'README.md has at most 6 KB'; else
        echo "$size bytes" > "$work/wrong" && bad 'README.md has at most 6 KB' "$work/wrong"
    fi
    # Pictures are what their script draws.
    sh docs/pictures/make.sh "$work" > "$work/wrong" 2>&1
    for picture in docs/pictures/*.svg; do
        cmp "$picture" "$work/${picture##*/}" >> "$work/wrong" 2>&1 ||
            echo 'sh docs/pictures/make.sh draws it again' >> "$work/wrong"
    done
    if [ -s "$work/wrong" ]; then bad 'pictures' "$work/wrong"; else ok 'pictures'; fi
    # Every page is in the index.
    for page in docs/*.md; do
        [ "$page" = docs/README.md ] || grep -qF "(${page#docs/})" docs/README.md || echo "$page"
    done > "$work/wrong"
    if [ -s "$work/wrong" ]; then bad 'pages that docs/README.md lacks' "$work/wrong"; else
        ok 'the index has all pages'
    fi
fi
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
