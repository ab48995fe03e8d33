"""Lists the models that hosts offer, and tells hosts to load, end, scale, add or remove them."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from shared import subjects
from shared.bus import Bus, NoResponders, RequestTimedOut
from shared.bus.call_all import call_all
from shared.bus.endpoint import call
from shared.client.calls.model_list import known_models
from shared.codec import encode
from shared.errors import Conflict, InvalidRequest, ModelNotFound, RequestTooLarge, RyzError, Unavailable
from shared.messages import ManageModel, ModelList, ModelManaged, ModelState, PutModel
from shared.subjects import OutsideService

Action = Literal["load", "wake", "sleep", "unload", "scale", "remove"]
ANSWER_S = 2.0
MORE_HOSTS_S = 1.0  # for the other hosts, after one has answered
HOST_S = 5.0  # that of a busy machine answers late; one that is gone is known at once
POLL_S, KNOWN_POLL_S = 0.2, 0.05
SETTLE_S = 10.0  # within which a router that has just started has heard all hosts, on a busy machine as well
STALE_S = 3.0  # a failure that routers report so soon after a wish may be the one before it


@dataclass(frozen=True, slots=True)
class ModelWish:
    """What an operator wants of a model; `groups` is for `scale`. See `ManageModel`."""

    model: str
    action: Action
    groups: int = 0

    def is_met(self, state: ModelState) -> bool:
        """Whether the model is as it is wanted."""
        if self.action == "scale":
            return state.groups_ready == state.groups == self.groups
        if self.action in {"load", "wake"}:
            return state.phase == "ready"
        return state.groups == 0

    @property
    def wants_groups(self) -> bool:
        """Whether groups are to run, so that a failed load is the end of it."""
        return self.action in {"load", "wake"} or self.groups > 0


@dataclass(frozen=True, slots=True)
class ModelPutOutcome:
    """What became of a model that was added.

    Attributes:
        hosts: Those that offer it now, by name.
        left_out: Why the others do not, by their names.
    """

    model: str
    hosts: tuple[str, ...]
    left_out: Mapping[str, str]


class ModelsClient:
    """Speaks to routers and to the agents of hosts.

    Args:
        bus: The connection.
        timeout_s: How long a router may take for an answer.
        caller: The name of a service outside, which may list models and not manage them.
        wait_s: How long to wait for a router while none runs.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        timeout_s: float = ANSWER_S,
        caller: OutsideService | None = None,
        wait_s: float = 0.0,
    ) -> None:
        self._bus = bus
        self._caller = caller
        self._timeout_s = timeout_s
        self._wait_s = wait_s

    async def list_models(self) -> list[ModelState]:
        """The models that hosts offer, loaded or not, by name; empty where no host loads models.

        Raises:
            Unavailable: No router runs, or none answered in time.
        """
        return _sorted(await self._known_once(lambda known: bool(known.offered)))

    async def _known_once(self, enough: Callable[[ModelList], bool]) -> ModelList:
        """What a router knows; one that has just started is asked again until it knows `enough`, or all.

        Any router answers first, and the one that has just started may not have heard the hosts.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_S
        while True:
            known = await known_models(
                self._bus, timeout_s=self._timeout_s, caller=self._caller, wait_s=self._wait_s
            )
            if known.settled or enough(known) or loop.time() >= until:
                return known
            await asyncio.sleep(POLL_S)

    async def find_model(self, name: str) -> ModelState:
        """The state of a model, by its name or another name of it.

        Raises:
            ModelNotFound: No host offers it; names those that are offered.
            Unavailable: No host offers any model, or no router answered.
        """
        known = await self._known_once(lambda known: _named(known, name) is not None)
        state = _named(known, name)
        if state is not None:
            return state
        if not known.offered:
            raise no_host()
        names = ", ".join(state.card.name for state in _sorted(known))
        raise ModelNotFound(f"no host offers model {name[:128]!r}; models that are: {names}", param="model")

    async def manage_model(self, wish: ModelWish) -> ModelState:
        """Tells the hosts a wish; returns the model's state as it was just before.

        Raises:
            ModelNotFound: No host offers the model.
            Conflict: The host refuses, and says why.
            Unavailable: No host answered, or no router did.
            InvalidRequest: The client is that of a service outside.
        """
        self._refuse_outside()
        state = await self.find_model(wish.model)
        asked = ManageModel(model=state.card.name, action=wish.action, groups=wish.groups)
        try:
            answer = await call(self._bus, subjects.MANAGE_MODEL, asked, ModelManaged, timeout_s=HOST_S)
        except NoResponders:
            raise no_host() from None
        except RequestTimedOut:
            raise Unavailable(
                f"no host answered for model {state.card.name!r} within {HOST_S:g} s; `ryz models status` "
                "shows whether one still offers it",
                reason="no_host",
                retry_after_s=1.0,
            ) from None
        if answer.refused:
            raise Conflict(answer.refused, reason="refused_by_host")
        return state

    async def put_model(self, entry: Mapping[str, Any]) -> ModelPutOutcome:
        """Has hosts offer one more model until their stacks end; it is looked for, or fetched, after that.

        All hosts that have the model take it. Those that do not are named in the outcome.

        Args:
            entry: The fields of a model in a models file; `name` and `source` are needed.

        Raises:
            Conflict: No host takes it, and one says why: the name is taken, or there are too many models.
            RequestTooLarge: The entry is too long for a message.
            Unavailable: No host answered.
            InvalidRequest: No host takes it: the entry is wrong, and `param` the field; or the client is that
                of a service outside.
        """
        self._refuse_outside()
        asked = PutModel(entry=json.dumps(entry))
        if len(encode(asked)) > PutModel.max_bytes:
            raise RequestTooLarge(f"a model is described in at most {PutModel.max_bytes} bytes")
        expected = 1
        with suppress(Unavailable):  # without a router the first answer counts
            expected = max(1, len((await self._known_once(lambda known: bool(known.hosts))).hosts))
        try:
            replies = await call_all(
                self._bus, subjects.PUT_MODEL, asked, ModelManaged,
                expected=expected, timeout_s=HOST_S, more_s=MORE_HOSTS_S,
            )  # fmt: skip
        except NoResponders:
            raise no_host() from None
        if not replies:
            raise no_host()
        outcome = _outcome(replies, several=max(expected, len(replies)) > 1)
        await self._until_known(outcome.model)
        return outcome

    async def _until_known(self, model: str) -> None:
        """Return when a router has heard of a new model, within moments: until then requests are a 404."""
        for _ in range(round(ANSWER_S / KNOWN_POLL_S)):
            try:
                await self.find_model(model)
            except (ModelNotFound, Unavailable):
                await asyncio.sleep(KNOWN_POLL_S)
            else:
                return

    def _refuse_outside(self) -> None:
        if self._caller is not None:
            raise InvalidRequest(
                "services outside do not manage models on the bus; use a gateway's /v1/manage/models"
            )

    async def wait_until_met(
        self,
        wish: ModelWish,
        timeout_s: float,
        on_state: Callable[[ModelState], None] = lambda state: None,
    ) -> ModelState:
        """Waits until a model is as it is wanted, its load has failed, or the time is over.

        Args:
            wish: What hosts were told.
            timeout_s: How long.
            on_state: Gets each state on the way.

        Returns:
            The last state; `wish.is_met` tells which of these it is.

        Raises:
            ModelNotFound: No host offers the model any more.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        state: ModelState | None = None
        while True:
            try:
                state = await self.find_model(wish.model)
            except Unavailable:  # routers come back
                if state is None and loop.time() - began >= timeout_s:
                    raise
            if state is not None:
                on_state(state)
                waited_s = loop.time() - began
                failed = state.phase == "failed" and wish.wants_groups and waited_s >= STALE_S
                if wish.is_met(state) or failed or waited_s >= timeout_s:
                    return state
            await asyncio.sleep(POLL_S)


