"""Bus requests to a leader about sessions and KV blocks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from services.worker.leader.sessions.peer_turns import PeerSessionClient
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from shared import codec, kv_hash, subjects
from shared.bus.api import Message
from shared.errors import InvalidRequest, RyzError, SessionNotFound, Unavailable
from shared.messages import (
    ErrorReply,
    HoldersQuery,
    Holding,
    SessionGone,
    SessionRecord,
    SessionTurns,
    Warmed,
    WarmSession,
)
from shared.messages.base import Wire
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.kv_tier import Index, Store, StoreEngine
from tests.kits.worker.leader import Kit, chat, null_engine

TOKENS = [(3 * i) % 251 for i in range(100)]


class Group(Kit):
    """A kit, by default with a KV store; `remember` stores the record of session `s`."""

    def __init__(self, bus: MemoryBus, *, with_store: bool = True, **options: Any) -> None:
        self.blocks: Store = {}
        self.ranks = StoreEngine(self.blocks)
        engine = self.ranks if with_store else null_engine()
        super().__init__(bus, engine, index=Index(self.blocks), **options)
        self.turns: list[SessionTurns] = []

    def remember(self, tokens: list[int] = TOKENS, model: str = "demo") -> None:
        self.store.records["default", "s"] = SessionRecord(
            session_id="s",
            tenant="default",
            version=1,
            turns=1,
            model=model,
            last_group="g1",
            created_ms=1,
            updated_ms=1,
            messages=[],
            token_ids=codec.pack_tokens(tokens),
        )

    async def call(self, subject: str, message: Wire | bytes) -> bytes:
        data = message if isinstance(message, bytes) else codec.encode(message)
        return (await self.bus.request(subject, data, timeout_s=PATIENCE_S)).data

    async def warm(self) -> Warmed:
        asked = WarmSession(tenant="default", session_id="s")
        return codec.decode_reply(await self.call(subjects.warm("g0"), asked), Warmed)

    async def holders(self, tokens: list[int] = TOKENS) -> Holding:
        query = HoldersQuery(tenant="default", token_ids=codec.pack_tokens(tokens))
        return codec.decode_reply(await self.call(subjects.KV_HOLDERS, query), Holding)

    async def on_turns(self, message: Message) -> None:
        self.turns.append(codec.decode(message.data, SessionTurns))


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Group]:
    # an engine that is lost is still away when a test asks
    async with Group(memory_bus, back_off=RestartPauses(first_s=5.0)) as kit:
        assert isinstance(kit, Group)
        await memory_bus.subscribe(subjects.SESSION_TURNS, kit.on_turns)
        yield kit


async def filled(kit: Group) -> None:
    await kit.run(chat("fill", prompt_token_ids=codec.pack_tokens(TOKENS)))
    await kit.until(lambda: len(kit.blocks) >= 6)


async def test_says_how_much_of_a_sequence_it_has(kit: Group) -> None:
    before = await kit.holders()
    assert (before.group, before.model, before.num_tokens, before.cached_tokens) == ("g0", "demo", 100, 0)
    await filled(kit)
    assert (await kit.holders()).cached_tokens == 96


async def test_gets_a_session_and_tells_routers(kit: Group) -> None:
    await filled(kit)
    kit.remember()
    scheduler = kit.leader.parts.engine.scheduler
    assert scheduler is not None
    scheduler.blocks.drop(list(kit.blocks))
    warmed = await kit.warm()
    assert (warmed.group, warmed.num_tokens) == ("g0", 100)
    assert (warmed.cached_tokens, warmed.fetched_tokens) == (96, 96)
    again = await kit.warm()
    assert (again.cached_tokens, again.fetched_tokens) == (96, 0)
    await kit.until(lambda: len(kit.turns) == 2)
    assert [(turn.session_id, turn.group) for turn in kit.turns[0].turns] == [("s", "g0")]
    await kit.all_free()


async def test_a_group_without_a_store_takes_a_session_to_compute_it(memory_bus: MemoryBus) -> None:
    async with Group(memory_bus, with_store=False) as kit:
        assert isinstance(kit, Group)
        kit.remember()
        assert (await kit.warm()).cached_tokens == 0
        assert (await kit.holders()).cached_tokens == 0


async def test_what_cannot_be_had_is_said(kit: Group) -> None:
    kit.store.away = True
    with pytest.raises(Unavailable):
        await kit.warm()
    kit.store.away = False
    with pytest.raises(SessionNotFound, match="no session 's'"):
        await kit.warm()
    kit.remember(model="other")
    with pytest.raises(InvalidRequest, match="of model other, group g0 serves demo"):
        await kit.warm()


async def test_an_engine_that_is_gone_takes_no_session(kit: Group) -> None:
    kit.expected_errors = {"the engine failed"}
    kit.remember()
    kit.ranks.die()
    await kit.until(lambda: kit.leader.state == "recovering")
    with pytest.raises(Unavailable, match="engine of group g0 is not ready"):
        await kit.warm()
    assert kit.turns == []
    assert (await kit.holders()).cached_tokens == 0
    await kit.bus.publish(subjects.SESSION_GONE, codec.encode(SessionGone(tenant="default", session_id="s")))
    await asyncio.sleep(0.01)


async def test_a_session_that_is_gone_leaves_neither_text_nor_blocks(kit: Group) -> None:
    text = "x" * 100
    await kit.run(chat("a", text, session={"session_id": "s", "given": True}))
    ask = PeerSessionClient(kit.bus, 1.0)
    record = await ask("g0", "default", "s")
    assert record.messages[0].content == text
    tokens = codec.unpack_tokens(record.token_ids)
    names = kit.leader.kv_names(tokens)
    scheduler = kit.leader.parts.engine.scheduler
    assert scheduler is not None
    assert scheduler.blocks.num_found(names) > 0
    gone = SessionGone(tenant="default", session_id="s", names=b"".join(names[:1]))
    await kit.bus.publish(subjects.SESSION_GONE, codec.encode(gone))
    await kit.until(lambda: scheduler.blocks.num_found(names) == 0)
    assert scheduler.write_behind.num_known_of(names) == 0
    with pytest.raises(SessionNotFound):
        await ask("g0", "default", "s")
    with pytest.raises(Unavailable):
        await ask("nobody", "default", "s")


@pytest.mark.parametrize(
    "subject", [subjects.warm("g0"), subjects.KV_HOLDERS, subjects.peer("g0"), subjects.SESSION_GONE]
)
async def test_what_is_no_message_is_said_to_be_none(kit: Group, subject: str) -> None:
    answer = codec.decode(await kit.call(subject, b"?"), ErrorReply)
    assert answer.error == "invalid_request"


async def test_tokens_that_are_none(kit: Group) -> None:
    with pytest.raises(RyzError):
        codec.decode_reply(
            await kit.call(subjects.KV_HOLDERS, HoldersQuery(tenant="default", token_ids=b"123")), Holding
        )


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The parent names of all blocks hashed so far, by any function of `kv_hash`."""
    named: list[bytes] = []

    def counted(real: Callable[[bytes, Any], bytes]) -> Callable[[bytes, Any], bytes]:
        def name(parent: bytes, token_ids: Any) -> bytes:
            named.append(parent)
            return real(parent, token_ids)

        return name

    for function in ("extend", "extend_packed"):
        if hasattr(kv_hash, function):
            monkeypatch.setattr(kv_hash, function, counted(getattr(kv_hash, function)))
    return named


