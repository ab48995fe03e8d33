"""A GGUF file holds the model of the directory: the same config in every field, and the same tensors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.config.whole_norms import with_whole_norms
from services.worker.gguf.gguf_config import ARCHITECTURES
from tests.kits.families.gguf_files import write_family_gguf
from tests.kits.families.models import ENTRIES, save_model

SLIDING, FULL = "sliding_attention", "full_attention"


def kinds(count: int, every: int) -> list[str]:
    """Kinds of layers as llama.cpp knows them: each `every`th one sees everything."""
    return [FULL if (index + 1) % every == 0 else SLIDING for index in range(count)]


# architecture of GGUF -> the entry, and what is changed in it to be like the published models
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16, "layer_types": kinds(3, 2)}),
    "gemma3": (
        "gemma3",
        {
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "layer_types": kinds(7, 6),
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
                FULL: {"rope_type": "default", "rope_theta": 50000.0},
            },
        },
    ),
    "granite": ("granite", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
    "olmo2": ("olmo2", {}),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "glm4": ("glm4", {}),
    "chatglm": ("glm", {}),
    "command-r": ("cohere", {}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "phi2": ("phi", {}),
    "nemotron": ("nemotron", {}),
    "gptneox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {}),
    "falcon": ("falcon", {}),
    "mpt": ("mpt, clipped", {}),
    "phi3": ("phi3", {}),
    "qwen2moe": ("qwen2_moe", {"mlp_only_layers": []}),
    "qwen3moe": ("qwen3_moe", {"mlp_only_layers": []}),
    "olmoe": ("olmoe", {}),
    "granitemoe": ("granitemoe", {}),
    "gpt-oss": (
        "gpt_oss",
        {"layer_types": kinds(3, 2), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "bitnet": ("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True}),
    "glm4moe": ("glm4_moe", {}),
    "deepseek2": ("deepseek_v2", {}),
}
_ELSEWHERE = {"qwen2", "qwen3"}  # `checkpoint/test_engine_gguf.py`, with all forms of positions


def test_every_architecture_of_gguf_is_in_the_table() -> None:
    assert FILES.keys() | _ELSEWHERE == ARCHITECTURES.keys()


VARIANTS = {
    "deepseek2, lite": ("deepseek2", "deepseek_v2, lite", {}),
    "deepseek2, joined": ("deepseek2", "deepseek_v3", {}),
    "deepseek2, v3": ("deepseek2", "deepseek_v3", {}),
    "phi3, long": ("phi3", "phi3, long", {}),
    "phi3, partial": ("phi3", "phi3, partial", {}),
    "falcon, new": ("falcon", "falcon, new", {}),
    "mixtral": ("llama", "mixtral", {}),
    "olmo3": ("olmo2", "olmo3", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "stablelm, parallel": ("stablelm", "stablelm, parallel", {}),
}


@pytest.mark.parametrize("variant", [*FILES, *VARIANTS])
def test_a_file_is_the_model_of_the_directory(variant: str, tmp_path: Path) -> None:
    architecture, name, changes = VARIANTS.get(variant) or (variant, *FILES[variant])
    entry = ENTRIES[name]
    directory = save_model(replace(entry, fields=entry.fields | changes), tmp_path / "m")
    path = write_family_gguf(directory, tmp_path / "m.gguf", architecture, joined="joined" in variant)
    config, wanted = read_config(path), with_whole_norms(read_config(directory))
    assert config == wanted
    with open_checkpoint(path) as one, open_checkpoint(directory) as other:
        stored, given = (open_source(each, config, SingleRank()) for each in (one, other))
        offset = read_config(directory).final_norm.offset
        for tensor in given.tensors:
            shift = offset if tensor.endswith("norm.weight") else 0.0
            assert torch.equal(stored.read(tensor), given.read(tensor) + shift), tensor


def test_experts_whose_groups_the_file_does_not_tell_are_refused(tmp_path: Path) -> None:
    entry = ENTRIES["deepseek_v3"]
    fields = {"n_routed_experts": 256, "moe_intermediate_size": 4, "n_group": 1, "topk_group": 1}
    directory = save_model(replace(entry, fields=entry.fields | fields), tmp_path / "m")
    path = write_family_gguf(directory, tmp_path / "m.gguf", "deepseek2")
    with pytest.raises(ModelError, match=r"expert_group_count` must be given.*convert the model anew"):
        read_config(path)
