"""A request that crashes its engines fails after two crashes; requests in the same batch are unaffected.

Leaders, callers and the bus are real; in the last test the ranks are too and die of a real SIGSEGV.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from services.worker.null.engine import TEXT, NullEngine
from services.worker.null.model import null_model
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import Engine, StepPlan, StepResult
from shared import codec, subjects
from shared.bus import Message
from shared.client import InferenceClient
from shared.client.generation.results import Completion
from shared.client.settings import ClientSettings
from shared.codec import pack_tokens
from shared.errors import Poison
from shared.messages import GenerateRequest, Route, Work
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import make_llama
from tests.kits.engine.shared_fork_server import sharing
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat
from tests.kits.worker.poison_rank import POISON

TOKENS = 40


class Crashing(NullEngine):
    """An engine that dies when it computes a request with the poison tokens or when `kill` is set."""

    def __init__(self) -> None:
        super().__init__(
            tokens=list(TEXT.encode()),
            num_blocks=512,
            vocab_size=257,
            context_length=2048,
            step_delay_s=0.002,
        )
        self.deaths = 0
        self.kill = False
        self._doomed: set[int] = set()

    def reset(self) -> None:
        super().reset()
        self._doomed, self.kill = set(), False

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        self._doomed |= {new.seq_id for new in plan.admit if has_poison(new.token_ids)}
        if self.kill or any(piece.seq_id in self._doomed for piece in plan.chunks):
            self.deaths += self._state == "ready"  # a step behind the fatal one kills nothing more
            fault = not self.kill
            why = "rank 0 is gone: killed by " + ("SIGSEGV" if fault else "SIGKILL")
            failure = EngineFailed(why, "rank_died", 0, fault=fault, step_ids=(plan.step_id,))
            self._end("dead")
            future: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
            future.set_exception(failure)
            return future
        return super().submit(plan)


def has_poison(tokens: list[int]) -> bool:
    return any(tokens[index : index + len(POISON)] == POISON for index in range(len(tokens)))


@asynccontextmanager
async def fleet(bus: MemoryBus, engines: list[Engine]) -> AsyncIterator[tuple[list[Kit], InferenceClient]]:
    """Groups, a caller, and a router that sends a later attempt to another group."""
    async with AsyncExitStack() as stack:
        kits = [
            await stack.enter_async_context(Kit(bus, engine, f"g{number}", null_model("demo", 512)))
            for number, engine in enumerate(engines)
        ]
        for kit in kits:
            kit.expected_errors = {"the engine failed", "request is poison"}
        first: dict[str, int] = {}  # the group of each request's first attempt

        async def route(message: Message) -> None:
            request = codec.decode(message.data, GenerateRequest)
            # an attempt that is published twice, since its group was slow to answer, goes to the same group
            number = first.setdefault(request.request_id, len(first)) + request.attempt
            group = f"g{number % len(kits)}"
            work = Work(
                request=message.data, route=Route(group=group, reason="test"), reply_to=request.reply_to
            )
            await bus.publish(subjects.work(group), codec.encode(work), headers=message.headers)

        await bus.subscribe(subjects.GENERATE_ALL, route)
        client = InferenceClient(bus, ClientSettings(max_losses=20))
        await client.start()
        stack.push_async_callback(client.close)
        yield kits, client


def ask(name: str, tokens: list[int]) -> GenerateRequest:
    sampling = {"max_tokens": TOKENS, "ignore_eos": True}
    return chat(name, prompt_token_ids=pack_tokens(tokens), sampling=sampling)


async def answers(
    client: InferenceClient, requests: list[GenerateRequest]
) -> list[Completion | BaseException]:
    return await asyncio.gather(
        *(client.complete(request, timeout_s=60) for request in requests), return_exceptions=True
    )


async def ready(kit: Kit) -> None:
    await kit.until(lambda: kit.leader.state == "ready")


def texts(ended: list[Completion | BaseException]) -> list[str]:
    return [one.choices[0].text for one in ended if isinstance(one, Completion)]


def innocent(number: int) -> GenerateRequest:
    return ask(f"innocent-{number}", [10 + number, 3, 5, 8])


async def test_a_request_that_kills_engines_is_failed_after_two_and_no_other_is(
    memory_bus: MemoryBus,
) -> None:
    engines = [Crashing(), Crashing()]
    async with fleet(memory_bus, list(engines)) as (kits, client):
        alone = await answers(client, [innocent(number) for number in range(31)])
        requests = [ask(f"again-{number}", [10 + number, 3, 5, 8]) for number in range(31)]
        requests.insert(7, ask("poison", [9, *POISON, 4]))
        together = await answers(client, requests)
        error = together.pop(7)
        assert isinstance(error, Poison)
        assert "2 engines died" in error.message
        assert texts(together) == texts(alone)
        assert len(texts(together)) == 31
        assert sum(engine.deaths for engine in engines) == 2
        entries = [entry for kit in kits for entry in kit.logs if entry["event"] == "request is poison"]
        assert [
            entry["request_id"] for entry in {entry["request_id"]: entry for entry in entries}.values()
        ] == ["poison"]


async def test_two_of_them_are_found_both(memory_bus: MemoryBus) -> None:
    engines = [Crashing(), Crashing(), Crashing()]
    async with fleet(memory_bus, list(engines)) as (_, client):
        requests = [innocent(number) for number in range(10)]
        requests[3:3] = [ask("one", POISON), ask("two", [1, *POISON])]
        ended = await answers(client, requests)
        assert [type(one).__name__ for one in ended[3:5]] == ["Poison", "Poison"]
        assert not [one for one in ended[:3] + ended[5:] if isinstance(one, BaseException)]


async def test_engines_that_are_killed_from_outside_make_no_poison(memory_bus: MemoryBus) -> None:
    engines = [Crashing(), Crashing()]
    async with fleet(memory_bus, list(engines)) as (kits, client):

        async def chaos() -> None:
            for number in range(12):
                await ready(kits[number % 2])
                await asyncio.sleep(0.02)
                engines[number % 2].kill = True

        killing = asyncio.create_task(chaos())
        ended = await answers(client, [innocent(number) for number in range(31)])
        await killing
        assert not [one for one in ended if isinstance(one, BaseException)]
        assert sum(engine.deaths for engine in engines) > 2


async def test_ranks_that_really_crash(memory_bus: MemoryBus, tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")

    def engine() -> RankEngine:
        return RankEngine(
            rank_options(model=model, tensor_parallel=1, threads=1, kv_cache_tokens=4096, kernels="plain")
        )

    command = [sys.executable, "-m", "tests.kits.worker.poison_rank"]
    async with AsyncExitStack() as stack:
        stack.enter_context(sharing(command))
        kits, client = await stack.enter_async_context(fleet(memory_bus, [engine(), engine()]))
        requests = [innocent(number) for number in range(6)]
        alone = await answers(client, requests)
        again = [ask(f"again-{number}", [10 + number, 3, 5, 8]) for number in range(6)]
        ended = await answers(client, [*again[:3], ask("poison", [9, *POISON, 4]), *again[3:]])
        assert isinstance(ended.pop(3), Poison), ended
        assert texts(ended) == texts(alone)
        failures = [entry for kit in kits for entry in kit.logs if entry["event"] == "the engine failed"]
        assert any("killed by SIGSEGV" in entry["why"] for entry in failures)
        assert sum(kit.metric("engine_failures_total") for kit in kits) == 2
