"""Finds the model that a benchmark was asked for; refuses what it cannot have before anything is started."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from cli.console import fail
from cli.models.resolve import resolve_model

if TYPE_CHECKING:
    from services.worker.engine.config.model import ModelConfig


class _PlanOfModel(Protocol):
    """The options of a bench that takes a model."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> Path | None:
        """Return its path or name; None if the bench has one of its own."""
        ...


_Plan = TypeVar("_Plan", bound=_PlanOfModel)


def with_model(plan: _Plan) -> _Plan:
    """Return the plan with the path of its model in the place of a name. See `resolve_model`."""
    return plan if plan.model is None else replace(plan, model=resolve_model(plan.model))


def require_model(model: Path, degrees: Sequence[int] = (1,)) -> "ModelConfig":
    """Return the shape of a model.

    Args:
        degrees: Numbers of ranks that are to share it.

    Raises:
        CommandError: It cannot be computed so.
    """
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415 (keeps `--help` quick)
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415

    try:
        config = read_config(model)
        for world in degrees:
            config.check_split(world)
    except ModelError as error:
        fail(f"{error}.", exit_code=2)
    return config


def require_context(config: "ModelConfig", asked: str, tokens: int) -> None:
    """Refuse sequences that are longer than the model's context; `asked` names the options."""
    if tokens > config.context_length:
        fail(
            f"{asked} are more than the model's context of {config.context_length} tokens: ask for less.",
            exit_code=2,
        )


def require_peers(
    peers: Iterable[str], environments: Path | None, *, logits: bool = False, device: str = "cpu"
) -> None:
    """Refuse peers that are not known or not installed, not measured there, and with `logits` give none."""
    from benchmarks.lib.measuring import BenchError  # noqa: PLC0415
    from benchmarks.peers.known import PEERS, read_peer, require_installed  # noqa: PLC0415

    for text in peers:
        try:
            peer, _ = read_peer(text)
            if logits and not peer.logits:
                able = ", ".join(one.name for one in PEERS.values() if one.logits)
                fail(f"--peer {peer.name} tells no logits of every place: choose of {able}.", exit_code=2)
            if device != "cpu" and not peer.on_gpus:
                able = ", ".join(one.name for one in PEERS.values() if one.on_gpus)
                fail(f"--peer {peer.name} is measured on CPUs only: choose of {able}.", exit_code=2)
            require_installed(peer, environments)
        except BenchError as error:
            fail(f"{error}.", exit_code=2)
