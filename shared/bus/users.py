"""The file of bus users in the state directory: a copy of their records, for the broker's next start.

The configuration of our own broker is made from it before the records can be read, which the broker has. It
contains hashes of passwords only. Earlier releases kept the users here alone.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from shared.bus.accounts import ACCOUNTS
from shared.errors import InvalidRequest
from shared.messages.base import ID_PATTERN
from shared.messages.tenants.accounts import NO_KEY_OR_ID
from shared.messages.tenants.bus_users import PasswordHash
from shared.subjects import OutsideService

MAX_BYTES = 4 * 1024 * 1024
Name = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


class BusUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One user.

    Attributes:
        name: The user of the broker.
        key_id: Its record; empty: it has none yet, since an earlier release made it.
        max_rps: Requests a second; 0 for no limit, None for the router's setting.
        max_priority: Highest priority of its requests; None for the router's setting.
    """

    name: Name
    tenant: Name
    password_hash: PasswordHash
    max_rps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=-10, le=10)] | None = None
    key_id: NO_KEY_OR_ID = ""

    @property
    def caller(self) -> OutsideService:
        """The caller that its subjects name."""
        return OutsideService(self.tenant, self.name)


class BusUsers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All users."""

    users: list[BusUser] = []

    def hashes(self) -> dict[OutsideService, str]:
        """Returns the hashes of passwords by caller, for the configuration of the broker."""
        return {user.caller: user.password_hash for user in self.users}


def read_users(path: Path) -> BusUsers:
    """Returns the users in the file; none if there is no file.

    Raises:
        InvalidRequest: It cannot be read, or is not a file of users.
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
        raise InvalidRequest(f"{path} is no file of bus users: {error}", param=str(path)) from None
    return found


def as_text(users: BusUsers) -> str:
    """Returns the text of the file."""
    return msgspec.json.format(msgspec.json.encode(users), indent=1).decode() + "\n"
