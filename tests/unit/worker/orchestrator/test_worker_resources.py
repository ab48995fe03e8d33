"""Resources that a group acquires and releases, and refusals with a reason."""

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.worker.orchestrator import resource_allocator
from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.orchestrator.resource_allocator import ResourceAllocator
from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.failures import EngineRefused
from services.worker.rank_protocol.rank_messages import RankReady, shared_bytes
from services.worker.rank_protocol.step_times import times_bytes
from shared.host.cores_and_memory import usable_cores
from tests.kits.engine.rank_options import rank_options


def allocator(**options: Any) -> ResourceAllocator:
    return ResourceAllocator(rank_options(model=Path("m"), **options))


class Process:
    """This process in the role of a child."""

    pid = os.getpid()
    host = ""

    def poll(self) -> None:
        return None


def this_process(host: str = "") -> RankProcess:
    process = Process()
    process.host = host
    return RankProcess(1, process, socket.socket(), None, 9)  # type: ignore[arg-type]


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_cores_are_shared_among_the_ranks() -> None:
    assert allocator().threads == usable_cores()
    assert allocator(tensor_parallel=10_000).threads == 1
    assert allocator(threads=7, tensor_parallel=2).threads == 7


@pytest.mark.parametrize(
    ("options", "inherited"),
    [({}, 2), ({"tensor_parallel": 2}, 3), ({"tensor_parallel": 2, "collectives": "gloo"}, 3)],
)
def test_what_is_taken_is_given_back(options: dict[str, Any], inherited: int) -> None:
    one, before = allocator(**options), files()
    config, descriptors = one.acquire()
    assert len(descriptors) == inherited
    assert {config.progress_fd, config.times_fd} <= set(descriptors)
    assert os.fstat(config.times_fd).st_size == times_bytes(config.run.tensor_parallel)
    assert os.fstat(config.progress_fd).st_size == 64 * config.run.tensor_parallel
    assert one.progress is not None
    assert len(one.progress) == 8 * config.run.tensor_parallel
    if config.shared_fd >= 0:
        assert os.fstat(config.shared_fd).st_size == shared_bytes(2)
    one.close_inherited()
    assert files() == before + 2  # the pages of progress and of step times, which the leader reads
    one.acquire()  # the next start, without a release before
    one.release()
    one.release()
    assert files() == before
    assert not one.progress
    assert not one.times


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_of_one_host_meet_in_a_file_without_a_name_and_open_no_port(device: str) -> None:
    collectives = "gloo" if device == "cpu" else "nccl"
    one = allocator(tensor_parallel=2, collectives=collectives, device=device)
    config, descriptors = one.acquire()
    try:
        assert (config.store_host, config.store_port) == ("", 0)
        assert config.store_fd in descriptors
        assert os.readlink(f"/proc/self/fd/{config.store_fd}").startswith("/memfd:")
    finally:
        one.release()


@pytest.mark.parametrize("options", [{"stall_timeout_s": 0.0}, {"tensor_parallel": 3, "remote_ranks": 1}])
def test_no_progress_page_where_it_is_not_read_or_not_shared(options: dict[str, Any]) -> None:
    one = allocator(**options)
    config, _ = one.acquire()
    assert (config.progress_fd, one.progress) == (-1, None)
    one.release()


def test_each_rank_gets_its_own_copy() -> None:
    one = allocator(tensor_parallel=2)
    config, _ = one.acquire()
    here, there = this_process(), this_process("10.0.0.2")
    own = one.config_for(here, config)
    assert own == msgspec.structs.replace(config, rank=1, kv_fd=9)
    elsewhere = one.config_for(there, config)
    assert (elsewhere.progress_fd, elsewhere.times_fd) == (-1, -1)
    for process in (here, there):
        process.sock.close()
    one.release()


def test_too_few_gpus_are_told_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = files()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    with pytest.raises(EngineRefused, match="3 ranks on this host, but CUDA_VISIBLE_DEVICES='3, 5' leaves 2"):
        allocator(tensor_parallel=3, device="cuda").acquire()
    assert files() == before
    two = allocator(tensor_parallel=2, device="cuda")
    two.acquire()
    two.release()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    four = allocator(tensor_parallel=4, device="cuda")
    four.acquire()  # without the variable, the ranks check
    four.release()
    assert files() == before


def test_ranks_share_no_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_allocator, "available_bytes", lambda: 2**20)
    before = files()
    with pytest.raises(OSError, match=r"what 2 ranks share needs 1\.5 MiB, and 1\.0 MiB of memory are free"):
        allocator(tensor_parallel=2).acquire()
    assert files() == before


def test_a_rank_may_grow_by_its_weights_its_cache_and_some_more() -> None:
    info = RankInfo(rank=1, pid=1, load_s=0.0, loaded_bytes=30, peak_rss_bytes=0)
    ready = RankReady(info=info, num_blocks=1, vocab_size=1, context_length=1, kv_cache_bytes=400)
    here, gone = this_process(), this_process()
    limit = allocator(rank_memory_growth_mb=1).memory_limit(here, ready)
    assert abs(limit - here.memory_bytes() - 5430) < 64 * 2**20
    assert allocator(rank_memory_growth_mb=0).memory_limit(here, ready) == 0
    gone.process.pid = 0  # type: ignore[misc]
    assert allocator().memory_limit(gone, ready) == 0
    for process in (here, gone):
        process.sock.close()


def test_gpus_may_stand_still_for_longer() -> None:
    limits = [
        rank_options(model=Path("m"), device=device, stall_timeout_s=limit).stall_s
        for device, limit in (("cpu", 2.0), ("cuda", 2.0), ("cuda", 60.0), ("cuda", 0.0))
    ]
    assert limits == [2.0, 10.0, 60.0, 0.0]
