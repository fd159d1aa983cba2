#include "settings.h"
#include "../../../llm/folder/adapter.h"
#include "../../../llm/text/chat.h"
#include "../../../llm/folder/folder.h"
#include "sample.h"
#include "../run/training.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

settings settings_defaults(void)
{
    return (settings){.seq = 128,
                      .batch = 16,
                      .steps = 1000,
                      .optimizer = ZF_ADAMW,
                      .schedule = ZF_LINEAR,
                      .warmup = -1,
                      .seed = 1,
                      .threads = 1,
                      .eval_batches = 16,
                      .keep = 2,
                      .compare_every = 1000,
                      .micro_batches = 1,
                      .prefetch = -1,
                      .delay_update = -1,
                      .lr = 1e-3,
                      .weight_decay = 0.01,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .momentum = 0.9,
                      .quantized_block = 256,
                      .loco_beta = 0.8,
                      .loco_reset = 1024,
                      .loco_bits = 32,
                      .min_coeff = 0.01,
                      .max_coeff = 10,
                      .first_rate = 1,
                      .clip = 1,
                      .dropout = -1,
                      .deadline = 60};
}

void settings_rows(option_row rows[SETTINGS_ROWS], const sample_model *sample, const option_row *own,
                   settings *o)
{
    enum {
        TEXT = OPTION_TEXT,
        COUNT = OPTION_COUNT,
        NUMBER = OPTION_NUMBER,
        FLAG = OPTION_FLAG,
        CHOICE = OPTION_CHOICE,
        NOTED = OPTION_NOTED,
        OWN = OPTION_OWN,
        NAMES = OPTION_NAMES
    };
    const option_row text[] = {
        {"model", TEXT | OWN, "NAME|DIR|FILE", &o->model, 0, 0, sample->models},
        {"corpus", TEXT | NAMES, "FILE", &o->corpus, 0, 0,
         "one sentence a line, a blank line between documents"},
        {"vocab", TEXT | NAMES, "FILE|DIR", &o->vocab, 0, 0,
         "a vocab.txt, as 'bert vocab' makes it, a tokenizer.json, or a folder with one; else "
         "that\n"
         "                                    of --load, --init or --model"},
        TOKENIZING_ROWS(&o->words),
        {"seq", COUNT | NOTED, "T", &o->seq, (double)sample->objective->least_sequence, 65536,
         "tokens of an example"},
        {NULL, FLAG, NULL, NULL, 0, 0, NULL},
    };
    const option_row run[] = {
        {"batch", COUNT | NOTED, "B", &o->batch, 1, 1 << 20, "examples of a step"},
        {"steps", COUNT, "N", &o->steps, 0, 1e12, "steps in all; 0 evaluates the loss, and saves"},
        {"seconds", NUMBER, "S", &o->seconds, 0, 1e9,
         "measure a step and run as many as fit, at least 200; 0: all --steps"},
        {"optimizer", CHOICE | NOTED, training_optimizers(), &o->optimizer, 0, 0, "the update"},
        {"lr", NUMBER | NOTED, "X", &o->lr, 0, 1e3, "highest learning rate"},
        {"end-lr", NUMBER | NOTED, "X", &o->end_lr, 0, 1e3,
         "learning rate at the end of the schedule"},
        {"schedule", CHOICE | NOTED, "constant|linear|cosine|polynomial|exponential|one_cycle",
         &o->schedule, 0, 0, "learning rate after the warm-up"},
        {"warmup", COUNT | NOTED, "N", &o->warmup, -1, 1e12,
         "steps of warm-up; -1: a tenth of all"},
        {"first-rate", COUNT | NOTED, "STEP", &o->first_rate, 0, 1,
         "step of the schedule for the first step: 1, or 0 as in transformers, where a warm-up\n"
         "                                    begins with rate 0"},
        {"beta1", NUMBER | NOTED, "X", &o->beta1, 1e-9, 0.9999999, "of AdamW, LAMB and Lion"},
        {"beta2", NUMBER | NOTED, "X", &o->beta2, 1e-9, 0.9999999,
         "of AdamW, LAMB and Lion (its paper: 0.99)"},
        {"eps", NUMBER | NOTED, "X", &o->eps, 0, 1, "of AdamW and LAMB; 0: 1e-8 and 1e-6"},
        {"momentum", NUMBER | NOTED, "X", &o->momentum, 0, 0.9999999, "of SGD"},
        {"min-ratio", NUMBER | NOTED, "X", &o->min_coeff, 1e-9, 1e9,
         "minimum of LAMB's trust ratio"},
        {"max-ratio", NUMBER | NOTED, "X", &o->max_coeff, 1e-9, 1e9,
         "maximum of LAMB's trust ratio"},
        {"freeze-step", COUNT | NOTED, "N", &o->freeze_step, 0, 1e12,
         "of onebit_adam and onebit_lamb: the last step of the warm-up; of zero_one_adam: the last\n"
         "                                    that may refresh the variance"},
        {"var-update-scaler", COUNT | NOTED, "N", &o->var_update_scaler, 0, 1e12,
         "of zero_one_adam: refreshes until their distance doubles; 0: 16"},
        {"local-step-scaler", COUNT | NOTED, "N", &o->local_step_scaler, 0, 1e12,
         "of zero_one_adam: steps until the interval of averages doubles; 0: 32768"},
        {"local-step-clipper", COUNT | NOTED, "N", &o->local_step_clipper, 0, 1e12,
         "of zero_one_adam: the longest interval; 0: 16; 1: no local steps, as --zero 1 and 2 need"},
        {"weight-decay", NUMBER | NOTED, "X", &o->weight_decay, 0, 1e3,
         "not on biases and LayerNorm"},
        {"clip", NUMBER | NOTED, "X", &o->clip, 0, INFINITY, "maximum gradient norm; 0: none"},
        {"dropout", NUMBER | NOTED, "P", &o->dropout, -1, 0.999,
         "probability; -1: that of the model's configuration"},
        {"seed", COUNT | NOTED, "K", &o->seed, 0, 9e15, "of parameters, dropout and examples"},
        {"device", CHOICE, DEVICE_KINDS, &o->device.kind, 0, 0, "that computes"},
        {"tuning", TEXT | OWN, "FILE", &o->device.tuning, 0, 0,
         "CUDA: measure the fastest algorithms for matrix products, and keep them in this file"},
        {"spare-processors", COUNT, "N", &o->device.spare, 0, 1024,
         "CUDA: multiprocessors that matrix products leave free for communication"},
        {"threads", COUNT | OWN, "N", &o->threads, 1, 1024, "worker threads of the process"},
        {"ranks", COUNT | OWN, "N", &o->ranks, 0, 1024,
         "ranks, as threads; 0: the processes that a launcher started, else 1"},
        {"rendezvous", TEXT | OWN, "HOST:PORT|FILE", &o->rendezvous, 0, 0,
         "where processes with GPUs find one another; else MASTER_ADDR and MASTER_PORT"},
        {"zero", COUNT, "STAGE", &o->zero, 0, 3,
         "sharded over the ranks: 1 optimizer states, 2 and gradients, 3 and parameters"},
        {"nodes", COUNT, "M", &o->nodes, 0, 1024,
         "in which the ranks are, as many in each; sums are made inside nodes first.\n"
         "                                    0: by --ranks-per-node, or the launcher, else 1"},
        {"ranks-per-node", COUNT, "Z", &o->ranks_per_node, 0, 1024,
         "the same, by the ranks in each"},
        {"zero-hpz", FLAG, NULL, &o->hpz, 0, 0,
         "--zero 3: the ranks of a node together keep parameters for the backward pass"},
        {"zero-quantized-weights", FLAG | NOTED, NULL, &o->quantized_weights, 0, 0,
         "--zero 3: ranks send parameters as integers of 8 bits (ZeRO++), in evaluations too"},
        {"zero-quantized-gradients", FLAG | NOTED, NULL, &o->quantized_gradients, 0, 0,
         "--zero 1 to 3: ranks send gradients as integers of 4 bits"},
        {"zero-loco", FLAG | NOTED, NULL, &o->loco, 0, 0,
         "--zero-quantized-gradients with error feedback (LoCo): what a rank rounds off a\n"
         "                                    gradient it adds to its next one"},
        {"loco-beta", NUMBER | NOTED, "X", &o->loco_beta, 0, 0.9999999,
         "of the moving average of these errors: the share of the old ones"},
        {"loco-reset", COUNT | NOTED, "N", &o->loco_reset, -1, 1e15,
         "steps after which they are 0 again; -1: never"},
        {"loco-bits", COUNT | NOTED, "N", &o->loco_bits, 8, 32,
         "of an error: 32, or 8 with a scale for each block"},
        {"quantized-block", COUNT | NOTED, "N", &o->quantized_block, 64, 2048,
         "of these integers that share a scale, a multiple of 64"},
        {"mics", COUNT, "Z", &o->mics, 0, 1024,
         "shard over the Z ranks of a node alone; each node has all shards"},
        {"micro-batches", COUNT, "N", &o->micro_batches, 1, 1 << 20,
         "of a step on each rank; the batch is split into ranks times N parts"},
        {"bucket", COUNT, "BYTES", &o->bucket, 0, 1e12,
         "maximum bytes of parameters in one bucket; 0: those of a layer"},
        {"tile", TEXT, "BYTES", &o->tile, 0, 0,
         "linear layers whose weights take more run in pieces, so that --zero 3 and --offload\n"
         "                                    parameters bring one piece at a time; bits differ"},
        {"prefetch", COUNT, "BYTES", &o->prefetch, -1, 1e15,
         "maximum bytes of parameters gathered, and of states read, ahead of their use; -1: no "
         "overlap"},
        {"cost", TEXT, "FILE|measure", &o->cost, 0, 0,
         "rates by which overlap is planned; measure: those of this machine"},
        {"save-cost", TEXT | OWN, "FILE", &o->save_cost, 0, 0, "write the rates of --cost measure"},
        {"precision", CHOICE | NOTED, "f32|bf16|f16", &o->precision, 0, 0,
         "of the computation; bf16 and f16 over f32 master weights, f16 with a loss scale"},
        {"no-fuse", TEXT, "NAME,...", &o->no_fuse, 0, 0,
         "rewrites of zf_fuse to leave out, or all; without this option one GPU leaves out\n"
         "                                    invert while its memory allows"},
        {"recompute", TEXT, "off|layers|BYTES", &o->recompute, 0, 0,
         "in the backward pass: inside each layer, or as much as a peak of BYTES requires"},
        {"memory", TEXT, "BYTES", &o->memory, 0, 0,
         "fit a step into these: what is recomputed, and with --offload-dir what goes to the disk,\n"
         "                                    is chosen by the estimated time (--cost); of --device cuda\n"
         "                                    the device's: what leaves it goes to host memory as well"},
        {"offload", TEXT, "off|KIND=SPACE,...", &o->offload, 0, 0,
         "optimizer (its states, which the CPU updates), parameters, gradients or activations lie in\n"
         "                                    SPACE, host or disk; piece=BYTES: of a copy of states\n"
         "                                    while they are updated (of a disk 16M)"},
        {"offload-dir", TEXT | OWN, "DIR", &o->offload_dir, 0, 0,
         "an existing folder for the files of --offload"},
        {"delay-update", COUNT | NOTED, "STEP", &o->delay_update, -1, 1e12,
         "after this step, update by the gradients of the step before, which lets updates overlap\n"
         "                                    (ZeRO-Offload) and changes what is learned; -1: never"},
        {"deadline", NUMBER | OWN, "SECONDS", &o->deadline, 0.001, 1e6,
         "maximum time that ranks wait for one another"},
        {"init", TEXT | NAMES, "DIR|FILE", &o->init, 0, 0,
         "start from the weights of a checkpoint or a Hugging Face folder (not with --load)"},
        {"lora", TEXT, "r=N,alpha=X,...", &o->lora, 0, 0,
         "freeze the weights of --init, and train products of rank N beside those of targets=NAME,\n"
         "                                    NAME,... (targets=all-linear); dropout=P, rslora. --save then\n"
         "                                    is an adapter for PEFT as well"},
        {"save", TEXT | NAMES, "DIR", &o->save, 0, 0,
         "write a checkpoint at the end, and when interrupted"},
        {"save-every", COUNT, "N", &o->save_every, 0, 1e12, "and every N steps; 0: not"},
        {"keep", COUNT | OWN, "N", &o->keep, 1, 1000,
         "checkpoints that stay: DIR, DIR.previous-1, ..."},
        {"compare-every", COUNT, "N", &o->compare_every, 0, 1e12,
         "ranks compare their parameters every N steps, and at saves; 0: at saves only"},
        {"overwrite", FLAG | OWN, NULL, &o->overwrite, 0, 0,
         "--save may replace another run's checkpoint"},
        {"load", TEXT | NAMES, "DIR", &o->load, 0, 0, "resume from a checkpoint"},
        {"eval-batches", COUNT, "N", &o->eval_batches, 0, 1e6,
         "held-out batches that are evaluated at the end"},
        {"eval-every", COUNT, "N", &o->eval_every, 0, 1e12,
         "and every N steps; the checkpoint with the lowest loss stays in DIR.best (--save)"},
        {"log", TEXT | OWN, "FILE", &o->log, 0, 0, "CSV of the steps"},
        {"svg", TEXT | OWN, "FILE", &o->svg, 0, 0, "the loss curve"},
        {"report", TEXT | OWN, "FILE", &o->report, 0, 0, "JSON: memory, speed, losses"},
        {"batch-file", TEXT | NAMES, "FILE", &o->batch_file, 0, 0,
         "train on these batches (safetensors) instead"},
        {"dump", TEXT | NAMES, "FILE", &o->dump, 0, 0,
         "parameters after the last step, in Hugging Face's format"},
        {"dump-grads", TEXT | NAMES, "FILE", &o->dump_grads, 0, 0,
         "gradients of the last step, before clipping"},
        {"quiet", FLAG | OWN, NULL, &o->quiet, 0, 0, "no progress line"},
        {NULL, FLAG, NULL, NULL, 0, 0, NULL},
    };
    const option_row tuned[] = {
        {"data", TEXT | NAMES, "FILE", &o->data, 0, 0,
         "train on examples instead, JSON Lines of prompt and response, or of messages; labels\n"
         "                                    are what the assistant has written"},
        {"tokenizer", TEXT | NAMES, "DIR", &o->tokenizer, 0, 0,
         "of --data: a folder with tokenizer.json and tokenizer_config.json, or vocab.txt; else that of\n"
         "                                    --load, --init or --model"},
        {"chat", TEXT, "STYLE", &o->chat, 0, 0,
         "how messages are written: " CHAT_STYLES_1 "\n"
         "                                    " CHAT_STYLES_2 ";\n"
         "                                    none: prompts and responses as they are; else as the\n"
         "                                    tokenizer's chat_template says"},
        {"date", TEXT, "TEXT", &o->date, 0, 0,
         "today, in styles that show it; else \"" CHAT_DATE "\""},
        {"alone", FLAG | NOTED, NULL, &o->alone, 0, 0,
         "each example of --data has a row of its own"},
        {"weights", CHOICE | NOTED, CONFIG_WEIGHTS, &o->weights, 0, 0,
         "int8, int4: with --lora, the frozen weights of products, rounded in blocks of 64 (QLoRA)"},
        {NULL, FLAG, NULL, NULL, 0, 0, NULL},
    };
    const option_row *const all[] = {text, sample->objective->open_data ? tuned : NULL, own, run};
    int count = 0;
    for (int k = 0; k < 4; k++)
        for (const option_row *row = all[k]; row && row->name && count < SETTINGS_ROWS - 1; row++)
            rows[count++] = *row;
    rows[count] = (option_row){.name = NULL};
}

