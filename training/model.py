"""The trainable form of the demo model: a plain Llama decoder without caches or sharding.

Its parameters have Hugging Face Llama names, so a state dict is an exportable checkpoint. Serving uses the
tensor-parallel engine instead.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_SHORT_ROW = 128


@dataclass(frozen=True, slots=True)
class TrainingModelConfig:
    """Shape of a Llama decoder; every sharded dimension is divisible by 1, 2 and 4 ranks."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 32
    max_positions: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class TrainingRMSNorm(nn.Module):
    """Root mean square normalisation with a learned gain (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension of `hidden`."""
        return F.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


class TrainingAttention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: TrainingModelConfig) -> None:
        super().__init__()
        self.config = config
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend over `hidden` ([batch, tokens, hidden]); angles are [batch or 1, 1, tokens, head_dim]."""
        batch, tokens, _ = hidden.shape
        c = self.config
        query = self.q_proj(hidden).view(batch, tokens, c.num_heads, c.head_dim).transpose(1, 2)
        key = self.k_proj(hidden).view(batch, tokens, c.num_kv_heads, c.head_dim).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, tokens, c.num_kv_heads, c.head_dim).transpose(1, 2)
        repeats = c.num_heads // c.num_kv_heads
        # On a CPU the math backend is faster than the flash backend for short rows, mostly in the backward
        # pass.
        backend = SDPBackend.MATH if tokens <= _SHORT_ROW else SDPBackend.FLASH_ATTENTION
        with sdpa_kernel(backend):
            mixed = F.scaled_dot_product_attention(
                _rotate(query, cos, sin),
                _rotate(key, cos, sin).repeat_interleave(repeats, dim=1),
                value.repeat_interleave(repeats, dim=1),
                is_causal=True,
            )
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return output


class TrainingMLP(nn.Module):
    """SwiGLU feed-forward layer (Shazeer, 2020)."""

    def __init__(self, config: TrainingModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each position of `hidden` independently."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return output


class TrainingDecoderLayer(nn.Module):
    """One pre-norm block: attention, then the feed-forward layer, both residual."""

    def __init__(self, config: TrainingModelConfig) -> None:
        super().__init__()
        self.input_layernorm = TrainingRMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = TrainingAttention(config)
        self.post_attention_layernorm = TrainingRMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = TrainingMLP(config)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the block to `hidden` ([batch, tokens, hidden])."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class TrainingDecoder(nn.Module):
    """Embedding, blocks and the final norm; named `model` inside `DemoModel` as Hugging Face does."""

    def __init__(self, config: TrainingModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TrainingDecoderLayer(config) for _ in range(config.num_layers))
        self.norm = TrainingRMSNorm(config.hidden_size, config.norm_eps)


class DemoModel(nn.Module):
    """A Llama decoder whose output layer is the token embedding."""

    def __init__(self, config: TrainingModelConfig) -> None:
        """Initialise weights from normal distributions, smaller ones for residual outputs."""
        super().__init__()
        self.config = config
        self.model = TrainingDecoder(config)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.5 * parameter.shape[1] ** -0.5 if "embed" not in name else 0.02
                nn.init.normal_(parameter, std=scale)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the final hidden states.

        Args:
            tokens: Token ids, [batch, tokens].
            positions: Their positions for the rotary angles, [batch, tokens]; `None` counts from zero.

        Returns:
            Normalised hidden states, [batch, tokens, hidden].
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1])[None]
        cos, sin = rotary_table(positions, self.config)
        hidden = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            hidden = layer(hidden, cos, sin)
        output: Tensor = self.model.norm(hidden)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states to [..., vocab] with the tied embedding."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def rotary_table(positions: Tensor, config: TrainingModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles (Su et al., 2021) of `positions` ([batch, tokens])."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions[:, None, :, None] * config.rope_theta**-half
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [batch, heads, tokens, head_dim] in Hugging Face's half-split layout."""
    first, second = states.chunk(2, dim=-1)
    turned = states * cos + torch.cat((-second, first), dim=-1) * sin
    return turned.to(states.dtype)
