"""Permissions of every user in `deploy/nats.conf` on every subject, against a real broker.

The table lists permissions by subject, like docs/protocol.md; the configuration lists them by user.
A mistake in either one fails a test.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import nats
import pytest
from nats.aio.client import Client

from services.router.domain.groups.loss import read_disconnect
from shared import streams, subjects
from shared.bus import Message, RequestTimedOut
from shared.bus.accounts import ACCOUNTS, RESPONSE_CALLS, BusAccount, inbox_prefix, user_of, with_user
from shared.bus.nats import NatsBus
from shared.errors import InvalidRequest, Unavailable
from shared.subjects import OutsideService
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.servers import GuardedNats
from tests.kits.waiting import PATIENCE_S

LEADERS, ROUTERS, KVSTATE = {"worker"}, {"router"}, {"kvstate"}
CALLERS, OUTSIDE = {"gateway"}, {"outside"}
OURS = OutsideService("outside", "outside")
THEIRS = (
    OutsideService("default", "outside"),
    OutsideService("outside", "billing"),
    OutsideService("acme", "billing"),
)
SERVICES = {"gateway", "router", "worker", "kvstate"}

# subject: (users that may publish, users that may read)
TABLE: dict[str, tuple[set[str], set[str]]] = {
    subjects.generate("demo"): (CALLERS, ROUTERS),
    subjects.generate("acme/llama 3"): (CALLERS, ROUTERS),
    subjects.again("demo"): (CALLERS, ROUTERS),
    subjects.work("g0"): (ROUTERS, LEADERS),
    subjects.resend("g0"): (CALLERS, LEADERS),
    subjects.cancel("g0"): (CALLERS, LEADERS),
    subjects.CANCEL_ALL: (CALLERS, LEADERS),
    subjects.generate("demo", OURS): (OUTSIDE, ROUTERS),
    subjects.again("demo", OURS): (OUTSIDE, ROUTERS),
    subjects.resend("g0", OURS): (OUTSIDE, LEADERS),
    subjects.cancel("g0", OURS): (OUTSIDE, LEADERS),
    subjects.cancel_all(OURS): (OUTSIDE, LEADERS),
    subjects.tokenize("demo"): (CALLERS, LEADERS),
    subjects.detokenize("demo"): (CALLERS, LEADERS),
    subjects.tokenize("demo", OURS): (OUTSIDE, LEADERS),
    subjects.detokenize("demo", OURS): (OUTSIDE, LEADERS),
    subjects.models(OURS): (OUTSIDE, ROUTERS),
    **{subjects.tokenize("demo", caller): (set(), LEADERS) for caller in THEIRS},
    **{subjects.models(caller): (set(), ROUTERS) for caller in THEIRS},
    # callers of another tenant or user: no user of this broker may publish here
    **{subjects.generate("demo", caller): (set(), ROUTERS) for caller in THEIRS},
    **{subjects.again("demo", caller): (set(), ROUTERS) for caller in THEIRS},
    **{subjects.resend("g0", caller): (set(), LEADERS) for caller in THEIRS},
    **{subjects.cancel("g0", caller): (set(), LEADERS) for caller in THEIRS},
    **{subjects.cancel_all(caller): (set(), LEADERS) for caller in THEIRS},
    **{
        subjects.batch_call(name, OURS): (OUTSIDE, {"gateway"})
        for name in ("files.put", "files.query", "batches.create", "batches.query")
    },
    **{subjects.batch_call("files.put", caller): (set(), {"gateway"}) for caller in THEIRS},
    subjects.batch_call("files.put"): (set(), {"gateway"}),
    subjects.ATTACH: ({"gateway"}, LEADERS),
    subjects.heartbeat("g0"): (LEADERS, ROUTERS | {"gateway"}),
    **{
        subject: ({"gateway"}, set())
        for subject in (
            streams.batch_record("t", "b"),
            streams.batch_line("b", 1),
            streams.batch_result("b", 1),
            streams.file_pieces("x"),
            streams.file_known("x"),
        )
    },
    subjects.GROUP_DOWN: (ROUTERS, ROUTERS | LEADERS | {"gateway"}),
    subjects.ROUTER_ALIVE: (ROUTERS, ROUTERS),
    subjects.OUTSIDE_RUNNING: (LEADERS, ROUTERS),
    subjects.drain("g0"): ({"cli", "host"}, LEADERS),
    subjects.limit_kv("g0"): ({"host"}, LEADERS),
    subjects.HOST_REPORT: ({"host"}, ROUTERS),
    subjects.start_group("h"): (ROUTERS, {"host"}),
    subjects.stop_group("h"): (ROUTERS, {"host"}),
    subjects.limit_hosted_kv("h"): (ROUTERS, {"host"}),
    subjects.MANAGE_MODEL: ({"gateway", "cli"}, {"host"}),
    subjects.PUT_MODEL: ({"gateway", "cli"}, {"host"}),
    subjects.LEASE: (ROUTERS, KVSTATE),
    **dict.fromkeys((subjects.LOAD_ADAPTER, subjects.UNLOAD_ADAPTER), ({"gateway", "cli", "host"}, ROUTERS)),
    subjects.inspect_adapter("demo"): (ROUTERS, LEADERS),
    **dict.fromkeys((subjects.ADAPTER_PUT, subjects.ADAPTER_DELETE), (ROUTERS, KVSTATE)),
    subjects.ADAPTERS: (ROUTERS | {"gateway", "cli"}, KVSTATE),
    subjects.ADAPTER_CHANGED: (KVSTATE, ROUTERS | {"gateway"}),
    **dict.fromkeys((subjects.ACCOUNT_CHANGE, subjects.AUDIT, subjects.USAGE), ({"gateway", "cli"}, KVSTATE)),
    subjects.ACCOUNTS: (ROUTERS | KVSTATE | {"gateway", "cli"}, KVSTATE),
    subjects.ACCOUNT_CHANGED: (KVSTATE, ROUTERS | KVSTATE | {"gateway"}),
    subjects.LEASE_LIMITS: (ROUTERS | {"gateway"}, KVSTATE),
    subjects.TENANT_ERASE: ({"gateway"}, KVSTATE),
    streams.usage("acme"): (LEADERS | KVSTATE | {"gateway"}, set()),
    streams.account_record("key.k"): (KVSTATE, set()),
    streams.audit_entry(): (KVSTATE, set()),
    streams.usage_sum("2026-11-28", "acme", "k m"): (KVSTATE, set()),
    subjects.BROKER_DISCONNECT: (set(), ROUTERS),
    subjects.MODELS: ({"gateway", "cli", "host"}, ROUTERS),
    subjects.STATUS: ({"cli", "gateway"}, SERVICES),
    subjects.EXPLAIN: ({"cli"}, SERVICES),
    subjects.PROFILE: ({"cli"}, LEADERS),
    "$SRV.PING": ({"cli"}, SERVICES),
    "$SRV.INFO.ryz-router.r1": ({"cli"}, SERVICES),
    subjects.complete("demo", OURS): (OUTSIDE, {"gateway"}),
    subjects.complete("demo"): (set(), {"gateway"}),
    **{subjects.complete("demo", caller): (set(), {"gateway"}) for caller in THEIRS},
    subjects.SESSION_GET: (LEADERS | ROUTERS | {"gateway"}, KVSTATE),
    subjects.SESSION_COMMIT: (LEADERS | {"gateway"}, KVSTATE),
    subjects.SESSION_LIST: ({"gateway"}, KVSTATE),
    subjects.SESSION_DELETE: ({"gateway"}, KVSTATE),
    subjects.SESSION_DESCRIBE: ({"gateway"}, KVSTATE),
    subjects.SESSION_PIN: ({"gateway"}, KVSTATE),
    subjects.PINS: (ROUTERS, KVSTATE),
    **dict.fromkeys(RESPONSE_CALLS, ({"gateway"}, KVSTATE)),
    subjects.BLOCKS_FIND: (LEADERS | {"cli"}, KVSTATE),
    subjects.BLOCKS_COMMIT: (LEADERS, KVSTATE),
    subjects.SESSION_TURNS: (LEADERS, ROUTERS | {"gateway"}),
    subjects.SESSION_PINNED: (KVSTATE, ROUTERS),
    subjects.SESSION_GONE: (KVSTATE, LEADERS | ROUTERS),
    subjects.SESSION_ROUTE: ({"gateway", "cli"}, ROUTERS),
    subjects.KV_HOLDERS: ({"gateway", "cli"}, LEADERS),
    subjects.peer("g0"): (LEADERS, LEADERS),
    subjects.warm("g0"): ({"gateway"}, LEADERS),
    subjects.kv_events("g0"): (LEADERS, {"indexer"}),
    **dict.fromkeys(
        (subjects.KV_FOLLOW, subjects.kv_replay("g0"), subjects.kv_snapshot("g0")), ({"indexer"}, LEADERS)
    ),
    # inboxes: leaders and routers publish to all, each user reads its own; kvstate and gateways only reply
    **{f"_INBOX.{user}.x.1": (LEADERS | ROUTERS, {user}) for user in ACCOUNTS},
    **dict.fromkeys(("_INBOX.x.1", "_INBOX.outside"), (LEADERS | ROUTERS, set())),
}
QUEUES = {
    **{subject: subjects.GATEWAY_QUEUE for subject in TABLE if ".complete." in subject},
    **dict.fromkeys((subjects.generate("demo"), subjects.generate("acme/llama 3")), subjects.ROUTER_QUEUE),
    **{subjects.generate("demo", caller): subjects.ROUTER_QUEUE for caller in (OURS, *THEIRS)},
    **{
        subject: subjects.GATEWAY_QUEUE for subject in TABLE if ".files." in subject or ".batches." in subject
    },
    **{
        subject: subjects.TOKENIZE_QUEUE
        for subject in TABLE
        if "tokenize." in subject or ".inspect." in subject
    },
    **dict.fromkeys(
        (subjects.LOAD_ADAPTER, subjects.UNLOAD_ADAPTER, subjects.OUTSIDE_RUNNING), subjects.ROUTER_QUEUE
    ),
    **{subject: subjects.KVSTATE_QUEUE for subject in TABLE if subject.startswith("ryz.v1.kvstate.")},
}
NOT_OURS = [
    "anything", "ryz.v1.unknown", "ryz.v2.generate.demo", "ryz.v1.generate.demo.more", "ryz.v1.generate",
    "$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.RYZ.DISCONNECT", "$JS.API.INFO",
]  # fmt: skip
WILDCARDS = [
    ">", "*", "ryz.>", "ryz.v1.>", "ryz.v1.*", "ryz.v1.*.*", "ryz.v1.kvstate.>", "ryz.v1.heartbeat.*",
    "ryz.v1.work.*",
    "ryz.v1.tenant.>", "ryz.v1.tenant.*.*.>", "ryz.v1.tenant.outside.>", "ryz.v1.tenant.outside.*.>",
    "_INBOX.>", "_INBOX.*.>", "_INBOX.*.*", "$SYS.>", "$JS.>",
]  # fmt: skip


class Tried:
    """A connection of one user that records the errors of the broker."""

    def __init__(self, client: Client, errors: list[str]) -> None:
        self.client = client
        self._errors = errors

    async def may_publish(self, subject: str) -> bool:
        return await self._allowed(self.client.publish(subject, b""))

    async def may_read(self, subject: str, queue: str = "") -> bool:
        return await self._allowed(self.client.subscribe(subject, queue=queue))

    async def _allowed(self, doing: object) -> bool:
        self._errors.clear()
        await doing  # type: ignore[misc]
        for _ in range(2):  # nats-py may send its first PING before the buffered commands
            await self.client.flush()  # the broker sends the error before its PONG
        assert all("permissions violation" in error for error in self._errors), self._errors
        return not self._errors


@asynccontextmanager
async def tried(broker: GuardedNats, user: str) -> AsyncIterator[Tried]:
    errors: list[str] = []

    async def failed(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(broker.url(user), error_cb=failed, inbox_prefix=inbox_prefix(user))
    yield Tried(client, errors)
    await client.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNats]:
    server = GuardedNats(tmp_path_factory.mktemp("guarded"))
    server.start()
    yield server
    server.stop()


def test_every_subject_is_in_the_table() -> None:
    plain = {
        value for value in vars(subjects).values() if isinstance(value, str) and value.startswith("ryz.v1.")
    } - {subjects.TENANTS}
    each = {value for value in plain if not value.endswith("*")}
    assert each <= set(TABLE)
    made = (subjects.work, subjects.cancel, subjects.resend, subjects.peer, subjects.warm, subjects.drain,
            subjects.heartbeat)  # fmt: skip
    assert {make("g0") for make in made} <= set(TABLE)
    for_outside = (subjects.cancel, subjects.resend)
    assert {make("g0", OURS) for make in for_outside} <= set(TABLE)
    of_models = (subjects.generate, subjects.tokenize, subjects.detokenize)
    assert {make("demo", caller) for make in of_models for caller in (None, OURS)} <= set(TABLE)
    assert subjects.cancel_all(OURS) in TABLE


@pytest.mark.parametrize("user", list(ACCOUNTS))
async def test_publishing(broker: GuardedNats, user: str) -> None:
    async with tried(broker, user) as mine:
        allowed = {subject: await mine.may_publish(subject) for subject in TABLE}
    assert allowed == {subject: user in publishers for subject, (publishers, _) in TABLE.items()}


@pytest.mark.parametrize("user", list(ACCOUNTS))
async def test_reading(broker: GuardedNats, user: str) -> None:
    async with tried(broker, user) as mine:
        allowed = {subject: await mine.may_read(subject, QUEUES.get(subject, "")) for subject in TABLE}
        alone = {subject: await mine.may_read(subject) for subject in QUEUES}
    assert allowed == {subject: user in readers for subject, (_, readers) in TABLE.items()}
    assert not any(alone.values()), "one more reader would have a copy of what the queue group shares"


@pytest.mark.parametrize("user", list(ACCOUNTS))
async def test_no_user_reads_what_is_not_its_own_by_a_wildcard(broker: GuardedNats, user: str) -> None:
    permitted = {subject.partition(" ")[0] for subject in ACCOUNTS[user].read}
    async with tried(broker, user) as mine:
        for pattern in WILDCARDS:
            assert await mine.may_read(pattern) is (pattern in permitted), pattern
        for subject in NOT_OURS:
            assert not await mine.may_read(subject), subject
            assert not await mine.may_publish(subject), subject
        assert await mine.may_read(f"_INBOX.{user}.>")


REFUSED_OUTSIDE = [
    *(("publish", subject) for subject, (who, _) in TABLE.items() if "outside" not in who),
    *(("read", subject) for subject, (_, who) in TABLE.items() if "outside" not in who),
    *(("publish", subject) for subject in NOT_OURS),
    *(("read", subject) for subject in NOT_OURS + WILDCARDS),
]


@pytest.mark.parametrize(("how", "subject"), REFUSED_OUTSIDE)
async def test_a_service_outside_is_refused(broker: GuardedNats, how: str, subject: str) -> None:
    async with tried(broker, "outside") as mine:
        assert not await (mine.may_publish(subject) if how == "publish" else mine.may_read(subject))
        if subject in QUEUES and how == "read":
            assert not await mine.may_read(subject, QUEUES[subject])


async def test_what_a_service_outside_is_for(broker: GuardedNats) -> None:
    """An outside service sends a request; a router answers into its inbox."""
    async with AsyncExitStack() as stack:
        buses = {}
        for name in ("outside", "router", "other"):
            user = name if name in ACCOUNTS else "outside"
            buses[name] = await NatsBus.connect(broker.url(user), name=name)
            stack.push_async_callback(buses[name].close)

        async def answer(message: Message) -> None:
            await buses["router"].publish(message.reply, b"answered")

        await buses["router"].subscribe(
            subjects.generate_all(subjects.ANY_CALLER), answer, queue=subjects.ROUTER_QUEUE
        )
        reply = await buses["outside"].request(subjects.generate("demo", OURS), b"", timeout_s=PATIENCE_S)
        assert reply.data == b"answered"
        assert reply.subject.startswith("_INBOX.outside.")
        # a refused publish gets no answer
        with pytest.raises(RequestTimedOut):
            await buses["outside"].request(subjects.SESSION_LIST, b"", timeout_s=0.2)


async def test_the_store_answers_those_who_asked(broker: GuardedNats) -> None:
    """The store may only reply (see the table), also to several requests with one reply inbox."""
    async with AsyncExitStack() as stack:
        leader, store = [await NatsBus.connect(broker.url(user), name=user) for user in ("worker", "kvstate")]
        stack.push_async_callback(leader.close)
        stack.push_async_callback(store.close)
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(message: Message) -> None:
            await store.publish(message.reply, message.data)

        async def collect(message: Message) -> None:
            got.put_nowait(message.data)

        await store.subscribe(subjects.SESSION_GET, answer, queue=subjects.KVSTATE_QUEUE)
        inbox = leader.new_inbox()
        await leader.subscribe(inbox, collect)
        for number in range(50):
            await leader.publish(subjects.SESSION_GET, b"%d" % number, reply=inbox)
        async with asyncio.timeout(PATIENCE_S):
            assert [await got.get() for _ in range(50)] == [b"%d" % number for number in range(50)]


async def test_routers_hear_of_a_connection_that_is_gone(broker: GuardedNats) -> None:
    async with AsyncExitStack() as stack:
        router = await NatsBus.connect(broker.url("router"), name="router/r0")
        stack.push_async_callback(router.close)
        gone: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

        async def on_report(message: Message) -> None:
            name = json.loads(message.data)["client"]["name"]
            if name.startswith("worker/i-"):  # clients of the previous test may still disconnect
                gone.put_nowait((name, read_disconnect(message.data) is not None))

        await router.subscribe(subjects.BROKER_DISCONNECT, on_report)
        liar = await NatsBus.connect(broker.url("outside"), name="worker/i-2")
        await liar.close()
        beside = await NatsBus.connect(broker.url("worker"), name="worker/i-1/outside")
        await beside.close()
        proxy = await stack.enter_async_context(TcpProxy(broker.port))
        url = broker.url("worker").replace(str(broker.port), str(proxy.port))
        leader = await NatsBus.connect(url, name="worker/i-1")
        proxy.cut(refuse=True)  # closed abruptly
        async with asyncio.timeout(PATIENCE_S):
            assert [await gone.get() for _ in range(3)] == [
                ("worker/i-2", False),
                ("worker/i-1/outside", False),
                ("worker/i-1", True),
            ]
        await leader.close()


@pytest.mark.parametrize("given", ["", "router:wrong", "nobody:x", "router"])
async def test_a_refused_user_is_told_and_does_not_wait(broker: GuardedNats, given: str) -> None:
    at = f"127.0.0.1:{broker.port}"
    url = f"nats://{given}@{at}" if given else f"nats://{at}"
    with pytest.raises(InvalidRequest, match="RYZ_NATS_URL") as caught:
        await NatsBus.connect(url, name="test", connect_wait_s=60)
    assert "wrong" not in caught.value.message
    assert user_of(url) in caught.value.message


async def test_a_broker_that_knows_us_no_more_is_tried_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A client keeps reconnecting after a restart with other passwords, since these may be corrected."""
    server = GuardedNats(tmp_path_factory.mktemp("changed"))
    server.start()
    bus = await NatsBus.connect(server.url("router"), name="test")
    try:
        right, variable = dict(server.env), ACCOUNTS["router"].password_variable
        server.stop()
        server.env = right | {variable: "pother"}
        server.start()
        await asyncio.sleep(0.5)
        assert not bus.connected
        server.stop()
        server.env = right
        server.start()
        for _ in range(2):  # each flush waits up to ten seconds for a connection
            with suppress(Unavailable):
                await bus.flush()
        assert bus.connected
    finally:
        await bus.close()
        server.stop()