async def test_a_long_sequence_that_is_not_here_costs_one_name(kit: Group, hashed: list[bytes]) -> None:
    held = await kit.holders(list(range(120_000)))
    assert (held.num_tokens, held.cached_tokens) == (120_000, 0)
    assert len(hashed) == 1


async def test_nothing_is_named_behind_what_is_here(kit: Group, hashed: list[bytes]) -> None:
    await filled(kit)
    hashed.clear()
    assert (await kit.holders([*TOKENS[:64], *range(1000)])).cached_tokens == 64
    assert len(hashed) == 5


async def test_a_long_session_is_named_in_parts(kit: Group, hashed: list[bytes]) -> None:
    kit.remember(list(range(120_000)))
    warming = asyncio.create_task(kit.warm())
    seen = set[int]()
    while not warming.done():
        seen.add(len(hashed))
        await asyncio.sleep(0)
    assert (await warming).num_tokens == 120_000
    steps = sorted(seen)
    assert steps[-1] == 7500
    assert max(after - before for before, after in pairwise(steps)) <= 512


async def test_questions_that_pile_up_are_dropped(kit: Group) -> None:
    """Under a flood, queries are dropped; a caller waits briefly and leaves out a group without an answer."""
    answers: list[Message] = []

    async def collect(message: Message) -> None:
        answers.append(message)

    inbox = kit.bus.new_inbox()
    await kit.bus.subscribe(inbox, collect)
    query = codec.encode(HoldersQuery(tenant="default", token_ids=b""))
    for _ in range(200):
        await kit.bus.publish(subjects.KV_HOLDERS, query, reply=inbox)
    await until(lambda: bool(answers))
    await asyncio.sleep(0.05)
    assert len(answers) < 40
    assert (await kit.holders()).num_tokens == 100
