/* Tests of zf_mpi_comm. make test-mpi runs
 *
 *     mpirun -np 3 build/mpi/comm                             collectives, and ways to fail
 *     mpirun --enable-recovery -np 3 build/mpi/comm killed    a rank is killed
 *
 * and not
 *
 *     mpirun -np 2 build/mpi/comm large                       2^31 + 7 elements: 5 GB, a minute
 *
 * Rank 0 prints the last line, "N passed, N failed".
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include "../ranks/turns.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The text contains `part`; says so. */
static void check_text(zf_status status, zf_status wanted, const char *text, const char *part,
                       const char *name)
{
    char more[1400];
    snprintf(more, sizeof more, "'%s' (%s), not '%s' (%s)", text, zf_status_name(status), part,
             zf_status_name(wanted));
    check(status == wanted && strstr(text, part), name, more);
}

static void *memory(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) MPI_Abort(MPI_COMM_WORLD, 1);
    return p;
}

static zf_comm *open_comm(double deadline)
{
    zf_error error = {ZF_OK, ""};
    zf_comm *comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = deadline}, &error);
    if (comm) return comm;
    fprintf(stderr, "zf_mpi_comm: %s\n", error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return NULL;
}

/* Closes a communicator whose calls have failed, once all ranks are through with theirs. */
static void close_comm(zf_comm *comm)
{
    MPI_Barrier(MPI_COMM_WORLD);
    zf_comm_free(comm);
}

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)}, NULL);
}

/* ---------------------------------------------------------------------------------------- values
 */

/* Element i of what rank `from` has, as any number of bits. */
static uint64_t bits(int from, int64_t i)
{
    uint64_t x = ((uint64_t)from << 48) + (uint64_t)i + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Floats of many magnitudes, so that the order of a sum shows; integers whose sums wrap, or in u8
 * saturate. */
static void fill(void *to, zf_dtype dtype, int from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = bits(from, i);
        double d = ldexp((double)(int64_t)x, (int)(x % 24) - 70);
        float f = (float)d;
        if (dtype == ZF_F32) ((float *)to)[i] = f;
        else if (dtype == ZF_F64) ((double *)to)[i] = d;
        else if (dtype == ZF_BF16) zf_convert((uint16_t *)to + i, ZF_BF16, &f, ZF_F32, 1);
        else memcpy((char *)to + (size_t)i * zf_dtype_size(dtype), &x, zf_dtype_size(dtype));
    }
}

/* to = (add ? to : 0) + part 0 + part 1 ..., by definition; part r is elements [at, at + count) of
 * what rank r has. */
static void sum(void *to, zf_dtype dtype, int64_t at, int64_t count, bool add)
{
    const size_t size = zf_dtype_size(dtype), room = (size_t)(at + count) * size;
    char **parts = memory((size_t)world * sizeof *parts);
    for (int r = 0; r < world; r++) fill(parts[r] = memory(room), dtype, r, at + count);
    for (int64_t i = 0; i < count; i++) {
        char *out = (char *)to + (size_t)i * size;
        uint64_t integer = 0;
        double wide = 0;
        float narrow = 0;
        for (int r = add ? -1 : 0; r < world; r++) {
            const char *part = r < 0 ? out : parts[r] + (size_t)(at + i) * size;
            const bool first = r == (add ? -1 : 0);
            uint64_t x = 0;
            double d;
            float f;
            memcpy(&x, part, size);
            memcpy(&d, &x, sizeof d);
            if (dtype == ZF_BF16) zf_convert(&f, ZF_F32, part, ZF_BF16, 1);
            else memcpy(&f, part, size < sizeof f ? size : sizeof f);
            integer += x;
            if (dtype == ZF_F64) wide = first ? d : wide + d;
            else if (dtype == ZF_F32 || dtype == ZF_BF16) narrow = first ? f : narrow + f;
        }
        if (dtype == ZF_F64) memcpy(out, &wide, size);
        else if (dtype == ZF_F32) memcpy(out, &narrow, size);
        else if (dtype == ZF_BF16) zf_convert(out, ZF_BF16, &narrow, ZF_F32, 1);
        else if (dtype == ZF_U8) *(uint8_t *)out = integer < 255 ? (uint8_t)integer : 255;
        else memcpy(out, &integer, size);
    }
    for (int r = 0; r < world; r++) free(parts[r]);
    free(parts);
}

