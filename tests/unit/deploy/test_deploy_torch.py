"""torch without CUDA: taken from an index of its own, unless a driver is there or the index is not."""

import functools
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy import install_torch

VERSION = install_torch.pin().partition("==")[2] + "+cpu"
WHEEL = f"torch-{VERSION}-py3-none-any.whl"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Suppresses the request log."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """An index as PEP 503 has it, with a wheel that has torch's name."""
    folder = tmp_path / "index" / "torch"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{WHEEL.replace("+", "%2B")}">{WHEEL}</a>')
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        info = f"torch-{VERSION}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    handler = functools.partial(QuietHandler, directory=str(tmp_path / "index"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns where pip installs: an environment without torch, driver or other indexes."""
    monkeypatch.setattr(install_torch, "installed", lambda: "")
    monkeypatch.setattr(install_torch, "driver", lambda: "")
    target = tmp_path / "target"
    for name, value in (("TARGET", target), ("CONFIG_FILE", "/dev/null"), ("NO_CACHE_DIR", "1")):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "INDEX_URL"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    return target


def test_the_build_for_cpus_suits_the_pin(index: str, bare: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert install_torch.main([index]) == 0
    assert [path.name for path in bare.iterdir()] == [f"torch-{VERSION}.dist-info"]
    assert f"torch for CPUs comes from {index}" in capfd.readouterr().out


def test_an_index_that_is_not_reached_is_reported_and_the_installation_goes_on(
    bare: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert install_torch.main(["http://127.0.0.1:9"]) == 0
    said = capfd.readouterr().out
    assert "torch did not come from http://127.0.0.1:9: it could not be reached" in said
    assert "TORCH_INDEX" in said
    assert not bare.exists()


def test_an_index_without_the_pinned_version_is_reported(
    index: str, bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install_torch, "pin", lambda: "torch==2.13.1")
    assert install_torch.main([index]) == 0
    assert f"{index}: No matching distribution found for torch==2.13.1" in capfd.readouterr().out


def test_with_a_driver_or_with_torch_nothing_is_fetched(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was run"))
    assert install_torch.main([""]) == 0
    monkeypatch.setattr(install_torch, "driver", lambda: "/usr/bin/nvidia-smi")
    assert install_torch.main(["http://127.0.0.1:9"]) == 0
    assert "NVIDIA driver found (/usr/bin/nvidia-smi)" in capfd.readouterr().out
    monkeypatch.setattr(install_torch, "installed", lambda: "2.13.0")
    assert install_torch.main(["http://127.0.0.1:9"]) == 0
    assert capfd.readouterr().out == ""


def test_a_driver_shows_in_proc_or_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_torch.driver(tmp_path / "version") == ""
    (tmp_path / "version").touch()
    assert install_torch.driver(tmp_path / "version") == str(tmp_path / "version")
    tool = tmp_path / "nvidia-smi"
    tool.touch(mode=0o755)
    assert install_torch.driver(tmp_path / "none") == str(tool)
