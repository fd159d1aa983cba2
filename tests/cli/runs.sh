# Checks for the runs of every sample: checkpoints, outputs that cannot be written, signals, logs.
# Included, after cli.sh, by the tests of a program, which define:
#
#     self               the program's name in its messages, and the variable that has its path
#     reading            the text
#     train OPTIONS...   runs `$before PROGRAM pretrain` on a small model and text

before=
short='--steps 4 --eval-batches 1 --quiet'
# With a constant schedule, so that it can be interrupted after any number of steps.
endless='--schedule constant --warmup 5 --steps 100000 --eval-batches 1'

# fails_as TEXT OPTIONS...: the run ends with this error before its first step.
fails_as() {
    text=$1
    shift
    run train "$@"
    [ $status = 1 ] && [ "$(cat "$work/err")" = "$self: $text" ] && ! grep -q '^step' "$work/out"
}
# step_of DIR: the step of a checkpoint.
step_of() { sed -n 's/^  "step": \([0-9]*\),$/\1/p' "$1/manifest.json"; }
# starts FILE OPTIONS...: an endless run in the background, until FILE has more than six lines.
starts() {
    file=$1
    shift
    # shellcheck disable=SC2086
    (before=exec && train $endless "$@") > "$work/out" 2> "$work/err" < /dev/null &
    while kill -0 $! && ! [ "$(grep -c '' "$file")" -gt 6 ]; do sleep 0.05; done 2> /dev/null
}

# ------------------------------------------------------------------------------------ checkpoints

