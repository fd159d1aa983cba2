/* Fuzz target: any bytes in place of a checkpoint's file give an error that changes nothing, or
 * load what was saved.
 *
 * The first byte says which file they replace (bits 0-1: manifest, parameters, states, attachment),
 * whether the checksums around them are made right, so that inputs reach deep (bit 2), and whether
 * parameters alone are loaded (bit 3). The next two say which allocation fails (0: none). */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "../../zeroflow.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES = 4, TENSORS = 4, ROOM = 1 << 16, MANIFEST = 0, PARAMS = 1, STATES = 2 };

static const char *const files[FILES] = {"manifest.json", "params.safetensors", "state.safetensors",
                                         "a.txt"};

static struct {
    char path[64];
    zf_graph *graph;
    zf_program *program;
    zf_tensor tensors[TENSORS]; /* two parameters, two states */
    unsigned char saved[TENSORS][64], other[TENSORS][64];
    unsigned char good[FILES][ROOM];
    size_t bytes[FILES];
    long allocations, refuse_at, live;
    bool refused;
} self;

static void insist(bool condition)
{
    if (!condition) abort();
}

/* One large block is kept: to map megabytes anew for every input takes longer than all the rest. */
static void *allocate(void *user, void *ptr, size_t old_size, size_t new_size)
{
    enum { LARGE = 4 << 20 };
    static unsigned char large[LARGE];
    static bool taken;
    (void)user;
    if (!new_size) {
        if (ptr) self.live -= (long)old_size;
        if (ptr == large) taken = false;
        else free(ptr);
        return NULL;
    }
    if (self.allocations++ == self.refuse_at) {
        self.refused = true;
        return NULL;
    }
    insist(ptr != large);
    if (!ptr && new_size == LARGE && !taken) {
        taken = true;
        ptr = large;
    } else {
        ptr = realloc(ptr, new_size);
    }
    insist(ptr != NULL);
    self.live += (long)new_size - (long)old_size;
    return ptr;
}

static const char *place(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", self.path, name);
    return path;
}

