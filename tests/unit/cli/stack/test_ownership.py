"""Files of a stack: another user cannot redirect where they go, and files of others stay as they are."""

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.console import CommandError
from cli.stack.host import ownership
from cli.stack.host.private import MARKER, open_log, remove_dir
from cli.stack.servers.redis_dir import make_redis_dir
from cli.stack.state import StateDir
from shared.host.local_stack import ForeignFileError, read_own

THEIRS = 48_213
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")


def foreign_link(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.chown(link, THEIRS, THEIRS, follow_symlinks=False)


@AS_ROOT
@pytest.mark.parametrize("where", ["itself", "on the way", "through a link of ours", "to nothing yet"])
def test_no_link_of_another_user_is_followed(tmp_path: Path, where: str) -> None:
    victim = tmp_path / "victim"
    (victim / "run").mkdir(parents=True)
    (victim / "run" / "results.txt").write_text("data")
    victim.chmod(0o755)
    given = {
        "itself": tmp_path / ".ryz",
        "on the way": tmp_path / "way" / "run",
        "through a link of ours": tmp_path / "ours",
        "to nothing yet": tmp_path / "way" / "new" / "deep",
    }[where]
    foreign_link(tmp_path / ("way" if "way" in str(given) else ".ryz"), victim)
    (tmp_path / "ours").symlink_to(".ryz")
    with pytest.raises(CommandError, match=r"is a link that another user made\. .*--state-dir"):
        StateDir(given).acquire()
    assert victim.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in victim.rglob("*")) == ["results.txt", "run"]
    (victim / "up.json").write_text("{}")
    foreign_link(tmp_path / "there", victim)
    with pytest.raises(ForeignFileError):
        read_own(tmp_path / "there" / "up.json")


@AS_ROOT
def test_a_link_that_comes_after_the_first_look_is_refused(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path / ".ryz")
    (tmp_path / "victim").mkdir()
    foreign_link(tmp_path / ".ryz", tmp_path / "victim")
    with pytest.raises(CommandError, match=r"is a link that another user made"):
        state_dir.make()
    assert list((tmp_path / "victim").iterdir()) == []


