"""Reads a models file: TOML whose `[[models]]` are the entries. Reports all of its mistakes at once.

It does not look for the models themselves; `declared.py` has the checks between entries, `find.py` that.
"""

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cli.console import fail
from cli.stack.fleet.adapter_entry import AdapterEntry
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import ModelEntry
from cli.stack.fleet.toml_lines import Place, lines_of

TABLE = "models"
_EXAMPLE = '`[[models]]` and below it `source = "smollm2-135m"`'
_SAID = {
    "missing": 'is missing: a name of the catalogue, `hf:OWNER/NAME` or a path, such as `source = "demo"`',
    "string_too_short": "is empty: give a name of the catalogue, `hf:OWNER/NAME` or a path",
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be `true` or `false`",
    "model_type": 'must be a table, such as `{{ name = "fr", source = "adapters/fr" }}`',
    "tuple_type": 'must be a list, such as `["one", "two"]`',
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must be small letters, digits and `_`: one of the forms in docs/tools.md",
}
_SAID_OF_ADAPTER = {
    "name": 'is missing: a name such as `name = "fr"`',
    "source": 'is missing: a PEFT directory or a GGUF file, such as `source = "adapters/fr"`',
}
_GROUPS_TABLE = "; so many groups run at least with `min_groups`, at most with `groups`"
_OTHER_NAMES = {"model": "source", "path": "source", "alias": "aliases"}  # of the same field elsewhere
_PATTERNS = {"tenants": "must be letters, digits, - and _, at most 64 of them"}  # by field
_SHOWN = 64  # characters of a value in an error


def read_models_file(path: Path) -> Declaration:
    """Return what a models file declares, with the mistakes in single entries.

    Raises:
        CommandError: It cannot be read, or it is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        fail(f"The models file {path} cannot be read: {error.strerror}.", 2)
    except UnicodeDecodeError:
        fail(f"The models file {path} is no text in UTF-8: write it anew with an editor.", 2)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        what = re.sub(r" \(at (?:line \d+, column \d+|end of document)\)$", "", str(error))
        remedy = '; text stands in quotes, such as `source = "demo"`' if what == "Invalid value" else ""
        where = line[1] if line else text.count("\n") + 1
        fail(f"{path}:{where}: this is no TOML: {what}{remedy}.", 2)
    declared = Declaration(file=path, lines=lines_of(text))
    for key in data:
        if key != TABLE:
            declared.add_problem((key,), f"`{key}` is no field of a models file{_nearest(key, [TABLE])}")
    tables = data.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        declared.add_problem((TABLE,), f"`models` must be tables: {_EXAMPLE}")
    elif not tables:
        declared.add_problem((), f"there is no model: write {_EXAMPLE}")
    else:
        for index, table in enumerate(tables):
            _take_entry(declared, index, table)
    return declared


def _take_entry(declared: Declaration, index: int, table: dict[str, Any]) -> None:
    declared.labels[index] = _label(index, table)
    try:
        declared.entries[index] = ModelEntry.model_validate(table)
    except ValidationError as error:
        for one in error.errors():
            place: Place = (TABLE, index, *one["loc"])
            declared.add_problem(place, describe_problem(one))
        wrong = {one["loc"][0] for one in error.errors() if one["loc"]}
        # the rest of it is checked as well, unless it is not known which model it is, or who computes it
        if wrong and "source" in table and not wrong & {"source", "remote"}:
            _take_entry(declared, index, {name: value for name, value in table.items() if name not in wrong})


def _label(index: int, table: dict[str, Any]) -> str:
    """How errors call an entry: by its name or source if it has one."""
    for field in ("name", "source"):
        if isinstance(found := table.get(field), str) and found:
            return found[:_SHOWN]
    return f"model {index + 1}"


def describe_problem(error: ErrorDetails) -> str:
    """Say in words what is wrong with a field."""
    names = [str(part) for part in error["loc"] if isinstance(part, str)]
    field, kind = ".".join(names), error["type"]
    if kind == "extra_forbidden":
        of_adapter = names[0] == "adapters" and len(names) > 1
        what, known = ("an adapter", AdapterEntry) if of_adapter else ("a model", ModelEntry)
        nearest = _OTHER_NAMES.get(names[-1], "")
        meant = f"; did you mean `{nearest}`?" if nearest in known.model_fields else ""
        return f"`{field}` is no field of {what}{meant or _nearest(names[-1], [*known.model_fields])}"
    if kind == "value_error" and not field:
        return str(error["ctx"]["error"])
    if kind == "value_error":
        return f"`{field}`: {error['ctx']['error']}"
    said = _PATTERNS.get(field) if kind == "string_pattern_mismatch" else None
    said = (said or _SAID.get(kind, error["msg"])).format(**error.get("ctx", {}))
    if names[:1] == ["adapters"] and kind in {"missing", "string_too_short"}:
        said = _SAID_OF_ADAPTER[names[-1]]
    got = "" if kind in {"missing", "string_too_short"} else f", got {_shown(error['input'])}"
    of_table = _GROUPS_TABLE if field == "groups" and isinstance(error["input"], dict) else ""
    none = ": leave it out" if field == "min_groups" and error["input"] == 0 else ""
    return f"`{field}` {said}{got}{of_table}{none}"


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _nearest(given: str, known: list[str]) -> str:
    found = get_close_matches(given, known, 1)
    if found:
        return f"; did you mean `{found[0]}`?"
    return f"; there {'are' if len(known) > 1 else 'is'} {', '.join(f'`{name}`' for name in known)}"
