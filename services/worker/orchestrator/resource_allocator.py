"""What a group takes of this machine: threads, shared memory, ports, GPUs, memory; or why it cannot.

Makes the one config of which each rank gets a copy with its own number, and what the ranks of this host
share. Whether the model's weights and cache fit is for the ranks to say, who read its files
(`engine/memory.py`); the processes are the business of `process_group_manager.py`.
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

from services.worker.host import available_bytes, usable_cores
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.plan import EngineRefused
from services.worker.rank_protocol.progress_page import page_bytes
from services.worker.rank_protocol.rank_messages import RankConfig, RankReady, shared_bytes
from services.worker.rank_protocol.run_config import Collectives, EngineRunConfig


class ResourceAllocator:
    """Of one group: `acquire` before its ranks start, `close_inherited` when they have what they inherit, and
    `release` when they have ended.

    threads: of each rank. progress: the page where ranks show how far they are, words of 8 bytes; None while
    nothing is taken, or where there is none.
    """

    def __init__(self, options: RankEngineOptions) -> None:
        self._options = options
        self.threads = options.run.threads or max(1, usable_cores() // max(1, options.run.tensor_parallel))
        self.progress: Sequence[int] | None = None
        self._inherited = ExitStack()
        self._held = ExitStack()

    def acquire(self, address: str = "") -> tuple[RankConfig, list[int]]:
        """The config of rank 0, and the descriptors that ranks of this host inherit.

        Args:
            address: Of this host in the network of the other hosts; empty: there are none.

        Raises:
            EngineRefused: this machine cannot have it. OSError: it cannot just now.
        """
        self.release()
        try:
            return self._acquire(address)
        except BaseException:
            self.release()
            raise

    def close_inherited(self) -> None:
        """Closes what only the ranks need."""
        self._inherited.close()

    def release(self) -> None:
        """Gives everything back; may be called twice."""
        self.close_inherited()
        self.progress = None
        self._held.close()

    def config_for(self, rank: RankProcess, config: RankConfig) -> RankConfig:
        """That rank's copy: with its number, and without what a rank of another host cannot inherit."""
        own = msgspec.structs.replace(config, rank=rank.rank, kv_fd=rank.kv_fd, life_fd=rank.life_fd)
        return msgspec.structs.replace(own, store_fd=-1, progress_fd=-1) if rank.host else own

    def memory_limit(self, rank: RankProcess, ready: RankReady) -> int:
        """Resident bytes at which a rank counts as running away; 0: no limit, or a rank of another host.

        Weights that are mapped and the cache become resident as they are used.
        """
        now, growth = rank.memory_bytes(), self._options.processes.rank_memory_growth_mb * 2**20
        return now + ready.info.loaded_bytes + ready.kv_cache_bytes + growth if now and growth else 0

    def _acquire(self, address: str) -> tuple[RankConfig, list[int]]:
        config, inherit = group_config(self._options, self.threads, address, self._inherited)
        # ranks of other hosts may lie still while the network does, and nobody here could tell
        if hasattr(os, "memfd_create") and self._options.stall_s and not config.run.remote_ranks:
            page = os.memfd_create("ryz-progress")
            self._inherited.callback(os.close, page)
            os.ftruncate(page, page_bytes(config.run.tensor_parallel))
            memory = self._held.enter_context(mmap.mmap(page, page_bytes(config.run.tensor_parallel)))
            self.progress = self._held.enter_context(memoryview(memory).cast("Q"))
            config, inherit = msgspec.structs.replace(config, progress_fd=page), [*inherit, page]
        return config, inherit


def group_config(
    options: RankEngineOptions, threads: int, address: str, stack: ExitStack
) -> tuple[RankConfig, list[int]]:
    """The config of rank 0, and the descriptors with which the ranks of this host meet.

    Args:
        options: Of the group.
        threads: Of each rank.
        address: Of this host in the network of the other hosts; empty: there are none.
        stack: Closes the descriptors when the ranks have them.

    Raises:
        EngineRefused: this machine cannot have it.
        OSError: there is no memory for the ranks to share, or no port for them to meet at.
    """
    world = options.run.tensor_parallel
    run = dataclasses.replace(
        options.run,
        model=str(Path(options.run.model).resolve()),
        threads=threads,
        collectives=_collectives(options.run),
    )
    config = RankConfig(run=run, address=address, kv_store=None if run.remote_ranks else options.kv_store)
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
        # a port would be open to every user of this host, and what is said there is believed
        file = os.memfd_create("ryz-meeting")
        stack.callback(os.close, file)
        return msgspec.structs.replace(config, store_fd=file), [file]
    meeting = stack.enter_context(socket.create_server((address or "127.0.0.1", 0)))
    host, port = meeting.getsockname()
    config = msgspec.structs.replace(config, store_fd=meeting.fileno(), store_host=host, store_port=port)
    return config, [meeting.fileno()]


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
    """Refuses more ranks than the environment leaves GPUs, before anything is loaded.

    Where it says nothing, torch knows how many there are, in the ranks (`engine/device.py`).
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
