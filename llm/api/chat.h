/* Chats in the text format that a model was trained on: the zf_chat of its
 * tokenizer_config.json.
 *
 *     user       a small bird?        <|im_start|>user\na small bird?<|im_end|>\n
 *     assistant  A wren.              <|im_start|>assistant\nA wren.<|im_end|>\n
 *
 * Templates are Jinja programs, which are not interpreted here. Some styles are known by name
 * (ZF_CHAT_STYLES). A template is recognised if it is that of a published model, by its digest, or
 * if all of its text belongs to a style; one with a system message of its own, for example, is not.
 * Chats with tools are not written. */

typedef enum zf_chat_role {
    ZF_CHAT_SYSTEM,
    ZF_CHAT_USER,
    ZF_CHAT_ASSISTANT,
    ZF_CHAT_ROLES
} zf_chat_role;

typedef struct zf_chat_message {
    zf_chat_role role;
    const char *text;
    size_t bytes;
} zf_chat_message;

typedef struct zf_chat_style zf_chat_style;

enum { ZF_CHAT_TOKEN = 64 };

/* A style, the tokens before and after a model's input, and the date that a style may show. */
typedef struct zf_chat {
    const zf_chat_style *style;
    char begin[ZF_CHAT_TOKEN], end[ZF_CHAT_TOKEN];
    char date[32];
    bool silent; /* an answer begins after empty thoughts */
} zf_chat;

/* The names of all styles, in two lines of a help text. */
#define ZF_CHAT_STYLES_1                                                                           \
    "chatml, gemma, gemma3, llama2, llama3, llama3.1, llama3.2, mistral-v1, mistral-v2,"

#define ZF_CHAT_STYLES_2                                                                           \
    "mistral-v3, mistral-nemo, mistral, phi3, phi3.5, qwen2, qwen2.5, qwen3, smollm2, zephyr"

#define ZF_CHAT_STYLES ZF_CHAT_STYLES_1 " " ZF_CHAT_STYLES_2

/* The date of the templates that name one. */
#define ZF_CHAT_DATE "26 Jul 2024"

/* The template of a model's folder: that of its zf_chat.jinja or tokenizer_config.json, or
 * the style `name`, if it is not NULL. begin and end are bos_token and eos_token. False with
 * *error: it is unknown. Where a folder has no template, and for the name "none", style is NULL. */
ZF_API bool zf_chat_open(zf_chat *, const char *folder, const char *name, zf_error *error);

/* Sets the date of a style that shows one: `date`; for NULL, what the template shows by default:
 * of llama3.2 the day of the answer if one is to be written (`answers`), else ZF_CHAT_DATE, so
 * that examples are the same on every day. False with *error: `date` is too long, or of another
 * style. */
ZF_API bool zf_chat_set_date(zf_chat *, const char *date, bool answers, zf_error *error);

/* Lets answers begin after empty thoughts, as templates do by enable_thinking=false. False with
 * *error: the style has no thoughts. */
ZF_API bool zf_chat_set_silent(zf_chat *, zf_error *error);

/* The digest of a template, without line feeds at its end; "\n" in its texts is a line feed. */
ZF_API uint64_t zf_chat_digest(const char *jinja);

/* The style of the published template with this digest; NULL: there is none. */
ZF_API const zf_chat_style *zf_chat_style_published(uint64_t digest);

/* "system", "user" or "assistant"; -1: another word. */
ZF_API int zf_chat_role_of(const char *word);

/* A part of a chat's text. */
typedef struct zf_chat_span {
    size_t begin, end;
} zf_chat_span;

/* Appends the text of a chat and, with `answer`, the beginning of an answer. spans, if not NULL:
 * for each message, the text of its author; for the assistant, with its thoughts and the token
 * that ends it; empty for a message that the style leaves out. False with *error where the style
 * does not allow the chat: roles that do not alternate, a system message. */
ZF_API bool zf_chat_write(const zf_chat *, const zf_chat_message *messages, size_t count,
                          bool answer, zf_text *out, zf_chat_span *spans, zf_error *error);

/* The token that ends the assistant's messages. */
ZF_API const char *zf_chat_end(const zf_chat *);
