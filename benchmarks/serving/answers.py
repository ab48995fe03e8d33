"""Decides whether an answer of the gateway is what was asked for: the status, the tokens, the text.

Only what is checked is decoded. The functions return the problem in a few words, or nothing.
"""

import msgspec


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


class _Part(msgspec.Struct):
    delta: _Message
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Part] = []
    usage: _Usage | None = None


_completion = msgspec.json.Decoder(_Completion)
_chunk = msgspec.json.Decoder(_Chunk)


def problem_of_completion(status: int, body: bytes, tokens: int) -> str:
    """What is wrong with a whole answer; empty when nothing is."""
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
    """What is wrong with a streamed answer (all of its server-sent events); empty when nothing is."""
    if status != 200:
        return f"status {status}: {body[:200].decode(errors='replace')}"
    text, finished, counted = False, False, -1
    events = body.replace(b"\r\n", b"\n").split(b"\n\n")
    data = [line[5:].strip() for event in events for line in event.split(b"\n") if line.startswith(b"data:")]
    if not data or data[-1] != b"[DONE]":
        return "no [DONE] at the end"
    try:
        for item in data[:-1]:
            chunk = _chunk.decode(item)
            if chunk.usage is not None:
                counted = chunk.usage.completion_tokens
            for part in chunk.choices:
                text = text or bool(part.delta.content)
                finished = finished or part.finish_reason is not None
    except msgspec.DecodeError as error:
        return f"not a chat completion chunk: {error}"
    if counted != tokens:
        return f"{counted} completion tokens instead of {tokens}"
    if not text:
        return "empty content"
    return "" if finished else "no finish reason"
