/* Schedules of pipelines as programs see them: idle times of the table, texts, pictures, and what
 * is refused. The rules of lists are tested in inside/tasks.c. */
#include "../support/test.h"

/* p ranks, m micro-batches; a rank's chunks take F, B, W together. */
static int64_t idle_of(const zf_pipe *p, const zf_pipe_times *each)
{
    const int64_t f = each->forward * p->chunks, b = each->backward * p->chunks,
                  w = each->weights * p->chunks;
    switch (p->kind) {
    case ZF_PIPE_1F1B:
    case ZF_PIPE_GPIPE: return (p->ranks - 1) * (f + b + w);
    case ZF_PIPE_INTERLEAVED: return (p->ranks - 1) * (f + b + w) / p->chunks;
    case ZF_PIPE_ZB_H1: return (p->ranks - 1) * (f + b - w);
    default: return (p->ranks - 1) * f / 2;
    }
}

static void check_idle(test *t, zf_pipe p, const zf_pipe_times *each)
{
    int64_t idle[8];
    zf_error error = {ZF_OK, ""};
    for (int r = 0; r < 8; r++) idle[r] = -1;
    OK(t, zf_pipe_idle(&p, each, idle, &error), error.text);
    for (int r = 0; r < p.ranks; r++) CHECK(t, idle[r] == idle_of(&p, each));
    CHECK(t, p.ranks == 8 || idle[p.ranks] == -1);
}

TEST(pipeline_is_idle_as_the_table_says)
{
    static const zf_pipe_times times[] = {{1, 1, 1}, {7, 7, 7}, {5, 9, 3}, {2, 2, 1}};
    static const int ranks[] = {2, 4, 8};
    for (int kind = ZF_PIPE_1F1B; kind <= ZF_PIPE_ZB_V; kind++)
        for (int n = 0; n < 3; n++)
            for (int32_t more = 2; more <= 4; more += 2)
                for (int k = 0; k < 4 && !t->failed; k++) {
                    zf_pipe p = {(zf_pipe_kind)kind, ranks[n], more * ranks[n], 1};
                    const bool two = kind == ZF_PIPE_ZB_V || kind == ZF_PIPE_INTERLEAVED;
                    if (two) p.chunks = 2;
                    if (kind == ZF_PIPE_ZB_V && times[k].backward != times[k].weights) continue;
                    check_idle(t, p, &times[k]);
                    p.chunks = 3;
                    if (kind == ZF_PIPE_INTERLEAVED && !t->failed) check_idle(t, p, &times[k]);
                }
}

TEST(pipeline_prints_its_tasks_and_a_picture)
{
    static const struct {
        zf_pipe pipe;
        const char *text, *picture;
    } cases[] = {
        {{ZF_PIPE_1F1B, 2, 3, 0},
         "rank 0: F 0 0, F 0 1, B 0 0, F 0 2, B 0 1, B 0 2\n"
         "rank 1: F 1 0, B 1 0, F 1 1, B 1 1, F 1 2, B 1 2\n",
         "rank 0   F0 F1 .  .  B0 == F2 B1 == .  B2 ==\n"
         "rank 1   .  F0 B0 == F1 B1 == F2 B2 == .  .\n"},
        {{ZF_PIPE_GPIPE, 2, 0, 0},
         "rank 0: F 0 0, F 0 1, B 0 0, B 0 1\n"
         "rank 1: F 1 0, F 1 1, B 1 0, B 1 1\n",
         "rank 0   F0 F1 .  .  .  B0 == B1 ==\n"
         "rank 1   .  F0 F1 B0 == B1 == .  .\n"},
        {{ZF_PIPE_INTERLEAVED, 2, 2, 0},
         "rank 0: F 0 0, F 0 1, F 2 0, F 2 1, B 2 0, B 2 1, B 0 0, B 0 1\n"
         "rank 1: F 1 0, F 1 1, F 3 0, B 3 0, F 3 1, B 3 1, B 1 0, B 1 1\n",
         "rank 0   F0 F1 f0 f1 .  .  b0 == .  b1 == B0 == B1 ==\n"
         "rank 1   .  F0 F1 f0 b0 == f1 b1 == B0 == B1 == .  .\n"},
        {{ZF_PIPE_ZB_H1, 2, 3, 0},
         "rank 0: F 0 0, F 0 1, B 0 0, W 0 0, F 0 2, B 0 1, W 0 1, B 0 2, W 0 2\n"
         "rank 1: F 1 0, B 1 0, F 1 1, B 1 1, W 1 0, F 1 2, B 1 2, W 1 1, W 1 2\n",
         "rank 0   F0 F1 .  B0 W0 F2 B1 W1 B2 W2\n"
         "rank 1   .  F0 B0 F1 B1 W0 F2 B2 W1 W2\n"},
        {{ZF_PIPE_ZB_V, 2, 3, 0},
         "rank 0: F 0 0, F 0 1, F 0 2, F 3 0, B 3 0, W 3 0, F 3 1, B 3 1, W 3 1, B 0 0, W 0 0, "
         "F 3 2, B 3 2, W 3 2, B 0 1, W 0 1, B 0 2, W 0 2\n"
         "rank 1: F 1 0, F 2 0, F 1 1, F 2 1, B 2 0, W 2 0, F 1 2, B 1 0, W 1 0, F 2 2, B 2 1, "
         "W 2 1, B 1 1, B 2 2, B 1 2, W 1 1, W 2 2, W 1 2\n",
         "rank 0   F0 F1 F2 f0 b0 w0 f1 b1 w1 B0 W0 f2 b2 w2 B1 W1 B2 W2 .\n"
         "rank 1   .  F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 B1 b2 B2 W1 w2 W2\n"},
        {{ZF_PIPE_1F1B, 0, 0, 0}, "rank 0: F 0 0, B 0 0\n", "rank 0   F0 B0 ==\n"}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int picture = 0; picture < 2; picture++) {
            const char *want = picture ? cases[k].picture : cases[k].text;
            char text[1000], small[10] = "";
            zf_error error = {ZF_OK, ""};
            size_t (*const print)(const zf_pipe *, char *, size_t, zf_error *) =
                picture ? zf_pipe_picture : zf_pipe_text;
            const size_t length = print(&cases[k].pipe, text, sizeof text, &error);
            if (!length) OK(t, error.status, error.text);
            CHECK(t, length == strlen(want));
            if (strcmp(text, want)) test_fail(t, __FILE__, __LINE__, want, text);
            CHECK(t, print(&cases[k].pipe, NULL, 0, NULL) == strlen(want));
            CHECK(t, print(&cases[k].pipe, small, sizeof small, NULL) == strlen(want));
            CHECK(t, !strncmp(small, want, 9) && !small[9]);
        }
}

