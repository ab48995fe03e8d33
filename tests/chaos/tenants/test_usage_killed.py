"""Services are killed while requests run by every API: the sums of usage are those of each request, once.

The counts of an answer follow from its request, and the answer tells them. What was answered has to be in the
ledger with these counts, what failed at most once each, and the sums have to be those of the ledger.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.stack.state import StackState
from shared import codec, streams
from shared.bus.accounts import inbox_prefix
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.client.calls.usage_client import UsageClient
from shared.messages import UsageRecord, UsageRecords, UsageSum
from tests.kits.chaos.batch_client import BatchCaller
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import full, scaled
from tests.kits.chaos.services import PATIENT, await_next, kill
from tests.kits.chaos.usage_doors import CUT_TOKENS, Ask, Doors, Used, try_until_served
from tests.kits.e2e.stack import Stack
from tests.kits.gateway.batch_stack import chat_lines
from tests.kits.servers import free_port
from tests.kits.waiting import until

pytestmark = pytest.mark.timeout(scaled(300, 2400))
REQUESTS, LINES = scaled(220, 9000), scaled(40, 1000)
AT_ONCE = scaled(8, 16)
VICTIMS = ("gateway", "nats", "worker-g0", "redis", "worker-g1", "kvstate")
KILLS = scaled(4, 60)  # ten of each
SETTLED_S = scaled(60.0, 240.0)
Counts = tuple[int, int, int]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[tuple[Stack, int]]:
    port = free_port()
    options = ("--engine", "null", "--groups", "2", "--grpc-port", str(port))
    settings = PATIENT | {"RYZ_NULL_STEP_DELAY_MS": "2"}
    with Stack(tmp_path, *options, env=settings, calm=False) as running:
        yield running.await_ready(), port
        assert running.end() == 0


def url_of(state: StackState, user: str) -> str:
    return state.nats_urls[user]


async def connected(stack: Stack, user: str) -> NatsBus:
    return await NatsBus.connect(url_of(stack.state, user), name="test", inbox=inbox_prefix(user))


async def read_ledger(stack: Stack) -> dict[str, list[UsageRecord]]:
    """All records by the id of the request."""
    bus = await connected(stack, "kvstate")
    jetstream, found, after = JetStream(bus), dict[str, list[UsageRecord]](), 0
    try:
        while page := await jetstream.read(streams.USAGE_STREAM, streams.usage("*"), after, 1000):
            for message in page:
                for one in codec.decode(message.data, UsageRecords).records:
                    found.setdefault(one.request_id, []).append(one)
            after = page[-1].seq
        await jetstream.stop()
    finally:
        await bus.close()
    return found


async def read_sums(stack: Stack) -> list[UsageSum]:
    bus = await connected(stack, "cli")
    try:
        return (await UsageClient(bus).read_sums()).sums
    finally:
        await bus.close()


def counts_of(one: UsageRecord) -> Counts:
    return one.prompt_tokens, one.completion_tokens, one.embedded_tokens


def best_of(records: list[UsageRecord]) -> UsageRecord:
    return max(records, key=lambda one: (one.outcome == "done", one.completion_tokens, one.prompt_tokens))


def total(all_counts: list[Counts]) -> tuple[int, ...]:
    return (len(all_counts), *(sum(column) for column in zip(*all_counts, strict=True)))


def total_of_sums(sums: list[UsageSum]) -> tuple[int, ...]:
    names = ("requests", "prompt_tokens", "completion_tokens", "embedded_tokens")
    return tuple(sum(getattr(one, name) for one in sums) for name in names)


async def kill_some(stack: Stack, answered: list[Any], order: random.Random) -> Counter[str]:
    """Kills services one after another while requests run."""
    killed: Counter[str] = Counter()
    for number in range(KILLS):
        due = REQUESTS * (number + 1) // (KILLS + 2)
        await until(lambda due=due: len(answered) >= due, timeout_s=SETTLED_S)  # type: ignore[misc]
        victim = VICTIMS[number % len(VICTIMS)]
        await asyncio.sleep(order.random() * 0.2)
        await asyncio.to_thread(await_next, stack, victim, kill(stack, victim))
        killed[victim] += 1
    return killed


def unequal_of(
    wanted: dict[str, tuple[str, Ask, Used]],
    best: dict[str, UsageRecord],
    expected: dict[tuple[str, str], tuple[int, int]],
) -> list[Any]:
    """What the ledger, or an answer itself, tells of a request otherwise than follows from it."""
    unequal: list[Any] = []
    for request_id, (name, ask, used) in wanted.items():
        if name == "cut":
            found = best.get(request_id)
            if found is not None and not 1 <= found.completion_tokens <= CUT_TOKENS:
                unequal.append((name, found))
            continue
        prompt, embedded = expected[name, ask.text]
        tokens = 0 if embedded else max(16, ask.tokens) if name == "responses" else ask.tokens
        found = best[request_id]
        known = (prompt, tokens, embedded)
        if counts_of(found) != known or (used.prompt, used.completion, used.embedded) != known:
            unequal.append((name, ask, used, found))
        if found.outcome != "done":
            unequal.append((name, found.outcome))
    return unequal


async def test_sums_are_those_of_each_request_once(stack: tuple[Stack, int]) -> None:
    running, grpc_port = stack
    state = running.state
    doors = Doors(lambda: running.state.url, grpc_port, state.nats_url, url_of(state, "gateway"))
    by_name = doors.all()
    order = random.Random(5)
    texts = ["Hello", "Tell me of it.", "x" * 40, "What is the name of the river?"]
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    answered: list[tuple[str, Ask, Used]] = []
    failures: list[str] = []
    for name, door in by_name.items():  # while nothing is killed: what each costs
        for text in texts:
            ask = Ask(text, 4, f"calm{len(answered)}")
            used = await try_until_served(door, ask, failures)
            answered.append((name, ask, used))
            expected[name, text] = used.prompt, used.embedded
    assert failures == []
    calm = len(answered)

    caller = BatchCaller(lambda: running.state.url, patience_s=SETTLED_S)
    batch_id = await asyncio.to_thread(caller.submit, chat_lines(LINES, max_tokens=2))
    names, number = list(by_name), iter(range(calm, REQUESTS))

    async def work() -> None:
        for index in number:
            name = names[index % len(names)]
            ask = Ask(order.choice(texts), order.randint(1, 10), f"r{index}")
            answered.append((name, ask, await try_until_served(by_name[name], ask, failures)))

    kills = asyncio.create_task(kill_some(running, answered, order))
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    killed = await kills
    await asyncio.to_thread(caller.check_whole, batch_id, LINES, SETTLED_S)

    ledger: dict[str, list[UsageRecord]] = {}
    best: dict[str, UsageRecord] = {}
    wanted: dict[str, tuple[str, Ask, Used]] = {}

    async def settled() -> bool:
        """The ledger has all that was answered, and the sums have the ledger."""
        nonlocal ledger, best, wanted
        ledger = await read_ledger(running)
        best = {name: best_of(records) for name, records in ledger.items()}
        wanted = {}
        for name, ask, used in answered:
            ids = [used.request_id]
            if name == "nats":
                ids = [one for one in ledger if one.startswith(used.request_id)]
            if len(ids) != 1 or (ids[0] not in best and name != "cut"):
                return False
            wanted[ids[0]] = name, ask, used
        lines = sum(name.startswith("batch_req_") for name in ledger)
        found = total_of_sums(await read_sums(running))
        return lines == LINES and found == total([counts_of(one) for one in best.values()])

    try:
        await until(settled, timeout_s=SETTLED_S, longest_s=1.0)
    except TimeoutError:
        missing = [one for one in answered if one[0] != "nats" and one[2].request_id not in best]
        oracle = total([counts_of(one) for one in best.values()])
        lines = sum(name.startswith("batch_req_") for name in ledger)
        sums = total_of_sums(await read_sums(running))
        raise AssertionError(f"missing {missing[:5]}, lines {lines}, ledger {oracle}, sums {sums}") from None

    assert unequal_of(wanted, best, expected) == []
    of_batch = [one for name, one in best.items() if name.startswith("batch_req_")]
    assert {one.completion_tokens for one in of_batch} == {2}
    assert all(one.batch and one.outcome == "done" for one in of_batch)
    others = [name for name in best if name not in wanted and not name.startswith("batch_req_")]
    assert len(others) <= len(failures), (others[:5], failures[:5])
    copies = sum(len(records) for records in ledger.values())
    record(
        "usage_killed", requests=len(answered), lines=LINES, kills=sum(killed.values()), failed=len(failures),
        records=copies, ids=len(ledger), of_failed=len(others),
        cut=sum(name == "cut" for name, _, _ in answered),
    )  # fmt: skip
    if full:
        assert min(killed.values()) >= 10
