"""Stored keys stand in no log, span, metric, status or process list, however they are sent and refused."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared import subjects
from shared.accounts.keys import new_key
from tests.contract.corpus.exchange import Address
from tests.contract.corpus.senders.bus import Call
from tests.contract.corpus.transports import TRANSPORTS, Ask
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.servers import free_port

NOISY = {
    "RYZ_LOG_LEVEL": "debug", "RYZ_LOG_BURST": "0", "RYZ_REQUEST_LOG": "true", "RYZ_TRACE_RATIO": "1",
    "RYZ_TRACE_EXPORT": "console",
}  # fmt: skip
OUTSIDE = subjects.OutsideService("outside", "outside")
SENT_BY = ("http", "http-events", "websocket", "websocket-events", "grpc")
SECRET_AT = 20  # in a key: after its prefix and its id, which may be shown


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, int]]:
    port = free_port()
    folder = tmp_path_factory.mktemp("secret-keys")
    with Stack(folder, "--engine", "null", "--groups", "1", "--grpc-port", str(port), env=NOISY) as started:
        yield started.await_ready(), port
        assert started.end() == 0


def made_key(stack: Stack, *options: str) -> tuple[str, str]:
    """The id and the text of a new key."""
    done = ryz("keys", "create", "--json", *options, cwd=stack.folder)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    return made["id"], made["key"]


def test_keys_are_seen_nowhere(stack: tuple[Stack, int]) -> None:
    running, grpc_port = stack
    valid, limited, revoked, expired, admin = [
        made_key(running, *options)
        for options in ([], ["--api", "embeddings"], [], ["--expires", "1s"], ["--admin"])
    ]
    assert ryz("keys", "revoke", f"sk-ryz-{revoked[0]}", cwd=running.folder).returncode == 0
    time.sleep(1.1)  # until the third one has expired
    unknown = new_key().text
    cut = new_key().text[:-3]  # almost a key
    expected = {
        valid[1]: {""},
        admin[1]: {""},
        limited[1]: {"api_not_allowed"},
        expired[1]: {"key_expired"},
        # which come so often that their address is slowed
        revoked[1]: {"invalid_api_key", "rate_limited"},
        unknown: {"invalid_api_key", "rate_limited"},
        cut: {"invalid_api_key", "rate_limited"},
    }
    url = httpx.URL(running.state.url)
    assert url.port is not None
    address = Address(url.port, grpc_port, running.state.nats_urls["outside"])
    found = asyncio.run(_sent(address, list(expected)))
    assert [one for one in found if found[one] not in expected[one[0]]] == [], found.values()
    assert {"", "api_not_allowed", "key_expired", "invalid_api_key"} <= set(found.values())
    for key in expected:
        _send_oddly(str(url), key)
    secrets = {key[SECRET_AT:] for key in expected}
    shown = _shown(running)
    assert len(shown) > 20
    assert [(name, secret) for name, text in shown.items() for secret in secrets if secret in text] == []
    ids = [valid[0], limited[0]]
    assert any(key_id in text for text in shown.values() for key_id in ids), "ids may be shown, and are"


async def _sent(address: Address, keys: list[str]) -> dict[tuple[str, str], str]:
    """The codes of errors of requests over all transports."""
    found = {}
    for key in keys:
        for name, send in TRANSPORTS.items():
            if name in SENT_BY:
                found[key, name] = (await send(Ask(key=key), address, "")).code
        # a service outside needs no key, and may send one all the same
        asked = await Call(Ask().body, subjects.complete("demo", OUTSIDE), key=key).send(address, "")
        assert asked.status == 200
    return found


def _send_oddly(url: str, key: str) -> None:
    """Where keys do not belong, and in requests that fail otherwise."""
    body = {"model": "none", "messages": [{"role": "user", "content": "Hi"}]}
    with httpx.Client(base_url=url, timeout=30) as http:
        bearer = {"Authorization": f"Bearer {key}"}
        http.get("/v1/models", headers={"x-api-key": key})
        http.get("/v1/models", headers={"Authorization": key})
        http.get("/v1/models", headers={"Authorization": f"Basic {key}"})
        http.get("/v1/manage/models", headers=bearer)
        http.get("/v1/sessions", headers=bearer)
        http.get("/nowhere", headers=bearer)
        http.post("/v1/chat/completions", content=b"{", headers=bearer | {"content-type": "application/json"})
        http.post("/v1/chat/completions", json=body, headers=bearer)
        http.post("/v1/messages", json=body, headers={"x-api-key": key})
        http.post("/v1/files", headers=bearer | {"content-type": "multipart/form-data"})


def _shown(stack: Stack) -> dict[str, str]:
    """Everything that a stack shows, by where that is."""
    stack.remember()
    folder = stack.state_dir.path
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "admin.key"]
    shown = {str(path): path.read_bytes().decode("latin-1") for path in files}
    shown["output"] = Path(stack.output).read_text()
    for words in (("status", "--json"), ("keys", "list", "--json"), ("tenants", "audit", "--json")):
        shown[" ".join(words)] = ryz(*words, cwd=stack.folder).stdout
    for service in stack.whole_status()["services"]:
        urls = [service["detail"].get("admin_url", ""), stack.state.url]
        for url in filter(None, urls):
            shown[f"metrics of {url}"] = httpx.get(f"{url}/metrics").text
    for process in stack.family:
        for name in ("cmdline", "environ"):
            path = Path(f"/proc/{process.pid}/{name}")
            if path.exists():
                shown[str(path)] = path.read_bytes().decode("latin-1")
    return shown
