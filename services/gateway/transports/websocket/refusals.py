"""Refuses a WebSocket by an answer of HTTP, before it is one."""

from starlette.types import Send

from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.metrics import GatewayMetrics
from shared.errors import RyzError


async def refuse_socket(
    send: Send, error: RyzError | HttpRefusal, metrics: GatewayMetrics, path: str
) -> None:
    """Sends the error as the answer to the request that was to become a WebSocket."""
    answer = answer_for(error)
    metrics.count_answer(path, answer.status, 0.0)
    kind = (b"content-type", b"application/json")
    start = {"status": answer.status, "headers": [kind, *answer.headers]}
    await send({"type": "websocket.http.response.start", **start})
    await send({"type": "websocket.http.response.body", "body": answer.body})