void settings_look_into_folders(settings *o, const char *otherwise)
{
    /* A checkpoint of an adapter does not have the weights of its model. */
    const char *const folders[] = {o->lora ? o->init : o->load, o->lora ? o->model : o->init,
                                   o->lora ? o->load : o->model};
    for (int i = 0; i < 3; i++) {
        if (!folders[i] || !folder_is(folders[i])) continue;
        if (!o->model) o->model = folders[i];
        if (!o->vocab && o->corpus && folder_has_vocab(folders[i])) o->vocab = folders[i];
        if (!o->tokenizer && o->data && folder_has_vocab(folders[i])) o->tokenizer = folders[i];
    }
    if (!o->model) o->model = otherwise;
    if (o->tunes && !o->init && (!o->load || o->lora) && folder_has_weights(o->model))
        o->init = o->model;
}

bool settings_bytes(const char *text, int64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    char *end;
    long long value;
    int shift = 0;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (*end && (suffix = strchr(suffixes, *end))) shift = 10 * (int)(suffix - suffixes + 1), end++;
    if (end == text || *end || errno || value < 1 || value > INT64_MAX >> shift) return false;
    *bytes = value << shift;
    return true;
}

bool settings_recompute(const char *text, zf_recompute_mode *mode, int64_t *memory)
{
    *mode = ZF_RECOMPUTE_OFF, *memory = 0;
    if (!text || !strcmp(text, "off")) return true;
    *mode = ZF_RECOMPUTE_LAYERS;
    if (!strcmp(text, "layers")) return true;
    *mode = ZF_RECOMPUTE_AS_NEEDED;
    return settings_bytes(text, memory);
}

