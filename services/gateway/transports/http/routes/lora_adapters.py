"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: operators manage adapters, with vLLM's calls."""

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.admission.operators import Operators
from services.gateway.answering.context import GatewayContext
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute, body_documented_as
from services.gateway.transports.http.reply import TEXT
from services.gateway.transports.http.request_body import take_model
from shared.client.calls.adapters_client import AdaptersClient
from shared.client.calls.model_list import no_model_ready, usable_names
from shared.errors import Conflict, InvalidRequest, ModelNotFound
from shared.messages.base import DEFAULT_TENANT

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOAD_S = 35.0
TENANT = r"^[A-Za-z0-9_-]{1,64}$"  # as `Tenant` of messages, in the dialect of pydantic
_FIELDS = {"name": "lora_name", "source": "lora_path", "base": "base_model_name"}
_ERRORS = ERRORS | {
    400: {"description": "The files cannot be used, the name is taken, or the body is wrong."},
    401: {"description": "No key of `RYZ_ADMIN_KEYS`."},
    403: {"description": "There are no such keys, and the caller is not on the gateway's machine."},
    404: {"description": "There is no such base, or no such adapter."},
}


class _AdapterBody(BaseModel):
    """What both bodies have."""

    model_config = ConfigDict(extra="ignore", strict=True)  # vLLM has more, of no use here
    lora_name: str = Field(description="The adapter is asked for as `base:lora_name`.")
    base_model_name: str = Field("", description="The base; needed where several models are served.")


class LoadAdapterBody(_AdapterBody):
    """The body of `/v1/load_lora_adapter`."""

    lora_path: str = Field(
        min_length=1, max_length=4096, description="A PEFT directory or a GGUF file, as hosts see it."
    )
    load_inplace: bool = Field(False, description="Replace an adapter of that name.")
    tenant: str = Field(DEFAULT_TENANT, pattern=TENANT, description="Whose it is.")


class UnloadAdapterBody(_AdapterBody):
    """The body of `/v1/unload_lora_adapter`."""


class AdapterRoutes:
    """Answers these routes.

    Args:
        context: What all calls share.
        operators: Decide who may call them.
    """

    def __init__(self, context: GatewayContext, operators: Operators) -> None:
        self._context = context
        self._operators = operators
        self._adapters = AdaptersClient(context.client.bus)

    async def load(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        body = await take_model(exchange, LoadAdapterBody)
        wait_s = self._context.client.wait_s
        async with exchange.running_call(LOAD_S + wait_s):
            base, name = await self._base_of(body), body.lora_name
            try:
                await self._adapters.load_adapter(
                    base, name, body.lora_path, tenant=body.tenant, replace=body.load_inplace, wait_s=wait_s
                )
            except Conflict as error:
                if error.data.get("reason") != "adapter_exists":
                    raise
                raise InvalidRequest(
                    f"The lora adapter {name!r} has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True.",
                    param="lora_name",
                ) from None
            except InvalidRequest as error:
                raise _named_as_here(error) from None
        await _succeed(exchange, f"Success: LoRA adapter {name!r} added successfully.")

    async def unload(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        body = await take_model(exchange, UnloadAdapterBody)
        name, register = body.lora_name, self._context.aliases.adapters.register
        if body.base_model_name:
            base = await self._base_of(body)
        elif (found := register.find(name) or register.named(name)) is not None:
            base, name = found.base, found.name
        else:
            base = await self._base_of(body)
        try:
            await self._adapters.unload_adapter(base, name)
        except InvalidRequest as error:
            raise _named_as_here(error) from None
        except ModelNotFound:
            raise ModelNotFound(f"The lora adapter {name!r} cannot be found.", param="lora_name") from None
        await _succeed(exchange, f"Success: LoRA adapter {name!r} removed successfully.")

    async def _base_of(self, body: _AdapterBody) -> str:
        """The name of the base that is meant.

        Raises:
            InvalidRequest: The body names none, and several models are served.
        """
        if body.base_model_name:
            return await self._context.aliases.real_name(body.base_model_name)
        timeout_s = self._context.settings.constants.models_timeout_s
        names = usable_names(await self._context.client.known_models(timeout_s=timeout_s))
        if not names:
            raise no_model_ready()
        if len(names) > 1:
            raise InvalidRequest(
                f"several models are served: name the base in `base_model_name`; they are {', '.join(names)}",
                param="base_model_name",
            )
        return names[0]


def _named_as_here(error: InvalidRequest) -> InvalidRequest:
    """The error with the field's name in these bodies."""
    param = error.data.get("param")
    named = _FIELDS.get(param, param) if isinstance(param, str) else param
    return InvalidRequest(error.message, **error.data | {"param": named})


async def _succeed(exchange: HttpExchange, text: str) -> None:
    await exchange.reply.send_whole(200, text.encode(), [], form=TEXT)


def add_lora_adapters(app: FastAPI, context: GatewayContext, operators: Operators) -> None:
    """Adds the routes."""

    async def load_lora_adapter() -> None:
        """Makes an adapter known to the fleet; the first request for `base:name` loads it."""

    async def unload_lora_adapter() -> None:
        """Takes an adapter away; requests that run with it end as usual."""

    routes = AdapterRoutes(context, operators)
    for path, endpoint, handle, body in (
        (LOAD, load_lora_adapter, routes.load, LoadAdapterBody),
        (UNLOAD, unload_lora_adapter, routes.unload, UnloadAdapterBody),
    ):
        app.router.routes.append(
            DirectRoute(
                path,
                endpoint,
                direct=HttpRoute(path, context, handle),
                methods=["POST"],
                response_class=PlainTextResponse,
                responses=_ERRORS,
                openapi_extra=body_documented_as(body),
                tags=["models"],
            )
        )
