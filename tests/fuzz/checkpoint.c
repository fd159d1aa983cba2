/* Fuzz target: any bytes in place of a checkpoint's file give an error that changes nothing, or
 * load what was saved.
 *
 * The first byte says which file they replace (bits 0-1, below), whether the checksums around them
 * are made right, so that inputs reach deep (bit 2), whether parameters alone are loaded (bit 3),
 * whether the checkpoint is of two ranks (bit 4), and whether a store without tensors loads it as
 * well (bit 5). The next two say which allocation fails (0:
 * none). */
#if defined(__linux__)
#define _GNU_SOURCE
#else
#define _DARWIN_C_SOURCE
#endif
#include "../../zeroflow.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES = 4, TENSORS = 4, ROOM = 1 << 16, MANIFEST = 0, MOST = 4 * 1030 };

/* A file that inputs replace: which of them has its checksum, over all of it or over the header. */
typedef struct target {
    const char *name;
    int parent; /* -1: none that is made right */
    bool header;
} target;

static const target targets[2][FILES] = {
    {{"manifest.json", -1, false},
     {"params.safetensors", MANIFEST, true},
     {"state.safetensors", MANIFEST, true},
     {"a.txt", -1, false}},
    {{"manifest.json", -1, false},
     {"params.rank-00001-of-00002.safetensors", 2, true},
     {"rank-00001-of-00002.json", MANIFEST, false},
     {"rank-00000-of-00002.json", MANIFEST, false}},
};

/* Of one rank: two parameters, two states; of two: a parameter cut in two, two states. */
typedef struct checkpoint {
    const target *targets;
    char path[64];
    zf_graph *graph;
    zf_program *program; /* of one rank, which loads it */
    zf_tensor tensors[TENSORS];
    int params, count;
    unsigned char saved[TENSORS][MOST], other[TENSORS][MOST];
    unsigned char good[FILES][ROOM];
    size_t bytes[FILES];
} checkpoint;

static checkpoint checkpoints[2];

static struct {
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

static const char *place(const checkpoint *c, const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", c->path, name);
    return path;
}

static void put_file(const checkpoint *c, int which, const unsigned char *data, size_t bytes)
{
    FILE *file = fopen(place(c, c->targets[which].name), "wb");
    insist(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void write_tensors(const checkpoint *c, unsigned char values[TENSORS][MOST])
{
    for (int i = 0; i < c->count; i++)
        insist(!zf_write(c->program, c->tensors[i], values[i], zf_tensor_bytes(c->tensors[i])));
}

static bool same_tensors(const checkpoint *c, int from, int to, unsigned char values[TENSORS][MOST])
{
    static unsigned char data[MOST];
    bool same = true;
    for (int i = from; i < to; i++) {
        size_t bytes = zf_tensor_bytes(c->tensors[i]);
        insist(!zf_read(c->program, c->tensors[i], data, bytes));
        same &= !memcmp(data, values[i], bytes);
    }
    return same;
}

static void clean_up(void)
{
    static const char *const others[] = {"params.rank-00000-of-00002.safetensors",
                                         "state.safetensors", "a.txt"};
    for (int k = 0; k < 2; k++) {
        checkpoint *c = &checkpoints[k];
        for (int i = 0; i < FILES; i++) unlink(place(c, c->targets[i].name));
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) unlink(place(c, others[i]));
        rmdir(c->path);
        zf_program_free(c->program);
        zf_graph_free(c->graph);
    }
}

/* The graph of a checkpoint for one of `world` ranks. */
static zf_graph *make_graph(checkpoint *c, int32_t world)
{
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = {allocate, NULL}});
    const bool cut = c == &checkpoints[1];
    c->params = cut ? 1 : 2;
    c->count = c->params + 2;
    c->tensors[0] = zf_param(g, "w", cut ? ZF_SHAPE(1030) : ZF_SHAPE(3, 2), NULL);
    if (!cut) c->tensors[1] = zf_param(g, "x.b", ZF_SHAPE(2), &(zf_param_desc){.dtype = ZF_BF16});
    c->tensors[c->params] = zf_state(g, "step", ZF_I64, ZF_SCALAR, 0);
    c->tensors[c->params + 1] = zf_state(g, "m/w", ZF_F32, ZF_SHAPE(3, 2), 0);
    for (int i = 0; i < c->count; i++) zf_output(c->tensors[i], c->targets[i].name);
    if (world > 1) zf_zero(g, &(zf_zero_desc){.stage = 3, .world = world});
    return g;
}

