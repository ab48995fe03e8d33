"""A chat in a pack has the losses that it has alone, in many families; a model that leaks is refused."""

from typing import Any

import pytest
import torch

from tests.kits.families.entries import VOCABULARY
from tests.kits.families.models import random_model
from training.finetune.errors import FinetuneError
from training.finetune.pack_loss import PackModel
from training.finetune.rendering import TokenChat


def some_chats() -> list[TokenChat]:
    draw, chats = torch.Generator().manual_seed(5), []
    for size in (40, 13, 27):
        tokens = torch.randint(3, VOCABULARY, (size,), generator=draw).tolist()
        chats.append(TokenChat(1, tuple(tokens), tuple(index % 3 == 1 for index in range(size))))
    return chats


# gemma2, gemma3, olmo3 and cohere2 have layers with a window, shorter than the first chat
@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gemma2", "gemma3", "phi3", "olmo3", "cohere2", "granite"]
)
def test_packed_losses_are_those_of_each_chat_alone(name: str) -> None:
    model, chats = PackModel(random_model(name), bf16=False), some_chats()
    model.require_separate(chats)
    packed, learned = model.loss(chats)
    alone = [model.loss([chat]) for chat in chats]
    assert learned == sum(count for _, count in alone) == sum(chat.num_answers for chat in chats)
    assert float(packed) == pytest.approx(sum(float(loss) for loss, _ in alone), rel=1e-4)
    assert model.mean_loss([chats]) == pytest.approx(float(packed) / learned)


@torch.no_grad()
def test_learned_tokens_are_predicted_from_those_before() -> None:
    (chat, *_), model = some_chats(), random_model("llama")
    loss, _ = PackModel(model, bf16=False).loss([chat])
    rows: Any = model(torch.tensor([chat.tokens]), use_cache=False).logits[0].log_softmax(-1)
    wanted = sum(-rows[at - 1, token] for at, token in enumerate(chat.tokens) if chat.answers[at])
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)


def test_a_model_with_a_state_is_refused() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    config = AutoConfig.for_model("mamba", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)

    class Positionless:
        """The model's call takes no positions."""

        def __init__(self) -> None:
            self.forward = model.forward

        def eval(self) -> None:
            model.eval()

        def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any) -> Any:
            return model(input_ids=input_ids, **options)

    with pytest.raises(FinetuneError, match="sees across the chats of a pack"):
        PackModel(Positionless(), bf16=False).require_separate(some_chats())
