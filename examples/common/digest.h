/* Digests of files and of data in memory: to notice that what should be the same is not. They are
 * no protection against somebody who wants two things to look alike. */
#ifndef DIGEST_H
#define DIGEST_H

#include "../../zeroflow.h"

#define DIGEST_START UINT64_C(0xcbf29ce484222325)

/* Goes on from what was digested before, DIGEST_START: nothing. Equal bytes give an equal digest
 * however they are divided among calls. */
uint64_t digest_bytes(uint64_t digest, const void *data, size_t bytes);

/* Of what a file holds. Of a directory: of its manifest.json, which has checksums of the rest of a
 * checkpoint; where there is none, of its .json and .safetensors files. False with *error. */
bool digest_path(const char *path, uint64_t *digest, zf_error *error);

#endif
