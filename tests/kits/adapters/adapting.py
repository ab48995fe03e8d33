"""Makes computes that have adapters in their slots, of any factory."""

from collections.abc import Mapping
from pathlib import Path

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.engine.adapters.own_share import own_share
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.rank.compute import Compute
from tests.kits.engine.rank_threads import ComputeFactory


def adapting(make: ComputeFactory, files: Mapping[int, Path]) -> ComputeFactory:
    """The same computes, with the adapters of these files by slot."""

    def made(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        compute = make(checkpoint, config, collectives, num_blocks)
        base = BaseModel.of(checkpoint.table.model, config)
        for slot, source in files.items():
            share = own_share(read_adapter(source, base), base, collectives.rank, collectives.world)
            compute.set_adapter(slot, compute.prepare_adapter(share))
        return compute

    return made
