"""The stack of these tests ends what it started when it cannot start."""

import socket
from pathlib import Path

import pytest

from tests.kits.stacks.stream_stack import Fleet


def test_a_set_up_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, stream_grace_s="soon")
    with pytest.raises(AssertionError, match=r"gateway0 ended with 2(.|\n)*RYZ_STREAM_GRACE_S"), fleet:
        pass
    assert fleet.processes == {}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", fleet.nats.port), timeout=1)