# shellcheck disable=SC2086
first_run() { ends 0 train $short --save "$work/place" --log "$work/place.csv"; }
check 'a run that saves' first_run
# A name without a slash or a dot, such as a model's.
# shellcheck disable=SC2086
named() {
    program=$(eval "echo \"\$$self\"")
    case $program in /*) ;; *) program=$PWD/$program ;; esac
    (cd "$work" && ends 0 "$program" export --load place named.safetensors &&
        ends 0 "$program" pretrain --corpus "$reading" --load place \
            --seq 32 --batch 4 $short)
}
check 'a folder by a name alone' named
taken="--save $work/place: it holds the checkpoint of another run: go on with --load $work/place,\
 replace it with --overwrite, or name another place"
# shellcheck disable=SC2086
spares() {
    fails_as "$taken" $short --seed 2 --save "$work/place" --log "$work/place.csv" &&
        [ "$(step_of "$work/place")" = 4 ] && [ "$(grep -c '' "$work/place.csv")" = 5 ] &&
        run train $short --save "$work/place/" && [ $status = 1 ] && [ ! -e "$work/place.zf-lock" ]
}
check "another run's checkpoint stays" spares
# shellcheck disable=SC2086
replaces() {
    cp -r "$work/place" "$work/before" &&
        ends 0 train $short --steps 3 --save "$work/place" --overwrite &&
        [ "$(step_of "$work/place")" = 3 ] && diff -r "$work/before" "$work/place.previous-1"
}
check 'but for --overwrite, with which it is kept' replaces
# shellcheck disable=SC2086
keeps() {
    ends 0 train $short --steps 7 --save "$work/kept" --save-every 2 --keep 3 &&
        [ "$(step_of "$work/kept")" = 7 ] && [ "$(step_of "$work/kept.previous-1")" = 6 ] &&
        [ "$(step_of "$work/kept.previous-2")" = 4 ] && [ ! -e "$work/kept.previous-3" ] &&
        [ "$(ls -d "$work"/kept* | grep -c '')" = 3 ]
}
check 'three checkpoints' keeps
# shellcheck disable=SC2086
goes_back() {
    ends 0 train $short --steps 7 --dump "$work/straight" &&
        ends 0 train $short --steps 7 --load "$work/kept.previous-2" --save "$work/kept" --keep 3 \
            --dump "$work/bent" && cmp "$work/straight" "$work/bent" &&
        [ "$(step_of "$work/kept")" = 7 ] && [ "$(step_of "$work/kept.previous-1")" = 7 ] &&
        [ "$(step_of "$work/kept.previous-2")" = 6 ]
}
check 'on from an earlier one: the same bits' goes_back
# shellcheck disable=SC2086
keeps_one() {
    ends 0 train $short --steps 7 --load "$work/kept" --save "$work/kept" --keep 1 &&
        [ "$(ls -d "$work"/kept* | grep -c '')" = 1 ]
}
check 'one checkpoint' keeps_one
mkdir "$work/own.previous-1"
: > "$work/own.previous-1/letter"
check 'a place for those before it that is taken' fails_as "--save $work/own: the checkpoint before\
 it would become $work/own.previous-1, which is there and is none; name another place, or --keep 1" \
    --save "$work/own"
one_at_a_time() {
    starts "$work/one.csv" --save "$work/one" --log "$work/one.csv"
    first=$!
    run train --save "$work/one"
    kill -INT $first
    wait $first
    [ $? = 130 ] && [ -s "$work/one/manifest.json" ] && [ $status = 1 ] && [ "$(cat "$work/err")" = \
        "$self: --save $work/one: another process saves there; name another place" ]
}
check 'one process saves at a place' one_at_a_time
check 'and leaves no lock' test ! -e "$work/one.zf-lock"

# --------------------------------------------------------------------------------------- outputs

for option in dump dump-grads report; do
    check "--$option in no folder" fails_as "--$option $work/none/file: No such file or directory" \
        --$option "$work/none/file"
done
check '--report as a folder' fails_as "--report $work: it is a directory" --report "$work"
check '--save in no folder' fails_as "--save $work/none/check: No such file or directory" \
    --save "$work/none/check"
check '--save as a file' fails_as "--save $work/place.csv: Not a directory" --save "$work/place.csv"
check '--save among other files' \
    fails_as "--save $work/own.previous-1: it holds letter and is no checkpoint; name another place" \
    --save "$work/own.previous-1"
check '--log in no folder' fails_as "$work/none/log: No such file or directory" \
    --log "$work/none/log"
# shellcheck disable=SC2086
untouched() {
    echo text > "$work/report" && train $short --report "$work/report" --dump "$work/none/dump" \
        > "$work/out" 2>&1
    [ "$(cat "$work/report")" = text ] && [ ! -e "$work/report.zf-try" ]
}
check 'what was tried is as it was' untouched
# shellcheck disable=SC2086
leftover() { # of that name, which is a file of somebody, or what a killed run has left
    echo letter > "$work/tried.zf-try" && fails_as "--report $work/tried: File exists" $short \
        --report "$work/tried" && [ "$(cat "$work/tried.zf-try")" = letter ] &&
        head -c 4096 /dev/zero > "$work/tried.zf-try" &&
        ends 0 train $short --report "$work/tried" && [ ! -e "$work/tried.zf-try" ]
}
check 'what only has the name of a leftover stays' leftover

# What is printed.
full() { # full COMMAND...
    "$@" > /dev/full 2> "$work/err" < /dev/null
    [ $? = 1 ] &&
        grep -q "^$self: what was printed could not be written: \(No space left on device\|an earlier write has failed\)$" "$work/err"
}
check 'help on a full disk' full train --help
# shellcheck disable=SC2086
full_run() { full train $short --save "$work/full" && [ "$(step_of "$work/full")" = 4 ]; }
check 'a run that prints on a full disk goes on, and says so' full_run
closed() {
    train --steps 4 --eval-batches 1 --log "$work/closed.csv" --dump "$work/closed" \
        > "$work/out" 2> "$work/err" < /dev/null >&- &&
        [ "$(grep -c '' "$work/closed.csv")" = 5 ] && ! grep -q '[a-z] ' "$work/closed.csv"
}
check 'nothing is printed into the log where the output is closed' closed

# ---------------------------------------------------------------------------------------- signals

# ends_by SIGNAL: it saves and says so; resumed, it has the bits of a run without interruption.
ends_by() {
    rm -rf "$work"/signal*
    starts "$work/signal.csv" --save "$work/signal" --log "$work/signal.csv"
    kill "-$1" $!
    wait $!
    [ $? = 130 ] && [ ! -s "$work/err" ] &&
        grep -q "^interrupted after step $(step_of "$work/signal"); " "$work/out"
}
for signal in HUP TERM USR1; do check "SIG$signal" ends_by $signal; done
# shellcheck disable=SC2086
unread() {
    mkfifo "$work/unread.fifo"
    : < "$work/unread.fifo" & # opens it, and goes
    train $endless --save "$work/unread" > "$work/unread.fifo" 2> "$work/err" < /dev/null
    [ $? = 130 ] && grep -q "^interrupted after step $(step_of "$work/unread"); " "$work/err" &&
        grep -q "^$self: what was printed could not be written: " "$work/err"
}
check 'nobody reads what it prints: it saves' unread
hangs_up() { # a run that is to survive its terminal
    rm -rf "$work"/hung*
    (
        trap '' HUP
        starts "$work/hung.csv" --save "$work/hung" --log "$work/hung.csv"
        kill -HUP $!
        rows=$(grep -c '' "$work/hung.csv")
        while [ "$(grep -c '' "$work/hung.csv")" -le $((rows + 3)) ] && kill -0 $! 2> /dev/null; do
            sleep 0.05
        done
        kill -INT $!
        wait $!
        [ $? = 130 ] && [ "$(step_of "$work/hung")" -gt "$rows" ]
    )
}
check 'nohup' hangs_up

# ------------------------------------------------------------------------------------------- logs

# Killed three times: each row is there once, and in order.
# shellcheck disable=SC2086
rows() {
    rm -rf "$work/rows"*
    load=
    for k in 1 2 3; do
        # $load: no word has a space
        starts "$work/rows.csv" --save "$work/rows" --save-every 3 $load --log "$work/rows.csv"
        while [ "$(step_of "$work/rows" 2> /dev/null || echo 0)" -lt $((9 * k)) ] &&
            kill -0 $!; do sleep 0.05; done 2> /dev/null
        kill -KILL $!
        wait $! 2> /dev/null
        (cd "$work" && ln -sfn rows resumed)
        load="--load $top/resumed"
        ln -sfn "$work/rows" "$top/resumed"
    done
    step=$(step_of "$work/rows")
    ends 0 train $endless --steps $((step + 2)) --load "$work/rows" --log "$work/rows.csv" &&
        awk -F, 'NR > 1 && $1 != NR - 1 { bad = 1 } END { exit bad || NR != '$((step + 3))' }' \
            "$work/rows.csv"
}
check 'a log of a run that was killed three times' rows
# shellcheck disable=SC2086
foreign() {
    echo 'time,loss' > "$work/foreign.csv"
    run train $short --steps 6 --load "$work/place.previous-1" --log "$work/foreign.csv"
    [ $status = 1 ] && grep -q "^$self: $work/foreign.csv: a run that goes on adds rows" "$work/err" &&
        [ "$(cat "$work/foreign.csv")" = 'time,loss' ]
}
check "another file's lines" foreign
# The reader of the output is closed.
# shellcheck disable=SC2086
broken() {
    mkfifo "$work/fifo"
    head -n 2 < "$work/fifo" > "$work/head" &
    run train --steps 400 --eval-batches 0 --quiet --log "$work/fifo" --save "$work/broken"
    wait $!
    [ $status = 1 ] && [ "$(step_of "$work/broken")" = 400 ] && [ "$(grep -c '' "$work/err")" = 2 ] &&
        grep -q "^$self: $work/fifo: Broken pipe; [0-9]* rows are not in the log$" "$work/err"
}
check 'a log that breaks off does not end the run' broken

# ------------------------------------------------------------------------- what has no effect, NaN

# shellcheck disable=SC2086
complete_already() {
    ends 0 train $short --steps 3 --load "$work/before" && grep -qx "$work/before has had 4 steps,\
 and --steps 3 counts from the first: there is nothing to train" "$work/out"
}
check 'fewer steps than there have been' complete_already
# shellcheck disable=SC2086
init_unread() {
    ends 0 train $short --steps 5 --load "$work/before" --init "$work/straight" &&
        grep -qx -e "--init $work/straight is not read: the weights are those of --load\
 $work/before" "$work/out"
}
check '--init with --load' init_unread
# shellcheck disable=SC2086
not_a_number() {
    cp "$work/straight" "$work/nan" && size=$(wc -c < "$work/nan") &&
        awk 'BEGIN { for (i = 0; i < 2000; i++) printf "\377" }' |
        dd of="$work/nan" bs=1 seek=$((size - 2000)) conv=notrunc 2> /dev/null &&
        fails_as 'held out: the loss is not a finite number' $short --steps 0 --init "$work/nan"
}
check 'an evaluation that is not finite' not_a_number
# The maximum number of workers; the time of such a step is not checked.
# shellcheck disable=SC2086
workers() { ends 0 train $short --steps 1 --threads 1024 --dump "$work/many" &&
    ends 0 train $short --steps 1 --dump "$work/few" && cmp "$work/many" "$work/few"; }
check '1024 threads' workers
# A position that no example reaches is non-finite: no step reads it, but it is not saved.
# shellcheck disable=SC2086
spoilt() {
    cp "$work/straight" "$work/spoilt" || return
    length=$(od -An -tu8 -N8 "$work/spoilt")
    last=$(head -c $((length + 8)) "$work/spoilt" | tr '{' '\n' | tr -d '\000' |
        sed -n "/position_embeddings.weight\|wpe.weight/{n;s/.*\[[0-9]*, *\([0-9]*\)\].*/\1/p;}" |
        head -n 1)
    printf '\377\377\377\377' |
        dd of="$work/spoilt" bs=1 seek=$((length + 8 + last - 4)) conv=notrunc 2> /dev/null
    run train $short --seq 16 --init "$work/spoilt" --save "$work/place" --overwrite
    [ $status = 1 ] && grep -q "^$self: zf_save: step 4: .* is not finite, so nothing is saved" \
        "$work/err" && [ "$(step_of "$work/place")" = 3 ] &&
        [ "$(step_of "$work/place.previous-1")" = 4 ] &&
        [ "$(ls -d "$work"/place* | grep -c '')" = 4 ] # with place.csv and place.eval.csv
}
check 'a state that is not finite is not saved' spoilt
