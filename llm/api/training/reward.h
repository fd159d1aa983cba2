/* Rewards: a number for each answer (rollout.h), by functions of the program, by tests that are
 * built in, or by a command.
 *
 *     const char *specs[] = {"number", "-0.2*length"};
 *     zf_rewards *r = zf_rewards_open(&(zf_rewards_desc){.specs = specs, .spec_count = 2,
 *                                                        .tokens = 256}, &error);
 *     zf_rewards_score(r, &rollouts, reward, NULL, &error);
 *
 * A spec is [WEIGHT*]NAME[:ARGUMENT]; rewards with their weights are added. "the member" is one of
 * the prompt's line, by default "answer":
 *
 *     exact[:MEMBER]     1: the answer is the text or number of the member, without white space at
 *                        its ends; else 0
 *     number[:MEMBER]    1: the number after the last "####" of the answer, or without one its last
 *                        number, is that of the member, which is read alike; else 0
 *     regex:PATTERN      1: the regular expression is found in the answer; else 0. Its syntax is
 *                        that of tokenizer.json
 *     length             tokens of the answer, divided by the number that it may have
 *     overlong:N         0 up to N tokens fewer than the answer may have, then falling to -1 (DAPO,
 *                        arXiv 2503.14476, eq. 13)
 *     cmd:COMMAND        by a command (below)
 *
 * A reward that is not a number (NaN) says that the answer cannot be scored; then the sum is NaN.
 * Infinities are errors.
 *
 * A command is run by sh -c for each call. It reads a line of JSON for each answer, up to the end
 * of the input, and prints a line with a number for each, in their order, or null for an answer
 * that cannot be scored:
 *
 *     {"completion": "7", "finish": "end", "tokens": 2, "data": {"prompt": "3+4=", "answer": "7"}}
 *
 * finish: end, stop or length; data: the line of the prompt. A command that cannot be started,
 * fails, prints too few lines, too many, or another text, or takes longer than the deadline, is an
 * error that names the line of the prompt. It is killed then, with the processes of its group. Its
 * standard error is that of the program. No signal reaches the program. */

typedef struct zf_reward_item {
    const zf_prompt *prompt; /* its ids, its line, and what else that has (data) */
    const char *text;        /* the answer, terminated, never NULL */
    size_t bytes;
    /* [count] of the answer, with the token that ended it; before them in memory are those of the
     * prompt */
    const int32_t *ids;
    int64_t count;
    zf_finish finish;
    int64_t tokens; /* that an answer has, at most */
} zf_reward_item;

/* Sets the rewards out [n] of n answers, which are in the order of their prompts in the batch. NaN:
 * cannot be scored. False with *error. */
typedef bool (*zf_reward_fn)(void *user, const zf_reward_item *items, int64_t n, double *out,
                             zf_error *error);

/* A function of the program. */
typedef struct zf_reward {
    const char *name; /* for messages and logs; must outlive it */
    zf_reward_fn fn;
    void *user;
    double weight;             /* 0: 1 */
    void (*close)(void *user); /* called by zf_rewards_close; NULL: nothing */
} zf_reward;

/* A kind of reward that the program adds to the names of specs: "model". open sets fn, user and
 * close by the argument, NULL where the spec has none. False with *error. */
typedef struct zf_reward_kind {
    const char *name;
    bool (*open)(void *user, const char *argument, zf_reward *out, zf_error *error);
    void *user;
} zf_reward_kind;

typedef struct zf_rewards_desc {
    const char *const *specs; /* [spec_count] */
    int32_t spec_count;
    const zf_reward *own; /* [own_count] functions, after the specs */
    int32_t own_count;
    const zf_reward_kind *kinds; /* [kind_count] */
    int32_t kind_count;
    int64_t tokens;  /* of an answer, at most */
    double deadline; /* seconds that a command may take for a call; 0: 60 */
} zf_rewards_desc;

typedef struct zf_rewards zf_rewards;

/* NULL with *error: no reward at all, a spec that is none, or that of a kind's open. */
ZF_API zf_rewards *zf_rewards_open(const zf_rewards_desc *, zf_error *error);
ZF_API void zf_rewards_close(zf_rewards *); /* NULL: nothing */
ZF_API int32_t zf_rewards_count(const zf_rewards *);
/* The spec or the name of one of them. */
ZF_API const char *zf_rewards_name(const zf_rewards *, int32_t which);

/* Sets the rewards of answers: sum [r->count], and each [count of rewards, r->count], without
 * weights, or NULL. False with *error: of a function, or a reward that is infinite. */
ZF_API bool zf_rewards_score(zf_rewards *, const zf_rollouts *r, double *sum, double *each,
                             zf_error *error);
