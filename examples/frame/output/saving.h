/* The checkpoints of a run: where --save writes them, and how many are kept.
 *
 *     DIR               the newest
 *     DIR.previous-1    the one before it, down to --keep - 1
 *     DIR.zf-lock       locked by the process that saves there, while it runs
 *     DIR.zf-kept       hard links to DIR's files while it is replaced; becomes previous-1
 *     DIR.zf-gone       the one that is being removed
 *
 * Each is complete: it can be loaded, moved or removed by itself. */
#ifndef SAVING_H
#define SAVING_H

#include "../../../zeroflow.h"

typedef struct saving_desc {
    const char *path;
    const char *load; /* the checkpoint from which the run is resumed, or NULL */
    bool overwrite;   /* another run's checkpoint at `path` is replaced */
    bool follows;     /* rank 0 is another process, which manages the place */
    int64_t keep;     /* how many are kept; 0: 1 */
} saving_desc;

typedef struct saving {
    char path[1024]; /* "": not opened */
    int64_t keep;
    int lock; /* -1: none */
} saving;

/* Checks, before the first step, that checkpoints can be saved there, and locks the place. False
 * with *error, and then there is nothing to close, where
 *
 *   - no directory can be made there, or the existing one holds something else than a checkpoint;
 *   - it holds a checkpoint that is neither `load` or one before it, nor to be overwritten;
 *   - another process saves there. */
bool saving_open(saving *s, const saving_desc *desc, zf_error *error);
void saving_close(saving *s); /* all zero: it was not opened */
/* The checkpoint `load` (NULL: none) is the one there, or one before it. */
bool saving_resumes(const saving *s, const char *load);

/* Saves; all ranks must call it. `leads`: this is rank 0, which renames earlier ones. Non-finite
 * parameters and states are refused (ZF_ERR_NAN). False with *error, and then nothing has
 * changed. */
bool saving_save(const saving *s, bool leads, zf_program *program, const zf_save_desc *desc,
                 zf_error *error);

#endif
