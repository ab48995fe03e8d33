"""Makes a command of a function that takes all of its options as one dataclass.

Each field is an option: its type, bounds and help are typer's `Annotated` notes, its default is the field's.
A further note with a method `parse(option, text)` reads the value from a text (`benchmarks/lib/options.py`).
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_args, get_type_hints

from typer.models import OptionInfo

from cli.console import fail

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give the decorated function the options of a dataclass, before those that it declares itself.

    Args:
        kind: The dataclass; the function's first parameter takes an instance.
    """
    hints = get_type_hints(kind, include_extras=True)
    parameters, parsers = list[inspect.Parameter](), dict[str, Callable[[str, str], Any]]()
    for field in fields(kind):
        hint, default = hints[field.name], _default(field)
        for note in get_args(hint)[1:]:
            if hasattr(note, "parse"):
                parsers[field.name] = note.parse
                hint = Annotated[str, _without_parser(hint)]
                default = default if isinstance(default, str) else ",".join(map(str, default))
        parameters.append(inspect.Parameter(field.name, _KEYWORD, default=default, annotation=hint))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            rest = {one.name: given.pop(one.name) for one in own}
            for name, parse in parsers.items():
                try:
                    given[name] = parse(f"--{name.replace('_', '-')}", given[name])
                except ValueError as error:
                    fail(f"{error}.", exit_code=2)
            function(kind(**given), **rest)

        everything = [*parameters, *(one.replace(kind=_KEYWORD) for one in own)]
        vars(command)["__signature__"] = inspect.Signature(everything)
        command.__annotations__ = {one.name: one.annotation for one in everything}
        return command

    return decorate


def _without_parser(hint: Any) -> OptionInfo:
    return next(note for note in get_args(hint) if isinstance(note, OptionInfo))


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is MISSING else field.default_factory()
