"""A config of a GGUF file, whose norms are stored whole: llama.cpp's converter adds the 1 of (1 + w)."""

from dataclasses import replace

from services.worker.engine.config.layer import LayerConfig, NormConfig
from services.worker.engine.config.model import ModelConfig


def with_whole_norms(config: ModelConfig) -> ModelConfig:
    """The same config with norms whose weights are stored whole."""
    return replace(
        config,
        final_norm=replace(config.final_norm, offset=0.0),
        layers=tuple(_layer(layer) for layer in config.layers),
    )


def _layer(layer: LayerConfig) -> LayerConfig:
    attention = layer.attention
    if attention.qk_norm is not None:
        norm = replace(attention.qk_norm.norm, offset=0.0)
        attention = replace(attention, qk_norm=replace(attention.qk_norm, norm=norm))
    return replace(
        layer,
        attention=attention,
        input_norm=_norm(layer.input_norm),
        post_attention_norm=_norm(layer.post_attention_norm),
        mlp_norm=_norm(layer.mlp_norm),
        post_mlp_norm=_norm(layer.post_mlp_norm),
    )


def _norm(norm: NormConfig | None) -> NormConfig | None:
    return None if norm is None else replace(norm, offset=0.0)
