"""Variables of earlier versions that are no settings any more.

They are refused at the start: whoever set one expects an effect. Each service lists its own, with the values
of the constants that took their places.
"""

from collections.abc import Iterable, Mapping

_UNITS = {"_MS": " ms", "_S": " s", "_BYTES": " bytes"}


class RenamedTo(str):
    """In the place of a value: the variable that has the meaning now."""


class Replaced(str):
    """In the place of a value: what there is instead, as a sentence without its full stop."""


def describe_gone(gone: Mapping[str, object], given: Iterable[str]) -> str:
    """Describe all given variables that are gone, with the remedy for each; empty if none is given.

    Args:
        gone: What each variable's value is always now, its new name, or what there is instead.
        given: Names of variables.
    """
    return "; ".join(_remedy(name, gone[name]) for name in sorted(gone.keys() & set(given)))


def _remedy(name: str, now: object) -> str:
    if isinstance(now, RenamedTo):
        return f"{name} is gone: it is called {now} now"
    if isinstance(now, Replaced):
        return f"{name} is gone: {now}; remove it"
    value = f"{now:.12g}" if isinstance(now, int | float) else str(now)
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    return f"{name} is gone: it is always {value}{unit} now; remove it"
