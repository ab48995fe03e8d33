"""Outside services A and B with a real broker, router and leader: neither can access the other's data.

A tries every access to B's requests, sessions and inbox that subjects allow. Each attempt is made on the
subjects of services, which the broker refuses, and on A's own, where router and leader decide.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest

from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.messages import (
    Attach,
    Cancel,
    DetokenizeQuery,
    Done,
    ErrorReply,
    Failed,
    Resend,
    ResendReply,
    SessionRef,
    TokenizeQuery,
    Tokens,
)
from tests.kits.examples import run_example
from tests.kits.outside_users import COLLEAGUE, A, B, World, raw, world
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import chat, text_of


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made


async def resent(
    bus: NatsBus, subject: str, resend: Resend, *, forbidden: bool = False
) -> ResendReply | None:
    """Requests frames again; None if the broker or the leader refused.

    The broker drops a request on a forbidden subject without an answer.
    """
    try:
        answer = await bus.request(subject, codec.encode(resend), timeout_s=0.3 if forbidden else PATIENCE_S)
    except Exception:
        return None
    return codec.decode_reply(answer.data, ResendReply)


async def test_it_finds_models_and_counts_tokens(both: World) -> None:
    client = InferenceClient(both.a.bus, caller=A)
    (card,) = await client.list_models()
    query = TokenizeQuery(model=card.name, prompt="hello", tenant="tenant-b")
    assert (await client.tokenize(query, timeout_s=PATIENCE_S)).count == 5
    back = await client.detokenize(
        DetokenizeQuery(model=card.name, token_ids=b"a\0\0\0"), timeout_s=PATIENCE_S
    )
    assert back.text == "a"
    asked = codec.encode(TokenizeQuery(model=card.name, prompt="x"))
    heard = len(both.b.heard)
    for subject in (subjects.tokenize(card.name, A), subjects.models(A)):
        await both.a.bus.publish(subject, asked, reply=f"{both.b.inbox}.x")  # B must not get the answer
    await both.b.barrier()
    assert not [message for message in both.b.heard[heard:] if message.subject.endswith(".x")]


async def test_its_own_requests_are_its_tenants(both: World) -> None:
    """A request belongs to A's tenant, named or not; B has another session with the same id."""
    a, b = both.a, both.b
    for service, number in ((a, 0), (b, 0), (a, 1)):
        named = {"tenant": service.caller.tenant} if number else {}
        session = SessionRef(session_id="same")
        await service.run(service.ask(f"r{number}", f"{service.caller.user} says", session=session), **named)
    records = both.kit.store.records
    assert set(records) == {("tenant-a", "same"), ("tenant-b", "same")}
    text = {tenant: str(record.messages) for (tenant, _), record in records.items()}
    assert "service-b" not in text["tenant-a"]
    assert "service-a" not in text["tenant-b"]
    assert text["tenant-a"].count("service-a says") == 2


@pytest.mark.parametrize("named", ["tenant-b", "default-x", "outside"])
async def test_another_tenant_is_refused(both: World, named: str) -> None:
    failed = await both.a.run(both.a.ask("r", session={"session_id": "theirs"}), tenant=named)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.data["param"]) == ("invalid_request", "tenant")
    assert not both.kit.store.records


@pytest.mark.parametrize("own", [True, False])
async def test_it_does_not_read_by_resend(both: World, own: bool) -> None:
    await both.running()
    caller = A if own else None
    for resend in (
        Resend(request_id="victim", from_seq=0),
        Resend(request_id="victim", from_seq=0, tenant="tenant-b"),
    ):
        reply = await resent(both.a.bus, subjects.resend("g0", caller), resend, forbidden=not own)
        assert reply is None or reply == ResendReply(known=False)
        assert (reply is None) == (not own)
    reply = await resent(both.b.bus, subjects.resend("g0", B), Resend(request_id="victim", from_seq=0))
    assert reply is not None
    assert reply.frames
    await both.b_is_whole()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("attempt", [0, 1, 1000])
