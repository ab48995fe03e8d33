"""nginx and Caddy with the files of docs/proxies.md: streams, WebSockets, uploads, metrics, managing."""

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from websockets.sync.client import connect

from tests.kits.docs.proxies import PROXIES, proxy
from tests.kits.e2e.stack import Stack
from tests.kits.tls import Authority, Pair
from tests.kits.waiting import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ASKED = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}


class Certified(NamedTuple):
    pair: Pair
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return Certified(authority.issue("localhost"), ssl.create_default_context(cafile=authority.ca))


@pytest.fixture(scope="module", params=PROXIES)
def program(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install nginx-light caddy)")
    return name


@pytest.fixture
def address(program: str, tmp_path: Path, null_stack: Stack, certified: Certified) -> Iterator[str]:
    """A proxy before a whole stack."""
    with proxy(program, tmp_path, null_stack.state.url.removeprefix("http://"), certified.pair) as found:
        yield found


def test_a_stack_behind_it(address: str, certified: Certified, null_stack: Stack) -> None:
    with httpx.Client(base_url=f"https://{address}", verify=certified.context, timeout=PATIENCE_S) as client:
        answer = client.post("/v1/chat/completions", json=ASKED)
        assert answer.status_code == 200, answer.text
        with client.stream("POST", "/v1/chat/completions", json={**ASKED, "stream": True}) as stream:
            assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
        line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": ASKED})
        sent = client.post(
            "/v1/files",
            files={"file": ("in.jsonl", "\n".join([line] * 12_000))},
            data={"purpose": "batch"},
        )
        assert sent.status_code == 200, sent.text
        assert sent.json()["bytes"] > 1024**2
        assert client.get("/metrics").status_code == 404
        managed = client.get("/v1/manage/keys")
        assert managed.headers["x-ryz-reason"] == "admin_key_required", managed.text
    assert httpx.get(f"{null_stack.state.url}/v1/manage/keys").status_code == 200
    with connect(f"wss://{address}/v1/realtime", ssl=certified.context, open_timeout=PATIENCE_S) as sock:
        sock.send(json.dumps({"type": "request", "id": "a", "body": ASKED}))
        while (message := json.loads(sock.recv(PATIENCE_S)))["type"] != "answer":
            assert message["type"] in {"ready", "accepted"}, message
        assert message["id"] == "a"


def test_an_event_comes_before_the_next_is_written(
    program: str, tmp_path: Path, certified: Certified
) -> None:
    """A gateway would write on: this server waits until its first event has passed the proxy."""
    passed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(HEAD + b"9\r\ndata: 1\n\n\r\n")
                if passed.wait(PATIENCE_S):
                    connection.sendall(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

        server = threading.Thread(target=serve)
        server.start()
        upstream = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            proxy(program, tmp_path, upstream, certified.pair) as address,
            httpx.stream(
                "GET", f"https://{address}/", verify=certified.context, timeout=PATIENCE_S
            ) as stream,
        ):
            events = (line for line in stream.iter_lines() if line)
            assert next(events) == "data: 1"
            passed.set()
            assert list(events) == ["data: 2"]
        server.join()
