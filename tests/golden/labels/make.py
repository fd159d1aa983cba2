"""Writes the goldens of what a conversation is trained on, by TRL's assistant-only loss:

    pip install trl
    python3 tests/golden/labels/make.py

    NAME.jinja    templates of chats with generation blocks
    bytes.json, spaces.json    tokenizers: BPE over bytes, as GPT-2's; over characters, as Llama 2's
    labels.json   for each of both and each template, the conversations, the ids of their tokens, and
                  1 for those with a label
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl.trainer.sft_trainer import _tokenize

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["user: assistant: system the bird sings, and the other birds are sleeping in trees.",
          "what does the bird sing? the bird sings a song. the birds sing songs in the morning",
          "A wren.\n\nit is small\n", "Q what is it? A it is"] * 4


def pairs(text):
    return [{"role": {"u": "user", "a": "assistant", "s": "system"}[part[0]], "content": part[2:]}
            for part in text.split("|")]


CONVERSATIONS = [pairs(text) for text in (
    "u what does the bird sing?|a the bird sings a song.",
    "s the birds|u what is it?|a it is a wren|u and the other?|a it is sleeping.\n\nin trees",
    "u a|a \n b \n|u c|a d", "u é🐦?|a naïve 🐦|u x|a é", "a the first|u the bird|u sings|a .?!", "u no answer")]


def by_bytes():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def by_characters():
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=380, special_tokens=SPECIAL + [f"<0x{i:02X}>" for i in range(256)]))
    return t


def main():
    out = {}
    for name, make in ("bytes", by_bytes), ("spaces", by_characters):
        t = make()
        t.save(str(HERE / f"{name}.json"), pretty=False)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")
        for path in sorted(HERE.glob("*.jinja")):
            tokenizer.chat_template = path.read_text()
            rows = out.setdefault(name, {})[path.name] = []
            for messages in CONVERSATIONS:
                both = _tokenize(tokenizer, messages, return_assistant_tokens_mask=True)
                rows.append({"messages": messages, "ids": both["input_ids"], "labelled": both["assistant_masks"]})
    with open(HERE / "labels.json", "w") as f:
        json.dump(out, f, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
