# Additions of two numbers of two digits in a random order, as JSON Lines, the first `held` of them in
# one file: awk -f bench/rlhf/problems.awk -v seed=1 -v held=500 -v first=HELD -v rest=TRAIN
#
# A line has the prompt, what a model is fine-tuned on (response) and what its answer is compared with
# (answer). The generator of random numbers is that of Park and Miller, in integers, so the files are
# the same for any awk.
function below(n) {
    state = state * 48271 % 2147483647
    return state % n
}
BEGIN {
    state = seed * 7919 + 1
    for (a = 10; a < 100; a++)
        for (b = 10; b < 100; b++) problem[count++] = a " + " b
    for (k = count - 1; k > 0; k--) {
        at = below(k + 1)
        text = problem[k]
        problem[k] = problem[at]
        problem[at] = text
    }
    for (k = 0; k < count; k++) {
        split(problem[k], number, " ")
        sum = number[1] + number[3]
        printf "{\"prompt\": \"%s =\", \"response\": \" %d\", \"answer\": \"%d\"}\n", problem[k], sum,
            sum > (k < held ? first : rest)
    }
}
