"""How a form of tool calls writes values: words, separators, quotes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.worker.text.grammars.tool_grammar import as_plain_text

_BARE_KEY = re.compile(r"\w{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueStyle:
    """A way to write values.

    Attributes:
        words: For true, false and null.
        comma: Between items and pairs.
        colon: Between a key and its value.
        quote: Around strings, whose text is then written as it is; empty: strings are those of JSON.
        avoids: A text that no string may have, since a reader looks for it; only `</` is known.
        control: Texts of control tokens; in a value they are text.
    """

    words: tuple[str, str, str] = ("true", "false", "null")
    comma: str = ", "
    colon: str = ": "
    quote: str = ""
    avoids: str = ""
    control: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        """Returns a key with its colon. Raises `ValueError` if it cannot be written."""
        if self.quote and _BARE_KEY.fullmatch(name):
            return name + self.colon
        if self.quote and name != name.strip():
            raise ValueError("has a key that this tool format cannot write")
        return self.literal(name) + self.colon

    def literal(self, value: Any) -> str:
        """Returns a value as it is written. Raises `ValueError` if it cannot be."""
        if isinstance(value, str):
            return self._string(value)
        if value is None or isinstance(value, bool):
            return self.words[2] if value is None else self.words[0 if value else 1]
        if isinstance(value, list):
            return f"[{self.comma.join(map(self.literal, value))}]"
        if isinstance(value, dict):
            pairs = (self.key(name) + self.literal(item) for name, item in value.items())
            return f"{{{self.comma.join(pairs)}}}"
        return json.dumps(value)

    def _string(self, text: str) -> str:
        if self.quote and self.quote in text:
            raise ValueError("has a text that this tool format cannot write")
        inside = text if self.quote else json.dumps(text, ensure_ascii=False)
        if self.avoids and self.avoids in inside:
            raise ValueError(f"has a text with {self.avoids!r}, which this tool format cannot write")
        return self.quote + as_plain_text(self.control, inside) + self.quote


JSON_IN_TAGS = ValueStyle(avoids="</")
PYTHON = ValueStyle(words=("True", "False", "None"))
Write = Callable[[str], str]  # a text as a Lark term, control tokens by their ids
