"""What hosts offer and run, as their agents reported last. Pure; `now` is monotonic seconds everywhere."""

from dataclasses import dataclass

from shared.messages import HostReport, ModelCard, OfferedModel

SILENT_S = 4.0  # a host that has reported nothing for so long is gone: reports come once a second
AWAY_S = 60.0  # its models are known for so long: it may be frozen, or its machine too busy to report
_MAX_HOSTS = 256


@dataclass(frozen=True, slots=True)
class HostView:
    """A host's last report.

    Attributes:
        heard_at: When the report came, in monotonic seconds.
        former: The instance of the agent before this one; its late reports are ignored.
    """

    report: HostReport
    heard_at: float
    former: str = ""


class OfferedModels:
    """The hosts that were heard lately, by name, and the models that they offer."""

    def __init__(self) -> None:
        self._hosts: dict[str, HostView] = {}
        self._offers: dict[str, list[tuple[HostView, OfferedModel]]] = {}
        self._away: dict[str, tuple[ModelCard, float]] = {}  # of silent hosts, with the time of their end

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def observe(self, report: HostReport, now: float) -> bool:
        """Takes in a report; returns False for one that is older than what is known."""
        last, former = self._hosts.get(report.host), ""
        if last is None:
            if len(self._hosts) >= _MAX_HOSTS:
                return False
        elif report.instance_id == last.report.instance_id:
            if report.seq <= last.report.seq:
                return False
            former = last.former
        elif report.instance_id == last.former:
            return False
        else:
            former = last.report.instance_id
        self._hosts[report.host] = HostView(report, now, former)
        self._index()
        return True

    def expire(self, now: float, patience_s: float = 0.0) -> list[str]:
        """Drops the hosts that have been silent for too long; returns their names.

        Args:
            patience_s: Seconds of silence that are allowed besides, because reports may be late.
        """
        silent_s = SILENT_S + patience_s
        gone = [name for name, host in self._hosts.items() if now - host.heard_at > silent_s]
        for name in gone:
            for offer in self._hosts.pop(name).report.models:
                self._away[offer.card.name] = offer.card, now + AWAY_S
        if gone:
            self._index()
        for model in [model for model, (_, until) in self._away.items() if until <= now]:
            del self._away[model]
        return gone

    def away(self) -> list[str]:
        """Models that only hosts offer that are silent now, sorted."""
        return sorted(self._away.keys() - self._offers.keys())

    def admits(self, model: str, tenant: str) -> bool:
        """Whether all hosts that offer a model, or did until they fell silent, let a tenant use it."""
        if model in self._away:
            return self._away[model][0].admits(tenant)
        return all(offer.card.admits(tenant) for _, offer in self.offers(model))

    def hosts(self) -> list[HostView]:
        """All hosts, in the order of their names."""
        return [self._hosts[name] for name in sorted(self._hosts)]

    def host(self, name: str) -> HostView | None:
        """The host of that name."""
        return self._hosts.get(name)

    def names(self) -> list[str]:
        """The models that any host offers, sorted."""
        return sorted(self._offers)

    def offers(self, model: str) -> list[tuple[HostView, OfferedModel]]:
        """The hosts that offer a model, with what they say of it, in the order of their names."""
        return self._offers.get(model, [])

    def _index(self) -> None:
        offers: dict[str, list[tuple[HostView, OfferedModel]]] = {}
        for host in self.hosts():
            for offer in host.report.models:
                offers.setdefault(offer.card.name, []).append((host, offer))
        self._offers = offers
        for model in offers.keys() & self._away.keys():
            del self._away[model]
