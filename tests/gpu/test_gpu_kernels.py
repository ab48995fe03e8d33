"""The Triton kernels of the plain path against torch operators in fp32."""

import pytest
import torch
from torch import Tensor

from services.worker.engine.plain.gpu_kernels import GpuKernels, gpu_kernels
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.engine.plain.rope import rotate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]
DTYPES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def found(dtype: torch.dtype) -> GpuKernels:
    kernels = gpu_kernels(Placement(torch.device("cuda", 0), dtype))
    assert kernels is not None, "see the warning above for the reason"
    return kernels


def test_there_are_none_on_cpus() -> None:
    assert gpu_kernels(CPU) is None


# heads, KV heads, head_dim, window, keys of each sequence, blocks in a table
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window", "lengths", "width"),
    [
        (9, 3, 64, 0, [700], 64),  # SmolLM2; its keys are shared by several programs
        (32, 8, 128, 0, [1, 4000, 16, 17], 256),
        (8, 2, 48, 0, [1, 100, 257], 17),
        (4, 4, 128, 20, [60, 3], 8),
        (8, 1, 64, 100, [1, 500, 511, 130], 32),
        (4, 2, 256, 0, [300], 19),
    ],
)
def test_attention_in_place(  # noqa: PLR0917
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int, lengths: list[int], width: int
) -> None:
    draw = torch.Generator().manual_seed(5)
    count, num_blocks = len(lengths), len(lengths) * width + 1
    qkv = torch.randn(count, heads + 2 * kv_heads, dim, generator=draw).to("cuda", dtype)
    keys, values = torch.randn(2, num_blocks * 16, kv_heads, dim, generator=draw).to("cuda", dtype)
    tables = torch.randperm(num_blocks, generator=draw)[: count * width].cuda()
    mixed = found(dtype).attend_in_place(
        qkv[:, :heads],
        keys,
        values,
        blocks=tables,
        newest=torch.tensor(lengths, device="cuda") - 1,
        window=window,
        scale=dim**-0.5,
    )
    assert mixed.dtype == dtype
    for row, length in enumerate(lengths):
        first = max(0, length - window) if window else 0
        seen = [
            _rows(side, tables[row * width : (row + 1) * width])[first:length].repeat_interleave(
                heads // kv_heads, 1
            )
            for side in (keys, values)
        ]
        scores = torch.einsum("hd,nhd->hn", qkv[row, :heads].double(), seen[0]) * dim**-0.5
        wanted = torch.einsum("hn,nhd->hd", scores.softmax(-1), seen[1]).flatten()
        torch.testing.assert_close(mixed[row].double(), wanted, atol=DTYPES[dtype], rtol=DTYPES[dtype])


def _rows(side: Tensor, table: Tensor) -> Tensor:
    return side.view(-1, 16, *side.shape[1:])[table].flatten(0, 1).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotated"), [(64, 64), (48, 24), (128, 0), (96, 96), (256, 256)])
def test_rotation_and_storing(dtype: torch.dtype, dim: int, rotated: int) -> None:
    draw = torch.Generator().manual_seed(6)
    tokens, heads, kv_heads = 300, 5, 2
    states = torch.randn(tokens, heads + 2 * kv_heads, dim, generator=draw).to("cuda", dtype)
    angles = torch.randn(2, tokens, 1, max(1, rotated), generator=draw).cuda()
    rotation = (angles[0], angles[1]) if rotated else None
    slots = torch.randperm(1000, generator=draw)[:tokens].cuda()
    keys, values = torch.zeros(2, 1000, kv_heads, dim, dtype=dtype, device="cuda")
    turned, kept = states[:, : heads + kv_heads].clone(), states[:, heads + kv_heads :].clone()
    wanted = turned if rotation is None else rotate(turned, rotation)
    found(dtype).rotate_and_store(states, rotation, slots, keys, values)
    torch.testing.assert_close(states[:, : heads + kv_heads], wanted)
    assert torch.equal(states[:, heads + kv_heads :], kept)
    assert torch.equal(keys[slots], states[:, heads : heads + kv_heads])
    assert torch.equal(values[slots], kept)
    assert int(keys.any(-1).any(-1).sum()) == tokens
