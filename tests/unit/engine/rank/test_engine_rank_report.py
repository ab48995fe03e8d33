"""The report of a rank that ends by an error: which errors are of missing memory."""

import errno
import os
import socket
from typing import Any

import msgspec
import pytest
import torch

from services.worker.engine.rank import rank_process
from services.worker.rank_protocol.rank_messages import (
    FrameKind,
    FrameReader,
    RankConfig,
    RankFailed,
    pack_frame,
)
from services.worker.rank_protocol.run_config import EngineRunConfig

NO_MEMORY = os.strerror(errno.ENOMEM)


def reported(error: Exception) -> RankFailed:
    """The report of a rank that met this error."""

    def fail(_: RankConfig) -> RankConfig:
        raise error

    leader, rank = socket.socketpair()
    with leader:
        config = RankConfig(run=EngineRunConfig(model="/none", tensor_parallel=1))
        leader.sendall(pack_frame(FrameKind.CONFIG, config))
        assert rank_process.serve(rank, 0.0, adapt=fail) == 1
        ((kind, body),) = FrameReader().feed(leader.recv(1 << 16))
    assert kind is FrameKind.FAILED
    return msgspec.msgpack.decode(body, type=RankFailed)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("std::bad_alloc"),  # torch's text for the exception of C++
        OSError(errno.ENOMEM, NO_MEMORY),  # of a mapping
        SystemError("<ufunc 'add'> returned NULL without setting an exception"),
    ],
    ids=repr,
)
def test_an_error_for_want_of_memory_is_reported_so(error: Exception) -> None:
    report = reported(error)
    assert report.message.startswith(f"out of memory: {type(error).__name__}: ")
    assert (report.memory, report.bug, report.refused) == (True, True, False)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape '[2]' is invalid"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SystemError("bad argument to internal function"),
    ],
    ids=repr,
)
def test_other_errors_are_no_want_of_memory(error: Exception) -> None:
    report = reported(error)
    assert report.message.startswith(f"internal error: {type(error).__name__}: ")
    assert (report.memory, report.bug) == (False, True)


def test_a_trace_that_there_is_no_memory_for_takes_no_report_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Log:
        def exception(self, *_: Any) -> None:
            raise MemoryError

    monkeypatch.setattr(rank_process, "log", Log())
    assert reported(MemoryError()).memory
