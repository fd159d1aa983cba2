"""Writes the goldens of tests/text/chat.c with jinja2, set up as transformers sets it up:
python3 tests/golden/chat/make.py

    NAME/     the tokenizer_config.json of a folder with a template, written in one way or another;
              several: it is one of two, by the name default
    chats.json  for each folder, chats and the texts that its template makes of them; null: an error
"""
import json
import os

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))

TURNS = """{%% for m in messages %%}{%% if (m['role'] == 'user') != (loop.index0 %% 2 == 0) %%}
{{ raise_exception('users and assistants must take turns') }}{%% endif %%}
{%% if m['role'] == 'user' %%}{{ '[INST] ' + m['content'] + ' [/INST]' }}{%% else %%}{{ %s }}{%% endif %%}{%% endfor %%}"""
HEADER = "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}"
STYLES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
              "{% set start = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
              "{% else %}{% set rest = messages %}{% set start = '' %}{% endif %}{% for m in rest %}"
              "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no turns') }}{% endif %}"
              "{% set text = (start if loop.first else '') + m['content'] %}"
              "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
              "{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama3": "{# headers #}{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}" + HEADER +
              "{% endfor %}{% if add_generation_prompt %}"
              "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "mistral-v1": "{{ bos_token }}" + TURNS % "m['content'] + eos_token + ' '",
    "mistral-v3": "{{ bos_token }}{% set start = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' %}"
                  "{% set rest = messages[1:] if messages[0]['role'] == 'system' else messages %}{% for m in rest %}"
                  "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no turns') }}{% endif %}"
                  "{% if m['role'] == 'user' %}{{ '[INST] ' + (start if loop.last else '') + m['content'] + '[/INST]' }}"
                  "{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}" + TURNS % "m['content'] + eos_token",
    "zephyr": "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\\n' + m['content'] + eos_token }}\n"
              "{% elif m['role'] == 'system' %}\n{{ \"<|system|>\\n\" + m['content'] + eos_token }}\n{% else %}\n"
              "{{ '<|assistant|>\\n' + m['content'] + eos_token }}\n{% endif %}\n"
              "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "begins": "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
              "{% endfor %}",
    "trims": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>\\n' }}"
             "{% endfor %}",
    "unknown": "{% for m in messages %}{% if loop.first %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}"
               "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}",
}
CHATS = [["u a small bird?"], ["u  two words \n", "a  A wren. ", "u and\nthen?"], ["s Be brief.", "u a small bird? "],
         ["s  Be brief.\n", "u a", "a b", "u  c", "a d\n"], ["u a", "u b"], ["a a"], ["u é🐦", "a "]]
ROLES = {"u": "user", "a": "assistant", "s": "system"}


STYLES["several"] = STYLES["chatml"]


def render(template, messages, answer):
    def raise_exception(why):
        raise jinja2.exceptions.TemplateError(why)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = raise_exception
    try:
        return env.from_string(template).render(messages=messages, add_generation_prompt=answer,
                                                bos_token="<s>", eos_token="</s>")
    except jinja2.exceptions.TemplateError:
        return None


def main():
    out = {}
    for name, template in STYLES.items():
        os.makedirs(os.path.join(HERE, name), exist_ok=True)
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
        if name == "several":
            config["chat_template"] = [{"name": "tool_use", "template": "x"},
                                       {"name": "default", "template": template}]
        elif name == "zephyr":
            with open(os.path.join(HERE, name, "chat_template.jinja"), "w") as f:
                f.write(template)
        else:
            config["chat_template"] = template
        with open(os.path.join(HERE, name, "tokenizer_config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        out[name] = [{"chat": chat, "text": [render(template, [{"role": ROLES[m[0]], "content": m[2:]} for m in chat],
                                                    answer) for answer in (False, True)]} for chat in CHATS]
    with open(os.path.join(HERE, "chats.json"), "w") as f:
        json.dump(out, f, indent=0)
        f.write("\n")


main()
