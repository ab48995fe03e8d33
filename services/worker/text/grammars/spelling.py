"""Refuses fixed texts of grammars that no tokens of the model spell, before anything is generated.

Where a vocabulary has tokens for all bytes, as most have, nothing is refused. Otherwise a character without
tokens would leave an answer without any token that may come, somewhere in its middle.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from services.worker.text.grammars.json_schema.schema_fault import SchemaFault

Unspelled = Callable[[str], str]  # `TokenVocabulary.unspelled`
_ESCAPES = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{\s*([0-9a-fA-F]{1,8})\s*\})"
)


def check_texts(texts: Iterable[str], unspelled: Unspelled) -> None:
    """Checks texts that an answer may have to have.

    Raises:
        ValueError: One has a character that no tokens spell; the text of the error names it.
    """
    for text in texts:
        if found := unspelled(text):
            raise ValueError(f"has the character U+{ord(found):04X}, for which the model has no tokens")


def check_definition(definition: str, unspelled: Unspelled) -> None:
    """Checks the characters of a grammar in Lark's syntax or in GBNF, those in escapes included.

    Raises:
        ValueError: As in `check_texts`.
    """
    check_texts((definition, *map(_escaped, _ESCAPES.finditer(definition))), unspelled)


def check_schemas(located: Iterable[tuple[str, Mapping[str, Any]]], unspelled: Unspelled) -> None:
    """Checks the constants, names and patterns of rewritten schemas.

    Args:
        located: Pointer and content of each schema.
        unspelled: Finds the first character that no tokens spell.

    Raises:
        SchemaFault: One has a character that no tokens spell.
    """
    for pointer, schema in located:
        for keyword, texts in _fixed_texts(schema):
            try:
                check_texts(texts, unspelled)
            except ValueError as error:
                raise SchemaFault(str(error), keyword, pointer) from error


def _fixed_texts(schema: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    for keyword in ("const", "enum", "required"):
        if keyword in schema:
            yield keyword, [json.dumps(schema[keyword], ensure_ascii=False)]
    if "properties" in schema:
        yield "properties", list(schema["properties"])
    if "pattern" in schema:
        yield "pattern", [schema["pattern"]]


def _escaped(found: re.Match[str]) -> str:
    code = int(next(filter(None, found.groups())), 16)
    return "" if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)
