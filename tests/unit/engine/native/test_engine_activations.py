"""The kernels' activations and soft cap against torch in double precision, over all magnitudes."""

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.native.build import targets
from services.worker.engine.native.library import NUM_TIMES, kernels
from services.worker.engine.native.operands import FLOATS, Activation
from services.worker.engine.native.packed_weights import buffer, pack
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.native.structs.rows import ActivationKind, OutputRule

FUNCTIONS: dict[ActivationKind, Callable[[Tensor], Tensor]] = {
    ActivationKind.SILU: F.silu,
    ActivationKind.GELU: F.gelu,
    ActivationKind.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    ActivationKind.RELU: F.relu,
    ActivationKind.RELU2: lambda x: F.relu(x).square(),
    ActivationKind.CAPPED: lambda x: 5.0 * torch.tanh(0.5 * x / 5.0),
}
POINTS = torch.cat(
    (torch.linspace(-12, 12, 4001), torch.tensor([-300.0, -90.0, -1e-6, 0.0, 1e-6, 90.0, 300.0]))
)
pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")


def computed(target: str, rule: OutputRule, matrix: Tensor) -> Tensor:
    """What a linear with this rule makes of one input that is 1."""
    library, source, program = kernels(target), Activation.allocate(1, FLOATS), Program()
    source.rows[0, 0] = 1.0
    packed = pack(library, matrix, precision="fp32", rule=rule)
    out = buffer(1, packed.columns)
    program.tile(source)
    program.linear(source, packed, out.data_ptr(), packed.columns)
    ops, clock = program.whole(barriers=False), (ctypes.c_int64 * NUM_TIMES)()
    pool = library.new_thread_pool(1, False)
    library.run_program(pool, None, ops, len(ops), ForwardBatch(num_rows=1), clock, None, None)
    library.free_thread_pool(pool)
    return out[0]


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_near_the_exact_value(target: str, kind: ActivationKind) -> None:
    found = computed(target, OutputRule(activation=kind, scale=0.5, softcap=5.0), POINTS.unsqueeze(1))
    wanted = FUNCTIONS[kind](POINTS.double())
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("target", targets())
def test_gated(target: str) -> None:
    up = POINTS.flip(0)
    both = torch.cat((POINTS, up)).unsqueeze(1)
    gelu = computed(target, OutputRule(activation=ActivationKind.GELU, gated=True), both)
    exact = F.gelu(POINTS.double()) * up.double()
    torch.testing.assert_close(gelu.double(), exact, atol=1e-6, rtol=2e-6)
    clamped = computed(target, OutputRule(activation=ActivationKind.CLAMPED_SWIGLU, gated=True), both)
    gate, bounded = POINTS.double().clamp(max=7.0), up.double().clamp(-7.0, 7.0)
    exact = (bounded + 1) * gate * torch.sigmoid(1.702 * gate)
    torch.testing.assert_close(clamped.double(), exact, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("target", targets())
def test_damage_shows(target: str) -> None:
    for kind in FUNCTIONS:
        found = computed(
            target, OutputRule(activation=kind, scale=0.5, softcap=5.0), torch.full((3, 1), torch.nan)
        )
        assert torch.isnan(found).all()
