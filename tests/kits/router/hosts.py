"""Builds reports of hosts from a test's description."""

from typing import Any

from shared.messages import HostedGroup, HostReport, ModelCard, OfferedModel

GIB = 2**30


def offer(name: str, **more: Any) -> OfferedModel:
    fields: dict[str, Any] = {"first_bytes": GIB, "next_bytes": GIB, "local": True}
    return OfferedModel(card=ModelCard(name=name, context_length=1024), **{**fields, **more})


def hosted(group: str, model: str, **more: Any) -> HostedGroup:
    fields: dict[str, Any] = {"phase": "running", "charged_bytes": GIB, "age_ms": 5000, "load_ms": 500}
    return HostedGroup(group=group, model=model, **{**fields, **more})


def report(
    seq: int,
    *models: OfferedModel,
    groups: list[HostedGroup] | None = None,
    host: str = "h",
    instance: str = "i1",
    budget_bytes: int = 4 * GIB,
    epoch: int = 0,
) -> HostReport:
    return HostReport(
        host=host,
        instance_id=instance,
        seq=seq,
        budget_bytes=budget_bytes,
        models=list(models),
        groups=groups or [],
        epoch=epoch,
    )
