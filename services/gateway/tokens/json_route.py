"""The base of routes that take a JSON body, ask something on the bus, and answer with JSON."""

from abc import abstractmethod
from typing import Generic, TypeVar

from services.gateway.admission.request_headers import time_limit_s
from services.gateway.answering.context import GatewayContext
from services.gateway.bodies.body_route import BodyRoute
from services.gateway.bodies.body_types import RequestBody
from services.gateway.field_policy.field_rules import judge_fields
from services.gateway.field_policy.left_out import LeftOut
from services.gateway.http.serving_route import HttpExchange

B = TypeVar("B", bound=RequestBody)


class JsonRoute(BodyRoute, Generic[B]):
    """Answers `POST` on a path within the limits of all requests.

    Args:
        path: The route.
        body: Model of its bodies.
        context: What all requests share.
    """

    def __init__(self, path: str, body: type[B], context: GatewayContext) -> None:
        super().__init__(path, context)
        self._body = body

    @abstractmethod
    async def answer_body(self, body: B, exchange: HttpExchange, timeout_s: float) -> bytes:
        """Returns the answer; raises the error that becomes it."""

    def judge(self, body: B) -> tuple[list[str], list[LeftOut]]:
        """Returns the unknown fields of a body, and the parts that are known and left out."""
        unknown, left_out = judge_fields(body.model_extra, type(body).model_fields)
        return [*unknown, *body.unknown_inside], left_out

    def timeout_in(self, body: B) -> float | None:
        """Returns the time limit in a body, in seconds; None if it has none."""
        return None

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        settings = self.context.settings
        body = await self.take_model(exchange, self._body)
        unknown, left_out = self.judge(body)
        exchange.caller.told += self.ignored_fields.tell(unknown, left_out, exchange.caller.request_id)
        timeout_s = time_limit_s(
            exchange.caller.headers,
            self.timeout_in(body),
            default_s=settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        async with self.running_request(exchange, timeout_s):
            answer = await self.answer_body(body, exchange, timeout_s)
            headers = exchange.caller.outcome.headers() if exchange.caller.outcome.group else []
            await exchange.reply.send_whole(200, answer, headers)
