/* TensorBoard's event files: records of TFRecord, each with a protobuf message `Event`.
 *
 *     record     u64 length, u32 checksum of these 8 bytes, data, u32 checksum of the data
 *     checksum   crc = CRC-32C; (crc >> 15 | crc << 17) + 0xa282ead8
 *     Event      1 wall_time (double), 2 step (int64), 3 file_version (string, of the first record),
 *                5 summary { 1 value { 1 tag (string), 2 simple_value (float) } ... },
 *                7 session_log { 1 status: 1 START }, from whose step on earlier files do not count
 *
 * All numbers are little-endian. Source: TensorFlow's event.proto, summary.proto, record_writer. */
int gethostname(char *, size_t); /* strict C11 hides it */

enum { ZFI_EVENT_HEAD = 12, ZFI_EVENT_TRIES = 1000 };

/* A record that grows. */
typedef struct zfi_event_record {
    zfi_memory *memory;
    char *data;
    size_t bytes, room;
    bool lacks_memory;
} zfi_event_record;

typedef struct zfi_event_file {
    zfi_memory memory;
    int file;
    char path[ZFI_ASIDE_MAX];
    zfi_event_record record; /* its memory is kept from one to the next */
} zfi_event_file;

static void zfi_event_bytes(zfi_event_record *r, const void *data, size_t bytes)
{
    if (r->lacks_memory) return;
    if (bytes > r->room - r->bytes) {
        const size_t room = 2 * (r->bytes + bytes) + 256;
        char *more = zfi_realloc(r->memory, r->data, r->room, room);
        if (!more) {
            r->lacks_memory = true;
            return;
        }
        r->data = more, r->room = room;
    }
    memcpy(r->data + r->bytes, data, bytes);
    r->bytes += bytes;
}

static void zfi_event_fixed(zfi_event_record *r, uint64_t x, int bytes)
{
    unsigned char out[8];
    for (int k = 0; k < bytes; k++) out[k] = (unsigned char)(x >> 8 * k);
    zfi_event_bytes(r, out, (size_t)bytes);
}

static void zfi_event_varint(zfi_event_record *r, uint64_t x)
{
    for (; x > 127; x >>= 7) zfi_event_fixed(r, (x & 127) | 128, 1);
    zfi_event_fixed(r, x, 1);
}

static size_t zfi_varint_bytes(uint64_t x)
{
    size_t n = 1;
    while (x >>= 7) n++;
    return n;
}

enum { ZFI_WIRE_VARINT, ZFI_WIRE_64, ZFI_WIRE_BYTES, ZFI_WIRE_32 = 5 };

static void zfi_event_key(zfi_event_record *r, int field, int wire)
{
    zfi_event_varint(r, (uint64_t)(field << 3 | wire));
}

static void zfi_event_string(zfi_event_record *r, int field, const char *text)
{
    zfi_event_key(r, field, ZFI_WIRE_BYTES);
    zfi_event_varint(r, strlen(text));
    zfi_event_bytes(r, text, strlen(text));
}