TEST(pipeline_refuses_what_has_no_schedule)
{
    static const struct {
        zf_pipe pipe;
        const char *error;
    } cases[] = {
        {{ZF_PIPE_1F1B, 4, 3, 0},
         "schedule 1f1b: 3 micro-batches are fewer than the 4 ranks along pipe; 4 or more keep "
         "each of them busy"},
        {{ZF_PIPE_INTERLEAVED, 4, 6, 2},
         "schedule interleaved: 6 micro-batches are no multiple of the 4 ranks along pipe"},
        {{ZF_PIPE_INTERLEAVED, 4, 8, 1},
         "schedule interleaved: 1 chunks of a rank; 2 or more are interleaved"},
        {{ZF_PIPE_GPIPE, 4, 8, 2}, "schedule gpipe: 2 chunks of a rank; it has 1"},
        {{ZF_PIPE_ZB_V, 4, 8, 3}, "schedule zb-v: 3 chunks of a rank; it has 2"},
        {{ZF_PIPE_ZB_H1, -1, 8, 1},
         "schedule zb-h1: -1 ranks of 1 chunks; there must be 1 or more"},
        {{ZF_PIPE_1F1B, 1, INT32_MAX, 1}, "schedule 1f1b: more than 67108864 tasks"},
        {{(zf_pipe_kind)17, 1, 1, 1},
         "schedule: 17 is none of 1f1b, gpipe, interleaved, zb-h1, zb-v"}};
    int64_t idle[8];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        zf_error error = {ZF_OK, ""};
        char text[8] = "text";
        CHECK(t, !zf_pipe_text(&cases[k].pipe, text, sizeof text, &error) && !*text);
        CHECK(t, error.status == ZF_ERR_ARGUMENT);
        if (strcmp(error.text, cases[k].error))
            test_fail(t, __FILE__, __LINE__, cases[k].error, error.text);
        CHECK(t, zf_pipe_idle(&cases[k].pipe, &(zf_pipe_times){1, 1, 1}, idle, NULL) ==
                     ZF_ERR_ARGUMENT);
    }
    for (int k = 0; k < 2; k++) {
        zf_error error = {ZF_OK, ""};
        const zf_pipe_times times = {1, -1, 1};
        CHECK(t, zf_pipe_idle(NULL, k ? &times : NULL, idle, &error) == ZF_ERR_ARGUMENT);
        CHECK(t, strstr(error.text,
                        k ? "zf_pipe_idle: a task takes 1, -1 or 1; each must be 0 to 2147483647"
                          : "zf_pipe_idle: times is NULL"));
    }
    CHECK(t, !zf_pipe_kind_name((zf_pipe_kind)5) && !strcmp(zf_pipe_kind_name(4), "zb-v"));
}
