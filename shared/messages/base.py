"""The base of every wire message, and the constrained field types that several messages share.

Messages evolve by addition: a new field has a default, an unknown field is ignored, a field is never
renamed. A change that breaks this needs a new version in the subject (`shared/subjects.py`).
"""

from typing import Annotated, ClassVar

import msgspec

# \Z and not $, which lets a final newline pass
ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}\Z"
# Controls, spaces, breaks of lines, marks of text direction: what a terminal or a log would obey, or show as
# another name.
NOT_IN_NAMES = r"\x00-\x20\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
# ASCII alone comes first: nearly all names are, and it takes a third of the time
NAME_PATTERN = rf"^(?:[\x21-\x7e]{{1,128}}\Z|[^{NOT_IN_NAMES}]{{1,128}}\Z)"
NAME_RULE = "1 to 128 printable characters, without spaces, control characters and marks of text direction"

RequestId = Annotated[
    str,
    msgspec.Meta(pattern=ID_PATTERN, description="Made by the caller, unique; letters, digits, - and _."),
]
SessionId = Annotated[
    str,
    msgspec.Meta(
        pattern=NAME_PATTERN,
        description="Any printable text without spaces, control characters and marks of text direction.",
    ),
]
StoredSessionId = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=128,
        description="Of a session in the store. Taken as it is: one bad name must not spoil a list.",
    ),
]
ModelName = Annotated[
    str, msgspec.Meta(pattern=NAME_PATTERN, description="The name under which a model is served.")
]
Tenant = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, description="Whose request or session it is.")]
TENANT_OR_NONE = r"^[A-Za-z0-9_-]{0,64}\Z"
DEFAULT_TENANT = "default"  # of a request that names none
GroupName = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, description="A worker group.")]
TokenIds = Annotated[
    bytes, msgspec.Meta(description="Token ids, unsigned 32-bit little-endian, one after another.")
]
BACKGROUND_PRIORITY = -10  # of requests that run in the room that others leave: the lowest there is
MAX_ATTEMPT = 1000
Attempt = Annotated[
    int, msgspec.Meta(ge=0, le=MAX_ATTEMPT, description="The highest attempt at a request counts.")
]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, description="Milliseconds.")]


MAX_DEPTH = 16


def check_depth(value: object) -> None:
    """Raises `ValueError` when plain data is nested too deeply to be passed on as JSON or MessagePack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


SMALL = 4096


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message, or a part of one, as a MessagePack map with string keys; defaults are left out.

    They are trees of plain data, so the garbage collector need not track them.

    Attributes:
        max_bytes: A longer message is refused before it is decoded, since decoding a large one could delay
            the heartbeats of a leader. 0: the limit of the broker.
    """

    max_bytes: ClassVar[int] = 0
