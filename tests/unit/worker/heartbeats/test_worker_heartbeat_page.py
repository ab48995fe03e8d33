"""The memory between a leader and the process that sends its heartbeats."""

import threading

import pytest

from services.worker.leader.heartbeats.page import (
    NOTHING_SENT,
    Description,
    HeartbeatPage,
    SentHeartbeats,
)
from shared.messages import Heartbeat, Load, ModelCard
from tests.kits.worker.options import heartbeat_process

OPTIONS = heartbeat_process(
    nats_url="nats://u:p@127.0.0.1:1", connection="worker/i/heartbeats", instance_id="i", interval_s=0.025,
    stale_s=1.0,
)  # fmt: skip


def beat(running: int, name: str = "demo") -> Heartbeat:
    card = ModelCard(name=name, context_length=8)
    return Heartbeat(
        group="g0",
        instance_id="i",
        seq=0,
        interval_ms=25,
        state="ready",
        model=card,
        load=Load(running=running),
    )


@pytest.fixture
def page() -> HeartbeatPage:
    return HeartbeatPage.create(OPTIONS)


def test_each_side_reads_what_the_other_wrote(page: HeartbeatPage) -> None:
    try:
        assert page.options() == OPTIONS
        assert page.description() is None
        assert page.sent() == NOTHING_SENT
        for number in range(3):
            page.write_description(Description(beat(number), 1.5 + number, number))
            page.write_sent(SentHeartbeats(number, 2.5, 3.5))
            assert page.description() == Description(beat(number), 1.5 + number, number)
            assert page.sent() == SentHeartbeats(number, 2.5, 3.5)
        page.write_description(Description(beat(2), 9.0, 7))  # the same state again
        assert page.description() == Description(beat(2), 9.0, 7)
    finally:
        page.close()


def test_what_does_not_fit_is_an_error(page: HeartbeatPage) -> None:
    try:
        with pytest.raises(ValueError, match="too many for a page"):
            page.write_description(Description(beat(1, "x" * 20_000), 0.0, 0))
    finally:
        page.close()


def test_a_half_written_description_is_never_read(page: HeartbeatPage) -> None:
    """One thread writes as fast as it can, descriptions of two lengths; each reading is one of them."""
    written = [beat(1), beat(2, "another" * 15)]
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            page.write_description(Description(written[number % 2], float(number), number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5000):
            read = page.description()
            if read is not None:
                assert read.heartbeat == written[read.least_seq % 2]
                assert read.described_at == read.least_seq
    finally:
        ended.set()
        thread.join()
        page.close()
