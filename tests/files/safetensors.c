/* Safetensors files: what Python writes is read, what we write is read back, and every rule has its
 * message. */
#define _POSIX_C_SOURCE 200809L /* truncate, symlink, readlink */
#include "../support/test.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file in memory: the header's size, the header, and data 0, 1, 2, ... */
typedef struct image {
    unsigned char bytes[4096];
    size_t size;
} image;

static image image_of(const char *header, size_t data)
{
    image file = {.size = 8 + strlen(header) + data};
    for (int i = 0; i < 8; i++) file.bytes[i] = (unsigned char)((uint64_t)strlen(header) >> 8 * i);
    memcpy(file.bytes + 8, header, strlen(header));
    for (size_t i = 0; i < data; i++) file.bytes[8 + strlen(header) + i] = (unsigned char)i;
    return file;
}

/* Parses, and closes at the end of the body. */
static zf_safetensors *parse(test *t, const void *data, size_t bytes, zf_error *error)
{
    zf_safetensors *file = zf_safetensors_parse(data, bytes, &t->allocator, error);
    if (file) test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    return file;
}

static bool write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    return file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0;
}

/* No file of that name with one of our suffixes. */
static bool clean(const char *path)
{
    char aside[512];
    snprintf(aside, sizeof aside, "%s.zf-new", path);
    return access(aside, F_OK) != 0;
}

/* --------------------------------------------------------------------------------- reading */

TEST(safetensors_reads_what_python_wrote)
{
    static const struct {
        const char *name, *file_name;
        zf_dtype dtype;
        unsigned char five[8]; /* the last element of 0 1 2; 3 4 5 */
    } kinds[] = {
        {"f32", "F32", ZF_F32, {0x00, 0x00, 0xa0, 0x40}},
        {"bf16", "BF16", ZF_BF16, {0xa0, 0x40}},
        {"f16", "F16", ZF_F16, {0x00, 0x45}},
        {"f64", "F64", ZF_F64, {0, 0, 0, 0, 0, 0, 0x14, 0x40}},
        {"i32", "I32", ZF_I32, {5}},
        {"i64", "I64", ZF_I64, {5}},
        {"u8", "U8", ZF_U8, {5}},
    };
    zf_error error = {0};
    zf_safetensors *file =
        zf_safetensors_open("tests/golden/safetensors/all.safetensors", &t->allocator, &error);
    const zf_safetensors_entry *entry;
    const char *text = NULL;
    unsigned char data[64];
    float value = 0;
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t, zf_safetensors_count(file) == 24);
    CHECK(t, zf_json_length(zf_safetensors_metadata(file)) == 2);
    OK(t, zf_json_to_string(zf_json_member(zf_safetensors_metadata(file), "note"), &text, &error),
       error.text);
    CHECK_TEXT(t, text, "line\nline");
    for (int i = 0; i < (int)(sizeof kinds / sizeof kinds[0]); i++) {
        char name[32];
        size_t size = zf_dtype_size(kinds[i].dtype);
        int32_t index = zf_safetensors_find(file, kinds[i].name);
        entry = zf_safetensors_at(file, index);
        CHECK(t, entry && entry->readable && entry->dtype == kinds[i].dtype &&
                     entry->bytes == 6 * size);
        CHECK_TEXT(t, entry->name, kinds[i].name);
        CHECK_TEXT(t, entry->dtype_name, kinds[i].file_name);
        CHECK(t, entry->shape.rank == 2 && entry->shape.dims[0] == 2 && entry->shape.dims[1] == 3);
        OK(t, zf_safetensors_read(file, index, data, 6 * size, &error), error.text);
        CHECK(t, !memcmp(data + 5 * size, kinds[i].five, size));
        memset(data, 0xcc, sizeof data);
        OK(t, zf_safetensors_read_range(file, index, 5 * size, data, size, &error), error.text);
        CHECK(t, !memcmp(data, kinds[i].five, size) && data[size] == 0xcc);
        snprintf(name, sizeof name, "scalar.%s", kinds[i].name);
        entry = zf_safetensors_at(file, zf_safetensors_find(file, name));
        CHECK(t, entry && entry->shape.rank == 0 && entry->bytes == size);
        snprintf(name, sizeof name, "empty.%s", kinds[i].name);
        index = zf_safetensors_find(file, name);
        entry = zf_safetensors_at(file, index);
        CHECK(t, entry && entry->shape.rank == 2 && entry->shape.dims[1] == 4 && entry->bytes == 0);
        OK(t, zf_safetensors_read(file, index, NULL, 0, &error), error.text);
    }
    OK(t, zf_safetensors_read(file, zf_safetensors_find(file, "bool"), data, 3, &error),
       error.text);
    CHECK(t, data[0] == 1 && data[1] == 0 && data[2] == 1);
    entry = zf_safetensors_at(file, zf_safetensors_find(file, "six"));
    CHECK(t, entry && entry->shape.rank == 6);
    OK(t,
       zf_safetensors_read(file, zf_safetensors_find(file, "\xc3\xa9 \"quoted\" \\ name"), &value,
                           4, &error),
       error.text);
    CHECK(t, value == 1.5f);
    CHECK(t, zf_safetensors_find(file, "none") == -1 &&
                 zf_safetensors_find(file, "__metadata__") == -1);
    CHECK(t, !zf_safetensors_at(file, -1) && !zf_safetensors_at(file, 24));
    for (int32_t i = 0; i < 24; i++)
        CHECK(t, zf_safetensors_find(file, zf_safetensors_at(file, i)->name) == i);
}

