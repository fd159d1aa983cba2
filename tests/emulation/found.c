/* The emulation itself: programs that are right give what they should in every order, and of each
 * kind of mistake that it is made to find one is planted (planted.cu). */
#define _POSIX_C_SOURCE 200809L
#include "../support/test.h"
#include "emulation.h"
#include "planted.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ORDERS = 20,
    NO_HANDLE = 400, /* cudaErrorInvalidResourceHandle */
    UNJOINED = 904,  /* cudaErrorStreamCaptureUnjoined */
    CAPTURED = 907   /* cudaErrorCapturedEvent */
};

static bool all_are(const float *x, int count, float value)
{
    for (int i = 0; i < count; i++)
        if (!(x[i] == value)) return false;
    return true;
}

/* The finding is said by a line with all of these words. */
#define CHECK_FOUND(t, ...)                                                                        \
    do {                                                                                           \
        const char *words[] = {__VA_ARGS__};                                                       \
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)                                \
            if (!strstr(emulation_report(), words[w]))                                             \
                test_fail((t), __FILE__, __LINE__, words[w], emulation_report());                  \
        emulation_clear();                                                                         \
    } while (0)

TEST_ONCE(emulation_runs_what_is_right)
{
    float x[96];
    int live = emulation_live();
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, !planted_reverse(x, 1, 1));
        for (int i = 0; i < 96; i++) CHECK(t, x[i] == (float)(95 - i));
        CHECK(t, !planted_warp(x, 0) && all_are(x, 32, 496));
        CHECK(t, !planted_barrier(x, 0) && all_are(x, 96, 1));
        CHECK(t, !planted_barrier(x, 2) && all_are(x, 96, 1));
        CHECK(t, !planted_mask(x, 0) && all_are(x, 2, 3));
        CHECK(t, !planted_write(x, 0, 0) && all_are(x, 32, 1));
        CHECK(t, !planted_write(x, 0, 1) && all_are(x, 32, 1));
        CHECK(t, !planted_streams(x, 1) && x[0] == 7);
        CHECK(t, !planted_graph(x, 1, 1) && x[0] == 3);
        CHECK(t, !planted_staging(x, 1) && x[0] == 1);
        CHECK(t, !planted_device(x, 0) && x[0] == 1);
        CHECK(t, !planted_event(x, 0));
        CHECK(t, !planted_product(x, 0, 0) && x[0] == 8);
    }
    CHECK_TEXT(t, emulation_report(), "");
    CHECK(t, emulation_live() == live);
}

TEST_ONCE(emulation_has_the_operations_of_a_warp)
{
    static float out[12 * 1024];
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, !planted_operations(out, 16, 64));
        for (int i = 0; i < 1024; i++) {
            const float *x = out + 12 * i;
            int lane = i % 32, half = lane / 16, fives = lane / 5 == 6 ? 2 : 5;
            CHECK(t, x[0] == 3);
            CHECK(t, x[1] == (float)(lane / 8 * 8 + (lane + 1) % 8));
            CHECK(t, x[2] == (float)(lane < 2 ? lane : lane - 2));
            CHECK(t, x[3] == (float)(lane % 16 > 13 ? lane : lane + 2));
            CHECK(t, x[4] == (float)(lane ^ 5));
            CHECK(t, x[5] == 11);
            CHECK(t, x[6] == (float)half);
            CHECK(t, x[7] == (float)half);
            CHECK(t, x[8] == 496 - 512);
            CHECK(t, x[9] == (float)(15 + 16 * half));
            CHECK(t, x[10] == (float)fives);
            CHECK(t, x[11] == 32);
        }
    }
    CHECK_TEXT(t, emulation_report(), "");
}

/* Whether warps in waves of so many lanes have their own results, in every order. */
static bool warps_are_right(int lanes, int mistake)
{
    float out[3 * 64];
    bool right = true;
    emulation_waves(lanes, EMULATION_MMA);
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        right = !planted_waves(out, mistake) && right;
        for (int i = 0; i < 64; i++) {
            const float *x = out + 3 * i, first = (float)(i / 32 * 32);
            right = right && x[0] == 528 + 32 * first && x[1] == 11 && x[2] == 6 + first;
        }
    }
    emulation_waves(32, EMULATION_MMA);
    return right;
}

TEST_ONCE(emulation_finds_mistakes_that_waves_of_32_hide)
{
    for (int mistake = 0; mistake < 4; mistake++) {
        CHECK(t, warps_are_right(32, mistake) == (mistake < 3));
        CHECK(t, warps_are_right(64, mistake) == !mistake);
    }
    CHECK_TEXT(t, emulation_report(), "");
}

/* In one of the orders something else comes out. */
static bool differs(int (*run)(float *, int), float right)
{
    int other = 0;
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        float x = 0;
        emulation_seed(seed);
        other += run(&x, 0) || x != right;
    }
    return other > 0;
}

static int unordered_graph(float *out, int waits) { return planted_graph(out, waits, 1); }

TEST_ONCE(emulation_multiplies_by_warpgroups)
{
    float wrong, late = 0, early = 0;
    for (int way = 0; way < 6; way++)
        for (int kind = 0; kind < 4; kind++) {
            emulation_seed((uint64_t)(4 * way + kind));
            CHECK(t, !planted_warpgroup(&wrong, kind % 2 ? 128 : 64, way, kind / 2, 0));
            CHECK(t, wrong == 0);
            CHECK_TEXT(t, emulation_report(), "");
        }
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, !planted_warpgroup(&wrong, 64, 1, 0, 1));
        late += wrong;
        CHECK(t, !planted_warpgroup(&wrong, 64, 1, 0, 2));
        early += wrong;
        CHECK(t, planted_warpgroup(&wrong, 64, 1, 0, 3) != 0);
        CHECK_FOUND(t, "multiply", "barrier 1: thread ", "of 288 threads 256 have come");
    }
    CHECK(t, late > 0 && early > 0);
}

