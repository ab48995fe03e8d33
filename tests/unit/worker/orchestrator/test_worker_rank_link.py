"""A rank's link delivers all frames and then one end, whichever of its sockets closes first."""

import asyncio
import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.orchestrator.rank_link import RankLink
from services.worker.rank_protocol.rank_messages import FrameKind, RankFailed, pack_frame

FRAME = pack_frame(FrameKind.FAILED, RankFailed(message="no memory"))


class Rank:
    """The rank's ends of its sockets, and the reports of its link.

    Attributes:
        sock: The rank's end of the ordinary socket.
        life: The rank's end of the life socket.
        heard: Messages of failed frames and ends, in order.
    """

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        life, self.life = socket.socketpair()
        ours.setblocking(False)
        self.process = RankProcess(3, None, ours, life_sock=life)  # type: ignore[arg-type]
        self.heard: list[str] = []
        self.link: RankLink | None = None

    def listen(self) -> RankLink:
        self.link = RankLink(self.process, self.on_frame, self.on_end)
        return self.link

    def on_frame(self, process: RankProcess, kind: FrameKind, body: bytes) -> None:
        assert kind is FrameKind.FAILED
        self.heard.append(msgspec.msgpack.decode(body, type=RankFailed).message)

    def on_end(self, process: RankProcess, reason: str) -> None:
        self.heard.append(f"end {process.rank}{reason and ': '}{reason}")

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
        self.process.close()
        self.sock.close()
        self.life.close()


@pytest.fixture
def rank() -> Iterator[Rank]:
    before = len(os.listdir("/proc/self/fd"))
    one = Rank()
    yield one
    one.close()
    assert len(os.listdir("/proc/self/fd")) <= before


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("frames", [0, 1, 3])
async def test_what_was_said_before_the_death_is_heard(rank: Rank, frames: int) -> None:
    rank.listen()
    rank.life.close()  # closes first
    rank.sock.sendall(FRAME * frames)
    await settle()
    assert rank.heard == ["no memory"] * frames + ["end 3"]


async def test_both_ends_are_one(rank: Rank) -> None:
    rank.listen()
    rank.life.close()
    rank.sock.sendall(FRAME + FRAME[:-1])  # dies within a frame
    rank.sock.close()
    await settle()
    assert rank.heard == ["no memory", "end 3"]


async def test_the_ordinary_end_comes_first(rank: Rank) -> None:
    rank.listen()
    rank.sock.close()
    await settle()
    rank.life.close()
    await settle()
    assert rank.heard == ["end 3"]


async def test_what_is_no_frame_is_the_reason_for_the_end(rank: Rank) -> None:
    rank.listen()
    rank.life.close()
    rank.sock.sendall(b"\xff" * 100)
    await settle()
    assert [reported.partition(" of")[0] for reported in rank.heard] == [
        "end 3: it sent what is no frame: a frame"
    ]


async def test_a_link_that_is_closed_says_nothing_more(rank: Rank) -> None:
    def close(*_: object) -> None:
        rank.heard.append("closed")
        link.close()

    link = RankLink(rank.process, close, rank.on_end)
    rank.life.close()
    rank.sock.sendall(FRAME)
    await settle()
    assert rank.heard == ["closed"]


async def test_the_other_sockets_of_a_rank_have_links_of_their_own(rank: Rank) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        link = RankLink(rank.process, rank.on_frame, rank.on_end, ours)
        rank.life.close()
        await settle()
        assert not rank.heard
        theirs.close()
        await settle()
        assert rank.heard == ["end 3"]
        link.close()
