"""Takes what a group needs of this machine: threads, shared memory, ports, GPUs; or refuses.

Makes the config of which each rank gets a copy, and the files and sockets that the ranks of this host share.
The ranks check whether weights and cache fit (`engine/checkpoint/memory_check.py`), since they read the
model's files.
"""

import dataclasses
import mmap
import os
import platform
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.failures import EngineRefused
from services.worker.rank_protocol.progress_page import page_bytes
from services.worker.rank_protocol.rank_messages import RankConfig, RankReady, shared_bytes
from services.worker.rank_protocol.run_config import Collectives, EngineRunConfig
from services.worker.rank_protocol.step_times import StepTimes, times_bytes
from shared.host.cores_and_memory import available_bytes, usable_cores


class ResourceAllocator:
    """The resources of one group.

    Call `acquire` before its ranks start, `close_inherited` when they have inherited their descriptors, and
    `release` when they have ended.

    Attributes:
        threads: Threads of each rank.
        progress: The ranks' progress page, words of 8 bytes; None: nothing is acquired, or there is no page.
        times: The ranks' step times, which stay readable after `release`; None: as `progress`.
    """

    def __init__(self, options: RankEngineOptions) -> None:
        self._options = options
        self.threads = options.run.threads or max(1, usable_cores() // max(1, options.run.tensor_parallel))
        self.progress: Sequence[int] | None = None
        self.times: StepTimes | None = None
        self._inherited = ExitStack()
        self._held = ExitStack()

    def acquire(self, address: str = "") -> tuple[RankConfig, list[int]]:
        """Acquire the group's resources.

        Args:
            address: Of this host in the network of the other hosts; empty: there are none.

        Returns:
            The config of rank 0, and the descriptors that ranks of this host inherit.

        Raises:
            EngineRefused: This machine does not have them.
            OSError: They are not free now.
        """
        self.release()
        try:
            return self._acquire(address)
        except BaseException:
            self.release()
            raise

    def close_inherited(self) -> None:
        """Close the descriptors that only the ranks need."""
        self._inherited.close()

    def release(self) -> None:
        """Release everything; may be called twice."""
        self.close_inherited()
        self.progress = self.times = None
        self._held.close()

    def config_for(self, rank: RankProcess, config: RankConfig) -> RankConfig:
        """Return a rank's own config; a rank of another host gets no descriptors."""
        own = msgspec.structs.replace(config, rank=rank.rank, kv_fd=rank.kv_fd, life_fd=rank.life_fd)
        if rank.host:
            return msgspec.structs.replace(own, store_fd=-1, progress_fd=-1, times_fd=-1)
        return own

    def memory_limit(self, rank: RankProcess, ready: RankReady) -> int:
        """Return the most resident bytes of a rank; 0: no limit, or a rank of another host.

        Mapped weights and the cache become resident as they are used.
        """
        now, growth = rank.memory_bytes(), self._options.processes.rank_memory_growth_mb * 2**20
        return now + ready.info.loaded_bytes + ready.kv_cache_bytes + growth if now and growth else 0

    def _acquire(self, address: str) -> tuple[RankConfig, list[int]]:
        config, inherit = group_config(self._options, self.threads, address, self._inherited)
        world = config.run.tensor_parallel
        if hasattr(os, "memfd_create"):
            page, shared = self._share("ryz-times", times_bytes(world))
            self.times = StepTimes(memoryview(shared), world)
            config, inherit = msgspec.structs.replace(config, times_fd=page), [*inherit, page]
        # not with other hosts: a stalled network looks like a stalled rank
        if hasattr(os, "memfd_create") and self._options.stall_s and not config.run.remote_ranks:
            page, shared = self._share("ryz-progress", page_bytes(world))
            self.progress = self._held.enter_context(memoryview(self._held.enter_context(shared)).cast("Q"))
            config, inherit = msgspec.structs.replace(config, progress_fd=page), [*inherit, page]
        return config, inherit

    def _share(self, name: str, size: int) -> tuple[int, mmap.mmap]:
        """Return the descriptor of new memory for ranks to inherit, and the memory as the leader has it."""
        page = os.memfd_create(name)
        self._inherited.callback(os.close, page)
        os.ftruncate(page, size)
        return page, mmap.mmap(page, size)


def group_config(
    options: RankEngineOptions, threads: int, address: str, stack: ExitStack
) -> tuple[RankConfig, list[int]]:
    """Make the config of rank 0, and the files or sockets through which ranks of this host connect.

    Args:
        threads: Threads of each rank.
        address: Of this host in the network of the other hosts; empty: there are none.
        stack: Closes the descriptors when the ranks have them.

    Returns:
        The config of rank 0, and the descriptors to inherit.

    Raises:
        EngineRefused: This machine has too few GPUs.
        OSError: No memory for the ranks to share, or no port for their rendezvous.
    """
    world = options.run.tensor_parallel
    run = dataclasses.replace(
        options.run,
        model=str(Path(options.run.model).resolve()),
        threads=threads,
        collectives=_collectives(options.run),
    )
    config = RankConfig(
        run=run,
        address=address,
        kv_store=None if run.remote_ranks else options.kv_store,
        group=options.group,
        instance_id=options.instance_id,
    )
    _require_gpus(run)
    if world == 1:
        return config, []
    if run.collectives == "shm":
        _require_memory(shared_bytes(world), f"what {world} ranks share")
        shared = os.memfd_create("ryz-ranks")
        stack.callback(os.close, shared)
        os.ftruncate(shared, shared_bytes(world))
        return msgspec.structs.replace(config, shared_fd=shared), [shared]
    if not run.remote_ranks and hasattr(os, "memfd_create"):
        # not a port: every user of this host could connect, and the ranks trust what they read
        file = os.memfd_create("ryz-rendezvous")
        stack.callback(os.close, file)
        return msgspec.structs.replace(config, store_fd=file), [file]
    listener = stack.enter_context(socket.create_server((address or "127.0.0.1", 0)))
    host, port = listener.getsockname()
    config = msgspec.structs.replace(config, store_fd=listener.fileno(), store_host=host, store_port=port)
    return config, [listener.fileno()]


def _collectives(run: EngineRunConfig) -> Collectives:
    if run.collectives != "auto":
        return run.collectives
    if run.device == "cuda":
        return "nccl"
    if run.remote_ranks:
        return "gloo"
    shared = hasattr(os, "memfd_create") and platform.machine() in {"x86_64", "AMD64"}
    return "shm" if shared else "gloo"


def _require_gpus(run: EngineRunConfig) -> None:
    """Refuse more ranks than `CUDA_VISIBLE_DEVICES` leaves GPUs, before anything is loaded.

    Where it is not set, the ranks ask torch (`engine/plain/device.py`).
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    here = run.local_ranks
    if run.device != "cuda" or visible is None:
        return
    count = len([name for name in visible.split(",") if name.strip()])
    if here > count:
        raise EngineRefused(
            f"device=cuda with {here} ranks on this host, but CUDA_VISIBLE_DEVICES={visible!r} leaves "
            f"{count} GPUs; list more there, or set a smaller tensor_parallel"
        )


def _require_memory(needed: int, what: str) -> None:
    free = available_bytes()
    if needed > free:
        raise OSError(f"{what} needs {needed / 2**20:.1f} MiB, and {free / 2**20:.1f} MiB of memory are free")
