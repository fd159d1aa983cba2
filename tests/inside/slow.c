/* Which queues a page calls slow (nn/report/plan.c), by times that are given. */

/* The warnings of a queue that was planned for `plan` and busy for `is` of a step of 10 ms. */
static const char *slow_text(test *t, zf_resource queue, double plan, double is)
{
    static char text[400];
    const zf_span planned = {.node = 1, .resource = queue, .from = 0, .to = plan},
                  measured[] = {{.node = 1, .resource = queue, .from = 0, .to = is},
                                {.node = 2, .resource = ZF_RESOURCE_COMPUTE, .from = is, .to = 1e-2}};
    zfi_markup out = {.allocator = t->allocator};
    zfi_slow_put(&out, &(zfi_times){.spans = &planned, .count = 1},
                 &(zfi_times){.spans = measured, .count = 2});
    snprintf(text, sizeof text, "%s", out.lacks_memory ? "out of memory" : out.data ? out.data : "");
    zfi_markup_free(&out);
    return text;
}

TEST_ONCE(slow_queues_are_those_of_twice_the_time)
{
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_LINK, 1e-3, 3e-3),
               "<li>the queue link is slow, or ranks wait for one another: it was busy for 3 ms of the "
               "measured step, and 1 ms were planned</li>\n");
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_READ, 1e-3, 2.1e-3),
               "<li>the queue read is slow: it was busy for 2.1 ms of the measured step, and 1 ms were "
               "planned</li>\n");
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_LINK, 1e-3, 1.9e-3), "");
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_LINK, 1e-6, 9e-5), ""); /* below a percent of the step */
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_WRITE, 0, 5e-3), "");   /* nothing was planned there */
    CHECK_TEXT(t, slow_text(t, ZF_RESOURCE_HOST, 1e-3, 5e-3), "");
}
