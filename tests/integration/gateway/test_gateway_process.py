"""The gateway as a process, against a real broker: start, signals, wrong settings, drain under load."""

import asyncio
import signal

import httpx

from tests.kits.gateway.identity.account_service import accounts_on
from tests.kits.gateway.process import gateway_process, ready
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

CHAT = {"model": "nobody-serves-this", "messages": [{"role": "user", "content": "x"}]}


async def test_it_starts_answers_and_ends_on_a_signal(nats_url: str) -> None:
    port = free_port()
    async with (
        accounts_on(nats_url),
        gateway_process(
            nats_url=nats_url, http_port=str(port), request_log="true", client_wait_s="0.3"
        ) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        await ready(http)
        trace = "0af7651916cd43dd8448eb211c80319c"
        answer = await http.post(
            "/v1/chat/completions", json=CHAT, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        )
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_router")
        answer = await http.get("/v1/sessions")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "session_store")
        assert answer.headers["retry-after"] == "1"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
        lines = [line for line in log.decode().splitlines() if '"event": "request"' in line]
        assert len(lines) == 2
        assert all('"status": 503' in line for line in lines)
        assert f'"trace_id": "{trace}"' in lines[0]
        assert "Traceback" not in log.decode()


async def test_a_port_that_is_taken_ends_the_start_with_one_line(nats_url: str) -> None:
    port = nats_url.rpartition(":")[2]
    async with gateway_process(nats_url=nats_url, http_port=port) as process:
        async with asyncio.timeout(PATIENCE_S):
            _, log = await process.communicate()
        assert process.returncode == 1
        assert f"gateway cannot start: cannot listen on 127.0.0.1:{port}" in log.decode()


async def test_a_wrong_setting_ends_the_start_and_keys_stay_secret() -> None:
    async def log_of(settings: dict[str, str]) -> str:
        async with gateway_process(**settings) as process, asyncio.timeout(40):
            _, log = await process.communicate()
            assert process.returncode == 2
            return log.decode()

    wrong = (
        ({"http_port": "x"}, "RYZ_HTTP_PORT='x'", "Traceback"),
        ({"client_wait_s": "-1"}, "RYZ_CLIENT_WAIT_S='-1'", "Traceback"),
        ({"session_key": "guess me"}, "RYZ_SESSION_KEY needs 16 characters", "guess me"),
        ({"api_keys": "very-secret-key"}, "RYZ_API_KEYS: entry 1", "very-secret-key"),
        ({"oidc_issuer": "https://id.example"}, "RYZ_OIDC_AUDIENCE is needed", "Traceback"),
        (
            {"oidc_issuer": "http://id.example", "oidc_audience": "ryz"},
            "RYZ_OIDC_ISSUER needs an address like https://id.example",
            "Traceback",
        ),
        ({"oidc_claims": "org"}, "RYZ_OIDC_CLAIMS: entry 1", "Traceback"),
    )
    logs = await asyncio.gather(*(log_of(settings) for settings, _, _ in wrong))
    for log, (_, named, hidden) in zip(logs, wrong, strict=True):
        assert named in log
        assert hidden not in log


async def test_the_supervisors_key_lists_models_and_does_nothing_else(nats_url: str) -> None:
    port = free_port()
    settings = {
        "nats_url": nats_url,
        "http_port": str(port),
        "api_keys": "key-of-ada:ada",
        "probe_key": "probe-9931",
        "client_wait_s": "0.3",
    }
    async with (
        gateway_process(**settings),
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": "Bearer probe-9931"}
        ) as http,
    ):
        await ready(http)
        answer = await http.get("/ready")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_router")
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_responders"), (
            "it was asked for"
        )
        for method, path in (
            ("GET", "/v1/models/demo"),
            ("GET", "/v1/sessions"),
            ("POST", "/v1/completions"),
        ):
            assert (await http.request(method, path, json=CHAT)).status_code == 401, path
        assert (await http.get("/v1/models", headers={"authorization": "Bearer x"})).status_code == 401
