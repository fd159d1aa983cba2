/* Weights in Hugging Face's formats: one safetensors file, several with an index
 * (model.safetensors.index.json), or a folder with either. Tensors are f32, f64, bf16 or f16;
 * programs read and write them as f32. An index says which files there are; all tensors of these
 * files are there, also those that it does not list.
 *
 *     weights *w = zf_weights_open("bert-base-uncased", &error);
 *     for each parameter: values = zf_weights_take(w, zf_weights_find(w, NAME), shape, &error),
 *                         zf_weights_put(program, param, values, &error)
 *     for each tensor that was not taken: weights_untaken(w, ...)
 */

typedef struct zf_weights zf_weights;

/* NULL with *error, which recognises files of PyTorch's own. */
ZF_API zf_weights *zf_weights_open(const char *path, zf_error *error);
ZF_API void zf_weights_close(zf_weights *w); /* NULL: nothing */
ZF_API int32_t zf_weights_count(const zf_weights *w);

/* The name without "module." and "_orig_mod.", prefixes that wrappers of PyTorch add. */
ZF_API const char *zf_weights_name(const zf_weights *w, int32_t index);
ZF_API int32_t zf_weights_find(const zf_weights *w, const char *name); /* -1: none */

/* The values, which the caller frees; marks the tensor as taken. NULL with *error where it has
 * another shape, or no float values. */
ZF_API float *zf_weights_take(zf_weights *w, int32_t index, zf_shape shape, zf_error *error);

/* The same into a parameter of the file's shape (zf_weights_put), a few values at a time. */
ZF_API bool zf_weights_move(zf_weights *w, int32_t index, zf_program *program, zf_tensor param,
                            zf_error *error);

/* Marks a tensor as taken without reading it. */
ZF_API void zf_weights_pass(zf_weights *w, int32_t index);
ZF_API bool zf_weights_taken(const zf_weights *w, int32_t index);

/* Whether two tensors have one shape and equal values; an index of -1 equals any. False also with
 * *error. */
ZF_API bool zf_weights_equal(zf_weights *w, int32_t a, int32_t b, zf_error *error);

/* What an import reports: parameters that the files lack, which keep first values; tensors that the
 * model does not use; names of an index without a tensor in its files, and tensors of its files
 * that it does not list, which are read. Their numbers, and as many names as there is room for. */
enum { ZF_WEIGHTS_NAMES = 240 };

typedef struct zf_weights_report {
    int32_t fresh, unused, absent, unlisted;
    int32_t others; /* tensors of other parts of a model, of which that of text is read */
    int32_t kept; /* of `fresh`: parameters that an adapter keeps */
    char fresh_names[ZF_WEIGHTS_NAMES], unused_names[ZF_WEIGHTS_NAMES]; /* "a, b, ..." */
    char absent_names[ZF_WEIGHTS_NAMES], unlisted_names[ZF_WEIGHTS_NAMES];
} zf_weights_report;
ZF_API void zf_weights_fresh(zf_weights_report *report, const char *name);
ZF_API void zf_weights_unused(zf_weights_report *report, const char *name);

/* For what does not train: false with *error, which names them, where the report has any. path: of
 * the files. */
ZF_API bool zf_weights_whole(const zf_weights_report *report, const char *path, zf_error *error);

/* Sets the parameter to `values`, rounded to its dtype, or to its few bits; its master weights
 * are not rounded. Where ranks share it (zf_write_whole), all give all values. */
ZF_API zf_status zf_weights_put(zf_program *program, zf_tensor param, const float *values,
                                zf_error *error);

/* The first parameter of the graph that has a value that is not finite; the invalid tensor: there
 * is none, or with *error. All ranks must call it. */
ZF_API zf_tensor zf_weights_not_finite(zf_program *program, zf_graph *g, zf_error *error);

/* The values that training continues from: the master weights, if there are any; all of them, also
 * where ranks share the parameter (zf_read_whole). All ranks must call it. */
ZF_API zf_status zf_weights_get(zf_program *program, zf_tensor param, float *values,
                                zf_error *error);

/* A shape as "[2,3]"; returns text. */
enum { ZF_SHAPE_TEXT = 21 * ZF_MAX_RANK + 2 };
ZF_API const char *zf_shape_text(char text[ZF_SHAPE_TEXT], zf_shape shape);