static void put_file(int which, const unsigned char *data, size_t bytes)
{
    FILE *file = fopen(place(files[which]), "wb");
    insist(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void write_tensors(unsigned char values[TENSORS][64])
{
    for (int i = 0; i < TENSORS; i++)
        insist(
            !zf_write(self.program, self.tensors[i], values[i], zf_tensor_bytes(self.tensors[i])));
}

static bool same_tensors(int from, int to, unsigned char values[TENSORS][64])
{
    unsigned char data[64];
    bool same = true;
    for (int i = from; i < to; i++) {
        size_t bytes = zf_tensor_bytes(self.tensors[i]);
        insist(!zf_read(self.program, self.tensors[i], data, bytes));
        same &= !memcmp(data, values[i], bytes);
    }
    return same;
}

static void clean_up(void)
{
    for (int i = 0; i < FILES; i++) unlink(place(files[i]));
    rmdir(self.path);
    zf_program_free(self.program);
    zf_graph_free(self.graph);
}

/* The good checkpoint, in memory where the system has such a place. */
static void set_up(void)
{
    static const zf_attachment file = {"a.txt", "hello", 5};
    static const zf_note note = {"k", "v"};
    zf_graph *g;
    self.refuse_at = -1;
    snprintf(self.path, sizeof self.path, "%s/zeroflow-fuzz-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    insist(mkdtemp(self.path) != NULL);
    atexit(clean_up);
    g = self.graph = zf_graph_new(&(zf_graph_desc){.allocator = {allocate, NULL}});
    self.tensors[0] = zf_param(g, "w", ZF_SHAPE(3, 2), NULL);
    self.tensors[1] = zf_param(g, "x.b", ZF_SHAPE(2), &(zf_param_desc){.dtype = ZF_BF16});
    self.tensors[2] = zf_state(g, "step", ZF_I64, ZF_SCALAR, 0);
    self.tensors[3] = zf_state(g, "m/w", ZF_F32, ZF_SHAPE(3, 2), 0);
    for (int i = 0; i < TENSORS; i++) zf_output(self.tensors[i], files[i]);
    self.program = zf_compile(g, &(zf_compile_desc){.seed = 7});
    insist(self.program != NULL);
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < 64; k++) {
            self.saved[i][k] = (unsigned char)(i * 50 + k);
            self.other[i][k] = (unsigned char)(i * 50 - k);
        }
    write_tensors(self.saved);
    insist(!zf_save(self.program, self.path, &(zf_save_desc){&note, 1, &file, 1}));
    for (int i = 0; i < FILES; i++) {
        FILE *in = fopen(place(files[i]), "rb");
        insist(in != NULL);
        self.bytes[i] = fread(self.good[i], 1, ROOM, in);
        insist(self.bytes[i] < ROOM && fclose(in) == 0);
    }
}

static uint32_t crc32c(const unsigned char *data, size_t bytes)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* Eight digits over the text[0..bytes) behind the last `key`, if they are there. */
static unsigned char *digits_behind(unsigned char *text, size_t bytes, const char *key)
{
    size_t length = strlen(key);
    if (bytes < length + 8) return NULL;
    for (size_t at = bytes - length - 8 + 1; at-- > 0;)
        if (!memcmp(text + at, key, length)) return text + at + length;
    return NULL;
}

static void put_digits(unsigned char *at, uint32_t crc)
{
    char digits[12];
    snprintf(digits, sizeof digits, "%08x", (unsigned)crc);
    memcpy(at, digits, 8);
}

static void correct_manifest(unsigned char *text, size_t bytes)
{
    unsigned char *at = digits_behind(text, bytes, "\"crc32c\": \"");
    if (at) put_digits(at, crc32c(text, (size_t)(at - 1 - text)));
}

/* Makes the header end at the last '}' in front of the data that the good file has. */
static void correct_header(unsigned char *data, size_t bytes, int which)
{
    unsigned char *manifest = self.good[MANIFEST], copy[ROOM], *at;
    char key[64];
    size_t end = bytes;
    while (end > 8 && data[end - 1] != '}' && data[end - 1] != ' ') end--;
    for (int i = 0; i < 8; i++) data[i] = (unsigned char)((uint64_t)(end - 8) >> 8 * i);
    memcpy(copy, manifest, self.bytes[MANIFEST]);
    snprintf(key, sizeof key, "\"%s\": \"", files[which]);
    at = digits_behind(copy, self.bytes[MANIFEST], key);
    insist(at != NULL);
    put_digits(at, crc32c(data, end));
    correct_manifest(copy, self.bytes[MANIFEST]);
    put_file(MANIFEST, copy, self.bytes[MANIFEST]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char copy[ROOM];
    zf_load_desc desc;
    zf_status status;
    zf_error error = {ZF_OK, ""};
    char value[8];
    int which;
    long live;
    if (!self.program) set_up();
    if (size < 3 || size - 3 > ROOM) return 0;
    which = data[0] & 3;
    desc.params_only = data[0] & 8;
    memcpy(copy, data + 3, size - 3);
    if (data[0] & 4 && which == MANIFEST) correct_manifest(copy, size - 3);
    if (data[0] & 4 && (which == PARAMS || which == STATES) && size - 3 > 8)
        correct_header(copy, size - 3, which);
    put_file(which, copy, size - 3);
    write_tensors(self.other);
    live = self.live;
    self.allocations = 0, self.refused = false;
    self.refuse_at = (data[1] | data[2] << 8) - 1L;
    status = zf_load(self.program, self.path, &desc);
    self.refuse_at = -1;
    insist(self.live == live);
    if (status) {
        size_t length = strlen(zf_program_error(self.program));
        insist(self.refused
                   ? status == ZF_ERR_NOMEM
                   : status == ZF_ERR_FORMAT || status == ZF_ERR_MISMATCH || status == ZF_ERR_IO);
        insist(length > 3 && length < sizeof error.text - 1);
        insist(same_tensors(0, TENSORS, self.other));
    } else {
        insist(!self.refused && same_tensors(0, 2, self.saved));
        insist(same_tensors(2, TENSORS, desc.params_only ? self.other : self.saved));
    }
    memset(value, 1, sizeof value);
    if (zf_checkpoint_note(self.path, "k", value, sizeof value, &error)) insist(value[0] == 1);
    else insist(memchr(value, 0, sizeof value));
    put_file(which, self.good[which], self.bytes[which]);
    if (which != MANIFEST) put_file(MANIFEST, self.good[MANIFEST], self.bytes[MANIFEST]);
    return 0;
}
