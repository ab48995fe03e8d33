"""Continuous batching: which tokens of which sequences the next step computes.

One mixed batch per step under a token budget: decodes first, the rest for chunks of prefills. A step may be
planned while the one before it runs: what that one samples is computed on without being known here. When
blocks run short, sequences are preempted (`preemption.py`). Pure: time is an argument.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from services.worker.domain.adapters.admission import AdapterAdmission
from services.worker.domain.adapters.pool import AdapterPool
from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import UNNAMED, BlockNames
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.constraints.forced_tokens import Advance
from services.worker.domain.constraints.pending_masks import PendingMasks
from services.worker.domain.scheduling.admission import SequenceAdmission
from services.worker.domain.scheduling.background import BackgroundPace, only_background
from services.worker.domain.scheduling.bookings import (
    PromptAdvance,
    arrived_chunks,
    book_arrived,
    book_fetch,
    book_prompts,
    give_up_fetch,
)
from services.worker.domain.scheduling.crash_trials import CrashTrials
from services.worker.domain.scheduling.preemption import Preemption
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import PrefillThrottle
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits, SequenceQueues
from services.worker.domain.scheduling.step_checks import check_steps
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.scheduling.step_measures import StepMeasures
from services.worker.domain.scheduling.step_planner import StepPlanner
from services.worker.domain.scheduling.stream_planner import StreamPlanner
from services.worker.domain.speculation.result_booking import ResultBooking, draft_tokens
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import BLOCK_SIZE, StepPlan, StepResult
from services.worker.rank_protocol.step_masks import StepMasks

__all__ = ["Advance", "Scheduler", "SchedulerLimits"]


class Scheduler:
    """Call `plan`, give the plan to the engine, and `apply` its result; results come in the order of plans.

    An empty plan is not to be computed, and has no result. After a plan, order what `take_fetches` returns,
    and call `fetched` when it is done. After a plan and after a result, pass what `take_masks` returns to
    the engine.

    Args:
        names: Of blocks; without them nothing is shared.
        write_behind: Knows which blocks are stored, and which are to be.
        costs: Of fetching and of computing.
        clock: Returns monotonic seconds.
        adapters: Slots of the engine for adapters; None: it computes with none.
        streams: The engine's sequences generate on their own (`EngineInfo.streams`).
    """

    def __init__(
        self,
        blocks: BlockManager,
        limits: SchedulerLimits,
        names: BlockNames = UNNAMED,
        *,
        write_behind: WriteBehind | None = None,
        costs: TransferCostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterPool | None = None,
        streams: bool = False,
    ) -> None:
        self.blocks = blocks
        self.limits = limits
        self.queues = SequenceQueues(blocks, adapters, limits)
        self.adapters = AdapterAdmission(self.queues, preempts=names.sharing != "off")
        self.waiting, self.running = self.queues.waiting, self.queues.running
        self.write_behind = write_behind or WriteBehind()
        self.costs = costs or TransferCostModel(limits.token_budget)
        self.admission = SequenceAdmission(
            self.queues,
            limits,
            names,
            self.write_behind,
            lambda num_blocks, ahead: self.costs.fetches(num_blocks, clock(), ahead, self.in_flight),
        )
        self._names, self.trials = names, CrashTrials(possible=not streams)
        self.throttle = PrefillThrottle(limits.itl_target_s)
        self._pace, self._clock = BackgroundPace(), clock
        self.speculation = Speculation(draft_tokens(limits.draft_tokens, blocks, names))
        self._measures = StepMeasures(self._pace, self.throttle, self.costs, self.speculation)
        self._booking = ResultBooking(self.queues, self.write_behind, names, self.speculation)
        preemption, fair = Preemption(self.queues, limits, names), self.queues.fair
        self._streams = StreamPlanner(self.running, self.admission, preemption, fair) if streams else None
        self._planner = StepPlanner(
            self.running,
            limits,
            self.admission,
            preemption,
            throttle=self.throttle,
            trials=self.trials,
            pace=self._pace,
            fair=fair,
            sliding=blocks.sliding,
            speculation=self.speculation,
        )
        self._in_flight: deque[tuple[int, list[PlannedChunk]]] = deque()  # step_id and chunks, oldest first
        self._masks = PendingMasks()
        self._step_id, self._planned = 0, False  # of the last plan; whether it was one to compute

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far."""
        return self.queues.num_preemptions

    @property
    def num_free(self) -> int:
        """Free waiting slots and running slots together; below 0 if there are too many sequences."""
        return self.limits.max_running + self.limits.max_waiting - len(self.waiting) - len(self.running)

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that are to be computed, without those that are fetched or likely in the cache.

        Each heartbeat carries it, so that its cost must not depend on the length of the waiting prompts.
        """
        running = sum(s.remaining for s in self.running if s.remaining > 1 and not s.fetching)
        found = self.blocks.estimate_found
        return running + sum(s.remaining - BLOCK_SIZE * found(s.block_names) for s in self.waiting)

    @property
    def has_work(self) -> bool:
        """Whether there is something to plan, now or when the steps in flight are done."""
        queues = self.queues
        some = self.running or self.waiting or queues.release or self.write_behind.has_work
        return bool(some or queues.fetches.has_new or self.blocks.has_vacated)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; whether it fits at all was checked before (`num_free`, context length)."""
        self.queues.add(sequence)
        self.trials.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Removes a sequence, finished or cancelled, waiting or running; its blocks are free at once.

        Its seq_id is in the next plan's `release`; tokens that steps in flight sample for it are dropped. A
        second call changes nothing.
        """
        self.queues.end(sequence)

    def expire(self, now: float) -> list[Sequence]:
        """Returns the sequences whose deadline has passed, waiting or running; the caller ends them."""
        return self.queues.expire(now)

    def plan(self) -> StepPlan:
        """Returns the plan of the next step."""
        behind, now = self.write_behind, self._clock()
        self.adapters.prepare_step(now)
        # copies are planned before a block may go to another sequence
        store = behind.take(self.blocks) if behind.has_work else []
        if self._streams is not None:
            draft = self._streams.draft_step()  # it is charged when it is known what has arrived
        else:
            draft = self._planner.draft_step(now)
            self._charge(draft.planned)
        vacated = self.blocks.take_vacated()
        release, self.queues.release = self.queues.release, []
        self._planned = bool(draft.chunks or release or store or vacated.blocks or vacated.sliding)
        if self._planned:
            self._step_id += 1
            self._in_flight.append((self._step_id, draft.planned))
            if draft.masked:
                self._masks.expect(self._step_id, draft.planned)
        return StepPlan(
            step_id=self._step_id,
            release=release,
            admit=draft.admit,
            chunks=draft.chunks,
            store=store,
            hurry=behind.hurries,
            vacate=vacated.blocks,
            vacate_sliding=vacated.sliding,
        )

    @property
    def background_alone(self) -> bool:
        """True if every sequence is background: a step is not planned behind one of theirs."""
        return only_background(self.running, self.waiting)

    @property
    def is_shared(self) -> bool:
        """Whether several parties use the engine: nothing is planned behind a step with prompts.

        A request of another party that comes during the step waits for its end alone.
        """
        return self._planner.is_shared(self._clock())

    @property
    def waits_for_drafts(self) -> bool:
        """Whether the next step is planned better when the tokens in flight are known."""
        return self.speculation.waits(self.running)

    def requests_in(self, step_ids: Iterable[int]) -> set[str]:
        """Returns the keys of the requests that these steps compute, if they are in flight."""
        wanted = set(step_ids)
        found = (parts for step, parts in self._in_flight if step in wanted)
        return {sequence.request_id for parts in found for sequence, *_ in parts}

    @property
    def lacks_masks(self) -> bool:
        """Whether a step in flight has not got its masks."""
        return bool(self._masks)

    def take_masks(self) -> list[StepMasks]:
        """Returns the masks of steps in flight that can be made now: the tokens before them are known."""
        return self._masks.take()

    @property
    def in_flight(self) -> tuple[int, int]:
        """Fetches in flight, and the blocks that they bring."""
        return len(self.queues.fetches), self.queues.fetches.num_blocks

    @property
    def order_step(self) -> int:
        """The step that has to begin before ranks may change what left the steps that follow; -1: wait.

        Earlier plans may name blocks and slots that were freed: steps in flight still write to blocks whose
        sequences left, and the last plan may copy blocks that were freed at once. So ranks wait until they
        begin with the last plan, when all steps before it are done. If that plan had nothing to compute,
        nothing may be ordered while steps are in flight.
        """
        return -1 if self._in_flight and not self._planned else self._step_id

    def take_fetches(self) -> list[BlockFetch]:
        """Returns what has to be fetched now, into blocks that no later plan names before that is done."""
        step = self.order_step
        return self.queues.fetches.take(step) if step >= 0 else []

    def fetched(self, fetch_id: int, count: int) -> None:
        """Books a fetch that brought its first `count` blocks; its sequence computes the rest."""
        book_fetch(self.queues, self.write_behind, fetch_id, count)

    def give_up(self, fetch_id: int) -> None:
        """Gives up a fetch that takes too long: its sequence computes everything, in other blocks."""
        give_up_fetch(self.queues, fetch_id)

    def apply_prompts(self, result: StepResult) -> list[PromptAdvance]:
        """Books what the oldest step in flight has brought of prompts; to be called before `apply`."""
        return book_prompts(self._in_flight[0][1], result.prompts) if result.prompts else []

    def apply(self, result: StepResult, step_s: float = 0.0) -> list[Advance]:
        """Books the result of the oldest step in flight.

        Args:
            step_s: Seconds since the result before it, or since the engine was idle; 0: those of the ranks.

        Returns:
            One `Advance` for each sampled token, in the plan's order, followed by those of the tokens that
            it forces. Sequences that ended since get none; those that were preempted keep their token. With
            `streams` sequences without a token in the result are planned again.

        Raises:
            ValueError: The result is of another step, or lacks a token.
        """
        step_id, parts = self._in_flight.popleft()
        if result.step_id != step_id:
            raise ValueError(f"step {step_id} is the oldest without result, this is step {result.step_id}")
        if self._streams is not None:
            self._charge(arrived_chunks(parts, result))
            return book_arrived(self._booking, parts, result)
        booked = self._booking.book_step(parts, result)
        self._measures.book_step(result, parts, booked, step_s)
        return booked.advances

    def _charge(self, chunks: list[PlannedChunk]) -> None:
        """Charges parties for what is computed for them."""
        fair = self.queues.fair
        if fair.counts:
            cost = self.throttle.pace.decode_tokens(len(chunks))
            fair.charge_step(chunks, cost, self.queues.waiting_of, self.running)

    def check_invariants(self) -> None:
        """Raises `AssertionError` when queues, blocks, sequences and steps in flight do not agree."""
        self.queues.check_invariants()
        check_steps(self._in_flight, self.running, self.waiting)
