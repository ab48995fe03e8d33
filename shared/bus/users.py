"""The users of services outside: what is kept of them in one file, which `ryz bus-users` writes.

The broker's configuration is made of it, and a router reads each user's own limits. It holds no password.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from shared.bus.accounts import ACCOUNTS
from shared.errors import InvalidRequest
from shared.messages.base import ID_PATTERN
from shared.subjects import Caller

MAX_BYTES = 4 * 1024 * 1024
Name = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


class BusUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of them.

    password_hash: bcrypt. max_rps: requests a second, 0 for no limit. max_priority: of its requests. None:
    what the router's settings say.
    """

    name: Name
    tenant: Name
    password_hash: Annotated[str, msgspec.Meta(pattern=r"^\$2[aby]\$[0-9]{2}\$[A-Za-z0-9./]{53}\Z")]
    max_rps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=-10, le=10)] | None = None

    @property
    def caller(self) -> Caller:
        """Whom its subjects name."""
        return Caller(self.tenant, self.name)


class BusUsers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them, by name."""

    users: list[BusUser] = []

    def find(self, name: str) -> BusUser | None:
        """The user of that name."""
        return next((user for user in self.users if user.name == name), None)

    def hashes(self) -> dict[Caller, str]:
        """What the broker's configuration needs."""
        return {user.caller: user.password_hash for user in self.users}


def read_users(path: Path) -> BusUsers:
    """What the file holds; no users if there is none.

    Raises:
        InvalidRequest: it cannot be read, or its content is no list of users.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return BusUsers()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", param=str(path)) from None
    try:
        if len(data) > MAX_BYTES:
            raise msgspec.ValidationError(f"more than {MAX_BYTES} bytes")
        found = msgspec.json.decode(data, type=BusUsers)
        names = [user.name for user in found.users]
        if len(set(names)) < len(names) or set(names) & set(ACCOUNTS):
            raise msgspec.ValidationError("a name is there twice, or is one of our own users'")
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is no file of `ryz bus-users`: {error}", param=str(path)) from None
    return found


def as_text(users: BusUsers) -> str:
    """What the file is to hold."""
    return msgspec.json.format(msgspec.json.encode(users), indent=1).decode() + "\n"
