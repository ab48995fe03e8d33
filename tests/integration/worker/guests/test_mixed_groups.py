"""A router, own groups, groups of guests and a client: answers that change engines, refusals by name."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import Ability, GuestFacts, GuestPart
from services.worker.null.engine import TEXT
from services.worker.null.model import null_model
from services.worker.rank_protocol.plan import Engine, Sampled
from shared.bus.nats import NatsBus
from shared.client import Completion, GenerationStream, InferenceClient
from shared.errors import InvalidRequest, Unavailable
from shared.lifecycle import Service
from shared.messages import GenerateRequest
from tests.kits.guests.scripted import ABLE, FORMED, ScriptedGuest
from tests.kits.router.live import router
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import Kit, chat, null_engine

LONG = 48


def letters(abilities: frozenset[Ability] = ABLE) -> ScriptedGuest:
    """Says what the null engine says; the test brings its tokens."""
    facts = GuestFacts(
        name="scripted 1",
        fingerprint="demo",
        context_length=2048,
        vocab_size=257,
        abilities=abilities - {"deterministic"},
    )
    return ScriptedGuest(tokens=list(TEXT.encode()), facts=facts)


class Fleet:
    """The groups of one model, which a router knows.

    Attributes:
        guests: By the names of their groups.
    """

    def __init__(self, bus: NatsBus, service: Service, client: InferenceClient, model: str) -> None:
        self._client = client
        self.model = model
        self.guests: dict[str, ScriptedGuest] = {}
        self._bus = bus
        self._service = service

    def request(self, **fields: Any) -> GenerateRequest:
        return chat(f"r-{uuid4().hex[:12]}", **{"model": self.model, **fields})

    def submit(self, request: GenerateRequest) -> GenerationStream:
        return self._client.submit(request, timeout_s=PATIENCE_S)

    async def complete(self, request: GenerateRequest) -> Completion:
        return await self._client.complete(request, timeout_s=PATIENCE_S)

    @asynccontextmanager
    async def group(self, name: str, guest: ScriptedGuest | None = None) -> AsyncIterator[Kit]:
        """A group that is ready as long as the block lasts; without a guest an own one."""
        engine: Engine = null_engine(delay_s=0.002)
        if guest is not None:
            engine = GuestEngine(guest, max_running=8, start_timeout_s=5.0)
            self.guests[name] = guest
        async with Kit(self._bus, engine, name, null_model(self.model, 2048), instance_id=f"i-{name}") as kit:
            kit.expected_errors.add("the engine failed")  # of any group, since logs are of the process
            await until(lambda: self._states().get(name) == "ready")
            yield kit
        await until(lambda: self._states().get(name) != "ready")

    def _states(self) -> dict[str, str]:
        return {row["group"]: row["state"] for row in self._service.status().detail["groups"]}


@pytest.fixture
async def fleet(nats_url: str, nats_bus: NatsBus) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(router(nats_url, router_policy="least_loaded"))
        client = InferenceClient(nats_bus)
        await client.start()
        stack.push_async_callback(client.close)
        yield Fleet(nats_bus, service, client, f"m-{uuid4().hex[:8]}")


async def text_of_next(stream: GenerationStream) -> str:
    """The text of the next frame: a part of the answer."""
    frame = await stream.next_frame()
    assert frame is not None
    return "".join(delta.text for delta in frame.deltas)


def is_whole(text: str, length: int = LONG) -> bool:
    """Whether an answer is a piece of the endless text."""
    return len(text) == length and text in TEXT * 20


async def begun(guest: ScriptedGuest, tokens: int = 5) -> int:
    """Waits for the guest's newest sequence, brings some tokens, and returns its id."""
    await until(lambda: bool(guest.sequences))
    seq_id = max(guest.sequences)
    guest.bring(seq_id, tokens)
    return seq_id


def break_off(guest: ScriptedGuest, seq_id: int) -> None:
    guest.fail(seq_id, "the stream was cut")


def end_all(guest: ScriptedGuest, _: int) -> None:
    guest.die("its server is gone")


@pytest.mark.parametrize("lose", [break_off, end_all])
async def test_what_a_guest_began_goes_on_in_an_own_group(
    fleet: Fleet, lose: Callable[[ScriptedGuest, int], None]
) -> None:
    guest = letters()
    request = fleet.request(sampling={"max_tokens": LONG})
    async with fleet.group("guest", guest), fleet.submit(request) as stream:
        seq_id = await begun(guest)
        first = await text_of_next(stream)
        async with fleet.group("own"):
            lose(guest, seq_id)
            done = await stream.completion()
            assert (stream.group, done.resumed) == ("own", "text")
            assert done.usage.completion_tokens == LONG
            assert is_whole(first + done.choices[0].text)


