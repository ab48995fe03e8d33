"""What becomes of attention's scores: scale, soft cap, ALiBi, sinks; and the mix of values by them.

Layers with none of these but a scale use torch's fused attention, all others a softmax written out.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.config.layer import AttentionConfig


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How the scores of a layer's heads on this rank are treated.

    Attributes:
        scale: Multiplies them first.
        softcap: Then they are softcap * tanh(scores / softcap); 0: they are not.
        slopes: Of ALiBi, fp32 [heads]; or None.
        sinks: A logit of each head without a value, fp32 [heads]; or None.
    """

    scale: float
    softcap: float = 0.0
    slopes: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether there is nothing but a scale."""
        return not self.softcap and self.slopes is None and self.sinks is None


def score_rules(
    config: AttentionConfig, num_heads: int, own: range, sinks: Tensor | None, device: torch.device
) -> ScoreRules:
    """The rules of a layer for this rank's heads.

    Args:
        sinks: fp32 [own heads], or None.
        device: Where the scores will be.
    """
    slopes = None
    if config.alibi:
        slopes = (config.alibi_scale * alibi_slopes(num_heads)[own.start : own.stop]).to(device)
    return ScoreRules(config.scale, config.softcap, slopes, sinks)


def alibi_slopes(num_heads: int) -> Tensor:
    """Of all heads, fp32 [heads]: a geometric series (Press et al., 2022).

    If the number of heads is no power of two, the series of the next larger one is used: its second, fourth
    and so on first, then its first, third and so on.
    """
    whole = 1 << (num_heads - 1).bit_length()
    slopes = torch.tensor([2.0 ** (-8 * number / whole) for number in range(1, whole + 1)])
    if whole != num_heads:
        slopes = torch.cat((slopes[1::2], slopes[::2]))[:num_heads]
    return slopes


def _flash_takes(queries: Tensor, values: Tensor) -> bool:
    dim = queries.shape[-1]
    fits = dim % 8 == 0 and dim <= 256 and dim == values.shape[-1]  # those of latent attention differ
    return queries.is_cuda and queries.dtype == torch.bfloat16 and fits


def mix_values(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rules: ScoreRules,
    *,
    mask: Tensor | None,
    distances: Tensor | None,
    heads_are_rows: bool = False,
) -> Tensor:
    """Values by the softmax of the scores, [..., kv heads, group, rows, value_dim].

    Args:
        queries: [kv heads, heads of a group, tokens, head_dim]; or, if `heads_are_rows`, [sequences, kv
            heads, heads of a group, head_dim].
        keys: Four dimensions in the same order, with the keys' number in the third.
        values: The same.
        mask: Added to the scores, or if boolean the keys that are seen. None: all are, but if queries are
            tokens of a sequence, its last ones, only keys up to distance 0.
        distances: Position of each key less that of the query, as the mask is shaped; if ALiBi needs them or
            there is no mask.
        heads_are_rows: How the queries are laid out.
    """
    causal = mask is None and not heads_are_rows
    if rules.plain:
        if causal and distances is not None and queries.shape[-2] != keys.shape[-2]:
            if _flash_takes(queries, values):
                # its mask is aligned to the last key; the public function's is to the first
                flash = torch.ops.aten._scaled_dot_product_flash_attention
                return flash(queries, keys, values, is_causal=True, scale=rules.scale)[0]  # type: ignore[no-any-return]
            mask, causal = distances <= 0, False
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=rules.scale
        )

    def per_head(numbers: Tensor) -> Tensor:
        """[heads] -> a shape that fits the scores, [..., 1 for the keys]."""
        shape = (keys.shape[1], -1, 1) if heads_are_rows else (keys.shape[0], -1, 1, 1)
        return numbers.view(shape)

    scores = (queries @ keys.transpose(-1, -2)).float() * rules.scale
    if rules.softcap:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if rules.slopes is not None and distances is not None:
        scores = scores + per_head(rules.slopes) * distances
    if mask is None:
        if causal and distances is not None:
            scores = scores.masked_fill(distances > 0, -torch.inf)
    elif mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    else:
        scores = scores + mask
    if rules.sinks is not None:
        sinks = per_head(rules.sinks).expand(*scores.shape[:-1], 1)
        shares = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        shares = scores.softmax(-1)
    return shares.to(values.dtype) @ values
