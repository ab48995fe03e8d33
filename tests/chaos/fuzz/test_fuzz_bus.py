"""Malformed messages on every subject, from the broker users that may publish there.

They bypass `NatsBus`, with reply subjects and headers that it would not send. Valid messages that services
must obey are left out: valid drains, and heartbeats and losses of the running groups. No user may publish on
`ryz.v1.broker.disconnect`, so that subject is not tested.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from shared import messages as m
from shared import subjects
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import Wire
from tests.kits.chaos.figures import record
from tests.kits.chaos.fuzz.fuzz_shapes import messages
from tests.kits.chaos.fuzz.fuzz_watch import Watch
from tests.kits.chaos.raw_nats import RawNats
from tests.kits.chaos.rounds import each_of
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(scaled(600, 14_400))
NUM_MESSAGES = scaled(300, 100_000)
MAX_PAYLOAD = 2**20  # bytes; a larger message ends the sender's connection
PACE = 50  # messages between two flushes
CHECKS = scaled(2, 20)
RUNNING = ("g0", "g1")


@dataclass(frozen=True)
class Target:
    """A subject under test.

    Attributes:
        subject: The subject.
        user: The broker user that publishes.
        kind: The message that the service expects.
        answered: Whether every message gets an answer.
        spared: Whether a message is left out.
    """

    subject: str
    user: str
    kind: type[Wire]
    answered: bool = False
    spared: Callable[[Wire], bool] = lambda message: False


class Shot(NamedTuple):
    """One message to send."""

    target: Target
    data: bytes
    reply: str
    headers: bytes


def of_running_group(message: Wire) -> bool:
    return getattr(message, "group", "") in RUNNING


def of_other_instance(message: Wire) -> bool:
    """Whether the message names an instance; leaders leave it to that instance."""
    return bool(getattr(message, "instance_id", ""))


OUTSIDE = subjects.OutsideService("outside", "outside")
TARGETS = (
    Target(subjects.generate("demo", OUTSIDE), "outside", m.GenerateRequest),
    Target(subjects.generate("demo"), "gateway", m.GenerateRequest),
    Target(subjects.generate("no such model", OUTSIDE), "outside", m.GenerateRequest),
    Target(subjects.work("g0"), "router", m.Work),
    Target(subjects.resend("g0", OUTSIDE), "outside", m.Resend, answered=True, spared=of_other_instance),
    Target(subjects.resend("g0"), "gateway", m.Resend, answered=True, spared=of_other_instance),
    Target(subjects.cancel("g0", OUTSIDE), "outside", m.Cancel),
    Target(subjects.cancel_all(OUTSIDE), "outside", m.Cancel),
    Target(subjects.tokenize("demo", OUTSIDE), "outside", m.TokenizeQuery, answered=True),
    Target(subjects.detokenize("demo", OUTSIDE), "outside", m.DetokenizeQuery, answered=True),
    Target(subjects.tokenize("demo"), "gateway", m.TokenizeQuery, answered=True),
    Target(subjects.models(OUTSIDE), "outside", m.ListModels, answered=True),
    Target(subjects.CANCEL_ALL, "gateway", m.Cancel),
    Target(subjects.ATTACH, "gateway", m.Attach),
    Target(subjects.heartbeat("g0"), "worker", m.Heartbeat, spared=of_running_group),
    Target(subjects.heartbeat("g7"), "worker", m.Heartbeat, spared=of_running_group),
    Target(subjects.GROUP_DOWN, "router", m.GroupDown, spared=of_running_group),
    Target(subjects.drain("g0"), "cli", m.DrainGroup, spared=lambda message: True),
    Target(subjects.drain("nobody"), "cli", m.DrainGroup),
    Target(subjects.limit_kv("g0"), "host", m.LimitKV, answered=True),
    Target(subjects.MODELS, "cli", m.ListModels, answered=True),
    Target(subjects.STATUS, "cli", m.StatusQuery),
    Target(subjects.EXPLAIN, "cli", m.ExplainQuery),
    Target(subjects.PROFILE, "cli", m.ProfileQuery),
    Target(subjects.SESSION_GET, "worker", m.SessionGet, answered=True),
    Target(subjects.SESSION_COMMIT, "worker", m.SessionCommit, answered=True),
    Target(subjects.SESSION_LIST, "gateway", m.SessionList, answered=True),
    Target(subjects.SESSION_DELETE, "gateway", m.SessionDelete, answered=True),
    Target(subjects.SESSION_DESCRIBE, "gateway", m.SessionDescribe, answered=True),
    Target(subjects.SESSION_PIN, "gateway", m.SessionPin, answered=True),
    Target(subjects.RESPONSE_PUT, "gateway", m.ResponsePut, answered=True),
    Target(subjects.RESPONSE_GET, "gateway", m.ResponseGet, answered=True),
    Target(subjects.RESPONSE_CHAIN, "gateway", m.ResponseChainQuery, answered=True),
    Target(subjects.RESPONSE_LEASE, "gateway", m.ResponseLease, answered=True),
    Target(subjects.RESPONSE_CLAIM, "gateway", m.ResponseClaim, answered=True),
    Target(subjects.RESPONSE_DELETE, "gateway", m.ResponseDelete, answered=True),
    Target(subjects.LOAD_ADAPTER, "cli", m.LoadAdapterCall, answered=True),
    Target(subjects.UNLOAD_ADAPTER, "cli", m.UnloadAdapterCall, answered=True),
    Target(subjects.ADAPTERS, "cli", m.AdapterList, answered=True),
    Target(subjects.ADAPTER_PUT, "router", m.AdapterPut, answered=True),
    Target(subjects.ADAPTER_DELETE, "router", m.AdapterDelete, answered=True),
    Target(subjects.ADAPTER_CHANGED, "kvstate", m.AdapterChanged),
    Target(subjects.PINS, "router", m.PinList, answered=True),
    Target(subjects.BLOCKS_FIND, "worker", m.BlocksFind, answered=True),
    Target(subjects.BLOCKS_COMMIT, "worker", m.BlocksCommit, answered=True),
    Target(subjects.SESSION_TURNS, "worker", m.SessionTurns),
    Target(subjects.SESSION_PINNED, "kvstate", m.Pinned),
    Target(subjects.SESSION_GONE, "kvstate", m.SessionGone),
    Target(subjects.SESSION_ROUTE, "cli", m.SessionRouteQuery, answered=True),
    Target(subjects.KV_HOLDERS, "gateway", m.HoldersQuery),
    Target(subjects.KV_FOLLOW, "indexer", m.KVFollow),
    Target(subjects.kv_replay("g0"), "indexer", m.KVReplay),
    Target(subjects.kv_snapshot("g0"), "indexer", m.KVSnapshotQuery),
    Target(subjects.peer("g0"), "worker", m.SessionGet, answered=True),
    Target(subjects.warm("g0"), "gateway", m.WarmSession, answered=True),
)
REPLIES = (
    "", "_INBOX.worker.x", "_INBOX.outside.x", "ryz.v1.cancel", "ryz.v1.work.g0",
    "ryz.v1.kvstate.session.get",
    "$SYS.REQ.SERVER.PING", "a", "é", "_INBOX." + "x" * 1000, "_INBOX.gateway." + ".".join("abcdefgh" * 8),
)  # fmt: skip
HEADERS = (
    b"Ryz-Timeout-Ms", b"ryz-timeout-ms", b"traceparent", b"tracestate", b"Status", b"Nats-Msg-Id",
    b"\xff\xfe", b"",
)  # fmt: skip
HEADER_VALUES = (
    b"", b"0", b"1", b"-1", b"50", b"5000", b"1e9", b"nan", b"9" * 40, b"9" * 5000, b"604800000",
    b"604800001", b"1_000",
    b" 7 ", "٣".encode(), b"\xff", b"\0", b"503", b"x" * 3000, b"a: b",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00",
    b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"a=1,b=2," * 40,
)  # fmt: skip
_lines = st.tuples(
    st.sampled_from(HEADERS) | st.binary(max_size=8), st.sampled_from(HEADER_VALUES) | st.binary(max_size=24)
).map(b": ".join)
headers = st.just(b"") | st.lists(_lines | st.binary(max_size=24), max_size=4).map(b"\r\n".join)


def is_spared(target: Target, data: bytes) -> bool:
    try:
        return target.spared(decode(data, target.kind))
    except InvalidRequest:
        return False


@st.composite
def shots(draw: st.DrawFn) -> Shot:
    target = draw(st.sampled_from(TARGETS))
    head = draw(headers)
    data = draw(messages(target.kind.__name__))[: MAX_PAYLOAD - len(head) - 64]
    while is_spared(target, data):  # a hypothesis filter would reject nearly all messages of such a target
        data = data[:-1]
    reply = "answer" if draw(st.booleans()) else draw(st.sampled_from(REPLIES))
    return Shot(target, data, reply, head)


class Gun:
    """Sends each shot as its user, and counts the answers that must come."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._users: dict[str, RawNats] = {}
        self._due: dict[str, set[str]] = {}
        self._subjects: dict[str, str] = {}
        self.fired = 0

    async def load(self) -> None:
        for user in {target.user for target in TARGETS}:
            self._users[user] = await RawNats.connect(self._stack.state.broker(user))

    async def fire(self, shot: Shot) -> None:
        self.fired += 1
        raw, reply = self._users[shot.target.user], shot.reply
        if reply == "answer":
            reply = f"{raw.inbox}.{self.fired}"
            if shot.target.answered:
                self._due.setdefault(raw.user, set()).add(str(self.fired))
                self._subjects[str(self.fired)] = shot.target.subject
        raw.publish(shot.target.subject, shot.data, reply.encode(), shot.headers)
        if self.fired % PACE == 0:
            for each in self._users.values():
                assert not each.lost, each.refusals[-3:]
                await each.flush()
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Waits until every message that needs an answer has one."""
        give_up = time.monotonic() + PATIENCE_S
        while self.unanswered() and time.monotonic() < give_up:  # noqa: ASYNC110 (no event tells of answers)
            await asyncio.sleep(0.05)
        missing = {self._subjects[number] for number in self.unanswered()}
        assert not missing
        assert not any(raw.lost for raw in self._users.values())

    def unanswered(self) -> set[str]:
        return {
            number
            for user, numbers in self._due.items()
            for number in numbers
            if number not in self._users[user].answers
        }

    def refusals(self) -> set[str]:
        return {refusal for raw in self._users.values() for refusal in raw.refusals}

    async def unload(self) -> None:
        for raw in self._users.values():
            await raw.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups with null engines and a short retention of answers."""
    options = ("--engine", "null", "--log-level", "info")
    env = {"RYZ_RETENTION_S": "2"}
    with Stack(tmp_path_factory.mktemp("fuzz-stack"), *options, env=env, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def test_no_message_kills_or_stops_a_service(stack: Stack) -> None:
    watch, gun = Watch(stack), Gun(stack)

    def fire(shot: Shot) -> None:
        runner.run(gun.fire(shot))
        if gun.fired % (NUM_MESSAGES // CHECKS) == 0:
            runner.run(gun.settle())
            runner.run(asyncio.to_thread(watch.check))  # in a thread, so that pings are answered

    with asyncio.Runner() as runner:
        runner.run(gun.load())
        try:
            each_of(shots(), NUM_MESSAGES, fire)
            runner.run(gun.settle())
        finally:
            runner.run(gun.unload())
    record("fuzz_bus", messages=gun.fired, subjects=len({target.subject for target in TARGETS}))
    assert gun.fired > NUM_MESSAGES * 0.9
    # a target whose subject the broker refuses is not tested; only reply subjects may be refused
    refused = {refusal for refusal in gun.refusals() if "Publish to" in refusal}
    assert not refused & {f"'Permissions Violation for Publish to \"{t.subject}\"'" for t in TARGETS}
    watch.check_at_rest()
