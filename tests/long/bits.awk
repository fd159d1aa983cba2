# Draws a configuration of tests/long/bits.sh: awk -v seed=N -f tests/long/bits.awk. Two lines, each
# with '|' between its fields: what decides bits, then what must not.
#
#     PROGRAM|LAYERS|WIDTH|OPTIONS OF BOTH RUNS|OPTIONS OF THE FIRST RUN
#     OPTIONS OF THE SECOND RUN, or of its beginning|OPTIONS OF ITS REST; empty: it is not
# interrupted

function below(n) { state = state * 16807 % 2147483647; return int(state / 2147483647 * n) }
function chance(percent) { return below(100) < percent }
function pick(list, of, n) { n = split(list, of, " "); return of[1 + below(n)] }

# A divisor of n that is `least` or more.
function divisor(n, least, list, d) {
    for (d = least; d <= n; d++) if (n % d == 0) list = list " " d
    return pick(list)
}
function smallest(n, least) { while (n % least) least++; return least }

# Options that share `parts` micro-batches of nodes (of Z ranks each) between nodes.
function split_of(nodes, text) {
    text = " --ranks " nodes * inside " --micro-batches " parts / nodes
    if (inside > 1) return text " --nodes " nodes
    return chance(30) ? text " --nodes " pick("1 " nodes) : text
}

function kinds_of(stage, list, k) { # what of a step lies in another space
    for (k = 1; k <= 4; k++) if (chance(40) && (kind[k] != "parameters" || stage % 3 == 0))
        list = list (list ? "," : "") kind[k] "=" pick("host host disk")
    if (list !~ /^(activations=[a-z]*)?$/ && chance(30)) list = list ",piece=" pick("4096 8192 65536")
    return list
}

# Options of a run that change no bit.
function way(   text, stage, nodes, list) {
    stage = pick(stages)
    nodes = fixed ? fixed : divisor(parts, least)
    if (nodes * inside == 1 && quantized) nodes = least
    text = split_of(nodes) " --zero " stage " --threads " pick("1 2 3")
    if (stage && inside > 1 && nodes > 1 && chance(30)) text = text " --mics " inside
    else if (stage == 3 && inside > 1 && nodes > 1 && chance(40)) text = text " --zero-hpz"
    if (chance(60)) text = text " --bucket " pick("1 4000 20000 100000000")
    if (chance(50)) {
        text = text " --prefetch " pick("5000 20000 10000000")
        if (stage == 3 && chance(30)) text = text " --keep-gathered"
    }
    if (chance(40)) text = text " --recompute " pick("off layers")
    list = onebit || chance(50) ? "" : kinds_of(stage)
    return list ? text " --offload " list (list ~ /disk/ ? " --offload-dir DISK" : "") : text
}

BEGIN {
    state = (seed * 7919 + 104729) % 2147483646 + 1
    for (i = 0; i < 9; i++) below(2)
    split("optimizer parameters gradients activations", kind, " ")

    program = pick("bert bert gpt llm")
    inside = pick("1 1 2 2 3 4") # ranks of a node
    parts = inside == 1 ? pick("2 3 4 6 8") : inside == 4 ? 2 : pick("2 4 4 " (inside == 2 ? 6 : 3))
    stages = "0 1 2 3"
    least = inside > 1 ? 2 : 1
    optimizer = pick("adamw adamw lamb sgd lion")
    sent = below(10) # what ranks send
    quantized = sent < 3
    onebit = sent == 3
    precision = pick("f32 bf16 bf16 " (onebit ? "" : "f16"))
    both = " --batch " parts * inside * pick("1 2") " --seq " pick("8 16 24")
    both = both " --dropout " pick("0 0.1") " --precision " precision
    both = both " --clip " pick("0 0.5") " --weight-decay " pick("0 0.01")
    if (chance(20)) both = both " --no-fuse " pick("all linear attention head norm,invert chain")

    if (quantized) {
        least = 2
        stages = sent == 1 ? "3" : "1 2 3"
        both = both (sent == 1 ? " --zero-quantized-weights" : "")
        both = both (sent != 1 || chance(50) ? " --zero-quantized-gradients" : "")
        both = both " --quantized-block " pick("64 256") " --quantized-scale " pick("f32 bf16")
        if (sent == 2) both = both " --zero-loco --loco-bits " pick("8 32") " --loco-reset " pick("-1 2")
    } else if (onebit) {
        inside = 1
        least = 1
        stages = "0 1 2"
        optimizer = pick("onebit_adam onebit_lamb zero_one_adam")
        both = both " --freeze-step 2" (optimizer ~ /zero/ ? " --local-step-clipper 1" : "")
    }
    if (!onebit && chance(15)) both = both " --delay-update " pick("0 2")
    if (sent != 2 && !onebit && chance(20)) both = both " --tile " pick("4K 2000")
    if (!onebit && program != "bert" && chance(20)) both = both " --lora rank=2,targets=all-linear"
    both = both " --optimizer " optimizer " --steps 5 --lr " pick("0.001 0.01")

    if (sent == 2 || onebit) fixed = divisor(parts, least) # their bits depend on the ranks
    one = split_of(fixed ? fixed : smallest(parts, least)) " --zero " substr(stages, 1, 1)
    print program "|" pick("1 2 3") "|" pick("32 48") "|" both "|" one
    print way() "|" (chance(40) ? way() : "")
}
