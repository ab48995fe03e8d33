"""Registers the adapters of a models file when a group of their base is ready for the first time."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from cli.stack.fleet.entry import ServedModel
from shared.bus.nats import NatsBus
from shared.client.calls.adapters_client import AdaptersClient
from shared.client.calls.model_list import known_models
from shared.errors import RyzError, Unavailable

CONNECT_S = 60.0
POLL_S = 0.25
LOAD_WAIT_S = 5.0
RETRY_S = 1.0


class DeclaredAdapters:
    """Call `begin` when the stack is started, and `close` before it ends.

    What the file says of a name replaces what the register has of it. An adapter that cannot be used is
    noted, and left out.

    Args:
        models: Those of the file.
        note: Takes a line for the person who started the stack.

    Attributes:
        models: Those that have adapters.
    """

    def __init__(self, models: Sequence[ServedModel], note: Callable[[str], None]) -> None:
        self.models = [model for model in models if model.entry.adapters]
        self._note = note
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by model

    def begin(self, url: str) -> None:
        """Registers them in the background, as soon as broker and groups are there."""
        for model in self.models:
            self._tasks[model.name] = asyncio.create_task(self._register_all(url, model))

    async def await_started(self, timeout_s: float) -> None:
        """Waits until the adapters of models that are loaded with the stack are registered, or are not."""
        started = [self._tasks[one.name] for one in self.models if one.entry.load == "start"]
        if started:
            await asyncio.wait(started, timeout=timeout_s)

    async def close(self) -> None:
        """Registers no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _register_all(self, url: str, model: ServedModel) -> None:
        bus = await self._connected(url)
        try:
            await self._until_ready(bus, model.name)
            for adapter in model.entry.adapters:
                await self._register(bus, model.name, adapter.name, adapter.source)
        finally:
            await bus.close()

    async def _connected(self, url: str) -> NatsBus:
        while True:
            try:
                return await NatsBus.connect(url, name="adapters", connect_wait_s=CONNECT_S)
            except RyzError as error:
                self._note(f"adapters are not registered while the broker is away: {error.message}")
                await asyncio.sleep(RETRY_S)

    async def _until_ready(self, bus: NatsBus, model: str) -> None:
        """Wait for a group. It is not woken: of a model on demand a request does that."""
        while True:
            with suppress(RyzError):
                known = await known_models(bus, timeout_s=2.0)
                if any(card.name == model for card in known.models):
                    return
            await asyncio.sleep(POLL_S)

    async def _register(self, bus: NatsBus, base: str, name: str, source: str) -> None:
        client = AdaptersClient(bus)
        while True:
            try:
                await client.load_adapter(base, name, source, replace=True, wait_s=LOAD_WAIT_S)
            except Unavailable:  # its group has ended again, or a service restarts
                await asyncio.sleep(RETRY_S)
            except RyzError as error:
                self._note(f"adapter {base}:{name} is left out: {error.message}")
                return
            else:
                return
