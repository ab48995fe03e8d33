"""The forms of answers as llama.cpp's own API takes them."""

import json
from typing import Any

from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.text.grammars.json_schema.schema_grammar import OPTIONS
from shared.messages import StructuredOutput

# llama.cpp's llguidance does not know this option, and its server leaves out a grammar that does not compile.
# Without the option an answer may have `\u` in a string, which the leader's grammar refuses.
_NEWER_OPTION = ", " + json.dumps({"json_allowed_escapes": OPTIONS["json_allowed_escapes"]})[1:-1]
_LLGUIDANCE = "%llguidance"  # how a grammar begins that a server built with llguidance reads as Lark
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ASCII = 0x80
_SPACE = 0x20


def form_fields(form: DemandedForm, *, by_lark: bool) -> dict[str, Any]:
    """Returns the fields of a request.

    Args:
        by_lark: The server was built with llguidance.
    """
    if by_lark:
        head = "" if form.lark.startswith(_LLGUIDANCE) else f"{_LLGUIDANCE} {{}}\n"
        return {"grammar": head + form.lark.replace(_NEWER_OPTION, "")}
    return {} if form.structured is None else _own_fields(form.structured)


def _own_fields(structured: StructuredOutput) -> dict[str, Any]:
    if structured.kind == "choice":
        return {"grammar": "root ::= " + " | ".join(map(_literal, structured.choices))}
    if structured.kind == "grammar":
        return {"grammar": structured.definition}
    schema = structured.definition if structured.kind == "json_schema" else '{"type": "object"}'
    return {"json_schema": json.loads(schema)}


def _literal(text: str) -> str:
    """Returns a text in GBNF."""
    return '"' + "".join(_ESCAPES.get(character) or _spelled(character) for character in text) + '"'


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02X}" if code < _SPACE or code == _ASCII - 1 else character
