"""`/v1/manage/models`: operators list, load, wake, end, scale, add and remove models over HTTP."""

from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.admission.errors.refusals import answer_for
from services.gateway.admission.operators import Operators
from services.gateway.answering.context import GatewayContext
from services.gateway.transports.http.exchange import HttpExchange, HttpRoute
from services.gateway.transports.http.model_objects import managed_object
from services.gateway.transports.http.openapi_document import ERRORS, DirectRoute, body_documented_as
from services.gateway.transports.http.request_body import take_model
from shared.client.calls.model_list import not_ready
from shared.client.calls.models_client import Action, ModelsClient, ModelWish
from shared.errors import DeadlineExceeded, InvalidRequest, RyzError
from shared.messages import ModelState

PATH = "/v1/manage/models"
MAX_WAIT_S = 600.0
MAX_GROUPS = 64
_ERRORS = ERRORS | {
    401: {"description": "No key of `RYZ_ADMIN_KEYS`."},
    403: {"description": "There are no such keys, and the caller is not on the gateway's machine."},
    404: {"description": "No host offers that model."},
    409: {"description": "The host refuses; the message says why."},
    503: {"description": "No host loads models, or the model's load failed."},
    504: {"description": "The model is not as it was asked for after `wait` seconds."},
}
_PLAIN: dict[str, Action] = {"load": "load", "wake": "wake", "sleep": "sleep", "unload": "unload"}


