/* Checksums, and directories that are replaced as a whole. */

/* One bit at a time: the definition. */
static uint32_t crc32c_plain(uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

TEST(crc32c_known_answers)
{
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof ones);
    CHECK(t, zfi_crc32c(0, "123456789", 9) == 0xe3069283u);
    CHECK(t, zfi_crc32c(0, zeros, 32) == 0x8a9136aau); /* RFC 3720, B.4 */
    CHECK(t, zfi_crc32c(0, ones, 32) == 0x62a8ab43u);
    CHECK(t, zfi_crc32c(0, NULL, 0) == 0);
    CHECK(t, zfi_crc32c(zfi_crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u);
    CHECK(t, ~zfi_crc32c_short(~0u, (const uint8_t *)"123456789", 9) == 0xe3069283u);
    CHECK(t, ~zfi_crc32c_long(~0u, (const uint8_t *)"123456789", 9) == 0xe3069283u);
}

TEST_ONCE(crc32c_every_way_is_the_same)
{
    enum { SIZE = 40000 };
    static uint8_t data[SIZE];
    uint32_t state = 1;
    for (int i = 0; i < SIZE; i++)
        data[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    for (size_t bytes = 0; bytes < SIZE; bytes += bytes < 80 ? 1 : 3989)
        for (size_t from = 0; from < 9 && from + bytes <= SIZE; from++) {
            uint32_t expected = crc32c_plain(from, data + from, bytes);
            CHECK(t, zfi_crc32c((uint32_t)from, data + from, bytes) == expected);
            CHECK(t, ~zfi_crc32c_short(~(uint32_t)from, data + from, bytes) == expected);
            CHECK(t, ~zfi_crc32c_long(~(uint32_t)from, data + from, bytes) == expected);
#if ZFI_X86
            if (!__builtin_cpu_supports("sse4.2")) continue;
            CHECK(t, ~zfi_crc32c_sse(~(uint32_t)from, data + from, bytes) == expected);
            if (!__builtin_cpu_supports("pclmul")) continue;
            CHECK(t, ~zfi_crc32c_streams(~(uint32_t)from, data + from, bytes) == expected);
#endif
        }
}

TEST(checksums_of_tensors)
{
    enum { SIZE = 700001 };
    static uint8_t data[SIZE], back[SIZE];
    const char *path = test_path("sums.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer = zf_safetensors_writer_new(path, &t->allocator, &error);
    zf_safetensors *file;
    uint32_t crc = 0, expected;
    NEED(t, writer, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_writer_free, writer);
    for (int i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 7 ^ i >> 8);
    expected = zfi_crc32c(0, data, SIZE);
    writer->checksums = true;
    OK(t, zf_safetensors_declare(writer, "a", ZF_U8, ZF_SHAPE(SIZE)), NULL);
    OK(t, zf_safetensors_write(writer, 0, data, 5), NULL);
    OK(t, zf_safetensors_write(writer, 0, data + 5, SIZE - 5), NULL);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    CHECK(t, writer->tensors[0].crc == expected);
    file = zf_safetensors_open(path, &t->allocator, &error);
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    OK(t, zf_safetensors_read(file, 0, back, SIZE, &error), error.text);
    CHECK(t, !memcmp(back, data, SIZE));
    memset(back, 0, SIZE);
    OK(t, zfi_file_piece(file->file, path, file->start, (char *)back, SIZE, &crc, &error),
       error.text);
    CHECK(t, crc == expected && !memcmp(back, data, SIZE));
}

/* ----------------------------------------------------------------------------- directories */

static bool put_file(const char *directory, const char *name, const char *text)
{
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "w");
    return file && fputs(text, file) >= 0 && fclose(file) == 0;
}

/* The text of a file, "-" when there is none. */
static const char *get_file(const char *directory, const char *name)
{
    static char text[64];
    char path[512];
    FILE *file;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!(file = fopen(path, "r"))) return "-";
    bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static bool exists(const char *path, const char *suffix)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", path, suffix);
    return access(whole, F_OK) == 0;
}

/* A directory as a checkpoint has it. */
static bool put_directory(const char *path, const char *suffix, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", path, suffix);
    return mkdir(whole, 0700) == 0 && put_file(whole, "mark", text) &&
           put_file(whole, "other", text);
}

TEST_ONCE(directory_is_made_and_replaced)
{
    const char *path = test_path("made");
    char aside[ZFI_ASIDE_MAX], slashed[512];
    zf_error error = {0};
    for (int round = 0; round < 3; round++) {
        char text[8];
        snprintf(text, sizeof text, "%d", round);
        snprintf(slashed, sizeof slashed, "%s%s", path, round == 1 ? "//" : "");
        OK(t, zfi_directory_begin(slashed, "mark", aside, &error), error.text);
        CHECK(t, strlen(aside) > 7 && !strcmp(aside + strlen(aside) - 7, ".zf-new"));
        CHECK(t, put_file(aside, "mark", text) && (round || put_file(aside, "first", "x")));
        if (round) {
            char before[8];
            snprintf(before, sizeof before, "%d", round - 1);
            CHECK_TEXT(t, get_file(path, "mark"), before);
        }
        OK(t, zfi_directory_commit(aside, "mark", &error), error.text);
        CHECK_TEXT(t, get_file(path, "mark"), text);
        CHECK_TEXT(t, get_file(path, "first"), round ? "-" : "x");
        CHECK(t, !exists(path, ".zf-new") && !exists(path, ".zf-old"));
    }
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, put_file(aside, "mark", "never"));
    zfi_directory_abandon(aside, "mark");
    CHECK_TEXT(t, get_file(path, "mark"), "2");
    CHECK(t, !exists(path, ".zf-new") && !exists(path, ".zf-old"));
}

