/* What a folder with a model says of its tokenizer, for Hugging Face's programs and for
 * bert_vocab_load. */
#ifndef BERT_VOCABFILE_H
#define BERT_VOCABFILE_H

#include "../../zeroflow.h"
#include "tokenizer.h"

/* tokenizer_config.json, for zf_json_text or zf_json_save. The folder needs the file of
 * bert_vocab_source as well. */
zf_json_writer *bert_vocab_config(const bert_vocab *);

/* Its members, into an object that has been begun. */
void bert_vocab_put_config(zf_json_writer *, const bert_vocab *);

#endif
