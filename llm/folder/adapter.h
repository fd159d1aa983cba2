/* Adapters of low rank (zf_lora): the option --lora, and PEFT's files.
 *
 *     DIR/adapter_config.json         peft_type LORA, r, lora_alpha, target_modules, ...
 *     DIR/adapter_model.safetensors   base_model.model.NAME.lora_A.weight and .lora_B.weight
 *
 * A checkpoint of a run with --lora has these files beside the states of its optimizer, and not the
 * base. */
#ifndef ADAPTER_H
#define ADAPTER_H

#include "../base/buffer.h"
#include "weights.h"

/* The adapter of a description, in one short text: targets as a digest; "none". */
const char *adapter_note(char text[64], const zf_training *training);

bool adapter_is_param(const char *name); /* NAME.lora_A.weight or NAME.lora_B.weight */

/* An adapter's files. */
typedef struct adapter_reader adapter_reader;

bool adapter_is_at(const char *path); /* a folder with an adapter_config.json */
/* NULL with *error: no adapter is there, it is of another kind, or has what zf_lora does not do. */
adapter_reader *adapter_open(const char *path, zf_error *error);
void adapter_close(adapter_reader *a); /* NULL: nothing */
/* Its modules by their whole names. Lives as long as the adapter. */
const zf_lora_desc *adapter_desc(const adapter_reader *a);
/* Writes its values into a program whose graph zf_lora has adapted. False with *error, which names
 * what does not fit: then it is of another model. */
bool adapter_take(adapter_reader *a, zf_program *program, zf_graph *g, zf_error *error);

/* The two files of a program's adapter, in memory. */
typedef struct adapter_files {
    buffer config, model;
} adapter_files;

typedef struct adapter_about {
    const zf_lora_desc *desc;
    const char *base; /* the folder of the base; NULL: not known */
    bool turned;      /* transformers has the weights as [in, out] (GPT-2) */
    bool causal;      /* the model predicts the next token */
} adapter_about;
/* All ranks must call it. False with *error. To be freed all the same. */
bool adapter_write(adapter_files *files, zf_program *program, zf_graph *g,
                   const adapter_about *about, zf_error *error);
void adapter_files_free(adapter_files *files);

#endif
