"""The 8-bit kernels of one linear against the plain functions of `plain/references/int8.py`."""

import ctypes

import pytest
import torch
from torch import Tensor

from services.worker.engine.native.build import targets
from services.worker.engine.native.library import NUM_TIMES, kernels
from services.worker.engine.native.operands import Activation, InputKinds
from services.worker.engine.native.packed_weights import buffer, pack, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.plain.references import int8 as reference

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")


def computed(target: str, rows: Tensor, matrix: Tensor, *, threads: int = 1) -> Tensor:
    """[rows, inputs] times the transpose of [outputs, inputs] by the kernels."""
    library = kernels(target)
    source = Activation.allocate(matrix.shape[1], InputKinds(int8=True))
    source.rows[: len(rows), : matrix.shape[1]] = rows
    out, program = buffer(len(rows), padded(len(matrix))), Program()
    program.tile(source)
    program.linear(source, pack(library, matrix, precision="int8"), out.data_ptr(), out.shape[1])
    ops, clock = program.whole(barriers=False), (ctypes.c_int64 * NUM_TIMES)()
    pool = library.new_thread_pool(threads, False)
    library.run_program(pool, None, ops, len(ops), ForwardBatch(num_rows=len(rows)), clock, None, None)
    library.free_thread_pool(pool)
    return out[:, : len(matrix)]


def normal(*shape: int, seed: int, outlier: float = 1.0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    drawn[:, 3] *= outlier
    return drawn


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 32, 32), (3, 64, 48), (7, 96, 5), (12, 576, 70), (13, 100, 33), (25, 1536, 64), (40, 24, 31)],
)
def test_the_kernels_compute_what_the_plain_functions_do(
    target: str, rows: int, inputs: int, outputs: int
) -> None:
    x, matrix = normal(rows, inputs, seed=1, outlier=50), 0.1 * normal(outputs, inputs, seed=2, outlier=20)
    wanted = reference.linear(x, matrix)
    scale = wanted.square().mean().sqrt()
    torch.testing.assert_close(computed(target, x, matrix) / scale, wanted / scale, atol=2e-6, rtol=2e-6)


@pytest.mark.skipif("avxvnni" not in targets(), reason="this processor has no AVX-VNNI")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 13, 40])
def test_avx_vnni_changes_no_bit_of_avx2(rows: int) -> None:
    x, matrix = normal(rows, 100, seed=5, outlier=50), normal(70, 100, seed=6, outlier=20)
    assert torch.equal(computed("avxvnni", x, matrix), computed("avx2", x, matrix))


@pytest.mark.parametrize("target", targets())
def test_extreme_codes_do_not_overflow(target: str) -> None:
    x, matrix = torch.ones(9, 64), torch.ones(32, 64)
    signs = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0)
    for rows, weights, wanted in ((x, matrix, 64), (-x, matrix, -64), (x * signs, matrix * signs, 64)):
        torch.testing.assert_close(
            computed(target, rows, weights), torch.full((9, 32), float(wanted)), atol=0, rtol=1e-3
        )


@pytest.mark.parametrize("target", targets())
def test_a_row_has_the_same_bits_alone_and_beside_others(target: str) -> None:
    x, matrix = normal(30, 200, seed=3), normal(90, 200, seed=4)
    alone = torch.cat([computed(target, x[i : i + 1], matrix) for i in range(len(x))])
    for rows in (2, 5, 8, 12, 13, 30):
        assert torch.equal(computed(target, x[:rows], matrix, threads=2), alone[:rows])


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("damage", [float("nan"), float("inf"), -float("inf")])
def test_damage_shows_where_it_is(target: str, damage: float) -> None:
    x, matrix = normal(5, 64, seed=5), normal(40, 64, seed=6)
    x[2, 40] = damage
    found = computed(target, x, matrix)
    assert torch.isnan(found[2]).all()
    assert torch.isfinite(found[[0, 1, 3, 4]]).all()
    x, matrix[7, 5] = normal(5, 64, seed=5), damage
    found = computed(target, x, matrix)
    assert torch.isnan(found[:, 7]).all()
    assert torch.isfinite(found[:, [*range(7), *range(8, 40)]]).all()


@pytest.mark.parametrize("target", targets())
def test_tiny_and_empty_blocks_become_zeros(target: str) -> None:
    x, matrix = torch.zeros(2, 64), normal(32, 64, seed=7)
    x[1, :32] = 1e-35
    assert not computed(target, x, matrix).any()
    matrix[:, 32:] = 1e-9  # below what a half can scale
    x = normal(2, 64, seed=8)
    torch.testing.assert_close(computed(target, x, matrix), reference.linear(x, matrix))


def test_weights_that_were_in_8_bits_stay_as_they_are() -> None:
    """Blocks of GGUF's Q8_0: codes times a half, the largest magnitude at 127."""
    generator = torch.Generator().manual_seed(9)
    codes = torch.randint(-127, 128, (16, 4, 32), generator=generator).float()
    codes[..., 0] = 127
    scales = torch.rand(16, 4, generator=generator).half().float() / 64
    found, found_scales = reference.quantize_weights((codes * scales.unsqueeze(-1)).flatten(1))
    assert torch.equal(found, codes)
    assert torch.equal(found_scales, scales.half().float())


def test_a_chosen_scale_errs_less_than_the_largest_at_127() -> None:
    matrix = normal(64, 512, seed=10)
    codes, scales = reference.quantize_weights(matrix)
    blocks = matrix.view(64, -1, 32)
    largest = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    plain = torch.round(blocks / largest) * largest
    chosen = codes * scales.unsqueeze(-1)
    assert (chosen - blocks).square().mean() < 0.85 * (plain - blocks).square().mean()
