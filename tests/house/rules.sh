#!/bin/sh
# Each rule of verifier, parser, passes and others has a wrong input: sh tests/house/rules.sh
# [FILE...]
#
# Of each message of the folders below, or of FILE, the longest part between values must be in a
# test: of each text that is given to a function whose name says that something is refused.
# Prints the messages of which none is, and the number of all.
set -u
export LC_ALL=C
# shellcheck disable=SC2046 # words
[ $# != 0 ] || set -- $(find base comm cpu graph io ir llm nn ops options passes plan run store \
    cuda examples/bert examples/frame examples/gpt examples/llm examples/opt zeroflow_*.c -name '*.c' -o -name '*.cu')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# joined FILE...: their text; string literals that follow one another are one, and so are lines that
# a backslash continues.
joined() {
    cat "$@" | awk '{
        if (open && match($0, /^[ \t]*"/)) $0 = substr($0, RSTART + RLENGTH)
        else if (!more) printf open ? "\"\n" : "\n"
        more = sub(/\\$/, "")
        open = !more && sub(/"$/, "")
        printf "%s", $0
    }'
}
# shellcheck disable=SC2046
joined $(find tests -name '*.c' -o -name '*.cu' -o -name '*.zf' -o -name '*.sh') > "$work/tests"
joined "$@" | awk '
    BEGIN { RS = "(bad|error|fail|fails|refuse|refused|wrong)[a-z_]*\\(" }
    NR > 1 {
        sub(/;\n.*/, "")
        while (match($0, /"([^"\\]|\\.)*"/)) {
            text = substr($0, RSTART + 1, RLENGTH - 2)
            $0 = substr($0, RSTART + RLENGTH)
            best = ""
            n = split(text, part, /%[-+0-9.*]*(ll|z)?[a-zA-Z%]|\\./)
            for (k = 1; k <= n; k++) if (length(part[k]) > length(best)) best = part[k]
            gsub(/^[ :]+| +$/, "", best)
            if (length(best) > 11) print best
        }
    }' | sort -u > "$work/rules"
failed=0
while read -r rule; do
    # Those of other builds and machines (processes with GPUs), of files of 2 GB and more, and of a
    # system that refuses a thread, addresses, to sync a folder, to read or to write; and what a
    # plan says to a program that runs it.
    case $rule in
    *'gives no thread for'* | *': a line is longer than 2 GB' | "': cannot read:") continue ;;
    'the corpus has more than') continue ;;
    'cannot read standard input' | 'cannot write standard output' | 'a plan exchanges nothing') continue ;;
    *'was started alone: start them with mpirun, torchrun or srun' | *'takes all ranks as one node') continue ;;
    'this program was built without PCRE2'* | *'too many for this machine' | *'system refused '*thread* | \
        'offload: the system has no room for' | 'is set in C, and not by text' | 'sync the folder of') continue ;;
    esac
    grep -qF -- "$rule" "$work/tests" && continue
    failed=$((failed + 1))
    echo "no test has: $rule"
done < "$work/rules"
all=$(wc -l < "$work/rules")
echo "$((all - failed)) rules have a wrong input, $failed have none"
[ $failed = 0 ] && [ "$all" -gt 200 ]