/* The expected contents of `out`, which holds its contents before the call. */
static void expect(const zf_collective *c, char *out)
{
    const size_t size = zf_dtype_size(c->dtype), bytes = (size_t)c->count * size;
    char *all;
    switch (c->op) {
    case ZF_OP_all_gather:
        for (int r = 0; r < world; r++) fill(out + (size_t)r * bytes, c->dtype, r, c->count);
        break;
    case ZF_OP_reduce_scatter: sum(out, c->dtype, rank * c->count, c->count, c->add); break;
    case ZF_OP_all_reduce: sum(out, c->dtype, 0, c->count, c->add); break;
    case ZF_OP_all_to_all:
        all = memory(bytes * (size_t)world);
        for (int r = 0; r < world; r++) {
            fill(all, c->dtype, r, c->count * world);
            memcpy(out + (size_t)r * bytes, all + (size_t)rank * bytes, bytes);
        }
        free(all);
        break;
    case ZF_OP_reduce:
        if (rank == c->root) sum(out, c->dtype, 0, c->count, false);
        break;
    default: fill(out, c->dtype, c->root, c->count); /* bcast */
    }
}

/* ---------------------------------------------------------------------------------- collectives */

enum { GUARD = 64 }; /* bytes before and after `out` that nothing may touch */

/* Runs the collective on made-up values; returns "" or the mistake. `place`: out is in, or in is
 * this rank's part of out. */
static const char *try_collective(zf_comm *comm, zf_collective c, bool place, zf_error *error)
{
    const size_t size = zf_dtype_size(c.dtype);
    const int64_t ins = c.op == ZF_OP_reduce_scatter || c.op == ZF_OP_all_to_all ? world : 1,
                  outs = c.op == ZF_OP_all_gather || c.op == ZF_OP_all_to_all ? world : 1;
    const size_t in_bytes = (size_t)(c.count * ins) * size,
                 out_bytes = (size_t)(c.count * outs) * size;
    char *in = memory(in_bytes), *kept = memory(in_bytes), *wanted = memory(out_bytes),
         *room = memory(out_bytes + 2 * GUARD), *out = room + GUARD;
    const char *wrong = "";
    memset(room, 0x5a, out_bytes + 2 * GUARD);
    fill(in, c.dtype, rank, c.count * ins);
    memcpy(kept, in, in_bytes);
    fill(out, c.dtype, 77, c.count * outs); /* what `add` finds: the same on all ranks */
    c.in = in, c.out = out;
    if (place) {
        c.in = out + (c.op == ZF_OP_all_gather ? (size_t)rank * in_bytes : 0);
        memcpy(out + ((const char *)c.in - out), in, in_bytes);
    }
    memcpy(wanted, out, out_bytes);
    expect(&c, wanted);
    error->status = ZF_OK;
    if (comm->run(comm->self, &c, error)) wrong = error->text;
    else if (memcmp(out, wanted, out_bytes)) wrong = "other bits";
    else if (memcmp(in, kept, in_bytes)) wrong = "the input was written to";
    for (int i = 0; i < GUARD; i++)
        if (room[i] != 0x5a || out[out_bytes + (size_t)i] != 0x5a) wrong = "written outside out";
    free(in), free(kept), free(wanted), free(room);
    return wrong;
}

