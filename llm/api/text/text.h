/* Lists that grow. A failed allocation is remembered: later additions are lost, and `failed` is
 * true. {0} is an empty list. */

/* Bytes. */

typedef struct zf_text {
    char *at; /* terminated, unless it is NULL */
    size_t count, room;
    bool failed;
} zf_text;
ZF_API void zf_text_add(zf_text *, const void *bytes, size_t count);
ZF_API void zf_text_add_string(zf_text *, const char *text);
ZF_API void zf_text_add_character(zf_text *, uint32_t character); /* as UTF-8 */
ZF_API void zf_text_clear(zf_text *);                             /* keeps its room */
ZF_API void zf_text_free(zf_text *);

/* Ids of tokens; the same. */
typedef struct zf_ids {
    int32_t *at;
    size_t count, room;
    bool failed;
} zf_ids;
ZF_API void zf_ids_add(zf_ids *, int32_t id);
ZF_API void zf_ids_free(zf_ids *);

/* Files that a program reads as a whole. They must be regular files, so that reading ends and never
 * blocks. */

/* Opens a regular file and tells its size, which may change while it is read. NULL, and *why is
 * what is wrong, when it cannot be opened or is another kind of file (a folder, a pipe, a
 * device). */
ZF_API FILE *zf_file_open(const char *path, size_t *bytes, const char **why);

/* Appends the whole of such a file, as bytes. False with *error. */
ZF_API bool zf_text_read(const char *path, zf_text *out, zf_error *error);
/* The same of a file of text in UTF-8, without the byte order mark that it may begin with.
 * ZF_ERR_FORMAT: it is no text (zf_text_wrong); *error names the line. */
ZF_API bool zf_text_read_plain(const char *path, zf_text *out, zf_error *error);

/* What keeps bytes from being text in UTF-8: a NUL byte, or UTF-16 and UTF-32 by the mark at the
 * beginning of a file (begins); NULL: nothing. *line is the number of the first line, and becomes
 * that of the wrong one, or of what follows the bytes. */
ZF_API const char *zf_text_wrong(const char *at, size_t bytes, bool begins, size_t *line);
/* The bytes of a byte order mark of UTF-8 at the beginning of a file: 3 or 0. */
ZF_API size_t zf_text_mark(const char *at, size_t bytes);

/* Writes a file as a whole: next to its place, brought to the disk, then renamed, so that it is
 * never seen half-written. A symbolic link in its place is replaced; what it points to stays. False
 * with *error. */
ZF_API bool zf_file_save(const char *path, const void *data, size_t bytes, zf_error *error);

/* Digests of files and of data in memory, for noticing differences. They do not protect against
 * deliberate collisions. */
#define ZF_DIGEST_START UINT64_C(0xcbf29ce484222325)

/* Continues from `digest`; ZF_DIGEST_START: nothing so far. Equal bytes give equal digests, in
 * calls of any size. */
ZF_API uint64_t zf_digest_bytes(uint64_t digest, const void *data, size_t bytes);

/* The digest of a file's contents. Of a directory: of its manifest.json, which has checksums of all
 * files of a checkpoint; without one, of its .json and .safetensors files. False with *error. */
ZF_API bool zf_digest_path(const char *path, uint64_t *digest, zf_error *error);

/* Normalization forms of Unicode (UAX 15). K: characters that stand for others, as of a ligature, a
 * width or a style, become these. */
typedef enum zf_normal_form { ZF_NFD, ZF_NFC, ZF_NFKD, ZF_NFKC } zf_normal_form;

/* Appends a text in UTF-8 in a normalization form, of the edition 9 of Unicode. */
ZF_API void zf_text_normalize(const char *text, size_t bytes, zf_normal_form form, zf_text *out);