TEST(safetensors_lists_dtypes_it_cannot_read)
{
    static const char path[] = "tests/golden/safetensors/foreign.safetensors";
    zf_error error = {0};
    zf_safetensors *file = zf_safetensors_open(path, &t->allocator, &error);
    unsigned char data[4];
    float value = 0;
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t, zf_safetensors_count(file) == 3 && !zf_safetensors_metadata(file));
    OK(t, zf_safetensors_read(file, zf_safetensors_find(file, "f32"), &value, 4, &error),
       error.text);
    CHECK(t, value == 2);
    CHECK(t, !zf_safetensors_at(file, 1)->readable && zf_safetensors_at(file, 1)->bytes == 2);
    CHECK(t, zf_safetensors_read(file, 1, data, 2, &error) == ZF_ERR_DTYPE);
    CHECK_TEXT(t, error.text,
               "tests/golden/safetensors/foreign.safetensors: the tensor \"f8\" is F8_E4M3; only "
               "F32, BF16, F16, F64, "
               "I32, I64, U8 and BOOL can be read");
}

TEST(safetensors_orders_by_offset)
{
    /* Listed out of order, with empty tensors on the seams. */
    image file = image_of("{\"c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]},"
                          "\"e2\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]},"
                          "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                          "\"e3\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},"
                          "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]},"
                          "\"e1\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                          8);
    static const char *const order[] = {"e1", "a", "b", "e2", "c", "e3"};
    zf_error error = {0};
    zf_safetensors *tensors = parse(t, file.bytes, file.size, &error);
    unsigned char data[3];
    NEED(t, tensors, &error);
    CHECK(t, zf_safetensors_count(tensors) == 6);
    for (int32_t i = 0; i < 6; i++) {
        CHECK_TEXT(t, zf_safetensors_at(tensors, i)->name, order[i]);
        CHECK(t, zf_safetensors_find(tensors, order[i]) == i);
    }
    OK(t, zf_safetensors_read(tensors, 4, data, 3, &error), error.text);
    CHECK(t, data[0] == 5 && data[1] == 6 && data[2] == 7);
}

/* Many tensors in a scrambled order: the sort. */
TEST_ONCE(safetensors_sorts_many)
{
    enum { COUNT = 3000 };
    size_t room = COUNT * 80, at;
    char *bytes = malloc(room + 8 + COUNT), name[16];
    zf_error error = {0};
    zf_safetensors *file;
    CHECK(t, bytes);
    at = 8;
    for (int i = 0; i < COUNT; i++) {
        int k = i * 1237 % COUNT;
        at += (size_t)sprintf(bytes + at,
                              "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                              i ? "," : "{", k, k, k + 1);
    }
    bytes[at++] = '}';
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)(at - 8) >> 8 * i);
    for (int i = 0; i < COUNT; i++) bytes[at++] = (char)i;
    file = zf_safetensors_parse(bytes, at, &t->allocator, &error);
    test_defer(t, free, bytes);
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    for (int i = 0; i < COUNT; i++) {
        unsigned char value = 0;
        snprintf(name, sizeof name, "t%d", i);
        CHECK_TEXT(t, zf_safetensors_at(file, i)->name, name);
        OK(t, zf_safetensors_read(file, i, &value, 1, &error), error.text);
        CHECK(t, value == (unsigned char)i);
    }
}

TEST(safetensors_refuses_what_breaks_a_rule)
{
#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin        \
    "," #end "]}"
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {"", 0, "safetensors: the header does not begin with '{'"},
        {" {}", 0, "safetensors: the header does not begin with '{'"},
        {"[]", 0, "safetensors: the header does not begin with '{'"},
        {"{", 0,
         "safetensors (header):1:2: expected a key in double quotes or '}', found the end of the "
         "text"},
        {"{}x", 0, "safetensors (header):1:3: expected the end of the text, found 'x'"},
        {"{}", 3, "safetensors: 3 bytes after the last tensor"},
        {"{" T("a", "F32", "2", 0, 8) "}", 7,
         "safetensors: the tensors have 8 bytes, but only 7 are there: it is cut short"},
        {"{" T("a", "F32", "2", 0, 8) "}", 9, "safetensors: 1 bytes after the last tensor"},
        {"{\"a\":1}", 0, "safetensors (header):1:6: a must be an object, not 1"},
        {"{\"a\":{}}", 0, "safetensors (header):1:6: a lacks \"dtype\""},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "safetensors (header):1:6: a lacks \"shape\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0,
         "safetensors (header):1:6: a lacks \"data_offsets\""},
        {"{\"a\":{\"dtype\":4,\"shape\":[],\"data_offsets\":[0,4]}}", 4,
         "safetensors (header):1:15: a.dtype must be a string, not 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,4]}}", 4,
         "safetensors (header):1:29: a.shape must be an array of dimensions, not 2"},
        {"{" T("h0.w", "F32", "2,-3", 0, 24) "}", 24,
         "safetensors (header):1:35: \"h0.w\".shape[1] must be an integer of at least 0, not -3"},
        {"{" T("a", "F32", "1.5", 0, 24) "}", 24,
         "safetensors (header):1:30: a.shape[0] must be an integer of at least 0, not 1.5"},
        {"{" T("a", "F32", "9223372036854775808", 0, 24) "}", 24,
         "safetensors (header):1:30: a.shape[0] must be an integer of at least 0, not "
         "9223372036854775808"},
        {"{" T("a", "F32", "1,1,1,1,1,1,1", 0, 4) "}", 4,
         "safetensors (header):1:29: a.shape has 7 dimensions: at most 6 are possible"},
        {"{" T("a", "F32", "4294967296,4294967296", 0, 4) "}", 4,
         "safetensors (header):1:29: a.shape has more elements than 64 bits count"},
        {"{" T("a", "F32", "4294967296,0,4294967296", 0, 0) "}", 0,
         "safetensors (header):1:29: a.shape has more elements than 64 bits count"},
        {"{" T("a", "F64", "4611686018427387904", 0, 0) "}", 0,
         "safetensors (header):1:6: a has 4611686018427387904 elements of 64 bits, but its "
         "data_offsets say 0 bytes"},
        {"{" T("a", "F32", "2,3", 0, 20) "}", 20,
         "safetensors (header):1:6: a has 6 elements of 32 bits, but its data_offsets say 20 "
         "bytes"},
        {"{" T("a", "F4", "3", 0, 1) "}", 1,
         "safetensors (header):1:6: a has 3 elements of 4 bits, but its data_offsets say 1 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1,
         "safetensors (header):1:47: a.data_offsets must be an array of two offsets, not an array"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":1}}", 1,
         "safetensors (header):1:47: a.data_offsets must be an array of two offsets, not 1"},
        {"{" T("a", "U8", "1", -1, 0) "}", 1,
         "safetensors (header):1:48: a.data_offsets[0] must be an integer of at least 0, not -1"},
        {"{" T("a", "U8", "1", 0, "1") "}", 1,
         "safetensors (header):1:50: a.data_offsets[1] must be an integer of at least 0, not "
         "\"1\""},
        {"{" T("a", "U8", "1", 2, 1) "}", 2,
         "safetensors (header):1:47: a.data_offsets ends at 1, before its begin at 2"},
        {"{" T("a", "U8", "1", 1, 2) "}", 2,
         "safetensors (header):1:6: a begins at 1, but the data at 0: no tensor has the bytes "
         "between"},
        {"{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 3, 5) "}", 5,
         "safetensors (header):1:58: b begins at 3, but \"a\" ends at 2: no tensor has the bytes "
         "between"},
        {"{" T("b", "U8", "2", 1, 3) "," T("a", "U8", "2", 0, 2) "}", 3,
         "safetensors (header):1:6: b begins at 1, but \"a\" ends at 2: they overlap"},
        {"{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 0, 2) "}", 2,
         "safetensors (header):1:58: b begins at 0, but \"a\" ends at 2: they overlap"},
        {"{" T("a", "U8", "1", 0, 1) "," T("a", "U8", "1", 1, 2) "}", 2,
         "safetensors (header):1:54: the key \"a\" is already there, on line 1"},
        {"{" T("a\\u0000b", "U8", "1", 0, 1) "}", 1,
         "safetensors (header):1:13: \"a\\u0000b\" has a zero byte in its name"},
        {"{\"__metadata__\":[]}", 0,
         "safetensors (header):1:17: __metadata__ must be an object, not an array"},
        {"{\"__metadata__\":{\"format\":1}}", 0,
         "safetensors (header):1:27: __metadata__.format must be a string, not 1"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        image file = image_of(cases[i].header, cases[i].data);
        zf_safetensors *tensors = parse(t, file.bytes, file.size, &error);
        CHECK(t, !tensors);
        if (error.status != ZF_ERR_FORMAT) NEED(t, tensors, &error);
        CHECK_TEXT(t, error.text, cases[i].message);
    }
}