static void every_collective(void)
{
    static const struct {
        zf_op op;
        const char *name;
        bool place, add;
    } forms[] = {{ZF_OP_all_gather, "all_gather", false, false},
                 {ZF_OP_all_gather, "all_gather, in place", true, false},
                 {ZF_OP_reduce_scatter, "reduce_scatter", false, false},
                 {ZF_OP_reduce_scatter, "reduce_scatter, added", false, true},
                 {ZF_OP_all_reduce, "all_reduce", false, false},
                 {ZF_OP_all_reduce, "all_reduce, in place", true, false},
                 {ZF_OP_all_reduce, "all_reduce, added", false, true},
                 {ZF_OP_all_to_all, "all_to_all", false, false},
                 {ZF_OP_all_to_all, "all_to_all, in place", true, false},
                 {ZF_OP_bcast, "bcast", false, false},
                 {ZF_OP_bcast, "bcast, in place", true, false},
                 {ZF_OP_reduce, "reduce", false, false}};
    static const zf_dtype dtypes[] = {ZF_F32, ZF_F64, ZF_BF16, ZF_I32, ZF_I64, ZF_U8};
    /* The last has more pieces than are in flight at once. */
    static const int64_t counts[] = {0, 1, 7, 4099, 100003, 500009};
    enum { FORMS = sizeof forms / sizeof *forms, COUNTS = sizeof counts / sizeof *counts };
    zf_comm *comm = open_comm(0);
    for (int f = 0; f < FORMS; f++) {
        for (int d = 0; d < (int)(sizeof dtypes / sizeof *dtypes); d++)
            for (int k = 0; k < (d ? COUNTS - 1 : COUNTS); k++)
                for (int root = 0; root < (forms[f].op == ZF_OP_bcast || forms[f].op == ZF_OP_reduce ? world : 1); root++) {
                    zf_error error;
                    char name[128];
                    zf_collective c = {.op = forms[f].op,
                                       .node = k,
                                       .channel = k % 3,
                                       .dtype = dtypes[d],
                                       .count = counts[k],
                                       .add = forms[f].add,
                                       .root = root};
                    const char *wrong = try_collective(comm, c, forms[f].place, &error);
                    snprintf(name, sizeof name, "%s of %lld %s, root %d", forms[f].name,
                             (long long)counts[k], zf_dtype_name(dtypes[d]), root);
                    check(!*wrong, name, wrong);
                }
        ends(forms[f].name);
    }
    zf_comm_free(comm);
}

/* Calls of all ranks, of the first half or the rest, and of every second rank, in one order. */
static void groups(void)
{
    static const zf_op kinds[] = {ZF_OP_all_gather, ZF_OP_reduce_scatter, ZF_OP_all_reduce,
                                  ZF_OP_all_to_all, ZF_OP_bcast, ZF_OP_reduce};
    const int real_rank = rank, real_world = world, half = (world + 1) / 2;
    zf_comm *comm = open_comm(0);
    uint64_t random = 5;
    for (int n = 0; comm && n < 300; n++) {
        const zf_group groups_of[] = {
            {0, 0, 0},
            {real_rank < half ? 0 : half, 1, real_rank < half ? half : real_world - half},
            {real_rank % 2, 2, (real_world - real_rank % 2 + 1) / 2}};
        zf_group group;
        zf_error error;
        char name[64];
        zf_collective c = {.node = n, .channel = n % 3, .dtype = n % 2 ? ZF_F32 : ZF_BF16};
        const char *wrong;
        random = random * 6364136223846793005u + 1442695040888963407u;
        c.group = groups_of[(random >> 33) % 3];
        c.op = kinds[(random >> 40) % 6];
        c.count = (int64_t)((random >> 45) % (n % 10 ? 300 : 40000));
        c.add = (c.op == ZF_OP_reduce_scatter || c.op == ZF_OP_all_reduce) && n % 3 == 0;
        group = zf_collective_group(&c, comm);
        rank = (real_rank - group.first) / group.stride, world = group.count;
        c.root = (int)((random >> 60) % (uint64_t)world);
        wrong = try_collective(comm, c, false, &error);
        snprintf(name, sizeof name, "group call %d", n);
        check(!*wrong, name, wrong);
        rank = real_rank, world = real_world;
    }
    ends("calls of groups");
    zf_comm_free(comm);
}

/* Between any two ranks; what neither end reads is NULL. */
static void sends(void)
{
    static const int64_t counts[] = {0, 1, 7, 100003};
    zf_comm *comm = open_comm(0);
    for (int n = 0; comm && n < world * world * 4; n++) {
        const int from = n / 4 / world, to = n / 4 % world, low = from < to ? from : to,
                  high = from < to ? to : from;
        const int64_t count = counts[n % 4];
        char *data = memory((size_t)count * 4), *want = memory((size_t)count * 4);
        zf_collective c = {.op = ZF_OP_send,
                           .node = n,
                           .channel = n % 3,
                           .dtype = ZF_F32,
                           .count = count,
                           .in = rank == from ? data : NULL,
                           .out = rank == to ? data : NULL,
                           .root = from > to,
                           .group = {low, high - low, 2}};
        zf_error error = {ZF_OK, ""};
        char name[64];
        fill(want, ZF_F32, from, count);
        fill(data, ZF_F32, rank, count);
        snprintf(name, sizeof name, "send %d from %d to %d", n, from, to);
        check(from == to || (rank != from && rank != to) ||
                  (!comm->run(comm->self, &c, &error) && !memcmp(data, want, (size_t)count * 4)),
              name, error.text);
        free(data), free(want);
    }
    ends("sends");
    zf_comm_free(comm);
}

