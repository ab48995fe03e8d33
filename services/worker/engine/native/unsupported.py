"""Says what of a model the kernels cannot compute; such a model is computed in plain torch operations."""

from dataclasses import replace

from services.worker.engine.config.layer_config import LayerConfig, MlpConfig, NormConfig, QueryKeyNorm
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.native.library import MAX_HEAD_DIM


def unsupported(config: ModelConfig) -> str | None:
    """The reason why the kernels cannot compute the model; None if they can."""
    if config.head_dim > MAX_HEAD_DIM:
        return f"the kernels are for heads of at most {MAX_HEAD_DIM} dimensions, not {config.head_dim}"
    ropes = {layer.attention.rope for layer in config.layers}
    plain = (config.head_bias, config.embedding_scale, config.learned_positions) == (False, 1.0, 0)
    plain = plain and (config.logit_scale, config.logit_softcap) == (1.0, 0.0)
    if len(ropes) > 1 or not plain or not all(_like_llama(config, layer) for layer in config.layers):
        return f"there are no kernels yet for all that models of {config.architecture} compute"
    return None


def _like_llama(config: ModelConfig, layer: LayerConfig) -> bool:
    """Whether a layer differs from one of Llama only in sizes, window and biases, and in norms of heads."""
    norm, attention, mlp = NormConfig(eps=config.final_norm.eps), layer.attention, layer.mlp
    if not isinstance(mlp, MlpConfig) or attention.rope is None or attention.rope.dim != config.head_dim:
        return False
    scale = config.head_dim**-0.5
    free = replace(attention, window=0, qkv_bias=False, output_bias=False, qk_norm=None, scale=scale)
    return (
        layer == LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm)
        and attention.qk_norm in (None, QueryKeyNorm(norm=norm))
        and free == type(attention)(scale=scale, rope=attention.rope)
        and attention.scale == scale
        and mlp == MlpConfig(inner=mlp.inner, bias=mlp.bias, down_bias=mlp.down_bias)
        and config.final_norm == norm
    )