static uint32_t zfi_event_checksum(const void *data, size_t bytes)
{
    const uint32_t crc = zfi_crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Begins a record with the members that every Event has. */
static zfi_event_record *zfi_event_begin(zfi_event_file *f, double wall_time, int64_t step)
{
    zfi_event_record *r = &f->record;
    uint64_t bits;
    r->bytes = 0, r->lacks_memory = false;
    zfi_event_bytes(r, (char[ZFI_EVENT_HEAD]){0}, ZFI_EVENT_HEAD);
    memcpy(&bits, &wall_time, sizeof bits);
    zfi_event_key(r, 1, ZFI_WIRE_64), zfi_event_fixed(r, bits, 8);
    zfi_event_key(r, 2, ZFI_WIRE_VARINT), zfi_event_varint(r, (uint64_t)step);
    return r;
}

/* After a failed write: removes the part of the record that is there. */
static zf_status zfi_event_undo(zfi_event_file *f, off_t end, zf_error *error)
{
    const zf_status status = zfi_io_fail(error, "write", f->path);
    if (end >= 0 && ftruncate(f->file, end)) return status; /* the error is that of the write */
    return status;
}

/* Appends the record as a whole. Of one that is not written, nothing stays in the file. */
static zf_status zfi_event_end(zfi_event_file *f, zf_error *error)
{
    zfi_event_record *r = &f->record, head = {.data = r->data, .room = ZFI_EVENT_HEAD};
    const size_t data = r->bytes - ZFI_EVENT_HEAD;
    const off_t end = lseek(f->file, 0, SEEK_END);
    size_t done = 0;
    zfi_event_fixed(r, r->lacks_memory ? 0 : zfi_event_checksum(r->data + ZFI_EVENT_HEAD, data), 4);
    if (r->lacks_memory) return zfi_nomem(error);
    head.data = r->data; /* it may have moved */
    zfi_event_fixed(&head, data, 8);
    zfi_event_fixed(&head, zfi_event_checksum(head.data, 8), 4);
    while (done < r->bytes) {
        const ssize_t n = zfi_pwrite(f->file, r->data + done, r->bytes - done, -1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    return done == r->bytes ? ZF_OK : zfi_event_undo(f, end, error);
}

/* The number after events.out.tfevents., the largest of those in the folder, or -1. */
static int64_t zfi_event_latest(const char *directory)
{
    static const char start[] = "events.out.tfevents.";
    DIR *folder = opendir(directory);
    int64_t latest = -1;
    const char *name;
    while (folder && (name = zfi_directory_next(folder))) {
        if (strncmp(name, start, sizeof start - 1)) continue;
        const long long at = strtoll(name + sizeof start - 1, NULL, 10);
        if (at > latest && at < 9999999999) latest = at;
    }
    if (folder) closedir(folder);
    return latest;
}

/* Makes the folder and those above it. */
static zf_status zfi_event_folder(const char *directory, zf_error *error)
{
    char path[ZFI_PATH_MAX];
    if (strlen(directory) >= sizeof path || !*directory)
        return zfi_fail(error, ZF_ERR_ARGUMENT,
                        "the path of an event file's folder is empty or too long");
    snprintf(path, sizeof path, "%s", directory);
    for (char *at = path + 1;; at++) {
        const char was = *at;
        if (was && was != '/') continue;
        *at = 0;
        if (mkdir(path, 0777) && errno != EEXIST) return zfi_io_fail(error, "create", path);
        if (!was) return ZF_OK;
        *at = was;
    }
}

/* Creates a file whose name sorts after those that are there: TensorBoard reads them in that
 * order. */
static zf_status zfi_event_create(zfi_event_file *f, const char *directory, zf_error *error)
{
    const int64_t now = (int64_t)time(NULL), after = zfi_event_latest(directory) + 1;
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) || !*host || strchr(host, '/'))
        snprintf(host, sizeof host, "localhost");
    for (int number = 0; number < ZFI_EVENT_TRIES; number++) {
        if (snprintf(f->path, sizeof f->path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", directory,
                     (long long)(now > after ? now : after), host, (long)getpid(),
                     number) >= (int)sizeof f->path)
            return zfi_fail(error, ZF_ERR_ARGUMENT,
                            "the path of an event file's folder is empty or too long");
        f->file = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0666);
        if (f->file >= 0 || errno != EEXIST) break;
    }
    if (f->file < 0) return zfi_io_fail(error, "create", f->path);
    fcntl(f->file, F_SETFD, FD_CLOEXEC);
    return ZF_OK;
}

static void zfi_event_close(zfi_event_file *f)
{
    zfi_memory memory;
    if (!f) return;
    if (f->file >= 0) close(f->file);
    memory = f->memory;
    zfi_free(&memory, f->record.data, f->record.room);
    zfi_free(&memory, f, sizeof *f);
}

/* The first record, and where a run goes on, that from `resumed` on later steps do not count. */
static zf_status zfi_event_start(zfi_event_file *f, double wall_time, int64_t resumed,
                                 zf_error *error)
{
    zfi_event_record *r = zfi_event_begin(f, wall_time, 0);
    zf_status status;
    zfi_event_string(r, 3, "brain.Event:2");
    status = zfi_event_end(f, error);
    if (status || resumed <= 0) return status;
    r = zfi_event_begin(f, wall_time, resumed < INT64_MAX ? resumed + 1 : resumed);
    zfi_event_key(r, 7, ZFI_WIRE_BYTES), zfi_event_varint(r, 2);
    zfi_event_key(r, 1, ZFI_WIRE_VARINT), zfi_event_varint(r, 1);
    return zfi_event_end(f, error);
}

static zfi_event_file *zfi_event_open(const char *directory, int64_t resumed,
                                      const zf_allocator *allocator, zf_error *error)
{
    zfi_memory memory = zfi_memory_of(allocator);
    zfi_event_file *f;
    if (zfi_event_folder(directory, error)) return NULL;
    if (!(f = zfi_calloc(&memory, 1, sizeof *f))) return zfi_nomem(error), NULL;
    f->memory = memory, f->record.memory = &f->memory, f->file = -1;
    if (!zfi_event_create(f, directory, error) &&
        !zfi_event_start(f, (double)time(NULL), resumed, error))
        return f;
    if (f->file >= 0) unlink(f->path);
    zfi_event_close(f);
    return NULL;
}

/* One value of a summary. */
static size_t zfi_event_value_bytes(const char *tag)
{
    const size_t length = strlen(tag);
    return 1 + zfi_varint_bytes(length) + length + 1 + 4;
}

static void zfi_event_value(zfi_event_record *r, const char *tag, double value)
{
    const float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    zfi_event_key(r, 1, ZFI_WIRE_BYTES), zfi_event_varint(r, zfi_event_value_bytes(tag));
    zfi_event_string(r, 1, tag);
    zfi_event_key(r, 2, ZFI_WIRE_32), zfi_event_fixed(r, bits, 4);
}
