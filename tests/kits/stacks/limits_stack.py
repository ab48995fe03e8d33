"""Three gateways, a router, a group without weights, the KV state service and Redis; tenants with limits."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import httpx

from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.messages import Limits, TenantRecord
from tests.kits.servers import NatsServer, free_ports
from tests.kits.stacks.stream_stack import KEYS
from tests.kits.stacks.turn_stack import TurnsFleet, body

GATEWAYS = 3
CHAT = "/v1/chat/completions"
ROOM_S = 30.0  # of a minute, for what has to be in one


class LimitsFleet(TurnsFleet):
    """The processes; each tenant has the key `key-of-` and its name.

    Args:
        folder: Where the servers keep files and logs.
        limits: By tenant.
    """

    def __init__(self, folder: Path, limits: dict[str, Limits]) -> None:
        super().__init__(folder, groups=1)
        self.nats = NatsServer(folder, folder / "streams")
        self.limits = limits
        self.ports = free_ports(GATEWAYS)
        self.gateway_constants = [{} for _ in range(GATEWAYS)]

    def start_gateway(self, index: int) -> None:
        """See `Fleet`; the gateways have the keys of the tenants with limits, and of others."""
        keys = [f"key-of-{tenant}:{tenant}" for tenant in self.limits]
        keys += [f"{key}:{tenant}" for tenant, key in KEYS.items()]
        self._start(
            f"gateway{index}", "tests.kits.gateway.gateway_main", json.dumps(self.gateway_constants[index]),
            http_port=str(self.ports[index]), api_keys=",".join(keys), max_concurrent="1024",
            tenant_share="1.0",
        )  # fmt: skip

    def start_all(self) -> None:
        """See `Fleet`."""
        super().start_all()
        asyncio.run(self._publish_limits())

    async def _publish_limits(self) -> None:
        bus = await NatsBus.connect(self.nats.url, name="test")
        accounts = AccountsClient(bus, "test")
        for tenant, limits in self.limits.items():
            await accounts.put(TenantRecord(tenant=tenant, limits=limits))
        await bus.close()

    async def ask(self, tenant: str, count: int, at_once: int = 60) -> list[httpx.Response]:
        """Sends requests to all gateways in rotation."""
        slots = asyncio.Semaphore(at_once)
        headers = {"Authorization": f"Bearer key-of-{tenant}"}
        clients = [
            httpx.AsyncClient(
                base_url=url, headers=headers, timeout=60, limits=httpx.Limits(max_connections=at_once)
            )
            for url in self.gateways
        ]

        async def one(number: int) -> httpx.Response:
            async with slots:
                return await clients[number % GATEWAYS].post(CHAT, json=body("Hello", max_tokens=1))

        try:
            return list(await asyncio.gather(*(one(number) for number in range(count))))
        finally:
            for client in clients:
                await client.aclose()

    async def until_header(self, tenant: str, *, local: bool) -> list[httpx.Response]:
        """Asks each gateway until its limits are, or are not, counted by it alone; returns all answers."""
        found: list[httpx.Response] = []
        give_up = time.monotonic() + 60
        while True:
            answers = await self.ask(tenant, GATEWAYS)
            found += answers
            if all(("x-ryz-limits" in answer.headers) == local for answer in answers):
                return found
            assert time.monotonic() < give_up, [dict(answer.headers) for answer in answers]
            await asyncio.sleep(0.1)


async def in_one_minute(room_s: float = ROOM_S) -> int:
    """Waits until so much of a minute is left; returns the minute."""
    left_s = 60 - time.time() % 60
    if left_s < room_s:
        await asyncio.sleep(left_s + 0.5)
    return int(time.time() // 60)


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    """How many answers had each status."""
    return Counter(answer.status_code for answer in answers)
