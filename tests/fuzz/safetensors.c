/* Fuzzes the safetensors reader: any bytes are a file whose tensors can all be read and cover the
 * data, or an error. The first two bytes say which allocation fails (0: none). When the third is
 * odd, the header is made to end at the last '}', to reach deep more often.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/safetensors.c \
 *         IMPLEMENTATION.o -lm -o build/fuzz-safetensors &&
 *         build/fuzz-safetensors -runs=1000000 CORPUS tests/fuzz/seeds/safetensors
 *
 * New inputs go to CORPUS, an empty folder.
 */
#include "../../zeroflow.h"

#include <stdlib.h>
#include <string.h>

static void insist(bool condition)
{
    if (!condition) abort();
}

typedef struct memory {
    long allocations, refuse_at, live;
    bool refused;
} memory;

static void *allocate(void *user, void *ptr, size_t old_size, size_t new_size)
{
    memory *m = user;
    if (!new_size) {
        if (ptr) m->live -= (long)old_size;
        free(ptr);
        return NULL;
    }
    if (m->allocations++ == m->refuse_at) {
        m->refused = true;
        return NULL;
    }
    ptr = realloc(ptr, new_size);
    insist(ptr != NULL);
    m->live += (long)new_size - (long)old_size;
    return ptr;
}

static void read_all(zf_safetensors *file, size_t size)
{
    size_t total = 0;
    zf_safetensors_metadata(file);
    for (int32_t i = 0; i < zf_safetensors_count(file); i++) {
        const zf_safetensors_entry *entry = zf_safetensors_at(file, i);
        void *data = malloc(entry->bytes + !entry->bytes); /* exactly: one byte too many is found */
        zf_error error = {ZF_OK, ""};
        insist(data && entry->bytes <= size && entry->shape.rank >= 0 &&
               entry->shape.rank <= ZF_MAX_RANK);
        insist(zf_shape_count(entry->shape) >= 0 && zf_safetensors_find(file, entry->name) == i);
        if (entry->readable)
            insist((size_t)zf_shape_count(entry->shape) * zf_dtype_size(entry->dtype) ==
                   entry->bytes);
        insist(zf_safetensors_read(file, i, data, entry->bytes, &error) ==
               (entry->readable ? ZF_OK : ZF_ERR_DTYPE));
        insist(zf_safetensors_read_range(file, i, entry->bytes, data, 1, NULL) != ZF_OK);
        free(data);
        total += entry->bytes;
    }
    insist(total <= size && !zf_safetensors_at(file, zf_safetensors_count(file)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memory m = {.refuse_at = -1};
    zf_allocator allocator = {allocate, &m};
    zf_error error = {ZF_OK, ""};
    zf_safetensors *file;
    uint8_t *copy;
    if (size < 3) return 0;
    m.refuse_at = (data[0] | data[1] << 8) - 1L;
    copy = malloc(size - 3 + 1);
    insist(copy != NULL);
    memcpy(copy, data + 3, size - 3);
    if (data[2] & 1 && size - 3 > 8) {
        size_t end = size - 3;
        while (end > 8 && copy[end - 1] != '}') end--;
        for (int i = 0; i < 8; i++) copy[i] = (uint8_t)((uint64_t)(end - 8) >> 8 * i);
    }
    file = zf_safetensors_parse(copy, size - 3, &allocator, &error);
    if (file) {
        read_all(file, size - 3);
        zf_safetensors_close(file);
        insist(!m.refused);
    } else {
        insist(error.status == (m.refused ? ZF_ERR_NOMEM : ZF_ERR_FORMAT));
        insist(strlen(error.text) > 3 && strlen(error.text) < sizeof error.text - 1);
    }
    insist(m.live == 0);
    free(copy);
    return 0;
}
