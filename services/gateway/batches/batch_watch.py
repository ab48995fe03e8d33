"""Finds batches that no gateway looks after, and looks after some of them; stops in order."""

import asyncio
import time
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from services.gateway.batches.batch_log import LeaseLost
from services.gateway.batches.batch_owner import BatchKeeper
from services.gateway.batches.batch_parts import BatchParts
from services.gateway.batches.batch_record import BatchRecord
from services.gateway.batches.batch_runner import BatchRunner
from shared.bus import Bus
from shared.errors import BatchNotFound, RyzError

POLL_S = 0.25
IDLE_POLLS = 4  # without batches that have not ended the broker is asked once in so many turns
AGAIN_S = 2.0  # after which a batch is tried again that could not go on
MAX_KEPT = 16

log = structlog.get_logger(__name__)


class BatchWatch:
    """Runs the keepers and the runner of a gateway.

    Args:
        bus: Tells when its connection was lost.
        parts: Records, streams, files, limits.
        runner: Runs requests.
    """

    def __init__(self, bus: Bus, parts: BatchParts, runner: BatchRunner) -> None:
        self._bus = bus
        self._parts = parts
        self._runner = runner
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._restored_at = bus.restored_at
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins."""
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._runner.run())]

    async def stop(self) -> None:
        """Gives requests and leases back, so that another gateway goes on at once."""
        if self._stopping:
            return
        self._stopping = True
        kept = dict(self._keeping)
        for task in (*self._tasks, *kept.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *kept.values(), return_exceptions=True)
        for batch_id in kept:
            with suppress(RyzError):
                await self._release(batch_id)

    async def _watch(self) -> None:
        turn = 0
        while True:
            turn += 1
            try:
                if self._bus.restored_at != self._restored_at:  # the broker may have lost its disk
                    self._restored_at = self._bus.restored_at
                    self._parts.log.start_anew()
                open_ = any(not record.cleaned for record in self._parts.log.records.values())
                if open_ or turn % IDLE_POLLS == 1:
                    await self._parts.log.poll()
                self._keep_some()
            except RyzError:
                pass  # no broker at the moment
            except Exception as error:
                log.error("batches were not looked after", exc_info=error)
            await asyncio.sleep(POLL_S)

    def _keep_some(self) -> None:
        now_s = time.time()
        for record in list(self._parts.log.records.values()):
            name = record.batch_id
            if len(self._keeping) >= MAX_KEPT:
                return
            theirs = record.owner not in {"", self._parts.rules.owner} and record.lease_until_s > now_s
            if record.cleaned or theirs or name in self._keeping or self._not_before.get(name, 0) > now_s:
                continue
            task = asyncio.create_task(self._keep(record))
            self._keeping[name] = task
            task.add_done_callback(partial(self._kept, name))

    def _kept(self, name: str, _: asyncio.Task[None]) -> None:
        self._keeping.pop(name, None)

    async def _keep(self, record: BatchRecord) -> None:
        name = record.batch_id
        try:
            await BatchKeeper(self._parts, record).keep()
            self._not_before.pop(name, None)
            return
        except (LeaseLost, BatchNotFound):
            pass
        except RyzError as error:
            log.warning("a batch waits", batch_id=name, error=error.message)
        except Exception as error:
            log.error("a batch failed and is tried again", batch_id=name, exc_info=error)
        self._not_before[name] = time.time() + AGAIN_S

    async def _release(self, batch_id: str) -> None:
        record = self._parts.log.records.get(batch_id)
        if record is None or record.cleaned:
            return

        def give_up(current: BatchRecord) -> BatchRecord:
            mine = current.owner == self._parts.rules.owner
            return replace(current, owner="", lease_until_s=0.0) if mine else current

        await self._parts.log.change(record.tenant, batch_id, give_up)
