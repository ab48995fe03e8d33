"""A mixture of experts: the router's choice, and each expert once per step over the rows that chose it.

Every rank has all experts, and of each its share of the inner features. A row's result depends on that row
only: its experts' outputs are added in the order of their numbers, whatever else is in the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import ExpertsWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.plain.layers.mlp import Mlp, activate
from services.worker.engine.plain.tile_rows import padded_rows

_TINY = 1e-20  # so that weights that are all 0 stay finite


def choose_experts(
    logits: Tensor, config: ExpertsConfig, selection_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights.

    Args:
        logits: Of the router, fp32 [tokens, experts].
        config: How they are scored and chosen.
        selection_bias: fp32 [experts], added for the choice only; or None.

    Returns:
        Numbers of experts, ascending, and weights, each [tokens, chosen].
    """
    if config.scoring == "softmax":
        scores = logits.softmax(-1)
    else:
        scores = logits.sigmoid() if config.scoring == "sigmoid" else logits
    wanted = scores if selection_bias is None else scores + selection_bias
    if config.groups > 1:
        grouped = wanted.view(len(wanted), config.groups, -1)
        best = grouped.topk(1 if config.group_score == "max" else 2).values.sum(-1)
        taken = torch.zeros_like(best, dtype=torch.bool)
        taken.scatter_(-1, _largest(best, config.chosen_groups), True)
        wanted = grouped.masked_fill(~taken.unsqueeze(-1), -torch.inf).flatten(-2)
    experts = _largest(wanted, config.chosen).sort(-1).values
    weights = scores.gather(-1, experts)
    if config.scoring == "softmax_chosen":
        weights = weights.softmax(-1)
    if config.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return experts, weights * config.scale


def _largest(values: Tensor, count: int) -> Tensor:
    """Where the largest values of each row are; of equal ones the first ones, unlike `topk`."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


class Experts:
    """The experts of one layer, with those that every token takes; ends with one all-reduce."""

    def __init__(self, weights: ExpertsWeights, config: ExpertsConfig, collectives: Collectives) -> None:
        self.config = config
        self.weights = weights
        self.collectives = collectives
        self.shared = (
            Mlp(weights.shared, config.shared, collectives)
            if config.shared is not None and weights.shared is not None
            else None
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        w = self.weights
        logits = F.linear(hidden.float(), w.router, w.router_bias)
        experts, shares = choose_experts(logits, self.config, w.selection_bias)
        total = torch.zeros_like(hidden)
        for number in sorted(set(experts.flatten().tolist())):
            rows, positions = (experts == number).nonzero(as_tuple=True)
            # in whole tiles, so that a row's result does not depend on how many chose the expert
            output = self._expert(number, padded_rows(hidden[rows]))[: len(rows)]
            total.index_add_(0, rows, output * shares[rows, positions, None].to(output.dtype))
        if self.shared is not None:
            output = F.linear(self.shared.inner(hidden), self.shared.down.weight)
            if w.shared_gate is not None:
                output = output * F.linear(hidden, w.shared_gate).sigmoid()
            total += output
        self.collectives.all_reduce_sum(total)
        return total

    def _expert(self, number: int, hidden: Tensor) -> Tensor:
        """This rank's part of an expert's output, [rows, hidden]; its bias is in that of rank 0."""
        w = self.weights
        up_bias = None if w.gate_up_bias is None else w.gate_up_bias[number]
        inner = activate(self.config.expert, F.linear(hidden, decoded(w.gate_up[number]), up_bias))
        down_bias = None if w.down_bias is None or self.collectives.rank else w.down_bias[number]
        return F.linear(inner, decoded(w.down[number]), down_bias)
