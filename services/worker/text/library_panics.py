"""Turns a panic of a library written in Rust into an ordinary exception.

`pyo3_runtime.PanicException` is no `Exception`, so that it would pass the handlers that keep a failure to its
request, and end the leader's tasks. It cannot be imported either: it is known by its name.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")


class LibraryPanicked(Exception):
    """tokenizers or llguidance panicked: a bug there, met by what the call was given."""


def guarded(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Calls a function of such a library.

    Raises:
        LibraryPanicked: It panicked.
    """
    try:
        return function(*args, **kwargs)
    except Exception:
        raise
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise LibraryPanicked(f"{panic}"[:200]) from panic
