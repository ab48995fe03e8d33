"""The engine loop: steps submitted ahead, and failures of a sequence or the engine."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from services.worker.null.engine import NullEngine
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import Sampled, StepPlan, StepResult
from shared.messages import Done, Failed
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine, text_of
from tests.kits.worker.options import scheduler_limits

LETTERS = [*range(97, 123)]


class Watched(NullEngine):
    """A null engine that records its plans; it can fail some sequences, or fail at one step.

    Attributes:
        plans: All submitted plans.
        given: The number of tokens and the future of each step that was unfinished when it was asked for.
        behind: The value of `outstanding` at each submit.
        spoiled: Tells by seq_id whether a sequence gets an error instead of a token.
        fail_at: The number of the step that fails, from 1; 0 for none.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__(
            tokens=LETTERS, num_blocks=512, vocab_size=257, context_length=2048, step_delay_s=delay_s
        )
        self.plans: list[StepPlan] = []
        self.given: list[tuple[int, asyncio.Future[StepResult]]] = []
        self.behind: list[list[int]] = []
        self.spoiled: Callable[[int], bool] = lambda _: False
        self.fail_at = 0

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        self.plans.append(plan)
        self.behind.append(self.outstanding)
        future = super().submit(plan)
        self.given.append((sum(piece.num_tokens for piece in plan.chunks), future))
        return future

    @property
    def outstanding(self) -> list[int]:
        """The number of tokens of each unfinished step."""
        self.given = [step for step in self.given if not step[1].done()]
        return [num_tokens for num_tokens, _ in self.given]

    def compute(self, plan: StepPlan, masks: Sequence[bytes] = ()) -> StepResult:
        result = super().compute(plan, masks)
        if len(self.plans) == self.fail_at:
            self._end("broken: rank 1 died")
            raise EngineFailed("rank 1 died")
        sampled = [self._spoil(one) if self.spoiled(one.seq_id) else one for one in result.sampled]
        return StepResult(step_id=result.step_id, sampled=sampled)

    @staticmethod
    def _spoil(one: Sampled) -> Sampled:
        return Sampled(seq_id=one.seq_id, token_id=0, error="the logits are not finite")

    @property
    def follows(self) -> int:
        return sum(piece.follow for plan in self.plans for piece in plan.chunks)


def answer(prompt: str, length: int) -> str:
    """The null engine's answer of `length` tokens to the prompt."""
    return "".join(chr(LETTERS[(len(prompt) + i) % 26]) for i in range(length))


@pytest.mark.parametrize("delay_s", [0.0, 0.004])
async def test_a_step_is_queued_behind_the_one_that_runs_if_steps_take_time(
    memory_bus: MemoryBus, delay_s: float
) -> None:
    engine = Watched(delay_s)
    async with Kit(memory_bus, engine) as kit:
        prompts = {f"r{number}": "x" * (3 + number) for number in range(4)}
        for name, prompt in prompts.items():
            await kit.ask(chat(name, prompt=prompt, sampling={"max_tokens": 20}))
        for name, prompt in prompts.items():
            assert text_of(await kit.end_of(name)) == answer(prompt, 20)
        await kit.all_free()
    assert max(map(len, engine.behind)) == (1 if delay_s else 0)
    assert bool(engine.follows) == bool(delay_s)


async def test_the_engine_says_how_long_a_context_is(memory_bus: MemoryBus) -> None:
    # the kit's model has a context of 2,048 tokens; the engine's own value counts
    async with Kit(memory_bus, null_engine(blocks=256, context=4096)) as kit:
        assert isinstance((await kit.run(chat("r", prompt="x" * 3000)))[-1], Done)
        failed = await kit.failure(chat("s", prompt="x" * 4096))
        assert (failed.code, failed.data["context_length"]) == ("context_length_exceeded", 4096)