async def test_a_request_of_the_same_id_is_another_one(both: World, own: bool, attempt: int) -> None:
    """A gets its own answer without frames of B; B's request is neither fenced nor abandoned."""
    await both.running()
    await both.a.send(both.a.ask("victim", "mine", attempt=attempt), own)
    if own:
        await both.a.end_of("victim")
        assert len(text_of(both.a.of("victim"))) == 16
    else:
        await both.a.barrier()
        assert not both.a.of("victim")
    await both.b_is_whole()


@pytest.mark.parametrize("subject", ["group", "all"])
@pytest.mark.parametrize("own", [True, False])
async def test_it_does_not_cancel(both: World, own: bool, subject: str) -> None:
    await both.running()
    caller = A if own else None
    where = subjects.cancel("g0", caller) if subject == "group" else subjects.cancel_all(caller)
    for cancel in (Cancel(request_id="victim"), Cancel(request_id="victim", tenant="tenant-b")):
        await both.a.bus.publish(where, codec.encode(cancel))
    # a cancel must not end a request that arrives later, either
    await both.a.bus.publish(where, codec.encode(Cancel(request_id="later", tenant="tenant-b")))
    await both.a.barrier()
    await both.b_is_whole()
    assert isinstance(await both.b.run(both.b.ask("later")), Done)


async def test_its_own_it_cancels_and_reads_again(both: World) -> None:
    await both.running("victim")
    await both.a.send(both.a.ask("victim", sampling={"max_tokens": 500}))
    await until(lambda: any(isinstance(frame, Tokens) for frame in both.a.of("victim")))
    reply = await resent(both.a.bus, subjects.resend("g0", A), Resend(request_id="victim", from_seq=0))
    assert reply is not None
    assert len(reply.frames) >= 2
    await both.a.bus.publish(subjects.cancel("g0", A), codec.encode(Cancel(request_id="victim")))
    failed = await both.a.end_of("victim")
    assert isinstance(failed, Failed)
    assert failed.code == "cancelled"
    await both.b_is_whole()


async def test_services_of_one_tenant_share_its_requests(both: World) -> None:
    await both.running()
    reply = await resent(
        both.colleague.bus, subjects.resend("g0", COLLEAGUE), Resend(request_id="victim", from_seq=0)
    )
    assert reply is not None
    assert reply.frames
    await both.b_is_whole()


ELSEWHERE = [
    "{b}.f", "_INBOX.gateway.x", "_INBOX.worker.x", "_INBOX.x", "_INBOX.service-a", "_INBOX.service-a2.x",
    "ryz.v1.cancel",
]  # fmt: skip


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("broken", [False, True])
async def test_frames_go_into_no_inbox_but_its_own(both: World, where: str, broken: bool) -> None:
    """The request is answered, refused or cannot be decoded."""
    reply_to = where.format(b=both.b.inbox)
    await both.running()
    request = both.a.ask("injected")
    fields = raw(request) | {"reply_to": reply_to}
    if broken:
        fields["sampling"] = {"temperature": 99}
    subject = subjects.generate("demo", A)
    gateway: list[Message] = []

    async def hear(message: Message) -> None:
        gateway.append(message)

    await both.gateway.subscribe("_INBOX.gateway.>", hear)
    await both.a.bus.publish(subject, msgpack.packb(fields), reply=f"{both.a.inbox}.f")
    failed = await both.a.end_of("injected")
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_request"
    # without an inbox of its own the request gets no answer
    await both.a.bus.publish(subject, msgpack.packb(fields), reply=reply_to)
    await both.a.bus.publish(subject, b"\xc1", reply=reply_to)
    await both.a.barrier()
    await both.b_is_whole()
    assert {frame.request_id for frame in both.b.frames} == {"victim"}
    assert not gateway


