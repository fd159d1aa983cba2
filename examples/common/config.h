/* Keys that the config.json of several models have in common, and where it lies. */
#ifndef CONFIG_H
#define CONFIG_H

#include "../../zeroflow.h"

/* The value of a key; NULL where it is absent or null, for which the default stands. */
const zf_json *config_member(const zf_json *config, const char *key);

/* Keys that change what a model computes, in ways that this program does not know, must be absent
 * or have the value for which nothing changes; else *error says so. */
void config_expect(const zf_json *config, const char *key, const char *wanted, zf_error *error);
void config_expect_bool(const zf_json *config, const char *key, bool wanted, zf_error *error);
/* Those of every model: its kind, quantised weights, heads that were removed. */
void config_expect_plain(const zf_json *config, const char *model_type, zf_error *error);

/* An activation by transformers' name for it, kept in *activation where the key is absent. */
void config_activation(const zf_json *config, const char *key, int64_t *activation,
                       zf_error *error);
/* Transformers' name of a zf_activation. */
const char *config_activation_name(int64_t activation);

/* Whether a name is a path: it has a '/' or a '.' in it, as names of sizes have not, or is a folder
 * with a config.json. */
bool config_is_path(const char *name);
/* Reads the config.json that a path names, or that the folder has which it names. */
zf_json *config_read(const char *path, zf_error *error);

#endif
