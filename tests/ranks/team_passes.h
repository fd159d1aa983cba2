/* Ranks of a team whose graphs are what passes make of one text, and texts and passes that are
 * refused. */
#ifndef TEAM_PASSES_H
#define TEAM_PASSES_H
#include "team.h"

#include "../../tools/pass.h"

static const char *passes; /* of team_change */

/* For team_new. */
static inline zf_status team_change(zf_graph *g)
{
    char message[600] = "";
    if (pass_run(g, passes, NULL, message, sizeof message) == PASS_DONE) return ZF_OK;
    return zf_graph_status(g) ? zf_graph_status(g) : ZF_ERR_ARGUMENT;
}

/* The plan of a graph after passes; false: there is none. It is valid as long as the test. */
static inline bool plan_after(test *t, const char *text, const char *line, zf_plan *plan)
{
    char message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_status status;
    if (!g) return test_unwind(t, __FILE__, __LINE__, "a graph", error.status, error.text), false;
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    if (pass_run(g, line, NULL, message, sizeof message) == PASS_DONE) {
        if (!(status = zf_graph_plan(g, plan))) return true;
        snprintf(message, sizeof message, "%s", zf_graph_error(g));
    } else status = zf_graph_status(g);
    test_unwind(t, __FILE__, __LINE__, line, status, message);
    return false;
}

/* Passes end with an error that has this text. */
static inline void check_refused(test *t, const char *text, const char *line, const char *expected)
{
    char message[600] = "";
    zf_error error = {ZF_OK, ""};
    zf_graph *g = team_parsed(t, text, &error);
    zf_status status;
    int result;
    NEED(t, g, &error);
    result = (int)pass_run(g, line, NULL, message, sizeof message);
    status = zf_graph_status(g);
    zf_graph_free(g);
    if (status == ZF_ERR_NOMEM) OK(t, status, message);
    else if (result != PASS_FAILED || !strstr(message, expected))
        test_fail(t, __FILE__, __LINE__, expected, message);
}

#endif
