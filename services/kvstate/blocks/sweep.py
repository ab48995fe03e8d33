"""The sweep of KV blocks: evicts above the marks, releases holdings of sessions that are over, reconciles.

Every replica reads the totals; one replica at a time does the rest. Doing it twice does no harm.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from services.kvstate.blocks.store import BlockStore
from services.kvstate.blocks.tier import AskFates, BlockTier
from shared.errors import Unavailable

_HOLDERS_PER_STEP = 16  # the script counts all their blocks
_HOLDER_STEPS = 32
_SCAN_STEPS = 4
_SAFE_POLICY = "noeviction"  # any other takes session records as well, which expire and are seldom read
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SweepRules:
    """Times of the sweep, in seconds.

    Attributes:
        every_s: Seconds between two sweeps.
        away_every_s: Between sweeps while the store is away.
        grace_s: How long a session may hold blocks before its first record.
        orphan_s: How long bytes without facts live.
        recheck_s: Between checks of one holder.
    """

    owner: str
    every_s: float
    away_every_s: float
    grace_s: float
    orphan_s: float
    recheck_s: float = 30.0


class BlockSweeper:
    """Sweeps the tier. Start `sweep_forever` as a task, and cancel it to end it.

    Args:
        on_evicted: Called with the reason and the number of blocks deleted.
        fates: Asks the session store, which may be away while the block store is not.
    """

    def __init__(
        self,
        tier: BlockTier,
        store: BlockStore,
        rules: SweepRules,
        on_evicted: Callable[[str, int], None],
        fates: AskFates,
    ) -> None:
        self._tier = tier
        self._store = store
        self._rules = rules
        self._on_evicted = on_evicted
        self._fates = fates
        self._cursor = (0, 0)
        self._policy = _SAFE_POLICY

    async def sweep_forever(self) -> None:
        """Sweeps until it is cancelled, also if the cancellation gets lost in a call that just ended."""
        task = asyncio.current_task()
        while not (task and task.cancelling()):
            there = await self.sweep_once()
            await asyncio.sleep(self._rules.every_s if there else self._rules.away_every_s)

    async def sweep_once(self) -> bool:
        """Sweeps once, unless another replica did lately; returns False if the store is away."""
        try:
            self._check_policy((await self._tier.refresh_totals()).policy)
            if await self._store.become_sweeper(self._rules.owner, int(self._rules.every_s * 900)):
                await self._tier.keep_below()
                await self._check_holders()
                await self._reconcile()
                await self._tier.refresh_totals()
        except Unavailable as error:
            log.debug("KV store away", error=error.message)  # the link has logged the change
            return False
        return True

    def _check_policy(self, policy: str) -> None:
        if policy not in {self._policy, _SAFE_POLICY}:
            log.warning(
                "a full Redis would delete sessions by itself; set its maxmemory-policy to noeviction",
                policy=policy,
            )
        self._policy = policy

    async def _check_holders(self) -> None:
        recheck_ms, grace_ms = int(self._rules.recheck_s * 1000), int(self._rules.grace_s * 1000)
        for _ in range(_HOLDER_STEPS):
            due = await self._store.due_holders(_HOLDERS_PER_STEP)
            if due:
                try:
                    fates = dict(zip(due, await self._fates(due), strict=True))
                except Unavailable as error:  # no session counts as over then
                    log.debug("session store away", error=error.message)
                    return
                blocks = await self._store.check_holders(fates, recheck_ms=recheck_ms, grace_ms=grace_ms)
                self._on_evicted("session_expired", blocks)
            if len(due) < _HOLDERS_PER_STEP:
                return

    async def _reconcile(self) -> None:
        for _ in range(_SCAN_STEPS):
            step = await self._store.reconcile_step(self._cursor, orphan_ms=int(self._rules.orphan_s * 1000))
            self._cursor = step.cursor
            self._on_evicted("lost", step.lost)
            if step.lost:
                log.warning("KV blocks were registered, but their bytes were gone", blocks=step.lost)
