"""Decides which session speaks next in `ryz bench sessions`, and what it says.

Sessions are drawn by Zipf's law, questions are English prose. The same seed draws the same turns, whatever
the answers are. Several turns of a session may be under way at once, like those of an agent that asks several
things: if a session waited for its last turn, it could never have the quarter of all turns that the law gives
the first one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pydoc_data.topics import topics  # English that ships with Python

from benchmarks.stack_plans import SessionsPlan

TextMessage = dict[str, str]
PROMPT_TOKENS, ANSWER_TOKENS = 60, 40  # means
MOST_TOKENS = 1500  # a session of so many tokens begins a new conversation
_CHARS_PER_TOKEN = 3.5  # of this prose, by the demo model's tokenizer


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """A turn to send; `session` is the session's rank, from 0."""

    session: int
    question: str
    answer_tokens: int


def draw_turns(plan: SessionsPlan) -> Iterator[DrawnTurn]:
    """Yield turns without end; lengths are spread evenly over half to one and a half times their mean."""
    random_, prose = random.Random(plan.seed), _prose()
    weights = list(accumulate(1 / rank**plan.zipf for rank in range(1, plan.sessions + 1)))
    while True:
        (session,) = random_.choices(range(plan.sessions), cum_weights=weights)
        question = _cut(prose, PROMPT_TOKENS * random_.uniform(0.5, 1.5), random_)
        yield DrawnTurn(session, question, max(1, round(ANSWER_TOKENS * random_.uniform(0.5, 1.5))))


def openings(plan: SessionsPlan) -> list[list[TextMessage]]:
    """Return what each session has said before the measurement: up to its longest conversation."""
    random_, prose = random.Random(plan.seed + 1), _prose()
    return [_opening(prose, random_) for _ in range(plan.sessions)]


def _opening(prose: str, random_: random.Random) -> list[TextMessage]:
    tokens, messages = random_.uniform(0, MOST_TOKENS * 0.9), list[TextMessage]()
    while tokens > 0:
        messages.append({"role": "user", "content": _cut(prose, PROMPT_TOKENS, random_)})
        messages.append({"role": "assistant", "content": _cut(prose, ANSWER_TOKENS, random_)})
        tokens -= PROMPT_TOKENS + ANSWER_TOKENS
    return messages


def _prose() -> str:
    return " ".join(" ".join(topics[name].split()) for name in sorted(topics))


def _cut(prose: str, tokens: float, random_: random.Random) -> str:
    chars = max(1, round(tokens * _CHARS_PER_TOKEN))
    start = random_.randrange(len(prose) - chars)
    return prose[start : start + chars]


@dataclass(slots=True)
class _ConversationLength:
    number: int = 0
    tokens: int = 0


@dataclass(slots=True)
class ConversationLengths:
    """The length of each session's conversation, by the usage in the answers."""

    most_tokens: int = MOST_TOKENS
    _known: dict[int, _ConversationLength] = field(default_factory=dict)

    def begin_turn(self, session: int) -> tuple[int, bool]:
        """Return the number of the conversation that a turn is of, and whether it has to send all of it.

        Until a new conversation has its first answer, the store still has the old one.
        """
        known = self._known.setdefault(session, _ConversationLength())
        if known.tokens >= self.most_tokens:
            self.begin_conversation(session, known.number)
        return known.number, known.tokens == 0

    def begin_conversation(self, session: int, number: int) -> None:
        """Have the next turn begin a new conversation, unless one began after that with this number."""
        known = self._known[session]
        if known.number == number:
            known.number, known.tokens = number + 1, 0

    def end_turn(self, session: int, number: int, tokens: int) -> None:
        """Note that a turn of that conversation ended, with `tokens` in all."""
        known = self._known[session]
        if known.number == number:
            known.tokens = max(known.tokens, tokens)
