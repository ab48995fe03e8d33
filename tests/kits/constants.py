"""Settings of a service in a test, which may also set what is constant for operators."""

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from shared.settings import RyzSettings

S = TypeVar("S", bound=RyzSettings)


def settings_with_constants(kind: type[S], values: dict[str, Any]) -> S:
    """Make settings.

    Args:
        kind: Their class, with a dataclass `constants`.
        values: Settings and constants by their names.
    """
    constants: Any = kind.constants  # type: ignore[attr-defined]
    settings = {name: value for name, value in values.items() if name in kind.model_fields}
    made = kind.model_validate(settings)
    return made.model_copy(
        update={"constants": changed_constants(constants, values.keys() - settings.keys(), values)}
    )


def changed_constants(constants: Any, names: Set[str], values: Mapping[str, Any]) -> Any:
    """Replace constants, also those of a group of them; a name that is nowhere is an error."""
    own = {field.name for field in fields(constants)}
    changes = {name: values[name] for name in names & own}
    for group in (name for name in own if is_dataclass(getattr(constants, name))):
        inside = getattr(constants, group)
        theirs = (names - own) & {field.name for field in fields(inside)}
        if theirs:
            changes[group] = replace(inside, **{name: values[name] for name in theirs})
            names = names - theirs
    assert names <= own, f"no settings and no constants: {names - own}"
    return replace(constants, **changes)
