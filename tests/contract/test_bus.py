"""Tests of the contract in `shared/bus/api.py`, for every implementation of `Bus`."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.worker.leader.profiling.watched_bus import BusWatch, WatchedBus
from shared.bus import Bus, Message, NoResponders, RequestTimedOut
from shared.bus.nats import NatsBus
from shared.bus.nats_subscriptions import WINDOW_S
from shared.errors import InvalidRequest, RequestTooLarge, Unavailable
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.servers import GuardedNats, NatsServer
from tests.kits.waiting import PATIENCE_S, until

Connect = Callable[[], Awaitable[Bus]]


class Watched(WatchedBus):
    """A watched bus that shows the counts of the bus below it, as the others do."""

    def __init__(self, bus: MemoryBus | NatsBus, watch: BusWatch) -> None:
        super().__init__(bus, watch)
        self.stats = bus.stats


@pytest.fixture(params=["memory", "nats", "watched"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Returns a function that connects buses to one broker."""
    if request.param == "watched" and "limited" in request.node.name:
        pytest.skip("limits are those of the bus below, and take seconds")
    buses: list[Bus] = []
    broker = MemoryBroker()
    url = request.getfixturevalue("nats_url") if request.param == "nats" else ""

    async def make() -> Bus:
        below = await NatsBus.connect(url, name="contract") if url else MemoryBus(broker)
        bus: Bus = below
        if request.param == "watched":  # by a profile that runs
            watch = BusWatch()
            watch.begin()
            bus = Watched(below, watch)
        buses.append(bus)
        return bus

    yield make
    for bus in buses:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()


