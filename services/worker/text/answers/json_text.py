"""Makes JSON text of values that a model writes in another form."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from services.worker.text.answers.text_reader import Malformed

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def inside_string(text: str) -> str:
    """Returns text as it stands in a JSON string, without its quotes."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_string(text: str) -> str:
    """Returns a JSON string."""
    return f'"{inside_string(text)}"'


def is_text(schema: Mapping[str, Any]) -> bool:
    """Returns whether a value of a schema is a string, as far as the schema says it itself.

    A value without a schema is one: models that write no types mean text.
    """
    if not schema:
        return True
    if "enum" in schema and "type" not in schema:
        return isinstance(schema["enum"], list) and all(isinstance(value, str) for value in schema["enum"])
    return schema.get("type") == "string"


def written_value(text: str) -> str:
    """Returns a value that a model has written without quotes, as JSON: a string where it is nothing else."""
    stripped = text.strip()
    word = {"True": "true", "False": "false", "None": "null"}.get(stripped, stripped)
    try:
        json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return as_string(text)
    return word


def number(word: str) -> str:
    """Returns a number or a word of Python as JSON. Raises `Malformed` for any other text."""
    if _NUMBER.fullmatch(word):
        return word
    words = {
        "True": "true",
        "False": "false",
        "None": "null",
        "true": "true",
        "false": "false",
        "null": "null",
    }
    if word in words:
        return words[word]
    try:
        value = ast.literal_eval(word) if len(word) < 512 else None
        if type(value) not in (int, float):
            raise Malformed("no number")
        return json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, OverflowError, MemoryError) as error:
        raise Malformed("no number") from error


def _no_constant(name: str) -> None:
    raise ValueError(name)
