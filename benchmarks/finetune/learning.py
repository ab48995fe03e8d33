"""What a model knows of the fact sheet: its greedy answers, and how many have the right word in them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.finetune.fact_sheet import Fact, facts
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.text.control_tokens import ControlTokenGuard
from shared.messages import ChatMessage

_BATCH = 20  # questions that are answered at once
_TOKENS = 24  # of an answer
_LIMIT_S = 5.0


class Examiner:
    """Asks a model with or without an adapter; made in a process of its own.

    Args:
        directory: The base in Hugging Face form.
        source: The base as it is served; its tokenizer and template are used.
        adapter: A PEFT directory; None: the base alone.
    """

    def __init__(self, directory: Path, source: Path, adapter: Path | None, threads: int) -> None:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)
        from transformers.utils import logging  # noqa: PLC0415

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._files: Model = load_model(source, "base")
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True
        )
        if adapter is not None:
            from peft import PeftModel  # noqa: PLC0415 (slow to import)

            model = PeftModel.from_pretrained(model, adapter)
        self._model = model.eval()

    def examine(self, seed: int) -> dict[str, Any]:
        """Return the shares of right answers: taught facts in other and in the same words, untaught ones."""
        taught, untaught = facts(seed)
        asked = {
            "taught": [(fact, fact.fill(text)) for fact in taught for text in fact.relation.tested],
            "same_words": [(fact, fact.fill(fact.relation.asked[0])) for fact in taught],
            "untaught": [(fact, fact.fill(text)) for fact in untaught for text in fact.relation.tested],
        }
        shares: dict[str, Any] = {}
        for name, questions in asked.items():
            answers = self._answers([text for _, text in questions])
            right = [is_right(fact, answer) for (fact, _), answer in zip(questions, answers, strict=True)]
            shares[name] = sum(right) / len(right)
            shares[f"{name}_questions"] = len(right)
            shares.setdefault("examples", []).append(f"{questions[0][1]} -> {answers[0].strip()[:120]}")
        return shares

    @torch.no_grad()
    def _answers(self, questions: Sequence[str]) -> list[str]:
        """Answer greedily; prompts are filled up at their beginning."""
        assert self._files.template is not None  # a chat model
        guard = ControlTokenGuard(self._files.tokenizer, self._files.template)
        answers = list[str]()
        for begin in range(0, len(questions), _BATCH):
            asked = [ChatMessage(role="user", content=text) for text in questions[begin : begin + _BATCH]]
            prompts = [guard.encode_prompt(guard.render_prompt([one], _LIMIT_S)) for one in asked]
            size = max(map(len, prompts))
            tokens = torch.tensor([[0] * (size - len(one)) + one for one in prompts])
            mask = torch.tensor([[0] * (size - len(one)) + [1] * len(one) for one in prompts])
            found = self._model.generate(
                input_ids=tokens,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=_TOKENS,
                pad_token_id=0,
                eos_token_id=sorted(self._files.eos_ids),
                temperature=None,
                top_p=None,
            )
            for row in found[:, size:].tolist():
                ends = [at for at, token in enumerate(row) if token in self._files.eos_ids]
                answers.append(self._files.tokenizer.decode(row[: ends[0]] if ends else row))
        return answers


def is_right(fact: Fact, answer: str) -> bool:
    """Return whether an answer has the fact's word in it."""
    return fact.answer.lower() in answer.lower()
