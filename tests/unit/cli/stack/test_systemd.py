"""The systemd unit of `ryz up --print-unit`: right for systemd, whatever is in the command."""

import getpass
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.supervision.systemd import notify_ready, unit_text
from tests.kits.e2e.stack import ryz

WORDS = ("up", "--model", "my model 100%.gguf", "--model-name", 'a"b', "--policy", "$HOME;x")


def test_the_unit_runs_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = unit_text([*WORDS, "--print-unit"], {"RYZ_API_KEYS": "secret-key:acme", "HOME": "/root"})
    assert "RYZ_API_KEYS" in text.partition("\n")[0]
    assert "secret-key" not in text
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert (lines["User"], lines["WorkingDirectory"]) == (getpass.getuser(), str(tmp_path))
    command = shlex.split(lines["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert command == [str(Path(sys.executable).parent / "ryz"), *WORDS]


def test_systemd_takes_it(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    printed = ryz("up", "--model", "a model.gguf", "--port", "8001", "--print-unit", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    file = tmp_path / "ryzanstein.service"
    file.write_text(printed.stdout)
    checked = subprocess.run(
        [program, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, [line for line in checked.stderr.splitlines() if "ryzanstein" in line]) == (
        0,
        [],
    )


def test_a_unit_stays_in_the_foreground(tmp_path: Path) -> None:
    refused = ryz("up", "--print-unit", "--detach", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--detach" in refused.stderr


def test_no_unit_without_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    with pytest.raises(CommandError, match="/nowhere/bin/ryz"):
        unit_text(["up"], {})


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        notify_ready({})
        notify_ready({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(100) == b"READY=1"
