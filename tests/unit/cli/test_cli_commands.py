"""The commands without a stack: status tables, progress, help."""

import io
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli import console
from cli import http_api as api
from cli.__main__ import app, main
from cli.console import CommandError
from cli.stack.host.ports import require_free
from cli.stack.state import StackState
from cli.status.view import duration
from tools.docs import settings as settings_doc
from training import train


def test_where_the_stack_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RYZ_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert api.find_url("http://given/", tmp_path) == "http://given"
    monkeypatch.setattr(api, "somebody_listens", lambda url: url == api.DEFAULT_URL)
    assert api.find_url("", None) == api.DEFAULT_URL
    with pytest.raises(CommandError, match=r"the API key is not sent there.*`--url` or RYZ_URL"):
        api.find_url("", None, "key")
    assert api.find_url("http://given/", None, "key") == "http://given"
    monkeypatch.setenv("RYZ_URL", "http://set:1/")
    assert api.find_url("", None, "key") == "http://set:1"
    with pytest.raises(CommandError, match="No stack is up in"):
        api.find_url("", tmp_path)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host:1/v1", "http://host:1"),
        ("https://host/v1/", "https://host"),
        ("host:1/prefix/", "http://host:1/prefix"),
    ],
)
def test_however_the_address_is_written(written: str, meant: str) -> None:
    assert api.clean_url(written) == meant


def test_durations() -> None:
    assert [duration(s) for s in (5, 61, 3_700, 90_000)] == ["5 s", "1 m 1 s", "1 h 1 m", "1 d 1 h"]


def test_status_cannot_watch_and_print_one_object() -> None:
    result = CliRunner().invoke(app, ["status", "--json", "--watch"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2


def test_8_bits_are_not_asked_of_plain_torch(tmp_path: Path) -> None:
    options = ["--precision", "int8", "--kernels", "plain", "--state-dir", str(tmp_path)]
    result = CliRunner().invoke(app, ["up", *options])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "needs the compiled kernels: leave out one of the two" in str(result.exception)


def test_a_directory_for_sessions_and_a_redis_of_others_exclude_each_other(tmp_path: Path) -> None:
    """The directory would be made, and nothing would be kept there."""
    kept = tmp_path / "kept"
    options = ["--redis-dir", str(kept), "--redis-url", "redis://127.0.0.1:1", "--engine", "null"]
    result = CliRunner().invoke(app, ["up", *options, "--state-dir", str(tmp_path / "state")])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "with `--redis-url` none is started: leave out one of the two" in str(result.exception)
    assert not kept.exists()


@pytest.mark.parametrize("option", ["--port", "--grpc-port", "--nats-port"])
def test_a_port_that_is_taken_is_seen_before_anything_is_planned(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = [option, str(port), "--model", "hf:no/where", "--detach", "--state-dir", str(tmp_path / "s")]
        if option != "--port":
            given += ["--port", "0"]
        result = CliRunner().invoke(app, ["up", *given])
    assert isinstance(result.exception, CommandError)
    assert f"Port {port} on 127.0.0.1 is taken" in str(result.exception)
    assert f"`{option} {port + 1}`" in str(result.exception)
    assert not (tmp_path / "s").exists()


def test_a_port_of_another_folders_stack_is_told_with_what_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        state = StackState(1, 0.0, f"http://127.0.0.1:{port}", "nats://127.0.0.1:9", "redis://x", "demo")
        monkeypatch.setattr("cli.nearest_stack.stacks_elsewhere", lambda: [(tmp_path, state)])
        with pytest.raises(CommandError) as caught:
            require_free("127.0.0.1", port, "--port")
    assert (
        f"taken by the stack that is up in {tmp_path}, which `ryz down --state-dir {tmp_path}` ends"
        in str(caught.value)
    )


def test_a_plan_takes_a_models_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["models", "plan", "smollm2-135m"]).exception
    assert isinstance(error, CommandError)
    assert error.exit_code == 2
    assert "There is no models file smollm2-135m. This command takes a TOML file" in str(error)
    assert "`ryz models show NAME`" in str(error)


def test_train_demo_shows_progress_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_nothing(output: Path, plan: train.TrainPlan, progress: Any) -> train.TrainReport:
        assert (plan.seed, plan.threads) == (3, 1)
        steps = plan.steps or 0
        for step in range(1, steps + 1):
            progress(train.TrainProgress(step, steps, 2.5, step * 10, 1.0))
        return train.TrainReport(output, steps, plan.seed, 1234, steps * 10, 1.0, 2.5)

    monkeypatch.setattr(train, "train_demo", train_nothing)
    arguments = ["train-demo", "--output", str(tmp_path), "--steps", "7", "--seed", "3", "--threads", "1"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "1,234 parameters, 7 steps, 70 tokens, loss 2.500" in result.stdout
    assert "step 7/7" in result.stderr


def test_training_does_not_begin_when_its_output_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["train-demo", "--output", str(tmp_path / "file" / "model")])
    assert isinstance(result.exception, CommandError)
    assert "--output" in str(result.exception)


def test_live_report_draws_every_service() -> None:
    from rich.live import Live  # noqa: PLC0415

    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console=screen, auto_refresh=False) as live:
        report = console.LiveReport(live)
        report.waiting("nats")
        report.waiting("router")
        report.ready("nats")
        report.note("router died")
        live.refresh()
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "starting" in text
    assert "router died" in text


def test_help_imports_nothing_heavy() -> None:
    code = "import cli.__main__, sys; print(*sorted(m for m in sys.modules if '.' not in m))"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(names).isdisjoint(
        {"httpx", "nats", "torch", "numpy", "pydantic", "msgspec", "fastapi", "psutil"}
    )


@pytest.mark.parametrize(
    "command", ["up", "down", "chat", "status", "sessions", "train-demo", "bench", "version"]
)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in CliRunner().invoke(app, ["--help"]).stdout


def test_help_offers_only_what_there_is() -> None:
    output = CliRunner().invoke(app, ["bench", "--help"]).stdout
    assert "serving" in output
    assert "completion" not in output.replace("chat completion", "")


def test_the_command_is_named_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ryz"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert console.called_as() == str(script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert console.called_as() == "ryz"
    monkeypatch.setattr(sys, "argv", ["/some/cli/__main__.py"])
    assert console.called_as() == "ryz"


def test_version() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout.startswith("ryzanstein ")


def test_a_failure_is_one_line_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ryz", "down", "--state-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    output = capsys.readouterr().err
    assert output.startswith("No stack is up in")
    assert len(output.splitlines()) == 1


def test_the_page_of_settings_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = settings_doc.render()
    for _, kind in settings_doc.SECTIONS:
        for name in kind.model_fields:
            assert f"`RYZ_{name.upper()}`" in page
    monkeypatch.setattr(settings_doc, "PAGE", tmp_path / "settings.md")
    monkeypatch.setattr(sys, "argv", ["settings_doc", "--check"])
    with pytest.raises(SystemExit, match="out of date"):
        settings_doc.main()
    monkeypatch.setattr(sys, "argv", ["settings_doc"])
    settings_doc.main()
    monkeypatch.setattr(sys, "argv", ["settings_doc", "--check"])
    settings_doc.main()
    monkeypatch.setattr(sys, "argv", ["settings_doc", "--what"])
    with pytest.raises(SystemExit, match="usage"):
        settings_doc.main()
