"""Writes the goldens of tests/text/tokenizer.c with the `tokenizers` package (0.23) and, as
a second witness, `transformers`: python3 tests/golden/tokenizer/make.py

    difficult.txt        the difficult lines below, some of them no UTF-8
    vocab.txt            their characters as beginnings and continuations, and a few longer pieces
    ids-uncased.txt      one line of ids for each line; ids-cased.txt the same without lower-casing
    ids-special.txt      uncased, with [MASK] and its kin in the text taken for what they are
    ids-options.txt      of each line a hash of its ids, for each of the option sets
    codepoints.txt       a hash of what "xCy" becomes for all characters C of each block of 4096,
                         for each of the option sets
    trained.txt          the vocabulary that BertWordPieceTrainer makes of pseudo_corpus(), sorted
    folders/NAME/        tokenizers as `transformers` saves them, or cut down to files that it reads;
                         ids.txt in each: of the lines of folders/probes.txt, special tokens in them
                         included
"""
import itertools
import json
import os
import shutil
import tempfile

from tokenizers import AddedToken, BertWordPieceTokenizer, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from transformers import AutoTokenizer, BertTokenizer, BertTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = """un ##aff ##able ##ffa ##ff aff unaff th the ##he he hello world ##ld wor ##rl str
    ##ass ##ra ##sse straße strasse mask ##ask é ##é ca caf ##fé ##fe café cafe naive naïve
    ǆ ss 10 100 ##00 2024 ##24 ##" """.split()
# in no vocabulary, so that words with them are [UNK]
MISSING = "ʘ☃𝔘"

