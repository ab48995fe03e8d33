"""Whether the gateway can serve now: its own state, a router that answers, a model that is ready or can load.

A request is not refused by this: it goes to the routers, which know more. It is for `/ready`, so for health
checks, load balancers and `ryz up`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from shared.client.calls.model_list import usable_names
from shared.errors import RyzError
from shared.lifecycle import Service
from shared.messages import ModelList

ROUTER_WAIT_S = 1.0  # for a router's answer; health checks wait for two seconds
FRESH_S = 0.25  # an answer is used again for so long, so that callers of /ready cause few messages
NO_ROUTER, NO_GROUP, NO_ACCOUNTS = "no_router", "no_group", "accounts_away"
_MEANING = {
    NO_ROUTER: "no router answers on the bus; see the router's log",
    NO_ACCOUNTS: "the KV state service has not told yet whether requests need a key; see its log",
    NO_GROUP: "no worker group is ready; `ryz groups list` shows their states",
}


@dataclass(frozen=True, slots=True)
class Readiness:
    """An answer of `/ready`.

    Attributes:
        reason: Why it is not ready, in one word; empty: it is ready.
        body: The details.
    """

    reason: str
    body: dict[str, Any]


class ReadinessCheck:
    """Asks a router for its models, at most one question at a time and four a second.

    Args:
        service: Its own state and checks come first; without them no router is asked.
        ask_models: What a router knows; raises an error of the family if none answers.
        clock: Monotonic seconds.
        knows_keys: Whether it is known if requests need a key.
    """

    def __init__(
        self,
        service: Service,
        ask_models: Callable[[], Awaitable[ModelList]],
        clock: Callable[[], float] = time.monotonic,
        knows_keys: Callable[[], bool] = lambda: True,
    ) -> None:
        self._service = service
        self._ask_models = ask_models
        self._knows_keys = knows_keys
        self._clock = clock
        self._asking = asyncio.Lock()
        self._models: list[str] | None = None  # None: no router answered
        self._asked_at = float("-inf")

    async def check(self) -> Readiness:
        """Returns the state as of at most `FRESH_S` ago."""
        body = self._service.readiness()
        if not self._service.is_ready:
            broken = [name for name, good in body["checks"].items() if not good]
            return Readiness("no_broker" if broken else str(body["state"]), body)
        models = await self._known_models()
        reason = NO_ROUTER if models is None else "" if models else NO_GROUP
        if not self._knows_keys():
            reason = reason or NO_ACCOUNTS
        body["checks"] |= {
            "router": models is not None,
            "group": bool(models),
            "accounts": self._knows_keys(),
        }
        body["models"] = models or []
        if reason:
            body |= {"status": "not ready", "reason": reason, "message": _MEANING[reason]}
        return Readiness(reason, body)

    async def _known_models(self) -> list[str] | None:
        async with self._asking:
            if self._clock() - self._asked_at > FRESH_S:
                try:
                    self._models = _servable(await self._ask_models())
                except RyzError:
                    self._models = None
                self._asked_at = self._clock()
            return self._models


def _servable(known: ModelList) -> list[str]:
    """The models for which a request is answered: those that are asleep wake for it."""
    failed = {state.card.name for state in known.offered if state.phase == "failed"}
    return [name for name in usable_names(known) if name not in failed]
