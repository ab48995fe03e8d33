"""KV blocks between a GPU's cache and the CPU: the same bytes as between two caches of the CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.engine.config.read_config import read_config
from services.worker.engine.kv_transfer.kv_blocks import PlainBlocks
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.devices import FAMILIES
from tests.kits.engine.rank_threads import make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_have_the_same_bytes_on_a_gpu(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    shape = read_config(make_model(tmp_path, family, **FAMILIES[family]))
    here, there = (
        KVCache(shape, PoolSizes(16), 0, 1, Placement(torch.device(name), dtype))
        for name in ("cpu", "cuda:0")
    )
    for layer in here.layers:
        layer.keys.normal_()
        layer.values.normal_()
    giver, taker = (PlainBlocks(cache, shape, 0, 1) for cache in (here, there))
    sent, back = np.zeros((2, len(giver.heads), giver.head_bytes), np.uint8)
    giver.copy_out(3, sent)
    taker.copy_in(7, 0, sent)
    taker.copy_out(7, back)
    assert (back == sent).all()
    for head in range(len(sent)):
        taker.copy_in(9, head, sent[head : head + 1])
    taker.copy_out(9, back)
    assert (back == sent).all()
