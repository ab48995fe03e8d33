"""The message bus: publish, request, subscribe.

`api.py` is the contract, which `tests/contract` checks for both implementations: `nats.py`, which serves, and
`memory.py`, inside one process.
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