TEST(safetensors_refuses_wrong_sizes_in_front)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "safetensors: 0 bytes, too short for a safetensors file"},
        {"\2\0\0\0\0\0\0", 7, "safetensors: 7 bytes, too short for a safetensors file"},
        {"\2\0\0\0\0\0\0\0{", 9,
         "safetensors: a header of 2 bytes, but only 1 follow: it is cut short"},
        {"\1\341\365\5\0\0\0\0{}", 10,
         "safetensors: a header of 100000001 bytes (at most 100000000 are allowed): this is no "
         "safetensors file"},
        {"\377\377\377\377\377\377\377\377{}", 10,
         "safetensors: a header of 18446744073709551615 bytes (at most 100000000 are allowed): "
         "this is no safetensors "
         "file"},
        {"PK\3\4\0\0\b\b{}", 10,
         "safetensors: a header of 578712552184433488 bytes (at most 100000000 are allowed): this "
         "is no safetensors "
         "file"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        zf_safetensors *tensors = parse(t, cases[i].bytes, cases[i].size, &error);
        CHECK(t, !tensors);
        if (error.status != ZF_ERR_FORMAT) NEED(t, tensors, &error);
        CHECK_TEXT(t, error.text, cases[i].message);
    }
}

TEST(safetensors_accepts_odd_but_good_files)
{
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        {"{}", 0},
        {"{}      ", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{" T("", "U8", "1", 0, 1) "}", 1},
        {"{" T("a", "F4", "4", 0, 2) "}", 2},
        {"{" T("a", "X9", "4", 0, 3) "}", 3},
        {"{" T("a", "F32", "", 0, 4) "}", 4},
        {"{" T("a", "F32", "4294967296,0", 0, 0) "}", 0},
        {"{" T("a", "U8", "1e0", 0, 1.0) "}", 1},
        {"{\"a\":{\"shape\":[1],\"later\":{\"x\":[]},\"data_offsets\":[0,1],\"dtype\":\"U8\"}}", 1},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        image file = image_of(cases[i].header, cases[i].data);
        NEED(t, parse(t, file.bytes, file.size, &error), &error);
    }
}

