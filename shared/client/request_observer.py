"""The port to what measures the requests of a client: times of tokens, and how requests end.

Services measure with `shared/telemetry/service_levels.py`; other callers measure nothing.
"""

from typing import Protocol

from shared.errors import RyzError
from shared.messages import GenerateRequest, Usage


class ObservedRequest(Protocol):
    """One request; its methods are called on the client's event loop and return at once."""

    def add_tokens(self, now: float) -> None:
        """The next tokens came, on the client's clock in seconds."""
        ...

    def adopt(self) -> None:
        """The request was begun by another caller: its times before now are not known."""
        ...

    def end(self, now: float, error: RyzError | None, usage: Usage) -> None:
        """The request has ended, with an error or well; called once at most."""
        ...


class RequestObserver(Protocol):
    """Measures the requests of one client."""

    def begin(self, request: GenerateRequest, now: float) -> ObservedRequest:
        """Return what measures one request, which begins now."""
        ...


class Unobserved:
    """Measures nothing."""

    def begin(self, request: GenerateRequest, now: float) -> ObservedRequest:
        """Return itself."""
        return self

    def add_tokens(self, now: float) -> None:
        """Do nothing."""

    def adopt(self) -> None:
        """Do nothing."""

    def end(self, now: float, error: RyzError | None, usage: Usage) -> None:
        """Do nothing."""


UNOBSERVED = Unobserved()
