"""What the record of a key says of a bus user, which is a key whose holder speaks to the broker itself."""

from typing import Annotated

import msgspec

from shared.messages.base import ID_PATTERN, Wire

PasswordHash = Annotated[
    str,
    msgspec.Meta(pattern=r"^\$2[aby]\$[0-9]{2}\$[A-Za-z0-9./]{53}\Z", description="bcrypt, for the broker."),
]


class BusUserTerms(Wire, frozen=True, kw_only=True):
    """A user of the broker for a service outside.

    Attributes:
        user: Its name at the broker.
        max_rps: Requests a second; 0: no limit, None: the router's setting.
        max_priority: Highest priority of its requests; None: the router's setting.
        suspended: Its requests are refused, and the broker lets it in no more.
    """

    user: Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
    password_hash: PasswordHash
    max_rps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=-10, le=10)] | None = None
    suspended: bool = False
