"""The base of the serving routes that take a JSON body: checks, limits, and the turn to read the body."""

from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from pydantic import BaseModel

from services.gateway.answering.context import GatewayContext
from services.gateway.bodies.body_parser import check_content_type, parse_body
from services.gateway.field_policy.left_out import IgnoredFields
from services.gateway.http.serving_route import HttpExchange, ServingRoute
from shared.web.admitted_connection import CONNECTION

B = TypeVar("B", bound=BaseModel)


class BodyRoute(ServingRoute):
    """Answers `POST` on a path."""

    def __init__(self, path: str, context: GatewayContext) -> None:
        super().__init__(path, context)
        self.ignored_fields = IgnoredFields(path, context.metrics, strict=context.settings.strict_fields)

    async def take_body(self, exchange: HttpExchange) -> bytes:
        """Admits the request and reads its body; from then on the request holds one place.

        Raises:
            RyzError: The request is refused: by `admit`, by its party's places, by its tenant's tokens, or as
                too large.
            HttpRefusal: Its key is not known, or the body is no JSON by its headers.
        """
        context, caller, admission = self.context, exchange.caller, self.context.admission
        admission.admit(caller)
        admission.places.check_units(caller.party)
        check_content_type(caller.headers)
        raw = await context.bodies.read_body(
            exchange.receive,
            caller.headers,
            caller.party,
            arrived=exchange.scope[CONNECTION].body_arrived,
        )
        caller.held += len(raw)
        exchange.body_read = True
        context.metrics.request_bytes.inc(len(raw))
        admission.take_body(caller, len(raw))
        return raw

    def turn(self, exchange: HttpExchange, raw: bytes) -> AbstractAsyncContextManager[None]:
        """See `Admission.turn`."""
        return self.context.admission.turn(exchange.caller, raw)

    async def take_model(self, exchange: HttpExchange, kind: type[B]) -> B:
        """Like `take_body`, and parses the body.

        Raises:
            InvalidRequest: The body is wrong; names the field.
        """
        raw = await self.take_body(exchange)
        async with self.turn(exchange, raw):
            body = parse_body(raw, kind, self.context.settings.constants.max_body_values)
        return await self.with_real_name(body)

    async def with_real_name(self, body: B) -> B:
        """The body with the real name of its model, if it has one; see `ModelAliases`."""
        name = getattr(body, "model", None)
        real = await self.context.aliases.real_name(name) if isinstance(name, str) else name
        return body if real == name else body.model_copy(update={"model": real})
