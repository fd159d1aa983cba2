/* The templates of styles that are known by name. What the assistant has written, with the token
 * that ends it, is in generation blocks. */

#define ZFL_SAY(text) "{{- '" text "' -}}"
/* Each message m of a list with its text c. */
#define ZFL_EACH(list)                                                                             \
    "{%- for m in " list " -%}{%- set c = m.content if m.content is string else "                  \
    "raise_exception('messages of this style have a text') -%}"
#define ZFL_ANSWER(text)                                                                           \
    "{%- if m.role == 'assistant' -%}{%- generation -%}{{- " text " -}}{%- endgeneration -%}"
#define ZFL_OTHER(condition, text) "{%- elif " condition " -%}{{- " text " -}}"
#define ZFL_DONE                                                                                   \
    "{%- else -%}{{- raise_exception('this style has no message of the role ' ~ m.role) -}}"       \
    "{%- endif -%}"
#define ZFL_END          "{%- endfor -%}"
#define ZFL_PROMPT(text) "{%- if add_generation_prompt -%}{{- " text " -}}{%- endif -%}"
/* The text `system` of a message that begins a chat, and the `rest`, whose messages take turns. */
#define ZFL_SYSTEM                                                                                 \
    "{%- set has = messages and messages[0].role == 'system' -%}"                                  \
    "{%- set system = messages[0].content if has else '' -%}"                                      \
    "{%- set rest = messages[1:] if has else messages -%}"
#define ZFL_TURNS                                                                                  \
    "{%- if not rest -%}{{- raise_exception('there is no message of the user') -}}{%- endif -%}"   \
    "{%- for m in rest -%}"                                                                        \
    "{%- if m.role != ('assistant' if loop.index0 % 2 else 'user') -%}"                            \
    "{{- raise_exception('users and assistants take turns, and a message of the role ' ~ m.role "  \
    "~ ' does not') -}}{%- endif -%}{%- endfor -%}"
#define ZFL_NO_SYSTEM "{%- set rest = messages -%}" ZFL_TURNS
/* The system's text is before that of the first user's message, or of a last one. */
#define ZFL_START(when) "((system ~ '\\n\\n') if has and " when " else '')"

#define ZFL_IM "'<|im_start|>' ~ m.role ~ '\\n' ~ c ~ '<|im_end|>\\n'"
#define ZFL_CHATML_TURN(answer)                                                                    \
    "{%- if m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}" ZFL_ANSWER(  \
        answer " ~ '<|im_end|>'") ZFL_SAY("\\n") ZFL_OTHER("m.role in ['system', 'user']", ZFL_IM) \
        ZFL_DONE ZFL_END ZFL_PROMPT("'<|im_start|>assistant\\n'")
#define ZFL_CHATML ZFL_EACH("messages") ZFL_CHATML_TURN("c")
#define ZFL_DEFAULT_SYSTEM(text)                                                                   \
    "{%- if not messages or messages[0].role != 'system' -%}"                                      \
    "{{- '<|im_start|>system\\n" text "<|im_end|>\\n' -}}{%- endif -%}"

#define ZFL_HEADER(role) "'<|start_header_id|>' ~ " role " ~ '<|end_header_id|>\\n\\n'"
#define ZFL_LLAMA3(list)                                                                           \
    ZFL_EACH(list)                                                                                 \
    "{%- if m.role not in ['system', 'user', 'assistant'] -%}{{- raise_exception('this style has " \
    "no message of the role ' ~ m.role) -}}{%- endif -%}{{- " ZFL_HEADER(                          \
        "m.role") " -}}" ZFL_ANSWER("c|trim ~ '<|eot_id|>'") "{%- else -%}{{- c|trim ~ "           \
                                                             "'<|eot_id|>' -}}{%- endif "          \
                                                             "-%}" ZFL_END                         \
                                                             ZFL_PROMPT(ZFL_HEADER("'assistant'"))