/* Ranks other than those of MPI_COMM_WORLD, and rounds in which one of them is late. */
static void other_ranks(void)
{
    MPI_Comm backwards;
    zf_error error = {ZF_OK, ""};
    zf_comm *comm;
    int32_t *out = memory((size_t)world * sizeof *out);
    bool right = true;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
    comm = zf_mpi_comm(&(zf_mpi_desc){.comm = &backwards}, &error);
    check(comm && comm->rank == last - rank && comm->world == world, "rank of a communicator",
          error.text);
    for (int turn = 0; comm && right && turn < 2 * world; turn++) {
        int32_t in = rank;
        zf_collective c = {
            .op = ZF_OP_all_gather, .dtype = ZF_I32, .count = 1, .in = &in, .out = out};
        if (turn % world == rank) pause_for(0.002);
        right = !comm->run(comm->self, &c, &error);
        for (int r = 0; r < world; r++) right = right && out[r] == last - r;
    }
    check(right, "all_gather in another order, with a late rank", error.text);
    zf_comm_free(comm);
    MPI_Comm_free(&backwards);
    free(out);
}

/* --------------------------------------------------------------------------- channels at once */

typedef struct lane {
    zf_comm *comm;
    int32_t channel;
    char wrong[600];
} lane;

static void *drive(void *argument)
{
    static const zf_op ops[] = {ZF_OP_all_gather, ZF_OP_reduce_scatter, ZF_OP_all_reduce};
    lane *l = argument;
    for (int k = 0; k < 60 && !*l->wrong; k++) {
        zf_error error;
        zf_collective c = {.op = ops[(k + l->channel) % 3],
                           .node = k,
                           .channel = l->channel,
                           .dtype = ZF_F32,
                           .count = 1 + (int64_t)(bits(l->channel, k) % (k % 10 ? 300 : 100000))};
        snprintf(l->wrong, sizeof l->wrong, "%s", try_collective(l->comm, c, false, &error));
    }
    return NULL;
}

static void channels_at_once(void)
{
    zf_comm *comm = open_comm(0);
    lane lanes[3] = {{comm, 0, ""}, {comm, 1, ""}, {comm, 2, ""}};
    pthread_t threads[3];
    for (int k = 1; k < 3; k++)
        if (pthread_create(&threads[k], NULL, drive, &lanes[k])) MPI_Abort(MPI_COMM_WORLD, 1);
    drive(&lanes[0]);
    for (int k = 1; k < 3; k++) pthread_join(threads[k], NULL);
    for (int k = 0; k < 3; k++) check(!*lanes[k].wrong, "three channels at once", lanes[k].wrong);
    zf_comm_free(comm);
}

/* --------------------------------------------------------------------------------------- failing
 */

/* A call on buffers of its own; its status, with the text. */
static zf_status call(zf_comm *comm, zf_collective c, zf_error *error)
{
    size_t bytes = (size_t)c.count * (size_t)world * zf_dtype_size(c.dtype);
    void *in = memory(bytes), *out = memory(bytes);
    zf_status status;
    c.in = in, c.out = out;
    error->status = ZF_OK, *error->text = 0;
    status = comm->run(comm->self, &c, error);
    free(in), free(out);
    return status;
}

