"""Makes text safe for a terminal: control characters are spelled out.

An answer can hold escape sequences, by accident or because its prompt asked for them. They move the cursor,
rename the window, write the clipboard or make the terminal type an answer.
"""

import json
from typing import Any

_KEPT = "\n\t"
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _KEPT]  # C0, DEL, C1
# breaks of lines, and the order of text
_MARKS = [0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_SPELLED = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _MARKS}
_AS_JSON = {
    code: f"\\u{code:04x}" for code in (*_CONTROLS, *_MARKS)
}  # JSON has such characters only in strings


def visible(text: str) -> str:
    """Return the text with control characters and marks of direction spelled out; lines and tabs stay."""
    return text.translate(_SPELLED)


def json_text(value: Any) -> str:
    """Return the value as JSON with these characters escaped; other letters stay."""
    return visible_json(json.dumps(value, indent=1, ensure_ascii=False))


def visible_json(text: str) -> str:
    """Return equal JSON with these characters escaped."""
    return text.translate(_AS_JSON)
