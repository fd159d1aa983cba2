#include "../model/causal.h"
#include "frame.h"

int causal_pretrain(const sample_model *sample, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},
                                                {"schedule", "cosine"},
                                                {"weight-decay", "0.1"},
                                                {"eps", "1e-8"},
                                                {NULL, NULL}};
    return pretrain_command(sample, &(settings_desc){.defaults = defaults}, argc, argv);
}

int causal_finetune(const sample_model *sample, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},         {"schedule", "cosine"},
                                                {"lr", "2e-5"},         {"seq", "1024"},
                                                {"weight-decay", "0"}, {NULL, NULL}};
    return pretrain_command(sample, &(settings_desc){.defaults = defaults, .tunes = true}, argc,
                            argv);
}
