"""A rank process: loads its share, reports that it is ready, then runs plans until its leader is gone.

Connects the socket to a `Runner`. The end of the leader's socket ends the process, and so does any error,
after its reason was sent to the leader in one sentence.
"""

import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import structlog
import torch

from services.worker.engine.adapters.loader import AdapterLoader
from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.memory_check import MemoryShort, ran_out
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import CollectiveError, Collectives, SingleRank
from services.worker.engine.collectives.gloo import GlooCollectives, interface_of
from services.worker.engine.collectives.nccl import NcclCollectives
from services.worker.engine.collectives.shared_memory import SharedMemoryCollectives
from services.worker.engine.collectives.torch_distributed import Rendezvous
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.kv_transfer.kv_channel import start as start_mover
from services.worker.engine.plain.device import gpu_id, take_device
from services.worker.engine.rank.backend import load_backend, shared_kernels
from services.worker.engine.rank.cache_room import agreed_sizes
from services.worker.engine.rank.lifeline import hold_in_thread
from services.worker.engine.rank.process import lower_priority, take_node
from services.worker.engine.rank.runner import AwaitMasks, Runner
from services.worker.engine.rank.sequences import PlanError
from services.worker.engine.rank.shared_pages import Progress, StepRecorder
from services.worker.engine.rank.step_inbox import LeaderGone, LeaderSocket, StepInbox
from services.worker.engine.rank.step_tracer import StepTracer
from services.worker.engine.sampling.native_draws import NativeDraws
from services.worker.rank_protocol.adapters import LoadAdapter
from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.kv_messages import KVParts
from services.worker.rank_protocol.rank_messages import (
    FrameKind,
    RankConfig,
    RankFailed,
    RankReady,
    pack_frame,
)

log = structlog.get_logger(__name__)
SWITCH_S = 0.0005  # the longest time that a thread that moves blocks holds the GIL while a step waits
Adapt = Callable[[RankConfig], RankConfig]
EXPECTED = (ModelError, CollectiveError, PlanError)


def serve(
    sock: socket.socket,
    started: float,
    descriptors: Mapping[int, int] | None = None,
    *,
    adapt: Adapt | None = None,
    log_errors: bool = False,
) -> int:
    """Runs the rank at the other end of that socket; returns the process's exit code.

    Args:
        sock: Connected to the leader, blocking.
        started: `time.monotonic()` when the process began.
        descriptors: This process's numbers of descriptors, by their numbers in the leader.
        adapt: Called with the config; replaces settings that are decided on this host.
        log_errors: Log errors here as well, since the leader's log is on another host.
    """
    # collectives are closed after the report, so that the leader hears the cause before other ranks' errors
    with closing(sock), ExitStack() as open_until_reported:
        try:
            leader = LeaderSocket(sock)
            config = _config(frames := leader.frames(), descriptors or {}, adapt)
            if config is not None:
                # before other descriptors are open
                lifeline = hold_in_thread(config.life_fd) if config.life_fd >= 0 else 0
                collectives = open_until_reported.enter_context(closing(connect(config)))
                _serve(leader, frames, started, config, collectives, lifeline=lifeline)
        except EXPECTED as error:
            refused = isinstance(error, ModelError) and not isinstance(error, MemoryShort)
            if log_errors:
                log.error("the rank ends", why=str(error))
            failure = RankFailed(message=str(error), refused=refused, memory=isinstance(error, MemoryShort))
            return _report(sock, failure)
        except (BrokenPipeError, ConnectionResetError, LeaderGone):
            return 0  # the leader closed the socket while this rank was sending, or waited for masks
        except Exception as error:
            with suppress(MemoryError):  # what the failed step holds is not free yet
                log.exception("a rank failed")  # the trace is for the log, the sentence for the leader
            memory = ran_out(error)
            what = "out of memory" if memory else "internal error"
            return _report(
                sock, RankFailed(message=f"{what}: {type(error).__name__}: {error}", memory=memory, bug=True)
            )
    return 0


def _config(
    frames: Iterator[tuple[FrameKind, bytes]], descriptors: Mapping[int, int], adapt: Adapt | None
) -> RankConfig | None:
    """The config in the first frame, with this process's descriptors; None if the leader is gone."""
    first = next(frames, None)
    if first is None:
        return None
    config = msgspec.msgpack.decode(first[1], type=RankConfig)
    config = msgspec.structs.replace(
        config,
        shared_fd=descriptors.get(config.shared_fd, config.shared_fd),
        store_fd=descriptors.get(config.store_fd, config.store_fd),
        progress_fd=descriptors.get(config.progress_fd, config.progress_fd),
        times_fd=descriptors.get(config.times_fd, config.times_fd),
        kv_fd=descriptors.get(config.kv_fd, config.kv_fd),
        life_fd=descriptors.get(config.life_fd, config.life_fd),
    )
    return config if adapt is None else adapt(config)


