"""Decides whether an answer of the gateway is what was asked for: the status, the tokens, the text.

Only what is checked is decoded.
"""

from typing import NamedTuple

import msgspec

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.sse import StreamUsage, read_stream


class Judgement(NamedTuple):
    """What an answer is.

    Attributes:
        problem: What is wrong with it in a few words; empty when nothing is.
        events: Events of a stream that brought text.
    """

    problem: str = ""
    events: int = 0


class _Message(msgspec.Struct):
    content: str | None = None


class _MessageChoice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_MessageChoice]
    usage: StreamUsage


_completion = msgspec.json.Decoder(_Completion)


def judge_completion(status: int, body: bytes, tokens: int) -> Judgement:
    """Judge a whole answer, which is to have so many tokens."""
    if status != 200:
        return Judgement(f"status {status}: {body[:200].decode(errors='replace')}")
    try:
        answer = _completion.decode(body)
    except msgspec.DecodeError as error:
        return Judgement(f"not a chat completion: {error}")
    if answer.usage.completion_tokens != tokens:
        return Judgement(f"{answer.usage.completion_tokens} completion tokens instead of {tokens}")
    if not answer.choices or not answer.choices[0].message.content:
        return Judgement("empty content")
    return Judgement()


def judge_stream(status: int, body: bytes, tokens: int) -> Judgement:
    """Judge a streamed answer, all of its events; it is to have so many tokens."""
    if status != 200:
        return Judgement(f"status {status}: {body[:200].decode(errors='replace')}")
    try:
        answer = read_stream([(1.0, body)])
    except BenchError as error:
        return Judgement(str(error))
    if not answer.done:
        return Judgement("no [DONE] at the end")
    if answer.tokens != tokens:
        return Judgement(f"{answer.tokens} completion tokens instead of {tokens}")
    if not answer.times:
        return Judgement("empty content")
    return Judgement("" if answer.ended else "no finish reason", len(answer.times))
