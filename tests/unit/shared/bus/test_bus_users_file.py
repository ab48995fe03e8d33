"""The file of bus users in a state directory."""

from pathlib import Path

import pytest

from shared.bus.users import BusUser, BusUsers, as_text, read_users
from shared.errors import InvalidRequest

HASH = "$2a$05$" + "a" * 53


def test_a_file_is_read_as_it_was_written_also_by_an_earlier_release(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    assert read_users(file) == BusUsers()
    users = BusUsers([BusUser("a", "t", HASH, 5.0, 3, "0123456789ab"), BusUser("b", "t", HASH)])
    file.write_text(as_text(users))
    assert read_users(file) == users
    file.write_text('{"users": [{"name": "a", "tenant": "t", "password_hash": "%s"}]}' % HASH)  # noqa: UP031
    assert read_users(file).users == [BusUser("a", "t", HASH)]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"users": [{}]}', '{"user": []}',
        as_text(BusUsers([BusUser("a", "t", HASH), BusUser("a", "u", HASH)])),
        as_text(BusUsers([BusUser("gateway", "t", HASH)])),
        as_text(BusUsers([BusUser("a", "t", HASH)])).replace('"t"', '"t.*"'),
        as_text(BusUsers([BusUser("a", "t", HASH)])).replace("$2a$05$", '\\" } evil'),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Its content goes into the broker's configuration, so only names and hashes are allowed."""
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="no file of"):
        read_users(file)
