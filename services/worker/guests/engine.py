"""A guest behind the engine port: a step of it is what has arrived.

A sequence's admission opens a stream at the guest, its release closes it. A step ends when all sequences of
its plan have a token, or `GATHER_S` after the first: a server computes a token of each sequence at once and
sends them one after the other, and each step here costs work for every sequence. More tokens of a sequence
wait here for the steps that follow.
"""

import asyncio
from collections.abc import Callable

from services.worker.guests.abilities import guest_card
from services.worker.guests.port import Guest, GuestFacts, GuestPart, GuestSequence
from services.worker.guests.stream import GuestStream
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, Failure, engine_error
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, Sampled, StepPlan, StepResult
from services.worker.rank_protocol.step_masks import StepMasks
from services.worker.rank_protocol.step_times import StepTimes
from shared.guests.needs import guest_fingerprint

GATHER_S = 0.002
_STOPPED = Failure("start_failed", "the guest is stopped")


class GuestEngine:
    """Implements `Engine` over a guest.

    Args:
        guest: Its watcher is this engine.
        max_running: Sequences that are given to it at once, if it does not say how many it computes.
        start_timeout_s: How long its start may take.
        reasons: See `guest_card`.
    """

    def __init__(
        self, guest: Guest, *, max_running: int, start_timeout_s: float, reasons: bool = False
    ) -> None:
        self._guest = guest
        self._reasons = reasons
        self._max_running = max_running
        self._start_timeout_s = start_timeout_s
        self._facts: GuestFacts | None = None  # None: it is not ready
        self._failure = _STOPPED  # why it is not ready
        self._streams: dict[int, GuestStream] = {}
        self._plan: StepPlan | None = None  # of the step that waits
        self._result: asyncio.Future[StepResult] | None = None
        self._missing: set[int] = set()  # sequences of that step that are to bring a token and have not
        self._ending: asyncio.TimerHandle | None = None  # ends that step without those
        self._steps = 0
        self._on_idle_failure: Callable[[], None] | None = None
        guest.watch(self._on_part, self._on_guest_lost)

    async def start(self) -> EngineInfo:
        """Start the guest, and return what it says of itself."""
        limit = asyncio.timeout(self._start_timeout_s)
        try:
            async with limit:
                facts = await self._guest.start()
        except BaseException as error:
            await self._guest.stop()
            if limit.expired():
                why = f"the guest is not ready after {self._start_timeout_s:g} s"
                raise EngineFailed(why, "start_failed") from error
            raise
        self._facts, self._steps = facts, 0
        return EngineInfo(
            num_blocks=self._num_blocks(facts),
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            fingerprint=guest_fingerprint(facts.fingerprint),
            kv_format="guest",
            run_ahead=0,
            streams=True,
            max_running=facts.max_running,
            guest=guest_card(facts, reasons=self._reasons),
        )

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Close and open streams; the step ends with the first token, or at once if it is to bring none."""
        facts = self._facts
        if facts is None:
            raise engine_error(self._failure)
        if self._result is not None and not self._result.done():
            raise RuntimeError(f"step {plan.step_id} was submitted before the one before it was done")
        for seq_id in plan.release:
            if self._streams.pop(seq_id, None) is not None:
                self._guest.close(seq_id)
        result: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._plan, self._result = plan, result
        wanted = {chunk.seq_id for chunk in plan.chunks if chunk.sample}
        self._missing = set(wanted)
        self._steps += 1
        for new in plan.admit:
            self._open(new, facts)
        for chunk in plan.chunks:
            if chunk.masked:
                self._refuse(chunk.seq_id, "it takes no masks of grammars; the request needs another group")
        if self._result is result and not result.done():
            streams = self._streams
            if not wanted or any(streams[seq_id].has_result for seq_id in wanted):
                self._end_step()
        return result

    def hurry(self) -> None:
        """End the step that waits, with what has arrived."""
        if self._result is not None and not self._result.done():
            self._end_step()

    def supply_masks(self, masks: StepMasks) -> None:
        """Do nothing: sequences with masks are refused."""

    async def fetch_blocks(self, order: FetchBlocks) -> FetchResult:
        """Find nothing, since its KV is its own."""
        return FetchResult(fetch_id=order.fetch_id, count=0, missing=True)

    async def load_adapter(self, order: LoadAdapter) -> AdapterLoaded:
        """Refuse: a guest has the adapters that it was started with."""
        return AdapterLoaded(order_id=order.order_id, error="the guest of this group loads no adapters")

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        """Do nothing: no block is stored."""

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        """See `Engine`."""
        self._on_idle_failure = on_failure

    def status(self) -> list[dict[str, object]]:
        """Return one row, with what the guest says of itself."""
        state = "ready" if self._facts is not None else "stopped" if self._failure is _STOPPED else "failed"
        row: dict[str, object] = {"rank": 0, "state": state, "steps": self._steps, "engine": "guest"}
        return [row | {"streams": len(self._streams)} | self._guest.status()]

    def step_times(self) -> StepTimes | None:
        """Return None: a guest does not tell what its steps spend time on."""
        return None

    async def stop(self) -> None:
        """End all streams and the guest."""
        self._lose(_STOPPED if self._facts is not None else self._failure)
        await self._guest.stop()

    def _num_blocks(self, facts: GuestFacts) -> int:
        """Return the blocks of its KV cache, or enough for all that run if it does not say."""
        if facts.kv_tokens:
            return max(1, facts.kv_tokens // BLOCK_SIZE)
        return (facts.max_running or self._max_running) * -(-facts.context_length // BLOCK_SIZE)

    def _open(self, new: NewSequence, facts: GuestFacts) -> None:
        room = max(0, facts.context_length - len(new.token_ids))
        most = min(new.max_tokens or room, room)
        self._streams[new.seq_id] = GuestStream(new, most=most, vocab_size=facts.vocab_size)
        if new.embedding is not None or new.scored >= 0:
            self._refuse(new.seq_id, "it gives no embeddings and no log probabilities of prompts")
        elif not most:
            self._refuse(new.seq_id, f"its context of {facts.context_length} tokens has no room for more")
        else:
            self._guest.open(GuestSequence(new=new, max_tokens=most))

    def _refuse(self, seq_id: int, why: str) -> None:
        self._streams[seq_id].add_part(GuestPart(seq_id=seq_id, error=why))

    def _on_part(self, part: GuestPart) -> None:
        stream = self._streams.get(part.seq_id)
        if stream is None:
            return  # it was released a moment ago
        stream.add_part(part)
        if self._result is None or self._result.done() or part.seq_id not in self._missing:
            return
        if stream.has_result:
            self._missing.discard(part.seq_id)
            if not self._missing:
                self._end_step()
            elif self._ending is None:
                self._ending = asyncio.get_running_loop().call_later(GATHER_S, self._end_step)

    def _end_step(self) -> None:
        plan, result = self._plan, self._result
        self._forget_step()
        if plan is None or result is None or result.done():  # its future was cancelled
            return
        sampled: list[Sampled] = []
        for chunk in plan.chunks:
            one = self._streams[chunk.seq_id].take_next() if chunk.sample else None
            if one is not None:
                sampled.append(one)
        result.set_result(StepResult(step_id=plan.step_id, sampled=sampled))

    def _on_guest_lost(self, why: str) -> None:
        if self._facts is None:
            return  # it was lost before, or is starting: `start` says why
        waits = self._result is not None and not self._result.done()
        self._lose(Failure("guest_lost", f"the guest is gone: {why}"))
        if not waits and self._on_idle_failure is not None:
            self._on_idle_failure()

    def _lose(self, failure: Failure) -> None:
        """Drop all streams; the step that waits, and those that are submitted later, raise the failure."""
        result = self._result
        self._facts, self._failure = None, failure
        self._streams.clear()
        self._forget_step()
        if result is not None and not result.done():
            result.set_exception(engine_error(failure))
            result.exception()  # retrieved, so that asyncio does not warn

    def _forget_step(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._plan = self._result = self._ending = None
        self._missing = set()
