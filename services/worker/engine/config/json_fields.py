"""Reads and checks fields of a model's JSON files, and makes the sentence that refuses one.

The meaning of the fields is in `read_config.py` and `config/rope.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from services.worker.model_files.json_files import MAX_CONFIG_BYTES, BadFile, read_object, shown

Choice = TypeVar("Choice")

LARGEST = 10**12  # of any number in a config, far beyond what a model has


class ModelError(Exception):
    """A model directory or setting that cannot be served; the text names the file, tensor or setting."""


@dataclass(frozen=True, slots=True)
class JsonFields:
    """The fields of one JSON object. A field that is null counts as missing, unless said otherwise.

    Fields that are read are remembered, so that those that nothing reads can be refused.

    Attributes:
        path: Of the file, for refusals.
        raw: The object, with defaults.
        prefix: Path of the object in the file, such as `rope_scaling.`.
        names: What the file calls a field, where that is not the name it is asked for by.
        known: Fields that were read.
        tables: Objects that were read, by their names.
    """

    path: Path
    raw: dict[str, Any]
    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    known: set[str] = field(default_factory=set, compare=False)
    tables: dict[str, "JsonFields"] = field(default_factory=dict, compare=False)

    def with_defaults(self, **defaults: Any) -> "JsonFields":
        """The same with defaults for absent fields; null in the file stays null."""
        missing = {self.named(name): value for name, value in defaults.items()}
        return replace(self, raw=missing | self.raw)

    def renamed(self, **names: str) -> "JsonFields":
        """The same for a file that has other names for some fields; the usual names remain possible."""
        return replace(self, names={name: other for name, other in names.items() if name not in self.raw})

    def named(self, name: str) -> str:
        """What the file calls a field."""
        return self.names.get(name, name)

    def get(self, name: str) -> Any:
        """The value as it is; None if it is missing."""
        self.known.add(self.named(name))
        return self.raw.get(self.named(name))

    def ignore(self, *names: str) -> None:
        """Says that these fields have no effect in the state that the others describe."""
        self.known.update(self.named(name) for name in names)

    def not_null(self, *names: str) -> None:
        """Refuses null in fields where it is another value than the default."""
        for name in names:
            if self.named(name) in self.raw and self.raw[self.named(name)] is None:
                raise self.error(name, "absent or a value, because null has a meaning of its own")

    def unread(self) -> Iterator[tuple["JsonFields", str]]:
        """Fields that nothing has read, here and in objects that were read; null is no field."""
        for name, value in self.raw.items():
            if name not in self.known and value is not None:
                yield self, name
        for table in self.tables.values():
            yield from table.unread()

    def choice(self, name: str, allowed: Mapping[Any, Choice], default: Any = None) -> Choice:
        """What a table has for the field's value."""
        value = self._get(name, default)
        if not isinstance(value, str | int) or value not in allowed:
            raise self.error(name, f"one of {', '.join(str(each) for each in allowed)}")
        return allowed[value]

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses a value that is not among these; a missing field is none."""
        value = self.get(name)
        if value is not None and value not in allowed:
            raise self.error(name, _one_of(allowed))

    def integer(self, name: str, default: int | None = None, most: int = LARGEST) -> int:
        """A positive integer, at most `most`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "a positive integer")
        if value > most:
            raise self.error(name, f"at most {most}")
        return value

    def count(self, name: str, default: int, most: int = LARGEST) -> int:
        """As `integer`, or 0."""
        value = self._get(name, default)
        return 0 if value == 0 and type(value) is int else self.integer(name, default, most)

    def number(
        self, name: str, default: float | None = None, least: float = 0.0, most: float = LARGEST
    ) -> float:
        """A number above 0 that is `least` or more, and at most `most`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(name, "a positive number")
        if value > most:
            raise self.error(name, f"at most {most:g}")
        if value < least:
            raise self.error(name, f"{least:g} or more")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self.get(name)
        numbers = value if isinstance(value, list) else []
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise self.error(name, "a list of numbers")
        if not all(0 < n <= LARGEST for n in numbers):
            raise self.error(name, f"a list of numbers above 0, at most {LARGEST:g}")
        return tuple(float(n) for n in numbers)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def table(self, name: str) -> "JsonFields":
        """The fields of an object in the file; empty if it is missing."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "an object or null")
        new = JsonFields(self.path, value, f"{self.prefix}{self.named(name)}.")
        return self.tables.setdefault(name, new)

    def missing(self, name: str) -> bool:
        """Whether the field is missing or null."""
        return self.get(name) is None

    def error(self, name: str, expected: str) -> ModelError:
        """The refusal of one field."""
        return ModelError(
            f"{self.path}: `{self.prefix}{self.named(name)}` must be {expected}, got {shown(self.get(name))}"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.get(name)
        return default if value is None else value


def _one_of(values: tuple[Any, ...]) -> str:
    wanted = " or ".join(repr(value) for value in values) if values else "absent or null"
    return f"{wanted}, because nothing else is supported"


def read_json(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Reads a JSON object from a file of at most `most` bytes.

    Raises:
        ModelError: The sentence names the file.
    """
    try:
        return read_object(path, most)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model is a directory in Hugging Face format") from None
    except BadFile as error:
        raise ModelError(f"{path} {error}") from error
