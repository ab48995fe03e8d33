"""Configs of models on the hub are read, with what they have beside; what would change results is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.engine.checkpoint.model_size import model_size
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from tests.kits.families.published import PUBLISHED
from tests.kits.families.published_experts import PUBLISHED_EXPERTS

ALL = PUBLISHED | PUBLISHED_EXPERTS
# millions, as their authors say
PARAMETERS = {
    "google/gemma-3-270m": 268,
    "openai-community/gpt2": 124,
    "EleutherAI/pythia-160m": 162,
    "bigcode/starcoder2-3b": 3030,
    "mistralai/Mixtral-8x7B-v0.1": 46703,
    "Qwen/Qwen3-30B-A3B": 30532,
    "Qwen/Qwen1.5-MoE-A2.7B": 14316,
    "tiiuae/falcon-7b": 6922,
    "mosaicml/mpt-7b": 6649,
}


def _read(directory: Path, raw: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(raw))
    return read_config(directory)


@pytest.mark.parametrize("name", ALL)
def test_models_of_the_hub(tmp_path: Path, name: str) -> None:
    raw, context_length = ALL[name]
    config = _read(tmp_path, raw)
    assert config.context_length == context_length
    millions = model_size(config).parameters / 1e6
    assert round(millions) == PARAMETERS.get(name, round(millions))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("google/gemma-3-270m", "use_bidirectional_attention", True),
        ("google/gemma-3-270m", "quantization_config", {"quant_method": "gptq"}),
        ("openai/gpt-oss-20b, as floats", "quantization_config", {"quant_method": "gptq"}),
        ("openai/gpt-oss-20b, as floats", "swiglu_limit", 5.0),
        ("deepseek-ai/DeepSeek-V2-Lite", "norm_topk_prob", True),
        ("deepseek-ai/DeepSeek-V2-Lite", "attention_bias", True),
        ("mosaicml/mpt-7b", "expansion_ratio", 2),
        ("tiiuae/falcon-7b", "apply_residual_connection_post_layernorm", True),
        ("microsoft/Phi-4-mini-instruct", "lm_head_bias", True),
        ("bigcode/starcoder2-3b", "mlp_type", "gated"),
    ],
)
def test_what_would_change_results_is_refused(tmp_path: Path, name: str, field: str, value: Any) -> None:
    raw, _ = ALL[name]
    with pytest.raises(ModelError, match=f"`{field}`|`{field}\\."):
        _read(tmp_path, raw | {field: value})


def test_long_contexts_have_the_long_factors(tmp_path: Path) -> None:
    raw, _ = PUBLISHED["microsoft/Phi-4-mini-instruct"]
    rope = _read(tmp_path, raw).rope
    assert (rope.dim, rope.factors[0], rope.factor) == (96, 2.0, 32.0)
    short = _read(tmp_path, raw | {"max_position_embeddings": 4096}).rope
    assert (short.factors[0], short.factor) == (1.0, 1.0)
