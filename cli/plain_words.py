"""Says in plain words what an option takes, and what is wrong with a value.

The library of the command line shows Python's types in `--help`, and the sentences of its validator.
"""

from pathlib import Path
from typing import Any

import typer

from cli.visible import visible

_KINDS: dict[Any, str] = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}
_PATHS = {"file": "FILE", "directory": "DIR", "dir": "DIR", "path": "PATH"}
_NOT_A_NUMBER = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}
_OUT_OF_RANGE = {"less_than", "less_than_equal", "greater_than", "greater_than_equal"}


def name_values(command: Any) -> Any:
    """Return a command, or a group with all below it, whose options show what they take."""
    for parameter in getattr(command, "params", ()):
        kind = _kind_of(parameter)
        if parameter.param_type_name == "argument":
            parameter.display_type = lambda _, kind=kind: kind or ""
        elif parameter.metavar is None and not parameter.is_flag:
            parameter.metavar = kind
    for below in getattr(command, "commands", {}).values():
        name_values(below)
    return command


def _kind_of(parameter: Any) -> str | None:
    """The word for an option's values; None leaves it to the library, which lists choices."""
    described = parameter.type_descriptor
    if described.is_choice:
        return None
    if described.is_path:
        return _PATHS.get(described.path_type, "PATH")
    return _KINDS.get(described.annotation)


def explain_value(error: typer.BadParameter) -> None:
    """Say what is wrong with a value, and what is expected, in the error's message."""
    errors = getattr(error.__cause__, "errors", None)
    if errors is None:
        return
    first = errors()[0]
    kind, given = str(first["type"]), visible(str(first["input"])[:128])
    if kind in _NOT_A_NUMBER:
        error.message = f"{given} is not {_NOT_A_NUMBER[kind]}{_range_of(error.param)}."
    elif kind in _OUT_OF_RANGE:
        error.message = f"{given} is not{_range_of(error.param)}."
    else:
        error.message = str(first["msg"]).removeprefix("Value error, ")


def _range_of(parameter: Any) -> str:
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None and most is None:
        return ""
    if most is None:
        return f" {least:,} or more"
    return f" at most {most:,}" if least is None else f" between {least:,} and {most:,}"
