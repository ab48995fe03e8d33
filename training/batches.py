"""Turns drawn texts into batches of tokens with loss weights, by a curriculum over the training.

Samples of similar length share a batch, one sample a row, so that no row attends to another sample. The loss
weighs answers and prose fully and user messages seldom, because names cannot be guessed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training import bpe, knowledge, prose
from training.dialogues import (
    DialogueMessage,
    draw_conversation,
    draw_correction,
    draw_memory_test,
    vary,
)


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """Token ids with their loss weights.

    Attributes:
        weights: Loss weight of each token as a target.
        gap_at: Index of the first token whose position is increased by `gap`.
        gap: Number of positions skipped before that token.
    """

    tokens: list[int]
    weights: list[float]
    gap_at: int = 0
    gap: int = 0


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Inputs, positions, targets and loss weights, each [rows, tokens]; padding has weight zero."""

    inputs: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """Shares of the tokens by kind of sample; the rest is prose.

    Attributes:
        until: Share of all steps at which the stage ends.
        free: Shares of conversations of 1 to 4, 4 to 12 and 14 to 34 turns.
        memory: Shares of memory tests of 4 to 14, 20 to 50 and 55 to 100 turns.
        corrections: Share of conversations that replace a fact.
        questions: Share of single questions about Python.
        gaps: Share of the short conversations whose positions jump once, as if there were a long text
            between.
        rare: Share of names that are spliced from ordinary words.
    """

    until: float
    free: tuple[float, float, float]
    questions: float
    memory: tuple[float, float, float] = (0.0, 0.0, 0.0)
    corrections: float = 0.0
    gaps: float = 0.0
    rare: float = 0.0

    @property
    def prose(self) -> float:
        """Share of prose."""
        return 1 - sum(self.free) - sum(self.memory) - self.corrections - self.questions


# Share of all steps. The first phase trains copying and answering; the second adds distance, corrections and
# rare tokens.
FIRST_PHASE = 0.65
CURRICULUM = (
    Stage(until=0.25, free=(0.72, 0.06, 0.0), questions=0.06),
    Stage(until=FIRST_PHASE, free=(0.42, 0.18, 0.08), questions=0.10),
    Stage(
        until=1.0,
        free=(0.24, 0.10, 0.0),
        memory=(0.10, 0.18, 0.10),
        corrections=0.07,
        questions=0.08,
        gaps=0.5,
        rare=0.35,
    ),
)
_LONGEST_GAPPED = 400
_POOL_BATCHES = 24
_FREE_TURNS = ((1, 4), (4, 12), (14, 34))
_MEMORY_TURNS = ((2, 5, 4, 14), (5, 14, 20, 50), (8, 20, 55, 100))


