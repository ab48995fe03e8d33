"""The engine port: the plan of a step, its result, and the `Engine` protocol.

The leader decides everything (which sequences, which tokens, which blocks); an engine computes. Plans travel
to rank processes as MessagePack, so these are wire types within a group.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec

from services.worker.rank_protocol.adapters import NO_ADAPTER, AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.kv_messages import (
    FetchBlocks,
    FetchResult,
    StoreBlock,
    StoreResult,
)
from services.worker.rank_protocol.prompt_parts import PromptPart
from services.worker.rank_protocol.step_masks import StepMasks
from services.worker.rank_protocol.step_times import StepTimes
from shared.messages import EmbeddingOptions

BLOCK_SIZE = 16  # tokens per KV block


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sequence that is new to the ranks, with all that sampling needs.

    Attributes:
        seq_id: Unique for the life of an engine.
        token_ids: The prompt, then tokens generated before (of a resumed or preempted sequence), which
            penalties count as output.
        prompt_len: Length of the prompt, in tokens.
        choice: Number of the choice, part of the sampling key.
        eos_ids: Tokens that end the sequence.
        embedding: Pools the hidden states of the prompt; then nothing is sampled.
        scored: Tokens of the prompt whose log probabilities the leader has; -1: it wants none.
        adapter: The slot of its adapter, which is loaded.
        max_tokens: Tokens that it may still bring, for engines that generate on their own; 0: no limit is
            given. Ranks sample what plans ask for.
        tenant: Whose it is, for engines with a prefix cache of their own. Ranks are told which blocks it has.
        form: What a guest is to follow with its own grammar engine; None: the answer is free, or masks come.
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    sampling: EngineSampling
    choice: int = 0
    eos_ids: list[int] = []
    embedding: EmbeddingOptions | None = None
    scored: int = -1
    adapter: int = NO_ADAPTER
    max_tokens: int = 0
    tenant: str = ""
    form: DemandedForm | None = None


class ScheduledChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive tokens of one sequence to compute in this step.

    Attributes:
        start: Position of the first token; the KV of all earlier positions is in the blocks.
        token_ids: The tokens to compute.
        new_blocks: Block ids appended to its table before the step; block i begins at i*BLOCK_SIZE.
        sliding_blocks: The same for the layers with a sliding window, where these have a pool of their own.
        sliding_first: Index of the first of them in the sequence. Blocks before it that the ranks were not
            sent are behind the window: nothing reads them.
        sample: Return the token after the last of `token_ids`; false for all but the last prefill chunk.
        follow: `token_ids` is empty; the token is the one that the previous step samples for this sequence.
        masked: It samples, and its tokens are limited by a mask, which comes in the `StepMasks` of this step.
        drafts: How many of the last `token_ids` are guesses. A token is sampled after each of them and before
            the first, and returned up to and with the first that differs from the guess.
        rewrite: Tokens that the ranks know from `start` on are forgotten first. Engines of draft models get
            such chunks after guesses that were wrong.
    """

    seq_id: int
    start: int
    token_ids: list[int]
    new_blocks: list[int] = []
    sliding_blocks: list[int] = []
    sliding_first: int = 0
    sample: bool = False
    follow: bool = False
    masked: bool = False
    drafts: int = 0
    rewrite: bool = False

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the chunk computes."""
        return 1 if self.follow else len(self.token_ids)


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mixed batch: `store`, `vacate` and `release` are applied first, then `admit`, then `chunks`.

    The blocks of `store` are copied before the step writes anything, so they are free for other sequences at
    once. The copies are written to the store in the background, with `hurry` without further delay.

    Attributes:
        vacate: Ranges (first, end) of blocks without content, whose memory the ranks give back to the system.
        vacate_sliding: The same of the layers with a sliding window.
    """

    step_id: int
    release: list[int] = []
    admit: list[NewSequence] = []
    chunks: list[ScheduledChunk] = []
    store: list[StoreBlock] = []
    hurry: bool = False
    vacate: list[tuple[int, int]] = []
    vacate_sliding: list[tuple[int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do for the ranks."""
        return not (self.chunks or self.release or self.store or self.vacate or self.vacate_sliding)


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token and its natural log probability by the model's own distribution, not the sampling's."""

    token_id: int
    logprob: float


class Sampled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The token chosen for a sequence.

    Attributes:
        token_id: The token; meaningless with an `error`.
        logprob: Its log probability, if the request asked for it.
        top: The most probable tokens, if the request asked for them.
        error: Why there is no token; this sequence cannot go on, the others can.
        cause: With an error whose fault it is: the request's, since its grammar and other demands leave no
            token, that of the group's guest, or unclear: a bug in our grammars, or logits that are no numbers
            (`failure_owners.py`).
        cached_tokens: Of a guest's first token: how many tokens of the sequence its own prefix cache had.
    """

    seq_id: int
    token_id: int
    logprob: float = 0.0
    top: list[Alternative] = []
    error: str = ""
    cause: Literal["demand", "grammar", "guest", "not_finite"] = "not_finite"
    cached_tokens: int = 0


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampled tokens of a step, in the order of the plan's sampling chunks, and rank 0's seconds.

    A chunk with drafts has one token more than drafts that were right. With `EngineInfo.streams` chunks may
    have none: their sequences have brought nothing yet, and the same token is planned again.

    Attributes:
        prompts: What it has brought of prompts; comes before the tokens of the same sequences. A sequence
            with an embedding has a token that means nothing.
        compute_s: The whole step from plan to result, of which the following times are parts.
        masks_s: Waiting for the masks of grammars; not a part of `sampling_s`.
        wait_s: Idle time of the rank before the step.
    """

    step_id: int
    sampled: list[Sampled]
    prompts: list[PromptPart] = []
    compute_s: float = 0.0
    linears_s: float = 0.0
    attention_s: float = 0.0
    collectives_s: float = 0.0
    sampling_s: float = 0.0
    masks_s: float = 0.0
    wait_s: float = 0.0


class Engine(Protocol):
    """A model that computes steps, in the order of their submission."""

    async def start(self) -> EngineInfo:
        """Load everything, and return when a step can run.

        Raises:
            EngineFailed: It did not start; the text is one sentence.
        """
        ...

    def submit(self, plan: StepPlan) -> Awaitable[StepResult]:
        """Queue a step; the result is a future of the running event loop.

        When the engine fails, every future that is not done raises `EngineFailed`, and so does every later
        `submit` until `stop` and a new `start`. Cancelling a future drops its result; the step runs anyway.

        Raises:
            EngineFailed: The engine has failed.
            RuntimeError: `MAX_OUTSTANDING` steps are not done, which is a bug of the caller.
        """
        ...

    def hurry(self) -> None:
        """End the running step with what has arrived, if `EngineInfo.streams`; else do nothing."""
        ...

    def supply_masks(self, masks: StepMasks) -> None:
        """Give the masks of a step that was submitted and has masked chunks; it is not done before.

        They come in the order of the steps, each once. Those of a failed engine are dropped.
        """
        ...

    def fetch_blocks(self, order: FetchBlocks) -> Awaitable[FetchResult]:
        """Read blocks from the store.

        Until the result, no step after `after_step` uses the target blocks; the ranks wait for earlier steps.
        Any number of fetches may run beside steps. A fetch ends also when the store does not answer; `count`
        says how many leading blocks are usable.

        Raises:
            EngineFailed: A rank is gone.
        """
        ...

    def load_adapter(self, order: LoadAdapter) -> Awaitable[AdapterLoaded]:
        """Read an adapter into a slot on all ranks, beside steps; the result is the worst of the ranks'.

        Raises:
            EngineFailed: A rank is gone.
        """
        ...

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        """Call `on_stored` with the results of the copies of plans' `store`, each copy once.

        A block is stored when all ranks have written it. There is one watcher; a later call replaces it.
        Copies of a failed engine get no result.
        """
        ...

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        """Call `on_failure` when the engine fails while no step runs; the next `submit` raises the reason.

        There is one watcher; a later call replaces it.
        """
        ...

    def status(self) -> list[dict[str, object]]:
        """Return the row of each rank for `ryz status`: rank, pid, state, steps, memory in bytes."""
        ...

    def step_times(self) -> StepTimes | None:
        """Return what the ranks of this start record, readable after `stop`; None if they record nothing."""
        ...

    async def stop(self) -> None:
        """End all ranks and free their shared memory. May be called twice, and after a failure."""
        ...
