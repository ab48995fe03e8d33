"""`ryz worker`: the settings of the group's leader, and what it says where it cannot join."""

from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.model_dir import demo_model
from cli.worker.command import WorkerOptions
from cli.worker.remote_group import default_group, plan_group, require_stack

SERVER = "http://10.0.0.5:8000"
BROKER = "nats://127.0.0.1:9"


def options(folder: Path, **given: object) -> WorkerOptions:
    fields = {"remote": SERVER, "model": "demo", "state_dir": folder, **given}
    return WorkerOptions(**fields)  # type: ignore[arg-type]


def test_its_leader_gets_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = options(tmp_path, remote_model="big-1", key_file="key", max_running=1000, weight=2.5)
    plan = plan_group(given, BROKER)
    shown = {name: plan.env[f"RYZ_{name}"] for name in (
        "ENGINE", "GROUP", "MODEL", "MODEL_NAME", "REMOTE_URL", "REMOTE_MODEL", "REMOTE_KEY_FILE", "WEIGHT",
        "MAX_RUNNING", "TOKEN_BUDGET", "NATS_URL",
    )}  # fmt: skip
    assert shown == {
        "ENGINE": "remote",
        "GROUP": default_group(SERVER, "demo"),
        "MODEL": str(demo_model()),
        "MODEL_NAME": "demo",
        "REMOTE_URL": SERVER,
        "REMOTE_MODEL": "big-1",
        "REMOTE_KEY_FILE": str(tmp_path / "key"),
        "WEIGHT": "2.5",
        "MAX_RUNNING": "1000",
        "TOKEN_BUDGET": "1000",
        "NATS_URL": BROKER,
    }
    assert plan.log == tmp_path / "logs" / f"worker-{plan.group}.log"


def test_a_group_without_a_name_has_the_same_one_each_time() -> None:
    name = default_group(SERVER, "demo")
    assert name == default_group(SERVER, "demo")
    assert len({name, default_group(SERVER, "other"), default_group("http://other", "demo")}) == 3


def test_a_tokenizer_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="`--tokenizer` is missing: name the tokenizer of big"):
        plan_group(options(tmp_path, model="big"), BROKER)
    with pytest.raises(CommandError, match="`--tokenizer` is missing: name the tokenizer of qwen3-8b"):
        plan_group(options(tmp_path, model="qwen3-8b"), BROKER)  # its weights would be fetched for nothing
    with pytest.raises(CommandError, match="There is no file or directory /nowhere"):
        plan_group(options(tmp_path, model="big", tokenizer="/nowhere"), BROKER)


def test_a_group_that_has_no_name_for_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="`--group a b`: a group's name is up to 64 letters"):
        plan_group(options(tmp_path, group="a b"), BROKER)


def test_without_a_stack_there_is_nothing_to_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RYZ_NATS_URL", raising=False)
    with pytest.raises(CommandError, match="No stack is up in"):
        require_stack("", tmp_path)
    with pytest.raises(CommandError, match=f"No broker answers at {BROKER}"):
        require_stack(BROKER, tmp_path)
