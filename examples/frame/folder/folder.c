#include "folder.h"
#include "../../../zeroflow_llm.h"
#include "../options/processors.h"

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(folder_options, kind, member, default_, range, __VA_ARGS__)

const char folder_is_missing[] = "a checkpoint is needed: --load DIR";

const zf_option folder_load_rows[] = {
    ROW(TEXT, load, 0, NULL, .unit = "DIR", .topic = "model", .traits = ZF_OPTION_READS,
        .help = "a checkpoint, or a folder of Hugging Face"),
    ROW(TEXT, load, 0, NULL, .unit = "DIR", .flag = "model", .traits = ZF_OPTION_READS,
        .help = "the same as --load"),
    ROW(FLAG, average, 0, NULL, .with = "load",
        .help = "the averages of the weights that a run with --ema has kept"),
    {.name = NULL}};

const zf_option folder_adapter_rows[] = {
    ROW(TEXT, adapter, 0, NULL, .unit = "DIR", .topic = "model", .traits = ZF_OPTION_READS,
        .help = "an adapter of its weights (--lora, PEFT)"),
    {.name = NULL}};

const zf_option folder_tokenizer_rows[] = {
    ROW(TEXT, tokenizer, 0, NULL, .unit = "DIR", .topic = "model", .traits = ZF_OPTION_READS,
        .help = "a folder with the tokenizer; without this option that of --load"),
    {.name = NULL}};

const zf_option folder_compute_rows[] = {
    ROW(CHOICE, dtype, 0, FOLDER_DTYPES, .topic = "computation",
        .help = "dtype of the computation; auto: as the checkpoint was trained, otherwise f32"),
    ROW(COUNT, threads, 0, "[0,1024]",
        .help = "worker threads; 0: one for each processor that the process may use"),
    {.name = NULL}};

const zf_option folder_weights_rows[] = {
    ROW(CHOICE, weights, 0, ZF_CONFIG_WEIGHTS, .topic = "computation",
        .help = "int8, int4: weights of products are rounded in blocks of 64; they are multiplied "
                "as floats"),
    {.name = NULL}};

int64_t folder_threads(const folder_options *o)
{
    return o->threads ? o->threads : processors_available();
}
