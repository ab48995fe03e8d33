"""The directory of the host tier that `ryz up` makes: private, bounded, removed at the end or later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.stack.host.kv_pool import LEAST_BYTES, MOST_BYTES, remove_unused, shared_kv_pool

GIB = 2**30


def test_a_stack_has_a_directory_of_its_own_until_it_ends(tmp_path: Path) -> None:
    with (
        shared_kv_pool(2, {}, 64 * GIB, tmp_path) as first,
        shared_kv_pool(2, {}, 64 * GIB, tmp_path) as other,
    ):
        path = Path(first["RYZ_KV_HOST_DIR"])
        assert path.stat().st_mode & 0o777 == 0o700
        assert LEAST_BYTES <= int(first["RYZ_KV_HOST_BYTES"]) <= MOST_BYTES
        assert other["RYZ_KV_HOST_DIR"] != first["RYZ_KV_HOST_DIR"]
        (path / "g0.0-2.0.kv").write_bytes(b"a ring")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("groups", "environ", "machine_bytes"),
    [(0, {}, GIB), (2, {"RYZ_KV_HOST_DIR": ""}, GIB), (2, {}, 31 * 2 * LEAST_BYTES)],
)
def test_nothing_is_made_where_it_is_not_wanted_or_memory_is_short(
    tmp_path: Path, groups: int, environ: dict[str, str], machine_bytes: int
) -> None:
    with shared_kv_pool(groups, environ, machine_bytes, tmp_path) as settings:
        assert settings == {}
        assert not list(tmp_path.iterdir())
    with shared_kv_pool(2, {}, GIB, tmp_path / "missing") as settings:
        assert settings == {}


def test_a_given_size_is_left_as_it_is(tmp_path: Path) -> None:
    with shared_kv_pool(2, {"RYZ_KV_HOST_BYTES": "1048576"}, 64 * GIB, tmp_path) as settings:
        assert list(settings) == ["RYZ_KV_HOST_DIR"]


_KILLED = """
import os, sys
from pathlib import Path
from cli.stack.host.kv_pool import shared_kv_pool
with shared_kv_pool(2, {}, 2**36, Path(sys.argv[1])) as settings:
    (Path(settings["RYZ_KV_HOST_DIR"]) / "g0.0-2.0.new").touch()
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_supervisor_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", _KILLED, tmp_path], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    prefix = f"ryz-kv-{os.geteuid()}-"
    (tmp_path / "another").mkdir()
    (tmp_path / f"{prefix}link").symlink_to(tmp_path / "another")
    (tmp_path / f"{prefix}file").touch()
    (tmp_path / f"{prefix}open").mkdir()
    (tmp_path / f"{prefix}open").chmod(0o755)
    full = tmp_path / f"{prefix}full"
    full.mkdir(0o700)
    (full / "notes.txt").touch()
    (full / "g0.0-2.0.kv").touch()
    with shared_kv_pool(2, {}, 64 * GIB, tmp_path) as settings:
        remove_unused(tmp_path)
        kept = {"another", f"{prefix}link", f"{prefix}file", f"{prefix}open", full.name}
        assert {one.name for one in tmp_path.iterdir()} == kept | {Path(settings["RYZ_KV_HOST_DIR"]).name}
    assert [one.name for one in full.iterdir()] == ["notes.txt"]
