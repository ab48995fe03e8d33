"""Codes of 4 bits: how close they are, and gradients that are those of the decoded weights."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from training.finetune.four_bit import LEVELS, FourBitLinear, FourBitMatrix, to_four_bits


def weights(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3))


def test_values_on_the_grid_come_back_exactly() -> None:
    levels = torch.tensor(LEVELS).bfloat16().float()
    matrix = torch.stack([levels.repeat(8), levels.flip(0).repeat(8) * 0.5])
    decoded = FourBitMatrix(matrix).decode()
    assert decoded.dtype == torch.bfloat16
    assert torch.equal(decoded.float(), matrix)


def test_each_value_is_rounded_to_a_near_level() -> None:
    matrix = weights(33, 192)
    codes = FourBitMatrix(matrix)
    off = (codes.decode().float() - matrix).abs().view(33, 3, 64)
    scales = matrix.view(33, 3, 64).abs().amax(2, keepdim=True)
    widest = max(right - left for left, right in pairwise(LEVELS))
    assert bool((off <= scales * (widest / 2 + 0.01)).all())
    assert codes.num_bytes == 33 * 192 * 4.25 / 8


def test_a_group_of_zeros_stays_zero() -> None:
    assert not bool(FourBitMatrix(torch.zeros(4, 64)).decode().any())


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="100 inputs are no multiple of 64"):
        FourBitMatrix(weights(4, 100))


def test_outputs_and_gradients_are_those_of_the_decoded_weights() -> None:
    linear = nn.Linear(128, 48)
    coded = FourBitLinear(linear)
    plain = nn.Linear(128, 48)
    with torch.no_grad():
        plain.weight.copy_(coded.matrix.decode())
        plain.bias.copy_(linear.bias)
    given = weights(7, 128)
    mine, theirs = (given.clone().requires_grad_() for _ in range(2))
    left, right = coded(mine), plain(theirs)
    assert torch.equal(left, right)
    left.square().sum().backward()
    right.square().sum().backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_named_layers_of_a_model_are_replaced() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.Sequential(nn.Linear(64, 4)))
    to_four_bits(model, ["1.0"])
    assert isinstance(model.get_submodule("1.0"), FourBitLinear)
    assert not isinstance(model[0], FourBitLinear)
    assert model.get_submodule("1.0").out_features == 4