TEST(safetensors_read_checks_what_is_asked)
{
    image file = image_of("{" T("a", "F32", "2", 0, 8) "}", 8);
    zf_error error = {0};
    zf_safetensors *tensors = parse(t, file.bytes, file.size, &error);
    float data[2];
    NEED(t, tensors, &error);
#define REFUSED(call, message)                                                                     \
    do {                                                                                           \
        error = (zf_error){0};                                                                     \
        CHECK(t, (call) == ZF_ERR_ARGUMENT);                                                       \
        CHECK_TEXT(t, error.text, message);                                                        \
    } while (0)
    REFUSED(zf_safetensors_read(tensors, 0, data, 4, &error),
            "safetensors: the tensor \"a\" has 8 bytes, not 4");
    REFUSED(zf_safetensors_read(tensors, 1, data, 8, &error),
            "safetensors: no tensor 1, there are 1");
    REFUSED(zf_safetensors_read(tensors, -1, data, 8, &error),
            "safetensors: no tensor -1, there are 1");
    REFUSED(zf_safetensors_read_range(tensors, 0, 4, data, 8, &error),
            "safetensors: 8 bytes from 4 of the tensor \"a\", which has 8");
    REFUSED(zf_safetensors_read_range(tensors, 0, SIZE_MAX, data, 8, &error),
            "safetensors: 8 bytes from 18446744073709551615 of the tensor \"a\", which has 8");
    REFUSED(zf_safetensors_read(tensors, 0, NULL, 8, &error),
            "safetensors: there is no room to read 8 bytes into");
    REFUSED(zf_safetensors_read(NULL, 0, data, 8, &error), "no safetensors file to read from");
    CHECK(t, zf_safetensors_count(NULL) == 0 && !zf_safetensors_at(NULL, 0) &&
                 zf_safetensors_find(NULL, "a") == -1);
    CHECK(t, !zf_safetensors_metadata(NULL));
    zf_safetensors_close(NULL);
}

TEST(safetensors_names_the_file)
{
    const char *path = test_path("wrong.safetensors");
    zf_error error = {0};
    char expected[512];
    CHECK(t, write_file(path, "\3\0\0\0\0\0\0\0{]}", 11));
    CHECK(t, !zf_safetensors_open(path, &t->allocator, &error));
    if (error.status != ZF_ERR_FORMAT) NEED(t, NULL, &error);
    snprintf(expected, sizeof expected,
             "%s (header):1:2: expected a key in double quotes or '}', found ']'", path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, !zf_safetensors_open(path, &t->allocator, NULL));
    error = (zf_error){0};
    path = test_path("none.safetensors");
    CHECK(t, !zf_safetensors_open(path, &t->allocator, &error));
    if (error.status != ZF_ERR_IO) NEED(t, NULL, &error);
    snprintf(expected, sizeof expected, "cannot open %s: No such file or directory", path);
    CHECK_TEXT(t, error.text, expected);
}

