r"""Translates the regular expressions of `pattern` from ECMA-262 to Rust's `regex`, with equal meaning.

The two differ silently: `[a&&b]`, `[a--b]` and `[[a]` mean other things. `\A`, `\z` and `(?i)` mean nothing
in ECMA, and `.` leaves out three more line ends there. Where ECMA and Python disagree (`\s`), the result
has what both take.
"""

import re
import string

_DOT = r"[^\n\r\x{2028}\x{2029}]"
_SPACE = r" \t\n\r\f\x0b"
_NO_SPACE = r"[^\s\x{feff}\x1c-\x1f]"
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_PLAIN = frozenset(string.ascii_letters + string.digits)
_ESCAPE = re.compile(
    r"\\(?:(?P<cls>[dDwW])|(?P<prop>[pP]\{[A-Za-z_=]{1,64}\})|(?P<ctl>[tnrfv])|c(?P<letter>[A-Za-z])"
    r"|x(?P<hex>[0-9a-fA-F]{2})|u(?P<unit>[0-9a-fA-F]{4})|u\{(?P<code>[0-9a-fA-F]{1,6})\}|(?P<nul>0(?![0-9]))"
    r"|(?P<same>[^A-Za-z0-9\s]))",
    re.DOTALL,
)
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def rust_pattern(pattern: str) -> str:
    """Returns the pattern for llguidance.

    Raises:
        ValueError: It is no ECMA pattern, or uses what cannot be enforced; the text says what.
    """
    out: list[str] = []
    at, depth, may_repeat = 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier:
            if not may_repeat:
                raise ValueError(f"nothing to repeat at character {at}")
            lazy = pattern.startswith("?", quantifier.end())
            out.append(quantifier[0])
            at, may_repeat = quantifier.end() + lazy, False  # lazy or not: the texts are the same
            continue
        may_repeat = char not in "^$|("
        if char == "\\":
            text, at = _escape(pattern, at)
        elif char == "[":
            text, at = _char_class(pattern, at + 1)
        elif char == "(":
            depth += 1
            text, at = "(?:", _group_begin(pattern, at + 1)
        else:
            depth -= char == ")"
            if depth < 0:
                raise ValueError("a group is closed that was not opened")
            text = char if char in "^$|)" else _DOT if char == "." else _literal(ord(char))
            at += 1
        out.append(text)
    if depth:
        raise ValueError("a group is not closed")
    return "".join(out)


def _group_begin(pattern: str, at: int) -> int:
    """Returns the index where the content of a group begins."""
    if not pattern.startswith("?", at):
        return at
    if pattern.startswith("?:", at):
        return at + 2
    if pattern.startswith(("?=", "?!", "?<=", "?<!"), at):
        raise ValueError("look-around is not enforced")
    named = re.compile(r"\?<[A-Za-z_$][\w$]*>").match(pattern, at)
    if not named:
        raise ValueError("ECMA has no group that begins so: " + pattern[at - 1 : at + 3])
    return named.end()


def _escape(pattern: str, at: int) -> tuple[str, int]:
    """Returns the translation of an escape outside of classes, and the index after it."""
    following = pattern[at + 1 : at + 2]
    if following == "s":
        return f"[{_SPACE}]", at + 2
    if following == "S":
        return _NO_SPACE, at + 2
    if following in set("bB"):
        raise ValueError("word boundaries are not enforced")
    if following in set("123456789k"):
        raise ValueError("back references are not enforced")
    text, _, end = _simple_escape(pattern, at)
    return text, end


def _simple_escape(pattern: str, at: int) -> tuple[str, int | None, int]:
    """Returns the translation of an escape, its character (None: it is a set), and the index after it."""
    found = _ESCAPE.match(pattern, at)
    if found is None:
        raise ValueError(f"{pattern[at : at + 2]!r} is no escape of ECMA's")
    kind, value = found.lastgroup, found[found.lastgroup or 0]
    if kind in ("cls", "prop"):
        return "\\" + value, None, found.end()
    if kind == "ctl":
        code = _CONTROL[value]
    elif kind == "letter":
        code = ord(value) % 32
    elif kind == "nul":
        code = 0
    else:
        code = ord(value) if kind == "same" else int(value, 16)
    return _literal(code), code, found.end()


def _char_class(pattern: str, at: int) -> tuple[str, int]:
    """Returns the translation of a class whose content begins at `at`, and the index after it."""
    negated = pattern.startswith("^", at)
    at += negated
    items: list[str] = []
    while True:
        if at >= len(pattern):
            raise ValueError("a class is not closed")
        if pattern[at] == "]":
            break
        text, code, at = _class_atom(pattern, at)
        if pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("]", ""):
            last, last_code, end = _class_atom(pattern, at + 1)
            if code is None or last_code is None:
                raise ValueError("a range in a class needs two characters")
            if code > last_code:
                raise ValueError("a range in a class is in the wrong order")
            text, at = f"{text}-{last}", end
        items.append(text)
    if not items:
        if negated:
            return r"(?s:.)", at + 1
        raise ValueError("the class `[]` has no character")
    return f"[{'^' * negated}{''.join(items)}]", at + 1


def _class_atom(pattern: str, at: int) -> tuple[str, int | None, int]:
    if pattern[at] != "\\":
        return _literal(ord(pattern[at])), ord(pattern[at]), at + 1
    following = pattern[at + 1 : at + 2]
    if following == "s":
        return _SPACE, None, at + 2
    if following == "S":
        return _NO_SPACE, None, at + 2
    if following == "b":
        return r"\x08", 8, at + 2
    if following == "-":
        return r"\x{2d}", ord("-"), at + 2
    return _simple_escape(pattern, at)


def _literal(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise ValueError("a surrogate is no character; write the character itself")
    return chr(code) if chr(code) in _PLAIN else f"\\x{{{code:x}}}"