/* Where names cannot be exchanged at once. */
TEST_ONCE(directory_swap_without_exchange)
{
    const char *path = test_path("swapped");
    char aside[ZFI_ASIDE_MAX], old[ZFI_ASIDE_MAX];
    zf_error error = {0};
    CHECK(t, put_directory(path, "", "old"));
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, put_file(aside, "mark", "new"));
    OK(t, zfi_directory_swap(aside, path, false, old, &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "new");
    CHECK_TEXT(t, get_file(old, "mark"), "old");
    CHECK_TEXT(t, old + strlen(path), ".zf-old");
    CHECK(t, !exists(path, ".zf-new"));
    /* The machine stops here; the next one cleans up. */
    OK(t, zfi_directory_recover(path, "mark", &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "new");
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, !exists(path, ".zf-old") && exists(path, ".zf-new"));
    zfi_directory_abandon(aside, "mark");
}

/* Every state in which a stopped machine can leave a directory. */
TEST_ONCE(directory_recovers)
{
    const char *path;
    char aside[ZFI_ASIDE_MAX];
    zf_error error = {0};

    path = test_path("filling"); /* while the new one was filled */
    CHECK(t, put_directory(path, "", "old") && put_directory(path, ".zf-new", "half"));
    OK(t, zfi_directory_recover(path, "mark", &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "old");
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK_TEXT(t, get_file(aside, "mark"), "");
    zfi_directory_abandon(aside, "mark");

    path = test_path("exchanged"); /* after the exchange: the old one has the other name */
    CHECK(t, put_directory(path, "", "new") && put_directory(path, ".zf-new", "old"));
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "new");
    zfi_directory_abandon(aside, "mark");

    path = test_path("between"); /* between the two renames */
    CHECK(t, put_directory(path, ".zf-old", "old") && put_directory(path, ".zf-new", "new"));
    OK(t, zfi_directory_recover(path, "mark", &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "old");
    CHECK(t, !exists(path, ".zf-old"));

    path = test_path("emptied"); /* the same, and somebody made the directory anew */
    CHECK(t, put_directory(path, ".zf-old", "old") && mkdir(path, 0700) == 0);
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "old");
    CHECK(t, put_file(aside, "mark", "new"));
    OK(t, zfi_directory_commit(aside, "mark", &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "new");

    path = test_path("nothing"); /* nothing at all */
    OK(t, zfi_directory_recover(path, "mark", &error), error.text);
    CHECK(t, !exists(path, ""));
}

int symlink(const char *, const char *);

/* Directories next to a place that only have the names of what a stopped writer leaves. */
TEST_ONCE(directory_leftovers_are_not_known_by_name)
{
    static const char *const ends[] = {".zf-new", ".zf-old"};
    for (int k = 0; k < 2; k++) {
        const char *path = test_path(k ? "strange old" : "strange new");
        char aside[ZFI_ASIDE_MAX], strange[512], inside[600], expected[1024];
        zf_error error = {0};
        snprintf(strange, sizeof strange, "%s%s", path, ends[k]);
        CHECK(t, mkdir(strange, 0700) == 0 && put_file(strange, "letter.txt", "dear"));
        OK(t, zfi_directory_recover(path, "mark", &error), error.text);
        CHECK(t, !exists(path, ""));
        CHECK(t, zfi_directory_begin(path, "mark", aside, &error) == ZF_ERR_IO);
        snprintf(expected, sizeof expected,
                 "%s is not replaced: it holds files (letter.txt) but no mark; name another place",
                 strange);
        CHECK_TEXT(t, error.text, expected);
        CHECK_TEXT(t, get_file(strange, "letter.txt"), "dear");
        snprintf(inside, sizeof inside, "%s/letter.txt", strange);
        CHECK(t, remove(inside) == 0 && rmdir(strange) == 0);
        CHECK(t, put_directory(path, "", "mine") && symlink(path, strange) == 0);
        error = (zf_error){0};
        CHECK(t, zfi_directory_begin(path, "mark", aside, &error) == ZF_ERR_IO);
        CHECK(t, strstr(error.text, " exists and is not a directory"));
        CHECK_TEXT(t, get_file(path, "other"), "mine");
    }
}

/* A writer that is stopped while it fills a directory, or removes one, leaves the mark. */
TEST_ONCE(directory_leftovers_have_the_mark)
{
    const char *path = test_path("stopped");
    char aside[ZFI_ASIDE_MAX], again[ZFI_ASIDE_MAX];
    zf_error error = {0};
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, put_file(aside, "half", "x"));
    OK(t, zfi_directory_begin(path, "mark", again, &error), error.text);
    CHECK_TEXT(t, get_file(again, "half"), "-");
    zfi_directory_abandon(again, "mark");
    CHECK(t, !exists(path, ".zf-new"));
}

