"""Writes cases.json for tests/files/folders.c with transformers 5 (AutoTokenizer):
python3 tests/golden/folders/make.py

Each case is a folder: the files of a tokenizer as texts, for each probe the ids that transformers
gives it, and the largest id plus one. Where "refused" stands instead, transformers reads what this
library does not; it is a part of the message.
"""
import json
import os
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
LETTERS = "abcdefghijklmnopqrstuvwxyz<>/|_ "
PROBES = ["the</s> bird", "a <|im_end|> b", "<s>x<pad>y</s>", "<tool>a</tool> <|im_end|>", "<a><b><c>", "x  <mask>  y"]


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def tokenizer(added=(), vocab=(), **top):
    """A BPE of letters without merges, with `vocab` after them, and `added` tokens with their ids."""
    words = {c: i for i, c in enumerate(LETTERS)}
    for t in vocab:
        words[t] = len(words)
    n = len(words)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": words.get(t["content"], n + i), **t} for i, t in enumerate(added)],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": None, "unk_token": "_", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": words, "merges": []}, **top}


N = len(LETTERS)
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
S = [token("<s>")]
CASES = {
    "nothing more": (tokenizer(S), FAST, {}),
    "no tokenizer_config": (tokenizer(S), None, {}),
    "named, in the vocabulary": (tokenizer((), ["</s>"]), {**FAST, "eos_token": "</s>"}, {}),
    "named, new": (tokenizer(S), {**FAST, "pad_token": "<pad>", "eos_token": "</s>"}, {}),
    "named, as an object": (tokenizer(S), {**FAST, "eos_token": {"__type": "AddedToken", **token(
        "</s>", lstrip=True, normalized=True)}}, {}),
    "named, not special in tokenizer.json": (tokenizer([token("</s>", special=False)]), {**FAST, "eos_token": "</s>"}, {}),
    "named by another name": (tokenizer(S), {**FAST, "tool_token": "<tool>", "end_of_tool_token": "</tool>"}, {}),
    "more special tokens": (tokenizer(S), {**FAST, "additional_special_tokens": ["<|im_end|>", "<tool>"]}, {}),
    "extra special tokens": (tokenizer(S), {**FAST, "extra_special_tokens": ["<tool>", "</tool>", "<s>"]}, {}),
    "extra special tokens by name": (tokenizer(S), {**FAST, "extra_special_tokens": {"tool_token": "<tool>"}}, {}),
    "all kinds of names": (tokenizer(S), {**FAST, "mask_token": "<mask>", "extra_special_tokens": ["<a>"], "x_token": "<b>",
                                          "bos_token": "<c>", "pad_token": "<pad>"}, {}),
    "added_tokens_decoder, new": (tokenizer(S), {**FAST, "added_tokens_decoder": {
        str(N): token("<s>"), str(N + 1): token("<|im_end|>")}}, {}),
    "added_tokens_decoder, not special": (tokenizer(S), {**FAST, "added_tokens_decoder": {
        str(N): token("<s>"), str(N + 1): token("<tool>", special=False, normalized=True)}}, {}),
    "added_tokens_decoder, out of order": (tokenizer(S), {**FAST, "added_tokens_decoder": {
        str(N + 2): token("<tool>"), str(N): token("<s>"), str(N + 1): token("</tool>")}}, {}),
    "added_tokens_decoder, other flags": (tokenizer([token("<mask>")]), {**FAST, "added_tokens_decoder": {
        str(N): token("<mask>", lstrip=True, rstrip=True)}}, {}),
    "added_tokens_decoder, in the vocabulary": (tokenizer((), ["<tool>"]), {**FAST, "added_tokens_decoder": {
        str(N): token("<tool>")}}, {}),
    "added_tokens_decoder, of another class": (tokenizer(S), {**FAST, "eos_token": "</s>", "added_tokens_decoder": {
        str(N + 1): token("</s>", rstrip=True)}}, {}),
    "special_tokens_map": (tokenizer(S), FAST, {"special_tokens_map.json": {
        "eos_token": "</s>", "pad_token": token("<pad>"), "additional_special_tokens": ["<tool>"]}}),
    "special_tokens_map before tokenizer_config": (tokenizer(S), {**FAST, "eos_token": "<a>"}, {"special_tokens_map.json": {
        "eos_token": "<b>"}}),
    "special_tokens_map alone": (tokenizer(S), None, {"special_tokens_map.json": {"mask_token": token(
        "<mask>", lstrip=True)}}),
    "special_tokens_map beside added_tokens_decoder": (tokenizer(S), {**FAST, "added_tokens_decoder": {
        str(N): token("<s>")}}, {"special_tokens_map.json": {"eos_token": "</s>"}}),
    "added_tokens": (tokenizer(S), FAST, {"added_tokens.json": {"<tool>": N + 1, "</tool>": N + 2}}),
    "added_tokens, special by name": (tokenizer(S), {**FAST, "eos_token": "</s>"}, {"added_tokens.json": {
        "</s>": N + 1, "<tool>": N + 2}}),
    "added_tokens beside added_tokens_decoder": (tokenizer(S), {**FAST, "added_tokens_decoder": {str(N): token("<s>")}}, {
        "added_tokens.json": {"<tool>": N + 1}}),
    "added_tokens that tokenizer.json has": (tokenizer(S), FAST, {"added_tokens.json": {"<s>": N}}),
    "split_special_tokens": (tokenizer([token("<s>"), token("</s>", special=False)]), {
        **FAST, "split_special_tokens": True}, {}),
    "null and what changes nothing": (tokenizer(S), {
        **FAST, "eos_token": None, "add_prefix_space": None, "add_bos_token": True, "add_eos_token": True,
        "clean_up_tokenization_spaces": True, "legacy": False, "model_max_length": 512, "padding_side": "left",
        "additional_special_tokens": [], "sp_model_kwargs": {}, "unk_token": "_", "vocab_size": 99}, {}),
}
# What transformers reads in another way than its files say, or what is not done.
REFUSED = {
    "an id that is not the next one": (tokenizer(S), {**FAST, "added_tokens_decoder": {str(N + 5): token("<tool>")}}, {},
                                       "added_tokens_decoder.%d has the token \"<tool>\", whose id would be %d" % (N + 5, N + 1)),
    "another id than that of tokenizer.json": (tokenizer(S), {**FAST, "added_tokens_decoder": {str(N + 1): token("<s>")}}, {},
                                               "has the token \"<s>\", whose id would be %d" % N),
    "added_tokens.json with another id": (tokenizer(S), FAST, {"added_tokens.json": {"<tool>": 3}},
                                          "has the token \"<tool>\", whose id would be %d" % (N + 1)),
    "add_prefix_space that the file has not": (tokenizer(S, pre_tokenizer={
        "type": "ByteLevel", "add_prefix_space": False, "use_regex": False}), {"tokenizer_class": "GPT2Tokenizer",
                                                                              "add_prefix_space": True}, {},
                                               "add_prefix_space must be false, as tokenizer.json has it, not true"),
    "no add_prefix_space": (tokenizer(S, normalizer={"type": "Prepend", "prepend": "_"}), {**FAST, "add_prefix_space": False}, {},
                            "add_prefix_space must be true, as tokenizer.json has it, not false"),
    "an unknown member": (tokenizer(S), {**FAST, "do_my_thing": 1}, {},
                          "do_my_thing is not read, and may change the text"),
    "lower case": (tokenizer(S), {**FAST, "do_lower_case": True}, {}, "do_lower_case must be false, not true"),
    "clean-up of BPE": (tokenizer(S), {
        **FAST, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}, {},
        "must be false, not true"),
    "a token that is no text": (tokenizer(S), {**FAST, "eos_token": 3}, {}, "eos_token must be a token, not 3"),
    "an unknown flag": (tokenizer(S), {**FAST, "added_tokens_decoder": {str(N + 1): token("<tool>", twice=True)}}, {},
                        "added_tokens_decoder.%d.twice is not read, and may change the text" % (N + 1)),
}


def folder(files):
    path = tempfile.mkdtemp()
    for name, text in files.items():
        with open(os.path.join(path, name), "w") as f:
            f.write(text)
    return path


def case(name, json_, config, others, refused=None):
    files = {"tokenizer.json": json_, **({"tokenizer_config.json": config} if config is not None else {}), **others}
    files = {k: json.dumps(v) for k, v in files.items()}
    if refused:
        return {"name": name, "files": files, "refused": refused}
    path = folder({**files, "config.json": json.dumps({"model_type": "mistral"})})
    t = AutoTokenizer.from_pretrained(path)
    assert type(t).__name__ == "TokenizersBackend", type(t)
    return {"name": name, "files": files, "size": max(t.get_vocab().values()) + 1,
            "ids": [t(p).input_ids for p in PROBES]}


if __name__ == "__main__":
    cases = [case(k, *v) for k, v in CASES.items()] + [case(k, *v) for k, v in REFUSED.items()]
    with open(os.path.join(HERE, "cases.json"), "w") as f:
        f.write('{"probes": %s,\n "cases": [\n' % json.dumps(PROBES))
        f.write(",\n".join(json.dumps(c) for c in cases))
        f.write("\n]}\n")
