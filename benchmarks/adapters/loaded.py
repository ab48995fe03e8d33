"""Has a running stack serve adapters of random numbers."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.adapters.random_adapter import make_adapter
from shared.bus import Bus
from shared.client import AdaptersClient
from shared.messages import Adapter

RANKS = (8, 16, 32, 64)
_WAIT_S = 60.0


async def load_adapters(
    bus: Bus, base: str, model: Path, count: int, folder: Path, *, ranks: Sequence[int] = RANKS
) -> list[Adapter]:
    """Make adapters, and register them.

    Args:
        bus: Of a user that may manage models.
        base: Its name.
        model: Its files.
        folder: Gets the files, which hosts of the stack must see under the same path.
        ranks: The adapters take these ranks in turn.
    """
    client, adapters = AdaptersClient(bus), list[Adapter]()
    for number in range(count):
        source = make_adapter(folder / f"a{number}", model, rank=ranks[number % len(ranks)], seed=number)
        adapters.append(await client.load_adapter(base, f"a{number}", str(source), wait_s=_WAIT_S))
    return adapters
