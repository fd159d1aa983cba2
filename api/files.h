/* api/files.h - checkpoints, JSON and safetensors: read strictly, and written so that others read
 * them. A file appears under its name when it is complete and on the disk, or not at all. */

/* ---------------------------------------------------------------------------------- CHECKPOINTS */

/* Checkpoints of a store: a directory with params.safetensors, state.safetensors, manifest.json
 * (step, seed, the caller's notes, and checksums that together cover every byte) and the caller's
 * files. It is written to a temporary directory, which is then renamed: a crash leaves the old
 * checkpoint or the new one, complete.
 *
 * With several ranks both calls are collective: all ranks call, with one directory that all of them
 * share, and an error on one rank is an error on all, which names that rank. Of sharded parameters
 * and states each rank writes its own elements, to files of its own, and holds no others in memory:
 *
 *     params.rank-00001-of-00004.safetensors, state.rank-00001-of-00004.safetensors
 *     rank-00001-of-00004.json    what is in them: of which tensor, from which element on
 *
 * The other files are as above. At stage 0 a checkpoint is the same as one rank's; at stages 1 and
 * 2 params.safetensors is whole; at stage 3 there is none. Ranks along tensor write the box of a
 * tensor that each has, and those along pipe the tensors of their stage, into their files; what
 * several have is written once. Names and shapes are those of one rank. Ranks in any mesh, at any
 * stage of ZeRO, can load it, with or without zf_zero: a rank reads the pieces (of 4 MiB) that have
 * its elements. */
typedef struct zf_note {
    const char *key, *value; /* UTF-8 */
} zf_note;

typedef struct zf_attachment {
    const char *name; /* of the file in the checkpoint: letters, digits, '.', '-', '_' */
    const void *data;
    size_t bytes;
} zf_attachment;

typedef struct zf_save_desc {
    const zf_note *notes;
    int32_t note_count;
    const zf_attachment *attachments;
    int32_t attachment_count;
    bool finite; /* non-finite parameters or states are an error (ZF_ERR_NAN) */
    /* True for a tensor that is saved, with the same answers on all ranks: an adapter without its
     * base. NULL: all tensors are saved */
    bool (*select)(void *user, const zf_stored *tensor);
    void *user;
} zf_save_desc;

/* Saves parameters, states, step and seed; notes and attachments are those of rank 0. desc NULL:
 * nothing else. An error leaves the old checkpoint unchanged. One process at a time may save to a
 * path: a second one gets an error, where the file system has locks. Do not load from it meanwhile.
 * The error is kept in the store, as that of zf_load. */
ZF_API zf_status zf_save(zf_store *store, const char *path, const zf_save_desc *desc);

typedef struct zf_load_desc {
    /* For evaluation: states, step and seed do not change, but master weights are set to the
     * parameters; the checkpoint may lack states, and may have parameters that the store lacks. */
    bool params_only;
    /* With params_only: f32 parameters of the store that the checkpoint has in bf16 or f16 take
     * their master weights. */
    bool masters;
    /* Tensors that the checkpoint lacks do not change (but master weights are set to the parameters
     * that it has), and tensors that the store lacks are added: a base and an adapter are
     * joined. */
    bool merge;
} zf_load_desc;

/* Restores parameters, states, step and seed, so that training goes on with the same bits, from the
 * beginning of a step. The checkpoint must have exactly the tensors of the store, each with its
 * dtype and shape (ZF_ERR_MISMATCH names the first difference), and every checksum must match
 * (ZF_ERR_FORMAT names file and tensor). Everything is checked before anything is changed. Only if
 * a device fails or a file changes after that, parameters and states are undefined, and the error
 * says so. desc NULL: all.
 *
 * A store without tensors takes all that the checkpoint has. They lie in host memory, whole on each
 * rank, until a program is compiled that names them; so where memory matters, compile first. */
ZF_API zf_status zf_load(zf_store *store, const char *path, const zf_load_desc *desc);

/* Reads one note of a checkpoint into value[0..size), terminated. ZF_ERR_ARGUMENT when there is
 * none of that key, or it does not fit; on an error value does not change. */
ZF_API zf_status zf_checkpoint_note(const char *path, const char *key, char *value, size_t size,
                                    zf_error *error);

