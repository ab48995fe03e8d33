"""Puts the quality of ours and the peers' weights beside their speed: against fp32 on a text."""

from typing import Any

from benchmarks.engine_plans import EnginePlan, QualityPlan
from benchmarks.lib.measuring import Progress
from benchmarks.peers.known import PEERS
from benchmarks.quality import quality

_WINDOW = 256
_FIGURES = ("perplexity_change", "kl", "top1", "places")


def add_quality(plan: EnginePlan, rows: list[dict[str, Any]], progress: Progress) -> None:
    """Give each row, and each type of a peer in it, its `quality`, as `ryz bench quality` has it of a text.

    A peer that gives no logits has none.

    Raises:
        ModelError: The model cannot be computed in one of the precisions.
        BenchError: A peer broke, or the text is too short.
    """
    kinds: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, peer in row["peers"].items():
            if PEERS[name].logits and peer["types"]:
                kinds.setdefault(name, {}).update(dict.fromkeys(peer["types"]))
    peers = [f"{name}:{','.join(types)}" for name, types in kinds.items()]
    measured = quality.measure(_quality_plan(plan, peers), progress)["rows"]
    own = {one["precision"]: one for one in measured}
    theirs = measured[0]["peers"]
    for row in rows:
        row["quality"] = _short(own[row["precision"]])
        for name, peer in row["peers"].items():
            for kind, figures in peer["types"].items():
                if name in theirs:
                    figures["quality"] = _short(theirs[name][kind])


def quality_steps(plan: EnginePlan, types: int) -> int:
    """Return how often `add_quality` reports progress, at most, with so many types of peers."""
    return quality.num_steps(_quality_plan(plan, [])) + types


def _quality_plan(plan: EnginePlan, peers: list[str]) -> QualityPlan:
    return QualityPlan(
        model=plan.model,
        precision=plan.precision,
        tokens=plan.quality,
        window=_WINDOW,
        chats=0,
        threads=plan.threads,
        peers=peers,
        peer_envs=plan.peer_envs,
    )


def _short(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in _FIGURES}