bool settings_offload(const char *text, zf_offload_desc *offload)
{
    const struct {
        const char *name;
        zf_space *space;
    } kinds[] = {{"optimizer=", &offload->optimizer},
                 {"parameters=", &offload->parameters},
                 {"gradients=", &offload->gradients},
                 {"activations=", &offload->activations}};
    const int count = (int)(sizeof kinds / sizeof *kinds);
    *offload = (zf_offload_desc){.optimizer = ZF_DEVICE};
    if (!text || !strcmp(text, "off")) return true;
    for (;; text++) {
        const char *const comma = strchr(text, ',');
        const size_t length = comma ? (size_t)(comma - text) : strlen(text);
        int k = 0;
        zf_space space = ZF_HOST;
        if (!strncmp(text, "piece=", 6)) {
            char number[32];
            int64_t bytes;
            snprintf(number, sizeof number, "%.*s", (int)(length - 6), text + 6);
            if (offload->piece_bytes || length > 6 + sizeof number ||
                !settings_bytes(number, &bytes))
                return false;
            offload->piece_bytes = (size_t)bytes;
            if (!comma) return true;
            text = comma;
            continue;
        }
        while (k < count && strncmp(text, kinds[k].name, strlen(kinds[k].name))) k++;
        if (k == count || *kinds[k].space) return false;
        for (; space < ZF_SPACES; space++) {
            const char *name = zf_space_name(space);
            if (strlen(kinds[k].name) + strlen(name) == length &&
                !strncmp(text + strlen(kinds[k].name), name, strlen(name)))
                break;
        }
        if (space == ZF_SPACES) return false;
        *kinds[k].space = space;
        if (!comma) return true;
        text = comma;
    }
}