TEST_ONCE(emulation_finds_a_missing_wait) { CHECK(t, differs(planted_streams, 7)); }
TEST_ONCE(emulation_finds_a_missing_wait_in_a_graph) { CHECK(t, differs(unordered_graph, 3)); }
TEST_ONCE(emulation_finds_staging_that_is_reused) { CHECK(t, differs(planted_staging, 1)); }

TEST_ONCE(emulation_refuses_a_graph_with_loose_ends)
{
    float x;
    CHECK(t, planted_graph(&x, 1, 0) == UNJOINED);
    emulation_clear();
}

TEST_ONCE(emulation_refuses_what_is_another_device_s)
{
    float x;
    CHECK(t, planted_device(&x, 1) == NO_HANDLE);
    CHECK(t, planted_product(&x, 0, 1) != 0);
    CHECK_FOUND(t, "cublasLtMatmulAlgoGetHeuristic: the handle is of device 1, and device 0 is ");
}

TEST_ONCE(emulation_refuses_an_event_of_a_graph)
{
    float x;
    CHECK(t, planted_event(&x, 1) == CAPTURED);
}

TEST_ONCE(emulation_refuses_a_workspace_that_lies_badly)
{
    float x;
    CHECK(t, planted_product(&x, 64, 0) != 0);
    CHECK_FOUND(t, "cublasLtMatmul: the workspace is not at a multiple of 256 bytes");
}

TEST_ONCE(emulation_finds_a_missing_barrier)
{
    float x[96];
    for (int which = 0; which < 2; which++) {
        int other = 0;
        for (uint64_t seed = 0; seed < ORDERS; seed++) {
            emulation_seed(seed);
            CHECK(t, !planted_reverse(x, which == 1, which == 0));
            for (int i = 0; i < 96; i++) other += !(x[i] == (float)(95 - i));
        }
        CHECK(t, other > 0);
    }
}

TEST_ONCE(emulation_finds_a_divergent_barrier)
{
    float x[96];
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, planted_barrier(x, 1) != 0);
        CHECK_FOUND(t, "wait_in_two_places: block (0,0,0): divergent barrier: thread ",
                    " waits in __syncthreads at ", "planted.cu:");
        CHECK(t, planted_barrier(x, 3) != 0);
        CHECK_FOUND(t, "leave_before_the_barrier: block (0,0,0): divergent barrier: thread ",
                    "thread 40 (warp 1, lane 8), which has left the kernel");
    }
}

TEST_ONCE(emulation_finds_a_missing_lane)
{
    float x[32];
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, planted_warp(x, 1) != 0);
        CHECK_FOUND(t, "sum_of_warp: block (0,0,0): incomplete __shfl_xor_sync at ", "planted.cu:",
                    "waits for lane 5 of mask 0xffffffff, which has left the kernel");
        CHECK(t, planted_mask(x, 1) != 0);
        CHECK_FOUND(t, "mask_without_its_lane", "mask 0x2 does not name the lane that calls");
    }
}

static void two_devices(void *unused)
{
    (void)unused;
    emulation_devices(2);
}

TEST_ONCE(emulation_has_ranks)
{
    float x[6];
    int live = emulation_live(), other = 0;
    emulation_devices(3);
    test_defer(t, two_devices, NULL);
    if (planted_ranks(x, 0) < 0) return;
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        emulation_seed(seed);
        CHECK(t, planted_ranks(x, 0) == 0);
        for (int i = 0; i < 3; i++) CHECK(t, x[i] == 6 && x[3 + i] == (float)(i + 1));
        CHECK_TEXT(t, emulation_report(), "");
        other += planted_ranks(x, 1) || x[0] != 6;
    }
    CHECK(t, other > 0);
    CHECK(t, planted_ranks(x, 2) != 0);
    CHECK_FOUND(t, "collective 0: rank 0 calls ncclAllReduce of 32 elements, rank 2 ncclAllReduce "
                   "of 31");
    for (int mistake = 3; mistake <= 5; mistake++) {
        x[0] = x[1] = x[2] = 0;
        CHECK(t, planted_ranks(x, mistake) == 0);
        CHECK(t, x[0] == -1 && x[1] == -1 && x[2] == (mistake > 3 ? -1 : 0));
    }
    CHECK(t, emulation_live() == live);
}

/* In a process of its own, which the sanitizer ends: whether something was found. */
static bool is_found_aside(int (*run)(float *, int, int), int a, int b)
{
    float x[32];
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int failed;
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        failed = run(x, a, b);
        _exit(failed || *emulation_report());
    }
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

TEST_ONCE(emulation_finds_writes_out_of_bounds)
{
    CHECK(t, !is_found_aside(planted_write, 0, 0) && !is_found_aside(planted_write, 0, 1));
    CHECK(t, is_found_aside(planted_write, 1, 0));
    CHECK(t, is_found_aside(planted_write, -1, 0));
    CHECK(t, is_found_aside(planted_write, 1, 1));
}

#if defined(__SANITIZE_ADDRESS__)
static int read_by(float *out, int by_host, int unused)
{
    return (void)unused, planted_read(out, by_host);
}

TEST_ONCE(emulation_finds_device_memory_that_the_host_reads)
{
    CHECK(t, !is_found_aside(read_by, 0, 0));
    CHECK(t, is_found_aside(read_by, 1, 0));
}
#endif
