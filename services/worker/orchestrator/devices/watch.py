"""Looks at the devices of an engine's ranks every few seconds while it serves."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from services.worker.orchestrator.devices.faults import DeviceFault, SlowRanks, device_faults
from services.worker.orchestrator.devices.nvml import nvml_reader
from services.worker.orchestrator.devices.readings import DeviceReader, DeviceReading
from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.failures import Failure, FailureKind
from services.worker.rank_protocol.step_times import StepTimes

log = structlog.get_logger(__name__)
LOOK_S = 5.0
_READ_S = 10.0  # a driver that takes longer for one reading is asked again at the next look


class DeviceWatch:
    """Knows the faults of each rank's device, and ends the engine at those that spoil results.

    Args:
        fail: Ends the engine.
        make_reader: Makes what reads GPUs, called at the first start that has one; it may return None.
        look_s: Seconds between two looks.
    """

    def __init__(
        self,
        fail: Callable[[Failure], None],
        make_reader: Callable[[], DeviceReader | None] = nvml_reader,
        look_s: float = LOOK_S,
    ) -> None:
        self._fail = fail
        self._make_reader = make_reader
        self._look_s = look_s
        self._reader: DeviceReader | None = None
        self._has_reader = False
        self._found: dict[int, list[DeviceFault]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, ranks: Sequence[RankInfo], times: StepTimes | None) -> None:
        """Watches the ranks of a start that is ready.

        Args:
            ranks: As they reported; those without `gpu` compute on processors, or on another host.
            times: Their step times; None: not known.
        """
        self.end()
        gpus = {one.rank: one.gpu for one in ranks if one.gpu}
        if gpus and not self._has_reader:
            self._reader, self._has_reader = self._make_reader(), True
        if (gpus and self._reader is not None) or (times is not None and len(ranks) > 1):
            self._task = asyncio.create_task(self._watch(gpus, len(ranks), times))
            self._task.add_done_callback(_log_error)

    def end(self) -> None:
        """Forgets the ranks."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._found = None, {}

    def faults_of(self, rank: int) -> list[str]:
        """The kinds of what is wrong with the device of a rank now."""
        return [one.kind for one in self._found.get(rank, ())]

    async def _watch(self, gpus: dict[int, str], world: int, times: StepTimes | None) -> None:
        slow, firsts = SlowRanks(), await self._read(gpus)
        before = firsts
        while True:
            found: dict[int, list[DeviceFault]] = {}
            readings = await self._read(gpus)
            for rank, now in readings.items():
                first = firsts.setdefault(rank, now)
                if faults := device_faults(first, before.get(rank, first), now):
                    found[rank] = faults
            before = {**before, **readings}
            if times is not None:
                totals = [times.read_totals(rank) for rank in range(world)]
                for rank, fault in slow.find(totals).items():
                    found.setdefault(rank, []).append(fault)
            self._take(found, gpus)
            await asyncio.sleep(self._look_s)

    async def _read(self, gpus: dict[int, str]) -> dict[int, DeviceReading]:
        readings: dict[int, DeviceReading] = {}
        reader = self._reader
        if reader is None:
            return readings
        for rank, uuid in gpus.items():
            try:
                async with asyncio.timeout(_READ_S):
                    reading = await asyncio.to_thread(reader.read, uuid)
            except TimeoutError:
                continue
            if reading is not None:
                readings[rank] = reading
        return readings

    def _take(self, found: dict[int, list[DeviceFault]], gpus: dict[int, str]) -> None:
        before, self._found = self._found, found
        for rank, faults in found.items():
            known = {one.kind for one in before.get(rank, ())}
            where = f"rank {rank} ({gpus[rank]})" if rank in gpus else f"rank {rank}"
            for fault in faults:
                if fault.kind not in known:
                    log.warning(
                        "a rank's device is in trouble",
                        rank=rank,
                        kind=fault.kind,
                        why=fault.why,
                        remedy=fault.remedy,
                    )
            worst = next((one for one in faults if one.ends), None)
            if worst is not None:
                kind: FailureKind = "device_lost" if worst.kind == "gpu_lost" else "device_error"
                self._fail(Failure(kind, f"{where}: {worst.why}; {worst.remedy}", rank))
                return


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("devices are not watched any more", exc_info=error)