async def test_messages_are_bounded(broker: GuardedNats) -> None:
    async with tried(broker, "outside") as mine:
        assert mine.client.max_payload == 2**20


async def test_overlapping_subscriptions_are_bounded(broker: GuardedNats) -> None:
    """Every overlapping subscription receives a copy of each frame; the broker allows 1024 per client."""
    router = await NatsBus.connect(broker.url("router"), name="router")
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        me = {"user": "outside", "pass": broker.passwords["outside"], "verbose": False, "protocol": 1}
        writer.write(b"CONNECT %s\r\n" % json.dumps(me).encode())
        writer.write(b"".join(b"SUB _INBOX.outside.> %d\r\n" % number for number in range(1, 1201)))
        writer.write(b"PING\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"PONG\r\n")
            await router.publish("_INBOX.outside.x", b"frame")
            await router.flush()
            writer.write(b"PING\r\n")
            got = await reader.readuntil(b"PONG\r\n")
        assert got.count(b"MSG _INBOX.outside.x ") == 1024
    finally:
        writer.close()
        await router.close()


def test_inboxes_and_urls() -> None:
    assert inbox_prefix("") == "_INBOX"
    assert inbox_prefix("a.b>") == "_INBOX.a=2Eb=3E"
    assert user_of("nats://secret-token@h:1") == "", "a token is no name to show"
    assert user_of("nats://a:b@h:1, nats://c:d@h:2") == "a"
    assert with_user("tls://old:word@h:1", "a", "b") == "tls://a:b@h:1"
    assert BusAccount("x", "", ()).inbox == "_INBOX.x.>"
