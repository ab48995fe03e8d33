"""A head that an adapter brings as a whole gives what PEFT gives, beside plain LoRA and the base."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.inspection import inspect_adapter
from services.worker.engine.adapters.own_share import own_share
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from tests.kits.adapters.comparisons import Kind, adapter_files, check_mixed_adapters, check_same_bits
from tests.kits.adapters.handmade import DEMO, Tensors, demo_base, demo_tensors, pair, refusal, write_peft
from tests.kits.engine.rank_threads import native_compute, plain_compute
from tests.kits.families.comparisons import tiled_compute
from tests.kits.families.compiled import FORMS, compiled
from tests.kits.families.models import family_model

COMPILED = targets()
needs_kernels = pytest.mark.skipif(not COMPILED, reason="the kernels are for x86-64 with AVX2")
HEAD = "base_model.model.lm_head.weight"
# gpt2, gemma2 and cohere tie the base's head to the embedding; some scale or cap logits
FAMILIES = {"llama": 2, "gemma2": 1, "gpt2": 2, "cohere": 2, "gpt_neox": 1, "granite": 2, "mixtral": 1}
KIND: Kind = "whole head"
KINDS: tuple[Kind, ...] = ("whole head", "whole heads")  # beside a plain LoRA, and beside another one


@needs_kernels
@pytest.mark.parametrize(("family", "world"), FAMILIES.items())
def test_compiled_logits_equal_those_of_peft(family: str, world: int) -> None:
    check_mixed_adapters(family, 16, 3 - world, native_compute, KIND)


@needs_kernels
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_heads_of_several_adapters_equal_those_of_peft(family: str, world: int, kind: Kind) -> None:
    check_mixed_adapters(family, 16, world, native_compute, kind)


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", COMPILED)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_bits_do_not_depend_on_who_shares_the_batch(form: str, target: str, kind: Kind) -> None:
    check_same_bits("llama", 16, 2, compiled(FORMS[form], target, threads=2), kind)


@pytest.mark.parametrize(("family", "world"), FAMILIES.items())
def test_logits_equal_those_of_peft(family: str, world: int) -> None:
    check_mixed_adapters(family, 16, world, tiled_compute, KIND)


def test_untiled_steps_equal_peft() -> None:
    check_mixed_adapters("llama", 16, 2, plain_compute, KIND)


@pytest.mark.parametrize("world", [1, 2])
def test_bits_do_not_depend_on_who_shares_the_batch(world: int) -> None:
    check_same_bits("gemma2", 16, world, tiled_compute, KIND)


def test_ranks_have_what_a_description_says() -> None:
    model = family_model("llama").directory
    base, source = BaseModel.of(model, read_config(model)), adapter_files("llama", 16, KIND)["b"]
    adapter = read_adapter(source, base)
    assert adapter.head is not None
    for world in (1, 2, 3):
        shares = [own_share(adapter, base, rank, world) for rank in range(world)]
        assert sum(share.num_bytes for share in shares) == adapter.describe(world).num_bytes
        heads = [share.whole_head for share in shares if share.whole_head is not None]
        np.testing.assert_array_equal(np.concatenate([head.numpy() for head in heads]), adapter.head)


def whole_head(value: float = 0.5) -> NDArray[np.float32]:
    """Of the demo model."""
    config = demo_base().config
    return np.full((config.vocab_size, config.hidden_size), value, np.float32)


def test_a_head_counts_as_memory_and_changes_the_fingerprint(tmp_path: Path) -> None:
    plain = inspect_adapter(write_peft(tmp_path / "plain"), DEMO)
    found = [
        inspect_adapter(
            write_peft(
                tmp_path / str(value), demo_tensors() | {HEAD: whole_head(value)}, modules_to_save=["lm_head"]
            ),
            DEMO,
        )
        for value in (0.5, 0.25)
    ]
    for one in found:
        assert one.num_bytes == plain.num_bytes + whole_head().nbytes
        assert one.targets == ("lm_head", *plain.targets)
    assert len({one.fingerprint for one in (plain, *found)}) == 3


def _with_value(value: float) -> Tensors:
    head = whole_head()
    head[3, 4] = value
    return {HEAD: head}


WRONG: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "an embedding": (
        {},
        {"modules_to_save": ["embed_tokens"]},
        "`modules_to_save` has 'embed_tokens', and only the",
    ),
    "an embedding beside it": (
        {HEAD: whole_head()},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        "`modules_to_save` has 'embed_tokens', and only the output head (lm_head) is served as a whole",
    ),
    "a part of its name": ({HEAD: whole_head()}, {"modules_to_save": ["head"]}, "only the output head"),
    "no list": (
        {HEAD: whole_head()},
        {"modules_to_save": {"lm_head": 1}},
        "must be a list of names of modules",
    ),
    "numbers": ({HEAD: whole_head()}, {"modules_to_save": [1]}, "must be a list of names of modules"),
    "not said": ({HEAD: whole_head()}, {}, "is not the base's"),
    "not there": ({}, {}, "holds no lm_head.weight, which `modules_to_save` names"),
    "a vocabulary of its own": ({HEAD: whole_head()[:-1]}, {}, "without a vocabulary of its own"),
    "a row": ({HEAD: whole_head()[0]}, {}, "without a vocabulary of its own"),
    "no number": (_with_value(np.nan), {}, f"tensor {HEAD} has values that are no finite numbers"),
    "infinite": (_with_value(np.inf), {}, f"tensor {HEAD} has values that are no finite numbers"),
    "beyond fp32": (_with_value(3e38), {}, "the logits of its head are beyond fp32"),
    "whole numbers": ({HEAD: whole_head().astype(np.int32)}, {}, "has type I32, supported: BF16, F16, F32"),
    "many heads": (
        {HEAD: whole_head(), HEAD.replace("lm_head", "lm_head.base_layer"): whole_head()},
        {},
        "module lm_head has two such tensors",
    ),
    "a bias": (
        {HEAD: whole_head(), HEAD.replace("weight", "bias"): whole_head()[:, 0].copy()},
        {},
        "is no matrix of a LoRA",
    ),
    "a target as well": (
        {HEAD: whole_head()} | pair("lm_head", *whole_head().shape),
        {},
        "lm_head is a target and a whole module",
    ),
    "other names": ({"base_model.model.lm_head.modules_to_save.weight": whole_head()}, {}, "save_pretrained"),
    "tied": ({HEAD: whole_head()}, {"ensure_weight_tying": True}, "`ensure_weight_tying` is set"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_heads(tmp_path: Path, name: str) -> None:
    tensors, fields, sentence = WRONG[name]
    said = {} if name == "not said" else {"modules_to_save": ["lm_head"]}
    found = refusal(write_peft(tmp_path / "a", demo_tensors() | tensors, **(said | fields)))
    assert sentence in found
    assert str(tmp_path / "a") in found


def test_a_head_alone_is_refused(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "a", {HEAD: whole_head()}, modules_to_save=["lm_head"])
    assert "holds no matrices of an adapter" in refusal(source)


def test_a_head_with_a_bias_is_refused(tmp_path: Path) -> None:
    model = family_model("phi").directory
    base = BaseModel.of(model, read_config(model))
    found = refusal(write_peft(tmp_path / "a", modules_to_save=["lm_head"]), base)
    assert "a head with a bias is not served as a whole" in found
