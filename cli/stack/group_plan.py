"""Plans one worker group of one model: the settings and the process of its leader. Pure."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from cli.models.catalogue import known_file
from cli.models.store import packed_dir
from cli.stack.fleet.entry import FoundModel
from cli.stack.fleet.remote_models import remote_settings
from cli.stack.host.naming import group_name
from cli.stack.options import UpOptions
from cli.stack.service_plan import admin_address, plan_service
from cli.stack.supervision.process import ServiceSpec
from services.worker.orchestrator.options import RankProcessOptions

_LEADER = "worker-g"
RANK_NICE, LEAST_NICE = "RYZ_RANK_NICE", 19  # the system lets no process give way more


@dataclass(frozen=True, slots=True)
class GroupPlanner:
    """Makes the plans of a stack's groups, whichever model they serve.

    Attributes:
        common: Settings that all leaders of the stack have.
        environ: The supervisor's variables; what they say is left alone.
        num_groups: Of all models, which share the memory that is free.
        top_priority: Of all models.
    """

    options: UpOptions
    common: Mapping[str, str]
    environ: Mapping[str, str]
    num_groups: int
    top_priority: int = 0

    def plan(
        self, model: FoundModel, number: int, port: int, probe: Callable[[], Awaitable[bool]]
    ) -> ServiceSpec:
        """Return the process of a group's leader.

        Args:
            number: The group's number in the stack.
            port: Its admin endpoint listens there.
            probe: Returns whether it is ready.
        """
        own = admin_address(port) | {
            "RYZ_GROUP": group_name(self.options.stack, number),
            "RYZ_ENGINE": self.options.engine,
            "RYZ_KERNELS": self.options.kernels,
        }
        own |= model_settings(model, self.environ, self.top_priority)
        if "RYZ_PACKED_DIR" not in self.environ and self.options.engine == "torch":
            own["RYZ_PACKED_DIR"] = str(packed_dir())
        own |= memory_share(self.num_groups, self.environ)
        drain = self.environ.get("RYZ_DRAIN_TIMEOUT_S", "")
        return plan_service(service_name(number), {**self.common, **own}, probe, drain, model=model.name)


def model_settings(model: FoundModel, environ: Mapping[str, str], top_priority: int = 0) -> dict[str, str]:
    """Return what a settled entry says, as settings of the leaders of its groups.

    Args:
        environ: Variables that leaders have as well; what they say of sampling and speculation is left alone.
        top_priority: Of all models. Where cores are short, the ranks of one with less get a fifth less of
            them for each step.
    """
    entry = model.entry
    own = {
        "RYZ_MODEL_NAME": entry.name,
        "RYZ_MODEL_TENANTS": ",".join(entry.tenants),
        "RYZ_TOOL_FORMAT": entry.tool_format,
        "RYZ_TENSOR_PARALLEL": str(entry.tensor_parallel),
        "RYZ_PRECISION": entry.precision,
        "RYZ_THREADS": str(entry.threads),
    }
    if not environ.get(RANK_NICE) and entry.priority < top_priority:
        steps = top_priority - entry.priority
        own[RANK_NICE] = str(min(LEAST_NICE, RankProcessOptions.rank_nice + steps))
    if entry.sampling:
        own["RYZ_SAMPLING_DEFAULTS"] = entry.sampling
    if not environ.get("RYZ_SAMPLING_FALLBACK") and model.path is not None:
        known = known_file(model.path)
        own["RYZ_SAMPLING_FALLBACK"] = known.sampling if known else ""
    if entry.kv_cache_tokens is not None:
        own["RYZ_KV_CACHE_TOKENS"] = str(entry.kv_cache_tokens)
    if model.draft is not None:
        own["RYZ_DRAFT_MODEL"] = str(model.draft)
        own["RYZ_SPECULATION"] = environ.get("RYZ_SPECULATION") or "draft"
    if entry.remote:
        own |= remote_settings(model)
    return own if model.path is None else own | {"RYZ_MODEL": str(model.path)}


def service_name(number: int) -> str:
    """Return the name of a group's leader among the services of the stack."""
    return f"{_LEADER}{number}"


def group_number(service: str) -> int | None:
    """Return the number of the group whose leader has that name; None if it is another service."""
    return int(service.removeprefix(_LEADER)) if service.startswith(_LEADER) else None


def memory_share(groups: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Divide the share of free memory by the groups, which all read the free memory at the same time."""
    try:
        share = float(environ.get("RYZ_KV_MEMORY_SHARE", "0.5"))
    except ValueError:
        return {}  # the workers refuse it and name the variable
    return {"RYZ_KV_MEMORY_SHARE": repr(share / groups)}
