/* Chats in the text format that a model was trained on: the chat_template of its
 * tokenizer_config.json.
 *
 *     user       a small bird?        <|im_start|>user\na small bird?<|im_end|>\n
 *     assistant  A wren.              <|im_start|>assistant\nA wren.<|im_end|>\n
 *
 * Templates are Jinja programs, which are not interpreted here. Some styles are known by name
 * (CHAT_STYLES). A template is recognised if it is that of a published model, by its digest, or if
 * all of its text belongs to a style; one with a system message of its own, for example, is not.
 * Chats with tools are not written. */
#ifndef CHAT_H
#define CHAT_H

#include "../../zeroflow.h"
#include "../base/buffer.h"

typedef enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES } chat_role;

typedef struct chat_message {
    chat_role role;
    const char *text;
    size_t bytes;
} chat_message;

typedef struct chat_style chat_style;

enum { CHAT_TOKEN = 64 };

/* A style, the tokens before and after a model's input, and the date that a style may show. */
typedef struct chat_template {
    const chat_style *style;
    char begin[CHAT_TOKEN], end[CHAT_TOKEN];
    char date[32];
    bool silent; /* an answer begins behind empty thoughts */
} chat_template;

/* The names of all styles, in two lines of a help text. */
#define CHAT_STYLES_1                                                                              \
    "chatml, gemma, gemma3, llama2, llama3, llama3.1, llama3.2, mistral-v1, mistral-v2,"
#define CHAT_STYLES_2                                                                              \
    "mistral-v3, mistral-nemo, mistral, phi3, phi3.5, qwen2, qwen2.5, qwen3, smollm2, zephyr"
#define CHAT_STYLES CHAT_STYLES_1 " " CHAT_STYLES_2

/* The date of the templates that name one. */
#define CHAT_DATE "26 Jul 2024"

/* The template of a model's folder: that of its chat_template.jinja or tokenizer_config.json, or
 * the style `name`, if it is not NULL. begin and end are bos_token and eos_token. False with
 * *error: it is unknown. Where a folder has no template, and for the name "none", style is NULL. */
bool chat_template_load(chat_template *, const char *folder, const char *name, zf_error *error);
/* Sets the date of a style that shows one: `date`; for NULL, what the template shows by default: of
 * llama3.2 the day of the answer if one is to be written (`answers`), else CHAT_DATE, so that
 * examples are the same on every day. False with *error: `date` is too long, or of another style. */
bool chat_template_date(chat_template *, const char *date, bool answers, zf_error *error);

/* Lets answers begin behind empty thoughts, as templates do by enable_thinking=false. False with
 * *error: the style has no thoughts. */
bool chat_template_silent(chat_template *, zf_error *error);

/* The digest of a template, without line feeds at its end; "\n" in its texts is a line feed. */
uint64_t chat_digest(const char *jinja);
/* The style of the published template with this digest; NULL: there is none. */
const chat_style *chat_style_published(uint64_t digest);

/* "system", "user" or "assistant"; -1: another word. */
int chat_role_of(const char *word);

/* A part of a chat's text. */
typedef struct chat_span {
    size_t begin, end;
} chat_span;

/* Appends the text of a chat and, with `answer`, the beginning of an answer. spans, if not NULL:
 * for each message, the text of its author; for the assistant, with its thoughts and the token that
 * ends it; empty for a message that the style leaves out. False with *error where the style does not
 * allow the chat: roles that do not alternate, a system message. */
bool chat_text(const chat_template *, const chat_message *messages, size_t count, bool answer,
               buffer *out, chat_span *spans, zf_error *error);

/* The token that ends the assistant's messages. */
const char *chat_end(const chat_template *);

#endif