/* A file that loses its end while it is open: an error, not a signal. */
TEST(safetensors_survives_truncation_while_open)
{
    const char *path = test_path("shrinks.safetensors");
    image good = image_of("{" T("a", "U8", "100", 0, 100) "}", 100);
    zf_error error = {0};
    zf_safetensors *file;
    char expected[512];
    unsigned char data[100];
    CHECK(t, write_file(path, good.bytes, good.size));
    file = zf_safetensors_open(path, &t->allocator, &error);
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t, truncate(path, (off_t)good.size - 60) == 0);
    CHECK(t, zf_safetensors_read(file, 0, data, 100, &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected,
             "%s ends at byte %d, though it was longer when it was opened", path,
             (int)good.size - 60);
    CHECK_TEXT(t, error.text, expected);
}

TEST_ONCE(safetensors_survives_cuts_and_flips)
{
    image file = image_of("{\"__metadata__\":{\"format\":\"pt\"}," T("a", "F32", "2,1", 0, 8) "," T(
                              "b", "U8", "", 8, 9) "}",
                          9);
    unsigned char data[64];
    for (size_t bytes = 0; bytes < file.size; bytes++) {
        zf_error error = {0};
        CHECK(t, !zf_safetensors_parse(file.bytes, bytes, &t->allocator, &error));
        CHECK(t, error.status == ZF_ERR_FORMAT && error.text[0]);
    }
    for (size_t bit = 0; bit < 8 * (file.size - 9); bit++) {
        zf_error error = {0};
        zf_safetensors *tensors;
        file.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        tensors = zf_safetensors_parse(file.bytes, file.size, &t->allocator, &error);
        CHECK(t, tensors ? !error.status : error.status == ZF_ERR_FORMAT && error.text[0]);
        for (int32_t i = 0; i < zf_safetensors_count(tensors); i++) {
            const zf_safetensors_entry *entry = zf_safetensors_at(tensors, i);
            zf_status status = zf_safetensors_read(tensors, i, data, entry->bytes, NULL);
            CHECK(t, entry->bytes <= 9 && status == (entry->readable ? ZF_OK : ZF_ERR_DTYPE));
        }
        zf_safetensors_close(tensors);
        file.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

/* --------------------------------------------------------------------------------- writing */

static zf_safetensors_writer *writer_of(test *t, const char *path, zf_error *error)
{
    zf_safetensors_writer *writer = zf_safetensors_writer_new(path, &t->allocator, error);
    if (writer) test_defer(t, (test_cleanup *)zf_safetensors_writer_free, writer);
    return writer;
}

TEST(safetensors_round_trip)
{
    static const zf_dtype dtypes[] = {ZF_BOOL, ZF_U8,  ZF_F16, ZF_BF16,
                                      ZF_F32,  ZF_I32, ZF_F64, ZF_I64};
    const char *path = test_path("round.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer;
    zf_safetensors *file;
    unsigned char data[48], back[48];
    const char *text = NULL;
    char name[32];
    for (int i = 0; i < 48; i++) data[i] = (unsigned char)(i * 37);
    CHECK(t, write_file(path, "old", 3));
    writer = writer_of(t, path, &error);
    NEED(t, writer, &error);
    OK(t, zf_safetensors_put_metadata(writer, "step", "1"), NULL);
    OK(t, zf_safetensors_put_metadata(writer, "step", "12"), NULL);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "h.%d \"\xc3\xa9\"", i);
        OK(t, zf_safetensors_declare(writer, name, dtypes[i], ZF_SHAPE(2, 3)), NULL);
        snprintf(name, sizeof name, "scalar.%d", i);
        OK(t, zf_safetensors_declare(writer, name, dtypes[i], ZF_SCALAR), NULL);
        snprintf(name, sizeof name, "empty.%d", i);
        OK(t, zf_safetensors_declare(writer, name, dtypes[i], ZF_SHAPE(3, 0)), NULL);
    }
    for (int i = 7; i >= 0; i--) { /* backwards, and the first of three in two pieces */
        size_t size = zf_dtype_size(dtypes[i]);
        OK(t, zf_safetensors_write(writer, 3 * i + 1, data, size), NULL);
        OK(t, zf_safetensors_write(writer, 3 * i, data, 1), NULL);
        OK(t, zf_safetensors_write(writer, 3 * i + 2, NULL, 0), NULL);
        OK(t, zf_safetensors_write(writer, 3 * i, data + 1, 6 * size - 1), NULL);
    }
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    CHECK(t, clean(path));
    file = zf_safetensors_open(path, &t->allocator, &error);
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t,
          zf_safetensors_count(file) == 24 && zf_json_length(zf_safetensors_metadata(file)) == 2);
    OK(t, zf_json_to_string(zf_json_member(zf_safetensors_metadata(file), "format"), &text, &error),
       error.text);
    CHECK_TEXT(t, text, "pt");
    OK(t, zf_json_to_string(zf_json_member(zf_safetensors_metadata(file), "step"), &text, &error),
       error.text);
    CHECK_TEXT(t, text, "12");
    for (int i = 0; i < 8; i++) {
        size_t size = zf_dtype_size(dtypes[i]);
        const zf_safetensors_entry *entry;
        snprintf(name, sizeof name, "h.%d \"\xc3\xa9\"", i);
        entry = zf_safetensors_at(file, zf_safetensors_find(file, name));
        CHECK(t, entry && entry->dtype == dtypes[i] && entry->shape.rank == 2 &&
                     entry->shape.dims[1] == 3);
        OK(t, zf_safetensors_read(file, zf_safetensors_find(file, name), back, 6 * size, &error),
           error.text);
        CHECK(t, !memcmp(back, data, 6 * size));
        snprintf(name, sizeof name, "scalar.%d", i);
        OK(t, zf_safetensors_read(file, zf_safetensors_find(file, name), back, size, &error),
           error.text);
        CHECK(t, !memcmp(back, data, size));
        snprintf(name, sizeof name, "empty.%d", i);
        entry = zf_safetensors_at(file, zf_safetensors_find(file, name));
        CHECK(t, entry && entry->shape.rank == 2 && entry->shape.dims[0] == 3 && entry->bytes == 0);
    }
    for (int32_t i = 1; i < 24; i++)
        CHECK(t, zf_dtype_size(zf_safetensors_at(file, i - 1)->dtype) >=
                     zf_dtype_size(zf_safetensors_at(file, i)->dtype));
}