def _outcome(replies: Sequence[ModelManaged | RyzError], *, several: bool) -> ModelPutOutcome:
    """What hosts have answered together; raises the error if all refuse.

    Args:
        replies: At least one.
        several: There is more than one host, so that errors name theirs.
    """
    taken = [one for one in replies if isinstance(one, ModelManaged) and not one.refused]
    refusals: dict[str, RyzError] = {}
    for one in replies:
        if isinstance(one, RyzError):
            refusals[str(one.data.get("host", "?"))] = one
        elif one.refused:
            refusals[one.host] = Conflict(one.refused, reason="refused_by_host")
    if taken:
        left_out = {host: error.message for host, error in sorted(refusals.items())}
        return ModelPutOutcome(taken[0].model, tuple(sorted(one.host for one in taken)), left_out)
    conflicts = (one for one in refusals.values() if isinstance(one, Conflict))
    first: RyzError = next(conflicts, next(iter(refusals.values())))
    if not several:
        raise first
    hosts_of: dict[str, list[str]] = {}
    for host, error in sorted(refusals.items()):
        hosts_of.setdefault(error.message, []).append(host)
    texts = [
        f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts)}: {text}" for text, hosts in hosts_of.items()
    ]
    raise type(first)("; ".join(texts), **first.data)


def _sorted(known: ModelList) -> list[ModelState]:
    return sorted(known.offered, key=lambda state: state.card.name)


def _named(known: ModelList, name: str) -> ModelState | None:
    """The model of that name; else the first that has it as another name."""
    states = _sorted(known)
    exact = next((state for state in states if name == state.card.name), None)
    return exact or next((state for state in states if name in state.aliases), None)


def no_host() -> Unavailable:
    """The error where no host offers models."""
    return Unavailable(
        "no host loads or ends models here: all groups run as long as the stack, also in Compose; `ryz up "
        '--models` does it where a model of the file has `load = "demand"`, `sleep_after_s` or `min_groups`',
        reason="no_host",
    )
