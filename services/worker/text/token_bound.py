"""How few tokens a text can have at the least, from the tokenizer's file: its length by its longest token.

Tells in microseconds that a text is far too long for a context, where tokenizing it takes half a second for a
mebibyte.
"""

from collections.abc import Callable
from typing import Any

_KEEPS_LENGTH = frozenset({"Prepend", "Replace"})  # of which only the spaces of pieces are taken, see below
_KEEPS_TEXT = frozenset({"ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"})
_COMPOSES = 4  # composed characters are at most so many times shorter, in bytes


def least_tokens(spec: dict[str, Any]) -> Callable[[str], int]:
    """The bound as a function of a text; 0 for every text where a token may stand for text of any length.

    Args:
        spec: the tokenizer's file.
    """
    longest, shrinks = _longest_bytes(spec), _shrinks(spec.get("normalizer"))
    if not longest or not shrinks:
        return lambda text: 0
    absorbs = any(token["lstrip"] or token["rstrip"] for token in spec.get("added_tokens") or ())

    def bound(text: str) -> int:
        if absorbs:  # white space beside such a token belongs to it, however much there is
            text = "".join(text.split())
        return len(text.encode("utf-8", "surrogatepass")) // (longest * shrinks)

    return bound


def _longest_bytes(spec: dict[str, Any]) -> int:
    """Bytes of text that one token may stand for; 0: any number, as an unknown word of a word-piece model."""
    model = spec["model"]
    steps = _steps(spec.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] not in _KEEPS_TEXT or step.get("behavior") == "Removed" for step in steps):
        return 0
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    if model.get("type") not in {"BPE", "Unigram"} or not (byte_level or model.get("byte_fallback")):
        return 0
    vocab = model["vocab"]
    names = list(vocab) if isinstance(vocab, dict) else [entry[0] for entry in vocab]
    names += [token["content"] for token in spec.get("added_tokens") or ()]
    # byte-level names write a byte as one or two bytes: the bound is only looser for it
    return max(len(name.encode("utf-8", "surrogatepass")) for name in names)


def _shrinks(normalizer: dict[str, Any] | None) -> int:
    """How many times shorter the normalizer may make a text; 0: not known."""
    factor = 1
    for step in _steps(normalizer, "normalizers"):
        if step["type"] in {"NFC", "NFKC"}:
            factor = _COMPOSES
        elif step["type"] == "Replace":
            if step["pattern"] != {"String": " "} or not step["content"]:
                return 0
        elif step["type"] not in _KEEPS_LENGTH:
            return 0
    return factor


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    steps: list[dict[str, Any]] = part[name] if part["type"] == "Sequence" else [part]
    return steps