static void different_calls(void)
{
    static const zf_collective ours = {
        .op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_F32, .count = 7};
    static const struct {
        zf_collective call; /* of the last rank */
        const char *text;
    } theirs[] = {{{.op = ZF_OP_all_gather, .node = 7, .dtype = ZF_F32, .count = 7},
                   "all_gather %7 of 7 f32"},
                  {{.op = ZF_OP_all_reduce, .node = 9, .dtype = ZF_F32, .count = 7},
                   "all_reduce %9 of 7 f32"},
                  {{.op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_I32, .count = 7},
                   "all_reduce %7 of 7 i32"},
                  {{.op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_F32, .count = 8},
                   "all_reduce %7 of 8 f32"},
                  {{.op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_F32, .count = 700000},
                   "all_reduce %7 of 700000 f32"},
                  {{.op = ZF_OP_all_reduce, .node = 7, .dtype = ZF_F32, .count = 7, .add = true},
                   "all_reduce %7 of 7 f32 added to out"},
                  {{.op = ZF_OP_bcast, .node = 7, .dtype = ZF_F32, .count = 7, .root = 1},
                   "bcast %7 of 7 f32 from rank 1"},
                  {{.op = ZF_OP_bcast, .node = 7, .dtype = ZF_F32, .count = 0, .root = 0},
                   "bcast %7 of 0 f32 from rank 0"}};
    for (size_t k = 0; k < sizeof theirs / sizeof *theirs; k++) {
        zf_comm *comm = open_comm(0);
        zf_error error, again;
        char part[200];
        zf_status status = call(comm, rank == last ? theirs[k].call : ours, &error);
        snprintf(part, sizeof part, "is at all_reduce %%7 of 7 f32, rank %d at %s", last,
                 theirs[k].text);
        check_text(status, ZF_ERR_COMM, error.text, part, "different calls");
        status = call(comm, ours, &again);
        check_text(status, ZF_ERR_COMM, again.text, error.text, "a later call");
        close_comm(comm);
    }
}

/* The text is about this call, and names the last rank. It may name others too, if the machine is
 * so busy that these are late. */
static bool names_last(const char *text, const char *call_name)
{
    char part[64];
    const char *from = strstr(text, call_name);
    snprintf(part, sizeof part, " %d of %d", last, world);
    return from && strstr(from, part);
}

static void missing_rank(void)
{
    zf_comm *comm = open_comm(2);
    zf_collective c = {.op = ZF_OP_all_reduce, .node = 11, .dtype = ZF_F32, .count = 5};
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_OK;
    if (rank != last) status = call(comm, c, &error);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last) status = call(comm, c, &error);
    check_text(status, ZF_ERR_COMM, error.text, " did not come within 2 s", "a missing rank");
    check(names_last(error.text, "all_reduce %11: rank"), "a missing rank", error.text);
    close_comm(comm);
}

/* Each rank waits for the next one, in a group of these two; the last does not come. All name that
 * one, rank 0 too, whose deadline is the first. */
static void late_in_another_group(void)
{
    zf_comm *comm = open_comm(2);
    zf_collective c = {.op = ZF_OP_all_reduce, .node = 11, .dtype = ZF_F32, .count = 5};
    zf_error error = {ZF_OK, ""};
    char part[80];
    c.group = (zf_group){rank, 1, 2};
    if (rank) pause_for(0.2);
    if (rank < last) call(comm, c, &error);
    MPI_Barrier(MPI_COMM_WORLD);
    c.group = (zf_group){0, 1, world};
    if (rank == last) call(comm, c, &error);
    snprintf(part, sizeof part, ": rank %d of %d did not come within 2 s", last, world);
    check(strstr(error.text, part) != NULL, "a rank that is late in another group", error.text);
    close_comm(comm);
}

/* The rank's group in call n: all ranks, or every second one. */
static zf_group group_of_call(int n)
{
    const zf_group all = {0, 0, 0}, half = {rank % 2, 2, (world - rank % 2 + 1) / 2};
    return n % 2 ? half : all;
}

/* Calls until one fails. */
typedef struct runner {
    zf_comm *comm;
    zf_error error;
    zf_status status;
    bool groups; /* every second call is of a group */
} runner;

static void *run_long(void *argument)
{
    runner *r = argument;
    zf_collective c = {
        .op = ZF_OP_all_gather, .node = 12, .channel = 1, .dtype = ZF_U8, .count = 3 << 20};
    for (int n = 0; !r->status; n++) {
        if (r->groups) c.group = group_of_call(n);
        r->status = call(r->comm, c, &r->error);
    }
    return NULL;
}

