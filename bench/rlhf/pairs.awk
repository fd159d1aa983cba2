# Pairs of answers from questions and answers, JSON Lines:
# awk -f bench/rlhf/pairs.awk -v seed=1 [-v each=4] FILE
#
# What is chosen is the answer; what is rejected is that of another line, a random one: `each` (1)
# pairs of a line. The generator of random numbers is that of Park and Miller, in integers, so the
# pairs are the same for any awk.
function below(n) {
    state = state * 48271 % 2147483647
    return state % n
}
BEGIN {
    state = seed * 7919 + 1
    if (!each) each = 1
}
{
    split($0, part, "\"")
    prompt[NR] = part[4]
    response[NR] = part[8]
}
END {
    for (pair = 0; pair < each * NR; pair++) {
        k = pair % NR + 1
        do other = 1 + below(NR); while (response[other] == response[k])
        printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt[k],
            response[k], response[other]
    }
}
