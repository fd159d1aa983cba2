"""Writes the goldens of tests/text/tokens.c with the `tokenizers` package (0.23):
python3 tests/golden/tokens/make.py

    texts.json      difficult texts
    bytes.part      vocabulary and merges of a BPE over bytes, as members of a tokenizer.json
    spm.part        the same over characters, with tokens for all bytes
    words.part      the same with prefixes and suffixes
    unigram.part    the vocabulary of a Unigram with scores, and with tokens for all bytes
    NAME.txt        a kind of tokenizer: its tokenizer.json, with @bytes@ where bytes.part stands, and
                    the like; then for each text a hash of its ids, with what is put around it, and a
                    hash of what these decode to, without and with special tokens
    forms.txt       hashes of the normalization forms of all characters among others
"""
import json
import os

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

CORPUS = """the birds of the north sing in the morning, and the other birds are sleeping in trees
don't we're I'll it's they've I'd I'm working on words: a wording, the word, wordings and wordless
in 1984 there were 12345 birds; in 2025 there were 67 of them (0.5%)
    if (x == 10) return y;    // there is a comment
naïve café résumé über Straße Ωmega été où là
日本語のテキスト 日本語 中文文本 한국어 텍스트
नमस्ते दुनिया नमस्ते שלום עולם مرحبا بالعالم
the the the birds birds birds singing singing singing morning morning
🐦 🐦‍⬛ 👨‍👩‍👧 the bird 🐦 emoji""".split("\n")

TEXTS = [
    "", " ", "  ", "a", " a", "a ", "the birds sing", " the birds sing ", "  two  spaces  ",
    "the\nbirds\n\nsing\n", "the\r\nbirds \r\n \r\n sing", "\ttab\tthe\t\tbirds", "\n", " \n ",
    "don't DON'T we'Re I'LL 'tis 's'S'ſ 'll'd'm", "wording the words wordless word",
    "1 12 123 1234 12345 1234567 ½ Ⅷ ٣٤٥ 3.14 1,000", "x" * 50 + " " * 20 + "y",
    "naïve cafe\u0301 café A\u030a Å \u212b q\u0307\u0323 \u1e0b\u0323 \u0344 \u0301",
    "\uac00 \u1100\u1161 \u1100\u1161\u11a8 \uac01 \ud7a3 \u0958 \ufb1d \U0001d15e \u2126",
    "日本語のテキスト、中文文本。한국어", "नमस्ते दुनिया", "שָׁלוֹם עולם", "مرحبا بالعالم",
    "👨‍👩‍👧 🇩🇪 🐦‍⬛ ❤️ \U0001f9d1\U0001f3fd", "\ue000 \uf8ff \U000f0000 \U0010ffff \ufffd \ufffe \u0378",
    "\x00 a\x00b \x01\x1f\x7f\x80\x9f", "\u00a0a\u3000b\u180ec\u200bd\u2028e\u0085f\u00adg\ufeff",
    "<s>the</s><s> birds </s> <unk>", "<mask>the <mask> birds  <mask>  <rs>   x <both>  y",
    "word wording word,word _word word_ word1 éword word\u200d", "<m><m><m> <m>x", "bird birds abirds",
    "the▁birds ▁ ▁▁ _", "<0x41><0x4><0xZZ><0x0A>", "<|im_start|>user\nthe birds<|im_end|>\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nthe<|eot_id|>", "<tool_call>{}</tool_call>",
    "if (x[10] == \"y\") { return z; } // the\n\n\n    #include <a.h>", "ing inging  ing", "ǅ ʰ ﬀ ß İ ı Σς",
    "...!?!? -- — ' ' “the” (birds) [12]\u0660", "\u0301\u0323", "a\u0323\u0301\u0302\u0323b", "  é!  !é!",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m"
         r"|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t"
         r"|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(words, special, size, **options):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = words
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False, **options))
    model = json.loads(t.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


FALLBACK = ["<0x%02X>" % i for i in range(256)]
PARTS = {
    "bytes": train(pre_tokenizers.ByteLevel(add_prefix_space=False), [], 340,
                   initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())),
    "spm": train(pre_tokenizers.Metaspace(), ["<unk>", "<s>", "</s>"] + FALLBACK, 420, limit_alphabet=70),
    "words": train(pre_tokenizers.WhitespaceSplit(), ["<unk>"], 150, limit_alphabet=40,
                   continuing_subword_prefix="##", end_of_word_suffix="</w>"),
}
# As files from before tokenizers 0.20 have them.
PARTS["bytes"]["merges"] = [" ".join(m) for m in PARTS["bytes"]["merges"]]


