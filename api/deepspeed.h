/* api/deepspeed.h - DeepSpeed's configuration file, read into a zf_training.
 *
 *     zf_training t = {.loss = loss};
 *     zf_deepspeed ds = {.world = 4};
 *     if (zf_deepspeed_load("ds_config.json", &t, &ds, &error)) fprintf(stderr, "%s\n", error.text);
 *     zf_deepspeed_explain(&ds, stdout);
 *     zf_schedule schedule = zf_deepspeed_schedule(&ds.run);
 *     ... ds.run.batch, zf_passes(g, &t) ...
 *     zf_deepspeed_free(&ds);
 *
 * Every key of DeepSpeed has a row in one table, which says what becomes of it: it sets an option,
 * it is always so here, it is refused, or DeepSpeed ignores it too. docs/deepspeed.md has the
 * table. */

/* Where the value of a setting is from. */
typedef enum zf_deepspeed_origin {
    ZF_DEEPSPEED_FILE,    /* the file has it */
    ZF_DEEPSPEED_OPTION,  /* an option that was given; the file has "auto", or lacks the key */
    ZF_DEEPSPEED_DEFAULT, /* DeepSpeed's default, where it differs from that of zf_training */
    ZF_DEEPSPEED_NOTED,   /* the file has it, and it sets nothing: `words` says why */
    ZF_DEEPSPEED_UNKNOWN  /* no key of DeepSpeed (`loose`) */
} zf_deepspeed_origin;

typedef struct zf_deepspeed_setting {
    char key[96];    /* its path in the file: "zero_optimization.stage" */
    char option[48]; /* that it sets: "zero.stage"; "": none */
    char value[72];  /* of the option, or as the file has it */
    zf_deepspeed_origin origin;
    int64_t line;      /* in the file; 0: it is not there */
    bool warns;        /* a user should read `words` */
    const char *words; /* "" or one sentence */
} zf_deepspeed_setting;

/* What a file says of a run in addition to its zf_training. A 0 was not said. */
typedef struct zf_deepspeed_run {
    int64_t batch, micro_batch; /* examples of a step of all ranks; of a micro-batch of one rank */
    double lr, start_lr, end_lr; /* zf_schedule: peak, start, end */
    int64_t schedule; /* a zf_schedule_kind */
    int64_t warmup, schedule_steps, warmup_form, lr_every, lr_fall; /* warmup_form: 1 logarithmic */
    double lr_rate;
    bool lr_stairs;
    int64_t ranks_per_node, mics; /* of zero.hpz; ranks of a group that shards */
    const char *offload_dir;      /* nvme_path */
} zf_deepspeed_run;

typedef struct zf_deepspeed {
    /* Set by the caller before reading; {0} is valid. */
    int64_t world; /* ranks; 0: 1 */
    /* Of DeepSpeed, "0.18.4": the defaults of that version, and no warning that they have changed.
     * NULL: those of the newest that the table knows */
    const char *version;
    bool loose; /* an unknown key is a setting that warns, not an error */
    /* Tables of the program, whose options of the same names as members of zf_deepspeed_run are
     * set, too. An option that is given is what "auto" takes, and must not differ from the file */
    const zf_options *options;
    int32_t option_count;
    zf_allocator allocator; /* {0}: the C library's */

    /* Read. To be freed by zf_deepspeed_free. */
    char file[96]; /* its name; "" of a text */
    zf_deepspeed_run run;
    zf_deepspeed_setting *settings; /* in the order of the table */
    int32_t count;
    zf_json *json; /* has the texts of options */
} zf_deepspeed;

/* Reads a configuration, terminated: JSON with what DeepSpeed's reader (Hjson) allows in addition,
 * comments by #, // and between slashes with *, keys without quotes, commas that are missing at the
 * end of a line or are one too many; texts are in quotes. Sets options of *training and
 * resolved->run. ZF_ERR_FORMAT with *error, which names line and column: a key that does not exist,
 * with the nearest and its place; a value of a wrong type or range; what is refused, with what to
 * use instead; an option that was given with another value; batch sizes that do not multiply. On an
 * error *training is undefined, and there is nothing to free. */
ZF_API zf_status zf_deepspeed_read(const char *json, zf_training *training, zf_deepspeed *resolved,
                                   zf_error *error);
/* The same of a file; messages name it. */
ZF_API zf_status zf_deepspeed_load(const char *path, zf_training *training, zf_deepspeed *resolved,
                                   zf_error *error);
ZF_API void zf_deepspeed_free(zf_deepspeed *resolved);

/* The schedule of a run; of one without a scheduler, a constant rate. */
ZF_API zf_schedule zf_deepspeed_schedule(const zf_deepspeed_run *run);

/* Prints each setting, its value and where it is from. */
ZF_API void zf_deepspeed_explain(const zf_deepspeed *resolved, FILE *file);
/* Writes an object, {"zero_optimization.stage": 3, ...}, of what was set, as members of the object
 * that the writer has begun: two configurations that train the same have the same. */
ZF_API void zf_deepspeed_put_json(const zf_deepspeed *resolved, zf_json_writer *writer);
/* Prints the table: key, type, default, version that brought it, what becomes of it. */
ZF_API void zf_deepspeed_keys(FILE *file);
