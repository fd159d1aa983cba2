/* Batches from a safetensors file: shapes, labels, and every invalid file. */
#include "../support/test.h"

#include "../../examples/bert/data/batchfile.h"

enum { S = 2, B = 2, T = 3, VOCAB = 50, TENSORS = 5 };

static const char *const names[TENSORS] = {"input_ids", "token_type_ids", "attention_mask",
                                           "labels", "next_sentence_label"};

/* A file to write; one tensor may be different. */
typedef struct content {
    zf_shape shape[TENSORS];
    int64_t values[TENSORS][S * B * T];
    int left_out; /* -1: none */
    int floats;   /* -1: none */
    bool narrow;  /* in smaller types */
    bool more;    /* with an unknown tensor */
} content;

static const content good = {
    {{3, {S, B, T}}, {3, {S, B, T}}, {3, {S, B, T}}, {3, {S, B, T}}, {2, {S, B}}},
    {{1, 2, 3, 4, 5, 0, /**/ 6, 7, 8, 9, 10, 11},
     {0, 0, 1, 0, 1, 0, /**/ 0, 0, 0, 1, 1, 1},
     {1, 1, 1, 1, 1, 0, /**/ 1, 1, 1, 1, 1, 1},
     {-100, 49, -100, 0, -100, -100, /**/ 20, 21, -100, -100, -100, 22},
     {0, 1, /**/ 1, 1}},
    -1,
    -1,
    false,
    false};

/* Of tensor i of a file. */
static zf_dtype dtype_of(const content *c, int i)
{
    static const zf_dtype narrow[TENSORS] = {ZF_I32, ZF_U8, ZF_BOOL, ZF_I32, ZF_I32};
    return i == c->floats ? ZF_F64 : c->narrow ? narrow[i] : ZF_I64;
}

static const char *write_file(test *t, const content *c)
{
    const char *path = test_path("batch.safetensors");
    zf_error error = {ZF_OK, ""};
    zf_safetensors_writer *w = zf_safetensors_writer_new(path, NULL, &error);
    int32_t index = 0;
    double x[S * B * T], y[S * B * T];
    zf_status status;
    for (int i = 0; i < TENSORS && w; i++)
        if (i != c->left_out) zf_safetensors_declare(w, names[i], dtype_of(c, i), c->shape[i]);
    if (w && c->more) zf_safetensors_declare(w, "position_ids", ZF_I64, ZF_SCALAR);
    for (int i = 0; i < TENSORS && w; i++) {
        size_t count = (size_t)zf_shape_count(c->shape[i]);
        if (i == c->left_out) continue;
        for (size_t k = 0; k < count; k++) x[k] = (double)c->values[i][k];
        zf_convert(y, dtype_of(c, i), x, ZF_F64, count);
        zf_safetensors_write(w, index++, dtype_of(c, i) == ZF_I64 ? (const void *)c->values[i] : y,
                             zf_dtype_size(dtype_of(c, i)) * count);
    }
    if (w && c->more) zf_safetensors_write(w, index, c->values[0], 8);
    status = w ? zf_safetensors_finish(w, &error) : error.status;
    if (status) test_fail(t, __FILE__, __LINE__, "a file can be written", error.text);
    zf_safetensors_writer_free(w);
    return path;
}

static void free_batches(void *f) { bert_batch_file_free(f); }

TEST_ONCE(batch_file_of_entries)
{
    zf_error error = {ZF_OK, ""};
    bert_batch_file *f = bert_batch_file_load(write_file(t, &good), VOCAB, 2, &error);
    const bert_batch *b;
    NEED(t, f, &error);
    test_defer(t, free_batches, f);
    CHECK(t, f->entries == S && f->examples == B && f->sequence == T);
    CHECK(t, f->predictions == 3); /* the most labels of an entry */
    b = &f->batch[0];
    CHECK(t, !memcmp(b->input_ids, (int32_t[]){1, 2, 3, 4, 5, 0}, 6 * 4));
    CHECK(t, !memcmp(b->token_type_ids, (int32_t[]){0, 0, 1, 0, 1, 0}, 6 * 4));
    CHECK(t, !memcmp(b->attention_mask, (uint8_t[]){1, 1, 1, 1, 1, 0}, 6));
    CHECK(t, b->labelled == 2 && b->tokens == 5);
    CHECK(t, !memcmp(b->positions, (int32_t[]){1, 3, 0}, 3 * 4));
    CHECK(t, !memcmp(b->labels, (int32_t[]){49, 0, -100}, 3 * 4));
    CHECK(t, !memcmp(b->next_sentence_label, (int32_t[]){0, 1}, 2 * 4));
    b = &f->batch[1];
    CHECK(t, b->input_ids[5] == 11 && b->labelled == 3 && b->tokens == 6);
    CHECK(t, !memcmp(b->positions, (int32_t[]){0, 1, 5}, 3 * 4));
    CHECK(t, !memcmp(b->labels, (int32_t[]){20, 21, 22}, 3 * 4));
}

