"""Builds options of rank engines and configs of ranks from flat fields."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from services.worker.orchestrator.options import RankEngineOptions, RankProcessOptions
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.run_config import EngineRunConfig

Part = TypeVar("Part", EngineRunConfig, RankProcessOptions)


def rank_options(model: Path, **given: Any) -> RankEngineOptions:
    """Options of an engine for that model; `given` are fields of the options or of their parts."""
    given["model"] = str(model)
    run, processes = _taken(EngineRunConfig, given), _taken(RankProcessOptions, given)
    return RankEngineOptions(run=run, processes=processes, **given)


def rank_config(model: Path | str = "m", **given: Any) -> RankConfig:
    """A rank's config; `given` are its fields or those of `EngineRunConfig`."""
    given["model"] = str(model)
    return RankConfig(run=_taken(EngineRunConfig, given), **given)


def _taken(kind: type[Part], given: dict[str, Any]) -> Part:
    return kind(**{field.name: given.pop(field.name) for field in fields(kind) if field.name in given})
