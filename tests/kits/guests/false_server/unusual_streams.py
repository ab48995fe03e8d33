"""Streams that are whole, in forms that a client may not expect."""

import asyncio
import json

from tests.kits.guests.false_server.http_wire import Answer
from tests.kits.guests.false_server.scripts import Script, frame
from tests.kits.guests.false_server.written_events import silent_event, write_stream

_STALL_S = 3600.0


async def plain(answer: Answer, script: Script) -> None:
    await write_stream(answer, [*script.frames(), script.done])


async def slow(answer: Answer, script: Script) -> None:
    await answer.head()
    for piece in script.frames():
        await answer.write(piece)
        await asyncio.sleep(0.03)
    await answer.write(script.done or b": end\n\n")
    await answer.end()


async def one_write(answer: Answer, script: Script) -> None:
    await write_stream(answer, [b"".join(script.frames()) + script.done])


async def split_bytes(answer: Answer, script: Script) -> None:
    await write_stream(answer, [bytes((byte,)) for byte in b"".join(script.frames()) + script.done])


async def split_chunks(answer: Answer, script: Script) -> None:
    """Chunks of HTTP end anywhere, and have extensions."""
    await answer.head()
    data = b"".join(script.frames()) + script.done
    for at in range(0, len(data), 7):
        piece = data[at : at + 7]
        await answer.raw(b"%x;name=value\r\n%s\r\n" % (len(piece), piece))
    await answer.end()


async def closed_at_end(answer: Answer, script: Script) -> None:
    await answer.head(framing="close")
    for piece in [*script.frames(), script.done]:
        await answer.write(piece)
    await answer.end()


async def keep_alives(answer: Answer, script: Script) -> None:
    pieces = [piece + b": still here\n\n" for piece in script.frames()]
    await write_stream(answer, [b": begins\n\n", *pieces, script.done])


async def crlf(answer: Answer, script: Script) -> None:
    await write_stream(answer, [piece.replace(b"\n", b"\r\n") for piece in [*script.frames(), script.done]])


async def cr_only(answer: Answer, script: Script) -> None:
    await write_stream(answer, [piece.replace(b"\n", b"\r") for piece in [*script.frames(), script.done]])


async def multi_line_data(answer: Answer, script: Script) -> None:
    pieces = []
    for event in script.events:
        lines = json.dumps(event, ensure_ascii=False, indent=1).encode().split(b"\n")
        pieces.append(b"".join(b"data: " + line + b"\n" for line in lines) + b"\n")
    await write_stream(answer, [*pieces, script.done])


async def other_fields(answer: Answer, script: Script) -> None:
    pieces = [b"id: 7\nevent: message\nretry: 100\nunknown\n" + piece for piece in script.frames()]
    await write_stream(answer, [b"\xef\xbb\xbf", *pieces, script.done])


async def no_space(answer: Answer, script: Script) -> None:
    await write_stream(
        answer, [piece.replace(b"data: ", b"data:", 1) for piece in script.frames()] + [script.done]
    )


async def no_done(answer: Answer, script: Script) -> None:
    await write_stream(answer, script.frames())


async def no_last_line(answer: Answer, script: Script) -> None:
    *pieces, last = script.frames()
    await write_stream(answer, [*pieces, last.rstrip(b"\n")])


async def escaped(answer: Answer, script: Script) -> None:
    await write_stream(answer, [b"data: " + json.dumps(event).encode() + b"\n\n" for event in script.events])


async def empty_events(answer: Answer, script: Script) -> None:
    pieces = [piece + silent_event(script) for piece in script.frames()[:-1]]
    await write_stream(answer, [*pieces, *script.frames(-1), script.done])


async def more_behind_the_end(answer: Answer, script: Script) -> None:
    await write_stream(answer, [*script.frames(), script.done, b"data: {broken\n\n", *script.frames()])


async def early_hints(answer: Answer, script: Script) -> None:
    await answer.raw(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    await plain(answer, script)


async def endless_text(answer: Answer, script: Script) -> None:
    """More tokens than were asked for, without an end."""
    longer = script.longer(400)
    await answer.head()
    for piece in longer.frames(0, -1):
        await answer.write(piece)
    await asyncio.sleep(_STALL_S)


async def split_pairs(answer: Answer, script: Script) -> None:
    """The halves of a UTF-16 pair come in two events."""
    pieces = list[bytes]()
    for event in script.events:
        choice = event["choices"][0]
        halves = choice["text"].encode("utf-16-le")
        if len(choice["text"]) == 1 and len(halves) == 4:
            for half in (halves[:2], halves[2:]):
                text = half.decode("utf-16-le", "surrogatepass")
                piece = {**event, "choices": [{**choice, "text": text}]}
                pieces.append(b"data: " + json.dumps(piece).encode() + b"\n\n")
        else:
            pieces.append(frame(event))
    await write_stream(answer, [*pieces, script.done])


async def joined(answer: Answer, script: Script) -> None:
    """One event has the text of several."""
    *events, last = script.events
    pieces = list[bytes]()
    for at in range(0, len(events), 4):
        part = json.loads(json.dumps(events[at]))
        part["choices"][0]["text"] = "".join(one["choices"][0]["text"] for one in events[at : at + 4])
        pieces.append(frame(part))
    await write_stream(answer, [*pieces, frame(last), script.done])
