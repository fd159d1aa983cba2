/* Memory: every allocation of the library is made here.
 *
 * A zfi_memory is an allocator with a sticky failure: after one refused request `failed` stays set,
 * later requests are still served, and the owner reports ZF_ERR_NOMEM once instead of after every
 * line.
 *
 * Growing arrays and name maps are those of stb_ds, which knows neither failed allocations nor an
 * allocator's context. Arrays are grown by zfi_grow first, so that stb_ds has no need to. A map's
 * hash index grows only inside zfi_map_put: there a thread-local pointer names the allocator, and a
 * refused request leaves by longjmp before stb_ds has changed anything. Blocks of stb_ds begin with
 * their size:
 *
 *     | size (16 bytes) | stbds_array_header | elements ... |
 */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define ZFI_INLINE static inline __attribute__((always_inline, unused))
#else
#define ZFI_INLINE static inline
#endif

/* Around the files that are not kernels, and do not decide how fast a step is: where the library is
 * optimized for speed, gcc compiles them at -O1 with small functions inlined. That takes three
 * quarters of the time. Kernels among them ask for more themselves (cpu/isa.c). */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define ZFI_PLAIN_BEGINS                                                                           \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\", \"inline-small-functions\")")
#define ZFI_PLAIN_ENDS _Pragma("GCC pop_options")
#else
#define ZFI_PLAIN_BEGINS
#define ZFI_PLAIN_ENDS
#endif

#define ZFI_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

ZF_API const char *zf_version(void) { return ZF_VERSION; }

ZF_API const char *zf_status_name(zf_status status)
{
    static const char *const names[] = {
        "ok",
        "out of memory",
        "invalid argument",
        "shapes do not match",
        "dtypes do not match",
        "wrong stage",
        "parse error",
        "verification failed",
        "does not fit",
        "input/output error",
        "bad format",
        "state mismatch",
        "backend error",
        "communication error",
        "not a number",
    };
    return (unsigned)status < (unsigned)ZFI_COUNT(names) ? names[status] : "unknown status";
}

/* *out = a * b, *out = a + b; false when it overflows. */
static bool zfi_mul_size(size_t a, size_t b, size_t *out)
{
    if (b && a > SIZE_MAX / b) return false;
    *out = a * b;
    return true;
}

static bool zfi_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) return false;
    *out = a + b;
    return true;
}

typedef struct zfi_memory {
    zf_allocator allocator;
    bool failed; /* a request was refused */
} zfi_memory;

