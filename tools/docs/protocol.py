"""Writes `docs/protocol.md` from the message definitions; with `--check`, fails if the file differs.

The table of subjects is in `protocol_subjects.py`, the rules are in `protocol_text.py`; fields, bounds and
defaults come from the types, meanings from descriptions and from the attributes in docstrings.
"""

import argparse
import difflib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect

from shared import errors
from shared.codec import encode
from shared.messages import (
    ChatMessage,
    FrameBatch,
    GenerateRequest,
    Wire,
    adapters,
    answer_parts,
    batches,
    conversation,
    error_reply,
    fleet,
    frame_calls,
    frames,
    generate,
    models,
    profiles,
    responses,
    sessions,
    timelines,
    tokenize,
)
from shared.messages.frames import Frame
from shared.messages.kv import blocks, events
from shared.messages.tenants import accounts, audit, bus_users, erasure, limits, running, usage
from tools.docs import protocol_subjects, protocol_text

DOC = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
PARTS: list[tuple[str, ModuleType]] = [
    ("Requests", generate),
    ("Conversations and tools", conversation),
    ("Parts and form of an answer", answer_parts),
    ("Frames", frames),
    ("Calls about frames", frame_calls),
    ("Calls that fail", error_reply),
    ("Sessions", sessions),
    ("Responses", responses),
    ("Tokens of a text", tokenize),
    ("Files and batches", batches),
    ("KV blocks", blocks),
    ("KV events", events),
    ("Adapters", adapters),
    ("Tenants and keys", accounts),
    ("The log of changes", audit),
    ("Bus users", bus_users),
    ("Limits", limits),
    ("Running requests of services outside", running),
    ("Usage", usage),
    ("Erasing a tenant", erasure),
    ("Fleet and status", fleet),
    ("Models and hosts", models),
    ("Where the time of a request went", timelines),
    ("Profiles", profiles),
]
PLAIN = {
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.AnyType: "anything",
    inspect.NoneType: "nil",
}


def render() -> str:
    """The whole document."""
    parts = [protocol_text.INTRODUCTION, subjects_table(), protocol_text.RULES, worked_example()]
    for title, module in PARTS:
        parts.append(f"## {title}\n\n{first_paragraph(module.__doc__)}")
        parts += [message_section(kind) for kind in kinds_in(module)]
    parts.append(errors_table())
    return "\n\n".join(part.strip() for part in parts) + "\n"


