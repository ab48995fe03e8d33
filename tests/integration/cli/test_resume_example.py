"""`examples/resume_stream.py` ends in time with a clear word when nothing brings the rest of an answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.models.file_server import Answer, FileServer

EXAMPLE = Path(__file__).parents[3] / "examples" / "resume_stream.py"
PATH = "/v1/chat/completions"
SOME = b'id: 1\ndata: {"choices": [{"delta": {"content": "One "}}]}\n\n'


def event(value: object) -> bytes:
    return b"id: 2\ndata: " + json.dumps(value).encode() + b"\n\n"


def run(*urls: str, grace_s: float = 0.5) -> subprocess.CompletedProcess[str]:
    """Run the example as it is, but for how long a stream is kept."""
    script = EXAMPLE.read_text().replace("GRACE_S = 30\n", f"GRACE_S = {grace_s}\n")
    command = [sys.executable, "-c", script, *urls]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_gateway_it_gives_up() -> None:
    done = run("http://127.0.0.1:9")
    assert done.returncode == 1
    assert "unavailable: no gateway brought anything for 0.5 s (http://127.0.0.1:9: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_that_is_away_for_good_ends_it_after_what_came() -> None:
    with FileServer() as server:
        server.answers[PATH] = Answer(SOME, headers={"X-Stream-Id": "s1"})
        server.answers["/v1/streams/s1"] = Answer(status=503)
        done = run(server.url)
    assert (done.returncode, done.stdout) == (1, "One ")
    assert "status 503" in done.stderr


@pytest.mark.parametrize(
    ("answer", "out"),
    [
        (Answer(SOME + event({"error": {"code": "group_lost", "message": "rank 1 died"}})), "One "),
        (Answer(json.dumps({"error": {"code": "group_lost", "message": "rank 1 died"}}).encode(), 409), ""),
    ],
)
def test_a_lost_group_is_named(answer: Answer, out: str) -> None:
    with FileServer() as server:
        answer.headers["X-Stream-Id"] = "s1"
        server.answers[PATH] = answer
        done = run(server.url, grace_s=20)
    assert (done.returncode, done.stdout) == (1, out)
    assert done.stderr.strip() == "group_lost: rank 1 died"
