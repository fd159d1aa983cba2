# What run.sh and more.sh share: the library installed in $root, and how a program that uses it is
# built and run. Part of tests/run.sh: $work is a scratch folder. Warnings are errors everywhere.
# Lists of flags are split into words on purpose.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154

strict='-std=c11 -Wall -Wextra -pedantic -Wshadow -Werror'
strict_cxx='-std=c++17 -Wall -Wextra -pedantic -Wshadow -Werror'
here=tests/consumers
own='-DZEROFLOW_IMPLEMENTATION -DZFI_PORTABLE'
link='-lm -lpthread'

# builds COMMAND...: compiles to $work/app and runs that.
builds() {
    rm -f "$work/app"
    echo "$* -o $work/app $link"
    "$@" -o "$work/app" $link && "$work/app"
}

installs() {
    MAKEFLAGS='' make -s --no-print-directory install-headers STAGE="$work/stage" \
        DESTDIR="$work/root" PREFIX=/usr
}

root=$work/root
include=-I$root/usr/include