def added(first, *tokens, **flags):
    return [{"id": first + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True, **flags} for i, t in enumerate(tokens)]


def unigram():
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=180, special_tokens=["<unk>", "<s>", "</s>"] + FALLBACK, unk_token="<unk>",
        show_progress=False))
    # A few digits are enough, and let sums be equal; no token for an ideograph and an accent.
    vocab = [[token, round(score, 1)] for token, score in json.loads(t.to_str())["model"]["vocab"]
             if token not in ("\u65e5", "\u00e9")]
    return {"vocab": vocab + [["birds of", -3.0], ["ing", -4.0], ["\u00bd", -6.5]]}


PARTS["unigram"] = unigram()
UNIGRAM = len(PARTS["unigram"]["vocab"])


def scored(tokens, normalizer, words, decoder=None, frame=None, **options):
    model = {"type": "Unigram", "unk_id": 0, **options, "@": None}
    return text({"version": "1.0", "truncation": None, "padding": None,
                 "added_tokens": added(0, "<unk>", "<s>", "</s>") + list(tokens),
                 "normalizer": normalizer, "pre_tokenizer": words, "post_processor": frame,
                 "decoder": decoder, "model": model}).replace('"@":null', "@unigram@")


def kind(part, tokens, normalizer, words, frame, decoder, **options):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             **options, "@": None}
    return text({"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
                 "normalizer": normalizer, "pre_tokenizer": words, "post_processor": frame,
                 "decoder": decoder, "model": model}).replace('"@":null', "@%s@" % part)


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, regex=True):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex" if regex else "String": pattern}, "behavior": behavior,
         "invert": invert}, byte_level(regex=False)]}


def template(before, after=()):
    def special(t):
        return {"SpecialToken": {"id": t[0], "type_id": 0}}
    return {"type": "TemplateProcessing",
            "single": [special(t) for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}] +
            [special(t) for t in after],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t[0]: {"id": t[0], "ids": [t[1]], "tokens": [t[0]]}
                               for t in (*before, *after)}}


def spm(words, decoder=None, normalizer=None, tokens=(), **options):
    decoder = decoder or {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **options}
    return kind("spm", added(0, "<unk>", "<s>", "</s>") + list(tokens), normalizer, words,
                template([("<s>", 1)], [("</s>", 2)]), decoder, **options)


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


LLAMA2 = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}


def odd(first):
    return (added(first, "<mask>", lstrip=True) + added(first + 1, "<rs>", rstrip=True) +
            added(first + 2, "<both>", lstrip=True, rstrip=True) +
            added(first + 3, "word", single_word=True, special=False) +
            added(first + 4, "<m>", normalized=True, special=False) +
            added(first + 5, "<m><m>", special=False) +
            added(first + 6, "bird", normalized=True, special=False) +
            added(first + 7, "é!", normalized=True, single_word=True, special=False) +
            added(first + 8, "  ", special=False))


CHATML = added(340, "<|endoftext|>", "<|im_start|>", "<|im_end|>") + added(343, "<tool_call>", special=False)
HEADERS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
END = added(340, "<|endoftext|>")
BYTES = byte_level()


def words(sequence, frame=BYTES, tokens=END, normalizer=None, **options):
    return kind("bytes", tokens, normalizer, sequence, frame, BYTES, **options)


