"""Streams that end, stall or go wrong in the middle."""

import asyncio
import json

from tests.kits.guests.false_server.http_wire import Answer
from tests.kits.guests.false_server.scripts import Script, frame
from tests.kits.guests.false_server.written_events import (
    make_event,
    silent_event,
    write_beginning,
    write_replaced,
    write_stream,
)

_STALL_S = 3600.0


async def empty(answer: Answer, script: Script) -> None:
    await write_stream(answer, [])


async def done_only(answer: Answer, script: Script) -> None:
    await write_stream(answer, [b"data: [DONE]\n\n"])


async def done_early(answer: Answer, script: Script) -> None:
    """As llama-cpp-python ends a stream when another request comes."""
    await write_stream(answer, [*script.frames(0, script.after), b"data: [DONE]\n\n"])


async def ends_early(answer: Answer, script: Script) -> None:
    await write_stream(answer, script.frames(0, script.after))


async def cut(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    answer.cut()


async def cut_in_event(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    (piece,) = script.frames(script.after, script.after + 1)
    await answer.write(piece[: len(piece) // 2])
    answer.cut()


async def cut_in_character(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    piece = frame(make_event(script, "é", [1], script.after + 1))
    await answer.write(piece[: piece.index("é".encode()) + 1])
    answer.cut()


async def closed_early(answer: Answer, script: Script) -> None:
    """The end of the connection is the end of the body, and comes too early."""
    await answer.head(framing="close")
    for piece in script.frames(0, script.after):
        await answer.write(piece)
    answer.cut()


async def reset(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    answer.reset()


async def stall(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    await asyncio.sleep(_STALL_S)


async def stall_with_keep_alives(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    while True:
        await answer.write(b": still here\n\n")
        await asyncio.sleep(0.02)


async def stall_with_events(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    while True:
        await answer.write(silent_event(script))
        await asyncio.sleep(0.02)


async def error_event(answer: Answer, script: Script) -> None:
    error = {"error": {"message": "the engine is dead", "code": 500}}
    await write_stream(answer, [*script.frames(0, script.after), frame(error), script.done])


async def named_error(answer: Answer, script: Script) -> None:
    error = b'event: error\ndata: {"message": "the engine is dead"}\n\n'
    await write_stream(
        answer, [*script.frames(0, script.after), error, *script.frames(script.after), script.done]
    )


async def error_field(answer: Answer, script: Script) -> None:
    """As older servers of llama.cpp wrote it."""
    error = b'error: {"code": 500, "message": "the engine is dead"}\n\n'
    await write_stream(answer, [*script.frames(0, script.after), error])


async def broken_json(answer: Answer, script: Script) -> None:
    await write_replaced(answer, script, b'data: {"choices": [{"text": \n\n')


async def other_json(answer: Answer, script: Script) -> None:
    await write_replaced(answer, script, b'data: ["neither", "choice", "nor", "content"]\n\n')


async def chat_event(answer: Answer, script: Script) -> None:
    await write_replaced(answer, script, b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')


async def empty_object(answer: Answer, script: Script) -> None:
    await write_replaced(answer, script, b"data: {}\n\n")


async def bad_utf8(answer: Answer, script: Script) -> None:
    piece = frame(make_event(script, "é", [1], script.after + 1))
    await write_replaced(answer, script, piece.replace("é".encode(), b"\xc3"))


async def other_choice(answer: Answer, script: Script) -> None:
    event = json.loads(json.dumps(script.events[script.after]))
    event["choices"][0]["index"] = 1
    await write_replaced(answer, script, frame(event))


async def unknown_end(answer: Answer, script: Script) -> None:
    event = make_event(script, "", [], script.after)
    if script.voice.style == "llama.cpp":
        event |= {"stop": True, "stop_type": "none"}
    else:
        event["choices"][0]["finish_reason"] = "content_filter"
    await write_replaced(answer, script, frame(event))


async def too_large(answer: Answer, script: Script) -> None:
    await write_beginning(answer, script)
    await answer.write(b'data: {"content": "')
    while True:
        await answer.write(b"x" * 65_536)


async def doubled(answer: Answer, script: Script) -> None:
    frames = script.frames()
    await write_stream(answer, [*frames[: script.after], *frames[script.after - 1 :], script.done])


async def lost(answer: Answer, script: Script) -> None:
    frames = script.frames()
    await write_stream(answer, [*frames[: script.after], *frames[script.after + 1 :], script.done])


async def unknown_token(answer: Answer, script: Script) -> None:
    event = make_event(script, "x", [script.voice.tokenizer.vocab_size + 5], script.after + 1)
    await write_replaced(answer, script, frame(event))


async def other_prompt(answer: Answer, script: Script) -> None:
    """The server read another number of tokens than it was sent."""
    for event in script.events:
        if "usage" in event:
            event["usage"]["prompt_tokens"] += 3
        else:
            event["tokens_evaluated"] += 3
    await plain(answer, script)


async def cut_prompt(answer: Answer, script: Script) -> None:
    script.events[-1]["truncated"] = True
    await plain(answer, script)
