/* zeroflow_llm.h: text and folders of language models, for programs that train or run them with
 * zeroflow.h.
 *
 *     #define ZEROFLOW_IMPLEMENTATION         in one .c file of a program
 *     #define ZEROFLOW_LLM_IMPLEMENTATION
 *     #include "zeroflow_llm.h"               which includes zeroflow.h
 *
 * C11 with gcc or clang, -lm -lpthread -lpcre2-8, on a POSIX system; the declarations are C++17 as
 * well. Where there is no pcre2.h, or with -DZF_WITHOUT_PCRE2, tokenizers that need regular
 * expressions are an error, and nothing else is missing.
 *
 *     zf_error error = {ZF_OK, ""};
 *     zf_tokenizer *t = zf_tokenizer_open("DIR", &error);
 *     zf_generator g;
 *     zf_text answer = {0};
 *     zf_generator_open(&g, &(zf_generator_desc){.folder = "DIR", .backend = cpu}, &error);
 *     zf_generate(&g, t, "The bird", &(zf_generate_desc){.tokens = 20}, &answer, &error);
 *
 * examples/generate.c is a whole program, with the graph of a model of its own.
 *
 * llm/api has the declarations by part:
 *
 *     text/                                      model/
 *     text        bytes, ids, files, digests     config      config.json by a table
 *     wordpiece   BERT's tokenizer               folder      what a folder has; exports
 *     tokenizer   tokenizer.json: BPE            weights     safetensors files of a folder
 *     jinja       templates of chats             adapter     PEFT's adapters of low rank
 *     chat        chats as text                  exchange    parameters from and to files
 *                                                sampling    the next token from logits
 *     training/                                  generate    caches, answers
 *                                                causal      Llama and its relatives
 *     losses      of pairs and of rewards
 *     policy      losses of actors and critics
 *     advantage   numbers of a batch of answers
 *     rollout     sampled answers to prompts
 *     reward      numbers for answers
 *     examples    lines of JSON as tokens
 *     tuning      examples as rows of tokens
 *     tuner       a model of a folder, fine-tuned
 *
 * Nothing prints, exits, aborts or reads the environment. Functions that can fail return false,
 * NULL or a zf_status, and say why in *error, which should be all zero before. Strings are UTF-8.
 * What a call returns by a pointer that is not const is the caller's, and is freed by the function
 * named in its part; free(NULL) is nothing everywhere. Memory comes from malloc. There are no
 * globals: several threads may call any function on objects of their own, and read the same
 * tokenizer.
 *
 * A model is a function that builds a graph. Those of Llama and its relatives are here
 * (zf_causal_model); examples/gpt, examples/opt and examples/generate.c have models of their own. */
#ifndef ZEROFLOW_LLM_H
#define ZEROFLOW_LLM_H

/* POSIX names are needed by the implementation. */
#if defined(ZEROFLOW_LLM_IMPLEMENTATION) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#include "zeroflow.h"

#ifdef ZFI_API_OF_PROGRAM /* as in zeroflow.h */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#ifdef __cplusplus
extern "C" {
#endif

#include "llm/api/text/text.h"
#include "llm/api/text/wordpiece.h"
#include "llm/api/text/tokenizer.h"
#include "llm/api/text/jinja.h"
#include "llm/api/text/chat.h"
#include "llm/api/model/config.h"
#include "llm/api/model/sampling.h"
#include "llm/api/model/folder.h"
#include "llm/api/model/weights.h"
#include "llm/api/model/exchange.h"
#include "llm/api/model/adapter.h"
#include "llm/api/model/generate.h"
#include "llm/api/model/causal.h"
#include "llm/api/training/losses.h"
#include "llm/api/training/policy.h"
#include "llm/api/training/advantage.h"
#include "llm/api/training/rollout.h"
#include "llm/api/training/reward.h"
#include "llm/api/training/examples.h"
#include "llm/api/training/tuning.h"
#include "llm/api/training/tuner.h"

#ifdef __cplusplus
}
#endif
#if defined(ZFI_API_OF_PROGRAM) && (defined(ZEROFLOW_LLM_IMPLEMENTATION) || defined(__clang__))
#pragma GCC diagnostic pop
#endif

#endif /* ZEROFLOW_LLM_H */

