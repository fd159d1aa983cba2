#!/bin/sh
# Prepares the default corpus: sh examples/bert/data/corpus.sh OUT_FILE WORKDIR
#
# OUT_FILE gets English text, one sentence per line, a blank line between documents: the dictionary
# GCIDE from the Debian package dict-gcide (fetched, never installed; no root needed), or, where the
# package cannot be had, the English text that the machine has. It is written aside and renamed, so
# an OUT_FILE that exists is complete and is left alone. WORKDIR keeps the package for another time.
# Prints one line: where the text came from and its size. Fails (status 1) with advice where there
# is too little text. CC names the C compiler, CORPUS_ROOT the root of the machine's text (none: /).
set -eu
export LC_ALL=C

if [ $# -ne 2 ]; then
    echo "usage: sh corpus.sh OUT_FILE WORKDIR" >&2
    exit 2
fi
out=$1
work=$2
root=${CORPUS_ROOT:-}
here=$(dirname -- "$0")
least=200000 # bytes; less than this teaches nothing

say() { echo "corpus: $*" >&2; }

summary() {
    source=$(cat "$out.source" 2>/dev/null || echo "prepared earlier")
    wc -wc < "$out" | awk -v file="$out" -v from="$source" '
        { printf "corpus: %s: %.1f MB, %d words in %s\n", from, $2 / 1e6, $1, file }'
}

if [ -s "$out" ]; then
    summary
    exit 0
fi

mkdir -p "$work" "$(dirname -- "$out")"
work=$(cd "$work" && pwd)
part=$out.part
trap 'rm -rf "$part" "$part.source" "$work/unpacked" "$work/sentences" "$work/lists" \
    "$work/cache"' EXIT
trap 'exit 1' HUP INT TERM

compiler=
for cc in ${CC:+"$CC"} cc gcc clang; do
    if command -v "${cc%% *}" > /dev/null; then
        compiler=$cc
        break
    fi
done
if [ -z "$compiler" ]; then
    say "no C compiler (cc, gcc or clang) was found; on Debian: apt-get install gcc libc6-dev"
    exit 1
fi
$compiler -std=c11 -O2 -o "$work/sentences" "$here/sentences.c"

# The package, from an earlier download or from the archive: with the lists that apt has, else with
# lists of our own, because a bare system has none and only root may fetch them for everyone.
unpack() {
    rm -rf "$work/unpacked"
    for deb in "$work"/dict-gcide_*.deb; do
        [ -s "$deb" ] && dpkg-deb -x "$deb" "$work/unpacked" 2>> "$work/apt.log" && return 0
        rm -f "$deb"
    done
    return 1
}

apt() {
    (cd "$work" && timeout 180 apt-get -q -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@") \
        >> "$work/apt.log" 2>&1
}

own() {
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    apt -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}

package() {
    : > "$work/apt.log"
    if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
        echo "E: apt-get and dpkg-deb are needed" > "$work/apt.log"
        return 1
    fi
    unpack && return 0
    say "fetching the Debian package dict-gcide (15 MB)"
    apt download dict-gcide && unpack && return 0
    own update && own download dict-gcide && unpack
}

# Cuts standard input in the given mode and appends to the part, with a document's end.
cut_into() {
    "$work/sentences" "$1" >> "$part"
    [ ! -s "$part" ] || echo >> "$part"
}

long_enough() { [ "$(wc -c < "$part")" -ge $least ]; }

# Files of the machine, in an order that does not depend on the file system, unpacked.
texts() {
    folder=$1
    shift
    [ ! -d "$folder" ] || find "$folder" -type f -size -4096k "$@" -print0 | sort -z |
        xargs -0 -r zcat -f -- 2>/dev/null || true
}

: > "$part"
if package; then
    zcat -f < "$work/unpacked/usr/share/dictd/gcide.dict.dz" | cut_into dictionary
    version=$(basename "$deb" .deb | cut -d _ -f 2)
    echo "the dictionary GCIDE, Debian package dict-gcide $version" > "$part.source"
fi
if ! long_enough; then
    reason=$(sed -n 's/^E: //p' "$work/apt.log" | tail -n 1)
    say "the package dict-gcide cannot be had (${reason:-it holds no text});" \
        "taking the English text of this machine"
    : > "$part"
    { texts "$root/usr/share/common-licenses"
      texts "$root/usr/share/doc" \( -name copyright -o -name 'README*' -o -name 'NEWS*' \
            -o -name '*.txt' -o -name '*.txt.gz' -o -name '*.md' -o -name '*.md.gz' \)
    } | cut_into text
    texts "$root/usr/share/man" -path '*/man/man[1-9]/*' | cut_into manual
    echo "licences, documentation and manual pages of this machine" > "$part.source"
fi
if ! long_enough; then
    say "this machine has $(wc -c < "$part") bytes of English text, and $least are needed:" \
        "name a text with CORPUS=file (one sentence per line, a blank line between documents)"
    exit 1
fi
mv "$part.source" "$out.source"
mv "$part" "$out"
summary
