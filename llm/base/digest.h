/* Digests of files and of data in memory, for noticing differences. They do not protect against
 * deliberate collisions. */
#ifndef DIGEST_H
#define DIGEST_H

#include "../../zeroflow.h"

#define DIGEST_START UINT64_C(0xcbf29ce484222325)

/* Continues from `digest`; DIGEST_START: nothing so far. Equal bytes give equal digests, in calls
 * of any size. */
uint64_t digest_bytes(uint64_t digest, const void *data, size_t bytes);

/* The digest of a file's contents. Of a directory: of its manifest.json, which has checksums of all
 * files of a checkpoint; without one, of its .json and .safetensors files. False with *error. */
bool digest_path(const char *path, uint64_t *digest, zf_error *error);

#endif
