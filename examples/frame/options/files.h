/* The files and folders that a command reads and writes. What is written must be nothing that is
 * read, and nothing that another option writes: this is checked before any of them is opened. */
#ifndef FILES_H
#define FILES_H

#include "../../../zeroflow.h"

typedef struct named_file {
    char option[40];  /* "log"; "": an argument without an option */
    const char *path; /* must outlive the list */
    bool writes;
} named_file;

enum { NAMED_FILES = 32 };
typedef struct named_files {
    named_file at[NAMED_FILES];
    int32_t count;
} named_files;

/* Adds a file; path NULL: nothing. */
void files_add(named_files *f, const char *option, const char *path, bool writes);
/* Adds those of the options that are given, by their traits (ZF_OPTION_READS, ZF_OPTION_WRITES). */
void files_add_options(named_files *f, const zf_options *all, int32_t count);

/* Whether no writer meets another file of the list, by device and inode, or by folder and name
 * where there is no file yet. False with *error, which names both options. Also refused are a file
 * in a folder that is replaced as a whole (--save), the files by which a model is read from a
 * folder, and those of a checkpoint. A run that goes on (--load) may replace its checkpoint. */
bool files_apart(const named_files *f, zf_error *error);

#endif
