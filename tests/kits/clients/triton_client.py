"""Triton's gRPC client: metadata, whole answers, streams, sessions; and the examples of docs/grpc.md."""

import json
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.kits.clients.served import KEY, Served

HEADERS = {"authorization": f"Bearer {KEY}"}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "grpc.md"
FIRST = {"role": "user", "content": "My name is Ada."}
SECOND = {"role": "user", "content": "Say something."}


def texts(name: str, *values: str) -> Any:
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode() for value in values], dtype=object))
    return tensor


def flag(name: str) -> Any:
    tensor = triton.InferInput(name, [1], "BOOL")
    tensor.set_data_from_numpy(np.array([True]))
    return tensor


def sampling(**fields: Any) -> Any:
    return texts("sampling_parameters", json.dumps({"temperature": 0, "max_tokens": 8} | fields))


class TritonClientTests:
    """`infer`, `async_stream_infer` and metadata of Triton's gRPC client."""

    @pytest.fixture
    def client(self, served: Served) -> Iterator[Any]:
        with triton.InferenceServerClient(served.grpc) as connected:
            yield connected

    def test_the_model_is_ready_and_reported(self, client: Any, served: Served) -> None:
        assert client.is_server_ready()
        assert client.is_model_ready(served.model, headers=HEADERS)
        index = client.get_model_repository_index(headers=HEADERS)
        assert [model.name for model in index.models] == [served.model]
        metadata = client.get_model_metadata(served.model, headers=HEADERS)
        assert "text_input" in [tensor.name for tensor in metadata.inputs]
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.get_model_metadata(served.model)

    def test_an_answer_is_that_of_http_whole_and_in_pieces(self, client: Any, served: Served) -> None:
        body = {"model": served.model, "prompt": "Ada likes", "temperature": 0, "max_tokens": 8}
        asked = httpx.post(f"{served.url}/v1/completions", json=body, headers=HEADERS, timeout=60)
        expected = asked.json()["choices"][0]["text"]
        inputs = [texts("text_input", "Ada likes"), sampling()]
        whole = client.infer(served.model, inputs, headers=HEADERS)
        assert whole.as_numpy("text_output")[0].decode() == expected
        assert whole.as_numpy("num_output_tokens")[0] == asked.json()["usage"]["completion_tokens"]
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=HEADERS)
        client.async_stream_infer(served.model, [*inputs, flag("stream")], request_id="a")
        client.async_stream_infer("none", inputs, request_id="b")
        pieces, over = "", False
        errors: list[str] = []
        while not over or not errors:
            result, error = answers.get(timeout=60)
            if error is not None:
                errors.append(str(error))
                continue
            pieces += result.as_numpy("text_output")[0].decode()
            over = result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
        assert pieces == expected
        assert ["none" in error for error in errors] == [True]

    def test_a_sequence_goes_on_where_it_was(self, client: Any, served: Served) -> None:
        first = client.infer(
            served.model,
            [texts("messages", json.dumps([FIRST])), sampling()],
            sequence_id="triton-ada",
            sequence_start=True,
            headers=HEADERS,
        )
        path = f"{served.url}/v1/sessions/triton-ada"
        reply = httpx.get(path, headers=HEADERS, params={"messages": "true"}, timeout=60).json()
        assert reply["turns"] == 1
        answer = {"role": "assistant", "content": first.as_numpy("text_output")[0].decode()}
        body = {"model": served.model, "messages": [FIRST, answer, SECOND], "temperature": 0, "max_tokens": 8}
        asked = httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=HEADERS, timeout=60)
        second = client.infer(
            served.model,
            [texts("messages", json.dumps([SECOND])), sampling()],
            sequence_id="triton-ada",
            sequence_end=True,
            headers=HEADERS,
        )
        assert second.as_numpy("text_output")[0].decode() == asked.json()["choices"][0]["message"]["content"]
        assert httpx.get(path, headers=HEADERS, timeout=60).status_code == 404

    def test_the_examples_of_the_page_run(
        self, served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        known: dict[str, Any] = {}
        assert len(blocks) == 4
        infer, start = triton.InferenceServerClient.infer, triton.InferenceServerClient.start_stream
        monkeypatch.setattr(
            triton.InferenceServerClient, "infer", lambda *args: infer(*args, headers=HEADERS)
        )
        monkeypatch.setattr(
            triton.InferenceServerClient,
            "start_stream",
            lambda *args, **more: start(*args, headers=HEADERS, **more),
        )
        for block in blocks:
            exec(block.replace("127.0.0.1:8001", served.grpc).replace("smollm2-135m", served.model), known)
        said = capsys.readouterr().out
        assert 'name: "ryzanstein"' in said
        assert len(said) > 100
