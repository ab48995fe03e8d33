"""Both groups are restarted, one after the other, while people read streams: they notice nothing."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.kit import Stack, ryz

pytestmark = pytest.mark.timeout(300)
READERS = 6


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups of one rank; streams are slow enough to be under way when a group is to end."""
    folder = tmp_path_factory.mktemp("rolling-stack")
    with Stack(folder, "--tensor-parallel", "1") as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def read(url: str, number: int, turn: int) -> str:
    """One stream to its end."""
    body: dict[str, Any] = {
        "model": "demo", "stream": True, "max_tokens": 200, "ignore_eos": True,
        "temperature": float(number % 2), "seed": number,
        "messages": [{"role": "user", "content": f"My name is Ada {number}. Tell me about Python."}],
    }  # fmt: skip
    text, ended = [], False
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120,
                      headers={"X-Session-Id": f"reader-{number}-{turn}"}) as answer:  # fmt: skip
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                break
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += [choice["delta"].get("content") or "" for choice in event["choices"]]
    assert ended
    return "".join(text)


def test_a_rolling_restart_drops_nothing(stack: Stack) -> None:
    url = stack.state.url
    expected = [read(url, number, 0) for number in range(READERS)]
    over, problems, streams = threading.Event(), list[str](), [0]

    def go_on_reading(number: int) -> None:
        while not over.is_set():
            streams[0] += 1
            try:
                said = read(url, number, streams[0])
            except Exception as error:
                problems.append(f"reader {number}: {error!r}")
                return
            if said != expected[number]:
                problems.append(f"reader {number} got {said!r}, and not {expected[number]!r}")

    readers = [threading.Thread(target=go_on_reading, args=(number,)) for number in range(READERS)]
    for reader in readers:
        reader.start()
    before = {name: stack.pid_of(name) for name in ("worker-g0", "worker-g1")}
    for group in ("g0", "g1"):
        told = ryz("groups", "drain", group, "--timeout", "0.1", "--until-ready", "--json", cwd=stack.folder)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout)["object"] == "group.drained"
    over.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert streams[0] > READERS
    stack.remember()
    for name, pid in before.items():
        assert stack.pid_of(name) != pid
