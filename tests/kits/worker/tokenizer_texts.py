# ruff: noqa: RUF001 (characters that look like others are meant)
"""Texts on which tokenizers are compared: code, scripts, emoji, control tokens, bytes, spaces, digits.

They depend only on the number asked for, so two programs compare the same ones.
"""

import json
import random
import sys
from collections.abc import Callable

_PROSE = (
    "The quick brown fox's tail wasn't caught; they'll say WE'VE lost, don't they? It cost $3.50 (or 4 €)...",
    "Größe, naïve façade, señor, Ångström, ĳ, œuvre, Łódź, İstanbul, ẞ and ﬁ: e\u0301 is no é here.",
    "Привет, мир! Ёлка и съезд — 12-го числа.",
    "Καλημέρα κόσμε, τί κάνεις; ΑΒΓ άέή.",
    "שלום עולם, מה שלומך? בְּרֵאשִׁית",
    "مرحبا بالعالم، كيف حالك؟ السَّلَامُ عَلَيْكُمْ ١٢٣٤٥ لا إله",
    "हिन्दी में लिखा हुआ वाक्य १२३ और க் தமிழ் ไทยภาษา កម្ពុជា",
    "你好，世界！这是一个测试。龍馬 繁體字 〇 ㈱ ２０２４年１１月",
    "こんにちは世界、カタカナとひらがな。ｶﾀｶﾅ 日本語の文章です",
    "안녕하세요 세계! 한국어 문장입니다. ㅋㅋㅋ",
)
_CODE = (
    "def f(x: int = 0x1F, *args, **kw) -> dict[str, list[int]]:\n    return {k: [v ** 2] for k, v in kw}\n",
    "for (int i = 0; i < n && !done; ++i) {\n\t\tif (a[i] != '\\0') printf(\"%5.2f\\n\", a[i]);\n\t}\r\n",
    "SELECT a.*, COUNT(DISTINCT b.id) FROM t1 a LEFT JOIN t2 b ON a.id=b.a_id WHERE x >= 1e-10;\n",
    "<div class=\"x\" onclick='f(&quot;y&quot;)'><!-- c --><b>1</b></div>\n\n\n",
    '{"key": [1, 2.5e+3, null, true], "\\u00e9": "a\\tb"}',
    "#!/bin/sh\nfind . -name '*.py' | xargs grep -n \"foo\\|bar\" 2>/dev/null || exit 1\n",
    "https://example.com/a/b?c=d%20e&f[]=1#frag user@host.org C:\\Windows\\system32 ../../x~",
    "x=1+2*(3-4)/5%6^7&8|9<<10>>11!=12==13<=14>=15->16=>17::18:=19??20?.21",
)
_EMOJI = ("😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "❤️", "🇫🇷", "1️⃣", "🤦🏼‍♂️", "✨", "☕")
_CONTROL = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<bos>", "<eos>", "<unk>", "<pad>",
    "<start_of_turn>", "<end_of_turn>", "<repo_name>", "<reponame>", "<file_sep>", "<|im_", "im_end|>",
    "<0x0A>", "<unused7>", "[@BOS@]", "<mask>", "<jupyter_start>", "[INST]", "<|eot_id|>",
    "\u2581", "\u2581\u2581the", "<b>", "</h1>", "<table>",
)  # fmt: skip
_SPACES = " \t\n\r\v\f\u00a0\u1680\u2003\u2028\u2029\u202f\u3000\u200b\ufeff\x85\x1c"


def _prose(chance: random.Random) -> str:
    words = " ".join(chance.choices(_PROSE, k=3)).split(" ")
    begin = chance.randrange(len(words))
    return " ".join(words[begin : begin + chance.randrange(1, 25)])


def _code(chance: random.Random) -> str:
    text = "".join(chance.choices(_CODE, k=2))
    begin = chance.randrange(20)
    return text[begin : begin + chance.randrange(5, 160)]


def _emoji(chance: random.Random) -> str:
    return "".join(chance.choice((*_EMOJI, " ", "a", ".")) for _ in range(chance.randrange(1, 12)))


def _control(chance: random.Random) -> str:
    return "".join(chance.choice((*_CONTROL, *_CONTROL, " ", "\n", "user", "hi ")) for _ in range(8))


def _bytes(chance: random.Random) -> str:
    return chance.randbytes(chance.randrange(1, 60)).decode(errors="replace")


def _spaces(chance: random.Random) -> str:
    parts = (chance.choice(_SPACES) * chance.randrange(1, 40), chance.choice(("", "x", "Ab", "1", "é", "!")))
    return "".join(chance.choice(parts) for _ in range(chance.randrange(1, 12)))


def _digits(chance: random.Random) -> str:
    forms = ("{}", " {}", "{:,}", "-{}", "0x{:x}", "{}e5", "#{}", "{}²", "½{}", "٣{}", "x{}")
    return "".join(
        chance.choice(forms).format(chance.randrange(10 ** chance.randrange(1, 18))) for _ in range(4)
    )


def _long_word(chance: random.Random) -> str:
    letters = chance.choice(
        ("a", "ab", "abcdefghijklmnopqrstuvwxyz", "é", "=-_", "字", "AaBb", "ha", "0", "😀")
    )
    return "".join(chance.choice(letters) for _ in range(chance.choice((50, 300, 3000))))


def _characters(chance: random.Random) -> str:
    """Return characters of all planes, but no halves of pairs."""
    limits = (0x80, 0x250, 0x3000, 0xD800, 0x1F700)
    numbers = (chance.randrange(chance.choice(limits)) for _ in range(chance.randrange(1, 40)))
    return "".join(chr(number) for number in numbers if not 0xD800 <= number < 0xE000)


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _prose, _code, _emoji, _control, _bytes, _spaces, _digits, _long_word, _characters,
)  # fmt: skip


def tokenizer_texts(count: int) -> list[str]:
    """Return so many different texts, of all kinds in turn."""
    chance = random.Random(14)
    texts: dict[str, None] = {}
    while len(texts) < count:
        for make in _KINDS:
            texts[make(chance)] = None
    return list(texts)[:count]


if __name__ == "__main__":
    json.dump(tokenizer_texts(int(sys.argv[1])), sys.stdout)
