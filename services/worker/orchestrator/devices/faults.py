"""Decides what is wrong with a GPU from two readings, and which rank is slow from step times. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from services.worker.orchestrator.devices.readings import DeviceReading
from services.worker.rank_protocol.step_times import RankTotals

FaultKind = Literal["ecc", "gpu_lost", "thermal", "pcie", "nvlink", "slow_rank"]
LEAST_STEPS = 50  # between two looks, for step times to say anything
SLOW_TIMES = 2.0  # own work of a step beside that of the others, until the rank is slow


class DeviceFault(NamedTuple):
    """What is wrong with the device of a rank.

    Attributes:
        why: One sentence.
        ends: Results may be wrong, or none can come: the engine has to end.
    """

    kind: FaultKind
    why: str
    remedy: str
    ends: bool = False


def device_faults(first: DeviceReading, before: DeviceReading, now: DeviceReading) -> list[DeviceFault]:
    """Returns what is wrong with a GPU.

    Args:
        first: The reading when the rank was ready: what was so then is how the machine is built.
        before: The reading before this one.
        now: This one.
    """
    if now.lost:
        remedy = "reset the GPU or the host; dmesg has its Xid"
        return [DeviceFault("gpu_lost", f"the driver has lost the GPU: {now.lost}", remedy, ends=True)]
    found = []
    if now.uncorrected_ecc > before.uncorrected_ecc:
        count = now.uncorrected_ecc - before.uncorrected_ecc
        why = f"{count} memory errors that ECC could not correct"
        found.append(DeviceFault("ecc", why, "reset the GPU (nvidia-smi -r) if it happens again", ends=True))
    elif now.remap_failed:
        found.append(DeviceFault("ecc", "a row of its memory could not be replaced", "replace the GPU"))
    elif now.remap_pending:
        why = "a row of its memory is replaced at the next reset"
        found.append(DeviceFault("ecc", why, "drain the group and reset the GPU"))
    if now.hot:
        why = "its clocks are lowered because of heat"
        found.append(DeviceFault("thermal", why, "see its fans, its power limit and the air"))
    if now.pcie_width and now.pcie_width < first.pcie_width:
        why = f"its PCIe link has {now.pcie_width} of {first.pcie_width} lanes"
        found.append(DeviceFault("pcie", why, "seat the card anew; dmesg has the errors of the link"))
    if now.nvlinks < first.nvlinks:
        why = f"{now.nvlinks} of {first.nvlinks} NVLinks are up, so collectives may take PCIe"
        found.append(DeviceFault("nvlink", why, "see nvidia-smi nvlink -e; reset the GPUs"))
    return found


def own_work_ns(totals: RankTotals) -> int:
    """The time of a rank's steps without waits for others and without what rank 0 alone does."""
    parts = totals.parts
    return totals.step_ns - parts.collectives - parts.sampling - parts.masks


class SlowRanks:
    """Finds ranks that take much longer for their own work than the others, and than they used to.

    Ranks may have unequal shares of a model, so the least relation of a rank that was seen is its own.
    """

    def __init__(self) -> None:
        self._before: Sequence[RankTotals] = ()
        self._usual: dict[int, float] = {}
        self._slow_before: set[int] = set()

    def find(self, totals: Sequence[RankTotals]) -> Mapping[int, DeviceFault]:
        """Returns the slow ranks of the time since the last call; at the second call in a row that finds one.

        Args:
            totals: The counters of each rank since the engine began, by its number.
        """
        before, self._before = self._before, totals
        if len(before) != len(totals) or len(totals) < 2:
            return {}
        steps = min(now.steps - then.steps for then, now in zip(before, totals, strict=True))
        if steps < LEAST_STEPS:
            self._slow_before = set()
            return {}
        work = [
            (own_work_ns(now) - own_work_ns(then)) / (now.steps - then.steps)
            for then, now in zip(before, totals, strict=True)
        ]
        slow = {}
        for rank, own in enumerate(work):
            others = median(work[:rank] + work[rank + 1 :])
            times = own / max(others, 1.0)
            usual = self._usual[rank] = min(times, self._usual.get(rank, times))
            if times > SLOW_TIMES * max(1.0, usual):
                why = f"its own work in a step takes {times:.1f} times as long as the others'"
                remedy = "see what takes its core or lowers its clock: docs/debugging"
                slow[rank] = DeviceFault("slow_rank", why, remedy)
        found = {rank: fault for rank, fault in slow.items() if rank in self._slow_before}
        self._slow_before = set(slow)
        return found


def faults_of(row: Mapping[str, object]) -> list[str]:
    """Returns the kinds of faults in a rank's row of `Engine.status`; engines of others have none."""
    found = row.get("faults")
    return found if isinstance(found, list) else []