/* A file next to a place that only has the name of what a stopped writer leaves. */
TEST_ONCE(file_leftovers_are_not_known_by_name)
{
    const char *folder = test_path("half a file");
    char path[512], aside[600], expected[1024];
    zf_error error = {0};
    zfi_new_file half;
    struct stat about;
    snprintf(path, sizeof path, "%s/x", folder), snprintf(aside, sizeof aside, "%s.zf-new", path);
    CHECK(t, mkdir(folder, 0700) == 0 && put_file(folder, "x.zf-new", "dear"));
    CHECK(t, zfi_file_save(path, "new", 3, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected,
             "%s is there, and no interrupted run has left it: move it, or name another place",
             aside);
    CHECK_TEXT(t, error.text, expected);
    CHECK_TEXT(t, get_file(folder, "x.zf-new"), "dear");
    CHECK(t, remove(aside) == 0 && symlink("y", aside) == 0);
    CHECK(t, zfi_file_save(path, "new", 3, &error) == ZF_ERR_IO);
    CHECK(t, remove(aside) == 0);
    error = (zf_error){0};
    OK(t, zfi_new_file_begin(&half, path, &error), error.text);
    OK(t, zfi_new_file_write(&half, 0, "half", 4, &error), error.text);
    close(half.file); /* the writer is stopped here */
    OK(t, zfi_file_save(path, "new", 3, &error), error.text);
    CHECK_TEXT(t, get_file(folder, "x"), "new");
    CHECK(t, !exists(aside, "") && stat(path, &about) == 0 && !(about.st_mode & ~0777u & 07777u));
}

TEST_ONCE(directory_refuses_what_is_not_ours)
{
    const char *path = test_path("home");
    char aside[ZFI_ASIDE_MAX], inner[512], expected[1024];
    zf_error error = {0};
    CHECK(t, mkdir(path, 0700) == 0 && put_file(path, "letter.txt", "x"));
    CHECK(t, zfi_directory_begin(path, "mark", aside, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected,
             "%s is not replaced: it holds files (letter.txt) but no mark; name another place",
             path);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    snprintf(inner, sizeof inner, "%s/mark", path);
    CHECK(t, put_file(path, "mark", "x") && remove(inner) == 0);
    snprintf(inner, sizeof inner, "%s/letter.txt", path);
    CHECK(t, remove(inner) == 0);
    snprintf(inner, sizeof inner, "%s/pictures", path);
    CHECK(t, mkdir(inner, 0700) == 0 && put_file(path, "mark", "x"));
    CHECK(t, zfi_directory_begin(path, "mark", aside, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected,
             "%s is not replaced: it holds a directory (pictures); name another place", path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, exists(inner, "") && !exists(path, ".zf-new"));
    error = (zf_error){0};
    snprintf(inner, sizeof inner, "%s/mark", path);
    CHECK(t, zfi_directory_begin(inner, "mark", aside, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "%s exists and is not a directory", inner);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    snprintf(inner, sizeof inner, "%s/no/where", path);
    CHECK(t, zfi_directory_begin(inner, "mark", aside, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "cannot create %s.zf-new: No such file or directory",
             inner);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    CHECK(t, zfi_directory_begin("", "mark", aside, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "an empty path");
}

/* Lays out the state of a disk after each recorded call, in each way. `good` says whether the state
 * is allowed; `last`: after the last call. */
static bool every_stop(const char *folder, bool (*good)(const char *folder, bool last))
{
    int calls = disk_stop();
    for (int k = 0; k <= calls; k++)
        for (disk_kept kept = DISK_NONE; disk_differs(k) && kept <= DISK_INNER; kept++)
            if (!disk_after(k, kept, folder) || !good(folder, k == calls)) {
                printf("    after call %d of %d, names %d\n", k, calls, (int)kept);
                return false;
            }
    return calls > 3;
}

/* The directory x is the old one or the new one, complete. */
static bool directory_is_whole(const char *folder, bool last)
{
    char path[512], mark[8];
    zf_error error = {0};
    snprintf(path, sizeof path, "%s/x", folder);
    if (zfi_directory_recover(path, "mark", &error)) return false;
    snprintf(mark, sizeof mark, "%s", get_file(path, "mark"));
    return !strcmp(mark, get_file(path, "other")) &&
           (!strcmp(mark, "new") || (!last && !strcmp(mark, "old")));
}

/* A file that the commit has to bring to the disk. */
static bool put_unsynced(const char *directory, const char *name)
{
    char path[512];
    int file;
    bool good;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = open(path, O_WRONLY | O_CREAT, 0600);
    good = file >= 0 && pwrite(file, "new", 3, 0) == 3;
    return close(file) == 0 && good;
}

TEST_ONCE(directory_survives_power_loss)
{
    const char *folder = test_path("disk"), *left = test_path("left");
    char path[512], aside[ZFI_ASIDE_MAX];
    zf_error error = {0};
    snprintf(path, sizeof path, "%s/x", folder);
    for (int exchange = 0; exchange < 2; exchange++) {
        disk_remove(folder);
        CHECK(t, mkdir(folder, 0700) == 0 && put_directory(path, "", "old"));
        CHECK(t, disk_record(folder));
        disk_cannot_exchange = !exchange;
        OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
        CHECK(t, put_unsynced(aside, "mark") && put_unsynced(aside, "other"));
        OK(t, zfi_directory_commit(aside, "mark", &error), error.text);
        disk_cannot_exchange = false;
        CHECK(t, every_stop(left, directory_is_whole));
    }
    disk_remove(folder), disk_remove(left);
}

static bool file_is_whole(const char *folder, bool last)
{
    const char *text = get_file(folder, "x");
    return !strcmp(text, "new") || (!last && !strcmp(text, "old"));
}

TEST_ONCE(file_survives_power_loss)
{
    const char *folder = test_path("disk"), *left = test_path("left");
    char path[512];
    zf_error error = {0};
    snprintf(path, sizeof path, "%s/x", folder);
    CHECK(t, mkdir(folder, 0700) == 0 && put_file(folder, "x", "old") && disk_record(folder));
    OK(t, zfi_file_save(path, "new", 3, &error), error.text);
    CHECK(t, every_stop(left, file_is_whole));
    disk_remove(folder), disk_remove(left);
}

/* Of two writers of one directory, each has it alone or gets an error. */
TEST_ONCE(directory_has_one_writer)
{
    const char *path = test_path("contended");
    char aside[ZFI_ASIDE_MAX], rival[ZFI_ASIDE_MAX], expected[512];
    zf_error error = {0};
    int lock;
    snprintf(expected, sizeof expected, "cannot write %s.zf-new: somebody else is writing it too",
             path);
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, (lock = zfi_directory_lock(aside, &error)) >= 0 && put_file(aside, "mark", "mine"));
    CHECK(t, zfi_directory_begin(path, "mark", rival, &error) == ZF_ERR_IO);
    CHECK_TEXT(t, error.text, expected);
    CHECK_TEXT(t, get_file(aside, "mark"), "mine");
    error = (zf_error){0};
    CHECK(t, zfi_directory_lock(aside, &error) < 0);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    OK(t, zfi_directory_commit(aside, "mark", &error), error.text);
    CHECK_TEXT(t, get_file(path, "mark"), "mine");
    CHECK(t, !zfi_directory_is(lock, aside) && zfi_directory_is(lock, path));
    /* Who began before the directory was locked has another one now. */
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    close(lock);
    CHECK(t, (lock = open(aside, O_RDONLY)) >= 0);
    OK(t, zfi_directory_begin(path, "mark", rival, &error), error.text);
    CHECK(t, !zfi_directory_is(lock, rival));
    close(lock);
    zfi_directory_abandon(rival, "mark");
}

/* A commit finds something in the directory's place that was not there at its beginning. */
TEST_ONCE(directory_commit_that_fails_leaves_no_trace)
{
    const char *path = test_path("taken");
    char aside[ZFI_ASIDE_MAX], expected[512];
    zf_error error = {0};
    FILE *file;
    OK(t, zfi_directory_begin(path, "mark", aside, &error), error.text);
    CHECK(t, put_file(aside, "mark", "x"));
    file = fopen(path, "w");
    CHECK(t, file && fclose(file) == 0);
    CHECK(t, zfi_directory_commit(aside, "mark", &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "cannot replace %s: Not a directory", path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, exists(path, "") && !exists(path, ".zf-new"));
}

TEST_ONCE(file_too_long_a_path)
{
    static char path[5000];
    zf_error error = {0};
    memset(path, 'a', sizeof path - 1);
    CHECK(t, zfi_file_save(path, "", 0, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(error.text, "aaa: a path of 4999 bytes, at most 4095 are possible"));
}

TEST_ONCE(utf8_accepts_all_and_only_what_it_is)
{
    unsigned char bytes[4];
    int good = 0;
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        int length = zfi_utf8_encode(bytes, code);
        bool surrogate = code >= 0xd800 && code < 0xe000;
        CHECK(t, zfi_utf8_bytes(bytes, (size_t)length) == (surrogate ? 0 : length));
        CHECK(t, length == 1 || !zfi_utf8_bytes(bytes, (size_t)length - 1));
    }
    /* Of all the combinations of three bytes exactly the encodings of three bytes are characters of
     * that length. */
    for (uint32_t all = 0; all < 1u << 24; all++) {
        unsigned char three[3] = {(unsigned char)(all >> 16), (unsigned char)(all >> 8),
                                  (unsigned char)all};
        good += zfi_utf8_bytes(three, 3) == 3;
    }
    CHECK(t, good == 0x10000 - 0x800 - 0x800);
}

/* ------------------------------------------------------------------------- interrupted calls */

static void no_interrupts(void *unused)
{
    (void)unused;
    disk_interrupts = false;
}

/* A checkpoint is whole though every second call is interrupted, and the others do a part. */
TEST(files_are_whole_though_calls_are_not)
{
    static float saved[4096], loaded[4096];
    const char *path = test_path("interrupted");
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    const zf_param_desc uniform = {.init = ZF_UNIFORM, .low = -1, .high = 1};
    zf_error error = {ZF_OK, ""};
    zf_program *p;
    zf_store *other;
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    zf_output(zf_param(g, "w", ZF_SHAPE(4096), &uniform), "y");
    p = zf_compile(g, NULL);
    NEED(t, p, &g->error);
    test_defer(t, (test_cleanup *)zf_program_free, p);
    OK(t, zf_store_read(STORE(p), "w", saved, sizeof saved), STORE_ERROR(p));
    NEED(t, other = zf_store_new(&(zf_store_desc){.allocator = t->allocator}, &error), &error);
    test_defer(t, (test_cleanup *)zf_store_free, other);
    test_defer(t, no_interrupts, NULL);
    disk_interrupts = true;
    OK(t, zf_save(STORE(p), path, NULL), STORE_ERROR(p));
    OK(t, zf_load(other, path, NULL), zf_store_error(other));
    OK(t, zf_store_read(other, "w", loaded, sizeof loaded), zf_store_error(other));
    CHECK(t, saved[1] != 0 && !memcmp(saved, loaded, sizeof saved));
}
