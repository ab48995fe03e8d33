"""Reads adapters into their slots in a thread beside the steps, and puts them there between steps.

An adapter is reported as loaded when it is ready to be computed with. It is put into its slot before the
first step after `LoadAdapter.after_step`, so that steps before that still have the adapter that was there.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterError
from services.worker.engine.adapters.own_share import own_share
from services.worker.engine.config.read_config import read_config
from services.worker.engine.rank.compute import Compute, PreparedAdapter
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.rank_messages import FrameKind

log = structlog.get_logger(__name__)
_SWITCH_S = 0.0005  # the longest time that the thread holds the GIL while a step waits


class AdapterLoader:
    """Loads one adapter after the other, in the order of the leader; the thread starts with the first.

    Args:
        model: The base's directory or file.
        report: Called in the thread of the loader with `FrameKind.ADAPTER_LOADED` and an `AdapterLoaded`,
            once for each order; it must not raise.
    """

    def __init__(self, model: Path, report: Callable[[FrameKind, AdapterLoaded], None]) -> None:
        self._compute: Compute | None = None
        self._model = model
        self._report = report
        self._base: BaseModel | None = None
        self._orders: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ready: list[tuple[LoadAdapter, PreparedAdapter | None]] = []

    def attach(self, compute: Compute) -> None:
        """Gives the forward pass that takes the adapters, before the first order."""
        self._compute = compute

    def load(self, order: LoadAdapter) -> None:
        """Begins to read an adapter; never blocks."""
        self._orders.put(order)
        if self._thread is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
            self._thread = threading.Thread(target=self._run, name="adapter-loader", daemon=True)
            self._thread.start()

    def put_due(self, step_id: int) -> None:
        """Puts the adapters that are ready into their slots before a step, in the thread of the steps."""
        if not self._ready or self._compute is None:
            return
        with self._lock:
            due = [one for one in self._ready if one[0].after_step < step_id]
            self._ready = [one for one in self._ready if one[0].after_step >= step_id]
        for order, prepared in due:
            self._compute.set_adapter(order.slot, prepared)

    def _run(self) -> None:
        while True:
            order = self._orders.get()
            began = time.monotonic()
            prepared, error = None, ""
            try:
                prepared = self._prepare(order) if order.source else None
            except AdapterError as refusal:
                error = str(refusal)
            except MemoryError:
                error = f"{order.source} does not fit into this rank's memory; load a smaller adapter"
            except Exception as bug:  # an adapter must not end the rank
                log.exception("an adapter could not be loaded")
                error = f"{order.source} cannot be loaded: {type(bug).__name__}: {bug}"
            with self._lock:
                self._ready.append((order, prepared))
            num_bytes = 0 if prepared is None else prepared.num_bytes
            seconds = time.monotonic() - began
            done = AdapterLoaded(order_id=order.order_id, num_bytes=num_bytes, seconds=seconds, error=error)
            self._report(FrameKind.ADAPTER_LOADED, done)

    def _prepare(self, order: LoadAdapter) -> PreparedAdapter:
        compute = self._compute
        if compute is None or not compute.adapts:
            raise AdapterError("this rank computes without adapters; choose other kernels")
        base = self._base = self._base or BaseModel.of(self._model, read_config(self._model))
        adapter = read_adapter(Path(order.source), base)
        if adapter.fingerprint != order.fingerprint:
            raise AdapterError(
                f"{order.source} has changed since it was registered (its fingerprint is "
                f"{adapter.fingerprint}, not {order.fingerprint}); register it again"
            )
        ranks = compute.collectives
        try:
            share = own_share(adapter, base, ranks.rank, ranks.world)
        except AdapterError as error:
            raise AdapterError(f"{order.source}: {error}") from error
        return compute.prepare_adapter(share)