/* The good checkpoint, in memory where the system has such a place. */
static void set_up(checkpoint *c)
{
    static const zf_attachment file = {"a.txt", "hello", 5};
    static const zf_note note = {"k", "v"};
    static const zf_save_desc save = {.notes = &note, .note_count = 1, .attachments = &file, .attachment_count = 1};
    c->targets = targets[c - checkpoints];
    snprintf(c->path, sizeof c->path, "%s/zeroflow-fuzz-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    insist(mkdtemp(c->path) != NULL);
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < MOST; k++) {
            c->saved[i][k] = (unsigned char)(i * 50 + k);
            c->other[i][k] = (unsigned char)(i * 50 - k);
        }
    if (c == checkpoints) {
        c->graph = make_graph(c, 1);
        insist((c->program = zf_compile(c->graph, &(zf_compile_desc){.seed = 7})) != NULL);
        write_tensors(c, c->saved);
        insist(!zf_save(zf_program_store(c->program), c->path, &save));
    } else {
        zf_comm comms[2] = {{.rank = 0, .world = 2}, {.rank = 1, .world = 2}};
        zf_graph *graphs[2];
        zf_program *programs[2];
        for (int r = 0; r < 2; r++) {
            graphs[r] = make_graph(c, 2);
            programs[r] = c->program =
                zf_compile(graphs[r], &(zf_compile_desc){.seed = 7, .comm = &comms[r]});
            insist(c->program != NULL);
            write_tensors(c, c->saved);
        }
        insist(!zf_lockstep_save(&(zf_lockstep_desc){programs, 2, 0}, c->path, &save, NULL));
        for (int r = 0; r < 2; r++) zf_program_free(programs[r]), zf_graph_free(graphs[r]);
        c->graph = make_graph(c, 1);
        insist((c->program = zf_compile(c->graph, NULL)) != NULL);
    }
    for (int i = 0; i < FILES; i++) {
        FILE *in = fopen(place(c, c->targets[i].name), "rb");
        insist(in != NULL);
        c->bytes[i] = fread(c->good[i], 1, ROOM, in);
        insist(c->bytes[i] < ROOM && fclose(in) == 0);
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

/* Eight digits over the text[0..bytes) after the last `key`, if they are there. */
static unsigned char *digits_after(unsigned char *text, size_t bytes, const char *key)
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
    unsigned char *at = digits_after(text, bytes, "\"crc32c\": \"");
    if (at) put_digits(at, crc32c(text, (size_t)(at - 1 - text)));
}

/* Gives the files that have checksums of `which` the right one. */
static void correct_parents(const checkpoint *c, int which, uint32_t crc)
{
    int parent = c->targets[which].parent;
    unsigned char copy[ROOM], *at;
    char key[80];
    if (parent < 0) return;
    memcpy(copy, c->good[parent], c->bytes[parent]);
    snprintf(key, sizeof key, "\"%s\": \"", c->targets[which].name);
    at = digits_after(copy, c->bytes[parent], key);
    insist(at != NULL);
    put_digits(at, crc);
    if (parent == MANIFEST) correct_manifest(copy, c->bytes[parent]);
    put_file(c, parent, copy, c->bytes[parent]);
    correct_parents(c, parent, crc32c(copy, c->bytes[parent]));
}

/* Makes the checksums around the input right; a header ends at the last '}' in front of the data
 * that the good file has. */
static void correct(const checkpoint *c, int which, unsigned char *data, size_t bytes)
{
    size_t end = bytes;
    if (which == MANIFEST) correct_manifest(data, bytes);
    if (c->targets[which].header) {
        if (bytes <= 8) return;
        while (end > 8 && data[end - 1] != '}' && data[end - 1] != ' ') end--;
        for (int i = 0; i < 8; i++) data[i] = (unsigned char)((uint64_t)(end - 8) >> 8 * i);
    }
    correct_parents(c, which, crc32c(data, end));
}

/* Loads the files into a store that has no tensors, which then has them all or none. */
static void load_early(const checkpoint *c, const zf_load_desc *desc, long refuse_at)
{
    zf_store *store = zf_store_new(&(zf_store_desc){.allocator = {allocate, NULL}}, NULL);
    zf_status status;
    int32_t count;
    insist(store != NULL);
    self.allocations = 0, self.refused = false;
    self.refuse_at = refuse_at;
    status = zf_load(store, c->path, desc);
    self.refuse_at = -1;
    count = zf_store_count(store);
    if (status) insist(count == 0 && strlen(zf_store_error(store)) > 3);
    else {
        insist(!self.refused && zf_store_info_of(store).bytes == 0);
        insist(!zf_load(store, c->path, &(zf_load_desc){.params_only = true, .merge = true}));
        insist(zf_store_count(store) == count);
    }
    zf_store_free(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char copy[ROOM];
    checkpoint *c;
    zf_load_desc desc;
    zf_status status;
    zf_error error = {ZF_OK, ""};
    char value[8];
    int which;
    long live;
    if (!checkpoints[0].program) {
        self.refuse_at = -1;
        atexit(clean_up);
        set_up(&checkpoints[0]);
        set_up(&checkpoints[1]);
    }
    if (size < 3 || size - 3 > ROOM) return 0;
    c = &checkpoints[(data[0] & 16) != 0];
    which = data[0] & 3;
    desc = (zf_load_desc){.params_only = (data[0] & 8) != 0};
    memcpy(copy, data + 3, size - 3);
    if (data[0] & 4) correct(c, which, copy, size - 3);
    put_file(c, which, copy, size - 3);
    write_tensors(c, c->other);
    live = self.live;
    if (data[0] & 32) {
        load_early(c, &desc, (data[1] | data[2] << 8) - 1L);
        insist(self.live == live);
    }
    self.allocations = 0, self.refused = false;
    self.refuse_at = (data[1] | data[2] << 8) - 1L;
    status = zf_load(zf_program_store(c->program), c->path, &desc);
    self.refuse_at = -1;
    insist(self.live == live);
    if (status) {
        size_t length = strlen(zf_store_error(zf_program_store(c->program)));
        insist(self.refused
                   ? status == ZF_ERR_NOMEM
                   : status == ZF_ERR_FORMAT || status == ZF_ERR_MISMATCH || status == ZF_ERR_IO);
        insist(length > 3 && length < sizeof error.text - 1);
        insist(same_tensors(c, 0, c->count, c->other));
    } else {
        insist(!self.refused && same_tensors(c, 0, c->params, c->saved));
        insist(same_tensors(c, c->params, c->count, desc.params_only ? c->other : c->saved));
    }
    memset(value, 1, sizeof value);
    if (zf_checkpoint_note(c->path, "k", value, sizeof value, &error)) insist(value[0] == 1);
    else insist(memchr(value, 0, sizeof value));
    for (int i = which; i >= 0; i = c->targets[i].parent) put_file(c, i, c->good[i], c->bytes[i]);
    return 0;
}