@pytest.mark.parametrize("data", [codec.encode(Resend(request_id="victim", from_seq=0)), b"\xc1"])
@pytest.mark.parametrize("kind", ["resend", "cancel"])
async def test_answers_go_into_no_inbox_but_its_own(both: World, kind: str, data: bytes) -> None:
    """Answers to valid messages and to messages that cannot be decoded."""
    await both.running()
    subject = subjects.resend("g0", A) if kind == "resend" else subjects.cancel("g0", A)
    await both.a.bus.publish(subject, data, reply=f"{both.b.inbox}.x")
    await both.a.barrier()
    await both.b_is_whole()
    assert {message.subject for message in both.b.heard} == {f"{both.b.inbox}.f"}


async def test_it_attaches_to_nothing(both: World) -> None:
    """A cannot attach to its own request either: only HTTP streams can be resumed, through the gateway."""
    await both.running()
    note = both.a.ask("noted", note=b"see me", sampling={"max_tokens": 100})
    await both.a.send(note)
    await until(lambda: bool(both.a.of("noted")))
    for tenant in ("tenant-a", "tenant-b"):
        for request_id in ("victim", "noted"):
            attach = Attach(request_id=request_id, tenant=tenant, reply_to=f"{both.a.inbox}.x")
            await both.a.bus.publish(subjects.ATTACH, codec.encode(attach), reply=f"{both.a.inbox}.y")
    # the gateway may ask but finds no note: outside requests cannot be resumed over HTTP
    attach = Attach(request_id="noted", tenant="tenant-a", reply_to=f"{both.gateway.new_inbox()}.x")
    with pytest.raises(Exception, match="no answer"):
        await both.gateway.request(subjects.ATTACH, codec.encode(attach), timeout_s=0.3)
    assert isinstance(await both.a.end_of("noted"), Done)
    await both.b_is_whole()
    assert not [m for m in both.a.heard if m.subject.endswith((".x", ".y")) and not m.no_responders]


@pytest.mark.parametrize(("allowed", "got"), [(0, 0), (3, 3), (10, 10)])
async def test_priority_is_clamped(tmp_path: Path, allowed: int, got: int) -> None:
    async with world(tmp_path, router_outside_max_priority=allowed) as both:
        a = both.a
        await a.send(a.ask("r", priority=10, sampling={"max_tokens": 200}))
        await until(lambda: bool(a.of("r")))
        (generation,) = both.kit.leader.parts.table.by_key.values()
        assert generation.request.priority == got
        await a.send(a.ask("low", priority=-5, sampling={"max_tokens": 200}))
        await until(lambda: bool(a.of("low")))
        priorities = {
            g.request.request_id: g.request.priority for g in both.kit.leader.parts.table.by_key.values()
        }
        assert priorities["low"] == -5


async def test_a_copy_of_a_request_brings_one_frame(both: World) -> None:
    request = both.a.ask("copied", sampling={"max_tokens": 60, "logprobs": 5})
    assert isinstance(await both.a.run(request), Done)
    before = len(both.a.of("copied"))
    await asyncio.sleep(1.1)  # a router drops copies that follow immediately
    for _ in range(5):
        await both.a.send(request)
        await asyncio.sleep(0.05)
    await both.a.barrier()
    assert before > 10
    assert len(both.a.of("copied")) - before <= 5


async def test_a_later_attempt_goes_before_no_other_request(both: World) -> None:
    """Attempts of services resume beyond the queue's limit; an outside user must not bypass it this way."""
    await both.a.send(both.a.ask("r", attempt=7, sampling={"max_tokens": 200}))
    await until(lambda: bool(both.a.of("r")))
    (generation,) = both.kit.leader.parts.table.by_key.values()
    assert (generation.request.attempt, generation.outside, generation.resumed) == (7, True, False)
    assert not any(waiter.firm for waiter in both.kit.leader.parts.slots.waiting_requests())
    assert isinstance(await both.a.end_of("r"), Done)


@pytest.mark.parametrize("next_seq", [2**64 - 1, 2**64 - 3, 2**53 + 1])
async def test_a_number_after_which_none_can_be_sent_is_refused(both: World, next_seq: int) -> None:
    """Frames are numbered from `next_seq`: the first number over 64 bits used to crash the leader."""
    fields = raw(both.a.ask("r", attempt=1))
    fields["resume"] = {"token_ids": [b""], "next_seq": next_seq}
    await both.a.bus.publish(subjects.generate("demo", A), msgpack.packb(fields))
    failed = await both.a.end_of("r")
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_request"
    assert isinstance(await both.b.run(both.b.ask("mine")), Done)


