"""The draft model: asks an engine of its own for guesses before a step of the target is planned.

Both engines share the cores, so the target stands still meanwhile: guesses are asked for only where the
measured gain of a sequence pays for them (`Speculation`). The target checks every guess, so nothing that
happens here changes an answer. Without the engine answers go on without guesses.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.speculation.draft_sequences import DraftSequences, Wish
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import MAX_OUTSTANDING, Engine, EngineFailed, EngineInfo, StepResult
from shared.flow.backoff import backoff_s

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
FEW_TOKENS = 16  # that are computed with the first guess; more count as catching up
CATCH_UP_S = 1.0  # that catching up may take before it has saved anything
CATCH_UP_SHARE = 0.01  # of the time since then
POSTPONED_TOKENS = 64  # of a sequence that does not fit, or whose prompt would take too long

log = structlog.get_logger(__name__)


class DraftModel:
    """Guesses the next tokens of the sequences of one scheduler.

    Args:
        engine: Of the draft model, with one rank, and the target's vocabulary.
        vocab_size: Of the target.
        clock: Returns monotonic seconds.
    """

    def __init__(self, engine: Engine, vocab_size: int, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._clock = clock
        self._sequences: DraftSequences | None = None  # None while the engine is down
        self._lost = asyncio.Event()
        self._allowance_s = CATCH_UP_S
        self._allowed_at = clock()
        engine.watch_failures(self._lost.set)

    @property
    def is_up(self) -> bool:
        """Whether it guesses."""
        return self._sequences is not None

    async def serve(self) -> None:
        """Starts the engine, and starts it again when it fails, until cancelled."""
        failures = 0
        while True:
            try:
                self.begin_start(await self._engine.start())
                failures = 0
                log.info("the draft model is ready")
                await self._lost.wait()
                log.warning("the draft model's engine failed: answers go on without its guesses")
            except EngineFailed as error:
                log.warning(
                    "the draft model does not start: answers go on without its guesses", why=str(error)
                )
            self._sequences = None
            await self._engine.stop()
            await asyncio.sleep(backoff_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            failures += 1

    def begin_start(self, info: EngineInfo) -> None:
        """Records a start of the engine. Raises `EngineFailed` for a model that cannot take guesses back."""
        if info.num_sliding_blocks:
            raise EngineFailed("layers with a sliding window give up the KV that refused guesses need")
        self._lost.clear()
        self._sequences = DraftSequences(info.num_blocks, info.context_length)

    async def stop(self) -> None:
        """Ends the engine."""
        self._sequences = None
        await self._engine.stop()

    async def guess(self, scheduler: Scheduler) -> bool:
        """Makes guesses for the next step of a scheduler that has none in flight; whether it took time."""
        speculation, sequences = scheduler.speculation, self._sequences
        speculation.has_model = sequences is not None
        if sequences is None:
            return False
        wishes = speculation.wishes(scheduler.running)
        if not wishes:
            return False
        self._allow(speculation)
        sequences.retain(one.seq_id for one in scheduler.running)
        wishes = [wish for wish in wishes if self._may_compute(sequences, wish, speculation)]
        try:
            await self._make_round(sequences, wishes, scheduler)
        except EngineFailed as error:
            log.warning("no guesses", why=str(error))
            self._sequences, speculation.has_model = None, False
            self._lost.set()
        return True

    def _allow(self, speculation: Speculation) -> None:
        """Lets catching up take a share of the time, and as much as guesses have saved."""
        now = self._clock()
        earned = CATCH_UP_SHARE * (now - self._allowed_at) + speculation.take_saved_s()
        self._allowance_s, self._allowed_at = min(CATCH_UP_S, self._allowance_s + earned), now

    def _may_compute(self, sequences: DraftSequences, wish: Wish, speculation: Speculation) -> bool:
        if self._allowance_s > 0 or sequences.missing(wish.sequence) <= FEW_TOKENS:
            return True
        speculation.postpone(wish.sequence, POSTPONED_TOKENS)
        return False

    async def _make_round(self, sequences: DraftSequences, wishes: list[Wish], scheduler: Scheduler) -> None:
        """Computes what sequences lack, then their guesses, all of them together in each step."""
        began, num_running = self._clock(), len(scheduler.running)
        missing = sum(sequences.missing(wish.sequence) for wish in wishes)
        plan, sampling = sequences.begin(wishes)
        for sequence, _ in wishes:
            if not sequences.follows(sequence):
                scheduler.speculation.postpone(sequence, POSTPONED_TOKENS)
        if not plan.slices:
            return
        results = deque([self._engine.submit(plan)])
        found: dict[int, list[int]] = {sequences.id_of(one): [] for one, _ in sampling}
        step, first_s, broken = 1, 0.0, set[int]()
        while results:
            while len(results) < MAX_OUTSTANDING and (plan_after := sequences.follow(sampling, step)):
                results.append(self._engine.submit(plan_after))
                step += 1
            result: StepResult = await results.popleft()
            first_s = first_s or self._clock() - began
            for one in result.sampled:
                if one.error or one.token_id >= self._vocab_size:
                    broken.add(one.seq_id)
                elif one.seq_id not in broken:
                    found[one.seq_id].append(one.token_id)
        seconds = self._clock() - began
        if missing > FEW_TOKENS * len(wishes):
            self._allowance_s -= first_s
            seconds -= first_s
        offered = list[tuple[Sequence, list[int]]]()
        for sequence, _ in sampling:
            guesses = found[sequences.id_of(sequence)]
            sequences.note_guesses(sequence, guesses)
            if guesses and sequence.phase is SequencePhase.RUNNING:  # it may have ended meanwhile
                offered.append((sequence, guesses))
        if offered:
            scheduler.speculation.offer(offered, num_running, seconds)
