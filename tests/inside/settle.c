/* The order of parameters (ir/settle.c) is what its definition says, of names of any form. */

/* The definition: the first parameter that is left, together with those of its scope at this depth,
 * which are ordered in the same way one level deeper. A name that ends at this depth takes no
 * others with it. */
static void settle_plainly(const char **names, int count, int depth)
{
    for (int i = 0, end; i < count; i = end) {
        size_t length = zfi_prefix(names[i], depth);
        end = i + 1;
        if (!names[i][length]) continue;
        for (int k = end; k < count; k++) {
            const char *name = names[k];
            if (zfi_prefix(name, depth) != length || memcmp(name, names[i], length)) continue;
            memmove(names + end + 1, names + end, (size_t)(k - end) * sizeof *names);
            names[end++] = name;
        }
        if (end - i > 1) settle_plainly(names + i, end - i, depth + 1);
    }
}

TEST(settle_prefixes)
{
    static const struct {
        const char *name;
        size_t lengths[5];
    } cases[] = {{"a.bc.d", {0, 1, 4, 6, 6}},
                 {".a", {0, 0, 2, 2, 2}},
                 {"..", {0, 0, 1, 2, 2}},
                 {"a..b", {0, 1, 2, 4, 4}},
                 {"", {0, 0, 0, 0, 0}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int depth = 0; depth < 5; depth++)
            CHECK(t, zfi_prefix(cases[k].name, depth) == cases[k].lengths[depth]);
}

TEST(settle_gathers_scopes)
{
    enum { MOST = 40 };
    static const char *const components[] = {"a", "b", "ab", ""};
    uint32_t random = 1;
    for (int turn = 0; turn < 500; turn++) {
        char texts[MOST][32];
        const char *names[MOST];
        zfi_reading readings[MOST];
        int count = 0;
        for (int i = 0; i < MOST; i++) {
            bool again = false;
            texts[count][0] = 0;
            for (uint32_t more = 1; more;) {
                random = random * 1664525u + 1013904223u;
                strcat(texts[count], components[random >> 30]);
                more = strlen(texts[count]) < 16 && (random >> 16) % 4;
                if (more) strcat(texts[count], ".");
            }
            for (int k = 0; k < count; k++) again |= !strcmp(texts[k], texts[count]);
            if (again) continue;
            names[count] = texts[count];
            readings[count] = (zfi_reading){.id = count, .name = texts[count]};
            count++;
        }
        settle_plainly(names, count, 1);
        zfi_gather_scopes(readings, count, 0);
        for (int i = 0; i < count; i++) CHECK_TEXT(t, readings[i].name, names[i]);
    }
}

/* Names that begin with a dot have an empty first component, and end for all that. */
TEST(settle_takes_empty_components)
{
    static const char text[] = "%1 = param \".a\" : f32[4]\n"
                               "%2 = param \"..b\" : f32[4]\n"
                               "%3 = mul %1, %2 : f32[4]\n"
                               "%4 = sum %3 : f32[]\n";
    for (int bucket = 1; bucket < 100; bucket += 98) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(text, sizeof text - 1,
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        NEED(t, g, &error);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        OK(t, zf_passes(g, &(zf_training){.loss = {g, 4},
                                          .zero = {.stage = 3,
                                                   .world = 2,
                                                   .bucket_bytes = (size_t)bucket}}),
           zf_graph_error(g));
    }
}