async def test_a_user_that_asks_too_often_is_slowed_down_alone(tmp_path: Path) -> None:
    async with world(tmp_path, router_outside_rps=5) as both:
        began = time.monotonic()
        for number in range(40):
            await both.a.send(both.a.ask(f"r{number}", sampling={"max_tokens": 1}))
        ends = [await both.a.end_of(f"r{number}") for number in range(40)]
        seconds = time.monotonic() - began
        failed = [end for end in ends if isinstance(end, Failed)]
        assert {(end.code, end.data["reason"]) for end in failed} == {("overloaded", "user_rate")}
        assert all(end.data["retry_after_s"] <= 0.2 for end in failed)
        assert 5 <= len(ends) - len(failed) <= 5 + 5 * (1 + seconds), "a burst, and what the time has brought"
        assert isinstance(await both.b.run(both.b.ask("mine")), Done)


async def test_frames_are_sent_again_within_a_budget(tmp_path: Path) -> None:
    """An answer is a thousand times as large as its request; B and services are still answered."""
    async with world(tmp_path, resend_bytes_s=4096) as both:
        sampling = {"max_tokens": 120, "n": 8, "logprobs": 20}
        assert isinstance(await both.a.run(both.a.ask("long", sampling=sampling, delivery="whole")), Done)
        question = codec.encode(Resend(request_id="long", from_seq=0))
        first = await both.a.bus.request(subjects.resend("g0", A), question, timeout_s=PATIENCE_S)
        assert len(first.data) > 50_000
        for _ in range(3):
            answer = await both.a.bus.request(subjects.resend("g0", A), question, timeout_s=PATIENCE_S)
            error = codec.decode(answer.data, ErrorReply)
            assert (error.error, len(answer.data) < 500) == ("overloaded", True)
            assert 0 < error.data["retry_after_s"] < 30
        assert both.kit.metric("refused_resends_total") == 3
        for bus, caller in ((both.b.bus, B), (both.gateway, None)):
            reply = await resent(bus, subjects.resend("g0", caller), Resend(request_id="long", from_seq=0))
            assert reply is not None
            assert reply.known == (caller is None)


async def test_services_still_cancel_and_ask_without_a_tenant(both: World) -> None:
    """Services of an older version send no tenant; their calls are accepted."""
    await both.running()
    resend = Resend(request_id="victim", from_seq=0)
    reply = await resent(both.gateway, subjects.resend("g0"), resend)
    assert reply is not None
    assert reply.frames
    for cancel in (Cancel(request_id="victim", tenant="tenant-a"), Cancel(request_id="victim")):
        assert not any(isinstance(frame, Failed) for frame in both.b.of("victim"))
        await both.gateway.publish(subjects.CANCEL_ALL, codec.encode(cancel))
        await both.gateway.flush()
        await both.a.barrier()
    assert isinstance(await both.b.end_of("victim"), Failed)


@pytest.mark.parametrize("example", ["publish_with_client.py", "plain_nats.py"])
async def test_the_examples_speak_for_their_user(both: World, example: str) -> None:
    """Run as the user `outside`, as in README, and as a user of a tenant with another name."""
    for user, env in (("outside", {}), (A.user, {"RYZ_NATS_TENANT": A.tenant})):
        args = ("--nats-url", both.broker.url(user), "--session", "tea", "--max-tokens", "16")
        code, out, err = await run_example(example, *args, env=env)
        assert (code, len(out.strip())) == (0, 16), err
        assert "forbid" not in err
    assert set(both.kit.store.records) == {("outside", "tea"), ("tenant-a", "tea")}


