"""All tables, and the tenants that they need."""

from tests.contract.corpus.tables import (
    batches,
    bus_table,
    chat,
    grpc_table,
    messages,
    realtime,
    refusals,
    responses,
    sessions,
    streams,
    text,
    tight,
    tokens,
)

# those that take longest begin first
TABLES = (
    batches.TABLE,
    tight.TABLE,
    sessions.REPEATS,
    grpc_table.TABLE,
    realtime.TABLE,
    streams.TABLE,
    responses.TABLE,
    chat.PLAIN,
    chat.FORMS,
    text.TABLE,
    messages.TABLE,
    bus_table.TABLE,
    bus_table.DIRECT,
    tokens.TABLE,
    sessions.TURNS,
    sessions.OBJECTS,
    refusals.DEMANDS,
    refusals.TABLE,
)


def tenants() -> list[str]:
    """All tenants."""
    own = [exchange.tenant for one in TABLES for exchange in one.exchanges]
    return list(dict.fromkeys([*(one.name for one in TABLES), *own, "warm-up"]))
