"""GPUs that are lost, hot, or err, and ranks that are slow: what is found, and what follows."""

import inspect
from types import ModuleType

import pytest
import structlog

from services.worker.orchestrator.devices.faults import SlowRanks, device_faults
from services.worker.orchestrator.devices.nvml import NvmlReader
from services.worker.orchestrator.devices.readings import DeviceReading
from services.worker.orchestrator.devices.watch import DeviceWatch
from services.worker.orchestrator.failure_recovery_manager import FailureRecoveryManager
from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.failures import Failure
from services.worker.rank_protocol.step_times import STEP_BUCKETS_S, PartsOfStep, RankTotals
from tests.kits.gpu.nvml import Gpu, standin
from tests.kits.waiting import until

WELL = DeviceReading(pcie_width=16, nvlinks=18)
MS = 1_000_000


@pytest.mark.parametrize(
    ("now", "kind", "ends", "says"),
    [
        (WELL._replace(uncorrected_ecc=2), "ecc", True, "2 memory errors that ECC could not correct"),
        (WELL._replace(remap_pending=True), "ecc", False, "replaced at the next reset"),
        (WELL._replace(remap_failed=True), "ecc", False, "could not be replaced"),
        (WELL._replace(hot=True), "thermal", False, "because of heat"),
        (WELL._replace(pcie_width=4), "pcie", False, "4 of 16 lanes"),
        (WELL._replace(nvlinks=16), "nvlink", False, "16 of 18 NVLinks"),
        (DeviceReading(lost="GPU is lost"), "gpu_lost", True, "the driver has lost the GPU: GPU is lost"),
    ],
)
def test_each_trouble_of_a_gpu_has_a_name_and_a_remedy(
    now: DeviceReading, kind: str, ends: bool, says: str
) -> None:
    (fault,) = device_faults(WELL, WELL, now)
    assert (fault.kind, fault.ends) == (kind, ends)
    assert says in fault.why
    assert fault.remedy


def test_what_was_so_at_the_start_is_no_fault() -> None:
    desktop = DeviceReading(uncorrected_ecc=7, pcie_width=8)
    assert device_faults(desktop, desktop, desktop) == []
    assert device_faults(WELL, WELL._replace(uncorrected_ecc=1), WELL._replace(uncorrected_ecc=1)) == []


def test_nvml_is_read_and_what_a_gpu_lacks_counts_as_well() -> None:
    gpus = {"GPU-a": Gpu(ecc=1, remap=(0, 1, 1, 0), reasons=0x40), "GPU-b": Gpu(plain=True, width=8)}
    reader = NvmlReader(standin(gpus))
    assert reader.read("GPU-a") == DeviceReading(1, True, False, True, 16, 18)
    assert reader.read("GPU-b") == DeviceReading(pcie_width=8)
    gpus["GPU-b"].reasons = 0x4  # the power limit, which is no fault
    assert reader.read("GPU-b") == DeviceReading(pcie_width=8)
    gpus["GPU-a"].error = 15
    assert reader.read("GPU-a") == DeviceReading(lost="GPU is lost")
    gpus["GPU-b"].error = 999
    assert reader.read("GPU-b") is None  # the driver has no answer


def test_the_standin_has_the_names_and_arguments_of_the_library() -> None:
    pynvml: ModuleType = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (make dev)")
    for name, member in vars(standin({})).items():
        if name.startswith("__"):
            continue
        real = getattr(pynvml, name)
        if inspect.isfunction(member) and name != "nvmlInit":
            assert len(inspect.signature(member).parameters) == len(inspect.signature(real).parameters), name
        elif isinstance(member, int):
            assert member == real, name


def totals(steps: int, own_ms: float, waits_ms: float = 0.0) -> RankTotals:
    """Counters after so many steps of that own work and those waits in collectives each."""
    step_ns = int(steps * (own_ms + waits_ms) * MS)
    parts = PartsOfStep(linears=int(steps * own_ms * MS), collectives=int(steps * waits_ms * MS))
    return RankTotals(steps, step_ns, parts, 0, (0,) * (len(STEP_BUCKETS_S) + 1))


