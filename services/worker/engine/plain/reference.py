"""The oracle of the engine: one sequence, the whole weights, no batch, no cache, no ranks.

Deliberately slow and written apart from the fast path (own rotary embedding, number by number, own masks,
repeated KV heads), so that a mistake in one does not hide in the other. Tests compare; nothing serves from
it. It computes the layers of Llama, with windows, biases and norms of heads, and refuses others: for those
transformers is the oracle (`tests/kits/families`).
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.layer import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    QueryKeyNorm,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE


class ReferenceDecoder:
    """A decoder that recomputes everything for every token.

    Raises:
        ValueError: The model has something that is not computed here.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, pages: PagePolicy | None = None) -> None:
        if config != llama_like(config):
            raise ValueError(f"models of {config.architecture} are compared with transformers, not with this")
        self.config, self._pages = config, pages
        self._read = open_source(checkpoint, config, SingleRank()).read

    def logits(self, token_ids: list[int]) -> Tensor:
        """Logits after each token, [tokens, vocab]."""
        c = self.config
        table = self._read("model.embed_tokens.weight")
        hidden = table[torch.tensor(token_ids)]
        for index in range(c.num_layers):
            name = f"model.layers.{index}"
            normed = self._norm(hidden, f"{name}.input_norm")
            hidden = hidden + self._attention(normed, name, index)
            hidden = hidden + self._mlp(
                self._norm(hidden, f"{name}.mlp_norm"), name, c.layers[index].dense_mlp
            )
        hidden = self._norm(hidden, "model.norm")
        if c.tied_embeddings:
            return hidden @ table.T
        return hidden @ self._read("lm_head.weight").T

    def generate(self, token_ids: list[int], count: int) -> list[int]:
        """The likeliest continuation, token by token."""
        tokens = list(token_ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(token_ids) :]

    def _attention(self, hidden: Tensor, layer: str, index: int) -> Tensor:
        c, tokens, name = self.config, len(hidden), f"{layer}.self_attn"
        attention = c.layers[index].attention
        # [heads, tokens, head_dim]
        queries, keys, values = (
            self._linear(hidden, f"{name}.{part}", attention.qkv_bias)
            .view(tokens, -1, c.head_dim)
            .transpose(0, 1)
            for part in ("q_proj", "k_proj", "v_proj")
        )
        if attention.qk_norm:
            queries, keys = self._norm(queries, f"{name}.q_norm"), self._norm(keys, f"{name}.k_norm")
        group = c.num_heads // c.num_kv_heads
        queries, keys = (
            self._rotate(queries, attention.rope),
            self._rotate(keys, attention.rope).repeat_interleave(group, dim=0),
        )
        seen = torch.ones(tokens, tokens).tril()
        if attention.window:
            seen = seen.triu(1 - attention.window)
        elif self._pages:
            seen = seen * pages_seen(self._pages, tokens)
        mixed = self._mix(queries, keys, values.repeat_interleave(group, dim=0), seen, index)
        flat = mixed.transpose(0, 1).reshape(tokens, -1)
        return self._linear(flat, f"{name}.o_proj", attention.output_bias)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, layer: int) -> Tensor:
        """Values [heads, tokens, head_dim] by the queries' scores, where `seen` is not 0, in any layer."""
        scores = queries @ keys.transpose(1, 2) / self.config.head_dim**0.5
        mixed: Tensor = scores.masked_fill(seen == 0, -torch.inf).softmax(-1) @ values
        return mixed

    def _mlp(self, hidden: Tensor, layer: str, shape: MlpConfig) -> Tensor:
        name = f"{layer}.mlp"
        gate = F.silu(self._linear(hidden, f"{name}.gate_proj", shape.bias))
        up = self._linear(hidden, f"{name}.up_proj", shape.bias)
        return self._linear(gate * up, f"{name}.down_proj", shape.down_bias)

    def _rotate(self, states: Tensor, rope: RopeConfig | None) -> Tensor:
        assert rope is not None
        half = self.config.head_dim // 2
        angles = torch.tensor(
            [
                [position * frequency(rope, pair, half, position) for pair in range(half)]
                for position in range(states.shape[1])
            ]
        )
        first, second = states[..., :half], states[..., half:]
        cos, sin = angles.cos() * amplitude(rope), angles.sin() * amplitude(rope)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        weight = self._read(f"{name}.weight")
        return hidden / torch.sqrt(hidden.pow(2).mean(-1, keepdim=True) + self.config.final_norm.eps) * weight

    def _linear(self, hidden: Tensor, name: str, bias: bool) -> Tensor:
        product: Tensor = hidden @ self._read(f"{name}.weight").T
        return product + self._read(f"{name}.bias") if bias else product


