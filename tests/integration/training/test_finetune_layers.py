"""Which layers get an adapter, and which are held as codes, in models of several families."""

from pathlib import Path
from typing import Any

import pytest

from tests.kits.families.models import make_family
from tests.kits.training.finetuning import demo_plan
from training.finetune.base_model import add_adapter, load_base, read_shape
from training.finetune.four_bit import FourBitLinear

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}


def kinds(names: Any) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize(
    ("family", "expected", "count"),
    [
        ("llama", ATTENTION | MLP, 3 * 7),
        ("phi3", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}, 3 * 4),
        ("mixtral", ATTENTION, 3 * 4),
        ("qwen3_moe", ATTENTION, 3 * 4),
    ],
)
def test_all_linears_of_the_decoder_but_experts_and_routers(
    tmp_path: Path, family: str, expected: set[str], count: int
) -> None:
    plan = demo_plan(tmp_path, base=make_family(family, tmp_path / "base"))
    shape, names = read_shape(plan)
    assert kinds(names) == expected
    assert shape.layers == 3
    assert len(names) == count
    adapted = add_adapter(load_base(plan, bf16=False), plan, names)
    trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert trained == plan.rank * shape.adapted


def test_layers_whose_width_has_no_whole_groups_stay_floats(tmp_path: Path) -> None:
    plan = demo_plan(tmp_path, base=make_family("llama", tmp_path / "base"), base_bits=4)
    model = load_base(plan, bf16=False)
    coded = {name for name, one in model.named_modules() if isinstance(one, FourBitLinear)}
    assert kinds(coded) == ATTENTION | {
        "gate_proj",
        "up_proj",
    }  # those with 64 inputs; the MLP's inner width is 112
    assert len(coded) == 3 * 6
