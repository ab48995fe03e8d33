"""A stack of processes with sessions: broker, Redis, KV state service, router, groups, two gateways."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import redis

from tests.kits.servers import RedisServer
from tests.kits.stacks.stream_stack import KEYS, Fleet
from tests.kits.waiting import PATIENCE_S

JSON = dict[str, Any]
# on an overloaded machine the store is slow and heartbeats are late
PATIENT = {"null_step_delay_ms": "2", "session_done_wait_s": "3", "router_heartbeat_slack_s": "1.0"}


def body(text: str, **more: Any) -> JSON:
    """The body of a turn with one message."""
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


class TurnsFleet(Fleet):
    """A fleet with a Redis. Of a call with a key, gateway 1 waits long for leaders that know it.

    Args:
        folder: Where the servers keep files and logs.
        groups: Number of groups.
        settings: Settings of all services.
    """

    def __init__(self, folder: Path, *, groups: int = 2, **settings: str) -> None:
        (folder / "redis").mkdir()
        self.redis = RedisServer(folder / "redis")
        super().__init__(folder, groups=groups, **PATIENT | settings)
        # a repeat that no session knows runs anew when leaders answer later
        self.gateway_constants[1] = {"idempotency_find_ms": 2000}

    def http(self, index: int = 0, tenant: str = "one") -> httpx.AsyncClient:
        """A client of gateway `index` with the key of `tenant`."""
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        limits = httpx.Limits(max_connections=100)
        return httpx.AsyncClient(base_url=self.gateways[index], headers=headers, timeout=30, limits=limits)

    async def said(self, session_id: str) -> list[str]:
        """The user messages of a session's stored record; empty if there is no record."""
        return await self.said_by(0, session_id)

    async def said_by(self, index: int, session_id: str) -> list[str]:
        """As `said`, through gateway `index`."""
        async with self.http(index) as http:
            answer = await http.get(f"/v1/sessions/{session_id}?messages=true")
        if answer.status_code == 404:
            return []
        messages = answer.json()["messages"]
        roles = [message["role"] for message in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2), roles
        return [message["content"] for message in messages if message["role"] == "user"]

    async def until_ttl(self, session_id: str, least_s: int, most_s: int) -> None:
        """Waits until a session is stored and is to live that long."""
        ttl_s, give_up = -1, time.monotonic() + PATIENCE_S
        async with self.http() as http:
            while not least_s <= ttl_s <= most_s:
                assert time.monotonic() < give_up, f"{session_id} lives for {ttl_s} s"
                await asyncio.sleep(0.02)
                answer = await http.get(f"/v1/sessions/{session_id}")
                ttl_s = answer.json().get("ttl_s", -1)

    async def turn(
        self,
        text: str,
        session: str,
        *,
        index: int = 0,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Runs one turn of a session without streaming; `more` are fields of the body."""
        async with self.http(index) as http:
            named = {"X-Session-Id": session, **(headers or {})}
            return await http.post("/v1/chat/completions", json=body(text, **more), headers=named)

    def start_kvstate(self) -> None:
        """Starts or restarts the state service without waiting for it."""
        self._start("kvstate", "services.kvstate", redis_url=self.redis.url)

    def await_group(self, index: int) -> None:
        """Waits until the group is ready."""
        url = f"http://127.0.0.1:{self.admin_ports[index]}/ready"
        self.await_answer(f"group{index}", url, lambda answer: answer.status_code == 200)

    def flush(self) -> None:
        """Deletes everything in Redis."""
        with redis.Redis.from_url(self.redis.url) as store:
            store.flushall()

    def start_all(self) -> None:
        """See `Fleet`."""
        self.redis.start()
        super().start_all()
        self.start_kvstate()
        for index in range(self.groups):
            self.await_group(index)
        sessions = f"{self.gateways[0]}/v1/sessions"
        self.await_answer("kvstate", sessions, lambda answer: answer.status_code == 200)

    def stop_all(self) -> None:
        """See `Fleet`."""
        super().stop_all()
        self.redis.stop()


async def both(*calls: Any) -> list[httpx.Response]:
    """The answers to calls that run concurrently."""
    return list(await asyncio.gather(*calls))