TEST_ONCE(batch_file_of_one_entry)
{
    zf_error error = {ZF_OK, ""};
    content c = good;
    bert_batch_file *f;
    for (int i = 0; i < TENSORS; i++) c.shape[i] = i < 4 ? ZF_SHAPE(B, T) : ZF_SHAPE(B);
    for (int i = 0; i < B * T; i++) c.values[3][i] = -100; /* no label at all: room for one */
    f = bert_batch_file_load(write_file(t, &c), VOCAB, 2, &error);
    NEED(t, f, &error);
    test_defer(t, free_batches, f);
    CHECK(t, f->entries == 1 && f->examples == B && f->sequence == T && f->predictions == 1);
    CHECK(t, f->batch[0].input_ids[4] == 5 && f->batch[0].labelled == 0);
    CHECK(t, f->batch[0].positions[0] == 0 && f->batch[0].labels[0] == -100);
}

/* The error is the path and `text`. */
static void check_refused(test *t, const content *c, const char *text)
{
    const char *path = write_file(t, c);
    zf_error error = {ZF_OK, ""};
    CHECK(t, !bert_batch_file_load(path, VOCAB, 2, &error));
    CHECK(t, error.status == ZF_ERR_FORMAT && !strncmp(error.text, path, strlen(path)));
    CHECK_TEXT(t, error.text + strlen(path), text);
}

TEST_ONCE(batch_files_that_lack_a_tensor)
{
    for (int i = 0; i < TENSORS; i++) {
        static const bool optional[TENSORS] = {false, true, true, false, true};
        content c = good;
        char text[128];
        c.left_out = i;
        snprintf(text, sizeof text,
                 ": %s must be an I64, I32, U8 or BOOL tensor %s, and is missing", names[i],
                 i < 4 ? "[S,B,T] or [B,T]" : "[S,B] or [B]");
        if (!optional[i]) check_refused(t, &c, text);
        c.left_out = -1, c.floats = i;
        snprintf(text, sizeof text, ": %s must be an I64, I32, U8 or BOOL tensor %s", names[i],
                 i < 4 ? "[S,B,T] or [B,T]" : "[S,B] or [B]");
        check_refused(t, &c, text);
    }
}

TEST_ONCE(batch_files_with_a_tensor_that_is_none)
{
    content c = good;
    c.more = true;
    check_refused(t, &c, ": position_ids is nothing that the model takes");
}

static bert_batch_file *load(test *t, const content *c)
{
    zf_error error = {ZF_OK, ""};
    bert_batch_file *f = bert_batch_file_load(write_file(t, c), VOCAB, 2, &error);
    if (!f) test_fail(t, __FILE__, __LINE__, "the batches can be loaded", error.text);
    else test_defer(t, free_batches, f);
    return f;
}

TEST_ONCE(batch_files_without_what_is_optional)
{
    content c = good;
    bert_batch_file *f;
    c.left_out = 1;
    CHECK(t, (f = load(t, &c)) && f->next_sentences && f->batch[0].pairs == B);
    CHECK(t, !memcmp(f->batch[1].token_type_ids, (int32_t[6]){0}, 6 * 4));
    c.left_out = 2;
    CHECK(t, (f = load(t, &c)) && f->batch[0].tokens == 6);
    CHECK(t, !memcmp(f->batch[0].attention_mask, (uint8_t[]){1, 1, 1, 1, 1, 1}, 6));
    c.left_out = 4;
    CHECK(t, (f = load(t, &c)) && !f->next_sentences && f->batch[1].pairs == 0);
    CHECK(t, f->batch[0].next_sentence_label[1] == -100);
    c = good;
    c.values[4][2] = -100;
    CHECK(t, (f = load(t, &c)) && f->batch[0].pairs == 2 && f->batch[1].pairs == 1);
    CHECK(t, f->batch[1].next_sentence_label[0] == -100);
}

