"""Codes whose groups have inputs in an order of their own: sorted, gathered, cut over ranks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, have_one_order
from services.worker.engine.checkpoint.codes.input_order import sorted_inputs
from services.worker.engine.native.build import targets
from services.worker.engine.native.library import KernelLibrary, kernels
from services.worker.engine.native.op_lists import Segment
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    InputKinds,
    ResidualStream,
)
from services.worker.engine.native.packed_weights import buffer, pack
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.plain.references import codes as reference

TARGETS = targets()
INPUTS, GROUP = 256, 64
needs_kernels = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def run(library: KernelLibrary, program: Program, rows: int) -> None:
    pool, segment = library.new_thread_pool(2, 0), Segment(program.whole(barriers=False))
    clock = torch.zeros(4, dtype=torch.int64).numpy().ctypes
    batch = ForwardBatch(num_rows=rows, num_samples=rows)
    assert library.run_program(pool, None, segment.ops, len(segment.ops), batch, clock.data, None, None) == -1
    library.free_thread_pool(pool)


def ordered(groups: "np.ndarray[tuple[int], np.dtype[np.int32]]", seed: int) -> EncodedMatrix:
    """Random codes of 4 bits with offsets, whose inputs belong to these groups."""
    draw, inputs = torch.Generator().manual_seed(seed), sorted_inputs(groups, GROUP)
    held, spread = len(inputs.order), torch.from_numpy(inputs.groups).long()
    scales = torch.rand(40, INPUTS // GROUP, generator=draw).half()[:, spread]
    return EncodedMatrix(
        codes=torch.randint(0, 16, (40, held), generator=draw, dtype=torch.uint8),
        bits=4,
        group=inputs.size,
        scales=scales,
        offsets=scales.float() * 7,
        order=torch.from_numpy(inputs.order),
    )


def shuffled(count: int = INPUTS) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Groups of the first inputs of a matrix."""
    whole = np.arange(INPUTS, dtype=np.int32) // GROUP
    return np.random.default_rng(1).permutation(whole)[:count]


@pytest.mark.parametrize(("count", "size"), [(INPUTS, GROUP), (100, 32), (1, 32)])
def test_groups_are_sorted_and_filled_up(count: int, size: int) -> None:
    groups = shuffled(count)
    inputs = sorted_inputs(groups, GROUP)
    held = inputs.order >= 0
    assert inputs.size == size
    assert sorted(inputs.order[held]) == list(range(count))
    spread = np.repeat(inputs.groups, size)
    assert np.array_equal(spread, groups[inputs.columns])  # what fills up has a column of the same group
    assert np.array_equal(inputs.columns[held], inputs.order[held])
    assert held.all() == (count == INPUTS)


def test_matrices_of_other_orders_are_not_joined() -> None:
    one, other = ordered(shuffled(), 2), ordered(shuffled()[::-1].copy(), 2)
    assert have_one_order([one, ordered(shuffled(), 3)])
    assert not have_one_order([one, other])
    assert one.columns(range(64)) is None
    joined = EncodedMatrix.joined([one, ordered(shuffled(), 3)])
    assert torch.equal(joined.decode()[:40], one.decode())


@needs_kernels
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [INPUTS, 100])
def test_products_are_those_of_gathered_columns(target: str, count: int) -> None:
    matrix, library = ordered(shuffled(count), 4), kernels(target)
    rows = torch.randn(9, count, generator=torch.Generator().manual_seed(5))
    order = matrix.order
    assert order is not None
    gathered = torch.where(order >= 0, rows[:, order.clamp(min=0).long()], 0.0)
    plain = EncodedMatrix(
        codes=matrix.codes, bits=4, group=matrix.group, scales=matrix.scales, offsets=matrix.offsets
    )
    found = multiply(library, rows, matrix)
    assert torch.equal(found, multiply(library, gathered, plain))
    wanted = reference.linear(rows, matrix)
    torch.testing.assert_close(found, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=1e-5)
    exact = rows @ matrix.decode().T
    assert float((found - exact).norm() / exact.norm()) < 0.02


def multiply(library: KernelLibrary, rows: Tensor, matrix: EncodedMatrix) -> Tensor:
    source, program = Activation.allocate(rows.shape[1], InputKinds(codes=True)), Program()
    out = buffer(len(rows), matrix.shape[0])
    program.tile(source)
    program.linear(source, pack(library, matrix, precision="fp32"), out.data_ptr(), out.shape[1])
    source.rows[: len(rows), : rows.shape[1]] = rows
    run(library, program, len(rows))
    return out


@needs_kernels
def test_a_stream_without_a_norm_is_gathered_too() -> None:
    matrix, library, program = ordered(shuffled(), 6), kernels(), Program()
    stream = ResidualStream(buffer(MAX_ROWS, INPUTS), INPUTS)
    source, out = Activation.allocate(INPUTS, InputKinds(codes=True)), buffer(3, 40)
    program.residual(stream, None, None, source)
    program.linear(source, pack(library, matrix, precision="fp32"), out.data_ptr(), 40)
    rows = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(7))
    stream.hidden[:3] = rows
    run(library, program, 3)
    assert torch.equal(out, multiply(library, rows, matrix))
