"""The engine port over rank processes: real models, computed by torch in other processes.

Starts the ranks through `ProcessGroupManager`, sends every plan to all of them and hands out what rank 0
answers. The death of a rank is seen at once as the end of its socket, a hanging one by the step's time limit;
both end the engine with a sentence that says which rank and why. No torch here.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import msgspec

from services.worker.adapters.rank_blocks import RankBlocks
from services.worker.adapters.rank_link import RankLink
from services.worker.adapters.rank_options import RankEngineOptions, cores, group_config
from services.worker.adapters.remote_ranks import RemoteRanks
from services.worker.adapters.step_limit import StepLimit
from services.worker.domain.kv_messages import FetchBlocks, Fetched, Stored
from services.worker.domain.plan import (
    MAX_OUTSTANDING,
    EngineFailed,
    EngineInfo,
    EngineRefused,
    RankInfo,
    StepPlan,
    StepResult,
)
from services.worker.domain.rank_messages import (
    Kind,
    RankFailed,
    RankReady,
    pack_frame,
)
from services.worker.orchestrator.process_group_manager import (
    ProcessGroupManager,
    RankProcess,
)

__all__ = ["RankEngine", "RankEngineOptions"]
_EXIT_WAIT_S = 0.1  # at most, from the end of a socket, which comes first, to its process's exit code


class RankEngine:
    """See `Engine` for the contract. After `stop` it may be started again, with fresh processes."""

    def __init__(self, options: RankEngineOptions) -> None:
        self.options = options
        self._threads = options.threads or max(1, cores() // max(1, options.tensor_parallel))
        self._processes = ProcessGroupManager(start=options.rank_start)
        self._remote = RemoteRanks(options.rank_listen, options.rank_token, options.remote_ranks)
        self._links: list[RankLink] = []
        self._blocks = RankBlocks(self._on_kv_end)
        self._ready: dict[int, RankReady] = {}
        self._starting: asyncio.Future[None] | None = None
        self._outstanding: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()  # oldest first
        self._timer: asyncio.TimerHandle | None = None  # of the oldest one
        self._failure = "the engine was not started"
        self._refused = False  # for a reason that would be the same the next time
        self._limit = StepLimit(options.step_timeout_s, 0)
        self._on_idle_failure: Callable[[], None] | None = None
        self._steps = 0
        self._plan = msgspec.msgpack.Encoder()
        self._result = msgspec.msgpack.Decoder(StepResult)

    def prepare(self) -> None:
        """Begins with what takes long and needs no model: the import of torch, in a process that ranks are
        forked from. May be left out; `stop` ends it.
        """
        with contextlib.suppress(OSError):  # `start` tries again and says why not
            self._processes.prepare(self._threads)

    async def start(self) -> EngineInfo:
        """Starts and loads all ranks; see `Engine`."""
        options = self.options
        if self._links:
            raise EngineFailed("the engine runs already; stop it before it is started again")
        self._failure, self._refused, self._steps, self._ready = "", False, 0, {}
        try:
            remote = await self._gather()
            with contextlib.ExitStack() as stack:
                self._spawn(stack, remote)
            await self._until_ready(options.start_timeout_s)
        except OSError as error:
            self._failure = f"the ranks could not be started: {error}"
            raise EngineFailed(self._failure) from error
        finally:
            if self._failure or len(self._ready) < options.tensor_parallel:
                await self.stop()
                self._close()
        first = self._ready[0]
        largest = max(ready.info.loaded_bytes for ready in self._ready.values())
        self._limit = StepLimit(options.step_timeout_s, largest)
        return EngineInfo(
            num_blocks=first.num_blocks,
            vocab_size=first.vocab_size,
            context_length=first.context_length,
            fingerprint=first.fingerprint,
            kv_format=first.kv_format,
            kv_parts=first.kv_parts,
            ranks=[self._ready[rank].info for rank in range(options.tensor_parallel)],
        )

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Sends the plan to all ranks; see `Engine`."""
        if self._failure:
            raise EngineFailed(self._failure)
        if len(self._outstanding) >= MAX_OUTSTANDING:
            raise RuntimeError(f"step {plan.step_id} was submitted before {MAX_OUTSTANDING} others were done")
        future: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._outstanding.append((plan, future))
        if len(self._outstanding) == 1:
            self._time_oldest()
        self._steps += 1
        if plan.store:
            self._blocks.expect(plan.store)
        frame = pack_frame(Kind.PLAN, plan)
        for link in self._links:
            link.send(frame)
        return future

    def fetch(self, order: FetchBlocks) -> asyncio.Future[Fetched]:
        """Sends the order to all ranks; see `Engine`."""
        if self._failure:
            raise EngineFailed(self._failure)
        return self._blocks.fetch(order)

    def watch_store(self, on_stored: Callable[[Stored], None]) -> None:
        """See `Engine`."""
        self._blocks.on_stored = on_stored

    def watch(self, on_failure: Callable[[], None]) -> None:
        """See `Engine`."""
        self._on_idle_failure = on_failure

    def status(self) -> list[dict[str, object]]:
        """Each rank: rank, pid, state (`starting`, `ready`, `failed`), steps, memory and loaded bytes."""
        rows: list[dict[str, object]] = []
        for process in self._processes.ranks:
            ready = self._ready.get(process.rank)
            info = (
                ready.info
                if ready
                else RankInfo(
                    rank=process.rank, pid=process.pid, load_s=0.0, loaded_bytes=0, peak_rss_bytes=0
                )
            )
            rows.append(
                {
                    "rank": process.rank,
                    "pid": info.pid,
                    "host": process.host,
                    "state": "failed" if self._failure else "ready" if ready else "starting",
                    "steps": self._steps,
                    "memory_bytes": process.memory_bytes(),
                    "loaded_bytes": info.loaded_bytes,
                    "load_s": round(info.load_s, 3),
                    "kernels": info.kernels,
                    "kv_cache_bytes": ready.kv_cache_bytes if ready else 0,
                }
            )
        return rows

    async def stop(self) -> None:
        """Ends all ranks: those of a healthy engine by closing their sockets, others by force.

        After a failure what ranks are forked from is kept for the next start; a second call ends it.
        """
        restarts = bool(self._failure and self._links)
        at_once = bool(self._failure or self._outstanding)
        self._fail("the engine was stopped", tell=False)
        for link in self._links:
            link.close()
        self._links = []
        self._blocks.close(EngineFailed(self._failure))
        await self._processes.stop(0.0 if at_once else self.options.stop_timeout_s)
        if not restarts:
            self._close()

    def _close(self) -> None:
        """Ends what outlives a failed engine."""
        self._processes.close()
        self._remote.close()

    async def _gather(self) -> list[RankProcess]:
        """The ranks of other hosts; raises `EngineFailed` when they do not come."""
        options = self.options
        if not options.remote_ranks:
            return []
        self.prepare()
        first = options.tensor_parallel - options.remote_ranks
        try:
            return await self._remote.gather(first, options.start_timeout_s)
        except EngineFailed as error:
            self._failure = str(error)
            raise

    def _spawn(self, stack: contextlib.ExitStack, remote: list[RankProcess]) -> None:
        """Starts the processes and sends their configs; what only they need is closed with the stack."""
        self._processes.adopt(remote)
        # where the others have found this host
        address = remote[0].sock.getsockname()[0] if remote else ""
        config, inherit = group_config(self.options, self._threads, address, stack)
        here = config.world - config.remote
        stores = config.kv_store is not None
        for process in self._processes.spawn(here, self._threads, inherit, kv_sockets=stores):
            link = RankLink(process, self._on_frame, self._on_end)
            self._links.append(link)
            own = msgspec.structs.replace(config, rank=process.rank, kv_fd=process.kv_fd)
            if process in remote:
                own = msgspec.structs.replace(own, store_fd=-1)
            link.send(pack_frame(Kind.CONFIG, own))
        self._blocks.open(self._processes.ranks)

    async def _until_ready(self, limit_s: float) -> None:
        """Waits until all ranks are; a failure, a timeout or a cancellation ends the engine."""
        loop = asyncio.get_running_loop()
        self._starting = loop.create_future()
        late = f"the ranks did not load the model within {limit_s:g} s"
        timer = loop.call_later(limit_s, self._fail, late)
        try:
            await self._starting
        except asyncio.CancelledError:
            self._fail("the start was abandoned before the ranks were ready", tell=False)
            raise
        finally:
            timer.cancel()
            self._starting = None

    def _time_oldest(self) -> None:
        """Limits the time of the oldest step from now on: its ranks have begun with it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._outstanding:
            plan = self._outstanding[0][0]
            limit_s = self._limit.of(plan)
            late = f"step {plan.step_id} was not done within {limit_s:g} s"
            self._timer = asyncio.get_running_loop().call_later(limit_s, self._fail, late)

    def _on_frame(self, process: RankProcess, kind: Kind, body: bytes) -> None:
        if kind is Kind.FAILED:
            failed = msgspec.msgpack.decode(body, type=RankFailed)
            self._refused = failed.refused and not self._failure
            self._fail(failed.message if not self._steps else f"rank {process.rank}: {failed.message}")
        elif kind is Kind.READY:
            self._ready[process.rank] = msgspec.msgpack.decode(body, type=RankReady)
            all_ready = len(self._ready) == self.options.tensor_parallel
            if all_ready and self._starting is not None and not self._starting.done():
                self._starting.set_result(None)
        elif self._outstanding:  # else the engine failed a moment ago
            plan, future = self._outstanding.popleft()
            result = self._result.decode(body)
            self._limit.done(plan, result.compute_s)
            self._time_oldest()
            if not future.done():
                future.set_result(result)

    def _on_end(self, process: RankProcess, reason: str) -> None:
        if not reason:
            reason = process.describe_end(_EXIT_WAIT_S)
        ready = self._ready.get(process.rank)
        where = f" on {process.host}" if process.host else ""
        pid = ready.info.pid if ready else process.pid
        self._fail(f"rank {process.rank} (pid {pid}{where}) is gone: {reason}")

    def _on_kv_end(self, reason: str) -> None:
        """A rank that does not move blocks any more may still write to some: it has to go.

        Mostly its process has ended, and the end of the other socket says why.
        """
        asyncio.get_running_loop().call_later(_EXIT_WAIT_S, self._fail, reason)

    def _fail(self, reason: str, tell: bool = True) -> None:
        """The first reason counts; the ranks end at once, since no step can follow."""
        if self._failure:
            return
        self._failure = reason
        if self._links and tell:
            self._processes.kill()
        waiting: list[asyncio.Future[StepResult] | asyncio.Future[None]] = [f for _, f in self._outstanding]
        if self._starting is not None:
            waiting.append(self._starting)
        self._outstanding.clear()
        self._time_oldest()
        self._blocks.close(EngineFailed(reason))
        for future in waiting:
            if not future.done():
                future.set_exception((EngineRefused if self._refused else EngineFailed)(reason))
                future.exception()  # nobody has to ask for the second one
        if tell and not waiting and self._on_idle_failure is not None:
            self._on_idle_failure()
