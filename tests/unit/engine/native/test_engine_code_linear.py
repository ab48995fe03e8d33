"""The kernels of codes against the plain functions of `plain/references/codes.py`."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.gguf_codes import encoded, has_codes
from services.worker.engine.native.build import targets
from services.worker.engine.native.library import KernelLibrary, kernels
from services.worker.engine.native.op_lists import Segment
from services.worker.engine.native.operands import Activation, InputKinds
from services.worker.engine.native.packed_weights import buffer, pack
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.native.structs.rows import OutputRule
from services.worker.engine.plain.references import codes as reference

TARGETS = targets()
TYPES = [kind for kind in GGMLQuantizationType if has_codes(kind)]
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def random_matrix(kind: GGMLQuantizationType, outputs: int, inputs: int, seed: int) -> EncodedMatrix:
    """Random codes with scales of about the same size."""
    block, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (outputs, inputs // block * size), dtype=np.uint8)
    matrix = encoded(data.reshape(-1), kind, outputs)
    generator = torch.Generator().manual_seed(seed)

    def random(like: Tensor) -> Tensor:
        return (torch.rand(like.shape, generator=generator) * 0.02 - 0.005).to(like.dtype)

    offsets = None if matrix.offsets is None else random(matrix.offsets)
    return EncodedMatrix(
        codes=matrix.codes, bits=matrix.bits, group=matrix.group, scales=random(matrix.scales),
        offsets=offsets, zero=matrix.zero, table=matrix.table,
    )  # fmt: skip


def multiply(
    library: KernelLibrary, rows: Tensor, matrix: EncodedMatrix, bias: Tensor | None = None
) -> Tensor:
    """Rows times the transpose of the matrix, by the kernels."""
    source, program = Activation.allocate(matrix.shape[1], InputKinds(codes=True)), Program()
    out = buffer(len(rows), matrix.shape[0])
    program.tile(source)
    program.linear(source, pack(library, matrix, bias, precision="fp32"), out.data_ptr(), out.shape[1])
    source.rows[: len(rows), : rows.shape[1]] = rows
    run(library, program, len(rows))
    return out


def run(library: KernelLibrary, program: Program, rows: int) -> None:
    pool = library.new_thread_pool(2, 0)
    segment = Segment(program.whole(barriers=False))
    clock = (torch.zeros(4, dtype=torch.int64)).numpy().ctypes
    batch = ForwardBatch(num_rows=rows, num_samples=rows)
    assert library.run_program(pool, None, segment.ops, len(segment.ops), batch, clock.data, None, None) == -1
    library.free_thread_pool(pool)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_products_are_those_of_the_plain_functions(target: str, kind: GGMLQuantizationType) -> None:
    matrix = random_matrix(kind, 70, 512, 3)
    rows = torch.randn(15, 512, generator=torch.Generator().manual_seed(4))
    bias = torch.arange(70.0)
    found = multiply(kernels(target), rows, matrix, bias)
    wanted = reference.linear(rows, matrix) + bias
    torch.testing.assert_close(found, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=1e-5)


@pytest.mark.skipif("avxvnni" not in TARGETS, reason="this processor has no AVX-VNNI")
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_avx_vnni_changes_no_bit_of_avx2(kind: GGMLQuantizationType) -> None:
    matrix = random_matrix(kind, 70, 512, 3)
    for count in (1, 2, 4, 8, 15):
        rows = torch.randn(count, 512, generator=torch.Generator().manual_seed(count))
        assert torch.equal(
            multiply(kernels("avxvnni"), rows, matrix), multiply(kernels("avx2"), rows, matrix)
        )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_row_has_the_same_bits_beside_any_others(target: str, kind: GGMLQuantizationType) -> None:
    matrix = random_matrix(kind, 40, 256, 5)
    rows = torch.randn(61, 256, generator=torch.Generator().manual_seed(6))
    library = kernels(target)
    whole = multiply(library, rows, matrix)
    for count in (1, 2, 3, 5, 8, 9, 12, 13, 30, 31, 48):
        assert torch.equal(multiply(library, rows[:count], matrix), whole[:count])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_of_panels_are_decoded_bit_for_bit(target: str, kind: GGMLQuantizationType) -> None:
    matrix, library = random_matrix(kind, 70, 512, 7), kernels(target)
    packed = pack(library, matrix, precision="fp32")
    wanted = matrix.decode()
    for row in (0, 1, 31, 32, 69):
        found = torch.empty(512)
        library.decode_row(packed.form, packed.weights.data_ptr(), row, 512, found.data_ptr())
        assert torch.equal(found, wanted[row])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("inputs", [16, 48, 80, 144])
def test_inputs_need_not_fill_whole_blocks(target: str, inputs: int) -> None:
    for name in ("Q2_K", "Q4_1", "Q6_K", "Q8_0", "IQ4_NL", "TQ2_0"):
        whole = random_matrix(GGMLQuantizationType[name], 33, 256, 8)
        matrix = whole.columns(range(inputs))
        assert matrix is not None
        rows = torch.randn(3, inputs, generator=torch.Generator().manual_seed(9))
        found, wanted = multiply(kernels(target), rows, matrix), reference.linear(rows, matrix)
        torch.testing.assert_close(found, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=1e-5)


def test_gated_outputs_lie_beside_each_other() -> None:
    matrix = random_matrix(GGMLQuantizationType.Q4_K, 2 * 50, 256, 10)
    rows = torch.randn(2, 256, generator=torch.Generator().manual_seed(11))
    library = kernels()
    source, program, out = Activation.allocate(256, InputKinds(codes=True)), Program(), buffer(2, 64)
    program.tile(source)
    rule = OutputRule(activation=1, gated=1)
    program.linear(source, pack(library, matrix, precision="fp32", rule=rule), out.data_ptr(), 64)
    source.rows[:2] = rows
    run(library, program, 2)
    both = reference.linear(rows, matrix)
    wanted = torch.nn.functional.silu(both[:, :50]) * both[:, 50:]
    torch.testing.assert_close(out[:, :50], wanted, atol=1e-4 * float(wanted.abs().max()), rtol=1e-4)
