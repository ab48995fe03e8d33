"""Reads and checks fields of a model's JSON files, and makes the sentence that refuses one.

The meaning of the fields is in `read_config.py` and `rope_config.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.json_files import MAX_CONFIG_BYTES, BadFile, read_object, shown

LARGEST = 10**12  # of any number in a config, far beyond what a model has


class ModelError(Exception):
    """A model directory or setting that cannot be served; the text names the file, tensor or setting."""


@dataclass(frozen=True, slots=True)
class JsonFields:
    """The fields of one JSON object. A field that is null counts as missing, unless said otherwise.

    Attributes:
        path: Of the file, for refusals.
        raw: The object.
        prefix: Path of the object in the file, such as `rope_scaling.`.
    """

    path: Path
    raw: dict[str, Any]
    prefix: str = ""

    def with_defaults(self, **defaults: Any) -> "JsonFields":
        """The same with defaults for absent fields; null in the file stays null."""
        return JsonFields(self.path, defaults | self.raw, self.prefix)

    def integer(self, name: str, default: int | None = None, most: int = LARGEST) -> int:
        """A positive integer, at most `most`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "a positive integer")
        if value > most:
            raise self.error(name, f"at most {most}")
        return value

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        """A number above 0 that is `least` or more, and at most `LARGEST`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(name, "a positive number")
        if value > LARGEST:
            raise self.error(name, f"at most {LARGEST:g}")
        if value < least:
            raise self.error(name, f"{least:g} or more")
        return float(value)

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
        return JsonFields(self.path, value, f"{self.prefix}{name}.")

    def missing(self, name: str) -> bool:
        """Whether the field is missing or null."""
        return self.raw.get(name) is None

    def error(self, name: str, expected: str) -> ModelError:
        """The refusal of one field."""
        return ModelError(
            f"{self.path}: `{self.prefix}{name}` must be {expected}, got {shown(self.raw.get(name))}"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        return default if value is None else value


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
