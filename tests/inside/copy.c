/* Copies between device and host memory: every byte, and no byte outside them, at any address and of
 * any size; alone, on the workers and past the caches. */

/* Copies `bytes` from `from` to `to` by the launch of a copy, on a queue or not. */
static bool copy_launched(char *to, const char *from, int64_t bytes, int32_t queue, zf_backend *b)
{
    zf_error error = {ZF_OK, ""};
    const zf_array x = {(void *)(uintptr_t)from, ZF_U8, ZF_SHAPE(bytes)};
    const zf_run run = {.world = 1};
    const zf_launch l = {.op = ZF_OP_copy,
                         .arg_count = 1,
                         .args = &x,
                         .out = {to, ZF_U8, ZF_SHAPE(bytes)},
                         .run = &run,
                         .backend = b->self,
                         .queue = queue,
                         .error = &error};
    return !zfi_run_copy(&l);
}

TEST_ONCE(copy_moves_all_bytes)
{
    enum { EDGE = 160, LONG = ZFI_LARGE_COPY };
    static const int64_t sizes[] = {0,    1,        15,   16,         17,       127,
                                    128,  129,      255,  256,        1000,     4096,
                                    4097, LONG - 1, LONG, LONG + 127, LONG + 1, LONG + 16};
    static const int places[] = {0, 1, 4, 8, 15, 16, 31, 64, 65};
    static char from[LONG + 2 * EDGE + 256], to[LONG + 2 * EDGE + 256];
    zf_backend *b = zf_cpu_backend(&(zf_cpu_desc){.threads = 3}, NULL);
    NEED(t, b, NULL);
    test_defer(t, (test_cleanup *)zf_backend_free, b);
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(i * 2654435761u >> 13);
    for (int n = 0; n < ZFI_COUNT(sizes); n++)
        for (int a = 0; a < ZFI_COUNT(places); a++)
            for (int way = 0; way < 4; way++) {
                const int64_t bytes = sizes[n];
                char *x = from + EDGE + places[(a * 5 + n) % ZFI_COUNT(places)],
                     *y = to + EDGE + places[a];
                bool good = true;
                memset(y - EDGE, 0x55, (size_t)bytes + 2 * EDGE);
                if (way > 1)
                    CHECK(t, copy_launched(y, x, bytes, way == 2 ? ZFI_QUEUE_UPLOAD : 0, b));
                else zfi_copy_past_caches(way ? zfi_isa_best() : ZFI_ISA_PORTABLE, y, x, bytes);
                zfi_end_past_caches();
                CHECK(t, !memcmp(y, x, (size_t)bytes));
                for (int i = 0; i < EDGE; i++) good &= y[-1 - i] == 0x55 && y[bytes + i] == 0x55;
                CHECK(t, good);
            }
}
