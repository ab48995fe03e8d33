"""Quantized files computed as codes: near their own floats, the same on any ranks and in any batch."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.library import kernels
from services.worker.engine.native.structs.weights import WeightType
from services.worker.engine.native.weights import NativeWeights
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.rank_threads import (
    Blocks,
    make_model,
    native_ranks,
    new_sequence,
    plan_logits,
    some_tokens,
)

TARGETS = targets()
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q8_0"]
SHAPE = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3}
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tied = make_model(tmp_path_factory.mktemp("tied"), "llama", tie_word_embeddings=True, **SHAPE)
    apart = make_model(tmp_path_factory.mktemp("apart"), "llama", head_dim=16, **SHAPE)
    paths = tmp_path_factory.mktemp("files")
    found = {kind: write_gguf(apart, paths / f"{kind}.gguf", kind) for kind in KINDS}
    return found | {"tied": write_gguf(tied, paths / "tied.gguf", "Q4_0")}


def whole(text: list[int]) -> list[StepPlan]:
    return [StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[Blocks(64).chunk(1, 0, text)])]


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_codes_are_near_the_floats_of_the_file_on_any_ranks(files: dict[str, Path], kind: str) -> None:
    text = some_tokens(40, 1)
    wanted = plan_logits(files[kind], 1, whole(text))[-1]
    for target in TARGETS:
        for world in (1, 2, 3):
            compute = native_ranks(target, precision="codes", kv_dtype=torch.float16)
            found = plan_logits(files[kind], world, whole(text), compute=compute)[-1]
            assert relative(found, wanted) < 0.06  # activations have 8 bits


@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_a_token_has_the_same_bits_in_any_batch(files: dict[str, Path], kind: str) -> None:
    text, other = some_tokens(50, 2), some_tokens(30, 3)
    blocks = Blocks(64)
    plans = [StepPlan(step_id=1, admit=[new_sequence(1, text), new_sequence(2, other)])]
    plans.append(StepPlan(step_id=2, chunks=[blocks.chunk(2, 0, other[:29])]))
    for begin, end in pairwise([0, 7, 33, 49]):
        plans.append(StepPlan(step_id=3, chunks=[blocks.chunk(1, begin, text[begin:end])]))
    last = [blocks.chunk(2, 29, other[29:]), blocks.chunk(1, 49, text[49:])]
    plans.append(StepPlan(step_id=4, chunks=last))
    results = []
    for target in TARGETS:
        reference = plan_logits(files[kind], 1, whole(text), compute=native_ranks(target, precision="codes"))[
            -1
        ][-1]
        for threads in (1, 2):
            compute = native_ranks(target, threads, precision="codes")
            assert torch.equal(plan_logits(files[kind], 1, plans, compute=compute)[-1][-1], reference)
        results.append(reference)
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], atol=1e-3, rtol=0)


def test_a_tied_table_is_there_once_and_what_is_stored_as_floats_stays_so(files: dict[str, Path]) -> None:
    config = read_config(files["tied"])
    with open_checkpoint(files["tied"]) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        weights = NativeWeights.load(source, config, kernels(), "codes")
    assert weights.embedding.stored is weights.head
    assert {linear.type for layer in weights.layers for linear in layer.linears} == {WeightType.CODES}
    assert (weights.input_kinds.floats, weights.input_kinds.codes) == (False, True)


def test_a_share_that_begins_within_a_group_of_16_is_read_as_floats(files: dict[str, Path]) -> None:
    config = read_config(files["Q4_0"])
    with open_checkpoint(files["Q4_0"]) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        name = "model.layers.0.mlp.down_proj.weight"
        located = source.tensors[name]
        assert checkpoint.read_codes(located, columns=slice(8, 64)) is None
        part = checkpoint.read_codes(located, columns=slice(16, 64))
        assert isinstance(part, EncodedMatrix)
        assert part.group == 16
        assert torch.equal(part.decode(), source.read(name)[:, 16:64])
