"""Messages lost at each hop, and callers that leave at each moment, with a real router, leader and broker.

Connections to a broker lose nothing by themselves. A broker drops what comes while a client reconnects or is
too slow; here a proxy drops chosen messages.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import ClientSettings, InferenceClient
from shared.identity import new_request_id
from shared.messages import GenerateRequest
from tests.kits.losing_broker import LosingBroker
from tests.kits.router.live import router
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine

TOKENS = 12
FOR_LONG = 1900  # tokens, which take ten seconds
STEP_S = 0.005
TOKEN_BYTES = 4
FREE_S = 5.0  # for what ends within a step, on a busy machine
SETTINGS = ClientSettings(probe_interval_s=0.1, resend_timeout_s=0.2, accept_timeout_s=0.2)
FRAMES = r"_INBOX\..*\.f"
WORK = re.escape(subjects.work("g0"))
GENERATE = re.escape(subjects.generate("demo"))
RESEND = re.escape(subjects.resend("g0"))


class Path:
    """A caller, a router and a group that reach each other through a broker that loses messages."""

    def __init__(self, broker: LosingBroker, client: InferenceClient, kit: Kit) -> None:
        self.broker, self.client, self.kit = broker, client, kit

    def request(self, delivery: str, tokens: int = TOKENS) -> GenerateRequest:
        sampling = {"max_tokens": tokens, "seed": 1, "temperature": 1.0, "ignore_eos": True}
        return chat(new_request_id(), sampling=sampling, delivery=delivery)

    async def text(self, delivery: str = "stream") -> str:
        done = await self.client.complete(self.request(delivery), timeout_s=20)
        return done.choices[0].text

    async def nothing_left(self) -> None:
        """Waits until the group holds nothing more of any request, and the client neither."""
        await self.kit.all_free(FREE_S)
        await until(lambda: self.client.num_open == 0)


@pytest.fixture
async def path(nats_url: str) -> AsyncIterator[Path]:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(LosingBroker(urlsplit(nats_url).port or 0))
        await stack.enter_async_context(router(broker.url))
        theirs = await NatsBus.connect(broker.url, name="leader")
        stack.push_async_callback(theirs.close)
        kit = Kit(theirs, null_engine(delay_s=STEP_S), group="g0", heartbeat_interval_s=0.1)
        await stack.enter_async_context(kit)
        ours = await NatsBus.connect(broker.url, name="caller")
        stack.push_async_callback(ours.close)
        client = InferenceClient(ours, SETTINGS)
        await client.start()
        stack.push_async_callback(client.close)
        path = Path(broker, client, kit)
        await path.text()  # the router knows the group
        yield path


@pytest.mark.parametrize("delivery", ["stream", "whole"])
@pytest.mark.parametrize(
    ("subject", "places"),
    [
        pytest.param(GENERATE, [0], id="request"),
        pytest.param(GENERATE, [0, 1], id="request-twice"),
        pytest.param(WORK, [0], id="work"),
        pytest.param(FRAMES, [0], id="first-frame"),
        pytest.param(FRAMES, [0, 1, 2], id="first-frames"),
        pytest.param(FRAMES, [4, 5], id="middle-frames"),
        pytest.param(FRAMES, list(range(1, 100)), id="all-but-the-first-frame"),
    ],
)
async def test_a_message_lost_at_a_hop_changes_no_answer(
    path: Path, subject: str, places: list[int], delivery: str
) -> None:
    expected = await path.text(delivery)
    path.broker.lose(subject, *places)
    assert await path.text(delivery) == expected
    if delivery == "stream" or places[0] < 2:  # a whole answer has few frames
        assert path.broker.lost
    await path.nothing_left()


async def test_a_question_for_lost_frames_and_its_answer_may_get_lost_too(path: Path) -> None:
    expected = await path.text()
    path.broker.lose(f"{FRAMES}|{RESEND}", *range(3, 17))  # all later frames, and the first questions
    assert await path.text() == expected
    assert subjects.resend("g0") in path.broker.lost
    await path.nothing_left()


@pytest.mark.parametrize("delivery", ["stream", "whole"])
@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.008, 0.03, 0.06])
async def test_a_caller_that_leaves_at_any_moment_leaves_nothing_behind(
    path: Path, after_s: float, delivery: str
) -> None:
    """Before the route, in the queue, in the prompt and between tokens."""
    expected = await path.text(delivery)
    staying = asyncio.create_task(path.text(delivery))
    leaving = [
        asyncio.create_task(path.client.complete(path.request(delivery, FOR_LONG), timeout_s=20))
        for _ in range(8)
    ]
    await asyncio.sleep(after_s)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    assert await staying == expected
    await path.nothing_left()


@pytest.mark.parametrize("before", range(4))
async def test_a_caller_that_leaves_while_the_last_frames_come_leaves_nothing_behind(
    path: Path, before: int
) -> None:
    request = path.request("stream")
    async with path.client.submit(request, timeout_s=20) as stream:
        count = 0
        async for deltas in stream:
            count += sum(len(one.token_ids) for one in deltas) // TOKEN_BYTES
            if count >= TOKENS - before:
                break
    await path.nothing_left()


async def test_without_the_news_that_a_caller_left_its_request_runs_to_its_end(path: Path) -> None:
    path.broker.lose(r"ryz\.v1\.cancel.*", *range(100))
    leaving = asyncio.create_task(path.client.complete(path.request("stream", 60), timeout_s=20))
    await until(lambda: path.kit.leader.load().running > 0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await path.nothing_left()
    assert path.broker.lost