async def test_no_step_is_queued_behind_a_long_one(memory_bus: MemoryBus) -> None:
    engine = Watched(0.004)
    async with Kit(memory_bus, engine, steps=scheduler_limits(100, 16, 16)) as kit:
        prompt = "x" * 500
        assert text_of(await kit.run(chat("r", prompt=prompt, sampling={"max_tokens": 9}))) == answer(
            prompt, 9
        )
    assert [behind for behind in engine.behind if behind and behind[-1] > 64] == []
    assert max(map(len, engine.behind)) == 1


@pytest.mark.parametrize("party", ["a", "b"])
async def test_no_step_is_queued_behind_a_prompt_while_several_parties_are_there(
    memory_bus: MemoryBus, party: str
) -> None:
    engine = Watched(0.004)
    async with Kit(memory_bus, engine, steps=scheduler_limits(32, 16, 16)) as kit:
        await kit.ask(chat("short", prompt="abc", sampling={"max_tokens": 60}, party="a"))
        await kit.until(lambda: len(engine.plans) > 4)
        before = len(engine.behind)
        await kit.ask(chat("long", prompt="x" * 300, sampling={"max_tokens": 1}, party=party))
        for name in ("long", "short"):
            assert isinstance((await kit.end_of(name))[-1], Done)
    queued = [behind for behind in engine.behind[before:] if behind and behind[-1] > 1]
    assert bool(queued) == (party == "a")


async def test_a_prompt_that_comes_while_a_step_runs_is_planned_at_once(memory_bus: MemoryBus) -> None:
    engine = Watched(1.0)
    async with Kit(memory_bus, engine) as kit:
        await kit.ask(chat("one", prompt="abc", sampling={"max_tokens": 1}))
        await kit.until(lambda: len(engine.plans) == 1)
        await asyncio.sleep(0.02)
        assert len(engine.plans) == 1  # the last token of `one` is in flight, so there is nothing to plan
        await kit.ask(chat("two", prompt="def", sampling={"max_tokens": 1}))
        await kit.until(lambda: len(engine.plans) == 2)
        assert len(engine.outstanding) == 2
        for name in ("one", "two"):
            assert isinstance((await kit.end_of(name))[-1], Done)


@pytest.mark.parametrize("delay_s", [0.0, 0.003])
async def test_a_sequence_without_a_token_fails_alone(memory_bus: MemoryBus, delay_s: float) -> None:
    engine = Watched(delay_s)
    engine.spoiled = lambda seq_id: seq_id == 1 and len(engine.plans) > 3
    async with Kit(memory_bus, engine) as kit:
        kit.expected_errors = {"the model gave no token"}
        await kit.ask(chat("bad", prompt="abc", sampling={"max_tokens": 30, "n": 2}))
        await kit.ask(chat("good", prompt="abcd", sampling={"max_tokens": 30}))
        failed = (await kit.end_of("bad"))[-1]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.message) == (
            "internal",
            "the model gave no next token: the logits are not finite",
        )
        assert text_of(await kit.end_of("good")) == answer("abcd", 30)
        await kit.all_free()
        assert kit.metric("failed_sequences_total") == 1
        assert kit.metric("engine_failures_total") == 0


async def test_both_steps_are_lost_with_the_engine_and_no_task_complains_later(
    memory_bus: MemoryBus,
) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    engine = Watched(0.004)
    engine.fail_at = 6
    async with Kit(memory_bus, engine, back_off=RestartPauses(first_s=0.01)) as kit:
        kit.expected_errors = {"the engine failed"}
        failed = await kit.failure(chat("r", sampling={"max_tokens": 50}))
        assert (failed.code, "rank 1 died" in failed.message) == ("group_lost", True)
        await kit.until(lambda: kit.leader.state == "ready")
        assert isinstance((await kit.run(chat("again")))[-1], Done)
        gc.collect()
    assert complaints == []


class Mortal(Watched):
    """An engine that dies after a step without tokens, the last one before the leader waits for work."""

    def __init__(self) -> None:
        super().__init__(0.004)
        self.deaths = 0

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        self.on_failure = on_failure

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        future = super().submit(plan)
        if not plan.chunks and not self.deaths:
            future.add_done_callback(self._die)
        return future

    def _die(self, _: object) -> None:
        self.deaths += 1
        self._end("broken: rank 1 died")
        self.on_failure()


