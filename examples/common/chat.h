/* Chats in the text format that a model was trained on: the chat_template of its
 * tokenizer_config.json.
 *
 *     user       a small bird?        <|im_start|>user\na small bird?<|im_end|>\n
 *     assistant  A wren.              <|im_start|>assistant\nA wren.<|im_end|>\n
 *
 * Templates are Jinja programs, which are not interpreted here. Some styles are known by name
 * (CHAT_STYLES). A template is recognised if all of its text belongs to a style; one with a system
 * message of its own, for example, is not. */
#ifndef CHAT_H
#define CHAT_H

#include "../../zeroflow.h"
#include "buffer.h"

typedef enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES } chat_role;

typedef struct chat_message {
    chat_role role;
    const char *text;
    size_t bytes;
} chat_message;

typedef struct chat_style chat_style;

enum { CHAT_TOKEN = 64 };

/* A style, and the tokens before and after a model's input. */
typedef struct chat_template {
    const chat_style *style;
    char begin[CHAT_TOKEN], end[CHAT_TOKEN];
} chat_template;

/* The names of all styles. */
#define CHAT_STYLES "chatml, llama2, llama3, mistral-v1, mistral-v3, mistral, zephyr"

/* The template of a model's folder: that of its chat_template.jinja or tokenizer_config.json, or
 * the style `name`, if it is not NULL. begin and end are bos_token and eos_token. False with
 * *error: it is unknown. Where a folder has no template, style is NULL. */
bool chat_template_load(chat_template *, const char *folder, const char *name, zf_error *error);

/* "system", "user" or "assistant"; -1: another word. */
int chat_role_of(const char *word);

/* A part of a chat's text. */
typedef struct chat_span {
    size_t begin, end;
} chat_span;

/* Appends the text of a chat and, with `answer`, the beginning of an answer. spans, if not NULL:
 * for each message, the text of its author; for the assistant, with the token that ends it. False
 * with *error where the style does not allow the chat: roles that do not alternate, a system
 * message. */
bool chat_text(const chat_template *, const chat_message *messages, size_t count, bool answer,
               buffer *out, chat_span *spans, zf_error *error);

/* The token that ends the assistant's messages. */
const char *chat_end(const chat_template *);

#endif