def kinds_in(module: ModuleType) -> list[type[Wire]]:
    """The messages that a module defines, in its order."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Wire)
        and kind.__module__ == module.__name__
        and kind is not Frame
    ]


def subjects_table() -> str:
    """Subject, message, who sends it, who listens."""
    rows = ["| subject | message | from | to |", "|---|---|---|---|"]
    rows += [f"| {s.subject} | {s.message} | {s.sender} | {s.listener} |" for s in protocol_subjects.SUBJECTS]
    return "\n".join(rows)


def message_section(kind: type[Wire]) -> str:
    """Heading, docstring, table of fields."""
    text, meanings = split_doc(kind)
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    if info.tag is not None:
        rows.append(f'| `type` | string, always `"{info.tag}"` | required | Tells the kinds apart. |')
    for field in info.fields:
        name, bounds, meaning = describe(field.type)
        meaning = meanings.get(field.name, meaning)
        meaning = meaning[:1].upper() + meaning[1:]
        type_text = f"{name}, {bounds}" if bounds else name
        rows.append(f"| `{field.encode_name}` | {type_text} | {default_of(field)} | {meaning} |")
    table = "\n".join(rows) if len(rows) > 2 else "No fields: an empty map."
    return f"### {kind.__name__}\n\n{text}\n\n{table}"


def describe(kind: inspect.Type) -> tuple[str, str, str]:
    """Type, bounds and meaning of a field."""
    meaning = ""
    while isinstance(kind, inspect.Metadata):
        meaning = meaning or (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    name, bounds, inner_meaning = _describe_plain(kind)
    return name, bounds, escape(meaning or inner_meaning)


def _describe_plain(kind: inspect.Type) -> tuple[str, str, str]:
    if isinstance(kind, inspect.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})", "", ""
    if isinstance(kind, inspect.LiteralType):
        return "string", "one of " + ", ".join(f"`{value}`" for value in kind.values), ""
    if isinstance(kind, inspect.ListType):
        name, bounds, meaning = describe(kind.item_type)
        inner = f"{name}, {bounds}" if bounds else name
        return f"list of {inner}", _lengths(kind.min_length, kind.max_length, "items"), meaning
    if isinstance(kind, inspect.DictType):
        key, value = describe(kind.key_type), describe(kind.value_type)
        return f"map of {key[0]} to {value[0]}", value[1], ""
    if isinstance(kind, inspect.UnionType):
        known = [describe(part) for part in kind.types if not isinstance(part, inspect.NoneType)]
        optional = " or nil" if kind.includes_none else ""
        meaning = known[0][2] if len(known) == 1 else ""
        return (
            " or ".join(part[0] for part in known) + optional,
            known[0][1] if len(known) == 1 else "",
            meaning,
        )
    return PLAIN[type(kind)], _bounds(kind), ""


def _bounds(kind: Any) -> str:
    if isinstance(kind, inspect.StrType):
        found = [f"matches `{escape(kind.pattern)}`"] if kind.pattern else []
        lengths = _lengths(kind.min_length, kind.max_length, "characters")
        return ", ".join([*found, lengths] if lengths else found)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = ((sign, getattr(kind, name, None)) for name, sign in signs.items())
    return ", ".join(f"{sign} {limit:g}" if abs(limit) < 1e6 else f"{sign} {limit}" for sign, limit in limits
                     if limit is not None)  # fmt: skip


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    if least and most:
        return f"{least} to {most} {unit}"
    return f"at least {least} {unit}" if least else f"at most {most} {unit}" if most else ""


def default_of(field: inspect.Field) -> str:
    """The default as it would stand in a message."""
    if field.required:
        return "required"
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, Wire):
        return "all its defaults"
    texts = {None: "nil", "": "empty", b"": "empty", True: "true", False: "false"}
    if isinstance(value, str | bytes | bool | None):
        return texts.get(value, f"`{value!s}`")
    return "empty" if value in ([], {}) else f"{value}"


def worked_example() -> str:
    """A request and an answer in hex."""
    request = GenerateRequest(
        request_id="r-1",
        model="demo",
        messages=[ChatMessage(role="user", content="Hello!")],
        reply_to="_INBOX.x.f",
    )
    accepted = frames.Accepted(request_id="r-1", group="g0")
    delta = frames.Delta(text="Hi", token_ids=b"\x07\x00\x00\x00", finish_reason="stop")
    tokens = frames.Tokens(request_id="r-1", seq=1, deltas=[delta])
    done = frames.Done(request_id="r-1", seq=2, usage=frames.Usage(prompt_tokens=3, completion_tokens=1))
    batch = FrameBatch(frames=[accepted, tokens, done], group="g0")
    return protocol_text.EXAMPLE.format(
        request=in_lines(encode(request)), request_json=as_json(request), batch=in_lines(encode(batch)),
        batch_json=as_json(batch),
    )  # fmt: skip


def in_lines(data: bytes) -> str:
    """Hex, 32 bytes in a line."""
    return "\n".join(data[start : start + 32].hex(" ") for start in range(0, len(data), 32))


def as_json(message: Wire) -> str:
    """The same content as text; bytes as hex."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    return json.dumps(plain, default=bytes.hex, indent=2)


def errors_table() -> str:
    """Codes, statuses of HTTP and gRPC, meaning."""
    rows = [protocol_text.ERRORS, "| code | HTTP | gRPC | OpenAI type | meaning |"]
    rows.append("|---|---|---|---|---|")
    for code, row in errors.TABLE.items():
        meaning = first_paragraph(errors.FAMILY[code].__doc__)
        rows.append(f"| `{code}` | {row.http_status} | {row.grpc_status} | `{row.openai_type}` | {meaning} |")
    return "\n".join(rows)


def split_doc(kind: type[Wire]) -> tuple[str, dict[str, str]]:
    """Return the docstring of a message without its attributes, and the meaning of each attribute."""
    fields = "|".join(field.name for field in msgspec.structs.fields(kind)) or "-"
    start = re.compile(rf"(?:^|(?<=\.) )({fields}): ")
    paragraphs: list[str] = []
    meanings: dict[str, str] = {}
    for paragraph in (kind.__doc__ or "").split("\n\n"):
        text = " ".join(paragraph.split()).removeprefix("Attributes: ")
        before, *pairs = start.split(text)
        meanings.update(zip(pairs[::2], (escape(meaning.strip()) for meaning in pairs[1::2]), strict=True))
        paragraphs.append(escape(before))
    return "\n\n".join(filter(None, paragraphs)), meanings


def first_paragraph(text: str | None) -> str:
    """A docstring's first paragraph in one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


def escape(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def main() -> None:
    """Write or checks the document."""
    parser = argparse.ArgumentParser(description="Generates docs/protocol.md from the message definitions.")
    parser.add_argument("--check", action="store_true", help="fail if the file is not what would be written")
    args = parser.parse_args()
    wanted = render()
    if not args.check:
        DOC.parent.mkdir(exist_ok=True)
        DOC.write_text(wanted)
        return
    found = DOC.read_text() if DOC.exists() else ""
    if found != wanted:
        sys.stdout.writelines(difflib.unified_diff(
            found.splitlines(True), wanted.splitlines(True), str(DOC), "generated", n=1))  # fmt: skip
        sys.exit("docs/protocol.md differs from the messages: run python -m tools.docs.protocol")


if __name__ == "__main__":
    main()
