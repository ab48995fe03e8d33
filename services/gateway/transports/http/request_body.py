"""Reads the JSON bodies of HTTP requests within the limits of admission."""

from typing import TypeVar

from pydantic import BaseModel

from services.gateway.formats.fields.body_format import check_content_type, parse_body
from services.gateway.transports.http.exchange import HttpExchange
from shared.web.admitted_connection import CONNECTION

B = TypeVar("B", bound=BaseModel)


async def take_body(exchange: HttpExchange) -> bytes:
    """Admits a request and reads its body; from then on the request holds one slot.

    Raises:
        RyzError: The request is refused: by `admit`, by its party's slots, by its tenant's tokens, or as
            too large.
        HttpRefusal: Its key is not known, or the body is no JSON by its headers.
    """
    context, caller, admission = exchange.context, exchange.caller, exchange.context.admission
    admission.admit(caller)
    admission.slots.check_units(caller.party)
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
    if (pending := admission.take_body(caller, len(raw))) is not None:
        await pending
    return raw


async def take_model(exchange: HttpExchange, kind: type[B]) -> B:
    """Like `take_body`, and parses the body.

    Raises:
        InvalidRequest: The body is wrong; names the field.
    """
    raw, context = await take_body(exchange), exchange.context
    async with context.admission.body_slot(exchange.caller, raw):
        return parse_body(raw, kind, context.settings.constants.max_body_values)
