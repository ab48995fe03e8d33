"""The bf16 kernels of one linear: by the processor's instruction and by multiply-adds, bit for bit."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from services.worker.engine.native.build import targets
from services.worker.engine.native.library import NUM_TIMES, KernelLibrary, kernels
from services.worker.engine.native.operands import Activation, InputKinds
from services.worker.engine.native.packed_weights import buffer, pack, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.native.structs.rows import ActivationKind, OutputRule
from services.worker.engine.plain.references import bf16 as reference

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
SILU = OutputRule(activation=ActivationKind.SILU, gated=True)


def ways() -> list[tuple[str, bool]]:
    """Each variant, with the instruction where this processor has it, and without."""
    found = [(target, False) for target in targets()]
    if targets() and kernels().bf16_instruction(-1):
        found.append((targets()[0], True))
    return found


@contextmanager
def instruction(library: KernelLibrary, wanted: bool) -> Iterator[None]:
    before = library.bf16_instruction(-1)
    assert library.bf16_instruction(wanted) == wanted
    yield
    library.bf16_instruction(before)


def computed(
    mode: tuple[str, bool], rows: Tensor, matrix: Tensor, *, threads: int = 1, rule: OutputRule | None = None
) -> Tensor:
    """[rows, inputs] times the transpose of [outputs, inputs] by the kernels."""
    library = kernels(mode[0])
    source = Activation.allocate(matrix.shape[1], InputKinds(pairs=True))
    source.rows[: len(rows), : matrix.shape[1]] = rows
    packed = pack(library, matrix, precision="bf16", rule=rule)
    out, program = buffer(len(rows), padded(packed.columns)), Program()
    program.tile(source)
    program.linear(source, packed, out.data_ptr(), out.shape[1])
    ops, clock = program.whole(barriers=False), (ctypes.c_int64 * NUM_TIMES)()
    pool = library.new_thread_pool(threads, False)
    with instruction(library, mode[1]):
        library.run_program(pool, None, ops, len(ops), ForwardBatch(num_rows=len(rows)), clock, None, None)
    library.free_thread_pool(pool)
    return out[:, : packed.columns]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_this_machine_says_whether_it_has_the_instruction() -> None:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        has = "avx512_bf16" in file.read()
    for target in targets():
        assert kernels(target).bf16_instruction(-1) == (has and target == "avx512")


@pytest.mark.parametrize("mode", ways(), ids=str)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 32, 32), (3, 65, 48), (12, 576, 70), (13, 99, 33), (40, 24, 31)]
)
def test_the_kernels_have_the_bits_of_the_oracle(
    mode: tuple[str, bool], rows: int, inputs: int, outputs: int
) -> None:
    x, matrix = 3 * normal(rows, inputs, seed=1), 0.1 * normal(outputs, inputs, seed=2)
    found = computed(mode, x, matrix)
    assert torch.equal(found, reference.linear(x, matrix))
    exact = x.bfloat16().double() @ matrix.bfloat16().double().T
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ways(), ids=str)
@pytest.mark.parametrize("scale", [1e-19, 3e-20, 1e-38])
def test_denormal_numbers_are_zeros(mode: tuple[str, bool], scale: float) -> None:
    """Products and sums around the smallest normal number, and activations and weights below it."""
    x, matrix = scale * normal(13, 64, seed=3), scale * normal(40, 64, seed=4)
    x[:, 5], matrix[:, 5] = 1e-39, 1.0  # a denormal input would show
    found = computed(mode, x, matrix)
    assert torch.equal(found, reference.linear(x, matrix))
    assert scale < 1e-19 or found.any()


@pytest.mark.parametrize("rule", [None, SILU], ids=["sums", "gated"])
def test_all_ways_have_the_same_bits(rule: OutputRule | None) -> None:
    """The largest shapes of SmolLM2, whose sums pass through every register."""
    x, matrix = normal(25, 576, seed=5), normal(3072, 576, seed=6)
    found = [computed(mode, x, matrix, threads=2, rule=rule) for mode in ways()]
    for other in found[1:]:
        if rule is None or len(targets()) == 1:
            assert torch.equal(other, found[0])
        else:
            torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-5)
    with_and_without = [one for one, mode in zip(found, ways(), strict=True) if mode[0] == targets()[0]]
    assert all(torch.equal(one, with_and_without[0]) for one in with_and_without)


@pytest.mark.parametrize("mode", ways(), ids=str)
def test_a_row_has_the_same_bits_alone_and_beside_others(mode: tuple[str, bool]) -> None:
    x, matrix = normal(30, 200, seed=7), normal(90, 200, seed=8)
    alone = torch.cat([computed(mode, x[i : i + 1], matrix) for i in range(len(x))])
    for rows in (2, 5, 8, 12, 13, 30):
        assert torch.equal(computed(mode, x[:rows], matrix, threads=2), alone[:rows])


@pytest.mark.parametrize("mode", ways(), ids=str)
@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_damage_shows_where_it_is(mode: tuple[str, bool], damage: float) -> None:
    x, matrix = normal(5, 64, seed=9), normal(40, 64, seed=10)
    x[2, 40] = damage
    found = computed(mode, x, matrix)
    assert not torch.isfinite(found[2]).any()
    assert torch.isfinite(found[[0, 1, 3, 4]]).all()
    x, matrix[7, 5] = normal(5, 64, seed=9), damage
    found = computed(mode, x, matrix)
    assert not torch.isfinite(found[:, 7]).any()
    assert torch.isfinite(found[:, [*range(7), *range(8, 40)]]).all()