#define ZFL_LLAMA3_DATED(date)                                                                     \
    ZFL_SYSTEM "{{- bos_token ~ " ZFL_HEADER(                                                      \
        "'system'") " ~ 'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ "                 \
                    "date_string|default(" date ") ~ "                                             \
                    "'\\n\\n' ~ system|trim ~ '<|eot_id|>' -}}" ZFL_LLAMA3("rest")

#define ZFL_GEMMA(start)                                                                           \
    "{{- bos_token -}}" ZFL_EACH(                                                                  \
        "rest") "{{- '<start_of_turn>' ~ ('model' if m.role == 'assistant' else 'user') ~ '\\n' "  \
                "-}}" ZFL_ANSWER("c|trim ~ '<end_of_turn>'") ZFL_SAY("\\n")                        \
                    ZFL_OTHER("true",                                                              \
                              start " ~ c|trim ~ '<end_of_turn>\\n'") "{%- endif -%}" ZFL_END      \
                        ZFL_PROMPT("'<start_of_turn>model\\n'")

#define ZFL_MISTRAL(begin, start, end, before, answer, after)                                      \
    "{{- bos_token -}}" ZFL_EACH("rest") "{%- if m.role == 'assistant' -%}{{- '" before            \
                                         "' -}}{%- endif -%}" ZFL_ANSWER(answer " ~ eos_token")    \
                                             ZFL_SAY(after)                                        \
                                                 ZFL_OTHER("true",                                 \
                                                           "'" begin "' ~ " start " ~ c ~ '" end   \
                                                           "'") "{%- endif -%}" ZFL_END

#define ZFL_TAGGED(when, end)                                                                      \
    ZFL_EACH("messages")                                                                           \
    "{%- if " when " -%}{{- '<|' ~ m.role ~ '|>\\n' -}}" ZFL_ANSWER("c ~ " end) ZFL_SAY("\\n")     \
        ZFL_OTHER("m.role in ['system', 'user']", "c ~ " end " ~ '\\n'") ZFL_DONE                  \
        "{%- endif -%}" ZFL_END
#define ZFL_PHI3(when)                                                                             \
    ZFL_TAGGED(when, "'<|end|>'")                                                                  \
    "{{- '<|assistant|>\\n' if add_generation_prompt else eos_token -}}"

/* The last question is the last user's message that is not the result of a tool. Answers after it
 * have their thoughts. */
#define ZFL_QWEN3                                                                                  \
    "{%- set at = namespace(asked=messages|length - 1) -%}{%- for m in messages -%}"               \
    "{%- if m.role == 'user' and not (m.content is string and "                                    \
    "m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}"      \
    "{%- set at.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}" ZFL_EACH(                      \
        "messages") "{%- set said, thought = c, '' -%}{%- if m.role == 'assistant' and "           \
                    "'</think>' in c -%}"                                                          \
                    "{%- set said = c.split('</think>')[-1].lstrip('\\n') -%}"                     \
                    "{%- set thought = "                                                           \
                    "c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') -%}"   \
                    "{%- endif -%}{%- if loop.index0 > at.asked and (loop.last or thought) -%}"    \
                    "{%- set said = '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ "               \
                    "said.lstrip('\\n') -%}"                                                       \
                    "{%- endif -%}" ZFL_CHATML_TURN(                                               \
                        "said") "{%- if add_generation_prompt and enable_thinking is defined and " \
                                "enable_thinking is false -%}"                                     \
                                "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"

#define ZFL_IM_TOKENS     "<|im_start|> <|im_end|>"
#define ZFL_LLAMA3_TOKENS "<|start_header_id|> <|end_header_id|> <|eot_id|> bos_token"
#define ZFL_GEMMA_TOKENS  "<start_of_turn> <end_of_turn> bos_token"
#define ZFL_PHI3_TOKENS   "<|end|> <|user|> <|assistant|> eos_token"