/* A checkpoint that is read tensor by tensor, whatever the layout of the ranks that have written it.
 * In memory are its lists, the tensor that was read last, and 4 MiB. */
typedef struct zf_checkpoint zf_checkpoint;

/* Opens a checkpoint for its parameters and, with a role, the states that have it: "master" weights,
 * "average", ... (store/manifest.c); NULL: no states. All that may be read is checked, as by zf_load.
 * NULL with *error (which may be NULL). */
ZF_API zf_checkpoint *zf_checkpoint_open(const char *path, const char *role,
                                         const zf_allocator *allocator, zf_error *error);
ZF_API void zf_checkpoint_close(zf_checkpoint *checkpoint); /* NULL: nothing */
ZF_API const char *zf_checkpoint_path(const zf_checkpoint *checkpoint);
ZF_API int32_t zf_checkpoint_count(const zf_checkpoint *checkpoint);
/* 0 <= index < count: its names, dtype and shape are those of one rank; else the name is NULL. */
ZF_API zf_stored zf_checkpoint_at(const zf_checkpoint *checkpoint, int32_t index);
/* The index of the parameter of this name, or of its state with the role of zf_checkpoint_open; -1:
 * there is none. */
ZF_API int32_t zf_checkpoint_find(const zf_checkpoint *checkpoint, const char *param, bool state);
/* All of a tensor, until the next read or zf_checkpoint_close. NULL with *error. */
ZF_API const void *zf_checkpoint_read(zf_checkpoint *checkpoint, int32_t index, zf_error *error);

/* ---------------------------------------------------------------------------------------- JSON
 *
 * JSON (RFC 8259) is read into a tree that does not change. All functions accept the value NULL,
 * "no such value", so look-ups nest; the zf_json_to_ functions then leave *out unchanged, so a
 * default stays. All functions with an error keep the first one, which names file, line, column,
 * the path of the value, what it must be and what it is:
 *
 *     int64_t hidden = 0, heads = 12;
 *     double dropout = 0.1;
 *     zf_error error = {0};
 *     zf_json *config = zf_json_read("config.json", NULL, &error);
 *     const zf_json *v = zf_json_require(config, "hidden_size", &error);
 *     zf_json_to_int(v, 1, INT64_MAX, &hidden, &error);
 *     v = zf_json_member(config, "hidden_dropout_prob");
 *     zf_json_to_double(v, 0, 1, &dropout, &error);
 *     v = zf_json_member(config, "num_attention_heads");
 *     zf_json_to_int(v, 1, 1024, &heads, &error);
 *     if (!error.status && hidden % heads)
 *         zf_json_expected(v, &error, "a divisor of hidden_size (%lld)", (long long)hidden);
 *     if (error.status) fprintf(stderr, "bert: %s\n", error.text);
 *     zf_json_free(config);
 *
 *     bert: config.json:12:7: hidden_size must be a positive integer, not "768"
 *     bert: config.json:4:26: num_attention_heads must be a divisor of hidden_size (768), not 11
 *     bert: config.json:1:1: the top value lacks "hidden_size"
 */

typedef enum zf_json_type {
    ZF_JSON_MISSING, /* of NULL */
    ZF_JSON_NULL,
    ZF_JSON_BOOL,
    ZF_JSON_NUMBER,
    ZF_JSON_STRING,
    ZF_JSON_ARRAY,
    ZF_JSON_OBJECT
} zf_json_type;

typedef struct zf_json zf_json; /* a value; the one at the top owns the tree */

/* The tree of text[0..bytes), which is not needed afterwards, or NULL with *error (which may be
 * NULL). Refused are, as by the RFC, trailing commas, comments, NaN, lone surrogates, bytes that
 * are not UTF-8 and control characters in strings; and also two members of one name, numbers beyond
 * a double, more than 128 levels, and 2^31 bytes or more. Takes time in proportion to the text. */
ZF_API zf_json *zf_json_parse(const char *text, size_t bytes, const zf_allocator *allocator,
                              zf_error *error);
/* The tree of a file of at most 64 MiB; messages name the file. */
ZF_API zf_json *zf_json_read(const char *path, const zf_allocator *allocator, zf_error *error);
/* Frees a tree by what zf_json_parse or zf_json_read returned; NULL: nothing. */
ZF_API void zf_json_free(zf_json *top);