TEST_ONCE(batch_files_of_smaller_types)
{
    content c = good;
    bert_batch_file *f, *g = load(t, &good);
    c.narrow = true;
    CHECK(t, g && (f = load(t, &c)));
    for (int s = 0; s < S; s++) {
        const bert_batch *a = &f->batch[s], *b = &g->batch[s];
        CHECK(t, !memcmp(a->input_ids, b->input_ids, B * T * 4));
        CHECK(t, !memcmp(a->token_type_ids, b->token_type_ids, B * T * 4));
        CHECK(t, !memcmp(a->attention_mask, b->attention_mask, B * T));
        CHECK(t, a->labelled == b->labelled && !memcmp(a->labels, b->labels, 12));
        CHECK(t, !memcmp(a->next_sentence_label, b->next_sentence_label, B * 4));
    }
}

TEST_ONCE(batch_files_of_wrong_shapes)
{
    static const struct {
        int tensor;
        zf_shape shape;
        const char *text;
    } bad[] = {
        {0, {1, {12}}, ": input_ids must be an I64, I32, U8 or BOOL tensor [S,B,T] or [B,T]"},
        {0,
         {4, {1, S, B, T}},
         ": input_ids must be an I64, I32, U8 or BOOL tensor [S,B,T] or [B,T]"},
        {1, {3, {S, T, B}}, ": token_type_ids is [2,3,2], which does not fit input_ids [2,2,3]"},
        {2, {2, {4, T}}, ": attention_mask is [1,4,3], which does not fit input_ids [2,2,3]"},
        {3, {3, {S, B, 1}}, ": labels is [2,2,1], which does not fit input_ids [2,2,3]"},
        {4, {0, {0}}, ": next_sentence_label must be an I64, I32, U8 or BOOL tensor [S,B] or [B]"},
        {4,
         {3, {S, B, 1}},
         ": next_sentence_label must be an I64, I32, U8 or BOOL tensor [S,B] or [B]"},
        {4, {1, {4}}, ": next_sentence_label is [1,4], which does not fit input_ids [2,2,3]"},
    };
    content c;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c = good;
        c.shape[bad[i].tensor] = bad[i].shape;
        check_refused(t, &c, bad[i].text);
    }
    c = good;
    for (int i = 0; i < 4; i++) c.shape[i].dims[0] = 0;
    c.shape[4].dims[0] = 0;
    check_refused(t, &c, ": input_ids is [0,2,3], which is empty");
}

TEST_ONCE(batch_files_of_wrong_values)
{
    static const struct {
        int tensor, at;
        int64_t value;
        const char *text;
    } bad[] = {
        {0, 4, VOCAB, ": input_ids: element 4 is 50; it must be in [0, 50)"},
        {0, 0, -1, ": input_ids: element 0 is -1; it must be in [0, 50)"},
        {0, 0, (int64_t)1 << 32, ": input_ids: element 0 is 4294967296; it must be in [0, 50)"},
        {1, 11, 2, ": token_type_ids: element 11 is 2; it must be in [0, 2)"},
        {2, 3, -100, ": attention_mask: element 3 is -100; it must be in [0, 2)"},
        {3, 1, -1, ": labels: element 1 is -1; it must be in [0, 50), or -100"},
        {3, 1, VOCAB, ": labels: element 1 is 50; it must be in [0, 50), or -100"},
        {4, 2, 2, ": next_sentence_label: element 2 is 2; it must be in [0, 2), or -100"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        content c = good;
        c.values[bad[i].tensor][bad[i].at] = bad[i].value;
        check_refused(t, &c, bad[i].text);
    }
}

TEST_ONCE(batch_files_that_are_none)
{
    const char *path = test_path("batch.safetensors");
    zf_error error = {ZF_OK, ""};
    FILE *file;
    CHECK(t, !bert_batch_file_load("nowhere.safetensors", VOCAB, 2, &error));
    CHECK(t, error.status == ZF_ERR_IO && strstr(error.text, "nowhere.safetensors: No such file"));
    file = fopen(path, "wb");
    CHECK(t, file && fputs("input_ids", file) >= 0 && !fclose(file));
    error = (zf_error){ZF_OK, ""};
    CHECK(t, !bert_batch_file_load(path, VOCAB, 2, &error));
    CHECK(t, error.status == ZF_ERR_FORMAT && !strncmp(error.text, path, strlen(path)));
    bert_batch_file_free(NULL);
}
