"""Text of models and callers as a terminal may show it: characters that would command it are spelled out.

An answer can hold escape sequences, by accident or because a text in its prompt asked for them; they move the
cursor, rename the window, write the clipboard or make the terminal type an answer.
"""

import json
from typing import Any

_KEPT = "\n\t"
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _KEPT]  # C0, DEL, C1
# breaks of lines, and the order of text
_MARKS = [0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_SPELLED = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _MARKS}
_AS_JSON = {code: f"\\u{code:04x}" for code in (*_CONTROLS, *_MARKS)}  # in its strings only: it has none else


def visible(text: str) -> str:
    """The text with control characters and marks of text direction spelled out; lines and tabs stay."""
    return text.translate(_SPELLED)


def json_text(value: Any) -> str:
    """The value as JSON in which none of these characters stands; other letters stay."""
    return visible_json(json.dumps(value, indent=1, ensure_ascii=False))


def visible_json(text: str) -> str:
    """JSON that says the same, with these characters escaped as JSON does it."""
    return text.translate(_AS_JSON)
