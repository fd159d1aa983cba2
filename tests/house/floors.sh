#!/bin/sh
# The includes of examples/ and of zeroflow_llm.h, sh tests/house/floors.sh:
#
#   - no circle of files, of which NAME.c and NAME.h count as one, nor one of folders;
#   - no sample includes a file of another one;
#   - zeroflow_llm.h includes zeroflow.h, all declarations in llm/api, and all of llm/base,
#     wordpiece, text, jinja, chat, folder, generate, causal, family, mixture, models, losses,
#     rollout and tuning, floor by floor; those files include only tables next to them;
#   - llm/ has no private name of zeroflow.h, prints nothing and never ends a program; nobody else has
#     a private name of llm/.
#
# Prints what is wrong; the status is 1 if anything is.
set -u
export LC_ALL=C

# FILE INCLUDED, both from the root, of each include in quotation marks. A name that is not there as
# seen from the file is one of the root.
edges=$(find llm examples zeroflow_llm.h -name '*.[ch]' | sort | xargs awk '
    /^#include "/ {
        split($0, part, "\"")
        n = split(FILENAME, folder, "/") - 1
        m = split(part[2], name, "/")
        for (i = 1; i <= m; i++)
            if (name[i] == "..") n--
            else folder[++n] = name[i]
        path = folder[1]
        for (i = 2; i <= n; i++) path = path "/" folder[i]
        if ((getline line < path) < 0) path = part[2]
        close(path)
        print FILENAME, path
    }')

# Of lines "A B": tsort fails for a circle, and names what is in it.
circle() {
    awk '$1 != $2' | sort -u | tsort 2>&1 > /dev/null |
        sed "s/^tsort: -: .*/a circle of $1:/; s/^tsort: /    /"
}

floors() { # the floors of the files that zeroflow_llm.h includes, in its order
    echo "$edges" | sed -n 's,^zeroflow_llm\.h llm/\([a-z]*\)/.*,\1,p' | uniq | tr '\n' ' '
}

found=$(
    echo "$edges" | sed 's/\.[ch] / /; s/\.[ch]$//' | circle files
    echo "$edges" | sed 's,/[^/ ]* , ,; s,/[^/ ]*$,,' | grep -v '^zeroflow_llm' | circle folders
    echo "$edges" | awk '{
        split($1, from, "/")
        split($2, to, "/")
        if (from[1] == "examples" && to[1] == "examples" && from[2] != to[2] && to[2] != "frame")
            print $1 " includes " $2 " of another sample"
        if (from[1] == "llm" && (to[2] != from[2] || $2 ~ /\.c$/))
            print $1 " includes " $2
    }'
    [ "$(floors)" = 'api base wordpiece text jinja chat folder generate causal family mixture models losses rollout tuning ' ] ||
        echo "zeroflow_llm.h includes the floors $(floors)"
    grep -nE '\b(zfi|ZFI|zfd|ZFD)_|\b(v?printf|puts|putchar|perror|exit|abort|getenv)\(' \
        llm/*/*.[ch] llm/api/*/*.h
    grep -rnE '\b(zfl|ZFL|zfj|ZFJ)_' examples bench tools tests --include='*.[ch]'
    for file in llm/*/*.c llm/api/*/*.h; do
        echo "$edges" | grep -qx "zeroflow_llm.h $file" || echo "zeroflow_llm.h lacks $file"
    done
)
[ -z "$found" ] || {
    echo "$found"
    exit 1
}
