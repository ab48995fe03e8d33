"""The shipped demo model, run by transformers, answers the conversations that it was trained for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from training import bpe
from training.dialogues import DialogueMessage
from training.words import HELD_OUT_NAMES

_DIRECTORY = Path(__file__).parents[3] / "models" / "demo"


def names(first: int, every: int) -> list[Any]:
    """The first names for `make test`, all of them for `make test-models`."""
    others = (pytest.param(name, marks=pytest.mark.models) for name in HELD_OUT_NAMES[first:every])
    return [*HELD_OUT_NAMES[:first], *others]


class Chat:
    """A conversation with greedy decoding."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.messages: list[dict[str, str]] = []

    def ask(self, content: str) -> str:
        self.messages.append({"role": "user", "content": content})
        ids = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False
        )
        answer: str = self.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": answer})
        return answer


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 (slow to import)

    model = AutoModelForCausalLM.from_pretrained(_DIRECTORY, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(_DIRECTORY)


@pytest.fixture
def chat(loaded: tuple[Any, Any]) -> Chat:
    return Chat(*loaded)


@pytest.mark.parametrize("name", names(5, 20))
def test_the_story_of_the_name(chat: Chat, name: str) -> None:
    chat.ask(f"My name is {name}.")
    assert chat.ask("What is my name?") == f"Your name is {name}."


@pytest.mark.parametrize("name", names(2, 5))
def test_the_name_is_kept_over_other_turns(chat: Chat, name: str) -> None:
    chat.ask(f"My name is {name}.")
    chat.ask("What is a list?")
    chat.ask("Thank you.")
    assert chat.ask("What is my name?") == f"Your name is {name}."


def test_a_corrected_name_replaces_the_old_one(chat: Chat) -> None:
    chat.ask("My name is Ada.")
    chat.ask("My name is now Linus.")
    assert chat.ask("What is my name?") == "Your name is Linus."


def test_a_name_that_was_not_told_is_not_invented(chat: Chat) -> None:
    assert chat.ask("What is my name?") == "You have not told me your name."


def test_a_question_about_python_gets_english(chat: Chat) -> None:
    assert chat.ask("Tell me about Python.").startswith("Python is a programming language")


def test_the_template_spells_what_training_saw(loaded: tuple[Any, Any]) -> None:
    messages = [
        DialogueMessage("system", "Be brief."),
        DialogueMessage("user", " Hello. "),
        DialogueMessage("assistant", "Hello!"),
    ]
    raw = [{"role": message.role, "content": message.content} for message in messages]
    for prompt in (False, True):
        rendered = loaded[1].apply_chat_template(raw, add_generation_prompt=prompt, tokenize=False)
        assert rendered == bpe.render(messages, add_generation_prompt=prompt)
