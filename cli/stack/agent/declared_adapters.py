"""Registers the adapters of a models file at the start, also those of bases that are loaded on demand.

The files of a base that runs are read by a leader, as for any adapter. Those of another one are read here, so
that a request for an adapter can load its base.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cli.stack.fleet.adapter_entry import AdapterEntry
from cli.stack.fleet.entry import FoundModel
from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.adapters.inspection import inspect_adapter
from services.worker.domain.adapters.pool_bytes import POOL_BYTES
from services.worker.null.adapter_files import inspect_null_adapter
from shared.bus.nats import NatsBus
from shared.client.calls.adapters_client import AdaptersClient
from shared.client.calls.model_list import known_models
from shared.errors import ModelNotFound, RyzError, Unavailable
from shared.messages import AdapterInspected

CONNECT_S = 60.0
POLL_S = 0.25
LOAD_WAIT_S = 5.0
RETRY_S = 1.0
UNKNOWN_S = 10.0  # in which all routers hear of a host


class DeclaredAdapters:
    """Call `begin` when the stack is started, and `close` before it ends.

    What the file says of a name replaces what the register has of it. An adapter that cannot be used is
    noted, and left out.

    Args:
        read: Reads the files of an adapter of a model, in a thread; raises `AdapterError`.
        models: Those of the file.
        note: Takes a line for the person who started the stack.
        most_bytes: Memory for adapters of the groups that this stack starts.

    Attributes:
        models: Those that have adapters.
    """

    def __init__(
        self,
        models: Sequence[FoundModel],
        note: Callable[[str], None],
        read: Callable[[FoundModel, str], AdapterInspected],
        most_bytes: int,
    ) -> None:
        self._read = read
        self._most_bytes = most_bytes
        self.models = [model for model in models if model.entry.adapters]
        self._note = note
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by model

    def begin(self, url: str) -> None:
        """Registers them in the background, as soon as services and groups are there."""
        for model in self.models:
            self._tasks[model.name] = asyncio.create_task(self._register_all(url, model))

    async def await_started(self, timeout_s: float) -> None:
        """Waits until all are registered, or are not."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)

    async def close(self) -> None:
        """Registers no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _register_all(self, url: str, model: FoundModel) -> None:
        bus = await self._connected(url)
        try:
            await self._until_known(bus, model)
            for adapter in model.entry.adapters:
                await self._register(bus, model, adapter)
        finally:
            await bus.close()

    async def _connected(self, url: str) -> NatsBus:
        while True:
            try:
                return await NatsBus.connect(url, name="adapters", connect_wait_s=CONNECT_S)
            except RyzError as error:
                self._note(f"adapters are not registered while the broker is away: {error.message}")
                await asyncio.sleep(RETRY_S)

    async def _until_known(self, bus: NatsBus, model: FoundModel) -> None:
        """Wait for a group; of a model on demand, which is not woken, until routers know it."""
        while True:
            with suppress(RyzError):
                known = await known_models(bus, timeout_s=2.0)
                names = {card.name for card in known.models}
                if not model.entry.loads_at_start:
                    names.update(state.card.name for state in known.offered)
                if model.name in names:
                    return
            await asyncio.sleep(POLL_S)

    async def _register(self, bus: NatsBus, model: FoundModel, adapter: AdapterEntry) -> None:
        client, unknown_until = AdaptersClient(bus), asyncio.get_running_loop().time() + UNKNOWN_S
        while True:
            try:
                found = None
                if not model.entry.loads_at_start:
                    found = await asyncio.to_thread(self._read, model, adapter.source)
                    self._require_room(model, found)
                await client.load_adapter(
                    model.name, adapter.name, adapter.source, replace=True, found=found, wait_s=LOAD_WAIT_S
                )
            except Unavailable:  # its group has ended again, or a service restarts
                await asyncio.sleep(RETRY_S)
            except (AdapterError, RyzError) as error:
                is_late = isinstance(error, ModelNotFound)  # another router has not heard of the base yet
                if is_late and asyncio.get_running_loop().time() < unknown_until:
                    await asyncio.sleep(POLL_S)
                    continue
                self._note(f"adapter {model.name}:{adapter.name} is left out: {error}")
                return
            else:
                return

    def _require_room(self, model: FoundModel, found: AdapterInspected) -> None:
        """Raises `AdapterError` for an adapter that no group would load, as its leader would say."""
        if found.num_bytes > self._most_bytes:
            raise AdapterError(
                f"it takes {found.num_bytes:,} bytes, and a group of {model.name} has {self._most_bytes:,} "
                "for all; raise RYZ_ADAPTER_BYTES"
            )


def adapter_bytes(env: Mapping[str, str]) -> int:
    """Return a group's memory for adapters; a value that the workers will refuse counts as the default."""
    value = env.get("RYZ_ADAPTER_BYTES", "")
    return int(value) if value.isdecimal() and 2**20 <= int(value) <= 2**40 else POOL_BYTES


def read_files(model: FoundModel, source: str) -> AdapterInspected:
    """Return what the files of an adapter of a model are.

    Raises:
        AdapterError: They cannot be served; one sentence.
    """
    assert model.path is not None
    return _inspected(inspect_adapter(Path(source), model.path, model.entry.tensor_parallel or 1))


def read_null_files(_: FoundModel, source: str) -> AdapterInspected:
    """Return the same for the null engine.

    Raises:
        AdapterError: There are none.
    """
    return _inspected(inspect_null_adapter(source))


def _inspected(found: AdapterDescription) -> AdapterInspected:
    return AdapterInspected(fingerprint=found.fingerprint, rank=found.rank, num_bytes=found.num_bytes)