def llama_like(config: ModelConfig) -> ModelConfig:
    """The config without all that is not computed here."""
    norm = NormConfig(eps=config.final_norm.eps)
    layers = []
    for layer in config.layers:
        given, mlp = layer.attention, layer.mlp
        attention = AttentionConfig(
            scale=config.head_dim**-0.5,
            rope=given.rope and replace(given.rope, dim=config.head_dim, factors=()),
            window=given.window,
            qkv_bias=given.qkv_bias,
            output_bias=given.output_bias,
            qk_norm=given.qk_norm and QueryKeyNorm(norm=norm),
        )
        if isinstance(mlp, MlpConfig):
            mlp = MlpConfig(inner=mlp.inner, bias=mlp.bias, down_bias=mlp.down_bias)
        else:
            mlp = MlpConfig(inner=0)
        layers.append(LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm))
    return ModelConfig(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        context_length=config.context_length,
        layers=tuple(layers),
        final_norm=norm,
        tied_embeddings=config.tied_embeddings,
    )


def pages_seen(policy: PagePolicy, tokens: int) -> Tensor:
    """Which tokens see which before them under a policy, [tokens, tokens] of zeros and ones."""
    seen = torch.zeros(tokens, tokens)
    for token in range(tokens):
        own = token // BLOCK_SIZE
        pages = {*range(policy.sinks), *range(max(0, own - policy.recent), own + 1)}
        pages |= set(range(0, own, policy.stride)) if policy.stride else set()
        for page in pages:
            seen[token, page * BLOCK_SIZE : (page + 1) * BLOCK_SIZE] = 1
    return seen


def frequency(rope: RopeConfig, pair: int, half: int, position: int) -> float:
    """Radians per position of one pair of a head's `half` pairs of dimensions."""
    theta = rope.theta
    if rope.kind == "dynamic":
        excess = max(position + 1, rope.original_length) / rope.original_length - 1
        theta *= math.pow(1 + rope.factor * excess, half / (half - 1))
    plain = math.pow(theta, -pair / half)
    stretched, share = plain / rope.factor, 0.0
    if rope.kind == "linear":
        share = 1.0
    if rope.kind == "llama3":
        wavelength = 2 * math.pi / plain
        if wavelength >= rope.original_length / rope.low_freq_factor:
            share = 1.0
        elif wavelength > rope.original_length / rope.high_freq_factor:
            span = rope.high_freq_factor - rope.low_freq_factor
            share = (rope.high_freq_factor - rope.original_length / wavelength) / span
    if rope.kind == "yarn":
        # the pair that makes this many rotations within the original length
        low, high = (
            half * math.log(rope.original_length / (2 * math.pi * rotations), rope.theta)
            for rotations in (rope.beta_fast, rope.beta_slow)
        )
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        share = min(1.0, max(0.0, (pair - low) / ((high - low) or 0.001)))
    return share * stretched + (1 - share) * plain


def amplitude(rope: RopeConfig) -> float:
    """The factor of cosines and sines."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor:
        return rope.attention_factor
    growth = 0.1 * math.log(rope.factor)
    if rope.mscale and rope.mscale_all_dim:
        return (1 + rope.mscale * growth) / (1 + rope.mscale_all_dim * growth)
    return 1 + growth
