"""The message bus: publish, request, subscribe.

`api.py` is the contract. `tests/contract` checks it for `nats.py`, which serves, and for the bus inside one
process that other tests use.
"""

from shared.bus.api import (
    Bus,
    Handler,
    Message,
    NoResponders,
    RequestTimedOut,
    ServedSubject,
    Subscription,
)

__all__ = ["Bus", "Handler", "Message", "NoResponders", "RequestTimedOut", "ServedSubject", "Subscription"]
