"""Writes published.json with the chat templates that models are published with, by transformers'
apply_chat_template: what the styles of llm/chat/styles.c must write too.

    pip install transformers tokenizers jinja2
    python3 tests/golden/chat/published.py FOLDER

FOLDER has the templates, which are not part of this repository: the chat_template of each model's
tokenizer_config.json as the file OWNER--MODEL.jinja (-first: as it was first published). Those that are not there are named and left
out.

    published.json  for each style: chats and the texts that these templates make of them, without
                    and with the beginning of an answer; null: an error. The date is 26 Jul 2024, bos_token <s> and eos_token </s>.
"""
import json
import pathlib
import sys

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
STYLES = {
    "chatml": ["teknium/OpenHermes-2.5-Mistral-7B", "cognitivecomputations/dolphin-2.5-mixtral-8x7b"],
    "gemma": ["google/gemma-2-2b-it"],
    "gemma3": ["google/gemma-3-270m-it"],
    "llama2": ["meta-llama/Llama-2-7b-chat-hf"],
    "llama3": ["meta-llama/Meta-Llama-3-8B-Instruct"],
    "llama3.1": ["meta-llama/Llama-3.1-8B-Instruct"],
    "llama3.2": ["meta-llama/Llama-3.2-3B-Instruct"],
    "mistral-v1": ["mistralai/Mistral-7B-Instruct-v0.1-first"],
    "mistral-v2": ["mistralai/Mistral-7B-Instruct-v0.2"],
    "mistral-v3": ["mistralai/Mistral-7B-Instruct-v0.3"],
    "mistral-nemo": ["mistralai/Mistral-Nemo-Instruct-2407"],
    "mistral": ["mistralai/Mistral-7B-Instruct-v0.2-first"],
    "phi3": ["microsoft/Phi-3-mini-4k-instruct"],
    "phi3.5": ["microsoft/Phi-3.5-mini-instruct"],
    "qwen2": ["Qwen/Qwen2-0.5B-Instruct"],
    "qwen2.5": ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"],
    "qwen3": ["Qwen/Qwen3-0.6B"],
    "smollm2": ["HuggingFaceTB/SmolLM2-135M-Instruct"],
    "zephyr": ["TinyLlama/TinyLlama-1.1B-Chat-v1.0"],
}
CHATS = [["u a small bird?"], ["u  two words \n", "a  A wren. ", "u and\nthen?"],
         ["s Be brief.", "u a small bird? "], ["s  Be brief.\n", "u a", "a b", "u  c", "a d\n"],
         ["s Be brief.", "u  ", "a b"], ["s ", "u a"], ["u a", "u b"], ["a a"], ["u é🐦", "a "],
         ["u a", "a b", "s later", "u c"], ["u a", "a <think>\n\nhm\n</think>\n\nb\n", "u c"],
         ["u a", "a x<think>why</think>b</think>\nc"], ["u a", "a \nb", "a \nc"],
         ["u a", "a <think>\nhm\n</think>\n\nb", "u <tool_response>1</tool_response>", "a c\n"]]
ROLES = {"u": "user", "a": "assistant", "s": "system"}


def render(template, chat, answer):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")),
                                        bos_token="<s>", eos_token="</s>")
    messages = [{"role": ROLES[m[0]], "content": m[2:]} for m in chat]
    try:
        return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False,
                                             add_generation_prompt=answer, date_string="26 Jul 2024")
    except jinja2.exceptions.TemplateError:
        return None


def main(folder):
    out = {}
    for style, names in STYLES.items():
        for name in names:
            path = folder / (name.replace("/", "--") + ".jinja")
            if not path.exists():
                print(f"{path} is not there", file=sys.stderr)
                continue
            template = path.read_text()
            chats = [{"chat": chat, "text": [render(template, chat, a) for a in (False, True)]}
                     for chat in CHATS]
            assert out.setdefault(style, {"chats": chats})["chats"] == chats, name
    with open(HERE / "published.json", "w") as f:
        json.dump(out, f, indent=0, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