static void *stop_soon(void *argument)
{
    (void)argument;
    pause_for(0.02);
    kill(getpid(), SIGSTOP);
    return NULL;
}

/* The last rank stops in the middle of a collective, of all ranks or of a group, until the others
 * have failed and freed their memory, those of other groups too. Then it continues, and gets the
 * error. */
static void stopped_rank(void)
{
    runner r = {open_comm(2), {ZF_OK, ""}, ZF_OK, true};
    pid_t process = getpid();
    MPI_Request all;
    int done = 0;
    pthread_t thread;
    MPI_Bcast(&process, sizeof process, MPI_BYTE, last, MPI_COMM_WORLD);
    if (rank == last && pthread_create(&thread, NULL, stop_soon, NULL))
        MPI_Abort(MPI_COMM_WORLD, 1);
    run_long(&r);
    if (rank == last) pthread_join(thread, NULL);
    for (MPI_Ibarrier(MPI_COMM_WORLD, &all); !done; MPI_Test(&all, &done, MPI_STATUS_IGNORE)) {
        if (rank == 0) kill(process, SIGCONT);
        pause_for(0.01);
    }
    check(names_last(r.error.text, "all_gather %12"), "a rank that stops", r.error.text);
    close_comm(r.comm);
}

/* An I/O error is one on all ranks; every other reason is ZF_ERR_COMM there. */
static void rank_gives_up(zf_status why)
{
    const zf_status wanted = why == ZF_ERR_IO ? ZF_ERR_IO : ZF_ERR_COMM;
    zf_comm *comm = open_comm(0);
    runner s = {comm, {ZF_OK, ""}, ZF_OK, false};
    zf_collective c = {.op = ZF_OP_reduce_scatter, .node = 13, .dtype = ZF_F64, .count = 5};
    zf_error error = {ZF_OK, ""};
    zf_status status;
    char part[100];
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_long, &s)) MPI_Abort(MPI_COMM_WORLD, 1);
    snprintf(part, sizeof part, "rank %d gave up: out of paper", last);
    if (rank == last) {
        pause_for(0.02);
        comm->abort(comm->self, why, "out of paper");
    }
    status = call(comm, c, &error);
    pthread_join(thread, NULL);
    check_text(status, wanted, error.text, part, "a rank that gives up");
    check_text(s.status, wanted, s.error.text, part, "on another channel");
    comm->abort(comm->self, why == ZF_ERR_IO ? ZF_ERR_NOMEM : ZF_ERR_IO, "later");
    call(comm, c, &error);
    check_text(error.status, wanted, error.text, part, "the first reason stays");
    close_comm(comm);
}

static void wrong_arguments(void)
{
    static float data[8];
    static const struct {
        zf_collective call;
        const char *text;
    } wrong[] = {
        {{.op = ZF_OP_add}, "a communicator was called with no collective"},
        {{.op = ZF_OP_all_gather, .node = 3, .channel = 4},
         "all_gather %3: channel 4; it must be 0 to 3"},
        {{.op = ZF_OP_all_gather, .node = 3, .dtype = (zf_dtype)99},
         "all_gather %3: 99 is no dtype"},
        {{.op = ZF_OP_all_gather, .node = 3, .count = -1}, "all_gather %3: count is -1"},
        {{.op = ZF_OP_all_gather, .node = 3, .count = INT64_MAX / 2},
         "all_gather %3: count is 4611686018427387903; it must be 0 to "},
        {{.op = ZF_OP_bcast, .node = 3, .root = 99}, "bcast %3: root 99 is no rank of a world of "},
        {{.op = ZF_OP_bcast, .node = 3, .count = 1, .out = data}, "bcast %3: in is NULL"},
        {{.op = ZF_OP_bcast, .node = 3, .count = 1, .in = data}, "bcast %3: out is NULL"},
        {{.op = ZF_OP_all_reduce, .node = 3, .count = 1, .in = data, .out = data, .stream = data},
         "all_reduce %3: this communicator has no streams; stream must be NULL"}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        zf_comm *comm = open_comm(0);
        zf_error error = {ZF_OK, ""};
        zf_collective right = {.op = ZF_OP_all_reduce, .dtype = ZF_F32, .count = 1};
        zf_status status =
            rank ? call(comm, right, &error) : comm->run(comm->self, &wrong[k].call, &error);
        check_text(status, rank ? ZF_ERR_COMM : ZF_ERR_ARGUMENT, error.text, wrong[k].text,
                   "wrong arguments");
        close_comm(comm);
    }
}