ZF_API zf_json_type zf_json_type_of(const zf_json *value);
/* Elements of an array, members of an object, bytes of a string; 0 of anything else. */
ZF_API int64_t zf_json_length(const zf_json *value);
/* Where a value begins. Lines and columns (of characters) count from 1; both are 0 for NULL. */
ZF_API void zf_json_where(const zf_json *value, int64_t *line, int64_t *column);

/* A member's value, or NULL. */
ZF_API const zf_json *zf_json_member(const zf_json *object, const char *key);
/* A member's value; an error if the object lacks it. object NULL: NULL, without an error. */
ZF_API const zf_json *zf_json_require(const zf_json *object, const char *key, zf_error *error);
/* An element, 0 <= index < length, or NULL. Takes time in proportion to index in an array of arrays
 * or objects. */
ZF_API const zf_json *zf_json_element(const zf_json *array, int64_t index);
/* for (v = zf_json_first(c); v; v = zf_json_next(v)): elements or members, as the text has them. */
ZF_API const zf_json *zf_json_first(const zf_json *container);
ZF_API const zf_json *zf_json_next(const zf_json *value);
/* The key of a member; NULL for an element and for the top. It is terminated, and lives as long as
 * the tree; *bytes (which may be NULL) is its length. */
ZF_API const char *zf_json_key(const zf_json *value, size_t *bytes);
/* The value of a string; NULL for anything else. It is terminated, and lives as long as the tree;
 * *bytes (which may be NULL) is its length. */
ZF_API const char *zf_json_string(const zf_json *value, size_t *bytes);
/* A number as it is written, *bytes (which may be NULL) long and not terminated; NULL for anything
 * else. */
ZF_API const char *zf_json_number(const zf_json *value, size_t *bytes);

/* Sets *out when the value is of that type and least <= value <= most; else ZF_ERR_FORMAT. An
 * integer may be written as 5e8 or 1.0: it is the exact value that counts. A string with a zero
 * byte in it is refused: ask zf_json_string. */
ZF_API zf_status zf_json_to_bool(const zf_json *value, bool *out, zf_error *error);
ZF_API zf_status zf_json_to_int(const zf_json *value, int64_t least, int64_t most, int64_t *out,
                                zf_error *error);
ZF_API zf_status zf_json_to_double(const zf_json *value, double least, double most, double *out,
                                   zf_error *error);
ZF_API zf_status zf_json_to_string(const zf_json *value, const char **out, zf_error *error);

/* Records "FILE:LINE:COLUMN: PATH " and the text, and returns ZF_ERR_FORMAT: for rules of the
 * caller's own. zf_json_expected writes "must be TEXT, not VALUE". */