bool settings_offloads(const zf_offload_desc *d, zf_space space)
{
    return d->optimizer == space || d->parameters == space || d->gradients == space ||
           d->activations == space;
}

bool settings_measures(const settings *o) { return o->cost && !strcmp(o->cost, "measure"); }

const char *settings_wrong(const settings *o)
{
    zf_recompute_mode mode;
    zf_offload_desc offload;
    adapter_options lora;
    const bool onebit = o->optimizer == ZF_ONEBIT_ADAM || o->optimizer == ZF_ONEBIT_LAMB ||
                        o->optimizer == ZF_ZERO_ONE_ADAM;
    int64_t memory;
    if (!o->corpus && !o->batch_file && !o->data)
        return "a text to train on is needed: --corpus FILE, or batches: --batch-file FILE";
    if (o->corpus && o->batch_file) return "--corpus and --batch-file exclude each other";
    if (o->data && (o->corpus || o->batch_file))
        return "--data is instead of --corpus and of --batch-file";
    if (o->data && !o->tokenizer)
        return "--data needs a tokenizer: --tokenizer DIR, a folder with a tokenizer.json";
    if ((o->tokenizer || o->chat || o->date || o->alone) && !o->data)
        return "--tokenizer, --chat, --date and --alone are for --data";
    if (o->corpus && !o->vocab)
        return "--corpus needs a vocabulary: --vocab FILE, which 'bert vocab' makes";
    if (o->seconds > 0 && (o->batch_file || o->data))
        return "--seconds measures steps on --corpus; with --batch-file or --data, say --steps";
    if (!adapter_options_read(o->lora, &lora)) return ADAPTER_LORA;
    if (o->lora && !o->init)
        return "--lora adapts the weights of a folder: --init DIR, or of finetune, --model DIR";
    if (o->weights && !o->lora)
        return "--weights int8 and int4 are for weights that are frozen: with --lora; without it all "
               "are trained, and must be floats";
    if (o->min_coeff > o->max_coeff) return "--min-ratio must not be above --max-ratio";
    if (o->eval_every && (o->batch_file || !o->eval_batches))
        return "--eval-every evaluates what --corpus or --data holds out, in --eval-batches";
    if ((o->optimizer == ZF_ONEBIT_ADAM || o->optimizer == ZF_ONEBIT_LAMB) && !o->freeze_step)
        return "--optimizer onebit_adam and onebit_lamb need --freeze-step N, the last step of the "
               "warm-up: 15 to 25% of all";
    if (o->optimizer == ZF_ZERO_ONE_ADAM && !o->freeze_step)
        return "--optimizer zero_one_adam needs --freeze-step N, the last step that may refresh the "
               "variance";
    if (o->freeze_step && !onebit)
        return "--freeze-step is for --optimizer onebit_adam, onebit_lamb or zero_one_adam";
    if ((o->var_update_scaler || o->local_step_scaler || o->local_step_clipper) &&
        o->optimizer != ZF_ZERO_ONE_ADAM)
        return "--var-update-scaler, --local-step-scaler and --local-step-clipper are for --optimizer "
               "zero_one_adam";
    if (onebit && o->zero == 3)
        return "--optimizer onebit_adam, onebit_lamb and zero_one_adam are for --zero 0, 1 and 2: each "
               "rank compresses the whole gradient";
    if (o->optimizer == ZF_ZERO_ONE_ADAM && o->zero && o->local_step_clipper != 1)
        return "--optimizer zero_one_adam makes local steps with all of what --zero 1 and 2 shard: give "
               "--local-step-clipper 1, which makes none, or --zero 0";
    if (o->delay_update >= 0 && onebit)
        return "--delay-update is not for onebit_adam, onebit_lamb and zero_one_adam, whose steps "
               "differ";
    if (o->save_every && !o->save)
        return "--save-every needs a place for its checkpoints: --save DIR";
    if (o->hpz && o->zero != 3)
        return "--zero-hpz is for --zero 3, where parameters are gathered";
    if (o->quantized_weights && o->zero != 3)
        return "--zero-quantized-weights is for --zero 3, where parameters are gathered";
    if (o->quantized_gradients && !o->zero)
        return "--zero-quantized-gradients is for --zero 1, 2 or 3, where each rank sums its shard";
    if (o->loco && !o->quantized_gradients)
        return "--zero-loco keeps the errors of --zero-quantized-gradients: give that too";
    if (o->loco_bits != 8 && o->loco_bits != 32) return "--loco-bits must be 8 or 32";
    if (o->loco && o->tile) return "--zero-loco and --tile exclude each other";
    if (o->quantized_block % 64) return "--quantized-block must be a multiple of 64";
    if (o->mics && !o->zero) return "--mics is for --zero 1, 2 or 3; stage 0 shards nothing";
    if (o->mics && o->hpz) return "--mics gathers inside nodes already; leave out --zero-hpz";
    if (o->mics && o->ranks_per_node && o->mics != o->ranks_per_node)
        return "--mics Z shards over the ranks of a node: --ranks-per-node must be Z as well";
    if (o->rendezvous && o->device.kind != DEVICE_CUDA)
        return "--rendezvous is for ranks with GPUs (--device cuda); those on CPUs meet by MPI";
    if (o->cost && o->prefetch < 0)
        return "--cost decides when --prefetch gathers: --prefetch BYTES";
    if (!settings_recompute(o->recompute, &mode, &memory))
        return "--recompute is off, layers or a number of bytes, perhaps with K, M, G or T behind";
    if (o->tile && !settings_bytes(o->tile, &memory))
        return "--tile is a number of bytes, perhaps with K, M, G or T behind";
    if (!settings_offload(o->offload, &offload))
        return SETTINGS_OFFLOAD;
    if (o->memory && !settings_bytes(o->memory, &memory))
        return "--memory is a number of bytes, perhaps with K, M, G or T behind";
    if (o->memory ? settings_offloads(&offload, ZF_DISK) && !o->offload_dir
                  : settings_offloads(&offload, ZF_DISK) != (o->offload_dir != NULL))
        return "--offload to disk and --offload-dir DIR, for its files, go together";
    if (offload.parameters && (o->zero == 1 || o->zero == 2))
        return "--offload parameters is for --zero 3, where each rank has a shard, or --zero 0";
    if (o->save_cost && !settings_measures(o))
        return "--save-cost saves what --cost measure measures";
    if (o->dump_grads && o->precision == ZF_F16)
        return "--dump-grads writes gradients without a loss scale, so --precision f32 or bf16";
    if (o->dump_grads && !o->steps) return "--dump-grads needs a step, and --steps 0 makes none";
    if (o->corpus && !o->steps && !o->eval_batches && !o->save)
        return "--steps 0 only evaluates, and --eval-batches 0 leaves nothing to evaluate";
    return NULL;
}