DIFFICULT = [
    "",
    " ",
    "Hello, World!  unaffable UNAFFABLE unaffableʘ the☃he 𝔘n the",
    "the ##he ## ### #he he##he _he_ he-he he'he \"he\" he/he\\he $he^he`he|he~he <he> a=b+c "
    "@the 100% 2024",
    "don't can't l'été C'est-à-dire… «guillemets» „Gänsefüßchen“ ‘quoted’ “quoted” ‹x› "
    "'tis—no–dash‐hyphen‑nb",
    # every kind of space, and what looks like one
    "a\tb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\x1fi\x85j\xa0k\u1680l\u2000m\u2001n\u2002o\u2003p\u2004q"
    "\u2005r\u2006s",
    "a\u2007b\u2008c\u2009d\u200ae\u2028f\u2029g\u202fh\u205fi\u3000j\u180ek\u200bl\u2060m"
    "\ufeffn\u3164o\u2800p",
    "\ufeffstarts with a mark of byte order, ends with spaces \u3000\xa0\t ",
    # controls, format characters, private use, noncharacters, unassigned
    "a\x00b\x01c\x02d\x07e\x08f\x1bg\x7fh\x80i\x9fj\xadk\u200cl\u200dm\u200en\u200fo\u202ap"
    "\u202eq\u2066r\u2069s",
    "a\ue000b\uf8ffc\U000f0000d\U0010fffde\ufdd0f\ufffeg\uffffh\U0010ffffi\u0378j\ufffdk\ufffcl"
    "\ufff9m",
    "x\u0600y\u06ddz\u070fx\u08e2y\u0890z\U000110bdx\U000110cdy\U00013430z\U0001bca0x\U0001d173y"
    "\U000e0001z\U000e0041x",
    # accents: composed, decomposed, stacked, in the wrong order, alone, leading
    "café cafe\u0301 CAFÉ CAFE\u0301 naïve Ångström Å Å A\u030a ÀÁÂÃÄÅàáâãäå ÇçÑñÝýÿŸ ŠšŽž "
    "Łł Øø Đđ Æœ ĳ ŉ",
    "Việt Nam Tiếng Việt: Trường Đại học, được, ngữ, ươ ƯƠ ự Ự ặ Ặ ẵ ẫ ỗ ỡ ǖ ǘ ǚ ǜ Ǖ",
    "a\u0301\u0323b a\u0323\u0301b q\u0307\u0323 q\u0323\u0307 \u0301a \u0301 "
    "a\u0301\u0302\u0303\u0304\u0305\u0306b",
    "Z\u0351\u036b\u0343\u036a\u0302\u0348\u0319a\u0334\u0335\u0338l\u034f\u0301g\u0360o\u0361x"
    "\u20d0y\u20e3z\u0488w\u0489v",
    "1\u0338 =\u0338 ≠ ≮ ≯ ∄ ∤ ⊄ `\u0300 ῁ ΅ ´ ` ¨ ¯ ¸ ˘ ; · ͺ ʹ",
    # case: German, Turkish, Greek, Cherokee, titlecase, letters with one case only
    "STRASSE Straße STRAẞE ß ẞ İstanbul ISTANBUL ıI iİ I\u0307 ſ ſt ﬀ ﬁ ﬆ Ω K Å µ μ Μ",
    "ΟΔΥΣΣΕΥΣ Ὀδυσσεύς ΣΊΣΥΦΟΣ Σ ς σ ϲ Ϲ ᾼ ᾳ ῌ ᾈ ᾀ ΐ ΰ Ἀθῆναι ἇ ὦ ϐ ϑ ϕ ϵ ϴ ϓ ϔ",
    "ǄǅǆǇǈǉǊǋǌǱǲǳ ƏəƎǝ ȺⱥȾⱦ Ɐɐ Ɑ Ɫ Ꞌ ꭓ Ꭓ ꓫ ᏣᎳᎩ ꮳꮃꭹ ᲐᲑᲒ აბგ ႠႡႢ ⴀⴁⴂ 𐐀𐐁𐐨𐐩 𞤀𞤁𞤢𞤣 Ａｂｃ Ⅷⅷ Ⓐⓐ",
    "\ua7cb\ua7cc\ua7da\ua7dc\u1c89\U00010d50\U00010d65\U00016ea0\U00016eb8\U00016e40\u0264\u019b",
    # Cyrillic, Armenian, Georgian
    "ПРИВЕТ, Мир! Ёлка ёлка Й й Ї ї Ў ў Ѓ Ќ Ѷ ѷ Ԁ Ꙁ ꙁ ꙯ а\u0483б\u0487в\u0488г Օրինակ՝ և եւ "
    "«Բարեւ»։",
    # right to left
    "שָׁלוֹם שלום־עולם יִשְׂרָאֵל שׁ שׂ אַ ﬡ ﬠ ײַ ״הי״ ׀ ׃ ׆ العَرَبِيَّة مُحَمَّد أإآؤئ ﷺ ﷽ "
    "لا ﻻ ـكـ ١٢٣ ۴۵۶ ؟ ، ؛ ۔ ܫܠܡܐ ދިވެހި ߒߞߏ",
    # Indic: nonspacing marks go, spacing ones stay, some vowels decompose into both
    "हिन्दी नमस्ते क्षत्रिय ज़ ड़ फ़ क़ ऩ ऱ बাংলা ড় ঢ় য় ো ৌ কো গੁਰਮੁਖੀ ਸ਼ ગુજરાતી ଓଡ଼ିଆ ୋ "
    "ୌ ୈ தமிழ் ொ ோ ௌ ஔ।॥",
    "తెలుగు ై ಕನ್ನಡ ೀ ೇ ೈ ೊ ೋ മലയാളം ൊ ോ ൌ සිංහල ේ ො ෝ ෞ ไทย ภาษาไทย ก็ น้ำ ลาว ພາສາລາວ ຳ "
    "བོད་ཡིག གྷ ཀྵ ཱི ཷ ཹ ྲྀ",
    "မြန်မာ ဦ ខ្មែរ ᜆᜄᜎᜓᜄ᜔ ᜴ ᠮᠣᠩᠭᠣᠯ᠎ᠠ ᢅᢆ ᬓ\u1b35 ᬆᬈᬊᬌᬎᬒᬻᬽᭀᭁᭃ ꦗꦮ꦳ ꦽ ꯃꯩ 𑄮 𑄯 𑍋 𑍌 𑒻 𑒼 𑒾 𑖺 𑖻 𑤸",
    "𑇉 ᙭ ꘎ ꩜ ꯫ 𐄀 𐎟 𐏐 𑁇 𑂻 𑅀 𑇅 𑈸 𑋝 𑑋 𑗁 𑙁 𑜼 𒑰 𖩮 𖫵 𖬷 𛲟 𝪇 ⹂ ⹃ ⹏ ⹝ ؝ ৽ ੶ ౷ ಄ ၌ ᭽ 𐺭 𑙠 𖺗",
    # Hangul: syllables, conjoining and compatibility jamo, tone marks
    "한국어 대한민국 가 각 갂 힣 ᄀ ᄀ\u1161 ᄀ\u1161\u11a8 가\u11a8 ㄱㅏ ﾡ \u115f\u1160 가\u302e나\u302f "
    "ꥠ\ud7b0\ud7cb 안녕하세요, 세계!",
    # CJK: unified, extensions A to H, compatibility, radicals, kana, half and full width
    "中文ABC漢字 日本語カタカナひらがな㐀㒨䶵䶿 一丁鿋鿕鿿 𠀀𠮷𪛖𪛟 𪜀𫜴 𫝀𫠝 𫠠𫢸𫤟 𫤠𬺡 𬺰𮯠 𰀀𱍊 𱍐",
    "豈更車賈滑 慈 切 﨎﨏﨑 﩮 﫚 丽丸乁𠄢 ⼀⼂ ⺀⻳ 々〆〇〡 ㈠㊀㌀㍿ カﾞガか\u3099が は\u309aぱ ヽヾゝゞ ー ｰ",
    "ＡＢＣａｂｃ１２３！？，．（）［］｛｝＠＃＄％＆＊＋－／＜＝＞＾＿｀｜～ ｡｢｣､･ｦｧ ￠￡￥￦ 、。〈〉《》「」『』【】〜・",
    # symbols, emoji with joiners, selectors, skin tones, flags, keycaps
    "€ £ ¥ ¢ © ® ™ ° ± × ÷ ¬ ¦ § ¶ • † ‡ ‰ ′ ″ ‼ ⁇ ⁉ № ℃ ℉ ⅓ ½ ² ³ ¹ ⁿ ₂ → ⇒ ∀ ∑ √ ∞ ≈ ≤ ■ ★ "
    "♥ ✓ ❤ ❤\ufe0f",
    "😀 👍🏽 👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 🇫🇷🇩🇪 1\ufe0f\u20e3 #\ufe0f\u20e3 "
    "🤷🏾\u200d♀\ufe0f 🥰 🫠 🫨 🤣🤣 a😀b 😀.😀",
    # musical notes decompose into pieces that combine and stay: canonical order matters
    "𝅗𝅥 𝅘𝅥 𝅘𝅥𝅮 𝅘𝅥𝅯 𝅘𝅥𝅲 𝆹𝅥 𝆹𝅥𝅮 x\U0001d16d\U0001d165y x\U0001d16d\u0301\U0001d165y "
    "x\U0001d16d\u034f\U0001d165y x\U0001d16d\u200d\U0001d165y",
    "x\U0001d165\u302e\u302a\U0001d16dy \u302f\U0001d165 x\U0001d16d\U0001d165, "
    "\U0001d16d.\U0001d165 x\u1baa\u07fdy x\U0001e94a\u302ey x\u1dfb\u302ey",
    "𝐇𝐞𝐥𝐥𝐨 𝒜 𝔄 𝕳 𝚊 ℌ ℵ ⒽⒺ ⅰⅱ ᴬᵃ ʰ ₐ ªº ꟹ ꭜ",
    # lengths
    "a" * 99 + " " + "a" * 100 + " " + "a" * 101 + " " + "a" * 200 + "-" + "a" * 100,
    "é" * 100 + " " + "é" * 101 + " " + "e\u0301" * 100 + " " + "e\u0301" * 101
    + " " + "\u0301" * 300 + " x" + "\u0301" * 300,
    "각" * 33 + "ab " + "각" * 33 + "a " + "각" * 34 + " " + "가" * 50 + " " + "가" * 51 + " "
    + "中" * 120,
    "😀" * 100 + " " + "😀" * 101 + " a" + "\u200d" * 200 + "b " + "𝅘𝅥𝅮" * 33 + " " + "𝅘𝅥𝅮" * 34,
    "a" * 100 + "\u0301." + "a" * 100 + "\U0001d165 " + "a" * 99 + "\U0001d16d\U0001d165 "
    + "a" * 98 + "\U0001d16d\U0001d165",
    # special tokens in the text
    "Paris is the [MASK] of France . [CLS]the[SEP][PAD][UNK][MASK]he [mask] [ MASK ] [MASK "
    "[MASK[MASK]] [[MASK]MASK] [MA\u200dSK]",
    "[MASK]\u0301a [MASK]\u200d[MASK] a[MASK]\U0001d165b [CLS ] [XYZ] [] [ ] [PADS] [SEP",
]

