/* Agreement: what fails on one rank fails on all, with one reason, so that none goes on alone. */

static void zfi_rank_error(zf_error *error, int32_t rank, const zf_error *its)
{
    zf_error named = {its->status, ""}, text = *its;
    text.text[sizeof text.text - 1] = '\0';
    snprintf(named.text, sizeof named.text, "rank %d: ", (int)rank);
    zfi_printable(named.text + strlen(named.text), sizeof named.text - strlen(named.text),
                  text.text);
    *error = named;
}

/* Collective: all ranks call it, each with its own error or none. Returns ZF_OK on all when there
 * is none; else all get the error of the lowest rank that has one, which the text names. Allocates
 * nothing. With one rank (comm NULL, too) the error stays as it is. If the communicator fails, that
 * is the error of a rank without one of its own. */
static zf_status zfi_comm_agree(const zf_comm *comm, zf_error *error)
{
    int64_t mine = error->status != ZF_OK, failed = 0;
    zf_error lost = {ZF_OK, ""};
    const zf_collective count = {
        .op = ZF_OP_all_reduce, .dtype = ZF_I64, .count = 1, .in = &mine, .out = &failed};
    if (!comm || comm->world < 2) return error->status;
    if (comm->run(comm->self, &count, &lost))
        return zfi_fail(error, lost.status, "%s", lost.text), error->status;
    for (int32_t r = 0; failed && r < comm->world; r++) {
        zf_error its = r == comm->rank ? *error : (zf_error){ZF_OK, ""};
        const zf_collective tell = {.op = ZF_OP_bcast,
                                    .dtype = ZF_U8,
                                    .count = (int64_t)sizeof its,
                                    .in = &its,
                                    .out = &its,
                                    .root = r};
        if (comm->run(comm->self, &tell, &lost))
            return zfi_fail(error, lost.status, "%s", lost.text), error->status;
        if (!its.status) continue;
        zfi_rank_error(error, r, &its);
        break;
    }
    return error->status;
}