def looks(*works: tuple[float, float], steps: int = 100) -> list[set[int]]:
    """The slow ranks after each look, of two ranks with that own work in milliseconds."""
    slow, sums, found = SlowRanks(), [totals(0, 0), totals(0, 0)], []
    slow.find(sums)
    for left, right in works:
        longest = max(left, right)
        added = [totals(steps, own, longest - own) for own in (left, right)]
        sums = [
            RankTotals(
                a.steps + b.steps,
                a.step_ns + b.step_ns,
                PartsOfStep(*(x + y for x, y in zip(a.parts, b.parts, strict=True))),
                0,
                a.buckets,
            )
            for a, b in zip(sums, added, strict=True)
        ]
        found.append(set(slow.find(sums)))
    return found


def test_a_rank_that_gets_slow_is_found_by_its_own_work_at_the_second_look() -> None:
    # both take 3 ms for a step, waits included: only own work tells which one is slow
    assert looks((1, 1), (1, 3), (1, 3), (1, 3), (1, 1)) == [set(), set(), {1}, {1}, set()]
    assert looks((1, 1), (1, 3), (1, 1), (1, 3)) == [set()] * 4  # a passing disturbance
    assert looks((1, 1.7), (1, 1.7), (1, 1.7)) == [set()] * 3


def test_unequal_shares_are_no_slowness_and_few_steps_say_nothing() -> None:
    assert looks((1, 3), (1, 3), (1, 3)) == [set()] * 3
    assert looks((1, 3), (1, 7), (1, 7)) == [set(), set(), {1}]
    assert looks((1, 1), (1, 9), (1, 9), steps=10) == [set()] * 3


def infos(*gpus: str) -> list[RankInfo]:
    return [
        RankInfo(rank=rank, pid=9, load_s=0, loaded_bytes=0, peak_rss_bytes=0, gpu=gpu)
        for rank, gpu in enumerate(gpus)
    ]


async def test_a_watch_names_faults_and_ends_the_engine_at_those_that_spoil_results() -> None:
    failures: list[Failure] = []
    gpus = {"GPU-a": Gpu(), "GPU-b": Gpu()}
    watch = DeviceWatch(failures.append, lambda: NvmlReader(standin(gpus)), look_s=0.005)
    with structlog.testing.capture_logs() as lines:
        watch.begin(infos("GPU-a", "GPU-b"), None)
        gpus["GPU-b"].reasons = 0x20
        await until(lambda: watch.faults_of(1) == ["thermal"])
        assert watch.faults_of(0) == []
        assert failures == []
        gpus["GPU-b"].reasons = 0
        await until(lambda: watch.faults_of(1) == [])
        gpus["GPU-a"].ecc = 1
        await until(lambda: bool(failures))
        watch.end()
    assert [(one.kind, one.rank, one.fault) for one in failures[:1]] == [("device_error", 0, False)]
    assert "rank 0 (GPU-a): 1 memory errors that ECC could not correct" in failures[0].reason
    assert [(line["rank"], line["kind"]) for line in lines] == [(1, "thermal"), (0, "ecc")]  # once each


async def test_a_lost_gpu_ends_the_engine_which_is_not_tried_again_soon() -> None:
    failures: list[Failure] = []
    gpus = {"GPU-a": Gpu()}
    watch = DeviceWatch(failures.append, lambda: NvmlReader(standin(gpus)), look_s=0.005)
    watch.begin(infos("GPU-a"), None)
    gpus["GPU-a"].error = 15
    await until(lambda: bool(failures))
    watch.end()
    assert failures[0].kind == "device_lost"
    recovery = FailureRecoveryManager(draw=lambda: 0.5)
    assert recovery.decide_recovery(failures[0], 0.0).gives_up
    again = recovery.decide_recovery(Failure("device_error", "ecc", 0), 100.0)
    assert again.fresh


async def test_without_a_reader_nothing_is_watched_and_a_driver_without_an_answer_is_no_fault() -> None:
    failures: list[Failure] = []
    none = DeviceWatch(failures.append, lambda: None)
    none.begin(infos("GPU-a"), None)
    assert none.faults_of(0) == []
    gpus = {"GPU-a": Gpu(error=999)}
    watch = DeviceWatch(failures.append, lambda: NvmlReader(standin(gpus)), look_s=0.005)
    watch.begin(infos("GPU-a"), None)
    gpus["GPU-a"] = Gpu(reasons=0x40)
    await until(lambda: watch.faults_of(0) == ["thermal"])
    watch.end()
    assert failures == []
