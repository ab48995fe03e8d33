"""The faults of `test_failover.py` while streams are read over HTTP or gRPC: no stream changes."""

import json
import os
import queue
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton
from anthropic import Anthropic
from openai import OpenAI

from cli.stack.state import StackState
from tests.kits.chaos.faults import Victim, kill_one_by_one
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import await_idle, metrics_of
from tests.kits.chaos.streams import Readers, http_client, make_bodies, stopped_late, undisturbed
from tests.kits.e2e.stack import Stack
from tests.kits.gateway.grpc_client import streamed, texts

pytestmark = pytest.mark.timeout(scaled(300, 1800))
EVENTS_BEFORE = 12  # by then the answer has begun
# long enough that a leader dies in the middle of it
LIST = {
    "type": "object",
    "properties": {
        "things": {
            "type": "array",
            "items": {"type": "string", "minLength": 20, "maxLength": 30},
            "minItems": 60,
            "maxItems": 60,
        }
    },
    "required": ["things"],
    "additionalProperties": False,
}
Disturb = Callable[[str], None]  # called in mid-answer with the name of the group


def test_streams_over_http_survive_ranks_and_leaders(pair: Stack) -> None:
    victims: list[Victim] = scaled(["rank", "leader"], ["rank", "leader", "rank"] * 20)
    with http_client(pair.state.url) as client:
        bodies = stopped_late(client, make_bodies("demo", scaled(16, 32), scaled(96, 128)))
        expected = undisturbed(client, bodies)
        assert {one.finish[0] for one in expected} == {"stop", "length"}
        with Readers(client, bodies, expected) as readers:
            killed = kill_one_by_one(pair.state.nats_urls, victims)
            readers.await_streams(len(bodies))
        print(killed, readers.streams)
    assert [one.victim for one in killed] == victims
    assert readers.streams > len(bodies)


def stream_message(state: StackState, disturb: Disturb) -> dict[str, Any]:
    """Reads a tool call from `/v1/messages`; returns the message that the SDK puts together."""
    tool: Any = {"name": "keep", "description": "Keeps things.", "input_schema": LIST}
    with (
        Anthropic(base_url=state.url, api_key="none", max_retries=0, timeout=60) as client,
        client.messages.stream(
            model="demo",
            messages=[{"role": "user", "content": "Name things."}],
            max_tokens=1500,
            tools=[tool],
            tool_choice={"type": "tool", "name": "keep"},
            extra_body={"temperature": 1, "seed": 7},
        ) as stream,
    ):
        read(stream, stream.response.headers["x-ryz-group"], disturb)
        final: dict[str, Any] = stream.get_final_message().to_dict()
        return final


def stream_response(state: StackState, disturb: Disturb) -> dict[str, Any]:
    """Reads an answer under a schema from `/v1/responses`; returns the final response."""
    form: Any = {"format": {"type": "json_schema", "name": "things", "schema": LIST, "strict": True}}
    with (
        OpenAI(base_url=f"{state.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        client.responses.with_streaming_response.create(
            model="demo",
            input="Name things.",
            text=form,
            temperature=1,
            max_output_tokens=1500,
            stream=True,
            extra_body={"seed": 7},
        ) as answer,
    ):
        stream = answer.parse()
        events = read(stream, answer.headers["x-ryz-group"], disturb)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.completed"
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final: dict[str, Any] = events[-1].response.to_dict()
        assert final["output"][0]["content"][0]["text"] == text
        return final


def stream_inference(state: StackState, disturb: Disturb) -> dict[str, Any]:
    """Reads a text from Triton's `ModelStreamInfer`; returns it with the number of its tokens."""
    fields = {"max_tokens": 1500, "temperature": 1, "seed": 7, "ignore_eos": True}
    inputs = [
        texts("text_input", "Name things."),
        texts("sampling_parameters", json.dumps(fields)),
        streamed(),
    ]
    answers = queue.Queue[Any]()
    with triton.InferenceServerClient(state.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("demo", inputs)
        first = answers.get(timeout=60)
        group = first.get_response().parameters["group"].string_param
        parts = [first, *read(until_final(answers), group, disturb)]
        client.stop_stream()
    text = "".join(part.as_numpy("text_output")[0].decode() for part in parts)
    return {"text": text, "tokens": int(parts[-1].as_numpy("num_output_tokens")[0])}


def until_final(answers: "queue.Queue[Any]") -> Iterator[Any]:
    """Yields the responses that come, up to the last one to a request."""
    final = False
    while not final:
        part = answers.get(timeout=60)
        yield part
        final = part.get_response().parameters["triton_final_response"].bool_param


def read(stream: Iterator[Any], group: str, disturb: Disturb) -> list[Any]:
    """Returns all events of a stream, disturbed after a few."""
    events = []
    for event in stream:
        events.append(event)
        if len(events) == EVENTS_BEFORE:
            disturb(group)
    return events


@pytest.mark.parametrize("stream", [stream_message, stream_response, stream_inference])
def test_messages_and_responses_survive_their_leader(
    pair: Stack, stream: Callable[[StackState, Disturb], dict[str, Any]]
) -> None:
    await_idle(pair, groups=2)
    expected = stream(pair.state, lambda group: None)
    metrics, killed = metrics_of(pair), list[str]()
    leaders = {group: pair.pid_of(f"worker-{group}") for group in ("g0", "g1")}
    before = {group: metrics[group].value("ryz_worker_prompt_tokens_total") for group in leaders}

    def kill_leader(group: str) -> None:
        os.kill(leaders[group], signal.SIGKILL)
        killed.append(group)

    answer = stream(pair.state, kill_leader)
    (other,) = leaders.keys() - killed
    after = metrics[other].value("ryz_worker_prompt_tokens_total")
    assert after > before[other], "the answer did not go on in the other group: it had ended before the kill"
    assert nameless(answer) == nameless(expected)
    await_idle(pair, groups=2)


def nameless(answer: Any) -> Any:
    """Returns an answer without ids, which follow from the request's, times, and where its KV came from."""
    if isinstance(answer, dict):
        hidden = {"id", "created_at", "completed_at", "call_id", "input_tokens_details", "cached_tokens"}
        found = {name: nameless(value) for name, value in answer.items() if name not in hidden}
        if "cache_read_input_tokens" in found:  # with the two others it is the whole prompt
            for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
                found["input_tokens"] += found.pop(name)
        return found
    return [nameless(value) for value in answer] if isinstance(answer, list) else answer