static void no_communicator(void)
{
    const MPI_Comm none = MPI_COMM_NULL;
    const double deadlines[] = {-1, NAN, INFINITY};
    MPI_Comm some, half, between;
    zf_error error;
    zf_comm *comm;
    for (int k = 0; k < 3; k++) {
        error.status = ZF_OK;
        comm = zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = deadlines[k]}, &error);
        check(!comm, "a deadline", "taken");
        check_text(error.status, ZF_ERR_ARGUMENT, error.text,
                   "it must be positive and finite, or 0 for 60", "a deadline");
    }
    error.status = ZF_OK;
    comm = zf_mpi_comm(&(zf_mpi_desc){.comm = &none}, &error);
    check(!comm, "no communicator", "taken");
    check_text(error.status, ZF_ERR_ARGUMENT, error.text,
               "zf_mpi_comm: comm is MPI_COMM_NULL; it must be an intracommunicator, or NULL for "
               "MPI_COMM_WORLD",
               "no communicator");
    if (world == 1) return;
    MPI_Comm_split(MPI_COMM_WORLD, rank == last, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == last ? 0 : last, 1, &between);
    error.status = ZF_OK;
    comm = zf_mpi_comm(&(zf_mpi_desc){.comm = &between}, &error);
    check(!comm, "two groups", "taken");
    check_text(error.status, ZF_ERR_ARGUMENT, error.text, "comm is an intercommunicator",
               "two groups");
    MPI_Comm_free(&between), MPI_Comm_free(&half);
    MPI_Comm_dup(MPI_COMM_WORLD, &some); /* stays: MPI waits in it for the last rank */
    error.status = ZF_OK;
    comm = rank == last
               ? NULL
               : zf_mpi_comm(&(zf_mpi_desc){.deadline_seconds = 0.2, .comm = &some}, &error);
    check(!comm, "a rank that does not open its communicator", "opened");
    check(rank == last || (error.status == ZF_ERR_COMM &&
                           !strcmp(error.text, "zf_mpi_comm: not all ranks came within 0.2 s")),
          "a rank that does not open its communicator", error.text);
}

/* --------------------------------------------------------------------------------------- killed */

static void *killer(void *argument)
{
    (void)argument;
    pause_for(0.05);
    raise(SIGKILL);
    return NULL;
}

/* The last rank is killed in the middle of a collective, of all ranks or of a group. The others,
 * also those of other groups, report their results to rank 0
 * in shared memory, since MPI is no longer reliable. */
static void killed(void)
{
    zf_comm *comm = open_comm(1);
    zf_collective c = {.op = ZF_OP_reduce_scatter, .node = 21, .dtype = ZF_F32, .count = 1 << 20};
    zf_error error;
    MPI_Win window;
    MPI_Aint bytes;
    _Atomic int *fares; /* by rank: 1 well, 2 not; 0: it is not known yet */
    int unit, n = 0;
    pthread_t thread;
    MPI_Win_allocate_shared(rank ? 0 : world * (MPI_Aint)sizeof *fares, sizeof *fares,
                            MPI_INFO_NULL, MPI_COMM_WORLD, &fares, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &fares);
    atomic_store(&fares[rank], 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last && pthread_create(&thread, NULL, killer, NULL)) MPI_Abort(MPI_COMM_WORLD, 1);
    do c.group = group_of_call(n++);
    while (!call(comm, c, &error));
    zf_comm_free(comm);
    if (names_last(error.text, "reduce_scatter %21")) {
        atomic_store(&fares[rank], 1);
    } else {
        fprintf(stderr, "FAILED on rank %d: killed: '%s'\n", rank, error.text);
        atomic_store(&fares[rank], 2);
    }
    for (int r = 0; !rank && r < last; r++) {
        while (!atomic_load(&fares[r])) pause_for(0.01);
        broken += fares[r] != 1;
    }
}

/* ---------------------------------------------------------------------------------------- large */

