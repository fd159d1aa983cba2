/* Bandwidth of the disk engine in MB/s, by size of block, depth, order and way, next to that of
 * single pread and pwrite calls on the same file.
 *
 *     build/bench/disk FOLDER [--bytes MIB] [--seconds S] [--rounds N]
 *
 * Each column has a file of --bytes (default 1024 MiB), which is written once. Then each cell reads
 * or writes blocks of it for --seconds (0.5), --rounds times (3), in turns with the other columns
 * of its row; the median counts. Checksums are part of the engine's time. Plain calls have no
 * depth. Buffered reads come from memory if the file fits. Compare with
 *
 *     dd if=/dev/zero of=FOLDER/x bs=1M count=1024 oflag=direct
 */
#define _GNU_SOURCE
#define ZEROFLOW_IMPLEMENTATION
#include "../zeroflow.h"
#include "figures.h"
#include "options.h"

enum { MOST_DEPTH = 64, MOST_BLOCK = 16 << 20, MOST_ROUNDS = 9 };

typedef struct setting {
    int64_t mebibytes, bytes, rounds;
    double seconds;
    const char *folder;
} setting;

static const zf_option setting_rows[] = {
    ZF_OPTION(setting, COUNT, mebibytes, 1024, "[16,1048576] by 16", .flag = "bytes", .unit = "MIB",
              .topic = "disk", .help = "size of each file"),
    ZF_OPTION(setting, NUMBER, seconds, 0.5, "(0,inf)", .help = "duration of each cell in a round"),
    ZF_OPTION(setting, COUNT, rounds, 3, "[1,9]", .help = "rounds, of which the median counts"),
    {.name = NULL}};

/* A column: how a row's blocks are moved. */
typedef struct column {
    const char *name;
    bool plain; /* pread and pwrite */
    zfi_disk_way way;
    bool buffered;
} column;