async def test_the_client_library_speaks_for_its_tenant(both: World) -> None:
    client = InferenceClient(both.a.bus, caller=A)
    await client.start()
    try:
        request = chat("lib", "hi", session=SessionRef(session_id="s"), reply_to="")
        completion = await client.complete(request, timeout_s=PATIENCE_S)
        assert len(completion.choices[0].text) == 16
        assert set(both.kit.store.records) == {("tenant-a", "s")}
        async with client.submit(chat("left", sampling={"max_tokens": 1500}), timeout_s=PATIENCE_S) as stream:
            await stream.wait_accepted()
        await until(lambda: not both.kit.leader.parts.table.by_key)
    finally:
        await client.close()


async def test_a_flood_of_cancels_costs_others_nothing(tmp_path: Path) -> None:
    """The bus limits the rate of an outside subject; cancels of services have subjects of their own."""
    async with world(tmp_path) as both:
        await both.running()
        leader = both.kit.outside
        received = leader.stats.received  # type: ignore[attr-defined]
        flood, began = both.a.bus, time.monotonic()
        for number in range(20_000):
            await flood.publish(subjects.cancel_all(A), b"no message")
            if not number % 100:
                await asyncio.sleep(0)
        await flood.flush()
        await both.b_is_whole()
        calls = leader.stats.received - received  # type: ignore[attr-defined]
        assert 500 <= calls < min(19_000, 4_000 + 1_000 * (time.monotonic() - began))  # 500 a second
        assert leader.stats.throttled >= 1  # type: ignore[attr-defined]
        assert sum(entry["event"] == "message not decoded" for entry in both.kit.logs) < 5
        await asyncio.sleep(1.1)  # the rate limit's window has passed
        await both.running("another")
        await both.b.bus.publish(
            subjects.cancel("g0", B), codec.encode(Cancel(request_id="another", attempt=0))
        )
        assert isinstance(await both.b.end_of("another"), Failed)


async def test_a_flood_of_broken_requests_stays_with_the_broker(tmp_path: Path) -> None:
    """Requests under the limit arrive on a separate connection; only some of the refusals are answered."""
    async with world(tmp_path, router_outside_calls_s=2000) as both:
        await both.running()
        read, began = both.router.registry.get_sample_value, time.monotonic()
        for number in range(20_000):
            await both.a.bus.publish(subjects.generate("demo", A), b"\x80", reply=f"{both.a.inbox}.r")
            if not number % 100:
                await asyncio.sleep(0)
        await both.a.bus.flush()
        await both.b_is_whole()
        received = read("ryz_bus_received_total", {"connection": "outside"}) or 0
        assert 2000 <= received < min(19_000, 8_000 + 4_000 * (time.monotonic() - began))  # 2000 a second
        assert (read("ryz_bus_throttled_total", {"connection": "outside"}) or 0) >= 1
        assert sum(not message.no_responders for message in both.a.heard) < 1_500
        await both.gateway.publish(subjects.generate("demo"), b"\x80", reply=f"{both.gateway.new_inbox()}.r")
        await asyncio.sleep(1.1)  # the rate limit's window has passed
        assert isinstance(await both.b.run(both.b.ask("mine")), Done)
        assert set(both.router.readiness()["checks"]) == {"broker"}


async def test_a_tenant_that_holds_all_slots_gives_some_to_another(both: World) -> None:
    """Routers pass requests to full groups, since only the leader knows which tenant holds the places."""
    sampling = {"n": 16, "max_tokens": 120, "ignore_eos": True}
    for number in range(9):  # 64 sequences run and 64 wait
        await both.a.send(both.a.ask(f"r{number}", sampling=sampling))
        await until(lambda number=number: bool(both.a.of(f"r{number}")))  # type: ignore[misc]
    await asyncio.sleep(0.2)  # wait for heartbeats
    for number in range(3):
        end = await both.b.run(both.b.ask(f"mine{number}", sampling={"max_tokens": 2}))
        assert isinstance(end, Done), end
    failed = [end for n in range(8) if isinstance(end := await both.a.end_of(f"r{n}"), Failed)]
    assert 1 <= len(failed) <= 2
    assert {end.data["reason"] for end in failed} == {"shed"}
