"""Reads parameters of a request's query. Of several with one name the last counts."""

from urllib.parse import parse_qs

from services.gateway.transports.http.exchange import HttpExchange
from shared.errors import InvalidRequest

MAX_DIGITS = 16


def query_of(exchange: HttpExchange) -> dict[str, str]:
    """All parameters, also those without a value."""
    query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    return {name: values[-1] for name, values in query.items()}


def flag(exchange: HttpExchange, name: str) -> bool:
    """Whether a parameter is `true` or `1`."""
    return query_of(exchange).get(name) in {"true", "1"}


def whole(query: dict[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """A whole number; raises `InvalidRequest` unless it is within its bounds."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and least <= int(text) <= most):
        raise InvalidRequest(f"`{name}` is {least} to {most}, got {text[:32]!r}", param=name)
    return int(text)
