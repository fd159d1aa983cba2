/* Adapters of low rank (zf_lora), and PEFT's files.
 *
 *     DIR/adapter_config.json         peft_type LORA, r, lora_alpha, target_modules, modules_to_save, ...
 *     DIR/adapter_model.safetensors   base_model.model.MODULE.lora_A.weight and .lora_B.weight, of an
 *                                     embedding .lora_embedding_A [rank, rows] and .lora_embedding_B,
 *                                     and base_model.model.NAME of each parameter of a module that
 *                                     is kept
 *
 * PEFT also writes the weights of the embedding and of the head where one of them is a target. They
 * must be those of the model.
 *
 * The files have the names of parameters without the adapter's (zf_lora_desc.name). So one folder
 * is taken under several names, as by a reference that stays as it was loaded, over the base of the
 * adapter that is trained:
 *
 *     zf_lora_desc trained = *zf_adapter_desc(a), ref = trained;
 *     ref.name = "ref";
 *     ... two graphs with zf_lora, two programs over one store
 *     zf_adapter_take(a, program, g, NULL, &error) && zf_adapter_take(a, reference, r, NULL, &error)
 *
 * zf_lora_copy gives an adapter the present values of another one.
 *
 * A checkpoint of a run that trains an adapter has these files and the states of its optimizer, and
 * not the base. */

/* The adapter of a description, in one short text: name, targets and what is kept as a digest;
 * "none". */
ZF_API const char *zf_adapter_note(char text[64], const zf_training *training);

/* The parameter is of a product of low rank: of an adapter, and not kept by it. */
ZF_API bool zf_adapter_is_product(zf_tensor param);

/* An adapter's files. */
typedef struct zf_adapter zf_adapter;
ZF_API bool zf_adapter_is_at(const char *path); /* a folder with an adapter_config.json */

/* NULL with *error: no adapter is there, it is of another kind, or has what zf_lora does not do. */
ZF_API zf_adapter *zf_adapter_open(const char *path, zf_error *error);
ZF_API void zf_adapter_close(zf_adapter *a); /* NULL: nothing */

/* Its modules, and what it keeps, by their whole names; without a name. Lives as long as the
 * adapter. */
ZF_API const zf_lora_desc *zf_adapter_desc(const zf_adapter *a);

/* Writes its values into a program whose graph zf_lora has adapted, under any name. x: how the
 * model's files have parameters, for those that are kept; NULL: as the graph. False with *error,
 * which names what does not fit: then it is of another model. */
ZF_API bool zf_adapter_take(zf_adapter *a, zf_program *program, zf_graph *g, const zf_exchange *x,
                            zf_error *error);

/* Whether a model with the products added to its weights (zf_lora_merge) computes the same: not
 * where a word embedding has one, and the head is tied to it. False with *error. */
ZF_API bool zf_adapter_can_merge(zf_graph *g, const zf_exchange *x, zf_error *error);

/* The two files of a program's adapter, in memory. */
typedef struct zf_adapter_files {
    zf_text config, model;
} zf_adapter_files;

typedef struct zf_adapter_about {
    const zf_lora_desc *desc;
    const char *base; /* the folder of the base; NULL: not known */
    const zf_exchange *exchange; /* how the model's files have parameters; NULL: as the graph */
    const char *task;            /* PEFT's task_type: "CAUSAL_LM", "SEQ_CLS"; NULL: none */
} zf_adapter_about;

/* Whether the files can hold the adapter of a graph: what it keeps is of modules, none of which has
 * a product as well. False with *error. */
ZF_API bool zf_adapter_can_write(zf_graph *g, zf_error *error);

/* All ranks must call it. PEFT keeps whole modules: parameters of the base are written as well
 * where others of their module are kept. False with *error. To be freed all the same. */
ZF_API bool zf_adapter_write(zf_adapter_files *files, zf_program *program, zf_graph *g,
                             const zf_adapter_about *about, zf_error *error);
ZF_API void zf_adapter_files_free(zf_adapter_files *files);
