"""Builds the metrics of every service with stand-ins for what they measure, so that they can be listed."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from services.gateway.admission.quota import Quota
from services.gateway.metrics import GatewayMetrics
from services.gateway.resources.batches.assembly import BatchMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.transports.grpc.serving.metrics import GrpcMetrics
from services.gateway.transports.http.gateway_gate import GateCollector, QuotaCollector
from services.kvstate.accounts.metrics import AccountCollector
from services.kvstate.blocks.metrics import BlockMetrics, TierCollector
from services.kvstate.blocks.tier import BlockTier, TierLimits
from services.kvstate.metrics import KVStateMetrics
from services.kvstate.redis.metrics import RedisCollector
from services.kvstate.sessions.store import SessionFate
from services.kvstate.settings import KVStateSettings
from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.wiring import make_block_store, make_circuit
from services.router.domain.groups.fleet import Fleet
from services.router.metrics import FleetCollector, RouterMetrics
from services.router.models.collector import ModelCollector
from services.router.settings import RouterSettings
from services.router.state import RouterState
from services.worker.leader.step_log import StepLog
from services.worker.metrics import PREFIX, LoadCollector, RatesCollector, WorkerMetrics
from services.worker.telemetry.adapter_metrics import AdapterCollector
from services.worker.telemetry.rank_metrics import RankCollector
from services.worker.telemetry.vllm_metrics import VllmCollector, vllm_histograms
from shared.accounts.register import AccountRegister
from shared.bus.delivery import BusStats
from shared.kv_hash import BLOCK_TOKENS
from shared.messages import KVRates, Load
from shared.telemetry.logs.limits import LogLimiter
from shared.telemetry.logs.metrics import LogCollector
from shared.telemetry.loop_lag import lag_histogram
from shared.telemetry.metrics import BusCollector, ClientCollector
from shared.usage.ledger import LedgerCounts
from shared.usage.metrics import LedgerCollector
from shared.web.gate import Gate


class NotingRegistry(CollectorRegistry):
    """A registry that can be asked for its collectors.

    Attributes:
        collectors: In the order of their registration.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Note the collector, and register it."""
        self.collectors.append(collector)
        super().register(collector)


class IdleGroup:
    """A group without work."""

    def load(self) -> Load:
        """Return no load."""
        return Load()

    def rates(self) -> KVRates:
        """Return that nothing was measured."""
        return KVRates()


class IdleLedger:
    """A ledger without records."""

    counts = LedgerCounts()
    num_waiting = 0


def every_service(registry: CollectorRegistry) -> None:
    """Register what all services show."""
    ProcessCollector(registry=registry)
    lag_histogram(registry)
    registry.register(LogCollector(LogLimiter(0)))
    registry.register(BusCollector(BusStats(), "main", lambda: 0))


def gateway(registry: CollectorRegistry) -> None:
    """Register what gateways show."""
    settings = GatewaySettings()
    GatewayMetrics(registry)
    units = {
        "places": (Quota(1, share=1.0), "Requests under way"),
        "held_bytes": (Quota(1, share=1.0), "Bytes of bodies under way"),
    }
    registry.register(QuotaCollector(units))
    registry.register(GateCollector(Gate(settings, settings.constants.http)))
    GrpcMetrics(registry)
    BatchMetrics(registry)
    ClientCollector(registry)
    registry.register(LedgerCollector("ryz_gateway_", IdleLedger()))


def router(registry: CollectorRegistry) -> None:
    """Register what routers show."""
    settings = RouterSettings()
    RouterMetrics(registry, settings.router_policy)
    fleet, state = Fleet(settings.fleet_limits()), RouterState(settings)
    registry.register(FleetCollector(fleet, state))
    registry.register(ModelCollector(state.models, fleet, lambda _: False, lambda: 0.0))


def worker(registry: CollectorRegistry) -> None:
    """Register what leaders of worker groups show."""
    metrics, group = WorkerMetrics(registry), IdleGroup()
    registry.register(LoadCollector(group))
    registry.register(RatesCollector(group))
    registry.register(RankCollector(StepLog(), list))
    registry.register(AdapterCollector(lambda: None))
    registry.register(LedgerCollector(PREFIX, IdleLedger()))
    operations = metrics.requests_ended.operations
    for view in (*vllm_histograms(metrics, "demo"), *operations.views("demo")):
        registry.register(view)
    registry.register(VllmCollector(group, metrics, "demo", BLOCK_TOKENS))


def kvstate(registry: CollectorRegistry) -> None:
    """Register what KV state services show."""

    async def fates(sessions: object) -> list[SessionFate]:
        return []

    KVStateMetrics(registry)
    counted = BlockMetrics(registry)
    settings = KVStateSettings()
    store = make_block_store(settings, make_circuit(settings))
    tier = BlockTier(store, TierLimits(), counted.evicted, fates)
    registry.register(TierCollector(tier, lambda: False))
    registry.register(RedisCollector([]))
    register = AccountRegister()
    register.replace_all([], 0)
    registry.register(AccountCollector(register))
    UsageMetrics(registry)


SERVICES: list[tuple[str, Callable[[CollectorRegistry], None]]] = [
    ("Every service", every_service),
    ("Gateway", gateway),
    ("Router", router),
    ("Worker group", worker),
    ("KV state", kvstate),
]