async def test_a_guest_goes_on_with_what_an_own_group_began(fleet: Fleet) -> None:
    guest = letters()
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(fleet.group("own"))
        stream = await stack.enter_async_context(fleet.submit(fleet.request(sampling={"max_tokens": 500})))
        first = await text_of_next(stream)
        await stack.enter_async_context(fleet.group("guest", guest))
        await own.leader.drain(0.0)
        await until(lambda: bool(guest.sequences))
        new = guest.opened[0].new
        assert len(new.token_ids) > new.prompt_len, "the tokens so far are in the prompt"
        guest.bring(new.seq_id, 500)
        done = await stream.completion()
        assert (stream.group, done.resumed) == ("guest", "text")
        assert is_whole(first + done.choices[0].text, 500)


async def test_what_a_guest_cannot_do_goes_to_the_own_group_and_alone_is_refused_by_name(
    fleet: Fleet,
) -> None:
    guest = letters()
    async with fleet.group("guest", guest):
        request = fleet.request(sampling={"seed": 7})
        with pytest.raises(InvalidRequest, match="the guest scripted 1 cannot take `seed`"):
            await fleet.complete(request)
        async with fleet.group("own"):
            answers = [
                await fleet.complete(fleet.request(sampling={"seed": 7, "max_tokens": LONG}))
                for _ in range(4)
            ]
            assert {answer.group for answer in answers} == {"own"}
            assert all(is_whole(answer.choices[0].text) for answer in answers)
            assert {answer.resumed for answer in answers} == {""}
    assert guest.opened == []


async def test_an_answer_that_no_guest_can_go_on_with_is_one_error(fleet: Fleet) -> None:
    more: tuple[Ability, ...] = ("penalties",)
    guests = [letters(ABLE.union(more)), letters(ABLE.union(more))]
    async with fleet.group("guest0", guests[0]), fleet.group("guest1", guests[1]):
        request = fleet.request(sampling={"max_tokens": LONG, "presence_penalty": 0.5})
        async with fleet.submit(request) as stream:
            await until(lambda: any(guest.sequences for guest in guests))
            guest = next(guest for guest in guests if guest.sequences)
            seq_id = await begun(guest)
            await stream.next_frame()
            guest.fail(seq_id, "the stream was cut")
            with pytest.raises(Unavailable, match="cannot go on with an answer that has `presence_penalty`"):
                await stream.completion()
        assert sum(len(guest.opened) for guest in guests) == 1


SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "ok": {"const": true}}, \
"required": ["name", "ok"], "additionalProperties": false}'
)
BY_SCHEMA: dict[str, Any] = {"structured": {"kind": "json_schema", "definition": SCHEMA}}


@pytest.mark.parametrize("abilities", [FORMED, FORMED - {"grammar"}])  # in our form of JSON, in its own
@pytest.mark.parametrize("lose", [break_off, end_all])
async def test_an_answer_with_a_form_goes_on_in_an_own_group_that_replays_it(
    fleet: Fleet, lose: Callable[[ScriptedGuest, int], None], abilities: frozenset[Ability]
) -> None:
    guest = letters(abilities)
    request = fleet.request(sampling={"max_tokens": 200}, **BY_SCHEMA)
    async with fleet.group("guest", guest), fleet.submit(request) as stream:
        seq_id = await begun(guest, 14)
        first = await text_of_next(stream)
        async with fleet.group("own"):
            lose(guest, seq_id)
            done = await stream.completion()
            assert (stream.group, done.resumed) == ("own", "text")
            answer = json.loads(first + done.choices[0].text)
            assert answer.keys() == {"name", "ok"}


async def test_an_answer_with_a_form_that_no_own_group_can_go_on_with_is_one_error(fleet: Fleet) -> None:
    guests = [letters(FORMED), letters(FORMED)]
    async with fleet.group("guest0", guests[0]), fleet.group("guest1", guests[1]):
        async with fleet.submit(fleet.request(sampling={"max_tokens": 200}, **BY_SCHEMA)) as stream:
            await until(lambda: any(guest.sequences for guest in guests))
            guest = next(guest for guest in guests if guest.sequences)
            seq_id = await begun(guest, 14)
            await stream.next_frame()
            guest.fail(seq_id, "the stream was cut")
            with pytest.raises(Unavailable, match="cannot go on with an answer that has `structured`"):
                await stream.completion()
        assert sum(len(guest.opened) for guest in guests) == 1


async def test_a_guest_that_leaves_the_form_is_left(fleet: Fleet) -> None:
    guest = letters(FORMED)
    request = fleet.request(sampling={"max_tokens": 200}, **BY_SCHEMA)
    async with fleet.group("guest", guest), fleet.submit(request) as stream:
        seq_id = await begun(guest, 14)
        first = await text_of_next(stream)
        async with fleet.group("own"):
            guest.send(GuestPart(seq_id=seq_id, sampled=[Sampled(seq_id=seq_id, token_id=0)]))
            done = await stream.completion()
            assert json.loads(first + done.choices[0].text).keys() == {"name", "ok"}
