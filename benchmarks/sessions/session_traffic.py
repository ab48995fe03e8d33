"""Who says what next in `ryz bench sessions`: sessions drawn by Zipf's law, questions of plain prose.

Pure: the same seed draws the same turns, whatever answers them. Several turns of a session may be under way
at once, as those of an agent that asks several things: a session that had to wait for its last turn could
never have the quarter of all turns that the law gives it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pydoc_data.topics import topics  # English that ships with Python

Message = dict[str, str]
_CHARS_PER_TOKEN = 3.5  # of this prose, by the demo model's tokenizer


@dataclass(frozen=True, slots=True)
class Traffic:
    """zipf: exponent of the law. Lengths are means; a session of `most_tokens` begins a new conversation."""

    sessions: int = 64
    zipf: float = 1.1
    prompt_tokens: int = 60
    answer_tokens: int = 40
    most_tokens: int = 1500
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Draw:
    """A turn that somebody wants. session: its rank, from 0."""

    session: int
    question: str
    answer_tokens: int


def draws(traffic: Traffic) -> Iterator[Draw]:
    """Turns without end. Lengths are spread evenly over half to one and a half times their mean."""
    random_, prose = random.Random(traffic.seed), _prose()
    weights = list(accumulate(1 / rank**traffic.zipf for rank in range(1, traffic.sessions + 1)))
    while True:
        (session,) = random_.choices(range(traffic.sessions), cum_weights=weights)
        question = _cut(prose, traffic.prompt_tokens * random_.uniform(0.5, 1.5), random_)
        yield Draw(session, question, max(1, round(traffic.answer_tokens * random_.uniform(0.5, 1.5))))


def openings(traffic: Traffic) -> list[list[Message]]:
    """What each session has said when the measurement begins: anything up to its longest conversation."""
    random_, prose = random.Random(traffic.seed + 1), _prose()
    return [_opening(traffic, prose, random_) for _ in range(traffic.sessions)]


def _opening(traffic: Traffic, prose: str, random_: random.Random) -> list[Message]:
    spoken, messages = random_.uniform(0, traffic.most_tokens * 0.9), list[Message]()
    while spoken > 0:
        messages.append({"role": "user", "content": _cut(prose, traffic.prompt_tokens, random_)})
        messages.append({"role": "assistant", "content": _cut(prose, traffic.answer_tokens, random_)})
        spoken -= traffic.prompt_tokens + traffic.answer_tokens
    return messages


def _prose() -> str:
    return " ".join(" ".join(topics[name].split()) for name in sorted(topics))


def _cut(prose: str, tokens: float, random_: random.Random) -> str:
    chars = max(1, round(tokens * _CHARS_PER_TOKEN))
    start = random_.randrange(len(prose) - chars)
    return prose[start : start + chars]


@dataclass(slots=True)
class _Conversation:
    number: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Conversations:
    """How long each session's conversation is, by what the answers said."""

    most_tokens: int
    _known: dict[int, _Conversation] = field(default_factory=dict)

    def begin(self, session: int) -> tuple[int, bool]:
        """A turn begins: the number of its conversation, and whether it has to say all of it.

        Until a new conversation has its first answer, the store still has the old one.
        """
        known = self._known.setdefault(session, _Conversation())
        if known.tokens >= self.most_tokens:
            known.number, known.tokens = known.number + 1, 0
        return known.number, known.tokens == 0

    def ended(self, session: int, number: int, tokens: int) -> None:
        """A turn of that conversation ended, with so many tokens in all."""
        known = self._known[session]
        if known.number == number:
            known.tokens = max(known.tokens, tokens)
