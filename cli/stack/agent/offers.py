"""What a host offers: each model with the leaders that may be started for it, and what is known of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cli.stack.agent.group_kv import GroupKVSize
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.fleet.on_demand import GroupBytes, OnDemandPlan
from cli.stack.fleet.one_more import AddedModel
from cli.stack.memory_needs import ModelNeeds
from cli.stack.supervision.process import ServiceSpec
from shared.flow.backoff import backoff_s
from shared.messages import ModelCard, OfferedModel
from shared.messages.models import Wish

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0  # after a failed load
# Requests wait for the next try after one failure, as by a kill from outside; after two they are refused.
FAILURES_SHOWN = 2
NULL_CONTEXT = 4096  # of the null engine, until its leader says what it has


@dataclass(slots=True)
class Offer:
    """One model on this host.

    Attributes:
        leaders: The leaders that may run, by the names of their groups.
        most_groups: Number of groups that may run at once; an operator may change it.
        least_groups: Number of groups that run at any time.
        wish: The wish of an operator, as in `OfferedModel`.
        load_s: Seconds that the last load took; 0 before the first.
        failures: Number of loads that failed one after another.
        failure: Why the last load failed; empty if it did not.
        retry_at: Time from which it may be tried again after a failure.
        leaves: True if it is offered no more when its last group has ended.
        is_sought: True until the model is found.
    """

    model: FoundModel
    card: ModelCard
    needs: GroupBytes
    leaders: Mapping[str, ServiceSpec]
    most_groups: int
    least_groups: int
    wish: Wish = ""
    load_s: float = 0.0
    failures: int = 0
    failure: str = ""
    retry_at: float = 0.0
    leaves: bool = False
    is_sought: bool = False

    def unscale(self) -> None:
        """Let as many groups run as was declared."""
        entry = self.model.entry
        self.most_groups = len(self.leaders)
        kept = self.most_groups if entry.pinned and entry.load == "start" else 0
        self.least_groups = min(entry.min_groups or kept, self.most_groups)

    @property
    def least_bytes(self) -> int:
        """Memory of the groups that run at any time."""
        return self.needs.first + (self.least_groups - 1) * self.needs.further if self.least_groups else 0

    def note_failure(self, why: str, now: float, *, final: bool) -> None:
        """A group of it could not be started, or could not be kept; `final` as for `note_gone`."""
        self.failure = why
        self.retry_at = now + backoff_s(self.failures, FIRST_RETRY_S, LAST_RETRY_S)
        self.failures += FAILURES_SHOWN if final else 1

    def forgive(self) -> None:
        """It may be tried again at once."""
        self.failure, self.failures, self.retry_at = "", 0, 0.0

    def note_ready(self, load_s: float) -> None:
        """A group of it is ready."""
        self.load_s = load_s
        self.forgive()
        if self.wish == "load":
            self.wish = ""

    def report(self, now: float) -> OfferedModel:
        """Return what routers hear of it."""
        entry = self.model.entry
        retry_s = max(0.0, self.retry_at - now) if self.leaders or not self.failure else LAST_RETRY_S
        is_shown = self.failures >= FAILURES_SHOWN or not self.leaders
        return OfferedModel(
            card=self.card,
            aliases=list(entry.aliases),
            first_bytes=self.needs.first,
            next_bytes=self.needs.further,
            load_ms=round(self.load_s * 1000),
            least_groups=self.least_groups,
            most_groups=self.most_groups,
            priority=entry.priority,
            pinned=entry.pinned,
            sleep_ms=round(entry.sleep_after_s * 1000),
            local=bool(self.leaders),
            wish=self.wish,
            failure=self.failure[:512] if is_shown else "",
            retry_ms=round(retry_s * 1000),
        )


@dataclass(slots=True)
class RunningGroup:
    """A group whose processes run.

    Attributes:
        began_at: When it was started, in monotonic seconds.
        load_s: Seconds until it was ready; 0 before that.
        stopping: True once a command to end it was accepted.
        measured_bytes: Its memory at the last measurement; 0 before the first.
        kv: What its KV cache takes.
    """

    name: str
    model: str
    began_at: float
    load_s: float = 0.0
    stopping: bool = False
    measured_bytes: int = 0
    kv: GroupKVSize = field(default_factory=GroupKVSize)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What the agent of a host starts with.

    Attributes:
        host: The name of the stack, unique on the broker.
        leaders: Leaders of all groups; those of `running` are started with the stack.
        models: Models in the order of `plan.groups`.
        find_more: Finds and sizes a model that is added; blocks until that is done.
        more_leaders: Plans the leaders of such a model.
    """

    host: str
    plan: OnDemandPlan
    models: Sequence[FoundModel]
    needs: Mapping[str, ModelNeeds]
    leaders: Sequence[ServiceSpec]
    running: Sequence[ServiceSpec] = field(default_factory=list)
    find_more: Callable[[ModelEntry, int], AddedModel] | None = None
    more_leaders: Callable[[FoundModel], list[ServiceSpec]] = lambda _: []


def make_offers(plan: AgentPlan, learned_s: int) -> dict[str, Offer]:
    """Return the offers by the model's name; `learned_s` as for `make_offer`."""
    offers = dict[str, Offer]()
    for model, groups in zip(plan.models, plan.plan.groups, strict=True):
        leaders = [spec for spec in plan.leaders if spec.model == model.name]
        found = AddedModel(model, groups, plan.needs.get(model.name))
        offers[model.name] = make_offer(found, leaders, learned_s)
    return offers


def make_offer(found: AddedModel, leaders: Sequence[ServiceSpec], learned_s: int) -> Offer:
    """Return the offer of a model.

    Args:
        learned_s: When the host learned of it, in seconds since 1970.
    """
    entry, context = found.model.entry, found.needs.context if found.needs is not None else NULL_CONTEXT
    by_group = {spec.env["RYZ_GROUP"]: spec for spec in leaders}
    card = _card(entry, context, learned_s)
    offer = Offer(found.model, card, found.groups, by_group, 0, 0)
    offer.unscale()
    return offer


def make_pending(entry: ModelEntry, learned_s: int) -> Offer:
    """Return the offer of a model that is still to be found: no group of it may run."""
    card = _card(entry, 0, learned_s)
    return Offer(FoundModel(entry, None), card, GroupBytes(0, 0), {}, 0, 0, is_sought=True)


def _card(entry: ModelEntry, context: int, learned_s: int) -> ModelCard:
    return ModelCard(
        name=entry.name, context_length=context, created_s=learned_s, tenants=list(entry.tenants)
    )