# lines that are no UTF-8
BROKEN = [
    b"a\x80b \xbf \xc0\xafx \xc1\xbfy \xe0\x80\xafz \xe0\x9f\xbfx \xf0\x80\x80\xafy "
    b"\xf0\x8f\xbf\xbfz",
    b"a\xed\xa0\x80b \xed\xbf\xbfc \xed\xa0\x80\xed\xb0\x80d \xf4\x90\x80\x80e "
    b"\xf5\x80\x80\x80f \xf8\x88\x80\x80\x80g \xfc\xfe\xffh",
    b"the\xe2\x82he the\xe2he the\xf0\x9f\x98he the\xf0\x9f\xc3\xa9 \xc3\xc3\xa9 "
    b"\xe2\x82\xc3\xa9 \xe2\x82\xe2\x82\xac \xf0\x9f\x98\xf0\x9f\x98\x80",
    b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff\xfeh\x00e\x00", b"caf\xe9 na\xefve "
    b"[MA\xffSK] [MASK\xff]",
    b"\xef\xbb\xbfthe \xef\xbf\xbd \xef\xbf\xbe \xc2\xa0\xc2 \xed\x9f\xbf \xee\x80\x80 "
    b"\xf4\x8f\xbf\xbf",
]

# lowercase, strip_accents, handle_chinese_chars, clean_text; tests/text/tokenizer.c counts likewise
OPTIONS = list(itertools.product((True, False), repeat=4))
UNCASED, CASED = (True, True, True, True), (False, False, True, True)
NORMALIZE = {o: normalizers.BertNormalizer(lowercase=o[0], strip_accents=o[1],
                                           handle_chinese_chars=o[2], clean_text=o[3])
             for o in OPTIONS}
