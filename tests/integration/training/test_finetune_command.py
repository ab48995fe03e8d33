"""`ryz finetune` as a command: killed and resumed, stopped by signals, a GGUF base, a stack that is told."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.models.convert.hf_to_gguf import HfToGguf
from cli.stack.model_dir import demo_model
from shared.host.own_python import module_command, module_environment
from tests.kits.training.finetuning import write_chats
from tests.kits.waiting import wait_for
from training.finetune.loss_log import read_log

SHORT = ["--rank", "4", "--length", "64", "--learning-rate", "0.005", "--threads", "1", "--base-bits", "32"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_chats(tmp_path / "chats.jsonl", 12)


def finetune(*words: object) -> Any:
    return CliRunner().invoke(app, ["finetune", *map(str, words)])


def start(*words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*module_command("cli"), "finetune", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=module_environment(os.environ),
    )


def kill_in_the_middle(process: "subprocess.Popen[str]", output: Path, number: int) -> str:
    """Sends a signal when there is a checkpoint; returns what the command said."""
    folder = output / "checkpoints"
    try:
        wait_for(lambda: any(folder.glob("step-*")) or process.poll() is not None, "a checkpoint")
        process.send_signal(number)
        return process.communicate()[1]
    finally:
        process.kill()
        process.wait()


def test_a_killed_training_goes_on_to_the_same_adapter(tmp_path: Path, data: Path) -> None:
    options = ["demo", "--data", data, *SHORT, "--no-packing", "--epochs", 6, "--dropout", 0.1]
    assert finetune(*options, "-o", tmp_path / "whole").exit_code == 0
    killed = tmp_path / "killed"
    process = start(*options, "-o", killed, "--checkpoint-s", 0)
    kill_in_the_middle(process, killed, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "adapter_model.safetensors").exists()
    result = finetune(*options, "-o", killed)
    assert isinstance(result.exception, CommandError)
    assert "go on with `--resume`, or remove it" in str(result.exception)
    result = finetune(*options, "-o", killed, "--resume")
    assert result.exit_code == 0, result.output
    before, after = (read_log(tmp_path / name) for name in ("whole", "killed"))
    assert before == after
    tensors, expected = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("killed", "whole")
    )
    assert all(torch.equal(tensors[name], one) for name, one in expected.items())


def stop_in_the_middle(process: "subprocess.Popen[str]", output: Path, number: int) -> None:
    """Sends a signal that ends a training after its step, with a checkpoint."""
    said = kill_in_the_middle(process, output, number)
    assert process.returncode == 130, said
    assert "stopping after this step" in said
    assert "Go on: the same command with `--resume`." in said
    (found,) = (output / "checkpoints").iterdir()
    assert json.loads((found / "state.json").read_text())["step"] == read_log(output)[-1]["step"]


def test_a_signal_ends_it_with_a_checkpoint(tmp_path: Path, data: Path) -> None:
    """SIGTERM; SIGINT is sent to the training of a GGUF file."""
    output = tmp_path / "adapter"
    options = ["demo", "--data", data, *SHORT, "--no-packing", "--epochs", 200, "-o", output]
    stop_in_the_middle(start(*options, "--checkpoint-s", 0), output, signal.SIGTERM)


def test_a_gguf_file_is_trained_as_floats(tmp_path: Path, data: Path) -> None:
    path, output = tmp_path / "small.gguf", tmp_path / "adapter"
    HfToGguf(demo_model(), GGMLQuantizationType.Q8_0).write(path, lambda _: None)
    result = finetune(path, "--data", data, *SHORT, "--epochs", 1, "-o", output)
    assert result.exit_code == 0, result.output
    assert f"base: the GGUF file {path} (" in result.output
    assert "dequantized to F32" in result.output
    assert json.loads((output / "adapter_config.json").read_text())["base_model_name_or_path"] == str(path)
    assert {one.name for one in output.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "loss.jsonl",
    }  # fmt: skip
    assert "step" in result.output


class Gateway(HTTPServer):
    """A gateway that knows one route."""

    def __init__(self, status: int) -> None:
        self.asked: list[tuple[str, str | None, Any]] = []
        self.status = status
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "demo"}, {"id": "other"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        error = {"message": "no such base", "type": "x", "code": "model_not_found"}
        self._answer(self.server.status, {"error": error})

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    server = Gateway(request.param)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("gateway", [200], indirect=True)
def test_a_stack_is_told_of_the_adapter(tmp_path: Path, data: Path, gateway: Gateway) -> None:
    output = tmp_path / "polite"
    options = ["demo", "--data", data, *SHORT, "--epochs", 1, "-o", output]
    result = finetune(*options, "--serve", f"{gateway.url}/v1", "--api-key", "secret")
    assert result.exit_code == 0, result.output
    told = {"lora_name": "polite", "lora_path": str(output), "base_model_name": "demo"}
    assert gateway.asked == [("/v1/load_lora_adapter", "Bearer secret", told)]
    assert f"curl -s {gateway.url}/v1/chat/completions" in result.output
    assert '"model": "demo:polite"' in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("gateway", [404], indirect=True)
def test_a_refusal_of_the_stack_leaves_the_adapter(tmp_path: Path, data: Path, gateway: Gateway) -> None:
    output = tmp_path / "polite"
    words = ["--serve", gateway.url, "--name", "kind", "--serve-base", "other"]
    result = finetune("demo", "--data", data, *SHORT, "--epochs", 1, "-o", output, *words)
    assert isinstance(result.exception, CommandError)
    assert f"The adapter is in {output}, but it was not loaded: " in str(result.exception)
    assert gateway.asked[0][2] == {"lora_name": "kind", "lora_path": str(output), "base_model_name": "other"}
    assert (output / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("gateway", [200], indirect=True)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--serve-base", "third"],
            "serves demo, other, and not third. Name the base there with `--serve-base`",
        ),
        (["--name", "a:b"], "The adapter cannot be called 'a:b'"),
    ],
)
def test_what_a_stack_would_refuse_is_refused_before_the_training(
    tmp_path: Path, data: Path, gateway: Gateway, words: list[str], reason: str
) -> None:
    result = finetune("demo", "--data", data, "-o", tmp_path / "adapter", "--serve", gateway.url, *words)
    assert isinstance(result.exception, CommandError)
    assert reason in str(result.exception)
    assert not gateway.asked
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["demo", "--base-bits", "8"], "--base-bits is 0, 4, 16 or 32, got 8."),
        (["demo", "--learning-rate", "0"], "--learning-rate must be above 0."),
        (["nothing"], "There is no file or directory nothing"),
        (["demo", "--targets", "q_proj,other"], "the model has no linear layer 'other'"),
        (["demo", "--resume"], "There is no checkpoint in"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, data: Path, words: list[str], reason: str) -> None:
    result = finetune(*words, "--data", data, "-o", tmp_path / "adapter")
    assert isinstance(result.exception, CommandError), result.output
    assert result.exception.exit_code == 2
    assert reason in str(result.exception)


def test_the_floats_of_a_gguf_file_are_kept_for_a_resumed_training_only(tmp_path: Path, data: Path) -> None:
    path, output = tmp_path / "small.gguf", tmp_path / "adapter"
    HfToGguf(demo_model(), GGMLQuantizationType.Q8_0).write(path, lambda _: None)
    options = [path, "--data", data, *SHORT, "--no-packing", "-o", output]
    process = start(*options, "--epochs", 200, "--checkpoint-s", 0)
    stop_in_the_middle(process, output, signal.SIGINT)
    assert (output / ".base" / "model.safetensors").exists()
    result = finetune(*options, "--epochs", 1, "--resume")
    assert isinstance(result.exception, CommandError)
    assert "`--epochs` was 200 in the interrupted training and is 1" in str(result.exception)
    assert (output / ".base").exists()
    data.write_text("{}")
    result = finetune(*options[:-1], tmp_path / "other")
    assert isinstance(result.exception, CommandError)
    assert not (tmp_path / "other").exists()


def test_bad_data_is_named_by_file_and_line(tmp_path: Path, data: Path) -> None:
    data.write_text(data.read_text() + '\n{"messages": 5}\n')
    result = finetune("demo", "--data", data, "-o", tmp_path / "adapter")
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == f'{data}:13: "messages" is no list of messages.'
    assert not (tmp_path / "adapter").exists()


def test_without_the_extra_it_says_how_to_install_it(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util  # noqa: PLC0415 (patched)

    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "peft" else object())
    result = finetune("demo", "--data", data, "-o", tmp_path / "adapter")
    assert isinstance(result.exception, CommandError)
    assert "Training needs peft: `pip install 'ryzanstein[finetune]'`" in str(result.exception)
