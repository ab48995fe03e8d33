"""Says the MLPs and experts of a model in the keys of a GGUF file."""

from typing import Any

from services.worker.engine.config.layer_config import ExpertsConfig
from services.worker.engine.config.model_config import ModelConfig

_ONE_LENGTH = {"llama", "olmoe", "granitemoe"}  # experts have the length that MLPs have elsewhere
_GROUPED = {"glm4moe", "deepseek2"}
_SOFTMAX, _SIGMOID = 1, 2  # values of `expert_gating_func`


def mlp_keys(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the keys of dense MLPs and of experts."""
    mlps = [layer.mlp for layer in config.layers]
    experts = next((mlp for mlp in mlps if isinstance(mlp, ExpertsConfig)), None)
    dense = [mlp.inner for mlp in mlps if not isinstance(mlp, ExpertsConfig)]
    if experts is None:
        return {"feed_forward_length": dense[0]}
    keys: dict[str, Any] = {
        "feed_forward_length": dense[0] if dense else experts.expert.inner,
        "expert_count": experts.count,
        "expert_used_count": experts.chosen,
    }
    if architecture not in _ONE_LENGTH:
        keys["expert_feed_forward_length"] = experts.expert.inner
    if architecture == "qwen2moe" and experts.shared is not None:
        keys["expert_shared_feed_forward_length"] = experts.shared.inner
    if architecture in _GROUPED:
        shared = 0 if experts.shared is None else experts.shared.inner
        leading = next((i for i, mlp in enumerate(mlps) if isinstance(mlp, ExpertsConfig)), len(mlps))
        keys |= {
            "expert_shared_count": shared // experts.expert.inner,
            "expert_weights_scale": experts.scale,
            "expert_weights_norm": experts.normalize,
            "expert_gating_func": _SIGMOID if experts.scoring == "sigmoid" else _SOFTMAX,
            "leading_dense_block_count": leading,
        }
        if experts.groups > 1:
            keys |= {
                "expert_group_count": experts.groups,
                "expert_group_used_count": experts.chosen_groups,
            }
    return keys
