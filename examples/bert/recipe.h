/* Recipes: how a known run was trained, as options for a batch of any size. */
#ifndef BERT_RECIPE_H
#define BERT_RECIPE_H

#include "../frame/model/settings.h"
#include "masked.h"

/* The phases of masked_options.recipe become those of o, and *list the defaults of other
 * options. */
bool recipe_choose(void *masked, settings *o, const settings_default **list, zf_error *error);

#endif
