#include "settings.h"
#include "folder.h"

#include <math.h>
#include <string.h>

/* The row of that name, or NULL. */
static const option_row *find(const option_row *rows, const char *name, size_t length)
{
    for (; rows->name; rows++)
        if (strlen(rows->name) == length && !memcmp(rows->name, name, length)) return rows;
    return NULL;
}

void settings_rows(option_row rows[SETTINGS_ROWS], const char *names, const option_row *own,
                   settings *o)
{
    const option_row common[] = {
        {"corpus", OPTION_TEXT, "FILE", &o->corpus, 0, 0,
         "one sentence a line, a blank line between documents"},
        {"vocab", OPTION_TEXT, "FILE|DIR", &o->vocab, 0, 0,
         "a vocab.txt, as 'bert vocab' makes it, a tokenizer.json, or a folder with one; else "
         "that\n"
         "                                    of --load, --init or --model"},
        TOKENIZING_ROWS(&o->words),
        {"batch", OPTION_COUNT, "B", &o->batch, 1, 1 << 20, "examples of a step"},
        {"steps", OPTION_COUNT, "N", &o->steps, 0, 1e12,
         "steps in all; 0 evaluates the loss, and saves"},
        {"lr", OPTION_NUMBER, "X", &o->lr, 0, 1e3, "highest learning rate"},
        {"end-lr", OPTION_NUMBER, "X", &o->end_lr, 0, 1e3,
         "learning rate at the end of the schedule"},
        {"schedule", OPTION_CHOICE, "constant|linear|cosine|polynomial|exponential|one_cycle",
         &o->schedule, 0, 0, "learning rate after the warm-up"},
        {"warmup", OPTION_COUNT, "N", &o->warmup, -1, 1e12, "steps of warm-up; -1: a tenth of all"},
        {"first-rate", OPTION_COUNT, "STEP", &o->first_rate, 0, 1,
         "of the schedule that the first step has: 1, or 0 as transformers counts, where a "
         "warm-up\n"
         "                                    begins at 0"},
        {"weight-decay", OPTION_NUMBER, "X", &o->weight_decay, 0, 1e3,
         "not on biases and LayerNorm"},
        {"clip", OPTION_NUMBER, "X", &o->clip, 0, INFINITY, "largest gradient norm; 0: any"},
        {"dropout", OPTION_NUMBER, "P", &o->dropout, -1, 0.999, "-1: as the model says"},
        {"device", OPTION_CHOICE, DEVICE_KINDS, &o->device.kind, 0, 0, "it computes on"},
        {"tuning", OPTION_TEXT, "FILE", &o->device.tuning, 0, 0,
         "of CUDA: the fastest algorithms for products are looked for, and kept there"},
        {"no-fuse", OPTION_TEXT, "NAME,...", &o->no_fuse, 0, 0,
         "rewrites of zf_fuse that are left out, or all; without it one GPU also does without "
         "invert, while its memory allows"},
        {"init", OPTION_TEXT, "DIR|FILE", &o->init, 0, 0,
         "start from the weights of a checkpoint or of Hugging Face (not with --load)"},
        {"save", OPTION_TEXT, "DIR", &o->save, 0, 0,
         "write a checkpoint at the end, and when interrupted"},
        {"save-every", OPTION_COUNT, "N", &o->save_every, 0, 1e12, "and every N steps"},
        {"keep", OPTION_COUNT, "N", &o->keep, 1, 1000,
         "checkpoints that stay: DIR, DIR.previous-1, ..."},
        {"overwrite", OPTION_FLAG, NULL, &o->overwrite, 0, 0,
         "--save may replace another run's checkpoint"},
        {"load", OPTION_TEXT, "DIR", &o->load, 0, 0, "go on from a checkpoint"},
        {"log", OPTION_TEXT, "FILE", &o->log, 0, 0, "CSV of the steps"},
        {"report", OPTION_TEXT, "FILE", &o->report, 0, 0, "JSON: memory, speed, losses"},
        {"batch-file", OPTION_TEXT, "FILE", &o->batch_file, 0, 0,
         "train on these batches (safetensors) instead"},
        {"dump-grads", OPTION_TEXT, "FILE", &o->dump_grads, 0, 0,
         "gradients of the last step, before clipping"},
        {"quiet", OPTION_FLAG, NULL, &o->quiet, 0, 0, "no line while it runs"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    int count = 0;
    for (const char *at = names; *at && count < SETTINGS_ROWS - 1;) {
        size_t length = strcspn(at, " ");
        const option_row *row = find(own, at, length);
        if (!row) row = find(common, at, length);
        if (row) rows[count++] = *row;
        at += length;
        at += strspn(at, " ");
    }
    rows[count] = (option_row){.name = NULL};
}

void settings_look_into_folders(settings *o, const char *otherwise)
{
    const char *const folders[] = {o->load, o->init, o->model};
    for (int i = 0; i < 3; i++) {
        if (!folders[i] || !folder_is(folders[i])) continue;
        if (!o->model) o->model = folders[i];
        if (!o->vocab && o->corpus && folder_has_vocab(folders[i])) o->vocab = folders[i];
    }
    if (!o->model) o->model = otherwise;
}

const char *settings_no_text(const settings *o)
{
    if (!o->corpus && !o->batch_file)
        return "a text to train on is needed: --corpus FILE, or batches: --batch-file FILE";
    if (o->corpus && o->batch_file) return "--corpus and --batch-file exclude each other";
    if (o->corpus && !o->vocab)
        return "--corpus needs a vocabulary: --vocab FILE, which 'bert vocab' makes";
    return NULL;
}

const char *settings_nowhere_to_save(const settings *o)
{
    if (o->save_every && !o->save)
        return "--save-every needs a place for its checkpoints: --save DIR";
    return NULL;
}
