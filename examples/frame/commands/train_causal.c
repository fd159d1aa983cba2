#include "../model/causal.h"
#include "frame.h"

int causal_pretrain_with(const sample_model *sample, zf_options own, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},
                                                {"schedule", "cosine"},
                                                {"weight-decay", "0.1"},
                                                {"eps", "1e-8"},
                                                {NULL, NULL}};
    return pretrain_command(sample, &(settings_desc){.defaults = defaults, .own = own}, argc, argv);
}

int causal_finetune_with(const sample_model *sample, zf_options own, int argc, char **argv)
{
    static const settings_default defaults[] = {{"batch", "8"},         {"schedule", "cosine"},
                                                {"lr", "2e-5"},         {"seq", "1024"},
                                                {"weight-decay", "0"}, {NULL, NULL}};
    return pretrain_command(
        sample, &(settings_desc){.defaults = defaults, .own = own, .tunes = true}, argc, argv);
}

int causal_pretrain(const sample_model *sample, int argc, char **argv)
{
    return causal_pretrain_with(sample, (zf_options){.rows = NULL}, argc, argv);
}

int causal_finetune(const sample_model *sample, int argc, char **argv)
{
    return causal_finetune_with(sample, (zf_options){.rows = NULL}, argc, argv);
}
