"""Measures an exported demo model: held-out perplexity, and recall of facts told earlier.

It reads the exported directory, so that it measures exactly what users get. Decoding is greedy and recomputes
the whole context for each token; this is slow but simple.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from training import bpe, knowledge, prose, words
from training.batches import SampleSource, TrainingSample, stack
from training.dialogues import DialogueMessage, draw_conversation
from training.export import load_model
from training.model import DemoModel

_SEED = 987_654_321
_CONVERSATIONS = 400
_VALUES = {
    "colour": (
        "My favourite colour is {v}.",
        "What is my favourite colour?",
        "Your favourite colour is {v}.",
    ),
    "city": ("I live in {v}.", "Where do I live?", "You live in {v}."),
    "number": ("Remember the number {v}.", "What is the number?", "The number is {v}."),
}


@torch.inference_mode()
def reply(
    model: DemoModel, tokenizer: Tokenizer, messages: list[DialogueMessage], max_tokens: int = 64
) -> str:
    """Answer a conversation greedily; the text has no end token."""
    tokens = tokenizer.encode(bpe.render(messages, add_generation_prompt=True), add_special_tokens=False).ids
    end = bpe.special_ids(tokenizer)[bpe.END]
    start = len(tokens)
    while len(tokens) - start < max_tokens:
        logits = model.logits(model(torch.tensor([tokens]))[0, -1])
        chosen = int(logits.argmax())
        if chosen == end:
            break
        tokens.append(chosen)
    text: str = tokenizer.decode(tokens[start:])
    return text


@torch.inference_mode()
def perplexity(model: DemoModel, samples: Sequence[TrainingSample]) -> float:
    """Exponential of the mean cross-entropy over the samples' weighted tokens."""
    total, count = 0.0, 0.0
    for sample in samples:
        batch = stack([sample])
        losses = F.cross_entropy(model.logits(model(batch.inputs))[0], batch.targets[0], reduction="none")
        total += float((losses * batch.weights[0]).sum())
        count += float(batch.weights.sum())
    return math.exp(total / count)


def _last_reply(model: DemoModel, tokenizer: Tokenizer, *users: str) -> str:
    messages: list[DialogueMessage] = []
    for user in users:
        messages.append(DialogueMessage("user", user))
        messages.append(DialogueMessage("assistant", reply(model, tokenizer, messages)))
    return messages[-1].content


def name_recall(model: DemoModel, tokenizer: Tokenizer, names: Sequence[str], distractors: int) -> float:
    """Share of `names` recalled exactly after `distractors` other turns, all answered by the model."""
    right = 0
    for index, name in enumerate(names):
        rng = Random(_SEED + index)
        asides = [_aside(rng)[0] for _ in range(distractors)]
        said = _last_reply(model, tokenizer, f"My name is {name}.", *asides, "What is my name?")
        right += said == f"Your name is {name}."
    return right / len(names)


def long_name_recall(model: DemoModel, tokenizer: Tokenizer, names: Sequence[str], num_tokens: int) -> float:
    """Share of `names` recalled after scripted other turns, about `num_tokens` tokens in all."""
    right = 0
    for index, name in enumerate(names):
        rng = Random(_SEED + index)
        messages = [
            DialogueMessage("user", f"My name is {name}."),
            DialogueMessage("assistant", f"Nice to meet you, {name}."),
        ]
        while len(tokenizer.encode(bpe.render(messages, add_generation_prompt=True)).ids) < num_tokens:
            user, answer = _aside(rng)
            messages += [DialogueMessage("user", user), DialogueMessage("assistant", answer)]
        messages.append(DialogueMessage("user", "What is my name?"))
        right += reply(model, tokenizer, messages) == f"Your name is {name}."
    return right / len(names)


def correction_recall(model: DemoModel, tokenizer: Tokenizer, names: Sequence[str]) -> float:
    """Share of `names` recalled after they replaced another held-out name."""
    right = 0
    for first, second in zip(names, (*names[1:], names[0]), strict=True):
        users = (f"My name is {first}.", f"My name is now {second}.", "What is my name?")
        right += _last_reply(model, tokenizer, *users) == f"Your name is {second}."
    return right / len(names)


def value_recall(model: DemoModel, tokenizer: Tokenizer, kind: str, count: int) -> float:
    """Share of drawn values recalled after one other turn; `kind` is colour, city or number."""
    draws = {"colour": words.draw_colour, "city": words.draw_city, "number": words.draw_number}
    statement, asked, wanted = _VALUES[kind]
    right = 0
    for index in range(count):
        rng = Random(_SEED + index)
        value = draws[kind](rng)
        messages: list[DialogueMessage] = []
        for user in (statement.format(v=value), _aside(rng)[0], asked):
            messages.append(DialogueMessage("user", user))
            messages.append(DialogueMessage("assistant", reply(model, tokenizer, messages)))
        right += messages[-1].content == wanted.format(v=value)
    return right / count


def evaluate(directory: Path) -> dict[str, float]:
    """Measure everything that the model's README reports.

    Args:
        directory: An exported model.

    Returns:
        Perplexities and shares of right answers, by name.
    """
    model, tokenizer = load_model(directory)
    names = words.HELD_OUT_NAMES
    source = SampleSource(tokenizer, _SEED, model.config.max_positions)
    rng = Random(_SEED)
    talks = [draw_conversation(rng, turns=rng.randint(1, 8)) for _ in range(_CONVERSATIONS)]
    bos = bpe.special_ids(tokenizer)[bpe.BOS]
    passages = [
        [bos, *tokenizer.encode("\n".join(topic.paragraphs), add_special_tokens=False).ids]
        for topic in prose.load_topics(held_out=True)
    ]
    figures = {
        "perplexity of answers in unseen conversations": perplexity(
            model, [source.encode(t, 0.0) for t in talks]
        ),
        "perplexity of held-out prose": perplexity(
            model, [TrainingSample(p, [1.0] * len(p)) for p in passages]
        ),
    }
    for distractors in range(4):
        label = f"name recall, {len(names)} unseen names, {distractors} turns between"
        figures[label] = name_recall(model, tokenizer, names, distractors)
    for num_tokens in (500, 1000, model.config.max_positions - 100):
        label = f"name recall, {len(names)} unseen names, {num_tokens} tokens between"
        figures[label] = long_name_recall(model, tokenizer, names, num_tokens)
    figures[f"corrected name, {len(names)} pairs of unseen names"] = correction_recall(
        model, tokenizer, names
    )
    for kind in _VALUES:
        figures[f"{kind} recall, 50 values, 1 turn between"] = value_recall(model, tokenizer, kind, 50)
    return figures


def main() -> None:
    """Measure the model directory in the arguments and print the figures as one JSON object."""
    parser = argparse.ArgumentParser(description="Measure an exported demo model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        json.dumps({name: round(value, 4) for name, value in evaluate(options.directory).items()}, indent=2)
    )


def _aside(rng: Random) -> tuple[str, str]:
    """A turn that says nothing about the user."""
    return knowledge.draw_question(rng) if rng.random() < 0.5 else knowledge.draw_small_talk(rng)


if __name__ == "__main__":
    main()
