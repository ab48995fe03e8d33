"""A gateway on an in-memory bus, with a scripted router and leader behind it.

The model's name selects the leader's behaviour: see `Fleet`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from services.gateway.__main__ import start
from services.gateway.admission.auth import parse_keys
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.settings import GatewaySettings
from shared import subjects
from shared.bus import Message
from shared.client import ClientSettings
from shared.codec import decode, encode
from shared.lifecycle import Service
from shared.messages import (
    Accepted,
    AdapterPage,
    AnyFrame,
    Cancel,
    Delta,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    ModelCard,
    ModelList,
    ModelState,
    ResendReply,
    SamplingDefaults,
    TextPart,
    Tokens,
    Usage,
)
from shared.messages.kv.blocks import KVSource
from shared.telemetry.spans.facts import SpanSink
from tests.kits.constants import settings_with_constants
from tests.kits.gateway.answer_parts import CUSTOM_PARTS, PARTS
from tests.kits.gateway.identity.account_service import AccountService
from tests.kits.gateway.response_service import serve_responses
from tests.kits.gateway.session_services import SessionServices
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.waiting import PATIENCE_S, until

GROUP = "g0"
_ENDS_S = 30.0  # handlers that were cancelled end in a few rounds of the loop
DEFAULTS = SamplingDefaults(temperature=0.2, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.0)
WORDS = ("Hello", ", ", 'you "there"', "\n")
MODELS = frozenset(
    ("demo", "slow", "stuck", "late-refusal", "breaks", "flood", "long", "parts", "custom", "cut", "waits")
)


@dataclass
class Fleet:
    """Router and leader in one. The model's name selects the behaviour.

    - `demo` answers `WORDS` in every choice.
    - `slow` sends a word every 10 ms without end.
    - `flood` sends many words.
    - `long` sends twenty million characters and ends.
    - `stuck` accepts and sends nothing more.
    - `late-refusal` accepts and fails.
    - `breaks` fails after one word.
    - `parts` thinks, writes, calls two functions.
    - `custom` calls the tool `patch` with a text, and the function `weather`.
    - `waits` answers like `demo` once `go_on` is set.
    - `cut` ends after one word for its length.
    - `fails-CODE` is refused with that code; any other is not known.
    """

    bus: MemoryBus
    requests: list[GenerateRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled: dict[str, asyncio.Event] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    cards: list[ModelCard] = field(
        default_factory=lambda: [
            ModelCard(name="demo", context_length=2048, created_s=5, fingerprint="f1", sampling=DEFAULTS),
            ModelCard(name="a/b", context_length=8),
        ]
    )
    away: list[str] = field(default_factory=list)  # models whose groups are known and not ready
    offered: list[ModelState] = field(default_factory=list)  # by hosts, loaded or not
    hosts: list[str] = field(default_factory=list)  # that offer models
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    waking: int = 0  # requests that are still refused because their model loads
    decided: tuple[str, KVSource] = ("", "")  # routing reason and KV source that `Accepted` reports

    def __post_init__(self) -> None:
        self.accounts = AccountService(self.bus)

    async def start(self) -> None:
        self.sessions = await SessionServices(self.bus).start()
        self.responses = await serve_responses(self.bus)
        await self.accounts.start()
        await self.bus.subscribe(subjects.GENERATE_ALL, self._requested, queue=subjects.ROUTER_QUEUE)
        await self.bus.subscribe(subjects.CANCEL_ALL, self._cancelled)
        await self.bus.subscribe(subjects.cancel(GROUP), self._cancelled)
        await self.bus.subscribe(subjects.resend(GROUP), self._resend)
        await self.bus.subscribe(subjects.MODELS, self._models)
        self.no_adapters = await self.bus.subscribe(subjects.ADAPTERS, self._adapters)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def cancel_of(self, request_id: str) -> asyncio.Event:
        return self.cancelled.setdefault(request_id, asyncio.Event())

    async def wait_requests(self, count: int) -> None:
        await until(lambda: len(self.requests) >= count)

    async def _requested(self, message: Message) -> None:
        request = decode(message.data, GenerateRequest)
        self.requests.append(request)
        self.headers.append(dict(message.headers))
        task = asyncio.create_task(self._run(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, request: GenerateRequest) -> None:
        event = self.cancel_of(request.request_id)
        if self.waking:
            self.waking -= 1
            await self._refuse_waking(request)
            return
        seq = 0
        async for parts in self._frames(request):
            frames: list[AnyFrame] = []
            for part in parts:
                frames.append(part(request_id=request.request_id, seq=seq))
                seq += 1
            await self.bus.publish(request.reply_to, encode(FrameBatch(frames=frames, group=GROUP)))
            if event.is_set():
                return

    async def _refuse_waking(self, request: GenerateRequest) -> None:
        frame = Failed(
            request_id=request.request_id,
            attempt=request.attempt,
            code="unavailable",
            message=f"model {request.model!r} is loading; retry in 1.000 s",
            data={"reason": "waking", "retry_after_s": 1.0},
        )
        await self.bus.publish(request.reply_to, encode(FrameBatch(frames=[frame])))

    async def _frames(self, request: GenerateRequest) -> AsyncIterator[list[Any]]:
        choices = range(request.sampling.n)

        def tokens(text: str, finish: Any = None) -> Any:
            deltas = [Delta(choice=choice, text=text, finish_reason=finish) for choice in choices]
            return lambda **ids: Tokens(deltas=deltas, **ids)

        def accepted(**ids: Any) -> AnyFrame:
            session = request.session.session_id if request.session else ""
            reason, kv = self.decided
            sampling = request.sampling.missing_of(DEFAULTS)
            return Accepted(group=GROUP, session_id=session, reason=reason, kv=kv, sampling=sampling, **ids)

        if request.model not in MODELS:
            code, message = _refusal_of(request.model), f"no group serves {request.model!r}"
            yield [_failed(code, message, param="model", retry_after_s=3.0)]
            return
        yield [accepted]
        if request.model == "late-refusal":
            await asyncio.sleep(0.02)
            yield [_failed("context_length_exceeded", "the prompt has 9000 tokens", param="messages")]
        elif request.model == "breaks":
            yield [tokens("Hel")]
            await asyncio.sleep(0.02)
            yield [_failed("group_lost", "group g0 is gone")]
        elif request.model in {"slow", "flood"}:
            text = "word " if request.model == "slow" else "word " * 40_000
            while True:
                yield [tokens(text)]
                await asyncio.sleep(0.01)
        elif request.model == "long":
            for _ in range(100):
                yield [tokens("word " * 40_000)]
            yield [tokens("", "stop"), lambda **ids: Done(usage=Usage(completion_tokens=9), **ids)]
        elif request.model in ("parts", "custom"):
            for delta in _deltas_of(PARTS if request.model == "parts" else CUSTOM_PARTS):
                yield [lambda delta=delta, **ids: Tokens(deltas=[delta], **ids)]
            usage = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=2)
            yield [tokens("", "tool_calls"), lambda **ids: Done(usage=usage, **ids)]
        elif request.model == "cut":
            yield [tokens("Hello")]
            yield [tokens("", "length"), lambda **ids: Done(usage=Usage(completion_tokens=1), **ids)]
        elif request.model in ("demo", "waits"):
            await self._hold(request.model)
            for word in WORDS:
                yield [tokens(word)]
            usage = Usage(prompt_tokens=3, completion_tokens=4 * len(choices), cached_tokens=1)
            yield [tokens("", "stop"), lambda **ids: Done(usage=usage, **ids)]

    async def _hold(self, model: str) -> None:
        if model == "waits":
            await self.go_on.wait()

    async def _cancelled(self, message: Message) -> None:
        self.cancel_of(decode(message.data, Cancel).request_id).set()

    async def _resend(self, message: Message) -> None:
        await self.bus.publish(message.reply, encode(ResendReply(known=True, next_seq=1)))

    async def _adapters(self, message: Message) -> None:
        await self.bus.publish(message.reply, encode(AdapterPage()))

    async def _models(self, message: Message) -> None:
        known = ModelList(models=self.cards, away=self.away, offered=self.offered, hosts=self.hosts)
        await self.bus.publish(message.reply, encode(known))


@dataclass
class Gateway:
    """A running gateway with its bus and fleet."""

    port: int
    direct: DirectCalls
    service: Service
    fleet: Fleet
    broker: MemoryBroker
    bus: MemoryBus
    stack: AsyncExitStack
    grpc_port: int = 0
    leader_metric: Callable[..., float] | None = None  # of a whole leader; see `with_leader.py`

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> int:
        """Number of running generations, as the gateway counts them."""
        count = self.service.status().detail["running"]
        assert isinstance(count, int)
        return count

    async def wait_idle(self) -> None:
        await until(lambda: not self.running)

    async def wait_cancelled(self) -> None:
        """Waits until every request of the fleet is cancelled."""
        for request in self.fleet.requests:
            await asyncio.wait_for(self.fleet.cancel_of(request.request_id).wait(), PATIENCE_S)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running_gateway(
    *,
    max_payload: int = 1024 * 1024,
    scripted: bool = True,
    has_accounts: bool = True,
    accounts_away: bool = False,
    spans: SpanSink | None = None,
    wait_s: float = 0.2,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """Runs a gateway on a free port. On exit it drains as a service does and may leave no task.

    Args:
        max_payload: Of the bus.
        scripted: The scripted fleet answers; else the test brings its own.
        accounts_away: They cannot at first.
        has_accounts: Without a scripted fleet: tenants and keys can be read all the same.
        spans: Takes spans of recorded requests.
        wait_s: How long new requests and calls wait for what is away.
        settings: Settings and constants of the gateway.
    """
    chosen = settings_with_constants(
        GatewaySettings, {"http_port": 0, "instance_id": "test", "drain_timeout_s": 0.2} | settings
    )
    before = asyncio.all_tasks()
    broker = MemoryBroker(max_payload)
    bus, fleet_bus = MemoryBus(broker), MemoryBus(broker)
    fleet = Fleet(fleet_bus)
    fleet.accounts.away = accounts_away
    if scripted:
        await fleet.start()
    elif has_accounts:
        await fleet.accounts.start()
    service = Service(chosen, "gateway")
    service.spans = spans
    service.add_check("broker", lambda: bus.connected)
    async with AsyncExitStack() as stack:
        keys = parse_keys(chosen.api_keys.get_secret_value())
        servers = await start(
            service, stack, chosen, keys, bus, client_settings=ClientSettings(wait_s=wait_s)
        )
        service.ready()
        yield Gateway(
            servers.http_port, servers.direct, service, fleet, broker, bus, stack, servers.grpc_port
        )
        await service.drain()
        with suppress(TimeoutError):
            await fleet.stop()
    await service.finish()
    await bus.close()
    await fleet_bus.close()
    # another gateway on this loop begins tasks of its own, which end at once
    with suppress(TimeoutError):
        await until(lambda: not _left(before), _ENDS_S)
    assert not _left(before), f"tasks left behind: {_left(before)}"


def _left(before: "set[asyncio.Task[object]]") -> "set[asyncio.Task[object]]":
    """Other tasks than those of before that still run."""
    return {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}


def _deltas_of(parts: Iterable[Any]) -> list[Delta]:
    """A delta for each part, with its text where it has one."""
    return [Delta(text=part.text if isinstance(part, TextPart) else "", parts=[part]) for part in parts]


def _failed(code: str, message: str, **data: Any) -> Any:
    return lambda **ids: Failed(code=code, message=message, data=data, **ids)


def _refusal_of(model: str) -> str:
    """The code of `fails-CODE`; another name is that of no model."""
    return model.removeprefix("fails-") if model.startswith("fails-") else "model_not_found"