class ScaleBody(BaseModel):
    """The body of `scale`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    groups: int = Field(ge=0, le=MAX_GROUPS, description="Groups that are to run.")


class AddedModelBody(BaseModel):
    """The body of a model that is added: the fields of a models file, which the host checks."""

    model_config = ConfigDict(extra="allow", strict=True)
    source: str = Field(description="A name of the catalogue, hf:OWNER/NAME, or a path on the host.")


class ManageRoutes:
    """Answers these routes.

    Args:
        context: What all calls share.
        operators: Decide who may call them.
    """

    def __init__(self, context: GatewayContext, operators: Operators) -> None:
        self._context = context
        self._operators = operators
        timeout_s = context.settings.constants.models_timeout_s
        self._models = ModelsClient(context.client.bus, timeout_s=timeout_s, wait_s=context.client.wait_s)

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.caller.named_tenant = self._operators.tenant_of(exchange.caller)
        if exchange.scope["path"] == PATH:
            exchange.admit()
            states, register = await self._models.list_models(), self._context.aliases.adapters.register
            data = [managed_object(state, register.of_base(state.card.name)) for state in states]
            shown = {"object": "list", "data": data}
            await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])
            return
        if exchange.scope["method"] in {"PUT", "DELETE"}:
            await self._add_or_remove(exchange, exchange.scope["path"].removeprefix(f"{PATH}/"))
            return
        model, _, action = exchange.scope["path"].removeprefix(f"{PATH}/").rpartition("/")
        wait_s = wait_of(exchange)
        if action == "scale":
            groups = (await take_model(exchange, ScaleBody)).groups
            wish = ModelWish(await self._real_name(model), "scale", groups)
        else:
            exchange.admit()
            exchange.take_slots(1)
            wish = ModelWish(await self._real_name(model), _PLAIN[action])
        await self._carry_out(exchange, wish, wait_s)

    async def _add_or_remove(self, exchange: HttpExchange, model: str) -> None:
        if b"wait=" in exchange.scope.get("query_string", b""):
            raise InvalidRequest(
                "`wait` is for `load`, `wake`, `sleep`, `unload` and `scale`: `load` a model that was added",
                param="wait",
            )
        if exchange.scope["method"] == "PUT":
            fields = (await take_model(exchange, AddedModelBody)).model_dump(exclude_unset=True)
            if fields.get("name", model) != model:
                raise InvalidRequest(
                    f"the path names the model {model[:128]!r}: leave `name` out", param="name"
                )
            added = await self._models.put_model({**fields, "name": model})
            shown: dict[str, Any] = {"id": added.model, "object": "model", "host": added.hosts[0]}
            if len(added.hosts) > 1 or added.left_out:
                left_out = [{"host": host, "message": why} for host, why in added.left_out.items()]
                shown |= {"hosts": added.hosts, "left_out": left_out}
        else:
            exchange.admit()
            exchange.take_slots(1)
            shown = managed_object(await self._models.manage_model(ModelWish(model, "remove")))
        await exchange.reply.send_whole(202, msgspec.json.encode(shown), [])

    async def _real_name(self, model: str) -> str:
        return await self._context.aliases.real_name(model)

    async def _carry_out(self, exchange: HttpExchange, wish: ModelWish, wait_s: float) -> None:
        state = await self._models.manage_model(wish)
        if not wait_s:
            await exchange.reply.send_whole(202, msgspec.json.encode(managed_object(state)), [])
            return
        async with exchange.running_call(wait_s + self._context.client.wait_s):
            state = await self._models.wait_until_met(wish, wait_s)
        shown = managed_object(state)
        if wish.is_met(state):
            await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])
            return
        answer = answer_for(unmet(wish, state, wait_s))
        body = shown | msgspec.json.decode(answer.body)
        await exchange.reply.send_whole(answer.status, msgspec.json.encode(body), answer.headers)


def unmet(wish: ModelWish, state: ModelState, wait_s: float) -> RyzError:
    """The error of a wait whose end is not what was asked for."""
    if state.phase == "failed" and wish.wants_groups:
        return not_ready(state)
    groups = f"{state.groups_ready} of {state.groups} groups ready"
    why = f": {state.why}" if state.why else ""
    return DeadlineExceeded(
        f"after {wait_s:g} s model {wish.model!r} is {state.phase} with {groups}{why}; "
        f"the wish to {wish.action} it stands",
        reason="still_" + state.phase,
    )


def wait_of(exchange: HttpExchange) -> float:
    """Seconds of the parameter `wait`; 0 without it."""
    query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
    text = query.get("wait", ["0"])[-1]
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0.0 <= wait_s <= MAX_WAIT_S:
        raise InvalidRequest(f"`wait` is 0 to {MAX_WAIT_S:g} seconds, got {text[:32]!r}", param="wait")
    return wait_s


def add_manage_models(app: FastAPI, context: GatewayContext, operators: Operators) -> None:
    """Adds the routes."""
    Wait = Annotated[
        float,
        Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait until it is so: 200, or 504 after them."),
    ]

    async def managed_models() -> None:
        """The models that hosts offer, with their state, groups and memory."""

    async def load_model(model: str, wait: Wait = 0.0) -> None:
        """Has a group of the model started; answered with 202 and the state as it is."""

    async def wake_model(model: str, wait: Wait = 0.0) -> None:
        """The same, for a model that is asleep."""

    async def sleep_model(model: str, wait: Wait = 0.0) -> None:
        """Ends the model's groups when they have nothing to do; the next request wakes it."""

    async def unload_model(model: str, wait: Wait = 0.0) -> None:
        """Ends the model's groups, which finish what they run; requests are refused until a `load`."""

    async def scale_model(model: str, wait: Wait = 0.0) -> None:
        """Sets how many groups of the model run."""

    async def add_model(model: str) -> None:
        """Has all hosts that have a model offer it, on demand, until their stacks end; it may be fetched."""

    async def remove_model(model: str) -> None:
        """Ends the model's groups, which finish what they run, and offers it no more."""

    direct = HttpRoute(PATH, context, ManageRoutes(context, operators).serve_request)
    routes, tags = app.router.routes, ["models"]
    routes.append(
        DirectRoute(PATH, managed_models, direct=direct, methods=["GET"], responses=_ERRORS, tags=tags)
    )
    for endpoint, method in ((add_model, "PUT"), (remove_model, "DELETE")):
        routes.append(
            DirectRoute(
                f"{PATH}/{{model:path}}",
                endpoint,
                direct=direct,
                methods=[method],
                status_code=202,
                responses=_ERRORS,
                openapi_extra=body_documented_as(AddedModelBody) if method == "PUT" else None,
                tags=tags,
            )
        )
    for endpoint in (load_model, wake_model, sleep_model, unload_model, scale_model):
        action = endpoint.__name__.removesuffix("_model")
        body = body_documented_as(ScaleBody) if action == "scale" else None
        routes.append(
            DirectRoute(
                f"{PATH}/{{model:path}}/{action}",
                endpoint,
                direct=direct,
                methods=["POST"],
                status_code=202,
                responses=_ERRORS,
                openapi_extra=body,
                tags=tags,
            )
        )
