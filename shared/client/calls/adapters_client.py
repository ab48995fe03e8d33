"""Has routers load and unload adapters, and lists them."""

import asyncio
import re

from shared import subjects
from shared.bus import Bus, NoResponders
from shared.bus.endpoint import call
from shared.errors import InvalidRequest, RyzError, Unavailable
from shared.messages import (
    Adapter,
    AdapterInspected,
    AdapterManaged,
    ListedAdapter,
    ListModels,
    LoadAdapterCall,
    ModelList,
    UnloadAdapterCall,
    Wire,
)
from shared.messages.base import DEFAULT_TENANT
from shared.subjects import OutsideService

ANSWER_S = 2.0
LOAD_S = 30.0  # a leader reads the files
PAUSE_S = 0.25
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WAITED_FOR = frozenset({"waking", "no_group", "adapters_unknown", "no_router", "engine_down"})


class AdaptersClient:
    """Speaks to routers.

    Args:
        bus: The connection.
        caller: The name of a service outside, which may list adapters and not manage them.
    """

    def __init__(self, bus: Bus, *, caller: OutsideService | None = None) -> None:
        self._bus = bus
        self._caller = caller

    async def load_adapter(
        self,
        base: str,
        name: str,
        source: str,
        *,
        tenant: str = DEFAULT_TENANT,
        replace: bool = False,
        found: AdapterInspected | None = None,
        wait_s: float = 0.0,
    ) -> Adapter:
        """Makes an adapter known to the fleet under `base:name`. It is loaded by the first request for it.

        The same content again is no error. A base that a host can load is woken.

        Args:
            base: A model that is served, or another name of it.
            name: 1 to 64 letters, digits, `_`, `.` and `-`.
            source: A PEFT directory or a GGUF file, as the hosts of the base see it.
            tenant: Whose it is.
            replace: Whether it takes the place of other content under its name.
            found: What a host of the base has read: where no group of the base runs, it is not woken then.
            wait_s: How long to wait for a router, a group of the base, or the KV state service.

        Raises:
            ModelNotFound: There is no such base.
            InvalidRequest: The name is none, or the files cannot be used; or the client is that of a service
                outside.
            Conflict: The name is taken by other content, or by a model.
            RateLimited: The base has as many adapters as it may have.
            Unavailable: Something is still missing after that time.
        """
        check_adapter_name(name)
        asked = LoadAdapterCall(
            base=base, name=name, source=source, tenant=tenant, replace=replace, found=found
        )
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            try:
                return await self._manage(subjects.LOAD_ADAPTER, asked, LOAD_S)
            except Unavailable as error:
                if loop.time() + PAUSE_S > until or error.data.get("reason") not in _WAITED_FOR:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def unload_adapter(self, base: str, name: str) -> Adapter:
        """Takes an adapter away: requests for it are refused, and those that run with it end as usual.

        Raises:
            ModelNotFound: The base has no such adapter.
            InvalidRequest: The name is none; or the client is that of a service outside.
            Unavailable: No router runs, or the KV state service does not answer.
        """
        check_adapter_name(name)
        return await self._manage(subjects.UNLOAD_ADAPTER, UnloadAdapterCall(base=base, name=name), ANSWER_S)

    async def list_adapters(self, base: str) -> list[ListedAdapter]:
        """The adapters of a model, by name.

        Raises:
            Unavailable: No router runs, or it has not read the register yet.
        """
        query, subject = ListModels(adapters_of=base), subjects.models(self._caller)
        return (await call(self._bus, subject, query, ModelList, timeout_s=ANSWER_S)).adapters

    async def _manage(self, subject: str, asked: Wire, timeout_s: float) -> Adapter:
        if self._caller is not None:
            raise InvalidRequest(
                "services outside do not manage adapters on the bus; use a gateway's /v1/load_lora_adapter"
            )
        try:
            answer = await call(self._bus, subject, asked, AdapterManaged, timeout_s=timeout_s)
        except NoResponders:
            raise _no_router() from None
        return answer.adapter


def check_adapter_name(name: str) -> None:
    """Raises `InvalidRequest` for what is no name of an adapter."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:64]!r} is no name of an adapter: it needs 1 to 64 letters, digits, `_`, `.` and `-`",
            param="name",
        )


def _no_router() -> RyzError:
    return Unavailable("no router is running; start one", reason="no_router", retry_after_s=1.0)
