"""Writes streams of events, and events of the API that is imitated."""

from tests.kits.guests.false_server.http_wire import Answer
from tests.kits.guests.false_server.scripts import Object, Script, frame


async def write_stream(answer: Answer, pieces: list[bytes]) -> None:
    await answer.head()
    for piece in pieces:
        if piece:
            await answer.write(piece)
    await answer.end()


async def write_beginning(answer: Answer, script: Script) -> None:
    await answer.head()
    for piece in script.frames(0, script.after):
        await answer.write(piece)


async def write_replaced(answer: Answer, script: Script, piece: bytes) -> None:
    """Writes another event in place of one."""
    frames = script.frames()
    await write_stream(answer, [*frames[: script.after], piece, *frames[script.after + 1 :], script.done])


def make_event(script: Script, text: str, ids: list[int], counted: int) -> Object:
    """An event of the server's API."""
    if script.voice.style == "llama.cpp":
        event: Object = {"content": text, "tokens": ids, "stop": False}
        return {**event, "tokens_predicted": counted, "tokens_evaluated": script.prompt_tokens}
    choice: Object = {"index": 0, "text": text, "finish_reason": None}
    if script.voice.style != "vllm":
        return {"choices": [choice]}
    usage = {"prompt_tokens": script.prompt_tokens, "completion_tokens": counted}
    return {"choices": [{**choice, "token_ids": ids}], "usage": usage}


def silent_event(script: Script) -> bytes:
    """An event that brings nothing."""
    event = make_event(script, "", [], 0)
    event.pop("usage", None)
    event.pop("tokens_predicted", None)
    return frame(event)