KINDS = {
    "gpt2": words(byte_level()),
    "gpt2_prefix": words(byte_level(True), tokens=END + odd(341)),
    "llama3": words(split(LLAMA3), {"type": "Sequence", "processors": [
        BYTES, template([("<|begin_of_text|>", 340)])]}, added(340, *HEADERS), ignore_merges=True),
    "qwen2": words(split(QWEN2), None, CHATML, {"type": "NFC"}),
    "cases": words(split(CASES)),
    "digits": words({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, byte_level()]}),
    "runs_of_digits": words({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}, byte_level(True, False)]}),
    "roberta": words(byte_level(), {"type": "RobertaProcessing", "sep": ["<|endoftext|>", 340],
                                    "cls": ["a", 64], "trim_offsets": True, "add_prefix_space": False}),
    "nfd": words(byte_level(), normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Replace", "pattern": {"Regex": r"[\u0300-\u0302]|\w\v"}, "content": "~"}]}),
    "nfkc": words(byte_level(), tokens=END + odd(341), normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Lowercase"}]}),
    "nfkd": words(byte_level(), normalizer={"type": "NFKD"}),
    "spaces": words({"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, byte_level(True, False)]}),
    "odd_regex": words(split(r"\p{Han}+|\w+|[^\w\s]+|\v|[\S\d]{,2}|(?>e)++|\u00e9?+|^y|.$")),
    "llama2": spm(None, normalizer=LLAMA2),
    "mistral": spm(metaspace("first", False)),
    "added": spm(None, normalizer=LLAMA2, tokens=odd(420)),
    "first": spm(metaspace("first"), tokens=odd(420)),
    "always": spm(metaspace("always"), metaspace("always"), normalizer={"type": "Strip", "strip_left": True,
                                                                        "strip_right": True}, byte_fallback=False),
    "never": spm(metaspace("never"), metaspace("never"), byte_fallback=False, fuse_unk=False),
    "plain": spm({"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, byte_fallback=False,
                 unk_token=None),
    "words": kind("words", added(0, "<unk>"), None, {"type": "WhitespaceSplit"}, None, None,
                  unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
}
def fallback(*first):
    return {"type": "Sequence", "decoders": [*first, {"type": "ByteFallback"}, {"type": "Fuse"}]}


KINDS.update({
    "unigram": scored(odd(UNIGRAM), None, metaspace("always"), metaspace("always"),
                      template([("<s>", 1)], [("</s>", 2)]), byte_fallback=False),
    "unigram_bytes": scored([], {"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, None,
        fallback({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}), byte_fallback=True),
    "unigram_first": scored([], {"type": "Lowercase"}, metaspace("first", False), metaspace("first")),
})
for how in "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
    KINDS["split_" + how] = words(split(r"\p{P}", how))
    KINDS["invert_" + how] = words(split("ing", how, True, False))


def fnv(data):
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return "%08x" % h


def write(name, content):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        f.write(content)


def main():
    write("texts.json", json.dumps(TEXTS, indent=0) + "\n")
    parts = {name: text(part)[1:-1] for name, part in PARTS.items()}
    for name, part in parts.items():
        write(name + ".part", part + "\n")
    for name, template_text in KINDS.items():
        whole = template_text
        for part in parts:
            whole = whole.replace("@%s@" % part, parts[part])
        t, lines = Tokenizer.from_str(whole), [template_text]
        # The package numbers added tokens by itself.
        for a in json.loads(whole)["added_tokens"]:
            assert t.token_to_id(a["content"]) == a["id"], (name, a)
        for sample in TEXTS:
            ids = t.encode(sample).ids
            lines.append(" ".join([fnv(b"".join(i.to_bytes(4, "little") for i in ids))] + [
                fnv(t.decode(ids, skip_special_tokens=skip).encode()) for skip in (True, False)]))
        write(name + ".txt", "\n".join(lines) + "\n")
    forms = []
    for form in normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD():
        for block in range(0, 0x30000, 0x1000):
            chars = "".join("a\u0301%c\u0323%c" % (c, c) for c in range(block, block + 0x1000)
                            if not 0xD800 <= c < 0xE000)
            forms.append(fnv(form.normalize_str(chars).encode()))
    write("forms.txt", "\n".join(forms) + "\n")


main()
