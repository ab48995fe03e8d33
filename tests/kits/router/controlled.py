"""A router's controller on a bus in memory, with a KV state service and a host that answer as tests say."""

from prometheus_client import CollectorRegistry

from services.router.context import RouterContext
from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.control_state import Action, ModelFleet
from services.router.domain.policies import make_policy
from services.router.domain.policies.costs import Costs
from services.router.metrics import RouterMetrics
from services.router.models.controller import ModelController
from services.router.models.lease import ControllerLease
from services.router.presence import RouterPresence
from services.router.settings import RouterSettings
from services.router.state import RouterState
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.errors import Unavailable
from shared.messages import (
    GroupCommanded,
    HostedGroup,
    KVLimited,
    LeaseClaim,
    LeaseHeld,
    LimitKV,
    OfferedModel,
    StartGroup,
    StopGroup,
)
from tests.kits.constants import settings_with_constants
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.hosts import report

ME = "router-1"
Command = StartGroup | StopGroup | LimitKV


class Controlled:
    """The test sets `now`, the answers of the lease and of the host, and what is decided."""

    def __init__(self, bus: MemoryBus, **constants: float) -> None:
        self.now = 100.0
        self.bus = bus
        self.registry = CollectorRegistry()
        settings = settings_with_constants(RouterSettings, {"instance_id": ME, **constants})
        self.context = RouterContext(
            bus,
            Fleet(settings.fleet_limits()),
            make_policy("least_loaded"),
            Costs(),
            RouterState(settings),
            RouterMetrics(self.registry, "least_loaded"),
            settings,
            lambda: self.now,
            lambda _: 0.0,
        )
        self.models = self.context.state.models
        self.lease = ControllerLease(self.context)
        self.decided: list[Action] = []
        self.seen: list[ModelFleet] = []
        self.controller = ModelController(
            self.context, self.lease, RouterPresence(self.context), self._decide
        )
        self.claims: list[LeaseClaim] = []
        self.held: LeaseHeld | None = LeaseHeld(holder=ME, epoch=7, ttl_ms=3000)
        self.claim_takes_s = 0.0
        self.commands: list[Command] = []
        self.answer = GroupCommanded(group="g0")
        self.limited = KVLimited(group="g0")
        self._seq = 0

    async def start(self) -> "Controlled":
        """Subscribes as the KV state service and as the host `h`."""
        endpoint = Endpoint(self.bus)
        await self.bus.subscribe(subjects.LEASE, endpoint.handler(LeaseClaim, self._claim))
        await self.bus.subscribe(subjects.start_group("h"), endpoint.handler(StartGroup, self._command))
        await self.bus.subscribe(subjects.stop_group("h"), endpoint.handler(StopGroup, self._command))
        await self.bus.subscribe(subjects.limit_hosted_kv("h"), endpoint.handler(LimitKV, self._limit))
        return self

    def report(self, *models: OfferedModel, groups: list[HostedGroup] | None = None) -> None:
        """The host reports."""
        self._seq += 1
        self.models.observe(report(self._seq, *models, groups=groups), self.now)

    def count(self, action: str, reason: str, outcome: str) -> float:
        """How many commands ended so."""
        labels = {"action": action, "reason": reason, "outcome": outcome}
        return self.registry.get_sample_value("ryz_router_model_actions_total", labels) or 0.0

    def event(self, name: str) -> float:
        """How often something else happened."""
        return self.registry.get_sample_value("ryz_router_events_total", {"event": name}) or 0.0

    def _decide(self, fleet: ModelFleet) -> list[Action]:
        self.seen.append(fleet)
        return self.decided

    async def _claim(self, claim: LeaseClaim, _: Message) -> LeaseHeld:
        self.claims.append(claim)
        self.now += self.claim_takes_s
        if self.held is None:
            raise Unavailable("the session store is away")
        return self.held

    async def _limit(self, command: LimitKV, _: Message) -> KVLimited:
        self.commands.append(command)
        return self.limited

    async def _command(self, command: Command, _: Message) -> GroupCommanded:
        self.commands.append(command)
        return self.answer
