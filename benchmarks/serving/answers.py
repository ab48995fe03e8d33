"""Decides whether an answer of the gateway is what was asked for: the status, the tokens, the text.

Only what is checked is decoded. The functions return the problem in a few words, or an empty text.
"""

import msgspec

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.sse import StreamUsage, read_stream


class _Message(msgspec.Struct):
    content: str | None = None


class _MessageChoice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_MessageChoice]
    usage: StreamUsage


_completion = msgspec.json.Decoder(_Completion)


def problem_of_completion(status: int, body: bytes, tokens: int) -> str:
    """Return what is wrong with a whole answer; empty when nothing is."""
    if status != 200:
        return f"status {status}: {body[:200].decode(errors='replace')}"
    try:
        answer = _completion.decode(body)
    except msgspec.DecodeError as error:
        return f"not a chat completion: {error}"
    if answer.usage.completion_tokens != tokens:
        return f"{answer.usage.completion_tokens} completion tokens instead of {tokens}"
    if not answer.choices or not answer.choices[0].message.content:
        return "empty content"
    return ""


def problem_of_stream(status: int, body: bytes, tokens: int) -> str:
    """Return what is wrong with a streamed answer (all of its events); empty when nothing is."""
    if status != 200:
        return f"status {status}: {body[:200].decode(errors='replace')}"
    try:
        answer = read_stream([(1.0, body)])
    except BenchError as error:
        return str(error)
    if not answer.done:
        return "no [DONE] at the end"
    if answer.tokens != tokens:
        return f"{answer.tokens} completion tokens instead of {tokens}"
    if not answer.times:
        return "empty content"
    return "" if answer.ended else "no finish reason"
