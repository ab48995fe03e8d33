"""The parts that all calls of a gateway share."""

from dataclasses import dataclass, field

from services.gateway.admission.admission import Admission
from services.gateway.admission.bodies.reader import BodyReader
from services.gateway.answering.events.slow_readers import OpenAnswer
from services.gateway.answering.intake.model_names import ModelAliases, UsableModels, no_aliases
from services.gateway.answering.request_tracing import RequestTracing
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from shared.accounts.register import AccountRegister
from shared.client import InferenceClient
from shared.messages import ModelList
from shared.telemetry.service_levels import ServiceLevels
from shared.telemetry.timelines import Timelines


@dataclass(slots=True)
class GatewayContext:
    """The parts that all calls of a gateway share.

    Attributes:
        admission: Decides which calls are taken.
        bodies: Reads bodies that arrive in parts.
        running: Answers that may be ended early.
        timelines: Keeps when calls passed the parts of this gateway.
        tracing: Records calls in traces; None: none are recorded.
        levels: Count calls that are refused before the fleet is asked; None: they are not counted.
        aliases: Find the models that calls mean by other names.
        accounts: Tenants, keys and prices.
    """

    settings: GatewaySettings
    client: InferenceClient
    admission: Admission
    bodies: BodyReader
    metrics: GatewayMetrics
    running: set[OpenAnswer] = field(default_factory=set)
    timelines: Timelines = field(default_factory=lambda: Timelines(0))
    tracing: RequestTracing | None = None
    levels: ServiceLevels | None = None
    aliases: ModelAliases = field(default_factory=no_aliases)
    accounts: AccountRegister = field(default_factory=AccountRegister)

    @property
    def usable_models(self) -> UsableModels:
        """Finds which models callers may use."""
        return UsableModels(self.admission.identities.register, self.aliases, self.known_models)

    async def known_models(self, tenant: str) -> ModelList:
        """The models that a tenant may use, as routers know them; raises an error if none answers."""
        return await self.client.known_models(
            timeout_s=self.settings.constants.models_timeout_s, tenant=tenant
        )