SPLIT = pre_tokenizers.BertPreTokenizer()


def words(text, options):
    normal = NORMALIZE[options].normalize_str(text)
    return [w for w, _ in SPLIT.pre_tokenize_str(normal)]


def bare(vocab, options):
    """The tokenizer as it is before special tokens are added."""
    t = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer, t.pre_tokenizer = NORMALIZE[options], SPLIT
    return t


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def short(data):
    h = fnv(data)
    return h >> 32 ^ h & 0xFFFFFFFF


def codepoints():
    for block in range(0, 0x110000, 4096):
        line = "%06x" % block
        for options in OPTIONS:
            text = ""
            for c in range(block, block + 4096):
                if 0xD800 <= c < 0xE000:
                    continue
                text += "\n".join(words("x" + chr(c) + "y", options)) + "\n\n"
            line += " %08x" % short(text.encode())
        yield line


def pseudo_corpus():
    """Words of syllables, short and early ones frequent; tests/text/tokenizer.c has the same."""
    syllables = "ka to mi Re su no é la po in ter ra ch un st".split()
    state, lines = 1, []

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return (state >> 33) % n

    for _ in range(2000):
        line = []
        for _ in range(8):
            n = 1 + min(draw(5), draw(5))
            line.append("".join(syllables[min(draw(15), draw(15))] for _ in range(n)))
        lines.append(" ".join(line) + ".")
    return "\n".join(lines) + "\n"


