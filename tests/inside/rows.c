/* What rows of ZF_OPS and records must say: what is forgotten is named. */

static void forgotten(test *t, zf_op op, const char *what)
{
    test_fail(t, __FILE__, __LINE__, zf_op_name(op), what);
}

TEST_ONCE(elementwise_operators_count_functions)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++)
        if (zfi_records[op]->traits & ZF_OP_ELEMENTWISE && !zfi_records[op]->functions)
            forgotten(t, (zf_op)op, "its record has no .functions (none: zfi_functions_none)");
}

TEST_ONCE(kernels_of_elements_are_complete)
{
    for (int op = ZF_OP_none + 1; op < ZF_OP_COUNT; op++) {
        const zfi_record *record = zfi_records[op];
        if (record->cpu == zfi_cpu_elements && (!record->value || !record->piece))
            forgotten(t, (zf_op)op, "its record has no .value and .piece, which its .cpu calls");
    }
}

TEST_ONCE(instructions_are_complete)
{
    for (int code = 0; code < ZFI_COUNT(zfi_instructions); code++) {
        const zfi_instruction *i = &zfi_instructions[code];
        const zfi_record *record = zfi_records[i->op];
        const bool two = i->kind == ZF_CHAIN_BINARY || i->kind == ZF_CHAIN_GRADIENT;
        if (i->op == ZF_OP_none) {
            test_fail(t, __FILE__, __LINE__, "ZF_OPS", "a code of chains is left out");
            continue;
        }
        if (i->kind != ZF_CHAIN_DROPOUT && (!record->value || !record->piece))
            forgotten(t, i->op, "its record has no .value and .piece, which chains call");
        if (record->least != 1 + two || record->most != 1 + two)
            forgotten(t, i->op, "its kind of instruction has another number of operands");
        if (i->form && (!record->attributes || strncmp(record->attributes, "form:", 5) != 0))
            forgotten(t, i->op, "it has a form, but no attribute `form`, which must be the first");
        if (i->activation && !record->grad)
            forgotten(t, i->op, "an activation of linear has a gradient");
    }
}

/* Goes on to the next of "e(none|gelu|...)"; its length, 0 after the last. */
static size_t next_name(const char **at)
{
    *at += strcspn(*at, "(|)");
    if (!**at || **at == ')') return 0;
    return strcspn(++*at, "|)");
}

/* The names of linear's activations are those of the operators, "gelu_tanh" that of gelu with the
 * form "tanh". */
TEST_ONCE(activations_have_the_names_of_operators)
{
    const char *name = zfi_attributes_linear;
    size_t length = next_name(&name);
    int64_t count = 1;
    CHECK(t, length == 4 && !strncmp(name, "none", 4));
    for (; (length = next_name(&name)) != 0; count++) {
        const zfi_instruction *of = zfi_activation(count);
        const char *operator = of ? zf_op_name(of->op) : "";
        if (!of || strncmp(name, operator, strlen(operator)) != 0 ||
            name[strlen(operator)] != (of->form ? '_' : name[length]))
            test_fail(t, __FILE__, __LINE__, operator,
                      "is not the operator of this place among the activations of linear");
    }
    for (int code = 0; code < ZFI_COUNT(zfi_instructions); code++)
        if (zfi_instructions[code].activation >= count)
            forgotten(t, zfi_instructions[code].op, "linear has no such activation");
}