static void *zfi_default_allocator(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user, (void)old_size;
    if (new_size) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

/* A memory over `allocator`, or over the C library's when that is NULL or empty. */
static zfi_memory zfi_memory_of(const zf_allocator *allocator)
{
    zfi_memory memory = {{zfi_default_allocator, NULL}, false};
    if (allocator && allocator->fn) memory.allocator = *allocator;
    return memory;
}

/* Resizes `ptr` (NULL: allocates). On failure returns NULL and sets `failed`; `ptr` is
 * unchanged. */
static void *zfi_realloc(zfi_memory *memory, void *ptr, size_t old_size, size_t new_size)
{
    void *block = memory->allocator.fn(memory->allocator.user, ptr, old_size, new_size);
    if (!block && new_size) memory->failed = true;
    return block;
}

/* `size` is the requested size; a request of 0 bytes was served as 1. */
static void zfi_free(zfi_memory *memory, void *ptr, size_t size)
{
    if (ptr) memory->allocator.fn(memory->allocator.user, ptr, size ? size : 1, 0);
}

/* `count` zeroed elements, or NULL. Free with zfi_free(memory, ptr, count * size). */
static void *zfi_calloc(zfi_memory *memory, size_t count, size_t size)
{
    size_t bytes;
    void *block = NULL;
    if (!zfi_mul_size(count, size, &bytes)) memory->failed = true;
    else if ((block = zfi_realloc(memory, NULL, 0, bytes ? bytes : 1))) memset(block, 0, bytes);
    return block;
}

/* ---------------------------------------------------------------------------- stb_ds, contained */

typedef struct zfi_stb_scope {
    zfi_memory *memory;
    jmp_buf refused;
} zfi_stb_scope;

/* Set during zfi_map_put: stb_ds passes no context to its allocator. */
static _Thread_local zfi_stb_scope *zfi_stb;

/* Held while an index is made, since stb_ds seeds it from a variable that all threads share. */
static atomic_flag zfi_stb_seeding = ATOMIC_FLAG_INIT;

enum { ZFI_STB_FRONT = 16 };

static void *zfi_block_resize(zfi_memory *memory, void *ptr, size_t size)
{
    char *front = ptr ? (char *)ptr - ZFI_STB_FRONT : NULL;
    size_t total, old = 0;
    if (front) memcpy(&old, front, sizeof old);
    if (!zfi_add_size(size, ZFI_STB_FRONT, &total)) {
        memory->failed = true;
        return NULL;
    }
    front = zfi_realloc(memory, front, old, total);
    if (!front) return NULL;
    memcpy(front, &total, sizeof total);
    return front + ZFI_STB_FRONT;
}

static void zfi_block_free(zfi_memory *memory, void *ptr)
{
    size_t total;
    if (!ptr) return;
    memcpy(&total, (char *)ptr - ZFI_STB_FRONT, sizeof total);
    zfi_free(memory, (char *)ptr - ZFI_STB_FRONT, total);
}

static void *zfi_stb_realloc(void *ptr, size_t size)
{
    void *block = zfi_block_resize(zfi_stb->memory, ptr, size);
    if (!block) longjmp(zfi_stb->refused, 1);
    return block;
}

static void zfi_stb_free(void *ptr) { zfi_block_free(zfi_stb->memory, ptr); }

/* stb_ds's functions have names of our own, so that a program may link its own copy too. */
#define STBDS_NO_SHORT_NAMES
#define STBDS_REALLOC(context, ptr, size) zfi_stb_realloc(ptr, size)
#define STBDS_FREE(context, ptr)          zfi_stb_free(ptr)
#define stbds_rand_seed                   zfi_stbds_rand_seed
#define stbds_hash_bytes                  zfi_stbds_hash_bytes
#define stbds_hash_string                 zfi_stbds_hash_string
#define stbds_stralloc                    zfi_stbds_stralloc
#define stbds_strreset                    zfi_stbds_strreset
#define stbds_unit_tests                  zfi_stbds_unit_tests
#define stbds_arrgrowf                    zfi_stbds_arrgrowf
#define stbds_arrfreef                    zfi_stbds_arrfreef
#define stbds_hmfree_func                 zfi_stbds_hmfree_func
#define stbds_hmget_key                   zfi_stbds_hmget_key
#define stbds_hmget_key_ts                zfi_stbds_hmget_key_ts
#define stbds_hmput_default               zfi_stbds_hmput_default
#define stbds_hmput_key                   zfi_stbds_hmput_key
#define stbds_hmdel_key                   zfi_stbds_hmdel_key
#define stbds_shmode_func                 zfi_stbds_shmode_func
#define STB_DS_IMPLEMENTATION
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
/* They are private: after these declarations, those of stb_ds, which are `extern`, mean static. */
struct stbds_string_arena;
static void stbds_rand_seed(size_t seed);
static size_t stbds_hash_bytes(void *p, size_t len, size_t seed);
static size_t stbds_hash_string(char *str, size_t seed);
static char *stbds_stralloc(struct stbds_string_arena *a, char *str);
static void stbds_strreset(struct stbds_string_arena *a);
static void *stbds_arrgrowf(void *a, size_t elemsize, size_t addlen, size_t min_cap);
static void stbds_arrfreef(void *a);
static void stbds_hmfree_func(void *a, size_t elemsize);
static void *stbds_hmget_key(void *a, size_t elemsize, void *key, size_t keysize, int mode);
static void *stbds_hmget_key_ts(void *a, size_t elemsize, void *key, size_t keysize,
                                ptrdiff_t *temp, int mode);
static void *stbds_hmput_default(void *a, size_t elemsize);
static void *stbds_hmput_key(void *a, size_t elemsize, void *key, size_t keysize, int mode);
static void *stbds_hmdel_key(void *a, size_t elemsize, void *key, size_t keysize, size_t keyoffset,
                             int mode);
static void *stbds_shmode_func(size_t elemsize, int mode);
#include <stb/stb_ds.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#undef STB_DS_IMPLEMENTATION

#ifndef zfi_len /* tests count its calls: each pass of a loop over an array asks for the length */
#define zfi_len(array) ((int32_t)stbds_arrlen(array))
/* The condition of a loop from the last element to the first, `int32_t i = zfi_len(array)`: counts
 * i down. */
#define zfi_down(i) ((i)-- > 0)
#endif

/* Makes room for `more` elements after the array's last. Returns the array, which may have moved.
 * On failure returns the old array and sets memory->failed. Call it as `a = zfi_grow(memory, a,
 * sizeof *a, n)`. */
static void *zfi_grow(zfi_memory *memory, void *array, size_t element, size_t more)
{
    size_t length = array ? stbds_header(array)->length : 0,
           capacity = array ? stbds_header(array)->capacity : 0;
    size_t need, bytes;
    stbds_array_header *header;
    if (!zfi_add_size(length, more, &need)) goto refuse;
    if (need <= capacity) return array;
    if (need < 2 * capacity) need = 2 * capacity;
    if (need < 8) need = 8;
    if (!zfi_mul_size(need, element, &bytes) || !zfi_add_size(bytes, sizeof *header, &bytes))
        goto refuse;
    header = zfi_block_resize(memory, array ? stbds_header(array) : NULL, bytes);
    if (!header) return array;
    if (!array) *header = (stbds_array_header){0, 0, NULL, 0};
    header->capacity = need;
    return header + 1;
refuse:
    memory->failed = true;
    return array;
}

/* Appends `value` to the growing array; false (and memory->failed) when there is no room. */
#define zfi_push(memory, array, value)                                                             \
    ((array) = zfi_grow((memory), (array), sizeof *(array), 1),                                    \
     stbds_arrcap(array) > stbds_arrlenu(array)                                                    \
         ? ((array)[stbds_header(array)->length++] = (value), true)                                \
         : false)

#define zfi_array_free(memory, array)                                                              \
    (zfi_block_free((memory), (array) ? stbds_header(array) : NULL), (array) = NULL)

/* A map from names to numbers. Keys are borrowed: they must live longer than the map. */
typedef struct zfi_name {
    char *key;
    int32_t value;
} zfi_name;

/* The number of `key`; `missing` where it has none. */
static int32_t zfi_map_get(zfi_name *map, const char *key, int32_t missing)
{
    ptrdiff_t at = -1;
    if (!map) return missing;
    stbds_hmget_key_ts(map, sizeof *map, (void *)(uintptr_t)key, sizeof map->key, &at,
                       STBDS_HM_STRING);
    return at < 0 ? missing : map[at].value;
}

/* The number of names in it: map[0] to map[count - 1] */
static int32_t zfi_map_count(const zfi_name *map)
{
    return map ? (int32_t)stbds_header(map - 1)->length - 1 : 0;
}

/* Makes room for one more element. Returns the map, which may have moved; NULL, with memory->failed
 * set, on failure. */
static zfi_name *zfi_map_grow(zfi_memory *memory, zfi_name *map)
{
    zfi_name *elements = map ? map - 1 : NULL; /* stb_ds has a default element before the first */
    elements = zfi_grow(memory, elements, sizeof *map, map ? 1 : 2);
    if (stbds_arrcap(elements) < stbds_arrlenu(elements) + (map ? 1 : 2)) return NULL;
    if (!map) {
        stbds_header(elements)->length = 1;
        elements[0] = (zfi_name){NULL, 0};
    }
    return elements + 1;
}

/* Sets key -> value. Returns the map, which may have moved; on failure returns the old map and sets
 * memory->failed. */
static zfi_name *zfi_map_put(zfi_memory *memory, zfi_name *map, const char *key, int32_t value)
{
    zfi_stb_scope scope = {.memory = memory};
    zfi_name *const roomy = zfi_map_grow(memory, map);
    const bool first = roomy && !stbds_header(roomy - 1)->hash_table;
    if (!roomy) return map;
    while (first && atomic_flag_test_and_set(&zfi_stb_seeding)) {}
    zfi_stb = &scope;
    if (!setjmp(scope.refused)) {
        (void)stbds_hmput_key(roomy, sizeof *roomy, (void *)(uintptr_t)key, sizeof roomy->key,
                              STBDS_HM_STRING);
        roomy[stbds_temp(roomy - 1)].value = value;
    }
    zfi_stb = NULL;
    if (first) atomic_flag_clear(&zfi_stb_seeding);
    return roomy;
}

static void zfi_map_free(zfi_memory *memory, zfi_name *map)
{
    if (!map) return;
    zfi_block_free(memory, stbds_header(map - 1)->hash_table);
    zfi_block_free(memory, stbds_header(map - 1));
}

/* -------------------------------------------------------------------------------------- strings */

/* Text that lives as long as its owner: chunks of a bump allocator. */
typedef struct zfi_chunk {
    struct zfi_chunk *next;
    size_t used, size;
} zfi_chunk;

typedef struct zfi_text {
    zfi_chunk *chunks;
} zfi_text;

/* Room for `bytes`, 8-byte aligned, or NULL. */
static void *zfi_text_room(zfi_memory *memory, zfi_text *text, size_t bytes)
{
    zfi_chunk *chunk = text->chunks;
    size_t room = bytes / 8 * 8 + 8, size = room > 4000 ? room : 4000, total;
    if (!chunk || chunk->size - chunk->used < room) {
        if (room < bytes || !zfi_add_size(size, sizeof *chunk, &total)) {
            memory->failed = true;
            return NULL;
        }
        chunk = zfi_realloc(memory, NULL, 0, total);
        if (!chunk) return NULL;
        *chunk = (zfi_chunk){text->chunks, 0, size};
        text->chunks = chunk;
    }
    chunk->used += room;
    return (char *)(chunk + 1) + chunk->used - room;
}

/* A copy of data[0..bytes), or NULL. */
static void *zfi_bytes_copy(zfi_memory *memory, zfi_text *text, const void *data, size_t bytes)
{
    void *copy = zfi_text_room(memory, text, bytes);
    if (copy && bytes) memcpy(copy, data, bytes);
    return copy;
}

/* A terminated copy of string[0..length), or NULL. */
static char *zfi_text_copy(zfi_memory *memory, zfi_text *text, const char *string, size_t length)
{
    char *copy = zfi_text_room(memory, text, length + 1);
    if (copy) {
        memcpy(copy, string, length);
        copy[length] = '\0';
    }
    return copy;
}

static void zfi_text_free(zfi_memory *memory, zfi_text *text)
{
    while (text->chunks) {
        zfi_chunk *next = text->chunks->next;
        zfi_free(memory, text->chunks, sizeof *text->chunks + text->chunks->size);
        text->chunks = next;
    }
}
