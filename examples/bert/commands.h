/* The commands of the program, and what they share. */
#ifndef BERT_COMMANDS_H
#define BERT_COMMANDS_H

#include "../common/command.h"
#include "session.h"

int bert_command_pretrain(int argc, char **argv);
int bert_command_vocab(int argc, char **argv);
int bert_command_eval(int argc, char **argv);
int bert_command_fill(int argc, char **argv);
int bert_command_tokenize(int argc, char **argv);
int bert_command_export(int argc, char **argv);

/* The text and its split, and examples of one of the splits. */
typedef struct bert_text {
    bert_vocab *vocab;
    bert_corpus *corpus;
    bert_examples *train, *held_out;
} bert_text;

/* vocab: a file or a folder, as folder_vocab takes them; options: those that were asked for, or NULL.
 * pairs: examples are of two segments, with next-sentence labels.
 *
 * The training examples have that many percent of their words masked, 0 meaning 15; the held-out
 * ones always 15. False with *error. */
bool bert_text_open(bert_text *t, const char *corpus, const char *vocab,
                    const bert_tokenizer_options *options, bool pairs, int64_t sequence,
                    int64_t masked_percent, uint64_t seed, int64_t threads, zf_error *error);
void bert_text_close(bert_text *t);

/* One line of what a model makes of held-out examples. */
void bert_score_print(const bert_score *score, const bert_config *config, double unigram_nats);

/* Labelled positions of a batch of examples, training or held out, at most. */
int64_t bert_predictions(int64_t batch, int64_t sequence, int64_t masked_percent);

/* Prints sentences of the held-out split, one word masked in each, with the best guesses. `with`
 * holds the parameters. */
bool bert_show_guesses(bert_session *with, const bert_config *config, const bert_text *text,
                       int64_t sequence, int count, zf_error *error);
/* The guesses for every [MASK] of one text, printed as lines or as JSON; false with *error. */
bool bert_fill_text(bert_session *with, const bert_config *config, const bert_vocab *vocab,
                    int64_t sequence, const char *text, const char *truth, bool json,
                    zf_error *error);

/* The parameters become those at `path`: of a checkpoint, a folder of Hugging Face, or a file of
 * weights. What these lack or have besides is reported. */
zf_status bert_session_take(bert_session *s, const char *path, weights_report *report,
                            zf_error *error);
/* What the weights at such a path say about the model: whether its head is tied. */
bool bert_config_take(bert_config *config, const char *path, zf_error *error);

/* How a command computes: the index of a choice "auto|f32|bf16|f16". */
#define BERT_DTYPES "auto|f32|bf16|f16"

/* The model of a folder, of a checkpoint or of Hugging Face, as its config.json and its weights say:
 * without next-sentence head where they have none. */
bool bert_folder_config(const char *path, bert_config *config, zf_error *error);
/* Opens it, forward only. dtype 0: what the checkpoint was trained in, else f32. */
bool bert_folder_open(bert_session *s, const char *path, const bert_config *config,
                      const bert_shape *shape, int64_t threads, int64_t dtype, zf_error *error);

#endif
