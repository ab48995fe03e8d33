"""Text of models and callers as a terminal may show it: characters that would command it are spelled out.

An answer can hold escape sequences, by accident or because a text in its prompt asked for them; they move the
cursor, rename the window, write the clipboard or make the terminal type an answer.
"""

_KEPT = "\n\t"
_SPELLED = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _KEPT
}  # C0, DEL and C1 of Unicode
_SPELLED |= {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}  # order of text


def visible(text: str) -> str:
    """The text with control characters and marks of text direction spelled out; lines and tabs stay."""
    return text.translate(_SPELLED)