static const column columns[] = {
    {"plain, direct", true, ZFI_DISK_ANY, false},
    {"io_uring, direct", false, ZFI_DISK_RING, false},
    {"threads, direct", false, ZFI_DISK_THREADS, false},
    {"plain, buffered", true, ZFI_DISK_ANY, true},
    {"io_uring, buffered", false, ZFI_DISK_RING, true},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static char *memory; /* MOST_DEPTH blocks of at most 16 MiB, 1 GiB at most */
static zfi_disk *disks[COLUMNS];
static char why[COLUMNS][600]; /* why a column cannot be measured */

static int64_t now_at(int64_t k, int64_t blocks, bool in_order, uint64_t *state)
{
    if (in_order) return k % blocks;
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (int64_t)(*state % (uint64_t)blocks);
}

/* Moves blocks by single calls; returns bytes per second, or 0. */
static double plainly(const char *path, const column *c, int64_t bytes, int64_t block, bool write,
                      bool in_order, double seconds)
{
    const int flags = (write ? O_WRONLY : O_RDONLY) | (c->buffered ? 0 : O_DIRECT);
    const int file = open(path, flags);
    uint64_t state = 88172645463325252u;
    int64_t moved = 0;
    double start;
    if (file < 0) return 0;
    start = bench_now();
    for (int64_t k = 0; bench_now() - start < seconds; k++) {
        const off_t at =
            (off_t)(ZFI_OFFLOAD_PAGE + now_at(k, bytes / block, in_order, &state) * block);
        const ssize_t got = write ? pwrite(file, memory, (size_t)block, at)
                                  : pread(file, memory, (size_t)block, at);
        if (got != block) {
            close(file);
            return 0;
        }
        moved += block;
    }
    if (write) fsync(file);
    seconds = bench_now() - start;
    close(file);
    return (double)moved / seconds;
}

/* The same by the engine, `depth` blocks at a time. */
static double engine(zfi_disk *d, int64_t bytes, int64_t block, int depth, bool write,
                     bool in_order, double seconds)
{
    static zfi_disk_transfer transfers[MOST_DEPTH];
    zf_error error = {ZF_OK, ""};
    uint64_t state = 88172645463325252u;
    int64_t k = 0;
    double start = bench_now();
    for (; bench_now() - start < seconds || k < depth; k++) {
        char *data = memory + k % depth * block;
        const int64_t from = now_at(k, bytes / block, in_order, &state) * block;
        if (k >= depth) zfi_disk_wait(d, &transfers[k % depth], &error);
        if (write) zfi_disk_write(d, 0, from, data, block, &transfers[k % depth]);
        else zfi_disk_read(d, 0, from, data, block, &transfers[k % depth]);
    }
    for (int i = 0; i < depth; i++) zfi_disk_wait(d, &transfers[i], &error);
    if (write && !zfi_disk_info_of(d).direct) fsync(d->file.file);
    seconds = bench_now() - start;
    if (error.status) fprintf(stderr, "%s\n", error.text);
    return error.status ? 0 : (double)(k * block) / seconds;
}

/* Makes a disk for each column and writes all of it; those that cannot be made stay NULL. */
static void open_disks(const setting *s, int64_t block)
{
    static zfi_memory own;
    const zfi_disk_value value = {"bench", 0, s->bytes};
    own = zfi_memory_of(NULL);
    for (int k = 0; k < COLUMNS; k++) {
        zf_error error = {ZF_OK, ""};
        zfi_disk *d = zfi_disk_open(&own,
                                    &(zfi_disk_desc){.folder = s->folder,
                                                     .run = "bench",
                                                     .rank = k,
                                                     .world = COLUMNS,
                                                     .bytes = s->bytes,
                                                     .values = &value,
                                                     .count = 1,
                                                     .block = block,
                                                     .depth = MOST_DEPTH,
                                                     .staging = 1,
                                                     .way = columns[k].way,
                                                     .buffered = columns[k].buffered},
                                    &error);
        for (int64_t at = 0; d && at < s->bytes && !error.status; at += MOST_BLOCK) {
            zfi_disk_transfer transfer;
            zfi_disk_write(d, 0, at, memory, MOST_BLOCK, &transfer);
            zfi_disk_wait(d, &transfer, &error);
        }
        if (d && !error.status && !columns[k].buffered && !zfi_disk_info_of(d).direct)
            zfi_fail(&error, ZF_ERR_IO, "%s", zfi_disk_info_of(d).why);
        snprintf(why[k], sizeof why[k], "%s", error.text);
        disks[k] = d;
        if (!error.status) continue;
        zfi_disk_close(d);
        disks[k] = NULL;
    }
}

/* One row: all columns in turns. */
static void row(const setting *s, int64_t block, int depth, bool write, bool in_order)
{
    double rates[COLUMNS][MOST_ROUNDS] = {{0}};
    printf("| %lld K | %d | %s, %s |", (long long)(block >> 10), depth, write ? "write" : "read",
           in_order ? "in order" : "random");
    for (int round = 0; round < s->rounds; round++)
        for (int k = 0; k < COLUMNS; k++) {
            if (disks[k] && columns[k].plain)
                rates[k][round] = plainly(zfi_disk_info_of(disks[k]).path, &columns[k], s->bytes,
                                          block, write, in_order, s->seconds);
            else if (disks[k])
                rates[k][round] =
                    engine(disks[k], s->bytes, block, depth, write, in_order, s->seconds);
        }
    for (int k = 0; k < COLUMNS; k++)
        printf(" %.0f |", bench_median(rates[k], (int)s->rounds) / 1e6);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int64_t blocks[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
    static const int depths[] = {1, 8, 64};
    setting s = {.folder = NULL};
    const zf_options all = {.rows = setting_rows, .desc = &s};
    int arguments, status;
    if (!bench_options(argc, argv, &all, 1, 1, &arguments, &status)) return status;
    s.folder = argv[1], s.bytes = s.mebibytes << 20;
    if (arguments != 1)
        return fprintf(stderr, "disk: one argument is needed, the folder of the files\n"), 2;
    memory = aligned_alloc(4096, (size_t)MOST_DEPTH * MOST_BLOCK);
    if (!memory) return fprintf(stderr, "out of memory\n"), 1;
    for (size_t i = 0; i < (size_t)MOST_DEPTH * MOST_BLOCK; i += 8) {
        const uint64_t noise = (i + 1) * 0x9e3779b97f4a7c15u;
        memcpy(memory + i, &noise, 8);
    }
    printf("| block | depth | what |");
    for (int k = 0; k < COLUMNS; k++) printf(" %s |", columns[k].name);
    printf("\n|---|---|---|");
    for (int k = 0; k < COLUMNS; k++) printf("---|");
    printf("\n");
    for (int b = 0; b < ZFI_COUNT(blocks); b++) {
        open_disks(&s, blocks[b]);
        for (int write = 0; write < 2; write++)
            for (int k = 0; k < ZFI_COUNT(depths); k++) {
                row(&s, blocks[b], depths[k], write, true);
                if (blocks[b] <= 1 << 20 && depths[k] == MOST_DEPTH)
                    row(&s, blocks[b], depths[k], write, false);
            }
        for (int k = 0; k < COLUMNS; k++) zfi_disk_close(disks[k]);
    }
    for (int k = 0; k < COLUMNS; k++)
        if (*why[k]) printf("%s: %s\n", columns[k].name, why[k]);
    free(memory);
    return 0;
}
