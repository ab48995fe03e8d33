"""Refuses models and peers that a benchmark cannot have, before anything is started."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.console import fail

if TYPE_CHECKING:
    from services.worker.engine.checkpoint.model_config import ModelConfig


def require_model(model: Path, degrees: Sequence[int] = (1,)) -> "ModelConfig":
    """Return the shape of a model.

    Args:
        model: Its path.
        degrees: Numbers of ranks that are to share it.

    Raises:
        CommandError: It cannot be computed so.
    """
    from services.worker.engine.checkpoint.json_fields import ModelError  # noqa: PLC0415 (keeps `--help` quick)
    from services.worker.engine.checkpoint.model_families import read_config  # noqa: PLC0415

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


def require_peers(peers: Iterable[str], known: Sequence[str]) -> None:
    """Refuse peers that are not known or not installed."""
    from benchmarks.peers import missing_packages  # noqa: PLC0415

    for name in peers:
        if name not in known:
            fail(f"--peer is one of {', '.join(known)}, got {name!r}.", exit_code=2)
        if missing := missing_packages(name):
            fail(
                f"--peer {name} needs {' and '.join(missing)}, not installed here: "
                "`pip install 'ryzanstein[peers]'` brings them.",
                exit_code=2,
            )
