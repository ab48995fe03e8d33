"""Options of a supervisor for tests, and the models that they name; these need not exist."""

from collections.abc import Mapping
from pathlib import Path

from cli.stack.fleet.declare import declare
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.machine import Settled, settle_sizing
from cli.stack.options import UpOptions
from cli.stack.plan import StackPlan, plan_stack
from cli.stack.probes import Probes


def options(folder: Path, *, model: Path | None = None, **changes: object) -> UpOptions:
    given: dict[str, object] = {
        "state_dir": folder, "model": [] if model is None else [model], "model_name": "demo",
        "engine": "null", "groups": 2, "tensor_parallel": 2, "host": "127.0.0.1", "port": 0,
        "policy": "hybrid", "nats_url": "", "redis_url": "", "nats_port": 0, "redis_port": 0,
        "redis_dir": None, "log_level": "info", "start_timeout_s": 30.0,
        "precision": "int8", "kernels": "plain",
        "threads": 3, "kv_cache_tokens": 4096,
    }  # fmt: skip
    return UpOptions(**{**given, **changes})  # type: ignore[arg-type]


def served(given: UpOptions) -> tuple[FoundModel, ...]:
    """The models that options name, as if they had been found."""
    entries = declare(given, {}).entries.values()
    return tuple(
        FoundModel(entry, Path(entry.source) if entry.source else None, given.draft_model)
        for entry in entries
    )


def planned(given: UpOptions, probes: Probes, environ: Mapping[str, str]) -> StackPlan:
    return plan_stack(given, served(given), probes, environ)


def settled(given: UpOptions) -> tuple[ModelEntry, Settled]:
    """What the one model of options gets, and the rest of what was settled."""
    found = settle_sizing(given, served(given), declare(given, {}))
    (model,) = found.models
    return model.entry, found
