"""What a client writes to the ledger of an answer whose last frame never came."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.client.generation.generation_state import GenerationState
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.usage_reports import UsageReports, seen_usage
from shared.client.settings import ClientSettings
from shared.codec import pack_tokens
from shared.errors import GroupLost
from shared.messages import Accepted, Delta, Done, Failed, GenerateRequest, Tokens, Usage, UsageRecord
from tests.kits.client import client_context

pytestmark = pytest.mark.sources  # streams are made up of what is read of them

SETTINGS = ClientSettings(max_losses=0)


def begun(*, tokens: int = 3, **fields: Any) -> tuple[GenerateRequest, GenerationState]:
    """A request that a group has taken and sent some tokens of."""
    given: dict[str, Any] = {"request_id": "r1", "model": "m", "prompt": "p", "tenant": "acme"}
    request = GenerateRequest(**(given | fields))
    context = client_context(SETTINGS, None)
    state = GenerationState(request, context, now=0.0, deadline=100.0, max_ready=1024)
    state.on_frame(Accepted(request_id="r1", group="g0", instance_id="i0"), "g0", 1.0, "i0")
    for seq in range(1, tokens + 1):
        prompt = Usage(prompt_tokens=7, cached_tokens=4) if seq == 1 else None
        delta = Delta(text="x", token_ids=pack_tokens([seq]))
        state.on_frame(Tokens(request_id="r1", seq=seq, deltas=[delta], prompt=prompt), "g0", 1.0, "i0")
    return request, state


def stream_of(request: GenerateRequest, state: GenerationState) -> GenerationStream:
    return cast(GenerationStream, SimpleNamespace(request=request, state=state, request_id="r1"))


def test_a_cancelled_stream() -> None:
    request, state = begun(key_id="0123456789ab")
    state.cancel()
    record = seen_usage(stream_of(request, state))
    assert record is not None
    assert (record.request_id, record.tenant, record.key_id) == ("r1", "acme", "0123456789ab")
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (7, 4, 3)
    assert record.outcome == "cut"


def test_a_lost_group_without_another_one() -> None:
    request, state = begun(usage_id="line-1")
    state.on_group_down("g0", "i0", "silent", 2.0)
    assert isinstance(state.error, GroupLost)
    record = seen_usage(stream_of(request, state))
    assert record is not None
    assert (record.request_id, record.outcome, record.completion_tokens) == ("line-1", "failed", 3)


def test_nothing_is_written_with_a_last_frame_without_tokens_or_before_the_end() -> None:
    request, state = begun()
    assert seen_usage(stream_of(request, state)) is None
    state.on_frame(Done(request_id="r1", seq=4, usage=Usage(completion_tokens=3)), "g0", 2.0, "i0")
    assert seen_usage(stream_of(request, state)) is None
    request, state = begun(tokens=0)
    state.cancel()
    assert seen_usage(stream_of(request, state)) is None
    request, state = begun()
    refused = Failed(request_id="r1", seq=4, code="internal", message="", usage=Usage(completion_tokens=3))
    state.on_frame(refused, "g0", 2.0, "i0")
    assert seen_usage(stream_of(request, state)) is None


def test_a_client_gives_it_to_the_ledger() -> None:
    reports, taken = UsageReports(), list[UsageRecord]()
    reports.record = taken.append
    request, state = begun()
    state.cancel()
    reports.end_stream(stream_of(request, state))
    assert [one.completion_tokens for one in taken] == [3]