#if defined(ZEROFLOW_LLM_IMPLEMENTATION) && defined(__cplusplus)
#error "ZEROFLOW_LLM_IMPLEMENTATION must be compiled as C: put it in one .c file"
#elif defined(ZEROFLOW_LLM_IMPLEMENTATION) && !defined(ZEROFLOW_LLM_IMPLEMENTED)
#define ZEROFLOW_LLM_IMPLEMENTED

#ifdef ZFI_API_OF_PROGRAM
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

/* base */
#include "llm/base/fail.c"
#include "llm/base/clock.c"
#include "llm/base/buffer.c"
#include "llm/base/utf8.c"
#include "llm/base/affix.c"
#include "llm/base/file.c"
#include "llm/base/digest.c"
#include "llm/base/member.c"

/* wordpiece */
#include "llm/wordpiece/token_keys.c"
#include "llm/wordpiece/wordpiece.c"
#include "llm/wordpiece/wordpiece_file.c"
#include "llm/wordpiece/wordpiece_train.c"

/* text */
#include "llm/text/normal.c"
#include "llm/text/regex.c"
#include "llm/text/bpe.c"
#include "llm/text/unigram.c"
#include "llm/text/steps.c"
#include "llm/text/tokens.c"
#include "llm/text/tokens_read.c"
#include "llm/text/tokens_added.c"
#include "llm/text/tokens_file.c"

/* jinja */
#include "llm/jinja/value.c"
#include "llm/jinja/print.c"
#include "llm/jinja/strings.c"
#include "llm/jinja/operators.c"
#include "llm/jinja/methods.c"
#include "llm/jinja/filters.c"
#include "llm/jinja/lexer.c"
#include "llm/jinja/parser.c"
#include "llm/jinja/interpreter.c"
#include "llm/jinja/jinja.c"

/* chat */
#include "llm/chat/styles.c"
#include "llm/chat/chat.c"
#include "llm/chat/forms.c"

/* folder */
#include "llm/folder/nest.c"
#include "llm/folder/config.c"
#include "llm/folder/rope.c"
#include "llm/folder/folder.c"
#include "llm/folder/generation.c"
#include "llm/folder/weights.c"
#include "llm/folder/exchange.c"
#include "llm/folder/adapter.c"

/* generate */
#include "llm/generate/sampling.c"
#include "llm/generate/step.c"
#include "llm/generate/decoder.c"
#include "llm/generate/answer.c"
#include "llm/generate/prompt.c"
#include "llm/generate/answers.c"
#include "llm/generate/talk.c"
#include "llm/generate/generator.c"

/* causal */
#include "llm/causal/desc.c"
#include "llm/causal/layers.c"
#include "llm/causal/read.c"
#include "llm/causal/longrope.c"
#include "llm/causal/alibi.c"
#include "llm/causal/inputs.c"

/* family */
#include "llm/family/llama.c"
#include "llm/family/gemma.c"
#include "llm/family/granite.c"
#include "llm/family/olmo2.c"
#include "llm/family/smollm3.c"
#include "llm/family/phi3.c"
#include "llm/family/starcoder2.c"
#include "llm/family/neox.c"
#include "llm/family/falcon.c"
#include "llm/family/bloom.c"
#include "llm/family/mpt.c"

/* mixture */
#include "llm/mixture/mixtral.c"
#include "llm/mixture/qwen_moe.c"
#include "llm/mixture/olmoe.c"
#include "llm/mixture/deepseek.c"

/* models */
#include "llm/models/table.c"
#include "llm/models/experts.c"
#include "llm/models/graph.c"
#include "llm/models/model.c"

/* losses */
#include "llm/losses/rows.c"
#include "llm/losses/preference.c"
#include "llm/losses/pairs.c"
#include "llm/losses/policy.c"
#include "llm/losses/value.c"
#include "llm/losses/advantage.c"

/* rollout */
#include "llm/rollout/prompts.c"
#include "llm/rollout/rollouts.c"
#include "llm/rollout/builtin.c"
#include "llm/rollout/process.c"
#include "llm/rollout/command.c"
#include "llm/rollout/rewards.c"

/* tuning */
#include "llm/tuning/examples.c"
#include "llm/tuning/batch.c"
#include "llm/tuning/tuning.c"
#include "llm/tuning/tuner.c"

#ifdef ZFI_API_OF_PROGRAM
#pragma GCC diagnostic pop
#endif

#endif /* ZEROFLOW_LLM_IMPLEMENTATION */