def test_links_of_ones_own_lead_on(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    state_dir = StateDir(tmp_path / "link" / ".." / "link" / "state")
    state_dir.make()
    assert state_dir.path == tmp_path / "real" / "state"
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(CommandError, match="--state-dir"):
        StateDir(tmp_path / "circle").make()


@pytest.mark.parametrize("name", ["run", "nats.conf", "redis.conf", "up.json", "logs", "stack"])
def test_what_no_stack_made_stays_as_it_is(tmp_path: Path, name: str) -> None:
    own = tmp_path / name
    if "." in name or name == "stack":
        own.write_text("mine")
    else:
        own.mkdir()
        own.chmod(0o755)
        (own / "results.log").write_text("mine")
    with pytest.raises(CommandError, match=rf"{name} in it was not made by a stack; move it away"):
        StateDir(tmp_path).acquire()
    assert "mine" in (own.read_text() if own.is_file() else (own / "results.log").read_text())
    assert own.stat().st_mode & 0o777 != 0o700
    assert not (tmp_path / MARKER).exists()


def test_a_directory_of_a_stack_is_used_again(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path / "state")
    state_dir.make()
    for name in ("nats.conf", "redis.acl", "up.json"):  # left by a supervisor that was killed
        (state_dir.path / name).write_text("old")
    (state_dir.path / "run").mkdir()
    state_dir.make()


def test_files_of_others_in_a_directory_of_sockets_are_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("redis.sock", "notes.txt"):
        (run / name).touch()
    remove_dir(run, [run / "redis.sock", run / "redis-kv.sock"])
    assert [path.name for path in run.iterdir()] == ["notes.txt"]
    (run / "notes.txt").unlink()
    remove_dir(run, [run / "redis.sock"])
    assert not run.exists()


def test_a_log_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (tmp_path / "redis.log").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        open_log(tmp_path / "redis.log")


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Returns group members by name: group 700 is private to ada (user 700), group 701 has two members."""
    members: dict[str, list[str]] = {"ada": [], "team": ["ada", "bob"]}
    users = {700: SimpleNamespace(pw_name="ada", pw_uid=700, pw_gid=700)}
    numbers = {700: "ada", 701: "team"}
    monkeypatch.setattr(pwd, "getpwall", lambda: list(users.values()))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: users[uid])
    monkeypatch.setattr(
        grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=numbers[gid], gr_mem=members[numbers[gid]])
    )
    return members


@AS_ROOT
def test_a_group_may_write_on_the_way_only_if_it_is_its_owners_own(
    tmp_path: Path, team: dict[str, list[str]]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    os.chown(folder, 700, 701)
    folder.chmod(0o775)
    with pytest.raises(CommandError, match=r"the group team may replace .*`chmod g-w .*--state-dir"):
        StateDir(folder / ".ryz").make()
    assert not (folder / ".ryz").exists()
    folder.chmod(0o755)
    StateDir(folder / ".ryz").make()
    os.chown(folder, 700, 700)
    folder.chmod(0o775)  # the mode of a home under `umask 002`, where each user has a private group
    StateDir(folder / ".ryz").make()
    team["ada"].append("bob")
    with pytest.raises(CommandError, match="the group ada may replace"):
        StateDir(folder / ".ryz").make()


def test_a_group_without_a_name_is_its_users_own_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(grp, "getgrgid", unknown)
    found = SimpleNamespace(st_mode=0o40775, st_gid=91_234, st_uid=91_234)
    assert ownership.writers(Path("/"), found) == ""  # type: ignore[arg-type]
    found.st_uid = 91_235
    assert ownership.writers(Path("/"), found) == "the group 91234"  # type: ignore[arg-type]


@AS_ROOT
def test_the_owner_of_a_sticky_directory_may_replace_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o1777)
    StateDir(folder / "a").make()
    os.chown(folder, THEIRS, THEIRS)
    with pytest.raises(CommandError, match=r"another user owns .*open, and may replace"):
        StateDir(folder / "b").make()


def test_a_directory_for_sessions_is_made_and_used_again(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("kept")
    kept = make_redis_dir(tmp_path / "link")
    assert kept == tmp_path / "kept"
    assert kept.stat().st_mode & 0o777 == 0o700
    (kept / "appendonlydir").mkdir(mode=0o700)
    (kept / "appendonlydir" / "appendonly.aof.1.incr.aof").touch(mode=0o600)
    (kept / "dump.rdb").touch(mode=0o644)
    kept.chmod(0o755)
    assert make_redis_dir(kept) == kept


@AS_ROOT
@pytest.mark.parametrize(
    ("whose", "message"),
    [
        ("itself", "it belongs to another user"),
        ("a link to it", "is a link that another user made"),
        ("its parent's group", r"the group 48213 may replace what is in .*`chmod g-w"),
        ("open to all", r"every user may write to it .*`chmod go-w"),
        ("a folder in it", "appendonlydir belongs to another user"),
        ("a log in it", r"incr\.aof belongs to another user"),
        ("a log that all may write", r"every user may write to .*incr\.aof"),
        ("a log that is a link", r"incr\.aof is a link"),
        ("a log with a second name", r"incr\.aof is a link"),
        ("an older kind", r"dump\.rdb belongs to another user"),
    ],
)
def test_sessions_are_not_read_from_what_others_made(tmp_path: Path, whose: str, message: str) -> None:
    parent, kept, other = tmp_path / "parent", tmp_path / "parent" / "kept", tmp_path / "other"
    folder, given = kept / "appendonlydir", kept
    folder.mkdir(parents=True)
    log, dump = folder / "appendonly.aof.1.incr.aof", kept / "dump.rdb"
    for path in (log, dump, other):
        path.touch()
        path.chmod(0o600)
    if whose == "a link to it":
        given = tmp_path / "link"
        foreign_link(given, kept)
    elif whose == "its parent's group":
        os.chown(parent, 0, THEIRS)
        parent.chmod(0o770)
    elif whose == "open to all":
        kept.chmod(0o1777)
    elif whose == "a log that all may write":
        log.chmod(0o666)
    elif whose.startswith("a log ") and whose != "a log in it":
        log.unlink()
        log.symlink_to(other) if whose.endswith("link") else log.hardlink_to(other)
    else:
        owned = {"itself": kept, "a folder in it": folder, "a log in it": log, "an older kind": dump}[whose]
        os.chown(owned, THEIRS, THEIRS)
    with pytest.raises(CommandError, match=rf"{message}.*--redis-dir"):
        make_redis_dir(given)
