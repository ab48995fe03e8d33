"""Lists the models of a fleet over the bus, tells hosts a wish for one, and waits until it is met."""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import NoReturn

import structlog

from cli.console import fail
from cli.models.running.view import loading_bar
from cli.stack.state import StateDir
from cli.status.query import connect_broker, find_broker, no_broker
from shared.bus import Bus
from shared.client import AdaptersClient, ModelsClient, ModelWish
from shared.client.calls.register_sync import read_register
from shared.errors import InvalidRequest, ModelNotFound, RyzError, Unavailable
from shared.messages import Adapter, ModelState

NO_SUCH_MODEL = 2


class FleetModels:
    """The models of the fleet that one broker reaches. Methods raise `CommandError` with a sentence."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._client = ModelsClient(bus)
        self._adapters = AdaptersClient(bus)

    async def list_models(self) -> list[ModelState]:
        """Return the models that hosts offer, by name."""
        try:
            return await self._client.list_models()
        except RyzError as error:
            _fail(error)

    async def list_all(self) -> tuple[list[ModelState], list[Adapter] | None]:
        """Return the same and the adapters of all models; None: the KV state service does not answer."""
        states = await self.list_models()
        try:
            adapters, _ = await read_register(self._bus)
        except Unavailable:
            return states, None
        return states, adapters

    async def load_adapter(
        self, base: str, name: str, source: str, *, tenant: str, replace: bool, wait_s: float
    ) -> Adapter:
        """See `AdaptersClient.load_adapter`."""
        try:
            return await self._adapters.load_adapter(
                base, name, source, tenant=tenant, replace=replace, wait_s=wait_s
            )
        except RyzError as error:
            _fail(error)

    async def unload_adapter(self, base: str, name: str) -> Adapter:
        """See `AdaptersClient.unload_adapter`."""
        try:
            return await self._adapters.unload_adapter(base, name)
        except RyzError as error:
            _fail(error)

    async def manage(self, wish: ModelWish, timeout_s: float, *, quiet: bool) -> ModelState:
        """Tell hosts a wish, and wait until it is met; return the model's state then.

        Args:
            timeout_s: Seconds to wait at most; 0 does not wait.
            quiet: Whether to show no progress.
        """
        try:
            state = await self._client.manage_model(wish)
            if not timeout_s:
                return state
            with nullcontext(lambda state: None) if quiet else loading_bar(wish, state) as show:
                state = await self._client.wait_until_met(wish, timeout_s, show)
        except RyzError as error:
            _fail(error)
        if wish.is_met(state):
            return state
        return _unmet(state, timeout_s)


@asynccontextmanager
async def fleet_models(nats_url: str, state_dir: StateDir) -> AsyncIterator[FleetModels]:
    """Connect to the broker that is given, or that of the stack that is up here."""
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    url = find_broker(nats_url, state_dir)
    try:
        bus = await connect_broker(url, state_dir, "ryz models")
    except InvalidRequest as error:
        _fail(error)
    except RyzError:
        fail(no_broker(url))
    try:
        yield FleetModels(bus)
    finally:
        await bus.close()


def _unmet(state: ModelState, timeout_s: float) -> NoReturn:
    name, why = state.card.name, f": {state.why}" if state.why else ""
    if state.phase == "failed":
        fail(f"{name} could not be loaded{why}.")
    fail(
        f"After {timeout_s:g} s {name} is {state.phase}, {state.groups_ready} of {state.groups} groups "
        f"ready{why}. The wish stands; `ryz models status` shows how it goes on."
    )


def _fail(error: RyzError) -> NoReturn:
    text = f"{error.message[:1].upper()}{error.message[1:]}."
    fail(text, NO_SUCH_MODEL if isinstance(error, ModelNotFound) else 1)