class Collector:
    """A handler that keeps the messages it receives."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._arrived = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def wait_for(self, number: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return [message.data for message in self.messages]


async def settle(bus: Bus) -> None:
    """Waits for published messages to arrive."""
    await bus.flush()
    await asyncio.sleep(0.05)


async def test_messages_arrive_in_order_with_all_their_parts(connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    got = Collector()
    subject = receiver.new_inbox()
    await receiver.subscribe(f"{subject}.a", got)
    for n in range(500):
        await sender.publish(f"{subject}.a", b"%d" % n, reply="answers.here", headers={"Name": f"wert-{n}"})
    assert await got.wait_for(500) == [b"%d" % n for n in range(500)]
    first = got.messages[0]
    assert (first.subject, first.reply) == (f"{subject}.a", "answers.here")
    assert first.headers == {"Name": "wert-0"}
    assert not first.no_responders


async def test_an_ordered_handler_that_waits_still_gets_one_message_at_a_time(bus: Bus) -> None:
    got: list[bytes] = []
    running = 0

    async def handler(message: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001)
        got.append(message.data)
        running -= 1

    subject = bus.new_inbox()
    await bus.subscribe(subject, handler)
    for n in range(20):
        await bus.publish(subject, b"%d" % n)
    await until(lambda: len(got) == 20)
    assert got == [b"%d" % n for n in range(20)]


async def test_a_plain_function_handles_in_order_across_failures_and_waits(connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    got: list[int] = []
    subject = receiver.new_inbox()

    async def later(number: int) -> None:
        await asyncio.sleep(0.001)
        got.append(number)

    def handler(message: Message) -> Awaitable[None] | None:
        number = int(message.data)
        if number % 50 == 7:
            raise ValueError("a failing handler")
        if number % 50 == 9:  # those behind it wait for it
            return later(number)
        got.append(number)
        return None

    subscription = await receiver.subscribe(subject, handler)
    for n in range(200):
        assert sender.publish_now(subject, b"%d" % n, headers={"Name": "wert"})
    await sender.flush()
    with capture_logs():  # to print four traces takes a second of a core
        await subscription.drain()  # returns when all of them are handled
    assert got == [n for n in range(200) if n % 50 != 7]


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("*", "one", True),
        ("*", "one.two", False),
        ("one.*", "one.two", True),
        ("one.*", "one", False),
        ("one.>", "one.two.three", True),
        ("one.>", "one", False),
        (">", "anything.at.all", True),
        ("*.two.*", "one.two.three", True),
        ("*.two.*", "one.other.three", False),
        ("One", "one", False),
    ],
)
async def test_wildcards(bus: Bus, pattern: str, subject: str, expected: bool) -> None:
    prefix = bus.new_inbox()
    got = Collector()
    await bus.subscribe(f"{prefix}.{pattern}", got)
    await bus.publish(f"{prefix}.{subject}", b"x")
    await settle(bus)
    assert len(got.messages) == (1 if expected else 0)


async def test_a_queue_group_shares_and_plain_subscriptions_get_all(connect: Connect) -> None:
    sender, first, second = await connect(), await connect(), await connect()
    subject = sender.new_inbox()
    one, two, every = Collector(), Collector(), Collector()
    await first.subscribe(subject, one, queue="workers")
    await second.subscribe(subject, two, queue="workers")
    await second.subscribe(subject, every)
    for _ in range(200):
        await sender.publish(subject, b"job")
    await every.wait_for(200)
    await settle(sender)
    assert len(one.messages) + len(two.messages) == 200
    assert min(len(one.messages), len(two.messages)) > 20


async def test_no_responders_answers_a_publish_with_reply(bus: Bus) -> None:
    inbox = bus.new_inbox()
    got = Collector()
    await bus.subscribe(f"{inbox}.>", got)
    await bus.publish(f"{inbox}2.nobody", b"hello", reply=f"{inbox}.request-1")
    await got.wait_for(1)
    assert got.messages[0].no_responders
    assert got.messages[0].subject == f"{inbox}.request-1"


async def test_a_header_that_looks_like_a_status_is_only_a_header(bus: Bus) -> None:
    subject, got = bus.new_inbox(), Collector()
    await bus.subscribe(subject, got)
    await bus.publish(subject, b"", headers={"Status": "503", "traceparent": "00-ä-01"})
    await got.wait_for(1)
    assert got.messages[0].headers == {"Status": "503", "traceparent": "00-ä-01"}
    assert not got.messages[0].no_responders


async def test_no_responders_fails_a_request_at_once(bus: Bus) -> None:
    with pytest.raises(NoResponders) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await bus.request(bus.new_inbox(), b"", timeout_s=10 * PATIENCE_S)
    assert caught.value.data["reason"] == "no_responders"


async def test_requests_get_their_own_answers(connect: Connect) -> None:
    asker, answerer = await connect(), await connect()
    subject = asker.new_inbox()

    async def double(message: Message) -> None:
        await asyncio.sleep(0.001 * (int(message.data) % 5))
        await answerer.publish(message.reply, message.data * 2, headers=message.headers)

    await answerer.subscribe(subject, double, max_concurrent=16)
    answers = await asyncio.gather(
        *(asker.request(subject, b"%d" % n, timeout_s=5, headers={"N": str(n)}) for n in range(100))
    )
    assert [answer.data for answer in answers] == [b"%d%d" % (n, n) for n in range(100)]
    assert answers[7].headers == {"N": "7"}


async def test_a_request_without_answer_times_out(bus: Bus) -> None:
    subject = bus.new_inbox()
    await bus.subscribe(subject, Collector())
    with pytest.raises(RequestTimedOut, match=r"within 0\.05 s"):
        await bus.request(subject, b"", timeout_s=0.05)


async def test_a_request_may_be_made_inside_an_ordered_handler(connect: Connect) -> None:
    asker, middle = await connect(), await connect()
    front, back = asker.new_inbox(), asker.new_inbox()

    async def answer(message: Message) -> None:
        await middle.publish(message.reply, b"deep")

    async def forward(message: Message) -> None:
        found = await middle.request(back, b"", timeout_s=2)
        await middle.publish(message.reply, found.data)

    await middle.subscribe(back, answer)
    await middle.subscribe(front, forward)
    assert (await asker.request(front, b"", timeout_s=3)).data == b"deep"


async def test_too_large_a_payload_is_refused_before_it_is_sent(bus: Bus) -> None:
    with pytest.raises(RequestTooLarge) as caught:
        await bus.publish("some.subject", bytes(bus.max_payload + 1))
    assert caught.value.data == {"size": bus.max_payload + 1, "limit": bus.max_payload}
    assert str(bus.max_payload) in caught.value.message
    with pytest.raises(RequestTooLarge):
        await bus.request("some.subject", bytes(bus.max_payload + 1), timeout_s=1)


async def test_the_largest_payload_goes_through(bus: Bus) -> None:
    subject, got = bus.new_inbox(), Collector()
    await bus.subscribe(subject, got)
    await bus.publish(subject, bytes(bus.max_payload))
    assert len((await got.wait_for(1))[0]) == bus.max_payload


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a\r\nPUB x 0\r\n", ".a", "a.", "a.*", "a.>"])
async def test_bad_subjects_are_refused(bus: Bus, subject: str) -> None:
    with pytest.raises(InvalidRequest):
        await bus.publish(subject, b"")
    with pytest.raises(InvalidRequest):
        await bus.publish("good", b"", reply=subject or " ")


@pytest.mark.parametrize("pattern", ["", "a b", "a..b", "a.>.b", "a*"])
async def test_bad_patterns_are_refused(bus: Bus, pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        await bus.subscribe(pattern, Collector())


async def test_a_handler_that_raises_does_not_end_its_subscription(bus: NatsBus | MemoryBus) -> None:
    subject = bus.new_inbox()
    got: list[bytes] = []

    async def fragile(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("cannot do that")
        if message.data == b"cancel":
            raise asyncio.CancelledError
        got.append(message.data)

    await bus.subscribe(subject, fragile)
    for data in (b"bad", b"1", b"cancel", b"2", b"bad", b"3"):
        await bus.publish(subject, data)
    await settle(bus)
    assert got == [b"1", b"2", b"3"]
    assert bus.stats.handler_errors == 2


async def test_handlers_run_at_once_up_to_the_bound(bus: Bus) -> None:
    subject = bus.new_inbox()
    running = most = done = 0

    async def slow(_: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        done += 1

    await bus.subscribe(subject, slow, max_concurrent=4)
    for _ in range(12):
        await bus.publish(subject, b"")
    await until(lambda: done == 12)
    assert most == 4


async def test_what_exceeds_the_pending_limit_is_dropped_and_counted(bus: NatsBus | MemoryBus) -> None:
    subject, gate, got = bus.new_inbox(), asyncio.Event(), Collector()

    async def blocked(message: Message) -> None:
        await gate.wait()
        await got(message)

    await bus.subscribe(subject, blocked, max_pending=10)
    for n in range(20):
        await bus.publish(subject, b"%d" % n)
    await settle(bus)
    gate.set()
    assert await got.wait_for(11) == [b"%d" % n for n in range(11)]  # one runs, ten wait
    assert bus.stats.dropped == 9


async def test_a_subscription_that_drains_handles_what_was_sent_to_it(connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    got: list[bytes] = []

    async def slowly(message: Message) -> None:
        await asyncio.sleep(0.001)
        got.append(message.data)

    subject = f"{receiver.new_inbox()}.work"
    subscriptions = [await receiver.subscribe(subject, slowly, queue="q") for _ in range(2)]
    for n in range(100):
        await sender.publish(subject, b"%d" % n)
    await sender.flush()
    await subscriptions[0].drain()
    for n in range(100, 200):
        await sender.publish(subject, b"%d" % n)
    await sender.flush()
    await subscriptions[1].drain()
    assert sorted(got, key=int) == [b"%d" % n for n in range(200)]
    await subscriptions[0].drain()
    await subscriptions[1].unsubscribe()
    await sender.publish(subject, b"late")
    await settle(receiver)
    assert len(got) == 200


async def test_unsubscribe_stops_deliveries_and_leaves_running_handlers_alone(bus: Bus) -> None:
    subject, got, started = bus.new_inbox(), Collector(), asyncio.Event()

    async def slow(message: Message) -> None:
        started.set()
        await asyncio.sleep(0.05)
        await got(message)

    subscription = await bus.subscribe(subject, slow)
    await bus.publish(subject, b"first")
    await bus.publish(subject, b"waits")
    await started.wait()
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await bus.publish(subject, b"later")
    assert await got.wait_for(1) == [b"first"]
    await settle(bus)
    assert len(got.messages) == 1


async def test_subscriptions_are_ready_when_subscribe_returns(connect: Connect) -> None:
    asker, answerer = await connect(), await connect()

    async def answer(message: Message) -> None:
        await answerer.publish(message.reply, b"here")

    for _ in range(30):
        subject = answerer.new_inbox()
        await answerer.subscribe(f"{subject}.*", answer, queue="q")
        answers = await asyncio.gather(
            *(asker.request(f"{subject}.{n}", b"", timeout_s=5) for n in range(20))
        )
        assert all(message.data == b"here" for message in answers)


async def test_close_waits_for_handlers_and_their_last_words(connect: Connect) -> None:
    listener, worker = await connect(), await connect()
    work, answers, got, started = worker.new_inbox(), worker.new_inbox(), Collector(), asyncio.Event()
    await listener.subscribe(answers, got)

    async def slow(message: Message) -> None:
        started.set()
        await asyncio.sleep(0.05)
        await worker.publish(answers, message.data)

    await worker.subscribe(work, slow)
    await listener.publish(work, b"bye")
    await started.wait()
    await worker.close()
    await worker.close()
    assert await got.wait_for(1) == [b"bye"]
    assert not worker.connected
    for call in (worker.publish("a", b""), worker.request("a", b"", timeout_s=1), worker.flush()):
        with pytest.raises(Unavailable):
            await call


async def test_cancelling_a_flush_harms_no_other_caller(bus: Bus) -> None:
    subject, got = bus.new_inbox(), Collector()
    await bus.subscribe(subject, got)
    task = asyncio.create_task(bus.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.02)
    await bus.publish(subject, b"alive")
    assert await got.wait_for(1) == [b"alive"]


async def test_memory_broker_gone_and_back() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, connect_wait_s=0.05)
    got = Collector()
    await bus.subscribe("a.b", got)
    broker.stop()
    assert not bus.connected
    with pytest.raises(Unavailable):
        await bus.publish("a.b", b"lost")
    with pytest.raises(Unavailable):
        await bus.subscribe("a.c", got)
    broker.start()
    await bus.publish("a.b", b"back")
    assert await got.wait_for(1) == [b"back"]
    await bus.close()


async def test_nats_gone_and_back(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    bus = await NatsBus.connect(server.url, name="test")
    subject, got = bus.new_inbox(), Collector()
    try:
        await bus.subscribe(subject, got)
        server.stop(kill=True)
        await until(lambda: not bus.connected)
        with pytest.raises(Unavailable) as caught:
            await bus.publish(subject, b"lost")
        assert caught.value.data["reason"] == "broker_unavailable"
        with pytest.raises(Unavailable):
            await bus.request(subject, b"lost", timeout_s=0.1)
        server.start()
        await until(lambda: bus.connected)
        await bus.publish(subject, b"back")
        assert await got.wait_for(1) == [b"back"]
        assert (bus.stats.disconnects, bus.stats.reconnects) == (1, 1)
    finally:
        await bus.close()
        server.stop()


async def test_nats_connection_that_the_broker_closes_with_an_error_is_made_again(tmp_path: Path) -> None:
    server = GuardedNats(tmp_path, "max_control_line: 1024")
    server.start()
    bus = await NatsBus.connect(server.url("router"), name="test")
    try:
        subject, got = bus.new_inbox(), Collector()
        await bus.subscribe(subject, got)
        await bus.publish("a" * 1500, b"")  # longer than what this broker reads
        await until(lambda: bus.stats.disconnects == 1)
        await until(lambda: bus.connected)
        await bus.publish(subject, b"back")
        assert await got.wait_for(1) == [b"back"]
    finally:
        await bus.close()
        server.stop()


async def test_connecting_to_nothing_says_what_to_do() -> None:
    with pytest.raises(Unavailable, match="RYZ_NATS_URL"):
        await NatsBus.connect("nats://127.0.0.1:9", name="test", connect_wait_s=0.3)


async def test_a_limited_subscription_costs_nothing_beyond_its_limit(connect: Connect) -> None:
    """Messages beyond the limit are dropped. Other subscriptions and later messages are delivered."""
    bus, sender, got, others = await connect(), await connect(), Collector(), Collector()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await bus.subscribe("flood.*", got, max_per_s=100)
    await bus.subscribe("other", others)
    for number in range(5_000):
        await sender.publish("flood.x", b"%d" % number)
    await sender.publish("other", b"")
    await others.wait_for(1)
    stats = bus.stats  # type: ignore[attr-defined]
    windows = 1 + int(loop.time() - began)  # more than one if the machine is slow
    assert 100 <= stats.received <= 250 * windows
    assert stats.throttled >= 1 or loop.time() - began >= WINDOW_S / 2
    async with asyncio.timeout(PATIENCE_S):
        while not any(message.subject == "flood.later" for message in got.messages):
            await sender.publish("flood.later", b"")
            await asyncio.sleep(0.02)


async def test_a_limited_subscription_says_what_to_do_about_a_flood(connect: Connect) -> None:
    bus, got = await connect(), Collector()
    await bus.subscribe("flood", got, max_per_s=10)
    with capture_logs() as logs:
        for _ in range(50):
            await bus.publish("flood", b"")
        await got.wait_for(10)
        await until(lambda: bus.stats.throttled >= 1)  # type: ignore[attr-defined]
    (warned,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warned["event"], warned["subject"]) == (
        "too many messages a second, the broker drops the others",
        "flood",
    )
    assert "RYZ_ROUTER_OUTSIDE_CALLS_S" in warned["remedy"]


async def test_a_limited_subscription_that_takes_samples_is_no_fault(connect: Connect) -> None:
    """Heartbeats are more than the pages and batches read: that is neither logged nor counted."""
    bus, got = await connect(), Collector()
    await bus.subscribe("beats", got, max_per_s=10, sampled=True)
    with capture_logs() as logs:
        for number in range(50):
            await bus.publish("beats", b"%d" % number)
        await got.wait_for(10)
        async with asyncio.timeout(PATIENCE_S):
            while not any(message.data == b"later" for message in got.messages):
                await bus.publish("beats", b"later")
                await asyncio.sleep(0.02)
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert bus.stats.throttled == 0  # type: ignore[attr-defined]


async def test_a_limited_subscription_loses_nothing_below_its_limit(connect: Connect) -> None:
    bus, sender, got = await connect(), await connect(), Collector()
    await bus.subscribe("calm", got, max_per_s=20)
    for number in range(60):  # 16 per second, below the limit of 20
        await sender.publish("calm", b"%d" % number)
        await asyncio.sleep(0.06)
    await until(lambda: len({message.data for message in got.messages}) == 60)
    assert bus.stats.throttled == 0  # type: ignore[attr-defined]


async def test_a_limited_subscription_that_ended_stays_so(connect: Connect) -> None:
    bus, sender, got = await connect(), await connect(), Collector()
    subscription = await bus.subscribe("flood", got, max_per_s=10)
    for _ in range(100):
        await sender.publish("flood", b"")
    await until(lambda: len(got.messages) >= 10)
    await subscription.unsubscribe()
    await asyncio.sleep(1.2)  # a renewal would have happened by now
    before = len(got.messages)
    await sender.publish("flood", b"")
    await settle(sender)
    await settle(bus)
    assert len(got.messages) == before


async def test_many_messages_of_one_subscription_let_other_tasks_run(connect: Connect) -> None:
    """Unless the bus yields, handlers that never await hold the event loop until the last message."""
    bus, sender = await connect(), await connect()
    handled = rounds = 0

    async def count(_: Message) -> None:
        nonlocal handled
        handled += 1

    await bus.subscribe("many", count)

    async def take_turns() -> None:
        nonlocal rounds
        while handled < 1_000:
            rounds += handled > 0
            await asyncio.sleep(0)

    taking = asyncio.create_task(take_turns())
    for _ in range(1_000):
        await sender.publish("many", b"")
    await asyncio.wait_for(taking, PATIENCE_S)
    assert rounds >= 1_000 // 64


async def test_a_broker_that_does_not_read_is_sent_no_more_than_a_bound(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    assert server.process is not None
    bus, got = await NatsBus.connect(server.url, name="test"), list[bytes]()
    sent = list[bytes]()
    try:
        await bus.subscribe("there", lambda message: got.append(message.data[:3]))
        server.process.send_signal(signal.SIGSTOP)
        for n in range(100, 400):  # 30 MB, more than sockets and the bus keep
            if bus.publish_now("there", b"%d" % n + bytes(100_000)):
                sent.append(b"%d" % n)
            await asyncio.sleep(0)
        assert len(sent) < 300
        server.process.send_signal(signal.SIGCONT)
        await bus.publish("there", b"end")
        await until(lambda: got[-1:] == [b"end"])
        assert got == [*sent, b"end"]
    finally:
        server.process.send_signal(signal.SIGCONT)
        await bus.close()
        server.stop()
