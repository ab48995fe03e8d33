"""Which models of the catalogue fit this machine, and which one is worth to be tried there."""

from collections.abc import Iterable

from cli.models.catalogue import CatalogueModel, catalogue
from cli.models.store import in_bytes

# Each token reads all weights once. This is four tokens a second where a core reads 2 GB of them a second,
# which is assumed and not measured, up to as many cores as share the bandwidth of usual memory.
_BYTES_OF_A_CORE, _MOST_CORES = 500_000_000, 16


def room_here() -> int:
    """Return the memory that worker groups could take on this machine now."""
    from cli.stack.machine_facts import machine_facts  # noqa: PLC0415 (quick `--help`)
    from cli.stack.options import UpOptions  # noqa: PLC0415

    machine = machine_facts(UpOptions(), will_compile=True)
    return max(0, machine.room_bytes - machine.least_store_bytes)


def better_model(models: Iterable[CatalogueModel], room: int, cores: int) -> CatalogueModel | None:
    """Return the largest model for chats without terms that fits and answers fluently; None if none does.

    Args:
        room: Memory for worker groups. Two groups are started, which hold the weights once.
    """
    most = _BYTES_OF_A_CORE * min(cores, _MOST_CORES)
    fitting = [
        model
        for model in models
        if model.hub and not model.terms and model.size <= most and 2 * model.memory - model.size <= room
    ]
    return max(fitting, key=lambda model: model.size, default=None)


def better_words() -> str:
    """Return a sentence on a better model for this machine; empty if there is none."""
    from shared.host.cores_and_memory import usable_cores  # noqa: PLC0415 (quick `--help`)

    better = better_model(catalogue().values(), room_here(), usable_cores())
    if better is None:
        return ""
    return (
        f"A better one fits this machine: `ryz up --model {better.name}` ({in_bytes(better.size)} to fetch)."
    )
