"""Prometheus comes from the distribution's package, without root; without apt-get the remedy is named."""

from pathlib import Path

import pytest

from tools.debian import prometheus

APT = """#!/bin/sh
[ "$FAKE_APT" = fails ] && { echo "E: Temporary failure resolving" >&2; exit 100; }
case "$*" in *download*) touch prometheus_2.42.0_amd64.deb;; esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin"
for name in prometheus promtool; do echo "from $2" > "$3/usr/bin/$name"; done
"""


@pytest.fixture
def fake_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with an apt-get and a dpkg-deb that need no network; returns the folder for programs."""
    tools, programs = tmp_path / "tools", tmp_path / "bin"
    for folder in (tools, programs):
        folder.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for name in ("touch", "mkdir", "sh"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    return programs


def test_the_package_is_unpacked_beside_python(fake_path: Path) -> None:
    assert prometheus.missing(fake_path) == ["prometheus", "promtool"]
    assert prometheus.main() == 0
    assert prometheus.missing(fake_path) == []
    assert "prometheus_2.42.0_amd64.deb" in (fake_path / "promtool").read_text()


def test_a_failure_is_reported_and_tried_again_later(
    fake_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_APT", "fails")
    assert prometheus.main() == 1
    assert "apt-get failed: E: Temporary failure resolving" in capsys.readouterr().out
    assert list(fake_path.iterdir()) == []


def test_without_apt_the_remedy_is_named(
    fake_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(fake_path))
    assert prometheus.main() == 0
    assert "Put Prometheus (2.42 or newer) on PATH" in capsys.readouterr().out
