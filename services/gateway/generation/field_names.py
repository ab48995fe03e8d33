"""Gives a leader's errors the field names of the caller's own format. Pure."""

from collections.abc import Mapping

from shared.errors import RyzError


def renamed(error: RyzError, names: Mapping[str, str]) -> RyzError:
    """The error with the caller's name of the field, also in its message; the same one without such a name.

    Args:
        error: Names a field of `GenerateRequest` in `param`.
        names: The caller's names by those of `GenerateRequest`.
    """
    param = error.data.get("param")
    if not isinstance(param, str):
        return error
    field, dot, rest = param.partition(".")
    name = names.get(field)
    if name is None:
        return error
    data = {**error.data, "param": f"{name}{dot}{rest}"}
    return type(error)(error.message.replace(f"`{field}", f"`{name}"), **data)
