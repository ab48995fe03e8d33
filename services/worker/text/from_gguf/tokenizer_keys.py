"""Reads the keys `tokenizer.*` of a GGUF file with their types, and bounds what a vocabulary may hold.

What the keys mean is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import shown

_NO_TOKEN = frozenset({-1, 2**32 - 1})  # how llama.cpp writes that there is no token, signed and unsigned


@dataclass(frozen=True, slots=True)
class TokenizerKeys:
    """The metadata of a file, of which only the keys of its tokenizer are read.

    Attributes:
        path: The file, for refusals.
        metadata: All metadata of the file.
    """

    path: Path
    metadata: Mapping[str, Any]

    def text(self, key: str) -> str:
        """Return a text; empty if the file does not give it."""
        value = self._value(key, "")
        if not isinstance(value, str):
            raise self.error(key, "must be a text")
        return value

    def named_texts(self, key: str, most: int) -> dict[str, str]:
        """Return the texts of the keys that begin with this one and a dot, at most so many, by their ends."""
        begin = f"tokenizer.{key}."
        found = [name.removeprefix(begin) for name in self.metadata if name.startswith(begin)]
        return {name: self.text(f"{key}.{name}") for name in found[:most]}

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def token_id(self, key: str, num_tokens: int, *, needed: bool = True) -> int | None:
        """Return the id of a token of the vocabulary; None if the file does not name one.

        Args:
            needed: Refuse a value that is no such id; otherwise it names no token.
        """
        value = self._value(key, None)
        if value is None or (type(value) is int and value in _NO_TOKEN):
            return None
        if type(value) is not int or not 0 <= value < num_tokens:
            if not needed:
                return None
            raise self.error(key, f"must be the id of one of the {num_tokens} tokens")
        return value

    def texts(self, key: str, most: int) -> list[str]:
        """Return a list of at most so many texts; empty if the file does not give it."""
        return self._list(key, most, (str,), "texts")

    def integers(self, key: str, most: int) -> list[int]:
        """Return a list of at most so many integers."""
        return self._list(key, most, (int,), "integers")

    def numbers(self, key: str, most: int) -> list[float]:
        """Return a list of at most so many numbers."""
        return self._list(key, most, (float, int), "numbers")

    def error(self, key: str, complaint: str) -> BadGguf:
        """Return the refusal of the value of one key."""
        value = self._value(key, None)
        return BadGguf(
            f"{self.path}: `tokenizer.{key}` {complaint}, got {shown(value)}; convert the model again"
        )

    def refusal(self, reason: str) -> BadGguf:
        """Return a refusal that is not about a single key."""
        return BadGguf(f"{self.path}: {reason}")

    def _list(self, key: str, most: int, kinds: tuple[type, ...], what: str) -> list[Any]:
        value = self._value(key, [])
        if not isinstance(value, list) or not set(map(type, value)) <= set(kinds):
            raise self.error(key, f"must be a list of {what}")
        if len(value) > most:
            raise BadGguf(
                f"{self.path}: `tokenizer.{key}` has {len(value)} entries, {most} are the limit; use a model "
                "with a smaller vocabulary"
            )
        return value

    def _value(self, key: str, default: Any) -> Any:
        return self.metadata.get(f"tokenizer.{key}", default)
