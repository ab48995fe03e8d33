"""Checks of answers that were cut and went on elsewhere, by what the guests' servers were asked and sent.

The oracle is the bytes between groups and servers: each attempt's prompt has to be the one before with a
beginning of what had come, and the client's text has to be the last prompt's with what came after it. An own
group of the null engine has no such bytes; its tokens follow from their positions alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from services.worker.null.engine import TEXT
from services.worker.text.tokenizer import Tokenizer
from tests.kits.guests.recording_proxy import Exchange, RecordingProxy

_NO_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request at a server, and what the server brought.

    Attributes:
        pieces: The text of each event, and its number of tokens; -1: it does not say.
        ended: The server ended it. One behind it is its own group's, for tokens that the server left out.
    """

    prompt: bytes
    pieces: tuple[tuple[bytes, int], ...]
    ended: bool = False

    @property
    def text(self) -> bytes:
        """All that it brought."""
        return b"".join(text for text, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer as its client has it.

    Attributes:
        counts: Tokens of the prompt and of the answer.
        group: That began it.
        resumed: What the answer says of its change of engines.
    """

    text: str
    group: str
    resumed: str
    counts: tuple[int, int]


def attempts_of(marker: str, proxies: Iterable[RecordingProxy], tokenizer: Tokenizer) -> list[Attempt]:
    """Returns the attempts of a request whose prompt contains the marker, in order."""
    found = list[tuple[float, Attempt]]()
    for proxy in proxies:
        for exchange in tuple(proxy.exchanges):
            asked = exchange.request
            prompt = _spelled(asked["prompt"], tokenizer) if "prompt" in asked else b""
            if marker.encode() in prompt:
                found.append((exchange.at, _attempt(prompt, exchange, tokenizer)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def check_seams(answer: Streamed, attempts: Sequence[Attempt], tokenizer: Tokenizer, *, own: str) -> int:
    """Fails if a character is lost, repeated or garbled.

    Args:
        own: The group of the null engine that may have written the answer, or its end; empty: none.

    Returns:
        The number of changes between groups behind a beginning. Another group after an attempt that brought
        nothing is none: its answer is whole.
    """
    if not attempts:
        assert answer.group == own, f"no server was asked for {answer}"
        assert _says(answer, _own_text(answer, 0, tokenizer)), f"not the text of {own}: {answer}"
        return 0
    given, base = b"", len(attempts[0].prompt)
    # a request that is published twice may begin twice; the copy that is not wanted brings nothing
    attempts = [*attempts[:1], *(one for one in attempts[1:] if one.pieces or len(one.prompt) > base)]
    for before, after in pairwise(attempts):
        earlier, given = before.prompt[base:], after.prompt[base:]
        assert after.prompt.startswith(before.prompt), (before, after)
        assert (earlier + before.text).startswith(given), (before, after)
    last, pairs = attempts[-1], list(pairwise(attempts))
    changes = sum(len(after.prompt) > base and not before.ended for before, after in pairs)
    if _says(answer, given + last.text):
        return changes
    if pairs and pairs[-1][0].ended and _begins(answer, given, last.text):
        return changes  # tokens behind its length came, and were left out
    assert own, f"the client has {answer}, the servers sent {attempts}"
    cuts = _cuts(last, answer.counts[1], first=len(attempts) == 1)
    assert any(
        _says(answer, given + last.text[:size] + _own_text(answer, count, tokenizer)) for size, count in cuts
    ), f"the client has {answer}, the servers sent {attempts}, and {own} did not go on behind one of {cuts}"
    if not given and _says(answer, _own_text(answer, 0, tokenizer)):
        return int(answer.resumed == "text")  # the server's text, if any came, may be the group's as well
    return changes + 1


def _says(answer: Streamed, data: bytes) -> bool:
    return answer.text == data.decode(errors="replace")  # a character may be cut by the text behind a seam


def _begins(answer: Streamed, given: bytes, data: bytes) -> bool:
    """Whether the answer is what was given with a beginning of the rest, perhaps within a character."""
    text, before = answer.text.rstrip(_NO_CHARACTER), given.decode(errors="replace")
    return text.startswith(before) and (before + data.decode(errors="replace")).startswith(text)


def _own_text(answer: Streamed, begin: int, tokenizer: Tokenizer) -> bytes:
    """What an own group writes from this token of the answer on."""
    prompt, count = answer.counts
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    return b"".join(
        tokenizer.token_bytes(tokens[(prompt + position) % len(tokens)]) for position in range(begin, count)
    )


def _cuts(attempt: Attempt, count: int, *, first: bool) -> list[tuple[int, int]]:
    """Returns where an attempt may have been cut: bytes of it, and tokens of the answer up to there."""
    if first and all(tokens >= 0 for _, tokens in attempt.pieces):
        sizes = accumulate((len(text) for text, _ in attempt.pieces), initial=0)
        counts = accumulate((tokens for _, tokens in attempt.pieces), initial=0)
        return list(zip(sizes, counts, strict=True))
    # the leader has made tokens of its text, or of that before it: how many is not seen here
    return list(product(range(len(attempt.text) + 1), range(count + 1)))


def _spelled(prompt: object, tokenizer: Tokenizer) -> bytes:
    if isinstance(prompt, str):
        return prompt.encode()
    assert isinstance(prompt, list)
    special = tokenizer.special_ids
    return b"".join(
        tokenizer.token_text(one).encode() if one in special else tokenizer.token_bytes(one) for one in prompt
    )


def _attempt(prompt: bytes, exchange: Exchange, tokenizer: Tokenizer) -> Attempt:
    ended = any(
        event.get("stop") or any(choice.get("finish_reason") for choice in event.get("choices", ()))
        for event in exchange.events
    )
    return Attempt(prompt, _pieces(exchange, tokenizer), ended)


def _pieces(exchange: Exchange, tokenizer: Tokenizer) -> tuple[tuple[bytes, int], ...]:
    found = list[tuple[bytes, int]]()
    for event in exchange.events:
        if "content" in event:  # llama.cpp's own API leaves out the ids of tokens that end within a character
            text, ids = event["content"].encode(), event.get("tokens", [])
            found.append((text, len(ids) if _spelled(ids, tokenizer) == text else -1))
        for choice in event.get("choices", ()):
            ids = choice.get("token_ids")
            text = choice["text"].encode() if ids is None else _spelled(ids, tokenizer)
            found.append((text, -1 if ids is None and text else len(ids or ())))
    return tuple(found)
