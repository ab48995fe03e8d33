"""What is read of adapter files: matrices, scales, fingerprint, description."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.inspection import inspect_adapter
from services.worker.engine.adapters.own_share import own_share
from tests.kits.adapters.handmade import DEMO, demo_base, demo_tensors, pair, write_gguf_adapter, write_peft
from tests.kits.engine.gguf_models import interleave

QUERIES = "model.layers.0.self_attn.q_proj"


def test_a_description_says_what_an_adapter_is(tmp_path: Path) -> None:
    found = inspect_adapter(write_peft(tmp_path / "a"), DEMO)
    assert found.rank == 4
    assert found.targets == ("mlp.down_proj", "self_attn.q_proj")
    assert found.num_bytes == 4 * 4 * (192 + 256 + 512 + 192)
    assert len(found.fingerprint) == 32
    # over two ranks, `down` of the queries and `up` of the MLP are there twice
    assert inspect_adapter(tmp_path / "a", DEMO, ranks=2).num_bytes == found.num_bytes + 4 * 4 * (192 + 192)


def test_ranks_have_what_a_description_says(tmp_path: Path) -> None:
    base = demo_base()
    adapter = read_adapter(write_peft(tmp_path / "a"), base)
    for world in (1, 2, 4):
        shares = [own_share(adapter, base, rank, world) for rank in range(world)]
        assert sum(share.num_bytes for share in shares) == adapter.describe(world).num_bytes


def test_the_scale_is_in_the_second_matrix(tmp_path: Path) -> None:
    tensors = demo_tensors()
    up, down = (tensors[f"base_model.model.{QUERIES}.lora_{side}.weight"] for side in "BA")
    for more, scale in (
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"k_proj": 2}}, 2.0),
        ({"alpha_pattern": {r".*\.q_proj": 16}}, 4.0),
        ({"lora_alpha": 0}, 0.0),
    ):
        found = read_adapter(write_peft(tmp_path / "a", **more), demo_base()).matrices[0, "self_attn.q_proj"]
        np.testing.assert_array_equal(found.up, up * np.float32(scale))
        np.testing.assert_array_equal(found.down, down)


def test_modules_may_have_ranks_of_their_own(tmp_path: Path) -> None:
    tensors = demo_tensors() | pair("model.layers.1.self_attn.v_proj", 128, 192, rank=16)
    source = write_peft(tmp_path / "a", tensors, rank_pattern={"v_proj": 16})
    adapter = read_adapter(source, demo_base())
    assert adapter.describe().rank == 16
    # alpha / its own rank
    up = tensors["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"]
    np.testing.assert_array_equal(adapter.matrices[1, "self_attn.v_proj"].up, up * np.float32(8 / 16))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"base_model_name_or_path": "elsewhere", "target_modules": "all-linear", "lora_dropout": 0.1}, True),
        ({"lora_alpha": 16}, False),
        ({"use_rslora": True}, False),
        ({"alpha_pattern": {"q_proj": 9}}, False),
    ],
)
def test_a_fingerprint_covers_what_changes_the_result(
    tmp_path: Path, change: dict[str, Any], same: bool
) -> None:
    before = inspect_adapter(write_peft(tmp_path / "a"), DEMO).fingerprint
    after = inspect_adapter(write_peft(tmp_path / "b", **change), DEMO).fingerprint
    assert (before == after) is same


def test_a_fingerprint_covers_every_number(tmp_path: Path) -> None:
    before = inspect_adapter(write_peft(tmp_path / "a"), DEMO).fingerprint
    for name in demo_tensors():
        tensors = demo_tensors()
        tensors[name][-1, -1] += np.float32(1e-3)
        assert inspect_adapter(write_peft(tmp_path / "b", tensors), DEMO).fingerprint != before


def test_half_precision_is_read(tmp_path: Path) -> None:
    halves = {name: values.astype(np.float16) for name, values in demo_tensors().items()}
    adapter = read_adapter(write_peft(tmp_path / "a", halves), demo_base())
    wanted = halves[f"base_model.model.{QUERIES}.lora_A.weight"].astype(np.float32)
    np.testing.assert_array_equal(adapter.matrices[0, "self_attn.q_proj"].down, wanted)


def test_a_gguf_file_gives_the_same_matrices(tmp_path: Path) -> None:
    tensors = demo_tensors()
    named: dict[str, Any] = {}
    for module, stored in ((QUERIES, "blk.0.attn_q"), ("model.layers.3.mlp.down_proj", "blk.3.ffn_down")):
        named[f"{stored}.weight.lora_a"] = tensors[f"base_model.model.{module}.lora_A.weight"]
        named[f"{stored}.weight.lora_b"] = tensors[f"base_model.model.{module}.lora_B.weight"]
    # llama.cpp's converter puts the rows that are rotated together side by side
    named["blk.0.attn_q.weight.lora_b"] = interleave(named["blk.0.attn_q.weight.lora_b"], 8)
    path = write_gguf_adapter(tmp_path / "adapter.gguf", named)
    wanted = read_adapter(write_peft(tmp_path / "a"), demo_base())
    found = read_adapter(path, demo_base())
    assert found.describe().targets == wanted.describe().targets
    for key, matrices in wanted.matrices.items():
        np.testing.assert_array_equal(found.matrices[key].down, matrices.down)
        np.testing.assert_array_equal(found.matrices[key].up, matrices.up)


def test_a_gguf_file_without_an_alpha_adds_its_product_as_it_is(tmp_path: Path) -> None:
    tensors = pair("x", 192, 512)
    up, down = (tensors[f"base_model.model.x.lora_{side}.weight"] for side in "BA")
    named = {"blk.1.ffn_down.weight.lora_a": down, "blk.1.ffn_down.weight.lora_b": up}
    path = write_gguf_adapter(tmp_path / "adapter.gguf", named, alpha=None)
    np.testing.assert_array_equal(read_adapter(path, demo_base()).matrices[1, "mlp.down_proj"].up, up)
