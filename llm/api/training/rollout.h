/* Rollouts: several sampled answers to each prompt of a file, for training on their rewards
 * (reward.h).
 *
 *     zf_prompts      the lines of the file, as ids
 *     zf_rollouts     answers to some of them, `group` to each
 *
 * An answer begins with its prompt, at position 0 of its own text, and has no padding. The token
 * that ends it is one of its ids. It depends on seed, iteration, the prompt's number in the file
 * and the sample's number, and on nothing else: not on the other prompts, their order, the number
 * of texts of the decoder, ranks or threads. The samples of a prompt that is given twice are
 * numbered on, so that they differ. */

/* A line of a file of JSON Lines: {"prompt": TEXT or a list of messages, other members}. */
typedef struct zf_prompt {
    int64_t number; /* in the file, from 0 on, without blank lines */
    int64_t line;   /* from 1 on */
    zf_json *data;  /* the object of the line */
    zf_text text;   /* the line */
    zf_ids ids;     /* of the prompt */
} zf_prompt;

typedef struct zf_prompts_desc {
    const zf_answer_desc *how; /* how prompts become ids (zf_answer_prompt), and which are known */
    int64_t longest;           /* tokens of a prompt; 0: any */
} zf_prompts_desc;

typedef struct zf_prompts {
    zf_prompt *at;
    int64_t count;
    char name[256]; /* of the file, for messages */
} zf_prompts;

/* False with *error, which names the line: no object, no prompt, an empty one, messages without a
 * chat, a token that the model does not have, more tokens than `longest`. Then there is nothing to
 * free. */
ZF_API bool zf_prompts_read(zf_prompts *, const char *path, const zf_prompts_desc *,
                            zf_error *error);
ZF_API void zf_prompts_free(zf_prompts *); /* all zero: nothing */

typedef struct zf_rollout_desc {
    /* Of two texts or more, with steps of two tokens or more for prompts, so that products round
     * alike for any number of rows. Each rank has one, which needs no other rank: its parameters
     * are whole, or held (zf_hold) */
    zf_decoder *decoder;
    const zf_answer_desc *how; /* keep_end is taken as true */
    zf_sampling sampling;      /* top_p and repetition 0: 1 */
    uint64_t seed;
    int64_t iteration; /* another one gives other answers to the same prompts */
    int64_t group;     /* answers to a prompt */
    int64_t tokens;    /* of an answer, at most */
    const zf_comm
        *comm; /* each rank writes a part of the answers, and all get all; NULL: one rank */
} zf_rollout_desc;

/* The answers to `prompts` prompts: answers[i * group + s] is sample s of the i-th. Its `given` ids
 * of the prompt come first, then those of the answer, to each of which belongs a logp: the
 * log-probability with which it was drawn. For measuring how the sampler differs from the trained
 * program; the log-probabilities of a loss come from that program. */
typedef struct zf_rollouts {
    zf_answer *answers;
    const zf_prompt **prompts; /* [count / group], in the file that was given */
    int64_t *samples;          /* [count / group]: the number of the first sample, 0 unless the
                                * prompt was there before */
    int64_t count, group;      /* count: of answers */
} zf_rollouts;

/* Writes the answers to the prompts with these numbers [count], which must be in the file. All
 * ranks must call it with the same arguments; where it fails on one, that rank must abort its comm.
 * False with *error: the errors of zf_answers_write; a decoder of one row; a communicator's. Then
 * there is nothing to free. */
ZF_API bool zf_rollouts_write(zf_rollouts *, const zf_prompts *data, const int64_t *numbers,
                              int64_t count, const zf_rollout_desc *, zf_error *error);
ZF_API void zf_rollouts_free(zf_rollouts *); /* all zero: nothing */
