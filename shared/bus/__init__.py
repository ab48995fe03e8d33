"""The message bus as the services see it: publish, request, subscribe.

`nats.py` is the real one, `memory.py` runs inside one process; `tests/contract` holds both to this text.
"""

from shared.bus.api import Bus, Handler, Message, NoResponders, RequestTimedOut, Subscription

__all__ = ["Bus", "Handler", "Message", "NoResponders", "RequestTimedOut", "Subscription"]
