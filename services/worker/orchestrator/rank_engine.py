"""The engine port over rank processes, which compute real models with torch.

Sends every plan to all ranks and returns the answers of rank 0. `ResourceAllocator` takes what the ranks need
of the machine, `ProcessGroupManager` starts and ends them, `HealthMonitor` finds failures. Any failure ends
the engine, with a sentence that names the rank and the reason. No torch here.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from services.worker.orchestrator.devices.watch import DeviceWatch
from services.worker.orchestrator.health_monitor import HealthMonitor
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.orders.rank_adapters import RankAdapters
from services.worker.orchestrator.orders.rank_blocks import RankBlocks
from services.worker.orchestrator.process_group_manager import ProcessGroupManager, RankProcess
from services.worker.orchestrator.rank_link import RankLink
from services.worker.orchestrator.rank_start import RankStart
from services.worker.orchestrator.rank_status import status_rows
from services.worker.orchestrator.remote_ranks import RemoteRankListener
from services.worker.orchestrator.resource_allocator import ResourceAllocator
from services.worker.orchestrator.running_steps import RunningSteps
from services.worker.orchestrator.time_limits import StepLimit
from services.worker.orchestrator.tracing.rank_tracing import RankTracing
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, Failure, engine_error
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.rank_messages import FrameKind, RankFailed, RankReady, pack_frame
from services.worker.rank_protocol.step_masks import StepMasks
from services.worker.rank_protocol.step_times import StepTimes

_KV_END_WAIT_S = 0.1  # by then the rank's other socket has ended, too, which gives the reason
_NEW = Failure("start_failed", "the engine was not started")
_STOPPED = Failure("start_failed", "the engine was stopped")


class RankEngine:
    """An `Engine` over rank processes. After `stop` it may be started again, with new processes.

    Args:
        options: How the model is run.
        processes: Starts the ranks, for tests; None: as in the options.

    Attributes:
        tracing: Clocks and recordings of the ranks.
    """

    def __init__(self, options: RankEngineOptions, processes: ProcessGroupManager | None = None) -> None:
        self._options, self._run = options, options.run
        self._resources = ResourceAllocator(options)
        self._processes = processes or ProcessGroupManager(
            start=options.processes.rank_start,
            nice=options.processes.rank_nice,
            instance_id=options.instance_id,
        )
        self._remote = RemoteRankListener(
            options.processes.rank_listen, options.processes.rank_token, options.run.remote_ranks
        )
        self._links: list[RankLink] = []
        self._blocks = RankBlocks(self._on_kv_end)
        self._adapters = RankAdapters()
        self.tracing, self._devices = RankTracing(), DeviceWatch(self._fail)
        self._loading = RankStart(self._processes, self._run.tensor_parallel, self._fail)
        self._failure: Failure | None = _NEW
        self._loads = False  # `start_loading` has started the ranks
        self._served = False  # it was ready once
        self._starts = 0  # number of starts, so that a late callback of an earlier one does nothing
        self._steps = RunningSteps(self._watch_nothing(), self._fail)
        self._on_idle_failure: Callable[[], None] | None = None
        self._result = msgspec.msgpack.Decoder(StepResult)

    def start_fork_server(self) -> None:
        """Start the fork server early, since importing torch takes long. Optional; `stop` ends it."""
        with contextlib.suppress(OSError):  # `start` tries again and raises the error
            self._processes.start_fork_server(self._resources.threads)

    def start_loading(self) -> None:
        """Start the ranks early, which load while the leader does something else. Optional; `start` waits.

        Nothing happens if ranks of other hosts join, for which `start` has to wait.
        """
        if self._run.remote_ranks or self._links:
            return
        self._loads = True
        try:
            self._begin([])
        except OSError as error:  # `start` raises it
            self._failure = _not_started(error)

    def _begin(self, remote: list[RankProcess]) -> None:
        self._failure, self._steps.num_sent, self._loading.ready = None, 0, {}
        self._starts += 1
        self._spawn(remote)

    async def start(self) -> EngineInfo:
        """Start and load all ranks."""
        loads, self._loads = self._loads, False
        if self._links and not loads:
            raise EngineFailed("the engine runs already; stop it before it is started again")
        try:
            if not loads:
                self._begin(await self._gather())
            await self._until_ready()
        except OSError as error:
            self._failure = _not_started(error)
            raise engine_error(self._failure) from error
        except EngineFailed as error:
            self._failure = self._failure or error.failure
            raise
        finally:
            if self._failure or not self._loading.is_done:
                await self.stop()
                self._close()
        self._steps.health, self._served = self._watch(), True
        self.tracing.attach(self._links, self._resources.times)
        self._devices.begin((info := self._loading.describe()).ranks, self._resources.times)
        return info

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Send the plan to all ranks."""
        if self._failure:
            raise engine_error(self._failure)
        future = self._steps.add_step(plan)
        if plan.store:
            self._blocks.expect_copies(plan.store)
        frame = pack_frame(FrameKind.PLAN, plan)
        for link in self._links:
            link.send_frame(frame)
        return future

    def hurry(self) -> None:
        """Do nothing: a step brings all its tokens."""

    def supply_masks(self, masks: StepMasks) -> None:
        """Send the masks to rank 0, which alone samples."""
        if not self._failure:
            first = next(link for link in self._links if link.rank.rank == 0)
            first.send_frame(pack_frame(FrameKind.MASKS, masks))

    def fetch_blocks(self, order: FetchBlocks) -> asyncio.Future[FetchResult]:
        """Send the order to all ranks."""
        if self._failure:
            raise engine_error(self._failure)
        return self._blocks.fetch_blocks(order)

    def load_adapter(self, order: LoadAdapter) -> asyncio.Future[AdapterLoaded]:
        """Send the order to all ranks."""
        if self._failure:
            raise engine_error(self._failure)
        return self._adapters.load_adapter(self._links, order)

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        """See `Engine`."""
        self._blocks.watch_store(on_stored)

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        """See `Engine`."""
        self._on_idle_failure = on_failure

    def status(self) -> list[dict[str, object]]:
        """Return rank, pid, state (`starting`, `ready`, `failed`), steps and bytes of each rank."""
        steps, faults, failed = self._steps.num_sent, self._devices.faults_of, self._failure is not None
        ready, ranks = self._loading.ready, self._processes.ranks
        return status_rows(ranks, ready, failed=failed, steps=steps, faults=faults)

    def step_times(self) -> StepTimes | None:
        """See `Engine`."""
        return self._resources.times

    async def stop(self) -> None:
        """End all ranks: those of a healthy engine by closing their sockets, others by killing them.

        After a failure the fork server is kept for the next start; a second call ends it.
        """
        self._loads, restarts = False, bool(self._failure and self._links)
        at_once = bool(self._failure or len(self._steps))
        self._fail(_STOPPED, report=False)
        for link in self._links:
            link.close()
        self._links = []
        self.tracing.detach()
        self._devices.end()
        self._blocks.detach_ranks(engine_error(self._failure or _STOPPED))
        await self._processes.stop_ranks(0.0 if at_once else self._options.stop_timeout_s)
        self._steps.health = self._watch_nothing()
        self._resources.release()
        if not restarts:
            self._close()

    def _close(self) -> None:
        """End the fork server and the listening socket, which outlive a failed engine."""
        self._processes.stop_fork_server()
        self._remote.close()

    async def _gather(self) -> list[RankProcess]:
        """Return the ranks of other hosts; raises `EngineFailed` when they do not join."""
        if not self._run.remote_ranks:
            return []
        self.start_fork_server()
        return await self._remote.gather_ranks(self._run.local_ranks, self._run.engine_start_timeout_s)

    def _spawn(self, remote: list[RankProcess]) -> None:
        """Acquire the group's resources, start the processes and send their configs."""
        self._processes.adopt_ranks(remote)
        # the address at which the other hosts reach this one
        address = remote[0].sock.getsockname()[0] if remote else ""
        resources = self._resources
        config, inherit = resources.acquire(address)
        config = msgspec.structs.replace(config, restarted=self._served)
        stores = config.kv_store is not None
        here = self._run.local_ranks
        for process in self._processes.spawn_ranks(here, resources.threads, inherit, kv_sockets=stores):
            link = RankLink(process, self._on_frame, self._on_end)
            self._links.append(link)
            link.send_frame(pack_frame(FrameKind.CONFIG, resources.config_for(process, config)))
        self._blocks.attach_ranks(self._processes.ranks)
        resources.close_inherited()

    async def _until_ready(self) -> None:
        """Wait until all ranks are ready; a failure, a timeout or a cancellation ends the engine."""
        if self._failure:  # while it loaded
            raise engine_error(self._failure)
        try:
            await self._loading.wait_ready(self._run.engine_start_timeout_s)
        except asyncio.CancelledError:
            abandoned = Failure("start_failed", "the start was abandoned before the ranks were ready")
            self._fail(abandoned, report=False)
            raise

    def _watch(self) -> HealthMonitor:
        ranks, ready = self._processes.ranks, self._loading.ready
        largest = max(one.info.loaded_bytes for one in ready.values())
        return HealthMonitor(
            ranks,
            StepLimit(self._run.step_timeout_s, largest),
            stall_s=self._options.stall_s,
            progress=self._resources.progress,
            memory_limits={rank.rank: self._resources.memory_limit(rank, ready[rank.rank]) for rank in ranks},
            threads=self._resources.threads,
        )

    def _watch_nothing(self) -> HealthMonitor:
        return HealthMonitor([], StepLimit(self._run.step_timeout_s, 0))

    def _on_frame(self, process: RankProcess, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.FAILED:
            report = msgspec.msgpack.decode(body, type=RankFailed)
            self._fail(
                self._steps.health.failure_of_report(process, report, serving=self._steps.num_sent > 0)
            )
        elif kind is FrameKind.READY:
            self._loading.note_ready(process.rank, msgspec.msgpack.decode(body, type=RankReady))
        elif kind in {FrameKind.PONG, FrameKind.TRACED}:
            self.tracing.on_frame(process.rank, kind, body)
        elif kind is FrameKind.ADAPTER_LOADED:
            self._adapters.take_answer(body)
        elif len(self._steps):  # else the engine failed a moment ago
            self._steps.finish_oldest(self._result.decode(body))

    def _on_end(self, process: RankProcess, reason: str) -> None:
        if self._failure:
            return  # it reported the reason, or was ended for the failure of another rank
        ready = self._loading.ready.get(process.rank)
        pid = ready.info.pid if ready else process.pid
        self._fail(self._steps.health.failure_of_end(process, reason, pid))

    def _on_kv_end(self, process: RankProcess, reason: str) -> None:
        """Fail the engine, since a rank without its KV socket may still write to blocks.

        Mostly its process has ended, and its other socket gives the reason first.
        """
        failure, start = Failure("rank_died", reason, process.rank), self._starts
        asyncio.get_running_loop().call_later(_KV_END_WAIT_S, self._fail_start, failure, start)

    def _fail_start(self, failure: Failure, start: int) -> None:
        """Fail the ranks of that start; those of a later one go on."""
        if start == self._starts:
            self._fail(failure)

    def _fail(self, failure: Failure, report: bool = True) -> None:
        """Fail the engine; the first reason counts. The ranks are killed, since no step can follow."""
        if self._failure:
            return
        self._failure = failure = failure._replace(step_ids=self._steps.step_ids)
        if self._links and report:
            self._processes.kill_ranks()
        self._blocks.detach_ranks(engine_error(failure))
        self._adapters.fail_all(engine_error(failure))
        is_awaited = self._steps.fail_all(failure) | self._loading.fail_wait(failure)
        if report and not is_awaited and self._on_idle_failure is not None:
            self._on_idle_failure()


def _not_started(error: OSError) -> Failure:
    return Failure("start_failed", f"the ranks could not be started: {error}")
