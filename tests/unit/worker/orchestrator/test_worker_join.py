"""Ranks that join a group from another host: addresses, proofs and settings."""

import os

import pytest
from pydantic import ValidationError

from services.worker.engine.collectives.base import CollectiveError
from services.worker.engine.collectives.gloo import interface_of
from services.worker.rank_protocol.rank_messages import (
    HEADER_BYTES,
    FrameKind,
    RankFailed,
    frame_length,
    pack_frame,
)
from services.worker.rank_protocol.starting.join_messages import prove, proven, split_address
from services.worker.settings import WorkerSettings

TOKEN = "sixteen letters."


@pytest.mark.parametrize(
    ("text", "parts"),
    [("10.0.0.1:7000", ("10.0.0.1", 7000)), ("[::1]:7", ("::1", 7)), ("far.example:0", ("far.example", 0))],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", "10.0.0.1", ":7000", "far:port", "far:65536", "far:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no address; it looks like"):
        split_address(text)


def test_a_proof_is_for_one_side_one_exchange_and_one_token() -> None:
    challenge, hello = os.urandom(32), os.urandom(32)
    proof = prove(TOKEN, "rank", challenge, hello)
    assert proven(TOKEN, "rank", challenge, hello, proof)
    assert not proven(TOKEN, "leader", challenge, hello, proof)
    assert not proven(TOKEN, "rank", os.urandom(32), hello, proof)
    assert not proven(TOKEN, "rank", challenge, os.urandom(32), proof)
    assert not proven(TOKEN + "!", "rank", challenge, hello, proof)
    assert TOKEN.encode() not in proof


def test_the_header_tells_how_much_follows() -> None:
    frame = pack_frame(FrameKind.FAILED, RankFailed(message="no"))
    assert frame_length(frame[:HEADER_BYTES]) == len(frame) - HEADER_BYTES


def test_an_address_has_an_interface_or_an_error() -> None:
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(CollectiveError, match=r"no network interface has the address 203\.0\.113\.9"):
        interface_of("203.0.113.9")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensor_parallel": 1}, "less than RYZ_TENSOR_PARALLEL"),
        ({"collectives": "shm"}, "RYZ_COLLECTIVES=gloo"),
        ({"rank_token": "short"}, "at least 16 characters in RYZ_RANK_TOKEN"),
        ({"rank_listen": "nowhere"}, "needs RYZ_RANK_LISTEN: 'nowhere' is no address"),
        ({"rank_listen": ""}, "needs RYZ_RANK_LISTEN"),
    ],
)
def test_settings_that_do_not_fit_together(changes: dict[str, object], said: str) -> None:
    given: dict[str, object] = {
        "model": "m", "tensor_parallel": 2,
        "remote_ranks": 1, "rank_listen": "0.0.0.0:1", "rank_token": TOKEN,
    }  # fmt: skip
    assert WorkerSettings(**given).remote_ranks == 1  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=said) as refusal:
        WorkerSettings(**(given | changes))  # type: ignore[arg-type]
    assert "short" not in str(refusal.value).replace("too_short", "")
    assert TOKEN not in str(refusal.value)
