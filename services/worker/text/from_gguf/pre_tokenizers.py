r"""The rules that cut a text into words before byte-level BPE, under the names of `tokenizer.ggml.pre`.

A rule is a list of regular expressions, applied one after another: each cuts the pieces that those before
it left. They are those of the models' own tokenizers (`tokenizer.json`, tiktoken). llama.cpp approximates
some of them, such as the capitals outside ASCII of `gpt-4o` and `tekken`; here the model's own is used.
"""

from dataclasses import dataclass

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # of English words
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_NOT_WORD = r"[^\r\n\p{L}\p{N}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# letters with capitals as DeepSeek lists them, mostly those of Unicode 10
_CASED = (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943]"
)
_CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CHINESE_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _tiktoken(
    digits: str, *, suffix: str = _SUFFIX + "|", letters: str = r"\p{L}", breaks: str = _BREAKS
) -> str:
    """Return the form that most models since GPT-4 share."""
    marks = r"[\r\n]*"
    others = rf"[^\s{letters.strip('[]')}\p{{N}}]+"
    return rf"{suffix}{_NOT_WORD}?{letters}+|\p{{N}}{digits}| ?{others}{marks}|{breaks}"


def _cased(digits: str, suffix: str) -> str:
    """Return the form that also cuts before capitals."""
    words = (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
    begin = "|".join(f"{_NOT_WORD}?{word}{suffix}" for word in words)
    return rf"{begin}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut into words.

    Attributes:
        patterns: Regular expressions, in their order.
        composes: The text is brought to Unicode's form NFC first.
        keeps_words: A word that is a token is not built from merges.
        begins: A text begins with the token `bos`, if the file does not say otherwise.
    """

    patterns: tuple[str, ...]
    composes: bool = False
    keeps_words: bool = False
    begins: bool = False


_WORDS = PreTokenizer((_GPT2,))
_DIGITS = PreTokenizer((_DIGIT, _GPT2))
_LLAMA3 = _tiktoken("{1,3}")
_QWEN = _tiktoken("")

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "mellum", "trillion"), _WORDS),
    **dict.fromkeys(("mpt", "olmo"), PreTokenizer((_GPT2,), composes=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "command-r": PreTokenizer((_DIGIT, _GPT2), composes=True),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"),
        PreTokenizer((_LLAMA3,), keeps_words=True, begins=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), PreTokenizer((_LLAMA3,))),
    "qwen2": PreTokenizer((_QWEN,), composes=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), PreTokenizer((_QWEN,))),
    "qwen35": PreTokenizer((_tiktoken("", letters=r"[\p{L}\p{M}]"),)),
    "seed-coder": PreTokenizer((_QWEN.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        PreTokenizer((_tiktoken("", breaks=r"\s*[\r\n]|\s+(?!\S)|\s+"),)),
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"(?<!\s)\s+$",  # `\s+$` alone takes quadratic time
            _CHINESE,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, _DIGIT)),
    "deepseek-v3": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _CHINESE_AND_KANA,
            rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}",
        )
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": PreTokenizer((_cased("", ""),), keeps_words=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer((_cased("{1,3}", _SUFFIX + "?"),))),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
}
