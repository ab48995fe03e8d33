"""DoRA beside rounded bases, against PEFT with the same weights as floats, and magnitudes that are wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.worker.adapters.description import AdapterError
from services.worker.adapters.inspection import inspect_adapter
from services.worker.engine.native.build import targets
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.adapters.adapting import adapting
from tests.kits.adapters.handmade import DEMO, QUERIES, Tensors, demo_tensors, refusal, write_peft
from tests.kits.adapters.peft_adapters import AdapterEntry, save_adapter_of, with_adapter
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import (
    ComputeFactory,
    native_ranks,
    plain_compute,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import make_tiny
from tests.kits.families.compiled import relative_error

TARGETS = targets()
TEXT = some_tokens(40, 1)


def make_base(directory: Path) -> Path:
    """A small Llama whose matrices any format of a GGUF file holds."""
    return make_tiny("llama", directory, hidden_size=256, intermediate_size=256, head_dim=32)


def rounded(model: Path, directory: Path, kind: str) -> Path:
    """The model with the values that a GGUF file of this type stands for."""
    shutil.copytree(model, directory)
    raw = GGMLQuantizationType[kind]
    tensors = load_file(model / "model.safetensors")
    for name, values in tensors.items():
        if values.ndim == 2:
            coded = quants.quantize(values.float().numpy(), raw)
            tensors[name] = torch.from_numpy(quants.dequantize(coded, raw).reshape(values.shape).copy())
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def peft_dora(model: Path, directory: Path) -> tuple[Path, Tensor]:
    """A DoRA of the model, and the logits of the text's last token with it."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    adapter = save_adapter_of(base, AdapterEntry(8, more={"use_dora": True}), directory)
    with torch.no_grad():
        logits: Tensor = with_adapter(base, adapter)(torch.tensor([TEXT]), use_cache=False).logits
    return adapter, logits[0, -1:]


def logits_of(model: Path, compute: ComputeFactory, slot: int = 0, world: int = 1) -> Tensor:
    """Those of the text's last token."""
    part = Blocks(64).chunk(1, 0, TEXT)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, TEXT, adapter=slot)], chunks=[part])
    return plan_logits(model, world, [plan], 64, compute)[0]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_norm_beside_codes_is_of_what_they_stand_for(kind: str, tmp_path: Path) -> None:
    model = make_base(tmp_path / "model")
    coded = write_gguf(model, tmp_path / "coded.gguf", kind)
    adapter, wanted = peft_dora(rounded(model, tmp_path / "rounded", kind), tmp_path / "adapter")
    for world in (1, 2):
        found = logits_of(coded, adapting(plain_compute, {0: adapter}), world=world)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    base = logits_of(coded, plain_compute, slot=-1)
    assert relative_error([base], [wanted]) > 0.1
    for target in TARGETS:
        factory = native_ranks(target, 2, "codes")
        own = relative_error([logits_of(coded, factory, slot=-1)], [base])
        found = logits_of(coded, adapting(factory, {0: adapter}))
        assert relative_error([found], [wanted]) < 2 * own + 0.002  # activations have 8 bits


def with_magnitudes() -> Tensors:
    """Of the handmade adapter."""
    tensors = demo_tensors()
    for name in [name for name in tensors if name.endswith(".lora_B.weight")]:
        tensors[name.replace(".lora_B.weight", ".lora_magnitude_vector")] = np.ones(
            len(tensors[name]), np.float32
        )
    return tensors


MAGNITUDE = f"{QUERIES}.lora_magnitude_vector"


def _changed(values: Any) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[MAGNITUDE] = np.asarray(values)

    return change


def _spoiled(value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[MAGNITUDE][7] = value

    return change


def _removed(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def _stray(tensors: Tensors) -> None:
    tensors[MAGNITUDE.replace("q_proj", "k_proj")] = np.ones(128, np.float32)


WRONG: dict[str, tuple[Callable[[Tensors], None], str]] = {
    "no number": (_spoiled(np.nan), f"tensor {MAGNITUDE} has values that are no finite numbers"),
    "infinite": (_spoiled(np.inf), f"tensor {MAGNITUDE} has values that are no finite numbers"),
    "beyond fp32": (_spoiled(3e38), "with which outputs are beyond fp32"),
    "too short": (_changed(np.ones(255, np.float32)), "has shape [255], and its module has [256] outputs"),
    "a matrix": (_changed(np.ones((256, 1), np.float32)), "has shape [256, 1], and its module has [256]"),
    "empty": (_changed(np.ones(0, np.float32)), "has shape [0], and its module has [256]"),
    "whole numbers": (_changed(np.ones(256, np.int32)), "has type I32, supported: BF16, F16, F32"),
    "missing": (_removed(MAGNITUDE), "has no lora_magnitude_vector"),
    "of another module": (_stray, "lacks the matrices of its module"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_magnitudes(tmp_path: Path, name: str) -> None:
    change, sentence = WRONG[name]
    tensors = with_magnitudes()
    change(tensors)
    found = refusal(write_peft(tmp_path / "a", tensors, use_dora=True))
    assert sentence in found
    assert str(tmp_path / "a") in found


def test_magnitudes_count_as_memory_and_change_the_fingerprint(tmp_path: Path) -> None:
    plain = inspect_adapter(write_peft(tmp_path / "plain"), DEMO)
    found = inspect_adapter(write_peft(tmp_path / "a", with_magnitudes(), use_dora=True), DEMO)
    assert found.num_bytes == plain.num_bytes + 4 * (256 + 192)
    # those of a row-parallel matrix are on each rank
    two, plain_two = (inspect_adapter(tmp_path / name, DEMO, ranks=2) for name in ("a", "plain"))
    assert two.num_bytes == plain_two.num_bytes + 4 * (256 + 2 * 192)
    tensors = with_magnitudes()
    tensors[MAGNITUDE][0] = 1.5
    other = inspect_adapter(write_peft(tmp_path / "b", tensors, use_dora=True), DEMO)
    assert len({plain.fingerprint, found.fingerprint, other.fingerprint}) == 3


@pytest.mark.parametrize("world", [1, 2])
def test_a_row_without_a_norm_is_refused_when_it_is_loaded(world: int, tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapter = save_adapter_of(base, AdapterEntry(8, more={"use_dora": True}), tmp_path / "adapter")
    name = "model.layers.0.mlp.down_proj"
    weights = load_file(model / "model.safetensors")
    weights[f"{name}.weight"][5] = 0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    tensors = load_file(adapter / "adapter_model.safetensors")
    tensors[f"base_model.model.{name}.lora_B.weight"][5] = 0
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(
        AdapterError, match=r"output 5 of mlp.down_proj of layer 0 has the norm 0 with the adapt"
    ):
        logits_of(model, adapting(plain_compute, {0: adapter}), world=world)
