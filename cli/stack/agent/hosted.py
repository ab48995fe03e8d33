"""The groups of a host by command: which may start, what they count for, and what is reported. Pure."""

from collections.abc import Callable, Mapping, Sequence

from cli.stack.agent.group_kv import GroupKVSize
from cli.stack.agent.offers import Offer, RunningGroup, make_offer, make_pending
from cli.stack.fleet.entry import ModelEntry
from cli.stack.fleet.one_more import AddedModel
from cli.stack.sizing_text import count_words, size_words
from cli.stack.supervision.process import ServiceSpec
from shared.messages import HostedGroup, HostReport
from shared.messages.models import KVLimited, LimitKV, ManageModel, ModelManaged, StartGroup, StopGroup

MAX_MODELS = 64


class CommandRefused(Exception):
    """A command is not carried out; the text says why."""


class HostedModels:
    """The offers and the groups of one host. `now` is monotonic seconds.

    Args:
        budget_bytes: Memory that all groups may take together.

    Attributes:
        groups: The groups whose processes run, by their names.
        free_bytes: Memory that the system has for groups beside those that run; None before the first
            measurement.
    """

    def __init__(self, host: str, instance_id: str, offers: Mapping[str, Offer], budget_bytes: int) -> None:
        self.offers = dict(offers)
        self.groups: dict[str, RunningGroup] = {}
        self.free_bytes: int | None = None
        self._host = host
        self._instance_id = instance_id
        self._planned_bytes = budget_bytes
        self._seq = 0
        self._epoch = 0

    @property
    def budget_bytes(self) -> int:
        """Memory that all groups may take: as planned, less what other programs have taken since."""
        if self.free_bytes is None:
            return self._planned_bytes
        measured = sum(group.measured_bytes for group in self.groups.values())
        return max(0, min(self._planned_bytes, measured + self.free_bytes))

    def note_started(self, leader: ServiceSpec, now: float) -> RunningGroup:
        """A leader's process is started."""
        group = RunningGroup(leader.env["RYZ_GROUP"], leader.model, now)
        self.groups[group.name] = group
        return group

    def charges(self) -> dict[str, int]:
        """Return what each group counts for: its plan, or its measured memory if that is more.

        The plan has the KV cache as large as it may get; a limit that is lower counts in its place.
        Weights that groups of a model share count with one of them, as long as any is there.
        """
        return {
            name: max(planned, self.groups[name].measured_bytes)
            for name, planned in self._planned(lambda kv: kv.charged_bytes).items()
        }

    def is_as_planned(self, name: str) -> bool:
        """Whether a group takes no more memory than planned with the limit that was asked for; or is gone."""
        planned = self._planned(lambda kv: kv.asked_bytes).get(name)
        return planned is None or self.groups[name].measured_bytes <= planned

    def _planned(self, kv_bytes: Callable[[GroupKVSize], int]) -> dict[str, int]:
        """Return what each group takes by its plan, if its KV cache takes so much."""
        found, seen = dict[str, int](), set[str]()
        for group in self.groups.values():
            needs = self.offers[group.model].needs
            planned = needs.further if group.model in seen else needs.first
            seen.add(group.model)
            found[group.name] = max(0, planned - group.kv.most_bytes + kv_bytes(group.kv))
        return found

    def start(self, command: StartGroup, now: float) -> ServiceSpec:
        """Return the leader to start.

        Raises:
            CommandRefused: No leader may be started.
        """
        self._check_epoch(command.epoch)
        offer = self.offers.get(command.model)
        if offer is None:
            raise CommandRefused(f"this host does not offer model {command.model!r}")
        running = [one for one in self.groups.values() if one.model == command.model]
        working = [one for one in running if not one.stopping]
        if command.running != len(running):
            raise CommandRefused(f"{len(running)} groups of it run here, not {command.running}")
        if len(working) >= offer.most_groups or offer.wish == "unload":
            raise CommandRefused("no more groups of it may run")
        if now < offer.retry_at:
            raise CommandRefused(f"its last load failed: {offer.failure}")
        free_names = [name for name in offer.leaders if name not in self.groups]
        if not free_names:
            raise CommandRefused("its groups are still ending")
        need = offer.needs.further if running else offer.needs.first
        left = self.budget_bytes - sum(self.charges().values())
        if need > left:
            raise CommandRefused(f"a group needs {size_words(need)}, and {size_words(max(0, left))} are left")
        return offer.leaders[free_names[0]]

    def stop(self, command: StopGroup) -> RunningGroup:
        """Return the group to end, which counts as stopping from here on.

        Raises:
            CommandRefused: It does not run, or is ending already.
        """
        self._check_epoch(command.epoch)
        group = self.groups.get(command.group)
        if group is None or group.stopping:
            ended = "is ending already" if group else "does not run here"
            raise CommandRefused(f"group {command.group!r} {ended}")
        group.stopping = True
        return group

    def resize(self, command: LimitKV) -> RunningGroup:
        """Return the group whose KV cache is to be limited; more of it counts from here on.

        Raises:
            CommandRefused: It cannot be, or there is no memory for more.
        """
        self._check_epoch(command.epoch)
        group = self.groups.get(command.group)
        if group is None or group.stopping:
            raise CommandRefused(f"group {command.group!r} does not run here")
        if not group.kv.most_bytes or not group.kv.is_settled:
            raise CommandRefused("its KV cache keeps its size, or is being resized")
        limit = command.limit_bytes or group.kv.most_bytes
        more = limit - group.kv.limit_bytes
        left = self.budget_bytes - sum(self.charges().values())
        if more > max(0, left):
            raise CommandRefused(f"it wants {size_words(more)} more, and {size_words(max(0, left))} are left")
        if not group.kv.least_bytes <= limit <= group.kv.most_bytes:
            least, most = size_words(group.kv.least_bytes), size_words(group.kv.most_bytes)
            raise CommandRefused(f"it may have {least} to {most}")
        group.kv.ask(limit)
        return group

    def note_kv(self, name: str, said: KVLimited) -> None:
        """A leader has said what the KV cache of its group takes."""
        if (group := self.groups.get(name)) is not None:
            group.kv.note_said(said, self.offers[group.model].model.entry.kv_cache_min_tokens)

    def add(self, entry: ModelEntry, learned_s: int) -> str:
        """Note a model that is to be found; returns why it is not, empty if it is.

        Args:
            learned_s: Now, in seconds since 1970.
        """
        known = self.offers.get(entry.name)
        if known is not None and (known.leaders or not known.failure):
            return f"there is a model {entry.name!r} already: remove it first, or give this one another name"
        if any(entry.name in offer.model.entry.aliases for offer in self.offers.values()):
            return f"{entry.name!r} is an alias of another model: give this one another name"
        if len(self.offers) >= MAX_MODELS:
            return f"there are {MAX_MODELS} models already: remove one first"
        self.offers[entry.name] = make_pending(entry, learned_s)
        return ""

    def sought(self, entry: ModelEntry) -> Offer | None:
        """The offer for which that entry is being looked for; None: it was found, or removed, meanwhile."""
        offer = self.offers.get(entry.name)
        return offer if offer is not None and offer.is_sought and offer.model.entry is entry else None

    def note_found(self, entry: ModelEntry, found: AddedModel, leaders: Sequence[ServiceSpec]) -> None:
        """A model that was added is here, and fits if it is alone."""
        if (sought := self.sought(entry)) is None:
            return
        offer = make_offer(found, leaders, sought.card.created_s)
        others = sum(one.least_bytes for one in self.offers.values())
        if offer.least_bytes and others + offer.least_bytes > self._planned_bytes:
            least, most = size_words(offer.least_bytes), size_words(self._planned_bytes)
            why = f"its `min_groups` need {least} at any time, and those of other models {size_words(others)}"
            remedy = "leave out `min_groups`, or make it smaller"
            self.note_not_found(entry, f"{why}; all may take {most}: {remedy}")
            return
        offer.wish = sought.wish
        self.offers[entry.name] = offer

    def note_not_found(self, entry: ModelEntry, why: str) -> None:
        """A model that was added cannot be had; it is shown with the reason until it is removed."""
        if (sought := self.sought(entry)) is not None:
            sought.failure, sought.wish, sought.is_sought = why, "", False

    def note_ready(self, name: str, now: float) -> None:
        """A group is ready, for the first time or again."""
        group = self.groups[name]
        if not group.load_s:
            group.load_s = max(0.001, now - group.began_at)
        self.offers[group.model].note_ready(group.load_s)

    def note_gone(self, name: str, why: str, now: float, *, final: bool = False) -> None:
        """A group's processes have ended.

        Args:
            why: Why they ended; empty if a command ended them.
            final: True if the next start would end in the same way.
        """
        offer = self.offers[self.groups.pop(name).model]
        if why:
            offer.note_failure(why, now, final=final)
        if offer.wish == "sleep" and not any(one.model == offer.model.name for one in self.groups.values()):
            offer.wish = ""
        self._forget(offer)

    def _forget(self, offer: Offer) -> None:
        name = offer.model.name
        if offer.leaves and not any(one.model == name for one in self.groups.values()):
            del self.offers[name]

    def manage(self, command: ManageModel) -> ModelManaged | None:
        """Note an operator's wish; None: the model is not offered here."""
        offer = self.offers.get(command.model)
        if offer is None:
            return None
        refused = self._refuse_wish(offer, command)
        if not refused:
            self._note_wish(offer, command)
        return ModelManaged(model=command.model, host=self._host, refused=refused)

    def _note_wish(self, offer: Offer, command: ManageModel) -> None:
        runs = any(one.model == command.model and not one.stopping for one in self.groups.values())
        if command.action == "scale":
            offer.most_groups = offer.least_groups = command.groups
            offer.wish = ""
            return
        offer.unscale()
        if command.action in {"unload", "remove"}:
            offer.wish, offer.leaves = "unload", command.action == "remove"
            self._forget(offer)
        elif command.action == "sleep":
            offer.wish = "sleep" if runs else ""
        else:
            offer.forgive()
            offer.wish, offer.is_sought = "" if runs else "load", not offer.leaders

    def _refuse_wish(self, offer: Offer, command: ManageModel) -> str:
        """Say why a wish is not noted; empty: it is."""
        if command.action == "scale" and command.groups > len(offer.leaders):
            room = count_words(len(offer.leaders), "group")
            return (
                f"model {command.model!r} has room for {room} here: give it more "
                "`groups` in the models file, and start the stack again"
            )
        needs = offer.needs.first + max(0, command.groups - 1) * offer.needs.further
        if command.action == "scale" and needs > self.budget_bytes:
            most = size_words(self.budget_bytes)
            return (
                f"{command.groups} groups of it need {size_words(needs)} of memory, and all may take {most}"
            )
        entry = offer.model.entry
        if command.action == "sleep" and (entry.pinned or entry.min_groups):
            return f"model {command.model!r} is to run at any time; `unload` ends it all the same"
        return ""

    def report(self, now: float) -> HostReport:
        """Return the next report."""
        self._seq += 1
        charges = self.charges()
        return HostReport(
            host=self._host,
            instance_id=self._instance_id,
            seq=self._seq,
            budget_bytes=self.budget_bytes,
            models=[offer.report(now) for offer in self.offers.values()],
            groups=[self._reported(group, charges[group.name], now) for group in self.groups.values()],
            epoch=self._epoch,
        )

    def _reported(self, group: RunningGroup, charged_bytes: int, now: float) -> HostedGroup:
        return HostedGroup(
            group=group.name,
            model=group.model,
            phase="stopping" if group.stopping else "running" if group.load_s else "starting",
            charged_bytes=charged_bytes,
            age_ms=round((now - group.began_at) * 1000),
            load_ms=round(group.load_s * 1000),
            kv_bytes=group.kv.limit_bytes,
            kv_most_bytes=group.kv.most_bytes if group.kv.answers else 0,
            kv_least_bytes=group.kv.least_bytes,
            kv_needed_bytes=group.kv.needed_bytes,
            kv_age_ms=round((now - (group.kv.changed_at or group.began_at)) * 1000),
        )

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise CommandRefused(
                f"another router has commanded this host since: epoch {epoch} is behind {self._epoch}"
            )
        self._epoch = epoch
