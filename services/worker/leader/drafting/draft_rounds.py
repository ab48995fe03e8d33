"""Asks the draft model for guesses between two steps of the served model.

First it reads: tokens that its KV cache lacks, at most `READ_TOKENS` in a round, so that a long prompt does
not hold up the tokens of others. Then all sequences that lack only a few tokens guess together, one token
each in a step. It samples as the served model does, with the seed, choice and position of each token.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec
import structlog

from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.draft_cache import DraftCache
from services.worker.leader.drafting.draft_engine import STEP_LIMIT_S, DraftEngine
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan, StepResult

log = structlog.get_logger(__name__)
READ_TOKENS = 256
POOL_TOKENS = 16_384  # of its KV cache, which at most `MAX_SEQUENCES` sequences share
FEW_TOKENS = 16  # that a sequence may lack to guess in this round; more of them are read first

Asked = list[tuple[Sequence, int]]


class DraftRounds:
    """Rounds of the draft model, for one scheduler at a time.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, engine: DraftEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._cache: DraftCache | None = None
        self._scheduler: Scheduler | None = None
        self._admit: list[NewSequence] = []

    def see_engine(self, scheduler: Scheduler) -> None:
        """Sets whether the scheduler may ask the draft model; to be called before each plan."""
        cache = self._engine.cache
        scheduler.speculation.model_up = cache is not None
        if cache is not self._cache or scheduler is not self._scheduler:
            self._cache, self._scheduler, self._admit = cache, scheduler, []
            scheduler.speculation.forget_model()
            if cache is not None:
                cache.keep(())  # the sequences of another scheduler have the same numbers

    async def guess(self, scheduler: Scheduler, vocab_size: int) -> float:
        """Gives the scheduler guesses for its next step; no step may be in flight.

        Args:
            vocab_size: Of the served model; a guess is below it.

        Returns:
            The seconds that it took.
        """
        self.see_engine(scheduler)
        cache = self._cache
        asked = scheduler.speculation.asked(scheduler.running) if cache is not None else []
        if cache is None or not asked:
            return 0.0
        began = self._clock()
        cache.keep(one.seq_id for one in scheduler.running)
        try:
            async with asyncio.timeout(STEP_LIMIT_S):
                ready = await self._read(scheduler, cache, asked)
                if ready:
                    await self._guess(scheduler, cache, ready, vocab_size)
        except EngineFailed as error:
            self._engine.lose(error)
        except TimeoutError:
            self._engine.lose(EngineFailed(f"a round took more than {STEP_LIMIT_S:g} s", "step_late"))
        except Exception as error:  # a bug must not cost the requests, which need no guesses
            log.exception("a round of the draft model failed")
            self._engine.lose(EngineFailed(f"{type(error).__name__} in the leader", "leader_bug"))
        self.see_engine(scheduler)
        return self._clock() - began

    async def _read(self, scheduler: Scheduler, cache: DraftCache, asked: Asked) -> Asked:
        """Computes what sequences lack, in one step; returns those that can guess now."""
        chunks: list[ScheduledChunk] = []
        ready: Asked = []
        left = READ_TOKENS
        for sequence, count in asked:
            key, tokens = sequence.seq_id, sequence.tokens
            if key not in cache:
                draft_id = cache.open(key, len(tokens))
                if draft_id is None:
                    scheduler.speculation.refuse_model(key)
                    continue
                self._admit.append(_announce(sequence, draft_id))
            missing = cache.settle(key, tokens)
            read = min(missing - 1, left) if missing > FEW_TOKENS else 0
            if read:
                chunk = cache.extend(key, tokens, read, sample=False)
                if chunk is None:
                    self._refuse(scheduler, cache, key)
                    continue
                chunks.append(chunk)
                left -= read
            if missing - read <= FEW_TOKENS:
                ready.append((sequence, count))
        if chunks:
            began = self._clock()
            await self._submit(cache, chunks)
            scheduler.speculation.book_reading(len(scheduler.running), self._clock() - began)
        return ready

    async def _guess(self, scheduler: Scheduler, cache: DraftCache, ready: Asked, vocab_size: int) -> None:
        """Guesses the next tokens of sequences, each in a step for all of them."""
        began = self._clock()
        chunks, going = [], dict[int, int]()
        for sequence, count in ready:
            key, tokens = sequence.seq_id, sequence.tokens
            chunk = cache.extend(key, tokens, cache.num_missing(key, tokens), sample=True)
            if chunk is None:
                self._refuse(scheduler, cache, key)
                continue
            chunks.append(chunk)
            going[key] = count
        guesses: dict[int, list[int]] = {key: [] for key in going}
        wrong = set[int]()  # no token of these can be used any more
        flying: deque[tuple[list[int], asyncio.Future[StepResult]]] = deque()
        number = 1
        while chunks or flying:
            if chunks:
                flying.append((list(going), self._submit(cache, chunks)))
                number += 1
                following = {key: cache.follow(key) for key, count in going.items() if count >= number}
                chunks = [chunk for chunk in following.values() if chunk is not None]
                going = {key: going[key] for key, chunk in following.items() if chunk is not None}
                if chunks and len(flying) < MAX_OUTSTANDING:
                    continue
            keys, result = flying.popleft()
            for key, one in zip(keys, (await result).sampled, strict=True):
                cache.note_guess(key, one.token_id)
                if one.error or one.token_id >= vocab_size:
                    wrong.add(key)
                if key not in wrong:
                    guesses[key].append(one.token_id)
        scheduler.speculation.give_guesses(guesses, len(scheduler.running), self._clock() - began)

    def _submit(self, cache: DraftCache, chunks: list[ScheduledChunk]) -> asyncio.Future[StepResult]:
        release = cache.take_released()
        # a sequence may be given up before a plan has announced it
        admit = [new for new in self._admit if new.seq_id not in release]
        self._admit = []
        step_id = self._engine.next_step_id()
        return self._engine.submit(StepPlan(step_id=step_id, release=release, admit=admit, chunks=chunks))

    def _refuse(self, scheduler: Scheduler, cache: DraftCache, key: int) -> None:
        """Gives up a sequence for which the draft engine has no room."""
        cache.drop(key)
        scheduler.speculation.refuse_model(key)


def _announce(sequence: Sequence, draft_id: int) -> NewSequence:
    """What the draft engine has to know of a sequence: what its next token depends on."""
    return NewSequence(
        seq_id=draft_id,
        token_ids=sequence.tokens.copy(),
        prompt_len=sequence.prompt_len,
        sampling=msgspec.structs.replace(sequence.sampling, logprobs=-1, prompt_logprobs=-1),
        choice=sequence.choice,
        eos_ids=sorted(sequence.eos_ids),
    )
