"""What the witness of a storm reports of the frames on the bus."""

from shared.bus import Message
from shared.codec import encode
from shared.messages import Accepted, Failed, FrameBatch
from tests.kits.chaos.storm.storm import Witness

INBOX = "_INBOX.gateway.1.f"


def batch(*ends: str) -> bytes:
    """An accepted attempt, and an end with each of these messages."""
    frames = [
        Failed(request_id="r1", attempt=1, seq=1 + number, code="internal", message=message)
        for number, message in enumerate(ends)
    ]
    accepted = Accepted(request_id="r1", attempt=1, seq=0, group="g1")
    return encode(FrameBatch(frames=[accepted, *frames], group="g1", instance_id="i1"))


async def heard(*messages: Message) -> list[str]:
    witness = Witness()
    for message in messages:
        await witness.hear(message)
    return witness.problems()


async def test_one_end_that_is_sent_again_is_no_problem() -> None:
    assert await heard(*[Message(INBOX, batch("no"))] * 2) == []


async def test_a_second_end_of_an_attempt_is_a_problem() -> None:
    (problem,) = await heard(Message(INBOX, batch("no", "no")))
    assert "attempt 1 of r1 had 2 ends in group g1" in problem


async def test_frames_that_cannot_be_read_are_a_problem() -> None:
    """Other messages of an inbox, such as answers to calls, are nothing to the witness."""
    (problem,) = await heard(Message(INBOX, b"{"), Message("_INBOX.gateway.1.f.r1", b""))
    assert problem.startswith(f"frames that cannot be read: {INBOX}: ")