TEST(safetensors_bytes_of_a_small_file)
{
    const char *path = test_path("small.safetensors");
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                                 "\"a\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[4,6]}}";
    zf_error error = {0};
    zf_safetensors_writer *writer = writer_of(t, path, &error);
    size_t size = sizeof header - 1, padded = (size + 7) / 8 * 8;
    unsigned char bytes[512];
    float one = 1;
    FILE *file;
    NEED(t, writer, &error);
    OK(t, zf_safetensors_declare(writer, "a", ZF_U8, ZF_SHAPE(2, 1)), NULL);
    OK(t, zf_safetensors_declare(writer, "b", ZF_F32, ZF_SCALAR), NULL);
    OK(t, zf_safetensors_write(writer, 0, "xy", 2), NULL);
    OK(t, zf_safetensors_write(writer, 1, &one, 4), NULL);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    file = fopen(path, "rb");
    CHECK(t, file);
    CHECK(t, fread(bytes, 1, sizeof bytes, file) == 8 + padded + 6 && fclose(file) == 0);
    CHECK(t, bytes[0] == padded && bytes[1] == 0 && bytes[7] == 0);
    CHECK(t, !memcmp(bytes + 8, header, size));
    for (size_t i = size; i < padded; i++) CHECK(t, bytes[8 + i] == ' ');
    CHECK(t, !memcmp(bytes + 8 + padded, "\0\0\x80?xy", 6));
}

