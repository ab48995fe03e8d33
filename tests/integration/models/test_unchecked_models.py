"""Models of the catalogue that come from the Hub: a question before the fetch, and a pin after the first."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.models import resolve
from cli.models.catalogue import CatalogueModel, catalogue
from cli.models.choosing.fits import better_model, better_words
from cli.models.choosing.pins import pin_of, pins_file
from cli.models.names import hub_name
from cli.models.pull import intact_record, pull, pullable
from cli.models.records import read_record
from cli.models.resolve import resolve_model
from cli.models.store import models_dir
from cli.stack.memory_needs import GROUP_BYTES
from tests.kits.models.file_server import FileServer
from tests.kits.models.hub_server import COMMIT, add_model, cdn_path

NAME = "qwen3-0.6b"
HUB = "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
CONTENT = b"GGUF" + bytes(range(256))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    with FileServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        publish(server, CONTENT)
        yield server


def publish(server: FileServer, content: bytes) -> None:
    add_model(server, "Qwen/Qwen3-0.6B-GGUF", {"Qwen3-0.6B-Q8_0.gguf": content}, revision=COMMIT)


def test_entries_name_a_file_on_the_hub_and_their_memory_is_no_less_than_their_needs() -> None:
    unchecked = [model for model in catalogue().values() if model.hub]
    assert len(unchecked) == 10
    for model in unchecked:
        assert hub_name(model.hub).file
        assert (model.sha256, model.wheels) == ("", ())
        assert model.memory > model.size + GROUP_BYTES
        assert 300_000_000 <= model.size <= 8_000_000_000


def test_the_first_pull_pins_the_file(hub: FileServer) -> None:
    path = pull(pullable(NAME))
    assert path == models_dir() / f"{NAME}.gguf"
    assert path.read_bytes() == CONTENT
    pin = pin_of(HUB)
    assert pin is not None
    assert pin.commit == COMMIT
    record = read_record(path)
    assert record is not None
    assert (record.name, record.licence) == (NAME, "apache-2.0")
    assert record.source == f"Qwen/Qwen3-0.6B-GGUF at {COMMIT[:12]}"
    assert intact_record(pullable(NAME)) == record
    assert resolve_model(NAME, pull=False) == path


def test_a_later_pull_asks_for_the_pinned_commit_and_takes_no_other_file(hub: FileServer) -> None:
    pull(pullable(NAME)).unlink()
    pull(pullable(NAME)).unlink()
    asked = [one.path for one in hub.asked if one.path.startswith("/api/models")]
    assert asked == [
        "/api/models/Qwen/Qwen3-0.6B-GGUF",
        f"/api/models/Qwen/Qwen3-0.6B-GGUF/revision/{COMMIT}",
    ]
    publish(hub, CONTENT + b"changed")
    with pytest.raises(CommandError, match=r"is not the file that was pulled here first.*pins\.json"):
        pull(pullable(NAME))
    assert not (models_dir() / f"{NAME}.gguf").exists()
    pins_file().unlink()
    assert pull(pullable(NAME)).read_bytes() == CONTENT + b"changed"


def test_a_broken_file_of_pins_is_named(hub: FileServer) -> None:
    models_dir().mkdir(parents=True)
    pins_file().write_text('{"hf:a/b": 3}')
    with pytest.raises(CommandError, match=r"pins\.json is not what this program wrote"):
        pull(pullable(NAME))


@pytest.mark.parametrize(("said", "fetched"), [("y", True), ("", False), ("no", False)])
def test_a_large_model_is_fetched_only_after_a_yes(
    hub: FileServer, monkeypatch: pytest.MonkeyPatch, said: str, fetched: bool
) -> None:
    questions = list[str]()
    monkeypatch.setattr(resolve, "fetches", lambda *, pull: True)

    def answer(question: str) -> str:
        questions.append(question)
        return said

    monkeypatch.setattr("builtins.input", answer)
    if fetched:
        assert resolve_model(NAME).read_bytes() == CONTENT
    else:
        with pytest.raises(CommandError, match=f"was not fetched. `ryz models pull {NAME}` does it"):
            resolve_model(NAME)
        assert not hub.ranges(cdn_path("Qwen3-0.6B-Q8_0.gguf"))
    assert questions == [f"Fetch {NAME} (639.4 MB, Apache-2.0) from hf:Qwen/Qwen3-0.6B-GGUF? [y/N] "]


def test_with_pull_nothing_is_asked(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", pytest.fail)
    assert resolve_model(NAME, pull=True).exists()


def model(name: str, size: int, memory: int, terms: str = "", hub: str = "hf:a/b/c.gguf") -> CatalogueModel:
    return CatalogueModel(
        name=name, title="", licence="", notes="", size=size, memory=memory, terms=terms, hub=hub
    )


def test_the_better_model_is_the_largest_that_fits_and_answers_fluently() -> None:
    small, large = model("small", 400_000_000, 10**9), model("large", 2 * 10**9, 3 * 10**9)
    bound = model("bound", 10**9, 2 * 10**9, terms="https://terms")
    models = [model("checked", 10**8, 1, hub=""), small, bound, large]
    assert better_model(models, 10**11, 8) == large
    assert better_model(models, 10**11, 1) == small, "one core reads little"
    assert better_model(models, 3 * 10**9, 8) == small, "two groups of the large one take 4 GB"
    assert better_model(models, 10**8, 8) is None
    assert better_model([bound], 10**11, 8) is None, "terms are for the user to find"


def test_the_default_model_comes_with_a_line_on_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.models.choosing.fits.room_here", lambda: 10**11)
    monkeypatch.setattr("shared.host.cores_and_memory.usable_cores", lambda: 2)
    assert (
        better_words() == "A better one fits this machine: `ryz up --model qwen3-0.6b` (639.4 MB to fetch)."
    )
    monkeypatch.setattr("cli.models.choosing.fits.room_here", lambda: 10**9)
    assert better_words() == ""


def test_the_list_shows_what_fits_first_and_marks_what_is_unchecked(
    hub: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.models.listing.room_here", lambda: 2 * 10**9)
    listed = json.loads(CliRunner().invoke(app, ["models", "list", "--json"]).output)["models"]
    fits = [one["fits"] for one in listed]
    assert fits == sorted(fits, reverse=True)
    assert True in fits
    assert False in fits
    assert {one["name"] for one in listed if not one["unchecked"]} == {"demo", "smollm2-135m", "gemma3-270m"}
    text = CliRunner().invoke(app, ["models", "list"]).output
    assert "hf:Qwen/Qwen3-8B-GGUF (unchecked)" in text
    assert text.index("qwen3-0.6b") < text.index("qwen3-8b")


def test_the_list_names_what_else_takes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    assert "Packed weights" not in CliRunner().invoke(app, ["models", "list"]).output
    for name, num_bytes in {".packed/a": 3_000_000, ".x.gguf.part/x.gguf.part": 2_000_000}.items():
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(num_bytes))
    text = CliRunner().invoke(app, ["models", "list"]).output
    assert f"Packed weights: 3.0 MB in {tmp_path}/models/.packed." in text
    assert f"A pull was cut: 2.0 MB in {tmp_path}/models/.x.gguf.part." in text
