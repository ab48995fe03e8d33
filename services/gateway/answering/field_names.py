"""Gives a leader's errors the field names of the caller's own format. Pure."""

from collections.abc import Mapping

from shared.errors import RyzError


def renamed(error: RyzError, names: Mapping[str, str]) -> RyzError:
    """The error with the caller's name of the field, also in its message; the same one without such a name.

    Args:
        error: Names a field of `GenerateRequest` in `param`, or one inside it.
        names: The caller's names by those of `GenerateRequest`; of several that fit, the longest counts.
    """
    param = error.data.get("param")
    if not isinstance(param, str):
        return error
    for field in sorted(names, key=len, reverse=True):
        rest = param[len(field) :]
        if param.startswith(field) and (not rest or rest[0] in ".["):
            told = error.message.replace(f"`{field}", f"`{names[field]}")
            top = field.partition(".")[0]
            told = told.replace(f"`{top}", f"`{names[field]}")
            return type(error)(told, **{**error.data, "param": names[field] + rest})
    return error
