/* The checkpoints of a run: where --save puts them, and how many stay.
 *
 *     DIR               the newest
 *     DIR.previous-1    the one before it, down to --keep - 1
 *     DIR.zf-lock       locked by the process that saves there, while it runs
 *     DIR.zf-kept       second names of DIR's files while it is replaced, to become previous-1
 *     DIR.zf-gone       the one that is removed
 *
 * Each is whole: it can be loaded, moved or removed by itself. They share no file with the next.
 */
#ifndef SAVING_H
#define SAVING_H

#include "../../zeroflow.h"

typedef struct saving_desc {
    const char *path;
    const char *load; /* the checkpoint that the run goes on from, or NULL */
    bool overwrite;   /* another run's checkpoint at `path` is replaced */
    bool follows;     /* rank 0 is another process, which looks after the place */
    int64_t keep;     /* how many stay; 0: 1 */
} saving_desc;

typedef struct saving {
    char path[1024]; /* "": not opened */
    int64_t keep;
    int lock; /* -1: none */
} saving;

/* Finds out whether checkpoints can be saved there, and locks the place, before the first step. False with *error, and then there is nothing to close, where
 *   - no directory can be made there, or what is there holds other things than a checkpoint;
 *   - it holds a checkpoint that neither `load` (itself or one of those before it) nor `overwrite`
 *     speaks of;
 *   - another process saves there. */
bool saving_open(saving *s, const saving_desc *desc, zf_error *error);
void saving_close(saving *s); /* what is all zero was not opened */

/* Saves; all ranks call it. `leads`: this is rank 0, which moves the earlier ones back. Parameters
 * and states that are not finite are refused (ZF_ERR_NAN). False with *error, and then all is as it
 * was. */
bool saving_save(const saving *s, bool leads, zf_program *program, const zf_save_desc *desc,
                 zf_error *error);

#endif
