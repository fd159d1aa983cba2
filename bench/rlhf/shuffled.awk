# The rewards of `exact`, of which each group of answers to a prompt has its own in a random order: a
# control, from which there is nothing to learn. A command of rewards (docs/rollouts.md):
#
#     --reward 'cmd:awk -f bench/rlhf/shuffled.awk'
#
# Lines with the same data that follow one another are a group. The order depends on the answers alone.
function below(n) {
    state = state * 48271 % 2147483647
    return state % n
}
function member(text, name) {
    if (!match(text, "\"" name "\": \"[^\"]*\"")) return ""
    return substr(text, RSTART + length(name) + 5, RLENGTH - length(name) - 6)
}
function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    return text
}
function finish(   k, at, reward) {
    for (k = count - 1; k > 0; k--) {
        at = below(k + 1)
        reward = rewards[k]
        rewards[k] = rewards[at]
        rewards[at] = reward
    }
    for (k = 0; k < count; k++) print rewards[k]
    count = 0
}
BEGIN { state = 1 }
{
    data = $0
    sub(/.*"data": /, "", data)
    if (data != before) finish()
    before = data
    said = trimmed(member($0, "completion"))
    rewards[count++] = said == trimmed(member(data, "answer"))
    for (k = 1; k <= length(said); k++)
        state = (state * 31 + 1 + index("0123456789", substr(said, k, 1))) % 2147483646 + 1
}
END { finish() }
