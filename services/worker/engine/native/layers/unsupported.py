"""What of a model the kernels do not compute; it is then served by the plain path."""

from services.worker.engine.config.layer import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    NormConfig,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.experts.packed_experts import unsupported_experts
from services.worker.engine.native.library import MAX_HEAD_DIM


def unsupported(config: ModelConfig) -> str | None:
    """The reason why the kernels cannot compute a model, as the end of a sentence; None if they can."""
    if config.latent:
        return "the kernels do not compute latent attention"
    if config.head_dim > MAX_HEAD_DIM:
        return f"the kernels are for heads of at most {MAX_HEAD_DIM} dimensions, not {config.head_dim}"
    return next(filter(None, map(_unsupported_layer, dict.fromkeys(config.layers))), None)


def _unsupported_layer(layer: LayerConfig) -> str | None:
    if layer.parallel and (layer.post_attention_norm or layer.post_mlp_norm):
        return "the kernels compute no norms after the two parts of a parallel layer"
    if isinstance(layer.mlp, ExpertsConfig):
        mlp_norm, reason = None, unsupported_experts(layer.mlp)
        if reason is not None:
            return reason
    else:
        mlp_norm = layer.mlp.inner_norm
    cut = (*_cut_norms(layer.attention), mlp_norm)
    if any(norm is not None and (norm.kind != "rms" or norm.bias) for norm in cut):
        return "the kernels compute no layer norm over what several ranks have"
    return None


def _cut_norms(attention: AttentionConfig) -> tuple[NormConfig | None, ...]:
    heads = attention.qk_norm
    return attention.output_norm, heads.norm if heads is not None and heads.scope == "all" else None
