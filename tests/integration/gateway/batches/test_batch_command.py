"""`ryz batch` against a gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from tests.kits.gateway.batch_stack import BatchGateway, chat_lines


async def ryz(gateway: BatchGateway, *args: str) -> tuple[int, str]:
    """Runs a command; returns its exit code and what it said."""
    done: Any = await asyncio.to_thread(CliRunner().invoke, app, ["batch", *args, "--url", gateway.url])
    if isinstance(done.exception, CommandError):  # `ryz` makes it text and exit code
        return done.exception.exit_code, f"{done.output}{done.exception}"
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def write(name: str, data: bytes) -> None:
    Path(name).write_bytes(data)


def lines_in(name: str) -> int:
    return len(Path(name).read_text().splitlines())


async def test_submit_status_fetch(
    gateway: BatchGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("in.jsonl", chat_lines(30))
    code, text = await ryz(gateway, "submit", "in.jsonl", "--wait")
    assert code == 0
    assert "completed, 30 of 30 requests" in text
    name = text.split(":")[0].split()[-1]
    code, text = await ryz(gateway, "submit", "in.jsonl", "--json")  # it is that batch already
    assert (code, json.loads(text)["id"]) == (0, name)
    code, text = await ryz(gateway, "fetch", "in.jsonl")
    assert code == 0, text
    assert lines_in("in.output.jsonl") == 30
    code, text = await ryz(gateway, "list")
    assert name in text
    write("bad.jsonl", chat_lines(1) + b"{}\n")
    code, text = await ryz(gateway, "submit", "bad.jsonl", "--wait")
    assert code == 1
    assert "line 2" in text
    code, text = await ryz(gateway, "status", "nothing.jsonl")
    assert code == 3
    assert "nothing.jsonl is neither a file nor the id of a batch" in text
    code, text = await ryz(gateway, "submit", "nothing.jsonl")
    assert code == 2
    assert "There is no file" in text


async def test_the_first_error_of_a_batch_is_shown(
    gateway: BatchGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("in.jsonl", chat_lines(2).replace(b'"role"', b'"rule"', 1))
    _, text = await ryz(gateway, "submit", "in.jsonl", "--wait")
    assert "2 of 2 requests, 1 failed" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  first error: ")]
    for command in ("status", "fetch"):
        assert line in (await ryz(gateway, command, "in.jsonl"))[1]
    assert line.startswith("  first error: line-0: ")
    assert "role" in line
