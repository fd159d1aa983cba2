/* The next token from a model's logits, in the order of Hugging Face's transformers: repetition
 * penalty, temperature, top-k, top-p, and then by chance.
 *
 *     logits --penalty--> --/ temperature--> --the best k--> softmax --the best of sum p--> p
 */

typedef struct zf_sampling {
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* tokens that are kept, and those equal to the last of them; 0: all */
    double top_p;       /* the most likely tokens are kept until their sum reaches it; 1: all */
    double repetition;  /* logits of tokens that were there are divided by it, or multiplied if they
                         * are negative; 1: none */
} zf_sampling;

/* The table of zf_sampling (api/options.h): flags --temperature, --top-k, --top-p and
 * --repetition-penalty. Of these, a temperature that is not given is 0.8. */
ZF_API const zf_option *zf_sampling_options(void);

/* Room for `count` tokens; false out of memory. */
typedef struct zf_sampler {
    zf_sampling how;
    int64_t count;
    double *p;
    int32_t *order;
} zf_sampler;
ZF_API bool zf_sampler_open(zf_sampler *, const zf_sampling *, int64_t count);
ZF_API void zf_sampler_close(zf_sampler *);

/* The token that follows: of equally likely ones the first, or one drawn by `dice`, a random number
 * that must differ in each call. seen: tokens before it. Leaves probabilities in s->p, unless the
 * temperature is 0. Changes the logits. */
ZF_API int32_t zf_sampler_draw(zf_sampler *s, float *logits, const int32_t *seen,
                               int64_t seen_count, uint64_t dice);

/* After a draw above temperature 0: the logarithm of the probability with which a token was drawn,
 * of those that were kept. 0 after a draw at temperature 0. */
ZF_API double zf_sampler_logp(const zf_sampler *s, int32_t id);

/* Whose random numbers an answer draws: those of a prompt, so that a text is the same whatever
 * other prompts are answered at the same time. prompt [count] are its ids, and `sample` counts
 * answers to the same prompt, from 0 on. */
ZF_API uint64_t zf_sampler_owner(const int32_t *prompt, size_t count, int64_t sample);
/* The same for prompts that are answered again in each iteration of a training: `prompt` is the
 * number of the prompt in its data. */
ZF_API uint64_t zf_sampler_owner_of(int64_t iteration, int64_t prompt, int64_t sample);

/* The random number for token `place` of an answer. */
ZF_API uint64_t zf_sampler_dice(uint64_t seed, uint64_t owner, int64_t place);