TEST(safetensors_writes_a_file_without_tensors)
{
    const char *path = test_path("nothing.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer = writer_of(t, path, &error);
    zf_safetensors *file;
    NEED(t, writer, &error);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    file = zf_safetensors_open(path, &t->allocator, &error);
    NEED(t, file, &error);
    test_defer(t, (test_cleanup *)zf_safetensors_close, file);
    CHECK(t, zf_safetensors_count(file) == 0);
}

/* Each mistake has its message, does not change the old file, and removes the new one. */
TEST(safetensors_writer_refuses_misuse)
{
    static const struct {
        const char *calls, *message;
    } cases[] = {
        {"aa", ": two tensors are named \"a\""},
        {"m", ": no tensor can be named \"__metadata__\""},
        {"u", ": \"a?\" is not UTF-8"},
        {"k", ": \"a?\" is not UTF-8"},
        {"d", ": the tensor \"d\" has no dtype (99)"},
        {"n", ": the shape of the tensor \"n\" has a negative dimension, a wrong rank or too many "
              "elements"},
        {"r", ": the shape of the tensor \"r\" has a negative dimension, a wrong rank or too many "
              "elements"},
        {"o", ": the shape of the tensor \"o\" has a negative dimension, a wrong rank or too many "
              "elements"},
        {"hiw", ": the tensors together have too many bytes"},
        {"w", ": data of tensor 0, but 0 are declared"},
        {"aW", ": data of tensor 1, but 1 are declared"},
        {"awb", ": a declaration after the first data"},
        {"awK", ": a declaration after the first data"},
        {"awww", ": 2 bytes after the first 4 of the tensor \"a\", but u8[4] has 4"},
        {"aw", ": only 2 of 4 bytes of the tensor \"a\" were written"},
        {"a", ": only 0 of 4 bytes of the tensor \"a\" were written"},
    };
    const char *path = test_path("misuse.safetensors");
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        zf_safetensors_writer *writer;
        char expected[512], kept[8] = "";
        FILE *file;
        CHECK(t, write_file(path, "old", 3));
        writer = writer_of(t, path, &error);
        NEED(t, writer, &error);
        for (const char *c = cases[i].calls; *c; c++) {
            zf_shape huge = ZF_SHAPE(INT64_MAX / 4), shape = ZF_SHAPE(4),
                     wrong = {7, {1, 1, 1, 1, 1, 1}};
            if (*c == 'a' || *c == 'b')
                zf_safetensors_declare(writer, *c == 'a' ? "a" : "b", ZF_U8, shape);
            if (*c == 'm') zf_safetensors_declare(writer, "__metadata__", ZF_U8, shape);
            if (*c == 'u') zf_safetensors_declare(writer, "a\xff", ZF_U8, shape);
            if (*c == 'd') zf_safetensors_declare(writer, "d", (zf_dtype)99, shape);
            if (*c == 'n') zf_safetensors_declare(writer, "n", ZF_U8, ZF_SHAPE(2, -1));
            if (*c == 'r') zf_safetensors_declare(writer, "r", ZF_U8, wrong);
            if (*c == 'o') zf_safetensors_declare(writer, "o", ZF_F64, huge);
            if (*c == 'h' || *c == 'i')
                zf_safetensors_declare(writer, *c == 'h' ? "h" : "i", ZF_BF16, huge);
            if (*c == 'k') zf_safetensors_put_metadata(writer, "key", "a\xff");
            if (*c == 'K') zf_safetensors_put_metadata(writer, "key", "value");
            if (*c == 'w') zf_safetensors_write(writer, 0, "xy", 2);
            if (*c == 'W') zf_safetensors_write(writer, 1, "xy", 2);
        }
        CHECK(t, zf_safetensors_finish(writer, &error) != ZF_OK);
        if (error.status == ZF_ERR_NOMEM) NEED(t, NULL, &error);
        snprintf(expected, sizeof expected, "%s%s", path, cases[i].message);
        CHECK_TEXT(t, error.text, expected);
        CHECK(t, clean(path));
        file = fopen(path, "rb");
        CHECK(t, file && fread(kept, 1, sizeof kept, file) == 3 && fclose(file) == 0);
        CHECK_TEXT(t, kept, "old");
    }
}

