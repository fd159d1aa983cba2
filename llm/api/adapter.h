/* Adapters of low rank (zf_lora), and PEFT's files.
 *
 *     DIR/adapter_config.json         peft_type LORA, r, lora_alpha, target_modules, ...
 *     DIR/adapter_model.safetensors   base_model.model.NAME.lora_A.weight and .lora_B.weight
 *
 * A checkpoint of a run that trains an adapter has these files and the states of its optimizer, and
 * not the base. */

/* The adapter of a description, in one short text: targets as a digest; "none". */
ZF_API const char *zf_adapter_note(char text[64], const zf_training *training);

ZF_API bool zf_adapter_is_param(const char *name); /* NAME.lora_A.weight or NAME.lora_B.weight */

/* An adapter's files. */
typedef struct zf_adapter zf_adapter;
ZF_API bool zf_adapter_is_at(const char *path); /* a folder with an adapter_config.json */

/* NULL with *error: no adapter is there, it is of another kind, or has what zf_lora does not do. */
ZF_API zf_adapter *zf_adapter_open(const char *path, zf_error *error);
ZF_API void zf_adapter_close(zf_adapter *a); /* NULL: nothing */

/* Its modules by their whole names. Lives as long as the adapter. */
ZF_API const zf_lora_desc *zf_adapter_desc(const zf_adapter *a);

/* Writes its values into a program whose graph zf_lora has adapted. False with *error, which names
 * what does not fit: then it is of another model. */
ZF_API bool zf_adapter_take(zf_adapter *a, zf_program *program, zf_graph *g, zf_error *error);

/* The two files of a program's adapter, in memory. */
typedef struct zf_adapter_files {
    zf_text config, model;
} zf_adapter_files;

typedef struct zf_adapter_about {
    const zf_lora_desc *desc;
    const char *base; /* the folder of the base; NULL: not known */
    bool turned;      /* transformers has the weights as [in, out] (GPT-2) */
    bool causal;      /* the model predicts the next token */
} zf_adapter_about;

/* All ranks must call it. False with *error. To be freed all the same. */
ZF_API bool zf_adapter_write(zf_adapter_files *files, zf_program *program, zf_graph *g,
                             const zf_adapter_about *about, zf_error *error);
ZF_API void zf_adapter_files_free(zf_adapter_files *files);
