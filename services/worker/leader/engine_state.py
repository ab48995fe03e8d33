"""The engine as the parts of the leader see it: its scheduler, its limits, and whether it stores KV blocks.

`EngineSupervisor` and `EngineLoop` write it; all others read. Scheduler and facts are replaced at each start.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from services.worker.domain.adapters.pool import AdapterPool
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import UNNAMED, BlockNames, PrefixSharing
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.scheduler import Scheduler, SchedulerLimits
from services.worker.domain.scheduling.step_measures import StepTotals
from services.worker.leader.step_log import StepLog
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine
from services.worker.rank_protocol.sliding_pool import chunk_blocks
from shared.guests.needs import without_lacking
from shared.kv_hash import weights_fingerprint
from shared.messages import Adapter, GuestCard, SamplingDefaults

log = structlog.get_logger(__name__)
# of a rank's memory that is given back together: of its first and its last huge page, only parts lie in it
_LEAST_REGION, _MOST_REGION, _REGIONS = 2 << 20, 8 << 20, 32


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of one start of the engine that sequences are made with.

    Attributes:
        context_length: Tokens that a sequence may have, the prompt included.
        vocab_size: Token ids are below it.
        fingerprint: Names the weights and the KV format.
        hidden_size: Length of an embedding.
        adapter_bytes: Memory for adapters; 0: the engine computes without.
        guest: The engine of others that computes; None: an engine of ours.
    """

    context_length: int
    vocab_size: int
    fingerprint: str = ""
    names: BlockNames = UNNAMED
    hidden_size: int = 0
    adapter_bytes: int = 0
    guest: GuestCard | None = None

    def lacks(self, ability: str) -> bool:
        """Whether a guest computes that cannot do this."""
        return self.guest is not None and ability in self.guest.lacks

    def defaults(self, sampling: SamplingDefaults) -> SamplingDefaults:
        """Returns a model's defaults of sampling without those that a guest cannot take."""
        return sampling if self.guest is None else without_lacking(sampling, self.guest.lacks)

    def fingerprint_with(self, adapter: Adapter | None) -> str:
        """Names the weights, the adapter beside them, and the KV format."""
        if adapter is None:
            return self.fingerprint
        weights = weights_fingerprint(self.names.fingerprint, adapter.fingerprint)
        return f"{weights}/{self.names.kv_format}"


class EngineState:
    """The engine, and what is known of its present start.

    Attributes:
        engine: The port to the ranks, or to the null engine.
        clock: Returns monotonic seconds.
        costs: Measured costs of computing and of fetching KV; kept over restarts.
        work: Set when there may be a step to plan.
        facts: Of the last start; before the first one, of the model alone.
        info: What the engine said of itself at the last start; None before the first one.
        scheduler: None while the engine is down.
        kv_scheduler: The same scheduler if the engine has a KV store, else None.
        kv_parts: Parts of a stored block, one for each KV head.
        num_tokens: Tokens computed since the leader started, prefill and decode.
        totals: Sums over all steps since then.
    """

    def __init__(
        self,
        engine: Engine,
        limits: SchedulerLimits,
        sharing: PrefixSharing,
        context_length: int,
        costs: TransferCostModel,
        *,
        adapter_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.costs = costs
        self.work = asyncio.Event()
        self.facts = EngineFacts(context_length, 0)
        self.info: EngineInfo | None = None
        self.scheduler: Scheduler | None = None
        self.kv_scheduler: Scheduler | None = None
        self.kv_parts = 1
        self.num_tokens = 0
        self.totals = StepTotals()
        self.step_log = StepLog()
        self._limits = limits
        self._sharing = sharing
        self._adapter_bytes = adapter_bytes
        self.clock = clock
        self._watchers: list[Callable[[], None]] = []

    def watch_starts(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each start and each end of the engine: its cache is empty then."""
        self._watchers.append(watcher)

    def begin_start(self, info: EngineInfo) -> Scheduler:
        """Records a start of the engine; returns the scheduler made for it."""
        # what an engine of others shares between its sequences is its own business, and not known here
        names = BlockNames(info.fingerprint, info.kv_format, "off" if info.streams else self._sharing)
        # the engine's, not the config's: scaled positions reach beyond what the config calls the longest
        context_length = min(info.context_length, info.num_blocks * BLOCK_SIZE)
        self.info = info
        self.step_log.begin_start(self.engine.step_times())
        self.facts = EngineFacts(
            context_length,
            info.vocab_size,
            f"{info.fingerprint}/{info.kv_format}",
            names,
            info.hidden_size,
            self._adapter_bytes if info.adapters else 0,
            info.guest,
        )
        sliding = None
        if info.num_sliding_blocks:
            filled = chunk_blocks(self._limits.token_budget, self._limits.max_running)
            region = _region(info.num_sliding_blocks, info.sliding_bytes)
            sliding = SlidingBlocks(info.num_sliding_blocks, info.window, filled, region)
        blocks = BlockManager(info.num_blocks, sliding, _region(info.num_blocks, info.block_bytes))
        limits = self._limits
        if info.streams:
            running = min(limits.max_running, info.max_running or limits.max_running)
            limits = replace(limits, max_running=running, draft_tokens=0)
        if any(rank.kernels.startswith("plain") for rank in info.ranks):
            limits = replace(limits, draft_tokens=0)  # these compute chunks and single tokens with other bits
        self.scheduler = Scheduler(
            blocks,
            limits,
            names,
            costs=self.costs,
            clock=self.clock,
            adapters=AdapterPool(self.facts.adapter_bytes),
            streams=info.streams,
        )
        if info.kv_parts is not None and names.sharing != "off":
            self.kv_scheduler, self.kv_parts = self.scheduler, info.kv_parts.heads
        self._call_watchers()
        return self.scheduler

    def set_kv_limit(self, limit: int, bound: int | None = None) -> int:
        """Limits the KV blocks that hold content; the ranks give the memory of the others to the system.

        Running sequences keep their blocks and may grow; call it again for those that they leave behind.

        Args:
            limit: Blocks for new sequences.
            bound: Blocks beyond which running ones do not grow either, as if the pool had no more; None: all.

        Returns:
            The limit that holds: enough for the longest request, and all blocks while the engine is down or
            gives no memory back, which is logged.
        """
        info, scheduler = self.info, self.scheduler
        if info is None or scheduler is None:
            return limit
        wanted = min(max(limit, blocks_for(self.facts.context_length)), info.num_blocks)
        if not info.block_bytes:
            if wanted < info.num_blocks:
                log.warning(
                    "the KV cache keeps its memory: ranks without kernels, or on a GPU, give none back"
                )
            return info.num_blocks
        scheduler.blocks.set_limit(wanted, None if bound is None else max(bound, wanted))
        self.work.set()
        return wanted

    def end_start(self) -> Scheduler | None:
        """Records that the engine is down; returns the scheduler that it had."""
        scheduler, self.scheduler, self.kv_scheduler = self.scheduler, None, None
        self._call_watchers()
        return scheduler

    def _call_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def count_tokens(self, num_tokens: int) -> None:
        """Counts the tokens of a step that is done."""
        self.num_tokens += num_tokens


def _region(num_blocks: int, block_bytes: int) -> int:
    """How many blocks are withheld together, of so many with so many bytes on a rank."""
    size = min(_MOST_REGION, max(_LEAST_REGION, num_blocks * block_bytes // _REGIONS))
    return -(-size // block_bytes) if block_bytes else 1