TEST(safetensors_writer_abandoned_leaves_no_trace)
{
    const char *path = test_path("abandoned.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer = zf_safetensors_writer_new(path, &t->allocator, &error);
    NEED(t, writer, &error);
    CHECK(t, !clean(path));
    zf_safetensors_declare(writer, "a", ZF_U8, ZF_SHAPE(4));
    zf_safetensors_write(writer, 0, "xy", 2);
    zf_safetensors_writer_free(writer);
    CHECK(t, clean(path) && access(path, F_OK) != 0);
}

TEST(safetensors_writer_after_the_end)
{
    const char *path = test_path("ended.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer = writer_of(t, path, &error);
    char expected[512];
    NEED(t, writer, &error);
    OK(t, zf_safetensors_declare(writer, "a", ZF_U8, ZF_SHAPE(2)), NULL);
    OK(t, zf_safetensors_write(writer, 0, "xy", 2), NULL);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    CHECK(t, zf_safetensors_write(writer, 0, "xy", 2) == ZF_ERR_STAGE);
    CHECK(t, zf_safetensors_finish(writer, &error) == ZF_ERR_STAGE);
    snprintf(expected, sizeof expected, "%s: data after the end", path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, access(path, F_OK) == 0);
}

TEST(safetensors_writer_accepts_null)
{
    zf_error error = {0};
    CHECK(t, zf_safetensors_declare(NULL, "a", ZF_U8, ZF_SCALAR) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_safetensors_put_metadata(NULL, "a", "b") == ZF_ERR_ARGUMENT);
    CHECK(t, zf_safetensors_write(NULL, 0, "a", 1) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_safetensors_finish(NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "no safetensors file to write to");
    zf_safetensors_writer_free(NULL);
}

TEST(safetensors_writer_reports_the_system)
{
    zf_error error = {0};
    const char *path = test_path("nowhere/x.safetensors");
    char expected[512];
    zf_safetensors_writer *writer = zf_safetensors_writer_new(path, &t->allocator, &error);
    CHECK(t, !writer);
    if (error.status != ZF_ERR_IO) NEED(t, NULL, &error);
    snprintf(expected, sizeof expected, "cannot create %s.zf-new: No such file or directory", path);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    CHECK(t, !zf_safetensors_writer_new("", &t->allocator, &error));
    if (error.status != ZF_ERR_ARGUMENT) NEED(t, NULL, &error);
    CHECK_TEXT(t, error.text, "an empty path");
    error = (zf_error){0};
    CHECK(t, !zf_safetensors_writer_new("/dev/null", &t->allocator, &error));
    if (error.status != ZF_ERR_IO) NEED(t, NULL, &error);
    CHECK_TEXT(t, error.text, "cannot replace /dev/null: it is not a regular file");
}

TEST_ONCE(safetensors_writer_limits_the_header)
{
    enum { SIZE = 100000000 };
    const char *path = test_path("header.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer = writer_of(t, path, &error);
    char *value = malloc(SIZE + 1), expected[512];
    zf_status status;
    CHECK(t, value);
    test_defer(t, free, value);
    NEED(t, writer, &error);
    memset(value, 'a', SIZE);
    value[SIZE] = '\0';
    status = zf_safetensors_put_metadata(writer, "long", value);
    CHECK(t, status == ZF_OK && zf_safetensors_finish(writer, &error) == ZF_ERR_LIMIT);
    snprintf(expected, sizeof expected,
             "%s: names and shapes make a header of 100000048 bytes, at most 100000000 are allowed",
             path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, clean(path));
}

/* Two writers of one file: the later one wins, the earlier one says so, and nothing is mixed. */
TEST(safetensors_writers_do_not_mix)
{
    const char *path = test_path("both.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *first = writer_of(t, path, &error), *second;
    char expected[512];
    remove(path);
    NEED(t, first, &error);
    second = writer_of(t, path, &error);
    NEED(t, second, &error);
    CHECK(t, zf_safetensors_finish(first, &error) != ZF_OK);
    if (error.status != ZF_ERR_IO) NEED(t, NULL, &error);
    snprintf(expected, sizeof expected, "cannot replace %s: somebody else is writing it too", path);
    CHECK_TEXT(t, error.text, expected);
    CHECK(t, access(path, F_OK) != 0);
    error = (zf_error){0};
    OK(t, zf_safetensors_finish(second, &error), error.text);
    CHECK(t, access(path, F_OK) == 0 && clean(path));
}

/* A private file stays one. */
TEST_ONCE(safetensors_writer_keeps_the_mode)
{
    const char *path = test_path("private.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer;
    struct stat about;
    CHECK(t, write_file(path, "old", 3) && chmod(path, 0600) == 0);
    writer = writer_of(t, path, &error);
    NEED(t, writer, &error);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    CHECK(t, stat(path, &about) == 0 && (about.st_mode & 0777) == 0600);
}

/* The disk is full in the middle: the old file stays, the new one is removed. */
TEST_ONCE(safetensors_writer_survives_a_full_disk)
{
    enum { SIZE = 1 << 20 };
    static char data[SIZE];
    const char *path = test_path("full.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer;
    struct rlimit before, limit;
    zf_status written, finished;
    char expected[512];
    CHECK(t, write_file(path, "old", 3));
    writer = writer_of(t, path, &error);
    NEED(t, writer, &error);
    zf_safetensors_declare(writer, "a", ZF_U8, ZF_SHAPE(SIZE));
    CHECK(t, getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = SIZE / 2;
    CHECK(t, setrlimit(RLIMIT_FSIZE, &limit) == 0);
    written = zf_safetensors_write(writer, 0, data, SIZE);
    finished = zf_safetensors_finish(writer, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(t, written == ZF_ERR_IO && finished == ZF_ERR_IO);
    snprintf(expected, sizeof expected, ".zf-new: File too large");
    CHECK(t, strstr(error.text, expected));
    CHECK(t, clean(path) && access(path, F_OK) == 0);
}

/* A symbolic link stays one, and what it names is replaced. */
TEST_ONCE(safetensors_writer_follows_links)
{
    const char *path = test_path("target.safetensors"), *link_path = test_path("link.safetensors");
    zf_error error = {0};
    zf_safetensors_writer *writer;
    zf_safetensors *file;
    char where[512];
    CHECK(t, write_file(path, "old", 3) && symlink(path, link_path) == 0);
    writer = writer_of(t, link_path, &error);
    NEED(t, writer, &error);
    OK(t, zf_safetensors_finish(writer, &error), error.text);
    CHECK(t, readlink(link_path, where, sizeof where) == (ssize_t)strlen(path));
    file = zf_safetensors_open(path, &t->allocator, &error);
    NEED(t, file, &error);
    zf_safetensors_close(file);
}