class SampleSource:
    """Draws samples; equal seeds give equal samples."""

    def __init__(self, tokenizer: Tokenizer, seed: int, max_tokens: int) -> None:
        """Prepare the texts.

        Args:
            seed: Seed of every choice.
            max_tokens: Longest sample.
        """
        self._tokenizer = tokenizer
        self._rng = Random(seed)
        self._max_tokens = max_tokens
        self._topics = prose.load_topics(held_out=False)
        self._ids = bpe.special_ids(tokenizer)

    def draw(self, stage: Stage, budget: int) -> list[TrainingSample]:
        """Draw samples of about `budget` tokens in the shares of `stage`."""
        samples: list[TrainingSample] = []
        for share, turns in zip(stage.free, _FREE_TURNS, strict=True):
            samples += self._take(share * budget, partial(self._conversation, stage, turns))
        for share, bounds in zip(stage.memory, _MEMORY_TURNS, strict=True):
            samples += self._take(share * budget, partial(self._memory_test, stage, bounds))
        samples += self._take(stage.corrections * budget, partial(self._correction, stage))
        samples += self._take(stage.questions * budget, self._question)
        samples += self._take(stage.prose * budget, self._passage)
        return samples

    def encode(self, messages: list[DialogueMessage], user_weight: float) -> TrainingSample:
        """Encode a conversation as the chat template renders it."""
        tokens, weights = [self._ids[bpe.BOS]], [0.0]
        for message in messages:
            text = self._tokenizer.encode(message.content.strip(), add_special_tokens=False).ids
            weight = 1.0 if message.role == "assistant" else user_weight
            tokens += [self._ids[f"<|{message.role}|>"], *text, self._ids[bpe.END]]
            weights += [user_weight, *([weight] * (len(text) + 1))]
        return TrainingSample(tokens[: self._max_tokens], weights[: self._max_tokens])

    def _take(self, budget: float, draw: Callable[[], TrainingSample]) -> list[TrainingSample]:
        samples: list[TrainingSample] = []
        while budget > 0:
            samples.append(draw())
            budget -= len(samples[-1].tokens)
        return samples

    def _conversation(self, stage: Stage, turns: tuple[int, int]) -> TrainingSample:
        num_turns = self._rng.randint(*turns)
        user_weight = 0.3 if self._rng.random() < 0.15 else 0.0
        messages = draw_conversation(self._rng, turns=num_turns, rare=stage.rare)
        return self._spread(stage, messages, user_weight)

    def _memory_test(self, stage: Stage, bounds: tuple[int, int, int, int]) -> TrainingSample:
        num_facts, turns = self._rng.randint(*bounds[:2]), self._rng.randint(*bounds[2:])
        messages = draw_memory_test(self._rng, num_facts=num_facts, turns=turns, rare=stage.rare)
        return self._spread(stage, messages, 0.0)

    def _correction(self, stage: Stage) -> TrainingSample:
        return self._spread(stage, draw_correction(self._rng, rare=stage.rare), 0.0)

    def _spread(self, stage: Stage, messages: list[DialogueMessage], user_weight: float) -> TrainingSample:
        """Encode, and let positions jump before one user message (as in PoSE, Zhu et al., 2023)."""
        sample = self.encode(messages, user_weight)
        room = self._max_tokens - len(sample.tokens)
        if not stage.gaps or len(sample.tokens) > _LONGEST_GAPPED or self._rng.random() >= stage.gaps:
            return sample
        starts = [index for index, token in enumerate(sample.tokens) if token == self._ids[bpe.USER]]
        return replace(sample, gap_at=self._rng.choice(starts), gap=self._rng.randint(0, room))

    def _question(self) -> TrainingSample:
        if self._rng.random() < 0.75:
            question, answer = knowledge.draw_question(self._rng)
        else:
            question, answer = prose.draw_documentation_question(self._rng, self._topics)
        return self.encode(
            [DialogueMessage("user", vary(question, self._rng)), DialogueMessage("assistant", answer)], 0.0
        )

    def _passage(self) -> TrainingSample:
        limit = self._rng.choice((200, 500, 1000, 2000))
        text, ends = prose.draw_passage(self._rng, self._topics, limit)
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        tokens = [self._ids[bpe.BOS], *ids, *([self._ids[bpe.END]] if ends else [])]
        return TrainingSample(tokens[: self._max_tokens], [1.0] * min(len(tokens), self._max_tokens))


def draw_batches(
    source: SampleSource, seed: int, steps: int, batch_tokens: int, *, start: int = 0, stop: int | None = None
) -> Iterator[TrainingBatch]:
    """Yield one batch for each step from `start` to `stop`.

    Args:
        seed: Seed of the order of the batches.
        steps: Number of steps of the whole training, which determines the stages.
        batch_tokens: Most tokens in a batch, padding included.
        start: First step.
        stop: First step not to run; `None` for all.
    """
    rng = Random(seed)
    step, end = start, steps if stop is None else stop
    while step < end:
        stage = next(stage for stage in CURRICULUM if step < stage.until * steps or stage is CURRICULUM[-1])
        samples = source.draw(stage, _POOL_BATCHES * batch_tokens)
        rng.shuffle(samples)
        samples.sort(key=lambda sample: len(sample.tokens))
        rows: list[list[TrainingSample]] = [[]]
        for sample in samples:
            if rows[-1] and (len(rows[-1]) + 1) * (len(sample.tokens) - 1) > batch_tokens:
                rows.append([])
            rows[-1].append(sample)
        rng.shuffle(rows)
        for group in rows[: end - step]:
            step += 1
            yield stack(group)


def stack(samples: list[TrainingSample]) -> TrainingBatch:
    """Pad samples to one length and shift the targets by one."""
    length = max(len(sample.tokens) for sample in samples)
    tokens = torch.zeros(len(samples), length, dtype=torch.long)
    weights = torch.zeros(len(samples), length)
    positions = torch.arange(length).repeat(len(samples), 1)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = torch.tensor(sample.tokens)
        weights[row, : len(sample.tokens)] = torch.tensor(sample.weights)
        positions[row, sample.gap_at :] += sample.gap
    return TrainingBatch(tokens[:, :-1], positions[:, :-1], tokens[:, 1:], weights[:, 1:])