def trained():
    """The tokens, which must be the same in every run: the order in which the package numbers the
    continuations changes from run to run, and with it the ties."""
    results = set()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write(pseudo_corpus())
        f.flush()
        for _ in range(12):
            t = BertWordPieceTokenizer(lowercase=True)
            t.train([f.name], vocab_size=400, min_frequency=2, limit_alphabet=1000,
                    show_progress=False)
            results.add("\n".join(sorted(t.get_vocab(), key=lambda s: s.encode())))
    assert len(results) == 1, "choose another size: %d outcomes" % len(results)
    return results.pop()


PROBES = [
    "The cat's Café, DÉJÀ vu: naïve Ångström STRASSE straße İI.",
    "中文ABC漢字 豈更 カタカナ ﬁx Ｆｕｌｌ！ Ελλάς ΣΊΣΥΦΟΣ Ёлка क्षत्रिय 한국어",
    "a\x00b\x0bc\x85d\xa0e\u200bf\ufffdg\u2028h\ue000i e\u0301 \u0301x 𝅘𝅥𝅮 1\u0338",
    "[CLS] the [MASK] of <x> and <x>y<x [MASK]<x>, [SEP]<X> [mask] [PAD]",
    "the the\u3000cat and  of cats",
    "qux QUX quxa aqux",
    "",
]


def alphabet(lines):
    """The characters that are left of the lines, but for some that make words [UNK]."""
    characters = {c for o in OPTIONS for line in lines for w in words(line, o) for c in w}
    return sorted(characters - set(MISSING) - set("\x00\u200b"))


