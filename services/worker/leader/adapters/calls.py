"""The call that inspects an adapter's files, before the adapter is registered."""

import asyncio
import socket
from collections.abc import Callable

from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from shared.bus.api import Message
from shared.errors import InvalidRequest, Unavailable
from shared.messages import AdapterInspected, InspectAdapter

MAX_INSPECTED, MAX_INSPECTIONS = 1, 64  # calls that are answered at once, and that may wait
Inspect = Callable[[str], AdapterDescription]


class AdapterInspectionCall:
    """The call of the subject for inspections.

    Args:
        inspect: Reads the files of a source, in a thread; raises `AdapterError`. None: there is no reader.

    Attributes:
        is_reader: The leader can read adapters; a guest's cannot, and leaves the calls to other groups.
    """

    def __init__(self, context: LeaderContext, engine: EngineState, inspect: Inspect | None) -> None:
        self._context = context
        self._engine = engine
        self._inspect = inspect
        self.is_reader = inspect is not None

    async def inspect_adapter(self, asked: InspectAdapter, _: Message) -> AdapterInspected:
        """Returns what the files are.

        Raises:
            InvalidRequest: They cannot be served here; says why.
            Unavailable: The engine has not started, so it is not known whether it computes with adapters.
        """
        if self._engine.info is None:
            raise Unavailable(
                f"the engine of group {self._context.group} is not up yet; try again",
                reason="engine_down",
                retry_after_s=1.0,
            )
        bound = self._engine.facts.adapter_bytes
        if self._inspect is None or not bound:
            raise InvalidRequest(
                f"groups of {self._context.model} compute without adapters",
                param="base",
                reason="no_adapters",
            )
        try:
            found = await asyncio.to_thread(self._inspect, asked.source)
        except AdapterError as error:
            text = f"{error} (as group {self._context.group} on {socket.gethostname()} sees it)"
            raise InvalidRequest(text, param="source", reason="bad_adapter") from error
        if found.num_bytes > bound:
            raise InvalidRequest(
                f"the adapter takes {found.num_bytes:,} bytes, and a group of {self._context.model} "
                f"has {bound:,} for all; raise RYZ_ADAPTER_BYTES",
                param="source",
                reason="bad_adapter",
            )
        return AdapterInspected(fingerprint=found.fingerprint, rank=found.rank, num_bytes=found.num_bytes)

    def check_model(self, asked: InspectAdapter, _: Message) -> None:
        """Raises `InvalidRequest` if the call names another model than its subject."""
        if asked.model != self._context.model:
            raise InvalidRequest(
                f"this subject is for model {self._context.model}, the call names {asked.model}",
                param="model",
            )
