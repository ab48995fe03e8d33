"""Gives a leader's errors the field names of the caller's own format. Pure."""

import re
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
            # the field, or else what it is inside of; not `stop_token_ids`, where `stop` is meant
            known = "|".join(map(re.escape, (field, field.partition(".")[0])))
            told = re.sub(rf"`(?:{known})(?=[`.\[])", f"`{names[field]}", error.message)
            return type(error)(told, **{**error.data, "param": names[field] + rest})
    return error
