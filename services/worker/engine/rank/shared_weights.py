"""Finds the packed weights of a rank's model in the directory that the groups of its host share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.memory_check import all_weight_bytes
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.mapped.packed_dir import PackedDir
from services.worker.engine.native.weights import NativeWeights
from services.worker.rank_protocol.run_config import EngineRunConfig

# Of the time for loading, which ends for both at about the same moment: mapping takes little of what is left,
# and a copy of its own is one that `ryz up` has not counted.
_WAIT_SHARE = 3 / 4


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Where packed weights are, and by what their files are found.

    Attributes:
        num_bytes: About how many a rank has.
    """

    directory: PackedDir
    parts: tuple[str, ...]
    num_bytes: int

    def load(
        self, shape: ModelConfig, collectives: Collectives, pack: Callable[[], NativeWeights]
    ) -> NativeWeights:
        """Maps this rank's weights from the directory that the host's groups share, or packs them."""
        return self.directory.load(self.parts, shape, self.num_bytes, collectives, pack)

    def have_files(self, ranks: int) -> bool:
        """Whether the shares of the first ranks lie there."""
        return self.directory.has_files(self.parts, ranks)


def shared_weights(
    native: KernelLibrary, run: EngineRunConfig, shape: ModelConfig, checkpoint: Checkpoint, world: int
) -> SharedWeights:
    """Say where packed weights of the model are, or will be."""
    tensors = checkpoint.table.tensors
    wait_s = run.engine_start_timeout_s * _WAIT_SHARE
    directory = PackedDir(Path(run.packed_dir), int(run.packed_dir_gib * 2**30), wait_s, run.threads)
    files = {one.path: one.path.stat() for one in tensors.values()}
    parts = (
        fingerprint(Path(run.model), shape, run.precision),
        *(f"{path.name} {found.st_size} {found.st_mtime_ns}" for path, found in sorted(files.items())),
        native.path.name,
        f"{run.precision} {world}",
    )
    return SharedWeights(directory, parts, all_weight_bytes(run, shape, tensors, native=True) // world)