def folders(lines):
    """Each is a folder that transformers reads; the second value is how it is read."""
    letters = alphabet(lines)
    tokens = SPECIAL + ["the", "The", "cat", "##ts", "and", "of"] + letters
    tokens += ["##" + c for c in letters]
    place = os.path.join(HERE, "folders")
    shutil.rmtree(place, ignore_errors=True)
    write("folders/probes.txt", lines)

    def build(**options):
        return BertTokenizer(vocab={t: i for i, t in enumerate(tokens)}, **options)

    def save(name, tokenizer):
        tokenizer.save_pretrained(os.path.join(place, name))

    def change(name, source, edit, config=None):
        """A copy of another folder whose tokenizer.json is edited and whose config is another."""
        folder = os.path.join(place, name)
        shutil.copytree(os.path.join(place, source), folder)
        path = os.path.join(folder, "tokenizer.json")
        with open(path, encoding="utf-8") as f:
            tree = json.load(f)
        edit(tree)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(tree, f, ensure_ascii=False, indent=1)
        path = os.path.join(folder, "tokenizer_config.json")
        os.remove(path)
        if config is not None:
            with open(path, "w", encoding="utf-8") as f:
                json.dump(config, f, indent=1)

    save("uncased", build())
    save("cased", build(do_lower_case=False))
    save("accents", build(strip_accents=False))
    save("capitals", build(do_lower_case=False, strip_accents=True))
    save("joined", build(tokenize_chinese_chars=False))
    added = build()
    added.add_special_tokens({"additional_special_tokens": ["<x>"]})
    added.add_tokens([AddedToken(token, normalized=False, special=False)
                      for token in ("<x>y", "qux")])
    save("added", added)
    # without tokenizer_config.json: as the package `tokenizers` reads it
    change("alone", "cased", lambda tree: None)
    # of any model: tokenizer.json counts and not do_lower_case
    change("any", "cased", lambda tree: None,
           {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True,
            "unk_token": "[UNK]"})
    # with another do_lower_case in tokenizer.json
    change("other", "cased", lambda tree: None,
           {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    change("controls", "uncased",
           lambda tree: tree["normalizer"].update(clean_text=False, strip_accents=False))
    change("plain", "uncased", lambda tree: tree.update(normalizer=None))
    # vocab.txt: with duplicate and empty lines; with what an older transformers wrote next to it
    write("folders/lines/vocab.txt", SPECIAL + ["", "the", "cat ", "the", "", "cats\t"] + tokens[5:])
    write("folders/older/vocab.txt", tokens)
    with open(os.path.join(place, "older", "tokenizer_config.json"), "w", encoding="utf-8") as f:
        token = {"lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": False, "unk_token": "[UNK]",
                   "strip_accents": None, "cls_token": {"__type": "AddedToken", "content": "[CLS]"},
                   "added_tokens_decoder": {
                       str(len(tokens)): dict(content="<x>", special=True, **token),
                       "4": dict(content="[MASK]", special=True, **token)}}, f, indent=1)
    for name in sorted(os.listdir(place)):
        folder = os.path.join(place, name)
        if name == "probes.txt":
            continue
        if name in ("alone", "controls", "plain"):
            t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
            ids = [t.encode(line, add_special_tokens=False).ids for line in lines]
        else:
            with open(os.path.join(folder, "config.json"), "w") as f:
                f.write('{"model_type": "bert"}')
            t = AutoTokenizer.from_pretrained(folder)
            os.remove(os.path.join(folder, "config.json"))
            ids = [t.encode(line, add_special_tokens=False) for line in lines]
        write("folders/%s/ids.txt" % name, [" ".join(map(str, x)) for x in ids])


def write(name, lines):
    path = os.path.join(HERE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write("".join(line + "\n" for line in lines).encode())


def main():
    raw = [line.encode() for line in DIFFICULT] + BROKEN
    assert not any(b"\n" in line for line in raw)
    with open(os.path.join(HERE, "difficult.txt"), "wb") as f:
        f.write(b"\n".join(raw) + b"\n")
    lines = [line.decode("utf-8", errors="ignore") for line in raw]

    characters = alphabet(lines)
    tokens = SPECIAL + characters + ["##" + c for c in characters]
    tokens += [p for p in dict.fromkeys(PIECES) if p not in tokens]
    write("vocab.txt", tokens)
    vocab = {token: i for i, token in enumerate(tokens)}

    for name, options in (("ids-uncased.txt", UNCASED), ("ids-cased.txt", CASED)):
        t = bare(vocab, options)
        write(name, [" ".join(map(str, t.encode(line).ids)) for line in lines])
    tokenizers = [bare(vocab, o) for o in OPTIONS]
    write("ids-options.txt", [" ".join("%08x" % short(" ".join(map(str, t.encode(line).ids)).encode())
                                       for t in tokenizers) for line in lines])
    lines = [line.decode("utf-8", errors="replace") for line in raw] # where a token is cut
    t = BertWordPieceTokenizer(vocab, lowercase=True)
    special = [t.encode(line, add_special_tokens=False).ids for line in lines]
    write("ids-special.txt", [" ".join(map(str, ids)) for ids in special])
    fast = BertTokenizerFast(vocab=vocab, do_lower_case=True)
    for line, ids in zip(lines, special):
        assert fast.encode(line, add_special_tokens=False) == ids, line
    folders(PROBES)
    write("codepoints.txt", codepoints())
    write("trained.txt", trained().split("\n"))


if __name__ == "__main__":
    main()