ZF_API zf_status zf_json_fail(const zf_json *value, zf_error *error, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
ZF_API zf_status zf_json_expected(const zf_json *value, zf_error *error, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* Writes JSON. The writer takes care of commas, nesting and escapes; the caller, that the members
 * of an object have different names. The first mistake or lack of memory is kept, and zf_json_text
 * or zf_json_save reports it. */
typedef struct zf_json_writer zf_json_writer;

/* indent: spaces per level; 0: all on one line. NULL when there is no memory; what follows accepts
 * that. */
ZF_API zf_json_writer *zf_json_writer_new(int32_t indent, const zf_allocator *allocator);
ZF_API void zf_json_writer_free(zf_json_writer *writer);
ZF_API void zf_json_begin_object(zf_json_writer *writer);
ZF_API void zf_json_begin_array(zf_json_writer *writer);
ZF_API void zf_json_end(zf_json_writer *writer); /* of the innermost object or array */
ZF_API void zf_json_put_key(zf_json_writer *writer, const char *key); /* then its value; UTF-8 */
ZF_API void zf_json_put_string(zf_json_writer *writer, const char *string); /* UTF-8; NULL: null */
ZF_API void zf_json_put_int(zf_json_writer *writer, int64_t value);
/* The shortest digits that read back as the same double; NaN and the infinities, which JSON lacks,
 * are null. */
ZF_API void zf_json_put_double(zf_json_writer *writer, double value);
ZF_API void zf_json_put_bool(zf_json_writer *writer, bool value);
ZF_API void zf_json_put_null(zf_json_writer *writer);
/* The whole text, terminated, *bytes long (which may be NULL); it lives until the next call on the
 * writer. NULL with *error when it is not complete. */
ZF_API const char *zf_json_text(zf_json_writer *writer, size_t *bytes, zf_error *error);
/* Writes a file at once: it grows next to its place and is renamed over what `path` names, a
 * regular file or nothing. So there is always a whole file, the old one or the new one. */
ZF_API zf_status zf_file_replace(const char *path, const void *data, size_t bytes, zf_error *error);

/* Writes the text and a line end to a file, which replaces what `path` names. */
ZF_API zf_status zf_json_save(zf_json_writer *writer, const char *path, zf_error *error);

/* --------------------------------------------------------------------------------- SAFETENSORS */

/* Safetensors: named tensors in one file. Reading checks every rule of the format and believes no
 * number of the file; the data are read when asked for, by any threads at the same time, and a file
 * that shrinks meanwhile is an error. */
typedef struct zf_safetensors zf_safetensors;

typedef struct zf_safetensors_entry {
    const char *name;       /* UTF-8, terminated; lives as long as the file is open */
    const char *dtype_name; /* as the file says it: "F32" */
    zf_dtype dtype;
    /* false: this library lacks the element type (U16, F8_E4M3, ...); dtype is void */
    bool readable;
    zf_shape shape;
    size_t bytes;
} zf_safetensors_entry;

/* Opens a file. NULL with *error (which may be NULL) when it cannot be read or breaks a rule. */
ZF_API zf_safetensors *zf_safetensors_open(const char *path, const zf_allocator *allocator,
                                           zf_error *error);
/* Opens a file in memory; `data` must stay until it is closed. */
ZF_API zf_safetensors *zf_safetensors_parse(const void *data, size_t bytes,
                                            const zf_allocator *allocator, zf_error *error);
ZF_API void zf_safetensors_close(zf_safetensors *file); /* NULL: nothing */

ZF_API int32_t zf_safetensors_count(const zf_safetensors *file);
/* 0 <= index < count, in the order of the data; NULL outside. */
ZF_API const zf_safetensors_entry *zf_safetensors_at(const zf_safetensors *file, int32_t index);
/* The index of a name, or -1. */
ZF_API int32_t zf_safetensors_find(const zf_safetensors *file, const char *name);
/* An object of strings, or NULL when the file has no metadata. It is the file's. */
ZF_API const zf_json *zf_safetensors_metadata(const zf_safetensors *file);
/* Copies a tensor's data: all of it, where `bytes` must be its size, or `bytes` from byte `offset`
 * on. */
ZF_API zf_status zf_safetensors_read(zf_safetensors *file, int32_t index, void *out, size_t bytes,
                                     zf_error *error);
ZF_API zf_status zf_safetensors_read_range(zf_safetensors *file, int32_t index, size_t offset,
                                           void *out, size_t bytes, zf_error *error);

/* Writes a file: declare every tensor, write the data of each (in any order, each in as many pieces
 * as one likes), finish. Until then, and after any error, what `path` names stays as it was. The
 * first error is kept. Data are stored with wide element types first, so that all are aligned, else
 * in the order of declaration. The metadata "format" is "pt", which transformers asks for. */
typedef struct zf_safetensors_writer zf_safetensors_writer;

ZF_API zf_safetensors_writer *
zf_safetensors_writer_new(const char *path, const zf_allocator *allocator, zf_error *error);
ZF_API zf_status zf_safetensors_put_metadata(zf_safetensors_writer *writer, const char *key,
                                             const char *value);
/* The tensors have the indices 0, 1, ... in the order of these calls. */
ZF_API zf_status zf_safetensors_declare(zf_safetensors_writer *writer, const char *name,
                                        zf_dtype dtype, zf_shape shape);
ZF_API zf_status zf_safetensors_write(zf_safetensors_writer *writer, int32_t index,
                                      const void *data, size_t bytes);
ZF_API zf_status zf_safetensors_finish(zf_safetensors_writer *writer, zf_error *error);
/* Frees the writer. An unfinished file leaves no trace. NULL: nothing. */
ZF_API void zf_safetensors_writer_free(zf_safetensors_writer *writer);
