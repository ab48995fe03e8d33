"""Lets a command take options as dataclasses, so that each option is declared once.

A field's type, bounds and help are typer's `Annotated` notes, its default is the field's. A further note with
a method `parse(option, text)` reads the value from a text, see `benchmarks/lib/options.py`.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

from typer.models import OptionInfo

from cli.console import fail


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of each parameter that is a dataclass, in the parameter's place.

    Lines of its docstring under `Examples:` are shown as they are.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = list[inspect.Parameter]()
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters.extend(_parameters_of(groups[name]))
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        values = {name: _take(kind, given) for name, kind in groups.items()}
        function(**values, **given)

    vars(command)["__signature__"] = inspect.Signature(parameters)
    # a line with a backspace keeps click from wrapping the paragraph
    command.__doc__ = _unwrapped(inspect.cleandoc(function.__doc__ or ""))
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _parameters_of(kind: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, default = hints[field.name], _default(field)
        if _parser(hint):
            hint = Annotated[str, next(note for note in get_args(hint) if isinstance(note, OptionInfo))]
            default = default if isinstance(default, str) else ",".join(map(str, default))
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _take(kind: type[Any], given: dict[str, Any]) -> Any:
    """Make the dataclass of its values, which are removed from `given`."""
    values = {field.name: given.pop(field.name) for field in fields(kind)}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if parse := _parser(hint):
            try:
                values[name] = parse(f"--{name.replace('_', '-')}", values[name])
            except ValueError as error:
                fail(f"{error}.", exit_code=2)
    return kind(**values)


def _parser(hint: Any) -> Callable[[str, str], Any] | None:
    return next((note.parse for note in get_args(hint)[1:] if hasattr(note, "parse")), None)


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is MISSING else field.default_factory()


def _unwrapped(docstring: str) -> str:
    text, _, examples = docstring.partition("Examples:\n")
    return f"{text}\b\n{textwrap.dedent(examples)}" if examples else text
