"""The engine port: what a leader asks of its ranks in one step, and what comes back.

Pure data and one Protocol. The leader decides everything (which sequences, which tokens, which blocks); an
engine computes. Plans travel to rank processes as MessagePack, so the types are wire types of the group.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from services.worker.rank_protocol.failures import Failure, FailureKind
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from shared.messages import Sampling

BLOCK_SIZE = 16  # tokens per KV block
MAX_OUTSTANDING = 2  # steps that an engine takes before the first of them is done


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sequence the ranks have not seen: what sampling needs to know about it.

    seq_id is unique for the life of an engine. `prompt_len` of `token_ids` is the prompt; more than that are
    tokens generated before (a resumed or preempted sequence): penalties count them as output.
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    sampling: Sampling
    choice: int = 0
    eos_ids: list[int] = []


class ScheduledChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive tokens of one sequence to compute in this step.

    start: position of the first of `token_ids`; the KV of all positions before it is in the blocks.
    new_blocks: block ids appended to the sequence's table before the step; block i of the table holds
        positions i*BLOCK_SIZE up to (i+1)*BLOCK_SIZE.
    sample: return the token that follows the last of `token_ids` (false for all but the last prefill chunk).
    follow: `token_ids` is empty; the slice is the one token that the step before samples for this sequence,
        which the leader had not seen when it planned.
    """

    seq_id: int
    start: int
    token_ids: list[int]
    new_blocks: list[int] = []
    sample: bool = False
    follow: bool = False

    @property
    def num_tokens(self) -> int:
        """How many tokens it computes."""
        return 1 if self.follow else len(self.token_ids)


class StoreBlock(msgspec.Struct, frozen=True, array_like=True):
    """A full and computed block that is to be copied for the store, under that name."""

    block: int
    name: bytes


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mixed batch. `store` and `release` are applied first, then `admit`, then the slices are computed.

    What `store` names is copied before anything of the step is written, so its blocks are free for others at
    once; the copies go to the store behind the steps.
    """

    step_id: int
    release: list[int] = []
    admit: list[NewSequence] = []
    slices: list[ScheduledChunk] = []
    store: list[StoreBlock] = []


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token and its natural log probability by the model's own distribution, not the sampling's."""

    token_id: int
    logprob: float


class Sampled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The token chosen for a sequence; logprob and alternatives only when the request asked for them.

    error: why there is no token (`token_id` means nothing then); the sequence cannot go on, the others can.
    """

    seq_id: int
    token_id: int
    logprob: float = 0.0
    top: list[Alternative] = []
    error: str = ""


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampled tokens of a step, in the order of the plan's sampling slices, and rank 0's seconds.

    compute_s is the whole step from plan to result; the other times are parts of it. wait_s came before it:
    how long the rank had nothing to do.
    """

    step_id: int
    sampled: list[Sampled]
    compute_s: float = 0.0
    linears_s: float = 0.0
    attention_s: float = 0.0
    collectives_s: float = 0.0
    sampling_s: float = 0.0
    wait_s: float = 0.0


class KVParts(msgspec.Struct, frozen=True, kw_only=True):
    """Of what a block consists in the store: a value for each KV head of the model, of so many bytes."""

    heads: int
    head_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block, uncompressed."""
        return self.heads * self.head_bytes


class RankInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank after its start; `kernels` names what it computes with, such as `plain` or `native int8`."""

    rank: int
    pid: int
    load_s: float
    loaded_bytes: int
    peak_rss_bytes: int
    kernels: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine that is ready.

    fingerprint: names weights and config, whatever the degree of parallelism.
    kv_format: how keys and values are kept; blocks of one format are of no use to another.
    kv_parts: of what its blocks consist in the store; None: it does not store any.
    run_ahead: steps that are worth having queued behind the one that runs; 0 where a step takes no time.
    """

    num_blocks: int
    vocab_size: int
    context_length: int
    fingerprint: str
    kv_format: str = "fp32"
    kv_parts: KVParts | None = None
    run_ahead: int = MAX_OUTSTANDING - 1
    ranks: list[RankInfo] = []


class EngineFailed(Exception):
    """The engine is gone or broken; every running sequence is lost with it. The text says what and why.

    failure: the same as data.
    """

    def __init__(
        self,
        reason: str,
        kind: FailureKind = "rank_failed",
        rank: int = -1,
        *,
        fault: bool = False,
        step_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.failure = Failure(kind, reason, rank, fault, step_ids)


class EngineRefused(EngineFailed):
    """The engine cannot serve this model with these settings; another start would end the same."""

    def __init__(self, reason: str, rank: int = -1) -> None:
        super().__init__(reason, "refused", rank)


class Engine(Protocol):
    """A model that computes steps, in the order of their submission."""

    async def start(self) -> EngineInfo:
        """Loads everything; returns when a step can run. Raises `EngineFailed` with one clear sentence."""
        ...

    def submit(self, plan: StepPlan) -> Awaitable[StepResult]:
        """Queues a step; the result is a future of the running event loop.

        At most `MAX_OUTSTANDING` steps are not done at any time, one more is a bug (`RuntimeError`). When a
        rank died, hung or refused, every future that is not done raises `EngineFailed`, and so does `submit`
        from then on; only `stop` helps. Cancelling a future drops its result, the step runs all the same.
        """
        ...

    def fetch_blocks(self, order: FetchBlocks) -> Awaitable[FetchResult]:
        """Reads blocks from the store into places that no step reads or writes until the answer is there,
        but for steps up to `after_step`, which the ranks wait for.

        Any number may be under way, beside steps; the future ends also when the store does not answer, with a
        count that says how many leading blocks are usable. Raises `EngineFailed` when a rank is gone.
        """
        ...

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        """Calls `on_stored` with what became of the copies of plans' `store`, each copy once.

        `names` are written by all ranks. There is one watcher; a later call replaces it. Copies of an engine
        that failed are not spoken of again.
        """
        ...

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        """Calls `on_failure` when the engine fails while no step runs; the next `submit` raises the reason.

        There is one watcher; a later call replaces it.
        """
        ...

    def status(self) -> list[dict[str, object]]:
        """What `ryz status` shows of each rank: rank, pid, state, steps, memory in bytes."""
        ...

    async def stop(self) -> None:
        """Ends all ranks and frees their shared memory. May be called twice, and after a failure."""
        ...
