"""Limits of outside users: request rate, priority, and the file that holds them."""

from pathlib import Path

import pytest

from services.router.outside.gate import UserLimits, UserLimitsFile
from shared.bus.users import BusUser, BusUsers, as_text, read_users
from shared.errors import InvalidRequest

HASH = "$2a$05$" + "a" * 53
DEFAULT = UserLimits(100.0, 0)


def write(path: Path, *users: BusUser) -> None:
    path.write_text(as_text(BusUsers(list(users))))


def test_own_limits_come_from_the_file_and_change_with_it(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    limits = UserLimitsFile(str(file), DEFAULT)
    assert limits.of("a", 0.0) == DEFAULT, "there is no file yet"
    write(file, BusUser("a", "t", HASH, 5.0, 3), BusUser("b", "t", HASH, max_priority=-1))
    assert limits.of("a", 0.5) == DEFAULT, "it is looked at once a second"
    assert limits.of("a", 1.0) == (5.0, 3)
    assert limits.of("b", 1.0) == (100.0, -1)
    assert limits.of("outside", 1.0) == DEFAULT
    file.write_text("{")
    assert limits.of("a", 2.0) == (5.0, 3), "a damaged file changes nothing"
    file.unlink()
    assert limits.of("a", 3.0) == DEFAULT
    assert UserLimitsFile("", DEFAULT).of("a", 0.0) == DEFAULT


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


def test_what_is_written_is_read(tmp_path: Path) -> None:
    users = BusUsers([BusUser("a", "t", HASH, 5.0, 3), BusUser("b", "b", HASH)])
    (tmp_path / "f").write_text(as_text(users))
    assert read_users(tmp_path / "f") == users
    assert read_users(tmp_path / "none") == BusUsers()
