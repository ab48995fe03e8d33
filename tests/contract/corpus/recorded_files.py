"""The recorded files: one for each table, a JSON value a line, so that a diff shows what has changed.

An object with `exchange` begins an exchange; each text after it is a line of it.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).with_name("recorded")
Recorded = dict[str, list[str]]


def read(name: str, folder: Path = FOLDER) -> Recorded:
    """The exchanges of a table by their names; empty if none were recorded."""
    path = folder / f"{name}.jsonl"
    recorded: Recorded = {}
    lines: list[str] = []
    for raw in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        value = json.loads(raw)
        if isinstance(value, dict):
            lines = recorded[value["exchange"]] = []
        else:
            lines.append(value)
    return recorded


def write(name: str, recorded: Mapping[str, Sequence[str]], folder: Path = FOLDER) -> None:
    """Writes the exchanges of a table."""
    lines = []
    for exchange, texts in recorded.items():
        lines += [json.dumps({"exchange": exchange}, ensure_ascii=False)]
        lines += [_shown(text) for text in texts]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _shown(text: str) -> str:
    """A text as JSON that stays one line for every reader, and is UTF-8 whatever bytes came."""
    try:
        text.encode()
        plain = text.isprintable() or not (set(text) & set("\x85\u2028\u2029"))
    except UnicodeEncodeError:
        plain = False
    return json.dumps(text, ensure_ascii=not plain)


def differences(name: str, recorded: Recorded, now: Recorded) -> dict[str, str]:
    """What differs, as a diff for each exchange; an exchange that only one side has differs as well."""
    found = {}
    for exchange in [*recorded, *(one for one in now if one not in recorded)]:
        before, after = recorded.get(exchange, []), now.get(exchange, [])
        if before != after or exchange not in recorded or exchange not in now:
            shown = unified_diff(
                [*map(repr, before)], [*map(repr, after)], f"{name}/{exchange}", "now", lineterm="", n=1
            )
            found[exchange] = "\n".join(shown)
    return found
