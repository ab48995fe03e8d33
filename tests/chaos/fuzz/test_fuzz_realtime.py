"""Frames of every form on `/v1/realtime` of a whole stack: no error in its logs, nothing left, no growth."""

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kits.chaos.fuzz.fuzz_watch import Watch
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.realtime.frames import any_frames, check_frames, right_frames

pytestmark = pytest.mark.timeout(scaled(300, 7_200))
quietly = settings(
    max_examples=scaled(20, 4_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a gateway before two groups with null engines."""
    env = {"RYZ_RETENTION_S": "2", "RYZ_REALTIME_GRACE_S": "1"}
    options = ("--engine", "null", "--routers", "2")
    with Stack(tmp_path_factory.mktemp("fuzz-realtime"), *options, env=env) as stack:
        stack.await_ready()
        watch = Watch(stack)
        found = urlsplit(stack.state.url).port
        assert found
        yield found
        watch.check_at_rest()
        assert stack.end() == 0


@quietly
@given(st.lists(right_frames, min_size=1, max_size=12).map(b"".join))
def test_right_frames_never_end_the_connection(port: int, sent: bytes) -> None:
    asyncio.run(check_frames(port, sent, right=True))


@quietly
@given(st.lists(any_frames, min_size=1, max_size=12).map(b"".join))
def test_wrong_frames_are_the_clients_fault(port: int, sent: bytes) -> None:
    asyncio.run(check_frames(port, sent, right=False))
