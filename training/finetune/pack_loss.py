"""The loss of a pack: cross-entropy of the learned tokens of its chats, which do not see each other."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.finetune.base_model import takes_positions_of_logits
from training.finetune.errors import FinetuneError
from training.finetune.rendering import TokenChat

_TOLERANCE = 1e-3  # of a logit, between two runs that differ in another chat


class PackModel:
    """A model that computes packs, one at a time.

    Positions begin anew with each chat. From them transformers makes a mask in which a token attends only to
    its own chat; `require_separate` checks that this holds for the model.

    Args:
        model: PEFT's model, or a causal model of transformers.
        bf16: Products are computed in bf16.
    """

    def __init__(self, model: Any, *, bf16: bool) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.model = model
        self._keep = takes_positions_of_logits(base)
        self._bf16 = bf16

    def logits(self, chats: Sequence[TokenChat], wanted: Tensor) -> Tensor:
        """Compute logits.

        Args:
            wanted: Positions in the pack, [n].

        Returns:
            fp32 [n, vocab].
        """
        tokens = torch.tensor([token for chat in chats for token in chat.tokens])
        positions = torch.cat([torch.arange(len(chat.tokens)) for chat in chats])
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._keep else {}
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            found: Tensor = self.model(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, **options
            ).logits[0]
        return (found if self._keep else found[wanted]).float()

    def loss(self, chats: Sequence[TokenChat]) -> tuple[Tensor, int]:
        """Return the sum of the learned tokens' losses, in nats, and their number."""
        learned = torch.tensor([is_answer for chat in chats for is_answer in chat.answers]).nonzero()[:, 0]
        tokens = torch.tensor([token for chat in chats for token in chat.tokens])
        logits = self.logits(chats, learned - 1)
        return F.cross_entropy(logits, tokens[learned], reduction="sum"), len(learned)

    @torch.no_grad()
    def mean_loss(self, packs: Sequence[Sequence[TokenChat]]) -> float:
        """Return the mean loss of packs, in nats per learned token."""
        self.model.eval()
        total, count = 0.0, 0
        for chats in packs:
            loss, learned = self.loss(chats)
            total += float(loss)
            count += learned
        return total / count

    @torch.no_grad()
    def require_separate(self, chats: Sequence[TokenChat]) -> None:
        """Check that the second chat of a pack does not depend on the first.

        Raises:
            FinetuneError: It does.
        """
        self.model.eval()
        first, second = chats[0], chats[1]
        size = len(first.tokens)
        changed = TokenChat(first.line, first.tokens[::-1], first.answers)
        wanted = torch.arange(size, size + len(second.tokens))
        left, right = (self.logits([one, second], wanted) for one in (first, changed))
        if not torch.allclose(left, right, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise FinetuneError(
                "This model sees across the chats of a pack (it has layers that transformers does not mask); "
                "take `--no-packing`"
            )