def _serve(
    leader: LeaderSocket,
    frames: Iterator[tuple[FrameKind, bytes]],
    started: float,
    config: RankConfig,
    collectives: Collectives,
    *,
    lifeline: int,
) -> None:
    node = take_node(config)  # before the threads that compute, and the memory that they use
    torch.set_num_threads(config.run.threads)
    tracer = StepTracer(leader, config.run.threads)
    adapters = AdapterLoader(Path(config.run.model), leader.report)

    def on_other(kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.LOAD_ADAPTER:
            adapters.load(msgspec.msgpack.decode(body, type=LoadAdapter))
        else:
            tracer.on_frame(kind, body)

    inbox = StepInbox(frames, on_other)
    runner, ready = load(config, collectives, started, inbox.await_masks)
    adapters.attach(runner.compute)
    ready = msgspec.structs.replace(ready, info=msgspec.structs.replace(ready.info, numa_node=node))
    leader.sendall(pack_frame(FrameKind.READY, ready))
    lower_priority(besides=lifeline)  # the end of that thread must not wait for a core
    collectives.timeout_s = config.collective_timeout_s
    mover = None
    if config.kv_store is not None:
        mover = start_mover(config.kv_fd, config.kv_store, runner.blocks, tracer.note_report)
        sys.setswitchinterval(SWITCH_S)
    recorder = StepRecorder(config.times_fd, config.rank)
    tracer.attach(runner.compute, recorder.take_new)
    for plan in inbox.plans():
        wait_s = recorder.begin_step(plan.step_id)
        if mover is not None:
            mover.note_step(hurry=plan.hurry)
            if plan.store:
                mover.copy_out(plan.store)
        adapters.put_due(plan.step_id)
        if plan.vacate or plan.vacate_sliding:  # before a fetch may fill such blocks again
            runner.compute.vacate(plan.vacate, plan.vacate_sliding)
        if mover is not None:
            mover.start_due_fetches(plan.step_id)
            recorder.note_copies()
        result = runner.run_step(plan)
        recorder.finish_step(result)
        if config.rank == 0:
            result = msgspec.structs.replace(result, wait_s=wait_s)
            leader.sendall(pack_frame(FrameKind.RESULT, result))
        recorder.count_step()
        if tracer.is_on:
            tracer.add_step(plan.step_id, recorder.began_ns, recorder.copied_ns, runner.moments)


def connect(config: RankConfig) -> Collectives:
    """The collectives backend that the config names.

    Raises:
        ModelError: Its device is not available.
        CollectiveError: Not all ranks came in time.
    """
    run, placement = config.run, take_device(config)
    if run.tensor_parallel == 1:
        return SingleRank()
    if run.collectives == "shm":
        shared = SharedMemoryCollectives(
            config.shared_fd,
            config.rank,
            run.tensor_parallel,
            config.meeting_timeout_s,
            shared_kernels(config),
        )
        os.close(config.shared_fd)
        return shared
    interface = run.gloo_interface or (interface_of(config.address) if config.address else "")
    at_port = bool(config.store_host)
    if at_port and config.rank and config.store_fd >= 0:
        os.close(config.store_fd)
    rendezvous = Rendezvous(
        rank=config.rank,
        world=run.tensor_parallel,
        timeout_s=config.meeting_timeout_s,
        host=config.store_host,
        port=config.store_port,
        listen_fd=config.store_fd if at_port and config.rank == 0 else -1,
        interface=interface,
        file_fd=-1 if at_port else config.store_fd,
    )
    if run.collectives == "nccl":
        return NcclCollectives(rendezvous, config.collective_timeout_s, device=placement.device)
    return GlooCollectives(rendezvous, config.collective_timeout_s)


def load(
    config: RankConfig, collectives: Collectives, started: float, await_masks: AwaitMasks | None = None
) -> tuple[Runner, RankReady]:
    """Loads this rank's share and makes its KV cache.

    Raises:
        ModelError: The model cannot be served this way; the sentence names the file, tensor or setting.
    """
    directory = Path(config.run.model)
    shape = read_config(directory)
    if config.run.remote_ranks:
        _compare_fingerprints(config, fingerprint(directory, shape, config.run.precision), collectives)
    with open_checkpoint(directory) as checkpoint:
        backend = load_backend(config, shape, checkpoint, collectives)
        loaded_bytes = checkpoint.loaded_bytes
    own_fingerprint = fingerprint(directory, shape, backend.precision) if config.rank == 0 else ""
    sizes = agreed_sizes(config, shape, backend, collectives)
    native = shared_kernels(config)
    runner = Runner(
        backend.start(sizes),
        Progress(config.progress_fd, config.rank),
        await_masks,
        NativeDraws(native, config.run.threads) if native and config.rank == 0 else None,
    )
    if config.progress_fd >= 0:
        os.close(config.progress_fd)
    info = RankInfo(
        rank=config.rank,
        pid=os.getpid(),
        load_s=time.monotonic() - started,
        loaded_bytes=loaded_bytes,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        kernels=backend.name,
        why_plain=backend.why_plain,
        gpu=gpu_id(config),
    )
    ready = RankReady(
        info=info,
        num_blocks=sizes.num_blocks,
        vocab_size=shape.vocab_size,
        context_length=shape.context_length,
        fingerprint=own_fingerprint,
        kv_format=backend.kv_format,
        kv_cache_bytes=backend.cache_bytes(sizes),
        kv_parts=KVParts(heads=shape.cached_heads, head_bytes=runner.blocks.head_bytes)
        if config.kv_store is not None
        else None,
        hidden_size=shape.hidden_size,
        num_sliding_blocks=sizes.num_sliding,
        window=max(shape.windows) if sizes.num_sliding else 0,
        block_bytes=runner.compute.vacated_bytes[0],
        sliding_bytes=runner.compute.vacated_bytes[1],
        adapters=runner.compute.adapts,
    )
    return runner, ready


def _compare_fingerprints(config: RankConfig, own: str, collectives: Collectives) -> None:
    leaders = collectives.broadcast(own.encode()).decode()
    if own != leaders:
        raise ModelError(
            f"{config.run.model} on the host of rank {config.rank} is another model than the leader's "
            f"(fingerprints {own} and {leaders}); copy the leader's directory there"
        )


def _report(sock: socket.socket, failure: RankFailed) -> int:
    try:
        sock.sendall(pack_frame(FrameKind.FAILED, failure))
    except OSError:
        log.error("the leader is gone, and cannot be told", why=failure.message)
    return 2 if failure.refused else 1