async def test_a_death_between_the_last_result_and_the_wait_for_work_is_seen(memory_bus: MemoryBus) -> None:
    engine = Mortal()
    async with Kit(memory_bus, engine, back_off=RestartPauses(first_s=0.01)) as kit:
        kit.expected_errors = {"the engine failed"}
        assert isinstance((await kit.run(chat("r", sampling={"max_tokens": 5})))[-1], Done)
        await kit.until(lambda: kit.metric("engine_failures_total") == 1)  # found without a request
        await kit.until(lambda: kit.leader.state == "ready")
        assert isinstance((await kit.run(chat("again")))[-1], Done)
        assert engine.deaths == 1


def cached_of(frames: Any) -> int:
    assert isinstance(frames[-1], Done)
    return frames[-1].usage.cached_tokens


@pytest.mark.parametrize(("sharing", "same", "other"), [("tenant", 96, 0), ("all", 96, 96), ("off", 0, 0)])
async def test_a_beginning_that_was_computed_is_not_computed_again(
    memory_bus: MemoryBus, sharing: str, same: int, other: int
) -> None:
    engine = Watched()
    async with Kit(memory_bus, engine, prefix_sharing=sharing) as kit:
        first, longer = "x" * 100, "x" * 100 + "and more"
        assert cached_of(await kit.run(chat("a", prompt=first, tenant="t"))) == 0
        assert cached_of(await kit.run(chat("b", prompt=longer, tenant="t"))) == same
        assert cached_of(await kit.run(chat("c", prompt=longer, tenant="u"))) == other
        assert kit.metric("prefix_cache_queries_total") == 100 + 2 * 108
        assert kit.metric("prefix_cache_hits_total") == same + other
        await kit.all_free()
        assert kit.metric("kv_cache_usage_perc") == 0


async def test_drafts_are_counted_and_change_no_text(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, Watched(), steps=scheduler_limits(256, 64, 64, draft_tokens=6)) as kit:
        frames = await kit.run(chat("a", prompt="x", sampling={"max_tokens": 300}))
        assert text_of(frames) == answer("x", 300)
        checked, right = (
            kit.metric("spec_decode_num_draft_tokens_total"),
            kit.metric("spec_decode_num_accepted_tokens_total"),
        )
        assert checked >= right > 200  # the text repeats itself after 26 letters
        assert kit.metric("spec_decode_num_drafts_total") >= checked / 6
        counts = {"on": True, "draft_tokens": checked, "accepted_tokens": right}
        assert kit.leader.detail()["speculation"] == counts


async def test_the_choices_of_a_request_share_its_prompt(memory_bus: MemoryBus) -> None:
    engine = Watched()
    async with Kit(memory_bus, engine) as kit:
        frames = await kit.run(chat("r", prompt="x" * 200, sampling={"n": 3, "max_tokens": 4}))
        assert cached_of(frames) == 0  # the prompt was computed for this request
        assert [text_of(frames, choice) for choice in range(3)] == [answer("x" * 200, 4)] * 3
    computed = sum(piece.num_tokens for plan in engine.plans for piece in plan.chunks)
    assert computed == 192 + 3 * 8 + 3 * 3


@pytest.mark.sources
async def test_a_bug_in_the_leader_ends_requests_and_the_group_comes_back(memory_bus: MemoryBus) -> None:
    engine = Watched(0.004)
    async with Kit(memory_bus, engine) as kit:
        kit.expected_errors = {"the engine failed", "the engine loop failed"}
        await kit.ask(chat("r", sampling={"max_tokens": 500}))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        scheduler: Any = kit.leader.parts.engine.scheduler
        scheduler.apply = None  # the bug: the loop calls None
        failed = (await kit.end_of("r"))[-1]
        assert isinstance(failed, Failed)
        assert "TypeError in the leader; the log has the trace" in failed.message
        await kit.until(lambda: kit.leader.state == "ready")
        assert isinstance((await kit.run(chat("again")))[-1], Done)
