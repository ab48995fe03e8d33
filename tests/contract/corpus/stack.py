"""The services behind the corpus: two gateways as processes, each with a broker of its own.

`main` has everything: JetStream, Redis, the KV state service, a router, a leader with the null engine and the
demo model's tokenizer, and scripted groups. `tight` has narrow limits and refuses unknown fields; behind it
are a router and scripted groups only.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import httpx

from services.worker.leader.kv_tier.kv_options import KVOptions
from services.worker.model_files.load_model import load_model
from services.worker.null.engine import TEXT, NullEngine
from shared.bus.nats import NatsBus
from shared.client.calls.sessions_client import SessionsClient
from tests.contract.corpus.exchange import Address, key_of
from tests.contract.corpus.scripted_groups import MODELS, ScriptedGroups
from tests.kits.kvstate.service import running as running_kvstate
from tests.kits.programs.launch import Program, start_program
from tests.kits.router.live import router
from tests.kits.servers import NatsServer, RedisServer, free_ports
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import Kit
from tests.kits.worker.options import record_limits, scheduler_limits

ROOT = Path(__file__).resolve().parents[3]
SPARE = 400  # tenants
# Later than that a leader accepts a request before it knows the session, and tells less of it; and later than
# that it sends a part of a whole answer.
LEADER_TIMES = (
    "services.worker.leader.intake.preparation.ACCEPT_S", "services.worker.leader.token_output.WHOLE_FLUSH_S"
)  # fmt: skip
# what a busy machine would change: groups that seem lost or busy, a store that seems away
PATIENT = {
    "router_heartbeat_slack_s": 30.0, "lookup_timeout_s": 10.0, "router_threshold": 1000,
    "router_threshold_s": 60.0, "router_lead_s": 3600.0,
}  # fmt: skip
MAIN = {
    "model_aliases": "gpt-*=demo,nickname=demo",
    "stream_attach_timeout_s": "5.0",
    "probe_key": "key-of-probes",
}
MAIN_CONSTANTS = {
    "idempotency_find_ms": 4000,  # a repeat runs anew if the leader answers later
    "holders_wait_s": 0.5,
    # a scripted group that is late on a busy machine is not taken for lost
    "probe_interval_s": 20.0,
}
TIGHT = {
    "strict_fields": "true",
    "max_body_bytes": "8192",
    "rate_limit_rps": "0.001",
    "rate_limit_burst": "3",
    "rate_limit_tpm": "2000",
    "max_concurrent": "4",
    "http_allowed_origins": "https://chat.example",
}
TIGHT_CONSTANTS = {
    "probe_interval_s": 20.0,
    "max_prompts": 3,
    "max_embedding_inputs": 3,
    "max_answer_entries": 1024,
    "realtime_requests_max": 2,
    "sessions_timeout_s": 0.3,
}


@dataclass
class CorpusStack:
    """What runs, by the names of the gateways.

    Attributes:
        gateways: Where they are.
        groups: The scripted groups behind `main`.
        spare: Tenants that no exchange has.
        taken: Those of them that tests have, by their own names.
    """

    gateways: dict[str, Address]
    groups: ScriptedGroups
    spare: list[str]
    taken: dict[str, str] = field(default_factory=dict)

    def tenant_of(self, client: str) -> str:
        """A tenant for a client of a test; the same one for the same name."""
        if client not in self.taken:
            self.taken[client] = self.spare.pop()
        return self.taken[client]


@asynccontextmanager
async def corpus_stack(folder: Path, tenants: Iterable[str]) -> AsyncIterator[CorpusStack]:
    """Runs it.

    Args:
        folder: For files and logs.
        tenants: Each gets the key `key_of(tenant)` at both gateways.
    """
    async with AsyncExitStack() as stack:
        (folder / "redis").mkdir()
        redis, brokers = (
            RedisServer(folder / "redis"),
            [NatsServer(folder, folder / "js"), NatsServer(folder)],
        )
        for server in (redis, *brokers):
            server.start()
            stack.callback(server.stop)
        spare = [f"spare-{number}" for number in range(SPARE)]
        keys = ",".join(f"{key_of(tenant)}:{tenant}" for tenant in (*tenants, *spare))
        found = {}
        kinds = (("main", MAIN, MAIN_CONSTANTS), ("tight", TIGHT, TIGHT_CONSTANTS))
        for broker, (name, settings, constants) in zip(brokers, kinds, strict=True):
            http_port, grpc_port = free_ports(2)
            address = found[name] = Address(http_port, grpc_port, broker.url)
            given = settings | {"api_keys": keys, "files_dir": str(folder / f"{name}-files")}
            stack.callback(_stop, _gateway(folder, name, address, given, constants))
        await stack.enter_async_context(running_kvstate(brokers[0].url, redis.url, redis_timeout_s=20.0))
        for broker in brokers:
            await stack.enter_async_context(router(broker.url, **PATIENT))
        main, tight = [await _connected(stack, broker.url) for broker in brokers]
        for held in LEADER_TIMES:
            stack.enter_context(patch(held, PATIENCE_S))
        await stack.enter_async_context(_leader(main))
        scripted = ScriptedGroups(main), ScriptedGroups(tight, (*MODELS, "demo"))
        for groups in scripted:
            await groups.start()
            stack.push_async_callback(groups.stop)
        await asyncio.gather(*(_await_models(one, folder) for one in found.values()))
        yield CorpusStack(found, scripted[0], spare)


def _leader(bus: NatsBus) -> Kit:
    model = load_model(ROOT / "models" / "demo", "demo")
    engine = NullEngine(
        tokens=model.tokenizer.encode(TEXT, add_special_tokens=False),
        num_blocks=4096,
        vocab_size=model.tokenizer.vocab_size,
        context_length=model.context_length,
        step_delay_s=0.0,
    )
    return Kit(
        bus,
        engine,
        model=model,
        store=SessionsClient(bus),  # type: ignore[arg-type]  # the real one
        steps=scheduler_limits(4096, 64, 512),
        kv=KVOptions(kv_fetch="never", kv_write=False),
        heartbeat_interval_ms=100,
        session_done_wait_s=20.0,
        sessions=record_limits(lookup_timeout_s=20.0, commit_timeout_s=20.0),
    )


async def _connected(stack: AsyncExitStack, url: str) -> NatsBus:
    bus = await NatsBus.connect(url, name="groups")
    stack.push_async_callback(bus.close)
    return bus


def _gateway(
    folder: Path, name: str, address: Address, settings: dict[str, str], constants: dict[str, float]
) -> Program:
    given = settings | {
        "nats_url": address.nats_url,
        "http_port": str(address.http_port),
        "grpc_port": str(address.grpc_port),
        "session_key": "a-key-for-the-corpus",
        "drain_timeout_s": "0.2",
        "instance_id": name,
    }
    env = {key: value for key, value in os.environ.items() if not key.startswith("RYZ_")}
    env |= {f"RYZ_{key.upper()}": value for key, value in given.items()}
    command = ("tests.kits.gateway.gateway_main", json.dumps(constants))
    with (folder / f"{name}.log").open("wb") as log:
        return start_program(*command, env=env, stdout=log, stderr=log)


def _stop(process: Program) -> None:
    process.terminate()
    process.wait(30)


async def _await_models(address: Address, folder: Path) -> None:
    headers = {"Authorization": f"Bearer {key_of('warm-up')}"}
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(headers=headers, timeout=10) as client:
        while True:
            try:
                answer = await client.get(f"http://127.0.0.1:{address.http_port}/v1/models")
                if answer.status_code == 200 and len(answer.json()["data"]) == len(MODELS) + 1:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