/* tokens: those that the tokenizer must have. */
static const struct {
    const char *name, *tokens, *jinja;
} zfl_styles[] = {
    {"chatml", ZFL_IM_TOKENS, ZFL_CHATML},
    {"gemma", ZFL_GEMMA_TOKENS, ZFL_NO_SYSTEM ZFL_GEMMA("''")},
    {"gemma3", ZFL_GEMMA_TOKENS, ZFL_SYSTEM ZFL_TURNS ZFL_GEMMA(ZFL_START("loop.first"))},
    {"llama2", "bos_token eos_token",
     ZFL_SYSTEM ZFL_TURNS
         ZFL_EACH("rest") "{%- if m.role == 'assistant' -%}{{- ' ' -}}{%- endif -%}" ZFL_ANSWER(
             "c.strip() ~ ' ' ~ eos_token") "{%- else -%}{%- set start = '<<SYS>>\\n' ~ system ~ "
                                            "'\\n<</SYS>>\\n\\n' if has and loop.first "
                                            "else '' -%}{{- bos_token ~ '[INST] ' ~ (start ~ "
                                            "c).strip() ~ ' [/INST]' -}}{%- endif -%}" ZFL_END},
    {"llama3", ZFL_LLAMA3_TOKENS, "{{- bos_token -}}" ZFL_LLAMA3("messages")},
    {"llama3.1", ZFL_LLAMA3_TOKENS, ZFL_LLAMA3_DATED("'26 Jul 2024'")},
    {"llama3.2", ZFL_LLAMA3_TOKENS, ZFL_LLAMA3_DATED("strftime_now('%d %b %Y')")},
    {"mistral-v1", "bos_token eos_token",
     ZFL_NO_SYSTEM ZFL_MISTRAL("[INST] ", "''", " [/INST]", "", "c", " ")},
    {"mistral-v2", "bos_token eos_token",
     ZFL_SYSTEM ZFL_TURNS ZFL_MISTRAL(" [INST] ", ZFL_START("loop.first"), " [/INST]", " ", "c",
                                      "")},
    {"mistral-v3", "[INST] [/INST] bos_token eos_token",
     ZFL_SYSTEM ZFL_TURNS ZFL_MISTRAL("[INST] ", ZFL_START("loop.last"), "[/INST]", " ", "c|trim",
                                      "")},
    {"mistral-nemo", "[INST] [/INST] bos_token eos_token",
     ZFL_SYSTEM ZFL_TURNS ZFL_MISTRAL("[INST]", ZFL_START("loop.last"), "[/INST]", "", "c", "")},
    {"mistral", "bos_token eos_token",
     ZFL_NO_SYSTEM ZFL_MISTRAL("[INST] ", "''", " [/INST]", "", "c", "")},
    {"phi3", ZFL_PHI3_TOKENS, ZFL_PHI3("true")},
    {"phi3.5", ZFL_PHI3_TOKENS, ZFL_PHI3("c or m.role != 'system'")},
    {"qwen2", ZFL_IM_TOKENS, ZFL_DEFAULT_SYSTEM("You are a helpful assistant.") ZFL_CHATML},
    {"qwen2.5", ZFL_IM_TOKENS,
     ZFL_DEFAULT_SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
         ZFL_CHATML},
    {"qwen3", ZFL_IM_TOKENS, ZFL_QWEN3},
    {"smollm2", ZFL_IM_TOKENS,
     ZFL_DEFAULT_SYSTEM("You are a helpful AI assistant named SmolLM, trained by Hugging Face")
         ZFL_CHATML},
    {"zephyr", "eos_token", ZFL_TAGGED("true", "eos_token") ZFL_PROMPT("'<|assistant|>\\n'")},
};
enum { ZFL_STYLES = sizeof zfl_styles / sizeof zfl_styles[0] };

/* The number of a style; -1: there is none of this name. */
static int zfl_style_of(const char *name)
{
    for (int k = 0; k < ZFL_STYLES; k++)
        if (!strcmp(name, zfl_styles[k].name)) return k;
    return -1;
}
