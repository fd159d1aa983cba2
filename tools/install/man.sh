#!/bin/sh
# Writes the manual page of a program, from what it says of itself (--help) and from the first words
# of its source: sh tools/install/man.sh PROGRAM SOURCE VERSION NAME > NAME.1
set -eu
export LC_ALL=C
program=$1
source=$2
version=$3
name=$4

# Text of a program as roff shows it.
plain() { sed 's/\\/\\e/g; s/-/\\-/g; s/^\([.'\'']\)/\\\&\1/'; }
block() { echo .nf && plain && echo .fi; }

what=$(awk 'NR == 1 && !sub("^/\\* [a-z-]*: ", "") { exit }
    { end = sub(" *\\*/$", ""); sub("^ \\* ?", "") }
    NR > 1 && !$0 { exit }
    { printf("%s%s", NR > 1 ? " " : "", $0) }
    end { exit }' "$source" | sed 's/\. .*//; s/[.:]$//')
[ -n "$what" ] || {
    echo "man.sh: the first words of $source do not say what the program does" >&2
    exit 1
}
help=$("$program" --help)
echo ".TH $(echo "$name" | tr a-z A-Z) 1 \"\" \"zeroflow $version\" \"zeroflow\""
printf '.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n' "$(echo "$name" | plain)" "$(echo "$what" | plain)"
echo "$help" | sed -n '1s/^[Uu]sage: *//p' | block
echo .SH DESCRIPTION
echo "$help" | sed 1d | block
echo "$help" | awk 'NR == 1 && !/ COMMAND / { exit } /^  [a-z]+  +/ { print $1 }' |
    while read -r command; do
        echo ".SH $(echo "$command" | tr a-z A-Z)"
        "$program" "$command" --help all | block
    done
