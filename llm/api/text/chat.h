/* Chats as the text that a model was trained on: by the Jinja template of its folder or a style.
 *
 *     user       a small bird?        <|im_start|>user\na small bird?<|im_end|>\n
 *     assistant  A wren.              <|im_start|>assistant\nA wren.<|im_end|>\n
 *
 * A conversation is an object of JSON. Its template gets what transformers' apply_chat_template
 * gives it: messages, without members that are null, and with their thoughts under the names
 * reasoning_content and thinking; tools and documents, else none; the members of
 * chat_template_kwargs; the special tokens of tokenizer_config.json or special_tokens_map.json
 * (bos_token, ...); add_generation_prompt. Two things are read more kindly than there. A content of
 * parts, [{"type": "text", "text": "..."}, ...], is their texts, one after the other, for a
 * template that does not read parts: it does not have the word text. For styles the role developer
 * is system. */

enum { ZF_CHAT_TOKEN = 64 };

typedef struct zf_chat {
    zf_jinja *plain;                               /* NULL: there is no template */
    zf_jinja *tools;                               /* of conversations with tools; NULL: plain is */
    int style;                                     /* of ZF_CHAT_STYLES, -1: another template */
    char begin[ZF_CHAT_TOKEN], end[ZF_CHAT_TOKEN]; /* bos_token and eos_token; "": none */
    char date[32];                                 /* date_string; "": not given */
    int64_t now;                                   /* for strftime_now */
    bool silent;                                   /* enable_thinking is false */
    zf_json *config, *special, *variables;         /* of the folder; of zf_chat_set_variables */
} zf_chat;

/* The names of all styles, in two lines of a help text. */
#define ZF_CHAT_STYLES_1                                                                           \
    "chatml, gemma, gemma3, llama2, llama3, llama3.1, llama3.2, mistral-v1, mistral-v2,"

#define ZF_CHAT_STYLES_2                                                                           \
    "mistral-v3, mistral-nemo, mistral, phi3, phi3.5, qwen2, qwen2.5, qwen3, smollm2, zephyr"

#define ZF_CHAT_STYLES ZF_CHAT_STYLES_1 " " ZF_CHAT_STYLES_2

/* The day that templates show in examples. */
#define ZF_CHAT_DATE "26 Jul 2024"

/* The template of a model's folder: its chat_template.jinja, or chat_template of its
 * tokenizer_config.json, of which there may be one, or some by name (default, tool_use). `name`, if
 * it is not NULL, is a style, or the path of a template: it has a / or ends in .jinja. False with
 * *error. Where a folder has no template, and for the name "none", plain is NULL. */
ZF_API bool zf_chat_open(zf_chat *, const char *folder, const char *name, zf_error *error);
ZF_API void zf_chat_close(zf_chat *);

/* False with *error: the tokenizer, or the folder's special tokens, lack a token of the style. A
 * template that is no style fits any. */
ZF_API bool zf_chat_fits(const zf_chat *, const zf_tokenizer *, zf_error *error);

/* Sets the day of templates that show one (date_string, strftime_now): as "26 Jul 2024"; NULL: the
 * day of the call if an answer is to be written (`answers`), else ZF_CHAT_DATE, so that examples
 * are the same on every day. False with *error: it is no such day, or the template shows none. */
ZF_API bool zf_chat_set_date(zf_chat *, const char *date, bool answers, zf_error *error);

/* Sets enable_thinking to false. False with *error: the template does not read it. */
ZF_API bool zf_chat_set_silent(zf_chat *, zf_error *error);

/* Sets variables of the template: the members of an object, {"enable_thinking": false}. False with
 * *error: it is none, or the template does not read one of them. */
ZF_API bool zf_chat_set_variables(zf_chat *, const char *json, zf_error *error);

/* A message, for conversations that are made by a program. */
typedef struct zf_chat_message {
    const char *role, *text; /* the role is terminated */
    size_t bytes;
} zf_chat_message;

/* A conversation of these messages. To be freed by zf_json_free. NULL with *error: not UTF-8. */
ZF_API zf_json *zf_chat_of(const zf_chat_message *messages, size_t count, zf_error *error);

/* The conversation of a line of data in another form: {"messages": [...]}, and the members that are
 * not of that form.
 *
 *     {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}  ShareGPT;
 *         roles: human or user, gpt or assistant, system, developer, tool; "system" may be the first
 *     {"instruction": "a", "input": "b", "output": "c"}  Alpaca; the user says a, a new line, b;
 *         "system" and "history", [["question", "answer"], ...], come before
 *     {"prompt": [MESSAGE, ...], "completion": [MESSAGE, ...]}  TRL; answers of the prompt have the
 *         weight 0; or "response"
 *
 * *out is to be freed by zf_json_free; NULL where the line is in none of these forms: it has
 * messages, chosen, or a prompt that is a string. False with *error. */
ZF_API bool zf_chat_convert(const zf_json *line, zf_json **out, zf_error *error);

/* A part of a chat's text that is trained on. */
typedef struct zf_chat_span {
    size_t begin, end;
    int64_t message; /* its number, from 0; -1: not known */
} zf_chat_span;

typedef struct zf_chat_spans {
    zf_chat_span *at;
    size_t count, room;
} zf_chat_spans;
ZF_API void zf_chat_spans_free(zf_chat_spans *);

/* Appends the text of a conversation and, with `answer`, the beginning of an answer. False with
 * *error: the template refuses it, or does not write all of it (tools, documents, tool_calls,
 * thoughts, variables).
 *
 * spans, if not NULL: what the assistant has written, with the tokens that end it. These are the
 * generation blocks of the template. In one that has none, a message is what the template adds to
 * the text of those before it and the beginning of an answer, without white space at its end; if
 * later messages change that text, it is an error. */
ZF_API bool zf_chat_write(const zf_chat *, const zf_json *conversation, bool answer, zf_text *out,
                          zf_chat_spans *spans, zf_error *error);

/* The text that ends the assistant's messages, which is a token of most models; "": not known. */
ZF_API bool zf_chat_end(const zf_chat *, char end[ZF_CHAT_TOKEN], zf_error *error);
