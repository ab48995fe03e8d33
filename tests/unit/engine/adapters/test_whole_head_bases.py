"""A head that an adapter brings as a whole is computed with floats, however the base's is stored."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from services.worker.adapters.description import AdapterError
from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from tests.kits.adapters.adapting import adapting
from tests.kits.adapters.handmade import CONFIG, QUERIES, WEIGHTS
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import (
    ComputeFactory,
    native_ranks,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import make_tiny

HIDDEN, VOCABULARY = 256, 301  # ranks have unequal shares of the vocabulary
TEXTS = [some_tokens(count, seed) for seed, count in enumerate((40, 17, 33, 25, 9))]
pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")


def _save(directory: Path, head: Tensor | None) -> Path:
    """Writes an adapter that changes nothing but the head."""
    directory.mkdir()
    config = CONFIG | ({} if head is None else {"modules_to_save": ["lm_head"]})
    (directory / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        f"{QUERIES}.lora_A.weight": torch.ones(CONFIG["r"], HIDDEN),
        f"{QUERIES}.lora_B.weight": torch.zeros(HIDDEN, CONFIG["r"]),
    }
    if head is not None:
        tensors["base_model.model.lm_head.weight"] = head
    save_file(tensors, directory / WEIGHTS)
    return directory


def _last_logits(model: Path, world: int, compute: ComputeFactory, slots: list[int]) -> Tensor:
    """Of the last token of each text, in one pass, [texts, tokens]."""
    blocks = Blocks(64)
    plan = StepPlan(
        step_id=1,
        admit=[new_sequence(n, text, adapter=slots[n]) for n, text in enumerate(TEXTS)],
        chunks=[blocks.chunk(n, 0, text) for n, text in enumerate(TEXTS)],
    )
    return plan_logits(model, world, [plan], 64, compute)[0]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", ["fp32", "bf16", "int8", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_the_products_of_the_own_head(
    base: str, stored: torch.dtype, world: int, tied: bool, tmp_path: Path
) -> None:
    """The identity as the head gives the hidden states, of which each other head's logits follow."""
    model = make_tiny(
        "llama",
        tmp_path / "model",
        hidden_size=HIDDEN,
        intermediate_size=256,
        head_dim=32,
        vocab_size=VOCABULARY,
        tie_word_embeddings=tied,
    )
    precision: Precision = "fp32"
    if base.startswith("Q"):
        model, precision = write_gguf(model, tmp_path / "model.gguf", base), "codes"
    elif base != "fp32":
        precision = "bf16" if base == "bf16" else "int8"
    draw = torch.Generator().manual_seed(1)
    heads = [torch.eye(VOCABULARY, HIDDEN)]
    heads += [torch.randn(VOCABULARY, HIDDEN, generator=draw) / HIDDEN**0.5 for _ in range(2)]
    heads = [head.to(stored) for head in heads]
    files = {slot: _save(tmp_path / str(slot), head) for slot, head in enumerate(heads)}
    files[3] = _save(tmp_path / "3", None)
    compute = adapting(native_ranks(threads=2, precision=precision), files)

    hidden = _last_logits(model, world, compute, [0] * len(TEXTS))
    assert hidden[:, HIDDEN:].eq(0).all()  # rows of the identity that are zero
    hidden = hidden[:, :HIDDEN]
    slots = [1, 2, -1, 3, 1]
    found = _last_logits(model, world, compute, slots)
    of_base = _last_logits(model, world, compute, [-1] * len(TEXTS))
    for row, slot in enumerate(slots):
        if slot in (1, 2):
            # beside a base that is not computed with floats heads become bf16
            kept = heads[slot].float() if base == "fp32" else heads[slot].bfloat16().float()
            torch.testing.assert_close(found[row], hidden[row] @ kept.T, atol=1e-4, rtol=0)
        else:
            assert torch.equal(found[row], of_base[row])
    assert torch.equal(found[4], _last_logits(model, world, compute, [1] * len(TEXTS))[4])


@pytest.mark.parametrize(("precision", "stored"), [("fp32", 4), ("int8", 2)])
def test_a_rank_holds_no_more_than_was_counted(precision: Precision, stored: int, tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", hidden_size=HIDDEN, vocab_size=VOCABULARY)
    with open_checkpoint(model) as checkpoint:
        compute = native_ranks(precision=precision)(checkpoint, read_config(model), SingleRank(), 64)
    head = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))
    taken, none = (compute.prepare_adapter(AdapterWeights(whole_head=one)).num_bytes for one in (head, None))
    assert isinstance(compute, NativeCompute)
    compute.close()
    # outputs are padded to panels of 32, of which each has 24 bytes twice
    panels = -(-VOCABULARY // 32)
    assert VOCABULARY * HIDDEN * stored <= taken - none <= panels * 32 * HIDDEN * stored + 64 * panels


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", hidden_size=HIDDEN, vocab_size=VOCABULARY)
    with open_checkpoint(model) as checkpoint:
        compute = native_ranks()(checkpoint, read_config(model), SingleRank(), 64)
    with pytest.raises(AdapterError, match="were expected"):
        compute.prepare_adapter(AdapterWeights(whole_head=torch.zeros(VOCABULARY, HIDDEN - 1)))
    assert isinstance(compute, NativeCompute)
    compute.close()
