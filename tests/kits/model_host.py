"""A host's agent without processes: it offers models, and changes their states as it is told."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cli.stack.fleet.one_more import read_entry
from shared import subjects
from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import ManageModel, ModelCard, ModelList, ModelManaged, ModelState, PutModel
from shared.messages.models import Phase


def state_of(name: str, phase: Phase, *, ready: int | None = None, **values: object) -> ModelState:
    """The state of a model with one ready group in the phase `ready`, else without groups."""
    groups = ready if ready is not None else int(phase == "ready")
    made = ModelState(
        card=ModelCard(name=name, context_length=512, created_s=7),
        phase=phase,
        groups_ready=groups,
        groups=groups,
        most_groups=2,
        first_bytes=300 * 2**20,
    )
    return msgspec.structs.replace(made, **values)


@dataclass
class ModelHost:
    """The agent.

    Attributes:
        offered: What routers say of its models; tests may change it.
        load_s: How long a load takes.
        fails: Why loads fail; empty: they do not.
        wishes: What it was told.
        added: The entries of models that were added.
        name: Of the host.
        lacks: Why it cannot serve a model that is added, as its files are not there; empty: it can.
    """

    bus: Bus
    offered: list[ModelState]
    load_s: float = 0.05
    fails: str = ""
    wishes: list[ManageModel] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    name: str = "h1"
    lacks: str = ""

    async def start(self, *, as_router: bool = False) -> "ModelHost":
        """Listens for wishes; `as_router`: for questions about models as well."""
        await self.bus.subscribe(subjects.MANAGE_MODEL, self._managed)
        await self.bus.subscribe(subjects.PUT_MODEL, Endpoint(self.bus).handler(PutModel, self._added))
        if as_router:
            await self.bus.subscribe(subjects.MODELS, self._listed)
        return self

    def set_phase(self, name: str, phase: Phase, *, ready: int | None = None, why: str = "") -> None:
        """Changes the state of a model."""
        known = {state.card.name: state for state in self.offered}
        known[name] = state_of(name, phase, ready=ready, why=why, aliases=known[name].aliases)
        self.offered[:] = known.values()

    async def _listed(self, message: Message) -> None:
        ready = [state.card for state in self.offered if state.phase == "ready"]
        await self.bus.publish(message.reply, encode(ModelList(models=ready, offered=self.offered)))

    async def _added(self, command: PutModel, _: Message) -> ModelManaged:
        name = read_entry(command.entry).name
        if self.lacks:
            raise InvalidRequest(self.lacks, param="source", host=self.name)
        self.added.append(msgspec.json.decode(command.entry))
        taken = name in {state.card.name for state in self.offered}
        if not taken:
            self.offered.append(state_of(name, "asleep"))
        return ModelManaged(
            model=name, host=self.name, refused=f"there is a model {name!r} already" if taken else ""
        )

    async def _managed(self, message: Message) -> None:
        wish = decode(message.data, ManageModel)
        if wish.model not in {state.card.name for state in self.offered}:
            return  # a host answers for its own models only
        self.wishes.append(wish)
        refused = f"model {wish.model!r} has room for 2 groups here" if wish.groups > 2 else ""
        answer = ModelManaged(model=wish.model, host=self.name, refused=refused)
        await self.bus.publish(message.reply, encode(answer))
        if not refused:
            task = asyncio.create_task(self._change(wish))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _change(self, wish: ManageModel) -> None:
        if wish.action == "remove":
            self.offered[:] = [state for state in self.offered if state.card.name != wish.model]
            return
        if wish.action in {"sleep", "unload"} or (wish.action == "scale" and not wish.groups):
            self.set_phase(
                wish.model,
                "absent" if wish.action == "unload" else "asleep",
                why="unload" if wish.action == "unload" else "",
            )
            return
        self.set_phase(wish.model, "loading")
        await asyncio.sleep(self.load_s)
        if self.fails:
            self.set_phase(wish.model, "failed", why=self.fails)
        else:
            self.set_phase(wish.model, "ready", ready=wish.groups or 1)
