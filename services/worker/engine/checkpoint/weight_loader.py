"""Loads this rank's shard of the weights, layer by layer; the functions return plain tensors.

`layers/` says which slices a rank has, `weight_source.py` reads them. All ranks call the same functions in
the same order.
"""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, Matrix
from services.worker.engine.checkpoint.layer_weights import LayerWeights, NormWeights
from services.worker.engine.checkpoint.layers.attention_loader import load_attention
from services.worker.engine.checkpoint.layers.mlp_loader import load_experts, load_mlp
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_source import WeightSource
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import ExpertsConfig, NormConfig
from services.worker.engine.config.model import ModelConfig

__all__ = ["WeightSource"]


def open_source(checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives) -> WeightSource:
    """Checks, before anything is read, that the model can be split and that files and config agree.

    Raises:
        ModelError: They do not: a tensor is missing, misshapen, of an unknown type, or superfluous.
    """
    config.check_split(collectives.world)
    return WeightSource(checkpoint, collectives, checkpoint.table.locate(config))


def load_layer(
    source: WeightSource, config: ModelConfig, index: int, dtype: torch.dtype | None = torch.float32
) -> LayerWeights:
    """Loads one layer of this rank; `dtype` of the matrices, None for the stored one."""
    name, layer = f"model.layers.{index}", config.layers[index]

    def norm(part: str, shape: NormConfig | None) -> NormWeights | None:
        return None if shape is None else source.load_norm(f"{name}.{part}", shape)

    return LayerWeights(
        attention=load_attention(source, config, index, dtype),
        mlp=(
            load_experts(source, f"{name}.mlp", layer.mlp, config.hidden_size, dtype)
            if isinstance(layer.mlp, ExpertsConfig)
            else load_mlp(source, f"{name}.mlp", layer.mlp, dtype)
        ),
        input_norm=norm("input_norm", layer.input_norm),
        post_attention_norm=norm("post_attention_norm", layer.post_attention_norm),
        mlp_norm=norm("mlp_norm", layer.mlp_norm),
        post_mlp_norm=norm("post_mlp_norm", layer.post_mlp_norm),
    )


def load_embedding(
    source: WeightSource, config: ModelConfig, dtype: torch.dtype | None = torch.float32
) -> Matrix:
    """This rank's rows of the embedding table (`WeightSource.own_token_ids`), [ids of this rank, hidden]."""
    own = source.own_token_ids(config.vocab_size)
    return _in_order(source.read_matrix("model.embed_tokens.weight", own, dtype=dtype))


def load_head(source: WeightSource, config: ModelConfig, dtype: torch.dtype | None = torch.float32) -> Matrix:
    """This rank's rows of the output matrix, as `load_embedding`; for models that do not tie the two."""
    own = source.own_token_ids(config.vocab_size)
    return _in_order(source.read_matrix("lm_head.weight", own, dtype=dtype))


def _in_order(matrix: Matrix) -> Matrix:
    """A matrix, as floats if its inputs have another order: rows of a table are decoded one by one."""
    return matrix.decode() if isinstance(matrix, EncodedMatrix) and matrix.order is not None else matrix


def load_head_bias(source: WeightSource, config: ModelConfig) -> Tensor | None:
    """The head's bias for this rank's token ids, fp32 [ids of this rank]; None if there is none."""
    if not config.head_bias:
        return None
    return source.read("lm_head.bias", source.own_token_ids(config.vocab_size))


def load_positions(source: WeightSource, config: ModelConfig) -> Tensor | None:
    """The table of learned positions, fp32 [positions, hidden], on every rank; None if there is none."""
    return source.load_replicated("model.positions.weight") if config.learned_positions else None


def load_final_norm(source: WeightSource, config: ModelConfig) -> NormWeights:
    """The norm before the head, [hidden], fp32."""
    return source.load_norm("model.norm", config.final_norm)
