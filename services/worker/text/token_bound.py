"""A lower bound for the number of a text's tokens: its length divided by that of the longest token.

It finds texts that are far too long for a context in microseconds; tokenizing takes half a second per
mebibyte.
"""

from collections.abc import Callable
from typing import Any

_KEEPS_LENGTH = frozenset({"Prepend", "Replace"})  # `Replace` only if it replaces spaces, see `_shrinks`
_KEEPS_TEXT = frozenset({"ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"})
_COMPOSES = 4  # most by which composing characters shortens a text, in bytes


def least_tokens(spec: dict[str, Any]) -> Callable[[str], int]:
    """Return the bound as a function of a text; it gives 0 if a token may stand for text of any length.

    Args:
        spec: Content of the tokenizer's file.
    """
    longest, shrinks = _longest_bytes(spec), _shrinks(spec.get("normalizer"))
    if not longest or not shrinks:
        return lambda text: 0
    absorbs = any(token["lstrip"] or token["rstrip"] for token in spec.get("added_tokens") or ())

    def bound(text: str) -> int:
        if absorbs:  # such a token includes all white space beside it
            text = "".join(text.split())
        return len(text.encode("utf-8", "surrogatepass")) // (longest * shrinks)

    return bound


def _longest_bytes(spec: dict[str, Any]) -> int:
    """Return the most bytes of one token; 0: no limit, as an unknown word of a word-piece model."""
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
    # byte-level names write a byte as one or two bytes, which only loosens the bound
    return max(len(name.encode("utf-8", "surrogatepass")) for name in names)


def _shrinks(normalizer: dict[str, Any] | None) -> int:
    """Return the factor by which the normalizer may shorten a text; 0 if it is not known."""
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
