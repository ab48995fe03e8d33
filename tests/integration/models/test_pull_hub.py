"""`ryz models pull hf:...` with the real `huggingface_hub` and a server that speaks the Hub's protocol."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.models import transfer_bar
from cli.models.names import hub_name
from cli.models.pull import intact_record, pull
from cli.models.records import DamagedModel, read_record
from cli.models.resolve import resolve_model
from cli.stack.model_dir import demo_model, find_model
from services.worker.model_files.load_model import load_model
from services.worker.text.tool_prompt import TemplateInput
from shared.messages import ChatMessage, ToolDefinition
from tests.kits.models.file_server import Answer, FileServer
from tests.kits.models.hub_server import COMMIT, add_model, cdn_path, demo_files, refuse
from tests.kits.waiting import until

MODEL = "hf:someone/some-model"
WEIGHTS = cdn_path("model.safetensors")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HF_TOKEN", "a-token")
    monkeypatch.setattr(transfer_bar, "PAUSES_S", (0.0, 0.0))
    with FileServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        add_model(server, "someone/some-model", demo_files())
        yield server


def test_a_model_is_pulled_whole_and_can_be_served(hub: FileServer, tmp_path: Path) -> None:
    path = pull(hub_name(MODEL))
    assert path == tmp_path / "models" / "hf" / "someone" / "some-model"
    assert {file.name for file in path.iterdir()} == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors",
    }  # fmt: skip
    assert all((demo_model() / file.name).read_bytes() == file.read_bytes() for file in path.iterdir())
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
    assert [entry.name for entry in path.parent.iterdir() if entry.name.endswith(".part")] == []
    assert find_model(Path(MODEL), "torch", 2, pull=False) == path
    record = read_record(path)
    assert record is not None
    assert (record.licence, record.source) == ("apache-2.0", f"someone/some-model at {COMMIT[:12]}")
    assert {one.token for one in hub.asked if "some-model" in one.path} == {"Bearer a-token"}
    asked = len(hub.asked)
    assert resolve_model(MODEL) == path
    assert len(hub.asked) == asked


def test_all_chat_templates_of_a_model_are_pulled(hub: FileServer) -> None:
    said = b"{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    templates = {
        "chat_template.jinja": said,
        "chat_template.json": b"{}",
        "additional_chat_templates/tool_use.jinja": b"tools " + said,
        "additional_chat_templates/deep/other.jinja": said,
        "additional_chat_templates/run.py": b"raise SystemExit",
    }
    add_model(hub, "someone/templates", demo_files() | templates)
    path = pull(hub_name("hf:someone/templates"))
    found = {str(file.relative_to(path)) for file in path.rglob("*template*") if file.is_file()}
    assert found == {"chat_template.jinja", "chat_template.json"}
    assert [file.name for file in (path / "additional_chat_templates").iterdir()] == ["tool_use.jinja"]
    assert intact_record(hub_name("hf:someone/templates")) is not None
    model = load_model(path)
    assert model.template is not None
    said_hi = [ChatMessage(role="user", content="hi")]
    assert model.template.render(said_hi) == "<|user|>hi"
    with_tools = TemplateInput([ToolDefinition(name="look")])
    assert model.template.render(said_hi, 5.0, with_tools).startswith("tools <|user|>")


def test_one_file_of_a_revision_is_pulled(hub: FileServer, tmp_path: Path) -> None:
    add_model(hub, "someone/ggufs", {"Q8/m.gguf": b"GGUF" + bytes(9), "Q4/m.gguf": b"GGUF"}, revision="v1")
    path = pull(hub_name("hf:someone/ggufs@v1/Q8/m.gguf"))
    assert path == tmp_path / "models" / "hf-files" / "someone" / "ggufs@v1" / "Q8" / "m.gguf"
    assert path.read_bytes() == b"GGUF" + bytes(9)
    with pytest.raises(
        CommandError, match=r"There is no file x\.gguf in someone/ggufs\. It has Q4/m\.gguf, Q8/m"
    ):
        pull(hub_name("hf:someone/ggufs/x.gguf"))
    with pytest.raises(CommandError, match=r"holds GGUF files: name one, as hf:someone/ggufs/Q4/m\.gguf"):
        pull(hub_name("hf:someone/ggufs"))


def test_a_cut_is_resumed_by_the_same_pull(hub: FileServer) -> None:
    hub.cut_at[WEIGHTS] = 1_000_000
    pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == ["", "bytes=1000000-"]


async def test_the_next_start_goes_on_after_a_kill(hub: FileServer, tmp_path: Path) -> None:
    hub.cut_at[WEIGHTS], hub.stalls = 3_000_000, {WEIGHTS}
    script = f"from cli.models.pull import *\npull(hub_name('{MODEL}'))"
    part = tmp_path / "models" / "hf" / "someone" / ".some-model.part" / "model.safetensors.part"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, start_new_session=True) as child:  # noqa: ASYNC220 (brief)
        await until(hub.stalling.is_set)
        os.killpg(child.pid, signal.SIGKILL)
    hub.cut_at.clear()
    had = part.stat().st_size
    pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == ["", f"bytes={had}-" if had else ""]
    assert len(hub.ranges(f"/someone/some-model/resolve/{COMMIT}/config.json")) == 1


def test_a_connection_that_stays_broken_is_one_sentence(hub: FileServer) -> None:
    hub.cut_at[WEIGHTS], hub.always_cut = 3_000_000, {WEIGHTS}
    said = r"broke off after 3\.0 MB .*`ryz models pull hf:someone/some-model` goes on"
    with pytest.raises(CommandError, match=said):
        pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == ["", "bytes=3000000-"], "it ends when an attempt brings nothing"


def test_a_wrong_checksum_is_refused_and_fetched_again_later(hub: FileServer) -> None:
    right = hub.answers[WEIGHTS].body
    hub.answers[WEIGHTS].body = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(CommandError, match=r"model\.safetensors is not the file that the Hub lists"):
        pull(hub_name(MODEL))
    hub.answers[WEIGHTS].body = right
    config = hub.answers[f"/someone/some-model/resolve/{COMMIT}/tokenizer.json"]
    whole, config.body = config.body, config.body.replace(b"1", b"2", 1)
    with pytest.raises(CommandError, match=r"tokenizer\.json is not the file that the Hub lists"):
        pull(hub_name(MODEL))
    config.body = whole
    pull(hub_name(MODEL))


@pytest.mark.parametrize(
    ("status", "code", "said", "exit_code"),
    [
        (401, "GatedRepo", r"is behind terms: accept them at http://127.*/someone/some-model", 1),
        (401, "RepoNotFound", r"has no model someone/some-model, or it is private: .* HF_TOKEN", 2),
        (404, "RepoNotFound", r"has no model someone/some-model", 2),
        (404, "RevisionNotFound", r"has no revision", 2),
        (403, "", r"refused hf:someone/some-model with status 403: check the token", 1),
        (500, "", r"answers with 500 for hf:someone/some-model", 1),
    ],
)
def test_refusals_are_one_sentence(
    hub: FileServer, status: int, code: str, said: str, exit_code: int
) -> None:
    refuse(hub, "someone/some-model", status, code)
    with pytest.raises(CommandError, match=said) as caught:
        pull(hub_name(MODEL))
    assert caught.value.exit_code == exit_code
    assert "\n" not in str(caught.value)


def test_no_network_is_one_sentence(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CommandError, match=r"http://127\.0\.0\.1:9 cannot be reached .*tries again"):
        pull(hub_name(MODEL))


def test_a_full_disk_is_reported_and_the_next_pull_goes_on(hub: FileServer) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(CommandError, match=r"cannot be written: File too large\. Make room; .* goes on"):
            pull(hub_name(MODEL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == ["", "bytes=2000000-"]


def test_of_two_pulls_at_once_one_fetches(hub: FileServer) -> None:
    paths = list[Path]()
    threads = [threading.Thread(target=lambda: paths.append(pull(hub_name(MODEL)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(paths) == 2
    assert hub.ranges(WEIGHTS) == [""]


def test_damage_of_any_file_is_found(hub: FileServer) -> None:
    path = pull(hub_name(MODEL))
    (path / "config.json").write_text("{}")
    with pytest.raises(DamagedModel, match=r"config\.json has 2 bytes"):
        intact_record(hub_name(MODEL))
    with pytest.raises(CommandError, match=f"`ryz models pull {MODEL}` fetches it again"):
        resolve_model(MODEL, pull=False)
    pull(hub_name(MODEL))
    assert json.loads((path / "config.json").read_text())["vocab_size"] == 2048


def test_names_of_files_that_lead_elsewhere_are_not_taken(hub: FileServer, tmp_path: Path) -> None:
    add_model(hub, "someone/evil", demo_files() | {"../../evil.json": b"{}", "sub/config.json": b"{}"})
    path = pull(hub_name("hf:someone/evil"))
    assert len(list(path.rglob("*"))) == 5
    assert not list(tmp_path.rglob("evil.json"))


def test_weights_as_pickles_are_refused(hub: FileServer) -> None:
    files = {name: content for name, content in demo_files().items() if name != "model.safetensors"}
    add_model(hub, "someone/old", files)
    with pytest.raises(CommandError, match="has no weights as safetensors"):
        pull(hub_name("hf:someone/old"))
    hub.answers["/api/models/someone/old"] = Answer(b"{")
    with pytest.raises(CommandError, match="cannot be reached"):
        pull(hub_name("hf:someone/old"))


@pytest.mark.parametrize("headers", [{"Retry-After": "0"}, {"RateLimit": '"resolvers";r=0;t=0'}])
def test_a_limit_of_requests_is_waited_for(hub: FileServer, headers: dict[str, str]) -> None:
    limited = [Answer(b"{}", 429, headers), Answer(b"{}", 503, headers)]
    hub.refusals = {"/api/models/someone/some-model": [*limited], WEIGHTS: [*limited]}
    hub.cut_at[WEIGHTS] = 1_000_000
    pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == ["", "", "", "bytes=1000000-"]


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "86400"}, {"Retry-After": "tomorrow"}])
def test_a_limit_without_an_end_in_sight_is_one_sentence(hub: FileServer, headers: dict[str, str]) -> None:
    hub.answers["/api/models/someone/some-model"] = Answer(b"{}", 429, headers)
    with pytest.raises(
        CommandError, match=r"allows no more so soon \(429\)\. `ryz models pull hf:someone/some-model`"
    ):
        pull(hub_name(MODEL))


def test_a_file_of_xet_comes_over_its_bridge_and_gets_no_token(hub: FileServer) -> None:
    """Files in Xet are plain bytes for clients that follow the redirection, which leads to another host."""
    resolve = f"/someone/some-model/resolve/{COMMIT}/model.safetensors"
    with FileServer() as bridge:
        bridge.answers[WEIGHTS] = hub.answers.pop(WEIGHTS)
        hub.answers[resolve].headers |= {
            "Location": bridge.url + WEIGHTS,
            "X-Xet-Hash": "ab" * 32,
            "X-Linked-Size": str(len(bridge.answers[WEIGHTS].body)),
            "Link": f'<{hub.url}/api/models/someone/some-model/xet-read-token/{COMMIT}>; rel="xet-auth"',
        }
        bridge.cut_at[WEIGHTS] = 2_000_000
        path = pull(hub_name(MODEL))
        assert (path / "model.safetensors").read_bytes() == bridge.answers[WEIGHTS].body
        assert bridge.ranges(WEIGHTS) == ["", "bytes=2000000-"]
        assert {one.token for one in bridge.asked} == {""}
    assert {one.token for one in hub.asked} == {"Bearer a-token"}


def test_a_server_without_ranges_sends_the_file_again(hub: FileServer) -> None:
    hub.cut_at[WEIGHTS], hub.whole = 1_000_000, {WEIGHTS}
    path = pull(hub_name(MODEL))
    assert (path / "model.safetensors").read_bytes() == hub.answers[WEIGHTS].body


def test_a_part_that_is_complete_is_not_asked_for_behind_its_end(hub: FileServer, tmp_path: Path) -> None:
    part = tmp_path / "models" / "hf" / "someone" / ".some-model.part" / "model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(hub.answers[WEIGHTS].body)
    pull(hub_name(MODEL))
    assert hub.ranges(WEIGHTS) == []


def test_a_redirection_without_an_end_is_one_sentence(hub: FileServer) -> None:
    hub.answers[WEIGHTS] = Answer(status=302, headers={"Location": hub.url + WEIGHTS})
    with pytest.raises(CommandError, match=r"broke off after|cannot be reached") as caught:
        pull(hub_name(MODEL))
    assert "\n" not in str(caught.value)
