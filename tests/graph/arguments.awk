# Writes calls of every public function with odd arguments, for tests/graph/arguments.c:
# awk -f tests/graph/arguments.awk zeroflow.h api/*.h
#
# A call picks each argument by its type. Of a struct that is a desc or a result, a function sets every
# member. What a caller promises is kept: `count` elements and `bytes` are there, strings end.

{ sub(/\r$/, "") }
/^#/ || /\\$/ { next } # macros; their last lines hold no declarations
{ text = text " " $0 }

# Whether a list of words has this one.
function listed(word, list) { return index(" " list " ", " " word " ") > 0 }

function trim(s) { gsub(/[ \t]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }

# Splits the parameters at commas that are in no parentheses; returns their number.
function split_params(s, out,    n, depth, i, c, part) {
    n = depth = 0; part = ""
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        if (c == "(") depth++
        if (c == ")") depth--
        if (c == "," && !depth) { out[++n] = trim(part); part = "" } else part = part c
    }
    if (trim(part) != "" && trim(part) != "void") out[++n] = trim(part)
    return n
}

# The argument for a parameter, from its declaration; `known`: a pointer of the call is not NULL.
function argument(f, p,    type, name, stars) {
    if (p ~ /\(/) return "NULL"
    if (p ~ /\[/) return "pick_text(w)"
    name = p; sub(/.*[ *]/, "", name)
    type = substr(p, 1, length(p) - length(name)); gsub(/const /, "", type)
    stars = gsub(/\*/, "", type); type = trim(type)
    sub(/ const$/, "", type)
    if (!stars) {
        if (type in enums) return "(" type ")pick_enum(w)"
        if (type == "zf_shape" && f == "zf_values") return "pick_small_shape(w)"
        if (name == "count" || name == "world") return "(" type ")pick_count(w, pointers)"
        if ((name == "bytes" || name == "size") && !listed(f, sized)) return "(size_t)pick_room(w)"
        return "pick_" type "(w)"
    }
    if (type == "char" && stars == 1) {
        if (name == "path") return "pick_path(w)"
        return p ~ /const/ ? "pick_name(w)" : "pick_text(w)"
    }
    if (type == "char" && name == "argv") return "pick_argv(w)"
    if (type == "void" && name == "file") return "pick_FILE(w)"
    if (type == "void" && stars == 2) return "pick_parts(w)"
    if (name == "top") return "pick_top(w)"
    return "pick_" type (stars > 1 ? "_list" : "_at") "(w)"
}

function declare_calls(s,    f, n, k, out, result, call) {
    if (s ~ /typedef|extern|#/) return
    f = s; sub(/\(.*/, "", f); sub(/.*[ *]/, "", f)
    result = s; sub(/ *\**zf_[a-z0-9_]* *\(.*/, "", result)
    sub(/^[^(]*\(/, "", s); sub(/\)[^)]*(__attribute__.*)?$/, "", s)
    sub(/\) *__attribute__.*/, "", s)
    n = split_params(s, out)
    printf "static void call_%s(world *w)\n{\n    int pointers = 0;\n", f
    call = ""
    for (k = 1; k <= n; k++) {
        if (out[k] == "...") continue
        params[k] = argument(f, out[k])
        if (params[k] ~ /pick_count/ || params[k] == "NULL") continue
        printf "    CALL_ARGUMENT(a%d, %s)\n", k, params[k]
        if (out[k] ~ /\*/ && out[k] !~ /\(/) printf "    pointers += a%d != NULL;\n", k
    }
    for (k = 1; k <= n; k++) {
        if (out[k] == "...") continue
        if (params[k] ~ /pick_count/) printf "    CALL_ARGUMENT(a%d, %s)\n", k, params[k]
        call = call (k > 1 ? ", " : "") (params[k] == "NULL" ? "NULL" : "a" k)
    }
    printf "    (void)w, (void)pointers;\n"
    if (listed(f, makers)) printf "    CALL_MADE(%s(%s));\n", f, call
    else if (result == "void") printf "    %s(%s);\n", f, call
    else printf "    (void)%s(%s);\n", f, call
    if (f ~ /_free$|_close$/) printf "    forget(w, a1);\n"
    printf "}\n"
    names[++count] = f
}

# Members of one struct: `int32_t a, b;`, arrays and pointers left out.
function declare_filling(name, body,    lines, n, k, parts, m, j, type, member) {
    structs[name] = 1
    printf "static void fill_%s(world *w, %s *d)\n{\n    (void)w, (void)d;\n", name, name
    n = split(body, lines, ";")
    for (k = 1; k <= n; k++) {
        lines[k] = trim(lines[k])
        if (lines[k] ~ /[*(\[{}#]/ || lines[k] == "") continue
        m = split(lines[k], parts, ",")
        type = parts[1]; sub(/ [a-z0-9_]*$/, "", type)
        gsub(/const |struct /, "", type)
        for (j = 1; j <= m; j++) {
            member = trim(parts[j]); sub(/.* /, "", member)
            if (type in structs) printf "    fill_%s(w, &d->%s);\n", type, member
            else if (type in enums) printf "    d->%s = (%s)pick_enum(w);\n", member, type
            else if (listed(type, numbers)) printf "    d->%s = pick_%s(w);\n", member, type
        }
    }
    printf "}\nstatic %s *pick_%s_at(world *w)\n{\n    static %s d[ROOM];\n", name, name, name
    printf "    if (one_of(w, 3) == 0) return NULL;\n    memset(d, 0, sizeof d);\n"
    printf "    if (one_of(w, 3)) fill_%s(w, &d[0]);\n    return d;\n}\n", name
}

END {
    # bytes that a function compares with those of a tensor
    sized = "zf_write zf_read zf_write_range zf_store_read zf_store_write zf_safetensors_read \
zf_safetensors_read_range zf_lockstep_read zf_safetensors_write"
    makers = "zf_graph_new zf_graph_copy zf_graph_parse zf_cpu_backend zf_local_new zf_store_new \
zf_compile zf_json_parse zf_json_read zf_json_writer_new zf_checkpoint_open zf_safetensors_open \
zf_safetensors_parse zf_safetensors_writer_new zf_report_new zf_trace_new zf_hold_graph zf_block_mask_new"
    numbers = "int int32_t int64_t uint64_t uint32_t size_t double bool zf_tensor zf_shape"
    # picked by tests/graph/arguments.c: what a program makes, and what points to values
    own = "zf_shape zf_tensor zf_attribute zf_array zf_launch zf_infer zf_grad zf_options zf_option \
zf_option_value zf_backend zf_comm zf_operator zf_section zf_allocator zf_cuda_sum zf_cuda_place \
zf_fuse_miss zf_span zf_error zf_run"
    while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//))
        text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    rest = text
    while (match(rest, /typedef enum zf_[a-z_0-9]*/)) {
        name = substr(rest, RSTART + 13, RLENGTH - 13); rest = substr(rest, RSTART + RLENGTH)
        enums[name] = 1
    }
    print "/* Made by tests/graph/arguments.awk. */"
    rest = text
    while (match(rest, /typedef struct zf_[a-z_0-9]* *\{/)) {
        name = substr(rest, RSTART + 15, RLENGTH - 15); sub(/ *\{/, "", name)
        rest = substr(rest, RSTART + RLENGTH)
        depth = 1
        for (i = 1; depth; i++) {
            c = substr(rest, i, 1)
            if (c == "{") depth++
            if (c == "}") depth--
        }
        body = substr(rest, 1, i - 2)
        gsub(/struct *\{[^}]*\}[^;]*;/, "", body)
        if (!listed(name, own)) declare_filling(name, body)
    }
    n = split(text, statements, ";")
    for (i = 1; i <= n; i++)
        if (match(statements[i], /ZF_(API|BUILDER) .*/)) {
            s = substr(statements[i], RSTART, RLENGTH); sub(/ZF_(API|BUILDER) /, "", s)
            declare_calls(trim(s))
        }
    print "static const callee callees[] = {"
    for (i = 1; i <= count; i++) printf "    {\"%s\", call_%s},\n", names[i], names[i]
    print "};"
}
