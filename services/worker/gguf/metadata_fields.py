"""Reads the keys of a GGUF file that describe its architecture, checks their types, and remembers them.

A key that is left unread may change the computation, so it is refused by name. `gguf/config.py` gives the
keys their meaning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from services.worker.gguf.gguf_file import GgufFile
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import shown

LARGEST = 10**12  # of any number, far beyond what a model has


@dataclass(frozen=True, slots=True)
class MetadataFields:
    """The keys that begin with the architecture's name; they are given without it.

    Attributes:
        read: Keys that were asked for, without the architecture's name.
    """

    file: GgufFile
    read: set[str] = field(default_factory=set)

    def has(self, key: str) -> bool:
        """Whether the file gives the key; it then counts as read."""
        self.read.add(key)
        return self._full(key) in self.file.metadata

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """An integer from `least` to `most`."""
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
            raise self.error(key, f"a number above 0, at most {LARGEST:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def require(self, key: str, neutral: Sequence[Any]) -> None:
        """Refuses a key unless its value leaves the computation unchanged."""
        value = self._get(key, neutral[0])
        if (
            isinstance(value, list)
            or (isinstance(value, float) and not isfinite(value))
            or value not in neutral
        ):
            wanted = " or ".join(repr(each) for each in neutral)
            raise self.error(key, f"{wanted}, because nothing else is supported")

    def refuse_unread(self) -> None:
        """Refuses the keys of the architecture that were not asked for.

        Raises:
            BadGguf: There are some; the first ones are named.
        """
        prefix = self._full("")
        keys = (key.removeprefix(prefix) for key in self.file.metadata if key.startswith(prefix))
        unread = sorted(key for key in keys if key not in self.read)
        if unread:
            names = ", ".join(f"`{prefix}{key[:80]}`" for key in unread[:3])
            raise BadGguf(
                f"{self.file.path} gives {names}, which may change what the model computes and is not "
                "supported; use another model"
            )

    def error(self, key: str, expected: str) -> BadGguf:
        """The refusal of one key."""
        value = self.file.metadata.get(self._full(key))
        return BadGguf(f"{self.file.path}: `{self._full(key)}` must be {expected}, got {shown(value)}")

    def _get(self, key: str, default: Any) -> Any:
        self.read.add(key)
        return self.file.metadata.get(self._full(key), default)

    def _full(self, key: str) -> str:
        return f"{self.file.architecture}.{key}"
