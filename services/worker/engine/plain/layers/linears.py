"""Tensor-parallel layers in torch operators, with all communication of the model.

`checkpoint/weight_loader.py` decides which slice of a weight a rank holds. Column-parallel layers split the
output features and need no communication, row- parallel ones split the input features and end with an
all-reduce (Shoeybi et al., Megatron-LM, 2019). Activations between layers are whole on every rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.rank_shares import vocabulary_width
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig


class ColumnParallelLinear:
    """x @ W^T + b for this rank's rows of one or more matrices, fused into one: [tokens, sum of parts].

    Args:
        weight: [out of this rank, in].
        bias: [out of this rank], or None.
        name: As adapters name it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, name: str) -> None:
        self.weight = weight
        self.bias = bias
        self.name = name

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        """[tokens, in] -> [tokens, out of this rank]."""
        outputs = F.linear(hidden, self.weight, self.bias)
        if adapters is not None:
            adapters.add(self.name, hidden, outputs, self.bias)
        return outputs


class RowParallelLinear:
    """x @ W^T + b where each rank has some columns of W and the matching features of x; all-reduced.

    Args:
        weight: [out, in of this rank].
        bias: [out], added once, after the sum; or None.
        collectives: Adds up the ranks' partial sums.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, collectives: Collectives, name: str) -> None:
        self.weight = weight
        self.bias = bias
        self.collectives = collectives
        self.name = name

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        """[tokens, in of this rank] -> [tokens, out], whole on every rank."""
        partial = F.linear(hidden, self.weight)
        if adapters is not None:
            adapters.add(self.name, hidden, partial)
        self.collectives.all_reduce_sum(partial)
        return partial if self.bias is None else partial.add_(self.bias)


class VocabParallelEmbedding:
    """Rows of the embedding table by token id; each rank holds a range of ids, the last ranks maybe fewer.

    Args:
        weight: [ids of this rank, hidden].
        first: The first id of this rank.
        collectives: Adds up the ranks' rows, of which all but one are zeros.
    """

    def __init__(self, weight: Tensor, first: int, collectives: Collectives) -> None:
        self.weight = weight
        self.first = first
        self.collectives = collectives

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden], whole on every rank."""
        if self.collectives.world == 1:
            return F.embedding(token_ids, self.weight)
        rows, count = token_ids - self.first, self.weight.shape[0]
        if count:
            foreign = (rows < 0) | (rows >= count)
            hidden = F.embedding(rows.masked_fill_(foreign, 0), self.weight)
            hidden.masked_fill_(foreign.unsqueeze(1), 0.0)
        else:
            hidden = self.weight.new_zeros(len(token_ids), self.weight.shape[1])
        self.collectives.all_reduce_sum(hidden)
        return hidden


class VocabParallelHead:
    """Logits over the vocabulary: each rank computes those of its ids, rank 0 gets all.

    Args:
        weight: [ids of this rank, hidden]; the embedding's own when the model ties them.
        bias: [ids of this rank], or None.
        config: The model's, for the size of the vocabulary, and for the scale and soft cap of logits.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, config: ModelConfig, collectives: Collectives
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.vocab_size = config.vocab_size
        self.scale, self.softcap = config.logit_scale, config.logit_softcap
        self.collectives = collectives
        # every rank gathers the same width
        self._padding = vocabulary_width(config.vocab_size, collectives.world) - weight.shape[0]

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor | None:
        """[rows, hidden] -> [rows, vocab] on rank 0, None on the others."""
        own = F.linear(hidden, self.weight, self.bias)
        if adapters is not None:
            adapters.add("head", hidden, own, self.bias)
        if self.scale != 1.0:
            own = own * self.scale
        if self.softcap:
            own = self.softcap * torch.tanh(own / self.softcap)
        gathered = self.collectives.gather(F.pad(own, (0, self._padding)) if self._padding else own)
        if gathered is None or self.collectives.world == 1:
            return None if gathered is None else gathered[0]
        # [world, rows, ids of a rank] -> [rows, vocab]
        return gathered.transpose(0, 1).reshape(hidden.shape[0], -1)[:, : self.vocab_size]