static void large(void)
{
    const int64_t count = ((int64_t)1 << 31) + 7;
    zf_comm *comm = open_comm(0);
    uint8_t *data = memory((size_t)count);
    int64_t wrong = 0;
    zf_error error = {ZF_OK, ""};
    zf_collective c = {.op = ZF_OP_all_reduce, .dtype = ZF_U8, .count = count};
    c.in = c.out = data;
    for (int64_t i = 0; i < count; i++) data[i] = (uint8_t)(i % 101 + rank);
    check(!comm->run(comm->self, &c, &error), "all_reduce of 2^31 + 7", error.text);
    for (int64_t i = 0; i < count; i++)
        wrong += data[i] != (uint8_t)(i % 101 * world + world * last / 2);
    check(!wrong, "all_reduce of 2^31 + 7", "other bits");
    free(data);
    zf_comm_free(comm);
}

/* --------------------------------------------------------------------------------------- stores */

/* Programs of all ranks over their stores: the same bits at every stage. */
static void stores(void)
{
    static unsigned char expected[TURNS_IMAGE], images[3][TURNS_IMAGE];
    zf_comm *comm = open_comm(0);
    for (int32_t stage = 0; stage < 4 && TURNS_SLOTS % world == 0; stage++) {
        zf_error error = {ZF_OK, ""};
        zf_status status = turns_run(comm, stage, "build/mpi/turns", images, &error);
        check(!status, "programs in turns", error.text);
        if (!stage) memcpy(expected, images[0], TURNS_IMAGE);
        check(!memcmp(expected, images[0], TURNS_IMAGE), "another stage", "other bits");
        check(!memcmp(expected, images[1], TURNS_IMAGE), "loaded and gone on", "other bits");
    }
    zf_comm_free(comm);
}

/* MPI for one thread only. */
static int one_thread(int *argc, char ***argv)
{
    zf_error error = {ZF_OK, ""};
    int threads;
    MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &threads);
    check(threads == MPI_THREAD_SERIALIZED, "threads", "this MPI gives others than are asked for");
    check(!zf_mpi_comm(NULL, &error), "one thread", "opened");
    check_text(error.status, ZF_ERR_COMM, error.text,
               "zf_mpi_comm: MPI was not initialised for several threads; call MPI_Init_thread with "
               "MPI_THREAD_MULTIPLE, and see what it provides",
               "one thread");
    ends("MPI for one thread");
    MPI_Finalize();
    return total();
}

int main(int argc, char **argv)
{
    zf_error before = {ZF_OK, ""}, after = {ZF_OK, ""};
    const char *what = argc > 1 ? argv[1] : "all";
    zf_comm *early = zf_mpi_comm(NULL, &before);
    int threads;
    if (!strcmp(what, "thread")) return one_thread(&argc, &argv);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    last = world - 1;
    check(threads == MPI_THREAD_MULTIPLE, "threads", "this MPI is not for threads");
    check(!early, "before MPI_Init", "opened");
    check_text(before.status, ZF_ERR_COMM, before.text,
               "zf_mpi_comm: MPI has not been initialised; call it after MPI_Init_thread",
               "before MPI_Init");
    ends("before MPI_Init");
    if (!strcmp(what, "killed")) {
        killed();
        ends("a rank is killed");
        _exit(total()); /* MPI_Finalize may wait for who is gone */
    } else if (!strcmp(what, "large")) {
        large();
        ends("2^31 + 7 elements");
    } else {
        every_collective();
        groups(), sends();
        other_ranks(), ends("another order of ranks, and late ones");
        channels_at_once(), ends("three channels at once");
        if (world > 1) {
            different_calls(), ends("different calls");
            missing_rank(), ends("a missing rank");
            late_in_another_group(), ends("a rank that is late in another group");
            stopped_rank(), ends("a rank that stops");
            rank_gives_up(ZF_ERR_BACKEND), ends("a rank that gives up");
            rank_gives_up(ZF_ERR_IO), ends("a rank whose disk fails");
            wrong_arguments(), ends("wrong arguments");
        }
        no_communicator(), ends("no communicator");
        stores(), ends("programs over one store");
    }
    MPI_Finalize();
    broken = zf_mpi_comm(NULL, &after) || !strstr(after.text, "MPI has been finalized; call it before MPI_Finalize");
    ends("after MPI_Finalize");
    return total();
}
