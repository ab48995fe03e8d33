"""Ranks that exchange sums of squares, or have parallel layers, over shared memory as processes do."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.shared_memory import SharedMemoryCollectives
from services.worker.engine.native.build import targets
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.rank_messages import shared_bytes
from tests.kits.engine.rank_threads import plan_logits
from tests.kits.families.compiled import Form, compiled
from tests.kits.families.models import TEXTS, family_model, text
from tests.kits.families.step_plans import NUM_BLOCKS, random_plans

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
# norms over all heads, also of KV heads that two ranks have; over mixed values and inner features; parallel
MODELS = [("olmo2", 3), ("olmo2, two KV heads", 4), ("bitnet", 2), ("cohere", 2), ("gpt_neox", 3)]


@pytest.mark.parametrize(("name", "world"), MODELS)
def test_ranks_meet_in_shared_memory(name: str, world: int) -> None:
    model = family_model(name)
    plans, _ = random_plans({key: text(key) for key in TEXTS}, random.Random(world))
    wanted = plan_logits(model.directory, world, plans, NUM_BLOCKS, compiled(Form()))
    shared = os.memfd_create("test")
    os.ftruncate(shared, shared_bytes(world))

    def one(rank: int) -> list[Tensor]:
        collectives = SharedMemoryCollectives(shared, rank, world, timeout_s=20)
        with open_checkpoint(model.directory) as checkpoint:
            compute = compiled(Form(), threads=1 + rank % 2)(
                checkpoint, model.config, collectives, NUM_BLOCKS
            )
        runner, rows = Runner(compute), []
        for plan in plans:
            logits = runner.compute_logits(plan)[1]
            rows.append(torch.empty(0) if logits is None else logits.clone())
            collectives.barrier()  # as after sampling, no rank starts the next step early
        collectives.close()
        return rows

    try:
        with ThreadPoolExecutor(world) as pool:
            first, *_ = pool.map(one, range(world))
    finally:
        os.close(shared)
    for found, expected in zip(first, wanted, strict=True):
        assert torch.equal(found, expected)
